"""Tier l2 against mlx-lm and mlx-optiq with quantized keys and values: every forward of tests/golden/l2, made by
tools/golden/l2/dump.py. Compared are the logits after each, each layer's attention, and the greedy ids."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import proven
import pytest
from conftest import TOP

GOLDENS = TOP / "tests/golden/l2"
TINY = TOP / "tests/golden/tiny"
MANIFEST = json.loads((GOLDENS / "manifest.json").read_text())
CASES = MANIFEST["cases"]


def weights_of(source, to):
    """The tensors of tensors.txt as a model.safetensors in BF16."""
    sys.path.insert(0, str(TOP / "tools/golden"))
    import numpy as np
    from tiny_recipe import values
    header, blobs, at = {}, [], 0
    for line in (source / "tensors.txt").read_text().splitlines():
        _, name, rows, cols, spread, middle = line.split()
        rows, cols = int(rows), int(cols)
        x = np.asarray(values(name, max(rows, 1) * cols, float(spread), float(middle)), np.float32).view(np.uint32)
        bits = ((x + np.uint32(0x7FFF) + (x >> 16 & 1)) >> 16).astype("<u2").tobytes()
        header[name] = dict(dtype="BF16", shape=[rows, cols] if rows else [cols], data_offsets=[at, at + len(bits)])
        at += len(bits)
        blobs.append(bits)
    head = json.dumps(header).encode()
    (to / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """f(name, window) -> a folder with that checkpoint, another window in its config.json when one is given."""
    made = {}

    def get(name, window=None):
        if (name, window) in made:
            return made[name, window]
        folder = tmp_path_factory.mktemp(name)
        config = json.loads((TINY / name / "config.json").read_text())
        if window:
            config["sliding_window"] = window
        (folder / "config.json").write_text(json.dumps(config))
        if (TINY / name / "model.safetensors").exists():
            (folder / "model.safetensors").symlink_to(TINY / name / "model.safetensors")
        else:
            weights_of(TINY / name, folder)
        made[name, window] = folder
        return folder

    return get


def calls_of(text):
    return [line for line in text.splitlines() if line.startswith("call ")]


def golden_of(name):
    return calls_of((GOLDENS / f"{name}.txt").read_text())


def run(program, folder, case, model, name, **options):
    ids = list(MANIFEST["prompts"][str(case["prompt"])])
    if case["forced"]:  # what was fed is in the golden itself
        ids += [int(n) for n in re.findall(r" id (\d+)", "\n".join(golden_of(name)))]
    (folder / "ids").write_text(" ".join(map(str, ids)))
    words = ["--calls", case["prompt"], "--chunk", case["chunk"], "--greedy", 0 if case["forced"] else case["steps"]]
    if case["kv_config"]:
        (folder / "kv_config.json").write_text(json.dumps(case["kv_config"]))
        words += ["--kv-config", folder / "kv_config.json"]
    if case["kv_bits"]:
        words += ["--bits", case["kv_bits"], "--group", MANIFEST["group_size"], "--start", case["quantized_kv_start"]]
    if not case["tiled"]:
        words += ["--at-once", 1]
    for key, value in options.items():
        words += [f"--{key}", value]
    if words[5] == 0:
        del words[4:6]
    done = subprocess.run([program, model, "--tokens", folder / "ids", *map(str, words)], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}"
    return calls_of(done.stdout)


def difference(want, got):
    """The first line that differs and where in it; None: there is none."""
    for a, b in zip(want, got):
        for i, (x, y) in enumerate(zip(a.split(), b.split())):
            if x != y:
                return f"{' '.join(a.split()[:6])}: word {i}: {y}, not {x}"
        if len(a.split()) != len(b.split()):
            return f"{a} and {b}"
    return None if len(want) == len(got) else f"{len(got)} calls, not {len(want)}"


def check(program, folder, tiny, name, **options):
    case = CASES[name]
    got = run(program, folder, case, tiny(case["model"], case["sliding_window"]), name, **options)
    assert len(got) > 3
    fault = difference(golden_of(name), got)
    assert fault is None, f"{name}: the first difference from the reference: {fault}"
    if case["kv_config"]:
        cpu = options.get("cpu")
        proven.note(f"l2_{cpu or 'native'}", pathlib.Path(program).parent / "ingle", tiny(case["model"], case["sliding_window"]),
                    "--l2", "--kv-config", folder / "kv_config.json", asked_for=("kv.q_groups", "attn.q_tiled"),
                    env=os.environ | ({"INGLE_CPU": cpu} if cpu else {}))


@pytest.mark.parametrize("name", CASES)
def test_every_forward_is_that_of_the_reference(name, dump_l1_program, tiny, tmp_path):
    check(dump_l1_program, tmp_path, tiny, name)


@pytest.mark.parametrize("options", [dict(cpu="scalar"), dict(threads=2), dict(threads=3)], ids=str)
@pytest.mark.parametrize("name", ["llama-mix-c16", "llama-u4-s0", "llama-mix-long", "gemma3-mix-c3", "gemma3-mix-w600"])
def test_neither_threads_nor_the_instruction_set_change_a_bit(name, options, dump_l1_program, tiny, tmp_path):
    check(dump_l1_program, tmp_path, tiny, name, **options)


@pytest.mark.parametrize("pair", MANIFEST["differ"], ids="-and-".join)
def test_what_tells_two_cases_apart_is_seen(pair, dump_l1_program, tiny, tmp_path):
    """Negative controls, by the program itself: the run of one case is not the golden of the other."""
    name, other = pair
    case = CASES[name]
    got = run(dump_l1_program, tmp_path, case, tiny(case["model"], case["sliding_window"]), name)
    assert difference(golden_of(name), got) is None
    assert difference(golden_of(other), got) is not None
