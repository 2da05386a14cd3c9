"""Steps of the engine compared with the bare matrix products of the same model on the same machine.

``python -m benchmarks roofline [--json] [--quick] [--shape NAME] [--device cuda] [--dtype bfloat16]``. The model has random
weights. The *roof* is the time of every weight matrix times the rows of the step, one product after the other, layer by layer.
The output embedding is multiplied only with rows whose logits are read. On a CPU there are two kinds of products: torch's linear
layer, and oneDNN's packed one. The roof uses the faster kind for each matrix and number of rows. It multiplies one matrix at a
time, while the engine combines matrices with the same input. Norms, RoPE, activations and the products of attention are not part
of the roof, so the fraction stays below 1.

* ``decode_fraction.B``: roof over the time of a whole step (sampling, plan, forward pass, bookkeeping) with one token of each of
  B branches of one prompt of 256 tokens; ``low``, ``high``: 95 % by bootstrap over steps
* ``prefill_fraction``: the same for a step that computes a prompt of 512 tokens, with logits of its last row;
  ``prefill_fraction.1024``: of 1024 tokens
* ``seconds.``: medians
* ``packed``: whether the engine packs its linear layers
* ``roof_packed``: share of the roof's matrices that are faster packed
* ``share.decode.B``, ``share.prefill``: parts of a step's time, by Python's profiler in a separate run (a profiler makes small
  functions look slower): products of linear layers, attention with reads and writes, other operations of the model, scheduling
  and planning, sampling, bookkeeping; not on a GPU, to which work is only submitted

Steps and roofs alternate in the same thread.
"""

from __future__ import annotations

import asyncio
import cProfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.common.baselines import SAMPLING
from benchmarks.common.random_models import SHAPES, random_model, word_tokenizer
from benchmarks.common.report import Quick, Report
from benchmarks.speed.paper import KV_BYTES, ratio, shared_copy, work
from benchmarks.speed.steps import TimedStep, TimedStepsEngine, shares
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest
from rksc_tot.engine.model import onednn_linear as packing

PREFIX = 256
PREFILLS = {"prefill_fraction": 512, "prefill_fraction.1024": 1024}
BRANCHES = (1, 8, 32, 128)
STEPS, PREFILL_STEPS = 16, 5
PROFILED_STEPS = 8
SLACK = 8  # more tokens than steps, since branches may begin with equal tokens
TRIES = 5  # of each kind of product, to choose the faster

OneDNNMatmul = Callable[[Tensor], Tensor]


class Roof:
    """The bare matrix products of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        body = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not head]
        self._layers = [*((layer, False) for layer in body), (head, True)]
        packs = packing.worth_packing(model)
        self._ways: dict[nn.Linear, list[OneDNNMatmul]] = {
            layer: [
                partial(F.linear, weight=layer.weight),
                *([partial(packing.OneDNNMatmul([layer]), place=slice(None))] if packs else []),
            ]
            for layer, _ in self._layers
        }
        self._fastest: dict[tuple[int, ...], int] = {}  # by rows and shape of the matrix

    @torch.inference_mode()
    def choose(self, rows: int, logits: int) -> list[tuple[OneDNNMatmul, Tensor]]:
        """The products for ``rows`` rows, of which ``logits`` rows go through the output embedding, with their inputs."""
        found = []
        for layer, is_head in self._layers:
            x = layer.weight.new_ones(logits if is_head else rows, layer.in_features)
            shape = (len(x), *layer.weight.shape)
            if shape not in self._fastest:
                self._fastest[shape] = _fastest(self._ways[layer], x)
            found.append((self._ways[layer][self._fastest[shape]], x))
        return found

    @property
    def packed(self) -> float:
        """Share of matrices, by shape and rows, that are faster packed."""
        return sum(self._fastest.values()) / max(1, len(self._fastest))


def _fastest(ways: list[OneDNNMatmul], x: Tensor) -> int:
    """The fastest kind of product, by the best of some tries in turn."""
    if len(ways) == 1:
        return 0
    times = [[_seconds([(way, x)]) for way in ways] for _ in range(TRIES)]
    return int(np.min(times, axis=0).argmin())


@torch.inference_mode()
def _seconds(products: list[tuple[OneDNNMatmul, Tensor]]) -> float:
    """Time of the products, one after the other."""
    start = time.perf_counter()
    for product, x in products:
        product(x)
    if products[0][1].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


async def _written(engine: TimedStepsEngine, prompt: str, branches: int, new: int) -> None:
    """Generate branches of a prompt on an engine whose cache is empty before and after."""
    account = Account()
    handle = engine.open(prompt, account)
    request = GenerateRequest(handle, stream_keys(range(branches), "roofline"), SAMPLING, new)
    [written] = await engine.generate([request], account)
    for given in (handle, *(completion.handle for completion in written)):
        engine.release(given)
    engine.clear()


class Bench:
    """An engine and the roof of its model, with their comparison."""

    def __init__(self, shape: str, device: str, dtype: str) -> None:
        model = random_model(shape, device, dtype)
        self.vocabulary = SHAPES[shape]["vocab_size"]
        self.roof = Roof(shared_copy(model))
        self.engine = TimedStepsEngine(
            model, word_tokenizer(self.vocabulary), name="random weights", kv_budget=KV_BYTES
        )

    def decode(self, branches: int, steps: int, prefix: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of roof and step, ``[1, steps]`` each, for steps with a row of every branch."""
        return self._compared(branches, branches, lambda: self._write(prefix, branches, steps + SLACK), steps)

    def prefill(self, tokens: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of roof and step, ``[1, steps]`` each, for steps that compute a prompt."""

        def run() -> None:
            for _ in range(steps + 1):
                self._write(tokens, 1, 1)

        return self._compared(tokens, 1, run, steps)

    def _write(self, prompt: int, branches: int, new: int) -> None:
        asyncio.run(_written(self.engine, work(prompt, new, self.vocabulary).prompt, branches, new))

    def _compared(self, rows: int, logits: int, run: Callable[[], None], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Run, and time the roof after every step of ``rows`` rows. The first pair warms up."""
        products = self.roof.choose(rows, logits)
        pairs: list[tuple[float, float]] = []

        def on_step(step: TimedStep) -> None:
            if step.rows == rows and len(pairs) <= steps:
                pairs.append((_seconds(products), step.seconds))

        self.engine.on_step = on_step
        run()
        self.engine.on_step = lambda step: None
        if len(pairs) != steps + 1:
            raise RuntimeError(f"{len(pairs)} steps computed {rows} rows, not {steps + 1}")
        roof, step = np.array(pairs[1:]).T[:, None]
        return roof, step

    def share(self, prompt: int, branches: int, new: int) -> dict[str, float]:
        """Parts of the time of a prefill (``new`` is 1) or of decode steps."""
        self._write(prompt, branches, new)  # warm
        profile, made = cProfile.Profile(), count(1)

        def on_step(step: TimedStep) -> None:
            self.engine.profile = profile if next(made) < new else None  # not the last step, which computes no rows

        self.engine.profile = profile if new == 1 else None
        self.engine.on_step = on_step
        self._write(prompt, branches, new)
        self.engine.on_step = lambda step: None
        return shares(profile)


def measure(shape: str, device: str, dtype: str, quick: bool) -> dict[str, Any]:
    """The figures of this benchmark."""
    bench = Bench(shape, device, dtype)
    steps, prefills = (4, 2) if quick else (STEPS, PREFILL_STEPS)
    figures: dict[str, Any] = {"packed": bench.engine.forward.packed}
    seconds: dict[str, float] = {}
    with bench.engine:
        for name, (roof, step) in {
            **{f"decode_fraction.{b}": bench.decode(b, steps, 64 if quick else PREFIX) for b in BRANCHES},
            **{name: bench.prefill(tokens, prefills) for name, tokens in PREFILLS.items()},
        }.items():
            figures |= ratio(name, roof, step)
            seconds |= {f"{name}.roof": float(np.median(roof)), f"{name}.step": float(np.median(step))}
        figures["roof_packed"] = round(bench.roof.packed, 3)
        figures["seconds"] = {name: round(value, 5) for name, value in seconds.items()}
        if device == "cpu":
            figures["share"] = {
                "decode": {str(b): bench.share(PREFIX, b, PROFILED_STEPS) for b in BRANCHES},
                "prefill": bench.share(PREFILLS["prefill_fraction"], 1, 1),
            }
    return figures


def main(
    quick: Quick = False,
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "smollm2-135m",
    device: Annotated[str, typer.Option(help="a torch device")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
) -> Report:
    """Compare steps with their roofs."""
    return Report(measure(shape, device, dtype, quick), {"shape": shape, "device": device, "dtype": dtype})
