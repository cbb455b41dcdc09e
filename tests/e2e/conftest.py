"""Shared by all end-to-end tests: the real program on 127.0.0.1 with the starter model.

INGLE_PROGRAM names the program (default build/ingle), INGLE_TEST_MODEL the model (default: the starter in the
cache). A server is started per session for most tests, and by `start_server` where a test needs its own flags
or must end it. Servers are stopped by their process id. Waits are bounded and generous: a slow machine must not
fail a test, a hang must.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTER = "SmolLM2-135M-Instruct.Q4_1.gguf"
START_S, STOP_S, WAIT_S = 120, 30, 60


def program_path():
    path = os.environ.get("INGLE_PROGRAM") or str(ROOT / "build" / "ingle")
    if not os.access(path, os.X_OK):
        pytest.skip(f"the program is not built: {path}")
    return path


def model_path():
    cache = os.environ.get("INGLE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ingle")
    path = os.environ.get("INGLE_TEST_MODEL") or os.path.join(cache, "models", STARTER)
    if not os.path.exists(path):
        pytest.skip(f"the starter model is not there: {path}")
    return path


class Answer:
    """One HTTP answer as it came: status, headers (lower case, last wins), body, and what followed."""

    def __init__(self, status, headers, body, rest, closed):
        self.status, self.headers, self.body, self.rest, self.closed = status, headers, body, rest, closed

    def json(self):
        return json.loads(self.body)


def unchunk(data):
    """(body, rest) of a chunked body, or None when it is not complete."""
    body = b""
    while True:
        line, sep, data = data.partition(b"\r\n")
        if not sep:
            return None
        n = int(line.split(b";")[0], 16)
        if len(data) < n + 2:
            return None
        body, data = body + data[:n], data[n + 2:]
        if n == 0:
            return body, data


def parse_answer(data, closed, head_only=False):
    """The first answer in data, or None when it is not complete."""
    head, sep, rest = data.partition(b"\r\n\r\n")
    if not sep:
        return None
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1])
    headers = {k.strip().lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
    if head_only or status in (100, 204, 304):
        return Answer(status, headers, b"", rest, closed)
    if headers.get("transfer-encoding") == "chunked":
        both = unchunk(rest)
        return Answer(status, headers, both[0], both[1], closed) if both else None
    if "content-length" in headers:
        n = int(headers["content-length"])
        return Answer(status, headers, rest[:n], rest[n:], closed) if len(rest) >= n else None
    return Answer(status, headers, rest, b"", closed) if closed else None


# Greedy, the starter model never ends its answer to this: for tests that need an answer in full flow, on a machine
# of any speed and with any luck.
ENDLESS = "What is the capital of France?"


class Server:
    def __init__(self, *flags, model=None, env=None, limit_files=None):
        command = [program_path(), "serve", "--port", "0", *flags, model or model_path()]
        self.log = []
        few = limit_files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit_files, limit_files)))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})}, preexec_fn=few)
        self.pid = self.process.pid
        threading.Thread(target=self._read_log, daemon=True).start()
        alarm = threading.Timer(START_S, self.process.kill)
        alarm.start()
        self.port = None
        for line in self.process.stdout:
            found = re.search(r"http://[^\s\"]*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        alarm.cancel()
        if self.port is None:
            self.process.wait()
            raise RuntimeError(f"no ready line; exit {self.process.returncode}: {' '.join(self.log[-5:])}")
        self.url = f"http://127.0.0.1:{self.port}"

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def stop(self, sig=signal.SIGTERM):
        """Ends it and returns the exit code; None: it did not end by itself in time."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def alive(self):
        return self.process.poll() is None

    # ---- talking to it

    def get(self, path, **kw):
        return requests.get(self.url + path, timeout=WAIT_S, **kw)

    def post(self, path, body, **kw):
        return requests.post(self.url + path, json=body, timeout=WAIT_S, **kw)

    def chat(self, text="Say hello.", **kw):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **kw}
        return self.post("/v1/chat/completions", body)

    def connect(self, timeout=WAIT_S):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def raw(self, data, timeout=WAIT_S, head_only=False, until_close=False):
        """Sends bytes on a fresh connection and reads one answer. `closed` says whether the server has closed the
        connection after it: without until_close, whether it answers another request on it."""
        with self.connect(timeout) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # refused in the middle: the answer may be there all the same
            got, closed = b"", False
            while True:
                answer = parse_answer(got, closed, head_only)
                if closed or (answer and not until_close):
                    break
                try:
                    more = s.recv(65536)
                except ConnectionError:
                    more = b""
                closed, got = not more, got + more
            if answer and not closed:
                try:
                    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    answer.closed = s.recv(1) == b""
                except ConnectionError:
                    answer.closed = True
            return answer

    def request(self, method, path, headers=(), body=None, version="1.1", host=True, **kw):
        lines = [f"{method} {path} HTTP/{version}"]
        names = {k.lower() for k, _ in headers}
        if host and "host" not in names:
            lines.append(f"Host: 127.0.0.1:{self.port}")
        lines += [f"{k}: {v}" for k, v in headers]
        if body is not None and "content-length" not in names and "transfer-encoding" not in names:
            lines.append(f"Content-Length: {len(body)}")
        data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")
        return self.raw(data, head_only=method == "HEAD", **kw)

    # ---- looking at it

    def stats(self):
        return self.get("/stats").json()

    def busy(self):
        st = self.stats()
        return st["batch"]["active_rows"] + st["batch"]["pending_rows"] + st["requests"]["active"]

    def wait_until(self, condition, what, seconds=WAIT_S):
        """Polls; returns the seconds that it took."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if condition():
                return time.monotonic() - begin
            time.sleep(0.01)
        raise AssertionError(f"{what}: not within {seconds} s")

    def wait_idle(self, seconds=20):
        return self.wait_until(lambda: self.busy() == 0, "the engine is idle", seconds)

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_kib(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            return sum(int(line.split()[1]) for line in f if line.startswith(("RssAnon", "VmSwap")))

    def n_threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))


@pytest.fixture(scope="session")
def server():
    s = Server("--sse-ping", "1")
    yield s
    alive = s.alive()
    code = s.stop()
    assert alive, f"the server died: {s.log[-5:]}"
    assert code == 0, f"exit {code}: {s.log[-5:]}"


@pytest.fixture
def start_server():
    """Starts servers with flags of the test's own; each is stopped at the end."""
    started = []

    def start(*flags, **kw):
        started.append(Server(*flags, **kw))
        return started[-1]

    yield start
    for s in started:
        s.stop()


@pytest.fixture(scope="session")
def base_model(tmp_path_factory):
    """The starter without its chat template: the key has another name of the same length."""
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    shutil.copyfile(model_path(), path)
    with open(path, "r+b") as f:
        at = f.read(16 << 20).index(b"tokenizer.chat_template")
        f.seek(at)
        f.write(b"tokenizer.chat_nothing_")
    yield str(path)
    path.unlink()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random model of one layer: for tests about requests and not about answers, by the thousand."""
    home = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, ROOT / "tests" / "torture" / "make_tiny.py", home], check=True)
    return str(home / "tiny.gguf")


@pytest.fixture(scope="session")
def canary(server):
    """Call it after something hostile: one fixed greedy request must answer the same bytes as before."""
    def ask():
        answer = server.chat("Name three colours.", max_tokens=12)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    first = ask()

    def check():
        assert ask() == first

    return check


def events_of(text):
    """Data of each event of a stream, and the comments."""
    data, comments = [], []
    assert text.endswith("\n\n"), text[-80:]
    for block in text[:-2].split("\n\n"):
        assert "\n" not in block, block
        if block.startswith(": "):
            comments.append(block[2:])
        else:
            assert block.startswith("data: "), block
            data.append(block[6:])
    return data, comments


@pytest.fixture
def stream(server):
    """Runs a streamed request; returns (parsed chunks without [DONE], comments, response)."""
    def run(path="/v1/chat/completions", **body):
        if "completions" in path and "chat" not in path:
            body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": True, **body}
        else:
            body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0,
                    "stream": True, **body}
        answer = server.post(path, body)
        assert answer.status_code == 200, answer.text
        data, comments = events_of(answer.content.decode())
        assert data[-1] == "[DONE]" and "[DONE]" not in data[:-1]
        return [json.loads(d) for d in data[:-1]], comments, answer

    return run
