"""Train an embedded model from scratch: ``python -m rksc_tot.tasks.embedded.train FAMILY --out FOLDER``.

One transformer learns to write thoughts and to answer the value question at the end of a path. The answer is learned after
several layers (logit lens), so that early exits have something to read. A family may have further targets, such as the results of
the operations that its question names; they make a small model compute instead of memorise.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.embedded.batches import Batch, Batches
from rksc_tot.tasks.embedded.family import FAMILIES, Family, Stage, load_family
from rksc_tot.tasks.embedded.model import build_model
from rksc_tot.tasks.game24.puzzles import read_puzzles

SAVE_EVERY = 300  # seconds between checkpoints


class Prediction(NamedTuple):
    """Logits of one layer at some places, with their targets."""

    weight: float
    logits: Tensor  # [n, V]
    targets: Tensor  # [n]

    def loss(self) -> Tensor:
        """Weighted mean cross-entropy; 0 without places."""
        if not len(self.targets):
            return self.logits.sum()
        return self.weight * F.cross_entropy(self.logits, self.targets)

    def accuracy(self) -> float:
        """Share of places where the likeliest token is the target."""
        return (self.logits.argmax(-1) == self.targets).float().mean().item()


def read(model: LlamaForCausalLM, batch: Batch, stage: Stage) -> dict[str, Prediction]:
    """All predictions of one batch by name; ``label@5`` is the label read after layer 5.

    With ``stage.swap_before`` the hidden states at ``batch.swap`` are exchanged between documents before that layer. The label
    can then not be memorised from the path: the model must derive it from the other places of the question.
    """

    def exchange(_layer: torch.nn.Module, _inputs: object, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        return flat.index_copy(0, batch.swap[:, 0], flat.index_select(0, batch.swap[:, 1])).view_as(hidden)

    with ExitStack() as stack:
        if stage.swap_before is not None:
            stack.callback(model.model.layers[stage.swap_before - 2].register_forward_hook(exchange).remove)
        out = model.model(batch.ids, output_hidden_states=True, use_cache=False)
    flat = [state.flatten(0, 1) for state in (*out.hidden_states[:-1], out.last_hidden_state)]  # [N S, H]; last: normed
    norm, head, deepest = model.model.norm, model.lm_head, len(flat) - 1
    found = {}
    for reading in stage.readings:
        places, words = batch.targets[reading.kind].unbind(1)
        for layer in range(reading.first, reading.last + 1):
            hidden = flat[layer].index_select(0, places)
            logits = head(hidden if layer == deepest else norm(hidden))
            found[f"{reading.kind}@{layer}"] = Prediction(reading.weight, logits, words)
    return found


def rate_at(done: float, step: int, stage: Stage) -> float:
    """Learning rate at the share ``done``, 0..1, of the run: warm-up, flat, then linear decay to the floor."""
    peak = stage.peak_rate * min(1.0, (step + 1) / stage.warmup_steps)
    if done < stage.flat:
        return peak
    return peak * (1 - (1 - stage.floor) * (done - stage.flat) / (1 - stage.flat))


def fit(
    model: LlamaForCausalLM,
    family: Family,
    stage: Stage,
    *,
    minutes: float,
    seed: int,
    device: str,
    workers: int,
    checkpoint: Callable[[], None],
) -> None:
    """Train a model for ``stage.steps`` or ``minutes``, whichever ends first; the learning rate decays to its floor by then."""
    kinds = tuple(dict.fromkeys(reading.kind for reading in stage.readings))
    source = Batches(family, kinds, stage.documents, seed)
    batches = iter(DataLoader(source, batch_size=None, num_workers=workers))
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=stage.peak_rate, betas=(0.9, 0.98), weight_decay=stage.weight_decay, fused=True
    )
    start, step, tokens, done, saved = time.perf_counter(), 0, 0, 0.0, 0.0
    while done < 1:
        batch = next(batches).to(device)
        predictions = read(model, batch, stage)
        loss = torch.stack([prediction.loss() for prediction in predictions.values()]).sum()
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate_at(done, step, stage)
        optimiser.step()
        step, tokens = step + 1, tokens + batch.ids.numel()
        took = time.perf_counter() - start
        done = max(step / stage.steps, took / (60 * minutes))
        if step % 100 == 0 or done >= 1:
            shown = {name: round(prediction.accuracy(), 4) for name, prediction in predictions.items()}
            line = {"step": step, "s": round(took), "tok_s": round(tokens / took), "loss": round(loss.item(), 4)}
            print(json.dumps(line | shown), flush=True)
        if took - saved > SAVE_EVERY:
            saved = took
            checkpoint()


def save(model: LlamaForCausalLM, family: Family, out: Path) -> None:
    """Write a ``from_pretrained`` folder with fp16 weights, and the held-out sets as ``held_out.json``."""
    half = copy.deepcopy(model).cpu().half()
    half.save_pretrained(out)
    family.build_tokenizer().save_pretrained(out)
    sets = {name: list(problems) for name, problems in family.held_out.items()}
    (out / "held_out.json").write_text(json.dumps(sets, indent=0) + "\n", encoding="utf-8")


def main(
    what: Annotated[str, typer.Argument(help=f"which model: {', '.join(FAMILIES)}")],
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("embedded-model"),
    steps: Annotated[int | None, typer.Option(help="optimiser steps of a stage, at most")] = None,
    minutes: Annotated[float, typer.Option(help="minutes of the first stage, at most")] = math.inf,
    seed: Annotated[int, typer.Option()] = 0,
    exclude: Annotated[Path | None, typer.Option(help="csv of puzzles never to train on (game24)")] = None,
    rows: Annotated[str, typer.Option(help="which ranks of that file")] = "1-100000",
    documents: Annotated[int | None, typer.Option(help="documents a step; 58 for game24 on a CPU")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda" if torch.cuda.is_available() else "cpu",
    workers: Annotated[int, typer.Option(help="processes that generate documents; 0: this one; 3 for a GPU")] = 0,
    threads: Annotated[int, typer.Option(help="threads on a CPU")] = 1,
) -> None:
    """Train and save a model; prints a line of accuracies every 100 steps."""
    try:
        family = load_family(what, read_puzzles(exclude, rows) if exclude else ())
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.set_float32_matmul_precision("high")
    model = build_model(family, seed)
    torch.nn.Module.to(model, device)
    for at, stage in enumerate(family.stages):
        fitted = replace(
            stage,
            steps=stage.steps if steps is None else min(steps, stage.steps),
            documents=stage.documents if documents is None else min(documents, stage.documents),
        )
        fit(
            model, family, fitted, minutes=math.inf if at else minutes, seed=seed + 7 * at,
            device=device, workers=workers, checkpoint=lambda: save(model, family, out),
        )  # fmt: skip
    save(model, family, out)


if __name__ == "__main__":
    typer.run(main)
