/* ls and scan: the models on this machine, what they are, and whether they run here.
 * Facts come from headers by way of the registry; scan reads them all anew and says what it could not use. */
#include "app/library.h"
#include "app/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Weights, and something to compute in. The exact answer needs a plan, and that is what `show` makes. */
static bool fits(const ig_hub_item *item, uint64_t usable) {
    return item->bytes + item->bytes / 8 + (64u << 20) <= usable;
}

static int width_of_names(const ig_hub_items *l, const bool *shown) {
    int w = 4;
    for (int i = 0; i < l->n; i++) {
        int n = (int)strlen(l->v[i].name);
        if (shown[i] && n > w) w = n;
    }
    return w > 64 ? 64 : w;
}

static const char *type_of(const ig_hub_item *i) {
    return i->unfinished ? "unfinished" : i->gguf ? "gguf" : "safetensors";
}

static void print_table(const ig_hub_items *l, const ig_hub_facts *facts, const bool *shown) {
    const uint64_t usable = ig_memory_available_bytes() / 4 * 3;
    int w = width_of_names(l, shown);
    bool any = false;
    for (int i = 0; i < l->n; i++) {
        char name[IG_HUB_PATH_BYTES], bits[16] = "", context[24] = "";
        if (!shown[i]) continue;
        if (!any)
            printf("%-*s  %-11s  %9s  %5s  %8s  %s\n", w, "model", "type", "size", "bits", "context", "fits");
        any = true;
        snprintf(name, sizeof name, "%s", l->v[i].name);
        ig_text_calm(name, false);
        if (facts[i].bits > 0) snprintf(bits, sizeof bits, "%.1f", facts[i].bits);
        if (facts[i].n_ctx) snprintf(context, sizeof context, "%" PRIu64, facts[i].n_ctx);
        printf("%-*s  %-11s  %9s  %5s  %8s  %s\n", w, name, type_of(&l->v[i]),
               ig_size_text_of(l->v[i].bytes).s, bits, context,
               l->v[i].unfinished       ? "no, ingle get goes on with it"
               : !facts[i].runs         ? "no, ingle show says why"
               : fits(&l->v[i], usable) ? "yes"
                                        : "no, too large");
    }
}

static int print_json(const ig_hub_items *l, const ig_hub_facts *facts, const bool *shown) {
    const uint64_t usable = ig_memory_available_bytes() / 4 * 3;
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_arr(doc);
    yyjson_mut_doc_set_root(doc, root);
    for (int i = 0; i < l->n; i++) {
        if (!shown[i]) continue;
        yyjson_mut_val *o = yyjson_mut_arr_add_obj(doc, root);
        ig_json_add_bytes(doc, o, "name", l->v[i].name);
        ig_json_add_bytes(doc, o, "path", l->v[i].path);
        yyjson_mut_obj_add_str(doc, o, "type", type_of(&l->v[i]));
        yyjson_mut_obj_add_bool(doc, o, "unfinished", l->v[i].unfinished);
        if (l->v[i].repo) ig_json_add_bytes(doc, o, "repo", l->v[i].repo);
        if (l->v[i].commit) ig_json_add_bytes(doc, o, "commit", l->v[i].commit);
        yyjson_mut_obj_add_bool(doc, o, "current", l->v[i].current);
        yyjson_mut_obj_add_uint(doc, o, "bytes", l->v[i].bytes);
        ig_json_add_bytes(doc, o, "architecture", facts[i].architecture);
        yyjson_mut_obj_add_real(doc, o, "bits", facts[i].bits);
        yyjson_mut_obj_add_uint(doc, o, "context", facts[i].n_ctx);
        yyjson_mut_obj_add_bool(doc, o, "runs", facts[i].runs);
        yyjson_mut_obj_add_bool(doc, o, "fits", facts[i].runs && fits(&l->v[i], usable));
        if (facts[i].why[0]) ig_json_add_bytes(doc, o, "why", facts[i].why);
    }
    return ig_app_print_json(doc, lost);
}

static void say_nothing_there(const ig_hub_items *l, const ig_places *p) {
    char models[sizeof p->models];
    snprintf(models, sizeof models, "%s", p->models);
    ig_text_calm(models, false);
    if (l->n)
        fprintf(stderr, "no model has these words in its name\n");
    else if (*models && !*l->warning)
        fprintf(stderr, "no models yet: ingle get org/name downloads one, or put files into %s\n", models);
    else if (!*l->warning)
        ig_app_say(0, "no models yet, and no folder for them: neither INGLE_CACHE nor HOME is set");
}

int ig_cmd_ls(int argc, char **argv) {
    bool json = false, all_revisions = false;
    const ig_option options[] = {
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "a JSON array"},
        {"all-revisions", .kind = IG_OPT_BOOL, .to = &all_revisions,
         .help = "also those that were replaced by newer ones"},
    };
    const ig_command c = {.verb = "ls",
                          .words = "[WORDS]",
                          .summary = "The models on this machine.",
                          .options = options,
                          .n_options = sizeof options / sizeof *options,
                          .n_words_max = 8,
                          .more = "WORDS: parts of a name, all of them in any case; exit code 3 when no model has them.\n"
                                  "bits: of the whole file, for each weight. context: tokens, as the model was trained."};
    ig_words words;
    ig_places places;
    ig_hub_items l;
    ig_err unsaved; /* that costs the next ls the time that this one took, and nothing else */
    int code, n_shown = 0;
    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    ig_places_find(&places);
    if ((code = ig_library_list(&l, &places, all_revisions))) return code;
    ig_hub_facts *facts = ig_library_facts(&l, &places, false, &unsaved);
    bool *shown = calloc((size_t)l.n + 1, sizeof *shown);
    for (int i = 0; i < l.n && shown; i++) {
        shown[i] = true;
        for (int k = 0; k < words.n; k++)
            shown[i] = shown[i] && ig_library_has_words(l.v[i].name, words.v[k]);
        n_shown += shown[i];
    }
    if (!facts || !shown)
        code = ig_app_say(IG_EXIT_FAILED, "no memory");
    else if (json)
        code = print_json(&l, facts, shown);
    else if (n_shown)
        print_table(&l, facts, shown);
    else
        say_nothing_there(&l, &places);
    if (!code && words.n && !n_shown) code = IG_EXIT_NOT_FOUND;
    if (!code && *l.warning) code = IG_EXIT_FAILED; /* said already: the list is not whole */
    free(shown);
    free(facts);
    ig_hub_items_clear(&l);
    return code;
}

int ig_cmd_scan(int argc, char **argv) {
    bool json = false;
    const ig_option options[] = {{"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"}};
    const ig_command c = {.verb = "scan",
                          .words = "",
                          .summary = "Looks at every model file anew and writes the registry.",
                          .options = options,
                          .n_options = 1,
                          .n_words_max = 0};
    ig_words words;
    ig_places places;
    ig_hub_items l;
    ig_err unsaved;
    int code, n_run = 0;
    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    ig_places_find(&places);
    if ((code = ig_library_list(&l, &places, true))) return code;
    ig_hub_facts *facts = ig_library_facts(&l, &places, true, &unsaved);
    if (!facts) {
        ig_hub_items_clear(&l);
        return ig_app_say(IG_EXIT_FAILED, "no memory");
    }
    for (int i = 0; i < l.n; i++) {
        n_run += facts[i].runs;
        if (!facts[i].runs) ig_app_say(0, "%s does not run: %s", l.v[i].name, facts[i].why);
    }
    if (json) {
        bool lost;
        yyjson_mut_doc *doc = ig_json_doc_make(&lost);
        yyjson_mut_val *root = yyjson_mut_obj(doc);
        yyjson_mut_doc_set_root(doc, root);
        yyjson_mut_obj_add_int(doc, root, "models", l.n);
        yyjson_mut_obj_add_int(doc, root, "run", n_run);
        yyjson_mut_obj_add_int(doc, root, "skipped", l.n - n_run);
        code = ig_app_print_json(doc, lost);
    } else {
        printf("%d model%s: %d run%s, %d do%s not\n", l.n, l.n == 1 ? "" : "s", n_run, n_run == 1 ? "s" : "",
               l.n - n_run, l.n - n_run == 1 ? "es" : "");
    }
    const bool cut = *l.warning; /* said already */
    free(facts);
    ig_hub_items_clear(&l);
    if (unsaved.code) return ig_app_fail(&unsaved);
    return cut ? IG_EXIT_FAILED : code;
}
