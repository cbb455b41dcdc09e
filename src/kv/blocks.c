/* blocks: the fixed pool of key/value blocks and the sequences that hold them.
 *
 * Owns:    the two mappings, the counts, the free stack, the sequences.
 * Threads: engine thread only. Kernels write into blocks that were reserved for the step.
 * Memory:  the blocks, zeroed by the system, and one mapping for every table. Nothing after.
 * Why a block that the tree remembers is copied before it is written, though only rows behind the
 * remembered ones would change: "a block with two holders is never written" can be checked, and a row that
 * turns out bad then never touches what others read. It costs one block copy for a request. */
#include "kv/pool.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ----------------------------------------------------------------------------------------- */

/* One layout for measuring and for taking: with a counting arena nothing is stored. */
static void lay_out(ig_kv_pool *p, ig_arena *a) {
    const size_t n_nodes = (size_t)p->group[p->main].n_blocks, n_seqs = (size_t)p->n_seqs;

    for (int i = 0; i < p->n_groups; i++) {
        group *g = &p->group[i];
        const size_t n = (size_t)g->n_blocks;
        g->ref = ig_arena_take(a, n * sizeof *g->ref);
        g->free_stack = ig_arena_take(a, n * sizeof *g->free_stack);
        g->entry = ig_arena_take(a, n * sizeof *g->entry);
        g->heap = ig_arena_take(a, n * sizeof *g->heap);
        if (i != p->main) g->hung = ig_arena_take(a, n_nodes * sizeof *g->hung);
    }
    p->seqs = ig_arena_take(a, n_seqs * sizeof *p->seqs);
    p->seq_free = ig_arena_take(a, n_seqs * sizeof *p->seq_free);
    p->seq_table =
        ig_arena_take(a, n_seqs * (size_t)(p->n_groups * p->seq_blocks) * sizeof *p->seq_table);
    p->nodes = ig_arena_take(a, n_nodes * sizeof *p->nodes);
    p->tokens = ig_arena_take(a, n_nodes * sizeof *p->tokens);
    p->bucket = ig_arena_take(a, (size_t)p->n_buckets * sizeof *p->bucket);
}

static void set_counts(ig_kv_pool *p, ig_kv_shape shape, ig_kv_room room, int n_seqs, int seq_tokens_max) {
    p->shape = ig_kv_kept(shape);
    p->n_groups = shape.n_groups;
    for (int i = 0; i < p->n_groups; i++) {
        p->group[i].shape = p->shape.group[i];
        p->group[i].n_blocks = room.n_blocks[i];
        p->group[i].block_bytes = ig_kv_group_block_bytes(p->shape.group[i]);
    }
    while (p->shape.group[p->main].window > 0) p->main++;
    p->n_seqs = n_seqs;
    p->seq_blocks = ig_kv_blocks_for(seq_tokens_max);
    p->n_buckets = 16;
    while (p->n_buckets < room.n_blocks[p->main]) p->n_buckets *= 2;
}

enum { BLOCKS_MAX = 1 << 24, SEQS_MAX = 1 << 12, SEQ_TOKENS_MAX = 1 << 24 };

static ig_status check_counts(ig_kv_shape shape, ig_kv_room room, int n_seqs, int seq_tokens_max,
                              ig_err *err) {
    if (shape.n_groups < 1 || shape.n_groups > IG_KV_GROUPS_MAX)
        return ig_fail(err, IG_EINVAL, "kv pool: %d groups of layers (1..%d)", shape.n_groups,
                       IG_KV_GROUPS_MAX);
    if (n_seqs < 1 || n_seqs > SEQS_MAX || seq_tokens_max < 1 || seq_tokens_max > SEQ_TOKENS_MAX)
        return ig_fail(err, IG_EINVAL, "kv pool: %d sequences (1..%d) of %d tokens (1..%d)", n_seqs, SEQS_MAX,
                       seq_tokens_max, SEQ_TOKENS_MAX);
    size_t left = SIZE_MAX;
    for (int i = 0; i < shape.n_groups; i++) {
        const ig_kv_group g = shape.group[i];
        if (g.kind != IG_KV_F16 && g.kind != IG_KV_BF16 && g.kind != IG_KV_8 && !ig_kv_is_twice(g.kind))
            return ig_fail(err, IG_EINVAL, "kv pool: kind %d of keys and values", (int)g.kind);
        if (g.kind == IG_KV_8 && g.head_dim % IG_KV_GROUP != 0)
            return ig_fail(err, IG_EINVAL, "kv pool: 8 bits for heads of %d, a multiple of %d is needed", g.head_dim,
                           IG_KV_GROUP);
        if (g.n_layers < 1 || g.n_layers > 4096 || g.n_kv_heads < 1 || g.n_kv_heads > 4096 ||
            g.head_dim < 1 || g.head_dim > 4096 || g.window < 0)
            return ig_fail(err, IG_EINVAL, "kv pool: %d layers, %d heads of %d, limit 4096 each; window %d",
                           g.n_layers, g.n_kv_heads, g.head_dim, g.window);
        if (room.n_blocks[i] < 1 || room.n_blocks[i] > BLOCKS_MAX)
            return ig_fail(err, IG_EINVAL, "kv pool: %d blocks (1..%d) of group %d", room.n_blocks[i],
                           BLOCKS_MAX, i);
        if ((size_t)room.n_blocks[i] > left / ig_kv_group_block_bytes(g))
            return ig_fail(err, IG_ELIMIT, "kv pool: %d blocks of %zu bytes", room.n_blocks[i],
                           ig_kv_group_block_bytes(g));
        left -= (size_t)room.n_blocks[i] * ig_kv_group_block_bytes(g);
    }
    return IG_OK;
}

ig_kv_room ig_kv_room_for(ig_kv_shape s, int n_seqs, int n_tokens, int n_rows) {
    ig_kv_room r = {{0}};
    s = ig_kv_kept(s);
    for (int g = 0; g < s.n_groups; g++)
        r.n_blocks[g] = n_seqs * ig_kv_held_most(s.group[g], n_tokens, n_rows);
    return r;
}

size_t ig_kv_room_bytes(ig_kv_shape s, ig_kv_room r) {
    size_t n = 0;
    for (int g = 0; g < s.n_groups; g++) n += (size_t)r.n_blocks[g] * ig_kv_group_block_bytes(s.group[g]);
    return n;
}

size_t ig_kv_pool_table_bytes(ig_kv_shape shape, ig_kv_room room, int n_seqs, int seq_tokens_max) {
    ig_kv_pool p = {0};
    ig_arena count = {.counting = true};

    ig_assert(check_counts(shape, room, n_seqs, seq_tokens_max, NULL) == IG_OK);
    set_counts(&p, shape, room, n_seqs, seq_tokens_max);
    lay_out(&p, &count);
    return count.used_bytes;
}

static void fill_tables(ig_kv_pool *p) {
    for (int i = 0; i < p->n_groups; i++) {
        group *g = &p->group[i];
        /* Stacks are filled so that low numbers come first: a young pool touches few pages. */
        for (int b = 0; b < g->n_blocks; b++) g->free_stack[b] = g->n_blocks - 1 - b;
        g->n_free = g->n_blocks;
    }
    for (int i = 0; i < p->n_seqs; i++) {
        ig_kv_seq *s = &p->seqs[i];
        for (int g = 0; g < p->n_groups; g++)
            s->block[g] = p->seq_table + (size_t)(i * p->n_groups + g) * (size_t)p->seq_blocks;
        s->n_blocks = NONE;
        p->seq_free[i] = p->n_seqs - 1 - i;
    }
    p->n_seqs_free = p->n_seqs;
    ig_kv_tree_init(p);
}

ig_status ig_kv_pool_make(ig_kv_pool **out, ig_kv_shape shape, ig_kv_room room, int n_seqs,
                          int seq_tokens_max, ig_err *err) {
    ig_kv_pool *p = NULL;
    ig_status st = check_counts(shape, room, n_seqs, seq_tokens_max, err);
    if (st) return st;

    p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "kv pool: no memory for %zu bytes", sizeof *p);
    set_counts(p, shape, room, n_seqs, seq_tokens_max);
    p->blocks_bytes = ig_kv_room_bytes(shape, room);
    p->tables_bytes = ig_kv_pool_table_bytes(shape, room, n_seqs, seq_tokens_max);

    st = ig_pages_map(&p->blocks_map, p->blocks_bytes, true, err);
    if (st) goto out;
    st = ig_pages_map(&p->tables_map, p->tables_bytes, false, err);
    if (st) goto out;
    uint8_t *blocks = p->blocks_map;
    for (int i = 0; i < p->n_groups; i++) {
        p->group[i].blocks = blocks;
        blocks += (size_t)p->group[i].n_blocks * p->group[i].block_bytes;
    }
    lay_out(p, &(ig_arena){.base = p->tables_map, .cap_bytes = p->tables_bytes});
    fill_tables(p);
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

void *ig_kv_at(const ig_kv_pool *p, int block, ig_kv_layer l, int kv_head) {
    ig_assert(l.group >= 0 && l.group < p->n_groups);
    const group *g = &p->group[l.group];
    ig_assert(block >= 0 && block < g->n_blocks); /* NONE: has left the window */
    ig_assert(l.layer >= 0 && l.layer < g->shape.n_layers && kv_head >= 0 && kv_head < g->shape.n_kv_heads);
    return g->blocks + (size_t)block * g->block_bytes +
           ((size_t)l.layer * (size_t)g->shape.n_kv_heads + (size_t)kv_head) * 2u *
               ig_kv_part_bytes(g->shape.kind, g->shape.head_dim);
}

/* ---- blocks ----------------------------------------------------------------------------------------- */

void ig_kv_block_hold(ig_kv_pool *p, int g, int block) {
    int32_t *ref = &p->group[g].ref[block];
    ig_assert(*ref > 0);
    ++*ref;
    ig_kv_tree_ref_changed(p, g, block, *ref - 1, *ref);
}

void ig_kv_block_drop(ig_kv_pool *p, int g, int block) {
    int32_t *ref = &p->group[g].ref[block];
    ig_assert(*ref > 0);
    --*ref;
    ig_kv_tree_ref_changed(p, g, block, *ref + 1, *ref);
    if (*ref == 0) p->group[g].free_stack[p->group[g].n_free++] = block;
}

int ig_kv_block_take(ig_kv_pool *p, int g) {
    group *of = &p->group[g];
    if (of->n_free == 0 && !ig_kv_tree_evict(p, g)) return NONE;
    int block = of->free_stack[--of->n_free];
    ig_assert(of->ref[block] == 0);
    of->ref[block] = 1;
    return block;
}

static uint8_t *bytes_of(const group *g, int block) {
    return g->blocks + (size_t)block * g->block_bytes;
}

void ig_kv_block_copy(ig_kv_pool *p, int g, int to, int from) {
    const group *of = &p->group[g];
    memcpy(bytes_of(of, to), bytes_of(of, from), of->block_bytes);
}

/* ---- sequences -------------------------------------------------------------------------------------- */

static void empty(ig_kv_pool *p, ig_kv_seq *s) {
    for (int g = 0; g < p->n_groups; g++) s->first[g] = 0;
    s->n_blocks = s->n_tokens = s->n_checked = 0;
    s->ring_from = s->quantized_from = s->chunk_tokens = INT_MAX;
    s->spoiled = false;
}

ig_kv_seq *ig_kv_seq_open(ig_kv_pool *p) {
    if (p->n_seqs_free == 0) return NULL;
    ig_kv_seq *s = &p->seqs[p->seq_free[--p->n_seqs_free]];
    empty(p, s);
    return s;
}

void ig_kv_seq_drop_blocks(ig_kv_pool *p, ig_kv_seq *s) {
    for (int g = 0; g < p->n_groups; g++)
        for (int i = s->n_blocks - 1; i >= s->first[g]; i--) ig_kv_block_drop(p, g, s->block[g][i]);
    empty(p, s);
}

void ig_kv_seq_close(ig_kv_pool *p, ig_kv_seq *s) {
    ig_assert(s >= p->seqs && s < p->seqs + p->n_seqs && s->n_blocks != NONE);
    ig_kv_seq_drop_blocks(p, s);
    s->n_blocks = NONE; /* closed: the check counts open ones only */
    p->seq_free[p->n_seqs_free++] = (int32_t)(s - p->seqs);
}

/* ---- finite or not ---------------------------------------------------------------------------------- */

static bool halves_finite(ig_kv_kind kind, const uint16_t *h, size_t n, size_t stride) {
    const unsigned exponent = kind == IG_KV_BF16 || kind == IG_KV_BF16_TWICE ? 0x7f80u : 0x7c00u;
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (h[i * stride] & exponent) == exponent;
    return bad == 0;
}

/* K and V of one head: of 16 bits all of it, twice or not, of 8 bits the scales. */
static bool head_finite(const ig_kv_group *of, const uint8_t *k) {
    const size_t bytes = ig_kv_part_bytes(of->kind, of->head_dim), n = (size_t)of->head_dim * IG_KV_BLOCK_TOKENS;
    const uint16_t *halves = (const uint16_t *)(const void *)k;
    if (of->kind != IG_KV_8) return halves_finite(of->kind, halves, 2 * bytes / sizeof *halves, 1);
    return halves_finite(IG_KV_8, ig_kv_scales(k, of->head_dim), n / IG_KV_GROUP, 1) &&
           halves_finite(IG_KV_8, ig_kv_scales(k + bytes, of->head_dim), n / IG_KV_GROUP, 1);
}

/* The same of one position. */
static bool row_finite(const ig_kv_group *of, const uint8_t *k, size_t row) {
    const uint8_t *v = k + ig_kv_part_bytes(of->kind, of->head_dim);
    const size_t dims = (size_t)of->head_dim;
    if (of->kind != IG_KV_8) {
        const size_t times = ig_kv_is_twice(of->kind) ? 2 : 1, part = dims * IG_KV_BLOCK_TOKENS;
        bool finite = halves_finite(of->kind, (const uint16_t *)(const void *)k + row, times * dims, IG_KV_BLOCK_TOKENS);
        for (size_t i = 0; i < times && finite; i++)
            finite = halves_finite(of->kind, (const uint16_t *)(const void *)v + i * part + row * dims, dims, 1);
        return finite;
    }
    return halves_finite(IG_KV_8, ig_kv_scales(k, of->head_dim) + row, dims / IG_KV_GROUP, IG_KV_BLOCK_TOKENS) &&
           halves_finite(IG_KV_8, ig_kv_scales(v, of->head_dim) + row, dims / IG_KV_GROUP, IG_KV_BLOCK_TOKENS);
}

/* The last layer of every group, at position block i. */
static bool block_finite(const ig_kv_pool *p, const ig_kv_seq *s, int i) {
    for (int g = 0; g < p->n_groups; g++) {
        const ig_kv_group *of = &p->shape.group[g];
        for (int head = 0; head < of->n_kv_heads && i >= s->first[g]; head++)
            if (!head_finite(of, ig_kv_at(p, s->block[g][i], (ig_kv_layer){g, of->n_layers - 1}, head))) return false;
    }
    return true;
}

static bool last_row_finite(const ig_kv_pool *p, const ig_kv_seq *s) {
    const int at = s->n_tokens - 1, row = at % IG_KV_BLOCK_TOKENS;
    for (int g = 0; g < p->n_groups; g++) {
        const ig_kv_group *of = &p->shape.group[g];
        if (at / IG_KV_BLOCK_TOKENS < s->first[g]) continue; /* window 1: seen when it went */
        const int block = s->block[g][at / IG_KV_BLOCK_TOKENS];
        for (int layer = 0; layer < of->n_layers; layer++)
            for (int head = 0; head < of->n_kv_heads; head++)
                if (!row_finite(of, ig_kv_at(p, block, (ig_kv_layer){g, layer}, head), (size_t)row)) return false;
    }
    return true;
}

bool ig_kv_seq_finite(const ig_kv_pool *p, ig_kv_seq *s) {
    const int n_whole = s->n_tokens / IG_KV_BLOCK_TOKENS;
    for (; s->n_checked < n_whole && !s->spoiled; s->n_checked++)
        s->spoiled = !block_finite(p, s, s->n_checked);
    if (s->spoiled) return false;
    if (s->n_tokens % IG_KV_BLOCK_TOKENS != 0 && !block_finite(p, s, n_whole)) return false;
    return s->n_tokens == 0 || last_row_finite(p, s);
}

static void scrub_block(ig_kv_pool *p, int g, int block) {
    group *of = &p->group[g];
    if (of->ref[block] == 1) memset(bytes_of(of, block), 0, of->block_bytes);
}

void ig_kv_seq_scrub(ig_kv_pool *p, ig_kv_seq *s) {
    for (int g = 0; g < p->n_groups; g++)
        for (int i = s->first[g]; i < s->n_blocks; i++) scrub_block(p, g, s->block[g][i]);
    s->n_checked = 0;
    s->spoiled = false;
}

/* ---- more blocks ------------------------------------------------------------------------------------ */

/* The first block that the row at n_tokens reads. */
static int keep_from(const ig_kv_pool *p, const ig_kv_seq *s, int g) {
    return ig_kv_first_block(p->shape.group[g], s->n_tokens);
}

bool ig_kv_seq_forgets(const ig_kv_pool *p, const ig_kv_seq *s) {
    for (int g = 0; g < p->n_groups; g++)
        for (int i = s->first[g]; i < keep_from(p, s, g); i++)
            if (p->group[g].ref[s->block[g][i]] == 1) return true;
    return false;
}

/* What left the window goes; never unseen. */
static void give_back(ig_kv_pool *p, ig_kv_seq *s) {
    for (int g = 0; g < p->n_groups; g++) {
        const int from = keep_from(p, s, g);
        if (s->first[g] >= from) continue;
        if (!ig_kv_seq_finite(p, s)) s->spoiled = true; /* what says so may be among what goes */
        for (int i = s->first[g]; i < from; i++) {
            if (s->spoiled) scrub_block(p, g, s->block[g][i]);
            ig_kv_block_drop(p, g, s->block[g][i]);
            s->block[g][i] = NONE;
        }
        s->first[g] = from;
    }
}

bool ig_kv_seq_reserve(ig_kv_pool *p, ig_kv_seq *s, int n_tokens) {
    const int n_blocks = ig_kv_blocks_for(n_tokens), at = s->n_tokens / IG_KV_BLOCK_TOKENS;
    const int grow = n_blocks > s->n_blocks ? n_blocks - s->n_blocks : 0;
    const bool writes = n_tokens > s->n_tokens && at < s->n_blocks; /* into a block that is there */
    ig_assert(n_tokens >= s->n_tokens && n_blocks <= p->seq_blocks);

    give_back(p, s);
    for (int g = 0; g < p->n_groups; g++) {
        const group *of = &p->group[g];
        const int b = writes ? s->block[g][at] : NONE, available = of->n_free + of->n_cached;
        const bool shared = writes && of->ref[b] > 1;
        if (available < grow) return false;
        /* Nothing to copy into: when only the tree is in the way, it will forget. */
        if (shared && available == grow && (of->ref[b] > 2 || !ig_kv_tree_has(p, g, b))) return false;
    }
    for (int g = 0; g < p->n_groups && writes; g++) {
        const group *of = &p->group[g];
        const int from = s->block[g][at];
        if (of->ref[from] > 1 && of->n_free + of->n_cached == grow) ig_kv_tree_forget(p, g, from);
        if (of->ref[from] == 1) continue;
        const int to = ig_kv_block_take(p, g);
        ig_assert(to != NONE);
        ig_kv_block_copy(p, g, to, from);
        s->block[g][at] = to;
        ig_kv_block_drop(p, g, from);
    }
    for (; s->n_blocks < n_blocks; s->n_blocks++)
        for (int g = 0; g < p->n_groups; g++) {
            const int b = ig_kv_block_take(p, g);
            ig_assert(b != NONE); /* n_cached counts what eviction can reach */
            s->block[g][s->n_blocks] = b;
        }
    return true;
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

ig_kv_stats ig_kv_pool_stats(const ig_kv_pool *p) {
    ig_kv_stats s = {.n_groups = p->n_groups,
                     .n_lookup_tokens = p->n_lookup_tokens,
                     .n_hit_tokens = p->n_hit_tokens,
                     .n_evicted = p->n_evicted};
    for (int i = 0; i < p->n_groups; i++) {
        const group *g = &p->group[i];
        s.group[i] = (struct ig_kv_group_stats){g->n_blocks, g->n_free, g->n_cached,
                                                g->block_bytes};
    }
    return s;
}

static bool count_group(const ig_kv_pool *p, int g, ig_err *err) {
    const group *of = &p->group[g];
    int n_held = 0;
    for (int b = 0; b < of->n_blocks; b++) {
        int held = ig_kv_tree_has(p, g, b);
        for (int i = 0; i < p->n_seqs; i++)
            for (int k = p->seqs[i].first[g]; k < p->seqs[i].n_blocks; k++) held += p->seqs[i].block[g][k] == b;
        for (int i = 0; i < of->n_free; i++)
            if (of->free_stack[i] == b && held) {
                ig_fail(err, IG_EINVAL, "group %d: block %d is free and held %d times", g, b, held);
                return false;
            }
        if (held != of->ref[b]) {
            ig_fail(err, IG_EINVAL, "group %d: block %d: count %d, held %d times", g, b, of->ref[b], held);
            return false;
        }
        n_held += held > 0;
    }
    if (n_held + of->n_free != of->n_blocks) {
        ig_fail(err, IG_EINVAL, "group %d: %d blocks held and %d free of %d", g, n_held, of->n_free,
                of->n_blocks);
        return false;
    }
    return true;
}

bool ig_kv_pool_check(const ig_kv_pool *p, ig_err *err) {
    for (int g = 0; g < p->n_groups; g++)
        if (!count_group(p, g, err)) return false;
    return ig_kv_tree_check(p, err);
}

static const ig_tier_node nodes[] = {
    {.id = "kv.grow", .does = "blocks taken, given back and tabled", .in = {"on", "on", "on"}},
};
NODE_EXPORT(blocks, nodes);
