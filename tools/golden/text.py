#!/usr/bin/env python3
"""Natural prose for evaluation, taken from installed packages, as token ids.

    text.py MODEL --tokens 4096 [--source python|manpages] > ids.txt

python:   the language reference that ships with python3 (pydoc_data/topics.py): always there.
manpages: section 7 of the package `manpages`.
Only paragraphs that read as prose are kept, in a fixed order, so the same package version gives the same
ids; the hash printed on stderr says whether it did. Nothing of the text is kept in this repository.
"""
import argparse
import gzip
import hashlib
import importlib
import os
import re
import subprocess
import sys

import ggufio


def is_prose(paragraph):
    words = paragraph.split()
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    return len(words) >= 25 and paragraph[-1] in ".:" and letters > 0.9 * len(paragraph)


def python_paragraphs():
    topics = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            if not paragraph.startswith(" "):
                yield " ".join(paragraph.split())


def manpage_paragraphs():
    listed = subprocess.run(["dpkg", "-L", "manpages"], capture_output=True, text=True).stdout.split()
    files = sorted(f for f in listed if re.fullmatch(r"/usr/share/man/man7/[^/]*\.7\.gz", f) and os.path.isfile(f))
    if not files:
        sys.exit("text.py: no pages of section 7; install the package manpages")
    for path in files:
        words = []
        for line in gzip.open(path, "rt", encoding="utf-8", errors="replace"):
            macro = re.match(r"\.([A-Z]+)\s*(.*)", line)
            if macro and macro[1] in ("B", "I", "BR", "IR", "BI", "IB", "RB", "RI"):
                parts = re.findall(r'"[^"]*"|\S+', macro[2])
                line = ("" if len(macro[1]) == 2 else " ").join(part.strip('"') for part in parts)
            elif line[:1] in ".'":
                yield " ".join(words)
                words = []
                continue
            line = re.sub(r"\\f[A-Z]|\\[&|/]", "", line)
            line = re.sub(r"\\\(.{2}|\\\[.*?\]", " ", line.replace("\\-", "-").replace("\\(aq", "'"))
            words += line.split()
        yield " ".join(words)


SOURCES = {"python": python_paragraphs, "manpages": manpage_paragraphs}


def prose(source):
    seen = set()
    for paragraph in SOURCES[source]():
        if paragraph and paragraph not in seen and is_prose(paragraph):
            seen.add(paragraph)
            yield paragraph


def tokenizer(meta):
    """The byte-level BPE that a GGUF of pre type smollm or gpt-2 describes, run by the tokenizers package."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: i for i, token in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if meta.get("tokenizer.ggml.pre") == "smollm" else []
    t.pre_tokenizer = pre_tokenizers.Sequence(digits + [pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    return t


def token_ids(model_path, n_tokens, source="python", skip=0):
    """n_tokens ids of prose after the first `skip`."""
    t = tokenizer(ggufio.File(model_path).meta)
    ids = []
    for paragraph in prose(source):
        ids += t.encode(paragraph + "\n\n").ids
        if len(ids) >= skip + n_tokens:
            return ids[skip:skip + n_tokens]
    raise SystemExit(f"text.py: only {len(ids)} tokens of prose in source {source}, {skip + n_tokens} asked for")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--skip", type=int, default=0)
    p.add_argument("--source", choices=sorted(SOURCES), default="python")
    a = p.parse_args()
    line = " ".join(map(str, token_ids(a.model, a.tokens, a.source, a.skip)))
    print(line)
    print(f"{a.tokens} tokens of {a.source}, sha256 {hashlib.sha256(line.encode()).hexdigest()[:16]}", file=sys.stderr)


if __name__ == "__main__":
    main()
