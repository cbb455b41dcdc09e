"""/v1/embeddings: a tiny model of Qwen3-Embedding's shape through the official package, bit for bit what `ingle embed`
prints, alone and in a batch, beside a chat; a plain model when it is asked to; refusals that name the field."""
import base64
import json
import shutil
import subprocess
import threading

import numpy as np
import openai
import pytest
import requests

from conftest import ENDLESS, ROOT, model_path, program_path

TINY = ROOT / "tests" / "golden" / "tiny" / "qwen3_emb-0.08-bf16"
END = "<|endoftext|>"
TEXTS = ["A cat sits on the mat.", "a", "Größe 日本", "x" * 150, "The cat sat on a mat.", "one two three"]


def byte_letters():
    """The letters that byte-level vocabularies write bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


@pytest.fixture(scope="module")
def vector_model(tmp_path_factory):
    """The committed config with a vocabulary of bytes and random weights: a bare model without a head."""
    home = tmp_path_factory.mktemp("emb") / "tiny-embedding"
    home.mkdir()
    config = json.loads((TINY / "config.json").read_text())
    old, config["vocab_size"] = config["vocab_size"], 258
    config["tie_word_embeddings"] = False
    config["bos_token_id"], config["eos_token_id"], config["pad_token_id"] = None, 256, 256
    (home / "config.json").write_text(json.dumps(config))
    rng, at, head, data = np.random.default_rng(7), 0, {}, []
    width, ffn, heads, kv, dim = (config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads",
                                                      "num_key_value_heads", "head_dim"))
    shapes = {"embed_tokens.weight": (258, width), "norm.weight": (width,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in {
            "input_layernorm": (width,), "post_attention_layernorm": (width,), "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,), "self_attn.q_proj": (heads * dim, width), "self_attn.k_proj": (kv * dim, width),
            "self_attn.v_proj": (kv * dim, width), "self_attn.o_proj": (width, heads * dim), "mlp.gate_proj": (ffn, width),
            "mlp.up_proj": (ffn, width), "mlp.down_proj": (width, ffn)}.items()}
    assert old != 258
    for name, shape in shapes.items():
        values = 1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 0.15 * rng.standard_normal(shape)
        raw = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    (home / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
    vocab = {letter: i for i, letter in enumerate(byte_letters())} | {END: 256, "<|spare|>": 257}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    (home / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for t, i in vocab.items() if i >= 256],
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": []}}))
    (home / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "pad_token": END}))
    return str(home)


@pytest.fixture(scope="module")
def vectors(vector_model):
    from conftest import Server
    s = Server("--threads", "2", model=vector_model)
    yield s
    assert s.stop() == 0


def told(model, *words):
    """What `ingle embed` prints."""
    run = subprocess.run([program_path(), "embed", model, *words], capture_output=True, check=True, timeout=120)
    return [np.array(d["embedding"], np.float32) for d in json.loads(run.stdout)["data"]]


def asked(server, **body):
    r = server.post("/v1/embeddings", body)
    assert r.status_code == 200, r.text
    data = r.json()["data"]
    assert [d["index"] for d in data] == list(range(len(data))) and {d["object"] for d in data} == {"embedding"}
    return [np.array(d["embedding"], np.float32) for d in data]


def same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert x.shape == y.shape and x.tobytes() == y.tobytes()


def test_the_package_gets_the_vectors_of_the_program(vectors, vector_model):
    want = told(vector_model, *TEXTS)
    client = openai.OpenAI(base_url=vectors.url + "/v1", api_key="none")
    for how in ("float", "base64", openai.NOT_GIVEN):  # the package's own default is base64
        r = client.embeddings.create(model="any", input=TEXTS, encoding_format=how)
        got = [np.frombuffer(base64.b64decode(d.embedding), "<f4") if isinstance(d.embedding, str)
               else np.array(d.embedding, np.float32) for d in r.data]
        same(got, want)
        n = sum(len(t.encode()) + 1 for t in TEXTS)
        assert r.usage.prompt_tokens == r.usage.total_tokens == n and r.object == "list"
    assert len({v.tobytes() for v in want}) == len(TEXTS)  # or equality would say nothing
    assert all(abs(float(np.dot(v.astype(float), v.astype(float))) - 1) < 1e-6 for v in want)
    one = client.embeddings.create(model="any", input=TEXTS[0], dimensions=40)
    assert len(one.data) == 1 and len(one.data[0].embedding) == 40


def test_alone_in_a_batch_as_ids_and_shortened_the_bits_are_the_same(vectors, vector_model):
    want = told(vector_model, *TEXTS)
    for text, v in zip(TEXTS, want):
        same(asked(vectors, input=text), [v])
        ids = vectors.post("/tokenize", {"content": text}).json()["tokens"]
        same(asked(vectors, input=ids), [v])
        same(asked(vectors, input=[ids + [256], ids]), [v, v])
    same(asked(vectors, input=TEXTS * 40), want * 40)
    same(asked(vectors, input=TEXTS, dimensions=33), told(vector_model, *TEXTS, "--dimensions", "33"))
    r = vectors.post("/embeddings", {"input": "a", "model": "gpt"})
    assert r.headers["x-ingle-model-substituted"] == "1" and r.json()["model"] == "tiny-embedding"


def test_a_query_has_its_task_before_it(vectors, vector_model):
    plain = asked(vectors, input="cats")
    task = asked(vectors, input="cats", instruction="Find cats.")
    same(task, told(vector_model, "cats", "--instruct", "Find cats."))
    same(task, asked(vectors, input="Instruct: Find cats.\nQuery:cats"))
    query = asked(vectors, input="cats", input_type="query")
    assert len({v[0].tobytes() for v in (plain, task, query)}) == 3
    same(plain, asked(vectors, input="cats", input_type="document"))


@pytest.mark.parametrize("body,param,code,words", [
    ({}, "input", "missing_required_parameter", "missing"),
    ({"input": ""}, "input", "empty_prompt", "empty"),
    ({"input": []}, "input", "empty_prompt", "empty"),
    ({"input": ["a", ""]}, "input", "empty_prompt", "element 1"),
    ({"input": ["a", [1]]}, "input", "invalid_value", "element 1"),
    ({"input": [[1], []]}, "input", "empty_prompt", "element 1"),
    ({"input": [1, -2]}, "input", "invalid_value", "element 1"),
    ({"input": [1, 258]}, "input", "invalid_value", "token id 258, the vocabulary has 258"),
    ({"input": 7}, "input", "invalid_value", "array"),
    ({"input": {"a": 1}}, "input", "invalid_value", "array"),
    ({"input": ["a"] * 2049}, "input", "invalid_value", "2049 texts; at most 2048"),
    ({"input": "x" * 600}, "input", "context_length_exceeded", "601 tokens and the context holds 512; shorten it by 89"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value", "int8"),
    ({"input": "a", "input_type": "passage"}, "input_type", "invalid_value", "passage"),
    ({"input": "a", "dimensions": 31}, "dimensions", "invalid_value", "31, limit 32..64"),
    ({"input": "a", "dimensions": 65}, "dimensions", "invalid_value", "65, limit 32..64"),
    ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value", "dimensions"),
    ({"input": "a", "truncate": 1}, "truncate", "invalid_value", "truncate")])
def test_refusals_name_the_field_and_the_bound(vectors, body, param, code, words):
    r = vectors.post("/v1/embeddings", body)
    e = r.json()["error"]
    assert r.status_code == 400 and (e["param"], e["code"]) == (param, code) and words in e["message"], r.text


def test_a_folder_that_says_how_it_pools_needs_no_option_and_keeps_its_tokens(vectors, vector_model, start_server, tmp_path):
    home = tmp_path / "tied"
    shutil.copytree(vector_model, home)
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    (home / "1_Pooling").mkdir()
    (home / "1_Pooling" / "config.json").write_text(json.dumps({
        "word_embedding_dimension": config["hidden_size"], "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False,
        "pooling_mode_lasttoken": True}))
    s = start_server("--threads", "1", model=str(home))
    same(asked(s, input=TEXTS), asked(vectors, input=TEXTS))
    assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200


def test_truncate_keeps_the_beginning_and_the_end_token(vectors):
    long = "abcdefgh" * 100
    same(asked(vectors, input=long, truncate=True), asked(vectors, input=long[:511]))


def test_a_model_without_a_head_says_so_to_a_chat(vectors):
    r = vectors.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
    assert r.status_code == 400 and "no head" in r.json()["error"]["message"]
    assert vectors.get("/v1/models").json()["data"][0]["embeddings"] is True
    assert "POST /v1/embeddings" in vectors.get("/v1").json()["endpoints"]
    asked(vectors, input="a")


def test_clients_that_leave_take_their_texts_with_them(vectors):
    want = asked(vectors, input=TEXTS)
    for _ in range(5):
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(vectors.url + "/v1/embeddings", json={"input": ["y" * 500] * 2048}, timeout=0.2)
    vectors.wait_idle()
    same(asked(vectors, input=TEXTS), want)


def test_a_plain_model_gives_vectors_when_it_is_asked_to_and_goes_on_with_its_chats(server, start_server):
    r = server.post("/v1/embeddings", {"input": "a"})
    assert r.status_code == 400 and r.json()["error"]["code"] == "embeddings_not_supported"
    assert "--embeddings" in r.json()["error"]["message"]
    alone = server.chat(ENDLESS, max_tokens=40).json()["choices"][0]["message"]["content"]
    last = start_server("--embeddings", "last", "--ctx", "512")
    same(asked(last, input=TEXTS), told(model_path(), *TEXTS))
    got = {}
    t = threading.Thread(target=lambda: got.update(last.chat(ENDLESS, max_tokens=40).json()))
    t.start()
    beside = asked(last, input=TEXTS * 3)
    t.join()
    assert got["choices"][0]["message"]["content"] == alone
    same(beside, told(model_path(), *TEXTS) * 3)
    assert last.stop() == 0
    mean = start_server("--embeddings", "mean", "--ctx", "512")
    pooled = asked(mean, input=TEXTS)
    assert all(a.tobytes() != b.tobytes() for a, b in zip(pooled, beside))
    same(asked(mean, input=TEXTS[3]), pooled[3:4])
    assert mean.chat(ENDLESS, max_tokens=40).json()["choices"][0]["message"]["content"] == alone
