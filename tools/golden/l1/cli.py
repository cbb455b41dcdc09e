#!/usr/bin/env python3
"""What the command mlx_lm.generate prints: tests/golden/l1/cli.json. A run is a checkpoint and mlx-lm's own options.

    cli.py CACHE

The command seeds before it loads the model, and loading draws numbers: what is drawn for the first token depends on
how many matrices a model has. (sampled.py has the same samplers where the seed comes after.)
"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import golden  # noqa: E402
import snapshots  # noqa: E402

PROMPT = "Write two sentences about a lighthouse."
START = "The first bridge over the river"
RUNS = [
    dict(checkpoint="smollm2-bf16", prompt=PROMPT, max_tokens=32),
    dict(checkpoint="smollm2-bf16", prompt=PROMPT, max_tokens=32, seed=42, temp=0.8),
    dict(checkpoint="smollm2-bf16", prompt=PROMPT, max_tokens=32, seed=7, temp=0.8, top_p=0.9),
    dict(checkpoint="smollm2-bf16", prompt=PROMPT, max_tokens=32, seed=2**33 + 1, temp=1.0, min_p=0.05, top_k=40),
    dict(checkpoint="smollm2-bf16", prompt=START, max_tokens=32, raw=True, seed=42, temp=0.8),
    dict(checkpoint="smollm2-f16", prompt=PROMPT, max_tokens=32, seed=42, temp=0.8),
    dict(checkpoint="smollm2-a4g64", prompt=START, max_tokens=16, raw=True, seed=42, temp=0.8),
    dict(checkpoint="gemma3-270m-bf16", prompt=START, max_tokens=24, raw=True, seed=42, temp=0.8),
]


def run(settings, cache):
    command = [sys.executable, "-m", "mlx_lm", "generate", "--verbose", "False",
               "--model", str(snapshots.make(settings["checkpoint"], cache))]
    for key, value in settings.items():
        if key == "raw":
            command.append("--ignore-chat-template")
        elif key != "checkpoint":
            command += ["--" + key.replace("_", "-"), str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout.removesuffix("\n")


OURS = dict(prompt="-p", max_tokens="-n", seed="--seed", temp="--temp", top_p="--top-p", min_p="--min-p", top_k="--top-k")
OFF = dict(temp=0.0, top_p=0, min_p=0, top_k=0)  # what mlx-lm does when it is not told


def ours(program, folder, settings):
    """The same with ingle: what it prints."""
    command = [program, "generate", "--l1", "-m", folder] + ["--raw"] * settings.get("raw", False)
    for key, value in (OFF | settings).items():
        if key in OURS:
            command += [OURS[key], str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    return done.stdout.removesuffix("\n")


def plain(text):
    """Without the space of a first word, which mlx-lm's streaming leaves out and one-shot decoding does not."""
    return text.removeprefix(" ")


def main(cache):
    import dump
    runs = []
    for settings in RUNS:
        folder = snapshots.make(settings["checkpoint"], cache)
        runs.append(settings | dict(sha256=dump.checksums(folder), text=run(settings, cache)))
        print(settings["checkpoint"], repr(runs[-1]["text"]), flush=True)
    rows = ",\n".join("  " + json.dumps(r) for r in runs)
    (golden.FOLDER / "cli.json").write_text(f'{{\n "oracle": {json.dumps(dump.versions())},\n "runs": [\n{rows}\n ]\n}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
