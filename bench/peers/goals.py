#!/usr/bin/env python3
"""All races, and what came of them against our goals, line by line.

    goals.py [--gemma FILE] [--formats MODEL ...] [--parts race,formats,server,busy,curve] [--rounds 5]
             [--ingle build/ingle] [--llama DIR] [--model FILE] [--results DIR] [--tokens 128] [--curve-rounds 5]

More than an hour on two cores. --model is SmolLM2-135M-Instruct in Q4_1, --gemma Gemma 3 270M in Q4_K_M, --formats the
same SmolLM2 in other formats, as race.py takes them; what is not given is not measured, and its lines say so. Each
race's own tables are printed too, and its runs go to DIR [bench/results]. A goal is reached when the median of the
rounds' ratios is; a race that others disturbed reaches none.
"""
import pathlib
import typing

import common
import curve
import race
import race_busy
import race_server

PARTS = ("race", "formats", "server", "busy", "curve")


class Goal(typing.NamedTuple):
    """One line: a ratio that is to be at least, or at most, `bound`."""

    work: str
    bound: float
    least: bool
    ratio: typing.Optional[common.Ratio]

    def text(self):
        return f"{'>=' if self.least else '<='} {self.bound:.2g}"

    def verdict(self):
        if not self.ratio:
            return "not measured"
        if not self.ratio.quiet:
            return "noisy, no result"
        reached = self.ratio.ratio >= self.bound if self.least else self.ratio.ratio <= self.bound
        return "yes" if reached else "no"

    def cells(self):
        r = self.ratio
        return [self.work, self.text(), r or "-", f"{r.peer:.4g}" if r else "-", f"{r.us:.4g}" if r else "-",
                r.rounds if r else "-", self.verdict()]


def at_least(work, bound, ratio):
    return Goal(work, bound, True, ratio)


def at_most(work, bound, ratio):
    return Goal(work, bound, False, ratio)


# ---- one part of the table each ---------------------------------------------------------------------------


def two_works(rows, a, model, name, decode, prefill):
    for work, bound, text in (("decode", decode, "decode"), ("prefill", prefill, "prefill 512")):
        yield at_least(f"{text}, {name}", bound, race.result(rows, model, work, a.busy)[0] if rows else None)


def of_race(rows, a):
    """Two models, each program at its better number of threads."""
    bounds = ((a.model, "SmolLM2-135M Q4_1", 2.4, 6), (a.gemma, "Gemma 3 270M Q4_K_M", 1.7, 3))
    return [line for model, name, decode, prefill in bounds
            for line in two_works(rows if model else None, a, model, name, decode, prefill)]


def best_format(rows, a):
    """Our prompt in --model against llama.cpp's in the format that is its fastest."""
    side = lambda program, model: common.figures(rows, "tok_s", program=program, work="prefill", model=model)
    names = dict.fromkeys(r["model"] for r in rows)
    name = max(names, key=lambda m: common.middle(side("llama.cpp", m), a.busy))
    return name, common.compare(side("llama.cpp", name), side("ingle", race.name_of(a.model)), a.busy)


def of_formats(rows, a):
    name, ratio = best_format(rows, a) if rows else ("not known", None)
    lines = [at_least(f"prefill 512, SmolLM2-135M Q4_1, to llama.cpp's best format ({name})", 2.5, ratio)]
    return lines + [line for model in a.formats
                    for line in two_works(rows, a, model, race.name_of(model), 1.5, 2)]


def of_server(rows, a):
    get = lambda figure, **match: race_server.result(rows, a.busy, figure, **match) if rows else None
    chats = [at_least(f"server, tok/s of 8 concurrent chats, {kind} prompts", 5,
                      get("tok_s", work="chat", prompts=kind, streams=8)) for kind in race_server.KINDS]
    return [*chats,
            at_most("time to ready, warm page cache, ms", 1 / 5, get("ready_ms", work="ready")),
            at_most("resident after 8 chats of 200 tokens, 16k tokens reserved by both, MB", 1 / 2,
                    get("rss_mb", work="memory"))]


def of_busy(rows, a):
    at = lambda threads: race_busy.result(rows, "decode", a.busy, threads)[0] if rows else None
    return [at_least("decode, all cores kept busy by others, each at its best number of threads", 2, at(None)),
            at_least(f"the same, both with {common.CORES} threads", 10, at(common.CORES))]


def of_curve(rows, a):
    """Our own cost: large work against small, here instead of ours against the peer's."""
    c = a.curve
    grown = lambda *works, **how: curve.growth(rows, a.busy, *works, **how) if rows else None
    one = curve.decode(c.tokens, c.contexts[0])
    return [at_least(f"tok/s of decode at context {c.contexts[-1]} to those at {c.contexts[0]}", 1 / 2,
                     grown(one, curve.decode(c.tokens, c.contexts[-1]))),
            at_most(f"ms a token of a prompt of {c.prompts[-1]} to those of 512", 2,
                    grown(curve.prefill(512), curve.prefill(c.prompts[-1]), cost=True)),
            at_least("tok/s of a batch of 8 to those of 1", 3.5, grown(one, one | {"sequences": 8}))]


def table(goals):
    return common.table(["work", "goal", "measured", "llama.cpp (or the smaller)", "ingle", "rounds", "reached"],
                        [g.cells() for g in goals])


# ---- running ----------------------------------------------------------------------------------------------


def parser():
    p = common.options(__doc__)
    p.add_argument("--model", default=common.default_model())
    p.add_argument("--gemma", help="Gemma 3 270M in Q4_K_M")
    p.add_argument("--formats", nargs="*", default=[], metavar="MODEL", help="the same SmolLM2 in other formats")
    p.add_argument("--parts", default=",".join(PARTS), help="which races to run [all]")
    p.add_argument("--tokens", type=int, default=128, help="of each answer of the servers [128]")
    p.add_argument("--curve-rounds", type=int, help="of the curve, whose prompts of 8192 take long [as --rounds]")
    p.add_argument("--results", type=pathlib.Path, default=common.RESULTS, help="folder of the CSV files")
    return p


def options_of(module, a, csv_name, *more):
    """The options of one race, as its own parser makes them."""
    rounds = a.curve_rounds or a.rounds if module is curve else a.rounds
    same = ["--ingle", a.ingle, "--llama", a.llama, "--rounds", rounds, "--busy", a.busy, "--timeout", a.timeout]
    return module.parser().parse_args([str(x) for x in (*same, "--csv", a.results / csv_name, *more)])


def run(a):
    """{part: rows}; the parts that were not asked for have none."""
    both = common.programs(a)
    a.llama = str(both[0].folder)
    for name in ("llama-bench", "llama-batched-bench", "llama-server"):
        both[0].tool(name)  # missed now and not in an hour
    starters = [a.model, a.gemma] if a.gemma else [a.model]
    a.curve = options_of(curve, a, "curve.csv", "--model", a.model)
    rows = dict.fromkeys(PARTS, ())
    for part in a.parts.split(","):
        if part == "race":
            o = options_of(race, a, "race.csv", *starters)
            rows[part] = race.measure(o, o.models, *both)
            print(race.summary(rows[part], o.models, a.busy), flush=True)
        elif part == "formats" and a.formats:
            o = options_of(race, a, "formats.csv", "--threads", common.CORES, a.model, *a.formats)
            rows[part] = race.measure(o, o.models, *both)
            print(race.summary(rows[part], o.models, a.busy), flush=True)
        elif part == "server":
            o = options_of(race_server, a, "server.csv", "--model", a.model, "--tokens", a.tokens)
            rows[part] = race_server.measure(o, *both)
            print(race_server.summary(rows[part], o), flush=True)
        elif part == "busy":
            o = options_of(race_busy, a, "busy.csv", "--model", a.model)
            rows[part] = race_busy.measure(o, *both)
            print(race_busy.summary(rows[part], o), flush=True)
        elif part == "curve":
            rows[part] = curve.measure(a.curve, *both)
            print(curve.summary(rows[part], a.curve), flush=True)
    return rows


def goals(rows, a):
    return [*of_race(rows["race"], a), *of_formats(rows["formats"], a), *of_server(rows["server"], a),
            *of_busy(rows["busy"], a), *of_curve(rows["curve"], a)]


def main():
    a = parser().parse_args()
    unknown = set(a.parts.split(",")) - set(PARTS)
    if unknown:
        parser().error(f"--parts: no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    race.check_models(parser(), [a.model, *([a.gemma] if a.gemma else []), *a.formats])
    rows = run(a)
    lines = goals(rows, a)
    print(table(lines))
    print(f"\n{sum(g.verdict() == 'yes' for g in lines)} of {len(lines)} reached")


if __name__ == "__main__":
    main()
