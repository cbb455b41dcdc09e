/* finder: where a text holds tokens that are looked for, in steps that its bytes bound, and not how long the
 * tokens are or how much they have in common (Aho and Corasick).
 * Owns:    a trie of the tokens, backwards, and where to go on where it ends.
 * Threads: read-only once linked.
 * Memory:  malloc, 13 bytes a byte of the tokens beside the trie.
 * Why backwards: read from its end, a text has at each place the longest token that begins there. */
#include "text/bpe.h"

#include <stdlib.h>

bool ig_finder_make(ig_finder *f, uint32_t n_bytes, uint64_t seed) {
    f->node = calloc((size_t)n_bytes + 1, sizeof *f->node);
    return f->node && ig_trie_make(&f->trie, n_bytes, seed);
}

void ig_finder_free(ig_finder *f) {
    ig_trie_free(&f->trie);
    free(f->node);
}

void ig_finder_add(ig_finder *f, ig_slice text, uint32_t number, bool special) {
    char back[IG_FINDER_BYTES_MAX];
    ig_assert(text.n > 0 && text.n <= sizeof back);
    for (size_t i = 0; i < text.n; i++) back[i] = text.p[text.n - 1 - i];
    uint32_t at = ig_trie_add(&f->trie, (ig_slice){back, text.n}, number);
    f->node[at].is_special = special;
}

/* From a node by a byte: its child, or that of the longest end of what was read that is in the trie. */
static uint32_t step(const ig_finder *f, uint32_t at, uint8_t byte) {
    for (;; at = f->node[at].fail) {
        uint32_t child = ig_trie_child(&f->trie, at, byte);
        if (child != IG_TOKEN_NONE) return child;
        if (at == 0) return 0;
    }
}

static void link_node(ig_finder *f, uint32_t at, uint32_t parent, uint8_t byte) {
    struct ig_finder_node *n = &f->node[at];
    n->fail = parent == 0 ? 0 : step(f, f->node[parent].fail, byte);
    n->any = f->node[n->fail].any;
    n->user = f->node[n->fail].user;
    if (f->trie.terminal[at] == IG_TOKEN_NONE) return;
    n->any = at;
    if (!n->is_special) n->user = at;
}

/* Nodes by their depth: what a node refers to is less deep. */
bool ig_finder_link(ig_finder *f) {
    const uint32_t n = f->trie.n_nodes;
    uint64_t *edge = malloc(n * sizeof *edge); /* parent and byte of each node */
    uint32_t *order = malloc(n * sizeof *order), place[IG_FINDER_BYTES_MAX + 2] = {0};
    bool good = edge && order;
    for (uint32_t i = 0; good && i <= f->trie.mask; i++)
        if (f->trie.edge[i].key != UINT64_MAX) edge[f->trie.edge[i].child] = f->trie.edge[i].key;
    for (uint32_t i = 1; good && i < n; i++) { /* children have greater numbers */
        f->node[i].depth = (uint16_t)(f->node[edge[i] >> 8].depth + 1);
        place[f->node[i].depth + 1]++;
    }
    for (uint32_t i = 0; i <= IG_FINDER_BYTES_MAX; i++) place[i + 1] += place[i];
    for (uint32_t i = 1; good && i < n; i++) order[place[f->node[i].depth]++] = i;
    for (uint32_t i = 0; good && i + 1 < n; i++)
        link_node(f, order[i], (uint32_t)(edge[order[i]] >> 8), (uint8_t)edge[order[i]]);
    free(edge);
    free(order);
    return good;
}

size_t ig_first_range(const ig_encode_options *opt, size_t at) {
    size_t low = 0, high = opt->n_plain;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (opt->plain[middle].to <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

size_t ig_finder_scan(const ig_finder *f, ig_slice text, size_t from, size_t to, const ig_encode_options *opt,
                      ig_found *out) {
    const size_t end = text.n - to < IG_FINDER_BYTES_MAX ? text.n : to + IG_FINDER_BYTES_MAX;
    const bool special = opt->parse_special, everywhere = !special || opt->n_plain > 0;
    size_t n = 0, range = ig_first_range(opt, end), limit_before = SIZE_MAX;
    uint32_t any = 0, user = 0; /* where the two searches are: of all tokens, of those that may be anywhere */
    for (size_t i = end; i-- > from;) {
        const uint8_t byte = (uint8_t)text.p[i];
        if (!any && !user && !f->trie.begins[byte]) continue;
        if (special) {
            while (range > 0 && opt->plain[range - 1].to > i) range--;
            const size_t limit = range < opt->n_plain ? opt->plain[range].from : text.n;
            if (limit != limit_before) any = 0;
            limit_before = limit;
            any = i < limit ? step(f, any, byte) : 0;
        }
        if (everywhere) user = step(f, user, byte);
        if (i >= to) continue;
        uint32_t hit = special ? f->node[any].any : 0, other = everywhere ? f->node[user].user : 0;
        if (f->node[other].depth > f->node[hit].depth) hit = other;
        if (hit) out[n++] = (ig_found){i, f->trie.terminal[hit], f->node[hit].depth};
    }
    return n;
}
