"""rows_task: a task from rows, from its prompt to its reward, and what it refuses."""

import math
import re
import sys

import pytest

from rksc_tot import MockEngine, solve, solve_many
from rksc_tot.api.check.check_task import check_task
from rksc_tot.core.errors import ConfigError, RkscTotError, TaskError
from rksc_tot.core.task import Path, Thought
from rksc_tot.engine import TransformersEngine
from rksc_tot.tasks.rows.task import rows_task
from tests.engine.conftest import byte_tokenizer, llama

ROWS = [{"question": "4 + 5?", "answer": "9"}, {"question": "20 * 50?", "answer": "1,000", "id": "b"}]


def arithmetic(text, rng):
    """Writes two steps; asked for the answer, the result."""
    left, sign, right = re.findall(r"(\d+) ([+*]) (\d+)\?", text)[-1][:3]
    result = int(left) + int(right) if sign == "+" else int(left) * int(right)
    return f" {result}.\n" if text.endswith("The answer is") else f"I take {left} and {right}.\n"


def test_a_search_on_a_row_ends_with_an_answer_that_is_checked():
    task = rows_task(ROWS, prompt="{question}\n", max_thoughts=2)
    engine = MockEngine(arithmetic)
    outcomes = sorted(solve_many(task, task.problems, engine=engine, strategy="beam"), key=lambda each: str(each.id))
    assert [(each.id, each.verdict, each.result.answer) for each in outcomes] == [
        (1, "right", "9"),
        ("b", "right", "1000"),
    ]
    assert outcomes[0].result.ledger.closings > 0


def test_without_closing_a_path_that_says_no_answer_has_none():
    task = rows_task(ROWS, prompt="{question}\n", max_thoughts=2, closing=None)
    assert solve(task, ROWS[0], engine=MockEngine(arithmetic), strategy="cot").answer is None


@pytest.mark.parametrize(
    ("answer", "thoughts", "complete"),
    [
        ("number", ["so 9"], False),
        ("boxed", [r"so \boxed{9}"], True),
        ("boxed", ["so 9"], False),
        ("after:Answer:", ["x", "Answer: 9"], True),
    ],
)
def test_a_path_is_complete_where_it_says_an_answer_that_cannot_be_mistaken(answer, thoughts, complete):
    task = rows_task(ROWS, prompt="{question}", answer=answer)
    assert task.is_solution(ROWS[0], Path(map(Thought, thoughts))) is complete
    assert not task.is_solution(ROWS[0], Path())


def test_a_text_that_tokens_divide_is_read_as_one():
    task = rows_task(ROWS, prompt="{question}", answer="after:Answer:", thoughts="tokens:4")
    parts = [Thought(text, finish="length", ending="") for text in ("Ans", "wer: 1")]
    assert not task.is_solution(ROWS[0], Path(parts))  # the line may go on
    assert task.answer(ROWS[0], Path([*parts, Thought("8", finish="eos")])) == "18"
    assert task.is_solution(ROWS[0], Path([*parts, Thought("8\nx", finish="length")]))


def test_targets_are_read_in_their_own_form():
    task = rows_task(
        [{"q": "x", "solution": "3 * 3 = 9\n#### 9"}], prompt="{q}", target="solution", target_answer="after:####"
    )
    [problem] = task.problems
    assert (task.check(problem.problem, "9.0"), task.check(problem.problem, "3")) == (True, False)
    by_function = rows_task([{"q": "x", "s": "9!"}], prompt="{q}", target=lambda row: row["s"][:-1])
    assert by_function.check({"q": "x", "s": "9!"}, "9") is True
    assert task.check({"q": "x"}, "9") is None


def test_methods_and_settings_of_a_task_may_be_replaced():
    task = rows_task(ROWS, prompt="{question}", is_solution=lambda row, path: len(path) == 1, temperature=0.5)
    assert task.is_solution(ROWS[0], Path([Thought("x")]))
    with pytest.raises(ConfigError, match="a task has no 'temprature'"):
        rows_task(ROWS, prompt="{question}", temprature=0.5)


def test_a_text_is_the_field_of_a_prompt_that_has_one():
    task = rows_task(ROWS, prompt="Q: {question}", chat=False)
    assert task.prompt(task.validate("1 + 1?")) == "Q: 1 + 1?"


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ({"queston": "x"}, "the problem has no field 'question'; it has 'queston'"),
        ({"question": None}, "has None in the field 'question'"),
        (3, "the problem is 3, not a row - give an object with 'question'"),
    ],
)
def test_a_problem_that_does_not_fit_is_refused(problem, words):
    with pytest.raises(TaskError, match=words):
        rows_task(ROWS, prompt="{question}").validate(problem)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"question": "a"}, {"query": "b"}], {}, "row 2 has no field 'question'; it has 'query' - correct the name"),
        ([{"a": "x"}] * 5, {"id": None}, r"row 3 has no field 'question'; it has 'a'; and 2 more"),
        (ROWS, {"prompt": "{question} {'a': 1}"}, r"write {{ and }} for braces"),
        (ROWS, {"prompt": r"{question} \boxed{answer}"}, r"names 'answer', the field with the right answer - write {{answer}}"),
        ([{"question": 1, "answer": "no"}], {}, "row 1 has the target 'no', which is not one number"),
        ([{"question": None}], {}, "row 1 has None in the field 'question', which is not a text"),
        (ROWS, {"target_answer": "after:####"}, "row 1 has the target '9', which says no answer"),
        (ROWS, {"target_answer": lambda text: 1 / 0}, "row 1 has the target '9', which cannot be read: .*ZeroDivisionError"),
        (ROWS, {"target_answer": lambda text: sys.exit()}, "row 1 has the target '9', which cannot be read: .*SystemExit"),
        (ROWS, {"target": ["answer"]}, r"target is \['answer'\]"),
        (ROWS, {"example_reply": 5}, "example_reply is 5"),
        (ROWS, {"chat": "no"}, "chat is 'no'"),
        (ROWS, {"examples": [{"question": "x"}]}, "example 1 has no field 'answer'"),
        (ROWS, {"examples": [{"q": "x"}], "example_reply": "r"}, "example 1 has no field 'question'"),
        (ROWS, {"examples": ROWS, "target": lambda row: 1}, "the examples have no reply - give example_reply"),
        (ROWS * 2, {}, "rows 2 and 4 have the id 'b'"),
        ([], {}, "holds no row"),
    ],
)  # fmt: skip
def test_rows_and_settings_that_do_not_fit_are_refused(rows, options, words):
    with pytest.raises(ConfigError, match=words):
        rows_task(rows, **{"prompt": "{question}", **options})


@pytest.mark.parametrize("answer", ["number", "boxed", "choice", "json"])
@pytest.mark.parametrize("nothing", [None, math.nan, "", " "])
def test_a_row_without_a_target_has_no_check(answer, nothing):
    row = {"question": "a", "answer": nothing}
    assert rows_task([row], prompt="{question}", answer=answer, target_answer=answer).check(row, "nan") is None


def test_a_stop_string_in_the_settings_ends_thoughts():
    task = rows_task(ROWS, prompt="{question}\n", max_thoughts=1, stop=(".",), closing=None, answer=lambda text: "a")
    result = solve(task, ROWS[0], engine=MockEngine(lambda text, rng: "one\ntwo. three\n"), strategy="cot")
    assert [node.text for node in result.tree][1:] == ["one\ntwo"]


def test_the_description_tells_other_examples_and_other_settings_apart():
    described = [
        rows_task(ROWS, prompt="{question}", **options).describe()
        for options in (
            {},
            {"examples": ROWS[:1]},
            {"examples": ROWS[1:]},
            {"examples": ROWS[:1], "example_reply": "so {answer}"},
            {"closing": "a" * 200 + "b"},
            {"closing": "a" * 200 + "c"},
        )
    ]
    assert all(described.count(each) == 1 for each in described)
    assert rows_task(ROWS, prompt="{question}", examples=ROWS[:1]).describe() == described[1]


def test_the_name_of_a_file_of_rows_is_no_task_without_a_prompt():
    with pytest.raises(ConfigError, match="has no prompt here - make the task with rows_task"):
        solve("rows:a.jsonl", {}, engine=MockEngine(arithmetic))


def test_rows_of_mixed_types_become_text():
    task = rows_task([{"x": "a"}, {"x": 3}, {"x": [1, None]}], prompt="{x}!", chat=False)
    assert [task.prompt(problem.problem) for problem in task.problems] == ["a!", "3!", "[1, null]!"]


def test_the_built_in_check_finds_no_error_in_a_task_of_rows():
    task = rows_task(ROWS, prompt="{question}\n", max_thoughts=2)
    assert [each for each in check_task(task, ROWS[0], MockEngine(arithmetic)) if each.level == "error"] == []


@pytest.fixture(scope="module")
def tokenizers():
    return byte_tokenizer(), byte_tokenizer(chat=False)


def opened(tokenizer, prompt, row, **options):
    task = rows_task([row], prompt=prompt, max_thoughts=1, max_thought_tokens=4, closing_tokens=2, **options)
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="bytes") as engine:
        return solve(task, row, engine=engine, strategy="cot")


def test_a_text_prompt_is_a_chat_message_where_there_is_a_template(tokenizers, monkeypatch):
    seen = []
    encode = TransformersEngine._open
    monkeypatch.setattr(
        TransformersEngine, "_open", lambda self, ids, *rest: seen.append(ids) or encode(self, ids, *rest)
    )
    for tokenizer in tokenizers:
        opened(tokenizer, "{q}", {"q": "hi"}, accept_truncated=True)
    assert [tokenizer.decode(ids) for tokenizer, ids in zip(tokenizers, seen, strict=True)] == [
        "<s>[user]hi\n[assistant]",
        "hi",
    ]


@pytest.mark.parametrize(
    ("template", "options", "words"),
    [
        ("{{ raise_exception('System role not supported') }}", {"system": "Be brief."}, "System role not supported"),
        ("{% for m in messages if m.role == 'user' %}{{ m }}{% endfor %}", {"system": "Be brief."}, "leaves out the system"),
        ("{{ messages.nothing.at.all }}", {}, "the chat template refused the messages"),
        (None, {"chat": True}, "no chat template"),
    ],
)  # fmt: skip
def test_a_template_that_raises_or_leaves_out_a_message_is_reported_with_what_to_do(
    tokenizers, template, options, words
):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(RkscTotError, match=words) as error:
        opened(tokenizer, "{q}", {"q": "hi"}, **options)
    assert error.value.hint


def test_a_row_longer_than_the_context_fails_alone():
    rows = [{"q": "x" * 100_000}, {"q": "hi"}]
    task = rows_task(rows, prompt="{q}", max_thoughts=1, max_thought_tokens=4, closing_tokens=2, accept_truncated=True)
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="bytes") as engine:
        outcomes = sorted(solve_many(task, task.problems, engine=engine, strategy="cot"), key=lambda each: each.id)
    assert outcomes[0].failure.endswith("shorten the prompt")
    assert outcomes[1].failure is None


def test_a_target_that_no_row_has_is_refused_with_the_fields_there_are():
    with pytest.raises(ConfigError, match=r"no row has the field 'solution'.*'question', 'answer'"):
        rows_task([{"question": "1 + 1", "answer": "2"}], prompt="{question}", target="solution")
    assert rows_task([{"question": "1 + 1"}], prompt="{question}").problems  # without targets nothing is checked
