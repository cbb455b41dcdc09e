"""Hugging Face snapshots in numpy: safetensors, single or sharded, plain or quantized by MLX.

Written apart from the C reader so that it can judge it. Values are exact: q * scale + bias in float64.
"""
import json
import os
import struct

import numpy as np

DTYPE = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4", "I32": "<i4", "I64": "<i8", "U8": "u1"}


class Snapshot:
    def __init__(self, folder):
        self.folder = folder
        self.config = json.load(open(os.path.join(folder, "config.json")))
        index = os.path.join(folder, "model.safetensors.index.json")
        names = ["model.safetensors"]
        if os.path.exists(index):
            names = sorted(set(json.load(open(index))["weight_map"].values()))
        self.tensors = {}
        for name in names:
            self.tensors |= load(os.path.join(folder, name))

    def f64(self, name, rows=None):
        """`name` without .weight; `rows` selects rows of a matrix."""
        pick = lambda t: t if rows is None else t[rows]
        w = pick(self.tensors[name + ".weight"])
        if name + ".scales" not in self.tensors:
            return widen(w)
        if name + ".biases" not in self.tensors:
            return small_floats(w, pick(self.tensors[name + ".scales"]))
        scales, biases = (widen(pick(self.tensors[name + part])) for part in (".scales", ".biases"))
        quant = self.config.get("quantization") or self.config["quantization_config"]
        group = (quant[name] if isinstance(quant.get(name), dict) else quant)["group_size"]
        bits = w.shape[-1] * 32 // (scales.shape[-1] * group)
        n = scales.shape[-1] * group
        stream = np.unpackbits(w.view(np.uint8), axis=-1, bitorder="little")[:, :n * bits]
        q = (stream.reshape(len(w), n, bits) << np.arange(bits)).sum(-1)
        return q * np.repeat(scales, group, -1) + np.repeat(biases, group, -1)


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.array([(-1 if v & 128 else 1) * ((v & 7) * 2.0**-9 if v < 8 or 128 <= v < 136 else
                                           (1 + (v & 7) / 8) * 2.0**((v >> 3 & 15) - 7)) for v in range(256)])


def small_floats(w, scales):
    """MXFP4, NVFP4 and MXFP8 of MLX, told apart by how many bytes of codes share a scale."""
    codes = w.view(np.uint8)
    run = codes.shape[-1] // scales.shape[-1]  # 16: 32 codes of 4 bits; 8: 16 of them; 32: 32 of 8 bits
    if run == 32:
        return E4M3[codes] * np.repeat(2.0**(scales.astype(float) - 127), 32, -1)
    q = E2M1[np.stack([codes & 15, codes >> 4], -1).reshape(len(w), -1)]
    s = 2.0**(scales.astype(float) - 127) if run == 16 else E4M3[scales]
    return q * np.repeat(s, 2 * run, -1)


def load(path):
    """Tensors of one file: bf16 as uint16."""
    raw = np.memmap(path, np.uint8, "r")
    n = struct.unpack("<Q", raw[:8].tobytes())[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n].tobytes()).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            v = np.frombuffer(raw[8 + n + a:8 + n + b].tobytes(), DTYPE[t["dtype"]]).reshape(t["shape"])
            out[name] = v
    return out


def widen(v):
    if v.dtype == np.uint16:
        v = (v.astype(np.uint32) << 16).view(np.float32)
    return v.astype(np.float64)
