"""The picture: which runs are points of it, and that a point stands where its number says."""
import xml.etree.ElementTree as xml

import common
import curve
import plot
import pytest

OURS = ("utc,machine,cores,version,model,threads,isa,work,tokens,context,sequences,runs,tok_s,tok_s_min,tok_s_max,"
        "spread,bytes_a_token,gb_s,gmac_s,bandwidth_gb_s,roofline,ready_ms,resident_bytes\n")


def row(program, tok_s, utc="2026-01-01T00:00:00Z", commit="aaa", threads=2, model="m.gguf", **work):
    return {"utc": utc, "machine": "x", "cores": 2, "commit": commit, "model": model, "round": 1, "program": program,
            "version": "1", "threads": threads, "tok_s": tok_s, "others_cpu": 0} | (work or curve.decode(64, 128))


def write(path, rows):
    path.unlink(missing_ok=True)
    common.append(str(path), curve.COLUMNS, rows)
    return [path]


def test_a_point_is_the_median_of_the_newest_commits_runs_at_the_most_threads(tmp_path):
    rows = [row("ingle", v) for v in (100, 200, 400)]
    rows += [row("ingle", 1, commit="old", utc="2025-01-01T00:00:00Z"), row("ingle", 1, threads=1),
             row("ingle", 1, model="other.gguf"), row("llama.cpp", 50, commit="old", utc="2025-01-01T00:00:00Z")]
    model, chosen = plot.choose(plot.read(write(tmp_path / "c.csv", rows)), "m")
    (_, _, belongs, place), *_ = plot.PANELS
    assert plot.series(chosen, belongs, place) == {"ingle": [(128, 5, 2.5, 10)], "llama.cpp": [(128, 20, 20, 20)]}


def test_every_run_is_in_the_panel_of_its_work(tmp_path):
    works = [curve.decode(64, 128), curve.decode(64, 2048), curve.prefill(512), curve.decode(64, 128, 8)]
    rows = plot.read(write(tmp_path / "c.csv", [row("ingle", 100, **w) for w in works]))
    _, chosen = plot.choose(rows, None)
    found = [[p[0] for p in plot.series(chosen, belongs, place)["ingle"]] for _, _, belongs, place in plot.PANELS]
    assert found == [[128, 2048], [512], [1, 8]]


def test_what_ingle_bench_prints_is_read_too(tmp_path):
    path = tmp_path / "ours.csv"
    path.write_text(OURS + '2026-01-01T00:00:00Z,"A, B",2,0.1.0,m,2,avx2,decode,64,128,1,3,200.00,190.00,210.00,0.1000,'
                    "1,1.000,1.00,1.00,0.5,70.0,1\n")
    model, chosen = plot.choose(plot.read([path]), None)
    assert model == "m" and [(r["program"], r["ms"], r["version"]) for r in chosen] == [("ingle", 5, "0.1.0")]
    both = plot.read([path, *write(tmp_path / "c.csv", [row("llama.cpp", 100)])])
    assert {r["program"] for r in plot.choose(both, None)[1]} == {"ingle", "llama.cpp"}


@pytest.mark.parametrize("top, last, n", [(9.9, 10, 5), (10, 10, 5), (0.013, 0.015, 4), (41, 60, 4), (1, 1, 5)])
def test_the_axis_ends_at_a_round_number_that_holds_all(top, last, n):
    ticks = plot.steps(top)
    assert ticks[0] == 0 and ticks[-1] == pytest.approx(last) and ticks[-1] >= top * (1 - 1e-9) and len(ticks) == n


def test_the_picture_is_whole_and_a_line_twice_as_high_is_twice_as_slow(tmp_path):
    rows = [row(p, v, model="<m> & co", **curve.decode(64, n)) for p, v in (("ingle", 200), ("llama.cpp", 100))
            for n in (128, 2048)]
    tree = xml.fromstring(plot.draw(*plot.choose(plot.read(write(tmp_path / "c.csv", rows)), None)))
    svg = "{http://www.w3.org/2000/svg}"
    assert "<m> & co: milliseconds a token" in [t.text for t in tree.iter(svg + "text")]
    heights = [plot.TOP_PX + plot.PLOT - float(c.get("cy")) for c in tree.iter(svg + "circle")]
    assert len(heights) == 6 and 0 < min(heights) and max(heights) <= plot.PLOT
    assert max(heights) == pytest.approx(2 * min(heights), abs=0.2)
