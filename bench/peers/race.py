#!/usr/bin/env python3
"""ingle against llama.cpp on this machine, interleaved: only ratios of one run count.

    race.py [MODEL ...] [--ingle build/ingle] [--llama DIR] [--rounds 5] [--threads 1,2] [--csv FILE]

MODEL is a GGUF file [the starter model], or SNAPSHOT=FILE, where llama.cpp runs the file instead: what it has no
reader for is compared with the nearest that it has. Every round runs each model, and on each the two programs in
turn: a prompt of 512 tokens, then 128 tokens at contexts 64..192. Each program counts at its better number of
threads. What counts as quiet: common.py. All runs go to bench/results/race.csv with machine and commit.
"""
import os
import pathlib

import common

PROMPT, NEW, DEPTH = 512, 128, 64
COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "work", "tok_s",
           "others_cpu"]
WORKS = ("prefill", "decode")


def name_of(model):
    return "=".join(pathlib.Path(part).name for part in model.split("="))


def measure(a, models, llama, ingle):
    rows = []
    for number in range(1, a.rounds + 1):
        for model in models:
            ours, _, theirs = model.partition("=")
            for work in WORKS:
                for threads in a.threads:
                    for who in common.in_turn(number, llama, ingle):
                        path = theirs if theirs and who is llama else ours
                        tok_s, version, others = (who.prefill(path, threads, PROMPT) if work == "prefill" else
                                                  who.decode(path, threads, DEPTH, NEW))
                        rows.append(common.stamp(number, who.name, version) | {
                            "model": name_of(model), "threads": threads, "work": work,
                            "tok_s": round(tok_s, 2), "others_cpu": round(others, 3)})
                        common.say(f"round {number} {name_of(model):32} {work:7} {who.name:9} {threads} threads "
                                   f"{tok_s:8.1f} tok/s{common.beside(others)}")
        common.append(a.csv, COLUMNS, [r for r in rows if r["round"] == number])
    return rows


def result(rows, model, work, busy):
    """(Ratio, llama.cpp's threads, ingle's), each at its better number of threads."""
    return common.at_best_threads(rows, "tok_s", busy, model=name_of(model), work=work)


def summary(rows, models, busy):
    lines = []
    for model in models:
        cells = []
        for work in WORKS:
            r, theirs, ours = result(rows, model, work, busy)
            cells += [f"{r.peer:.0f} ({theirs})", f"{r.us:.0f} ({ours})", r]
        lines.append([name_of(model), *cells])
    head = ["tok/s (threads)", "prompt: llama.cpp", "ingle", "ratio", "decode: llama.cpp", "ingle", "ratio"]
    return common.table(head, lines)


def parser():
    p = common.options(__doc__, "race.csv")
    p.add_argument("models", nargs="*", metavar="MODEL", default=[common.default_model()])
    p.add_argument("--threads", type=common.numbers, default=common.FEW_AND_ALL, help="numbers to try, as 1,2")
    return p


def check_models(p, models):
    for path in (part for model in models for part in model.split("=")):
        if not os.path.exists(path):
            p.error(f"no model {path}")


def main():
    a = parser().parse_args()
    check_models(parser(), a.models)
    rows = measure(a, a.models, *common.programs(a))
    print(summary(rows, a.models, a.busy))


if __name__ == "__main__":
    main()
