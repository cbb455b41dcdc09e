"""Files of goldens: written by dump.py, read by the tests. No mlx here.

<case>.txt: a header, then for each array its name, its columns and a hash for each step that is kept; the ids of the
greedy run; a hash for each of its rows of log-probabilities.

    # golden of ingle's tier l1; hashes: the first 8 hex digits; steps: 0 1 3; rows: 40 1 1
    embed 64 0f3a9c11 77aa0011 9be00f22
    00.attn_norm 64 ...
    ids 17 4 ...
    lp 1c9e0a0b ...

A hash is sha256 over the 16-bit words of an array [tokens][columns], little-endian. What programs print is the long
form, a line an array: `step name rows cols hash`, then `ids ...`, then `lp step hash`.
"""
import hashlib
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[2]
FOLDER = TOP / "tests" / "golden" / "l1"
MANIFEST = FOLDER / "MANIFEST.json"
MARK = "# golden of ingle's tier l1"
LP_A_LINE = 12


class Refused(Exception):
    """A golden that is not of the pinned oracle, or that says nothing."""


def pins():
    """{"mlx": "0.32.4", ...} of requirements.txt."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


class Run:
    """What a program computed: arrays {(step, name): (rows, cols, hash)} in their order, ids, lp hashes."""

    def __init__(self):
        self.arrays, self.ids, self.lp = {}, [], []

    def lines(self):
        for (step, name), (rows, cols, h) in self.arrays.items():
            yield f"{step} {name} {rows} {cols} {h}"
        if self.ids:
            yield "ids " + " ".join(map(str, self.ids))
        for i, h in enumerate(self.lp):
            yield f"lp {i} {h}"


def parse(text):
    """The long form."""
    run = Run()
    for line in text.splitlines():
        word = line.split()
        if not word or word[0].startswith("#"):
            continue
        if word[0] == "ids":
            run.ids = [int(w) for w in word[1:]]
        elif word[0] == "lp":
            if int(word[1]) != len(run.lp):
                raise ValueError(f"log-probabilities of step {word[1]} where {len(run.lp)} was next")
            run.lp.append(word[2])
        else:
            key = int(word[0]), word[1]
            if key in run.arrays:
                raise ValueError(f"step {key[0]}: {key[1]} is there twice")
            run.arrays[key] = int(word[2]), int(word[3]), word[4]
    return run


def write(path, run, kept, digits):
    names = list(dict.fromkeys(name for _, name in run.arrays))
    rows = [run.arrays[step, names[0]][0] for step in kept]
    text = [f"{MARK}; hashes: the first {digits} hex digits; steps: {' '.join(map(str, kept))}; "
            f"rows: {' '.join(map(str, rows))}"]
    for name in names:
        of = [run.arrays[step, name] for step in kept]
        if [o[0] for o in of] != rows or len({o[1] for o in of}) != 1:
            raise ValueError(f"{name}: not the same rows or columns as the others: {of}")
        text.append(f"{name} {of[0][1]} {' '.join(o[2][:digits] for o in of)}")
    text.append("ids " + " ".join(map(str, run.ids)))
    for at in range(0, len(run.lp), LP_A_LINE):
        text.append("lp " + " ".join(h[:digits] for h in run.lp[at:at + LP_A_LINE]))
    path.write_text("\n".join(text) + "\n")


def read(path):
    """Of a golden: a Run with short hashes."""
    lines = path.read_text().splitlines()
    if not lines or not lines[0].startswith(MARK):
        raise Refused(f"{path.name}: no golden of tier l1")
    head = dict(part.split(": ") for part in lines[0].split("; ")[1:])
    steps, rows = ([int(x) for x in head[key].split()] for key in ("steps", "rows"))
    run, of = Run(), []
    for line in lines[1:]:
        word = line.split()
        if word[0] == "ids":
            run.ids = [int(w) for w in word[1:]]
        elif word[0] == "lp":
            run.lp += word[1:]
        else:
            of.append((word[0], int(word[1]), word[2:]))
    for i, step in enumerate(steps):
        for name, cols, hashes in of:
            run.arrays[step, name] = rows[i], cols, hashes[i]
    if not run.arrays or not run.ids or len(run.lp) != len(run.ids):
        raise Refused(f"{path.name}: no arrays, no ids or not as many log-probabilities")
    return run


def difference(golden, run):
    """None, or a sentence that names the first bad array of `run`; golden may have short hashes and fewer steps."""
    for (step, name), (rows, cols, h) in golden.arrays.items():
        if (step, name) not in run.arrays:
            return f"step {step}: {name} is missing"
        got = run.arrays[step, name]
        if got[:2] != (rows, cols):
            return f"step {step}: {name} is {got[0]} x {got[1]} and not {rows} x {cols}"
        if len(got[2]) < len(h) or not got[2].startswith(h):
            return f"step {step}: {name} differs: {got[2]} and not {h}"
    names = {name for _, name in golden.arrays}
    for step, name in run.arrays:
        if name not in names:
            return f"step {step}: {name} is not in the golden"
    n = len(golden.ids)
    if run.ids[:n] != golden.ids:
        at = next((i for i, (a, b) in enumerate(zip(run.ids, golden.ids)) if a != b), min(len(run.ids), n))
        return f"greedy: id {at} is {run.ids[at] if at < len(run.ids) else 'missing'} and not {golden.ids[at]}"
    for i, h in enumerate(golden.lp):
        if i >= len(run.lp):
            return f"greedy: the log-probabilities of step {i} are missing"
        if len(run.lp[i]) < len(h) or not run.lp[i].startswith(h):
            return f"greedy: the log-probabilities of step {i} differ: {run.lp[i]} and not {h}"
    return None


def manifest(path=MANIFEST):
    """The manifest; Refused when it is not of the pinned oracle."""
    m = json.loads(pathlib.Path(path).read_text())
    if m["oracle"] != pins():
        raise Refused(f"{path}: goldens of {m['oracle']}, but {pins()} are pinned: make regolden")
    return m
