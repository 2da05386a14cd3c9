"""A problem with an id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with an id of your own. The id is a string or a whole number."""

    problem: Any
    id: str | int

    def __post_init__(self) -> None:
        """Raise ConfigError unless the id is a string or a whole number."""
        given: object = self.id
        if not isinstance(given, str | int) or isinstance(given, bool):
            raise ConfigError(f"the id is {shown(given)}", hint="give a string or a whole number")


def without_id(problem: Any) -> Any:
    """The problem itself, if it comes with an id."""
    return problem.problem if isinstance(problem, Problem) else problem


def own_copy(problem: Any) -> Any:
    """A problem in dicts, lists and tuples of its own, so that a search cannot change it for another one."""
    if type(problem) is dict:
        return {key: own_copy(value) for key, value in problem.items()}
    if type(problem) in (list, tuple):
        return type(problem)(map(own_copy, problem))
    return problem
