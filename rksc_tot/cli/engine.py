"""Loads the models of a command: that of the engine, and that of a process reward model as verifier."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rksc_tot.cli.options.engine import EngineArguments
    from rksc_tot.engine.base import Engine
    from rksc_tot.engine.transformers_engine.settings import EngineSettings
    from rksc_tot.verifiers import Verifier


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


def share_budget(verifier: Verifier | None, arguments: EngineArguments) -> tuple[Verifier | None, EngineArguments]:
    """Have a process reward model run where the engine runs, with one KV budget for both, unless it has settings of its own."""
    from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
    from rksc_tot.engine.transformers_engine.settings import EngineSettings
    from rksc_tot.verifiers import PRM

    model, device, dtype, settings = arguments
    if not isinstance(verifier, PRM):
        return verifier, arguments
    given, changes = verifier.model_fields_set, dict[str, object]()
    if "device" not in given:
        changes["device"] = device
    if "kv_budget" not in given and isinstance(settings.kv_budget, int):
        changes["kv_budget"] = shared = SharedKVBudget(settings.kv_budget)
        settings = EngineSettings.of(settings, {"kv_budget": shared})
    return verifier.model_copy(update=changes), (model, device, dtype, settings)
