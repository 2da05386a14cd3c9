"""Label probabilities of the engine compared with plain forward passes over whole labels, fp32.

Twelve label sets follow three kinds of question: one that ends its line, one that ends in a space (which merges with labels), and
one that ends in a question mark. The engine reads all spellings of all labels on the KV of the path. Plain transformers computes
path, question and label anew for every label.

``max_abs_diff``: the largest difference in the probability of a label or of all other texts. ``decisions_equal``: whether the
likeliest label is always the same. Tiny random models prove the wiring. ``--model FOLDER`` adds another model, with a row for
each label set and question.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.common.report import Quick, Report

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SETS = (
    ("sure", "likely", "impossible"),
    ("correct", "incorrect"),
    ("Correct", "Incorrect"),
    ("good", "mediocre", "terrible"),
    ("solvable", "unsolvable"),
    ("certain", "unlikely"),
    ("yes", "no"),
    ("true", "false"),
    ("good", "good enough"),
    ("1", "10", "2"),
    ("A", "B", "C", "D"),
    ("not at all", "a little", "a lot"),
)
STATES = ("1 1 1", "4 4 10", "2 2 2", "5 7 8", "3 3 3", "10 14", "1 2 3")
FAMILIES = ("llama", "qwen2", "mistral", "gemma3", "gpt_neox", "gpt2")
QUICK_FAMILIES = FAMILIES[:2]


def questions(labels: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Prompt and question of each kind."""
    lines = [(state, labels[5 * n % len(labels)]) for n, state in enumerate(STATES)]
    head = "Can the numbers reach 24?\n"
    return {
        "line": (head + "".join(f"{state}\n{label}\n\n" for state, label in lines), "1 1 2\n"),
        "space": (head + "".join(f"{state}: {label}\n" for state, label in lines), "1 1 2: "),
        "mark": (head + "".join(f"{state}? {label}\n" for state, label in lines), "1 1 2?"),
    }


def tokenizer_for_labels() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer with merges learnt from prompts of some label sets, so that labels have one or several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<pad>"], show_progress=False
    )
    core.train_from_iterator((prompt for labels in SETS[:8] for prompt, _ in questions(labels).values()), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", clean_up_tokenization_spaces=False)


def differences(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, dict[str, Any]]:
    """Differences between engine and plain passes, by label set and kind of question."""
    import torch

    from benchmarks.common.plain_labels import plain_labels
    from rksc_tot.engine import TransformersEngine
    from rksc_tot.engine.base import Account, LabelRequest
    from rksc_tot.engine.tokenization.text import TextTokenizer

    stock = copy.deepcopy(model)

    @torch.inference_mode()
    def plain(ids: Sequence[int]) -> torch.Tensor:
        logits: torch.Tensor = stock(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits.double().log_softmax(-1)

    found: dict[str, dict[str, Any]] = {}

    async def ask(engine: TransformersEngine) -> None:
        account = Account()
        for labels in SETS:
            for kind, (prompt, question) in questions(labels).items():
                handle = engine.open(prompt, account)
                [scores] = await engine.label([LabelRequest(handle, question, labels)], account)
                shares, outside = plain_labels(
                    plain, tokenizer, handle.tokens, question, labels, TextTokenizer(tokenizer).continuation
                )
                if scores is None or scores.outside is None:
                    raise RuntimeError("the engine returned no result")
                read = [scores.probabilities[label] for label in labels]
                apart = [abs(a - b) for a, b in zip([*read, scores.outside], [*shares, outside], strict=True)]
                found[f"{' / '.join(labels)}, {kind}"] = {
                    "max_abs_diff": max(apart),
                    "decision_equal": read.index(max(read)) == shares.index(max(shares)),
                    "engine": " / ".join(f"{share:.3f}" for share in read),
                    "plain": " / ".join(f"{share:.3f}" for share in shares),
                    "outside": round(scores.outside, 3),
                }
                engine.release(handle)

    with TransformersEngine(model, tokenizer) as engine:
        asyncio.run(ask(engine))
    return found


def summed_up(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The worst difference, and whether all decisions are equal."""
    return {
        "max_abs_diff": max(row["max_abs_diff"] for row in rows.values()),
        "decisions_equal": all(row["decision_equal"] for row in rows.values()),
    }


def measure(quick: bool, folder: str | None) -> dict[str, Any]:
    """The figures of this benchmark."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.quality.exactness import families

    tokenizer = tokenizer_for_labels()
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for family in QUICK_FAMILIES if quick else FAMILIES:
        config = families()[family]
        config.vocab_size, config.max_position_embeddings = len(tokenizer), 512
        torch.manual_seed(0)
        tables[family] = differences(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), tokenizer)
    if folder is not None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tables["model"] = differences(model, AutoTokenizer.from_pretrained(folder))
    every = {f"{name}, {row}": figures for name, table in tables.items() for row, figures in table.items()}
    return {
        **summed_up(every),
        "by_model": {name: summed_up(table) for name, table in tables.items()},
        **({"set": tables["model"]} if folder is not None else {}),
    }


def main(
    quick: Quick = False, model: Annotated[str | None, typer.Option(help="folder of another model to measure")] = None
) -> Report:
    """Compare every family, and another model."""
    return Report(measure(quick, model))
