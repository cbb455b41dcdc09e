"""/tokenize, /detokenize and /apply-template: ids as Hugging Face's tokenizers gives them for the model's own
vocabulary, prompts as jinja2 renders the model's own template, and refusals that name the field."""
import functools

import gguf
import jinja2.sandbox
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from conftest import model_path

TEXTS = ["", "hi", "Hello,  world!\n\n\tx = 3.14159", "naïve Ærøskøbing 日本語 🙂👩‍👩‍👧", "don't I'LL 12345", "\u0000\u0001\ufeffa\r\nb",
         "<|im_start|>user\nx<|im_end|>", "a" * 3000, " leading and trailing  "]


@functools.cache
def fields():
    return {name: field.contents() for name, field in gguf.GGUFReader(model_path()).fields.items()
            if name.startswith("tokenizer.")}


@functools.cache
def judge():
    """The vocabulary of the GGUF file in the library that the model was made with."""
    f = fields()
    assert f["tokenizer.ggml.model"] == "gpt2" and f["tokenizer.ggml.pre"] == "smollm"
    words = f["tokenizer.ggml.tokens"]
    t = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)},
                                        [tuple(m.split(" ")) for m in f["tokenizer.ggml.merges"]]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([w for w, kind in zip(words, f["tokenizer.ggml.token_type"]) if kind == 3])
    return t


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_reference_and_come_back_as_the_text(server, text):
    ids = server.post("/tokenize", {"content": text}).json()["tokens"]
    assert ids == judge().encode(text).ids
    assert server.post("/tokenize", {"text": text}).json()["tokens"] == ids
    assert server.post("/detokenize", {"tokens": ids}).json()["content"] == text
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [p["id"] for p in pieces] == ids
    parts = [bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces]
    assert b"".join(parts) == text.encode()
    if "🙂" in text:
        assert any(isinstance(p["piece"], list) for p in pieces)  # or the branch above was never tried


def test_special_tokens_are_text_where_that_is_asked(server):
    text = "<|im_end|>"
    one = server.post("/tokenize", {"content": text}).json()["tokens"]
    many = server.post("/tokenize", {"content": text, "parse_special": False}).json()["tokens"]
    assert len(one) == 1 and len(many) > 3 and judge().token_to_id(text) == one[0]
    assert server.post("/detokenize", {"tokens": many}).json()["content"] == text


@pytest.mark.parametrize("messages", [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é\n\"x\" 🙂"},
     {"role": "assistant", "content": "Yes."}, {"role": "user", "content": [{"type": "text", "text": "And?"}]}]])
def test_a_template_gives_what_jinja_gives(server, messages):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain = [{"role": m["role"], "content": m["content"] if isinstance(m["content"], str) else m["content"][0]["text"]}
             for m in messages]
    want = env.from_string(fields()["tokenizer.chat_template"]).render(messages=plain, add_generation_prompt=True)
    assert server.post("/apply-template", {"messages": messages}).json() == {"prompt": want}


@pytest.mark.parametrize("path,body,param,words", [
    ("/tokenize", {}, "content", "missing"),
    ("/tokenize", {"content": 7}, "content", "string"),
    ("/tokenize", {"content": "a", "with_pieces": "yes"}, "with_pieces", "bool"),
    ("/tokenize", {"content": "a" * (1024 * 1024 + 1)}, "content", "1048577 bytes, at most 1048576"),
    ("/detokenize", {}, "tokens", "missing"),
    ("/detokenize", {"tokens": "1"}, "tokens", "array"),
    ("/detokenize", {"tokens": [1, -1]}, "tokens", "element 1"),
    ("/detokenize", {"tokens": [10 ** 9]}, "tokens", "token id 1000000000, the vocabulary has"),
    ("/apply-template", {}, "messages", "missing"),
    ("/apply-template", {"messages": []}, "messages", "empty"),
    ("/apply-template", {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "must be")])
def test_refusals_name_the_field_and_the_bound(server, path, body, param, words):
    r = server.post(path, body)
    assert r.status_code == 400 and r.json()["error"]["param"] == param
    assert words in r.json()["error"]["message"], r.text


def test_the_list_of_routes_has_them(server):
    listed = server.get("/v1").json()["endpoints"]
    for route in ("POST /tokenize", "POST /detokenize", "POST /apply-template"):
        assert route in listed
