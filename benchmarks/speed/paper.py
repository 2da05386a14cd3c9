"""The table of the paper: eight branches after a prompt, each verified, compared with plain transformers that share less.

``python -m benchmarks paper [--json] [--quick] [--shape NAME] [--device cuda] [--dtype bfloat16]``.

* (a): no sharing
* (b1): branches share the prompt's KV; verification computes prompt, branch and question again
* (b2): branches share the prompt's KV; verification continues the branches' KV
* (c): this engine, exact
* (c_stock): (c) with torch's linear layers, like the baselines, to measure sharing alone; equals (c) if the engine packs no
  layers (``packed``)
* (d): this engine with all early decisions that a calibration on this model accepts

Weights are random. At temperature 1, branches differ from the first token on, so equal branches give no gain. Labels have no
meaning, so a calibration accepts little (``accepted``: which of exit, skip and rivals).

``x_over_y.N``: time of x over time of y for a prompt of N tokens, over all rounds; ``mean.``: the mean over N; ``low``, ``high``:
95 % by bootstrap over rounds, each of which runs all conditions in rotating order. ``short.``: 8 new tokens instead of 32;
``--quick`` halves both. ``same_text``: whether every branch of b1, b2 and c has the same text as in (a). ``verdict_difference``:
the largest difference in the probability of a label.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from typing import Annotated, NamedTuple

import numpy as np
import typer
from transformers import PreTrainedModel

from benchmarks.common.baselines import LABELS, SAMPLING, Condition, Plain, Replies, Work
from benchmarks.common.random_models import SHAPES, random_model, word_tokenizer
from benchmarks.common.report import Quick, Report
from rksc_tot import Question, calibrate, function_task
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop, VerifySkip, confidence
from rksc_tot.strategies import BFS

BRANCHES = 8
QUESTION_TOKENS = 16
NEW = {"": 32, "short.": 8}
PROMPTS = {"": (256, 512, 1024), "short.": (256,)}
ROUNDS = 5
RESAMPLES = 2000
KV_BYTES = 8 << 30
CALIBRATION_PROMPT, CALIBRATION_PROMPTS, DELTA = 32, 36, 0.1  # the smallest number of prompts for a test at this δ
OURS = {"c", "c_stock", "d"}

Figures = dict[str, float | bool]


class Rules(NamedTuple):
    """The rules for early decisions."""

    exit: ExitRule | None = None
    skip: VerifySkip | None = None
    rivals: RivalStop | None = None


def work(prompt: int, new: int, vocabulary: int) -> Work:
    """A random prompt of ``prompt`` tokens, and a random question."""
    rng = random.Random(prompt)

    def text(count: int) -> str:
        return "".join(f" w{rng.randrange(vocabulary - 1 - len(LABELS))}" for _ in range(count))

    return Work(text(prompt), text(QUESTION_TOKENS), stream_keys(range(BRANCHES), "paper", prompt), new)


def plain_and_engine(shape: str, device: str = "cpu", dtype: str = "float32") -> tuple[Plain, TransformersEngine]:
    """Plain transformers and an engine on the same random weights, with separate modules."""
    model, tokenizer = random_model(shape, device, dtype), word_tokenizer(SHAPES[shape]["vocab_size"])
    other = shared_copy(model)
    engine = TransformersEngine(model, tokenizer, name="random weights", kv_budget=KV_BYTES)
    return Plain(other, tokenizer), engine


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules that shares the weights."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def conditions(plain: Plain, engine: TransformersEngine, rules: Rules) -> dict[str, Condition]:
    """Each condition by its name."""
    stock = TransformersEngine(shared_copy(plain.model), plain.tokenizer, kv_budget=KV_BYTES, pack=False)
    return {
        "c_stock": lambda task: asyncio.run(ours(stock, task, Rules())),
        "a": plain.recompute,
        "b1": plain.prefix_cache,
        "b2": plain.continued_cache,
        "c": lambda task: asyncio.run(ours(engine, task, Rules())),
        "d": lambda task: asyncio.run(ours(engine, task, rules)),
    }


def accepted(engine: TransformersEngine) -> Rules:
    """The rules that pass a calibration on this model, with prompts and questions like those of the table."""
    if not engine.layers:  # the model allows no reads between its layers in this precision
        return Rules()
    vocabulary = engine.tokenizer.vocab_size
    question = work(CALIBRATION_PROMPT, 1, vocabulary).question
    task = function_task(
        prompt=lambda prompt: prompt,
        is_solution=lambda prompt, path: len(path) == 1,
        question=lambda prompt, path: Question(question, {LABELS[0]: 1.0, LABELS[1]: 0.0}),
        max_thought_tokens=4,
        accept_truncated=True,
    )
    prompts = [work(CALIBRATION_PROMPT + n, 1, vocabulary).prompt for n in range(CALIBRATION_PROMPTS)]
    found = calibrate(task, prompts, engine=engine, strategy=BFS(b=1, k=2), delta=DELTA)
    return Rules(found.exit.rule, found.skip.rule, found.rivals.rule)


async def ours(engine: TransformersEngine, task: Work, rules: Rules) -> Replies:
    """(c) and (d): branches and verification by the engine, whose cache is empty before and after."""
    account = Account()
    handle = engine.open(task.prompt, account)
    wanted = GenerateRequest(handle, task.streams, SAMPLING, task.new, rivals=rules.rivals)
    [written] = await engine.generate([wanted], account)
    verdicts = [confidence(completion.logprobs) for completion in written]
    if not (rules.skip and rules.skip.decisive(verdicts)):
        questions = [LabelRequest(c.handle, task.question, LABELS, exit=rules.exit) for c in written]
        scores = await engine.label(questions, account)
        verdicts = [score.probabilities[LABELS[0]] for score in scores if score is not None]
    by_branch: dict[int, tuple[str, float]] = {}
    for completion, verdict in zip(written, verdicts, strict=True):
        by_branch |= dict.fromkeys(completion.branches, (completion.text, verdict))
    for given in (handle, *(completion.handle for completion in written)):
        engine.release(given)
    engine.clear()
    replies = [by_branch[branch] for branch in range(len(task.streams))]
    return Replies([text for text, _ in replies], [verdict for _, verdict in replies])


def compare(found: dict[str, Condition], tasks: dict[int, Work], rounds: int, prefix: str = "") -> Figures:
    """All figures of one set of tasks, by length of the prompt."""
    names = list(found)
    seconds = {name: np.zeros((len(tasks), rounds)) for name in names}
    same, difference = True, 0.0
    for row, task in enumerate(tasks.values()):
        for turn in range(rounds):
            replies: dict[str, Replies] = {}
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = time.perf_counter()
                replies[name] = found[name](task)
                seconds[name][row, turn] = time.perf_counter() - start
            for reply in (replies[name] for name in names if name != "d"):
                same &= reply.texts == replies["a"].texts
                pairs = zip(reply.verdicts, replies["a"].verdicts, strict=True)
                difference = max(difference, *(abs(x - y) for x, y in pairs))
    figures: Figures = {f"{prefix}same_text": same, f"{prefix}verdict_difference": difference}
    for under in sorted(found.keys() & OURS):
        for over in (name for name in names if name not in OURS):
            name = f"{over}_over_{under}"
            for row, length in enumerate(tasks):
                figures |= ratio(f"{prefix}{name}.{length}", seconds[over][[row]], seconds[under][[row]])
            figures |= ratio(f"{prefix}mean.{name}", seconds[over], seconds[under])
    for name in names:
        for length, times in zip(tasks, seconds[name], strict=True):
            figures[f"{prefix}seconds.{name}.{length}"] = round(float(np.median(times)), 3)
    return figures


def ratio(name: str, over: np.ndarray, under: np.ndarray) -> Figures:
    """Ratio of times ``[prompts, rounds]``: over all rounds, its mean over prompts, and the bootstrap interval."""
    prompts, rounds = over.shape
    rows = np.arange(prompts)[:, None]

    def of(chosen: np.ndarray) -> np.ndarray:  # [..., prompts, rounds] which rounds
        quotients = over[rows, chosen].sum(-1) / under[rows, chosen].sum(-1)
        return np.asarray(quotients.mean(-1))

    resampled = of(np.random.default_rng(0).integers(rounds, size=(RESAMPLES, prompts, rounds)))
    low, high = np.quantile(resampled, [0.025, 0.975])
    whole = of(np.arange(rounds)[None])
    return {name: round(float(whole), 3), f"{name}.low": round(float(low), 3), f"{name}.high": round(float(high), 3)}


def measure(shape: str, device: str, dtype: str, rounds: int, quick: bool) -> Figures:
    """The figures of this benchmark."""
    vocabulary = SHAPES[shape]["vocab_size"]
    plain, engine = plain_and_engine(shape, device, dtype)
    with engine:
        rules = accepted(engine)
        found = conditions(plain, engine, rules)
        for condition in found.values():  # warm up
            condition(work(64, 3, vocabulary))
        figures: Figures = {"accepted": sum(rule is not None for rule in rules), "packed": engine.forward.packed}
        for prefix, new in NEW.items():
            lengths = (64,) if quick else PROMPTS[prefix]
            tasks = {length: work(length, new // 2 if quick else new, vocabulary) for length in lengths}
            figures |= compare(found, tasks, 2 if quick else rounds, prefix)
    return figures


def main(
    quick: Quick = False,
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "smollm2-135m",
    device: Annotated[str, typer.Option(help="a torch device")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    rounds: Annotated[int, typer.Option(min=1, help="number of runs of every condition")] = ROUNDS,
) -> Report:
    """Compare the conditions."""
    return Report(measure(shape, device, dtype, rounds, quick), {"shape": shape, "device": device, "dtype": dtype})
