/* forward: embed, the layers, norm and head. One function for prefill, decode, training and the plan: they
 * differ by what is in ig_run and by the rows. Between layers only h lives on: the arena is rewound. From the last
 * layer's attention on only the rows whose logits are wanted are left (layers.c). */
#include "model/inside.h"

#include <string.h>

ig_model_ropes ig_model_ropes_of(const ig_model *m, ig_run *r, const ig_rows *rows) {
    ig_model_ropes ropes = {{NULL}};
    for (int i = 0; i < IG_ROPES; i++)
        if (m->mlx_freq[i])
            ropes.v[i] = op_rope_rounded(r, rows, m->mlx_freq[i], m->config.head_dim / 2, m->mlx_step[i], m->mlx_before[i]);
        else if (m->inv_freq[i])
            ropes.v[i] = op_rope(r, rows, m->inv_freq[i], m->config.head_dim / 2, m->rope_scale[i]);
    return ropes;
}

ig_carry ig_model_embed(const ig_model *m, ig_run *r, const ig_rows *rows, bool needs_g) {
    ig_carry carry = {.h = op_embed(r, &m->top.w[IG_TOP_EMBED], rows, m->config.embed_scale)};
    if (carry.h) carry.h->needs_g = needs_g;
    return carry;
}

void ig_model_layers(const ig_model *m, ig_run *r, const ig_rows *rows, const ig_model_ropes *ropes,
                     int first, int last, ig_carry *carry) {
    ig_assert(0 <= first && first <= last && last <= m->config.n_layers);
    for (int i = first; i < last && r->status == IG_OK; i++) {
        const size_t mark = ig_arena_mark(r->arena);
        const ig_layer *l = &m->layers[i];
        const int n_shared = carry->n_shared;
        carry->last = !r->train && i == m->config.n_layers - 1;
        carry->h = m->family->layer(r, &m->config, l, ropes->v[l->rope], rows, carry->h, carry);
        if (!r->tape && carry->n_shared == n_shared && !carry->picked) ig_arena_rewind(r->arena, mark);
    }
}

ig_loss *ig_model_loss(const ig_model *m, ig_run *r, const ig_rows *rows, const ig_carry *carry,
                       const uint32_t *target, ig_head_kind kind, bool grad) {
    const ig_head head = {&m->top.w[IG_TOP_HEAD], m->config.final_softcap, kind};
    ig_tensor *x = op_norm(r, carry->h, m->top.v[IG_TOP_NORM], m->config.norm_eps, IG_ACT_F32, rows->want,
                           rows->n_want);
    return op_loss(r, &head, x, target, grad);
}

/* Of n of the wanted rows, the first of them number `from`. */
static ig_tensor *final_norm(const ig_model *m, ig_run *r, const ig_rows *rows, const ig_carry *carry, int from,
                             int n, int need) {
    ig_tensor part = *carry->h;
    if (carry->picked) {
        part.n_rows = n;
        if (part.f) part.f += (size_t)from * (size_t)part.n_cols;
    }
    return op_norm(r, &part, m->top.v[IG_TOP_NORM], m->config.norm_eps, need, carry->picked ? NULL : rows->want + from, n);
}

void ig_model_run(const ig_model *m, ig_run *r, const ig_rows *rows, ig_model_out out) {
    const ig_model_config *c = &m->config;
    const ig_model_ropes ropes = ig_model_ropes_of(m, r, rows);
    ig_carry carry = ig_model_embed(m, r, rows, false);
    ig_model_layers(m, r, rows, &ropes, 0, c->n_layers, &carry);
    if (rows->n_want == 0 || r->status != IG_OK) return;
    const ig_head head = {.w = &m->top.w[IG_TOP_HEAD], .softcap = c->final_softcap};
    const int n_logits = rows->n_want - out.n_hidden;
    const size_t mark = ig_arena_mark(r->arena);
    if (n_logits > 0) {
        ig_tensor *x = final_norm(m, r, rows, &carry, 0, n_logits, (int)head.w->fmt->act);
        op_head(r, &head, x, out.logits, (size_t)c->n_vocab);
        if (out.n_hidden > 0) ig_arena_rewind(r->arena, mark);
    }
    if (out.n_hidden == 0 || r->status != IG_OK) return;
    const ig_tensor *x = final_norm(m, r, rows, &carry, n_logits, out.n_hidden, IG_ACT_F32);
    if (x && x->f) memcpy(out.hidden, x->f, (size_t)out.n_hidden * (size_t)c->width * sizeof *x->f);
}

static ig_status forward(ig_model *m, ig_arena *arena, const ig_rows *rows, ig_model_out out, ig_err *err) {
    size_t mark = ig_arena_mark(arena);
    ig_run r = {.arena = arena, .pool = m->pool, .kern = &m->kern, .two_parts = m->two_parts,
                .trace = m->watch, .trace_ud = m->watch_ud, .tap = m->tap, .tap_ud = m->tap_ud};
    ig_model_run(m, &r, rows, out);
    ig_arena_rewind(arena, mark);
    if (r.status != IG_OK && err) *err = r.err;
    return r.status;
}

void ig_model_watch(ig_model *m, ig_trace_fn *trace, void *ud) {
    m->watch = trace;
    m->watch_ud = ud;
}

void ig_model_tap(ig_model *m, ig_tap_fn *tap, void *ud) {
    m->tap = tap;
    m->tap_ud = ud;
}

ig_status ig_model_forward(ig_model *m, ig_arena *arena, const ig_rows *rows, float *logits, ig_err *err) {
    ig_assert(rows->n_rows > 0 && (rows->n_want == 0 || logits != NULL));
    return ig_model_step(m, arena, rows, logits, NULL, 0, err);
}

ig_status ig_model_hidden(ig_model *m, ig_arena *arena, const ig_rows *rows, float *hidden, ig_err *err) {
    ig_assert(rows->n_rows > 0 && (rows->n_want == 0 || hidden != NULL));
    return ig_model_step(m, arena, rows, NULL, hidden, rows->n_want, err);
}

ig_status ig_model_step(ig_model *m, ig_arena *arena, const ig_rows *rows, float *logits, float *hidden, int n_hidden,
                        ig_err *err) {
    ig_assert(n_hidden >= 0 && n_hidden <= rows->n_want && (n_hidden == 0 || hidden));
    if (m->config.no_head && rows->n_want > n_hidden)
        return ig_fail(err, IG_EINVAL, "this model has no head: it gives vectors of texts and no tokens");
    return forward(m, arena, rows, (ig_model_out){logits, hidden, n_hidden}, err);
}

static const ig_tier_node nodes[] = {
    {.id = "model.forward", .does = "embedding, layers, last norm and head, in this order",
     .tier = IG_TIER_L1, .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"},
     .proof = "tests/parity"},
};
NODE_EXPORT(forward, nodes);
