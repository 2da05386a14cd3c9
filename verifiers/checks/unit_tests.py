"""Unit tests: the share of a problem's tests that the code of a thought passes in the sandbox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Path
from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.tasks.sandbox import Sandbox
from rksc_tot.tasks.sandbox.unit_tests import UnitTest, read_test, run_tests
from rksc_tot.verifiers.base import Verifier

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.IGNORECASE)


class UnitTests(Verifier):
    """Unit tests: the share of the problem's tests that the code passes in the sandbox, 0..1.

    Code that does not compile, raises, or reaches a limit fails the tests that it did not pass. If the sandbox refuses to run,
    the search ends with the reason.

    Parameters
    ----------
    tests : str
        Field of the problem that holds the tests: strings such as ``assert add(2, 3) == 5``, or pairs of an expression and its
        value.
    code : {"thought", "path"}
        Whether the program is the last thought, or all thoughts of the path, where stop strings that are not white space become
        line breaks. If it has fenced blocks, the last block is the
        program.
    sandbox : Sandbox
        Limits of the program.
    """

    name: str = "unit_tests"
    tests: str = "tests"
    code: Literal["thought", "path"] = "thought"
    sandbox: Sandbox = Sandbox()

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Run the tests of all nodes, as many at a time as the sandbox allows."""
        try:
            tests = self._tests(search.problem)
        except TaskError as error:
            return [self.failure(node, error.message, error.hint) for node in nodes]
        return await asyncio.gather(*[self._share(search, node, tests) for node in nodes])

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    def _tests(self, problem: Any) -> list[UnitTest]:
        tests = problem.get(self.tests) if isinstance(problem, Mapping) else getattr(problem, self.tests, None)
        if not isinstance(tests, list | tuple) or not tests:
            raise TaskError(
                f"the problem has no list of tests in its field {self.tests!r}", hint="name the field with tests=..."
            )
        return [read_test(test) for test in tests]

    async def _share(self, search: Search, node: Node, tests: Sequence[UnitTest]) -> Score:
        path = search.path(node)
        text = path[-1].text if self.code == "thought" and path else _program(path)
        try:
            async with asyncio.timeout(search.limits.seconds_left):
                report = await run_tests(self.sandbox, program_in(text), tests)
        except TimeoutError:
            return None
        if report.result.reason == "refused":
            raise self.failure(node, report.result.detail)
        return report.share


def program_in(text: str) -> str:
    """The last fenced block of a text; the whole text if it has none."""
    blocks = _FENCE.findall(text)
    return str(blocks[-1]) if blocks else text


def _program(path: Path) -> str:
    """The text of a path without stop strings that are no program text, such as a tag."""
    return Path(replace(thought, ending="\n") if thought.ending.strip() else thought for thought in path).text
