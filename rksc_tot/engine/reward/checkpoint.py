"""A folder with a reward model, of which config and names of weights are known before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from rksc_tot.core.errors import ModelLoadError
from rksc_tot.core.plugins.user_code import error_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ONE, MANY = "model.safetensors", "model.safetensors.index.json"


class Checkpoint:
    """A folder that ``save_pretrained`` wrote.

    Parameters
    ----------
    folder
        It holds config.json, weights as safetensors, and the tokenizer.
    dtype
        Number format of the loaded weights; None: that of the checkpoint.
    trust_remote_code
        Whether code that comes with the model may run.

    Raises
    ------
    ModelLoadError
        If the folder holds no such model.
    """

    def __init__(
        self, folder: str | os.PathLike[str], dtype: torch.dtype | None, trust_remote_code: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._options = {"trust_remote_code": True} if trust_remote_code else {}
        if not (self.folder / "config.json").is_file():
            raise self.error("there is no config.json", "give the folder of a reward model")
        self.config: Any = self._loaded(AutoConfig)
        self.dtype = dtype or self.config.dtype or torch.float32
        self.weights = self._weights()

    @property
    def architecture(self) -> str:
        """The class that the config names, such as ``Qwen2ForTokenClassification``; empty if it names none."""
        return str((getattr(self.config, "architectures", None) or [""])[0])

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer."""
        found: PreTrainedTokenizerBase = self._loaded(AutoTokenizer)
        return found

    def tensor(self, name: str) -> Tensor:
        """One weight, in the number format of the model."""
        with self._reading(), safe_open(self.folder / self.weights[name], framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found.to(self.dtype)

    def backbone(self) -> PreTrainedModel:
        """The decoder without a head."""
        return self._model(AutoModel)

    def causal_lm(self) -> PreTrainedModel:
        """The causal LM."""
        return self._model(AutoModelForCausalLM)

    def error(self, what: str, hint: str) -> ModelLoadError:
        """The error that this folder holds no reward model that can be read."""
        return ModelLoadError(f"no reward model in {str(self.folder)!r}: {what}", hint=hint)

    def _weights(self) -> dict[str, str]:
        """The file of each weight."""
        if (self.folder / ONE).is_file():
            with self._reading(), safe_open(self.folder / ONE, framework="pt") as file:
                return dict.fromkeys(file.keys(), ONE)
        if (self.folder / MANY).is_file():
            with self._reading():
                found = json.loads((self.folder / MANY).read_text(encoding="utf-8"))["weight_map"]
                return {str(name): str(file) for name, file in found.items()}
        raise self.error("there are no safetensors weights", "convert the weights; pickled ones are never loaded")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise a ModelLoadError for every error of reading weights or their index."""
        try:
            yield
        except Exception as error:  # safetensors, JSON, a file that is missing, an index without the map …
            raise self.error(f"its weights cannot be read: {error_text(error)}", "give a whole checkpoint") from error

    def _model(self, kind: Any) -> PreTrainedModel:
        model, info = self._loaded(kind, dtype=self.dtype, use_safetensors=True, output_loading_info=True)
        if missing := sorted(info["missing_keys"]):
            raise self.error(f"{len(missing)} weights are missing, such as {missing[0]}", "give a whole checkpoint")
        found: PreTrainedModel = model.eval()
        return found

    def _loaded(self, kind: Any, **options: Any) -> Any:
        before = logging.get_verbosity()
        logging.set_verbosity_error()  # a backbone's load report calls the head unexpected
        try:
            return kind.from_pretrained(self.folder, **self._options, **options)
        except Exception as error:  # transformers raises OSError, ValueError, KeyError, safetensors errors …
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            hint = "trust_remote_code=True runs the model's own code" if "trust_remote_code" in str(error) else ""
            raise self.error(reason, hint or "give a folder with config.json, safetensors and tokenizer") from error
        finally:
            logging.set_verbosity(before)
