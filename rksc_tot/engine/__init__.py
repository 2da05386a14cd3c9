"""One forward pass for everything pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine as TransformersEngine
    from rksc_tot.engine.transformers_engine.load import load_engine as load_engine

__all__ = ["TransformersEngine", "load_engine"]


def __getattr__(name: str) -> Any:
    """Load torch only when an engine is asked for."""
    if name == "load_engine":
        from rksc_tot.engine.transformers_engine.load import load_engine

        return load_engine
    if name == "TransformersEngine":
        from rksc_tot.engine.transformers_engine.engine import TransformersEngine

        return TransformersEngine
    raise AttributeError(f"module 'rksc_tot.engine' has no attribute {name!r}")
