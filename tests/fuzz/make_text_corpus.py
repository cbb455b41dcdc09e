#!/usr/bin/env python3
"""Writes the seed corpora corpus-tokenizer/ and corpus-template/ beside this file. Run it again after a change
here or to tests/text/templates.py; what fuzzing found is kept as found-*."""
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "text"))
from templates import TEMPLATES  # noqa: E402


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
    **{f"pre-{i}": tokenizer(WORDS, MERGES, TEXT, flags=1 | i << 1, roles=(4, 4, 255, 255, 6, 5)) for i in range(5)},
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
    "corpus-template": {name.replace(" ", "-"): (source + "\0" + CONTENT).encode()
                        for name, source in {**TEMPLATES, **HOSTILE}.items()},
}.items():
    (HERE / folder).mkdir(exist_ok=True)
    for name, data in files.items():
        (HERE / folder / name).write_bytes(data)
