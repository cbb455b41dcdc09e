/* repo: what the hub says of a repository, as a list of files that can be believed in form.
 * Threads: any. Memory: malloc, at most FILES_MAX files; the JSON is bounded before it is parsed.
 * Why a pure function: these bytes come from a server, and every path, size and hash will be acted on.
 * tests/fuzz/fuzz_hub.c is its door. */
#include "hub/inside.h"

#include "file/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 100000, JSON_BYTES_MAX = 32 << 20, JSON_DEPTH_MAX = 32, ASK_MAX_S = 300, URL_MAX = 8192 };
static const uint64_t file_bytes_max = (uint64_t)1 << 46; /* FILES_MAX of them still fit in 63 bits */

static ig_slice text_of(yyjson_val *v) {
    return yyjson_is_str(v) ? (ig_slice){yyjson_get_str(v), yyjson_get_len(v)} : (ig_slice){NULL, 0};
}

/* For messages: a path that may be anything, cut. */
static int shown(ig_slice s) {
    return s.n > 120 ? 120 : (int)s.n;
}

static ig_status read_file(ig_hub_file *f, yyjson_val *v, ig_err *err) {
    ig_slice path = text_of(ig_json_get(v, "rfilename"));
    yyjson_val *lfs = ig_json_get(v, "lfs");
    ig_slice hash = text_of(lfs ? ig_json_get(lfs, "sha256") : ig_json_get(v, "blobId"));
    yyjson_val *size = ig_json_get(lfs ? lfs : v, "size");
    if (!path.p || !ig_hub_path_good(path))
        return ig_fail(err, IG_EFORMAT, "the hub names a file \"%.*s\", which is no path inside a repository",
                       shown(path), path.p ? path.p : "");
    if (!hash.p || !ig_hub_hash_good(hash) || (lfs && hash.n != 64) || (!lfs && hash.n != 40))
        return ig_fail(err, IG_EFORMAT, "%.*s: the hub gives no checksum of it", shown(path), path.p);
    if (!yyjson_is_uint(size) || yyjson_get_uint(size) > file_bytes_max)
        return ig_fail(err, IG_EFORMAT, "%.*s: its size is no number of bytes up to %" PRIu64, shown(path),
                       path.p, file_bytes_max);
    f->path = strndup(path.p, path.n);
    if (!f->path) return ig_fail(err, IG_ELIMIT, "no memory");
    f->bytes = yyjson_get_uint(size);
    memcpy(f->hash, hash.p, hash.n);
    f->hash[hash.n] = 0;
    return IG_OK;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const ig_hub_file *)a)->path, ((const ig_hub_file *)b)->path);
}

static ig_status read_files(ig_hub_repo *r, yyjson_val *list, ig_err *err) {
    size_t i, n = yyjson_arr_size(list);
    yyjson_val *v;
    if (!yyjson_is_arr(list)) return ig_fail(err, IG_EFORMAT, "the hub lists no files (\"siblings\")");
    if (n > FILES_MAX) return ig_fail(err, IG_ELIMIT, "the hub lists %zu files, limit %d", n, FILES_MAX);
    r->v = calloc(n ? n : 1, sizeof *r->v);
    if (!r->v) return ig_fail(err, IG_ELIMIT, "no memory for a list of %zu files", n);
    yyjson_arr_foreach(list, i, n, v) {
        ig_status st = read_file(&r->v[r->n], v, err);
        if (st) return st;
        r->n++;
    }
    qsort(r->v, (size_t)r->n, sizeof *r->v, by_path);
    for (int k = 1; k < r->n; k++)
        if (strcmp(r->v[k - 1].path, r->v[k].path) == 0)
            return ig_fail(err, IG_EFORMAT, "the hub lists %.120s twice", r->v[k].path);
    return IG_OK;
}

ig_status ig_hub_repo_parse(ig_hub_repo *out, const char *json, size_t n, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_hub_repo r = {.n = 0};
    ig_status st = ig_json_parse(&doc, json, n, (ig_json_limits){JSON_BYTES_MAX, JSON_DEPTH_MAX}, err);
    if (st) return st;
    yyjson_val *root = yyjson_doc_get_root(doc);
    ig_slice commit = text_of(ig_json_get(root, "sha"));
    if (commit.n != 40 || !ig_hub_hash_good(commit))
        st = ig_fail(err, IG_EFORMAT, "the hub gives no commit (\"sha\")");
    else
        st = read_files(&r, ig_json_get(root, "siblings"), err);
    if (!st) {
        memcpy(r.commit, commit.p, 40);
        *out = r;
    } else {
        ig_hub_repo_clear(&r);
    }
    yyjson_doc_free(doc);
    return st;
}

void ig_hub_repo_clear(ig_hub_repo *r) {
    for (int i = 0; i < r->n; i++) free(r->v[i].path);
    free(r->v);
    *r = (ig_hub_repo){.n = 0};
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static ig_status start_over(void *ud, const ig_hub_answer *a, ig_err *err) {
    (void)a, (void)err;
    ig_buf_clear(ud);
    return IG_OK;
}

static ig_status add(void *ud, const uint8_t *p, size_t n, ig_err *err) {
    if (ig_buf_add(ud, p, n)) return IG_OK;
    return ig_fail(err, IG_EFORMAT, "the list of files is longer than %d bytes, the limit", JSON_BYTES_MAX);
}

static bool write_url(ig_buf *url, const ig_hub_config *c, const char *repo, const char *revision) {
    return ig_buf_addf(url, "%s/api/models/%s/revision/", c->endpoint, repo) &&
           ig_hub_url_add(url, revision, false) && ig_buf_add_str(url, "?blobs=true");
}

/* Not JSON: a login page, or a proxy that speaks for itself. */
static ig_status say_no_list(const ig_hub_config *c, const ig_buf *text, ig_err *err) {
    const char *p = text->n ? text->p + strspn(text->p, " \t\r\n") : "";
    if (*p == '<')
        return ig_fail(
            err, IG_ENETWORK,
            "%s answers with a page and not with JSON; is there a login page or a proxy in between, or is "
            "HF_ENDPOINT no hub?",
            c->endpoint);
    char why[IG_ERR_BYTES];
    memcpy(why, err->msg, sizeof why);
    return ig_fail(err, err->code, "%s: %s", c->endpoint, why);
}

ig_status ig_hub_repo_ask(ig_hub_repo *out, const ig_hub_config *c, const char *repo, const char *revision,
                          void (*note)(void *ud, const char *text), void *ud, ig_err *err) {
    ig_hub_http *http = NULL;
    ig_hub_answer a = {.status = 0};
    ig_err own;
    ig_buf text = ig_buf_init(JSON_BYTES_MAX), url = ig_buf_init(URL_MAX);
    ig_hub_request q = {.total_s = ASK_MAX_S, .head = start_over, .body = add, .ud = &text, .repo = repo};
    ig_status st;

    if (!err) err = &own;
    if (!ig_hub_revision_good(revision))
        return ig_fail(err, IG_EINVAL, "\"%.100s\" is no revision: a branch, a tag or a commit", revision);
    if (c->offline)
        return ig_fail(err, IG_ENETWORK, "HF_HUB_OFFLINE is set, so nobody is asked for %s", repo);
    st = write_url(&url, c, repo, revision) ? IG_OK : ig_fail(err, IG_ELIMIT, "no memory");
    if (!st) st = ig_hub_http_open(&http, c, err);
    q.url = url.p;
    for (int failures = 0; !st;) {
        st = ig_hub_http_get(http, &q, &a, repo, err);
        if (!st || !a.again) break;
        /* Where nothing listens, more patience helps nobody. */
        if (a.unreachable && failures >= 1) break;
        st = ig_hub_http_wait(c, &a, ++failures, note, ud, err);
    }
    if (!st && ig_hub_repo_parse(out, text.n ? text.p : "", text.n, err)) st = say_no_list(c, &text, err);
    if (!st) {
        snprintf(out->name, sizeof out->name, "%s", repo);
        snprintf(out->revision, sizeof out->revision, "%s", revision);
    }
    ig_hub_http_close(http);
    ig_buf_free(&url);
    ig_buf_free(&text);
    return st;
}
