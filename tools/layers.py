#!/usr/bin/env python3
"""layers: who may include whom.

A folder of src/ may include only what its line in LAYERS lists, and of another folder only the front
header x/x.h. The table is the one source: the build takes from it what a folder's tests are linked with
(--make), so that an upward call is also a link error.

    layers.py [SRC]       check the tree, default src
    layers.py --make      LINK_<folder> := the folder and everything it may reach, for the Makefile
    layers.py --self-test plant violations in a temporary tree; every one must be found
"""
import os
import re
import sys
import tempfile

LAYERS = {  # folder: what it may include, besides itself; each line names only folders above it
    "base": [],
    "file": ["base"],
    "hub": ["base", "file"],
    "kern": ["base"],
    "tier": ["base", "kern"],
    "kv": ["base", "file", "kern", "tier"],
    "op": ["base", "kern", "tier", "kv"],
    "text": ["base", "file"],
    "model": ["base", "file", "kern", "tier", "kv", "op"],
    "engine": ["base", "kern", "tier", "kv", "op", "model"],
    "train": ["base", "file", "kern", "tier", "op", "text", "model"],
    "serve": ["base", "file", "text", "engine"],
    "desk": ["base", "file"],
    "app": ["base", "file", "hub", "kern", "tier", "kv", "op", "text", "model", "engine", "train", "serve"],
}
BUILT = {"gen", "simd"}  # made by the build, and kern's own vocabulary: not folders
TEST_HEADER = "base/test.h"  # the one other header that tests may include

SYSTEM = {"sys", "linux", "arpa", "net", "netinet", "asm", "curl", "openssl"}  # <sys/mman.h> and its like
INCLUDE = re.compile(r'\s*#\s*include\s*["<]([a-z0-9_]+)/([^">]+)[">]')


def reach(folder):
    """The folder and everything below it, lowest first."""
    seen = {folder}
    for name in reversed(LAYERS):
        if name in seen:
            seen.update(LAYERS[name])
    return [name for name in LAYERS if name in seen]


def check_table():
    """The order of the table is a topological order, so it cannot hold a cycle."""
    above = []
    for folder, may in LAYERS.items():
        for name in may:
            if name not in above:
                yield f"LAYERS: {folder} names {name}, which is not above it"
        above.append(folder)


def check_include(here, is_test, folder, header):
    if folder == here or folder in BUILT | SYSTEM:
        return None
    if folder not in LAYERS:
        return f"no folder {folder} in LAYERS"
    if is_test and f"{folder}/{header}" == TEST_HEADER:
        return None
    if folder not in LAYERS[here]:
        return f"{here} may not include {folder}"
    if header != folder + ".h":
        return f"only {folder}/{folder}.h is for other folders, not {folder}/{header}"
    return None


def check_tree(root):
    for path, _, names in os.walk(root):
        for name in sorted(names):
            if not name.endswith((".c", ".h")):
                continue
            full = os.path.join(path, name)
            here = os.path.relpath(full, root).split(os.sep)[0]
            if here not in LAYERS:
                yield f"{full}: folder {here} has no line in LAYERS"
                continue
            # Test programs: x_test.c with x_test.h, helpers named test*, and check_kern.
            is_test = re.search(r"(_test|/test\w*|/check_\w+)\.[ch]$", full) is not None
            with open(full, encoding="utf-8") as lines:
                for n, line in enumerate(lines, 1):
                    m = INCLUDE.match(line)
                    fault = m and check_include(here, is_test, m[1], m[2])
                    if fault:
                        yield f"{full}:{n}: {fault}"


def self_test():
    planted = {
        "base/up.c": ('#include "file/file.h"', "base may not include file"),
        "kern/side.c": ('#include "file/file.h"', "kern may not include file"),
        "serve/skip.c": ('  #  include "kern/kern.h"', "serve may not include kern"),
        "op/inner.c": ('#include "kern/simd.h"', "only kern/kern.h"),
        "op/angle.c": ("#include <model/model.h>", "op may not include model"),
        "engine/sched_test.c": ('#include "text/text.h"', "engine may not include text"),
        "op/test_inside.c": ('#include "base/pool.h"', "only base/base.h"),
        "op/plain.c": ('#include "base/test.h"', "only base/base.h"),
        "extra/new.c": ("", "no line in LAYERS"),
        "op/extra.c": ('#include "extra/extra.h"', "no folder extra"),
    }
    good = {
        "kern/fmt_f32.c": '#include "kern/simd.h"\n#include "simd/avx2.h"\n#include "gen/kern_list.h"',
        "op/fake_test.h": '#include "base/test.h"',
        "op/op_test.c": '#include "base/test.h"\n#include "kern/kern.h"\n#include "op/inner.h"',
        "base/pool.c": "#include <sys/mman.h>\n#include <linux/futex.h>\n#include <string.h>",
    }
    with tempfile.TemporaryDirectory() as root:
        for path, text in [(p, t) for p, (t, _) in planted.items()] + list(good.items()):
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text + "\n")
        faults = list(check_tree(root))
        missed = [p for p, (_, why) in planted.items() if not any(f"/{p}" in f and why in f for f in faults)]
        false = [f for f in faults if any(f"/{p}" in f for p in good)]
    for line in [f"not found: {p}" for p in missed] + [f"false alarm: {f}" for f in false]:
        print("layers: self-test: " + line)
    return 1 if missed or false else 0


def main(args):
    if args == ["--self-test"]:
        return self_test()
    if args == ["--make"]:
        for folder in LAYERS:
            print(f"LINK_{folder} := {' '.join(reach(folder))}")
        return 0
    faults = [*check_table(), *check_tree(args[0] if args else "src")]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


sys.exit(main(sys.argv[1:]))
