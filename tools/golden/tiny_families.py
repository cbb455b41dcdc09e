#!/usr/bin/env python3
"""Tiny random checkpoints of the other dense families and what mlx-lm makes of them: tests/golden/tiny/<name>/.

    tiny_families.py OUT

Needs what tiny_mlx.py needs. The weights are a hash of (name of the tensor, place), so that the tests make them
again and the repository holds, for each variant,

    config.json, tensors.txt    "name rows cols spread middle", rows 0: a vector
    golden.safetensors          for each prompt i: tokens_i [n], rows_i [r], logits_i [r][97] of the program in f32

and quantized ones their model.safetensors, too. "emb" holds vector_i [64] in place of logits: the row of the last
token after the last norm, made of length 1, and short_i [32], cut first.
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model, quantize_model

from tiny_mlx import PROMPTS, VOCAB, WIDTH, dequantized, logits_of
from tiny_recipe import VARIANTS, from_bf16, shapes, spread_of, to_bf16, values

PREFIX = "model."


QUANTIZED = ("qwen2", "qwen3", "gemma2")


def make(name, c, sigma, quant, out, versions):
    recipe, w = [], {}
    for tensor, (rows, cols) in shapes(c).items():
        vector = rows == 0
        spread, middle = spread_of(tensor, c, sigma)
        x = from_bf16(to_bf16(values(tensor, max(rows, 1) * cols, spread, middle)))
        w[tensor] = mx.array(x if vector else x.reshape(rows, cols)).astype(mx.bfloat16)
        own = tensor.removeprefix(PREFIX) if name == "qwen3_emb" else tensor
        recipe.append(f"{own} {tensor} {rows} {cols} {spread} {middle}")
    folder = Path(out) / f"{name}-{sigma:.2f}-{f'{quant[0]}bit-g{quant[1]}' if quant else 'bf16'}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        mx.save_safetensors(str(tmp / "model.safetensors"), w, metadata={"format": "mlx"})
        (tmp / "config.json").write_text(json.dumps(c))
        model, _ = load_model(tmp)
        if quant:
            from mlx.utils import tree_flatten
            model, c = quantize_model(model, c, group_size=quant[1], bits=quant[0])
            mx.save_safetensors(str(tmp / "model.safetensors"), dict(tree_flatten(model.parameters())),
                                metadata={"format": "mlx"})
            (tmp / "config.json").write_text(json.dumps(c))
            shutil.copy(tmp / "model.safetensors", folder)
        else:
            (folder / "tensors.txt").write_text("\n".join(recipe) + "\n")
        (folder / "config.json").write_text(json.dumps(c, indent=1))
        model = dequantized(load_model(tmp)[0])
    golden, rng = {}, np.random.default_rng(11)
    for i, n in enumerate(PROMPTS):
        tokens = [1] + [int(x) for x in rng.integers(3, VOCAB, n - 1)]
        rows = list(range(n)) if n < 30 else list(range(3, n, 4))
        golden[f"tokens_{i}"] = mx.array(tokens, dtype=mx.int32)
        if name == "qwen3_emb":
            h = np.array(model.model(mx.array([tokens]))[0, -1].astype(mx.float32)).astype(np.float64)
            for key, v in ((f"vector_{i}", h), (f"short_{i}", h[:WIDTH // 2])):
                golden[key] = mx.array((v / np.sqrt((v * v).sum())).astype(np.float32))
            continue
        golden[f"rows_{i}"] = mx.array(rows, dtype=mx.int32)
        golden[f"logits_{i}"] = logits_of(model, tokens)[mx.array(rows)]
    mx.save_safetensors(str(folder / "golden.safetensors"), golden, metadata=versions)
    print(folder.name, sum(os.path.getsize(folder / f) for f in os.listdir(folder)) // 1024, "KiB")


def main(out):
    mx.set_default_device(mx.cpu)
    versions = {p: __import__("importlib.metadata").metadata.version(p) for p in ("mlx", "mlx-cpu", "mlx-lm")}
    for name, c in VARIANTS.items():
        for sigma in (0.08, 0.25):
            for quant in (None, (4, 32)) if name in QUANTIZED else (None,):
                make(name, c, sigma, quant, out, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
