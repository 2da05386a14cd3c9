"""The inside of a peer that runs in an interpreter of its own: JSON lines in, JSON lines out, nothing else on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.peers.search import Backend, from_json, search


def serve(load: Callable[[dict[str, Any]], tuple[Backend, dict[str, Any]]]) -> None:
    """Load what the command line asks for, say what was loaded, then run a search a line until there are no more."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the log

    def say(told: dict[str, Any]) -> None:
        print(json.dumps(told), file=out, flush=True)

    backend, told = load(json.loads(sys.argv[1]))
    say(told)
    for line in sys.stdin:
        shape, problem = from_json(json.loads(line))
        say(asdict(search(backend, problem, shape)))
