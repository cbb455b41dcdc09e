/* main: which verb. A word that is no verb but names a model is served: `ingle smol` is `ingle serve
 * smol`. */
#include "app/app.h"
#include "app/load.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct verb {
    const char *name, *other;
    int (*run)(int argc, char **argv);
    const char *summary;
} verbs[] = {
    {"serve", NULL, ig_cmd_serve, "answer OpenAI-compatible requests and show the chat page"},
    {"chat", NULL, ig_cmd_chat, "talk in this terminal"},
    {"generate", "gen", ig_cmd_generate, "complete one prompt"},
    {"tokens", NULL, ig_cmd_tokens, "show how a text is cut into tokens"},
    {"embed", NULL, ig_cmd_embed, "vectors of texts, for search"},
    {"show", NULL, ig_cmd_show, "what a model file holds, and whether it runs here"},
    {"fit", NULL, ig_cmd_fit, "what a model needs in memory, and the largest context that fits"},
    {"tiers", NULL, ig_cmd_tiers, "whose numbers results are, step by step, and what proves it"},
    {"bench", "benchmark", ig_cmd_bench, "measure speed and memory"},
    {"get", "pull", ig_cmd_get, "download a model from a hub, or go on with a download"},
    {"ls", "list", ig_cmd_ls, "the models on this machine"},
    {"rm", "remove", ig_cmd_rm, "remove a model"},
    {"gc", NULL, ig_cmd_gc, "find and remove what nothing uses in the hub's cache"},
    {"scan", NULL, ig_cmd_scan, "look at every model anew, and say what does not run"},
    {"version", NULL, ig_cmd_version, "version, CPU and kernels"},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static const struct verb *find(const char *word) {
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(word, verbs[i].name) == 0 || (verbs[i].other && strcmp(word, verbs[i].other) == 0))
            return &verbs[i];
    return NULL;
}

/* A closed stdin, stdout or stderr would hand its number to the next file that is opened. A closed stdout is
 * filled with something that cannot be written to: a result that goes nowhere is an error, as in other
 * programs, and not a success. Where there is no /dev/null (a chroot), the root folder holds the number as
 * well. */
static bool fill_standard_files(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        int got = open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
        if (got < 0) got = open("/", O_PATH | O_DIRECTORY);
        if (got != fd) return false;
    }
    return true;
}

static void overview(FILE *to) {
    fprintf(to, "usage: ingle [VERB] [MODEL] [OPTIONS]\n\n");
    for (int i = 0; i < N_VERBS; i++) fprintf(to, "  %-10s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(
        to,
        "\nMODEL is a path to a GGUF file or a snapshot's folder, org/name as a hub calls it (org/name:Q4_K_M),\n"
        "or part of a name that `ingle ls` shows (rm wants all of it). Without MODEL it is the only one in\n"
        "~/.cache/ingle/models, else the starter there (%.*s, fetched by\n./run), else the only one in the hub's cache.\n\n"
        "Without a verb the model is served: `ingle` alone starts a server. INGLE_MAX_TOKENS=N in the environment\n"
        "stands for --max-tokens N, and so on for the options of every verb. `ingle VERB --help` lists them.\n",
        (int)(strlen(IG_STARTER_FILE) - strlen(".gguf")), IG_STARTER_FILE);
}

/* Words that people bring along from other programs, and what does the same here. */
static const struct {
    const char *word, *here;
} elsewhere[] = {
    {"run", "`ingle chat MODEL` talks in this terminal, `ingle serve MODEL` serves"},
    {"start", "`ingle serve MODEL` serves"},
    {"server", "`ingle serve MODEL` serves"},
    {"cli", "`ingle chat MODEL` talks in this terminal"},
    {"ps", "a server tells at /api/requests what it is doing, and at /stats how it fares"},
    {"download", "`ingle get ORG/NAME` downloads a model"},
    {"delete", "`ingle rm MODEL` removes a model"},
    {"stop", "Ctrl-C or SIGTERM ends a server"},
    {"prune", "`ingle gc` finds what nothing uses"},
    {"info", "`ingle show MODEL` describes a model"},
    {"tokenize", "`ingle tokens TEXT` shows how a text is cut"},
    {"complete", "`ingle generate MODEL -p TEXT` completes a prompt"},
};

static int unknown(const char *word) {
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(word, elsewhere[i].word) == 0)
            return ig_app_say(IG_EXIT_USAGE, "there is no verb \"%s\"; %s", word, elsewhere[i].here);
    const char *names[N_VERBS + 2];
    int n = 0;
    for (int i = 0; i < N_VERBS; i++) names[n++] = verbs[i].name;
    names[n++] = "help";
    names[n] = NULL;
    const char *near = ig_options_nearest(word, names);
    if (near)
        return ig_app_say(IG_EXIT_USAGE,
                          "no verb and no model is called \"%.80s\"; did you mean \"%s\"? (ingle --help lists the verbs)",
                          word, near);
    ig_app_say(IG_EXIT_USAGE, "no verb and no model is called \"%.80s\"", word);
    fprintf(stderr, "\n");
    overview(stderr);
    return IG_EXIT_USAGE;
}

static int help(const char *verb) {
    if (!verb || strcmp(verb, "help") == 0) {
        overview(stdout);
        return IG_EXIT_OK;
    }
    const struct verb *v = find(verb);
    char name[64], flag[] = "--help", *argv[] = {name, flag, NULL};
    if (!v) return unknown(verb);
    snprintf(name, sizeof name, "%s", v->name);
    return v->run(2, argv);
}

/* Runs `serve` with the words that followed the program's name. */
static int serve(int argc, char **argv) {
    char verb[] = "serve";
    char **all = calloc((size_t)argc + 1, sizeof *all);
    if (!all) return ig_app_say(IG_EXIT_FAILED, "no memory");
    all[0] = verb;
    for (int i = 1; i < argc; i++) all[i] = argv[i];
    int code = ig_cmd_serve(argc, all);
    free(all);
    return code;
}

static int dispatch(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word) return serve(argc, argv);
    if (strcmp(word, "help") == 0) return help(argc > 2 ? argv[2] : NULL);
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) return help(NULL);
    if (strcmp(word, "--version") == 0) return ig_cmd_version(1, argv + 1);
    const struct verb *v = find(word);
    if (v) return v->run(argc - 1, argv + 1);
    if (word[0] == '-' || ig_models_knows(word)) return serve(argc, argv);
    return unknown(word);
}

int main(int argc, char **argv) {
    if (!fill_standard_files())
        return ig_app_say(IG_EXIT_FAILED, "stdin, stdout or stderr is closed, and nothing stands in for it");
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an answer from write, for every verb */
    setlocale(LC_CTYPE, ""); /* for terminals; numbers are read and written in the C locale */
    int code = dispatch(argc, argv);
    /* A result that did not reach its file is not a result. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == IG_EXIT_OK)
        code = ig_app_say(IG_EXIT_FAILED, "write to stdout: %s", strerror(errno));
    return code;
}
