"""The benchmarks by name, with their explanations. A benchmark is imported only when it runs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.common.report import Report

BENCHMARKS = {
    "attention": "speed.attention",
    "cgee": "quality.cgee",
    "exactness": "quality.exactness",
    "families": "tasks.families",
    "games": "quality.games",
    "house": "quality.house",
    "labels": "quality.labels",
    "memory": "memory.memory",
    "own_task": "tasks.own_task",
    "paper": "speed.paper",
    "peers": "peers.main",
    "pressure": "memory.pressure",
    "prm": "quality.prm.main",
    "prm_depth": "speed.prm_depth",
    "probe": "quality.prm.probe",
    "prompt_reuse": "quality.prompt_reuse",
    "roofline": "speed.roofline",
    "sandbox": "tasks.sandbox",
    "scale": "speed.scale",
    "structured": "tasks.structured",
    "thinking": "tasks.thinking",
    "throughput": "speed.throughput",
    "verifiers": "quality.verifiers",
}
"""Modules in this package. Each has a ``main`` whose parameters are the options of its command line."""


def main_of(name: str) -> Callable[..., Report]:
    """The function that runs a benchmark."""
    main: Callable[..., Report] = import_module(f"benchmarks.{BENCHMARKS[name]}").main
    return main


def explanation(name: str) -> str:
    """The docstring of a benchmark: what it measures, and what its figures mean."""
    file = Path(__file__).parent.joinpath(*BENCHMARKS[name].split(".")).with_suffix(".py")
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def summary(name: str) -> str:
    """The first line of a benchmark's explanation."""
    return explanation(name).partition("\n")[0]
