"""The goldens themselves: all there, none empty, of the pinned oracle, and a comparison that can fail."""
import json
import re

import cases
import golden
import numpy as np
import pytest
import snapshots
import snapio  # beside tools/golden/l1
import tiny_recipe

LIMIT = 1_500_000  # bytes of tests/golden/l1
BASIC = "attn_norm q k v q_rope k_rope sdpa o h_attn ffn_norm gate up glu down h_ffn".split()
MORE = {"qwen3": ["q_norm", "k_norm"], "gemma2": ["post_attn_norm", "post_ffn_norm"],
        "gemma3": ["q_norm", "k_norm", "post_attn_norm", "post_ffn_norm"]}
MORE |= {"gemma3_ring": MORE["gemma3"], "gemma3_wide": MORE["gemma3"], "gemma2_wide": MORE["gemma2"]}
LAYERS = {"smollm2": 30, "gemma3-270m": 18, "gemma3": 7, "gemma3_ring": 7, "gemma3_wide": 7, "llama_ring": 6}


def of(name):
    return golden.read(golden.FOLDER / f"{name}.txt")


def family_of(checkpoint):
    return re.split(r"-0\.\d\d|-270m|-(?=bf16|f16|a4)", checkpoint)[0]


def test_each_case_has_a_golden_and_each_golden_a_case(manifest):
    files = {p.stem for p in golden.FOLDER.glob("*.txt") if p.read_text().startswith(golden.MARK)}
    assert files == set(manifest["cases"]) == set(cases.CASES)
    for name, case in cases.CASES.items():
        told = {k: v for k, v in manifest["cases"][name].items() if k != "sha256"}
        assert told == case, f"{name} changed after its golden was made: make regolden"
    assert manifest["prompts"] == cases.prompts()
    assert sum(p.stat().st_size for p in golden.FOLDER.iterdir()) < LIMIT


@pytest.mark.parametrize("name", cases.CASES)
def test_no_golden_is_empty_and_none_lacks_an_array(name):
    case, run = cases.CASES[name], of(name)
    model = case["checkpoint"].rsplit("-", 1)[0]
    family = family_of(case["checkpoint"])
    layer = set(BASIC + MORE.get(family, []))
    expected = {"embed", "norm", "logits"} | ({"h0"} if family.startswith("gemma") else set())
    n_layers = LAYERS.get(model, LAYERS.get(family, 3))
    expected |= {f"{i:02d}.{a}" for i in range(n_layers) for a in layer}
    assert {n for _, n in run.arrays} == expected
    assert {s for s, _ in run.arrays} == set(case["kept"])
    assert len(run.ids) == len(run.lp) == case["greedy"] > 0
    hashes = [h for _, _, h in run.arrays.values()] + run.lp
    assert all(re.fullmatch(f"[0-9a-f]{{{case['digits']}}}", h) for h in hashes)
    assert len(set(hashes)) > 0.9 * len(hashes), "arrays that are all the same: zeros or not a number?"
    assert run.arrays[0, "embed"][0] == case["prefill"]


def test_what_has_to_be_shown_has_cases():
    there = {c["checkpoint"] for c in cases.CASES.values()}
    assert {"smollm2-bf16", "smollm2-f16", "smollm2-a4g64", "gemma3-270m-bf16", "gemma3-270m-a4g64"} <= there
    for family in ("llama_llama3", "qwen2", "qwen3", "minicpm5", "gemma3"):
        for sigma in ("0.08", "0.25"):
            formats = {c.removeprefix(f"{family}-{sigma}-") for c in there if c.startswith(f"{family}-{sigma}-")}
            assert {"bf16", "f16"} <= formats
            assert {int(f[1]) for f in formats if re.fullmatch(r"a\dg\d+", f)} == {2, 3, 4, 5, 6, 8}
    assert {f[-3:].lstrip("g") for f in there if re.search(r"a\dg\d+$", f)} >= {"32", "64", "128"}
    assert {"mxfp4", "nvfp4", "mxfp8", "mixed"} <= {c.rsplit("-", 1)[1] for c in there}
    long = [c for c in cases.CASES.values() if c["prefill"] > 512]
    assert {c["checkpoint"] for c in long} == {"gemma3-270m-bf16", "gemma3-270m-a4g64"}
    assert all(len(cases.prompts()[c["prompt"]]) == c["prefill"] + cases.STEPS for c in cases.CASES.values())


# ---- negative controls ------------------------------------------------------------------------------------


def full(name):
    """The golden as if a program had printed it, hashes padded to their length."""
    run = of(name)
    pad = lambda h: h.ljust(cases.DIGITS, "0")
    run.arrays = {k: (r, c, pad(h)) for k, (r, c, h) in run.arrays.items()}
    run.lp = [pad(h) for h in run.lp]
    return run


def flipped(h, at):
    return h[:at] + format(int(h[at], 16) ^ 1, "x") + h[at + 1:]


@pytest.mark.parametrize("name", ["gemma3-0.08-bf16", "smollm2-bf16"])
def test_one_flipped_bit_of_any_hash_is_named_first(name):
    stored = of(name)
    assert golden.difference(stored, full(name)) is None
    assert golden.difference(stored, golden.parse("\n".join(full(name).lines()))) is None
    digits, run = cases.CASES[name]["digits"], full(name)
    for i, h in enumerate(run.lp):
        run.lp[i] = flipped(h, i % digits)
        assert f"log-probabilities of step {i} differ" in golden.difference(stored, run)
        run.lp[i] = h
        run.ids[i] += 1
        assert golden.difference(stored, run).startswith(f"greedy: id {i} is")
        run.ids[i] -= 1
    for i, key in reversed(list(enumerate(run.arrays))):
        rows, cols, h = run.arrays[key]
        run.arrays[key] = rows, cols, flipped(h, i % digits)  # and all that follow, as after one wrong op
        fault = golden.difference(stored, run)
        assert fault and fault.startswith(f"step {key[0]}: {key[1]} differs"), (key, fault)


def test_what_is_missing_too_many_or_of_another_shape_is_named():
    name = "llama-0.08-bf16"
    stored, run = of(name), full(name)
    rows, cols, h = run.arrays.pop((1, "01.sdpa"))
    assert golden.difference(stored, run) == "step 1: 01.sdpa is missing"
    run.arrays[1, "01.sdpa"] = rows, cols + 1, h
    assert "01.sdpa is 1 x 65 and not 1 x 64" in golden.difference(stored, run)
    run.arrays[1, "01.sdpa"] = rows, cols, h[:4]
    assert "01.sdpa differs" in golden.difference(stored, run), "a hash cut short proves nothing"
    run.arrays[1, "01.sdpa"] = rows, cols, h
    run.arrays[1, "01.extra"] = rows, cols, h
    assert "01.extra is not in the golden" in golden.difference(stored, run)
    assert "step 0: embed is missing" in golden.difference(stored, golden.Run())
    run = full(name)
    run.ids, run.lp = [], []
    assert "id 0 is missing" in golden.difference(stored, run)
    run = full(name)
    run.lp.pop()
    assert "are missing" in golden.difference(stored, run)
    for text in ("0 a 1 1 ff\n0 a 1 1 ff", "lp 1 ff"):
        with pytest.raises(ValueError):
            golden.parse(text)


def test_goldens_of_another_oracle_are_refused(tmp_path):
    m = json.loads(golden.MANIFEST.read_text())
    assert golden.manifest() == m and set(m["oracle"]) == {"mlx", "mlx-cpu", "mlx-lm"}
    assert m["arch"] == "x86_64"
    other = tmp_path / "MANIFEST.json"
    for name in m["oracle"]:
        other.write_text(json.dumps(m | dict(oracle=m["oracle"] | {name: "0.31.0"})))
        with pytest.raises(golden.Refused, match="make regolden"):
            golden.manifest(other)
    for name in ("sampled.json", "ops.json", "cli.json"):
        assert json.loads((golden.FOLDER / name).read_text())["oracle"] == golden.pins()


def test_files_that_are_no_goldens_are_refused(tmp_path):
    text = (golden.FOLDER / "llama-0.08-bf16.txt").read_text()
    head = text.split("\n", 1)[0]
    bad = ["", "embed 64 0\n", head + "\n", text.replace("\nids ", "\nids 5 "), re.sub(r"\nids .*", "", text)]
    for i, wrong in enumerate(bad):
        path = tmp_path / f"{i}.txt"
        path.write_text(wrong)
        with pytest.raises(golden.Refused):
            golden.read(path)


# ---- the checkpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma2"])
@pytest.mark.parametrize("sigma", ["0.08", "0.25"])
def test_the_quantizer_is_that_of_mlx(name, sigma):
    """tests/golden/tiny has what mlx made of the same numbers."""
    ready = snapio.load(snapshots.READY / f"{name}-{sigma}-4bit-g32" / "model.safetensors")
    c = tiny_recipe.VARIANTS[name]
    shapes = tiny_recipe.shapes(c)

    def values(tensor):
        rows, cols = shapes[tensor]
        yield tiny_recipe.values(tensor, max(rows, 1) * cols,
                                 *tiny_recipe.spread_of(tensor, c, float(sigma))).reshape((rows, cols) if rows else cols)

    dtype, quant = snapshots.parse_format("a4g32")
    made = {n: np.concatenate(list(chunks)) for n, _, _, chunks in snapshots.snapshot_tensors(shapes, values, dtype, quant)}
    assert set(made) == set(ready)
    for tensor, x in made.items():
        assert np.array_equal(x, ready[tensor]), tensor


@pytest.mark.parametrize("kind", ["bf16", "f16", "a3g32", "a8g64", "nvfp4", "mxfp8"])
def test_a_checkpoint_is_made_twice_the_same(kind, tmp_path):
    first, again = (snapshots.make(f"llama-0.08-{kind}", tmp_path / part) for part in "ab")
    for name in ("config.json", "model.safetensors"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    assert snapshots.make(f"llama-0.08-{kind}", tmp_path / "a") == first
    assert {p.name for p in (tmp_path / "a").iterdir()} == {first.name}


@pytest.mark.parametrize("kind", ["a3g32", "a6g64", "f16a5g32", "mxfp4", "nvfp4", "mxfp8"])
def test_a_quantized_checkpoint_is_near_the_values_it_was_made_of(kind, tmp_path):
    """Read by snapio, which was written apart: codes, their packing and scales mean what they should."""
    plain = snapio.Snapshot(snapshots.make("qwen2-0.25-bf16", tmp_path))
    s = snapio.Snapshot(snapshots.make(f"qwen2-0.25-{kind}", tmp_path))
    if kind.startswith("f16"):
        s.tensors = {n: tiny_recipe.to_bf16(t.view(np.float16).astype(np.float32)) if t.dtype == np.uint16 else t
                     for n, t in s.tensors.items()}
    for name in ("model.layers.0.self_attn.q_proj", "model.embed_tokens"):
        w, q = plain.f64(name), s.f64(name)
        assert np.abs(w - q).mean() < 0.25 * np.abs(w).mean(), name


def test_words_that_name_no_format_are_refused():
    for kind in ("a7g32", "a4g16", "q4", "f16mxfp4", ""):
        with pytest.raises(ValueError):
            snapshots.parse_format(kind)
