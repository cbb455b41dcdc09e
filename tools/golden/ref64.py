#!/usr/bin/env python3
"""Float64 forward of a llama-family GGUF: the judge of every other forward.

    ref64.py MODEL TOKENS OUT [--window 512]

TOKENS: ids as text, any white space between. OUT: f32 logits [n_tokens][n_vocab]; each window of tokens
starts anew at position 0, as the dump programs do. Weights are the exact values of the file's blocks,
all arithmetic is float64, rope turns neighbours (2i, 2i+1) because the converters permuted the rows of q
and k for that. The logits are rounded to f32 once, when written (about 1e-6: KL errors near 1e-13).
"""
import argparse
import sys

import numpy as np

import ggufio

HEAD_ROWS = 128  # rows of logits at a time: 128 * 49152 * 8 bytes = 50 MB


class Model:
    def __init__(self, path):
        self.file = ggufio.File(path)
        meta = self.file.meta
        arch = meta["general.architecture"]
        if arch != "llama":
            raise ValueError(f"{path}: architecture {arch}, and only llama is written here")
        key = lambda name, default=None: meta.get(f"llama.{name}", default)
        if key("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self.file.tensors:
            raise ValueError(f"{path}: scaled rope is not written here")
        self.n_layers, self.width = key("block_count"), key("embedding_length")
        self.n_heads = key("attention.head_count")
        self.n_kv = key("attention.head_count_kv", self.n_heads)
        self.head_dim = key("attention.key_length", self.width // self.n_heads)
        if key("rope.dimension_count", self.head_dim) != self.head_dim:
            raise ValueError(f"{path}: partial rope is not written here")
        self.eps = np.float64(np.float32(key("attention.layer_norm_rms_epsilon")))
        self.rope_base = float(key("rope.freq_base", 10000.0))
        self.head = "output.weight" if "output.weight" in self.file.tensors else "token_embd.weight"
        self.n_vocab = self.file.tensors["token_embd.weight"].shape[0]

    def weight(self, name):
        return self.file.tensors[name].f64()

    def linear(self, x, name):
        return x @ self.weight(name).T

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name)

    def rope(self, x, window):
        """x [T, heads, D]; the position of row t is t mod window."""
        half = self.head_dim // 2
        angle = (np.arange(len(x)) % window)[:, None] * self.rope_base ** (-np.arange(half) / half)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        out[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
        return out

    def attention(self, q, k, v, window):
        out = np.empty_like(q)
        for start in range(0, len(q), window):
            rows = slice(start, min(start + window, len(q)))
            hidden = np.triu(np.ones((rows.stop - start,) * 2, bool), 1)
            for h in range(self.n_heads):
                g = h // (self.n_heads // self.n_kv)
                score = q[rows, h] @ k[rows, g].T * self.head_dim ** -0.5
                score[hidden] = -np.inf
                p = np.exp(score - score.max(-1, keepdims=True))
                out[rows, h] = p @ v[rows, g] / p.sum(-1, keepdims=True)
        return out

    def hidden(self, ids, window, progress=None):
        """Rows after the last norm, float64 [T, width]."""
        x = self.file.tensors["token_embd.weight"].f64(rows=np.asarray(ids))
        for layer in range(self.n_layers):
            if progress:
                progress(layer)
            name = lambda part: f"blk.{layer}.{part}.weight"
            y = self.norm(x, name("attn_norm"))
            heads = lambda part, n: self.linear(y, name(part)).reshape(len(x), n, self.head_dim)
            q = self.rope(heads("attn_q", self.n_heads), window)
            k = self.rope(heads("attn_k", self.n_kv), window)
            a = self.attention(q, k, heads("attn_v", self.n_kv), window)
            x = x + self.linear(a.reshape(len(x), -1), name("attn_output"))
            y = self.norm(x, name("ffn_norm"))
            gate = self.linear(y, name("ffn_gate"))
            up = self.linear(y, name("ffn_up"))
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, name("ffn_down"))
        return self.norm(x, "output_norm.weight")

    def logits(self, hidden):
        """Blocks of rows, float64 [<= HEAD_ROWS, n_vocab]."""
        head = self.weight(self.head).T
        for start in range(0, len(hidden), HEAD_ROWS):
            yield hidden[start:start + HEAD_ROWS] @ head


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("tokens")
    p.add_argument("out")
    p.add_argument("--window", type=int, default=512)
    a = p.parse_args()
    model = Model(a.model)
    ids = np.array(open(a.tokens).read().split(), np.int64)
    show = lambda layer: print(f"\rlayer {layer + 1} of {model.n_layers}", end="", file=sys.stderr, flush=True)
    hidden = model.hidden(ids, a.window, show if sys.stderr.isatty() else None)
    with open(a.out, "wb") as out:
        for block in model.logits(hidden):
            out.write(block.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
