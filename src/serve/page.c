/* page: the chat page, put into the binary by the build.
 * Owns:    nothing: the bytes are constants.
 * Threads: net.
 * The page may run its own inline script (named by hash: a script that a model or a user wrote has another)
 * and talk to this server, and nothing else: that is the policy below. */
#include <string.h>

#include "gen/page.h"
#include "serve/inside.h"

static bool accepts_gzip(ig_serve_conn *c) {
    const char *accept = ig_serve_header(c, "Accept-Encoding");
    const char *at = accept ? strstr(accept, "gzip") : NULL;
    return at && strncmp(at + 4, ";q=0", 4) != 0;
}

enum MHD_Result ig_serve_get_page(ig_serve_conn *c) {
    const char *known = ig_serve_header(c, "If-None-Match");
    bool same = known && strstr(known, PAGE_ETAG);
    bool zipped = !same && accepts_gzip(c);
    struct MHD_Response *r =
        same     ? MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT)
        : zipped ? MHD_create_response_from_buffer(sizeof page_gzip, (void *)(uintptr_t)page_gzip,
                                                   MHD_RESPMEM_PERSISTENT)
                 : MHD_create_response_from_buffer(sizeof page_bytes, (void *)(uintptr_t)page_bytes,
                                                   MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    ig_serve_put_header(r, "Content-Type", "text/html; charset=utf-8");
    if (zipped) ig_serve_put_header(r, "Content-Encoding", "gzip");
    ig_serve_put_header(r, "Vary", "Accept-Encoding");
    ig_serve_put_header(r, "ETag", PAGE_ETAG);
    ig_serve_put_header(r, "Cache-Control", "no-cache");
    ig_serve_put_header(
        r, "Content-Security-Policy",
        "default-src 'none'; script-src " PAGE_SCRIPT_CSP "; style-src " PAGE_STYLE_CSP
        "; connect-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'");
    ig_serve_put_header(r, "Referrer-Policy", "no-referrer");
    return ig_serve_send(c, same ? 304 : 200, r);
}
