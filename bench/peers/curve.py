#!/usr/bin/env python3
"""What a token costs as the work grows, ingle and llama.cpp interleaved: only ratios of one run count.

    curve.py [--model FILE] [--ingle build/ingle] [--llama DIR] [--rounds 5] [--prompts 128,512,2048,8064]
             [--contexts 128,2048,8064] [--batches 1,2,4,8,16] [--only ingle] [--csv FILE]

Prompts of several lengths, decode of --tokens tokens behind several lengths of context, and decode of several
sequences together, each behind 128 tokens. All runs go to bench/results/curve.csv; bench/plot.py draws them.
What counts as quiet: common.py.
"""
import pathlib

import common

BATCH_CONTEXT = 128
COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "work", "size",
           "tok_s", "others_cpu"]


def sizes(a):
    lists = {"prefill": a.prompts, "decode": a.contexts, "batch": a.batches}
    return [(work, n) for work, sizes in lists.items() for n in sizes]


def run(a, who, work, size):
    if work == "prefill":
        return who.prefill(a.model, a.threads, size)
    if work == "decode":
        return who.decode(a.model, a.threads, size, a.tokens)
    return who.batch(a.model, a.threads, size, BATCH_CONTEXT, a.tokens)


def measure(a, llama, ingle):
    rows = []
    for number in range(1, a.rounds + 1):
        for work, size in sizes(a):
            for who in common.in_turn(number, llama, ingle):
                if a.only not in (None, who.name):
                    continue
                tok_s, version, others = run(a, who, work, size)
                rows.append(common.stamp(number, who.name, version) | {
                    "model": pathlib.Path(a.model).name, "threads": a.threads, "work": work, "size": size,
                    "tok_s": round(tok_s, 2), "others_cpu": round(others, 3)})
                common.say(f"round {number} {work:7} {size:5} {who.name:9} {tok_s:8.1f} tok/s{common.beside(others)}")
    common.append(a.csv, COLUMNS, rows)
    return rows


def result(rows, busy, work, size):
    sides = [common.figures(rows, "tok_s", program=p, work=work, size=size) for p in ("llama.cpp", "ingle")]
    return common.compare(*sides, busy)


def growth(rows, busy, work, large, small, program="ingle"):
    """One program's tok/s at size `large` divided by those at `small`, round by round."""
    sides = [common.figures(rows, "tok_s", program=program, work=work, size=s) for s in (small, large)]
    return common.compare(*sides, busy)


def summary(rows, a):
    lines = []
    for work, size in sizes(a):
        r = result(rows, a.busy, work, size)
        if r:
            lines.append([f"{work} {size}", f"{r.peer:.1f}", f"{r.us:.1f}", r])
        else:
            side = common.figures(rows, "tok_s", work=work, size=size)
            lines.append([f"{work} {size}", "", f"{common.middle(side, a.busy):.1f}", ""])
    return common.table(["tok/s", "llama.cpp", "ingle", "ratio"], lines)


def add_options(p):
    p.add_argument("--threads", type=int, default=common.CORES, help="of both [all cores]")
    p.add_argument("--prompts", type=common.numbers, default=[128, 512, 2048, 8064], help="tokens of the prefill")
    p.add_argument("--contexts", type=common.numbers, default=[128, 2048, 8064], help="tokens before the decode")
    p.add_argument("--batches", type=common.numbers, default=[1, 2, 4, 8, 16], help="sequences together")
    p.add_argument("--tokens", type=int, default=64, help="of each decode [64]")
    p.add_argument("--only", choices=("ingle", "llama.cpp"), help="run one of the two")


def main():
    p = common.options(__doc__, "curve.csv")
    p.add_argument("--model", default=common.default_model())
    add_options(p)
    a = p.parse_args()
    rows = measure(a, *common.programs(a))
    print(summary(rows, a))


if __name__ == "__main__":
    main()
