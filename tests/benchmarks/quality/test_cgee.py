"""Figures of ``python -m benchmarks cgee`` on known data."""

import pytest

from benchmarks.quality.cgee import Compared, measured, searched, sums
from rksc_tot import RKSC
from rksc_tot.core.task import Reject
from rksc_tot.policies.early_exit.fixed_sequence_testing import upper_bound
from rksc_tot.strategies import BFS
from tests.layered_mock import LAYERS, between, drawn, make_engine, make_task

WRONG = 0.2


def test_errors_are_counted_over_the_nodes_that_exited_and_against_the_whole_pass(accepted):
    engine = make_engine(between(wrong_but_sure=WRONG))
    problems = [f"evaluated {n}" for n in range(12)]
    runs = searched(
        make_task(),
        problems,
        engine,
        verifier=Compared,
        strategy=BFS(b=2, k=4),
        rksc=RKSC(calibration=accepted, audit=0),
    )
    flips = n = 0
    for problem, (result, _) in zip(problems, runs, strict=True):
        for node in result.tree:
            if node.score is not None:
                text = f"{problem}:\n" + "".join(f"{thought.text}\n" for thought in result.tree.path(node))
                flips += drawn("lens", text, "late").random() < WRONG
                n += 1
                assert node.layer == 3
    seen = [pair for _, verifier in runs for pair in verifier._seen]
    found = measured([result for result, _ in runs], seen, accepted)
    assert 0 < flips < n
    assert (found["flips"], found["n"]) == (flips, n)
    assert found["exit_error"] == pytest.approx(flips / n, abs=1e-5)
    assert found["exit_error_upper95"] == pytest.approx(upper_bound(flips, n), abs=1e-5)
    assert found["layers_saved"] == pytest.approx(1 - 3 / LAYERS)
    assert found["layers_saved_by_depth"] == {"1": 0.5, "2": 0.5}
    assert found["skip_rate"] == 0
    assert found["rule"]["margins"]["error"] == found["exit_error"]
    assert engine.handles == 0


def test_the_check_of_sums_takes_numbers_only():
    task = sums()
    assert task.parse("17 + 5", (), " 22").text == " 22"
    with pytest.raises(Reject):
        task.parse("17 + 5", (), " about 22")
    assert set(task.question("17 + 5", ()).labels) == {"yes", "no"}
