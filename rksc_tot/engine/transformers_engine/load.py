"""Engines of models as people have them: loaded already, or by name: the embedded one, a folder, a GGUF file, a hub id."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rksc_tot.core.errors import ConfigError, MissingExtra, ModelLoadError, UnsupportedModel
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.engine.transformers_engine.settings import EngineKeywords, EngineSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rksc_tot.engine.transformers_engine.engine import TransformersEngine

EMBEDDED = "embedded"
ADAPTER = "adapter_config.json"
DEVICE = "cpu"
DTYPES = ("float32", "bfloat16", "float16", "auto")  # the first is the default


def load_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    dtype: str = DTYPES[0],
    device: str = DEVICE,
    revision: str | None = None,
    trust_remote_code: bool = False,
    settings: EngineSettings | None = None,
    **changes: Unpack[EngineKeywords],
) -> TransformersEngine:
    """Load a causal LM, and prove that trees decode exactly on it.

    Parameters
    ----------
    model
        None or ``embedded``: the game-of-24 model that ships with the package. ``embedded:NAME``: that of another built-in task,
        such as ``embedded:sudoku4``. Else a folder written by ``save_pretrained``, also of a PEFT adapter (extra ``peft``), a
        ``.gguf`` file (extra ``gguf``), or a hub id.
    dtype
        ``float32``, ``bfloat16``, ``float16``, or ``auto``: that of the checkpoint. bfloat16 is fast on a CPU with bfloat16
        products, and exact to two or three digits only.
    device
        A torch device such as ``cpu`` or ``cuda:0``, or ``auto``: a GPU if there is one.
    revision
        Revision of a hub id.
    trust_remote_code
        Whether code that comes with a model may run. If not, a model that needs such code is refused.
    **changes
        Engine settings: ``kv_budget``, ``eviction``, ``compress``,
        ``lossless``, ``offload``, ``offload_budget``, ``offload_folder``, ``max_batch_tokens``, ``pack``. See
        :class:`~rksc_tot.engine.transformers_engine.settings.EngineSettings`.
    settings
        Engine settings as one object, which ``changes`` override.

    Raises
    ------
    ConfigError
        A setting is out of range, needs another one, or does not fit this model. Most are found before anything is loaded.
    ModelLoadError
        No such model, or not a causal LM.
    UnsupportedModel
        It loads, but a tree does not decode as a sequence does.
    MissingExtra
        A GGUF file without the extra ``gguf``, an adapter without ``peft``, or a quantised checkpoint without accelerate.
    """
    settings = EngineSettings.of(settings, changes)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rksc_tot.engine.transformers_engine.engine import TransformersEngine

    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown", hint=f"use one of {', '.join(DTYPES)}")
    place = device_of(device)
    source, options = _source(model)
    options |= {"revision": revision, "trust_remote_code": trust_remote_code}
    options = {key: value for key, value in options.items() if value}
    try:
        tokenizer = AutoTokenizer.from_pretrained(_with_tokenizer(source), **options)
        if _quantised(source, options):
            options["device_map"] = {"": place}  # such a model cannot be moved
        safe = {} if "gguf_file" in options else {"use_safetensors": True}  # never load a pickle
        kind = dtype if dtype == "auto" else getattr(torch, dtype)
        found: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=kind, output_loading_info=True, **safe, **options
        )
        loaded, info = found
    except MissingExtra:
        raise
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, RuntimeError, safetensors errors …
        raise ModelLoadError(
            f"cannot load {str(model or EMBEDDED)!r} as a causal LM: {_first_line(error)}",
            hint="give a folder with config.json, weights and tokenizer, a .gguf file, or the id of a cached hub model",
        ) from error
    try:
        loaded = loaded.eval() if "device_map" in options else loaded.to(place).eval()
    except Exception as error:  # torch raises AssertionError, RuntimeError, NotImplementedError …
        raise ConfigError(f"device {device!r} cannot be used: {_first_line(error)}", hint="use cpu") from error
    if missing := sorted(info["missing_keys"]):
        raise ModelLoadError(
            f"{str(model or EMBEDDED)!r} has no weights for {len(missing)} parts of a causal LM, such as {missing[0]}",
            hint="give a checkpoint of a causal LM",
        )
    return TransformersEngine(loaded, tokenizer, name=str(model or EMBEDDED), settings=settings)


def engine_from(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str = "",
    settings: EngineSettings | None = None,
    **changes: Unpack[EngineKeywords],
) -> TransformersEngine:
    """An engine for a model that is loaded already, also with a PEFT adapter or quantised weights. The model is not changed.

    Parameters
    ----------
    model
        A causal LM of transformers in eval mode, with all weights on one device; or a ``PeftModel`` around one.
    tokenizer
        Its tokenizer.
    name
        Name of the model in reports; by default that of its config.
    settings, **changes
        Engine settings, as in :func:`load_engine`.

    Raises
    ------
    ConfigError
        If the model or the tokenizer is none, the model is in training mode, or a setting does not fit.
    UnsupportedModel
        If a tree does not decode as a sequence does, weights are on several devices, or an adapter adds virtual tokens.
    """
    settings = EngineSettings.of(settings, changes)
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine

    if not all(hasattr(model, needed) for needed in ("config", "generation_config", "get_input_embeddings")):
        raise ConfigError(
            f"{type(model).__name__} is not a causal LM of transformers", hint="load one, or use load_engine"
        )
    if not callable(getattr(tokenizer, "decode", None)):
        raise ConfigError(f"{type(tokenizer).__name__} is not a tokenizer", hint="use AutoTokenizer.from_pretrained")
    if model.training:
        raise ConfigError("the model is in training mode", hint="call model.eval()")
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise UnsupportedModel(
            f"the adapter {type(adapter).__name__} adds virtual tokens, which have no place in a tree of tokens",
            hint="use an adapter that changes weights, such as LoRA",
        )
    return TransformersEngine(model, tokenizer, name=name, settings=settings)


def device_of(name: str) -> torch.device:
    """The device of that name; ``auto``: a GPU if there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown", hint="use cpu, cuda, cuda:N or auto") from None


def _quantised(source: str, options: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has quantised weights of a kind that transformers loads."""
    from transformers import AutoConfig

    if "gguf_file" in options:
        return False
    config = AutoConfig.from_pretrained(_base_of_adapter(source) or source, **options)
    if getattr(config, "quantization_config", None) is None:
        return False
    if not find_spec("accelerate"):
        raise MissingExtra("a quantised checkpoint needs accelerate", hint="pip install accelerate")
    return True


def _base_of_adapter(source: str) -> str | None:
    """The base model of an adapter's folder; None if it is no such folder."""
    file = Path(source) / ADAPTER
    return str(json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]) if file.is_file() else None


def _with_tokenizer(source: str) -> str:
    """The place of the tokenizer: for an adapter without one of its own, that of its base model."""
    own = (Path(source) / "tokenizer_config.json").is_file()
    return source if own else _base_of_adapter(source) or source


def _source(model: str | os.PathLike[str] | None) -> tuple[str, dict[str, Any]]:
    """The source and the options for ``from_pretrained``."""
    if model is None or model == EMBEDDED:
        return str(files("rksc_tot.tasks.game24") / "weights"), {}
    if str(model).startswith(f"{EMBEDDED}:"):
        return _embedded(str(model)), {}
    path = Path(model)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelLoadError(f"there is no file {str(path)!r}", hint="check the path")
        if not (find_spec("gguf") and find_spec("accelerate")):
            raise MissingExtra("reading a GGUF file needs gguf and accelerate", hint="pip install 'rksc_tot[gguf]'")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if (path / ADAPTER).is_file():
            if not find_spec("peft"):
                raise MissingExtra("an adapter needs peft", hint="pip install 'rksc_tot[peft]'")
        elif not (path / "config.json").is_file():
            raise ModelLoadError(
                f"there is no config.json in {str(path)!r}", hint="give a folder save_pretrained wrote"
            )
        return str(path), {}
    text = str(model)
    if text.startswith((".", "/", "~")) or text.count("/") > 1 or path.exists():
        raise ModelLoadError(f"there is no model folder at {text!r}", hint="check the path")
    return text, {}


def _embedded(model: str) -> str:
    """The folder of the embedded weights ``embedded:NAME``."""
    weights = Path(str(files("rksc_tot.tasks.embedded") / "weights"))
    known = {f"{EMBEDDED}:{file.parent.name}": str(file.parent) for file in sorted(weights.glob("*/config.json"))}
    if model not in known:
        raise ModelLoadError(
            f"there is no embedded model {model!r}",
            hint=f"{did_you_mean(model, known)}there are {', '.join([EMBEDDED, *known])}",
        )
    return known[model]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
