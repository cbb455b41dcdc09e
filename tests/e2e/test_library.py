"""The models on this disk, at the program's door: names, folders and limits as no careful person makes them."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess

import pytest

from conftest import model_path, program_path
from hub_server import Hub, noise
from test_get import LIMIT_S, MIB, REPO, age, get_slowly, home  # noqa: F401 (a fixture)

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
    assert home.run("ls", "no such words").returncode == 3 and home.run("ls", "--json", "nope").returncode == 3
    assert home.run("ls").returncode == 0  # what cannot be kept is no reason to write again
    assert os.stat(home.path / "ingle" / "registry.json").st_mtime_ns == before


def test_a_model_whose_name_is_no_utf8_is_described(home):
    home.models.mkdir(parents=True)
    os.symlink(model_path(), os.path.join(os.fsencode(home.models), ODD))
    got = home.run("show", "odd", "--json")
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stdout)["path"].endswith("/odd\ufffd\ufffd.gguf")


def test_a_cache_whose_name_is_no_utf8_is_told_as_json(home):
    cache = os.fsencode(home.path) + b"/hub\xff"
    with Hub({REPO: {"config.json": b"{}", "m.safetensors": b"x"}}) as hub:
        got = home.run("get", REPO, "--json", hub=hub, env={"HF_HUB_CACHE": cache})
        events = [json.loads(line) for line in got.stdout.splitlines()]
    assert got.returncode == 0 and events[-1]["event"] == "done" and "hub\ufffd/" in events[-1]["path"]


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


# ---- rm and gc --------------------------------------------------------------------------------------------


def test_rm_takes_whole_names_only(home):
    put(home, "precious.gguf")
    (home.path / "elsewhere.gguf").write_bytes(b"x")
    for word, code, says in (("", 2, "empty"), (" ", 2, "empty"), ("\t ", 2, "empty"), ("e", 3, "did you mean precious.gguf?"),
                             ("gguf", 3, "precious.gguf"), ("precious.ggu", 3, "precious.gguf"), ("pre cious", 3, "precious.gguf"),
                             (".", 3, ""), ("..", 3, ""), (str(home.models), 3, ""), ("*", 3, ""), ("absent", 3, "ls"),
                             (str(home.path / "elsewhere.gguf"), 3, "")):
        for flags in (["-y"], ["-y", "--json"]):
            got = home.run("rm", *flags, "--", word)
            assert got.returncode == code and says in got.stderr, (word, got.returncode, got.stderr)
            assert (home.models / "precious.gguf").exists() and got.stdout == "", word
    assert (home.path / "elsewhere.gguf").exists()


@pytest.mark.parametrize("word", ["precious.gguf", "precious", "PRECIOUS", "path"])
def test_rm_knows_a_file_by_name_and_by_path(home, word):
    put(home, "precious.gguf")
    put(home, "precious-2.gguf")
    assert home.run("rm", "-y", str(home.models / "precious.gguf") if word == "path" else word).returncode == 0
    assert [p.name for p in home.models.iterdir()] == ["precious-2.gguf"]


def test_rm_of_two_names_that_differ_in_case_takes_the_one_that_was_said(home):
    put(home, "m.gguf")
    put(home, "M.gguf")
    put(home, "M.GGUF")
    got = home.run("rm", "-y", "M")
    assert got.returncode == 3 and "could be any" in got.stderr and len(list(home.models.iterdir())) == 3
    assert home.run("rm", "-y", "M.GGUF").returncode == 0
    assert home.run("rm", "-y", "M").returncode == 0
    assert [p.name for p in home.models.iterdir()] == ["m.gguf"]


def test_an_empty_name_is_no_name_for_any_verb(home):
    put(home, "only.gguf")
    for words in (["show", ""], ["serve", " "], ["chat", ""], ["generate", "", "-p", "x"], ["tokens", "-m", "", "x"],
                  ["embed", "-m", "", "x"], ["bench", ""], ["get", ""], ["get", " "], [""]):
        got = home.run(*words)
        assert got.returncode == 2 and got.stdout == "", (words, got.returncode, got.stderr)


def run_denied(home, folder, *words, mode=0o555):
    """The program where nothing in the folder may be removed: as somebody else, when we are root."""
    root = os.geteuid() == 0
    for path in [home.path, *home.path.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)
    parent = home.path.parent
    while root and parent != parent.parent and not os.stat(parent).st_mode & 1:  # pytest's folders are ours alone
        parent.chmod(0o711)
        parent = parent.parent
    folder.chmod(mode)
    try:
        return home.run(*words, **({"user": 65534, "group": 65534, "extra_groups": []} if root else {}))
    finally:
        folder.chmod(0o755)


def may_run_denied():
    program = pathlib.Path(os.path.realpath(program_path()))
    return os.geteuid() != 0 or all(os.stat(p).st_mode & 1 for p in [program, *program.parents])


def test_what_cannot_be_removed_is_said_and_the_exit_code_is_1(home):
    if not may_run_denied():
        pytest.skip("nobody else may run the program where it lies")
    put(home, "a.gguf", b"x" * 5000)
    got = run_denied(home, home.models, "rm", "-y", "a")
    assert got.returncode == 1 and "0 B freed" in got.stderr and "Permission denied" in got.stderr, got.stderr
    got = run_denied(home, home.models, "rm", "-y", "a", "--json")
    told = json.loads(got.stdout)
    assert got.returncode == 1 and not told["done"] and told["bytes"] == 0 and told["gone"] == []
    assert [f["path"] for f in told["failed"]] == [str(home.models / "a.gguf")] and "denied" in told["failed"][0]["why"]
    assert (home.models / "a.gguf").exists()
    blobs = home.repo / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("3" * 64)).write_bytes(b"x" * 5000)
    age(blobs / ("3" * 64), 7200)
    got = run_denied(home, blobs, "gc", "--yes", "--json")
    told = json.loads(got.stdout)
    assert got.returncode == 1 and not told["done"] and told["bytes"] == 0 and len(told["failed"]) == 1
    got = home.run("gc", "--yes", "--json")
    told = json.loads(got.stdout)
    assert got.returncode == 0 and told["done"] and told["bytes"] >= 5000 and told["failed"] == []


def test_an_unfinished_download_is_shown_and_removed_by_its_name(home):
    repo = {"config.json": b"{}", "model.safetensors": noise(3, 3 * MIB)}
    with Hub({REPO: repo}) as hub:
        p = get_slowly(home, hub)
        got = home.run("rm", "-y", REPO)
        assert got.returncode == 7 and str(p.pid) in got.stderr
        p.send_signal(signal.SIGINT)
        assert p.wait(LIMIT_S) == 130
    got = home.run("ls")
    assert REPO in got.stdout and "unfinished" in got.stdout and "ingle get" in got.stdout
    told, = json.loads(home.run("ls", "--json").stdout)
    assert told["unfinished"] and told["name"] == REPO and told["bytes"] > 100000 and not told["runs"]
    assert home.run("show", REPO).returncode == 3
    got = home.run("rm", REPO)
    assert got.returncode == 2 and "unfinished" in got.stdout and home.repo.exists()
    assert home.run("rm", "-y", "model").returncode == 3 and home.repo.exists()
    got = home.run("rm", "-y", REPO)
    assert got.returncode == 0 and "freed" in got.stderr and not home.repo.exists()
    assert home.run("ls", "--json").stdout.strip() == "[]"


def test_rm_of_the_starter_removes_its_bytes(home):
    name = "0123456789abcdef" * 4
    blobs = home.path / "ingle" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / name).write_bytes(b"x" * 50000)
    (blobs / (name + ".ok")).write_text("50000 1\n")
    home.models.mkdir(parents=True)
    os.symlink(f"../blobs/{name}", home.models / "starter.gguf")
    got = home.run("rm", "-y", "starter")
    assert got.returncode == 0 and list(blobs.iterdir()) == [] and "0 B" not in got.stderr, got.stderr


# ---- folders ----------------------------------------------------------------------------------------------


def test_a_folder_full_of_links_to_itself_costs_no_time(home):
    put(home, "m.gguf")
    loop = home.models / "loop"
    loop.mkdir()
    for i in range(60):
        os.symlink(".", loop / f"l{i}")
    got = home.run("ls", limit_s=20)
    assert got.returncode == 0 and "m.gguf" in got.stdout


def test_a_models_folder_that_cannot_be_read_is_said(home):
    (home.path / "ingle").mkdir()
    home.models.write_bytes(b"no folder")
    got = home.run("ls")
    assert got.returncode == 1 and "Not a directory" in got.stderr and "no models yet" not in got.stderr
    home.models.unlink()
    if may_run_denied():
        put(home, "a.gguf")
        got = run_denied(home, home.models, "ls", mode=0)
        assert got.returncode == 1 and "Permission denied" in got.stderr and "no models yet" not in got.stderr
    env = {k: v for k, v in home.env.items() if k in ("PATH",)}
    got = subprocess.run([program_path(), "ls"], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert "HOME" in got.stderr and "put files into" not in got.stderr
