#!/usr/bin/env python3
"""Writes src/kern/check_golden.h: random rows of every block format with the values that the format's own library
reads from them, for check_kern to compare by bytes.

    formats.py > src/kern/check_golden.h        needs numpy, gguf and mlx; the same bytes on every run

GGUF rows are random bytes with finite scales: the first 256 values ordinary, the others with scales at the ends of
what a half holds, of either sign, zero and denormal. MLX rows come out of mx.quantize; the values are f32
scale * code + bias, which mx.dequantize must give too when its scales are f32 (checked here).
"""
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

N = 512  # values of a GGUF row
# type: values and bytes of a block, where its halves are, where its codes are
GGUF = {"q4_0": (T.Q4_0, 32, 18, [0], slice(2, 18)), "q4_1": (T.Q4_1, 32, 20, [0, 2], slice(4, 20)),
        "q5_0": (T.Q5_0, 32, 22, [0], slice(2, 22)), "q8_0": (T.Q8_0, 32, 34, [0], slice(2, 34)),
        "q4_k": (T.Q4_K, 256, 144, [0, 2], slice(4, 144)), "q6_k": (T.Q6_K, 256, 210, [208], slice(0, 192)),
        "q5_1": (T.Q5_1, 32, 24, [0, 2], slice(4, 24)), "q5_k": (T.Q5_K, 256, 176, [0, 2], slice(4, 176)),
        "iq4_nl": (T.IQ4_NL, 32, 18, [0], slice(2, 18)), "iq4_xs": (T.IQ4_XS, 256, 136, [0], slice(2, 136)),
        "q2_k": (T.Q2_K, 256, 84, [80, 82], slice(0, 80)), "q3_k": (T.Q3_K, 256, 110, [108], slice(0, 108)),
        "tq2_0": (T.TQ2_0, 256, 66, [64], slice(0, 64)), "tq1_0": (T.TQ1_0, 256, 54, [52], slice(0, 52)),
        "mxfp4": (T.MXFP4, 32, 17, [], slice(1, 17)), "nvfp4": (T.NVFP4, 64, 36, [], slice(4, 36))}
EXTREME = np.array([65504.0, -65504.0, 0.0, -0.0, 6e-8, -6e-8, 6.1e-5, -1.0], np.float16)


def random_of(name):
    """Every format has numbers of its own, so that a new one changes no other row."""
    return np.random.default_rng([21, *name.encode()])


def gguf_row(name):
    kind, values, size, halves, codes = GGUF[name]
    rng = random_of(name)
    blocks = rng.integers(0, 256, (N // values, size), np.uint8)
    blocks[-1, codes] = 255  # all at the top
    if name == "mxfp4":  # exponents that leave the largest code finite, the least ones among them
        blocks[:, 0] = np.append([0, 1, 2, 252], blocks[4:, 0] % 253)
    if name == "nvfp4":
        blocks[0, :4] = 0, 1, 0x7f, 0xff
    for b in range(len(blocks)):
        for h in halves:
            d = np.float16(rng.normal() * 0.1) if b < len(blocks) // 2 else rng.choice(EXTREME)
            blocks[b, h:h + 2] = np.frombuffer(d.tobytes(), np.uint8)
    out = dequantize(blocks.reshape(-1), kind).astype(np.float32).reshape(-1)
    assert np.isfinite(out).all()
    return blocks.tobytes(), out


def mlx_row(name, bits, group, f32):
    n = 256
    rng = random_of(name)
    w = rng.normal(size=(1, n)).astype(np.float32) * rng.choice([1e-3, 1.0, 30.0], (1, n // 32)).repeat(32, axis=1)
    codes, scales, biases = mx.quantize(mx.array(w), group_size=group, bits=bits)
    if not f32:
        scales, biases = scales.astype(mx.bfloat16), biases.astype(mx.bfloat16)
    row = np.array(codes).tobytes()
    for v in (scales, biases):
        row += (np.array(v) if f32 else np.array(v.view(mx.uint16))).tobytes()
    s, b = (np.array(v.astype(mx.float32)).repeat(group, axis=1).reshape(-1) for v in (scales, biases))
    stream = np.unpackbits(np.frombuffer(np.array(codes).tobytes(), np.uint8), bitorder="little").reshape(n, bits)
    q = (stream * (1 << np.arange(bits))).sum(axis=1).astype(np.float32)
    out = s * q + b  # numpy rounds each of the two
    theirs = np.array(mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32),
                                    group_size=group, bits=bits)).reshape(-1)
    assert out.tobytes() == theirs.tobytes(), (bits, group)
    return row, out


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3(code):
    code = code.astype(np.int32)
    exponent, m = code >> 3 & 15, code & 7
    v = np.where(exponent == 0, m * 2.0**-9, (1 + m / 8) * 2.0**(exponent - 7.0))
    return np.where(code & 128, -v, v).astype(np.float32)


def small_float_row(mode, bits, group, tensor_scale=None):
    """Four bits: MLX has a code for a zero less than zero, we have not."""
    n = 256
    rng = random_of(f"{mode} {tensor_scale}")
    codes = rng.integers(0, 256, (1, n * bits // 8), np.uint8)
    scales = rng.integers(118, 136, (1, n // group)).astype(np.uint8)
    if mode == "nvfp4":
        scales = rng.integers(0, 256, (1, n // group)).astype(np.uint8)
        scales[scales & 127 == 127] = 0
    else:
        scales[0, :2] = 0, 250
    if bits == 8:
        codes[codes & 127 == 127] = 0
        scales[0, 1] = 240
    last = codes[:, -group * bits // 8:]
    last[...] = 0x77 if bits == 4 else 0x7e
    extra = {} if tensor_scale is None else {"global_scale": mx.array(tensor_scale)}
    theirs = np.array(mx.dequantize(mx.array(codes.view(np.uint32)), mx.array(scales), None, group_size=group,
                                    bits=bits, mode=mode, dtype=mx.float32, **extra)).reshape(-1)
    s = e4m3(scales) if mode == "nvfp4" else np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    row = codes.tobytes()
    if tensor_scale is None:
        row += scales.tobytes()
    else:
        s = s * (tensor_scale / np.float32(2688))
        row += s.astype(np.float32).tobytes()
    value = E2M1[np.stack([codes & 15, codes >> 4], -1).reshape(-1)] if bits == 4 else e4m3(codes).reshape(-1)
    ours = s.astype(np.float32).repeat(group, axis=1).reshape(-1) * value
    assert (ours == theirs).all() and (bits == 4 or ours.tobytes() == theirs.tobytes()), mode
    assert np.isfinite(ours).all()
    return row, ours


def words(data):
    v = [f"0x{w:08x}" for w in np.frombuffer(data + b"\0" * (-len(data) % 4), np.uint32)]
    return ",\n".join("    " + ", ".join(v[i:i + 8]) for i in range(0, len(v), 8))


def main():
    print("/* check_golden: rows of every block format in the file layout, and their values as f32 bits, as the format's\n"
          " * own library reads them. Written by tools/golden/formats.py; little-endian words. */\n"
          "#ifndef IG_CHECK_GOLDEN_H\n#define IG_CHECK_GOLDEN_H\n\n#include <stdint.h>\n")
    rows = {name: gguf_row(name) for name in GGUF}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for f32 in (False, True):
                name = f"affine{bits}g{group}" + "_f32" * f32
                rows[name] = mlx_row(name, bits, group, f32)
    rows["mxfp4_mlx"] = small_float_row("mxfp4", 4, 32)
    rows["nvfp4_mlx"] = small_float_row("nvfp4", 4, 16)
    rows["nvfp4_mlx_f32"] = small_float_row("nvfp4", 4, 16, np.float32(3.3))
    rows["mxfp8"] = small_float_row("mxfp8", 8, 32)
    for name, (row, out) in rows.items():
        print(f"static const uint32_t golden_{name}_row[] = {{\n{words(row)}}};")
        print(f"static const uint32_t golden_{name}_f32[] = {{\n{words(out.tobytes())}}};")
    print("static const struct golden {\n    const char *fmt;\n    const uint32_t *row, *f32;\n    int n_bytes, n_cols;\n"
          "} goldens[] = {")
    for name, (row, out) in rows.items():
        print(f'    {{"{name}", golden_{name}_row, golden_{name}_f32, {len(row)}, {len(out)}}},')
    print("};\n\n#endif")


if __name__ == "__main__":
    main()
