/* fit: what a model needs on this machine, and the largest context that fits. Of the weights only the headers are
 * read: the numbers come from the plan that start makes (ig_engine_fit_make), so they cannot disagree with it. */
#include "app/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { CTX = 8192 };
static const int rows_shown[] = {1, 2, 4, 8, 16, 32, 64};
enum { N_ROWS_SHOWN = sizeof rows_shown / sizeof *rows_shown };

static int print_json(const ig_loaded *l, const ig_engine_fit *f, const ig_engine_fit *rows, int typical) {
    const ig_engine_plan *p = &f->plan;
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *machine = yyjson_mut_obj(doc), *report = yyjson_mut_obj(doc),
                   *batch = yyjson_mut_arr(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_str(doc, machine, "cpu", ig_cpu_model());
    yyjson_mut_obj_add_int(doc, machine, "cores", ig_cpu_count());
    yyjson_mut_obj_add_int(doc, machine, "threads", l->n_threads);
    yyjson_mut_obj_add_uint(doc, machine, "usable_bytes", p->usable_bytes);
    yyjson_mut_obj_add_val(doc, root, "machine", machine);
    ig_json_add_bytes(doc, root, "model", l->name);
    yyjson_mut_obj_add_int(doc, root, "context_tokens", p->n_ctx);
    yyjson_mut_obj_add_int(doc, root, "typical_context_tokens", typical);
    yyjson_mut_obj_add_int(doc, root, "rows", p->n_slots);
    yyjson_mut_obj_add_bool(doc, report, "fits", p->fits);
    yyjson_mut_obj_add_uint(doc, report, "weights_bytes", p->weights_bytes);
    yyjson_mut_obj_add_uint(doc, report, "kv_bytes", p->kv_bytes);
    yyjson_mut_obj_add_uint(doc, report, "transient_bytes", p->step_bytes);
    yyjson_mut_obj_add_uint(doc, report, "table_bytes", p->table_bytes);
    yyjson_mut_obj_add_uint(doc, report, "reserve_bytes", f->reserve_bytes);
    yyjson_mut_obj_add_uint(doc, report, "total_bytes", p->total_bytes);
    yyjson_mut_obj_add_uint(doc, report, "usable_bytes", p->usable_bytes);
    yyjson_mut_obj_add_int(doc, report, "max_safe_context", f->n_ctx_max);
    yyjson_mut_obj_add_val(doc, root, "report", report);
    for (int i = 0; i < N_ROWS_SHOWN; i++) {
        yyjson_mut_val *one = yyjson_mut_obj(doc);
        yyjson_mut_obj_add_int(doc, one, "rows", rows_shown[i]);
        yyjson_mut_obj_add_int(doc, one, "max_safe_context", rows[i].n_ctx_max);
        yyjson_mut_arr_append(batch, one);
    }
    yyjson_mut_obj_add_val(doc, root, "batch", batch);
    char *json = lost ? NULL : yyjson_mut_write(doc, YYJSON_WRITE_PRETTY_TWO_SPACES, NULL);
    yyjson_mut_doc_free(doc);
    if (!json) return ig_app_say(IG_EXIT_FAILED, "no memory");
    printf("%s\n", json);
    free(json);
    return IG_EXIT_OK;
}

static void print_text(const ig_loaded *l, const ig_engine_fit *f, const ig_engine_fit *rows) {
    const ig_engine_plan *p = &f->plan;
    printf("%s: %d conversation%s of %d tokens %s here\n", l->name, p->n_slots, p->n_slots > 1 ? "s" : "", p->n_ctx,
           p->fits ? "fit" : "do not fit");
    printf("  weights %s, keys and values %s, step %s, tables %s, reserve %s\n", ig_size_text_of(p->weights_bytes).s,
           ig_size_text_of(p->kv_bytes).s, ig_size_text_of(p->step_bytes).s, ig_size_text_of(p->table_bytes).s,
           ig_size_text_of(f->reserve_bytes).s);
    printf("  together %s of %s that may be used\n\n", ig_size_text_of(p->total_bytes).s,
           ig_size_text_of(p->usable_bytes).s);
    printf("  at once   largest context of each\n");
    for (int i = 0; i < N_ROWS_SHOWN; i++) printf("  %7d   %d\n", rows_shown[i], rows[i].n_ctx_max);
}

static int show(const ig_loaded *l, ig_engine_config c, bool json) {
    const int n_train = ig_model_config_of(l->model)->n_ctx_train, typical = n_train < CTX ? n_train : CTX;
    ig_engine_fit fit, rows[N_ROWS_SHOWN];
    ig_err err;
    if (c.n_ctx == 0) c.n_ctx = typical;
    /* What is free now: start counts its weights to it, because then they are read already. */
    if (c.memory_budget_bytes == 0) c.memory_budget_bytes = ig_memory_available_bytes() / 4 * 3;
    if (ig_engine_fit_make(&fit, l->model, &c, &err)) return ig_app_fail(&err);
    for (int i = 0; i < N_ROWS_SHOWN; i++) {
        ig_engine_config k = c;
        k.n_slots = rows_shown[i];
        if (ig_engine_fit_make(&rows[i], l->model, &k, &err)) return ig_app_fail(&err);
    }
    int code = IG_EXIT_OK;
    if (json) code = print_json(l, &fit, rows, typical);
    else print_text(l, &fit, rows);
    if (code || fit.plan.fits) return code;
    if (fit.n_ctx_max < 2)
        return ig_app_say(IG_EXIT_MEMORY,
                          "%s needs %" PRIu64 " bytes with %d tokens, and %" PRIu64 " may be used: no context fits", l->name,
                          fit.plan.total_bytes, c.n_ctx, fit.plan.usable_bytes);
    return ig_app_say(IG_EXIT_MEMORY, "%d times %d tokens need %" PRIu64 " bytes, and %" PRIu64
                      " may be used: %d times %d tokens fit", c.n_slots, c.n_ctx, fit.plan.total_bytes,
                      fit.plan.usable_bytes, c.n_slots, fit.n_ctx_max);
}

int ig_cmd_fit(int argc, char **argv) {
    ig_load_options load = ig_load_defaults();
    bool json = false;
    load.no_engine = load.vectors = load.plan_only = true;
    load.engine.n_slots = 1;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"batch", .other = "parallel", .kind = IG_OPT_INT, .to = &load.engine.n_slots, .min = 1, .max = 64, .value = "N",
         .help = "conversations at once, each of --ctx tokens"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"},
        IG_LOAD_OPTIONS(load),
    };
    const ig_command c = {.verb = "fit",
                          .words = "[MODEL]",
                          .summary = "Says what a model needs in memory here, and the largest context that fits "
                                     "(exit 4: what was asked does not). --ctx 0 is 8192, or what the model has.",
                          .options = options,
                          .n_options = sizeof options / sizeof *options,
                          .n_words_max = 1};
    ig_words words;
    ig_loaded l;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (words.n) load.model = words.v[0];
    if ((code = ig_load(&l, &load))) return code;
    code = show(&l, load.engine, json);
    ig_unload(&l);
    return code;
}
