"""Layer hooks of a pass: they read hidden states between layers and may make rows leave the pass (early exit).

A pass with hooks registers torch hooks on the decoder layers. After each layer, every hook reads the hidden states of the rows
it names, and returns the rows that leave. The layers above neither compute nor store these rows. When no row is left, the pass
ends. The model's code is not changed, and the torch hooks are removed after the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.model.logit_lens import first

Look = Callable[[Sequence[int]], Tensor]
"""Takes indices of rows in the whole pass, which must not have left; returns their hidden states ``[n, H]``."""


class LayerHook(Protocol):
    """Called after each layer of a pass."""

    def after(self, layer: int, look: Look) -> Collection[int]:
        """Rows that leave after this layer. Layers count from 1. After the last layer no row can leave."""
        ...


class PassOver(Exception):
    """Raised when all rows have left the pass."""


class HookedPass:
    """Context of one pass over ``blocks`` with hooks on its layers.

    When rows leave, ``shrink`` is called with the remaining blocks, so that attention and cache use only these. A block is
    cut into runs if rows leave from its middle.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        blocks: Sequence[Block],
        hooks: Sequence[LayerHook],
        shrink: Callable[[list[Block]], None],
    ) -> None:
        self._layers = layers
        self._hooks = hooks
        self._shrink = shrink
        self._runs: list[tuple[int, Block]] = []  # index of the first row, block
        row = 0
        for block in blocks:
            self._runs.append((row, block))
            row += len(block.tokens)
        self._rows = row
        self._alive: Tensor | None = None  # [q] indices of the remaining rows; None: all
        self._place: dict[int, int] = {}  # index in the pass -> index among the remaining rows
        self._cut: dict[int, tuple[Any, Any]] = {}  # id -> a layer argument, and its remaining rows
        self._handles: list[Any] = []

    def __enter__(self) -> HookedPass:
        for count, layer in enumerate(self._layers):
            self._handles.append(layer.register_forward_pre_hook(self._before(count), with_kwargs=True))
        self._handles.append(self._layers[-1].register_forward_hook(self._at_end))
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> bool:
        for handle in self._handles:
            handle.remove()
        return kind is PassOver

    def _before(self, done: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            """Call the hooks after ``done`` layers, then pass on the remaining rows."""
            named = not args
            hidden: Tensor = kwargs["hidden_states"] if named else args[0]
            if done:
                hidden = self._call_hooks(done, hidden)
            if self._alive is None:
                return args, kwargs
            kwargs = {key: self._left(value) for key, value in kwargs.items()}
            if named:
                return args, kwargs | {"hidden_states": hidden}
            return (hidden, *(self._left(value) for value in args[1:])), kwargs

        return hook

    def _at_end(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Call the hooks after the last layer, then put the remaining rows back at their indices in the pass."""
        hidden = first(output)
        self._call_hooks(len(self._layers), hidden)
        if self._alive is None:
            return None
        whole = hidden.new_zeros(hidden.shape[0], self._rows, hidden.shape[2])
        whole[:, self._alive] = hidden
        return whole if isinstance(output, Tensor) else (whole, *output[1:])

    def _call_hooks(self, layer: int, hidden: Tensor) -> Tensor:
        def look(rows: Sequence[int]) -> Tensor:
            places = rows if self._alive is None else [self._place[row] for row in rows]
            return hidden[0, torch.tensor(places, dtype=torch.long, device=hidden.device)]

        leaving = {row for hook in self._hooks for row in hook.after(layer, look)}
        if not leaving or layer == len(self._layers):
            return hidden
        self._runs = [run for first_row, block in self._runs for run in _without(first_row, block, leaving)]
        if not self._runs:
            raise PassOver
        alive = [row for first_row, block in self._runs for row in range(first_row, first_row + len(block.tokens))]
        places = alive if self._alive is None else [self._place[row] for row in alive]
        hidden = hidden[:, torch.tensor(places, device=hidden.device)]
        self._alive = torch.tensor(alive, device=hidden.device)
        self._place = {row: place for place, row in enumerate(alive)}
        self._cut.clear()
        self._shrink([block for _, block in self._runs])
        return hidden

    def _left(self, value: Any) -> Any:
        """A layer's argument with only the remaining rows: tensors ``[1, Q, …]`` and masks ``[1, 1, Q, N]`` are cut."""
        if isinstance(value, tuple | list):
            return type(value)(self._left(part) for part in value)
        if not isinstance(value, Tensor) or value.dim() < 2:
            return value
        dim = 2 if value.dim() == 4 else 1
        if value.shape[dim] != self._rows:
            return value
        if id(value) not in self._cut:  # the model hands the same tensors to every layer
            self._cut[id(value)] = (value, value.index_select(dim, self._alive))  # type: ignore[arg-type]
        return self._cut[id(value)][1]


def _without(first_row: int, block: Block, leaving: Collection[int]) -> Iterable[tuple[int, Block]]:
    """The remaining runs of a block, each with the index of its first row."""
    count = len(block.tokens)
    start = 0
    for i in range(count + 1):
        if i < count and first_row + i not in leaving:
            continue
        if i > start:
            run = Block(
                block.lineage, block.start + start, block.tokens[start:i], block.slots[start:i], [], block.prompt
            )
            run.logits_at = [at - start for at in block.logits_at if start <= at < i]
            yield first_row + start, run
        start = i + 1
