/* tokenizer: text to ids and what is known of an id, for every kind of vocabulary.
 * Owns:    a copy of the vocabulary, the tokens that are looked for before anything else, the ids with a
 *          role. What it was made from may be closed afterwards.
 * Threads: read-only once made; what an encode writes is in the caller's scratch.
 * Memory:  malloc, a small multiple of the names' bytes.
 * The way of a text: special tokens are cut out, what lies between is normalised, cut into words
 * (pretok.c), and each word merged (bpe.c). Written by hand: measured 7 to 13 times faster than the crate
 * that most use, with equal ids. */
#include "text/bpe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    VOCAB_MAX = (1 << 22) - 1,
    MERGES_MAX = 1 << 23,
    SPECIAL_BYTES_MAX = IG_FINDER_BYTES_MAX, /* of one special token */
    FIND_BYTES = 2048,               /* a text is looked through in pieces */
    SPECIAL_BYTES_ALL_MAX = 1 << 20, /* of all of them: the trie */
    TEXT_BYTES_MAX = 1 << 30,        /* positions in a word are 30-bit */
    EOS_MAX = 64
};

/* A token that is looked for. */
struct wanted {
    uint32_t id;
    bool special, lstrip, rstrip, single_word;
};

struct ig_tokenizer {
    ig_bpe bpe;
    uint32_t role[IG_ROLE_COUNT];
    uint32_t eos[EOS_MAX];
    int n_eos;
    uint32_t before[IG_AROUND_MAX], after[IG_AROUND_MAX];
    int n_before, n_after;
    ig_normal *normal; /* or NULL: nothing to do */
    ig_pretok *pretok;
    ig_decoder decoder; /* n_strip and first_strips are of use; the texts are gone */
    struct wanted *wanted;
    uint32_t n_wanted;
    ig_trie raw, normalized; /* numbers of wanted; found in the text as it is, and normalised */
    ig_finder find_raw, find_normalized; /* the same, for whole texts */
};

/* ---- making one ------------------------------------------------------------------------------------- */

static ig_status check_token(const ig_tokenizer_parts *parts, const char *where, uint64_t id, ig_err *err) {
    ig_slice name = parts->tokens[id];
    if (!name.p && parts->pretok) return IG_OK;
    if (name.n == 0) return ig_fail(err, IG_EFORMAT, "%s[%" PRIu64 "] is empty", where, id);
    if (name.n > IG_TOKEN_BYTES_MAX)
        return ig_fail(err, IG_EFORMAT, "%s[%" PRIu64 "]: %zu bytes, limit %d", where, id, name.n,
                       IG_TOKEN_BYTES_MAX);
    if (!ig_slice_utf8_valid(name, NULL))
        return ig_fail(err, IG_EFORMAT, "%s[%" PRIu64 "] is not valid UTF-8", where, id);
    if (parts->types && (parts->types[id] < IG_TYPE_NORMAL || parts->types[id] > IG_TYPE_LAST))
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.token_type[%" PRIu64 "] is %d, must be %d to %d", id,
                       parts->types[id], IG_TYPE_NORMAL, IG_TYPE_LAST);
    return IG_OK;
}

static const char *tokens_key(const ig_tokenizer_parts *parts) {
    return parts->pretok ? "tokenizer.json vocab" : "tokenizer.ggml.tokens";
}

/* A user-defined run of blanks. Scores know blanks as U+2581, the text has them so when it is merged. */
static bool is_blank_run(const ig_bpe *b, const ig_tokenizer_parts *parts, uint32_t id) {
    if (!parts->scores || b->type[id] != IG_TYPE_USER) return false;
    for (size_t i = 0; i < parts->tokens[id].n; i++)
        if (parts->tokens[id].p[i] != ' ') return false;
    return true;
}

static bool copy_name(ig_bpe *b, const ig_tokenizer_parts *parts, uint32_t id) {
    ig_slice name = parts->tokens[id];
    bool blanks = is_blank_run(b, parts, id);
    size_t n = blanks ? name.n * 3 : name.n;
    char *to = ig_strings_room(&b->name, n);
    if (!to) return false;
    if (blanks) for (size_t i = 0; i < name.n; i++) memcpy(to + 3 * i, "\xE2\x96\x81", 3);
    else if (n > 0) memcpy(to, name.p, n);
    ig_strings_done(&b->name, n);
    return true;
}

/* Copies the names and finds them by name. */
static ig_status take_names(ig_bpe *b, const ig_tokenizer_parts *parts, ig_err *err) {
    const char *where = tokens_key(parts);
    size_t n_bytes = 0;
    for (uint64_t id = 0; id < parts->n_tokens; id++) {
        ig_status st = check_token(parts, where, id, err);
        if (st) return st;
        n_bytes += parts->tokens[id].n;
    }
    b->n = (uint32_t)parts->n_tokens;
    b->type = malloc(b->n);
    if (!b->type || !ig_strings_reserve(&b->name, b->n, n_bytes) || !ig_names_make(&b->names, b->n, b->seed))
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for %u tokens", b->n);
    for (uint32_t id = 0; id < b->n; id++) {
        b->type[id] = parts->types ? (uint8_t)parts->types[id] : IG_TYPE_NORMAL;
        if (!copy_name(b, parts, id)) return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for its names");
        if (ig_string(&b->name, id).n == 0) continue; /* no token has this id */
        uint32_t before = ig_names_add(&b->names, &b->name, id);
        if (before == IG_TOKEN_NONE) continue;
        ig_slice name = ig_string(&b->name, id);
        return ig_fail(err, IG_EFORMAT, "%s: %u and %u are both \"%.*s\"", where, before, id,
                       (int)(name.n < 64 ? name.n : 64), name.p);
    }
    return IG_OK;
}

/* Special tokens stand for what is written, and so does all that a GGUF file adds; other names are decoded.
 * Then the tokens of single bytes are known. */
static ig_status take_bytes(ig_tokenizer *t, const ig_tokenizer_parts *parts, ig_err *err) {
    ig_bpe *b = &t->bpe;
    memset(b->byte_id, 0xff, sizeof b->byte_id);
    if (!ig_strings_reserve(&b->bytes, b->n, b->name.n_bytes))
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for its names");
    for (uint32_t id = 0; id < b->n; id++) {
        static const ig_decoder as_written = {0};
        ig_slice name = ig_string(&b->name, id);
        bool user = b->type[id] == IG_TYPE_USER;
        bool literal = ig_is_special_type(b->type[id]) || (user && !parts->pretok && !parts->scores);
        if (!ig_decode_name(literal ? &as_written : &parts->decoder, name, &b->bytes))
            return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for its names");
        ig_slice bytes = ig_string(&b->bytes, id);
        if (b->byte_level && bytes.n == 1 && !literal && !user) b->byte_id[(uint8_t)*bytes.p] = id;
        int byte = !b->byte_level && b->byte_fallback ? ig_byte_of_name(name) : -1;
        if (byte >= 0 && !ig_is_special_type(b->type[id])) b->byte_id[byte] = id;
        if (byte < 0 && !b->byte_level && b->type[id] == IG_TYPE_BYTE)
            return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.tokens[%u] \"%.*s\" is no byte's name",
                           id, (int)(name.n < 64 ? name.n : 64), name.p);
    }
    return IG_OK;
}

/* The list of what is looked for, from types where the file has no list of its own. */
static ig_status added_by_type(const ig_bpe *b, ig_added_token **out, uint64_t *n, ig_err *err) {
    *n = 0;
    for (uint32_t id = 0; id < b->n; id++)
        *n += ig_is_special_type(b->type[id]) || b->type[id] == IG_TYPE_USER;
    ig_added_token *list = malloc((*n ? *n : 1) * sizeof *list);
    if (!list) return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for special tokens");
    *n = 0;
    for (uint32_t id = 0; id < b->n; id++) {
        if (!ig_is_special_type(b->type[id]) && b->type[id] != IG_TYPE_USER) continue;
        list[(*n)++] = (ig_added_token){.text = ig_string(&b->name, id), .id = id,
                                        .special = ig_is_special_type(b->type[id])};
    }
    *out = list;
    return IG_OK;
}

static ig_status check_added(const ig_tokenizer_parts *parts, const ig_added_token *list, uint64_t n,
                             ig_err *err) {
    uint64_t n_bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (list[i].text.n > SPECIAL_BYTES_MAX)
            return ig_fail(err, IG_EFORMAT, "%s[%u]: special, %zu bytes, limit %d", tokens_key(parts),
                           list[i].id, list[i].text.n, SPECIAL_BYTES_MAX);
        n_bytes += list[i].text.n;
    }
    if (n_bytes > SPECIAL_BYTES_ALL_MAX)
        return ig_fail(err, IG_EFORMAT, "tokenizer: special tokens of %" PRIu64 " bytes, limit %d", n_bytes,
                       SPECIAL_BYTES_ALL_MAX);
    return IG_OK;
}

/* Looked for in normalised text, so itself normalised. */
static ig_status add_normalized(ig_tokenizer *t, ig_regex_scratch *s, ig_slice text, uint32_t number,
                                ig_err *err) {
    ig_buf held = ig_buf_init(0);
    ig_status st = t->normal ? ig_normal_apply(t->normal, s, text, &held, &text, err) : IG_OK;
    if (!st && text.n > SPECIAL_BYTES_MAX)
        st = ig_fail(err, IG_EFORMAT, "tokenizer: an added token of %zu bytes, normalized", text.n);
    if (!st && text.n > 0) {
        ig_trie_add(&t->normalized, text, number);
        ig_finder_add(&t->find_normalized, text, number, t->wanted[number].special);
    }
    ig_buf_free(&held);
    return st;
}

static ig_status take_wanted(ig_tokenizer *t, const ig_tokenizer_parts *parts, ig_err *err) {
    ig_added_token *own = NULL;
    const ig_added_token *list = parts->added;
    uint64_t n = parts->n_added;
    uint32_t n_raw = 0, n_normalized = 0;
    ig_regex_scratch *s = NULL;
    ig_status st = IG_OK;
    if (!parts->pretok) st = added_by_type(&t->bpe, &own, &n, err);
    if (own) list = own;
    if (!st) st = check_added(parts, list, n, err);
    if (st) goto out;
    t->wanted = malloc((n ? n : 1) * sizeof *t->wanted);
    for (uint64_t i = 0; i < n; i++) {
        n_raw += list[i].normalized ? 0 : (uint32_t)list[i].text.n;
        n_normalized += list[i].normalized ? SPECIAL_BYTES_MAX : 0;
        if (n_normalized > SPECIAL_BYTES_ALL_MAX) {
            st = ig_fail(err, IG_EFORMAT, "tokenizer: over %d normalized added tokens",
                         SPECIAL_BYTES_ALL_MAX / SPECIAL_BYTES_MAX);
            goto out;
        }
    }
    if (!t->wanted || !ig_trie_make(&t->raw, n_raw, t->bpe.seed) ||
        !ig_finder_make(&t->find_raw, n_raw, t->bpe.seed) ||
        (n_normalized && !ig_finder_make(&t->find_normalized, n_normalized, t->bpe.seed)) ||
        (n_normalized && !(s = ig_regex_scratch_make())) ||
        (n_normalized && !ig_trie_make(&t->normalized, n_normalized, t->bpe.seed))) {
        st = ig_fail(err, IG_ELIMIT, "tokenizer: no memory for special tokens");
        goto out;
    }
    for (uint64_t i = 0; i < n && !st; i++) {
        const ig_added_token *a = &list[i];
        t->wanted[t->n_wanted] = (struct wanted){a->id, a->special, a->lstrip, a->rstrip, a->single_word};
        if (a->normalized) st = add_normalized(t, s, a->text, t->n_wanted, err);
        else if (a->text.n > 0) {
            ig_trie_add(&t->raw, a->text, t->n_wanted);
            ig_finder_add(&t->find_raw, a->text, t->n_wanted, a->special);
        }
        t->n_wanted++;
    }
    if (!st && (!ig_finder_link(&t->find_raw) || (n_normalized && !ig_finder_link(&t->find_normalized))))
        st = ig_fail(err, IG_ELIMIT, "tokenizer: no memory for special tokens");
out:
    ig_regex_scratch_free(s);
    free(own);
    return st;
}

static ig_status take_roles(ig_tokenizer *t, const ig_tokenizer_parts *parts, ig_err *err) {
    static const char *const key[IG_ROLE_COUNT] = {"bos", "eos", "eot", "eom", "unknown", "padding"};
    for (int i = 0; i < IG_ROLE_COUNT; i++) {
        if (parts->role[i] != IG_TOKEN_NONE && parts->role[i] >= t->bpe.n)
            return ig_fail(err, IG_EFORMAT,
                           "tokenizer.ggml.%s_token_id is %" PRIu64 ", the vocabulary has %u", key[i],
                           parts->role[i], t->bpe.n);
        t->role[i] = (uint32_t)parts->role[i];
    }
    t->n_before = parts->n_before;
    t->n_after = parts->n_after;
    memcpy(t->before, parts->before, sizeof t->before);
    memcpy(t->after, parts->after, sizeof t->after);
    if (parts->add_bos && t->role[IG_ROLE_BOS] != IG_TOKEN_NONE)
        t->before[t->n_before++] = t->role[IG_ROLE_BOS];
    if (parts->add_eos && t->role[IG_ROLE_EOS] == IG_TOKEN_NONE)
        return ig_fail(err, IG_EFORMAT, "an EOS is to be added to each text, but no token is it");
    if (parts->add_eos) t->after[t->n_after++] = t->role[IG_ROLE_EOS];
    return IG_OK;
}

static void add_eos(ig_tokenizer *t, uint32_t id) {
    if (id == IG_TOKEN_NONE || t->n_eos == EOS_MAX) return;
    for (int i = 0; i < t->n_eos; i++)
        if (t->eos[i] == id) return;
    t->eos[t->n_eos++] = id;
}

/* What ends a generation: the end set of a snapshot; else what the file says, and the end markers known by
 * their text, because files often name one of two. Where <|tool_response> exists, </s> is an ordinary
 * token. */
static void take_eos(ig_tokenizer *t, const ig_tokenizer_parts *parts) {
    static const char *const known[] = {"<|eot_id|>",    "<|im_end|>", "<|end|>",         "<end_of_turn>",
                                        "<|endoftext|>", "<|eom_id|>", "<EOT>",           "<|end_of_text|>",
                                        "<eos>",         "<turn|>",    "<|tool_response>"};
    const ig_bpe *b = &t->bpe;
    for (int i = 0; i < parts->n_eos; i++) add_eos(t, parts->eos[i]);
    if (parts->n_eos > 0) return;
    add_eos(t, t->role[IG_ROLE_EOS]);
    add_eos(t, t->role[IG_ROLE_EOT]);
    add_eos(t, t->role[IG_ROLE_EOM]);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        add_eos(t, ig_names_find(&b->names, &b->name, ig_slice_of(known[i])));
    if (ig_names_find(&b->names, &b->name, ig_slice_of("<|tool_response>")) == IG_TOKEN_NONE) return;
    uint32_t plain = ig_names_find(&b->names, &b->name, ig_slice_of("</s>"));
    for (int i = 0; i < t->n_eos; i++)
        if (t->eos[i] == plain) t->eos[i] = t->eos[--t->n_eos];
}

/* The table of whole words, for byte-level vocabularies that look there before they merge. */
static ig_status take_words(ig_bpe *b, ig_err *err) {
    if (!ig_names_make(&b->words, b->n, b->seed))
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for its words");
    for (uint32_t id = 0; id < b->n; id++)
        if (b->type[id] == IG_TYPE_NORMAL && ig_string(&b->bytes, id).n > 0)
            (void)ig_names_add(&b->words, &b->bytes, id);
    return IG_OK;
}

/* What GGUF's two models mean in terms of the rest. */
static ig_status take_model(ig_tokenizer *t, ig_tokenizer_parts *parts, ig_err *err) {
    ig_status st = IG_OK;
    ig_bpe *b = &t->bpe;
    b->unk = IG_TOKEN_NONE;
    if (ig_slice_eq_str(parts->model, "BPE")) {
        t->normal = parts->normal;
        t->pretok = parts->pretok;
        b->byte_fallback = parts->byte_fallback;
        b->fuse_unk = parts->fuse_unk;
        b->unk = parts->unk;
    } else if (ig_slice_eq_str(parts->model, "gpt2")) {
        st = ig_pretok_make(&t->pretok, parts->pre, err);
        parts->decoder = (ig_decoder){.byte_level = true};
        parts->ignore_merges = !st && ig_pretok_ignores_merges(t->pretok);
        if (!st && ig_pretok_normalizes(t->pretok)) {
            t->normal = ig_normal_make();
            st = t->normal ? ig_normal_add_nfc(t->normal, err)
                           : ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
        }
    } else if (ig_slice_eq_str(parts->model, "llama")) {
        ig_slice blank = {" ", 1}, mark = {"\xE2\x96\x81", 3};
        parts->decoder = (ig_decoder){.n_replace = 1, .byte_fallback = true, .replace = {{mark, blank}},
                                      .n_strip = parts->add_space_prefix};
        b->byte_fallback = true;
        b->unk = (uint32_t)parts->role[IG_ROLE_UNK];
        st = ig_pretok_from_json(&t->pretok, NULL, err);
        t->normal = ig_normal_make();
        if (!st && !t->normal) st = ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
        if (!st && parts->add_space_prefix) st = ig_normal_add_prepend(t->normal, mark, err);
        if (!st) st = ig_normal_add_replace(t->normal, blank, mark, err);
    } else if (ig_slice_eq_str(parts->model, "gemma4")) {
        ig_slice blank = {" ", 1}, mark = {"\xE2\x96\x81", 3};
        parts->decoder =
            (ig_decoder){.n_replace = 1, .byte_fallback = true, .replace = {{mark, blank}}};
        b->byte_fallback = b->fuse_unk = b->whole_breaks = true;
        b->unk = (uint32_t)parts->role[IG_ROLE_UNK];
        st = ig_pretok_make_lines(&t->pretok, err);
        t->normal = ig_normal_make();
        if (!st && !t->normal) st = ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
        if (!st) st = ig_normal_add_replace(t->normal, blank, mark, err);
    } else {
        return ig_fail(err, IG_EFORMAT,
                       "tokenizer.ggml.model \"%.*s\" is not supported (gpt2, llama and gemma4 are)",
                       (int)(parts->model.n < 64 ? parts->model.n : 64), parts->model.p);
    }
    if (!st) b->byte_level = ig_pretok_is_byte_level(t->pretok);
    return st;
}

static ig_status check_counts(const ig_tokenizer_parts *parts, ig_err *err) {
    if (parts->n_tokens == 0 || parts->n_tokens > VOCAB_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: %" PRIu64 ", must be 1 to %d", tokens_key(parts),
                       parts->n_tokens, VOCAB_MAX);
    if (parts->types && parts->n_types != parts->n_tokens)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.token_type: %" PRIu64 " for %" PRIu64 " tokens",
                       parts->n_types, parts->n_tokens);
    if (parts->scores && parts->n_scores != parts->n_tokens)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.scores: %" PRIu64 " for %" PRIu64 " tokens",
                       parts->n_scores, parts->n_tokens);
    if (ig_slice_eq_str(parts->model, "llama") && !parts->scores)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.scores is missing");
    if (parts->n_merges > MERGES_MAX)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.merges: %" PRIu64 ", limit %d", parts->n_merges,
                       MERGES_MAX);
    return IG_OK;
}

ig_status ig_tokenizer_make(ig_tokenizer **out, const ig_tokenizer_parts *given, ig_err *err) {
    static _Atomic uint64_t n_made;
    ig_tokenizer_parts parts = *given;
    ig_tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        ig_normal_free(parts.normal);
        ig_pretok_free(parts.pretok);
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
    }
    ig_bpe *b = &t->bpe;
    b->serial = atomic_fetch_add(&n_made, 1) + 1;
    b->seed = ig_rng_fresh_seed();
    ig_status st = take_model(t, &parts, err);
    if (!st) st = check_counts(&parts, err);
    if (!st) st = take_names(b, &parts, err);
    if (!st) st = take_bytes(t, &parts, err);
    if (!st) st = parts.scores ? ig_bpe_take_scores(b, &parts, err) : ig_bpe_take_merges(b, &parts, err);
    if (!st) st = take_wanted(t, &parts, err);
    b->whole_words = parts.ignore_merges;
    if (!st && parts.ignore_merges && b->byte_level) st = take_words(b, err);
    if (!st) st = take_roles(t, &parts, err);
    if (!st) st = ig_bpe_take_cuts(b, err);
    if (st) {
        ig_tokenizer_free(t);
        return st;
    }
    take_eos(t, &parts);
    t->decoder = (ig_decoder){.n_strip = parts.decoder.n_strip, .first_strips = parts.decoder.first_strips};
    if (b->byte_level) { /* the symbols are bytes from here on */
        free(b->names.slot);
        b->names.slot = NULL;
        ig_strings_free(&b->name);
    }
    *out = t;
    return IG_OK;
}

void ig_tokenizer_free(ig_tokenizer *t) {
    if (!t) return;
    ig_bpe_free(&t->bpe);
    ig_normal_free(t->normal);
    ig_pretok_free(t->pretok);
    ig_trie_free(&t->raw);
    ig_trie_free(&t->normalized);
    ig_finder_free(&t->find_raw);
    ig_finder_free(&t->find_normalized);
    free(t->wanted);
    free(t);
}

/* ---- encoding --------------------------------------------------------------------------------------- */

struct encoding {
    const ig_tokenizer *t;
    ig_tokenizer_scratch *s;
    ig_tokens *out;
};

static ig_status out_full(const ig_tokens *out, ig_err *err) {
    if (out->n_max && out->n >= out->n_max)
        return ig_fail(err, IG_ELIMIT, "the text has more than %zu tokens", out->n_max);
    return ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
}

static ig_status give_word(void *with, ig_slice word, ig_err *err) {
    struct encoding *e = with;
    return ig_bpe_add_word(&e->t->bpe, e->s, word, e->out) ? IG_OK : out_full(e->out, err);
}

/* The longest token of the trie at text[at]: its number, or NONE. Special ones must end by control_end. */
static uint32_t match(const ig_tokenizer *t, const ig_trie *trie, ig_slice text, size_t at,
                      size_t control_end, size_t *end) {
    uint32_t found = IG_TOKEN_NONE, node = 0;
    for (size_t i = at; i < text.n; i++) {
        node = ig_trie_child(trie, node, (uint8_t)text.p[i]);
        if (node == IG_TOKEN_NONE) break;
        uint32_t number = trie->terminal[node];
        if (number == IG_TOKEN_NONE || (t->wanted[number].special && i + 1 > control_end)) continue;
        found = number;
        *end = i + 1;
    }
    return found;
}

uint32_t ig_tokenizer_match_special(const ig_tokenizer *t, ig_slice text, size_t at, size_t control_end,
                                    size_t *end) {
    uint32_t number = match(t, &t->raw, text, at, control_end, end);
    if (number == IG_TOKEN_NONE && t->normalized.edge)
        number = match(t, &t->normalized, text, at, control_end, end);
    return number == IG_TOKEN_NONE ? number : t->wanted[number].id;
}

/* Letters, marks, digits and connectors. */
static bool is_word_char(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ND) || k == UTF8PROC_CATEGORY_NL ||
           k == UTF8PROC_CATEGORY_PC;
}

static bool stands_alone(ig_slice text, size_t from, size_t to) {
    size_t len;
    if (from > 0 && is_word_char(ig_utf8_before(text, from, &len))) return false;
    if (to == text.n) return true;
    (void)ig_utf8_next((const uint8_t *)text.p + to, text.n - to, &len);
    return !is_word_char(ig_char_at((const uint8_t *)text.p + to, len));
}

/* Blanks that lstrip and rstrip take. */
static void widen(const struct wanted *w, ig_slice text, size_t done, size_t *from, size_t *to) {
    size_t len;
    while (w->lstrip && *from > done && ig_utf8_is_blank(ig_utf8_before(text, *from, &len))) *from = len;
    while (w->rstrip && *to < text.n) {
        (void)ig_utf8_next((const uint8_t *)text.p + *to, text.n - *to, &len);
        if (!ig_utf8_is_blank(ig_char_at((const uint8_t *)text.p + *to, len))) break;
        *to += len;
    }
}

/* One pass over a text for the tokens of a trie. What lies between goes to `between`. */
struct pass {
    struct encoding *e;
    const ig_finder *finder;
    bool first; /* the text is the beginning of the whole */
    ig_status (*between)(struct pass *p, ig_slice text, size_t at, ig_err *err);
    ig_encode_options opt;
};

static ig_status find_wanted(struct pass *p, ig_slice text, ig_err *err) {
    const ig_tokenizer *t = p->e->t;
    ig_found found[FIND_BYTES];
    size_t done = 0, at = 0, n = 0;
    ig_status st;
    for (size_t seen = 0; n > 0 || seen < text.n;) {
        if (n == 0) {
            size_t to = text.n - seen < FIND_BYTES ? text.n : seen + FIND_BYTES;
            n = ig_finder_scan(p->finder, text, seen, to, &p->opt, found);
            seen = to;
            continue;
        }
        const ig_found *f = &found[--n];
        if (f->at < at) continue;
        const struct wanted *w = &t->wanted[f->number];
        size_t from = f->at, to = f->at + f->n_bytes;
        at = to;
        if (w->single_word && !stands_alone(text, from, to)) continue;
        widen(w, text, done, &from, &to);
        if (from > done && (st = p->between(p, (ig_slice){text.p + done, from - done}, done, err))) return st;
        if (!ig_tokens_add(p->e->out, w->id)) return out_full(p->e->out, err);
        done = to;
        if (at < done) at = done;
    }
    if (done == text.n) return IG_OK;
    return p->between(p, (ig_slice){text.p + done, text.n - done}, done, err);
}

static ig_status add_words(struct pass *p, ig_slice text, size_t at, ig_err *err) {
    const ig_tokenizer *t = p->e->t;
    return ig_pretok_words(t->pretok, ig_scratch_regex(p->e->s), text, p->first && at == 0, give_word, p->e,
                           err);
}

/* Text between two tokens that are looked for in it as it is: normalise, look for the others. Where places
 * are no longer known, a plain range makes the whole piece plain. */
static ig_status add_text(struct pass *p, ig_slice text, size_t at, ig_err *err) {
    const ig_tokenizer *t = p->e->t;
    ig_buf held = ig_buf_init(0);
    ig_slice normal = text;
    ig_status st = IG_OK;
    if (t->normal) st = ig_normal_apply(t->normal, ig_scratch_regex(p->e->s), text, &held, &normal, err);
    if (!st && !t->normalized.edge) {
        st = add_words(p, normal, at, err);
    } else if (!st) {
        ig_encode_options opt = p->opt;
        size_t range = ig_first_range(&opt, at);
        if (range < opt.n_plain && opt.plain[range].from < at + text.n) opt.parse_special = false;
        opt.n_plain = 0;
        struct pass second = {.e = p->e, .finder = &t->find_normalized, .first = p->first && at == 0,
                              .between = add_words, .opt = opt};
        st = find_wanted(&second, normal, err);
    }
    ig_buf_free(&held);
    return st;
}

static ig_status add_around(ig_tokens *out, const uint32_t *id, int n, ig_err *err) {
    for (int i = 0; i < n; i++)
        if (!ig_tokens_add(out, id[i])) return out_full(out, err);
    return IG_OK;
}

ig_status ig_tokenizer_encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text,
                              ig_encode_options opt, ig_tokens *out, ig_err *err) {
    ig_tokenizer_scratch *own = NULL;
    size_t n_before = out->n, bad;
    int n_around = opt.add_bos ? t->n_before : 0;
    ig_status st = IG_OK;

    if (text.n > TEXT_BYTES_MAX)
        return ig_fail(err, IG_ELIMIT, "text of %zu bytes, limit %d", text.n, TEXT_BYTES_MAX);
    if (!ig_slice_utf8_valid(text, &bad))
        return ig_fail(err, IG_EINVAL, "text is not valid UTF-8 at byte %zu", bad);
    if (!s && !(s = own = ig_tokenizer_scratch_make()))
        return ig_fail(err, IG_ELIMIT, "tokenizer: no memory");
    ig_scratch_use(s, &t->bpe);

    struct encoding e = {t, s, out};
    struct pass pass = {.e = &e, .finder = &t->find_raw, .first = true, .between = add_text, .opt = opt};
    st = add_around(out, t->before, n_around, err);
    if (!st) st = find_wanted(&pass, text, err);
    /* The text had it already. */
    bool twice = !st && n_around > 0 && out->n > n_before + (size_t)n_around &&
                 out->v[n_before + (size_t)n_around] == t->before[n_around - 1];
    if (twice) {
        size_t at = n_before + (size_t)n_around;
        out->n--;
        memmove(out->v + at, out->v + at + 1, (out->n - at) * sizeof *out->v);
    }
    if (!st && opt.add_bos) st = add_around(out, t->after, t->n_after, err);
    if (st) out->n = n_before;
    if (own) ig_tokenizer_scratch_free(own);
    else ig_scratch_trim(s);
    return st;
}

/* ---- asking ----------------------------------------------------------------------------------------- */

uint32_t ig_tokenizer_n_vocab(const ig_tokenizer *t) {
    return t->bpe.n;
}

ig_slice ig_tokenizer_bytes(const ig_tokenizer *t, uint32_t id) {
    return id < t->bpe.n ? ig_string(&t->bpe.bytes, id) : (ig_slice){"", 0};
}

bool ig_tokenizer_is_special(const ig_tokenizer *t, uint32_t id) {
    return id < t->bpe.n && ig_is_special_type(t->bpe.type[id]);
}

uint32_t ig_tokenizer_find_special(const ig_tokenizer *t, ig_slice text) {
    size_t end = 0;
    uint32_t id = text.n ? ig_tokenizer_match_special(t, text, 0, text.n, &end) : IG_TOKEN_NONE;
    return end == text.n ? id : IG_TOKEN_NONE;
}

uint32_t ig_tokenizer_role(const ig_tokenizer *t, ig_token_role role) {
    return t->role[role];
}

const ig_decoder *ig_tokenizer_decoder(const ig_tokenizer *t) {
    return &t->decoder;
}

uint32_t ig_tokenizer_bos(const ig_tokenizer *t) {
    return t->role[IG_ROLE_BOS];
}

bool ig_tokenizer_adds_bos(const ig_tokenizer *t) {
    return t->n_before > 0;
}

const uint32_t *ig_tokenizer_eos(const ig_tokenizer *t, int *n) {
    *n = t->n_eos;
    return t->eos;
}

int ig_tokenizer_breaks(const ig_tokenizer *t, uint32_t *out, int n_max) {
    ig_tokens line = {0};
    int n = 0, n_eos;
    const uint32_t *eos = ig_tokenizer_eos(t, &n_eos);
    if (ig_tokenizer_encode(t, NULL, ig_slice_of("\n"), (ig_encode_options){.add_bos = true}, &line, NULL) == IG_OK)
        for (size_t i = 0; i < line.n && n < n_max; i++) out[n++] = line.v[i];
    for (int i = 0; i < n_eos && n < n_max; i++) out[n++] = eos[i];
    ig_tokens_free(&line);
    return n;
}
