/* batch: the chosen requests as rows of one forward.
 *
 * Owns:    nothing; the row tables are the engine's, one set, overwritten each step.
 * Threads: engine thread.
 * Memory:  tables for prefill_chunk + n_slots rows: decoders and late prefills are at most n_slots together,
 *          and the slice is at most the chunk.
 * Why the head sees few rows: logits cost a row of the vocabulary each, so only the last row of what is
 * known asks for them (and the rows that ig_engine_logits wants). */
#include "engine/inside.h"

void ig_batch_fill(ig_engine *e, ig_gen *const *gens, int n, ig_rows *out) {
    int n_rows = 0, n_want = 0, n_hidden = 0;

    for (int i = 0; i < n; i++) {
        ig_gen *g = gens[i];
        int first_wanted = g->last_logits ? g->n_prompt - g->n_last : g->n_ids - 1;
        ig_assert(g->n_take > 0 && n_rows + g->n_take <= e->n_rows_max);
        e->row_kv[i] = g->seq;
        for (int k = 0; k < g->n_take; k++) {
            int pos = g->seq->n_tokens + k;
            if (g->width) {
                n_hidden += g->sum || pos == g->n_prompt - 1;
            } else if (pos >= first_wanted) {
                ig_assert(n_want < e->n_logits_max);
                e->want_gen[n_want] = g;
                e->want[n_want++] = n_rows;
            }
            e->row_token[n_rows] = g->ids[pos];
            e->row_pos[n_rows] = pos;
            e->row_seq[n_rows++] = i;
        }
    }
    /* Vectors behind all logits. */
    ig_assert(n_want <= e->n_logits_max && n_hidden <= e->n_hidden_max);
    e->n_hidden = n_hidden;
    for (int row = 0; row < n_rows && n_hidden > 0; row++) {
        ig_gen *g = gens[e->row_seq[row]];
        if (!g->width || (!g->sum && e->row_pos[row] != g->n_prompt - 1)) continue;
        e->want_gen[n_want] = g;
        e->want[n_want++] = row;
    }
    *out = (ig_rows){
        .n_rows = n_rows,
        .token = e->row_token,
        .pos = e->row_pos,
        .seq = e->row_seq,
        .kv_seq = e->row_kv,
        .kv = e->kv,
        .n_ctx = e->plan.n_ctx,
        .want = e->want,
        .n_want = n_want,
    };
}

static const ig_tier_node nodes[] = {
    {.id = "batch.step", .does = "requests side by side in one forward", .tier = IG_TIER_L1,
     .oracle = "alone", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .proof = "engine: company_that_joins_and_leaves_does_not_change_a_bit",
     .when = "more than one request"},
};
NODE_EXPORT(batch, nodes);
