#!/usr/bin/env python3
"""Draws what a token costs: against context, against the length of the prompt, against the sequences together.

    plot.py [FILE.csv ...] [--model NAME] [--out docs/cost.svg]

Reads bench/results/curve.csv, where bench/peers/curve.py has put both programs in turn, or what `ingle bench --csv`
printed. Of each program the newest commit or version counts, at the most threads; a point is the median of its runs,
a bar goes from the lowest to the highest. Milliseconds a token from zero up, so that a line twice as high is twice
as slow. Needs nothing but Python.
"""
import argparse
import csv
import html
import math
import pathlib
import statistics

TOP = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, LEFT, PANEL, GAP, TOP_PX, PLOT = 960, 330, 56, 250, 60, 64, 200
COLORS = {"ingle": "#1b6ca8", "llama.cpp": "#c4572b"}
# title, what lies across, whether a row belongs, its place across
PANELS = (
    ("decode, one sequence", "tokens of context",
     lambda r: r["work"] == "decode" and r["sequences"] == 1, lambda r: r["context"]),
    ("prompt", "tokens of the prompt", lambda r: r["work"] == "prefill", lambda r: r["tokens"]),
    ("decode, several together", "sequences",
     lambda r: r["work"] == "decode" and r["context"] == r["first_context"], lambda r: r["sequences"]),
)


# ---- rows -------------------------------------------------------------------------------------------------


def read(paths):
    rows = []
    for path in paths:
        with open(path, newline="") as f:
            for r in csv.DictReader(f):
                numbers = {k: int(r[k]) for k in ("threads", "tokens", "context", "sequences")}
                # `ingle bench` names no program and no commit
                rows.append({"program": "ingle", **r, **numbers, "model": r["model"].removesuffix(".gguf"),
                             "of": r.get("commit") or r["version"], "ms": 1e3 / float(r["tok_s"])})
    return rows


def choose(rows, model):
    """One model; of each program its newest version at the most threads."""
    model = model or (rows[-1]["model"] if rows else None)
    rows = [r for r in rows if r["model"] == model]
    chosen = []
    for program in dict.fromkeys(r["program"] for r in rows):
        own = [r for r in rows if r["program"] == program]
        newest = max(own, key=lambda r: r["utc"])["of"]
        own = [r for r in own if r["of"] == newest]
        own = [r for r in own if r["threads"] == max(x["threads"] for x in own)]
        first = min((r["context"] for r in own if r["work"] == "decode"), default=0)
        chosen += [r | {"first_context": first} for r in own]
    return model, chosen


def series(rows, belongs, place):
    """{program: [(x, median, lowest, highest)]}"""
    points = {}
    for r in filter(belongs, rows):
        points.setdefault(r["program"], {}).setdefault(place(r), []).append(r["ms"])
    return {p: [(x, statistics.median(v), min(v), max(v)) for x, v in sorted(at.items())] for p, at in points.items()}


# ---- drawing ----------------------------------------------------------------------------------------------


def steps(top):
    """Round numbers from zero to at least top: four or five of them."""
    raw = top / 4
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def short(x):
    return f"{x // 1024}k" if x and x % 1024 == 0 else str(x)


def text(x, y, s, anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{html.escape(s)}</text>'


def panel(at, title, across, lines):
    """One picture of the three; the x axis counts doublings."""
    xs = sorted({p[0] for points in lines.values() for p in points})
    ticks = steps(max(p[3] for points in lines.values() for p in points))
    low, high = math.log2(xs[0]), math.log2(xs[-1])
    px = lambda x: at + (PANEL * (math.log2(x) - low) / (high - low) if high > low else PANEL / 2)
    py = lambda y: TOP_PX + PLOT * (1 - y / ticks[-1])
    out = [text(at, TOP_PX - 14, title, "start", ' font-weight="bold"')]
    for y in ticks:
        out.append(f'<path class="g" d="M{at} {py(y):.1f}h{PANEL}"/>')
        out.append(text(at - 6, py(y) + 4, f"{y:.6g}", "end"))
    out += [text(px(x), TOP_PX + PLOT + 18, short(x)) for x in xs]
    out.append(text(at + PANEL / 2, TOP_PX + PLOT + 38, across))
    for program, points in lines.items():
        way = "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y, _, _ in points)
        bars = "".join(f"M{px(x):.1f} {py(a):.1f}V{py(b):.1f}" for x, _, a, b in points)
        dots = "".join(f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3"/>' for x, y, _, _ in points)
        out.append(f'<g stroke="{COLORS[program]}" fill="{COLORS[program]}">'
                   f'<path fill="none" stroke-width="2" d="M{way}"/><path d="{bars}"/>{dots}</g>')
    return out


def draw(model, rows):
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12" fill="#222">',
             "<style>.g{stroke:#ddd;fill:none}</style>",
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
             text(LEFT, 22, f"{model}: milliseconds a token", "start", ' font-size="14"')]
    programs = sorted(dict.fromkeys(r["program"] for r in rows))
    for i, program in enumerate(programs):
        of = next(r for r in rows if r["program"] == program)
        label = f"{program} {of['version']}, {of['threads']} threads"
        x = WIDTH - 20 - 190 * (len(programs) - i - 1)
        parts.append(text(x, 22, label, "end", f' fill="{COLORS[program]}" font-weight="bold"'))
    for i, (title, across, belongs, place) in enumerate(PANELS):
        lines = series(rows, belongs, place)
        if lines:
            parts += panel(LEFT + i * (PANEL + GAP), title, across, lines)
    return "\n".join([*parts, "</svg>", ""])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("files", nargs="*", default=[TOP / "bench" / "results" / "curve.csv"])
    p.add_argument("--model", help="as in the column model [that of the last row]")
    p.add_argument("--out", default=TOP / "docs" / "cost.svg", help="[docs/cost.svg]")
    a = p.parse_args()
    model, rows = choose(read(a.files), a.model)
    if not rows:
        p.error("no rows of such a model")
    pathlib.Path(a.out).write_text(draw(model, rows))
    print(f"{a.out}: {len(rows)} runs of {model}")


if __name__ == "__main__":
    main()
