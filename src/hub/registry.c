/* registry: what was found out about models, kept so that listing them opens no file twice.
 * A cache and nothing else: it may be deleted, damaged or of another version at any time; then it is empty.
 * An entry counts only for the same path, time and size.
 * Threads: the caller's. Memory: the JSON document, at most BYTES_MAX. */
#include "hub/hub.h"

#include "file/file.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_MAX = 16 << 20, DEPTH_MAX = 8, VERSION = 1 };

struct ig_hub_registry {
    yyjson_doc *doc; /* NULL: empty */
    yyjson_val *models;
};

ig_status ig_hub_registry_open(ig_hub_registry **out, const char *path, ig_err *err) {
    ig_hub_registry *g = calloc(1, sizeof *g);
    char *text = NULL;
    size_t n = 0;
    if (!g) return ig_fail(err, IG_ELIMIT, "no memory");
    if (ig_file_slurp(&text, &n, path, BYTES_MAX, NULL) == IG_OK &&
        ig_json_parse(&g->doc, text, n, (ig_json_limits){BYTES_MAX, DEPTH_MAX}, NULL) == IG_OK) {
        yyjson_val *root = yyjson_doc_get_root(g->doc);
        if (yyjson_get_int(ig_json_get(root, "version")) == VERSION) g->models = ig_json_get(root, "models");
    }
    free(text);
    *out = g;
    return IG_OK;
}

void ig_hub_registry_close(ig_hub_registry *g) {
    if (!g) return;
    yyjson_doc_free(g->doc);
    free(g);
}

static void copy_text(char *out, size_t cap, yyjson_val *v) {
    const char *text = yyjson_get_str(v);
    snprintf(out, cap, "%s", text ? text : "");
    ig_text_calm(out, false);
}

bool ig_hub_registry_get(const ig_hub_registry *g, const ig_hub_item *item, ig_hub_facts *out) {
    yyjson_val *v = ig_json_get(g->models, item->path);
    if (!v || yyjson_get_sint(ig_json_get(v, "modified_ns")) != item->modified_ns ||
        yyjson_get_uint(ig_json_get(v, "bytes")) != item->bytes)
        return false;
    *out = (ig_hub_facts){.bits = yyjson_get_num(ig_json_get(v, "bits")),
                          .n_ctx = yyjson_get_uint(ig_json_get(v, "context")),
                          .runs = yyjson_get_bool(ig_json_get(v, "runs"))};
    copy_text(out->architecture, sizeof out->architecture, ig_json_get(v, "architecture"));
    copy_text(out->why, sizeof out->why, ig_json_get(v, "why"));
    return true;
}

bool ig_hub_registry_keeps(const ig_hub_item *item) {
    return !item->unfinished && ig_slice_utf8_valid(ig_slice_of(item->path), NULL);
}

ig_status ig_hub_registry_save(const char *path, const ig_hub_items *l, const ig_hub_facts *facts,
                               ig_err *err) {
    size_t n = 0;
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_int(doc, root, "version", VERSION);
    yyjson_mut_val *models = yyjson_mut_obj_add_obj(doc, root, "models");
    for (int i = 0; i < l->n; i++) {
        if (!ig_hub_registry_keeps(&l->v[i])) continue;
        yyjson_mut_val *v = yyjson_mut_obj_add_obj(doc, models, l->v[i].path);
        ig_json_add_bytes(doc, v, "name", l->v[i].name);
        if (l->v[i].repo) ig_json_add_bytes(doc, v, "repo", l->v[i].repo);
        if (l->v[i].commit) ig_json_add_bytes(doc, v, "commit", l->v[i].commit);
        yyjson_mut_obj_add_uint(doc, v, "bytes", l->v[i].bytes);
        yyjson_mut_obj_add_sint(doc, v, "modified_ns", l->v[i].modified_ns);
        ig_json_add_bytes(doc, v, "architecture", facts[i].architecture);
        yyjson_mut_obj_add_real(doc, v, "bits", facts[i].bits);
        yyjson_mut_obj_add_uint(doc, v, "context", facts[i].n_ctx);
        yyjson_mut_obj_add_bool(doc, v, "runs", facts[i].runs);
        if (facts[i].why[0]) ig_json_add_bytes(doc, v, "why", facts[i].why);
    }
    char *text = lost ? NULL : yyjson_mut_write(doc, YYJSON_WRITE_PRETTY, &n);
    yyjson_mut_doc_free(doc);
    if (!text) return ig_fail(err, IG_ELIMIT, "%s: no memory to write %d models", path, l->n);
    ig_status st = ig_file_replace(path, text, n, err);
    free(text);
    return st;
}
