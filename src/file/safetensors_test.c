/* Every rule of the header by a file that breaks just that rule; the good file beside it must open. */
#include "base/test.h"
#include "file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Length, header, then n_data bytes 0, 1, 2, ...; length_off is added to the true length. */
static ig_status open_header(ig_safetensors **out, const char *header, size_t n_data, int64_t length_off,
                             ig_err *err) {
    char path[40];
    uint64_t n = strlen(header), said = n + (uint64_t)length_off;
    int fd = memfd_create("safetensors", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &said, 8) != 8 || write(fd, header, n) != (ssize_t)n) abort();
    for (size_t i = 0; i < n_data; i++)
        if (write(fd, &(uint8_t){(uint8_t)i}, 1) != 1) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ig_status st = ig_safetensors_open(out, path, err);
    close(fd);
    return st;
}

static void refuses_with(const char *header, size_t n_data, int64_t length_off, const char *says) {
    ig_safetensors *s = NULL;
    ig_err err = {0};
    ig_status st = open_header(&s, header, n_data, length_off, &err);
    CHECK_MSG(st != IG_OK && !s, "was not refused: %s", says);
    CHECK_MSG(st == IG_OK || strstr(err.msg, says), "\"%s\" does not say \"%s\"", err.msg, says);
    ig_safetensors_close(s);
}

static void refuses(const char *header, size_t n_data, const char *says) {
    refuses_with(header, n_data, 0, says);
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"

TEST(a_good_safetensors_file_opens_and_its_tensors_are_found_and_read) {
    ig_safetensors *s = NULL;
    ig_err err;
    uint8_t bytes[8];
    if (!CHECK(open_header(&s, "{\"__metadata__\":{\"format\":\"pt\"}," B "," A "}   ", 32, 0, &err) ==
               IG_OK))
        return;
    CHECK(ig_safetensors_n_tensors(s) == 2);
    const ig_safetensor *a = ig_safetensors_find(s, "a"), *b = ig_safetensors_find(s, "b");
    CHECK(a == ig_safetensors_tensor_at(s, 0) && b == ig_safetensors_tensor_at(s, 1));
    CHECK(!ig_safetensors_find(s, "") && !ig_safetensors_find(s, "ab") && !ig_safetensors_find(s, "c"));
    if (!CHECK(a && b)) return;
    CHECK(a->dtype == IG_DTYPE_F32 && a->n_dims == 2 && a->dim[0] == 2 && a->dim[1] == 3 && a->dim[2] == 1);
    CHECK(b->dtype == IG_DTYPE_BF16 && b->n_dims == 1 && b->n_bytes == 8 && b->file == s);
    CHECK(ig_safetensor_read(b, 2, bytes, 6, &err) == IG_OK && bytes[0] == 26 && bytes[5] == 31);
    CHECK(ig_safetensor_read(b, 2, bytes, 7, &err) == IG_EINVAL && strstr(err.msg, "tensor b"));
    CHECK(ig_safetensor_read(b, 9, bytes, 0, &err) == IG_EINVAL);
    ig_safetensors_close(s);
}

TEST(a_file_without_tensors_a_scalar_and_an_empty_tensor_are_good) {
    ig_safetensors *s = NULL;
    ig_err err;
    CHECK(open_header(&s, "{}", 0, 0, &err) == IG_OK && ig_safetensors_n_tensors(s) == 0);
    ig_safetensors_close(s);
    s = NULL;
    CHECK(open_header(&s,
                      "{\"z\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
                      "\"one\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}",
                      8, 0, &err) == IG_OK);
    CHECK(ig_safetensors_n_tensors(s) == 2 && ig_safetensors_find(s, "z")->n_bytes == 0);
    ig_safetensors_close(s);
}

TEST(every_dtype_of_the_format_has_its_size) {
    for (int d = IG_DTYPE_F64; d <= IG_DTYPE_BOOL; d++) {
        char head[200];
        ig_safetensors *s = NULL;
        int n = ig_dtype_bytes((ig_dtype)d);
        snprintf(head, sizeof head, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}",
                 ig_dtype_name((ig_dtype)d), 3 * n);
        CHECK_MSG(open_header(&s, head, (size_t)(3 * n), 0, NULL) == IG_OK, "%s", head);
        CHECK(s && ig_safetensors_find(s, "x")->dtype == (ig_dtype)d);
        ig_safetensors_close(s);
        refuses(head, (size_t)(3 * n + 1), "belong to none");
    }
}

TEST(a_header_length_that_does_not_fit_the_file_is_refused) {
    refuses_with("{" A "}", 24, 1000, "truncated, or not a safetensors file");
    refuses_with("{" A "}", 24, -(int64_t)strlen("{" A "}"), "a header of 0 bytes");
    refuses_with("{" A "}", 24, -1, "header: JSON");
    refuses_with("{" A "}", 24, 1, "header: JSON");
    refuses_with("{" A "}", 24, INT64_MIN, "truncated, or not a safetensors file");
    refuses_with("{}", 0, -3, "truncated, or not a safetensors file"); /* 2^64 - 1 */
    refuses("{", 0, "no safetensors file");
}

TEST(a_header_that_is_not_an_object_of_tensors_is_refused) {
    refuses("[1,2,3,4,5]", 0, "starts with byte 5b");
    refuses(" {" A "}", 24, "starts with byte 20");
    refuses("{\"a\":1}", 0, "is not {dtype, shape, data_offsets}");
    refuses("{\"a\":[1,2,3]}", 0, "is not {dtype, shape, data_offsets}");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "is not {dtype");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "is not {dtype");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
            "is not {dtype");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[[[[[[[[1]]]]]]]],\"data_offsets\":[0,4]}}", 4,
            "nested deeper");
    refuses("{\"__metadata__\":{\"n\":1}}", 0, "__metadata__");
    refuses("{\"__metadata__\":[]}", 0, "__metadata__");
    refuses("{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "0 bytes long");
    refuses("{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "NUL");
    refuses("{" A "," A "}", 24, "overlaps");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8, "tensor a is there twice");
}

TEST(a_dtype_shape_or_offset_that_is_wrong_is_refused_with_the_tensors_name) {
    refuses("{\"q\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor q has dtype F4");
    refuses("{\"q\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor q has dtype that is no");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "tensor q: shape");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "tensor q: shape[0]");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "tensor q: shape[0]");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
            "at most 8");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
            "tensor q: shape[0] = 4294967296 makes it larger");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[2,9223372036854775808],\"data_offsets\":[0,0]}}", 0,
            "shape[1]");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
            "4 bytes by its offsets, 8 by");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "bytes 4 to 0 of 4");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]}}", 4,
            "truncated?");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated?");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two whole numbers");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "two whole numbers");
}

TEST(holes_overlaps_and_bytes_without_an_owner_are_refused) {
    refuses("{" A ",\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[25,27]}}", 27,
            "a hole before it");
    refuses("{" A ",\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[23,25]}}", 25, "overlaps");
    refuses("{\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "a hole before it");
    refuses("{" A "}", 25, "1 bytes after the last tensor belong to none");
    refuses("{}", 1, "1 bytes after");
}

/* Header texts of a size that a careless reader takes seconds or gigabytes for. */
TEST(huge_headers_end_in_an_error_or_open_within_a_moment) {
    enum { ENTRIES = 100000, DIMS = 1000000, DEPTH = 100000 };
    ig_buf b = ig_buf_init(32 << 20);
    ig_safetensors *s = NULL;
    ig_err err = {0};
    ig_buf_add_str(&b, "{");
    for (int i = 0; i < ENTRIES; i++)
        ig_buf_addf(&b, "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", i);
    ig_buf_add(&b, "}", 2);
    CHECK_MSG(open_header(&s, b.p, 0, 0, &err) == IG_OK && ig_safetensors_n_tensors(s) == ENTRIES, "%s", err.msg);
    ig_safetensors_close(s);
    b.n = 0, ig_buf_add_str(&b, "{\"q\":{\"dtype\":\"F32\",\"shape\":[1");
    for (int i = 1; i < DIMS; i++) ig_buf_add_str(&b, ",1");
    ig_buf_add(&b, "],\"data_offsets\":[0,4]}}", sizeof "],\"data_offsets\":[0,4]}}");
    refuses(b.p, 4, "tensor q: shape is not a list of at most 8 numbers");
    b.n = 0, ig_buf_add_str(&b, "{\"q\":");
    for (int i = 0; i < DEPTH; i++) ig_buf_add_str(&b, "[");
    ig_buf_add(&b, "", 1);
    refuses(b.p, 4, "nested deeper");
    ig_buf_free(&b);
    refuses_with("{}", 0, (100 << 20), "at most 100000000");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[4194305,4194305,211106198978564],\"data_offsets\":[0,16]}}",
            16, "tensor q: shape[0] = 4194305 makes it larger");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1e3],\"data_offsets\":[0,4]}}", 4, "tensor q: shape[0]");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.0,4]}}", 4, "two whole numbers");
    refuses("{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-1,4]}}", 4, "two whole numbers");
    refuses("{\"q\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor q has dtype F8_E8M0");
}

TEST(what_is_no_safetensors_file_is_named) {
    ig_err err;
    ig_safetensors *s = NULL;
    CHECK(ig_safetensors_open(&s, "/nonexistent/model.safetensors", &err) == IG_ENOTFOUND);
    CHECK(ig_safetensors_open(&s, "/tmp", &err) == IG_EFORMAT && strstr(err.msg, "a directory"));
    char path[] = "/tmp/ig-st-XXXXXX";
    int fd = mkstemp(path);
    const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    if (fd < 0 || write(fd, lfs, sizeof lfs) < 0) abort();
    CHECK(ig_safetensors_open(&s, path, &err) == IG_EFORMAT && strstr(err.msg, "LFS"));
    close(fd);
    unlink(path);
}

TEST(a_safetensors_file_that_shrinks_while_open_is_an_error_and_no_crash) {
    ig_safetensors *s = NULL;
    ig_err err;
    char path[] = "/tmp/ig-st-XXXXXX", head[] = "{" A "}";
    uint64_t n = sizeof head - 1;
    uint8_t bytes[24] = {0};
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, &n, 8) != 8 || write(fd, head, n) != (ssize_t)n || write(fd, bytes, 24) != 24)
        abort();
    if (CHECK(ig_safetensors_open(&s, path, &err) == IG_OK)) {
        CHECK(ftruncate(fd, (off_t)(8 + n + 10)) == 0);
        const ig_safetensor *a = ig_safetensors_find(s, "a");
        CHECK(ig_safetensor_read(a, 0, bytes, 10, &err) == IG_OK);
        CHECK(ig_safetensor_read(a, 0, bytes, 24, &err) == IG_EIO && strstr(err.msg, "when opened"));
    }
    ig_safetensors_close(s);
    close(fd);
    unlink(path);
}
