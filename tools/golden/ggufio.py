"""GGUF files in numpy: read, write, block formats to numbers and back.

Written apart from the C reader and from every library so that it can judge them; test_ggufio.py compares
it with the `gguf` package. Metadata is kept as raw bytes, so a rewritten file has the same keys in the
same order, bit for bit, except those that a caller replaces.
"""
import struct

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALAR = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}

# name -> (number in the format, values a block, bytes a block)
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136),
    "BF16": (30, 1, 2),
    "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66),
}
# Types without a writer here: where the f16 scales of a block are (in Q2_K, Q4_K, Q5_K the second is of the minima).
SCALES = {"Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
          "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
NAME_OF = {number: name for name, (number, _, _) in TYPES.items()}
# general.file_type
FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15,
             "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37}
ALIGN = 32


class Tensor:
    """A tensor of a file: `shape` outermost first, `raw` its bytes."""

    def __init__(self, name, type_name, shape, raw):
        self.name, self.type, self.shape, self.raw = name, type_name, tuple(shape), raw

    def f64(self, rows=None):
        """The exact values in float64; `rows` selects rows of a matrix (a slice or an index array)."""
        block, size = TYPES[self.type][1:]
        raw = np.frombuffer(self.raw, np.uint8).reshape(self.shape[:-1] + (self.shape[-1] // block * size,))
        return dequant(self.type, raw if rows is None else raw[rows])


class File:
    def __init__(self, path=None):
        self.meta, self.meta_raw, self.tensors = {}, {}, {}
        if path:
            self._read(path)

    def _read(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        self.pos = 0
        magic, version, n_tensors, n_keys = self._take("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
        for _ in range(n_keys):
            key = self._string()
            start = self.pos
            self.meta[key] = self._value(self._take("<I")[0])
            self.meta_raw[key] = bytes(self.bytes[start:self.pos])
        infos = []
        for _ in range(n_tensors):
            name = self._string()
            n_dims = self._take("<I")[0]
            dims = self._take(f"<{n_dims}Q")
            infos.append((name, dims[::-1], *self._take("<IQ")))
        align = self.meta.get("general.alignment", ALIGN)
        base = (self.pos + align - 1) // align * align
        for name, shape, number, offset in infos:
            if number not in NAME_OF:
                raise ValueError(f"{path}: {name}: block type {number} is not one of {' '.join(TYPES)}")
            block, size = TYPES[NAME_OF[number]][1:]
            n = int(np.prod(shape)) // block * size
            self.tensors[name] = Tensor(name, NAME_OF[number], shape, self.bytes[base + offset:base + offset + n])

    def _take(self, fmt):
        n = struct.calcsize(fmt)
        out = struct.unpack(fmt, self.bytes[self.pos:self.pos + n].tobytes())
        self.pos += n
        return out

    def _string(self):
        n = self._take("<Q")[0]
        self.pos += n
        return self.bytes[self.pos - n:self.pos].tobytes().decode("utf-8", "surrogateescape")

    def _value(self, kind):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            item, n = self._take("<IQ")
            if item in (STRING, ARRAY):
                return [self._value(item) for _ in range(n)]
            return list(self._take(f"<{n}{SCALAR[item]}"))
        return self._take("<" + SCALAR[kind])[0]

    def set(self, key, kind, value):
        """Adds or replaces a metadata key. `kind` is a scalar kind, or (ARRAY, kind of the items)."""
        self.meta[key] = value
        if isinstance(kind, tuple):
            body = struct.pack("<IIQ", ARRAY, kind[1], len(value)) + b"".join(_pack(kind[1], v) for v in value)
        else:
            body = struct.pack("<I", kind) + _pack(kind, value)
        self.meta_raw[key] = body

    def add(self, name, type_name, values):
        raw = quant(type_name, np.asarray(values))
        self.tensors[name] = Tensor(name, type_name, np.shape(values), raw.reshape(-1))

    def add_random(self, name, type_name, shape, spread, rng):
        """Values of about that spread and mean 0; types without a writer get blocks of random codes."""
        if type_name not in SCALES:
            return self.add(name, type_name, rng.normal(0, spread, shape))
        block, size = TYPES[type_name][1:]
        raw = rng.integers(0, 256, (shape[0], shape[1] // block * size), dtype=np.uint8)
        blocks = raw.reshape(-1, size)
        if type_name == "TQ2_0":
            blocks &= ~(blocks << 1 & blocks & 0xAA)  # no code is 3
        put = lambda at, d: blocks.__setitem__((slice(None), slice(at, at + 2)), np.array([d], "<f2").view(np.uint8))
        for i, at in enumerate(SCALES[type_name]):
            put(at, 0.0 if i else 1.0)
        w = dequant(type_name, raw)
        if len(SCALES[type_name]) > 1:  # the minimum takes the mean away, in K-quants on average
            unit = 1.0 if type_name == "Q5_1" else 7.5 if type_name == "Q2_K" else 31.5
            low = w.mean() / unit * (-1 if type_name == "Q5_1" else 1)
            put(SCALES[type_name][1], low)
            w = dequant(type_name, raw)
            put(SCALES[type_name][1], low * spread / w.std())
        put(SCALES[type_name][0], spread / w.std())
        self.tensors[name] = Tensor(name, type_name, shape, raw.reshape(-1))

    def write(self, path):
        align = self.meta.get("general.alignment", ALIGN)
        head = [struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.meta_raw))]
        head += [_pack(STRING, key) + raw for key, raw in self.meta_raw.items()]
        offset = 0
        for t in self.tensors.values():
            head.append(_pack(STRING, t.name) + struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *t.shape[::-1]))
            head.append(struct.pack("<IQ", TYPES[t.type][0], offset))
            offset += (len(t.raw) + align - 1) // align * align
        head = b"".join(head)
        with open(path, "wb") as out:
            out.write(head + bytes(-len(head) % align))
            for t in self.tensors.values():
                out.write(t.raw.tobytes())
                out.write(bytes(-len(t.raw) % align))


def _pack(kind, value):
    if kind == STRING:
        text = value.encode("utf-8", "surrogateescape")
        return struct.pack("<Q", len(text)) + text
    return struct.pack("<" + SCALAR[kind], value)


# ---- blocks to numbers ----------------------------------------------------------------------------------


def dequant(type_name, raw):
    """uint8 [..., bytes of a row] to float64 [..., values of a row]; no rounding anywhere."""
    lead = raw.shape[:-1]
    if type_name == "F32":
        return raw.copy().view("<f4").astype(np.float64)
    if type_name == "F16":
        return raw.copy().view("<f2").astype(np.float64)
    if type_name == "BF16":
        return (raw.copy().view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    _, block, size = TYPES[type_name]
    b = raw.reshape(*lead, -1, size)
    half = lambda at: b[..., at:at + 2].copy().view("<f2").astype(np.float64)
    nibbles = lambda at: np.concatenate([b[..., at:at + 16] & 15, b[..., at:at + 16] >> 4], axis=-1)
    # 32 bytes hold four runs of 32 values, two bits each
    pairs = lambda qs: (qs.reshape(*b.shape[:-1], 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None] & 3).reshape(*b.shape[:-1], 256)
    if type_name == "Q4_0":
        out = (nibbles(2).astype(np.float64) - 8) * half(0)
    elif type_name == "Q4_1":
        out = nibbles(4) * half(0) + half(2)
    elif type_name == "Q5_0":
        high = np.unpackbits(b[..., 2:6], axis=-1, bitorder="little")
        out = ((nibbles(6) | high << 4).astype(np.float64) - 16) * half(0)
    elif type_name == "Q5_1":
        high = np.unpackbits(b[..., 4:8], axis=-1, bitorder="little")
        out = (nibbles(8) | high << 4) * half(0) + half(2)
    elif type_name == "Q8_0":
        out = b[..., 2:].view(np.int8) * half(0)
    elif type_name == "Q2_K":
        scale = np.repeat(b[..., :16], 16, -1)
        out = half(80) * (scale & 15) * pairs(b[..., 16:80]) - half(82) * (scale >> 4)
    elif type_name == "Q3_K":
        high = b[..., None, :32] >> np.arange(8)[:, None] & 1  # bit j of byte l: block j, value l
        code = pairs(b[..., 32:96]) + 4.0 * high.reshape(*b.shape[:-1], 256) - 4
        s = b[..., 96:108]
        low = np.concatenate([s[..., :8] & 15, s[..., :8] >> 4], -1)
        top = (s[..., None, 8:] >> np.array([0, 2, 4, 6])[:, None] & 3).reshape(*b.shape[:-1], 16)
        out = half(108) * (np.repeat(low | top << 4, 16, -1).astype(np.float64) - 32) * code
    elif type_name in ("Q4_K", "Q5_K"):
        s = b[..., 4:16]
        scale = np.concatenate([s[..., :4] & 63, s[..., 8:] & 15 | s[..., :4] >> 6 << 4], -1)
        low = np.concatenate([s[..., 4:8] & 63, s[..., 8:] >> 4 | s[..., 4:8] >> 6 << 4], -1)
        qs = b[..., -128:]
        code = np.stack([qs & 15, qs >> 4], -2)  # of all 128 bytes: the nibbles side by side
        code = code.reshape(*b.shape[:-1], 2, 4, 32).swapaxes(-2, -3).reshape(*b.shape[:-1], 8, 32)
        if type_name == "Q5_K":
            code = code | (b[..., None, 16:48] >> np.arange(8)[:, None] & 1) << 4
        out = (half(0) * scale)[..., None] * code - (half(2) * low)[..., None]
        out = out.reshape(*b.shape[:-1], 256)
    elif type_name == "IQ4_NL":
        out = IQ4_LEVELS[nibbles(2)] * half(0)
    elif type_name == "IQ4_XS":
        qs = b[..., 8:].reshape(*b.shape[:-1], 8, 16)
        low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], -1).reshape(*b.shape[:-1], 8)
        top = (b[..., 2:4, None] >> np.array([0, 2, 4, 6]) & 3).reshape(*b.shape[:-1], 8)
        scale = half(0) * ((low | top << 4).astype(np.float64) - 32)
        out = (scale[..., None] * IQ4_LEVELS[np.concatenate([qs & 15, qs >> 4], -1)]).reshape(*b.shape[:-1], 256)
    elif type_name == "TQ2_0":
        out = half(64) * (pairs(b[..., :64]).astype(np.float64) - 1)
    elif type_name == "TQ1_0":
        trits = lambda v, n: ((v[..., None, :] * np.array([1, 3, 9, 27, 81][:n], np.uint8)[:, None]).astype(np.uint16)
                              * 3 >> 8).reshape(*b.shape[:-1], -1)
        code = np.concatenate([trits(b[..., :32], 5), trits(b[..., 32:48], 5), trits(b[..., 48:52], 4)], -1)
        out = half(52) * (code.astype(np.float64) - 1)
    else:  # Q6_K: halves of 128, each four runs of 32
        low, high = b[..., :128].reshape(*b.shape[:-1], 2, 2, 32), b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
        code = np.concatenate([low & 15, low >> 4], -2) | (high >> np.array([0, 2, 4, 6])[:, None] & 3) << 4
        scale = np.repeat(b[..., 192:208].view(np.int8).astype(np.float64), 16, -1)
        out = half(208) * scale * (code.reshape(*b.shape[:-1], 256).astype(np.float64) - 32)
    return out.reshape(*lead, -1)


# ---- numbers to blocks: the rounding rules of the usual converters, computed in f32 as they do ----------


def quant(type_name, values):
    """[..., values of a row] to uint8 [..., bytes of a row]."""
    x = np.ascontiguousarray(values, np.float32)
    if type_name == "F32":
        return x.astype("<f4").view(np.uint8)
    if type_name == "F16":
        return x.astype("<f2").view(np.uint8)
    if type_name == "BF16":
        u = x.view(np.uint32)
        return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)
    lead = x.shape[:-1]
    x = x.reshape(*lead, -1, 32)
    one = np.float32(1)
    half = lambda d: d.astype("<f2").view(np.uint8)
    inverse = lambda d: np.divide(one, d, out=np.zeros_like(d), where=d != 0)
    pack = lambda q: q[..., :16] | q[..., 16:] << 4
    if type_name == "Q4_0":
        at = np.argmax(np.abs(x), axis=-1)[..., None]
        d = np.take_along_axis(x, at, -1) / np.float32(-8)
        q = np.minimum(15, (x * inverse(d) + np.float32(8.5)).astype(np.uint8))
        out = [half(d), pack(q)]
    elif type_name == "Q4_1":
        low = x.min(-1, keepdims=True)
        d = (x.max(-1, keepdims=True) - low) / np.float32(15)
        q = np.minimum(15, ((x - low) * inverse(d) + np.float32(0.5)).astype(np.uint8))
        out = [half(d), half(low), pack(q)]
    elif type_name == "Q8_0":
        d = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        y = x * inverse(d)
        q = np.trunc(y + np.copysign(np.float32(0.5), y)).astype(np.int8)  # half away from zero
        out = [half(d), q.view(np.uint8)]
    else:
        raise ValueError(f"no writer for {type_name}")
    return np.concatenate(out, axis=-1).reshape(*lead, -1)
