"""If ``batch_invariant`` is true, results of the embedded model are equal to the last bit under any load and KV budget.

The engine sets ``batch_invariant`` if it proved this for the model and the processor at load.
"""

import json
import random
import threading
from contextlib import contextmanager
from importlib.resources import files

import pytest
import torch

from rksc_tot import load_engine, solve, solve_many
from rksc_tot.engine.attention.matmul import proved
from rksc_tot.strategies import BFS, DFS, Beam, SelfConsistency

PUZZLES = json.loads((files("rksc_tot.tasks.game24") / "weights" / "held_out.json").read_text(encoding="utf-8"))[
    "roots"
][:2]
BYTES_PER_TOKEN = 6144
SEARCHES = {
    "bfs": ("game24", {"strategy": BFS(b=2, k=3), "verifier": "lm_value"}),
    "dfs": ("game24", {"strategy": DFS(k=3, max_solutions=2), "verifier": "lm_value"}),
    "beam": ("game24", {"strategy": Beam(b=2, k=3), "verifier": "likelihood"}),
    "self_consistency": ("game24-chain", {"strategy": SelfConsistency(n=6)}),
}


def found(engine, search, concurrency, problems=PUZZLES):
    """The trees and answers of the searches, by problem."""
    task, options = SEARCHES[search]
    run = solve_many(task, problems, engine=engine, concurrency=concurrency, **options)
    return {outcome.problem: (outcome.result.tree.to_records(), outcome.result.answer) for outcome in run}


def proved_here(engine):
    """Whether a kernel for attention products is batch invariant on this processor, for the head sizes of the model."""
    arena = engine.forward.arena
    return all(proved(arena.keys[layer].shape[-1], arena.values[layer].shape[-1]) for layer in arena.keys)


def same(engine, trees, wanted):
    """Whether trees are equal; always True if the engine is not batch invariant."""
    return trees == wanted or not engine.numerics["batch_invariant"]


@pytest.fixture(scope="module")
def alone():
    """The results of a search at concurrency 1, by the name of the search; each search runs once."""
    known = {}

    def trees(search):
        if search not in known:
            with load_engine() as engine:
                known[search] = found(engine, search, 1)
                assert engine.numerics["batch_invariant"] == proved_here(engine)
            assert all(len(tree) > 5 for tree, _ in known[search].values())
        return known[search]

    return trees


@pytest.fixture(scope="module")
def engine():
    with load_engine() as engine:
        yield engine


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def another_thread_at_work():
    done = threading.Event()

    def work():
        matrix = torch.ones(64, 64)
        while not done.is_set():
            matrix @ matrix

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("search", SEARCHES)
def test_other_searches_order_eviction_and_small_passes_together_do_not_change_a_result(search, alone):
    with load_engine(kv_budget=110 * BYTES_PER_TOKEN, max_batch_tokens=16) as engine:
        assert engine.bytes_per_token == BYTES_PER_TOKEN
        together = found(engine, search, len(PUZZLES), reversed(PUZZLES))
        assert same(engine, together, alone(search))
        assert engine.cache.eviction_log.tokens > 0


def test_other_searches_and_their_order_do_not_change_a_result(alone):
    with load_engine() as engine:
        for seed in (1, 2):
            shuffled = random.Random(seed).sample(PUZZLES, len(PUZZLES))
            together = found(engine, "bfs", len(PUZZLES), shuffled)
            assert same(engine, together, alone("bfs"))  # the second time on KV of the first


def some(trees, problems):
    return {problem: trees[problem] for problem in problems}


def test_the_number_of_threads_does_not_change_a_result(alone):
    with threads(2), load_engine() as engine:
        assert same(engine, found(engine, "bfs", 4, PUZZLES[:1]), some(alone("bfs"), PUZZLES[:1]))


def test_other_work_on_the_machine_does_not_change_a_result(alone):
    with another_thread_at_work(), load_engine() as engine:
        assert same(engine, found(engine, "bfs", 4, PUZZLES[1:]), some(alone("bfs"), PUZZLES[1:]))


@pytest.mark.parametrize("search", SEARCHES)
def test_another_seed_changes_the_search(search, alone, engine):
    task, options = SEARCHES[search]
    other = solve(task, PUZZLES[0], engine=engine, seed=1, **options)
    assert other.tree.to_records() != alone(search)[PUZZLES[0]][0]


@pytest.mark.parametrize("pack", [True, False])
def test_a_result_records_its_numerics(pack):
    with load_engine(pack=pack) as engine:
        numerics = solve("game24", PUZZLES[0], engine=engine, strategy=BFS(b=1, k=2)).numerics
        assert numerics["batch_invariant"] == (pack and proved_here(engine)) == engine.capabilities.batch_invariant
    assert numerics["linear"] == ("packed" if pack else "stock")
    assert (numerics["dtype"], numerics["device"], numerics["threads"]) == ("float32", "cpu", torch.get_num_threads())
    assert numerics["torch"] == torch.__version__
