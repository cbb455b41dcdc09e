/* blocks: the fixed pool of key/value blocks and the sequences that hold them.
 *
 * Owns:    the two mappings, the counts, the free stack, the sequences.
 * Threads: engine thread only. Kernels write into blocks that were reserved for the step.
 * Memory:  the blocks, zeroed by the system, and one mapping for every table. Nothing after.
 * Why a block that the tree remembers is copied before it is written, though only rows behind the
 * remembered ones would change: "a block with two holders is never written" can be checked, and a row that
 * turns out bad then never touches what others read. It costs one block copy for a request. */
#include "kv/pool.h"

#include <stdlib.h>
#include <string.h>

/* ---- tables ----------------------------------------------------------------------------------------- */

/* One layout for measuring and for taking: with a counting arena nothing is stored. */
static void lay_out(ig_kv_pool *p, ig_arena *a) {
    size_t n = (size_t)p->n_blocks, n_seqs = (size_t)p->n_seqs;

    p->ref = ig_arena_take(a, n * sizeof *p->ref);
    p->free_stack = ig_arena_take(a, n * sizeof *p->free_stack);
    p->seqs = ig_arena_take(a, n_seqs * sizeof *p->seqs);
    p->seq_free = ig_arena_take(a, n_seqs * sizeof *p->seq_free);
    p->seq_table = ig_arena_take(a, n_seqs * (size_t)p->seq_blocks * sizeof *p->seq_table);
    p->nodes = ig_arena_take(a, n * sizeof *p->nodes);
    p->tokens = ig_arena_take(a, n * sizeof *p->tokens);
    p->bucket = ig_arena_take(a, (size_t)p->n_buckets * sizeof *p->bucket);
    p->heap = ig_arena_take(a, n * sizeof *p->heap);
}

static void set_counts(ig_kv_pool *p, int n_blocks, int n_seqs, int seq_tokens_max) {
    p->n_blocks = n_blocks;
    p->n_seqs = n_seqs;
    p->seq_blocks = ig_kv_blocks_for(seq_tokens_max);
    p->n_buckets = 16;
    while (p->n_buckets < n_blocks) p->n_buckets *= 2;
}

enum { BLOCKS_MAX = 1 << 24, SEQS_MAX = 1 << 12, SEQ_TOKENS_MAX = 1 << 24 };

static bool counts_ok(int n_blocks, int n_seqs, int seq_tokens_max) {
    return n_blocks >= 1 && n_blocks <= BLOCKS_MAX && n_seqs >= 1 && n_seqs <= SEQS_MAX &&
           seq_tokens_max >= 1 && seq_tokens_max <= SEQ_TOKENS_MAX;
}

size_t ig_kv_pool_table_bytes(int n_blocks, int n_seqs, int seq_tokens_max) {
    ig_kv_pool p = {0};
    ig_arena count = {.counting = true};

    ig_assert(counts_ok(n_blocks, n_seqs, seq_tokens_max));
    set_counts(&p, n_blocks, n_seqs, seq_tokens_max);
    lay_out(&p, &count);
    return count.used_bytes;
}

ig_status ig_kv_pool_make(ig_kv_pool **out, ig_kv_shape shape, int n_blocks, int n_seqs,
                          int seq_tokens_max, ig_err *err) {
    ig_status st = IG_OK;
    ig_kv_pool *p = NULL;

    if (!counts_ok(n_blocks, n_seqs, seq_tokens_max))
        return ig_fail(err, IG_EINVAL,
                       "kv pool: %d blocks (1..%d), %d sequences (1..%d) of %d tokens (1..%d)", n_blocks,
                       BLOCKS_MAX, n_seqs, SEQS_MAX, seq_tokens_max, SEQ_TOKENS_MAX);
    if (shape.n_groups < 1 || shape.n_groups > IG_KV_GROUPS_MAX)
        return ig_fail(err, IG_EINVAL, "kv pool: %d groups of layers (1..%d)", shape.n_groups,
                       IG_KV_GROUPS_MAX);
    for (int i = 0; i < shape.n_groups; i++) {
        const ig_kv_group g = shape.group[i];
        if (g.n_layers < 1 || g.n_layers > 4096 || g.n_kv_heads < 1 || g.n_kv_heads > 4096 ||
            g.head_dim < 1 || g.head_dim > 4096 || g.window < 0)
            return ig_fail(err, IG_EINVAL, "kv pool: %d layers, %d heads of %d, limit 4096 each; window %d",
                           g.n_layers, g.n_kv_heads, g.head_dim, g.window);
    }
    if ((size_t)n_blocks > SIZE_MAX / ig_kv_block_bytes(shape))
        return ig_fail(err, IG_ELIMIT, "kv pool: %d blocks of %zu bytes", n_blocks, ig_kv_block_bytes(shape));

    p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "kv pool: no memory for %zu bytes", sizeof *p);
    p->shape = shape;
    for (int i = 0; i < shape.n_groups; i++) {
        p->group_at[i] = p->block_halves;
        p->block_halves += ig_kv_group_block_bytes(shape.group[i]) / sizeof(uint16_t);
    }
    set_counts(p, n_blocks, n_seqs, seq_tokens_max);
    p->blocks_bytes = (size_t)n_blocks * ig_kv_block_bytes(shape);
    p->tables_bytes = ig_kv_pool_table_bytes(n_blocks, n_seqs, seq_tokens_max);

    st = ig_pages_map(&p->blocks_map, p->blocks_bytes, true, err);
    if (st) goto out;
    p->blocks = p->blocks_map;
    st = ig_pages_map(&p->tables_map, p->tables_bytes, false, err);
    if (st) goto out;
    lay_out(p, &(ig_arena){.base = p->tables_map, .cap_bytes = p->tables_bytes});

    /* Stacks are filled so that low numbers come first: a young pool touches few pages. */
    for (int b = 0; b < n_blocks; b++) p->free_stack[b] = n_blocks - 1 - b;
    p->n_free = n_blocks;
    for (int i = 0; i < n_seqs; i++) {
        p->seqs[i] = (ig_kv_seq){p->seq_table + (size_t)i * (size_t)p->seq_blocks, NONE, 0};
        p->seq_free[i] = n_seqs - 1 - i;
    }
    p->n_seqs_free = n_seqs;
    ig_kv_tree_init(p);
    *out = p;
    p = NULL;
out:
    ig_kv_pool_free(p);
    return st;
}

void ig_kv_pool_free(ig_kv_pool *p) {
    if (!p) return;
    if (p->blocks_map) ig_pages_unmap(p->blocks_map, p->blocks_bytes);
    if (p->tables_map) ig_pages_unmap(p->tables_map, p->tables_bytes);
    free(p);
}

ig_kv_shape ig_kv_pool_shape(const ig_kv_pool *p) {
    return p->shape;
}

uint16_t *ig_kv_at(const ig_kv_pool *p, int block, ig_kv_layer l, int kv_head) {
    ig_assert(block >= 0 && block < p->n_blocks && l.group >= 0 && l.group < p->shape.n_groups);
    const ig_kv_group *g = &p->shape.group[l.group];
    size_t head_halves = (size_t)g->head_dim * IG_KV_BLOCK_TOKENS * 2u;
    ig_assert(l.layer >= 0 && l.layer < g->n_layers && kv_head >= 0 && kv_head < g->n_kv_heads);
    return p->blocks + (size_t)block * p->block_halves + p->group_at[l.group] +
           ((size_t)l.layer * (size_t)g->n_kv_heads + (size_t)kv_head) * head_halves;
}

/* ---- blocks ----------------------------------------------------------------------------------------- */

void ig_kv_block_hold(ig_kv_pool *p, int block) {
    ig_assert(p->ref[block] > 0);
    p->ref[block]++;
    ig_kv_tree_ref_changed(p, block, p->ref[block] - 1, p->ref[block]);
}

void ig_kv_block_drop(ig_kv_pool *p, int block) {
    ig_assert(p->ref[block] > 0);
    p->ref[block]--;
    ig_kv_tree_ref_changed(p, block, p->ref[block] + 1, p->ref[block]);
    if (p->ref[block] == 0) p->free_stack[p->n_free++] = block;
}

int ig_kv_block_take(ig_kv_pool *p) {
    if (p->n_free == 0 && !ig_kv_tree_evict(p)) return NONE;
    int block = p->free_stack[--p->n_free];
    ig_assert(p->ref[block] == 0);
    p->ref[block] = 1;
    return block;
}

void ig_kv_block_copy(ig_kv_pool *p, int to, int from) {
    memcpy(p->blocks + (size_t)to * p->block_halves, p->blocks + (size_t)from * p->block_halves,
           p->block_halves * sizeof *p->blocks);
}

/* ---- sequences -------------------------------------------------------------------------------------- */

ig_kv_seq *ig_kv_seq_open(ig_kv_pool *p) {
    if (p->n_seqs_free == 0) return NULL;
    ig_kv_seq *s = &p->seqs[p->seq_free[--p->n_seqs_free]];
    s->n_blocks = s->n_tokens = 0;
    return s;
}

void ig_kv_seq_close(ig_kv_pool *p, ig_kv_seq *s) {
    ig_assert(s >= p->seqs && s < p->seqs + p->n_seqs && s->n_blocks != NONE);
    for (int i = s->n_blocks - 1; i >= 0; i--) ig_kv_block_drop(p, s->block[i]);
    s->n_blocks = NONE; /* closed: the check counts open ones only */
    s->n_tokens = 0;
    p->seq_free[p->n_seqs_free++] = (int32_t)(s - p->seqs);
}

bool ig_kv_seq_reserve(ig_kv_pool *p, ig_kv_seq *s, int n_tokens) {
    int n_blocks = ig_kv_blocks_for(n_tokens), last = s->n_blocks - 1;
    ig_assert(n_tokens >= s->n_tokens && n_blocks <= p->seq_blocks);

    int grow = n_blocks > s->n_blocks ? n_blocks - s->n_blocks : 0;
    bool writes_last = n_tokens > s->n_tokens && s->n_tokens < s->n_blocks * IG_KV_BLOCK_TOKENS;
    bool shared = writes_last && p->ref[s->block[last]] > 1;
    int available = p->n_free + p->n_cached;
    if (available < grow + shared) {
        /* Nothing to copy into: when only the tree is in the way, it forgets. */
        int b = shared ? s->block[last] : NONE;
        if (available < grow || !shared || p->ref[b] > 2 || p->nodes[b].n_tokens == 0) return false;
        ig_kv_tree_forget(p, b);
        shared = false;
    }
    if (shared) {
        int to = ig_kv_block_take(p), from = s->block[last];
        ig_assert(to != NONE);
        ig_kv_block_copy(p, to, from);
        s->block[last] = to;
        ig_kv_block_drop(p, from);
    }
    while (s->n_blocks < n_blocks) {
        int b = ig_kv_block_take(p);
        ig_assert(b != NONE); /* n_cached counts what eviction can reach */
        s->block[s->n_blocks++] = b;
    }
    return true;
}

static bool halves_finite(const uint16_t *h, size_t n, size_t stride) {
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (h[i * stride] & 0x7c00u) == 0x7c00u;
    return bad == 0;
}

static bool row_finite(const uint16_t *k, size_t dims, size_t row) {
    const uint16_t *v = k + dims * IG_KV_BLOCK_TOKENS;
    return halves_finite(k + row, dims, IG_KV_BLOCK_TOKENS) && halves_finite(v + row * dims, dims, 1);
}

static bool group_finite(const ig_kv_pool *p, const ig_kv_seq *s, int group) {
    const ig_kv_group *g = &p->shape.group[group];
    const size_t dims = (size_t)g->head_dim, row = (size_t)(s->n_tokens - 1) % IG_KV_BLOCK_TOKENS;
    const int n_blocks = ig_kv_blocks_for(s->n_tokens);
    for (int head = 0; head < g->n_kv_heads; head++) {
        for (int i = 0; i < n_blocks; i++) {
            const uint16_t *k = ig_kv_at(p, s->block[i], (ig_kv_layer){group, g->n_layers - 1}, head);
            if (!halves_finite(k, 2 * dims * IG_KV_BLOCK_TOKENS, 1)) return false;
        }
        for (int layer = 0; layer < g->n_layers; layer++)
            if (!row_finite(ig_kv_at(p, s->block[n_blocks - 1], (ig_kv_layer){group, layer}, head), dims, row))
                return false;
    }
    return true;
}

bool ig_kv_seq_finite(const ig_kv_pool *p, const ig_kv_seq *s) {
    if (s->n_tokens == 0) return true;
    for (int g = 0; g < p->shape.n_groups; g++)
        if (!group_finite(p, s, g)) return false;
    return true;
}

void ig_kv_seq_scrub(ig_kv_pool *p, ig_kv_seq *s) {
    for (int i = 0; i < s->n_blocks; i++) {
        size_t at = (size_t)s->block[i] * p->block_halves;
        if (p->ref[s->block[i]] == 1) memset(p->blocks + at, 0, p->block_halves * sizeof *p->blocks);
    }
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

ig_kv_stats ig_kv_pool_stats(const ig_kv_pool *p) {
    return (ig_kv_stats){
        .n_blocks = p->n_blocks,
        .n_free = p->n_free,
        .n_cached = p->n_cached,
        .n_lookup_tokens = p->n_lookup_tokens,
        .n_hit_tokens = p->n_hit_tokens,
        .n_evicted = p->n_evicted,
    };
}

bool ig_kv_pool_check(const ig_kv_pool *p, ig_err *err) {
    for (int b = 0; b < p->n_blocks; b++) {
        int held = p->nodes[b].n_tokens > 0;
        for (int i = 0; i < p->n_seqs; i++)
            for (int k = 0; k < p->seqs[i].n_blocks; k++) held += p->seqs[i].block[k] == b;
        for (int i = 0; i < p->n_free; i++)
            if (p->free_stack[i] == b && held) {
                ig_fail(err, IG_EINVAL, "block %d is free and held %d times", b, held);
                return false;
            }
        if (held != p->ref[b]) {
            ig_fail(err, IG_EINVAL, "block %d: count %d, held %d times", b, p->ref[b], held);
            return false;
        }
    }
    int n_held = 0;
    for (int b = 0; b < p->n_blocks; b++) n_held += p->ref[b] > 0;
    if (n_held + p->n_free != p->n_blocks) {
        ig_fail(err, IG_EINVAL, "%d blocks held and %d free of %d", n_held, p->n_free, p->n_blocks);
        return false;
    }
    return ig_kv_tree_check(p, err);
}
