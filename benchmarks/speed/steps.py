"""An engine with timed steps: duration, computed rows, and a profile of each step."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rksc_tot.engine.transformers_engine.engine import TransformersEngine

FILES = {
    "attention": (
        "tree_attention.py", "matmul.py", "fused.py", "vector_padding.py", "arena.py", "attention_stats.py",
    ),
    "planning": ("plan.py", "planner.py", "prefix_groups.py", "forward_pass.py", "fair_share.py"),
    "sampling": ("sampler.py", "random_streams.py"),
}  # fmt: skip
"""Files of this project by part of a step; all other files are bookkeeping."""
PRODUCTS = ("linear", "_linear_pointwise", "addmm", "mm")
BUILT_IN = "~"  # the profiler's file name for built-in functions


class TimedStep(NamedTuple):
    """One step: its ``seconds``, the ``rows`` computed, and the requests that are ``waiting`` after it."""

    seconds: float
    rows: int
    waiting: int


class TimedStepsEngine(TransformersEngine):
    """Calls ``on_step`` after every step, in the engine thread. With ``profile``, steps run under this profiler."""

    on_step: Callable[[TimedStep], None] = staticmethod(lambda step: None)
    profile: cProfile.Profile | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._untimed_step, self.scheduler.step = self.scheduler.step, self._step  # type: ignore[method-assign]

    def _step(self) -> None:
        before = self.usage.rows
        settle(self)
        start = time.perf_counter()
        if self.profile is None:
            self._untimed_step()
        else:
            self.profile.runcall(self._untimed_step)
        settle(self)
        after = self.usage
        self.on_step(TimedStep(time.perf_counter() - start, after.rows - before, after.waiting))


def settle(engine: TransformersEngine) -> None:
    """Wait until a GPU has finished all submitted work."""
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize(engine.model.device)


def shares(profile: cProfile.Profile) -> dict[str, float]:
    """Parts of the time of profiled steps, as shares of 1; see `roofline`.

    The own time of a function counts for the part of its file. The time of a built-in function counts for the part of its
    caller, except for products of linear layers.
    """
    stats: Any = pstats.Stats(profile)
    found: Counter[str] = Counter(
        {"linear": 0.0, "other_operations": 0.0, "bookkeeping": 0.0, **dict.fromkeys(FILES, 0.0)}
    )
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if file != BUILT_IN:
            found[part_of(file)] += own
        else:
            for (caller, _, _), (_, _, seconds, _) in callers.items():
                part = part_of(caller)
                found["linear" if is_product(name) and part != "attention" else part] += seconds
    whole = sum(found.values())
    return {part: round(seconds / whole, 4) for part, seconds in found.items()}


def part_of(file: str) -> str:
    """The part of a step that a source file belongs to; the model's own operations are those of torch and transformers."""
    path = Path(file)
    if "rksc_tot" in path.parts:
        return next((part for part, names in FILES.items() if path.name in names), "bookkeeping")
    of_model = {"torch", "transformers"} & set(path.parts) and not path.name.startswith("tokenization")
    return "other_operations" if of_model else "bookkeeping"


def is_product(name: str) -> bool:
    """Whether the profiler's name of a built-in function is that of a product with a weight matrix."""
    return name.strip("<>{}").rpartition(".")[2].rpartition(" ")[2] in PRODUCTS
