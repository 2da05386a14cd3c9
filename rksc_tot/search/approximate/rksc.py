"""``RKSC``: which approximations are on, and the share of their decisions that is audited."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine, SharingEngine
from rksc_tot.policies.asks import ASKS, PromptReuse
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop, VerifySkip
from rksc_tot.search.approximate.calibration import AGAIN, CalibratedVerifier, Calibration


class RKSC(Settings):
    """Which decisions a search may take early (CGEE), and which KV it may share (ASKS). Without it, a search is exact.

    ::

        solve("game24", "4 5 6 10", engine=engine, rksc=RKSC(calibration="game24.json"))

    Parameters
    ----------
    calibration
        A :class:`~rksc_tot.search.approximate.calibration.Calibration`, its file, or ``"embedded"`` for the calibration of
        the embedded model. None: no decision is taken early.
    exit
        Layer exit: whether a verifier's pass may stop at a layer. Needs an accepted rule in the calibration.
    skip
        Verify skip: whether siblings are not verified if one is decisive. Needs an accepted rule in the calibration.
    rivals
        Rival stop: whether branches stop once another one is decisive. Off by default, as the guarantee covers only thoughts
        that the task accepts, and a thought that it rejects may be decisive too.
    sibling
        Merges a thought into a sibling with similar hidden states. None: off.
    prompt_reuse
        When prompt variants (``Task.prompt_variants``) keep KV that they reused from the prompt. None: off. It has an audit
        share of its own.
    audit
        Share, 0..1, of the decisions that are also taken in full; chosen by a random stream named by the node. For early
        decisions the full decision counts. Merged siblings stay merged, and thoughts and scores on compressed KV stay as they
        are.
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
        """These settings with the calibration read from its file. Raises ConfigError if it is not a valid calibration."""
        if self.calibration is None or isinstance(self.calibration, Calibration):
            return self
        return self.model_copy(update={"calibration": Calibration.load(self.calibration)})

    def ready(self, engine: Engine, task: Task, verifier: CalibratedVerifier) -> RKSC:
        """These settings with the calibration loaded, checked for an engine, a task and a verifier.

        Raises
        ------
        ConfigError
            If the file is not a calibration; if it was made for another model, task or verifier; if the engine cannot share KV;
            or if ``rivals`` is on and the calibration has no accepted rule for it.
        """
        if (self.sibling or self.prompt_reuse) and not isinstance(engine, SharingEngine):
            raise ConfigError(
                f"ASKS needs access to the KV, which {engine.name} does not give",
                hint="leave out sibling and prompt_reuse",
            )
        if self.sibling and not engine.layers:
            raise ConfigError(
                f"sibling merging compares hidden states, which {engine.name} does not give", hint="leave out sibling"
            )
        loaded = self.loaded()
        held = loaded.held
        if held is None:
            if self.rivals:
                raise ConfigError("rivals is on without a calibration", hint=AGAIN)
            return self
        held.check(engine, task, verifier)
        if self.rivals and held.rivals.refused:
            raise ConfigError(
                f"rivals is on, but the calibration has no rule for it: {held.rivals.refused}", hint=AGAIN
            )
        return loaded

    @property
    def held(self) -> Calibration | None:
        """The loaded calibration, None before :meth:`loaded` or without one."""
        return self.calibration if isinstance(self.calibration, Calibration) else None

    @property
    def exit_rule(self) -> ExitRule | None:
        """The rule for layer exit, None if it is off."""
        return self.held.exit.rule if self.held and self.exit else None

    @property
    def skip_rule(self) -> VerifySkip | None:
        """The rule for verify skip, None if it is off."""
        return self.held.skip.rule if self.held and self.skip else None

    @property
    def rival_rule(self) -> RivalStop | None:
        """The rule for rival stop, None if it is off."""
        return self.held.rivals.rule if self.held and self.rivals else None

    def summary(self) -> dict[str, object]:
        """The settings for a result: the active rules, δ and α of their guarantee, and the audit share."""
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
