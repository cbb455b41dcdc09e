#!/usr/bin/env python3
"""Tiny random checkpoints with odd shapes, of every dense family, for tests: complete GGUF files, tokenizer and
chat template included.

    tiny.py NAME DST [--type Q4_1] [--seed 1] [--family qwen2] [--rope yarn]      tiny.py --list

Weights are normal with a spread that keeps activations near 1, norms vary around 1, and the head is
scaled so that the next token is neither certain nor uniform.
"""
import argparse

import numpy as np

import ggufio

# name: layers, width, heads, kv heads, head_dim, ffn, tied head, rope base
SHAPES = {
    "d32": (3, 96, 3, 3, 32, 160, True, 1e4),      # one query head a kv head
    "d64": (2, 160, 6, 2, 64, 288, False, 1e5),    # groups of three, heads wider than the width
    "d128": (2, 224, 4, 1, 128, 352, True, 5e6),   # one kv head for four
    "wide": (2, 256, 8, 2, 32, 512, False, 1e4),   # everything a multiple of 256
}
FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
ROPES = ("none", "linear", "llama3", "yarn", "longrope")
WINDOW, ORIGINAL, FACTOR = 32, 64, 4.0  # of the Gemmas; of stretched ropes
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["the", "and", "ing", "of", "to", "in", "er", "on", "an", "re", "at", "or", "es", "is"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
            "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_names():
    """The printable stand-in of each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def vocabulary():
    names = byte_names()
    merges = []
    tokens = SPECIAL + names
    for word in WORDS + [names[32] + w for w in WORDS]:
        left = word[0]
        for c in word[1:]:
            if left + c not in tokens:
                tokens.append(left + c)
                merges.append(f"{left} {c}")
            left += c
    return tokens, merges


def add_rope(f, family, rope, half):
    """The keys and tensors of a stretched rope as the usual converter writes them."""
    if rope == "llama3":
        f.add("rope_freqs.weight", "F32", np.linspace(1, 8, half))
    elif rope != "none":
        f.set(f"{family}.rope.scaling.type", ggufio.STRING, rope)
        if rope != "longrope":
            f.set(f"{family}.rope.scaling.factor", ggufio.F32, FACTOR)
        f.set(f"{family}.rope.scaling.original_context_length", ggufio.U32, ORIGINAL)
    if rope == "longrope":
        f.set(f"{family}.rope.scaling.attn_factor", ggufio.F32, 1.19)
        f.add("rope_factors_long.weight", "F32", np.linspace(1, 6, half))
        f.add("rope_factors_short.weight", "F32", np.ones(half))


def make(name, type_name="Q4_1", seed=1, head=None, family="llama", rope="none", scale=None):
    """`scale`: the spread of all weights; None: one that keeps activations near 1."""
    n_layers, width, n_heads, n_kv, head_dim, ffn, tied, base = SHAPES[name]
    rng = np.random.default_rng(seed)
    tokens, merges = vocabulary()
    f = ggufio.File()
    u32 = lambda key, v: f.set(key, ggufio.U32, v)
    text = lambda key, v: f.set(key, ggufio.STRING, v)
    texts = lambda key, v: f.set(key, (ggufio.ARRAY, ggufio.STRING), v)
    text("general.architecture", family)
    text("general.name", f"tiny random {family} {name}")
    u32("general.file_type", ggufio.FILE_TYPE[type_name])
    u32(f"{family}.block_count", n_layers)
    u32(f"{family}.context_length", 1024)
    u32(f"{family}.embedding_length", width)
    u32(f"{family}.feed_forward_length", ffn)
    u32(f"{family}.attention.head_count", n_heads)
    u32(f"{family}.attention.head_count_kv", n_kv)
    u32(f"{family}.attention.key_length", head_dim)
    u32(f"{family}.attention.value_length", head_dim)
    u32(f"{family}.rope.dimension_count", head_dim)
    u32(f"{family}.vocab_size", len(tokens))
    f.set(f"{family}.rope.freq_base", ggufio.F32, base)
    f.set(f"{family}.attention.layer_norm_rms_epsilon", ggufio.F32, 1e-5)
    gemma = family.startswith("gemma")
    if gemma:
        u32(f"{family}.attention.sliding_window", WINDOW)
    if family == "gemma2":
        f.set("gemma2.attn_logit_softcapping", ggufio.F32, 5.0)
        f.set("gemma2.final_logit_softcapping", ggufio.F32, 3.0)
    text("tokenizer.ggml.model", "gpt2")
    text("tokenizer.ggml.pre", "smollm")
    texts("tokenizer.ggml.tokens", tokens)
    f.set("tokenizer.ggml.token_type", (ggufio.ARRAY, ggufio.I32),
          [3 if t in SPECIAL else 1 for t in tokens])
    texts("tokenizer.ggml.merges", merges)
    u32("tokenizer.ggml.bos_token_id", 1)
    u32("tokenizer.ggml.eos_token_id", 2)
    u32("tokenizer.ggml.unknown_token_id", 0)
    u32("tokenizer.ggml.padding_token_id", 2)
    f.set("tokenizer.ggml.add_bos_token", ggufio.BOOL, False)
    text("tokenizer.chat_template", TEMPLATE)

    def matrix(tensor, kind, n, k, spread=1.0):
        f.add_random(tensor, kind, (n, k), scale or spread / np.sqrt(k), rng)

    norm = lambda n=width: rng.normal(1, 0.2, n)
    add_rope(f, family, rope, head_dim // 2)
    head_type = head or type_name
    # times sqrt(width) it must not drown what the layers add
    matrix("token_embd.weight", head_type, len(tokens), width, 0.5 if gemma else 3.0)
    for i in range(n_layers):
        p = f"blk.{i}."
        f.add(p + "attn_norm.weight", "F32", norm())
        matrix(p + "attn_q.weight", type_name, n_heads * head_dim, width, 1.5)
        matrix(p + "attn_k.weight", type_name, n_kv * head_dim, width, 1.5)
        matrix(p + "attn_v.weight", type_name, n_kv * head_dim, width)
        matrix(p + "attn_output.weight", type_name, width, n_heads * head_dim)
        if family == "qwen2":
            for part, n in dict(q=n_heads, k=n_kv, v=n_kv).items():
                f.add(f"{p}attn_{part}.bias", "F32", rng.normal(0, 0.3, n * head_dim))
        if family in ("qwen3", "gemma3"):
            f.add(p + "attn_q_norm.weight", "F32", norm(head_dim))
            f.add(p + "attn_k_norm.weight", "F32", norm(head_dim))
        if gemma:
            f.add(p + "post_attention_norm.weight", "F32", norm())
            f.add(p + "post_ffw_norm.weight", "F32", norm())
        f.add(p + "ffn_norm.weight", "F32", norm())
        matrix(p + "ffn_gate.weight", type_name, ffn, width)
        matrix(p + "ffn_up.weight", type_name, ffn, width)
        matrix(p + "ffn_down.weight", type_name, width, ffn)
    f.add("output_norm.weight", "F32", norm())
    if not tied:
        matrix("output.weight", head_type, len(tokens), width, 3.0)
    return f


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("name", nargs="?", choices=sorted(SHAPES))
    p.add_argument("dst", nargs="?")
    p.add_argument("--list", action="store_true")
    p.add_argument("--type", default="Q4_1", choices=sorted(ggufio.TYPES))
    p.add_argument("--head", choices=sorted(ggufio.TYPES), help="type of embedding and head, default --type")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--family", choices=FAMILIES, default="llama")
    p.add_argument("--rope", choices=ROPES, default="none")
    a = p.parse_args()
    if a.list:
        print(*SHAPES, sep="\n")
    elif not a.dst:
        p.error("NAME and DST")
    else:
        make(a.name, a.type, a.seed, a.head, a.family, a.rope).write(a.dst)


if __name__ == "__main__":
    main()
