#!/usr/bin/env python3
"""ingle against llama.cpp while other processes keep every core busy, interleaved.

    race_busy.py [--model FILE] [--ingle build/ingle] [--llama DIR] [--rounds 5] [--threads 1,2] [--csv FILE]

One spinning process for each core runs from the first run to the last. It is of this script's session, so that the
kernel shares the cores among threads and not among groups. Each program runs at every number of threads: a prompt
of --prompt tokens, then --tokens tokens at contexts from 64. What others used beside the spinning ones decides what
counts as quiet: common.py. All runs go to bench/results/busy.csv.
"""
import pathlib
import subprocess
import sys
import time

import common

DEPTH = 64
COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "work", "tok_s",
           "spin_cpu", "others_cpu"]
WORKS = ("prefill", "decode")


class Spinners:
    """n processes that never wait; they end with the block, by their process ids."""

    def __init__(self, n):
        self.n, self.processes = n, []

    def __enter__(self):
        try:
            for _ in range(self.n):
                spin = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL,
                                        preexec_fn=common.ends_with_us)
                self.processes.append(spin)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
        for p in self.processes:
            p.wait()

    @property
    def pids(self):
        return [p.pid for p in self.processes]

    def cpu_seconds(self):
        return sum(common.cpu_seconds(pid) for pid in self.pids)


def measure(a, llama, ingle):
    rows = []
    with Spinners(common.CORES) as spinners:
        for number in range(1, a.rounds + 1):
            for work in WORKS:
                for threads in a.threads:
                    for who in common.in_turn(number, llama, ingle):
                        cpu, wall = spinners.cpu_seconds(), time.monotonic()
                        tok_s, version, others = (
                            who.prefill(a.model, threads, a.prompt, spinners.pids) if work == "prefill" else
                            who.decode(a.model, threads, DEPTH, a.tokens, spinners.pids))
                        spin = (spinners.cpu_seconds() - cpu) / (time.monotonic() - wall)
                        rows.append(common.stamp(number, who.name, version) | {
                            "model": pathlib.Path(a.model).name, "threads": threads, "work": work,
                            "tok_s": round(tok_s, 3), "spin_cpu": round(spin, 3), "others_cpu": round(others, 3)})
                        common.say(f"round {number} {work:7} {who.name:9} {threads} threads {tok_s:8.2f} tok/s; "
                                   f"spinning took {spin:.2f} cores{common.beside(others)}")
            common.append(a.csv, COLUMNS, [r for r in rows if r["round"] == number])
    return rows


def result(rows, work, busy, threads=None):
    """(Ratio, llama.cpp's threads, ingle's): at `threads`, or each program at its better number."""
    rows = [r for r in rows if threads in (None, r["threads"])]
    return common.at_best_threads(rows, "tok_s", busy, work=work)


def summary(rows, a):
    lines = []
    for work in WORKS:
        for threads in (None, *a.threads):
            r, theirs, ours = result(rows, work, a.busy, threads)
            text = f"{threads} threads" if threads else "each at its best"
            lines.append([f"{work}, {text}", f"{r.peer:.1f} ({theirs})", f"{r.us:.1f} ({ours})", r])
    return common.table(["cores kept busy, tok/s (threads)", "llama.cpp", "ingle", "ratio"], lines)


def parser():
    p = common.options(__doc__, "busy.csv")
    p.add_argument("--model", default=common.default_model())
    p.add_argument("--threads", type=common.numbers, default=common.FEW_AND_ALL, help="numbers to try, as 1,2")
    p.add_argument("--prompt", type=int, default=128, help="tokens of the prompt [128]")
    p.add_argument("--tokens", type=int, default=32, help="tokens of the decode [32]")
    return p


def main():
    a = parser().parse_args()
    rows = measure(a, *common.programs(a))
    print(summary(rows, a))


if __name__ == "__main__":
    main()
