/* forward: embed, the layers, norm and head. One function for prefill, decode, training and the plan: they
 * differ by what is in ig_run and by the rows. Between layers only h lives on: the arena is rewound. */
#include "model/inside.h"

#include <string.h>

void ig_model_run(const ig_model *m, ig_run *r, const ig_rows *rows, float *logits) {
    const ig_model_config *c = &m->config;
    const ig_rope *rope[IG_ROPES] = {NULL};
    for (int i = 0; i < IG_ROPES; i++)
        if (m->inv_freq[i]) rope[i] = op_rope(r, rows, m->inv_freq[i], c->head_dim / 2);
    ig_tensor *h = op_embed(r, &m->top.w[IG_TOP_EMBED], rows, c->embed_scale);
    for (int i = 0; i < c->n_layers; i++) {
        size_t mark = ig_arena_mark(r->arena);
        const ig_layer *l = &m->layers[i];
        h = m->family->layer(r, c, l, rope[l->rope], rows, h);
        if (!r->tape) ig_arena_rewind(r->arena, mark);
        if (r->status != IG_OK) return;
    }
    if (rows->n_want == 0) return;
    const ig_weight *head = &m->top.w[IG_TOP_HEAD];
    ig_tensor *x =
        op_norm(r, h, m->top.v[IG_TOP_NORM], c->norm_eps, (int)head->fmt->act, rows->want, rows->n_want);
    op_head(r, head, x, logits, (size_t)c->n_vocab);
}

ig_status ig_model_forward(ig_model *m, ig_arena *arena, const ig_rows *rows, float *logits, ig_err *err) {
    ig_assert(rows->n_rows > 0 && (rows->n_want == 0 || logits != NULL));
    size_t mark = ig_arena_mark(arena);
    ig_run r = {.arena = arena, .pool = m->pool, .kern = &m->kern};
    ig_model_run(m, &r, rows, logits);
    ig_arena_rewind(arena, mark);
    if (r.status != IG_OK && err) *err = r.err;
    return r.status;
}
