"""Loading a model by name: the embedded one, a local folder, a GGUF file, or a hub id."""

from __future__ import annotations

import os
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rksc_tot.core.errors import ConfigError, MissingExtra, ModelLoadError
from rksc_tot.engine.transformers_engine.settings import EngineKeywords, EngineSettings

if TYPE_CHECKING:
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine

EMBEDDED = "embedded"
DEVICE = "cpu"
DTYPES = ("float32", "bfloat16", "float16")  # the first is the default


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
        such as ``embedded:sudoku4``. Else a folder written by ``save_pretrained``, a ``.gguf`` file (extra ``gguf``), or a hub
        id.
    dtype
        ``float32``, ``bfloat16`` or ``float16``. bfloat16 is fast on a CPU with bfloat16 products, and exact to two or
        three digits only.
    device
        A torch device such as ``cpu`` or ``cuda:0``.
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
        A GGUF file without the extra ``gguf``.
    """
    settings = EngineSettings.of(settings, changes)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rksc_tot.engine.transformers_engine.engine import TransformersEngine

    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown", hint=f"use one of {', '.join(DTYPES)}")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device {device!r} is unknown", hint="use cpu, cuda or cuda:N") from None
    source, options = _source(model)
    options |= {"revision": revision, "trust_remote_code": trust_remote_code}
    options = {key: value for key, value in options.items() if value}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        safe = {} if "gguf_file" in options else {"use_safetensors": True}  # never load a pickle
        found: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), output_loading_info=True, **safe, **options
        )
        loaded, info = found
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, RuntimeError, safetensors errors …
        raise ModelLoadError(
            f"cannot load {str(model or EMBEDDED)!r} as a causal LM: {_first_line(error)}",
            hint="give a folder with config.json, weights and tokenizer, a .gguf file, or the id of a cached hub model",
        ) from error
    try:
        loaded = loaded.to(place).eval()
    except Exception as error:  # torch raises AssertionError, RuntimeError, NotImplementedError …
        raise ConfigError(f"device {device!r} cannot be used: {_first_line(error)}", hint="use cpu") from error
    if missing := sorted(info["missing_keys"]):
        raise ModelLoadError(
            f"{str(model or EMBEDDED)!r} has no weights for {len(missing)} parts of a causal LM, such as {missing[0]}",
            hint="give a checkpoint of a causal LM",
        )
    return TransformersEngine(loaded, tokenizer, name=str(model or EMBEDDED), settings=settings)


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
        if not (path / "config.json").is_file():
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
        raise ModelLoadError(f"there is no embedded model {model!r}", hint=f"there are {', '.join([EMBEDDED, *known])}")
    return known[model]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
