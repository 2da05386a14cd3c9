"""``Sandbox``: runs Python code that a model wrote in a confined subprocess. Every failure is a recorded result.

::

    result = Sandbox(seconds=10).run("print(6 * 7)")
    result.ok, result.stdout  # True, "42\\n"
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.sizes import kv_bytes
from rksc_tot.tasks.sandbox.guarantees import GUARANTEES, Guarantee, Guarantees
from rksc_tot.tasks.sandbox.run import SandboxResult, SandboxRun


class Sandbox(Settings):
    """Runs Python code in a confined subprocess. One object serves many searches and threads.

    Parameters
    ----------
    seconds : float
        Most wall time of the code.
    cpu_seconds : int
        Most processor time of each process. Slow neighbours do not use it up, so it decides before the wall time does.
    memory : int or str
        Most address space of each process, such as ``512MiB``.
    processes : int
        Most processes and threads of the code at a time, the first one included.
    output : int or str
        Most bytes of standard output, and of standard error.
    disk : int or str
        Most bytes in the code's folder, which is in memory.
    folders : tuple of str
        Folders that the code may read besides Python's standard library and the system's libraries. A sandbox of root runs the
        code as another user, so that the files must be readable by all.
    concurrency : int or None
        Most runs at the same time. None: one for each core.
    accept : tuple of str
        Guarantees to go without where the system cannot hold them; see :meth:`guarantees`.
    """

    kind = "sandbox"
    seconds: float = Field(30.0, gt=0, le=86400)
    cpu_seconds: int = Field(5, ge=1, le=86400)
    memory: int = Field(512 << 20, ge=64 << 20)
    processes: int = Field(1, ge=1, le=4096)
    output: int = Field(64 << 10, ge=1)
    disk: int = Field(16 << 20, ge=4096)
    folders: tuple[str, ...] = ()
    concurrency: int | None = Field(None, ge=1)
    accept: tuple[Guarantee, ...] = ()

    @field_validator("memory", "output", "disk", mode="before")
    @classmethod
    def _bytes(cls, size: Any) -> int:
        return kv_bytes(size)

    def run(self, code: str, stdin: str = "") -> SandboxResult:
        """Run Python code. Waits for a free place if ``concurrency`` runs are under way."""
        return self._pool.submit(self._new_run(code, stdin).result).result()

    async def arun(self, code: str, stdin: str = "") -> SandboxResult:
        """As :meth:`run`, in an event loop. A cancelled run ends its processes."""
        run = self._new_run(code, stdin)
        try:
            return await asyncio.wrap_future(self._pool.submit(run.result))
        except asyncio.CancelledError:
            run.cancel()
            raise

    def guarantees(self) -> Guarantees:
        """What this system can hold, and by what means. A short program is run once to find out."""
        return self._guarantees

    @cached_property
    def _guarantees(self) -> Guarantees:
        run = self._new_run("pass", "")
        result = run.result()
        if result.reason == "lost":
            return Guarantees({}, dict.fromkeys(GUARANTEES, f"{result.detail} {result.stderr}".rstrip()))
        return run.guarantees

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.concurrency or os.cpu_count() or 1, "rksc_tot.sandbox")

    def _new_run(self, code: str, stdin: str) -> SandboxRun:
        return SandboxRun({name: getattr(self, name) for name in type(self).model_fields}, code, stdin)
