"""A real model on long paths: the next-token distribution on compressed KV compared with that on full KV.

The model generates texts on full KV. Each policy then reads the same texts, :data:`RECENT` tokens at a time, and compresses the
KV after each part. After each part the next-token distribution is compared with the one on full KV.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import chain, product
from statistics import fmean
from typing import Any

from torch import Tensor

from benchmarks.common.engine_recorder import EngineRecorder
from benchmarks.memory.paths import POLICIES
from rksc_tot import load_engine
from rksc_tot.core.seeds import stream_keys
from rksc_tot.core.task import Prompt
from rksc_tot.engine.base import Account, Completion, GenerateRequest, Sampling
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.policies.compression.base import CompressionPolicy
from rksc_tot.policies.compression.lossless import Lossless

TASKS = (
    "A farm has 7 cows and 12 hens. Each cow eats 15 kg a day, each hen 0.1 kg. How much is eaten in April? Think step by step.",
    "Ada is twice as old as Ben, Ben is 4 years older than Cem, and together they are 44. How old is each? Think step by step.",
    "Plan a week of dinners for a family that eats no fish on Mondays and no meat on Fridays. Explain each choice.",
    "Write a story about a lighthouse keeper called Ottoline who has lost the key numbered 4417. Mention the key at the end.",
    "Explain how a bill becomes a law, with every step, who takes it, and what may go wrong.",
    "A train leaves at 8:15 and travels 60 km/h, another at 9:00 and 90 km/h. Where do they meet? Think step by step.",
    "Compare three ways to sort a list of names by hand, and say which one suits whom.",
    "Describe a machine that folds letters, part by part, in the order in which the paper passes through it.",
)
NEW, RECENT = 384, 32
BUDGETS = (96, 160)
OTHERS = ("snapkv", "snapkv_kernel1", "streaming")
RESAMPLED = 2000
DRAFTED, BESIDE = 128, 8  # tokens of drafted texts; kept tokens, besides an equal number of recent ones


def figures(model: str, quick: bool) -> dict[str, Any]:
    """The figures of every policy at every budget, with the prompt pinned or not, and the acceptance of its drafts."""
    tasks, new, budgets = (TASKS[:2], 256, BUDGETS[:1]) if quick else (TASKS, NEW, BUDGETS)
    with load_engine(model) as engine:
        prompts: list[Prompt] = [_prompt(engine, task) for task in tasks]
        texts = [reply.tokens for reply in _written(engine, prompts, new, 0.8)[0]]
        whole = asyncio.run(read(engine, prompts, texts))
    found: dict[str, Any] = {"texts": len(texts), "mean_tokens": round(fmean(map(len, texts)), 1)}
    far: dict[tuple[str, bool, int], list[list[float]]] = {}
    for (name, (kind, settings)), budget, pinned in product(POLICIES.items(), budgets, (True, False)):
        compress = kind(budget=budget, recent=RECENT, pin_prompt=pinned, **settings)
        with load_engine(model, compress=compress) as engine:
            seen = asyncio.run(read(engine, prompts, texts))
        pairs = _pairs(whole, seen, budget + 2 * RECENT)
        far[name, pinned, budget] = [[_divergence(*pair) for pair in text] for text in pairs]
        found[f"{name}{'' if pinned else '_unpinned'}.{budget}"] = _compared(pairs)
    return found | findings(far, budgets) | _lossless(model, prompts, DRAFTED // 2 if quick else DRAFTED)


async def read(
    engine: TransformersEngine, prompts: Sequence[Prompt], texts: Sequence[Sequence[int]]
) -> list[list[tuple[int, Tensor]]]:
    """For each text, after each part: number of tokens so far, and log-probabilities of the next token ``[V]``."""
    account = Account()
    handles = [engine.open(prompt, account) for prompt in prompts]
    seen: list[list[tuple[int, Tensor]]] = [[] for _ in texts]
    for first in range(0, max(map(len, texts)), RECENT):
        going = [n for n, text in enumerate(texts) if len(text) >= first + RECENT]
        for n in going:
            part = engine.tokenizer.decode(list(texts[n][first : first + RECENT]))
            longer = engine.extend(handles[n], str(part))
            engine.release(handles[n])
            handles[n] = longer
        for reply in await engine.generate([_two_tokens(handles[n]) for n in going], account):
            engine.release(reply[0].handle)
        for n in going:
            seen[n].append((handles[n].length, handles[n].segment.logits.double().log_softmax(-1)))
    return seen


def _two_tokens(handle: object) -> GenerateRequest:
    """Two tokens: the first is drawn from the compared distribution; the path is compressed before the second."""
    return GenerateRequest(handle, stream_keys(range(1), "read"), Sampling(temperature=0), 2)


def _prompt(engine: TransformersEngine, task: str) -> Prompt:
    return [{"role": "user", "content": task}] if engine.tokenizer.chat_template else f"{task}\n"


def _written(
    engine: TransformersEngine, prompts: Sequence[Prompt], new: int, temperature: float
) -> tuple[list[Completion], Account]:
    account = Account()
    requests = [
        GenerateRequest(engine.open(prompt, account), stream_keys(range(1), n), Sampling(temperature=temperature), new)
        for n, prompt in enumerate(prompts)
    ]
    return [reply[0] for reply in asyncio.run(engine.generate(requests, account))], account


def findings(far: dict[tuple[str, bool, int], list[list[float]]], budgets: Sequence[int]) -> dict[str, Any]:
    """The claims of Random Attention, compared with the KL at the same positions, text by text.

    ``further.NAME.BUDGET``: mean KL of ``random_attention`` minus that of the policy, in nats, with its 95 % interval over
    resampled texts.
    """
    found: dict[str, Any] = {}
    said = []
    for budget in budgets:
        ours = far["random_attention", True, budget]
        others = {name: further(ours, far[name, True, budget]) for name in OTHERS}
        found |= {f"further.{name}.{budget}": difference for name, difference in others.items()}
        found[f"further.random_attention_unpinned.{budget}"] = loose = further(
            ours, far["random_attention", False, budget]
        )
        worse = [name for name, difference in others.items() if difference["low"] > 0]
        better = all(difference["mean"] <= 0 for difference in others.values())
        verdict = f"refuted by {', '.join(worse)}" if worse else "reproduced" if better else "not told apart"
        collapses = "reproduced" if loose["high"] < 0 else "not told apart"
        said.append((f"{verdict} at {budget}", f"{collapses} at {budget}"))
    ranked, pinned = zip(*said, strict=True)
    return found | {
        "finding.random_pinned_at_least_snapkv_and_streaming": ", ".join(ranked),
        "finding.further_off_without_the_pin": ", ".join(pinned),
    }


def further(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean of ours minus theirs, paired by position, with an interval by resampling texts."""
    apart = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(ours, theirs, strict=True) if pair[0]]
    rng = random.Random(0)
    means = sorted(fmean(chain.from_iterable(rng.choices(apart, k=len(apart)))) for _ in range(RESAMPLED))
    low, high = means[RESAMPLED // 40], means[-1 - RESAMPLED // 40]
    return {"mean": round(fmean(chain.from_iterable(apart)), 4), "low": round(low, 4), "high": round(high, 4)}


Pair = tuple[Tensor, Tensor]


def _pairs(
    whole: Sequence[Sequence[tuple[int, Tensor]]], seen: Sequence[Sequence[tuple[int, Tensor]]], since: int
) -> list[list[Pair]]:
    """For each text, the full and the compressed distributions where the path is longer than its kept tokens."""
    return [
        [(full, compressed) for (tokens, full), (_, compressed) in zip(text, other, strict=True) if tokens > since]
        for text, other in zip(whole, seen, strict=True)
    ]


def _divergence(full: Tensor, compressed: Tensor) -> float:
    """KL(full || compressed) in nats."""
    return float((full.exp() * (full - compressed)).sum())


def _compared(texts: Sequence[Sequence[Pair]]) -> dict[str, float]:
    """The mean KL, and the share of positions with the same likeliest token."""
    pairs = list(chain.from_iterable(texts))
    return {
        "kl": round(fmean(_divergence(*pair) for pair in pairs), 4),
        "same_likeliest": round(fmean(int(full.argmax()) == int(compressed.argmax()) for full, compressed in pairs), 4),
        "positions": len(pairs),
    }


def _lossless(model: str, prompts: Sequence[Prompt], new: int) -> dict[str, Any]:
    """Lossless drafts, sampled and greedy, under every path policy, with room for little more than the longest prompt."""
    with load_engine(model) as engine:
        account = Account()
        budget = max(engine.open(prompt, account).length for prompt in prompts) + BESIDE

    def written(compress: CompressionPolicy | None) -> tuple[list[Any], Account, int]:
        with load_engine(model, compress=compress, lossless=Lossless() if compress else False) as engine:
            recorder = EngineRecorder(engine)
            replies, account = _written(engine, prompts, new, 0.8)
            greedy, other = _written(engine, prompts, new, 0.0)
            account.ledger.verified.drafted += other.ledger.verified.drafted
            account.ledger.verified.accepted += other.ledger.verified.accepted
            return [(r.text, r.tokens, r.finish) for r in (*replies, *greedy)], account, recorder.full_passes

    plain, _, passes = written(None)
    found: dict[str, Any] = {"branches": len(plain)}
    same = []
    for name, (kind, settings) in POLICIES.items():
        out, account, full_passes = written(kind(budget=budget, recent=BESIDE, **settings))
        same.append(out == plain)
        found[f"acceptance.{name}"] = round(account.ledger.verified.acceptance or 0.0, 4)
        found[f"passes_saved.{name}"] = round(1 - full_passes / passes, 4)
    return found | {"lossless_identical": all(same)}
