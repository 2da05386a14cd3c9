"""Recompute: the model computes the results of a thought once more, and the score says whether the thought agrees.

Small models cannot judge a calculation when they are asked whether it is right, but they can often do it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from rksc_tot.core.errors import ContextOverflow, VerifierError
from rksc_tot.core.plugins.bounded_pattern import BoundedPattern
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import Prompt
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Completion, LabelRequest
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import Verifier, ask_labels
from rksc_tot.verifiers.language_model.asking import asked, one_line, write_replies

NUMBER = r"[-−]?(?:\d[\d,]*)?\.?\d+"
_EQUALS = re.compile(rf"=\s*\$?({NUMBER})")
_NUMBER = re.compile(NUMBER)
_WORK = re.compile(r"(?:[\d \t$%()+*/×÷^−-]|(?<=\d)[,.](?=\d)|(?<=[\d\s)])[xX](?=[\s(\d]))+$")
_OPERATION = re.compile(r"[\d)]\s*[-+*/×÷^−xX]\s*[-−$(]*\d")
LONGEST = 120  # characters of a calculation
YES = {"yes": 1.0, "Yes": 1.0, "no": 0.0, "No": 0.0}


class Claim(NamedTuple):
    """A calculation in a thought, such as ``12 * 3``, and the result that the thought states."""

    work: str
    value: str


class Recompute(Verifier):
    """Recompute: the model computes each result of a thought again; the score is 1 if the thought agrees, else 0.

    Parameters
    ----------
    prompt : str
        Asks for the value of ``{work}``, the left side of an equation. The reply is written after the node, or where ``of`` is
        ``parent`` after the node's parent, so that the model does not see the stated result.
    of : {"thought", "parent"}
        Where the reply is written.
    compare : {"value", "question"}
        ``value``: the score is whether the last number of the reply equals the stated one. ``question``: the model sees the
        recomputed value and is asked whether the thought agrees; the score is P(yes).
    question : str
        That question, with ``{work}``, ``{value}`` (as the thought states it) and ``{again}`` (as recomputed).
    pattern : str or None
        A regular expression with groups ``work`` and ``value`` that finds claims. None: equations with an operation on the left
        and a number on the right.
    most : int
        The last claims of a thought that are checked; the score is that of the worst.
    max_tokens : int
        Most tokens of a reply.
    unclear : float
        The score of a thought without a claim, and of a claim to which the reply has no number.
    """

    name: str = "recompute"
    prompt: str = "\nCompute {work}. Reply with the number only: "
    of: Literal["thought", "parent"] = "parent"
    compare: Literal["value", "question"] = "value"
    question: str = (
        "\nComputed again, {work} = {again}. The step says {value}. Is that the same number? Answer yes or no: "
    )
    pattern: str | None = None
    most: int = Field(3, ge=1)
    max_tokens: int = Field(24, ge=1)
    unclear: float = Field(0.5, ge=0, le=1)

    @field_validator("pattern")
    @classmethod
    def _has_groups(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = BoundedPattern(pattern).compiled.groupindex
            except re.error as error:
                raise ValueError(f"should be a regular expression ({error})") from None
            if not {"work", "value"} <= groups.keys():
                raise ValueError("should have the groups (?P<work>…) and (?P<value>…)")
        return pattern

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Recompute all claims of all nodes in one call."""
        found: dict[int, list[Score]] = {}
        claims: list[tuple[Node, Claim]] = []
        for node in nodes:
            try:
                claims += [(node, claim) for claim in self._claims(node.text)]
            except TimeoutError as error:  # of the pattern
                found[node.id] = [self.failure(node, error)]
        at = [self._place(search, node) for node, _ in claims]
        texts = [self._asked(search, self.prompt, claim) for _, claim in claims]
        replies = await write_replies(search, at, texts, self.max_tokens, ("\n",))
        values = [value_in(reply.text) if isinstance(reply, Completion) else None for reply in replies]
        if self.compare == "question":
            agreed = await self._agreed(search, claims, replies, values)
        else:
            agreed = [self._same(search, *each) for each in zip(claims, replies, values, strict=True)]
        for (node, _), score in zip(claims, agreed, strict=True):
            found.setdefault(node.id, []).append(score)
        return [worst(found.get(node.id, [self.unclear])) for node in nodes]

    def _claims(self, text: str) -> list[Claim]:
        if self.pattern is None:
            return [*equations(text)][-self.most :]
        matches = BoundedPattern(self.pattern).matches(text)
        found = [Claim(match["work"] or "", match["value"] or "") for match in matches]
        return [claim for claim in found if claim.work.strip() and claim.value.strip()][-self.most :]

    def _place(self, search: Search, node: Node) -> Node:
        """Where a reply for a node is written."""
        if self.of == "thought" or node.parent is None:
            return node
        lineage = search.tree.lineage(node)[:-1]
        return next(each for each in reversed(lineage) if each._handle is not None or each.parent is None)

    def _asked(self, search: Search, text: str, claim: Claim, again: str = "") -> Prompt:
        values = {"work": claim.work, "value": claim.value, "again": again}
        filled = re.sub(r"\{(work|value|again)\}", lambda name: one_line(values[name[1]], LONGEST), text)
        return asked(search, filled)

    def _same(
        self, search: Search, claim: tuple[Node, Claim], reply: Completion | ContextOverflow | None, again: str | None
    ) -> Score:
        if not isinstance(reply, Completion):
            return None if reply is None else self.failure(claim[0], reply)
        if again is None:
            search.ledger.book_abstention()
            return Assessment(self.unclear, exact=reply.exact)
        try:
            with calling_user_code("normalise"):
                alike = search.task.normalise(claim[1].value) == search.task.normalise(again)
        except UserCodeError:
            alike = False
        return Assessment(float(alike or same_number(claim[1].value, again)), exact=reply.exact)

    async def _agreed(
        self,
        search: Search,
        claims: Sequence[tuple[Node, Claim]],
        replies: Sequence[Completion | ContextOverflow | None],
        values: Sequence[str | None],
    ) -> list[Score]:
        """P(yes) of the question for each claim."""
        scores = [self._same(search, *each) for each in zip(claims, replies, values, strict=True)]
        wanted = [at for at, value in enumerate(values) if value is not None]
        requests = [
            LabelRequest(
                claims[at][0]._handle,
                self._asked(search, self.question, claims[at][1], values[at] or ""),
                tuple(YES),
            )
            for at in wanted
        ]
        for at, reply in zip(wanted, await ask_labels(search, requests), strict=True):
            if reply is None:
                scores[at] = None
            elif isinstance(reply, ContextOverflow):
                scores[at] = self.failure(claims[at][0], reply)
            else:
                share = expected(reply.probabilities, YES)
                written = replies[at]
                scores[at] = Assessment(share, exact=reply.exact and isinstance(written, Completion) and written.exact)
        return scores


def expected(probabilities: Mapping[str, float], values: Mapping[str, float]) -> float:
    """The expected value of a label."""
    return sum(probability * values[label] for label, probability in probabilities.items())


def worst(scores: Sequence[Score]) -> Score:
    """The first score that is an error or None; without one, the lowest, which is exact if all are."""
    found: list[Assessment] = []
    for score in scores:
        if score is None or isinstance(score, VerifierError):
            return score
        found.append(score if isinstance(score, Assessment) else Assessment(score))
    return min(found, key=lambda each: each.score)._replace(exact=all(each.exact for each in found))


def equations(text: str) -> Iterator[Claim]:
    """The equations in a text with an operation on the left side and a number on the right."""
    for equals in _EQUALS.finditer(text):
        left = text[max(0, equals.start() - LONGEST) : equals.start()]
        found = _WORK.search(left)
        work = "" if found is None else found[0].strip(" \t%")
        if work.count("(") > work.count(")"):
            work = work[work.rindex("(") + 1 :]
        if _OPERATION.search(work):
            yield Claim(" ".join(work.split()), equals[1])


def value_in(reply: str) -> str | None:
    """The last number of a reply, None without one."""
    return next(reversed(_NUMBER.findall(reply)), None)


def same_number(one: str, other: str) -> bool:
    """Whether two texts are equal numbers, to six digits."""
    try:
        a, b = (float(text.replace(",", "").replace("−", "-")) for text in (one, other))
    except ValueError:
        return False
    return abs(a - b) <= 1e-6 * max(1.0, abs(a), abs(b))
