/* fuzz_template: any bytes as a chat template, and as what a user says to it.
 *
 * Input: the template, a zero byte, the content of a message. Whatever renders is valid UTF-8; the places
 * told to be plain ascend, lie inside it and hold the text of a control token; a failure says why. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static ig_tokenizer *tokenizer(void) {
    static ig_tokenizer *t;
    static const int32_t type[] = {IG_TYPE_NORMAL, IG_TYPE_CONTROL, IG_TYPE_CONTROL, IG_TYPE_USER};
    if (t) return t;
    ig_slice token[] = {ig_slice_of("a"), ig_slice_of("<|a|>"), ig_slice_of("<|b|>"),
                        ig_slice_of("</think>")};
    ig_tokenizer_parts parts = {.model = ig_slice_of("gpt2"), .pre = ig_slice_of("gpt-2"), .tokens = token,
                                .n_tokens = 4, .types = type, .n_types = 4, .role = {1, 2, 3, 2, 1, 0}};
    ig_assert(ig_tokenizer_make(&t, &parts, NULL) == IG_OK);
    return t;
}

static void check_prompt(const ig_buf *prompt, const ig_text_range *plain, size_t n_plain) {
    size_t end = 0;
    ig_assert(ig_slice_utf8_valid((ig_slice){prompt->p, prompt->n}, NULL));
    for (size_t i = 0; i < n_plain; i++) {
        ig_assert(plain[i].from >= end && plain[i].to > plain[i].from && plain[i].to <= prompt->n);
        end = plain[i].to;
        uint32_t id = ig_tokenizer_find_special(
            tokenizer(), (ig_slice){prompt->p + plain[i].from, plain[i].to - plain[i].from});
        ig_assert(id != IG_TOKEN_NONE && ig_tokenizer_is_special(tokenizer(), id));
    }
}

static void chat(const ig_template *tpl, ig_slice content, bool continued) {
    ig_buf prompt = ig_buf_init(1 << 25);
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    ig_err err = {0};
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *messages = yyjson_mut_arr(doc), *m = yyjson_mut_arr_add_obj(doc, messages);
    yyjson_mut_doc_set_root(doc, messages);
    yyjson_mut_obj_add_str(doc, m, "role", "user");
    yyjson_mut_obj_add_strn(doc, m, "content", content.p, content.n);
    yyjson_doc *fixed = yyjson_mut_doc_imut_copy(doc, NULL);
    ig_chat_input in = {.messages = yyjson_doc_get_root(fixed), .continue_final = continued,
                        .add_generation_prompt = !continued, .now_s = 1795995000};
    if (ig_chat_render(tpl, tokenizer(), &in, &prompt, &plain, &n_plain, &err) == IG_OK)
        check_prompt(&prompt, plain, n_plain);
    else
        ig_assert(err.msg[0] && prompt.n == 0 && !plain);
    free(plain);
    ig_buf_free(&prompt);
    yyjson_doc_free(fixed);
    yyjson_mut_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    const uint8_t *zero = n ? memchr(p, 0, n) : NULL;
    ig_slice source = {(const char *)p, zero ? (size_t)(zero - p) : n}, content = {"", 0};
    ig_template *tpl = NULL;
    ig_err err = {0};
    if (zero) content = (ig_slice){(const char *)zero + 1, n - source.n - 1};
    if (!ig_slice_utf8_valid(content, NULL)) return 0;
    if (ig_template_make(&tpl, source, &err) != IG_OK) {
        ig_assert(err.msg[0] && !tpl);
        return 0;
    }
    chat(tpl, content, false);
    chat(tpl, content, true);
    ig_template_free(tpl);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
