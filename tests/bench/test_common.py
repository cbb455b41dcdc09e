"""Ratios of rounds, and what makes a round noisy: the arithmetic under every figure of a race."""
import os
import subprocess
import sys
import time

import common
import pytest
import race_busy

BUSY = 0.1


def side(*figures, others=0.0):
    return {n + 1: (f, others[n] if isinstance(others, tuple) else others) for n, f in enumerate(figures)}


def test_the_ratio_is_the_median_of_the_rounds_ratios():
    # the machine was twice as fast in rounds 4 and 5, for both
    r = common.compare(side(10, 10, 10, 20, 20), side(30, 20, 25, 60, 50), BUSY)
    assert (r.ratio, r.low, r.high, r.rounds, r.quiet) == (2.5, 2.0, 3.0, 5, True)
    assert (r.peer, r.us) == (10, 30)
    assert str(r) == "2.50 [2.00..3.00]"


def test_a_noisy_round_of_either_does_not_count():
    us = side(20, 20, 20, 90, 20)
    assert common.compare(side(10, 10, 10, 10, 10), us, BUSY).high == 9
    for peer, ours in ((side(10, 10, 10, 10, 10, others=(0, 0, 0, 0.5, 0)), us),
                       (side(10, 10, 10, 10, 10), side(20, 20, 20, 90, 20, others=(0, 0, 0, 0.5, 0)))):
        r = common.compare(peer, ours, BUSY)
        assert (r.high, r.rounds, r.quiet) == (2, 4, True)


def test_fewer_than_three_quiet_rounds_are_no_result():
    r = common.compare(side(10, 10, 10, 10), side(20, 30, 20, 20, others=(0, 0.5, 0.5, 0)), BUSY)
    assert (r.rounds, r.quiet) == (4, False) and str(r).endswith("NOISY")
    assert not common.compare(side(10), side(20), BUSY).quiet
    assert common.compare(side(10, 10, 10), side(20, 30, 20, others=BUSY), BUSY).quiet


def test_rounds_that_one_program_has_not_do_not_count():
    ours = {2: (20, 0), 3: (20, 0), 4: (20, 0), 9: (90, 0)}
    r = common.compare(side(10, 10, 10, 10), ours, BUSY)
    assert (r.ratio, r.high, r.rounds) == (2, 2, 3)
    assert common.compare({1: (10, 0)}, {2: (10, 0)}, BUSY) is None


def rows(program, threads, *tok_s):
    same = {"program": program, "threads": threads, "others_cpu": 0}
    return [same | {"round": n + 1, "tok_s": v} for n, v in enumerate(tok_s)]


def test_a_program_counts_at_its_better_number_of_threads():
    both = rows("a", 1, 5, 5, 5) + rows("a", 2, 4, 9, 4) + rows("b", 2, 7, 7, 7)
    assert common.best_threads(both, "tok_s", BUSY, program="a") == 1
    assert common.best_threads(both, "tok_s", BUSY, program="b") == 2


def test_a_round_with_two_rows_is_refused():
    with pytest.raises(ValueError, match="two rows"):
        common.figures(rows("a", 1, 5) + rows("a", 2, 5), "tok_s", program="a")


def test_rows_are_added_only_under_their_own_columns(tmp_path):
    path = str(tmp_path / "r.csv")
    common.append(path, ["a", "b"], [{"a": 1, "b": 2}])
    common.append(path, ["a", "b"], [{"a": 3}])
    assert open(path).read() == "a,b\n1,2\n3,\n"
    with pytest.raises(SystemExit, match="columns"):
        common.append(path, ["a", "c"], [{"a": 1, "c": 2}])
    common.append("-", ["a"], [{"a": 1}])


def wait_for(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_what_others_used_leaves_out_only_who_is_named():
    with race_busy.Spinners(1) as s:
        all_of_it, without = common.Meter(), common.Meter(s.pids)
        start = s.cpu_seconds()
        wait_for(lambda: s.cpu_seconds() > start + 0.3, "the spinning process got no time")
        named, spun = without.others(), s.cpu_seconds() - start
        wall = time.monotonic() - without.wall
        assert all_of_it.others() >= named + 0.5 * spun / wall


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_spinning_processes_end_with_their_block():
    with pytest.raises(KeyError), race_busy.Spinners(2) as s:
        pids = s.pids
        assert len(set(pids)) == 2 and all(map(alive, pids))
        raise KeyError
    assert not any(map(alive, pids))


def test_spinning_processes_end_when_their_script_is_killed():
    code = (f"import sys; sys.path.insert(0, {os.path.dirname(race_busy.__file__)!r}); import race_busy, time\n"
            "with race_busy.Spinners(1) as s:\n    print(s.pids[0], flush=True)\n    time.sleep(600)\n")
    script = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(script.stdout.readline())
    wait_for(lambda: common.cpu_seconds(pid) > 0.1, "it does not run")
    script.kill()
    script.wait()
    wait_for(lambda: not alive(pid), "it outlived its script")
