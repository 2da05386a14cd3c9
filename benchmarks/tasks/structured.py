"""Thoughts under three JSON schemas: how many are malformed, with the schema as a constraint and without; and what it costs.

The model is asked for a JSON value of each schema about several topics. Each thought is drawn twice from the same random stream:
under the constraint, and freely up to the end of the model's text.

* ``n``: thoughts under a constraint that ended. ``truncated``: others, which a search rejects.
* ``malformed``: thoughts of these ``n`` that are not JSON or not of their schema
* ``malformed_unconstrained``: the same of as many free thoughts; ``unconstrained``: their number. Text around a code block is
  forgiven.
* ``overhead_ms_per_token``: CPU time of the grammar, of its mask and of drawing under the mask, less that of drawing freely
* ``ms_per_token``, ``ms_per_token_unconstrained``: wall time of both runs, for comparison

Without ``--model FOLDER`` the model is tiny and random, which proves the wiring.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from benchmarks.common.report import Quick, Report

if TYPE_CHECKING:
    from rksc_tot.core.task import Constraint
    from rksc_tot.engine import TransformersEngine
    from rksc_tot.engine.base import Completion

SCHEMAS: dict[str, dict[str, Any]] = {
    "step": {
        "type": "object",
        "properties": {
            "operation": {"enum": ["add", "subtract", "multiply", "divide"]},
            "left": {"type": "integer", "minimum": 0, "maximum": 999},
            "right": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["operation", "left", "right"],
        "additionalProperties": False,
    },
    "review": {
        "type": "object",
        "properties": {
            "summary": {"type": "string", "minLength": 1, "maxLength": 40},
            "score": {"type": "number", "minimum": 0, "maximum": 10},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        },
        "required": ["summary", "score", "tags"],
        "additionalProperties": False,
    },
    "choice": {
        "anyOf": [
            {"const": None},
            {
                "type": "object",
                "properties": {"name": {"enum": ["naïve", "日本", "😀"]}, "sure": {"type": "boolean"}},
                "required": ["name", "sure"],
                "additionalProperties": False,
            },
        ]
    },
}
TOPICS = ("a walk", "the price of apples", "a long sum", "tea", "rain in Osaka", "two trains", "a recipe", "chess")
BRANCHES = 8  # thoughts of one request
MOST = 160  # tokens of a thought
REPEATS = 5


class ThoughtTexts(NamedTuple):
    """Completions of one schema, the seconds that they took, and the tokens sampled."""

    completions: list[Completion]
    seconds: float
    tokens: int


def tiny_engine() -> TransformersEngine:
    """A tiny random model with a byte-level tokenizer, whose end of text is a token."""
    from benchmarks.common.random_models import random_model
    from benchmarks.quality.labels import tokenizer_for_labels
    from rksc_tot.engine import TransformersEngine

    tokenizer = tokenizer_for_labels()
    tokenizer.eos_token = "<pad>"
    return TransformersEngine(random_model("tiny"), tokenizer, name="tiny random")


async def write(engine: TransformersEngine, name: str, constraint: Constraint | None, wanted: int) -> ThoughtTexts:
    """Draw thoughts of a schema until ``wanted`` have ended; free thoughts until ``wanted`` are drawn."""
    from rksc_tot.core.seeds import stream_keys
    from rksc_tot.engine.base import Account, GenerateRequest, Sampling

    account, found, ended, round_ = Account(), [], 0, 0
    chat = engine.tokenizer.chat_template is not None
    begun = time.perf_counter()
    while ended < wanted and round_ < 4 * wanted:
        requests = []
        for topic in TOPICS:
            text = f"Write one JSON value about {topic} with this JSON schema: {json.dumps(SCHEMAS[name])}\nOnly JSON."
            handle = engine.open([{"role": "user", "content": text}] if chat else text + "\n", account)
            keys = stream_keys(range(BRANCHES), name, topic, round_)
            requests.append(GenerateRequest(handle, keys, Sampling(), MOST, constraint=constraint))
        replies = await engine.generate(requests, account)
        drawn = [completion for reply in replies for completion in reply for _ in completion.branches]
        for handle in [request.handle for request in requests] + [c.handle for reply in replies for c in reply]:
            engine.release(handle)
        for completion in drawn:
            if ended < wanted:
                found.append(completion)
                ended += constraint is None or completion.finish in ("stop", "eos")
        round_ += 1
    return ThoughtTexts(found, time.perf_counter() - begun, account.ledger.tokens_sampled)


def malformed(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is not JSON of a schema. Text around a code block is ignored."""
    import jsonschema

    inside = text.split("```")[1].removeprefix("json") if text.count("```") >= 2 else text
    try:
        jsonschema.validate(json.loads(inside), schema)
    except (ValueError, jsonschema.ValidationError, RecursionError):
        return True
    return False


def overhead(engine: TransformersEngine, constraint: Constraint, completions: list[Completion]) -> tuple[float, int]:
    """CPU seconds that a constraint adds to drawing the tokens of completions again, and the number of tokens."""
    import torch

    from rksc_tot.engine.base import Sampling
    from rksc_tot.engine.jobs.sampler import Draws, Logits, sample
    from rksc_tot.engine.tokenization.grammar import Grammars
    from rksc_tot.engine.tokenization.text import TextTokenizer

    size = engine.model.get_input_embeddings().weight.shape[0]
    grammars = Grammars(TextTokenizer(engine.tokenizer), size, frozenset({engine.tokenizer.eos_token_id}))
    start = grammars.matcher(constraint, MOST)
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(0))
    uniform, added, tokens = np.array([0.5]), 0.0, 0
    for completion in completions:
        state = start.fork()
        for token in completion.tokens:
            table = Logits(logits)
            began = time.process_time()
            sample(table, [Draws([0], uniform, Sampling(), [state.allowed])])
            table.log_mass(0, state.allowed)
            state.push(token)
            drawn = time.process_time()
            sample(Logits(logits), [Draws([0], uniform, Sampling())])
            added += (drawn - began) - (time.process_time() - drawn)
            tokens += 1
            if state.complete or state.stuck:
                break
    return added, tokens


def measure(engine: TransformersEngine, thoughts: int) -> dict[str, Any]:
    """The figures of one model."""
    from rksc_tot.core.task import json_schema

    each = {name: thoughts // len(SCHEMAS) + (at < thoughts % len(SCHEMAS)) for at, name in enumerate(SCHEMAS)}
    figures: dict[str, Any] = {}
    for name, schema in SCHEMAS.items():
        constraint = json_schema(schema)
        made = asyncio.run(write(engine, name, constraint, each[name]))
        free = asyncio.run(write(engine, name, None, each[name]))
        ended = [completion for completion in made.completions if completion.finish in ("stop", "eos")]
        added, tokens = overhead(engine, constraint, ended[:REPEATS])
        figures[name] = {
            "n": len(ended),
            "truncated": len(made.completions) - len(ended),
            "malformed": sum(malformed(completion.text, schema) for completion in ended),
            "unconstrained": len(free.completions),
            "malformed_unconstrained": sum(malformed(completion.text, schema) for completion in free.completions),
            "overhead_ms_per_token": 1000 * added / tokens,
            "ms_per_token": 1000 * made.seconds / made.tokens,
            "ms_per_token_unconstrained": 1000 * free.seconds / free.tokens,
        }
    counts = ("n", "truncated", "malformed", "unconstrained", "malformed_unconstrained")
    total = {key: sum(part[key] for part in figures.values()) for key in counts}
    times = ("overhead_ms_per_token", "ms_per_token", "ms_per_token_unconstrained")
    mean = {key: sum(part[key] for part in figures.values()) / len(figures) for key in times}
    return {**total, **mean, "by_schema": figures}


def main(
    quick: Quick = False,
    model: Annotated[str | None, typer.Option(help="folder of a model instead of the tiny random one")] = None,
    thoughts: Annotated[int, typer.Option(min=3, help="thoughts under the three schemas together")] = 500,
) -> Report:
    """Draw thoughts and count."""
    from rksc_tot import load_engine

    with tiny_engine() if model is None else load_engine(model) as engine:
        return Report(measure(engine, min(thoughts, 60) if quick else thoughts), {"model": engine.name.split("/")[-1]})
