#!/usr/bin/env python3
"""ingle against llama.cpp on GGUF files of several block types, interleaved: only ratios of one run count.

    formats.py [--ingle build/ingle] [--llama DIR] [--rounds 5] [--threads N] FILE FILE ...

Every round runs each file, and on each the two programs in turn: a prompt of 512 tokens, then 128 tokens at contexts
64..192, as race.py does. A file's ratio is the median of the ratios of its rounds. Every run notes how much of the
machine other processes used meanwhile: a pair above --busy (10 % of one core) does not count, unless fewer than three
quiet ones are left; then the line says "noisy" and is no result. All runs go to bench/results/formats.csv with machine
and commit; the lines that are printed are rows of the table in docs/formats.md.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import race  # noqa: E402


def measure(a, programs):
    rows = []
    common = {"machine": race.machine(), "cores": os.cpu_count(), "commit": race.commit(), "threads": a.threads}
    for number in range(1, a.rounds + 1):
        for path in a.files:
            for work in race.WORKS:
                # who goes first changes, so that neither always meets the machine as the other left it
                for name in sorted(programs, reverse=number % 2 == 0):
                    run, program = programs[name]
                    tok_s, version, others = run(program, path, a.threads, work, a.timeout)
                    rows.append(common | {
                        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "model": pathlib.Path(path).name,
                        "round": number, "program": name, "version": version, "work": work, "tok_s": round(tok_s, 2),
                        "others_cpu": round(others, 3)})
                    print(f"round {number} {pathlib.Path(path).name:28} {work:7} {name:9} {tok_s:8.1f} tok/s, others "
                          f"{100 * others:.0f} % of a core", file=sys.stderr, flush=True)
    return rows


def ratio(rows, model, work, busy):
    """(llama.cpp's median, ingle's, median ratio, lowest, highest, quiet) of one file."""
    runs = {(r["round"], r["program"]): r for r in rows if (r["model"], r["work"]) == (model, work)}
    pairs = [(runs[n, "llama.cpp"], runs[n, "ingle"]) for n in sorted({n for n, _ in runs})]
    quiet = [p for p in pairs if max(r["others_cpu"] for r in p) <= busy]
    used = quiet if len(quiet) >= min(3, len(pairs)) else pairs
    ratios = [us["tok_s"] / peer["tok_s"] for peer, us in used]
    median = lambda i: statistics.median(p[i]["tok_s"] for p in used)
    return median(0), median(1), statistics.median(ratios), min(ratios), max(ratios), used is quiet


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("files", nargs="+", metavar="FILE")
    p.add_argument("--ingle", default=str(race.TOP / "build" / "ingle"))
    p.add_argument("--llama", help="folder of llama-bench; default: build_llama.py's")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    p.add_argument("--busy", type=float, default=0.10, help="others' share of one core that is still quiet")
    p.add_argument("--timeout", type=float, default=300, help="seconds a run may take")
    p.add_argument("--csv", default=str(race.TOP / "bench" / "results" / "formats.csv"), help="- for none")
    a = p.parse_args()
    folder = a.llama or subprocess.run([sys.executable, race.HERE / "build_llama.py"], check=True, text=True,
                                       stdout=subprocess.PIPE).stdout.strip()
    programs = {"llama.cpp": (race.llama, os.path.join(folder, "llama-bench")), "ingle": (race.ingle, a.ingle)}
    for _, program in programs.values():
        if not os.access(program, os.X_OK):
            sys.exit(f"formats: no program {program}")
    rows = measure(a, programs)
    if a.csv != "-":
        race.append(pathlib.Path(a.csv), rows)
    print("| file | prompt: llama.cpp | ingle | ratio | decode: llama.cpp | ingle | ratio |\n|---|--:|--:|--:|--:|--:|--:|")
    for path in a.files:
        cells, model = [], pathlib.Path(path).name
        for work in race.WORKS:
            peer, us, mid, low, high, quiet = ratio(rows, model, work, a.busy)
            cells += [f"{peer:.0f}", f"{us:.0f}", f"{mid:.2f} [{low:.2f}..{high:.2f}]" + ("" if quiet else " noisy")]
        print(f"| {model} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
