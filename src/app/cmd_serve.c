/* serve: options, the order of start and end, and the watchdog.
 * Start:   the port is tried before the model is read, so that the commonest mistake costs no time; then
 *          the model, then the socket, then exactly one line on stdout: INGLE_READY {json}.
 * End:     SIGTERM or SIGINT drains (requests in flight get --drain-timeout) and exits 0; a second one ends
 *          at once. An engine whose step takes longer than --watchdog is given up with exit code 70: a server
 *          that looks healthy and never answers is worse than none. */
#include "app/bench.h"
#include "app/load.h"
#include "hub/hub.h"
#include "serve/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { WATCH_MS = 1000, GIVE_UP_MS = 3000, KEYS_FILE_MAX = 65536, PROBE_TIMEOUT_MS = 300 };

typedef struct serve_options {
    ig_load_options load;
    ig_serve_config http;
    const char *host, *alias, *log_level, *key_file, *embeddings;
    ig_option_list hosts, origins, keys;
    ig_biases biases;
    char *file_keys; /* the text of --api-key-file, cut into lines */
    uint64_t body_max;
    int watchdog_s;
    bool seeded, log_json;
} serve_options;

/* ---- who may call -------------------------------------------------------------------------------------- */

static bool is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

/* Who names a key wants one to be asked for. A key that is not there, as from a variable that was never set,
 * must not open the door to everybody. */
static int check_keys(const serve_options *o) {
    static const char *const names[] = {"INGLE_API_KEY", "INGLE_API_KEY_FILE"};
    for (int i = 0; i < o->keys.n; i++)
        if (!o->keys.v[i][strspn(o->keys.v[i], " \t\r\n")])
            return ig_app_say(IG_EXIT_USAGE, "--api-key (or INGLE_API_KEY) is empty");
    if (o->keys.n || o->key_file) return IG_EXIT_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) /* the parser passes over empty ones */
        if (getenv(names[i]))
            return ig_app_say(IG_EXIT_USAGE, "%s is there and empty; unset it to serve without a key",
                              names[i]);
    return IG_EXIT_OK;
}

/* One key a line; empty lines and lines that start with # do not count. */
static int read_key_file(serve_options *o) {
    size_t n;
    ig_err err;
    if (!o->key_file) return IG_EXIT_OK;
    if (!*o->key_file) return ig_app_say(IG_EXIT_USAGE, "--api-key-file is empty");
    if (ig_file_slurp(&o->file_keys, &n, o->key_file, KEYS_FILE_MAX, &err)) return ig_app_fail(&err);
    const int n_before = o->keys.n;
    char *rest = NULL;
    for (char *line = strtok_r(o->file_keys, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
        line += strspn(line, " \t");
        if (*line == 0 || *line == '#') continue;
        line[strcspn(line, " \t")] = 0;
        if (o->keys.n == IG_OPTION_LIST_MAX)
            return ig_app_say(IG_EXIT_USAGE, "%s: more than %d keys", o->key_file, IG_OPTION_LIST_MAX);
        o->keys.v[o->keys.n++] = line;
    }
    if (o->keys.n == n_before)
        return ig_app_say(IG_EXIT_USAGE,
                          "--api-key-file %s holds no key: one a line, and lines that start with # do not count",
                          o->key_file);
    return IG_EXIT_OK;
}

/* Keys from the command line move to memory of our own, and `ps` does not show them any more. */
static int hide_keys(serve_options *o, int argc, char **argv) {
    for (int i = 0; i < o->keys.n; i++) {
        char *copy = strdup(o->keys.v[i]);
        if (!copy) return ig_app_say(IG_EXIT_FAILED, "no memory");
        for (int a = 0; a < argc; a++) {
            char *key = argv[a];
            if (strncmp(key, "--api-key=", 10) == 0) key += 10;
            if (key == o->keys.v[i]) memset(key, '*', strlen(key));
        }
        o->keys.v[i] = copy; /* lives as long as the process: the server compares with it */
    }
    return IG_EXIT_OK;
}

static int check_exposure(const serve_options *o) {
    if (is_loopback(o->host) || o->keys.n || o->http.no_auth) return IG_EXIT_OK;
    return ig_app_say(IG_EXIT_USAGE,
                      "--host %s can be reached by others; give --api-key, or --no-auth to let everybody in",
                      o->host);
}

/* ---- the port ------------------------------------------------------------------------------------------ */

static int say_taken(const serve_options *o, const char *by) {
    return ig_app_say(IG_EXIT_BUSY,
                      "port %d on %s is taken%s; choose another with --port N (0: any free one)",
                      o->http.port, o->host, by);
}

/* Is it one of us that holds the port? Asks for /v1 and looks for our name; whatever goes wrong is "no". */
static bool is_ours(const struct addrinfo *a) {
    static const char ask[] = "GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const struct timeval limit = {.tv_usec = PROBE_TIMEOUT_MS * 1000};
    char answer[2048];
    size_t n = 0;
    bool ours = false;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 && send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) > 0) {
        for (ssize_t got;
             n < sizeof answer - 1 && (got = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0;)
            n += (size_t)got;
        answer[n] = 0;
        ours = strstr(answer, "\"ingle\"") != NULL;
    }
    close(fd);
    return ours;
}

static int probe_port(const serve_options *o) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *a = NULL;
    char port[16];
    int code = IG_EXIT_OK, one = 1;
    snprintf(port, sizeof port, "%d", o->http.port);
    int why = getaddrinfo(o->host, port, &hints, &a);
    if (why) return ig_app_say(IG_EXIT_USAGE, "--host %s: %s", o->host, gai_strerror(why));
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) != 0) {
            if (errno == EADDRINUSE)
                code = say_taken(o, is_ours(a) ? " by another ingle" : "");
            else
                code = ig_app_say(errno == EADDRNOTAVAIL ? IG_EXIT_USAGE : IG_EXIT_FAILED, "%s port %d: %s",
                                  o->host, o->http.port, strerror(errno));
        }
        close(fd);
    }
    freeaddrinfo(a);
    return code;
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* What tiers l1 and l2 hold a served answer to: the reference's own bits depend on more than the request. */
static const char limits_of_reference[] =
    "each answer as the reference gives it alone, uncached, with a prompt in chunks of 2048 tokens";
static const char limits_of_windows[] = "in the layers with a window its bits depend on where a prompt ended, so answers are "
                                        "not shared with the prompts that continue them";

static bool has_window(const ig_loaded *l) {
    return ig_model_config_of(l->model)->window > 0;
}

static void print_banner(const serve_options *o, const ig_loaded *l, const char *url) {
    const ig_engine_plan *p = &l->plan;
    bool color = !getenv("NO_COLOR");
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "%single %s%s\n", color ? "\33[1m" : "", IG_VERSION, color ? "\33[0m" : "");
    fprintf(stderr, "  model     %s (%s, %.0f million parameters)\n", l->name, ig_model_family(l->model),
            (double)ig_model_n_params(l->model) / 1e6);
    fprintf(stderr, "  machine   %s, %d threads\n", ig_cpu_model(), l->n_threads);
    fprintf(stderr, "  numbers   tier %s: %s\n", ig_tier_name(l->tier), ig_tier_promise(l->tier));
    if (l->tier < IG_TIER_L3) fprintf(stderr, "            %s\n", limits_of_reference);
    if (l->tier < IG_TIER_L3 && has_window(l)) fprintf(stderr, "            %s\n", limits_of_windows);
    fprintf(stderr, "  memory    %s of %s: weights %s, key/value cache %s, step %s,\n"
            "            tables %s, reserve %s\n",
            ig_size_text_of(p->total_bytes).s, ig_size_text_of(p->usable_bytes).s,
            ig_size_text_of(p->weights_bytes).s, ig_size_text_of(p->kv_bytes).s,
            ig_size_text_of(p->step_bytes).s, ig_size_text_of(p->table_bytes).s,
            ig_size_text_of(p->total_bytes - p->weights_bytes - p->kv_bytes - p->step_bytes - p->table_bytes).s);
    fprintf(stderr, "  serves    %d conversations of %d tokens at once\n", p->n_slots, p->n_ctx);
    if (!l->chat) fprintf(stderr, "  chat      off: %s\n", l->chat_err.msg);
    if (o->keys.n) fprintf(stderr, "  keys      %d\n", o->keys.n);
    fprintf(stderr, "  page      %s\n  ready in  %.0f ms; Ctrl-C ends it\n", url, (double)l->load_ns / 1e6);
}

/* One line of JSON behind a fixed word, for whoever started us: a script, a desktop shell, a test. A person has the
 * banner. */
static int print_ready(const ig_loaded *l, const char *url, int port, const char *name) {
    bool lost;
    if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) return IG_EXIT_OK;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_int(doc, root, "port", port);
    ig_json_add_bytes(doc, root, "url", url);
    yyjson_mut_obj_add_int(doc, root, "pid", getpid());
    ig_json_add_bytes(doc, root, "model", name);
    yyjson_mut_obj_add_str(doc, root, "tier", ig_tier_name(l->tier));
    yyjson_mut_obj_add_int(doc, root, "ctx", l->plan.n_ctx);
    yyjson_mut_obj_add_int(doc, root, "slots", l->plan.n_slots);
    char *json = lost ? NULL : yyjson_mut_write(doc, 0, NULL);
    yyjson_mut_doc_free(doc);
    if (!json) return ig_app_say(IG_EXIT_FAILED, "no memory");
    printf("INGLE_READY %s\n", json);
    fflush(stdout);
    free(json);
    return IG_EXIT_OK;
}

/* For `ingle rm` and `ingle gc`, which leave alone what is served. NULL, and a word in the log, when it cannot
 * be written down: a server is of use without. */
static ig_hub_server *note_server(const char *path, const char *model, const char *url, int port) {
    char state[3072];
    ig_hub_server *s = NULL;
    ig_err err = {.msg = "no HOME"};
    if (!ig_hub_state_dir(state, sizeof state) ||
        ig_hub_server_begin(&s, state, path, model, url, port, &err))
        ig_log(IG_LOG_WARN, "server_not_noted reason=\"%s\"", err.msg);
    return s;
}

/* Until a signal came (0), or the engine hangs (70): it has work, and no step ends. What it says itself is not
 * asked, neither what runs nor when its step began: it may hang before it has said so. */
static int watch(const serve_options *o, ig_engine *e) {
    static const char *const stages[] = {"schedule", "forward", "sample"};
    uint64_t n_steps = 0, since = ig_clock_ns();
    while (!ig_signals_wait(WATCH_MS)) {
        const ig_engine_stats st = ig_engine_stats_of(e);
        const uint64_t now = ig_clock_ns();
        if (st.n_open == 0 || st.n_steps != n_steps) {
            n_steps = st.n_steps;
            since = now;
        }
        if (!o->watchdog_s || now - since < (uint64_t)o->watchdog_s * 1000000000u) continue;
        ig_log(IG_LOG_ERROR,
               "engine_stuck step_s=%" PRIu64 " limit_s=%d stage=%s step=%" PRIu64
               " rows=%d running=%d queued=%d",
               (now - since) / 1000000000u, o->watchdog_s, stages[st.stage], st.n_steps + 1, st.n_step_rows,
               st.n_running, st.n_queued);
        return IG_EXIT_ENGINE;
    }
    return IG_EXIT_OK;
}

static int run(serve_options *o, ig_loaded *l) {
    static const volatile int never; /* a second signal ends the program, so nobody has to hurry */
    ig_serve *s = NULL;
    ig_err err;
    char url[300];
    const char *name = o->alias ? o->alias : l->name;
    o->http.host = o->host;
    o->http.model_id = name;
    o->http.version = IG_VERSION;
    o->http.tier = ig_tier_name(l->tier);
    o->http.tier_sampled = ig_tier_name(l->tier_sampled);
    o->http.model_created_s = l->modified_s;
    o->http.pooling = l->pooling;
    o->http.width = ig_model_config_of(l->model)->width;
    const ig_bench_text isa = ig_bench_isa(l->model); /* lives as long as the server */
    o->http.isa = isa.s;
    if (ig_serve_start(&s, &o->http, l->engine, l->tokenizer, l->chat, &err))
        return err.code == IG_EBUSY ? say_taken(o, "") : ig_app_fail(&err);
    snprintf(url, sizeof url, strchr(o->host, ':') ? "http://[%s]:%d" : "http://%s:%d", o->host,
             ig_serve_port(s));
    ig_hub_server *noted = note_server(l->path, name, url, ig_serve_port(s));
    if (l->tier < IG_TIER_L3)
        ig_log(IG_LOG_INFO, "serve.tier tier=%s holds=\"%s\" windows=\"%s\"", ig_tier_name(l->tier), limits_of_reference,
               has_window(l) ? limits_of_windows : "none");
    print_banner(o, l, url);
    int code = print_ready(l, url, ig_serve_port(s), name);
    if (!code) code = watch(o, l->engine);
    ig_hub_server_end(noted);
    if (code == IG_EXIT_ENGINE) {
        ig_serve_give_up(s, GIVE_UP_MS);
        fprintf(stderr, "ingle: the engine does not answer; giving up\n");
        _exit(code); /* stopping in order would wait for the very thread that hangs */
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\nstopping; again to stop at once\n");
    ig_serve_drain(s, &never);
    ig_serve_stop(s);
    return code;
}

static int start(serve_options *o, int argc, char **argv) {
    ig_loaded l;
    ig_log_level level;
    int code;
    if (!ig_log_level_from(o->log_level, &level))
        return ig_app_say(IG_EXIT_USAGE, "--log-level is \"%.40s\"; it is one of debug info warn error",
                          o->log_level);
    ig_log_set_level(level);
    ig_log_set_json(o->log_json);
    if ((code = check_keys(o)) || (code = hide_keys(o, argc, argv)) || (code = read_key_file(o)) ||
        (code = check_exposure(o)))
        return code;
    if ((code = ig_biases_read(&o->biases, &o->http.sampling))) return code;
    if (o->embeddings && !strcmp(o->embeddings, "mean")) o->load.engine.pooling = IG_POOLING_MEAN;
    else if (o->embeddings && !strcmp(o->embeddings, "last")) o->load.engine.pooling = IG_POOLING_LAST;
    else if (o->embeddings && strcmp(o->embeddings, "auto") != 0)
        return ig_app_say(IG_EXIT_USAGE, "--embeddings is \"%.40s\"; it is one of auto last mean", o->embeddings);
    o->load.vectors = true;
    o->http.body_max_bytes = (size_t)o->body_max;
    o->http.seed_fixed = o->seeded;
    o->http.allowed_hosts = o->hosts.n ? o->hosts.v : NULL;
    o->http.cors_origins = o->origins.n ? o->origins.v : NULL;
    o->http.api_keys = o->keys.n ? o->keys.v : NULL;
    if ((code = probe_port(o))) return code;
    signal(SIGPIPE, SIG_IGN); /* a client that left is an answer from send, not a signal */
    if ((code = ig_load(&l, &o->load))) return code;
    if (!l.chat && !l.no_template) {
        code = ig_app_fail(&l.chat_err); /* a template that is there must work: no silent other one */
    } else if (!(code = ig_biases_check(&o->http.sampling, &l))) {
        ig_signals_note();
        code = run(o, &l);
    }
    ig_unload(&l);
    return code;
}

int ig_cmd_serve(int argc, char **argv) {
    serve_options o = {.load = ig_load_defaults(),
                       .http = ig_serve_defaults(),
                       .log_level = "info",
                       .watchdog_s = 120};
    o.host = "127.0.0.1";
    o.http.port = 8080;
    o.http.sampling = ig_sampling_defaults();
    o.body_max = o.http.body_max_bytes;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &o.load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"alias", .kind = IG_OPT_TEXT, .to = &o.alias, .value = "NAME",
         .help = "the model's name for clients"},
        {"host", .kind = IG_OPT_TEXT, .to = &o.host, .value = "ADDRESS", .help = "where to listen"},
        {"port", .kind = IG_OPT_INT, .to = &o.http.port, .min = 0, .max = 65535, .value = "N",
         .help = "0 takes any free one"},
        {"allowed-host", .kind = IG_OPT_LIST, .to = &o.hosts, .value = "NAME",
         .help = "accept this Host header too; repeatable"},
        {"cors-origin", .kind = IG_OPT_LIST, .to = &o.origins, .value = "ORIGIN",
         .help = "let pages of this origin call, as https://example.org; repeatable"},
        {"api-key", .kind = IG_OPT_LIST, .to = &o.keys, .value = "KEY",
         .help = "callers must show one; repeatable"},
        {"api-key-file", .kind = IG_OPT_TEXT, .to = &o.key_file, .value = "FILE", .help = "keys, one a line"},
        {"no-auth", .kind = IG_OPT_BOOL, .to = &o.http.no_auth, .help = "beyond loopback without a key"},
        {"max-body", .kind = IG_OPT_SIZE, .to = &o.body_max, .min = 1024, .max = 1e9, .value = "SIZE",
         .help = "largest request"},
        {"max-connections", .kind = IG_OPT_INT, .to = &o.http.connections_max, .min = 1, .max = 65536,
         .value = "N", .help = "more are turned away"},
        {"sse-ping", .kind = IG_OPT_INT, .to = &o.http.sse_ping_s, .min = 1, .max = 3600, .value = "S",
         .help = "seconds between signs of life in a stream"},
        {"tolerate-half-close", .kind = IG_OPT_BOOL, .to = &o.http.tolerate_half_close,
         .help = "answer clients that close their sending side after a request"},
        {"drain-timeout", .kind = IG_OPT_INT, .to = &o.http.drain_timeout_s, .min = 0, .max = 86400,
         .value = "S", .help = "seconds that running requests get at the end"},
        {"queue-timeout", .kind = IG_OPT_INT, .to = &o.http.queue_timeout_s, .min = 0, .max = 86400,
         .value = "S", .help = "longest wait of a request for its turn (0: no limit)"},
        {"watchdog", .kind = IG_OPT_INT, .to = &o.watchdog_s, .min = 0, .max = 86400, .value = "S",
         .help = "give up when one step takes longer (0: never)"},
        IG_SAMPLING_OPTIONS(o.http.sampling, o.biases, o.seeded),
        {"max-tokens", .letter = 'n', .kind = IG_OPT_INT, .to = &o.http.default_max_tokens, .min = 0,
         .max = 1 << 24, .value = "N",
         .help = "longest answer of a request that does not say (0: what fits)"},
        {"batch", .other = "parallel", .kind = IG_OPT_INT, .to = &o.load.engine.n_slots, .min = 1, .max = 64,
         .value = "N", .help = "requests that run together"},
        {"prefill-chunk", .kind = IG_OPT_INT, .to = &o.load.engine.prefill_chunk, .min = 1, .max = 4096,
         .value = "N", .help = "most prompt tokens in a step"},
        {"prefill-slice-ms", .kind = IG_OPT_INT, .to = &o.load.engine.prefill_slice_ms, .min = 1,
         .max = 10000, .value = "MS", .help = "longest step while others wait for tokens"},
        {"max-queue", .kind = IG_OPT_INT, .to = &o.load.engine.queue_max, .min = 1, .max = 4096, .value = "N",
         .help = "requests that may wait"},
        IG_LOAD_OPTIONS(o.load),
        IG_TEMPLATE_OPTION(o.load),
        {"embeddings", .kind = IG_OPT_TEXT, .to = &o.embeddings, .value = "HOW",
         .help = "vectors of texts at /v1/embeddings: auto (of models made for it), last or mean"},
        {"no-metrics", .kind = IG_OPT_BOOL, .to = &o.http.no_metrics, .help = "no figures for Prometheus at /metrics"},
        {"log-level", .kind = IG_OPT_TEXT, .to = &o.log_level, .value = "LEVEL",
         .help = "debug, info, warn or error"},
        {"log-json", .kind = IG_OPT_BOOL, .to = &o.log_json, .help = "log lines as JSON objects"},
    };
    const ig_command c = {
        .verb = "serve",
        .words = "[MODEL]",
        .summary = "Serves a model: HTTP as OpenAI and Anthropic have it, and a chat page, on this machine only by default.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1,
        .env_all = true};
    ig_words words;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (words.n) o.load.model = words.v[0];
    code = start(&o, argc, argv);
    free(o.file_keys);
    return code;
}
