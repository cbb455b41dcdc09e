#!/usr/bin/env python3
"""proof: does every claim of tier l1 or l2 have a test that compared bits and passed?

    proof.py B            the claims of B/ingle (`ingle tiers --json`) and what the tests of this run left in B/proven
    proof.py --self-test  plant claims without proof; each must be found

Files in B/proven hold lines "kernel NAME equals scalar", "kernel NAME equals golden", "node ID equals golden".
A kernel of l1 or l2 needs, if this processor can run it: its own bits equal to the scalar variant of its cell (op,
format, tier), and that one's equal to the oracle's. Of dequant, which no forward runs, it is enough that unpack of the
format is so: check_kern compares the two, value by value, before it says that dequant equals scalar. A node that claims a tier needs gate bit-exact and the oracle's bits;
one of l3 needs another gate and a test's name, and one without numbers none. Ends with "N passed, N failed".
"""
import json
import os
import pathlib
import subprocess
import sys

EXACT = ("l1", "l2")


def read_proven(folder):
    """{"kernel norm_bf16.avx2": {"scalar"}, "node norm.rms": {"golden"}}"""
    proven = {}
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            what, equals, oracle = line.rpartition(" equals ")
            if not equals or oracle not in ("scalar", "golden"):
                raise SystemExit(f'proof: {path}: "{line}" is no line of a proof')
            proven.setdefault(what, set()).add(oracle)
    return proven


def faults_of_kernel(kernel, cells, proven):
    """What a kernel that claims l1 or l2 lacks."""
    name = kernel["name"]
    scalar = cells.get((kernel["op"], kernel["format"], kernel["tier"]))
    if not scalar:
        return [f"kernel {name} claims {kernel['tier']}; its cell has no scalar variant of that tier"]
    faults = []
    if "scalar" not in proven.get(f"kernel {name}", ()):
        faults.append(f"kernel {name} claims {kernel['tier']}; no test of this run compared it with {scalar}")
    judged = cells.get(("unpack", kernel["format"], kernel["tier"])) if kernel["op"] == "dequant" else scalar
    if name == scalar and "golden" not in proven.get(f"kernel {judged}", ()):
        faults.append(f"kernel {name} claims {kernel['tier']}; no test of this run compared it with the oracle's bits")
    return faults


def faults_of_node(node, proven):
    node_id, tier, gate = node["id"], node["own_tier"], node["gate"]
    if tier in EXACT:
        if gate != "bit-exact" or not node["oracle"]:
            return [f"node {node_id} claims {tier} with gate {gate} and oracle {node['oracle']}"]
        if "golden" not in proven.get(f"node {node_id}", ()):
            return [f"node {node_id} claims {tier}; no test of this run compared it with {node['oracle']}'s bits"]
    elif tier == "l3" and (gate in ("none", "bit-exact") or not node["proof"]):
        return [f"node {node_id} is of l3 with gate {gate} and test {node['proof']}"]
    elif tier == "-" and gate != "none":
        return [f"node {node_id} has no numbers and gate {gate}"]
    return []


def judge(registry, proven):
    """(claims that hold, faults)"""
    cells = {(k["op"], k["format"], k["tier"]): k["name"] for k in registry["kernels"] if k["scalar"]}
    n_good, faults = 0, []
    for kernel in registry["kernels"]:
        if kernel["tier"] in EXACT and kernel["runs_here"]:
            found = faults_of_kernel(kernel, cells, proven)
            n_good += not found
            faults += found
    for node in registry["nodes"]:
        found = faults_of_node(node, proven)
        n_good += not found
        faults += found
    if not registry["nodes"] or not registry["kernels"]:
        faults.append("the list of nodes or of kernels is empty")
    return n_good, faults


# ---- the self-test ----------------------------------------------------------------------------------------


def kernel(name, tier="l1", runs_here=True, fmt="bf16", op="norm"):
    return {"name": name, "op": op, "format": fmt, "tier": tier, "scalar": name.endswith(".scalar"),
            "runs_here": runs_here}


def node(node_id, tier, gate, oracle="mlx-lm", proof="a test"):
    return {"id": node_id, "own_tier": tier, "gate": gate, "oracle": oracle, "proof": proof}


def self_test():
    kernels = [kernel("norm_bf16.scalar"), kernel("norm_bf16.avx2"), kernel("unpack_bf16.scalar", op="unpack"),
               kernel("dequant_bf16.scalar", op="dequant"), kernel("norm_bf16.neon", runs_here=False),
               kernel("norm.scalar", "l3", fmt=None)]
    nodes = [node("a", "l1", "bit-exact"), node("b", "l3", "fd"), node("c", "-", "none", None, None)]
    good = {"kernel norm_bf16.scalar": {"scalar", "golden"}, "kernel norm_bf16.avx2": {"scalar"}, "node a": {"golden"},
            "kernel unpack_bf16.scalar": {"scalar", "golden"}, "kernel dequant_bf16.scalar": {"scalar"}}
    wrong = []
    n_good, faults = judge({"kernels": kernels, "nodes": nodes}, good)
    if faults or n_good != 7:
        wrong.append(f"false alarm: {n_good} {faults}")
    planted = {  # what is wrong: (more kernels, more nodes, proofs, a word of the fault)
        "a node without proof": ([], [node("d", "l1", "bit-exact")], {}, "node d claims l1; no test"),
        "a node held to itself by scalar only": ([], [node("d", "l2", "bit-exact")], {"node d": {"scalar"}}, "node d"),
        "a node of l1 with an envelope": ([], [node("d", "l1", "envelope")], {"node d": {"golden"}}, "gate envelope"),
        "a node of l1 without oracle": ([], [node("d", "l1", "bit-exact", None)], {"node d": {"golden"}}, "oracle None"),
        "a node of l3 without gate": ([], [node("d", "l3", "none")], {}, "gate none"),
        "a node of l3 without test": ([], [node("d", "l3", "kl", proof=None)], {}, "test None"),
        "a variant without proof": ([kernel("norm_bf16.avx512")], [], {}, "norm_bf16.avx512 claims l1; no test"),
        "a cell without golden": ([kernel("norm_f16.scalar", fmt="f16")], [], {"kernel norm_f16.scalar": {"scalar"}},
                                  "norm_f16.scalar claims l1; no test of this run compared it with the oracle"),
        "a dequant whose unpack is not proven": (
            [kernel("dequant_f16.scalar", fmt="f16", op="dequant"), kernel("unpack_f16.scalar", "l2", fmt="f16", op="unpack")],
            [], {"kernel dequant_f16.scalar": {"scalar"}, "kernel unpack_f16.scalar": {"scalar", "golden"}},
            "dequant_f16.scalar claims l1; no test of this run compared it with the oracle"),
        "a cell without scalar": ([kernel("norm_f16.avx2", "l2", fmt="f16")], [], {"kernel norm_f16.avx2": {"scalar"}},
                                  "no scalar variant"),
    }
    for what, (more_kernels, more_nodes, proofs, word) in planted.items():
        _, faults = judge({"kernels": kernels + more_kernels, "nodes": nodes + more_nodes}, good | proofs)
        if len(faults) != 1 or word not in faults[0]:
            wrong.append(f"not found: {what}: {faults}")
    for lost in good:
        _, faults = judge({"kernels": kernels, "nodes": nodes}, {k: v for k, v in good.items() if k != lost})
        if not faults:
            wrong.append(f"not missed: {lost}")
    if not judge({"kernels": [], "nodes": []}, {})[1]:
        wrong.append("empty lists pass")
    for line in wrong:
        print("proof: self-test: " + line)
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    b = pathlib.Path(sys.argv[1])
    if not (b / "proven").is_dir():
        print(f"proof: no {b}/proven: its tests have not run\n0 passed, 1 failed")
        return 1
    env = {k: v for k, v in os.environ.items() if k != "INGLE_CPU"}
    done = subprocess.run([b.resolve() / "ingle", "tiers", "--json"], capture_output=True, text=True, env=env, check=True)
    n_good, faults = judge(json.loads(done.stdout), read_proven(b / "proven"))
    for line in faults:
        print(line)
    print(f"proof: {n_good} passed, {len(faults)} failed")
    return 1 if faults else 0


sys.exit(main())
