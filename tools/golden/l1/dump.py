#!/usr/bin/env python3
"""What stock mlx-lm computes: every intermediate of a prompt and of one-token steps, and a greedy run, as hashes.

    dump.py MODEL OUT --tokens FILE --prefill N [--greedy M]   one model, the long form (OUT may be -)
    dump.py --cases CACHE [CASE...]                            the goldens of tests/golden/l1; no CASE: all

Needs the packages of requirements.txt. Nothing of the program is changed: its modules are called through a function
that keeps what goes in and comes out of them. golden.py says what files hold. Names of arrays, NN the layer:

    embed, h0 (scaled; only families that do) | NN.attn_norm q k v [q_norm k_norm] q_rope k_rope sdpa o
    [post_attn_norm] h_attn ffn_norm gate up glu down [post_ffn_norm] h_ffn | norm, logits
"""
import argparse
import hashlib
import json
import pathlib
import platform
import sys
import time

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.gemma2
import mlx_lm.models.gemma3_text
import mlx_lm.models.llama
import mlx_lm.models.qwen2
import mlx_lm.models.qwen3
import mlx_lm.models.rope_utils
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cases  # noqa: E402
import golden  # noqa: E402
import snapshots  # noqa: E402

FAMILIES = {m.__name__.rpartition(".")[2]: m for m in (
    mlx_lm.models.llama, mlx_lm.models.qwen2, mlx_lm.models.qwen3, mlx_lm.models.gemma2, mlx_lm.models.gemma3_text)}
GEMMA = ("gemma2", "gemma3_text")
WORD = {mx.bfloat16, mx.float16}
ORDER = ("attn_norm q k v q_norm k_norm q_rope k_rope sdpa o post_attn_norm h_attn ffn_norm gate up glu down "
         "post_ffn_norm h_ffn").split()


def digest(y):
    """sha256 of a T x cols array of 16-bit floats."""
    if y.dtype not in WORD:
        raise ValueError(f"an array of {y.dtype}: only bf16 and f16 models have goldens")
    return hashlib.sha256(np.array(mx.contiguous(y).view(mx.uint16)).astype("<u2").tobytes()).hexdigest()[:cases.DIGITS]


# ---- hooks ------------------------------------------------------------------------------------------------

watched = {}  # id of a module -> f(inputs, output)


def hook(cls, method="__call__"):
    was = getattr(cls, method)

    def call(self, *args, **more):
        y = was(self, *args, **more)
        seen = watched.get((id(self), method))
        if seen:
            seen(args[0], y)
        return y

    setattr(cls, method, call)


def install():
    rope = mlx_lm.models.rope_utils
    classes = {nn.Linear, nn.QuantizedLinear, nn.Embedding, nn.QuantizedEmbedding, nn.RMSNorm, nn.RoPE,
               rope.Llama3RoPE, rope.YarnRoPE, rope.SuScaledRoPE}
    for family in FAMILIES.values():
        classes |= {getattr(family, "RMSNorm", nn.RMSNorm), family.TransformerBlock}
    for cls in classes:
        hook(cls)


def flat(y):
    """[1][T][cols] to [T][cols]"""
    return y.reshape(y.shape[-2], y.shape[-1])


def heads(y):
    """[1][heads][T][dim] to [T][heads * dim]"""
    return y[0].transpose(1, 0, 2).reshape(y.shape[2], -1)


def watch(model, config):
    """Fills `seen`, name -> array, with each call of the model; returns it."""
    seen, inner, family = {}, model.model, config["model_type"]
    watched.clear()

    def put(name, value):
        if name in seen:
            raise ValueError(f"{name} was computed twice in one step")
        seen[name] = value

    def on(module, f):
        watched[id(module), "__call__"] = f

    def out(name, module, shape=flat):
        on(module, lambda x, y: put(name, shape(y)))

    out("embed", inner.embed_tokens)
    out("norm", inner.norm)
    for i, layer in enumerate(inner.layers):
        at, attn, mlp = f"{i:02d}.", layer.self_attn, layer.mlp
        out(at + "attn_norm", layer.input_layernorm)
        for name in "qkv":
            out(at + name, getattr(attn, name + "_proj"))
        if hasattr(attn, "q_norm"):
            # gemma3 turns heads before tokens first, qwen3 after
            shape = heads if family in GEMMA else lambda y: y.reshape(y.shape[1], -1)
            out(at + "q_norm", attn.q_norm, shape)
            out(at + "k_norm", attn.k_norm, shape)

        def turned(x, y, at=at, attn=attn):
            name, n = ("k_rope", attn.n_kv_heads) if at + "q_rope" in seen else ("q_rope", attn.n_heads)
            if y.shape[1] != n:
                raise ValueError(f"{at}{name}: {y.shape[1]} heads and not {n}")
            put(at + name, heads(y))

        def attended(x, y, at=at):
            put(at + "sdpa", flat(x))
            put(at + "o", flat(y))

        def normed(x, y, at=at):
            put(at + "h_attn", flat(x))
            put(at + "ffn_norm", flat(y))

        def came_down(x, y, at=at):
            put(at + "glu", flat(x))
            put(at + "down", flat(y))

        def block(x, y, at=at, first=i == 0 and family in GEMMA):
            if first:
                put("h0", flat(x))
            put(at + "h_ffn", flat(y))

        on(attn.rope, turned)
        on(attn.o_proj, attended)
        if family in GEMMA:
            out(at + "post_attn_norm", layer.post_attention_layernorm)
            on(layer.pre_feedforward_layernorm, normed)
            out(at + "post_ffn_norm", layer.post_feedforward_layernorm)
        else:
            on(layer.post_attention_layernorm, normed)
        out(at + "gate", mlp.gate_proj)
        out(at + "up", mlp.up_proj)
        on(mlp.down_proj, came_down)
        on(layer, block)
    return seen


def order(n_layers):
    return (["embed", "h0"] + [f"{i:02d}.{name}" for i in range(n_layers) for name in ORDER] + ["norm", "logits"])


# ---- running ----------------------------------------------------------------------------------------------


def run_model(model, config, tokens, prefill, greedy):
    run, seen = golden.Run(), watch(model, config)
    names = order(config["num_hidden_layers"])
    cache = make_prompt_cache(model)
    calls = [tokens[:prefill]] + [[t] for t in tokens[prefill:]]
    for step, ids in enumerate(calls):
        seen.clear()
        logits = flat(model(mx.array([ids]), cache=cache))
        seen["logits"] = logits
        mx.eval(list(seen.values()))
        if set(seen) - set(names):
            raise ValueError(f"arrays without a place: {sorted(set(seen) - set(names))}")
        for name in names:
            if name in seen:
                y = seen[name]
                if y.shape[0] != len(ids):
                    raise ValueError(f"{name}: {y.shape[0]} rows of {len(ids)} tokens")
                run.arrays[step, name] = (*y.shape, digest(y))
    watched.clear()
    if greedy:
        for token, lp in generate_step(mx.array(tokens[:prefill]), model, max_tokens=greedy):
            run.ids.append(int(token))
            run.lp.append(digest(lp.reshape(1, -1)))
    return run


def run_case(case, cache):
    folder = snapshots.make(case["checkpoint"], cache)
    model, config = load_model(folder)
    return run_model(model, config, cases.prompts()[case["prompt"]], case["prefill"], case["greedy"])


def versions():
    """Of the packages that run; they must be the pinned ones, on the machine that is pinned."""
    from importlib.metadata import version
    found = {name: version(name) for name in golden.pins()}
    if found != golden.pins():
        sys.exit(f"dump.py: {found} are installed, {golden.pins()} are pinned")
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        sys.exit(f"dump.py: {platform.machine()} {platform.system()}; the oracle is the x86-64 Linux wheel")
    return found


def checksums(folder):
    return dict(config=golden.sha256(folder / "config.json"), weights=golden.sha256(folder / "model.safetensors"))


def regolden(cache, wanted):
    oracle = versions()
    golden.FOLDER.mkdir(parents=True, exist_ok=True)
    old = json.loads(golden.MANIFEST.read_text()) if golden.MANIFEST.exists() else {}
    done = old.get("cases", {}) if old.get("oracle") == oracle else {}
    for name in wanted or cases.CASES:
        case, start = cases.CASES[name], time.time()
        run = run_case(case, cache)
        golden.write(golden.FOLDER / f"{name}.txt", run, case["kept"], case["digits"])
        done[name] = case | dict(sha256=checksums(snapshots.make(case["checkpoint"], cache)))
        m = dict(oracle=oracle, arch=platform.machine(), command="tools/golden/l1/dump.py --cases CACHE",
                 prompts=cases.prompts(), cases={n: done[n] for n in cases.CASES if n in done})
        golden.MANIFEST.write_text(manifest_text(m))
        print(f"{name}: {len(run.arrays)} arrays, {len(run.ids)} ids, {time.time() - start:.1f} s", flush=True)


def manifest_text(m):
    """A line a case."""
    lines = lambda d: ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in d.items())
    top = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in m.items() if k not in ("prompts", "cases"))
    return f'{{\n{top},\n "prompts": {{\n{lines(m["prompts"])}\n }},\n "cases": {{\n{lines(m["cases"])}\n }}\n}}\n'


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--cases", metavar="CACHE")
    p.add_argument("--tokens")
    p.add_argument("--prefill", type=int)
    p.add_argument("--greedy", type=int, default=0)
    p.add_argument("rest", nargs="*", metavar="MODEL OUT, or CASE")
    a = p.parse_args()
    mx.set_default_device(mx.cpu)
    install()
    if a.cases:
        return regolden(a.cases, a.rest)
    if len(a.rest) != 2 or not a.tokens or not a.prefill:
        p.error("MODEL OUT --tokens FILE --prefill N")
    tokens = [int(t) for t in pathlib.Path(a.tokens).read_text().split()]
    model, config = load_model(pathlib.Path(a.rest[0]))
    text = "\n".join(run_model(model, config, tokens, a.prefill, a.greedy).lines()) + "\n"
    if a.rest[1] == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(a.rest[1]).write_text(text)


if __name__ == "__main__":
    main()
