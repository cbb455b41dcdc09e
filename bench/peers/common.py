"""What every race shares: the two programs, who else used the machine, ratios of rounds, CSV.

A race runs its programs in turn, several rounds of it. A figure of one program is compared with the figure of
the other in the same round; the result is the median of those ratios with the lowest and the highest. A round in
which other processes used more than --busy of one core (10 %) does not count, unless fewer than QUIET_ROUNDS are
left; then all count, and the result says NOISY: it is none.
"""
import argparse
import csv
import ctypes
import functools
import json
import os
import pathlib
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
import typing

import build_llama

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
RESULTS = TOP / "bench" / "results"
QUIET_ROUNDS = 3
CORES = len(os.sched_getaffinity(0))
FEW_AND_ALL = sorted({1, CORES})
LLAMA_VERSION = "b" + build_llama.VERSION.split(".")[0]
TICK = os.sysconf("SC_CLK_TCK")
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- the machine ------------------------------------------------------------------------------------------


def text_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def machine():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


@functools.cache
def commit():
    changed = text_of("git", "status", "--porcelain", "--untracked-files=no", "--", "src", "Makefile")
    return (text_of("git", "rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def busy_seconds():
    """Of all processes, all cores: user, nice, system, irq, softirq, steal."""
    with open("/proc/stat") as f:
        t = [int(x) for x in f.readline().split()[1:9]]
    return (t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / TICK


def cpu_seconds(pid):
    """Of a process that runs, all its threads."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Meter:
    """Who else used the machine since it was made, in cores. Not counted: this script, its children that have
    ended since, and the processes `pids`, which run all the while."""

    def __init__(self, pids=()):
        self.pids = tuple(pids)
        self.busy, self.own, self.wall = busy_seconds(), self.ours(), time.monotonic()

    def ours(self):
        used = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(used) + sum(cpu_seconds(p) for p in self.pids)

    def others(self):
        used = (busy_seconds() - self.busy) - (self.ours() - self.own)
        return max(0.0, used) / (time.monotonic() - self.wall)


def beside(others):
    """How a line of progress ends."""
    return f", others {100 * others:.0f} % of a core"


# ---- the programs -----------------------------------------------------------------------------------------


def ends_with_us():
    """For preexec_fn: a child that is killed when this script ends, however it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(command, timeout, pids=()):
    """stdout of a command, and what others used meanwhile."""
    meter = Meter(pids)
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout,
                              preexec_fn=ends_with_us)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(map(str, command))} took over {timeout:.0f} s; --timeout allows more")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, meter.others()


class Llama:
    """llama.cpp, by its own benchmarks. Figures are tokens a second."""

    name = "llama.cpp"

    def __init__(self, folder, timeout):
        self.folder, self.timeout = pathlib.Path(folder), timeout

    def tool(self, name):
        path = self.folder / name
        if not os.access(path, os.X_OK):
            sys.exit(f"no program {path}; bench/peers/build_llama.py builds it")
        return path

    def bench(self, model, threads, size, shape, pids):
        # a long run warms itself up
        warm = ["--no-warmup"] if size >= 2048 else []
        command = [self.tool("llama-bench"), "-m", model, "-t", threads, "-r", 1, "-o", "json", *warm, *shape]
        out, others = run(command, self.timeout, pids)
        return json.loads(out)[0]["avg_ts"], LLAMA_VERSION, others

    def prefill(self, model, threads, n, pids=()):
        return self.bench(model, threads, n, ["-p", n, "-n", 0], pids)

    def decode(self, model, threads, context, n, pids=()):
        return self.bench(model, threads, context, ["-p", 0, "-n", n, "-d", context], pids)

    def batch(self, model, threads, n_seqs, context, n, pids=()):
        command = [self.tool("llama-batched-bench"), "-m", model, "-t", threads, "-c", n_seqs * (context + n),
                   "-npp", context, "-ntg", n, "-npl", n_seqs, "--output-format", "jsonl"]
        out, others = run(command, self.timeout, pids)
        row = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
        return row["speed_tg"], LLAMA_VERSION, others


class Ingle:
    """ingle, by `ingle bench`. Figures are tokens a second."""

    name = "ingle"

    def __init__(self, program, timeout):
        self.program, self.timeout = program, timeout
        if not os.access(program, os.X_OK):
            sys.exit(f"no program {program}; make builds it")

    def bench(self, figure, model, threads, shape, pids):
        command = [self.program, "bench", model, "--json", "--runs", 1, "--threads", threads, *shape]
        out, others = run(command, self.timeout, pids)
        row = json.loads(out)
        return row[figure], row.get("version", ""), others

    def prefill(self, model, threads, n, pids=()):
        return self.bench("prefill_tps", model, threads, ["--prompt-tokens", n, "--tokens", 0], pids)

    def decode(self, model, threads, context, n, pids=()):
        shape = ["--prompt-tokens", 0, "--depth", context, "--tokens", n, "--batch", 1]
        return self.bench("decode_tps", model, threads, shape, pids)

    def batch(self, model, threads, n_seqs, context, n, pids=()):
        shape = ["--prompt-tokens", 0, "--depth", context, "--tokens", n, "--batch", n_seqs]
        return self.bench("batch_tps", model, threads, shape, pids)


def in_turn(number, *both):
    """Who goes first changes, so that neither always meets the machine as the other left it."""
    return both if number % 2 else both[::-1]


# ---- ratios -----------------------------------------------------------------------------------------------


class Ratio(typing.NamedTuple):
    """ingle's figure divided by the peer's, round by round. `peer` and `us` are medians."""

    peer: float
    us: float
    ratio: float
    low: float
    high: float
    rounds: int
    quiet: bool

    def __str__(self):
        return f"{self.ratio:.2f} [{self.low:.2f}..{self.high:.2f}]" + ("" if self.quiet else " NOISY")


def figures(rows, figure, **match):
    """{round: (figure, others' CPU)} of the rows whose columns are as in `match`. A round has one."""
    found = {}
    for r in rows:
        if all(r.get(k) == v for k, v in match.items()) and r.get(figure) not in (None, ""):
            if r["round"] in found:
                raise ValueError(f"round {r['round']} has two rows of {figure} for {match}")
            found[r["round"]] = (float(r[figure]), float(r["others_cpu"]))
    return found


def quiet_rounds(rounds, busy, *sides):
    """(the rounds that count, whether they are quiet)"""
    quiet = [n for n in rounds if all(side[n][1] <= busy for side in sides)]
    return (quiet, True) if len(quiet) >= QUIET_ROUNDS else (list(rounds), False)


def compare(peer, us, busy):
    """A Ratio of two dicts as `figures` makes them; None when no round has both."""
    used, quiet = quiet_rounds(sorted(peer.keys() & us.keys()), busy, peer, us)
    if not used:
        return None
    ratios = [us[n][0] / peer[n][0] for n in used]
    medians = [statistics.median(side[n][0] for n in used) for side in (peer, us)]
    return Ratio(*medians, statistics.median(ratios), min(ratios), max(ratios), len(used), quiet)


def middle(side, busy):
    """The median of the rounds that count."""
    used, _ = quiet_rounds(side, busy, side)
    return statistics.median(side[n][0] for n in used)


def best_threads(rows, figure, busy, **match):
    """The number of threads at which a program's median is highest."""
    known = {r["threads"] for r in rows if all(r.get(k) == v for k, v in match.items())}
    speed = lambda t: middle(figures(rows, figure, threads=t, **match), busy)
    return max(sorted(known), key=speed, default=None)


def at_best_threads(rows, figure, busy, **match):
    """(Ratio, llama.cpp's threads, ingle's), each at its better number of threads."""
    threads, sides = [], []
    for name in (Llama.name, Ingle.name):
        threads.append(best_threads(rows, figure, busy, program=name, **match))
        sides.append(figures(rows, figure, program=name, threads=threads[-1], **match))
    return compare(*sides, busy), *threads


# ---- CSV and options --------------------------------------------------------------------------------------


def stamp(number, program, version):
    """The columns that every row starts with."""
    return {"utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine(), "cores": CORES,
            "commit": commit(), "round": number, "program": program, "version": version}


def append(path, columns, rows):
    """Adds rows to a CSV file ("-" for none), whose columns are these or become these."""
    if path == "-" or not rows:
        return
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size:
        with open(path, newline="") as f:
            there = next(csv.reader(f))
        if there != list(columns):
            sys.exit(f"{path} has the columns {','.join(there)}, not {','.join(columns)}")
    with open(path, "a", newline="") as f:
        w = csv.DictWriter(f, columns, lineterminator="\n")
        if not f.tell():
            w.writeheader()
        w.writerows(rows)


def table(head, rows):
    """Markdown; the first column is text."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, r)) + " |" for r in rows])


def default_model():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = pathlib.Path(os.environ.get("INGLE_CACHE") or os.path.join(base, "ingle"))
    return os.environ.get("INGLE_TEST_MODEL") or str(cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def options(doc, csv_name=None, rounds=5):
    """The options that every race has; a script adds its own. --csv only where one file is meant."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--ingle", default=str(TOP / "build" / "ingle"), help="program [build/ingle]")
    p.add_argument("--llama", help="folder of llama.cpp's programs [build_llama.py's]")
    p.add_argument("--rounds", type=int, default=rounds)
    p.add_argument("--busy", type=float, default=0.10, help="others' share of one core that is still quiet")
    p.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    if csv_name:
        p.add_argument("--csv", default=str(RESULTS / csv_name), help="- for none")
    return p


def programs(a):
    """(llama.cpp, ingle) as the options say; llama.cpp is built the first time."""
    folder = a.llama or subprocess.run([sys.executable, HERE / "build_llama.py"], check=True, text=True,
                                       stdout=subprocess.PIPE).stdout.strip()
    return Llama(folder, a.timeout), Ingle(a.ingle, a.timeout)


def numbers(text):
    """Of an option: "8,1,2" is 1, 2, 8."""
    return sorted({int(t) for t in text.split(",")})
