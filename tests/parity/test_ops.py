"""Functions over every 16-bit number, and sampled ids, of ingle's tier l1 against those of mlx-lm."""
import hashlib
import json
import subprocess

import golden
import pytest

OPS = json.loads((golden.FOLDER / "ops.json").read_text())["unary"]
SAMPLED = json.loads((golden.FOLDER / "sampled.json").read_text())


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("name", OPS["bf16"])
def test_a_unary_function_is_that_of_mlx_for_all_65536_numbers(name, kind, dump_l1_program, dump_l1_can):
    dump_l1_can("--unary")
    done = subprocess.run([dump_l1_program, "--unary", name, "--type", kind], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout) == 2 * 65536
    assert hashlib.sha256(done.stdout).hexdigest() == OPS[kind][name]


def options_of(settings):
    """As words of a command line: lists and the biases of tokens are joined by commas."""
    join = lambda v: (",".join(f"{k}:{b}" for k, b in v.items()) if isinstance(v, dict) else
                      ",".join(map(str, v)) if isinstance(v, list) else v)
    return {key: join(value) for key, value in settings.items()}


@pytest.mark.parametrize("name", SAMPLED["samplers"])
def test_sampled_ids_are_those_of_mlx_lm(name, checkpoint, dump_l1, dump_l1_can, tmp_path):
    dump_l1_can("--temp")
    model = checkpoint(SAMPLED["checkpoint"], SAMPLED["sha256"])
    options = options_of(SAMPLED["samplers"][name])
    for seed, ids in zip(SAMPLED["seeds"], SAMPLED["runs"][name], strict=True):
        run = dump_l1(tmp_path, model, SAMPLED["prompt"], len(SAMPLED["prompt"]), SAMPLED["tokens"], seed=seed, **options)
        assert run.ids == ids, f"{name}, seed {seed}"


def test_the_stored_samples_could_tell_samplers_apart():
    runs = SAMPLED["runs"]
    assert set(runs) == set(SAMPLED["samplers"]) and len(SAMPLED["seeds"]) == 20 and max(SAMPLED["seeds"]) >= 2**32
    assert all(len(ids) == SAMPLED["tokens"] == 16 for r in runs.values() for ids in r)
    names = list(runs)
    assert all(runs[a] != runs[b] for i, a in enumerate(names) for b in names[:i])
    drawn = [n for n, s in SAMPLED["samplers"].items() if s["temp"] and n != "top_k_1"]
    assert all(len({tuple(ids) for ids in runs[n]}) > 15 for n in drawn)


def test_the_stored_tables_differ_from_one_another():
    hashes = [h for of_type in OPS.values() for h in of_type.values()]
    assert len(hashes) == len(set(hashes)) == 12 and all(len(h) == 64 for h in hashes)
