/* fuzz_tokenizer_json: any bytes as a tokenizer.json, and a text for it.
 *
 * Input: the file, a zero byte, the text. Whatever loads must encode any text, or refuse it for its length of
 * time or size, the same way with a used scratch and with a fresh one; give ids of its vocabulary; give no
 * control token but the unknown one where none was asked for; decode its ids to UTF-8, in any steps. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static bool same(const ig_tokens *a, const ig_tokens *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->v, b->v, a->n * sizeof *a->v) == 0);
}

static ig_status encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text, ig_encode_options opt,
                        ig_tokens *out) {
    ig_err err = {0};
    ig_status st = ig_tokenizer_encode(t, s, text, opt, out, &err);
    bool valid = ig_slice_utf8_valid(text, NULL);
    ig_assert(valid ? st == IG_OK || st == IG_ELIMIT : st == IG_EINVAL);
    ig_assert(st == IG_OK || (err.msg[0] && out->n == 0));
    for (size_t i = 0; i < out->n; i++) ig_assert(out->v[i] < ig_tokenizer_n_vocab(t));
    return st;
}

static void check_decode(const ig_tokenizer *t, const ig_tokens *ids) {
    ig_detok d = ig_detok_init(t);
    ig_buf out = ig_buf_init(1 << 26);
    for (size_t i = 0; i < ids->n; i++) {
        ig_assert(ig_detok_add(&d, ids->v[i], &out));
        ig_assert(ig_slice_utf8_valid((ig_slice){out.p, out.n}, NULL) && d.n_held <= 3);
    }
    ig_assert(ig_detok_finish(&d, &out));
    ig_buf_free(&out);
}

static void use(const ig_tokenizer *t, ig_slice text) {
    static ig_tokenizer_scratch *s; /* keeps what words of other vocabularies left in it */
    ig_tokens plain = {0}, fresh = {0}, whole = {0};
    if (!s) s = ig_tokenizer_scratch_make();
    ig_status st = encode(t, s, text, (ig_encode_options){0}, &plain);
    if (!st) {
        uint32_t unk = ig_tokenizer_role(t, IG_ROLE_UNK);
        for (size_t i = 0; i < plain.n; i++)
            ig_assert(!ig_tokenizer_is_special(t, plain.v[i]) || plain.v[i] == unk);
        if (!encode(t, NULL, text, (ig_encode_options){0}, &fresh)) ig_assert(same(&plain, &fresh));
        (void)encode(t, s, text, (ig_encode_options){.parse_special = true, .add_bos = true}, &whole);
        check_decode(t, &plain);
        check_decode(t, &whole);
    }
    ig_tokens_free(&plain);
    ig_tokens_free(&fresh);
    ig_tokens_free(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const ig_tokenizer_facts facts = {.bos = {"<s>", 3}, .eos = {"</s>", 4}, .add_bos = 1};
    const uint8_t *zero = n ? memchr(p, 0, n) : NULL;
    size_t n_json = zero ? (size_t)(zero - p) : n;
    ig_slice text = zero ? (ig_slice){(const char *)zero + 1, n - n_json - 1} : (ig_slice){"", 0};
    yyjson_doc *doc = NULL;
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    if (ig_json_parse(&doc, (const char *)p, n_json, (ig_json_limits){1 << 26, 64}, &err) != IG_OK) return 0;
    if (ig_tokenizer_from_json(&t, yyjson_doc_get_root(doc), &facts, &err) == IG_OK) {
        yyjson_doc_free(doc);
        doc = NULL;
        use(t, text);
        ig_tokenizer_free(t);
    } else {
        ig_assert(err.msg[0] && !t);
    }
    yyjson_doc_free(doc);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
