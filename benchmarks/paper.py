"""The paper's table: eight branches after a shared prompt, every branch verified, against engines that share less.

``python -m benchmarks.paper [--json] [--quick] [--shape NAME] [--device cuda] [--dtype bfloat16]``. Conditions: (a) nothing is
shared; (b1) the prompt's KV is shared by the branches, verification reads everything anew; (b2) verification goes on with the
branches' KV; (c) this engine with nothing approximate. Weights are random: at temperature 1 branches part at
once, so none of the gains comes from branches that write the same. A figure ``x_over_y.N`` is the time of x over the time
of y for a prompt of N tokens, all rounds together; ``low`` and ``high`` bound it at 95 %, by bootstrap over rounds.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from benchmarks.baselines import LABELS, SAMPLING, Condition, Outcome, Plain, Work
from benchmarks.report import environment, flat
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest
from rksc_tot.engine.transformers_engine import TransformersEngine
from rksc_tot.seeds import stream_keys

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True, "initializer_range": 0.04,
    },
    "7b": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True, "initializer_range": 0.1,
    },
}  # fmt: skip
BRANCHES = 8
QUESTION_TOKENS = 16
ROUNDS = 5
RESAMPLES = 2000


def random_model(shape: str, device: str, dtype: str) -> PreTrainedModel:
    """A Llama of that shape with random weights, made where it will run."""
    config = LlamaConfig(max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, **SHAPES[shape])
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return model.eval()


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Every token is a word with its space in front, so that a text of n words has n tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = ["<unk>", *(f" {label}" for label in LABELS)]
    words += [f" w{n}" for n in range(vocabulary - len(words))]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" \S+"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=False)


def work(length: int, new: int, vocabulary: int) -> Work:
    """A random prompt of ``length`` tokens and a random question."""
    rng = random.Random(length)

    def text(count: int) -> str:
        return "".join(f" w{rng.randrange(vocabulary - 8)}" for _ in range(count))

    return Work(text(length), text(QUESTION_TOKENS), stream_keys(range(BRANCHES), "paper", length), new)


def conditions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> dict[str, Condition]:
    """Each condition by its letter. They share the weights, but not the attention implementation."""
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    plain = Plain(twin, tokenizer)
    engine = TransformersEngine(model, tokenizer, name="random weights", kv_budget=8 << 30)
    return {
        "a": plain.recompute,
        "b1": plain.prefix_cache,
        "b2": plain.continued_cache,
        "c": lambda task: asyncio.run(ours(engine, task)),
    }


async def ours(engine: TransformersEngine, task: Work) -> Outcome:
    """Branches and verification by the engine, which starts cold and is left cold."""
    account = Account()
    handle = engine.open(task.prompt, account)
    [completions] = await engine.generate([GenerateRequest(handle, task.streams, SAMPLING, task.new)], account)
    scores = await engine.label([LabelRequest(c.handle, task.question, LABELS) for c in completions], account)
    texts, verdicts = [""] * len(task.streams), [0.0] * len(task.streams)
    for completion, score in zip(completions, scores, strict=True):
        engine.release(completion.handle)
        for branch in completion.branches:
            texts[branch], verdicts[branch] = completion.text, score.probabilities[LABELS[0]] if score else 0.0
    engine.release(handle)
    engine.clear()
    return Outcome(texts, verdicts)


def ratio(over: np.ndarray, under: np.ndarray) -> dict[str, float]:
    """Mean over prompts of time over time, ``[prompts, rounds]`` each, with its bootstrap interval."""
    rng = np.random.default_rng(0)
    prompts, rounds = over.shape

    def of(chosen: np.ndarray) -> np.ndarray:  # [..., prompts, rounds] indices
        rows = np.arange(prompts)[:, None]
        quotient: np.ndarray = (over[rows, chosen].sum(-1) / under[rows, chosen].sum(-1)).mean(-1)
        return quotient

    resampled = of(rng.integers(rounds, size=(RESAMPLES, prompts, rounds)))
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {"": float(of(np.arange(rounds)[None])), "low": float(low), "high": float(high)}


def compare(found: dict[str, Condition], lengths: list[int], new: int, rounds: int, vocabulary: int) -> dict[str, Any]:
    """All figures for one number of new tokens."""
    seconds = {name: np.zeros((len(lengths), rounds)) for name in found}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in found}
    names = list(found)
    for row, length in enumerate(lengths):
        task = work(length, new, vocabulary)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = time.perf_counter()
                outcome = found[name](task)
                seconds[name][row, turn] = time.perf_counter() - start
                if turn == 0:
                    outcomes[name].append(outcome)
    exact = [name for name in names if name != "d"]
    figures: dict[str, Any] = {
        "same_text": all(outcomes[n][row].texts == outcomes["a"][row].texts for n in exact for row in range(len(lengths))),
        "verdict_difference": max(
            abs(x - y)
            for n in exact
            for one, other in zip(outcomes[n], outcomes["a"], strict=True)
            for x, y in zip(one.verdicts, other.verdicts, strict=True)
        ),
        "mean": {},
    }
    for name in names:
        figures[f"seconds.{name}"] = {
            str(n): round(float(np.median(s)), 3) for n, s in zip(lengths, seconds[name], strict=True)
        }
    for under in ("c", "d"):
        for over in ("a", "b1", "b2"):
            if under in found:
                figures[f"{over}_over_{under}"] = {
                    str(n): ratio(seconds[over][[row]], seconds[under][[row]]) for row, n in enumerate(lengths)
                }
                figures["mean"][f"{over}_over_{under}"] = ratio(seconds[over], seconds[under])
    return figures


def main(
    json_only: Annotated[bool, typer.Option("--json", help="print only the JSON object")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="finish within a minute")] = False,
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "smollm2-135m",
    device: Annotated[str, typer.Option(help="a torch device")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
) -> None:
    """Compare the conditions."""
    model, tokenizer = random_model(shape, device, dtype), word_tokenizer(SHAPES[shape]["vocab_size"])
    found = conditions(model, tokenizer)
    vocabulary = SHAPES[shape]["vocab_size"]
    lengths, rounds = ([128], 2) if quick else ([256, 512, 1024], ROUNDS)
    for condition in found.values():
        condition(work(64, 2, vocabulary))
    figures = compare(found, lengths, 32, rounds, vocabulary)
    figures["short"] = compare(found, lengths, 8, rounds, vocabulary)
    figures = flat(figures)
    figures = {key.removesuffix("."): value for key, value in figures.items()}
    if not json_only:
        for key, value in figures.items():
            print(f"{key:40} {value}")
    print(json.dumps({"name": "paper", "figures": figures, "environment": environment()}))


if __name__ == "__main__":
    typer.run(main)
