/* kv: where keys and values live.
 *
 * Owns:    a fixed pool of blocks of 64 token positions, their reference counts, the tree that says which
 *          token prefixes are already computed.
 * Takes:   token ids (compared, never hashed only), positions.
 * Gives:   ig_kv_seq: the block table of one sequence. Position p is at block p / 64, row p % 64.
 * Threads: engine thread only, so no lock. Attention kernels on pool threads read and write rows of
 *          blocks that the engine thread lent for the step.
 * Memory:  one mapping for all blocks and one for the tables, taken at start; nothing after.
 * Fails:   only at start. Later "no free block" is an answer, not an error.
 * Not here: what is in a row (kern/loop_attn.c), who is admitted (engine/).
 *
 * Layout of a block, f16, D = head_dim:
 *     for each group, for each layer of it, for each kv head:  K transposed [D][64], then V [64][D]
 * Lanes of a kernel run over the 64 keys for scores and over D for values, so no sum is ever split. */
#ifndef IG_KV_H
#define IG_KV_H

#include "base/base.h"

enum { IG_KV_BLOCK_TOKENS = 64, IG_KV_GROUPS_MAX = 2 };

/* Layers that keep the same: all positions, or those of a window. */
typedef struct ig_kv_group {
    int n_layers, n_kv_heads, head_dim;
    int window; /* positions that a row sees, itself included; 0: all */
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
    return (size_t)g.n_layers * (size_t)g.n_kv_heads * (size_t)g.head_dim * IG_KV_BLOCK_TOKENS * 2u * 2u;
}
/* A block of every group. */
static inline size_t ig_kv_block_bytes(ig_kv_shape s) {
    size_t n = 0;
    for (int g = 0; g < s.n_groups; g++) n += ig_kv_group_block_bytes(s.group[g]);
    return n;
}

typedef struct ig_kv_pool ig_kv_pool;

/* Room for n_blocks blocks, and for n_seqs sequences of at most seq_tokens_max tokens. Blocks start
 * zeroed: what a kernel reads past a row's end must be finite. */
ig_status ig_kv_pool_make(ig_kv_pool **out, ig_kv_shape shape, int n_blocks, int n_seqs,
                          int seq_tokens_max, ig_err *err);
void ig_kv_pool_free(ig_kv_pool *p);
/* Bytes that ig_kv_pool_make will take beside the blocks. */
size_t ig_kv_pool_table_bytes(int n_blocks, int n_seqs, int seq_tokens_max);
ig_kv_shape ig_kv_pool_shape(const ig_kv_pool *p);

/* The K part of (block, layer, head); the V part follows at + head_dim * 64 halves. */
uint16_t *ig_kv_at(const ig_kv_pool *p, int block, ig_kv_layer layer, int kv_head);

/* ---- sequences -------------------------------------------------------------------------------------- */

/* A sequence holds a reference on each of its blocks. Blocks before the last are full and never written
 * again; the last may be written only when nobody else holds it (the tree counts as somebody). */
typedef struct ig_kv_seq {
    int32_t *block;  /* table inside the pool's memory, room for seq_tokens_max / 64 (rounded up) */
    int n_blocks;
    int n_tokens;    /* positions computed so far */
} ig_kv_seq;

ig_kv_seq *ig_kv_seq_open(ig_kv_pool *p);            /* NULL: all n_seqs are in use */
void ig_kv_seq_close(ig_kv_pool *p, ig_kv_seq *s);   /* gives its blocks back */

static inline int ig_kv_blocks_for(int n_tokens) {
    return (n_tokens + IG_KV_BLOCK_TOKENS - 1) / IG_KV_BLOCK_TOKENS;
}

/* Blocks for positions up to n_tokens (exclusive), each private to s where it will be written: a shared
 * last block is copied first. Evicts cached prefixes, oldest first, when none is free. False: not enough
 * memory; then s is as it was. */
bool ig_kv_seq_reserve(ig_kv_pool *p, ig_kv_seq *s, int n_tokens);

/* False when what s computed holds a NaN or an infinity that could reach another row: such a sequence is
 * scrubbed and never inserted. Looks at the last layer of each group at every position and at every layer
 * of the last position: a row sees itself, so whatever is not finite further up has spoiled its last layer. */
bool ig_kv_seq_finite(const ig_kv_pool *p, const ig_kv_seq *s);
/* Zeroes the blocks that only s holds: a block given back must be finite for its next user. */
void ig_kv_seq_scrub(ig_kv_pool *p, ig_kv_seq *s);

/* ---- prefix.c: which prefixes are here -------------------------------------------------------------- */

/* Starts empty s with the longest known prefix of tokens[0, n), at most n - 1 of them so that at least
 * one is computed. Whole blocks are shared; the tail of a partly equal block is copied. Returns how many
 * tokens are there now (s->n_tokens). */
int ig_kv_prefix_attach(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n);

/* The same search without taking anything: what an attach would find now. */
typedef struct ig_kv_probe {
    int n_tokens;    /* that attach would return, if a block for the copied tail is free */
    int n_whole;     /* whole blocks among them, shared and not copied */
    int n_evictable; /* of those, held by the tree only: attaching makes them unavailable to others */
} ig_kv_probe;
ig_kv_probe ig_kv_prefix_probe(const ig_kv_pool *p, const uint32_t *tokens, int n);

/* Remembers that s holds the first n = s->n_tokens of `tokens`. The last, partial block is remembered
 * too, and copied when s writes on. Where the tree already has a whole block of the same tokens, s takes
 * that one and gives its own back (rows are exact, so the bytes are equal): sequences that computed one
 * prefix side by side share it from here on. Cheap when known already; never fails. */
void ig_kv_prefix_insert(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens);

void ig_kv_prefix_clear(ig_kv_pool *p); /* forget all */

typedef struct ig_kv_stats {
    int n_blocks, n_free, n_cached;  /* cached: held by the tree only, so evictable */
    uint64_t n_lookup_tokens, n_hit_tokens, n_evicted;
} ig_kv_stats;
ig_kv_stats ig_kv_pool_stats(const ig_kv_pool *p);
/* Every count and link is consistent (tests). */
bool ig_kv_pool_check(const ig_kv_pool *p, ig_err *err);

#endif
