/* text_driver: src/text as a filter, for the scripts that compare it with the Python packages.
 *
 *     text_driver MODEL.gguf          reads requests on stdin, answers each on stdout
 *
 * A request is one letter, a 32-bit length and that many bytes; an answer is a status byte (0: done,
 * 1: the bytes are a message), a 32-bit length and the bytes. Numbers are little-endian.
 *   e text   ids of it, no special tokens        s text   ids, special tokens recognised
 *   d ids    decoded at once                     i ids    decoded one by one, the pieces joined
 *   t source sets the template                   c json   renders {"messages", "tools", "kwargs",
 *                                                         "add_generation_prompt", "continue_final", "now"}
 *   p json   as c, but the ids of the prompt
 *   b text   ids, special tokens recognised, with what the file puts around a text
 * With MODEL replaced by --parts FILE the tokenizer is made of arrays: see read_parts; by --json FILE, of a
 * tokenizer.json; by --snapshot FOLDER, of a model's folder. */
#include "text/inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_MAX = 1 << 28 };

static ig_tokenizer *tokenizer;
static ig_tokenizer_scratch *scratch;
static ig_template *chat_template;
static ig_buf answer;

static void die(const char *what) {
    fprintf(stderr, "text_driver: %s\n", what);
    exit(1);
}

static void add_ids(const ig_tokens *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if (!ig_buf_add(&answer, &ids->v[i], sizeof ids->v[i])) die("answer too large");
}

static ig_status encode(ig_slice text, bool special, bool around, ig_err *err) {
    ig_tokens ids = {0};
    ig_encode_options opt = {.parse_special = special, .add_bos = around};
    ig_status st = ig_tokenizer_encode(tokenizer, scratch, text, opt, &ids, err);
    if (!st) add_ids(&ids);
    ig_tokens_free(&ids);
    return st;
}

static ig_status decode(ig_slice bytes, bool in_steps) {
    ig_detok d = ig_detok_init(tokenizer);
    ig_buf step = ig_buf_init(SIZE_MAX / 2);
    for (size_t i = 0; i + 4 <= bytes.n; i += 4) {
        uint32_t id;
        memcpy(&id, bytes.p + i, sizeof id);
        if (!ig_detok_add(&d, id, in_steps ? &step : &answer)) die("answer too large");
        if (!ig_slice_utf8_valid((ig_slice){step.p, step.n}, NULL)) die("half a character came out");
        if (!ig_buf_add(&answer, step.p, step.n)) die("answer too large");
        ig_buf_clear(&step);
    }
    ig_buf_free(&step);
    return ig_detok_finish(&d, &answer) ? IG_OK : IG_ELIMIT;
}

static ig_status set_template(ig_slice source, ig_err *err) {
    ig_template *t = NULL;
    ig_status st = ig_template_make(&t, source, err);
    if (st) return st;
    ig_template_free(chat_template);
    chat_template = t;
    return IG_OK;
}

static ig_status chat(ig_slice json, bool want_ids, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    ig_tokens ids = {0};
    if (!chat_template) return ig_fail(err, IG_EINVAL, "no template was set");
    ig_status st = ig_json_parse(&doc, json.p, json.n, (ig_json_limits){REQUEST_MAX, 128}, err);
    if (st) return st;
    yyjson_val *root = yyjson_doc_get_root(doc);
    ig_chat_input in = {.messages = ig_json_get(root, "messages"),
                        .tools = ig_json_get(root, "tools"),
                        .kwargs = ig_json_get(root, "kwargs"),
                        .add_generation_prompt = yyjson_is_true(ig_json_get(root, "add_generation_prompt")),
                        .continue_final = yyjson_is_true(ig_json_get(root, "continue_final")),
                        .now_s = yyjson_get_sint(ig_json_get(root, "now"))};
    if (want_ids) {
        st = ig_chat_encode(chat_template, tokenizer, scratch, &in, &ids, err);
        if (!st) add_ids(&ids);
    } else {
        st = ig_chat_render(chat_template, tokenizer, &in, &answer, &plain, &n_plain, err);
    }
    free(plain);
    ig_tokens_free(&ids);
    yyjson_doc_free(doc);
    return st;
}

static ig_status serve(char op, ig_slice s, ig_err *err) {
    switch (op) {
    case 'e': return encode(s, false, false, err);
    case 's': return encode(s, true, false, err);
    case 'b': return encode(s, true, true, err);
    case 'd': return decode(s, false);
    case 'i': return decode(s, true);
    case 't': return set_template(s, err);
    case 'c': return chat(s, false, err);
    case 'p': return chat(s, true, err);
    default: return ig_fail(err, IG_EINVAL, "no request '%c'", op);
    }
}

/* {"model", "pre", "tokens": [...], "types": [...], "merges": [...], "add_bos", "bos", "eos", ...} */
static ig_status read_parts(const char *path, ig_err *err) {
    static const char *const role[IG_ROLE_COUNT] = {"bos", "eos", "eot", "eom", "unk", "pad"};
    yyjson_doc *doc = NULL;
    ig_tokenizer_parts parts = {0};
    char *text = NULL;
    size_t n = 0, i, max;
    yyjson_val *v;
    ig_status st = ig_file_slurp(&text, &n, path, REQUEST_MAX, err);
    if (!st) st = ig_json_parse(&doc, text, n, (ig_json_limits){REQUEST_MAX, 8}, err);
    if (st) return st;
    yyjson_val *root = yyjson_doc_get_root(doc), *tokens = ig_json_get(root, "tokens");
    yyjson_val *types = ig_json_get(root, "types"), *merges = ig_json_get(root, "merges");
    ig_slice *token = malloc(yyjson_arr_size(tokens) * sizeof *token);
    ig_slice *merge = malloc(yyjson_arr_size(merges) * sizeof *merge);
    int32_t *type = malloc(yyjson_arr_size(types) * sizeof *type);
    yyjson_arr_foreach(tokens, i, max, v) token[parts.n_tokens++] =
        (ig_slice){yyjson_get_str(v), yyjson_get_len(v)};
    yyjson_arr_foreach(merges, i, max, v) merge[parts.n_merges++] =
        (ig_slice){yyjson_get_str(v), yyjson_get_len(v)};
    yyjson_arr_foreach(types, i, max, v) type[parts.n_types++] = yyjson_get_int(v);
    parts.tokens = token;
    parts.merges = merge;
    parts.types = type;
    parts.model = ig_slice_of(yyjson_get_str(ig_json_get(root, "model")));
    parts.pre = ig_slice_of(yyjson_get_str(ig_json_get(root, "pre")));
    parts.add_bos = yyjson_is_true(ig_json_get(root, "add_bos"));
    for (int r = 0; r < IG_ROLE_COUNT; r++) {
        v = ig_json_get(root, role[r]);
        parts.role[r] = v ? yyjson_get_uint(v) : IG_TOKEN_NONE;
    }
    st = ig_tokenizer_make(&tokenizer, &parts, err);
    free(token);
    free(merge);
    free(type);
    yyjson_doc_free(doc);
    free(text);
    return st;
}

static ig_status read_json(const char *path, ig_err *err) {
    yyjson_doc *doc = NULL;
    char *text = NULL;
    size_t n = 0;
    uint64_t start_ns = ig_clock_ns();
    ig_status st = ig_file_slurp(&text, &n, path, REQUEST_MAX, err);
    if (!st) st = ig_json_parse(&doc, text, n, (ig_json_limits){REQUEST_MAX, 64}, err);
    uint64_t parsed_ns = ig_clock_ns();
    if (!st) st = ig_tokenizer_from_json(&tokenizer, yyjson_doc_get_root(doc), NULL, err);
    fprintf(stderr, "json: %.1f ms, tokenizer: %.1f ms\n", (double)(parsed_ns - start_ns) / 1e6,
            (double)(ig_clock_ns() - parsed_ns) / 1e6);
    yyjson_doc_free(doc);
    free(text);
    return st;
}

static ig_status read_snapshot(const char *path, ig_err *err) {
    ig_snapshot *snapshot = NULL;
    char *source = NULL;
    size_t n = 0;
    ig_status st = ig_snapshot_open(&snapshot, path, err);
    if (!st) st = ig_tokenizer_from_snapshot(&tokenizer, snapshot, err);
    if (!st) {
        st = ig_template_source_from_snapshot(&source, &n, snapshot, "default", err);
        st = st == IG_ENOTFOUND ? IG_OK : st ? st : set_template((ig_slice){source, n}, err);
    }
    free(source);
    ig_snapshot_close(snapshot);
    return st;
}

static ig_status read_model(const char *path, ig_err *err) {
    ig_gguf *g = NULL;
    ig_slice source;
    ig_status st = ig_gguf_open(&g, path, err);
    if (st) return st;
    uint64_t start_ns = ig_clock_ns();
    st = ig_tokenizer_from_gguf(&tokenizer, g, err);
    fprintf(stderr, "tokenizer: %.1f ms\n", (double)(ig_clock_ns() - start_ns) / 1e6);
    if (!st && ig_gguf_get_string(g, "tokenizer.chat_template", &source, NULL) == IG_OK)
        st = set_template(source, err);
    ig_gguf_close(g);
    return st;
}

int main(int argc, char **argv) {
    ig_err err;
    ig_status st;
    char op;
    uint32_t n;
    if (argc == 3 && strcmp(argv[1], "--parts") == 0) st = read_parts(argv[2], &err);
    else if (argc == 3 && strcmp(argv[1], "--json") == 0) st = read_json(argv[2], &err);
    else if (argc == 3 && strcmp(argv[1], "--snapshot") == 0) st = read_snapshot(argv[2], &err);
    else if (argc == 2) st = read_model(argv[1], &err);
    else die("usage: text_driver MODEL.gguf | --parts FILE | --json FILE | --snapshot FOLDER");
    if (st) die(err.msg);
    scratch = ig_tokenizer_scratch_make();
    answer = ig_buf_init(SIZE_MAX / 2);
    uint64_t spent_ns = 0, n_bytes = 0;
    while (fread(&op, 1, 1, stdin) == 1) {
        if (fread(&n, sizeof n, 1, stdin) != 1 || n > REQUEST_MAX) die("bad request");
        char *body = malloc((size_t)n + 1);
        if (!body || fread(body, 1, n, stdin) != n) die("bad request");
        ig_buf_clear(&answer);
        uint64_t start_ns = ig_clock_ns();
        st = serve(op, (ig_slice){body, n}, &err);
        spent_ns += ig_clock_ns() - start_ns;
        n_bytes += n;
        uint8_t failed = st != IG_OK;
        uint32_t len = failed ? (uint32_t)strlen(err.msg) : (uint32_t)answer.n;
        fwrite(&failed, 1, 1, stdout);
        fwrite(&len, sizeof len, 1, stdout);
        fwrite(failed ? err.msg : answer.p, 1, len, stdout);
        fflush(stdout);
        free(body);
    }
    if (spent_ns) fprintf(stderr, "%.1f MB/s\n", (double)n_bytes * 1e3 / (double)spent_ns);
    ig_buf_free(&answer);
    ig_template_free(chat_template);
    ig_tokenizer_scratch_free(scratch);
    ig_tokenizer_free(tokenizer);
    return 0;
}
