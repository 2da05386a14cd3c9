"""Output of the commands: results to stdout, progress to stderr; with ``--json`` nothing but JSON to stdout."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from rksc_tot.api.result import Result
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.user_code import one_line, text_of
from rksc_tot.engine.base import Engine, Reader
from rksc_tot.engine.transformers_engine.load import EMBEDDED
from rksc_tot.evaluation import Row
from rksc_tot.views.terminal.comparison_table import comparison_table
from rksc_tot.views.terminal.live_tree import LiveTree
from rksc_tot.views.terminal.pace import Pace
from rksc_tot.views.terminal.result_report import report
from rksc_tot.views.terminal.settings import setting_lines


@contextmanager
def live_tree(problem: str, redraw: bool, as_json: bool) -> Iterator[LiveTree]:
    """A live tree of a search. With ``as_json`` nothing is drawn."""
    view = LiveTree(problem, redraw=redraw)
    if as_json:
        yield view
    else:
        with view:
            yield view


@contextmanager
def loading(shown: bool) -> Iterator[None]:
    """A status line on stderr, if that is a terminal, while a model is loaded."""
    console = Console(stderr=True)
    if shown and console.is_terminal:
        with console.status("loading the model"):
            yield
    else:
        yield


@contextmanager
def progress(total: int, shown: bool) -> Iterator[Callable[[str], None]]:
    """Progress on stderr: a bar on a terminal, else a line now and then. Yields a function to call after each search."""
    console, pace = Console(stderr=True), Pace()
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        work = bar.add_task("", total=total)
        done = itertools.count(1)

        def advance(label: str) -> None:
            bar.update(work, advance=1, description=label)
            number = next(done)
            if shown and not console.is_terminal and pace.due():
                console.print(Text(f"{number} of {total} searches, {one_line(label)}"), soft_wrap=True)

        yield advance


def write_model(engine: Engine) -> None:
    """Write the model, its dtype and its device; on a CPU also a faster dtype, if there is one."""
    numerics = engine.numerics
    if "dtype" not in numerics:  # an engine without a model
        return
    dtype, device = str(numerics["dtype"]), str(numerics["device"])
    advice = ""
    if device.startswith("cpu") and engine.name != EMBEDDED:  # too small for the dtype to matter
        from rksc_tot.engine.model.onednn_linear import computes_bfloat16

        advice = dtype_advice(dtype, computes_bfloat16())
    Console().print(Text(f"model {one_line(engine.name)}, {dtype} on {device}{advice}", style="dim"), soft_wrap=True)


def write_reader(engine: Engine, reader: Reader) -> None:
    """Write the kind of the reward model, if the verifier has one."""
    layout = getattr(reader, "layout", None)
    if reader is not engine and layout is not None:
        Console().print(Text(f"reward model {one_line(reader.name)}: {layout.what}", style="dim"), soft_wrap=True)


def dtype_advice(dtype: str, computes_bfloat16: bool) -> str:
    """Advice on the dtype for a CPU with or without bfloat16 instructions; empty if there is none."""
    if dtype == "float32" and computes_bfloat16:
        return "; --dtype bfloat16 takes half the memory and is faster on this processor, but rounds more"
    if dtype != "float32" and not computes_bfloat16:
        return f"; this processor does not compute in bfloat16: --dtype float32 is faster for search than {dtype}"
    return ""


def write_result(result: Result, as_json: bool) -> None:
    """Write a result as a report or as one JSON object."""
    if not as_json:
        Console().print(report(result))
        return
    print(strict_json(record_of(result)))


def record_of(result: Result, *, tree: bool = True) -> dict[str, Any]:
    """A result as JSON values: its ledger with the derived shares and, with ``tree``, its tree as records."""
    record = {name: getattr(result, name) for name in Result.model_fields if name != "tree"}
    saved = {name: getattr(result.ledger, name) for name in ("prefill_saved", "layers_saved")}
    record["ledger"] = {**result.ledger.model_dump(), **saved}
    return {**record, "tree": result.tree.to_records()} if tree else record


def write_rows(rows: Sequence[Row], as_json: bool, **context: Any) -> None:
    """Write rows of a comparison as a table, or with the ``context`` as one JSON object."""
    if as_json:
        print(strict_json({**context, "rows": [row.model_dump() for row in rows]}))
    else:
        Console().print(comparison_table(rows))


def write_list(registry: Registry[Any]) -> None:
    """Write name and summary of every plug-in, and a line for each setting. A broken plug-in has its error as summary."""
    names = registry.names()
    width = max(map(len, names), default=0)
    for name in names:
        try:
            summary = registry.summary(name)
        except RkscTotError as error:
            summary, settings = f"({error})", []
        else:
            settings = setting_lines(registry.example(name), registry.base)
        print(f"{name:<{width}}  {one_line(summary)}")
        for setting in settings:
            print(f"{'':<{width}}    {one_line(setting)}")


def strict_json(value: object) -> str:
    """The value as strict JSON on one line of ASCII."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: object) -> object:
    """The value as JSON values; anything else, such as an infinite number, becomes a string."""
    if isinstance(value, Mapping):
        return {text_of(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    exact = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if exact else text_of(value)


def check_writable(out: Path) -> None:
    """Raise ConfigError if a file cannot be written."""
    if out.is_dir() or not out.absolute().parent.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise ConfigError(f"{str(out)!r} cannot be written", hint="name a file in an existing folder")
