"""The effect of leaving out single thoughts on the answers of a search."""

import math
from collections import Counter

import pytest

from rksc_tot import function_task
from rksc_tot.api.setup import Setup
from rksc_tot.core.task import Path
from rksc_tot.core.tree import Node
from rksc_tot.evaluation.arborkv.leave_one_out import outcome, samples_of, tips_of
from rksc_tot.search import Search
from rksc_tot.search.thoughts.thought_generator import CandidateThought
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.task import Game24
from rksc_tot.verifiers import VERIFIERS
from tests.evaluation.arborkv.conftest import PUZZLES

NARROW = BFS(b=2, k=32)


async def test_there_is_a_sample_for_every_thought_before_the_answer(engine):
    setup = Setup.of("game24", engine, NARROW)
    search = Search(setup.task, (4, 5, 6, 10), engine, VERIFIERS.make("lm_value"))
    await NARROW.run(search)
    tips = tips_of(search)
    search.close()
    assert 1 <= len(tips) <= 2
    assert all(tip.node.depth == 2 and 1 <= tip.k <= 32 for tip in tips)
    samples = await samples_of(setup, engine, PUZZLES[0])
    assert len(samples) == 2 * len(tips)
    scores = {node.score for node in search.tree if node.depth in (1, 2)}
    for sample in samples:
        assert sample.value in scores
        assert 0 < sample.attention < 1
        assert 0 < sample.entropy < math.log(500)


async def test_leaving_out_the_needed_state_loses_the_right_answer(engine):
    """The last thought before a right answer says what is left to compute with."""
    samples = await samples_of(Setup.of("game24", engine, BFS(b=1, k=32)), engine, PUZZLES[0])
    assert [sample.changed for sample in samples] == [False, True]


async def test_samples_depend_on_the_seed_only(engine):
    setup = Setup.of("game24", engine, BFS(b=2, k=5), seed=3)
    first = await samples_of(setup, engine, PUZZLES[1])
    await samples_of(setup, engine, PUZZLES[2])
    assert await samples_of(setup, engine, PUZZLES[1]) == first
    assert await samples_of(Setup.of("game24", engine, BFS(b=2, k=5), seed=4), engine, PUZZLES[1]) != first


async def test_an_answer_in_one_thought_gives_no_sample(engine):
    one = function_task(prompt=lambda p: f"steps {p}\n", is_solution=lambda p, path: len(path) == 1)
    assert await samples_of(Setup.of(one, engine, BFS(b=2, k=4)), engine, PUZZLES[0]) == []


async def test_a_thought_without_a_score_has_value_nan(engine):
    class Unscored(BFS):
        async def run(self, search):
            children = await search.expand([search.root], self.k)
            await search.expand(children, self.k)

    two = function_task(prompt=lambda p: f"steps {p}\n", is_solution=lambda p, path: len(path) == 2, max_thoughts=2)
    samples = await samples_of(Setup.of(two, engine, Unscored(k=3)), engine, PUZZLES[0])
    assert samples
    assert all(math.isnan(sample.value) and sample.attention > 0 for sample in samples)


async def test_thoughts_of_proposals_can_be_left_out(engine):
    class Proposed(Game24):
        mode = "propose"

        def propose_prompt(self, problem, path):
            return "steps 4 5 6 10\n"

        def parse(self, problem, path, text):
            from rksc_tot.core.task import Thought

            return Thought(text)

        def answer(self, problem, path):
            return path[-1].text

        def state_key(self, problem, path):
            return None

        def question(self, problem, path):
            return None

        def is_solution(self, problem, path):
            return len(path) == 2

    setup = Setup.of(Proposed(), engine, BFS(b=1, k=2), VERIFIERS.make("random"))
    assert len(await samples_of(setup, engine, PUZZLES[0])) == 1


def test_only_first_round_children_below_a_thought_count(engine):
    task = function_task(prompt=lambda p: "steps 1 2 3 4\n", is_solution=lambda p, path: len(path) == 2)
    search = Search(task, "p", engine, VERIFIERS.make("random"))
    top = search.tree.add(search.root, branch="0")
    top._handle = engine.extend(search.root._handle, "1\n")
    for branch in ("0.4r1", "0.2", "0.7"):
        search.tree.add(top, branch=branch, finished=branch != "0.7")
    search.tree.add(search.root, branch="5", finished=True)
    assert [(tip.node.id, tip.k) for tip in tips_of(search)] == [(top.id, 3)]
    engine.release(top._handle)
    top._handle = None
    assert tips_of(search) == []
    search.close()


@pytest.mark.parametrize(
    ("answers", "checked", "unchecked"),
    [
        ({}, False, None),
        ({"5 * 4 + 10 - 6": 1, "4": 9}, True, "4"),
        ({"4": 2, "5": 2}, False, "5"),
    ],
)
def test_an_outcome_is_a_right_answer_or_without_a_check_the_commonest(answers, checked, unchecked):
    assert outcome(Game24(), (4, 5, 6, 10), Counter(answers)) is checked
    plain = function_task(prompt=lambda p: p, is_solution=lambda p, path: True)
    assert outcome(plain, "p", Counter(answers)) == unchecked


def test_answers_are_counted_by_branch_and_invalid_ones_are_not_counted():
    from rksc_tot.evaluation.arborkv.leave_one_out import answers_of

    class Picky(Game24):
        def answer(self, problem, path):
            if path[-1].text.startswith("6"):
                raise RuntimeError
            return path[-1].text

        def is_solution(self, problem, path):
            return "left: 24" in path[-1].text

        def parse(self, problem, path, text):
            from rksc_tot.core.task import Thought

            return Thought(text)

    texts = [
        ("4 + 20 (left: 24)", 3, None),
        ("6 (left: 24)", 1, None),
        ("4 (left: 4)", 2, None),
        ("4 (left: 24)", 5, "cut"),
    ]
    drafts = [CandidateThought(Node(id=0), Path(), text, "0", count=count, fault=fault) for text, count, fault in texts]
    assert answers_of(Picky(), (4, 5, 6, 10), Path(), drafts) == {"4 + 20 (left: 24)": 3}
