/* torture: every allocation and every call on a file fails once, and the program must take it.
 *
 *     torture FOLDER [--sample] [WORD]    FOLDER holds what make_tiny.py wrote; WORD: only ops that hold it
 *
 * An op is tried with its n-th call failing, n = 1, 2, ... until none is left, once with that call alone and
 * once with all after it. Each time it must say an error, or give the whole result; leave no memory behind; and
 * work again at once. A crash ends the program with the op and n. --sample tries a part of the places. */
#include "fault.h"

#include "app/app.h"
#include "app/load.h"
#include "serve/serve.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 16, N_TOKENS = 6, ANSWER_S = 20, SAMPLE_EVERY = 7 };

typedef enum outcome { FAILED, WHOLE, WRONG } outcome; /* WRONG: neither an error nor the whole result */

static char gguf_path[512], snapshot_path[512], scratch_path[512];
static const char *op_name = "";
static long op_n;
static bool op_sticky;
static fault_kind op_kind;
static char why[256]; /* of WRONG */

/* ---- what an op says -------------------------------------------------------------------------------- */

/* stdout and stderr go to files in memory, so that an op's words can be looked at. */
static int said[2] = {-1, -1}, was[2] = {-1, -1};

static void listen_to(bool on) {
    fault_exempt(true);
    for (int i = 0; i < 2; i++) {
        fflush(i ? stderr : stdout);
        if (said[i] < 0) said[i] = memfd_create("said", MFD_CLOEXEC);
        if (was[i] < 0) was[i] = fcntl(i + 1, F_DUPFD_CLOEXEC, 10);
        if (on && ftruncate(said[i], 0) == 0) lseek(said[i], 0, SEEK_SET);
        dup2(on ? said[i] : was[i], i + 1);
    }
    fault_exempt(false);
}

static size_t words(int which, char *to) {
    ssize_t n = pread(said[which], to, TEXT_BYTES - 1, 0);
    to[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static outcome wrong(const char *what) {
    snprintf(why, sizeof why, "%s", what);
    return WRONG;
}

/* ---- ops -------------------------------------------------------------------------------------------- */

/* Greedy tokens of a loaded model: what a whole load gives. */
static bool generate(const ig_loaded *l, uint32_t *out) {
    static const uint32_t prompt[] = {65, 66, 67, 68};
    ig_gen *g = NULL;
    const ig_gen_params p = {.prompt = prompt, .n_prompt = 4, .max_tokens = N_TOKENS, .top_logprobs = -1};
    if (ig_engine_submit(l->engine, &p, &g, NULL)) return false;
    while (ig_gen_finish(g) == IG_FINISH_NONE) ig_gen_wait(g, ig_gen_n_tokens(g), -1);
    bool good = ig_gen_n_tokens(g) == N_TOKENS;
    for (int i = 0; good && i < N_TOKENS; i++) out[i] = ig_gen_token(g, i);
    ig_gen_release(g);
    return good;
}

static ig_load_options load_options(const char *path) {
    ig_load_options o = ig_load_defaults();
    o.model = path;
    o.n_threads = 2;
    o.quiet = true;
    o.engine.n_slots = 2;
    o.engine.prefill_chunk = 32;
    o.engine.memory_budget_bytes = 256u << 20;
    o.engine.kv_budget_bytes = 8u << 20;
    return o;
}

static outcome load(const char *path, uint32_t *expected, bool *known) {
    uint32_t got[N_TOKENS];
    char text[TEXT_BYTES];
    ig_loaded l = {0};
    const ig_load_options o = load_options(path);
    int code = ig_load(&l, &o);
    fault_disarm();
    if (code) return words(1, text) && strstr(text, "ingle: ") ? FAILED : wrong("no message");
    bool good = generate(&l, got), whole = good && l.tokenizer != NULL;
    if (whole && !l.chat && l.chat_err.code == IG_OK) whole = false;
    const bool chat = l.chat != NULL;
    ig_unload(&l);
    if (!whole) return wrong("loaded, and does not run");
    if (!*known) memcpy(expected, got, sizeof got), *known = true;
    if (memcmp(expected, got, sizeof got) != 0) return wrong("other tokens");
    return chat ? WHOLE : FAILED; /* the missing template has its message, which those who chat are told */
}

static outcome load_gguf(void) {
    static uint32_t expected[N_TOKENS];
    static bool known;
    return load(gguf_path, expected, &known);
}
static outcome load_snapshot(void) {
    static uint32_t expected[N_TOKENS];
    static bool known;
    return load(snapshot_path, expected, &known);
}

static outcome verb(int (*run)(int, char **), char **argv, char *expected) {
    char text[TEXT_BYTES], errors[TEXT_BYTES];
    int argc = 0;
    while (argv[argc]) argc++;
    int code = run(argc, argv);
    fault_disarm();
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    clearerr(stdout);
    words(0, text), words(1, errors);
    if (lost || (code && errors[0])) return FAILED;
    if (!code && !expected[0]) memcpy(expected, text, TEXT_BYTES);
    if (!code && strcmp(expected, text) == 0) return WHOLE;
    /* `show` tells why a model would not run, and that is its result, whatever its exit code */
    static const char *const reasons[] = {"Input/output error", "No space left", "Interrupted", "no memory",
                                          "Cannot allocate", "no thread", "heap memory",
                                          "temporarily unavailable"};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strstr(text, reasons[i])) return FAILED;
    return wrong(code ? "no message" : "says something else");
}

static outcome show(char *path, char *expected) {
    char name[] = "show", json[] = "--json", budget[] = "--memory-budget=1G", *argv[] = {name, path, json, budget, NULL};
    return verb(ig_cmd_show, argv, expected);
}
static outcome show_gguf(void) {
    static char expected[TEXT_BYTES];
    return show(gguf_path, expected);
}
static outcome show_snapshot(void) {
    static char expected[TEXT_BYTES];
    return show(snapshot_path, expected);
}
static outcome tokens(void) {
    static char expected[TEXT_BYTES];
    char name[] = "tokens", model[] = "--model", text[] = "the land of \xc3\xa9 and \xf0\x9f\x98\x80",
         *argv[] = {name, model, snapshot_path, text, NULL};
    return verb(ig_cmd_tokens, argv, expected);
}

static outcome generate_verb(void) {
    static char expected[TEXT_BYTES];
    char name[] = "generate", prompt[] = "--prompt=the land", n[] = "--max-tokens=6", greedy[] = "--temperature=0",
         stop[] = "--stop=zzz", threads[] = "--threads=2", budget[] = "--memory-budget=256M", kv[] = "--kv-budget=8M",
         *argv[] = {name, gguf_path, prompt, n, greedy, stop, threads, budget, kv, NULL};
    return verb(ig_cmd_generate, argv, expected);
}

static outcome encode(ig_tokenizer *t, ig_status st, const ig_err *err) {
    static size_t expected;
    ig_tokens ids = {0};
    ig_err more = {0};
    if (st) return fault_disarm(), !t && err->msg[0] ? FAILED : wrong("no message");
    st = ig_tokenizer_encode(t, NULL, ig_slice_of("the land, and then the sand"), (ig_encode_options){0}, &ids,
                             &more);
    fault_disarm();
    if (!st && !expected) expected = ids.n;
    bool good = st ? more.msg[0] && ids.n == 0 : ids.n == expected && ids.n > 8;
    ig_tokens_free(&ids);
    ig_tokenizer_free(t);
    return !good ? wrong("encodes something else") : st ? FAILED : WHOLE;
}

static outcome tokenizer_gguf(void) {
    ig_err err = {0};
    ig_gguf *g = NULL;
    ig_tokenizer *t = NULL;
    ig_status st = ig_gguf_open(&g, gguf_path, &err);
    if (!st) st = ig_tokenizer_from_gguf(&t, g, &err);
    outcome o = encode(t, st, &err);
    ig_gguf_close(g);
    return o;
}

static outcome tokenizer_snapshot(void) {
    ig_err err = {0};
    ig_snapshot *s = NULL;
    ig_tokenizer *t = NULL;
    ig_status st = ig_snapshot_open(&s, snapshot_path, &err);
    if (!st) st = ig_tokenizer_from_snapshot(&t, s, &err);
    outcome o = encode(t, st, &err);
    ig_snapshot_close(s);
    return o;
}

static ig_tokenizer *plain_tokenizer;

static ig_status make_plain_tokenizer(void) {
    ig_gguf *g = NULL;
    ig_status st = ig_gguf_open(&g, gguf_path, NULL);
    if (!st) st = ig_tokenizer_from_gguf(&plain_tokenizer, g, NULL);
    ig_gguf_close(g);
    return st;
}

static outcome template(void) {
    static const char source[] = "{% for m in messages %}[{{ m.role }}: {{ m.content|tojson }}]{% endfor %}";
    static const char text[] = "[{\"role\":\"user\",\"content\":\"a \\u00e9 b\"}]";
    ig_template *t = NULL;
    ig_err err = {0};
    ig_buf out = ig_buf_init(1 << 16);
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    yyjson_doc *messages = NULL;
    fault_exempt(true);
    if (!plain_tokenizer && make_plain_tokenizer()) abort();
    fault_exempt(false);
    ig_status st = ig_template_make(&t, ig_slice_of(source), &err);
    if (!st) st = ig_json_parse(&messages, text, sizeof text - 1, (ig_json_limits){1 << 16, 16}, &err);
    const ig_chat_input in = {.messages = yyjson_doc_get_root(messages)};
    if (!st) st = ig_chat_render(t, plain_tokenizer, &in, &out, &plain, &n_plain, &err);
    fault_disarm();
    bool whole = out.n && strcmp(out.p, "[user: \"a \xc3\xa9 b\"]") == 0;
    free(plain);
    yyjson_doc_free(messages);
    ig_template_free(t);
    ig_buf_free(&out);
    if (st) return err.msg[0] ? FAILED : wrong("no message");
    return whole ? WHOLE : wrong("renders something else");
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static int files_in(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

/* The old file or the new one, whole, and nothing beside it. */
static outcome replace(void) {
    static char old_text[3000], new_text[5000];
    char path[600], *text = NULL;
    size_t n = 0;
    ig_err err = {0};
    memset(old_text, 'o', sizeof old_text), memset(new_text, 'n', sizeof new_text);
    snprintf(path, sizeof path, "%s/file", scratch_path);
    fault_exempt(true);
    ig_status st = ig_file_replace(path, old_text, sizeof old_text, NULL);
    fault_exempt(false);
    if (st) return wrong("cannot write");
    st = ig_file_replace(path, new_text, sizeof new_text, &err);
    fault_disarm();
    if (ig_file_slurp(&text, &n, path, 1 << 20, NULL)) return wrong("the file is gone");
    bool is_old = n == sizeof old_text && memcmp(text, old_text, n) == 0;
    bool is_new = n == sizeof new_text && memcmp(text, new_text, n) == 0;
    free(text);
    if (files_in(scratch_path) != 1) return wrong("leaves a file beside it");
    if (!is_old && !is_new) return wrong("half a file");
    if (st) return err.msg[0] ? FAILED : wrong("no message");
    return is_new ? WHOLE : wrong("says done, and is not");
}

/* ---- the server ------------------------------------------------------------------------------------- */

static ig_loaded served;
static ig_serve *server;

static bool start_server(void) {
    ig_load_options o = load_options(gguf_path);
    ig_serve_config c = ig_serve_defaults();
    c.port = 0;
    c.connections_max = 8;
    ig_log_set_level(IG_LOG_ERROR);
    return ig_load(&served, &o) == 0 &&
           ig_serve_start(&server, &c, served.engine, served.tokenizer, served.chat, NULL) == IG_OK;
}

static void stop_server(void) {
    ig_serve_stop(server);
    ig_unload(&served);
    server = NULL;
}

/* Sends a POST and reads until the server closes; n bytes of answer. This thread's calls do not fail. */
static size_t ask(const char *path, const char *body, char *answer) {
    static const struct timeval limit = {.tv_sec = ANSWER_S};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ig_serve_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char head[512];
    size_t n = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
             path, strlen(body));
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        send(fd, head, strlen(head), MSG_NOSIGNAL) > 0 && send(fd, body, strlen(body), MSG_NOSIGNAL) > 0) {
        for (ssize_t got; n < TEXT_BYTES - 1 && (got = recv(fd, answer + n, TEXT_BYTES - 1 - n, 0)) != 0;) {
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && errno != ECONNRESET) n = SIZE_MAX; /* it hangs */
            if (got < 0) break;
            n += (size_t)got;
        }
    }
    close(fd);
    answer[n < TEXT_BYTES ? n : 0] = 0;
    return n;
}

/* A server has no thread that allocates once it is idle. */
static void wait_idle(void) {
    const struct timespec nap = {.tv_nsec = 2000000};
    for (int i = 0; i < 2000; i++) {
        ig_engine_stats st = ig_engine_stats_of(served.engine);
        if (st.n_running + st.n_queued + st.n_open == 0) break;
        nanosleep(&nap, NULL);
    }
    nanosleep(&nap, NULL);
}

/* The part of an answer that is the same each time: from `from` to `to`. */
static void same_part(char *answer, const char *from, const char *to) {
    char *p = strstr(answer, from), *end = p ? strstr(p, to) : NULL;
    size_t n = p && end ? (size_t)(end - p) : 0;
    memmove(answer, p ? p : "", n);
    answer[n] = 0;
}

/* Of a stream: its pieces of text, one after the other. */
static void joined_text(char *answer) {
    static const char mark[] = "\"delta\":{\"content\":\"";
    char *to = answer, *from = answer;
    while ((from = strstr(from, mark)) != NULL) {
        from += sizeof mark - 1;
        size_t n = strcspn(from, "}");
        memmove(to, from, n);
        to += n;
        from += n;
    }
    *to = 0;
}

static outcome request(const char *path, const char *body, const char *from, const char *to, char *expected) {
    static char answer[TEXT_BYTES];
    fault_exempt(true);
    size_t n = ask(path, body, answer);
    fault_exempt(false);
    fault_disarm();
    wait_idle();
    if (n == SIZE_MAX) return wrong("no answer and no end");
    if (n == 0) return FAILED; /* no memory for the connection itself: closed without a word */
    if (strncmp(answer, "HTTP/1.1 ", 9) != 0) return wrong("an answer that is no HTTP");
    if (strncmp(answer + 9, "200", 3) != 0) return strstr(answer, "\"error\":") ? FAILED : wrong("an error without JSON");
    bool cut = strstr(answer, "text/event-stream") ? !strstr(answer, "[DONE]") : false;
    if (cut) return FAILED; /* a stream without its end; every client knows that as an error */
    if (strstr(answer, "text/event-stream")) joined_text(answer);
    else same_part(answer, from, to);
    if (!expected[0]) memcpy(expected, answer, TEXT_BYTES);
    if (!answer[0] || strcmp(answer, expected) != 0) return wrong("another answer");
    return WHOLE;
}

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"the land\"}],\"max_tokens\":6,\"temperature\":0"

static outcome serve_chat(void) {
    static char expected[TEXT_BYTES];
    return request("/v1/chat/completions", "{" CHAT ",\"stop\":[\"zzz\"]}", "\"choices\"", "\"usage\"", expected);
}
static outcome serve_logprobs(void) {
    static char expected[TEXT_BYTES];
    return request("/v1/chat/completions", "{" CHAT ",\"logprobs\":true,\"top_logprobs\":2}", "\"choices\"", "\"usage\"",
                   expected);
}
static outcome serve_completion(void) {
    static char expected[TEXT_BYTES];
    return request("/v1/completions", "{\"prompt\":[\"the\",\"sand\"],\"max_tokens\":4,\"temperature\":0}", "\"choices\"",
                   "\"usage\"", expected);
}
static outcome serve_stream(void) {
    static char expected[TEXT_BYTES];
    return request("/v1/chat/completions", "{" CHAT ",\"stream\":true}", "", "", expected);
}
static outcome serve_tokenize(void) {
    static char expected[TEXT_BYTES];
    return request("/tokenize", "{\"content\":\"the land\",\"with_pieces\":true}", "{\"tokens\"", "]}", expected);
}
static outcome serve_template(void) {
    static char expected[TEXT_BYTES];
    return request("/apply-template", "{" CHAT "}", "{\"prompt\"", "\"}", expected);
}

static outcome serve_start(void) {
    char answer[TEXT_BYTES];
    ig_serve *s = NULL;
    ig_serve_config c = ig_serve_defaults();
    ig_err err = {0};
    c.port = 0;
    c.connections_max = 8;
    ig_status st = ig_serve_start(&s, &c, served.engine, served.tokenizer, served.chat, &err);
    fault_disarm();
    if (st) return err.msg[0] && !s ? FAILED : wrong("no message");
    ig_serve *before = server;
    server = s;
    size_t n = ask("/tokenize", "{\"content\":\"a\"}", answer);
    server = before;
    ig_serve_stop(s);
    return n != SIZE_MAX && strstr(answer, "HTTP/1.1 200") ? WHOLE : wrong("started, and does not answer");
}

/* ---- the loop --------------------------------------------------------------------------------------- */

typedef struct op {
    const char *name;
    outcome (*run)(void);
    bool files; /* its calls on files fail, too */
    bool served; /* on the server */
} op;

static const op ops[] = {
    {"template", template, false, false},
    {"tokenizer gguf", tokenizer_gguf, true, false},
    {"tokenizer snapshot", tokenizer_snapshot, true, false},
    {"replace", replace, true, false},
    {"show gguf", show_gguf, true, false},
    {"show snapshot", show_snapshot, true, false},
    {"tokens", tokens, true, false},
    {"generate", generate_verb, true, false},
    {"load gguf", load_gguf, true, false},
    {"load snapshot", load_snapshot, true, false},
    {"serve tokenize", serve_tokenize, false, true},
    {"serve template", serve_template, false, true},
    {"serve chat", serve_chat, false, true},
    {"serve logprobs", serve_logprobs, false, true},
    {"serve completion", serve_completion, false, true},
    {"serve stream", serve_stream, false, true},
    {"serve start", serve_start, false, true},
};

static const char *const kind_names[FAULT_KINDS] = {"memory", "EIO", "ENOSPC", "EINTR", "short"};
static int n_failed;

static void on_crash(int sig) {
    static char text[TEXT_BYTES];
    fault_disarm();
    listen_to(false);
    words(1, text);
    dprintf(STDERR_FILENO, "%s\ntorture: signal %d in: %s, %s %ld%s\n", text, sig, op_name, kind_names[op_kind], op_n,
            op_sticky ? " and all after it" : "");
    fault_print();
    _exit(1);
}

static outcome run_op(const op *o, long n, bool sticky) {
    op_n = n, op_sticky = sticky;
    listen_to(true);
    fault_arm(op_kind, n, sticky);
    outcome got = o->run();
    fault_disarm();
    listen_to(false);
    return got;
}

static void tell(const char *what) {
    fprintf(stderr, "torture: %s, %s %ld%s: %s\n", op_name, kind_names[op_kind], op_n,
            op_sticky ? " and all after it" : "", what);
    if (fault_came()) fault_print();
    n_failed++;
}

/* What one failure must leave: no memory, whichever thread or cache was touched for the first time. */
static bool leaks(const op *o, long n, bool sticky) {
    for (int round = 0; round < 3; round++) {
        long before = fault_live();
        run_op(o, n, sticky);
        if (fault_live() <= before || fault_in_template()) return false;
    }
    return true;
}

static bool must_be_whole(void) {
    return op_kind == FAULT_SHORT;
}

static void try_place(const op *o, long n, bool sticky, int *n_came) {
    long before = fault_live();
    outcome got = run_op(o, n, sticky);
    const bool it_came = fault_came();
    *n_came += it_came;
    if (got == WRONG) tell(why);
    if (got == FAILED && it_came && must_be_whole()) tell("an error, where the rest only had to be read");
    if (got == FAILED && !it_came) tell("an error, and nothing has failed");
    if (!fault_in_template() && fault_live() > before && leaks(o, n, sticky)) tell("leaks memory");
    if (got != FAILED) return;
    if (run_op(o, 0, false) != WHOLE) op_n = n, op_sticky = sticky, tell("does not work any more after it");
}

static void torture(const op *o, bool sample) {
    fault_kind last = o->files ? FAULT_SHORT : FAULT_MEMORY;
    for (int kind = 0; kind <= (int)last; kind++) {
        int n_came = 0, failed_before = n_failed;
        op_name = o->name, op_kind = (fault_kind)kind;
        for (int i = 0; i < 3; i++)
            if (run_op(o, 0, false) != WHOLE) tell("fails without a failure");
        run_op(o, 0, false);
        long n_calls = fault_disarm();
        long step = sample && n_calls > 3 * SAMPLE_EVERY ? SAMPLE_EVERY : 1;
        for (long n = 1; n <= n_calls && n_failed - failed_before < 5; n += step) {
            try_place(o, n, false, &n_came);
            if (kind != FAULT_EINTR) try_place(o, n, true, &n_came); /* it is tried again for as long as it takes */
        }
        printf("%-20s %-7s %5ld places, %d failures injected%s\n", o->name, kind_names[kind], n_calls, n_came,
               n_failed > failed_before ? ", FAILED" : "");
        fflush(stdout);
    }
}

/* ---- sweeps ----------------------------------------------------------------------------------------- */

/* Every budget from nothing to enough: refused with the numbers, or the same tokens. */
static int sweep_budgets(bool kv) {
    uint32_t got[N_TOKENS], expected[N_TOKENS];
    int n_refused = 0, n_same = 0, n_bad = 0;
    for (uint64_t budget = 1u << 30; budget >= 1000; budget -= budget / 5) {
        char text[TEXT_BYTES];
        ig_load_options o = load_options(gguf_path);
        ig_loaded l = {0};
        if (kv) o.engine.kv_budget_bytes = budget;
        else o.engine.memory_budget_bytes = budget, o.engine.kv_budget_bytes = 0;
        listen_to(true);
        int code = ig_load(&l, &o);
        listen_to(false);
        words(1, text);
        if (code) {
            n_refused++;
            if (code == IG_EXIT_MEMORY && (strstr(text, " may be used") || strstr(text, "their budget is "))) continue;
            fprintf(stderr, "torture: a budget of %llu: exit %d: %s", (unsigned long long)budget, code, text);
            n_bad++;
            continue;
        }
        bool good = generate(&l, got);
        if (n_same == 0) memcpy(expected, got, sizeof got);
        good = good && memcmp(got, expected, sizeof got) == 0;
        good ? n_same++ : n_bad++;
        ig_unload(&l);
    }
    printf("%-20s %d refused, %d give the same%s\n", kv ? "kv budgets" : "memory budgets", n_refused, n_same,
           n_bad ? ", FAILED" : "");
    return n_bad + (n_refused == 0) + (n_same == 0);
}

/* Limits on the address space, down to one in which the stack cannot grow: an end with a message, never by a
 * signal. */
static int sweep_address_space(void) {
    int n_refused = 0, n_same = 0, n_bad = 0;
    char text[TEXT_BYTES], expected[TEXT_BYTES];
    for (uint64_t limit = 3ull << 30; limit >= 48u << 20; limit -= limit / 5) {
        char name[] = "generate", prompt[] = "--prompt=the land", n[] = "--max-tokens=6", greedy[] = "--temperature=0",
             threads[] = "--threads=2", *argv[] = {name, gguf_path, prompt, n, greedy, threads, NULL};
        const struct rlimit r = {limit, limit};
        int status = 0;
        listen_to(true);
        pid_t pid = fork();
        if (pid == 0) {
            if (setrlimit(RLIMIT_AS, &r) != 0) _exit(99);
            for (int sig = 1; sig < 32; sig++) signal(sig, SIG_DFL);
            int code = ig_cmd_generate(6, argv);
            _exit(fflush(stdout) == 0 ? code : 98);
        }
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        listen_to(false);
        if (pid < 0 || !WIFEXITED(status)) {
            fprintf(stderr, "torture: address space of %llu bytes: signal %d\n", (unsigned long long)limit,
                    WTERMSIG(status));
            n_bad++;
        } else if (WEXITSTATUS(status) == 0) {
            words(0, text);
            if (n_same++ == 0) memcpy(expected, text, TEXT_BYTES);
            n_bad += strcmp(text, expected) != 0;
        } else {
            n_refused++;
            n_bad += words(1, text) < 8 || strncmp(text, "ingle: ", 7) != 0;
        }
    }
    printf("%-20s %d refused, %d give the same%s\n", "address space", n_refused, n_same, n_bad ? ", FAILED" : "");
    return n_bad + (n_refused == 0) + (n_same == 0);
}

int main(int argc, char **argv) {
    bool sample = false;
    const char *only = "";
    int n_passed = 0;
    if (argc < 2) return 2;
    snprintf(gguf_path, sizeof gguf_path, "%s/tiny.gguf", argv[1]);
    snprintf(snapshot_path, sizeof snapshot_path, "%s/tiny", argv[1]);
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--sample") == 0) sample = true;
        else only = argv[i];
    snprintf(scratch_path, sizeof scratch_path, "/tmp/ig-torture-XXXXXX");
    if (!mkdtemp(scratch_path)) return 2;
    setenv("NO_COLOR", "1", 1);
    const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], on_crash);
    if (strstr("sweeps", only)) {
        n_failed = sweep_address_space() + sweep_budgets(false) + sweep_budgets(true);
        n_passed = n_failed == 0;
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        int before = n_failed;
        if (!strstr(ops[i].name, only)) continue;
        if (ops[i].served && !server && !start_server()) return 2;
        torture(&ops[i], sample);
        n_passed += n_failed == before;
    }
    if (server) stop_server();
    ig_tokenizer_free(plain_tokenizer);
    char path[600];
    snprintf(path, sizeof path, "%s/file", scratch_path);
    unlink(path);
    rmdir(scratch_path);
    printf("torture: %d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}
