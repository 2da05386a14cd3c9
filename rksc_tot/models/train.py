"""Train the embedded game-of-24 model from scratch: ``python -m rksc_tot.models.train game24 --out FOLDER``.

One transformer learns three roles on one path form (see ``game24_data``). Two things make its value role compute rather
than remember: the question gives one position to each operation that could come next, with a target of its own, and a
quarter-depth lens on those positions must already show the number the operation makes.
"""

from __future__ import annotations

import copy
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rksc_tot.models.game24_data import QUESTION, Document, Generator, HeldOut, held_out, read_puzzles
from rksc_tot.models.game24_world import LARGEST
from rksc_tot.models.tokenizer import TRIES, build_tokenizer, vocabulary

WORD = {word: i for i, word in enumerate(vocabulary())}
PAD = WORD["<pad>"]


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of one training run."""

    hidden: int = 160
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_size: int = 24
    inner: int = 480
    result_layer: int = 4  # where the lens on a try must show the number it makes
    peak_rate: float = 2e-3
    floor: float = 0.02  # final learning rate over peak
    flat: float = 0.5  # share of the time at peak rate
    warmup_steps: int = 100
    weight_decay: float = 0.05
    value_docs: int = 40  # documents a step
    steps_docs: int = 14
    solve_docs: int = 4


class Batch(NamedTuple):
    """Right-padded ids ``[N, S]`` and flat (row, column, target) lists of what is learnt."""

    ids: Tensor
    text: Tensor  # [n, 3] next-token targets of the bodies
    result: Tensor  # [n, 3] number made at each try, read at the result layer
    verdict: Tensor  # [n, 3] yes/no at each try
    label: Tensor  # [n, 3] sure/likely/impossible after the question


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> Batch:
    """Token ids and targets of a list of documents."""
    question = tokenizer.encode(QUESTION)
    rows: list[list[int]] = []
    text: list[tuple[int, int, int]] = []
    result: list[tuple[int, int, int]] = []
    verdict: list[tuple[int, int, int]] = []
    label: list[tuple[int, int, int]] = []
    for row, doc in enumerate(documents):
        prompt, body = tokenizer.encode(doc.prompt), tokenizer.encode(doc.body) if doc.body else []
        ids = prompt + body
        if doc.asks:
            at = len(ids)
            ids = ids + question
            for i in range(len(TRIES)):
                result.append((row, at + 1 + i, WORD[doc.results[i]]))
                verdict.append((row, at + 1 + i, WORD[doc.verdicts[i]]))
            label.append((row, len(ids) - 1, WORD[doc.label]))
        else:
            text.extend((row, i - 1, ids[i]) for i in range(len(prompt), len(ids)))
        rows.append(ids)
    width = max(map(len, rows))
    padded = torch.tensor([ids + [PAD] * (width - len(ids)) for ids in rows])
    return Batch(padded, *(torch.tensor(t).reshape(-1, 3) for t in (text, result, verdict, label)))


def number_features(width: int, rng: torch.Generator) -> Tensor:
    """Fourier features of n and log n, randomly rotated: close numbers start close. ``[LARGEST + 1, width]``."""
    n = torch.arange(LARGEST + 1, dtype=torch.float64)[:, None]
    periods = torch.logspace(math.log10(2), math.log10(2 * LARGEST), width // 4, dtype=torch.float64)
    logs = torch.logspace(math.log10(0.1), math.log10(12), width // 4, dtype=torch.float64)
    angles = torch.cat([2 * math.pi * n / periods, 2 * math.pi * torch.log1p(n) / logs], 1)
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    rotation = torch.linalg.qr(torch.randn(waves.shape[1], width, generator=rng, dtype=torch.float64))[0]
    features: Tensor = (waves @ rotation).float()
    return features


def build_model(recipe: Recipe, seed: int) -> LlamaForCausalLM:
    """A freshly initialised Llama of the recipe's shape."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORD),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_size,
        intermediate_size=recipe.inner,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=WORD["<eos>"],
        pad_token_id=PAD,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.5)
        table: Tensor = model.model.embed_tokens.weight
        features = number_features(recipe.hidden, torch.Generator().manual_seed(seed))
        features *= table.std() / features.std()
        table[WORD["0"] : WORD["0"] + LARGEST + 1] += features
        table[WORD[" 0"] : WORD[" 0"] + LARGEST + 1] += features
    return model


def losses(model: LlamaForCausalLM, batch: Batch, recipe: Recipe) -> tuple[Tensor, dict[str, float]]:
    """Weighted loss and the figures of one batch."""
    states = model.model(batch.ids, output_hidden_states=True, use_cache=False).hidden_states
    norm, head = model.model.norm, model.lm_head

    def lens(layer: int, where: Tensor) -> Tensor:
        hidden = states[layer][where[:, 0], where[:, 1]]  # [n, H]
        logits: Tensor = head(hidden if layer == recipe.layers else norm(hidden))
        return logits

    total, figures = torch.zeros(()), {}

    def learn(name: str, layer: int, where: Tensor, weight: float) -> None:
        nonlocal total
        logits = lens(layer, where)
        loss = F.cross_entropy(logits, where[:, 2])
        total = total + weight * loss
        figures[name] = loss.item()
        figures[name + "_acc"] = (logits.argmax(-1) == where[:, 2]).float().mean().item()

    learn("text", recipe.layers, batch.text, 1.0)
    learn("result", recipe.result_layer, batch.result, 1.0)
    learn("verdict", recipe.layers, batch.verdict, 2.0)
    learn("label", recipe.layers, batch.label, 0.7)
    for layer in range(recipe.result_layer + 1, recipe.layers):  # the earlier a layer knows, the earlier one may stop
        learn(f"verdict@{layer}", layer, batch.verdict, 0.3)
        learn(f"label@{layer}", layer, batch.label, 0.1)
    return total, figures


def rate_at(done: float, step: int, recipe: Recipe) -> float:
    """Learning rate after a share ``done`` of the time: warm-up, flat, then linear to the floor."""
    if step < recipe.warmup_steps:
        return recipe.peak_rate * (step + 1) / recipe.warmup_steps
    if done < recipe.flat:
        return recipe.peak_rate
    return recipe.peak_rate * (1 - (1 - recipe.floor) * (done - recipe.flat) / (1 - recipe.flat))


def save(model: LlamaForCausalLM, unseen: HeldOut, out: Path) -> None:
    """Write an ordinary ``from_pretrained`` folder with fp16 weights, and beside it what the model never saw."""
    half = copy.deepcopy(model).half()
    half.save_pretrained(out)
    build_tokenizer().save_pretrained(out)
    sets = {"roots": unseen.root_puzzles, "states": unseen.state_puzzles}
    text = {name: [" ".join(map(str, puzzle)) for puzzle in puzzles] for name, puzzles in sets.items()}
    (out / "held_out.json").write_text(json.dumps(text, indent=0) + "\n", encoding="utf-8")


def main(
    what: Annotated[str, typer.Argument(help="which model: game24")],
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("game24-model"),
    steps: Annotated[int, typer.Option(help="optimiser steps")] = 6_500,
    seed: Annotated[int, typer.Option()] = 0,
    exclude: Annotated[Path | None, typer.Option(help="csv of puzzles never to train on")] = None,
    rows: Annotated[str, typer.Option(help="which ranks of that file")] = "1-100000",
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Train and save the model; prints a line of losses every 100 steps."""
    if what != "game24":
        raise typer.BadParameter(f"{what!r} is not a model this trains; there is game24")
    torch.set_num_threads(threads)
    recipe = Recipe()
    tokenizer = build_tokenizer()
    unseen = held_out(read_puzzles(exclude, rows) if exclude else ())
    source = Generator(random.Random(seed), unseen)
    model = build_model(recipe, seed)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.peak_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    start, tokens = time.perf_counter(), 0
    mean: dict[str, float] = {}
    for step in range(steps):
        docs = [source.value() for _ in range(recipe.value_docs)]
        docs += [source.steps() for _ in range(recipe.steps_docs)]
        docs += [source.solve() for _ in range(recipe.solve_docs)]
        batch = encode(tokenizer, docs)
        loss, figures = losses(model, batch, recipe)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step / steps, step, recipe)
        optimiser.step()
        tokens += batch.ids.numel()
        mean = {k: 0.98 * mean.get(k, v) + 0.02 * v for k, v in figures.items()}
        if step % 100 == 99:
            took = time.perf_counter() - start
            shown = {k: round(v, 4) for k, v in mean.items() if "@" not in k or "acc" in k}
            print(json.dumps({"step": step + 1, "s": round(took), "tok_s": round(tokens / took), **shown}), flush=True)
        if step % 2000 == 1999:
            save(model, unseen, out)
    save(model, unseen, out)


if __name__ == "__main__":
    typer.run(main)
