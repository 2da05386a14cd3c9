"""Loads a reward model: finds out its kind, takes its head, and proves that trees are computed exactly on it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Unpack, cast

import torch
from torch import nn

from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.engine.model.capability_check import probe
from rksc_tot.engine.model.info import broken_weights, vocabulary_size
from rksc_tot.engine.reward.checkpoint import Checkpoint
from rksc_tot.engine.reward.engine import RewardEngine
from rksc_tot.engine.reward.format import RewardFormat
from rksc_tot.engine.reward.head import RewardModel
from rksc_tot.engine.reward.label_pair import LabelPair, LabelTurns
from rksc_tot.engine.reward.outcome import OutcomeModel
from rksc_tot.engine.reward.step_marker import StepMarker
from rksc_tot.engine.reward.token_classes import TokenClasses, ValueHead
from rksc_tot.engine.transformers_engine.load import DEVICE, DTYPES, device_of
from rksc_tot.engine.transformers_engine.settings import EngineKeywords, EngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KINDS: tuple[type[RewardFormat], ...] = (StepMarker, ValueHead, TokenClasses, OutcomeModel, LabelTurns, LabelPair)
"""In the order in which a checkpoint is tried."""
_log = logging.getLogger("rksc_tot")


def load_reward_engine(
    folder: str | os.PathLike[str],
    *,
    kind: str | None = None,
    marker: str | None = None,
    dtype: str = DTYPES[0],
    device: str = DEVICE,
    trust_remote_code: bool = False,
    **changes: Unpack[EngineKeywords],
) -> RewardEngine:
    """Load a reward model from a folder, and log what was found.

    Parameters
    ----------
    folder
        A folder with config.json, safetensors weights and tokenizer.
    kind
        The kind of the model, if config and weights do not show it: ``step_marker``, ``value_head``, ``token_classes``,
        ``outcome``, ``label_turns`` or ``label_pair``.
    marker
        The text at which steps are read, or that separates them; None: as usual for the kind.
    dtype, device
        As in :func:`rksc_tot.load_engine`.
    trust_remote_code
        Whether code that comes with the model may run.
    **changes
        Engine settings, as in :func:`rksc_tot.load_engine`.

    Raises
    ------
    ModelLoadError
        If the folder holds no reward model of a known kind, or its head or marker is missing.
    UnsupportedModel
        If trees are computed differently on its backbone than plain sequences, or it returns NaN.
    """
    settings = EngineSettings(**changes)
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown", hint=f"use one of {', '.join(DTYPES)}")
    place = device_of(device)
    checkpoint = Checkpoint(folder, None if dtype == "auto" else getattr(torch, dtype), trust_remote_code)
    found = _kind(checkpoint, kind)
    layout = found(checkpoint, marker)
    model = layout.model().eval()
    try:
        model = model.to(place)
    except Exception as error:  # torch raises AssertionError, RuntimeError, NotImplementedError …
        raise ConfigError(f"device {device!r} cannot be used: {error}", hint="use cpu") from error
    _check(model, checkpoint)
    proved = cast("PreTrainedModel", RewardModel(model.backbone, nn.Identity()))
    probe(proved, Arena(1 << 62), packed=settings.pack)
    engine = RewardEngine(model, layout, str(folder), settings)
    _log.info("%s: %s; marker %r", folder, found.what, layout.marker)
    return engine


def _kind(checkpoint: Checkpoint, kind: str | None) -> type[RewardFormat]:
    by_name = {each.kind: each for each in KINDS}
    if kind is not None:
        if kind not in by_name:
            raise ConfigError(
                f"there is no kind of reward model {kind!r}",
                hint=f"{did_you_mean(kind, by_name)}there are {', '.join(by_name)}",
            )
        return by_name[kind]
    for each in KINDS:
        if each.fits(checkpoint):
            return each
    raise checkpoint.error(
        f"{checkpoint.architecture or 'a config without architectures'} is no kind that is known",
        f"name the kind: {', '.join(by_name)}",
    )


def _check(model: RewardModel, checkpoint: Checkpoint) -> None:
    """Refuse a tokenizer of another vocabulary, and a head that returns something else than finite numbers."""
    known, given = vocabulary_size(model.get_input_embeddings()), len(checkpoint.tokenizer)
    if given > known:
        raise checkpoint.error(
            f"the tokenizer has {given} tokens, the model {known}", "load the tokenizer that belongs to the model"
        )
    with torch.inference_mode():
        logits = model(torch.tensor([[1, 2, 3]], device=model.device), use_cache=False).logits
    if not bool(logits.isfinite().all()):
        broken = broken_weights(model)
        found = f"its head returns NaN or infinite numbers{': ' if broken else ''}{broken}"
        raise checkpoint.error(found, "load a whole checkpoint" if broken else "try float32")
