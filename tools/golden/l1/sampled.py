#!/usr/bin/env python3
"""Sampled runs of stock mlx-lm: tests/golden/l1/sampled.json.

    sampled.py CACHE

As a library is used: the model is loaded, then mx.random.seed(seed), then generate_step with what make_sampler and
make_logits_processors give. (The command line seeds before it loads, and loading draws numbers; `loading` says how
many keys that takes for each checkpoint of `loads`.) Each sampler of SAMPLERS runs 16 tokens with 20 seeds. A sampler
that would change nothing is an error here: it would prove nothing.
"""
import json
import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.utils import load_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cases  # noqa: E402
import dump  # noqa: E402
import golden  # noqa: E402
import snapshots  # noqa: E402

CHECKPOINT = "llama-0.25-bf16"
TOKENS, SEEDS, LARGE_SEED = 16, 20, 2**32 + 5
BIAS = {"3": 2.5, "17": -4.0, "96": 1.3}
# Greedy runs with processors, too: nothing is drawn there.
SAMPLERS = {
    "temp": dict(temp=0.8),
    "temp_high": dict(temp=1.7),
    "top_p": dict(temp=0.8, top_p=0.9),
    "min_p": dict(temp=0.8, min_p=0.05),
    "min_p_keep": dict(temp=1.5, min_p=0.5, min_tokens_to_keep=3),
    "top_k": dict(temp=0.8, top_k=40),
    "top_k_1": dict(temp=0.8, top_k=1),
    "xtc": dict(temp=0.8, xtc_probability=0.5, xtc_threshold=0.1, xtc_special_tokens=[1, 2]),
    "repetition": dict(temp=0.8, repetition_penalty=1.3),
    "presence": dict(temp=0.8, presence_penalty=0.7),
    "frequency": dict(temp=0.8, frequency_penalty=0.6, frequency_context_size=64),
    "logit_bias": dict(temp=0.8, logit_bias=BIAS),
    "repetition_greedy": dict(temp=0.0, repetition_penalty=1.3, repetition_context_size=8),
    "mix": dict(temp=0.9, top_p=0.95, min_p=0.02, top_k=30, xtc_probability=0.3, xtc_threshold=0.15,
                xtc_special_tokens=[2], logit_bias=BIAS, repetition_penalty=1.1, presence_penalty=0.2,
                frequency_penalty=0.1),
}
OF_SAMPLER = ("temp top_p min_p min_tokens_to_keep top_k xtc_probability xtc_threshold xtc_special_tokens").split()
LOADS = ("llama-0.25-bf16", "llama_bias-0.08-bf16", "qwen2-0.08-a4g32", "qwen3-0.08-bf16", "gemma2-0.08-a4g32",
         "gemma3-0.08-bf16", "gemma3-0.08-a4g32", "llama-0.08-mixed")


def run(model, prompt, settings, seed):
    sampler = make_sampler(**{k: v for k, v in settings.items() if k in OF_SAMPLER})
    more = {k: v for k, v in settings.items() if k not in OF_SAMPLER}
    if "logit_bias" in more:
        more["logit_bias"] = {int(k): v for k, v in more["logit_bias"].items()}
    mx.random.seed(seed)
    steps = generate_step(mx.array(prompt), model, max_tokens=TOKENS, sampler=sampler,
                          logits_processors=make_logits_processors(**more) if more else None)
    return [int(token) for token, _ in steps]


def keys_of_loading(folder):
    """How often the key was split while a model was loaded."""
    mx.random.seed(42)
    key = mx.array(np.array(mx.random.state[0]))
    load_model(folder)
    after = np.array(mx.random.state[0])
    for n in range(10000):
        if (np.array(key) == after).all():
            return n
        key = mx.random.split(key)[0]
    raise ValueError(f"{folder}: the key after loading is not one that splitting makes")


def sampled(cache):
    folder = snapshots.make(CHECKPOINT, cache)
    model, _ = load_model(folder)
    prompt = cases.prompts()["tiny"][:40]
    seeds = [*range(SEEDS - 1), LARGE_SEED]
    runs = {name: [run(model, prompt, s, seed) for seed in seeds] for name, s in SAMPLERS.items()}
    for name, ids in runs.items():
        plain = dict(temp=SAMPLERS[name]["temp"])
        same = sum(run(model, prompt, plain, seed) == i for seed, i in zip(seeds, ids))
        if SAMPLERS[name] != plain and same == SEEDS:
            raise ValueError(f"{name} changes nothing in {SEEDS} runs")
    loads = {name: keys_of_loading(snapshots.make(name, cache)) for name in LOADS}
    return dict(checkpoint=CHECKPOINT, prompt=prompt, tokens=TOKENS, seeds=seeds, samplers=SAMPLERS, runs=runs,
                loading=loads)


def main(cache):
    mx.set_default_device(mx.cpu)
    oracle = dump.versions()
    s = sampled(cache)
    s["sha256"] = dump.checksums(snapshots.make(CHECKPOINT, cache))
    text = {k: json.dumps(v) for k, v in s.items() if k not in ("samplers", "runs")}
    text["samplers"] = "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in SAMPLERS.items()) + "\n }"
    rows = lambda r: ",\n".join(f"   {json.dumps(i)}" for i in r)
    text["runs"] = "{\n" + ",\n".join(f"  {json.dumps(k)}: [\n{rows(r)}\n  ]" for k, r in s["runs"].items()) + "\n }"
    body = ",\n".join(f' "{k}": {v}' for k, v in ({"oracle": json.dumps(oracle)} | text).items())
    (golden.FOLDER / "sampled.json").write_text(f"{{\n{body}\n}}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
