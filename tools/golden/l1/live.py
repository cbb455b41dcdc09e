#!/usr/bin/env python3
"""Tier l1 against the mlx-lm that is installed, now: no stored hashes.

    live.py CACHE PROGRAMS [SEED]     PROGRAMS: the folder of dump_l1 and ingle; SEED of prompts and numbers

1. Every array of a random prompt, of one-token steps and of a greedy run, of each family and each format, and of real
   models when their GGUF files are there.
2. exp, sigmoid, silu, gelu, tanh and softcap over all 65536 numbers of bf16 and of f16.
3. The quantizer that makes the checkpoints, against mx.quantize, bit for bit.
4. The draw of a token in numpy, from the threefry stream to the inverse of the distribution, against mlx's; and that
   the stored goldens of samplers, of unary functions and of one checkpoint are what mlx-lm says today.
5. What the command prints for a random seed, beside `ingle generate --l1`.

Ends with `N passed, N failed`. Each comparison is also made with something wrong in it, and must see that.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cases  # noqa: E402
import cli  # noqa: E402
import dump  # noqa: E402
import golden  # noqa: E402
import mlxquant  # noqa: E402
import ops  # noqa: E402
import sampled  # noqa: E402
import snapshots  # noqa: E402

F = np.float32
passed = failed = 0


def check(ok, text):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAIL {text}", flush=True)


def f32(y):
    return np.array(y.astype(mx.float32))


def words(y):
    return np.array(y.view(mx.uint16))


# ---- 1: arrays --------------------------------------------------------------------------------------------


def chosen():
    """A case of each family in bf16, f16 and 4 bits, of each width and group, of each other format."""
    seen = set()
    for name, case in cases.CASES.items():
        model, kind = case["checkpoint"].rsplit("-", 1)
        if model in snapshots.REAL:
            try:
                snapshots.gguf_of(model)
            except FileNotFoundError as gone:
                print(f"left out: {gone}")
                continue
        keys = {(model.split("-0.")[0], kind[:2]), kind} - seen
        if keys and not name.endswith("-long"):
            seen |= keys
            yield case["checkpoint"]


def ours(program, folder, ids, prefill, greedy, *more):
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(" ".join(map(str, ids)))
        f.flush()
        done = subprocess.run([program, folder, "--tokens", f.name, "--prefill", str(prefill), "--greedy", str(greedy),
                               *more], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"dump_l1 {folder}: exit code {done.returncode}: {done.stderr[-500:]}")
    return golden.parse(done.stdout)


def compare_arrays(cache, program, rng):
    for name in dict.fromkeys(chosen()):
        model, config = dump.load_model(snapshots.make(name, cache))
        real = name.rsplit("-", 1)[0] in snapshots.REAL
        prefill = int(rng.integers(3, 7 if real else 70))
        ids = [int(i) for i in rng.integers(3, min(config["vocab_size"], 40000), prefill + cases.STEPS)]
        stock = dump.run_model(model, config, ids, prefill, 4 if real else 32)
        try:
            fault = golden.difference(stock, ours(program, snapshots.make(name, cache), ids, prefill, len(stock.ids)))
        except (RuntimeError, ValueError, OSError) as e:
            fault = str(e)
        check(fault is None, f"{name}, {prefill} tokens: {fault}")
        print(f"{name}: {prefill} tokens, {len(stock.arrays)} arrays", flush=True)
        if real:
            continue
        ids[-1] = ids[-1] % 90 + 3 if ids[-1] % 90 + 3 != ids[-1] else 4
        other = dump.run_model(model, config, ids, prefill, 1)
        check(golden.difference(stock, other), f"{name}: another token was not seen")


# ---- 2: unary functions -----------------------------------------------------------------------------------


def compare_unary(program):
    stored = json.loads((golden.FOLDER / "ops.json").read_text())["unary"]
    check(stored == ops.hashes(), "ops.json is not what mlx says today")
    for kind in ops.TYPES:
        for name in ops.UNARY:
            want = ops.table(name, kind).astype("<u2")
            done = subprocess.run([program, "--unary", name, "--type", kind], capture_output=True)
            got = np.frombuffer(done.stdout, "<u2")
            if done.returncode != 0 or got.size != 65536:
                check(False, f"dump_l1 --unary {name} --type {kind}: {done.stderr.decode()[-300:] or got.size}")
                continue
            bad = np.flatnonzero(got != want)
            check(bad.size == 0, f"{name} {kind}: {bad.size} of 65536 differ, first at {bad[:1]}")


# ---- 3: the quantizer -------------------------------------------------------------------------------------


def matrices(rng):
    for spread in (0.02, 0.3, 5.0):
        yield rng.normal(0, spread, (64, 256))
    odd = rng.normal(0, 0.1, (16, 256))
    odd[0], odd[1, :64], odd[2], odd[3] = 0, 0.05, 1e-8, -0.3
    odd[4], odd[5] = np.linspace(-6, 6, 256), np.linspace(0, 448, 256)
    odd[6], odd[7] = 2.0**rng.integers(-12, 5, 256), rng.integers(-12, 13, 256) / 2.0  # ties
    odd[8], odd[9] = 6 * 2.0**-3, 448 * 2.0**rng.integers(-8, 1, 256)
    yield odd


def compare_quantizer(rng):
    for w in matrices(rng):
        for dtype in (mx.bfloat16, mx.float16):
            a = mx.array(w.astype(F)).astype(dtype)
            x, again = f32(a), lambda v: words(mx.array(v).astype(dtype))
            for group in (32, 64, 128):
                for bits in cases.BITS:
                    codes, scales, biases = mx.quantize(a, group_size=group, bits=bits)
                    mine, scale, bias = mlxquant.affine(x, bits, group)
                    same = (np.array_equal(np.array(codes), mlxquant.pack(mine, bits)) and
                            np.array_equal(again(scale), words(scales)) and np.array_equal(again(bias), words(biases)))
                    check(same, f"quantize affine {bits} bits, groups of {group}, {dtype}")
            for mode in mlxquant.GROUP if dtype == mx.bfloat16 else ():
                codes, scales = mx.quantize(a, mode=mode)[:2]
                mine, scale = mlxquant.small_floats(x, mode)
                same = (np.array_equal(np.array(codes), mlxquant.pack(mine, mlxquant.BITS[mode])) and
                        np.array_equal(np.array(scales), scale))
                check(same, f"quantize {mode}")
                check(not np.array_equal(np.array(codes), mlxquant.pack(mine ^ 1, mlxquant.BITS[mode])),
                      f"quantize {mode}: wrong codes were not seen")


# ---- 4: drawing -------------------------------------------------------------------------------------------


def threefry(key, a, b):
    """Two words of 32 bits from two; 20 rounds."""
    k = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0]) ^ np.uint32(key[1]) ^ np.uint32(0x1BD11BDA)]
    turns = (13, 15, 26, 6), (17, 29, 16, 24)
    with np.errstate(over="ignore"):
        a, b = np.uint32(a) + k[0], np.uint32(b) + k[1]
        for i in range(5):
            for r in turns[i % 2]:
                a = a + b
                b = (b << np.uint32(r) | b >> np.uint32(32 - r)) ^ a
            a, b = a + k[(i + 1) % 3], b + k[(i + 2) % 3] + np.uint32(i + 1)
    return a, b


def split(key):
    """The next key and one to use."""
    (a, c), (b, d) = threefry(key, 0, 2), threefry(key, 1, 3)
    return (a, b), (c, d)


def draw(logits, key):
    """The place where a uniform number of the key falls; sums from the left in f32."""
    weight = f32(mx.exp(mx.array(logits - logits.max())))
    total, before = F(0), np.empty_like(weight)
    for i, x in enumerate(weight):
        before[i], total = total, F(total + x)
    u = min(F(threefry(key, 0, 0)[0]) / F(2**32), np.nextafter(F(1), F(0)))
    return int(np.searchsorted(before, F(u * total), "right")) - 1


def compare_drawing(rng):
    seen = set()
    for _ in range(200):
        seed = int(rng.integers(0, 2**40))
        logits = mx.array(rng.normal(0, 2, (1, 97)).astype(F)).astype(mx.bfloat16)
        mx.random.seed(seed)
        key = np.uint32(seed >> 32), np.uint32(seed & 0xFFFFFFFF)
        for n in range(2):
            key, use = split(key)
            got = int(mx.random.categorical(logits).item())
            seen.add(got)
            check(got == draw(f32(logits)[0], use), f"draw {n} of seed {seed}")
    check(len(seen) > 20, "draws that are always the same prove nothing")


def compare_stored(cache):
    stored = json.loads((golden.FOLDER / "sampled.json").read_text())
    today = sampled.sampled(cache)
    for key, value in today.items():
        check(json.loads(json.dumps(value)) == stored[key], f"sampled.json: {key} is not what mlx-lm says today")
    name = "gemma3-0.08-a4g32"
    run = dump.run_case(cases.CASES[name], cache)
    fault = golden.difference(golden.read(golden.FOLDER / f"{name}.txt"), run)
    check(fault is None, f"the golden {name} is not what mlx-lm says today: {fault}")


# ---- 5: text ----------------------------------------------------------------------------------------------


def compare_text(cache, program, rng):
    settings = dict(checkpoint="smollm2-bf16", prompt=cli.PROMPT, max_tokens=16, temp=0.9, top_p=0.95,
                    seed=int(rng.integers(0, 2**32)))
    try:
        stock = cli.plain(cli.run(settings, cache))
        got = cli.plain(cli.ours(program, snapshots.make(settings["checkpoint"], cache), settings))
        check(got == stock, f"seed {settings['seed']}: {got!r} and not {stock!r}")
    except (RuntimeError, OSError) as e:
        check(False, str(e))


def main(cache, programs, seed=None):
    mx.set_default_device(mx.cpu)
    dump.versions()
    dump.install()
    seed = int(seed) if seed else int.from_bytes(np.random.bytes(4), "little")
    print(f"seed {seed}", flush=True)
    rng, program = np.random.default_rng(seed), pathlib.Path(programs) / "dump_l1"
    compare_quantizer(rng)
    compare_drawing(rng)
    compare_stored(cache)
    if program.exists():
        compare_unary(program)
        compare_arrays(cache, program, rng)
        compare_text(cache, program.parent / "ingle", rng)
    else:
        check(False, f"there is no {program}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
