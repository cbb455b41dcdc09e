"""The races with programs that only note what they are asked: who runs what, in which order, and what is written."""
import csv
import os

import common
import curve
import plot
import pytest
import race
import race_busy


class Fake:
    def __init__(self, name, tok_s, calls):
        self.name, self.tok_s, self.calls = name, tok_s, calls

    def run(self, *what):
        self.calls.append((self.name, *what))
        return self.tok_s, "v1", 0.0

    def prefill(self, model, threads, n, pids=()):
        return self.run("prefill", model, threads, n, len(pids))

    def decode(self, model, threads, context, n, pids=()):
        return self.run("decode", model, threads, (context, n), len(pids))

    def batch(self, model, threads, n_seqs, context, n, pids=()):
        return self.run("batch", model, threads, (n_seqs, context, n), len(pids))


@pytest.fixture
def calls():
    return []


@pytest.fixture
def both(calls):
    return Fake("llama.cpp", 10.0, calls), Fake("ingle", 25.0, calls)


def test_a_pair_gives_each_program_its_own_file_and_turns_change(tmp_path, both, calls):
    path = tmp_path / "r.csv"
    a = race.parser().parse_args(["--rounds", "3", "--threads", "2", "--csv", str(path), "/m/snap=/m/q4.gguf"])
    rows = race.measure(a, a.models, *both)
    mine = [("ingle", "prefill", "/m/snap", 2, 512, 0), ("ingle", "decode", "/m/snap", 2, (64, 128), 0)]
    peer = [("llama.cpp", "prefill", "/m/q4.gguf", 2, 512, 0), ("llama.cpp", "decode", "/m/q4.gguf", 2, (64, 128), 0)]
    odd, even = [peer[0], mine[0], peer[1], mine[1]], [mine[0], peer[0], mine[1], peer[1]]
    assert calls == odd + even + odd
    assert race.result(rows, "/m/snap=/m/q4.gguf", "decode", 0.1) == (common.Ratio(10, 25, 2.5, 2.5, 2.5, 3, True), 2, 2)
    written = list(csv.DictReader(open(path)))
    assert len(written) == 12 and {r["model"] for r in written} == {"snap=q4.gguf"}


def test_a_race_that_breaks_off_has_written_its_whole_rounds(tmp_path, both, calls):
    path = tmp_path / "r.csv"
    a = race.parser().parse_args(["--rounds", "5", "--threads", "1", "--csv", str(path), "/m/m.gguf"])
    real = both[1].decode
    both[1].decode = lambda *what: real(*what) if len(calls) < 9 else common.sys.exit("gone")
    with pytest.raises(SystemExit):
        race.measure(a, a.models, *both)
    assert [r["round"] for r in csv.DictReader(open(path))] == ["1"] * 4 + ["2"] * 4


def test_busy_cores_are_busy_in_every_run(both, calls):
    a = race_busy.parser().parse_args(["--rounds", "3", "--threads", "1,2", "--csv", "-", "--model", "/m/m.gguf"])
    rows = race_busy.measure(a, *both)
    assert len(calls) == 3 * 2 * 2 * 2 and {c[-1] for c in calls} == {common.CORES}
    assert race_busy.result(rows, "decode", 0.1, 2)[0].ratio == 2.5


def test_a_curve_has_every_size_once_a_round(both, calls):
    a = curve.parser().parse_args(["--rounds", "3", "--csv", "-", "--model", "/m/m.gguf", "--prompts", "512,128",
                                   "--contexts", "2048,128", "--batches", "8,1", "--tokens", "7"])
    rows = curve.measure(a, *both)
    ours = [c[1:2] + c[4:5] for c in calls if c[0] == "ingle"]
    assert ours == 3 * [("prefill", 128), ("prefill", 512), ("decode", (128, 7)), ("decode", (2048, 7)),
                        ("batch", (8, 128, 7))]
    assert len(calls) == 2 * len(ours)
    assert curve.growth(rows, 0.1, curve.prefill(128), curve.prefill(512), cost=True).ratio == 1
    calls.clear()
    a.only = "ingle"
    rows = curve.measure(a, *both)
    assert {c[0] for c in calls} == {"ingle"} and curve.result(rows, 0.1, curve.prefill(128)) is None
    assert "25.0" in curve.summary(rows, a)


def test_the_program_understands_what_the_races_ask_and_plot_what_it_prints(tmp_path):
    program = os.environ.get("INGLE_PROGRAM") or str(common.TOP / "build" / "ingle")
    model = common.default_model()
    if not os.access(program, os.X_OK) or not os.path.exists(model):
        pytest.skip("the program or the starter model is not there")
    ingle = common.Ingle(program, 300)
    for tok_s, version, others in (ingle.prefill(model, 1, 16), ingle.decode(model, 1, 8, 4),
                                   ingle.batch(model, 1, 2, 8, 4)):
        assert tok_s > 0 and version.count(".") == 2 and others >= 0
    path = tmp_path / "bench.csv"
    with open(path, "w") as f:
        common.subprocess.run([program, "bench", model, "--csv", "-r", "1", "-p", "16", "-d", "8,16", "-n", "4", "-b", "2"],
                              stdout=f, check=True)
    _, rows = plot.choose(plot.read([path]), None)
    points = [[p[0] for p in plot.series(rows, belongs, place)["ingle"]] for _, _, belongs, place in plot.PANELS]
    assert points == [[8, 16], [16], [1, 2]]
