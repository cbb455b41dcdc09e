"""Answers that have to be of a schema, a regex or a grammar: by the official package, at a temperature that makes
nonsense of everything else. What ends by itself parses and validates; what is cut is a beginning of such a text."""
import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest

from conftest import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SEEDS = (1, 2)
STR, INT, BOOL = {"type": "string", "maxLength": 8}, {"type": "integer", "minimum": -5, "maximum": 99}, {"type": "boolean"}


def obj(required=None, **properties):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False}


def arr(items, least=0, most=3):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


NODE = obj(v=INT, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})
SCHEMAS = [
    obj(a=INT), obj(a=BOOL, b=BOOL), obj(name=STR, age=INT), obj(required=["b"], a=STR, b=BOOL),
    obj(a=obj(b=obj(c=obj(d=BOOL)))), obj(a=arr(INT, 2, 2)), obj(a=arr(arr(BOOL, 1, 2), 1, 2)), arr(obj(x=INT), 1, 2),
    {"enum": ["red", "green", 3, None, True]}, {"const": {"k": [1, "two", None]}}, obj(kind={"enum": ["a", "b"]}, n=INT),
    {"type": "integer", "minimum": 10, "maximum": 99}, {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "minimum": -2.5, "maximum": 2.25},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 500}, {"type": ["boolean", "null"]},
    {"type": "string", "pattern": "^[a-f]{2,4}$"}, {"type": "string", "pattern": "^\\d{3}-\\d{4}$"},
    {"type": "string", "pattern": "^(north|south)-(east|west)$"}, {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}, {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "email"}, {"enum": ["größe", "東京", "\U0001f600", "a\"b\\c\n"]},
    obj(**{"größe": INT, "名前": STR}), obj(**{"a b": BOOL, "c\"d": BOOL}),
    {**NODE, "$defs": {"node": NODE}}, {"$ref": "#/$defs/t", "$defs": {"t": obj(kids=arr({"$ref": "#/$defs/t"}, 0, 1))}},
    {"type": "array", "prefixItems": [BOOL, INT, {"const": "x"}], "items": False, "minItems": 3, "maxItems": 3},
    {"anyOf": [obj(a=INT), obj(b=BOOL)]}, {"oneOf": [{"type": "null"}, obj(c=BOOL)]},
    {"allOf": [{"type": "object", "properties": {"a": INT}, "required": ["a"]}, {"properties": {"b": BOOL}, "required": ["b"]}],
     "maxProperties": 2, "additionalProperties": True},
    {"type": "object", "additionalProperties": BOOL, "minProperties": 1, "maxProperties": 1},
    {"type": "object", "patternProperties": {"^x[0-9]$": INT}, "additionalProperties": False, "minProperties": 1, "maxProperties": 1},
    obj(a={"anyOf": [INT, {"type": "null"}]}, b={"type": ["integer", "boolean"], "minimum": 0, "maximum": 9}),
    obj(**{f"k{i}": BOOL for i in range(12)}), obj(required=[], a=BOOL, b=BOOL, c=BOOL),
    obj(tags=arr({"enum": ["x", "y", "z"]}, 1, 3), at={"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}),
]
ASK = [{"role": "user", "content": "Describe something."}]


def json_schema(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


@pytest.fixture(scope="module")
def served():
    server = Server()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=120)


def ask(client, format, seed, stream=False, **kw):
    answer = client.chat.completions.create(model="local", messages=ASK, temperature=1.5, seed=seed, max_tokens=120,
                                            response_format=format, stream=stream, **kw)
    if not stream:
        return answer.choices[0].message.content, answer.choices[0].finish_reason
    text, end = "", None
    for chunk in answer:
        for c in chunk.choices:
            text, end = text + (c.delta.content or ""), c.finish_reason or end
    return text, end


def test_every_answer_that_ends_is_of_its_schema(client):
    assert len(SCHEMAS) == 40
    jobs = [(i, seed) for i in range(len(SCHEMAS)) for seed in SEEDS]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda j: ask(client, json_schema(SCHEMAS[j[0]]), j[1], stream=j[1] == 2), jobs))
    n_ended = 0
    for (i, seed), (text, end) in zip(jobs, answers):
        if end == "length":
            continue
        n_ended += 1
        assert end == "stop"
        jsonschema.Draft202012Validator(SCHEMAS[i], format_checker=jsonschema.FormatChecker()).validate(json.loads(text))
    assert n_ended >= 0.9 * len(jobs), n_ended


def test_without_the_schema_the_answers_are_not_of_it(client):
    text, _ = ask(client, {"type": "text"}, 1)
    with pytest.raises(ValueError):
        json.loads(text)


def test_any_object_a_regex_a_grammar_and_the_names_of_others(served, client):
    for seed in SEEDS:
        text, end = ask(client, {"type": "json_object"}, seed)
        assert text.startswith("{") and (end == "length" or isinstance(json.loads(text), dict))
        text, end = ask(client, {"type": "regex", "regex": "[A-Z][a-z]{2,6} is [0-9]{1,2}\\."}, seed)
        assert end == "stop" and re.fullmatch("[A-Z][a-z]{2,6} is [0-9]{1,2}\\.", text)
        lark = 'start: e\ne: "(" e ("+" | "*") n ")" | n\nn: /[1-9][0-9]{0,2}/'
        text, end = ask(client, {"type": "lark", "lark": lark}, seed)
        assert re.fullmatch("[0-9()+*]*", text) and (end == "length" or eval(text) > 0)
    body = {"prompt": "The answer is ", "max_tokens": 30, "temperature": 1.5, "seed": 3}
    a = served.post(TEXT, {**body, "guided_regex": "(yes|no), [a-z]{3}"}).json()
    assert re.fullmatch("(yes|no), [a-z]{3}", a["choices"][0]["text"])
    a = served.post(TEXT, {**body, "prompt": ["One: ", "Two: "], "guided_json": obj(a=BOOL)}).json()
    assert all(set(json.loads(c["text"])) == {"a"} for c in a["choices"])


def test_limits_stops_seeds_penalties_and_company(served, client):
    long = json_schema(arr({"type": "string", "minLength": 30}, 9, 9))
    text, end = ask(client, long, 1, extra_body={"max_completion_tokens": 20})
    assert end == "length" and text.startswith("[")
    text, end = ask(client, json_schema(obj(a=BOOL, b=BOOL)), 1, stop=["\"b\""])
    assert end == "stop" and "\"a\"" in text and "\"b\"" not in text
    text, end = ask(client, json_schema(obj(a=INT, b=BOOL)), 1, presence_penalty=2, frequency_penalty=2, logprobs=True)
    assert end == "stop" and set(json.loads(text)) == {"a", "b"}
    alone = ask(client, json_schema(SCHEMAS[2]), 5)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask, client, f, 9) for f in ({"type": "text"}, json_schema(SCHEMAS[5]), {"type": "text"})]
        assert ask(client, json_schema(SCHEMAS[2]), 5) == alone
        [o.result() for o in others]


HOSTILE = [
    ({"allOf": [{"anyOf": [obj(required=[], **{f"p{i}_{j}": STR}) | {"additionalProperties": True} for j in range(4)]} for i in range(10)]},
     "schema_too_complex", "#"),
    ({"type": "array", "maxItems": 10**9}, "schema_too_complex", "#/maxItems"),
    ({"enum": list(range(20_000))}, "schema_too_complex", "#/enum"),
    ({"anyOf": [{"type": "null"}] * 21_000}, "schema_too_complex", "#/anyOf"),
    ({"type": "string", "description": "x" * 600_000}, "schema_too_complex", "524288"),
    ({"type": "string", "pattern": "["}, "invalid_schema", "#/pattern"),
    ({"type": "string", "minLength": 9, "maxLength": 1}, "invalid_schema", "#/minLength"),
    ({"properties": {"a": {"type": 7}}}, "invalid_schema", "#/properties/a/type"),
    ({"properties": {"a": {"format": "phone"}}}, "invalid_schema", "#/properties/a/format"),
    ({"$ref": "#"}, "invalid_schema", "#"), ({"$ref": "http://127.0.0.1/"}, "invalid_schema", "#/$ref"),
    ({"$ref": "#/nowhere"}, "invalid_schema", "#/$ref"), ({"not": {}}, "invalid_schema", "#/not"), (False, "invalid_schema", "#"),
    ([], "invalid_schema", "#"), ("x", "invalid_schema", "#"), ({"x-guidance": {"lenient": True}}, "invalid_schema", "#/x-guidance"),
]


def test_hostile_schemas_are_refused_with_their_place_and_change_nobody(served):
    canary = served.chat().json()["choices"]
    for schema, code, place in HOSTILE:
        a = served.chat(response_format=json_schema(schema))
        e = a.json()["error"]
        assert a.status_code == 400 and e["code"] == code and place in e["message"], (schema if len(str(schema)) < 200 else place, e)
        assert e["param"] == "response_format.json_schema.schema"
    for format in ({"type": "regex", "regex": "(?:(?:(?:.{0,500}){0,500}){0,500}){0,500}"}, {"type": "regex", "regex": "("},
                   {"type": "lark", "lark": "start: " + "(" * 5000}, {"type": "lark", "lark": "start: start"}, {"type": "yaml"},
                   {"type": "lark", "lark": 'start: %json {"$ref": "http://127.0.0.1/"}'}, {"type": "json_schema"}):
        a = served.chat(response_format=format)
        assert 400 <= a.status_code < 500 and a.json()["error"]["param"].startswith("response_format"), a.text
    deep = {"type": "integer"}
    for _ in range(45):
        deep = obj(a=deep)
    assert served.chat(response_format=json_schema(deep)).status_code == 200
    doubled = {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
    doubled = {"$ref": "#/$defs/0", "$defs": {**doubled, "40": {"type": "object"}}}
    for odd in (doubled, {}, {"type": "object"}, {"type": "string", "maxLength": 100_000}, {"type": "string", "pattern": "(a+)+b"}):
        assert served.chat(response_format=json_schema(odd)).status_code == 200
    loose = served.chat(response_format=json_schema({"type": "integer", "not": {"const": 1}, "maximum": 9, "minimum": 0}, False)).json()
    assert loose["ingle"]["schema_ignored"] == ["#/not"]
    assert served.chat().json()["choices"] == canary


def test_the_memory_of_grammars_comes_back(served):
    def held():
        with open(f"/proc/{served.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def once(i):
        assert served.chat(max_tokens=2, response_format=json_schema(obj(**{f"k{i}": STR}))).status_code == 200
    for i in range(20):
        once(i)
    before = held()
    for i in range(60):
        once(100 + i)
    assert held() - before < 32 * 1024
