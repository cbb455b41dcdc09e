/* embedding: vectors of texts, as many at a time as there are slots, in steps of at most `chunk` rows. A text that is
 * done makes room for the next, and long ones are cut: a row's bits depend on neither.
 * Threads: one at a time. Memory: KV blocks of all slots, rows of a step and its arena, all taken at the start. */
#include "model/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    ig_kv_seq *seq;
    int text, n_done;
} slot;

struct ig_embedder {
    ig_model *m;
    ig_kv_pool *kv;
    ig_arena arena;
    slot *slots;
    ig_kv_seq **seqs; /* of the slots */
    uint32_t *token;  /* [chunk], as are pos, seq and want */
    int *pos, *seq, *want;
    float *rows; /* [n_slots][width] */
    int n_slots, n_ctx, chunk;
};

ig_status ig_embedder_make(ig_embedder **out, ig_model *m, int n_slots, int n_ctx, int chunk, ig_err *err) {
    ig_assert(n_slots > 0 && n_ctx > 0 && chunk > 0);
    const ig_kv_shape shape = ig_model_kv_shape(m);
    const size_t n = (size_t)n_slots, rows = (size_t)chunk;
    ig_embedder *e = calloc(1, sizeof *e);
    ig_status st = IG_OK;
    if (!e) return ig_fail(err, IG_ELIMIT, "no memory for an embedder");
    e->m = m, e->n_slots = n_slots, e->n_ctx = n_ctx, e->chunk = chunk;
    e->slots = calloc(n, sizeof *e->slots), e->seqs = calloc(n, sizeof(ig_kv_seq *));
    e->token = calloc(rows, sizeof *e->token), e->pos = calloc(rows, sizeof *e->pos);
    e->seq = calloc(rows, sizeof *e->seq), e->want = calloc(rows, sizeof *e->want);
    e->rows = calloc(n, (size_t)m->config.width * sizeof *e->rows);
    e->arena.cap_bytes = (ig_model_plan(m, chunk, chunk < n_slots ? chunk : n_slots, n_ctx) + 63) / 64 * 64;
    e->arena.base = aligned_alloc(IG_ALIGN_BYTES, e->arena.cap_bytes);
    if (!e->slots || !e->seqs || !e->token || !e->pos || !e->seq || !e->want || !e->rows || !e->arena.base)
        st = ig_fail(err, IG_ELIMIT, "no memory for steps of %d rows (%zu bytes)", chunk, e->arena.cap_bytes);
    if (!st)
        st =
            ig_kv_pool_make(&e->kv, shape, ig_kv_room_for(shape, n_slots, n_ctx, chunk), n_slots, n_ctx, err);
    if (st)
        ig_embedder_free(e);
    else
        *out = e;
    return st;
}

void ig_embedder_free(ig_embedder *e) {
    if (!e) return;
    if (e->kv) ig_kv_pool_free(e->kv);
    free(e->slots), free(e->seqs), free(e->token), free(e->pos), free(e->seq), free(e->want), free(e->rows);
    free(e->arena.base), free(e);
}

/* Rows of as many texts as fit; gives how many. */
static int fill(ig_embedder *e, const ig_token_list *texts, int n, int *next, int *n_want) {
    int rows = 0;
    *n_want = 0;
    for (int i = 0; i < e->n_slots && rows < e->chunk; i++) {
        slot *s = &e->slots[i];
        if (!s->seq && *next < n) {
            *s = (slot){.seq = ig_kv_seq_open(e->kv), .text = (*next)++};
            ig_assert(s->seq != NULL); /* there are as many as slots */
            e->seqs[i] = s->seq;
        }
        if (!s->seq) continue;
        const ig_token_list *t = &texts[s->text];
        int take = t->n - s->n_done;
        if (take > e->chunk - rows) take = e->chunk - rows;
        ig_assert(ig_kv_seq_reserve(e->kv, s->seq, s->n_done + take)); /* the room was counted */
        for (int k = 0; k < take; k++, rows++)
            e->token[rows] = t->v[s->n_done + k], e->pos[rows] = s->n_done + k, e->seq[rows] = i;
        s->n_done += take;
        if (s->n_done == t->n) e->want[(*n_want)++] = rows - 1;
    }
    return rows;
}

static void close_done(ig_embedder *e, const ig_token_list *texts, bool all) {
    for (int i = 0; i < e->n_slots; i++) {
        slot *s = &e->slots[i];
        if (!s->seq) continue;
        s->seq->n_tokens = s->n_done;
        if (!all && s->n_done < texts[s->text].n) continue;
        ig_kv_seq_close(e->kv, s->seq);
        s->seq = NULL;
    }
}

ig_status ig_embedder_run(ig_embedder *e, const ig_token_list *texts, int n, float *vectors, ig_err *err) {
    const size_t width = (size_t)e->m->config.width;
    int next = 0, n_want = 0;
    ig_status st = IG_OK;
    for (int i = 0; i < n; i++) {
        if (texts[i].n < 1 || texts[i].n > e->n_ctx)
            return ig_fail(err, IG_EINVAL, "text %d has %d tokens, 1 to %d fit", i, texts[i].n, e->n_ctx);
        for (int k = 0; k < texts[i].n; k++)
            if (texts[i].v[k] >= (uint32_t)e->m->config.n_vocab)
                return ig_fail(err, IG_EINVAL, "text %d: token %u is not in the vocabulary of %d", i,
                               texts[i].v[k], e->m->config.n_vocab);
    }
    for (int rows; !st && (rows = fill(e, texts, n, &next, &n_want)) > 0;) {
        const ig_rows batch = {.n_rows = rows,
                               .token = e->token,
                               .pos = e->pos,
                               .seq = e->seq,
                               .kv_seq = e->seqs,
                               .kv = e->kv,
                               .n_ctx = e->n_ctx,
                               .want = e->want,
                               .n_want = n_want};
        st = ig_model_hidden(e->m, &e->arena, &batch, e->rows, err);
        for (int i = 0; !st && i < n_want; i++)
            memcpy(vectors + (size_t)e->slots[e->seq[e->want[i]]].text * width, e->rows + (size_t)i * width,
                   width * sizeof *vectors);
        close_done(e, texts, st != IG_OK);
    }
    return st;
}

ig_status ig_embedding_finish(float *v, int n, ig_err *err) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
    if (!(sum > 0.0 && sum < (double)INFINITY))
        return ig_fail(err, IG_EINVAL, "a row of %d values whose squares sum to %g has no direction", n, sum);
    const double scale = 1.0 / sqrt(sum);
    for (int i = 0; i < n; i++) v[i] = (float)((double)v[i] * scale);
    return IG_OK;
}

static const ig_tier_node nodes[] = {
    {.id = "embed.pool", .does = "the last row of a text, made a vector of length 1", .tier = IG_TIER_L3,
     .oracle = "mlx-lm", .gate = IG_GATE_KL, .in = {"on", "on", "on"},
     .proof = "model: vectors_are_mlx_lms_and_the_same_bits_alone_in_a_batch_and_in_chunks",
     .when = "ingle embed"},
};
NODE_EXPORT(embedding, nodes);
