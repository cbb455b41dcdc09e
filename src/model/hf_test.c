/* hf_test: the same random weights as a GGUF file and as a snapshot give the same logits by bytes, whatever
 * the spelling, the sharding and the prefix; MLX weights agree with a float64 forward over what they decode
 * to; and every setting or tensor that would change the numbers is refused by name. */
#include "base/test.h"
#include "model/tiny_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

/* ---- a snapshot writer --------------------------------------------------------------------------------- */

enum { OUT_MAX = 256 };

/* A tensor of the snapshot: its bytes are malloc'd. */
typedef struct out {
    char name[96], dtype[8];
    int rows, cols; /* rows 0: a vector */
    uint8_t *bytes;
    size_t n;
} out;

/* What a snapshot is like, and what a test wants wrong. */
typedef struct style {
    int n_shards;                      /* 0: one file without an index */
    int bits, group;                   /* MLX; 0: the values as they are */
    const char *scales;                /* dtype of MLX scales; NULL: BF16 */
    const char *mode;                  /* of MLX; NULL: affine */
    float tensor_scale;                /* of nvfp4; 0: none */
    const char *retype;                /* a tensor that becomes F8_E4M3 */
    const char *poke;                  /* a tensor whose sixth byte becomes 255 */
    const char *body, *outer;          /* NULL: "model." and "" */
    const char *config;                /* members that replace those of their names; ended by NULL via "" */
    const char *type;                  /* model_type; NULL: of the shape */
    const char *rope;                  /* NULL: none, the default base */
    const char *drop, *add, *misshape; /* a tensor, by its name in the snapshot */
    const char *nan;                   /* a vector in F32 */
    const char *swap;                  /* MLX scales: those of each row's first two groups change places */
    bool nested;                       /* the settings in text_config */
    const char *family;                /* as in twist */
} style;

static bool is_gemma(shape s, const style *y) {
    return strncmp(family_of(s, &(twist){.family = y->family}), "gemma", 5) == 0;
}

static const char *const names[][2] = {{"attn_norm", "input_layernorm"},
                                       {"attn_q", "self_attn.q_proj"},
                                       {"attn_k", "self_attn.k_proj"},
                                       {"attn_v", "self_attn.v_proj"},
                                       {"attn_output", "self_attn.o_proj"},
                                       {"attn_q_norm", "self_attn.q_norm"},
                                       {"attn_k_norm", "self_attn.k_norm"},
                                       {"ffn_gate", "mlp.gate_proj"},
                                       {"ffn_up", "mlp.up_proj"},
                                       {"ffn_down", "mlp.down_proj"},
                                       {"post_ffw_norm", "post_feedforward_layernorm"}};

static void hf_name(char *to, size_t cap, const char *gguf, bool gemma, const style *y) {
    const char *body = y->body ? y->body : "model.", *outer = y->outer ? y->outer : "";
    int layer = 0, at = 0;
    if (strcmp(gguf, "token_embd.weight") == 0)
        snprintf(to, cap, "%sembed_tokens.weight", body);
    else if (strcmp(gguf, "output_norm.weight") == 0)
        snprintf(to, cap, "%snorm.weight", body);
    else if (strcmp(gguf, "output.weight") == 0)
        snprintf(to, cap, "%slm_head.weight", outer);
    else if (sscanf(gguf, "blk.%d.%n", &layer, &at) == 1) {
        char what[64];
        const char *kind = strrchr(gguf, '.');
        snprintf(what, sizeof what, "%.*s", (int)(kind - (gguf + at)), gguf + at);
        const char *hf = strcmp(what, "ffn_norm") == 0
                             ? (gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm")
                             : "post_attention_layernorm"; /* Gemma's post_attention_norm */
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(names[i][0], what) == 0) hf = names[i][1];
        snprintf(to, cap, "%slayers.%d.%s%s", body, layer, hf, kind);
    }
}

static float bf16_round(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

static void put_code(uint8_t *codes, size_t i, int bits, unsigned code) {
    for (int b = 0; b < bits; b++)
        codes[(i * (size_t)bits + (size_t)b) / 8] |=
            (uint8_t)((code >> b & 1u) << (i * (size_t)bits + (size_t)b) % 8);
}

/* The small float of 4 or 8 bits that is nearest. */
static unsigned nearest_small(float x, int bits, float *value) {
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned best = 0, n = bits == 4 ? 8 : 127;
    for (unsigned c = 0; c < n; c++) {
        float v = bits == 4 ? e2m1[c] : ig_e4m3_to_f32((uint8_t)c);
        if (c == 0 || fabsf(fabsf(x) - v) < fabsf(fabsf(x) - *value)) best = c, *value = v;
    }
    if (x < 0) *value = -*value;
    return best | (x < 0 ? 1u << (bits - 1) : 0);
}

/* Scale of a group in mxfp4, nvfp4 or mxfp8, as its byte; at least 2^-20. */
static uint8_t small_scale(float *scale, const float *x, const style *y) {
    float top = 1e-6f, most = y->bits == 4 ? 6.0f : 448.0f, rest;
    int e = 0;
    for (int i = 0; i < y->group; i++) top = fmaxf(top, fabsf(x[i]));
    *scale = exp2f(ceilf(log2f(top / most)));
    if (strcmp(y->mode, "nvfp4") != 0) return (uint8_t)(127 + (int)log2f(*scale));
    const float whole = y->tensor_scale > 0 ? y->tensor_scale / 2688.0f : 1.0f;
    frexpf(top, &e);
    uint8_t code = (uint8_t)nearest_small(top / most / whole, 8, &rest);
    *scale = ig_e4m3_to_f32(code) * whole;
    return code;
}

/* Rows of f32 values to MLX codes, scales and biases; the values become what those decode to. */
static void quantize(out *code, out *scale, out *bias, float *v, int rows, int cols, const style *y) {
    const char *dtype = y->mode ? "U8" : y->scales ? y->scales : "BF16";
    const size_t size = y->mode ? 1 : strcmp(dtype, "F32") == 0 ? 4 : 2;
    const int per_row = cols / y->group, top = (1 << y->bits) - 1;
    code->n = (size_t)rows * (size_t)cols * (size_t)y->bits / 8;
    scale->n = bias->n = (size_t)rows * (size_t)per_row * size;
    code->bytes = calloc(1, code->n), scale->bytes = calloc(1, scale->n), bias->bytes = calloc(1, bias->n);
    code->rows = scale->rows = bias->rows = rows;
    code->cols = cols * y->bits / 32, scale->cols = bias->cols = per_row;
    snprintf(code->dtype, 8, "U32"), snprintf(scale->dtype, 8, "%s", dtype),
        snprintf(bias->dtype, 8, "%s", dtype);
    for (int g = 0; g < rows * per_row; g++) {
        float *x = v + (size_t)g * (size_t)y->group, low = x[0], high = x[0], pair[2];
        const size_t at = (size_t)g * (size_t)y->group;
        if (y->mode) {
            scale->bytes[g] = small_scale(pair, x, y);
            for (int i = 0; i < y->group; i++) {
                float value = 0;
                put_code(code->bytes, at + (size_t)i, y->bits,
                         pair[0] > 0 ? nearest_small(x[i] / pair[0], y->bits, &value) : 0);
                x[i] = value * pair[0];
            }
            continue;
        }
        for (int i = 1; i < y->group; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
        pair[0] = (high - low) / (float)top, pair[1] = low;
        for (int k = 0; k < 2; k++) {
            uint8_t *to = (k ? bias : scale)->bytes + (size_t)g * size;
            uint16_t h = ig_f32_to_f16(pair[k]);
            if (strcmp(dtype, "BF16") == 0)
                pair[k] = bf16_round(pair[k]), memcpy(to, (char *)&pair[k] + 2, 2);
            if (strcmp(dtype, "F16") == 0) pair[k] = ig_f16_to_f32(h), memcpy(to, &h, 2);
            if (strcmp(dtype, "F32") == 0) memcpy(to, &pair[k], 4);
        }
        for (int i = 0; i < y->group; i++) {
            int q = (int)lrintf((x[i] - pair[1]) / pair[0]);
            q = q < 0 ? 0 : q > top ? top : q;
            put_code(code->bytes, at + (size_t)i, y->bits, (unsigned)q);
            x[i] = (float)q * pair[0] + pair[1];
        }
    }
}

/* The tensors of a GGUF file under the names, in the row order and with the values that a snapshot has. With
 * MLX weights the GGUF file, F32 then, is changed to what they decode to. */
static int convert(out *v, const char *gguf_path, shape s, const style *y) {
    int n = 0, fd = open(gguf_path, O_RDWR);
    ig_gguf *g = NULL;
    if (fd < 0 || ig_gguf_open(&g, gguf_path, NULL) != IG_OK) abort();
    for (int i = 0; i < ig_gguf_n_tensors(g); i++) {
        const ig_gguf_tensor *t = ig_gguf_tensor_at(g, i);
        const int rows = (int)t->dim[1], cols = (int)t->dim[0], half = s.dim / 2;
        const size_t row = (size_t)t->n_bytes / (size_t)rows;
        char gguf[64];
        out *o = &v[n++];
        snprintf(gguf, sizeof gguf, "%.*s", (int)t->name.n, t->name.p);
        *o = (out){.rows = t->n_dims == 2 ? rows : 0, .cols = cols, .n = (size_t)t->n_bytes};
        hf_name(o->name, sizeof o->name, gguf, is_gemma(s, y), y);
        snprintf(o->dtype, sizeof o->dtype, "%s", ig_gguf_type_of(t->type)->name);
        o->bytes = malloc(o->n);
        if (ig_gguf_read(g, t, 0, o->bytes, o->n, NULL) != IG_OK) abort();
        if (o->rows == 0 && is_gemma(s, y)) /* a norm of Gemma: less one, exactly */
            for (int c = 0; c < cols; c++) ((float *)(void *)o->bytes)[c] -= 1.0f;
        out *scale = &v[n], *bias = &v[n + 1];
        if (o->rows && y->bits) {
            float *values = (float *)(void *)o->bytes;
            *scale = *bias = *o;
            quantize(o, scale, bias, values, rows, cols, y);
            if (pwrite(fd, values, (size_t)t->n_bytes, (off_t)t->offset) != (ssize_t)t->n_bytes) abort();
            free(values);
            memcpy(scale->name + strlen(o->name) - 7, ".scales", 8); /* both are .weight still */
            memcpy(bias->name + strlen(o->name) - 7, ".biases", 8);
            if (y->mode && y->tensor_scale > 0) { /* one number in the place of the biases */
                memcpy(bias->name + strlen(o->name) - 7, ".global_scale", 14);
                memcpy(bias->bytes, &y->tensor_scale, 4);
                bias->rows = 0, bias->cols = 1, bias->n = 4, snprintf(bias->dtype, 8, "F32");
            } else if (y->mode) {
                free(bias->bytes), n--;
            }
            n += 2;
        }
        const bool turned =
            !is_gemma(s, y) && !y->family && (strstr(gguf, "attn_q.") || strstr(gguf, "attn_k."));
        for (out *p = o; turned && p < &v[n]; p++) { /* GGUF row 2i + s of a head is row s * half + i here */
            if (p > o && !p->rows) continue; /* the scale of a whole tensor */
            const int n_rows = p->rows ? rows : cols; /* a bias */
            const size_t bytes = p->rows && p == o && !y->bits ? row : p->n / (size_t)n_rows;
            uint8_t *old = p->bytes;
            p->bytes = malloc(p->n);
            for (int r = 0; r < n_rows; r++) {
                int head = r / s.dim, at = r % s.dim,
                    from = head * s.dim + (at < half ? 2 * at : 2 * (at - half) + 1);
                memcpy(p->bytes + (size_t)r * bytes, old + (size_t)from * bytes, bytes);
            }
            free(old);
        }
    }
    ig_gguf_close(g), close(fd);
    return n;
}

static char folder[64];

static FILE *create(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f) abort();
    return f;
}

static void write_shard(const char *name, const out *v, int n, int shard, int n_shards, const style *y) {
    FILE *f = create(name);
    ig_buf head = ig_buf_init(1 << 20);
    size_t at = 0;
    ig_buf_add_str(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < n; i++) {
        if (i % n_shards != shard) continue;
        ig_buf_addf(&head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", v[i].name, v[i].dtype);
        const bool wrong = y->misshape && strcmp(y->misshape, v[i].name) == 0;
        if (v[i].rows) ig_buf_addf(&head, "%d,", wrong ? v[i].rows / 2 : v[i].rows);
        ig_buf_addf(&head, "%d],\"data_offsets\":[%zu,%zu]}", wrong ? v[i].cols * 2 : v[i].cols, at,
                    at + v[i].n);
        at += v[i].n;
    }
    ig_buf_add_str(&head, "}");
    uint64_t length = head.n;
    put(f, &length, 8), put(f, head.p, head.n);
    for (int i = 0; i < n; i++)
        if (i % n_shards == shard) put(f, v[i].bytes, v[i].n);
    ig_buf_free(&head);
    fclose(f);
}

static void write_config(shape s, const style *y) {
    FILE *f = create("config.json");
    const char *type = y->type ? y->type : y->family ? y->family : s.window ? "gemma3_text" : "llama";
    fprintf(f, "{\"model_type\":\"%s\",", type);
    if (y->nested) fprintf(f, "\"text_config\":{");
    fprintf(
        f,
        "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
        "\"num_key_value_heads\":%d,\"head_dim\":%d,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":512",
        s.width, s.ffn, s.layers, s.heads, s.kv_heads, s.dim);
    if (s.window)
        fprintf(f, ",\"sliding_window\":%d,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":%d",
                s.window, s.dim);
    if (y->rope) fprintf(f, ",%s", y->rope);
    if (y->nested) fprintf(f, "}");
    fprintf(f, ",\"vocab_size\":%d,\"tie_word_embeddings\":%s", s.vocab, s.untied ? "false" : "true");
    if (y->bits)
        fprintf(f, ",\"quantization\":{\"group_size\":%d,\"bits\":%d,\"mode\":\"%s\"}", y->group, y->bits,
                y->mode ? y->mode : "affine");
    if (y->config) fprintf(f, ",%s", y->config); /* the last of a name counts */
    fprintf(f, "}");
    fclose(f);
}

static void write_snapshot(const char *gguf_path, shape s, const style *y) {
    static out v[OUT_MAX];
    int n = convert(v, gguf_path, s, y);
    snprintf(folder, sizeof folder, "/tmp/ig-hf-XXXXXX");
    if (!mkdtemp(folder)) abort();
    for (int i = 0; i < n; i++)
        if (y->drop && strcmp(v[i].name, y->drop) == 0) free(v[i].bytes), v[i--] = v[--n];
    const float nan = NAN;
    for (int i = 0; i < n; i++) {
        const size_t size = strcmp(v[i].dtype, "F32") == 0 ? 4 : strcmp(v[i].dtype, "U8") == 0 ? 1 : 2;
        if (y->nan && strcmp(v[i].name, y->nan) == 0) memcpy(v[i].bytes + 3 * sizeof nan, &nan, sizeof nan);
        if (y->retype && strcmp(v[i].name, y->retype) == 0) v[i].n /= 4, snprintf(v[i].dtype, 8, "F8_E4M3");
        if (y->poke && strcmp(v[i].name, y->poke) == 0) v[i].bytes[5] = 255;
        if (!y->swap || strcmp(v[i].name, y->swap) != 0) continue;
        for (int r = 0; r < v[i].rows; r++) {
            uint8_t first[4], *row = v[i].bytes + (size_t)r * (size_t)v[i].cols * size;
            memcpy(first, row, size), memcpy(row, row + size, size), memcpy(row + size, first, size);
        }
    }
    if (y->add) {
        v[n] = (out){.cols = 4, .n = 16, .bytes = calloc(1, 16), .dtype = "F32"};
        snprintf(v[n++].name, sizeof v->name, "%s", y->add);
    }
    write_config(s, y);
    if (!y->n_shards) write_shard("model.safetensors", v, n, 0, 1, y);
    FILE *index = y->n_shards ? create("model.safetensors.index.json") : NULL;
    if (index) fprintf(index, "{\"weight_map\":{");
    for (int k = 0; k < y->n_shards; k++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k + 1, y->n_shards);
        write_shard(name, v, n, k, y->n_shards, y);
        for (int i = k; i < n; i += y->n_shards)
            fprintf(index, "%s\"%s\":\"%s\"", i == 0 ? "" : ",", v[i].name, name);
    }
    if (index) fprintf(index, "}}"), fclose(index);
    for (int i = 0; i < n; i++) free(v[i].bytes);
}

static void drop_folder(void) {
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(folder);
}

/* ---- running both -------------------------------------------------------------------------------------- */

enum { N = 70, V_MAX = 128 };

static bool logits_of(float *logits, const char *path, shape s) {
    rig r;
    uint32_t tok[N];
    int zero = 0;
    if (!rig_open(&r, path, 2, 0)) return false;
    random_tokens(tok, N, s.vocab, 3);
    step(&r, tok, &zero, 1, 0, N, logits);
    rig_close(&r);
    return true;
}

/* The snapshot's logits against those of the GGUF file, which is kept. */
static void same(const char *what, file *w, shape s, const style *y, bool expected) {
    static float a[N * V_MAX], b[N * V_MAX];
    write_snapshot(w->path, s, y);
    if (logits_of(a, w->path, s) && logits_of(b, folder, s))
        CHECK_MSG((memcmp(a, b, (size_t)(N * s.vocab) * 4) == 0) == expected, "%s: logits %s", what,
                  expected ? "differ" : "do not differ");
    drop_folder();
}

TEST(the_same_weights_as_gguf_and_as_snapshot_give_the_same_logits_by_bytes) {
    static const shape shapes[] = {{2, 96, 160, 6, 2, 32, 80, false, "f32", 0},
                                   {2, 96, 160, 6, 2, 32, 80, true, "bf16", 0},
                                   {1, 160, 96, 8, 2, 80, 48, false, "f16", 0},
                                   {4, 96, 160, 3, 1, 32, 80, false, "f32", 16},
                                   {4, 96, 160, 3, 1, 32, 80, true, "bf16", 16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        file w = write_model(shapes[i], (twist){0});
        same(shapes[i].fmt, &w, shapes[i], &(style){0}, true);
        same("shards", &w, shapes[i], &(style){.n_shards = 3}, true);
        same("control", &w, shapes[i], &(style){.rope = "\"rope_theta\":12345"}, false);
        unlink(w.path);
    }
}

/* The same, of a GGUF file that is written for it. `gguf` must not be the same as the snapshot when `wrong` is. */
static void same_family(const char *what, shape s, twist t, style y, bool expected) {
    file w = write_model(s, t);
    same(what, &w, s, &y, expected);
    unlink(w.path);
}

TEST(every_dense_family_is_the_same_from_a_gguf_file_and_from_a_snapshot) {
    static const shape s = {3, 96, 160, 6, 2, 32, 80, false, "f32", 0},
                       windows = {3, 96, 160, 6, 2, 32, 80, true, "bf16", 8};
    static const char theta[] = "\"rope_theta\":10000";
#define GEMMA2 "\"query_pre_attn_scalar\":32,\"sliding_window\":8"
    same_family("qwen2", s, (twist){.family = "qwen2"}, (style){.family = "qwen2", .rope = theta}, true);
    same_family("qwen3", s, (twist){.family = "qwen3"}, (style){.family = "qwen3", .rope = theta}, true);
    same_family("gemma2", windows, (twist){.family = "gemma2"}, (style){.family = "gemma2", .config = GEMMA2},
                true);
    same_family("gemma2, one cap", windows, (twist){.family = "gemma2"},
                (style){.family = "gemma2", .config = GEMMA2 ",\"final_logit_softcapping\":null"}, false);
    same_family("gemma2, another cap", windows, (twist){.family = "gemma2"},
                (style){.family = "gemma2", .config = GEMMA2 ",\"attn_logit_softcapping\":20"}, false);
    same_family("biases", s, (twist){.biases = true},
                (style){.config = "\"attention_bias\":true,\"mlp_bias\":true"}, true);
    same_family("window in GGUF", s, (twist){.see = 8},
                (style){.type = "mistral", .config = "\"sliding_window\":8"}, true);
    same_family("layer types", s, (twist){.see = 8},
                (style){.config = "\"sliding_window\":8,\"layer_types\":[\"sliding_attention\","
                                  "\"sliding_attention\",\"sliding_attention\"]"},
                true);
    same_family("a llama's window without layer types means nothing", s, (twist){0},
                (style){.config = "\"sliding_window\":8"}, true);
    same_family("another window", s, (twist){.see = 8},
                (style){.type = "mistral", .config = "\"sliding_window\":9"}, false);
    same_family(
        "qwen2's window is off", s, (twist){.family = "qwen2"},
        (style){.family = "qwen2",
                .rope = theta,
                .config = "\"sliding_window\":8,\"use_sliding_window\":false,\"max_window_layers\":0"},
        true);
    same_family("qwen2's window is on", s, (twist){.family = "qwen2", .see = 8},
                (style){.family = "qwen2",
                        .rope = theta,
                        .config = "\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":0"},
                true);
}

TEST(a_bare_model_without_prefix_is_the_same_model) {
    static const shape s = {2, 96, 160, 6, 2, 32, 80, false, "f32", 0};
    same_family("bare qwen3", s, (twist){.family = "qwen3"},
                (style){.family = "qwen3", .body = "", .rope = "\"rope_theta\":10000"}, true);
}

TEST(every_spelling_of_rope_is_the_same_model) {
    static const shape llama = {2, 96, 160, 6, 2, 32, 80, false, "f32", 0},
                       gemma = {4, 96, 160, 3, 1, 32, 80, false, "f32", 16};
    static const char *const flat[] = {
        "\"rope_theta\":10000",
        "\"rope_theta\":1e4,\"rope_scaling\":null",
        "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}",
        "\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":10000}",
        "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":10000}}",
        "\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"default\"},\"partial_rotary_factor\":1.0"};
    static const char *const two[] = {
        "\"rope_theta\":1000000,\"rope_local_base_freq\":10000",
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e6},"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}",
        "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6},\"rope_local_base_freq\":1e4",
        "\"sliding_window_pattern\":6,\"layer_types\":[\"sliding_attention\",\"full_attention\","
        "\"sliding_attention\",\"full_attention\"]"};
    file w = write_model(llama, (twist){0}), g = write_model(gemma, (twist){0});
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++)
        same(flat[i], &w, llama, &(style){.rope = flat[i]}, true);
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        same(two[i], &g, gemma, &(style){.rope = two[i]}, true);
    same("swapped", &g, gemma, &(style){.rope = "\"rope_theta\":1e4,\"rope_local_base_freq\":1e6"}, false);
    same("all windowed", &g, gemma,
         &(style){.rope = "\"layer_types\":[\"sliding_attention\",\"sliding_attention\","
                          "\"sliding_attention\",\"sliding_attention\"]"},
         false);
    same("linear", &g, gemma, &(style){.rope = "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}"},
         false);
    unlink(w.path), unlink(g.path);
}

/* The GGUF writer here has no key for a scaled rope, so this is one snapshot against another. */
TEST(a_linear_factor_in_either_spelling_is_the_same_model) {
    static const shape gemma = {4, 96, 160, 3, 1, 32, 80, false, "f32", 16};
    static const char *const spelling[] = {
        "\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}",
        "\"rope_parameters\":{"
        "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1e6},"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}",
        "\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}"};
    static float got[3][N * V_MAX];
    file g = write_model(gemma, (twist){0});
    for (int i = 0; i < 3; i++) {
        write_snapshot(g.path, gemma, &(style){.rope = spelling[i]});
        CHECK(logits_of(got[i], folder, gemma));
        drop_folder();
    }
    CHECK(memcmp(got[0], got[1], sizeof(float) * N * 80) == 0);
    CHECK(memcmp(got[0], got[2], sizeof(float) * N * 80) != 0); /* control */
    unlink(g.path);
}

TEST(a_wrapper_with_either_prefix_and_its_image_tensors_is_the_same_model) {
    static const shape gemma = {4, 96, 160, 3, 1, 32, 80, true, "f32", 16};
    file g = write_model(gemma, (twist){0});
    same("old", &g, gemma,
         &(style){.type = "gemma3",
                  .nested = true,
                  .body = "language_model.model.",
                  .outer = "language_model.",
                  .add = "vision_tower.vision_model.post_layernorm.weight"},
         true);
    same("new", &g, gemma,
         &(style){.type = "gemma3",
                  .nested = true,
                  .body = "model.language_model.",
                  .add = "model.multi_modal_projector.mm_soft_emb_norm.weight"},
         true);
    unlink(g.path);
}

/* The relative error of the last row's logits against a float64 forward over what the weights decode to,
 * whose activations are rounded as docs/numerics.md says: blocks of 32 to 127 or 32767 steps, k and v to f16.
 * Where f32 and float64 fall on two sides of a rounding, a value differs by a whole step; a short prompt
 * often has none, so the best of several counts. */
static double mlx_error(shape s, style y) {
    enum { PROMPTS = 8, TOKENS = 6 };
    static float got[N * V_MAX];
    double best = 1, want[V_MAX];
    uint32_t tok[N];
    int zero = 0;
    rig r;
    file w = write_model(s, (twist){0});
    ig_gguf *g = NULL;
    write_snapshot(w.path, s, &y);
    bool good = CHECK(ig_gguf_open(&g, w.path, NULL) == IG_OK);
    for (uint32_t i = 0; good && i < PROMPTS && (good = rig_open(&r, folder, 2, 0)); i++) {
        double err2 = 0, mass = 0;
        random_tokens(tok, TOKENS, s.vocab, 3 + i);
        step(&r, tok, &zero, 1, 0, TOKENS, got);
        rig_close(&r);
        act_steps = y.bits < 6 ? 127 : y.mode ? 1 << 24 : 32767; /* mxfp8 eats them as they are */
        forward64(g, s, tok, TOKENS, want);
        act_steps = 0;
        for (int v = 0; v < s.vocab; v++)
            err2 += pow((double)got[(TOKENS - 1) * s.vocab + v] - want[v], 2), mass += want[v] * want[v];
        best = fmin(best, sqrt(err2 / mass));
    }
    ig_gguf_close(g), drop_folder(), unlink(w.path);
    return best;
}

TEST(mlx_weights_agree_with_a_float64_forward_that_rounds_its_activations_likewise) {
    static const struct {
        int bits, group;
        const char *scales, *mode;
        float tensor_scale;
    } cases[] = {{2, 32, NULL, NULL, 0},    {2, 64, "F32", NULL, 0},  {3, 64, NULL, NULL, 0},
                 {3, 32, "F16", NULL, 0},   {4, 32, NULL, NULL, 0},   {4, 64, NULL, NULL, 0},
                 {4, 128, NULL, NULL, 0},   {5, 64, NULL, NULL, 0},   {5, 128, "F32", NULL, 0},
                 {6, 32, NULL, NULL, 0},    {6, 64, "F16", NULL, 0},  {6, 128, NULL, NULL, 0},
                 {8, 32, NULL, NULL, 0},    {8, 64, NULL, NULL, 0},   {8, 128, NULL, NULL, 0},
                 {4, 64, "F16", NULL, 0},   {8, 64, "F16", NULL, 0},  {4, 64, "F32", NULL, 0},
                 {8, 32, "F32", NULL, 0},   {4, 32, NULL, "mxfp4", 0}, {4, 16, NULL, "nvfp4", 0},
                 {4, 16, NULL, "nvfp4", 5}, {8, 32, NULL, "mxfp8", 0}};
    static const shape s = {1, 128, 256, 4, 2, 32, 80, true, "f32", 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        style y = {.bits = cases[i].bits, .group = cases[i].group, .scales = cases[i].scales,
                   .mode = cases[i].mode, .tensor_scale = cases[i].tensor_scale};
        /* 1e-7 where nothing crosses; among int16 values some always do: 3e-5 was seen */
        double bound = y.bits < 6 ? 1e-5 : 3e-4, e = mlx_error(s, y);
        const char *mode = y.mode ? y.mode : "affine";
        CHECK_MSG(e < bound, "%s, %d bits, group %d: relative error %.2e, bound %.0e", mode, y.bits, y.group, e,
                  bound);
        if (y.group == 128) continue; /* a row of up_proj is one group */
        y.swap = "model.layers.0.mlp.up_proj.scales"; /* the control */
        e = mlx_error(s, y);
        CHECK_MSG(e > bound, "%s, %d bits, group %d, two scales swapped: %.2e passes", mode, y.bits, y.group, e);
    }
}

/* Where the map of config.json and the tensors disagree, the tensors are right: the same logits by bytes. */
TEST(a_map_that_disagrees_with_the_tensors_changes_nothing) {
    static const char *const maps[] = {
        "\"quantization\":{\"group_size\":32,\"bits\":8}",
        "\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\"}",
        "\"quantization\":{\"group_size\":64,\"bits\":4,\"model.layers.0.mlp.up_proj\":false}",
        "\"quantization\":{\"group_size\":64,\"bits\":4,\"model.norm\":{\"bits\":3}}",
        "\"quantization\":{\"language_model.model.layers.1.mlp.up_proj\":{\"group_size\":64,\"bits\":4}}",
        "\"quantization\":{}",
        "\"quantization\":null",
        "\"quantization\":null,\"quantization_config\":{\"group_size\":64,\"bits\":4}"};
    static const shape s = {2, 128, 192, 4, 2, 32, 80, true, "f32", 0};
    static float want[N * V_MAX], got[N * V_MAX];
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        style y = {.bits = 4, .group = 64};
        file w = write_model(s, (twist){0});
        write_snapshot(w.path, s, &y);
        CHECK(logits_of(want, folder, s));
        drop_folder(), unlink(w.path), w = write_model(s, (twist){0});
        y.config = maps[i];
        write_snapshot(w.path, s, &y);
        ig_log_set_level(IG_LOG_ERROR); /* they are warned of */
        CHECK_MSG(logits_of(got, folder, s) && memcmp(want, got, sizeof(float) * N * 80) == 0, "%s", maps[i]);
        ig_log_set_level(IG_LOG_INFO);
        drop_folder(), unlink(w.path);
    }
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static void refused(shape s, style y, const char *says) {
    file w = write_model(s, (twist){0});
    ig_snapshot *p = NULL;
    ig_model *m = NULL;
    ig_err err = {0};
    write_snapshot(w.path, s, &y);
    ig_status st = ig_snapshot_open(&p, folder, &err);
    if (!st) st = ig_model_open(&m, (ig_checkpoint){.snapshot = p}, &(ig_model_options){0}, &err);
    CHECK_MSG(st != IG_OK, "accepted, expected \"%s\"", says);
    CHECK_MSG(strstr(err.msg, says) != NULL, "\"%s\" does not say \"%s\"", err.msg, says);
    ig_model_close(m), ig_snapshot_close(p), drop_folder(), unlink(w.path);
}

static const shape tiny = {2, 64, 64, 2, 1, 32, 40, false, "f32", 0},
                   tiny_gemma = {2, 64, 64, 2, 1, 32, 40, false, "f32", 8};

TEST(tensors_that_are_missing_surplus_or_misshapen_are_refused_by_name) {
    refused(tiny, (style){.drop = "model.layers.1.mlp.up_proj.weight"},
            "model.layers.1.mlp.up_proj.weight is missing");
    refused(tiny, (style){.drop = "model.norm.weight"}, "model.norm.weight is missing");
    refused(tiny, (style){.drop = "model.embed_tokens.weight"}, "model.embed_tokens.weight is missing");
    refused(tiny, (style){.add = "model.layers.0.self_attn.q_proj.bias"},
            "model.layers.0.self_attn.q_proj.bias");
    refused(tiny, (style){.add = "vision_tower.x"}, "vision_tower.x"); /* a llama has none to drop */
    refused(tiny, (style){.misshape = "model.layers.1.self_attn.k_proj.weight"},
            "model.layers.1.self_attn.k_proj.weight is [16, 128], expected [32, 64]");
    shape untied = tiny;
    untied.untied = true;
    refused(untied, (style){.drop = "lm_head.weight"}, "lm_head.weight is missing");
    style mlx = {.bits = 4, .group = 32};
    mlx.drop = "model.layers.0.self_attn.v_proj.scales";
    refused(tiny, mlx, "model.layers.0.self_attn.v_proj.scales is missing");
    mlx.drop = "model.layers.0.self_attn.v_proj.biases";
    refused(tiny, mlx, "model.layers.0.self_attn.v_proj.weight has BF16 scales and no biases");
    mlx.drop = "model.layers.0.self_attn.v_proj.weight";
    refused(tiny, mlx, "model.layers.0.self_attn.v_proj.weight is missing");
    mlx = (style){.bits = 4, .group = 32, .misshape = "model.layers.0.self_attn.v_proj.scales"};
    refused(tiny, mlx, "expected [32, 64]");
    refused(tiny, (style){.bits = 1, .group = 32}, "quantized to 1 bits in groups of 32 (affine), which is not supported");
    refused(tiny, (style){.bits = 4, .group = 16}, "4 bits in groups of 16 (affine)");
    refused(tiny, (style){.bits = 4, .group = 64, .mode = "mxfp4"}, "4 bits in groups of 64 (u8 scales)");
    refused(tiny, (style){.bits = 4, .group = 32, .mode = "mxfp4", .drop = "model.layers.1.mlp.up_proj.scales"},
            "model.layers.1.mlp.up_proj.scales is missing");
}

TEST(a_nan_among_small_floats_is_refused_by_name) {
    refused(tiny, (style){.bits = 4, .group = 32, .mode = "mxfp4", .poke = "model.layers.0.mlp.up_proj.scales"},
            "model.layers.0.mlp.up_proj.scales holds a NaN");
    refused(tiny, (style){.bits = 4, .group = 16, .mode = "nvfp4", .poke = "model.layers.0.mlp.up_proj.scales"},
            "model.layers.0.mlp.up_proj.scales holds a NaN");
    refused(tiny, (style){.bits = 8, .group = 32, .mode = "mxfp8", .poke = "model.layers.0.mlp.up_proj.weight"},
            "model.layers.0.mlp.up_proj.weight holds a NaN");
    refused(tiny, (style){.bits = 4, .group = 16, .mode = "nvfp4", .tensor_scale = INFINITY},
            "global_scale is inf");
    refused(tiny, (style){.bits = 4, .group = 32, .mode = "mxfp4", .tensor_scale = 1},
            "a global_scale, which mxfp4 does not know");
}

TEST(weights_that_others_quantized_are_refused_by_the_methods_name) {
    static const char *const configs[][2] = {
        {"\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}", "quantized by compressed-tensors"},
        {"\"compression_config\":{\"quant_method\":\"sparseml\"}", "quantized by sparseml"},
        {"\"quantization_config\":{\"quant_method\":\"fp8\"}", "quantized by fp8"},
        {"\"quantization_config\":{\"quant_method\":\"modelopt\"}", "quantized by modelopt"},
        {"\"quantization_config\":{\"quant_algo\":\"NVFP4\"}", "quantized by NVFP4"},
        {"\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}", "quantized by bitsandbytes"},
        {"\"quantization_config\":{\"load_in_4bit\":true}", "quantized by bitsandbytes"},
        {"\"quantization_config\":{\"quant_method\":\"a\\u001b[2J b\"}", "quantized by a?[2J?b"},
        {"\"quantization_config\":7", "quantization_config is not an object"},
        {"\"quantization\":[4]", "quantization is not an object"}};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        refused(tiny, (style){.config = configs[i][0]}, configs[i][1]);
    refused(tiny, (style){.drop = "model.layers.0.mlp.up_proj.weight", .add = "model.layers.0.mlp.up_proj.qweight"},
            "weights quantized by AWQ or GPTQ are not read");
}

TEST(a_dtype_that_is_not_read_says_what_to_do) {
    refused(tiny, (style){.retype = "model.layers.1.mlp.up_proj.weight"},
            "model.layers.1.mlp.up_proj.weight is F8_E4M3, which is not read: F32, F16, BF16 and the formats of MLX "
            "are. Convert the model to BF16");
    refused(tiny, (style){.retype = "model.norm.weight"}, "model.norm.weight is F8_E4M3");
}

TEST(a_head_that_is_called_tied_is_not_read) {
    shape untied = tiny;
    untied.untied = true;
    file w = write_model(untied, (twist){0});
    ig_snapshot *p = NULL;
    ig_model *m = NULL;
    ig_err err = {0};
    ig_log_set_level(IG_LOG_ERROR);
    write_snapshot(w.path, untied, &(style){.config = "\"tie_word_embeddings\":true"});
    CHECK(ig_snapshot_open(&p, folder, &err) == IG_OK);
    CHECK_MSG(ig_model_open(&m, (ig_checkpoint){.snapshot = p}, &(ig_model_options){0}, &err) == IG_OK, "%s",
              err.msg);
    CHECK(m && ig_model_config_of(m)->tied_head);
    ig_log_set_level(IG_LOG_INFO);
    ig_model_close(m), ig_snapshot_close(p), drop_folder(), unlink(w.path);
}

/* Where the key is missing, a head that is there is the head, as its makers have it; but not in Gemma 2. */
TEST(a_head_is_tied_by_the_key_by_the_family_or_by_what_is_there) {
    static const struct {
        const char *type;
        bool there, tied;
    } cases[] = {{"llama", true, false},   {"llama", false, true},  {"mistral", true, false},
                 {"qwen2", true, false},   {"qwen2", false, true},  {"gemma2", true, true},
                 {"gemma2", false, true},  {"gemma3_text", true, false}, {"gemma3_text", false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shape s = cases[i].type[0] == 'g' ? tiny_gemma : tiny;
        ig_snapshot *p = NULL;
        ig_model_info info;
        ig_err err = {0};
        s.untied = cases[i].there;
        file w = write_model(s, (twist){0});
        write_snapshot(w.path, s, &(style){.type = cases[i].type, .config = "\"tie_word_embeddings\":null"});
        CHECK(ig_snapshot_open(&p, folder, &err) == IG_OK);
        CHECK_MSG(ig_model_inspect(&info, (ig_checkpoint){.snapshot = p}, &err) == IG_OK, "%s", err.msg);
        CHECK_MSG(info.config.tied_head == cases[i].tied, "%s, %d", cases[i].type, cases[i].there);
        ig_snapshot_close(p), drop_folder(), unlink(w.path);
    }
    refused(tiny, (style){.type = "qwen3", .config = "\"rope_theta\":1e4,\"tie_word_embeddings\":null"},
            "tie_word_embeddings is missing");
}

static void write_text(const char *name, const char *text) {
    FILE *f = create(name);
    fputs(text, f);
    fclose(f);
}

/* modules.json and 1_Pooling/config.json as given, or none. `says` NULL: taken, with that pooling. */
static void pooled(const char *modules, const char *pooling, const char *says, ig_pooling want) {
    file w = write_model(tiny, (twist){0});
    char below[sizeof folder + 32];
    ig_snapshot *p = NULL;
    ig_model_info info;
    ig_err err = {0};
    write_snapshot(w.path, tiny, &(style){0});
    snprintf(below, sizeof below, "%s/1_Pooling", folder);
    if (modules) write_text("modules.json", modules);
    if (pooling && mkdir(below, 0755) == 0) write_text("1_Pooling/config.json", pooling);
    CHECK(ig_snapshot_open(&p, folder, &err) == IG_OK);
    ig_status st = ig_model_inspect(&info, (ig_checkpoint){.snapshot = p}, &err);
    if (says)
        CHECK_MSG(st == IG_EFORMAT && strstr(err.msg, says), "%d \"%s\" for \"%s\"", st, err.msg, says);
    else
        CHECK_MSG(!st && info.config.pooling == want, "%s, pooling %d", err.msg, (int)info.config.pooling);
    ig_snapshot_close(p);
    snprintf(below, sizeof below, "%s/1_Pooling/config.json", folder);
    unlink(below);
    *strrchr(below, '/') = 0;
    rmdir(below);
    drop_folder(), unlink(w.path);
}

TEST(a_pooling_that_is_not_one_of_ours_is_refused_by_name) {
#define MODULE(path, type)                                                                                   \
    "{\"idx\":0,\"path\":\"" path "\",\"type\":\"sentence_transformers.models." type "\"}"
#define USUAL                                                                                                \
    MODULE("", "Transformer") "," MODULE("1_Pooling", "Pooling") "," MODULE("2_Normalize", "Normalize")
    static const char last[] = "{\"pooling_mode_cls_token\":false,\"pooling_mode_lasttoken\":true}";
    pooled(NULL, NULL, NULL, IG_POOLING_NONE);
    pooled("[" USUAL "]", last, NULL, IG_POOLING_LAST);
    pooled(NULL, "{\"pooling_mode_cls_token\":true}", NULL, IG_POOLING_CLS);
    pooled(NULL, "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_lasttoken\":true}",
           "pooling_mode_mean_tokens beside pooling_mode_lasttoken is not supported", 0);
    pooled(NULL, "{\"pooling_mode_max_tokens\":true,\"pooling_mode_lasttoken\":true}",
           "pooling_mode_max_tokens beside pooling_mode_lasttoken", 0);
    pooled(NULL, "{\"pooling_mode_max_tokens\":true}", "pooling_mode_max_tokens is not supported", 0);
    pooled(NULL, "{\"pooling_mode_weightedmean_tokens\":true}",
           "pooling_mode_weightedmean_tokens is not supported", 0);
    pooled(NULL, "{\"pooling_mode_mean_sqrt_len_tokens\":true}",
           "pooling_mode_mean_sqrt_len_tokens is not supported", 0);
    pooled("[" USUAL "," MODULE("3_Dense", "Dense") "]", last, "module 3 is a Dense, which is not supported", 0);
    pooled("[" MODULE("", "Transformer") "," MODULE("2_Pooling", "Pooling") "]", last,
           "a Pooling that is not in 1_Pooling", 0);
    pooled("{}", last, "modules.json is not a list", 0);
    pooled("[3]", last, "module 0 is a ?, which is not supported", 0);
}

TEST(settings_that_change_the_numbers_are_refused_by_name) {
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"\"model_type\":\"mamba\"",
         "\"mamba\" is not supported (supported: gemma2, gemma3_text, gemma3, llama, mistral, iquestcoder"},
        {"\"model_type\":7", "model_type is missing"},
        {"\"model_type\":\"llama\\u0000x\"", "is not supported"},
        {"\"attention_bias\":true", "tensor model.layers.0.self_attn.q_proj.bias is missing"},
        {"\"mlp_bias\":true", "tensor model.layers.0.mlp.gate_proj.bias is missing"},
        {"\"attention_bias\":1", "attention_bias is neither true nor false"},
        {"\"hidden_act\":\"relu\"", "hidden_act = \"relu\" is not supported, only silu"},
        {"\"sliding_window\":-1", "sliding_window = -1"},
        {"\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "layer_types[1] = \"sliding_attention\""},
        {"\"layer_types\":[\"full_attention\"]", "layer_types has 1 entries for 2 layers"},
        {"\"rope_scaling\":{\"rope_type\":\"ntk\",\"factor\":8}", "rope type \"ntk\" is not supported"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\"}", "\"llama3\" rope without factor"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4}",
         "llama3 rope between the factors 4 and 4, which must ascend"},
        {"\"rope_scaling\":{\"type\":\"yarn\"}", "\"yarn\" rope without factor"},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}",
         "\"yarn\" rope without original_max_position_embeddings"},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,"
         "\"truncate\":false}",
         "rope truncate = false"},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,"
         "\"beta_fast\":1}",
         "yarn between 1 and 1 turns"},
        {"\"rope_parameters\":{\"rope_type\":\"longrope\"}", "without original_max_position_embeddings"},
        {"\"rope_parameters\":{\"rope_type\":\"longrope\",\"original_max_position_embeddings\":64,"
         "\"long_factor\":[1,2]}",
         "2 longrope factors for heads of 32, expected 16"},
        {"\"rope_parameters\":{\"rope_type\":\"longrope\",\"original_max_position_embeddings\":64}",
         "longrope without a long_factor"},
        {"\"rope_parameters\":{\"rope_type\":\"longrope\",\"original_max_position_embeddings\":64,"
         "\"long_factor\":[0]}",
         "a longrope factor = 0"},
        {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"dynamic\"}}", "rope type \"dynamic\""},
        {"\"rope_scaling\":{\"type\":\"linear\"}", "\"linear\" rope without factor"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":{\"__float__\":\"Infinity\"}}", "rope factor"},
        {"\"rope_scaling\":3", "rope_scaling = 3"},
        {"\"rope_theta\":\"big\"", "rope_theta = \"big\" is not a number"},
        {"\"rope_theta\":0.5", "rope_theta = 0.5 is not in"},
        {"\"partial_rotary_factor\":0.5", "partial_rotary_factor = 0.5"},
        {"\"rope_theta\":1e308", "rope_theta = 1e+308 is not in"},
        {"\"rope_scaling\":{\"factor\":8}", "a rope factor without a rope type"},
        {"\"rope_parameters\":{\"rope_theta\":1e4},\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":64}",
         "rope_scaling is yarn with a factor of 4 and rope_parameters default"},
        {"\"rope_parameters\":{\"rope_theta\":1e4},\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}",
         "rope_scaling is linear with a factor of 4 and rope_parameters default with 1"},
        {"\"rms_norm_eps\":null", "rms_norm_eps is missing"},
        {"\"rms_norm_eps\":1e-60", "rms_norm_eps = 1e-60 is not in"},
        {"\"rms_norm_eps\":{\"__float__\":\"NaN\"}", "rms_norm_eps = nan is not in"},
        {"\"head_dim\":null,\"num_attention_heads\":1024,\"num_key_value_heads\":1024", "head size 0"},
        {"\"vocab_size\":41", "model.embed_tokens.weight is [40, 64], expected [41, 64]"},
        {"\"hidden_size\":null", "hidden_size is missing"},
        {"\"num_hidden_layers\":-1", "num_hidden_layers = -1"},
        {"\"num_hidden_layers\":18446744073709551615", "num_hidden_layers = 18446744073709551615"},
        {"\"num_hidden_layers\":2.0", "num_hidden_layers = 2.0"},
        {"\"num_attention_heads\":0", "num_attention_heads = 0"},
        {"\"tie_word_embeddings\":\"yes\"", "tie_word_embeddings"},
        {"\"text_config\":{}", "text_config beside model_type \"llama\""},
        {"\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}", "quantized by awq"},
        {"\"quantization_config\":{\"quant_method\":\"gptq\"}", "quantized by gptq"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(tiny, (style){.config = cases[i].config}, cases[i].says);
    refused(tiny_gemma, (style){.config = "\"final_logit_softcapping\":-30.0"},
            "final_logit_softcapping = -30 is not in");
    refused(tiny_gemma, (style){.config = "\"attn_logit_softcapping\":{\"__float__\":\"Infinity\"}"},
            "attn_logit_softcapping = inf is not in");
    refused(tiny_gemma, (style){.config = "\"hidden_activation\":\"gelu\""}, "hidden_activation = \"gelu\"");
    refused(tiny_gemma, (style){.config = "\"use_bidirectional_attention\":true"},
            "use_bidirectional_attention");
    refused(tiny_gemma, (style){.config = "\"query_pre_attn_scalar\":-4"},
            "query_pre_attn_scalar = -4 is not in");
    refused(tiny_gemma, (style){.type = "gemma3", .config = "\"text_config\":[]"},
            "text_config is not an object");
    refused(tiny_gemma,
            (style){.type = "gemma3", .config = "\"text_config\":{\"model_type\":\"llama\"}"},
            "model_type \"llama\" is not supported");
}

/* In config.json of any family: they say what another one does. */
TEST(settings_of_other_families_are_refused_in_every_family) {
    static const char *const families[] = {"llama", "qwen2", "qwen3", "gemma2", "gemma3_text"};
    static const char base[] = "\"rope_theta\":1e4"; /* one family needs it */
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"\"is_causal\":false", "is_causal = false is not supported"},
        {"\"is_causal\":0", "is_causal = 0 is not supported"},
        {"\"use_bidirectional_attention\":true", "use_bidirectional_attention = true"},
        {"\"use_bidirectional_attention\":\"vision\"", "use_bidirectional_attention = \"vision\""},
        {"\"is_encoder_decoder\":true", "is_encoder_decoder = true"},
        {"\"rope_traditional\":true", "rope_traditional = true"},
        {"\"partial_rotary_factor\":0.5", "partial_rotary_factor = 0.5"},
        {"\"no_rope_layers\":[1,0]", "no_rope_layers = [1,0]"},
        {"\"clip_qkv\":8.0", "clip_qkv = 8.0"},
        {"\"embedding_multiplier\":12", "embedding_multiplier = 12"},
        {"\"residual_multiplier\":0.22", "residual_multiplier = 0.22"},
        {"\"logits_scaling\":8", "logits_scaling = 8"},
        {"\"attention_multiplier\":0.5", "attention_multiplier = 0.5"},
        {"\"attention_multiplier\":\"x\"", "attention_multiplier = \"x\" is not a number"},
        {"\"scale_emb\":12", "scale_emb = 12"},
        {"\"num_experts\":8", "num_experts = 8"},
        {"\"attn_output_gate\":true", "attn_output_gate = true"},
    };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            refused(families[f][0] == 'g' ? tiny_gemma : tiny,
                    (style){.type = families[f], .rope = base, .config = cases[i].config}, cases[i].says);
    for (size_t f = 0; f < 3; f++) { /* Gemma has these */
        refused(tiny, (style){.type = families[f], .rope = base, .config = "\"final_logit_softcapping\":30"},
                "final_logit_softcapping = 30 is not supported in this family");
        refused(tiny, (style){.type = families[f], .rope = base, .config = "\"attn_logit_softcapping\":50"},
                "attn_logit_softcapping = 50 is not supported in this family");
        refused(tiny, (style){.type = families[f], .rope = base, .config = "\"query_pre_attn_scalar\":256"},
                "query_pre_attn_scalar = 256 is not supported in this family");
    }
    refused(tiny, (style){.config = "\"use_qk_norm\":true"}, "use_qk_norm = true");
    refused(tiny_gemma, (style){.type = "gemma3", .nested = true, .config = "\"is_causal\":false"},
            "is_causal = false");
}

TEST(settings_of_other_families_that_say_what_is_done_anyway_are_taken) {
    file w = write_model(tiny, (twist){0});
    ig_snapshot *p = NULL;
    ig_model_info info;
    ig_err err = {0};
    write_snapshot(w.path, tiny,
                   &(style){.config = "\"is_causal\":true,\"partial_rotary_factor\":1.0,\"logits_scaling\":1,"
                                      "\"clip_qkv\":null,\"num_experts\":0,\"use_qk_norm\":false,"
                                      "\"query_pre_attn_scalar\":32,\"final_logit_softcapping\":null"});
    CHECK(ig_snapshot_open(&p, folder, &err) == IG_OK);
    CHECK_MSG(ig_model_inspect(&info, (ig_checkpoint){.snapshot = p}, &err) == IG_OK, "%s", err.msg);
    ig_snapshot_close(p), drop_folder(), unlink(w.path);
}

TEST(a_setting_that_is_not_there_is_named) {
    static const char *const keys[] = {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                                       "num_attention_heads", "vocab_size", "rms_norm_eps"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char config[64], says[64];
        snprintf(config, sizeof config, "\"%s\":null", keys[i]);
        snprintf(says, sizeof says, "%s is missing", keys[i]);
        refused(tiny, (style){.config = config}, says);
    }
}

TEST(a_norm_weight_that_is_not_finite_is_refused_by_name) {
    refused(tiny, (style){.nan = "model.layers.1.input_layernorm.weight"},
            "model.layers.1.input_layernorm.weight holds nan at 3");
    refused(tiny_gemma, (style){.nan = "model.layers.0.self_attn.k_norm.weight"},
            "model.layers.0.self_attn.k_norm.weight holds nan at 3");
}
