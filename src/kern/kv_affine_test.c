/* Groups of keys and values and attention over them against tests/golden/l2/kv_affine.txt, which
 * tools/golden/l2/ref.py has made: every bit, as hashes. */
#include "base/test.h"
#include "kern/kv_affine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/golden/l2/kv_affine.txt"

typedef struct vector_case {
    ig_kv_affine fmt;
    int head_dim, n_heads, n_kv_heads, n_q, n_keys, window, spread;
    char word[8][17];
} vector_case;

/* draw() of ref.py */
static void draw(float *y, uint32_t seed, int n, const vector_case *c) {
    for (int i = 0; i < n; i++) {
        uint32_t x = ((uint32_t)i + seed) * 2654435769u;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        x = x ^ x >> 16;
        float v = (float)(((int)(x >> 16) - 32768) * c->spread) / 32768.0f;
        const bool f16 = c->fmt.type == IG_KV_AFFINE_F16;
        y[i] = f16 ? ig_f16_to_f32(ig_f32_to_f16(v)) : ig_bf16_to_f32(ig_f32_to_bf16(v));
    }
}
static uint64_t fnv(uint64_t h, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    return h;
}
static const uint64_t FNV = 0xcbf29ce484222325u;

static bool is_word(const vector_case *c, int i, uint64_t h, const char *what) {
    char got[17];
    snprintf(got, sizeof got, "%016" PRIx64, h);
    return CHECK_MSG(strcmp(got, c->word[i]) == 0,
                     "%d bits, groups of %d, D %d, %d keys: %s are %s and not %s", c->fmt.bits,
                     c->fmt.group, c->head_dim, c->n_keys, what, got, c->word[i]);
}
static uint64_t hash_values(uint64_t h, const float *x, int n, ig_kv_affine_type type) {
    for (int i = 0; i < n; i++) {
        uint16_t b = type == IG_KV_AFFINE_F16 ? ig_f32_to_f16(x[i]) : ig_f32_to_bf16(x[i]);
        uint8_t two[2] = {(uint8_t)b, (uint8_t)(b >> 8)};
        h = fnv(h, two, 2);
    }
    return h;
}
static uint64_t hash_halves(const uint16_t *b, int n) {
    uint64_t h = FNV;
    for (int i = 0; i < n; i++) h = fnv(h, (uint8_t[]){(uint8_t)b[i], (uint8_t)(b[i] >> 8)}, 2);
    return h;
}

/* All heads' rows of keys or of values, one head after the other. */
static ig_kv_affine_rows rows_of(const vector_case *c, const float *x) {
    const int n = c->n_kv_heads * c->n_keys, n_groups = c->head_dim / c->fmt.group;
    ig_kv_affine_rows rows = {malloc((size_t)(n * c->head_dim)), calloc((size_t)(n * n_groups), 2),
                              calloc((size_t)(n * n_groups), 2)};
    for (int i = 0; i < n; i++) ig_kv_affine_quant(&c->fmt, rows, i, x + i * c->head_dim, c->head_dim);
    return rows;
}
static ig_kv_affine_rows head_of(const vector_case *c, ig_kv_affine_rows rows, int head) {
    const size_t n = (size_t)(head * c->n_keys), d = (size_t)c->head_dim, g = n * d / (size_t)c->fmt.group;
    return (ig_kv_affine_rows){rows.code + n * d * (size_t)c->fmt.bits / 8, rows.scale + g, rows.bias + g};
}
static void free_rows(ig_kv_affine_rows rows) {
    free(rows.code), free(rows.scale), free(rows.bias);
}

typedef struct inputs {
    float *q, *out, *scratch;
    ig_kv_affine_rows k, v;
    int *from, *to;
} inputs;

static inputs make_inputs(const vector_case *c, int index) {
    const int n_d = c->head_dim, n_q = c->n_heads * c->n_q * n_d, n_kv = c->n_kv_heads * c->n_keys * n_d;
    const uint32_t seed = 1000003u * 3u * (uint32_t)index;
    inputs x = {.q = malloc((size_t)n_q * 4), .out = malloc((size_t)n_q * 4),
                .scratch = malloc(ig_attention_affine_floats(c->n_keys, n_d) * 4),
                .from = malloc((size_t)c->n_q * sizeof(int)), .to = malloc((size_t)c->n_q * sizeof(int))};
    float *kv = malloc((size_t)n_kv * 4);
    draw(x.q, seed, n_q, c);
    draw(kv, seed + 1000003u, n_kv, c);
    for (int d = 0; d < 32; d++) kv[d] = 0.0f;
    x.k = rows_of(c, kv);
    draw(kv, seed + 2000006u, n_kv, c);
    for (int d = 0; d < 32; d++) kv[(c->n_keys - 1) * n_d + d] = 0.25f;
    x.v = rows_of(c, kv);
    free(kv);
    for (int i = 0; i < c->n_q; i++) {
        x.to[i] = c->n_keys - c->n_q + i + 1;
        x.from[i] = c->window && x.to[i] > c->window ? x.to[i] - c->window : 0;
    }
    return x;
}
static void free_inputs(inputs x) {
    free_rows(x.k), free_rows(x.v);
    free(x.q), free(x.out), free(x.scratch), free(x.from), free(x.to);
}

static uint64_t attend(const vector_case *c, const inputs *x, bool tiled) {
    const int n_d = c->head_dim;
    for (int h = 0; h < c->n_heads; h++) {
        const int head = h / (c->n_heads / c->n_kv_heads);
        const size_t at = (size_t)(h * c->n_q * n_d);
        const ig_attention_affine_args a = {
            .fmt = &c->fmt, .k = head_of(c, x->k, head), .v = head_of(c, x->v, head), .q = x->q + at,
            .out = x->out + at, .q_row = (size_t)n_d, .out_row = (size_t)n_d, .from = x->from, .to = x->to,
            .n_q = c->n_q, .n_keys = c->n_keys, .head_dim = n_d, .scratch = x->scratch,
            .scale = (float)(1.0 / sqrt((double)n_d))};
        (tiled ? ig_attention_affine_tiled : ig_attention_affine)(&a);
    }
    return hash_values(FNV, x->out, c->n_heads * c->n_q * n_d, c->fmt.type);
}

static void check_case(const vector_case *c, int index) {
    static const char *const what[2][3] = {{"codes of keys", "scales of keys", "biases of keys"},
                                           {"codes of values", "scales of values", "biases of values"}};
    inputs x = make_inputs(c, index);
    const int n = c->n_kv_heads * c->n_keys, n_groups = n * c->head_dim / c->fmt.group;
    for (int i = 0; i < 2; i++) {
        const ig_kv_affine_rows rows = i == 0 ? x.k : x.v;
        is_word(c, 3 * i, fnv(FNV, rows.code, (size_t)(n * c->head_dim * c->fmt.bits / 8)), what[i][0]);
        is_word(c, 3 * i + 1, hash_halves(rows.scale, n_groups), what[i][1]);
        is_word(c, 3 * i + 2, hash_halves(rows.bias, n_groups), what[i][2]);
    }
    is_word(c, 6, attend(c, &x, false), "outputs at once");
    if (c->word[7][0] != '-') is_word(c, 7, attend(c, &x, true), "outputs in tiles");
    free_inputs(x);
}

static bool read_case(FILE *f, vector_case *c) {
    char line[400], type[5];
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#' || strncmp(line, "exp ", 4) == 0) continue;
        memset(c, 0, sizeof *c);
        int n = sscanf(line, "%d %d %d %d %d %d %d %d %d %4s %16s %16s %16s %16s %16s %16s %16s %16s",
                       &c->fmt.bits, &c->fmt.group, &c->head_dim, &c->n_heads, &c->n_kv_heads, &c->n_q,
                       &c->n_keys, &c->window, &c->spread, type, c->word[0], c->word[1], c->word[2],
                       c->word[3], c->word[4], c->word[5], c->word[6], c->word[7]);
        c->fmt.type = strcmp(type, "f16") == 0 ? IG_KV_AFFINE_F16 : IG_KV_AFFINE_BF16;
        return CHECK_MSG(n == 18, "%s: %d of 18 words in \"%s\"", GOLDEN, n, line);
    }
    return false;
}

TEST(groups_of_keys_and_values_and_both_attentions_have_the_bits_of_the_golden) {
    FILE *f = fopen(GOLDEN, "r");
    if (!CHECK_MSG(f != NULL, "%s does not open", GOLDEN)) return;
    vector_case c;
    int n = 0;
    for (; read_case(f, &c); n++) check_case(&c, n);
    fclose(f);
    CHECK_MSG(n >= 14, "only %d cases", n);
}

/* Ways in which a hash must not stay what it is: the other form, and the keys in another order. */
TEST(attention_over_groups_sees_the_order_of_keys_and_the_form) {
    vector_case c = {.fmt = {4, 32, IG_KV_AFFINE_BF16}, .head_dim = 64, .n_heads = 1, .n_kv_heads = 1,
                     .n_q = 1, .n_keys = 600, .spread = 2};
    inputs x = make_inputs(&c, 0);
    const uint64_t once = attend(&c, &x, false), tiled = attend(&c, &x, true);
    CHECK(once != tiled);
    /* The cache turned by one row: the same set of keys, as a ring has it. */
    for (int half = 0; half < 2; half++) {
        const ig_kv_affine_rows kv = half == 0 ? x.k : x.v;
        uint8_t code[32];
        uint16_t scale[2], bias[2];
        memcpy(code, kv.code, 32), memcpy(scale, kv.scale, 4), memcpy(bias, kv.bias, 4);
        memmove(kv.code, kv.code + 32, 599 * 32), memcpy(kv.code + 599 * 32, code, 32);
        memmove(kv.scale, kv.scale + 2, 599 * 4), memcpy(kv.scale + 599 * 2, scale, 4);
        memmove(kv.bias, kv.bias + 2, 599 * 4), memcpy(kv.bias + 599 * 2, bias, 4);
    }
    CHECK(attend(&c, &x, false) != once);
    CHECK(attend(&c, &x, true) != tiled);
    free_inputs(x);
}

TEST(keys_that_a_query_does_not_see_do_not_count) {
    vector_case c = {.fmt = {8, 64, IG_KV_AFFINE_BF16}, .head_dim = 64, .n_heads = 1, .n_kv_heads = 1,
                     .n_q = 1, .n_keys = 1100, .spread = 2};
    inputs x = make_inputs(&c, 0);
    for (int i = 0; i < 2; i++) {
        c.n_keys = 1100, x.to[0] = 500; /* all of the second and third tile is hidden */
        const uint64_t hidden = attend(&c, &x, i == 1);
        c.n_keys = 500;
        CHECK(attend(&c, &x, i == 1) == hidden);
        x.to[0] = 400; /* what counts is told from what does not */
        CHECK(attend(&c, &x, i == 1) != hidden);
    }
    free_inputs(x);
}

TEST(the_exponential_of_tier_l1_has_the_bits_of_the_golden) {
    char line[400] = "", want[17] = "", got[17];
    uint64_t h = FNV;
    for (uint32_t i = 0; i < 65536; i++) {
        float x = ig_bf16_to_f32((uint16_t)i), y = ig_mlx_exp(x);
        uint32_t u;
        memcpy(&u, &y, sizeof u);
        const uint8_t four[4] = {(uint8_t)u, (uint8_t)(u >> 8), (uint8_t)(u >> 16), (uint8_t)(u >> 24)};
        if (x == x) h = fnv(h, four, 4);
        else CHECK(y != y);
    }
    FILE *f = fopen(GOLDEN, "r");
    if (!CHECK_MSG(f != NULL, "%s does not open", GOLDEN)) return;
    while (fgets(line, sizeof line, f) && sscanf(line, "exp %16s", want) != 1) {}
    fclose(f);
    snprintf(got, sizeof got, "%016" PRIx64, h);
    CHECK_MSG(strcmp(got, want) == 0, "%s and not %s", got, want);
}
