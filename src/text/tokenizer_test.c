/* Tests of the tokenizer on small vocabularies made here, and on the starter model where it is there. That
 * the ids equal the reference's on megabytes of text is shown by tests/text. */
#include "text/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"

/* The 256 letters of the byte alphabet, some merges' results, three special tokens. */
struct small {
    char letter[256][3];
    ig_slice token[300];
    int32_t type[300];
    ig_slice merge[32];
    ig_tokenizer_parts parts;
};

static void letter_of_byte(char out[3], int byte) {
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int c = plain ? byte : byte < 33 ? 256 + byte : byte < 161 ? 256 + byte - 94 : 256 + 67;
    if (c < 0x80) {
        out[0] = (char)c;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        out[2] = '\0';
    }
}

static void add_token(struct small *s, const char *name, int type) {
    s->token[s->parts.n_tokens] = ig_slice_of(name);
    s->type[s->parts.n_tokens++] = type;
    s->parts.n_types++;
}

static void add_merge(struct small *s, const char *pair) {
    s->merge[s->parts.n_merges++] = ig_slice_of(pair);
}

enum { END = 256, START, SPACES, AB, ABC, BC, HELLO };

static void small_fill(struct small *s) {
    *s = (struct small){0};
    s->parts = (ig_tokenizer_parts){.model = ig_slice_of("gpt2"), .pre = ig_slice_of("smollm")};
    s->parts.tokens = s->token;
    s->parts.types = s->type;
    s->parts.merges = s->merge;
    for (int i = 0; i < IG_ROLE_COUNT; i++) s->parts.role[i] = IG_TOKEN_NONE;
    for (int b = 0; b < 256; b++) {
        letter_of_byte(s->letter[b], b);
        add_token(s, s->letter[b], IG_TYPE_NORMAL);
    }
    add_token(s, "<|end|>", IG_TYPE_CONTROL);
    add_token(s, "<|start|>", IG_TYPE_CONTROL);
    add_token(s, "  ", IG_TYPE_USER);
    add_token(s, "ab", IG_TYPE_NORMAL);
    add_token(s, "abc", IG_TYPE_NORMAL);
    add_token(s, "bc", IG_TYPE_NORMAL);
    add_token(s, "<|hello", IG_TYPE_USER);
    add_merge(s, "b c");
    add_merge(s, "a b");
    add_merge(s, "ab c");
    add_merge(s, "a bc");
    s->parts.role[IG_ROLE_BOS] = START;
    s->parts.role[IG_ROLE_EOS] = END;
}

static ig_tokenizer *small_make(struct small *s) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_tokenizer_make(&t, &s->parts, &err) == IG_OK, "%s", err.msg);
    return t;
}

static bool gives(const ig_tokenizer *t, const char *text, ig_encode_options opt, const uint32_t *want,
                  size_t n) {
    ig_tokens got = {0};
    bool same = ig_tokenizer_encode(t, NULL, ig_slice_of(text), opt, &got, NULL) == IG_OK && got.n == n &&
                (n == 0 || memcmp(got.v, want, n * sizeof *want) == 0);
    for (size_t i = 0; !same && i < got.n; i++) fprintf(stderr, "%s%u", i ? " " : "got ", got.v[i]);
    if (!same) fprintf(stderr, " for \"%s\"\n", text);
    ig_tokens_free(&got);
    return same;
}
#define GIVES(t, text, opt, ...)                                                                          \
    CHECK(gives(t, text, opt, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4))

static const ig_encode_options plain_text = {0}, with_special = {.parse_special = true};

TEST(merges_go_by_rank_and_then_from_the_left) {
    struct small s;
    small_fill(&s);
    ig_tokenizer *t = small_make(&s);
    GIVES(t, "abc", plain_text, ABC); /* b c first, then a bc */
    GIVES(t, "abab", plain_text, AB, AB);
    GIVES(t, "ab abc", plain_text, AB, ' ', ABC);
    GIVES(t, "\xC3\xA9", plain_text, 0xC3, 0xA9);
    CHECK(gives(t, "", plain_text, NULL, 0));
    ig_tokenizer_free(t);
}

/* Every string of two to four letters of {a, b} is a token, every way to halve one is a merge, in random
 * order: pairs compete everywhere. */
struct dense {
    char text[32][5];
    ig_slice token[32];
    char pair[80][8];
    ig_slice merge[80];
    int n_tokens, n_merges;
};

static void dense_fill(struct dense *d, uint32_t seed) {
    *d = (struct dense){0};
    for (int len = 1; len <= 4; len++)
        for (int bits = 0; bits < 1 << len; bits++) {
            char *to = d->text[d->n_tokens];
            for (int i = 0; i < len; i++) to[i] = "ab"[bits >> i & 1];
            for (int cut = 1; cut < len; cut++) {
                char *pair = d->pair[d->n_merges++];
                memcpy(pair, to, (size_t)cut);
                pair[cut] = ' ';
                memcpy(pair + cut + 1, to + cut, (size_t)(len - cut));
            }
            d->token[d->n_tokens++] = ig_slice_of(to);
        }
    for (int i = d->n_merges - 1; i > 0; i--) {
        int j = (int)(ig_rng_word(seed, (uint32_t)i, 0, 0) % (uint32_t)(i + 1));
        char held[8];
        memcpy(held, d->pair[i], 8);
        memcpy(d->pair[i], d->pair[j], 8);
        memcpy(d->pair[j], held, 8);
    }
    for (int i = 0; i < d->n_merges; i++) d->merge[i] = ig_slice_of(d->pair[i]);
}

/* The definition: while some pair has a merge, join the one of lowest rank, of those the leftmost. Cuts
 * are the ends of the symbols; returns how many. */
static int merge_by_definition(const struct dense *d, const char *word, int n, int *cut) {
    int n_cuts = 0;
    for (int i = 0; i < n; i++) cut[n_cuts++] = i + 1;
    for (;;) {
        int best = -1, best_rank = d->n_merges;
        for (int i = 0; i + 1 < n_cuts; i++) {
            int from = i ? cut[i - 1] : 0;
            for (int rank = 0; rank < best_rank; rank++) {
                const char *pair = d->pair[rank], *space = strchr(pair, ' ');
                int left = (int)(space - pair), right = (int)strlen(space + 1);
                if (left != cut[i] - from || right != cut[i + 1] - cut[i]) continue;
                if (memcmp(word + from, pair, (size_t)left) ||
                    memcmp(word + cut[i], space + 1, (size_t)right))
                    continue;
                best = i;
                best_rank = rank;
            }
        }
        if (best < 0) return n_cuts;
        for (int i = best; i + 1 < n_cuts; i++) cut[i] = cut[i + 1];
        n_cuts--;
    }
}

TEST(words_of_any_length_are_merged_by_the_definition) {
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct dense d;
        ig_tokenizer *t = NULL;
        dense_fill(&d, seed);
        ig_tokenizer_parts parts = {.model = ig_slice_of("gpt2"),
                                    .pre = ig_slice_of("gpt-2"),
                                    .tokens = d.token,
                                    .n_tokens = (uint64_t)d.n_tokens,
                                    .merges = d.merge,
                                    .n_merges = (uint64_t)d.n_merges};
        for (int i = 0; i < IG_ROLE_COUNT; i++) parts.role[i] = IG_TOKEN_NONE;
        if (!CHECK(ig_tokenizer_make(&t, &parts, NULL) == IG_OK)) return;
        ig_tokenizer_scratch *s = ig_tokenizer_scratch_make();
        for (int n = 1; n < 150; n += 1 + n / 8) { /* both sides of the length where a heap takes over */
            char word[150];
            int cut[150];
            for (int i = 0; i < n; i++) word[i] = "ab"[ig_rng_word(seed, (uint32_t)i, (uint32_t)n, 1) & 1];
            int n_cuts = merge_by_definition(&d, word, n, cut);
            ig_tokens ids = {0};
            CHECK(ig_tokenizer_encode(t, s, (ig_slice){word, (size_t)n}, plain_text, &ids, NULL) == IG_OK);
            bool same = ids.n == (size_t)n_cuts;
            for (int i = 0; same && i < n_cuts; i++) {
                int from = i ? cut[i - 1] : 0;
                same = ig_slice_eq(ig_tokenizer_bytes(t, ids.v[i]),
                                   (ig_slice){word + from, (size_t)(cut[i] - from)});
            }
            CHECK_MSG(same, "seed %u, %.*s", seed, n, word);
            ig_tokens_free(&ids);
        }
        ig_tokenizer_scratch_free(s);
        ig_tokenizer_free(t);
    }
}

TEST(control_tokens_match_only_when_asked_and_user_defined_ones_always) {
    struct small s;
    small_fill(&s);
    ig_tokenizer *t = small_make(&s);
    GIVES(t, "a<|end|>", with_special, 'a', END);
    GIVES(t, "<|e", plain_text, '<', '|', 'e');
    GIVES(t, "<|end|>", plain_text, '<', '|', 'e', 'n', 'd', '|', '>');
    GIVES(t, "a  b", plain_text, 'a', SPACES, 'b');
    GIVES(t, "<|hello<|end|>", plain_text, HELLO, '<', '|', 'e', 'n', 'd', '|', '>');
    GIVES(t, "<|hello<|end|>", with_special, HELLO, END);
    ig_tokenizer_free(t);
}

TEST(merges_and_bytes_never_give_a_control_token) {
    struct small s;
    small_fill(&s);
    s.type[AB] = IG_TYPE_CONTROL;
    ig_tokenizer *t = small_make(&s);
    GIVES(t, "ab", plain_text, 'a', 'b');
    GIVES(t, "abc", plain_text, ABC); /* by way of bc */
    GIVES(t, "ab", with_special, AB);
    ig_tokenizer_free(t);
    small_fill(&s);
    s.type[ABC] = IG_TYPE_UNKNOWN;
    t = small_make(&s);
    GIVES(t, "abc", plain_text, 'a', BC);
    ig_tokenizer_free(t);
}

TEST(a_control_token_that_touches_a_plain_range_is_text) {
    struct small s;
    small_fill(&s);
    ig_tokenizer *t = small_make(&s);
    const char *text = "<|end|><|end|><|end|>";
    for (size_t from = 7; from <= 14; from++)
        for (size_t to = from + 1; to <= 14; to++) {
            ig_text_range range = {from, to};
            ig_encode_options opt = {.parse_special = true, .plain = &range, .n_plain = 1};
            bool touched = from < 14 && to > 7;
            if (touched) GIVES(t, text, opt, END, '<', '|', 'e', 'n', 'd', '|', '>', END);
        }
    ig_text_range all[] = {{0, 7}, {7, 14}, {14, 21}}, none = {0, 0};
    ig_encode_options opt = {.parse_special = true, .plain = all, .n_plain = 3};
    GIVES(t, "<|end|><|end|>", opt, '<', '|', 'e', 'n', 'd', '|', '>', '<', '|', 'e', 'n', 'd', '|', '>');
    opt.plain = &none;
    opt.n_plain = 1;
    GIVES(t, "<|end|>", opt, END);
    ig_tokenizer_free(t);
}

TEST(bos_comes_once) {
    struct small s;
    small_fill(&s);
    s.parts.add_bos = true;
    ig_tokenizer *t = small_make(&s);
    ig_encode_options opt = {.add_bos = true, .parse_special = true};
    GIVES(t, "a", opt, START, 'a');
    GIVES(t, "<|start|>a", opt, START, 'a');
    GIVES(t, "<|start|><|start|>a", opt, START, START, 'a'); /* what the text has beyond the first stays */
    GIVES(t, "", opt, START);
    opt.parse_special = false;
    GIVES(t, "a", opt, START, 'a');
    opt.add_bos = false;
    GIVES(t, "a", opt, 'a');
    ig_tokenizer_free(t);
}

TEST(an_eos_comes_behind_a_text_where_the_file_says_so) {
    struct small s;
    small_fill(&s);
    s.parts.add_eos = true;
    ig_tokenizer *t = small_make(&s);
    ig_encode_options opt = {.add_bos = true, .parse_special = true};
    GIVES(t, "a", opt, 'a', END);
    GIVES(t, "", opt, END);
    GIVES(t, "a", with_special, 'a');
    ig_tokenizer_free(t);
}

TEST(bytes_without_a_token_are_dropped_and_what_is_left_can_merge) {
    struct small s;
    small_fill(&s);
    s.token['x'] = ig_slice_of("(x)"); /* the byte 'x' has no token now */
    ig_tokenizer *t = small_make(&s);
    GIVES(t, "axb", plain_text, AB);
    CHECK(gives(t, "xx", plain_text, NULL, 0));
    ig_tokenizer_free(t);
}

TEST(a_full_output_refuses_and_keeps_what_it_had) {
    struct small s;
    small_fill(&s);
    ig_tokenizer *t = small_make(&s);
    ig_err err;
    for (size_t n_max = 1; n_max < 8; n_max++) {
        ig_tokens out = {.n_max = n_max};
        CHECK(ig_tokens_add(&out, 42));
        CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of("a b c d<|end|>e"), with_special, &out, &err) ==
              IG_ELIMIT);
        CHECK(out.n == 1 && out.v[0] == 42);
        ig_tokens_free(&out);
    }
    ig_tokenizer_free(t);
}

TEST(text_that_is_not_utf8_is_refused_with_its_place) {
    struct small s;
    small_fill(&s);
    ig_tokenizer *t = small_make(&s);
    ig_tokens out = {0};
    ig_err err;
    CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of("ab\xC3"), plain_text, &out, &err) == IG_EINVAL);
    CHECK(strstr(err.msg, "byte 2") != NULL && out.n == 0);
    ig_tokens_free(&out);
    ig_tokenizer_free(t);
}

/* Makes one change to a good vocabulary; it must be refused with a word that names it. */
static void refused(struct small *s, const char *word) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    ig_status st = ig_tokenizer_make(&t, &s->parts, &err);
    CHECK_MSG(st == IG_EFORMAT && t == NULL && strstr(err.msg, word), "wanted \"%s\", got %d \"%s\"", word,
              st, err.msg);
    ig_tokenizer_free(t);
}

TEST(hostile_vocabularies_are_refused_by_name) {
    struct small s;
    char *large = calloc(1, 1 << 20);
    memset(large, 'y', (1 << 20) - 1);

    small_fill(&s), s.parts.model = ig_slice_of("bert"), refused(&s, "\"bert\"");
    small_fill(&s), s.parts.pre = ig_slice_of("gemma4"), refused(&s, "\"gemma4\"");
    small_fill(&s), s.parts.pre = ig_slice_of("falcon"), refused(&s, "\"falcon\"");
    small_fill(&s), s.parts.role[IG_ROLE_EOS] = IG_TOKEN_NONE, s.parts.add_eos = true, refused(&s, "EOS");
    small_fill(&s), s.parts.pre = ig_slice_of(""), refused(&s, "tokenizer.ggml.pre");
    small_fill(&s), s.parts.n_tokens = 0, refused(&s, "must be 1 to");
    small_fill(&s), s.parts.n_tokens = UINT64_MAX, refused(&s, "18446744073709551615");
    small_fill(&s), s.parts.n_types = 3, refused(&s, "token_type: 3 for");
    small_fill(&s), s.parts.n_merges = UINT64_MAX, refused(&s, "merges: 18446744073709551615");
    small_fill(&s), s.token[300 - 1 - 40] = (ig_slice){"", 0}, refused(&s, "is empty");
    small_fill(&s), s.token[5] = ig_slice_of(large), refused(&s, "tokens[5]: 1048575 bytes");
    small_fill(&s), s.token[5] = ig_slice_of("\xFF"), refused(&s, "tokens[5] is not valid UTF-8");
    small_fill(&s), s.token['a'] = ig_slice_of("ab"), refused(&s, "are both \"ab\"");
    small_fill(&s), s.type[9] = 0, refused(&s, "token_type[9] is 0");
    small_fill(&s), s.type[9] = 7, refused(&s, "token_type[9] is 7");
    small_fill(&s), s.type[9] = INT32_MIN, refused(&s, "token_type[9]");
    small_fill(&s), s.merge[1] = ig_slice_of("ab"), refused(&s, "merges[1] is not");
    small_fill(&s), s.merge[1] = ig_slice_of(""), refused(&s, "merges[1] is not");
    small_fill(&s), s.merge[1] = ig_slice_of(" "), refused(&s, "merges[1] is not");
    small_fill(&s), s.merge[1] = ig_slice_of(large), refused(&s, "merges[1] is not");
    small_fill(&s), s.merge[1] = ig_slice_of("nope b"), refused(&s, "left is not a token");
    small_fill(&s), s.merge[1] = ig_slice_of("a nope"), refused(&s, "right is not a token");
    small_fill(&s), s.merge[1] = ig_slice_of("b a"), refused(&s, "joined text is not a token");
    small_fill(&s), s.merge[1] = ig_slice_of("a "), refused(&s, "right is not a token");
    small_fill(&s), s.parts.role[IG_ROLE_EOS] = s.parts.n_tokens, refused(&s, "eos_token_id is 263");
    small_fill(&s), s.parts.role[IG_ROLE_PAD] = UINT64_MAX, refused(&s, "padding_token_id");
    large[300] = '\0';
    small_fill(&s), s.token[END] = ig_slice_of(large), refused(&s, "special, 300 bytes");
    free(large);
}

TEST(the_end_of_generation_is_what_the_file_names_and_known_markers) {
    struct small s;
    small_fill(&s);
    s.parts.role[IG_ROLE_EOS] = 'q';
    s.parts.role[IG_ROLE_EOT] = 'q';
    ig_tokenizer *t = small_make(&s);
    int n = 0;
    const uint32_t *eos = ig_tokenizer_eos(t, &n);
    CHECK(n == 2 && eos[0] == 'q' && eos[1] == END); /* <|end|> is one of the known */
    CHECK(ig_tokenizer_bos(t) == START && !ig_tokenizer_adds_bos(t));
    CHECK(ig_tokenizer_find_special(t, ig_slice_of("<|end|>")) == END);
    CHECK(ig_tokenizer_find_special(t, ig_slice_of("<|end|>x")) == IG_TOKEN_NONE);
    CHECK(ig_tokenizer_find_special(t, ig_slice_of("<|end|")) == IG_TOKEN_NONE);
    CHECK(ig_tokenizer_find_special(t, ig_slice_of("")) == IG_TOKEN_NONE);
    CHECK(ig_tokenizer_is_special(t, END) && !ig_tokenizer_is_special(t, SPACES) &&
          !ig_tokenizer_is_special(t, 'a'));
    CHECK(!ig_tokenizer_is_special(t, UINT32_MAX) && ig_tokenizer_bytes(t, UINT32_MAX).n == 0);
    ig_tokenizer_free(t);
}

TEST(what_a_sampler_must_leave_is_a_line_end_as_a_text_and_the_end_tokens) {
    struct small s;
    uint32_t ids[4] = {9, 9, 9, 9};
    small_fill(&s);
    s.parts.add_bos = true;
    ig_tokenizer *t = small_make(&s);
    CHECK(ig_tokenizer_breaks(t, ids, 4) == 3 && ids[0] == START && ids[1] == '\n' && ids[2] == END);
    CHECK(ids[3] == 9);
    CHECK(ig_tokenizer_breaks(t, ids, 2) == 2 && ig_tokenizer_breaks(t, ids, 0) == 0);
    ig_tokenizer_free(t);
}

TEST(one_scratch_serves_tokenizers_in_turn) {
    struct small s, other;
    small_fill(&s);
    small_fill(&other);
    other.parts.n_merges = 0;
    ig_tokenizer *a = small_make(&s), *b = small_make(&other);
    ig_tokenizer_scratch *scratch = ig_tokenizer_scratch_make();
    for (int i = 0; i < 3; i++) {
        ig_tokens of_a = {0}, of_b = {0};
        CHECK(ig_tokenizer_encode(a, scratch, ig_slice_of("abc"), plain_text, &of_a, NULL) == IG_OK &&
              of_a.n == 1);
        CHECK(ig_tokenizer_encode(b, scratch, ig_slice_of("abc"), plain_text, &of_b, NULL) == IG_OK &&
              of_b.n == 3);
        ig_tokens_free(&of_a);
        ig_tokens_free(&of_b);
    }
    ig_tokenizer_scratch_free(scratch);
    ig_tokenizer_free(a);
    ig_tokenizer_free(b);
}

TEST(a_word_of_a_megabyte_is_merged_in_one_go) {
    struct small s;
    small_fill(&s);
    ig_tokenizer *t = small_make(&s);
    size_t n = 1 << 20;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = "ab"[i & 1];
    ig_tokens out = {0};
    CHECK(ig_tokenizer_encode(t, NULL, (ig_slice){text, n}, plain_text, &out, NULL) == IG_OK &&
          out.n == n / 2);
    const char runs[] = {' ', '\n', '1', '!', 'a', 0};
    for (size_t i = 0; i < sizeof runs; i++) {
        out.n = 0;
        memset(text, runs[i], n);
        CHECK(ig_tokenizer_encode(t, NULL, (ig_slice){text, n}, plain_text, &out, NULL) == IG_OK);
        CHECK(out.n == (runs[i] == ' ' ? n / 2 : n)); /* two blanks are a user-defined token */
    }
    free(text);
    ig_tokens_free(&out);
    ig_tokenizer_free(t);
}

/* ---- by scores ------------------------------------------------------------------------------------- */

#define MARK "\xE2\x96\x81"
enum { S_UNK, S_BOS, S_EOS, S_MARK, S_A, S_B, S_AB, S_MARK_A, S_BLANKS, S_C3, S_A9, S_BBA, S_C };

static void scored_fill(struct small *s, float score[13]) {
    static const struct { const char *name; int type; float score; } v[] = {
        {"<unk>", IG_TYPE_UNKNOWN, 0}, {"<s>", IG_TYPE_CONTROL, 0}, {"</s>", IG_TYPE_CONTROL, 0},
        {MARK, IG_TYPE_NORMAL, -9}, {"a", IG_TYPE_NORMAL, -10}, {"b", IG_TYPE_NORMAL, -11},
        {"ab", IG_TYPE_NORMAL, -1}, {MARK "a", IG_TYPE_NORMAL, -2}, {"  ", IG_TYPE_USER, -99},
        {"<0xC3>", IG_TYPE_BYTE, 0}, {"<0xA9>", IG_TYPE_BYTE, 0}, {"bXa", IG_TYPE_NORMAL, -3},
        {"bX", IG_TYPE_NORMAL, -4},
    };
    *s = (struct small){0};
    s->parts = (ig_tokenizer_parts){.model = ig_slice_of("llama"), .tokens = s->token, .types = s->type};
    for (int i = 0; i < 13; i++) {
        add_token(s, v[i].name, v[i].type);
        score[i] = v[i].score;
    }
    s->parts.scores = score;
    s->parts.n_scores = 13;
    for (int i = 0; i < IG_ROLE_COUNT; i++) s->parts.role[i] = IG_TOKEN_NONE;
    s->parts.role[IG_ROLE_UNK] = S_UNK;
    s->parts.role[IG_ROLE_BOS] = S_BOS;
    s->parts.role[IG_ROLE_EOS] = S_EOS;
    s->parts.add_bos = true;
}

TEST(pairs_whose_text_is_a_token_join_by_score) {
    struct small s;
    float score[13];
    scored_fill(&s, score);
    ig_tokenizer *t = small_make(&s);
    ig_encode_options bos = {.add_bos = true, .parse_special = true};
    GIVES(t, "ab a", plain_text, S_AB, S_MARK_A);
    GIVES(t, "a  ab", plain_text, S_A, S_BLANKS, S_AB);    /* user-defined first, whatever its score */
    GIVES(t, "a   a", plain_text, S_A, S_BLANKS, S_MARK_A);
    GIVES(t, MARK MARK, plain_text, S_BLANKS);
    GIVES(t, "\xC3\xA9", plain_text, S_C3, S_A9);
    GIVES(t, "bXa", plain_text, S_BBA);                     /* X is no token but part of one */
    GIVES(t, "Xa", plain_text, S_UNK, S_A);
    GIVES(t, "<s>", plain_text, S_UNK, S_UNK, S_UNK);       /* never merged to */
    GIVES(t, "<s>ab", bos, S_BOS, S_AB);
    GIVES(t, "ab", bos, S_BOS, S_AB);
    ig_tokenizer_free(t);
    s.parts.add_space_prefix = true;
    t = small_make(&s);
    GIVES(t, "a</s>a", with_special, S_MARK_A, S_EOS, S_MARK_A);
    CHECK(gives(t, "", plain_text, NULL, 0));
    ig_tokenizer_free(t);
}

/* ---- characters by merges --------------------------------------------------------------------------- */

TEST(gemma4_merges_characters_line_by_line_and_runs_of_line_ends_are_tokens) {
    enum { G_UNK, G_BOS, G_MARK, G_A, G_MARK_A, G_END, G_END2, G_END4, G_C3, G_A9, G_A_END };
    static const struct { const char *name; int type; } v[] = {
        {"<unk>", IG_TYPE_CONTROL}, {"<bos>", IG_TYPE_CONTROL},   {MARK, IG_TYPE_NORMAL},
        {"a", IG_TYPE_NORMAL},      {MARK "a", IG_TYPE_NORMAL},   {"\n", IG_TYPE_NORMAL},
        {"\n\n", IG_TYPE_NORMAL},   {"\n\n\n\n", IG_TYPE_NORMAL}, {"<0xC3>", IG_TYPE_BYTE},
        {"<0xA9>", IG_TYPE_BYTE},   {"a\n", IG_TYPE_NORMAL},
    };
    struct small s = {0};
    s.parts = (ig_tokenizer_parts){.model = ig_slice_of("gemma4"), .tokens = s.token, .types = s.type,
                                   .merges = s.merge, .add_bos = true};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) add_token(&s, v[i].name, v[i].type);
    add_merge(&s, MARK " a");
    add_merge(&s, "\n \n");
    add_merge(&s, "a \n");
    for (int i = 0; i < IG_ROLE_COUNT; i++) s.parts.role[i] = IG_TOKEN_NONE;
    s.parts.role[IG_ROLE_UNK] = G_UNK;
    s.parts.role[IG_ROLE_BOS] = G_BOS;
    ig_tokenizer *t = small_make(&s);
    ig_encode_options bos = {.add_bos = true, .parse_special = true};
    GIVES(t, "a a", plain_text, G_A, G_MARK_A);         /* no blank before a text */
    GIVES(t, "a\na", plain_text, G_A, G_END, G_A);      /* a merge over the end of a line never happens */
    GIVES(t, "\n\n\n\n", plain_text, G_END4);          /* though no merges lead there */
    GIVES(t, "\n\n\n", plain_text, G_END2, G_END);
    GIVES(t, "\xC3\xA9", plain_text, G_C3, G_A9);
    GIVES(t, "<bos>a", bos, G_BOS, G_A);
    GIVES(t, "a", bos, G_BOS, G_A);
    CHECK(ig_slice_eq_str(ig_tokenizer_bytes(t, G_MARK_A), " a"));
    ig_tokenizer_free(t);
}

TEST(a_byte_whose_token_is_a_control_token_has_none) {
    struct small s;
    float score[13];
    scored_fill(&s, score);
    ig_tokenizer *t = small_make(&s);
    GIVES(t, "\xC3\xA9", plain_text, S_C3, S_A9);
    ig_tokenizer_free(t);
    s.type[S_C3] = IG_TYPE_CONTROL;
    t = small_make(&s);
    GIVES(t, "\xC3\xA9", plain_text, S_UNK);
    ig_tokenizer_free(t);
}

TEST(a_byte_that_is_none_is_refused) {
    static const char *const names[] = {"<0x-1>", "<0xZZ>", "<0x1>", "<0x100>", "<0xC3", "C3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct small s;
        float score[13];
        scored_fill(&s, score);
        s.token[S_C3] = ig_slice_of(names[i]);
        refused(&s, "tokens[9]");
    }
}

TEST(scores_that_are_not_numbers_or_not_there_are_refused) {
    struct small s;
    float score[13];
    scored_fill(&s, score), score[4] = (float)NAN, refused(&s, "scores[4] is not a number");
    scored_fill(&s, score), s.parts.n_scores = 12, refused(&s, "scores: 12 for 13");
    scored_fill(&s, score), s.parts.scores = NULL, refused(&s, "scores is missing");
}

/* Scores that give the order of dense's merges must give the same words as these merges. */
TEST(words_of_any_length_are_joined_by_the_definition) {
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct dense d;
        float score[32];
        int32_t type[32];
        dense_fill(&d, seed);
        for (int i = 0; i < d.n_tokens; i++) {
            type[i] = IG_TYPE_NORMAL;
            score[i] = -(float)(ig_rng_word(seed, (uint32_t)i, 7, 7) % 1000000);
        }
        ig_tokenizer_parts parts = {.model = ig_slice_of("llama"), .tokens = d.token, .types = type,
                                    .n_tokens = (uint64_t)d.n_tokens, .n_types = (uint64_t)d.n_tokens,
                                    .scores = score, .n_scores = (uint64_t)d.n_tokens};
        for (int i = 0; i < IG_ROLE_COUNT; i++) parts.role[i] = IG_TOKEN_NONE;
        ig_tokenizer *t = NULL;
        if (!CHECK(ig_tokenizer_make(&t, &parts, NULL) == IG_OK)) return;
        for (int n = 1; n < 150; n += 1 + n / 8) {
            char word[150];
            int end[150], n_ends = 0;
            for (int i = 0; i < n; i++) word[i] = "ab"[ig_rng_word(seed, (uint32_t)i, (uint32_t)n, 1) & 1];
            for (int i = 0; i < n; i++) end[n_ends++] = i + 1;
            for (;;) { /* the highest score, then the longest left side, then the leftmost */
                int best = -1, best_left = 0;
                float best_score = 0;
                for (int i = 0; i + 1 < n_ends; i++) {
                    int from = i ? end[i - 1] : 0, len = end[i + 1] - from, left = end[i] - from;
                    for (int k = 0; k < d.n_tokens; k++) {
                        if (d.token[k].n != (size_t)len || memcmp(d.token[k].p, word + from, (size_t)len))
                            continue;
                        if (best >= 0 &&
                            (score[k] < best_score || (score[k] == best_score && left <= best_left)))
                            continue;
                        best = i, best_left = left, best_score = score[k];
                    }
                }
                if (best < 0) break;
                for (int i = best; i + 1 < n_ends; i++) end[i] = end[i + 1];
                n_ends--;
            }
            ig_tokens ids = {0};
            CHECK(ig_tokenizer_encode(t, NULL, (ig_slice){word, (size_t)n}, plain_text, &ids, NULL) == IG_OK);
            bool same = ids.n == (size_t)n_ends;
            for (int i = 0; same && i < n_ends; i++) {
                int from = i ? end[i - 1] : 0;
                same = ig_slice_eq(ig_tokenizer_bytes(t, ids.v[i]),
                                   (ig_slice){word + from, (size_t)(end[i] - from)});
            }
            CHECK_MSG(same, "seed %u, %.*s", seed, n, word);
            ig_tokens_free(&ids);
        }
        ig_tokenizer_free(t);
    }
}

/* ---- the starter model ------------------------------------------------------------------------------ */

static const char *model_path(char out[4096]) {
    const char *path = getenv("INGLE_TEST_MODEL"), *cache = getenv("INGLE_CACHE"),
               *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME"), *name = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (path) snprintf(out, 4096, "%s", path);
    else if (cache) snprintf(out, 4096, "%s/%s", cache, name);
    else if (xdg) snprintf(out, 4096, "%s/ingle/%s", xdg, name);
    else snprintf(out, 4096, "%s/.cache/ingle/%s", home ? home : "", name);
    return out;
}

TEST(the_starter_models_tokenizer_outlives_its_file) {
    char path[4096];
    ig_gguf *g = NULL;
    ig_tokenizer *t = NULL;
    ig_err err;
    ig_status st = ig_gguf_open(&g, model_path(path), &err);
    if (st == IG_ENOTFOUND) SKIP("no model at %s", path);
    if (!CHECK_MSG(st == IG_OK, "%s", err.msg)) return;
    if (!CHECK_MSG((st = ig_tokenizer_from_gguf(&t, g, &err)) == IG_OK, "%s", err.msg)) return;
    ig_gguf_close(g);
    CHECK(ig_tokenizer_n_vocab(t) == 49152);
    GIVES(t, "Hello, world! It's 1984.", plain_text, 19556, 28, 905, 17, 657, 506, 216, 33, 41, 40, 36, 30);
    GIVES(t, "<|im_start|>user\nHi<|im_end|>", with_special, 1, 4093, 198, 26843, 2);
    int n = 0;
    const uint32_t *eos = ig_tokenizer_eos(t, &n);
    CHECK(n == 2 && eos[0] == 2 && eos[1] == 0);
    ig_tokenizer_free(t);
}
