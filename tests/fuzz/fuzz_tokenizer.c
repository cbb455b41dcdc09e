/* fuzz_tokenizer: a vocabulary and a text from the same bytes.
 *
 * Input: a byte of flags (1: the 256 letters of the byte alphabet come first; 2 to 32: which pre-tokenizer;
 * 64 and 128: gemma4, llama), a byte with the number of tokens, each as type, length, bytes; a byte with the number of merges, each as
 * length, bytes; six bytes of roles (255: none); the rest is text.
 * Whatever loads must encode any text, the same way with a used scratch and with a fresh one, give no
 * control token (but the unknown one) where none was asked for, and with all bytes in its alphabet decode to
 * what went in. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { TOKENS_MAX = 256 + 255 };

struct input {
    const uint8_t *p;
    size_t n;
};

static uint8_t take(struct input *in) {
    if (in->n == 0) return 0;
    in->n--;
    return *in->p++;
}

static ig_slice take_bytes(struct input *in, size_t n) {
    if (n > in->n) n = in->n;
    ig_slice s = {(const char *)in->p, n};
    in->p += n;
    in->n -= n;
    return s;
}

static size_t letter_of_byte(char *out, int byte) {
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int c = plain ? byte : byte < 33 ? 256 + byte : byte < 161 ? 256 + byte - 94 : 256 + 67;
    size_t n = 0;
    if (c >= 0x80) out[n++] = (char)(0xC0 | c >> 6);
    out[n++] = (char)(c < 0x80 ? c : 0x80 | (c & 63));
    return n;
}

static bool same(const ig_tokens *a, const ig_tokens *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->v, b->v, a->n * sizeof *a->v) == 0);
}

static void encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text, ig_encode_options opt,
                   ig_tokens *out) {
    ig_err err;
    ig_status st = ig_tokenizer_encode(t, s, text, opt, out, &err);
    ig_assert(st == (ig_slice_utf8_valid(text, NULL) ? IG_OK : IG_EINVAL));
}

static void check_decode(const ig_tokenizer *t, const ig_tokens *ids, ig_slice want) {
    ig_detok d = ig_detok_init(t);
    ig_buf out = ig_buf_init(1 << 24);
    d.show_special = true;
    for (size_t i = 0; i < ids->n; i++) {
        ig_assert(ig_detok_add(&d, ids->v[i], &out));
        ig_assert(ig_slice_utf8_valid((ig_slice){out.p, out.n}, NULL) && d.n_held <= 3);
    }
    ig_assert(ig_detok_finish(&d, &out));
    if (want.p) ig_assert(ig_slice_eq((ig_slice){out.p, out.n}, want));
    ig_buf_free(&out);
}

static void use(const ig_tokenizer *t, ig_slice text, bool whole_alphabet) {
    static ig_tokenizer_scratch *s; /* keeps what words of other vocabularies left in it */
    ig_tokens plain = {0}, special = {0}, held = {0}, fresh = {0};
    ig_text_range all = {0, text.n};
    if (!s) s = ig_tokenizer_scratch_make();
    encode(t, s, text, (ig_encode_options){0}, &plain);
    encode(t, NULL, text, (ig_encode_options){0}, &fresh);
    encode(t, s, text, (ig_encode_options){.parse_special = true, .add_bos = true}, &special);
    encode(t, s, text, (ig_encode_options){.parse_special = true, .plain = &all, .n_plain = 1}, &held);
    ig_assert(same(&held, &plain) && same(&fresh, &plain));
    uint32_t unknown = ig_tokenizer_role(t, IG_ROLE_UNK);
    for (size_t i = 0; i < plain.n; i++)
        ig_assert(!ig_tokenizer_is_special(t, plain.v[i]) || plain.v[i] == unknown);
    for (size_t i = 0; i < special.n; i++) ig_assert(special.v[i] < ig_tokenizer_n_vocab(t));
    bool valid = ig_slice_utf8_valid(text, NULL);
    check_decode(t, &plain, whole_alphabet && valid ? text : (ig_slice){0});
    check_decode(t, &special, (ig_slice){0});
    ig_tokens_free(&plain);
    ig_tokens_free(&special);
    ig_tokens_free(&held);
    ig_tokens_free(&fresh);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    enum { N_PRE = 9 };
    static const char *const pre[N_PRE] = {"smollm", "gpt-2",    "llama-bpe", "qwen2",  "none",
                                           "qwen35", "minicpm5", "tekken",    "default"};
    static char letter[256][2];
    static float score[TOKENS_MAX];
    static ig_slice token[TOKENS_MAX], merge[255];
    static int32_t type[TOKENS_MAX];
    struct input in = {p, n};
    ig_tokenizer *t = NULL;
    ig_err err = {0};

    uint8_t flags = take(&in);
    ig_slice name = ig_slice_of(pre[(flags >> 1 & 31) % N_PRE]);
    bool llama = flags & 128, gemma4 = !llama && flags & 64;
    ig_tokenizer_parts parts = {.model = ig_slice_of(llama ? "llama" : gemma4 ? "gemma4" : "gpt2"), .pre = name,
                                .tokens = token, .types = type, .merges = merge, .add_bos = true,
                                .add_eos = flags & 32, .add_space_prefix = flags & 2};
    for (int b = 0; (flags & 1) && b < 256; b++) {
        token[b] = (ig_slice){letter[b], letter_of_byte(letter[b], b)};
        type[b] = IG_TYPE_NORMAL;
        parts.n_tokens++;
    }
    for (uint8_t left = take(&in); left > 0; left--) {
        type[parts.n_tokens] = take(&in);
        token[parts.n_tokens++] = take_bytes(&in, take(&in));
    }
    for (uint8_t left = take(&in); left > 0; left--) merge[parts.n_merges++] = take_bytes(&in, take(&in));
    parts.n_types = parts.n_tokens;
    for (uint64_t i = 0; i < parts.n_tokens; i++) score[i] = -(float)(i * 7 % 13);
    if (llama) parts.scores = score, parts.n_scores = parts.n_tokens, parts.n_merges = 0;
    for (int i = 0; i < IG_ROLE_COUNT; i++) {
        uint8_t id = take(&in);
        parts.role[i] = id == 255 ? IG_TOKEN_NONE : id;
    }
    if (ig_tokenizer_make(&t, &parts, &err) == IG_OK) {
        bool as_is = !llama && !gemma4 && name.p != pre[3] && name.p != pre[5]; /* those two normalize */
        use(t, (ig_slice){(const char *)in.p, in.n}, (flags & 1) && as_is);
        ig_tokenizer_free(t);
    } else {
        ig_assert(err.msg[0] && !t);
    }
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
