/* rm and gc: what goes from the disk, said before it goes.
 * rm asks on a terminal; gc only says what it would do unless --yes. Neither touches what a server serves or
 * what is being downloaded. */
#include "app/library.h"
#include "file/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

typedef struct removal {
    bool json, print, list;
    uint64_t bytes;
    int n;
    yyjson_mut_doc *doc;
    yyjson_mut_val *gone, *kept;
} removal;

static void on_gone(void *ud, const char *path, uint64_t bytes, const char *why) {
    removal *r = ud;
    r->bytes += bytes;
    r->n++;
    if (r->doc) {
        yyjson_mut_val *o = yyjson_mut_arr_add_obj(r->doc, r->gone);
        yyjson_mut_obj_add_strcpy(r->doc, o, "path", path);
        yyjson_mut_obj_add_uint(r->doc, o, "bytes", bytes);
        if (*why) yyjson_mut_obj_add_strcpy(r->doc, o, "why", why);
    } else if (r->list) {
        char text[4096];
        snprintf(text, sizeof text, "%s", path);
        ig_text_calm(text, false);
        printf("%9s  %s%s%s\n", bytes ? ig_size_text_of(bytes).s : "", text, *why ? ": " : "", why);
    }
}

static void on_kept(void *ud, const char *path, const char *why) {
    removal *r = ud;
    if (!r->doc) {
        ig_app_say(0, "%s stays: %s", path, why);
        return;
    }
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(r->doc, r->kept);
    yyjson_mut_obj_add_strcpy(r->doc, o, "path", path);
    yyjson_mut_obj_add_strcpy(r->doc, o, "why", why);
}

static void begin_json(removal *r) {
    r->doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(r->doc);
    yyjson_mut_doc_set_root(r->doc, root);
    r->gone = yyjson_mut_obj_add_arr(r->doc, root, "gone");
    r->kept = yyjson_mut_obj_add_arr(r->doc, root, "kept");
}

static int end_json(removal *r, bool done) {
    yyjson_mut_val *root = yyjson_mut_doc_get_root(r->doc);
    yyjson_mut_obj_add_uint(r->doc, root, "bytes", r->bytes);
    yyjson_mut_obj_add_bool(r->doc, root, "done", done);
    char *text = yyjson_mut_write(r->doc, YYJSON_WRITE_PRETTY, NULL);
    yyjson_mut_doc_free(r->doc);
    r->doc = NULL;
    if (!text) return ig_app_say(IG_EXIT_FAILED, "no memory, or a path that is no UTF-8");
    puts(text);
    free(text);
    return IG_EXIT_OK;
}

/* ---- gc ------------------------------------------------------------------------------------------------ */

int ig_cmd_gc(int argc, char **argv) {
    bool yes = false, dry_run = false, force = false, json = false;
    const char *cache = NULL;
    const ig_option options[] = {
        {"yes", .letter = 'y', .kind = IG_OPT_BOOL, .to = &yes,
         .help = "remove it; without this it is only said"},
        {"dry-run", .kind = IG_OPT_BOOL, .to = &dry_run, .help = "only say it, whatever else is given"},
        {"force", .kind = IG_OPT_BOOL, .to = &force,
         .help = "also revisions that hold files which no other has"},
        {"cache-dir", .kind = IG_OPT_TEXT, .to = &cache, .value = "DIR",
         .help = "instead of the hub's cache"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"},
    };
    const ig_command c = {
        .verb = "gc",
        .words = "",
        .summary = "Finds what nothing uses in the hub's cache: old revisions, blobs without a name, old "
                   "unfinished downloads.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 0};
    ig_words words;
    ig_places places;
    removal r = {.list = true};
    ig_err err;
    int code;
    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    ig_places_find(&places);
    if (json) begin_json(&r);
    const ig_hub_remove o = {.run = yes && !dry_run,
                             .force = force,
                             .now_s = (int64_t)time(NULL),
                             .state = *places.state ? places.state : NULL,
                             .gone = on_gone,
                             .kept = on_kept,
                             .ud = &r};
    if (ig_hub_gc(cache ? cache : places.cache, &o, &err)) {
        yyjson_mut_doc_free(r.doc);
        return ig_app_fail(&err);
    }
    if (json) return end_json(&r, o.run);
    if (!r.n)
        fprintf(stderr, "nothing to remove\n");
    else
        fprintf(stderr, o.run ? "%s freed\n" : "%s to be freed; ingle gc --yes removes it\n",
                ig_size_text_of(r.bytes).s);
    return IG_EXIT_OK;
}

/* ---- rm ------------------------------------------------------------------------------------------------ */

static bool is_agreed(void) {
    char answer[64];
    fprintf(stderr, "Remove it? [y/N] ");
    fflush(stderr);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* The repository goes whole with its last model. */
static bool is_last(const ig_hub_items *l, int at) {
    for (int i = 0; i < l->n; i++)
        if (i != at && l->v[at].repo && l->v[i].repo && strcmp(l->v[i].repo, l->v[at].repo) == 0)
            return false;
    return true;
}

/* org/name where that holds several: all of them. */
static bool is_whole(const ig_hub_items *l, const char *arg, int *at) {
    ig_hub_name name;
    if (ig_hub_name_parse(&name, arg, NULL) || *name.pick) return false;
    for (int i = 0; i < l->n; i++)
        if (l->v[i].repo && strcasecmp(l->v[i].repo, name.repo) == 0) {
            *at = i;
            return true;
        }
    return false;
}

static int remove_item(const ig_places *p, const ig_hub_items *l, const char *arg, bool yes, bool json) {
    removal r = {.list = !json};
    ig_err err;
    int code, at = -1;
    bool whole = is_whole(l, arg, &at);
    if (!whole && (at = ig_library_find(l, arg, &code)) < 0) return code;
    whole = whole || is_last(l, at);
    const ig_hub_item *item = &l->v[at];
    ig_hub_remove o = {.now_s = (int64_t)time(NULL),
                       .state = *p->state ? p->state : NULL,
                       .gone = on_gone,
                       .kept = on_kept,
                       .ud = &r};
    if (json) begin_json(&r);
    if (ig_hub_rm(p->cache, p->models, item, whole, &o, &err)) {
        yyjson_mut_doc_free(r.doc);
        return ig_app_fail(&err);
    }
    if (!json)
        fprintf(stderr, "%s: %s\n", whole && item->repo ? item->repo : item->name,
                ig_size_text_of(r.bytes).s);
    if (!yes && (json || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))) {
        if (json) return end_json(&r, false);
        return ig_app_say(IG_EXIT_USAGE, "nothing was removed; --yes removes it without a question");
    }
    if (!yes && !is_agreed()) return ig_app_say(IG_EXIT_FAILED, "nothing was removed");
    if (json) yyjson_mut_doc_free(r.doc);
    r = (removal){.list = false};
    if (json) begin_json(&r);
    o.run = true;
    if (ig_hub_rm(p->cache, p->models, item, whole, &o, &err)) {
        yyjson_mut_doc_free(r.doc);
        return ig_app_fail(&err);
    }
    if (json) return end_json(&r, true);
    fprintf(stderr, "%s freed\n", ig_size_text_of(r.bytes).s);
    return IG_EXIT_OK;
}

int ig_cmd_rm(int argc, char **argv) {
    bool yes = false, json = false;
    const ig_option options[] = {
        {"yes", .letter = 'y', .kind = IG_OPT_BOOL, .to = &yes, .help = "do not ask"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"},
    };
    const ig_command c = {
        .verb = "rm",
        .words = "MODEL",
        .summary = "Removes a model: a name as ingle ls shows it, or org/name for all of a repository.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1};
    ig_words words;
    ig_places places;
    ig_hub_items l;
    int code;
    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (!words.n) return ig_app_say(IG_EXIT_USAGE, "remove what? `ingle ls` lists the models");
    ig_places_find(&places);
    if ((code = ig_library_list(&l, &places, true))) return code;
    code = remove_item(&places, &l, words.v[0], yes, json);
    ig_hub_items_clear(&l);
    return code;
}
