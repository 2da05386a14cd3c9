"""Unit tests of code that a model wrote: the code runs in the sandbox, the values are compared outside it."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.tasks.sandbox import harness
from rksc_tot.tasks.sandbox.harness import canonical
from rksc_tot.tasks.sandbox.run import SandboxResult
from rksc_tot.tasks.sandbox.sandbox import Sandbox

FORMS = 'such as ["add(2, 3)", 5] or "assert add(2, 3) == 5"'
_LONGEST = 200  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class UnitTest:
    """One test.

    Attributes
    ----------
    call : str
        An expression; or statements, whose value is None if they do not raise.
    expected : Any
        The value that the call should have. It stays outside the sandbox.
    """

    call: str
    expected: Any


@dataclass(frozen=True, slots=True)
class UnitTestReport:
    """Result of some unit tests.

    Attributes
    ----------
    failures : tuple of (str or None)
        For each test what went wrong, such as ``add(2, 3) gave 6, not 5``; None if it passed.
    result : SandboxResult
        How the run ended.
    """

    failures: tuple[str | None, ...]
    result: SandboxResult

    @property
    def share(self) -> float:
        """Share of the tests that passed."""
        return self.failures.count(None) / len(self.failures)


def read_test(test: Any) -> UnitTest:
    """A test from a pair of an expression and its value, or from a string with Python statements.

    ``assert CALL == LITERAL`` becomes a pair, so that the value is compared outside the sandbox. Any other statement is decided
    inside the sandbox, where code that means to deceive could pretend success.

    Raises
    ------
    TaskError
        If the test has neither form.
    """
    if isinstance(test, UnitTest):
        return test
    if isinstance(test, list | tuple) and len(test) == 2 and isinstance(test[0], str):
        return UnitTest(test[0], test[1])
    try:
        [*statements] = ast.parse(test).body if isinstance(test, str) else []
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"the test {shown(test)} is not Python: {error}", hint=f"write tests {FORMS}") from None
    if not statements:
        raise TaskError(f"{shown(test)} is not a test", hint=f"write tests {FORMS}")
    if len(statements) == 1 and isinstance(statements[0], ast.Assert):
        return _of_assert(statements[0].test)
    return UnitTest(test, None)


def _of_assert(condition: ast.expr) -> UnitTest:
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1 and isinstance(condition.ops[0], ast.Eq):
        try:
            return UnitTest(ast.unparse(condition.left), ast.literal_eval(condition.comparators[0]))
        except (ValueError, TypeError, RecursionError):  # the right side is no literal
            pass
    return UnitTest(f"bool({ast.unparse(condition)})", True)


async def run_tests(sandbox: Sandbox, code: str, tests: Sequence[UnitTest]) -> UnitTestReport:
    """Run the tests after the code, all in one process. A test that the process did not reach has failed."""
    request = json.dumps({"code": code, "calls": [test.call for test in tests]})
    return _report(await sandbox.arun(inspect.getsource(harness), request), tests)


def check_tests(sandbox: Sandbox, code: str, tests: Sequence[UnitTest]) -> UnitTestReport:
    """As :func:`run_tests`, without an event loop."""
    request = json.dumps({"code": code, "calls": [test.call for test in tests]})
    return _report(sandbox.run(inspect.getsource(harness), request), tests)


def _report(result: SandboxResult, tests: Sequence[UnitTest]) -> UnitTestReport:
    replies: dict[int, dict[str, Any]] = {}
    for line in result.stdout.splitlines():
        try:
            number, told = json.loads(line)
        except (ValueError, TypeError, RecursionError):  # not from the harness
            continue
        if isinstance(number, int) and isinstance(told, dict):
            replies.setdefault(number, told)
    failures = tuple(_failure(test, replies.get(at), result) for at, test in enumerate(tests))
    return UnitTestReport(failures, result)


def _failure(test: UnitTest, reply: dict[str, Any] | None, result: SandboxResult) -> str | None:
    call = shown(test.call, _LONGEST)[1:-1]
    if reply is None:
        return f"{call} was not reached: {result.detail or 'the program ended before it'}"
    if "value" not in reply:
        return f"{call} raised {shown(reply.get('raised'), _LONGEST)[1:-1]}"
    if reply["value"] == canonical(test.expected):
        return None
    return f"{call} gave {_readable(reply['value'])}, not {shown(test.expected, _LONGEST)}"


def _readable(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        [(kind, items)] = value.items()
        if kind in ("float", "repr"):
            return str(items)[:_LONGEST]
        if kind in ("list", "tuple", "set") and isinstance(items, list):
            inside = ", ".join(map(_readable, items[:20]))
            return {"list": f"[{inside}]", "tuple": f"({inside})", "set": f"{{{inside}}}"}[kind]
        if kind == "dict" and isinstance(items, list):
            return "{" + ", ".join(": ".join(map(_readable, item)) for item in items[:20]) + "}"
    return shown(value, _LONGEST)
