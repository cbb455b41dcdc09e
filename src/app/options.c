/* options: one parser for every verb, driven by the verb's table; the same table prints --help.
 * Threads: main's. Memory: none; values point into argv or the environment.
 * Why a parser of our own and not getopt_long: an unknown flag must be an error that names the nearest
 *          known one, a value must be checked against its bounds with both in the message, and the help
 *          must not be able to differ from what is parsed. */
#include "app/app.h"
#include "app/nodes.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 };

/* ---- values -------------------------------------------------------------------------------------------- */

/* `label` is what the person wrote: "--port", "-p" or "INGLE_PORT". */
static bool bad_value(const char *label, const char *text, const char *wants) {
    ig_app_say(IG_EXIT_USAGE, "%s is \"%.80s\"; it wants %s", label, text, wants);
    return false;
}

static bool out_of_bounds(const char *label, const char *text, const ig_option *o) {
    ig_app_say(IG_EXIT_USAGE, "%s is %.80s, limit %.15g..%.15g", label, text, o->min, o->max);
    return false;
}

static bool size_out_of_bounds(const char *label, const char *text, const ig_option *o) {
    char alone[64] = "";
    if (o->bare > 0)
        snprintf(alone, sizeof alone, "; a number alone counts %s", ig_size_text_of((uint64_t)o->bare).s);
    ig_app_say(IG_EXIT_USAGE, "%s is %.80s, limit %.0f..%.0f bytes%s", label, text, o->min, o->max, alone);
    return false;
}

/* Of few values each is named: "8 or 16". */
static bool bad_step(const char *label, const char *text, const ig_option *o) {
    char wants[80];
    if (o->min + o->step == o->max) snprintf(wants, sizeof wants, "%.0f or %.0f", o->min, o->max);
    else snprintf(wants, sizeof wants, "a multiple of %d from %.0f to %.0f", o->step, o->min, o->max);
    ig_app_say(IG_EXIT_USAGE, "%s is %.80s; it wants %s", label, text, wants);
    return false;
}

static bool set_int(const ig_option *o, const char *label, const char *text) {
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text)) return bad_value(label, text, "a whole number");
    if (errno == ERANGE || v < INT_MIN || v > INT_MAX || (double)v < o->min || (double)v > o->max)
        return o->step ? bad_step(label, text, o) : out_of_bounds(label, text, o);
    if (o->step && v % o->step) return bad_step(label, text, o);
    *(int *)o->to = (int)v;
    return true;
}

static bool set_ints(const ig_option *o, const char *label, const char *text) {
    ig_option_ints list = {.n = 0};
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        const long v = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || isspace((unsigned char)*p))
            return bad_value(label, text, "whole numbers with commas between, as in 128,512");
        if (errno == ERANGE || v < INT_MIN || v > INT_MAX || (double)v < o->min || (double)v > o->max)
            return out_of_bounds(label, text, o);
        if (list.n == IG_OPTION_LIST_MAX) {
            ig_app_say(IG_EXIT_USAGE, "%s has more than %d numbers", label, IG_OPTION_LIST_MAX);
            return false;
        }
        list.v[list.n++] = (int)v;
        p = end;
        if (!*p) break;
    }
    *(ig_option_ints *)o->to = list;
    return true;
}

static bool set_real(const ig_option *o, const char *label, const char *text) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text)) return bad_value(label, text, "a number");
    if (!isfinite(v) || v < o->min || v > o->max) return out_of_bounds(label, text, o);
    *(double *)o->to = v;
    return true;
}

static bool set_u64(const ig_option *o, const char *label, const char *text) {
    char *end;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno == ERANGE)
        return bad_value(label, text, "a whole number from 0 to 18446744073709551615");
    *(uint64_t *)o->to = v;
    return true;
}

static bool set_size(const ig_option *o, const char *label, const char *text) {
    static const struct {
        const char *suffix;
        double bytes;
    } units[] = {{"", 1},           {"K", 1e3},           {"M", 1e6},
                 {"G", 1e9},        {"T", 1e12},          {"Ki", 1024.0},
                 {"Mi", 1048576.0}, {"Gi", 1073741824.0}, {"Ti", 1099511627776.0}};
    char wants[128];
    snprintf(wants, sizeof wants, "a size: %sa number with K M G T (powers of 1000) or Ki Mi Gi Ti (of 1024)",
             o->bare > 0 ? "" : "bytes, or ");
    char *end;
    double v = strtod(text, &end);
    size_t n = strlen(end);
    if (!isdigit((unsigned char)*text) || strchr(text, 'x') || strchr(text, 'X'))
        return bad_value(label, text, wants);
    if (n && end[n - 1] == 'B') n--; /* "4GB" is 4G */
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (n != strlen(units[i].suffix) || strncmp(end, units[i].suffix, n) != 0) continue;
        bool bare = n == 0 && v > 0 && o->bare > 0;
        v *= bare ? o->bare : units[i].bytes;
        if (!isfinite(v) || v < o->min || v > o->max) return size_out_of_bounds(label, text, o);
        *(uint64_t *)o->to = (uint64_t)v;
        if (bare)
            fprintf(stderr, "ingle: %s %s is taken as %s; better with a suffix, as in 4G or 512Mi\n", label,
                    text, ig_size_text_of((uint64_t)v).s);
        return true;
    }
    return bad_value(label, text, wants);
}

static bool set_list(const ig_option *o, const char *label, const char *text) {
    ig_option_list *list = o->to;
    if (list->n == IG_OPTION_LIST_MAX) {
        ig_app_say(IG_EXIT_USAGE, "%s is there more than %d times", label, IG_OPTION_LIST_MAX);
        return false;
    }
    list->v[list->n++] = text;
    return true;
}

/* "--l1" and "--l3": which of them was meant, nobody can say. The same one twice is no contradiction. */
static bool set_one(const ig_option *o) {
    ig_option_one *one = o->to;
    if (one->by && one->v != (int)o->min) {
        ig_app_say(IG_EXIT_USAGE, "--%s and --%s exclude each other; give one of them", one->by,
                   o->name);
        return false;
    }
    *one = (ig_option_one){(int)o->min, o->name};
    return true;
}

static bool set_value(const ig_option *o, const char *label, const char *text) {
    bool good = true;
    switch (o->kind) {
    case IG_OPT_BOOL:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) return bad_value(label, text, "1 or 0");
        *(bool *)o->to = *text == '1';
        break;
    case IG_OPT_ONE:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) return bad_value(label, text, "1 or 0");
        good = *text == '0' || set_one(o);
        break;
    case IG_OPT_INT: good = set_int(o, label, text); break;
    case IG_OPT_INTS: good = set_ints(o, label, text); break;
    case IG_OPT_REAL: good = set_real(o, label, text); break;
    case IG_OPT_U64: good = set_u64(o, label, text); break;
    case IG_OPT_SIZE: good = set_size(o, label, text); break;
    case IG_OPT_TEXT: *(const char **)o->to = text; break;
    case IG_OPT_LIST: good = set_list(o, label, text); break;
    }
    if (good && o->given) *o->given = true;
    return good;
}

/* ---- names --------------------------------------------------------------------------------------------- */

/* Edit distance with swaps of neighbours, of words no longer than NAME_MAX_BYTES; longer: far away. */
static int distance(const char *a, const char *b) {
    int row[3][NAME_MAX_BYTES + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > NAME_MAX_BYTES || n_b > NAME_MAX_BYTES) return INT_MAX;
    for (size_t j = 0; j <= n_b; j++) row[0][j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n_a % 3][n_b];
}

/* One slip in a short word, one more for every three letters of a longer one. */
const char *ig_options_nearest(const char *word, const char *const *names) {
    const char *best = NULL;
    const int n = (int)strlen(word);
    int least = n > 3 ? 1 + n / 3 : 1;
    for (; *names; names++) {
        int d = distance(word, *names);
        if (d > least || (d == least && best)) continue;
        best = *names;
        least = d;
    }
    return best;
}

static bool same(const char *name, const char *p, size_t n) {
    return name && strlen(name) == n && memcmp(name, p, n) == 0;
}

static const ig_option *find_long(const ig_command *c, const char *p, size_t n) {
    for (int i = 0; i < c->n_options; i++)
        if (same(c->options[i].name, p, n) || same(c->options[i].other, p, n)) return &c->options[i];
    return NULL;
}

static const ig_option *find_letter(const ig_command *c, char letter) {
    for (int i = 0; i < c->n_options; i++)
        if (letter && c->options[i].letter == letter) return &c->options[i];
    return NULL;
}

static void say_unknown(const ig_command *c, const char *arg) {
    enum { MOST = 160 };
    const char *names[MOST + 1], *p = arg + strspn(arg, "-");
    char word[NAME_MAX_BYTES + 1] = "";
    int n = 0;
    size_t n_word = strcspn(p, "=");
    for (int i = 0; i < c->n_options && n + 2 <= MOST; i++) {
        names[n++] = c->options[i].name;
        if (c->options[i].other) names[n++] = c->options[i].other;
    }
    names[n] = NULL;
    if (n_word <= NAME_MAX_BYTES) memcpy(word, p, n_word);
    const char *near = *word ? ig_options_nearest(word, names) : NULL;
    ig_app_say(IG_EXIT_USAGE, "%s has no option %.*s%s%s%s (ingle %s --help lists them)", c->verb,
               n_word > 80 ? 80 : (int)(p - arg + (ptrdiff_t)n_word), arg, near ? "; did you mean --" : "",
               near ? near : "", near ? "?" : "", c->verb);
}

/* ---- parsing ------------------------------------------------------------------------------------------- */

/* Is this word an option of the table? Then it is not somebody's value. */
static bool is_option(const ig_command *c, const char *arg) {
    if (strncmp(arg, "--", 2) != 0) return arg[0] == '-' && arg[1] && !arg[2] && find_letter(c, arg[1]);
    const char *eq = strchr(arg, '=');
    return find_long(c, arg + 2, eq ? (size_t)(eq - arg - 2) : strlen(arg + 2)) != NULL;
}

/* argv[*i] starts with '-' and is not "-". */
static bool take_option(const ig_command *c, int argc, char **argv, int *i, bool *seen) {
    const char *arg = argv[*i], *eq = NULL, *value = NULL;
    const ig_option *o;
    char label[NAME_MAX_BYTES + 8];

    if (arg[1] == '-') {
        eq = strchr(arg, '=');
        size_t n = eq ? (size_t)(eq - arg - 2) : strlen(arg + 2);
        o = find_long(c, arg + 2, n);
        if (!o && !eq && strncmp(arg, "--no-", 5) == 0) {
            o = find_long(c, arg + 5, n - 3);
            if (o && o->kind == IG_OPT_BOOL) {
                seen[o - c->options] = true;
                return set_value(o, arg, "0");
            }
            o = NULL;
        }
    } else {
        o = arg[2] ? NULL : find_letter(c, arg[1]);
    }
    if (!o) {
        say_unknown(c, arg);
        return false;
    }
    seen[o - c->options] = true;
    snprintf(label, sizeof label, eq ? "--%s" : "%s", eq ? o->name : arg);
    if ((o->kind == IG_OPT_BOOL || o->kind == IG_OPT_ONE) && !eq) return set_value(o, label, "1");
    if (eq) {
        value = eq + 1;
    } else if (*i + 1 < argc && !is_option(c, argv[*i + 1])) {
        value = argv[++*i];
    } else {
        ig_app_say(IG_EXIT_USAGE, "%s wants a value: %s", label, o->value ? o->value : "");
        return false;
    }
    return set_value(o, label, value);
}

/* "max-tokens" -> "INGLE_MAX_TOKENS". */
static void environment_name(char out[NAME_MAX_BYTES + 8], const char *option) {
    size_t n = (size_t)snprintf(out, NAME_MAX_BYTES + 8, "INGLE_");
    for (const char *p = option; *p && n < NAME_MAX_BYTES + 7; p++, n++)
        out[n] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    out[n] = 0;
}

/* Was it, or of options that exclude each other any, on the command line? That wins over the environment. */
static bool was_given(const ig_command *c, const bool *seen, int i) {
    for (int k = 0; k < c->n_options; k++)
        if (seen[k] && c->options[k].to == c->options[i].to) return true;
    return false;
}

static bool take_environment(const ig_command *c, const bool *seen) {
    for (int i = 0; i < c->n_options; i++) {
        char name[NAME_MAX_BYTES + 8];
        environment_name(name, c->options[i].name);
        const char *value = c->options[i].typed || was_given(c, seen, i) ? NULL : getenv(name);
        if (value && *value && !set_value(&c->options[i], name, value)) return false;
    }
    return true;
}

extern char **environ;

/* INGLE_PROT=9000 would be ignored: better said. Other verbs than serve hear only of what is one slip away from
 * theirs, since a variable may be meant for serve. */
static void warn_environment(const ig_command *c) {
    /* Read by others than option tables: folders below, tests, ./run. */
    static const char *const others[] = {"INGLE_CACHE", "INGLE_STATE", "INGLE_CPU", "INGLE_PROGRAM", "INGLE_BUILD"};
    enum { MOST = 160, N_OTHERS = sizeof others / sizeof *others };
    static char own[MOST][NAME_MAX_BYTES + 8];
    const char *names[MOST + N_OTHERS + 1];
    int n = 0;
    for (; n < c->n_options && n < MOST; n++) {
        environment_name(own[n], c->options[n].name);
        names[n] = own[n];
    }
    for (int i = 0; i < N_OTHERS; i++) names[n++] = others[i];
    names[n] = NULL;
    for (char **e = environ; *e; e++) {
        char name[NAME_MAX_BYTES + 8];
        size_t len = strcspn(*e, "=");
        if (strncmp(*e, "INGLE_", 6) != 0 || strncmp(*e, "INGLE_TEST_", 11) == 0 || len >= sizeof name)
            continue;
        memcpy(name, *e, len);
        name[len] = 0;
        bool known = false;
        for (int i = 0; i < n && !known; i++) known = strcmp(name, names[i]) == 0;
        const char *near = known ? NULL : ig_options_nearest(name, names);
        if (near && (c->env_all || distance(name, near) == 1))
            ig_app_say(0, "%s in the environment means nothing; did you mean %s?", name, near);
        else if (!known && c->env_all)
            ig_app_say(0, "%s in the environment means nothing to %s", name, c->verb);
    }
}

bool ig_options_parse(const ig_command *c, int argc, char **argv, ig_words *words, int *exit_code) {
    enum { OPTIONS_MAX = 64 };
    bool seen[OPTIONS_MAX] = {false}, words_only = false;
    ig_assert(c->n_options <= OPTIONS_MAX);
    words->n = 0;
    *exit_code = IG_EXIT_USAGE;
    /* First of all, so that the help shows defaults and not half of a command line. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        ig_options_print_help(c);
        *exit_code = IG_EXIT_OK;
        return false;
    }
    for (int i = 1; i < argc; i++) {
        if (!words_only && strcmp(argv[i], "--") == 0) {
            words_only = true;
        } else if (!words_only && argv[i][0] == '-' && argv[i][1]) {
            if (!take_option(c, argc, argv, &i, seen)) return false;
        } else if (words->n == c->n_words_max || words->n == IG_WORDS_MAX) {
            ig_app_say(IG_EXIT_USAGE, "%s: unexpected \"%.80s\" (ingle %s --help)", c->verb, argv[i],
                       c->verb);
            return false;
        } else {
            words->v[words->n++] = argv[i];
        }
    }
    warn_environment(c);
    if (!take_environment(c, seen)) return false;
    *exit_code = IG_EXIT_OK;
    return true;
}

/* ---- help ---------------------------------------------------------------------------------------------- */

/* As a command line would say it: 32Mi, and never 33.6 MB for it. */
static ig_size_text size_as_given(uint64_t bytes) {
    ig_size_text t;
    for (int shift = 40, i = 0; shift >= 20; shift -= 10, i++) {
        if (bytes % (UINT64_C(1) << shift)) continue;
        snprintf(t.s, sizeof t.s, "%" PRIu64 "%ci", bytes >> shift, "TGM"[i]);
        return t;
    }
    return ig_size_text_of(bytes);
}

/* " [5]", or nothing. */
static void add_default(ig_buf *out, const ig_option *o) {
    const ig_option_ints *list = o->kind == IG_OPT_INTS ? o->to : NULL;
    if (o->kind == IG_OPT_INT && *(const int *)o->to) ig_buf_addf(out, " [%d]", *(const int *)o->to);
    if (o->kind == IG_OPT_REAL && *(const double *)o->to > 0) ig_buf_addf(out, " [%g]", *(const double *)o->to);
    if (o->kind == IG_OPT_SIZE && *(const uint64_t *)o->to)
        ig_buf_addf(out, " [%s]", size_as_given(*(const uint64_t *)o->to).s);
    if (o->kind == IG_OPT_TEXT && *(const char *const *)o->to)
        ig_buf_addf(out, " [%s]", *(const char *const *)o->to);
    for (int i = 0; list && i < list->n; i++)
        ig_buf_addf(out, "%s%d%s", i ? "," : " [", list->v[i], i + 1 == list->n ? "]" : "");
}

/* With the first option that takes a number. */
static void print_env_example(const ig_command *c) {
    char name[NAME_MAX_BYTES + 8];
    const char *but = "";
    for (int i = 0; i < c->n_options; i++)
        if (c->options[i].typed) but = " but those that say yes";
    for (int i = 0; i < c->n_options; i++) {
        if (c->options[i].kind != IG_OPT_INT) continue;
        environment_name(name, c->options[i].name);
        printf("\n%s=N stands for --%s N, and so on for every option here%s.\n", name, c->options[i].name, but);
        return;
    }
}

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

/* Words from `column` on, and below each other there. A first line of blanks is the caller's. */
static void print_wrapped(const char *text, int column) {
    int at = column;
    for (const char *p = text; *p;) {
        const int n = (int)strcspn(p, " ");
        if (at > column && at + 1 + n > HELP_WIDTH) at = printf("\n%*s", column, "") - 1;
        else if (at > column) at += printf(" ");
        at += printf("%.*s", n, p);
        p += n;
        p += strspn(p, " ");
    }
    printf("\n");
}

/* `after`: what stands behind help and default. */
static void print_option(const ig_option *o, const char *after) {
    const bool off = o->kind == IG_OPT_BOOL && *(const bool *)o->to; /* on by default: show how to switch it off */
    char letter[5] = "    ", left[96];
    ig_buf text = ig_buf_init(4096);
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s%s%s%s", letter, off ? "no-" : "", o->name,
                     o->other ? ", --" : "", o->other ? o->other : "", o->value ? " " : "", o->value ? o->value : "");
    if (n + 2 <= HELP_COLUMN) printf("%-*s", HELP_COLUMN, left);
    else printf("%s\n%*s", left, HELP_COLUMN, "");
    ig_buf_add_str(&text, o->help);
    add_default(&text, o);
    ig_buf_add_str(&text, after);
    print_wrapped(text.n ? text.p : o->help, HELP_COLUMN);
    ig_buf_free(&text);
}

/* How many steps a flag reaches is counted in the registry; `ingle tiers --reaches FLAG` names them. */
static void print_numbers(const ig_command *c) {
    bool any = false;
    for (int i = 0; i < c->n_options; i++) {
        const ig_option *o = &c->options[i];
        const ig_tier_node *n;
        char reach[32];
        int count = 0;
        if (!o->numbers) continue;
        if (!any) printf("\nnumbers, with the steps of a model that each reaches (ingle tiers --reaches FLAG names them):\n");
        any = true;
        for (int k = 0; (n = ig_node_at(k)) != NULL; k++) count += !n->training && ig_tier_lists(n->flags, " ", o->name);
        snprintf(reach, sizeof reach, " (%d step%s)", count, count == 1 ? "" : "s");
        print_option(o, reach);
    }
}

void ig_options_print_help(const ig_command *c) {
    printf("usage: ingle %s%s%s%s\n\n", c->verb, *c->words ? " " : "", c->words, c->n_options ? " [OPTIONS]" : "");
    print_wrapped(c->summary, 0);
    printf("\noptions:\n");
    for (int i = 0; i < c->n_options; i++)
        if (!c->options[i].numbers) print_option(&c->options[i], "");
    printf("  -h, --help%*sthis text\n", HELP_COLUMN - 12, "");
    print_numbers(c);
    print_env_example(c);
    if (c->more) printf("\n%s\n", c->more);
}
