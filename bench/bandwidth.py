#!/usr/bin/env python3
"""Decode of several models by the bytes it reads: is one format slower than another for each byte?

    bandwidth.py [--ingle build/ingle] [--rounds 5] MODEL MODEL ...

Every round runs each model once, in turn; a model's figure is its median of GB/s, compared with the first model's in
the same rounds. All runs go to bench/results/bandwidth.csv with machine and commit.
"""
import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

COLUMNS = ["utc", "machine", "cores", "commit", "round", "model", "threads", "bytes_a_token", "tok_s", "gb_s",
           "others_cpu"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="+")
    p.add_argument("--ingle", default=str(common.TOP / "build" / "ingle"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--csv", default=str(common.RESULTS / "bandwidth.csv"), help="- for none")
    a = p.parse_args()
    rows, speed = [], {m: [] for m in a.models}
    for number in range(1, a.rounds + 1):
        for model in a.models:
            out, others = common.run([a.ingle, "bench", model, "--json", "--runs", 1, "--batch", 1,
                                      "--threads", a.threads, "--prompt-tokens", 0, "--depth", 64, "--tokens", 128], 300)
            r = json.loads(out)
            gb_s = r["token_bytes"] * r["decode_tps"] / 1e9
            speed[model].append(gb_s)
            row = common.stamp(number, "ingle", "") | {
                "model": pathlib.Path(model).name, "threads": r["threads"], "bytes_a_token": int(r["token_bytes"]),
                "tok_s": round(r["decode_tps"], 2), "gb_s": round(gb_s, 2), "others_cpu": round(others, 3)}
            rows.append({c: row[c] for c in COLUMNS})
            common.say(f"round {number} {pathlib.Path(model).name:32} {gb_s:6.2f} GB/s{common.beside(others)}")
    common.append(a.csv, COLUMNS, rows)
    first = speed[a.models[0]]
    for model, values in speed.items():
        ratio = statistics.median(v / f for v, f in zip(values, first))
        print(f"{pathlib.Path(model).name:32} {statistics.median(values):6.2f} GB/s "
              f"[{min(values):.2f}..{max(values):.2f}]  {ratio:.2f} of the first")


if __name__ == "__main__":
    main()
