"""``rows_task``: a task from rows, a prompt, a form of answers and a reward."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown, text_of
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Path, Problem, Prompt, Task
from rksc_tot.core.task.task_settings import set_options
from rksc_tot.tasks.rows.answers import AnswerForm, answer_form
from rksc_tot.tasks.rows.prompt import RowPrompt, Template, row_prompt
from rksc_tot.tasks.rows.read_rows import Row, Source, problems_of, read_rows, refuse
from rksc_tot.tasks.rows.rewards import Reward, reward_for

Messages = Sequence[Mapping[str, str]]
BRACES = "correct the name, or write {{ and }} for braces"
ENDS = ("stop", "keep_stop", "skip_blank")  # settings that thoughts takes the place of


class RowsTask(Task):
    """A task whose problems are rows: dicts of named fields. :func:`rows_task` makes one.

    * ``problems``: the rows, each with an id, for :func:`~rksc_tot.solve_many` and :func:`~rksc_tot.compare`.
    """

    name = "rows"
    thoughts = "lines"
    closing_tokens = 64

    def __init__(
        self,
        problems: Sequence[Problem],
        prompts: RowPrompt,
        answers: AnswerForm,
        reward: Reward,
        target: Callable[[Row], Any],
        described: Mapping[str, Any],
    ) -> None:
        self.problems = list(problems)
        self._prompts, self._answers, self._reward, self._target = prompts, answers, reward, target
        self._described = dict(described)
        self.closing = answers.closing

    def describe(self) -> dict[str, Any]:
        """The settings that results depend on, as JSON values."""
        return {**self._described, "answer": self._answers.name, "reward": self._reward.name}

    def validate(self, problem: Any) -> Row:
        """A row with the fields of the prompt. A text is the field of a prompt that has only one."""
        if isinstance(problem, str) and len(self._prompts.fields) == 1:
            problem = {self._prompts.fields[0]: problem}
        if not isinstance(problem, Mapping):
            raise TaskError(
                f"the problem is {shown(problem)}, not a row",
                hint=f"give an object with {', '.join(map(repr, self._prompts.fields))}",
            )
        if fault := self._prompts.fault(problem):
            raise TaskError(f"the problem {fault}", hint=BRACES if "no field" in fault else "correct the row")
        return dict(problem)

    def prompt(self, problem: Row) -> Prompt:
        """The prompt of a row."""
        return self._prompts.render(problem)

    def is_solution(self, problem: Row, path: Path) -> bool:
        """Whether the path says an answer in a form that cannot be mistaken. A thought that was cut off says none yet."""
        if not path or not self._answers.explicit:
            return False
        text = self.text_of(path)
        return self._answers.find(text.rpartition("\n")[0] if path.finish == "length" else text) is not None

    def answer(self, problem: Row, path: Path) -> str | None:
        """The answer that the path says, in the reply to the closing if there is one."""
        if path and path[-1].closing is not None:
            return self._answers.in_reply(path[-1].closing, path[-1].text)
        return self._answers.find(self.text_of(path))

    def normalise(self, answer: str) -> Hashable:
        """The form of an answer that counts in votes."""
        return self._reward.form(answer)

    def check(self, problem: Row, answer: str) -> bool | None:
        """Whether the reward finds the answer right."""
        return self._reward.right(problem, answer, self._target(problem))

    def text_of(self, path: Path) -> str:
        """The text of the path as the model wrote it."""
        return Path(replace(thought, observation=None) for thought in path).text


def rows_task(
    rows: Source,
    *,
    prompt: str | Messages,
    answer: str | re.Pattern[str] | Callable[[str], object] = "number",
    reward: str | Callable[[Any, str], object] | None = None,
    target: str | Callable[[Row], Any] = "answer",
    target_answer: str | re.Pattern[str] | Callable[[str], object] | None = None,
    system: str | None = None,
    examples: Source | None = None,
    example_reply: str | None = None,
    chat: bool | None = None,
    id: str | None = "id",
    **options: Any,
) -> RowsTask:
    """A task from rows and a reward: ``rows_task("problems.jsonl", prompt="{question}", answer="after:####")``.

    Parameters
    ----------
    rows : path or iterable of dicts
        A file of JSON lines or CSV, a list of dicts, a data set of the package ``datasets``, or the folder of one.
    prompt : str or sequence of messages
        A template, or chat messages with templates as contents. ``{name}`` is the field of a row (see
        :class:`~rksc_tot.tasks.rows.prompt.Template`).
    answer : str, pattern or callable
        Where a path says its answer (see :mod:`rksc_tot.tasks.rows.answers`).
    reward : str or callable, optional
        When an answer is right (see :mod:`rksc_tot.tasks.rows.rewards`). By default ``numeric``, ``choice`` or ``json`` for
        answers of that form, else ``exact``.
    target : str or callable
        The field with the right answer, or a function of the row. None, NaN and blank text are no target.
    target_answer : optional
        The form in which the target says its answer, as ``answer``, such as ``after:####``. None: the target is the answer.
    system : str, optional
        Template of the system prompt.
    examples : optional
        Few-shot examples: rows, given like ``rows``.
    example_reply : str, optional
        Template of the reply of an example; by default the field ``target``.
    chat : bool, optional
        Whether a prompt that is a text becomes the user's message. None: it does on a model with a chat template.
    id : str, optional
        The field with the id of a row. Rows without it are numbered from 1.
    **options
        Methods and settings of :class:`~rksc_tot.Task`, such as ``thoughts``, ``closing`` or ``max_thoughts``. By default a
        thought is a line, unless ``stop`` is given, and a path that ends without an answer is asked for it.

    Raises
    ------
    ConfigError
        If rows cannot be read, do not fit the prompt or the reward, or repeat an id, or if a setting is invalid.
    """
    _check_settings(target, example_reply, chat)
    found = read_rows(rows)
    answers = answer_form(answer)
    reads_target = None if target_answer is None else answer_form(target_answer)
    reply = example_reply if example_reply is not None else f"{{{target}}}" if isinstance(target, str) else None
    shots = [] if examples is None else read_rows(examples)
    if shots and reply is None:
        raise ConfigError("the examples have no reply", hint='give example_reply, such as "{solution}"')
    prompts = row_prompt(prompt, system, _examples(shots, Template(reply or "")), chat)
    if isinstance(target, str) and target in prompts.fields:
        raise ConfigError(
            f"the prompt names {target!r}, the field with the right answer", hint=f"write {{{{{target}}}}} for braces"
        )
    refuse((f"row {n} {fault}" for n, row in enumerate(found, 1) if (fault := prompts.fault(row))), BRACES)
    refuse((f"example {n} {fault}" for n, row in enumerate(shots, 1) if (fault := prompts.fault(row))), BRACES)
    rewarded = reward_for(reward, answers.name)

    def right_answer(row: Row) -> Any:
        value = row.get(target) if isinstance(target, str) else target(row)
        if _missing(value):
            return None
        return value if reads_target is None else reads_target.find(str(value))

    if isinstance(target, str):
        wanted = target != "answer" or target_answer is not None
        if wanted and not any(target in row for row in found):
            raise ConfigError(
                f"no row has the field {target!r} with the right answer",
                hint=f"the first row has {', '.join(map(repr, found[0]))}; name one as target",
            )
        refuse(_target_faults(found, target, right_answer, rewarded), "correct the rows, or choose another reward")
    described = {
        "prompt": prompt,
        "system": system,
        "target": _named(target),
        "target_answer": _named(target_answer),
        "examples": f"{stream_key(*prompts.examples):032x}" if shots else None,  # a digest
        "chat": chat,
        "options": {name: text_of(value, repr) for name, value in options.items()},
    }
    task = RowsTask(problems_of(found, id), prompts, answers, rewarded, right_answer, described)
    set_options(task, ({"thoughts": None} if any(name in options for name in ENDS) else {}) | options)
    return task


def _examples(shots: Sequence[Row], reply: Template) -> list[tuple[Row, str]]:
    refuse((f"example {n} {fault}" for n, row in enumerate(shots, 1) if (fault := reply.fault(row))), BRACES)
    return [(row, reply.render(row)) for row in shots]


def _target_faults(rows: Sequence[Row], field: str, right_answer: Callable[[Row], Any], reward: Reward) -> list[str]:
    """What is wrong with the targets of rows."""
    faults = []
    for number, row in enumerate(rows, 1):
        given = row.get(field)
        if _missing(given):
            continue
        try:
            with calling_user_code("reading it"):
                value = right_answer(row)
                fault = "says no answer in the form target_answer" if value is None else reward.fault(value)
        except UserCodeError as raised:
            value, fault = given, f"cannot be read: {raised}"
        if fault:
            faults.append(f"row {number} has the target {shown(given if value is None else value)}, which {fault}")
    return faults


def _missing(value: object) -> bool:
    """Whether a target is none. Tables of pandas have NaN in place of None, CSV has an empty cell."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def _check_settings(target: object, example_reply: object, chat: object) -> None:
    """Raise ConfigError for settings of a wrong type."""
    if not isinstance(target, str) and not callable(target):
        raise ConfigError(f"target is {shown(target)}", hint="give the name of a field, or a function of the row")
    if example_reply is not None and not isinstance(example_reply, str):
        raise ConfigError(f"example_reply is {shown(example_reply)}", hint='give a template, such as "{solution}"')
    if chat is not None and not isinstance(chat, bool):
        raise ConfigError(f"chat is {shown(chat)}", hint="give True, False or None")


def _named(setting: object) -> str | None:
    return setting if setting is None or isinstance(setting, str) else shown(getattr(setting, "__qualname__", setting))
