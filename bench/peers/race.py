#!/usr/bin/env python3
"""ingle against llama.cpp on this machine, interleaved: only ratios of one run count.

    race.py [--model FILE] [--ingle build/ingle] [--llama DIR] [--rounds 5] [--threads 1,2]

Each round runs every (program, threads) once, in turn: a prompt of 512 tokens, then 128 tokens at contexts
64..192. A program's figure is its median at its better number of threads. Every run notes how much of the
machine other processes used meanwhile: above --busy (10 % of one core) it is not counted, unless fewer than
three quiet rounds are left; then the summary says "noisy" and the ratio is no result. All runs go to
bench/results/race.csv with machine and commit.
"""
import argparse
import csv
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
PROMPT, NEW, DEPTH = 512, 128, 64
COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "work", "tok_s", "others_cpu"]
WORKS = ("prefill", "decode")


def text_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    return done.stdout.strip() if done.returncode == 0 else ""


def machine():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit():
    dirty = "+" if text_of("git", "status", "--porcelain", "--untracked-files=no", "--", "src", "Makefile") else ""
    return (text_of("git", "rev-parse", "--short", "HEAD") or "unknown") + dirty


def busy_seconds():
    """Of all processes, all cores: user, nice, system, irq, softirq, steal."""
    t = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / os.sysconf("SC_CLK_TCK")


def run(command, timeout):
    """stdout, and the share of one core that others used meanwhile."""
    own = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    cpu0, own0, wall0 = busy_seconds(), own(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    others = max(0.0, (busy_seconds() - cpu0) - (own() - own0)) / (time.monotonic() - wall0)
    if done.returncode != 0:
        sys.exit(f"race: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, others


def llama(bench, model, threads, work, timeout):
    shape = ["-p", str(PROMPT), "-n", "0"] if work == "prefill" else ["-p", "0", "-n", str(NEW), "-d", str(DEPTH)]
    out, others = run([bench, "-m", model, "-t", str(threads), "-r", "1", "-o", "json", *shape], timeout)
    row = json.loads(out)[0]
    return row["avg_ts"], f"b{row['build_number']}" if row.get("build_number") else "b11434", others


def ingle(program, model, threads, work, timeout):
    prompt, new = (PROMPT, 1) if work == "prefill" else (DEPTH, NEW)
    out, others = run([program, "bench", model, "--json", "--runs", "1", "--threads", str(threads),
                       "--batch", "1", "--prompt-tokens", str(prompt), "--tokens", str(new)], timeout)
    row = json.loads(out)
    return row[f"{work}_tps"], row.get("version", ""), others


def race(a, programs):
    rows = []
    common = {"machine": machine(), "cores": os.cpu_count(), "commit": commit(), "model": pathlib.Path(a.model).name}
    for number in range(1, a.rounds + 1):
        for work in WORKS:
            for threads in a.threads:
                for name, (measure, program) in programs.items():
                    tok_s, version, others = measure(program, a.model, threads, work, a.timeout)
                    rows.append(common | {
                        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "round": number, "program": name,
                        "version": version, "threads": threads, "work": work, "tok_s": round(tok_s, 2),
                        "others_cpu": round(others, 3)})
                    print(f"round {number} {work:7} {name:9} {threads} threads {tok_s:8.1f} tok/s, "
                          f"others {100 * others:.0f} % of a core", file=sys.stderr, flush=True)
    return rows


def best(rows, program, work, busy):
    """(threads, median, values by round, quiet) at the program's better number of threads."""
    choices = []
    for threads in sorted({r["threads"] for r in rows}):
        mine = [r for r in rows if (r["program"], r["work"], r["threads"]) == (program, work, threads)]
        quiet = [r for r in mine if r["others_cpu"] <= busy]
        used = quiet if len(quiet) >= 3 else mine
        values = {r["round"]: r["tok_s"] for r in used}
        choices.append((statistics.median(values.values()), threads, values, used is quiet))
    median, threads, values, quiet = max(choices, key=lambda c: c[0])
    return threads, median, values, quiet


def summary(rows, busy):
    lines = []
    for work in WORKS:
        t_us, us, our_rounds, quiet_us = best(rows, "ingle", work, busy)
        t_peer, peer, peer_rounds, quiet_peer = best(rows, "llama.cpp", work, busy)
        span = lambda v: f"{min(v.values()):.0f}..{max(v.values()):.0f}"
        both = sorted(our_rounds[k] / peer_rounds[k] for k in our_rounds.keys() & peer_rounds.keys())
        rounds = f"{both[0]:.2f}..{both[-1]:.2f}" if both else "no common round"
        lines.append(f"{work:7}  ingle {us:.1f} tok/s [{span(our_rounds)}] on {t_us} threads; llama.cpp {peer:.1f} "
                     f"[{span(peer_rounds)}] on {t_peer}; ratio {us / peer:.2f} [{rounds}]"
                     + ("" if quiet_us and quiet_peer else "  NOISY: others used the machine, no result"))
    return "\n".join(lines)


def append(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with open(path, "a", newline="") as f:
        w = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        if new:
            w.writeheader()
        w.writerows(rows)


def default_model():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(os.environ.get("INGLE_CACHE") or os.path.join(base, "ingle"), "models",
                        "SmolLM2-135M-Instruct.Q4_1.gguf")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default=os.environ.get("INGLE_TEST_MODEL") or default_model())
    p.add_argument("--ingle", default=str(TOP / "build" / "ingle"))
    p.add_argument("--llama", help="folder of llama-bench; default: build_llama.py's")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", default=",".join(map(str, sorted({1, os.cpu_count() or 1}))))
    p.add_argument("--busy", type=float, default=0.10, help="others' share of one core that is still quiet")
    p.add_argument("--timeout", type=float, default=300, help="seconds a run may take")
    p.add_argument("--csv", default=str(TOP / "bench" / "results" / "race.csv"), help="- for none")
    a = p.parse_args()
    a.threads = [int(t) for t in a.threads.split(",")]
    folder = a.llama or subprocess.run([sys.executable, HERE / "build_llama.py"], check=True, text=True,
                                       stdout=subprocess.PIPE).stdout.strip()
    programs = {"llama.cpp": (llama, os.path.join(folder, "llama-bench")), "ingle": (ingle, a.ingle)}
    for _, program in programs.values():
        if not os.access(program, os.X_OK):
            sys.exit(f"race: no program {program}")
    rows = race(a, programs)
    if a.csv != "-":
        append(pathlib.Path(a.csv), rows)
    print(summary(rows, a.busy))


if __name__ == "__main__":
    main()
