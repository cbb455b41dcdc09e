"""Text to compare tokenizers on: what the machine has installed, and strings made to be odd.

Natural text comes from manual pages (with their translations), message catalogues, C headers and
Python's own sources, in a fixed order. Odd strings come from a seeded generator. Nothing is stored here.
"""
import glob
import gzip
import os
import random
import sysconfig
import unicodedata

KINDS = {  # kind: (patterns, bytes wanted)
    "english manual": (["/usr/share/man/man[1-8]/*.gz"], 700_000),
    "translated manual": (["/usr/share/man/??/man[1-8]/*.gz", "/usr/share/man/??_??/man[1-8]/*.gz"], 900_000),
    "catalogues": (["/usr/share/locale/*/LC_MESSAGES/*.mo"], 400_000),
    "c headers": (["/usr/include/*.h", "/usr/include/*/*.h"], 500_000),
    "python": ([os.path.join(sysconfig.get_paths()["stdlib"], "*.py"),
                os.path.join(sysconfig.get_paths()["stdlib"], "*/*.py")], 700_000),
}
ONE_FILE = 40_000  # so that no single file is a kind


def read(path):
    try:
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rb") as f:
            data = f.read(4 * ONE_FILE)
    except OSError:
        return ""
    if path.endswith(".mo"):
        data = b"\n".join(part for part in data.split(b"\0") if any(c > 127 for c in part) and is_text(part))
    return data.decode("utf-8", "ignore")[:ONE_FILE]


def is_text(part):
    try:
        return all(c.isprintable() or c in "\n\t" for c in part.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def natural(bytes_min=2_200_000):
    """{kind: text}, each as long as wanted or as there is; where that is little in all, more of Python."""
    out = {}
    for kind, (patterns, wanted) in KINDS.items():
        if kind == "python":
            wanted = max(wanted, bytes_min - sum(len(t.encode()) for t in out.values()))
        paths = sorted(path for pattern in patterns for path in glob.glob(pattern))
        random.Random(kind).shuffle(paths)
        parts, size = [], 0
        for path in paths:
            parts.append(read(path))
            size += len(parts[-1].encode())
            if size >= wanted:
                break
        out[kind] = "".join(parts)
    return out


def cut(text, seed, longest=4000):
    """The text in pieces, cut anywhere: inside words, runs of blanks and combined characters."""
    rng = random.Random(seed)
    at, out = 0, []
    while at < len(text):
        n = int(longest ** rng.random())
        out.append(text[at:at + n])
        at += n
    return out


def chars(predicate):
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and predicate(chr(c))]


BLANKS = [chr(c) for c in [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                           0x205F, 0x3000]]
ALMOST_BLANKS = ["\u180e", "\u200b", "\u2060", "\ufeff", "\x1c", "\x1d", "\x1e", "\x1f", "\x00", "\x7f"]
EMOJI = ["\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466", "\U0001F44D\U0001F3FD", "\u2764\ufe0f",
         "\U0001F1E9\U0001F1EA", "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F",
         "1\ufe0f\u20e3", "\U0001FAE0"]
WORDS = ["'s", "'S", "'t", "'re", "'ve", "'m", "'ll", "'d", "'\u017f", "don't", "I'LL", "<|im_end|>", "<|im_start|>",
         "<|endoftext|", "<|", "|>", "```", "://", "\r\n", "\n\n", "  ", "\t\t", "\u2581", "\u2581\u2581", "0x1F",
         "3.14e-10", "\u00bd\u00b2", "\u0661\u0662\u0663", "\u2167", "na\u00efve", "nai\u0308ve", "\u1e9b\u0323"]


def odd(n=5000, seed=20261130):
    """n strings: every class of character that a pre-tokenizer looks at, in every neighbourhood."""
    rng = random.Random(seed)
    digits = chars(lambda c: unicodedata.category(c) in ("Nd", "Nl", "No"))
    marks = chars(lambda c: unicodedata.category(c) in ("Mn", "Mc", "Me"))
    letters = chars(lambda c: unicodedata.category(c) in ("Lu", "Ll", "Lt", "Lm"))
    right_to_left = chars(lambda c: unicodedata.bidirectional(c) in ("R", "AL"))
    controls = chars(lambda c: unicodedata.category(c) in ("Cc", "Cf"))
    other = chars(lambda c: unicodedata.category(c)[0] in "PS")
    cjk = [chr(c) for c in range(0x4E00, 0xA000)] + [chr(c) for c in range(0xAC00, 0xD7A4)]
    private = [chr(c) for c in [*range(0xE000, 0xE100), *range(0xF0000, 0xF0100), *range(0x10FF00, 0x10FFFE)]]
    ascii_ = [chr(c) for c in range(128)]
    pools = [digits, marks, letters, right_to_left, controls, other, cjk, private, ascii_, ascii_, BLANKS, BLANKS,
             ALMOST_BLANKS, EMOJI, WORDS, WORDS]
    out = ["", " ", "\n", "a", "\x00", "\U0010FFFF"]
    while len(out) < n:
        parts = []
        for _ in range(rng.randint(1, 12)):
            pool = rng.choice(pools)
            what = rng.random()
            if what < 0.1:
                parts.append(rng.choice(pool) * int(300 ** rng.random()))  # a run
            elif what < 0.2:
                parts.append(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])))
            else:
                parts.extend(rng.choice(pool) for _ in range(rng.randint(1, 4)))
        out.append("".join(parts))
    return out


def runs(length=100_000):
    """One word or one kind of character, very long: what makes quadratic tokenizers hang."""
    return [c * length for c in ("a", " ", "\n", "1", "!", "\u4e2d", "\u0301", "\x00")] + [
        "ab" * (length // 2), " a" * (length // 2), "a\u0301" * (length // 2),
        "".join(random.Random(7).choice("abcdefgh") for _ in range(length))]
