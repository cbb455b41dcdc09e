/* Tier l1's draws against stock mlx-lm's: tests/golden/l1/sampler.txt, made by tools/golden/l1/sampler.py,
 * which says what the file holds. Rows, seeds and prompts are made here by the same integers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"
#include "engine/inside.h"

enum { V_MAX = 49152, DRAWS = 16, PROMPT = 30, SEEDS_MAX = 20, N_ROWS = DRAWS };
#define GOLDEN "tests/golden/l1/sampler.txt"
#define FNV 0xcbf29ce484222325u

/* ---- what the oracle was given ----------------------------------------------------------------------- */

static const char *const KINDS[] = {"spread", "flat", "masked", "peaked"};
enum { N_KINDS = 4 };

static uint32_t hash32(uint32_t seed, uint32_t i) {
    uint32_t x = i * 0x9e3779b1u + seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static void make_row(float *x, int kind, int step, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t h = hash32((uint32_t)step * 0x01000193u + (uint32_t)kind * 0x10001u, (uint32_t)i);
        int sum = (int)((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510;
        x[i] = (float)sum * 0x1p-5f;
        if (kind == 1) x[i] = (float)(h & 7) * 0.25f;
        if (kind == 2 && h % 3 == 0) x[i] = -INFINITY;
        if (kind == 3) x[i] *= 0.25f;
    }
    if (kind == 3) x[(step * 13 + 7) % n] = 12.0f;
}

static uint64_t seed_of(int i) {
    return i < 18 ? (uint64_t)i : i == 18 ? (1ull << 32) + 5 : UINT64_MAX;
}

/* fold() of sampler.py: 64 sums side by side, joined at the end. */
typedef struct fold {
    uint64_t lane[64], h;
    size_t n;
} fold;

static void fold_start(fold *f, uint64_t h) {
    f->h = h;
    f->n = 0;
    for (int i = 0; i < 64; i++) f->lane[i] = h;
}

static void fold_word(fold *f, uint64_t w) {
    uint64_t *lane = &f->lane[f->n++ % 64];
    *lane = (*lane ^ w) * 0x100000001b3u;
}

static uint64_t fold_end(fold *f) {
    while (f->n % 64) fold_word(f, 0xffff);
    for (int i = 0; i < 64; i++) f->h = (f->h ^ f->lane[i]) * 0x100000001b3u;
    return f->h;
}

/* ---- cases ------------------------------------------------------------------------------------------- */

typedef struct golden_case {
    char type[8], text[512];
    int n_vocab, kind, n_seeds, n_first;
    ig_sampling p;
    ig_token_bias bias[16];
    uint32_t special[16], first[2 * DRAWS], ids[SEEDS_MAX];
    uint64_t lp;
} golden_case;

static double number_of(const char *text) {
    return strtod(text, NULL);
}

static bool read_param(golden_case *c, char *name) {
    char *value = strchr(name, '=');
    if (!value) return false;
    *value++ = '\0';
    const struct {
        const char *name;
        double *real;
        int *whole;
    } params[] = {{"temp", &c->p.temperature, NULL},
                  {"top_p", &c->p.top_p, NULL},
                  {"min_p", &c->p.min_p, NULL},
                  {"xtc_probability", &c->p.xtc_probability, NULL},
                  {"xtc_threshold", &c->p.xtc_threshold, NULL},
                  {"repetition_penalty", &c->p.repetition_penalty, NULL},
                  {"presence_penalty", &c->p.presence_penalty, NULL},
                  {"frequency_penalty", &c->p.frequency_penalty, NULL},
                  {"top_k", NULL, &c->p.top_k},
                  {"min_tokens_to_keep", NULL, &c->p.min_tokens_to_keep},
                  {"repetition_context_size", NULL, &c->p.repetition_context_size},
                  {"presence_context_size", NULL, &c->p.presence_context_size},
                  {"frequency_context_size", NULL, &c->p.frequency_context_size}};
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        if (strcmp(name, params[i].name) != 0) continue;
        if (params[i].real) *params[i].real = number_of(value);
        else *params[i].whole = (int)number_of(value);
        return true;
    }
    bool is_bias = strcmp(name, "logit_bias") == 0;
    if (!is_bias && strcmp(name, "xtc_special_tokens") != 0) return false;
    for (char *at = value; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        uint32_t id = (uint32_t)strtoul(at, NULL, 10);
        if (!is_bias) c->special[c->p.n_xtc_special++] = id;
        else c->bias[c->p.n_logit_bias++] = (ig_token_bias){id, (float)number_of(strchr(at, ':') + 1)};
    }
    return true;
}

static int read_numbers(const char *line, int base, uint32_t *out, int n_max) {
    int n = 0;
    for (char *end; n < n_max; n++, line = end) {
        out[n] = (uint32_t)strtoul(line, &end, base);
        if (end == line) break;
    }
    return n;
}

static bool read_case(golden_case *c, FILE *f) {
    static char line[1 << 12];
    char kind[16];
    int at = 0;

    memset(c, 0, sizeof *c);
    c->p.repetition_context_size = c->p.presence_context_size = c->p.frequency_context_size = 20;
    c->p.logit_bias = c->bias, c->p.xtc_special = c->special;
    if (!fgets(line, sizeof line, f)) return false;
    snprintf(c->text, sizeof c->text, "%.500s", line);
    if (!CHECK(sscanf(line, "case %7s %d %15s %n", c->type, &c->n_vocab, kind, &at) == 3 && at > 0))
        return false;
    while (c->kind < N_KINDS && strcmp(KINDS[c->kind], kind) != 0) c->kind++;
    for (char *save, *word = strtok_r(line + at, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
        if (!CHECK_MSG(read_param(c, word), "%s", word)) return false;
    if (!CHECK(fgets(line, sizeof line, f) && strncmp(line, "first ", 6) == 0)) return false;
    c->n_first = read_numbers(line + 6, 10, c->first, 2 * DRAWS);
    if (!CHECK(fgets(line, sizeof line, f) && strncmp(line, "ids ", 4) == 0)) return false;
    c->n_seeds = read_numbers(line + 4, 16, c->ids, SEEDS_MAX);
    if (!CHECK(fgets(line, sizeof line, f) && strncmp(line, "lp ", 3) == 0)) return false;
    c->lp = strtoull(line + 3, NULL, 16);
    return CHECK(c->kind < N_KINDS && c->n_vocab <= V_MAX && c->n_seeds > 0 && c->n_first > 0);
}

static bool changes_logits(const ig_sampling *p) {
    return p->n_logit_bias > 0 || p->repetition_penalty != 0 || p->presence_penalty != 0 ||
           p->frequency_penalty != 0;
}

/* ---- the sampler ------------------------------------------------------------------------------------- */

static const ig_fmt *number_of_type(const char *type) {
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++)
        if (strcmp(f->name, type) == 0) return f;
    return NULL;
}

/* Rows of the kind and type that was asked for last. */
static const float *rows_of(const golden_case *c, int step) {
    static float rows[N_ROWS * V_MAX];
    static char what[64];
    char now[64];
    snprintf(now, sizeof now, "%s %d %d", c->type, c->n_vocab, c->kind);
    if (strcmp(what, now) != 0) {
        ig_sampler number = {0};
        ig_sampler_set_number(&number, number_of_type(c->type));
        for (int i = 0; i < N_ROWS; i++) {
            float *row = rows + (size_t)i * (size_t)c->n_vocab;
            make_row(row, c->kind, i, c->n_vocab);
            number.round(row, row, c->n_vocab);
        }
        snprintf(what, sizeof what, "%s", now);
    }
    return rows + (size_t)step * (size_t)c->n_vocab;
}

static ig_sampler *sampler(int n_vocab, const char *type) {
    static uint8_t memory[V_MAX * 32];
    static ig_sampler s;
    ig_arena a = {.base = memory, .cap_bytes = sizeof memory};
    s.argmax = ig_kern_reference(IG_KERN_ARGMAX, NULL)->fn.argmax;
    s.exp = ig_kern_reference(IG_KERN_EXP, NULL)->fn.exp;
    s.n_vocab = n_vocab;
    ig_sampler_set_number(&s, number_of_type(type));
    CHECK(s.round != NULL);
    ig_sampler_lay_out(&s, &a);
    return &s;
}

/* ig_sample_mlx, or one of the controls. */
typedef int sample_fn(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]);

static uint32_t hash_of_ids(const uint32_t *ids) {
    static fold f;
    fold_start(&f, FNV);
    for (int i = 0; i < DRAWS; i++) fold_word(&f, ids[i]);
    return (uint32_t)(fold_end(&f) >> 32);
}

/* One run of a seed; the ids are behind the prompt's. */
static void run(const golden_case *c, ig_sampler *s, uint64_t seed, sample_fn *sample, uint32_t *ids, fold *lp) {
    static float logits[V_MAX];
    uint32_t key[2];
    ig_sample_key(key, seed, 0);
    for (int i = 0; i < PROMPT; i++) ids[i] = hash32(777, (uint32_t)i) % (uint32_t)c->n_vocab;
    for (int i = 0; i < DRAWS; i++) {
        memcpy(logits, rows_of(c, i), (size_t)c->n_vocab * sizeof *logits);
        ig_sample_penalize(s, logits, &c->p, ids, PROMPT + i);
        ids[PROMPT + i] = (uint32_t)sample(s, logits, &c->p, key);
        for (int v = 0; lp && v < c->n_vocab; v++) {
            uint32_t bits;
            memcpy(&bits, &s->x[v], sizeof bits);
            if (strcmp(c->type, "f32") == 0) fold_word(lp, bits & 0xffff), fold_word(lp, bits >> 16);
            else fold_word(lp, strcmp(c->type, "bf16") == 0 ? bits >> 16 : ig_f32_to_f16(s->x[v]));
        }
    }
}

typedef struct counts {
    int n_cases, n_runs, n_wrong_ids, n_wrong_lp;
} counts;

static void check_case(const golden_case *c, ig_sampler *s, sample_fn *sample, bool say, counts *n) {
    uint32_t ids[PROMPT + DRAWS];
    uint64_t lp = FNV;

    n->n_cases++;
    for (int i = 0; i < c->n_seeds; i++) {
        static fold f;
        bool with_lp = changes_logits(&c->p) || i == 0;
        fold_start(&f, lp);
        run(c, s, seed_of(i), sample, ids, with_lp ? &f : NULL);
        if (with_lp) lp = fold_end(&f);
        bool good = hash_of_ids(ids + PROMPT) == c->ids[i];
        for (int k = 0; k < DRAWS && i * DRAWS + k < c->n_first; k++) {
            bool same = ids[PROMPT + k] == c->first[i * DRAWS + k];
            if (say) CHECK_MSG(same, "%s seed %d draw %d: %u, should be %u", c->text, i, k, ids[PROMPT + k],
                               c->first[i * DRAWS + k]);
            good = good && same;
        }
        if (say) CHECK_MSG(good, "%s seed %d", c->text, i);
        n->n_runs++;
        n->n_wrong_ids += !good;
    }
    if (say) CHECK_MSG(lp == c->lp, "%s: log-probabilities", c->text);
    n->n_wrong_lp += lp != c->lp;
}

/* The cases that `wants` takes, or all. */
static counts check_all(sample_fn *sample, bool say, bool (*wants)(const golden_case *c), ig_round_fn *round) {
    static golden_case c;
    counts n = {0};
    FILE *f = fopen(GOLDEN, "r");
    if (!CHECK_MSG(f != NULL, "%s", GOLDEN)) return n;
    while (read_case(&c, f)) {
        if (wants && !wants(&c)) continue;
        ig_sampler *s = sampler(c.n_vocab, c.type);
        if (round) s->round = round;
        check_case(&c, s, sample, say, &n);
    }
    fclose(f);
    return n;
}

static bool is_short(const golden_case *c) {
    return c->n_vocab <= 1000;
}

TEST(every_draw_and_every_log_probability_is_that_of_mlx_lm) {
    counts n = check_all(ig_sample_mlx, true, ig_test_emulator() ? is_short : NULL, NULL);
    CHECK_MSG(n.n_cases >= 650 && n.n_runs >= 10000, "%d cases, %d runs", n.n_cases, n.n_runs);
    CHECK_MSG(n.n_wrong_ids == 0 && n.n_wrong_lp == 0, "of %d runs %d, of %d cases %d", n.n_runs,
              n.n_wrong_ids, n.n_cases, n.n_wrong_lp);
    static const char *const nodes[] = {"node samp.greedy", "node samp.categorical", "node samp.top_p",
                                        "node samp.min_p",  "node samp.top_k",       "node samp.xtc",
                                        "node samp.penalties", "node samp.logit_bias"};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) ig_test_proven(nodes[i], "golden");
    ig_test_proven("kernel argmax.scalar", "golden"); /* of both: sampler() takes it */
}

TEST(scalar_kernels_draw_what_mlx_lm_draws) {
    static char said[1 << 16];
    const int code = ig_test_rerun("every_draw_and_every_log", "INGLE_CPU", "scalar", said, sizeof said);
    CHECK_MSG(code == 0, "%.400s", said);
    ig_test_proven("kernel exp_bf16.scalar", "golden");
    ig_test_proven("kernel exp_f16.scalar", "golden");
}

/* ---- controls: each of these is wrong, and must be told ---------------------------------------------- */

static bool is_greedy_flat(const golden_case *c) {
    return c->p.temperature == 0.0 && c->kind == 1 && c->n_vocab <= 1000;
}

static bool is_small_draw(const golden_case *c) {
    return c->p.temperature > 0.1 && c->n_vocab == 97 && c->kind == 0 && !(c->p.top_k == 1);
}

static bool has_xtc(const golden_case *c) {
    return is_small_draw(c) && c->p.xtc_probability > 0.0 && c->p.xtc_probability < 1.0;
}

static bool has_top_k(const golden_case *c) {
    return c->n_vocab == 97 && c->kind == 1 && c->p.top_k > 1;
}

static int last_of_equals(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]) {
    int best = ig_sample_mlx(s, logits, p, key);
    for (int i = 0; i < s->n_vocab; i++)
        if (s->x[i] >= s->x[best]) best = i;
    return best;
}

/* The two halves of a split the other way round. */
static int other_stream(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]) {
    uint32_t even[2], odd[2], unused[2] = {key[0], key[1]};
    ig_threefry(even, key, 0, 2);
    ig_threefry(odd, key, 1, 3);
    int token = ig_sample_mlx(s, logits, p, unused);
    key[0] = even[1], key[1] = odd[1];
    return token;
}

/* An xtc that takes no number of its own: the draw gets the one that is xtc's. */
static int xtc_without_number(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]) {
    uint32_t first[2] = {key[0], key[1]};
    ig_sampling plain = *p;
    plain.xtc_probability = 0.0;
    ig_sample_mlx(s, logits, p, key);
    return ig_sample_mlx(s, logits, &plain, first);
}

/* The largest of log-probability + gumbel noise, as mlx 0.32.0 drew. */
static int gumbel(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]) {
    uint32_t even[2], odd[2], old[2] = {key[0], key[1]}, out[2];
    int token = ig_sample_mlx(s, logits, p, key), half = s->n_vocab / 2, rest = s->n_vocab % 2;
    float best = -INFINITY;
    ig_threefry(even, old, 0, 2);
    ig_threefry(odd, old, 1, 3);
    const uint32_t own[2] = {even[1], odd[1]};
    for (int i = 0; i < s->n_vocab; i++) {
        int lane = i < half + rest ? i : i - half - rest;
        bool middle = rest && lane == half;
        ig_threefry(out, own, (uint32_t)lane, middle ? 0 : (uint32_t)(lane + half + rest));
        double u = (double)out[i >= half + rest] * 0x1p-32;
        float noisy = s->x[i] / (float)p->temperature - (float)log(-log(u));
        if (noisy > best) best = noisy, token = i;
    }
    return token;
}

/* The highest ids of equals at the border of top_k: the row is turned round, and the answer back. */
static int highest_ids(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]) {
    static float kept[V_MAX];
    float border = -INFINITY;
    ig_sampling plain = *p;
    for (int i = 0; i < s->n_vocab; i++) { /* the top_k-th largest */
        int n_above = 0, n_equal = 0;
        for (int k = 0; k < s->n_vocab; k++) {
            n_above += logits[k] > logits[i];
            n_equal += logits[k] == logits[i];
        }
        if (n_above < p->top_k && n_above + n_equal >= p->top_k) border = logits[i];
    }
    int n_left = p->top_k;
    for (int i = 0; i < s->n_vocab; i++) n_left -= logits[i] > border;
    for (int i = s->n_vocab - 1; i >= 0; i--)
        kept[i] = logits[i] > border || (logits[i] == border && n_left-- > 0) ? logits[i] : -INFINITY;
    plain.top_k = 0;
    return ig_sample_mlx(s, kept, &plain, key);
}

static void round_not(float *y, const float *x, int n) {
    memmove(y, x, (size_t)n * sizeof *y);
}

TEST(a_sampler_that_differs_from_mlx_lm_anywhere_is_told) {
    const struct {
        const char *what;
        sample_fn *sample;
        bool (*wants)(const golden_case *c);
    } ways[] = {{"the last of equals", last_of_equals, is_greedy_flat},
                {"the other half of a key", other_stream, is_small_draw},
                {"xtc without a number of its own", xtc_without_number, has_xtc},
                {"gumbel noise", gumbel, is_small_draw},
                {"the highest ids at the border of top_k", highest_ids, has_top_k}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        counts right = check_all(ig_sample_mlx, true, ways[i].wants, NULL);
        counts wrong = check_all(ways[i].sample, false, ways[i].wants, NULL);
        CHECK_MSG(right.n_cases > 0 && right.n_wrong_ids == 0, "%s: %d cases", ways[i].what, right.n_cases);
        CHECK_MSG(wrong.n_wrong_ids * 2 > wrong.n_runs, "%s: told in %d of %d runs", ways[i].what,
                  wrong.n_wrong_ids, wrong.n_runs);
    }
}

static bool rounds(const golden_case *c) {
    return is_small_draw(c) && strcmp(c->type, "f32") != 0;
}

TEST(log_probabilities_of_another_number_type_are_told) {
    counts n = check_all(ig_sample_mlx, false, rounds, round_not);
    CHECK_MSG(n.n_cases > 0 && n.n_wrong_lp == n.n_cases, "%d of %d", n.n_wrong_lp, n.n_cases);
}

/* ---- borders ----------------------------------------------------------------------------------------- */

TEST(log_probabilities_of_a_row_that_has_one_token_left) {
    ig_sampler *s = sampler(5, "bf16");
    float logits[5] = {-INFINITY, -INFINITY, 3.0f, -INFINITY, -INFINITY};
    ig_sampling p = {.temperature = 1.0, .top_p = 0.5, .min_p = 0.5, .min_tokens_to_keep = 3, .top_k = 2,
                     .xtc_probability = 1.0, .xtc_threshold = 0.1};
    uint32_t key[2];
    ig_logprob own, top[7];
    ig_sample_key(key, 1, 0);
    for (int i = 0; i < 100; i++) CHECK(ig_sample_mlx(s, logits, &p, key) == 2);
    ig_sample_logprobs(s, logits, 2, 7, &own, top);
    CHECK(own.id == 2 && own.logprob == 0.0f && top[0].id == 2 && top[1].id == 0 && top[4].id == 4);
    CHECK(top[1].logprob == -INFINITY && top[5].id == UINT32_MAX);
    logits[2] = -INFINITY;
    CHECK(ig_sample_mlx(s, logits, &p, key) == SAMPLE_NONE);
    logits[1] = NAN;
    CHECK(ig_sample_mlx(s, logits, &p, key) == SAMPLE_NOT_FINITE);
    logits[1] = INFINITY;
    CHECK(ig_sample_mlx(s, logits, &p, key) == SAMPLE_NOT_FINITE);
}

TEST(a_temperature_too_low_for_the_type_fails_and_does_not_crash) {
    ig_sampler *s = sampler(4, "f16");
    const float logits[4] = {1.0f, 2.0f, -3.0f, 0.5f};
    ig_sampling p = {.temperature = 1e-300};
    uint32_t key[2] = {0, 1};
    CHECK(ig_sample_mlx(s, logits, &p, key) == SAMPLE_TOO_COLD);
    p.temperature = 1e-3;
    CHECK(ig_sample_mlx(s, logits, &p, key) == 1);
}
