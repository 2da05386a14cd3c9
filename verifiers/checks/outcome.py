"""Outcome checks: whether the answer of a complete path passes a check that needs no model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from rksc_tot.core.errors import ConfigError, MissingExtra, TaskError
from rksc_tot.core.plugins.bounded_pattern import BoundedPattern
from rksc_tot.core.plugins.strict_json import parse_strictly
from rksc_tot.core.plugins.user_code import UserCodeError, awaiting_user_code, calling_user_code, shown
from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.search.task_calls import read_answer, read_verdict
from rksc_tot.verifiers.base import Verifier

if TYPE_CHECKING:
    from rksc_tot.tasks.rows.answers import AnswerForm
    from rksc_tot.tasks.rows.rewards import Reward


class OutcomeCheck(Verifier):
    """Outcome: 1 if the answer of a complete path passes every check, else 0; a path that goes on scores ``unfinished``.

    Without a check of its own, the task's ``check`` decides.

    Parameters
    ----------
    answer : str, callable or None
        The answer in the text of the path, as in :func:`rksc_tot.rows_task`: ``number``, ``boxed``, ``json``, ``regex:PATTERN`` …
        A path with such an answer counts as complete. None: the answer that the task reads from a complete path.
    pattern : str or None
        A regular expression that the whole answer must match.
    json_schema : dict, str or None
        A JSON schema that the answer must follow: as a dict, as JSON, or a file of it (extra ``structured``).
    reward : str, callable or None
        How the answer is compared with the problem's field ``target``: ``exact``, ``numeric``, ``math`` (extra ``math``),
        ``choice``, ``json`` or a function, as in :func:`rksc_tot.rows_task`.
    target : str
        Field of the problem with the right answer, for ``reward``.
    unfinished : float
        The score of a path without an answer, and of an answer that the check cannot judge.
    """

    name: str = "outcome"
    free: ClassVar[bool] = True
    answer: Any = None
    pattern: str | None = None
    json_schema: Any = None
    reward: str | Callable[..., Any] | None = None
    target: str = "answer"
    unfinished: float = Field(0.5, ge=0, le=1)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            BoundedPattern(pattern or "")
        except re.error as error:
            raise ValueError(f"should be a regular expression ({error})") from None
        return pattern

    def model_post_init(self, context: Any, /) -> None:
        """Refuse settings that cannot be used."""
        _ = self._form, self._reward, self._validator, self._pattern

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Check the answers of all nodes."""
        return [await self._one(search, node) for node in nodes]

    async def _one(self, search: Search, node: Node) -> Score:
        try:
            found = self._answer(search, node)
            return self.unfinished if found is None else await self._passes(search, found)
        except (UserCodeError, TaskError) as error:
            return self.failure(node, error)

    def _answer(self, search: Search, node: Node) -> str | None:
        """The answer of a path, None if it has none yet."""
        path = search.path(node)
        if self._form is not None:
            with calling_user_code("answer"):
                return self._form.find(path.text)
        if not node.finished:
            return None
        found, why = read_answer(search.task, search.problem, path)
        if found is None:
            raise TaskError(why)
        return found

    async def _passes(self, search: Search, answer: str) -> float:
        if self._pattern is not None:
            with calling_user_code("the pattern"):
                if not self._pattern.is_whole(answer.strip()):
                    return 0.0
        if self._validator is not None and not self._follows(answer):
            return 0.0
        if self._reward is not None:
            target = self._target(search.problem)
            row = search.problem if isinstance(search.problem, Mapping) else {"problem": search.problem}
            with awaiting_user_code("the reward", TaskError):
                right = await asyncio.to_thread(self._reward.right, row, answer, target)
            return self.unfinished if right is None else float(right)
        if self.pattern is None and self._validator is None:
            right, fault = read_verdict(search.task, search.problem, answer)
            if fault is not None:
                raise TaskError(str(fault))
            return self.unfinished if right is None else float(right)
        return 1.0

    def _follows(self, answer: str) -> bool:
        try:
            value = parse_strictly(answer)
        except ValueError:
            return False
        with calling_user_code("the schema"):
            return bool(self._validator.is_valid(value))

    def _target(self, problem: Any) -> Any:
        value = problem.get(self.target) if isinstance(problem, Mapping) else getattr(problem, self.target, None)
        if value is None:
            raise TaskError(f"the problem has no field {self.target!r}", hint="name the right answer with target=...")
        return value

    # -- settings as objects, made once ------------------------------------------------------------------------------

    @cached_property
    def _form(self) -> AnswerForm | None:
        from rksc_tot.tasks.rows.answers import answer_form

        return None if self.answer is None else answer_form(self.answer)

    @cached_property
    def _pattern(self) -> BoundedPattern | None:
        return None if self.pattern is None else BoundedPattern(self.pattern)

    @cached_property
    def _reward(self) -> Reward | None:
        from rksc_tot.tasks.rows.rewards import reward_for

        return None if self.reward is None else reward_for(self.reward, "")

    @cached_property
    def _validator(self) -> Any:
        if self.json_schema is None:
            return None
        try:
            import jsonschema
            import referencing
        except ImportError:
            raise MissingExtra("json_schema needs jsonschema", hint="pip install 'rksc_tot[structured]'") from None
        schema = _schema(self.json_schema)
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ConfigError(
                f"json_schema is no JSON schema: {shown(error.message, 200)}", hint="correct it"
            ) from None
        return kind(schema, registry=referencing.Registry())  # a schema elsewhere is not fetched


def _schema(given: Any) -> Any:
    """A schema from a dict, from JSON, or from a file of it."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given if given.lstrip().startswith("{") else FilePath(given).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"json_schema is {shown(given)}: {error}", hint="give JSON, or a file of it") from None
