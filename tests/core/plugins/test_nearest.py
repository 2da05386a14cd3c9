"""An unknown name is refused with the known name that is most like it, wherever names are given."""

import pytest

from rksc_tot import load_engine, rows_task, solve
from rksc_tot.core.errors import RkscTotError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.task import Boundary, function_task
from rksc_tot.evaluation.contenders import contender_of
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES
from rksc_tot.policies.eviction.registry import eviction_policy
from rksc_tot.strategies import STRATEGIES
from rksc_tot.tasks import load_task
from rksc_tot.tasks.rows.answers import answer_form
from rksc_tot.tasks.rows.rewards import reward_for
from rksc_tot.verifiers import VERIFIERS


def test_a_name_unlike_all_others_has_no_hint():
    assert did_you_mean("xyz", ["beam", "bfs"]) == ""
    assert did_you_mean("BEEM", ["Beam", "bfs"]) == "did you mean 'Beam'? "


@pytest.mark.parametrize(
    ("give", "meant"),
    [
        (lambda: STRATEGIES.make("beem"), "beam"),
        (lambda: STRATEGIES.make("beam", bb=1), "b"),
        (lambda: VERIFIERS.make("likelyhood"), "likelihood"),
        (lambda: VERIFIERS.make("ensemble", member=("random",)), "members"),
        (lambda: load_task("game42"), "game24"),
        (lambda: COMPRESSION_POLICIES.make("snap_kv"), "snapkv"),
        (lambda: eviction_policy("rsbmc"), "rsbcm"),
        (lambda: Boundary.of("sentence:2"), "sentences"),
        (lambda: answer_form("nummer"), "number"),
        (lambda: reward_for("numerical", ""), "numeric"),
        (lambda: function_task(prompt=str, is_solution=str, max_thougths=3), "max_thoughts"),
        (lambda: rows_task([{"q": "a"}], prompt="{q}", thougths="lines"), "thoughts"),
        (lambda: solve("game24", "1 2 3 4", engine=None, stratgy="bfs"), "strategy"),
        (lambda: contender_of({"strategy": "beam", "verifer": "random"}), "verifier"),
        (lambda: load_engine("embedded:sudoku"), "embedded:sudoku4"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(give, meant):
    with pytest.raises(RkscTotError) as refused:
        give()
    assert f"- did you mean {meant!r}? " in str(refused.value)


def test_what_stands_before_a_colon_is_not_compared():
    known = ("embedded", "embedded:sudoku4", "embedded:countdown")
    assert did_you_mean("embedded:chess", known) == ""
    assert did_you_mean("embedded:sudoku", known) == "did you mean 'embedded:sudoku4'? "
