"""The main loop of a peer in its own interpreter: JSON lines in, JSON lines out, no other output on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.peers.search import Backend, from_json, search


def serve(load: Callable[[dict[str, Any]], tuple[Backend, dict[str, Any]]]) -> None:
    """Load a peer by the arguments, print its facts, then run one search for each line of input."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of libraries go to the log

    def say(told: dict[str, Any]) -> None:
        print(json.dumps(told), file=out, flush=True)

    backend, told = load(json.loads(sys.argv[1]))
    say(told)
    for line in sys.stdin:
        shape, problem = from_json(json.loads(line))
        say(asdict(search(backend, problem, shape)))
