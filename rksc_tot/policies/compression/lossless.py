"""Settings of lossless drafting (VeriCache)."""

from __future__ import annotations

from typing import cast

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.plugins.user_code import shown


class Lossless(Settings):
    """How drafts are written.

    Parameters
    ----------
    horizon
        Tokens a branch drafts before they are verified, at most. The paper has 25 to 40. A draft is at most twice as long as
        what was accepted of the one before.
    share
        Of a path's tokens, the share that a tree policy may keep for drafts; a path policy has its own budget.
    """

    kind = "lossless"
    horizon: int = Field(32, ge=1, le=1024)
    share: float = Field(0.5, gt=0, le=1, allow_inf_nan=False)


def lossless_settings(given: bool | Lossless) -> Lossless | None:
    """How drafts are written, None for none; True stands for the usual settings.

    Raises
    ------
    ConfigError
        If it is neither true nor false nor such settings.
    """
    if isinstance(given, bool):
        return Lossless() if given else None
    if not isinstance(cast("object", given), Lossless):
        raise ConfigError(
            f"lossless is {shown(given)}",
            hint="it takes True, False or a Lossless object, such as Lossless(horizon=16)",
        )
    return given
