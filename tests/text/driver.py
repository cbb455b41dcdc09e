"""The C side: text_driver built from the objects of a build, spoken to over pipes.

B is the build folder (INGLE_BUILD, else the folder of INGLE_PROGRAM, else build/), INGLE_DEPS the folder of what
the build fetched and of the Rust library, if it is another. The program is compiled there from text_driver.c and
linked with the objects of text, file and base. INGLE_TEXT_DRIVER names one that is already built."""
import glob
import json
import os
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def build_folder():
    program = os.environ.get("INGLE_PROGRAM")
    return os.environ.get("INGLE_BUILD") or (os.path.dirname(program) if program else os.path.join(ROOT, "build"))


def program():
    if "INGLE_TEXT_DRIVER" in os.environ:
        return os.environ["INGLE_TEXT_DRIVER"]
    b = build_folder()
    objects = [o for folder in ("text", "file", "base") for o in sorted(glob.glob(f"{b}/{folder}/*.o"))
               if not o.endswith(("_test.o", "base/test.o"))]
    deps = os.environ.get("INGLE_DEPS") or b
    objects += glob.glob(f"{b}/third/yyjson.o") + glob.glob(f"{deps}/guide/release/libguide.a")
    out, source = f"{b}/text_driver", f"{HERE}/text_driver.c"
    if not os.path.exists(out) or any(os.path.getmtime(f) > os.path.getmtime(out) for f in [source, *objects]):
        subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-D_GNU_SOURCE",
                        f"-I{ROOT}/src", "-isystem", f"{deps}/third/yyjson", "-o", out, source, *objects, "-lpcre2-8",
                        "-lutf8proc", "-lxxhash", "-lpthread", "-lm", "-ldl"], check=True)
    return out


def cached(*names):
    """A file of the cache, or None."""
    cache = os.environ.get("INGLE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ingle")
    path = os.path.join(cache, *names)
    return path if os.path.exists(path) else None


def model():
    """The starter model, or None."""
    path = os.environ.get("INGLE_TEST_MODEL") or cached("models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    return path if path and os.path.exists(path) else None


def tokenizer_json(name):
    """One that tools/fetch.py put there, or None."""
    return cached("tokenizers", name, "tokenizer.json")


class Refused(Exception):
    pass


class Driver:
    def __init__(self, *args):
        self.process = subprocess.Popen([program(), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def ask(self, op, body):
        self.process.stdin.write(op + struct.pack("<I", len(body)) + body)
        self.process.stdin.flush()
        failed, n = struct.unpack("<BI", self.process.stdout.read(5))
        answer = self.process.stdout.read(n)
        if failed:
            raise Refused(answer.decode())
        return answer

    def encode(self, text, special=False):
        ids = self.ask(b"s" if special else b"e", text.encode("utf-8"))
        return list(struct.unpack(f"<{len(ids) // 4}I", ids))

    def encode_whole(self, text):
        """With what the file puts around a text."""
        ids = self.ask(b"b", text.encode("utf-8"))
        return list(struct.unpack(f"<{len(ids) // 4}I", ids))

    def decode(self, ids, in_steps=False):
        return self.ask(b"i" if in_steps else b"d", struct.pack(f"<{len(ids)}I", *ids)).decode("utf-8")

    def template(self, source):
        self.ask(b"t", source.encode("utf-8"))

    def render(self, messages, **options):
        return self.ask(b"c", json.dumps({"messages": messages, **options}).encode()).decode("utf-8")

    def prompt_ids(self, messages, **options):
        ids = self.ask(b"p", json.dumps({"messages": messages, **options}).encode())
        return list(struct.unpack(f"<{len(ids) // 4}I", ids))


def read_gguf(path):
    """The metadata of a GGUF file: {key: value}."""
    with open(path, "rb") as f:
        data = f.read(64 << 20)
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    at = 24
    n_keys, = struct.unpack_from("<Q", data, 16)

    def text():
        nonlocal at
        n, = struct.unpack_from("<Q", data, at)
        at += 8 + n
        return data[at - n:at].decode("utf-8")

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            item, n = struct.unpack_from("<IQ", data, at)
            at += 12
            return [value(item) for _ in range(n)]
        got, = struct.unpack_from("<" + formats[kind], data, at)
        at += struct.calcsize(formats[kind])
        return got

    out = {}
    for _ in range(n_keys):
        key = text()
        kind, = struct.unpack_from("<I", data, at)
        at += 4
        out[key] = value(kind)
    return out
