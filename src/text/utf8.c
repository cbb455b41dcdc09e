/* utf8: one step through bytes that may or may not be UTF-8, by the well-formed sequences of Unicode's
 * table 3-7. Threads: any. Memory: none. */
#include "text/bpe.h"

ig_utf8_kind ig_utf8_next(const uint8_t *s, size_t n, size_t *len) {
    uint8_t lead = s[0], lo = 0x80, hi = 0xBF;
    size_t need;

    *len = 1;
    if (lead < 0x80) return IG_UTF8_WHOLE;
    if (lead < 0xC2 || lead > 0xF4) return IG_UTF8_BROKEN;
    need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* Overlong forms, surrogates and what lies past U+10FFFF differ in the second byte. */
    if (lead == 0xE0) lo = 0xA0;
    if (lead == 0xED) hi = 0x9F;
    if (lead == 0xF0) lo = 0x90;
    if (lead == 0xF4) hi = 0x8F;
    for (size_t i = 1; i < need; i++) {
        if (i == n) return IG_UTF8_PARTIAL;
        if (s[i] < lo || s[i] > hi) return IG_UTF8_BROKEN;
        lo = 0x80;
        hi = 0xBF;
        *len = i + 1;
    }
    return IG_UTF8_WHOLE;
}

uint32_t ig_utf8_before(ig_slice text, size_t at, size_t *from) {
    const uint8_t *s = (const uint8_t *)text.p;
    size_t i = at - 1;
    while (i > 0 && at - i < 4 && (s[i] & 0xC0) == 0x80) i--;
    *from = i;
    return ig_char_at(s + i, at - i);
}

bool ig_utf8_is_blank(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}
