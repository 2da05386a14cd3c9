"""A path that ends without an answer is asked for it (``Task.closing``)."""

import asyncio
import math

import pytest

from rksc_tot.api.solve import asolve, solve
from rksc_tot.api.solve_many import solve_many
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import TaskError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import STRATEGIES
from tests.search.mock_search import make_search, make_task, texts

ASK = "\nThe answer is"


def asked(text, rng):
    """Digits, and 42 after the closing."""
    return " 42\nmore" if text.endswith(ASK) else f"{rng.randrange(10)}\n"


def closing_task(**options):
    never = {"is_solution": lambda problem, path: False, "closing": ASK, "closing_tokens": 4, "max_thought_tokens": 8}
    return make_task(**never | options)


def run(strategy, writer=asked, budget=None, **options):
    engine = MockEngine(writer)
    result = solve(closing_task(**options), "p", engine=engine, strategy=strategy, budget=budget)
    assert engine.handles == 0
    assert result.ledger.nodes == len(result.tree) - 1
    assert result.ledger.closings >= sum(node.closing is not None for node in result.tree)
    return result


def run_all(writer=asked, budget=None, **options):
    """The results of all strategies, third-party ones included."""
    return [run(strategy, writer, budget, **options) for strategy in STRATEGIES.names()]


def test_a_path_at_max_thoughts_ends_with_its_closing():
    for result in run_all():
        best = result.tree[result.best]
        assert (result.answer, result.stopped, result.rejections) == ("42", "finished", {})
        assert (best.text, best.closing, best.finished, best.finish) == (" 42", ASK, True, "stop")
        assert (best.depth, len(result.path)) == (4, 4)
        assert result.ledger.closings > 0


def test_a_path_that_ends_its_text_without_an_answer_is_closed():
    def writer(text, rng):
        return asked(text, rng) if text.endswith(ASK) else "I see"

    for result in run_all(writer, answer=lambda problem, path: path[-1].text if path[-1].closing else None):
        assert (result.answer, result.path) == (" 42", ["I see", " 42"])
        assert result.tree[result.best].parent == 1
        assert not result.tree[1].finished


def test_a_path_whose_end_has_an_answer_is_not_closed():
    for result in run_all(lambda text, rng: "so 7"):
        assert (result.answer, result.ledger.closings) == ("so 7", 0)


def test_a_truncated_thought_is_closed_instead_of_rejected():
    def writer(text, rng):
        return asked(text, rng) if text.endswith(ASK) else "x" * 50

    for result in run_all(writer):
        assert (result.answer, result.path, result.rejections) == ("42", ["x" * 8, " 42"], {})


def test_chains_that_share_a_node_share_its_closing_and_keep_their_votes():
    result = run("self_consistency", lambda text, rng: asked(text, rng) if text.endswith(ASK) else "7\n")
    assert result.ledger.closings == 1
    assert result.tree[result.best].count == 10


async def test_a_closed_node_is_closed_once_and_gets_no_thoughts():
    search = make_search(asked, closing_task(depth=1))
    level = await search.expand([search.root], 3)
    closings = await search.expand(level, 5)
    assert texts(closings) == [" 42"] * len(level)
    assert [child.parent for child in closings] == [node.id for node in level]
    assert [search.path(child)[-1].closing for child in closings] == [ASK] * len(level)
    assert await search.expand([*level, *closings], 5) == []
    assert search.ledger.merged == 3 - len(level)


async def test_closings_and_thoughts_of_one_expansion_come_in_the_order_of_the_nodes():
    def writer(text, rng):
        return asked(text, rng) if text.endswith(ASK) else rng.choice(["1\n", "2"])

    search = make_search(writer, closing_task(answer=lambda problem, path: "42" if path[-1].closing else None))
    level = await search.expand([search.root], 9)
    assert {node.finish for node in level} == {"stop", "eos"}
    children = await search.expand(level, 1)
    assert [child.parent for child in children] == [node.id for node in level]
    assert [child.closing is not None for child in children] == [node.finish == "eos" for node in level]


def test_a_token_budget_is_never_exceeded_and_leaves_room_for_one_closing():
    def writer(text, rng):
        return "42" if text.endswith(ASK) else f"{rng.randrange(10)}\n"

    for tokens in range(1, 41):
        for result in run_all(writer, Budget(tokens=tokens)):
            assert result.ledger.tokens_sampled <= tokens
            assert result.answer == ("4" if tokens == 1 else "42")


def test_a_node_budget_is_never_exceeded_and_leaves_room_for_one_closing():
    for nodes in range(1, 20):
        for result in run_all(budget=Budget(nodes=nodes)):
            assert (result.ledger.nodes <= nodes, result.answer) == (True, "42")


def test_a_search_that_runs_out_of_kv_still_has_room_for_one_closing():
    for size in (30, 40, 60):
        for result in run_all(budget=Budget(kv_bytes=size)):
            assert (result.ledger.peak_kv_bytes <= size, result.answer) == (True, "42")


def test_searches_that_share_a_budget_share_it_to_the_last_token():
    for strategy in STRATEGIES.names():
        for tokens in (1, 7, 40, 90, 250):
            engine, options = MockEngine(asked), {"concurrency": 4, "run_budget": Budget(tokens=tokens)}
            many = solve_many(closing_task(), range(6), engine=engine, strategy=strategy, **options)
            answers = [outcome.result.answer for outcome in many]
            assert many.tally.spent.tokens_sampled <= tokens
            assert set(answers[:1]) <= ({None} if tokens == 1 else {"42"})
            assert engine.handles == 0


def test_without_time_nothing_is_closed():
    for result in run_all(budget=Budget(seconds=1e-9)):
        assert (result.answer, result.ledger.closings) == (None, 0)


async def test_a_live_thought_is_not_merged_into_one_that_ended():
    def writer(text, rng):
        return asked(text, rng) if text.endswith(ASK) else rng.choice(["same\n", "same"])

    unread = {"answer": lambda problem, path: "42" if path[-1].closing else None}
    for key in (None, "here"):
        search = make_search(
            writer, closing_task(**unread, state_key=lambda problem, path, key=key: key if path else None)
        )
        level = await search.expand([search.root], 9)
        assert sorted(node.finish for node in level) == ["eos", "stop"]
        assert sum(node.count for node in level) == 9


def test_a_path_does_not_rank_higher_because_it_was_asked():
    def writer(text, rng):
        return (" 42\n", -0.01) if text.endswith(ASK) else ("so\n", -1.0)

    result = run("bfs", writer, max_thoughts=1)
    thought, closing = result.tree[1], result.tree[2]
    tokens = len(thought.logprobs) + len(closing.logprobs)
    assert closing.score == pytest.approx(math.exp(sum([*thought.logprobs, *closing.logprobs]) / tokens))
    assert thought.score < closing.score < math.exp(-0.01)


def test_a_budget_that_holds_all_work_and_the_reserve_changes_nothing():
    for strategy in STRATEGIES.names():
        free = run(strategy)
        limited = run(strategy, budget=Budget(tokens=free.ledger.tokens_sampled + 4, nodes=free.ledger.nodes + 1))
        assert limited.tree.to_json() == free.tree.to_json()
        assert limited.stopped == "finished"


def test_a_search_whose_thoughts_are_all_rejected_is_closed_at_the_root():
    for result in run_all(lambda text, rng: " 42\n" if text.endswith(ASK) else "\n"):
        assert (result.answer, result.path) == ("42", [" 42"])


def test_an_empty_reply_is_a_recorded_rejection():
    for result in run_all(lambda text, rng: "" if text.endswith(ASK) else "7\n"):
        assert result.answer is None
        assert result.rejections["the model wrote no answer after Task.closing"] > 0


def a_number_after_lines(text, rng):
    """Digits; after the closing a line without a number, a blank one, and then the answer."""
    _, closing, written = text.rpartition(ASK)
    return ":\n\nso it is\n 42\nmore".removeprefix(written) if closing else f"{rng.randrange(10)}\n"


def number_in(problem, path):
    return next((word for word in path[-1].text.split() if word.isdigit()), None)


def test_a_reply_goes_on_over_lines_without_an_answer():
    options = {"closing_tokens": 40, "answer": number_in}
    for keep_stop in (True, False):
        for result in run_all(a_number_after_lines, keep_stop=keep_stop, **options):
            best = result.tree[result.best]
            assert (result.answer, best.text, best.finish) == ("42", ":\n\nso it is\n 42", "stop")
            assert len(best.tokens) == len(best.logprobs)
            written = "".join(map(chr, best.tokens))
            assert written == ":\n\nso it is\n 42\n"[: None if keep_stop else -1]
            assert written == best.around.lead + best.text + best.around.ending


def test_a_reply_goes_on_up_to_closing_tokens_or_the_end_of_the_text():
    for result in run_all(a_number_after_lines, closing_tokens=9, answer=number_in):
        assert (result.answer, {*result.rejections}) == (None, {"answer returned None"})
        assert {len(node.tokens) for node in result.tree if node.closing} == {9}

    def unable(text, rng):
        _, closing, written = text.rpartition(ASK)
        return "I\ndo not".removeprefix(written) if closing else "x\n"

    for result in run_all(unable, closing_tokens=99, answer=number_in):
        assert {(node.text, node.finish) for node in result.tree if node.closing} == {("I\ndo not", "eos")}


def silent_until(attempt):
    """Thoughts of one digit; only the closing with that number, from 1 on, is answered."""
    closings = []

    def writer(text, rng):
        if not text.endswith(ASK):
            return f"{rng.randrange(10)}\n"
        closings.append(text)
        return " 42\n" if len(closings) == attempt else " no\n"

    return writer


@pytest.mark.parametrize(("attempt", "answer"), [(1, "42"), (2, "42"), (3, "42"), (4, None)])
async def test_at_the_end_three_paths_are_closed_until_one_has_an_answer(attempt, answer):
    search = make_search(silent_until(attempt), closing_task(answer=number_in))
    level = await search.expand([search.root], 20)
    assert len(level) > 3
    await search.ask_for_answer()
    assert search.ledger.closings == min(attempt, 3)
    assert [node.parent for node in search.tree if node.closing] == [
        node.id for node in search.rank(level)[: min(attempt, 3)]
    ]
    assert (search.answer(search.best) if search.best.finished else None) == answer
    await search.ask_for_answer()
    search.close()
    assert search.engine.handles == 0


def test_three_closings_at_the_end_exceed_no_budget():
    def budgets():
        yield from (Budget(tokens=tokens) for tokens in range(1, 30))
        yield from (Budget(nodes=nodes) for nodes in range(1, 12))
        yield from (Budget(kv_bytes=size) for size in (30, 40, 60))

    for strategy in STRATEGIES.names():
        for budget in budgets():
            result = run(strategy, silent_until(99), budget, answer=number_in)
            spent = result.ledger
            assert spent.tokens_sampled <= (budget.tokens or 10**9)
            assert spent.nodes <= (budget.nodes or 10**9)
            assert spent.peak_kv_bytes <= (budget.kv_bytes or 10**9)


def test_three_closings_at_the_end_exceed_no_budget_of_a_run():
    for tokens, nodes in ((40, None), (90, None), (None, 12), (60, 20)):
        engine = MockEngine(silent_until(99))
        options = {"concurrency": 4, "run_budget": Budget(tokens=tokens, nodes=nodes)}
        many = solve_many(closing_task(answer=number_in), range(6), engine=engine, strategy="beam", **options)
        assert len(list(many)) <= 6
        spent = many.tally.spent
        assert spent.tokens_sampled <= (tokens or 10**9)
        assert spent.nodes <= (nodes or 10**9)
        assert engine.handles == 0


def test_a_reply_that_goes_on_exceeds_no_budget():
    for tokens in range(1, 40, 3):
        budget = Budget(tokens=tokens)
        for result in run_all(a_number_after_lines, budget, closing_tokens=16, answer=number_in):
            assert result.ledger.tokens_sampled <= tokens


def test_a_reply_does_not_go_on_if_answer_raises():
    seen = set()

    def answer(problem, path):
        seen.add(path[-1].text)
        raise ValueError("none")

    for strategy in STRATEGIES.names():
        with pytest.raises(TaskError, match="answer raised ValueError"):
            run(strategy, a_number_after_lines, closing_tokens=40, answer=answer)
    assert seen == {":"}


async def test_a_reply_that_goes_on_releases_every_handle_if_its_search_is_cancelled():
    calls = 0

    class Cancelled(MockEngine):
        async def generate(self, requests, account):
            nonlocal calls
            calls += 1
            if calls == 3:
                raise asyncio.CancelledError
            return await super().generate(requests, account)

    engine = Cancelled(a_number_after_lines)
    task = closing_task(max_thoughts=1, closing_tokens=40, answer=number_in)
    with pytest.raises(asyncio.CancelledError):
        await asolve(task, "p", engine=engine, strategy="bfs")
    assert (calls, engine.handles) == (3, 0)


def test_a_closing_of_messages_needs_a_prompt_of_messages():
    turns = [{"role": "user", "content": "And the answer?"}]
    with pytest.raises(TaskError, match="make closing a string"):
        make_search(asked, closing_task(closing=turns))
    prompt = [{"role": "user", "content": "How many?"}]
    result = run("cot", lambda text, rng: "42" if "answer?" in text else "7\n", closing=turns, prompt=lambda p: prompt)
    assert (result.answer, result.tree[result.best].closing) == ("42", "And the answer?\n")
