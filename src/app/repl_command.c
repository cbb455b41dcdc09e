/* repl_command: what begins with a slash in `ingle chat`.
 * Threads: main's. Memory: none that lasts.
 * Commands and settings are tables; help, look-up and "did you mean" read the same rows. */
#include "app/repl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *plural(int n) {
    return n == 1 ? "" : "s";
}

/* ---- settings ----------------------------------------------------------------------------------------- */

typedef struct setting {
    const char *name;
    size_t at; /* in ig_repl_options */
    bool whole;
    double min, max;
    const char *help;
} setting;

#define AT(field) offsetof(ig_repl_options, field)
static const setting settings[] = {
    {"temperature", AT(sampling.temperature), false, 0, 5, "0 always takes the likeliest token"},
    {"top_p", AT(sampling.top_p), false, 0, 1, "keep the likeliest tokens that hold this much; 0: all"},
    {"top_k", AT(sampling.top_k), true, 0, 1 << 24, "keep this many of the likeliest tokens; 0: all"},
    {"min_p", AT(sampling.min_p), false, 0, 1, "drop tokens less likely than this share of the best"},
    {"max_tokens", AT(max_tokens), true, 0, 1 << 24, "longest answer; 0: what the context leaves"},
};
#undef AT
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static const char seed_help[] = "a whole number of 64 bits, or off: a fresh one for each answer";

static void say_setting(ig_repl *r, const setting *s) {
    const char *base = (const char *)&r->o + s->at;
    char value[32];
    if (s->whole) snprintf(value, sizeof value, "%d", *(const int *)(const void *)base);
    else snprintf(value, sizeof value, "%g", *(const double *)(const void *)base);
    ig_repl_say(r, "  %-12s %-8s %s%s%s\n", s->name, value, ig_repl_dim(r), s->help, ig_repl_plain(r));
}

static void say_seed(ig_repl *r) {
    char value[32] = "off";
    if (r->o.seeded) snprintf(value, sizeof value, "%" PRIu64, r->o.sampling.seed);
    ig_repl_say(r, "  %-12s %-8s %s%s%s\n", "seed", value, ig_repl_dim(r), seed_help, ig_repl_plain(r));
}

static void set_number(ig_repl *r, const setting *s, const char *value) {
    char *end = NULL;
    double x = strtod(value, &end);
    bool good = end != value && !*end && x >= s->min && x <= s->max && (!s->whole || x == (double)(int)x);
    if (!good) {
        ig_repl_say_error(r, "%s: \"%.40s\" is not a %snumber from %g to %.0f", s->name, value,
                          s->whole ? "whole " : "", s->min, s->max);
        return;
    }
    char *base = (char *)&r->o + s->at;
    if (s->whole) *(int *)(void *)base = (int)x;
    else *(double *)(void *)base = x;
    say_setting(r, s);
}

static void set_seed(ig_repl *r, const char *value) {
    char *end = NULL;
    errno = 0;
    uint64_t seed = strtoull(value, &end, 10);
    bool off = strcmp(value, "off") == 0, digits = value[0] >= '0' && value[0] <= '9';
    if (!off && (errno || !digits || *end)) {
        ig_repl_say_error(r, "seed: \"%.40s\" is not %s", value, seed_help);
        return;
    }
    r->o.seeded = !off;
    r->o.sampling.seed = off ? 0 : seed;
    say_seed(r);
}

static void cmd_set(ig_repl *r, char *rest) {
    char *value = rest + strcspn(rest, " =");
    if (*value) *value++ = 0;
    value += strspn(value, " =");
    for (char *c = rest; *c; c++)
        if (*c == '-') *c = '_';
    if (!*rest) {
        for (int i = 0; i < N_SETTINGS; i++) say_setting(r, &settings[i]);
        say_seed(r);
        return;
    }
    if (strcmp(rest, "seed") == 0) {
        if (*value) set_seed(r, value);
        else say_seed(r);
        return;
    }
    for (int i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        if (strcmp(rest, s->name) != 0 && !(i == 0 && strcmp(rest, "temp") == 0)) continue;
        if (*value) set_number(r, s, value);
        else say_setting(r, s);
        return;
    }
    ig_repl_say_error(r, "no setting \"%.40s\". There are temperature, top_p, top_k, min_p, max_tokens, seed",
                      rest);
}

static void cmd_seed(ig_repl *r, char *rest) {
    if (*rest) set_seed(r, rest);
    else say_seed(r);
}

static void cmd_system(ig_repl *r, char *rest) {
    bool off = strcmp(rest, "off") == 0;
    if (*rest) ig_buf_clear(&r->system);
    if (*rest && !off) ig_buf_add_str(&r->system, rest);
    if (r->system.n) ig_repl_say(r, "  System prompt: %s\n", r->system.p);
    else ig_repl_say(r, "  No system prompt.\n");
}

/* ---- the conversation --------------------------------------------------------------------------------- */

static void cmd_new(ig_repl *r, char *rest) {
    (void)rest;
    ig_repl_drop(r, 0);
    ig_repl_say(r, "  A new conversation.\n");
}

/* Turns up to and with the last of the user's; 0: there is none. */
static int n_asked(const ig_repl *r) {
    int n = r->n_turns;
    while (n && !r->turns[n - 1].user) n--;
    return n;
}

static void cmd_undo(ig_repl *r, char *rest) {
    (void)rest;
    if (!n_asked(r)) {
        ig_repl_say(r, "  There is nothing to undo.\n");
        return;
    }
    ig_repl_drop(r, n_asked(r) - 1);
    ig_repl_say(r, "  The last exchange is gone. %d message%s left.\n", r->n_turns, plural(r->n_turns));
}

static void cmd_regen(ig_repl *r, char *rest) {
    (void)rest;
    if (!n_asked(r)) {
        ig_repl_say(r, "  There is no message to answer yet.\n");
        return;
    }
    const char *fixed = r->o.seeded ? "this seed" : r->o.sampling.temperature == 0 ? "temperature 0" : NULL;
    if (fixed) ig_repl_say(r, "  With %s the answer will be the same.\n", fixed);
    ig_repl_drop(r, n_asked(r));
    ig_repl_answer(r);
}

/* As the template renders it, with what opens the next answer: longer than what was computed. */
static bool conversation_tokens(const ig_repl *r, size_t *n) {
    ig_tokens t = {0};
    const bool good = ig_repl_encode(r, &t, NULL) == IG_OK;
    *n = t.n;
    ig_tokens_free(&t);
    return good;
}

static void cmd_stats(ig_repl *r, char *rest) {
    (void)rest;
    const ig_gen_stats *s = &r->last.stats;
    int n_new = s->n_prompt > s->n_cached ? s->n_prompt - s->n_cached : 0;
    size_t n_next;
    if (!r->n_answers) {
        ig_repl_say(r, "  No answer yet.\n");
        return;
    }
    ig_repl_say(r, "  last answer  %d token%s, %.1f tok/s, first token %.0f ms", s->n_tokens, plural(s->n_tokens),
                ig_repl_speed(s), (double)s->first_token_ns / 1e6);
    if (r->last_drawn) ig_repl_say(r, ", seed %" PRIu64, r->last_seed);
    ig_repl_say(r, "\n");
    ig_repl_say(r, "  its prompt   %d tokens: %d cached, %d computed", s->n_prompt, s->n_cached, n_new);
    if (s->prefill_ns) ig_repl_say(r, " at %.0f tok/s", n_new * 1e9 / (double)s->prefill_ns);
    ig_repl_say(r, "\n  context      %d of %d tokens", s->n_prompt + s->n_tokens, r->l->plan.n_ctx);
    if (conversation_tokens(r, &n_next)) ig_repl_say(r, "; %zu with what opens the next answer", n_next);
    ig_repl_say(r, "\n");
    ig_repl_say(r, "  all answers  %d, %" PRIu64 " tokens; %" PRIu64 " of %" PRIu64 " prompt tokens cached\n",
                r->n_answers, r->n_tokens, r->n_cached, r->n_prompt);
}

static void cmd_tokens(ig_repl *r, char *rest) {
    ig_err err = {0};
    ig_tokens t = {0};
    ig_status st = *rest ? ig_text_encode(r->l, ig_slice_of(rest), &t, &err) : ig_repl_encode(r, &t, &err);
    if (st != IG_OK) ig_repl_say_error(r, "%s", err.msg);
    else if (!*rest) ig_repl_say(r, "  The conversation has %zu tokens of %d, with what opens the next answer.\n", t.n, r->l->plan.n_ctx);
    else {
        ig_repl_say(r, "  %zu tokens:", t.n);
        for (size_t i = 0; i < t.n && i < 200; i++) ig_repl_say(r, " %" PRIu32, t.v[i]);
        ig_repl_say(r, "%s\n", t.n > 200 ? " ..." : "");
    }
    ig_tokens_free(&t);
}

/* ---- files -------------------------------------------------------------------------------------------- */

/* malloc'd, with ~/ opened out. */
static char *path_of(const char *text) {
    const char *home = text[0] == '~' && text[1] == '/' ? getenv("HOME") : NULL;
    char *out = NULL;
    if (!home) return strdup(text);
    return asprintf(&out, "%s%s", home, text + 1) < 0 ? NULL : out;
}

static void done_with_file(ig_repl *r, char *path, const char *how) {
    ig_repl_say(r, "  %d message%s %s %s\n", r->n_turns, plural(r->n_turns), how, path);
    free(r->file);
    r->file = path;
}

static void cmd_save(ig_repl *r, char *rest) {
    ig_err err = {0};
    struct stat info;
    char *path = *rest ? path_of(rest) : r->file ? strdup(r->file) : NULL;
    if (!path) {
        ig_repl_say_error(r, "/save needs a file name");
        return;
    }
    ig_status st = IG_OK;
    if (!(r->file && strcmp(path, r->file) == 0) && lstat(path, &info) == 0)
        st = ig_fail(&err, IG_EINVAL, "%s is there already: choose another name", path);
    if (st == IG_OK) st = ig_repl_save(r, path, &err);
    if (st == IG_OK) {
        done_with_file(r, path, "saved in");
        return;
    }
    ig_repl_say_error(r, "%s", err.msg);
    free(path);
}

static void cmd_load(ig_repl *r, char *rest) {
    ig_err err = {0};
    char *path = *rest ? path_of(rest) : NULL;
    if (!path) {
        ig_repl_say_error(r, "/load needs a file name");
        return;
    }
    if (ig_repl_load(r, path, &err) == IG_OK) {
        done_with_file(r, path, "read from");
        return;
    }
    ig_repl_say_error(r, "%s", err.msg);
    free(path);
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static void cmd_quit(ig_repl *r, char *rest) {
    (void)rest;
    r->leave = true;
}

static void cmd_help(ig_repl *r, char *rest);

static const struct {
    const char *name, *words, *help; /* help NULL: another name for one above */
    void (*run)(ig_repl *r, char *rest);
} commands[] = {
    {"help", "", "this list", cmd_help},
    {"new", "", "a new conversation", cmd_new},
    {"regen", "", "another answer to the last message", cmd_regen},
    {"undo", "", "take the last message and its answer back", cmd_undo},
    {"system", "TEXT", "how the model should behave; off: no system prompt", cmd_system},
    {"set", "NAME VALUE", "temperature, top_p, top_k, min_p, max_tokens; alone: show them", cmd_set},
    {"seed", "N", "the same seed gives the same answer; off: a fresh one each time", cmd_seed},
    {"stats", "", "speed, cached tokens, context", cmd_stats},
    {"tokens", "TEXT", "the tokens of a text; alone: how long the conversation is", cmd_tokens},
    {"save", "FILE", "write the conversation as JSON", cmd_save},
    {"load", "FILE", "read a conversation", cmd_load},
    {"quit", "", "leave, as Ctrl-D does", cmd_quit},
    {"exit", "", NULL, cmd_quit},
    {"bye", "", NULL, cmd_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void cmd_help(ig_repl *r, char *rest) {
    (void)rest;
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].help)
            ig_repl_say(r, "  /%-6s %-10s %s\n", commands[i].name, commands[i].words, commands[i].help);
    ig_repl_say(r, "\n"
                "Enter sends. Alt-Enter, Ctrl-J or a backslash at the end starts a new line; what "
                "stands between two lines of ``` belongs together, and so does what is pasted. The "
                "arrow keys find earlier messages. Ctrl-C stops an answer; twice on an empty line it "
                "leaves.\n");
}

bool ig_repl_command(ig_repl *r, ig_buf *text) {
    char *s = text->p, name[32];
    size_t n = s && s[0] == '/' ? 1 + strspn(s + 1, "abcdefghijklmnopqrstuvwxyz?") : 0;
    if (n < 2 || n > sizeof name || !strchr(" \t\n", s[n])) return false; /* strchr finds the end too */
    while (text->n > n && strchr(" \t\n", s[text->n - 1])) s[--text->n] = 0;
    char *rest = s + n + strspn(s + n, " \t\n");
    memcpy(name, s + 1, n - 1);
    name[n - 1] = 0;
    if (strcmp(name, "?") == 0) memcpy(name, "help", 5);
    const char *names[N_COMMANDS + 1] = {0};
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) != 0) continue;
        commands[i].run(r, rest);
        if (r->terminal && commands[i].run != cmd_regen) ig_repl_say(r, "\n");
        return true;
    }
    const char *near = ig_options_nearest(name, names);
    if (near) ig_repl_say_error(r, "/%s is no command. Did you mean /%s?", name, near);
    else ig_repl_say_error(r, "/%s is no command. /help lists them.", name);
    if (r->terminal) ig_repl_say(r, "\n");
    return true;
}
