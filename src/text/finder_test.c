/* Tests of the search for tokens, against one that tries every token at every place. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

enum { TOKENS = 24, RANGES = 6, TEXT = 400 };

typedef struct token {
    char text[8];
    size_t n;
    bool special;
} token;

static uint32_t dice(uint32_t round, uint32_t *at) {
    return ig_rng_word(5, round, (*at)++, 0);
}

/* Of the letters a to c; no two alike. How many. */
static int make_tokens(token *v, uint32_t round, uint32_t *at) {
    int n = 0;
    for (int i = 0; i < TOKENS; i++) {
        token t = {.n = dice(round, at) % 7 + 1, .special = dice(round, at) % 2};
        for (size_t k = 0; k < t.n; k++) t.text[k] = (char)('a' + dice(round, at) % (round % 3 + 1));
        bool is_new = true;
        for (int k = 0; k < n; k++) is_new &= strcmp(v[k].text, t.text) != 0;
        if (is_new) v[n++] = t;
    }
    return n;
}

static size_t limit_at(const ig_encode_options *opt, size_t at, size_t end) {
    for (size_t i = 0; i < opt->n_plain; i++)
        if (opt->plain[i].to > at) return opt->plain[i].from;
    return end;
}

/* The longest at `at`, or -1. */
static int try_all(const token *v, int n, ig_slice text, size_t at, const ig_encode_options *opt) {
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (v[i].n > text.n - at || memcmp(text.p + at, v[i].text, v[i].n) != 0) continue;
        if (v[i].special && (!opt->parse_special || at + v[i].n > limit_at(opt, at, text.n))) continue;
        if (best < 0 || v[i].n > v[best].n) best = i;
    }
    return best;
}

static void look(const ig_finder *f, const token *v, int n, ig_slice text, const ig_encode_options *opt,
                 size_t piece, uint32_t round) {
    ig_found found[TEXT];
    for (size_t from = 0; from < text.n; from += piece) {
        size_t to = from + piece < text.n ? from + piece : text.n;
        size_t left = ig_finder_scan(f, text, from, to, opt, found);
        for (size_t at = from; at < to; at++) {
            int want = try_all(v, n, text, at, opt);
            bool has = left > 0 && found[left - 1].at == at;
            CHECK_MSG(has == (want >= 0), "round %u, place %zu: %s", round, at, has ? "found" : "not found");
            if (!has || want < 0) continue;
            left--;
            CHECK_MSG(found[left].number == (uint32_t)want && found[left].n_bytes == v[want].n,
                      "round %u, place %zu: %u, not %d", round, at, found[left].number, want);
        }
        CHECK(left == 0);
    }
}

TEST(the_search_finds_what_trying_every_token_finds) {
    for (uint32_t round = 0; round < 600 && !ig_test_failed(); round++) {
        uint32_t at = 0;
        token v[TOKENS];
        char text[TEXT];
        ig_text_range plain[RANGES];
        ig_finder f = {0};
        size_t n_text = dice(round, &at) % TEXT + 1, n_plain = 0;
        int n = make_tokens(v, round, &at);
        for (size_t i = 0; i < n_text; i++) text[i] = (char)('a' + dice(round, &at) % (round % 3 + 1));
        for (size_t from = 0; n_plain < RANGES && round % 2; n_plain++) {
            from += dice(round, &at) % 40;
            size_t to = from + dice(round, &at) % 20; /* an empty one, too */
            if (to > n_text) break;
            plain[n_plain] = (ig_text_range){from, to};
            from = to;
        }
        CHECK(ig_finder_make(&f, TOKENS * 8, round));
        for (int i = 0; i < n; i++)
            ig_finder_add(&f, (ig_slice){v[i].text, v[i].n}, (uint32_t)i, v[i].special);
        CHECK(ig_finder_link(&f));
        ig_encode_options opt = {.parse_special = round % 5 != 0, .plain = plain, .n_plain = n_plain};
        look(&f, v, n, (ig_slice){text, n_text}, &opt, n_text, round);
        look(&f, v, n, (ig_slice){text, n_text}, &opt, 7, round); /* in pieces */
        ig_finder_free(&f);
    }
}

/* Every place begins as 255 tokens begin, and is none: tried one by one it takes seconds. */
TEST(a_megabyte_that_goes_along_with_long_tokens_is_looked_through) {
    enum { N = 1 << 20 };
    ig_finder f = {0};
    ig_found found[64];
    char name[IG_FINDER_BYTES_MAX], *text = malloc(N);
    size_t n = 0;
    if (!CHECK(text && ig_finder_make(&f, 1 << 16, 1))) return;
    memset(text, 'a', N);
    memset(name, 'a', sizeof name);
    for (uint32_t k = 1; k < IG_FINDER_BYTES_MAX; k++) {
        name[k] = 'b';
        ig_finder_add(&f, (ig_slice){name, k + 1}, k, true);
        name[k] = 'a';
    }
    CHECK(ig_finder_link(&f));
    text[N - 1] = 'b';
    ig_encode_options opt = {.parse_special = true};
    for (size_t at = 0; at < N; at += 64)
        n += ig_finder_scan(&f, (ig_slice){text, N}, at, at + 64, &opt, found);
    CHECK_MSG(n == IG_FINDER_BYTES_MAX - 1, "%zu", n);
    CHECK(found[0].at == N - 2 && found[0].number == 1 && found[0].n_bytes == 2);
    ig_finder_free(&f);
    free(text);
}
