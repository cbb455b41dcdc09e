#!/usr/bin/env python3
"""make_tiny.py FOLDER: a random llama of one layer, as tiny.gguf and as the snapshot tiny/, with a byte tokenizer and a chat template.
Only the standard library: the torture tests load it thousands of times, and each load must take a millisecond."""
import json
import pathlib
import random
import struct
import sys

WIDTH, FFN, HEADS, KV_HEADS, DIM, CTX = 32, 32, 2, 1, 16, 256
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
MERGES = ["t h", "th e", "a n", "\u0120 th"]
TEMPLATE = ("{% for m in messages %}<|user|>{{ m.content|trim }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def letters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


VOCAB = letters() + [m.replace(" ", "") for m in MERGES] + SPECIAL
END = VOCAB.index("<|end|>")


def tensors():
    """(GGUF name, snapshot name, rows, columns); one row: a norm."""
    yield "token_embd.weight", "model.embed_tokens.weight", len(VOCAB), WIDTH
    yield "output_norm.weight", "model.norm.weight", 1, WIDTH
    layer = [("attn_norm", "input_layernorm", 1, WIDTH), ("attn_q", "self_attn.q_proj", HEADS * DIM, WIDTH),
             ("attn_k", "self_attn.k_proj", KV_HEADS * DIM, WIDTH), ("attn_v", "self_attn.v_proj", KV_HEADS * DIM, WIDTH),
             ("attn_output", "self_attn.o_proj", WIDTH, HEADS * DIM), ("ffn_norm", "post_attention_layernorm", 1, WIDTH),
             ("ffn_gate", "mlp.gate_proj", FFN, WIDTH), ("ffn_up", "mlp.up_proj", FFN, WIDTH), ("ffn_down", "mlp.down_proj", WIDTH, FFN)]
    for gguf, hf, rows, cols in layer:
        yield f"blk.0.{gguf}.weight", f"model.layers.0.{hf}.weight", rows, cols


def values():
    rng = random.Random(7)
    for gguf, hf, rows, cols in tensors():
        base, spread = (1.0, 0.05) if rows == 1 else (0.0, 0.3)
        yield gguf, hf, rows, cols, struct.pack(f"<{rows * cols}f", *(rng.gauss(base, spread) for _ in range(rows * cols)))


def string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def key(name, kind, value):
    return string(name) + struct.pack("<I", kind) + value


def strings(items):
    return struct.pack("<IQ", STRING, len(items)) + b"".join(map(string, items))


def write_gguf(path, changes=(), bodies=()):
    """`changes`: name to the encoded key, or None to leave it out; `bodies`: GGUF name to a tensor's bytes. A test's own faults."""
    changes, bodies = dict(changes), dict(bodies)

    def number(name, v):
        return key(name, U32, struct.pack("<I", v))
    keys = [key("general.architecture", STRING, string("llama")), number("llama.block_count", 1), number("llama.context_length", CTX),
            number("llama.embedding_length", WIDTH), number("llama.feed_forward_length", FFN), number("llama.attention.head_count", HEADS),
            number("llama.attention.head_count_kv", KV_HEADS), key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
            key("tokenizer.ggml.model", STRING, string("gpt2")), key("tokenizer.ggml.pre", STRING, string("gpt-2")),
            key("tokenizer.ggml.tokens", ARRAY, strings(VOCAB)), key("tokenizer.ggml.merges", ARRAY, strings(MERGES)),
            key("tokenizer.ggml.token_type", ARRAY, struct.pack(f"<IQ{len(VOCAB)}i", I32, len(VOCAB), *(3 if t in SPECIAL else 1 for t in VOCAB))),
            number("tokenizer.ggml.eos_token_id", END), key("tokenizer.chat_template", STRING, string(TEMPLATE))]
    names = [k[8:8 + int.from_bytes(k[:8], "little")].decode() for k in keys]
    keys = [changes.pop(n, k) for n, k in zip(names, keys)] + list(changes.values())
    keys = [k for k in keys if k is not None]
    infos, data = b"", b""
    for name, _, rows, cols, body in values():
        body = bodies.get(name, body)
        dims = [cols] if rows == 1 else [cols, rows]
        infos += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(data))
        data += body + bytes(-len(body) % 32)
    n_tensors = sum(1 for _ in tensors())
    head = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(keys)) + b"".join(keys) + infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)


def write_snapshot(folder, changes=()):
    """`changes`: a setting of config.json to its value, or to None to leave it out."""
    folder.mkdir(exist_ok=True)
    header, data = {}, b""
    for _, name, rows, cols, body in values():
        header[name] = {"dtype": "F32", "shape": [cols] if rows == 1 else [rows, cols], "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    config = {"model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rms_norm_eps": 1e-5, "vocab_size": len(VOCAB),
              "max_position_embeddings": CTX, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": END}
    config = {k: v for k, v in {**config, **dict(changes)}.items() if v is not None}
    added = [{"id": VOCAB.index(t), "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for t in SPECIAL]
    tokenizer = {"version": "1.0", "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                           "fuse_unk": False, "byte_fallback": False, "vocab": {t: i for i, t in enumerate(VOCAB) if t not in SPECIAL},
                           "merges": MERGES}}
    for name, doc in (("config.json", config), ("tokenizer.json", tokenizer),
                      ("tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": TEMPLATE})):
        (folder / name).write_text(json.dumps(doc))


if __name__ == "__main__":
    home = pathlib.Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    write_gguf(home / "tiny.gguf")
    write_snapshot(home / "tiny")
