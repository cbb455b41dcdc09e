"""The Anthropic surface: by structure of the bytes, and by the official package."""
import json
import re

import anthropic
import pytest
import requests

from test_http_hangup import LONG, open_request, read_events

MESSAGES, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
USER = [{"role": "user", "content": "Count from one to five."}]
BASE = {"model": "x", "messages": USER, "max_tokens": 24, "seed": 42, "temperature": 0.8}


def events(body):
    for frame in body.strip().split("\n\n"):
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        yield event


def check_usage(u, n):
    assert u["input_tokens"] + u["cache_read_input_tokens"] == n and u["cache_creation_input_tokens"] == 0


def test_a_whole_message_is_what_the_chat_route_says(server):
    body = dict(BASE)
    body["model"] = server.get("/v1/models").json()["data"][0]["id"]
    n = server.post(COUNT, {k: body[k] for k in ("model", "messages")}).json()
    assert list(n) == ["input_tokens"]
    a = server.post(MESSAGES, body)
    assert a.status_code == 200 and a.headers["request-id"] == a.headers["x-request-id"]
    d, chat = a.json(), server.post(CHAT, body).json()
    assert re.fullmatch("msg_[0-9a-f]{24}", d["id"]) and d["type"] == "message" and d["role"] == "assistant"
    assert d["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    check_usage(d["usage"], n["input_tokens"])
    assert d["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    other = server.post(MESSAGES, {**body, "seed": 43}).json()
    assert other["content"] != d["content"]  # the comparison above can fail


def test_a_stream_says_the_whole_message_in_order(server):
    body = dict(BASE, model=server.get("/v1/models").json()["data"][0]["id"])
    whole = server.post(MESSAGES, body).json()
    got = list(events(server.post(MESSAGES, {**body, "stream": True}).text))
    kinds = [e["type"] for e in got]
    n = kinds.count("content_block_delta")
    assert n > 1 and kinds == (["message_start", "ping", "content_block_start"] + ["content_block_delta"] * n +
                               ["content_block_stop", "message_delta", "message_stop"])
    assert "".join(e["delta"]["text"] for e in got if e["type"] == "content_block_delta") == whole["content"][0]["text"]
    start, end = got[0]["message"], got[-2]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["output_tokens"] == 0
    check_usage(start["usage"], sum(whole["usage"][k] for k in ("input_tokens", "cache_read_input_tokens")))
    assert end["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_stop_reasons(server):
    body = dict(BASE, model=server.get("/v1/models").json()["data"][0]["id"])
    whole = server.post(MESSAGES, {**body, "max_tokens": 2}).json()
    assert whole["stop_reason"] == "max_tokens" and whole["stop_sequence"] is None
    text = server.post(MESSAGES, body).json()["content"][0]["text"]
    cut = server.post(MESSAGES, {**body, "stop_sequences": [text[4:8]]}).json()
    assert cut["stop_reason"] == "stop_sequence" and cut["stop_sequence"] == text[4:8]
    assert cut["content"][0]["text"] == text[:text.index(text[4:8])]


@pytest.mark.parametrize("change", [{"max_tokens": None}, {"messages": []}, {"tools": [{"name": "a"}]}])
def test_errors_have_anthropics_shape(server, change):
    a = server.post(MESSAGES, {**BASE, **change})
    d = a.json()
    assert a.status_code == 400 and d["type"] == "error" and d["error"]["type"] == "invalid_request_error"
    assert next(iter(change)) in d["error"]["message"] and d["request_id"] == a.headers["request-id"]


def test_who_waits_too_long_is_told_so_in_both_shapes(start_server):
    server = start_server("--batch", "1", "--queue-timeout", "1")
    running = open_request(server, {**LONG, "stream": True})
    read_events(running, 2)
    a = server.post(MESSAGES, BASE)
    assert a.status_code == 529 and a.json()["error"]["type"] == "overloaded_error" and int(a.headers["retry-after"]) >= 1
    try:
        got = server.post(MESSAGES, {**BASE, "stream": True}, stream=True)
        lines = []
        for line in got.iter_lines(decode_unicode=True):
            lines.append(line)
    except requests.exceptions.ChunkedEncodingError:
        pass  # the connection ends without pretending success
    *_, error = events("\n".join(lines))
    assert got.status_code == 200 and error["type"] == "error" and error["error"]["type"] == "overloaded_error"
    running.close()
    server.wait_idle()


# ---- the official package

@pytest.fixture
def client_of():
    """f(server, key) -> a client, whose connections end with the test."""
    made = []

    def get(server, key="none"):
        made.append(anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=60))
        return made[-1]

    yield get
    for client in made:
        client.close()


SAID = {"model": "local", "messages": USER, "max_tokens": 16, "system": [{"type": "text", "text": "Be brief."}],
        "metadata": {"user_id": "u"}, "extra_body": {"seed": 7, "temperature": 0.8}}


def test_the_package_reads_whole_and_streamed_messages(server, client_of):
    client = client_of(server)
    whole = client.messages.create(**SAID)
    with client.messages.stream(**SAID) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text and text
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens
    n = client.messages.count_tokens(model="local", messages=USER, system=SAID["system"]).input_tokens
    for usage in (whole.usage, final.usage):
        check_usage(usage.model_dump(), n)
    assert final.usage.cache_read_input_tokens > 0  # the same prompt was computed a moment ago


def test_the_package_raises_its_own_errors(server, start_server, client_of):
    with pytest.raises(anthropic.BadRequestError) as e:
        client_of(server).messages.create(**{**SAID, "max_tokens": 0})
    assert e.value.body["error"]["type"] == "invalid_request_error" and "max_tokens" in e.value.body["error"]["message"]
    locked = start_server("--api-key", "secret")
    with pytest.raises(anthropic.AuthenticationError) as e:
        client_of(locked, "wrong").messages.create(**SAID)
    assert e.value.body["error"]["type"] == "authentication_error"
    assert client_of(locked, "secret").messages.create(**SAID).content[0].text
