"""The invariants of a search, on an engine whose every word is known."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.errors import ConfigError, ContextOverflow, TaskError, VerifierError
from rksc_tot.core.task import Reject, Thought, function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood, Verifier


def digits(text, rng):
    return f"{rng.randrange(10)}\n"


def wide(text, rng):
    return f"{rng.getrandbits(40)}\n"


def make_task(depth=3, **options):
    options = {"max_thoughts": depth, "is_solution": lambda problem, path: len(path) == depth} | options
    return function_task(**{"prompt": lambda problem: f"{problem}:\n"} | options)


def make_search(writer=wide, task=None, verifier=None, events=None, context=None, engine=None, **options):
    engine = engine or MockEngine(writer, context=context)
    on_event = None if events is None else events.append
    return Search(task or make_task(), "p", engine, verifier or Likelihood(), on_event=on_event, **options)


class Constant(Verifier):
    name: str = "constant"
    value: object = 1.0

    async def score(self, search, nodes):
        return [self.value for _ in nodes]


def texts(nodes):
    return [node.text for node in nodes]


# -- growing ---------------------------------------------------------------------------------------------------------------


async def test_all_nodes_are_expanded_in_one_engine_call():
    class Counting(MockEngine):
        calls = 0

        async def generate(self, requests, account):
            self.calls += 1
            return await super().generate(requests, account)

    engine = Counting(wide)
    search = make_search(engine=engine)
    level = await search.expand([search.root], 4)
    await search.expand(level, 3)
    assert engine.calls == 2


async def test_children_come_by_parent_then_by_branch():
    search = make_search()
    level = await search.expand([search.root], 3)
    assert [node.branch for node in level] == ["0", "1", "2"]
    children = await search.expand(level[::-1], 2)
    assert [node.branch for node in children] == ["2.0", "2.1", "1.0", "1.1", "0.0", "0.1"]


async def test_text_depends_on_seed_problem_and_branch_only():
    alone, crowd, other = make_search(), make_search(), make_search(seed=1)
    a = await alone.expand([alone.root], 2)
    b = await crowd.expand([crowd.root], 5)
    c = await other.expand([other.root], 2)
    assert texts(a) == texts(b)[:2]
    assert texts(a) != texts(c)
    assert len({node.text for node in await other.expand(c, 2)}) == 4
    assert texts(await alone.expand([a[1]], 2)) == texts(await crowd.expand(b[::-1], 3))[9:11]


async def test_expanding_a_node_again_repeats_it_and_another_round_does_not():
    search = make_search()
    first = await search.expand([search.root], 3)
    assert await search.expand([search.root], 3) == []
    assert [node.count for node in first] == [2, 2, 2]
    fresh = await search.expand([search.root], 3, round=1)
    assert len(fresh) == 3
    assert len({node.branch for node in [*first, *fresh]}) == 6


async def test_greedy_branches_are_one_node_that_carries_their_number():
    search = make_search()
    [node] = await search.expand([search.root], 4, temperature=0)
    assert node.count == 4
    assert search.ledger.merged == 3


async def test_each_node_may_have_its_own_k():
    search = make_search()
    level = await search.expand([search.root], 2)
    children = await search.expand(level, [1, 3])
    assert Counter(node.parent for node in children) == {level[0].id: 1, level[1].id: 3}


@pytest.mark.parametrize("k", [0, [1], [1, 0], "2"])
async def test_a_k_that_is_no_number_for_each_node_is_refused(k):
    search = make_search()
    level = await search.expand([search.root], 2)
    with pytest.raises(ConfigError, match="k of at least 1"):
        await search.expand(level, k)


async def test_finished_and_deepest_nodes_get_no_children_and_pruned_ones_are_refused():
    task = make_task(depth=1, max_thoughts=2)
    search = make_search(task=task)
    [node] = await search.expand([search.root], 1)
    assert node.finished
    assert await search.expand([node], 2) == []
    deep = make_search(task=make_task(is_solution=lambda problem, path: False, max_thoughts=1))
    [node] = await deep.expand([deep.root], 1)
    assert await deep.expand([node], 2) == []
    deep.prune(node, "no good")
    with pytest.raises(ConfigError, match=r"node 1 .*no good"):
        await deep.expand([node], 2)


# -- one bad reply never ends a run ----------------------------------------------------------------------------------------


def _raise(error):
    raise error


class Incomparable:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise ValueError("which?")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"parse": lambda problem, path, text: _raise(Reject("not nice"))}, "not nice"),
        ({"parse": lambda problem, path, text: _raise(KeyError("x"))}, "parse raised KeyError: 'x'"),
        ({"parse": lambda problem, path, text: text}, "not a Thought"),
        (
            {"is_solution": lambda problem, path: bool(path and _raise(ValueError("bad")))},
            "is_solution raised ValueError: bad",
        ),
        ({"state_key": lambda problem, path: [1] if path else None}, "state_key raised TypeError"),
        ({"state_key": lambda problem, path: _raise(OSError()) if path else None}, "state_key raised OSError"),
        ({"max_thought_tokens": 3}, "cut off before it ended"),
        ({"parse": lambda problem, path, text: _raise(SystemExit(0))}, "parse raised SystemExit: 0"),
        ({"parse": lambda problem, path, text: _raise(asyncio.CancelledError())}, "parse raised CancelledError"),
        ({"parse": lambda problem, path, text: Thought(None)}, "not a Thought with a text"),
        ({"parse": lambda problem, path, text: Thought("\ud800")}, "half a character"),
        ({"state_key": lambda problem, path: Incomparable()}, "comparing two state_keys raised ValueError"),
    ],
)
async def test_a_reply_the_task_cannot_use_is_rejected_with_the_reason(options, reason):
    events = []
    search = make_search(task=make_task(**options), events=events)
    assert await search.expand([search.root], 3) == []
    assert search.ledger.rejected == 3
    rejected = [event for event in events if event.kind == "rejected"]
    assert len(rejected) == 3
    assert all(reason in event.reason for event in rejected)
    assert search.engine.handles == 1


async def test_truncated_thoughts_become_nodes_only_where_the_task_accepts_them():
    search = make_search(task=make_task(max_thought_tokens=3, accept_truncated=True))
    assert [len(node.text) for node in await search.expand([search.root], 2)] == [3, 3]


@pytest.mark.parametrize("reply", ["", "\n", "   \n", "\x00\ufffd\n", "<b>**</b>[/INST]\n", "é" * 500])
async def test_odd_replies_are_taken_or_rejected(reply):
    search = make_search(writer=lambda text, rng: reply)
    children = await search.expand([search.root], 2)
    assert sum(node.count for node in children) + search.ledger.rejected == 2


async def test_a_path_that_outgrows_the_context_is_rejected_alone():
    writer = lambda text, rng: "x" * (30 if rng.random() < 0.5 else 1) + f"{rng.randrange(99)}\n"  # noqa: E731
    search = make_search(writer=writer, context=28, task=make_task(max_thought_tokens=25, accept_truncated=True))
    level = await search.expand([search.root], 6)
    assert {len(node.tokens) for node in level} > {25}
    children = await search.expand(level, 1)
    assert {search.tree[node.parent].id for node in children} == {node.id for node in level if len(node.tokens) < 20}


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ContextOverflow):
        make_search(context=2)


@pytest.mark.parametrize("method", ["prompt", "is_solution", "state_key"])
def test_a_task_that_fails_at_the_root_is_a_task_error_with_the_problem(method):
    task = make_task(**{method: lambda *args: _raise(ZeroDivisionError("oh"))})
    with pytest.raises(TaskError, match=rf"{method} raised ZeroDivisionError: oh .*'p'"):
        make_search(task=task)


SETTINGS = [
    ({"temperature": -1}, "temperature: "), ({"temperature": "hot"}, "temperature: "), ({"top_p": 2}, "top_p: "),
    ({"top_k": 0}, "top_k: "), ({"min_p": 5}, "min_p: "), ({"stop": None}, "stop is None"), ({"stop": "ab"}, "stop is 'ab'"),
    ({"stop": ("",)}, "stop .* empty string"), ({"propose_stop": "x"}, "propose_stop is"), ({"mode": "foo"}, "mode is 'foo'"),
    ({"max_thoughts": "3"}, "max_thoughts is '3'"), ({"max_thoughts": 0}, "max_thoughts is 0"),
    ({"max_thought_tokens": -5}, "max_thought_tokens is -5"), ({"keep_stop": "no"}, "keep_stop is 'no'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), SETTINGS)
def test_a_setting_no_search_could_use_is_refused_at_the_root_by_name(options, words):
    engine = MockEngine(wide)
    with pytest.raises(TaskError, match=f"^{words}") as caught:
        make_search(task=make_task(**options), engine=engine)
    assert "\n" not in str(caught.value)
    assert engine.handles == 0


@pytest.mark.parametrize(
    "prompt", [None, 5, b"x", [{"role": "user"}], "", "\udcff", [{"role": "user", "content": "\ud800"}]]
)
def test_what_is_no_prompt_is_refused_at_the_root(prompt):
    with pytest.raises(TaskError, match="the prompt for 'p' "):
        make_search(task=make_task(prompt=lambda problem: prompt))


class Anonymous:
    pass


class Unspeakable:
    def __str__(self):
        raise KeyError("no")


@pytest.mark.parametrize("problem", [Anonymous(), [Anonymous()], {"a": (Anonymous(),)}, Unspeakable(), "\udcff", wide])
def test_a_problem_whose_text_cannot_name_a_random_stream_is_refused(problem):
    task = make_task(prompt=lambda problem: "go\n")
    with pytest.raises(TaskError, match=r"the problem .* (address|has no text|half a character)"):
        Search(task, problem, MockEngine(wide), Likelihood())


@pytest.mark.parametrize("problem", [None, 7, (4, 5), {"a": [1.5]}, "<x object at 0x7f12>"])
def test_a_problem_with_a_text_of_its_own_is_taken(problem):
    task = make_task(prompt=lambda problem: "go\n")
    assert Search(task, problem, MockEngine(wide), Likelihood()).root.id == 0


async def test_why_thoughts_were_turned_away_is_counted():
    search = make_search(
        writer=digits, task=make_task(parse=lambda problem, path, text: _raise(Reject("a" if text < "5" else "b")))
    )
    await search.expand([search.root], 40)
    assert set(search.rejections) == {"a", "b"}
    assert search.rejections.total() == search.ledger.rejected == 40


# -- merging ---------------------------------------------------------------------------------------------------------------


def sorted_key(problem, path):
    return tuple(sorted(thought.text for thought in path))


async def test_equal_states_are_one_node_over_the_whole_tree():
    search = make_search(
        writer=lambda text, rng: rng.choice("ab") + "\n", task=make_task(depth=4, state_key=sorted_key)
    )
    frontier = [search.root]
    while frontier:
        frontier = await search.expand(frontier, 8)
    keys = [sorted_key("p", search.path(node)) for node in search.tree]
    assert len(keys) == len(set(keys)) == 1 + 2 + 3 + 4 + 5


async def test_a_thought_that_leads_back_to_the_root_is_merged_into_it():
    events = []
    search = make_search(task=make_task(state_key=lambda problem, path: 0), events=events)
    assert await search.expand([search.root], 2) == []
    assert search.root.count == 3
    assert [event.into for event in events if event.kind == "merged"] == [0, 0]


async def test_without_merging_only_repeated_siblings_share_a_node():
    search = make_search(writer=lambda text, rng: rng.choice("ab") + "\n", task=make_task(state_key=lambda *a: 0))
    level = await search.expand([search.root], 8, merge=False)
    assert sorted(texts(level)) == ["a", "b"]
    assert sum(node.count for node in level) == 8


async def test_texts_that_parse_to_the_same_thought_are_one():
    task = make_task(parse=lambda problem, path, text: Thought(text.strip().lower()))
    search = make_search(writer=lambda text, rng: rng.choice(["a", " A", "a "]) + "\n", task=task)
    [node] = await search.expand([search.root], 9)
    assert (node.text, node.count) == ("a", 9)


@given(
    letters=st.sampled_from(["a", "ab", "abcdef"]),
    k=st.integers(1, 6),
    depth=st.integers(1, 4),
    keyed=st.booleans(),
    nodes=st.none() | st.integers(1, 12),
    tokens=st.none() | st.integers(1, 60),
    b=st.integers(1, 3),
)
async def test_every_branch_is_a_node_or_merged_or_rejected_and_every_handle_is_given_back(
    letters, k, depth, keyed, nodes, tokens, b
):
    def parse(problem, path, text):
        return Thought(text) if text != "a" else _raise(Reject("a"))

    options = {"state_key": sorted_key} if keyed else {}
    events = []
    search = make_search(
        writer=lambda text, rng: rng.choice(letters) * rng.randint(1, 3) + "\n",
        task=make_task(depth=depth, parse=parse, max_thought_tokens=3, **options),
        events=events,
        budget=Budget(nodes=nodes, tokens=tokens),
    )
    frontier = [search.root]
    try:
        while frontier:
            children = await search.expand(frontier, k)
            await search.score(children)
            frontier = search.keep(children, b)
    except BudgetReached:
        assert search.limits.stopped
    ledger, kinds = search.ledger, Counter(event.kind for event in events)
    added = len(search.tree) - 1
    assert added == ledger.nodes == kinds["added"] - 1
    assert ledger.merged == kinds["merged"] == sum(node.count - 1 for node in search.tree)
    assert ledger.rejected == kinds["rejected"]
    assert ledger.nodes <= (nodes or added)
    assert ledger.tokens_sampled <= (tokens or ledger.tokens_sampled)
    assert ledger.prefill_tokens == ledger.distinct_tokens
    assert search.engine.handles == sum(node.pruned is None for node in search.tree)
    search.close()
    search.close()
    assert search.engine.handles == 0


async def test_handles_not_yet_settled_are_given_back_when_a_callback_raises():
    search = make_search()
    search.listen(
        lambda event: _raise(BudgetReached("enough")) if event.kind == "added" and event.node.id == 2 else None
    )
    with pytest.raises(BudgetReached):
        await search.expand([search.root], 5)
    search.close()
    assert search.engine.handles == 0


# -- proposing -------------------------------------------------------------------------------------------------------------


def proposing(**options):
    return make_task(mode="propose", **options)


@pytest.mark.parametrize(("keep_stop", "context"), [(True, "p:\none\n"), (False, "p:\none")])
async def test_proposed_thoughts_extend_their_parent(keep_stop, context):
    search = make_search(writer=lambda text, rng: "one\ntwo\nthree\nfour\n\nrest", task=proposing(keep_stop=keep_stop))
    children = await search.expand([search.root], 3)
    assert texts(children) == ["one", "two", "three"]
    assert children[0]._handle.text == context
    assert [node.branch for node in children] == ["0", "1", "2"]
    assert search.ledger.proposal_tokens > 0
    assert search.engine.handles == 4


async def test_the_last_piece_of_a_reply_that_was_cut_off_is_rejected():
    search = make_search(writer=lambda text, rng: "one\ntwo\nthree\n", task=proposing(max_thought_tokens=3))
    assert texts(await search.expand([search.root], 3)) == ["one", "two"]  # 9 of 14 tokens: the third is cut off
    assert search.ledger.rejected == 1


@pytest.mark.parametrize(
    ("writer", "options"),
    [
        (lambda text, rng: "", {}),
        (lambda text, rng: "a\nb\n\n", {"split": lambda problem, path, reply: _raise(IndexError("none"))}),
        (lambda text, rng: "a\nb\n\n", {"split": lambda problem, path, reply: reply}),
        (lambda text, rng: "a\nb\n\n", {"propose_prompt": lambda problem, path: _raise(IndexError("none"))}),
        (lambda text, rng: "a\nb\n\n", {"propose_prompt": lambda problem, path: None}),
    ],
)
async def test_a_reply_without_thoughts_is_rejected(writer, options):
    search = make_search(writer=writer, task=proposing(**options))
    assert await search.expand([search.root], 3) == []
    assert search.ledger.rejected == 1


async def test_proposals_too_long_for_the_context_are_rejected_alone():
    search = make_search(
        writer=lambda text, rng: "a\nb\n\n",
        task=proposing(propose_prompt=lambda problem, path: "?", split=lambda problem, path, reply: ["a", "b" * 99]),
        context=70,
    )
    [node] = await search.expand([search.root], 4)
    assert node.text == "a"
    assert search.ledger.rejected == 1


# -- scoring ---------------------------------------------------------------------------------------------------------------


async def test_each_node_is_scored_once():
    events = []
    search = make_search(verifier=Constant(), events=events)
    level = await search.expand([search.root], 3)
    await search.score(level[:2])
    await search.score([*level, *level])
    assert search.ledger.verifier_calls == 3
    assert [event.node for event in events if event.kind == "scored"] == [1, 2, 3]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "0.5", 1j, [1.0], 10**400])
async def test_a_score_that_is_no_finite_number_names_verifier_node_and_value(value):
    search = make_search(verifier=Constant(value=value))
    level = await search.expand([search.root], 1)
    with pytest.raises(VerifierError, match=r"'constant' gave .* for node 1 .* - return a finite number") as caught:
        await search.score(level)
    assert repr(value)[:70] in str(caught.value)


@pytest.mark.parametrize("value", [True, False])
async def test_pass_and_fail_are_the_scores_one_and_zero(value):
    search = make_search(verifier=Constant(value=value))
    [node] = await search.expand([search.root], 1)
    await search.score([node])
    assert (node.score, type(node.score)) == (float(value), float)


async def test_too_few_scores_are_refused():
    class Short(Verifier):
        async def score(self, search, nodes):
            return []

    search = make_search(verifier=Short())
    with pytest.raises(VerifierError, match="0 scores for 1 nodes"):
        await search.score(await search.expand([search.root], 1))


class Picky(Verifier):
    name: str = "picky"
    bad: tuple[int, ...] = ()

    async def score(self, search, nodes):
        return [VerifierError("cannot say") if node.id in self.bad else 1.0 for node in nodes]


async def test_a_node_the_verifier_fails_on_is_pruned_and_the_others_are_scored():
    search = make_search(verifier=Picky(bad=(1,)))
    level = await search.expand([search.root], 3)
    await search.score(level)
    assert [node.score for node in level] == [None, 1.0, 1.0]
    assert level[0].pruned == "cannot say"


async def test_a_verifier_that_fails_on_everything_ends_the_search_but_not_once_it_has_worked():
    broken = make_search(verifier=Picky(bad=(1, 2)))
    with pytest.raises(VerifierError, match="cannot say"):
        await broken.score(await broken.expand([broken.root], 2))
    worked = make_search(verifier=Picky(bad=(3,)))
    await worked.score(level := await worked.expand([worked.root], 2))
    await worked.score(await worked.expand(level[:1], 1))
    assert worked.tree[3].pruned == "cannot say"


async def test_free_verifiers_make_no_calls():
    search = make_search(budget=Budget(verifier_calls=1))
    level = await search.expand([search.root], 5)
    await search.score(level)
    assert search.ledger.verifier_calls == 0
    assert None not in [node.score for node in level]


# -- choosing --------------------------------------------------------------------------------------------------------------


async def test_rank_is_by_score_then_likelihood_then_age_and_deaf_to_noise():
    search = make_search()
    nodes = await search.expand([search.root], 5)
    for node, score, logprob in zip(
        nodes, [0.5, 0.50001, 0.9, None, 0.5], [-1.0, -1.00001, -9.0, -0.1, -0.5], strict=True
    ):
        node.score, node.logprobs = score, (logprob,)
    assert [node.id for node in search.rank(nodes[::-1])] == [3, 5, 1, 2, 4]


async def test_keep_prunes_the_rest_with_their_rank_and_gives_back_their_handles():
    events = []
    search = make_search(events=events)
    nodes = await search.expand([search.root], 4)
    await search.score(nodes)
    kept = search.keep(nodes, 1)
    assert kept == nodes[:1]
    assert [node.pruned for node in nodes[1:]] == [f"rank {i} of 4, kept 1" for i in (2, 3, 4)]
    assert search.engine.handles == 2
    search.prune(nodes[1], "again")
    assert nodes[1].pruned == "rank 2 of 4, kept 1"
    assert sum(event.kind == "pruned" for event in events) == 3


# -- answers ---------------------------------------------------------------------------------------------------------------


async def finished(search, n):
    nodes = await search.expand([search.root], n)
    assert all(node.finished for node in nodes)
    return nodes


async def test_the_best_is_the_best_candidate_handed_in_then_a_complete_path_then_the_deepest():
    search = make_search(task=make_task(depth=1, max_thoughts=3))
    assert search.best is search.root
    nodes = await finished(search, 3)
    nodes[2].score = 1.0
    assert search.best is nodes[2]
    search.prune(nodes[2], "no")
    assert search.best is nodes[0]
    search.finish(nodes[1])
    assert search.best is nodes[1]
    search.finish(nodes[0], value=5)
    assert search.best is nodes[0]


async def test_a_complete_path_is_better_than_a_deeper_one_that_is_not():
    short = lambda problem, path: len(path) == 1 and int(path[-1].text) % 2 == 0  # noqa: E731
    search = make_search(task=make_task(is_solution=short))
    level = await search.expand([search.root], 8)
    await search.expand([node for node in level if not node.finished], 1)
    assert max(node.depth for node in search.tree) == 2
    assert search.best.finished


async def test_an_unfinished_search_answers_with_its_deepest_living_path():
    search = make_search(task=make_task(depth=9))
    level = await search.expand([search.root], 2)
    level[1].score = 1.0
    assert search.best is level[1]
    [deep] = await search.expand(level[:1], 1)
    assert search.best is deep
    search.prune(deep, "no")
    assert search.best is level[1]


@pytest.mark.parametrize("answer", [lambda problem, path: None, lambda problem, path: path[7].text])
async def test_a_path_whose_answer_cannot_be_read_is_no_candidate(answer):
    search = make_search(task=make_task(depth=1, answer=answer))
    nodes = await finished(search, 2)
    search.finish(nodes[0])
    assert nodes[0].pruned.startswith("answer r")
    assert search.answer(search.best) is None


async def test_an_unfinished_path_cannot_be_handed_in():
    search = make_search()
    with pytest.raises(ConfigError, match="node 0"):
        search.finish(search.root)


# -- budgets ---------------------------------------------------------------------------------------------------------------


async def test_what_is_cut_short_is_kept_and_the_next_call_stops():
    events = []
    search = make_search(budget=Budget(nodes=3, verifier_calls=2), verifier=Constant(), events=events)
    level = await search.expand([search.root], 5)
    assert len(level) == 3
    assert search.ledger.tokens_sampled == sum(len(node.tokens) for node in level)  # nor was a fourth drawn
    await search.score(level)
    assert [node.score for node in level] == [1.0, 1.0, None]
    with pytest.raises(BudgetReached, match="3 nodes"):
        await search.expand(level, 1)
    with pytest.raises(BudgetReached, match="2 verifier calls"):
        await search.score(level)
    assert [event.reason for event in events if event.kind == "budget"] == ["the budget of 3 nodes is used up"]


async def test_what_could_be_scored_only_in_part_is_not_expanded():
    search = make_search(budget=Budget(verifier_calls=2), verifier=Constant())
    await search.score(await search.expand([search.root], 2))
    level = await search.expand([search.root], 3, round=1)  # all were scored until here
    with pytest.raises(BudgetReached, match="2 verifier calls"):
        await search.score(level)
    search = make_search(budget=Budget(verifier_calls=2), verifier=Constant())
    level = await search.expand([search.root], 3)
    await search.score(level)
    with pytest.raises(BudgetReached, match="2 verifier calls"):
        await search.expand(level, 1)


async def test_calls_side_by_side_do_not_exceed_a_budget_together():
    search = make_search(budget=Budget(nodes=3, verifier_calls=2), verifier=Constant())
    levels = await asyncio.gather(search.expand([search.root], 2), search.expand([search.root], 2, round=1))
    assert [len(level) for level in levels] == [2, 1]
    await asyncio.gather(*(search.score(level) for level in levels), return_exceptions=True)
    assert [node.score for level in levels for node in level] == [1.0, 1.0, None]


async def test_the_last_tokens_are_used_and_a_thought_they_do_not_finish_is_rejected():
    search = make_search(writer=lambda text, rng: "abc\n", budget=Budget(tokens=6))
    [node] = await search.expand([search.root], 2)
    assert (node.count, search.ledger.tokens_sampled, search.ledger.rejected) == (1, 6, 1)
    with pytest.raises(BudgetReached, match="6 tokens"):
        await search.expand([node], 1)


async def test_nothing_starts_after_the_time_is_up():
    search = make_search(budget=Budget(seconds=1e-9))
    with pytest.raises(BudgetReached, match="seconds"):
        await search.expand([search.root], 1)
    with pytest.raises(BudgetReached, match="seconds"):
        await search.score([search.root])
    assert search.ledger.tokens_sampled == 0


def test_random_streams_are_private():
    a, b = make_search(), make_search(seed=1)
    assert a.rng("x").random() == a.rng("x").random()
    assert len({s.rng(name).random() for s in (a, b) for name in "xy"}) == 4
    assert isinstance(a.rng(), random.Random)


def test_the_words_on_a_budget_are_exact():
    search = make_search(budget=Budget(tokens=12345678, nodes=1, seconds=2.0))
    reasons = [search.limits.reason(limit) for limit in ("tokens", "nodes", "seconds")]
    assert [reason.removeprefix("the budget of ").removesuffix(" is used up") for reason in reasons] == [
        "12345678 tokens",
        "1 node",
        "2 seconds",
    ]


@pytest.mark.parametrize("mode", ["sample", "propose"])
async def test_no_more_is_drawn_than_the_tokens_could_pay_for(mode):
    events = []
    search = make_search(task=make_task(mode=mode), events=events, budget=Budget(tokens=100))
    await search.expand([search.root], 10**9)
    assert "tokens" in search.limits.stopped
    assert sum(event.kind == "rejected" for event in events) <= 100
    assert search.engine.handles == len(search.tree)


async def test_what_the_deadline_kept_from_being_drawn_is_no_rejection():
    def slow(text, rng):
        search.account.deadline = 0.0
        return "x\n"

    events = []
    search = make_search(writer=slow, events=events, budget=Budget(seconds=60))
    await search.expand([search.root], 10_000)
    assert search.ledger.rejected <= 1
    assert "seconds" in search.limits.stopped
    assert search.engine.handles == len(search.tree)


async def test_after_a_callback_stopped_the_search_nothing_happens_any_more():
    events = []

    def stop(event):
        events.append(event)
        if len(events) == 3:
            raise BudgetReached("enough")

    search = make_search()
    search.listen(stop)
    with pytest.raises(BudgetReached):
        await search.expand([search.root], 5)
    for call in (search.expand([search.root], 1), search.score([search.tree[1]])):
        with pytest.raises(BudgetReached, match="enough"):
            await call
    assert (len(events), search.limits.stopped) == (3, "enough")


async def _scores(answer):
    return answer


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda self, search, nodes: _raise(KeyError("x")), "raised KeyError"),
        (lambda self, search, nodes: _raise(SystemExit(0)), "raised SystemExit"),
        (lambda self, search, nodes: _scores(None), "raised TypeError"),
        (lambda self, search, nodes: [1.0], "raised TypeError"),
    ],
)
async def test_a_verifier_class_that_breaks_is_a_verifier_error_with_its_name(score, words):
    broken = type("Broken", (Constant,), {"score": score})
    search = make_search(verifier=broken())
    with pytest.raises(VerifierError, match=f"verifier 'constant' {words}"):
        await search.score(await search.expand([search.root], 1))


async def test_a_temperature_that_is_none_is_refused_in_one_line():
    search = make_search()
    with pytest.raises(ConfigError, match=r"temperature: [^\n]*, not -1 - "):
        await search.expand([search.root], 1, temperature=-1)
