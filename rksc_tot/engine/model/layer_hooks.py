"""Between the layers of a pass: hidden states are looked at, and rows leave.

A pass that is *watched* gets hooks on the decoder layers while it runs. After each layer every watcher sees the hidden states
of the rows it names and may send rows away: they are neither computed nor stored in the layers above. When no row is left,
the pass ends there. The model's code is not changed, and the hooks are gone when the pass is over.
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
"""Hidden states ``[n, H]`` of rows, which are named by their number in the whole pass and must not have left."""


class LayerHook(Protocol):
    """Looks at a pass after each layer."""

    def after(self, layer: int, look: Look) -> Collection[int]:
        """Rows that leave after this layer, counted from 1. After the last layer nothing can leave."""
        ...


class PassOver(Exception):
    """Every row has left."""


class Watched:
    """Hooks on the layers for the length of one pass over ``blocks``.

    ``shrink``: called with the blocks that are left when rows have left, so that attention and cache follow. A block is cut
    into runs where rows leave from its middle.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        blocks: Sequence[Block],
        watchers: Sequence[LayerHook],
        shrink: Callable[[list[Block]], None],
    ) -> None:
        self._layers = layers
        self._watchers = watchers
        self._shrink = shrink
        self._runs: list[tuple[int, Block]] = []  # number of the first row, block
        row = 0
        for block in blocks:
            self._runs.append((row, block))
            row += len(block.tokens)
        self._rows = row
        self._alive: Tensor | None = None  # [q] numbers of the rows left; None: all
        self._place: dict[int, int] = {}  # number -> index among those left
        self._cut: dict[int, tuple[Any, Any]] = {}  # id -> a layer argument, and its rows that are left
        self._hooks: list[Any] = []

    def __enter__(self) -> Watched:
        for count, layer in enumerate(self._layers):
            self._hooks.append(layer.register_forward_pre_hook(self._before(count), with_kwargs=True))
        self._hooks.append(self._layers[-1].register_forward_hook(self._at_end))
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> bool:
        for hook in self._hooks:
            hook.remove()
        return kind is PassOver

    def _before(self, done: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            """Watch what ``done`` layers have made, then hand on the rows that are left."""
            named = not args
            hidden: Tensor = kwargs["hidden_states"] if named else args[0]
            if done:
                hidden = self._watch(done, hidden)
            if self._alive is None:
                return args, kwargs
            kwargs = {key: self._left(value) for key, value in kwargs.items()}
            if named:
                return args, kwargs | {"hidden_states": hidden}
            return (hidden, *(self._left(value) for value in args[1:])), kwargs

        return hook

    def _at_end(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Watch the last layer, and put the rows left back to where the rest of the model expects them."""
        hidden = first(output)
        self._watch(len(self._layers), hidden)
        if self._alive is None:
            return None
        whole = hidden.new_zeros(hidden.shape[0], self._rows, hidden.shape[2])
        whole[:, self._alive] = hidden
        return whole if isinstance(output, Tensor) else (whole, *output[1:])

    def _watch(self, layer: int, hidden: Tensor) -> Tensor:
        def look(rows: Sequence[int]) -> Tensor:
            places = rows if self._alive is None else [self._place[row] for row in rows]
            return hidden[0, torch.tensor(places, dtype=torch.long, device=hidden.device)]

        leaving = {row for watcher in self._watchers for row in watcher.after(layer, look)}
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
        """What is left of a layer's argument: of tensors ``[1, Q, …]`` and masks ``[1, 1, Q, N]`` the rows that are."""
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
    """The runs of a block that are left, with the number of their first row."""
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
