"""Tokenizers of real models, as tokenizer.json and as GGUF files, against the Hugging Face library: ids on
natural and odd text, decoding of random ids, what is put around a text.

INGLE_TEXT_ALL=1 takes all of them (`make check-tokenizers`), else a few. Where our GGUF and the library's JSON
differ on purpose, GGUF_ONLY and same_everywhere say so."""
import json
import os
import random
import re
import struct
import time
import unicodedata

import pytest
from tokenizers import Tokenizer

import corpus
import driver
import vocabularies

GEMMA_GGUF = "gemma-3-270m-q4_k_m.gguf"
CASES = ["gemma3", "gemma3 from GGUF", "qwen3", "llama3", "llama2"]
if os.environ.get("INGLE_TEXT_ALL"):
    CASES += [n for n in vocabularies.JSON if n not in CASES] + [f"{n} from GGUF" for n in vocabularies.GGUF]
# The converter made every <unusedN> and <mask> a control token; in tokenizer.json they are ordinary added tokens.
# So they are not printed, and in the text of a message they are characters. The two marks of images are the
# other way round: special there, user-defined here. All other ids are equal.
GGUF_ONLY = ("<unused", "<mask>", "<start_of_image>", "<end_of_image>")


class Pair:
    def __init__(self, case, folder):
        name = case.split()[0]
        doc = vocabularies.JSON[name]()
        if not doc:
            pytest.skip(f"the source of {name} is not in the cache: tools/fetch.py tokenizer {name}, or vocabularies")
        self.path, self.from_gguf, self.name = driver.tokenizer_json(name), "GGUF" in case, name
        if not self.path:
            self.path = folder / "tokenizer.json"
            self.path.write_text(json.dumps(doc), encoding="utf-8")
        self.theirs = Tokenizer.from_file(str(self.path))
        args = ["--json", str(self.path)]
        if self.from_gguf:
            args = [driver.cached("models", GEMMA_GGUF)] if name == "gemma3" else [str(folder / "model.gguf")]
            if not args[0]:
                pytest.skip("no Gemma in the cache: tools/fetch.py model gemma-3-270m")
            if name != "gemma3":
                vocabularies.to_gguf(doc, *vocabularies.GGUF[name], args[0])
        self.ours = driver.Driver(*args)

    def same_everywhere(self, text):
        """Not so texts that a GGUF file's own rules cut elsewhere: there a long s is no s, here 'S and 's are one; and of Gemma 2's
        blanks a GGUF file takes the longest run first, as its trainer did, where tokenizer.json joins 16 and 16."""
        if self.from_gguf and self.name == "gemma2":
            return not re.search("[ \u2581]{32}|\n{32}|\t{32}", text)
        return not self.from_gguf or self.name not in ("qwen3", "qwen35", "llama3", "minicpm5") or "'\u017f" not in text


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    p = Pair(request.param, tmp_path_factory.mktemp("tokenizer"))
    yield p
    p.ours.close()


def compare(pair, texts):
    n, texts = 0, [t for t in texts if pair.same_everywhere(t)]
    assert texts
    for at in range(0, len(texts), 512):
        part = texts[at:at + 512]
        for text, want in zip(part, pair.theirs.encode_batch(part, add_special_tokens=False)):
            got = pair.ours.encode(text, special=True)
            assert got == want.ids, f"{text[:200]!r}\n ours {got[:40]}\n want {want.ids[:40]}"
            n += len(got)
    return n


def test_natural_text_cut_anywhere_gives_the_same_ids(pair):
    texts = corpus.natural()
    assert sum(len(t.encode()) for t in texts.values()) >= 2_000_000
    print(sum(compare(pair, corpus.cut(text, kind)) for kind, text in texts.items()), "ids")


def test_odd_strings_give_the_same_ids(pair):
    names = [t.content for i, t in pair.theirs.get_added_tokens_decoder().items() if i < 262144 or not pair.from_gguf]
    rng = random.Random(7)
    odd = corpus.odd()
    assert len(odd) >= 5000
    odd += ["".join(rng.choice([*names, *(n[:-1] for n in names), *corpus.WORDS, *corpus.BLANKS])
                    for _ in range(rng.randint(1, 12))) for _ in range(2000)]
    assert len([s for s in odd if pair.same_everywhere(s)]) > 6000
    print(compare(pair, odd), "ids")


def test_long_runs_give_the_same_ids(pair):
    rng = random.Random(3)
    texts = corpus.runs(20_000)
    texts += [" " * n + "x" for n in range(1, 80)] + ["\u2581" * n + " a" for n in range(1, 80)]
    texts += ["".join(rng.choice("ab \u2581\n") for _ in range(3000)) for _ in range(20)]
    print(compare(pair, texts), "ids")


def test_a_difference_is_found(pair):
    """The control: one merge taken away, or another tokenizer, must not pass."""
    with open(pair.path, encoding="utf-8") as f:
        other = json.load(f)
    n = len(other["model"]["merges"])
    del other["model"]["merges"][n // 100:n // 50]
    theirs, pair.theirs = pair.theirs, Tokenizer.from_str(json.dumps(other))
    try:
        with pytest.raises(AssertionError):
            compare(pair, corpus.odd(500) + [corpus.natural()["english manual"][:100_000]])
    finally:
        pair.theirs = theirs


def test_random_ids_decode_to_the_same_text_at_once_and_in_steps(pair):
    rng = random.Random(11)
    n_vocab = pair.theirs.get_vocab_size()
    differ = {i for i, t in pair.theirs.get_added_tokens_decoder().items()
              if pair.from_gguf and t.content.startswith(GGUF_ONLY)}
    if pair.from_gguf:
        n_vocab -= 1  # <image_soft_token>, which has no row in the weights
    for _ in range(3000):
        ids = [i for i in (rng.randrange(n_vocab) for _ in range(rng.randint(0, 40)))
               if i not in differ and pair.theirs.id_to_token(i) is not None]
        want = pair.theirs.decode(ids, skip_special_tokens=True)
        got = pair.ours.decode(ids)
        assert pair.ours.decode(ids, in_steps=True) == got
        # A run of byte tokens that is not a character is a mark a byte there, a mark a maximal subpart here.
        if "\ufffd" not in want:
            assert got == want


def test_bytes_decode_to_characters_or_one_mark_for_each_maximal_subpart(pair):
    vocab = pair.theirs.get_vocab()
    if "<0x00>" not in vocab:
        pytest.skip("no byte tokens in this vocabulary")
    rng = random.Random(12)
    for _ in range(2000):
        data = b"x" + bytes(rng.choice([rng.randrange(256), rng.choice(b"\xe2\x96\x81\xf0\x9f\x98\x80\xc3\xa9a ")])
                            for _ in range(rng.randint(1, 20)))
        data = bytes(b for b in data if f"<0x{b:02X}>" in vocab)
        ids = [vocab[f"<0x{b:02X}>"] for b in data]
        assert pair.ours.decode(ids) == pair.ours.decode(ids, in_steps=True) == data.decode("utf-8", "replace")


def test_what_is_put_around_a_text_is_the_same_and_bos_never_comes_twice(pair):
    for text in ["", "a", "Hello, world", "\n", " x"]:
        assert pair.ours.encode_whole(text) == pair.theirs.encode(text).ids
    around = pair.theirs.encode("").ids
    if around:
        bos = pair.theirs.id_to_token(around[0])
        assert pair.ours.encode_whole(bos + "a") == pair.theirs.encode("a").ids


def test_a_megabyte_of_anything_is_no_hazard(pair):
    rng = random.Random(1)
    n = 1 << 20
    for text in [" " * n, "\n" * n, "a" * n, "\u2581" * (n // 3), "\U0003ffff" * (n // 4),
                 "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))]:
        start = time.monotonic()
        ids = pair.ours.ask(b"s", text.encode())
        print(f"{text[:1]!r}: {len(ids) // 4} ids, {time.monotonic() - start:.2f} s")
        if pair.ours.ask(b"d", ids).decode() != text:  # U+2581 is a blank in some vocabularies
            assert text[0] == "\u2581" and struct.unpack_from("<I", ids)


OWN = ["gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt", "qwen2", "qwen35"]


@pytest.mark.skipif(not os.environ.get("INGLE_TEXT_ALL"), reason="of make check-tokenizers")
@pytest.mark.parametrize("name", OWN)
def test_vocabularies_of_llama_cpp_give_the_ids_that_lie_beside_them(name):
    path = driver.cached("vocabularies", f"ggml-vocab-{name}.gguf.out")
    if not path:
        pytest.skip("no vocabularies in the cache: tools/fetch.py vocabularies")
    with open(path, encoding="utf-8") as f:
        want = [[int(i) for i in line.split()] for line in f.read().split("\n")[:-1]]
    with open(path[:-len("out")] + "inp", encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    assert len(want) <= len(texts) <= len(want) + 1 and len(want) > 40
    d = driver.Driver(path[:-len(".out")])
    for text, ids in zip(texts, want):
        if name == "qwen35" and unicodedata.normalize("NFC", text) != text:
            continue  # that program does not normalise, see docs/tokenizers.md
        assert d.encode(text, special=True) == ids, ascii(text)
    d.close()
