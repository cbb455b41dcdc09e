"""Clients that leave, clients that do not read, many at once, and the end of the server."""
import json
import random
import signal
import socket
import threading
import time

import pytest

from conftest import ENDLESS

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": ENDLESS}], "max_tokens": 4000, "temperature": 0}


def post_bytes(body, path=CHAT):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def open_request(server, body):
    s = server.connect()
    s.sendall(post_bytes(body))
    return s


def leave(s, how):
    """FIN, or RST: unread bytes and SO_LINGER 0 both end in a reset."""
    if how == "reset":
        import socket
        import struct
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def read_events(s, n):
    got = b""
    while got.count(b"data: ") < n:
        more = s.recv(65536)
        assert more
        got += more
    return got


def canceled(server):
    return server.stats()["requests"]["canceled"]


# Without cancelling, 4,000 tokens would run far longer than these waits.
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_leaving_while_tokens_come_frees_the_engine(server, canary, stream, how):
    server.wait_idle()
    before = canceled(server)
    s = open_request(server, {**LONG, "stream": stream})
    if stream:
        read_events(s, 6)
    else:
        server.wait_until(lambda: server.stats()["batch"]["active_rows"] == 1, "the request runs")
    leave(s, how)
    took = server.wait_idle()
    print(f"idle after {took * 1000:.0f} ms")
    assert canceled(server) == before + 1
    canary()


def test_leaving_at_once_and_in_prefill(server, canary):
    text = "".join(random.Random(7).choice("abcdefgh ") for _ in range(12000))
    for wait_for_prefill in (False, True):
        server.wait_idle()
        s = open_request(server, {"messages": [{"role": "user", "content": text}], "max_tokens": 4000, "stream": True,
                                  "cache_prompt": False})
        if wait_for_prefill:
            server.wait_until(lambda: server.stats()["batch"]["prefilling_rows"] == 1, "the prompt is being read")
        s.close()
        print(f"idle after {server.wait_idle(40) * 1000:.0f} ms")
    canary()


def test_leaving_the_queue_means_never_starting(server):
    server.wait_idle()
    slots = server.stats()["batch"]["configured"]
    running = [open_request(server, {**LONG, "stream": True}) for _ in range(slots)]
    for s in running:
        read_events(s, 2)
    waiting = [open_request(server, {**LONG, "stream": bool(i % 2)}) for i in range(3)]
    server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 3, "three wait")
    prompts = server.stats()["requests"]["prompt_tokens"]
    for s in waiting:
        s.close()
    server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 0, "nobody waits")
    assert server.stats()["batch"]["active_rows"] == slots
    assert server.stats()["requests"]["prompt_tokens"] == prompts
    for s in running:
        s.close()
    server.wait_idle()


def test_pings_show_that_a_waiting_stream_lives(server):
    server.wait_idle()
    slots = server.stats()["batch"]["configured"]
    running = [open_request(server, {**LONG, "stream": True}) for _ in range(slots)]
    for s in running:
        read_events(s, 2)
    s = open_request(server, {**LONG, "stream": True})
    got = b""
    while b": ping\n\n" not in got:
        more = s.recv(65536)
        assert more
        got += more
    assert got.count(b"data: ") == 1  # the role; the row is in the queue
    for c in [s, *running]:
        c.close()
    server.wait_idle()


def test_a_full_queue_says_so_with_retry_after(start_server):
    server = start_server("--batch", "1", "--max-queue", "2")
    held = [open_request(server, {**LONG, "stream": True}) for _ in range(1)]
    read_events(held[0], 2)
    held += [open_request(server, {**LONG, "stream": True}) for _ in range(2)]
    server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 2, "the queue is full")
    for stream in (True, False):
        a = server.post(CHAT, {**LONG, "stream": stream})
        assert a.status_code == 429 and a.json()["error"]["code"] == "queue_full" and int(a.headers["retry-after"]) >= 1
    for s in held:
        s.close()
    server.wait_idle()


def test_clients_that_leave_at_random_disturb_nobody(server, canary):
    """Eight clients, 15 requests each, a third of them cut at a random point; the rest get their text."""
    server.wait_idle()
    plain = [server.chat(f"Say the number {i}.", max_tokens=6).json()["choices"][0]["message"]["content"] for i in range(8)]
    fds, threads = server.n_fds(), server.n_threads()
    wrong = []

    def client(i):
        rng = random.Random(i)
        for _ in range(15):
            cut = rng.random() < 0.34
            body = {"messages": [{"role": "user", "content": f"Say the number {i}."}], "temperature": 0,
                    "max_tokens": 400 if cut else 6, "stream": rng.random() < 0.5}
            try:
                s = open_request(server, body)
                if cut:
                    time.sleep(rng.random() * 0.3)
                    leave(s, rng.choice(["close", "reset"]))
                    continue
                got = b""
                while not (got.endswith(b"0\r\n\r\n") or (b"Content-Length" in got and got.endswith(b"}"))):
                    more = s.recv(65536)
                    assert more, got
                    got += more
                s.close()
                if body["stream"]:
                    text = "".join(json.loads(d)["choices"][0]["delta"].get("content", "")
                                   for d in got.decode().split("data: ")[1:] if d.startswith("{")
                                   for d in [d.split("\n")[0]])
                else:
                    text = json.loads(got.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]
                if text != plain[i]:
                    wrong.append((i, text))
            except Exception as e:  # noqa: BLE001 - told below, from the main thread
                wrong.append((i, repr(e)))

    workers = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(150)
    assert not wrong and not any(w.is_alive() for w in workers)
    server.wait_idle()
    server.wait_until(lambda: server.n_fds() <= fds, "descriptors are given back", 20)
    assert server.n_threads() == threads
    canary()


def test_clients_that_do_not_read_cost_little_and_delay_nobody(server, canary):
    server.wait_idle()
    before = server.resident_kib()
    socks = []
    for i in range(8):
        s = server.connect()
        s.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF
        s.sendall(post_bytes({"prompt": f"{i}", "max_tokens": 60, "stream": True, "logprobs": 20}, "/v1/completions"))
        socks.append(s)
    canary()
    server.wait_until(lambda: server.stats()["batch"]["active_rows"] == 0 and server.stats()["batch"]["pending_rows"] == 0,
                      "the engine has ended them", 60)
    assert server.resident_kib() - before < 64 * 1024
    for s in socks:
        s.close()
    server.wait_idle()
    canary()


# ---- the end

def test_sigterm_lets_streams_finish_and_refuses_new_work(start_server):
    server = start_server("--drain-timeout", "60")
    s = open_request(server, {**LONG, "max_tokens": 60, "temperature": 0, "stream": True})
    read_events(s, 2)
    server.process.send_signal(signal.SIGTERM)
    server.wait_until(lambda: server.get("/health").status_code == 503, "health says so")
    a = server.get("/health")
    assert a.text == '{"status": "shutting_down"}'
    a = server.chat()
    assert a.status_code == 503 and a.json()["error"]["code"] == "shutting_down" and a.headers["retry-after"]
    got = b""
    while b"[DONE]" not in got:
        more = s.recv(65536)
        assert more, got[-200:]
        got += more
    assert server.process.wait(30) == 0


def test_streams_that_outlast_the_drain_are_told(start_server):
    server = start_server("--drain-timeout", "1")
    streamed, whole = open_request(server, {**LONG, "stream": True}), open_request(server, LONG)
    read_events(streamed, 2)
    server.wait_until(lambda: server.stats()["batch"]["active_rows"] == 2, "both run")
    server.process.send_signal(signal.SIGTERM)
    ends = []
    for s in (streamed, whole):
        got = b""
        while more := s.recv(65536):
            got += more
        ends.append(got)
    assert b'"code":"shutting_down"' in ends[0] and b"[DONE]" not in ends[0] and b'"finish_reason":"' not in ends[0]
    assert ends[1].startswith(b"HTTP/1.1 503") and b'"code":"shutting_down"' in ends[1]
    assert server.process.wait(30) == 0


# ---- half-closed: the client sends no more and still reads

def half_closed(server, data):
    """Whatever comes after the client has closed its sending side. (Without Connection: close the server waits a
    moment for what may have come before that.)"""
    with server.connect() as s:
        s.sendall(data.replace(b"Host:", b"Connection: close\r\nHost:", 1))
        s.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while more := s.recv(65536):
                got += more
        except ConnectionError:
            pass
        return got


def test_a_half_closed_client_gets_every_answer_but_a_generation(server, canary):
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for data, want in [(get.format("/health").encode(), b'{"status": "ok"}'),
                       (get.format("/v1/models").encode(), b'"object":"list"'),
                       (get.format("/nothing").encode(), b"HTTP/1.1 404"),
                       (post_bytes({"content": "hello world"}, "/tokenize"), b'"tokens":['),
                       (post_bytes({"messages": [{"role": "user", "content": "Hi"}]}, "/apply-template"), b'"prompt":'),
                       (post_bytes({"messages": [{"role": "user", "content": "Hi"}]}, CHAT + "/input_tokens"), b"input_tokens\":"),
                       (post_bytes({"content": 7}, "/tokenize"), b"HTTP/1.1 400")]:
        for _ in range(20):  # the end may come before, with or after the request
            got = half_closed(server, data)
            assert got.startswith(b"HTTP/1.1 ") and want in got, (data[:60], got)
    with server.connect() as s:  # and one that did not ask for the end of the connection
        s.sendall(get.format("/health").encode())
        s.shutdown(socket.SHUT_WR)
        got = b""
        while more := s.recv(65536):
            got += more
    assert b'{"status": "ok"}' in got
    assert half_closed(server, post_bytes(LONG)) == b""
    assert b"finish_reason\":\"" not in half_closed(server, post_bytes({**LONG, "stream": True}))
    server.wait_idle()
    canary()


def test_half_closed_clients_are_answered_when_that_is_asked_for(start_server):
    server = start_server("--tolerate-half-close", "--sse-ping", "600", "--batch", "1", "--ctx", "2048")
    for i in range(6):
        got = half_closed(server, post_bytes({**LONG, "max_tokens": 2, "stream": bool(i % 2)}))
        assert b"HTTP/1.1 200" in got and b'"finish_reason":"length"' in got and (b"[DONE]" in got) == bool(i % 2), got
    # Who has left for good is noticed all the same: in a stream by writing to it, else by a reset.
    holder = open_request(server, {**LONG, "stream": True})
    read_events(holder, 2)
    for stream, how in ((True, "close"), (True, "reset"), (False, "reset")):
        waiting = open_request(server, {**LONG, "stream": stream})
        server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 1, "one waits")
        leave(waiting, how)
        server.wait_until(lambda: server.stats()["batch"]["pending_rows"] == 0, "nobody waits")
        assert server.stats()["batch"]["active_rows"] == 1
    holder.close()
    server.wait_idle()
