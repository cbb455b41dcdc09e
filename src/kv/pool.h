/* pool: what blocks.c and prefix.c share. Nobody else includes it.
 *
 * A tree node is a block of the main group, the one whose layers see all: node i describes what block i
 * holds, so the tree needs no memory of its own that could run out, and a block is in at most one place of
 * it. Blocks of other groups hang on the node of the same tokens, or do not. A block's count is the number
 * of sequences that hold it, plus one when it is in the tree. */
#ifndef IG_KV_POOL_H
#define IG_KV_POOL_H

#include "kv/kv.h"
#include "tier/tier.h"

enum { NONE = -1 };

typedef struct node {
    int32_t parent;     /* block, or NONE: the first of a prompt */
    int32_t n_children;
    int32_t next, prev; /* nodes of one hash bucket */
    int32_t n_tokens;   /* 0: not in the tree; below IG_KV_BLOCK_TOKENS: a leaf for ever */
} node;

/* A block's place in the order of eviction. */
typedef struct entry {
    uint64_t used;      /* when a sequence last passed here; a parent is never older than its child */
    int32_t heap_at;    /* place in the heap of those that may be evicted, or NONE */
    int32_t host;       /* the node that it hangs on, or NONE; of no meaning in the main group */
    bool marked;        /* evicted after those that are not */
} entry;

typedef struct group {
    ig_kv_group shape;      /* in the main group window is 0 */
    size_t block_bytes;
    uint8_t *blocks;
    int n_blocks;
    int32_t *ref;           /* [n_blocks] */
    int32_t *free_stack;    /* [n_blocks] */
    int n_free;
    entry *entry;           /* [n_blocks] */
    int32_t *heap;          /* held by the tree only and without children: first to be evicted on top */
    int n_heap;
    int n_cached;           /* blocks held by the tree only */
    int32_t *hung;          /* [n_blocks of the main group]: block that hangs on the node, or NONE */
} group;

struct ig_kv_pool {
    ig_kv_shape shape;
    int n_groups, main;     /* main: the first that sees all, else 0 (which then keeps all) */
    group group[IG_KV_GROUPS_MAX];
    void *blocks_map, *tables_map;
    size_t blocks_bytes, tables_bytes;

    int n_seqs, seq_blocks;
    ig_kv_seq *seqs;        /* [n_seqs]; block tables lie in seq_table */
    int32_t *seq_table;     /* [n_seqs][n_groups][seq_blocks] */
    int32_t *seq_free;      /* [n_seqs] indices */
    int n_seqs_free;

    node *nodes;            /* [n_blocks of the main group] */
    uint32_t (*tokens)[IG_KV_BLOCK_TOKENS]; /* [n_blocks of the main group] */
    int32_t *bucket;        /* [n_buckets], a power of two: first node with this (parent, first token) */
    int n_buckets;
    uint64_t clock;

    uint64_t n_lookup_tokens, n_hit_tokens, n_evicted;
};

/* blocks.c; g: the group */
int ig_kv_block_take(ig_kv_pool *p, int g); /* a free block with count 1, after evicting if need be; NONE */
void ig_kv_block_hold(ig_kv_pool *p, int g, int block);
void ig_kv_block_drop(ig_kv_pool *p, int g, int block);
void ig_kv_block_copy(ig_kv_pool *p, int g, int to, int from);
void ig_kv_seq_drop_blocks(ig_kv_pool *p, ig_kv_seq *s); /* all of them; s is empty then */

/* prefix.c */
void ig_kv_tree_init(ig_kv_pool *p);
void ig_kv_tree_ref_changed(ig_kv_pool *p, int g, int block, int before, int after);
bool ig_kv_tree_evict(ig_kv_pool *p, int g);             /* the first in the heap; false: none */
bool ig_kv_tree_has(const ig_kv_pool *p, int g, int block);
void ig_kv_tree_forget(ig_kv_pool *p, int g, int block); /* a leaf, or one that hangs; whoever holds it */
bool ig_kv_tree_check(const ig_kv_pool *p, ig_err *err);

#endif
