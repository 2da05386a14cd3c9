"""The settings of an engine: KV budget, eviction, compression, offload. Importing this file does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypedDict

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.sizes import AUTO, OFFLOAD_BUDGET, kv_budget, kv_bytes
from rksc_tot.policies.compression.base import CompressionPolicy
from rksc_tot.policies.compression.lossless import Lossless, lossless_settings
from rksc_tot.policies.compression.registry import compression_policy
from rksc_tot.policies.eviction.base import EvictionPolicy
from rksc_tot.policies.eviction.registry import eviction_policy

if TYPE_CHECKING:
    from rksc_tot.cache.offload.store import OffloadStore

    Offload = OffloadStore | Literal["cpu", "disk"] | None
else:  # the class would import torch
    Offload = Any


class EngineKeywords(TypedDict, total=False):
    """The engine settings as keyword arguments, with the types that each accepts."""

    kv_budget: int | str | SharedKVBudget
    eviction: str | EvictionPolicy
    compress: str | CompressionPolicy | None
    lossless: bool | Lossless
    offload: str | OffloadStore | None
    offload_budget: int | str
    offload_folder: str | Path | None
    max_batch_tokens: int
    pack: bool | None


class EngineSettings(Settings):
    """The settings of an engine.

    Parameters
    ----------
    kv_budget
        Bytes of KV that may be resident, prompts included, or a text such as ``64MiB``. Never exceeded, not even by one token.
        ``auto``: a share of what the device has left when the engine is made, 0.8 on a GPU and 0.5 on a CPU.
        A :class:`~rksc_tot.cache.kv_budget.shared_kv_budget.SharedKVBudget` limits the KV of several engines together.
    eviction
        The order of eviction: ``rsbcm``, ``lru``, ``lfu``, ``random``, ``none``, or a policy of your own
        (entry point ``rksc_tot.eviction``, ``module:attribute``, or an
        :class:`~rksc_tot.policies.eviction.base.EvictionPolicy`). Evicted KV is computed again when its path is visited,
        with the same result.
    compress
        The policy that drops part of the KV of paths or thoughts: ``random_attention``, ``streaming``,
        ``snapkv``, ``arborkv``, or a policy of your own (entry point ``rksc_tot.compression``, ``module:attribute``, or a
        :class:`~rksc_tot.policies.compression.base.CompressionPolicy`). Results computed from compressed KV are not exact
        and are marked so. None: all KV is kept.
    lossless
        True: tokens generated from compressed KV are drafts, verified on the full KV, so results equal those without
        ``compress``. Or a :class:`~rksc_tot.policies.compression.lossless.Lossless` with its own settings.
    offload
        Where evicted KV is copied: ``cpu`` (host memory), ``disk`` (a file), or an
        :class:`~rksc_tot.cache.offload.store.OffloadStore`, which the engine closes when it is closed. KV is copied back
        where that was measured to be faster than computing it. None: no offload.
    offload_budget
        Bytes that the offload store may hold, written like ``kv_budget``.
    offload_folder
        Folder of the offload file. None: the system's folder for temporary files.
    max_batch_tokens
        Most rows of one forward pass. Longer prompts are prefilled in chunks.
    pack
        Whether oneDNN computes linear layers, from a packed copy of their weights (on the CPU, in float32 and bfloat16).
        The weights are read once, when the engine is made. None: where that is usually faster.

    Raises
    ------
    ConfigError
        If a value is out of range, or a setting needs another one that is missing.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    kind: ClassVar[str] = "engine"
    kv_budget: int | SharedKVBudget | Literal["auto"] = Field("1GiB", validate_default=True)
    eviction: Annotated[EvictionPolicy, BeforeValidator(eviction_policy)] = Field("rsbcm", validate_default=True)
    compress: Annotated[CompressionPolicy | None, BeforeValidator(compression_policy)] = None
    lossless: Lossless | Literal[False] = False
    offload: Offload = None
    offload_budget: int = Field(OFFLOAD_BUDGET, validate_default=True)
    offload_folder: SkipValidation[str | Path | None] = None
    max_batch_tokens: int = Field(2048, ge=1, strict=True)
    pack: bool | None = Field(None, strict=True)

    @classmethod
    def of(cls, settings: EngineSettings | None, changes: EngineKeywords) -> EngineSettings:
        """``settings``, or the defaults where that is None, with ``changes``."""
        if settings is None:
            return cls(**changes)
        return cls(**{**dict(settings), **changes}) if changes else settings

    @property
    def lossy(self) -> bool:
        """Whether jobs continue from compressed KV, so that results are not exact."""
        return self.compress is not None and not self.lossless and not getattr(self.compress, "rehydrate", False)

    @field_validator("kv_budget", "offload_budget", mode="before")
    @classmethod
    def _in_bytes(cls, given: int | str | SharedKVBudget, info: ValidationInfo) -> int | SharedKVBudget | str:
        if isinstance(given, SharedKVBudget):
            return given
        if info.field_name == "kv_budget":
            return kv_budget(given, "kv_budget")
        size = kv_bytes(given, str(info.field_name))
        if info.field_name == "offload_budget" and size != kv_bytes(OFFLOAD_BUDGET):
            _needs_offload(info, given)
        return size

    @field_validator("lossless", mode="before")
    @classmethod
    def _drafts(cls, given: bool | Lossless, info: ValidationInfo) -> Lossless | Literal[False]:
        drafts = lossless_settings(given)
        if drafts is not None and info.data["compress"] is None:
            raise ConfigError(
                "lossless verifies drafts from compressed KV, and compress is not set",
                hint="name a compression policy, or leave lossless out",
            )
        return drafts or False

    @field_validator("offload_folder", mode="before")
    @classmethod
    def _folder(cls, given: str | Path | None, info: ValidationInfo) -> str | Path | None:
        if given is not None:
            _needs_offload(info, given)
        return given

    @model_validator(mode="after")
    def _can_be_repeated(self) -> Self:
        if self.lossy and self.kv_budget == AUTO:
            raise ConfigError(
                "kv_budget is 'auto', which differs between runs, and results from compressed KV depend on it",
                hint="set kv_budget to a size",
            )
        return self

    @model_validator(mode="after")
    def _can_be_opened(self) -> Self:
        if self.offload is not None:
            from rksc_tot.cache.offload.open_store import open_store

            open_store(self.offload, self.offload_budget, self.offload_folder)  # checks them; needs no memory
        return self


def _needs_offload(info: ValidationInfo, given: object) -> None:
    if info.data["offload"] is None:
        raise ConfigError(
            f"{info.field_name} is {shown(str(given))}, and offload is not set", hint="set offload to cpu or disk"
        )
