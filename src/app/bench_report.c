/* bench_report: the table for people, CSV and Markdown. Rows are printed as they are measured.
 * Owns:    the columns of the CSV: scripts read them by name; a new one goes to the end. */
#include "app/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BUSY_PERCENT = 10 }; /* of a core; below that a machine counts as quiet */

static const ig_bench_set *last_set(const ig_bench_report *r) {
    return &r->set[r->n_sets - 1];
}

static const char *work_of(const ig_bench_row *row) {
    return row->work == IG_BENCH_PREFILL ? "prefill" : "decode";
}

ig_bench_text ig_bench_row_text(const ig_bench_row *row) {
    ig_bench_text t;
    if (row->work == IG_BENCH_PREFILL)
        snprintf(t.s, sizeof t.s, "prefill  %d tokens", row->n_tokens);
    else if (row->n_seqs == 1)
        snprintf(t.s, sizeof t.s, "decode   behind %d", row->n_context);
    else
        snprintf(t.s, sizeof t.s, "decode   %d x behind %d", row->n_seqs, row->n_context);
    return t;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static void print_bandwidth(const ig_bench_report *r, const ig_bench_set *s) {
    if (s->bandwidth <= 0)
        printf("bandwidth  not measured: too little memory is free\n");
    else if (s->n_threads == 1)
        printf("bandwidth  %.1f GB/s read from memory by one thread\n", s->bandwidth * 1e-9);
    else
        printf("bandwidth  %.1f GB/s read from memory by %d threads, %.1f by one\n", s->bandwidth * 1e-9,
               s->n_threads, r->bandwidth_one * 1e-9);
}

static void begin_text(const ig_bench_report *r) {
    const ig_bench_set *s = last_set(r);
    if (r->n_sets > 1) putchar('\n');
    if (r->n_sets == 1)
        printf("model      %s (%s)\nweights    %.1f million parameters in %s, of which a token reads %s\n",
               r->model, r->family, (double)r->n_params * 1e-6, ig_size_text_of(r->weights_bytes).s,
               ig_size_text_of(r->decode_bytes).s);
    if (r->n_sets == 1) printf("numbers    of tier %s\n", r->tier);
    if (r->n_sets == 1 && r->kv_bits != 16) printf("cache      keys and values of %d bits\n", r->kv_bits);
    if (r->n_sets == 1 && r->act_bits != 8) printf("products   with activations of %d bits\n", r->act_bits);
    if (r->n_sets == 1) printf("machine    %s\n", ig_cpu_model());
    if (r->n_sets == 1) printf("kernels    %s: %s\n", r->isa.s, ig_bench_why_isa(ig_cpu_features()).s);
    printf("threads    %d: %s\n", s->n_threads, ig_bench_why_threads(s->n_threads, s->threads_asked).s);
    print_bandwidth(r, s);
    printf("ready      %.0f ms: weights %.0f ms, tokenizer and template %.0f ms beside them\n", s->ready_ms,
           s->weights_ms, s->text_ms);
    printf("memory     %s resident when ready\n\n", ig_size_text_of(s->ready_bytes).s);
    printf("%-28s %9s %7s %8s %9s %6s %9s\n", "", "tok/s", "spread", "GMAC/s", "a token", "GB/s", "roofline");
    fflush(stdout);
}

static void row_text(const ig_bench_report *r, const ig_bench_row *row) {
    (void)r;
    if (row->left_out) {
        printf("%-28s left out: it would take minutes; ask for it with %s\n", ig_bench_row_text(row).s,
               row->work == IG_BENCH_PREFILL ? "-p" : "-d");
        return;
    }
    printf("%-28s %9.1f %5.0f %% %8.1f", ig_bench_row_text(row).s, row->tps, 100 * ig_bench_spread(row),
           row->gmacs);
    if (row->work == IG_BENCH_DECODE)
        printf(" %9s %6.1f", ig_size_text_of((uint64_t)row->token_bytes).s, row->gbs);
    if (row->roofline > 0) printf(" %7.0f %%", 100 * row->roofline);
    putchar('\n');
    fflush(stdout);
}

static void print_formats(const ig_bench_op *op) {
    char text[40] = "";
    for (int i = 0; i < IG_BENCH_OP_WEIGHTS && op->fmt[i]; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", op->fmt[i]->name);
    }
    printf("  %-18.18s", text);
}

/* Of one prompt, or of one step. */
static void print_profile(const ig_bench_row *row) {
    const ig_bench_profile *p = row->profile;
    const double passes = p->n_passes ? (double)p->n_passes : 1;
    double all_ns = 0;
    for (int i = 0; i < p->n_ops; i++) all_ns += (double)p->op[i].ns;
    printf("\n%s: %.3f ms %s\n", ig_bench_row_text(row).s, all_ns / passes * 1e-6,
           row->work == IG_BENCH_PREFILL ? "of ops" : "of ops a step");
    printf("  %-26s  %-18s %9s %7s %8s %7s\n", "op", "format", "ms", "share", "GMAC/s", "GB/s");
    for (int i = 0; i < p->n_ops; i++) {
        const ig_bench_op *op = &p->op[i];
        const double ns = op->ns ? (double)op->ns : 1;
        char name[64];
        snprintf(name, sizeof name, "%.24s %.36s", op->name,
                 op->weight ? ig_bench_weight_text(op->weight).s : "");
        printf("  %-26.26s", name);
        print_formats(op);
        printf(" %9.3f %5.1f %%", ns / passes * 1e-6, 100 * ns / (all_ns > 0 ? all_ns : 1));
        if (op->macs > 0) printf(" %8.1f", op->macs / ns);
        if (op->bytes > 0 && row->work == IG_BENCH_DECODE) printf(" %7.1f", op->bytes / ns);
        putchar('\n');
    }
}

static void end_text(const ig_bench_report *r) {
    const ig_bench_set *s = last_set(r);
    double others = 0;
    bool above = false;
    printf("\nmemory     %s resident at the end\n", ig_size_text_of(s->end_bytes).s);
    for (int i = 0; i < s->n_rows; i++) {
        if (s->rows[i].others > others) others = s->rows[i].others;
        above = above || s->rows[i].roofline > 1;
    }
    if (above) printf("roofline   above 100 %%: the bandwidth was measured in a slower moment than the decode had\n");
    if (100 * others > BUSY_PERCENT)
        printf(
            "busy       other programs used %.1f cores meanwhile: a quiet machine gives more than this\n",
            others);
    for (int i = 0; i < s->n_rows; i++)
        if (s->rows[i].profile && !s->rows[i].left_out) print_profile(&s->rows[i]);
}

static int finish_text(const ig_bench_report *r) {
    const uint32_t cpu = ig_cpu_features();
    printf("\n%-14s %-30s %5s  %s\n", "op", "kernel", "", "chosen because");
    for (int i = 0; i < r->kernels.n; i++) {
        const struct ig_bench_kernel *k = &r->kernels.v[i];
        char times[16];
        snprintf(times, sizeof times, "x%d", k->n);
        printf("%-14s %-30s %5s  %s\n", k->op, k->kern->name, times, ig_bench_why_kernel(k->kern, cpu).s);
    }
    return IG_EXIT_OK;
}

/* ---- CSV --------------------------------------------------------------------------------------------- */

/* A name from outside as one field of one line. */
static void print_field(const char *text) {
    char calm[160];
    snprintf(calm, sizeof calm, "%s", text);
    ig_text_calm(calm, false);
    if (!strpbrk(calm, ",\"")) {
        fputs(calm, stdout);
        return;
    }
    putchar('"');
    for (const char *p = calm; *p; p++) {
        if (*p == '"') putchar('"');
        putchar(*p);
    }
    putchar('"');
}

static void begin_csv(const ig_bench_report *r) {
    if (r->n_sets > 1) return;
    puts(
        "utc,machine,cores,version,model,threads,isa,work,tokens,context,sequences,runs,tok_s,tok_s_min,"
         "tok_s_max,spread,bytes_a_token,gb_s,gmac_s,bandwidth_gb_s,roofline,ready_ms,resident_bytes,"
        "others_cpu,kv_bits,act_bits,tier");
}

static void row_csv(const ig_bench_report *r, const ig_bench_row *row) {
    const ig_bench_set *s = last_set(r);
    const bool decode = row->work == IG_BENCH_DECODE;
    if (row->left_out) return;
    printf("%s,", r->utc);
    print_field(ig_cpu_model());
    printf(",%d," IG_VERSION ",", ig_cpu_count());
    print_field(r->model);
    printf(",%d,%s,%s,%d,%d,%d,%d,%.2f,%.2f,%.2f,%.4f,", s->n_threads, r->isa.s, work_of(row), row->n_tokens,
           row->n_context, row->n_seqs, row->n_runs, row->tps, row->tps_min, row->tps_max,
           ig_bench_spread(row));
    if (decode)
        printf("%.0f,%.3f,", row->token_bytes, row->gbs);
    else
        printf(",,");
    printf("%.2f,", row->gmacs);
    if (s->bandwidth > 0) printf("%.2f", s->bandwidth * 1e-9);
    putchar(',');
    if (row->roofline > 0) printf("%.4f", row->roofline);
    printf(",%.1f,%" PRIu64 ",", s->ready_ms, s->ready_bytes);
    if (row->others >= 0) printf("%.3f", row->others);
    printf(",%d,%d,%s\n", r->kv_bits, r->act_bits, r->tier);
    fflush(stdout);
}

/* ---- Markdown ---------------------------------------------------------------------------------------- */

static void begin_markdown(const ig_bench_report *r) {
    if (r->n_sets > 1) return;
    printf("| model | threads | work | tok/s | spread | GMAC/s | GB/s | of roofline |\n"
           "|---|--:|---|--:|--:|--:|--:|--:|\n");
}

static void row_markdown(const ig_bench_report *r, const ig_bench_row *row) {
    char name[sizeof r->model];
    snprintf(name, sizeof name, "%s", r->model);
    ig_text_calm(name, false);
    for (char *p = name; *p; p++)
        if (*p == '|') *p = '/';
    if (row->left_out) return;
    printf("| %s | %d | %s | %.1f | %.0f %% | %.1f |", name, last_set(r)->n_threads, ig_bench_row_text(row).s,
           row->tps, 100 * ig_bench_spread(row), row->gmacs);
    if (row->work == IG_BENCH_DECODE)
        printf(" %.1f |", row->gbs);
    else
        printf(" |");
    if (row->roofline > 0)
        printf(" %.0f %% |\n", 100 * row->roofline);
    else
        printf(" |\n");
    fflush(stdout);
}

const ig_bench_format *ig_bench_format_of(const char *name) {
    static const ig_bench_format formats[] = {
        {"text", begin_text, row_text, end_text, finish_text},
        {"json", NULL, NULL, NULL, ig_bench_print_json},
        {"csv", begin_csv, row_csv, NULL, NULL},
        {"md", begin_markdown, row_markdown, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}
