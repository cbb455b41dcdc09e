/* like_tiles: m rows as the fewest tiles of at most 6, of like heights: 8 go as 4 and 4, and hardly a tile is too low
 * to hide the latency of its chains. TILE(from, n) with n a constant. */
#ifndef IG_LIKE_TILES_H
#define IG_LIKE_TILES_H

#define LIKE_TILES_TOP 6
#define LIKE_TILE(n, TILE) \
    case n: TILE(from, n); break;
#define IN_LIKE_TILES(m, TILE)                                                                \
    do {                                                                                      \
        const int n_tiles = ((m) + LIKE_TILES_TOP - 1) / LIKE_TILES_TOP;                      \
        for (int t = 0, from = 0; t < n_tiles; t++) {                                         \
            const int height = (m) * (t + 1) / n_tiles - from;                                \
            switch (height) {                                                                 \
                LIKE_TILE(1, TILE) LIKE_TILE(2, TILE) LIKE_TILE(3, TILE)                      \
                LIKE_TILE(4, TILE) LIKE_TILE(5, TILE) LIKE_TILE(6, TILE)                      \
            }                                                                                 \
            from += height;                                                                   \
        }                                                                                     \
    } while (0)

#endif
