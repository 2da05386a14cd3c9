"""What every benchmark shares: the option for a quick run, the environment, and one JSON object at the end."""

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
    """What a benchmark found.

    Attributes
    ----------
    figures : dict
        Numbers, verdicts and lists by name; nested ones are printed under dotted names.
    environment : dict
        What the figures depend on beside the machine and the versions, such as the device.
    """

    figures: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)

    def show(self, name: str, json_only: bool) -> None:
        """Print a line a figure unless ``json_only``, then the JSON object."""
        figures = flat(self.figures)
        if not json_only:
            for key, value in figures.items():
                print(f"{key:40} {value}")
        told = {"name": name, "figures": figures, "environment": environment() | flat(self.environment)}
        print(json.dumps(told))


def environment() -> dict[str, Any]:
    """Machine and versions a figure depends on."""
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
