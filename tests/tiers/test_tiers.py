"""What comes from the list of nodes: plans, --help, docs/parity.md; and that the list itself names things that exist."""
import json
import pathlib
import re
import subprocess

import plans
import proven
import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
VERBS = ("serve", "chat", "generate", "bench", "embed", "show", "tiers")
LLAMA = plans.TINY / "llama-0.08-bf16"


def run(program, *args, code=0, **env):
    done = subprocess.run([program, *args], capture_output=True, text=True, env=plans.os.environ | env)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def registry(program):
    return json.loads(run(program, "tiers", "--json"))


@pytest.mark.parametrize("family", plans.FAMILIES)
def test_the_plan_of_every_family_is_the_one_kept(program, family, tmp_path):
    kept = (plans.GOLDEN / f"{family}.txt").read_text()
    now = plans.family(program, family, tmp_path)
    assert now == kept, "tests/tiers/plans.py PROGRAM writes the plans anew; its difference belongs to the commit"


def test_plans_keep_their_promise(program, tmp_path):
    for name in plans.FAMILIES:
        for c in plans.FAMILIES[name]:
            path = plans.checkpoint(c, tmp_path)
            for option, tier in (("--l1", "l1"), ("--exact", "l1"), ("--l3", "l3")):
                p = proven.plan(program, path, option)
                assert p["asked"] == p["tier"] == tier, (c, p["tier"])
                worst = max(n["tier"] for n in p["nodes"] if n["tier"] != "-" and not n["when"])
                assert worst == tier
                for n in p["nodes"]:
                    for k in n["kernels"]:
                        assert k["tier"] <= tier and k["runs_here"], (c, n["id"], k)
                        assert n["tier"] in ("-", max(n["own_tier"], *(k["tier"] for k in n["kernels"])))


def test_the_page_is_up_to_date(program):
    assert run(program, "tiers", "--markdown") == (TOP / "docs" / "parity.md").read_text(), \
        "ingle tiers --markdown > docs/parity.md"


def test_tables_fit_in_100_columns(program):
    for text in (run(program, "tiers"), run(program, "tiers", LLAMA)):
        assert max(map(len, text.splitlines())) <= 100
        assert not re.search(r" $", text, re.M)


def test_the_list_can_be_narrowed(program, registry):
    for tier in ("l1", "L3"):
        some = json.loads(run(program, "tiers", "--json", "--tier", tier))
        assert [n["id"] for n in some["nodes"]] == [n["id"] for n in registry["nodes"] if n["own_tier"] == tier.lower()]
    some = json.loads(run(program, "tiers", "--json", "--reaches=--kv-bits"))
    assert "kv.q_encode" in [n["id"] for n in some["nodes"]] and len(some["nodes"]) < len(registry["nodes"])
    assert "wants l1, l2 or l3" in run(program, "tiers", "--tier", "l4", code=2)
    assert "changes no numbers" in run(program, "tiers", "--reaches", "threads", code=2)


# ---- the rules of flags -----------------------------------------------------------------------------------


def options_of(help_text):
    """{group: option names}"""
    groups, group = {}, None
    for line in help_text.splitlines():
        if re.match(r"\w[^:]*:$", line):
            group = line.split(",")[0].rstrip(":")
        m = re.match(r"  (?:-\w, |    )--(?:no-)?([a-z0-9-]+)", line)
        if m and group:
            groups.setdefault(group, []).append(m[1])
    return groups


@pytest.mark.parametrize("verb", VERBS)
def test_options_that_cross_tiers_are_a_group_of_their_own(program, registry, verb):
    text = run(program, verb, "--help")
    groups = options_of(text)
    assert groups["numbers"] == ["l1", "l2", "l3", "kv-config", "kv-bits", "act-bits"]
    named = {flag for n in registry["nodes"] for flag in n["flags"].split()}
    assert named == set(groups["numbers"])
    # --help counts whom an option reaches, and does not name them: `ingle tiers --reaches` does, from the same list
    numbers = text[text.index("\nnumbers"):]
    for flag in groups["numbers"]:
        reached = [n["id"] for n in registry["nodes"] if flag in n["flags"].split()]
        some = json.loads(run(program, "tiers", "--json", "--reaches", flag))
        assert [n["id"] for n in some["nodes"]] == reached
        said = re.search(rf"--{flag}\b.*?\((\d+) steps?\)", numbers, re.S)
        assert int(said[1]) == sum(not n["training"] for n in registry["nodes"] if n["id"] in reached) > 0
    assert not [n["id"] for n in registry["nodes"] if "." in n["id"] and n["id"] in numbers]


# Routes of one tier and one oracle: the faster is the default and no option chooses. INGLE_CPU is for debugging.
ROUTES = re.compile(r"avx|neon|scalar|simd|isa|kernel|flash|fused|repack|panel|clip|compile")


def test_routes_of_one_tier_have_no_option(program):
    for verb in VERBS:
        for names in options_of(run(program, verb, "--help")).values():
            assert not [n for n in names if ROUTES.search(n)]
    assert ROUTES.search("no-flash")  # the control


def test_one_tier_is_chosen_and_the_others_are_refused(program):
    for verb in VERBS:
        words = ("-p", "x") if verb == "generate" else ()
        assert "--l1 and --l3 exclude each other" in run(program, verb, LLAMA, *words, "--l1", "--l3", code=2)
    for tier in ("--l1", "--exact", "--l2"):
        assert "--kv-bits 8 is a format of our own" in run(program, "show", LLAMA, tier, "--kv-bits", "8", code=2)
        assert "int8 products of tier l3" in run(program, "tiers", LLAMA, tier, "--act-bits", "16", code=2)


# ---- what the list names ----------------------------------------------------------------------------------


def exists(proof):
    """ "op: name_of_a_test" in src/op/*_test.c, or a path."""
    folder, colon, test = proof.partition(": ")
    if not colon:
        return (TOP / proof).exists()
    return any(f"TEST({test})" in p.read_text() for p in (TOP / "src" / folder).glob("*_test.c"))


def test_every_proof_is_a_test_that_exists(registry):
    for n in registry["nodes"]:
        assert (n["proof"] is None) == (n["own_tier"] == "-"), n["id"]
        assert n["proof"] is None or exists(n["proof"]), (n["id"], n["proof"])
    assert not exists("op: a_test_that_is_not_there") and not exists("tests/nothing")


def test_kernels_have_names_of_their_own_and_nodes_that_run_them(registry):
    names = [k["name"] for k in registry["kernels"]]
    assert len(names) == len(set(names))
    served = {op for n in registry["nodes"] for op in n["kernel_ops"]}
    # dequant reads files and rows of embeddings into f32 before a model runs
    assert {k["op"] for k in registry["kernels"]} - served <= {"dequant"}


# ---- what a comparison proves -----------------------------------------------------------------------------


def test_a_comparison_of_logits_proves_what_ran_and_no_more(program):
    env = plans.os.environ | {"INGLE_CPU": "scalar"}
    exact = proven.lines(proven.plan(program, LLAMA, "--l1", env=env))
    assert "node norm.rms equals golden" in exact and "kernel norm_bf16.scalar equals golden" in exact
    assert not [line for line in exact if "avx" in line or "node drive" in line or "node batch" in line]
    more = proven.lines(proven.plan(program, LLAMA, "--l1", env=env), generated=True, asked_for=("batch.step",))
    assert {"node drive.loop equals golden", "node batch.step equals golden"} <= more - exact
    ours = proven.lines(proven.plan(program, LLAMA, "--l3", env=env))
    assert "node norm.rms equals golden" not in ours
