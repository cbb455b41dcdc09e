/* The pool: rows are where they should be, counts are right, refusals change nothing. */
#include "base/test.h"
#include "kv/kv.h"

#include <string.h>

static const ig_kv_shape SHAPE = {1, {{2, 2, 8, 0, IG_KV_F16}}};
static const int DIMS = 8;

static uint16_t *halves_at(const ig_kv_pool *p, int block, ig_kv_layer layer, int head) {
    return ig_kv_at(p, block, layer, head);
}

/* One number a position, in every part of the block that the position owns. */
static void write_row(ig_kv_pool *p, const ig_kv_seq *s, int pos, uint16_t value) {
    int row = pos % IG_KV_BLOCK_TOKENS;
    for (int layer = 0; layer < SHAPE.group[0].n_layers; layer++)
        for (int head = 0; head < SHAPE.group[0].n_kv_heads; head++) {
            uint16_t *k = ig_kv_at(p, s->block[0][pos / IG_KV_BLOCK_TOKENS], (ig_kv_layer){0, layer}, head);
            uint16_t *v = k + DIMS * IG_KV_BLOCK_TOKENS;
            for (int d = 0; d < DIMS; d++) {
                k[d * IG_KV_BLOCK_TOKENS + row] = value;
                v[row * DIMS + d] = value;
            }
        }
}

static uint16_t read_row(const ig_kv_pool *p, const ig_kv_seq *s, int pos) {
    return halves_at(p, s->block[0][pos / IG_KV_BLOCK_TOKENS], (ig_kv_layer){0, 1}, 1)[pos % IG_KV_BLOCK_TOKENS];
}

static void fill(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n) {
    CHECK(ig_kv_seq_reserve(p, s, n));
    for (int pos = s->n_tokens; pos < n; pos++) write_row(p, s, pos, (uint16_t)tokens[pos]);
    s->n_tokens = n;
}

static ig_kv_pool *pool_of(int n_blocks, int n_seqs, int seq_tokens_max) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_kv_pool_make(&p, SHAPE, (ig_kv_room){{n_blocks}}, n_seqs, seq_tokens_max, &err) == IG_OK, "%s", err.msg);
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
    CHECK(ig_kv_pool_stats(p).group[0].n_free == 8);
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(a_pool_without_room_says_no_and_changes_nothing) {
    ig_kv_pool *p = pool_of(3, 2, 256);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);

    CHECK(ig_kv_seq_reserve(p, a, 128));
    CHECK(!ig_kv_seq_reserve(p, b, 65));
    CHECK(b->n_blocks == 0 && b->n_tokens == 0 && ig_kv_pool_stats(p).group[0].n_free == 1);
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
        CHECK(ig_kv_pool_table_bytes(SHAPE, (ig_kv_room){{n_blocks}}, 5, 1000) > (size_t)n_blocks * 256);
        check_pool(p);
        ig_kv_pool_free(p);
    }
}

TEST(a_pool_of_a_wrong_size_is_refused_with_the_number) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    CHECK(ig_kv_pool_make(&p, SHAPE, (ig_kv_room){{0}}, 1, 64, &err) == IG_EINVAL && p == NULL);
    CHECK(ig_kv_pool_make(&p, SHAPE, (ig_kv_room){{1 << 30}}, 1, 64, &err) == IG_EINVAL &&
          strstr(err.msg, "1073741824"));
    CHECK(ig_kv_pool_make(&p, (ig_kv_shape){1, {{2, 0, 8, 0, IG_KV_F16}}}, (ig_kv_room){{4}}, 1, 64, &err) == IG_EINVAL &&
          p == NULL);
    const ig_kv_shape big = {1, {{4096, 4096, 4096, 0, IG_KV_F16}}};
    CHECK(ig_kv_pool_make(&p, big, (ig_kv_room){{1 << 24}}, 1, 64, &err) == IG_ELIMIT && p == NULL);
}

TEST(a_window_of_one_lets_go_of_the_last_row_and_says_no_in_good_order) {
    const ig_kv_shape narrow = {2, {{1, 1, 8, 0, IG_KV_F16}, {1, 1, 8, 1, IG_KV_F16}}};
    ig_kv_pool *p = NULL;
    uint32_t x[65] = {0};
    CHECK(ig_kv_pool_make(&p, narrow, (ig_kv_room){{1, 2}}, 2, 128, NULL) == IG_OK);
    ig_kv_seq *s = ig_kv_seq_open(p);

    CHECK(ig_kv_seq_reserve(p, s, 64));
    s->n_tokens = 64;
    CHECK(!ig_kv_seq_reserve(p, s, 65)); /* nothing of the window is read by row 64 */
    CHECK(s->first[1] == 1 && ig_kv_seq_finite(p, s));
    ig_kv_prefix_insert(p, s, x, 64);
    ig_kv_seq_close(p, s);
    s = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, s, x, 65) == 64);
    CHECK(ig_kv_seq_finite(p, s)); /* asked when it is cancelled before its first step */
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(a_window_of_one_that_was_not_finite_is_not_forgotten_with_its_block) {
    const ig_kv_shape narrow = {2, {{1, 1, 8, 0, IG_KV_F16}, {2, 1, 8, 1, IG_KV_F16}}};
    ig_kv_pool *p = NULL;
    CHECK(ig_kv_pool_make(&p, narrow, (ig_kv_room){{2, 2}}, 1, 128, NULL) == IG_OK);
    ig_kv_seq *s = ig_kv_seq_open(p);

    CHECK(ig_kv_seq_reserve(p, s, 64));
    halves_at(p, s->block[1][0], (ig_kv_layer){1, 0}, 0)[63] = 0x7e00; /* the last row, not in the last layer */
    s->n_tokens = 64;
    CHECK(ig_kv_seq_reserve(p, s, 65) && s->first[1] == 1);
    CHECK(!ig_kv_seq_finite(p, s));
    ig_kv_seq_close(p, s);
    s = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, s, 128));
    for (int b = 0; b < 2; b++) /* scrubbed */
        CHECK(halves_at(p, s->block[1][b], (ig_kv_layer){1, 0}, 0)[63] == 0);
    ig_kv_pool_free(p);
}

TEST(what_is_not_finite_is_seen_and_scrubbed) {
    ig_kv_pool *p = pool_of(4, 1, 256);
    uint32_t x[100] = {0};
    ig_kv_seq *s = ig_kv_seq_open(p);

    fill(p, s, x, 100);
    halves_at(p, s->block[0][0], (ig_kv_layer){0, 1}, 0)[17] = 0x7e00; /* NaN in the last layer, an early position */
    CHECK(!ig_kv_seq_finite(p, s));
    ig_kv_seq_scrub(p, s);
    CHECK(ig_kv_seq_finite(p, s));
    halves_at(p, s->block[0][1], (ig_kv_layer){0, 0}, 1)[99 - 64] = 0xfc00; /* -inf in the first layer, the last row */
    CHECK(!ig_kv_seq_finite(p, s));
    ig_kv_seq_scrub(p, s);
    ig_kv_seq_close(p, s);
    for (int b = 0; b < 4; b++)
        for (size_t i = 0; i < ig_kv_block_bytes(SHAPE) / 2; i++)
            CHECK(halves_at(p, b, (ig_kv_layer){0, 0}, 0)[i] == 0);
    ig_kv_pool_free(p);
}

/* ---- windows ------------------------------------------------------------------------------------------ */

TEST(of_8_bits_the_scales_say_what_is_not_finite) {
    const ig_kv_shape shape = {1, {{2, 2, 32, 0, IG_KV_8}}};
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    CHECK(ig_kv_block_bytes(shape) == 2 * 2 * 2 * (32 * 64 + 2 * 64 * 2));
    CHECK_MSG(ig_kv_pool_make(&p, shape, (ig_kv_room){{4}}, 1, 256, &err) == IG_OK, "%s", err.msg);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, s, 100));
    s->n_tokens = 100;
    for (int head = 0; head < 2; head++)
        for (int layer = 0; layer < 2; layer++) /* any code is a number */
            memset(ig_kv_at(p, s->block[0][0], (ig_kv_layer){0, layer}, head), 0x7c, 32 * 64);
    CHECK(ig_kv_seq_finite(p, s));
    for (int values = 0; values < 2; values++)
        for (int last = 0; last < 2; last++) {
            /* the last layer at an early position; the first layer in the last row */
            uint8_t *part = ig_kv_at(p, s->block[0][last], (ig_kv_layer){0, !last}, 1);
            part += values ? ig_kv_part_bytes(IG_KV_8, 32) : 0;
            ig_kv_scales(part, 32)[64 + (last ? 99 - 64 : 17)] = values ? 0x7e00 : 0xfc00;
            s->n_checked = 0;
            CHECK(!ig_kv_seq_finite(p, s));
            ig_kv_seq_scrub(p, s);
            CHECK(ig_kv_seq_finite(p, s));
        }
    ig_kv_seq_close(p, s);
    ig_kv_pool_free(p);
    p = NULL;
    CHECK(ig_kv_pool_make(&p, (ig_kv_shape){1, {{2, 2, 24, 0, IG_KV_8}}}, (ig_kv_room){{4}}, 1, 256, &err) == IG_EINVAL);
    CHECK(strstr(err.msg, "24") && strstr(err.msg, "16"));
    CHECK(ig_kv_pool_make(&p, (ig_kv_shape){1, {{2, 2, 32, 0, IG_KV_F32}}}, (ig_kv_room){{4}}, 1, 256, &err) == IG_EINVAL);
}

static const ig_kv_shape TWO = {2, {{3, 1, 8, 100, IG_KV_F16}, {1, 2, 8, 0, IG_KV_F16}}}; /* the windowed group first */

static ig_kv_pool *pool_of_two(int n_windowed, int n_whole, int n_seqs) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    ig_status st = ig_kv_pool_make(&p, TWO, (ig_kv_room){{n_windowed, n_whole}}, n_seqs, 4096, &err);
    CHECK_MSG(st == IG_OK, "%s", err.msg);
    return p;
}

TEST(blocks_that_left_the_window_are_given_back_and_others_stay_where_they_are) {
    ig_kv_pool *p = pool_of_two(4, 64, 1);
    ig_kv_seq *s = ig_kv_seq_open(p);
    for (int n = 1; n <= 4096; n++) { /* row n - 1 reads from position n - 100 on */
        CHECK(ig_kv_seq_reserve(p, s, n));
        const int from = n > 100 ? (n - 100) / 64 : 0, last = (n - 1) / 64;
        CHECK_MSG(s->first[0] == from && s->first[1] == 0, "%d tokens: from %d", n, s->first[0]);
        for (int b = 0; b < s->n_blocks; b++) CHECK((s->block[0][b] >= 0) == (b >= from) && s->block[1][b] >= 0);
        struct ig_kv_group_stats w = ig_kv_pool_stats(p).group[0];
        CHECK_MSG(w.n_blocks - w.n_free == last - from + 1 && last - from + 1 <= 3, "%d tokens", n);
        s->n_tokens = n;
    }
    check_pool(p);
    ig_kv_seq_close(p, s);
    CHECK(ig_kv_pool_stats(p).group[0].n_free == 4 && ig_kv_pool_stats(p).group[1].n_free == 64);
    ig_kv_pool_free(p);
}

TEST(the_most_that_is_held_is_what_the_formula_says_and_is_reached) {
    for (int n_rows = 1; n_rows <= 200; n_rows += 1 + n_rows / 3)
        for (int window = 1; window < 300; window += 1 + window / 4) {
            ig_kv_group g = {1, 1, 8, window, IG_KV_F16};
            int most = 0;
            for (int n = 0; n + n_rows <= 1000; n++) {
                const int held = ig_kv_blocks_for(n + n_rows) - ig_kv_first_block(g, n);
                if (held > most) most = held;
            }
            CHECK_MSG(most == ig_kv_held_most(g, 1000, n_rows), "window %d, %d rows: %d", window, n_rows, most);
        }
    CHECK(ig_kv_held_most((ig_kv_group){1, 1, 8, 1 << 30, IG_KV_F16}, 1000, 512) == 16);
    CHECK(ig_kv_room_for(TWO, 3, 1000, 1).n_blocks[0] == 9 && ig_kv_room_for(TWO, 3, 1000, 1).n_blocks[1] == 48);
}

TEST(one_group_without_room_refuses_and_the_other_is_as_it_was) {
    ig_kv_pool *p = pool_of_two(4, 8, 2);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, a, 128));
    CHECK(!ig_kv_seq_reserve(p, b, 129) && b->n_blocks == 0);
    CHECK(ig_kv_pool_stats(p).group[0].n_free == 2 && ig_kv_pool_stats(p).group[1].n_free == 6);
    a->n_tokens = 128;
    CHECK(ig_kv_seq_reserve(p, a, 192)); /* row 128 reads from 29 on: nothing is given back */
    a->n_tokens = 192;
    CHECK(ig_kv_seq_reserve(p, a, 193) && a->first[0] == 1);
    CHECK(!ig_kv_seq_reserve(p, b, 129) && ig_kv_seq_reserve(p, b, 64));
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(a_model_whose_layers_are_all_windowed_keeps_all_of_its_first_group) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    const ig_kv_shape s = {1, {{2, 1, 8, 100, IG_KV_F16}}};
    CHECK(ig_kv_pool_make(&p, s, ig_kv_room_for(s, 1, 1000, 1), 1, 1000, &err) == IG_OK);
    ig_kv_seq *q = ig_kv_seq_open(p);
    for (int n = 0; n < 1000; n++) {
        CHECK(ig_kv_seq_reserve(p, q, n + 1) && q->first[0] == 0);
        q->n_tokens = n + 1;
    }
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(what_is_not_finite_is_seen_and_scrubbed_before_it_leaves_the_window) {
    ig_kv_pool *p = pool_of_two(4, 16, 1);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, s, 64));
    const int bad = s->block[0][0];
    halves_at(p, bad, (ig_kv_layer){0, 2}, 0)[17] = 0x7e00;
    for (int n = 64; n < 600; n += 50) {
        s->n_tokens = n;
        CHECK(ig_kv_seq_reserve(p, s, n + 50));
    }
    CHECK(s->first[0] > 1 && !ig_kv_seq_finite(p, s)); /* nobody can look at it any more: it is remembered */
    ig_kv_seq_close(p, s);
    for (size_t i = 0; i < ig_kv_group_block_bytes(TWO.group[0]) / 2; i++)
        CHECK(halves_at(p, bad, (ig_kv_layer){0, 0}, 0)[i] == 0);
    ig_kv_pool_free(p);
}
