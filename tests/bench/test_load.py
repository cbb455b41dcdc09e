"""What the load generator counts, against a server that says exactly what it is told."""
import json
import math
import socket
import threading
import time

import load
import pytest

WAIT_S = 30


def event(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def piece(text, finish=None):
    delta = {"content": text} if text is not None else {}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def answer(pieces, tokens, finish="length", cached=0):
    """The events of a whole answer: a role, pieces of text, an end, usage."""
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
    return [event(role), *map(piece, pieces), piece(None, finish), event({"choices": [], "usage": usage}),
            event(b"[DONE]")]


def chunked(events):
    return b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class FakeServer:
    """Answers each connection with the bytes that `reply(request)` gives, in the pieces it gives them."""

    def __init__(self, reply):
        self.reply, self.requests, self.now, self.most = reply, [], 0, 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
            while len(body) < int(fields[b"Content-Length"]):
                body += connection.recv(65536)
            request = json.loads(body)
            with self.lock:
                self.requests.append(request)
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                for part in self.reply(request):
                    connection.sendall(part)
            except OSError:
                pass  # a client that has given up
            with self.lock:
                self.now -= 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def body(tokens=8, text="hello"):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}


def test_tokens_are_those_of_usage_and_not_the_pieces():
    with FakeServer(lambda _: [CHUNKED + chunked(answer(["a", "b c", "d"], 8, cached=4))]) as s:
        r = load.drive(s.port, [[body()], [body()]], WAIT_S)
    assert (r.tokens, r.early, r.prompt_tokens, r.cached) == (16, 0, 18, 8)
    assert len(r.first) == 2 and len(r.gaps) == 4
    assert r.tok_s == pytest.approx(16 / r.wall)
    assert s.requests[0]["stream"] is True and s.requests[0]["stream_options"] == {"include_usage": True}


def test_chats_that_ended_before_their_tokens_are_counted():
    def reply(q):
        return [HEAD + b"\r\n", *answer(["a"], 3 if q["messages"][0]["content"] == "short" else 8, "stop")]

    with FakeServer(reply) as s:
        r = load.drive(s.port, [[body(text="short"), body()], [body()]], WAIT_S)
    assert (r.early, r.tokens) == (1, 19)


def test_a_stream_has_one_chat_at_a_time_and_streams_run_together():
    met = threading.Barrier(3)  # three streams must be in the server at once, or this breaks

    def reply(q):
        met.wait(WAIT_S)
        return [HEAD + b"\r\n", *answer(["a"], 8)]

    with FakeServer(reply) as s:
        r = load.drive(s.port, [[body(text=f"{i}-{k}") for k in range(2)] for i in range(3)], WAIT_S)
    assert s.most == 3 and len(r.chats) == 6 and r.tokens == 48
    said = [q["messages"][0]["content"] for q in s.requests]
    for i in range(3):
        assert said.index(f"{i}-0") < said.index(f"{i}-1")


def test_times_are_those_of_the_user():
    def reply(_):
        parts = answer(["a", "b", "c"], 3)
        yield HEAD + b"\r\n"
        time.sleep(0.05)
        for p in parts:
            yield p
            time.sleep(0.02)

    with FakeServer(reply) as s:
        r = load.drive(s.port, [[body(3)]], WAIT_S)
    assert r.first[0] >= 0.07  # the role is no token
    assert r.first[0] + sum(r.gaps) <= r.wall


@pytest.mark.parametrize("framing", ["chunked", "plain", "carriage returns"])
def test_bytes_may_come_in_any_pieces(framing):
    events = answer(["some", " text \u00e9", "data: not an event"], 4)
    raw = CHUNKED + chunked(events) if framing == "chunked" else HEAD + b"\r\n" + b"".join(events)
    if framing == "carriage returns":
        head, end, rest = raw.partition(b"\r\n\r\n")
        raw = head + end + rest.replace(b"\n", b"\r\n")
    whole = load.Body().feed(raw)
    assert len(whole) == len(events) and whole[-1] == b"[DONE]"
    for cut in range(1, len(raw)):
        b = load.Body()
        assert b.feed(raw[:cut]) + b.feed(raw[cut:]) == whole, cut
    b = load.Body()
    assert [e for i in range(len(raw)) for e in b.feed(raw[i:i + 1])] == whole


@pytest.mark.parametrize("parts, said", [
    ([HEAD + b"\r\n", *answer(["a"], 8)[:-1]], "before \\[DONE\\]"),
    ([HEAD + b"\r\n", *answer(["a"], 8)[:2], event({"error": {"message": "no more"}})], "no more"),
    ([HEAD + b"\r\n", *answer(["a"], 8)[:3], event(b"[DONE]")], "no usage"),
    ([b"HTTP/1.1 429 Too Many\r\nContent-Length: 9\r\n\r\n", b"queue is "], "429: queue is"),
    ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000], "no end of the headers"),
])
def test_what_is_no_whole_answer_is_an_error_and_never_a_number(parts, said):
    with FakeServer(lambda _: parts) as s, pytest.raises(load.LoadError, match=said):
        load.drive(s.port, [[body()]], WAIT_S)


def test_a_server_that_says_nothing_is_given_up():
    done = threading.Event()
    with FakeServer(lambda _: [HEAD, b"" if done.wait(WAIT_S) else b""]) as s:
        with pytest.raises(load.LoadError, match="1 chats had no end"):
            load.drive(s.port, [[body()]], 0.2)
        done.set()


def test_percentiles_are_values_that_were_measured():
    v = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [load.percentile(v, p) for p in (0, 50, 80, 81, 95, 100)] == [1, 3, 4, 5, 5, 5]
    assert load.percentile([7.0], 95) == 7 and math.isnan(load.percentile([], 50))
