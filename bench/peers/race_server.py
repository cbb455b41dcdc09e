#!/usr/bin/env python3
"""ingle serve against llama-server on this machine, interleaved: only ratios of one run count.

    race_server.py [--model FILE] [--ingle build/ingle] [--llama DIR] [--rounds 5] [--streams 1,2,4,8,16]
                   [--tokens 128] [--csv FILE]

Every round starts each server twice, on 127.0.0.1 with the same GGUF file and all cores.
  With 8 slots: the time from exec to the first 200 of /health, its page cache warm; then 8 chats of 200 tokens at
  once, and what is resident after them. Both servers reserve 16,384 tokens of context.
  With a slot for each stream: 1, 2, 4, 8 and 16 streaming chats at once, each of --tokens tokens. "distinct": no
  prompt (about 95 tokens) begins like another. "shared": all begin with the same 500 tokens, which the server has
  seen once before the clock starts.
Both get the same requests: greedy, for stories that a model does not end by itself. Tokens are those of `usage`,
and chats that ended early are counted and said. What counts as quiet: common.py. All runs go to
bench/results/server.csv.
"""
import http.client
import json
import math
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import common
import load

COLUMNS = ["utc", "machine", "cores", "commit", "model", "round", "program", "version", "threads", "slots",
           "context", "work", "prompts", "streams", "chats", "tokens", "early", "prompt_tokens", "cached_tokens",
           "tok_s", "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms", "ready_ms", "rss_mb", "anon_mb",
           "file_mb", "pss_mb", "generator_cpu", "others_cpu"]
LLAMA, INGLE = "llama.cpp", "ingle"
KINDS = ("distinct", "shared")
MEMORY_CHATS, MEMORY_TOKENS = 8, 200
BLOCK_TOKENS = 64  # of ingle's KV pool
POLL_S, STOP_S = 0.002, 20
LOOK_S = 2  # a start is too short for the ticks of /proc/stat: others are looked at for so long

THINGS = ("anchor apple arrow attic badger barrel basket beacon bell bicycle blanket bridge bucket butter "
          "button candle canoe carpet castle cellar chimney cloud clover compass copper cricket curtain "
          "desert dragon engine feather ferry fiddle forest fox garden ginger glacier hammer harbor hazel "
          "hedge honey island ivory jacket kettle kitchen ladder lantern lemon library lizard magnet maple "
          "market meadow mill mirror mountain needle oak ocean onion orchard otter paddle paper parrot "
          "pepper piano pillow planet plum pocket pond prairie pumpkin quarry quilt rabbit raven ribbon "
          "river rocket saddle salt shadow shovel silver spider stable station stone summer sunrise table "
          "teapot thunder tower tunnel turtle valley velvet village violin wagon walnut water whale wheel "
          "whistle willow window winter wizard").split()


# ---- prompts ----------------------------------------------------------------------------------------------


class Prompts:
    """Chats of one server: no two of one seed begin alike, unless they are meant to."""

    def __init__(self, seed):
        self.random, self.n = random.Random(seed), 0

    def words(self, n):
        return ", ".join(self.random.choice(THINGS) for _ in range(n))

    def prefix(self):
        """A system message of about 500 tokens."""
        return f"You tell long stories and never end them. Your notes {self.random.random():.12f}: {self.words(200)}."

    def chat(self, tokens, system=None):
        self.n += 1
        ask = (f"Tale {self.random.randrange(10**9)}, number {self.n}. Write a very long story, of many chapters, "
               f"in which there are: {self.words(12)}. Begin with chapter one and tell every detail.")
        messages = [{"role": "system", "content": system}] if system else []
        return {"messages": [*messages, {"role": "user", "content": ask}], "max_tokens": tokens,
                "temperature": 0}


# ---- servers ----------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path):
    """(status, body); None when nobody listens yet."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        c.request("GET", path)
        answer = c.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        c.close()


class Server:
    """A server of this script; ended by its process id."""

    def __init__(self, command, port, timeout):
        # A variable of the environment must not change what is measured.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("INGLE_", "LLAMA_"))}
        self.log = tempfile.TemporaryFile("w+")
        self.port, self.command = port, list(map(str, command))
        start = time.monotonic()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env=env, preexec_fn=common.ends_with_us)
        self.pid = self.process.pid
        try:
            self.meter = common.Meter([self.pid])
            while (get(port, "/health") or [0])[0] != 200:
                if self.process.poll() is not None or time.monotonic() - start > timeout:
                    self.fail("was not ready")
                time.sleep(POLL_S)
            self.ready_s = time.monotonic() - start
        except BaseException:
            self.stop()
            raise

    def fail(self, what):
        self.log.seek(0)
        sys.exit(f"{' '.join(self.command)}\n{what}\n{self.log.read()[-2000:]}")

    def drive(self, streams, timeout):
        try:
            meter = common.Meter([self.pid])
            return load.drive(self.port, streams, timeout), meter.others()
        except (load.LoadError, OSError) as e:
            self.fail(str(e))

    def memory(self):
        """Resident MB: all, anonymous, of files, and all with shared pages divided among their users."""
        kb = {}
        for name in ("status", "smaps_rollup"):
            with open(f"/proc/{self.pid}/{name}") as f:
                kb |= dict(re.findall(r"^(\w+):\s+(\d+) kB$", f.read(), re.M))
        return {c: round(int(kb[k]) * 1024 / 1e6, 1) for c, k in
                (("rss_mb", "VmRSS"), ("anon_mb", "RssAnon"), ("file_mb", "RssFile"), ("pss_mb", "Pss"))}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.log.close()


class Program:
    """How one of the two is started with n slots and --context tokens for all of them."""

    def __init__(self, a, name, path):
        self.a, self.name, self.path = a, name, path
        if not os.access(path, os.X_OK):
            sys.exit(f"no program {path}")
        self.version, self.kv_bytes = common.LLAMA_VERSION, 0
        if name == INGLE:
            self.look()

    def command(self, port, slots):
        a = self.a
        if self.name == LLAMA:
            return [self.path, "--model", a.model, "--host", "127.0.0.1", "--port", port, "--threads", a.threads,
                    "--parallel", slots, "--ctx-size", a.context]
        kv = ["--kv-budget", self.kv_bytes, "--ctx", self.longest] if self.kv_bytes else []
        return [self.path, "serve", a.model, "--host", "127.0.0.1", "--port", port, "--threads", a.threads,
                "--batch", slots, *kv]

    def start(self, slots):
        port = free_port()
        return Server(self.command(port, slots), port, self.a.timeout)

    def look(self):
        """ingle takes its memory for keys and values in bytes; a first start says what a block needs."""
        with self.start(1) as s:
            stats = json.loads(get(s.port, "/stats")[1])
            self.version = json.loads(get(s.port, "/v1")[1])["version"]
        block = stats["kv"]["budget_bytes"] / stats["kv"]["blocks_total"]
        self.longest = min(self.a.context, stats["admission"]["max_safe_context"])
        self.kv_bytes = math.ceil((math.ceil(self.a.context / BLOCK_TOKENS) + 1) * block)
        with self.start(1) as s:
            blocks = json.loads(get(s.port, "/stats")[1])["kv"]["blocks_total"]
        if blocks * BLOCK_TOKENS < self.a.context:
            sys.exit(f"ingle reserves {blocks * BLOCK_TOKENS} tokens, not {self.a.context}")


# ---- a round ----------------------------------------------------------------------------------------------


def warm_page_cache(path):
    with open(path, "rb") as f:
        while f.read(1 << 20):
            pass


def load_row(result, others):
    ms = lambda values, p: round(1e3 * load.percentile(values, p), 2) if values else ""
    return {"chats": len(result.chats), "tokens": result.tokens, "early": result.early,
            "prompt_tokens": result.prompt_tokens, "cached_tokens": result.cached, "tok_s": round(result.tok_s, 2),
            "ttft_p50_ms": ms(result.first, 50), "ttft_p95_ms": ms(result.first, 95),
            "itl_p50_ms": ms(result.gaps, 50), "itl_p95_ms": ms(result.gaps, 95),
            "generator_cpu": round(result.cpu / result.wall, 3), "others_cpu": round(others, 3)}


def start_and_memory(a, program, number):
    """Rows of "ready" and "memory"."""
    prompts = Prompts(number)
    with program.start(MEMORY_CHATS) as s:
        time.sleep(max(0.0, LOOK_S - s.ready_s))
        others = round(s.meter.others(), 3)
        ready = {"work": "ready", "ready_ms": round(1e3 * s.ready_s, 1), "others_cpu": others}
        result, others = s.drive([[prompts.chat(a.memory_tokens)] for _ in range(MEMORY_CHATS)], a.timeout)
        memory = {"work": "memory", "streams": MEMORY_CHATS, **load_row(result, others), **s.memory()}
    for r in (ready, memory):
        report(number, program, r)
    return [r | {"slots": MEMORY_CHATS} for r in (ready, memory)]


def loads(a, program, number):
    """Rows of "chat": every kind of prompt with every number of streams."""
    prompts, rows, slots = Prompts(1000 + number), [], max(a.streams)
    with program.start(slots) as s:
        s.drive([[prompts.chat(8)]], a.timeout)  # pages and caches of the first request
        for kind in KINDS:
            for streams in a.streams:
                system = prompts.prefix() if kind == "shared" else None
                if system:
                    s.drive([[prompts.chat(1, system)]], a.timeout)
                each = max(1, a.chats // streams)
                bodies = [[prompts.chat(a.tokens, system) for _ in range(each)] for _ in range(streams)]
                rows.append({"work": "chat", "prompts": kind, "streams": streams, "slots": slots,
                             **load_row(*s.drive(bodies, a.timeout))})
                report(number, program, rows[-1])
    return rows


def report(number, program, r):
    what = {"ready": "ready after {ready_ms} ms",
            "memory": "{rss_mb} MB resident, {anon_mb} of them anonymous",
            "chat": "{streams} chats, {prompts} prompts: {tok_s} tok/s, first token {ttft_p50_ms} ms, "
                    "next {itl_p50_ms} ms"}[r["work"]]
    early = f", {r['early']} of {r['chats']} ended early" if r.get("early") else ""
    common.say(f"round {number} {program.name:9} {what.format(**r)}{early}{common.beside(r['others_cpu'])}")


def measure(a, llama, ingle):
    llama = Program(a, LLAMA, str(llama.tool("llama-server")))
    ingle = Program(a, INGLE, ingle.program)
    rows = []
    for number in range(1, a.rounds + 1):
        done = []
        for program in common.in_turn(number, llama, ingle):
            same = {"model": pathlib.Path(a.model).name, "threads": a.threads, "context": a.context}
            warm_page_cache(a.model)
            for r in start_and_memory(a, program, number) + loads(a, program, number):
                done.append(common.stamp(number, program.name, program.version) | same | r)
        common.append(a.csv, COLUMNS, done)
        rows += done
    return rows


# ---- what came of it --------------------------------------------------------------------------------------


def result(rows, busy, figure, **match):
    sides = [common.figures(rows, figure, program=p, **match) for p in (LLAMA, INGLE)]
    return common.compare(*sides, busy)


def start_lines(rows, a):
    for figure, work, text in (("ready_ms", "ready", "exec to ready, ms"),
                               ("rss_mb", "memory", "resident after 8 chats, MB"),
                               ("anon_mb", "memory", "of it anonymous, MB"),
                               ("file_mb", "memory", "of it of files, MB"),
                               ("pss_mb", "memory", "the same, shared pages divided, MB")):
        r = result(rows, a.busy, figure, work=work)
        yield [text, f"{r.peer:.0f}", f"{r.us:.0f}", r]


def load_lines(rows, a):
    for kind in KINDS:
        for n in a.streams:
            of = lambda figure: result(rows, a.busy, figure, work="chat", prompts=kind, streams=n)
            speed = of("tok_s")
            cells = [f"{n}, {kind}", f"{speed.peer:.1f}", f"{speed.us:.1f}", speed]
            for what in ("ttft", "itl"):
                middle, late = of(f"{what}_p50_ms"), of(f"{what}_p95_ms")
                cells += [f"{middle.peer:.0f}, {late.peer:.0f}", f"{middle.us:.0f}, {late.us:.0f}",
                          middle] if middle else [""] * 3
            yield cells


def summary(rows, a):
    early = {p: sum(r["early"] for r in rows if r["program"] == p and r.get("early")) for p in (LLAMA, INGLE)}
    most = max(r["generator_cpu"] for r in rows if "generator_cpu" in r)
    return "\n".join([
        common.table(["", "llama-server", "ingle", "ratio"], start_lines(rows, a)), "",
        common.table(["chats, prompts", "tok/s: llama-server", "ingle", "ratio",
                      "first token p50, p95 ms: llama-server", "ingle", "ratio of p50",
                      "next token p50, p95 ms: llama-server", "ingle", "ratio of p50"], load_lines(rows, a)),
        f"\nchats that ended early: llama-server {early[LLAMA]}, ingle {early[INGLE]}; "
        f"the generator took at most {100 * most:.0f} % of a core"])


def parser():
    p = common.options(__doc__, "server.csv")
    p.add_argument("--model", default=common.default_model())
    p.add_argument("--threads", type=int, default=common.CORES, help="of both servers [all cores]")
    p.add_argument("--streams", type=common.numbers, default=[1, 2, 4, 8, 16], help="chats at once [1,2,4,8,16]")
    p.add_argument("--tokens", type=int, default=128, help="of each answer [128]")
    p.add_argument("--chats", type=int, default=4, help="at least so many in all [4]")
    p.add_argument("--context", type=int, default=16384, help="tokens reserved by both [16384]")
    p.add_argument("--memory-tokens", type=int, default=MEMORY_TOKENS,
                   help="of each answer before memory is read [200]")
    return p


def main():
    a = parser().parse_args()
    rows = measure(a, *common.programs(a))
    print(summary(rows, a))


if __name__ == "__main__":
    main()
