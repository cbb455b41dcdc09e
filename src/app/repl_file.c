/* repl_file: what `ingle chat` writes to disk: conversations, and the history of messages.
 * Threads: main's. Memory: malloc, bounded by FILE_MAX and HISTORY_FILE_MAX.
 * The history is one message a line, so that a message is added by one short write and two chats at a
 * time cannot hurt each other's lines. It is written anew only when it has grown to twice what we keep, and
 * only when all of it was read: a file that is no history of ours stays as it is. */
#include "app/repl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_MAX = 64 << 20,
    FILE_DEPTH_MAX = 16,
    HISTORY_LINE_MAX = 2 * IG_EDIT_ENTRY_MAX + 1,
    /* Twice what a file may hold that is not trimmed yet: what chats add, the next one reads whole. */
    HISTORY_FILE_MAX = 4 * IG_EDIT_HISTORY_MAX * HISTORY_LINE_MAX,
    HISTORY_TAIL = 4 << 20,
    PIECE = 64 << 10
};

/* ---- a conversation as JSON --------------------------------------------------------------------------- */

static const char *role_of(const ig_repl *r, int i) {
    return i < 0 ? "system" : r->turns[i].user ? "user" : "assistant";
}

ig_status ig_repl_save(const ig_repl *r, const char *path, ig_err *err) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *list = yyjson_mut_arr(doc);
    bool good = ig_json_add_bytes(doc, root, "model", r->l->name) &&
                yyjson_mut_obj_add_val(doc, root, "messages", list);
    for (int i = r->system.n ? -1 : 0; good && i < r->n_turns; i++) {
        ig_slice s = ig_repl_slice(i < 0 ? &r->system : &r->turns[i].text);
        yyjson_mut_val *m = yyjson_mut_arr_add_obj(doc, list);
        good = yyjson_mut_obj_add_str(doc, m, "role", role_of(r, i)) &&
               yyjson_mut_obj_add_strn(doc, m, "content", s.p, s.n);
    }
    size_t n = 0;
    char *text = NULL;
    if (good) {
        yyjson_mut_doc_set_root(doc, root);
        text = yyjson_mut_write(doc, YYJSON_WRITE_PRETTY_TWO_SPACES, &n);
    }
    ig_status st = text ? ig_file_replace(path, text, n, err)
                        : ig_fail(err, IG_ELIMIT, "no memory to write %d messages", r->n_turns);
    free(text);
    yyjson_mut_doc_free(doc);
    return st;
}

/* All of it is checked before a word of it is taken. */
static ig_status check_messages(yyjson_val *list, const char *path, ig_err *err) {
    size_t i, n;
    yyjson_val *m;
    if (!yyjson_is_arr(list)) return ig_fail(err, IG_EFORMAT, "%s: no array \"messages\"", path);
    if (yyjson_arr_size(list) > IG_REPL_TURNS_MAX)
        return ig_fail(err, IG_ELIMIT, "%s: %zu messages, limit %d", path, yyjson_arr_size(list),
                       IG_REPL_TURNS_MAX);
    yyjson_arr_foreach(list, i, n, m) {
        const char *role = yyjson_get_str(ig_json_get(m, "role"));
        yyjson_val *content = ig_json_get(m, "content");
        bool known = role && (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
                              (i == 0 && strcmp(role, "system") == 0));
        if (!known)
            return ig_fail(err, IG_EFORMAT, "%s: message %zu: role is not user or assistant (or system, "
                           "in the first)", path, i + 1);
        if (!yyjson_is_str(content))
            return ig_fail(err, IG_EFORMAT, "%s: message %zu: content is not a text", path, i + 1);
        if (yyjson_get_len(content) > IG_REPL_TEXT_MAX)
            return ig_fail(err, IG_ELIMIT, "%s: message %zu: %zu bytes, limit %d", path, i + 1,
                           yyjson_get_len(content), IG_REPL_TEXT_MAX);
    }
    return IG_OK;
}

ig_status ig_repl_load(ig_repl *r, const char *path, ig_err *err) {
    char *text = NULL;
    size_t n_bytes = 0, i, n;
    yyjson_doc *doc = NULL;
    yyjson_val *m;
    ig_status st = ig_file_slurp(&text, &n_bytes, path, FILE_MAX, err);
    if (st != IG_OK) return st;
    ig_err why;
    if (ig_json_parse(&doc, text, n_bytes, (ig_json_limits){FILE_MAX, FILE_DEPTH_MAX}, &why) != IG_OK) {
        free(text);
        return ig_fail(err, why.code, "%s: %.300s", path, why.msg);
    }
    yyjson_val *list = ig_json_get(yyjson_doc_get_root(doc), "messages");
    st = check_messages(list, path, err);
    if (st == IG_OK) {
        ig_repl_drop(r, 0);
        ig_buf_clear(&r->system);
        yyjson_arr_foreach(list, i, n, m) {
            const char *role = yyjson_get_str(ig_json_get(m, "role"));
            yyjson_val *content = ig_json_get(m, "content");
            bool system = strcmp(role, "system") == 0;
            ig_buf *to = system ? &r->system : &ig_repl_add(r, strcmp(role, "user") == 0)->text;
            if (!ig_buf_add(to, yyjson_get_str(content), yyjson_get_len(content)))
                st = ig_fail(err, IG_ELIMIT, "%s: no memory for message %zu", path, i + 1);
        }
    }
    yyjson_doc_free(doc);
    free(text);
    return st;
}

/* ---- history ------------------------------------------------------------------------------------------ */

/* $INGLE_STATE, else $XDG_STATE_HOME/ingle, else ~/.local/state/ingle. */
static char *history_path(void) {
    static const struct {
        const char *name, *below;
    } places[] = {{"INGLE_STATE", ""}, {"XDG_STATE_HOME", "/ingle"}, {"HOME", "/.local/state/ingle"}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const char *root = getenv(places[i].name);
        char *dir = NULL, *path = NULL;
        if (!root || !*root) continue;
        if (asprintf(&dir, "%s%s", root, places[i].below) < 0) return NULL;
        bool good = ig_file_make_dirs(dir, NULL) == IG_OK && asprintf(&path, "%s/chat_history", dir) >= 0;
        free(dir);
        return good ? path : NULL;
    }
    return NULL;
}

/* A line break in a message is \n in the file, a backslash is two. */
static bool add_escaped(ig_buf *out, ig_slice s) {
    bool good = true;
    for (size_t i = 0; i < s.n && good; i++) {
        if (s.p[i] == '\n') good = ig_buf_add(out, "\\n", 2);
        else if (s.p[i] == '\\') good = ig_buf_add(out, "\\\\", 2);
        else good = ig_buf_add(out, s.p + i, 1);
    }
    return good && ig_buf_add(out, "\n", 1);
}

/* A file that is read in pieces. Anybody may have edited it. */
typedef struct history_reader {
    ig_edit *edit;
    ig_buf line;
    bool escaped; /* a backslash came */
    bool cut;     /* the first line has lost its beginning */
    int n_lines;
} history_reader;

static void end_line(history_reader *h) {
    if (h->escaped) ig_buf_add(&h->line, "\\", 1);
    ig_slice s = ig_repl_slice(&h->line);
    if (!h->cut && ig_slice_utf8_valid(s, NULL)) ig_edit_remember(h->edit, s);
    ig_buf_clear(&h->line);
    h->escaped = h->cut = false;
    h->n_lines++;
}

static void take_bytes(history_reader *h, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        if (c == '\n') {
            end_line(h);
            continue;
        }
        if (!h->escaped && c == '\\') {
            h->escaped = true;
            continue;
        }
        if (h->escaped && c == 'n') c = '\n';
        else if ((uint8_t)c < 0x20 || c == 0x7f) c = '?';
        h->escaped = false;
        ig_buf_add(&h->line, &c, 1); /* longer than a message that we remember: its end is lost */
    }
}

/* From *at to the end, which *at then is; HISTORY_FILE_MAX bytes at most. False: there is more, or an error. */
static bool read_lines(history_reader *h, int fd, off_t *at) {
    char *piece = malloc(PIECE);
    bool whole = false;
    for (off_t most = *at + HISTORY_FILE_MAX;;) {
        ssize_t n = piece ? pread(fd, piece, PIECE, *at) : -1;
        if (n < 0 && piece && errno == EINTR) continue;
        whole = n == 0;
        if (n <= 0 || n > most - *at) break;
        take_bytes(h, piece, (size_t)n);
        *at += n;
    }
    if (whole && (h->line.n || h->escaped)) end_line(h);
    free(piece);
    return whole;
}

/* Anew, with what the editor remembers. Not when another chat has written meanwhile: then another time. */
static void trim(const ig_repl *r, off_t n_read) {
    struct stat now;
    ig_buf all = ig_buf_init((size_t)IG_EDIT_HISTORY_MAX * HISTORY_LINE_MAX);
    bool good = true;
    for (int i = 0; good && i < r->edit.n_history; i++)
        good = add_escaped(&all, ig_slice_of(r->edit.history[i]));
    if (good && stat(r->history_path, &now) == 0 && now.st_size == n_read)
        ig_file_replace(r->history_path, ig_repl_slice(&all).p, all.n, NULL);
    ig_buf_free(&all);
}

static void no_history(ig_repl *r, const char *why) {
    ig_repl_say(r, "  %s: %s; this chat is not added to it.\n", r->history_path, why);
    free(r->history_path);
    r->history_path = NULL;
}

void ig_repl_history_open(ig_repl *r) {
    struct stat info;
    r->history_path = history_path();
    if (!r->history_path) return;
    int fd = open(r->history_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait */
    if (fd < 0) {
        if (errno != ENOENT) no_history(r, strerror(errno));
        return;
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        no_history(r, "not a file");
    } else {
        bool ours = info.st_size <= HISTORY_FILE_MAX;
        off_t at = ours ? 0 : info.st_size - HISTORY_TAIL;
        history_reader h = {.edit = &r->edit, .line = ig_buf_init(IG_EDIT_ENTRY_MAX), .cut = !ours};
        bool whole = read_lines(&h, fd, &at);
        if (!ours) no_history(r, "too long for a history, so only its end was read");
        else if (!whole) no_history(r, "could not be read to its end");
        else if (h.n_lines > 2 * IG_EDIT_HISTORY_MAX) trim(r, at);
        ig_buf_free(&h.line);
    }
    close(fd);
}

void ig_repl_history_add(ig_repl *r, ig_slice text) {
    struct stat info;
    if (!ig_edit_remember(&r->edit, text) || !r->history_path) return;
    ig_buf line = ig_buf_init(HISTORY_LINE_MAX);
    int fd = open(r->history_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    bool good = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && add_escaped(&line, text) &&
                info.st_size <= HISTORY_FILE_MAX - (off_t)line.n; /* what is written can be read again */
    if (good) {
        ssize_t n = write(fd, line.p, line.n);
        (void)n; /* a full disk costs the history a line, and the chat nothing */
    }
    if (fd >= 0) close(fd);
    ig_buf_free(&line);
}
