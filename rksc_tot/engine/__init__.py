"""One forward pass for everything pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine as TransformersEngine
    from rksc_tot.engine.transformers_engine.load import engine_from as engine_from
    from rksc_tot.engine.transformers_engine.load import load_engine as load_engine

__all__ = ["TransformersEngine", "engine_from", "load_engine"]


def __getattr__(name: str) -> Any:
    """Load torch only when an engine is asked for."""
    if name in ("engine_from", "load_engine"):
        from rksc_tot.engine.transformers_engine import load

        return getattr(load, name)
    if name == "TransformersEngine":
        from rksc_tot.engine.transformers_engine.engine import TransformersEngine

        return TransformersEngine
    raise AttributeError(f"module 'rksc_tot.engine' has no attribute {name!r}")
