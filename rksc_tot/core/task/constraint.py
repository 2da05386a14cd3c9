"""Constraints: the form that the text of a thought must have. Importing this file does not import ``llguidance``.

::

    class Steps(Task):
        constraint = json_schema({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]})

    class Moves(Task):
        def constraint(self, problem, path):
            return regex("|".join(legal_moves(path.state)))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rksc_tot.core.errors import ConstraintError

LONGEST = 1_000_000  # characters of a source


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form of a text; made by :func:`json_schema`, :func:`regex` or :func:`grammar`.

    * ``kind``: the language of the source.
    * ``source``: the JSON schema as JSON, the regular expression, or the grammar.
    """

    kind: Literal["json_schema", "regex", "grammar"]
    source: str

    def __post_init__(self) -> None:
        """Refuse sources that are not text, empty or too long."""
        source: object = self.source
        if not isinstance(source, str) or not source:
            raise ConstraintError(f"the {self.name} of a constraint is not a text, or empty", hint="write one")
        if len(self.source) > LONGEST:
            raise ConstraintError(
                f"the {self.name} of a constraint has {len(self.source)} characters",
                hint=f"use at most {LONGEST}",
            )

    @property
    def name(self) -> str:
        """The kind in words."""
        return {"json_schema": "JSON schema", "regex": "regular expression", "grammar": "grammar"}[self.kind]


def json_schema(schema: Mapping[str, Any] | str | type) -> Constraint:
    """A text that is one JSON value of a schema, on one line, with at most one space between two tokens of JSON.

    Parameters
    ----------
    schema
        The schema as a mapping or as JSON, or a pydantic model.

    Raises
    ------
    ConstraintError
        If it is not a JSON object.
    """
    found: Any = schema
    if isinstance(schema, type):
        describe = getattr(schema, "model_json_schema", None)
        if describe is None:
            raise ConstraintError(f"{schema.__name__} is not a pydantic model", hint="give a schema or a model")
        found = describe()
    try:
        found = json.loads(found) if isinstance(found, str) else found
        text = json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the JSON schema of a constraint is not JSON: {error}", hint="correct it") from None
    if not isinstance(found, Mapping):
        raise ConstraintError(
            "the JSON schema of a constraint is not a JSON object", hint='write one, such as {"type": …}'
        )
    return Constraint("json_schema", text)


def regex(pattern: str) -> Constraint:
    r"""A text that a regular expression matches as a whole.

    The syntax is that of Rust, without look-around and back references. ``\d``, ``\w`` and ``\s`` are ASCII.
    """
    return Constraint("regex", pattern)


def grammar(lark: str) -> Constraint:
    """A text of a context-free grammar: in the syntax of Lark, with the start rule ``start``."""
    return Constraint("grammar", lark)
