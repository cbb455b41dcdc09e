"""A server of tier l1: the same answers alone, in company and from the cache, and what it says of itself."""
import concurrent.futures
import os

import pytest

TEXT = "/v1/completions"
GEMMA = os.environ.get("INGLE_TEST_GEMMA", "")
TOPICS = ["a lighthouse", "the sea at night", "how bread is baked", "an old bridge"]


@pytest.fixture(scope="module")
def windowed(start_server_once):
    if not os.path.exists(GEMMA):
        pytest.skip("there is no Gemma 3 file: set INGLE_TEST_GEMMA")
    return start_server_once("--l1", "--ctx", "2048", "--batch", "4", model=GEMMA)


@pytest.fixture(scope="module")
def start_server_once():
    from conftest import Server
    running = []

    def start(*flags, **more):
        running.append(Server(*flags, **more))
        return running[-1]

    yield start
    for s in running:
        s.stop()


def body(topic, seed, **more):
    """Longer than the window of 512, so that the ring counts."""
    long = f"Write about {topic}. " + " ".join(f"Point {i}: say why {topic} matters to people of trade {i}." for i in range(45)) + " In short, I believe that"
    return {"prompt": long, "max_tokens": 12, "temperature": 1.5, "seed": seed, "logprobs": 3, **more}


def answer(server, b):
    a = server.post(TEXT, b)
    assert a.status_code == 200, a.text
    d = a.json()
    return d["choices"][0]["text"], d["choices"][0]["logprobs"], d["usage"]


def test_company_and_the_cache_change_no_bit(windowed):
    requests = [body(topic, seed) for seed, topic in enumerate(TOPICS)]
    alone = [answer(windowed, r) for r in requests]
    assert all(usage["tier"] == "l1" and usage["prompt_tokens"] > 520 for _, _, usage in alone)
    assert len({text for text, _, _ in alone}) == len(TOPICS)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda r: answer(windowed, r), requests))
    assert [a[:2] for a in together] == [a[:2] for a in alone]
    assert any(usage["prompt_tokens_details"]["cached_tokens"] > 500 for _, _, usage in together)


def test_a_conversation_that_goes_on_is_that_of_a_fresh_server(windowed, start_server_once):
    """Its first answer was summed in a ring: it must not be taken from the cache, or the bits would be others."""
    first = body(TOPICS[0], 7)
    text, _, _ = answer(windowed, first)
    more = {**first, "prompt": first["prompt"] + text + " And what else?"}
    fresh = start_server_once("--l1", "--ctx", "2048", "--batch", "1", "--threads", "1", model=GEMMA)
    assert answer(windowed, more)[:2] == answer(fresh, more)[:2]


def test_another_seed_gives_another_answer(windowed):
    """Negative control."""
    assert answer(windowed, body(TOPICS[0], 1))[:2] != answer(windowed, body(TOPICS[0], 2))[:2]


def test_it_says_what_its_answers_are_held_to(windowed):
    assert any("serve.tier" in line and "uncached" in line and "window" in line for line in windowed.log)
