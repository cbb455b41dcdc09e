/* Every intermediate of ingle's tier l1, as hashes, to be compared with mlx-lm's (tools/golden/l1):
 *     dump_l1 MODEL --tokens FILE [--prefill N] [--greedy M] [--threads N] [--cpu NAME] [--chunk N] [--raw FILE] [--order time]
 * One forward of the first N tokens, one of each of the others; for each array a line
 *     <step> <name> <rows> <cols> <hash>      the first 16 hex digits of sha256 over its 16-bit numbers, [rows][cols]
 * then, with M, a greedy run behind the first N tokens: `ids ...` and `lp <step> <hash>` of its log-probabilities.
 * With --temp the run is the engine's, sampled (--seed, --top-p and so on, as mlx_lm's make_sampler and
 * make_logits_processors name them), and only its ids are told.
 *     dump_l1 MODEL --tokens FILE --calls N [--chunk N] [--kv-config FILE | --bits B --group G --start S] [--at-once 1]
 * Tier l2: a prompt of N tokens in chunks, its last token and the others one by one; or, with --greedy M, as many that the
 * run finds itself. Lines as those of the `call`s of tests/golden/l2 (tools/golden/l2/dump.py has their form).
 *     dump_l1 --unary NAME --type bf16|f16    65536 words: NAME of the number of these bits; any NaN is one
 * --raw also writes the numbers themselves. --order time: windows in the order of time, which must show (a control). The model's own forward, no engine. Linked by dump.mk. */
#include "dump_common.h"

#include "engine/engine.h"

#include <math.h>
#include <pthread.h>
#include <sys/stat.h>

static void check(ig_status st, const ig_err *err) {
    if (st != IG_OK) dump_die(ig_status_name(st), err->msg);
}

/* ---- sha256 (FIPS 180-4): the cube roots of the first 64 primes ------------------------------------------ */

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }
static uint32_t root_bits(int prime, bool cube) { /* the first 32 bits of the root's fraction, digit by digit */
    const __uint128_t one = (__uint128_t)1 << 32;
    __uint128_t r = 0;
    for (int bit = 36; bit >= 0; bit--) {
        const __uint128_t t = r | (__uint128_t)1 << bit; /* of the root times 2^32; a cube would need 108 bits */
        const __uint128_t p = cube ? t * t * t : t * t;
        if (cube ? p <= (__uint128_t)prime * one * one * one : p <= (__uint128_t)prime * one * one) r = t;
    }
    return (uint32_t)r;
}
static void sha256_block(uint32_t h[8], const uint32_t k[64], const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + w[i - 7] + (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t t1 = v[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1, v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}
/* The first 16 hex digits. */
static void sha256(char out[17], const uint8_t *p, size_t n) {
    static uint32_t k[64], start[8];
    uint32_t h[8];
    uint8_t last[128] = {0};
    for (int i = 0, prime = 2; !k[63]; prime++) {
        bool is = true;
        for (int d = 2; d * d <= prime; d++) is = is && prime % d;
        if (!is) continue;
        if (i < 8) start[i] = root_bits(prime, false);
        k[i++] = root_bits(prime, true);
    }
    memcpy(h, start, sizeof h);
    size_t at = 0;
    for (; at + 64 <= n; at += 64) sha256_block(h, k, p + at);
    memcpy(last, p + at, n - at);
    last[n - at] = 0x80;
    const size_t end = n - at < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++) last[end - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    sha256_block(h, k, last);
    if (end == 128) sha256_block(h, k, last + 64);
    snprintf(out, 17, "%08x%08x", h[0], h[1]);
}

/* FNV-1a, as the goldens of tier l2 have it. */
static unsigned long long fnv(const uint8_t *p, size_t n) {
    unsigned long long h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

/* ---- arrays of one forward ------------------------------------------------------------------------------ */

enum { ARRAYS_MAX = 64, NAME_BYTES = 32 };
typedef struct array {
    char name[NAME_BYTES];
    int n_rows, n_cols;
    uint16_t *v;
} array;

typedef struct dump {
    array a[ARRAYS_MAX];
    int n;
    const ig_fmt *number;
    const ig_model_config *config;
    int step, n_rows, layer, n_norms, n_adds; /* of this layer */
    bool quiet, as_call;
    char layers[IG_LAYERS_MAX * 17 + 1]; /* of a call: a hash a layer */
    FILE *raw;
    pthread_mutex_t lock;
} dump;

static uint16_t bits_of(const dump *d, float x) {
    return d->number == &ig_fmt_bf16 ? ig_f32_to_bf16(x) : ig_f32_to_f16(x);
}

static void flush(dump *d) {
    for (int i = 0; i < d->n; i++) {
        const array *a = &d->a[i];
        const size_t n = (size_t)a->n_rows * (size_t)a->n_cols;
        char hash[17];
        sha256(hash, (const uint8_t *)a->v, n * sizeof *a->v);
        if (d->as_call && strstr(a->name, ".sdpa"))
            sprintf(d->layers + strlen(d->layers), " %016llx", fnv((const uint8_t *)a->v, n * sizeof *a->v));
        if (!d->quiet) printf("%d %s %d %d %s\n", d->step, a->name, a->n_rows, a->n_cols, hash);
        if (d->raw) {
            fprintf(d->raw, "%d %s %d %d\n", d->step, a->name, a->n_rows, a->n_cols);
            fwrite(a->v, sizeof *a->v, n, d->raw);
        }
        free(a->v);
    }
    d->n = 0;
}

/* The steps of a layer are told apart by their order: its norms and residual sums are each the first or second. */
static void on_op(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    dump *d = ud;
    (void)k, (void)w;
    if (strcmp(op, "norm") == 0 && d->n_adds == 2) flush(d), d->layer++, d->n_norms = d->n_adds = 0;
    if (strcmp(op, "norm") == 0) d->n_norms++;
    if (strstr(op, "+add")) d->n_adds++;
}

static const char *name_of(const dump *d, const char *what, const ig_weight *w) {
    static const char *const weights[][2] = {
        {"blk.%d.attn_q.weight", "q"},     {"blk.%d.attn_k.weight", "k"},    {"blk.%d.attn_v.weight", "v"},
        {"blk.%d.attn_output.weight", "o"}, {"blk.%d.ffn_gate.weight", "gate"}, {"blk.%d.ffn_up.weight", "up"},
        {"blk.%d.ffn_down.weight", "down"}};
    static const char *const same[][2] = {{"q norm", "q_norm"}, {"k norm", "k_norm"}, {"q rope", "q_rope"},
                                          {"k rope", "k_rope"}, {"attention", "sdpa"}, {"glu", "glu"},
                                          {"embed", "embed"},   {"embed scaled", "h0"}, {"softcap", "logits"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(what, same[i][0]) == 0) return same[i][1];
    for (size_t i = 0; w && i < sizeof weights / sizeof *weights; i++)
        if (strcmp(w->name, weights[i][0]) == 0) return weights[i][1];
    if (strcmp(what, "linear") == 0) return d->config->final_softcap > 0.0f ? NULL : "logits";
    if (strcmp(what, "add") == 0) return d->n_adds == 1 ? "h_attn" : "h_ffn";
    if (d->layer == d->config->n_layers) return "norm";
    if (d->n_adds > 0 && d->n_norms == 1) return "post_attn_norm";
    return d->n_adds == 2 ? "post_ffn_norm" : d->n_norms == 1 ? "attn_norm" : "ffn_norm";
}

static void on_rows(void *ud, const char *what, const ig_weight *w, int row, int m, int col, int n, const float *v,
                    size_t v_row) {
    dump *d = ud;
    const char *role = name_of(d, what, w);
    char name[NAME_BYTES];
    if (!role) return;
    const bool outside = strcmp(role, "embed") == 0 || strcmp(role, "h0") == 0 || strcmp(role, "logits") == 0 ||
                         strcmp(role, "norm") == 0;
    if (outside) snprintf(name, sizeof name, "%s", role);
    else snprintf(name, sizeof name, "%02d.%s", d->layer, role);
    const ig_model_config *c = d->config;
    pthread_mutex_lock(&d->lock);
    int i = 0;
    while (i < d->n && strcmp(d->a[i].name, name) != 0) i++;
    if (i == d->n) {
        const bool is_q = role[0] == 'q' || strcmp(role, "sdpa") == 0, is_k = role[0] == 'k';
        int cols = w ? w->n_rows : c->width;
        if (!w && is_q) cols = c->n_heads * c->head_dim;
        if (!w && is_k) cols = c->n_kv_heads * c->head_dim;
        if (!w && strcmp(role, "glu") == 0) cols = c->ffn_width;
        if (!w && strcmp(role, "logits") == 0) cols = c->n_vocab;
        if (d->n == ARRAYS_MAX) dump_die("too many arrays at", name);
        d->a[d->n++] = (array){.n_rows = d->n_rows, .n_cols = cols,
                               .v = calloc((size_t)d->n_rows * (size_t)cols, sizeof(uint16_t))};
        snprintf(d->a[i].name, sizeof d->a[i].name, "%s", name);
    }
    for (int t = 0; t < m; t++)
        for (int k = 0; k < n; k++) {
            const int at = w ? ig_weight_row(w, (col + k) / IG_PANEL_ROWS, (col + k) % IG_PANEL_ROWS) : col + k;
            if (at >= 0)
                d->a[i].v[(size_t)(row + t) * (size_t)d->a[i].n_cols + (size_t)at] = bits_of(d, v[(size_t)t * v_row + (size_t)k]);
        }
    pthread_mutex_unlock(&d->lock);
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

typedef struct runner {
    ig_model *model;
    ig_kv_pool *kv;
    ig_kv_seq *seq;
    ig_arena arena;
    int *pos, *seq_of, *want;
    float *logits;
    size_t n_vocab;
    bool in_time; /* no rings */
} runner;

static void forward(runner *r, const uint32_t *ids, int n, int n_want) {
    ig_err err = {0};
    if (!ig_kv_seq_reserve(r->kv, r->seq, r->seq->n_tokens + n)) dump_die("no KV blocks for", "a step");
    for (int i = 0; i < n; i++) r->pos[i] = r->seq->n_tokens + i;
    for (int i = 0; i < n_want; i++) r->want[i] = n - n_want + i;
    const ig_rows rows = {.n_rows = n, .token = ids, .pos = r->pos, .seq = r->seq_of, .kv_seq = &r->seq, .kv = r->kv,
                          .n_ctx = r->seq->n_tokens + n, .want = r->want, .n_want = n_want};
    check(ig_model_forward(r->model, &r->arena, &rows, r->logits, &err), &err);
    r->seq->n_tokens += n;
}

static uint32_t log_probabilities(const dump *d, uint16_t *lp, const float *x, size_t n) {
    float max = x[0], sum = 0.0f;
    size_t best = 0;
    for (size_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) sum += ig_mlx_exp(x[i] - max);
    const float lse = ig_number_round(d->number, ig_mlx_log(sum) + max);
    for (size_t i = 0; i < n; i++) {
        lp[i] = bits_of(d, x[i] - lse);
        if (ig_number_round(d->number, x[i] - lse) > ig_number_round(d->number, x[best] - lse)) best = i;
    }
    return (uint32_t)best;
}

static void greedy(runner *r, const dump *d, uint32_t *ids, int n_prompt, int n_new, int chunk) {
    uint16_t *lp = calloc(r->n_vocab, sizeof *lp);
    char(*hash)[17] = calloc((size_t)n_new, sizeof *hash);
    if (!lp || !hash) dump_die("no memory for", "a vocabulary");
    r->seq = ig_kv_seq_open(r->kv);
    if (!r->in_time) r->seq->ring_from = n_prompt - 1;
    for (int at = 0; at < n_prompt; at += chunk) {
        const int n = n_prompt - at < chunk ? n_prompt - at : chunk;
        forward(r, ids + at, n, at + n == n_prompt);
    }
    printf("ids");
    for (int i = 0; i < n_new; i++) {
        uint32_t id = log_probabilities(d, lp, r->logits, r->n_vocab);
        sha256(hash[i], (const uint8_t *)lp, r->n_vocab * sizeof *lp);
        printf(" %u", id);
        if (i + 1 < n_new) forward(r, &id, 1, 1);
    }
    printf("\n");
    for (int i = 0; i < n_new; i++) printf("lp %d %s\n", i, hash[i]);
    ig_kv_seq_close(r->kv, r->seq);
    free(lp), free(hash);
}

/* ---- tier l2 -------------------------------------------------------------------------------------------- */

typedef struct quantized {
    ig_kv_config config;
    int bits, group, start, calls;
} quantized;

static void calls(runner *r, dump *d, uint32_t *ids, int n_ids, int n_new, const quantized *q, int chunk) {
    const int n_prompt = q->calls, n_before = n_prompt > 1 ? n_prompt - 1 : 0;
    const int n_all = n_new ? n_prompt + n_new : n_ids;
    uint16_t *lp = calloc(r->n_vocab, sizeof *lp);
    if (!lp) dump_die("no memory for", "a vocabulary");
    r->seq->chunk_tokens = chunk;
    r->seq->ring_from = n_before > 1 && n_before % chunk == 1 ? n_before - 1 : n_before;
    d->quiet = d->as_call = true;
    for (int at = 0; at < n_all; d->step++) {
        const int left = n_before - at, n = at >= n_before ? 1 : left < chunk ? left : chunk;
        /* the first forward that ends at `start` or later is the last over the numbers */
        d->n_rows = n, d->layer = d->n_norms = d->n_adds = 0, d->layers[0] = 0;
        forward(r, ids + at, n, n);
        flush(d);
        at += n;
        if (r->seq->quantized_from == INT_MAX && at >= q->start) r->seq->quantized_from = at;
        const float *x = r->logits + (size_t)(n - 1) * r->n_vocab;
        const uint32_t best = log_probabilities(d, lp, x, r->n_vocab);
        for (size_t i = 0; i < r->n_vocab; i++) lp[i] = bits_of(d, x[i]);
        if (n_new && at >= n_prompt && at < n_all) ids[at] = best;
        printf("call %d at %d rows %d ", d->step, at - n, n);
        if (at >= n_prompt && at < n_all) printf("id %u ", ids[at]);
        printf("logits %016llx layers%s\n", fnv((const uint8_t *)lp, r->n_vocab * sizeof *lp), d->layers);
    }
    free(lp);
}

/* ---- sampled runs: the engine -------------------------------------------------------------------------- */

enum { LIST_MAX = 32 };
typedef struct sampler {
    ig_sampling s;
    ig_token_bias bias[LIST_MAX];
    uint32_t special[LIST_MAX];
    bool is_on;
} sampler;

/* "3:2.5,17:-4" or "1,2" */
static void read_list(sampler *p, const char *text, bool biases) {
    int n = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        if (n == LIST_MAX) dump_die("too many of", text);
        const uint32_t id = (uint32_t)strtoul(text, &end, 10);
        if (biases) p->bias[n] = (ig_token_bias){id, strtof(end + 1, &end)};
        else p->special[n] = id;
        n++;
    }
    if (biases) p->s.logit_bias = p->bias, p->s.n_logit_bias = n;
    else p->s.xtc_special = p->special, p->s.n_xtc_special = n;
}

static bool read_sampling(sampler *p, const char *option, const char *v) {
    struct {
        const char *name;
        double *real;
        int *whole;
    } const rows[] = {{"--temp", &p->s.temperature, NULL}, {"--top-p", &p->s.top_p, NULL}, {"--min-p", &p->s.min_p, NULL},
                      {"--min-tokens-to-keep", NULL, &p->s.min_tokens_to_keep}, {"--top-k", NULL, &p->s.top_k},
                      {"--xtc-probability", &p->s.xtc_probability, NULL}, {"--xtc-threshold", &p->s.xtc_threshold, NULL},
                      {"--repetition-penalty", &p->s.repetition_penalty, NULL},
                      {"--repetition-context-size", NULL, &p->s.repetition_context_size},
                      {"--presence-penalty", &p->s.presence_penalty, NULL},
                      {"--presence-context-size", NULL, &p->s.presence_context_size},
                      {"--frequency-penalty", &p->s.frequency_penalty, NULL},
                      {"--frequency-context-size", NULL, &p->s.frequency_context_size}};
    const bool list = strcmp(option, "--logit-bias") == 0 || strcmp(option, "--xtc-special-tokens") == 0;
    if (list) read_list(p, v, option[2] == 'l');
    if (strcmp(option, "--seed") == 0) return p->s.seed = strtoull(v, NULL, 10), true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(option, rows[i].name) != 0) continue;
        if (rows[i].real) *rows[i].real = strtod(v, NULL);
        else *rows[i].whole = (int)strtol(v, NULL, 10);
        return p->is_on = true;
    }
    return list;
}

static void sampled(ig_model *m, const sampler *p, const uint32_t *ids, int n_prompt, int n_new) {
    ig_err err = {0};
    ig_engine *e;
    ig_gen *g;
    ig_engine_config c = ig_engine_defaults();
    c.n_slots = 1, c.n_ctx = n_prompt + n_new + 1;
    check(ig_engine_start(&e, m, &c, &err), &err);
    const ig_gen_params params = {.prompt = ids, .n_prompt = n_prompt, .max_tokens = n_new, .sampling = p->s,
                                  .top_logprobs = -1};
    check(ig_engine_submit(e, &params, &g, &err), &err);
    while (ig_gen_finish(g) == IG_FINISH_NONE) ig_gen_wait(g, ig_gen_n_tokens(g), -1);
    if (ig_gen_finish(g) == IG_FINISH_FAILED) dump_die("the run failed", ig_gen_error(g));
    printf("ids");
    for (int i = 0; i < ig_gen_n_tokens(g); i++) printf(" %u", ig_gen_token(g, i));
    printf("\n");
    ig_gen_release(g);
    ig_engine_stop(e);
}

/* ---- functions of one number ---------------------------------------------------------------------------- */

static int unary(const char *name, const char *type) {
    const ig_fmt *number = strcmp(type, "f16") == 0 ? &ig_fmt_f16 : &ig_fmt_bf16;
    ig_kern_table k;
    ig_kern_table_pick(&k, IG_TIER_L1, number, ig_cpu_features());
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = number == &ig_fmt_f16 ? ig_f16_to_f32((uint16_t)h) : ig_bf16_to_f32((uint16_t)h), one = 1.0f;
        float y = 0.0f, slope;
        if (strcmp(name, "exp") == 0) y = ig_number_round(number, ig_mlx_exp(x));
        else if (strcmp(name, "tanh") == 0) y = ig_number_round(number, ig_mlx_tanh(x));
        else if (strcmp(name, "silu") == 0) k.op[IG_KERN_SWIGLU]->fn.swiglu(&y, &x, &one, 1);
        else if (strcmp(name, "gelu_approx") == 0) k.op[IG_KERN_GEGLU]->fn.geglu(&y, &x, &one, 1);
        else if (strncmp(name, "softcap", 7) == 0)
            k.op[IG_KERN_SOFTCAP]->fn.softcap(&y, &slope, &x, strtof(name + 7, NULL), 1);
        else dump_die("no such function", name);
        uint16_t bits = number == &ig_fmt_f16 ? ig_f32_to_f16(y) : ig_f32_to_bf16(y);
        if (isnan(y)) bits = number == &ig_fmt_f16 ? 0x7e00 : 0x7fc0;
        fwrite(&bits, sizeof bits, 1, stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--unary") == 0) return unary(argv[2], argv[4]);
    sampler sampling = {.s = ig_sampling_defaults()};
    const char *tokens = NULL, *raw = NULL;
    runner r = {0};
    static quantized q = {.group = 64};
    int prefill = 0, n_new = 0, threads = 1, chunk = 0;
    ig_err err = {0};
    if (argc < 3) dump_die("usage", "dump_l1 MODEL --tokens FILE [--prefill N] [--greedy M] [--threads N] [--cpu NAME] [--temp X ...] | --unary NAME --type bf16");
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *o = argv[i], *v = argv[i + 1];
        if (strcmp(o, "--tokens") == 0) tokens = v;
        else if (strcmp(o, "--prefill") == 0) prefill = dump_int(v, "--prefill", 1 << 20);
        else if (strcmp(o, "--greedy") == 0) n_new = dump_int(v, "--greedy", 1 << 20);
        else if (strcmp(o, "--threads") == 0) threads = dump_int(v, "--threads", 256);
        else if (strcmp(o, "--chunk") == 0) chunk = dump_int(v, "--chunk", 1 << 20);
        else if (strcmp(o, "--raw") == 0) raw = v;
        else if (strcmp(o, "--order") == 0 && strcmp(v, "time") == 0) r.in_time = true;
        else if (strcmp(o, "--calls") == 0) q.calls = dump_int(v, "--calls", 1 << 20);
        else if (strcmp(o, "--kv-config") == 0) check(ig_kv_config_read(&q.config, v, &err), &err);
        else if (strcmp(o, "--bits") == 0) q.bits = dump_int(v, "--bits", 8);
        else if (strcmp(o, "--group") == 0) q.group = dump_int(v, "--group", 128);
        else if (strcmp(o, "--start") == 0) q.start = (int)strtol(v, NULL, 10);
        else if (strcmp(o, "--at-once") == 0) q.config.at_once = true;
        else if (strcmp(o, "--cpu") == 0) setenv("INGLE_CPU", v, 1);
        else if (!read_sampling(&sampling, o, v)) dump_die("unknown option", o);
    }
    if (argc % 2 || !tokens) dump_die("an option lacks its value, or there are no", "--tokens");
    char *parsed[] = {argv[0], argv[1], (char *)(uintptr_t)tokens, (char *)(uintptr_t) "-"};
    dump_args a = dump_parse(4, parsed);
    if (!prefill || prefill > a.n_ids) prefill = a.n_ids;
    if (q.calls > a.n_ids) dump_die("fewer tokens than", "--calls");
    if (!chunk) chunk = prefill;

    ig_pool *pool;
    check(ig_pool_make(&pool, threads, &err), &err);
    ig_gguf *file = NULL;
    ig_snapshot *folder = NULL;
    struct stat info;
    if (stat(a.model, &info) == 0 && S_ISDIR(info.st_mode)) check(ig_snapshot_open(&folder, a.model, &err), &err);
    else check(ig_gguf_open(&file, a.model, &err), &err);
    if (q.bits) {
        ig_model_info info_of;
        check(ig_model_inspect(&info_of, (ig_checkpoint){file, folder}, &err), &err);
        q.config.n_layers = info_of.config.n_layers;
        for (int i = 0; i < q.config.n_layers; i++)
            q.config.bits[i] = (uint8_t)q.bits, q.config.group[i] = (uint8_t)q.group;
    }
    const ig_model_options options = {.pool = pool, .tier_max = q.calls ? IG_TIER_L2 : IG_TIER_L1, .kv_config = &q.config};
    check(ig_model_open(&r.model, (ig_checkpoint){file, folder}, &options, &err), &err);
    ig_gguf_close(file), ig_snapshot_close(folder);
    const int n_ctx = a.n_ids + n_new + 1;
    const ig_kv_shape shape = ig_model_kv_shape(r.model);
    check(ig_kv_pool_make(&r.kv, shape, ig_kv_room_for(shape, 1, n_ctx, prefill), 1, n_ctx, &err), &err);
    r.n_vocab = (size_t)ig_model_config_of(r.model)->n_vocab;
    r.arena.cap_bytes = ig_model_plan(r.model, prefill, prefill, n_ctx);
    void *memory;
    check(ig_pages_map(&memory, r.arena.cap_bytes, false, &err), &err);
    r.arena.base = memory;
    const size_t n = (size_t)prefill;
    r.pos = calloc(n, sizeof *r.pos), r.seq_of = calloc(n, sizeof *r.seq_of), r.want = calloc(n, sizeof *r.want);
    r.logits = calloc(n * r.n_vocab, sizeof *r.logits);
    if (!r.pos || !r.seq_of || !r.want || !r.logits) dump_die("no memory for", "the logits");

    dump d = {.number = ig_model_number(r.model), .config = ig_model_config_of(r.model),
              .lock = PTHREAD_MUTEX_INITIALIZER};
    if (raw && !(d.raw = fopen(raw, "wb"))) dump_die("cannot write", raw);
    ig_model_tap(r.model, on_rows, &d), ig_model_watch(r.model, on_op, &d);
    r.seq = ig_kv_seq_open(r.kv);
    if (!r.in_time) r.seq->ring_from = prefill;
    uint32_t *ids = realloc(a.ids, (size_t)n_ctx * sizeof *ids);
    if (!ids) dump_die("no memory for", "tokens");
    if (q.calls) calls(&r, &d, ids, a.n_ids, n_new, &q, chunk);
    for (int at = 0; at < a.n_ids && !q.calls; d.step++) {
        const int rows = at == 0 ? prefill : 1;
        d.n_rows = rows, d.layer = d.n_norms = d.n_adds = 0;
        forward(&r, ids + at, rows, rows);
        flush(&d);
        at += rows;
    }
    ig_kv_seq_close(r.kv, r.seq);
    ig_model_tap(r.model, NULL, NULL), ig_model_watch(r.model, NULL, NULL);
    if (d.raw && fclose(d.raw) != 0) dump_die("cannot write", raw);
    if (q.calls) n_new = 0;
    if (n_new && sampling.is_on) sampled(r.model, &sampling, ids, prefill, n_new);
    else if (n_new) greedy(&r, &d, ids, prefill, n_new, chunk);
    ig_pages_unmap(memory, r.arena.cap_bytes);
    free(r.logits), free(r.want), free(r.seq_of), free(r.pos), free(ids);
    ig_kv_pool_free(r.kv);
    ig_model_close(r.model);
    ig_pool_free(pool);
    return 0;
}
