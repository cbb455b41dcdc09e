#!/usr/bin/env python3
"""The checkpoints of tier l1's goldens: Hugging Face snapshots as mlx-lm reads them, made in numpy, the same everywhere.

    snapshots.py FOLDER [NAME...]     FOLDER/NAME/{config.json,model.safetensors}; no NAME: those of all cases
    snapshots.py --list

NAME is <model>-<format>. Models: smollm2 and gemma3-270m, out of the GGUF files of ./check (INGLE_TEST_MODEL,
INGLE_TEST_GEMMA, or where ingle keeps them), and <family>-<sigma> of tiny_recipe.py and below. Formats:

    bf16, f16             the exact value, rounded to f32, then to the type
    a<bits>g<group>       MLX's affine codes of the bf16 snapshot; f16a<bits>g<group>: of the f16 one
    mxfp4 nvfp4 mxfp8     MLX's small floats of the bf16 snapshot
    mixed                 lies ready in tests/golden/tiny

A folder is there whole or not at all. Real ones get their tokenizer files, too, when ingle has fetched them.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cases  # noqa: E402
import ggufio  # noqa: E402
import mlxquant  # noqa: E402
import tiny_recipe as recipe  # noqa: E402

READY = TOP / "tests" / "golden" / "tiny"
CHUNK = 8192  # rows of a matrix in memory at once

# ---- formats ----------------------------------------------------------------------------------------------


def parse_format(text):
    """("BF16" or "F16", None or dict(bits, group_size, mode))"""
    if text in ("bf16", "f16"):
        return text.upper(), None
    if text in mlxquant.GROUP:
        return "BF16", dict(group_size=mlxquant.GROUP[text], bits=mlxquant.BITS[text], mode=text)
    m = re.fullmatch(r"(f16)?a([234568])g(32|64|128)", text)
    if not m:
        raise ValueError(f"{text}: no format of a snapshot")
    return "F16" if m[1] else "BF16", dict(group_size=int(m[3]), bits=int(m[2]), mode="affine")


def rounded(x, dtype):
    """The bits of numbers in the type."""
    x = x.astype(np.float32)
    return recipe.to_bf16(x) if dtype == "BF16" else x.astype(np.float16).view(np.uint16)


def widened(bits, dtype):
    return recipe.from_bf16(bits) if dtype == "BF16" else bits.view(np.float16).astype(np.float32)


def quantized(chunks, dtype, quant):
    """The tensors of a matrix: .weight, .scales and, in affine ones, .biases."""
    parts = []
    for chunk in chunks:
        x = widened(rounded(chunk, dtype), dtype)
        if quant["mode"] == "affine":
            codes, scale, bias = mlxquant.affine(x, quant["bits"], quant["group_size"])
            more = [rounded(scale, dtype), rounded(bias, dtype)]
        else:
            codes, scale = mlxquant.small_floats(x, quant["mode"])
            more = [scale]
        parts.append([mlxquant.pack(codes, quant["bits"])] + more)
    whole = [np.concatenate(p) for p in zip(*parts)]
    kinds = ["U32", dtype, dtype] if quant["mode"] == "affine" else ["U32", "U8"]
    return list(zip(("weight", "scales", "biases"), kinds, whole))


# ---- safetensors ------------------------------------------------------------------------------------------

BYTES = {"BF16": 2, "F16": 2, "U32": 4, "U8": 1}


def save(path, tensors):
    """tensors: (name, dtype, shape, chunks), chunks a list or a generator of arrays."""
    head, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, shape, _ in tensors:
        n = int(np.prod(shape)) * BYTES[dtype]
        head[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + n])
        at += n
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, _, _, chunks in tensors:
            for chunk in chunks:
                out.write(np.ascontiguousarray(chunk).tobytes())
        if out.tell() != 8 + len(text) + at:
            raise ValueError(f"{path}: {out.tell()} bytes and not {8 + len(text) + at}")


def snapshot_tensors(shapes, values, dtype, quant):
    """shapes: name -> (rows or 0, cols); values(name) yields chunks of rows in f32 or f64."""
    for name, (rows, cols) in shapes.items():
        if quant and rows and cols % quant["group_size"] == 0:
            for part, kind, x in quantized(values(name), dtype, quant):
                yield f"{name.removesuffix('weight')}{part}", kind, x.shape, [x]
        else:
            shape = (rows, cols) if rows else (cols,)
            yield name, dtype, shape, (rounded(x, dtype) for x in values(name))


# ---- tiny models ------------------------------------------------------------------------------------------


def gemma3_tiny():
    layers, pattern = 7, 3
    kinds = [recipe.SLIDING if (i + 1) % pattern else recipe.FULL for i in range(layers)]
    return recipe.base(
        model_type="gemma3_text", num_hidden_layers=layers, head_dim=32, rms_norm_eps=1e-6, query_pre_attn_scalar=24,
        sliding_window=8, sliding_window_pattern=pattern, layer_types=kinds, rope_theta=1e6, rope_local_base_freq=1e4,
        rope_scaling=dict(rope_type="linear", type="linear", factor=8.0),
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                             sliding_attention=dict(rope_type="default", rope_theta=1e4)),
        hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=None,
        attn_logit_softcapping=None, tie_word_embeddings=True, attention_bias=False)


# Factors that are not powers of two, unlike those of tiny_recipe.py: the order of two products must show.
LINEAR = recipe.llama(**recipe.rope(rope_type="linear", factor=3.0))
# Wider than its layers: eight heads of 32 on one of keys, rows of q twice the width, a base of 5e6, untied.
MINICPM5 = recipe.llama(hidden_size=128, intermediate_size=256, num_attention_heads=8, num_key_value_heads=1, head_dim=32,
                        rms_norm_eps=1e-6, bos_token_id=0) | recipe.rope(theta=5e6)
TINY = {name: c | dict(intermediate_size=128) for name, c in recipe.VARIANTS.items()} | {
    "llama": recipe.llama(intermediate_size=128), "llama_linear": LINEAR | dict(intermediate_size=128),
    "gemma3": gemma3_tiny() | dict(intermediate_size=128), "minicpm5": MINICPM5}


def tiny_source(model):
    family, sigma = model.rsplit("-", 1)
    c = TINY[family]
    shapes = recipe.shapes(c)

    def values(name):
        rows, cols = shapes[name]
        x = recipe.values(name, max(rows, 1) * cols, *recipe.spread_of(name, c, float(sigma)))
        yield x.reshape(rows, cols) if rows else x

    return c, shapes, values


# ---- real models ------------------------------------------------------------------------------------------

ROWS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm"}
NORMS = {"llama": {"post_attention_layernorm": "ffn_norm"},
         "gemma3": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_norm": "attn_q_norm",
                    "self_attn.k_norm": "attn_k_norm"}}
REAL = {"smollm2": ("INGLE_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "gemma3-270m": ("INGLE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf")}


def ingle_cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("INGLE_CACHE") or os.path.join(base, "ingle"))


def gguf_of(model):
    variable, name = REAL[model]
    path = pathlib.Path(os.environ.get(variable) or ingle_cache() / "models" / name)
    if not path.exists():
        raise FileNotFoundError(f"{model}: there is no {path}; ./check fetches it, {variable} says where it is")
    return path


def short(x):
    """The decimal number that an f32 of the metadata was: 1e-6 and not 9.99999997e-07."""
    return float(str(np.float32(x)))


def real_config(meta):
    arch = meta["general.architecture"]
    get = lambda key, *other: meta.get(f"{arch}.{key}", *other)
    c = dict(hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"),
             num_hidden_layers=get("block_count"), num_attention_heads=get("attention.head_count"),
             num_key_value_heads=get("attention.head_count_kv"), vocab_size=len(meta["tokenizer.ggml.tokens"]),
             max_position_embeddings=get("context_length"), rms_norm_eps=short(get("attention.layer_norm_rms_epsilon")),
             torch_dtype="bfloat16", bos_token_id=meta["tokenizer.ggml.bos_token_id"],
             eos_token_id=meta["tokenizer.ggml.eos_token_id"], tie_word_embeddings=True, attention_bias=False)
    c["head_dim"] = get("attention.key_length", c["hidden_size"] // c["num_attention_heads"])
    base = get("rope.freq_base")
    if arch == "llama":
        return c | dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu", mlp_bias=False,
                        rope_theta=base, rope_scaling=None, rope_parameters=dict(rope_type="default", rope_theta=base))
    kinds = [recipe.SLIDING if (i + 1) % 6 else recipe.FULL for i in range(c["num_hidden_layers"])]
    return c | dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], query_pre_attn_scalar=c["head_dim"],
                    sliding_window=get("attention.sliding_window"), sliding_window_pattern=6, layer_types=kinds,
                    rope_theta=base, rope_local_base_freq=1e4, rope_scaling=None,
                    rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=base),
                                         sliding_attention=dict(rope_type="default", rope_theta=1e4)),
                    hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
                    final_logit_softcapping=None, attn_logit_softcapping=None)


def real_source(model):
    f = ggufio.File(gguf_of(model))
    arch, c = f.meta["general.architecture"], real_config(f.meta)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for i in range(c["num_hidden_layers"]):
        for hf, gguf in (ROWS | NORMS[arch]).items():
            names[f"model.layers.{i}.{hf}.weight"] = f"blk.{i}.{gguf}.weight"
    left = set(f.tensors) - set(names.values())
    if left:
        raise ValueError(f"{model}: what are {' '.join(sorted(left)[:5])}?")

    def values(name):
        t = f.tensors[names[name]]
        if len(t.shape) == 1:
            yield t.f64() - (arch == "gemma3")  # the file has 1 + w
        elif arch == "llama" and ".q_proj" in name or ".k_proj" in name and arch == "llama":
            x = t.f64()  # the file has the two halves of a head row by row in turn
            yield x.reshape(-1, c["head_dim"] // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        else:
            for at in range(0, t.shape[0], CHUNK):
                yield t.f64(slice(at, at + CHUNK))

    shapes = {hf: (0 if len(f.tensors[g].shape) == 1 else f.tensors[g].shape[0], f.tensors[g].shape[-1])
              for hf, g in names.items()}
    return c, shapes, values


def byte_level_tokenizer(meta):
    """tokenizer.json of a GGUF whose words are GPT-2's with digits apart."""
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    special = lambda i: dict(id=i, content=tokens[i], single_word=False, lstrip=False, rstrip=False,
                             normalized=False, special=True)
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, normalizer=None,
                added_tokens=[special(i) for i, kind in enumerate(kinds) if kind == 3],
                pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True), byte_level]),
                post_processor=None, decoder=byte_level | dict(add_prefix_space=True),
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                           end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False,
                           vocab={t: i for i, t in enumerate(tokens)}, merges=meta["tokenizer.ggml.merges"]))


def add_tokenizer(model, folder):
    if model == "gemma3-270m":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            there = ingle_cache() / "tokenizers" / "gemma3" / name
            if there.exists():
                shutil.copy(there, folder)
        return
    meta = ggufio.File(gguf_of(model)).meta
    if meta.get("tokenizer.ggml.pre") != "smollm":
        return
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(meta), ensure_ascii=False), encoding="utf-8")
    word = lambda key: meta["tokenizer.ggml.tokens"][meta[f"tokenizer.ggml.{key}_token_id"]]
    more = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=word("bos"), eos_token=word("eos"),
                unk_token=word("unknown"), clean_up_tokenization_spaces=False)
    if "tokenizer.chat_template" in meta:
        more["chat_template"] = meta["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(more, indent=1))


# ---- making one -------------------------------------------------------------------------------------------


def make(name, cache):
    """The folder of a checkpoint, made when it is not there."""
    model, kind = name.rsplit("-", 1)
    if kind == "mixed":
        return READY / name
    folder = pathlib.Path(cache) / name
    if folder.exists():
        return folder
    dtype, quant = parse_format(kind)
    c, shapes, values = real_source(model) if model in REAL else tiny_source(model)
    c = dict(c, torch_dtype="bfloat16" if dtype == "BF16" else "float16")
    if quant:
        c |= dict(quantization=quant, quantization_config=quant)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = pathlib.Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        save(part / "model.safetensors", list(snapshot_tensors(shapes, values, dtype, quant)))
        (part / "config.json").write_text(json.dumps(c, indent=1) + "\n")
        if model in REAL:
            add_tokenizer(model, part)
        part.chmod(0o755)
        if not folder.exists():
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def names():
    return list(dict.fromkeys(c["checkpoint"] for c in cases.CASES.values()))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--list", action="store_true")
    p.add_argument("folder", nargs="?")
    p.add_argument("name", nargs="*")
    a = p.parse_args()
    if a.list:
        print("\n".join(names()))
    elif not a.folder:
        p.error("FOLDER is missing")
    else:
        for name in a.name or names():
            print(make(name, a.folder))


if __name__ == "__main__":
    main()
