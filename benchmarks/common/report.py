"""What every benchmark shares: options, the environment, and one JSON object at the end."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class BenchmarkOptions:
    """``quick``: finish within a minute. ``trees``: a file of recorded search trees, if one is given."""

    quick: bool = False
    trees: Path | None = None


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


def run(name: str, measure: Callable[[BenchmarkOptions], dict[str, Any]]) -> None:
    """Command line of one benchmark; the last thing printed is the JSON object."""

    def command(
        json_only: Annotated[bool, typer.Option("--json", help="print only the JSON object")] = False,
        quick: Annotated[bool, typer.Option("--quick", help="finish within a minute")] = False,
        trees: Annotated[
            Path | None, typer.Option(exists=True, dir_okay=False, help="recorded search trees, which `memory` replays")
        ] = None,
    ) -> None:
        figures = measure(BenchmarkOptions(quick, trees))
        if not json_only:
            for key, value in flat(figures).items():
                print(f"{key:40} {value}")
        print(json.dumps({"name": name, "figures": flat(figures), "environment": environment()}))

    typer.run(command)


def flat(figures: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures under dotted names."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
