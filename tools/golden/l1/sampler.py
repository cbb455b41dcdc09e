#!/usr/bin/env python3
"""sampler: what stock mlx-lm samples from rows of logits that a few lines of integers make.

    sampler.py [OUT]           write OUT, default tests/golden/l1/sampler.txt
    sampler.py --compiled      the same bits with mx.compile, which needs g++ and minutes: compares with OUT

The oracle is mlx_lm.generate.generate_step itself, on a model that gives row i at its i-th step whatever it is
told, with make_sampler and make_logits_processors. So what reaches the processors, what they do in which type,
and how the random stream moves on is all mlx-lm's. Run with mlx-lm 0.32.2 on mlx-cpu 0.32.4.

The file, one case after the other:
    case TYPE VOCABULARY KIND [name=value ...]
    first   the 16 ids of the first two seeds
    ids     a hash of the 16 ids for each seed
    lp      a hash of the bits of all log-probabilities (after the processors, before the samplers)
Rows, seeds and prompts are made again by src/engine/sample_mlx_test.c, in the same integers.
"""
import os
import sys

compiled = "--compiled" in sys.argv
if not compiled:
    os.environ["MLX_DISABLE_COMPILE"] = "1"  # the same bits, without a run of g++ for each constant

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.sample_utils import make_logits_processors, make_sampler  # noqa: E402

DRAWS, PROMPT = 16, 30
SEEDS = list(range(18)) + [2**32 + 5, 2**64 - 1]
TYPES = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}
KINDS = ["spread", "flat", "masked", "peaked"]

PROCESSORS = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.1, "repetition_context_size": 5},
    {"repetition_penalty": 0.7, "repetition_context_size": 0},
    {"presence_penalty": 0.6},
    {"presence_penalty": -1.5, "presence_context_size": 7},
    {"frequency_penalty": 0.37},
    {"frequency_penalty": -0.9, "frequency_context_size": 64},
    {"logit_bias": {3: 2.7, 11: -100.0, 40: 0.3, 96: 1.1}},
]
SAMPLERS = [
    {},
    {"top_p": 0.9}, {"top_p": 0.35}, {"top_p": 0.999},
    {"min_p": 0.05}, {"min_p": 0.5}, {"min_p": 1.0}, {"min_p": 0.3, "min_tokens_to_keep": 9},
    {"top_k": 1}, {"top_k": 5}, {"top_k": 40},
    {"xtc_probability": 0.5, "xtc_threshold": 0.01}, {"xtc_probability": 1.0, "xtc_threshold": 0.004},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0, "xtc_special_tokens": [1, 2, 30, 31, 32]},
]
MIXES = [
    {"top_p": 0.95, "top_k": 20},
    {"top_p": 0.9, "min_p": 0.02, "top_k": 30, "xtc_probability": 0.4, "xtc_threshold": 0.02,
     "xtc_special_tokens": [5]},
    {"top_p": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.2, "frequency_penalty": 0.1,
     "logit_bias": {0: 1.5, 50: -3.0}},
    {"min_p": 0.01, "min_tokens_to_keep": 3, "repetition_penalty": 1.15, "frequency_penalty": 0.25,
     "repetition_context_size": 64, "xtc_probability": 0.7, "xtc_threshold": 0.05},
]
BIAS_KEYS = ("logit_bias", "repetition_penalty", "repetition_context_size", "presence_penalty",
             "presence_context_size", "frequency_penalty", "frequency_context_size")


def cases():
    """Parameters, one dict a case; at temperature 0 samplers do nothing, so only what changes logits is there."""
    for p in [{}] + PROCESSORS:
        yield dict(p, temp=0.0)
    for i, p in enumerate(SAMPLERS + PROCESSORS + MIXES):
        yield dict(p, temp=(0.8, 1.0, 1.37, 0.3)[i % 4])
    yield {"temp": 5.0}
    yield {"temp": 0.01}


def mix(seed, n):
    """n numbers of 32 bits."""
    x = np.arange(n, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(seed)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def row(kind, step, n):
    """Logits as f32, before they are rounded to the type."""
    h = mix(step * 0x01000193 + KINDS.index(kind) * 0x10001, n)
    sum4 = sum((h >> np.uint32(8 * i) & np.uint32(255)).astype(np.int32) for i in range(4)) - 510
    x = sum4.astype(np.float32) * np.float32(2.0**-5)
    if kind == "flat":
        x = (h & np.uint32(7)).astype(np.float32) * np.float32(0.25)
    if kind == "masked":
        x[h % np.uint32(3) == 0] = -np.inf
    if kind == "peaked":
        x *= np.float32(0.25)
        x[(step * 13 + 7) % n] = 12.0
    return x


class Rows:
    """A model that gives its rows in order, and does not look at what it is given."""

    layers = []

    def __init__(self, kind, n_vocab, dtype):
        self.row = [mx.array(row(kind, step, n_vocab)).astype(dtype) for step in range(DRAWS + 1)]
        self.n_vocab = n_vocab

    def make_cache(self):
        return []

    def __call__(self, tokens, cache=None):
        if tokens.shape[1] > 1:  # the prompt but for its last token: nobody looks
            return None
        self.step += 1
        return self.row[self.step - 1][None, None]


def bits_of(lp):
    """In words of 16 bits, low ones first."""
    return np.array(lp.view(mx.uint16))


def fold(h, words):
    """FNV-1a over 16-bit words of `words`, in 64 lanes joined at the end, so that numpy is quick enough."""
    w = np.asarray(words, dtype=np.uint64).reshape(-1)
    lanes = np.full(64, h, dtype=np.uint64)
    w = np.concatenate([w, np.full(-len(w) % 64, 0xFFFF, dtype=np.uint64)]).reshape(-1, 64)
    for line in w:
        lanes = (lanes ^ line) * np.uint64(0x100000001B3)
    for lane in lanes:
        h = ((h ^ int(lane)) * 0x100000001B3) % 2**64
    return h


def run(model, params, seed):
    sampler = make_sampler(**{k: v for k, v in params.items() if k not in BIAS_KEYS})
    processors = make_logits_processors(**{k: v for k, v in params.items() if k in BIAS_KEYS})
    prompt = [int(x) % model.n_vocab for x in mix(777, PROMPT)]
    model.step = 0
    mx.random.seed(seed)
    ids, lps = [], []
    for token, lp in generate_step(mx.array(prompt), model, max_tokens=DRAWS, sampler=sampler,
                                   logits_processors=processors):
        ids.append(int(token))
        lps.append(bits_of(lp))
    return ids, lps


def text_of(v):
    if isinstance(v, dict):
        return ",".join(f"{k}:{b!r}" for k, b in v.items())
    return ",".join(map(str, v)) if isinstance(v, list) else repr(v)


def shapes():
    for t in TYPES:
        for kind in KINDS:
            yield t, 97, kind, SEEDS
        for kind in ("spread", "flat"):
            yield t, 1000, kind, SEEDS
        yield t, 49152, "spread", SEEDS[:1]


def case_lines(model, head, params, seeds):
    first, hashes, lp_hash = [], [], 0xCBF29CE484222325
    for seed in seeds[:1] if params["temp"] == 0.0 else seeds:
        ids, lps = run(model, params, seed)
        first += ids if len(hashes) < 2 else []
        hashes.append(fold(0xCBF29CE484222325, np.array(ids)) >> 32)
        if any(k in BIAS_KEYS for k in params) or seed == 0:
            lp_hash = fold(lp_hash, np.concatenate(lps))
    return [head + " ".join(f"{k}={text_of(v)}" for k, v in params.items()),
            "first " + " ".join(map(str, first)),
            "ids " + " ".join(f"{h:08x}" for h in hashes), f"lp {lp_hash:016x}"]


def main():
    out = next((a for a in sys.argv[1:] if not a.startswith("-")), "tests/golden/l1/sampler.txt")
    lines = []
    for t, n, kind, seeds in shapes():
        if compiled and (n, kind) != (97, "spread"):
            continue
        model = Rows(kind, n, TYPES[t])
        for params in cases():
            if n > 1000 and params["temp"] == 0.0 and len(params) > 1:
                continue
            lines += case_lines(model, f"case {t} {n} {kind} ", params, seeds)
    if compiled:
        with open(out) as f:
            known = f.read()
        bad = [i for i in range(0, len(lines), 4) if "\n".join(lines[i:i + 4]) not in known]
        print(f"{len(lines) // 4} cases compiled, {len(bad)} differ", *(lines[i] for i in bad), sep="\n")
        sys.exit(bool(bad))
    with open(out, "w") as f:
        f.write("\n".join(lines) + "\n")
    print(f"{out}: {len(lines) // 4} cases")


if __name__ == "__main__":
    main()
