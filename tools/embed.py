#!/usr/bin/env python3
"""embed: a file as a C header, so that the program needs nothing beside itself.

    embed.py NAME FILE HEADER

HEADER then holds `static const unsigned char NAME_bytes[]`, the same gzipped as `NAME_gzip[]`, and
`#define NAME_ETAG "\\"<hash>\\""`, a strong validator of the content. Sizes are sizeof. For a page,
`NAME_SCRIPT_CSP` and `NAME_STYLE_CSP` name its inline blocks by hash, for a policy that lets nothing else run.
"""
import base64
import gzip
import hashlib
import os
import re
import sys


def array(name, data):
    rows = [",".join(map(str, data[i : i + 24])) for i in range(0, len(data), 24)]
    return f"__attribute__((unused)) static const unsigned char {name}[] = {{\n" + ",\n".join(rows) + "};\n"


def csp(name, tag, data):
    blocks = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), data, re.S)
    hashes = " ".join("'sha256-%s'" % base64.b64encode(hashlib.sha256(b).digest()).decode() for b in blocks)
    return f'#define {name.upper()}_{tag.decode().upper()}_CSP "{hashes}"\n'


def main(name, source, header):
    with open(source, "rb") as f:
        data = f.read()
    text = f"/* Made by tools/embed.py from {source}. */\n"
    text += f'#define {name.upper()}_ETAG "\\"{hashlib.sha256(data).hexdigest()[:16]}\\""\n'
    text += csp(name, b"script", data) + csp(name, b"style", data)
    text += array(name + "_bytes", data) + array(name + "_gzip", gzip.compress(data, 9, mtime=0))
    with open(header + ".new", "w", encoding="ascii") as f:
        f.write(text)
    os.replace(header + ".new", header)


main(*sys.argv[1:])
