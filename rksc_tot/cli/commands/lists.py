"""The commands that list installed tasks, strategies, verifiers and compression policies."""

from __future__ import annotations

from rksc_tot.cli.exits import one_sentence
from rksc_tot.cli.options.arguments import Debug


def tasks(debug: Debug = False) -> None:
    """List the tasks, with the settings they give strategies."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.tasks import TASKS
        from rksc_tot.tasks.gym import PREFIX, gym_names

        write_list(TASKS)
        found = gym_names()
        print(f"{PREFIX}:NAME  Generators of reasoning-gym: {', '.join(found) or 'not installed (extra gym)'}")


def strategies(debug: Debug = False) -> None:
    """List the strategies, with the settings for --set."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.strategies import STRATEGIES

        write_list(STRATEGIES)


def verifiers(debug: Debug = False) -> None:
    """List the verifiers, with the settings for --verifier."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.verifiers import VERIFIERS

        write_list(VERIFIERS)


def policies(debug: Debug = False) -> None:
    """List the compression policies, with the settings for --compress."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES

        write_list(COMPRESSION_POLICIES)
