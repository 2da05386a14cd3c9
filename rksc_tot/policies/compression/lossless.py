"""Settings of lossless drafting (VeriCache)."""

from __future__ import annotations

from typing import cast

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.plugins.user_code import shown


class Lossless(Settings):
    """Settings of drafting on compressed KV, with every draft verified on the full KV.

    Parameters
    ----------
    horizon
        Most tokens that a branch drafts before they are verified. The paper uses 25 to 40. A draft has at most twice as many
        tokens as were accepted of the previous one.
    share
        Share, 0..1, of a path's tokens that a tree policy keeps for drafts. A path policy uses its own budget.
    """

    kind = "lossless"
    horizon: int = Field(32, ge=1, le=1024)
    share: float = Field(0.5, gt=0, le=1, allow_inf_nan=False)


def lossless_settings(given: bool | Lossless) -> Lossless | None:
    """The settings: defaults for True, None for False.

    Raises
    ------
    ConfigError
        If ``given`` is not True, False or a Lossless object.
    """
    if isinstance(given, bool):
        return Lossless() if given else None
    if not isinstance(cast("object", given), Lossless):
        raise ConfigError(
            f"lossless is {shown(given)}",
            hint="give True, False or a Lossless object, such as Lossless(horizon=16)",
        )
    return given
