/* repl_file: what `ingle chat` writes to disk: conversations, and the history of messages.
 * Threads: main's. Memory: malloc, bounded by FILE_MAX and HISTORY_FILE_MAX.
 * The history is one message a line, so that a message is added by one short write and two chats at a
 * time cannot hurt each other's lines. It is written anew only when it has grown to twice what we keep. */
#include "app/repl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MAX = 64 << 20, FILE_DEPTH_MAX = 16, HISTORY_FILE_MAX = 4 << 20 };

/* ---- a conversation as JSON --------------------------------------------------------------------------- */

static const char *role_of(const ig_repl *r, int i) {
    return i < 0 ? "system" : r->turns[i].user ? "user" : "assistant";
}

ig_status ig_repl_save(const ig_repl *r, const char *path, ig_err *err) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *list = yyjson_mut_arr(doc);
    bool good = yyjson_mut_obj_add_str(doc, root, "model", r->l->name) &&
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

/* The lines of the file into the editor; how many there were. Anybody may have edited the file. */
static int take_lines(ig_repl *r, const char *text, size_t n) {
    int n_lines = 0;
    ig_buf line = ig_buf_init(IG_EDIT_ENTRY_MAX);
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '\n') {
            n_lines++;
            ig_slice s = ig_repl_slice(&line);
            if (ig_slice_utf8_valid(s, NULL)) ig_edit_remember(&r->edit, s);
            ig_buf_clear(&line);
            continue;
        }
        if (c == '\\' && i + 1 < n && text[i + 1] != '\n') c = text[++i] == 'n' ? '\n' : text[i];
        else if ((uint8_t)c < 0x20 || c == 0x7f) c = '?';
        ig_buf_add(&line, &c, 1); /* longer than a message that we remember: its end is lost */
    }
    ig_buf_free(&line);
    return n_lines;
}

void ig_repl_history_open(ig_repl *r) {
    char *text = NULL;
    size_t n = 0;
    r->history_path = history_path();
    if (!r->history_path) return;
    ig_status st = ig_file_slurp(&text, &n, r->history_path, HISTORY_FILE_MAX, NULL);
    int n_lines = st == IG_OK ? take_lines(r, text, n) : 0;
    free(text);
    if (n_lines <= 2 * IG_EDIT_HISTORY_MAX && st != IG_ELIMIT) return;
    ig_buf all = ig_buf_init(HISTORY_FILE_MAX / 2); /* what does not fit is the newest, and rare */
    for (int i = 0; i < r->edit.n_history; i++) add_escaped(&all, ig_slice_of(r->edit.history[i]));
    ig_file_replace(r->history_path, ig_repl_slice(&all).p, all.n, NULL);
    ig_buf_free(&all);
}

void ig_repl_history_add(ig_repl *r, ig_slice text) {
    if (!ig_edit_remember(&r->edit, text) || !r->history_path) return;
    ig_buf line = ig_buf_init(2 * IG_EDIT_ENTRY_MAX + 1);
    int fd = open(r->history_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && add_escaped(&line, text)) {
        ssize_t n = write(fd, line.p, line.n);
        (void)n; /* a full disk costs the history a line, and the chat nothing */
    }
    if (fd >= 0) close(fd);
    ig_buf_free(&line);
}
