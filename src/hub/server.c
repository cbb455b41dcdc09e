/* server: which process serves which model, for those who remove files.
 * A server keeps STATE/servers/PID.json open and locked; the lock ends with the process, so what a crashed
 * server left behind is told from what a living one wrote without believing any pid.
 * Whoever looks takes the lock for a moment, and removes what nobody holds; so a server that makes its note
 * tries a few times, and looks afterwards whether the file that it holds is still the one of that name.
 * Threads: the caller's. Memory: malloc, small. */
#include "hub/inside.h"

#include "file/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    NOTE_BYTES_MAX = 65536,
    FILE_MODE = 0600,
    NOTES_MAX = 4096,
    NAMES_MAX = 16, /* of one pid: processes in containers may share it, and the folder */
    TRIES = 20,
    TRY_MS = 5,
    YOUNG_S = 60 /* an empty note may be about to be written */
};

struct ig_hub_server {
    int fd;
    char *path;
};

/* The path without links and dots, but for its last part: a file of a snapshot is itself a link. */
static const char *plain_path(char out[PATH_MAX], const char *path) {
    char top[PATH_MAX], real[PATH_MAX - 256];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *slash = memrchr(path, '/', n), *name = slash ? slash + 1 : path;
    const int n_name = (int)(path + n - name);
    snprintf(top, sizeof top, "%.*s", slash ? (int)(slash - path + (slash == path)) : 1, slash ? path : ".");
    char *found = realpath(top, NULL);
    bool fits = found && (size_t)snprintf(real, sizeof real, "%s", found) < sizeof real && n_name < 256;
    free(found);
    if (!fits) return path;
    snprintf(out, PATH_MAX, "%s/%.*s", strcmp(real, "/") == 0 ? "" : real, n_name, name);
    return out;
}

static char *write_note(const char *path, const char *model, const char *url, int port) {
    char plain[PATH_MAX];
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    const char *p = plain_path(plain, path);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_int(doc, root, "pid", getpid());
    yyjson_mut_obj_add_int(doc, root, "port", port);
    ig_json_add_bytes(doc, root, "url", url);
    ig_json_add_bytes(doc, root, "model", model);
    yyjson_mut_obj_add_int(doc, root, "started_at", (int64_t)time(NULL));
    ig_json_add_bytes(doc, root, "path", p);
    /* JSON has no place for a path that is no UTF-8, and one with marks in it is another path. */
    if (!ig_slice_utf8_valid(ig_slice_of(p), NULL)) {
        char hex[2 * PATH_MAX];
        size_t n = 0;
        for (; p[n] && n < PATH_MAX - 1; n++) snprintf(hex + 2 * n, 3, "%02x", (unsigned char)p[n]);
        yyjson_mut_obj_add_strncpy(doc, root, "path_hex", hex, 2 * n);
    }
    char *text = lost ? NULL : yyjson_mut_write(doc, 0, NULL);
    yyjson_mut_doc_free(doc);
    return text;
}

static bool is_named(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* The file, open and locked by us, or -1. EWOULDBLOCK: somebody else has it. */
static int open_note(const char *path) {
    for (int i = 0; i < TRIES; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, FILE_MODE);
        if (fd < 0) return -1;
        int why = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (!why && is_named(fd, path)) return fd;
        close(fd);
        errno = why ? why : EWOULDBLOCK;
        if (errno != EWOULDBLOCK) return -1;
        usleep(TRY_MS * 1000);
    }
    return -1;
}

/* Whole, or told why not; what was begun is removed then. */
static ig_status fill_note(const ig_hub_server *s, const char *text, ig_err *err) {
    const size_t n = strlen(text);
    ssize_t put = ftruncate(s->fd, 0) != 0 ? -1 : pwrite(s->fd, text, n, 0);
    if (put == (ssize_t)n) return IG_OK;
    const int why = put < 0 ? errno : ENOSPC;
    unlink(s->path);
    close(s->fd);
    return ig_fail(err, IG_EIO, "%s: %s", s->path, strerror(why));
}

ig_status ig_hub_server_begin(ig_hub_server **out, const char *state, const char *path, const char *model,
                              const char *url, int port, ig_err *err) {
    ig_status st = IG_OK;
    char *folder = NULL, *text = NULL;
    ig_hub_server *s = calloc(1, sizeof *s);
    if (!s || asprintf(&folder, "%s/servers", state) < 0 || !(text = write_note(path, model, url, port))) {
        st = ig_fail(err, IG_ELIMIT, "no memory");
        goto out;
    }
    if ((st = ig_file_make_dirs(folder, err))) goto out;
    s->fd = -1;
    for (int i = 0; i < NAMES_MAX && s->fd < 0; i++) {
        char more[16] = "";
        if (i) snprintf(more, sizeof more, "-%d", i);
        free(s->path);
        if (asprintf(&s->path, "%s/%d%s.json", folder, (int)getpid(), more) < 0) {
            s->path = NULL;
            st = ig_fail(err, IG_ELIMIT, "no memory");
            goto out;
        }
        s->fd = open_note(s->path);
        if (s->fd < 0 && errno != EWOULDBLOCK) break;
    }
    if (s->fd < 0)
        st = ig_fail(err, IG_EIO, "%s: %s", s->path,
                     errno == EWOULDBLOCK ? "another process holds it" : strerror(errno));
    else
        st = fill_note(s, text, err);
    if (st) goto out;
    *out = s;
    s = NULL;
out:
    if (s) free(s->path);
    free(s);
    free(text);
    free(folder);
    return st;
}

void ig_hub_server_end(ig_hub_server *s) {
    if (!s) return;
    unlink(s->path);
    close(s->fd);
    free(s->path);
    free(s);
}

/* a is b, or in it. */
static bool is_within(const char *a, const char *b) {
    size_t n = strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == 0 || a[n] == '/');
}

/* The path of a note as it was: of "path_hex" when that is there. False: none that could be. */
static bool path_of(char out[PATH_MAX], yyjson_val *root) {
    yyjson_val *hex = ig_json_get(root, "path_hex");
    const char *text = yyjson_get_str(hex ? hex : ig_json_get(root, "path"));
    size_t n = text ? strlen(text) : 0;
    if (!n || n / (hex ? 2 : 1) >= PATH_MAX || (hex && n % 2)) return false;
    if (!hex) {
        memcpy(out, text, n + 1);
        return true;
    }
    for (size_t i = 0; i < n / 2; i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1 || byte == 0) return false;
        out[i] = (char)byte;
    }
    out[n / 2] = 0;
    return true;
}

/* The pid of a note that a living server holds about something at `path`, else 0. */
static int read_note(const char *file, const char *path) {
    char *text = NULL;
    size_t n = 0;
    yyjson_doc *doc = NULL;
    int pid = 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return 0;
    const bool lives = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat info;
    if (!lives && fstat(fd, &info) == 0 && (info.st_size > 0 || info.st_mtime < time(NULL) - YOUNG_S) &&
        is_named(fd, file))
        unlink(file); /* nobody's */
    if (lives && ig_file_slurp(&text, &n, file, NOTE_BYTES_MAX, NULL) == IG_OK &&
        ig_json_parse(&doc, text, n, (ig_json_limits){NOTE_BYTES_MAX, 8}, NULL) == IG_OK) {
        yyjson_val *root = yyjson_doc_get_root(doc);
        char served[PATH_MAX];
        if (path_of(served, root) && is_within(served, path)) pid = yyjson_get_int(ig_json_get(root, "pid"));
    }
    yyjson_doc_free(doc);
    free(text);
    close(fd);
    return pid;
}

int ig_hub_served_by(const char *state, const char *path) {
    char plain[PATH_MAX], *folder = NULL;
    int pid = 0;
    if (!state || asprintf(&folder, "%s/servers", state) < 0) return 0;
    const char *p = plain_path(plain, path);
    DIR *d = opendir(folder);
    int n_left = NOTES_MAX;
    for (struct dirent *e; d && !pid && n_left-- > 0 && (e = readdir(d));) {
        char file[PATH_MAX];
        size_t n = strlen(e->d_name);
        if (n <= 5 || strcmp(e->d_name + n - 5, ".json") != 0 || e->d_name[0] == '.') continue;
        if ((size_t)snprintf(file, sizeof file, "%s/%s", folder, e->d_name) < sizeof file)
            pid = read_note(file, p);
    }
    if (d) closedir(d);
    free(folder);
    return pid;
}
