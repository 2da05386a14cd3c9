"""The commands that list what is installed: tasks, strategies, verifiers, compression policies."""

from __future__ import annotations

from rksc_tot.cli.exits import one_sentence
from rksc_tot.cli.options.arguments import Debug


def tasks(debug: Debug = False) -> None:
    """List the tasks, each with the settings it usually gives a strategy."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.tasks import TASKS

        write_list(TASKS)


def strategies(debug: Debug = False) -> None:
    """List the strategies, each with the settings that --set changes."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.strategies import STRATEGIES

        write_list(STRATEGIES)


def verifiers(debug: Debug = False) -> None:
    """List the verifiers, each with its settings."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.verifiers import VERIFIERS

        write_list(VERIFIERS)


def policies(debug: Debug = False) -> None:
    """List the policies that --compress takes, each with its settings."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.policies.compression.base import KEEP

        write_list(KEEP)
