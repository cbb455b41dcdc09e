/* snapshot: the tokenizer and the chat template of a model's folder.
 * Owns:    nothing; what is made owns copies.
 * Threads: any.
 * Memory:  the folder's documents, while they are read.
 * Several files say which tokens end a generation, and none says all: the union of what they say counts. */
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EOS_IDS_MAX = 60 };

struct folder {
    const ig_snapshot *s;
    yyjson_doc *tokenizer, *config, *map, *generation; /* NULL: not there */
    uint32_t eos_id[EOS_IDS_MAX];
    ig_tokenizer_facts facts;
};

static ig_status read_optional(yyjson_doc **out, const ig_snapshot *s, const char *name, ig_err *err) {
    ig_status st = ig_snapshot_json(out, s, name, err);
    return st == IG_ENOTFOUND ? IG_OK : st;
}

static void folder_clear(struct folder *f) {
    yyjson_doc_free(f->tokenizer);
    yyjson_doc_free(f->config);
    yyjson_doc_free(f->map);
    yyjson_doc_free(f->generation);
}

/* A token is written as its text, or as an object with its content. */
static ig_slice token_of(yyjson_doc *doc, const char *key) {
    yyjson_val *v = ig_json_get(yyjson_doc_get_root(doc), key);
    if (yyjson_is_obj(v)) v = ig_json_get(v, "content");
    return yyjson_is_str(v) ? (ig_slice){yyjson_get_str(v), yyjson_get_len(v)} : (ig_slice){0};
}

static ig_slice named_token(const struct folder *f, const char *key) {
    ig_slice s = token_of(f->config, key);
    return s.p ? s : token_of(f->map, key);
}

/* Rows of the weights; a model of more than text has them one level deeper. 0: not said. */
static uint64_t n_rows(const struct folder *f) {
    yyjson_val *config = ig_snapshot_config(f->s), *v = ig_json_get(config, "vocab_size");
    if (!v) v = ig_json_get(ig_json_get(config, "text_config"), "vocab_size");
    return yyjson_is_uint(v) ? yyjson_get_uint(v) : 0;
}

static ig_status add_eos_id(struct folder *f, yyjson_val *v, const char *where, ig_err *err) {
    uint64_t n = n_rows(f);
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= IG_TOKEN_NONE)
        return ig_fail(err, IG_EFORMAT, "%s/%s: eos_token_id is not an id", ig_snapshot_path(f->s), where);
    if (n > 0 && yyjson_get_uint(v) >= n)
        return ig_fail(err, IG_EFORMAT, "%s/%s: eos_token_id %" PRIu64 ", vocab_size is %" PRIu64,
                       ig_snapshot_path(f->s), where, yyjson_get_uint(v), n);
    if (f->facts.n_eos == EOS_IDS_MAX)
        return ig_fail(err, IG_EFORMAT, "%s/%s: eos_token_id: over %d ids", ig_snapshot_path(f->s), where,
                       EOS_IDS_MAX);
    f->eos_id[f->facts.n_eos++] = (uint32_t)yyjson_get_uint(v);
    return IG_OK;
}

static ig_status add_eos_ids(struct folder *f, yyjson_val *root, const char *where, ig_err *err) {
    yyjson_val *v = ig_json_get(root, "eos_token_id"), *item;
    size_t i, max;
    ig_status st = IG_OK;
    if (v && !yyjson_is_arr(v)) return add_eos_id(f, v, where, err);
    yyjson_arr_foreach(v, i, max, item)
        if ((st = add_eos_id(f, item, where, err))) return st;
    return st;
}

/* null is what old files have for "not said". */
static ig_status flag(const struct folder *f, const char *key, int *out, ig_err *err) {
    yyjson_val *v = yyjson_obj_get(yyjson_doc_get_root(f->config), key);
    if (v && !yyjson_is_null(v) && !yyjson_is_bool(v))
        return ig_fail(err, IG_EFORMAT, "%s/tokenizer_config.json: %s is not a bool", ig_snapshot_path(f->s),
                       key);
    *out = yyjson_is_bool(v) ? yyjson_is_true(v) : -1;
    return IG_OK;
}

static ig_status take_facts(struct folder *f, ig_err *err) {
    int add_bos, add_eos;
    ig_status st = flag(f, "add_bos_token", &add_bos, err);
    if (!st) st = flag(f, "add_eos_token", &add_eos, err);
    if (st) return st;
    f->facts = (ig_tokenizer_facts){.bos = named_token(f, "bos_token"),
                                    .eos = named_token(f, "eos_token"),
                                    .unk = named_token(f, "unk_token"),
                                    .pad = named_token(f, "pad_token"),
                                    .add_bos = add_bos,
                                    .add_eos = add_eos == 1,
                                    .eos_id = f->eos_id};
    st = add_eos_ids(f, ig_snapshot_config(f->s), "config.json", err);
    if (!st) st = add_eos_ids(f, yyjson_doc_get_root(f->generation), "generation_config.json", err);
    return st;
}

ig_status ig_tokenizer_from_snapshot(ig_tokenizer **out, const ig_snapshot *s, ig_err *err) {
    struct folder f = {.s = s};
    ig_status st = ig_snapshot_json(&f.tokenizer, s, "tokenizer.json", err);
    if (st == IG_ENOTFOUND) /* the folder is there; a file that it needs is not */
        st = ig_fail(err, IG_EFORMAT, "%s: no tokenizer.json (other tokenizer files are not read)",
                     ig_snapshot_path(s));
    if (!st) st = read_optional(&f.config, s, "tokenizer_config.json", err);
    if (!st) st = read_optional(&f.map, s, "special_tokens_map.json", err);
    if (!st) st = read_optional(&f.generation, s, "generation_config.json", err);
    if (!st) st = take_facts(&f, err);
    if (!st) st = ig_tokenizer_from_json(out, yyjson_doc_get_root(f.tokenizer), &f.facts, err);
    folder_clear(&f);
    return st;
}

/* The template of that name in tokenizer_config.json; one string is the default. NULL: none. */
static yyjson_val *named_template(yyjson_doc *config, const char *name) {
    yyjson_val *v = ig_json_get(yyjson_doc_get_root(config), "chat_template"), *item;
    size_t i, max;
    if (yyjson_is_str(v)) return strcmp(name, "default") == 0 ? v : NULL;
    yyjson_arr_foreach(v, i, max, item)
        if (yyjson_equals_str(ig_json_get(item, "name"), name)) return ig_json_get(item, "template");
    return NULL;
}

/* Something stands there that is no template: not the same as none. */
static bool is_no_template(yyjson_doc *config, yyjson_val *found) {
    yyjson_val *v = ig_json_get(yyjson_doc_get_root(config), "chat_template"), *item;
    bool good = !v || yyjson_is_str(v) || yyjson_is_arr(v);
    size_t i, max;
    yyjson_arr_foreach(v, i, max, item) good = good && yyjson_is_str(ig_json_get(item, "name"));
    return !good || found;
}

/* From files of their own; *own says whether the folder has such files. */
static ig_status from_file(char **out, size_t *n, const ig_snapshot *s, const char *name, bool *own,
                           ig_err *err) {
    char path[256];
    ig_status st = ig_snapshot_text(out, n, s, "chat_template.jinja", err);
    *own = st != IG_ENOTFOUND;
    if (!*own || st || strcmp(name, "default") == 0) return st;
    free(*out);
    *out = NULL;
    if (strchr(name, '/') || strlen(name) > 200)
        return ig_fail(err, IG_ENOTFOUND, "%s: no chat template \"%.200s\"", ig_snapshot_path(s), name);
    snprintf(path, sizeof path, "additional_chat_templates/%s.jinja", name);
    return ig_snapshot_text(out, n, s, path, err);
}

ig_status ig_template_source_from_snapshot(char **out, size_t *n, const ig_snapshot *s, const char *name,
                                           ig_err *err) {
    yyjson_doc *config = NULL;
    bool own;
    ig_status st = from_file(out, n, s, name, &own, err);
    if (own) return st;
    st = read_optional(&config, s, "tokenizer_config.json", err);
    if (st) return st;
    yyjson_val *v = named_template(config, name);
    if (yyjson_is_str(v)) {
        size_t n_text = yyjson_get_len(v);
        char *text = malloc(n_text + 1);
        if (text) {
            memcpy(text, yyjson_get_str(v), n_text + 1);
            *out = text;
            *n = n_text;
        } else {
            st = ig_fail(err, IG_ELIMIT, "chat template: no memory");
        }
    } else if (is_no_template(config, v)) {
        st = ig_fail(err, IG_EFORMAT, "%s/tokenizer_config.json: chat_template is neither text nor a list of "
                     "{name, template}", ig_snapshot_path(s));
    } else {
        st = ig_fail(err, IG_ENOTFOUND, "%s: no chat template \"%s\"", ig_snapshot_path(s), name);
    }
    yyjson_doc_free(config);
    return st;
}
