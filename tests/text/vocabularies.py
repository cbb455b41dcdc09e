"""Tokenizers of real models in the two forms that we read: tokenizer.json and GGUF. One form is a file that
tools/fetch.py got, the other is made from it here, the way the converters of those projects make it.

    JSON[name]()   the document as a dict, or None where its source is not in the cache
    to_gguf(document, model, pre, path)
"""
import base64
import json
import os
import struct
import sys

import driver

sys.path.insert(0, os.path.join(driver.ROOT, "tools", "golden"))
import ggufio  # noqa: E402

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def later(letters, digits, marks):
    return SHORT + r"|[^\r\n\p{L}\p{N}]?" + letters + "+|" + digits + r"| ?[^\s" + marks + r"]+[\r\n]*|" + BLANKS


P_LLAMA3 = later(r"\p{L}", r"\p{N}{1,3}", r"\p{L}\p{N}")
P_QWEN = later(r"\p{L}", r"\p{N}", r"\p{L}\p{N}")
P_QWEN35 = later(r"[\p{L}\p{M}]", r"\p{N}", r"\p{L}\p{M}\p{N}")
P_MINICPM5 = later(r"\p{L}", r"\p{N}+", r"\p{L}\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
P_TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
            r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + BLANKS)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def letters_of_bytes():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return {**{b: chr(b) for b in plain},
            **{b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in plain)}}


def splits(*patterns):
    return {"type": "Sequence", "pretokenizers": [
        *({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns),
        {**BYTE_LEVEL, "use_regex": False}]}


def added(token, id, special=True):
    return {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special}


def around(bos, id):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos, "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}}}


def document(vocab, merges, added_tokens, **parts):
    # The library numbers added tokens itself when the vocabulary does not have them.
    vocab = {**vocab, **{a["content"]: a["id"] for a in added_tokens}}
    model = {"type": "BPE", "dropout": None, "unk_token": parts.pop("unk", None), "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": parts.pop("fuse_unk", False),
             "byte_fallback": parts.pop("byte_fallback", False), "ignore_merges": parts.pop("ignore_merges", False),
             "vocab": vocab, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": {**BYTE_LEVEL, "add_prefix_space": True}, **parts, "model": model}


# ---- sources ------------------------------------------------------------------------------------------------


def fetched(name):
    path = driver.tokenizer_json(name)
    if not path:
        return None
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def arrays(*names):
    """The metadata of a GGUF file in the cache, or None."""
    path = driver.cached(*names)
    return driver.read_gguf(path) if path else None


def from_arrays(meta, **parts):
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    marked = [added(t, i, kind == CONTROL) for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER)]
    merges = [m[:1 + m[1:].index(" ")] for m in meta["tokenizer.ggml.merges"]]
    pairs = [[left, m[len(left) + 1:]] for left, m in zip(merges, meta["tokenizer.ggml.merges"])]
    return document({t: i for i, t in enumerate(tokens)}, pairs, marked, **parts)


def smollm2():
    meta = arrays("models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}
    return meta and from_arrays(meta, pre_tokenizer=digits)


def qwen35():
    meta = arrays("vocabularies", "ggml-vocab-qwen35.gguf")
    return meta and from_arrays(meta, pre_tokenizer=splits(P_QWEN35), normalizer={"type": "NFC"})


MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
UNMARK = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]


def gemma4():
    meta = arrays("vocabularies", "ggml-vocab-gemma-4.gguf")
    return meta and from_arrays(
        meta, normalizer=MARKS, post_processor=around("<bos>", 2), unk="<unk>", fuse_unk=True, byte_fallback=True,
        decoder={"type": "Sequence", "decoders": UNMARK},
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})


def ways(piece, rank):
    """The pairs that make a piece, each half of them in `rank`: in the order of the halves' ranks."""
    halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
    return sorted(((a, b) for a, b in halves if a in rank and b in rank), key=lambda p: (rank[p[0]], rank[p[1]]))


def tekken():
    """Mistral's own file has bytes in the order of their merges."""
    path = driver.cached("tokenizers", "tekken", "tekken_240911.json")
    if not path:
        return None
    with open(path, encoding="utf-8") as f:
        theirs = json.load(f)
    n_special = theirs["config"]["default_num_special_tokens"]
    n_words = theirs["config"]["default_vocab_size"] - n_special
    words = [base64.b64decode(v["token_bytes"]) for v in theirs["vocab"][:n_words]]
    rank, letter = {w: i for i, w in enumerate(words)}, letters_of_bytes()
    spell = lambda w: "".join(letter[b] for b in w)
    merges = [[spell(a), spell(b)] for w in words for a, b in ways(w, rank)]
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
    special += [f"<SPECIAL_{i}>" for i in range(len(special), n_special)]
    return document({spell(w): i + n_special for w, i in rank.items()}, merges,
                    [added(t, i) for i, t in enumerate(special)], pre_tokenizer=splits(P_TEKKEN), ignore_merges=True,
                    post_processor=around("<s>", 1))


def fields(data):
    """(number, value) of a protobuf message: bytes, integers, raw 32-bit values."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            n = {2: varint, 5: lambda: 4, 1: lambda: 8}[tag & 7]()
            yield tag >> 3, data[at:at + n]
            at += n


def mistral():
    """A sentencepiece model: pieces with scores; merges are the ways to a piece, best score first."""
    path = driver.cached("tokenizers", "mistral", "mistral_instruct_tokenizer_240323.model.v3")
    if not path:
        return None
    with open(path, "rb") as f:
        model = f.read()
    pieces = []
    for number, value in fields(model):
        if number == 1:
            piece = dict(fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1)))
    rank = {p: i for i, (p, _, _) in enumerate(pieces)}
    merges = [(score, pair) for p, score, _ in pieces for pair in ways(p, rank)]
    merges.sort(key=lambda m: (m[0], len(m[1][0]), len(m[1][1])), reverse=True)
    marked = [added(p, i) for i, (p, _, kind) in enumerate(pieces) if kind in (2, 3)]
    return document(rank, [list(pair) for _, pair in merges], marked, unk="<unk>", fuse_unk=True, byte_fallback=True,
                    post_processor=around("<s>", 1),
                    normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, MARKS]},
                    decoder={"type": "Sequence",
                             "decoders": [*UNMARK, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})


def minicpm5():
    """No file of this family can be had: its pipeline on the first merges of another's vocabulary."""
    llama = fetched("llama3")
    if not llama:
        return None
    words = {w: i for w, i in llama["model"]["vocab"].items() if i < 60_000}
    special = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
    pairs = [m if isinstance(m, list) else m.split(" ", 1) for m in llama["model"]["merges"]]
    merges = [p for p in pairs if "".join(p) in words and p[0] in words and p[1] in words]
    return document({w: i + len(special) for w, i in words.items()}, merges, [added(t, i) for i, t in enumerate(special)],
                    pre_tokenizer=splits(r"\p{N}{1,3}", P_MINICPM5), ignore_merges=True, post_processor=around("<s>", 0))


JSON = {"smollm2": smollm2, "qwen35": qwen35, "gemma4": gemma4, "tekken": tekken, "mistral": mistral, "minicpm5": minicpm5,
        **{name: lambda name=name: fetched(name)
           for name in ("gemma3", "gemma2", "qwen3", "llama3", "llama2", "deepseek_v3", "gptoss")}}

# How a converter would write them: (tokenizer.ggml.model, .pre, add_space_prefix).
GGUF = {"qwen3": ("gpt2", "qwen2"), "qwen35": ("gpt2", "qwen35"), "llama3": ("gpt2", "llama-bpe"),
        "smollm2": ("gpt2", "smollm"), "tekken": ("gpt2", "tekken"), "minicpm5": ("gpt2", "minicpm5"),
        "llama2": ("llama", None), "mistral": ("llama", None), "gemma2": ("llama", None), "gemma4": ("gemma4", None)}


def to_gguf(doc, model, pre, path):
    n = max([*doc["model"]["vocab"].values(), *(a["id"] for a in doc["added_tokens"])]) + 1
    tokens, types = [f"[PAD{i}]" for i in range(n)], [UNUSED] * n
    for token, i in doc["model"]["vocab"].items():
        tokens[i], types[i] = token, NORMAL
        if model != "gpt2" and len(token) == 6 and token.startswith("<0x"):
            types[i] = BYTE
    for a in doc["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], CONTROL if a["special"] else USER
        if model == "llama" and not a["special"]:  # as converters write them: the text that they stand for
            tokens[a["id"]] = a["content"].replace("\u2581", " ")
    g = ggufio.File()
    string = ggufio.STRING
    g.set("general.architecture", string, "llama")
    g.set("tokenizer.ggml.model", string, model)
    if pre:
        g.set("tokenizer.ggml.pre", string, pre)
    g.set("tokenizer.ggml.tokens", (ggufio.ARRAY, string), tokens)
    g.set("tokenizer.ggml.token_type", (ggufio.ARRAY, ggufio.I32), types)
    pairs = [m if isinstance(m, list) else m.split(" ", 1) for m in doc["model"]["merges"]]
    if model == "llama":  # a score says when a piece is made
        types[doc["model"]["vocab"]["<unk>"]] = UNKNOWN
        g.set("tokenizer.ggml.token_type", (ggufio.ARRAY, ggufio.I32), types)
        order = {}
        for pair in pairs:
            order.setdefault("".join(pair), -float(len(order)))
        g.set("tokenizer.ggml.scores", (ggufio.ARRAY, ggufio.F32), [order.get(t, -1e6) for t in tokens])
    else:
        g.set("tokenizer.ggml.merges", (ggufio.ARRAY, string), [" ".join(p) for p in pairs])
    post = doc["post_processor"] or {}
    single = [p for part in post.get("processors", [post]) for p in part.get("single", [])]
    bos = next((a["id"] for p in single for a in doc["added_tokens"] if p.get("SpecialToken", {}).get("id") == a["content"]),
               None)
    g.set("tokenizer.ggml.add_bos_token", ggufio.BOOL, bos is not None)
    if bos is not None:
        g.set("tokenizer.ggml.bos_token_id", ggufio.U32, bos)
    g.set("tokenizer.ggml.eos_token_id", ggufio.U32, 2)
    g.set("tokenizer.ggml.add_space_prefix", ggufio.BOOL, "Prepend" in json.dumps(doc["normalizer"]))
    g.write(path)
