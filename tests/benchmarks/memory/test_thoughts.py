"""Searches with long thoughts: right answers, equal trees in a quarter of the room, seeded scores."""

import re

from benchmarks.memory import thoughts
from benchmarks.memory.lossless import alone
from benchmarks.memory.recall import NONE, fact
from benchmarks.memory.thoughts import LEVELS, LongThoughts, by_chance, marks, problems
from rksc_tot import RKSC, solve
from rksc_tot.core.task import Path, Thought
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.strategies import BFS


def told(level, *words):
    return Thought(f" l0; m{level}={level} " + "".join(words))


def test_an_answer_is_right_if_it_recites_every_mark_and_the_prompt():
    task, problem = LongThoughts(), "0 1 2 3 4 5 6 7 8 9 0 7"
    truth = [fact("p11", 7), *(fact(f"m{n}", n) for n in range(LEVELS))]
    path = Path([*(told(n) for n in range(LEVELS - 1)), told(LEVELS - 1, *truth)])
    assert marks(path) == ["0", "1", "2", "3"]
    assert task.check(problem, task.answer(problem, path)) is True
    for at in range(len(truth)):
        wrong = [*truth[:at], re.sub("=.*", f"={NONE}", truth[at]), *truth[at + 1 :]]
        path = Path([*(told(n) for n in range(LEVELS - 1)), told(LEVELS - 1, *wrong)])
        assert task.check(problem, task.answer(problem, path)) is False


def test_the_same_search_finds_the_same_exact_tree_in_a_quarter_of_the_room(monkeypatch):
    monkeypatch.setattr(thoughts, "STRATEGY", BFS(b=3, k=5))
    full, rest = alone(problems(1)[0], {})
    small, least = alone(problems(1)[0], {"compress": ArborKV(), "kv_budget": rest["held_bytes"] // 4})
    assert full == small
    assert least["recomputed_tokens"] > rest["recomputed_tokens"] == 0
    assert 0 < least["held_bytes"] <= rest["held_bytes"] // 4
    assert least["allocated_bytes"] <= rest["held_bytes"] // 4
    assert rest["allocated_bytes"] >= rest["held_bytes"]
    assert rest["growing_bytes"] > rest["allocated_bytes"]
    assert least["overruns"] == rest["overruns"] == 0


def test_without_eviction_there_is_no_room():
    tree, found = alone(problems(1)[0], {"eviction": "none", "kv_budget": 500 * 2560})
    assert not found["finished"]
    assert tree is None
    assert found["held_bytes"] <= 500 * 2560


def test_scores_depend_only_on_problem_and_marks(monkeypatch):
    monkeypatch.setattr(thoughts, "STRATEGY", BFS(b=2, k=8))
    with thoughts.engine() as engine:
        found = [
            solve(LongThoughts(), problems(2)[1], engine=engine, strategy=thoughts.STRATEGY, verifier=by_chance(),
                  rksc=RKSC(audit=0))
            for _ in range(2)
        ]  # fmt: skip
    assert found[0].correct is True
    assert found[0].tree == found[1].tree
    assert len({node.score for node in found[0].tree if node.depth}) > 20
