"""Replies of thinking models with markers in odd places: no exception, no block beyond its budget, and exact paths.

Hypothesis makes the replies: blocks that are nested, never closed, closed twice, opened again after the block, closed without
being opened, and markers that are split. Each reply is written by a mock engine, whose tokens are characters, into a search with
random settings (budget, kept or dropped, what a thought is). Some replies are also written by a model that is made to write them,
in tokens that split the markers, and five families of templates are checked on tiny random models.

* ``replies``, ``exceptions``: replies, and those that raised an error
* ``budget_overruns``: thinking blocks with more sampled tokens than their budget
* ``forced_closes``, ``own_closes``: blocks that the search closed, and that the model closed
* ``thoughts``, ``rejected``: thoughts that became nodes, and that were rejected
* ``markers_in_text``: thoughts after a block whose text has a marker
* ``handles_left``: handles that searches did not release
* ``nested``, ``missing``, ``doubled``, ``split``: replies of that kind
* ``engine_replies``, ``engine_exceptions``, ``engine_overruns``: the same for the scripted model, on the transformers engine
* ``max_abs_diff.FAMILY.dropped``, ``.kept``: largest difference between the log-probability of the token after a path and that
  of a fresh forward pass over its tokens, fp32
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.common.report import Quick, Report
from rksc_tot.core.task import Thinking, function_task
from rksc_tot.engine.base import GenerateRequest, Sampling
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood

OPEN, CLOSE = "<think>", "</think>"
PROMPT = "p:"
DEPTH, BRANCHES, THOUGHT_TOKENS = 3, 2, 20
PER_MODEL = 20
"""Replies that one scripted model writes."""
PARTS = st.sampled_from([OPEN, CLOSE, CLOSE, "<thi", "nk>", "</", "</think", "so ", "42", "\n", "\n\n", "x" * 7])
REPLIES = st.lists(PARTS, min_size=1, max_size=14).map("".join)
SETTINGS = st.builds(
    Thinking, budget=st.integers(1, 48), keep=st.booleans(), thought=st.sampled_from(["after", "inside", "whole"])
)


@dataclass
class BlockTally:
    """Counts over searches."""

    counts: Counter[str]

    def add(self, search: Search, setting: Thinking) -> None:
        """Count the blocks and thoughts of a search."""
        nodes = [node for node in search.tree if node.parent is not None]
        for node in nodes:
            block = [node] if setting.thought != "inside" else search.tree.lineage(node)
            self.counts["budget_overruns"] += sum(each.thinking_tokens for each in block) > setting.budget
            self.counts["own_closes"] += bool(node.thinking_tokens) and not node.forced_close
            self.counts["markers_in_text"] += setting.thought == "after" and (OPEN in node.text or CLOSE in node.text)
        self.counts["thoughts"] += len(nodes)
        self.counts["rejected"] += search.ledger.rejected
        self.counts["forced_closes"] += search.ledger.forced_closes


def scripted_writer(reply: str) -> Any:
    """A writer that goes on with a reply after its longest beginning that ends the path."""

    def writer(text: str, rng: object) -> str:
        written = text.removeprefix(PROMPT)
        for at in range(len(reply), 0, -1):
            if written.endswith(reply[:at]) or written.removesuffix(CLOSE).endswith(reply[:at]):
                return reply[at:]
        return reply

    return writer


def searched(engine: Any, setting: Thinking, tally: BlockTally, temperature: float = 1.0, prompt: str = PROMPT) -> None:
    """Search with an engine until no path goes on, and count."""
    task = function_task(
        prompt=lambda problem: prompt,
        is_solution=lambda problem, path: len(path) == DEPTH,
        thinking=setting,
        max_thought_tokens=THOUGHT_TOKENS,
        max_thoughts=DEPTH,
        temperature=temperature,
    )
    search = Search(task, "p", engine, Likelihood())

    async def grow() -> None:
        nodes = [search.root]
        while nodes:
            nodes = await search.expand(nodes, BRANCHES)

    try:
        asyncio.run(grow())
        tally.add(search, setting)
    finally:
        search.close()


def kinds(reply: str) -> list[str]:
    """What is odd about a reply that begins inside a block."""
    first = reply.partition(CLOSE)[0]
    found = {
        "nested": OPEN in first,
        "missing": CLOSE not in reply,
        "doubled": reply.count(CLOSE) > 1,
        "split": any(part in reply.replace(OPEN, "").replace(CLOSE, "") for part in ("<thi", "nk>", "</")),
    }
    return [kind for kind, odd in found.items() if odd]


def mock_replies(count: int) -> Counter[str]:
    """Figures of the replies on the mock engine."""
    tally = BlockTally(Counter())

    @seed(0)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate])
    @given(REPLIES, SETTINGS)
    def write(reply: str, setting: Thinking) -> None:
        engine = MockEngine(scripted_writer(reply))
        tally.counts["replies"] += 1
        tally.counts.update(kinds(reply))
        try:
            searched(engine, setting, tally)
        except Exception:
            tally.counts["exceptions"] += 1
        tally.counts["handles_left"] += engine.handles

    while tally.counts["replies"] < count:
        write()
    return tally.counts


def engine_replies(count: int) -> dict[str, int]:
    """Figures of replies that a scripted model writes in tokens that split the markers.

    One model writes many replies: what it writes depends on the position only, so each reply has a prompt of another length.
    """
    from benchmarks.common.thinking_models import scripted_model, thinking_tokenizer
    from rksc_tot.engine import TransformersEngine

    tokenizer = thinking_tokenizer("switched")
    replies: list[tuple[list[int], Thinking]] = []

    @seed(0)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate])
    @given(st.lists(PARTS, min_size=1, max_size=14), SETTINGS)
    def collect(parts: list[str], setting: Thinking) -> None:
        replies.append(([token for part in parts for token in tokenizer.encode(part)], setting))

    collect()
    tally, exceptions = BlockTally(Counter()), 0
    filler = [tokenizer.eos_token_id] * 2  # the positions of the opening marker, which is appended
    room = max(len(script) for script, _ in replies) + 8
    for first in range(0, len(replies), PER_MODEL):
        batch = replies[first : first + PER_MODEL]
        written = [token for script, _ in batch for token in [*filler, *script, *filler * room][:room]]
        with TransformersEngine(scripted_model(written, len(tokenizer)), tokenizer, name="scripted") as engine:
            for at, (_, setting) in enumerate(batch):
                try:
                    searched(engine, setting, tally, temperature=0.0, prompt="p" * (at * room + 1))
                    engine.check_integrity()
                except Exception:
                    exceptions += 1
    overruns = tally.counts["budget_overruns"]
    return {"engine_replies": len(replies), "engine_exceptions": exceptions, "engine_overruns": overruns}


def path_differences(family: str) -> dict[str, float]:
    """Largest difference of next-token log-probabilities after paths with and without their blocks."""
    from benchmarks.common.thinking_models import random_llama, thinking_tokenizer
    from rksc_tot.engine import TransformersEngine

    tokenizer = thinking_tokenizer(family)
    found = {}
    for name, keep in (("dropped", False), ("kept", True)):
        with TransformersEngine(random_llama(len(tokenizer)), tokenizer, name=family) as engine:
            task = function_task(
                prompt=lambda problem: [{"role": "user", "content": problem}],
                is_solution=lambda problem, path: len(path) == DEPTH,
                thinking=Thinking(budget=12, keep=keep),
                thoughts="tokens:6",
            )
            search = Search(task, "two and two", engine, Likelihood())
            found[name] = asyncio.run(_difference(search, engine))
            search.close()
    return found


async def _difference(search: Search, engine: Any) -> float:
    nodes, worst = [search.root], 0.0
    while nodes := await search.expand(nodes, BRANCHES):
        for node in nodes:
            request = GenerateRequest(node._handle, (1,), Sampling(temperature=0.0), 1)
            [[completion]] = await engine.generate([request], search.account)
            fresh = engine.forward.plain(node._handle.tokens)[-1].double().log_softmax(-1)
            worst = max(worst, abs(completion.logprobs[0] - float(fresh.max())))
            engine.release(completion.handle)
    return worst


def main(quick: Quick = False) -> Report:
    """Write all replies, and check the paths of all families."""
    from benchmarks.common.thinking_models import FAMILIES

    names = ("exceptions", "budget_overruns", "markers_in_text", "handles_left")
    counts = dict.fromkeys(names, 0) | mock_replies(1000)
    differences = {family: path_differences(family) for family in FAMILIES}
    return Report({**counts, **engine_replies(10 if quick else 100), "max_abs_diff": differences})
