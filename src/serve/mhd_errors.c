/* mhd_errors: what the HTTP library answers by itself, said as all our errors are said.
 * Owns:    nothing.
 * Threads: net.
 * A length that is no number, a header that is too long: libmicrohttpd answers before any callback knows of
 * the request, with a page of HTML (0.9.75 sends some with their headers twice), and has no option against
 * it. It queues that page with its own public function, which the dynamic linker looks up as everybody's: the
 * definition below comes first. It answers on the socket and refuses the page, whereupon the library closes
 * the connection. A library that is bound to itself (-Bsymbolic) would send its pages again, and no more than
 * that; tests/e2e asks for JSON. */
#include <dlfcn.h>
#include <string.h>

#include "serve/inside.h"

typedef enum MHD_Result queue_fn(struct MHD_Connection *m, unsigned int status, struct MHD_Response *r);

static _Thread_local bool ours; /* the answer on its way is our own */

enum MHD_Result ig_serve_queue(struct MHD_Connection *m, int status, struct MHD_Response *r) {
    ours = true;
    enum MHD_Result ok = MHD_queue_response(m, (unsigned)status, r);
    ours = false;
    return ok;
}

static void error_of(ig_http_error *e, unsigned status) {
    static const struct {
        unsigned status;
        const char *code, *message;
    } known[] = {
        {413, "request_too_large", "the body is too large"},
        {414, "uri_too_long", "the request line is too long"},
        {431, "headers_too_large", "the headers are too large"},
        {500, "server_error", "the server could not read this request"},
        {505, "http_version_not_supported", "only HTTP/1.0 and HTTP/1.1 are spoken here"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status) {
            ig_serve_refuse(e, known[i].code, NULL, "%s", known[i].message);
            return;
        }
    ig_serve_refuse(
        e, "invalid_request", NULL,
        "this is no whole HTTP/1.1 request: it needs a Host header, and lengths that are numbers");
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *m, unsigned int status, struct MHD_Response *r) {
    static queue_fn *library; /* net thread only */
    if (ours || status < 400) {
        void *found = library ? NULL : dlsym(RTLD_NEXT, "MHD_queue_response");
        if (found) memcpy(&library, &found, sizeof library);
        return library ? library(m, status, r) : MHD_NO;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(m, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    ig_serve_conn *c = info ? info->socket_context : NULL;
    ig_http_error e;
    if (!c || !ig_serve_phase_move(c, IG_PHASE_BUSY)) return MHD_NO;
    error_of(&e, status);
    return ig_serve_answer_raw(c, &e);
}
