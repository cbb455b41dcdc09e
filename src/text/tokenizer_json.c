/* tokenizer_json: a tokenizer from tokenizer.json, as the Hugging Face library writes it.
 * Owns:    nothing; what is made owns copies, so the document may be freed.
 * Threads: any.
 * Memory:  malloc while it reads: 16 bytes an id, 32 a merge; ids may not be far beyond the count of tokens.
 * What the library would do with a part of the file is done exactly or refused by name; there is no third. */
#include "text/inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDS_SPARE = 1 << 16,       /* ids beyond four times the count of tokens */
    ADDED_MAX = 1 << 17,
    PIECES_MAX = 64,           /* of a post-processor's template */
    MERGES_MAX = 1 << 23,
    DEPTH_MAX = 4
};

struct reading {
    yyjson_val *root, *model;
    ig_tokenizer_parts parts;
    ig_slice *token;
    int32_t *type;
    ig_slice *pair;
    ig_added_token *added;
    uint32_t *eos;
    ig_err *err;
};

static ig_slice string_of(yyjson_val *v) {
    return yyjson_is_str(v) ? (ig_slice){yyjson_get_str(v), yyjson_get_len(v)} : (ig_slice){0};
}

static int shown(ig_slice s) {
    return (int)(s.n < 64 ? s.n : 64);
}

static ig_status fail_name(struct reading *r, const char *what, ig_slice name) {
    return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: %s \"%.*s\" is not supported", what, shown(name),
                   name.p ? name.p : "");
}

/* A flag that may be absent or null. */
static ig_status flag(struct reading *r, yyjson_val *obj, const char *key, bool *out) {
    yyjson_val *v = ig_json_get(obj, key);
    *out = yyjson_is_true(v);
    if (v && !yyjson_is_bool(v)) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: %s is not a bool", key);
    return IG_OK;
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

/* Ids of all tokens: counts them, and bounds the largest by their number. */
static ig_status count_ids(struct reading *r, yyjson_val *vocab, yyjson_val *added) {
    yyjson_val *key, *v;
    size_t i, max;
    uint64_t n = yyjson_obj_size(vocab) + yyjson_arr_size(added), top = 0;
    yyjson_obj_foreach(vocab, i, max, key, v) {
        if (!yyjson_is_uint(v))
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json vocab \"%.*s\": the id is not a number",
                           shown(string_of(key)), yyjson_get_str(key));
        if (yyjson_get_uint(v) > top) top = yyjson_get_uint(v);
    }
    yyjson_arr_foreach(added, i, max, v) {
        yyjson_val *id = ig_json_get(v, "id");
        if (!yyjson_is_uint(id))
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json added_tokens[%zu]: no id", i);
        if (yyjson_get_uint(id) > top) top = yyjson_get_uint(id);
    }
    if (n == 0) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: the vocab is empty");
    if (top >= n * 4 + IDS_SPARE)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: id %" PRIu64 " with %" PRIu64 " tokens", top, n);
    r->parts.n_tokens = top + 1;
    r->token = calloc(top + 1, sizeof *r->token);
    r->type = malloc((top + 1) * sizeof *r->type);
    if (!r->token || !r->type)
        return ig_fail(r->err, IG_ELIMIT, "tokenizer.json: no memory for %" PRIu64 " ids", top + 1);
    for (uint64_t id = 0; id <= top; id++) r->type[id] = IG_TYPE_NORMAL;
    return IG_OK;
}

/* Gives an id its name; it may have that name already. */
static ig_status name_id(struct reading *r, uint64_t id, ig_slice name) {
    ig_slice *have = &r->token[id];
    if (name.n == 0) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: token %" PRIu64 " is empty", id);
    if (have->p && !ig_slice_eq(*have, name))
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: %" PRIu64 " is both \"%.*s\" and \"%.*s\"", id,
                       shown(*have), have->p, shown(name), name.p);
    *have = name;
    return IG_OK;
}

static ig_status take_added(struct reading *r, yyjson_val *list) {
    yyjson_val *v;
    size_t i, max;
    ig_status st;
    if (yyjson_arr_size(list) > ADDED_MAX)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: %zu added tokens, limit %d",
                       yyjson_arr_size(list), ADDED_MAX);
    r->added = malloc((yyjson_arr_size(list) + 1) * sizeof *r->added);
    if (!r->added) return ig_fail(r->err, IG_ELIMIT, "tokenizer.json: no memory for added tokens");
    yyjson_arr_foreach(list, i, max, v) {
        ig_added_token a = {.text = string_of(ig_json_get(v, "content")),
                            .id = (uint32_t)yyjson_get_uint(ig_json_get(v, "id"))};
        if (!a.text.p) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json added_tokens[%zu]: no content", i);
        if (a.text.n == 0) continue; /* matches nothing */
        if ((st = flag(r, v, "special", &a.special)) || (st = flag(r, v, "normalized", &a.normalized)) ||
            (st = flag(r, v, "lstrip", &a.lstrip)) || (st = flag(r, v, "rstrip", &a.rstrip)) ||
            (st = flag(r, v, "single_word", &a.single_word)) || (st = name_id(r, a.id, a.text)))
            return st;
        r->type[a.id] = a.special ? IG_TYPE_CONTROL : IG_TYPE_USER;
        r->added[r->parts.n_added++] = a;
    }
    return IG_OK;
}

static ig_status take_tokens(struct reading *r) {
    yyjson_val *vocab = ig_json_get(r->model, "vocab"), *added = ig_json_get(r->root, "added_tokens"), *key,
               *v;
    size_t i, max;
    ig_status st;
    if (!yyjson_is_obj(vocab)) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: no vocab");
    if (added && !yyjson_is_arr(added))
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: added_tokens is not a list");
    if ((st = count_ids(r, vocab, added))) return st;
    yyjson_obj_foreach(vocab, i, max, key, v)
        if ((st = name_id(r, yyjson_get_uint(v), string_of(key)))) return st;
    if ((st = take_added(r, added))) return st;
    r->parts.tokens = r->token;
    r->parts.types = r->type;
    r->parts.n_types = r->parts.n_tokens;
    r->parts.added = r->added;
    return IG_OK;
}

/* The id of a token by its name, as a few places ask: IG_TOKEN_NONE if there is none. */
static uint32_t find_token(const struct reading *r, ig_slice name) {
    if (!name.p) return IG_TOKEN_NONE;
    for (uint64_t i = 0; i < r->parts.n_added; i++)
        if (ig_slice_eq(r->added[i].text, name)) return r->added[i].id;
    yyjson_val *v = yyjson_obj_getn(ig_json_get(r->model, "vocab"), name.p, name.n);
    return v ? (uint32_t)yyjson_get_uint(v) : IG_TOKEN_NONE;
}

/* ---- the model -------------------------------------------------------------------------------------- */

static ig_status take_merges(struct reading *r) {
    yyjson_val *list = ig_json_get(r->model, "merges"), *v;
    size_t i, max, n = yyjson_arr_size(list);
    if (!yyjson_is_arr(list)) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: no merges");
    if (n > MERGES_MAX)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: %zu merges, limit %d", n, MERGES_MAX);
    r->pair = malloc((2 * n + 1) * sizeof *r->pair);
    if (!r->pair) return ig_fail(r->err, IG_ELIMIT, "tokenizer.json: no memory for %zu merges", n);
    yyjson_arr_foreach(list, i, max, v) {
        ig_slice whole = string_of(v), *left = &r->pair[2 * i], *right = left + 1;
        *left = string_of(yyjson_arr_get(v, 0));
        *right = string_of(yyjson_arr_get(v, 1));
        const char *space = whole.n > 1 ? memchr(whole.p + 1, ' ', whole.n - 1) : NULL;
        if (space) {
            *left = (ig_slice){whole.p, (size_t)(space - whole.p)};
            *right = (ig_slice){space + 1, whole.n - left->n - 1};
        }
        if (left->n == 0 || right->n == 0 || (!space && yyjson_arr_size(v) != 2))
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json merges[%zu] is not a pair", i);
    }
    r->parts.pairs = r->pair;
    r->parts.n_merges = n;
    return IG_OK;
}

static ig_status take_model(struct reading *r) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    yyjson_val *v = ig_json_get(r->model, "dropout");
    ig_slice type = string_of(ig_json_get(r->model, "type")),
             unk = string_of(ig_json_get(r->model, "unk_token"));
    ig_status st;
    if (!yyjson_is_obj(r->model)) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: no model");
    /* Old files have no type; only BPE has merges. */
    if (type.p ? !ig_slice_eq_str(type, "BPE") : !ig_json_get(r->model, "merges"))
        return fail_name(r, "model", type);
    if (v && !(yyjson_is_num(v) && yyjson_get_num(v) == 0))
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: dropout is not supported");
    for (int i = 0; i < 2; i++)
        if ((v = ig_json_get(r->model, affixes[i])) && !(yyjson_is_str(v) && yyjson_get_len(v) == 0))
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: %s is not supported", affixes[i]);
    if ((st = flag(r, r->model, "fuse_unk", &r->parts.fuse_unk)) ||
        (st = flag(r, r->model, "byte_fallback", &r->parts.byte_fallback)) ||
        (st = flag(r, r->model, "ignore_merges", &r->parts.ignore_merges)) || (st = take_tokens(r)))
        return st;
    r->parts.unk = find_token(r, unk);
    if (unk.p && r->parts.unk == IG_TOKEN_NONE)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: unk_token \"%.*s\" is not a token", shown(unk),
                       unk.p);
    if (r->parts.unk != IG_TOKEN_NONE && r->type[r->parts.unk] == IG_TYPE_NORMAL &&
        r->parts.role[IG_ROLE_UNK] == IG_TOKEN_NONE)
        r->parts.role[IG_ROLE_UNK] = r->parts.unk;
    return take_merges(r);
}

/* ---- around the model ------------------------------------------------------------------------------- */

static ig_status add_around(struct reading *r, yyjson_val *special, ig_slice name, uint32_t *out, int *n) {
    yyjson_val *v = yyjson_obj_getn(special, name.p, name.n), *ids = ig_json_get(v, "ids"), *id;
    size_t i, max;
    if (!yyjson_is_arr(ids))
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json post_processor: no ids of \"%.*s\"", shown(name),
                       name.p);
    yyjson_arr_foreach(ids, i, max, id) {
        if (!yyjson_is_uint(id) || yyjson_get_uint(id) >= r->parts.n_tokens)
            return ig_fail(r->err, IG_EFORMAT,
                           "tokenizer.json post_processor: \"%.*s\" is no id of the vocabulary", shown(name),
                           name.p);
        if (*n == IG_AROUND_MAX - 1)
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json post_processor: over %d tokens",
                           IG_AROUND_MAX - 1);
        out[(*n)++] = (uint32_t)yyjson_get_uint(id);
    }
    return IG_OK;
}

static ig_status take_template(struct reading *r, yyjson_val *v) {
    yyjson_val *single = ig_json_get(v, "single"), *special = ig_json_get(v, "special_tokens"), *piece;
    ig_tokenizer_parts *p = &r->parts;
    bool seen = false;
    size_t i, max;
    if (!yyjson_is_arr(single))
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json post_processor: no template");
    if (yyjson_arr_size(single) > PIECES_MAX)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json post_processor: %zu pieces, limit %d",
                       yyjson_arr_size(single), PIECES_MAX);
    if (p->n_before > 0 || p->n_after > 0)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: two TemplateProcessings are not supported");
    yyjson_arr_foreach(single, i, max, piece) {
        ig_slice name = string_of(ig_json_get(ig_json_get(piece, "SpecialToken"), "id"));
        bool text = ig_json_get(piece, "Sequence") != NULL;
        if (text == (name.p != NULL) || (text && seen))
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json post_processor: piece %zu is not supported",
                           i);
        seen |= text;
        if (text) continue;
        ig_status st =
            add_around(r, special, name, seen ? p->after : p->before, seen ? &p->n_after : &p->n_before);
        if (st) return st;
    }
    if (!seen) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json post_processor: the text has no place");
    return IG_OK;
}

static ig_status take_post(struct reading *r, yyjson_val *v, int depth) {
    ig_slice type = string_of(ig_json_get(v, "type"));
    if (!v || ig_slice_eq_str(type, "ByteLevel")) return IG_OK; /* that one only moves offsets */
    if (ig_slice_eq_str(type, "TemplateProcessing")) return take_template(r, v);
    if (!ig_slice_eq_str(type, "Sequence") || depth == DEPTH_MAX) return fail_name(r, "post_processor", type);
    yyjson_val *list = ig_json_get(v, "processors"), *item;
    size_t i, max;
    yyjson_arr_foreach(list, i, max, item) {
        ig_status st = take_post(r, item, depth + 1);
        if (st) return st;
    }
    return IG_OK;
}

/* ---- the decoder ------------------------------------------------------------------------------------ */

/* Steps may come in this order; what stands for more than that is refused. */
enum order { START, REPLACED, BYTES, FUSED, STRIPPED, WHOLE };

static ig_status take_replace(struct reading *r, yyjson_val *v) {
    ig_decoder *d = &r->parts.decoder;
    ig_slice from = string_of(ig_json_get(ig_json_get(v, "pattern"), "String"));
    ig_slice to = string_of(ig_json_get(v, "content"));
    if (from.n == 0 || !to.p || to.n > 16 || d->n_replace == IG_DECODER_REPLACES)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json decoder: this Replace is not supported");
    d->replace[d->n_replace].from = from;
    d->replace[d->n_replace++].to = to;
    return IG_OK;
}

static ig_status take_strip(struct reading *r, yyjson_val *v) {
    yyjson_val *start = ig_json_get(v, "start"), *stop = ig_json_get(v, "stop");
    if (!ig_slice_eq_str(string_of(ig_json_get(v, "content")), " ") || !yyjson_is_uint(start) ||
        yyjson_get_uint(start) > 16 || !yyjson_is_uint(stop) || yyjson_get_uint(stop) > 0)
        return ig_fail(r->err, IG_EFORMAT, "tokenizer.json decoder: this Strip is not supported");
    r->parts.decoder.n_strip = (int)yyjson_get_uint(start);
    return IG_OK;
}

static ig_status take_metaspace(struct reading *r, yyjson_val *v) {
    ig_decoder *d = &r->parts.decoder;
    ig_slice from = string_of(ig_json_get(v, "replacement")),
             scheme = string_of(ig_json_get(v, "prepend_scheme"));
    bool never =
        scheme.p ? ig_slice_eq_str(scheme, "never") : yyjson_is_false(ig_json_get(v, "add_prefix_space"));
    if (from.n == 0) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json decoder Metaspace: no replacement");
    d->replace[d->n_replace].from = from;
    d->replace[d->n_replace++].to = (ig_slice){" ", 1};
    d->first_strips = !never;
    return IG_OK;
}

static ig_status take_decoder(struct reading *r, yyjson_val *v, enum order *order, int depth) {
    static const struct { const char *name; enum order before, after; } steps[] = {
        {"Replace", REPLACED, REPLACED}, {"ByteFallback", REPLACED, BYTES}, {"Fuse", BYTES, FUSED},
        {"Strip", FUSED, STRIPPED},      {"ByteLevel", START, WHOLE},       {"Metaspace", START, WHOLE},
    };
    ig_slice type = string_of(ig_json_get(v, "type"));
    if (ig_slice_eq_str(type, "Sequence") && depth < DEPTH_MAX) {
        yyjson_val *list = ig_json_get(v, "decoders"), *item;
        size_t i, max;
        yyjson_arr_foreach(list, i, max, item) {
            ig_status st = take_decoder(r, item, order, depth + 1);
            if (st) return st;
        }
        return IG_OK;
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (!ig_slice_eq_str(type, steps[i].name)) continue;
        if (*order > steps[i].before || (steps[i].after == STRIPPED && *order != FUSED))
            return ig_fail(r->err, IG_EFORMAT, "tokenizer.json decoder: %s at this place is not supported",
                           steps[i].name);
        *order = steps[i].after;
        switch (i) {
        case 0: return take_replace(r, v);
        case 1: r->parts.decoder.byte_fallback = true; return IG_OK;
        case 2: return IG_OK;
        case 3: return take_strip(r, v);
        case 4: r->parts.decoder.byte_level = true; return IG_OK;
        default: return take_metaspace(r, v);
        }
    }
    return fail_name(r, "decoder", type);
}

/* ---- what the other files say ----------------------------------------------------------------------- */

static ig_status take_role(struct reading *r, ig_token_role role, const char *key, ig_slice name) {
    r->parts.role[role] = find_token(r, name);
    if (!name.p || r->parts.role[role] != IG_TOKEN_NONE) return IG_OK;
    return ig_fail(r->err, IG_EFORMAT, "%s \"%.*s\" is not a token of tokenizer.json", key, shown(name),
                   name.p);
}

static ig_status take_facts(struct reading *r, const ig_tokenizer_facts *f) {
    ig_tokenizer_parts *p = &r->parts;
    ig_status st;
    if ((st = take_role(r, IG_ROLE_BOS, "bos_token", f->bos)) ||
        (st = take_role(r, IG_ROLE_EOS, "eos_token", f->eos)))
        return st;
    p->role[IG_ROLE_PAD] = find_token(r, f->pad);
    if (f->unk.p) p->role[IG_ROLE_UNK] = find_token(r, f->unk);
    if (p->role[IG_ROLE_UNK] == IG_TOKEN_NONE) p->role[IG_ROLE_UNK] = p->unk;

    r->eos = malloc((size_t)(f->n_eos + 1) * sizeof *r->eos);
    if (!r->eos) return ig_fail(r->err, IG_ELIMIT, "tokenizer.json: no memory");
    for (int i = 0; i < f->n_eos; i++) {
        /* Weights may have rows that no token names: such an id ends nothing. */
        if (f->eos_id[i] < p->n_tokens) r->eos[p->n_eos++] = f->eos_id[i];
    }
    if (p->role[IG_ROLE_EOS] != IG_TOKEN_NONE) r->eos[p->n_eos++] = (uint32_t)p->role[IG_ROLE_EOS];
    p->eos = r->eos;

    uint32_t eos = (uint32_t)p->role[IG_ROLE_EOS];
    if (f->add_eos && eos == IG_TOKEN_NONE)
        return ig_fail(r->err, IG_EFORMAT, "add_eos_token is true, but there is no eos_token");
    if (f->add_eos && (p->n_after == 0 || p->after[p->n_after - 1] != eos)) p->after[p->n_after++] = eos;

    uint32_t bos = (uint32_t)p->role[IG_ROLE_BOS];
    bool has = p->n_before > 0 && p->before[0] == bos;
    if (f->add_bos < 0 || bos == IG_TOKEN_NONE || (f->add_bos > 0) == has) return IG_OK;
    if (has) p->n_before--;
    memmove(p->before + !has, p->before + has, (size_t)p->n_before * sizeof *p->before);
    if (!has) p->before[0] = bos, p->n_before++;
    return IG_OK;
}

static ig_status read_all(struct reading *r, const ig_tokenizer_facts *facts) {
    yyjson_val *normalizer = ig_json_get(r->root, "normalizer"), *decoder = ig_json_get(r->root, "decoder");
    enum order order = START;
    ig_status st;
    if (!yyjson_is_obj(r->root)) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json is not an object");
    /* truncation and padding are for batches of examples: a prompt is neither cut nor filled. */
    if ((st = take_model(r))) return st;
    if (normalizer) {
        r->parts.normal = ig_normal_make();
        if (!r->parts.normal) return ig_fail(r->err, IG_ELIMIT, "tokenizer.json: no memory");
        if ((st = ig_normal_add_json(r->parts.normal, normalizer, r->err))) return st;
    }
    if ((st = ig_pretok_from_json(&r->parts.pretok, ig_json_get(r->root, "pre_tokenizer"), r->err)))
        return st;
    if ((st = take_post(r, ig_json_get(r->root, "post_processor"), 0))) return st;
    if (!decoder) return ig_fail(r->err, IG_EFORMAT, "tokenizer.json: no decoder is not supported");
    if ((st = take_decoder(r, decoder, &order, 0))) return st;
    return take_facts(r, facts);
}

ig_status ig_tokenizer_from_json(ig_tokenizer **out, yyjson_val *tokenizer_json,
                                 const ig_tokenizer_facts *facts, ig_err *err) {
    static const ig_tokenizer_facts none = {.add_bos = -1};
    struct reading r = {.root = tokenizer_json, .model = ig_json_get(tokenizer_json, "model"), .err = err};
    r.parts.model = ig_slice_of("BPE");
    for (int i = 0; i < IG_ROLE_COUNT; i++) r.parts.role[i] = IG_TOKEN_NONE;
    ig_status st = read_all(&r, facts ? facts : &none);
    if (!st) {
        st = ig_tokenizer_make(out, &r.parts, err);
    } else {
        ig_normal_free(r.parts.normal);
        ig_pretok_free(r.parts.pretok);
    }
    free(r.token);
    free(r.type);
    free(r.pair);
    free(r.added);
    free(r.eos);
    return st;
}
