"""Loads the engine for a command."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rksc_tot.engine.base import Engine
    from rksc_tot.engine.transformers_engine.settings import EngineSettings


def open_engine(model: str | None, device: str, dtype: str, settings: EngineSettings) -> Engine:
    """Load the engine of a model without the messages of transformers.

    Importing torch and transformers creates a million permanent objects. Without garbage collection during the import, it takes
    three quarters of the time.
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
    return load_engine(model, device=device, dtype=dtype, settings=settings)
