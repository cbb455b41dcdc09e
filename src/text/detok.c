/* detok: ids to text as they come, never half a character.
 * Owns:    nothing; the state is a value of the caller.
 * Threads: one decoder, one thread.
 * Memory:  appends to the caller's buffer.
 * Why bytes are held and not ids: a character is at most four bytes, however many tokens it came in, so
 * the cost of a token follows its own bytes and never the text before it. */
#include "text/inside.h"

#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Appends the characters of s; what is left at the end (a begun character) goes to held. */
static bool add_bytes(ig_detok *d, const uint8_t *s, size_t n, ig_buf *out) {
    size_t from = 0, at = 0; /* [from, at) is whole and not yet appended */
    while (at < n) {
        size_t len;
        ig_utf8_kind kind = ig_utf8_next(s + at, n - at, &len);
        if (kind == IG_UTF8_WHOLE) {
            at += len;
            continue;
        }
        if (at > from && !ig_buf_add(out, s + from, at - from)) return false;
        from = at;
        if (kind == IG_UTF8_PARTIAL) {
            d->n_held = (int)(n - at);
            memcpy(d->held, s + at, n - at);
            return true;
        }
        if (!ig_buf_add(out, replacement, sizeof replacement - 1)) return false;
        from = at += len;
    }
    return at == from || ig_buf_add(out, s + from, at - from);
}

static bool add(ig_detok *d, const uint8_t *s, size_t n, ig_buf *out) {

    /* Feed the begun character byte by byte until it is whole or broken: at most three bytes. */
    while (d->n_held > 0 && n > 0) {
        uint8_t seam[4];
        size_t n_seam = (size_t)d->n_held, len;
        memcpy(seam, d->held, n_seam);
        seam[n_seam] = *s;
        ig_utf8_kind kind = ig_utf8_next(seam, n_seam + 1, &len);
        if (kind == IG_UTF8_BROKEN) { /* the held bytes are a maximal subpart; *s starts anew */
            if (!ig_buf_add(out, replacement, sizeof replacement - 1)) return false;
            d->n_held = 0;
            break;
        }
        s++;
        n--;
        if (kind == IG_UTF8_WHOLE) {
            if (!ig_buf_add(out, seam, len)) return false;
            d->n_held = 0;
        } else {
            d->held[d->n_held++] = seam[n_seam];
        }
    }
    return n == 0 || add_bytes(d, s, n, out);
}

bool ig_detok_add(ig_detok *d, uint32_t id, ig_buf *out) {
    if (ig_tokenizer_is_special(d->t, id) && !d->show_special) return true;
    ig_slice bytes = ig_tokenizer_bytes(d->t, id);
    const char *s = bytes.p, *end = bytes.p + bytes.n;
    if (!d->begun) { /* the beginning of the text: blanks may be dropped */
        const ig_decoder *decoder = ig_tokenizer_decoder(d->t);
        d->begun = true;
        d->n_strip = decoder->n_strip;
        if (decoder->first_strips) {
            for (const char *at = s; at < end; at++) {
                if (*at != ' ') continue;
                if (!add(d, (const uint8_t *)s, (size_t)(at - s), out)) return false;
                s = at + 1;
            }
        }
    }
    while (d->n_strip > 0 && s < end) {
        if (*s == ' ') s++, d->n_strip--;
        else d->n_strip = 0;
    }
    return add(d, (const uint8_t *)s, (size_t)(end - s), out);
}

bool ig_detok_finish(ig_detok *d, ig_buf *out) {
    if (d->n_held == 0) return true;
    d->n_held = 0;
    return ig_buf_add(out, replacement, sizeof replacement - 1);
}
