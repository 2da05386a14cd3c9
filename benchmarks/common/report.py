"""The report of a benchmark: figures and environment, printed as lines and as one JSON object."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Any

import typer

Quick = Annotated[bool, typer.Option("--quick", help="finish within a minute")]


@dataclass(frozen=True)
class Report:
    """The result of a benchmark.

    Attributes
    ----------
    figures : dict
        Numbers, verdicts and lists by name; nested figures are printed under dotted names.
    environment : dict
        Facts that figures depend on besides machine and versions, such as the device.
    """

    figures: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)

    def show(self, name: str, json_only: bool) -> None:
        """Print one line for each figure (not with ``json_only``), then the JSON object."""
        figures = flat(self.figures)
        if not json_only:
            for key, value in figures.items():
                print(f"{key:40} {value}")
        told = {"name": name, "figures": figures, "environment": environment() | flat(self.environment)}
        print(json.dumps(told))


def environment() -> dict[str, Any]:
    """Machine and versions that figures depend on."""
    import torch

    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in ("torch", "transformers")},
        **({"card": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def flat(figures: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures under dotted names."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
