/* pool: what blocks.c and prefix.c share. Nobody else includes it.
 *
 * A tree node is a block: node i describes what block i holds, so the tree needs no memory of its own that
 * could run out, and a block is in at most one place of it. A block's count is the number of sequences that
 * hold it, plus one when it is in the tree. */
#ifndef IG_KV_POOL_H
#define IG_KV_POOL_H

#include "kv/kv.h"

enum { NONE = -1 };

typedef struct node {
    uint64_t used;      /* when a sequence last passed here; a parent is never older than its child */
    int32_t parent;     /* block, or NONE: the first of a prompt */
    int32_t n_children;
    int32_t next, prev; /* nodes of one hash bucket */
    int32_t heap_at;    /* place in the heap of leaves that may be evicted, or NONE */
    int32_t n_tokens;   /* 0: not in the tree; below IG_KV_BLOCK_TOKENS: a leaf for ever */
} node;

struct ig_kv_pool {
    ig_kv_shape shape;
    size_t block_halves, group_at[IG_KV_GROUPS_MAX]; /* halves of a block; where a group starts in it */
    uint16_t *blocks;
    void *blocks_map, *tables_map;
    size_t blocks_bytes, tables_bytes;

    int n_blocks, n_seqs, seq_blocks;
    int32_t *ref;           /* [n_blocks] */
    int32_t *free_stack;    /* [n_blocks] */
    int n_free;
    ig_kv_seq *seqs;        /* [n_seqs]; block tables lie in seq_table */
    int32_t *seq_table;     /* [n_seqs][seq_blocks] */
    int32_t *seq_free;      /* [n_seqs] indices */
    int n_seqs_free;

    node *nodes;            /* [n_blocks] */
    uint32_t (*tokens)[IG_KV_BLOCK_TOKENS]; /* [n_blocks] */
    int32_t *bucket;        /* [n_buckets], a power of two: first node with this (parent, first token) */
    int n_buckets;
    int32_t *heap;          /* leaves held by the tree only, the least recently used on top */
    int n_heap;
    int n_cached;           /* blocks held by the tree only */
    uint64_t clock;

    uint64_t n_lookup_tokens, n_hit_tokens, n_evicted;
};

/* blocks.c */
int ig_kv_block_take(ig_kv_pool *p); /* a free block with count 1, after evicting if need be; NONE */
void ig_kv_block_hold(ig_kv_pool *p, int block);
void ig_kv_block_drop(ig_kv_pool *p, int block);
void ig_kv_block_copy(ig_kv_pool *p, int to, int from);

/* prefix.c */
void ig_kv_tree_init(ig_kv_pool *p);
void ig_kv_tree_ref_changed(ig_kv_pool *p, int block, int before, int after);
bool ig_kv_tree_evict(ig_kv_pool *p);             /* the least recently used leaf; false: none */
void ig_kv_tree_forget(ig_kv_pool *p, int block); /* a leaf, whoever holds it */
bool ig_kv_tree_check(const ig_kv_pool *p, ig_err *err);

#endif
