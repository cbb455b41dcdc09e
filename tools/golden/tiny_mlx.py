#!/usr/bin/env python3
"""Tiny random checkpoints and what mlx-lm makes of them: tests/golden/tiny/<name>/.

    tiny_mlx.py OUT

Needs mlx-cpu 0.32.4, mlx 0.32.4 and mlx-lm 0.32.2 (x86-64) in the Python that runs it; the tests need only the
files. Each folder is a Hugging Face snapshot (config.json with both spellings of the rope, model.safetensors)
and golden.safetensors, for each prompt i:

    tokens_i [n]       ids
    logits_i [n][97]   of the program in f32 over the exact (for quantized ones: dequantized) weights
    stock_i [n][97]    bf16 checkpoints: of the stock program, which rounds every step to bf16

The stock program's product of quantized weights on x86 sums in bf16: no judge of anybody else, so it is not here.
"""
import json
import os
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.utils import load_model, quantize_model
from pathlib import Path

VOCAB, WIDTH, HEADS, KV = 97, 64, 4, 2
PROMPTS = (19, 100)


def config(family, ffn):
    base = dict(hidden_size=WIDTH, intermediate_size=ffn, num_attention_heads=HEADS, num_key_value_heads=KV,
                vocab_size=VOCAB, max_position_embeddings=512, torch_dtype="bfloat16",
                bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if family == "llama":
        return base | dict(model_type="llama", architectures=["LlamaForCausalLM"], num_hidden_layers=3,
                           head_dim=16, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
                           rope_parameters=dict(rope_type="default", rope_theta=10000.0), rope_scaling=None,
                           tie_word_embeddings=False, attention_bias=False, mlp_bias=False)
    layers, pattern = 7, 3
    kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    return base | dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], num_hidden_layers=layers,
                       head_dim=32, rms_norm_eps=1e-6, query_pre_attn_scalar=24, sliding_window=8,
                       sliding_window_pattern=pattern, layer_types=kinds, rope_theta=1e6,
                       rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", type="linear", factor=8.0),
                       rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                                            sliding_attention=dict(rope_type="default", rope_theta=1e4)),
                       hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=None,
                       attn_logit_softcapping=None, tie_word_embeddings=True, attention_bias=False)


def tensors(c, sigma, rng):
    gemma, d = c["model_type"] == "gemma3_text", c["head_dim"]
    f, q, kv = c["intermediate_size"], HEADS * d, KV * d
    matrix = lambda *shape: rng.normal(0, sigma, shape)
    vector = lambda n: rng.normal(0 if gemma else 1, 0.2, n)
    out = {"model.embed_tokens.weight": matrix(VOCAB, WIDTH), "model.norm.weight": vector(WIDTH)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = matrix(VOCAB, WIDTH)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in dict(q=(q, WIDTH), k=(kv, WIDTH), v=(kv, WIDTH), o=(WIDTH, q)).items():
            out[f"{at}self_attn.{name}_proj.weight"] = matrix(*shape)
        for name, shape in dict(gate=(f, WIDTH), up=(f, WIDTH), down=(WIDTH, f)).items():
            out[f"{at}mlp.{name}_proj.weight"] = matrix(*shape)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if gemma:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            out[f"{at}self_attn.q_norm.weight"] = vector(d)
            out[f"{at}self_attn.k_norm.weight"] = vector(d)
        for name in norms:
            out[f"{at}{name}.weight"] = vector(WIDTH)
    return {k: mx.array(v.astype(np.float32)).astype(mx.bfloat16) for k, v in out.items()}


# One after the other for the matrices of a "mixed" checkpoint, so that its map has an entry of every kind.
MIX = [dict(bits=b, group_size=g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64)] + [
    dict(bits=4, group_size=32, mode="mxfp4"), dict(bits=4, group_size=16, mode="nvfp4"),
    dict(bits=8, group_size=32, mode="mxfp8"), False]


def mix(path, module):
    """A format for each place a matrix can have, another one in each layer; never 2 bits for the embedding."""
    if not hasattr(module, "to_quantized"):
        return False
    places = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    name, layer = path.split(".")[-1], ([int(p) for p in path.split(".") if p.isdigit()] or [0])[0]
    if name not in places:
        return dict(bits=6, group_size=64) if "embed" in name else dict(bits=5, group_size=32)
    return MIX[(places.index(name) + 7 * layer) % len(MIX)]


def odd_groups(w):
    """Groups in which all is equal, tiny or zero: scales of 1e-7, and a first code that rounds to 0."""
    for name in w:
        if "_proj" in name and "layers" in name:
            v = np.array(w[name].astype(mx.float32))
            v[0, :64], v[1, :64], v[2, :64] = 0.05, 1e-8, 0
            w[name] = mx.array(v).astype(mx.bfloat16)


def logits_of(model, tokens):
    return model(mx.array([tokens]))[0].astype(mx.float32)


def dequantized(model):
    """The same model with plain f32 weights."""
    from mlx.utils import tree_map, tree_unflatten
    plain = []
    for name, m in model.named_modules():
        if isinstance(m, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            # scales and biases widened first: the exact value, no rounding to bf16
            if m.mode == "affine":
                w = mx.dequantize(m.weight, m.scales.astype(mx.float32), m.biases.astype(mx.float32),
                                  group_size=m.group_size, bits=m.bits)
            else:
                w = mx.dequantize(m.weight, m.scales, None, group_size=m.group_size, bits=m.bits, mode=m.mode,
                                  dtype=mx.float32)
            if isinstance(m, nn.QuantizedEmbedding):
                n = nn.Embedding(*w.shape)
            else:
                n = nn.Linear(w.shape[1], w.shape[0], bias="bias" in m)
                if "bias" in m:
                    n.bias = m.bias
            n.weight = w
            plain.append((name, n))
    model.update_modules(tree_unflatten(plain))
    model.update(tree_map(lambda p: p.astype(mx.float32), model.parameters()))
    return model


def main(out):
    mx.set_default_device(mx.cpu)
    versions = {p: __import__("importlib.metadata").metadata.version(p) for p in ("mlx", "mlx-cpu", "mlx-lm")}
    for family in ("llama", "gemma3"):
        for sigma in (0.08, 0.25):
            for quant in (None, (4, 32), (4, 64), (8, 64), "mixed"):
                if quant and sigma == 0.25 and quant != (4, 32) and (quant, family) != ("mixed", "llama"):
                    continue
                mixed = quant == "mixed"
                ffn = 128 if quant and quant[1] != 32 else 96
                kind = "bf16" if not quant else quant if mixed else f"{quant[0]}bit-g{quant[1]}"
                folder = Path(out) / f"{family}-{sigma:.2f}-{kind}"
                folder.mkdir(parents=True, exist_ok=True)
                c = config(family, ffn)
                w = tensors(c, sigma, np.random.default_rng([7, int(sigma * 100), ffn, family == "llama"]))
                if mixed:
                    odd_groups(w)
                mx.save_safetensors(str(folder / "model.safetensors"), w, metadata={"format": "mlx"})
                (folder / "config.json").write_text(json.dumps(c, indent=1))
                model, c = load_model(folder)
                if quant:
                    how = dict(group_size=64, bits=4, quant_predicate=mix) if mixed else dict(
                        group_size=quant[1], bits=quant[0])
                    model, c = quantize_model(model, c, **how)
                    from mlx.utils import tree_flatten
                    mx.save_safetensors(str(folder / "model.safetensors"),
                                        dict(tree_flatten(model.parameters())), metadata={"format": "mlx"})
                    (folder / "config.json").write_text(json.dumps(c, indent=1))
                golden, stock = {}, model
                model = dequantized(load_model(folder)[0])
                rng = np.random.default_rng(11)
                for i, n in enumerate(PROMPTS):
                    tokens = [1] + [int(x) for x in rng.integers(3, VOCAB, n - 1)]
                    golden[f"tokens_{i}"] = mx.array(tokens, dtype=mx.int32)
                    golden[f"logits_{i}"] = logits_of(model, tokens)
                    if not quant:
                        golden[f"stock_{i}"] = logits_of(stock, tokens)
                mx.save_safetensors(str(folder / "golden.safetensors"), golden,
                                    metadata={k: v for k, v in versions.items()})
                print(folder.name, sum(os.path.getsize(folder / f) for f in os.listdir(folder)) // 1024, "KiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
