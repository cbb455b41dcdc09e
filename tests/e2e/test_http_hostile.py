"""Bytes that mean harm. After each batch the canary must answer what it answered before."""
import json
import socket
import threading
import time

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def post(server, data, path=CHAT):
    return server.request("POST", path, [], data if isinstance(data, bytes) else data.encode())


def user(extra=""):
    return '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1' + extra + "}"


BAD_JSON = [
    b"", b"{", b"[]", b"null", b"7", b'"x"', b"{bad", b"{'a':1}", b'{"messages":}', b'{"a":1}{"b":2}', user().encode() + b"x",
    b'{"a":"\xff"}', b'{"a":"\xc3("}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\x00"}', b"\x00" * 10, b'{"a":1e400}', b'{"a":NaN}', b'{"a":01}',
    b'{"a":"\n"}', b"\xff\xfe{\x00}\x00", b'{"a":' * 100000, b"[" * 1000000, b'{"a":' + b"[" * 129 + b"]" * 129 + b"}",
    b'{"a":"' + b"x" * 1000000, b'{"messages":[' + b'{"role":"user","content":"' * 1000,
]


def test_bad_json_is_told_with_its_place(server, canary):
    for data in BAD_JSON:
        a = post(server, data)
        e = a.json()["error"]
        assert a.status == 400 and e["code"] == "invalid_json" and e["message"], data[:60]
        assert not a.closed
    canary()


def test_odd_but_valid_json_is_served(server, canary):
    for data in ["\ufeff" + user(), user(',"x":"\\ud800"'), user(',"x":"\\u0000"'), user(',"max_tokens":1,"max_tokens":2'),
                 "\n\t " + user() + " \r\n", user(',"a":' + "[" * 126 + "]" * 126)]:
        assert post(server, data).status == 200, data[:60]
    lone = '{"messages":[{"role":"user","content":"a\\ud800b\\u0000c\\uffff"}],"max_tokens":1}'
    assert post(server, lone).status == 200
    canary()


VALUES = [("temperature", "-1"), ("temperature", "1e30"), ("temperature", '"0"'), ("temperature", "[]"), ("top_p", "2"), ("top_k", "-5"),
          ("top_k", "1e300"), ("min_p", "-0.1"), ("max_tokens", "0"), ("max_tokens", "-1"), ("max_tokens", "9223372036854775808"),
          ("max_tokens", "1.5"), ("max_tokens", '"5"'), ("max_tokens", "true"), ("seed", "18446744073709551616"), ("n", "0"), ("n", "1000000"),
          ("stop", '""'), ("stop", "[" + ",".join(['"a"'] * 100000) + "]"), ("stop", '"' + "a" * 1000000 + '"'), ("logprobs", "1000000"),
          ("top_logprobs", "1000000"), ("stream", '"yes"'), ("messages", "[]"), ("messages", "{}"), ("messages", "[[]]"),
          ("model", "[]"), ("logit_bias", '{"49152":1}'), ("logit_bias", '{"1":1e9}'), ("tools", '[{"type":"function"}]')]


@pytest.mark.parametrize("name,value", VALUES, ids=[f"{n}={v[:20]}" for n, v in VALUES])
def test_wrong_values_are_named(server, name, value):
    a = post(server, user(f',"{name}":{value}'))
    e = a.json()["error"]
    assert a.status == 400 and e["param"] == name and name in e["message"]


def test_denormal_temperature_and_tiny_filters_still_answer(server, canary):
    for extra in (',"temperature":1e-40', ',"temperature":5,"top_p":1e-30', ',"min_p":1,"temperature":5', ',"top_k":2147483647',
                  ',"temperature":1e-300', ',"top_p":0.0000001,"top_k":1,"min_p":0.5'):
        a = post(server, user(extra))
        assert a.status == 200, extra
    canary()


def test_odd_prompts(server, canary):
    for prompt, status in [("[]", 400), ("[-1]", 400), ("[4294967295]", 400), ("[49152]", 400), ("[1.5]", 400), ('[[1],"a"]', 400),
                           ("[1]", 200), ("{}", 400), ("[[]]", 400), ('["a","b"]', 200)]:
        a = post(server, '{"prompt":' + prompt + ',"max_tokens":1}', TEXT)
        assert a.status == status, (prompt, a.body)
    a = post(server, json.dumps({"prompt": "x y " * 3000000, "max_tokens": 1}), TEXT)
    assert a.status == 400 and a.json()["error"]["code"] == "context_length_exceeded"
    a = post(server, json.dumps({"messages": [{"role": "user", "content": "a"}] * 200000, "max_tokens": 1}))
    assert a.status == 400, a.body[:200]
    canary()


def test_many_members_and_huge_bodies_are_refused_in_time(server, canary):
    a = post(server, "{" + ",".join(f'"k{i}":1' for i in range(1000000)) + ',"messages":[]}')
    assert a.status == 400
    a = server.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000000\r\n\r\n" + b"a" * 40000000)
    assert a.status == 413
    chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    a = server.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 40)
    assert a.status == 413 and a.json()["error"]["code"] == "request_too_large"
    canary()


def test_errors_hold_no_path_and_no_prompt(server):
    for data in (user(',"temperature":9'), '{"messages":[{"role":"user","content":"SECRETWORD"}],"top_p":7}', '{"messages":"SECRETWORD'):
        text = post(server, data).body.decode()
        assert "SECRETWORD" not in text and "/root" not in text and ".c:" not in text and ".gguf" not in text
    assert not any("SECRETWORD" in line for line in server.log)


def test_slow_clients_are_ended_and_others_do_not_notice(server, canary):
    """150 heads that come one byte a second, and a body that comes ten bytes a second."""
    fds = server.n_fds()
    heads = []
    for _ in range(150):
        s = server.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        heads.append(s)
    body = server.connect()
    body.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n")
    ended = {}

    def drip(name, s, data):
        begin, got = time.monotonic(), b""
        s.settimeout(1)
        while time.monotonic() - begin < 100:
            try:
                s.sendall(data)
            except OSError:
                pass
            try:
                more = s.recv(4096)
                if not more:
                    break
                got += more
            except (TimeoutError, socket.timeout):
                pass
            except OSError:
                break
        ended[name] = (time.monotonic() - begin, got)

    threads = [threading.Thread(target=drip, args=(i, s, b"a")) for i, s in enumerate(heads)]
    threads.append(threading.Thread(target=drip, args=("body", body, b"aaaaaaaaaa")))
    for t in threads:
        t.start()
    for _ in range(5):
        assert server.get("/health").status_code == 200
        canary()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    assert ended["body"][0] < 95 and b"408" in ended["body"][1]
    slow = [v for k, v in ended.items() if k != "body"]
    print(f"heads ended after {max(v[0] for v in slow):.1f} s, the body after {ended['body'][0]:.1f} s")
    assert all(seconds < 60 for seconds, _ in slow) and sum(b" 408 " in got for _, got in slow) > 100
    for s in [*heads, body]:
        s.close()
    server.wait_until(lambda: server.n_fds() <= fds, "descriptors are given back", 20)
    canary()


def test_more_connections_than_allowed_do_not_lock_anyone_out(start_server):
    server = start_server("--max-connections", "16")
    idle = [server.connect() for _ in range(60)]
    for s in idle:
        try:
            s.sendall(b"GET /he")
        except OSError:
            pass
    for _ in range(5):
        assert server.request("GET", "/health").status == 200
    assert server.chat(max_tokens=1).status_code in (200, 503)
    for s in idle:
        s.close()
    server.wait_until(lambda: server.stats()["server"]["connections"] <= 2, "they are gone")
    assert server.chat(max_tokens=1).status_code == 200


def test_half_a_request_and_the_end_is_noticed(server):
    before = server.stats()["server"]["connections"]
    for data in (b"", b"GET /he", b"GET /health HTTP/1.1\r\nHost: local", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"):
        with server.connect() as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while s.recv(4096):
                pass
    server.wait_until(lambda: server.stats()["server"]["connections"] <= before, "they are gone")


def test_headers_can_not_be_injected(server):
    a = server.request("GET", "/health", [("x-request-id", "a%0d%0aX-Evil: 1")])
    assert "x-evil" not in a.headers and a.status == 200
    a = server.request("GET", "/v1/models/a%0d%0aX-Evil:%201")
    assert a.status == 404 and "x-evil" not in a.headers
    a = server.request("GET", "/v1/models/" + "..%2f" * 50 + "etc%2fpasswd")
    assert a.status == 404
