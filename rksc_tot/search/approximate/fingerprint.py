"""Hashes of a model's weights and of a task's texts, which bind a calibration to both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import Path, Task
from rksc_tot.search.approximate.prompt_variants import other_variants
from rksc_tot.search.task_calls import accept_root, accept_thought, validated
from rksc_tot.search.validation import question_fault

if TYPE_CHECKING:
    from rksc_tot.engine.base import Reader

SAMPLED = 16  # values read from each parameter tensor
PLACES = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
)  # keys of a config that do not describe the model itself


class TaskFingerprint(NamedTuple):
    """The hash of a task's texts at one path. ``labels``: the labels of the question, empty without a question."""

    hash: str
    labels: tuple[str, ...]


def task_fingerprint(task: Task, problem: Any, thoughts: Sequence[str]) -> TaskFingerprint:
    """Hash the prompt, its variants, the thoughts as the task parses them, the question, and its labels with their values.

    Raises
    ------
    TaskError
        If the task refuses the problem or rejects a thought.
    """
    valid = validated(task, problem)
    prompt, _ = accept_root(task, valid)
    path = Path()
    for text in thoughts:
        found = accept_thought(task, valid, path, text)
        if isinstance(found, str):
            raise TaskError(f"the task rejects the thought {text!r}: {found}")
        path = Path((*path, found.thought))
    try:
        with calling_user_code("question"):
            question = task.question(valid, path)
    except UserCodeError as raised:
        raise TaskError(str(raised)) from raised.error
    if question is not None and (fault := question_fault(question)):
        raise TaskError(fault)
    asked = None if question is None else [question.text, list(question.labels.items())]
    others = other_variants(task, valid, prompt)
    told = [prompt, task.stop[0] if task.keep_stop and task.stop else "", [thought.text for thought in path], asked,
            *([others] if others else [])]  # fmt: skip
    labels = () if question is None else tuple(question.labels)
    return TaskFingerprint(_hash(json.dumps(told, default=_plain).encode(errors="surrogatepass")), labels)


def weights_of(engine: Reader) -> str:
    """Hash a model's configuration, chat template and a fixed sample of every parameter.

    A training step changes the hash. For an engine without a model, it is the hash of the engine's name.
    """
    model: Any = getattr(engine, "model", None)
    if model is None:
        return _hash(engine.name.encode())
    import torch

    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in PLACES}
    template = getattr(getattr(engine, "tokenizer", None), "chat_template", None)
    state = [json.dumps([config, template], sort_keys=True, default=str)]
    taken = []
    for name, parameter in model.named_parameters():
        state.append(f"{name} {tuple(parameter.shape)}")
        flat = parameter.detach().reshape(-1)
        at = torch.arange(min(SAMPLED, len(flat)), device=flat.device) * (len(flat) // min(SAMPLED, max(1, len(flat))))
        taken.append(flat[at].float())
    numbers = torch.cat(taken).cpu().tolist() if taken else []
    return _hash("\n".join([*state, *map(float.hex, numbers)]).encode())


def revision_of(engine: Reader) -> str | None:
    """The commit of a downloaded model, None if unknown."""
    config = getattr(getattr(engine, "model", None), "config", None)
    commit: str | None = getattr(config, "_commit_hash", None)
    return commit


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else str(value)


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
