"""A load generator for chat servers: streaming chats over HTTP/1.1 on 127.0.0.1, one thread, no packages.

A stream is one user: the chats of one run one after another, each on a connection of its own; streams run side by
side. Tokens are what the server says in `usage`: the pieces of text that come are not counted, because one may hold
two tokens and a token half a character. Times are the user's: from before connecting until a piece is here. Pieces
that come in one read have one time. How much of a core the generator itself took is in the result, since it shares
the machine with the server.
"""
import collections
import json
import math
import resource
import selectors
import socket
import time

HEAD_MAX = 64 << 10


class LoadError(Exception):
    pass


class Body:
    """Bytes of one HTTP answer in any pieces -> the data of its server-sent events."""

    def __init__(self):
        self.head, self.raw, self.lines = b"", b"", b""
        self.status = None
        self.chunked, self.left, self.ended = False, 0, False

    def feed(self, data):
        if self.status is None:
            self.head += data
            head, end, data = self.head.partition(b"\r\n\r\n")
            if not end:
                if len(self.head) > HEAD_MAX:
                    raise LoadError(f"{HEAD_MAX} bytes and no end of the headers")
                return []
            self.read_head(head.decode("latin-1"))
        self.lines += self.unchunk(data) if self.chunked else data
        if self.status != 200:
            return []
        *lines, self.lines = self.lines.split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def read_head(self, head):
        first, *fields = head.split("\r\n")
        self.status = int(first.split()[1])
        fields = {k.strip().lower(): v.strip().lower() for k, v in (f.split(":", 1) for f in fields)}
        self.chunked = fields.get("transfer-encoding") == "chunked"

    def unchunk(self, data):
        """The bytes of the chunks in data; a chunk's size line and end may be split anywhere."""
        self.raw += data
        out = []
        while self.raw and not self.ended:
            if self.left > 2:  # of the chunk, and its line end
                part = self.raw[:self.left - 2]
                out.append(part)
                self.raw, self.left = self.raw[len(part):], self.left - len(part)
            elif self.left:
                skip = min(self.left, len(self.raw))
                self.raw, self.left = self.raw[skip:], self.left - skip
            else:
                size, end, rest = self.raw.partition(b"\r\n")
                if not end:
                    break
                n = int(size.split(b";")[0], 16)
                self.raw, self.left, self.ended = rest, n + 2, n == 0
        return b"".join(out)


class Chat:
    """One request and what came of it."""

    def __init__(self, port, body, timeout):
        payload = json.dumps({"stream": True, "stream_options": {"include_usage": True}, **body}).encode()
        self.limit = body["max_tokens"]
        self.body, self.stamps = Body(), []
        self.finish, self.usage, self.complete = None, None, False
        self.sent = time.monotonic()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(payload))
        self.socket.sendall(head + payload)
        self.socket.setblocking(False)
        self.ended = self.sent

    def read(self):
        """Takes what has come; False at the end of the answer."""
        data = self.socket.recv(1 << 16)
        self.ended = time.monotonic()
        for event in self.body.feed(data):
            self.take(event)
        if not data and self.body.status not in (None, 200):
            raise LoadError(f"status {self.body.status}: {self.body.lines[:300].decode(errors='replace')}")
        if not data and not self.complete:
            raise LoadError("the answer ended before [DONE]")
        return not self.complete

    def take(self, event):
        if event == b"[DONE]":
            self.complete = True
            return
        row = json.loads(event)
        if "error" in row:
            raise LoadError(f"the server says {row['error']}")
        for choice in row.get("choices", ()):
            if choice.get("delta", {}).get("content"):
                self.stamps.append(self.ended)
            self.finish = choice.get("finish_reason") or self.finish
        self.usage = row.get("usage") or self.usage

    def close(self):
        self.socket.close()

    @property
    def tokens(self):
        if not self.usage:
            raise LoadError("the answer has no usage")
        return self.usage["completion_tokens"]

    @property
    def early(self):
        """The model ended the answer before it had all its tokens."""
        return self.tokens < self.limit


class Load:
    """The chats of one run, in numbers. Times are in seconds."""

    def __init__(self, chats, wall, cpu):
        self.chats, self.wall, self.cpu = chats, wall, cpu
        self.tokens = sum(c.tokens for c in chats)
        self.tok_s = self.tokens / wall
        self.prompt_tokens = sum(c.usage.get("prompt_tokens", 0) for c in chats)
        self.cached = sum((c.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for c in chats)
        self.early = sum(c.early for c in chats)
        self.first = [c.stamps[0] - c.sent for c in chats if c.stamps]
        self.gaps = [b - a for c in chats for a, b in zip(c.stamps, c.stamps[1:])]


def percentile(values, p):
    """By nearest rank: a value that was measured. NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] if ordered else math.nan


def cpu_of_self():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def drive(port, streams, timeout):
    """Runs streams (each a list of request bodies with max_tokens) and returns a Load."""
    waiting = [collections.deque(s) for s in streams]
    chats, running = [], {}
    cpu, start = cpu_of_self(), time.monotonic()

    def begin(which):
        if waiting[which]:
            chat = Chat(port, waiting[which].popleft(), timeout)
            chats.append(chat)
            running[chat] = which
            ready.register(chat.socket, selectors.EVENT_READ, chat)

    with selectors.DefaultSelector() as ready:
        try:
            for which in range(len(waiting)):
                begin(which)
            while running:
                for key, _ in ready.select(max(0.0, start + timeout - time.monotonic())):
                    chat = key.data
                    if not chat.read():
                        ready.unregister(chat.socket)
                        chat.close()
                        begin(running.pop(chat))
                if running and time.monotonic() - start > timeout:
                    raise LoadError(f"{len(running)} chats had no end after {timeout:.0f} s")
        finally:
            for chat in running:
                chat.close()
    return Load(chats, max(c.ended for c in chats) - start, cpu_of_self() - cpu)
