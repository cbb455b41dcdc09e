/* tokens: a text cut into tokens, for people who want to see why a prompt is long. No weights are read. */
#include "app/load.h"
#include "file/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES_MAX = 64 << 20 };

typedef struct tokens {
    bool chat, json, special, count;
} tokens;

static ig_status read_text(const ig_words *words, ig_buf *out, ig_err *err) {
    if (words->n == 0 || (words->n == 1 && strcmp(words->v[0], "-") == 0)) {
        char part[65536];
        size_t got;
        while ((got = fread(part, 1, sizeof part, stdin)) > 0)
            if (!ig_buf_add(out, part, got))
                return ig_fail(err, IG_ELIMIT, "stdin: more than %zu bytes, the limit", out->n_max);
        return ferror(stdin) ? ig_fail(err, IG_EIO, "stdin: read error") : IG_OK;
    }
    for (int i = 0; i < words->n; i++)
        if ((i && !ig_buf_add_str(out, " ")) || !ig_buf_add_str(out, words->v[i]))
            return ig_fail(err, IG_ELIMIT, "text: more than %zu bytes, the limit", out->n_max);
    return IG_OK;
}

/* The bytes of a token between quotes; what is not printable ASCII or valid UTF-8 is escaped. */
static void print_piece(ig_slice s) {
    bool text = ig_slice_utf8_valid(s, NULL);
    putchar('"');
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c == '\n')
            printf("\\n");
        else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !text))
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_table(const ig_loaded *l, const ig_tokens *t) {
    for (size_t i = 0; i < t->n; i++) {
        printf("%8" PRIu32 "  ", t->v[i]);
        print_piece(ig_tokenizer_bytes(l->tokenizer, t->v[i]));
        printf("%s\n", ig_tokenizer_is_special(l->tokenizer, t->v[i]) ? "  special" : "");
    }
}

static int print_json(const ig_loaded *l, const ig_tokens *t, const ig_buf *rendered) {
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_uint(doc, root, "n_tokens", t->n);
    if (rendered->n) yyjson_mut_obj_add_strn(doc, root, "prompt", rendered->p, rendered->n);
    yyjson_mut_val *list = yyjson_mut_obj_add_arr(doc, root, "tokens");
    for (size_t i = 0; i < t->n; i++) {
        ig_slice s = ig_tokenizer_bytes(l->tokenizer, t->v[i]);
        yyjson_mut_val *one = yyjson_mut_arr_add_obj(doc, list);
        yyjson_mut_obj_add_uint(doc, one, "id", t->v[i]);
        if (ig_slice_utf8_valid(s, NULL)) {
            yyjson_mut_obj_add_strn(doc, one, "text", s.n ? s.p : "", s.n);
        } else { /* part of a character: JSON strings cannot hold it */
            yyjson_mut_val *bytes = yyjson_mut_obj_add_arr(doc, one, "bytes");
            for (size_t j = 0; j < s.n; j++) yyjson_mut_arr_add_uint(doc, bytes, (uint8_t)s.p[j]);
        }
        if (ig_tokenizer_is_special(l->tokenizer, t->v[i]))
            yyjson_mut_obj_add_bool(doc, one, "special", true);
    }
    return ig_app_print_json(doc, lost);
}

static int run(const tokens *o, const ig_loaded *l, const ig_buf *text) {
    ig_err err;
    ig_tokens ids = {0};
    ig_buf rendered = ig_buf_init(2 * (size_t)TEXT_BYTES_MAX);
    ig_slice input = {text->n ? text->p : "", text->n};
    const ig_message m = {"user", input};
    int code = IG_EXIT_OK;
    ig_status st;

    if (o->chat) {
        st = ig_messages_encode(l, &m, 1, &ids, &err);
        if (!st && o->json) st = ig_messages_render(l, &m, 1, &rendered, &err);
    } else {
        const ig_encode_options e = {.add_bos = o->special, .parse_special = o->special};
        st = ig_tokenizer_encode(l->tokenizer, NULL, input, e, &ids, &err);
    }
    if (st)
        code = ig_app_fail(&err);
    else if (o->count)
        printf("%zu\n", ids.n);
    else if (o->json)
        code = print_json(l, &ids, &rendered);
    else
        print_table(l, &ids);
    ig_tokens_free(&ids);
    ig_buf_free(&rendered);
    return code;
}

int ig_cmd_tokens(int argc, char **argv) {
    tokens o = {0};
    ig_load_options load = ig_load_defaults();
    load.text_only = true;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "whose tokenizer; all words are text (default: as ingle --help says)"},
        {"chat", .kind = IG_OPT_BOOL, .to = &o.chat,
         .help = "the text as a user's message, through the chat template"},
        IG_TEMPLATE_OPTION(load),
        {"special", .kind = IG_OPT_BOOL, .to = &o.special,
         .help = "recognise control tokens in the text, and begin as the model wants"},
        {"count", .kind = IG_OPT_BOOL, .to = &o.count, .help = "print only how many there are"},
        {"json", .kind = IG_OPT_BOOL, .to = &o.json, .help = "one JSON object"},
    };
    const ig_command c = {
        .verb = "tokens",
        .words = "[-m MODEL] [TEXT...]",
        .summary = "Prints ids and pieces of a text: the words given, or stdin without any (or -).",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = IG_WORDS_MAX};
    ig_words words;
    ig_loaded l;
    ig_err err;
    ig_buf text = ig_buf_init(TEXT_BYTES_MAX);
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (read_text(&words, &text, &err)) {
        ig_buf_free(&text);
        return ig_app_fail(&err);
    }
    /* Other verbs take the model as a word. */
    if (!load.model && words.n > 1 && strlen(words.v[0]) > 2 && ig_models_knows(words.v[0]))
        ig_app_say(0, "\"%.200s\" is taken as text; -m %.200s names the model", words.v[0], words.v[0]);
    code = ig_load(&l, &load);
    if (!code) {
        code = run(&o, &l, &text);
        ig_unload(&l);
    }
    ig_buf_free(&text);
    return code;
}
