/* Who may call, and where a path leads. */
#include <string.h>

#include "base/test.h"
#include "serve/inside.h"

TEST(only_our_names_pass_as_host) {
    static const char *const good[] = {
        "localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:80"};
    static const char *const bad[] = {
        "", ":80", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhost:80:80", "localhost:x", "[::1", "[::1]x", "127.0.0.2", "0.0.0.0",
        "localhost@evil.example", "192.168.0.1", "localhost."};
    static const char *const more[] = {"box.lan", NULL}, *const any[] = {"*", NULL};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(ig_serve_host_allowed(good[i], "127.0.0.1", NULL), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!ig_serve_host_allowed(bad[i], "127.0.0.1", NULL), "%s", bad[i]);
    CHECK(ig_serve_host_allowed("box.lan:9", "127.0.0.1", more) &&
          !ig_serve_host_allowed("box.lan.x", "127.0.0.1", more));
    CHECK(ig_serve_host_allowed("evil.example", "127.0.0.1", any));
    CHECK(ig_serve_host_allowed("192.168.0.1:80", "0.0.0.0", NULL) &&
          !ig_serve_host_allowed("evil.example", "0.0.0.0", NULL));
    CHECK(ig_serve_host_allowed("10.0.0.1", "10.0.0.1", NULL));
}

TEST(loopback_is_told_from_the_rest) {
    CHECK(ig_serve_host_is_loopback("127.0.0.1") && ig_serve_host_is_loopback("127.9.9.9") &&
          ig_serve_host_is_loopback("::1"));
    CHECK(ig_serve_host_is_loopback("localhost") && !ig_serve_host_is_loopback("0.0.0.0") &&
          !ig_serve_host_is_loopback("::"));
    CHECK(!ig_serve_host_is_loopback("example.org") && !ig_serve_host_is_loopback("10.0.0.1"));
}

TEST(origins_are_none_same_listed_or_foreign) {
    static const char *const listed[] = {"https://ok.example", NULL}, *const any[] = {"*", NULL};
    CHECK(ig_serve_origin_of(NULL, "localhost", NULL, NULL) == IG_ORIGIN_NONE);
    CHECK(ig_serve_origin_of(NULL, "localhost", "same-origin", NULL) == IG_ORIGIN_NONE);
    CHECK(ig_serve_origin_of(NULL, "localhost", "cross-site", NULL) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("http://localhost:80", "localhost:80", NULL, NULL) == IG_ORIGIN_SAME);
    CHECK(ig_serve_origin_of("http://localhost:81", "localhost:80", NULL, NULL) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("http://localhost:80", "localhost:80", "cross-site", NULL) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("https://ok.example", "localhost", "cross-site", listed) == IG_ORIGIN_LISTED);
    CHECK(ig_serve_origin_of("http://ok.example", "localhost", NULL, listed) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("https://ok.example.evil", "localhost", NULL, listed) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("null", "localhost", NULL, listed) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("null", "null", NULL, NULL) == IG_ORIGIN_FOREIGN);
    CHECK(ig_serve_origin_of("https://evil.example", "localhost", NULL, any) == IG_ORIGIN_LISTED);
}

TEST(a_key_passes_whole_or_not_at_all) {
    static const char *const keys[] = {"sekret", "other", NULL}, *const none[] = {NULL},
                             *const empty[] = {"", NULL};
    CHECK(ig_serve_key_allowed(NULL, NULL, NULL) && ig_serve_key_allowed(none, NULL, NULL));
    CHECK(ig_serve_key_allowed(keys, "Bearer sekret", NULL) &&
          ig_serve_key_allowed(keys, "bearer  other", NULL));
    CHECK(ig_serve_key_allowed(keys, NULL, "sekret") && ig_serve_key_allowed(keys, "Basic x", "other"));
    static const char *const bad[] = {
        "Bearer sekre", "Bearer sekrett", "Bearer ", "Bearer", "sekret", "Bearer sekretsekret",
        "Bearer SEKRET", NULL};
    for (size_t i = 0; bad[i]; i++) CHECK_MSG(!ig_serve_key_allowed(keys, bad[i], NULL), "%s", bad[i]);
    CHECK(!ig_serve_key_allowed(keys, NULL, NULL) && !ig_serve_key_allowed(empty, "Bearer ", ""));
}

TEST(request_ids_are_echoed_only_when_harmless) {
    CHECK(ig_serve_request_id_valid("a") && ig_serve_request_id_valid("A.b_c-9"));
    CHECK(!ig_serve_request_id_valid("") && !ig_serve_request_id_valid("a b") &&
          !ig_serve_request_id_valid("a\r\nb") && !ig_serve_request_id_valid("\xc3\xa9"));
    CHECK(ig_serve_request_id_valid("0123456789012345678901234567890123456789012345678901234567890123"));
    CHECK(!ig_serve_request_id_valid("01234567890123456789012345678901234567890123456789012345678901234"));
}

TEST(paths_lead_to_routes) {
    const char *arg;
    const ig_serve_route *r = ig_serve_route_find("/v1/chat/completions", &arg);
    CHECK(r && r->methods == IG_POST && r->kind == IG_SERVE_CHAT);
    CHECK(ig_serve_route_find("/chat/completions/", &arg) &&
          ig_serve_route_find("/chat/completions", &arg)->kind == IG_SERVE_CHAT);
    CHECK(ig_serve_route_find("/v1/models/", &arg) && !arg);
    r = ig_serve_route_find("/v1/models/org/name", &arg);
    CHECK(r && r->is_prefix && arg && !strcmp(arg, "org/name"));
    CHECK(ig_serve_route_find("/", &arg) && ig_serve_route_find("//", &arg));
    static const char *const none[] = {
        "", "/v1/chat", "/v1/chat/completionsx", "/v2/models", "/health/x", "/..", "/V1/models", NULL};
    for (size_t i = 0; none[i]; i++) CHECK_MSG(!ig_serve_route_find(none[i], &arg), "%s", none[i]);
}

TEST(connections_fit_the_limit_of_open_files_or_none_is_served) {
    for (int limit = 0; limit < 4000; limit++)
        for (int wanted = 1; wanted <= 1024; wanted = wanted * 3 + 1) {
            ig_serve_room r = ig_serve_room_for((uint64_t)limit, wanted);
            CHECK(r.connections >= 0 && r.connections <= wanted && (r.connections > 0) == (limit >= 64));
            if (!r.connections) continue;
            CHECK(2 * (r.connections + r.spare) + r.linger + 32 <= limit && r.spare > 0 && r.linger > 0);
        }
    ig_serve_room r = ig_serve_room_for(UINT64_MAX, 512);
    CHECK(r.connections == 512 && r.spare == 64 && r.linger == 256);
    CHECK(ig_serve_room_for(1024, 512).connections >= 200); /* the usual limit of a shell */
    CHECK(ig_serve_room_for(16, 512).connections == 0);
}

TEST(a_request_is_cancelled_under_either_path) {
    const char *arg;
    char allow[64];
    CHECK(ig_serve_method("DELETE") == IG_DELETE);
    const ig_serve_route *r = ig_serve_route_find("/api/requests/chatcmpl-1", &arg);
    CHECK(r && r->methods == IG_DELETE && !strcmp(arg, "chatcmpl-1") && !r->open);
    ig_serve_allow_header(r, allow, sizeof allow);
    CHECK(!strcmp(allow, "DELETE, OPTIONS"));
    CHECK(ig_serve_route_find("/v1/requests/x", &arg) && ig_serve_route_find("/v1/requests/", &arg)->run);
    CHECK(ig_serve_route_find("/v1/requests", &arg)->methods == (IG_GET | IG_HEAD) && !arg);
}
