"""Runs unit tests beside the code under test. It is the program of the sandbox, so it needs the standard library only.

The request is a JSON object on standard input: ``code``; ``calls``: expressions, or programs that raise if they fail. The reply
is a JSON line for each: its number, and either the canonical form of its value or what it raised.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

_LONGEST = 20_000  # characters of a value


def canonical(value: Any) -> Any:
    """A value as JSON values. Equal values of the plain types have equal forms, and no other object can pass for them."""
    kind = type(value)
    if value is None or kind is str:
        return value
    if kind is bool or kind is int:
        return int(value)  # Python's True is equal to 1
    if kind is float:
        return int(value) if value.is_integer() else {"float": repr(value)}
    if kind in (list, tuple):
        return {kind.__name__: [canonical(item) for item in value]}
    if kind in (set, frozenset):
        return {"set": _in_order(canonical(item) for item in value)}
    if kind is dict:
        return {"dict": _in_order([canonical(key), canonical(item)] for key, item in value.items())}
    return {"repr": f"{kind.__name__} {value!r}"}


def _in_order(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=json.dumps)


def run_calls(code: str, calls: list[str], write: Any) -> None:
    """Run the code, then every call after it, and write the replies."""
    solution = sys.modules["solution"] = ModuleType("solution")
    space = vars(solution)
    exec(compile(code, "solution", "exec", dont_inherit=True), space)  # noqa: S102 - in the sandbox
    for number, call in enumerate(calls):
        try:
            try:
                program = compile(call, "test", "eval", dont_inherit=True)
            except SyntaxError:  # statements, such as a loop with asserts
                program = compile(call, "test", "exec", dont_inherit=True)
            told: dict[str, Any] = {"value": canonical(eval(program, space))}  # noqa: S307 - in the sandbox
            text = json.dumps([number, told])
        except BaseException as error:
            text = json.dumps([number, {"raised": f"{type(error).__name__}: {error}"[:_LONGEST]}])
        write(text if len(text) <= _LONGEST else json.dumps([number, {"raised": "the value is too long"}]))


def main() -> None:
    """Answer the request on standard input."""
    request, replies = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # what the code prints is no reply
    run_calls(request["code"], request["calls"], lambda text: print(text, file=replies, flush=True))


if __name__ == "__main__":
    main()
