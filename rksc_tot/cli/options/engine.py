"""Options of the engine: model, KV budget, eviction, compression, offload. They are checked before a model is loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from rksc_tot.cli.options.arguments import importable_here
from rksc_tot.cli.options.config_file import Config
from rksc_tot.cli.options.plugins import FORM, plug_in
from rksc_tot.cli.options.verbose import Verbose
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.sizes import kv_budget, kv_bytes
from rksc_tot.engine.transformers_engine.load import DEVICE, DTYPES
from rksc_tot.engine.transformers_engine.settings import EngineKeywords, EngineSettings

if TYPE_CHECKING:
    from rksc_tot.core.task import Task

_log = logging.getLogger("rksc_tot")

EngineArguments = tuple[str | None, str, str, EngineSettings]
"""The arguments of :func:`~rksc_tot.cli.engine.open_engine`: model, device, dtype and settings."""


def _default(setting: str) -> Any:
    return EngineSettings.model_fields[setting].default


@dataclass(frozen=True)
class CommandOptions:
    """Options."""

    config: Config = None
    verbose: Verbose = False


@dataclass(frozen=True)
class ModelOptions(CommandOptions):
    """Model."""

    model: Annotated[
        str | None, typer.Option(help="A Hub id, a folder or a GGUF file. Default: the embedded model.")
    ] = None
    device: Annotated[
        str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1 and so on, or auto: a GPU if there is one.")
    ] = DEVICE
    dtype: Annotated[str, typer.Option(help=f"Number format of weights and KV: {', '.join(DTYPES)}.")] = DTYPES[0]
    kv_budget: Annotated[
        str,
        typer.Option(
            "--kv-budget",
            help="Memory for the KV of all searches, such as 64MiB, or auto: a share of what the device has left. "
            "When it is full, KV is evicted.",
        ),
    ] = _default("kv_budget")

    def arguments(self, task: Task | None = None, **settings: Unpack[EngineKeywords]) -> EngineArguments:
        """The arguments of ``open_engine``. ``settings``: settings of the engine besides the KV budget.

        Without --model, the model is the default one of the task.

        Raises
        ------
        ConfigError
            If the name of the model is empty, or a setting is out of range.
        """
        if self.model is not None and not self.model.strip():
            raise ConfigError("--model is empty", hint="name a model, or leave out --model for the embedded one")
        settings["kv_budget"] = kv_budget(self.kv_budget, "--kv-budget")
        model = task.default_model if self.model is None and task is not None else self.model
        if model is None and task is not None:
            _log.warning("no --model is given: the built-in model knows the game of 24 only")
        return model, self.device, self.dtype, EngineSettings(**settings)


@dataclass(frozen=True)
class EngineOptions(ModelOptions):
    """KV memory."""

    eviction: Annotated[
        str,
        typer.Option(
            help="Which KV is evicted when --kv-budget is full: rsbcm, lru, lfu, random, none, or your own as "
            "module:attribute."
        ),
    ] = _default("eviction")
    compress: Annotated[
        str | None,
        typer.Option(
            metavar=FORM,
            help="Drop part of the KV of paths or thoughts by a policy from `rksc-tot policies`, "
            "or your own as module:attribute, "
            "such as streaming:budget=256. Results are approximate then, except with --lossless, and with arborkv, which acts "
            "when --kv-budget is full and recomputes dropped KV before it is needed (unless rehydrate=false). "
            "Default: drop nothing.",
        ),
    ] = None
    lossless: Annotated[
        bool,
        typer.Option(
            help="With --compress: draft from the KV that is left and verify with all KV, so that results are exact."
        ),
    ] = False
    offload: Annotated[
        str | None,
        typer.Option(help="Copy evicted KV to cpu or disk, and back when it is needed. Default: recompute it."),
    ] = None
    offload_budget: Annotated[str, typer.Option(help="Most memory or disk space for that copy.")] = _default(
        "offload_budget"
    )
    offload_folder: Annotated[  # a str, as an empty Path is the current folder
        str | None,
        typer.Option(
            metavar="<path>", help="Folder for --offload disk. Default: the system's folder for temporary files."
        ),
    ] = None

    def arguments_for(self, task: Task | None = None) -> EngineArguments:
        """The arguments of ``open_engine``, with the compression policy looked up.

        Raises
        ------
        ConfigError
            If options are invalid or exclude each other, or the compression policy was fitted to another task.
        """
        from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES

        kv_budget(self.kv_budget, "--kv-budget")
        kv_bytes(self.offload_budget, "--offload-budget")
        importable_here(self.eviction)
        policy = (
            None
            if self.compress is None
            else plug_in(COMPRESSION_POLICIES, "--compress", self.compress, "streaming:budget=256")
        )
        if policy is not None and task is not None:  # check_model follows once the model is loaded
            policy.check_task(task.name or type(task).__name__)
        return self.arguments(
            task, eviction=self.eviction, compress=policy, lossless=self.lossless,
            offload=self.offload, offload_budget=self.offload_budget, offload_folder=self.offload_folder,
        )  # fmt: skip

    def describe(self, arguments: EngineArguments) -> dict[str, Any]:
        """The engine settings that results depend on. KV budget, eviction and offload matter only if the engine is lossy."""
        model, device, dtype, settings = arguments
        described: dict[str, Any] = {"model": model or "embedded", "device": device, "dtype": dtype}
        if settings.compress is not None:
            described["compress"] = settings.compress.describe()
            described["lossless"] = bool(settings.lossless)
        if settings.lossy:
            described |= {name: getattr(settings, name) for name in ("kv_budget", "offload", "offload_budget")}
            described["eviction"] = settings.eviction.name
        return described
