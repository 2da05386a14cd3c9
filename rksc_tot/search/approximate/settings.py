"""The settings of approximations: which are on, and what share of their decisions is audited."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine, SharingEngine
from rksc_tot.policies.asks import ASKS, PromptReuse
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop, VerifySkip
from rksc_tot.search.approximate.calibration import AGAIN, Calibration

CALIBRATED = "lm_value"  # the verifier whose decisions are calibrated


class RKSC(Settings):
    """Which decisions a search may take early (CGEE) and what KV it may share (ASKS). Without it a search is exact.

    ::

        solve("game24", "4 5 6 10", engine=engine, rksc=RKSC(calibration="game24.json"))

    Parameters
    ----------
    calibration
        A :class:`~rksc_tot.search.approximate.calibration.Calibration`, its file, or ``"embedded"`` for the calibration of
        the embedded model. None: nothing is decided early.
    exit
        Whether a verifier's pass may stop at a layer, if the calibration accepts a rule for it.
    skip
        Whether siblings may go unverified when one is decisive, if the calibration accepts a rule for it.
    rivals
        Whether branches may stop being written once another is decisive. Off unless asked for. The calibration's promise is
        about thoughts that the task accepts; one that it would turn away may be decisive, too.
    sibling
        When a thought that is like a sibling, by their hidden states, becomes one with it. Off unless given.
    phrasing
        When the other wordings of a prompt (``Task.prompt_variants``) keep KV they took over from it. Off unless given; it has an
        audit of its own.
    audit
        Share, 0..1, of the decisions that are also taken in full, to see how many come out otherwise; these are seeded by
        node. What is audited counts as it comes out in full, but for siblings, which stay one, and for thoughts and
        scores on KV that a compression policy reduced, which stay as they are.
    """

    kind = "RKSC"
    calibration: Calibration | Path | str | None = None
    exit: bool = True
    skip: bool = True
    rivals: bool = False
    sibling: ASKS | None = None
    prompt_reuse: PromptReuse | None = None
    audit: float = Field(0.03, ge=0, le=1, allow_inf_nan=False)

    def loaded(self) -> RKSC:
        """The same with the calibration read from its file. Raises ConfigError if that is no calibration."""
        if self.calibration is None or isinstance(self.calibration, Calibration):
            return self
        return self.model_copy(update={"calibration": Calibration.load(self.calibration)})

    def ready(self, engine: Engine, task: Task, verifier: str) -> RKSC:
        """The same with the calibration loaded and found to hold for an engine, a task and a verifier by its name.

        Raises
        ------
        ConfigError
            If the file is no calibration, or was made for another model, task or verifier; or if rival stop is asked for and
            was refused.
        """
        if (self.sibling or self.prompt_reuse) and not isinstance(engine, SharingEngine):
            raise ConfigError(f"ASKS needs the KV, which {engine.name} does not give", hint="search without it")
        if self.sibling and not engine.layers:
            raise ConfigError(
                f"sibling sharing compares hidden states, which {engine.name} does not give", hint="search without it"
            )
        loaded = self.loaded()
        held = loaded.held
        if held is None:
            if self.rivals:
                raise ConfigError("rival stop needs a calibration", hint=AGAIN)
            return self
        if verifier != CALIBRATED:
            raise ConfigError(
                f"a calibration is about the verifier {CALIBRATED!r}, this search has {verifier!r}",
                hint="use that one, or leave the calibration out",
            )
        held.check(engine, task)
        if self.rivals and held.rivals.refused:
            raise ConfigError(f"rival stop is asked for, but was refused: {held.rivals.refused}", hint=AGAIN)
        return loaded

    @property
    def held(self) -> Calibration | None:
        """The calibration, once it is loaded."""
        return self.calibration if isinstance(self.calibration, Calibration) else None

    @property
    def exit_rule(self) -> ExitRule | None:
        """In force: when a verifier's pass may stop."""
        return self.held.exit.rule if self.held and self.exit else None

    @property
    def skip_rule(self) -> VerifySkip | None:
        """In force: when siblings go unverified."""
        return self.held.skip.rule if self.held and self.skip else None

    @property
    def rival_rule(self) -> RivalStop | None:
        """In force: when rivals stop being written."""
        return self.held.rivals.rule if self.held and self.rivals else None

    def summary(self) -> dict[str, object]:
        """Which switches were on, for a result: the rules in force, the promise behind them, the share audited."""
        rules = {"exit": self.exit_rule, "skip": self.skip_rule, "rivals": self.rival_rule}
        on: dict[str, object] = {
            name: rule.model_dump() if isinstance(rule, Settings) else None for name, rule in rules.items()
        }
        if self.held:
            on |= {"delta": self.held.delta, "alpha": self.held.alpha, "calibrated": self.held.date.isoformat()}
        return {
            **on,
            "sibling": self.sibling and self.sibling.model_dump(),
            "prompt_reuse": self.prompt_reuse and self.prompt_reuse.model_dump(),
            "audit": self.audit,
        }
