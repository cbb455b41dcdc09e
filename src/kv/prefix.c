/* prefix: how much of a prompt is already computed.
 *
 * Owns:    the tree. A node is a block and its tokens; edges are compared token by token, a hash only says
 *          where to look.
 * Threads: engine thread only, so no lock.
 * Memory:  one node for each block, in the pool's tables.
 * Why a heap of leaves and not a list by age: when the last child of an old prefix goes, its parent becomes
 * evictable with an age of its own, somewhere in the middle.
 *
 * What keeps eviction simple: a sequence that holds a node holds all of its parents (attach walks down from
 * the top, insert replaces a sequence's block by the tree's equal one). So below a block that only the tree
 * holds nobody holds anything, and all such blocks, n_cached of them, can be evicted leaf by leaf. */
#include "kv/pool.h"

#include <string.h>

/* ---- the heap of evictable leaves ------------------------------------------------------------------- */

static void heap_put(ig_kv_pool *p, int at, int block) {
    p->heap[at] = block;
    p->nodes[block].heap_at = at;
}

static void heap_up(ig_kv_pool *p, int at) {
    int block = p->heap[at];
    while (at > 0) {
        int up = (at - 1) / 2;
        if (p->nodes[p->heap[up]].used <= p->nodes[block].used) break;
        heap_put(p, at, p->heap[up]);
        at = up;
    }
    heap_put(p, at, block);
}

static void heap_down(ig_kv_pool *p, int at) {
    int block = p->heap[at];
    for (;;) {
        int kid = 2 * at + 1;
        if (kid >= p->n_heap) break;
        if (kid + 1 < p->n_heap && p->nodes[p->heap[kid + 1]].used < p->nodes[p->heap[kid]].used) kid++;
        if (p->nodes[p->heap[kid]].used >= p->nodes[block].used) break;
        heap_put(p, at, p->heap[kid]);
        at = kid;
    }
    heap_put(p, at, block);
}

static void heap_remove(ig_kv_pool *p, int block) {
    int at = p->nodes[block].heap_at, last = p->heap[--p->n_heap];
    p->nodes[block].heap_at = NONE;
    if (last == block) return;
    heap_put(p, at, last);
    heap_up(p, at);
    heap_down(p, p->nodes[last].heap_at);
}

/* Puts a node in or out of the heap as its children and count now say. */
static void settle(ig_kv_pool *p, int block) {
    const node *n = &p->nodes[block];
    bool evictable = n->n_tokens > 0 && n->n_children == 0 && p->ref[block] == 1;

    if (evictable && n->heap_at == NONE) {
        p->heap[p->n_heap++] = block;
        heap_up(p, p->n_heap - 1);
    } else if (!evictable && n->heap_at != NONE) {
        heap_remove(p, block);
    }
}

static void touch(ig_kv_pool *p, int block) {
    p->nodes[block].used = p->clock;
    if (p->nodes[block].heap_at != NONE) heap_down(p, p->nodes[block].heap_at);
}

/* ---- nodes ------------------------------------------------------------------------------------------ */

static int32_t *bucket_of(const ig_kv_pool *p, int parent, uint32_t first) {
    uint64_t h = (uint64_t)(uint32_t)(parent + 1) << 32 | first;
    h *= 0x9e3779b97f4a7c15u;
    return &p->bucket[(h ^ h >> 29) >> 32 & (uint64_t)(p->n_buckets - 1)];
}

static void node_add(ig_kv_pool *p, int block, int parent, const uint32_t *tokens, int n) {
    int32_t *bucket = bucket_of(p, parent, tokens[0]);

    ig_assert(p->nodes[block].n_tokens == 0 && n > 0 && n <= IG_KV_BLOCK_TOKENS);
    ig_kv_block_hold(p, block); /* before it is a node: the tree's own hold is not a change of use */
    p->nodes[block] = (node){
        .used = p->clock, .parent = parent, .next = *bucket, .prev = NONE, .heap_at = NONE, .n_tokens = n};
    memcpy(p->tokens[block], tokens, (size_t)n * sizeof *tokens);
    if (*bucket != NONE) p->nodes[*bucket].prev = block;
    *bucket = block;
    if (parent != NONE) {
        p->nodes[parent].n_children++;
        settle(p, parent);
    }
}

void ig_kv_tree_forget(ig_kv_pool *p, int block) {
    node *n = &p->nodes[block];
    int parent = n->parent;

    ig_assert(n->n_tokens > 0 && n->n_children == 0);
    if (n->prev != NONE)
        p->nodes[n->prev].next = n->next;
    else
        *bucket_of(p, parent, p->tokens[block][0]) = n->next;
    if (n->next != NONE) p->nodes[n->next].prev = n->prev;
    if (p->ref[block] == 1) p->n_cached--;
    n->n_tokens = 0;
    settle(p, block);
    ig_kv_block_drop(p, block);
    if (parent != NONE) {
        p->nodes[parent].n_children--;
        settle(p, parent);
    }
}

void ig_kv_tree_ref_changed(ig_kv_pool *p, int block, int before, int after) {
    if (p->nodes[block].n_tokens == 0) return;
    p->n_cached += (after == 1) - (before == 1);
    settle(p, block);
}

bool ig_kv_tree_evict(ig_kv_pool *p) {
    if (p->n_heap == 0) return false;
    ig_kv_tree_forget(p, p->heap[0]);
    p->n_evicted++;
    return true;
}

void ig_kv_tree_init(ig_kv_pool *p) {
    for (int i = 0; i < p->n_buckets; i++) p->bucket[i] = NONE;
    for (int b = 0; b < p->n_blocks; b++) p->nodes[b] = (node){.parent = NONE, .heap_at = NONE};
}

/* ---- search ----------------------------------------------------------------------------------------- */

static int common(const uint32_t *a, const uint32_t *b, int n) {
    int i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* The child of `parent` that has most of tokens[0, n) in common; *n_same of them. NONE: not even one. */
static int best_child(const ig_kv_pool *p, int parent, const uint32_t *tokens, int n, int *n_same) {
    int best = NONE;
    *n_same = 0;
    if (n > IG_KV_BLOCK_TOKENS) n = IG_KV_BLOCK_TOKENS;
    if (n <= 0) return NONE;
    for (int b = *bucket_of(p, parent, tokens[0]); b != NONE && *n_same < n; b = p->nodes[b].next) {
        if (p->nodes[b].parent != parent) continue;
        int same = common(p->tokens[b], tokens, p->nodes[b].n_tokens < n ? p->nodes[b].n_tokens : n);
        if (same > *n_same) {
            *n_same = same;
            best = b;
        }
    }
    return best;
}

int ig_kv_prefix_attach(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n) {
    int parent = NONE, same = 0, child = NONE, limit = n - 1; /* one is left to compute */
    ig_assert(s->n_blocks == 0 && n >= 1 && ig_kv_blocks_for(n) <= p->seq_blocks);

    p->clock++;
    for (;;) {
        child = best_child(p, parent, tokens + s->n_tokens, limit - s->n_tokens, &same);
        if (same < IG_KV_BLOCK_TOKENS) break;
        ig_kv_block_hold(p, child);
        touch(p, child);
        s->block[s->n_blocks++] = child;
        s->n_tokens += IG_KV_BLOCK_TOKENS;
        parent = child;
    }
    if (child != NONE) {
        ig_kv_block_hold(p, child); /* not to be evicted for the sake of its own copy */
        touch(p, child);
        int own = ig_kv_block_take(p);
        if (own != NONE) {
            ig_kv_block_copy(p, own, child);
            s->block[s->n_blocks++] = own;
            s->n_tokens += same;
        }
        ig_kv_block_drop(p, child);
    }
    p->n_lookup_tokens += (uint64_t)n;
    p->n_hit_tokens += (uint64_t)s->n_tokens;
    return s->n_tokens;
}

ig_kv_probe ig_kv_prefix_probe(const ig_kv_pool *p, const uint32_t *tokens, int n) {
    ig_kv_probe out = {0};
    int same = 0, parent = NONE;

    for (;;) {
        int child = best_child(p, parent, tokens + out.n_tokens, n - 1 - out.n_tokens, &same);
        out.n_tokens += same;
        if (same < IG_KV_BLOCK_TOKENS) return out;
        out.n_whole++;
        out.n_evictable += p->ref[child] == 1;
        parent = child;
    }
}

/* A remembered beginning of tokens[0, n) that is shorter: of no more use once the longer one is in. */
static void forget_shorter(ig_kv_pool *p, int parent, const uint32_t *tokens, int n) {
    int b = *bucket_of(p, parent, tokens[0]);
    while (b != NONE) {
        int next = p->nodes[b].next, has = p->nodes[b].n_tokens;
        if (p->nodes[b].parent == parent && has < n && common(p->tokens[b], tokens, has) == has)
            ig_kv_tree_forget(p, b);
        b = next;
    }
}

void ig_kv_prefix_insert(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens) {
    int parent = NONE;

    p->clock++;
    for (int i = 0; i < ig_kv_blocks_for(s->n_tokens); i++) {
        int at = i * IG_KV_BLOCK_TOKENS, left = s->n_tokens - at, same = 0;
        int n = left < IG_KV_BLOCK_TOKENS ? left : IG_KV_BLOCK_TOKENS;
        int child = best_child(p, parent, tokens + at, n, &same);

        if (same < n) {
            child = s->block[i];
            /* Shared though the tree does not know it: a clear came between. The other holder may have
             * other blocks in front of it, and then its hold would not reach this node's parents. */
            if (p->ref[child] > 1) return;
            forget_shorter(p, parent, tokens + at, n);
            node_add(p, child, parent, tokens + at, n);
        } else {
            touch(p, child);
            if (n == IG_KV_BLOCK_TOKENS && child != s->block[i]) {
                ig_kv_block_hold(p, child);
                ig_kv_block_drop(p, s->block[i]);
                s->block[i] = child;
            }
        }
        parent = child;
    }
}

void ig_kv_prefix_clear(ig_kv_pool *p) {
    for (int b = 0; b < p->n_blocks; b++) {
        if (p->nodes[b].n_tokens == 0) continue;
        /* All nodes go, so links between them need no care. */
        if (p->ref[b] == 1) p->n_cached--;
        p->nodes[b] = (node){.parent = NONE, .heap_at = NONE};
        ig_kv_block_drop(p, b);
    }
    p->n_heap = 0;
    for (int i = 0; i < p->n_buckets; i++) p->bucket[i] = NONE;
    ig_assert(p->n_cached == 0);
}

/* ---- check ------------------------------------------------------------------------------------------ */

static bool in_bucket(const ig_kv_pool *p, int b) {
    int i = *bucket_of(p, p->nodes[b].parent, p->tokens[b][0]);
    while (i != NONE && i != b) i = p->nodes[i].next;
    return i == b;
}

static const char *node_fault(const ig_kv_pool *p, int b) {
    const node *n = &p->nodes[b], *up = n->parent != NONE ? &p->nodes[n->parent] : NULL;
    int n_children = 0;

    if (n->n_tokens == 0) return n->heap_at == NONE ? NULL : "in the heap and not in the tree";
    if (up && up->n_tokens != IG_KV_BLOCK_TOKENS) return "below a partial node";
    if (up && up->used < n->used) return "younger than its parent";
    for (int i = 0; i < p->n_blocks; i++) n_children += p->nodes[i].n_tokens > 0 && p->nodes[i].parent == b;
    if (n_children != n->n_children) return "wrong number of children";
    if (!in_bucket(p, b)) return "not in its bucket";
    bool evictable = n_children == 0 && p->ref[b] == 1;
    if (evictable != (n->heap_at != NONE)) return "heap and count disagree";
    if (!evictable) return NULL;
    if (p->heap[n->heap_at] != b) return "heap place";
    if (n->heap_at > 0 && p->nodes[p->heap[(n->heap_at - 1) / 2]].used > n->used) return "heap order";
    return NULL;
}

bool ig_kv_tree_check(const ig_kv_pool *p, ig_err *err) {
    int n_cached = 0, n_heap = 0;
    for (int b = 0; b < p->n_blocks; b++) {
        const char *fault = node_fault(p, b);
        if (fault) {
            ig_fail(err, IG_EINVAL, "node %d: %s", b, fault);
            return false;
        }
        n_cached += p->nodes[b].n_tokens > 0 && p->ref[b] == 1;
        n_heap += p->nodes[b].heap_at != NONE;
    }
    if (n_cached != p->n_cached || n_heap != p->n_heap) {
        ig_fail(err, IG_EINVAL, "%d cached, counted %d; heap %d, counted %d", p->n_cached, n_cached,
                p->n_heap, n_heap);
        return false;
    }
    for (int i = 0; i < p->n_seqs; i++)
        for (int k = 0; k < p->seqs[i].n_blocks; k++) {
            const int32_t *block = p->seqs[i].block;
            const node *n = &p->nodes[block[k]];
            if (n->n_tokens > 0 && n->parent != (k > 0 ? block[k - 1] : NONE)) {
                ig_fail(err, IG_EINVAL, "sequence %d holds node %d and not its parent", i, block[k]);
                return false;
            }
        }
    return true;
}
