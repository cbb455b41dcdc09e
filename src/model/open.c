/* open: a checkpoint to a family to a model. Refuses what it cannot run, by name, before memory is taken. */
#include "model/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAMILY_FILE(name) extern const ig_family ig_family_##name;
#include "gen/family_list.h"
#undef FAMILY_FILE

static const ig_family *const families[] = {
#define FAMILY_FILE(name) &ig_family_##name,
#include "gen/family_list.h"
#undef FAMILY_FILE
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };
#define POOLING_FOLDER "1_Pooling"

static const ig_family *family_of_gguf(ig_slice architecture) {
    for (int i = 0; i < N_FAMILIES; i++)
        for (const char *const *name = families[i]->gguf; *name; name++)
            if (ig_slice_eq_str(architecture, *name)) return families[i];
    return NULL;
}

const char *ig_model_families(void) {
    static char text[256]; /* written with the same bytes by whoever asks */
    size_t n = 0;
    for (int i = 0; i < N_FAMILIES; i++)
        for (const char *const *name = families[i]->gguf; *name; name++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "", *name);
    return text;
}

static const ig_family *family_of_hf(yyjson_val *model_type, bool *wrapper) {
    for (int i = 0; i < N_FAMILIES; i++)
        for (const ig_hf_type *t = families[i]->hf; t->name; t++) {
            if (!yyjson_equals_str(model_type, t->name)) continue;
            *wrapper = t->wrapper;
            return families[i];
        }
    return NULL;
}

static ig_status unknown_type(const char *path, const char *model_type, ig_err *err) {
    char known[256];
    size_t n = 0;
    for (int i = 0; i < N_FAMILIES; i++)
        for (const ig_hf_type *t = families[i]->hf; t->name; t++)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", t->name);
    return ig_fail(err, IG_EFORMAT, "%s: model_type \"%.60s\" is not supported (supported: %s)", path,
                   model_type, known);
}

ig_status ig_config_check(const ig_model_config *c, const char *what, ig_err *err) {
    if (!(c->norm_eps > 0.0f && c->norm_eps < 1.0f))
        return ig_fail(err, IG_EFORMAT, "%s: the norms' epsilon %g is not in (0, 1)", what,
                       (double)c->norm_eps);
    if (c->n_heads % c->n_kv_heads != 0 || c->n_heads / c->n_kv_heads > IG_ATTENTION_QUERIES_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: %d heads over %d kv heads: must divide, at most %d to one", what,
                       c->n_heads, c->n_kv_heads, IG_ATTENTION_QUERIES_MAX);
    if (c->head_dim < 1 || c->head_dim % IG_PANEL_ROWS != 0 || c->head_dim > IG_HEAD_DIM_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: head size %d is not supported (multiples of %d up to %d)", what,
                       c->head_dim, IG_PANEL_ROWS, IG_HEAD_DIM_MAX);
    if (!(c->attention_scale > 0.0f && c->attention_scale < 1e4f && c->embed_scale > 0.0f))
        return ig_fail(err, IG_EFORMAT, "%s: the attention scale %g is not in (0, 1e4)", what,
                       (double)c->attention_scale);
    const float caps[] = {c->attention_softcap, c->final_softcap};
    for (int i = 0; i < 2; i++)
        if (!(caps[i] >= 0.0f && caps[i] <= 1e6f))
            return ig_fail(err, IG_EFORMAT, "%s: the cap %g on logits is not in [0, 1e6]", what,
                           (double)caps[i]);
    for (int i = 0; i < (c->own_window_rope ? IG_ROPES : 1); i++) {
        ig_status st = ig_rope_check(&c->rope[i], c->head_dim, what, err);
        if (st) return st;
    }
    return IG_OK;
}

/* The vocabulary is what the embedding table says; a tokenizer of another size is an error. */
static ig_status read_vocab(ig_model_config *c, const ig_gguf *g, ig_err *err) {
    const ig_gguf_tensor *t = ig_gguf_find(g, "token_embd.weight");
    const char *path = ig_gguf_path(g);
    if (!t) return ig_fail(err, IG_EFORMAT, "%s: tensor token_embd.weight is missing", path);
    if (t->n_dims != 2 || t->dim[1] > (1u << 24))
        return ig_fail(err, IG_EFORMAT,
                       "%s: token_embd.weight has %d dimensions and %llu rows (2, at most %u)", path,
                       t->n_dims, (unsigned long long)t->dim[1], 1u << 24);
    ig_gguf_array tokens;
    ig_status st = ig_gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, err);
    if (st != IG_OK && st != IG_ENOTFOUND) return st;
    if (st == IG_OK && tokens.n != t->dim[1])
        return ig_fail(err, IG_EFORMAT, "%s: %llu tokens in the tokenizer, %llu rows in token_embd.weight",
                       path, (unsigned long long)tokens.n, (unsigned long long)t->dim[1]);
    c->n_vocab = (int)t->dim[1];
    c->tied_head = ig_gguf_find(g, "output.weight") == NULL;
    return IG_OK;
}

static ig_status read_gguf(const ig_family **family, ig_model_config *c, const ig_gguf *g, ig_err *err) {
    ig_slice arch;
    ig_status st = ig_gguf_get_string(g, "general.architecture", &arch, err);
    if (st != IG_OK)
        return st == IG_ENOTFOUND
                   ? ig_fail(err, IG_EFORMAT, "%s: general.architecture is missing", ig_gguf_path(g))
                   : st;
    const ig_family *f = family_of_gguf(arch);
    if (!f)
        return ig_fail(err, IG_EFORMAT, "%s: architecture \"%.*s\" is not supported (supported: %s)",
                       ig_gguf_path(g), (int)(arch.n < 60 ? arch.n : 60), arch.p, ig_model_families());
    st = f->config(c, g, err);
    if (st == IG_ENOTFOUND) { /* the file is there; a key that it needs is not */
        if (err) err->code = IG_EFORMAT;
        st = IG_EFORMAT;
    }
    if (!st) st = ig_gguf_refuse_rest(c, g, arch, err);
    if (st != IG_OK) return st;
    if ((st = read_vocab(c, g, err)) != IG_OK) return st;
    *family = f;
    return IG_OK;
}

static ig_status read_tied(ig_model_config *c, const ig_family *f, const ig_hf *h, const ig_source *s,
                           ig_err *err) {
    char name[IG_TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "%slm_head.weight", s->outer);
    const bool has_head = ig_source_has(s, name), is_bare = s->body[0] == 0;
    c->tied_head = !has_head;
    yyjson_val *v = ig_hf_get(h, "tie_word_embeddings");
    if (f->hf_head_by_tensor) return IG_OK;
    if (v && !yyjson_is_bool(v))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: tie_word_embeddings is neither true nor false",
                       h->path);
    /* Where the key is missing, a head that is there is meant; only some families drop it even then. */
    c->tied_head = v ? yyjson_get_bool(v) : f->hf_tied_by_default || !has_head;
    c->tied_unsaid = !v && has_head;
    c->no_head = is_bare && !has_head && !c->tied_head;
    return IG_OK;
}

/* What sentence-transformers runs after the model, by modules.json: a pooling, and lengths of 1. Anything else has
 * weights of its own that the vector would lack. */
static ig_status check_modules(const ig_snapshot *s, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_status st = ig_snapshot_json(&doc, s, "modules.json", err);
    if (st) return st == IG_ENOTFOUND ? IG_OK : st;
    yyjson_val *list = yyjson_doc_get_root(doc), *v;
    if (!yyjson_is_arr(list))
        st = ig_fail(err, IG_EFORMAT, "%.200s/modules.json is not a list", ig_snapshot_path(s));
    size_t i, n;
    yyjson_arr_foreach(list, i, n, v) {
        const char *type = yyjson_get_str(ig_json_get(v, "type")), *dot = type ? strrchr(type, '.') : NULL;
        const char *kind = dot ? dot + 1 : type ? type : "?";
        const bool pools = strcmp(kind, "Pooling") == 0;
        if (!pools && strcmp(kind, "Transformer") != 0 && strcmp(kind, "Normalize") != 0)
            st = ig_fail(err, IG_EFORMAT, "%.200s/modules.json: module %zu is a %.40s, which is not supported",
                         ig_snapshot_path(s), i, kind);
        else if (pools && !yyjson_equals_str(ig_json_get(v, "path"), POOLING_FOLDER))
            st = ig_fail(err, IG_EFORMAT, "%.200s/modules.json: a Pooling that is not in " POOLING_FOLDER,
                         ig_snapshot_path(s));
        if (st) break;
    }
    yyjson_doc_free(doc);
    return st;
}

/* Which row, or what of all rows, is the vector. A folder that does not say is not told to be for vectors. */
static ig_status read_pooling(ig_model_config *c, const ig_snapshot *s, ig_err *err) {
    static const struct {
        const char *key;
        ig_pooling kind; /* NONE: we have no such */
    } modes[] = {{"pooling_mode_lasttoken", IG_POOLING_LAST},
                 {"pooling_mode_cls_token", IG_POOLING_CLS},
                 {"pooling_mode_mean_tokens", IG_POOLING_MEAN},
                 {"pooling_mode_max_tokens", IG_POOLING_NONE},
                 {"pooling_mode_mean_sqrt_len_tokens", IG_POOLING_NONE},
                 {"pooling_mode_weightedmean_tokens", IG_POOLING_NONE}};
    const char *taken = NULL;
    yyjson_doc *doc = NULL;
    ig_status st = check_modules(s, err);
    if (!st) st = ig_snapshot_json(&doc, s, POOLING_FOLDER "/config.json", err);
    if (st) return st == IG_ENOTFOUND ? IG_OK : st;
    for (size_t i = 0; i < sizeof modes / sizeof *modes && !st; i++) {
        if (!yyjson_is_true(ig_json_get(yyjson_doc_get_root(doc), modes[i].key))) continue;
        if (taken)
            st = ig_fail(err, IG_EFORMAT, "%.200s/" POOLING_FOLDER "/config.json: %s beside %s is not supported",
                         ig_snapshot_path(s), modes[i].key, taken);
        else if (modes[i].kind == IG_POOLING_NONE)
            st = ig_fail(err, IG_EFORMAT, "%.200s/" POOLING_FOLDER "/config.json: %s is not supported",
                         ig_snapshot_path(s), modes[i].key);
        taken = modes[i].key;
        c->pooling = modes[i].kind;
    }
    yyjson_doc_free(doc);
    return st;
}

const char *ig_pooling_name(ig_pooling p) {
    static const char *const names[] = {"none", "mean", "cls", "last", "rank"};
    return names[p];
}

/* Opens the source, too: where the tensors are and what the head is depends on their names. */
static ig_status read_hf(const ig_family **family, ig_model_config *c, ig_source *s,
                         const ig_snapshot *snapshot, ig_err *err) {
    ig_hf h = {.path = ig_snapshot_path(snapshot), .root = ig_snapshot_config(snapshot)};
    yyjson_val *type = ig_json_get(h.root, "model_type");
    if (!yyjson_is_str(type))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: model_type is missing", h.path);
    const ig_family *f = family_of_hf(type, &h.wrapper);
    if (!f) return unknown_type(h.path, yyjson_get_str(type), err);
    yyjson_val *text = ig_json_get(h.root, "text_config");
    if (text && !h.wrapper)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: text_config beside model_type \"%s\"", h.path,
                       yyjson_get_str(type));
    if (text && !yyjson_is_obj(text))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: text_config is not an object", h.path);
    yyjson_val *inner = ig_json_get(text, "model_type"); /* one family's wrapper around another's model */
    bool is_wrapper;
    if (inner && family_of_hf(inner, &is_wrapper) != f)
        return unknown_type(h.path, yyjson_is_str(inner) ? yyjson_get_str(inner) : "?", err);
    h.text = text ? text : h.root;
    h.type = yyjson_get_str(type);
    ig_status st = f->hf_config(c, &h, err);
    if (!st) st = ig_hf_refuse_rest(c, &h, err);
    if (!st) st = ig_source_open(s, (ig_checkpoint){.snapshot = snapshot}, &h, err);
    if (!st) st = read_tied(c, f, &h, s, err);
    if (!st) st = read_pooling(c, snapshot, err);
    if (!st) *family = f;
    return st;
}

/* On failure, too, the source is closed by the caller. */
static ig_status read_config(const ig_family **family, ig_model_config *c, ig_source *s, ig_checkpoint from,
                             ig_err *err) {
    *s = (ig_source){0};
    if (from.snapshot) return read_hf(family, c, s, from.snapshot, err);
    ig_status st = read_gguf(family, c, from.gguf, err);
    return st ? st : ig_source_open(s, from, NULL, err);
}

static uint64_t count_gguf(const ig_gguf *g) {
    uint64_t n = 0;
    for (int i = 0; i < ig_gguf_n_tensors(g); i++) {
        const ig_gguf_tensor *t = ig_gguf_tensor_at(g, i);
        n += t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
    }
    return n;
}

static bool ends_in(ig_slice name, const char *end) {
    const size_t n = strlen(end);
    return name.n >= n && memcmp(name.p + name.n - n, end, n) == 0;
}

/* Words of 32 bits hold as many parameters as the map says; scales and biases hold none. */
static uint64_t count_hf(const ig_snapshot *s) {
    yyjson_val *map = ig_json_get(ig_snapshot_config(s), "quantization");
    uint64_t n = 0, bits = yyjson_get_uint(ig_json_get(map, "bits"));
    if (bits < 1 || bits > 32) bits = 32;
    for (int i = 0; i < ig_snapshot_n_tensors(s); i++) {
        const ig_safetensor *t = ig_snapshot_tensor_at(s, i);
        const uint64_t count = t->n_bytes / (uint64_t)ig_dtype_bytes(t->dtype);
        if (ends_in(t->name, ".scales") || ends_in(t->name, ".biases")) continue;
        n += t->dtype == IG_DTYPE_U32 ? t->n_bytes * 8 / bits : count;
    }
    return n;
}

ig_status ig_model_inspect(ig_model_info *out, ig_checkpoint from, ig_err *err) {
    ig_model_info info = {0};
    ig_source s;
    if (from.gguf) {
        (void)ig_gguf_get_string(from.gguf, "general.architecture", &info.architecture, NULL);
        (void)ig_gguf_get_string(from.gguf, "general.name", &info.name, NULL);
        info.file_bytes = ig_gguf_file_bytes(from.gguf);
        info.n_params = count_gguf(from.gguf);
    } else {
        yyjson_val *type = ig_json_get(ig_snapshot_config(from.snapshot), "model_type");
        info.architecture = (ig_slice){yyjson_get_str(type), yyjson_get_len(type)};
        info.file_bytes = ig_snapshot_weights_bytes(from.snapshot);
        info.n_params = count_hf(from.snapshot);
    }
    ig_status st = read_config(&info.family, &info.config, &s, from, err);
    ig_source_close(&s);
    if (st != IG_OK) info.family = NULL;
    *out = info;
    return st;
}

/* A GGUF file's own divisors: Llama 3's, or those of longrope that config_gguf.c's choice wants. */
static ig_status make_rope(ig_model *m, int rope, ig_err *err) {
    const ig_model_config *c = &m->config;
    const ig_rope_settings *s = &c->rope[rope];
    const float *divisor = rope == IG_ROPE_FULL ? m->top.v[IG_TOP_ROPE_FREQS] : NULL;
    if (rope == IG_ROPE_FULL && s->type == IG_ROPE_LONGROPE && !s->n_divisors)
        divisor = m->top.v[c->n_ctx_train > s->original ? IG_TOP_ROPE_LONG : IG_TOP_ROPE_SHORT];
    if (m->inv_freq[rope]) return IG_OK;
    m->inv_freq[rope] = calloc((size_t)c->head_dim / 2, sizeof *m->inv_freq[rope]);
    if (!m->inv_freq[rope]) return ig_fail(err, IG_ELIMIT, "no memory for %d frequencies", c->head_dim / 2);
    m->rope_scale[rope] = s->scale;
    if (m->number) {
        m->mlx_freq[rope] = calloc((size_t)c->head_dim / 2, sizeof *m->mlx_freq[rope]);
        if (!m->mlx_freq[rope]) return ig_fail(err, IG_ELIMIT, "no memory for %d frequencies", c->head_dim / 2);
        ig_status st = ig_rope_mlx(m->mlx_freq[rope], &m->mlx_step[rope], &m->mlx_before[rope], s, c->head_dim, err);
        if (st) return st;
        m->mlx_before[rope] = ig_number_round(m->number, m->mlx_before[rope]);
    }
    return ig_rope_inv_freq(m->inv_freq[rope], s, c->head_dim, divisor, err);
}

/* What each layer's attention is, and where its keys and values lie: windowed layers are a group. */
static ig_status lay_out_layers(ig_model *m, ig_kv_kind kv_kind, ig_err *err) {
    const ig_model_config *c = &m->config;
    int group_of[2] = {-1, -1};
    ig_status st = IG_OK;
    for (int i = 0; i < c->n_layers && st == IG_OK; i++) {
        ig_layer *l = &m->layers[i];
        const bool windowed = c->windowed[i] != 0;
        int *group = &group_of[windowed];
        if (*group < 0) {
            *group = m->kv.n_groups++;
            m->kv.group[*group] = (ig_kv_group){.n_kv_heads = c->n_kv_heads,
                                                  .head_dim = c->head_dim,
                                                  .window = windowed ? c->window : 0,
                                                  .kind = kv_kind};
        }
        l->rope = windowed && c->own_window_rope ? IG_ROPE_WINDOW : IG_ROPE_FULL;
        l->attention = (ig_attention){.n_heads = c->n_heads,
                                      .n_kv_heads = c->n_kv_heads,
                                      .head_dim = c->head_dim,
                                      .window = windowed ? c->window : 0,
                                      .scale = c->attention_scale,
                                      .softcap = c->attention_softcap,
                                      .q_norm = l->v[IG_V_Q_NORM],
                                      .k_norm = l->v[IG_V_K_NORM],
                                      .norm_eps = c->norm_eps,
                                      .kv = {*group, m->kv.group[*group].n_layers++},
                                      .kv_kind = kv_kind,
                                      .kv_bits = m->kv_config.bits[i],
                                      .kv_group = m->kv_config.group[i],
                                      .kv_at_once = m->kv_config.at_once};
        st = make_rope(m, l->rope, err);
    }
    return st;
}

/* Tiers l1 and l2: the type that activations are rounded to, and what mlx-lm makes of the settings. */
static ig_status take_number(ig_model *m, const ig_source *s, ig_err *err) {
    ig_model_config *c = &m->config;
    char name[IG_TENSOR_NAME_BYTES];
    const ig_weight_spec *norm = m->family->top_rows;
    while (!norm->vector || norm->slot != IG_TOP_NORM) norm++;
    ig_source_name(name, s, norm, 0);
    ig_status st = ig_source_number(&m->number, s, name, err);
    if (st) return st;
    if (c->tied_unsaid)
        return ig_fail(err, IG_EINVAL,
                       "%s: config.json lacks tie_word_embeddings, and mlx-lm would drop the lm_head.weight that is there; "
                       "say it there for --l1",
                       s->path);
    const char *differs = c->mlx_differs;
    if (c->rope[IG_ROPE_FULL].mlx_differs) differs = "rope_theta and rope_scaling";
    else if (c->own_window_rope && c->rope[IG_ROPE_WINDOW].mlx_differs) differs = "rope_local_base_freq";
    if (differs)
        return ig_fail(err, IG_EINVAL,
                       "%s: by config.json mlx-lm would run another model, as it reads %s differently, or from no other key; "
                       "--l1 is for settings that both read alike",
                       s->path, differs);
    if (m->family->mlx_rounds_scale) c->embed_scale = sqrtf((float)c->width);
    c->embed_scale = ig_number_round(m->number, c->embed_scale);
    c->attention_scale = ig_number_round(m->number, c->attention_scale);
    c->attention_softcap = ig_number_round(m->number, c->attention_softcap);
    c->final_softcap = ig_number_round(m->number, c->final_softcap);
    if (m->family->mlx_sees_all || c->window_implied) memset(c->windowed, 0, sizeof c->windowed), c->window = 0;
    return IG_OK;
}

/* All layers of a model with a kv_config keep the numbers twice; those that it does not list read one half only. */
static ig_kv_kind kv_kind_of(const ig_model *m, const ig_model_options *o) {
    const bool twice = m->kv_config.n_layers > 0;
    if (!m->number) return o->kv_kind;
    if (m->number == &ig_fmt_bf16) return twice ? IG_KV_BF16_TWICE : IG_KV_BF16;
    return twice ? IG_KV_F16_TWICE : IG_KV_F16;
}

/* Is there a weight to which parts of activations mean something? */
static bool eats_int8(const ig_layer *l) {
    bool found = false;
    for (int i = 0; i < IG_LAYER_WEIGHTS_MAX; i++) found |= l->w[i].fmt && l->w[i].fmt->act == IG_ACT_Q8;
    return found;
}
static bool model_eats_int8(const ig_model *m) {
    bool found = eats_int8(&m->top);
    for (int i = 0; i < m->config.n_layers; i++) found |= eats_int8(&m->layers[i]);
    return found;
}

ig_status ig_model_open(ig_model **out, ig_checkpoint from, const ig_model_options *o, ig_err *err) {
    const ig_family *family = NULL;
    ig_model_config c;
    ig_source s;
    ig_model *m = NULL;
    ig_status st = read_config(&family, &c, &s, from, err);
    if (st != IG_OK) goto out;
    m = calloc(1, sizeof *m);
    if (!m) {
        st = ig_fail(err, IG_ELIMIT, "no memory for the model's tables");
        goto out;
    }
    m->family = family, m->config = c;
    if (from.gguf) ig_gguf_tell_unknown(from.gguf);
    m->pool = o->pool;
    m->tier_max = o->tier_max ? o->tier_max : IG_TIER_L3;
    m->cpu = o->cpu ? o->cpu : ig_cpu_features();
    if (m->tier_max < IG_TIER_L3 && (st = take_number(m, &s, err)) != IG_OK) goto out;
    ig_kern_table_pick(&m->kern, m->tier_max, m->number, m->cpu);
    m->layers = calloc((size_t)c.n_layers, sizeof *m->layers);
    if (!m->layers) {
        st = ig_fail(err, IG_ELIMIT, "no memory for %d layers", c.n_layers);
        goto out;
    }
    if ((st = ig_model_make_shapes(m, err)) != IG_OK) goto out;
    if ((st = ig_model_bind(m, &s, o, err)) != IG_OK) goto out;
    m->two_parts = o->two_parts && model_eats_int8(m);
    if (o->kv_config && m->tier_max == IG_TIER_L2) {
        if ((st = ig_kv_config_check(o->kv_config, &m->config, err)) != IG_OK) goto out;
        m->kv_config = *o->kv_config;
    }
    if ((st = lay_out_layers(m, kv_kind_of(m, o), err)) != IG_OK) goto out;
    *out = m;
    m = NULL;
out:
    ig_source_close(&s);
    ig_model_close(m);
    return st;
}

static void free_vectors(ig_layer *l) {
    for (int i = 0; i < IG_LAYER_WEIGHTS_MAX; i++) free((void *)(uintptr_t)l->bias[i]);
    for (int i = 0; i < IG_LAYER_VECTORS_MAX; i++) free((void *)(uintptr_t)l->v[i]);
}

void ig_model_close(ig_model *m) {
    if (!m) return;
    if (m->panels) ig_pages_unmap(m->panels, m->panels_bytes);
    free_vectors(&m->top);
    for (int i = 0; m->layers && i < m->config.n_layers; i++) free_vectors(&m->layers[i]);
    for (int i = 0; i < IG_ROPES; i++) free(m->inv_freq[i]), free(m->mlx_freq[i]);
    free(m->shapes);
    free(m->layers);
    free(m);
}

const ig_model_config *ig_model_config_of(const ig_model *m) {
    return &m->config;
}
const char *ig_model_family(const ig_model *m) {
    return m->family->name;
}
ig_kv_shape ig_model_kv_shape(const ig_model *m) {
    return m->kv;
}
ig_tier ig_model_tier(const ig_model *m) {
    return m->tier_max;
}
const ig_fmt *ig_model_number(const ig_model *m) {
    return m->number;
}
/* One for each matrix and bias that mlx-lm makes, at random, before it reads them, and one for each that it then makes
 * quantized. Its head is there even where the embedding is the head, in one family. */
int ig_model_mlx_draws(const ig_model *m) {
    int n = 1 + (!m->config.tied_head || m->family->mlx_makes_head ? 1 : 0);
    for (int slot = 0; slot < 2; slot++) n += m->top.w[slot].fmt && m->top.w[slot].fmt->rounds && !(slot && m->config.tied_head);
    for (int i = 0; i < m->config.n_layers; i++)
        for (int k = 0; k < IG_LAYER_WEIGHTS_MAX; k++)
            n += 1 + (m->layers[i].bias[k] != NULL) + m->layers[i].w[k].fmt->rounds;
    return n;
}
bool ig_model_two_parts(const ig_model *m) {
    return m->two_parts;
}
uint64_t ig_model_weights_bytes(const ig_model *m) {
    return m->panels_bytes;
}
uint64_t ig_model_decode_bytes(const ig_model *m) {
    return m->decode_bytes;
}
uint64_t ig_model_n_params(const ig_model *m) {
    return m->n_params;
}
ig_pool *ig_model_pool(const ig_model *m) {
    return m->pool;
}
const ig_kern_table *ig_model_kernels(const ig_model *m) {
    return &m->kern;
}
