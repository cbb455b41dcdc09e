"""The models on this disk, at the program's door: names, folders and limits as no careful person makes them."""
import json
import os
import re
import resource
import shutil
import subprocess
import time

import pytest

from conftest import model_path, program_path
from test_get import LIMIT_S, home  # noqa: F401 (a fixture)

ODD = b"odd\xff\xfe.gguf"


def put(home, name, data=b"no model"):
    """A file in the models folder; the name may be bytes."""
    home.models.mkdir(parents=True, exist_ok=True)
    path = os.path.join(os.fsencode(home.models), os.fsencode(name))
    with open(path, "wb") as f:
        f.write(data)
    return path


# ---- names ------------------------------------------------------------------------------------------------


def test_a_name_that_is_no_utf8_is_shown_with_marks_and_hides_no_other(home):
    put(home, ODD)
    put(home, "plain.gguf")
    got = home.run("ls", "--json")
    assert got.returncode == 0, got.stderr
    assert {m["name"] for m in json.loads(got.stdout)} == {"odd\ufffd\ufffd.gguf", "plain.gguf"}
    kept = json.loads((home.path / "ingle" / "registry.json").read_text())["models"]
    assert list(kept) == [str(home.models / "plain.gguf")]
    before = os.stat(home.path / "ingle" / "registry.json").st_mtime_ns
    assert home.run("ls").returncode == 0  # what cannot be kept is no reason to write again
    assert os.stat(home.path / "ingle" / "registry.json").st_mtime_ns == before


def test_a_model_whose_name_is_no_utf8_is_described(home):
    home.models.mkdir(parents=True)
    os.symlink(model_path(), os.path.join(os.fsencode(home.models), ODD))
    got = home.run("show", "odd", "--json")
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stdout)["path"].endswith("/odd\ufffd\ufffd.gguf")


def test_names_move_no_cursor(home):
    for name in ("a\x1b[2J.gguf", "b\x1b]0;x\x07.gguf"):
        put(home, name)
    for words in (["show", "gguf"], ["show", "absent"], ["rm", "absent"], ["rm", "gguf"], ["ls"], ["scan"]):
        got = home.run(*words)
        assert "\x1b" not in got.stdout + got.stderr and "\x07" not in got.stdout + got.stderr, words


# ---- what the system refuses ------------------------------------------------------------------------------


def leftovers(home):
    return sorted(p.name for p in (home.path / "ingle").iterdir() if p.name not in ("models", "registry.json"))


def test_a_limit_on_the_size_of_files_is_an_answer_and_no_death(home):
    put(home, "a.gguf")
    for words in (["ls"], ["ls", "--json"], ["scan"]):
        got = home.run(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        assert got.returncode == (1 if words == ["scan"] else 0), (words, got.returncode, got.stderr)
        assert "a.gguf" in got.stdout + got.stderr and leftovers(home) == []
        assert words != ["scan"] or "File too large" in got.stderr
    assert not (home.path / "ingle" / "registry.json").exists()


def test_a_result_that_goes_nowhere_is_an_error(home):
    put(home, "a.gguf")
    for to in (">&-", ">/dev/full"):
        got = subprocess.run(["sh", "-c", f'exec "$0" ls {to}', program_path()], env=home.env, capture_output=True,
                             text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        assert got.returncode == 1 and "write to stdout" in got.stderr, (to, got.returncode, got.stderr)
    got = subprocess.run(["sh", "-c", 'exec "$0" ls <&- 2>&-', program_path()], env=home.env, capture_output=True,
                         text=True, timeout=LIMIT_S)
    assert got.returncode == 0 and "a.gguf" in got.stdout


def test_closed_files_and_no_dev_null_are_no_death(home):
    if os.geteuid() != 0 or not shutil.which("ldd"):
        pytest.skip("only root may change the root folder, and ldd must name the libraries")
    top = home.path / "root"
    top.mkdir()
    program = os.path.realpath(program_path())
    needed = re.findall(r"(/\S+)", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout)
    for path in needed:
        if path.startswith("/") and os.path.exists(path) and ":" not in path:
            os.makedirs(str(top) + os.path.dirname(path), exist_ok=True)
            shutil.copy(path, str(top) + path)
    shutil.copy(program, top / "ingle")
    for fds, code in (((0,), 0), ((2,), 0), ((0, 2), 0), ((1,), 1), ((0, 1, 2), 1)):
        def enter(fds=fds):
            os.chroot(top)
            os.chdir("/")
            for fd in fds:
                os.close(fd)
        got = subprocess.run(["/ingle", "version"], preexec_fn=enter, capture_output=True, text=True, timeout=LIMIT_S)
        assert got.returncode == code, (fds, got.returncode, got.stderr)
