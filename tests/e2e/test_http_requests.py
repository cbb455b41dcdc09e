"""What the server tells about requests: the list, the cancel, the log; and the whole queue, full and waiting."""
import json
import re
import threading
import time

import pytest
import requests

from conftest import ENDLESS, events_of
from test_http_hangup import CHAT, LONG, open_request, read_events

SECRET = "wombat-7731"
ROW = {"queue_position", "id", "request_id", "route", "model", "adapter", "state", "stream", "client_gone", "cancelled", "age_ms", "prompt_tokens",
       "prefilled_tokens", "cached_tokens", "generated_tokens", "max_tokens", "queue_ms", "prefill_ms", "decode_ms",
       "prefill_tps", "decode_tps"}


def rows(server, path="/api/requests"):
    answer = server.get(path)
    assert answer.status_code == 200 and SECRET not in answer.text
    return answer.json()["data"]


def first_id(s):
    return re.search(rb'"id":"([^"]+)"', read_events(s, 3)).group(1).decode()


def read_all(s):
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        more = s.recv(65536)
        assert more, got[-200:]
        got += more
    return got


def test_the_list_shows_who_runs_and_who_waits_but_no_text(server):
    server.wait_idle()
    slots = server.stats()["batch"]["configured"]
    body = {"messages": [{"role": "user", "content": f"{SECRET} {ENDLESS}"}], "max_tokens": 3000, "temperature": 0, "stream": True,
            "ignore_eos": False}
    running = [open_request(server, {**LONG, "stream": True}) for _ in range(slots - 1)]
    running.append(open_request(server, body))
    ids = [first_id(s) for s in running]
    waiting = open_request(server, {**body, "stream": False})
    server.wait_until(lambda: any(r["state"] == "queued" for r in rows(server)), "one waits")
    shown = {r["id"]: r for r in rows(server)}
    assert set(ids) < set(shown) and len(shown) == slots + 1
    for r in shown.values():
        assert set(r) == ROW and r["route"] == CHAT and r["client_gone"] is False and r["cancelled"] is False
        assert r["prompt_tokens"] > 0 and r["age_ms"] >= 0
    assert [r["queue_position"] for r in shown.values()].count(0) == slots
    r = shown[ids[0]]
    assert r["state"] == "decode" and r["generated_tokens"] >= 2 and r["prefilled_tokens"] == r["prompt_tokens"] and r["max_tokens"] == 4000
    queued = next(r for r in shown.values() if r["state"] == "queued")
    assert queued["stream"] is False and queued["generated_tokens"] == 0 and queued["decode_ms"] == 0
    assert rows(server, "/v1/requests")[0]["id"] in shown
    for s in [waiting, *running]:
        s.close()
    server.wait_idle()
    assert rows(server) == []


def test_a_cancelled_stream_ends_as_if_the_model_had_stopped(server, canary):
    server.wait_idle()
    s = open_request(server, {**LONG, "stream": True})
    name = first_id(s)
    answer = requests.delete(server.url + "/api/requests/" + name, timeout=60)
    assert answer.status_code == 200 and answer.json() == {"id": name, "object": "request", "cancelled": 1}
    text = read_all(s).decode()
    s.close()
    assert '"finish_reason":"stop"' in text and '"cancelled":true' in text and "data: [DONE]" in text
    assert server.wait_idle() < 5
    assert requests.delete(server.url + "/api/requests/" + name, timeout=60).status_code == 404
    assert server.chat().json()["ingle"].get("cancelled") is None
    canary()


@pytest.mark.parametrize("where", ["running", "queued"])
def test_a_whole_answer_can_be_cancelled_by_x_request_id(server, where):
    server.wait_idle()
    slots = server.stats()["batch"]["configured"]
    held = [open_request(server, {**LONG, "stream": True}) for _ in range(slots if where == "queued" else 0)]
    for s in held:
        read_events(s, 2)
    got = []
    t = threading.Thread(target=lambda: got.append(server.post(CHAT, LONG, headers={"x-request-id": "mine"})))
    t.start()
    state = "queued" if where == "queued" else "decode"
    server.wait_until(lambda: any(r["request_id"] == "mine" and r["state"] == state for r in rows(server)), "it is there")
    assert requests.delete(server.url + "/v1/requests/mine", timeout=60).status_code == 200
    t.join(30)
    answer = got[0].json()
    assert got[0].status_code == 200 and answer["choices"][0]["finish_reason"] == "stop" and answer["ingle"]["cancelled"] is True
    assert (answer["usage"]["completion_tokens"] == 0) == (where == "queued")
    for s in held:
        s.close()
    server.wait_idle()


def test_only_who_may_call_may_look_and_cancel(server):
    a = server.request("DELETE", "/api/requests/x", [("Origin", "http://evil.example")])
    assert a.status == 403
    a = server.request("DELETE", "/api/requests/no-such")
    assert a.status == 404 and a.json()["error"]["code"] == "not_found"
    a = server.request("GET", "/api/requests/x")
    assert a.status == 405 and a.headers["allow"] == "DELETE, OPTIONS"
    a = server.request("DELETE", "/api/requests/x%0d%0aX-Evil:%201")
    assert a.status == 404 and "x-evil" not in a.headers


# ---- the log

def fields(line):
    return dict(part.split("=", 1) for part in line.split(" ") if "=" in part)


def log_of(server, name, event):
    found = []

    def there():
        found[:] = [line for line in server.log if f" {event} " in line and f'request="{name}"' in line]
        return found

    server.wait_until(there, f"{event} of {name} is in the log", 10)
    return fields(found[0])


def test_every_request_leaves_two_lines_and_no_text(server):
    server.chat(f"Say {SECRET}.", max_tokens=5).raise_for_status()
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "temperature": 0},
                         headers={"x-request-id": "logged-1"}).json()
    accepted, finished = log_of(server, "logged-1", "accepted"), log_of(server, "logged-1", "finished")
    assert accepted["id"] == finished["id"] == answer["id"] and accepted["route"] == CHAT and accepted["max"] == "5"
    assert finished["status"] == "200" and finished["gone"] == "0" and finished["end"] in ("length", "stop")
    usage = answer["usage"]
    assert (int(finished["prompt"]), int(finished["tokens"])) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert int(finished["cached"]) == usage["prompt_tokens_details"]["cached_tokens"]
    for name in ("queue_ms", "prefill_ms", "decode_ms", "ms", "prefill_tps", "decode_tps"):
        assert float(finished[name]) >= 0
    assert not any(SECRET in line for line in server.log)


def test_refusals_and_clients_that_leave_are_in_the_log(server):
    server.post(CHAT, {"messages": [], "x": SECRET}, headers={"x-request-id": "logged-2"})
    line = log_of(server, "logged-2", "finished")
    assert line["status"] == "400" and line["end"] == "empty_prompt"
    server.get("/nope", headers={"x-request-id": "logged-3"})
    assert log_of(server, "logged-3", "refused")["end"] == "not_found"
    s = server.connect()
    data = json.dumps({**LONG, "stream": True}).encode()
    s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nx-request-id: logged-4\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    read_events(s, 3)
    s.close()
    line = log_of(server, "logged-4", "finished")
    assert line["gone"] == "1" and line["end"] == "gone" and int(line["tokens"]) >= 1
    assert not any(SECRET in line for line in server.log)


def test_no_client_forges_a_line(server):
    before = len(server.log)
    evil = "x\x1b[2J end=ok"
    for path in ("/\r\n2026-01-01T00:00:00.000Z info  finished id=forged", "/%0afinished%20id=forged", "/a\x1b[31m"):
        try:
            server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nx-request-id: {evil}\r\n\r\n".encode("latin-1"))
        except AssertionError:
            pass
    server.post(CHAT, {"model": "m\nfinished id=forged", "messages": []}, headers={"x-request-id": "logged-5"})
    log_of(server, "logged-5", "finished")
    for line in server.log[before:]:
        assert "forged" not in line and not re.search("[\x00-\x1f\x7f]", line), line


def test_the_log_as_json_has_one_object_a_line(start_server):
    server = start_server("--log-json", "--log-level", "debug")
    server.post(CHAT, {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}, headers={"x-request-id": "12345"})
    server.raw(b"GARBAGE \x1b[2J\"\\\r\n\r\n")
    server.wait_until(lambda: any('"finished"' in line for line in server.log), "the line is there", 10)
    lines = [json.loads(line) for line in server.log]
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    done = next(line for line in lines if line["event"] == "finished")
    assert done["request"] == "12345" and done["status"] == 200 and done["tokens"] == 3 and done["id"].startswith("chatcmpl-")
    assert not any(SECRET in line for line in server.log)


# ---- a full house

def test_64_wait_with_pings_and_the_65th_is_told_when_to_come_back(start_server):
    server = start_server("--batch", "1", "--sse-ping", "1")
    held = [open_request(server, {**LONG, "stream": True})]
    read_events(held[0], 2)
    held += [open_request(server, {**LONG, "stream": i % 4 > 0}) for i in range(64)]
    server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 64, "the queue is full")
    for stream in (True, False):
        begin = time.monotonic()
        a = server.post(CHAT, {**LONG, "stream": stream})
        assert a.status_code == 429 and a.json()["error"]["type"] == "rate_limit_error" and a.json()["error"]["code"] == "queue_full"
        assert 1 <= int(a.headers["retry-after"]) <= 600
        assert time.monotonic() - begin < 5
    assert server.get("/health").status_code == 200 and len(rows(server)) == 65
    pinged, positions = 0, set()
    for i, s in enumerate(held[1:]):
        got = b""
        while i % 4 > 0 and b": ping\n\n" not in got:
            more = s.recv(65536)
            assert more, got
            got += more
        if i % 4 > 0:
            position = int(re.search(rb": queued (\d+)\n\n", got).group(1))
            assert 1 <= position <= 64
            positions.add(position)
        pinged += i % 4 > 0
    assert pinged == 48 and len(positions) == 48
    for s in held[1:]:
        s.close()
    server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 0, "nobody waits")
    assert server.stats()["batch"]["active_rows"] == 1  # who was served is still served
    held[0].close()
    server.wait_idle()


def test_who_waits_too_long_is_told_so(start_server):
    server = start_server("--batch", "1", "--queue-timeout", "1")
    running = open_request(server, {**LONG, "stream": True})
    read_events(running, 2)
    streamed = open_request(server, {**LONG, "stream": True})
    a = server.post(CHAT, LONG)
    assert a.status_code == 503 and a.json()["error"]["code"] == "queue_timeout" and int(a.headers["retry-after"]) >= 1
    got = b""
    while more := streamed.recv(65536):
        got += more
    assert b'"code":"queue_timeout"' in got and b"[DONE]" not in got
    assert server.stats()["batch"]["active_rows"] == 1  # a time limit on waiting is none on running
    running.close()
    server.wait_idle()
