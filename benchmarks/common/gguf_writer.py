"""Writes a transformers Llama as a GGUF file with 8-bit weights for llama.cpp, without a tokenizer, since peers use token ids."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import PreTrainedModel

from rksc_tot.core.errors import UnsupportedModel

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
BLOCK = 32  # weights that share a scale


def write_q8(model: PreTrainedModel, file: Path) -> None:
    """Write matrices in Q8_0 and other tensors in float32. The file appears only when it is complete.

    Raises
    ------
    UnsupportedModel
        If the model is not a plain Llama, or its width is not a multiple of 32.
    """
    config: Any = model.config
    if config.model_type != "llama":
        raise UnsupportedModel(f"only llama models can be written as GGUF, this model is {config.model_type}")
    if config.hidden_size % BLOCK or config.intermediate_size % BLOCK:
        raise UnsupportedModel(f"8-bit blocks of {BLOCK} weights do not fit a width of {config.hidden_size}")
    part = file.with_suffix(".part")
    writer = GGUFWriter(part, "llama")
    _describe(writer, config)
    for name, weight in _tensors(model):
        eight = weight.ndim == 2
        data = quantize(weight, GGMLQuantizationType.Q8_0) if eight else weight
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.Q8_0 if eight else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, file)


def _describe(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(_head_width(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _tensors(model: PreTrainedModel) -> list[tuple[str, np.ndarray]]:
    """Tensors by llama.cpp's names. RoPE pairs are neighbours in llama.cpp, and half a head apart in transformers."""
    config: Any = model.config
    weights = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    found = [
        ("token_embd.weight", weights["model.embed_tokens.weight"]),
        ("output_norm.weight", weights["model.norm.weight"]),
    ]
    if not config.tie_word_embeddings:
        found.append(("output.weight", weights["lm_head.weight"]))
    for layer in range(config.num_hidden_layers):
        for theirs, ours in NAMES.items():
            weight = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                halves = weight.reshape(-1, 2, _head_width(config) // 2, weight.shape[-1])
                weight = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
            found.append((f"blk.{layer}.{ours}.weight", weight))
    return found
