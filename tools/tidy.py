#!/usr/bin/env python3
"""tidy: the house rules that a machine can hold.

    tidy.py [--root DIR] [--objects B] [--all]    check; B is a build tree whose symbols are looked at
    tidy.py --self-test                           plant violations in a temporary tree; each must be found

Rules, which fail: a comment on top of every file (but x_test.c beside x.c, whose names are sentences, and
conftest.py) and a page on every front header; calls that are banned
everywhere or outside some folders; global symbols that do not start with ig_ or op_; notes to do something
later; files that nothing uses. Taste, which is printed only: long lines, functions, files, headers, many
parameters, deep nesting.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

# ---- limits and lists -------------------------------------------------------------------------------------

LINE, FUNCTION_LINES, FILE_LINES, HEADER_LINES, PARAMETERS, NESTING = 110, 60, 1200, 200, 6, 3
OPENING_LINES = 15  # of the comment on top of a .c; a front header has a page
PAGE_LINES = 60

BANNED = "strcpy strncpy sprintf vsprintf strcat strtok atoi atol atof gets alloca system popen".split()
PRINTING = "printf vprintf puts putchar fputs fprintf vfprintf perror".split()
HEAP = "malloc calloc realloc aligned_alloc posix_memalign strdup strndup asprintf vasprintf".split()
# base holds log.c and the assert; the engine side takes its memory once, at start.
MAY_PRINT = {"base", "app", "desk"}
MAY_HEAP = {"base", "file", "hub", "text", "serve", "app", "desk", "train", "kv", "engine", "model"}
# MHD_queue_response: src/serve/mhd_errors.c stands before a library's function, and says why.
SYMBOL = re.compile(r"(ig_\w+|op_\w+|main|LLVMFuzzer\w+|MHD_queue_response)$")
LATER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
SOURCES = (".c", ".h", ".rs", ".py", ".sh")
SKIPPED = {".git", "__pycache__", "target", "golden", "corpus", "results"}


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def walk(root, *tops):
    for top in tops:
        for folder, dirs, names in os.walk(os.path.join(root, top)):
            dirs[:] = sorted(d for d in dirs if d not in SKIPPED and not d.startswith("build"))
            for name in sorted(names):
                yield os.path.relpath(os.path.join(folder, name), root)


# A test may put its own allocator in the place of the system's, to make it fail or to see it called.
TEST_SYMBOL = re.compile(r"(malloc|calloc|realloc|free|aligned_alloc|posix_memalign)$")


def is_test(path):
    name = os.path.basename(path)
    return re.search(r"(^test|_test$|^check_|^fuzz_)", name.rpartition(".")[0]) is not None


def is_front(path):
    parts = path.split(os.sep)
    return len(parts) == 3 and parts[0] == "src" and parts[2] == parts[1] + ".h"


CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def code_only(text):
    """Comments and literals blanked; the lines stay where they are."""
    return CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def calls(code, names):
    for m in re.finditer(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(", code):
        yield code.count("\n", 0, m.start()) + 1, m[1]


# ---- rules ------------------------------------------------------------------------------------------------


def opening(path, text):
    """What stands on top: a file says what it is for before anything else."""
    if path.endswith((".c", ".h")):
        flags = re.match(r"// flags:[^\n]*\n", text)
        body = text[flags.end():] if flags else text
        m = re.match(r"\s*(/\*.*?\*/)", body, re.S)
        if not m:
            return None if flags else "no comment on top"
        n = m[1].count("\n") + 1
        limit = PAGE_LINES if path.endswith(".h") else OPENING_LINES
        if n > limit:
            return f"the comment on top has {n} lines, limit {limit}"
        if is_front(path) and (n < 4 or not m[1].startswith(f"/* {os.path.basename(path)[:-2]}")):
            return "a front header opens with its page: /* name: what it is, what it owns, takes, gives"
        return None
    if path.endswith(".rs"):
        return None if re.match(r"(//|/\*)", text) else "no comment on top"
    body = re.sub(r"^#![^\n]*\n", "", text)
    return None if not body.strip() or re.match(r'(#|r?"""|\'\'\')', body) else "no comment on top"


def check_opening(path, text):
    fault = opening(path, text)
    if fault:
        yield f"{path}:1: {fault}"


def check_text(path, text):
    for n, line in enumerate(text.split("\n"), 1):
        if LATER.search(line):
            yield f"{path}:{n}: a note for later; do it now or write an issue"
        if "\t" in line and path.endswith((".c", ".h")):
            yield f"{path}:{n}: a tab"
    if path.endswith((".c", ".h")):
        yield from check_calls(path, code_only(text))


def check_calls(path, code):
    parts = path.split(os.sep)
    folder = parts[1] if parts[0] == "src" and len(parts) > 2 else ""
    for n, name in calls(code, BANNED):
        yield f"{path}:{n}: {name} is banned"
    if is_test(path) or not folder:
        return
    if folder not in MAY_PRINT:
        for n, name in calls(code, PRINTING):
            yield f"{path}:{n}: {name}: only the program prints, others log or return an error"
    if folder not in MAY_HEAP:
        for n, name in calls(code, HEAP):
            yield f"{path}:{n}: {name}: {folder} takes memory from its caller"


def check_dead(root, texts):
    """Headers that nobody includes, sources that the build does not see, tools that nobody names."""
    included = set()
    for path, text in texts.items():
        for m in re.finditer(r'#\s*include\s*"([^"]+)"', text):
            included.add(m[1])
            included.add(os.path.join(os.path.dirname(path), m[1]))
    isas = {os.path.basename(p)[:-2] for p in texts if p.startswith("src/kern/simd/")}
    for path in texts:
        parts = path.split(os.sep)
        if path.startswith("src/kern/simd/"):
            continue
        if path.endswith(".h") and parts[0] == "src":
            if path not in included and path[len("src/"):] not in included and not is_front(path):
                yield f"{path}: nobody includes it"
        elif path.endswith(".c") and parts[0] == "src" and len(parts) != 3:
            isa = path[:-2].rpartition(".")[2]
            if not (path.startswith("src/kern/tuned/") and isa in isas):
                yield f"{path}: the build does not see it"
    everything = {p: t for p, t in texts.items() if not p.startswith("src/")}
    for name in ("Makefile", "run", "check", "CONTRIBUTING.md", "README.md", ".ci/run"):
        if os.path.isfile(os.path.join(root, name)):
            everything[name] = read(os.path.join(root, name))
    for path in walk(root, "docs", "tests"):
        if path.endswith((".md", ".txt", ".toml")):
            everything[path] = read(os.path.join(root, path))
    for path in walk(root, "tools"):
        name = os.path.basename(path)
        if not any(name in text for other, text in everything.items() if other != path):
            yield f"{path}: nothing names it"


def check_symbols(objects):
    found = sorted(p for p in walk(objects, ".") if p.endswith(".o") and not p.startswith("third/"))
    if not found:
        yield f"{objects}: no objects to look at"
        return
    paths = [os.path.join(objects, p) for p in found]
    command = ["nm", "-A", "-g", "--defined-only", *paths]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        place, _, symbol = line.rpartition(" ")
        path = place.split(":")[0]
        fine = SYMBOL.match(symbol) or is_test(path) and TEST_SYMBOL.match(symbol)
        if not fine and not symbol.startswith(("__odr_asan", "__asan", "__tsan")):
            yield f"{path}: symbol {symbol}: global names start with ig_ or op_; others are static"


# ---- taste ------------------------------------------------------------------------------------------------

FUNCTION = re.compile(r"^[a-z][^;={}]*?\b(\w+)\(((?:[^(){};]|\([^()]*\))*)\)\s*\{$", re.M)


def taste(path, text):
    lines = text.split("\n")
    for n, line in enumerate(lines, 1):
        if len(line) > LINE and "http" not in line:
            yield f"{path}:{n}: {len(line)} columns ({LINE})"
    if not path.endswith((".c", ".h")):
        return
    limit = HEADER_LINES if is_front(path) else FILE_LINES
    if len(lines) > limit:
        yield f"{path}: {len(lines)} lines ({limit})"
    code = code_only(text)
    for m in FUNCTION.finditer(code):
        first = code.count("\n", 0, m.start()) + 1
        end = code.find("\n}", m.end())
        body = code[m.end():end]
        n_lines = code.count("\n", m.start(), end) + 2
        parameters = re.sub(r"\([^()]*\)", "", m[2])
        n_parameters = 0 if parameters.strip() in ("", "void") else parameters.count(",") + 1
        depth = 0
        level = 0
        for c in re.sub(r"=\s*\{[^{}]*\}", "", body):
            level += (c == "{") - (c == "}")
            depth = max(depth, level)
        measured = [("lines", n_lines, FUNCTION_LINES), ("parameters", n_parameters, PARAMETERS),
                    ("levels deep", depth, NESTING)]
        for what, value, bound in measured:
            if value > bound:
                yield f"{path}:{first}: {m[1]}: {value} {what} ({bound})"


# ---- the self-test ----------------------------------------------------------------------------------------

TOP = "/* a: what it is for. */\n"
PLANTED = {  # path: (text, part of the message that must name it)
    "src/kern/bare.c": ("int x;\n", "no comment on top"),
    "src/kern/kern.h": ("/* short */\n", "a front header opens with its page"),
    "src/op/long.c": ("/*\n" + "x\n" * 20 + "*/\n", "the comment on top has"),
    "src/op/copy.c": (TOP + "void f(void) {\n    strcpy(a, b);\n}\n", ":3: strcpy is banned"),
    "src/op/alone_test.c": ("int x;\n", "no comment on top"),
    "src/op/copy_test.c": (TOP + "static void f(void) { system(a); }\n", "system is banned"),
    "src/serve/loud.c": (TOP + 'void f(void) { printf("x"); }\n', "printf: only the program"),
    "src/op/heap.c": (TOP + "void f(void) { p = malloc (3); }\n", "malloc: op takes memory"),
    "src/base/later.c": (TOP + "/* TO" + "DO: the rest */\n", "a note for later"),
    "src/base/tab.c": (TOP + "\tint x;\n", "a tab"),
    "src/base/lonely.h": (TOP, "nobody includes it"),
    "src/base/deep/hidden.c": (TOP, "the build does not see it"),
    "src/kern/tuned/fast.z80.c": (TOP, "the build does not see it"),
    "tools/unused.py": ("# unused\n", "nothing names it"),
}
GOOD = {
    "src/base/base.h": "/* base: everything.\n * Owns: x.\n * Takes: y.\n * Gives: z. */\n",
    "src/base/base.c": TOP + '#include "base/inner.h"\n/* strcpy(a) */ const char *s = "system(1)";\n',
    "src/base/inner.h": TOP,
    "src/kern/simd/avx2.h": "// flags: -mavx2\n#include <immintrin.h>\n",
    "src/kern/tuned/fast.avx2.c": TOP,
    "src/app/say.c": TOP + 'void ig_f(void) { printf("x"); p->system(1); }\n',
    "src/base/base_test.c": "static int x;\n",
    "src/op/op_test.c": TOP + "static void f(void) { p = malloc(3); }\n",
}
TASTE = {
    "long line": "x" * 111,
    "4 levels deep": "void f(void) {\n" + "if (a) {\n" * 4 + "}\n" * 4 + "}\n",
    "7 parameters": "void f(int a, int b, int c, int d, int e, int g, int h) {\n}\n",
    "63 lines": "void f(void) {\n" + "    g();\n" * 61 + "}\n",
}


def self_test():
    wrong = []
    with tempfile.TemporaryDirectory() as root:
        for path, text in [(p, t) for p, (t, _) in PLANTED.items()] + list(GOOD.items()):
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)
        faults = list(check(root))
        wrong += [f"not found: {p}: {why}" for p, (_, why) in PLANTED.items()
                  if not any(f.startswith(p + ":") and why in f for f in faults)]
        wrong += [f"false alarm: {f}" for f in faults if f.partition(":")[0] in GOOD]
        compiler = os.environ.get("CC", "cc").split()
        objects = [("bad", "int loose, ig_fine, malloc;\n", 2), ("good", "int op_x; static int y;\n", 0),
                   ("a_test", "int malloc, loose;\n", 1)]
        for name, text, n in objects:
            folder = os.path.join(root, "objects", name)
            os.makedirs(folder)
            command = [*compiler, "-w", "-x", "c", "-c", "-o", f"{folder}/{name}.o", "-"]
            subprocess.run(command, input=text, text=True, check=True)
            if len(list(check_symbols(folder))) != n:
                wrong.append(f"symbols: {name}.o")
        if not list(check_symbols(os.path.join(root, "src"))):
            wrong.append("symbols: a tree without objects passes")
    for what, text in TASTE.items():
        if len(list(taste("src/op/x.c", text))) != 1:
            wrong.append(f"taste: {what}")
    for line in wrong:
        print("tidy: self-test: " + line)
    return 1 if wrong else 0


# ---- main -------------------------------------------------------------------------------------------------


def sources(root):
    tops = ("src", "tools", "guide/src", "tests", "bench")
    texts = {p: read(os.path.join(root, p)) for p in walk(root, *tops) if p.endswith(SOURCES)}
    for name in ("Makefile", "run", "check"):
        if os.path.isfile(os.path.join(root, name)):
            texts[name] = read(os.path.join(root, name))
    return texts


def check(root):
    texts = sources(root)
    for path, text in texts.items():
        beside = path.endswith("_test.c") and path.replace("_test.c", ".c") in texts
        if not beside and not path.endswith("conftest.py"):
            yield from check_opening(path, text)
        yield from check_text(path, text)
    yield from check_dead(root, texts)


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("--self-test", action="store_true")
    options.add_argument("--root", default=".")
    options.add_argument("--objects")
    options.add_argument("--all", action="store_true", help="print all of what is over taste")
    given = options.parse_args()
    if given.self_test:
        return self_test()
    faults = list(check(given.root))
    if given.objects:
        faults += check_symbols(given.objects)
    over = [line for path, text in sources(given.root).items() for line in taste(path, text)]
    shown = over if given.all else over[:10]
    for line in shown:
        print("taste: " + line)
    if len(shown) < len(over):
        print(f"taste: and {len(over) - len(shown)} more; tools/tidy.py --all lists them")
    for line in faults:
        print(line)
    return 1 if faults else 0


sys.exit(main())
