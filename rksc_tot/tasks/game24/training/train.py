"""Train the embedded game-of-24 model from scratch: ``python -m rksc_tot.tasks.game24.training.train game24 --out FOLDER``.

One transformer learns three roles on paths of one form (see ``documents``). The value question has one position for each
possible operation, and each position has targets of its own: early layers predict the result of the operation, later layers
whether 24 can be reached after it. These targets make the model compute values. It still memorises labels in a long training,
so a short second stage makes it derive the label of three numbers from those positions (see ``read``).
"""

from __future__ import annotations

import copy
import json
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from rksc_tot.tasks.game24.puzzles import read_puzzles
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from rksc_tot.tasks.game24.training.batches import PAD, WORD, Batch, Batches
from rksc_tot.tasks.game24.training.documents import HeldOut, held_out
from rksc_tot.tasks.game24.world import LARGEST


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of one training run."""

    hidden: int = 160
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_size: int = 24
    inner: int = 800
    result_layers: tuple[int, ...] = (2, 3)  # layers whose lens predicts the result of a try
    result_weight: float = 0.7
    verdict_from: int = 2  # first layer whose lens predicts whether 24 can be reached after a try
    compute_from: int = (
        1  # first layer whose lens predicts the label of three numbers; all layers predict that of fewer
    )
    lens_weight: float = 0.4  # weight of a verdict or label below the last layer; there they weigh 2 and 0.7
    peak_rate: float = 2e-3
    floor: float = 0.02  # final learning rate as a share of the peak
    flat: float = 0.4  # share of the run at the peak rate
    warmup_steps: int = 200
    weight_decay: float = 0.05
    documents: int = 290  # documents a step

    def gathering(self) -> Recipe:
        """The recipe of the second stage."""
        return replace(self, verdict_from=4, compute_from=4, peak_rate=6e-4, documents=min(58, self.documents))


GATHERING_STEPS = 172  # too few to memorise new labels


def number_features(width: int, rng: torch.Generator) -> Tensor:
    """Randomly rotated Fourier features of n and log n ``[LARGEST + 1, width]``: close numbers have close features."""
    n = torch.arange(LARGEST + 1, dtype=torch.float64)[:, None]
    periods = torch.logspace(math.log10(2), math.log10(2 * LARGEST), width // 4, dtype=torch.float64)
    logs = torch.logspace(math.log10(0.1), math.log10(12), width // 4, dtype=torch.float64)
    angles = torch.cat([2 * math.pi * n / periods, 2 * math.pi * torch.log1p(n) / logs], 1)
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    rotation = torch.linalg.qr(torch.randn(waves.shape[1], width, generator=rng, dtype=torch.float64))[0]
    features: Tensor = (waves @ rotation).float()
    return features


def build_model(recipe: Recipe, seed: int) -> LlamaForCausalLM:
    """An initialised Llama with the shape of the recipe."""
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


class Reading(NamedTuple):
    """Logits of one layer at some places, with their targets."""

    weight: float
    logits: Tensor  # [n, V]
    targets: Tensor  # [n]

    def loss(self) -> Tensor:
        """Weighted mean cross-entropy."""
        return self.weight * F.cross_entropy(self.logits, self.targets)

    def accuracy(self) -> float:
        """Share of places where the likeliest token is the target."""
        return (self.logits.argmax(-1) == self.targets).float().mean().item()


def read(model: LlamaForCausalLM, batch: Batch, recipe: Recipe) -> dict[str, Reading]:
    """All readings of one batch by name; ``verdict@5`` is a verdict read after layer 5.

    If ``compute_from`` is above 1, the hidden states after questions about three numbers are exchanged between documents before
    that layer, and the lenses before it learn random labels. The label can then not be memorised from the state: the model must
    derive it from the tries.
    """

    def exchange(_layer: torch.nn.Module, _inputs: object, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        return flat.index_copy(0, batch.swap[:, 0], flat.index_select(0, batch.swap[:, 1])).view_as(hidden)

    with ExitStack() as stack:
        if recipe.compute_from > 1:
            stack.callback(model.model.layers[recipe.compute_from - 2].register_forward_hook(exchange).remove)
        out = model.model(batch.ids, output_hidden_states=True, use_cache=False)
    flat = [state.flatten(0, 1) for state in (*out.hidden_states[:-1], out.last_hidden_state)]  # [N S, H]; last: normed
    norm, head = model.model.norm, model.lm_head
    found = {"text": Reading(1.0, head(flat[-1].index_select(0, batch.text[:, 0])), batch.text[:, 1])}
    asked = torch.cat([batch.tries[:, 0], batch.label[:, 0]])
    for layer in range(1, recipe.layers + 1):
        hidden = flat[layer].index_select(0, asked)
        logits = head(hidden if layer == recipe.layers else norm(hidden))
        on_tries, on_label = logits.split([len(batch.tries), len(batch.label)])
        if layer in recipe.result_layers:
            found[f"result@{layer}"] = Reading(recipe.result_weight, on_tries, batch.tries[:, 1])
        last = layer == recipe.layers
        if layer >= recipe.verdict_from:
            found[f"verdict@{layer}"] = Reading(2.0 if last else recipe.lens_weight, on_tries, batch.tries[:, 2])
        label = batch.label[:, 1 if layer < recipe.compute_from else 2]
        found[f"label@{layer}"] = Reading(0.7 if last else recipe.lens_weight, on_label, label)
    return found


def rate_at(done: float, step: int, recipe: Recipe) -> float:
    """Learning rate at the share ``done``, 0..1, of the run: warm-up, flat, then linear decay to the floor."""
    peak = recipe.peak_rate * min(1.0, (step + 1) / recipe.warmup_steps)
    if done < recipe.flat:
        return peak
    return peak * (1 - (1 - recipe.floor) * (done - recipe.flat) / (1 - recipe.flat))


def fit(
    model: LlamaForCausalLM,
    recipe: Recipe,
    unseen: HeldOut,
    *,
    steps: int,
    minutes: float,
    seed: int,
    device: str,
    workers: int,
) -> None:
    """Train a model for ``steps`` or ``minutes``, whichever ends first; the learning rate decays to its floor by then."""
    batches = iter(DataLoader(Batches(recipe.documents, unseen, seed), batch_size=None, num_workers=workers))
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.peak_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    start, step, tokens, done = time.perf_counter(), 0, 0, 0.0
    while done < 1:
        batch = next(batches).to(device)
        readings = read(model, batch, recipe)
        loss = torch.stack([reading.loss() for reading in readings.values()]).sum()
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate_at(done, step, recipe)
        optimiser.step()
        step, tokens = step + 1, tokens + batch.ids.numel()
        took = time.perf_counter() - start
        done = max(step / steps, took / (60 * minutes))
        if step % 100 == 0 or done >= 1:
            shown = {name: round(reading.accuracy(), 4) for name, reading in readings.items()}
            line = {"step": step, "s": round(took), "tok_s": round(tokens / took), "loss": round(loss.item(), 4)}
            print(json.dumps(line | shown), flush=True)


def save(model: LlamaForCausalLM, unseen: HeldOut, out: Path) -> None:
    """Write a ``from_pretrained`` folder with fp16 weights, and the held-out sets as ``held_out.json``."""
    half = copy.deepcopy(model).cpu().half()
    half.save_pretrained(out)
    build_tokenizer().save_pretrained(out)
    sets = {"roots": unseen.root_puzzles, "states": unseen.state_puzzles}
    text = {name: [" ".join(map(str, puzzle)) for puzzle in puzzles] for name, puzzles in sets.items()}
    (out / "held_out.json").write_text(json.dumps(text, indent=0) + "\n", encoding="utf-8")


def main(
    what: Annotated[str, typer.Argument(help="which model: game24")],
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("game24-model"),
    steps: Annotated[int, typer.Option(help="optimiser steps of the first stage, at most")] = 7_500,
    minutes: Annotated[float, typer.Option(help="minutes of the first stage, at most")] = math.inf,
    seed: Annotated[int, typer.Option()] = 0,
    exclude: Annotated[Path | None, typer.Option(help="csv of puzzles never to train on")] = None,
    rows: Annotated[str, typer.Option(help="which ranks of that file")] = "1-100000",
    documents: Annotated[int, typer.Option(help="documents a step; 58 for a CPU")] = Recipe.documents,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda" if torch.cuda.is_available() else "cpu",
    workers: Annotated[int, typer.Option(help="processes that generate documents; 0: this one; 3 for a GPU")] = 0,
    threads: Annotated[int, typer.Option(help="threads on a CPU")] = 1,
) -> None:
    """Train and save the model; prints a line of accuracies every 100 steps."""
    if what != "game24":
        raise typer.BadParameter(f"{what!r} is unknown; there is game24")
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.set_float32_matmul_precision("high")
    recipe = Recipe(documents=documents)
    unseen = held_out(read_puzzles(exclude, rows) if exclude else ())
    model = build_model(recipe, seed)
    torch.nn.Module.to(model, device)
    fit(model, recipe, unseen, steps=steps, minutes=minutes, seed=seed, device=device, workers=workers)
    fit(
        model, recipe.gathering(), unseen,
        steps=min(steps, GATHERING_STEPS), minutes=math.inf, seed=seed + 7, device=device, workers=workers,
    )  # fmt: skip
    save(model, unseen, out)


if __name__ == "__main__":
    typer.run(main)
