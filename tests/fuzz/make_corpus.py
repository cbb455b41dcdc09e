#!/usr/bin/env python3
"""Writes the seed corpora corpus-gguf/, corpus-safetensors/, corpus-json/ and corpus-snapshot/, and a few recipes for the targets that
build files themselves, beside this file: small files, each with one thing that a parser may trip over. Run it again after a change here; what fuzzing found is kept as found-*."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v & (2**64 - 1))


def string(s):
    b = s if isinstance(s, bytes) else s.encode()
    return u64(len(b)) + b


def key(name, kind, value):
    return string(name) + u32(kind) + value


def strings(items):
    return u32(STRING) + u64(len(items)) + b"".join(map(string, items))


def tensor(name, dims, kind, offset):
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(keys, tensors, data, version=3, align=32, n_keys=None, n_tensors=None):
    head = b"GGUF" + u32(version)
    head += u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % align) + bytes(i & 255 for i in range(data))


ARCH = key("general.architecture", STRING, string("llama"))
ALIGN = key("general.alignment", U32, u32(64))
VOCAB = key("tokenizer.ggml.tokens", ARRAY, strings(["<s>", "a", "\u00e9", ""]))
TYPES = key("tokenizer.ggml.token_type", ARRAY, u32(I32) + u64(4) + bytes(16))
FLAGS = key("tokenizer.ggml.add_bos_token", BOOL, b"\1")
BASE = key("llama.rope.freq_base", F32, struct.pack("<f", 1e4))
TWO = [tensor("a", [32, 2], 3, 0), tensor("b", [8], 0, 64)]
BIG = [2**31, 2**32 - 1, 2**63, 2**64 - 1]

files = {
    "good-v3": gguf([ARCH, VOCAB, TYPES, FLAGS, BASE], TWO, 96),
    "good-v2": gguf([ARCH], TWO, 96, version=2),
    "good-align64": gguf([ARCH, ALIGN], TWO, 96, align=64),
    "good-empty": gguf([], [], 0),
    "good-quantized": gguf([ARCH], [tensor(f"t{k}", [256], k, 512 * i) for i, k in
                                    enumerate([0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39, 40])], 9216),
    "overlap": gguf([], [tensor("a", [32, 2], 3, 0), tensor("b", [8], 0, 32)], 96),
    "same-name": gguf([], [tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)], 96),
    "same-key": gguf([ARCH, ARCH], [], 0),
    "nul-key": gguf([key(b"a\0b", U32, u32(1))], [], 0),
    "bad-utf8": gguf([key(b"a\xff", U32, u32(1))], [], 0),
    "nested-array": gguf([key("k", ARRAY, (u32(ARRAY) + u64(1)) * 40)], [], 0),
    "unknown-kind": gguf([key("k", 77, b"")], [], 0),
    "unknown-type": gguf([], [tensor("a", [32], 99, 0)], 96),
    "split": gguf([key("split.count", U32, u32(3)), key("split.no", U32, u32(1))], [], 0),
    "past-end": gguf([], [tensor("a", [1024], 0, 0)], 96),
    "offset-wraps": gguf([], [tensor("a", [8], 0, 2**64 - 32)], 96),
    "dims-wrap": gguf([], [tensor("a", [4194305, 4194305, 211106198978564], 0, 0)], 96),
    "dims-0": gguf([], [tensor("a", [], 0, 0)], 96),
    "dims-5": gguf([], [tensor("a", [1] * 5, 0, 0)], 96),
    "not-blocks": gguf([], [tensor("a", [33], 8, 0)], 96),
    "big-endian": b"GGUF" + struct.pack(">I", 3) + bytes(16),
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}
for v in (0, 1, 3, 2**30):
    files[f"alignment-{v}"] = gguf([key("general.alignment", U32, u32(v))], [], 0)
for v in BIG:
    files[f"n-keys-{v}"] = gguf([ARCH], TWO, 96, n_keys=v)
    files[f"n-tensors-{v}"] = gguf([ARCH], TWO, 96, n_tensors=v)
    files[f"string-{v}"] = gguf([string("k") + u32(STRING) + u64(v) + b"abc"], [], 0)
    files[f"array-{v}"] = gguf([key("k", ARRAY, u32(I32) + u64(v) + bytes(8))], [], 0)
    files[f"strings-{v}"] = gguf([key("k", ARRAY, u32(STRING) + u64(v) + bytes(8))], [], 0)
for n in (0, 3, 7, 23, 40, 60, 100, 200):
    files[f"cut-{n}"] = files["good-v3"][:n]

texts = {
    "chat": b'{"model":"m","messages":[{"role":"user","content":"hi \\ud83d\\ude00"}],"stream":true,"seed":18446744073709551615}',
    "bom": b"\xef\xbb\xbf{}",
    "lone-high": b'["\\ud800", "\\ud800x", "\\ud83d\\ud83d\\ude00"]',
    "lone-low": b'["\\udc00\\\\ud800"]',
    "cut-escape": b'["\\ud8',
    "nul": b'["a\\u0000b", "a\x00b"]',
    "deep": b"[" * 17 + b"]" * 17,
    "deep-object": b'{"a":' * 17 + b"1" + b"}" * 17,
    "bracket-string": b'"' + b"[" * 40 + b'\\""',
    "duplicate": b'{"messages":1,"messages":null}',
    "numbers": b"[0,-0,1e400,1E-400,123456789012345678901234567890,1.5e3,-1]",
    "trailing": b"{} {}",
    "utf8": b'["\xed\xa0\x80","\xf5\x80\x80\x80","\xc0\x80","\xe2\x82"]',
    "literals": b"[true,false,null,nan,Infinity]",
    "comment": b"[1,/*x*/2,]",
    "empty": b"",
}


def safetensors(header, data, length=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return u64(len(head) if length is None else length) + head + bytes(i & 255 for i in range(data))


def one(dtype="F32", shape=(2, 3), at=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(at)}


S_TWO = {"__metadata__": {"format": "pt"}, "a": one(), "b": one("BF16", [4], [24, 32])}
tensors = {
    "good": safetensors(S_TWO, 32),
    "good-padded": safetensors(json.dumps(S_TWO).encode() + b"   ", 32),
    "good-empty": safetensors({}, 0),
    "good-scalar-and-nothing": safetensors({"s": one("I64", [], [0, 8]), "z": one("F32", [0, 5], [8, 8])}, 8),
    "overlap": safetensors({"a": one(), "b": one("F32", [1], [20, 24])}, 24),
    "hole": safetensors({"a": one(), "b": one("F32", [1], [28, 32])}, 32),
    "tail": safetensors({"a": one()}, 25),
    "cut": safetensors({"a": one()}, 23),
    "same-name": safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],'
                             b'"data_offsets":[1,2]}}', 2),
    "span": safetensors({"a": one(at=[0, 20])}, 20),
    "backwards": safetensors({"a": one(at=[24, 0])}, 24),
    "dtype": safetensors({"a": one("F4")}, 24),
    "wrap": safetensors({"a": one(shape=[2**32, 2**32], at=[0, 0])}, 0),
    "wrap-offset": safetensors({"a": one(at=[2**64 - 24, 2**64 - 1])}, 24),
    "nine-dims": safetensors({"a": one(shape=[1] * 9, at=[0, 4])}, 4),
    "negative": safetensors({"a": one(shape=[-2, 3])}, 24),
    "real": safetensors({"a": one(shape=[2.0, 3])}, 24),
    "list": safetensors(b"[[[[[[[[[[", 0),
    "metadata": safetensors({"__metadata__": {"a": 1}}, 0),
    "nul-name": safetensors(b'{"a\\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
}
for v in (0, 1, 2**31, 2**63, 2**64 - 1):
    tensors[f"length-{v}"] = safetensors(S_TWO, 32, length=v)

ONE, TWO_ = "one.safetensors", "two.safetensors"  # the shards that fuzz_snapshot.c writes


def index(weight_map, **more):
    return json.dumps({**more, "weight_map": weight_map}).encode()


indexes = {
    "good": index({"a": ONE, "b": ONE, "c": TWO_}, metadata={"total_size": 16}),
    "one-shard": index({"a": ONE, "b": ONE}),
    "wrong-shard": index({"a": ONE, "b": TWO_, "c": TWO_}),
    "not-named": index({"a": ONE, "c": TWO_}),
    "absent-tensor": index({"a": ONE, "b": ONE, "c": TWO_, "d": TWO_}),
    "absent-shard": index({"a": ONE, "b": ONE, "c": "three.safetensors"}),
    "stray": index({"a": "stray.safetensors", "b": ONE}),
    "up": index({"a": "../one.safetensors"}),
    "absolute": index({"a": "/etc/passwd"}),
    "dot": index({"a": "."}),
    "hidden": index({"a": ".one.safetensors"}),
    "nul": index({"a": "one.safetensors\0x"}),
    "not-text": index({"a": 1, "b": None}),
    "twice": b'{"weight_map":{"a":"one.safetensors","a":"one.safetensors","b":"one.safetensors"}}',
    "list": b'{"weight_map":["one.safetensors"]}',
    "empty-map": b'{"weight_map":{}}',
    "many": index({f"t{i}": f"s{i}.safetensors" for i in range(600)}),
    "no-map": b"{}",
    "null": b"null",
    "empty": b"",
}
frames = {"nothing": b"", "keys": bytes([8, 0] + [0] * 40), "tensors": bytes([0, 0, 6] + [2, 0, 1, 0, 1, 0, 1] * 12),
          "edges": bytes([4, 0, 4] + [230, 3, 240, 7, 251] * 20)}

for folder, items in (("corpus-gguf", files), ("corpus-safetensors", tensors), ("corpus-json", texts), ("corpus-snapshot", indexes),
                      ("corpus-gguf_frame", frames), ("corpus-safetensors_frame", frames), ("corpus-tokenizer_gguf", frames)):
    (HERE / folder).mkdir(exist_ok=True)
    for name, data in items.items():
        (HERE / folder / name).write_bytes(data)
