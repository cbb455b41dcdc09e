"""What `ingle generate --l1` prints against what the command mlx_lm.generate printed for the same arguments."""
import json
import os
import subprocess

import golden
import pytest

CLI = json.loads((golden.FOLDER / "cli.json").read_text())
OURS = dict(prompt="-p", max_tokens="-n", seed="--seed", temp="--temp", top_p="--top-p", min_p="--min-p", top_k="--top-k")
OFF = dict(temp=0.0, top_p=0, min_p=0, top_k=0)  # what mlx-lm does when it is not told


@pytest.fixture(scope="session")
def generate(build_folder):
    program = os.environ.get("INGLE_PROGRAM") or build_folder / "ingle"
    told = subprocess.run([program, "generate", "--help"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    if "--l1" not in told.stdout:
        pytest.skip("skipped, because this ingle has no --l1")

    def run(folder, settings):
        command = [program, "generate", "--l1", "-m", folder]
        for key, value in (OFF | settings).items():
            if key in OURS:
                command += [OURS[key], str(value)]
        done = subprocess.run(command + ["--raw"] * settings.get("raw", False), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.removesuffix("\n")

    return run


def plain(text):
    """Without the space of a first word, which mlx-lm's streaming leaves out and one-shot decoding does not."""
    return text.removeprefix(" ")


def test_the_stored_texts_are_of_the_pinned_oracle_and_differ():
    assert CLI["oracle"] == golden.pins()
    assert len({r["text"] for r in CLI["runs"]}) == len(CLI["runs"]) > 6
    assert all(len(r["text"]) > 20 for r in CLI["runs"])


@pytest.mark.parametrize("settings", CLI["runs"], ids=lambda r: f"{r['checkpoint']}-{r.get('seed', 'greedy')}")
def test_the_command_prints_what_mlx_lm_prints(settings, checkpoint, generate):
    folder = checkpoint(settings["checkpoint"], settings["sha256"])
    assert plain(generate(folder, settings)) == plain(settings["text"])


def test_another_seed_prints_something_else(checkpoint, generate):
    """Negative control."""
    settings = next(r for r in CLI["runs"] if r.get("seed") == 42)
    folder = checkpoint(settings["checkpoint"], settings["sha256"])
    assert plain(generate(folder, settings | dict(seed=43))) != plain(settings["text"])
