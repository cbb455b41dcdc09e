"""A word for tools/proof.py from tests that compare bits with an oracle.

`note` says that the model at `path`, run by `program` with --l1 or --l2 in this environment (INGLE_CPU), gave the
oracle's bits: then every exact node of its plan did, and every kernel of theirs. Call it when the comparison has passed, and
with INGLE_CPU=scalar too: tools/proof.py wants the scalar variants held to the oracle and the others to them.
"""
import json
import os
import pathlib
import subprocess

EXACT = ("l1", "l2")


def plan(program, path, *options, env=None):
    done = subprocess.run([program, "tiers", path, "--json", *options], capture_output=True, text=True, check=True,
                          env=env)
    return json.loads(done.stdout)


ENGINE = ("drive.", "samp.")  # nodes that a forward alone does not run


def lines(p, generated=False, asked_for=()):
    """Of a plan: what it has proven. Nodes that must be asked for (drawing, batching) only if the test did, by id, and
    those of the engine only if it `generated` tokens."""
    found = set()
    for node in p["nodes"]:
        if node["tier"] not in EXACT or (node["when"] and node["id"] not in asked_for):
            continue
        if node["id"].startswith(ENGINE) and not generated:
            continue
        found.add(f"node {node['id']} equals golden")
        found |= {f"kernel {k['name']} equals golden" for k in node["kernels"] if k["tier"] in EXACT}
    return found


def note(test, program, path, *options, generated=False, asked_for=(), env=None):
    """`test` is a name for the file, as "golden_llama". Nothing without INGLE_TEST_PROVEN."""
    folder = os.environ.get("INGLE_TEST_PROVEN")
    if not folder:
        return
    text = "".join(f"{line}\n" for line in sorted(lines(plan(program, path, *options, env=env), generated, asked_for)))
    with open(pathlib.Path(folder) / f"parity_{test}.txt", "a", encoding="utf-8") as f:
        f.write(text)
