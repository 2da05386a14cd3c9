"""The allowed difference between the logits of a tree and those of plain passes.

In float32 rounding is small, so each logit must agree to five digits. In half precision, two correct passes of one model differ
by some per cent, and the difference depends on the model. There the model's own passes set the tolerance: its own cache decodes
the probe's paths in two ways, and a tree may differ from the plain passes by three times the difference of these passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.model.forward import Forward

SINGLE = 1e-5
"""Tolerance in float32, as a share of the largest logit at the ends of branches."""
FACTOR = 3
"""Tolerance in half precision, as a multiple of the noise of the model's own passes."""
MOST_NOISE = 4
"""Noise of the model's own passes that rounding explains, as a multiple of the expected rounding. Seen: up to 1.1."""
PADDING = 0


class Paths(NamedTuple):
    """Token ids of a prompt, and of the branches that grow from it."""

    trunk: list[int]
    branches: list[list[int]]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.trunk) + sum(map(len, self.branches))


class Tolerance(NamedTuple):
    """The allowed difference of a tree.

    Attributes
    ----------
    limit
        The largest ``difference`` at which a tree counts as equal.
    single
        Whether differences are the largest |Δlogit| at the ends of the branches. In half precision they are the root mean
        square of all Δlogits, as a share of the logits' own.
    noise
        The difference of the model's own passes; 0 where that is not measured.
    """

    limit: float
    single: bool
    noise: float = 0.0

    def difference(self, found: Sequence[Tensor], plain: Sequence[Tensor]) -> float:
        """The difference between logits and those of plain passes, in the unit of ``limit``."""
        if self.single:
            return max(float((a[-1] - b[-1]).abs().max()) for a, b in zip(found, plain, strict=True))
        return _relative(found, plain)

    def describe(self, difference: float) -> str:
        """A sentence with the difference and the limit."""
        if self.single:
            return f"logits differ by {difference:.2g} from a plain forward pass"
        own = f"the model's own passes differ by {self.noise:.2%}, and {self.limit:.2%} are allowed"
        return f"logits differ by {difference:.2%} from a plain forward pass, {own}"


def plain_logits(forward: Forward, paths: Paths) -> list[Tensor]:
    """Logits ``[n, V]`` of the ``n`` tokens of each branch, from a plain pass over trunk and branch."""
    return [forward.plain(paths.trunk + branch)[len(paths.trunk) :] for branch in paths.branches]


def tolerance_of(forward: Forward, paths: Paths, plain: Sequence[Tensor]) -> Tolerance:
    """The tolerance of a model on these paths. ``plain``: logits of plain passes.

    Raises
    ------
    UnsupportedModel
        If the model's own passes differ more than rounding explains, or so much that a wrong token of the prompt would be within
        the tolerance.
    """
    if forward.dtype.itemsize >= 4:
        return Tolerance(SINGLE * max(10.0, *(float(logits[-1].abs().max()) for logits in plain)), single=True)
    rounding, name = _rounding(forward), str(forward.dtype).removeprefix("torch.")
    noise = max(rounding, *(_relative(found, plain) for found in _own_passes(forward, paths)))
    if not noise <= MOST_NOISE * rounding:
        raise UnsupportedModel(
            f"the model's own cache does not give the logits of its plain passes: they differ by {noise:.2%}, of which "
            f"rounding in {name} explains {rounding:.2%}",
            hint="load it in float32 to see whether it is the model or its precision",
        )
    wrong = list(paths.trunk)
    wrong[len(wrong) // 2] = wrong[len(wrong) // 2 - 1]
    changed = _relative(plain_logits(forward, Paths(wrong, paths.branches)), plain)
    if not FACTOR * noise < changed:
        raise UnsupportedModel(
            f"{name} rounds too much to prove that trees decode exactly: the logits of the model's own passes differ by "
            f"{noise:.2%}, those of a prompt with a wrong token by {changed:.2%}",
            hint="try float32",
        )
    return Tolerance(FACTOR * noise, single=False, noise=noise)


def _rounding(forward: Forward) -> float:
    """Expected noise of half a digit lost at random in each layer; a lower bound, since tiny models may have no noise."""
    return torch.finfo(forward.dtype).eps / 2 * math.sqrt(forward.depth)


@torch.inference_mode()
def _own_passes(forward: Forward, paths: Paths) -> list[list[Tensor]]:
    """The logits of the branches by the model's own cache: in two halves, and token by token after the trunk.

    The paths are one batch, padded at their ends, which no token before sees.
    """
    start, longest = len(paths.trunk), max(map(len, paths.branches))
    padded = [paths.trunk + branch + [PADDING] * (longest - len(branch)) for branch in paths.branches]
    batch = torch.tensor(padded, device=forward.device)  # [branches, length]
    half = batch.shape[1] // 2
    found = []
    for pieces in ([half, batch.shape[1] - half], [start, *[1] * longest]):
        cached = compat.cached_logits(forward.original, batch.split(pieces, 1))
        found.append([cached[n, start : start + len(branch)] for n, branch in enumerate(paths.branches)])
    return found


def _relative(found: Sequence[Tensor], plain: Sequence[Tensor]) -> float:
    """Root mean square of the differences over that of the plain logits, over all rows."""
    expected = torch.cat(list(plain)).double()
    apart = torch.cat(list(found)).double() - expected
    return math.sqrt(float(apart.square().mean() / expected.square().mean()))
