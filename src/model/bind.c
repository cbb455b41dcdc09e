/* bind: the family's weight table against the file. Every tensor of the table must be there with its shape
 * and a format we have kernels for, and the file must hold no other: a leftover tensor means that the model
 * is not what we think it is. Then the panels are laid out in one mapping and filled over the pool: each
 * unit of work reads a run of rows (pread, so a file that shrinks is an error and not a signal) and
 * transposes it. */
#include "model/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 256 * 1024, NAME_BYTES = 96, LEFTOVERS_SHOWN = 20 };

typedef struct source {
    ig_weight *w;
    const ig_gguf_tensor *t;
    size_t panels_at; /* from the start of the mapping */
    int unit_panels, n_units;
    bool interleaved;
} source;

typedef struct binding {
    ig_model *m;
    const ig_gguf *g;
    source *src;
    int n_src, src_max;
    bool *used; /* by tensor number */
    size_t n_floats;
    float *floats;
} binding;

static int dim_of(const ig_model_config *c, ig_dim d) {
    switch (d) {
    case IG_DIM_WIDTH: return c->width;
    case IG_DIM_FFN: return c->ffn_width;
    case IG_DIM_Q: return c->n_heads * c->head_dim;
    case IG_DIM_KV: return c->n_kv_heads * c->head_dim;
    case IG_DIM_HEAD: return c->head_dim;
    case IG_DIM_VOCAB: return c->n_vocab;
    default: return 1;
    }
}

static ig_status find(const ig_gguf_tensor **out, binding *b, const ig_weight_spec *row, const char *name,
                      ig_err *err) {
    const ig_model_config *c = &b->m->config;
    const char *path = ig_gguf_path(b->g);
    const ig_gguf_tensor *t = ig_gguf_find(b->g, name);
    if (!t) {
        *out = NULL;
        return row->optional ? IG_OK : ig_fail(err, IG_EFORMAT, "%s: tensor %s is missing", path, name);
    }
    uint64_t cols = (uint64_t)dim_of(c, row->cols), rows = row->vector ? 1 : (uint64_t)dim_of(c, row->rows);
    if (t->dim[0] != cols || t->dim[1] != rows || t->dim[2] != 1 || t->dim[3] != 1)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %s is [%llu, %llu, %llu, %llu], expected [%llu, %llu]",
                       path, name, (unsigned long long)t->dim[0], (unsigned long long)t->dim[1],
                       (unsigned long long)t->dim[2], (unsigned long long)t->dim[3], (unsigned long long)cols,
                       (unsigned long long)rows);
    b->used[t - ig_gguf_tensor_at(b->g, 0)] = true;
    b->m->n_params += cols * rows;
    *out = t;
    return IG_OK;
}

/* The block types we read, by their names in GGUF. */
static void list_formats(char *out, size_t cap) {
    const ig_fmt *f;
    size_t n = 0;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL && n < cap; i++)
        if (f->gguf_type >= 0)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "",
                                  ig_gguf_type_of((uint32_t)f->gguf_type)->name);
}

static ig_status format_of(const ig_fmt **out, const binding *b, const ig_gguf_tensor *t, ig_err *err) {
    const ig_fmt *f = ig_fmt_of_gguf(t->type);
    const ig_gguf_type *type = ig_gguf_type_of(t->type);
    char list[200] = "";
    if (!f) {
        list_formats(list, sizeof list);
        return ig_fail(err, IG_EFORMAT,
                       "%s: tensor %.*s has block type %s, which is not supported (supported: %s)",
                       ig_gguf_path(b->g), (int)t->name.n, t->name.p, type ? type->name : "?", list);
    }
    *out = f;
    return IG_OK;
}

static ig_status bind_vector(const float **out, binding *b, const ig_gguf_tensor *t, ig_err *err) {
    const ig_fmt *f;
    ig_status st = format_of(&f, b, t, err);
    if (st != IG_OK) return st;
    if (f->act != IG_ACT_F32)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %.*s is a vector in %s; F32, F16 or BF16 expected",
                       ig_gguf_path(b->g), (int)t->name.n, t->name.p, f->name);
    uint8_t *row = malloc((size_t)t->n_bytes);
    if (!row) return ig_fail(err, IG_ELIMIT, "no memory for %llu bytes", (unsigned long long)t->n_bytes);
    st = ig_gguf_read(b->g, t, 0, row, (size_t)t->n_bytes, err);
    if (st == IG_OK) {
        float *v = b->floats + b->n_floats;
        ig_kern_reference(IG_KERN_DEQUANT, f)->fn.dequant(v, row, (int)t->dim[0]);
        b->n_floats += (size_t)t->dim[0];
        *out = v;
    }
    free(row);
    return st;
}

static ig_status bind_matrix(ig_weight *w, binding *b, const ig_weight_spec *row, const ig_gguf_tensor *t,
                             ig_err *err) {
    const ig_model_config *c = &b->m->config;
    const ig_fmt *f;
    ig_status st = format_of(&f, b, t, err);
    if (st != IG_OK) return st;
    *w = (ig_weight){.name = row->name,
                     .fmt = f,
                     .n_rows = (int)t->dim[1],
                     .n_cols = (int)t->dim[0],
                     .order = row->order,
                     .head_dim = c->head_dim};
    w->panel_bytes = ig_fmt_panel_bytes(f, w->n_cols);
    w->kern = ig_kern_pick(IG_KERN_LINEAR, f, b->m->tier_max, b->m->cpu);
    w->unpack = ig_kern_pick(IG_KERN_UNPACK, f, b->m->tier_max, b->m->cpu);
    w->linear = w->kern->fn.linear;
    ig_assert(b->n_src < b->src_max);
    source *s = &b->src[b->n_src++];
    *s = (source){.w = w, .t = t, .panels_at = b->m->panels_bytes, .interleaved = row->interleaved};
    /* a unit covers whole rows of the file that lie together: a run of panels, or heads */
    int step = row->order == IG_ROWS_ROPE ? c->head_dim / IG_PANEL_ROWS : 1;
    size_t step_bytes = ig_fmt_row_bytes(f, w->n_cols) * IG_PANEL_ROWS * (size_t)step;
    s->unit_panels = step * (int)(1 + (step_bytes < UNIT_BYTES ? UNIT_BYTES / step_bytes : 0));
    s->n_units = (ig_weight_n_panels(w) + s->unit_panels - 1) / s->unit_panels;
    b->m->panels_bytes += (w->panel_bytes * (size_t)ig_weight_n_panels(w) + IG_ALIGN_BYTES - 1) /
                          IG_ALIGN_BYTES * IG_ALIGN_BYTES;
    return IG_OK;
}

static ig_status bind_rows(ig_layer *l, binding *b, const ig_weight_spec *rows, int layer, ig_err *err) {
    for (; rows->name; rows++) {
        char name[NAME_BYTES];
        const char *mark = strstr(rows->name, "%d");
        if (mark)
            snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - rows->name), rows->name, layer, mark + 2);
        else
            snprintf(name, sizeof name, "%s", rows->name);
        const ig_gguf_tensor *t = NULL;
        ig_status st = find(&t, b, rows, name, err);
        if (st == IG_OK && t)
            st = rows->vector ? bind_vector(&l->v[rows->slot], b, t, err)
                              : bind_matrix(&l->w[rows->slot], b, rows, t, err);
        if (st != IG_OK) return st;
    }
    return IG_OK;
}

static ig_status refuse_leftovers(const binding *b, ig_err *err) {
    char names[320];
    size_t n = 0;
    int count = 0;
    for (int i = 0; i < ig_gguf_n_tensors(b->g); i++) {
        if (b->used[i]) continue;
        const ig_gguf_tensor *t = ig_gguf_tensor_at(b->g, i);
        if (count++ < LEFTOVERS_SHOWN && n + t->name.n + 3 < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%.*s", n ? ", " : "", (int)t->name.n,
                                  t->name.p);
    }
    if (count == 0) return IG_OK;
    return ig_fail(err, IG_EFORMAT, "%s: %d tensors are not part of the %s family: %s", ig_gguf_path(b->g),
                   count, b->m->family->name, names);
}

/* ---- repacking ---------------------------------------------------------------------------------------- */

typedef struct packing {
    const binding *b;
    uint8_t **buffer; /* one a thread */
    _Atomic bool failed;
    _Atomic uint64_t done_bytes;
    uint64_t total_bytes;
    const ig_model_options *o;
    ig_status st;
    ig_err err;
} packing;

/* The row of the file that belongs to row `row` of the matrix. */
static int file_row(const source *s, int row) {
    if (!s->interleaved) return row;
    int n_d = s->w->head_dim, head = row / n_d, i = row % n_d;
    return head * n_d + (i < n_d / 2 ? 2 * i : 2 * (i - n_d / 2) + 1);
}

static ig_status pack_unit(packing *p, const source *s, int unit, uint8_t *rows, ig_err *err) {
    const ig_weight *w = s->w;
    size_t row_bytes = ig_fmt_row_bytes(w->fmt, w->n_cols);
    int first = unit * s->unit_panels, last = first + s->unit_panels, n = ig_weight_n_panels(w);
    if (last > n) last = n;
    int row0 = first * IG_PANEL_ROWS, row1 = last * IG_PANEL_ROWS;
    if (row1 > w->n_rows) row1 = w->n_rows;
    size_t bytes = (size_t)(row1 - row0) * row_bytes;
    ig_status st = ig_gguf_read(p->b->g, s->t, (uint64_t)row0 * row_bytes, rows, bytes, err);
    if (st != IG_OK) return st;
    for (int panel = first; panel < last; panel++) {
        uint8_t *out = p->b->m->panels + s->panels_at + (size_t)panel * w->panel_bytes;
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            int row = ig_weight_row(w, panel, lane);
            if (row < 0) continue; /* past the end: zero from the mapping */
            w->fmt->pack(out, rows + (size_t)(file_row(s, row) - row0) * row_bytes, lane, w->n_cols);
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
        while (i - base >= p->b->src[s].n_units) base += p->b->src[s++].n_units;
        ig_err err;
        ig_status st = pack_unit(p, &p->b->src[s], i - base, p->buffer[thread], &err);
        if (st != IG_OK && !atomic_exchange(&p->failed, true)) p->st = st, p->err = err;
    }
}

static ig_status pack_all(binding *b, const ig_model_options *o, ig_err *err) {
    packing p = {.b = b, .o = o};
    int n_threads = ig_pool_threads(o->pool), n_units = 0;
    size_t buffer_bytes = 0;
    for (int i = 0; i < b->n_src; i++) {
        const source *s = &b->src[i];
        size_t bytes = ig_fmt_row_bytes(s->w->fmt, s->w->n_cols) * IG_PANEL_ROWS * (size_t)s->unit_panels;
        if (bytes > buffer_bytes) buffer_bytes = bytes;
        n_units += s->n_units;
        p.total_bytes += s->t->n_bytes;
    }
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

ig_status ig_model_bind(ig_model *m, const ig_gguf *g, const ig_model_options *o, ig_err *err) {
    const ig_model_config *c = &m->config;
    binding b = {.m = m, .g = g, .src_max = c->n_layers * IG_LAYER_WEIGHTS_MAX + IG_LAYER_WEIGHTS_MAX};
    ig_status st = IG_OK;
    b.src = calloc((size_t)b.src_max, sizeof *b.src);
    b.used = calloc((size_t)ig_gguf_n_tensors(g) + 1, sizeof *b.used);
    m->vectors = b.floats =
        calloc((size_t)(c->width > c->head_dim ? c->width : c->head_dim),
               (size_t)(c->n_layers + 1) * IG_LAYER_VECTORS_MAX * sizeof(float));
    if (!b.src || !b.used || !b.floats) {
        st = ig_fail(err, IG_ELIMIT, "no memory to bind %d layers", c->n_layers);
        goto out;
    }
    if ((st = bind_rows(&m->top, &b, m->family->top_rows, 0, err)) != IG_OK) goto out;
    for (int i = 0; i < c->n_layers; i++)
        if ((st = bind_rows(&m->layers[i], &b, m->family->layer_rows, i, err)) != IG_OK) goto out;
    if ((st = refuse_leftovers(&b, err)) != IG_OK) goto out;
    if (o->memory_budget_bytes && m->panels_bytes > o->memory_budget_bytes) {
        st = ig_fail(err, IG_ELIMIT, "%s: the weights need %zu MiB of memory, %llu MiB may be used",
                     ig_gguf_path(g), m->panels_bytes >> 20,
                     (unsigned long long)(o->memory_budget_bytes >> 20));
        goto out;
    }
    void *pages;
    if ((st = ig_pages_map(&pages, m->panels_bytes, true, err)) != IG_OK) goto out;
    m->panels = pages;
    for (int i = 0; i < b.n_src; i++) b.src[i].w->panels = m->panels + b.src[i].panels_at;
    if ((st = pack_all(&b, o, err)) != IG_OK) goto out;
    if (c->tied_head) m->top.w[IG_TOP_HEAD] = m->top.w[IG_TOP_EMBED];
    m->decode_bytes = weight_bytes(&m->top.w[IG_TOP_HEAD]);
    for (int i = 0; i < c->n_layers; i++)
        for (int k = 0; k < IG_LAYER_WEIGHTS_MAX; k++) m->decode_bytes += weight_bytes(&m->layers[i].w[k]);
out:
    free(b.src);
    free(b.used);
    return st;
}
