/* server: which process serves which model, for those who remove files.
 * A server keeps STATE/servers/PID.json open and locked; the lock ends with the process, so what a crashed
 * server left behind is told from what a living one wrote without believing any pid.
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

enum { NOTE_BYTES_MAX = 65536, FILE_MODE = 0600, NOTES_MAX = 4096 };

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
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_int(doc, root, "pid", getpid());
    yyjson_mut_obj_add_int(doc, root, "port", port);
    yyjson_mut_obj_add_str(doc, root, "url", url);
    yyjson_mut_obj_add_str(doc, root, "model", model);
    yyjson_mut_obj_add_int(doc, root, "started_at", (int64_t)time(NULL));
    yyjson_mut_obj_add_str(doc, root, "path", plain_path(plain, path));
    char *text = yyjson_mut_write(doc, 0, NULL);
    yyjson_mut_doc_free(doc);
    return text;
}

ig_status ig_hub_server_begin(ig_hub_server **out, const char *state, const char *path, const char *model,
                              const char *url, int port, ig_err *err) {
    ig_status st = IG_OK;
    char *folder = NULL, *text = NULL;
    ig_hub_server *s = calloc(1, sizeof *s);
    if (!s || asprintf(&folder, "%s/servers", state) < 0 ||
        asprintf(&s->path, "%s/%d.json", folder, (int)getpid()) < 0 ||
        !(text = write_note(path, model, url, port))) {
        st = ig_fail(err, IG_ELIMIT, "no memory");
        goto out;
    }
    if ((st = ig_file_make_dirs(folder, err))) goto out;
    s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    size_t n = strlen(text);
    if (s->fd < 0 || flock(s->fd, LOCK_EX | LOCK_NB) != 0 || ftruncate(s->fd, 0) != 0 ||
        pwrite(s->fd, text, n, 0) != (ssize_t)n) {
        st = ig_fail(err, IG_EIO, "%s: %s", s->path, strerror(errno));
        if (s->fd >= 0) close(s->fd);
        goto out;
    }
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
    if (!lives && fstat(fd, &info) == 0 && info.st_size > 0)
        unlink(file); /* nobody's; an empty one is being made */
    if (lives && ig_file_slurp(&text, &n, file, NOTE_BYTES_MAX, NULL) == IG_OK &&
        ig_json_parse(&doc, text, n, (ig_json_limits){NOTE_BYTES_MAX, 8}, NULL) == IG_OK) {
        yyjson_val *root = yyjson_doc_get_root(doc);
        const char *served = yyjson_get_str(ig_json_get(root, "path"));
        if (served && is_within(served, path)) pid = yyjson_get_int(ig_json_get(root, "pid"));
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
