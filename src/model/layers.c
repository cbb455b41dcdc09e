/* layers: the two shapes of a layer that dense families have, in op calls. What a family has not, a bias, a norm
 * of heads, a window, a cap, is not in its weights or its ig_attention, and the ops leave it out. */
#include "model/inside.h"

/* In the last layer of a forward: the rows that nobody wants have given their keys and values and leave. False: nobody
 * is left. When all are wanted they are copied too: it costs nothing, and the plan stays exact. */
static bool stay(ig_run *r, ig_carry *carry, ig_qkv *qkv, ig_tensor **h, const ig_rows **rows) {
    const ig_rows *all = *rows;
    if (!carry->last) return true;
    if (all->n_want == 0 || r->status != IG_OK) return false;
    qkv->q = op_pick(r, qkv->q, all->want, all->n_want);
    *h = op_pick(r, *h, all->want, all->n_want);
    op_pick_rows(r, all, &carry->rows);
    *rows = &carry->rows;
    return carry->picked = r->status == IG_OK;
}

/* Llama, Mistral, Qwen: a norm before attention and before the MLP, a SiLU gate. */
ig_tensor *ig_layer_pre_norm(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                             const ig_rows *rows, ig_tensor *h, ig_carry *carry) {
    const ig_weight *w = l->w;
    ig_tensor *x =
        op_norm(r, h, l->v[IG_V_ATTN_NORM], c->norm_eps, op_eats(w, IG_W_Q, IG_W_K, IG_W_V), NULL, 0);
    ig_qkv qkv = op_qkv(r, &l->attention, &w[IG_W_Q], &w[IG_W_K], &w[IG_W_V], x, rope, rows);
    if (!stay(r, carry, &qkv, &h, &rows)) return h;
    ig_tensor *a = op_attention(r, &l->attention, qkv, rows, (int)w[IG_W_O].fmt->act);
    h = op_linear_add(r, &w[IG_W_O], a, h);
    x = op_norm(r, h, l->v[IG_V_FFN_NORM], c->norm_eps, op_eats(w, IG_W_GATE, IG_W_UP, IG_W_UP), NULL, 0);
    x = op_glu(r, IG_GLU_SILU, &w[IG_W_GATE], &w[IG_W_UP], x, (int)w[IG_W_DOWN].fmt->act);
    return op_linear_add(r, &w[IG_W_DOWN], x, h);
}

/* Gemma 2 and 3: norms on both sides of attention and MLP, a GELU gate. */
ig_tensor *ig_layer_two_norms(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                              const ig_rows *rows, ig_tensor *h, ig_carry *carry) {
    const ig_weight *w = l->w;
    const float eps = c->norm_eps;
    ig_tensor *x = op_norm(r, h, l->v[IG_V_ATTN_NORM], eps, op_eats(w, IG_W_Q, IG_W_K, IG_W_V), NULL, 0);
    ig_qkv qkv = op_qkv(r, &l->attention, &w[IG_W_Q], &w[IG_W_K], &w[IG_W_V], x, rope, rows);
    if (!stay(r, carry, &qkv, &h, &rows)) return h;
    x = op_attention(r, &l->attention, qkv, rows, (int)w[IG_W_O].fmt->act);
    x = op_linear(r, &w[IG_W_O], x);
    h = op_norm_add(r, x, l->v[IG_V_POST_ATTN_NORM], eps, h);
    x = op_norm(r, h, l->v[IG_V_FFN_NORM], eps, op_eats(w, IG_W_GATE, IG_W_UP, IG_W_UP), NULL, 0);
    x = op_glu(r, IG_GLU_GELU, &w[IG_W_GATE], &w[IG_W_UP], x, (int)w[IG_W_DOWN].fmt->act);
    x = op_linear(r, &w[IG_W_DOWN], x);
    return op_norm_add(r, x, l->v[IG_V_POST_FFN_NORM], eps, h);
}
