/* rm and gc: what goes from the disk, said before it goes.
 * rm asks on a terminal; gc only says what it would do unless --yes. Neither touches what a server serves or
 * what is being downloaded. What could not be removed is told, is not counted and is a failure.
 * Why rm alone wants whole names: a part of a name that was meant for another model costs the others a second
 * try, and rm the model. */
#include "app/library.h"
#include "app/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct removal {
    bool list;
    uint64_t bytes;
    int n, n_failed;
    bool lost; /* no memory for a part of doc */
    yyjson_mut_doc *doc;
    yyjson_mut_val *gone, *kept, *failed;
} removal;

static void on_gone(void *ud, const char *path, uint64_t bytes, const char *why) {
    removal *r = ud;
    r->bytes += bytes;
    r->n++;
    if (r->doc) {
        yyjson_mut_val *o = yyjson_mut_arr_add_obj(r->doc, r->gone);
        ig_json_add_bytes(r->doc, o, "path", path);
        yyjson_mut_obj_add_uint(r->doc, o, "bytes", bytes);
        if (*why) ig_json_add_bytes(r->doc, o, "why", why);
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
    ig_json_add_bytes(r->doc, o, "path", path);
    ig_json_add_bytes(r->doc, o, "why", why);
}

static void on_failed(void *ud, const char *path, const char *why) {
    removal *r = ud;
    r->n_failed++;
    ig_app_say(0, "%s is not removed: %s", path, why);
    if (!r->doc) return;
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(r->doc, r->failed);
    ig_json_add_bytes(r->doc, o, "path", path);
    ig_json_add_bytes(r->doc, o, "why", why);
}

static void begin_json(removal *r) {
    r->doc = ig_json_doc_make(&r->lost);
    yyjson_mut_val *root = yyjson_mut_obj(r->doc);
    yyjson_mut_doc_set_root(r->doc, root);
    r->gone = yyjson_mut_obj_add_arr(r->doc, root, "gone");
    r->kept = yyjson_mut_obj_add_arr(r->doc, root, "kept");
    r->failed = yyjson_mut_obj_add_arr(r->doc, root, "failed");
}

static int end_json(removal *r, bool done) {
    yyjson_mut_val *root = yyjson_mut_doc_get_root(r->doc);
    yyjson_mut_obj_add_uint(r->doc, root, "bytes", r->bytes);
    yyjson_mut_obj_add_bool(r->doc, root, "done", done && !r->n_failed);
    int code = ig_app_print_json(r->doc, r->lost);
    r->doc = NULL;
    return code ? code : r->n_failed ? IG_EXIT_FAILED : IG_EXIT_OK;
}

/* Failures of single files were said one by one, and their summary says nothing new. */
static bool is_fatal(removal *r, ig_status st, const ig_err *err, int *code) {
    if (!st || r->n_failed) return false;
    yyjson_mut_doc_free(r->doc);
    r->doc = NULL;
    *code = ig_app_fail(err);
    return true;
}

/* ---- gc ------------------------------------------------------------------------------------------------ */

int ig_cmd_gc(int argc, char **argv) {
    bool yes = false, dry_run = false, force = false, json = false;
    const char *cache = NULL;
    const ig_option options[] = {
        {"yes", .letter = 'y', .kind = IG_OPT_BOOL, .to = &yes, .typed = true,
         .help = "remove it; without this it is only said"},
        {"dry-run", .kind = IG_OPT_BOOL, .to = &dry_run, .help = "only say it, whatever else is given"},
        {"force", .kind = IG_OPT_BOOL, .to = &force, .typed = true,
         .help = "also revisions that hold files which no other has"},
        {"cache-dir", .kind = IG_OPT_TEXT, .to = &cache, .value = "DIR",
         .help = "instead of the hub's cache"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"},
    };
    const ig_command c = {
        .verb = "gc",
        .words = "",
        .summary = "Finds what nothing uses in the hub's cache: old revisions, blobs without a name, old "
                   "unfinished downloads; and the same beside the models folder.",
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
                             .failed = on_failed,
                             .ud = &r};
    ig_status st = ig_hub_gc(cache ? cache : places.cache, &o, &err);
    if (is_fatal(&r, st, &err, &code)) return code;
    if (!cache && *places.models) st = ig_hub_gc_own(places.models, &o, &err);
    if (is_fatal(&r, st, &err, &code)) return code;
    if (json) return end_json(&r, o.run);
    if (!r.n && r.n_failed)
        return IG_EXIT_FAILED;
    else if (!r.n)
        fprintf(stderr, "nothing to remove\n");
    else
        fprintf(stderr, o.run ? "%s freed\n" : "%s to be freed; ingle gc --yes removes it\n",
                ig_size_text_of(r.bytes).s);
    return r.n_failed ? IG_EXIT_FAILED : IG_EXIT_OK;
}

/* ---- rm ------------------------------------------------------------------------------------------------ */

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

/* Is `arg` the path of this very name, and not only of a file behind it? */
static bool is_path_of(const ig_hub_item *item, const char *arg) {
    struct stat a, b;
    const char *x = strrchr(arg, '/'), *y = strrchr(item->path, '/');
    if (!x || lstat(arg, &a) != 0 || lstat(item->path, &b) != 0) return false;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
           (S_ISDIR(a.st_mode) || (y && strcmp(x, y) == 0)); /* a file may have two names */
}

/* The quantization or the file of org/name:PICK, as `ls` shows it. */
static bool is_picked(const ig_hub_item *item, const ig_hub_name *name) {
    ig_hub_gguf g;
    size_t n = strlen(item->path), m = strlen(name->pick);
    if (!item->repo || strcasecmp(item->repo, name->repo) != 0 || !item->current || !m) return false;
    if (!ig_hub_gguf_of(&g, item->path)) return false;
    return strcasecmp(g.quant, name->pick) == 0 ||
           (n > m && item->path[n - m - 1] == '/' && strcmp(item->path + n - m, name->pick) == 0);
}

/* From the surest to the least sure way to mean an item; each must leave no doubt. */
static bool is_meant(const ig_hub_item *item, const char *arg, const ig_hub_name *name, int way) {
    const size_t n = strlen(arg);
    switch (way) {
    case 0: return strcmp(item->name, arg) == 0;
    case 1: return strncmp(item->name, arg, n) == 0 && strcasecmp(item->name + n, ".gguf") == 0;
    case 2: return ig_library_is_name(item->name, arg);
    case 3: return is_path_of(item, arg);
    default: return name && is_picked(item, name);
    }
}

static int say_unknown(const ig_hub_items *l, const char *arg) {
    enum { SHOWN = 20 };
    int n = 0, last = 0;
    for (int i = 0; i < l->n; i++)
        if (ig_library_has_words(l->v[i].name, arg)) n++, last = i;
    if (n == 1)
        return ig_app_say(
            IG_EXIT_NOT_FOUND,
            "no model is called \"%.200s\", and rm takes no part of a name; did you mean %.300s?", arg,
            l->v[last].name);
    ig_app_say(IG_EXIT_NOT_FOUND,
               n ? "no model is called \"%.200s\", and rm takes no part of a name; did you mean one of these?"
                 : "no model on this machine is called \"%.200s\"; `ingle ls` lists them",
               arg);
    for (int i = 0, shown = 0; i < l->n && n && shown < SHOWN; i++)
        if (ig_library_has_words(l->v[i].name, arg)) ig_app_list_name("", l->v[i].name), shown++;
    return IG_EXIT_NOT_FOUND;
}

/* What `arg` means in whole: its place in the list; *whole: all of its repository. Else -1 and the exit code. */
static int find_whole(const ig_hub_items *l, const char *arg, bool *whole, int *code) {
    ig_hub_name name;
    int at = -1;
    *whole = is_whole(l, arg, &at);
    if (*whole) return at;
    const bool named = ig_hub_name_parse(&name, arg, NULL) == IG_OK;
    for (int way = 0; way < 5; way++) {
        int n = 0;
        for (int i = 0; i < l->n; i++)
            if (!l->v[i].unfinished && is_meant(&l->v[i], arg, named ? &name : NULL, way)) n++, at = i;
        if (n == 1) return at;
        if (n == 0) continue;
        *code = ig_app_say(IG_EXIT_NOT_FOUND, "\"%.200s\" could be any of these; say which", arg);
        for (int i = 0; i < l->n; i++)
            if (!l->v[i].unfinished && is_meant(&l->v[i], arg, named ? &name : NULL, way))
                ig_app_list_name("", l->v[i].name);
        return -1;
    }
    *code = say_unknown(l, arg);
    return -1;
}

static int remove_item(const ig_places *p, const ig_hub_items *l, const char *arg, bool yes, bool json) {
    removal r = {.list = !json};
    ig_err err;
    int code = IG_EXIT_NOT_FOUND, at;
    bool whole;
    if ((at = find_whole(l, arg, &whole, &code)) < 0) return code;
    whole = whole || is_last(l, at);
    const ig_hub_item *item = &l->v[at];
    ig_hub_remove o = {.now_s = (int64_t)time(NULL),
                       .state = *p->state ? p->state : NULL,
                       .gone = on_gone,
                       .kept = on_kept,
                       .failed = on_failed,
                       .ud = &r};
    if (json) begin_json(&r);
    if (is_fatal(&r, ig_hub_rm(p->cache, p->models, item, whole, &o, &err), &err, &code)) return code;
    if (!json) {
        char name[IG_HUB_PATH_BYTES];
        snprintf(name, sizeof name, "%s", whole && item->repo ? item->repo : item->name);
        ig_text_calm(name, false);
        fprintf(stderr, "%s: %s\n", name, ig_size_text_of(r.bytes).s);
    }
    if (!yes && (json || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))) {
        if (json) return end_json(&r, false);
        return ig_app_say(IG_EXIT_USAGE, "nothing was removed; --yes removes it without a question");
    }
    if (!yes && !ig_app_confirm("Remove it?")) return ig_app_say(IG_EXIT_FAILED, "nothing was removed");
    if (json) yyjson_mut_doc_free(r.doc);
    r = (removal){.list = false};
    if (json) begin_json(&r);
    o.run = true;
    if (is_fatal(&r, ig_hub_rm(p->cache, p->models, item, whole, &o, &err), &err, &code)) return code;
    if (json) return end_json(&r, true);
    fprintf(stderr, "%s freed\n", ig_size_text_of(r.bytes).s);
    return r.n_failed ? IG_EXIT_FAILED : IG_EXIT_OK;
}

int ig_cmd_rm(int argc, char **argv) {
    bool yes = false, json = false;
    const ig_option options[] = {
        {"yes", .letter = 'y', .kind = IG_OPT_BOOL, .to = &yes, .typed = true, .help = "do not ask"},
        {"json", .kind = IG_OPT_BOOL, .to = &json, .help = "one JSON object"},
    };
    const ig_command c = {
        .verb = "rm",
        .words = "MODEL",
        .summary = "Removes a model: a whole name as ingle ls shows it, its path, or org/name for all of a "
                   "repository.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1,
        .more =
            "Of a file the ending .gguf may be left out. A part of a name removes nothing. What a server serves\n"
            "or somebody downloads stays."};
    ig_words words;
    ig_places places;
    ig_hub_items l;
    int code;
    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (!words.n) return ig_app_say(IG_EXIT_USAGE, "remove what? `ingle ls` lists the models");
    if ((code = ig_library_check_name(words.v[0]))) return code;
    ig_places_find(&places);
    if ((code = ig_library_list(&l, &places, true))) return code;
    code = remove_item(&places, &l, words.v[0], yes, json);
    ig_hub_items_clear(&l);
    return code;
}
