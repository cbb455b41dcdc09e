"""The server's race with the real program: what is counted is what the program itself has counted."""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time

import common
import load
import pytest
import race_server

CONTEXT = 2048


@pytest.fixture(scope="module")
def ingle():
    program = os.environ.get("INGLE_PROGRAM") or str(common.TOP / "build" / "ingle")
    model = common.default_model()
    if not os.access(program, os.X_OK) or not os.path.exists(model):
        pytest.skip("the program or the starter model is not there")
    a = argparse.Namespace(model=model, threads=common.CORES, context=CONTEXT, timeout=300)
    return race_server.Program(a, race_server.INGLE, program)


def stats(server):
    return json.loads(race_server.get(server.port, "/stats")[1])


def test_tokens_and_context_are_those_that_the_server_counts(ingle):
    prompts = race_server.Prompts(1)
    system = prompts.prefix()
    with ingle.start(4) as s:
        assert 0 < s.ready_s < 300 and stats(s)["batch"]["configured"] == 4
        blocks = stats(s)["kv"]["blocks_total"]
        assert CONTEXT <= blocks * race_server.BLOCK_TOKENS <= CONTEXT + 2 * race_server.BLOCK_TOKENS
        s.drive([[prompts.chat(1, system)]], 300)
        result, _ = s.drive([[prompts.chat(12, system), prompts.chat(12)] for _ in range(4)], 300)
        counted, memory = stats(s)["requests"], s.memory()
    assert result.tokens == counted["generated_tokens"] - 1
    assert result.early == 0 and result.tokens == 8 * 12
    assert 4 * 400 < result.cached < 8 * 500  # of the shared beginning, by the chats that have it
    assert len(result.first) == 8 and 0 < len(result.gaps) <= 8 * 11
    assert memory["rss_mb"] == pytest.approx(memory["anon_mb"] + memory["file_mb"], abs=1)
    assert memory["rss_mb"] * 1e6 > os.path.getsize(ingle.a.model)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", s.port), 1)
    assert s.process.returncode is not None


def test_a_server_that_dies_ends_the_race_with_its_last_words(ingle):
    with ingle.start(1) as s:
        s.process.send_signal(signal.SIGKILL)
        s.process.wait()
        with pytest.raises(SystemExit, match="INGLE_READY"):
            s.drive([[race_server.Prompts(1).chat(2)]], 10)


def test_a_server_that_does_not_start_says_why(ingle):
    a = argparse.Namespace(**{**vars(ingle.a), "model": "/nowhere/there.gguf"})
    with pytest.raises(SystemExit, match="there.gguf"):
        race_server.Program(a, race_server.INGLE, ingle.path)


def test_prompts_are_distinct_unless_they_are_meant_to_be_alike():
    prompts, again = race_server.Prompts(1), race_server.Prompts(1)
    texts = [prompts.chat(1)["messages"][0]["content"] for _ in range(500)]
    assert len({t[:15] for t in texts}) == 500
    assert [again.chat(1)["messages"][0]["content"] for _ in range(500)] == texts  # every program gets the same
    a, b = prompts.prefix(), prompts.prefix()
    assert a[:60] != b[:60]
    assert prompts.chat(1, a)["messages"][0] == prompts.chat(1, a)["messages"][0]


def row(program, number, work, **figures):
    return {"program": program, "round": number, "work": work, "others_cpu": 0.0} | figures


def test_results_pair_the_rounds_of_one_kind_of_load():
    speed = {"llama.cpp": 1, "ingle": 2, "distinct": 1, "shared": 3}
    rows = [row(p, n, "chat", prompts=kind, streams=k, tok_s=k * n * speed[p] * speed[kind])
            for p in ("llama.cpp", "ingle") for n in (1, 2, 3) for kind in race_server.KINDS for k in (1, 8)]
    rows += [row(p, n, "ready", ready_ms=v) for n in (1, 2, 3) for p, v in (("llama.cpp", 800.0), ("ingle", 100.0))]
    r = race_server.result(rows, 0.1, "tok_s", work="chat", prompts="shared", streams=8)
    assert (r.ratio, r.peer, r.us) == (2, 48, 96)
    assert race_server.result(rows, 0.1, "ready_ms", work="ready").ratio == 0.125


def test_a_server_ends_with_its_script_however_that_ends(ingle):
    code = ("import sys, time; sys.path[:0] = sys.argv[1:2]; import race_server\n"
            "s = race_server.Server(sys.argv[3:], int(sys.argv[2]), 300)\nprint(flush=True)\ntime.sleep(600)\n")
    port = race_server.free_port()
    words = [common.HERE, port, *ingle.command(port, 1)]
    script = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, text=True)
    script.stdout.readline()
    assert race_server.get(port, "/health")[0] == 200
    script.kill()
    script.wait()
    end = time.monotonic() + 60
    while race_server.get(port, "/health"):
        assert time.monotonic() < end, "it outlived its script"
        time.sleep(0.01)
