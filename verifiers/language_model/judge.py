"""LLM judge: a model judges the steps so far, Zheng et al. 2023, https://arxiv.org/abs/2306.05685 (sections 3.1 and 3.4).

The judge is the model of the search, another engine, or a function. Its verdict is read from label probabilities, or from a reply
in words. A reply without one verdict is an abstention.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Prompt
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Engine
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import Verifier
from rksc_tot.verifiers.language_model.asking import common_ancestor, continuation, one_line
from rksc_tot.verifiers.language_model.judge_models import (
    Answer,
    AskFunction,
    JudgeQuestion,
    OtherEngine,
    OwnModel,
    ReplyCache,
)
from rksc_tot.verifiers.language_model.judge_replies import READERS, verdict

LABELS: Mapping[str, tuple[str, ...]] = {
    "yes_no": ("yes", "no", "Yes", "No"),
    "rating": tuple(map(str, range(1, 11))),
    "pairs": ("1", "2"),
}
"""The labels by scale."""
VERDICTS = {"yes_no": "yes or no", "rating": "a number from 1 to 10", "pairs": "1 or 2, or tie"}


class Judge(Verifier):
    """Judge: a model says whether the steps are right (yes_no), rates them (rating), or compares candidates (pairs); 0..1.

    Parameters
    ----------
    scale : {"yes_no", "rating", "pairs"}
        ``yes_no``: P(yes). ``rating``: the expected rating from 1 to 10, as 0..1. ``pairs``: the share of comparisons that a
        candidate wins. Each pair is asked in both orders; scores are comparable within one call only.
    criteria : str
        What the steps should be.
    read : {"labels", "reply"}
        Whether the label probabilities are read, or the judge writes a reply, which may explain its verdict.
    engine : Engine or None
        Another engine that judges. None: the engine of the search, on the KV of the nodes.
    model : str or None
        As ``engine``: a model for :func:`rksc_tot.load_engine`, loaded at the first question.
    ask : callable or None
        A plain or async function from a text to a reply, which judges instead of an engine. Its replies are read in words.
    opponents : int
        With ``pairs``: how many others each candidate is compared with.
    longest : int
        Most characters of the problem, and of the steps, that are shown to another model, and of a candidate in ``pairs``.
    max_tokens : int
        Most tokens of a reply.
    concurrency : int
        Most questions at a time to another engine or a function.
    timeout : float
        Seconds for a call of ``ask``.
    cache : int
        Answers of another engine or a function that are kept; equal questions are asked once.
    abstained : float
        The score where the judge abstains; ``ledger.abstentions`` counts these.
    """

    name: str = "judge"
    scale: Literal["yes_no", "rating", "pairs"] = "yes_no"
    criteria: str = "right, and on the way to the answer"
    read: Literal["labels", "reply"] = "labels"
    engine: Any = None
    model: str | None = None
    ask: Callable[[str], Any] | None = None
    opponents: int = Field(4, ge=1)
    longest: int = Field(4000, ge=1)
    max_tokens: int = Field(128, ge=1)
    concurrency: int = Field(16, ge=1)
    timeout: float = Field(60.0, gt=0)
    cache: int = Field(1024, ge=0)
    abstained: float = Field(0.5, ge=0, le=1)
    _kept: ReplyCache = PrivateAttr()
    _loaded: Any = PrivateAttr(None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @model_validator(mode="after")
    def _one_model(self) -> Judge:
        if sum(given is not None for given in (self.engine, self.model, self.ask)) > 1:
            raise ConfigError("verifier 'judge' has more than one of engine, model and ask", hint="give one of them")
        if self.engine is not None and not isinstance(self.engine, Engine):
            raise ConfigError(f"verifier 'judge': the engine is {shown(self.engine)}", hint="give one of load_engine")
        return self

    def model_post_init(self, context: Any, /) -> None:
        """Make the cache."""
        self._kept = ReplyCache(self.cache)

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    def close(self) -> None:
        """Close the engine that was loaded for ``model``. A later search loads it again."""
        with self._lock:
            if self._loaded is not None:
                self._loaded.close()
            self._loaded = None

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Ask about all nodes at once."""
        if self.scale == "pairs":
            return await self._tournament(search, nodes)
        questions = [self._question(search, node) for node in nodes]
        answers = await self._answers(search, questions)
        return [self._score(search, node, answer) for node, answer in zip(nodes, answers, strict=True)]

    # -- one candidate -----------------------------------------------------------------------------------------------

    def _question(self, search: Search, node: Node) -> JudgeQuestion:
        if self.scale == "yes_no":
            wanted = f"Are the steps so far {self.criteria}?"
        else:
            wanted = f"How far are the steps so far {self.criteria}? Rate them from 1 (not at all) to 10 (fully)."
        return self._asked(search, node, wanted)

    def _score(self, search: Search, node: Node, answer: Answer) -> Score:
        if answer is None:
            return None
        if isinstance(answer, str):
            return self.failure(node, answer)
        shares = self._shares(search, answer)
        if not shares:
            return Assessment(self.abstained, {"abstained": 1.0}, exact=answer.exact)
        if self.scale == "yes_no":
            score = sum(share for label, share in shares.items() if label.lower() == "yes")
        else:
            score = (sum(int(label) * share for label, share in shares.items()) - 1) / 9
        return Assessment(score, shares, exact=answer.exact)

    # -- pairs -------------------------------------------------------------------------------------------------------

    async def _tournament(self, search: Search, nodes: Sequence[Node]) -> list[Score]:
        """The mean share of won comparisons of each node."""
        games = [order for pair in self._pairs(search, nodes) for order in (pair, pair[::-1])]
        answers = await self._answers(search, [self._comparison(search, *game) for game in games])
        won: dict[int, list[tuple[float, bool]]] = {node.id: [] for node in nodes}
        unfinished, faults = set[int](), dict[int, str]()
        for game, answer in zip(games, answers, strict=True):
            ids = [node.id for node in game]
            if answer is None:
                unfinished.update(ids)
            elif isinstance(answer, str):
                faults |= dict.fromkeys(ids, answer)
            elif shares := self._shares(search, answer):
                first = shares.get("1", 0.0) + shares.get("tie", 0.0) / 2
                for id, share in zip(ids, (first, 1 - first), strict=True):
                    won[id].append((share, answer.exact))
        scores: list[Score] = []
        for node in nodes:
            if node.id in unfinished:
                scores.append(None)
            elif found := won[node.id]:
                mean = sum(share for share, _ in found) / len(found)
                scores.append(Assessment(mean, exact=all(exact for _, exact in found)))
            elif node.id in faults:
                scores.append(self.failure(node, faults[node.id]))
            else:  # alone, or the judge abstained each time
                scores.append(Assessment(self.abstained))
        return scores

    def _pairs(self, search: Search, nodes: Sequence[Node]) -> list[tuple[Node, Node]]:
        """Pairs in which each node has ``opponents`` others, if there are as many: neighbours on a ring in random order."""
        ring = sorted(nodes, key=lambda node: node.id)
        search.rng("judge", *(node.branch for node in ring)).shuffle(ring)
        found: dict[frozenset[int], tuple[Node, Node]] = {}
        for distance in range(1, -(-self.opponents // 2) + 1):
            for at, node in enumerate(ring):
                other = ring[(at + distance) % len(ring)]
                if other is not node:
                    found.setdefault(frozenset((node.id, other.id)), (node, other))
        return list(found.values())

    def _comparison(self, search: Search, first: Node, second: Node) -> JudgeQuestion:
        shared = common_ancestor(search, (first, second))
        numbers = zip(count(1), (first, second), strict=False)
        lines = [f"{number}: {continuation(search, shared, node, self.longest)}" for number, node in numbers]
        wanted = f"Which of these continuations is better, that is, more {self.criteria}?\n" + "\n".join(lines)
        return self._asked(search, shared, wanted)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _asked(self, search: Search, node: Node, wanted: str) -> JudgeQuestion:
        """The question with the form of its verdict; for another model after the problem and the steps."""
        if self.read == "reply" or self.ask is not None:
            form = f"Explain in one sentence, then write 'Verdict: ' and {VERDICTS[self.scale]}.\n"
        else:
            form = f"Answer with {VERDICTS[self.scale].removesuffix(', or tie')}.\n"
        whole = f"Problem: {one_line(_problem(search), self.longest)}\n\nSteps so far:\n{self._steps(search, node)}\n\n"
        lead = "" if self.read == "reply" else "Answer: "
        return JudgeQuestion(node, f"\n{wanted}\n{form}{lead}", f"{whole}{wanted}\n{form}", LABELS[self.scale])

    def _steps(self, search: Search, node: Node) -> str:
        """The last steps that fit into ``longest``, one on each line; the last one in any case."""
        steps = [one_line(thought.text, self.longest) for thought in search.path(node)]
        lines: list[str] = []
        for number, step in reversed([*enumerate(steps, start=1)]):
            if lines and sum(map(len, lines)) + len(step) > self.longest:
                lines.append("(earlier steps are left out)")
                break
            lines.append(f"Step {number}: {step}")
        return "\n".join(reversed(lines)) or "(none)"

    def _shares(self, search: Search, answer: Any) -> Mapping[str, float]:
        """Label probabilities; those of a reply are all on its verdict. Empty, and counted, if the judge abstained."""
        if answer.shares is not None:
            return answer.shares  # type: ignore[no-any-return]
        found = verdict(answer.reply, READERS[self.scale])
        if found is not None:
            return {found: 1.0}
        search.ledger.book_abstention()
        search.warn(
            "the judge abstained",
            f"verifier {self.name!r}: the judge's reply {shown(answer.reply)} has no verdict, so that it counts as an "
            f"abstention; replies should end with 'Verdict: ' and {VERDICTS[self.scale]}",
        )
        return {}

    async def _answers(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        if not questions:
            return []
        if self.ask is not None:
            return await AskFunction(self._kept, self.concurrency, self.ask, self.timeout).answers(search, questions)
        replies = self.read == "reply"
        if self.engine is None and self.model is None:
            return await OwnModel(self.max_tokens, replies).answers(search, questions)
        engine = self.engine or await asyncio.to_thread(self._load)
        model = OtherEngine(self._kept, self.concurrency, engine, _message, self.max_tokens, replies)
        return await model.answers(search, questions)

    def _load(self) -> Engine:
        from rksc_tot.engine import load_engine

        with self._lock:
            if self._loaded is None:
                self._loaded = load_engine(self.model)
            engine: Engine = self._loaded
            return engine


def _problem(search: Search) -> str:
    """The problem in words: itself if it is a text, else the prompt or its last message."""
    if isinstance(search.problem, str):
        return search.problem
    return search.prompt if isinstance(search.prompt, str) else search.prompt[-1]["content"]


def _message(text: str) -> Prompt:
    return [{"role": "user", "content": text}]
