/* prefix: how much of a prompt is already computed.
 *
 * Owns:    the tree. A node is a block of the main group and its tokens; edges are compared token by token, a
 *          hash only says where to look. Blocks of windowed groups hang on nodes.
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

/* ---- the heap of what may be evicted ---------------------------------------------------------------- */

static bool goes_before(const group *g, int a, int b) {
    const entry *x = &g->entry[a], *y = &g->entry[b];
    return x->marked != y->marked ? y->marked : x->used < y->used;
}

static void heap_put(group *g, int at, int block) {
    g->heap[at] = block;
    g->entry[block].heap_at = at;
}

static void heap_up(group *g, int at) {
    int block = g->heap[at];
    while (at > 0) {
        int up = (at - 1) / 2;
        if (!goes_before(g, block, g->heap[up])) break;
        heap_put(g, at, g->heap[up]);
        at = up;
    }
    heap_put(g, at, block);
}

static void heap_down(group *g, int at) {
    int block = g->heap[at];
    for (;;) {
        int kid = 2 * at + 1;
        if (kid >= g->n_heap) break;
        if (kid + 1 < g->n_heap && goes_before(g, g->heap[kid + 1], g->heap[kid])) kid++;
        if (!goes_before(g, g->heap[kid], block)) break;
        heap_put(g, at, g->heap[kid]);
        at = kid;
    }
    heap_put(g, at, block);
}

static void heap_remove(group *g, int block) {
    int at = g->entry[block].heap_at, last = g->heap[--g->n_heap];
    g->entry[block].heap_at = NONE;
    if (last == block) return;
    heap_put(g, at, last);
    heap_up(g, at);
    heap_down(g, g->entry[last].heap_at);
}

bool ig_kv_tree_has(const ig_kv_pool *p, int g, int block) {
    return g == p->main ? p->nodes[block].n_tokens > 0 : p->group[g].entry[block].host != NONE;
}

/* Puts a block in or out of the heap as its children and count now say. */
static void settle(ig_kv_pool *p, int g, int block) {
    group *of = &p->group[g];
    const bool leaf = g != p->main || p->nodes[block].n_children == 0;
    const bool evictable = leaf && of->ref[block] == 1 && ig_kv_tree_has(p, g, block);
    const bool inside = of->entry[block].heap_at != NONE;

    if (evictable && !inside) {
        of->heap[of->n_heap++] = block;
        heap_up(of, of->n_heap - 1);
    } else if (!evictable && inside) {
        heap_remove(of, block);
    }
}

static void touch(ig_kv_pool *p, int g, int block) {
    entry *e = &p->group[g].entry[block];
    e->used = p->clock;
    if (e->heap_at != NONE) heap_down(&p->group[g], e->heap_at);
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
    ig_kv_block_hold(p, p->main, block); /* before it is a node: the tree's own hold is not a change of use */
    p->nodes[block] = (node){.parent = parent, .next = *bucket, .prev = NONE, .n_tokens = n};
    p->group[p->main].entry[block] = (entry){.used = p->clock, .heap_at = NONE, .host = NONE};
    memcpy(p->tokens[block], tokens, (size_t)n * sizeof *tokens);
    if (*bucket != NONE) p->nodes[*bucket].prev = block;
    *bucket = block;
    if (parent != NONE) {
        p->nodes[parent].n_children++;
        settle(p, p->main, parent);
    }
}

/* A block of a windowed group on a node. */
static void hang(ig_kv_pool *p, int g, int block, int host) {
    ig_kv_block_hold(p, g, block);
    p->group[g].entry[block] = (entry){.used = p->clock, .heap_at = NONE, .host = host};
    p->group[g].hung[host] = block;
}

static void take_down(ig_kv_pool *p, int g, int block) {
    group *of = &p->group[g];
    of->hung[of->entry[block].host] = NONE;
    if (of->ref[block] == 1) of->n_cached--;
    of->entry[block].host = NONE;
    of->entry[block].marked = false;
    settle(p, g, block);
    ig_kv_block_drop(p, g, block);
}

static void forget_node(ig_kv_pool *p, int block) {
    node *n = &p->nodes[block];
    int parent = n->parent;

    ig_assert(n->n_tokens > 0 && n->n_children == 0);
    for (int g = 0; g < p->n_groups; g++)
        if (g != p->main && p->group[g].hung[block] != NONE) take_down(p, g, p->group[g].hung[block]);
    if (n->prev != NONE)
        p->nodes[n->prev].next = n->next;
    else
        *bucket_of(p, parent, p->tokens[block][0]) = n->next;
    if (n->next != NONE) p->nodes[n->next].prev = n->prev;
    if (p->group[p->main].ref[block] == 1) p->group[p->main].n_cached--;
    n->n_tokens = 0;
    settle(p, p->main, block);
    ig_kv_block_drop(p, p->main, block);
    if (parent != NONE) {
        p->nodes[parent].n_children--;
        settle(p, p->main, parent);
    }
}

void ig_kv_tree_forget(ig_kv_pool *p, int g, int block) {
    if (g == p->main) forget_node(p, block);
    else take_down(p, g, block);
}

void ig_kv_tree_ref_changed(ig_kv_pool *p, int g, int block, int before, int after) {
    if (!ig_kv_tree_has(p, g, block)) return;
    p->group[g].n_cached += (after == 1) - (before == 1);
    settle(p, g, block);
}

bool ig_kv_tree_evict(ig_kv_pool *p, int g) {
    if (p->group[g].n_heap == 0) return false;
    ig_kv_tree_forget(p, g, p->group[g].heap[0]);
    p->n_evicted++;
    return true;
}

void ig_kv_tree_init(ig_kv_pool *p) {
    const int n_nodes = p->group[p->main].n_blocks;
    for (int i = 0; i < p->n_buckets; i++) p->bucket[i] = NONE;
    for (int b = 0; b < n_nodes; b++) p->nodes[b] = (node){.parent = NONE};
    for (int i = 0; i < p->n_groups; i++) {
        group *g = &p->group[i];
        g->n_heap = g->n_cached = 0;
        for (int b = 0; b < g->n_blocks; b++) g->entry[b] = (entry){.heap_at = NONE, .host = NONE};
        for (int b = 0; b < n_nodes && i != p->main; b++) g->hung[b] = NONE;
    }
}

/* ---- search ----------------------------------------------------------------------------------------- */

static int common(const uint32_t *a, const uint32_t *b, int n) {
    int i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* Nothing hangs on the node that its windowed layers would need. */
static bool has_hole(const ig_kv_pool *p, int block) {
    for (int g = 0; g < p->n_groups; g++)
        if (g != p->main && p->group[g].hung[block] == NONE) return true;
    return false;
}

/* The child of `parent` that has most of tokens[0, n) in common, best one without a hole; *n_same of them.
 * NONE: not even one. */
static int best_child(const ig_kv_pool *p, int parent, const uint32_t *tokens, int n, int *n_same) {
    int best = NONE;
    *n_same = 0;
    if (n > IG_KV_BLOCK_TOKENS) n = IG_KV_BLOCK_TOKENS;
    if (n <= 0) return NONE;
    for (int b = *bucket_of(p, parent, tokens[0]); b != NONE; b = p->nodes[b].next) {
        if (p->nodes[b].parent != parent) continue;
        int same = common(p->tokens[b], tokens, p->nodes[b].n_tokens < n ? p->nodes[b].n_tokens : n);
        if (same < *n_same || (same == *n_same && (best == NONE || has_hole(p, b)))) continue;
        *n_same = same;
        best = b;
        if (same == n && !has_hole(p, b)) break;
    }
    return *n_same > 0 ? best : NONE;
}

typedef struct match {
    int node, n_whole; /* the last whole block's node, how many there are */
    int tail, n_tail;  /* a node whose first tokens match too, or NONE */
} match;

static int match_tokens(match m) {
    return m.n_whole * IG_KV_BLOCK_TOKENS + m.n_tail;
}

/* The longest usable beginning of tokens[0, n), and in *whole the longest without a tail. A longer one asks
 * for less to be there at its start, so of each block only the end needs a look. */
static match find(const ig_kv_pool *p, const uint32_t *tokens, int n, match *whole) {
    match m = {NONE, 0, NONE, 0};
    int solid[IG_KV_GROUPS_MAX] = {0}; /* no holes from this block on */

    *whole = m;
    for (;;) {
        const int at = m.n_whole * IG_KV_BLOCK_TOKENS;
        int same = 0, child = best_child(p, m.node, tokens + at, n - at, &same);
        bool usable = child != NONE;
        if (child == NONE) return *whole;
        for (int g = 0; g < p->n_groups; g++) {
            if (g == p->main) continue;
            if (p->group[g].hung[child] == NONE) solid[g] = m.n_whole + 1;
            usable = usable && solid[g] <= ig_kv_first_block(p->shape.group[g], at + same);
        }
        if (same < IG_KV_BLOCK_TOKENS) {
            m.tail = child, m.n_tail = same;
            return usable ? m : *whole;
        }
        m.node = child, m.n_whole++;
        if (usable) *whole = m;
    }
}

/* s holds the whole blocks of m, as far as the row after its last token will read them. */
static void hold_match(ig_kv_pool *p, ig_kv_seq *s, match m) {
    s->n_blocks = m.n_whole;
    for (int g = 0; g < p->n_groups; g++) {
        const group *of = &p->group[g];
        const int from = ig_kv_first_block(of->shape, match_tokens(m));
        int at = m.node;
        s->first[g] = from;
        for (int i = m.n_whole - 1; i >= 0; i--, at = p->nodes[at].parent) {
            s->block[g][i] = i < from ? NONE : g == p->main ? at : of->hung[at];
            if (i < from) continue;
            ig_kv_block_hold(p, g, s->block[g][i]);
            touch(p, g, s->block[g][i]);
        }
    }
}

/* Own blocks with the rows of m's tail. False: not in every group is a block to be had; nothing changed. */
static bool copy_tail(ig_kv_pool *p, ig_kv_seq *s, match m) {
    int from[IG_KV_GROUPS_MAX];
    bool room = true;
    for (int g = 0; g < p->n_groups; g++) { /* not to be evicted for the sake of its own copy */
        from[g] = g == p->main ? m.tail : p->group[g].hung[m.tail];
        ig_kv_block_hold(p, g, from[g]);
        touch(p, g, from[g]);
    }
    for (int g = 0; g < p->n_groups; g++) room = room && p->group[g].n_free + p->group[g].n_heap > 0;
    for (int g = 0; g < p->n_groups && room; g++) {
        const int own = ig_kv_block_take(p, g);
        ig_assert(own != NONE);
        ig_kv_block_copy(p, g, own, from[g]);
        s->block[g][s->n_blocks] = own;
    }
    s->n_blocks += room;
    for (int g = 0; g < p->n_groups; g++) ig_kv_block_drop(p, g, from[g]);
    return room;
}

int ig_kv_prefix_attach(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n) {
    match whole, m = find(p, tokens, n - 1, &whole); /* one is left to compute */
    ig_assert(s->n_blocks == 0 && n >= 1 && ig_kv_blocks_for(n) <= p->seq_blocks);

    p->clock++;
    hold_match(p, s, m);
    if (m.tail != NONE && !copy_tail(p, s, m)) {
        ig_kv_seq_drop_blocks(p, s);
        m = whole;
        hold_match(p, s, m);
    }
    s->n_tokens = match_tokens(m);
    s->n_checked = m.n_whole;
    p->n_lookup_tokens += (uint64_t)n;
    p->n_hit_tokens += (uint64_t)s->n_tokens;
    return s->n_tokens;
}

ig_kv_probe ig_kv_prefix_probe(const ig_kv_pool *p, const uint32_t *tokens, int n) {
    match whole, m = find(p, tokens, n - 1, &whole);
    ig_kv_probe out = {.n_tokens = match_tokens(m)};

    for (int g = 0; g < p->n_groups; g++) {
        const group *of = &p->group[g];
        const int from = ig_kv_first_block(of->shape, out.n_tokens);
        int at = m.node;
        for (int i = m.n_whole - 1; i >= from; i--, at = p->nodes[at].parent) {
            out.n_whole[g]++;
            out.n_evictable[g] += of->ref[g == p->main ? at : of->hung[at]] == 1;
        }
    }
    return out;
}

/* A remembered beginning of tokens[0, n) that is shorter: of no more use once the longer one is in. */
static void forget_shorter(ig_kv_pool *p, int parent, const uint32_t *tokens, int n) {
    int b = *bucket_of(p, parent, tokens[0]);
    while (b != NONE) {
        int next = p->nodes[b].next, has = p->nodes[b].n_tokens;
        if (p->nodes[b].parent == parent && has < n && common(p->tokens[b], tokens, has) == has)
            forget_node(p, b);
        b = next;
    }
}

/* What s holds of a windowed group at position block i, for the node of the same n tokens. */
static void insert_hung(ig_kv_pool *p, ig_kv_seq *s, int g, int i, int host, int n) {
    const int own = s->block[g][i], there = p->group[g].hung[host];
    if (i < s->first[g]) return;
    if (there == NONE) { /* a node with more tokens than we have rows would promise too much */
        if (p->nodes[host].n_tokens == n && p->group[g].entry[own].host == NONE) hang(p, g, own, host);
        return;
    }
    touch(p, g, there);
    if (n < IG_KV_BLOCK_TOKENS || there == own) return;
    ig_kv_block_hold(p, g, there);
    ig_kv_block_drop(p, g, own);
    s->block[g][i] = there;
}

void ig_kv_prefix_insert(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n_tokens) {
    int parent = NONE;
    ig_assert(n_tokens <= s->n_tokens);

    p->clock++;
    for (int i = 0; i < ig_kv_blocks_for(n_tokens); i++) {
        int at = i * IG_KV_BLOCK_TOKENS, left = n_tokens - at, same = 0;
        int n = left < IG_KV_BLOCK_TOKENS ? left : IG_KV_BLOCK_TOKENS;
        int child = best_child(p, parent, tokens + at, n, &same), *own = &s->block[p->main][i];

        if (same < n) {
            child = *own;
            /* Shared though the tree does not know it: a clear came between. The other holder may have
             * other blocks in front of it, and then its hold would not reach this node's parents. */
            if (p->group[p->main].ref[child] > 1) return;
            forget_shorter(p, parent, tokens + at, n);
            node_add(p, child, parent, tokens + at, n);
        } else {
            touch(p, p->main, child);
            if (n == IG_KV_BLOCK_TOKENS && child != *own) {
                ig_kv_block_hold(p, p->main, child);
                ig_kv_block_drop(p, p->main, *own);
                *own = child;
            }
        }
        for (int g = 0; g < p->n_groups; g++)
            if (g != p->main) insert_hung(p, s, g, i, child, n);
        parent = child;
    }
}

void ig_kv_prefix_mark(ig_kv_pool *p, const uint32_t *tokens, int n) {
    match m = {NONE, 0, NONE, 0};
    for (int same = IG_KV_BLOCK_TOKENS; same == IG_KV_BLOCK_TOKENS;) {
        const int at = m.n_whole * IG_KV_BLOCK_TOKENS, child = best_child(p, m.node, tokens + at, n - at, &same);
        if (same > 0) m.node = child, m.n_whole++;
    }
    for (int i = m.n_whole - 1, at = m.node; i >= 0; i--, at = p->nodes[at].parent)
        for (int g = 0; g < p->n_groups; g++) {
            group *of = &p->group[g];
            const int b = g == p->main ? NONE : of->hung[at];
            if (b == NONE || i < ig_kv_first_block(of->shape, n) - 1) continue;
            of->entry[b].marked = true;
            touch(p, g, b);
        }
}

void ig_kv_prefix_clear(ig_kv_pool *p) {
    for (int i = 0; i < p->n_groups; i++) {
        group *g = &p->group[i];
        for (int b = 0; b < g->n_blocks; b++) {
            if (!ig_kv_tree_has(p, i, b)) continue;
            /* All go, so links between them need no care. */
            if (i == p->main) p->nodes[b].n_tokens = 0;
            g->entry[b].host = NONE;
            ig_kv_block_drop(p, i, b);
        }
    }
    ig_kv_tree_init(p);
}

/* ---- check ------------------------------------------------------------------------------------------ */

static bool in_bucket(const ig_kv_pool *p, int b) {
    int i = *bucket_of(p, p->nodes[b].parent, p->tokens[b][0]);
    while (i != NONE && i != b) i = p->nodes[i].next;
    return i == b;
}

static const char *node_fault(const ig_kv_pool *p, int b) {
    const node *n = &p->nodes[b], *up = n->parent != NONE ? &p->nodes[n->parent] : NULL;
    const group *g = &p->group[p->main];
    int n_children = 0;

    if (n->n_tokens == 0) return NULL;
    if (up && up->n_tokens != IG_KV_BLOCK_TOKENS) return "below a partial node";
    if (up && g->entry[n->parent].used < g->entry[b].used) return "younger than its parent";
    for (int i = 0; i < g->n_blocks; i++) n_children += p->nodes[i].n_tokens > 0 && p->nodes[i].parent == b;
    if (n_children != n->n_children) return "wrong number of children";
    if (!in_bucket(p, b)) return "not in its bucket";
    return NULL;
}

static const char *entry_fault(const ig_kv_pool *p, int g, int b) {
    const group *of = &p->group[g];
    const entry *e = &of->entry[b];
    const bool inside = ig_kv_tree_has(p, g, b), leaf = g != p->main || p->nodes[b].n_children == 0;
    if (!inside && e->heap_at != NONE) return "in the heap and not in the tree";
    if (inside && g != p->main && (p->nodes[e->host].n_tokens == 0 || of->hung[e->host] != b))
        return "hangs on a node that does not know it";
    if ((inside && leaf && of->ref[b] == 1) != (e->heap_at != NONE)) return "heap and count disagree";
    if (e->heap_at == NONE) return NULL;
    if (of->heap[e->heap_at] != b) return "heap place";
    if (e->heap_at > 0 && goes_before(of, b, of->heap[(e->heap_at - 1) / 2])) return "heap order";
    return NULL;
}

static bool check_group(const ig_kv_pool *p, int g, ig_err *err) {
    const group *of = &p->group[g];
    int n_cached = 0, n_heap = 0, n_inside = 0, n_hung = 0;
    for (int b = 0; b < of->n_blocks; b++) {
        const char *fault = entry_fault(p, g, b);
        if (!fault && g == p->main) fault = node_fault(p, b);
        if (fault) {
            ig_fail(err, IG_EINVAL, "group %d, block %d: %s", g, b, fault);
            return false;
        }
        n_inside += ig_kv_tree_has(p, g, b);
        n_cached += ig_kv_tree_has(p, g, b) && of->ref[b] == 1;
        n_heap += of->entry[b].heap_at != NONE;
    }
    for (int b = 0; b < p->group[p->main].n_blocks && g != p->main; b++) n_hung += of->hung[b] != NONE;
    if (n_cached != of->n_cached || n_heap != of->n_heap || (g != p->main && n_hung != n_inside)) {
        ig_fail(err, IG_EINVAL, "group %d: %d cached, counted %d; heap %d, counted %d; %d hang, counted %d", g,
                of->n_cached, n_cached, of->n_heap, n_heap, n_hung, n_inside);
        return false;
    }
    return true;
}

bool ig_kv_tree_check(const ig_kv_pool *p, ig_err *err) {
    for (int g = 0; g < p->n_groups; g++)
        if (!check_group(p, g, err)) return false;
    for (int i = 0; i < p->n_seqs; i++) {
        const ig_kv_seq *s = &p->seqs[i];
        const int32_t *block = s->block[p->main];
        for (int k = 0; k < s->n_blocks; k++) {
            const node *n = &p->nodes[block[k]];
            if (n->n_tokens > 0 && n->parent != (k > 0 ? block[k - 1] : NONE)) {
                ig_fail(err, IG_EINVAL, "sequence %d holds node %d and not its parent", i, block[k]);
                return false;
            }
        }
        for (int g = 0; g < p->n_groups; g++)
            for (int k = 0; k < s->n_blocks; k++)
                if ((s->block[g][k] == NONE) != (k < s->first[g])) {
                    ig_fail(err, IG_EINVAL, "sequence %d: block %d of group %d, held from %d on", i, k, g,
                            s->first[g]);
                    return false;
                }
    }
    return true;
}

static const ig_tier_node nodes[] = {
    {.id = "cache.prefix", .does = "what of a prompt is there already is not computed again",
     .tier = IG_TIER_L1, .oracle = "uncached", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"},
     .proof = "engine: a_prefix_from_the_cache_gives_the_same_bits", .when = "known prefix"},
};
NODE_EXPORT(prefix, nodes);
