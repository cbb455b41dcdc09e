/* Tests of the stop matcher against a search in the whole text. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"

/* The reference: where the first stop ends, the longest of those that end there. */
static bool search(ig_slice text, const ig_slice *stop, int n, size_t *at, int *which) {
    for (size_t end = 1; end <= text.n; end++) {
        *which = -1;
        for (int i = 0; i < n; i++)
            if (stop[i].n <= end && memcmp(text.p + end - stop[i].n, stop[i].p, stop[i].n) == 0 &&
                (*which < 0 || stop[i].n > stop[*which].n))
                *which = i;
        if (*which >= 0) {
            *at = end - stop[*which].n;
            return true;
        }
    }
    return false;
}

/* Feeds the text in two pieces, cut at `cut`, and then byte by byte. */
static void check_cut(ig_slice text, const ig_slice *stop, int n, size_t cut, bool bytewise) {
    ig_stop *s = NULL;
    ig_buf out = ig_buf_init(10000);
    size_t at = text.n;
    int which = -1, want_which = -1;
    bool hit = false, want = search(text, stop, n, &at, &want_which);
    CHECK(ig_stop_make(&s, stop, n, NULL) == IG_OK);
    size_t step = bytewise ? 1 : cut ? cut : 1;
    for (size_t from = 0; from < text.n && !hit; from += step, step = bytewise ? 1 : text.n)
        hit = ig_stop_feed(s, (ig_slice){text.p + from, step < text.n - from ? step : text.n - from}, &out,
                           &which);
    if (!hit) ig_stop_finish(s, &out);
    CHECK(hit == want && (!hit || which == want_which));
    CHECK_MSG(ig_slice_eq((ig_slice){out.p, out.n}, (ig_slice){text.p, at}),
              "\"%.*s\" cut at %zu gave \"%.*s\"", (int)text.n, text.p, cut, (int)out.n, out.n ? out.p : "");
    ig_buf_free(&out);
    ig_stop_free(s);
}

static void check_all_cuts(const char *text, const char *const *stops, int n) {
    ig_slice stop[IG_STOP_STRINGS_MAX], all = ig_slice_of(text);
    for (int i = 0; i < n; i++) stop[i] = ig_slice_of(stops[i]);
    for (size_t cut = 0; cut <= all.n; cut++) check_cut(all, stop, n, cut, false);
    check_cut(all, stop, n, 0, true);
}

TEST(a_stop_cut_at_any_byte_gives_the_same_text) {
    static const char *const one[] = {"</end>"}, *const self[] = {"abab"},
                             *const more[] = {"END", "\n\n", "\xC3\xA9t\xC3\xA9", "ND"};
    check_all_cuts("some text</end>dropped", one, 1);
    check_all_cuts("some </en text <</end>", one, 1);
    check_all_cuts("no stop here </end", one, 1);
    check_all_cuts("ababxabaabab", self, 1);
    check_all_cuts("aaabaababab", self, 1);
    check_all_cuts("un \xC3\xA9t\xC3\xA8 puis l'\xC3\xA9t\xC3\xA9.", more, 4);
    check_all_cuts("THE END", more, 4);
    check_all_cuts("a\nb\n\nc", more, 4);
    check_all_cuts("", more, 4);
    check_all_cuts("anything", NULL, 0);
}

TEST(the_earliest_end_wins_and_of_those_the_longest) {
    static const char *const stops[] = {"b", "abc", "ab"};
    ig_stop *s = NULL;
    ig_buf out = ig_buf_init(100);
    int which = -1;
    ig_slice stop[3] = {ig_slice_of(stops[0]), ig_slice_of(stops[1]), ig_slice_of(stops[2])};
    CHECK(ig_stop_make(&s, stop, 3, NULL) == IG_OK);
    CHECK(ig_stop_feed(s, ig_slice_of("xabc"), &out, &which) && which == 2 &&
          ig_slice_eq_str((ig_slice){out.p, out.n}, "x"));
    CHECK(ig_stop_feed(s, ig_slice_of("more"), &out, NULL) &&
          out.n == 1); /* after a match nothing comes out */
    ig_buf_free(&out);
    ig_stop_free(s);
}

TEST(random_texts_and_stops_agree_with_a_search) {
    for (uint32_t round = 0; round < 4000; round++) {
        char text[40], stops[4][6];
        ig_slice stop[4];
        uint32_t k = 0;
        int n = 1 + (int)(ig_rng_word(2, round, k++, 0) % 4);
        size_t len = ig_rng_word(2, round, k++, 0) % sizeof text;
        for (size_t i = 0; i < len; i++) text[i] = "ab"[ig_rng_word(2, round, k++, 0) & 1];
        for (int i = 0; i < n; i++) {
            stop[i] = (ig_slice){stops[i], 1 + ig_rng_word(2, round, k++, 0) % sizeof stops[i]};
            for (size_t j = 0; j < stop[i].n; j++) stops[i][j] = "ab"[ig_rng_word(2, round, k++, 0) & 1];
        }
        bool twice = false; /* equal strings: either may be told */
        for (int i = 0; i < n; i++)
            for (int j = 0; j < i; j++) twice = twice || ig_slice_eq(stop[i], stop[j]);
        if (!twice) check_cut((ig_slice){text, len}, stop, n, len ? round % len : 0, round % 3 == 0);
    }
}

TEST(only_what_may_be_a_stop_is_held_back) {
    ig_stop *s = NULL;
    ig_buf out = ig_buf_init(100);
    ig_slice stop = ig_slice_of("<stop>");
    CHECK(ig_stop_make(&s, &stop, 1, NULL) == IG_OK);
    CHECK(!ig_stop_feed(s, ig_slice_of("abc<st"), &out, NULL) && out.n == 3);
    CHECK(!ig_stop_feed(s, ig_slice_of("<"), &out, NULL) && out.n == 6);
    CHECK(!ig_stop_feed(s, ig_slice_of("!"), &out, NULL) && out.n == 8);
    ig_buf_free(&out);
    ig_stop_free(s);
}

TEST(bad_stops_are_refused) {
    char large[IG_STOP_BYTES_MAX + 1];
    memset(large, 'a', sizeof large);
    ig_slice many[IG_STOP_STRINGS_MAX + 1], stop = {"", 0};
    ig_stop *s = NULL;
    ig_err err;
    for (size_t i = 0; i <= IG_STOP_STRINGS_MAX; i++) many[i] = ig_slice_of("x");
    CHECK(ig_stop_make(&s, &stop, 1, &err) == IG_EINVAL && strstr(err.msg, "stop[0]: 0 bytes"));
    stop = (ig_slice){large, sizeof large};
    CHECK(ig_stop_make(&s, &stop, 1, &err) == IG_EINVAL && strstr(err.msg, "513"));
    stop.n--;
    CHECK(ig_stop_make(&s, &stop, 1, &err) == IG_OK);
    ig_stop_free(s);
    s = NULL;
    CHECK(ig_stop_make(&s, many, IG_STOP_STRINGS_MAX + 1, &err) == IG_EINVAL && strstr(err.msg, "17"));
    stop = ig_slice_of("\xC3");
    CHECK(ig_stop_make(&s, &stop, 1, &err) == IG_EINVAL && s == NULL);
}
