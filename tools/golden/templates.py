#!/usr/bin/env python3
"""What transformers makes of real chat templates: hashes of its outputs, kept in tests/text/template_hashes.json.

    templates.py write     renders everything with the Jinja2 that transformers configures, and writes the file

The templates are those of tools/fetch.py vocabularies (llama.cpp's models/templates) and of three models' own
files; none is kept here. tests/text/test_real_templates.py renders the same and compares.
"""
import datetime
import hashlib
import json
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "text"))
os.environ["TZ"] = "UTC"
time.tzset()

import driver  # noqa: E402
from conversations import CONVERSATIONS, REAL  # noqa: E402

HASHES = os.path.join(ROOT, "tests", "text", "template_hashes.json")
NOW = 1795995000
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def sources():
    """{name: source}, or None when a part of them is not in the cache."""
    out = {}
    folder = driver.cached("vocabularies", "templates")
    for file in sorted(os.listdir(folder)) if folder else []:
        if file.endswith(".jinja"):
            with open(os.path.join(folder, file), encoding="utf-8", newline="") as f:
                out[file[:-len(".jinja")]] = f.read()
    for name in ("gemma3", "qwen3"):
        path = driver.cached("tokenizers", name, "tokenizer_config.json")
        if not path:
            return None
        with open(path, encoding="utf-8") as f:
            out["tokenizer " + name] = json.load(f)["chat_template"]
    starter = driver.model()
    if not starter or not folder:
        return None
    out["tokenizer smollm2"] = driver.read_gguf(starter)["tokenizer.chat_template"]
    return out


def variables(name):
    messages, options = CONVERSATIONS[name]
    made = {"messages": messages, "tools": options.get("tools"), "documents": None,
            "add_generation_prompt": options.get("add_generation_prompt", True), **TOKENS, **options.get("kwargs", {})}
    return json.loads(json.dumps(made))


def render(source, name):
    """What transformers makes of it; raises what it raises."""
    import transformers.utils.chat_template_utils as theirs

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(NOW, tz)

    theirs.datetime = Clock
    return theirs._compile_jinja_template(source).render(**variables(name))


def digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def write():
    found = sources()
    if not found:
        sys.exit("templates.py: not all of them are in the cache; see tools/fetch.py")
    out, n_errors = {}, 0
    for template, source in found.items():
        row = out[template] = {"source": digest(source)}
        for name in REAL:
            try:
                row[name] = digest(render(source, name))
            except Exception:  # whatever Jinja2 or the template raises: it refuses these messages
                row[name] = "refused"
                n_errors += 1
    with open(HASHES, "w", encoding="utf-8") as f:
        json.dump(out, f, indent=0)
        f.write("\n")
    print(f"{len(out)} templates, {len(REAL)} conversations, {n_errors} refusals")


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit(__doc__)
    write()
