/* tiny: random checkpoints of a few layers for tests: a GGUF writer, a rig that runs one, and a plain float64
 * forward of the llama family. Include base/test.h first. */
#ifndef IG_MODEL_TINY_TEST_H
#define IG_MODEL_TINY_TEST_H

#include "model/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a GGUF writer for tests -------------------------------------------------------------------------- */

enum { TENSORS_MAX = 64 };
typedef struct shape {
    int layers, width, ffn, heads, kv_heads, dim, vocab;
    bool untied;
    const char *fmt;
    int window; /* of a gemma3 model; 0: a llama model */
} shape;
typedef struct file {
    char path[64];
    FILE *f;
    uint32_t seed;
} file;
typedef struct tensor {
    char name[64];
    uint32_t type;
    int cols, rows;
} tensor;

static const shape small = {2, 96, 160, 6, 2, 32, 80, false, "q4_1", 0};

static inline float gauss(uint32_t *s) {
    float x = 0;
    for (int i = 0; i < 6; i++) *s = *s * 1664525u + 1013904223u, x += (float)(*s >> 8) / 16777216.0f - 0.5f;
    return x * 1.4f;
}
static inline void put(FILE *f, const void *p, size_t n) {
    fwrite(p, 1, n, f);
}
static inline void put_u32(FILE *f, uint32_t v) {
    put(f, &v, 4);
}
static inline void put_u64(FILE *f, uint64_t v) {
    put(f, &v, 8);
}
static inline void put_str(FILE *f, const char *s) {
    put_u64(f, strlen(s)), put(f, s, strlen(s));
}
static inline void kv_u32(FILE *f, const char *k, uint32_t v) {
    put_str(f, k), put_u32(f, 4), put_u32(f, v);
}
static inline void kv_as(FILE *f, const char *k, const char *as, uint32_t value, int n) {
    const bool strings = strcmp(as, "strings") == 0, floats = as[0] == 'f', array = as[strlen(as) - 1] == 's';
    const float real = (float)value;
    put_str(f, k);
    if (array) put_u32(f, 9);
    put_u32(f, strings ? 8 : floats ? 6 : as[0] == 'i' ? 5 : 7);
    if (array) put_u64(f, (uint64_t)n);
    for (int i = 0; i < (array ? n : 1); i++) {
        if (strings) put_str(f, "x");
        else if (floats) put(f, &real, 4);
        else if (as[0] == 'i') put_u32(f, value);
        else put(f, &value, 1);
    }
}
static inline void kv_f32(FILE *f, const char *k, float v) {
    put_str(f, k), put_u32(f, 6), put(f, &v, 4);
}
static inline void kv_str(FILE *f, const char *k, const char *v) {
    put_str(f, k), put_u32(f, 8), put_str(f, v);
}

static const ig_fmt *fmt_named(const char *name) {
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}
/* One row of random weights in a format's file layout, about `scale` in size. */
static inline void put_row(file *w, const ig_fmt *f, int n_cols, float scale) {
    static const struct {
        const char *fmt;
        float d, min; /* of `scale`; the minimum stands behind d */
        int d_at;
    } blocks[] = {{"q4_0", 1 / 8.0f, 0, 0},           {"q4_1", 1 / 8.0f, -1, 0},
                  {"q5_0", 1 / 10.0f, 0, 0},          {"q5_1", 1 / 16.0f, -1, 0},
                  {"q8_0", 1 / 70.0f, 0, 0},          {"q2_k", 1 / 12.0f, 1 / 8.0f, 80},
                  {"q3_k", 1 / 40.0f, 0, 108},        {"q4_k", 1 / 150.0f, 1 / 20.0f, 0},
                  {"q5_k", 1 / 300.0f, 1 / 20.0f, 0}, {"q6_k", 1 / 1300.0f, 0, 208},
                  {"iq4_nl", 1 / 70.0f, 0, 0},        {"iq4_xs", 1 / 1200.0f, 0, 0},
                  {"tq1_0", 1 / 1.2f, 0, 52},         {"tq2_0", 1 / 0.9f, 0, 64}};
    for (int g = 0; g < n_cols / f->group; g++) {
        uint8_t b[256];
        for (int i = 0; i < f->group_bytes; i++)
            w->seed = w->seed * 1664525u + 1013904223u, b[i] = (uint8_t)(w->seed >> 24);
        for (int i = 0; i < f->group_bytes && strcmp(f->name, "tq2_0") == 0; i++)
            b[i] &= (uint8_t)~(b[i] << 1 & b[i] & 0xaa); /* no code is 3 */
        float x = gauss(&w->seed) * scale;
        uint16_t h = ig_f32_to_f16(x);
        if (strcmp(f->name, "f32") == 0) memcpy(b, &x, 4);
        if (strcmp(f->name, "bf16") == 0) memcpy(b, (char *)&x + 2, 2);
        if (strcmp(f->name, "f16") == 0) memcpy(b, &h, 2);
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            if (strcmp(f->name, blocks[i].fmt) == 0) {
                uint16_t d = ig_f32_to_f16(scale * blocks[i].d), min = ig_f32_to_f16(scale * blocks[i].min);
                memcpy(b + blocks[i].d_at, &d, 2);
                if (min) memcpy(b + blocks[i].d_at + 2, &min, 2);
            }
        put(w->f, b, (size_t)f->group_bytes);
    }
}

/* What a test wants wrong: a hook over the tensor list and over one metadata value. */
typedef struct twist {
    const char *drop, *add, *key, *arch;
    uint32_t value;
    bool wide;
    uint32_t type_of_first;
    const char *family;  /* NULL: by the shape; "qwen2", "qwen3", "gemma2" with the shape's window */
    bool biases, freqs;  /* of a llama: of all seven matrices; rope_freqs.weight */
    uint32_t see;        /* of a llama: attention.sliding_window */
    const char *more, *text; /* one key more: a text, or when it is NULL the number `value` */
    const char *as;          /* ... "bool", "f32"; "f32s", "i32s", "strings": an array, one item a layer */
} twist;
static inline const char *family_of(shape s, const twist *t) {
    return t->family ? t->family : s.window ? "gemma3" : "llama";
}

static inline file write_model(shape s, twist t) {
    file w = {.seed = 7};
    snprintf(w.path, sizeof w.path, "%s/ingle-model-XXXXXX",
             getenv("TMPDIR") && strlen(getenv("TMPDIR")) < 30 ? getenv("TMPDIR") : "/tmp");
    int fd = mkstemp(w.path);
    w.f = fdopen(fd, "wb");
    static tensor list[TENSORS_MAX];
    int n = 0;
    const ig_fmt *f = fmt_named(s.fmt);
    uint32_t q = (uint32_t)f->gguf_type;
#define ADD(type_, cols_, rows_, ...)                                                                        \
    do {                                                                                                     \
        tensor x = {.type = (type_), .cols = (cols_), .rows = (rows_)};                                      \
        snprintf(x.name, sizeof x.name, __VA_ARGS__);                                                        \
        if (!t.drop || strcmp(t.drop, x.name)) list[n++] = x;                                                \
    } while (0)
    ADD(q, s.width, s.vocab, "token_embd.weight");
    ADD(0, s.width, 1, "output_norm.weight");
    if (s.untied) ADD(q, s.width, s.vocab, "output.weight");
    for (int i = 0; i < s.layers; i++) {
        ADD(0, s.width, 1, "blk.%d.attn_norm.weight", i);
        ADD(q, s.width, s.heads * s.dim, "blk.%d.attn_q.weight", i);
        ADD(q, s.width, s.kv_heads * s.dim + (t.wide ? 32 : 0), "blk.%d.attn_k.weight", i);
        ADD(q, s.width, s.kv_heads * s.dim, "blk.%d.attn_v.weight", i);
        ADD(q, s.heads * s.dim, s.width, "blk.%d.attn_output.weight", i);
        ADD(0, s.width, 1, "blk.%d.ffn_norm.weight", i);
        ADD(q, s.width, s.ffn, "blk.%d.ffn_gate.weight", i);
        ADD(q, s.width, s.ffn, "blk.%d.ffn_up.weight", i);
        ADD(q, s.ffn, s.width, "blk.%d.ffn_down.weight", i);
    }
    const char *arch = family_of(s, &t);
    const bool gemma = strncmp(arch, "gemma", 5) == 0, qwen2 = strcmp(arch, "qwen2") == 0;
    for (int i = 0; i < s.layers; i++) {
        if (strcmp(arch, "gemma3") == 0 || strcmp(arch, "qwen3") == 0) {
            ADD(0, s.dim, 1, "blk.%d.attn_q_norm.weight", i);
            ADD(0, s.dim, 1, "blk.%d.attn_k_norm.weight", i);
        }
        if (gemma) {
            ADD(0, s.width, 1, "blk.%d.post_attention_norm.weight", i);
            ADD(0, s.width, 1, "blk.%d.post_ffw_norm.weight", i);
        }
        if (t.biases || qwen2) {
            ADD(0, s.heads * s.dim, 1, "blk.%d.attn_q.bias", i);
            ADD(0, s.kv_heads * s.dim, 1, "blk.%d.attn_k.bias", i);
            ADD(0, s.kv_heads * s.dim, 1, "blk.%d.attn_v.bias", i);
        }
        if (!t.biases) continue;
        ADD(0, s.width, 1, "blk.%d.attn_output.bias", i);
        ADD(0, s.ffn, 1, "blk.%d.ffn_gate.bias", i);
        ADD(0, s.ffn, 1, "blk.%d.ffn_up.bias", i);
        ADD(0, s.width, 1, "blk.%d.ffn_down.bias", i);
    }
    if (t.freqs) ADD(0, s.dim / 2, 1, "rope_freqs.weight");
    if (t.add) ADD(0, s.width, 1, "%s", t.add);
    const uint32_t see = t.see ? t.see : (uint32_t)s.window;
    const int n_keys = see ? (gemma ? 10 : 9) : 8;
    put(w.f, "GGUF", 4), put_u32(w.f, 3), put_u64(w.f, (uint64_t)n), put_u64(w.f, (uint64_t)n_keys + (t.more ? 3 : 2));
    kv_str(w.f, "general.architecture", t.arch ? t.arch : arch);
    struct {
        const char *k;
        uint32_t v;
    } keys[] = {{"block_count", (uint32_t)s.layers},
                {"context_length", 512},
                {"embedding_length", (uint32_t)s.width},
                {"feed_forward_length", (uint32_t)s.ffn},
                {"attention.head_count", (uint32_t)s.heads},
                {"attention.head_count_kv", (uint32_t)s.kv_heads},
                {"attention.key_length", (uint32_t)s.dim},
                {"attention.value_length", (uint32_t)s.dim},
                {"attention.sliding_window", see},
                {"attention.sliding_window_pattern", 2}};
    char key[64];
    if (t.more && t.as) kv_as(w.f, t.more, t.as, t.value, s.layers);
    else if (t.more && t.text) kv_str(w.f, t.more, t.text);
    else if (t.more) kv_u32(w.f, t.more, t.value);
    for (int i = 0; i < n_keys; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i].k);
        kv_u32(w.f, key, t.key && strcmp(t.key, key) == 0 ? t.value : keys[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    kv_f32(w.f, key, 1e-5f);
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        put_str(w.f, list[i].name), put_u32(w.f, list[i].rows > 1 ? 2 : 1),
            put_u64(w.f, (uint64_t)list[i].cols);
        if (list[i].rows > 1) put_u64(w.f, (uint64_t)list[i].rows);
        put_u32(w.f, i == 0 && t.type_of_first ? t.type_of_first : list[i].type), put_u64(w.f, at);
        const ig_fmt *lf = ig_fmt_of_gguf(list[i].type);
        at += (ig_fmt_row_bytes(lf, list[i].cols) * (size_t)list[i].rows + 31) / 32 * 32;
    }
    while (ftell(w.f) % 32) put(w.f, "", 1);
    for (int i = 0; i < n; i++) {
        const ig_fmt *lf = ig_fmt_of_gguf(list[i].type);
        for (int r = 0; r < list[i].rows; r++)
            if (list[i].type == 0 && list[i].rows == 1)
                for (int c = 0; c < list[i].cols; c++) {
                    float x = 1.0f + gauss(&w.seed) * 0.1f;
                    put(w.f, &x, 4);
                }
            else
                put_row(&w, lf, list[i].cols, s.width > 160 ? 0.08f : 0.15f); /* scores that exp can hold */
        while (ftell(w.f) % 32) put(w.f, "", 1);
    }
    for (int i = 0; i < 64; i++) put(w.f, "", 1);
    fclose(w.f);
    return w;
}

/* ---- running one -------------------------------------------------------------------------------------- */

enum { CTX = 256, SEQS = 9 };
/* Of the rigs that are opened from now on. */
static ig_kv_kind tiny_kv;
static bool tiny_two_parts;
static ig_tier tiny_tier; /* 0: l3 */
typedef struct rig {
    ig_gguf *g; /* one of the two */
    ig_snapshot *s;
    ig_pool *pool;
    ig_model *m;
    ig_kv_pool *kv;
    ig_kv_seq *seq[SEQS];
    ig_arena arena;
    int n_vocab, n_ctx;
} rig;

/* A GGUF file or a snapshot's folder, for contexts of n_ctx. */
static inline bool rig_open_for(rig *r, const char *path, int threads, uint32_t cpu, int n_ctx) {
    ig_err err = {0};
    *r = (rig){.n_ctx = n_ctx};
    const bool folder = access(path, X_OK) == 0;
    bool ok = (folder ? ig_snapshot_open(&r->s, path, &err) : ig_gguf_open(&r->g, path, &err)) == IG_OK &&
              ig_pool_make(&r->pool, threads, &err) == IG_OK &&
              ig_model_open(&r->m, (ig_checkpoint){r->g, r->s},
                            &(ig_model_options){.pool = r->pool, .tier_max = tiny_tier, .cpu = cpu, .kv_kind = tiny_kv,
                                                .two_parts = tiny_two_parts},
                            &err) == IG_OK &&
              ig_kv_pool_make(&r->kv, ig_model_kv_shape(r->m),
                              ig_kv_room_for(ig_model_kv_shape(r->m), SEQS, n_ctx, CTX), SEQS, n_ctx,
                              &err) == IG_OK;
    if (!CHECK_MSG(ok, "open: %s", err.msg)) return false;
    r->n_vocab = ig_model_config_of(r->m)->n_vocab;
    r->arena.cap_bytes = ig_model_plan(r->m, 2 * CTX, 2 * CTX, n_ctx);
    r->arena.base = aligned_alloc(64, (r->arena.cap_bytes + 63) / 64 * 64);
    for (int i = 0; i < SEQS; i++) r->seq[i] = ig_kv_seq_open(r->kv);
    return true;
}
static inline bool rig_open(rig *r, const char *path, int threads, uint32_t cpu) {
    return rig_open_for(r, path, threads, cpu, CTX);
}
static inline void rig_close(rig *r) {
    ig_kv_pool_free(r->kv), ig_model_close(r->m), ig_pool_free(r->pool), ig_gguf_close(r->g),
        ig_snapshot_close(r->s), free(r->arena.base);
}
/* Rows [from, to) of seqs[0..n_seqs) all at once; all logits. */
static inline void step(rig *r, const uint32_t *tokens, const int *seqs, int n_seqs, int from, int to,
                        float *logits) {
    static uint32_t tok[SEQS * CTX];
    static int pos[SEQS * CTX], seq[SEQS * CTX], want[SEQS * CTX];
    int n = 0;
    for (int s = 0; s < n_seqs; s++) {
        CHECK(ig_kv_seq_reserve(r->kv, r->seq[seqs[s]], to));
        for (int p = from; p < to; p++, n++) tok[n] = tokens[p], pos[n] = p, seq[n] = seqs[s], want[n] = n;
    }
    ig_rows rows = {.n_rows = n,
                    .token = tok,
                    .pos = pos,
                    .seq = seq,
                    .kv_seq = r->seq,
                    .kv = r->kv,
                    .n_ctx = r->n_ctx,
                    .want = want,
                    .n_want = n};
    ig_err err;
    CHECK_MSG(ig_model_forward(r->m, &r->arena, &rows, logits, &err) == IG_OK, "forward: %s", err.msg);
    CHECK(r->arena.used_bytes == 0);
    for (int s = 0; s < n_seqs; s++) r->seq[seqs[s]]->n_tokens = to;
}
static inline void restart(rig *r, int s) {
    ig_kv_seq_close(r->kv, r->seq[s]), r->seq[s] = ig_kv_seq_open(r->kv);
}

static inline void random_tokens(uint32_t *t, int n, int vocab, uint32_t seed) {
    for (int i = 0; i < n; i++) seed = seed * 1664525u + 1013904223u, t[i] = (seed >> 8) % (uint32_t)vocab;
}

/* ---- the plain float64 forward ------------------------------------------------------------------------ */

static inline double *read_matrix(const ig_gguf *g, const char *name) {
    const ig_gguf_tensor *t = ig_gguf_find(g, name);
    const ig_fmt *f = ig_fmt_of_gguf(t->type);
    size_t rb = ig_fmt_row_bytes(f, (int)t->dim[0]);
    double *w = malloc(t->dim[0] * t->dim[1] * sizeof *w);
    uint8_t *row = malloc(rb);
    float *x = malloc(t->dim[0] * 4);
    for (uint64_t r = 0; r < t->dim[1]; r++) {
        ig_gguf_read(g, t, r * rb, row, rb, NULL);
        ig_kern_reference(IG_KERN_DEQUANT, f)->fn.dequant(x, row, (int)t->dim[0]);
        for (uint64_t c = 0; c < t->dim[0]; c++) w[r * t->dim[0] + c] = (double)x[c];
    }
    free(row), free(x);
    return w;
}
/* Not 0: forward64 rounds what a matrix eats to so many steps a side, in blocks of 32, and k and v to f16. */
static int act_steps;

static inline void round_act(double *to, const double *x, int n) {
    for (int b = 0; b < n; b += 32) {
        double amax = 0;
        for (int i = b; i < b + 32 && i < n; i++) amax = fmax(amax, fabs(x[i]));
        for (int i = b; i < b + 32 && i < n; i++)
            to[i] = act_steps && amax > 0 ? rint(x[i] / amax * act_steps) * amax / act_steps : x[i];
    }
}
static inline double round_kv(double x) {
    return act_steps ? (double)ig_f16_to_f32(ig_f32_to_f16((float)x)) : x;
}
static inline void mat(double *y, const double *w, const double *x, int rows, int cols) {
    double *eaten = malloc((size_t)cols * 8);
    round_act(eaten, x, cols);
    x = eaten;
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < cols; c++) y[r] += w[r * cols + c] * x[c];
    }
    free(eaten);
}
static inline void norm64(double *y, const double *x, const double *w, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(s / n + 1e-5) * w[i];
}
static inline double *layer_matrix(const ig_gguf *g, int i, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", i, what);
    return read_matrix(g, name);
}
/* Logits of the last of n tokens; rope on adjacent pairs, as the file has its rows. */
static inline void forward64(const ig_gguf *g, shape s, const uint32_t *tok, int n, double *logits) {
    int W = s.width, D = s.dim, QW = s.heads * D, KW = s.kv_heads * D;
    double *emb = read_matrix(g, "token_embd.weight"),
           *head = s.untied ? read_matrix(g, "output.weight") : emb;
    double *h = malloc((size_t)(n * W) * 8), *x = malloc((size_t)W * 8), *q = malloc((size_t)(n * QW) * 8);
    double *k = malloc((size_t)(n * KW) * 8), *v = malloc((size_t)(n * KW) * 8), *o = malloc((size_t)QW * 8),
           *y = malloc((size_t)W * 8);
    double *gt = malloc((size_t)s.ffn * 8), *up = malloc((size_t)s.ffn * 8), *e = malloc((size_t)n * 8);
    for (int t = 0; t < n; t++) memcpy(h + t * W, emb + (size_t)tok[t] * (size_t)W, (size_t)W * 8);
    for (int i = 0; i < s.layers; i++) {
        double *n1 = layer_matrix(g, i, "attn_norm"), *n2 = layer_matrix(g, i, "ffn_norm"),
               *wq = layer_matrix(g, i, "attn_q"), *wk = layer_matrix(g, i, "attn_k");
        double *wv = layer_matrix(g, i, "attn_v"), *wo = layer_matrix(g, i, "attn_output"),
               *wg = layer_matrix(g, i, "ffn_gate"), *wu = layer_matrix(g, i, "ffn_up"),
               *wd = layer_matrix(g, i, "ffn_down");
        for (int t = 0; t < n; t++) {
            norm64(x, h + t * W, n1, W);
            mat(q + t * QW, wq, x, QW, W), mat(k + t * KW, wk, x, KW, W), mat(v + t * KW, wv, x, KW, W);
            for (int hd = 0; hd < s.heads + s.kv_heads; hd++)
                for (int j = 0; j < D / 2; j++) {
                    double *p =
                               (hd < s.heads ? q + t * QW + hd * D : k + t * KW + (hd - s.heads) * D) + 2 * j,
                           a = p[0], b = p[1];
                    double th = t * pow(10000.0, -2.0 * j / D);
                    p[0] = a * cos(th) - b * sin(th), p[1] = a * sin(th) + b * cos(th);
                }
        }
        for (int j = 0; j < n * KW; j++) k[j] = round_kv(k[j]), v[j] = round_kv(v[j]);
        for (int t = 0; t < n; t++) {
            for (int hd = 0; hd < s.heads; hd++) {
                double sum = 0;
                int kh = hd / (s.heads / s.kv_heads);
                for (int u = 0; u <= t; u++) {
                    e[u] = 0;
                    for (int j = 0; j < D; j++) e[u] += q[t * QW + hd * D + j] * k[u * KW + kh * D + j];
                    sum += e[u] = exp(e[u] / sqrt(D));
                }
                for (int j = 0; j < D; j++) {
                    double a = 0;
                    for (int u = 0; u <= t; u++) a += e[u] * v[u * KW + kh * D + j];
                    o[hd * D + j] = a / sum;
                }
            }
            mat(y, wo, o, W, QW);
            for (int c = 0; c < W; c++) h[t * W + c] += y[c];
            norm64(x, h + t * W, n2, W);
            mat(gt, wg, x, s.ffn, W), mat(up, wu, x, s.ffn, W);
            for (int c = 0; c < s.ffn; c++) gt[c] = gt[c] / (1 + exp(-gt[c])) * up[c];
            mat(y, wd, gt, W, s.ffn);
            for (int c = 0; c < W; c++) h[t * W + c] += y[c];
        }
        free(n1), free(n2), free(wq), free(wk), free(wv), free(wo), free(wg), free(wu), free(wd);
    }
    double *nw = read_matrix(g, "output_norm.weight");
    norm64(x, h + (n - 1) * W, nw, W);
    mat(logits, head, x, s.vocab, W);
    if (head != emb) free(head);
    free(nw), free(emb), free(h), free(x), free(q), free(k), free(v), free(o), free(y), free(gt), free(up),
        free(e);
}

#endif
