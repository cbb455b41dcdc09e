"""/metrics: read by the official client's parser, equal to what /stats and the answers themselves say, and never with
a word of a client in it."""
import http.client
import json
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import ENDLESS

WANTED = {  # name without _total: its type
    "ingle_prompt_tokens": "counter", "ingle_cached_tokens": "counter", "ingle_generated_tokens": "counter",
    "ingle_prefill_seconds": "counter", "ingle_decode_seconds": "counter", "ingle_requests": "counter",
    "ingle_requests_active": "gauge", "ingle_requests_queued": "gauge", "ingle_batch_rows": "histogram",
    "ingle_ttft_seconds": "histogram", "ingle_itl_seconds": "histogram", "ingle_queue_seconds": "histogram",
    "ingle_kv_blocks": "gauge", "ingle_prompt_cache_hits": "counter", "ingle_prompt_cache_misses": "counter",
    "ingle_cancelled": "counter", "ingle_admission_rejected": "counter", "ingle_rss_bytes": "gauge",
    "ingle_build_info": "gauge"}


def scrape(server):
    r = server.get("/metrics")
    assert r.status_code == 200 and r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert r.text.endswith("\n")
    families = list(text_string_to_metric_families(r.text))
    assert len({f.name for f in families}) == len(families)
    samples = {}
    for f in families:
        for s in f.samples:
            key = (s.name, *sorted(s.labels.items()))
            assert key not in samples
            samples[key] = s.value
    return families, samples


def value(samples, name, **labels):
    return samples.get((name, *sorted(labels.items())), 0)


def test_every_figure_has_a_help_a_type_and_sound_buckets(server):
    server.chat("Hi")
    families, samples = scrape(server)
    assert WANTED.items() <= {f.name: f.type for f in families}.items()
    for f in families:
        assert f.documentation.endswith("."), f.name
        assert f.name.startswith("ingle_")
        if f.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in f.samples if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
        assert [n for _, n in buckets] == sorted(n for _, n in buckets)
        assert buckets[-1][1] == value(samples, f.name + "_count") > 0
        assert value(samples, f.name + "_sum") > 0
    info = [k for k in samples if k[0] == "ingle_build_info"]
    assert len(info) == 1 and dict(info[0][1:])["version"] == server.get("/v1").json()["version"]
    assert dict(info[0][1:])["isa"] not in ("", "unknown")


def test_figures_are_those_of_stats_and_of_the_answers(start_server, tiny_model):
    s = start_server("--ctx", "256", "--threads", "2", model=tiny_model)
    _, before = scrape(s)
    assert value(before, "ingle_generated_tokens_total") == 0 and value(before, "ingle_ttft_seconds_count") == 0
    prompt, n = 0, 0
    for i in range(4):
        r = s.post("/v1/completions", {"prompt": [65, 66, 67] * 30, "max_tokens": 5, "temperature": 0}).json()
        prompt, n = prompt + r["usage"]["prompt_tokens"], n + r["usage"]["completion_tokens"]
    s.wait_idle()
    st, (_, m) = s.stats(), scrape(s)
    for name, where in {"prompt": "prompt_tokens", "cached": "cached_tokens", "generated": "generated_tokens"}.items():
        assert value(m, f"ingle_{name}_tokens_total") == st["requests"][where]
    assert value(m, "ingle_prompt_tokens_total") == prompt
    assert n <= value(m, "ingle_generated_tokens_total") <= n + 4  # one after a stop may come too late to be told
    assert value(m, "ingle_ttft_seconds_count") == value(m, "ingle_queue_seconds_count") == 4
    assert value(m, "ingle_itl_seconds_count") == value(m, "ingle_generated_tokens_total") - 4
    assert value(m, "ingle_batch_rows_count") == value(m, "ingle_steps_total") == st["batch"]["steps"]
    assert value(m, "ingle_batch_rows_sum") / st["batch"]["steps"] == pytest.approx(st["batch"]["mean_rows"], abs=0.01)
    assert value(m, "ingle_prompt_cache_hits_total") == st["prompt_cache"]["hits"] == 3
    assert value(m, "ingle_prompt_cache_misses_total") == st["prompt_cache"]["misses"] == 1
    assert value(m, "ingle_prompt_cache_hit_tokens_total") == st["prompt_cache"]["hit_tokens"] > 0
    assert value(m, "ingle_kv_blocks", state="free") == st["kv"]["blocks_free"]
    assert value(m, "ingle_kv_blocks", state="cached") == st["prompt_cache"]["blocks"]
    assert sum(value(m, "ingle_kv_blocks", state=k) for k in ("free", "cached", "used")) == st["kv"]["blocks_total"]
    assert value(m, "ingle_requests_total", route="/v1/completions", status="200") == 4
    assert value(m, "ingle_requests_active") == value(m, "ingle_requests_queued") == 0
    assert value(m, "ingle_rss_bytes") == pytest.approx(st["server"]["rss_bytes"], rel=0.05)
    assert 0 < value(m, "ingle_prefill_seconds_total") < 60 and 0 < value(m, "ingle_ttft_seconds_sum") < 60


def test_ends_and_refusals_are_counted_by_their_cause(start_server):
    s = start_server("--ctx", "4096", "--batch", "1")
    long = {"prompt": [65] * 3, "max_tokens": 4000, "temperature": 0, "stream": True}
    assert s.post("/v1/completions", {"prompt": [65] * 5000}).status_code == 400
    assert s.get("/no/such/path").status_code == 404
    assert s.get("/tokenize").status_code == 405
    assert s.post("/v1/completions", {"prompt": [10 ** 9]}).status_code == 400
    c = http.client.HTTPConnection("127.0.0.1", s.port)
    c.connect()
    body = json.dumps(long).encode()
    c.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert c.sock.recv(16).startswith(b"HTTP/1.1 200")
    c.sock.close()
    s.wait_idle()
    _, m = scrape(s)
    assert value(m, "ingle_cancelled_total", why="gone") == 1
    assert value(m, "ingle_admission_rejected_total", code="context_length_exceeded") == 1
    assert value(m, "ingle_requests_total", route="/v1/completions", status="400") == 2
    assert value(m, "ingle_requests_total", route="other", status="404") == 1
    assert value(m, "ingle_requests_total", route="/tokenize", status="405") == 1


def test_nothing_that_a_client_says_is_told(server):
    word = "Xylophonquark"
    server.chat(word, user=word, model=word)
    server.post("/v1/completions", {"prompt": word, word: 1, "stop": [word], "max_tokens": 1})
    server.get("/" + word, headers={"x-request-id": word, "User-Agent": word})
    text = server.get("/metrics").text
    assert word not in text and not re.search(r"quark", text, re.I)


def test_a_key_is_asked_for_and_the_route_can_be_off(start_server, tiny_model):
    s = start_server("--api-key", "k1", "--ctx", "256", model=tiny_model)
    assert s.get("/metrics").status_code == 401
    assert s.get("/metrics", headers={"Authorization": "Bearer k1"}).status_code == 200
    off = start_server("--no-metrics", "--ctx", "256", model=tiny_model)
    assert off.get("/metrics").status_code == 404 and "--no-metrics" in off.get("/metrics").text
    assert off.request("HEAD", "/metrics").status == 404
    assert s.post("/metrics", {}, headers={"Authorization": "Bearer k1"}).status_code == 405


def test_it_answers_while_the_engine_is_busy_and_says_so(server):
    body = {"messages": [{"role": "user", "content": ENDLESS}], "max_tokens": 4000, "temperature": 0, "stream": True}
    with server.post("/v1/chat/completions", body, stream=True) as r:
        lines = r.iter_lines()  # held: the connection ends with it
        assert next(lines).startswith(b"data: ")
        begin = time.monotonic()
        _, m = scrape(server)
        assert time.monotonic() - begin < 5
        assert value(m, "ingle_requests_active") == 1 and value(m, "ingle_requests_running") == 1
        server.wait_until(lambda: value(scrape(server)[1], "ingle_kv_blocks", state="used") > 0, "a block is in use")
    server.wait_idle()
    assert value(scrape(server)[1], "ingle_requests_active") == 0
