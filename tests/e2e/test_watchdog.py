"""An engine that hangs: whoever waits is told, /health says so, and the program ends with 70."""
import os
import pathlib
import subprocess
import threading

import pytest

from test_http_hangup import LONG, open_request, read_events


@pytest.fixture(scope="module")
def hang_library(tmp_path_factory):
    out = tmp_path_factory.mktemp("hang") / "hang.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", out, pathlib.Path(__file__).with_name("hang.c"), "-ldl"],
                   check=True)
    return str(out)


def test_an_engine_that_hangs_is_told_to_all_and_ends_the_program(start_server, tiny_model, hang_library, tmp_path):
    mark = tmp_path / "hang"
    server = start_server("--watchdog", "1", "--batch", "1", model=tiny_model, env={"LD_PRELOAD": hang_library, "HANG_FILE": str(mark)})
    assert server.chat().status_code == 200
    streamed = open_request(server, {**LONG, "stream": True, "max_tokens": 200})
    got = read_events(streamed, 2)  # with what else had come: on a busy machine that can be the whole answer
    mark.touch()
    whole = []
    t = threading.Thread(target=lambda: whole.append(server.chat(max_tokens=200)))
    t.start()
    while more := streamed.recv(65536):
        got += more
    t.join(60)
    if b"[DONE]" not in got:  # it may have ended before the mark was seen
        assert b'"code":"engine_failed"' in got and b'"finish_reason":"' not in got, got[-400:]
    assert whole[0].status_code == 500 and whole[0].json()["error"]["code"] == "engine_failed"
    assert server.process.wait(60) == 70
    line = next(line for line in server.log if "engine_stuck" in line)
    assert "stage=" in line and "step=" in line and "limit_s=1" in line


def test_an_engine_that_hangs_before_its_first_step_is_noticed_too(start_server, tiny_model, hang_library, tmp_path):
    mark = tmp_path / "hang"
    server = start_server("--watchdog", "1", model=tiny_model, env={"LD_PRELOAD": hang_library, "HANG_FILE": str(mark)})
    assert server.chat().status_code == 200
    mark.touch()  # nothing runs: the next request finds the thread dead
    reply = server.chat()
    assert reply.status_code == 500 and reply.json()["error"]["code"] == "engine_failed"
    assert server.process.wait(60) == 70


def test_a_busy_engine_is_no_hanging_one(start_server, tiny_model):
    server = start_server("--watchdog", "1", model=tiny_model)
    for _ in range(3):
        assert server.chat(max_tokens=200).status_code == 200
    import time
    time.sleep(2.5)  # idle is no hanging, either
    assert server.chat().status_code == 200 and server.alive()
