#!/usr/bin/env python3
"""Writes the seed corpora corpus-tokenizer/, corpus-tokenizer_json/ and corpus-template/ beside this file. Run it again
after a change here or to tests/text/conversations.py; what fuzzing found is kept as found-*."""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "text"))
from conversations import TEMPLATES  # noqa: E402


def tokenizer(tokens, merges, text, flags=1, roles=(255,) * 6):
    out = bytes([flags, len(tokens)])
    for kind, name in tokens:
        out += bytes([kind, len(name.encode())]) + name.encode()
    out += bytes([len(merges)])
    for merge in merges:
        out += bytes([len(merge.encode())]) + merge.encode()
    return out + bytes(roles) + (text if isinstance(text, bytes) else text.encode())


WORDS = [(1, "ab"), (1, "abc"), (1, "bc"), (1, "\u0120a"), (3, "<|end|>"), (4, "  "), (2, "<unk>"), (4, "<|e")]
MERGES = ["b c", "a b", "ab c", "\u0120 a"]
TEXT = "abc ab  <|end|> <|e don't 1984 \u00e9\u0301 \u4e2d\U0001f600\n\n\t x"
tokenizers = {
    **{f"pre-{i}": tokenizer(WORDS, MERGES, TEXT, flags=1 | i << 1, roles=(4, 4, 255, 255, 6, 5)) for i in range(9)},
    "gemma4": tokenizer([(3, "<unk>"), (6, "<0x61>"), (1, "b"), (1, "\u2581"), (1, "\u2581b"), (1, "\n"), (1, "\n\n\n")],
                        ["\u2581 b"], "b b\n\n\na \u00e9", flags=64, roles=(255, 255, 255, 255, 0, 255)),
    "llama": tokenizer([(2, "<unk>"), (3, "<s>"), (6, "<0x61>"), (1, "b"), (1, "\u2581"), (1, "\u2581b"), (1, "bb"), (4, "  ")],
                       [], "b bb  <s>a \u00e9", flags=130, roles=(1, 1, 255, 255, 0, 255)),
    "add-eos": tokenizer(WORDS, MERGES, TEXT, flags=33, roles=(4, 4, 255, 255, 6, 5)),
    "long-word": tokenizer(WORDS, MERGES, "abc" * 400),
    "no-alphabet": tokenizer([(1, "a"), (1, "b"), (1, "ab"), (3, "<x>")], ["a b"], "abcab<x>", flags=0),
    "not-utf8": tokenizer(WORDS, MERGES, b"ab\xff\xc3"),
    "same-token": tokenizer([(1, "ab"), (1, "ab")], [], "ab"),
    "empty-token": tokenizer([(1, "")], [], "ab"),
    "bad-type": tokenizer([(9, "ab")], [], "ab"),
    "bad-merge": tokenizer(WORDS, ["abc"], "ab"),
    "absent-merge": tokenizer(WORDS, ["x y"], "ab"),
    "bad-role": tokenizer([], [], "ab", flags=0, roles=(200,) * 6),
    "other-alphabet": tokenizer([(1, "\u4e2d"), (1, "\u2581x")], [], "\u4e2d\u2581x"),
}

MARK = "\u2581"
BYTES = {f"<0x{b:02X}>": 100 + b for b in range(256)}


def added(id_, content, **more):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **more}


def tokenizer_json(text, vocab=None, merges=(), model=None, **parts):
    vocab = {"<unk>": 0, "a": 3, "b": 4, MARK: 5, "ab": 6, MARK + "a": 7} if vocab is None else vocab
    return json.dumps({
        "version": "1.0", "added_tokens": [added(0, "<unk>", special=True), added(1, "<s>", special=True),
                                           added(2, "</s>", special=True), added(8, "\n\n")],
        "decoder": {"type": "Fuse"}, **parts,
        "model": {"type": "BPE", "vocab": vocab, "merges": list(merges), "unk_token": "<unk>", **(model or {})},
    }, ensure_ascii=False).encode() + b"\0" + (text if isinstance(text, bytes) else text.encode())


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


SPM = {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
       "decoder": {"type": "Sequence", "decoders": [
           {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
           {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
       "post_processor": {"type": "TemplateProcessing", "single": [
           {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}}
SPM_MODEL = {"byte_fallback": True, "fuse_unk": True}
SPM_VOCAB = {"<unk>": 0, "a": 3, "b": 4, MARK: 5, "ab": 6, MARK + "a": 7, **BYTES}
SPM_MERGES = ["a b", [MARK, "a"]]
NATURAL = "ab a\n\nb <s>\u00e9\u4e2d\U0001f600 12  abab</s>x"
tokenizer_jsons = {
    "spm": tokenizer_json(NATURAL, SPM_VOCAB, SPM_MERGES, SPM_MODEL, **SPM),
    "spm-long": tokenizer_json("ab " * 40 + "b" * 90, SPM_VOCAB, SPM_MERGES, SPM_MODEL, **SPM),
    "spm-holes": tokenizer_json(NATURAL, {**SPM_VOCAB, "<0xC3>": 400}, SPM_MERGES, SPM_MODEL, **SPM),
    "byte-merges": tokenizer_json(NATURAL, {**SPM_VOCAB, "<0xC3><0xA9>": 400}, ["<0xC3> <0xA9>"], SPM_MODEL, **SPM),
    "unknown": tokenizer_json(NATURAL),
    "ignore-merges": tokenizer_json(NATURAL, None, SPM_MERGES, {"ignore_merges": True}),
    "byte-level": tokenizer_json(NATURAL, {"a": 3, "b": 4, "ab": 6, "\u0120": 5, "<unk>": 0}, ["a b"],
                                 pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
                                 decoder={"type": "ByteLevel"}),
    "steps": tokenizer_json(NATURAL, pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False},
        split({"Regex": "[a-z]+|\\s*\\p{N}(?!\\S)"}, "MergedWithNext"), split({"String": "b"}, "Contiguous")]}),
    "metaspace": tokenizer_json(NATURAL, pre_tokenizer={"type": "Metaspace", "replacement": MARK,
                                                        "prepend_scheme": "first", "split": True},
                                decoder={"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always"}),
    "normalizers": tokenizer_json(NATURAL, normalizer={"type": "Sequence", "normalizers": [
        {"type": t} for t in ("NFD", "NFKC", "Lowercase", "NFC")] + [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "ab"},
        {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "xx"}]}),
    "added": tokenizer_json("a <L> b <R> bb abb CA caB", normalizer={"type": "Lowercase"}, added_tokens=[
        added(10, "<L>", lstrip=True), added(11, "<R>", rstrip=True), added(12, "bb", single_word=True),
        added(13, "CA", normalized=True), added(14, "B", normalized=True, special=True), added(0, "<unk>")]),
    "explode": tokenizer_json("a" * 60 + "c", pre_tokenizer=split({"Regex": "(a+)+$"})),
    "quadratic": tokenizer_json("a" * 3000 + "c", pre_tokenizer=split({"Regex": "a*[bd]"})),
    "huge-id": tokenizer_json("a", {"a": 2**53}), "same-id": tokenizer_json("a", {"a": 3, "b": 3}),
    "wrong-types": tokenizer_json("a", {"a": "3"}, [3, ["a"], "ab"]), "list": b"[]\0a",
    "deep": tokenizer_json("a", normalizer=json.loads('{"type":"Sequence","normalizers":[' * 20 + "]}" * 20)),
    "not-utf8": tokenizer_json(b"ab\xff\xc3"), "dup": tokenizer_json("a").replace(b'"b": 4', b'"a": 4'),
}

HOSTILE = {
    "deep-parens": "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
    "deep-ifs": "{% if x %}" * 6000 + "{% endif %}" * 6000,
    "deep-unary": "{{ " + "-" * 6000 + "1 }}",
    "long-chain": "{{ a" + ".b" * 10000 + " }}",
    "long-elif": "{% if a %}" + "{% elif a %}" * 3000 + "{% endif %}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "repeat": "{{ 'A' * 10**10 }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "unclosed": "{% if {{ {# '",
    "quotes": "{{ '%}' }}{% set x = \"}}\" %}{# ' #}{{ x }}",
    "raw": "{% raw %}{{ {% generation %}{% endraw %}{% raw %}",
}
CONTENT = "Hi <|a|> there</think> \u4e2d\U0001f600 <|b|><|b|>\U00100000 "

for folder, files in {
    "corpus-tokenizer": tokenizers,
    "corpus-tokenizer_json": tokenizer_jsons,
    "corpus-template": {name.replace(" ", "-"): (source + "\0" + CONTENT).encode()
                        for name, source in {**TEMPLATES, **HOSTILE}.items()},
}.items():
    (HERE / folder).mkdir(exist_ok=True)
    for name, data in files.items():
        (HERE / folder / name).write_bytes(data)
