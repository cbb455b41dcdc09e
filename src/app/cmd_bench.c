/* bench: speed and memory of a model on this machine, through ig_model_forward and without the engine, so
 * that a number here is a number of the forward. Medians of --runs after one run that does not count.
 * Threads: the caller's and the model's pool. Memory: one KV pool and one arena of the planned size. */
#include "app/load.h"
#include "file/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS_MAX = 64, CHUNK_ROWS = 512, BATCH_MAX = 64 };

typedef struct bench {
    int n_prompt, n_tokens, n_batch, n_runs;
    bool json;
    /* what runs */
    ig_model *model;
    ig_kv_pool *kv;
    ig_arena arena;
    float *logits;
    int n_ctx;
} bench;

typedef struct figures {
    double prefill_tps, decode_tps, batch_tps;          /* medians */
    double prefill_spread, decode_spread, batch_spread; /* (max - min) / median */
} figures;

/* The step's rows: one sequence with many, or many with one each. */
typedef struct step {
    uint32_t token[CHUNK_ROWS];
    int pos[CHUNK_ROWS], seq[CHUNK_ROWS], want[BATCH_MAX];
    ig_kv_seq *kv_seq[BATCH_MAX];
} step;

static uint32_t some_token(const bench *b, uint32_t i) {
    return ig_rng_word(1, i, 0, 0) % (uint32_t)ig_model_config_of(b->model)->n_vocab;
}

static ig_status forward(bench *b, step *s, int n_rows, int n_want, ig_err *err) {
    const ig_rows rows = {.n_rows = n_rows,
                          .token = s->token,
                          .pos = s->pos,
                          .seq = s->seq,
                          .kv_seq = s->kv_seq,
                          .kv = b->kv,
                          .n_ctx = b->n_ctx,
                          .want = s->want,
                          .n_want = n_want};
    return ig_model_forward(b->model, &b->arena, &rows, n_want ? b->logits : NULL, err);
}

/* n tokens into an empty sequence, in chunks; the logits of the last one are wanted. */
static ig_status prefill(bench *b, step *s, int which, int n, ig_err *err) {
    ig_kv_seq *seq = s->kv_seq[which];
    for (int at = 0; at < n;) {
        int rows = n - at < CHUNK_ROWS ? n - at : CHUNK_ROWS;
        if (!ig_kv_seq_reserve(b->kv, seq, at + rows))
            return ig_fail(err, IG_ELIMIT, "bench: no room for %d tokens", at + rows);
        for (int i = 0; i < rows; i++) {
            s->token[i] = some_token(b, (uint32_t)(at + i));
            s->pos[i] = at + i;
            s->seq[i] = which;
        }
        s->want[0] = rows - 1;
        ig_status st = forward(b, s, rows, at + rows == n, err);
        if (st) return st;
        at += rows;
        seq->n_tokens = at;
    }
    return IG_OK;
}

/* n_steps steps of one token for each of n_seqs sequences. */
static ig_status decode(bench *b, step *s, int n_seqs, int n_steps, ig_err *err) {
    for (int t = 0; t < n_steps; t++) {
        for (int i = 0; i < n_seqs; i++) {
            ig_kv_seq *seq = s->kv_seq[i];
            if (!ig_kv_seq_reserve(b->kv, seq, seq->n_tokens + 1))
                return ig_fail(err, IG_ELIMIT, "bench: no room for token %d", seq->n_tokens);
            s->token[i] = some_token(b, (uint32_t)(seq->n_tokens * BATCH_MAX + i));
            s->pos[i] = seq->n_tokens;
            s->seq[i] = s->want[i] = i;
        }
        ig_status st = forward(b, s, n_seqs, n_seqs, err);
        if (st) return st;
        for (int i = 0; i < n_seqs; i++) s->kv_seq[i]->n_tokens++;
    }
    return IG_OK;
}

static ig_status open_seqs(bench *b, step *s, int n, ig_err *err) {
    for (int i = 0; i < n; i++) {
        s->kv_seq[i] = ig_kv_seq_open(b->kv);
        if (!s->kv_seq[i]) return ig_fail(err, IG_ELIMIT, "bench: no sequence %d", i);
    }
    return IG_OK;
}

static void close_seqs(bench *b, step *s, int n) {
    for (int i = 0; i < n; i++) {
        if (s->kv_seq[i]) ig_kv_seq_close(b->kv, s->kv_seq[i]);
        s->kv_seq[i] = NULL;
    }
}

static double rate(double n, uint64_t since_ns) {
    return n * 1e9 / (double)(ig_clock_ns() - since_ns);
}

/* One round: prefill and decode of one sequence, then decode of many at the same context. */
static ig_status round_once(bench *b, double out[3], ig_err *err) {
    step *s = calloc(1, sizeof *s);
    if (!s) return ig_fail(err, IG_ELIMIT, "bench: no memory");
    ig_status st = open_seqs(b, s, b->n_batch, err);
    uint64_t at = ig_clock_ns();
    if (!st) st = prefill(b, s, 0, b->n_prompt, err);
    out[0] = rate(b->n_prompt, at);
    at = ig_clock_ns();
    if (!st) st = decode(b, s, 1, b->n_tokens, err);
    out[1] = rate(b->n_tokens, at);
    for (int i = 1; !st && i < b->n_batch; i++) st = prefill(b, s, i, b->n_prompt, err);
    at = ig_clock_ns();
    if (!st && b->n_batch > 1) st = decode(b, s, b->n_batch, b->n_tokens, err);
    out[2] = b->n_batch > 1 ? rate((double)b->n_tokens * b->n_batch, at) : 0;
    close_seqs(b, s, b->n_batch);
    free(s);
    return st;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n, double *spread) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    double m = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    *spread = m > 0 ? (v[n - 1] - v[0]) / m : 0;
    return m;
}

/* One line that is redrawn, for who waits at a terminal; run n_runs takes it away. */
static void show_progress(int run, int n_runs) {
    if (!isatty(STDERR_FILENO)) return;
    if (run < 0)
        fprintf(stderr, "\rwarming up");
    else if (run < n_runs)
        fprintf(stderr, "\rround %d of %d", run + 1, n_runs);
    else
        fprintf(stderr, "\r\33[K");
}

static ig_status measure(bench *b, figures *f, ig_err *err) {
    double v[3][RUNS_MAX], one[3];
    for (int run = -1; run < b->n_runs; run++) { /* -1 warms up and does not count */
        if (ig_signal_seen) return ig_fail(err, IG_ECANCELED, "bench: interrupted");
        show_progress(run, b->n_runs);
        ig_status st = round_once(b, one, err);
        if (st || run == b->n_runs - 1) show_progress(b->n_runs, b->n_runs);
        if (st) return st;
        for (int i = 0; run >= 0 && i < 3; i++) v[i][run] = one[i];
    }
    f->prefill_tps = median(v[0], b->n_runs, &f->prefill_spread);
    f->decode_tps = median(v[1], b->n_runs, &f->decode_spread);
    f->batch_tps = median(v[2], b->n_runs, &f->batch_spread);
    return IG_OK;
}

/* Bytes a decoded token reads: the weights once, and the keys and values of the mean context. */
static double token_bytes(const bench *b) {
    return (double)ig_model_decode_bytes(b->model) +
           (double)ig_kv_read_bytes(ig_model_kv_shape(b->model), b->n_prompt + b->n_tokens / 2);
}

static void print_text(const bench *b, const ig_loaded *l, const figures *f) {
    double bytes = token_bytes(b);
    printf("model      %s, %.1f million parameters\n", l->name, (double)ig_model_n_params(b->model) / 1e6);
    printf("machine    %s, %d threads\n", ig_cpu_model(), l->n_threads);
    printf("load       %.0f ms, weights %s\n", (double)l->load_ns / 1e6,
           ig_size_text_of(ig_model_weights_bytes(b->model)).s);
    printf("prefill    %8.1f tok/s  (%d tokens, +-%.0f %%)\n", f->prefill_tps, b->n_prompt,
           50 * f->prefill_spread);
    printf("decode     %8.1f tok/s  (%d tokens behind %d, +-%.0f %%)\n", f->decode_tps, b->n_tokens,
           b->n_prompt, 50 * f->decode_spread);
    printf("           %8.1f GB/s   (%s a token)\n", bytes * f->decode_tps / 1e9,
           ig_size_text_of((uint64_t)bytes).s);
    if (b->n_batch > 1)
        printf("batch %-4d %8.1f tok/s  (together, +-%.0f %%)\n", b->n_batch, f->batch_tps,
               50 * f->batch_spread);
    printf("memory     %s resident\n", ig_size_text_of(ig_memory_resident_bytes()).s);
}

static int print_json(const bench *b, const ig_loaded *l, const figures *f) {
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_str(doc, root, "version", IG_VERSION);
    ig_json_add_bytes(doc, root, "model", l->name);
    yyjson_mut_obj_add_uint(doc, root, "parameters", ig_model_n_params(b->model));
    ig_json_add_bytes(doc, root, "cpu", ig_cpu_model());
    yyjson_mut_obj_add_int(doc, root, "threads", l->n_threads);
    yyjson_mut_obj_add_int(doc, root, "runs", b->n_runs);
    yyjson_mut_obj_add_int(doc, root, "prompt_tokens", b->n_prompt);
    yyjson_mut_obj_add_int(doc, root, "tokens", b->n_tokens);
    yyjson_mut_obj_add_int(doc, root, "batch", b->n_batch);
    const struct {
        const char *name;
        double v;
    } rows[] = {{"load_ms", (double)l->load_ns / 1e6},
                {"prefill_tps", f->prefill_tps},
                {"prefill_spread", f->prefill_spread},
                {"decode_tps", f->decode_tps},
                {"decode_spread", f->decode_spread},
                {"batch_tps", f->batch_tps},
                {"batch_spread", f->batch_spread},
                {"token_bytes", token_bytes(b)},
                {"decode_gbs", token_bytes(b) * f->decode_tps / 1e9}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        yyjson_mut_obj_add_real(doc, root, rows[i].name, rows[i].v);
    yyjson_mut_obj_add_uint(doc, root, "weights_bytes", ig_model_weights_bytes(b->model));
    yyjson_mut_obj_add_uint(doc, root, "resident_bytes", ig_memory_resident_bytes());
    return ig_app_print_json(doc, lost);
}

static ig_status prepare(bench *b, const ig_loaded *l, ig_err *err) {
    void *step_memory = NULL;
    b->model = l->model;
    b->n_ctx = b->n_prompt + 2 * b->n_tokens; /* the first sequence decodes twice */
    int n_train = ig_model_config_of(l->model)->n_ctx_train;
    if (b->n_ctx > n_train)
        return ig_fail(err, IG_EINVAL,
                       "--prompt-tokens %d and twice --tokens %d are more than the context of %d",
                       b->n_prompt, b->n_tokens, n_train);
    const ig_kv_shape shape = ig_model_kv_shape(l->model);
    const ig_kv_room room = ig_kv_room_for(shape, b->n_batch, b->n_ctx, CHUNK_ROWS);
    b->arena.cap_bytes = ig_model_plan(l->model, CHUNK_ROWS, b->n_batch, b->n_ctx);
    ig_status st = ig_kv_pool_make(&b->kv, shape, room, b->n_batch, b->n_ctx, err);
    if (!st) st = ig_pages_map(&step_memory, b->arena.cap_bytes, true, err);
    b->arena.base = step_memory;
    b->logits =
        malloc((size_t)b->n_batch * (size_t)ig_model_config_of(l->model)->n_vocab * sizeof *b->logits);
    if (!st && !b->logits) st = ig_fail(err, IG_ELIMIT, "bench: no memory for logits");
    return st;
}

static int run(bench *b, const ig_loaded *l) {
    ig_err err;
    figures f;
    ig_status st = prepare(b, l, &err);
    if (!st) st = measure(b, &f, &err);
    int code = st ? ig_app_fail(&err) : IG_EXIT_OK;
    if (!st && b->json)
        code = print_json(b, l, &f);
    else if (!st)
        print_text(b, l, &f);
    ig_kv_pool_free(b->kv);
    if (b->arena.base) ig_pages_unmap(b->arena.base, b->arena.cap_bytes);
    free(b->logits);
    return code;
}

int ig_cmd_bench(int argc, char **argv) {
    bench b = {.n_prompt = 512, .n_tokens = 128, .n_batch = 4, .n_runs = 3};
    ig_load_options load = ig_load_defaults();
    load.no_engine = true;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"prompt-tokens", .kind = IG_OPT_INT, .to = &b.n_prompt, .min = 1, .max = 1 << 20, .value = "N",
         .help = "tokens of the prefill, and context of the decode"},
        {"tokens", .kind = IG_OPT_INT, .to = &b.n_tokens, .min = 1, .max = 1 << 16, .value = "N",
         .help = "tokens of the decode"},
        {"batch", .kind = IG_OPT_INT, .to = &b.n_batch, .min = 1, .max = BATCH_MAX, .value = "N",
         .help = "sequences of the batched decode (1: leave it out)"},
        {"runs", .kind = IG_OPT_INT, .to = &b.n_runs, .min = 1, .max = RUNS_MAX, .value = "N",
         .help = "rounds; the median counts"},
        {"threads", .kind = IG_OPT_INT, .to = &load.n_threads, .min = 0, .max = 1024, .value = "N",
         .help = "compute threads (0: all cores of this process)"},
        {"json", .kind = IG_OPT_BOOL, .to = &b.json, .help = "one JSON object"},
    };
    const ig_command c = {.verb = "bench",
                          .words = "[MODEL]",
                          .summary = "Speed of prefill and decode, and memory, on this machine.",
                          .options = options,
                          .n_options = sizeof options / sizeof *options,
                          .n_words_max = 1};
    ig_words words;
    ig_loaded l;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (words.n) load.model = words.v[0];
    load.engine.n_slots = 1; /* the plan only has to hold what runs here */
    load.engine.n_ctx = b.n_prompt + 2 * b.n_tokens;
    ig_signals_note();
    if ((code = ig_load(&l, &load))) return code;
    code = run(&b, &l);
    ig_unload(&l);
    return code;
}
