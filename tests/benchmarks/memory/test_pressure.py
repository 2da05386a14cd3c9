"""What the benchmark of KV under pressure stands on: a model that knows exactly what is kept, and honest counting."""

import json
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from benchmarks.common.engine_watch import Watch
from benchmarks.common.report import flat
from benchmarks.memory import curves as pressure_curves
from benchmarks.memory import lossless as pressure_lossless
from benchmarks.memory import paths as pressure_paths
from benchmarks.memory import thoughts as pressure_thoughts
from benchmarks.memory.curves import FULL, Curves, SearchRun, Setting, path_settings, search, tree_settings
from benchmarks.memory.lossless import alone, carry_out, chains, compared, figures, policy
from benchmarks.memory.model import findings as model_findings
from benchmarks.memory.model import further
from benchmarks.memory.paths import KINDS, RECENT, Told, script, write
from benchmarks.memory.plot import curves, draw
from benchmarks.memory.pressure import findings
from benchmarks.memory.recall import HEADS, NONE, fact
from benchmarks.memory.thoughts import LEVELS, LongThoughts, by_chance, marks, problems
from benchmarks.results import page
from benchmarks.results import runs as kept_runs
from rksc_tot import RKSC, load_engine, solve
from rksc_tot.core.task import Path, Thought
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.base import PathPolicy
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.streaming_llm import Streaming

SHARES = "solved", "solved.low", "solved.high", "memory"


class Inline:
    """Workers that do it here."""

    def each(self, measure, arguments):
        return [measure(*each) for each in arguments]


# -- the model that was written by hand ------------------------------------------------------------------------------------


class Blind(PathPolicy):
    """Keeps the first tokens and what is late, but in some heads not the statements of a fact."""

    name = "blind"
    gone: tuple[int, ...] = ()
    heads: int = HEADS

    @property
    def per_head(self):
        return True

    def select(self, view, budget, rng):
        assert view.positions.ndim == 1, "these tests reduce a segment once"
        kept = np.empty((view.layers, view.heads, min(budget, len(view))), dtype=np.int64)
        for head in range(view.heads):
            lost = [n for n in range(len(view)) if view.positions[n] in self.gone] if head < self.heads else []
            order = [*(n for n in range(len(view)) if n not in lost), *lost]
            kept[:, head] = np.sort(order[: kept.shape[-1]])
        return kept


def test_with_all_kv_every_fact_is_known():
    told = write(None, 3)
    assert told.right == dict.fromkeys(KINDS, 3)
    assert told.peak > pressure_paths.LINES


def test_what_is_not_kept_is_not_known_and_what_is_restated_is():
    told = write(Streaming(budget=32, recent=RECENT), 3)
    assert told.right == {"prompt": 3, "once": 0, "every_16": 3, "every_32": 3, "every_64": 0, "every_128": 0}
    told = write(Streaming(budget=32, recent=RECENT, pin_prompt=False), 3)
    assert told.right["prompt"] == 0


@pytest.mark.parametrize(("blind", "known"), [(0, True), (HEADS - 1, True), (HEADS, False)])
def test_one_head_that_still_has_a_statement_suffices(blind, known, monkeypatch):
    monkeypatch.setattr(pressure_paths, "LINES", 72)  # so that a path is brought down once before the questions
    prompt = 1 + pressure_paths.STATED + 1  # the first token, the facts, the first line
    stated = prompt + 1  # after line 1 comes what is stated once
    told = write(Blind(budget=47, recent=RECENT, gone=(stated,), heads=blind), 2)
    assert told.peak == pytest.approx(47 + 2 * RECENT, abs=2)
    assert (told.right["once"] == 2) == known
    assert told.right["every_16"] == told.right["prompt"] == 2


def test_a_script_asks_for_each_fact_as_often_as_it_says():
    reads = [each.reads for each in script().lines[: pressure_paths.LINES]]
    for every in pressure_paths.EVERY:
        assert reads.count(f"every_{every}") == pressure_paths.LINES // every
    assert reads.count("once") == 0
    assert [each.reads for each in script().lines[-len(KINDS) - 1 : -1]] == ["p11", *KINDS[1:]]


# -- long thoughts ---------------------------------------------------------------------------------------------------------


def told(level, *words):
    return Thought(f" l0; m{level}={level} " + "".join(words))


def test_right_is_what_recites_every_mark_and_the_prompt():
    task, problem = LongThoughts(), "0 1 2 3 4 5 6 7 8 9 0 7"
    truth = [fact("p11", 7), *(fact(f"m{n}", n) for n in range(LEVELS))]
    path = Path([*(told(n) for n in range(LEVELS - 1)), told(LEVELS - 1, *truth)])
    assert marks(path) == ["0", "1", "2", "3"]
    assert task.check(problem, task.answer(problem, path)) is True
    for at in range(len(truth)):
        wrong = [*truth[:at], re.sub("=.*", f"={NONE}", truth[at]), *truth[at + 1 :]]
        path = Path([*(told(n) for n in range(LEVELS - 1)), told(LEVELS - 1, *wrong)])
        assert task.check(problem, task.answer(problem, path)) is False


def test_the_same_search_finds_the_same_exact_tree_in_a_quarter_of_the_room():
    full, rest = alone(problems(1)[0], {})
    small, least = alone(problems(1)[0], {"compress": ArborKV(), "kv_budget": rest["held_bytes"] // 4})
    assert full == small
    assert least["recomputed_tokens"] > rest["recomputed_tokens"] == 0
    assert 0 < least["held_bytes"] <= rest["held_bytes"] // 4
    assert least["allocated_bytes"] <= rest["held_bytes"] // 4
    assert rest["allocated_bytes"] >= rest["held_bytes"]
    assert rest["growing_bytes"] > rest["allocated_bytes"]
    assert least["overruns"] == rest["overruns"] == 0


def test_where_nothing_may_go_there_is_no_room():
    tree, found = alone(problems(1)[0], {"eviction": "none", "kv_budget": 500 * 2560})
    assert not found["finished"]
    assert tree is None
    assert found["held_bytes"] <= 500 * 2560


# -- accuracy against memory -----------------------------------------------------------------------------------------------


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

    monkeypatch.setattr(pressure_curves, "searches", some)
    curve = Curves("games", ["p"] * 8, seeds=3)
    pressure_curves.run([(curve, setting) for setting in (FULL, Setting("a", "25%"))], Inline())
    found = flat(curve.figures())
    assert found["curve.games.full.solved"] == round((2 + 3 + 4) / 24, 4)
    assert (found["peak_reduction.a"], found["solved_delta.a"]) == (1.0, 0)  # two fewer with each seed
    monkeypatch.setattr(pressure_curves, "WITHIN", 2)
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
        first, other, again, too = (search("games", puzzle, 0, engine) for puzzle in ("4 5 6 10", "1 2 3 4") * 2)
    assert (first, other) == (again, too)
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


# -- what an engine is seen to do ------------------------------------------------------------------------------------------


def test_a_pass_over_the_budget_is_counted():
    with load_engine() as engine:
        watch = Watch(engine)
        chains(engine, ["4 5 6 10"])
        assert watch.overruns == 0 < watch.held <= watch.allocated
        held, watch.budget = watch.held, watch.allocated - 1
        passes = watch.passes
        chains(engine, ["1 2 3 4"])
        assert watch.overruns == watch.passes - passes
        assert watch.held > held  # nothing of the first was let go


def test_a_pass_of_drafts_alone_is_no_full_pass():
    plain = carry_out("chains", ["4 5 6 10"], None, None)
    drafted = carry_out("chains", ["4 5 6 10"], policy("identity", "chains"), None)
    assert pressure_lossless.NEW >= plain.full_passes == plain.passes > 20
    assert drafted.passes > drafted.full_passes > 0
    assert drafted.full_passes < plain.full_passes / 4
    assert plain.out == drafted.out
    assert plain.branches == pressure_lossless.SAMPLED + 1


PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "3 3 8 8", "1 5 5 5", "2 3 4 5", "1 3 4 6", "5 5 5 1"]


def test_what_comes_out_otherwise_is_not_called_the_same(monkeypatch):
    monkeypatch.setattr(pressure_lossless, "SAMPLED", 2)
    monkeypatch.setattr(pressure_lossless, "Lossless", lambda: False)  # drafts that nobody verifies
    assert not compared("random_attention", "chains", PUZZLES[:5])["identical"]


def test_a_policy_that_keeps_all_has_every_draft_accepted_and_another_one_not(monkeypatch):
    monkeypatch.setattr(pressure_lossless, "SAMPLED", 4)
    puzzles = PUZZLES
    found = {(name, "chains"): compared(name, "chains", puzzles) for name in ("identity", "random_attention")}
    said = flat(figures(found))
    assert said["lossless_identical"] is said["drafted_is_accepted_and_rejected"] is True
    assert said["acceptance.identity"] == 1 > said["acceptance.random_attention"] > 0
    assert said["branches"] == len(PUZZLES) * (4 + 1)
    assert said["acceptance_tight.identity"] < 1  # where room is short, drafts are void
    assert said["overruns"] == 0
    assert all(0 < each["held"] <= each["budget"] for each in found.values())
    assert said["restored_tokens.random_attention"] > 0


@pytest.mark.parametrize(("part", "figure", "value"), [
    ("identical", "lossless_identical", False), ("balanced", "drafted_is_accepted_and_rejected", False),
    ("overruns", "overruns", 2), ("branches", "branches", 3),
])  # fmt: skip
def test_one_policy_that_fails_is_told(part, figure, value):
    good = {
        "identical": True, "branches": 9, "drafted": 10, "accepted": 5, "drafted_tight": 10, "accepted_tight": 5,
        "balanced": True, "full_passes": 1, "plain_passes": 4, "passes": 6, "overruns": 0, "restored": 0,
    }  # fmt: skip
    said = figures({("a", "chains"): good, ("b", "chains"): good | {part: value}})
    assert said[figure] == value
    assert said["passes_saved"]["a"] == 0.75
    assert figures({("a", "chains"): good})[figure] == {"overruns": 0, "branches": 9}.get(figure, True)


# -- what is said ----------------------------------------------------------------------------------------------------------


def recalled(random, other, prompt=(1.0, 0.1), once=0.0):
    point = {
        name: dict(zip(SHARES, (share, share - 0.05, share + 0.05, 0.3), strict=True))
        for name, share in (random, other)
    }
    kinds = dict.fromkeys(KINDS, 1.0)
    return {
        **{f"curve.paths.{name}.64": point[random[0]] for name in ("random_attention",)},
        **{f"curve.paths.{name}.64": point[other[0]] for name in ("snapkv", "snapkv_kernel1", "streaming")},
        "curve.paths.random_attention_unpinned.64": point[other[0]],
        "recall.random_attention.pinned": kinds | {"prompt": prompt[0], "once": once},
        "recall.random_attention.unpinned": kinds | {"prompt": prompt[1]},
    }


@pytest.mark.parametrize(("random", "other", "verdict"), [
    (0.8, 0.8, "reproduced at 64"), (0.8, 0.82, "not told apart at 64"), (0.6, 0.8, "refuted at 64"),
    (0.0, 0.0, "nothing is solved by any at 64"), (0.1, 0.0, "reproduced at 64"),
])  # fmt: skip
def test_a_claim_is_held_against_the_intervals(random, other, verdict):
    said = findings(recalled(("random", random), ("other", other)))
    assert said["finding.random_pinned_at_least_snapkv_and_streaming"] == f"paths: {verdict}"


def test_a_claim_is_held_against_the_searches_too():
    found = recalled(("r", 0.8), ("o", 0.7))
    for name, solved in (("random_attention", 0.3), ("snapkv", 0.7), ("streaming", 0.3)):
        found[f"curve.games.{name}.8"] = dict(zip(SHARES, (solved, solved - 0.05, solved + 0.05, 0.9), strict=True))
    said = findings(found)["finding.random_pinned_at_least_snapkv_and_streaming"]
    assert said == "paths: reproduced at 64; games: refuted at 8"


def test_what_does_not_collapse_and_is_not_lost_is_said_to_be_refuted():
    said = findings(recalled(("r", 0.8), ("o", 0.7), prompt=(1.0, 0.9), once=0.9))
    assert said["finding.collapses_without_the_pin"].startswith("refuted for ")
    assert said["finding.stated_once_is_lost"].startswith("refuted: ")
    said = findings(recalled(("r", 0.8), ("o", 0.7)))
    assert said["finding.collapses_without_the_pin"].startswith("reproduced for ")
    assert said["finding.stated_once_is_lost"].startswith("reproduced: ")


def test_intervals_of_the_path_curve_are_those_of_its_questions(monkeypatch):
    right = {"prompt": 4, "once": 3, "every_16": 4, "every_32": 4, "every_64": 2, "every_128": 0}
    monkeypatch.setattr(pressure_paths, "write", lambda keep, count: Told(right, count, 100.0 if keep else 400.0))
    found = flat(pressure_paths.figures(4, (64,), Inline()))
    assert found["curve.paths.streaming.64.solved"] == round(14 / 20, 4)
    assert found["curve.paths.streaming_unpinned.64.memory"] == 0.25
    assert found["recall.snapkv.unpinned.every_64"] == 0.5
    assert found["curve.paths.full.memory"] == 1


# -- the plot --------------------------------------------------------------------------------------------------------------

DRAWN = {
    "curve.games.full": (0.97, 0.9, 0.99, 1.0), "curve.games.arborkv.25%": (0.96, 0.9, 0.99, 0.25),
    "curve.games.arborkv.17%": (0.95, 0.9, 0.99, 0.17), "curve.paths.snapkv_unpinned.64": (0.5, 0.4, 0.6, 0.3),
}  # fmt: skip
FIGURES = {
    f"{name}.{part}": value for name, values in DRAWN.items() for part, value in zip(SHARES, values, strict=True)
}


def test_every_point_is_drawn_with_its_interval_and_nothing_else():
    assert [point.memory for point in curves(FIGURES, "games")["arborkv"]] == [0.17, 0.25]
    assert curves(FIGURES, "thoughts") == {}
    picture = draw(FIGURES | {"peak_reduction.arborkv": 4.0, "curve.games.arborkv.25%.recomputed": 5.0})
    assert picture == draw(dict(reversed(FIGURES.items())))
    drawn = ET.fromstring(picture)
    circles = [each for each in drawn.iter("{http://www.w3.org/2000/svg}circle") if each.get("r") == "3.2"]
    assert len(circles) == len(DRAWN)
    titles = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert titles == {"full", "arborkv", "snapkv_unpinned"}
    moved = draw(FIGURES | {"curve.games.arborkv.25%.solved.low": 0.5})
    assert moved != picture


def test_the_page_shows_the_plot_that_belongs_to_its_figures(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "DOCS", tmp_path)
    kept = json.loads((kept_runs.DOCS / "figures" / "pressure.json").read_text())
    monkeypatch.setattr(page, "kept_figures", lambda: {"pressure": kept})
    page.write()
    assert "![accuracy against memory](pressure.svg)" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "pressure.svg").read_text() == draw(kept["figures"])


def test_what_decides_between_thoughts_depends_on_nothing_but_them():
    with pressure_thoughts.engine() as engine:
        found = [
            solve(LongThoughts(), problems(2)[1], engine=engine, strategy=pressure_thoughts.STRATEGY, verifier=by_chance(),
                  rksc=RKSC(audit=0))
            for _ in range(2)
        ]  # fmt: skip
    assert found[0].correct is True
    assert found[0].tree == found[1].tree
    assert len({node.score for node in found[0].tree if node.depth}) > 20


def far(random_attention, others, unpinned):
    names = ("snapkv", "snapkv_kernel1", "streaming")
    return {
        ("random_attention", True, 96): random_attention,
        ("random_attention", False, 96): unpinned,
        **{(name, True, 96): others for name in names},
    }


@pytest.mark.parametrize(("ours", "verdict"), [
    ([[0.2, 0.3], [0.4]], "refuted by snapkv, snapkv_kernel1, streaming at 96"),
    ([[0.1, 0.2], [0.2]], "reproduced at 96"),
    ([[0.0, 0.2], [0.5]], "not told apart at 96"),
])  # fmt: skip
def test_a_claim_about_a_real_model_is_held_against_the_texts(ours, verdict):
    said = model_findings(far(ours, [[0.1, 0.2], [0.3]], [[0.9, 0.9], [0.9]]), [96])
    assert said["finding.random_pinned_at_least_snapkv_and_streaming"] == verdict
    assert said["finding.further_off_without_the_pin"] == "reproduced at 96"
    said = model_findings(far(ours, ours, ours), [96])
    assert said["finding.further_off_without_the_pin"] == "not told apart at 96"


def test_a_difference_is_taken_at_the_same_positions_and_texts_without_any_are_left_out():
    found = further([[1.0, 2.0], [], [3.0]], [[0.5, 1.0], [], [3.0]])
    assert found == {"mean": 0.5, "low": 0.0, "high": 0.75}
