/* vocab: the names of a vocabulary and where to find them: texts in one piece, hash tables, the trie of
 * special tokens, and what a name decodes to.
 * Owns:    the memory of its tables.
 * Threads: read-only once made.
 * Memory:  malloc, a small multiple of the names' bytes; positions are 32-bit, so 4 GB at most.
 * Why tables of its own and not pointers: a vocabulary of 262,144 names is 2 MB of text; a slice for each
 * would be 4 MB more, and every look-up two cache misses instead of one and a tag. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define NO_KEY UINT64_MAX

/* ---- strings ---------------------------------------------------------------------------------------- */

bool ig_strings_reserve(ig_strings *s, uint64_t n, size_t n_bytes) {
    if (n >= UINT32_MAX || n_bytes > UINT32_MAX) return false;
    if (!s->at || s->cap < n) {
        uint32_t *at = realloc(s->at, (n + 1) * sizeof *at);
        if (!at) return false;
        if (!s->at) at[0] = 0;
        s->at = at;
        s->cap = (uint32_t)n;
    }
    if (!s->text || s->cap_bytes < n_bytes) {
        char *text = realloc(s->text, n_bytes ? n_bytes : 1);
        if (!text) return false;
        s->text = text;
        s->cap_bytes = n_bytes;
    }
    return true;
}

char *ig_strings_room(ig_strings *s, size_t n) {
    if (n > UINT32_MAX - s->n_bytes) return NULL;
    uint64_t n_cap = s->n < s->cap ? s->cap : (uint64_t)s->n * 2 + 16;
    size_t n_bytes = s->n_bytes + n <= s->cap_bytes ? s->cap_bytes : (s->n_bytes + n) * 2;
    if (n_bytes > UINT32_MAX) n_bytes = UINT32_MAX;
    return ig_strings_reserve(s, n_cap, n_bytes) ? s->text + s->n_bytes : NULL;
}

void ig_strings_done(ig_strings *s, size_t n) {
    s->n_bytes += n;
    s->at[++s->n] = (uint32_t)s->n_bytes;
}

void ig_strings_free(ig_strings *s) {
    free(s->text);
    free(s->at);
    *s = (ig_strings){0};
}

/* ---- names ------------------------------------------------------------------------------------------ */

static uint32_t table_size(uint64_t n_items) {
    uint32_t size = 16;
    while (size < n_items * 2) size *= 2; /* n_items is below 2^24: no wrap */
    return size;
}

bool ig_names_make(ig_names *t, uint64_t n, uint64_t seed) {
    uint32_t size = table_size(n);
    t->slot = malloc(size * sizeof *t->slot);
    if (!t->slot) return false;
    memset(t->slot, 0xff, size * sizeof *t->slot);
    t->mask = size - 1;
    t->seed = seed;
    return true;
}

static struct ig_name_slot *place(const ig_names *t, const ig_strings *names, ig_slice name) {
    uint64_t hash = ig_hash64(name.p, name.n, t->seed);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint32_t at = (uint32_t)hash & t->mask;; at = (at + 1) & t->mask) {
        struct ig_name_slot *slot = &t->slot[at];
        if (slot->id == IG_TOKEN_NONE) slot->tag = tag;
        if (slot->id == IG_TOKEN_NONE || (slot->tag == tag && ig_slice_eq(ig_string(names, slot->id), name)))
            return slot;
    }
}

uint32_t ig_names_find(const ig_names *t, const ig_strings *names, ig_slice name) {
    uint64_t hash = ig_hash64(name.p, name.n, t->seed);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint32_t at = (uint32_t)hash & t->mask;; at = (at + 1) & t->mask) {
        const struct ig_name_slot *slot = &t->slot[at];
        if (slot->id == IG_TOKEN_NONE) return IG_TOKEN_NONE;
        if (slot->tag == tag && ig_slice_eq(ig_string(names, slot->id), name)) return slot->id;
    }
}

void ig_names_begin(const ig_names *t, ig_slice name) {
    __builtin_prefetch(&t->slot[(uint32_t)ig_hash64(name.p, name.n, t->seed) & t->mask]);
}

uint32_t ig_names_add(ig_names *t, const ig_strings *names, uint32_t id) {
    struct ig_name_slot *slot = place(t, names, ig_string(names, id));
    uint32_t before = slot->id;
    if (before == IG_TOKEN_NONE) slot->id = id;
    return before;
}

/* ---- the trie --------------------------------------------------------------------------------------- */

static struct ig_trie_edge *edge_place(const ig_trie *t, uint32_t node, uint8_t byte) {
    uint64_t key = (uint64_t)node << 8 | byte, hash = (key ^ t->seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    for (uint32_t at = (uint32_t)(hash >> 32) & t->mask;; at = (at + 1) & t->mask)
        if (t->edge[at].key == key || t->edge[at].key == NO_KEY) return &t->edge[at];
}

bool ig_trie_make(ig_trie *t, uint32_t n_bytes, uint64_t seed) {
    uint32_t size = table_size(n_bytes);
    t->edge = malloc(size * sizeof *t->edge);
    t->terminal = malloc(((size_t)n_bytes + 1) * sizeof *t->terminal);
    if (!t->edge || !t->terminal) return false;
    for (uint32_t i = 0; i < size; i++) t->edge[i].key = NO_KEY;
    t->mask = size - 1;
    t->seed = seed;
    t->terminal[0] = IG_TOKEN_NONE;
    t->n_nodes = 1;
    return true;
}

uint32_t ig_trie_add(ig_trie *t, ig_slice text, uint32_t number) {
    uint32_t node = 0;
    t->begins[(uint8_t)text.p[0]] = true;
    for (size_t i = 0; i < text.n; i++) {
        struct ig_trie_edge *e = edge_place(t, node, (uint8_t)text.p[i]);
        if (e->key == NO_KEY) {
            *e = (struct ig_trie_edge){(uint64_t)node << 8 | (uint8_t)text.p[i], t->n_nodes};
            t->terminal[t->n_nodes++] = IG_TOKEN_NONE;
        }
        node = e->child;
    }
    t->terminal[node] = number;
    return node;
}

uint32_t ig_trie_child(const ig_trie *t, uint32_t node, uint8_t byte) {
    const struct ig_trie_edge *e = edge_place(t, node, byte);
    return e->key == NO_KEY ? IG_TOKEN_NONE : e->child;
}

void ig_trie_free(ig_trie *t) {
    free(t->edge);
    free(t->terminal);
}

/* ---- what a name stands for ------------------------------------------------------------------------- */

int ig_byte_of_char(uint32_t c) {
    static const struct { uint8_t from, to; } plain[] = {{33, 126}, {161, 172}, {174, 255}};
    for (size_t i = 0; i < 3; i++)
        if (c >= plain[i].from && c <= plain[i].to) return (int)c;
    if (c < 0x100 || c >= 0x100 + 68) return -1;
    int k = (int)c - 0x100; /* the k-th of 0..32, 127..160, 173 */
    return k < 33 ? k : k < 67 ? k + 94 : 173;
}

uint32_t ig_char_at(const uint8_t *s, size_t len) {
    if (len == 1) return s[0];
    if (len == 2) return (uint32_t)(s[0] & 31) << 6 | (s[1] & 63);
    if (len == 3) return (uint32_t)(s[0] & 15) << 12 | (uint32_t)(s[1] & 63) << 6 | (s[2] & 63);
    return (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 63) << 12 | (uint32_t)(s[2] & 63) << 6 |
           (s[3] & 63);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int ig_byte_of_name(ig_slice name) {
    if (name.n != 6 || memcmp(name.p, "<0x", 3) != 0 || name.p[5] != '>') return -1;
    int high = hex_digit(name.p[3]), low = hex_digit(name.p[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A name with a character outside the alphabet stands for its own text. */
static size_t decode_letters(char *out, ig_slice name) {
    const uint8_t *s = (const uint8_t *)name.p;
    size_t n = 0;
    for (size_t i = 0, len; i < name.n; i += len) {
        (void)ig_utf8_next(s + i, name.n - i, &len);
        int byte = ig_byte_of_char(ig_char_at(s + i, len));
        if (byte < 0) {
            memcpy(out, name.p, name.n);
            return name.n;
        }
        out[n++] = (char)byte;
    }
    return n;
}

const char *ig_find_text(const char *at, const char *end, ig_slice text) {
    while (at < end && (size_t)(end - at) >= text.n) {
        at = memchr(at, text.p[0], (size_t)(end - at) - text.n + 1);
        if (!at || memcmp(at, text.p, text.n) == 0) return at;
        at++;
    }
    return NULL;
}

/* Every `from` in `text` becomes `to`, left to right. */
static bool replace_all(ig_buf *out, ig_slice text, ig_slice from, ig_slice to) {
    const char *end = text.p + text.n, *at = text.p;
    for (;;) {
        const char *hit = ig_find_text(at, end, from);
        if (!hit) return ig_buf_add(out, at, (size_t)(end - at));
        if (!ig_buf_add(out, at, (size_t)(hit - at)) || !ig_buf_add(out, to.p, to.n)) return false;
        at = hit + from.n;
    }
}

static bool add_string(ig_strings *out, ig_slice s) {
    char *to = ig_strings_room(out, s.n);
    if (!to) return false;
    if (s.n > 0) memcpy(to, s.p, s.n);
    ig_strings_done(out, s.n);
    return true;
}

bool ig_decode_name(const ig_decoder *d, ig_slice name, ig_strings *out) {
    if (d->byte_level) {
        char *to = ig_strings_room(out, name.n);
        if (!to) return false;
        ig_strings_done(out, decode_letters(to, name));
        return true;
    }
    int byte = d->byte_fallback ? ig_byte_of_name(name) : -1;
    bool found = false;
    for (int i = 0; i < d->n_replace; i++)
        found = found || ig_find_text(name.p, name.p + name.n, d->replace[i].from);
    if (byte >= 0) {
        char c = (char)byte;
        return add_string(out, (ig_slice){&c, 1});
    }
    if (!found) return add_string(out, name);
    ig_buf a = ig_buf_init(IG_TOKEN_BYTES_MAX * 16), b = ig_buf_init(IG_TOKEN_BYTES_MAX * 16);
    bool good = ig_buf_add(&a, name.p, name.n);
    for (int i = 0; good && i < d->n_replace; i++) {
        ig_buf_clear(&b);
        good = replace_all(&b, (ig_slice){a.p, a.n}, d->replace[i].from, d->replace[i].to);
        ig_buf held = a;
        a = b;
        b = held;
    }
    good = good && add_string(out, (ig_slice){a.p, a.n});
    ig_buf_free(&a);
    ig_buf_free(&b);
    return good;
}
