"""End-to-end searches on the embedded model."""

import asyncio
import json
from importlib.resources import files

import pytest

from rksc_tot import Budget, asolve, load_engine, solve, solve_many
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.task import Game24

PUZZLE = "4 5 6 10"
SEARCH = BFS(b=5, k=32)
FEW = BFS(b=5, k=8)


@pytest.fixture(scope="module")
def engine():
    with load_engine() as engine:
        yield engine
        engine.check_integrity()


@pytest.fixture(autouse=True)
def cold(engine):
    engine.clear()


def shape(tree):
    """Everything of a tree but floating-point noise."""
    return [(n.parent, n.branch, n.text, n.tokens, n.count, n.pruned, round(n.score or 0, 3)) for n in tree]


@pytest.fixture(scope="module")
def found(engine):
    """A search with the model's own value."""
    engine.clear()
    return solve("game24", PUZZLE, engine=engine, strategy=SEARCH, verifier="lm_value")


def solved(engine, puzzles, **search):
    """How many of them are solved, all searched together."""
    run = solve_many("game24", puzzles, engine=engine, concurrency=len(puzzles), **search)
    return sum(bool(outcome.result.correct) for outcome in run)


def puzzles():
    text = (files("rksc_tot.tasks.game24") / "weights" / "held_out.json").read_text(encoding="utf-8")
    return json.loads(text)


def test_the_model_is_small_and_takes_the_fast_path(engine):
    folder = files("rksc_tot.tasks.game24") / "weights"
    assert sum(len(part.read_bytes()) for part in folder.iterdir() if part.is_file()) <= 10_000_000
    assert engine.capabilities.route == "fast"


def test_a_puzzle_is_solved_with_the_models_own_value(found):
    assert found.correct
    assert found.stopped == "finished"
    assert found.tree[found.best].finished


def test_nothing_is_computed_twice_and_most_prefill_is_saved(found):
    ledger = found.ledger
    assert ledger.prefill_tokens == ledger.distinct_tokens > 0
    assert ledger.recomputed_tokens == 0
    assert ledger.prefill_saved >= 0.7
    assert ledger.verifier_calls == ledger.nodes
    assert ledger.peak_kv_bytes > 0


def test_a_search_releases_all_kv(engine):
    solve("game24", PUZZLE, engine=engine, strategy=BFS(b=2, k=8), verifier="lm_value")
    engine.clear()
    assert engine.usage.kv_bytes == 0


def test_the_same_seed_grows_the_same_tree_and_another_seed_another(engine):
    one, two, other = (
        solve("game24", PUZZLE, engine=engine, strategy=BFS(b=2, k=6), verifier="lm_value", seed=seed).tree
        for seed in (3, 3, 4)
    )
    assert shape(one) == shape(two)
    assert shape(one) != shape(other)


def test_a_tree_does_not_depend_on_the_searches_beside_it(engine):
    chosen, search = puzzles()["roots"][:3], {"strategy": BFS(b=2, k=6), "verifier": "lm_value"}

    async def crowd():
        return await asyncio.gather(*(asolve("game24", p, engine=engine, **search) for p in chosen))

    together = asyncio.run(crowd())
    for puzzle, result in zip(chosen, together, strict=True):
        engine.clear()
        alone = solve("game24", puzzle, engine=engine, **search)
        assert shape(alone.tree) == shape(result.tree)
        assert alone.answer == result.answer


def test_eviction_changes_the_ledger_and_no_result(engine):
    with load_engine(kv_budget=1_500_000) as tight:
        one, two = (
            solve("game24", PUZZLE, engine=engine, strategy=BFS(b=3, k=8), verifier="lm_value")
            for engine in (engine, tight)
        )
        assert tight.cache.eviction_log.tokens > 0
    assert shape(one.tree) == shape(two.tree)
    assert two.ledger.peak_kv_bytes <= 1_500_000


def test_most_held_out_puzzles_are_solved_at_first_answer(engine):
    sets = puzzles()
    search = {"strategy": FEW, "verifier": "lm_value"}
    assert solved(engine, sets["roots"][:10], **search) >= 7
    assert solved(engine, sets["states"][:10], **search) >= 5


def test_the_models_values_solve_more_than_random_values(engine):
    chosen = puzzles()["roots"][:10]
    assert solved(engine, chosen, strategy=FEW, verifier="random") <= 4


@pytest.mark.parametrize("budget", [Budget(tokens=1), Budget(nodes=1), Budget(verifier_calls=1), Budget(tokens=300)])
def test_budgets_are_exact_on_a_real_engine(engine, budget):
    result = solve("game24", PUZZLE, engine=engine, strategy=SEARCH, verifier="lm_value", budget=budget)
    assert "is used up" in result.stopped
    for name, used in {
        "tokens": result.ledger.tokens_sampled,
        "nodes": result.ledger.nodes,
        "verifier_calls": result.ledger.verifier_calls,
    }.items():
        assert used <= (getattr(budget, name) or used)
    assert result.best >= 0


def test_the_value_question_is_the_one_the_model_was_trained_on(engine):
    question = Game24().question((4, 5, 6, 10), ())
    assert engine.tokenizer.unk_token_id not in engine.tokenizer.encode(question.text)
