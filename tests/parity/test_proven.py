"""What the goldens of tier l1 prove, left for tools/proof.py: every tiny checkpoint with scalar kernels, to
which check_kern compares the others; and the engine's steps, by a text of `ingle generate --l1`. What draws
is proven by src/engine/sample_mlx_test.c."""
import json
import os

import proven
import pytest

golden = pytest.importorskip("golden", reason="skipped, because this tree has no goldens of tier l1")
import cases  # noqa: E402
import cli  # noqa: E402
import snapshots  # noqa: E402
from test_l1 import compare, run_of  # noqa: E402

GREEDY = [r for r in json.loads((golden.FOLDER / "cli.json").read_text())["runs"] if not r.get("temp")]

TINY = [n for n, c in cases.CASES.items() if c["checkpoint"].rsplit("-", 1)[0] not in snapshots.REAL]
SCALAR = {"INGLE_CPU": "scalar"}


@pytest.mark.parametrize("name", TINY)
def test_scalar_kernels_give_every_array_of_mlx_lm(name, build_folder, manifest, checkpoint, dump_l1, tmp_path):
    compare(name, run_of(name, manifest, checkpoint, dump_l1, tmp_path, cpu="scalar"))
    case = manifest["cases"][name]
    model = checkpoint(case["checkpoint"], case["sha256"])
    proven.note("scalar", build_folder / "ingle", model, "--l1", env=os.environ | SCALAR)


@pytest.mark.parametrize("settings", GREEDY, ids=lambda r: r["checkpoint"])
def test_the_engine_prints_what_mlx_lm_prints(settings, build_folder, checkpoint):
    program = build_folder / "ingle"
    folder = checkpoint(settings["checkpoint"], settings["sha256"])
    assert cli.plain(cli.ours(program, folder, settings)) == cli.plain(settings["text"])
    proven.note("engine", program, folder, "--l1", generated=True)


def test_there_is_something_to_prove():
    assert len(TINY) > 100 and GREEDY
