/* show: what a model file or folder holds, whether it runs here and with what. A file that we refuse is still
 * shown as far as it can be read, with the reason. */
#include "app/load.h"
#include "app/nodes.h"
#include "file/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPES_MAX = 64, KERNELS_MAX = 64, COLUMNS = 100, OPS_COLUMN = 50 };

typedef struct by_type {
    const char *type;
    int n;
    uint64_t bytes;
} by_type;

typedef struct by_kernel {
    const char *op;
    const ig_kern *kern;
    int n;
} by_kernel;

typedef struct facts {
    ig_gguf *gguf; /* one of the two */
    ig_snapshot *snapshot;
    ig_model_info info;
    by_type types[TYPES_MAX];
    int n_types;
    by_kernel kernels[KERNELS_MAX];
    int n_kernels;
    ig_tier_plan tiers; /* when it runs */
    ig_slice tokenizer, pre;
    size_t chat_bytes; /* of the template; 0: none */
    ig_err chat_why, tokenizer_why; /* a folder's cannot be read; code IG_OK: it can, or there is none */
    yyjson_doc *text;  /* tokenizer.json */
    uint64_t n_tokens, n_ctx;
    bool runs;
    ig_err why; /* when it does not */
    uint64_t weights_bytes, decode_bytes, usable_bytes;
    ig_engine_plan plan, one; /* of serve; of generate and chat, which run one conversation */
    ig_err no_serve; /* why only the second fits; code IG_OK: both do */
    size_t kv_token_bytes, kv_window_bytes; /* of a token in layers that see all; of a conversation in windows */
    int window;
} facts;

static void count_type(facts *f, const char *type, bool is_part, uint64_t n_bytes) {
    int k = 0;
    while (k < f->n_types && strcmp(f->types[k].type, type) != 0) k++;
    if (k == TYPES_MAX) return;
    if (k == f->n_types) f->types[f->n_types++] = (by_type){.type = type};
    f->types[k].n += !is_part;
    f->types[k].bytes += n_bytes;
}

static void count_types(facts *f) {
    for (int i = 0; f->gguf && i < ig_gguf_n_tensors(f->gguf); i++) {
        const ig_gguf_tensor *t = ig_gguf_tensor_at(f->gguf, i);
        count_type(f, ig_gguf_type_of(t->type)->name, false, t->n_bytes);
    }
    for (int i = 0; f->snapshot && i < ig_snapshot_n_tensors(f->snapshot); i++) {
        const ig_safetensor *t = ig_snapshot_tensor_at(f->snapshot, i);
        bool is_part;
        const char *type = ig_model_format_of(f->snapshot, t, &is_part);
        count_type(f, type, is_part, t->n_bytes);
    }
}

static void count_kernel(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    facts *f = ud;
    (void)w;
    int i = 0;
    while (i < f->n_kernels && (f->kernels[i].kern != k || strcmp(f->kernels[i].op, op) != 0)) i++;
    if (i == KERNELS_MAX) return;
    if (i == f->n_kernels) f->kernels[f->n_kernels++] = (by_kernel){.op = op, .kern = k};
    f->kernels[i].n++;
}

/* A key of the family: "llama.context_length". */
static void get_arch_u64(const facts *f, const char *what, uint64_t *out) {
    char key[128];
    snprintf(key, sizeof key, "%.*s.%s", (int)f->info.architecture.n, f->info.architecture.p, what);
    ig_gguf_get_u64(f->gguf, key, out, NULL);
}

static void look_at_gguf(facts *f) {
    ig_gguf_array tokens;
    ig_slice chat = {NULL, 0};
    ig_gguf_get_string(f->gguf, "tokenizer.ggml.model", &f->tokenizer, NULL);
    ig_gguf_get_string(f->gguf, "tokenizer.ggml.pre", &f->pre, NULL);
    ig_gguf_get_string(f->gguf, "tokenizer.chat_template", &chat, NULL);
    if (ig_gguf_get_array(f->gguf, "tokenizer.ggml.tokens", &tokens, NULL) == IG_OK) f->n_tokens = tokens.n;
    ig_gguf_get_string(f->gguf, "general.architecture", &f->info.architecture, NULL);
    get_arch_u64(f, "context_length", &f->n_ctx);
    f->chat_bytes = chat.n;
}

static void look_at_snapshot(facts *f) {
    char *chat = NULL;
    ig_status st = ig_snapshot_json(&f->text, f->snapshot, "tokenizer.json", &f->tokenizer_why);
    if (st == IG_OK) {
        yyjson_val *type = ig_json_get(ig_json_get(yyjson_doc_get_root(f->text), "model"), "type");
        f->tokenizer = (ig_slice){yyjson_get_str(type), yyjson_get_len(type)};
    } else if (st == IG_ENOTFOUND) {
        f->tokenizer_why.code = IG_OK;
    }
    if (ig_template_source_from_snapshot(&chat, &f->chat_bytes, f->snapshot, "default", &f->chat_why) ==
        IG_ENOTFOUND)
        f->chat_why.code = IG_OK;
    free(chat);
}

static void look(facts *f) {
    if (f->gguf)
        look_at_gguf(f);
    else
        look_at_snapshot(f);
    f->usable_bytes = ig_memory_available_bytes() / 4 * 3;
    count_types(f);
}

static const char *path_of(const facts *f) {
    return f->gguf ? ig_gguf_path(f->gguf) : ig_snapshot_path(f->snapshot);
}

/* A window of w positions touches at most one block more than it fills. */
static void count_kv(facts *f, ig_kv_shape s) {
    for (int i = 0; i < s.n_groups; i++) {
        const size_t block = ig_kv_group_block_bytes(s.group[i]);
        if (s.group[i].window) {
            f->window = s.group[i].window;
            f->kv_window_bytes += block * (size_t)(ig_kv_blocks_for(f->window) + 1);
        } else {
            f->kv_token_bytes += block / IG_KV_BLOCK_TOKENS;
        }
    }
}

/* The real thing: the weights are read and packed, so that the plan and the kernels are no guess. */
static void try_it(facts *f, const ig_load_options *o, const char *path) {
    ig_model *m = NULL;
    ig_pool *pool = NULL;
    ig_tokenizer *tokenizer = NULL;
    const ig_checkpoint from = {f->gguf, f->snapshot};
    ig_status st = ig_model_inspect(&f->info, from, &f->why);
    if (!st) f->n_ctx = (uint64_t)f->info.config.n_ctx_train;
    ig_model_options mo = {.tier_max = ig_load_tier(o), .memory_budget_bytes = o->engine.memory_budget_bytes, .kv_kind = ig_load_kv_kind(o),
                           .two_parts = o->act_bits == 16};
    ig_kv_config kv_config;
    if (!mo.memory_budget_bytes) mo.memory_budget_bytes = f->usable_bytes;
    mo.kv_config = &kv_config;
    if (!st) st = ig_load_kv_config(&kv_config, o, path, &f->why);
    if (!st) st = ig_pool_make(&pool, o->n_threads > 0 ? o->n_threads : ig_cpu_count(), &f->why);
    mo.pool = pool;
    if (!st) st = ig_model_open(&m, from, &mo, &f->why);
    if (!st) {
        f->info.n_params = ig_model_n_params(m);
        f->weights_bytes = ig_model_weights_bytes(m);
        f->decode_bytes = ig_model_decode_bytes(m);
        count_kv(f, ig_model_kv_shape(m));
        ig_model_trace(m, count_kernel, f);
        ig_tier_plan_make(&f->tiers, m, ig_load_tier(o));
        ig_load_options alone = *o;
        alone.engine.n_slots = 1;
        if (ig_load_plan(&f->plan, m, o, &f->no_serve) == IG_OK) f->no_serve.code = IG_OK;
        st = ig_load_plan(&f->one, m, &alone, &f->why);
    }
    if (!st)
        st = f->gguf ? ig_tokenizer_from_gguf(&tokenizer, f->gguf, &f->why)
                     : ig_tokenizer_from_snapshot(&tokenizer, f->snapshot, &f->why);
    if (!st) f->n_tokens = ig_tokenizer_n_vocab(tokenizer);
    if (!st) st = ig_load_check_vocabulary(tokenizer, m, path_of(f), f->snapshot != NULL, &f->why);
    f->runs = st == IG_OK;
    if (tokenizer) ig_tokenizer_free(tokenizer);
    if (m) ig_model_close(m);
    ig_pool_free(pool);
}

/* Text of a file is not sent to the terminal as it is, nor without end. */
static void print_clean(ig_slice s) {
    for (size_t i = 0, len; i < s.n && i < 200; i += len ? len : 1) {
        len = ig_utf8_printable(s.p + i, s.n - i);
        if (len)
            fwrite(s.p + i, 1, len, stdout);
        else
            putchar('?');
    }
}

static void print_slice(const char *label, ig_slice s) {
    if (!s.n) return;
    printf("%-12s ", label);
    print_clean(s);
    putchar('\n');
}

static void print_tokenizer(const facts *f) {
    if (f->tokenizer_why.code) printf("%-12s cannot be read: %s\n", "tokenizer", f->tokenizer_why.msg);
    if (!f->tokenizer.n) return;
    printf("%-12s ", "tokenizer");
    print_clean(f->tokenizer);
    if (f->pre.n) putchar('/');
    print_clean(f->pre);
    printf(", %" PRIu64 " tokens\n", f->n_tokens);
}

typedef struct parts_word {
    char s[32];
} parts_word;
static parts_word parts_text(const ig_gguf *g) {
    parts_word w = {""};
    if (ig_gguf_n_files(g) > 1) snprintf(w.s, sizeof w.s, " in %d parts", ig_gguf_n_files(g));
    return w;
}

static void print_files(const facts *f) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", path_of(f));
    ig_text_calm(path, false);
    if (f->gguf)
        printf("%-12s %s, %s%s, %d keys, %d tensors\n", "file", path,
               ig_size_text_of(ig_gguf_file_bytes(f->gguf)).s, parts_text(f->gguf).s, ig_gguf_n_keys(f->gguf),
               ig_gguf_n_tensors(f->gguf));
    else
        printf("%-12s %s, %s in %d safetensors file%s, %d tensors\n", "folder", path,
               ig_size_text_of(ig_snapshot_weights_bytes(f->snapshot)).s, ig_snapshot_n_files(f->snapshot),
               ig_snapshot_n_files(f->snapshot) == 1 ? "" : "s", ig_snapshot_n_tensors(f->snapshot));
}

/* What of the family's variants this model is. */
static void print_details(const ig_model_config *c) {
    const ig_rope_settings *r = &c->rope[IG_ROPE_FULL];
    int n_windowed = 0;
    for (int i = 0; i < c->n_layers; i++) n_windowed += c->windowed[i];
    printf("%-12s base %g", "rope", r->base);
    if (r->type != IG_ROPE_PLAIN) printf(", %s, factor %g", ig_rope_type_name(r->type), r->factor);
    if (c->own_window_rope && n_windowed) printf("; in windows base %g", c->rope[IG_ROPE_WINDOW].base);
    printf("\n");
    if (n_windowed)
        printf("%-12s %d positions in %d of %d layers\n", "window", c->window, n_windowed, c->n_layers);
    if (c->attention_softcap > 0 || c->final_softcap > 0)
        printf("%-12s scores %g, logits %g (0: none)\n", "caps", (double)c->attention_softcap,
               (double)c->final_softcap);
    if (c->pooling || c->no_head)
        printf("%-12s of texts, pooled by \"%s\"%s\n", "vectors", ig_pooling_name(c->pooling),
               c->no_head ? "; no head, no tokens" : "");
}

/* A line a kernel, with all the ops that it does: few of them differ. */
static void print_kernels(const facts *f) {
    bool any = false;
    for (int i = 0; i < f->n_kernels; i++) {
        const by_kernel *k = &f->kernels[i];
        int column, first = 0, calls = 0;
        while (f->kernels[first].kern != k->kern) first++;
        if (first != i) continue;
        for (int j = i; j < f->n_kernels; j++) calls += f->kernels[j].kern == k->kern ? f->kernels[j].n : 0;
        column = printf("%-12s %-30s x%-4d ", any ? "" : "kernels", k->kern ? k->kern->name : "-", calls);
        for (int j = i; j < f->n_kernels; j++) {
            const char *op = f->kernels[j].op, *comma = j > i ? ", " : "";
            if (f->kernels[j].kern != k->kern) continue;
            if (column + 2 + (int)strlen(op) > COLUMNS) column = printf(",\n%*s", OPS_COLUMN, "") - 2, comma = "";
            column += printf("%s%s", comma, op);
        }
        putchar('\n');
        any = true;
    }
}

/* What the parts of a plan leave of its whole: kept free for what is not planned. */
static uint64_t reserve_of(const ig_engine_plan *p) {
    return p->total_bytes - p->weights_bytes - p->kv_bytes - p->step_bytes - p->table_bytes;
}

static void print_memory(const facts *f) {
    const ig_engine_plan *p = f->no_serve.code ? &f->one : &f->plan;
    printf("%-12s weights %s, key/value cache %s, step %s, tables %s, reserve %s\n", "memory",
           ig_size_text_of(p->weights_bytes).s, ig_size_text_of(p->kv_bytes).s, ig_size_text_of(p->step_bytes).s,
           ig_size_text_of(p->table_bytes).s, ig_size_text_of(reserve_of(p)).s);
    printf("%-12s %s a token", "keys, values", ig_size_text_of(f->kv_token_bytes).s);
    if (f->window)
        printf(", and %s a conversation in windows of %d", ig_size_text_of(f->kv_window_bytes).s, f->window);
    printf("\n%-12s yes: ", "runs");
    if (!f->no_serve.code)
        printf("serve takes %s of %s usable: %d conversations of %d tokens\n%-12s      ",
               ig_size_text_of(p->total_bytes).s, ig_size_text_of(p->usable_bytes).s, p->n_slots, p->n_ctx, "");
    printf("generate and chat take %s%s%s: one of %d tokens\n", ig_size_text_of(f->one.total_bytes).s,
           f->no_serve.code ? " of " : "", f->no_serve.code ? ig_size_text_of(p->usable_bytes).s : "", f->one.n_ctx);
    if (f->no_serve.code) printf("%-12s serve does not: %s\n", "", f->no_serve.msg);
}

static void print_text(const facts *f) {
    const ig_model_config *c = &f->info.config;
    print_files(f);
    print_slice("name", f->info.name);
    print_slice("family", f->info.architecture);
    if (f->info.n_params) printf("%-12s %.1f million\n", "parameters", (double)f->info.n_params / 1e6);
    if (f->n_ctx) printf("%-12s %" PRIu64 " tokens\n", "context", f->n_ctx);
    if (f->info.family)
        printf("%-12s %d layers, width %d, %d heads of %d, %d key/value heads, ffn %d, vocabulary %d%s\n",
               "shape", c->n_layers, c->width, c->n_heads, c->head_dim, c->n_kv_heads, c->ffn_width,
               c->n_vocab, c->tied_head ? ", tied head" : "");
    if (f->info.family) print_details(c);
    for (int i = 0; i < f->n_types; i++)
        printf("%-12s %-14s %4d tensor%s, %s\n", i ? "" : "formats", f->types[i].type, f->types[i].n,
               f->types[i].n == 1 ? "" : "s", ig_size_text_of(f->types[i].bytes).s);
    print_tokenizer(f);
    if (f->chat_bytes)
        printf("%-12s yes, %zu bytes\n", "template", f->chat_bytes);
    else if (f->chat_why.code)
        printf("%-12s cannot be read: %s\n", "template", f->chat_why.msg);
    else
        printf("%-12s none: it completes text, it does not chat\n", "template");
    print_kernels(f);
    if (f->tiers.greedy)
        printf("%-12s tier %s: %s; `ingle tiers` says it step by step\n", "numbers", ig_tier_name(f->tiers.greedy),
               ig_tier_promise(f->tiers.greedy));
    if (!f->runs) {
        printf("%-12s no: %s\n", "runs", f->why.msg);
        return;
    }
    print_memory(f);
}

static void add_slice(yyjson_mut_doc *doc, yyjson_mut_val *to, const char *key, ig_slice s) {
    if (s.n) yyjson_mut_obj_add_val(doc, to, key, ig_json_bytes(doc, s.p, s.n));
}

static void add_config(yyjson_mut_doc *doc, yyjson_mut_val *root, const facts *f) {
    const ig_model_config *c = &f->info.config;
    if (!f->info.family) return;
    yyjson_mut_val *o = yyjson_mut_obj_add_obj(doc, root, "shape");
    const struct {
        const char *name;
        int v;
    } rows[] = {{"layers", c->n_layers},     {"width", c->width},       {"heads", c->n_heads},
                {"kv_heads", c->n_kv_heads}, {"head_dim", c->head_dim}, {"ffn_width", c->ffn_width},
                {"vocabulary", c->n_vocab}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        yyjson_mut_obj_add_int(doc, o, rows[i].name, rows[i].v);
    yyjson_mut_obj_add_bool(doc, o, "tied_head", c->tied_head);
    yyjson_mut_obj_add_bool(doc, o, "head", !c->no_head);
    yyjson_mut_obj_add_str(doc, o, "pooling", ig_pooling_name(c->pooling));
    yyjson_mut_val *rope = yyjson_mut_obj_add_obj(doc, o, "rope");
    yyjson_mut_obj_add_str(doc, rope, "type", ig_rope_type_name(c->rope[IG_ROPE_FULL].type));
    yyjson_mut_obj_add_real(doc, rope, "base", c->rope[IG_ROPE_FULL].base);
    yyjson_mut_obj_add_real(doc, rope, "factor", c->rope[IG_ROPE_FULL].factor);
    yyjson_mut_obj_add_real(doc, o, "attention_softcap", (double)c->attention_softcap);
    yyjson_mut_obj_add_real(doc, o, "final_softcap", (double)c->final_softcap);
}

static void add_plan(yyjson_mut_doc *doc, yyjson_mut_val *o, const ig_engine_plan *p) {
    yyjson_mut_obj_add_uint(doc, o, "kv_bytes", p->kv_bytes);
    yyjson_mut_obj_add_uint(doc, o, "step_bytes", p->step_bytes);
    yyjson_mut_obj_add_uint(doc, o, "table_bytes", p->table_bytes);
    yyjson_mut_obj_add_uint(doc, o, "reserve_bytes", reserve_of(p));
    yyjson_mut_obj_add_uint(doc, o, "total_bytes", p->total_bytes);
    yyjson_mut_obj_add_uint(doc, o, "usable_bytes", p->usable_bytes);
    yyjson_mut_obj_add_int(doc, o, "slots", p->n_slots);
    yyjson_mut_obj_add_int(doc, o, "ctx", p->n_ctx);
}

static void add_memory(yyjson_mut_doc *doc, yyjson_mut_val *root, const facts *f) {
    yyjson_mut_val *o = yyjson_mut_obj_add_obj(doc, root, "memory");
    yyjson_mut_obj_add_uint(doc, o, "weights_bytes", f->weights_bytes);
    yyjson_mut_obj_add_uint(doc, o, "decode_bytes", f->decode_bytes);
    yyjson_mut_obj_add_uint(doc, o, "kv_token_bytes", f->kv_token_bytes);
    yyjson_mut_obj_add_uint(doc, o, "kv_window_bytes", f->kv_window_bytes);
    yyjson_mut_obj_add_int(doc, o, "window", f->window);
    if (!f->runs) return;
    if (!f->no_serve.code) add_plan(doc, o, &f->plan); /* what serve takes */
    add_plan(doc, yyjson_mut_obj_add_obj(doc, o, "one_conversation"), &f->one);
    if (f->no_serve.code) ig_json_add_bytes(doc, o, "why_not_serve", f->no_serve.msg);
}

static int print_json(const facts *f) {
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    ig_json_add_bytes(doc, root, "path", path_of(f));
    yyjson_mut_obj_add_uint(doc, root, "file_bytes",
                            f->gguf ? ig_gguf_file_bytes(f->gguf) : ig_snapshot_weights_bytes(f->snapshot));
    add_slice(doc, root, "name", f->info.name);
    add_slice(doc, root, "architecture", f->info.architecture);
    yyjson_mut_obj_add_uint(doc, root, "parameters", f->info.n_params);
    yyjson_mut_obj_add_uint(doc, root, "context_length", f->n_ctx);
    add_config(doc, root, f);
    yyjson_mut_val *types = yyjson_mut_obj_add_arr(doc, root, "formats");
    for (int i = 0; i < f->n_types; i++) {
        yyjson_mut_val *t = yyjson_mut_arr_add_obj(doc, types);
        yyjson_mut_obj_add_str(doc, t, "type", f->types[i].type);
        yyjson_mut_obj_add_int(doc, t, "tensors", f->types[i].n);
        yyjson_mut_obj_add_uint(doc, t, "bytes", f->types[i].bytes);
    }
    add_slice(doc, root, "tokenizer", f->tokenizer);
    if (f->tokenizer_why.code) ig_json_add_bytes(doc, root, "tokenizer_error", f->tokenizer_why.msg);
    if (f->chat_why.code) ig_json_add_bytes(doc, root, "chat_template_error", f->chat_why.msg);
    add_slice(doc, root, "pre_tokenizer", f->pre);
    yyjson_mut_obj_add_uint(doc, root, "tokens", f->n_tokens);
    yyjson_mut_obj_add_bool(doc, root, "chat_template", f->chat_bytes > 0);
    yyjson_mut_val *kernels = yyjson_mut_obj_add_arr(doc, root, "kernels");
    for (int i = 0; i < f->n_kernels; i++) {
        yyjson_mut_val *k = yyjson_mut_arr_add_obj(doc, kernels);
        yyjson_mut_obj_add_str(doc, k, "op", f->kernels[i].op);
        yyjson_mut_obj_add_str(doc, k, "kernel", f->kernels[i].kern ? f->kernels[i].kern->name : "");
        yyjson_mut_obj_add_int(doc, k, "calls", f->kernels[i].n);
    }
    if (f->tiers.greedy) yyjson_mut_obj_add_str(doc, root, "tier", ig_tier_name(f->tiers.greedy));
    if (f->weights_bytes) add_memory(doc, root, f);
    yyjson_mut_obj_add_bool(doc, root, "runs", f->runs);
    if (!f->runs) ig_json_add_bytes(doc, root, "why_not", f->why.msg);
    return ig_app_print_json(doc, lost);
}

int ig_cmd_show(int argc, char **argv) {
    ig_load_options load = ig_load_defaults();
    bool json = false;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"},
        IG_LOAD_OPTIONS(load),
    };
    const ig_command c = {
        .verb = "show",
        .words = "[MODEL]",
        .summary = "What a model holds, whether it runs here, with which kernels and how much memory.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1};
    ig_words words;
    ig_err err;
    char *path = NULL;
    int code;
    facts *f;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if ((code = ig_load_check_numbers(&load))) return code;
    if ((code = ig_models_find(&path, words.n ? words.v[0] : load.model))) return code;
    f = calloc(1, sizeof *f);
    if (!f) {
        free(path);
        return ig_app_say(IG_EXIT_FAILED, "no memory");
    }
    if (ig_load_files(&f->gguf, &f->snapshot, path, &err)) {
        code = ig_app_fail(&err);
    } else {
        look(f);
        try_it(f, &load, path);
        if (json)
            code = print_json(f);
        else
            print_text(f);
        if (!code && !f->runs) code = ig_exit_of(f->why.code); /* shown all the same, and said on stdout why */
    }
    ig_gguf_close(f->gguf);
    ig_snapshot_close(f->snapshot);
    yyjson_doc_free(f->text);
    free(path);
    free(f);
    return code;
}
