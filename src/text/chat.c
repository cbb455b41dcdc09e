/* chat: messages to a prompt.
 * Owns:    nothing beyond a call.
 * Threads: any; the template and the tokenizer are only read.
 * Memory:  malloc, bounded by the messages and by the output limit of the template.
 * Why placeholders: what a user types must never act as a control token. Encoding contents apart from the
 * template would move the borders of words, so contents go through the template with each control token's
 * text replaced by one private-use character, which no template splits or trims, and come back after. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 256,             /* of a value; requests are parsed with 128 */
    PLANE_FIRST = 0x100000,      /* the last private-use plane: placeholders are its unused characters */
    PLANE_CHARS = 0x10FFFE - PLANE_FIRST,
    PLANE_BYTES = 4              /* each is F4 and three more */
};

/* Which characters of the plane the input holds, and what the others stand for. */
struct holders {
    const ig_tokenizer *t;
    uint32_t *token_of; /* per character of the plane: a token; NONE: nothing of ours */
    uint32_t *char_of;  /* per token: its character; NONE: not yet */
    uint8_t *used;      /* per character: the input has it */
    uint32_t next;      /* where to look for a free one */
};

static bool is_plane_char(const char *p, size_t n) {
    return n >= PLANE_BYTES && (uint8_t)p[0] == 0xF4;
}

static uint32_t plane_char(const char *p) {
    return ((uint32_t)(uint8_t)p[1] & 15) << 12 | ((uint32_t)(uint8_t)p[2] & 63) << 6 | ((uint8_t)p[3] & 63);
}

static void plane_put(char out[PLANE_BYTES], uint32_t c) {
    out[0] = (char)0xF4;
    out[1] = (char)(0x80 | c >> 12);
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
}

static ig_status holders_make(struct holders *h, const ig_tokenizer *t, ig_err *err) {
    uint32_t n = ig_tokenizer_n_vocab(t);
    *h = (struct holders){.t = t};
    h->token_of = malloc(PLANE_CHARS * sizeof *h->token_of);
    h->char_of = malloc(n * sizeof *h->char_of);
    h->used = calloc(PLANE_CHARS, 1);
    if (!h->token_of || !h->char_of || !h->used) return ig_fail(err, IG_ELIMIT, "chat: no memory");
    memset(h->token_of, 0xff, PLANE_CHARS * sizeof *h->token_of);
    memset(h->char_of, 0xff, n * sizeof *h->char_of);
    return IG_OK;
}

static void holders_clear(struct holders *h) {
    free(h->token_of);
    free(h->char_of);
    free(h->used);
}

static void note_used(struct holders *h, ig_slice s) {
    for (const char *p = s.p, *end = s.p + s.n; p < end && (p = memchr(p, 0xF4, (size_t)(end - p))); p++) {
        if (!is_plane_char(p, (size_t)(end - p))) continue;
        uint32_t c = plane_char(p);
        if (c < PLANE_CHARS) h->used[c] = 1;
    }
}

/* A character of the plane that nobody uses; PLANE_CHARS: all are taken. */
static uint32_t take_char(struct holders *h) {
    while (h->next < PLANE_CHARS && h->used[h->next]) h->next++;
    return h->next < PLANE_CHARS ? h->next++ : PLANE_CHARS;
}

/* ---- values into the document, with placeholders ----------------------------------------------------- */

struct copy {
    yyjson_mut_doc *doc;
    struct holders *h;
    ig_err *err;
};

/* Every private-use character of the plane that a value holds, keys included. */
static ig_status note_used_value(struct holders *h, yyjson_val *v, int depth, ig_err *err) {
    size_t i, n;
    yyjson_val *key, *item;
    ig_status st;

    if (depth > DEPTH_MAX) return ig_fail(err, IG_EINVAL, "messages: nested over %d levels", DEPTH_MAX);
    if (yyjson_is_str(v)) note_used(h, (ig_slice){yyjson_get_str(v), yyjson_get_len(v)});
    if (yyjson_is_arr(v)) {
        yyjson_arr_foreach(v, i, n, item) {
            if ((st = note_used_value(h, item, depth + 1, err))) return st;
        }
    }
    if (yyjson_is_obj(v)) {
        yyjson_obj_foreach(v, i, n, key, item) {
            note_used(h, (ig_slice){yyjson_get_str(key), yyjson_get_len(key)});
            if ((st = note_used_value(h, item, depth + 1, err))) return st;
        }
    }
    return IG_OK;
}

/* A string with each control token's text replaced. User-defined tokens stay: they match everywhere. */
static ig_status copy_string(struct copy *c, ig_slice s, yyjson_mut_val **out) {
    ig_buf b = ig_buf_init(s.n + 1);
    size_t from = 0, end;
    ig_status st = IG_OK;

    for (size_t at = 0; at < s.n && !st;) {
        uint32_t id = ig_tokenizer_match_special(c->h->t, s, at, s.n, &end);
        if (id == IG_TOKEN_NONE || !ig_tokenizer_is_special(c->h->t, id)) {
            at = id == IG_TOKEN_NONE ? at + 1 : end;
            continue;
        }
        if (c->h->char_of[id] == IG_TOKEN_NONE) {
            uint32_t holder = take_char(c->h);
            if (holder == PLANE_CHARS) {
                st = ig_fail(c->err, IG_EINVAL,
                             "messages: too many private-use characters and special tokens");
                break;
            }
            c->h->char_of[id] = holder;
            c->h->token_of[holder] = id;
        }
        char holder[PLANE_BYTES];
        plane_put(holder, c->h->char_of[id]);
        b.n_max += PLANE_BYTES; /* a token can be shorter than its placeholder */
        if (!ig_buf_add(&b, s.p + from, at - from) || !ig_buf_add(&b, holder, PLANE_BYTES))
            st = ig_fail(c->err, IG_ELIMIT, "chat: no memory");
        from = at = end;
    }
    if (!st && from > 0 && !ig_buf_add(&b, s.p + from, s.n - from))
        st = ig_fail(c->err, IG_ELIMIT, "chat: no memory");
    if (!st) {
        *out = from > 0 ? yyjson_mut_strncpy(c->doc, b.p, b.n) : yyjson_mut_strn(c->doc, s.p, s.n);
        if (!*out) st = ig_fail(c->err, IG_ELIMIT, "chat: no memory");
    }
    ig_buf_free(&b);
    return st;
}

/* Depth was checked by note_used_value. */
static ig_status copy_value(struct copy *c, yyjson_val *v, yyjson_mut_val **out) {
    size_t i, n;
    yyjson_val *key, *item;
    yyjson_mut_val *to, *name;
    ig_status st;

    if (yyjson_is_str(v)) return copy_string(c, (ig_slice){yyjson_get_str(v), yyjson_get_len(v)}, out);
    if (yyjson_is_arr(v)) {
        *out = yyjson_mut_arr(c->doc);
        yyjson_arr_foreach(v, i, n, item) {
            if ((st = copy_value(c, item, &to))) return st;
            if (!yyjson_mut_arr_append(*out, to)) return ig_fail(c->err, IG_ELIMIT, "chat: no memory");
        }
    } else if (yyjson_is_obj(v)) {
        *out = yyjson_mut_obj(c->doc);
        yyjson_obj_foreach(v, i, n, key, item) {
            if ((st = copy_value(c, key, &name)) || (st = copy_value(c, item, &to))) return st;
            if (!yyjson_mut_obj_add(*out, name, to)) return ig_fail(c->err, IG_ELIMIT, "chat: no memory");
        }
    } else {
        *out = yyjson_val_mut_copy(c->doc, v);
    }
    return *out ? IG_OK : ig_fail(c->err, IG_ELIMIT, "chat: no memory");
}

/* ---- the variables of the template ------------------------------------------------------------------- */

/* Sets a variable unless the caller's own (kwargs) has that name. */
static ig_status set(struct copy *c, yyjson_mut_val *vars, yyjson_val *kwargs, const char *name,
                     yyjson_mut_val *v) {
    if (kwargs && yyjson_obj_get(kwargs, name)) return IG_OK;
    if (!v || !yyjson_mut_obj_add_val(c->doc, vars, name, v))
        return ig_fail(c->err, IG_ELIMIT, "chat: no memory");
    return IG_OK;
}

static ig_status set_tokens(struct copy *c, yyjson_mut_val *vars, yyjson_val *kwargs) {
    static const struct named {
        const char *name;
        ig_token_role role;
    } named[] = {{"bos_token", IG_ROLE_BOS},
                 {"eos_token", IG_ROLE_EOS},
                 {"unk_token", IG_ROLE_UNK},
                 {"pad_token", IG_ROLE_PAD}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        uint32_t id = ig_tokenizer_role(c->h->t, named[i].role);
        if (id == IG_TOKEN_NONE) continue;
        ig_slice s = ig_tokenizer_bytes(c->h->t, id);
        if (!ig_slice_utf8_valid(s, NULL)) continue; /* a role given to half a character */
        ig_status st = set(c, vars, kwargs, named[i].name, yyjson_mut_strn(c->doc, s.p, s.n));
        if (st) return st;
    }
    return IG_OK;
}

/* The last message's content gets a mark and a blank behind it; the prompt will end at the mark. */
static ig_status mark_end(struct copy *c, yyjson_mut_val *messages, uint32_t mark) {
    yyjson_mut_val *last = yyjson_mut_arr_get_last(messages);
    yyjson_mut_val *content = yyjson_mut_obj_get(last, "content");
    if (!yyjson_mut_is_str(content))
        return ig_fail(c->err, IG_EINVAL, "messages: the last content must be a string to be continued");
    size_t n = yyjson_mut_get_len(content);
    ig_buf b = ig_buf_init(n + PLANE_BYTES + 1);
    char text[PLANE_BYTES + 1] = {[PLANE_BYTES] = ' '};
    plane_put(text, mark);
    ig_status st = IG_OK;
    if (!ig_buf_add(&b, yyjson_mut_get_str(content), n) || !ig_buf_add(&b, text, sizeof text) ||
        !yyjson_mut_obj_put(last, yyjson_mut_str(c->doc, "content"), yyjson_mut_strncpy(c->doc, b.p, b.n)))
        st = ig_fail(c->err, IG_ELIMIT, "chat: no memory");
    ig_buf_free(&b);
    return st;
}

static ig_status build(struct copy *c, const ig_chat_input *in, uint32_t *mark) {
    yyjson_mut_val *vars = yyjson_mut_obj(c->doc), *v;
    yyjson_val *values[] = {in->messages, in->tools, in->kwargs}, *key, *item, *kwargs = in->kwargs;
    bool generate = in->add_generation_prompt && !in->continue_final;
    size_t i, n;
    ig_status st;

    yyjson_mut_doc_set_root(c->doc, vars);
    for (i = 0; i < 3; i++)
        if (values[i] && (st = note_used_value(c->h, values[i], 0, c->err))) return st;
    if ((st = copy_value(c, in->messages, &v))) return st;
    if (in->continue_final) {
        *mark = take_char(c->h);
        if (*mark == PLANE_CHARS)
            return ig_fail(c->err, IG_EINVAL, "messages: too many private-use characters");
        if ((st = mark_end(c, v, *mark))) return st;
    }
    if ((st = set(c, vars, kwargs, "messages", v))) return st;
    /* Absent tools and documents are None and not undefined: some templates tell the two apart. */
    v = yyjson_mut_null(c->doc);
    if (in->tools && (st = copy_value(c, in->tools, &v))) return st;
    if ((st = set(c, vars, kwargs, "tools", v))) return st;
    if ((st = set(c, vars, kwargs, "documents", yyjson_mut_null(c->doc)))) return st;
    if ((st = set(c, vars, kwargs, "add_generation_prompt", yyjson_mut_bool(c->doc, generate)))) return st;
    if ((st = set_tokens(c, vars, kwargs))) return st;
    if (kwargs) {
        yyjson_obj_foreach(kwargs, i, n, key, item) {
            yyjson_mut_val *name = yyjson_mut_strn(c->doc, yyjson_get_str(key), yyjson_get_len(key));
            if ((st = copy_value(c, item, &v))) return st;
            if (!yyjson_mut_obj_add(vars, name, v)) return ig_fail(c->err, IG_ELIMIT, "chat: no memory");
        }
    }
    return IG_OK;
}

/* ---- what came out ----------------------------------------------------------------------------------- */

/* Cuts at the last mark. Where the template trimmed the content (the blank behind the mark is gone), the
 * blanks before it go too. */
static ig_status cut_at_mark(ig_buf *text, uint32_t mark, ig_err *err) {
    char m[PLANE_BYTES];
    plane_put(m, mark);
    for (size_t at = text->n; at-- > 0;) {
        if (text->n - at < PLANE_BYTES || memcmp(text->p + at, m, PLANE_BYTES) != 0) continue;
        bool trimmed = at + PLANE_BYTES == text->n || text->p[at + PLANE_BYTES] != ' ';
        while (trimmed && at > 0 && strchr(" \t\n\r\v\f", text->p[at - 1]) && text->p[at - 1]) at--;
        text->n = at;
        text->p[at] = '\0';
        return IG_OK;
    }
    return ig_fail(err, IG_EINVAL, "the chat template does not show the last message's content: it cannot be "
                   "continued");
}

static ig_status add_range(ig_text_range **v, size_t *n, size_t from, size_t to, ig_err *err) {
    if ((*n & (*n - 1)) == 0) { /* 0 or a power of two: full */
        ig_text_range *more = realloc(*v, (*n ? *n * 2 : 1) * sizeof **v);
        if (!more) return ig_fail(err, IG_ELIMIT, "chat: no memory");
        *v = more;
    }
    (*v)[(*n)++] = (ig_text_range){from, to};
    return IG_OK;
}

/* Puts the tokens' texts back, with their places. */
static ig_status restore(const struct holders *h, ig_slice text, ig_buf *prompt, ig_text_range **plain,
                         size_t *n_plain, ig_err *err) {
    size_t from = 0;
    ig_status st;
    for (size_t at = 0; at < text.n; at++) {
        if (!is_plane_char(text.p + at, text.n - at)) continue;
        uint32_t c = plane_char(text.p + at);
        if (c >= PLANE_CHARS || h->token_of[c] == IG_TOKEN_NONE) continue;
        ig_slice token = ig_tokenizer_bytes(h->t, h->token_of[c]);
        if (!ig_buf_add(prompt, text.p + from, at - from) || !ig_buf_add(prompt, token.p, token.n))
            return ig_fail(err, IG_ELIMIT, "prompt over %zu bytes", prompt->n_max);
        if ((st = add_range(plain, n_plain, prompt->n - token.n, prompt->n, err))) return st;
        at += PLANE_BYTES - 1;
        from = at + 1;
    }
    if (!ig_buf_add(prompt, text.p + from, text.n - from))
        return ig_fail(err, IG_ELIMIT, "prompt over %zu bytes", prompt->n_max);
    return IG_OK;
}

ig_status ig_chat_render(const ig_template *tpl, const ig_tokenizer *t, const ig_chat_input *in,
                         ig_buf *prompt, ig_text_range **plain, size_t *n_plain, ig_err *err) {
    ig_buf text = ig_buf_init(prompt->n_max);
    ig_text_range *ranges = NULL;
    size_t n_ranges = 0, n_before = prompt->n, n_json = 0;
    uint32_t mark = PLANE_CHARS;
    struct holders h = {0};
    char *json = NULL;
    ig_status st;

    tpl = ig_template_for(tpl, in->tools && !(yyjson_is_arr(in->tools) && yyjson_arr_size(in->tools) == 0));
    if (!yyjson_is_arr(in->messages) || yyjson_arr_size(in->messages) == 0)
        return ig_fail(err, IG_EINVAL, "messages: must be an array of at least one message");
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    if (!doc) return ig_fail(err, IG_ELIMIT, "chat: no memory");
    st = holders_make(&h, t, err);
    if (!st) note_used(&h, ig_template_source(tpl));
    if (!st) st = build(&(struct copy){doc, &h, err}, in, &mark);
    if (!st && !(json = yyjson_mut_write(doc, 0, &n_json))) st = ig_fail(err, IG_ELIMIT, "chat: no memory");
    if (!st) st = ig_template_render(tpl, (ig_slice){json, n_json}, in->now_s, &text, err);
    if (!st && in->continue_final) st = cut_at_mark(&text, mark, err);
    if (!st) st = restore(&h, (ig_slice){text.p, text.n}, prompt, &ranges, &n_ranges, err);
    if (!st) {
        *plain = ranges;
        *n_plain = n_ranges;
        ranges = NULL;
    } else {
        prompt->n = n_before;
    }
    free(ranges);
    free(json);
    ig_buf_free(&text);
    holders_clear(&h);
    yyjson_mut_doc_free(doc);
    return st;
}

ig_status ig_chat_encode(const ig_template *tpl, const ig_tokenizer *t, ig_tokenizer_scratch *s,
                         const ig_chat_input *in, ig_tokens *out, ig_err *err) {
    enum { PROMPT_BYTES_MAX = 32 * 1024 * 1024 };
    ig_buf prompt = ig_buf_init(PROMPT_BYTES_MAX);
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    ig_status st = ig_chat_render(tpl, t, in, &prompt, &plain, &n_plain, err);
    /* The template writes BOS itself where the model wants one, so none is added. */
    ig_encode_options opt = {.parse_special = true, .plain = plain, .n_plain = n_plain};
    if (!st) st = ig_tokenizer_encode(t, s, (ig_slice){prompt.p, prompt.n}, opt, out, err);
    free(plain);
    ig_buf_free(&prompt);
    return st;
}

/* A text, or a list of parts as some templates want it. */
ig_status ig_chat_probe(const ig_template *tpl, const ig_tokenizer *t, bool *shows, ig_err *err) {
    enum { PROBE_BYTES_MAX = 16 << 20 };
    static const char said[] = "Zebra-probe-4711";
    static const char *const messages[] = {
        "[{\"role\":\"user\",\"content\":\"Zebra-probe-4711\"}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Zebra-probe-4711\"}]}]",
    };
    bool rendered = false;
    *shows = false;
    for (int i = 0; i < 2 && !*shows; i++) {
        yyjson_doc *doc = NULL;
        ig_buf prompt = ig_buf_init(PROBE_BYTES_MAX);
        ig_text_range *plain = NULL;
        size_t n_plain = 0;
        ig_status st =
            ig_json_parse(&doc, messages[i], strlen(messages[i]), (ig_json_limits){1024, 8}, err);
        if (st) return st;
        ig_chat_input in = {.messages = yyjson_doc_get_root(doc), .add_generation_prompt = true};
        st = ig_chat_render(tpl, t, &in, &prompt, &plain, &n_plain, NULL);
        if (!st && ig_find_text(prompt.p, prompt.p + prompt.n, ig_slice_of(said))) *shows = true;
        if (i == 0 && st) *shows = true; /* it wants something else */
        rendered = rendered || st || prompt.n > 0;
        free(plain);
        ig_buf_free(&prompt);
        yyjson_doc_free(doc);
    }
    return rendered ? IG_OK : ig_fail(err, IG_EFORMAT, "chat template: it renders nothing");
}
