"""check_task reports missing and wrong parts of a task, and never raises for an error of the task."""

import math

import pytest

from rksc_tot.api.check.check_task import Finding, check_task
from rksc_tot.api.solve import solve
from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Question, Reject, Task, Thought
from rksc_tot.engine.mock.engine import MockEngine
from tests.game24_player import player
from tests.unchecked_task import unchecked_task


def good(**options):
    options = {
        "prompt": lambda problem: f"Count to {problem}:\n",
        "is_solution": lambda problem, path: len(path) == 3,
        "parse": lambda problem, path, text: _fail(Reject("empty")) if not text.strip() else Thought(text),
        "question": lambda problem, path: Question("?", {"yes": 1.0, "no": 0.0}),
        "check": lambda problem, answer: True,
    } | options
    return unchecked_task(**options)


def _fail(error):
    raise error


def complaints(task, problem=3, engine=None):
    return [finding for finding in check_task(task, problem, engine) if finding.level != "ok"]


def test_a_complete_task_has_no_error():
    assert complaints(good(), engine=MockEngine(lambda text, rng: "1\n")) == []
    assert complaints(good(mode="propose")) == []


def test_the_built_in_task_passes():
    from rksc_tot.tasks import load_task

    findings = check_task(load_task("game24"), "4 5 6 10", player())
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert [finding.what for finding in findings].count("sample") == 1


def test_an_empty_task_gets_the_missing_methods_named():
    found = {(finding.level, finding.what) for finding in complaints(Task())}
    assert {("missing", "prompt"), ("missing", "is_solution"), ("missing", "question"), ("missing", "check")} <= found


def test_a_refused_problem_ends_the_check():
    task = good(validate=lambda problem: _fail(TaskError("'x' is no number", hint="write 3")))
    found = complaints(task, "x")
    assert found[0] == Finding("error", "validate", "'x' is no number - write 3")
    assert [finding.what for finding in found[1:]] == ["methods"]


CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("options", "what", "words"),
    [
        ({"prompt": lambda problem: ""}, "prompt", "is empty"),
        ({"prompt": lambda problem: 7}, "prompt", "neither a string nor a list of chat messages"),
        ({"prompt": lambda problem: []}, "prompt", "holds no message"),
        ({"prompt": lambda problem: ["hi"]}, "prompt", "not a message with role and content"),
        ({"prompt": lambda problem: [{"role": "user"}]}, "prompt", "not a message with role and content"),
        ({"prompt": lambda problem: [{"role": "user", "content": 3}]}, "prompt", "is not a string"),
        ({"prompt": lambda problem: problem["x"]}, "prompt", "prompt raised TypeError"),
        ({"stop": "\n"}, "stop", "not a sequence of strings"),
        ({"stop": ("\n", "")}, "stop", "empty string"),
        ({"stop": ()}, "stop", "is empty"),
        ({"propose_stop": (3,)}, "propose_stop", "not a sequence of strings"),
        ({"max_thoughts": 0}, "max_thoughts", "whole number of at least 1"),
        ({"max_thought_tokens": 1.5}, "max_thought_tokens", "whole number of at least 1"),
        ({"mode": "guess"}, "mode", "'sample' or 'propose'"),
        ({"strategy_settings": {"bfs": 7}}, "strategy_settings", "not a mapping from strategies to settings"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"is_solution": lambda problem, path: True}, "is_solution", "would end before it starts"),
        ({"is_solution": lambda problem, path: path[0]}, "is_solution", "raised IndexError"),
        ({"parse": lambda problem, path, text: text}, "parse", "not a Thought"),
        ({"parse": lambda problem, path, text: Thought(5)}, "parse", "not a Thought with a text"),
        ({"parse": lambda problem, path, text: Thought(5), "mode": "propose"}, "parse", "not a Thought with a text"),
        ({"parse": lambda problem, path, text: _fail(SystemExit(0))}, "parse", "parse raised SystemExit"),
        ({"question": lambda problem, path: _fail(SystemExit(0))}, "question", "question raised SystemExit"),
        ({"question": lambda problem, path: Question("?", {"a": 10**400, "b": 1})}, "question", "not a finite number"),
        ({"validate": lambda problem: object()}, "validate", "has a memory address in its str()"),
        ({"parse": lambda problem, path, text: Thought(text, int(text))}, "parse", "parse raised ValueError"),
        ({"parse": lambda problem, path, text: Thought(text)}, "parse", "accepts an empty text"),
        ({"parse": lambda problem, path, text: _fail(Reject("no"))}, "path", "no thought was parsed"),
        ({"state_key": lambda problem, path: []}, "state_key", "cannot be hashed"),
        (
            {"state_key": lambda problem, path: [] if path else None},
            "state_key",
            "after 1 thought, which cannot be hashed",
        ),
        ({"question": lambda problem, path: None}, "question", "no question"),
        ({"question": lambda problem, path: "good?"}, "question", "not a Question"),
        (
            {"question": lambda problem, path: Question("", {"a": 1, "b": 0})},
            "question",
            "text of the question is empty",
        ),
        ({"question": lambda problem, path: Question("?", {"a": 1})}, "question", "at least two"),
        ({"question": lambda problem, path: Question("?", ["a", "b"])}, "question", "not a mapping"),
        ({"question": lambda problem, path: Question("?", {"a": 1, " a": 0})}, "question", "not distinct"),
        ({"question": lambda problem, path: Question("?", {"a": 1, "b": math.inf})}, "question", "not a finite number"),
        ({"question": lambda problem, path: Question("?", {"a": True, "b": 1})}, "question", "not a finite number"),
        ({"answer": lambda problem, path: None}, "answer", "answer returned None"),
        ({"question": lambda problem, path: Question("?", {"a": "a lot"})}, "question", "not a finite number"),
        ({"answer": lambda problem, path: path[5].text}, "answer", "answer raised IndexError"),
        ({"check": lambda problem, answer: "yes"}, "check", "not True, False or None"),
        ({"check": lambda problem, answer: None}, "check", "check returned None"),
        ({"check": lambda problem, answer: 1 / 0}, "check", "check raised ZeroDivisionError"),
        ({"mode": "propose", "propose_prompt": lambda problem, path: None}, "propose_prompt", "neither a string"),
        ({"mode": "propose", "split": lambda problem, path, reply: reply}, "split", "not a list of thoughts"),
        ({"mode": "propose", "split": lambda problem, path, reply: []}, "split", "returned no thought"),
    ],
)
def test_each_fault_is_reported_once_with_its_value(options, what, words):
    found = complaints(good(**options))
    assert {finding.what for finding in found} - {"path", "answer"} == {what} - {"path", "answer"}
    assert [finding.what for finding in found].count(what) == 1
    assert any(words in finding.message for finding in found)
    assert all("\n" not in finding.message and len(finding.message) < 250 for finding in found)


def test_chat_prompts_are_accepted():
    assert complaints(good(prompt=lambda problem: CHAT)) == []


@pytest.mark.parametrize(
    ("reply", "options", "words"),
    [
        (
            "nonsense\n",
            {"parse": lambda problem, path, text: _fail(Reject("no number"))},
            "parse rejects the model's text ",
        ),
        ("x" * 200, {}, "was cut off at max_thought_tokens 128"),
    ],
)
def test_with_an_engine_a_thought_is_sampled_and_parsed(reply, options, words):
    engine = MockEngine(lambda text, rng: reply)
    found = complaints(good(**options), engine=engine)
    assert any(finding.what == "sample" and words in finding.message for finding in found)
    assert engine.handles == 0


@pytest.mark.parametrize(
    ("options", "level", "what", "words"),
    [
        (
            {"is_solution": lambda problem, path: path[7] if len(path) == 3 else False},
            "error", "greedy path", "is_solution raised IndexError: tuple index out of range in the model's greedy path",
        ),
        (
            {"state_key": lambda problem, path: path[7] if len(path) == 2 else None},
            "error", "greedy path", "state_key raised IndexError: tuple index out of range in the model's greedy path",
        ),
        (
            {"parse": lambda problem, path, text: _fail(Reject("long")) if path or not text else Thought(text)},
            "missing", "greedy path", "ends after 1 thought: long",
        ),
        (
            {"is_solution": lambda problem, path: False, "max_thoughts": 4},
            "missing", "is_solution", "is_solution was False on all 4 thoughts",
        ),
        ({"answer": lambda problem, path: path[2].text[9]}, "error", "answer", "answer raised IndexError"),
    ],
)  # fmt: skip
def test_with_an_engine_the_greedy_path_is_followed_to_its_end(options, level, what, words):
    engine = MockEngine(lambda text, rng: "1\n")
    [finding] = complaints(good(**options), engine=engine)
    assert (finding.level, finding.what) == (level, what)
    assert words in finding.message
    assert engine.handles == 0


@pytest.mark.parametrize(
    ("labeller", "level", "words"),
    [
        (lambda *asked: _fail(ValueError("no")), "error", "raised ValueError: no"),
        (
            lambda *asked: {"yes": 0.2, "no": 0.1},
            "missing",
            "the model gave 70% of its probability to tokens outside the labels 'yes', 'no'",
        ),
    ],
)
def test_with_an_engine_the_question_is_asked(labeller, level, words):
    engine = MockEngine(lambda text, rng: "1\n", labeller)
    [finding] = complaints(good(), engine=engine)
    assert (finding.level, finding.what) == (level, "question")
    assert words in finding.message
    assert engine.handles == 0


def test_a_model_that_ends_its_text_after_the_prompt_is_reported():
    class Ended(MockEngine):
        async def generate(self, requests, account):
            replies = await super().generate(requests, account)
            return [[completion._replace(text="", finish="eos") for completion in reply] for reply in replies]

    found = complaints(good(), engine=Ended(lambda text, rng: "1\n"))
    assert [finding.what for finding in found] == ["sample", "greedy path"]
    assert all("the model ended its text" in finding.message for finding in found)


@pytest.mark.parametrize(
    "options",
    [
        {"is_solution": lambda problem, path: None if len(path) < 3 else "yes"},
        {"answer": lambda problem, path: len(path)},
    ],
)
def test_values_that_a_search_accepts_pass(options):
    engine = MockEngine(lambda text, rng: "1\n")
    assert complaints(good(**options), engine=engine) == []
    assert solve(good(**options), 3, engine=engine).answer in ("1", "3")


def test_a_prompt_too_long_for_the_engine_is_a_finding():
    [finding] = complaints(good(), engine=MockEngine(lambda text, rng: "1\n", context=5))
    assert (finding.level, finding.what) == ("error", "sample")


async def test_check_task_works_in_a_running_event_loop():
    assert complaints(good(), engine=MockEngine(lambda text, rng: "1\n")) == []


@pytest.mark.parametrize("task", [None, Task, "game24"])
def test_a_value_that_is_not_a_task_is_one_finding(task):
    assert [(found.level, found.what) for found in check_task(task, 3)] == [("error", "task")]


def test_an_engine_that_raises_is_a_finding_and_keeps_no_handle():
    class Broken(MockEngine):
        async def generate(self, requests, account):
            raise KeyError("oops")

    engine = Broken(lambda text, rng: "1\n")
    [finding] = complaints(good(), engine=engine)
    assert (finding.level, finding.what, finding.message) == ("error", "sample", "the engine raised KeyError: 'oops'")
    assert engine.handles == 0


def test_a_problem_without_a_repr_is_checked():
    class Odd:
        def __repr__(self):
            raise ValueError("no")

        def __str__(self):
            return "odd"

    assert complaints(good(validate=lambda problem: Odd())) == []


def test_the_report_prints_as_a_table_with_errors_first_and_has_a_short_repr():
    engine = MockEngine(lambda text, rng: "".join(f"a\033[1m line {n}\n" for n in range(9)))
    report = check_task(good(thoughts="whole", question=lambda problem, path: None), 3, engine)
    *lines, verdict = str(report).split("\n")
    assert verdict == "0 errors, 1 to look at, 22 in order"
    assert repr(report) == f"<TaskReport: {verdict}>"
    assert lines[0] == "missing  question            the task has no question: the verifier lm_value cannot be used"
    at = next(n for n, line in enumerate(lines) if line.startswith("ok       sampled thoughts "))
    assert lines[at + 1 : at + 8] == [f"         │ a\ufffd[1m line {n}" for n in range(6)] + [
        "         │ … 4 more lines"
    ]
    levels = [line.split()[0] for line in lines if line[0] != " "]
    assert levels == sorted(levels, key=["error", "missing", "ok"].index)
    assert levels == [line.level for line in report.lines]
