#!/usr/bin/env python3
"""Float64 forward of a llama or Gemma 3 model, GGUF file or snapshot folder: the judge of every other forward.

    ref64.py MODEL TOKENS OUT [--window 512] [--embed-scale exact]

TOKENS: ids as text, any white space between. OUT: f32 logits [n_tokens][n_vocab]; each window of tokens
starts anew at position 0, as the dump programs do. Weights are the exact values of the file's blocks,
all arithmetic is float64. In GGUF files of the llama family rope turns neighbours (2i, 2i+1), because the
converters permuted the rows of q and k for that. The logits are rounded to f32 once, when written (about
1e-6: KL errors near 1e-13). Gemma's embedding scale is sqrt(width) rounded to bf16, as the checkpoints were
trained; `--embed-scale exact` leaves it unrounded, as llama.cpp does.
"""
import argparse
import os
import sys
from types import SimpleNamespace

import numpy as np

import ggufio
import snapio

HEAD_ROWS = 128  # rows of logits at a time: 128 * 49152 * 8 bytes = 50 MB


def bf16(x):
    u = np.array([x], np.float32).view(np.uint32)
    return float(((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).view(np.float32)[0])


class GgufSource:
    """Config and weights by the names of a snapshot."""

    PART = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down"}
    LLAMA = {"post_attention_layernorm": "ffn_norm"}
    GEMMA = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm"}
    TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}

    def __init__(self, path):
        self.file = ggufio.File(path)
        meta = self.file.meta
        arch = meta["general.architecture"]
        if arch not in ("llama", "gemma3"):
            raise ValueError(f"{path}: architecture {arch}, and only llama and gemma3 are written here")
        key = lambda name, default=None: meta.get(f"{arch}.{name}", default)
        scaling = key("rope.scaling.type", "none")
        if scaling not in ("none", "linear") or "rope_freqs.weight" in self.file.tensors:
            raise ValueError(f"{path}: rope scaling {scaling} is not written here")
        c = SimpleNamespace(gemma=arch == "gemma3")
        c.n_layers, c.width = key("block_count"), key("embedding_length")
        c.n_heads = key("attention.head_count")
        c.n_kv = key("attention.head_count_kv", c.n_heads)
        c.head_dim = key("attention.key_length", c.width // c.n_heads)
        if key("rope.dimension_count", c.head_dim) != c.head_dim:
            raise ValueError(f"{path}: partial rope is not written here")
        c.eps = float(np.float32(key("attention.layer_norm_rms_epsilon")))
        c.rope = (float(key("rope.freq_base", 1e6 if c.gemma else 1e4)), float(key("rope.scaling.factor", 1.0)))
        c.local_rope = (float(key("rope.freq_base_swa", 1e4)), 1.0)
        c.scale = c.head_dim ** -0.5
        c.see = key("attention.sliding_window") if c.gemma else None
        c.local = [bool(c.see) and (i + 1) % 6 != 0 for i in range(c.n_layers)]
        c.tied = "output.weight" not in self.file.tensors
        self.config, self.neighbours, self.plus = c, not c.gemma, 0.0
        self.part = self.PART | (self.GEMMA if c.gemma else self.LLAMA)

    def f64(self, name, layer=None, rows=None):
        full = f"blk.{layer}.{self.part[name]}" if layer is not None else self.TOP[name]
        return self.file.tensors[full + ".weight"].f64(rows=rows)


class SnapshotSource:
    def __init__(self, folder):
        self.file = snapio.Snapshot(folder)
        j = self.file.config
        if j["model_type"] not in ("llama", "gemma3_text"):
            raise ValueError(f"{folder}: model_type {j['model_type']} is not written here")
        c = SimpleNamespace(gemma=j["model_type"] == "gemma3_text", n_layers=j["num_hidden_layers"])
        c.width, c.n_heads = j["hidden_size"], j["num_attention_heads"]
        c.n_kv = j.get("num_key_value_heads", c.n_heads)
        c.head_dim = j.get("head_dim") or c.width // c.n_heads
        c.eps = float(np.float32(j["rms_norm_eps"]))
        scaling = j.get("rope_scaling") or {}
        c.rope = (float(j["rope_theta"]), float(scaling.get("factor", 1.0)))
        c.local_rope = (float(j.get("rope_local_base_freq", 1e4)), 1.0)
        c.scale = (j["query_pre_attn_scalar"] if c.gemma else c.head_dim) ** -0.5
        c.see = j.get("sliding_window") if c.gemma else None
        kinds = j.get("layer_types")
        c.local = [c.gemma and (kinds[i] == "sliding_attention" if kinds else (i + 1) % j["sliding_window_pattern"] != 0)
                   for i in range(c.n_layers)]
        c.tied = "lm_head.weight" not in self.file.tensors
        self.config, self.neighbours, self.plus = c, False, float(c.gemma)

    def f64(self, name, layer=None, rows=None):
        full = name if name == "lm_head" else f"model.{name}" if layer is None else f"model.layers.{layer}.{name}"
        return self.file.f64(full, rows)


class Model:
    def __init__(self, path, exact_scale=False):
        self.source = SnapshotSource(path) if os.path.isdir(path) else GgufSource(path)
        self.c = c = self.source.config
        self.embed_scale = 1.0 if not c.gemma else np.sqrt(c.width) if exact_scale else bf16(np.sqrt(c.width))
        self.head = "embed_tokens" if c.tied else "lm_head"

    def linear(self, x, name, layer=None):
        return x @ self.source.f64(name, layer).T

    def norm(self, x, name, layer=None):
        w = self.source.f64(name, layer) + self.source.plus
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c.eps) * w

    def rope(self, x, window, base, factor):
        """x [T, heads, D]; the position of row t is t mod window."""
        half = self.c.head_dim // 2
        angle = (np.arange(len(x)) % window)[:, None] / factor * base ** (-np.arange(half) / half)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        lo, hi = (slice(0, None, 2), slice(1, None, 2)) if self.source.neighbours else (slice(half), slice(half, None))
        out = np.empty_like(x)
        out[..., lo] = x[..., lo] * c - x[..., hi] * s
        out[..., hi] = x[..., lo] * s + x[..., hi] * c
        return out

    def attention(self, q, k, v, window, see):
        """`see`: positions that a row sees, itself included; None: all before it."""
        c, out = self.c, np.empty_like(q)
        for start in range(0, len(q), window):
            rows = slice(start, min(start + window, len(q)))
            n = rows.stop - start
            hidden = np.triu(np.ones((n, n), bool), 1)
            if see:
                hidden |= np.tril(np.ones((n, n), bool), -see)
            for h in range(c.n_heads):
                g = h // (c.n_heads // c.n_kv)
                score = q[rows, h] @ k[rows, g].T * c.scale
                score[hidden] = -np.inf
                p = np.exp(score - score.max(-1, keepdims=True))
                out[rows, h] = p @ v[rows, g] / p.sum(-1, keepdims=True)
        return out

    def layer(self, x, i, window):
        c = self.c
        y = self.norm(x, "input_layernorm", i)
        heads = lambda part, n: self.linear(y, f"self_attn.{part}_proj", i).reshape(len(x), n, c.head_dim)
        q, k, v = heads("q", c.n_heads), heads("k", c.n_kv), heads("v", c.n_kv)
        if c.gemma:
            q, k = self.norm(q, "self_attn.q_norm", i), self.norm(k, "self_attn.k_norm", i)
        rope = c.local_rope if c.local[i] else c.rope
        q, k = self.rope(q, window, *rope), self.rope(k, window, *rope)
        a = self.attention(q, k, v, window, c.see if c.local[i] else None)
        y = self.linear(a.reshape(len(x), -1), "self_attn.o_proj", i)
        x = x + (self.norm(y, "post_attention_layernorm", i) if c.gemma else y)
        y = self.norm(x, "pre_feedforward_layernorm" if c.gemma else "post_attention_layernorm", i)
        gate, up = self.linear(y, "mlp.gate_proj", i), self.linear(y, "mlp.up_proj", i)
        if c.gemma:
            act = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)))
        else:
            act = gate / (1 + np.exp(-gate))
        y = self.linear(act * up, "mlp.down_proj", i)
        return x + (self.norm(y, "post_feedforward_layernorm", i) if c.gemma else y)

    def hidden(self, ids, window, progress=None):
        """Rows after the last norm, float64 [T, width]."""
        x = self.source.f64("embed_tokens", rows=np.asarray(ids)) * self.embed_scale
        for i in range(self.c.n_layers):
            if progress:
                progress(i)
            x = self.layer(x, i, window)
        return self.norm(x, "norm")

    def logits(self, hidden):
        """Blocks of rows, float64 [<= HEAD_ROWS, n_vocab]."""
        head = self.source.f64(self.head).T
        for start in range(0, len(hidden), HEAD_ROWS):
            yield hidden[start:start + HEAD_ROWS] @ head


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("tokens")
    p.add_argument("out")
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--embed-scale", choices=("bf16", "exact"), default="bf16")
    a = p.parse_args()
    model = Model(a.model, a.embed_scale == "exact")
    ids = np.array(open(a.tokens).read().split(), np.int64)
    show = lambda layer: print(f"\rlayer {layer + 1} of {model.c.n_layers}", end="", file=sys.stderr, flush=True)
    hidden = model.hidden(ids, a.window, show if sys.stderr.isatty() else None)
    with open(a.out, "wb") as out:
        for block in model.logits(hidden):
            out.write(block.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
