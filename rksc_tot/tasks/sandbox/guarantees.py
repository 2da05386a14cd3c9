"""What a sandbox guarantees, and the report of what this system can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Guarantee = Literal["time", "memory", "processes", "output", "network", "reads", "writes", "signals", "cleanup"]

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What this system can hold.

    Attributes
    ----------
    held : Mapping
        Maps each guarantee that holds to the means, such as ``network`` to ``network namespace, system call filter``.
    missing : Mapping
        Maps each guarantee that does not hold to the reason.
    """

    held: Mapping[str, str]
    missing: Mapping[str, str]

    def refusal(self, accept: tuple[Guarantee, ...]) -> str:
        """Why the sandbox refuses to run code, and what to do; empty if it runs code."""
        lacking = {name: why for name, why in self.missing.items() if name not in accept}
        if not lacking:
            return ""
        names = ", ".join(lacking)
        return (
            f"the sandbox cannot hold {names}: {'; '.join(dict.fromkeys(lacking.values()))} - accept the weaker sandbox by "
            f"name, Sandbox(accept={[*lacking]!r}), or run where the system allows it (docs/tools.md)"
        )
