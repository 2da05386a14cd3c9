"""Tiny random reward models of each kind, saved as the real ones are: config class, names of weights, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForTokenClassification,
    Qwen2Model,
)

Shape = dict[str, Any]

SHAPE: Shape = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "initializer_range": 0.1, "max_position_embeddings": 8192,
}  # fmt: skip
MARKERS = ("<extra_0>", "ки")
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(chat: bool, markers: bool = True) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, with or without a chat template and the markers of all kinds."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", clean_up_tokenization_spaces=False)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *MARKERS[: int(markers)]]})
    made.add_tokens([*MARKERS[1:]] if markers else [])
    made.chat_template = CHAT if chat else None
    return made


def _save(model: PreTrainedModel, folder: Path, chat: bool) -> None:
    model.save_pretrained(folder)
    tokenizer(chat).save_pretrained(folder)


def _rename(folder: Path, architecture: str, weights: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Write another architecture into the config, and other weights."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [architecture]}))
    save_file(weights(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})


def _size(chat: bool, shape: Shape) -> Shape:
    return {**shape, "vocab_size": len(tokenizer(chat)) + 5}


def math_shepherd(folder: Path, shape: Shape) -> None:
    """A Mistral causal LM without a chat template."""
    _save(MistralForCausalLM(MistralConfig(**_size(False, shape), sliding_window=None)), folder, chat=False)


def rlhflow(folder: Path, shape: Shape) -> None:
    """A causal LM with a chat template."""
    _save(Qwen2ForCausalLM(Qwen2Config(**_size(True, shape))), folder, chat=True)


def trl(folder: Path, shape: Shape) -> None:
    """A token-classification head with two classes."""
    _save(Qwen2ForTokenClassification(Qwen2Config(**_size(True, shape), num_labels=2)), folder, chat=True)


def skywork(folder: Path, shape: Shape) -> None:
    """A value head beside a causal LM."""
    _save(Qwen2ForCausalLM(Qwen2Config(**_size(True, shape), tie_word_embeddings=False)), folder, chat=True)
    width = shape["hidden_size"]
    head = {"v_head.summary.weight": torch.randn(1, width), "v_head.summary.bias": torch.randn(1)}
    _rename(folder, "Qwen2ForPrmModel", lambda weights: {**weights, **head})


def qwen_math_prm(folder: Path, shape: Shape) -> None:
    """A two-layer head, in a config that names remote code which is not there."""
    _save(Qwen2Model(Qwen2Config(**_size(True, shape))), folder, chat=True)
    width = shape["hidden_size"]
    head = {"score.0.weight": torch.randn(width, width) / 5, "score.0.bias": torch.randn(width),
            "score.2.weight": torch.randn(2, width) / 5, "score.2.bias": torch.randn(2)}  # fmt: skip
    _rename(folder, "Qwen2ForProcessRewardModel", lambda weights: {f"model.{k}": v for k, v in weights.items()} | head)
    file = folder / "config.json"
    code = {
        "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
        "AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel",
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": code}))


def outcome(folder: Path, shape: Shape) -> None:
    """A sequence-classification head with one score."""
    config = LlamaConfig(**_size(True, shape), num_labels=1, pad_token_id=0, bos_token_id=None, eos_token_id=None)
    _save(LlamaForSequenceClassification(config), folder, chat=True)


KINDS: dict[str, Callable[[Path, Shape], None]] = {
    "label_pair": math_shepherd,
    "label_turns": rlhflow,
    "token_classes": trl,
    "value_head": skywork,
    "step_marker": qwen_math_prm,
    "outcome": outcome,
}
"""By the kind that is to be found."""


def save_reward_model(kind: str, folder: Path, shape: Shape = SHAPE) -> Path:
    """Save a reward model of a kind, the same at each call."""
    torch.manual_seed(0)
    KINDS[kind](folder, shape)
    return folder
