/* fuzz_tokenizer_gguf: GGUF files with a tokenizer whose arrays are mostly right, and a text for it: the bytes
 * are choices.
 *
 * Whatever loads must encode any text, or refuse it for its time or size, the same way with a used scratch and
 * with a fresh one, and decode its ids to UTF-8. */
#include "text/inside.h"
#include "recipe.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { TOKENS_MOST = 64 };

static const char *const models[] = {"gpt2", "llama", "bert", "t5", ""};
static const char *const pres[] = {"gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "default", "deepseek-llm", ""};
static const char *const pieces[] = {"<unk>", "<s>",    "</s>",   "<0x41>", "<0xFF>", "<0x-1>", "<0xZZ>", "<0x100>",
                                     "a",     "b",      "ab",     "\xc4\xa0", "\xe2\x96\x81", "\xe2\x96\x81" "a",
                                     "\xc4\xa0" "a", "<|im_start|>", "  ", "\n", "", "\xf0\x9f\x98\x80"};

static void put_string(ig_buf *b, ig_slice s) {
    put_le(b, s.n, 8);
    ig_buf_add(b, s.p, s.n);
}

static void put_key(ig_buf *b, int *n_keys, const char *name, uint32_t kind) {
    put_string(b, ig_slice_of(name));
    put_le(b, kind, 4);
    ++*n_keys;
}

static void put_array(ig_buf *b, int *n_keys, const char *name, uint32_t item, uint64_t n) {
    put_key(b, n_keys, name, IG_GGUF_ARRAY);
    put_le(b, item, 4);
    put_le(b, n, 8);
}

static void put_merge(ig_buf *b, recipe *r) {
    char text[64];
    const size_t n_pieces = sizeof pieces / sizeof *pieces;
    if (choose(r) > 200) {
        put_string(b, take_text(r, 12));
        return;
    }
    snprintf(text, sizeof text, "%s %s", pieces[choose(r) % n_pieces], pieces[choose(r) % n_pieces]);
    put_string(b, ig_slice_of(text));
}

static void put_role(ig_buf *b, recipe *r, int *n_keys, const char *name) {
    if (choose(r) < 128) return;
    put_key(b, n_keys, name, IG_GGUF_U32);
    put_le(b, perhaps(r, choose(r) % TOKENS_MOST), 4);
}

static int put_keys(ig_buf *b, recipe *r) {
    int n_keys = 0;
    const size_t n_pieces = sizeof pieces / sizeof *pieces;
    uint8_t n_tokens = choose(r) % TOKENS_MOST, how = choose(r), n_merges = choose(r) % 32;
    put_key(b, &n_keys, "tokenizer.ggml.model", IG_GGUF_STRING);
    put_string(b, ig_slice_of(models[how & 1 ? 0 : how >> 1 & 1 ? 1 : choose(r) % 5]));
    put_key(b, &n_keys, "tokenizer.ggml.pre", IG_GGUF_STRING);
    put_string(b, ig_slice_of(pres[choose(r) % 8]));
    put_array(b, &n_keys, "tokenizer.ggml.tokens", IG_GGUF_STRING, n_tokens);
    for (int i = 0; i < n_tokens; i++) {
        uint8_t which = choose(r);
        put_string(b, which < 160 ? ig_slice_of(pieces[which % n_pieces]) : take_text(r, 12));
    }
    uint64_t n_types = perhaps(r, n_tokens) % 256, n_scores = perhaps(r, n_tokens) % 256;
    if (how & 4) {
        put_array(b, &n_keys, "tokenizer.ggml.token_type", IG_GGUF_I32, n_types);
        for (uint64_t i = 0; i < n_types; i++) put_le(b, perhaps(r, choose(r) % 7), 4);
    }
    if (how & 8) {
        put_array(b, &n_keys, "tokenizer.ggml.scores", IG_GGUF_F32, n_scores);
        for (uint64_t i = 0; i < n_scores; i++) put_le(b, perhaps(r, 0xc0000000u + choose(r)), 4);
    }
    put_array(b, &n_keys, "tokenizer.ggml.merges", IG_GGUF_STRING, n_merges);
    for (int i = 0; i < n_merges; i++) put_merge(b, r);
    put_role(b, r, &n_keys, "tokenizer.ggml.bos_token_id");
    put_role(b, r, &n_keys, "tokenizer.ggml.eos_token_id");
    put_role(b, r, &n_keys, "tokenizer.ggml.eot_token_id");
    put_role(b, r, &n_keys, "tokenizer.ggml.unknown_token_id");
    if (how & 16) {
        put_key(b, &n_keys, "tokenizer.ggml.add_bos_token", IG_GGUF_BOOL);
        put_le(b, choose(r) & 1, 1);
    }
    if (how & 32) {
        put_key(b, &n_keys, "tokenizer.ggml.add_space_prefix", IG_GGUF_BOOL);
        put_le(b, choose(r) & 1, 1);
    }
    return n_keys;
}

static ig_status encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text, ig_encode_options opt,
                        ig_tokens *out) {
    ig_err err = {0};
    ig_status st = ig_tokenizer_encode(t, s, text, opt, out, &err);
    bool valid = ig_slice_utf8_valid(text, NULL);
    ig_assert(valid ? st == IG_OK || st == IG_ELIMIT : st == IG_EINVAL);
    for (size_t i = 0; i < out->n; i++) ig_assert(out->v[i] < ig_tokenizer_n_vocab(t));
    return st;
}

static void check_decode(const ig_tokenizer *t, const ig_tokens *ids) {
    ig_detok d = ig_detok_init(t);
    ig_buf out = ig_buf_init(1 << 26);
    for (size_t i = 0; i < ids->n; i++) {
        ig_assert(ig_detok_add(&d, ids->v[i], &out));
        ig_assert(ig_slice_utf8_valid((ig_slice){out.p, out.n}, NULL));
    }
    ig_assert(ig_detok_finish(&d, &out));
    ig_buf_free(&out);
}

static void use(const ig_tokenizer *t, ig_slice text) {
    static ig_tokenizer_scratch *s; /* keeps what words of other vocabularies left in it */
    ig_tokens used = {0}, fresh = {0}, whole = {0};
    if (!s) s = ig_tokenizer_scratch_make();
    if (!encode(t, s, text, (ig_encode_options){0}, &used) &&
        !encode(t, NULL, text, (ig_encode_options){0}, &fresh))
        ig_assert(used.n == fresh.n && (used.n == 0 || memcmp(used.v, fresh.v, used.n * sizeof *used.v) == 0));
    (void)encode(t, s, text, (ig_encode_options){.parse_special = true, .add_bos = true}, &whole);
    check_decode(t, &used);
    check_decode(t, &whole);
    ig_tokens_free(&used);
    ig_tokens_free(&fresh);
    ig_tokens_free(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    static char path[40];
    recipe r = {p, n};
    ig_gguf *g = NULL;
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    ig_buf keys = ig_buf_init(1 << 20), b = ig_buf_init(1 << 20);
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    const int n_keys = put_keys(&keys, &r);
    ig_buf_add(&b, "GGUF", 4);
    put_le(&b, 3, 4);
    put_le(&b, 0, 8);
    put_le(&b, (uint64_t)n_keys, 8);
    ig_buf_add(&b, keys.p, keys.n);
    ig_assert(ftruncate(fd, 0) == 0 && pwrite(fd, b.p, b.n, 0) == (ssize_t)b.n);
    if (ig_gguf_open(&g, path, &err) == IG_OK) { /* names that are no UTF-8 do not open */
        if (ig_tokenizer_from_gguf(&t, g, &err) == IG_OK) use(t, (ig_slice){(const char *)r.p, r.n});
        else ig_assert(err.msg[0] && !t);
        ig_tokenizer_free(t);
        ig_gguf_close(g);
    }
    ig_buf_free(&keys);
    ig_buf_free(&b);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
