"""Steps that are scored as they are written, against whole sequences."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.random_models import SHAPES
from benchmarks.common.reward_models import KINDS, SHAPE, save_reward_model
from benchmarks.quality.prm.official import official_scores
from rksc_tot.engine.base import STEP_LABELS, Account, LabelRequest
from rksc_tot.engine.reward.engine import RewardEngine
from rksc_tot.engine.reward.load import load_reward_engine

PROBLEM = "A tank holds 250 litres and loses 3 litres an hour. What is left after 2 days?"
STEPS = ["2 days are 48 hours.", "It loses 3 * 48 = 144 litres.", "250 - 144 = 106", "The answer is 106 litres."]
PROMPT, COUNT, LENGTH = 256, 8, 16  # tokens of the prompt; steps, and tokens of each with its separator


def differences() -> dict[str, float]:
    """By kind, the largest difference between incremental scores and those of the makers' layout in one pass."""
    found = {}
    with tempfile.TemporaryDirectory() as home:
        for kind in KINDS:
            folder = save_reward_model(kind, Path(home) / kind)
            with load_reward_engine(folder) as engine:
                scores = asyncio.run(scored(engine, PROBLEM, STEPS, Account()))
            expected = official_scores(kind, folder, PROBLEM, STEPS)
            found[kind] = max(abs(a - b) for a, b in zip(scores, expected, strict=True))
    return found


async def scored(engine: RewardEngine, problem: str, steps: list[str], account: Account) -> list[float]:
    """P(correct) of each step, one call a step."""
    handles = [engine.open(problem, account)]
    found = []
    for step in steps:
        handles.append(engine.extend(handles[-1], step))
        [reply] = await engine.label([LabelRequest(handles[-1], "", STEP_LABELS)], account)
        found.append(reply.probabilities["correct"] if reply is not None else float("nan"))
    for handle in handles:
        engine.release(handle)
    return found


def cost(quick: bool) -> dict[str, Any]:
    """Tokens and seconds for a path of eight steps, scored as it is written and each time as a whole."""
    with tempfile.TemporaryDirectory() as home:
        shape = SHAPE if quick else {**SHAPE, **SHAPES["smollm2-135m"]}
        folder = save_reward_model("token_classes", Path(home), shape)
        with load_reward_engine(folder) as engine:
            problem, steps = "p" * PROMPT, ["abcdefgh"[n] * (LENGTH - 1) for n in range(COUNT)]
            ids = engine.layout.opening(problem)
            account = Account()
            start = time.perf_counter()
            found = asyncio.run(scored(engine, problem, steps, account))
            incremental = time.perf_counter() - start
            whole, expected, tokens = 0.0, [], 0
            for n, step in enumerate(steps):
                ids = ids + engine.layout.step(step, n == 0)
                tokens += len(ids)
                start = time.perf_counter()
                with torch.inference_mode():
                    logits = engine.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                whole += time.perf_counter() - start
                expected.append(float(logits.double().softmax(-1)[1]))
    if len(ids) != PROMPT + COUNT * LENGTH:
        raise RuntimeError(f"the path has {len(ids)} tokens")
    return {
        "token_ratio_depth8": round(account.ledger.verifier_tokens / tokens, 4),
        "tokens_incremental": account.ledger.verifier_tokens,
        "tokens_whole": tokens,
        "seconds_incremental": round(incremental, 3),
        "seconds_whole": round(whole, 3),
        "max_abs_diff_depth8": max(abs(a - b) for a, b in zip(found, expected, strict=True)),
    }
