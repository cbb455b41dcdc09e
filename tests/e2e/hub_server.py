"""A hub for tests: 127.0.0.1, one repository or more, and every way to misbehave that a test asks for.

A repository is a dict of path to bytes. `faults` are functions that get a chance at every request for a file:
(handler, path, data) -> True when they have answered it themselves. What was asked for is kept in `requests`.
"""
import hashlib
import http.server
import json
import random
import re
import socket
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def noise(seed, n):
    return random.Random(seed).randbytes(n)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), str(v))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, data, status=None, cut=None, rate=None, **headers):
        """The bytes that were asked for; after `cut` of them the connection breaks; `rate` bytes a second."""
        start, end = 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and status != 200:
            start, end = int(asked[1]), min(len(data), int(asked[2]) + 1 if asked[2] else len(data))
            if start >= len(data):
                self.answer(416, Content_Range=f"bytes */{len(data)}")
                return
            headers.setdefault("Content_Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_response(status or (206 if asked else 200))
        headers.setdefault("Content_Length", end - start)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.end_headers()
        part = data[start:end] if cut is None else data[start:min(end, start + cut)]
        step = max(1, rate // 50) if rate else 1 << 20
        for i in range(0, len(part), step):
            self.wfile.write(part[i:i + step])
            self.hub.sent_bytes += len(part[i:i + step])
            if rate:
                time.sleep(0.02)
        if cut is not None and start + cut < end:
            self.break_off()

    def break_off(self):
        self.close_connection = True
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def do_GET(self):
        hub, url = self.hub, urllib.parse.urlsplit(self.path)
        hub.requests.append((self.path, dict(self.headers)))
        try:
            if any(fault(self, url.path) for fault in list(hub.faults)):
                return
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", url.path)
            if found:
                self.do_list(found[1], urllib.parse.unquote(found[2]))
                return
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path)
            if found:
                self.do_file(found[1], found[2], urllib.parse.unquote(found[3]))
                return
            self.answer(404)
        except OSError:
            self.close_connection = True

    def do_list(self, repo, revision):
        hub = self.hub
        if repo not in hub.repos:
            self.answer(404, X_Error_Code="RepoNotFound")
        elif revision not in ("main", hub.commit):
            self.answer(404, X_Error_Code="RevisionNotFound")
        else:
            self.answer(200, json.dumps(hub.listing(repo)).encode(), Content_Type="application/json")

    def do_file(self, repo, commit, path):
        hub = self.hub
        data = hub.repos.get(repo, {}).get(path)
        if data is None or commit != hub.commit:
            self.answer(404, X_Error_Code="EntryNotFound")
            return
        headers = {"X_Repo_Commit": hub.commit, "ETag": f'"{hub.hash_of(path, data)}"'}
        if any(fault(self, path, data) for fault in list(hub.file_faults)):
            return
        self.send_file(data, **headers)

    def do_HEAD(self):
        self.answer(404)


class Hub:
    """with Hub({"org/name": {"config.json": b"{}"}}) as hub: ... hub.url"""

    def __init__(self, repos, commit=COMMIT):
        self.repos, self.commit = repos, commit
        self.faults, self.file_faults, self.requests, self.overrides = [], [], [], {}
        self.sent_bytes = 0
        handler = type("Bound", (Handler,), {"hub": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # a client that was killed is no news
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()

    @staticmethod
    def is_lfs(path):
        return path.endswith((".safetensors", ".gguf", ".model"))

    def hash_of(self, path, data):
        return hashlib.sha256(data).hexdigest() if self.is_lfs(path) else git_hash(data)

    def listing(self, repo):
        files = []
        for path, data in self.repos[repo].items():
            entry = {"rfilename": path, "size": len(data), "blobId": git_hash(data)}
            if self.is_lfs(path):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entry.update(self.overrides.get(path, {}))
            files.append(entry)
        return {"id": repo, "sha": self.commit, "gated": False, "siblings": files}

    def asked(self, path):
        """The Range headers of the requests for a file, None where there was none."""
        return [h.get("Range") for p, h in self.requests if p.endswith("/" + urllib.parse.quote(path))]
