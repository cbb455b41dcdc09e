/* open: a file to a family to a model. Refuses what it cannot run, by name, before any memory is taken. */
#include "model/inside.h"

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

const ig_family *ig_family_of_gguf(ig_slice architecture) {
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

ig_status ig_config_int(int *out, const ig_gguf *g, const char *arch, const char *key, int low, int high,
                        int or_else, ig_err *err) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    uint64_t v = 0;
    ig_status st = ig_gguf_get_u64(g, full, &v, err);
    if (st == IG_ENOTFOUND && or_else >= 0) {
        v = (uint64_t)or_else;
    } else if (st == IG_ENOTFOUND) {
        return ig_fail(err, IG_EFORMAT, "%s: metadata %s is missing", ig_gguf_path(g), full);
    } else if (st != IG_OK) {
        return st;
    }
    if (v < (uint64_t)low || v > (uint64_t)high)
        return ig_fail(err, IG_EFORMAT, "%s: %s = %llu is outside %d..%d", ig_gguf_path(g), full,
                       (unsigned long long)v, low, high);
    *out = (int)v;
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

static ig_status read_config(const ig_family **family, ig_model_config *c, const ig_gguf *g, ig_err *err) {
    ig_slice arch;
    ig_status st = ig_gguf_get_string(g, "general.architecture", &arch, err);
    if (st != IG_OK)
        return st == IG_ENOTFOUND
                   ? ig_fail(err, IG_EFORMAT, "%s: general.architecture is missing", ig_gguf_path(g))
                   : st;
    const ig_family *f = ig_family_of_gguf(arch);
    if (!f)
        return ig_fail(err, IG_EFORMAT, "%s: architecture \"%.*s\" is not supported (supported: %s)",
                       ig_gguf_path(g), (int)(arch.n < 60 ? arch.n : 60), arch.p, ig_model_families());
    st = f->config(c, g, err);
    if (st == IG_ENOTFOUND) { /* the file is there; a key that it needs is not */
        if (err) err->code = IG_EFORMAT;
        st = IG_EFORMAT;
    }
    if (st != IG_OK) return st;
    if ((st = read_vocab(c, g, err)) != IG_OK) return st;
    *family = f;
    return IG_OK;
}

ig_status ig_model_inspect(ig_model_info *out, const ig_gguf *g, ig_err *err) {
    ig_model_info info = {.file_bytes = ig_gguf_file_bytes(g)};
    (void)ig_gguf_get_string(g, "general.architecture", &info.architecture, NULL);
    (void)ig_gguf_get_string(g, "general.name", &info.name, NULL);
    for (int i = 0; i < ig_gguf_n_tensors(g); i++) {
        const ig_gguf_tensor *t = ig_gguf_tensor_at(g, i);
        info.n_params += t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
    }
    ig_status st = read_config(&info.family, &info.config, g, err);
    if (st != IG_OK) info.family = NULL;
    *out = info;
    return st;
}

ig_status ig_model_open(ig_model **out, const ig_gguf *g, const ig_model_options *o, ig_err *err) {
    const ig_family *family = NULL;
    ig_model_config c;
    ig_status st = read_config(&family, &c, g, err);
    if (st != IG_OK) return st;
    ig_model *m = calloc(1, sizeof *m);
    if (!m) return ig_fail(err, IG_ELIMIT, "no memory for the model's tables");
    m->family = family, m->config = c;
    m->pool = o->pool;
    m->tier_max = o->tier_max ? o->tier_max : IG_TIER_L3;
    m->cpu = o->cpu ? o->cpu : ig_cpu_features();
    ig_kern_table_pick(&m->kern, m->tier_max, m->cpu);
    m->layers = calloc((size_t)c.n_layers, sizeof *m->layers);
    m->inv_freq = calloc((size_t)c.head_dim / 2, sizeof *m->inv_freq);
    if (!m->layers || !m->inv_freq) {
        st = ig_fail(err, IG_ELIMIT, "no memory for %d layers", c.n_layers);
    } else {
        const int half = c.head_dim / 2;
        for (int i = 0; i < half; i++) /* base^(-i / half) */
            m->inv_freq[i] = ig_math_exp(-(double)i * ig_math_log(c.rope_base) / (double)half);
        st = ig_model_bind(m, g, o, err);
    }
    if (st != IG_OK) {
        ig_model_close(m);
        return st;
    }
    *out = m;
    return IG_OK;
}

void ig_model_close(ig_model *m) {
    if (!m) return;
    if (m->panels) ig_pages_unmap(m->panels, m->panels_bytes);
    free(m->vectors);
    free(m->inv_freq);
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
    return (ig_kv_shape){m->config.n_layers, m->config.n_kv_heads, m->config.head_dim};
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
