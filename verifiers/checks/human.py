"""Human: a person scores each path, at the terminal or through a function."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field, PrivateAttr

from rksc_tot.core.errors import VerifierError
from rksc_tot.core.plugins.bounded_call import BoundedCall
from rksc_tot.core.plugins.user_code import UserCodeError, finite, text_of
from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import PathView, Verifier

ANSWERS = {"y": 1.0, "yes": 1.0, "n": 0.0, "no": 0.0}
SKIPS = ("", "s", "skip", "?")
HOW = "y, n, a number from 0 to 1, or Enter to skip: "
MISREAD = 3  # answers that are asked again before a node is skipped


class Human(Verifier):
    """Human: a person scores each path, 0..1, at the terminal or through a function.

    One path is asked about at a time. A person who skips a path, or does not answer in time, abstains.

    Parameters
    ----------
    ask : callable or None
        A plain or async function of (problem, path) that returns a number from 0 to 1, True or False, or None to skip. The path
        is a :class:`~rksc_tot.verifiers.base.PathView`. None: the terminal is asked, where a path is answered with y, n, a
        number from 0 to 1, or Enter to skip.
    timeout : float or None
        Seconds for one answer. None: no limit but that of the search.
    most : int or None
        Questions for one search; later nodes are skipped. None: as many as the budget of verifier calls allows.
    longest : int
        Most characters of a thought that the terminal shows.
    abstained : float
        The score of a path that was skipped; ``ledger.abstentions`` counts these.
    """

    name: str = "human"
    ask: Callable[[Any, PathView], Any] | None = None
    timeout: float | None = Field(None, gt=0)
    most: int | None = Field(None, ge=1)
    longest: int = Field(2000, ge=1)
    abstained: float = Field(0.5, ge=0, le=1)
    _turn: Any = PrivateAttr(default_factory=threading.Lock)

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Ask about the nodes, one after the other.

        Raises
        ------
        VerifierError
            If there is neither a function nor a terminal.
        """
        if self.ask is None and not (sys.stdin is not None and sys.stdin.isatty()):
            raise VerifierError(
                f"verifier {self.name!r} cannot ask: the input is not a terminal",
                hint="run it in a terminal, or give a function, as in Human(ask=...)",
            )
        asked = search.ledger.verifier_calls - len(nodes)  # of this search, before these nodes
        scores: list[Score] = []
        for at, node in enumerate(nodes):
            left = self.most is None or asked + at < self.most
            scores.append(await self._one(search, node) if left else self._abstains(search))
        return scores

    async def _one(self, search: Search, node: Node) -> Score:
        view = PathView.of(search, node)
        call = BoundedCall("it", self.timeout, 1, lambda: search.limits.seconds_left)
        try:
            async with _in_turn(self._turn):
                value, _ = await call(self.ask or self._at_terminal, lambda: (search.problem, view))
        except TimeoutError:
            return None if call.late else self._abstains(search)
        except UserCodeError as raised:
            return self.failure(node, raised)
        if value is None:
            return self._abstains(search)
        number = float(value) if isinstance(value, bool) else finite(value)
        if number is None or not 0 <= number <= 1:
            return self.failure(
                node, f"the answer is {text_of(value, repr)}", "give a number from 0 to 1, or None to skip"
            )
        return number

    def _abstains(self, search: Search) -> Assessment:
        search.ledger.book_abstention()
        return Assessment(self.abstained, {"abstained": 1.0})

    async def _at_terminal(self, problem: Any, path: PathView) -> float | None:
        """Show a path and read an answer."""
        lines = [f"\nProblem: {printable(text_of(problem), self.longest)}"]
        lines += [f"{number:>3}. {printable(text, self.longest)}" for number, text in enumerate(path.texts, start=1)]
        lines.append("The path is complete." if path.finished else "The path goes on.")
        print("\n".join(lines), file=sys.stderr)
        for _ in range(MISREAD):
            print(f"Is this good? {HOW}", end="", file=sys.stderr, flush=True)
            line = await read_line()
            answer = line.strip().lower()
            if not line or answer in SKIPS:  # no line: the end of the input
                return None
            with contextlib.suppress(ValueError):
                number = ANSWERS.get(answer)
                number = float(answer) if number is None else number
                if 0 <= number <= 1:
                    return number
            print(f"{printable(line.strip(), 40)!r} is not one of these.", file=sys.stderr)
        return None


async def read_line() -> str:
    """A line of the standard input; nothing is read if the wait is cancelled, so that Ctrl-C leaves the input as it is."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(sys.stdin.fileno(), ready.set)
    except NotImplementedError:  # the loop of Windows
        return await asyncio.to_thread(sys.stdin.readline)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()


@contextlib.asynccontextmanager
async def _in_turn(lock: threading.Lock) -> Any:
    """Hold a lock that other event loops may hold too."""
    while not lock.acquire(blocking=False):
        await asyncio.sleep(0.02)
    try:
        yield
    finally:
        lock.release()


def printable(text: str, longest: int) -> str:
    """A text for a terminal: line ends stay, other control characters are shown as �, and it is cut."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text[:longest])
    return shown if len(text) <= longest else shown + " …"
