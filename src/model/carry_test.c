/* carry_test: gradients of whole tiny models, llama, gemma3 and a stack of this file with a tensor that later
 * layers read again: against differences of a float64 program, and cut into segments at every place against uncut,
 * bit for bit. Models are put together here, without a file. */
#include "base/test.h"
#include "model/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const ig_family ig_family_llama, ig_family_gemma3;
static const ig_family family_shared;

enum { T = 75, LAYERS = 5, K = 64, F = 96, HEADS = 4, KV_HEADS = 2, D = 32, VOCAB = 90, WINDOW = 20, M = 40 };
enum { WEIGHTS = LAYERS * IG_LAYER_WEIGHTS_MAX + 1 };

typedef struct tiny {
    ig_model m;
    ig_layer layers[LAYERS];
    uint32_t seed;
    void *owned[256];
    int n_owned;
    uint32_t token[T], target[M];
    int pos[T], seq[T], want[M];
    float g[M];
    ig_rows rows;
} tiny;

static float draw(tiny *y) {
    y->seed = y->seed * 1664525u + 1013904223u;
    return (float)(y->seed >> 8) / 8388608.0f - 1.0f;
}
static void *own(tiny *y, size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    ig_assert(p && y->n_owned < 256);
    memset(p, 0, bytes);
    return y->owned[y->n_owned++] = p;
}
static const float *vector(tiny *y, int n, float middle) {
    float *v = own(y, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) v[i] = middle + 0.3f * draw(y);
    return v;
}
/* Formats by GGUF's numbers: 0 f32, 3 q4_1, 8 q8_0, 30 bf16. */
static ig_weight matrix(tiny *y, int gguf_type, int n_rows, int n_cols, ig_row_order order) {
    const ig_fmt *f = ig_fmt_of_gguf((uint32_t)gguf_type);
    ig_weight w = {.name = "w",
                   .fmt = f,
                   .n_rows = n_rows,
                   .n_cols = n_cols,
                   .order = order,
                   .head_dim = D,
                   .panel_bytes = ig_fmt_panel_bytes(f, n_cols)};
    w.kern = ig_kern_pick(IG_KERN_LINEAR, f, IG_TIER_L3, ig_cpu_features()), w.linear = w.kern->fn.linear;
    w.unpack = ig_kern_pick(IG_KERN_UNPACK, f, IG_TIER_L3, ig_cpu_features());
    uint8_t *panels = own(y, (size_t)ig_weight_n_panels(&w) * w.panel_bytes);
    for (int p = 0; p < ig_weight_n_panels(&w); p++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            uint8_t row[4 * HEADS * D]; /* the longest row, in f32 */
            if (ig_weight_row(&w, p, lane) < 0) continue;
            for (int i = 0; i < n_cols / f->group; i++) {
                uint8_t *at = row + i * f->group_bytes;
                const float x = 0.3f * draw(y);
                const uint16_t d = ig_f32_to_f16(gguf_type == 8 ? 0.002f : 0.03f), m = ig_f32_to_f16(-0.2f);
                for (int b = 0; b < f->group_bytes; b++) draw(y), at[b] = (uint8_t)(y->seed >> 16);
                if (gguf_type == 0)
                    memcpy(at, &x, 4);
                else if (gguf_type == 30)
                    memcpy(at, (const uint8_t *)&x + 2, 2);
                else
                    memcpy(at, &d, 2);
                if (gguf_type == 3) memcpy(at + 2, &m, 2);
            }
            f->pack(panels + (size_t)p * w.panel_bytes, row, lane, n_cols);
        }
    w.panels = panels;
    return w;
}

/* Two sequences; the rows with a loss skip some and have one twice. */
static void make_rows(tiny *y) {
    for (int t = 0; t < T; t++) {
        y->seq[t] = t >= 70, y->pos[t] = t >= 70 ? t - 70 : t;
        draw(y), y->token[t] = (y->seed >> 8) % VOCAB;
    }
    for (int i = 0; i < M; i++) {
        y->want[i] = i == 7 ? 12 : (i * 15) / 8;
        y->target[i] = (uint32_t)(i * 37 + 5) % VOCAB, y->g[i] = draw(y) + 0.2f;
    }
    for (int i = 1; i < M; i++)
        if (y->want[i] < y->want[i - 1]) y->want[i] = y->want[i - 1];
    y->rows = (ig_rows){.n_rows = T,
                        .token = y->token,
                        .pos = y->pos,
                        .seq = y->seq,
                        .n_ctx = T,
                        .want = y->want,
                        .n_want = M};
}

static void make(tiny *y, const ig_family *family, int n_threads, uint32_t cpu) {
    static const int types[] = {0, 30, 8, 3};
    *y = (tiny){.seed = 77};
    const bool gemma = family == &ig_family_gemma3;
    const ig_row_order order = gemma ? IG_ROWS_PLAIN : IG_ROWS_ROPE;
    ig_model_config c = {.n_layers = LAYERS,
                         .n_heads = HEADS,
                         .n_kv_heads = KV_HEADS,
                         .head_dim = D,
                         .width = K,
                         .ffn_width = F,
                         .n_vocab = VOCAB,
                         .norm_eps = 1e-5f,
                         .embed_scale = gemma ? 8.0f : 1.0f,
                         .final_softcap = gemma ? 6.0f : 0.0f};
    y->m = (ig_model){.family = family, .config = c, .layers = y->layers, .tier_max = IG_TIER_L3, .cpu = cpu};
    ig_assert(ig_pool_make(&y->m.pool, n_threads, NULL) == IG_OK);
    ig_kern_table_pick(&y->m.kern, IG_TIER_L3, NULL, cpu);
    for (int i = 0; i < IG_ROPES; i++) {
        y->m.inv_freq[i] = own(y, D / 2 * sizeof(double));
        y->m.rope_scale[i] = i ? 1.25 : 1;
        for (int d = 0; d < D / 2; d++) y->m.inv_freq[i][d] = pow(i ? 100 : 10000, -2.0 * d / D);
    }
    y->m.top.w[IG_TOP_EMBED] = y->m.top.w[IG_TOP_HEAD] = matrix(y, 8, VOCAB, K, IG_ROWS_PLAIN);
    y->m.top.v[IG_TOP_NORM] = vector(y, K, 1);
    for (int i = 0; i < LAYERS; i++) {
        ig_layer *l = &y->layers[i];
        const int type = types[i % 4];
        l->w[IG_W_Q] = matrix(y, type, HEADS * D, K, order),
        l->w[IG_W_K] = matrix(y, type, KV_HEADS * D, K, order);
        l->w[IG_W_V] = matrix(y, type, KV_HEADS * D, K, IG_ROWS_PLAIN);
        l->w[IG_W_O] = matrix(y, type, K, HEADS * D, IG_ROWS_PLAIN);
        l->w[IG_W_GATE] = matrix(y, type, F, K, IG_ROWS_PLAIN),
        l->w[IG_W_UP] = matrix(y, type, F, K, IG_ROWS_PLAIN);
        l->w[IG_W_DOWN] = matrix(y, type, K, F, IG_ROWS_PLAIN);
        for (int v = 0; v < IG_V_Q_NORM; v++) l->v[v] = vector(y, K, 1);
        l->v[IG_V_Q_NORM] = vector(y, D, 1), l->v[IG_V_K_NORM] = vector(y, D, 1);
        l->rope = gemma && i % 2 ? IG_ROPE_WINDOW : IG_ROPE_FULL;
        l->attention = (ig_attention){.n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = D,
                                      .scale = 0.2f,
                                      .window = gemma && i % 2 ? WINDOW : 0,
                                      .softcap = gemma ? 1.5f : 0.0f,
                                      .norm_eps = 1e-5f,
                                      .kv = {.layer = i}};
        for (int w = 0; w < IG_LAYER_WEIGHTS_MAX && family == &ig_family_llama; w++) {
            ig_weight *of = &l->w[w];
            if (w != IG_W_GATE && w != IG_W_UP) of->bias = vector(y, (of->n_rows + 15) / 16 * 16, 0);
        }
        if (gemma) l->attention.q_norm = l->v[IG_V_Q_NORM], l->attention.k_norm = l->v[IG_V_K_NORM];
    }
    make_rows(y);
}
static void unmake(tiny *y) {
    for (int i = 0; i < y->n_owned; i++) free(y->owned[i]);
    ig_pool_free(y->m.pool);
}

/* ---- a stack with a tensor that is read again --------------------------------------------------------- */

/* Layer 1 shares its normed input; 2 and 4 multiply it, 3 adds its norm. Layer 3 shares something too. */
static ig_tensor *shared_layer(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                               const ig_rows *rows, ig_tensor *h, ig_carry *carry) {
    const int i = l->attention.kv.layer;
    const float *w = l->v[IG_V_ATTN_NORM];
    (void)rope, (void)rows;
    ig_tensor *x = op_norm(r, h, w, c->norm_eps, IG_ACT_F32, NULL, 0);
    ig_tensor *a = op_glu(r, IG_GLU_GELU, &l->w[IG_W_GATE], &l->w[IG_W_UP], x, IG_ACT_F32);
    h = op_linear_add(r, &l->w[IG_W_DOWN], a, h);
    if (i == 1) ig_carry_share(carry, "normed", x);
    if (i == 3) ig_carry_share(carry, "gate", op_linear(r, &l->w[IG_W_GATE], x));
    ig_tensor *normed = ig_carry_find(carry, "normed"), *gate = ig_carry_find(carry, "gate");
    if (i == 2 || i == 4) {
        a = op_glu(r, IG_GLU_SILU, &l->w[IG_W_UP], &l->w[IG_W_GATE], normed, IG_ACT_F32);
        h = op_linear_add(r, &l->w[IG_W_DOWN], a, h);
    }
    if (i == 3) h = op_norm_add(r, normed, l->v[IG_V_FFN_NORM], c->norm_eps, h);
    if (i == 4) h = op_linear_add(r, &l->w[IG_W_DOWN], gate, h);
    return h;
}
static const ig_family family_shared = {.name = "shared", .layer = shared_layer};

/* ---- a step, cut or not ------------------------------------------------------------------------------- */

typedef struct outcome {
    float g[T * K], logp[M];
    ig_status status;
    size_t peak_bytes;
} outcome;

/* Bit i of `cuts`: an edge before layer i + 1. What a trainer does, in short. */
static void cut_step(const tiny *y, ig_run *r, unsigned cuts, outcome *out) {
    int bound[LAYERS + 1] = {0}, n = 0;
    for (int i = 1; i < LAYERS; i++)
        if (cuts >> (i - 1) & 1) bound[++n] = i;
    bound[++n] = LAYERS;
    ig_carry edge[LAYERS];
    ig_tape tape = {0};
    float *g_of_h[2];
    for (int i = 0; i < 2; i++) g_of_h[i] = ig_arena_take(r->arena, T * K * sizeof(float));
    const ig_model_ropes ropes = ig_model_ropes_of(&y->m, r, &y->rows);
    ig_carry carry = ig_model_embed(&y->m, r, &y->rows, true);
    for (int s = 0; s < n && r->status == IG_OK; s++) {
        ig_carry_save(r, &carry, &edge[s], true, g_of_h[s % 2]);
        if (s + 1 < n) ig_model_layers(&y->m, r, &y->rows, &ropes, bound[s], bound[s + 1], &carry);
    }
    for (int s = n - 1; s >= 0 && r->status == IG_OK; s--) {
        const size_t mark = ig_arena_mark(r->arena);
        r->tape = &tape;
        carry = edge[s];
        ig_model_layers(&y->m, r, &y->rows, &ropes, bound[s], bound[s + 1], &carry);
        if (s == n - 1 && r->status == IG_OK) {
            ig_loss *l = ig_model_loss(&y->m, r, &y->rows, &carry, y->target, IG_HEAD_FLASH, true);
            if (l && !ig_run_planning(r)) memcpy(out->logp, l->logp, sizeof out->logp);
            op_loss_seed(r, l, y->g);
        } else if (r->status == IG_OK) {
            ig_carry_seed(&carry, &edge[s + 1]);
        }
        if (r->status == IG_OK) op_backward(r);
        ig_arena_rewind(r->arena, mark);
    }
    if (r->status == IG_OK && !ig_run_planning(r)) memcpy(out->g, edge[0].h->g, sizeof out->g);
}

/* cap 0: a plan. */
static void run_cut(const tiny *y, unsigned cuts, size_t cap, outcome *out) {
    ig_arena a = {.cap_bytes = cap ? cap : SIZE_MAX, .counting = cap == 0}, shapes = {.cap_bytes = 1 << 20};
    if (cap) a.base = aligned_alloc(64, (cap + 63) / 64 * 64);
    shapes.base = aligned_alloc(64, shapes.cap_bytes);
    ig_run r = {.arena = &a, .shapes = &shapes, .pool = y->m.pool, .kern = &y->m.kern, .train = true};
    cut_step(y, &r, cuts, out);
    out->status = r.status, out->peak_bytes = a.peak_bytes;
    free(a.base), free(shapes.base);
}

static const ig_family *const families[] = {&ig_family_llama, &ig_family_gemma3, &family_shared};
enum { ROOM = 48 << 20 };

TEST(segmented_gradients_equal_whole_ones_bit_for_bit_at_every_cut_and_any_number_of_threads) {
    static tiny y;
    static outcome whole, cut;
    for (int f = 0; f < 3; f++) {
        static const int threads[] = {1, 2, 3, 7};
        make(&y, families[f], 1, ig_cpu_features());
        run_cut(&y, 0, ROOM, &whole);
        CHECK(whole.status == IG_OK);
        unmake(&y);
        for (unsigned cuts = 0; cuts < 1u << (LAYERS - 1); cuts++) {
            make(&y, families[f], threads[cuts % 4], ig_cpu_features());
            run_cut(&y, cuts, ROOM, &cut);
            CHECK_MSG(cut.status == IG_OK && !memcmp(whole.logp, cut.logp, sizeof cut.logp) &&
                          !memcmp(whole.g, cut.g, sizeof cut.g),
                      "%s: cuts %x", families[f]->name, cuts);
            unmake(&y);
        }
        whole.g[T * K / 2] = nextafterf(whole.g[T * K / 2], 9); /* control */
        CHECK(memcmp(whole.g, cut.g, sizeof cut.g) != 0);
    }
}

TEST(a_plan_of_a_segmented_step_counts_what_it_takes_and_less_is_refused) {
    static tiny y;
    static outcome plan, real;
    for (int f = 0; f < 3; f++) {
        make(&y, families[f], 2, ig_cpu_features());
        size_t whole = 0;
        for (unsigned cuts = 0; cuts < 16; cuts += 5) {
            run_cut(&y, cuts, 0, &plan);
            run_cut(&y, cuts, plan.peak_bytes, &real);
            CHECK_MSG(real.status == IG_OK && real.peak_bytes == plan.peak_bytes, "%s, cuts %x: %zu, %zu",
                      families[f]->name, cuts, plan.peak_bytes, real.peak_bytes);
            if (cuts == 0)
                whole = plan.peak_bytes;
            else
                CHECK(plan.peak_bytes < whole);
            for (size_t cap = 64; cap < plan.peak_bytes; cap += cap < 65536 ? 832 : 64 * 971) {
                run_cut(&y, cuts, cap, &real);
                CHECK_MSG(real.status == IG_ELIMIT, "%zu of %zu bytes", cap, plan.peak_bytes);
            }
            run_cut(&y, cuts, plan.peak_bytes - 64, &real);
            CHECK(real.status == IG_ELIMIT);
        }
        unmake(&y);
    }
}

/* ---- the same models in float64 ----------------------------------------------------------------------- */

typedef struct twin {
    const tiny *y;
    double *w[LAYERS][IG_LAYER_WEIGHTS_MAX], *head;
    double h[T * K], a[T * K], n[T * K], normed[T * K], gate[T * F], q[T * HEADS * D], k[T * KV_HEADS * D],
        v[T * KV_HEADS * D], o[T * HEADS * D], up[T * F], f[T * F];
} twin;

static double *exact(const ig_weight *w) {
    double *y = malloc((size_t)w->n_rows * (size_t)w->n_cols * sizeof *y);
    float row[HEADS * D];
    for (int p = 0; p < ig_weight_n_panels(w); p++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            const int at = ig_weight_row(w, p, lane);
            if (at < 0) continue;
            w->unpack->fn.unpack(row, w->panels + (size_t)p * w->panel_bytes, lane, w->n_cols);
            for (int c = 0; c < w->n_cols; c++) y[at * w->n_cols + c] = (double)row[c];
        }
    return y;
}
static void mat(double *y, const double *x, const double *w, int rows, int cols, bool add) {
    for (int t = 0; t < T; t++)
        for (int i = 0; i < rows; i++) {
            double s = 0;
            for (int c = 0; c < cols; c++) s += x[t * cols + c] * w[i * cols + c];
            y[t * rows + i] = s + (add ? y[t * rows + i] : 0);
        }
}
static void norm(double *y, const double *x, const float *w, int rows, int n, bool add) {
    for (int t = 0; t < rows; t++) {
        double s = 0;
        for (int i = 0; i < n; i++) s += x[t * n + i] * x[t * n + i];
        for (int i = 0; i < n; i++)
            y[t * n + i] =
                x[t * n + i] / sqrt(s / n + (double)1e-5f) * (double)w[i] + (add ? y[t * n + i] : 0);
    }
}
static void glu(twin *m, const double *x, const double *gate, const double *up, bool gelu) {
    mat(m->f, x, gate, F, K, false), mat(m->up, x, up, F, K, false);
    for (int i = 0; i < T * F; i++) {
        const double g = m->f[i];
        m->f[i] = m->up[i] * (gelu ? 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)))
                                   : g / (1 + exp(-g)));
    }
}
static void rope(double *x, int heads, const tiny *y, const double *inv_freq, double scale) {
    for (int t = 0; t < T; t++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < D / 2; i++) {
                double *p = x + (t * heads + h) * D + i, a = p[0], b = p[D / 2], th = y->pos[t] * inv_freq[i];
                p[0] = (a * cos(th) - b * sin(th)) * scale, p[D / 2] = (a * sin(th) + b * cos(th)) * scale;
            }
}
static void attention(twin *m, int window, double cap) {
    const tiny *y = m->y;
    for (int t = 0; t < T; t++)
        for (int h = 0; h < HEADS; h++) {
            const int kh = h / (HEADS / KV_HEADS), row0 = t - y->pos[t];
            double p[T], sum = 0, *o = m->o + (t * HEADS + h) * D;
            memset(o, 0, D * sizeof *o);
            for (int j = window && y->pos[t] >= window ? y->pos[t] - window + 1 : 0; j <= y->pos[t]; j++) {
                p[j] = 0;
                for (int d = 0; d < D; d++)
                    p[j] += m->q[(t * HEADS + h) * D + d] * m->k[((row0 + j) * KV_HEADS + kh) * D + d];
                if (cap > 0) p[j] = cap * tanh(p[j] / cap);
                p[j] = exp(p[j]), sum += p[j];
                for (int d = 0; d < D; d++) o[d] += p[j] * m->v[((row0 + j) * KV_HEADS + kh) * D + d];
            }
            for (int d = 0; d < D; d++) o[d] /= sum;
        }
}
static void add_bias(double *to, const ig_weight *w) {
    for (int i = 0; w->bias && i < ig_weight_n_panels(w) * IG_PANEL_ROWS; i++) {
        const int row = ig_weight_row(w, i / IG_PANEL_ROWS, i % IG_PANEL_ROWS);
        for (int t = 0; t < T && row >= 0; t++) to[t * w->n_rows + row] += (double)w->bias[i];
    }
}
static void transformer_layer(twin *m, int i, bool gemma) {
    const ig_layer *l = &m->y->layers[i];
    double **w = m->w[i];
    const double *inv_freq = m->y->m.inv_freq[l->rope];
    norm(m->n, m->h, l->v[IG_V_ATTN_NORM], T, K, false);
    mat(m->q, m->n, w[IG_W_Q], HEADS * D, K, false), mat(m->k, m->n, w[IG_W_K], KV_HEADS * D, K, false);
    mat(m->v, m->n, w[IG_W_V], KV_HEADS * D, K, false);
    add_bias(m->q, &l->w[IG_W_Q]), add_bias(m->k, &l->w[IG_W_K]), add_bias(m->v, &l->w[IG_W_V]);
    if (gemma) norm(m->q, m->q, l->v[IG_V_Q_NORM], T * HEADS, D, false);
    if (gemma) norm(m->k, m->k, l->v[IG_V_K_NORM], T * KV_HEADS, D, false);
    const double stretch = m->y->m.rope_scale[l->rope];
    rope(m->q, HEADS, m->y, inv_freq, (double)0.2f * stretch), rope(m->k, KV_HEADS, m->y, inv_freq, stretch);
    attention(m, l->attention.window, (double)l->attention.softcap);
    mat(gemma ? m->a : m->h, m->o, w[IG_W_O], K, HEADS * D, !gemma);
    add_bias(m->h, &l->w[IG_W_O]);
    if (gemma) norm(m->h, m->a, l->v[IG_V_POST_ATTN_NORM], T, K, true);
    norm(m->n, m->h, l->v[IG_V_FFN_NORM], T, K, false);
    glu(m, m->n, w[IG_W_GATE], w[IG_W_UP], gemma);
    mat(gemma ? m->a : m->h, m->f, w[IG_W_DOWN], K, F, !gemma);
    add_bias(m->h, &l->w[IG_W_DOWN]);
    if (gemma) norm(m->h, m->a, l->v[IG_V_POST_FFN_NORM], T, K, true);
}
static void shared_layer64(twin *m, int i) {
    const ig_layer *l = &m->y->layers[i];
    double **w = m->w[i];
    norm(m->n, m->h, l->v[IG_V_ATTN_NORM], T, K, false);
    if (i == 1) memcpy(m->normed, m->n, sizeof m->n);
    if (i == 3) mat(m->gate, m->n, w[IG_W_GATE], F, K, false);
    glu(m, m->n, w[IG_W_GATE], w[IG_W_UP], true), mat(m->h, m->f, w[IG_W_DOWN], K, F, true);
    if (i == 2 || i == 4)
        glu(m, m->normed, w[IG_W_UP], w[IG_W_GATE], false), mat(m->h, m->f, w[IG_W_DOWN], K, F, true);
    if (i == 3) norm(m->h, m->normed, l->v[IG_V_FFN_NORM], T, K, true);
    if (i == 4) mat(m->h, m->gate, w[IG_W_DOWN], K, F, true);
}
/* norm() and mat() with add read y where they write: both take x apart from y, except heads' norms, row by row. */
static double loss64(twin *m, const double *h0) {
    double loss = 0;
    memcpy(m->h, h0, sizeof m->h);
    for (int i = 0; i < LAYERS; i++)
        if (m->y->m.family == &family_shared)
            shared_layer64(m, i);
        else
            transformer_layer(m, i, m->y->m.family == &ig_family_gemma3);
    norm(m->n, m->h, m->y->m.top.v[IG_TOP_NORM], T, K, false);
    for (int i = 0; i < M; i++) {
        double sum = 0, of_target = 0;
        for (int v = 0; v < VOCAB; v++) {
            double l = 0;
            for (int c = 0; c < K; c++) l += m->n[m->y->want[i] * K + c] * m->head[v * K + c];
            const double cap = (double)m->y->m.config.final_softcap;
            if (cap > 0) l = cap * tanh(l / cap);
            sum += exp(l);
            if (v == (int)m->y->target[i]) of_target = l;
        }
        loss += (double)m->y->g[i] * (of_target - log(sum));
    }
    return loss;
}

TEST(the_gradient_of_the_embedding_equals_differences_of_a_float64_twin) {
    static tiny y;
    static twin m;
    static outcome got;
    static double h0[T * K], h[T * K];
    enum { ENTRIES = 24, DIRECTIONS = 6 };
    for (int f = 0; f < 3; f++) {
        make(&y, families[f], 2, ig_cpu_features());
        run_cut(&y, 0, ROOM, &got);
        m.y = &y, m.head = exact(&y.m.top.w[IG_TOP_HEAD]);
        for (int i = 0; i < LAYERS; i++)
            for (int w = 0; w < IG_LAYER_WEIGHTS_MAX; w++) m.w[i][w] = exact(&y.layers[i].w[w]);
        for (int t = 0; t < T * K; t++)
            h0[t] = m.head[y.token[t / K] * K + t % K] * (double)y.m.config.embed_scale;
        double loss = 0;
        for (int i = 0; i < M; i++) loss += (double)y.g[i] * (double)got.logp[i];
        CHECK_MSG(fabs(loss - loss64(&m, h0)) < 1e-5 * fabs(loss), "%s: loss %.9g, float64 %.9g",
                  families[f]->name, loss, loss64(&m, h0));
        double far = 0, size = 0, wrong = 0;
        for (int e = 0; e < ENTRIES + DIRECTIONS; e++) {
            static float direction[T * K];
            for (int i = 0; i < T * K; i++) direction[i] = e < ENTRIES ? 0 : draw(&y);
            draw(&y);
            if (e < ENTRIES)
                direction[(y.seed >> 4) % (70 * K)] = 40; /* weighs as much as a whole direction */
            const double step = e < ENTRIES ? 1e-6 : 2e-5;
            double value[2], g = 0;
            for (int s = 0; s < 2; s++) {
                for (int i = 0; i < T * K; i++) h[i] = h0[i] + (s ? -step : step) * (double)direction[i];
                value[s] = loss64(&m, h);
            }
            for (int i = 0; i < T * K; i++) g += (double)got.g[i] * (double)direction[i];
            const double d = (value[0] - value[1]) / (2 * step);
            far += (g - d) * (g - d), wrong += (1.001 * g - d) * (1.001 * g - d), size += d * d;
        }
        CHECK_MSG(sqrt(far) < 1e-5 * sqrt(size), "%s: %.2g from differences", families[f]->name,
                  sqrt(far / size));
        CHECK(sqrt(wrong) > 1e-5 * sqrt(size)); /* control: a thousandth is seen */
        free(m.head);
        for (int i = 0; i < LAYERS; i++)
            for (int w = 0; w < IG_LAYER_WEIGHTS_MAX; w++) free(m.w[i][w]);
        unmake(&y);
    }
}
