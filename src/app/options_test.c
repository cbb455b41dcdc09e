#include "app/app.h"
#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a call wrote to stderr or stdout. */
typedef struct capture {
    int target, kept, file;
    char text[4096];
} capture;

static void capture_start(capture *c, int target) {
    fflush(stdout);
    fflush(stderr);
    c->target = target;
    c->kept = dup(target);
    c->file = memfd_create("capture", MFD_CLOEXEC);
    if (c->kept < 0 || c->file < 0 || dup2(c->file, target) < 0) abort();
}

static void capture_end(capture *c) {
    fflush(stdout);
    fflush(stderr);
    ssize_t n = pread(c->file, c->text, sizeof c->text - 1, 0);
    c->text[n > 0 ? n : 0] = 0;
    dup2(c->kept, c->target);
    close(c->kept);
    close(c->file);
}

typedef struct values {
    bool flag, on, seeded, consent;
    int number, bits;
    double real;
    uint64_t seed, size, budget, room;
    const char *text;
    ig_option_list list;
    ig_option_ints sizes;
    ig_option_one way;
} values;

static values fresh(void) {
    return (values){.on = true, .number = 5, .real = 0.5, .text = "none", .bits = 16, .room = 32 << 20};
}

/* Parses the words (NULL-ended, the verb first) into v. */
static bool parse(values *v, const char *const *line, ig_words *words, int *code, char *says, size_t n_says) {
    const ig_option options[] = {
        {"flag", .kind = IG_OPT_BOOL, .to = &v->flag, .help = "a switch"},
        {"on", .kind = IG_OPT_BOOL, .to = &v->on, .help = "on by default"},
        {"number", .letter = 'n', .kind = IG_OPT_INT, .to = &v->number, .min = 1, .max = 9, .value = "N",
         .help = "a count"},
        {"real", .other = "re", .kind = IG_OPT_REAL, .to = &v->real, .min = 0, .max = 2, .value = "X",
         .help = "a share"},
        {"seed", .kind = IG_OPT_U64, .to = &v->seed, .given = &v->seeded, .value = "N", .help = "a seed"},
        {"size", .kind = IG_OPT_SIZE, .to = &v->size, .min = 0, .max = 1e15, .value = "SIZE",
         .help = "bytes"},
        {"budget", .kind = IG_OPT_SIZE, .to = &v->budget, .min = 0, .max = 1e12, .bare = 1e9, .value = "SIZE",
         .help = "bytes"},
        {"text", .kind = IG_OPT_TEXT, .to = &v->text, .value = "TEXT", .help = "words"},
        {"list", .kind = IG_OPT_LIST, .to = &v->list, .value = "X", .help = "many"},
        {"east", .other = "right", .kind = IG_OPT_ONE, .to = &v->way, .min = 1, .help = "this way"},
        {"west", .kind = IG_OPT_ONE, .to = &v->way, .min = 2, .help = "that way"},
        {"consent", .kind = IG_OPT_BOOL, .to = &v->consent, .typed = true, .help = "yes"},
        {"bits", .kind = IG_OPT_INT, .to = &v->bits, .min = 8, .max = 16, .step = 8, .value = "N", .help = "of two"},
        {"the-name-of-21-letter", .kind = IG_OPT_SIZE, .to = &v->room, .min = 0, .max = 1e15,
         .help = "so much that one line of a hundred columns does not hold it, and a second one has the rest"},
        {"sizes", .kind = IG_OPT_INTS, .to = &v->sizes, .min = 0, .max = 4096, .value = "LIST", .help = "some"},
    };
    const ig_command c = {.verb = "try",
                          .words = "[THING]",
                          .summary = "A verb for tests.",
                          .options = options,
                          .n_options = sizeof options / sizeof *options,
                          .n_words_max = 2};
    static char text[32][64]; /* values point into it until the next call, as they do into the real argv */
    char *argv[32];
    int argc = 0;
    capture err, out;
    for (; line[argc]; argc++) {
        argv[argc] = text[argc];
        snprintf(text[argc], sizeof text[argc], "%s", line[argc]);
    }
    capture_start(&out, STDOUT_FILENO);
    capture_start(&err, STDERR_FILENO);
    bool go = ig_options_parse(&c, argc, argv, words, code);
    capture_end(&err);
    capture_end(&out);
    snprintf(says, n_says, "%s%s", out.text, err.text);
    return go;
}

#define LINE(...) ((const char *const[]){"try", __VA_ARGS__, NULL})

static void accepts(values *v, const char *const *line) {
    ig_words words;
    int code;
    char says[8192];
    *v = fresh();
    CHECK_MSG(parse(v, line, &words, &code, says, sizeof says), "%s refused: %s", line[1], says);
}

static void refuses(const char *const *line, const char *because) {
    values v = fresh();
    ig_words words;
    int code = -1;
    char says[8192];
    CHECK_MSG(!parse(&v, line, &words, &code, says, sizeof says), "%s was accepted", line[1]);
    CHECK_MSG(code == IG_EXIT_USAGE && strstr(says, because), "%s: code %d, \"%s\" without \"%s\"", line[1],
              code, says, because);
}

TEST(every_kind_of_option_is_read_in_both_spellings) {
    values v;
    accepts(&v, LINE("--flag", "--no-on", "--number", "7", "--real=1.25", "--seed", "18446744073709551615"));
    CHECK(v.flag && !v.on && v.number == 7 && v.real == 1.25 && v.seed == UINT64_MAX && v.seeded);
    accepts(&v, LINE("-n", "2", "--re", "2", "--text=", "--list", "a", "--list=b"));
    CHECK(v.number == 2 && v.real == 2 && *v.text == 0 && v.list.n == 2 && !v.list.v[2] && !v.seeded);
    accepts(&v, LINE("--number=1", "--number=9", "--no-flag", "--text", "-"));
    CHECK(v.number == 9 && !v.flag && strcmp(v.text, "-") == 0); /* the last one wins */
    accepts(&v, LINE("--sizes", "9", "--sizes", "128,0,4096"));
    CHECK(v.sizes.n == 3 && v.sizes.v[0] == 128 && v.sizes.v[1] == 0 && v.sizes.v[2] == 4096);
    accepts(&v, LINE("--text", "-5"));
    CHECK(strcmp(v.text, "-5") == 0);
}

TEST(sizes_know_powers_of_1000_and_of_1024) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"0", 0},
                 {"1000", 1000},
                 {"4K", 4000},
                 {"4Ki", 4096},
                 {"1.5G", 1500000000},
                 {"512Mi", 536870912},
                 {"2GB", 2000000000},
                 {"1GiB", 1073741824},
                 {"1T", 1000000000000},
                 {"7B", 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        values got;
        accepts(&got, LINE("--size", cases[i].text));
        CHECK_MSG(got.size == cases[i].bytes, "%s is %llu", cases[i].text, (unsigned long long)got.size);
    }
    values v;
    accepts(&v, LINE("--budget", "4"));
    CHECK(v.budget == 4000000000); /* a bare number of a budget counts gigabytes, and that is said */
    accepts(&v, LINE("--budget", "4Mi"));
    CHECK(v.budget == 4194304);
    refuses(LINE("--budget", "4000000000"), "limit 0..1000000000000 bytes; a number alone counts 1.00 GB");
    refuses(LINE("--budget", "4k"), "a size: a number with");
    refuses(LINE("--size", "4k"), "K M G T");
    refuses(LINE("--size", "G"), "a size");
    refuses(LINE("--size", "-1"), "a size");
    refuses(LINE("--size", "0x10"), "a size");
    refuses(LINE("--size", "9999T"), "bytes");
}

TEST(what_is_unknown_is_refused_with_the_nearest_name) {
    refuses(LINE("--nunber", "3"), "did you mean --number?");
    refuses(LINE("--reel=3"), "did you mean --real?");
    refuses(LINE("--ee", "3"), "did you mean --re?");
    refuses(LINE("--ab", "3"), "no option --ab (");
    refuses(LINE("--zzzzzzzz"), "no option --zzzzzzzz");
    refuses(LINE("-x"), "no option -x");
    refuses(LINE("-n3"), "no option -n3");
    refuses(LINE("--no-number"), "--no-number");
    refuses(LINE("--no-flag=1"), "--no-flag");
    refuses(LINE("a", "b", "c"), "unexpected \"c\"");
    refuses(LINE("--=3"), "no option");
}

TEST(values_out_of_bounds_are_refused_with_the_bound) {
    refuses(LINE("--number", "0"), "--number is 0, limit 1..9");
    refuses(LINE("-n", "10"), "-n is 10, limit 1..9");
    refuses(LINE("--number", "99999999999999999999"), "limit");
    refuses(LINE("--number", "3x"), "whole number");
    refuses(LINE("--number", "3.0"), "whole number");
    refuses(LINE("--number", " 3"), "whole number");
    refuses(LINE("--number="), "whole number");
    refuses(LINE("--bits", "4"), "--bits is 4; it wants 8 or 16");
    refuses(LINE("--bits", "12"), "it wants 8 or 16");
    refuses(LINE("--real", "nan"), "limit 0..2");
    refuses(LINE("--real", "2.1"), "limit 0..2");
    refuses(LINE("--real", "x"), "a number");
    refuses(LINE("--seed", "-1"), "whole number");
    refuses(LINE("--seed", "18446744073709551616"), "whole number");
    refuses(LINE("--sizes", "1,4097"), "--sizes is 1,4097, limit 0..4096");
    refuses(LINE("--sizes", "99999999999999999999"), "limit 0..4096");
    refuses(LINE("--sizes="), "whole numbers with commas");
    refuses(LINE("--sizes", "1,,2"), "whole numbers with commas");
    refuses(LINE("--sizes", "1,"), "whole numbers with commas");
    refuses(LINE("--sizes", "1, 2"), "whole numbers with commas");
    refuses(LINE("--sizes", "1;2"), "whole numbers with commas");
    refuses(LINE("--sizes", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"), "more than 16 numbers");
    refuses(LINE("--flag=yes"), "1 or 0");
    refuses(LINE("--number"), "--number wants a value");
    refuses(LINE("--text", "--flag"), "--text wants a value"); /* and does not swallow the next option */
}

TEST(words_and_options_mix_and_two_dashes_end_options) {
    values v = fresh();
    ig_words words;
    int code;
    char says[8192];
    CHECK(parse(&v, LINE("one", "--number", "3", "--", "--flag"), &words, &code, says, sizeof says));
    CHECK(words.n == 2 && strcmp(words.v[0], "one") == 0 && strcmp(words.v[1], "--flag") == 0 && !v.flag);
}

TEST(the_environment_stands_in_for_options_that_were_not_given) {
    values v;
    setenv("INGLE_NUMBER", "4", 1);
    setenv("INGLE_FLAG", "1", 1);
    accepts(&v, LINE("--real", "1"));
    CHECK(v.number == 4 && v.flag);
    accepts(&v, LINE("--number", "6", "--no-flag"));
    CHECK(v.number == 6 && !v.flag);
    setenv("INGLE_NUMBER", "40", 1);
    refuses(LINE("--flag"), "INGLE_NUMBER is 40, limit 1..9");
    unsetenv("INGLE_NUMBER");
    unsetenv("INGLE_FLAG");
    setenv("INGLE_CONSENT", "1", 1); /* a consent is given each time */
    accepts(&v, LINE("--flag"));
    CHECK(!v.consent);
    accepts(&v, LINE("--consent"));
    CHECK(v.consent);
    unsetenv("INGLE_CONSENT");
}

TEST(options_that_exclude_each_other_are_refused_by_both_names) {
    values v;
    accepts(&v, LINE("--flag"));
    CHECK(v.way.v == 0 && !v.way.by);
    accepts(&v, LINE("--right", "--east"));
    CHECK(v.way.v == 1 && strcmp(v.way.by, "east") == 0);
    accepts(&v, LINE("--west=1", "--east=0"));
    CHECK(v.way.v == 2);
    refuses(LINE("--east", "--west"), "--east and --west exclude each other");
    refuses(LINE("--west", "--right"), "--west and --east exclude each other");
    refuses(LINE("--no-east"), "--no-east");
    refuses(LINE("--east=yes"), "1 or 0");
    setenv("INGLE_EAST", "1", 1);
    accepts(&v, LINE("--flag"));
    CHECK(v.way.v == 1);
    accepts(&v, LINE("--west")); /* the command line wins */
    CHECK(v.way.v == 2);
    setenv("INGLE_WEST", "1", 1);
    refuses(LINE("--flag"), "exclude each other");
    unsetenv("INGLE_EAST");
    unsetenv("INGLE_WEST");
}

/* What is said while the environment holds `name`. */
static void said_with(const char *name, bool all, char *says, size_t n) {
    int number = 1, code;
    const ig_option options[] = {{"max-tokens", .kind = IG_OPT_INT, .to = &number, .min = 1, .max = 9,
                                  .value = "N", .help = "a count"}};
    const ig_command c = {.verb = "v",
                          .words = "",
                          .summary = "",
                          .options = options,
                          .n_options = 1,
                          .env_all = all};
    char verb[] = "v", *argv[] = {verb, NULL};
    ig_words words;
    capture err;
    setenv(name, "3", 1);
    capture_start(&err, STDERR_FILENO);
    CHECK(ig_options_parse(&c, 1, argv, &words, &code));
    capture_end(&err);
    unsetenv(name);
    snprintf(says, n, "%s", err.text);
}

TEST(a_variable_that_means_nothing_is_told_with_the_nearest_name) {
    char says[4096];
    said_with("INGLE_MAX_TOKEN", false, says, sizeof says);
    CHECK_MSG(
        strstr(says, "INGLE_MAX_TOKEN in the environment means nothing; did you mean INGLE_MAX_TOKENS?"),
        "%s", says);
    said_with("INGLE_CACH", false, says, sizeof says);
    CHECK_MSG(strstr(says, "did you mean INGLE_CACHE?"), "%s", says);
    said_with("INGLE_FROBNICATE", true, says, sizeof says);
    CHECK_MSG(strstr(says, "INGLE_FROBNICATE in the environment means nothing to v"), "%s", says);
    static const char *const quiet[] = {"INGLE_MAX_TOKENS", "INGLE_CPU", "INGLE_CACHE", "INGLE_TEST_MODEL"};
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) {
        if (getenv(quiet[i])) continue; /* the tests' own */
        said_with(quiet[i], true, says, sizeof says);
        CHECK_MSG(!*says, "%s: %s", quiet[i], says);
    }
    said_with("INGLE_FROBNICATE", false, says, sizeof says); /* perhaps meant for another verb */
    CHECK_MSG(!*says, "%s", says);
}

TEST(help_shows_every_option_with_its_default) {
    values v = fresh();
    ig_words words;
    int code = -1;
    char says[8192];
    CHECK(!parse(&v, LINE("--number", "3", "--help"), &words, &code, says, sizeof says) &&
          code == IG_EXIT_OK);
    static const char *const wants[] = {"usage: ingle try [THING]",
                                        "--flag ",
                                        "--no-on",
                                        "-n, --number N",
                                        "[5]",
                                        "--real, --re X",
                                        "[0.5]",
                                        "--size SIZE",
                                        "[none]",
                                        "[32Mi]",
                                        "--help",
                                        "INGLE_NUMBER=N stands for --number N"};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        CHECK_MSG(strstr(says, wants[i]), "no %s", wants[i]);
    CHECK(strstr(says, "--the-name-of-21-letter\n")); /* no two blanks would be left before the help */
    char *rest = NULL;
    for (char *line = strtok_r(says, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        CHECK_MSG(strlen(line) <= 100, "over 100 columns: %s", line);
}

TEST(sizes_are_written_for_people) {
    CHECK(strcmp(ig_size_text_of(0).s, "0 B") == 0);
    CHECK(strcmp(ig_size_text_of(999).s, "999 B") == 0);
    CHECK(strcmp(ig_size_text_of(1000).s, "1.00 kB") == 0);
    CHECK(strcmp(ig_size_text_of(98362432).s, "98.4 MB") == 0);
    CHECK(strcmp(ig_size_text_of(999999).s, "1.00 MB") == 0);
    CHECK(strcmp(ig_size_text_of(UINT64_MAX).s, "18.4 EB") == 0);
}

TEST(the_nearest_word_is_near_or_none) {
    static const char *const names[] = {"serve", "show", "chat", NULL};
    CHECK(strcmp(ig_options_nearest("sevre", names), "serve") == 0);
    CHECK(strcmp(ig_options_nearest("chats", names), "chat") == 0);
    CHECK(!ig_options_nearest("quantize", names) && !ig_options_nearest("x", (const char *const[]){NULL}));
}
