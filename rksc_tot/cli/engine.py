"""The engine that the options name."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rksc_tot.engine.base import Engine


def open_engine(
    model: str | None, device: str = "cpu", dtype: str = "float32", memory: Mapping[str, Any] | None = None
) -> Engine:
    """The engine of a model, loaded without chatter. ``memory``: what is held where.

    Importing torch and transformers makes a million objects that stay; without the garbage collector going through them
    again and again it takes three quarters of the time.
    """
    gc.disable()
    try:
        from transformers.utils import logging

        from rksc_tot.engine import load_engine
    finally:
        gc.freeze()
        gc.enable()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return load_engine(model, device=device, dtype=dtype, **(memory or {}))
