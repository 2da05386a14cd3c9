"""Moves keys to other positions by the model's rotation (RoPE), which is found by experiment and proved on the model.

A token alone in a pass sees only itself, so its key before rotation is the same at every position, in every layer. The keys of a
few such tokens at two positions show which angles of the model's rotary modules rotate which pairs of key components in each
layer: halves or neighbours, all components, some or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.model.hf_compat import rotary_modules

TOLERANCE = {4: 1e-4, 8: 1e-4, 2: 0.02}  # by bytes of a number; half precision has two reliable digits
PROBES = ((3, 40), (17, 5), (0, 61))  # pairs of positions, all inside the shortest context an engine accepts

Angles = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns cosines and sines ``[n, R]`` of positions ``[n]``."""


class RopeTurn(NamedTuple):
    """The rotation of keys in a layer: the components ``first[i]``, ``second[i]`` by the angle in column ``column[i]``."""

    angles: Angles
    first: Tensor  # [r]
    second: Tensor  # [r]
    column: Tensor  # [r]
    sign: int

    def move(self, keys: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Keys ``[Hk, n, D]`` computed at positions ``source [n]`` moved to ``target [n]``."""
        cos_s, sin_s = (part[:, self.column].double() for part in self.angles(source))
        cos_t, sin_t = (part[:, self.column].double() for part in self.angles(target))
        size = cos_s.square() + sin_s.square()  # not 1 where the model scales cosines and sines (YaRN)
        cos = (cos_t * cos_s + sin_t * sin_s) / size  # [n, r]
        sin = self.sign * (sin_t * cos_s - cos_t * sin_s) / size
        a, b = keys[..., self.first].double(), keys[..., self.second].double()
        moved = keys.clone()
        moved[..., self.first] = (a * cos - b * sin).to(keys.dtype)
        moved[..., self.second] = (b * cos + a * sin).to(keys.dtype)
        return moved


class RopeShift:
    """Moves the keys of every layer to other positions; made by :func:`find_rotation`.

    Attributes
    ----------
    difference
        Largest relative error that the proof found, over all layers.
    """

    def __init__(self, turns: Sequence[RopeTurn | None], difference: float) -> None:
        self._turns = turns
        self.difference = difference

    def move(self, layer: int, keys: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Keys ``[Hk, n, D]`` of a layer, computed at positions ``source [n]``, moved to ``target [n]``."""
        turn = self._turns[layer]
        return keys if turn is None else turn.move(keys, source, target)


@torch.inference_mode()
def find_rotation(forward: Forward, slots: Sequence[int], extent: int) -> RopeShift:
    """The rotation of a model, proved on keys that the model computes.

    Parameters
    ----------
    forward
        Runs the model.
    slots
        Free rows of the arena to compute into, as many as :data:`PROBES`.
    extent
        Minimum number of rows of the arena.

    Raises
    ------
    UnsupportedModel
        If keys depend on their position in a way that no rotation explains, as with learnt position embeddings.
    """
    with ExitStack() as stack:
        calls_seen: list[tuple[nn.Module, Any, Any]] = []
        for module in rotary_modules(forward.model):
            hook = module.register_forward_hook(
                lambda module, args, kwargs, _: calls_seen.append((module, args, kwargs)), with_kwargs=True
            )
            stack.callback(hook.remove)
        at_source = _alone(forward, slots, extent, [source for source, _ in PROBES])
        calls = list(calls_seen)
        at_target = _alone(forward, slots, extent, [target for _, target in PROBES])
    device = forward.device
    source = torch.tensor([p for p, _ in PROBES], device=device)
    target = torch.tensor([p for _, p in PROBES], device=device)
    every = [angles for call in calls if (angles := _angles(*call)) is not None]
    turns: list[RopeTurn | None] = []
    worst = 0.0
    for layer, ((keys, values), (wanted, same)) in enumerate(zip(at_source, at_target, strict=True)):
        tolerance = TOLERANCE[keys.element_size()]
        best: tuple[float, RopeTurn | None] = (_difference(keys, wanted), None)
        for turn in _candidates(every, keys.shape[-1], source):
            if best[0] <= tolerance / 100:
                break
            found = _difference(turn.move(keys, source, target), wanted)
            best = min(best, (found, turn), key=lambda pair: pair[0])
        if not (best[0] <= tolerance and _difference(values, same) <= tolerance):
            raise UnsupportedModel(
                f"in layer {layer} keys or values depend on positions by more than a rotation of keys",
                hint="reuse of KV between prompt variants needs a model with rotary positions",
            )
        worst = max(worst, best[0])
        turns.append(best[1])
    return RopeShift(turns, worst)


def _alone(
    forward: Forward, slots: Sequence[int], extent: int, positions: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values ``[Hk, n, D]`` of each layer for tokens that see only themselves, at ``positions``."""
    vocabulary = forward.model.config.get_text_config().vocab_size
    tokens = [1 + (7 * n * n + 5 * n) % (vocabulary - 1) for n in range(len(positions))]
    blocks = [Block([], 0, [token], [slot], [0]) for token, slot in zip(tokens, slots, strict=True)]
    plan = forward.plan(blocks)
    plan.positions = torch.tensor([positions], device=forward.device)
    forward.run(plan, extent)
    index = torch.tensor(slots, device=forward.device)
    stored = [forward.arena.read(layer) for layer in sorted(forward.arena.keys)]
    return [(keys[:, index], values[:, index]) for keys, values in stored]


def _angles(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Angles | None:
    """A rotary module as a function of positions, with the model's arguments; None if it returns no cosines and sines."""

    def at(positions: Tensor) -> tuple[Tensor, Tensor]:
        def put(value: Any) -> Any:
            whole = isinstance(value, Tensor) and not value.is_floating_point()
            return positions[None].expand(*value.shape[:-1], -1) if whole else value

        cos, sin = module(*map(put, args), **{name: put(value) for name, value in kwargs.items()})
        return cos.reshape(-1, cos.shape[-1])[-len(positions) :], sin.reshape(-1, sin.shape[-1])[-len(positions) :]

    try:
        at(torch.arange(2, device=next(module.buffers()).device))
    except (TypeError, ValueError, AttributeError):
        return None
    return at


def _candidates(every: Sequence[Angles], width: int, source: Tensor) -> Iterator[RopeTurn]:
    """All possible rotations of keys of ``width`` components by angles, the usual ones first."""

    def whole(values: Sequence[int] | range) -> Tensor:
        return torch.tensor(list(values), device=source.device)

    for angles in every:
        columns = angles(source)[0].shape[-1]
        for turned in dict.fromkeys(n for n in (columns, 2 * columns) if n <= width and n % 2 == 0):
            pairs = turned // 2
            for start in dict.fromkeys((0, width - turned)):
                halves = range(start, start + pairs), range(start + pairs, start + turned)
                neighbours = range(start, start + turned, 2), range(start + 1, start + turned, 2)
                for first, second in (halves, neighbours):
                    for column in (range(pairs), range(0, turned, 2)):
                        if column[-1] >= columns:
                            continue
                        for sign in (1, -1):
                            yield RopeTurn(angles, whole(first), whole(second), whole(column), sign)


def _difference(keys: Tensor, wanted: Tensor) -> float:
    """Largest |Δ| relative to the largest key component, at least 1."""
    scale = max(1.0, float(wanted.abs().max()))
    return float((keys.float() - wanted.float()).abs().max()) / scale
