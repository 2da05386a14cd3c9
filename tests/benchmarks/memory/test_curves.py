"""Accuracy and memory: points, reductions, and searches measured from their start."""

from benchmarks.common.report import flat
from benchmarks.memory import curves
from benchmarks.memory.curves import FULL, Curves, SearchRun, Setting, path_settings, search, tree_settings
from rksc_tot import load_engine
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.random_attention import RandomAttention
from tests.benchmarks.inline import Inline


def runs(solved, of, peak, finished=True):
    return [SearchRun(n < solved, peak, 0, 10, 0, finished) for n in range(of)]


def test_a_reduction_is_that_of_the_tightest_budget_that_loses_one_puzzle_at_most():
    curve = Curves("games", ["p"] * 10)
    curve.found = {FULL: runs(9, 10, 1000)}
    for level, solved, peak in (("50%", 9, 500), ("25%", 8, 250), ("17%", 7, 170)):
        curve.found[Setting("a", level)] = runs(solved, 10, peak)
        curve.found[Setting("b", level)] = runs(7, 10, peak)
        curve.found[Setting("c", level)] = runs(10, 10, peak)
    found = flat(curve.figures())
    assert (found["peak_reduction.a"], found["solved_delta.a"]) == (4.0, -1)
    assert (found["peak_reduction.b"], found["solved_delta.b"]) == (1.0, 0)
    assert (found["peak_reduction.c"], found["solved_delta.c"]) == (round(1000 / 170, 3), 1)
    assert (found["curve.games.a.25%.solved"], found["curve.games.a.25%.memory"]) == (0.8, 0.25)
    assert found["curve.games.a.25%.solved.low"] < 0.8 < found["curve.games.a.25%.solved.high"]


def test_searches_of_all_seeds_make_a_point_and_a_delta_is_that_of_one_seed(monkeypatch):
    def some(suite, problems, seed, setting):
        return runs(2 + seed if setting == FULL else seed, len(problems), 100 if setting == FULL else 25)

    monkeypatch.setattr(curves, "searches", some)
    curve = Curves("games", ["p"] * 8, seeds=3)
    curves.run([(curve, setting) for setting in (FULL, Setting("a", "25%"))], Inline())
    found = flat(curve.figures())
    assert found["curve.games.full.solved"] == round((2 + 3 + 4) / 24, 4)
    assert (found["peak_reduction.a"], found["solved_delta.a"]) == (1.0, 0)  # two fewer with each seed
    monkeypatch.setattr(curves, "WITHIN", 2)
    found = flat(curve.figures())
    assert (found["peak_reduction.a"], found["solved_delta.a"]) == (4.0, -2)


def test_settings_get_their_share_and_the_policy_they_are_named_after():
    one, two, three = tree_settings(1000, {"arborkv": (0.25,), "evict_none": (0.5,), "arborkv_lossy": (0.1,)})
    assert (one.tokens, one.compression, one.eviction) == (250, ArborKV(), "rsbcm")
    assert (two.tokens, two.compression, two.eviction) == (500, None, "none")
    assert (three.tokens, three.compression) == (100, ArborKV(rehydrate=False))
    found = {setting.key: setting.compression for setting in path_settings((8,), 4, pinned=False)}
    assert found["random_attention_unpinned.8"] == RandomAttention(budget=8, recent=4, pin_prompt=False)


def test_a_search_is_measured_from_its_own_start():
    with load_engine() as engine:
        first, other, again = (search("games", puzzle, 0, engine) for puzzle in ("4 5 6 10", "1 2 3 4", "4 5 6 10"))
    assert first == again
    assert first.peak != other.peak
    assert first.right
    assert first.finished
    assert first.peak > 500
    assert first.recomputed == first.inexact == 0


def test_a_search_without_room_is_neither_right_nor_finished():
    with load_engine(kv_budget=40 * 6144) as engine:
        found = search("games", "4 5 6 10", 0, engine)
    assert (found.right, found.finished) == (False, False)
    assert found.peak <= 40
