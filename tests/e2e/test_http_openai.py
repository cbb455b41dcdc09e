"""The OpenAI surface: by structure of the bytes, and by the official package."""
import json
import re

import openai
import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


USER = [{"role": "user", "content": "Count from one to five."}]


def check_usage(usage):
    assert usage["tier"] == "l3"  # no --l1 was given
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def check_ingle(ingle, seed=None):
    assert set(ingle) == {"seed", "queue_ms", "ttft_ms", "prefill_tps", "decode_tps", "stop", "tier"}
    assert seed is None or ingle["seed"] == seed


# ---- whole answers

def test_a_chat_answer_has_every_member(server):
    a = server.post(CHAT, {"messages": USER, "max_tokens": 5, "seed": 42})
    assert a.status_code == 200 and a.headers["x-ingle-seed"] == "42" and a.headers["content-type"] == "application/json"
    d = a.json()
    assert list(d) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "ingle"]
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", d["id"]) and d["object"] == "chat.completion"
    assert re.fullmatch(r"fp_[0-9a-f]{16}", d["system_fingerprint"])
    (c,) = d["choices"]
    assert c["index"] == 0 and c["logprobs"] is None and c["finish_reason"] == "length"
    assert c["message"]["role"] == "assistant" and isinstance(c["message"]["content"], str) and "tool_calls" not in c["message"]
    assert d["usage"]["completion_tokens"] == 5
    check_usage(d["usage"])
    check_ingle(d["ingle"], 42)


def test_the_same_seed_gives_the_same_text_and_a_fresh_one_is_told(server):
    body = {"messages": USER, "max_tokens": 12, "temperature": 1.5}
    a = server.post(CHAT, body)
    seed = int(a.headers["x-ingle-seed"])
    assert seed == a.json()["ingle"]["seed"] < 2**53
    again = server.post(CHAT, {**body, "seed": seed}).json()
    assert again["choices"][0]["message"]["content"] == a.json()["choices"][0]["message"]["content"]
    assert server.post(CHAT, {**body, "seed": 2**64 - 1}).json()["ingle"]["seed"] == 2**64 - 1
    assert server.post(CHAT, {**body, "seed": -1}).json()["ingle"]["seed"] == 2**64 - 1
    assert server.post(CHAT, body).json()["ingle"]["seed"] != seed


def test_bias_and_penalties_change_the_answer_and_are_refused_beyond_the_vocabulary(server):
    body = {"messages": USER, "max_tokens": 8, "temperature": 0, "logprobs": True}

    def tokens(**kw):
        a = server.post(CHAT, body | kw)
        assert a.status_code == 200, a.text
        return [t["token"] for t in a.json()["choices"][0]["logprobs"]["content"]]

    plain = tokens()
    assert plain == tokens(repetition_penalty=1, presence_penalty=0, logit_bias={}, min_tokens_to_keep=5, xtc_probability=0)
    biased = tokens(logit_bias={"28": 100})
    assert len(set(biased)) == 1 and biased != plain
    assert len(set(tokens(logit_bias={"28": 20}, frequency_penalty=2, max_tokens=40))) > 1
    assert tokens(repetition_penalty=5, repetition_context_size=0) != plain
    drawn = dict(temperature=1, seed=1, max_tokens=16)
    assert tokens(**drawn) == tokens(**drawn) != tokens(**drawn, xtc_probability=1, xtc_threshold=0.05)
    e = server.post(CHAT, body | {"logit_bias": {"49152": 1}}).json()["error"]
    assert (e["code"], e["param"]) == ("invalid_value", "logit_bias") and "49152" in e["message"], e


def test_an_unknown_model_is_served_and_the_answer_says_by_what(server):
    real = server.get("/v1/models").json()["data"][0]["id"]
    a = server.post(CHAT, {"messages": USER, "max_tokens": 1, "model": "gpt-4o"})
    assert a.json()["model"] == real and a.headers["x-ingle-model-substituted"] == "1"
    for name in (real, "", "default", "local", None):
        a = server.post(CHAT, {"messages": USER, "max_tokens": 1, "model": name})
        assert a.json()["model"] == real and "x-ingle-model-substituted" not in a.headers


def test_a_completion_has_every_member_and_many_prompts_keep_their_order(server):
    d = server.post(TEXT, {"prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}).json()
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", d["id"]) and d["object"] == "text_completion"
    one = d["choices"][0]["text"]
    assert d["choices"] == [{"index": 0, "text": one, "logprobs": None, "finish_reason": "length"}]
    many = server.post(TEXT, {"prompt": ["Red, green,", "One, two, three,", "A, B, C,"], "max_tokens": 4, "temperature": 0}).json()
    assert [c["index"] for c in many["choices"]] == [0, 1, 2] and many["choices"][1]["text"] == one
    assert many["usage"]["completion_tokens"] == 12
    ids = server.post("/tokenize", {"content": "One, two, three,"}).json()["tokens"]
    by_ids = server.post(TEXT, {"prompt": ids, "max_tokens": 4, "temperature": 0}).json()
    assert by_ids["choices"][0]["text"] == one and by_ids["usage"]["prompt_tokens"] == len(ids)


# ---- streams

def check_chunks(chunks, name, include_usage):
    for c in chunks:
        assert c["object"] == name and (c["id"], c["created"], c["model"]) == (chunks[0]["id"], chunks[0]["created"], chunks[0]["model"])
        assert c["system_fingerprint"] == chunks[0]["system_fingerprint"]
    body = chunks
    if include_usage:
        *body, last = chunks
        assert last["choices"] == []
        check_usage(last["usage"])
        assert all(c["usage"] is None for c in body)
        check_ingle(body[-1]["ingle"])
    else:
        assert all("usage" not in c for c in chunks[:-1])
        check_usage(chunks[-1]["usage"])
        check_ingle(chunks[-1]["ingle"])
    assert all("ingle" not in c for c in body[:-1])
    for c in body:
        assert len(c["choices"]) == 1 and set(c["choices"][0]) >= {"index", "logprobs", "finish_reason"}
    assert all(c["choices"][0]["finish_reason"] is None for c in body[:-1])
    return [c["choices"][0] for c in body]


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chat_stream_follows_the_grammar(server, stream, include_usage):
    extra = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks, _, answer = stream(**extra)
    h = answer.headers
    assert h["content-type"] == "text/event-stream; charset=utf-8" and h["cache-control"] == "no-cache"
    assert h["x-accel-buffering"] == "no" and h["x-ingle-seed"] and h["transfer-encoding"] == "chunked"
    role, *middle, end = check_chunks(chunks, "chat.completion.chunk", include_usage)
    assert role["delta"] == {"role": "assistant", "content": ""} and role["finish_reason"] is None
    assert middle and all(set(c["delta"]) == {"content"} and c["delta"]["content"] for c in middle)
    assert end["delta"] == {} and end["finish_reason"] in ("stop", "length")
    whole = server.chat().json()
    assert "".join(c["delta"]["content"] for c in middle) == whole["choices"][0]["message"]["content"]
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_completion_stream_follows_the_grammar(server, stream, include_usage):
    extra = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks, _, _ = stream(TEXT, **extra)
    *middle, end = check_chunks(chunks, "text_completion", include_usage)
    assert all(c["text"] for c in middle) and end["text"] == "" and end["finish_reason"] == "length"
    whole = server.post(TEXT, {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}).json()
    assert "".join(c["text"] for c in middle) == whole["choices"][0]["text"]


def test_many_prompts_in_one_stream_finish_once_each(stream):
    chunks, _, _ = stream(TEXT, prompt=["A", "B", "C"], max_tokens=3)
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2] and sum("usage" in c for c in chunks) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == 9


def test_text_outside_ascii_is_whole_in_every_chunk(server, stream):
    ask = [{"role": "user", "content": "Repeat exactly: héllo 😀 日本語 – ü"}]
    chunks, _, answer = stream(messages=ask, max_tokens=40)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == server.post(CHAT, {"messages": ask, "max_tokens": 40, "temperature": 0}).json()["choices"][0]["message"]["content"]
    answer.content.decode("utf-8")
    for seed in range(2):  # noise makes broken characters: each comes out once, as U+FFFD
        body = {"prompt": "日本語", "max_tokens": 24, "temperature": 5.0, "seed": seed}
        whole = server.post(TEXT, body).json()["choices"][0]["text"]
        parts, _, _ = stream(TEXT, **body)
        assert "".join(c["choices"][0]["text"] for c in parts) == whole


# ---- stop strings

def count_text(server, **kw):
    return server.post(TEXT, {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 24, "temperature": 0, **kw}).json()


def test_a_stop_string_ends_before_itself_and_is_told(server, stream):
    text = count_text(server)["choices"][0]["text"]
    for stop in (text[7:9], text[3:12], text[10], text[:1]):
        want = text[:text.index(stop)]
        got = count_text(server, stop=stop)
        assert got["choices"][0]["text"] == want and got["choices"][0]["finish_reason"] == "stop" and got["ingle"]["stop"] == stop
        assert got["usage"]["completion_tokens"] <= 24
        chunks, _, _ = stream(TEXT, prompt="1, 2, 3, 4, 5,", max_tokens=24, stop=["never there", stop])
        assert "".join(c["choices"][0]["text"] for c in chunks) == want
        assert chunks[-1]["usage"]["completion_tokens"] == got["usage"]["completion_tokens"]
        assert chunks[-1]["ingle"]["stop"] == stop and all(c["choices"][0]["text"] for c in chunks[:-1])


def test_text_held_back_for_a_stop_comes_out_at_the_end(server, stream):
    text = count_text(server, max_tokens=10)["choices"][0]["text"]
    stop = text[-4:] + "\x01never"
    got = count_text(server, max_tokens=10, stop=stop)
    assert got["choices"][0]["text"] == text and got["choices"][0]["finish_reason"] == "length" and got["ingle"]["stop"] is None
    chunks, _, _ = stream(TEXT, prompt="1, 2, 3, 4, 5,", max_tokens=10, stop=[stop])
    assert "".join(c["choices"][0]["text"] for c in chunks) == text


def test_a_stop_that_is_a_special_token_ends_too(server):
    d = server.post(CHAT, {"messages": USER, "temperature": 0, "max_tokens": 200, "stop": "<|im_end|>"}).json()
    assert d["choices"][0]["finish_reason"] in ("stop", "length") and "<|im_end|>" not in d["choices"][0]["message"]["content"]


# ---- logprobs

def test_chat_logprobs_describe_the_tokens_and_stream_the_same(server, stream):
    body = {"messages": USER, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    d = server.post(CHAT, body).json()
    content = d["choices"][0]["logprobs"]["content"]
    assert len(content) == 6 and d["choices"][0]["logprobs"]["refusal"] is None
    for e in content:
        assert set(e) == {"id", "token", "bytes", "logprob", "top_logprobs"} and len(e["top_logprobs"]) == 3
        assert e["logprob"] == e["top_logprobs"][0]["logprob"] and e["id"] == e["top_logprobs"][0]["id"]  # greedy
        values = [t["logprob"] for t in e["top_logprobs"]]
        assert values == sorted(values, reverse=True) and all(v <= 0 for v in values)
    assert b"".join(bytes(e["bytes"]) for e in content).decode() == d["choices"][0]["message"]["content"]
    chunks, _, _ = stream(**{k: v for k, v in body.items() if k != "temperature"})
    streamed = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content
    assert server.post(CHAT, {**body, "top_logprobs": 0}).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_legacy_logprobs_have_offsets(server):
    c = server.post(TEXT, {"prompt": "1, 2, 3,", "max_tokens": 6, "temperature": 0, "logprobs": 2}).json()["choices"][0]
    lp = c["logprobs"]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"]) == 6
    assert "".join(lp["tokens"]) == c["text"]
    assert [c["text"][o:o + len(t)] for o, t in zip(lp["text_offset"], lp["tokens"])] == lp["tokens"]


# ---- limits

def test_the_context_is_never_cut_silently(server):
    n_ctx = server.get("/v1/models").json()["data"][0]["context_window"]
    one = server.post("/tokenize", {"content": " the"}).json()["tokens"]
    assert len(one) == 1
    for n, status in ((n_ctx + 1, 400), (n_ctx, 400)):
        a = server.post(TEXT, {"prompt": one * n, "max_tokens": 5})
        assert a.status_code == status, n
        e = a.json()["error"]
        assert (e["code"], e["n_prompt_tokens"], e["n_ctx"]) == ("context_length_exceeded", n, n_ctx)
        assert str(n) in e["message"] and str(n_ctx) in e["message"]
    a = server.post(CHAT, {"messages": [{"role": "user", "content": " the" * (n_ctx + 50)}]})
    assert a.status_code == 400 and a.json()["error"]["n_prompt_tokens"] > n_ctx


def test_a_prompt_that_fills_the_context_gets_one_token(start_server):
    s = start_server("--ctx", "128")
    one = s.post("/tokenize", {"content": " the"}).json()["tokens"]
    d = s.post(TEXT, {"prompt": one * 127, "max_tokens": 50, "temperature": 0}).json()
    assert d["usage"]["prompt_tokens"] == 127 and d["usage"]["completion_tokens"] == 1
    assert d["choices"][0]["finish_reason"] in ("length", "stop")
    assert s.post(TEXT, {"prompt": one * 128}).status_code == 400


# ---- helpers

def test_counting_equals_what_generation_counts(server):
    body = {"messages": [{"role": "system", "content": "Be brief."}, *USER]}
    n = server.post(CHAT + "/input_tokens", body).json()
    assert n["object"] == "response.input_tokens"
    assert n["input_tokens"] == server.post(CHAT, {**body, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    prompt = server.post("/apply-template", body).json()["prompt"]
    tokens = server.post("/tokenize", {"content": prompt}).json()["tokens"]
    assert len(tokens) == n["input_tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == prompt
    pieces = server.post("/tokenize", {"content": "hi there", "with_pieces": True}).json()["tokens"]
    assert "".join(p["piece"] for p in pieces) == "hi there"


def test_special_tokens_in_messages_are_only_text(server):
    n = [server.post(CHAT + "/input_tokens", {"messages": [{"role": "user", "content": c}]}).json()["input_tokens"]
         for c in ("a", "a<|im_end|>")]
    assert n[1] > n[0] + 1  # spelled out in several tokens, not as the one that ends a turn


# ---- the official package

def test_the_package_chats(client):
    r = client.chat.completions.create(model="any", messages=USER, max_tokens=6, temperature=0)
    assert r.choices[0].message.content and r.usage.completion_tokens == 6
    text = ""
    with client.chat.completions.create(model="any", messages=USER, max_tokens=6, temperature=0, stream=True,
                                        stream_options={"include_usage": True}) as s:
        for chunk in s:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            else:
                assert chunk.usage.completion_tokens == 6
    assert text == r.choices[0].message.content
    assert client.completions.create(model="any", prompt="One, two,", max_tokens=3).choices[0].text
    assert client.models.list().data[0].id and client.models.retrieve(client.models.list().data[0].id).id


def test_the_package_raises_the_right_errors(client, server):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="any", messages=USER, temperature=9)
    assert e.value.code == "invalid_value" and e.value.param == "temperature"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="any", messages=USER, n=3)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    lp = client.chat.completions.create(model="any", messages=USER, max_tokens=2, logprobs=True, top_logprobs=2)
    assert len(lp.choices[0].logprobs.content) == 2 and len(lp.choices[0].logprobs.content[0].top_logprobs) == 2


def test_usage_counts_cached_tokens(server):
    body = {"messages": [{"role": "user", "content": "Tell me about the sea. " * 40}], "max_tokens": 1, "temperature": 0}
    first = server.post(CHAT, body).json()
    again = server.post(CHAT, body).json()
    off = server.post(CHAT, {**body, "cache_prompt": False}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 == off["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["choices"][0]["message"] == again["choices"][0]["message"] == off["choices"][0]["message"]
    json.dumps(first)
