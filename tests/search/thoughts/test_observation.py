"""What a tool or an environment says after a thought goes on the path (``Task.observe``)."""

import asyncio
import threading

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Reject, Thought
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import verifier
from tests.patience import PATIENCE
from tests.search.mock_search import digits, fail, make_search, make_task, texts


def doubled(problem, path):
    return f"twice that is {2 * int(path[-1].text)}"


async def doubled_async(problem, path):
    await asyncio.sleep(0)
    return doubled(problem, path)


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize(
    "observe", [doubled, doubled_async, lambda problem, path: asyncio.sleep(0, doubled(problem, path))]
)
async def test_an_observation_stands_on_the_path_after_its_thought(observe, timeout):
    seen = []

    def writer(text, rng):
        seen.append(text)
        return digits(text, rng)

    search = make_search(writer, make_task(observe=observe, observe_timeout=timeout))
    level = await search.expand([search.root], 4)
    await search.expand(level, 1)
    for node in level:
        assert node.observation == search.path(node)[-1].observation == doubled("p", search.path(node))
        assert f"p:\n{node.text}\n{node.observation}\n" in seen
        assert search.path(node).text == f"{node.text}\n{node.observation}"
        assert (node.tokens, len(node.logprobs)) == (tuple(map(ord, f"{node.text}\n")), 2)
    assert search.ledger.observations == len(search.tree) - 1
    assert search.ledger.prefill_tokens == search.ledger.distinct_tokens


@pytest.mark.parametrize("nothing", [None, ""])
async def test_nothing_observed_changes_nothing(nothing):
    seen, plain = make_search(task=make_task(observe=lambda problem, path: nothing)), make_search()
    for search in (seen, plain):
        await search.expand(await search.expand([search.root], 3), 3)
    assert seen.tree.to_records() == plain.tree.to_records()
    assert seen.ledger.model_dump(exclude={"seconds"}) == plain.ledger.model_dump(exclude={"seconds"})


async def test_the_task_judges_a_path_with_its_observation():
    asked = []

    def look(problem, path):
        asked.append(path[-1].observation if path else None)
        return asked[-1]

    task = make_task(observe=doubled, is_solution=look, state_key=look, answer=look)
    search = make_search(digits, task)
    level = await search.expand([search.root], 3)
    assert set(asked) == {None, *(node.observation for node in level)}
    assert all(node.finished and search.answer(node) == node.observation for node in level)


async def test_siblings_are_observed_at_the_same_time_and_equal_ones_once():
    meeting, calls = threading.Barrier(3), []

    def observe(problem, path):
        calls.append(path[-1].text)
        meeting.wait(PATIENCE)
        return "met"

    search = make_search(lambda text, rng: rng.choice("123") + "\n", make_task(observe=observe))
    level = await search.expand([search.root], 20)
    assert sorted(calls) == sorted(texts(level)) == ["1", "2", "3"]
    assert await search.expand([search.root], 20) == []
    assert len(calls) == 3


class Counter:
    """A state that is changed in place."""

    def __init__(self):
        self.steps = []

    def step(self, text):
        self.steps.append(text)
        return self.steps


async def test_branches_cannot_disturb_each_other_through_their_states():
    def parse(problem, path, text):
        counter = path.state or Counter()
        counter.step(text)
        return Thought(text, counter)

    def observe(problem, path):
        for thought in path[:-1]:
            thought.state.steps.clear()  # of no effect
        return ",".join(path.state.step("seen"))

    search = make_search(task=make_task(parse=parse, observe=observe))
    level = await search.expand([search.root], 3)
    children = await search.expand(level, 3)
    for node in level:
        assert search.path(node).state.steps == [node.text, "seen"]
    for child in children:
        above = search.tree[child.parent].text
        assert search.path(child).state.steps == [above, "seen", child.text, "seen"]
        assert child.observation == f"{above},seen,{child.text},seen"


async def test_each_attempt_gets_the_state_from_before():
    tries = []

    def observe(problem, path):
        tries.append(list(path.state))
        path.state.append("tried")
        return "there" if len(tries) == 2 else fail(OSError("away"))

    task = make_task(parse=lambda problem, path, text: Thought(text, []), observe=observe, observe_attempts=2)
    search = make_search(task=task)
    [node] = await search.expand([search.root], 1)
    assert (tries, node.observation, search.path(node).state) == ([[], []], "there", ["tried"])


class Uncopied:
    def __deepcopy__(self, memo):
        raise TypeError("a socket")


def hang(problem, path):
    threading.Event().wait(PATIENCE)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"observe": lambda problem, path: fail(OSError("away"))}, "observe raised OSError: away"),
        ({"observe": lambda problem, path: fail(SystemExit(0))}, "observe raised SystemExit: 0"),
        ({"observe": lambda problem, path: 5}, "observe returned 5, not a text or None"),
        ({"observe": lambda problem, path: b"x"}, "observe returned b'x', not a text or None"),
        ({"observe": lambda problem, path: "\ud800"}, "the observation holds half a character (a lone surrogate)"),
        (
            {"observe": lambda problem, path: "x" * 11, "observe_chars": 10},
            "the observation has 11 characters, observe_chars is 10 - shorten it, or raise that",
        ),
        ({"observe": hang, "observe_timeout": 0.01}, "no observation within 0.01 s - raise observe_timeout"),
        (
            {"observe": doubled, "parse": lambda problem, path, text: Thought(text, Uncopied())},
            "copying a state raised TypeError: a socket",
        ),
    ],
)
async def test_a_thought_without_its_observation_is_rejected_and_the_search_goes_on(options, reason):
    options = dict(options)
    events, kept = [], options.pop("observe")

    def observe(problem, path):
        return kept(problem, path) if problem == "p" and path[-1].text in doomed else None

    some = not {"parse", "observe_timeout"} & options.keys()
    doomed = {"1", "2"} if some else set(map(str, range(10)))
    search = make_search(digits, make_task(observe=observe, **options), events=events)
    level = await search.expand([search.root], 60)
    assert sorted(texts(level)) == sorted(set(map(str, range(10))) - doomed)
    assert {event.reason for event in events if event.kind == "rejected"} == {reason}
    assert {event.text for event in events if event.kind == "rejected"} == doomed
    assert search.engine.handles == 1 + len(level)


def test_a_task_whose_observe_always_fails_is_a_task_error():
    with pytest.raises(TaskError, match="observe raised KeyError"):
        solve(make_task(observe=lambda problem, path: {}["x"]), "p", engine=MockEngine(digits))


def test_a_hanging_tool_ends_with_the_time_of_the_search():
    task = make_task(observe=hang, observe_timeout=None)
    result = solve(task, "p", engine=MockEngine(digits), budget=Budget(seconds=0.2))
    assert result.stopped == "the budget of 0.2 seconds is used up"
    assert len(result.tree) == 1


async def test_a_cancelled_search_keeps_no_handle_and_waits_for_no_tool():
    begun = asyncio.Event()

    async def observe(problem, path):
        begun.set()
        await asyncio.sleep(PATIENCE)

    search = make_search(task=make_task(observe=observe))
    expanding = asyncio.ensure_future(search.expand([search.root], 3))
    await begun.wait()
    expanding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await expanding
    assert search.engine.handles == 1


async def test_rejected_thoughts_and_ends_of_text_are_not_observed():
    calls = []

    def parse(problem, path, text):
        return Thought(text) if text != "1" else fail(Reject("no"))

    task = make_task(parse=parse, observe=lambda problem, path: calls.append(path[-1].text))
    search = make_search(lambda text, rng: rng.choice(["1\n", "2\n", "x" * 200]) if text.count("\n") < 2 else "", task)
    level = await search.expand([search.root], 20)
    assert texts(level) == calls == ["2"]
    await search.expand(level, 1)
    assert calls == ["2"]


async def test_proposed_and_changed_thoughts_are_observed():
    task = make_task(
        mode="propose",
        observe=doubled,
        parse=lambda problem, path, text: Thought(f"{int(text) + 1}"),
    )
    search = make_search(lambda text, rng: "1\n2\n\n", task)
    level = await search.expand([search.root], 2)
    assert [(node.text, node.observation) for node in level] == [("2", "twice that is 4"), ("3", "twice that is 6")]


async def test_an_observation_without_room_in_the_context_is_a_rejection():
    search = make_search(digits, make_task(observe=lambda problem, path: "x" * 100), context=50)
    assert await search.expand([search.root], 3) == []
    assert "leave no room in a context of 50" in next(iter(search.rejections))
    assert search.engine.handles == 1


def test_searches_with_observations_repeat():
    trees = [
        solve(make_task(observe=doubled), "p", engine=MockEngine(digits), strategy=BFS(b=3, k=3)).tree.to_json()
        for _ in range(2)
    ]
    assert trees[0] == trees[1]


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(PATIENCE)


def cancels():
    asyncio.current_task().cancel()
    raise asyncio.CancelledError


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("method", ["observe", "observe async", "parse", "is_solution", "answer", "check", "verifier"])
def test_user_code_cannot_end_a_search_by_a_cancellation(method, timeout):
    def even(path):
        return bool(path) and path[-1].text in "02468"

    def unless_even(value):
        return lambda problem, path: cancels() if even(path) else value(path)

    async def observe_async(problem, path):
        return await cancels_itself() if even(path) else "odd"

    options = {
        "observe": {"observe": unless_even(lambda path: "odd")},
        "observe async": {"observe": observe_async},
        "parse": {"parse": lambda problem, path, text: cancels() if text in "02468" else Thought(text)},
        "is_solution": {"is_solution": unless_even(lambda path: len(path) == 3)},
        "answer": {"answer": unless_even(lambda path: "odd")},
        "check": {"check": lambda problem, answer: cancels()},
        "verifier": {},
    }[method]
    scored = verifier(timeout=timeout)(unless_even(len)) if method == "verifier" else None
    engine = MockEngine(digits)
    task = make_task(observe_timeout=timeout, **options)
    result = solve(task, "p", engine=engine, strategy=BFS(k=6, b=3), verifier=scored)
    assert (result.stopped, result.correct) == ("finished", None)
    assert result.answer is not None
    assert engine.handles == 0


class Hostile(str):
    """A text whose methods lie or raise."""

    __slots__ = ()

    def __len__(self):
        return 0

    def __str__(self):
        raise SystemExit

    __iter__ = __getitem__ = strip = encode = replace = split = rpartition = __add__ = __str__


@pytest.mark.parametrize("mode", ["sample", "propose"])
def test_texts_of_user_code_have_none_of_the_methods_of_their_class(mode):
    def run(text):
        task = make_task(
            mode=mode,
            prompt=lambda problem: text("p:\n"),
            parse=lambda problem, path, written: Thought(text(written)),
            observe=lambda problem, path: text("seen"),
            answer=lambda problem, path: text(path[-1].text) if path[-1].closing else None,
            propose_prompt=lambda problem, path: text("next:\n"),
            split=lambda problem, path, reply: [text(line) for line in reply.split("\n") if line],
            closing=text("answer: "),
        )
        return solve(task, "p", engine=MockEngine(digits), strategy=BFS(k=3, b=2), verifier="random")

    plain, hostile = run(str), run(Hostile)
    assert plain.answer is not None
    assert hostile.tree.to_records() == plain.tree.to_records()
