/* The verbs as a person runs them: in a process of their own, judged by exit code, stdout and stderr. */
#include "app/app.h"
#include "base/test.h"
#include "file/file.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 120, OUT_BYTES_MAX = 1 << 20 };

typedef int verb_fn(int argc, char **argv);

typedef struct child {
    pid_t pid;
    int in, out, err; /* the ends that we hold */
    ig_buf text, errors;
} child;

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void start(child *c, verb_fn *verb, const char *const *words) {
    int in[2], out[2], err[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) abort();
    fflush(NULL);
    *c = (child){.in = in[1], .out = out[0], .err = err[0]};
    c->text = c->errors = ig_buf_init(OUT_BYTES_MAX);
    c->pid = fork();
    if (c->pid < 0) abort();
    if (c->pid == 0) {
        static char text[16][512];
        char *argv[17];
        int argc = 0;
        dup2(in[0], STDIN_FILENO), dup2(out[1], STDOUT_FILENO), dup2(err[1], STDERR_FILENO);
        close(in[1]);
        alarm((unsigned)ig_test_patience(LIMIT_S)); /* a verb that hangs dies, and the test says so */
        for (; words[argc] && argc < 16; argc++) {
            argv[argc] = text[argc];
            snprintf(text[argc], sizeof text[argc], "%s", words[argc]);
        }
        argv[argc] = NULL;
        int code = verb(argc, argv);
        fflush(stdout);
        _exit(code);
    }
    close(in[0]), close(out[1]), close(err[1]);
}

/* Reads both streams until `until` is in stdout (NULL: until both end). */
static void follow(child *c, const char *until) {
    struct pollfd p[2] = {{.fd = c->out, .events = POLLIN}, {.fd = c->err, .events = POLLIN}};
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        char part[4096];
        if (until && c->text.n && strstr(c->text.p, until)) return;
        if (poll(p, 2, ig_test_patience(LIMIT_S) * 1000) <= 0) return;
        for (int i = 0; i < 2; i++) {
            if (!p[i].revents) continue;
            ssize_t got = read(p[i].fd, part, sizeof part);
            if (got <= 0)
                p[i].fd = -1;
            else
                ig_buf_add(i ? &c->errors : &c->text, part, (size_t)got);
        }
    }
}

/* The exit code; -signal when one ended it. */
static int finish(child *c) {
    int status;
    if (c->in >= 0) close(c->in);
    follow(c, NULL);
    close(c->out), close(c->err);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void drop(child *c) {
    ig_buf_free(&c->text);
    ig_buf_free(&c->errors);
}

static const char *text_of(const ig_buf *b) {
    return b->n ? b->p : "";
}

/* Runs a verb with `input` on stdin. */
static int run(child *c, verb_fn *verb, const char *const *words, const char *input) {
    start(c, verb, words);
    if (input && write(c->in, input, strlen(input)) < 0) abort();
    close(c->in);
    c->in = -1;
    return finish(c);
}

/* The exit code must be `code` and stderr must hold `says`. */
static void fails(verb_fn *verb, const char *const *words, int code, const char *says) {
    child c;
    int got = run(&c, verb, words, NULL);
    CHECK_MSG(got == code && strstr(text_of(&c.errors), says), "%s %s: exit code %d instead of %d: %s",
              words[0], words[1] ? words[1] : "", got, code, text_of(&c.errors));
    CHECK_MSG(c.text.n == 0, "a failed verb printed: %s", text_of(&c.text));
    drop(&c);
}

static const char *model(void) {
    static char path[512];
    const char *own = getenv("INGLE_TEST_MODEL"), *cache = getenv("INGLE_CACHE"),
               *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME"), *file = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (own)
        snprintf(path, sizeof path, "%s", own);
    else if (cache)
        snprintf(path, sizeof path, "%s/%s", cache, file);
    else if (xdg)
        snprintf(path, sizeof path, "%s/ingle/%s", xdg, file);
    else
        snprintf(path, sizeof path, "%s/.cache/ingle/%s", home ? home : "", file);
    return access(path, R_OK) == 0 ? path : NULL;
}
#define NEED_MODEL()                                                                                         \
    const char *m = model();                                                                                 \
    if (!m) SKIP("no model in the cache and no INGLE_TEST_MODEL")

/* ---- without a model ----------------------------------------------------------------------------------- */

TEST(every_verb_prints_its_help_on_stdout) {
    static verb_fn *const verbs[] = {
        ig_cmd_serve, ig_cmd_chat, ig_cmd_generate, ig_cmd_tokens, ig_cmd_show,    ig_cmd_bench, ig_cmd_get,
        ig_cmd_ls,    ig_cmd_rm,   ig_cmd_gc,       ig_cmd_scan,   ig_cmd_version, ig_cmd_embed};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        child c;
        CHECK(run(&c, verbs[i], WORDS("x", "--help"), NULL) == IG_EXIT_OK);
        CHECK(strstr(text_of(&c.text), "usage: ingle ") && c.errors.n == 0);
        drop(&c);
    }
}

TEST(a_wrong_command_line_costs_no_model_and_exits_2) {
    fails(ig_cmd_embed, WORDS("embed"), IG_EXIT_USAGE, "embed wants a model");
    fails(ig_cmd_embed, WORDS("embed", "no such model"), IG_EXIT_NOT_FOUND, "is taken as the model");
    fails(ig_cmd_bench, WORDS("bench", "--ctx", "x"), IG_EXIT_USAGE, "--ctx is \"x\"");
    fails(ig_cmd_embed, WORDS("embed", "-m", "x", "--dimensions", "-1", "y"), IG_EXIT_USAGE, "dimensions");
    fails(ig_cmd_generate, WORDS("generate"), IG_EXIT_USAGE, "no prompt");
    fails(ig_cmd_generate, WORDS("generate", "--raw", "--system", "x", "-p", "y"), IG_EXIT_USAGE, "--raw");
    fails(ig_cmd_generate, WORDS("generate", "-p", "x", "--xtc-threshold", "0.6"), IG_EXIT_USAGE, "limit 0..0.5");
    fails(ig_cmd_generate, WORDS("generate", "-p", "x", "--presence-penalty", "-2.5"), IG_EXIT_USAGE, "limit -2..2");
    fails(ig_cmd_generate, WORDS("generate", "-p", "x", "--logit-bias", "13"), IG_EXIT_USAGE, "as in 13=-5");
    fails(ig_cmd_generate, WORDS("generate", "-p", "x", "--logit-bias", "-1=2"), IG_EXIT_USAGE, "as in 13=-5");
    fails(ig_cmd_generate, WORDS("generate", "-p", "x", "--logit-bias", "1=2x"), IG_EXIT_USAGE, "as in 13=-5");
    fails(ig_cmd_generate, WORDS("generate", "-p", "x", "--logit-bias", "1= 2"), IG_EXIT_USAGE, "as in 13=-5");
    fails(ig_cmd_chat, WORDS("chat", "--logit-bias", "1=nan"), IG_EXIT_USAGE, "limit -100..100");
    fails(ig_cmd_serve, WORDS("serve", "--logit-bias", "4294967295=1"), IG_EXIT_USAGE, "as in 13=-5");
    fails(ig_cmd_serve, WORDS("serve", "--logit-bias", "1=100.5"), IG_EXIT_USAGE, "limit -100..100");
    fails(ig_cmd_serve, WORDS("serve", "--prot", "1"), IG_EXIT_USAGE, "did you mean --port");
    fails(ig_cmd_serve, WORDS("serve", "--host", "0.0.0.0"), IG_EXIT_USAGE, "--api-key");
    fails(ig_cmd_serve, WORDS("serve", "--log-level", "loud"), IG_EXIT_USAGE, "debug info warn error");
    fails(ig_cmd_bench, WORDS("bench", "--runs", "0"), IG_EXIT_USAGE, "limit 1..");
}

/* A key that was asked for and is not there must not open the door. */
TEST(a_server_without_the_key_that_was_asked_for_does_not_start) {
    static const char *const files[] = {"", "\n\n", " \t\r\n", "# old key\n  # secret\n", "\0sesame\n"};
    static const size_t n_bytes[] = {0, 2, 4, 21, 8};
    for (int i = 0; i < 5; i++) {
        char path[] = "/tmp/ig-keys-XXXXXX";
        int fd = mkstemp(path);
        CHECK(write(fd, files[i], n_bytes[i]) == (ssize_t)n_bytes[i]);
        close(fd);
        fails(ig_cmd_serve, WORDS("serve", "--api-key-file", path), IG_EXIT_USAGE, path);
        fails(ig_cmd_serve, WORDS("serve", "--api-key", "k", "--api-key-file", path), IG_EXIT_USAGE, path);
        unlink(path);
    }
    fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf", "--api-key", ""), IG_EXIT_USAGE, "is empty");
    fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf", "--api-key= "), IG_EXIT_USAGE, "is empty");
    fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf", "--api-key-file="), IG_EXIT_USAGE, "is empty");
    static const char *const names[] = {"INGLE_API_KEY", "INGLE_API_KEY_FILE"};
    for (int i = 0; i < 2; i++) {
        setenv(names[i], "", 1);
        fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf"), IG_EXIT_USAGE, names[i]);
        unsetenv(names[i]);
    }
    setenv("INGLE_API_KEY", " ", 1);
    fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf"), IG_EXIT_USAGE, "INGLE_API_KEY");
    unsetenv("INGLE_API_KEY");
    /* A control: with a key it goes on, to the model that is not there. */
    fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf", "--port", "0", "--api-key", "k"),
          IG_EXIT_NOT_FOUND, "nonexistent");
}

TEST(files_that_are_no_models_exit_3_or_6) {
    char path[] = "/tmp/ig-cli-XXXXXX";
    int fd = mkstemp(path);
    fails(ig_cmd_show, WORDS("show", "/nonexistent/m.gguf"), IG_EXIT_NOT_FOUND, "/nonexistent/m.gguf");
    CHECK(write(fd, "GGUF\3\0\0\0", 8) == 8);
    fails(ig_cmd_show, WORDS("show", path), IG_EXIT_CORRUPT, "truncated at byte 8");
    fails(ig_cmd_generate, WORDS("generate", path, "-p", "x"), IG_EXIT_CORRUPT, "truncated at byte 8");
    fails(ig_cmd_serve, WORDS("serve", path, "--port", "0"), IG_EXIT_CORRUPT, "truncated at byte 8");
    close(fd);
    unlink(path);
    char shard[] = "/tmp/ig-cli-XXXXXX.safetensors";
    if (!CHECK((fd = mkstemps(shard, 12)) >= 0)) return;
    fails(ig_cmd_serve, WORDS("serve", shard, "--port", "0"), IG_EXIT_USAGE, "give the folder that it is in");
    close(fd);
    unlink(shard);
    char folder[] = "/tmp/ig-cli-XXXXXX";
    if (!CHECK(mkdtemp(folder) != NULL)) return;
    fails(ig_cmd_show, WORDS("show", folder), IG_EXIT_CORRUPT, "not the folder of a model");
    rmdir(folder);
}

TEST(a_taken_port_exits_7_before_a_model_is_looked_for) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    char port[8];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 1) ||
        getsockname(fd, (struct sockaddr *)&a, &n))
        SKIP("no loopback to listen on");
    snprintf(port, sizeof port, "%d", ntohs(a.sin_port));
    fails(ig_cmd_serve, WORDS("serve", "/nonexistent/m.gguf", "--port", port), IG_EXIT_BUSY, "is taken");
    close(fd);
}

/* ---- with one ------------------------------------------------------------------------------------------ */

TEST(the_same_seed_gives_the_same_text_as_text_and_as_json) {
    NEED_MODEL();
    child plain, json, other;
    const char *const words[] = {"generate", m,   "-p", "Tell a story.", "-n", "12", "--temp", "1.5",
                                 "--seed",   "7", NULL};
    CHECK(run(&plain, ig_cmd_generate, words, NULL) == IG_EXIT_OK && plain.text.n > 4);
    CHECK(run(&json, ig_cmd_generate,
              WORDS("generate", m, "-p", "-", "-n", "12", "--temp", "1.5", "--seed", "7", "--json",
                    "--threads", "1"),
              "Tell a story.") == IG_EXIT_OK);
    CHECK(run(&other, ig_cmd_generate,
              WORDS("generate", m, "-p", "Tell a story.", "-n", "12", "--temp", "1.5", "--seed", "8"),
              NULL) == IG_EXIT_OK);
    yyjson_doc *doc = NULL;
    ig_err err = {0};
    if (CHECK_MSG(ig_json_parse(&doc, text_of(&json.text), json.text.n, (ig_json_limits){1 << 20, 16},
                                &err) == IG_OK,
                  "%s", err.msg)) {
        yyjson_val *root = yyjson_doc_get_root(doc);
        const char *text = yyjson_get_str(ig_json_get(root, "text"));
        size_t n = text ? strlen(text) : 0;
        CHECK_MSG(n && strncmp(text, text_of(&plain.text), n) == 0, "\"%s\" and \"%s\"",
                  text ? text : "nothing", text_of(&plain.text));
        CHECK(yyjson_get_uint(ig_json_get(root, "seed")) == 7);
        CHECK(yyjson_get_int(ig_json_get(ig_json_get(root, "usage"), "completion_tokens")) <= 12);
    }
    CHECK_MSG(strcmp(text_of(&plain.text), text_of(&other.text)) != 0, "seeds 7 and 8 give the same text");
    CHECK(text_of(&plain.text)[plain.text.n - 1] == '\n'); /* the shell's prompt starts a line of its own */
    yyjson_doc_free(doc);
    drop(&plain), drop(&json), drop(&other);
}

/* On the terminal it stands below the answer; without one nothing else would say it. */
TEST(a_piped_chat_says_that_an_answer_was_cut) {
    NEED_MODEL();
    child c;
    CHECK(run(&c, ig_cmd_chat, WORDS("chat", m, "-n", "3", "--temp", "0"), "Tell a long story.\n") == IG_EXIT_OK);
    CHECK_MSG(strstr(text_of(&c.errors), "cut at 3 tokens"), "%s", text_of(&c.errors));
    drop(&c);
    setenv("INGLE_MAX_TOKENS", "2", 1); /* in every verb */
    CHECK(run(&c, ig_cmd_generate, WORDS("generate", m, "-p", "Tell a long story.", "--temp", "0"), NULL) == IG_EXIT_OK);
    CHECK_MSG(strstr(text_of(&c.errors), "cut at 2 tokens"), "%s", text_of(&c.errors));
    drop(&c);
    unsetenv("INGLE_MAX_TOKENS");
}

TEST(bias_and_penalties_change_what_a_model_says) {
    NEED_MODEL();
    child plain, other;
    CHECK(run(&plain, ig_cmd_generate,
              WORDS("generate", m, "--raw", "-p", "1 2 3 4 5", "-n", "12", "--temp", "0"), NULL) == 0);
    static const char *const options[][2] = {{"--repetition-penalty", "3"}, {"--frequency-penalty", "2"},
                                             {"--presence-penalty", "2"}, {"--logit-bias", "28=100"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        CHECK(run(&other, ig_cmd_generate,
                  WORDS("generate", m, "--raw", "-p", "1 2 3 4 5", "-n", "12", "--temp", "0", options[i][0],
                        options[i][1]),
                  NULL) == 0);
        CHECK_MSG(strcmp(text_of(&plain.text), text_of(&other.text)) != 0, "%s changes nothing: %s",
                  options[i][0], text_of(&other.text));
        drop(&other);
    }
    fails(ig_cmd_generate, WORDS("generate", m, "-p", "x", "--logit-bias", "49152=1"), IG_EXIT_USAGE,
          "the vocabulary has 49152");
    drop(&plain);
}

TEST(a_stop_string_ends_the_text_before_itself) {
    NEED_MODEL();
    child all, cut;
    CHECK(run(&all, ig_cmd_generate,
              WORDS("generate", m, "--raw", "-p", "1 2 3 4 5", "-n", "12", "--temp", "0"), NULL) == 0);
    CHECK(run(&cut, ig_cmd_generate,
              WORDS("generate", m, "--raw", "-p", "1 2 3 4 5", "-n", "12", "--temp", "0", "--stop", "8",
                    "--stats"),
              NULL) == 0);
    const char *at = strstr(text_of(&all.text), "8");
    if (CHECK_MSG(at, "the model does not count: %s", text_of(&all.text)))
        CHECK(strncmp(text_of(&cut.text), all.text.p, (size_t)(at - all.text.p)) == 0 &&
              !strstr(cut.text.p, "8"));
    CHECK(strstr(text_of(&cut.errors), "(stop)") && strstr(text_of(&cut.errors), "seed"));
    drop(&all), drop(&cut);
}

TEST(an_interrupted_answer_exits_130_with_what_there_was) {
    NEED_MODEL();
    child c;
    start(&c, ig_cmd_generate,
          WORDS("generate", m, "--raw", "-p", "One, two, three,", "-n", "4000", "--temp", "1.5"));
    follow(&c, " ");
    kill(c.pid, SIGINT);
    CHECK(finish(&c) == IG_EXIT_INTERRUPTED && c.text.n > 0);
    drop(&c);
}

TEST(tokens_say_what_they_stand_for) {
    NEED_MODEL();
    static const char text[] = "Hello  w\xc3\xb6rld \xf0\x9f\x99\x82\n\tx<|im_end|>";
    child c, count;
    yyjson_doc *doc = NULL;
    ig_buf joined = ig_buf_init(4096);
    CHECK(run(&c, ig_cmd_tokens, WORDS("tokens", "-m", m, "--json"), text) == IG_EXIT_OK);
    if (CHECK(ig_json_parse(&doc, text_of(&c.text), c.text.n, (ig_json_limits){1 << 20, 16}, NULL) ==
              IG_OK)) {
        yyjson_val *list = ig_json_get(yyjson_doc_get_root(doc), "tokens"), *one, *byte;
        size_t i, j, n, n_bytes;
        yyjson_arr_foreach(list, i, n, one) {
            yyjson_val *bytes = ig_json_get(one, "bytes");
            const char *piece = yyjson_get_str(ig_json_get(one, "text"));
            if (piece) ig_buf_add_str(&joined, piece);
            yyjson_arr_foreach(bytes, j, n_bytes, byte)
                ig_buf_add(&joined, &(char){(char)yyjson_get_int(byte)}, 1);
        }
        CHECK_MSG(joined.n && strcmp(joined.p, text) == 0, "\"%s\"", text_of(&joined));
        CHECK(run(&count, ig_cmd_tokens, WORDS("tokens", "-m", m, "--count"), text) == IG_EXIT_OK);
        CHECK(strtoul(text_of(&count.text), NULL, 10) == yyjson_arr_size(list));
        drop(&count);
    }
    yyjson_doc_free(doc);
    ig_buf_free(&joined);
    drop(&c);
}

TEST(a_budget_that_is_too_small_exits_4_with_the_numbers) {
    NEED_MODEL();
    fails(ig_cmd_generate, WORDS("generate", m, "-p", "x", "--memory-budget", "10M"), IG_EXIT_MEMORY,
          "10.0 MB may be used");
    fails(ig_cmd_serve, WORDS("serve", m, "--port", "0", "--memory-budget", "200M"), IG_EXIT_MEMORY,
          "200 MB may be used: the largest context that fits is ");
    fails(ig_cmd_serve, WORDS("serve", m, "--port", "0", "--memory-budget", "200M"), IG_EXIT_MEMORY,
          "; --ctx N asks for a shorter one, --kv-bits 8 keeps more in the same memory");
}

TEST(the_server_says_ready_on_one_line_and_ends_well) {
    NEED_MODEL();
    child c;
    start(&c, ig_cmd_serve,
          WORDS("serve", m, "--port", "0", "--api-key", "sesame", "--ctx", "512", "--batch", "2", "--alias",
                "a b\nc"));
    follow(&c, "\n");
    CHECK_MSG(strncmp(text_of(&c.text), "INGLE_READY {\"port\":", 20) == 0, "%s", text_of(&c.text));
    CHECK(strstr(text_of(&c.text), "\"url\":\"http://127.0.0.1:") &&
          strstr(text_of(&c.text), "\"model\":\"a b\\nc\",\"tier\":\"l3\",\"ctx\":512,\"slots\":2}\n"));
    kill(c.pid, SIGTERM);
    int code = finish(&c);
    CHECK_MSG(code == IG_EXIT_OK, "exit code %d: %s", code, text_of(&c.errors));
    CHECK(c.text.n && strchr(c.text.p, '\n') == c.text.p + c.text.n - 1); /* exactly one line */
    drop(&c);
}

/* Names of files may hold any bytes; JSON may not. */
TEST(a_model_whose_name_is_no_utf8_is_served_and_shown) {
    NEED_MODEL();
    char folder[] = "/tmp/ig-name-XXXXXX", link[64];
    if (!CHECK(mkdtemp(folder) != NULL)) return;
    snprintf(link, sizeof link, "%s/a\xffz.gguf", folder);
    CHECK(symlink(m, link) == 0);
    const char *const *const lines[] = {WORDS("generate", link, "-p", "Hi", "-n", "1", "--json"),
                                        WORDS("show", link, "--json"), WORDS("embed", link, "a cat")};
    verb_fn *const verbs[] = {ig_cmd_generate, ig_cmd_show, ig_cmd_embed};
    child c;
    for (int i = 0; i < 3; i++) {
        int code = run(&c, verbs[i], lines[i], NULL);
        CHECK_MSG(code == IG_EXIT_OK && strstr(text_of(&c.text), "a\xef\xbf\xbdz"), "%s: exit code %d: %s",
                  lines[i][0], code, text_of(&c.errors));
        yyjson_doc *doc = yyjson_read(text_of(&c.text), c.text.n, 0);
        CHECK_MSG(doc, "%s prints no JSON", lines[i][0]);
        yyjson_doc_free(doc);
        drop(&c);
    }
    start(&c, ig_cmd_serve, WORDS("serve", link, "--port", "0", "--ctx", "512"));
    follow(&c, "\n");
    CHECK_MSG(strstr(text_of(&c.text), "\"model\":\"a\xef\xbf\xbdz\""), "%s", text_of(&c.text));
    kill(c.pid, SIGTERM);
    CHECK(finish(&c) == IG_EXIT_OK);
    drop(&c);
    unlink(link);
    rmdir(folder);
}

TEST(a_model_is_shown_with_its_plan_and_a_refused_one_with_the_reason) {
    NEED_MODEL();
    child c;
    CHECK(run(&c, ig_cmd_show, WORDS("show", m), NULL) == IG_EXIT_OK);
    CHECK(strstr(text_of(&c.text), "runs         yes") && strstr(text_of(&c.text), "linear"));
    drop(&c);
    CHECK(run(&c, ig_cmd_show, WORDS("show", m, "--memory-budget", "10M"), NULL) == IG_EXIT_MEMORY);
    CHECK(strstr(text_of(&c.text), "runs         no: ") && strstr(text_of(&c.text), "10.0 MB may be used"));
    drop(&c);
    /* What it plans for is said, and a plan's parts make its whole. */
    CHECK(run(&c, ig_cmd_show, WORDS("show", m, "--ctx", "512", "--json"), NULL) == IG_EXIT_OK);
    yyjson_doc *doc = yyjson_read(text_of(&c.text), c.text.n, 0);
    yyjson_val *serve = ig_json_get(yyjson_doc_get_root(doc), "memory"), *one = ig_json_get(serve, "one_conversation");
    static const char *const parts[] = {"kv_bytes", "step_bytes", "table_bytes", "reserve_bytes"};
    for (int i = 0; i < 2; i++) {
        uint64_t sum = yyjson_get_uint(ig_json_get(serve, "weights_bytes"));
        for (int k = 0; k < 4; k++) sum += yyjson_get_uint(ig_json_get(i ? one : serve, parts[k]));
        CHECK(sum > 0 && sum == yyjson_get_uint(ig_json_get(i ? one : serve, "total_bytes")));
    }
    CHECK(yyjson_get_int(ig_json_get(serve, "slots")) == 4 && yyjson_get_int(ig_json_get(one, "slots")) == 1);
    yyjson_doc_free(doc);
    drop(&c);
    CHECK(run(&c, ig_cmd_show, WORDS("show", m, "--json"), NULL) == IG_EXIT_OK);
    CHECK(strstr(text_of(&c.text), "\"runs\": true"));
    drop(&c);
}

TEST(bench_keeps_to_a_memory_budget) {
    NEED_MODEL();
    fails(ig_cmd_bench, WORDS("bench", m, "-p", "0", "--ctx", "4096", "-b", "1", "-n", "2", "-r", "1", "--memory-budget",
                              "180M", "--csv"),
          IG_EXIT_MEMORY, "may be used");
}

TEST(embed_prints_a_vector_of_length_one_for_each_text_and_the_same_alone) {
    NEED_MODEL();
    child both, alone, cut;
    CHECK(run(&both, ig_cmd_embed, WORDS("embed", m, "a cat", "a much longer text about a dog"), NULL) ==
          IG_EXIT_OK);
    CHECK(run(&alone, ig_cmd_embed, WORDS("embed", "-m", m, "-"), "\na much longer text about a dog\r\n") ==
          IG_EXIT_OK);
    CHECK(run(&cut, ig_cmd_embed, WORDS("embed", m, "--dimensions", "16", "a cat"), NULL) == IG_EXIT_OK);
    yyjson_doc *doc[3] = {yyjson_read(both.text.p, both.text.n, 0),
                          yyjson_read(alone.text.p, alone.text.n, 0), yyjson_read(cut.text.p, cut.text.n, 0)};
    yyjson_val *data[3], *v[4] = {NULL};
    for (int i = 0; i < 3; i++) {
        data[i] = ig_json_get(yyjson_doc_get_root(doc[i]), "data");
        CHECK(doc[i] && yyjson_arr_size(data[i]) == (i == 0 ? 2 : 1));
        v[i] = ig_json_get(yyjson_arr_get(data[i], i == 0 ? 1 : 0), "embedding");
    }
    v[3] = ig_json_get(yyjson_arr_get(data[0], 0), "embedding");
    CHECK(yyjson_arr_size(v[0]) > 16 && yyjson_arr_size(v[2]) == 16 && yyjson_equals(v[0], v[1]));
    CHECK(!yyjson_equals(v[0], v[3]));
    for (int i = 0; i < 4; i++) {
        double sum = 0;
        size_t k, n;
        yyjson_val *x;
        yyjson_arr_foreach(v[i], k, n, x) sum += yyjson_get_num(x) * yyjson_get_num(x);
        CHECK_MSG(sum > 0.9999 && sum < 1.0001, "vector %d has a length of %g squared", i, sum);
    }
    for (int i = 0; i < 3; i++) yyjson_doc_free(doc[i]);
    drop(&both), drop(&alone), drop(&cut);
}
