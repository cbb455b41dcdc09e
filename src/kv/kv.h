/* kv: where keys and values live.
 *
 * Owns:    for each group of layers a fixed pool of blocks of 64 token positions, their reference counts; the
 *          tree that says which token prefixes are already computed.
 * Takes:   token ids (compared, never hashed only), positions.
 * Gives:   ig_kv_seq: the block tables of one sequence. Position p is at block p / 64, row p % 64, in every
 *          group: a window is no ring, its old blocks are given back.
 * Threads: engine thread only, so no lock. Attention kernels on pool threads read and write rows of
 *          blocks that the engine thread lent for the step.
 * Memory:  one mapping for all blocks and one for the tables, taken at start; nothing after.
 * Fails:   only at start. Later "no free block" is an answer, not an error.
 * Not here: what is done with a row (kern/loop_attention.c), who is admitted (engine/).
 *
 * Layout of a block: for each layer of the group, for each kv head, a part for K and a part for V (kern.h, ig_kv_kind:
 * f16, or codes of 8 bits with their scales). Lanes of a kernel run over the 64 keys for scores and over the head's
 * dimensions for values, so no sum is ever split. */
#ifndef IG_KV_H
#define IG_KV_H

#include "kern/kern.h"

enum { IG_KV_GROUPS_MAX = 2 };

/* Layers that keep the same: all positions, or those of a window. Which group is which depends on the model. */
typedef struct ig_kv_group {
    int n_layers, n_kv_heads, head_dim;
    int window; /* positions that a row sees, itself included; 0: all */
    ig_kv_kind kind; /* not F32 */
} ig_kv_group;

typedef struct ig_kv_shape {
    int n_groups;
    ig_kv_group group[IG_KV_GROUPS_MAX];
} ig_kv_shape;

/* One layer in the pool. */
typedef struct ig_kv_layer {
    int group, layer; /* layer: inside the group */
} ig_kv_layer;

static inline size_t ig_kv_group_block_bytes(ig_kv_group g) {
    return (size_t)g.n_layers * (size_t)g.n_kv_heads * 2u * ig_kv_part_bytes(g.kind, g.head_dim);
}
/* A block of every group. */
static inline size_t ig_kv_block_bytes(ig_kv_shape s) {
    size_t n = 0;
    for (int g = 0; g < s.n_groups; g++) n += ig_kv_group_block_bytes(s.group[g]);
    return n;
}

/* What a pool makes of it: the tree of prefixes needs one group that keeps all, so without one group 0 does. */
static inline ig_kv_shape ig_kv_kept(ig_kv_shape s) {
    bool whole = false;
    for (int g = 0; g < s.n_groups; g++) whole = whole || s.group[g].window == 0;
    if (!whole) s.group[0].window = 0;
    return s;
}

static inline int ig_kv_blocks_for(int n_tokens) {
    return n_tokens / IG_KV_BLOCK_TOKENS + (n_tokens % IG_KV_BLOCK_TOKENS != 0);
}
/* Bytes of keys and values that one position's row reads when it stands behind n_before others. */
static inline size_t ig_kv_read_bytes(ig_kv_shape s, int n_before) {
    size_t n = 0;
    for (int i = 0; i < s.n_groups; i++) {
        const int window = s.group[i].window, seen = window > 0 && n_before >= window ? window : n_before + 1;
        n += ig_kv_group_block_bytes(s.group[i]) / IG_KV_BLOCK_TOKENS * (size_t)seen;
    }
    return n;
}
/* The first block that a row at position pos reads. */
static inline int ig_kv_first_block(ig_kv_group g, int pos) {
    return g.window > 0 && pos >= g.window ? (pos - g.window + 1) / IG_KV_BLOCK_TOKENS : 0;
}
/* The most blocks of a group that a sequence holds on its way to n_tokens, at most n_rows a step: those that
 * an interval of window + n_rows - 1 positions can touch. */
static inline int ig_kv_held_most(ig_kv_group g, int n_tokens, int n_rows) {
    const int all = ig_kv_blocks_for(n_tokens);
    if (g.window == 0) return all;
    const int64_t most = ((int64_t)g.window + n_rows + IG_KV_BLOCK_TOKENS - 3) / IG_KV_BLOCK_TOKENS + 1;
    return most < all ? (int)most : all;
}

/* How many blocks there are of each group. */
typedef struct ig_kv_room {
    int n_blocks[IG_KV_GROUPS_MAX];
} ig_kv_room;
/* Enough for n_seqs sequences of n_tokens each, when a step computes at most n_rows of one. */
ig_kv_room ig_kv_room_for(ig_kv_shape s, int n_seqs, int n_tokens, int n_rows);
size_t ig_kv_room_bytes(ig_kv_shape s, ig_kv_room r);

typedef struct ig_kv_pool ig_kv_pool;

/* Blocks of each group, and room for n_seqs sequences of at most seq_tokens_max tokens. Blocks start
 * zeroed: what a kernel reads past a row's end must be finite. */
ig_status ig_kv_pool_make(ig_kv_pool **out, ig_kv_shape shape, ig_kv_room room, int n_seqs,
                          int seq_tokens_max, ig_err *err);
void ig_kv_pool_free(ig_kv_pool *p);
/* Bytes that ig_kv_pool_make will take beside the blocks. */
size_t ig_kv_pool_table_bytes(ig_kv_shape shape, ig_kv_room room, int n_seqs, int seq_tokens_max);
ig_kv_shape ig_kv_pool_shape(const ig_kv_pool *p);

/* The K part of (block of the layer's group, layer, head); the V part follows. */
void *ig_kv_at(const ig_kv_pool *p, int block, ig_kv_layer layer, int kv_head);

/* ---- sequences -------------------------------------------------------------------------------------- */

/* A sequence holds a reference on each of its blocks. Blocks before the last are full and never written
 * again; the last may be written only when nobody else holds it (the tree counts as somebody). */
typedef struct ig_kv_seq {
    int32_t *block[IG_KV_GROUPS_MAX]; /* tables inside the pool's memory, seq_tokens_max / 64 (rounded up) */
    int first[IG_KV_GROUPS_MAX];      /* entries below have left the window: -1, and nobody reads them */
    int n_blocks;
    int n_tokens;  /* positions computed so far */
    /* Tier l2: positions from here on attend over what came back from groups; a prompt ran in chunks of so many tokens. */
    int quantized_from, chunk_tokens;
    int ring_from; /* tier l1: positions from here on see a window as a ring that mlx-lm filled one by one */
    int n_checked; /* blocks that are known to be finite */
    bool spoiled;  /* one was not */
} ig_kv_seq;

ig_kv_seq *ig_kv_seq_open(ig_kv_pool *p);            /* NULL: all n_seqs are in use */
void ig_kv_seq_close(ig_kv_pool *p, ig_kv_seq *s);   /* gives its blocks back */

/* Blocks for positions up to n_tokens (exclusive), each private to s where it will be written: a shared
 * last block is copied first. Gives back what has left the window of the next row; evicts cached prefixes,
 * oldest first, when no block is free. False: not enough memory; then s can do what it could before. */
bool ig_kv_seq_reserve(ig_kv_pool *p, ig_kv_seq *s, int n_tokens);
/* The next reserve will give back a block that nobody else holds: now is the time to remember it. */
bool ig_kv_seq_forgets(const ig_kv_pool *p, const ig_kv_seq *s);

/* False when what s computed holds a NaN or an infinity that could reach another row: such a sequence is
 * scrubbed and never inserted. Looks at the last layer of each group at every position and at every layer
 * of the last position: a row sees itself, so whatever is not finite further up has spoiled its last layer.
 * Whole blocks are looked at once, those that leave a window before they do. */
bool ig_kv_seq_finite(const ig_kv_pool *p, ig_kv_seq *s);
/* Zeroes the blocks that only s holds: a block given back must be finite for its next user. */
void ig_kv_seq_scrub(ig_kv_pool *p, ig_kv_seq *s);

/* ---- prefix.c: which prefixes are here -------------------------------------------------------------- */

/* Blocks of layers that see all make the tree; those of a window hang on its nodes and may be missing. A
 * prefix of p tokens can be used when the blocks that the row at p will read are there: holes before its
 * window do not matter. */

/* Starts empty s with the longest usable prefix of tokens[0, n), at most n - 1 of them so that at least
 * one is computed. Whole blocks are shared; the tail of a partly equal block is copied. Returns how many
 * tokens are there now (s->n_tokens). */
int ig_kv_prefix_attach(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n);

/* The same search without taking anything: what an attach would find now. */
typedef struct ig_kv_probe {
    int n_tokens; /* that attach would return, if blocks for the copied tail are free */
    int n_whole[IG_KV_GROUPS_MAX];     /* whole blocks that it would hold, shared and not copied */
    int n_evictable[IG_KV_GROUPS_MAX]; /* of those, held by the tree only: they become unavailable to others */
} ig_kv_probe;
ig_kv_probe ig_kv_prefix_probe(const ig_kv_pool *p, const uint32_t *tokens, int n);

/* Remembers that s holds the first n <= s->n_tokens of `tokens`. A last, partial block is remembered
 * too, and copied when s writes on. Where the tree already has a whole block of the same tokens, s takes
 * that one and gives its own back (rows are exact, so the bytes are equal): sequences that computed one
 * prefix side by side share it from here on. Cheap when known already; never fails. */
void ig_kv_prefix_insert(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n);

/* A conversation will go on at about position n of what is remembered: the window before it, and a block more
 * for the end of a template, is evicted after all that is not marked. */
void ig_kv_prefix_mark(ig_kv_pool *p, const uint32_t *tokens, int n);

void ig_kv_prefix_clear(ig_kv_pool *p); /* forget all */

typedef struct ig_kv_stats {
    int n_groups;
    struct ig_kv_group_stats {
        int n_blocks, n_free, n_cached; /* cached: held by the tree only, so evictable */
        size_t block_bytes;
    } group[IG_KV_GROUPS_MAX];
    uint64_t n_lookup_tokens, n_hit_tokens, n_evicted;
} ig_kv_stats;
ig_kv_stats ig_kv_pool_stats(const ig_kv_pool *p);
/* Every count and link is consistent (tests). */
bool ig_kv_pool_check(const ig_kv_pool *p, ig_err *err);

#endif
