"""The envelope gate of tier l3 (src/tier/tier.h has its numbers, tools/golden/envelope.c is it): l1's greedy tokens after
natural prose, given to l3 one by one. The judge of quantized weights is l1 of the same values in bf16 (docs/decisions)."""
import json
import subprocess

import pytest
import requant
import text

SHORT, LONG = 600, 2048
OUTSIDE = 3


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """f(model) -> the same values in bf16, made once."""
    made = {}

    def of(model):
        if model not in made:
            made[model] = tmp_path_factory.mktemp("judge") / "bf16.gguf"
            requant.requant(model, made[model], "BF16")
        return made[model]

    return of


@pytest.fixture(scope="module")
def envelope(golden_programs, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("envelope") / "ids"

    def run(judged_by, model, ids, *options):
        tokens.write_text(" ".join(map(str, ids)))
        done = subprocess.run([golden_programs / "envelope", judged_by, model, tokens, *options], capture_output=True,
                              text=True, timeout=600)
        assert done.returncode in (0, OUTSIDE), done.stderr[-2000:]
        found = json.loads(done.stdout)
        print(found)
        assert found["inside"] == (done.returncode == 0)
        return found

    return run


@pytest.mark.parametrize("n,skip", [(SHORT, 0), (LONG, SHORT)])
def test_four_bits_stay_inside(envelope, judge, starter, n, skip):
    ids = text.token_ids(starter, n, skip=skip)
    found = envelope(judge(starter), starter, ids, "--bits", "4", "--ops", "linear,attention")
    assert found["inside"] and found["prompt_tokens"] == n


@pytest.mark.parametrize("n,skip", [(SHORT, 0), (LONG, SHORT)])
def test_bf16_stays_inside(envelope, judge, starter, n, skip):
    bf16 = judge(starter)
    assert envelope(bf16, bf16, text.token_ids(starter, n, skip=skip), "--bits", "16", "--ops", "attention")["inside"]


def test_gemma_stays_inside_past_its_window(envelope, judge, gemma, gemma_prose):
    assert envelope(judge(gemma), gemma, gemma_prose(SHORT), "--bits", "4", "--ops", "linear,attention")["inside"]


# ---- a gate that cannot fail proves nothing ---------------------------------------------------------------


@pytest.fixture(scope="module")
def short(starter):
    return text.token_ids(starter, 64)  # scalar kernels have to read it, too


@pytest.mark.parametrize("force", ("scalar", "l1"))
def test_negative_control_kernels_that_did_not_run(envelope, judge, starter, short, force):
    found = envelope(judge(starter), starter, short, "--bits", "4", "--ops", "linear,attention", "--force", force)
    assert not found["inside"]
    assert found["calls"] == {"linear": 0, "attention": 0}
    assert found["agree"] >= found["agree_least"] and found["kl_mean"] <= found["kl_most"]  # nothing else was wrong


def test_negative_control_logits_that_were_moved(envelope, starter, short):
    same = ("--bits", "4", "--ops", "linear,attention", "--judge-tier", "l3")
    found = envelope(starter, starter, short, *same)
    assert found["inside"] and found["kl_mean"] == found["logit_gap"] == 0
    assert not envelope(starter, starter, short, *same, "--noise", "0.7")["inside"]


def test_negative_control_one_weight_matrix_off(envelope, judge, starter, short, tmp_path):
    import ggufio

    f = ggufio.File(starter)
    name = "blk.3.attn_output.weight"
    f.add(name, "F32", f.tensors[name].f64() * 3.0)
    f.write(tmp_path / "off.gguf")
    assert not envelope(judge(starter), tmp_path / "off.gguf", short, "--bits", "4", "--ops", "linear,attention")["inside"]
