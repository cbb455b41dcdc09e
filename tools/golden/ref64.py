#!/usr/bin/env python3
"""Float64 forward of a model of any dense family, GGUF file or snapshot folder: the judge of every other forward.

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


def inv_freq(half, base, kind=None, factor=1.0, divisor=None, **o):
    """Radians a position for each pair, and what cosines and sines are multiplied by."""
    i = np.arange(half)
    f, scale = base ** (i / half) * (1.0 if divisor is None else np.asarray(divisor, np.float64)), 1.0
    if kind == "linear":
        f = f * factor
    elif kind == "llama3":
        low, high, orig = o.get("low_freq_factor", 1.0), o.get("high_freq_factor", 4.0), o["original"]
        turns = orig / (2 * np.pi * f)
        part = (turns - low) / (high - low)
        f = np.where(turns < low, f * factor, np.where(turns > high, f, f / ((1 - part) / factor + part)))
    elif kind == "yarn":
        pair = lambda n: 2 * half * np.log(o["original"] / (n * 2 * np.pi)) / (2 * np.log(base))
        first = max(np.floor(pair(o.get("beta_fast", 32.0))), 0)
        last = min(np.ceil(pair(o.get("beta_slow", 1.0))), 2 * half - 1)
        m = 1 - np.clip((i - first) / max(last - first, 0.001), 0, 1)
        f = 1 / (m / f + (1 - m) / (factor * f))
        scale = o.get("scale", 1.0) * (0.1 * np.log(factor) + 1)
    elif kind == "longrope":
        f, scale = f * factor, o.get("scale", 1.0)
    elif kind not in (None, "default", "none"):
        raise ValueError(f"rope {kind} is not written here")
    return 1 / f, scale


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
    KNOWN = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
    BIG_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the 27B, whose queries have another scale

    def __init__(self, path):
        self.file = ggufio.File(path)
        meta = self.file.meta
        arch = meta["general.architecture"]
        if arch not in self.KNOWN:
            raise ValueError(f"{path}: architecture {arch} is not one of {' '.join(self.KNOWN)}")
        key = lambda name, default=None: meta.get(f"{arch}.{name}", default)
        c = SimpleNamespace(gemma=arch.startswith("gemma"))
        c.n_layers, c.width = key("block_count"), key("embedding_length")
        c.n_heads = key("attention.head_count")
        c.n_kv = key("attention.head_count_kv", c.n_heads)
        c.head_dim = key("attention.key_length", c.width // c.n_heads)
        if key("rope.dimension_count", c.head_dim) != c.head_dim:
            raise ValueError(f"{path}: partial rope is not written here")
        c.eps = float(np.float32(key("attention.layer_norm_rms_epsilon")))
        base = float(key("rope.freq_base", 1e6 if arch == "gemma3" else 1e4))
        kind, factor = key("rope.scaling.type"), float(key("rope.scaling.factor", 0) or 1)
        original = key("rope.scaling.original_context_length", key("context_length"))
        own = "rope_freqs.weight"
        if kind == "longrope":
            own = "rope_factors_long.weight" if key("context_length") > original else "rope_factors_short.weight"
        divisor = self.file.tensors[own].f64() if own in self.file.tensors else None
        c.rope = inv_freq(c.head_dim // 2, base, kind or ("linear" if factor != 1 else None), factor, divisor,
                          original=original, scale=float(key("rope.scaling.attn_factor", 1.0)),
                          beta_fast=key("rope.scaling.yarn_beta_fast", 32.0),
                          beta_slow=key("rope.scaling.yarn_beta_slow", 1.0))
        c.local_rope = c.rope
        if arch == "gemma3":
            c.local_rope = inv_freq(c.head_dim // 2, float(key("rope.freq_base_swa", 1e4)))
        of = c.width // c.n_heads if c.n_layers == self.BIG_GEMMA.get(arch) else c.head_dim
        c.scale = of ** -0.5
        c.cap = float(key("attn_logit_softcapping", 50.0 if arch == "gemma2" else 0.0))
        c.final_cap = float(key("final_logit_softcapping", 30.0 if arch == "gemma2" else 0.0))
        c.see = key("attention.sliding_window", 4096 if arch == "gemma2" else 0)
        every = key("attention.sliding_window_pattern", {"gemma2": 2, "gemma3": 6}.get(arch, 0))
        c.local = [bool(c.see) and (every == 0 or (i + 1) % every != 0) for i in range(c.n_layers)]
        c.tied = "output.weight" not in self.file.tensors
        self.config, self.neighbours, self.plus = c, arch == "llama", 0.0
        self.part = self.PART | (self.GEMMA if c.gemma else self.LLAMA)

    def has(self, name, layer, kind):
        return f"blk.{layer}.{self.part[name]}.{kind}" in self.file.tensors

    def f64(self, name, layer=None, rows=None, kind="weight"):
        full = f"blk.{layer}.{self.part[name]}" if layer is not None else self.TOP[name]
        return self.file.tensors[f"{full}.{kind}"].f64(rows=rows)


class SnapshotSource:
    KNOWN = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")

    def __init__(self, folder):
        self.file = snapio.Snapshot(folder)
        j = self.file.config
        kind = j["model_type"]
        if kind not in self.KNOWN:
            raise ValueError(f"{folder}: model_type {kind} is not one of {' '.join(self.KNOWN)}")
        c = SimpleNamespace(gemma=kind.startswith("gemma"), n_layers=j["num_hidden_layers"])
        c.width, c.n_heads = j["hidden_size"], j["num_attention_heads"]
        c.n_kv = j.get("num_key_value_heads", c.n_heads)
        c.head_dim = j.get("head_dim") or c.width // c.n_heads
        c.eps = float(np.float32(j["rms_norm_eps"]))
        nested = j.get("rope_parameters") or {}
        local = nested.get("sliding_attention", {})
        scaling = j.get("rope_scaling") or nested.get("full_attention") or nested
        base = j.get("rope_theta") or scaling.get("rope_theta") or (1e6 if kind == "qwen2" else 1e4)
        rope = scaling.get("rope_type") or scaling.get("type")
        original = scaling.get("original_max_position_embeddings", 8192)
        longer = j.get("max_position_embeddings", 0) / original
        more = {k: v for k, v in scaling.items() if k in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")}
        c.rope = inv_freq(c.head_dim // 2, float(base), rope,
                          1.0 if rope == "longrope" else float(scaling.get("factor") or 1),
                          (scaling["long_factor"] if longer > 1 else scaling["short_factor"])
                          if rope == "longrope" else None, original=original,
                          scale=np.sqrt(1 + np.log(max(longer, 1)) / np.log(original)) if rope == "longrope" else 1.0,
                          **more)
        c.local_rope = c.rope
        if kind == "gemma3_text":
            c.local_rope = inv_freq(c.head_dim // 2, float(local.get("rope_theta") or j.get("rope_local_base_freq", 1e4)))
        c.scale = (j["query_pre_attn_scalar"] if c.gemma else c.head_dim) ** -0.5
        c.cap = j.get("attn_logit_softcapping", 50.0 if kind == "gemma2" else 0.0) or 0.0
        c.final_cap = j.get("final_logit_softcapping", 30.0 if kind == "gemma2" else 0.0) or 0.0
        c.see = j.get("sliding_window") or 0
        if kind.startswith("qwen") and not j.get("use_sliding_window"):
            c.see = 0
        every = {"gemma2": 2, "gemma3_text": j.get("sliding_window_pattern", 6), "mistral": 0}.get(kind, 1)
        kinds = j.get("layer_types")
        c.local = [bool(c.see) and (kinds[i] == "sliding_attention" if kinds else every == 0 or (i + 1) % every != 0)
                   for i in range(c.n_layers)]
        c.tied = "lm_head.weight" not in self.file.tensors
        self.config, self.neighbours, self.plus = c, False, float(c.gemma)

    def _full(self, name, layer):
        return name if name == "lm_head" else f"model.{name}" if layer is None else f"model.layers.{layer}.{name}"

    def has(self, name, layer, kind):
        return f"{self._full(name, layer)}.{kind}" in self.file.tensors

    def f64(self, name, layer=None, rows=None, kind="weight"):
        if kind == "bias":
            return snapio.widen(self.file.tensors[self._full(name, layer) + ".bias"])
        return self.file.f64(self._full(name, layer), rows)


class Model:
    def __init__(self, path, exact_scale=False):
        self.source = SnapshotSource(path) if os.path.isdir(path) else GgufSource(path)
        self.c = c = self.source.config
        self.embed_scale = 1.0 if not c.gemma else np.sqrt(c.width) if exact_scale else bf16(np.sqrt(c.width))
        self.head = "embed_tokens" if c.tied else "lm_head"

    def linear(self, x, name, layer=None):
        y = x @ self.source.f64(name, layer).T
        return y + self.source.f64(name, layer, kind="bias") if self.source.has(name, layer, "bias") else y

    def norm(self, x, name, layer=None):
        w = self.source.f64(name, layer) + self.source.plus
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c.eps) * w

    def rope(self, x, window, per_position, scale):
        """x [T, heads, D]; the position of row t is t mod window."""
        half = self.c.head_dim // 2
        angle = (np.arange(len(x)) % window)[:, None] * per_position
        c, s = np.cos(angle)[:, None] * scale, np.sin(angle)[:, None] * scale
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
                if c.cap:
                    score = c.cap * np.tanh(score / c.cap)
                score[hidden] = -np.inf
                p = np.exp(score - score.max(-1, keepdims=True))
                out[rows, h] = p @ v[rows, g] / p.sum(-1, keepdims=True)
        return out

    def layer(self, x, i, window):
        c = self.c
        y = self.norm(x, "input_layernorm", i)
        heads = lambda part, n: self.linear(y, f"self_attn.{part}_proj", i).reshape(len(x), n, c.head_dim)
        q, k, v = heads("q", c.n_heads), heads("k", c.n_kv), heads("v", c.n_kv)
        if self.source.has("self_attn.q_norm", i, "weight"):
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
            y = hidden[start:start + HEAD_ROWS] @ head
            yield self.c.final_cap * np.tanh(y / self.c.final_cap) if self.c.final_cap else y


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
