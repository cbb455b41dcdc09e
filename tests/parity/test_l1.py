"""Every array of tier l1 against stock mlx-lm: the goldens of tests/golden/l1, made by tools/golden/l1."""
import cases
import golden
import pytest

# A few of each kind again under other conditions; what they give must not depend on those.
SOME = ("llama_bias-0.25-bf16", "gemma3-0.25-bf16", "gemma2-0.08-f16", "qwen2-0.08-a3g64", "minicpm5-0.25-a4g128",
        "llama-0.08-mixed")


def run_of(name, manifest, checkpoint, dump_l1, folder, **options):
    case = manifest["cases"][name]
    model = checkpoint(case["checkpoint"], case["sha256"])
    ids = manifest["prompts"][case["prompt"]]
    return dump_l1(folder, model, ids, case["prefill"], case["greedy"], **options)


def compare(name, run):
    fault = golden.difference(golden.read(golden.FOLDER / f"{name}.txt"), run)
    assert fault is None, f"{name}: the first difference from mlx-lm: {fault}"


@pytest.mark.parametrize("name", cases.CASES)
def test_every_array_ids_and_log_probabilities_are_those_of_mlx_lm(name, manifest, checkpoint, dump_l1, tmp_path):
    compare(name, run_of(name, manifest, checkpoint, dump_l1, tmp_path))


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("options", [dict(cpu="scalar"), dict(threads=1), dict(threads=3)], ids=str)
def test_neither_threads_nor_the_instruction_set_change_a_bit(name, options, manifest, checkpoint, dump_l1, tmp_path):
    compare(name, run_of(name, manifest, checkpoint, dump_l1, tmp_path, **options))


def test_another_token_is_seen_and_the_first_array_it_reaches_is_named(manifest, checkpoint, dump_l1, tmp_path):
    """Negative control, with the program itself."""
    name = SOME[0]
    case = manifest["cases"][name]
    ids = list(manifest["prompts"][case["prompt"]])
    ids[20] ^= 1
    run = dump_l1(tmp_path, checkpoint(case["checkpoint"], case["sha256"]), ids, case["prefill"], case["greedy"])
    fault = golden.difference(golden.read(golden.FOLDER / f"{name}.txt"), run)
    assert fault and fault.startswith("step 0: embed differs"), fault


def test_other_weights_are_seen_where_they_first_work(manifest, checkpoint, dump_l1, tmp_path):
    """Negative control: the f16 weights of the same numbers, judged by the golden of bf16."""
    bf16, f16 = (manifest["cases"][f"llama-0.08-{kind}"] for kind in ("bf16", "f16"))
    run = dump_l1(tmp_path, checkpoint(f16["checkpoint"], f16["sha256"]), manifest["prompts"][bf16["prompt"]],
                  bf16["prefill"], bf16["greedy"])
    assert golden.difference(golden.read(golden.FOLDER / "llama-0.08-bf16.txt"), run)
