/* bpe.h: the vocabulary of a tokenizer and the merging of its words, for the files that make one, that
 * encode with it and that decode. Nobody outside text includes it. */
#ifndef IG_TEXT_BPE_H
#define IG_TEXT_BPE_H

#include "text/inside.h"

/* ---- vocab.c: names and where to find them ----------------------------------------------------------- */

/* Texts in one piece of memory. Text i is [at[i], at[i + 1]). */
typedef struct ig_strings {
    char *text;
    uint32_t *at;
    uint32_t n, cap;
    size_t n_bytes, cap_bytes;
} ig_strings;

bool ig_strings_reserve(ig_strings *s, uint64_t n, size_t n_bytes);
/* Room for one more text of up to n bytes; NULL: no memory, or more than positions can say. */
char *ig_strings_room(ig_strings *s, size_t n);
void ig_strings_done(ig_strings *s, size_t n); /* n bytes were written there: they are the next text */
void ig_strings_free(ig_strings *s);

static inline ig_slice ig_string(const ig_strings *s, uint32_t i) {
    return (ig_slice){s->text + s->at[i], s->at[i + 1] - s->at[i]};
}

/* Ids by name, open addressing; the names are in strings of the caller. */
typedef struct ig_names {
    struct ig_name_slot { uint32_t tag, id; } *slot;
    uint32_t mask;
    uint64_t seed; /* the file must not choose what collides */
} ig_names;

bool ig_names_make(ig_names *t, uint64_t n, uint64_t seed);
uint32_t ig_names_find(const ig_names *t, const ig_strings *names, ig_slice name); /* or IG_TOKEN_NONE */
void ig_names_begin(const ig_names *t, ig_slice name); /* a find of it comes soon */
/* Enters names[id]. The id that has this name already, else IG_TOKEN_NONE. */
uint32_t ig_names_add(ig_names *t, const ig_strings *names, uint32_t id);

/* A trie of short texts, each with a number. */
typedef struct ig_trie {
    struct ig_trie_edge { uint64_t key; uint32_t child; } *edge;
    uint32_t *terminal; /* per node: the number of the text that ends there */
    uint32_t mask, n_nodes;
    uint64_t seed;
    bool begins[256];
} ig_trie;

bool ig_trie_make(ig_trie *t, uint32_t n_bytes, uint64_t seed); /* of all texts together */
uint32_t ig_trie_add(ig_trie *t, ig_slice text, uint32_t number); /* the node where it ends */
uint32_t ig_trie_child(const ig_trie *t, uint32_t node, uint8_t byte); /* or IG_TOKEN_NONE; the root is 0 */
void ig_trie_free(ig_trie *t);

/* ---- finder.c: tokens in a text ---------------------------------------------------------------------- */

enum { IG_FINDER_BYTES_MAX = 256 }; /* of a token */

typedef struct ig_finder {
    ig_trie trie; /* of the tokens backwards */
    struct ig_finder_node {
        uint32_t fail;      /* the longest end of this that is another node; the root is 0 */
        uint32_t any, user; /* the longest token that this ends in, a token that is not special; 0: none */
        uint16_t depth;
        bool is_special;
    } *node;
} ig_finder;

bool ig_finder_make(ig_finder *f, uint32_t n_bytes, uint64_t seed); /* of all tokens together */
void ig_finder_free(ig_finder *f);
void ig_finder_add(ig_finder *f, ig_slice text, uint32_t number, bool special); /* not empty */
bool ig_finder_link(ig_finder *f); /* after the last; false: no memory */

typedef struct ig_found {
    size_t at;
    uint32_t number, n_bytes;
} ig_found;

/* The longest token at each place of [from, to) where one begins, the last place first; out has room for to - from.
 * Special ones where opt wants them and they touch no plain range. Returns how many. */
size_t ig_finder_scan(const ig_finder *f, ig_slice text, size_t from, size_t to, const ig_encode_options *opt,
                      ig_found *out);
size_t ig_first_range(const ig_encode_options *opt, size_t at); /* the first plain range that ends behind `at` */

/* Byte-level vocabularies write each byte as a character: printable Latin-1 as itself, the other 68 as
 * U+0100 and on, in order. Back to a byte, or -1. */
int ig_byte_of_char(uint32_t c);
uint32_t ig_char_at(const uint8_t *s, size_t len); /* of one whole sequence of len bytes */
/* `<0xXX>`: the byte, else -1. */
int ig_byte_of_name(ig_slice name);

/* Where `text` (not empty) is first in [at, end), or NULL. Like memmem, which is slow for a few bytes. */
const char *ig_find_text(const char *at, const char *end, ig_slice text);

/* What a token's text becomes when it is decoded, appended to *out. */
bool ig_decode_name(const ig_decoder *d, ig_slice name, ig_strings *out);

static inline bool ig_is_special_type(uint8_t type) {
    return type == IG_TYPE_CONTROL || type == IG_TYPE_UNKNOWN;
}

/* ---- bpe.c: words to ids ----------------------------------------------------------------------------- */

typedef struct ig_bpe {
    uint64_t serial; /* which vocabulary a scratch has words of */
    uint64_t seed;
    uint32_t n;
    bool byte_level;    /* the symbols are bytes, else characters */
    bool byte_fallback; /* a character without a token becomes the tokens of its bytes, if all exist */
    bool fuse_unk;      /* neighbours without a token are one unknown token */
    bool cuts_at_mark;  /* a word may be cut before U+2581 where no token spans the place */
    uint32_t unk;       /* or NONE: what has no token is dropped */
    uint8_t *type;      /* per id */
    ig_strings name;    /* as written in the file; not kept for byte level */
    ig_names names;     /* of those */
    ig_strings bytes;   /* decoded */
    ig_names words;     /* of byte level, when words that are a token are that token: by decoded bytes */
    bool whole_words;   /* ... likewise of characters: by name */
    bool whole_breaks;  /* ... of those only words that begin with a line end */
    uint32_t byte_id[256]; /* the token of this byte, else NONE */
    struct ig_merge { uint64_t key; uint32_t rank, id; } *merge;
    uint32_t merge_mask;
    uint32_t *rank;        /* by scores instead of merges: per id, with RANK_SHARED; NONE: never merged to */
    uint8_t *before_mark;  /* bit per character below MARK_CHARS: some token has it before U+2581 */
} ig_bpe;

enum { IG_TOKEN_BYTES_MAX = 4096 }; /* of one token, as written in the file */

ig_status ig_bpe_take_merges(ig_bpe *b, const ig_tokenizer_parts *parts, ig_err *err);
ig_status ig_bpe_take_scores(ig_bpe *b, const ig_tokenizer_parts *parts, ig_err *err);
ig_status ig_bpe_take_cuts(ig_bpe *b, ig_err *err); /* after merges or scores */
void ig_bpe_free(ig_bpe *b);

/* Appends the ids of a word; false: *out is full, or no memory. */
bool ig_bpe_add_word(const ig_bpe *b, ig_tokenizer_scratch *s, ig_slice word, ig_tokens *out);

void ig_scratch_use(ig_tokenizer_scratch *s, const ig_bpe *b); /* before the first word of a call */
void ig_scratch_trim(ig_tokenizer_scratch *s);                 /* after the last */
ig_regex_scratch *ig_scratch_regex(ig_tokenizer_scratch *s);

#endif
