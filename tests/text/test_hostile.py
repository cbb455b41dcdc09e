"""Templates that want to crash, hang or fill the machine: each ends in a text or in an error that says why,
and the same process renders a good one afterwards."""
import threading

import pytest

import driver

ANSWER_S = 120  # only a hang takes so long, whatever else the machine does
LOOP = "{%% for i in range(%d) %%}%s{%% endfor %%}"


def nested(n, body):
    """body in n thousand rounds: range alone has a limit."""
    return LOOP % (n, LOOP % (1000, body))


DEEP = "{% set ns = namespace(x=[], y=[]) %}" + nested(50, "{% set ns.x = [ns.x] %}")
DEEP_TWICE = "{% set ns = namespace(x=[], y=[]) %}" + nested(40, "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}")
DOUBLED = "{% set ns = namespace(x=[1], y=[1]) %}" + LOOP % (40, "{% set ns.x = [ns.x, ns.x] %}"
                                                            "{% set ns.y = [ns.y, ns.y] %}")
CYCLE = "{% set ns = namespace() %}{% set ns.a = ns %}"
LONG = "{% set s = 'ab' * 400000 %}{% set r = 'ab' * 400000 %}"
LAZY = "([1] * 100000000)"
LAZIER = "([[1] * 10000] * 10000)"

TEMPLATES = {
    # nesting that a parser could follow too deep
    "parens": "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
    "lists": "{{ " + "[" * 30000 + "]" * 30000 + " }}",
    "ifs": "{% if true %}" * 6000 + "x" + "{% endif %}" * 6000,
    "open ifs": "{% if true %}" * 60000,
    "fors": "{% for a in b %}" * 6000,
    "elifs": "{% if a %}" + "{% elif a %}" * 4000 + "{% endif %}",
    "more elifs": "{% if a %}" + "{%elif a%}" * 90000 + "{% endif %}",
    **{"chain of " + link: "{{ a" + link * 16000 + " }}" for link in (".b", "|e", "+1", "~1", "<1", "()", "[0]", " and 1")},
    "chain of not": "{{ " + "not " * 16000 + "1 }}",
    "chain of -": "{{ " + "-" * 60000 + "1 }}",
    "chain of else": "{{ " + "1 if a else " * 5000 + "1 }}",
    "long tag": "{{ '" + "a" * 70000 + "' }}",
    # much of everything
    "many tags": "{{ a }}" * 140000,
    "many sets": "{% set a=1 %}" * 70000,
    "many blocks": "".join("{%% block b%d %%}{%% endblock %%}" % i for i in range(20000)),
    "one loop": LOOP % (10**9, "x"),
    "two loops": LOOP % (25000, LOOP % (25000, "")),
    "repeat": "{{ 'A' * 10**10 }}",
    "indent": "{{ 'a\nb'|indent(10**9) }}",
    "output": LOOP % (18, "{{ 'a' * 1000000 }}"),
    "doubled text": "{% set ns = namespace(x='ab') %}" + LOOP % (60, "{% set ns.x = ns.x + ns.x %}") + "{{ ns.x|length }}",
    "doubled list": "{% set ns = namespace(x=[1]) %}" + LOOP % (60, "{% set ns.x = ns.x + ns.x %}") + "{{ ns.x|length }}",
    # recursion
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "include": "{% include 'chat_template' %}",
    "extends": "{% extends 'chat_template' %}",
    "loop": "{% for i in [[[]]] recursive %}{{ loop(i) }}{% endfor %}",
    # values that hold values
    **{"deep " + use: DEEP + use for use in (
        "", "{{ ns.x }}", "{{ (ns.x ~ 'a')|length }}", "{{ ([ns.x]|join)|length }}", "{{ {ns.x: 1}|length }}",
        "{{ ns.x|tojson }}", "{% for i in ns.x recursive %}{{ loop(i) }}{% endfor %}")},
    "deeper": "{% set ns = namespace(x=[]) %}" + nested(1000, "{% set ns.x = [ns.x] %}"),
    "deep ==": DEEP_TWICE + "{{ ns.x == ns.y }}",
    **{"doubled " + use: DOUBLED + use for use in (
        "{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x|string|length }}", "{{ ns.x in 'abc' }}", "{{ (ns.x ~ 'a')|length }}",
        "{{ ns.x == ns.y }}", "{{ [ns.x, ns.y]|max }}", "{{ [ns.x, ns.y]|unique|list|length }}")},
    **{"cycle " + use: CYCLE + use for use in (
        "{{ ns }}", "{{ [ns] }}", "{{ ns|tojson }}", "{{ (ns ~ 'x')|length }}",
        "{% set nt = namespace() %}{% set nt.a = nt %}{{ ns == nt }}")},
    **{"lazy " + use: "{{ " + use + " }}" for use in (
        f"{LAZY}|length", f"{LAZY}|last", f"2 in {LAZY}", f"{LAZY} == {LAZY}", f"{LAZY}|sort|length", f"{LAZY}|tojson",
        f"{LAZIER} == {LAZIER}", f"({LAZIER} ~ '')|length", f"[{LAZIER}, {LAZIER}]|max|length")},
    # steps that cost more than they say
    **{"steps " + step: LONG + LOOP % (30000, "{% set q = " + step + " %}") for step in (
        "s|replace('b', 'b')", "'zz' in s", "s|upper", "s[-1:]", "s == r", "s.startswith(r)", "s.find('aa')",
        "s.count('ab')", "s.split('b')|length", "s.strip(r)", "range(9000)|list|sort")},
    **{"number " + use: "{{ " + use + " }}" for use in (
        "'%1000000000d'|format(1)", "'%.1000000000f'|format(1.5)", "1.5|round(1000000000)", "10**100000", "2**127",
        "[1]|batch(1000000000, 1)|list", "[1]|slice(1000000000)|list", "9" * 60000, "strftime_now('%Y' * 100000)")},
    "join": "{{ (['x' * 1000] * 100000)|join|length }}",
    # nothing to reach, nothing to say
    "dunder": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "file": "{% include '/etc/passwd' %}",
    "debug": "{{ debug() }}",
    "nul": "a\0b{{ '\0' }}",
    "unclosed": "{{ a",
    "unclosed block": "{% if a %}",
    "unclosed text": "{{ 'abc }}",
    "unclosed comment": "{# abc",
}


@pytest.fixture(scope="module")
def alone(model_path):
    d = driver.Driver(model_path)
    yield d
    d.close()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_hostile_template_ends_and_hurts_nobody(alone, name):
    watch = threading.Timer(ANSWER_S, alone.process.kill)
    watch.start()
    try:
        alone.template(TEMPLATES[name])
        alone.render([{"role": "user", "content": "x"}])
    except driver.Refused as refusal:
        assert str(refusal).startswith("chat template")
    finally:
        watch.cancel()
    alone.template("{{ messages[0].content }}!")
    assert alone.render([{"role": "user", "content": "x"}]) == "x!"
