"""Compares mathematical expressions with math-verify, in a process of its own that is ended if it takes too long.

An expression of a model may keep sympy busy for ever. A thread cannot be ended, and math-verify's own limit works only in the
main thread.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import queue
import subprocess
import sys
import threading
from typing import Any

from rksc_tot.core.errors import MissingExtra, TaskError

SECONDS = 10.0  # of one comparison
START_SECONDS = 120.0  # until the process has imported sympy
LONGEST = 2000  # characters of an expression

CHILD = """
import json, logging, sys
logging.disable()
from math_verify import parse, verify
print("ready", flush=True)
for line in sys.stdin:
    target, answer = json.loads(line)
    try:
        wrapped = ["$" + text.strip().strip("$") + "$" for text in (target, answer)]
        right = verify(*(parse(text, parsing_timeout=None) for text in wrapped), timeout_seconds=None)
    except Exception:
        right = False
    print(json.dumps(bool(right)), flush=True)
"""


class MathProcess:
    """The process that compares expressions. It is started when it is first needed."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._replies: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()

    def same(self, target: str, answer: str) -> bool:
        """Whether two expressions are equal; False if that takes longer than the limit.

        Raises
        ------
        TaskError
            If the process cannot be started.
        """
        if max(len(target), len(answer)) > LONGEST:
            return target.strip() == answer.strip()
        with self._lock:
            child = self._child or self._start()
            assert child.stdin is not None
            try:
                child.stdin.write(json.dumps([target, answer]) + "\n")
                child.stdin.flush()
                return bool(json.loads(self._replies.get(timeout=SECONDS)))
            except (queue.Empty, ValueError, OSError):  # too slow, or it died
                self._end()
                return False

    def _start(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._child, self._replies = child, queue.Queue()
        threading.Thread(target=_read, args=(child.stdout, self._replies), daemon=True).start()
        atexit.register(self._end)
        try:
            ready = self._replies.get(timeout=START_SECONDS)
        except queue.Empty:
            ready = ""
        if ready.strip() != "ready":
            self._end()
            raise TaskError("math-verify cannot be started", hint="try: python -c 'import math_verify'")
        return child

    def _end(self) -> None:
        atexit.unregister(self._end)
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    stream.close()
            self._child = None


def _read(stream: Any, replies: queue.Queue[str]) -> None:
    """Hand on the lines of a stream; an empty text at its end."""
    try:
        for line in stream:
            replies.put(line)
    except ValueError:  # the stream was closed
        pass
    replies.put("")


_PROCESS = MathProcess()


def same_expression(target: str, answer: str) -> bool:
    """Whether two expressions are equal, in LaTeX or as plain text.

    Raises
    ------
    MissingExtra
        If math-verify is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra("the reward math needs the package math-verify", hint="pip install rksc-tot[math]")
    return _PROCESS.same(target, answer)
