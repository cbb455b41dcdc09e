/* embed: vectors of texts, for search and comparison: one JSON object as /v1/embeddings of the usual servers answers.
 * A text is a word of the command line, or with - a line of stdin. The weights are read and no engine is started. */
#include "app/load.h"
#include "file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_BYTES_MAX = 64 << 20,
    TEXTS_MAX = 1 << 16,
    SLOTS_MAX = 16,
    SLOT_TOKENS = 8192, /* of all slots together, or one text when that is longer */
    CHUNK_ROWS = 256
};

typedef struct embed {
    int dimensions; /* 0: all */
    const char *task;
    ig_slice *texts;
    int n;
    ig_tokens ids; /* of all texts, one after the other */
    ig_token_list *lists;
    float *vectors;
} embed;

static int no_memory(void) {
    return ig_app_say(IG_EXIT_FAILED, "no memory");
}

static int read_stdin(ig_buf *out) {
    char part[65536];
    size_t got;
    while ((got = fread(part, 1, sizeof part, stdin)) > 0)
        if (!ig_buf_add(out, part, got))
            return ig_app_say(IG_EXIT_USAGE, "stdin: more than %zu bytes, the limit", out->n_max);
    return ferror(stdin) ? ig_app_say(IG_EXIT_FAILED, "stdin: read error") : IG_EXIT_OK;
}

/* The words, or the lines of `in`; empty lines are no texts. */
static int find_texts(embed *e, const ig_words *words, ig_buf *in) {
    const bool lines = words->n == 0 || (words->n == 1 && strcmp(words->v[0], "-") == 0);
    int code = lines ? read_stdin(in) : IG_EXIT_OK;
    if (code) return code;
    size_t most = (size_t)words->n;
    for (size_t i = 0; lines && i < in->n; i++) most += in->p[i] == '\n';
    e->texts = calloc(most + 1, sizeof *e->texts);
    if (!e->texts) return no_memory();
    for (int i = 0; i < words->n && !lines; i++)
        e->texts[e->n++] = (ig_slice){words->v[i], strlen(words->v[i])};
    for (size_t at = 0, end; lines && at < in->n; at = end + 1) {
        const char *stop = memchr(in->p + at, '\n', in->n - at);
        end = stop ? (size_t)(stop - in->p) : in->n;
        size_t n = end - at;
        if (n && in->p[end - 1] == '\r') n--;
        if (n && e->n == TEXTS_MAX)
            return ig_app_say(IG_EXIT_USAGE, "more than %d texts, the limit", TEXTS_MAX);
        if (n) e->texts[e->n++] = (ig_slice){in->p + at, n};
    }
    return e->n ? IG_EXIT_OK : ig_app_say(IG_EXIT_USAGE, "no text; ingle embed MODEL TEXT..., or - in its place for lines of stdin");
}

/* All texts to tokens; gives the most that one has. */
static int encode(embed *e, const ig_loaded *l, int *longest) {
    const int n_ctx = ig_model_config_of(l->model)->n_ctx_train;
    const ig_slice task = {e->task, e->task ? strlen(e->task) : 0};
    ig_tokenizer_scratch *s = ig_tokenizer_scratch_make();
    size_t *begin = calloc((size_t)e->n + 1, sizeof *begin);
    ig_err err;
    int code = s && begin ? IG_EXIT_OK : no_memory();
    e->lists = calloc((size_t)e->n, sizeof *e->lists);
    if (!code && !e->lists) code = no_memory();
    for (int i = 0; i < e->n && !code; i++) {
        begin[i] = e->ids.n;
        if (ig_embedding_encode(l->tokenizer, s, e->texts[i], task, &e->ids, &err)) {
            code = ig_app_fail(&err);
            break;
        }
        const size_t n = e->ids.n - begin[i];
        if (n == 0 || n > (size_t)n_ctx)
            code =
                ig_app_say(IG_EXIT_USAGE, "text %d has %zu tokens; the model takes 1 to %d", i + 1, n, n_ctx);
        e->lists[i].n = (int)n;
        if ((int)n > *longest) *longest = (int)n;
    }
    for (int i = 0; i < e->n && !code; i++) e->lists[i].v = e->ids.v + begin[i];
    free(begin);
    ig_tokenizer_scratch_free(s);
    return code;
}

/* A line a vector. %.9g brings an f32 back bit for bit. */
static void print_json(const embed *e, const ig_loaded *l, int width, int n_dims) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    char *name = yyjson_mut_val_write(ig_json_bytes(doc, l->name, strlen(l->name)), 0, NULL);
    printf("{\n    \"object\": \"list\",\n    \"model\": %s,\n    \"data\": [", name ? name : "\"\"");
    for (int i = 0; i < e->n; i++) {
        printf("%s\n        {\"object\": \"embedding\", \"index\": %d, \"embedding\": [", i ? "," : "", i);
        for (int d = 0; d < n_dims; d++)
            printf("%s%.9g", d ? ", " : "", (double)e->vectors[(size_t)i * (size_t)width + (size_t)d]);
        printf("]}");
    }
    printf("\n    ],\n    \"usage\": {\"prompt_tokens\": %zu, \"total_tokens\": %zu}\n}\n", e->ids.n, e->ids.n);
    free(name);
    yyjson_mut_doc_free(doc);
}

static int run(embed *e, const ig_loaded *l) {
    const ig_model_config *c = ig_model_config_of(l->model);
    const int n_dims = e->dimensions ? e->dimensions : c->width;
    ig_embedder *embedder = NULL;
    ig_err err;
    int longest = 0;
    if (n_dims > c->width)
        return ig_app_say(IG_EXIT_USAGE, "--dimensions %d: the model's vectors have %d", n_dims, c->width);
    if (c->pooling != IG_POOLING_NONE && c->pooling != IG_POOLING_LAST)
        return ig_app_say(IG_EXIT_CORRUPT, "%s pools its rows by \"%s\", which is not supported (only last)",
                          l->name, ig_pooling_name(c->pooling));
    if (c->pooling == IG_POOLING_NONE && !c->no_head)
        fprintf(stderr, "ingle: %s does not say that it is a model for vectors; the last row is taken\n",
                l->name);
    int code = encode(e, l, &longest);
    if (code) return code;
    int n_slots = SLOT_TOKENS / longest < SLOTS_MAX ? SLOT_TOKENS / longest : SLOTS_MAX;
    if (n_slots > e->n) n_slots = e->n;
    e->vectors = calloc((size_t)e->n * (size_t)c->width, sizeof *e->vectors);
    if (!e->vectors) return no_memory();
    ig_status st =
        ig_embedder_make(&embedder, l->model, n_slots > 1 ? n_slots : 1, longest, CHUNK_ROWS, &err);
    if (!st) st = ig_embedder_run(embedder, e->lists, e->n, e->vectors, &err);
    for (int i = 0; i < e->n && !st; i++)
        st = ig_embedding_finish(e->vectors + (size_t)i * (size_t)c->width, n_dims, &err);
    ig_embedder_free(embedder);
    if (st) return ig_app_fail(&err);
    print_json(e, l, c->width, n_dims);
    return IG_EXIT_OK;
}

int ig_cmd_embed(int argc, char **argv) {
    embed e = {0};
    ig_load_options load = ig_load_defaults();
    load.no_engine = load.vectors = true;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL, and then all words are texts"},
        {"dimensions", .kind = IG_OPT_INT, .to = &e.dimensions, .min = 0, .max = 1 << 17, .value = "N",
         .help = "keep the first N numbers and make the vector's length 1 again (0: all)"},
        {"instruct", .kind = IG_OPT_TEXT, .to = &e.task, .value = "TASK",
         .help = "the texts are queries: put \"Instruct: TASK\" before each"},
        IG_LOAD_OPTIONS(load),
    };
    const ig_command c = {
        .verb = "embed",
        .words = "MODEL [TEXT...|-]",
        .summary = "Prints vectors of texts as JSON: of the words given, or of the lines of stdin (-).",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = IG_WORDS_MAX};
    ig_words words;
    ig_loaded l;
    ig_buf in = ig_buf_init(TEXT_BYTES_MAX);
    char *path = NULL;
    bool by_word = false;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    /* INGLE_MODEL gives way to a word, as it does in every verb. */
    if (!load.model || (words.n && load.model == getenv("INGLE_MODEL"))) {
        if (words.n == 0)
            return ig_app_say(IG_EXIT_USAGE, "embed wants a model: ingle embed MODEL [TEXT...|-]");
        load.model = words.v[0];
        memmove(words.v, words.v + 1, (size_t)--words.n * sizeof *words.v);
        by_word = true;
    }
    code = ig_models_find(&path, load.model); /* before stdin is waited for */
    if (code && by_word) fprintf(stderr, "  \"%.200s\" is taken as the model: ingle embed MODEL TEXT...\n", load.model);
    load.model = path;
    if (!code) code = find_texts(&e, &words, &in);
    if (!code) code = ig_load(&l, &load);
    if (!code) {
        code = run(&e, &l);
        ig_unload(&l);
    }
    free(e.texts), free(e.lists), free(e.vectors), ig_tokens_free(&e.ids);
    ig_buf_free(&in);
    free(path);
    return code;
}
