"""Loading a model by name: the embedded one, a local folder, a GGUF file, or a hub id."""

from __future__ import annotations

import os
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksc_tot.core.errors import ConfigError, MissingExtra, ModelLoadError
from rksc_tot.core.sizes import OFFLOAD_BUDGET, kv_bytes
from rksc_tot.policies.compression.base import CompressionPolicy, compression_policy
from rksc_tot.policies.eviction.base import EvictionPolicy, eviction_policy

if TYPE_CHECKING:
    from rksc_tot.cache.offload.store import OffloadStore
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine
    from rksc_tot.policies.compression.lossless import Lossless

EMBEDDED = "embedded"
DTYPES = ("float32", "bfloat16", "float16")


def load_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    kv_budget: int | str = 1 << 30,
    eviction: str | EvictionPolicy = "rsbcm",
    compress: str | CompressionPolicy | None = None,
    lossless: bool | Lossless = False,
    offload: str | OffloadStore | None = None,
    offload_budget: int | str = OFFLOAD_BUDGET,
    offload_folder: str | Path | None = None,
    max_batch_tokens: int = 2048,
    pack: bool | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> TransformersEngine:
    """Load a causal LM and prove that trees decode on it exactly.

    Parameters
    ----------
    model
        None or ``embedded``: the game-of-24 model that ships with the package. Else a folder written by
        ``save_pretrained``, a ``.gguf`` file (extra ``gguf``), or a hub id.
    dtype
        ``float32``, ``bfloat16`` or ``float16``. On a CPU that computes in it, bfloat16 is the fast one; it is not exact to
        more than two or three digits.
    device
        A torch device such as ``cpu`` or ``cuda:0``.
    kv_budget
        Bytes of KV that may be resident, or a text such as ``64MiB``. Never exceeded by one token.
    eviction
        What goes first when room is needed: ``rsbcm``, ``lru``, ``lfu``, ``random``, ``none``, or a policy of your own
        (entry point ``rksc_tot.eviction``, ``module:attribute``, or an :class:`~rksc_tot.policies.eviction.base.EvictionPolicy`).
        What goes is computed again when it is visited, with the same outcome.
    compress
        What stays of paths or thoughts that may not keep all their KV: ``random_attention``, ``streaming``, ``snapkv``,
        ``arborkv``, or a policy with settings of its own (entry point ``rksc_tot.compression``, ``module:attribute``, or a
        :class:`~rksc_tot.policies.compression.base.CompressionPolicy`). What is computed upon the rest is not exact, and says so. None: all stays.
    lossless
        Whether what is written upon the rest is a draft only, verified upon all KV, so that results are those of no ``compress``;
        or a :class:`~rksc_tot.policies.compression.lossless.Lossless` with its settings.
    offload
        Where KV goes that leaves memory and may be wanted again: ``cpu`` (the host's memory) or ``disk`` (a file). It is copied
        back where that is cheaper than to compute it.
    offload_budget, offload_folder
        Bytes of it, as with ``kv_budget``; the folder of the file, that of temporary files by default.
    max_batch_tokens
        Most rows of one forward pass.
    pack
        Whether linear layers are computed by oneDNN, from a copy of their weights (on the CPU, in float32 and bfloat16);
        None: where that is usually faster.
    revision
        Of a hub id.
    trust_remote_code
        Off: a model that needs code of its own is refused.

    Raises
    ------
    ConfigError
        A setting is none, needs another one, or the KV budget holds no token of this model.
    ModelLoadError
        No such model, or not a causal LM.
    UnsupportedModel
        It loads, but a tree does not decode as a sequence does.
    MissingExtra
        A GGUF file without the extra ``gguf``.
    """
    memory = memory_settings(
        kv_budget=kv_budget, eviction=eviction, compress=compress, lossless=lossless,
        offload=offload, offload_budget=offload_budget, offload_folder=offload_folder,
    )  # fmt: skip  # before anything is loaded
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
        safe = {} if "gguf_file" in options else {"use_safetensors": True}  # never a pickle
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
    return TransformersEngine(
        loaded, tokenizer, name=str(model or EMBEDDED), max_batch_tokens=max_batch_tokens, pack=pack, **memory
    )


def memory_settings(
    *,
    kv_budget: int | str = 1 << 30,
    eviction: str | EvictionPolicy = "rsbcm",
    compress: str | CompressionPolicy | None = None,
    lossless: bool | Lossless = False,
    offload: str | OffloadStore | None = None,
    offload_budget: int | str = OFFLOAD_BUDGET,
    offload_folder: str | Path | None = None,
) -> dict[str, Any]:
    """The settings of :func:`load_engine` that say what is held where, looked up and known to go together; loads no model.

    Raises
    ------
    ConfigError
        It says which are wrong, or which one is missing.
    """
    settings: dict[str, Any] = {"kv_budget": kv_bytes(kv_budget, "kv_budget")}
    settings |= {"eviction": eviction_policy(eviction), "compress": compression_policy(compress)}
    if not isinstance(lossless, bool):
        from rksc_tot.policies.compression.lossless import lossless_settings

        lossless_settings(lossless)
    if lossless and compress is None:
        raise ConfigError(
            "lossless means to verify what was drafted upon reduced KV, and nothing reduces it",
            hint="name a compression policy, or leave lossless out",
        )
    where = {"offload": offload, "offload_budget": offload_budget, "offload_folder": offload_folder}
    if offload is not None:
        from rksc_tot.cache.offload.store import open_store

        open_store(offload, offload_budget, offload_folder)  # takes no memory before something is stored
    elif offload_folder is not None or offload_budget != OFFLOAD_BUDGET:
        name, value = (
            ("offload_budget", offload_budget) if offload_folder is None else ("offload_folder", offload_folder)
        )
        raise ConfigError(f"{name} is {str(value)!r}, and nothing is offloaded", hint="set offload to cpu or disk")
    return {**settings, "lossless": lossless, **where}


def _source(model: str | os.PathLike[str] | None) -> tuple[str, dict[str, Any]]:
    """What ``from_pretrained`` is called with."""
    if model is None or model == EMBEDDED:
        return str(files("rksc_tot.tasks.game24") / "weights"), {}
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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
