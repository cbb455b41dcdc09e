/* fake: a model of a few lines for tests of the scheduler.
 *
 * A row writes its token into its KV row, then reads the tokens of positions 0..pos back from the blocks and
 * hashes them; the logits are a function of that hash and of nothing else. So whatever goes wrong with
 * blocks (sharing, copies, eviction, order) changes the tokens, and a straight computation without any
 * engine tells. A row of POISON writes NaN, and so does every row that sees one, also behind its own end:
 * what a block's last user left there. A row of FAULT makes the forward fail. Include base/test.h first. */
#ifndef IG_ENGINE_FAKE_TEST_H
#define IG_ENGINE_FAKE_TEST_H

#include <math.h>
#include <string.h>

#include "engine/inside.h"

/* malloc_test.c: a malloc that counts the calls of threads that said they make none. */
void ig_test_watch_malloc(bool on);
int ig_test_watched_mallocs(void); /* since the last call */

enum { V = 96, EOS = 0, FAULT = V - 2, POISON = V - 1, N_PLAIN = V - 2, FAKE_WIDTH = 8 };

/* Makes the engines that follow, and the straight computation, sample as tier l1; set back by who sets it.
 * Logits are then of 8 bits, which are numbers of both 16-bit types. */
static const ig_fmt *fake_number;

static const ig_kv_shape FAKE_KV = {1, {{1, 1, 8, 0, IG_KV_F16}}};
static const ig_kv_shape FAKE_KV_WINDOW = {2, {{3, 1, 8, 96, IG_KV_F16}, {1, 1, 8, 0, IG_KV_F16}}};

typedef struct fake {
    _Atomic uint64_t *clock; /* moved on by a step; or NULL */
    uint64_t step_ns, row_ns, key_ns; /* key: of a position that a row sees */
    int n_calls, n_rows_last, n_decode_last, n_seqs_last, n_rows_max;
    _Atomic int n_running;   /* forwards inside, to see that there is never more than one */
    void (*inside)(void);    /* called on the engine thread at every forward */
    ig_kv_shape kv;          /* no groups: FAKE_KV */
    uint64_t took_ns;        /* the last step */
} fake;

static inline uint64_t mix(uint64_t h, uint32_t token) {
    h = (h ^ token) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

static inline void fake_logits(float *out, uint64_t hash) {
    const uint32_t kept = fake_number ? 4080u : 4095u;
    for (uint32_t v = 0; v < V; v++) out[v] = (float)(int)(mix(hash, v) & kept) * 0x1p-9f;
    out[FAULT] = out[POISON] = -INFINITY;
}

static inline uint16_t *fake_at(const ig_kv_pool *kv, const ig_kv_seq *s, int g, int pos, int d) {
    uint16_t *k = ig_kv_at(kv, s->block[g][pos / IG_KV_BLOCK_TOKENS], (ig_kv_layer){g, 0}, 0);
    return k + d * IG_KV_BLOCK_TOKENS + pos % IG_KV_BLOCK_TOKENS;
}

/* The token at a position; UINT32_MAX when the row holds a NaN or another position's number. */
static inline uint32_t fake_read(const ig_kv_pool *kv, const ig_kv_seq *s, int g, int pos) {
    uint32_t token = 0, at = 0;
    for (int d = 0; d < 4; d++) {
        if ((*fake_at(kv, s, g, pos, d) & 0x7c00u) == 0x7c00u) return UINT32_MAX;
        token |= (uint32_t)*fake_at(kv, s, g, pos, d) << 8 * d;
    }
    for (int d = 4; d < 8; d++) at |= (uint32_t)*fake_at(kv, s, g, pos, d) << 8 * (d - 4);
    return at == (uint32_t)pos ? token : UINT32_MAX;
}

/* The last group sees all and is what is hashed; a group with a window must hold the same inside it. */
static inline bool fake_row(const ig_rows *r, int row, uint64_t *hash) {
    const ig_kv_seq *s = r->kv_seq[r->seq[row]];
    const ig_kv_shape shape = ig_kv_pool_shape(r->kv);
    int pos = r->pos[row], end = (pos / IG_KV_BLOCK_TOKENS + 1) * IG_KV_BLOCK_TOKENS;
    const int all = shape.n_groups - 1;
    bool good = r->token[row] != POISON;

    *hash = 1;
    for (int i = 0; i < pos && good; i++) {
        uint32_t token = fake_read(r->kv, s, all, i);
        good = token != UINT32_MAX;
        *hash = mix(*hash, token);
    }
    *hash = mix(*hash, r->token[row]);
    for (int g = 0; g < all; g++)
        for (int i = pos - shape.group[g].window + 1 > 0 ? pos - shape.group[g].window + 1 : 0; i < pos; i++)
            good = good && fake_read(r->kv, s, g, i) == fake_read(r->kv, s, all, i);
    for (int g = 0; g < shape.n_groups; g++) {
        for (int i = pos + 1; i < end; i++)
            good = good && (*fake_at(r->kv, s, g, i, 0) & 0x7c00u) != 0x7c00u;
        for (int d = 0; d < 8; d++) {
            uint32_t half = d < 4 ? r->token[row] >> 8 * d & 255u : (uint32_t)pos >> 8 * (d - 4) & 255u;
            *fake_at(r->kv, s, g, pos, d) = good ? (uint16_t)half : 0x7e00u;
        }
    }
    return good;
}

static inline ig_status fake_forward(void *ud, ig_arena *arena, const ig_rows *r, float *logits,
                                     float *hidden, int n_hidden, ig_err *err) {
    fake *f = ud;
    int n_want = 0, n_vectors = 0;
    (void)arena;

    CHECK(atomic_fetch_add(&f->n_running, 1) == 0);
    if (f->inside) f->inside();
    f->n_calls++;
    f->n_rows_last = r->n_rows;
    f->n_decode_last = f->n_seqs_last = 0;
    for (int i = 0; i < r->n_rows; i++) {
        bool first = i == 0 || r->seq[i] != r->seq[i - 1];
        const ig_kv_seq *s = r->kv_seq[r->seq[i]];
        CHECK(r->seq[i] == (first ? f->n_seqs_last : f->n_seqs_last - 1));
        CHECK(first ? r->pos[i] == s->n_tokens : r->pos[i] == r->pos[i - 1] + 1);
        CHECK(s->n_blocks * IG_KV_BLOCK_TOKENS > r->pos[i]);
        f->n_seqs_last += first;
        f->n_decode_last += first && (i + 1 == r->n_rows || r->seq[i + 1] != r->seq[i]);
    }
    ig_status st = IG_OK;
    for (int i = 0; i < r->n_rows && !st; i++) {
        uint64_t hash;
        bool good = fake_row(r, i, &hash);
        if (r->token[i] == FAULT) st = ig_fail(err, IG_ELIMIT, "row %d holds the faulty token", i);
        if (n_vectors < n_hidden && r->want[r->n_want - n_hidden + n_vectors] == i) {
            float *v = hidden + (size_t)n_vectors++ * FAKE_WIDTH;
            for (uint32_t k = 0; k < FAKE_WIDTH; k++) v[k] = good ? (float)(mix(hash, k) & 1023) : NAN;
        }
        if (n_want == r->n_want - n_hidden || r->want[n_want] != i) continue;
        float *out = logits + (size_t)n_want++ * V;
        fake_logits(out, hash);
        if (!good) out[5] = NAN;
    }
    if (!st) CHECK(n_want == r->n_want - n_hidden && n_vectors == n_hidden);
    uint64_t n_keys = 0;
    for (int i = 0; i < r->n_rows; i++) n_keys += (uint64_t)r->pos[i] + 1;
    f->took_ns = f->step_ns + f->row_ns * (uint64_t)r->n_rows + f->key_ns * n_keys;
    if (f->clock) atomic_fetch_add(f->clock, f->took_ns);
    atomic_fetch_sub(&f->n_running, 1);
    return st;
}

static inline size_t fake_plan(void *ud, int n_rows, int n_logits, int n_hidden, int n_ctx) {
    (void)ud, (void)n_logits, (void)n_hidden;
    return (size_t)n_rows * 64u + (size_t)n_ctx;
}

static inline ig_backend fake_backend(fake *f, int n_ctx) {
    return (ig_backend){
        .ud = f,
        .forward = fake_forward,
        .plan = fake_plan,
        .argmax = ig_kern_reference(IG_KERN_ARGMAX, NULL)->fn.argmax,
        .exp = ig_kern_reference(IG_KERN_EXP, NULL)->fn.exp,
        .number = fake_number,
        .n_vocab = V,
        .n_ctx = n_ctx,
        .width = FAKE_WIDTH,
        .n_threads = 1,
        .kv = f->kv.n_groups ? f->kv : FAKE_KV,
        .weights_bytes = 1000,
    };
}

static inline ig_engine_config fake_config(int n_slots, int n_blocks) {
    ig_engine_config c = ig_engine_defaults();
    c.n_slots = n_slots;
    c.prefill_chunk_ms = 0; /* steps by rows alone, unless a test wants it otherwise */
    c.kv_budget_bytes = (uint64_t)n_blocks * ig_kv_block_bytes(FAKE_KV);
    c.memory_budget_bytes = 1u << 30;
    return c;
}

/* ---- the straight computation ------------------------------------------------------------------------ */

typedef struct straight {
    uint32_t token[1024];
    int n;
    ig_finish finish;
} straight;

/* What p must give, with nothing but the prompt and the sampler. */
static inline void compute_straight(straight *out, const ig_gen_params *p, int n_ctx) {
    static _Thread_local uint32_t rank[V];
    static _Thread_local int32_t id[V], some[V];
    static _Thread_local float x[V], weight[V], logits[V], prob[V];
    static _Thread_local uint32_t ids[4096];
    static _Thread_local ig_sampler s;
    uint64_t hash = 1;
    int max_tokens = p->max_tokens < n_ctx - p->n_prompt ? p->max_tokens : n_ctx - p->n_prompt;

    s.argmax = ig_kern_reference(IG_KERN_ARGMAX, NULL)->fn.argmax;
    s.exp = ig_kern_reference(IG_KERN_EXP, NULL)->fn.exp;
    s.n_vocab = V, s.rank = rank, s.id = id, s.some = some, s.x = x, s.weight = weight;
    s.prob = prob;
    ig_sampler_set_number(&s, fake_number);
    uint32_t key[2];
    ig_sample_key(key, p->sampling.seed, 0);
    memcpy(ids, p->prompt, (size_t)p->n_prompt * sizeof *ids);
    out->n = 0;
    out->finish = IG_FINISH_LENGTH;
    for (int i = 0; i < p->n_prompt; i++) {
        if (p->prompt[i] == POISON || p->prompt[i] == FAULT) out->finish = IG_FINISH_FAILED;
        hash = mix(hash, p->prompt[i]);
    }
    while (out->finish == IG_FINISH_LENGTH && out->n < max_tokens) {
        fake_logits(logits, hash);
        ig_sample_penalize(&s, logits, &p->sampling, ids, p->n_prompt + out->n);
        int token = s.round ? ig_sample_mlx(&s, logits, &p->sampling, key)
                            : ig_sample(&s, logits, &p->sampling, (uint32_t)out->n);
        ig_assert(token >= 0);
        ids[p->n_prompt + out->n] = (uint32_t)token;
        out->token[out->n++] = (uint32_t)token;
        hash = mix(hash, (uint32_t)token);
        for (int i = 0; i < p->n_eos; i++)
            if (p->eos[i] == (uint32_t)token) out->finish = IG_FINISH_STOP;
    }
}

/* Tokens are those of the straight computation; after a cancel, a beginning of them. */
static inline bool gen_is_right(const ig_gen *g, const straight *want) {
    int n = ig_gen_n_tokens(g);
    ig_finish how = ig_gen_finish(g);
    if (how != want->finish && how != IG_FINISH_CANCELED) return false;
    if (how == IG_FINISH_CANCELED ? n > want->n : n != want->n) return false;
    for (int i = 0; i < n; i++)
        if (ig_gen_token(g, i) != want->token[i]) return false;
    return true;
}

#endif
