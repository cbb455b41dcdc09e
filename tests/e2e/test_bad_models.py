"""Models with one wrong value, at the program's door: an error that names the key, an exit code, never a signal or a hang.

The files are right in their framing; what is wrong is a number, a token or a weight.
"""
import importlib.util
import json
import math
import struct
import subprocess

import pytest

from conftest import ROOT, program_path

spec = importlib.util.spec_from_file_location("make_tiny", ROOT / "tests" / "torture" / "make_tiny.py")
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

CORRUPT = 6
U32, F32, U64 = 4, 6, 10


def generate(model, *more):
    return subprocess.run([program_path(), "generate", str(model), "--raw", "-p", "the land", "-n", "4", "--temperature", "0", *more],
                          capture_output=True, text=True, timeout=60)


def refused(run, *words):
    assert run.returncode in (4, CORRUPT), (run.returncode, run.stderr)
    assert run.stdout == "" and len(run.stderr.splitlines()) <= 3, run.stderr
    for word in words:
        assert word in run.stderr, run.stderr


def u32(name, v):
    return name, tiny.key(name, U32, struct.pack("<I", v))


def f32(name, v):
    return name, tiny.key(name, F32, struct.pack("<f", v))


def test_the_model_as_it_is_runs(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf")
    tiny.write_snapshot(tmp_path / "m")
    for model in ("m.gguf", "m"):
        run = generate(tmp_path / model)
        assert run.returncode == 0 and run.stdout.strip(), run.stderr


# What the message must name: the key, or what it sets where several keys are weighed together.
GGUF_SETTINGS = [
    (u32("llama.attention.head_count", 0), "head_count = 0"), (u32("llama.attention.head_count", 3), "head size 10"),
    (u32("llama.attention.head_count", 2**31), "head_count = 2147483648"), (u32("llama.attention.head_count_kv", 0), "head_count_kv = 0"),
    (u32("llama.attention.head_count_kv", 5), "2 heads over 5 kv heads"), (u32("llama.attention.key_length", 0), "key_length = 0"),
    (u32("llama.attention.key_length", 2**31), "key_length = 2147483648"), (u32("llama.attention.value_length", 8), "values of 8 dimensions"),
    (u32("llama.block_count", 0), "block_count = 0"), (u32("llama.block_count", 2), "blk.1.attn_norm.weight is missing"),
    (u32("llama.block_count", 2**31), "block_count = 2147483648"), (u32("llama.context_length", 0), "context_length = 0"),
    (u32("llama.embedding_length", 0), "embedding_length = 0"), (u32("llama.embedding_length", 2**32 - 1), "embedding_length = 4294967295"),
    (u32("llama.feed_forward_length", 0), "feed_forward_length = 0"), (u32("llama.rope.dimension_count", 7), "rope over 7"),
    (u32("llama.rope.dimension_count", 2**31), "dimension_count = 2147483648"), (u32("llama.expert_count", 8), "expert_count"),
    (("llama.block_count", tiny.key("llama.block_count", U64, struct.pack("<Q", 2**63))), "block_count = 9223372036854775808"),
    (("llama.block_count", tiny.key("llama.block_count", tiny.STRING, tiny.string("1"))), "llama.block_count"),
    (f32("llama.rope.freq_base", 0.0), "rope base 0"), (f32("llama.rope.freq_base", math.nan), "rope base nan"),
    (f32("llama.rope.freq_base", -1e4), "rope base -10000"), (f32("llama.attention.layer_norm_rms_epsilon", 0.0), "epsilon 0"),
    (f32("llama.attention.layer_norm_rms_epsilon", math.nan), "epsilon nan"), (f32("llama.attention.layer_norm_rms_epsilon", math.inf), "epsilon inf"),
    (("llama.attention.layer_norm_rms_epsilon", None), "layer_norm_rms_epsilon"), (("llama.block_count", None), "block_count"),
    (("llama.attention.head_count", None), "head_count"),
]


@pytest.mark.parametrize("key, word", GGUF_SETTINGS, ids=[f"{k[0].split('.')[-1]}, {w}" for k, w in GGUF_SETTINGS])
def test_a_gguf_setting_that_makes_no_sense_is_named(tmp_path, key, word):
    tiny.write_gguf(tmp_path / "m.gguf", [key])
    refused(generate(tmp_path / "m.gguf"), "m.gguf", word)


def tokens(change):
    words = list(tiny.VOCAB)
    change(words)
    return tiny.key("tokenizer.ggml.tokens", tiny.ARRAY, tiny.strings(words))


def put(i, word):
    def change(words):
        words[i] = word
    return change


def array(name, kind, code, values):
    return tiny.key(name, tiny.ARRAY, struct.pack(f"<IQ{len(values)}{code}", kind, len(values), *values))


N = len(tiny.VOCAB)
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
GGUF_TOKENIZERS = [
    ("an empty token", {TOKENS: tokens(put(5, ""))}, ["tokens[5] is empty"]),
    ("a token of a megabyte", {TOKENS: tokens(put(5, "x" * (1 << 20)))}, ["tokens[5]", "1048576 bytes, limit 4096"]),
    ("two tokens alike", {TOKENS: tokens(put(5, "!"))}, ["both \"!\""]),
    ("a merge of nothing", {"tokenizer.ggml.merges": tiny.key("tokenizer.ggml.merges", tiny.ARRAY, tiny.strings(["th zz"]))}, ["merges[0]"]),
    ("a merge of one", {"tokenizer.ggml.merges": tiny.key("tokenizer.ggml.merges", tiny.ARRAY, tiny.strings(["th"]))}, ["merges[0]"]),
    ("types of another length", {TYPES: array(TYPES, tiny.I32, "i", [1] * (N - 1))}, [str(N - 1), str(N)]),
    ("types that are strings", {TYPES: tiny.key(TYPES, tiny.ARRAY, tiny.strings(["1"] * N))}, ["token_type"]),
    ("a type of no kind", {TYPES: array(TYPES, tiny.I32, "i", [77] * N)}, ["77"]),
    ("an end beyond the tokens", dict([u32("tokenizer.ggml.eos_token_id", N)]), ["eos_token_id", str(N)]),
    ("more tokens than rows", {TOKENS: tokens(lambda w: w.append("zzz"))}, [str(N + 1), str(N)]),
    ("no tokens", {TOKENS: None}, [TOKENS]),
    ("tokens that are numbers", {TOKENS: array(TOKENS, tiny.I32, "i", [1] * N)}, [TOKENS]),
    ("an unknown model", {"tokenizer.ggml.model": tiny.key("tokenizer.ggml.model", tiny.STRING, tiny.string("brain"))}, ["brain"]),
    ("an unknown pre", {"tokenizer.ggml.pre": tiny.key("tokenizer.ggml.pre", tiny.STRING, tiny.string("klingon"))}, ["klingon"]),
]


@pytest.mark.parametrize("what, keys, words", GGUF_TOKENIZERS, ids=[c[0] for c in GGUF_TOKENIZERS])
def test_a_gguf_tokenizer_that_makes_no_sense_is_named(tmp_path, what, keys, words):
    tiny.write_gguf(tmp_path / "m.gguf", keys)
    refused(generate(tmp_path / "m.gguf"), *words)


@pytest.mark.parametrize("word", ["<0x-1>", "<0xZZ>", "<0x>", "<0x1FF>", "<0x 1>"])
def test_a_byte_token_that_names_no_byte_is_refused(tmp_path, word):
    """Of a vocabulary with byte tokens: 256 of them, marked as such by their type."""
    words = [f"<0x{i:02X}>" for i in range(256)] + ["\u2581", "the", "<s>", "</s>"]
    words += [f"w{i}" for i in range(N - len(words))]
    words[7] = word
    keys = {TOKENS: tiny.key(TOKENS, tiny.ARRAY, tiny.strings(words)), TYPES: array(TYPES, tiny.I32, "i", [6] * 256 + [1] * (N - 256)),
            "tokenizer.ggml.scores": array("tokenizer.ggml.scores", F32, "f", [0.0] * N), "tokenizer.ggml.merges": None,
            "tokenizer.ggml.model": tiny.key("tokenizer.ggml.model", tiny.STRING, tiny.string("llama"))}
    tiny.write_gguf(tmp_path / "m.gguf", keys)
    refused(generate(tmp_path / "m.gguf"), word)


CONFIGS = [("hidden_size", "32"), ("hidden_size", 0), ("hidden_size", -32), ("hidden_size", 32.5), ("hidden_size", 2**53 + 1), ("hidden_size", [32]),
           ("hidden_size", {}), ("num_hidden_layers", True), ("num_hidden_layers", 2**31), ("num_attention_heads", 0), ("num_attention_heads", "2"),
           ("num_key_value_heads", 0), ("head_dim", 0), ("head_dim", -16), ("rms_norm_eps", "1e-5"), ("rms_norm_eps", 0), ("rms_norm_eps", -1),
           ("vocab_size", 0), ("vocab_size", 1e300), ("max_position_embeddings", -1), ("rope_theta", 0), ("rope_theta", "big"),
           ("hidden_act", 5), ("model_type", 5), ("model_type", ""), ("rope_scaling", []), ("rope_scaling", "linear"), ("tie_word_embeddings", "yes"), ("eos_token_id", "end"), ("eos_token_id", -1),
           ("eos_token_id", [1, "a"]), ("hidden_size", None), ("num_hidden_layers", None), ("rms_norm_eps", None), ("model_type", None)]


@pytest.mark.parametrize("name, value", CONFIGS, ids=[f"{n}={json.dumps(v)[:24]}" for n, v in CONFIGS])
def test_a_setting_of_config_json_that_makes_no_sense_is_named(tmp_path, name, value):
    tiny.write_snapshot(tmp_path / "m", {name: value})
    refused(generate(tmp_path / "m"), "m", name)


WEIGHED = [({"num_attention_heads": 3}, "q_proj.weight is [32, 32], expected [48, 32]"), ({"head_dim": 7}, "head size 7"),
           ({"rope_scaling": {"rope_type": "linear"}}, "\"linear\" rope without factor"),
           ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope factor = 0"),
           ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral")]


@pytest.mark.parametrize("changes, word", WEIGHED, ids=[w for _, w in WEIGHED])
def test_settings_that_do_not_go_together_are_told(tmp_path, changes, word):
    tiny.write_snapshot(tmp_path / "m", changes)
    refused(generate(tmp_path / "m"), word)


@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "blk.0.attn_v.weight", "token_embd.weight"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_weight_that_is_no_number_ends_the_answer_with_an_error(tmp_path, start_server, name, number):
    body = next(b for n, _, _, _, b in tiny.values() if n == name)
    bad = struct.pack("<f", number) * (len(body) // 4)
    tiny.write_gguf(tmp_path / "m.gguf", bodies={name: bad})
    run = generate(tmp_path / "m.gguf")
    assert run.returncode not in (0, -11) and run.returncode > 0 and "finite" in run.stderr, (run.returncode, run.stderr)
    if name != "blk.0.ffn_down.weight":
        return
    server = start_server(model=str(tmp_path / "m.gguf"))
    for _ in range(2):
        a = server.post("/v1/completions", {"prompt": "the land", "max_tokens": 4})
        assert a.status_code == 500 and "non-finite" in a.json()["error"]["message"], a.text
    assert server.get("/health").status_code in (200, 503) and server.alive()
