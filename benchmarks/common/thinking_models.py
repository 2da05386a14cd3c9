"""Small models for thinking blocks: templates that behave like five known families, and a model that writes a known text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

SWITCHED = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}"
    "{% set text = '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' + text %}{% endif %}"
    "{{ '<|turn|>' + m.role + '\\n' + text + '<|stop|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
"""Renders a reasoning field of the last turn; an argument turns thinking off by an empty block."""
OPENING = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content }}{% else %}"
    "{{ '<|reply|>' + m.content.split('</think>')[-1] + '<|stop|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|reply|><think>\\n' }}{% endif %}"
)
"""Opens the block at the end of every prompt, and drops the blocks of earlier turns."""
CHANNELS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking and loop.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
"""A block and its reply are two messages, each with a header."""
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}"
    "{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
"""Writes no blocks itself; the tokenizer has two special tokens for them."""
PLAIN = (
    "{% for m in messages %}{{ m.role + ': ' + (m.content.split('</reasoning>')[-1] if m.role == 'assistant' else m.content) "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Cuts tags that are no tokens of their own, but plain text."""

FAMILIES = {
    "switched": (SWITCHED, ["<|turn|>", "<|stop|>"], ["<think>", "</think>"]),
    "opening": (OPENING, ["<|user|>", "<|reply|>", "<|stop|>", "<think>", "</think>"], []),
    "channels": (CHANNELS, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"], []),
    "brackets": (BRACKETS, ["[INST]", "[/INST]", "[THINK]", "[/THINK]"], []),
    "plain": (PLAIN, [], []),
}
"""By family: the template, the special tokens, and the added tokens that are not special."""


EOS = "</s>"
CERTAIN = 60.0
"""Logit of a scripted token above all others."""


def thinking_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with the template and the added tokens of a family."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    template, special, added = FAMILIES[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, EOS: 1} | {letter: n for n, letter in enumerate(alphabet, 2)} | {"ĊĊ": len(alphabet) + 2}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token=EOS)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens(added)
    tokenizer.chat_template = template
    return tokenizer


def random_llama(vocabulary: int) -> PreTrainedModel:
    """A tiny Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    model: PreTrainedModel = LlamaForCausalLM(config).eval()
    return model


def scripted_model(script: Sequence[int], vocabulary: int) -> PreTrainedModel:
    """A GPT-2 whose next token depends on the position only: after position p it writes ``script[p]``, after the script EOS."""
    written = [*script, *[1] * 64]
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=len(written), n_embd=64, n_layer=1, n_head=2, bos_token_id=None,
        eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model: PreTrainedModel = GPT2LMHeadModel(config).eval()
    directions = torch.nn.functional.normalize(torch.randn(vocabulary, config.n_embd), dim=-1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.lm_head.weight.copy_(directions * CERTAIN)
        model.transformer.wpe.weight.copy_(directions[written])
    return model
