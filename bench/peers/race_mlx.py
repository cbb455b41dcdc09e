#!/usr/bin/env python3
"""ingle --l1 against mlx-lm on this machine, interleaved: the same numbers, bit for bit, so only the time differs.

    race_mlx.py SNAPSHOT ... [--python PYTHON] [--ingle build/ingle] [--rounds 5] [--prompt 128] [--new 16] [--csv FILE]

SNAPSHOT is a folder that both read (tools/golden/l1/snapshots.py makes some), PYTHON one that has mlx, mlx-cpu and
mlx-lm of tools/golden/l1/requirements.txt. A round runs each model on both programs in turn: a prompt, then one-token
steps behind 64 tokens, the first steps of mlx-lm, which compile, left out. mlx-lm's CPU backend uses one thread however
many there are; ingle counts with one thread and with all. All runs go to bench/results/mlx.csv.
"""
import argparse
import json
import pathlib
import sys

import common

DEPTH, FIGURES = 64, ("prefill_tps", "decode_tps")
COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "prefill_tps",
           "decode_tps", "others_cpu"]
# Runs in the other Python. The prompt is fed as generate_step feeds it.
MLX = """
import json, sys, time
from pathlib import Path
import mlx.core as mx, mlx_lm
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
path, n_prompt, n_new, depth = sys.argv[1], *map(int, sys.argv[2:])
model, config = load_model(Path(path))
vocab = config["vocab_size"]
ids = lambda n: mx.array([[5 + 7919 * i % (vocab - 8) for i in range(n)]])
def feed(tokens, cache):
    y = model(tokens, cache=cache)
    mx.eval(y[:, -1], [c.state for c in cache])
feed(ids(8), make_prompt_cache(model))
cache = make_prompt_cache(model)
t = time.perf_counter(); feed(ids(n_prompt), cache); prefill = n_prompt / (time.perf_counter() - t)
cache = make_prompt_cache(model); feed(ids(depth), cache); feed(ids(1), cache)
t = time.perf_counter()
for _ in range(n_new): feed(ids(1), cache)
print(json.dumps(dict(prefill_tps=prefill, decode_tps=n_new / (time.perf_counter() - t), version=mlx_lm.__version__)))
"""


def measure(a, number, model):
    """Rows of one model in one round."""
    rows = []

    def mlx():
        out, others = common.run([a.python, "-c", MLX, model, a.prompt, a.new, DEPTH], a.timeout)
        return json.loads(out), others

    def ingle(threads):
        command = [a.ingle, "bench", model, "--l1", "--json", "--runs", 1, "--threads", threads]
        out, others = common.run([*command, "-p", a.prompt, "-d", DEPTH, "-n", 4 * a.new, "-b", 1], a.timeout)
        return json.loads(out), others

    turns = [("mlx-lm", 1, mlx)] + [("ingle", t, lambda t=t: ingle(t)) for t in common.FEW_AND_ALL]
    for name, threads, go in common.in_turn(number, *turns):
        found, others = go()
        row = common.stamp(number, name, found.get("version", "")) | {
            "model": pathlib.Path(model).name, "threads": threads, "others_cpu": round(others, 3)}
        rows.append(row | {f: round(found[f], 3) for f in FIGURES})
        common.say(f"round {number} {row['model']:24} {name:7} {threads} threads: prompt {found['prefill_tps']:.1f}, "
                   f"decode {found['decode_tps']:.2f} tok/s{common.beside(others)}")
    return rows


def summary(rows, models, busy):
    lines = []
    for model in (pathlib.Path(m).name for m in models):
        for threads in common.FEW_AND_ALL:
            cells = []
            for figure in FIGURES:
                r = common.compare(common.figures(rows, figure, model=model, program="mlx-lm", threads=1),
                                   common.figures(rows, figure, model=model, program="ingle", threads=threads), busy)
                cells += [f"{r.peer:.2f}", f"{r.us:.1f}", r]
            lines.append([model, threads, *cells])
    head = ["model", "threads", "prompt: mlx-lm", "ingle", "ratio", "decode: mlx-lm", "ingle", "ratio"]
    return common.table(head, lines)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="+", metavar="SNAPSHOT")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--ingle", default=str(common.TOP / "build" / "ingle"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--new", type=int, default=16)
    p.add_argument("--busy", type=float, default=0.10)
    p.add_argument("--timeout", type=float, default=900)
    p.add_argument("--csv", default=str(common.RESULTS / "mlx.csv"))
    a = p.parse_args()
    rows = []
    for number in range(1, a.rounds + 1):
        for model in a.models:
            found = measure(a, number, model)
            common.append(a.csv, COLUMNS, found)
            rows += found
    print(summary(rows, a.models, a.busy))


if __name__ == "__main__":
    main()
