/* snapshot: the folder of a model as hubs serve it, seen as one list of tensors and a few documents.
 * Owns:    the safetensors files (open), config.json (parsed), the list sorted by name.
 * Threads: read-only once open.
 * Memory:  the headers of the files, one pointer a tensor; documents belong to who asked for them.
 * Why config.json is read here: without it a folder of tensors is no model, and everybody needs it.
 * Why every tensor of a shard must be in the index: one that is not is either a leftover of another model
 * or something that the maker of the index did not mean to be read. */
#include "file/inside.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SHARDS_MAX = 512,
    JSON_DEPTH_MAX = 128,
    DOCUMENT_BYTES_MAX = 16 << 20,
    TOKENIZER_BYTES_MAX = 128 << 20
};

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

struct ig_snapshot {
    char *path;
    char shown[IG_SHOWN_PATH_BYTES];
    yyjson_doc *config;
    ig_safetensors **files;
    int n_files;
    const ig_safetensor **tensors;
    int n_tensors;
};

/* ---- documents ----------------------------------------------------------------------------------------- */

static ig_status path_of(char **out, const ig_snapshot *s, const char *name, ig_err *err) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", s->path, name) < 0) return ig_fail(err, IG_ELIMIT, "no memory for a path");
    *out = path;
    return IG_OK;
}

/* A link to nothing is there, too: opening it says what is wrong. */
static bool has(const ig_snapshot *s, const char *name) {
    struct stat info;
    char *path = NULL;
    bool there = path_of(&path, s, name, NULL) == IG_OK && lstat(path, &info) == 0;
    free(path);
    return there;
}

static size_t bytes_max_of(const char *name) {
    return strcmp(name, "tokenizer.json") == 0 ? TOKENIZER_BYTES_MAX : DOCUMENT_BYTES_MAX;
}

ig_status ig_snapshot_text(char **out, size_t *n, const ig_snapshot *s, const char *name, ig_err *err) {
    char *path = NULL;
    ig_status st = path_of(&path, s, name, err);
    if (!st) st = ig_file_slurp(out, n, path, bytes_max_of(name), err);
    /* what is optional may be absent, but not half there: a cache that lost a file says so */
    if (st == IG_ENOTFOUND && has(s, name))
        st = ig_fail(err, IG_EIO, "%s/%s: a link to a file that is not there", s->shown, name);
    free(path);
    return st;
}

ig_status ig_snapshot_json(yyjson_doc **out, const ig_snapshot *s, const char *name, ig_err *err) {
    char *text = NULL;
    size_t n = 0;
    ig_err why = {0};
    ig_status st = ig_snapshot_text(&text, &n, s, name, err);
    if (st) return st;
    st = ig_json_parse(out, text, n, (ig_json_limits){bytes_max_of(name), JSON_DEPTH_MAX}, &why);
    free(text);
    return st ? ig_fail(err, st, "%s/%s: %.300s", s->shown, name, why.msg) : IG_OK;
}

static ig_status read_config(ig_snapshot *s, ig_err *err) {
    ig_status st = ig_snapshot_json(&s->config, s, "config.json", err);
    if (st == IG_ENOTFOUND)
        return ig_fail(err, st, "%s: no config.json: not the folder of a model", s->shown);
    if (st) return st;
    if (!yyjson_is_obj(yyjson_doc_get_root(s->config)))
        return ig_fail(err, IG_EFORMAT, "%s/config.json is not an object", s->shown);
    return IG_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static ig_status open_file(ig_snapshot *s, const char *name, ig_err *err) {
    char *path = NULL;
    ig_status st = path_of(&path, s, name, err);
    if (!st) st = ig_safetensors_open(&s->files[s->n_files], path, err);
    if (!st) s->n_files++;
    if (st == IG_ENOTFOUND && has(s, name))
        st = ig_fail(err, IG_EIO, "%s/%s: a link to a file that is not there", s->shown, name);
    free(path);
    return st;
}

/* A plain name: it can only mean something inside the folder. */
static bool is_plain(yyjson_val *v) {
    const char *p = yyjson_get_str(v);
    size_t n = yyjson_get_len(v);
    return p && n > 0 && n < 256 && p[0] != '.' && !memchr(p, '/', n) && !memchr(p, 0, n);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different names in the map, sorted. *names is malloc'd, the strings are the document's. */
static ig_status shard_names(const char ***names, int *n_names, const ig_snapshot *s, yyjson_val *map,
                             ig_err *err) {
    size_t i, n = yyjson_obj_size(map), n_kept = 0;
    yyjson_val *key, *value;
    if (n == 0) return ig_fail(err, IG_EFORMAT, "%s/%s has no weight_map", s->shown, index_name);
    const char **all = malloc(n * sizeof *all);
    if (!all) return ig_fail(err, IG_ELIMIT, "%s: no memory for %zu names", s->shown, n);
    yyjson_obj_foreach(map, i, n, key, value) {
        if (!is_plain(value)) {
            const ig_slice tensor = {yyjson_get_str(key), yyjson_get_len(key)};
            free(all);
            return ig_fail(err, IG_EFORMAT, "%s/%s: the file of %s is not the name of a file in this folder",
                           s->shown, index_name, ig_file_show(tensor).s);
        }
        all[i] = yyjson_get_str(value);
    }
    qsort(all, n, sizeof *all, by_text);
    for (i = 0; i < n; i++)
        if (i == 0 || strcmp(all[i], all[n_kept - 1]) != 0) all[n_kept++] = all[i];
    if (n_kept > SHARDS_MAX) {
        free(all);
        return ig_fail(err, IG_ELIMIT, "%s/%s: %zu files, limit %d", s->shown, index_name, n_kept,
                       SHARDS_MAX);
    }
    *names = all;
    *n_names = (int)n_kept;
    return IG_OK;
}

static int by_tensor_name(const void *a, const void *b) {
    return ig_file_name_order((*(const ig_safetensor *const *)a)->name,
                              (*(const ig_safetensor *const *)b)->name);
}

static ig_status merge(ig_snapshot *s, ig_err *err) {
    size_t n = 0;
    for (int f = 0; f < s->n_files; f++) n += (size_t)ig_safetensors_n_tensors(s->files[f]);
    s->tensors = malloc((n + 1) * sizeof *s->tensors);
    if (!s->tensors) return ig_fail(err, IG_ELIMIT, "%s: no memory for %zu tensors", s->shown, n);
    for (int f = 0; f < s->n_files; f++)
        for (int i = 0; i < ig_safetensors_n_tensors(s->files[f]); i++)
            s->tensors[s->n_tensors++] = ig_safetensors_tensor_at(s->files[f], i);
    qsort(s->tensors, n, sizeof *s->tensors, by_tensor_name);
    for (size_t i = 1; i < n; i++)
        if (by_tensor_name(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return ig_fail(err, IG_EFORMAT, "%s: tensor %s is in more than one file", s->shown,
                           ig_file_show(s->tensors[i]->name).s);
    return IG_OK;
}

static const char *file_name_of(const ig_safetensor *t) {
    const char *path = ig_safetensors_path(t->file), *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const ig_safetensor *const *find(const ig_snapshot *s, ig_slice name) {
    const ig_safetensor wanted = {.name = name}, *p = &wanted;
    return bsearch(&p, s->tensors, (size_t)s->n_tensors, sizeof p, by_tensor_name);
}

/* Every line of the map is true, and every tensor has its line. */
static ig_status check_map(const ig_snapshot *s, yyjson_val *map, ig_err *err) {
    size_t i, n;
    yyjson_val *key, *value;
    ig_status st = IG_OK;
    bool *named = calloc((size_t)s->n_tensors + 1, sizeof *named);
    if (!named) return ig_fail(err, IG_ELIMIT, "%s: no memory to check the index", s->shown);
    yyjson_obj_foreach(map, i, n, key, value) {
        const ig_slice name = {yyjson_get_str(key), yyjson_get_len(key)};
        const ig_safetensor *const *t = find(s, name);
        if (!t || !yyjson_equals_str(value, file_name_of(*t)))
            st = ig_fail(err, IG_EFORMAT, "%s/%s: tensor %s is not in %.100s", s->shown, index_name,
                         ig_file_show(name).s, yyjson_get_str(value));
        else if (named[t - s->tensors])
            st = ig_fail(err, IG_EFORMAT, "%s/%s: tensor %s is named twice", s->shown, index_name,
                         ig_file_show(name).s);
        else
            named[t - s->tensors] = true;
        if (st) goto out;
    }
    for (int k = 0; k < s->n_tensors; k++) {
        if (named[k]) continue;
        st = ig_fail(err, IG_EFORMAT, "%s/%s does not name tensor %s of %s", s->shown, index_name,
                     ig_file_show(s->tensors[k]->name).s, file_name_of(s->tensors[k]));
        goto out;
    }
out:
    free(named);
    return st;
}

/* What the map says of a file that is not there: how much is lost with it. */
static ig_status shard_missing(const ig_snapshot *s, yyjson_val *map, const char *file, ig_err *err) {
    size_t i, n, n_lost = 0;
    yyjson_val *key, *value;
    ig_slice first = {"", 0};
    yyjson_obj_foreach(map, i, n, key, value) {
        if (!yyjson_equals_str(value, file)) continue;
        if (n_lost++ == 0) first = (ig_slice){yyjson_get_str(key), yyjson_get_len(key)};
    }
    return ig_fail(err, IG_ENOTFOUND, "%s: %.100s is missing, which by %s holds %zu tensors, such as %s",
                   s->shown, file, index_name, n_lost, ig_file_show(first).s);
}

static ig_status open_shards(ig_snapshot *s, ig_err *err) {
    yyjson_doc *index = NULL;
    const char **names = NULL;
    int n_names = 0;
    ig_status st = ig_snapshot_json(&index, s, index_name, err);
    if (st) goto out;
    yyjson_val *map = ig_json_get(yyjson_doc_get_root(index), "weight_map");
    if ((st = shard_names(&names, &n_names, s, map, err))) goto out;
    s->files = calloc((size_t)n_names, sizeof *s->files);
    if (!s->files) {
        st = ig_fail(err, IG_ELIMIT, "%s: no memory for %d files", s->shown, n_names);
        goto out;
    }
    for (int i = 0; i < n_names; i++) {
        if ((st = open_file(s, names[i], err)) == IG_ENOTFOUND) st = shard_missing(s, map, names[i], err);
        if (st) goto out;
    }
    if ((st = merge(s, err))) goto out;
    st = check_map(s, map, err);
out:
    free(names);
    yyjson_doc_free(index);
    return st;
}

/* Weights in a format that is a program: a reader would have to run what somebody put on a page. */
static bool has_pickles(const ig_snapshot *s, char *example, size_t cap) {
    static const char *const ends[] = {".bin", ".pt", ".pth", ".pkl", ".ckpt", ".bin.index.json"};
    bool found = false;
    DIR *d = opendir(s->path);
    if (!d) return false;
    for (struct dirent *e; !found && (e = readdir(d));) {
        const size_t n = strlen(e->d_name);
        for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++) {
            const size_t tail = strlen(ends[i]);
            found = n > tail && strcmp(e->d_name + n - tail, ends[i]) == 0;
        }
        if (found) snprintf(example, cap, "%s", ig_file_show((ig_slice){e->d_name, n}).s);
    }
    closedir(d);
    return found;
}

/* One file beside an index that names others which are there: two models in one folder, or a half download. */
static void warn_of_others(const ig_snapshot *s) {
    yyjson_doc *index = NULL;
    const char **names = NULL;
    int n_names = 0, n_there = 0;
    if (ig_snapshot_json(&index, s, index_name, NULL) != IG_OK) return;
    yyjson_val *map = ig_json_get(yyjson_doc_get_root(index), "weight_map");
    if (shard_names(&names, &n_names, s, map, NULL) == IG_OK)
        for (int i = 0; i < n_names; i++) n_there += strcmp(names[i], single_name) != 0 && has(s, names[i]);
    if (n_there)
        ig_log(IG_LOG_WARN, "snapshot.files folder=\"%s\" taken=%s not_read=%d files_of=%s", s->shown, single_name,
               n_there, index_name);
    free(names);
    yyjson_doc_free(index);
}

static ig_status open_files(ig_snapshot *s, ig_err *err) {
    char example[IG_SHOWN_NAME_BYTES + 4];
    /* one file wins over an index, which may be a leftover: mlx-lm writes one beside a single file, too */
    if (has(s, single_name)) {
        s->files = calloc(1, sizeof *s->files);
        if (!s->files) return ig_fail(err, IG_ELIMIT, "%s: no memory", s->shown);
        ig_status st = open_file(s, single_name, err);
        if (!st) st = merge(s, err);
        if (!st && has(s, index_name)) warn_of_others(s);
        return st;
    }
    if (has(s, index_name)) return open_shards(s, err);
    if (has_pickles(s, example, sizeof example))
        return ig_fail(err, IG_EFORMAT,
                       "%s: %s: pickle files are not read, because reading one runs what is in it. Convert it "
                       "where that is no risk: transformers, save_pretrained(FOLDER, safe_serialization=True)",
                       s->shown, example);
    return ig_fail(err, IG_ENOTFOUND, "%s: neither %s nor %s", s->shown, single_name, index_name);
}

/* ---- the handle ---------------------------------------------------------------------------------------- */

ig_status ig_snapshot_open(ig_snapshot **out, const char *folder, ig_err *err) {
    ig_status st = IG_OK;
    struct stat info;
    ig_snapshot *s = calloc(1, sizeof *s);
    if (s) s->path = strdup(folder);
    if (!s || !s->path) {
        st = ig_fail(err, IG_ELIMIT, "no memory to open a model");
        goto out;
    }
    for (size_t n = strlen(s->path); n > 1 && s->path[n - 1] == '/';) s->path[--n] = 0;
    ig_file_show_path(s->shown, s->path);
    if (stat(s->path, &info) != 0) {
        st = ig_fail(err, errno == ENOENT || errno == ENOTDIR ? IG_ENOTFOUND : IG_EIO, "%s: %s", s->shown,
                     strerror(errno));
        goto out;
    }
    if (!S_ISDIR(info.st_mode)) {
        st = ig_fail(err, IG_EFORMAT, "%s: not a folder", s->shown);
        goto out;
    }
    if ((st = read_config(s, err)) || (st = open_files(s, err))) goto out;
    *out = s;
    s = NULL;
out:
    ig_snapshot_close(s);
    return st;
}

void ig_snapshot_close(ig_snapshot *s) {
    if (!s) return;
    for (int i = 0; i < s->n_files; i++) ig_safetensors_close(s->files[i]);
    free(s->files);
    free(s->tensors);
    yyjson_doc_free(s->config);
    free(s->path);
    free(s);
}

const char *ig_snapshot_path(const ig_snapshot *s) {
    return s->path;
}

uint64_t ig_snapshot_weights_bytes(const ig_snapshot *s) {
    uint64_t n = 0;
    for (int i = 0; i < s->n_files; i++) n += ig_safetensors_file_bytes(s->files[i]);
    return n;
}

int ig_snapshot_n_files(const ig_snapshot *s) {
    return s->n_files;
}

int ig_snapshot_n_tensors(const ig_snapshot *s) {
    return s->n_tensors;
}

const ig_safetensor *ig_snapshot_tensor_at(const ig_snapshot *s, int i) {
    ig_assert(i >= 0 && i < s->n_tensors);
    return s->tensors[i];
}

const ig_safetensor *ig_snapshot_find(const ig_snapshot *s, const char *name) {
    const ig_safetensor *const *t = find(s, ig_slice_of(name));
    return t ? *t : NULL;
}

int ig_snapshot_place(const ig_snapshot *s, const ig_safetensor *t) {
    const ig_safetensor *const *at = find(s, t->name);
    ig_assert(at && *at == t);
    return (int)(at - s->tensors);
}

yyjson_val *ig_snapshot_config(const ig_snapshot *s) {
    return yyjson_doc_get_root(s->config);
}
