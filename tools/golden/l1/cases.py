"""The cases of tier l1: which checkpoint, which prompt, how far. No mlx here: the tests read it, too.

A case is a checkpoint's name (snapshots.py makes it) and a prompt: the first `prefill` ids go in at once, each of the
`steps` ids after them alone. A greedy run then starts anew with the first `prefill` ids, all but the last at once
and the last alone, as generate_step does, and goes on for `greedy` ids.
"""
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
SIGMAS = (0.08, 0.25)
BITS = (2, 3, 4, 5, 6, 8)
STEPS = 3
# Goldens of tiny models keep these steps and this many hex digits of a hash; those of real ones keep all.
TINY_KEPT, TINY_DIGITS, DIGITS = (0, 1, 3), 8, 16
TINY_VOCAB = 97


def tiny_ids(n):
    """A beginning and numbers of a congruential generator."""
    ids, seed = [1], 11
    while len(ids) < n:
        seed = (seed * 1664525 + 1013904223) % 2**32
        ids.append(3 + (seed >> 8) % (TINY_VOCAB - 3))
    return ids


def prompts():
    real = json.loads((HERE / "prompts.json").read_text())
    return real | {"tiny": tiny_ids(40 + STEPS), "tiny-long": tiny_ids(100 + STEPS)}


def real(name, checkpoint, prompt, greedy, prefill=40):
    return name, dict(checkpoint=checkpoint, prompt=prompt, prefill=prefill, greedy=greedy,
                      kept=list(range(1 + STEPS)), digits=DIGITS)


def tiny(checkpoint, long=False):
    return checkpoint, dict(checkpoint=checkpoint, prompt="tiny-long" if long else "tiny",
                            prefill=100 if long else 40, greedy=32, kept=list(TINY_KEPT), digits=TINY_DIGITS)


REAL = dict([
    real("smollm2-bf16", "smollm2-bf16", "smollm2", 160),
    real("smollm2-f16", "smollm2-f16", "smollm2", 160),
    real("smollm2-a4g64", "smollm2-a4g64", "smollm2", 160),
    real("gemma3-270m-bf16", "gemma3-270m-bf16", "gemma3", 32),
    real("gemma3-270m-a4g64", "gemma3-270m-a4g64", "gemma3", 32),
    real("gemma3-270m-bf16-long", "gemma3-270m-bf16", "gemma3-long", 16, prefill=530),
    real("gemma3-270m-a4g64-long", "gemma3-270m-a4g64", "gemma3-long", 4, prefill=530),
])
WINDOWED = ("gemma3", "llama_sliding")
FAMILIES = ("llama", "llama_d32", "llama_llama3", "llama_linear", "llama_yarn", "llama_longrope", "llama_bias",
            "llama_sliding", "minicpm5", "qwen2", "qwen3", "gemma2", "gemma3")
# Every width of codes and scale of weights for these, in groups that all their widths have.
ALL_BITS = {"llama_llama3": 32, "qwen2": 64, "qwen3": 64, "minicpm5": 128, "gemma3": 32}


def tiny_cases():
    for family in FAMILIES:
        for sigma in SIGMAS:
            formats = ["bf16", "f16", "a4g32"]
            if family in ALL_BITS:
                formats += [f"a{bits}g{ALL_BITS[family]}" for bits in BITS]
            for kind in dict.fromkeys(formats):
                yield tiny(f"{family}-{sigma:.2f}-{kind}", family in WINDOWED and kind in ("bf16", "a4g32"))
    for family in ("llama", "qwen2", "gemma3"):
        for kind in ("mxfp4", "nvfp4", "mxfp8"):
            yield tiny(f"{family}-0.08-{kind}")
    for bits in BITS:
        yield tiny(f"minicpm5-0.08-a{bits}g64")
    for name in ("llama-0.08-f16a4g64", "gemma3-0.08-f16a8g32", "qwen2-0.08-f16a3g64", "minicpm5-0.08-f16a2g128"):
        yield tiny(name)
    # Of tests/golden/tiny, where they lie ready: another format in every place.
    for name in ("llama-0.08-mixed", "llama-0.25-mixed", "gemma3-0.08-mixed"):
        yield tiny(name)


CASES = REAL | dict(tiny_cases())
