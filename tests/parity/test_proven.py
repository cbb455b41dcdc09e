"""What the goldens of tier l1 prove, left for tools/proof.py: every tiny checkpoint with scalar kernels, to which check_kern
compares the others; and the engine's steps, by texts of `ingle generate --l1`."""
import os

import proven
import pytest

golden = pytest.importorskip("golden", reason="skipped, because this tree has no goldens of tier l1")
import cases  # noqa: E402
import snapshots  # noqa: E402
from test_l1 import compare, run_of  # noqa: E402
import cli  # noqa: E402
from test_text import CLI, generate  # noqa: E402, F401

TINY = [n for n, c in cases.CASES.items() if c["checkpoint"].rsplit("-", 1)[0] not in snapshots.REAL]
SCALAR = {"INGLE_CPU": "scalar"}


@pytest.mark.parametrize("name", TINY)
def test_scalar_kernels_give_every_array_of_mlx_lm(name, build_folder, manifest, checkpoint, dump_l1, tmp_path):
    compare(name, run_of(name, manifest, checkpoint, dump_l1, tmp_path, cpu="scalar"))
    case = manifest["cases"][name]
    model = checkpoint(case["checkpoint"], case["sha256"])
    proven.note("scalar", build_folder / "ingle", model, "--l1", env=os.environ | SCALAR)


@pytest.mark.parametrize("settings", CLI["runs"], ids=lambda r: f"{r['checkpoint']}-{r.get('seed', 'greedy')}")
def test_the_engine_prints_what_mlx_lm_prints(settings, build_folder, checkpoint, generate):  # noqa: F811
    folder = checkpoint(settings["checkpoint"], settings["sha256"])
    assert generate(folder, settings) == cli.plain(settings["text"])
    # What a request asks for is in `when` of a node by the same name: "temperature > 0", "top_p"
    asked = {"temperature > 0"} if settings.get("temp") else set()
    asked |= {key for key, value in settings.items() if value}
    p = proven.plan(build_folder / "ingle", folder, "--l1")
    proven.note("engine", build_folder / "ingle", folder, "--l1", generated=True,
                asked_for={n["id"] for n in p["nodes"] if n["when"] in asked})
