"""`ingle chat` as a person meets it: the real binary on a pseudo-terminal, and on a pipe."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import termios
import time

import pytest

from conftest import model_path, program_path

PATIENCE = 60  # seconds: a limit for hangs, never a measure of speed
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
FIGURES = re.compile(r"\d+ tokens?(, [\d.]+ tok/s)?(, first token \d+ ms)?")


def environment(state, **more):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "XDG_STATE_HOME")}
    env.update(INGLE_STATE=str(state), TERM="xterm-256color")
    env.update(more)
    return env


class Terminal:
    """The program on a pseudo-terminal. What it wrote is in `raw`; `text` is the same without sequences."""

    def __init__(self, state, *options, columns=200, rows=30, **env):
        self.raw = b""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes = termios.tcgetattr(slave)
        self.slave = slave

        def child():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        argv = [program_path(), "chat", model_path(), *options]
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environment(state, **env), preexec_fn=child
        )
        self.seen = 0
        self.expect("/help lists the commands")
        self.prompt()

    @property
    def text(self):
        return ANSI.sub(b"", self.raw).replace(b"\r", b"").decode("utf-8", "strict")

    def pump(self, timeout=0.1):
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        try:
            got = os.read(self.master, 65536)
        except OSError:
            return False
        self.raw += got
        return bool(got)

    def wait(self, test, what):
        end = time.monotonic() + PATIENCE
        while not test():
            if self.process.poll() is not None and not self.pump(0):
                break
            if time.monotonic() > end:
                break
            self.pump()
        assert test(), f"waited for {what!r}; the end of what came:\n{self.raw[-1500:]!r}"

    def expect(self, what):
        """Text that was not looked at before."""

        def found():
            return what in self.raw[self.seen :].decode("utf-8", "ignore")

        self.wait(found, what)
        at = self.raw.index(what.encode(), self.seen)
        part, self.seen = self.raw[self.seen : at], at + len(what.encode())
        return ANSI.sub(b"", part).replace(b"\r", b"").decode("utf-8", "ignore")

    def prompt(self):
        """The editor is there: it has turned the paste marks on and drawn its line."""
        self.expect("\x1b[?2004h")

    def send(self, keys):
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def ask(self, line):
        self.send(line + "\r")
        self.expect("\x1b[?2004l")
        return self.expect("\x1b[?2004h")

    def leave(self):
        self.send("\x04")
        return self.end()

    def end(self):
        self.wait(lambda: self.process.poll() is not None, "the end of the program")
        while self.pump(0.05):
            pass
        assert termios.tcgetattr(self.slave)[:4] == self.modes[:4], "the terminal is not as it was"
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path):
    open_ones = []

    def start(*options, **more):
        t = Terminal(tmp_path / "state", *options, **more)
        open_ones.append(t)
        return t

    yield start
    for t in open_ones:
        t.close()


# ---- on a terminal ------------------------------------------------------------------------------------------


def test_a_message_is_answered_and_the_figures_follow(terminal):
    t = terminal("--seed", "3", "--max-tokens", "24")
    said = t.ask("Say hello.")
    assert FIGURES.search(said), said
    assert len(said.split("\n")[0].strip()) > 0
    t.text  # decodes strictly: no half character was written
    assert t.leave() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal):
    t = terminal("--temp", "0.9", "--seed", "1")
    t.send("Count from one to one thousand, one number a line.\r")
    t.expect("\x1b[?2004l")
    before = len(t.raw)
    t.wait(lambda: len(t.raw) > before + 20, "the beginning of an answer")
    t.send("\x03")
    assert "stopped" in t.expect("\x1b[?2004h")
    assert "0 messages left" in t.ask("/undo")  # what had come of the answer was kept until now
    assert FIGURES.search(t.ask("Hello again."))
    assert t.leave() == 0


def test_ctrl_c_on_an_empty_line_leaves_the_second_time(terminal):
    t = terminal()
    t.send("some text\x03")
    t.prompt()  # cleared, and nothing else
    t.send("\x03")
    assert "Ctrl-C again" in t.expect("\x1b[?2004h")
    t.send("\x03")
    assert t.end() == 0


def test_a_signal_from_outside_puts_the_terminal_back(terminal):
    t = terminal()
    t.process.send_signal(signal.SIGTERM)
    assert t.end() == 143


def test_the_commands_do_what_they_say(terminal, tmp_path):
    t = terminal("--temp", "0", "--max-tokens", "16")
    assert "/regen" in t.ask("/help")
    assert "pirate" in t.ask("/system Talk like a pirate.")
    first = t.ask("What is the sea?")
    assert "temperature 0" in (again := t.ask("/regen"))
    assert first.split("\n")[0] in again  # greedy: the same words
    assert "0.5" in t.ask("/set temperature 0.5")
    assert "not a number from 0 to 5" in t.ask("/set temperature 9")
    assert "no setting" in t.ask("/set colour red")
    assert "18446744073709551615" in t.ask("/seed 18446744073709551615")
    assert "not a whole number" in t.ask("/seed 18446744073709551616")
    assert "/stats" in t.ask("/statz")
    path = tmp_path / "talk.json"
    assert "2 messages saved" in t.ask(f"/save {path}")
    saved = json.loads(path.read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["messages"][1]["content"] == "What is the sea?"
    other = tmp_path / "other.json"
    other.write_text("precious")
    assert "is there already" in t.ask(f"/save {other}") and other.read_text() == "precious"
    assert "0 messages left" in t.ask("/undo")
    assert "nothing to undo" in t.ask("/undo")
    assert "No system prompt" in t.ask("/system off")
    assert "2 messages read" in t.ask(f"/load {path}")
    assert "pirate" in t.ask("/system")
    other.write_text('{"messages":[{"role":"user","content":"a"},{"role":"tool","content":"b"}]}')
    assert "message 2" in t.ask(f"/load {other}")
    assert "2 tokens" in t.ask("/tokens hello world")
    assert "new conversation" in t.ask("/new")
    t.send("/quit\r")
    assert t.end() == 0


def test_a_conversation_is_not_computed_twice(terminal):
    t = terminal("--temp", "0", "--max-tokens", "8")
    t.ask("Here is a long list: " + ", ".join(f"thing number {i}" for i in range(60)) + ".")
    t.ask("How many things are that?")
    said = t.ask("/stats")
    cached = int(re.search(r"tokens: (\d+) cached", said)[1])
    assert cached >= 128, said


def test_several_lines_are_one_message(terminal, tmp_path):
    t = terminal("--temp", "0", "--max-tokens", "4")
    t.send("one\\\r")
    t.send("two\r")
    t.prompt()
    t.send("\x1b[200~three\rfour\x1b[201~\r")
    t.prompt()
    t.send("```\r\x1b[200~five\x1b[201~\r```\r")
    t.prompt()
    t.ask(f"/save {tmp_path / 'lines.json'}")
    users = [m["content"] for m in json.loads((tmp_path / "lines.json").read_text())["messages"] if m["role"] == "user"]
    assert users == ["one\ntwo", "three\nfour", "```\nfive\n```"]


def test_the_history_outlives_the_program_and_is_private(terminal, tmp_path):
    t = terminal("--max-tokens", "2")
    t.ask("remember me\\\rwith two lines")
    t.ask(" not me")
    assert t.leave() == 0
    path = tmp_path / "state" / "chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "remember me\\nwith two lines\n"
    t = terminal("--max-tokens", "2")
    t.send("\x1b[A")
    t.expect("remember me")
    t.expect("with two lines")
    t.send("\x03\x04")
    assert t.end() == 0
    path.write_bytes(b"\xff\xfe bad\n\x1b[2Jgood\n" + b"x" * 100000 + b"\n")
    t = terminal("--max-tokens", "2")
    t.send("\x1b[A\x1b[A")
    t.expect("good")
    assert b"\x1b[2J" not in t.raw
    t.send("\x03")
    t.prompt()
    assert t.leave() == 0


def test_keys_typed_while_an_answer_comes_are_the_next_message(terminal, tmp_path):
    t = terminal("--temp", "0", "--max-tokens", "40")
    t.send("Tell me a story.\r")
    t.expect("\x1b[?2004l")
    t.send("second one\r")
    t.expect("\x1b[?2004h")
    t.prompt()
    t.ask(f"/save {tmp_path / 'ahead.json'}")
    messages = json.loads((tmp_path / "ahead.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["Tell me a story.", "second one"]


def test_lines_are_broken_between_words_at_the_width(terminal):
    t = terminal("--temp", "0", "--max-tokens", "60", columns=40)
    t.send("Describe a forest in one long paragraph.\r")
    t.expect("\x1b[?2004l")
    start = t.seen
    t.expect("tok/s")
    column, rows = 0, 0
    for part in re.split(rb"(\x1b\[[0-9;]*[A-Za-z])", t.raw[start : t.seen]):
        back = re.fullmatch(rb"\x1b\[(\d+)D", part)
        if back:
            column -= int(back[1])
        elif not part.startswith(b"\x1b"):
            for c in part.decode():
                column = 0 if c in "\r\n" else column + 1
                rows += c == "\n"
                assert 0 <= column <= 40
    assert rows >= 3


def test_no_color_means_no_colour(terminal):
    t = terminal("--max-tokens", "4", NO_COLOR="1")
    t.ask("Hello")
    t.ask("/help")
    assert not re.search(rb"\x1b\[[0-9;]*m", t.raw)
    assert t.leave() == 0


@pytest.mark.parametrize("begun", [b"abc\x1b", b"abc\x1b[", b"abc"], ids=["escape", "half a key", "no end"])
def test_a_paste_whose_end_got_lost_is_ended_by_ctrl_c(terminal, begun):
    t = terminal()
    t.send(b"\x1b[200~" + begun)
    t.expect("abc")
    t.send("\x03")
    t.prompt()
    assert t.leave() == 0


def test_a_pasted_ctrl_c_does_not_make_the_rest_of_the_paste_keys(terminal, tmp_path):
    t = terminal("--max-tokens", "2")
    t.send(f"\x1b[200~abc\x03/save {tmp_path / 'stolen.json'}\r\x1b[201~")
    t.prompt()
    assert "nothing to undo" in t.ask("/undo")
    assert t.leave() == 0
    assert not (tmp_path / "stolen.json").exists()


def test_a_long_history_is_not_lost(terminal, tmp_path):
    path = tmp_path / "state" / "chat_history"
    path.parent.mkdir(exist_ok=True)
    lines = [f"line {i} " + "x" * 1000 for i in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    t = terminal("--max-tokens", "2")
    t.send("\x1b[A")
    t.expect("line 4999")
    t.send("\x03")
    t.prompt()
    assert t.leave() == 0
    assert path.read_text().splitlines() == lines[-1000:]


def test_a_history_that_is_a_fifo_is_told_and_not_waited_for(tmp_path):
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / "chat_history")
    t = Terminal(tmp_path / "state")
    assert "not a file" in t.text
    assert t.leave() == 0
    t.close()


# ---- on a pipe ----------------------------------------------------------------------------------------------


def piped(state, text, *options):
    return subprocess.run(
        [program_path(), "chat", model_path(), "--temp", "0", *options],
        input=text if isinstance(text, bytes) else text.encode(), capture_output=True, timeout=PATIENCE,
        env=environment(state),
    )


def test_a_pipe_gets_answers_and_nothing_else(tmp_path):
    done = piped(tmp_path, "Say hello.\n\n/stats\nWhat did I ask?\n", "--max-tokens", "12")
    assert done.returncode == 0
    out = done.stdout.decode()
    assert "\x1b" not in out and ">" not in out and "tok/s" not in out
    assert len(out.strip()) > 10
    assert "tok/s" in done.stderr.decode()  # what /stats says is no answer
    assert not (tmp_path / "chat_history").exists()
    again = piped(tmp_path, "Say hello.\n\nWhat did I ask?\n", "--max-tokens", "12")
    assert again.stdout == done.stdout


def test_a_pipe_may_hold_several_lines_and_end_without_one(tmp_path):
    path = tmp_path / "talk.json"
    piped(tmp_path, f"one\\\ntwo\n```\na\n```\n/save {path}", "--max-tokens", "2")
    users = [m["content"] for m in json.loads(path.read_text())["messages"] if m["role"] == "user"]
    assert users == ["one\ntwo", "```\na\n```"]


def test_bad_input_is_refused_and_the_next_line_is_answered(tmp_path):
    done = piped(tmp_path, b"\xff\xfe\n" + b"x" * (2 << 20) + b"\nHello\n", "--max-tokens", "4")
    assert done.returncode == 1
    err = done.stderr.decode()
    assert "not UTF-8" in err and "longer than" in err
    assert done.stdout.strip()


def test_a_conversation_longer_than_the_context_is_refused_with_the_numbers(tmp_path):
    done = piped(tmp_path, "word " * 400 + "\nHello\n", "--ctx", "256", "--max-tokens", "4")
    assert done.returncode == 1
    assert re.search(r"has \d+ tokens and the context holds 256", done.stderr.decode())
    assert done.stdout.strip()  # the next, shorter message is answered


def test_a_reader_that_leaves_ends_the_program(tmp_path):
    p = subprocess.Popen(
        [program_path(), "chat", model_path(), "--seed", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment(tmp_path),
    )
    p.stdin.write(b"Count to one thousand.\n" * 3)
    p.stdin.close()
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(PATIENCE) == 1


def test_sigint_on_a_pipe_ends_with_130(tmp_path):
    p = subprocess.Popen(
        [program_path(), "chat", model_path(), "--seed", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment(tmp_path),
    )
    p.stdin.write(b"Count to one thousand.\n")
    p.stdin.flush()
    p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    assert p.wait(PATIENCE) == 130
    p.stdin.close()
    p.stdout.close()


def test_an_input_that_cannot_be_read_and_an_output_that_is_full_are_told(tmp_path):
    def run(stdin, stdout=subprocess.DEVNULL, **kw):
        done = subprocess.run([program_path(), "chat", model_path(), "--temp", "0", "-n", "2"], stdin=stdin, stdout=stdout,
                              stderr=subprocess.PIPE, timeout=PATIENCE, env=environment(tmp_path), **kw)
        return done.returncode, done.stderr.decode()

    folder = os.open(tmp_path, os.O_RDONLY)
    code, said = run(folder)
    os.close(folder)
    assert code == 1 and "stdin: Is a directory" in said, said
    for empty in (subprocess.DEVNULL, None):
        code, said = run(empty, preexec_fn=None if empty else lambda: os.close(0))
        assert code == 1 and "stdin is empty" in said, said
    (tmp_path / "words").write_text("Hello\nHello\n")
    with open(tmp_path / "words", "rb") as words, open("/dev/full", "wb") as full:
        code, said = run(words, full)
    assert code == 1 and said.count("No space left on device") == 1, said
