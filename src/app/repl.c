/* repl: the conversation of `ingle chat`, and its commands.
 * Owns:    the messages so far, the settings, the history file.
 * Threads: main's; answers come from the engine's thread through ig_stream_run.
 * Memory:  malloc, bounded: TURNS_MAX messages of TEXT_MAX bytes.
 * Each turn renders the whole conversation again and hands it to the engine, whose prefix cache finds what
 * it has seen: only new tokens are computed, and there is no second way to keep a conversation.
 * On a terminal everything goes to stdout. Without one, stdout holds answers only. */
#include "app/repl.h"

#include "app/load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TURNS_MAX = 4096, TEXT_MAX = 8 << 20, FILE_MAX = 64 << 20, HISTORY_FILE_MAX = 4 << 20 };

typedef struct turn {
    bool user;
    ig_buf text;
} turn;

typedef struct repl {
    const ig_loaded *l;
    ig_repl_options o;
    bool terminal, colour, leave, failed, output_gone;
    ig_edit edit;
    char *history_path; /* NULL: none */
    ig_buf system;
    turn turns[TURNS_MAX];
    int n_turns;
    char *file;         /* last saved or loaded: /save may write it again */
    ig_print print;
    ig_buf out;         /* on its way to stdout */
    ig_buf *answer;     /* of the turn that is being made */
    ig_stream_result last;
    int n_answers, n_last_prompt;
    uint64_t last_seed, n_tokens, n_prompt, n_cached, decode_ns;
} repl;

/* ---- saying things ------------------------------------------------------------------------------------ */

/* About the chat, not part of it: stdout on a terminal, stderr otherwise. */
__attribute__((format(printf, 2, 3))) static void say(repl *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vfprintf(r->terminal ? stdout : stderr, fmt, args);
    va_end(args);
    fflush(r->terminal ? stdout : stderr);
}

static void say_error(repl *r, const char *what) {
    r->failed = true;
    if (r->terminal) say(r, "%s%s%s\n", r->colour ? "\x1b[31m" : "", what, r->colour ? "\x1b[0m" : "");
    else fprintf(stderr, "ingle: %s\n", what);
}

static const char *dim(const repl *r) {
    return r->colour ? "\x1b[2m" : "";
}

static const char *plain(const repl *r) {
    return r->colour ? "\x1b[0m" : "";
}

/* ---- turns -------------------------------------------------------------------------------------------- */

static void drop_turns(repl *r, int n_keep) {
    while (r->n_turns > n_keep) ig_buf_free(&r->turns[--r->n_turns].text);
}

static turn *add_turn(repl *r, bool user) {
    if (r->n_turns == TURNS_MAX) return NULL;
    turn *t = &r->turns[r->n_turns++];
    *t = (turn){.user = user, .text = ig_buf_init(TEXT_MAX)};
    return t;
}

static ig_slice slice_of(const ig_buf *b) {
    return (ig_slice){b->p ? b->p : "", b->n};
}

static ig_status encode(const repl *r, ig_tokens *out, ig_err *err) {
    ig_message *v = calloc((size_t)r->n_turns + 1, sizeof *v);
    if (!v) return ig_fail(err, IG_ELIMIT, "no memory for %d messages", r->n_turns + 1);
    int n = 0;
    if (r->system.n) v[n++] = (ig_message){"system", slice_of(&r->system)};
    for (int i = 0; i < r->n_turns; i++)
        v[n++] = (ig_message){r->turns[i].user ? "user" : "assistant", slice_of(&r->turns[i].text)};
    ig_status st = ig_messages_encode(r->l, v, n, out, err);
    free(v);
    return st;
}

/* ---- an answer ---------------------------------------------------------------------------------------- */

static bool on_text(void *ud, ig_slice text) {
    repl *r = ud;
    ig_buf_clear(&r->out);
    if (!ig_buf_add(r->answer, text.p, text.n) || !ig_print_text(&r->print, text, &r->out)) return false;
    r->output_gone = !ig_term_write(slice_of(&r->out));
    return !r->output_gone;
}

static double per_second(uint64_t n, uint64_t ns) {
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

/* Tokens a second while answering: the first token belongs to the prompt's time. */
static double answer_speed(const ig_gen_stats *s) {
    return s->n_tokens > 1 ? per_second((uint64_t)s->n_tokens - 1, s->decode_ns) : 0;
}

static void say_figures(repl *r) {
    const ig_gen_stats *s = &r->last.stats;
    say(r, "%s  %d token%s", dim(r), s->n_tokens, s->n_tokens == 1 ? "" : "s");
    if (answer_speed(s) > 0) say(r, ", %.1f tok/s", answer_speed(s));
    say(r, ", first token %.0f ms", (double)s->first_token_ns / 1e6);
    if (r->last.finish == IG_FINISH_CANCELED) say(r, ", stopped");
    if (r->last.finish == IG_FINISH_LENGTH) say(r, ", cut at the token limit");
    say(r, "%s\n\n", plain(r));
}

static void count(repl *r) {
    const ig_gen_stats *s = &r->last.stats;
    r->n_answers++;
    r->n_tokens += (uint64_t)s->n_tokens;
    r->n_prompt += (uint64_t)s->n_prompt;
    r->n_cached += (uint64_t)s->n_cached;
    r->decode_ns += s->n_tokens > 1 ? s->decode_ns : 0;
    r->n_last_prompt = s->n_prompt;
}

/* Answers the last turn, which is the user's. When there is no answer at all, that turn goes too. */
static void answer(repl *r) {
    ig_err err = {0};
    ig_tokens prompt = {0};
    ig_status st = encode(r, &prompt, &err);
    int n_ctx = r->l->plan.n_ctx;
    if (st == IG_OK && prompt.n >= (size_t)n_ctx)
        st = ig_fail(&err, IG_ELIMIT, "the conversation has %zu tokens and the context holds %d: /new starts over, "
                     "/undo takes the last exchange back", prompt.n, n_ctx);
    turn *t = st == IG_OK ? add_turn(r, false) : NULL;
    if (st == IG_OK && !t) st = ig_fail(&err, IG_ELIMIT, "%d messages: /new starts over", TURNS_MAX);
    if (st == IG_OK) {
        int columns = 0, rows;
        if (r->terminal) ig_term_size(&columns, &rows);
        r->print = (ig_print){.columns = columns};
        r->answer = &t->text;
        r->last_seed = r->o.seeded ? r->o.seed : ig_rng_fresh_seed();
        ig_stream s = {
            .prompt = prompt.v, .n_prompt = (int)prompt.n, .max_tokens = r->o.max_tokens,
            .sampling = {.temperature = r->o.temperature, .top_p = r->o.top_p, .min_p = r->o.min_p,
                         .top_k = r->o.top_k, .seed = r->last_seed},
            .text = on_text, .ud = r, .interrupted = &ig_term_stop,
        };
        ig_term_stop = 0;
        if (r->terminal) ig_term_quiet(true);
        st = ig_stream_run(r->l, &s, &r->last, &err);
        if (r->terminal) ig_term_quiet(false);
        if (st == IG_OK || t->text.n) say(r, "%s", r->terminal && r->print.column ? "\n" : "");
        if (!r->terminal && st == IG_OK && !r->output_gone) r->output_gone = !ig_term_write(ig_slice_of("\n"));
    }
    if (st == IG_OK) count(r);
    if (st == IG_OK && r->terminal) say_figures(r);
    if (st != IG_OK) say_error(r, err.msg);
    if (st == IG_OK && r->last.finish == IG_FINISH_CANCELED && !t->text.n) drop_turns(r, r->n_turns - 2);
    else if (st != IG_OK) drop_turns(r, r->n_turns - (t && !t->text.n ? 2 : t ? 0 : 1));
    ig_tokens_free(&prompt);
}

/* ---- settings ----------------------------------------------------------------------------------------- */

static bool set_seed(repl *r, const char *value) {
    if (strcmp(value, "off") == 0 || strcmp(value, "auto") == 0) {
        r->o.seeded = false;
        return true;
    }
    char *end = NULL;
    errno = 0;
    uint64_t seed = strtoull(value, &end, 10);
    if (errno || end == value || *end || value[0] == '-') return false;
    r->o.seed = seed;
    r->o.seeded = true;
    return true;
}

typedef struct setting {
    const char *name;
    double min, max;
    size_t at;
    bool whole;
    const char *help;
} setting;

static const setting settings[] = {
    {"temperature", 0, 5, offsetof(ig_repl_options, temperature), false, "0 always takes the likeliest token"},
    {"top_p", 0, 1, offsetof(ig_repl_options, top_p), false, "keep the likeliest tokens that hold this much"},
    {"top_k", 0, 1 << 24, offsetof(ig_repl_options, top_k), true, "keep so many of the likeliest tokens; 0: all"},
    {"min_p", 0, 1, offsetof(ig_repl_options, min_p), false, "drop tokens less likely than this share of the best"},
    {"max_tokens", 0, 1 << 24, offsetof(ig_repl_options, max_tokens), true, "longest answer; 0: what fits"},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static void say_setting(repl *r, const setting *s) {
    const char *base = (const char *)&r->o + s->at;
    if (s->whole) say(r, "  %-12s %-8d %s%s%s\n", s->name, *(const int *)(const void *)base, dim(r), s->help, plain(r));
    else say(r, "  %-12s %-8g %s%s%s\n", s->name, (double)*(const float *)(const void *)base, dim(r), s->help, plain(r));
}

static void say_seed(repl *r) {
    if (r->o.seeded) say(r, "  %-12s %" PRIu64 "\n", "seed", r->o.seed);
    else say(r, "  %-12s %-8s %sa fresh one for each answer%s\n", "seed", "off", dim(r), plain(r));
}

static void set_number(repl *r, const setting *s, const char *value) {
    char *end = NULL, message[160];
    double x = strtod(value, &end);
    bool good = end != value && !*end && x >= s->min && x <= s->max && (!s->whole || x == (double)(int)x);
    if (!good) {
        snprintf(message, sizeof message, "%s: \"%.40s\" is not %s from %g to %.10g", s->name, value,
                 s->whole ? "a whole number" : "a number", s->min, s->max);
        say_error(r, message);
        return;
    }
    char *base = (char *)&r->o + s->at;
    if (s->whole) *(int *)(void *)base = (int)x;
    else *(float *)(void *)base = (float)x;
    say_setting(r, s);
}

static void cmd_set(repl *r, char *rest) {
    char *value = rest + strcspn(rest, " =");
    if (*value) *value++ = 0;
    value += strspn(value, " =");
    if (!*rest) {
        for (int i = 0; i < N_SETTINGS; i++) say_setting(r, &settings[i]);
        say_seed(r);
        return;
    }
    for (char *c = rest; *c; c++)
        if (*c == '-') *c = '_';
    if (strcmp(rest, "temp") == 0) rest = (char[]){"temperature"};
    if (strcmp(rest, "seed") == 0 && *value) {
        if (set_seed(r, value)) say_seed(r);
        else say_error(r, "seed: a whole number of 64 bits, or off");
        return;
    }
    for (int i = 0; i < N_SETTINGS; i++)
        if (strcmp(rest, settings[i].name) == 0) {
            if (*value) set_number(r, &settings[i], value);
            else say_setting(r, &settings[i]);
            return;
        }
    say_error(r, "/set knows temperature, top_p, top_k, min_p, max_tokens and seed");
}

static void cmd_seed(repl *r, char *rest) {
    if (*rest && !set_seed(r, rest)) say_error(r, "seed: a whole number of 64 bits, or off");
    else say_seed(r);
}

static void cmd_system(repl *r, char *rest) {
    bool off = strcmp(rest, "off") == 0;
    if (off || *rest) ig_buf_clear(&r->system);
    if (*rest && !off) ig_buf_add_str(&r->system, rest);
    if (r->system.n) say(r, "  System prompt: %s\n", r->system.p);
    else say(r, "  No system prompt%s.\n", *rest ? " any more" : "");
}

/* ---- the conversation's own commands ------------------------------------------------------------------- */

static void cmd_new(repl *r, char *rest) {
    (void)rest;
    drop_turns(r, 0);
    r->n_last_prompt = 0;
    say(r, "  A new conversation.\n");
}

static void cmd_undo(repl *r, char *rest) {
    (void)rest;
    int n = r->n_turns;
    while (n && !r->turns[n - 1].user) n--;
    if (!n) {
        say(r, "  Nothing to undo.\n");
        return;
    }
    drop_turns(r, n - 1);
    say(r, "  The last exchange is gone; %d message%s left.\n", r->n_turns, r->n_turns == 1 ? " is" : "s are");
}

static void cmd_regen(repl *r, char *rest) {
    (void)rest;
    int n = r->n_turns;
    while (n && !r->turns[n - 1].user) n--;
    if (!n) {
        say(r, "  There is nothing to answer yet.\n");
        return;
    }
    drop_turns(r, n);
    answer(r);
}

static void cmd_stats(repl *r, char *rest) {
    (void)rest;
    const ig_gen_stats *s = &r->last.stats;
    if (!r->n_answers) {
        say(r, "  No answer yet.\n");
        return;
    }
    int n_new = s->n_prompt - s->n_cached;
    say(r, "  last answer   %d tokens, %.1f tok/s, first token %.0f ms\n", s->n_tokens, answer_speed(s),
        (double)s->first_token_ns / 1e6);
    say(r, "  its prompt    %d tokens: %d cached, %d computed", s->n_prompt, s->n_cached, n_new);
    if (s->prefill_ns) say(r, " at %.0f tok/s", per_second((uint64_t)(n_new > 0 ? n_new : 0), s->prefill_ns));
    say(r, "\n  its seed      %" PRIu64 "\n", r->last_seed);
    say(r, "  context       %d of %d tokens\n", s->n_prompt + s->n_tokens, r->l->plan.n_ctx);
    say(r, "  all answers   %d, %" PRIu64 " tokens, %.1f tok/s; %" PRIu64 " of %" PRIu64 " prompt tokens cached\n",
        r->n_answers, r->n_tokens, per_second(r->n_tokens - (uint64_t)r->n_answers, r->decode_ns), r->n_cached,
        r->n_prompt);
}

static void cmd_tokens(repl *r, char *rest) {
    ig_err err = {0};
    ig_tokens t = {0};
    ig_status st = *rest ? ig_text_encode(r->l, ig_slice_of(rest), &t, &err) : encode(r, &t, &err);
    if (st != IG_OK) say_error(r, err.msg);
    else if (!*rest) say(r, "  The next prompt has %zu tokens so far, of %d.\n", t.n, r->l->plan.n_ctx);
    else {
        say(r, "  %zu tokens:", t.n);
        for (size_t i = 0; i < t.n && i < 200; i++) say(r, " %" PRIu32, t.v[i]);
        say(r, "%s\n", t.n > 200 ? " ..." : "");
    }
    ig_tokens_free(&t);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static char *expand(const char *path) {
    const char *home = path[0] == '~' && path[1] == '/' ? getenv("HOME") : NULL;
    char *out = NULL;
    if (!home) return strdup(path);
    return asprintf(&out, "%s%s", home, path + 1) < 0 ? NULL : out;
}

static ig_status save(const repl *r, const char *path, ig_err *err) {
    ig_status st = IG_OK;
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = doc ? yyjson_mut_obj(doc) : NULL, *list = yyjson_mut_arr(doc);
    size_t n = 0;
    char *text = NULL;
    bool good = root && yyjson_mut_obj_add_str(doc, root, "model", r->l->name) &&
                yyjson_mut_obj_add_val(doc, root, "messages", list);
    for (int i = r->system.n ? -1 : 0; good && i < r->n_turns; i++) {
        const ig_buf *b = i < 0 ? &r->system : &r->turns[i].text;
        yyjson_mut_val *m = yyjson_mut_arr_add_obj(doc, list);
        good = m && yyjson_mut_obj_add_str(doc, m, "role", i < 0 ? "system" : r->turns[i].user ? "user" : "assistant") &&
               yyjson_mut_obj_add_strncpy(doc, m, "content", b->p ? b->p : "", b->n);
    }
    if (good) {
        yyjson_mut_doc_set_root(doc, root);
        text = yyjson_mut_write(doc, YYJSON_WRITE_PRETTY_TWO_SPACES, &n);
    }
    st = text ? ig_file_replace(path, text, n, err) : ig_fail(err, IG_ELIMIT, "no memory to write the chat");
    free(text);
    yyjson_mut_doc_free(doc);
    return st;
}

static void cmd_save(repl *r, char *rest) {
    ig_err err = {0};
    struct stat info;
    char *path = *rest ? expand(rest) : r->file ? strdup(r->file) : NULL;
    if (!path) {
        say_error(r, "/save FILE");
        return;
    }
    bool ours = r->file && strcmp(path, r->file) == 0;
    ig_status st = !ours && lstat(path, &info) == 0
                       ? ig_fail(&err, IG_EINVAL, "%s is there already: choose another name", path)
                       : save(r, path, &err);
    if (st != IG_OK) {
        say_error(r, err.msg);
        free(path);
        return;
    }
    say(r, "  %d message%s saved in %s\n", r->n_turns, r->n_turns == 1 ? "" : "s", path);
    free(r->file);
    r->file = path;
}

/* Checks a whole chat before a word of it is taken. */
static ig_status check_chat(yyjson_val *list, ig_err *err) {
    size_t i, n;
    yyjson_val *m;
    if (!yyjson_is_arr(list)) return ig_fail(err, IG_EFORMAT, "no \"messages\" array");
    if (yyjson_arr_size(list) > TURNS_MAX)
        return ig_fail(err, IG_ELIMIT, "%zu messages, limit %d", yyjson_arr_size(list), TURNS_MAX);
    yyjson_arr_foreach(list, i, n, m) {
        const char *role = yyjson_get_str(ig_json_get(m, "role"));
        yyjson_val *content = ig_json_get(m, "content");
        bool known = role && (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
                              (i == 0 && strcmp(role, "system") == 0));
        if (!known) return ig_fail(err, IG_EFORMAT, "message %zu: role is not user, assistant, or a first system", i);
        if (!yyjson_is_str(content)) return ig_fail(err, IG_EFORMAT, "message %zu: content is not a text", i);
        if (yyjson_get_len(content) > TEXT_MAX) return ig_fail(err, IG_ELIMIT, "message %zu: longer than %d bytes", i, TEXT_MAX);
    }
    return IG_OK;
}

static ig_status load(repl *r, const char *path, ig_err *err) {
    char *text = NULL;
    size_t n_bytes = 0, i, n;
    yyjson_doc *doc = NULL;
    yyjson_val *m;
    ig_status st = ig_file_slurp(&text, &n_bytes, path, FILE_MAX, err);
    if (st == IG_OK) st = ig_json_parse(&doc, text, n_bytes, (ig_json_limits){FILE_MAX, 16}, err);
    yyjson_val *list = st == IG_OK ? ig_json_get(yyjson_doc_get_root(doc), "messages") : NULL;
    if (st == IG_OK) st = check_chat(list, err);
    if (st == IG_OK) {
        drop_turns(r, 0);
        ig_buf_clear(&r->system);
        yyjson_arr_foreach(list, i, n, m) {
            const char *role = yyjson_get_str(ig_json_get(m, "role"));
            yyjson_val *content = ig_json_get(m, "content");
            ig_buf *b = strcmp(role, "system") == 0 ? &r->system : &add_turn(r, strcmp(role, "user") == 0)->text;
            if (!ig_buf_add(b, yyjson_get_str(content), yyjson_get_len(content))) st = ig_fail(err, IG_ELIMIT, "no memory");
        }
    }
    yyjson_doc_free(doc);
    free(text);
    return st;
}

static void cmd_load(repl *r, char *rest) {
    ig_err err = {0};
    char *path = *rest ? expand(rest) : NULL;
    if (!path) {
        say_error(r, "/load FILE");
        return;
    }
    if (load(r, path, &err) != IG_OK) {
        char message[IG_ERR_BYTES + 64];
        snprintf(message, sizeof message, "%s%s%s", strstr(err.msg, path) ? "" : path, strstr(err.msg, path) ? "" : ": ", err.msg);
        say_error(r, message);
        free(path);
        return;
    }
    say(r, "  %d message%s from %s\n", r->n_turns, r->n_turns == 1 ? "" : "s", path);
    free(r->file);
    r->file = path;
}

static void cmd_quit(repl *r, char *rest) {
    (void)rest;
    r->leave = true;
}

/* ---- the table of commands ---------------------------------------------------------------------------- */

static void cmd_help(repl *r, char *rest);

static const struct {
    const char *name, *words, *help;
    void (*run)(repl *r, char *rest);
} commands[] = {
    {"help", "", "this list", cmd_help},
    {"new", "", "a new conversation", cmd_new},
    {"regen", "", "another answer to the last message", cmd_regen},
    {"undo", "", "take the last message and its answer back", cmd_undo},
    {"system", "TEXT", "how the model should behave; off removes it", cmd_system},
    {"set", "NAME VALUE", "temperature, top_p, top_k, min_p, max_tokens; alone: show all", cmd_set},
    {"seed", "N", "the same seed gives the same answer; off: a fresh one each time", cmd_seed},
    {"stats", "", "speed, prompt and cached tokens, context", cmd_stats},
    {"tokens", "[TEXT]", "tokens of the conversation, or of a text", cmd_tokens},
    {"save", "FILE", "write the conversation as JSON", cmd_save},
    {"load", "FILE", "read one back", cmd_load},
    {"quit", "", "leave (Ctrl-D does too)", cmd_quit},
    {"exit", NULL, NULL, cmd_quit},
    {"bye", NULL, NULL, cmd_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void cmd_help(repl *r, char *rest) {
    (void)rest;
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].help) say(r, "  /%-7s %-11s %s\n", commands[i].name, commands[i].words, commands[i].help);
    say(r, "\n  Enter sends. A backslash at the end of the line, Alt-Enter or Ctrl-J starts a new line;\n"
           "  lines between ``` and ``` belong together, and so do pasted ones. The arrow keys find\n"
           "  earlier messages. Ctrl-C stops an answer; twice on an empty line it leaves.\n");
}

/* True when the text was a command. "/etc/fstab ..." is a message, and so is what comes after "//". */
static bool run_command(repl *r, ig_buf *text) {
    char *s = text->p;
    if (!s || s[0] != '/') return false;
    size_t n = 1 + strspn(s + 1, "abcdefghijklmnopqrstuvwxyz?");
    if (n == 1 || (s[n] && s[n] != ' ' && s[n] != '\n' && s[n] != '\t')) return false;
    char name[32] = "", *rest = s + n;
    snprintf(name, sizeof name, "%.*s", (int)(n - 1 < 31 ? n - 1 : 31), s + 1);
    if (strcmp(name, "?") == 0) snprintf(name, sizeof name, "help");
    rest += strspn(rest, " \t\n");
    while (text->n && strchr(" \t\n", text->p[text->n - 1])) text->p[--text->n] = 0;
    const char *names[N_COMMANDS + 1] = {0};
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0) {
            commands[i].run(r, rest > text->p + text->n ? text->p + text->n : rest);
            return true;
        }
    }
    const char *near = ig_options_nearest(name, names);
    char message[128];
    snprintf(message, sizeof message, "/%s is no command%s%s%s. /help lists them.", name, near ? "; did you mean /" : "",
             near ? near : "", near ? "?" : "");
    say_error(r, message);
    return true;
}

/* ---- history ------------------------------------------------------------------------------------------ */

/* $INGLE_STATE/chat_history, one message a line, with \n and \\ for what a line cannot hold. */
static char *state_path(const char *name) {
    const char *state = getenv("INGLE_STATE"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *dir = NULL, *path = NULL;
    int n = -1;
    if (state && *state) n = asprintf(&dir, "%s", state);
    else if (xdg && *xdg) n = asprintf(&dir, "%s/ingle", xdg);
    else if (home && *home) n = asprintf(&dir, "%s/.local/state/ingle", home);
    if (n < 0) return NULL;
    if (ig_file_make_dirs(dir, NULL) != IG_OK || asprintf(&path, "%s/%s", dir, name) < 0) path = NULL;
    free(dir);
    return path;
}

static bool add_escaped(ig_buf *out, ig_slice s) {
    bool good = true;
    for (size_t i = 0; i < s.n && good; i++) {
        if (s.p[i] == '\n') good = ig_buf_add(out, "\\n", 2);
        else if (s.p[i] == '\\') good = ig_buf_add(out, "\\\\", 2);
        else good = ig_buf_add(out, s.p + i, 1);
    }
    return good && ig_buf_add(out, "\n", 1);
}

static void read_history(repl *r) {
    char *text = NULL;
    size_t n = 0;
    int n_lines = 0;
    ig_buf line = ig_buf_init(IG_EDIT_ENTRY_MAX);
    ig_status st = ig_file_slurp(&text, &n, r->history_path, HISTORY_FILE_MAX, NULL);
    for (size_t i = 0; st == IG_OK && i < n; i++) {
        char c = text[i];
        if (c == '\n') {
            n_lines++;
            if (ig_slice_utf8_valid(slice_of(&line), NULL)) ig_edit_remember(&r->edit, slice_of(&line));
            ig_buf_clear(&line);
            continue;
        }
        if (c == '\\' && i + 1 < n && text[i + 1] != '\n') c = text[++i] == 'n' ? '\n' : text[i];
        if ((uint8_t)c < 0x20 && c != '\n' && c != '\t') c = ' ';
        ig_buf_add(&line, &c, 1); /* too long: the end is lost */
    }
    /* The file grows by a line each message; now and then it is written anew with what we keep. A file that
     * is too large to be ours starts over. */
    if (n_lines > IG_EDIT_HISTORY_MAX * 2 || st == IG_ELIMIT) {
        ig_buf all = ig_buf_init(HISTORY_FILE_MAX);
        for (int i = 0; i < r->edit.n_history; i++) add_escaped(&all, ig_slice_of(r->edit.history[i]));
        ig_file_replace(r->history_path, all.p ? all.p : "", all.n, NULL);
        ig_buf_free(&all);
    }
    ig_buf_free(&line);
    free(text);
}

static void remember(repl *r, ig_slice text) {
    if (!ig_edit_remember(&r->edit, text) || !r->history_path) return;
    ig_buf line = ig_buf_init(2 * IG_EDIT_ENTRY_MAX + 1);
    int fd = open(r->history_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && add_escaped(&line, text)) {
        ssize_t n = write(fd, line.p, line.n); /* one write: two chats do not mix their lines */
        (void)n;                               /* a full disk costs the history a line, nothing else */
    }
    if (fd >= 0) close(fd);
    ig_buf_free(&line);
}

/* ---- the loops ---------------------------------------------------------------------------------------- */

bool ig_repl_read_plain(int fd, ig_buf *out, ig_err *err) {
    static uint8_t buffer[4096];
    static ssize_t n, at;
    bool any = false, full = false;
    *err = (ig_err){0};
    ig_buf_clear(out);
    for (;;) {
        if (at == n) {
            at = 0;
            n = read(fd, buffer, sizeof buffer);
            if (n < 0 && errno == EINTR && !ig_term_stop) n = 0;
            else if (n <= 0) {
                n = 0;
                break;
            }
            continue;
        }
        char c = (char)buffer[at++];
        any = true;
        if (c == '\n' && !full && ig_edit_is_open((ig_slice){out->p ? out->p : "", out->n})) {
            if (out->p[out->n - 1] == '\\') out->p[--out->n] = 0;
        } else if (c == '\n') break;
        if (c != '\r') full |= !ig_buf_add(out, &c, 1);
    }
    if (full) ig_fail(err, IG_ELIMIT, "a message longer than %zu bytes", out->n_max);
    else if (!ig_slice_utf8_valid((ig_slice){out->p ? out->p : "", out->n}, NULL))
        ig_fail(err, IG_EFORMAT, "a message that is not UTF-8");
    return any;
}

static void take(repl *r, ig_buf *text) {
    bool blank = true;
    for (size_t i = 0; i < text->n; i++) blank = blank && strchr(" \t\n", text->p[i]) != NULL;
    if (blank || run_command(r, text)) return;
    ig_slice s = {text->p, text->n};
    if (s.n > 1 && s.p[0] == '/' && s.p[1] == '/') s = (ig_slice){s.p + 1, s.n - 1};
    turn *t = add_turn(r, true);
    if (!t || !ig_buf_add(&t->text, s.p, s.n)) {
        say_error(r, "no room for another message: /new starts over");
        if (t) drop_turns(r, r->n_turns - 1);
        return;
    }
    answer(r);
}

static void talk(repl *r) {
    int n_interrupts = 0;
    say(r, "%s%s, context %d tokens, %d thread%s. /help lists the commands.%s\n\n", dim(r), r->l->name, r->l->plan.n_ctx,
        r->l->n_threads, r->l->n_threads == 1 ? "" : "s", plain(r));
    while (!r->leave && !ig_term_quit && !r->output_gone) {
        ig_edit_event event = ig_term_read(&r->edit, r->colour, r->colour ? "Write a message" : NULL);
        if (event == IG_EDIT_EOF || ig_term_quit) break;
        if (event == IG_EDIT_INTERRUPT) {
            if (++n_interrupts == 2) break;
            say(r, "%s  Ctrl-C again, or Ctrl-D, leaves.%s\n", dim(r), plain(r));
            continue;
        }
        n_interrupts = 0;
        remember(r, slice_of(&r->edit.text));
        take(r, &r->edit.text);
    }
}

static void listen_plain(repl *r) {
    ig_buf text = ig_buf_init(IG_EDIT_TEXT_MAX);
    ig_err err;
    while (!r->leave && !ig_term_stop && !r->output_gone && ig_repl_read_plain(STDIN_FILENO, &text, &err)) {
        if (err.code != IG_OK) say_error(r, err.msg);
        else take(r, &text);
    }
    ig_buf_free(&text);
}

int ig_repl_run(const struct ig_loaded *l, const ig_repl_options *o) {
    repl *r = calloc(1, sizeof *r);
    if (!r) return ig_app_say(IG_EXIT_MEMORY, "no memory for a conversation");
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    r->l = l;
    r->o = *o;
    r->system = ig_buf_init(TEXT_MAX);
    r->out = ig_buf_init(TEXT_MAX);
    if (o->system) ig_buf_add_str(&r->system, o->system);
    r->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    r->colour = r->terminal && !(no_colour && *no_colour);
    ig_edit_init(&r->edit);
    ig_term_open();
    if (r->terminal) {
        if (!o->no_history) r->history_path = state_path("chat_history");
        if (r->history_path) read_history(r);
        talk(r);
    } else {
        listen_plain(r);
    }
    int code = ig_term_quit ? 128 + ig_term_quit : !r->terminal && ig_term_stop ? IG_EXIT_INTERRUPTED
               : !r->terminal && r->failed                                      ? IG_EXIT_FAILED : IG_EXIT_OK;
    ig_term_close();
    drop_turns(r, 0);
    ig_edit_free(&r->edit);
    ig_buf_free(&r->system);
    ig_buf_free(&r->out);
    free(r->history_path);
    free(r->file);
    free(r);
    return code;
}
