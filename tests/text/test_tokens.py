"""Ids and text equal to the Hugging Face tokenizers package: natural text, odd strings, long runs.

The reference is built from the same arrays of the same file, so that only the algorithms can differ."""
import json
import random

import pytest
from tokenizers import Tokenizer

import corpus
import driver

CONTROL = 3
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLIT_LLAMA = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {**BYTE_LEVEL, "use_regex": False}]}


# pre: (pre_tokenizer, normalizer, ignore_merges)
KINDS = {
    "smollm": ({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
               None, False),
    "gpt-2": (BYTE_LEVEL, None, False),
    "llama-bpe": (split(SPLIT_LLAMA), None, True),
    "qwen2": (split(SPLIT_LLAMA.replace("{1,3}", "")), {"type": "NFC"}, False),
}


def reference(metadata, pre, special):
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    pre_tokenizer, normalizer, ignore_merges = KINDS[pre]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, kind in enumerate(types) if kind == CONTROL and special]
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": ignore_merges, "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": metadata["tokenizer.ggml.merges"]}}))


@pytest.fixture(scope="session")
def plain(metadata):
    return reference(metadata, "smollm", special=False)


@pytest.fixture(scope="session")
def with_special(metadata):
    return reference(metadata, "smollm", special=True)


def compare(driver_, theirs, texts, special=False):
    """How many ids were compared; fails at the first text that differs."""
    n = 0
    for at in range(0, len(texts), 512):
        part = texts[at:at + 512]
        for text, want in zip(part, theirs.encode_batch(part, add_special_tokens=False)):
            got = driver_.encode(text, special)
            assert got == want.ids, f"{text[:200]!r}\n ours {got[:40]}\n want {want.ids[:40]}"
            n += len(got)
    return n


def test_natural_text_cut_anywhere_gives_the_same_ids(ours, plain, with_special, record_property):
    texts = corpus.natural()
    n_bytes = sum(len(t.encode()) for t in texts.values())
    assert n_bytes >= 2_000_000, f"only {n_bytes} bytes of text on this machine"
    n_ids = 0
    for kind, text in texts.items():
        n_ids += compare(ours, with_special, corpus.cut(text, kind), special=True)
        n_ids += compare(ours, plain, [text[:60_000]])
    record_property("ids", n_ids)
    print(f"{n_ids} ids, {n_bytes} bytes")


@pytest.mark.parametrize("special", [False, True])
def test_odd_strings_give_the_same_ids(ours, plain, with_special, special):
    print(compare(ours, with_special if special else plain, corpus.odd(), special), "ids")


def test_long_runs_give_the_same_ids(ours, plain):
    print(compare(ours, plain, corpus.runs()), "ids")


def test_every_character_gives_the_same_ids(ours, plain):
    """Each beside a letter, a digit and a blank; of the big uniform blocks one in sixteen."""
    uniform = [(0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x17000, 0x18CFF), (0x20000, 0x10FFFF)]
    texts = []
    for c in corpus.chars(lambda c: True):
        if ord(c) % 16 == 0 or not any(low <= ord(c) <= high for low, high in uniform):
            texts.append("a" + c + "1 " + c + "b")
    texts = ["\n".join(texts[i:i + 64]) for i in range(0, len(texts), 64)]
    print(compare(ours, plain, texts), "ids")


def test_a_difference_is_found(ours, metadata):
    """The control: held against another pre-tokenizer, the comparison must fail."""
    with pytest.raises(AssertionError):
        compare(ours, reference(metadata, "llama-bpe", special=False), corpus.odd(500))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_other_pre_tokenizers_on_the_same_vocabulary(metadata, pre, tmp_path):
    parts = {"model": "gpt2", "pre": pre, "tokens": metadata["tokenizer.ggml.tokens"],
             "types": metadata["tokenizer.ggml.token_type"], "merges": metadata["tokenizer.ggml.merges"]}
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(parts))
    theirs = reference(metadata, pre, special=False)
    d = driver.Driver("--parts", str(path))
    odd = corpus.odd()
    n = compare(d, theirs, odd)
    n += compare(d, theirs, corpus.runs(20_000))
    for kind, text in corpus.natural().items():
        n += compare(d, theirs, corpus.cut(text[:200_000], kind))
    d.close()
    print(n, "ids")


def test_random_ids_decode_to_the_same_text_at_once_and_in_steps(ours, with_special, metadata):
    rng = random.Random(11)
    n_vocab = len(metadata["tokenizer.ggml.tokens"])
    bytes_ = [i for i, t in enumerate(metadata["tokenizer.ggml.tokens"]) if len(t) == 1]  # halves of characters
    for _ in range(2000):
        pool = rng.choice([range(n_vocab), bytes_])
        ids = [rng.choice(pool) for _ in range(rng.randint(0, 40))]
        want = with_special.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids) == want
        assert ours.decode(ids, in_steps=True) == want


def known_bytes(metadata):
    """Bytes that the vocabulary has a token for; the others are dropped, as the reference drops them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in plain}
    letters.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in plain)})
    return {letters[t] for t in metadata["tokenizer.ggml.tokens"] if t in letters}


def test_text_survives_there_and_back(ours, metadata):
    known = known_bytes(metadata)
    texts = [text for text in corpus.odd(2000, seed=3) if known.issuperset(text.encode())]
    assert len(texts) > 500
    for text in texts:
        assert ours.decode(ours.encode(text)) == text
