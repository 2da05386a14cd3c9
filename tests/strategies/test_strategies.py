"""Each strategy against its paper."""

import sys
from collections import Counter

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.strategies import BFS, DFS, STRATEGIES, Beam, BestOfN, Chain, SelfConsistency
from rksc_tot.strategies.chain import generate_chains
from rksc_tot.verifiers import Likelihood, verifier


def letters(alphabet):
    """Writes each letter of the alphabet at some branch, over many."""
    return lambda text, rng: f"{rng.choice(alphabet)}\n"


def run(strategy, value, writer, depth=2, finish=None, budget=None, on_event=None, seed=0, **options):
    task = function_task(
        prompt=lambda problem: "go\n",
        is_solution=finish or (lambda problem, path: len(path) == depth),
        answer=lambda problem, path: "".join(thought.text for thought in path),
        max_thoughts=depth,
        **options,
    )
    scorer = verifier(timeout=None)(lambda problem, path: value["".join(thought.text for thought in path)])
    chosen = {"verifier": scorer, "budget": budget, "on_event": on_event, "seed": seed}
    return solve(task, "p", engine=MockEngine(writer), strategy=strategy, **chosen)


class Values(dict):
    def __missing__(self, key):
        return 0.0


# -- BFS -------------------------------------------------------------------------------------------------------------------


def test_bfs_keeps_b_states_a_level_and_k_thoughts_after_each():
    asked = []

    class Counting(MockEngine):
        async def generate(self, requests, account):
            asked.append([len(request.streams) for request in requests])
            return await super().generate(requests, account)

    task = function_task(prompt=lambda p: "go\n", is_solution=lambda p, path: len(path) == 3, max_thoughts=3)
    engine = Counting(lambda text, rng: f"{rng.getrandbits(32)}\n")
    result = solve(task, "p", engine=engine, strategy=BFS(b=2, k=4))
    assert asked == [[4], [4, 4], [4, 4]]
    assert result.ledger.nodes == 4 + 8 + 8


def test_bfs_answers_with_the_best_scored_path_right_or_not():
    checked = []
    value = Values(aa=0.1, ab=0.9, ba=0.5, bb=0.2, a=1.0, b=1.0)
    check = lambda problem, answer: checked.append(answer) or answer == "ba"  # noqa: E731
    result = run(BFS(b=2, k=16), value, letters("ab"), check=check)
    assert (result.answer, result.correct) == ("ab", False)
    assert checked == ["ab"]  # by the report, after the search


def test_bfs_lets_complete_paths_compete_with_unfinished_ones_of_their_level():
    value = Values(a=0.3, b=0.9, ba=0.2)
    finish = lambda problem, path: bool(path) and path[-1].text == "a"  # noqa: E731
    assert run(BFS(b=1, k=16), value, letters("ab"), finish=finish).answer == "ba"
    assert run(BFS(b=2, k=16), value, letters("ab"), finish=finish).answer == "a"


# -- DFS -------------------------------------------------------------------------------------------------------------------


def test_dfs_tries_the_most_promising_first_and_backtracks_from_dead_ends():
    value = Values(a=0.9, b=0.5, c=0.1, ba=0.7)
    events = []
    result = run(DFS(k=24, threshold=0.2), value, letters("abc"), on_event=events.append)
    assert result.answer == "ba"
    expanded = [event.node.parent for event in events if event.kind == "added" and event.node.parent]
    names = ["".join(t.text for t in result.tree.path(result.tree[id])) for id in dict.fromkeys(expanded)]
    assert names == ["a", "b"]
    pruned = {node.text for node in result.tree if node.depth == 1 and node.pruned}
    assert pruned == {"c"}
    assert all("not above 0.2" in node.pruned for node in result.tree if node.pruned)


def test_dfs_stops_at_the_first_solutions_it_was_asked_for():
    value = Values(a=0.9, b=0.5, aa=0.5, ab=0.6, ba=0.8, bb=0.7)
    assert run(DFS(k=16), value, letters("ab")).answer == "ab"
    assert run(DFS(k=16, max_solutions=9), value, letters("ab")).answer == "ba"


def test_dfs_prunes_a_state_whose_score_equals_the_threshold():
    result = run(DFS(k=16, threshold=0.5), Values(a=0.5, b=0.5), letters("ab"))
    assert result.answer is None
    assert [node.pruned for node in result.tree if node.depth] == ["value 0.5 is not above 0.5"] * 2


def test_dfs_goes_deep_without_recursion():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(320)  # a frame a thought would be more
    try:
        result = run(DFS(k=1, threshold=-1), Values(), lambda text, rng: "a\n", depth=300)
    finally:
        sys.setrecursionlimit(before)
    assert len(result.path) == 300


# -- beam ------------------------------------------------------------------------------------------------------------------


def test_beam_ranks_by_the_whole_path_where_bfs_looks_at_the_last_thought():
    value = Values(a=0.9, b=0.2, aa=0.45, ab=0.4, ba=0.6, bb=0.5)
    assert run(BFS(b=2, k=16), value, letters("ab")).answer == "ba"
    assert run(Beam(b=2, k=16), value, letters("ab")).answer == "aa"


def test_beam_sums_or_averages():
    value = Values(a=0.8, b=0.5, ba=0.5, bb=0.1)
    finish = lambda problem, path: path.text in ("a", "b\na", "b\nb")  # noqa: E731
    assert run(Beam(b=3, k=16), value, letters("ab"), finish=finish).answer == "a"
    assert run(Beam(b=3, k=16, reduce="sum"), value, letters("ab"), finish=finish).answer == "ba"


def test_beam_by_likelihood_asks_no_verifier():
    def writer(text, rng):
        letter = rng.choice("ab")
        worth = {"a": -0.1, "b": -1.0, "aa": -3.0, "ab": -3.0, "ba": -0.2, "bb": -2.0}
        return f"{letter}\n", worth[(text[3:] + letter).replace("\n", "")]

    result = run(Beam(b=2, k=24, by="likelihood"), Values(), writer)
    assert result.answer == "ba"
    assert result.ledger.verifier_calls == 0
    assert all(node.score is None for node in result.tree)


# -- chains ----------------------------------------------------------------------------------------------------------------


def test_a_chain_is_one_greedy_path():
    result = run(Chain(), Values(), letters("abcdef"), depth=4)
    assert result.ledger.nodes == 4
    assert run(Chain(), Values(), letters("abcdef"), depth=4, seed=1).answer == result.answer


async def test_no_chain_is_lost_to_equal_texts_or_states():
    task = function_task(
        prompt=lambda problem: "go\n",
        is_solution=lambda problem, path: len(path) == 3,
        state_key=lambda problem, path: tuple(sorted(thought.text for thought in path)),
        max_thoughts=3,
    )
    for writer in (letters("ab"), lambda text, rng: "a\n"):
        search = Search(task, "p", MockEngine(writer), Likelihood())
        ends = await generate_chains(search, 40)
        assert sum(node.count for node in ends) == 40
        for node in search.tree:
            if node.depth < 3:
                coming = 40 if node.parent is None else node.count
                assert sum(child.count for child in search.tree.children(node)) == coming


def test_self_consistency_votes_on_answers_not_on_paths():
    # 10 of 20 first letters or so are z, each chain with its own text; y has one text but fewer chains
    def writer(text, rng):
        return f"{'z' if rng.random() < 0.6 else 'y'}{rng.getrandbits(30) if rng.random() < 0.9 else 0}\n"

    task = function_task(
        prompt=lambda problem: "go\n",
        is_solution=lambda problem, path: len(path) == 1,
        answer=lambda problem, path: path.text[0],
    )
    result = solve(task, "p", engine=MockEngine(writer), strategy=SelfConsistency(n=60), verifier="random")
    votes = Counter()
    for node in result.tree:
        if node.finished:
            votes[node.text[0]] += node.count
    assert votes.total() == 60
    assert result.answer == votes.most_common(1)[0][0] == "z"
    assert result.ledger.verifier_calls == 0


@pytest.mark.parametrize(("options", "wins"), [({}, "42"), ({"normalise": str}, "17")])
def test_votes_count_answers_that_normalise_alike_together(options, wins):
    drawn = ["42", " 42", "42  ", "42\t", "42.", "17", "17", "17", "17"]
    task = function_task(prompt=lambda p: "go\n", is_solution=lambda p, path: len(path) == 1, **options)

    class Dealt(MockEngine):
        async def generate(self, requests, account):
            writers = iter(drawn)
            self._model._writer = lambda text, rng: next(writers) + "\n"
            return await super().generate(requests, account)

    result = solve(task, "p", engine=Dealt(letters("a")), strategy=SelfConsistency(n=9), verifier="random")
    assert result.answer.strip(". ") == wins


def test_self_consistency_breaks_ties_by_score_then_by_order():
    finish = lambda problem, path: len(path) == 1  # noqa: E731
    writer = lambda text, rng: f"{rng.getrandbits(60)}\n"  # noqa: E731
    first = run(SelfConsistency(n=4), Values(), writer, finish=finish)
    assert first.answer == first.tree[1].text
    assert first.ledger.verifier_calls == 4
    favourite = first.tree[3].text
    assert run(SelfConsistency(n=4), Values({favourite: 1.0}), writer, finish=finish).answer == favourite


def test_self_consistency_does_not_let_a_score_outweigh_a_vote():
    writer = lambda text, rng: f"{'a' if rng.random() < 0.7 else 'b'}\n"  # noqa: E731
    result = run(SelfConsistency(n=30), Values(b=9.0), writer, finish=lambda problem, path: len(path) == 1)
    assert result.answer == "a"


def test_self_consistency_votes_on_the_chains_within_the_budget():
    events = []
    result = run(SelfConsistency(n=9), Values(), letters("a"), depth=1, budget=Budget(tokens=5), on_event=events.append)
    assert (result.answer, "tokens" in result.stopped) == ("a", True)
    assert any(event.kind == "finished" for event in events)


def test_best_of_n_scores_complete_paths_only_and_takes_the_best():
    value = Values(a=9.0, b=0.0, aa=0.1, ab=0.2, ba=0.7, bb=0.3)
    result = run(BestOfN(n=40), value, letters("ab"))
    assert result.answer == "ba"
    assert {node.depth for node in result.tree if node.score is not None} == {2}


def test_best_of_n_ranks_the_chains_within_the_budget():
    result = run(BestOfN(n=20), Values(a=1.0, b=2.0), letters("ab"), depth=1, budget=Budget(tokens=39))
    assert (result.answer, "tokens" in result.stopped) == ("b", True)
    assert {node.score for node in result.tree if node.finished} == {1.0, 2.0}


@pytest.mark.parametrize("strategy", [SelfConsistency(n=8), BestOfN(n=8)])
def test_complete_chains_count_when_the_budget_ends_the_others(strategy):
    events = []
    finish = lambda problem, path: bool(path) and path[-1].text == "a"  # noqa: E731
    budget = Budget(tokens=16)  # eight chains, a letter and a line end each: none is left for a second thought
    result = run(strategy, Values(a=1.0), letters("ab"), finish=finish, budget=budget, on_event=events.append)
    assert (result.answer, "tokens" in result.stopped) == ("a", True)
    assert "finished" in [event.kind for event in events]
    assert result.tree[result.best].score == (1.0 if strategy.name == "best_of_n" else None)


# -- registry --------------------------------------------------------------------------------------------------------------


def test_an_unknown_strategy_is_refused_with_the_known_names():
    with pytest.raises(
        ConfigError, match=r"no strategy 'bsf' - did you mean 'bfs'\? there are .*bfs.*self_consistency"
    ):
        STRATEGIES.make("bsf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"b": 0}, "b: .*greater than or equal to 1, not 0"),
        ({"width": 3}, "there is no setting 'width' - its settings are b, k"),
        ({"k": "x"}, "k: .*'x'"),
    ],
)
def test_a_bad_option_names_field_and_value(options, message):
    with pytest.raises(ConfigError, match=rf"strategy 'bfs': {message}"):
        STRATEGIES.make("bfs", **options)
    with pytest.raises(ConfigError, match=rf"strategy 'bfs': {message}"):
        BFS(**options)


def test_strategies_are_stateless():
    with pytest.raises(ConfigError, match="is frozen, its"):
        BFS().b = 3
