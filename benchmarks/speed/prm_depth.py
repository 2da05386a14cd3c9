"""What it costs to verify every thought of a path, against the depth of the path.

``python -m benchmarks prm_depth [--json] [--quick]``. A path of up to 32 thoughts of 16 tokens after a prompt of 16, written by a
model of SmolLM2-135M's shape with random weights; after every thought a question of 16 tokens. *Ours*: the engine is asked
as soon as the thought is written, so that only the question, and the thought's last token, is computed. *Re-encoded*: prompt,
path and question go through plain transformers for each thought, as verifiers do that know no cache. Writing is not counted.

``growth_exponent``: the slope of log cost over log depth, where the cost is all tokens computed to verify a path of 2, 4, … 32
thoughts: 1 is linear, 2 quadratic. ``growth_exponent_reencoded``: the same without a cache; prompt and question weigh less the
deeper the path, so ``.last``, the slope of the last doubling, is nearer its limit. ``.seconds``: of seconds instead of tokens.
``tokens.``, ``seconds.``: the costs themselves by depth, of which seconds are means over rounds in which both run in turn.
``reencoded_over_ours.32``: of seconds at the greatest depth, with ``low`` and ``high``, 95 % by bootstrap over rounds.
``verdict_difference``: the largest difference between what the two say of a thought.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common.baselines import LABELS, SAMPLING, Plain, label_tokens
from benchmarks.common.random_models import SHAPES
from benchmarks.common.report import Quick, Report
from benchmarks.speed.paper import plain_and_engine, ratio, work
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.transformers_engine.engine import TransformersEngine

PROMPT = THOUGHT = 16
DEEPEST = 32
ROUNDS = 5


class Cost(NamedTuple):
    """Of one verdict: tokens computed, seconds, and the probability of the first label."""

    tokens: int
    seconds: float
    verdict: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A path, a thought at a time, verified both ways."""

    plain: Plain
    engine: TransformersEngine
    question: str

    async def grow(self, prompt: str, depth: int, key: int) -> tuple[list[Cost], list[Cost]]:
        """The costs of ours and of re-encoding, thought by thought."""
        engine, account = self.engine, Account()
        handles = [engine.open(prompt, account)]
        text = prompt
        ours: list[Cost] = []
        others: list[Cost] = []
        for level in range(depth):
            request = GenerateRequest(handles[-1], stream_keys(range(1), "prm", key, level), SAMPLING, THOUGHT)
            [[written]] = await engine.generate([request], account)
            handles.append(written.handle)
            text += written.text
            both = [self._asked, self._reencoded]
            for verify in both if (key + level) % 2 else both[::-1]:
                (ours if verify == self._asked else others).append(await verify(handles[-1], text))
        for handle in handles:
            engine.release(handle)
        engine.clear()
        return ours, others

    async def _asked(self, handle: Any, text: str) -> Cost:
        account = Account()
        start = time.perf_counter()
        [scores] = await self.engine.label([LabelRequest(handle, self.question, LABELS)], account)
        seconds = time.perf_counter() - start
        if scores is None:
            raise RuntimeError("the engine gave no verdict")
        return Cost(
            account.ledger.verifier_tokens + account.ledger.prefill_tokens, seconds, scores.probabilities[LABELS[0]]
        )

    async def _reencoded(self, handle: Any, text: str) -> Cost:
        model, tokenizer = self.plain.model, self.plain.tokenizer
        start = time.perf_counter()
        ids = torch.tensor([TextTokenizer(tokenizer).encode(text + self.question)], device=model.device)
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        first, second = (logits.double().softmax(-1)[ids].sum() for ids in label_tokens(tokenizer, self.question))
        return Cost(ids.numel(), time.perf_counter() - start, float(first / (first + second)))


def exponents(name: str, cost: np.ndarray) -> dict[str, float]:
    """Slope of log cost over log depth of ``cost [depths]``, depths doubling from 2: of all, and of the last two."""
    doublings = np.log2(cost)
    slope = np.polyfit(np.arange(len(cost)), doublings, 1)[0]
    return {name: round(float(slope), 3), f"{name}.last": round(float(doublings[-1] - doublings[-2]), 3)}


def measure(quick: bool) -> dict[str, Any]:
    """The figures of this benchmark."""
    shape, deepest, rounds = ("tiny", 16, 2) if quick else ("smollm2-135m", DEEPEST, ROUNDS)
    plain, engine = plain_and_engine(shape)
    vocabulary = SHAPES[shape]["vocab_size"]
    task = work(PROMPT, 1, vocabulary)
    checked = Checked(plain, engine, task.question)
    with engine:
        asyncio.run(checked.grow(task.prompt, 2, 0))  # what is made or chosen at the first call
        found = [asyncio.run(checked.grow(task.prompt, deepest, 1 + n)) for n in range(rounds)]
    costs = np.array([[[cost[:2] for cost in way] for way in ways] for ways in found])  # [rounds, 2, thoughts, 2]
    depths = 2 ** np.arange(1, int(np.log2(deepest)) + 1)
    totals = costs.cumsum(2)[:, :, depths - 1]  # [rounds, 2, depths, 2]
    figures: dict[str, Any] = {}
    for way, name in enumerate(("ours", "reencoded")):
        of_way = totals[:, way].mean(0)
        exponent = "growth_exponent" if name == "ours" else f"growth_exponent_{name}"
        figures |= exponents(exponent, of_way[:, 0]) | exponents(f"{exponent}.seconds", of_way[:, 1])
        for depth, (tokens, seconds) in zip(depths, of_way, strict=True):
            figures |= {f"tokens.{name}.{depth}": int(tokens), f"seconds.{name}.{depth}": round(float(seconds), 4)}
    figures |= ratio(f"reencoded_over_ours.{deepest}", totals[:, 1, -1, 1][None], totals[:, 0, -1, 1][None])
    differences = [abs(x.verdict - y.verdict) for ours, others in found for x, y in zip(ours, others, strict=True)]
    return figures | {"verdict_difference": max(differences)}


def main(quick: Quick = False) -> Report:
    """Verify paths of every depth."""
    return Report(measure(quick))
