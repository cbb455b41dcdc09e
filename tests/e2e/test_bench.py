"""ingle bench: every format parses and holds the rows that were asked for; figures are only looked at for sense."""
import csv
import io
import json
import subprocess

import pytest
from conftest import model_path, program_path

FEW = ("-p", "32,8", "-d", "0,16", "-n", "2", "-b", "1,3", "-r", "2")
ROWS = [("prefill", 8, 0, 1), ("prefill", 32, 0, 1), ("decode", 2, 0, 1), ("decode", 2, 16, 1), ("decode", 2, 0, 3)]


def bench(*flags, code=0):
    done = subprocess.run([program_path(), "bench", model_path(), *flags], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def shape(row):
    return row["work"], int(row["tokens"]), int(row["context"]), int(row["sequences"])


def test_json_holds_every_row_the_kernels_and_a_profile():
    got = json.loads(bench(*FEW, "--json", "--profile"))
    assert [shape(r) for r in got["rows"]] == ROWS
    for row in got["rows"]:
        assert row["runs"] == 2 and 0 < row["tok_s_min"] <= row["tok_s"] <= row["tok_s_max"]
        assert abs(sum(op["share"] for op in row["profile"]) - 1) < 1e-6
        assert sum(op["ms"] for op in row["profile"]) <= 1e3 * row["tokens"] * row["sequences"] / row["tok_s_min"]
        named = {op["op"]: op for op in row["profile"]}
        assert {"embed", "norm", "q, k, v", "attention", "gate, up", "head"} <= named.keys()
        assert all(op["gmac_s"] > 0 for op in row["profile"] if op["op"] in ("q, k, v", "gate, up", "head", "attention"))
    weights = got["weights_bytes_a_token"]
    one, _, many = [r for r in got["rows"] if r["work"] == "decode"]
    assert weights < one["bytes_a_token"] < weights * 1.01 and many["bytes_a_token"] < weights / 2
    for kernel in got["kernels"]:
        chosen = [v for v in kernel["variants"] if v["kernel"] == kernel["kernel"]]
        assert len(chosen) == 1 and chosen[0]["runs"]
        assert chosen[0]["rank"] == max(v["rank"] for v in kernel["variants"] if v["runs"])
    first = got["runs_with_threads"][0]
    assert first["ready_ms"] >= max(first["weights_ms"], first["text_ms"]) - 1
    # what scripts that measure one thing read
    assert got["prefill_tps"] == got["rows"][0]["tok_s"] and got["decode_tps"] == got["rows"][2]["tok_s"]
    assert got["batch"] == 3 and got["batch_tps"] == got["rows"][4]["tok_s"]


def test_csv_has_a_line_for_each_row_and_number_of_threads():
    text = bench(*FEW, "-t", "1,2", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(int(r["threads"]), *shape(r)) for r in rows] == [(t, *row) for t in (1, 2) for row in ROWS]
    for r in rows:
        assert None not in r and float(r["tok_s"]) > 0 and float(r["spread"]) >= 0 and r["isa"]
        assert (r["gb_s"] != "") == (r["work"] == "decode")


def test_keys_and_values_of_8_bits_are_fewer_bytes_to_read():
    flags = ("--json", "-p", "0", "-d", "256", "-n", "2", "-b", "1", "-r", "1")
    full, eight = (json.loads(bench(*flags, *more)) for more in ((), ("--kv-bits", "8")))
    assert (full["kv_bits"], eight["kv_bits"]) == (16, 8)
    weights = full["weights_bytes_a_token"]
    of_cache = [r["rows"][0]["bytes_a_token"] - weights for r in (full, eight)]
    assert of_cache[1] / of_cache[0] == pytest.approx(9 / 16)
    assert "--kv-bits is 12" in bench("--kv-bits", "12", code=2) and "--kv-bits is 4" in bench("--kv-bits", "4", code=2)


def test_activations_of_16_bits_are_told_in_every_report():
    flags = ("-p", "16", "-d", "0", "-n", "2", "-b", "1", "-r", "1", "--act-bits", "16")
    assert json.loads(bench("--json", *flags))["act_bits"] == 16
    assert {r["act_bits"] for r in csv.DictReader(io.StringIO(bench("--csv", *flags)))} == {"16"}
    assert "activations of 16 bits" in bench(*flags)
    assert "--act-bits is 12" in bench("--act-bits", "12", code=2)


def test_one_prompt_is_also_the_context_and_one_sequence_is_no_batch():
    rows = json.loads(bench("--json", "--prompt-tokens", "16", "--tokens", "2", "--batch", "1", "--runs", "1"))["rows"]
    assert [shape(r) for r in rows] == [("prefill", 16, 0, 1), ("decode", 2, 16, 1)]


def test_the_table_and_markdown_show_the_rows():
    text = bench(*FEW, "--profile")
    for word in ("prefill  32 tokens", "decode   behind 16", "decode   3 x behind 0", "chosen because", "q, k, v", "ready"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 110
    lines = bench(*FEW, "-o", "md").splitlines()
    assert len(lines) == 2 + len(ROWS) and len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("flags, says", [
    (["-p", "12x"], "whole numbers with commas"), (["-d", "1,,2"], "whole numbers with commas"),
    (["-b", "65"], "limit 0..64"), (["-p", "-5"], "limit 0.."), (["-o", "yaml"], "text, json, csv or md"),
    (["-p", "0", "-n", "0"], "nothing to measure"), (["-p", "1000000"], "a prompt of 1000000 tokens is more than"),
    (["-d", "1000000", "-n", "1"], "1 tokens behind a context of 1000000 are more than")])
def test_what_cannot_be_measured_is_refused_by_name(flags, says):
    assert says in bench(*flags, code=2)
