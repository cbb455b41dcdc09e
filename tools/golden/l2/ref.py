#!/usr/bin/env python3
"""Attention over keys and values in groups of 2 to 8 bits, as the references of tiers l1 and l2 round it.

    ref.py check [--quick] [--seed N]     against mlx-lm and mlx-optiq themselves: every bit, or exit status 1
    ref.py vectors FILE                   hashes of results for the unit test of the C functions

The functions need numpy alone; `check` needs mlx-cpu 0.32.4, mlx-lm 0.32.2 and mlx-optiq 0.7.7 (x86-64).

Numbers are f32 arrays that hold values of the cache's type (bf16 or f16); each rounding to that type is a call
of r(). Sums run from left to right with one accumulator. Shapes: q [Hq][L][D], k and v [Hkv][N][D].
"""
import argparse
import sys

import numpy as np

TILE = 512
F = np.float32


def to_bf16(x):
    """f32 to the nearest bf16, ties to even, still f32."""
    u = np.ascontiguousarray(x, F).view(np.uint32)
    out = ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return np.where(np.isnan(x), F(np.nan), out.view(F)).astype(F)


def to_f16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, F).astype(np.float16).astype(F)


TYPES = {"bf16": (to_bf16, np.array(0xFF7F0000, np.uint32).view(F)), "f16": (to_f16, F(-65504))}


def fma(a, b, c):
    """a * b + c with one rounding: the f64 sum is rounded to odd, so that the f32 rounding is the only one."""
    p = np.multiply(a, b, dtype=np.float64)
    c = np.asarray(c, np.float64)
    s = p + c
    t = s - p
    err = (p - (s - t)) + (c - t)
    even = (s.view(np.int64) & 1) == 0
    return np.where((err != 0) & even, np.nextafter(s, np.where(err > 0, np.inf, -np.inf)), s).astype(F)


def exp(x):
    """The exponential of the reference: 2^i times a polynomial; 0 under -88, infinite over 88."""
    x = np.asarray(x, F)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        t = np.clip(x, F(-100), F(100)) * F(1.442695)
        i = np.floor(t.astype(np.float64) + 0.5).astype(F)
        f = t - i
        p = np.full_like(f, 1.535336188319500e-4)
        for c in (1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2, 2.402264791363012e-1,
                  6.931472028550421e-1, 1.0):
            p = fma(p, f, F(c))
        two = ((i.astype(np.int32) + 127) << 23).astype(np.int32).view(F)
        y = two * p
    return np.where(x > 88, F(np.inf), np.where(x < -88, F(0), y)).astype(F)


def all_bf16():
    return (np.arange(65536, dtype=np.uint32) << 16).view(F)


def chain(x):
    """The sum of the last axis from left to right in f32."""
    return np.add.accumulate(x, axis=-1, dtype=F)[..., -1:]


def quantize(x, bits, group, kind="bf16"):
    """x [...][D] to codes [...][D], and scales and biases [...][D / group] rounded to the type."""
    r = TYPES[kind][0]
    w = np.asarray(x, F).reshape(*x.shape[:-1], -1, group)
    lo, hi = w.min(-1, keepdims=True), w.max(-1, keepdims=True)
    bins = F(2 ** bits - 1)
    below = np.abs(lo) > np.abs(hi)
    scale = np.maximum((hi - lo) / bins, F(1e-7))
    scale = np.where(below, scale, -scale)
    edge = np.where(below, lo, hi)
    q0 = np.rint(edge / scale)
    scale = np.where(q0 != 0, edge / np.where(q0 != 0, q0, F(1)), scale)
    bias = np.where(q0 != 0, edge, F(0))
    code = np.clip(np.rint((w - bias) / scale), 0, bins)
    return code.reshape(x.shape).astype(np.uint8), r(scale[..., 0]), r(bias[..., 0])


def pack(code, bits):
    """Codes to 32-bit words: a stream of bits, the first code lowest."""
    stream = (code[..., None] >> np.arange(bits, dtype=np.uint8) & 1).reshape(*code.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")


def dequantize(triple, group, kind="bf16"):
    r = TYPES[kind][0]
    code, scale, bias = triple
    c = code.astype(F).reshape(*code.shape[:-1], -1, group)
    return r(r(scale[..., None] * c) + bias[..., None]).reshape(code.shape)


def product(x, w, r):
    """x [h][L][K] times w [h][K][M]: the accumulator is of the type, rounded after product and sum."""
    a = np.zeros((x.shape[0], x.shape[1], w.shape[2]), F)
    for k in range(x.shape[2]):
        a = r(a + r(x[:, :, k, None] * w[:, None, k, :]))
    return a


def ready(q, k3, v3, scale, group, kind):
    """Scaled queries [Hkv][rep * L][D] beside the values of keys [Hkv][D][N] and values [Hkv][N][D]."""
    r = TYPES[kind][0]
    kv = k3[0].shape[0]
    x = r(r(F(scale)) * q).reshape(kv, -1, q.shape[-1])
    return x, dequantize(k3, group, kind).transpose(0, 2, 1), dequantize(v3, group, kind)


def visible(q, n, causal, mask):
    """[rep * L][N] or None: which key each row sees; causal rows end at the last key."""
    heads, rows = q.shape[0], q.shape[1]
    if causal:
        mask = np.arange(n - rows, n)[:, None] >= np.arange(n)[None]
    return mask


def hide(s, mask, rows, lowest):
    if mask is None:
        return s
    return np.where(np.tile(mask, (s.shape[1] // rows, 1))[None], s, lowest)


def untiled(q, k3, v3, scale, group, causal=False, mask=None, kind="bf16"):
    """Of mlx-lm: scores of all keys, precise softmax, product with the values."""
    r, lowest = TYPES[kind]
    x, kt, v = ready(q, k3, v3, scale, group, kind)
    s = hide(product(x, kt, r), visible(q, v.shape[1], causal, mask), q.shape[1], lowest)
    e = exp(s - s.max(-1, keepdims=True))
    p = r(e * (F(1) / chain(e)))
    return product(p, v, r).reshape(q.shape[0], q.shape[1], -1)


def tiled(q, k3, v3, scale, group, causal=False, kind="bf16", tile=TILE):
    """Of mlx-optiq: keys in tiles from the first, each step of the running softmax rounded, division last."""
    r, lowest = TYPES[kind]
    x, kt, v = ready(q, k3, v3, scale, group, kind)
    n = v.shape[1]
    see = visible(q, n, causal, None)
    m = total = out = None
    for at in range(0, n, tile):
        to = min(at + tile, n)
        s = hide(product(x, kt[:, :, at:to], r), None if see is None else see[:, at:to], q.shape[1], lowest)
        top = s.max(-1, keepdims=True)
        new = top if m is None else np.maximum(m, top)
        with np.errstate(over="ignore"):
            e = r(exp(r(s - new)))
        part, o = r(chain(e)), product(e, v[:, at:to], r)
        if m is None:
            total, out = part, o
        else:
            f = r(exp(r(m - new)))
            total, out = r(r(f * total) + part), r(r(out * f) + o)
        m = new
    return r(out / total).reshape(q.shape[0], q.shape[1], -1)


def differ(a, b):
    """Values whose bits are not the same."""
    return int((np.ascontiguousarray(a, F).view(np.uint32) != np.ascontiguousarray(b, F).view(np.uint32)).sum())


def check(quick, seed):
    import mlx.core as mx
    from mlx_lm.models import base
    stock = base.quantized_scaled_dot_product_attention
    from optiq.runtime import fused_quant_sdpa as fused
    assert fused.install()
    assert fused._N_CHUNK == TILE
    optiq = base.quantized_scaled_dot_product_attention
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(seed)
    types = {"bf16": mx.bfloat16, "f16": mx.float16}
    bad = rows = 0

    def report(what, n):
        nonlocal bad
        bad += n != 0
        if n:
            print(f"differs: {what}: {n} values")

    x = all_bf16()
    with np.errstate(all="ignore"):
        for what, his, my in (("f32", np.array(mx.exp(mx.array(x))), exp(x)),
                              ("bf16", np.array(mx.exp(mx.array(x).astype(mx.bfloat16)).astype(mx.float32)),
                               to_bf16(exp(x)))):
            same = (his.view(np.uint32) == my.view(np.uint32)) | (np.isnan(his) & np.isnan(my))
            report(f"exp of every bf16 in {what}", int((~same).sum()))
        wide = rng.uniform(-95, 1, 400000).astype(F)
        report("exp of f32 numbers", differ(np.array(mx.exp(mx.array(wide))), exp(wide)))

    def one(kind, bits, group, d, hq, hkv, length, n, way, spread):
        nonlocal rows
        dt = types[kind]
        make = lambda *s: mx.array(rng.normal(0, spread, s).astype(F)).astype(dt)
        q, k, v = make(1, hq, length, d), make(1, hkv, n, d), make(1, hkv, n, d)
        k[..., 0, : min(d, 32)] = 0.0  # a group of zeros, and one of a single value
        v[..., n - 1, : min(d, 32)] = 0.25
        k3, v3 = (mx.quantize(a, group_size=group, bits=bits) for a in (k, v))
        f32 = lambda a: np.array(a.astype(mx.float32))[0]
        mine = [quantize(f32(a), bits, group, kind) for a in (k, v)]
        what = f"{kind} bits {bits} group {group} D {d} heads {hq}/{hkv} L {length} N {n} {way}"
        for name, his, my in (("k", k3, mine[0]), ("v", v3, mine[1])):
            report(f"{what}: words of {name}", int((np.array(his[0])[0] != pack(my[0], bits)).sum()))
            report(f"{what}: scales of {name}", differ(f32(his[1]), my[1]))
            report(f"{what}: biases of {name}", differ(f32(his[2]), my[2]))
        scale = d ** -0.5
        causal = "causal" if length > 1 and way != "array" else None
        window = max(1, n // 3)
        mask = None
        if way == "array":
            at = np.arange(n - length, n)[:, None]
            mask = (at >= np.arange(n)[None]) & (at < np.arange(n)[None] + window)
        arg = mx.array(mask) if mask is not None else causal
        fn = stock if way == "stock" else optiq
        his = f32(fn(mx.array(q), k3, v3, scale, arg, group_size=group, bits=bits))
        if way == "stock" or way == "array" or bits not in (4, 8):
            my = untiled(f32(q), *mine, scale, group, causal is not None, mask, kind)
        else:
            my = tiled(f32(q), *mine, scale, group, causal is not None, kind)
            if n > 3 and length > 1:  # the other form, the other border, would be seen
                wrong = untiled(f32(q), *mine, scale, group, causal is not None, None, kind)
                assert differ(wrong, my), f"no difference between the two forms: {what}"
        report(what, differ(his, my))
        rows += length * hq
        return what

    count = 0
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for d in (64, 128, 256):
                if d % group:
                    continue
                for hq, hkv in ((4, 4), (6, 2)) if bits in (2, 4, 8) else ((4, 2),):
                    shapes = [(1, 1), (1, 37), (1, 513), (9, 9), (5, 600), (40, 40)]
                    shapes += [(1, int(rng.integers(2, 1301))), (int(rng.integers(2, 20)), int(rng.integers(20, 1301)))]
                    if not quick:
                        shapes += [(1, 511), (1, 512), (1, 1024), (1, 1025), (1, 1300), (3, 512), (2, 514), (7, 1300)]
                    for length, n in shapes:
                        for way in ("stock", "tiled", "array") if length > 1 else ("stock", "tiled"):
                            one("bf16", bits, group, d, hq, hkv, length, n, way, float(rng.choice([0.3, 1.0, 3.0])))
                            count += 1
    for bits in (4, 8):
        for length, n in ((1, 600), (9, 530)):
            for way in ("stock", "tiled"):
                one("f16", bits, 32, 64, 6, 2, length, n, way, 1.0)
                count += 1
    print(f"{count} cases, {rows} rows: {bad} differ")
    return bad != 0


# ---- vectors ----------------------------------------------------------------------------------------------

# bits, group, head_dim, query heads, kv heads, queries, keys, window (0: none), spread, type
VECTORS = [(2, 32, 64, 2, 1, 1, 37, 0, 2, "bf16"), (4, 32, 64, 4, 2, 1, 513, 0, 2, "bf16"),
           (4, 64, 128, 2, 1, 5, 600, 0, 1, "bf16"), (8, 128, 256, 2, 2, 1, 520, 0, 1, "bf16"),
           (8, 64, 64, 3, 1, 40, 40, 0, 4, "bf16"), (4, 32, 32, 2, 2, 9, 1030, 0, 4, "bf16"),
           (8, 32, 64, 2, 1, 12, 30, 8, 2, "bf16"), (4, 128, 128, 1, 1, 1, 1, 0, 2, "bf16"),
           (4, 64, 64, 2, 1, 3, 700, 100, 8, "bf16"), (4, 32, 64, 2, 1, 2, 530, 0, 2, "f16"),
           (3, 32, 64, 2, 1, 2, 50, 0, 2, "bf16"), (5, 64, 64, 2, 1, 2, 50, 0, 2, "bf16"),
           (6, 64, 128, 2, 1, 2, 50, 0, 2, "bf16"),
           (8, 32, 32, 1, 1, 300, 400, 0, 4, "bf16")]  # enough rows to tell another order of the sum of exponentials


def draw(seed, shape, spread, kind):
    """Numbers in [-spread, spread) by a hash of their place; kv_affine_test.c has the same lines in C."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32)
    with np.errstate(over="ignore"):
        x = (x + np.uint32(seed)) * np.uint32(2654435769)
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
        x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
        x = x ^ x >> np.uint32(16)
    n = (x >> np.uint32(16)).astype(np.int64) - 32768
    return TYPES[kind][0]((n * spread).astype(F) / F(32768)).reshape(shape)


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def half(x, kind):
    """The 16 bits of values of the type."""
    if kind == "f16":
        return x.astype(np.float16).tobytes()
    return (np.ascontiguousarray(x, F).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def vectors(out):
    lines = ["# made by tools/golden/l2/ref.py vectors; hashes are FNV-1a of 64 bits",
             "# bits group head_dim heads kv_heads queries keys window spread type:"
             " codes, scales, biases of keys; of values; attention at once; in tiles",
             "# exp: f32 bits of the exponential of every bf16 that is a number, ascending by its bits"]
    x = all_bf16()
    lines.append("exp " + fnv(exp(x[~np.isnan(x)]).tobytes()))
    for i, (bits, group, d, hq, hkv, length, n, window, spread, kind) in enumerate(VECTORS):
        q, k, v = (draw(1000003 * (3 * i + a), s, spread, kind)
                   for a, s in enumerate(((hq, length, d), (hkv, n, d), (hkv, n, d))))
        k[0, 0, :32], v[0, n - 1, :32] = 0, 0.25
        three = [quantize(a, bits, group, kind) for a in (k, v)]
        at = np.arange(n - length, n)[:, None]
        mask = at >= np.arange(n)[None]
        if window:
            mask &= at < np.arange(n)[None] + window
        scale = d ** -0.5
        got = [untiled(q, *three, scale, group, False, mask, kind), tiled(q, *three, scale, group, True, kind)]
        words = [fnv(x) for a in three for x in (pack(a[0], bits).tobytes(), half(a[1], kind), half(a[2], kind))]
        if window:
            got[1] = None  # tiles take no window
        words += [fnv(half(x, kind)) if x is not None else "-" for x in got]
        assert n == 1 or words[6] != words[7], "the two forms do not differ"
        lines.append(f"{bits} {group} {d} {hq} {hkv} {length} {n} {window} {spread} {kind} " + " ".join(words))
    open(out, "w").write("\n".join(lines) + "\n")
    return 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = p.add_subparsers(dest="do", required=True)
    c = sub.add_parser("check")
    c.add_argument("--quick", action="store_true")
    c.add_argument("--seed", type=int, default=1)
    sub.add_parser("vectors").add_argument("out")
    o = p.parse_args()
    return vectors(o.out) if o.do == "vectors" else check(o.quick, o.seed)


if __name__ == "__main__":
    sys.exit(main())
