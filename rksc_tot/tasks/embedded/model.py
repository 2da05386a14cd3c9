"""The model before training: a small Llama whose number tokens begin as features of their numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rksc_tot.tasks.embedded.family import Family


def number_features(largest: int, width: int, rng: torch.Generator) -> Tensor:
    """Randomly rotated Fourier features of n and log n ``[largest + 1, width]``: close numbers have close features."""
    n = torch.arange(largest + 1, dtype=torch.float64)[:, None]
    periods = torch.logspace(math.log10(2), math.log10(2 * largest), width // 4, dtype=torch.float64)
    logs = torch.logspace(math.log10(0.1), math.log10(12), width // 4, dtype=torch.float64)
    angles = torch.cat([2 * math.pi * n / periods, 2 * math.pi * torch.log1p(n) / logs], 1)
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    rotation = torch.linalg.qr(torch.randn(waves.shape[1], width, generator=rng, dtype=torch.float64))[0]
    features: Tensor = (waves @ rotation).float()
    return features


def build_model(family: Family, seed: int) -> LlamaForCausalLM:
    """An initialised Llama of the family's shape."""
    torch.manual_seed(seed)
    shape, words = family.shape, {word: i for i, word in enumerate(family.vocabulary)}
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        intermediate_size=shape.inner,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=words["<eos>"],
        pad_token_id=words["<pad>"],
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.5)
        if family.largest_number is not None:
            table: Tensor = model.model.embed_tokens.weight
            features = number_features(family.largest_number, shape.hidden, torch.Generator().manual_seed(seed))
            features *= table.std() / features.std()
            for n in range(family.largest_number + 1):
                for word in (str(n), f" {n}"):
                    if word in words:
                        table[words[word]] += features[n]
    return model
