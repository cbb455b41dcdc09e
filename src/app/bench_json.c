/* bench_json: everything as one object. The keys on top are those of the first prompt, the first context and
 * the largest batch, for scripts that measure one thing; "rows" has all. */
#include "app/bench.h"
#include "file/file.h"

#include <string.h>

typedef yyjson_mut_doc doc;
typedef yyjson_mut_val val;

static void add_real(doc *d, val *obj, const char *key, double v) {
    yyjson_mut_obj_add_real(d, obj, key, v);
}

static val *formats_of(doc *d, const ig_bench_op *op) {
    val *list = yyjson_mut_arr(d);
    for (int i = 0; i < IG_BENCH_OP_WEIGHTS && op->fmt[i]; i++)
        yyjson_mut_arr_add_str(d, list, op->fmt[i]->name);
    return list;
}

static val *profile_of(doc *d, const ig_bench_profile *p) {
    const double passes = p->n_passes ? (double)p->n_passes : 1;
    double all_ns = 0;
    val *list = yyjson_mut_arr(d);
    for (int i = 0; i < p->n_ops; i++) all_ns += (double)p->op[i].ns;
    for (int i = 0; i < p->n_ops; i++) {
        const ig_bench_op *op = &p->op[i];
        const double ns = op->ns ? (double)op->ns : 1;
        val *o = yyjson_mut_arr_add_obj(d, list);
        yyjson_mut_obj_add_str(d, o, "op", op->name);
        if (op->weight) yyjson_mut_obj_add_strcpy(d, o, "weight", ig_bench_weight_text(op->weight).s);
        yyjson_mut_obj_add_val(d, o, "formats", formats_of(d, op));
        yyjson_mut_obj_add_str(d, o, "kernel", op->kern->name);
        add_real(d, o, "calls", (double)op->n_calls / passes);
        add_real(d, o, "ms", ns / passes * 1e-6);
        add_real(d, o, "share", ns / (all_ns > 0 ? all_ns : 1));
        if (op->macs > 0) add_real(d, o, "gmac_s", op->macs / ns);
        if (op->bytes > 0) add_real(d, o, "gb_s", op->bytes / ns);
    }
    return list;
}

static val *row_of(doc *d, const ig_bench_set *s, const ig_bench_row *row) {
    val *o = yyjson_mut_obj(d);
    yyjson_mut_obj_add_str(d, o, "work", row->work == IG_BENCH_PREFILL ? "prefill" : "decode");
    yyjson_mut_obj_add_int(d, o, "threads", s->n_threads);
    yyjson_mut_obj_add_int(d, o, "tokens", row->n_tokens);
    yyjson_mut_obj_add_int(d, o, "context", row->n_context);
    yyjson_mut_obj_add_int(d, o, "sequences", row->n_seqs);
    yyjson_mut_obj_add_bool(d, o, "left_out", row->left_out);
    if (row->left_out) return o;
    yyjson_mut_obj_add_int(d, o, "runs", row->n_runs);
    add_real(d, o, "tok_s", row->tps), add_real(d, o, "tok_s_min", row->tps_min);
    add_real(d, o, "tok_s_max", row->tps_max), add_real(d, o, "spread", ig_bench_spread(row));
    add_real(d, o, "gmac_s", row->gmacs);
    if (row->work == IG_BENCH_DECODE) {
        add_real(d, o, "bytes_a_token", row->token_bytes), add_real(d, o, "gb_s", row->gbs);
        if (row->roofline > 0) add_real(d, o, "roofline", row->roofline);
    }
    if (row->others >= 0) add_real(d, o, "others_cpu", row->others);
    if (row->profile) yyjson_mut_obj_add_val(d, o, "profile", profile_of(d, row->profile));
    return o;
}

static val *variants_of(doc *d, const ig_kern *k, uint32_t cpu) {
    val *list = yyjson_mut_arr(d);
    const ig_kern *other;
    for (int i = 0; (other = ig_kern_at(i)) != NULL; i++) {
        if (other->op != k->op || other->fmt != k->fmt) continue;
        val *o = yyjson_mut_arr_add_obj(d, list);
        yyjson_mut_obj_add_str(d, o, "kernel", other->name);
        yyjson_mut_obj_add_int(d, o, "rank", other->speed);
        yyjson_mut_obj_add_bool(d, o, "runs", (other->cpu_needs & ~cpu) == 0);
        yyjson_mut_obj_add_strcpy(d, o, "lacks", ig_bench_features(other->cpu_needs & ~cpu).s);
    }
    return list;
}

static val *kernels_of(doc *d, const ig_bench_kernels *all, uint32_t cpu) {
    val *list = yyjson_mut_arr(d);
    for (int i = 0; i < all->n; i++) {
        const struct ig_bench_kernel *k = &all->v[i];
        val *o = yyjson_mut_arr_add_obj(d, list);
        yyjson_mut_obj_add_str(d, o, "op", k->op);
        yyjson_mut_obj_add_str(d, o, "kernel", k->kern->name);
        if (k->kern->fmt) yyjson_mut_obj_add_str(d, o, "format", k->kern->fmt->name);
        yyjson_mut_obj_add_int(d, o, "calls", k->n);
        yyjson_mut_obj_add_strcpy(d, o, "why", ig_bench_why_kernel(k->kern, cpu).s);
        yyjson_mut_obj_add_val(d, o, "variants", variants_of(d, k->kern, cpu));
    }
    return list;
}

static val *set_of(doc *d, const ig_bench_set *s) {
    val *o = yyjson_mut_obj(d);
    yyjson_mut_obj_add_int(d, o, "threads", s->n_threads);
    yyjson_mut_obj_add_strcpy(d, o, "why", ig_bench_why_threads(s->n_threads, s->threads_asked).s);
    if (s->bandwidth > 0) add_real(d, o, "bandwidth_gb_s", s->bandwidth * 1e-9);
    add_real(d, o, "ready_ms", s->ready_ms), add_real(d, o, "weights_ms", s->weights_ms);
    add_real(d, o, "text_ms", s->text_ms);
    yyjson_mut_obj_add_uint(d, o, "ready_resident_bytes", s->ready_bytes);
    yyjson_mut_obj_add_uint(d, o, "end_resident_bytes", s->end_bytes);
    return o;
}

/* The one prompt, context and batch of who asked for one. */
static void add_firsts(doc *d, val *root, const ig_bench_set *s) {
    const ig_bench_row *prefill = NULL, *decode = NULL, *batch = NULL;
    for (int i = 0; i < s->n_rows; i++) {
        const ig_bench_row *row = &s->rows[i];
        if (row->left_out) continue;
        if (row->work == IG_BENCH_PREFILL && !prefill) prefill = row;
        if (row->work == IG_BENCH_DECODE && row->n_seqs == 1 && !decode) decode = row;
        if (row->n_seqs > 1) batch = row;
    }
    yyjson_mut_obj_add_int(d, root, "threads", s->n_threads);
    add_real(d, root, "load_ms", s->ready_ms);
    yyjson_mut_obj_add_uint(d, root, "resident_bytes", s->end_bytes);
    if (prefill) {
        yyjson_mut_obj_add_int(d, root, "prompt_tokens", prefill->n_tokens);
        add_real(d, root, "prefill_tps", prefill->tps);
        add_real(d, root, "prefill_spread", ig_bench_spread(prefill));
    }
    if (decode) {
        yyjson_mut_obj_add_int(d, root, "tokens", decode->n_tokens);
        yyjson_mut_obj_add_int(d, root, "context", decode->n_context);
        add_real(d, root, "decode_tps", decode->tps),
            add_real(d, root, "decode_spread", ig_bench_spread(decode));
        add_real(d, root, "token_bytes", decode->token_bytes), add_real(d, root, "decode_gbs", decode->gbs);
    }
    if (batch) {
        yyjson_mut_obj_add_int(d, root, "batch", batch->n_seqs);
        add_real(d, root, "batch_tps", batch->tps), add_real(d, root, "batch_spread", ig_bench_spread(batch));
    }
}

int ig_bench_print_json(const ig_bench_report *r) {
    const uint32_t cpu = ig_cpu_features();
    bool lost;
    doc *d = ig_json_doc_make(&lost);
    val *root = yyjson_mut_obj(d), *sets = yyjson_mut_arr(d), *rows = yyjson_mut_arr(d);
    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "utc", r->utc);
    yyjson_mut_obj_add_str(d, root, "version", IG_VERSION);
    ig_json_add_bytes(d, root, "model", r->model);
    yyjson_mut_obj_add_str(d, root, "family", r->family);
    yyjson_mut_obj_add_uint(d, root, "parameters", r->n_params);
    yyjson_mut_obj_add_uint(d, root, "weights_bytes", r->weights_bytes);
    yyjson_mut_obj_add_uint(d, root, "weights_bytes_a_token", r->decode_bytes);
    yyjson_mut_obj_add_str(d, root, "tier", r->tier);
    yyjson_mut_obj_add_int(d, root, "kv_bits", r->kv_bits);
    yyjson_mut_obj_add_int(d, root, "act_bits", r->act_bits);
    ig_json_add_bytes(d, root, "cpu", ig_cpu_model());
    yyjson_mut_obj_add_int(d, root, "cores", ig_cpu_count());
    yyjson_mut_obj_add_str(d, root, "isa", r->isa.s);
    yyjson_mut_obj_add_strcpy(d, root, "isa_why", ig_bench_why_isa(cpu).s);
    if (r->bandwidth_one > 0) add_real(d, root, "bandwidth_one_thread_gb_s", r->bandwidth_one * 1e-9);
    add_firsts(d, root, &r->set[0]);
    for (int i = 0; i < r->n_sets; i++) {
        yyjson_mut_arr_append(sets, set_of(d, &r->set[i]));
        for (int k = 0; k < r->set[i].n_rows; k++)
            yyjson_mut_arr_append(rows, row_of(d, &r->set[i], &r->set[i].rows[k]));
    }
    yyjson_mut_obj_add_val(d, root, "runs_with_threads", sets);
    yyjson_mut_obj_add_val(d, root, "rows", rows);
    yyjson_mut_obj_add_val(d, root, "kernels", kernels_of(d, &r->kernels, cpu));
    return ig_app_print_json(d, lost);
}
