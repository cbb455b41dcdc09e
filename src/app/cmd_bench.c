/* bench: speed and memory of a model on this machine. What is measured, and how, stands in bench.h; here are
 * the options, and the order: for each number of threads the bandwidth first, alone in memory, then the model. */
#include "app/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* One line that is redrawn, for who waits at a terminal. */
static void show_line(const char *text) {
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\33[K%s", text);
}

static int show_runs; /* of a row, at most */

static void show_run(const ig_bench_row *row, int run, bool context, int percent) {
    char text[96];
    snprintf(text, sizeof text, "%.50s, run %d of %d%s: %d %% ", ig_bench_row_text(row).s, run + 1, show_runs,
             context ? ", the context" : "", percent);
    show_line(text);
}

static ig_status measure_bandwidth(ig_bench_report *r, ig_bench_set *s, ig_err *err) {
    ig_pool *pool = NULL;
    ig_status st = ig_pool_make(&pool, s->n_threads, err);
    if (st) return st;
    show_line("measuring the memory ");
    if (r->bandwidth_one <= 0) r->bandwidth_one = ig_bench_bandwidth(NULL);
    s->bandwidth = s->n_threads == 1 ? r->bandwidth_one : ig_bench_bandwidth(pool);
    show_line("");
    ig_pool_free(pool);
    return IG_OK;
}

static void describe(ig_bench_report *r, ig_bench_set *s, const ig_loaded *l) {
    snprintf(r->model, sizeof r->model, "%s", l->name);
    snprintf(r->family, sizeof r->family, "%s", ig_model_family(l->model));
    r->n_params = ig_model_n_params(l->model);
    r->weights_bytes = ig_model_weights_bytes(l->model);
    r->decode_bytes = ig_model_decode_bytes(l->model);
    r->tier = ig_tier_name(l->tier);
    r->kv_bits = ig_model_kv_shape(l->model).group[0].kind == IG_KV_8 ? 8 : 16;
    r->act_bits = ig_model_two_parts(l->model) ? 16 : 8;
    r->isa = ig_bench_isa(l->model);
    ig_bench_kernels_of(&r->kernels, l->model);
    s->ready_ms = (double)l->load_ns * 1e-6;
    s->weights_ms = (double)l->weights_ns * 1e-6;
    s->text_ms = (double)l->text_ns * 1e-6;
    s->ready_bytes = ig_memory_resident_bytes();
}

static ig_status measure_row(ig_bench *b, const ig_bench_report *r, const ig_bench_set *s, ig_bench_row *row,
                             ig_err *err) {
    if (r->wish->profile && !(row->profile = calloc(1, sizeof *row->profile)))
        return ig_fail(err, IG_ELIMIT, "bench: no memory for a profile");
    const ig_bench_look since = ig_bench_look_now();
    ig_status st = ig_bench_measure(b, row, show_run, err);
    row->others = ig_bench_others(since);
    show_line("");
    if (!st && s->bandwidth > 0) row->roofline = row->gbs * 1e9 / s->bandwidth;
    return st;
}

static ig_status measure(ig_bench_report *r, ig_bench_set *s, const ig_loaded *l, const ig_bench_format *f,
                         ig_err *err) {
    ig_bench *b = NULL;
    ig_status st = IG_OK;
    s->rows = calloc(IG_BENCH_ROWS_MAX, sizeof *s->rows);
    if (!s->rows) st = ig_fail(err, IG_ELIMIT, "bench: no memory for rows");
    if (!st) st = ig_bench_plan(s->rows, &s->n_rows, r->wish, ig_model_config_of(l->model)->n_ctx_train, err);
    if (!st) st = ig_bench_make(&b, l->model, s->rows, s->n_rows, r->wish, err);
    if (!st && f->begin_set) f->begin_set(r);
    if (!st) st = ig_bench_warm_up(b, err);
    for (int i = 0; i < s->n_rows && !st; i++) {
        st = measure_row(b, r, s, &s->rows[i], err);
        if (!st && f->row) f->row(r, &s->rows[i]);
    }
    s->end_bytes = ig_memory_resident_bytes();
    if (!st && f->end_set) f->end_set(r);
    ig_bench_free(b);
    return st;
}

static int run_set(ig_bench_report *r, ig_load_options *load, int n_threads, const ig_bench_format *f) {
    ig_bench_set *s = &r->set[r->n_sets++];
    ig_loaded l;
    ig_err err;
    s->n_threads = n_threads > 0 ? n_threads : ig_cpu_count();
    s->threads_asked = n_threads > 0;
    load->n_threads = s->n_threads;
    if (measure_bandwidth(r, s, &err)) return ig_app_fail(&err);
    int code = ig_load(&l, load);
    if (code) return code;
    describe(r, s, &l);
    if (measure(r, s, &l, f, &err)) code = ig_app_fail(&err);
    ig_unload(&l);
    return code;
}

static void free_report(ig_bench_report *r) {
    for (int i = 0; i < r->n_sets; i++) {
        for (int k = 0; k < r->set[i].n_rows; k++) free(r->set[i].rows[k].profile);
        free(r->set[i].rows);
    }
    free(r);
}

static int run(ig_bench_wish *w, ig_load_options *load, const ig_bench_format *f) {
    ig_bench_report *r = calloc(1, sizeof *r);
    const time_t now = time(NULL);
    struct tm t;
    int code = 0;
    if (!r) return ig_app_say(IG_EXIT_MEMORY, "no memory");
    r->wish = w;
    gmtime_r(&now, &t);
    strftime(r->utc, sizeof r->utc, "%Y-%m-%dT%H:%M:%SZ", &t);
    show_runs = w->n_runs;
    for (int i = 0; i < w->threads.n && !code; i++) code = run_set(r, load, w->threads.v[i], f);
    if (!code && f->end) code = f->end(r);
    free_report(r);
    return code;
}

int ig_cmd_bench(int argc, char **argv) {
    ig_bench_wish w = ig_bench_wish_defaults();
    ig_load_options load = ig_load_defaults();
    const char *output = "text";
    bool json = false, csv = false;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"prompt-tokens", .other = "prompt", .letter = 'p', .kind = IG_OPT_INTS, .to = &w.prompts, .min = 0,
         .max = 1 << 20, .given = &w.prompts_given, .value = "LIST",
         .help = "tokens of the prompts; 0: none"},
        {"depth", .other = "ctx", .letter = 'd', .kind = IG_OPT_INTS, .to = &w.contexts, .min = 0, .max = 1 << 20,
         .given = &w.contexts_given, .value = "LIST",
         .help = "contexts that the decode goes on from; those of -p when that is given"},
        {"batch", .letter = 'b', .kind = IG_OPT_INTS, .to = &w.batches, .min = 0, .max = IG_BENCH_BATCH_MAX,
         .given = &w.batches_given, .value = "LIST",
         .help = "sequences decoded together, behind the first context; 1: none"},
        {"tokens", .letter = 'n', .kind = IG_OPT_INT, .to = &w.n_tokens, .min = 0, .max = 1 << 16,
         .given = &w.tokens_given, .value = "N", .help = "steps of a decode; 0: no decode"},
        {"runs", .letter = 'r', .kind = IG_OPT_INT, .to = &w.n_runs, .min = 1, .max = IG_BENCH_RUNS_MAX,
         .given = &w.runs_given, .value = "N", .help = "runs of each row; the median counts"},
        {"threads", .letter = 't', .kind = IG_OPT_INTS, .to = &w.threads, .min = 0, .max = 1024,
         .value = "LIST", .help = "compute threads (0: all cores of this process)"},
        IG_MEMORY_OPTION(load),
        IG_NUMBERS_OPTIONS(load),
        {"quick", .letter = 'q', .kind = IG_OPT_BOOL, .to = &w.quick,
         .help = "fewer and shorter rows: seconds"},
        {"profile", .kind = IG_OPT_BOOL, .to = &w.profile, .help = "also the time of each op, for every row"},
        {"output", .letter = 'o', .kind = IG_OPT_TEXT, .to = &output, .value = "FORMAT",
         .help = "text, json, csv or md"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "the same as -o json"},
        {"csv", .kind = IG_OPT_BOOL, .to = &csv, .help = "the same as -o csv"},
    };
    const ig_command c = {
        .verb = "bench",
        .words = "[MODEL]",
        .summary = "Speed of prefill and decode, and memory, on this machine.",
        .more =
            "LIST: numbers with commas. Of the defaults, what the model does not hold, or what would take\n"
            "minutes, is left out. A row is not repeated once its runs took 20 seconds.\n"
            "  ingle bench -q                      a first look\n"
            "  ingle bench -p 512 -n 0 -t 1,2      prefill alone, on one thread and on two\n"
            "  ingle bench -p 0 -d 4096 --profile  decode behind 4096 tokens, op by op",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1};
    ig_words words;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (words.n) load.model = words.v[0];
    if (json || csv) output = json ? "json" : "csv";
    const ig_bench_format *f = ig_bench_format_of(output);
    if (!f) return ig_app_say(IG_EXIT_USAGE, "--output is \"%.80s\"; it wants text, json, csv or md", output);
    w.memory_bytes = load.engine.memory_budget_bytes;
    ig_bench_wish_settle(&w);
    load.no_engine = true;
    load.engine.n_slots = 1; /* the plan only has to hold what runs here, and bench plans that itself */
    load.engine.n_ctx = 2;
    ig_signals_note();
    return run(&w, &load, f);
}
