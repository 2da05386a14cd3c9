"""``python -m benchmarks`` lists the benchmarks; ``python -m benchmarks NAME [--json] [--quick] …`` runs one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks.registry import BENCHMARKS, explanation, main_of, summary
from benchmarks.results.page import main as write_results

RESULTS = "results"
JsonOnly = Annotated[bool, typer.Option("--json", help="print only the JSON object")]


def command(name: str) -> Callable[..., None]:
    """A function for typer: the options of the benchmark, and ``--json``."""
    main = main_of(name)

    def run(json_only: bool = False, **options: Any) -> None:
        main(**options).show(name, json_only)

    own = inspect.Parameter("json_only", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOnly)
    given = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(main, eval_str=True).parameters.values()]
    run.__signature__ = inspect.Signature([own, *given])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (own, *given)}
    run.__doc__ = "\b\n" + explanation(name)
    return run


def start(arguments: list[str]) -> None:
    """List the benchmarks, or run the benchmark named by the first argument."""
    if not arguments or arguments[0] in ("--help", "-h"):
        print("python -m benchmarks NAME [--json] [--quick] [--help]\n")
        for name in BENCHMARKS:
            print(f"  {name:14}{summary(name)}")
        print(f"\n  {RESULTS:14}Runs all benchmarks and writes docs/results.md.")
        return
    name, *options = arguments
    if name not in (*BENCHMARKS, RESULTS):
        sys.exit(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(write_results if name == RESULTS else command(name))
    app(options, prog_name=f"python -m benchmarks {name}")


if __name__ == "__main__":
    start(sys.argv[1:])
