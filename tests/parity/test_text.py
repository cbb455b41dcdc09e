"""What `ingle generate --l1` prints against what the command mlx_lm.generate printed for the same arguments."""
import json
import subprocess

import cli
import golden
import pytest

CLI = json.loads((golden.FOLDER / "cli.json").read_text())


@pytest.fixture(scope="session")
def generate(build_folder):
    program = build_folder / "ingle"
    assert program.exists(), f"there is no {program}"
    told = subprocess.run([program, "generate", "--help"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    if "--l1" not in told.stdout:
        pytest.skip("skipped, because this ingle has no --l1")

    return lambda folder, settings: cli.plain(cli.ours(program, folder, settings))


def test_the_stored_texts_are_of_the_pinned_oracle_and_differ():
    assert CLI["oracle"] == golden.pins()
    assert len({r["text"] for r in CLI["runs"]}) == len(CLI["runs"]) > 6
    assert all(len(r["text"]) > 20 for r in CLI["runs"])


@pytest.mark.parametrize("settings", CLI["runs"], ids=lambda r: f"{r['checkpoint']}-{r.get('seed', 'greedy')}")
def test_the_command_prints_what_mlx_lm_prints(settings, checkpoint, generate):
    folder = checkpoint(settings["checkpoint"], settings["sha256"])
    assert generate(folder, settings) == cli.plain(settings["text"])


def test_another_seed_prints_something_else(checkpoint, generate):
    """Negative control."""
    settings = next(r for r in CLI["runs"] if r.get("seed") == 42)
    folder = checkpoint(settings["checkpoint"], settings["sha256"])
    assert generate(folder, settings | dict(seed=43)) != cli.plain(settings["text"])
