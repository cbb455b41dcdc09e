/* bind: the family's weight table against the checkpoint. Every tensor of the table must be there with its
 * shape and a format we have kernels for, and the checkpoint must hold no other: a leftover tensor means that
 * the model is not what we think it is. Then the panels are laid out in one mapping and filled over the pool:
 * each unit of work reads a run of rows (pread, so a file that shrinks is an error and not a signal) and
 * transposes it. */
#include "model/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 256 * 1024 };

/* A matrix and where its panels go. */
typedef struct load {
    ig_weight *w;
    ig_source_tensor t;
    const ig_fmt *from; /* of the rows in the file; w->fmt unless they are converted on the way */
    size_t panels_at;   /* from the start of the mapping */
    int unit_panels, n_units;
    bool interleaved;
} load;

typedef struct binding {
    ig_model *m;
    ig_source *s;
    load *loads;
    int n_loads, loads_max;
} binding;

static int dim_of(const ig_model_config *c, ig_dim d) {
    switch (d) {
    case IG_DIM_WIDTH: return c->width;
    case IG_DIM_FFN: return c->ffn_width;
    case IG_DIM_Q: return c->n_heads * c->head_dim;
    case IG_DIM_KV: return c->n_kv_heads * c->head_dim;
    case IG_DIM_HEAD: return c->head_dim;
    case IG_DIM_HALF_HEAD: return c->head_dim / 2;
    case IG_DIM_VOCAB: return c->n_vocab;
    default: return 1;
    }
}

static ig_status bind_vector(const float **out, binding *b, const ig_weight_spec *row,
                             const ig_source_tensor *t, ig_err *err) {
    if (t->fmt->act != IG_ACT_F32)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %.*s is a vector in %s; F32, F16 or BF16 expected",
                       b->s->path, (int)t->name.n, t->name.p, t->fmt->name);
    uint8_t *bytes = malloc((size_t)t->n_bytes);
    float *v = malloc((size_t)t->n_cols * sizeof *v); /* one by one: settings may name sizes that no file has */
    ig_status st = bytes && v ? ig_source_read(b->s, t, 0, 1, bytes, NULL, err)
                              : ig_fail(err, IG_ELIMIT, "no memory for a vector of %d values", t->n_cols);
    if (st == IG_OK) {
        ig_kern_reference(IG_KERN_DEQUANT, t->fmt)->fn.dequant(v, bytes, t->n_cols);
        for (int i = 0; i < t->n_cols && row->less_one && b->s->from.snapshot; i++) v[i] += 1.0f;
        /* rope's divisors are no activations' */
        for (int i = 0; i < t->n_cols && b->m->number && row->cols != IG_DIM_HALF_HEAD; i++)
            v[i] = ig_number_round(b->m->number, v[i]);
        for (int i = 0; i < t->n_cols && st == IG_OK; i++)
            if (!isfinite(v[i]))
                st = ig_fail(err, IG_EFORMAT, "%s: tensor %.*s holds %g at %d", b->s->path, (int)t->name.n,
                             t->name.p, (double)v[i], i);
    }
    free(bytes);
    if (st == IG_OK) *out = v;
    else free(v);
    return st;
}

/* The row of the file that belongs to row `row` of the matrix. */
static int file_row(bool interleaved, int n_d, int row) {
    if (!interleaved) return row;
    int head = row / n_d, i = row % n_d;
    return head * n_d + (i < n_d / 2 ? 2 * i : 2 * (i - n_d / 2) + 1);
}

/* From the order of the file to that of the lanes. */
static ig_status bind_bias(ig_layer *l, binding *b, const ig_weight_spec *row, const ig_source_tensor *t,
                           ig_err *err) {
    ig_weight *w = &l->w[row->slot];
    const float *v = NULL;
    ig_assert(w->fmt && w->n_rows == t->n_cols && !l->bias[row->slot]); /* the table has the matrix before */
    ig_status st = bind_vector(&v, b, row, t, err);
    if (st) return st;
    const int n = ig_weight_n_panels(w) * IG_PANEL_ROWS;
    float *lanes = calloc((size_t)n, sizeof *lanes);
    for (int i = 0; lanes && i < n; i++) {
        const int at = ig_weight_row(w, i / IG_PANEL_ROWS, i % IG_PANEL_ROWS);
        if (at >= 0) lanes[i] = v[file_row(row->interleaved && b->s->from.gguf, w->head_dim, at)];
    }
    free((void *)(uintptr_t)v);
    if (!lanes) return ig_fail(err, IG_ELIMIT, "no memory for a bias of %d values", n);
    l->bias[row->slot] = w->bias = lanes;
    return IG_OK;
}

/* In what panels a matrix becomes: tier l1 multiplies numbers, so rows of all but those are converted. */
static const ig_fmt *panel_format(const ig_model *m, const ig_fmt *from) {
    if (!m->number || from == m->number) return from;
    return from->mlx ? ig_fmt_mlx_exact(from, m->number) : m->number;
}

static void bind_matrix(ig_weight *w, binding *b, const ig_weight_spec *row, const ig_source_tensor *t) {
    const ig_model_config *c = &b->m->config;
    const ig_fmt *f = panel_format(b->m, t->fmt);
    *w = (ig_weight){.name = row->name,
                     .fmt = f,
                     .n_rows = t->n_rows,
                     .n_cols = t->n_cols,
                     .order = row->order,
                     .head_dim = c->head_dim};
    w->panel_bytes = ig_fmt_panel_bytes(f, w->n_cols);
    w->kern = ig_kern_pick(IG_KERN_LINEAR, f, b->m->tier_max, b->m->cpu);
    w->unpack = ig_kern_pick(IG_KERN_UNPACK, f, b->m->tier_max, b->m->cpu);
    w->linear = w->kern->fn.linear;
    ig_assert(b->n_loads < b->loads_max);
    load *l = &b->loads[b->n_loads++];
    *l = (load){.w = w, .t = *t, .from = t->fmt, .panels_at = b->m->panels_bytes};
    l->interleaved = row->interleaved && b->s->from.gguf;
    /* a unit covers whole rows of the file that lie together: a run of panels, or heads */
    int step = row->order == IG_ROWS_ROPE ? c->head_dim / IG_PANEL_ROWS : 1;
    size_t step_bytes = ig_fmt_row_bytes(t->fmt, w->n_cols) * IG_PANEL_ROWS * (size_t)step;
    l->unit_panels = step * (int)(1 + (step_bytes < UNIT_BYTES ? UNIT_BYTES / step_bytes : 0));
    l->n_units = (ig_weight_n_panels(w) + l->unit_panels - 1) / l->unit_panels;
    b->m->panels_bytes += (w->panel_bytes * (size_t)ig_weight_n_panels(w) + IG_ALIGN_BYTES - 1) /
                          IG_ALIGN_BYTES * IG_ALIGN_BYTES;
}

/* Does this checkpoint have the tensor of the row, by what it says of itself? */
static bool is_wanted(const binding *b, const ig_weight_spec *row, const char *name) {
    const ig_model_config *c = &b->m->config;
    char first[IG_TENSOR_NAME_BYTES];
    if (b->s->from.snapshot && !row->hf) return false;
    switch (row->when) {
    case IG_ALWAYS: return true;
    case IG_WHEN_UNTIED: return !c->tied_head && !c->no_head;
    case IG_WHEN_LONGROPE: return c->rope[IG_ROPE_FULL].type == IG_ROPE_LONGROPE;
    case IG_WHEN_THERE: return ig_source_has(b->s, name);
    case IG_WHEN_ATTENTION_BIAS:
    case IG_WHEN_MLP_BIAS: break;
    }
    if (b->s->from.snapshot) return row->when == IG_WHEN_MLP_BIAS ? c->mlp_bias : c->attention_bias;
    ig_source_name(first, b->s, row, 0);
    return ig_source_has(b->s, first);
}

static ig_status bind_rows(ig_layer *l, binding *b, const ig_weight_spec *row, int layer, ig_err *err) {
    const ig_model_config *c = &b->m->config;
    for (; row->name; row++) {
        char name[IG_TENSOR_NAME_BYTES];
        ig_source_tensor t;
        if (b->s->from.gguf || row->hf) ig_source_name(name, b->s, row, layer);
        if (!is_wanted(b, row, name)) continue;
        ig_status st =
            ig_source_find(&t, b->s, name, row->vector, dim_of(c, row->rows), dim_of(c, row->cols), err);
        if (st != IG_OK) return st;
        b->m->n_params += (uint64_t)t.n_rows * (uint64_t)t.n_cols;
        if (b->m->number && row->cols != IG_DIM_HALF_HEAD &&
            (st = ig_source_check_number(b->s, &t, b->m->number, err)) != IG_OK)
            return st;
        if (row->bias) {
            if ((st = bind_bias(l, b, row, &t, err)) != IG_OK) return st;
        } else if (row->vector) {
            if ((st = bind_vector(&l->v[row->slot], b, row, &t, err)) != IG_OK) return st;
        } else {
            bind_matrix(&l->w[row->slot], b, row, &t);
        }
    }
    return IG_OK;
}

/* ---- repacking ---------------------------------------------------------------------------------------- */

typedef struct packing {
    const binding *b;
    uint8_t **buffer; /* one a thread: rows, scratch of reading them, from convert_at on that of converting one */
    size_t convert_at;
    _Atomic bool failed;
    _Atomic uint64_t done_bytes;
    uint64_t total_bytes;
    const ig_model_options *o;
    ig_status st;
    ig_err err;
} packing;

/* A row of the file as w->fmt packs it. `to`: room for 4 bytes and for 4 more of every input. */
static const uint8_t *converted(const load *l, const ig_fmt *number, const uint8_t *row, uint8_t *to) {
    const int n = l->w->n_cols;
    uint16_t *y = (uint16_t *)(void *)to;
    float *x = (float *)(void *)(to + (size_t)n * 4);
    if (l->from == l->w->fmt) return row;
    if (l->from->mlx) {
        ig_mlx_row(y, l->from, number, row, n);
        return to;
    }
    ig_kern_reference(IG_KERN_DEQUANT, l->from)->fn.dequant(x, row, n);
    for (int k = 0; k < n; k++) y[k] = number == &ig_fmt_bf16 ? ig_f32_to_bf16(x[k]) : ig_f32_to_f16(x[k]);
    return to;
}

static ig_status pack_unit(packing *p, const load *l, int unit, uint8_t *rows, ig_err *err) {
    const ig_weight *w = l->w;
    size_t row_bytes = ig_fmt_row_bytes(l->from, w->n_cols);
    int first = unit * l->unit_panels, last = first + l->unit_panels, n = ig_weight_n_panels(w);
    if (last > n) last = n;
    int row0 = first * IG_PANEL_ROWS, row1 = last * IG_PANEL_ROWS;
    if (row1 > w->n_rows) row1 = w->n_rows;
    size_t bytes = (size_t)(row1 - row0) * row_bytes;
    ig_status st = ig_source_read(p->b->s, &l->t, row0, row1 - row0, rows, rows + bytes, err);
    if (st != IG_OK) return st;
    for (int panel = first; panel < last; panel++) {
        uint8_t *out = p->b->m->panels + l->panels_at + (size_t)panel * w->panel_bytes;
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            int row = ig_weight_row(w, panel, lane);
            if (row < 0) continue; /* past the end: zero from the mapping */
            const uint8_t *in = rows + (size_t)(file_row(l->interleaved, w->head_dim, row) - row0) * row_bytes;
            w->fmt->pack(out, converted(l, p->b->m->number, in, rows + p->convert_at), lane, w->n_cols);
        }
    }
    uint64_t done = atomic_fetch_add(&p->done_bytes, bytes) + bytes;
    if (p->o->progress) p->o->progress(p->o->progress_ud, done, p->total_bytes);
    return IG_OK;
}

static void pack_part(void *arg, int lo, int hi, int thread) {
    packing *p = arg;
    int base = 0, s = 0;
    for (int i = lo; i < hi && !atomic_load(&p->failed); i++) {
        while (i - base >= p->b->loads[s].n_units) base += p->b->loads[s++].n_units;
        ig_err err;
        ig_status st = pack_unit(p, &p->b->loads[s], i - base, p->buffer[thread], &err);
        if (st != IG_OK && !atomic_exchange(&p->failed, true)) p->st = st, p->err = err;
    }
}

static ig_status pack_all(binding *b, const ig_model_options *o, ig_err *err) {
    packing p = {.b = b, .o = o};
    int n_threads = ig_pool_threads(o->pool), n_units = 0;
    size_t buffer_bytes = 0, n_cols = 0;
    for (int i = 0; i < b->n_loads; i++) {
        const load *l = &b->loads[i];
        size_t bytes = ig_fmt_row_bytes(l->from, l->w->n_cols) * IG_PANEL_ROWS * (size_t)l->unit_panels;
        if (bytes > buffer_bytes) buffer_bytes = bytes;
        if ((size_t)l->w->n_cols > n_cols) n_cols = (size_t)l->w->n_cols;
        n_units += l->n_units;
        p.total_bytes += l->t.n_bytes;
    }
    p.convert_at = (2 * buffer_bytes + 15) / 16 * 16; /* rows, and the scratch of reading them */
    buffer_bytes = p.convert_at + (b->m->number ? 8 * n_cols : 0);
    p.buffer = calloc((size_t)n_threads, sizeof *p.buffer);
    bool ok = p.buffer != NULL;
    for (int i = 0; ok && i < n_threads; i++) ok = (p.buffer[i] = malloc(buffer_bytes)) != NULL;
    if (ok) ig_pool_run(o->pool, pack_part, &p, n_units, 1);
    for (int i = 0; p.buffer && i < n_threads; i++) free(p.buffer[i]);
    free(p.buffer);
    if (!ok)
        return ig_fail(err, IG_ELIMIT, "no memory for %d load buffers of %zu bytes", n_threads, buffer_bytes);
    if (p.st != IG_OK && err) *err = p.err;
    return p.st;
}

static uint64_t weight_bytes(const ig_weight *w) {
    return w->fmt ? (uint64_t)w->panel_bytes * (uint64_t)ig_weight_n_panels(w) : 0;
}

ig_status ig_model_bind(ig_model *m, ig_source *s, const ig_model_options *o, ig_err *err) {
    const ig_model_config *c = &m->config;
    binding b = {.m = m, .s = s, .loads_max = c->n_layers * IG_LAYER_WEIGHTS_MAX + IG_LAYER_WEIGHTS_MAX};
    ig_status st = IG_OK;
    b.loads = calloc((size_t)b.loads_max, sizeof *b.loads);
    if (!b.loads) {
        st = ig_fail(err, IG_ELIMIT, "no memory to bind %d layers", c->n_layers);
        goto out;
    }
    if ((st = bind_rows(&m->top, &b, m->family->top_rows, 0, err)) != IG_OK) goto out;
    for (int i = 0; i < c->n_layers; i++)
        if ((st = bind_rows(&m->layers[i], &b, m->family->layer_rows, i, err)) != IG_OK) goto out;
    if ((st = ig_source_check_used(s, m->family, c->tied_head, err)) != IG_OK) goto out;
    if (o->memory_budget_bytes && m->panels_bytes > o->memory_budget_bytes) {
        st = ig_fail(err, IG_ELIMIT, "%s: the weights need %s of memory, %s may be used", s->path,
                     ig_size_text_of(m->panels_bytes).s, ig_size_text_of(o->memory_budget_bytes).s);
        goto out;
    }
    if (!o->plan_only) {
        void *pages;
        if ((st = ig_pages_map(&pages, m->panels_bytes, true, err)) != IG_OK) goto out;
        m->panels = pages;
        for (int i = 0; i < b.n_loads; i++) b.loads[i].w->panels = m->panels + b.loads[i].panels_at;
        if ((st = pack_all(&b, o, err)) != IG_OK) goto out;
    }
    if (c->tied_head) m->top.w[IG_TOP_HEAD] = m->top.w[IG_TOP_EMBED];
    m->decode_bytes = weight_bytes(&m->top.w[IG_TOP_HEAD]);
    for (int i = 0; i < c->n_layers; i++)
        for (int k = 0; k < IG_LAYER_WEIGHTS_MAX; k++) m->decode_bytes += weight_bytes(&m->layers[i].w[k]);
out:
    free(b.loads);
    return st;
}
