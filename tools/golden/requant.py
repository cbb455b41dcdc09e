#!/usr/bin/env python3
"""Rewrites a GGUF's matrices in another block type; metadata and vectors stay as they are.

    requant.py SRC DST TYPE [--head TYPE|keep]

TYPE: F32 F16 BF16 Q4_0 Q4_1 Q8_0. --head: the type of the embedding and of the head (default: TYPE for the
float types, keep for the others). Values come from the exact values of SRC, rounded to f32 first.
"""
import argparse

import ggufio

HEAD = ("token_embd.weight", "output.weight")


def requant(src, dst, type_name, head=None):
    if head is None:
        head = type_name if type_name in ("F32", "F16", "BF16") else "keep"
    f = ggufio.File(src)
    for name, t in list(f.tensors.items()):
        want = head if name in HEAD else type_name
        if len(t.shape) == 2 and want not in ("keep", t.type):
            f.add(name, want, t.f64())  # same key: the order in the file stays
    f.set("general.file_type", ggufio.U32, ggufio.FILE_TYPE[type_name])
    f.write(dst)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("src")
    p.add_argument("dst")
    p.add_argument("type", choices=sorted(ggufio.TYPES))
    p.add_argument("--head", choices=sorted(ggufio.TYPES) + ["keep"])
    a = p.parse_args()
    requant(a.src, a.dst, a.type, a.head)


if __name__ == "__main__":
    main()
