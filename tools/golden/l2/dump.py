#!/usr/bin/env python3
"""What mlx-lm and mlx-optiq give for tiny checkpoints when keys and values are quantized: tests/golden/l2/<case>.txt.

    dump.py OUT [CASE ...]        needs mlx-cpu 0.32.4, mlx-lm 0.32.2, mlx-optiq 0.7.7 (x86-64)

A case is one run of mlx_lm's generate_step. Its file, after comments and `key value` lines:

    call I at OFFSET rows N [id T] logits H layers H H ...    one forward; T is the token after its last row
                                                           (none in the prompt; none in the last call of all, which
                                                           the program makes ahead and which the caches contain)
    cache LAYER bits B group G offset O index X rows R keys H H H values H H H

H is FNV-1a of 64 bits over little-endian bytes: of the last row of logits (bf16); of each layer's attention
output before the output projection, [N][heads * head_dim] (bf16); of the packed words, scales and biases of a
cache at the end, [kv heads][rows] each; rows past `offset` are not hashed, a ring past its window is whole and in
the order of its slots. bits 0: a cache of bf16, one hash for keys and one for values.

manifest.json says of each case what was run, and which pairs of cases must differ.
"""
import json
import multiprocessing
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TINY = HERE.parents[2] / "tests/golden/tiny"
PROMPT, STEPS, VOCAB = 40, 24, 97

L, Q, G, G8 = "llama_d32-0.25-bf16", "qwen3-0.25-bf16", "gemma3-0.25-bf16", "gemma3-0.08-bf16"
MIX3 = [(0, 4), (1, 8)]                               # layer 2 stays bf16
MIX3B = [(2, 4), (0, 8)]                              # layer 1 stays bf16, order does not matter
MIX7 = [(0, 4), (1, 8), (2, 4), (4, 8), (5, 8)]       # full layers are 2 and 5; 3 and 6 stay bf16

# name: model, tier, options. kv: a kv_config; bits: one width for all; start; chunk; prompt; tiled: optiq's attention;
# window: in place of the checkpoint's; forced: tokens are drawn as those of the prompt are, since the greedy runs
# of gemma3 repeat one
CASES = {
    # mlx-lm alone: --kv-bits, --kv-group-size 32, --quantized-kv-start
    "llama-bf16": (L, "l1", {}),
    "llama-u4-s0": (L, "l1", dict(bits=4, start=0)),
    "llama-u8-s0": (L, "l1", dict(bits=8, start=0)),
    "llama-u2-s0": (L, "l1", dict(bits=2, start=0)),
    "llama-u4-s20": (L, "l1", dict(bits=4, start=20)),
    "llama-u4-s0-c16": (L, "l1", dict(bits=4, start=0, chunk=16)),
    "llama-u4-s20-c16": (L, "l1", dict(bits=4, start=20, chunk=16)),
    "llama-u4-s32-c16": (L, "l1", dict(bits=4, start=32, chunk=16)),
    "llama-u4-s50": (L, "l1", dict(bits=4, start=50)),
    "qwen3-u4-s0": (Q, "l1", dict(bits=4, start=0)),
    "qwen3-u8-s20": (Q, "l1", dict(bits=8, start=20)),
    "qwen3-u8-s0-c16": (Q, "l1", dict(bits=8, start=0, chunk=16)),
    # mlx-optiq: --kv-config; tiled unless said
    "llama-mix": (L, "l2", dict(kv=MIX3)),
    "llama-mix-c16": (L, "l2", dict(kv=MIX3, chunk=16)),
    "llama-mix-untiled": (L, "l2", dict(kv=MIX3, tiled=False)),
    "llama-mix-long": (L, "l2", dict(kv=MIX3, chunk=128, prompt=530, steps=6)),
    "qwen3-mix": (Q, "l2", dict(kv=MIX3B)),
    "qwen3-mix-c16": (Q, "l2", dict(kv=MIX3B, chunk=16)),
    "gemma3-bf16": (G, "l1", {}),
    "gemma3-mix": (G, "l2", dict(kv=MIX7)),
    "gemma3-mix-c16": (G, "l2", dict(kv=MIX7, chunk=16)),
    "gemma3-mix-c3": (G, "l2", dict(kv=MIX7, chunk=3)),
    "gemma3-mix-untiled": (G, "l2", dict(kv=MIX7, tiled=False)),
    "gemma3-mix-short": (G, "l2", dict(kv=MIX7, prompt=3)),
    "gemma3-mix-one": (G, "l2", dict(kv=MIX7, prompt=1)),
    "gemma3-mix-long": (G, "l2", dict(kv=MIX7, chunk=128, prompt=530, steps=6)),
    "gemma3-bf16-forced": (G, "l1", dict(forced=True)),
    "gemma3-mix-forced": (G, "l2", dict(kv=MIX7, forced=True)),
    # a ring of more than a tile, turned: the tiles are of slots
    "gemma3-mix-w600": (G, "l2", dict(kv=MIX7, chunk=128, prompt=650, steps=6, window=600, forced=True)),
    "gemma3-mix-w600-untiled": (G, "l2", dict(kv=MIX7, chunk=128, prompt=650, steps=6, window=600, forced=True,
                                              tiled=False)),
    "gemma3-mix-untiled-forced": (G, "l2", dict(kv=MIX7, tiled=False, forced=True)),
    "gemma3_08-mix": (G8, "l2", dict(kv=MIX7)),
    # mlx-optiq: --kv-bits, which keeps rings too
    "gemma3-u4-s0": (G, "l2", dict(bits=4, start=0)),
    "gemma3-u4-s20-c16": (G, "l2", dict(bits=4, start=20, chunk=16)),
    "llama-u4-s0-tiled": (L, "l2", dict(bits=4, start=0)),
    "llama-u2-s0-optiq": (L, "l2", dict(bits=2, start=0)),
}
# Pairs whose runs have to differ, or the case shows nothing; and pairs that are the same by the rules.
DIFFER = [("llama-bf16", "llama-u8-s0"), ("llama-u4-s0", "llama-u8-s0"), ("llama-u4-s0", "llama-u4-s0-c16"),
          ("llama-u4-s0-c16", "llama-u4-s20-c16"), ("llama-u4-s0", "llama-u4-s50"), ("llama-bf16", "llama-u4-s50"),
          ("llama-mix", "llama-mix-untiled"), ("llama-mix", "llama-mix-c16"), ("gemma3-mix", "gemma3-mix-c16"),
          ("gemma3-mix", "gemma3-mix-untiled"), ("gemma3-mix-c16", "gemma3-mix-c3"), ("gemma3-bf16", "gemma3-mix"),
          ("gemma3-bf16-forced", "gemma3-mix-forced"), ("gemma3-mix-forced", "gemma3-mix-untiled-forced"),
          ("gemma3-mix-w600", "gemma3-mix-w600-untiled"),
          ("llama-u4-s0", "llama-u4-s0-tiled"), ("gemma3-u4-s0", "gemma3-u4-s20-c16")]
SAME = [("llama-u4-s0", "llama-u4-s20"), ("llama-u4-s20-c16", "llama-u4-s32-c16"),
        ("llama-u2-s0", "llama-u2-s0-optiq")]


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def raw(a):
    import mlx.core as mx
    if a.dtype == mx.bfloat16:
        a = mx.view(mx.contiguous(a), mx.uint16)
    return np.array(a).tobytes()


def load(name, window=None):
    import mlx.core as mx
    from mlx_lm.utils import load_model
    folder = TINY / name
    if (folder / "model.safetensors").exists():
        return load_model(folder, model_config=dict(sliding_window=window) if window else {})[0]
    sys.path.insert(0, str(HERE.parent))
    from tiny_families import weights
    w = {}
    for line in (folder / "tensors.txt").read_text().splitlines():
        _, tensor, rows, cols, spread, middle = line.split()
        rows, cols = int(rows), int(cols)
        x = weights(tensor, max(rows, 1) * cols, float(spread), float(middle))
        w[tensor] = mx.array(x if rows == 0 else x.reshape(rows, cols)).astype(mx.bfloat16)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        mx.save_safetensors(str(tmp / "model.safetensors"), w, metadata={"format": "mlx"})
        (tmp / "config.json").write_text((folder / "config.json").read_text())
        model = load_model(tmp)[0]
        mx.eval(model.parameters())
        return model


def prompt_of(n):
    """The first of n ids is 1, the others are drawn; the same for every case of one length."""
    rng = np.random.default_rng(7)
    return [1] + [int(x) for x in rng.integers(3, VOCAB, n - 1)]


def install(o, tmp):
    """The same calls as the program of the reference makes for its flags."""
    if o.get("tiled", True):
        from optiq.runtime import fused_quant_sdpa, streaming_kv_quant
        assert streaming_kv_quant.install() and fused_quant_sdpa.install()
    if "kv" in o:
        from optiq.serve import _load_kv_config, install_mixed_kv
        path = tmp / "kv_config.json"
        path.write_text(json.dumps([dict(layer_idx=i, bits=b, group_size=32) for i, b in o["kv"]]))
        configs = _load_kv_config(str(path))
        install_mixed_kv(kv_configs=configs, quantized_kv_start=o.get("start", 0))
        return dict(kv_bits=max(c.bits for c in configs), kv_group_size=64, quantized_kv_start=o.get("start", 0))
    from optiq.serve import install_quantized_kv
    install_quantized_kv(o["bits"], 32, o["start"])
    return uniform(o)


def uniform(o):
    if "bits" not in o:
        return {}
    return dict(kv_bits=o["bits"], kv_group_size=32, quantized_kv_start=o["start"])


def run(job):
    name, out = job
    model_name, tier, o = CASES[name]
    import mlx.core as mx
    mx.set_default_device(mx.cpu)
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache
    with tempfile.TemporaryDirectory() as tmp:
        flags = install(o, Path(tmp)) if tier == "l2" else uniform(o)
    model = load(model_name, o.get("window"))
    layers, calls = [], []

    class Tap(type(model.layers[0].self_attn.o_proj)):
        def __call__(self, x):
            layers.append(fnv(raw(x[0])))
            return super().__call__(x)

    for layer in model.layers:
        layer.self_attn.o_proj.__class__ = Tap
    cache = make_prompt_cache(model)

    def forward(tokens, cache):
        layers.clear()
        at = cache[0].offset
        y = model(tokens, cache=cache)
        calls.append((at, tokens.shape[1], fnv(raw(y[0, -1])), list(layers)))
        return y

    prompt, steps, ids = prompt_of(o.get("prompt", PROMPT)), o.get("steps", STEPS), []
    if o.get("forced"):
        given = iter(prompt_of(len(prompt) + steps + 1)[len(prompt):])
        flags["sampler"] = lambda logits: mx.array([next(given)])
    step = generate_step(mx.array(prompt), forward, max_tokens=steps, prompt_cache=cache,
                         prefill_step_size=o.get("chunk", 2048), **flags)
    for token, _ in step:
        ids.append(int(token))
    lines = [f"model {model_name}", f"tier {tier}", f"prompt {len(prompt)}", f"steps {steps}"]
    first = len(calls) - (steps + 1)  # the last call of all gives a token that nobody asked for
    for i, (at, rows, logits, taps) in enumerate(calls):
        token = f" id {ids[i - first]}" if first <= i < first + steps else ""
        lines.append(f"call {i} at {at} rows {rows}{token} logits {logits} layers {' '.join(taps)}")
    for i, c in enumerate(cache):
        bits, group = getattr(c, "bits", 0), getattr(c, "group_size", 0)
        keys, values = ((k,) if not bits else k for k in (c.keys, c.values))
        n = min(c.offset, keys[0].shape[2])
        parts = [" ".join(fnv(raw(a[0, :, :n])) for a in kv) for kv in (keys, values)]
        lines.append(f"cache {i} bits {bits} group {group} offset {c.offset} index {getattr(c, '_idx', 0)} rows {n}"
                     f" keys {parts[0]} values {parts[1]}")
    text = "\n".join(lines) + "\n"
    (Path(out) / f"{name}.txt").write_text("# made by tools/golden/l2/dump.py\n" + text)
    return name, text


def heart(text):
    """What a run computed, without how the case is called."""
    return [x for x in text.splitlines() if x.startswith(("call", "cache"))]


def main(out, names):
    Path(out).mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    texts = {}
    for name in names or CASES:
        with spawn.Pool(1) as pool:  # the references patch modules: each case has its own process
            name, texts[name] = pool.map(run, [(name, str(out))])[0]
        print(name, len(texts[name]), "bytes")
    if names:
        return
    for a, b in DIFFER:
        assert heart(texts[a]) != heart(texts[b]), f"{a} and {b} do not differ"
    for a, b in SAME:
        assert heart(texts[a]) == heart(texts[b]), f"{a} and {b} differ"
    lengths = sorted({c[2].get("prompt", PROMPT) for c in CASES.values()})
    manifest = dict(
        oracle={p: version(p) for p in ("mlx", "mlx-cpu", "mlx-lm", "mlx-optiq")}, cpu="x86-64",
        hash="FNV-1a, 64 bits", group_size=32, prompts={str(n): prompt_of(n) for n in lengths},
        cases={k: dict(model=m, tier=t, tiled=t == "l2" and o.get("tiled", True), chunk=o.get("chunk", 2048),
                       prompt=o.get("prompt", PROMPT), steps=o.get("steps", STEPS),
                       kv_config=[dict(layer_idx=i, bits=b, group_size=32) for i, b in o["kv"]] if "kv" in o else None,
                       kv_bits=o.get("bits"), quantized_kv_start=o.get("start", 0), forced=o.get("forced", False),
                       sliding_window=o.get("window"))
               for k, (m, t, o) in CASES.items()},
        differ=DIFFER, same=SAME)
    text = json.dumps(manifest, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    (Path(out) / "manifest.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
