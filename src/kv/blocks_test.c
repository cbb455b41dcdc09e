/* The pool: rows are where they should be, counts are right, refusals change nothing. */
#include "base/test.h"
#include "kv/kv.h"

#include <string.h>

static const ig_kv_shape SHAPE = {1, {{2, 2, 8, 0}}};
static const int DIMS = 8;

/* One number a position, in every part of the block that the position owns. */
static void write_row(ig_kv_pool *p, const ig_kv_seq *s, int pos, uint16_t value) {
    int row = pos % IG_KV_BLOCK_TOKENS;
    for (int layer = 0; layer < SHAPE.group[0].n_layers; layer++)
        for (int head = 0; head < SHAPE.group[0].n_kv_heads; head++) {
            uint16_t *k = ig_kv_at(p, s->block[pos / IG_KV_BLOCK_TOKENS], (ig_kv_layer){0, layer}, head);
            uint16_t *v = k + DIMS * IG_KV_BLOCK_TOKENS;
            for (int d = 0; d < DIMS; d++) {
                k[d * IG_KV_BLOCK_TOKENS + row] = value;
                v[row * DIMS + d] = value;
            }
        }
}

static uint16_t read_row(const ig_kv_pool *p, const ig_kv_seq *s, int pos) {
    return ig_kv_at(p, s->block[pos / IG_KV_BLOCK_TOKENS], (ig_kv_layer){0, 1}, 1)[pos % IG_KV_BLOCK_TOKENS];
}

static void fill(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n) {
    CHECK(ig_kv_seq_reserve(p, s, n));
    for (int pos = s->n_tokens; pos < n; pos++) write_row(p, s, pos, (uint16_t)tokens[pos]);
    s->n_tokens = n;
}

static ig_kv_pool *pool_of(int n_blocks, int n_seqs, int seq_tokens_max) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_kv_pool_make(&p, SHAPE, n_blocks, n_seqs, seq_tokens_max, &err) == IG_OK, "%s", err.msg);
    return p;
}

static void check_pool(const ig_kv_pool *p) {
    ig_err err = {0};
    CHECK_MSG(ig_kv_pool_check(p, &err), "%s", err.msg);
}

TEST(positions_have_their_own_rows) {
    ig_kv_pool *p = pool_of(8, 2, 256);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);
    uint32_t x[200], y[130];

    CHECK(a && b && !ig_kv_seq_open(p));
    for (int i = 0; i < 200; i++) x[i] = 1000u + (uint32_t)i;
    for (int i = 0; i < 130; i++) y[i] = 5000u + (uint32_t)i;
    fill(p, a, x, 70);
    fill(p, b, y, 130);
    fill(p, a, x, 200);
    for (int i = 0; i < 200; i++) CHECK(read_row(p, a, i) == x[i]);
    for (int i = 0; i < 130; i++) CHECK(read_row(p, b, i) == y[i]);
    check_pool(p);
    ig_kv_seq_close(p, a);
    ig_kv_seq_close(p, b);
    CHECK(ig_kv_pool_stats(p).n_free == 8);
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(a_pool_without_room_says_no_and_changes_nothing) {
    ig_kv_pool *p = pool_of(3, 2, 256);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);

    CHECK(ig_kv_seq_reserve(p, a, 128));
    CHECK(!ig_kv_seq_reserve(p, b, 65));
    CHECK(b->n_blocks == 0 && b->n_tokens == 0 && ig_kv_pool_stats(p).n_free == 1);
    CHECK(ig_kv_seq_reserve(p, b, 64));
    CHECK(!ig_kv_seq_reserve(p, a, 129));
    ig_kv_seq_close(p, b);
    CHECK(ig_kv_seq_reserve(p, a, 129));
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(the_planned_table_bytes_are_what_is_used) {
    for (int n_blocks = 1; n_blocks < 2000; n_blocks = n_blocks * 3 + 1) {
        ig_kv_pool *p = pool_of(n_blocks, 5, 1000);
        CHECK(ig_kv_pool_table_bytes(n_blocks, 5, 1000) > (size_t)n_blocks * 256);
        check_pool(p);
        ig_kv_pool_free(p);
    }
}

TEST(a_pool_of_a_wrong_size_is_refused_with_the_number) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    CHECK(ig_kv_pool_make(&p, SHAPE, 0, 1, 64, &err) == IG_EINVAL && p == NULL);
    CHECK(ig_kv_pool_make(&p, SHAPE, 1 << 30, 1, 64, &err) == IG_EINVAL && strstr(err.msg, "1073741824"));
    CHECK(ig_kv_pool_make(&p, (ig_kv_shape){1, {{2, 0, 8, 0}}}, 4, 1, 64, &err) == IG_EINVAL && p == NULL);
    const ig_kv_shape big = {1, {{4096, 4096, 4096, 0}}};
    CHECK(ig_kv_pool_make(&p, big, 1 << 24, 1, 64, &err) == IG_ELIMIT && p == NULL);
}

TEST(what_is_not_finite_is_seen_and_scrubbed) {
    ig_kv_pool *p = pool_of(4, 1, 256);
    uint32_t x[100] = {0};
    ig_kv_seq *s = ig_kv_seq_open(p);

    fill(p, s, x, 100);
    CHECK(ig_kv_seq_finite(p, s));
    ig_kv_at(p, s->block[0], (ig_kv_layer){0, 1}, 0)[17] = 0x7e00;     /* NaN in the last layer, an early position */
    CHECK(!ig_kv_seq_finite(p, s));
    ig_kv_seq_scrub(p, s);
    CHECK(ig_kv_seq_finite(p, s));
    ig_kv_at(p, s->block[1], (ig_kv_layer){0, 0}, 1)[99 - 64] = 0xfc00; /* -inf in the first layer, the last row */
    CHECK(!ig_kv_seq_finite(p, s));
    ig_kv_seq_scrub(p, s);
    ig_kv_seq_close(p, s);
    for (int b = 0; b < 4; b++)
        for (size_t i = 0; i < ig_kv_block_bytes(SHAPE) / 2; i++) CHECK(ig_kv_at(p, b, (ig_kv_layer){0, 0}, 0)[i] == 0);
    ig_kv_pool_free(p);
}
