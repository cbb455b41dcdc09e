/* get: fetches a model from a hub into the cache that Python's programs share.
 * Output:  the path of what was fetched on stdout, so that a script can go on with it; everything else on
 *          stderr. With --json stdout has one object a line: plan, progress, note, file, done or error.
 * End:     Ctrl-C and every failure keep what came; the same command goes on from there. */
#include "app/library.h"
#include "app/load.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct get {
    ig_hub_config c;
    ig_hub_name name;
    ig_hub_repo repo;
    ig_hub_choice choice;
    const char *revision;
    ig_option_list include, exclude;
    int n_jobs;
    bool force, verify, dry_run, json, quiet; /* quiet: nothing on stdout */
    bool ask;                                 /* before anything is fetched */
    bool tty, line;                           /* line: a progress line stands on the terminal */
    const char *own_cache;                    /* --cache-dir, or NULL */
} get;

/* ---- what is said -------------------------------------------------------------------------------------- */

static void print_object(yyjson_mut_doc *doc) {
    char *text = yyjson_mut_write(doc, 0, NULL);
    if (text) puts(text);
    fflush(stdout);
    free(text);
    yyjson_mut_doc_free(doc);
}

static yyjson_mut_doc *object(const char *event, yyjson_mut_val **root) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, *root);
    yyjson_mut_obj_add_str(doc, *root, "event", event);
    return doc;
}

static void end_line(get *g) {
    if (g->line) fprintf(stderr, "\r\33[K");
    g->line = false;
}

static int columns(void) {
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 20 ? w.ws_col : 80;
}

/* "1:05", "2:03:00"; "" when nobody can say. */
static void write_eta(char *out, size_t cap, const ig_hub_event *e) {
    out[0] = 0;
    if (e->bytes_per_s < 1) return;
    double s = (double)(e->total_bytes - e->done_bytes) / e->bytes_per_s;
    if (s >= 360000) return;
    int t = (int)s;
    if (t >= 3600)
        snprintf(out, cap, "  %d:%02d:%02d left", t / 3600, t / 60 % 60, t % 60);
    else
        snprintf(out, cap, "  %d:%02d left", t / 60, t % 60);
}

static void show_line(get *g, const ig_hub_event *e) {
    char right[160], eta[32], name[200];
    write_eta(eta, sizeof eta, e);
    int percent = e->total_bytes ? (int)(100.0 * (double)e->done_bytes / (double)e->total_bytes) : 100;
    int n =
        snprintf(right, sizeof right, "%3d %%  %s of %s  %s/s%s", percent, ig_size_text_of(e->done_bytes).s,
                 ig_size_text_of(e->total_bytes).s, ig_size_text_of((uint64_t)e->bytes_per_s).s, eta);
    int room = columns() - 1 - n - 2;
    const char *file = e->file ? e->file : "finishing", *slash = strrchr(file, '/');
    if (slash) file = slash + 1;
    if (room > 40) room = 40;
    snprintf(name, sizeof name, "%s", file);
    ig_text_calm(name, false);
    if (room < 8)
        fprintf(stderr, "\r\33[K%.*s", columns() - 1, right);
    else if ((int)strlen(name) > room)
        fprintf(stderr, "\r\33[K%.*s...%s  %s", room / 2 - 2, name,
                name + strlen(name) - (size_t)(room - room / 2 - 1), right);
    else
        fprintf(stderr, "\r\33[K%-*s  %s", room, name, right);
    g->line = true;
}

static void print_event(const ig_hub_event *e) {
    static const char *const names[] = {"progress", "note", "file"};
    yyjson_mut_val *o;
    yyjson_mut_doc *doc = object(names[e->kind], &o);
    if (e->file) ig_json_add_bytes(doc, o, "file", e->file);
    if (e->file) yyjson_mut_obj_add_uint(doc, o, "file_bytes", e->file_bytes);
    if (e->text) ig_json_add_bytes(doc, o, "text", e->text);
    if (e->kind == IG_HUB_EVENT_PROGRESS) {
        yyjson_mut_obj_add_uint(doc, o, "done_bytes", e->done_bytes);
        yyjson_mut_obj_add_uint(doc, o, "total_bytes", e->total_bytes);
        yyjson_mut_obj_add_int(doc, o, "done_files", e->done_files);
        yyjson_mut_obj_add_int(doc, o, "total_files", e->total_files);
        yyjson_mut_obj_add_real(doc, o, "bytes_per_s", e->bytes_per_s);
    }
    print_object(doc);
}

static void on_event(void *ud, const ig_hub_event *e) {
    get *g = ud;
    if (g->json) print_event(e);
    if (e->kind == IG_HUB_EVENT_PROGRESS) {
        if (g->tty && !g->json) show_line(g, e);
        return;
    }
    end_line(g);
    if (e->kind == IG_HUB_EVENT_NOTE) {
        fprintf(stderr, "  %s\n", e->text);
    } else if (!g->json) {
        char name[256];
        snprintf(name, sizeof name, "%s", e->file);
        ig_text_calm(name, false);
        fprintf(stderr, "  %s  %s\n", name, ig_size_text_of(e->file_bytes).s);
    }
}

static void on_note(void *ud, const char *text) {
    on_event(ud, &(ig_hub_event){.kind = IG_HUB_EVENT_NOTE, .text = text});
}

static int fail(get *g, const ig_err *err) {
    yyjson_mut_val *o;
    int code = ig_exit_of(err->code);
    end_line(g);
    if (err->code == IG_ECANCELED) {
        code = ig_exit_of_signal(ig_signal_seen ? ig_signal_seen : SIGINT);
        ig_app_say(code, "stopped; what came is kept, and the same command goes on from there");
    } else {
        ig_app_fail(err);
    }
    if (g->json) {
        yyjson_mut_doc *doc = object("error", &o);
        yyjson_mut_obj_add_int(doc, o, "exit", code);
        ig_json_add_bytes(doc, o, "message", err->code == IG_ECANCELED ? "stopped" : err->msg);
        print_object(doc);
    }
    return code;
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static void print_variants(const get *g) {
    for (int i = 0; i < g->choice.n_variants; i++) {
        const ig_hub_variant *v = &g->choice.variant[i];
        char name[256];
        snprintf(name, sizeof name, "%s", *v->quant ? v->quant : v->path);
        ig_text_calm(name, false);
        fprintf(stderr, "  %c %-12s %9s", v->taken ? '*' : ' ', name, ig_size_text_of(v->bytes).s);
        if (v->n_files > 1) fprintf(stderr, "  in %d files", v->n_files);
        fprintf(stderr, "\n");
    }
}

static void say_choice(const get *g) {
    if (!g->choice.by_default) return;
    for (int i = 0; i < g->choice.n_variants; i++)
        if (g->choice.variant[i].taken)
            fprintf(stderr, "%s holds the model %d times; * is taken. Another: ingle get %s:%s\n",
                    g->repo.name, g->choice.n_variants, g->repo.name,
                    g->choice.variant[i ? 0 : 1].quant[0] ? g->choice.variant[i ? 0 : 1].quant
                                                          : g->choice.variant[i ? 0 : 1].path);
    print_variants(g);
}

static void print_plan(get *g, uint64_t missing, int n_missing) {
    yyjson_mut_val *o;
    if (!g->json) {
        if (g->dry_run)
            for (int i = 0; i < g->repo.n; i++) {
                char path[IG_HUB_PATH_BYTES];
                snprintf(path, sizeof path, "%s", g->repo.v[i].path);
                ig_text_calm(path, false);
                if (g->repo.v[i].wanted) printf("%9s  %s\n", ig_size_text_of(g->repo.v[i].bytes).s, path);
            }
        fprintf(stderr, "%s, commit %.12s: %d file%s, %s", g->repo.name, g->repo.commit, g->choice.n_files,
                g->choice.n_files == 1 ? "" : "s", ig_size_text_of(g->choice.bytes).s);
        if (n_missing == 0 && !g->force)
            fprintf(stderr, "; all of it is here\n");
        else if (strcmp(ig_size_text_of(missing).s, ig_size_text_of(g->choice.bytes).s) != 0 && !g->force)
            fprintf(stderr, "; %s to fetch\n", ig_size_text_of(missing).s);
        else
            fprintf(stderr, "\n");
        return;
    }
    yyjson_mut_doc *doc = object("plan", &o);
    ig_json_add_bytes(doc, o, "repo", g->repo.name);
    ig_json_add_bytes(doc, o, "revision", g->repo.revision);
    yyjson_mut_obj_add_str(doc, o, "commit", g->repo.commit);
    yyjson_mut_obj_add_uint(doc, o, "bytes", g->choice.bytes);
    yyjson_mut_obj_add_uint(doc, o, "missing_bytes", missing);
    yyjson_mut_val *files = yyjson_mut_obj_add_arr(doc, o, "files");
    for (int i = 0; i < g->repo.n; i++) {
        if (!g->repo.v[i].wanted) continue;
        yyjson_mut_val *f = yyjson_mut_arr_add_obj(doc, files);
        ig_json_add_bytes(doc, f, "path", g->repo.v[i].path);
        yyjson_mut_obj_add_uint(doc, f, "bytes", g->repo.v[i].bytes);
        yyjson_mut_obj_add_str(doc, f, "hash", g->repo.v[i].hash);
    }
    yyjson_mut_val *variants = yyjson_mut_obj_add_arr(doc, o, "quantizations");
    for (int i = 0; i < g->choice.n_variants; i++) {
        const ig_hub_variant *v = &g->choice.variant[i];
        yyjson_mut_val *f = yyjson_mut_arr_add_obj(doc, variants);
        ig_json_add_bytes(doc, f, "name", v->quant);
        ig_json_add_bytes(doc, f, "path", v->path);
        yyjson_mut_obj_add_uint(doc, f, "bytes", v->bytes);
        yyjson_mut_obj_add_bool(doc, f, "taken", v->taken);
    }
    print_object(doc);
}

static int print_done(get *g) {
    yyjson_mut_val *o;
    char *path = ig_hub_snapshot_path(g->c.cache, &g->repo, g->choice.gguf);
    if (!path) return ig_app_say(IG_EXIT_FAILED, "no memory");
    if (g->json) {
        yyjson_mut_doc *doc = object("done", &o);
        ig_json_add_bytes(doc, o, "path", path);
        print_object(doc);
    } else if (!g->quiet) {
        puts(path);
    }
    /* Patterns may have left the weights out, and another cache is not looked into for a name. */
    if (g->tty && !g->json && !g->quiet && !g->include.n && !g->exclude.n) {
        if (g->own_cache)
            fprintf(stderr, "ready: ingle chat '%s'\n", path);
        else
            fprintf(stderr, "ready: ingle chat %s%s%s\n", g->repo.name, *g->name.pick ? ":" : "", g->name.pick);
    }
    free(path);
    return IG_EXIT_OK;
}

static int run(get *g) {
    ig_err err;
    uint64_t missing;
    int n_missing, code;
    const ig_hub_want want = {.pick = g->name.pick,
                              .include = g->include.n ? g->include.v : NULL,
                              .exclude = g->exclude.n ? g->exclude.v : NULL};
    const ig_hub_fetch fetch = {
        .n_jobs = g->n_jobs, .force = g->force, .verify = g->verify, .event = on_event, .ud = g};
    g->tty = isatty(STDERR_FILENO);
    g->c.stop = &ig_signal_seen;
    ig_signals_note();
    signal(SIGPIPE, SIG_IGN); /* a server that left is an answer from send */
    if (ig_hub_repo_ask(&g->repo, &g->c, g->name.repo, g->revision, on_note, g, &err)) return fail(g, &err);
    if (ig_hub_choose(&g->choice, &g->repo, &want, &err)) {
        code = fail(g, &err);
        if (err.code == IG_ENOTFOUND && g->choice.n_variants) {
            fprintf(stderr, "there are, as in ingle get %s:%s\n", g->repo.name,
                    *g->choice.variant[0].quant ? g->choice.variant[0].quant : g->choice.variant[0].path);
            print_variants(g);
        }
        return code;
    }
    ig_hub_missing(&missing, &n_missing, &g->c, &g->repo);
    if (!g->json) say_choice(g);
    print_plan(g, missing, n_missing);
    if (g->dry_run) return IG_EXIT_OK;
    if (g->ask && n_missing && !ig_app_confirm("Download it?"))
        return ig_app_say(IG_EXIT_NOT_FOUND, "not downloaded");
    ig_status st = ig_hub_fetch_run(&g->c, &g->repo, &fetch, &err);
    end_line(g);
    return st ? fail(g, &err) : print_done(g);
}

/* A word without a slash is a model that is here already: a newer one is asked for. */
static int find_name(get *g, const char *arg) {
    ig_places places;
    ig_hub_items l;
    ig_err err;
    int code, found = -1;
    bool several = false;
    if ((code = ig_library_check_name(arg))) return code;
    if (strchr(arg, '/')) return ig_hub_name_parse(&g->name, arg, &err) ? ig_app_fail(&err) : IG_EXIT_OK;
    ig_places_find(&places);
    if ((code = ig_library_list(&l, &places, false))) return code;
    for (int i = 0; i < l.n; i++) {
        if (!l.v[i].repo || !ig_library_has_words(l.v[i].name, arg)) continue;
        several = several || (found >= 0 && strcmp(l.v[i].repo, l.v[found].repo) != 0);
        found = i;
    }
    if (found >= 0 && !several)
        code = ig_hub_name_parse(&g->name, l.v[found].name, &err) ? ig_app_fail(&err) : IG_EXIT_OK;
    else
        code = ig_app_say(
            IG_EXIT_NOT_FOUND,
            several ? "\"%.200s\" could be any of these; say more of the name"
                    : "nothing here is called \"%.200s\", and a hub's name has two parts: ingle get ORG/NAME",
            arg);
    for (int i = 0; i < l.n && several; i++)
        if (l.v[i].repo && ig_library_has_words(l.v[i].name, arg)) ig_app_list_name("", l.v[i].name);
    ig_hub_items_clear(&l);
    return code;
}

static void clear(get *g) {
    explicit_bzero(g->c.token, sizeof g->c.token);
    ig_hub_choice_clear(&g->choice);
    ig_hub_repo_clear(&g->repo);
}

int ig_get(const char *name) {
    get g = {.revision = "main", .n_jobs = 4, .quiet = true, .ask = true};
    ig_err err;
    if (ig_hub_config_init(&g.c, &err)) return ig_app_fail(&err);
    int code = find_name(&g, name);
    if (!code) code = run(&g);
    clear(&g);
    return code;
}

int ig_cmd_get(int argc, char **argv) {
    get g = {.revision = "main", .n_jobs = 4};
    const char *cache = NULL;
    double wait_s = 1;
    ig_err err;
    if (ig_hub_config_init(&g.c, &err)) return ig_app_fail(&err);
    const ig_option options[] = {
        {"revision", .kind = IG_OPT_TEXT, .to = &g.revision, .value = "NAME",
         .help = "a branch, a tag or a commit"},
        {"include", .kind = IG_OPT_LIST, .to = &g.include, .value = "PATTERN",
         .help = "these files, as '*.gguf'; repeatable"},
        {"exclude", .kind = IG_OPT_LIST, .to = &g.exclude, .value = "PATTERN",
         .help = "but not these; repeatable"},
        {"cache-dir", .kind = IG_OPT_TEXT, .to = &cache, .value = "DIR",
         .help = "instead of the hub's cache"},
        {"jobs", .letter = 'j', .kind = IG_OPT_INT, .to = &g.n_jobs, .min = 1, .max = 32, .value = "N",
         .help = "files at once"},
        {"force", .kind = IG_OPT_BOOL, .to = &g.force, .help = "fetch also what is here already"},
        {"verify", .kind = IG_OPT_BOOL, .to = &g.verify,
         .help = "read what is here already, and fetch again what is damaged"},
        {"dry-run", .kind = IG_OPT_BOOL, .to = &g.dry_run, .help = "say what would be fetched"},
        {"json", .kind = IG_OPT_BOOL, .to = &g.json, .help = "one JSON object a line"},
        {"retries", .kind = IG_OPT_INT, .to = &g.c.retries, .min = 0, .max = 100, .value = "N",
         .help = "failures in a row before giving up"},
        {"retry-wait", .kind = IG_OPT_REAL, .to = &wait_s, .min = 0, .max = 60, .value = "S",
         .help = "seconds before the first retry; doubles, up to 16 times that"},
        {"timeout", .kind = IG_OPT_INT, .to = &g.c.timeout_s, .min = 1, .max = 3600, .value = "S",
         .help = "seconds without a byte after which a connection is given up"},
    };
    const ig_command c = {
        .verb = "get",
        .words = "ORG/NAME[:FILE|:QUANT]",
        .summary = "Downloads a model from a hub, whole and checked, or goes on with a download.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1,
        .more =
            "A repository of GGUF files holds a model many times; :Q8_0 says which, else Q4_K_M is taken.\n"
            "The hub is HF_ENDPOINT [https://huggingface.co]; HF_TOKEN opens what is private or gated. Files go\n"
            "to HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub, as Python's programs have them."};
    ig_words words;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (!words.n) return ig_app_say(IG_EXIT_USAGE, "get what? ingle get org/name, or org/name:Q4_K_M");
    if (cache && (!*cache || (size_t)snprintf(g.c.cache, sizeof g.c.cache, "%s", cache) >= sizeof g.c.cache))
        return ig_app_say(IG_EXIT_USAGE, "--cache-dir is empty or longer than %zu bytes",
                          sizeof g.c.cache - 1);
    g.c.retry_wait_s = wait_s;
    g.own_cache = cache;
    code = find_name(&g, words.v[0]);
    if (!code) code = run(&g);
    clear(&g);
    return code;
}
