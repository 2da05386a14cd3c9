"""Small random models of the shapes that benchmarks measure."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from benchmarks.common.baselines import LABELS

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True, "initializer_range": 0.04,
    },
    "7b": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False, "initializer_range": 0.02,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True, "initializer_range": 0.1,
    },
}  # fmt: skip


def random_model(shape: str, device: str = "cpu", dtype: str = "float32") -> PreTrainedModel:
    """A Llama of a shape with random weights, created on its device."""
    config = LlamaConfig(max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, **SHAPES[shape])
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    return model


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are words with the space before, so that a text of n words has n tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = ["<unk>", *(f" {label}" for label in LABELS)]
    words += [f" w{n}" for n in range(vocabulary - len(words))]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" \S+"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=False)
