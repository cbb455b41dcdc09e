"""From the rows of the races to the table of goals: which rows a line is made of, and when it is reached."""
import argparse

import common
import curve
import goals
import pytest
import race_server

STARTER, GEMMA, OTHER = "/m/starter.gguf", "/m/gemma.gguf", "/m/snapshot=/m/q8.gguf"


def options():
    return argparse.Namespace(model=STARTER, gemma=GEMMA, formats=[OTHER], busy=0.1,
                              curve=curve.parser().parse_args([]))


def rounds(figure, value, others=0.0, n=5, **columns):
    """n rows; each round's machine is faster by a tenth than the one before."""
    return [columns | {"round": i, figure: value * (1 + i / 10), "others_cpu": others} for i in range(1, n + 1)]


def both(figure, peer, us, **columns):
    return [r for p, v in (("llama.cpp", peer), ("ingle", us)) for r in rounds(figure, v, program=p, **columns)]


def all_rows():
    rows = dict.fromkeys(goals.PARTS, ())
    rows["race"] = [r for model, decode, prefill in (("starter.gguf", 2.5, 5.9), ("gemma.gguf", 1.7, 3))
                    for work, ratio in (("decode", decode), ("prefill", prefill)) for threads in (1, 2)
                    for r in both("tok_s", 50 * threads, 50 * threads * ratio, model=model, work=work, threads=threads)]
    rows["formats"] = [r for model, peer, us in (("starter.gguf", 100, 600), ("snapshot=q8.gguf", 200, 300))
                       for work in ("decode", "prefill")
                       for r in both("tok_s", peer, us, model=model, work=work, threads=2)]
    rows["server"] = [r for kind in race_server.KINDS for n in (1, 8)
                      for r in both("tok_s", 100, 600 if n == 8 else 1, work="chat", prompts=kind, streams=n)]
    rows["server"] += both("ready_ms", 800, 100, work="ready") + both("rss_mb", 500, 300, work="memory")
    rows["busy"] = [r for threads, peer, us in ((1, 19, 20), (common.CORES, 2, 40))
                    for r in both("tok_s", peer, us, work="decode", threads=threads)]
    rows["curve"] = [r for work, us in ((curve.decode(64, 128), 200), (curve.decode(64, 8128), 120),
                                        (curve.decode(64, 128, 8), 600), (curve.prefill(512), 1000),
                                        (curve.prefill(8192), 400)) for r in both("tok_s", 1, us, **work)]
    return rows


def verdicts(rows):
    return [(g.work, g.text(), str(g.ratio).split()[0], g.verdict()) for g in goals.goals(rows, options())]


@pytest.mark.skipif(common.CORES == 1, reason="the rows are of one thread and of all")
def test_every_line_has_its_own_rows_and_its_own_bound():
    assert verdicts(all_rows()) == [
        ("decode, SmolLM2-135M Q4_1", ">= 2.4", "2.50", "yes"),
        ("prefill 512, SmolLM2-135M Q4_1", ">= 6", "5.90", "no"),
        ("decode, Gemma 3 270M Q4_K_M", ">= 1.7", "1.70", "yes"),
        ("prefill 512, Gemma 3 270M Q4_K_M", ">= 3", "3.00", "yes"),
        ("prefill 512, SmolLM2-135M Q4_1, to llama.cpp's best format (snapshot=q8.gguf)", ">= 2.5", "3.00", "yes"),
        ("decode, snapshot=q8.gguf", ">= 1.5", "1.50", "yes"),
        ("prefill 512, snapshot=q8.gguf", ">= 2", "1.50", "no"),
        ("server, tok/s of 8 concurrent chats, distinct prompts", ">= 5", "6.00", "yes"),
        ("server, tok/s of 8 concurrent chats, shared prompts", ">= 5", "6.00", "yes"),
        ("time to ready, warm page cache, ms", "<= 0.2", "0.12", "yes"),
        ("resident after 8 chats of 200 tokens, 16k tokens reserved by both, MB", "<= 0.5", "0.60", "no"),
        ("decode, all cores kept busy by others, each at its best number of threads", ">= 2", "2.11", "yes"),
        (f"the same, both with {common.CORES} threads", ">= 10", "20.00", "yes"),
        ("tok/s of decode at context 8128 to those at 128", ">= 0.5", "0.60", "yes"),
        ("ms a token of a prompt of 8192 to those of 512", "<= 2", "2.50", "no"),
        ("tok/s of a batch of 8 to those of 1", ">= 3.5", "3.00", "no"),
    ]


def test_what_was_not_measured_or_was_disturbed_is_never_reached():
    lines = goals.goals(dict.fromkeys(goals.PARTS, ()), options())
    assert len(lines) == 16 and {g.verdict() for g in lines} == {"not measured"}
    rows = {part: [r | {"others_cpu": 0.3} for r in rows] for part, rows in all_rows().items()}
    assert {g.verdict() for g in goals.goals(rows, options())} == {"noisy, no result"}


def test_the_table_says_the_figures_behind_a_ratio():
    text = goals.table(goals.goals(all_rows(), options()))
    line = next(t for t in text.splitlines() if "snapshot=q8.gguf |" in t and "| decode," in t)
    assert line == "| decode, snapshot=q8.gguf | >= 1.5 | 1.50 [1.50..1.50] | 260 | 390 | 5 | yes |"
