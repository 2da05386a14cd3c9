"""The contract of every registered strategy, third-party ones included."""

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.events import Finished
from rksc_tot.core.task import Reject, function_task
from rksc_tot.engine.base import Sampling
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import DFS, STRATEGIES
from rksc_tot.verifiers import verifier


@verifier(timeout=None)
def digit_sum(problem, path):
    return sum(int(thought.text) for thought in path if thought.text.isdigit())


def digits(text, rng):
    return f"{rng.randrange(10)}\n"


def reject(problem, path, text):
    raise Reject("no")


def run(strategy, writer=digits, budget=None, seed=0, on_event=None, depth=3, **options):
    settings = {
        "prompt": lambda problem: f"{problem}:\n",
        "is_solution": lambda problem, path: len(path) == depth,
        "max_thoughts": 4,
        "max_thought_tokens": 8,
    }
    engine = MockEngine(writer)
    task = function_task(**settings | options)
    chosen = {"verifier": digit_sum, "budget": budget, "seed": seed, "on_event": on_event}
    result = solve(task, "p", engine=engine, strategy=strategy, **chosen)
    assert engine.handles == 0
    assert result.ledger.nodes == len(result.tree) - 1
    return result


@pytest.fixture(params=STRATEGIES.names())
def strategy(request):
    return request.param


def test_a_strategy_has_a_summary(strategy):
    assert STRATEGIES.summary(strategy)
    assert STRATEGIES.make(strategy).name == strategy


@pytest.mark.parametrize("last", ["So: 7", ""])
def test_a_model_that_ends_its_text_completes_the_path(strategy, last):
    def writer(text, rng):
        return f"{rng.randrange(10)}\n" if text.count("\n") < 3 else last

    result = run(strategy, writer, is_solution=lambda problem, path: False)
    assert result.stopped == "finished"
    best = result.tree[result.best]
    assert (best.finished, best.finish, best.text) == (True, "eos", last)
    assert result.answer == (last or result.path[-1])
    assert len(result.path) == (3 if last else 2)


def test_a_strategy_hands_in_complete_paths(strategy):
    events = []
    result = run(strategy, on_event=events.append)
    assert result.stopped == "finished"
    assert len(result.path) == 3
    assert result.answer == result.path[-1]
    assert result.best in {event.node for event in events if isinstance(event, Finished)}


def test_the_same_seed_gives_the_same_search_and_another_one_another(strategy):
    trees = [run(strategy, seed=seed).tree.to_json() for seed in (0, 0, 1)]
    assert trees[0] == trees[1]
    assert trees[0] != trees[2] or strategy == "cot"


def test_a_strategy_returns_if_no_path_is_ever_complete(strategy):
    result = run(strategy, depth=99)
    assert result.answer is None
    assert len(result.path) == 4


@pytest.mark.parametrize("reply", ["", "\n", "x" * 50])
def test_a_strategy_returns_on_empty_and_on_endless_replies(strategy, reply):
    result = run(strategy, writer=lambda text, rng: reply)
    assert result.answer is None
    assert result.best == 0
    assert result.ledger.rejected > 0


def test_a_strategy_returns_if_every_thought_is_rejected(strategy):
    result = run(strategy, parse=reject)
    assert (result.best, result.answer, result.stopped) == (0, None, "finished")
    assert list(result.rejections) == ["no"]


def test_a_search_whose_paths_end_at_max_thoughts_says_so(strategy):
    result = run(strategy, is_solution=lambda problem, path: False, max_thoughts=2)
    reason = "no path was complete within max_thoughts 2 - raise it, or let is_solution accept shorter paths"
    assert (result.answer, result.stopped) == (None, reason)
    assert result.rejections[reason] > 0


def test_a_search_whose_answers_cannot_be_read_says_so(strategy):
    result = run(strategy, answer=lambda problem, path: None)
    assert result.answer is None
    assert result.rejections["answer returned None"] > 0


def test_a_search_whose_thoughts_are_all_truncated_says_so(strategy):
    result = run(strategy, writer=lambda text, rng: "x" * 50)
    assert list(result.rejections) == ["cut off at max_thought_tokens 8 - raise it, or correct stop"]


def test_answers_that_differ_in_white_space_or_a_full_stop_are_one_answer(strategy):
    def writer(text, rng):
        return rng.choice(["42", " 42", "42 ", "42\t", "42."]) + "\n"

    result = run(strategy, writer, depth=1)
    assert result.answer in ("42", "42.")


def test_a_strategy_returns_if_all_thoughts_lead_to_one_state(strategy):
    result = run(strategy, state_key=lambda problem, path: "here")
    assert result.stopped == "finished"


def test_a_strategy_works_with_single_children(strategy):
    result = run(strategy, writer=lambda text, rng: "7\n")
    assert result.path == ["7", "7", "7"]


def test_a_root_that_is_a_solution_is_a_task_error(strategy):
    with pytest.raises(TaskError, match="is_solution is True for the empty path of 'p'"):
        run(strategy, depth=0)


def test_a_strategy_works_on_proposed_thoughts(strategy):
    result = run(
        strategy, writer=lambda text, rng: "".join(f"{rng.randrange(10)}\n" for _ in range(9)) + "\n", mode="propose"
    )
    assert len(result.path) == 3


@pytest.mark.parametrize("amount", [1, 2, 5, 11])
@pytest.mark.parametrize(
    ("limit", "counter"), [("nodes", "nodes"), ("tokens", "tokens_sampled"), ("verifier_calls",) * 2]
)
def test_a_budget_is_never_exceeded_by_one(strategy, limit, counter, amount):
    free = getattr(run(strategy).ledger, counter)
    result = run(strategy, budget=Budget(**{limit: amount}))
    used = getattr(result.ledger, counter)
    assert used <= amount
    if free > amount:
        assert limit.replace("_", " ").removesuffix("s") in result.stopped
    else:
        assert used == free


def test_a_sufficient_budget_does_not_change_results(strategy):
    free = run(strategy)
    ledger = free.ledger
    limits = {"nodes": ledger.nodes, "tokens": ledger.tokens_sampled, "verifier_calls": max(1, ledger.verifier_calls)}
    limited = run(strategy, budget=Budget(**{name: amount + 100 for name, amount in limits.items()}))
    assert limited.tree.to_json() == free.tree.to_json()
    assert limited.stopped == "finished"


def test_without_time_only_the_root_is_left(strategy):
    result = run(strategy, budget=Budget(seconds=1e-9))
    assert (result.best, result.ledger.tokens_sampled) == (0, 0)
    assert "seconds" in result.stopped


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_settings_that_are_not_finite_are_refused(value):
    with pytest.raises(ConfigError, match="temperature"):
        Sampling(temperature=value)


def test_a_threshold_may_be_infinite_and_is_a_number():
    assert DFS(threshold=float("-inf")).threshold < 0
    with pytest.raises(ConfigError, match="threshold is NaN"):
        DFS(threshold=float("nan"))
