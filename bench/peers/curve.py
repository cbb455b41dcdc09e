#!/usr/bin/env python3
"""What a token costs as the work grows, ingle and llama.cpp interleaved: only ratios of one run count.

    curve.py [--model FILE] [--ingle build/ingle] [--llama DIR] [--rounds 5] [--prompts 128,512,2048,8192]
             [--contexts 128,2048,8128] [--batches 2,4,8,16] [--only ingle] [--csv FILE]

Prompts of several lengths, decode of --tokens tokens behind several lengths of context, and decode of several
sequences together behind the first of these. All runs go to bench/results/curve.csv, which bench/plot.py draws; it
has the columns of `ingle bench --csv`. What counts as quiet: common.py.
"""
import pathlib

import common

COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "work", "tokens",
           "context", "sequences", "tok_s", "others_cpu"]


def prefill(tokens):
    return {"work": "prefill", "tokens": tokens, "context": 0, "sequences": 1}


def decode(tokens, context, sequences=1):
    return {"work": "decode", "tokens": tokens, "context": context, "sequences": sequences}


def works(a):
    batches = [decode(a.tokens, a.contexts[0], n) for n in a.batches if n > 1] if a.contexts else []
    return [prefill(n) for n in a.prompts] + [decode(a.tokens, n) for n in a.contexts] + batches


def text_of(work):
    if work["work"] == "prefill":
        return f"prompt of {work['tokens']}"
    many = f"{work['sequences']} sequences, " if work["sequences"] > 1 else ""
    return f"decode, {many}context {work['context']}"


def run(a, who, work):
    if work["work"] == "prefill":
        return who.prefill(a.model, a.threads, work["tokens"])
    if work["sequences"] > 1:
        return who.batch(a.model, a.threads, work["sequences"], work["context"], work["tokens"])
    return who.decode(a.model, a.threads, work["context"], work["tokens"])


def measure(a, llama, ingle):
    rows = []
    for number in range(1, a.rounds + 1):
        for work in works(a):
            for who in common.in_turn(number, llama, ingle):
                if a.only not in (None, who.name):
                    continue
                tok_s, version, others = run(a, who, work)
                rows.append(common.stamp(number, who.name, version) | work | {
                    "model": pathlib.Path(a.model).name, "threads": a.threads, "tok_s": round(tok_s, 2),
                    "others_cpu": round(others, 3)})
                common.say(f"round {number} {text_of(work):34} {who.name:9} {tok_s:8.1f} tok/s"
                           f"{common.beside(others)}")
        common.append(a.csv, COLUMNS, [r for r in rows if r["round"] == number])
    return rows


def result(rows, busy, work):
    return common.compare(*(common.figures(rows, "tok_s", program=p, **work) for p in ("llama.cpp", "ingle")), busy)


def growth(rows, busy, small, large, cost=False, program="ingle"):
    """One program's figure at the work `large` divided by that at `small`, round by round: tok/s, or with `cost`
    the milliseconds of a token."""
    sides = [common.figures(rows, "tok_s", program=program, **w) for w in (small, large)]
    if cost:
        sides = [{n: (1e3 / tok_s, others) for n, (tok_s, others) in side.items()} for side in sides]
    return common.compare(*sides, busy)


def summary(rows, a):
    lines = []
    for work in works(a):
        cells = [f"{common.middle(side, a.busy):.1f}" if side else "" for side in
                 (common.figures(rows, "tok_s", program=p, **work) for p in ("llama.cpp", "ingle"))]
        lines.append([text_of(work), *cells, result(rows, a.busy, work) or ""])
    return common.table(["tok/s", "llama.cpp", "ingle", "ratio"], lines)


def parser():
    p = common.options(__doc__, "curve.csv")
    p.add_argument("--model", default=common.default_model())
    p.add_argument("--threads", type=int, default=common.CORES, help="of both [all cores]")
    p.add_argument("--prompts", type=common.numbers, default=[128, 512, 2048, 8192], help="tokens of the prompt")
    p.add_argument("--contexts", type=common.numbers, default=[128, 2048, 8128], help="tokens before the decode")
    p.add_argument("--batches", type=common.numbers, default=[2, 4, 8, 16], help="sequences together")
    p.add_argument("--tokens", type=int, default=64, help="steps of each decode [64]")
    p.add_argument("--only", choices=("ingle", "llama.cpp"), help="run one of the two")
    return p


def main():
    a = parser().parse_args()
    rows = measure(a, *common.programs(a))
    print(summary(rows, a))


if __name__ == "__main__":
    main()
