"""What mlx 0.32.4 does when it quantizes, in numpy: the same codes and scales bit for bit. live.py proves it.

    affine(w, bits, group)      -> codes [rows][cols], scale and bias f32 [rows][groups], still to be rounded
    small_floats(w, mode)       -> codes, scales u8; mode is mxfp4, nvfp4 or mxfp8
    pack(codes, bits)           -> u32 [rows][cols * bits / 32], a little-endian stream of bits

w is f32 [rows][cols] with the values of the checkpoint. All arithmetic is f32, one rounding an operation. The small
floats are those of bf16 matrices: mlx divides in the type of the matrix, which subnormal numbers of f16 would show.
"""
import numpy as np

F = np.float32
GROUP = {"mxfp4": 32, "nvfp4": 16, "mxfp8": 32}
BITS = {"mxfp4": 4, "nvfp4": 4, "mxfp8": 8}
# The order decides ties: the first of two values that are as near wins.
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], F)


def affine(w, bits, group):
    x = w.astype(F).reshape(len(w), -1, group)
    low, high = x.min(-1), x.max(-1)
    side = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / F((1 << bits) - 1), F(1e-7))
    scale = np.where(side, scale, -scale)
    edge = np.where(side, low, high)
    first = np.rint(edge / scale)
    has = first != 0
    scale = np.where(has, edge / np.where(has, first, F(1)), scale).astype(F)
    bias = np.where(has, edge, F(0)).astype(F)
    # The codes are of the unrounded scale and bias.
    codes = np.clip(np.rint((x - bias[..., None]) / scale[..., None]), 0, (1 << bits) - 1)
    return codes.astype(np.uint8).reshape(w.shape), scale, bias


def to_e4m3(x):
    """f32 to the nearest E4M3, half to even, up to 448; the bits."""
    sign = (np.signbit(x).astype(np.uint8) << 7)
    a = np.minimum(np.abs(x).astype(np.float64), 448.0)
    exponent = np.maximum(np.floor(np.log2(np.maximum(a, 2.0**-20))), -6)
    steps = np.rint(a / 2.0**(exponent - 3))  # of an eighth of the power of two; 16: the next one
    up = steps == 16
    exponent, steps = exponent + up, np.where(up, 8, steps)
    code = np.where(steps < 8, steps, (exponent + 7) * 8 + steps - 8)
    return code.astype(np.uint8) | sign


def from_e4m3(code):
    code = code.astype(np.int32)
    e, m = code >> 3 & 15, code & 7
    value = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0**(e - 7.0))
    return np.where(code & 128, -value, value).astype(F)


def small_floats(w, mode):
    x = w.astype(F).reshape(len(w), -1, GROUP[mode])
    top = np.abs(x).max(-1)
    if ((top > 0) & (top < 2.0**-100)).any():
        raise ValueError("a group of values below 2^-100: mlx takes it for zeros, this does not")
    if mode == "nvfp4":
        scales = to_e4m3(top / F(6))
        unit = from_e4m3(scales)
    else:
        part = top / F(448 if mode == "mxfp8" else 6)
        with np.errstate(divide="ignore"):
            scales = np.where(top > 0, np.clip(127 + np.ceil(np.log2(part.astype(np.float64))), 0, 255), 127)
        scales = scales.astype(np.uint8)
        unit = np.ldexp(F(1), scales.astype(np.int32) - 127).astype(F)
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.where(unit[..., None] == 0, F(0), x / unit[..., None]).astype(F)
    if mode == "mxfp8":
        codes = to_e4m3(y)
    else:
        codes = np.empty(y.shape, np.uint8)
        for i in range(len(y)):  # row by row: sixteen distances for each value
            codes[i] = np.abs(y[i][..., None] - E2M1).argmin(-1)
    return codes.reshape(w.shape), scales


def pack(codes, bits):
    rows = codes.shape[0]
    planes = codes[..., None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
    return np.packbits(planes.reshape(rows, -1), axis=-1, bitorder="little").view("<u4")
