"""What the quality tests share: the starter model, and ingle's logits through tools/golden/dump_ingle."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tools" / "golden"))


@pytest.fixture(scope="session")
def build_folder():
    """Where the program under test was built; `make` brings it up to date."""
    program = os.environ.get("INGLE_PROGRAM")
    return pathlib.Path(program).resolve().parent if program else TOP / os.environ.get("B", "build")


@pytest.fixture(scope="session")
def starter():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = pathlib.Path(os.environ.get("INGLE_CACHE") or os.path.join(base, "ingle"))
    path = pathlib.Path(os.environ.get("INGLE_TEST_MODEL") or cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not path.exists():
        pytest.skip(f"skipped, because there is no {path}")
    return path


@pytest.fixture(scope="session")
def gemma():
    path = os.environ.get("INGLE_TEST_GEMMA")
    if not path or not os.path.exists(path):
        pytest.skip("skipped, because INGLE_TEST_GEMMA names no file (tools/fetch.py model gemma-3-270m)")
    return pathlib.Path(path)


@pytest.fixture(scope="session")
def gemma_prose(gemma, build_folder):
    """f(n) -> ids of n tokens of prose, cut by ingle itself."""
    import text

    prose = "\n\n".join(p for p, _ in zip(text.prose("python"), range(60)))
    done = subprocess.run([build_folder / "ingle", "tokens", "-m", gemma, "--special", "--json", "-"], input=prose.encode(),
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = [t["id"] for t in json.loads(done.stdout)["tokens"]]

    def ids(n):
        assert len(found) >= n and found[0] == 2, (len(found), found[:3])
        return found[:n]

    return ids


@pytest.fixture(scope="session")
def golden_programs(build_folder):
    """The folder with the programs of tools/golden/dump.mk."""
    # B as ./check names it: another spelling is another command line, and everything would be compiled again
    b = build_folder.relative_to(TOP) if build_folder.is_relative_to(TOP) else build_folder
    done = subprocess.run(["make", "--no-print-directory", "-f", "tools/golden/dump.mk", "dump", f"B={b}"],
                          cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return build_folder


@pytest.fixture(scope="session")
def ingle_logits(golden_programs, tmp_path_factory):
    """f(model, ids, window, **more) -> f32 [n_ids][n_vocab] of ingle's forward."""
    import ggufio
    import numpy as np

    folder = tmp_path_factory.mktemp("logits")

    def run(model, ids, window, threads=2, chunk=64, kv_bits=16, act_bits=8):
        tokens, out = folder / "ids", folder / "logits"
        tokens.write_text(" ".join(map(str, ids)))
        done = subprocess.run([golden_programs / "dump_ingle", model, tokens, out,
                               *map(str, (window, threads, chunk, kv_bits, act_bits))],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-4000:]
        n_vocab = ggufio.File(model).tensors["token_embd.weight"].shape[0]
        logits = np.fromfile(out, "<f4").reshape(len(ids), n_vocab)
        out.unlink()
        return logits

    return run
