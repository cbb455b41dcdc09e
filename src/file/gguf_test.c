/* Every rule of the header by a file that breaks just that rule; the good file beside it must open. */
#include "base/test.h"
#include "file/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a small writer ------------------------------------------------------------------------------------ */

static void put(ig_buf *b, const void *p, size_t n) {
    if (!ig_buf_add(b, p, n)) abort();
}
static void put_u32(ig_buf *b, uint32_t v) {
    put(b, &v, 4);
}
static void put_u64(ig_buf *b, uint64_t v) {
    put(b, &v, 8);
}
static void put_bytes(ig_buf *b, const char *s, size_t n) {
    put_u64(b, n);
    put(b, s, n);
}
static void put_str(ig_buf *b, const char *s) {
    put_bytes(b, s, strlen(s));
}
static void put_head(ig_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}
static void put_key(ig_buf *b, const char *key, ig_gguf_kind kind) {
    put_str(b, key);
    put_u32(b, kind);
}
static void put_key_u32(ig_buf *b, const char *key, uint32_t v) {
    put_key(b, key, IG_GGUF_U32);
    put_u32(b, v);
}
static void put_tensor(ig_buf *b, const char *name, uint32_t type, uint64_t rows, uint64_t cols,
                       uint64_t offset) {
    put_str(b, name);
    put_u32(b, 2);
    put_u64(b, cols);
    put_u64(b, rows);
    put_u32(b, type);
    put_u64(b, offset);
}
/* Zeros up to the alignment, then n bytes 0, 1, 2, ... as tensor data. */
static void put_data(ig_buf *b, size_t align, size_t n) {
    while (b->n % align) put(b, "", 1);
    for (size_t i = 0; i < n; i++) put(b, &(uint8_t){(uint8_t)i}, 1);
}

/* Opens the bytes as a file that has no name on disk. */
static ig_status open_bytes(ig_gguf **out, const void *p, size_t n, ig_err *err) {
    char path[40];
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ig_status st = ig_gguf_open(out, path, err);
    close(fd);
    return st;
}

/* Takes b. The file must be refused and the message must hold `says`. */
static void refuses(ig_buf *b, const char *says) {
    ig_gguf *g = NULL;
    ig_err err = {0};
    ig_status st = open_bytes(&g, b->p, b->n, &err);
    CHECK_MSG(st != IG_OK, "was not refused: %s", says);
    CHECK_MSG(g == NULL, "an output in spite of an error");
    CHECK_MSG(st == IG_OK || strstr(err.msg, says), "\"%s\" does not say \"%s\"", err.msg, says);
    ig_gguf_close(g);
    ig_buf_free(b);
}

static ig_buf small(void) {
    return ig_buf_init(1 << 24);
}

/* Two tensors and one key of every kind. */
static ig_buf good_file(void) {
    ig_buf b = small();
    put_head(&b, 3, 2, 16);
    put_key_u32(&b, "general.alignment", 64);
    put_key(&b, "k.u8", IG_GGUF_U8), put(&b, "\xff", 1);
    put_key(&b, "k.i8", IG_GGUF_I8), put(&b, "\xff", 1);
    put_key(&b, "k.u16", IG_GGUF_U16), put(&b, "\xfe\xff", 2);
    put_key(&b, "k.i16", IG_GGUF_I16), put(&b, "\xfe\xff", 2);
    put_key(&b, "k.i32", IG_GGUF_I32), put_u32(&b, 7);
    put_key(&b, "k.f32", IG_GGUF_F32), put(&b, &(float){0.5f}, 4);
    put_key(&b, "k.bool", IG_GGUF_BOOL), put(&b, "\1", 1);
    put_key(&b, "k.string", IG_GGUF_STRING), put_str(&b, "gr\xc3\xbc\xc3\x9f");
    put_key(&b, "k.u64", IG_GGUF_U64), put_u64(&b, UINT64_MAX);
    put_key(&b, "k.i64", IG_GGUF_I64), put_u64(&b, (uint64_t)-3);
    put_key(&b, "k.f64", IG_GGUF_F64), put(&b, &(double){0.25}, 8);
    put_key(&b, "k.strings", IG_GGUF_ARRAY), put_u32(&b, IG_GGUF_STRING), put_u64(&b, 3);
    put_str(&b, "a"), put_str(&b, ""), put_str(&b, "ccc");
    put_key(&b, "k.ints", IG_GGUF_ARRAY), put_u32(&b, IG_GGUF_I16), put_u64(&b, 2),
        put(&b, "\1\0\xff\xff", 4);
    put_key(&b, "k.reals", IG_GGUF_ARRAY), put_u32(&b, IG_GGUF_F32), put_u64(&b, 1),
        put(&b, &(float){1.5f}, 4);
    put_key(&b, "k.none", IG_GGUF_ARRAY), put_u32(&b, IG_GGUF_STRING), put_u64(&b, 0);
    put_tensor(&b, "z.weight", 3, 2, 64, 0); /* Q4_1: 2 rows of 2 blocks of 20 bytes */
    put_tensor(&b, "a.weight", 0, 1, 8, 128);
    put_data(&b, 64, 128 + 32);
    return b;
}

/* ---- what a good file gives ---------------------------------------------------------------------------- */

TEST(a_good_file_opens_and_gives_every_kind_of_value) {
    ig_buf b = good_file();
    ig_gguf *g = NULL;
    ig_err err = {0};
    if (!CHECK_MSG(open_bytes(&g, b.p, b.n, &err) == IG_OK, "%s", err.msg)) return;
    uint64_t u = 0;
    double f = 0;
    bool yes = false;
    ig_slice s;
    ig_gguf_array a;
    CHECK(ig_gguf_n_keys(g) == 16 && ig_gguf_file_bytes(g) == b.n);
    CHECK(ig_gguf_get_u64(g, "k.u8", &u, NULL) == IG_OK && u == 255);
    CHECK(ig_gguf_get_u64(g, "k.u16", &u, NULL) == IG_OK && u == 65534);
    CHECK(ig_gguf_get_u64(g, "k.i32", &u, NULL) == IG_OK && u == 7);
    CHECK(ig_gguf_get_u64(g, "k.u64", &u, NULL) == IG_OK && u == UINT64_MAX);
    CHECK(ig_gguf_get_f64(g, "k.i8", &f, NULL) == IG_OK && f == -1.0);
    CHECK(ig_gguf_get_f64(g, "k.i16", &f, NULL) == IG_OK && f == -2.0);
    CHECK(ig_gguf_get_f64(g, "k.i64", &f, NULL) == IG_OK && f == -3.0);
    CHECK(ig_gguf_get_f64(g, "k.u64", &f, NULL) == IG_OK && f == 18446744073709551616.0);
    CHECK(ig_gguf_get_f64(g, "k.f32", &f, NULL) == IG_OK && f == 0.5);
    CHECK(ig_gguf_get_f64(g, "k.f64", &f, NULL) == IG_OK && f == 0.25);
    CHECK(ig_gguf_get_bool(g, "k.bool", &yes, NULL) == IG_OK && yes);
    CHECK(ig_gguf_get_string(g, "k.string", &s, NULL) == IG_OK && ig_slice_eq_str(s, "gr\xc3\xbc\xc3\x9f"));
    CHECK(ig_gguf_get_array(g, "k.strings", &a, NULL) == IG_OK && a.n == 3 && a.kind == IG_GGUF_STRING);
    CHECK(ig_slice_eq_str(a.strings[0], "a") && a.strings[1].n == 0 && ig_slice_eq_str(a.strings[2], "ccc"));
    CHECK(ig_gguf_array_u64(&a, 0) == UINT64_MAX); /* a string is no number */
    CHECK(ig_gguf_get_array(g, "k.ints", &a, NULL) == IG_OK && a.n == 2);
    CHECK(ig_gguf_array_u64(&a, 0) == 1 && ig_gguf_array_u64(&a, 1) == UINT64_MAX &&
          ig_gguf_array_f64(&a, 1) == -1);
    CHECK(ig_gguf_get_array(g, "k.reals", &a, NULL) == IG_OK && ig_gguf_array_f64(&a, 0) == 1.5);
    CHECK(ig_gguf_get_array(g, "k.none", &a, NULL) == IG_OK && a.n == 0);
    ig_gguf_kind kind;
    CHECK(ig_slice_eq_str(ig_gguf_key(g, 1, &kind), "k.u8") && kind == IG_GGUF_U8);
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(a_value_of_another_kind_is_an_error_and_not_a_guess) {
    ig_buf b = good_file();
    ig_gguf *g = NULL;
    ig_err err = {0};
    if (!CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK)) return;
    uint64_t u = 99;
    double f = 99;
    bool yes;
    ig_slice s;
    ig_gguf_array a;
    CHECK(ig_gguf_get_u64(g, "k.i64", &u, &err) == IG_EFORMAT && strstr(err.msg, "k.i64 is -3"));
    CHECK(ig_gguf_get_u64(g, "k.f32", &u, &err) == IG_EFORMAT && strstr(err.msg, "f32"));
    CHECK(ig_gguf_get_u64(g, "k.bool", &u, NULL) == IG_EFORMAT);
    CHECK(ig_gguf_get_f64(g, "k.string", &f, NULL) == IG_EFORMAT);
    CHECK(ig_gguf_get_bool(g, "k.u8", &yes, NULL) == IG_EFORMAT);
    CHECK(ig_gguf_get_string(g, "k.strings", &s, NULL) == IG_EFORMAT);
    CHECK(ig_gguf_get_array(g, "k.string", &a, NULL) == IG_EFORMAT);
    CHECK(ig_gguf_get_u64(g, "k.absent", &u, &err) == IG_ENOTFOUND && strstr(err.msg, "k.absent"));
    CHECK(u == 99 && f == 99);
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(tensors_are_found_by_name_and_read_whole) {
    ig_buf b = good_file();
    ig_gguf *g = NULL;
    if (!CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK)) return;
    const ig_gguf_tensor *z = ig_gguf_find(g, "z.weight"), *a = ig_gguf_find(g, "a.weight");
    CHECK(ig_gguf_n_tensors(g) == 2 && ig_gguf_tensor_at(g, 0) == z && ig_gguf_tensor_at(g, 1) == a);
    CHECK(z && z->n_bytes == 80 && z->dim[0] == 64 && z->dim[1] == 2 && z->dim[2] == 1 &&
          z->offset % 64 == 0);
    CHECK(a && a->n_bytes == 32 && a->offset == z->offset + 128);
    CHECK(!ig_gguf_find(g, "a.weigh") && !ig_gguf_find(g, "a.weightx") && !ig_gguf_find(g, ""));
    uint8_t got[80];
    CHECK(ig_gguf_read(g, z, 0, got, 80, NULL) == IG_OK && got[0] == 0 && got[79] == 79);
    CHECK(ig_gguf_read(g, a, 30, got, 2, NULL) == IG_OK && got[0] == 128 + 30 && got[1] == 128 + 31);
    CHECK(ig_gguf_read(g, a, 31, got, 2, NULL) == IG_EINVAL);
    CHECK(ig_gguf_read(g, a, UINT64_MAX, got, 2, NULL) == IG_EINVAL);
    CHECK(ig_gguf_read(g, a, 32, got, 0, NULL) == IG_OK);
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(version_2_is_read_as_well) {
    ig_buf b = small();
    ig_gguf *g = NULL;
    put_head(&b, 2, 0, 1);
    put_key_u32(&b, "k", 5);
    CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK && ig_gguf_n_tensors(g) == 0);
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(a_file_that_shrinks_after_opening_is_a_short_read_and_no_signal) {
    char path[40];
    ig_buf b = good_file();
    ig_gguf *g = NULL;
    ig_err err = {0};
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(write(fd, b.p, b.n) == (ssize_t)b.n);
    if (CHECK(ig_gguf_open(&g, path, NULL) == IG_OK)) {
        uint8_t got[32];
        CHECK(ftruncate(fd, (off_t)b.n - 1) == 0);
        CHECK(ig_gguf_read(g, ig_gguf_find(g, "a.weight"), 0, got, 32, &err) == IG_EIO);
        CHECK(strstr(err.msg, "a.weight") && strstr(err.msg, "when opened"));
    }
    ig_gguf_close(g);
    close(fd);
    ig_buf_free(&b);
}

/* ---- truncation ---------------------------------------------------------------------------------------- */

TEST(every_prefix_of_a_good_file_is_refused_as_truncated) {
    ig_buf b = good_file();
    for (size_t n = 0; n < b.n; n++) {
        ig_gguf *g = NULL;
        ig_err err = {0};
        char says[64];
        snprintf(says, sizeof says, n ? "truncated at byte %zu" : "the file is empty", n);
        bool refused = open_bytes(&g, b.p, n, &err) == IG_EFORMAT && strstr(err.msg, says);
        if (!CHECK_MSG(refused, "prefix of %zu bytes: %s", n, err.msg)) break;
    }
    ig_gguf *g = NULL;
    CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK); /* the control: the whole */
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(a_truncation_names_what_was_being_read) {
    ig_buf b = small();
    put_head(&b, 3, 0, 1);
    put_key(&b, "general.name", IG_GGUF_STRING);
    put_u64(&b, 100);
    put(&b, "abc", 3);
    refuses(&b, "truncated at byte 59 while reading key general.name");
}

TEST(claimed_counts_are_compared_with_the_bytes_left) {
    static const uint64_t big[] = {1000, 1ull << 31, UINT32_MAX, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        ig_buf b = small();
        put_head(&b, 3, big[i], 0);
        put_u64(&b, 0);
        refuses(&b, "tensors claimed");
        b = small();
        put_head(&b, 3, 0, big[i]);
        put_u64(&b, 0);
        refuses(&b, "keys claimed");
        b = small();
        put_head(&b, 3, 0, 1);
        put_u64(&b, big[i]); /* length of the key's name */
        put(&b, "12345678901234567890", 20);
        refuses(&b, "truncated");
        for (uint32_t kind = IG_GGUF_U8; kind <= IG_GGUF_F64; kind++) {
            if (kind == IG_GGUF_ARRAY) continue;
            b = small();
            put_head(&b, 3, 0, 1);
            put_key(&b, "list", IG_GGUF_ARRAY), put_u32(&b, kind), put_u64(&b, big[i]);
            put(&b, "12345678901234567890", 20);
            refuses(&b, "while reading key list");
        }
    }
}

/* ---- one broken rule each ------------------------------------------------------------------------------ */

TEST(foreign_files_are_named) {
    static const struct {
        char bytes[48]; /* the first 24 are the file */
        const char *says;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"},
        {"<!DOCTYPE html><html></html>", "web page"},
        {"PK\3\4", "PyTorch"},
        {"tjgg", "GGJT"},
        {{0x7f, 'E', 'L', 'F'}, "not a GGUF file (starts with 7f 45 4c 46)"},
        {"GGUF\0\0\0\3", "big-endian"},
        {"FUGG\0\0\0\3", "big-endian"},
        {"GGUF\4", "version 4"},
        {"GGUF\1", "version 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ig_buf b = small();
        put(&b, cases[i].bytes, 24);
        refuses(&b, cases[i].says);
    }
}

TEST(odd_paths_are_refused) {
    ig_gguf *g = NULL;
    ig_err err = {0};
    CHECK(ig_gguf_open(&g, "/nonexistent/x.gguf", &err) == IG_ENOTFOUND &&
          strstr(err.msg, "/nonexistent/x.gguf"));
    CHECK(ig_gguf_open(&g, "/", &err) == IG_EFORMAT && strstr(err.msg, "directory"));
    CHECK(ig_gguf_open(&g, "/dev/zero", &err) == IG_EFORMAT);
    char fifo[] = "/tmp/ig-fifo-XXXXXX";
    int fd = mkstemp(fifo);
    close(fd);
    unlink(fifo);
    if (mkfifo(fifo, 0600) == 0) CHECK(ig_gguf_open(&g, fifo, &err) == IG_EFORMAT); /* and does not wait */
    unlink(fifo);
}

TEST(an_alignment_that_is_no_power_of_two_in_range_is_refused) {
    static const uint32_t bad[] = {0, 1, 3, 4, 48, 1u << 21, 1u << 30, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ig_buf b = small();
        put_head(&b, 3, 0, 1);
        put_key_u32(&b, "general.alignment", bad[i]);
        refuses(&b, "general.alignment is");
    }
    ig_buf b = small();
    put_head(&b, 3, 0, 1);
    put_key(&b, "general.alignment", IG_GGUF_U64), put_u64(&b, 32);
    refuses(&b, "general.alignment is of kind u64");
}

/* A file of one tensor; the caller says what is odd about it. */
static ig_buf one_tensor(const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                         uint64_t offset) {
    ig_buf b = small();
    put_head(&b, 3, 1, 0);
    put_str(&b, name);
    put_u32(&b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(&b, dims[i]);
    put_u32(&b, type);
    put_u64(&b, offset);
    put_data(&b, 32, 4096);
    return b;
}

TEST(shapes_that_cannot_be_are_refused) {
    ig_buf b;
    b = one_tensor("w", 0, 0, NULL, 0), refuses(&b, "0 dimensions");
    b = one_tensor("w", 0, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0), refuses(&b, "5 dimensions");
    static const uint64_t many[255] = {1, 1, 1, 1, 1};
    b = one_tensor("w", 0, 255, many, 0), refuses(&b, "255 dimensions");
    b = one_tensor("w", 0, 2, (uint64_t[]){0, 1}, 0), refuses(&b, "leaves no values");
    b = one_tensor("w", 0, 2, (uint64_t[]){1ull << 32, 1ull << 32}, 0), refuses(&b, "more than 2^63");
    b = one_tensor("w", 0, 3, (uint64_t[]){4194305, 4194305, 211106198978564}, 0),
    refuses(&b, "more than 2^63");
    b = one_tensor("w", 0, 1, (uint64_t[]){UINT64_MAX}, 0), refuses(&b, "more than 2^63");
    b = one_tensor("w", 8, 2, (uint64_t[]){48, 2}, 0), refuses(&b, "not whole Q8_0 blocks");
    b = one_tensor("w", 14, 2, (uint64_t[]){128, 2}, 0), refuses(&b, "not whole Q6_K blocks");
    b = one_tensor("w", 0, 1, (uint64_t[]){1ull << 61}, 0), refuses(&b, "blocks of 4 bytes");
    b = one_tensor("blk.7.odd", 99, 1, (uint64_t[]){32}, 0), refuses(&b, "blk.7.odd has block type 99");
    b = one_tensor("w", 4, 1, (uint64_t[]){32}, 0), refuses(&b, "Q4_2");
    b = one_tensor("w", UINT32_MAX, 1, (uint64_t[]){32}, 0), refuses(&b, "block type 4294967295");
}

TEST(places_outside_the_file_or_off_the_grid_are_refused) {
    ig_buf b;
    b = one_tensor("w", 0, 1, (uint64_t[]){1024}, 32), refuses(&b, "truncated");
    b = one_tensor("w", 0, 1, (uint64_t[]){8}, 8), refuses(&b, "not a multiple of the alignment 32");
    b = one_tensor("w", 0, 1, (uint64_t[]){8}, 1ull << 40), refuses(&b, "truncated");
    b = one_tensor("w", 0, 1, (uint64_t[]){8}, UINT64_MAX - 31), refuses(&b, "truncated");
    b = one_tensor("w", 0, 1, (uint64_t[]){1024}, 0);
    ig_gguf *g = NULL;
    CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK); /* the control: it just fits */
    ig_gguf_close(g);
    ig_buf_free(&b);
}

static ig_buf two_tensors(const char *a, uint64_t at_a, const char *b_name, uint64_t at_b) {
    ig_buf b = small();
    put_head(&b, 3, 2, 0);
    put_tensor(&b, a, 0, 2, 8, at_a);
    put_tensor(&b, b_name, 0, 2, 8, at_b);
    put_data(&b, 32, 256);
    return b;
}

TEST(tensors_must_not_share_bytes_or_names) {
    ig_buf b;
    b = two_tensors("a", 0, "b", 0), refuses(&b, "overlap");
    b = two_tensors("a", 32, "b", 0), refuses(&b, "overlap");
    b = two_tensors("a", 0, "a", 64), refuses(&b, "tensor a is there twice");
    b = two_tensors("a", 64, "b", 0);
    ig_gguf *g = NULL;
    CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK);
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(names_must_be_text) {
    ig_buf b = small();
    put_head(&b, 3, 0, 2), put_key_u32(&b, "k", 1), put_key_u32(&b, "k", 2),
        refuses(&b, "key k is there twice");
    b = small(), put_head(&b, 3, 0, 1), put_bytes(&b, "a\0b", 3), put_u32(&b, IG_GGUF_U8), put(&b, "1", 1);
    refuses(&b, "holds a NUL byte");
    b = small(), put_head(&b, 3, 0, 1), put_bytes(&b, "a\xff", 2), put_u32(&b, IG_GGUF_U8), put(&b, "1", 1);
    refuses(&b, "invalid UTF-8 at byte 33");
    b = small(), put_head(&b, 3, 0, 1), put_bytes(&b, "", 0), put_u32(&b, IG_GGUF_U32), put_u32(&b, 1);
    refuses(&b, "0 bytes long");
    b = small(), put_head(&b, 3, 0, 1), put_key(&b, "k", IG_GGUF_STRING), put_bytes(&b, "\xc0\x80", 2);
    refuses(&b, "invalid UTF-8");
    char name[300];
    memset(name, 'n', sizeof name);
    name[256] = 0;
    b = one_tensor(name, 0, 1, (uint64_t[]){8}, 0), refuses(&b, "256 bytes long");
    name[255] = 0;
    b = one_tensor(name, 0, 1, (uint64_t[]){8}, 0);
    ig_gguf *g = NULL;
    CHECK(open_bytes(&g, b.p, b.n, NULL) == IG_OK && ig_gguf_find(g, name));
    ig_gguf_close(g);
    ig_buf_free(&b);
}

TEST(a_name_cannot_send_escapes_to_the_terminal) {
    ig_buf b = small();
    ig_gguf *g = NULL;
    ig_err err = {0};
    put_head(&b, 3, 0, 1);
    put_key(&b, "\x1b[2J", 77);
    put_u32(&b, 0);
    CHECK(open_bytes(&g, b.p, b.n, &err) == IG_EFORMAT && strstr(err.msg, "?[2J") && !strchr(err.msg, 0x1b));
    ig_buf_free(&b);
}

TEST(an_array_nested_a_million_deep_is_refused_at_once) {
    ig_buf b = ig_buf_init(1 << 25);
    put_head(&b, 3, 0, 1), put_key(&b, "k", IG_GGUF_ARRAY);
    for (int i = 0; i < 1000000; i++) put_u32(&b, IG_GGUF_ARRAY), put_u64(&b, 1);
    refuses(&b, "arrays of arrays");
}

TEST(kinds_that_are_unknown_or_nested_are_refused) {
    ig_buf b = small();
    put_head(&b, 3, 0, 1), put_key(&b, "k", 13), put_u64(&b, 0), refuses(&b, "unknown kind 13");
    b = small(), put_head(&b, 3, 0, 1), put_key(&b, "k", IG_GGUF_ARRAY), put_u32(&b, IG_GGUF_ARRAY),
    put_u64(&b, 1);
    put_u32(&b, IG_GGUF_ARRAY), put_u64(&b, 1), refuses(&b, "arrays of arrays");
    b = small(), put_head(&b, 3, 0, 1), put_key(&b, "k", IG_GGUF_ARRAY), put_u32(&b, 200), put_u64(&b, 0);
    refuses(&b, "array of unknown kind 200");
    b = small(), put_head(&b, 3, 0, 1), put_key(&b, "k", IG_GGUF_BOOL), put(&b, "\2\2", 2),
    refuses(&b, "0 or 1");
}

/* ---- models in parts ----------------------------------------------------------------------------------- */

static char folder[64];

/* What a part says of itself, and its tensors: one for each letter of `names`, 8 floats that hold the letter. */
typedef struct part {
    int no, count, n_tensors;
    const char *names, *arch;
    const char *key, *text; /* one key more, NULL: none; text NULL: an array of two numbers */
} part;
#define PART(no_, count_, n_, names_, arch_)                                                                 \
    (part){.no = (no_), .count = (count_), .n_tensors = (n_), .names = (names_), .arch = (arch_)}

static void put_key_u16(ig_buf *b, const char *key, int v) {
    put_key(b, key, IG_GGUF_U16), put(b, &(uint16_t){(uint16_t)v}, 2);
}
static void write_part(const char *file, part p) {
    char path[128];
    ig_buf b = small();
    const size_t n = strlen(p.names);
    put_head(&b, 3, n, 3 + (p.arch != NULL) + (p.key != NULL));
    put_key_u16(&b, "split.no", p.no), put_key_u16(&b, "split.count", p.count);
    put_key(&b, "split.tensors.count", IG_GGUF_I32), put_u32(&b, (uint32_t)p.n_tensors);
    if (p.arch) put_key(&b, "general.architecture", IG_GGUF_STRING), put_str(&b, p.arch);
    if (p.key && p.text) put_key(&b, p.key, IG_GGUF_STRING), put_str(&b, p.text);
    else if (p.key)
        put_key(&b, p.key, IG_GGUF_ARRAY), put_u32(&b, IG_GGUF_U16), put_u64(&b, 2), put(&b, "abcd", 4);
    for (size_t i = 0; i < n; i++) put_tensor(&b, (char[2]){p.names[i], 0}, 0, 1, 8, 32 * i);
    while (b.n % 32) put(&b, "", 1);
    for (size_t i = 0; i < 32 * n; i++) put(&b, p.names + i / 32, 1);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(b.p, 1, b.n, f) != b.n || fclose(f) != 0) abort();
    ig_buf_free(&b);
}
static ig_status open_in_folder(ig_gguf **out, const char *file, ig_err *err) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return ig_gguf_open(out, path, err);
}
/* A model of three parts and five tensors, as it should be. */
#define P(i) "m-0000" #i "-of-00003.gguf"
static void begin_parts(void) {
    snprintf(folder, sizeof folder, "/tmp/ig-parts-XXXXXX");
    if (!mkdtemp(folder)) abort();
    write_part(P(1), PART(0, 3, 5, "db", "llama"));
    write_part(P(2), PART(1, 3, 5, "ca", NULL));
    write_part(P(3), PART(2, 3, 5, "e", NULL));
}
static void end_parts(void) {
    DIR *d = opendir(folder);
    if (!d) abort();
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(folder);
}
/* Opens by each of the names; all must be refused likewise. */
static void part_refused(const char *says) {
    static const char *const files[] = {P(1), P(2), P(3)};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        ig_gguf *g = NULL;
        ig_err err = {0};
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (access(path, F_OK) != 0) continue;
        CHECK_MSG(open_in_folder(&g, files[i], &err) != IG_OK && !g, "%s: was not refused: %s", files[i], says);
        CHECK_MSG(strstr(err.msg, says) != NULL, "%s: \"%s\" does not say \"%s\"", files[i], err.msg, says);
        ig_gguf_close(g);
    }
}

TEST(a_model_in_parts_opens_by_any_of_them_and_is_one_model) {
    static const char *const files[] = {P(1), P(2), P(3)};
    begin_parts();
    for (int k = 0; k < 3; k++) {
        ig_gguf *g = NULL;
        ig_err err = {0};
        ig_slice arch;
        if (!CHECK_MSG(open_in_folder(&g, files[k], &err) == IG_OK, "%s", err.msg)) continue;
        CHECK(ig_gguf_n_files(g) == 3 && ig_gguf_n_tensors(g) == 5 && strstr(ig_gguf_path(g), P(1)));
        CHECK(ig_gguf_get_string(g, "general.architecture", &arch, NULL) == IG_OK);
        CHECK(ig_gguf_file_bytes(g) > 5 * 32 && ig_gguf_file_bytes(g) % 32 == 0);
        for (int i = 0; i < 5; i++) {
            char name[2] = {(char)('a' + i), 0}, bytes[32];
            const ig_gguf_tensor *t = ig_gguf_find(g, name);
            if (!CHECK(t && ig_gguf_read(g, t, 0, bytes, 32, &err) == IG_OK)) continue;
            CHECK(bytes[0] == name[0] && bytes[31] == name[0]);
            CHECK(t >= ig_gguf_tensor_at(g, 0) && t <= ig_gguf_tensor_at(g, 4));
        }
        CHECK(!ig_gguf_find(g, "f"));
        ig_gguf_close(g);
    }
    end_parts();
}

TEST(a_part_that_is_not_there_is_named) {
    static const char *const files[] = {P(1), P(2), P(3)};
    for (int i = 0; i < 3; i++) {
        char says[100], path[128];
        begin_parts();
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        CHECK(unlink(path) == 0);
        snprintf(says, sizeof says, "part %d of 3 is missing: %s", i + 1, folder);
        part_refused(says);
        end_parts();
    }
}

TEST(a_part_that_is_another_one_or_of_another_model_is_named) {
    begin_parts();
    write_part(P(2), PART(0, 3, 5, "db", "llama")); /* the first part twice */
    part_refused("by its name part 2");
    write_part(P(2), PART(1, 4, 5, "ca", NULL));
    part_refused(P(2));
    write_part(P(2), PART(1, 3, 6, "ca", NULL));
    part_refused("split.tensors.count is");
    write_part(P(2), PART(1, 3, 5, "ca", "qwen3"));
    part_refused("from another model than");
    write_part(P(2), (part){1, 3, 5, "ca", NULL, "general.name", "other"});
    part_refused("from another model than");
    part_refused("key general.name is not there");
    write_part(P(1), (part){0, 3, 5, "db", "llama", "general.name", "this"});
    part_refused("key general.name is another there");
    write_part(P(2), (part){1, 3, 5, "ca", NULL, "general.name", NULL});
    part_refused("key general.name is another there");
    write_part(P(1), (part){0, 3, 5, "db", "llama", NULL, NULL});
    write_part(P(2), (part){1, 3, 5, "ca", NULL, "x.list", NULL});
    part_refused("key x.list is not there");
    write_part(P(2), PART(1, 3, 5, "ea", NULL)); /* a tensor of part 3 */
    part_refused("tensor e is also in");
    write_part(P(2), PART(1, 3, 5, "c", NULL));
    part_refused("its 3 parts have 4 tensors, split.tensors.count is 5");
    write_part(P(2), PART(3, 3, 5, "ca", NULL));
    part_refused("split.no is 3 and split.count 3");
    write_part(P(2), PART(1, 3, 5, "ca", NULL));
    for (int k = 0; k < 3; k++) { /* the controls: whole again, and each part says the same */
        static const char *const keys[] = {NULL, "x.list", "general.name"}, *const texts[] = {NULL, NULL, "n"};
        ig_gguf *g = NULL;
        ig_err err = {0};
        write_part(P(1), (part){0, 3, 5, "db", "llama", keys[k], texts[k]});
        write_part(P(2), (part){1, 3, 5, "ca", "llama", keys[k], texts[k]});
        CHECK_MSG(open_in_folder(&g, P(2), &err) == IG_OK, "%s", err.msg);
        ig_gguf_close(g);
    }
    end_parts();
}

TEST(a_part_whose_name_does_not_lead_to_the_others_says_how_it_must_be_called) {
    ig_gguf *g = NULL;
    ig_err err = {0};
    begin_parts();
    write_part("renamed.gguf", PART(1, 3, 5, "ca", NULL));
    CHECK(open_in_folder(&g, "renamed.gguf", &err) == IG_EFORMAT && strstr(err.msg, "-00002-of-00003.gguf"));
    write_part("m-00002-of-00004.gguf", PART(1, 3, 5, "ca", NULL));
    CHECK(open_in_folder(&g, "m-00002-of-00004.gguf", &err) == IG_EFORMAT &&
          strstr(err.msg, "by its name part 2 of 4, inside part 2 of 3"));
    write_part("m-00001-of-00001.gguf", PART(0, 1, 2, "ab", "llama")); /* one part is a whole model */
    CHECK(open_in_folder(&g, "m-00001-of-00001.gguf", &err) == IG_OK && ig_gguf_n_files(g) == 1);
    ig_gguf_close(g);
    ig_buf b = small();
    put_head(&b, 3, 0, 1);
    put_key_u16(&b, "split.count", 3);
    refuses(&b, "has no key split.no");
    b = small();
    put_head(&b, 3, 0, 3), put_key_u16(&b, "split.no", 0), put_key_u32(&b, "split.count", 1u << 31);
    put_key_u32(&b, "split.tensors.count", 1);
    refuses(&b, "limit 1000");
    end_parts();
}

TEST(every_prefix_of_a_part_is_refused_as_truncated) {
    begin_parts();
    char path[128];
    struct stat info;
    snprintf(path, sizeof path, "%s/" P(3), folder);
    CHECK(stat(path, &info) == 0);
    for (off_t n = info.st_size - 1; n >= 0; n--) {
        ig_gguf *g = NULL;
        ig_err err = {0};
        CHECK(truncate(path, n) == 0);
        bool refused = open_in_folder(&g, P(1), &err) == IG_EFORMAT && strstr(err.msg, P(3)) &&
                       strstr(err.msg, n ? "truncated" : "the file is empty");
        if (!CHECK_MSG(refused, "prefix of %d bytes: %s", (int)n, err.msg)) break;
    }
    end_parts();
}

TEST(flipped_bits_never_crash_and_never_leave_a_tensor_outside_the_file) {
    ig_buf b = good_file();
    for (size_t at = 0; at < b.n; at++) {
        for (int bit = 0; bit < 8; bit++) {
            ig_gguf *g = NULL;
            b.p[at] = (char)(b.p[at] ^ (1 << bit));
            if (open_bytes(&g, b.p, b.n, NULL) == IG_OK) {
                for (int i = 0; i < ig_gguf_n_tensors(g); i++) {
                    const ig_gguf_tensor *t = ig_gguf_tensor_at(g, i);
                    CHECK(t->offset <= b.n && t->n_bytes <= b.n - t->offset);
                }
            }
            ig_gguf_close(g);
            b.p[at] = (char)(b.p[at] ^ (1 << bit));
        }
    }
    ig_buf_free(&b);
}

TEST(block_sizes_are_those_of_the_format) {
    static const struct {
        uint32_t type;
        const char *name;
        uint32_t values, bytes;
    } want[] = {{0, "F32", 1, 4},    {1, "F16", 1, 2},       {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},
                {8, "Q8_0", 32, 34}, {12, "Q4_K", 256, 144}, {14, "Q6_K", 256, 210}, {20, "IQ4_NL", 32, 18},
                {30, "BF16", 1, 2},  {39, "MXFP4", 32, 17},  {40, "NVFP4", 64, 36}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const ig_gguf_type *t = ig_gguf_type_of(want[i].type);
        CHECK(t && strcmp(t->name, want[i].name) == 0 && t->n_values == want[i].values &&
              t->n_bytes == want[i].bytes);
    }
    CHECK(ig_gguf_type_of(43) == NULL && ig_gguf_type_of(UINT32_MAX) == NULL);
}

TEST(a_real_model_opens) {
    char path[512];
    const char *model = getenv("INGLE_TEST_MODEL"), *cache = getenv("INGLE_CACHE"),
               *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME"), *file = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (model)
        snprintf(path, sizeof path, "%s", model);
    else if (cache)
        snprintf(path, sizeof path, "%s/%s", cache, file);
    else if (xdg)
        snprintf(path, sizeof path, "%s/ingle/%s", xdg, file);
    else
        snprintf(path, sizeof path, "%s/.cache/ingle/%s", home ? home : "", file);
    if (access(path, R_OK) != 0) SKIP("no model at %s", path);
    ig_gguf *g = NULL;
    ig_err err = {0};
    ig_slice arch;
    ig_gguf_array tokens;
    if (!CHECK_MSG(ig_gguf_open(&g, path, &err) == IG_OK, "%s", err.msg)) return;
    CHECK(ig_gguf_get_string(g, "general.architecture", &arch, NULL) == IG_OK && arch.n > 0);
    CHECK(ig_gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, NULL) == IG_OK && tokens.n > 0);
    CHECK(ig_gguf_find(g, "token_embd.weight") != NULL);
    ig_gguf_close(g);
}
