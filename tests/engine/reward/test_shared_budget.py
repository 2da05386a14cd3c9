"""A writing engine and a reward model with one byte budget."""

import pytest

from rksc_tot import load_engine, solve_many
from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
from rksc_tot.core.errors import ConfigError
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import prm

PUZZLES = ["4 5 6 10", "1 2 4 7"]


def searched(budget, folder):
    """The texts and scores of some searches, run side by side."""
    verifier = prm(folder, kv_budget=budget)
    with load_engine(kv_budget=budget) as engine:
        outcomes = list(solve_many("game24", PUZZLES, engine=engine, strategy=BFS(b=2, k=3), verifier=verifier))
        engine.check_integrity()
        verifier.load().check_integrity()
    verifier.close()
    assert [outcome.failure for outcome in outcomes] == [None] * len(PUZZLES)
    trees = {outcome.id: outcome.result.tree for outcome in outcomes}
    return {(n, node.id): (node.text, node.score) for n, tree in trees.items() for node in tree}


def test_results_are_the_same_under_a_tight_shared_budget_which_is_never_exceeded(folders):
    plain = searched("1GiB", folders["token_classes"])
    tight = SharedKVBudget(600_000)  # both take 1.6 MB where they can
    found = searched(tight, folders["token_classes"])
    assert {key: text for key, (text, _) in found.items()} == {key: text for key, (text, _) in plain.items()}
    assert all(
        score == pytest.approx(plain[key][1], abs=1e-6) for key, (_, score) in found.items() if score is not None
    )
    assert 0.9 * tight.size < tight.peak <= tight.size
    assert tight.used == 0


def test_a_budget_for_less_than_a_token_is_refused(folders):
    with pytest.raises(ConfigError, match=r"a KV budget of \d+ bytes - give \d+ at least"):
        prm(folders["token_classes"], kv_budget=SharedKVBudget(100))
