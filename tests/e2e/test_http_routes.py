"""Routes, methods, headers: who may call, what is refused, and what state the connection is left in."""
import json

import pytest

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0}).encode()
CHAT = "/v1/chat/completions"


def error(answer):
    assert answer.headers["content-type"] == "application/json"
    e = answer.json()["error"]
    assert set(e) >= {"message", "type", "param", "code"} and e["message"]
    return e


def test_health_is_exact(server):
    a = server.request("GET", "/health")
    assert (a.status, a.body, a.closed) == (200, b'{"status": "ok"}', False)


@pytest.mark.parametrize("path", ["/health", "/", "/v1", "/stats", "/v1/models", "/v1/models/", "/health?x=1", "/v1/models?beta=true"])
def test_get_and_head_agree(server, path):
    got, head = server.request("GET", path), server.request("HEAD", path)
    assert got.status == head.status == 200 and got.body and not head.body
    assert got.headers["content-type"] == head.headers["content-type"]
    assert got.headers["x-request-id"] and got.headers["x-content-type-options"] == "nosniff"


def test_models_list_and_one(server):
    models = server.get("/v1/models").json()
    assert models["object"] == "list" and len(models["data"]) == 1
    m = models["data"][0]
    assert m["object"] == "model" and m["loaded"] is True and m["context_window"] > 0 and m["created"] > 0
    assert server.get("/v1/models/" + m["id"]).json() == m
    a = server.get("/v1/models/no%2Fsuch")
    assert a.status_code == 404 and a.json()["error"]["code"] == "model_not_found"
    assert m["chat_template"] is True


def test_a_base_model_says_that_it_has_no_template_and_completes(start_server, base_model, tmp_path):
    base = start_server(model=base_model)
    assert base.get("/v1/models").json()["data"][0]["chat_template"] is False
    assert base.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 2}).json()["usage"]["completion_tokens"] == 2
    refused = base.chat(max_tokens=2)
    assert refused.status_code == 400 and "--chat-template" in refused.json()["error"]["message"]
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    given = start_server("--chat-template", str(template), model=base_model)
    assert given.get("/v1/models").json()["data"][0]["chat_template"] is True
    assert given.chat(max_tokens=2).status_code == 200


def test_v1_lists_what_is_there(server):
    v1 = server.get("/v1").json()
    assert v1["name"] == "ingle" and v1["version"] and "POST /v1/chat/completions" in v1["endpoints"]


def test_stats_have_the_promised_members(server):
    st = server.stats()
    for name in ("server", "prompt_cache", "kv", "admission", "batch", "adapters", "last"):
        assert name in st
    assert st["batch"]["configured"] >= 1 and st["kv"]["blocks_total"] > 0


def test_activations_of_16_bits_are_other_numbers_and_the_same_ones_from_the_cache(start_server):
    numbers, prints = [], set()
    for bits in ("16", "8"):
        s = start_server("--act-bits", bits, "--ctx", "512", "--batch", "2")
        for time in range(2):
            got = s.chat(max_tokens=12, temperature=0, logprobs=True).json()
            assert (got["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == (time == 1)
            numbers.append([t["logprob"] for t in got["choices"][0]["logprobs"]["content"]])
            prints.add(got["system_fingerprint"])
    assert numbers[0] == numbers[1] and numbers[2] == numbers[3] and numbers[0] != numbers[2]
    assert len(prints) == 2


def test_with_keys_and_values_of_8_bits_the_same_memory_holds_more_of_them(start_server):
    blocks, texts, prints = [], [], set()
    for bits in ("16", "8"):
        s = start_server("--kv-bits", bits, "--kv-budget", "64Mi", "--ctx", "512", "--batch", "2")
        blocks.append(s.stats()["kv"]["blocks_total"])
        for time in range(2):  # the second from the cache of the first
            got = s.chat(max_tokens=12, temperature=0).json()
            texts.append(got["choices"][0]["message"]["content"])
            prints.add(got["system_fingerprint"])
            assert (got["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == (time == 1)
    assert 1.7 < blocks[1] / blocks[0] < 1.8
    assert texts[0] == texts[1] and texts[2] == texts[3] and texts[2]
    assert len(prints) == 2  # other numbers


def test_the_page_is_cached_and_zipped_and_bound_to_this_origin(server):
    a = server.request("GET", "/", [("Accept-Encoding", "identity")])
    assert a.headers["content-type"].startswith("text/html") and b"<html" in a.body.lower()
    policy = dict(part.strip().split(" ", 1) for part in a.headers["content-security-policy"].split(";"))
    assert policy["default-src"] in ("'none'", "'self'") and policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'" and "unsafe-inline" not in policy["script-src"]
    zipped = server.get("/")
    assert zipped.headers["content-encoding"] == "gzip" and zipped.content == a.body
    again = server.request("GET", "/", [("If-None-Match", a.headers["etag"])])
    assert again.status == 304 and not again.body


# name, request, status, code, does the connection stay
REFUSED = [
    ("unknown path", ("GET", "/nope"), 404, "not_found", True),
    ("unknown path with a body", ("POST", "/nope", [], BODY), 404, "not_found", True),
    ("method", ("DELETE", "/v1/models"), 405, "method_not_allowed", True),
    ("method of a post route", ("GET", CHAT), 405, "method_not_allowed", True),
    ("odd method", ("BREW", "/health"), 405, "method_not_allowed", True),
    ("no length", ("POST", CHAT), 411, "length_required", True),
    ("empty body", ("POST", CHAT, [], b""), 400, "invalid_json", True),
    ("too large, said in advance", ("POST", CHAT, [("Content-Length", "99999999999")]), 413, "request_too_large", False),
    ("path too long", ("GET", "/" + "a" * 9000), 414, "uri_too_long", True),
    ("headers too large", ("GET", "/health", [("X-Big", "a" * 70000)]), 431, "headers_too_large", True),
    ("length and coding", ("POST", CHAT, [("Content-Length", "5"), ("Transfer-Encoding", "chunked")], b"0\r\n\r\n"),
     400, "invalid_request", False),
    ("two lengths", ("POST", CHAT, [("Content-Length", "5"), ("Content-Length", "5")], b"abcde"), 400, "invalid_request", False),
    ("coding that is not chunked", ("POST", CHAT, [("Transfer-Encoding", "gzip")], b"abc"), 400, "invalid_request", False),
    ("odd header name", ("POST", CHAT, [("Content-Length ", "5")], b"abcde"), 400, "invalid_request", False),
    ("two hosts", ("GET", "/health", [("Host", "127.0.0.1"), ("Host", "evil.example")]), 400, "invalid_request", False),
    ("foreign host", ("GET", "/health", [("Host", "evil.example")]), 403, "host_not_allowed", True),
    ("cut path", ("GET", "/health%00x"), 404, "not_found", True),
]


@pytest.mark.parametrize("what", REFUSED, ids=[r[0] for r in REFUSED])
def test_refusals(server, what):
    _, request, status, code, stays = what
    a = server.request(*request)
    assert (a.status, error(a)["code"]) == (status, code)
    assert a.closed != stays
    if status == 405:
        assert a.headers["allow"]


# These the HTTP library answers by itself; the body is made ours (src/serve/mhd_errors.c).
BROKEN = [
    (b"GARBAGE\r\n\r\n", 400), (b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 505), (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nabcde", 400),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5x\r\n\r\nabcde", 400),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\na", 413),
    (b"GET /" + b"a" * 1000000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1000000 + b"\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(10000)) + b"\r\n", 431),
]


CODES = {400: ["invalid_request"], 413: ["request_too_large"], 414: ["uri_too_long"], 431: ["headers_too_large"],
         505: ["http_version_not_supported"]}


@pytest.mark.parametrize("data,status", BROKEN, ids=range(len(BROKEN)))
def test_broken_requests_get_a_status_and_a_close(server, canary, data, status):
    a = server.raw(data, until_close=True)
    if a is not None:  # else the connection was reset before the answer was read
        assert a.status == status and a.closed and error(a)["code"] in CODES[status] and a.headers["x-request-id"]
    else:
        assert len(data) > 60000 or b" HTTP/" not in data  # what is no request line at all is closed without a word
    assert server.alive()


def test_a_length_of_any_size_is_refused_before_the_body(server):
    for length in ("18446744073709551615", "18446744073709551614", "9223372036854775808", "4294967296"):
        a = server.request("POST", CHAT, [("Content-Length", length)], until_close=True)
        assert (a.status, error(a)["code"], a.closed) == (413, "request_too_large", True), length


HOSTS = [("localhost", 200), ("LOCALHOST:99", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("evil.example", 403),
         ("127.0.0.1.evil.example", 403), ("localhost.evil.example:80", 403), ("192.168.1.1", 403), ("", 403)]


@pytest.mark.parametrize("host,status", HOSTS)
def test_host_is_checked_on_every_route(server, host, status):
    assert server.request("GET", "/health", [("Host", host)]).status == status
    assert server.request("OPTIONS", "/v1/models", [("Host", host)]).status == (204 if status == 200 else 403)


@pytest.fixture(scope="module")
def guarded():
    from conftest import Server
    s = Server("--api-key", "sekret", "--cors-origin", "https://ok.example", "--allowed-host", "box.lan")
    yield s
    s.stop()


JSON = ("Content-Type", "application/json")
KEY = ("Authorization", "Bearer sekret")


def test_origin_matrix(server, guarded):
    own = f"http://127.0.0.1:{server.port}"
    for origin, status in [(own, 200), ("http://evil.example", 403), ("null", 403), (f"http://127.0.0.1:{server.port + 1}", 403),
                           ("https://ok.example", 403)]:
        a = server.request("POST", CHAT, [("Origin", origin), JSON], BODY)
        assert a.status == status, origin
        assert "access-control-allow-origin" not in a.headers
    a = server.request("POST", CHAT, [("Sec-Fetch-Site", "cross-site")], BODY)
    assert (a.status, error(a)["code"]) == (403, "origin_not_allowed")
    a = server.request("GET", "/v1/models", [("Origin", "http://evil.example")])
    assert a.status == 200 and "access-control-allow-origin" not in a.headers  # and so the page cannot read it
    assert server.request("OPTIONS", CHAT, [("Origin", "http://evil.example")]).status == 403

    listed = [("Origin", "https://ok.example"), KEY, JSON]
    a = guarded.request("POST", CHAT, listed, BODY)
    assert a.status == 200 and a.headers["access-control-allow-origin"] == "https://ok.example"
    assert "access-control-allow-credentials" not in a.headers and "x-ingle-seed" in a.headers["access-control-expose-headers"]
    a = guarded.request("OPTIONS", CHAT, [("Origin", "https://ok.example"), ("Access-Control-Request-Headers", "x-a, content-type")])
    assert a.status == 204 and a.headers["access-control-allow-headers"] == "x-a, content-type"
    assert a.headers["access-control-max-age"] == "600" and "POST" in a.headers["access-control-allow-methods"]
    a = guarded.request("POST", CHAT, [("Origin", "https://not.example"), KEY, JSON], BODY)
    assert a.status == 403


def test_a_page_must_send_json(server):
    own = ("Origin", f"http://127.0.0.1:{server.port}")
    a = server.request("POST", CHAT, [own, ("Content-Type", "text/plain")], BODY)
    assert (a.status, error(a)["code"]) == (415, "unsupported_media_type")
    assert server.request("POST", CHAT, [own, ("Content-Type", "application/json; charset=utf-8")], BODY).status == 200
    assert server.request("POST", CHAT, [("Content-Type", "application/x-www-form-urlencoded")], BODY).status == 200


def test_keys(guarded):
    for headers in ([], [("Authorization", "Bearer wrong")], [("Authorization", "Bearer sekre")], [("x-api-key", "Sekret")],
                    [("Authorization", "sekret")]):
        for method, path, body in (("GET", "/v1/models", None), ("GET", "/stats", None), ("POST", CHAT, BODY)):
            a = guarded.request(method, path, headers, body)
            assert (a.status, error(a)["code"], a.headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    for headers in ([KEY], [("x-api-key", "sekret")], [("authorization", "bearer sekret")]):
        assert guarded.request("GET", "/v1/models", headers).status == 200
    assert guarded.request("GET", "/health").status == guarded.request("GET", "/").status == 200
    assert guarded.request("OPTIONS", "/v1/models").status == 204
    assert guarded.request("GET", "/health", [("Host", "box.lan:80")]).status == 200
    assert not any("sekret" in line for line in guarded.log)


def test_request_ids_are_echoed_or_made(server):
    assert server.request("GET", "/health", [("x-request-id", "Abc-1.2_3")]).headers["x-request-id"] == "Abc-1.2_3"
    for bad in ("a b", "x" * 65, "a;b", ""):
        made = server.request("GET", "/health", [("x-request-id", bad)]).headers["x-request-id"]
        assert made != bad and made.startswith("req-")


def test_aliases_without_v1_and_absolute_paths(server):
    assert server.request("POST", "/chat/completions", [], BODY).status == 200
    assert server.request("POST", "/completions", [], b'{"prompt":"a","max_tokens":1}').status == 200
    assert server.request("POST", CHAT + "/?x=1", [], BODY).status == 200
    assert server.request("GET", f"http://127.0.0.1:{server.port}/health").status == 200


def test_pipelined_requests_are_answered_in_order(server):
    one = f"GET /health HTTP/1.1\r\nHost: localhost\r\nx-request-id: %s\r\n\r\n"
    post = (f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nx-request-id: p\r\nContent-Length: {len(BODY)}\r\n\r\n").encode() + BODY
    data = (one % "a").encode() + post + (one % "b").encode() * 3 + (one % "c").replace("/health", "/v1/models").encode()
    from conftest import parse_answer
    with server.connect() as s:
        s.sendall(data)
        got, ids = b"", []
        while len(ids) < 6:
            answer = parse_answer(got, False)
            if answer:
                ids.append((answer.headers["x-request-id"], answer.status))
                got = answer.rest
            else:
                more = s.recv(65536)
                assert more, ids
                got += more
    assert ids == [("a", 200), ("p", 200), ("b", 200), ("b", 200), ("b", 200), ("c", 200)]


def test_http_1_0_and_expect_continue_and_chunked_bodies(server):
    a = server.request("GET", "/health", version="1.0", host=False)
    assert a.status == 200 and a.closed
    a = server.request("GET", "/health", [("Connection", "keep-alive")], version="1.0", host=False)
    assert a.status == 200 and not a.closed
    a = server.request("POST", CHAT, version="1.0", body=BODY.replace(b"{", b'{"stream":true,', 1), until_close=True)
    assert a.status == 200 and a.body.endswith(b"data: [DONE]\n\n") and "transfer-encoding" not in a.headers
    a = server.request("POST", CHAT, [("Expect", "100-continue")], BODY)
    assert a.status == 100
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(BODY[i:i + 7]), BODY[i:i + 7]) for i in range(0, len(BODY), 7)) + b"0\r\n\r\n"
    a = server.request("POST", CHAT, [("Transfer-Encoding", "chunked")], chunks)
    assert a.status == 200 and not a.closed
    a = server.request("GET", "/health", [], b"a body that nobody needs")
    assert a.status == 200 and not a.closed


def test_parameters_are_named_on_the_route_that_was_asked(server):
    a = server.post("/detokenize", {"tokens": [1, "a"]}).json()["error"]
    assert a["param"] == "tokens" and "tokens: element 1" in a["message"]
    assert server.post("/detokenize", {"tokens": [1.0, 2]}).json() == server.post("/detokenize", {"tokens": [1, 2]}).json()
    text = [server.post("/v1/completions", {"prompt": p, "max_tokens": 3, "temperature": 0}).json()["choices"] for p in ([1.0, 5], [1, 5])]
    assert text[0] == text[1]
    a = server.post("/v1/completions", {"prompt": "a", "chat_template_kwargs": {"enable_thinking": True}})
    assert a.status_code == 400 and a.json()["error"]["param"] == "chat_template_kwargs"
    a = server.post(CHAT, {"messages": [{"role": "user", "content": "a"}], "seed": 1.5}).json()["error"]
    assert a["param"] == "seed" and "18446744073709551615" in a["message"]


def test_few_open_files_mean_few_connections_or_a_clear_end(start_server):
    import resource
    import subprocess
    from conftest import model_path, program_path

    def run(limit):
        return subprocess.run([program_path(), "serve", "--port", "0", model_path()], capture_output=True, text=True, timeout=60,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    for limit in (16, 40):
        done = run(limit)
        assert done.returncode == 1 and f"may open {limit} files" in done.stderr and "64" in done.stderr, done.stderr
    server = start_server(limit_files=64)
    held = [server.connect() for _ in range(20)]

    def answers():
        a = server.request("GET", "/health")
        return a is not None and a.status == 200
    for _ in range(3):  # more than fit came at once: one may be turned away
        server.wait_until(answers, "it answers")
    for s in held:
        s.close()
    server.wait_until(lambda: server.stats()["server"]["connections"] <= 2, "they are gone")
    assert server.chat(max_tokens=1).status_code == 200


def test_a_taken_port_and_a_public_address_without_a_key_end_the_program(server):
    import subprocess
    from conftest import model_path, program_path
    done = subprocess.run([program_path(), "serve", "--port", str(server.port), model_path()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7 and str(server.port) in done.stderr
    done = subprocess.run([program_path(), "serve", "--host", "0.0.0.0", "--port", "0", model_path()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "key" in done.stderr
