"""Downloads and the library: the real program against a hub of ours that misbehaves in every way we know.

Whatever the hub does, a file under its final name is right to the last byte, or there is none and the program says
why; what came once and was whole is not fetched again.
"""
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from conftest import model_path, program_path
from hub_server import COMMIT, Hub, git_hash, noise

MIB = 1 << 20
REPO = "org/model"
LIMIT_S = 120


def snapshot_repo(seed=1, n=3 * MIB + 12345):
    return {"config.json": b'{"model_type": "none"}', "tokenizer.json": b'{"x": 1}\n' * 1000, "README.md": b"read me",
            "model.safetensors": noise(seed, n), "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx",
            "original/consolidated.safetensors": b"twice", "1_Pooling/config.json": b"{}", "empty.json": b""}


WANTED = {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json", "empty.json"}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


class Home:
    """A home folder of its own: nothing of the machine's caches, tokens or servers is seen."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.cache = self.path / "hub"
        self.models = self.path / "ingle" / "models"
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("HF_", "INGLE_", "XDG_", "CURL_", "SSL_")) and "proxy" not in k.lower()}
        self.env |= {"HOME": str(self.path), "HF_HUB_CACHE": str(self.cache), "INGLE_CACHE": str(self.path / "ingle"),
                     "INGLE_STATE": str(self.path / "state")}

    def run(self, *words, hub=None, env=None, limit_s=LIMIT_S, **kw):
        env = {**self.env, **({"HF_ENDPOINT": hub.url} if hub else {}), **(env or {})}
        return subprocess.run([program_path(), *words], env=env, capture_output=True, text=True, timeout=limit_s,
                              stdin=subprocess.DEVNULL, **kw)

    def get(self, hub, *words, code=0, **kw):
        got = self.run("get", REPO, "--retry-wait", "0.02", *words, hub=hub, **kw) if not words or \
            words[0].startswith("-") else self.run("get", *words, "--retry-wait", "0.02", hub=hub, **kw)
        assert got.returncode == code, (got.returncode, got.stdout, got.stderr)
        return got

    @property
    def repo(self):
        return self.cache / ("models--" + REPO.replace("/", "--"))

    @property
    def snapshot(self):
        return self.repo / "snapshots" / COMMIT

    def files(self):
        """What the snapshot holds."""
        top = self.snapshot
        return {str(p.relative_to(top)): p.read_bytes() for p in sorted(top.rglob("*")) if p.is_file()} \
            if top.exists() else {}

    def blobs(self):
        folder = self.repo / "blobs"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

    def check_blobs(self):
        """No file has a final name and wrong bytes."""
        for name in self.blobs():
            data = (self.repo / "blobs" / name).read_bytes()
            if len(name) == 64:
                assert hashlib.sha256(data).hexdigest() == name
            elif len(name) == 40:
                assert git_hash(data) == name
            else:
                assert ".incomplete" in name, name

    def check_whole(self, repo, wanted=None):
        self.check_blobs()
        assert self.files() == {p: d for p, d in repo.items() if p in (wanted or WANTED)}
        assert not [n for n in self.blobs() if ".incomplete" in n]
        assert (self.repo / "refs" / "main").read_text() == COMMIT
        assert not list(self.repo.rglob(".ingle*")) and os.listdir(self.repo / "refs") == ["main"]


def partial(home, repo, path, n):
    """As if an earlier try had brought n bytes of a file and then been killed."""
    data = repo[path]
    part = home.repo / "blobs" / (hashlib.sha256(data).hexdigest() + ".incomplete")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(data[:n])
    return part


def cut_once(at):
    """The first request for a large file breaks after so many bytes."""
    left = [at]

    def fault(h, path, data):
        if len(data) < MIB or not left:
            return False
        h.send_file(data, cut=left.pop())
        return True
    return fault


# ---- plain ------------------------------------------------------------------------------------------------


def test_a_snapshot_comes_whole_and_a_second_time_nothing_is_fetched(home):
    repo = snapshot_repo()
    with Hub({REPO: repo}) as hub:
        got = home.get(hub)
        assert got.stdout == f"{home.snapshot}\n"
        home.check_whole(repo)
        link = os.readlink(home.snapshot / "1_Pooling" / "config.json")
        assert link == "../../../blobs/" + git_hash(b"{}")
        before = len(hub.requests)
        again = home.get(hub)
        assert "all of it is here" in again.stderr and again.stdout == got.stdout
        assert [p for p, _ in hub.requests[before:]] == [f"/api/models/{REPO}/revision/main?blobs=true"]


def test_python_s_hub_finds_what_we_fetched_and_we_what_it_knows(home):
    hub_py = pytest.importorskip("huggingface_hub")
    repo = snapshot_repo()
    with Hub({REPO: repo}) as hub:
        home.get(hub)
    script = (
        "import sys, json, huggingface_hub as h\n"
        "path = h.snapshot_download(sys.argv[1], local_files_only=True)\n"
        "file = h.hf_hub_download(sys.argv[1], 'model.safetensors', local_files_only=True)\n"
        "info = h.scan_cache_dir()\n"
        "print(json.dumps([path, file, [[r.repo_id, r.size_on_disk, r.nb_files, [str(w) for w in info.warnings]]"
        " for r in info.repos]]))\n")
    out = subprocess.run([sys.executable, "-c", script, REPO], env={**home.env, "HF_HUB_OFFLINE": "1"}, text=True,
                         capture_output=True, timeout=LIMIT_S, check=True).stdout
    path, file, repos = json.loads(out.splitlines()[-1])
    assert path == str(home.snapshot) and file == str(home.snapshot / "model.safetensors")
    assert repos == [[REPO, sum(len(d) for p, d in repo.items() if p in WANTED), len(WANTED), []]]
    assert hub_py.__version__


def test_a_partial_file_of_python_s_hub_is_gone_on_with(home):
    repo = snapshot_repo()
    partial(home, repo, "model.safetensors", 2 * MIB + 777)
    with Hub({REPO: repo}) as hub:
        home.get(hub)
        assert hub.asked("model.safetensors") == [f"bytes={2 * MIB + 777}-{len(repo['model.safetensors']) - 1}"]
    home.check_whole(repo)


def test_patterns_choose_files_and_a_dry_run_fetches_none(home):
    repo = snapshot_repo()
    with Hub({REPO: repo}) as hub:
        got = home.get(hub, "--include", "*.json", "--include", "*.md", "--exclude", "token*", "--dry-run")
        assert "config.json" in got.stdout and "tokenizer.json" not in got.stdout
        assert len(hub.requests) == 1 and not home.cache.exists()
        home.get(hub, "--include", "*.json", "--include", "*.md", "--exclude", "token*")
    home.check_whole(repo, {"config.json", "README.md", "1_Pooling/config.json", "empty.json"})


def test_json_has_one_object_a_line_from_plan_to_done(home):
    repo = snapshot_repo()
    with Hub({REPO: repo}) as hub:
        events = [json.loads(line) for line in home.get(hub, "--json").stdout.splitlines()]
    assert events[0]["event"] == "plan" and {f["path"] for f in events[0]["files"]} == WANTED
    assert events[-1] == {"event": "done", "path": str(home.snapshot)}
    done = [e["done_bytes"] for e in events if e["event"] == "progress"]
    assert done == sorted(done) and done[-1] == events[0]["bytes"]
    assert {e["file"] for e in events if e["event"] == "file"} == WANTED


GGUFS = {"m-Q2_K.gguf": noise(1, 1000), "m-Q4_K_M-00001-of-00002.gguf": noise(2, 2000),
         "m-Q4_K_M-00002-of-00002.gguf": noise(3, 1500), "m-Q8_0.gguf": noise(4, 9000), "mmproj-F16.gguf": b"eye",
         "README.md": b"x", "config.json": b"{}"}


def test_of_gguf_files_one_quantization_is_taken_and_the_others_are_listed(home):
    with Hub({REPO: GGUFS}) as hub:
        got = home.get(hub)
        assert "* Q4_K_M" in got.stderr and "Q8_0" in got.stderr and "in 2 files" in got.stderr
        assert got.stdout == f"{home.snapshot}/m-Q4_K_M-00001-of-00002.gguf\n"
        home.check_whole(GGUFS, {"m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"})
        got = home.get(hub, f"{REPO}:q8_0")
        assert got.stdout == f"{home.snapshot}/m-Q8_0.gguf\n" and "times" not in got.stderr
        got = home.get(hub, f"{REPO}:m-Q4_K_M-00002-of-00002.gguf")
        assert got.stdout.endswith("m-Q4_K_M-00001-of-00002.gguf\n") and "all of it is here" in got.stderr
        got = home.get(hub, f"{REPO}:Q5_K_M", code=3)
        assert "no quantization" in got.stderr and "Q2_K" in got.stderr
        got = home.get(hub, f"{REPO}:config.json")
        assert (home.snapshot / "config.json").read_bytes() == b"{}"


# ---- cuts and resumption ----------------------------------------------------------------------------------


def test_a_connection_that_breaks_anywhere_is_gone_on_with_from_there(home):
    rng = random.Random(7)
    repo = snapshot_repo(n=2 * MIB + 5)
    data = repo["model.safetensors"]
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and
                               (h.send_file(d, cut=rng.randrange(1, len(d) // 5)), True)[1])
        home.get(hub, "--retries", "50")
        starts = [int(r.split("=")[1].split("-")[0]) if r else 0 for r in hub.asked("model.safetensors")]
        assert len(starts) > 5 and starts == sorted(starts) and hub.sent_bytes < len(data) + 200000
    home.check_whole(repo)


def test_cuts_at_a_hundred_places_of_a_body_end_in_the_right_bytes(home):
    rng = random.Random(11)
    repo = {"a.gguf": noise(5, 300000)}
    with Hub({REPO: repo}) as hub:
        cuts = [rng.randrange(0, 300000) for _ in range(100)]
        places = [n for n in sorted(cuts)]

        def fault(h, path, d):
            asked = h.headers.get("Range")
            at = int(asked.split("=")[1].split("-")[0]) if asked else 0
            later = [p for p in places if p > at]
            if not later:
                return False
            h.send_file(d, cut=later[0] - at)
            return True
        hub.file_faults.append(fault)
        home.get(hub, "--retries", "100", "--retry-wait", "0")
        assert hub.sent_bytes < 300000 + 10000
    home.check_whole(repo, {"a.gguf"})


def test_an_interruption_keeps_what_came_and_exits_130(home):
    repo = snapshot_repo(n=8 * MIB)
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and (h.send_file(d, rate=3 * MIB), True)[1])
        env = {**home.env, "HF_ENDPOINT": hub.url}
        p = subprocess.Popen([program_path(), "get", REPO], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + LIMIT_S
        while hub.sent_bytes < 3 * MIB and time.monotonic() < deadline:
            time.sleep(0.02)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=LIMIT_S)
        assert p.returncode == 130 and "is kept" in err and out == ""
        assert not home.files() and not (home.repo / "refs").exists()
        home.check_blobs()
        hub.file_faults.clear()
        hub.requests.clear()
        home.get(hub)
        asked = hub.asked("model.safetensors")
        assert len(asked) == 1 and int(asked[0].split("=")[1].split("-")[0]) >= 2 * MIB
    home.check_whole(repo)


def test_a_finished_file_that_was_damaged_is_found_and_fetched_again(home):
    repo = snapshot_repo(n=2 * MIB)
    with Hub({REPO: repo}) as hub:
        home.get(hub)
        blob = (home.snapshot / "model.safetensors").resolve()
        with open(blob, "r+b") as f:
            f.write(b"damage")
        hub.requests.clear()
        got = home.get(hub, "--verify")
        assert "model.safetensors: what is here is damaged" in got.stderr
        assert [p for p, _ in hub.requests if "/resolve/" in p] == [f"/{REPO}/resolve/{COMMIT}/model.safetensors"]
        home.check_whole(repo)
        assert "damaged" not in home.get(hub, "--verify").stderr
        home.get(hub, "--force")
        assert len(hub.asked("tokenizer.json")) == 1
    home.check_whole(repo)


def kill_many(home, n, seed):
    """kill -9 at n random moments; then a run that ends."""
    rng = random.Random(seed)
    repo = snapshot_repo(n=6 * MIB + 99)
    n_partial, largest = 0, 0
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and (h.send_file(d, rate=6 * MIB // max(1, n // 4)), True)[1])
        env = {**home.env, "HF_ENDPOINT": hub.url}
        for _ in range(n):
            p = subprocess.Popen([program_path(), "get", REPO], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                p.wait(rng.uniform(0.02, 0.45))
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
            home.check_blobs()
            part = [x for x in home.blobs() if x.endswith(".incomplete")]
            large = hashlib.sha256(repo["model.safetensors"]).hexdigest()
            size = max([(home.repo / "blobs" / x).stat().st_size for x in home.blobs() if x.startswith(large)], default=0)
            n_partial += bool(part)
            if (home.repo / "refs").exists():
                home.check_whole(repo)
            else:
                assert size >= largest, "a later try has less than an earlier one"
                largest = size
                assert "config.json" not in home.files()
        hub.file_faults.clear()
        home.get(hub)
        home.check_whole(repo)
        return n_partial, largest, hub.sent_bytes


def test_kill_at_any_moment_and_the_next_start_goes_on(home):
    n = int(os.environ.get("INGLE_TEST_KILLS", "8"))
    n_partial, largest, sent = kill_many(home, n, seed=n)
    print(f"{n} kills, {n_partial} left a part, at most {largest} bytes; {sent} bytes sent in all")
    assert n_partial > 0


def test_kill_while_names_are_given_leaves_no_name_without_its_file(home):
    """Small files and no brake: the kills fall on renames, links and the ref."""
    rng = random.Random(5)
    repo = {f"f{i}.json": noise(i, 500) for i in range(20)} | {"config.json": b"{}", "m.safetensors": noise(99, 5000)}
    n = int(os.environ.get("INGLE_TEST_KILLS", "8"))
    n_refs = 0
    with Hub({REPO: repo}) as hub:
        env = {**home.env, "HF_ENDPOINT": hub.url}
        for i in range(n):
            home.cache = home.path / f"hub{i}"
            env["HF_HUB_CACHE"] = str(home.cache)
            p = subprocess.Popen([program_path(), "get", REPO], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                p.wait(rng.uniform(0.01, 0.4))
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
            home.check_blobs()
            assert all(repo[name] == data for name, data in home.files().items())
            assert all(p.exists() for p in home.snapshot.rglob("*"))  # no link without its file
            if (home.repo / "refs" / "main").exists():
                n_refs += 1
                home.check_whole(repo, set(repo))
            elif "config.json" in home.files():
                assert len(home.files()) == len(repo)
            got = home.run("get", REPO, env=env)
            assert got.returncode == 0, got.stderr
            home.check_whole(repo, set(repo))
    print(f"{n} kills, {n_refs} after the end")


def test_damage_on_the_disk_costs_the_damaged_megabytes_only(home):
    repo = snapshot_repo(n=8 * MIB + 10)
    data = repo["model.safetensors"]
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(cut_once(7 * MIB))
        home.get(hub, "--retries", "0", code=5)
        part, = [home.repo / "blobs" / n for n in home.blobs() if n.endswith(".incomplete")]
        assert part.stat().st_size == 7 * MIB
        with open(part, "r+b") as f:
            for at in (2 * MIB + 5, 3 * MIB, 5 * MIB + 100):
                f.seek(at)
                f.write(bytes([data[at] ^ 1]))
        hub.requests.clear()
        got = home.get(hub)
        assert "3 MiB of what was here are damaged" in got.stderr
        assert hub.asked("model.safetensors") == [f"bytes={2 * MIB}-{4 * MIB - 1}", f"bytes={5 * MIB}-{6 * MIB - 1}",
                                                  f"bytes={7 * MIB}-{len(data) - 1}"]
    home.check_whole(repo)


def test_a_partial_file_of_other_bytes_is_put_right_without_starting_again(home):
    """What nobody vouches for is fetched again and compared, not the whole."""
    repo = snapshot_repo(n=4 * MIB)
    part = partial(home, repo, "model.safetensors", 2 * MIB)
    with open(part, "r+b") as f:
        f.seek(MIB + 1)
        f.write(b"other")
    with Hub({REPO: repo}) as hub:
        got = home.get(hub)
        assert "wrong checksum" in got.stderr
        assert hub.asked("model.safetensors") == [f"bytes={2 * MIB}-{4 * MIB - 1}", f"bytes=0-{2 * MIB - 1}"]
    home.check_whole(repo)


def test_a_partial_file_that_is_too_long_is_cut(home):
    repo = snapshot_repo(n=2 * MIB)
    part = partial(home, repo, "model.safetensors", 2 * MIB)
    with open(part, "ab") as f:
        f.write(b"more")
    with Hub({REPO: repo}) as hub:
        home.get(hub)
        assert hub.asked("model.safetensors") == []
    home.check_whole(repo)


# ---- lies -------------------------------------------------------------------------------------------------


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:]


def test_bytes_that_are_wrong_once_are_found_and_replaced(home):
    repo = snapshot_repo(n=3 * MIB)
    wrong = [flip(repo["model.safetensors"], MIB + 7)]
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and bool(wrong) and (h.send_file(wrong.pop()), True)[1])
        got = home.get(hub)
        assert "wrong checksum" in got.stderr and "1 MiB were wrong" in got.stderr
    home.check_whole(repo)


def test_bytes_that_are_always_wrong_exit_6_and_leave_nothing(home):
    repo = snapshot_repo(n=3 * MIB)
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and (h.send_file(flip(d, 5)), True)[1])
        got = home.get(hub, code=6)
        assert "SHA-256" in got.stderr and "fetched again it is the same" in got.stderr
        assert len(hub.asked("model.safetensors")) == 2
    assert not home.files() and not [n for n in home.blobs() if len(n) != 40]


def test_bytes_that_are_wrong_somewhere_else_each_time_come_right_or_exit_6(home):
    rng = random.Random(3)
    repo = snapshot_repo(n=4 * MIB)
    count = [3]

    def fault(h, path, d):
        if len(d) < MIB or not count[0]:
            return False
        count[0] -= 1
        h.send_file(flip(d, rng.randrange(len(d))))
        return True
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(fault)
        got = home.run("get", REPO, "--retry-wait", "0", hub=hub)
    assert got.returncode in (0, 6), got.stderr
    if got.returncode == 0:
        home.check_whole(repo)
    home.check_blobs()


@pytest.mark.parametrize("told, code", [(4 * MIB, 5), (1 * MIB, 5)])
def test_a_size_that_lies_in_the_list_is_an_error_and_no_file(home, told, code):
    repo = snapshot_repo(n=2 * MIB)
    with Hub({REPO: repo}) as hub:
        hub.overrides["model.safetensors"] = {"lfs": {"sha256": hashlib.sha256(repo["model.safetensors"]).hexdigest(),
                                                      "size": told}}
        got = home.get(hub, "--retries", "2", code=code)
        assert "bytes" in got.stderr
    home.check_blobs()
    assert not home.files()


def test_a_body_without_a_length_and_without_an_end_stops_at_the_size(home):
    repo = snapshot_repo(n=MIB + 1)

    def endless(h, path, d):
        if len(d) < MIB:
            return False
        h.send_response(200)
        h.end_headers()
        h.close_connection = True
        h.wfile.write(d)
        for _ in range(4000):
            h.wfile.write(b"x" * 65536)
        return True
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(endless)
        home.get(hub)
    home.check_whole(repo)


def test_a_content_range_that_lies_makes_us_ask_for_the_whole(home):
    repo = snapshot_repo(n=3 * MIB)
    partial(home, repo, "model.safetensors", MIB)
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: "Range" in h.headers and
                               (h.send_file(d, Content_Range=f"bytes 0-{len(d) - 1}/{len(d)}"), True)[1])
        home.get(hub)
        assert hub.asked("model.safetensors")[-1] is None
    home.check_whole(repo)


def test_a_server_that_knows_no_ranges_or_says_416_sends_the_whole(home):
    for fault in (lambda h, path, d: "Range" in h.headers and (h.send_file(d, status=200), True)[1],
                  lambda h, path, d: "Range" in h.headers and (h.answer(416), True)[1]):
        repo = snapshot_repo(seed=random.random(), n=3 * MIB)
        partial(home, repo, "model.safetensors", MIB + 3)
        with Hub({REPO: repo}) as hub:
            hub.file_faults.append(fault)
            home.get(hub)
        home.check_whole(repo, WANTED) if len(home.blobs()) < 10 else home.check_blobs()
        assert home.files()["model.safetensors"] == repo["model.safetensors"]


def test_a_file_that_changed_meanwhile_is_not_mixed(home):
    repo = snapshot_repo(n=2 * MIB)
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and
                               (h.send_file(d, X_Linked_Etag='"%s"' % ("ab" * 32)), True)[1])
        got = home.get(hub, code=5)
        assert "changed meanwhile" in got.stderr
        hub.file_faults[:] = [lambda h, path, d: len(d) > MIB and (h.send_file(d, X_Repo_Commit="f" * 40), True)[1]]
        got = home.get(hub, code=5)
        assert "changed meanwhile" in got.stderr
    home.check_blobs()
    assert not home.files()


BAD_PATHS = ["../../x", "/etc/x", "a/../../x", "a//b", "a\0b", ".", "..", "a/.", "", "x\ny", "a\\b", "é" * 600, "-" * 300]


@pytest.mark.parametrize("path", BAD_PATHS, ids=range(len(BAD_PATHS)))
def test_a_path_that_leads_out_is_refused_before_anything_is_written(home, path):
    with Hub({REPO: snapshot_repo()}) as hub:
        hub.overrides["config.json"] = {"rfilename": path}
        got = home.get(hub, code=6)
        assert "no path inside a repository" in got.stderr
        assert len(hub.requests) == 1
    assert not home.cache.exists() and not list(home.path.rglob("x"))


def test_no_list_is_an_error_with_a_reason(home):
    bodies = [(b"<!DOCTYPE html><p>Log in", 5, "login page"), (b"", 6, "empty"), (b"[" * 100000, 6, "nested"),
              (b'{"sha": "' + b"x" * (33 << 20), 6, "limit"), (b'{"sha": 1, "siblings": []}', 6, "commit"),
              (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a.gguf", "size": 1}]}).encode(), 6, "checksum"),
              (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": -1, "blobId": COMMIT}]}).encode(), 6, "size"),
              (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1e300, "blobId": COMMIT}]}).encode(), 6,
               "size"),
              (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "blobId": COMMIT}] * 2}).encode(), 6,
               "twice"),
              (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "blobId": "../../../x"}]}).encode(), 6,
               "checksum")]
    for body, code, word in bodies:
        with Hub({REPO: {}}) as hub:
            hub.faults.append(lambda h, path, body=body: (h.answer(200, body), True)[1])
            got = home.get(hub, code=code)
            assert word in got.stderr, got.stderr
    assert not home.cache.exists()


def test_a_link_that_somebody_put_into_the_cache_leads_nowhere(home):
    """Folders of a snapshot are made and opened without following links."""
    outside = home.path / "outside"
    outside.mkdir()
    home.snapshot.mkdir(parents=True)
    (home.snapshot / "1_Pooling").symlink_to(outside)
    with Hub({REPO: snapshot_repo()}) as hub:
        home.get(hub, code=1)
    assert not list(outside.iterdir())


# ---- refusals ---------------------------------------------------------------------------------------------


def test_busy_hubs_are_asked_again_and_retry_after_is_kept(home):
    repo = snapshot_repo(n=MIB)
    plan = [429, 503, 500]
    times = []

    def busy(h, path):
        times.append(time.monotonic())
        if not plan:
            return False
        h.answer(plan.pop(0), Retry_After=1)
        return True
    with Hub({REPO: repo}) as hub:
        hub.faults.append(busy)
        got = home.get(hub)
        assert "too many requests" in got.stderr and "again in 1 s" in got.stderr
        assert times[1] - times[0] >= 0.9 and times[3] - times[2] >= 0.9
    home.check_whole(repo)


def test_a_hub_that_stays_busy_is_given_up_with_exit_5(home):
    with Hub({REPO: snapshot_repo()}) as hub:
        hub.faults.append(lambda h, path: (h.answer(503), True)[1])
        home.get(hub, "--retries", "3", code=5)
        assert len(hub.requests) == 4
        hub.faults[:] = [lambda h, path: (h.answer(429, Retry_After=100000), True)[1]]
        assert "come back in 100000 s" in home.get(hub, code=5).stderr


def test_what_is_private_or_gated_says_what_to_do(home):
    with Hub({REPO: snapshot_repo()}) as hub:
        hub.faults.append(lambda h, path: (h.answer(401, X_Error_Code="RepoNotFound"), True)[1])
        assert "set HF_TOKEN" in home.get(hub, code=5).stderr
        hub.faults[:] = [lambda h, path: "/resolve/" in path and
                         (h.answer(403, X_Error_Code="GatedRepo", X_Error_Message="Visit the page\x1b[31m"), True)[1]]
        got = home.get(hub, code=5)
        assert f"{hub.url}/{REPO}" in got.stderr and "\x1b" not in got.stderr and "access is restricted" in got.stderr
        assert "token" in home.get(hub, code=5, env={"HF_TOKEN": "hf_secret"}).stderr
        hub.faults.clear()
        home.get(hub, "no/such", code=3)
        home.get(hub, "--revision", "v9", code=3)
    home.check_blobs()


def test_where_nothing_listens_it_ends_soon_with_exit_5(home):
    begin = time.monotonic()
    got = home.run("get", REPO, "--retry-wait", "0.1", env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    assert got.returncode == 5 and time.monotonic() - begin < 30, got.stderr
    got = home.run("get", REPO, env={"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "1"})
    assert got.returncode == 5 and "HF_HUB_OFFLINE" in got.stderr


def test_wrong_names_and_settings_exit_2(home):
    for name in ("a/b/c/d", "../x", "x/..", "a/b:../c", "org/na me", "org/", "/x", "-x/y", "a/b:c\x01", "a/" + "b" * 200):
        got = home.run("get", "--", name)
        assert got.returncode == 2, (name, got.stderr)
    for env in ({"HF_ENDPOINT": "ftp://x"}, {"HF_ENDPOINT": "http://user:pass@x"}, {"HF_TOKEN": "a\nHost: b"}):
        got = home.run("get", REPO, env=env)
        assert got.returncode == 2 and "pass" not in got.stderr, got.stderr
    with Hub({REPO: {}}) as hub:
        assert home.get(hub, "--revision", "../../x", code=2)


# ---- the token --------------------------------------------------------------------------------------------


def redirect_to(other, prefix="/resolve/"):
    return lambda h, path: prefix in path and (h.answer(302, Location=other.url + h.path), True)[1]


def test_the_token_goes_to_the_hub_and_to_no_other_host(home):
    repo = snapshot_repo(n=MIB)
    secret = "hf_tell_nobody"
    with Hub({REPO: repo}) as hub, Hub({REPO: repo}) as cdn:
        hub.faults.append(redirect_to(cdn))
        got = home.get(hub, env={"HF_TOKEN": secret})
        assert all(h.get("Authorization") == f"Bearer {secret}" for _, h in hub.requests)
        assert cdn.requests and all(secret not in str(h) for _, h in cdn.requests)
        assert secret not in got.stdout + got.stderr
        assert not any(secret.encode() in p.read_bytes() for p in home.path.rglob("*") if p.is_file())
    home.check_whole(repo)


def test_the_token_comes_back_with_the_hub_and_a_loop_ends(home):
    repo = snapshot_repo(n=MIB)
    with Hub({REPO: repo}) as hub:
        hub.faults.append(lambda h, path: "/resolve/" in path and (h.answer(302, Location=h.path), True)[1])
        got = home.get(hub, code=5)
        assert "redirects" in got.stderr
        hub.faults[:] = [lambda h, path: "/resolve/" in path and (h.answer(302, Location="file:///etc/passwd"), True)[1]]
        assert "not http" in home.get(hub, code=5).stderr
        hub.faults[:] = [lambda h, path: "/resolve/" in path and (h.answer(302), True)[1]]
        assert "nowhere" in home.get(hub, code=5).stderr


def test_a_proxy_is_used_and_a_token_does_not_travel_in_the_clear(home):
    repo = snapshot_repo(n=MIB)
    with Hub({REPO: repo}) as proxy:
        home.get(proxy, env={"HF_ENDPOINT": "http://hub.invalid", "http_proxy": proxy.url, "HF_TOKEN": "hf_secret"})
        assert all(p.startswith("http://hub.invalid/") for p, _ in proxy.requests)
        assert all("hf_secret" not in str(h) for _, h in proxy.requests)
    home.check_whole(repo)


def test_certificates_are_checked_and_https_does_not_lead_to_http(home):
    import shutil
    import ssl
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    pem = home.path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", pem, "-out", home.path / "ca.pem"],
                   check=True, capture_output=True)
    with open(pem, "a", encoding="ascii") as f:
        f.write((home.path / "ca.pem").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    repo = snapshot_repo(n=MIB)
    with Hub({REPO: repo}) as hub, Hub({REPO: repo}) as plain:
        hub.server.socket = context.wrap_socket(hub.server.socket, server_side=True)
        hub.url = hub.url.replace("http:", "https:")
        got = home.get(hub, code=5)
        assert "certificate" in got.stderr and not hub.requests
        trust = {"SSL_CERT_FILE": str(home.path / "ca.pem"), "HF_TOKEN": "hf_secret"}
        hub.faults.append(redirect_to(plain))
        assert "from https to http" in home.get(hub, code=5, env=trust).stderr and not plain.requests
        hub.faults.clear()
        home.get(hub, env=trust)
        assert hub.requests[-1][1]["Authorization"] == "Bearer hf_secret"
    home.check_whole(repo)


def test_a_token_is_read_from_a_file_and_an_organisation_s_endpoint_is_asked(home):
    (home.path / "secret").write_text("hf_from_file\n")
    with Hub({REPO: snapshot_repo(n=MIB)}) as hub:
        home.get(hub, env={"HF_TOKEN_PATH": str(home.path / "secret")})
        assert hub.requests[0][1]["Authorization"] == "Bearer hf_from_file"


# ---- time and space ---------------------------------------------------------------------------------------


def test_a_stalled_connection_is_given_up_and_gone_on_with(home):
    repo = snapshot_repo(n=2 * MIB)
    stalls = [1]

    def stall(h, path, d):
        if len(d) < MIB or not stalls:
            return False
        stalls.pop()
        h.send_response(200)
        h.send_header("Content-Length", str(len(d)))
        h.end_headers()
        h.wfile.write(d[:MIB])
        h.wfile.flush()
        time.sleep(8)
        h.close_connection = True
        return True
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(stall)
        begin = time.monotonic()
        got = home.get(hub, "--timeout", "1")
        assert "nothing came" in got.stderr and time.monotonic() - begin < 30
    home.check_whole(repo)


def test_too_little_space_is_said_before_anything_is_fetched(home):
    repo = snapshot_repo(n=MIB)
    with Hub({REPO: repo}) as hub:
        hub.overrides["model.safetensors"] = {"lfs": {"sha256": "0" * 64, "size": 1 << 45}}
        got = home.get(hub, code=1)
        assert "MB free" in got.stderr and hub.asked("model.safetensors") == []


def test_a_disk_that_is_full_keeps_the_part_and_shows_no_half_file(home):
    import resource
    repo = snapshot_repo(n=4 * MIB)
    limit = 2 * MIB + 1000
    with Hub({REPO: repo}) as hub:
        got = home.get(hub, code=1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert "write" in got.stderr and "File too large" in got.stderr
        part, = [n for n in home.blobs() if n.endswith(".incomplete")]
        assert (home.repo / "blobs" / part).stat().st_size == limit
        home.check_blobs()
        assert not home.files()
        hub.requests.clear()
        home.get(hub)
        assert hub.asked("model.safetensors") == [f"bytes={limit}-{4 * MIB - 1}"]
    home.check_whole(repo)


@pytest.mark.parametrize("limit", [0, 1, 30, 32, 39, 100, 499, 65536, MIB, MIB + 1])
def test_a_disk_that_is_full_at_any_size_gives_no_half_file(home, limit):
    import resource
    repo = {"config.json": b"{}" * 20, "m.safetensors": noise(1, MIB + 500)}
    with Hub({REPO: repo}) as hub:
        got = home.get(hub, code=1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert "File too large" in got.stderr
        home.check_blobs()
        assert not home.files() and not (home.repo / "refs").exists()
        home.get(hub)
    home.check_whole(repo, set(repo))


FAULTS = ["openat", "pwrite64", "pread64", "ftruncate", "fsync", "rename", "renameat", "symlinkat", "mkdir", "mkdirat",
          "flock", "statfs"]


@pytest.mark.parametrize("call", FAULTS)
def test_a_call_of_the_system_that_fails_once_is_an_error_and_no_damage(home, call):
    """strace makes the nth call fail; a plain run afterwards ends well."""
    import shutil
    if not shutil.which("strace"):
        pytest.skip("no strace to make calls fail")
    repo = {"config.json": b"{}", "m.safetensors": noise(1, 2 * MIB), "1_Pooling/config.json": b"{ }"}
    n_most = 12 if int(os.environ.get("INGLE_TEST_KILLS", "0")) >= 100 else 2
    codes = []
    with Hub({REPO: repo}) as hub:
        for n in range(1, n_most + 1):
            home.cache = home.path / f"hub{n}"
            env = {**home.env, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(home.cache)}
            inject = f"inject={call}:error={'ENOSPC' if 'write' in call else 'EIO'}:when={n}"
            got = subprocess.run(["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject,
                                  program_path(), "get", REPO, "--retry-wait", "0.01", "--jobs", "1"],
                                 env=env, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
            if "ptrace" in got.stderr and "not permitted" in got.stderr:
                pytest.skip("this machine does not let strace trace")
            codes.append(got.returncode)
            assert got.returncode in (0, 1, 2, 4, 5, 127), (n, got.stderr)  # 127: the program itself was not loaded
            assert got.returncode in (0, 127) or got.stderr.strip(), n
            home.check_blobs()
            assert all(repo[name] == data for name, data in home.files().items())
            if got.returncode == 0:
                home.check_whole(repo, set(repo))
            assert home.run("get", REPO, env=env).returncode == 0
            home.check_whole(repo, set(repo))
    print(call, codes)


def test_two_processes_fetch_one_repository_once(home):
    repo = snapshot_repo(n=4 * MIB)
    with Hub({REPO: repo}) as hub:
        hub.file_faults.append(lambda h, path, d: len(d) > MIB and (h.send_file(d, rate=4 * MIB), True)[1])
        results = []
        threads = [threading.Thread(target=lambda: results.append(home.run("get", REPO, hub=hub))) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert [r.returncode for r in results] == [0, 0], [r.stderr for r in results]
        assert len(hub.asked("model.safetensors")) == 1
        assert any("waiting" in r.stderr for r in results)
    home.check_whole(repo)


# ---- the library ------------------------------------------------------------------------------------------


def fetched(home, repo, name=REPO):
    with Hub({name: repo}) as hub:
        got = home.run("get", name, hub=hub)
        assert got.returncode == 0, got.stderr


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def test_ls_shows_what_is_there_and_forgets_a_damaged_registry(home):
    home.models.mkdir(parents=True)
    os.symlink(model_path(), home.models / "starter.gguf")
    fetched(home, snapshot_repo(n=1000))
    for damage in (None, "{", '{"version": 1, "models": 7}', '{"version": 1, "models": {"%s": 3}}' % (home.models / "starter.gguf")):
        if damage:
            (home.path / "ingle" / "registry.json").write_text(damage)
        found = {m["name"]: m for m in json.loads(home.run("ls", "--json").stdout)}
        assert set(found) == {"starter.gguf", REPO}
        assert found["starter.gguf"]["runs"] and found["starter.gguf"]["context"] == 8192 and found["starter.gguf"]["fits"]
        assert not found[REPO]["runs"] and found[REPO]["why"]
    table = home.run("ls", "START").stdout.splitlines()
    assert len(table) == 2 and table[1].startswith("starter.gguf") and table[1].endswith("yes")
    got = home.run("scan")
    assert got.stdout == "2 models: 1 runs, 1 does not\n" and "org/model does not run" in got.stderr
    assert home.run("show", "org/model").returncode == 6
    assert home.run("show", "star").returncode == 0


def test_a_name_that_could_be_several_exits_3_with_all_of_them(home):
    fetched(home, GGUFS)
    fetched(home, GGUFS, "other/model")
    got = home.run("show", "model")
    assert got.returncode == 3 and "org/model:Q4_K_M" in got.stderr and "other/model:Q4_K_M" in got.stderr
    got = home.run("rm", "model", "--yes")
    assert got.returncode == 3 and home.snapshot.exists()


def test_a_repository_that_is_not_here_says_how_to_get_it(home):
    for verb in ("show", "serve", "chat"):
        got = home.run(verb, "org/absent:Q4_0")
        assert got.returncode == 3 and "`ingle get org/absent:Q4_0` downloads it" in got.stderr


def test_rm_says_what_it_frees_asks_first_and_takes_one_quantization(home):
    fetched(home, GGUFS)
    with Hub({REPO: GGUFS}) as hub:
        home.get(hub, f"{REPO}:Q8_0")
    got = home.run("rm", f"{REPO}:Q8_0")
    assert got.returncode == 2 and "--yes" in got.stderr and (home.snapshot / "m-Q8_0.gguf").exists()
    got = home.run("rm", f"{REPO}:Q8_0", "--yes")
    assert got.returncode == 0 and "freed" in got.stderr
    assert sorted(home.files()) == ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"]
    assert len(home.blobs()) == 2
    assert home.run("rm", REPO, "--yes").returncode == 0 and not home.repo.exists()
    home.models.mkdir(parents=True)
    (home.models / "a.gguf").write_bytes(b"x")
    (home.models / "ab.gguf").write_bytes(b"x")
    assert home.run("rm", "../models", "--yes").returncode == 3
    assert home.run("rm", "a", "--yes").returncode == 0
    assert [p.name for p in home.models.iterdir()] == ["ab.gguf"]


def test_gc_keeps_what_a_name_leads_to_and_removes_the_rest(home):
    repo = snapshot_repo(n=1000)
    old = "a" * 40
    with Hub({REPO: repo}, commit=old) as hub:
        home.get(hub)
    repo["model.safetensors"] = noise(9, 1000)
    fetched(home, repo)
    with Hub({REPO: {"only-here.json": b"1"} | repo}, commit="b" * 40) as hub:
        home.get(hub, "--revision", "b" * 40)
    blobs = home.repo / "blobs"
    for p in blobs.iterdir():
        age(p, 7200)
    for name, days in (("1" * 64 + ".incomplete", 8), ("2" * 64 + ".incomplete", 6), ("3" * 64, 1)):
        (blobs / name).write_bytes(b"x" * 5000)
        age(blobs / name, days * 86400)
    (blobs / ("4" * 64)).write_bytes(b"fresh")
    before = sorted(home.path.rglob("*"))
    plan = home.run("gc")
    assert sorted(p for p in home.path.rglob("*") if ".locks" not in str(p)) == [p for p in before if ".locks" not in str(p)]
    assert old in plan.stdout and "1" * 64 in plan.stdout and "2" * 64 not in plan.stdout and "3" * 64 in plan.stdout
    assert "b" * 40 in plan.stderr and "no other revision" in plan.stderr
    done = home.run("gc", "--yes")
    assert done.returncode == 0 and done.stdout == plan.stdout
    names = {p.name for p in (home.repo / "snapshots").iterdir()}
    assert names == {COMMIT, "b" * 40}
    assert "2" * 64 + ".incomplete" in home.blobs() and "4" * 64 in home.blobs()
    assert not any(n.startswith(("1" * 64, "3" * 64)) for n in home.blobs())
    assert home.files() == {p: d for p, d in repo.items() if p in WANTED}
    assert home.run("gc", "--yes", "--force").returncode == 0
    assert {p.name for p in (home.repo / "snapshots").iterdir()} == {COMMIT}


def get_slowly(home, hub):
    """A download of REPO in the middle of its file, which goes on for a second or two."""
    hub.file_faults.append(lambda h, path, d: len(d) > MIB and (h.send_file(d, rate=2 * MIB), True)[1])
    env = {**home.env, "HF_ENDPOINT": hub.url}
    p = subprocess.Popen([program_path(), "get", REPO], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while hub.sent_bytes < MIB and p.poll() is None:
        time.sleep(0.02)
    return p


def test_what_is_being_fetched_is_not_collected(home):
    repo = snapshot_repo(n=4 * MIB)
    with Hub({REPO: repo}) as hub:
        p = get_slowly(home, hub)
        assert "being downloaded" in home.run("gc", "--yes", "--force").stderr
        assert p.wait(LIMIT_S) == 0
    home.check_whole(repo)


def test_a_served_model_is_neither_removed_nor_collected(home, start_server):
    data = pathlib.Path(model_path()).read_bytes()
    fetched(home, {"m-Q4_1.gguf": data})
    server = start_server(model=f"{REPO}:Q4_1", env={k: home.env[k] for k in home.env if k.startswith(("H", "INGLE"))})
    note, = (home.path / "state" / "servers").iterdir()
    told = json.loads(note.read_text())
    assert told["pid"] == server.pid and told["port"] == server.port and told["url"] == server.url
    got = home.run("rm", REPO, "--yes")
    assert got.returncode == 7 and str(server.pid) in got.stderr
    (home.repo / "refs" / "main").unlink()
    assert "being served" in home.run("gc", "--yes", "--force").stderr
    assert home.files()["m-Q4_1.gguf"] == data
    assert server.stop() == 0 and not note.exists()
    note.write_text(json.dumps({**told, "path": str(home.snapshot)}))  # of a process that is gone
    assert home.run("rm", REPO, "--yes").returncode == 0
    assert not home.repo.exists() and not note.exists()
