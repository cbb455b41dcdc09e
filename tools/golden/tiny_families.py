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

from tiny_mlx import HEADS, KV, PROMPTS, VOCAB, WIDTH, dequantized, logits_of

PREFIX = "model."


def weights(name, n, spread, middle):
    """Sums of four uniform numbers, rounded to bf16; golden_test.c has the same lines in C."""
    seed = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for c in name.encode():
            seed = (seed ^ np.uint32(c)) * np.uint32(16777619)

        def draw(i):
            x = (i + seed) * np.uint32(2654435769)
            x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
            x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
            return x ^ x >> np.uint32(16)

        i = np.arange(n, dtype=np.uint32) * np.uint32(2)
        a, b = draw(i), draw(i + np.uint32(1))
    total = sum((x >> np.uint32(s) & np.uint32(0xFFFF)).astype(np.int64) for x in (a, b) for s in (0, 16))
    x = ((total - 131070) / 65536.0 * 1.7320508 * spread + middle).astype(np.float32)
    u = x.view(np.uint32)
    return ((u + np.uint32(0x7FFF) + (u >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(np.float32)


def rope(**scaling):
    """Both spellings."""
    theta = scaling.pop("theta", 10000.0)
    kind = dict(rope_type=scaling.get("rope_type", "default"), rope_theta=theta) | scaling
    return dict(rope_theta=theta, rope_scaling=(scaling | dict(type=scaling["rope_type"])) if scaling else None,
                rope_parameters=kind)


def base(**more):
    return dict(hidden_size=WIDTH, intermediate_size=96, num_attention_heads=HEADS, num_key_value_heads=KV,
                vocab_size=VOCAB, max_position_embeddings=512, torch_dtype="bfloat16", num_hidden_layers=3,
                bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-5, hidden_act="silu",
                tie_word_embeddings=False) | more


def llama(**more):
    return base(model_type="llama", head_dim=16, attention_bias=False, mlp_bias=False) | rope() | more


SLIDING, FULL = "sliding_attention", "full_attention"
LONG = [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0]
VARIANTS = {
    "llama_d32": llama(head_dim=32),
    "llama_llama3": llama(**rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64)),
    "llama_yarn": llama(**rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama_longrope": llama(**rope(rope_type="longrope", long_factor=LONG, short_factor=[1.0] * 8,
                                   original_max_position_embeddings=64)),
    "llama_linear": llama(**rope(rope_type="linear", factor=4.0)),
    "llama_bias": llama(attention_bias=True, mlp_bias=True),
    "llama_sliding": llama(sliding_window=8, layer_types=[SLIDING, FULL, SLIDING]),
    "qwen2": base(model_type="qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=0)
    | rope(theta=1e6),
    "qwen3": base(model_type="qwen3", head_dim=32, tie_word_embeddings=True, attention_bias=False,
                  rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "qwen3_emb": base(model_type="qwen3", head_dim=32, tie_word_embeddings=True, attention_bias=False,
                      rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "gemma2": base(model_type="gemma2", head_dim=32, hidden_activation="gelu_pytorch_tanh", sliding_window=512,
                   query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=3.0,
                   hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True) | rope(),
}
QUANTIZED = ("qwen2", "qwen3", "gemma2")


def shapes(c):
    """name: (rows, cols, is a norm); rows 0: a vector."""
    d = c.get("head_dim") or WIDTH // HEADS
    gemma, f, q, kv = c["model_type"] == "gemma2", c["intermediate_size"], HEADS * d, KV * d
    out = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (0, WIDTH)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (VOCAB, WIDTH)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, (rows, cols) in dict(q=(q, WIDTH), k=(kv, WIDTH), v=(kv, WIDTH), o=(WIDTH, q)).items():
            out[f"{at}self_attn.{name}_proj.weight"] = (rows, cols)
            if c.get("attention_bias") or (c["model_type"] == "qwen2" and name != "o"):
                out[f"{at}self_attn.{name}_proj.bias"] = (0, rows)
        for name, (rows, cols) in dict(gate=(f, WIDTH), up=(f, WIDTH), down=(WIDTH, f)).items():
            out[f"{at}mlp.{name}_proj.weight"] = (rows, cols)
            if c.get("mlp_bias"):
                out[f"{at}mlp.{name}_proj.bias"] = (0, rows)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if gemma:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if c["model_type"] == "qwen3":
            out[f"{at}self_attn.q_norm.weight"] = out[f"{at}self_attn.k_norm.weight"] = (0, d)
        for name in norms:
            out[f"{at}{name}.weight"] = (0, WIDTH)
    return out


def make(name, c, sigma, quant, out, versions):
    recipe, w = [], {}
    for tensor, (rows, cols) in shapes(c).items():
        vector = rows == 0
        is_bias = tensor.endswith(".bias")
        spread = sigma if not vector else 0.3 if is_bias else 0.2
        middle = 1.0 if vector and not is_bias and c["model_type"] != "gemma2" else 0.0
        x = weights(tensor, max(rows, 1) * cols, spread, middle)
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
