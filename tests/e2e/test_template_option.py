"""`--chat-template FILE` with files that are no good template: told before a token is computed, by exit code and word."""
import subprocess

import pytest

from conftest import model_path, program_path

CORRUPT, NOT_FOUND = 6, 3


@pytest.mark.parametrize("source, code, word", [
    ("x" * ((1 << 20) + 2), CORRUPT, "1048578 bytes, limit 1048576"),
    ("x" * (5 << 20), CORRUPT, "5242880 bytes"),
    ("{% if %}", CORRUPT, "chat template:"),
    ("", CORRUPT, "the file is empty"),
    ("{% for m in message %}{{ m.content }}{% endfor %}", CORRUPT, "it renders nothing"),
    (None, NOT_FOUND, "--chat-template"),
    ("Hello.", 0, "a message comes out without its text"),
    ("{% for m in messages %}{{ m.content }}{% endfor %}", 0, ""),
])
def test_a_file_that_is_no_good_template(tmp_path, source, code, word):
    path = tmp_path / "given.jinja"
    if source is not None:
        path.write_text(source, encoding="utf-8")
    run = subprocess.run([program_path(), "generate", model_path(), "--chat-template", str(path), "-n", "1", "-p", "hi"],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == code and word in run.stderr, run.stderr
    assert ("without its text" in run.stderr) == ("without its text" in word)
