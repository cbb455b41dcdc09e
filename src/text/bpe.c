/* bpe: words to ids: symbols that are bytes or characters, joined pair by pair.
 * Owns:    the table of merges, or the ranks that scores give; the scratch of a thread.
 * Threads: read-only once made; what a word writes is in the caller's scratch.
 * Memory:  16 bytes a merge and as much free; scratch 52 bytes a byte of the longest word.
 * Why scores need no table: a pair is joined when its text is a token, so the names are the table, and what
 * the score says becomes the rank. Why words are cut at U+2581: in vocabularies of characters a whole text
 * is one word; where no token spans the place before a mark, both sides merge as if alone, and short words
 * are found in the cache. */
#include "text/bpe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CACHE_BITS = 14,
    CACHE_WORD_BYTES = 30,
    CACHE_WORD_IDS = 8,
    SHORT_WORD = 32,       /* symbols: a rescan is faster than a heap below this */
    KEEP_BYTES = 1 << 20,  /* scratch that outlives a call */
    MERGES_AT_ONCE = 32,
    MARK = 0x2581,
    MARK_CHARS = 0x20000,
    AT_BITS = 30           /* of a heap item: the text is at most 2^30 bytes */
};

#define NO_KEY UINT64_MAX
#define NO_ORDER UINT64_MAX
#define RANK_SHARED UINT32_C(0x80000000) /* more than one token has this score */
static const char mark_text[] = "\xE2\x96\x81";

struct cached_word {
    uint8_t n_bytes, n_ids;
    char bytes[CACHE_WORD_BYTES];
    uint32_t ids[CACHE_WORD_IDS];
};

/* A piece of a word. id NONE: not a token, by itself. */
struct symbol {
    uint32_t id, from, to; /* bytes of the word */
};

/* What a pair becomes, and when: least first. NO_ORDER: it stays two. */
struct pair {
    uint64_t order;
    uint32_t id;
};

/* Of a symbol of a long word. */
struct link {
    uint32_t prev, next; /* next GONE: it was merged into the one before */
    struct pair pair;    /* with the next */
};
#define END UINT32_MAX
#define GONE (UINT32_MAX - 1)

struct ig_tokenizer_scratch {
    uint64_t serial;
    ig_regex_scratch *regex;
    struct cached_word *cache;
    struct symbol *symbol;
    struct link *link;
    size_t cap_symbols;
    uint64_t *heap; /* order << AT_BITS | index of the left symbol */
    size_t n_heap, cap_heap;
};

/* ---- making ----------------------------------------------------------------------------------------- */

static uint32_t mix(uint64_t key, uint64_t seed) {
    key = (key ^ seed) * UINT64_C(0x9E3779B97F4A7C15);
    key ^= key >> 32;
    return (uint32_t)((key * UINT64_C(0xD6E8FEB86659FD93)) >> 32);
}

static struct ig_merge *merge_place(const ig_bpe *b, uint64_t key) {
    for (uint32_t at = mix(key, b->seed) & b->merge_mask;; at = (at + 1) & b->merge_mask)
        if (b->merge[at].key == key || b->merge[at].key == NO_KEY) return &b->merge[at];
}

/* Left and right of merge `rank`; false: it is not two texts, or they are too long. */
static bool merge_texts(const ig_tokenizer_parts *parts, uint64_t rank, ig_slice *left, ig_slice *right) {
    if (parts->pairs) {
        *left = parts->pairs[2 * rank];
        *right = parts->pairs[2 * rank + 1];
        return left->n > 0 && right->n > 0 && left->n <= IG_TOKEN_BYTES_MAX && right->n <= IG_TOKEN_BYTES_MAX;
    }
    ig_slice m = parts->merges[rank];
    const char *space = m.n > 1 && m.n <= 2 * IG_TOKEN_BYTES_MAX ? memchr(m.p + 1, ' ', m.n - 1) : NULL;
    if (!space) return false;
    *left = (ig_slice){m.p, (size_t)(space - m.p)};
    *right = (ig_slice){space + 1, m.n - left->n - 1};
    return true;
}

/* Merges [rank, rank + n) by ids. Half a million of them are as many misses of the cache three times over, so
 * the look-ups of a few are begun before the first is needed: half the time. */
static ig_status find_merges(const ig_bpe *b, const ig_tokenizer_parts *parts, uint64_t rank, uint64_t n,
                             uint32_t *id, struct ig_merge *out, ig_err *err) {
    const char *where = parts->pairs ? "tokenizer.json merges" : "tokenizer.ggml.merges";
    ig_slice left[MERGES_AT_ONCE], right[MERGES_AT_ONCE];
    for (uint64_t i = 0; i < n; i++) {
        if (!merge_texts(parts, rank + i, &left[i], &right[i]))
            return ig_fail(err, IG_EFORMAT, "%s[%" PRIu64 "] is not \"left right\"", where, rank + i);
        ig_names_begin(&b->names, left[i]);
        ig_names_begin(&b->names, right[i]);
    }
    for (uint64_t i = 0; i < n; i++) {
        char joined[2 * IG_TOKEN_BYTES_MAX];
        ig_slice both = {joined, left[i].n + right[i].n};
        memcpy(joined, left[i].p, left[i].n);
        memcpy(joined + left[i].n, right[i].p, right[i].n);
        uint32_t l = ig_names_find(&b->names, &b->name, left[i]);
        uint32_t r = ig_names_find(&b->names, &b->name, right[i]);
        /* Vocabularies are mostly in the order of their merges, and the ways to one token follow each other:
         * look there first. */
        for (int k = 0; k < 2 && !(*id < b->n && ig_slice_eq(ig_string(&b->name, *id), both)); k++) ++*id;
        if (*id >= b->n || !ig_slice_eq(ig_string(&b->name, *id), both))
            *id = ig_names_find(&b->names, &b->name, both);
        if (l == IG_TOKEN_NONE || r == IG_TOKEN_NONE || *id == IG_TOKEN_NONE)
            return ig_fail(err, IG_EFORMAT, "%s[%" PRIu64 "] \"%.*s\" \"%.*s\": %s is not a token", where,
                           rank + i, (int)(left[i].n < 64 ? left[i].n : 64), left[i].p,
                           (int)(right[i].n < 64 ? right[i].n : 64), right[i].p,
                           l == IG_TOKEN_NONE   ? "left"
                           : r == IG_TOKEN_NONE ? "right"
                                                : "the joined text");
        out[i] = (struct ig_merge){(uint64_t)l << 32 | r, (uint32_t)(rank + i), *id};
        __builtin_prefetch(&b->merge[mix(out[i].key, b->seed) & b->merge_mask], 1);
    }
    return IG_OK;
}

ig_status ig_bpe_take_merges(ig_bpe *b, const ig_tokenizer_parts *parts, ig_err *err) {
    uint32_t size = 16, id = IG_TOKEN_NONE;
    uint64_t n;
    while (size < parts->n_merges * 2) size *= 2;
    b->merge = malloc(size * sizeof *b->merge);
    if (!b->merge)
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for %" PRIu64 " merges", parts->n_merges);
    for (uint32_t i = 0; i < size; i++) b->merge[i].key = NO_KEY;
    b->merge_mask = size - 1;

    for (uint64_t rank = 0; rank < parts->n_merges; rank += n) {
        struct ig_merge some[MERGES_AT_ONCE];
        n = parts->n_merges - rank < MERGES_AT_ONCE ? parts->n_merges - rank : MERGES_AT_ONCE;
        ig_status st = find_merges(b, parts, rank, n, &id, some, err);
        if (st) return st;
        for (uint64_t i = 0; i < n; i++) {
            if (ig_is_special_type(b->type[some[i].id])) continue; /* a text never merges to a control token */
            *merge_place(b, some[i].key) = some[i]; /* twice: the later, as elsewhere */
        }
    }
    return IG_OK;
}

struct scored {
    float score;
    uint32_t id;
};

static int by_score(const void *p, const void *q) {
    const struct scored *a = p, *b = q;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Ranks from scores, highest first. User-defined tokens come before all others, whatever their score, as
 * the trainer matched them first; control, unknown and byte tokens are never merged to. */
ig_status ig_bpe_take_scores(ig_bpe *b, const ig_tokenizer_parts *parts, ig_err *err) {
    struct scored *list = malloc(b->n * sizeof *list);
    b->rank = malloc(b->n * sizeof *b->rank);
    if (!list || !b->rank) {
        free(list);
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for %u scores", b->n);
    }
    uint32_t n = 0;
    bool sorted = true;
    for (uint32_t id = 0; id < b->n; id++) {
        uint8_t type = b->type[id];
        if (isnan(parts->scores[id])) {
            free(list);
            return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.scores[%u] is not a number", id);
        }
        b->rank[id] = type == IG_TYPE_USER ? 0 : IG_TOKEN_NONE;
        if (type != IG_TYPE_NORMAL && type != IG_TYPE_UNUSED) continue;
        list[n] = (struct scored){parts->scores[id], id};
        sorted = sorted && (n == 0 || list[n - 1].score >= list[n].score);
        n++;
    }
    if (!sorted) qsort(list, n, sizeof *list, by_score);
    uint32_t rank = 0;
    for (uint32_t i = 0, end; i < n; i = end) {
        rank++;
        for (end = i + 1; end < n && list[end].score == list[i].score;) end++;
        for (uint32_t k = i; k < end; k++) b->rank[list[k].id] = rank | (end - i > 1 ? RANK_SHARED : 0);
    }
    free(list);
    return IG_OK;
}

/* Whether cuts are safe, and before which marks. They are not where a character without a token vanishes or
 * is fused, or a merge eats what stands for one: the names do not show that. */
ig_status ig_bpe_take_cuts(ig_bpe *b, ig_err *err) {
    bool all_bytes = b->byte_fallback;
    for (int i = 0; i < 256; i++) all_bytes = all_bytes && b->byte_id[i] != IG_TOKEN_NONE;
    if (b->byte_level || b->whole_words || (!b->rank && !all_bytes)) return IG_OK;
    for (uint32_t i = 0; b->merge && i <= b->merge_mask; i++) {
        if (b->merge[i].key == NO_KEY) continue;
        uint32_t l = (uint32_t)(b->merge[i].key >> 32), r = (uint32_t)b->merge[i].key;
        if (ig_byte_of_name(ig_string(&b->name, l)) >= 0 || ig_byte_of_name(ig_string(&b->name, r)) >= 0)
            return IG_OK;
    }
    b->before_mark = calloc(MARK_CHARS / 8, 1);
    if (!b->before_mark) return ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
    /* All names at once: a hit at a name's beginning has the end of another before it, which only forgoes
     * a cut; so those are told apart. */
    const char *text = b->name.text, *end = text + b->name.n_bytes;
    uint32_t id = 0;
    ig_slice mark = {mark_text, 3};
    for (const char *hit = text; (hit = ig_find_text(hit, end, mark)); hit += 3) {
        size_t at = (size_t)(hit - text), from;
        while (b->name.at[id + 1] <= at) id++;
        if (b->name.at[id] == at) continue;
        uint32_t c = ig_utf8_before((ig_slice){text, b->name.n_bytes}, at, &from);
        if (c < MARK_CHARS) b->before_mark[c >> 3] |= (uint8_t)(1 << (c & 7));
    }
    b->cuts_at_mark = true;
    return IG_OK;
}

void ig_bpe_free(ig_bpe *b) {
    ig_strings_free(&b->name);
    ig_strings_free(&b->bytes);
    free(b->names.slot);
    free(b->words.slot);
    free(b->type);
    free(b->merge);
    free(b->rank);
    free(b->before_mark);
}

/* ---- scratch ---------------------------------------------------------------------------------------- */

ig_tokenizer_scratch *ig_tokenizer_scratch_make(void) {
    ig_tokenizer_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->regex = ig_regex_scratch_make();
    s->cache = calloc((size_t)1 << CACHE_BITS, sizeof *s->cache);
    if (!s->regex || !s->cache) {
        ig_tokenizer_scratch_free(s);
        return NULL;
    }
    return s;
}

void ig_tokenizer_scratch_free(ig_tokenizer_scratch *s) {
    if (!s) return;
    ig_regex_scratch_free(s->regex);
    free(s->cache);
    free(s->symbol);
    free(s->link);
    free(s->heap);
    free(s);
}

ig_regex_scratch *ig_scratch_regex(ig_tokenizer_scratch *s) {
    return s->regex;
}

/* The cached words are of one vocabulary. */
void ig_scratch_use(ig_tokenizer_scratch *s, const ig_bpe *b) {
    ig_regex_scratch_start(s->regex);
    if (s->serial == b->serial) return;
    if (s->serial != 0) memset(s->cache, 0, ((size_t)1 << CACHE_BITS) * sizeof *s->cache);
    s->serial = b->serial;
}

/* After a giant word, give its memory back. */
void ig_scratch_trim(ig_tokenizer_scratch *s) {
    if (s->cap_symbols * (sizeof *s->symbol + sizeof *s->link) + s->cap_heap * sizeof *s->heap <= KEEP_BYTES)
        return;
    free(s->symbol);
    free(s->link);
    free(s->heap);
    s->symbol = NULL;
    s->link = NULL;
    s->heap = NULL;
    s->cap_symbols = s->cap_heap = 0;
}

static bool scratch_reserve(ig_tokenizer_scratch *s, size_t n_symbols) {
    if (n_symbols <= s->cap_symbols) return true;
    size_t cap = n_symbols < 256 ? 256 : n_symbols; /* each merge pops one pair and pushes at most two */
    struct symbol *symbol = realloc(s->symbol, cap * sizeof *symbol);
    if (symbol) s->symbol = symbol;
    struct link *link = realloc(s->link, cap * sizeof *link);
    if (link) s->link = link;
    uint64_t *heap = realloc(s->heap, 2 * cap * sizeof *heap);
    if (heap) s->heap = heap;
    if (!symbol || !link || !heap) return false;
    s->cap_symbols = cap;
    s->cap_heap = 2 * cap;
    return true;
}

/* ---- pairs ------------------------------------------------------------------------------------------ */

/* Equal orders: the leftmost pair is first. The ways to make one token are in the order of tokenizer.json:
 * longer left sides first. Where tokens share a score there is no such order. */
static struct pair pair_by_score(const ig_bpe *b, const char *word, const struct symbol *l,
                                 const struct symbol *r) {
    uint32_t n = r->to - l->from, n_left = l->to - l->from;
    uint32_t id = n > IG_TOKEN_BYTES_MAX ? IG_TOKEN_NONE
                                         : ig_names_find(&b->names, &b->name, (ig_slice){word + l->from, n});
    if (id == IG_TOKEN_NONE || b->rank[id] == IG_TOKEN_NONE) return (struct pair){NO_ORDER, 0};
    uint64_t rank = b->rank[id] & ~RANK_SHARED;
    return (struct pair){rank << 12 | (b->rank[id] & RANK_SHARED ? 0 : IG_TOKEN_BYTES_MAX - 1 - n_left), id};
}

static inline struct pair find_pair(const ig_bpe *b, const char *word, const struct symbol *l,
                                    const struct symbol *r) {
    if (b->rank) return pair_by_score(b, word, l, r);
    const struct ig_merge *m = merge_place(b, (uint64_t)l->id << 32 | r->id);
    return m->key == NO_KEY ? (struct pair){NO_ORDER, 0} : (struct pair){m->rank, m->id};
}

static void join(struct symbol *l, const struct symbol *r, uint32_t id) {
    l->id = id;
    l->to = r->to;
}

/* ---- long words ------------------------------------------------------------------------------------- */

static void heap_push(ig_tokenizer_scratch *s, uint64_t item) {
    size_t at = s->n_heap++;
    ig_assert(at < s->cap_heap);
    for (size_t up; at > 0 && s->heap[up = (at - 1) / 2] > item; at = up) s->heap[at] = s->heap[up];
    s->heap[at] = item;
}

static uint64_t heap_pop(ig_tokenizer_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t at = 0;
    for (;;) {
        size_t down = 2 * at + 1;
        if (down >= s->n_heap) break;
        if (down + 1 < s->n_heap && s->heap[down + 1] < s->heap[down]) down++;
        if (s->heap[down] >= last) break;
        s->heap[at] = s->heap[down];
        at = down;
    }
    s->heap[at] = last;
    return top;
}

static void push_pair(const ig_bpe *b, ig_tokenizer_scratch *s, const char *word, uint32_t at) {
    struct link *link = &s->link[at];
    if (link->next == END) return;
    link->pair = find_pair(b, word, &s->symbol[at], &s->symbol[link->next]);
    if (link->pair.order != NO_ORDER) heap_push(s, link->pair.order << AT_BITS | at);
}

/* s->symbol[0..n) become a list, the pairs a heap: O(n log n) whatever the text. Returns how many are left,
 * moved together. */
static size_t merge_long(const ig_bpe *b, ig_tokenizer_scratch *s, const char *word, size_t n) {
    for (uint32_t i = 0; i < n; i++)
        s->link[i] = (struct link){i > 0 ? i - 1 : END, i + 1 < n ? i + 1 : END, {NO_ORDER, 0}};
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) push_pair(b, s, word, (uint32_t)i);
    while (s->n_heap > 0) {
        uint64_t item = heap_pop(s);
        uint32_t at = (uint32_t)item & ((1u << AT_BITS) - 1), next = s->link[at].next;
        if (next >= GONE) continue;
        if (s->link[at].pair.order != item >> AT_BITS) continue; /* a pair that is no longer there */
        join(&s->symbol[at], &s->symbol[next], s->link[at].pair.id);
        s->link[at].next = s->link[next].next;
        s->link[next].next = GONE;
        if (s->link[at].next != END) s->link[s->link[at].next].prev = at;
        if (s->link[at].prev != END) push_pair(b, s, word, s->link[at].prev);
        push_pair(b, s, word, at);
    }
    size_t left = 0;
    for (uint32_t i = 0; i < n; i++)
        if (s->link[i].next != GONE) s->symbol[left++] = s->symbol[i];
    return left;
}

/* Short words: merge the best pair, look at its two neighbours again, repeat. */
static size_t merge_short(const ig_bpe *b, struct symbol *sym, const char *word, size_t n) {
    struct pair pair[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) pair[i] = find_pair(b, word, &sym[i], &sym[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pair[i].order < pair[best].order) best = i;
        if (pair[best].order == NO_ORDER) break;
        join(&sym[best], &sym[best + 1], pair[best].id);
        n--;
        for (size_t i = best + 1; i < n; i++) sym[i] = sym[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) pair[i] = pair[i + 1];
        if (best + 1 < n) pair[best] = find_pair(b, word, &sym[best], &sym[best + 1]);
        if (best > 0) pair[best - 1] = find_pair(b, word, &sym[best - 1], &sym[best]);
    }
    return n;
}

/* ---- words ------------------------------------------------------------------------------------------ */

/* The tokens of a character's bytes to *sym; false: one is missing. */
static bool fall_back(const ig_bpe *b, struct symbol *sym, size_t *n, ig_slice word, uint32_t from,
                      uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        if (b->byte_id[(uint8_t)word.p[i]] == IG_TOKEN_NONE) return false;
    for (uint32_t i = from; i < to; i++)
        sym[(*n)++] = (struct symbol){b->byte_id[(uint8_t)word.p[i]], i, i + 1};
    return true;
}

/* The first symbols of a word; how many. Bytes or characters that have no token are dropped where there is
 * no unknown token, as the reference does. sym has room for one a byte. */
static size_t first_symbols(const ig_bpe *b, struct symbol *sym, ig_slice word) {
    size_t n = 0;
    struct symbol unknown = {.id = IG_TOKEN_NONE}; /* waits: what falls back to bytes comes before it */
    if (b->byte_level) {
        for (uint32_t i = 0; i < word.n; i++) {
            uint32_t id = b->byte_id[(uint8_t)word.p[i]];
            if (id != IG_TOKEN_NONE) sym[n++] = (struct symbol){id, i, i + 1};
        }
        return n;
    }
    for (uint32_t i = 0, to; i < word.n; i = to) {
        size_t len;
        (void)ig_utf8_next((const uint8_t *)word.p + i, word.n - i, &len);
        to = i + (uint32_t)len;
        uint32_t id = ig_names_find(&b->names, &b->name, (ig_slice){word.p + i, len});
        if (id != IG_TOKEN_NONE && ig_is_special_type(b->type[id])) id = IG_TOKEN_NONE;
        if (b->rank || id != IG_TOKEN_NONE) { /* by score even what is no token may be part of one */
            if (unknown.id != IG_TOKEN_NONE) sym[n++] = unknown;
            unknown.id = IG_TOKEN_NONE;
            sym[n++] = (struct symbol){id, i, to};
        } else if (!(b->byte_fallback && fall_back(b, sym, &n, word, i, to)) && b->unk != IG_TOKEN_NONE) {
            if (unknown.id != IG_TOKEN_NONE && !b->fuse_unk) sym[n++] = unknown;
            unknown =
                (struct symbol){b->unk, unknown.id != IG_TOKEN_NONE && b->fuse_unk ? unknown.from : i, to};
        }
    }
    if (unknown.id != IG_TOKEN_NONE) sym[n++] = unknown;
    return n;
}

/* By score, at the end: a character that is no token and became no part of one is its bytes. */
static bool add_symbol(const ig_bpe *b, const struct symbol *sym, ig_slice word, ig_tokens *out) {
    if (sym->id != IG_TOKEN_NONE) return ig_tokens_add(out, sym->id);
    struct symbol byte[4];
    size_t n = 0;
    if (!fall_back(b, byte, &n, word, sym->from, sym->to))
        return b->unk == IG_TOKEN_NONE || ig_tokens_add(out, b->unk);
    for (size_t i = 0; i < n; i++)
        if (!ig_tokens_add(out, byte[i].id)) return false;
    return true;
}

static uint32_t whole_word(const ig_bpe *b, ig_slice word) {
    uint32_t id = IG_TOKEN_NONE;
    if (b->words.slot) id = ig_names_find(&b->words, &b->bytes, word);
    else if (b->whole_words || (b->whole_breaks && *word.p == '\n'))
        id = ig_names_find(&b->names, &b->name, word);
    return id != IG_TOKEN_NONE && ig_is_special_type(b->type[id]) ? IG_TOKEN_NONE : id;
}

static bool merge_word(const ig_bpe *b, ig_tokenizer_scratch *s, ig_slice word, ig_tokens *out) {
    struct symbol few[SHORT_WORD], *sym = few;
    size_t n;
    if (word.n <= SHORT_WORD) {
        n = first_symbols(b, few, word);
        n = merge_short(b, few, word.p, n);
    } else {
        if (!scratch_reserve(s, word.n)) return false;
        sym = s->symbol;
        n = first_symbols(b, sym, word);
        n = n <= SHORT_WORD ? merge_short(b, sym, word.p, n) : merge_long(b, s, word.p, n);
    }
    for (size_t i = 0; i < n; i++)
        if (!add_symbol(b, &sym[i], word, out)) return false;
    return true;
}

static bool add_cut_word(const ig_bpe *b, ig_tokenizer_scratch *s, ig_slice word, ig_tokens *out) {
    struct cached_word *c = NULL;
    size_t n_before = out->n;

    if (word.n <= CACHE_WORD_BYTES) {
        c = &s->cache[ig_hash64(word.p, word.n, 0) & ((1u << CACHE_BITS) - 1)];
        if (c->n_bytes == word.n && memcmp(c->bytes, word.p, word.n) == 0) {
            for (size_t i = 0; i < c->n_ids; i++)
                if (!ig_tokens_add(out, c->ids[i])) return false;
            return true;
        }
    }
    uint32_t whole = whole_word(b, word);
    if (whole != IG_TOKEN_NONE ? !ig_tokens_add(out, whole) : !merge_word(b, s, word, out)) return false;
    if (c && out->n - n_before <= CACHE_WORD_IDS) {
        c->n_bytes = (uint8_t)word.n;
        c->n_ids = (uint8_t)(out->n - n_before);
        memcpy(c->bytes, word.p, word.n);
        if (c->n_ids > 0) memcpy(c->ids, out->v + n_before, c->n_ids * sizeof *c->ids);
    }
    return true;
}

bool ig_bpe_add_word(const ig_bpe *b, ig_tokenizer_scratch *s, ig_slice word, ig_tokens *out) {
    const char *from = word.p, *end = word.p + word.n;
    if (word.n == 0) return true;
    if (!b->cuts_at_mark) return add_cut_word(b, s, word, out);
    ig_slice mark = {mark_text, 3};
    for (const char *at = from + 1; (at = ig_find_text(at, end, mark)); at++) {
        size_t begin;
        uint32_t c = ig_utf8_before(word, (size_t)(at - word.p), &begin);
        if (c == MARK || c >= MARK_CHARS || (b->before_mark[c >> 3] >> (c & 7) & 1)) continue;
        if (!add_cut_word(b, s, (ig_slice){from, (size_t)(at - from)}, out)) return false;
        from = at;
    }
    return add_cut_word(b, s, (ig_slice){from, (size_t)(end - from)}, out);
}
