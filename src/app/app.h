/* app: the program. It turns words on a command line into calls of the folders below and is the only
 * place that prints.
 *
 * Owns:    main, the verbs, the option tables, the search for a model, the start and end of everything.
 * Gives:   exit codes (ig_exit). Results go to stdout; progress, banners and errors to stderr.
 * Threads: main's thread runs the verb; a second one reads tokenizer and template while weights load.
 * Fails:   a function here that returns `int` returns an exit code: 0 is good, anything else was already
 *          explained on stderr in one line that starts with "ingle: ".
 * Not here: HTTP (serve/), scheduling (engine/), anything that another program would want to call. */
#ifndef IG_APP_H
#define IG_APP_H

#include "base/base.h"

#include <signal.h>

typedef enum ig_exit {
    IG_EXIT_OK = 0,
    IG_EXIT_FAILED = 1,       /* failed while running */
    IG_EXIT_USAGE = 2,        /* command line */
    IG_EXIT_NOT_FOUND = 3,    /* model or file not found, or ambiguous */
    IG_EXIT_MEMORY = 4,       /* does not fit in memory */
    IG_EXIT_NETWORK = 5,      /* the hub could not be reached, refused or broke off */
    IG_EXIT_CORRUPT = 6,      /* a file that is damaged or that we do not run */
    IG_EXIT_BUSY = 7,         /* the port is taken, or another process holds what is wanted */
    IG_EXIT_ENGINE = 70,      /* the engine failed or hangs */
    IG_EXIT_INTERRUPTED = 130,
    IG_EXIT_TERMINATED = 143
} ig_exit;

#define IG_VERSION "0.1.0"

int ig_exit_of(ig_status st);
static inline int ig_exit_of_signal(int sig) {
    return 128 + sig;
}
/* Prints "ingle: MESSAGE" and gives the exit code of err->code. */
int ig_app_fail(const ig_err *err);
/* The same with a message and a code of its own. */
int ig_app_say(int exit_code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Asks a question on stderr; true: yes was read from stdin. */
bool ig_app_confirm(const char *question);
/* A line of a list below such a message: a name from outside, made fit for a terminal. */
void ig_app_list_name(const char *before, const char *name);

/* ---- signals.c ---------------------------------------------------------------------------------------- */

extern volatile sig_atomic_t ig_signal_seen; /* SIGINT or SIGTERM once one came, else 0 */
/* From here on the first of them is noted and a second ends the program at once with 130 or 143. */
bool ig_signals_note(void);
int ig_signals_wait(int timeout_ms); /* until one came or the time is over; gives ig_signal_seen */

/* ---- options.c: one parser, driven by tables ------------------------------------------------------- */

typedef enum ig_option_kind {
    IG_OPT_BOOL, /* bool: --x and --no-x; takes no value */
    IG_OPT_ONE,  /* ig_option_one: takes no value; sets it to `min`; of options that share one, one may be there */
    IG_OPT_INT,  /* int, within [min, max] */
    IG_OPT_REAL, /* double, within [min, max] */
    IG_OPT_U64,  /* uint64_t: seeds */
    IG_OPT_SIZE, /* uint64_t bytes: 1024, 4K, 2G (decimal), 512Mi (binary); within [min, max] */
    IG_OPT_TEXT, /* const char *: the last one wins */
    IG_OPT_LIST, /* ig_option_list: every one counts */
    IG_OPT_INTS  /* ig_option_ints: "128,512", each within [min, max]; the last one wins */
} ig_option_kind;

enum { IG_OPTION_LIST_MAX = 16 };

typedef struct ig_option_one {
    int v;          /* the default, then the `min` of the option that was there */
    const char *by; /* the name of that option; NULL: none was */
} ig_option_one;

typedef struct ig_option_list {
    const char *v[IG_OPTION_LIST_MAX + 1]; /* NULL-ended */
    int n;
} ig_option_list;

typedef struct ig_option_ints {
    int v[IG_OPTION_LIST_MAX];
    int n;
} ig_option_ints;

/* One row of a verb's table. `to` points at the variable, whose value before parsing is the default. In every verb
 * INGLE_<NAME> stands in for an option that was not given. */
typedef struct ig_option {
    const char *name;  /* "max-tokens" */
    const char *other; /* a second long name, or NULL */
    char letter;       /* 'p' for -p, or 0 */
    ig_option_kind kind;
    void *to;
    double min, max;
    int step;          /* of an int: multiples of it only; 0: any */
    double bare;       /* of a size: what a number without a suffix counts; 0: bytes */
    const char *value; /* what --help calls the value: "N"; NULL for a bool */
    const char *help;
    bool *given;       /* set when the option was there, or NULL */
    bool numbers;      /* it changes the bits of results: --help has these in a group, with what they reach */
    bool typed;        /* a consent: on the command line only, never from the environment */
} ig_option;

enum { IG_WORDS_MAX = 64 };

typedef struct ig_command {
    const char *verb;     /* "generate" */
    const char *words;    /* "[MODEL]": what else it takes */
    const char *summary;  /* one line */
    const char *more;     /* text below the options in --help, or NULL */
    const ig_option *options;
    int n_options;
    int n_words_max;      /* at most IG_WORDS_MAX */
    bool env_all;         /* whatever else begins with INGLE_ is told; else only what is nearly an option */
} ig_command;

typedef struct ig_words {
    const char *v[IG_WORDS_MAX];
    int n;
} ig_words;

/* argv[0] is the verb. True: go on. False: stop with *exit_code (--help was printed, or the error was).
 * "--" ends options. */
bool ig_options_parse(const ig_command *c, int argc, char **argv, ig_words *words, int *exit_code);
void ig_options_print_help(const ig_command *c); /* on stdout */
/* The nearest of `names` (NULL-ended) when it is near enough to be meant, else NULL. */
const char *ig_options_nearest(const char *word, const char *const *names);
/* "avx2", of a bit of ig_cpu_features(); NULL: there is no such bit. */
const char *ig_app_feature_name(uint32_t bit);

/* ---- the verbs -------------------------------------------------------------------------------------- */

/* argv[0] is the verb itself; returns the exit code. */
int ig_cmd_serve(int argc, char **argv);
int ig_cmd_chat(int argc, char **argv);
int ig_cmd_generate(int argc, char **argv);
int ig_cmd_tokens(int argc, char **argv);
int ig_cmd_embed(int argc, char **argv);
int ig_cmd_fit(int argc, char **argv);
int ig_cmd_show(int argc, char **argv);
int ig_cmd_tiers(int argc, char **argv);
int ig_cmd_bench(int argc, char **argv);
int ig_cmd_version(int argc, char **argv);
int ig_cmd_get(int argc, char **argv);
int ig_cmd_ls(int argc, char **argv);
int ig_cmd_rm(int argc, char **argv);
int ig_cmd_gc(int argc, char **argv);
int ig_cmd_scan(int argc, char **argv);

#endif
