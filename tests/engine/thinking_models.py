"""Small chat templates and tokenizers that write thinking blocks as five known families of models do."""

from transformers import PreTrainedTokenizerFast

from tests.engine.conftest import byte_tokenizer

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

ADDED = {
    "switched": (SWITCHED, ["<|turn|>", "<|stop|>"], ["<think>", "</think>"]),
    "opening": (OPENING, ["<|user|>", "<|reply|>", "<|stop|>", "<think>", "</think>"], []),
    "channels": (CHANNELS, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"], []),
    "brackets": (BRACKETS, ["[INST]", "[/INST]", "[THINK]", "[/THINK]"], []),
    "plain": (PLAIN, [], []),
}
"""By family: the template, the special tokens, and the added tokens that are not special."""


def thinking_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with the template and the added tokens of a family."""
    template, special, added = ADDED[family]
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens(added)
    tokenizer.chat_template = template
    return tokenizer
