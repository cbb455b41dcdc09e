#!/usr/bin/env python3
"""mlx's unary functions over all 65536 numbers of bf16 and f16: tests/golden/l1/ops.json.

    ops.py        writes it; live.py compares it with what runs

A hash is sha256 of 65536 words, the result for the input of these bits; every NaN is written as one NaN.
"""
import hashlib
import json
import pathlib
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import golden  # noqa: E402


def softcap(x, cap):
    return mx.tanh(x / cap) * cap


UNARY = {"exp": mx.exp, "silu": nn.silu, "gelu_approx": nn.gelu_approx, "tanh": mx.tanh,
         "softcap30": lambda x: softcap(x, 30.0), "softcap50": lambda x: softcap(x, 50.0)}
TYPES = {"bf16": (mx.bfloat16, 0x7F80, 0x7FC0), "f16": (mx.float16, 0x7C00, 0x7E00)}


def table(name, kind):
    """uint16 [65536]"""
    dtype, infinity, nan = TYPES[kind]
    y = UNARY[name](mx.array(np.arange(65536, dtype=np.uint16)).view(dtype))
    words = np.array(y.view(mx.uint16))
    return np.where(words & 0x7FFF > infinity, np.uint16(nan), words)


def hashes():
    return {kind: {name: hashlib.sha256(table(name, kind).astype("<u2").tobytes()).hexdigest() for name in UNARY}
            for kind in TYPES}


def main():
    import dump
    mx.set_default_device(mx.cpu)
    (golden.FOLDER / "ops.json").write_text(json.dumps(dict(oracle=dump.versions(), unary=hashes()), indent=1) + "\n")


if __name__ == "__main__":
    main()
