#!/usr/bin/env python3
"""The tier plans of every family, as tests/golden/tiers/<family>.txt keeps them: l1 and l3 of one tiny checkpoint in bf16
and one of 4 bits, with scalar kernels, so that every machine has the same.

    plans.py PROGRAM      writes the files anew; the difference is what a commit has changed
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
TINY = TOP / "tests" / "golden" / "tiny"
GOLDEN = TOP / "tests" / "golden" / "tiers"
FAMILIES = {
    "llama": ("llama-0.08-bf16", "llama-0.08-4bit-g64"),
    "qwen2": ("qwen2-0.08-bf16", "qwen2-0.08-4bit-g32"),
    "qwen3": ("qwen3-0.08-bf16", "qwen3-0.08-4bit-g32"),
    "gemma2": ("gemma2-0.08-bf16", "gemma2-0.08-4bit-g32"),
    "gemma3": ("gemma3-0.08-bf16", "gemma3-0.08-4bit-g64"),
}


def write_zeros(folder, tensors):
    """model.safetensors of zeros in bf16: a plan does not depend on a weight's value."""
    header, at = {}, 0
    for name, shape in tensors:
        n = 2
        for d in shape:
            n *= d
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))


def checkpoint(name, folder):
    """A folder that can be opened: some of TINY have a list of their tensors instead of weights."""
    if (TINY / name / "model.safetensors").exists():
        return TINY / name
    out = folder / name
    out.mkdir(exist_ok=True)
    shutil.copy(TINY / name / "config.json", out)
    tensors = []
    for line in (TINY / name / "tensors.txt").read_text().splitlines():
        key, _, rows, cols = line.split()[:4]
        tensors.append((key, [int(cols)] if rows == "0" else [int(rows), int(cols)]))
    write_zeros(out, tensors)
    return out


def plan(program, path, *options):
    done = subprocess.run([program, "tiers", path, *options], capture_output=True, text=True,
                          env=os.environ | {"INGLE_CPU": "scalar"})
    if done.returncode:
        raise RuntimeError(f"{path} {options}: {done.stderr}")
    return done.stdout


def family(program, name, folder):
    return "\n".join(plan(program, checkpoint(c, folder), tier) for c in FAMILIES[name] for tier in ("--l1", "--l3"))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    GOLDEN.mkdir(exist_ok=True)
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / f"{name}.txt").write_text(family(pathlib.Path(sys.argv[1]).resolve(), name, pathlib.Path(folder)))


if __name__ == "__main__":
    main()
