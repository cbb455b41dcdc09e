#include "base/test.h"
#include "hub/hub.h"

#include <stdio.h>
#include <string.h>

#define SHA "0123456789abcdef0123456789abcdef01234567"
#define SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ONE(fields) "{\"sha\":\"" SHA "\",\"siblings\":[{" fields "}]}"

static void refuses(const char *json, const char *why) {
    ig_hub_repo r = {.n = 0};
    ig_err err = {.msg = ""};
    ig_status st = ig_hub_repo_parse(&r, json, strlen(json), &err);
    CHECK_MSG(st == IG_EFORMAT && strstr(err.msg, why) && !r.v, "%s: %s", json, err.msg);
    ig_hub_repo_clear(&r);
}

TEST(a_list_of_files_is_read_and_sorted) {
    static const char json[] = "{\"id\":\"o/n\",\"sha\":\"" SHA "\",\"siblings\":["
                               "{\"rfilename\":\"m.safetensors\",\"size\":134,\"blobId\":\"" SHA
                               "\",\"lfs\":{\"sha256\":\"" SHA256 "\",\"size\":5000000000}},"
                               "{\"rfilename\":\"config.json\",\"size\":10,\"blobId\":\"" SHA "\"}]}";
    ig_hub_repo r;
    ig_err err = {.msg = ""};
    if (!CHECK_MSG(!ig_hub_repo_parse(&r, json, sizeof json - 1, &err), "%s", err.msg)) return;
    CHECK(r.n == 2 && strcmp(r.commit, SHA) == 0);
    CHECK(strcmp(r.v[0].path, "config.json") == 0 && r.v[0].bytes == 10 && strcmp(r.v[0].hash, SHA) == 0);
    CHECK(strcmp(r.v[1].path, "m.safetensors") == 0 && r.v[1].bytes == 5000000000u &&
          strcmp(r.v[1].hash, SHA256) == 0);
    ig_hub_repo_clear(&r);
}

TEST(a_list_that_cannot_be_believed_is_refused_by_name) {
    refuses("{}", "commit");
    refuses("[]", "commit");
    refuses("{\"sha\":\"main\",\"siblings\":[]}", "commit");
    refuses("{\"sha\":\"" SHA "\"}", "siblings");
    refuses(ONE(""), "no path");
    refuses(ONE("\"rfilename\":7,\"size\":1,\"blobId\":\"" SHA "\""), "no path");
    refuses(ONE("\"rfilename\":\"a\\u0000b\",\"size\":1,\"blobId\":\"" SHA "\""), "no path");
    refuses(ONE("\"rfilename\":\"../a\",\"size\":1,\"blobId\":\"" SHA "\""), "no path");
    refuses(ONE("\"rfilename\":\"a\",\"size\":1"), "no checksum");
    refuses(ONE("\"rfilename\":\"a\",\"size\":1,\"blobId\":\"" SHA256 "\""), "no checksum");
    refuses(ONE("\"rfilename\":\"a\",\"lfs\":{\"sha256\":\"" SHA "\",\"size\":1}"), "no checksum");
    refuses(ONE("\"rfilename\":\"a\",\"blobId\":\"" SHA "\""), "no number of bytes");
    refuses(ONE("\"rfilename\":\"a\",\"size\":-1,\"blobId\":\"" SHA "\""), "no number of bytes");
    refuses(ONE("\"rfilename\":\"a\",\"size\":1.5,\"blobId\":\"" SHA "\""), "no number of bytes");
    refuses(ONE("\"rfilename\":\"a\",\"size\":70368744177665,\"blobId\":\"" SHA "\""), "no number of bytes");
    refuses(ONE("\"rfilename\":\"a\",\"size\":1,\"blobId\":\"" SHA
                "\"},{\"rfilename\":\"a\",\"size\":1,\"blobId\":\"" SHA "\""),
            "twice");
}

TEST(a_list_of_too_many_files_is_refused) {
    ig_buf b = ig_buf_init(64 << 20);
    ig_hub_repo r;
    ig_err err = {.msg = ""};
    ig_buf_add_str(&b, "{\"sha\":\"" SHA "\",\"siblings\":[");
    for (int i = 0; i < 100001; i++) ig_buf_add_str(&b, i ? ",{}" : "{}");
    ig_buf_add_str(&b, "]}");
    CHECK(ig_hub_repo_parse(&r, b.p, b.n, &err) == IG_ELIMIT && strstr(err.msg, "100001"));
    ig_buf_free(&b);
}
