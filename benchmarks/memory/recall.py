"""A model whose weights are written by hand, so that what a compression policy drops has a known effect.

One layer, no training. A text is a script: empty lines, and lines that ask for a fact, which the model then states::

    start  a=3 b=7 a0=1 …   l0;  l1;  l2;  c=3  l3;  …           l2 asks for a and writes c, so c=3 is stated after it
    prompt                  what the model writes

* After an empty line comes the next one. After a line that asks, the fact: :data:`HEADS` heads look for what was stated under
  its name and copy the value. One head that still has a statement suffices; without any the value is ``none``, found at the
  first token, where all rows look that look for nothing.
* After a fact comes the line after the one that asked: one more head looks at the previous token, by position.
* A line may draw instead of asking: then every value is equally likely.

So a fact is known as long as one statement of it is kept in one head, and nothing else matters. A real model has more ways to
know; what is lost here is lost for certain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention

HEADS = 4
HEAD_DIM = 64
THETA = 1e12  # RoPE: the first pairs of a head turn fast enough to tell positions, the last ones as good as never
FAST, SLOW = 8, 14  # pairs before the first are used for positions, from the second on for names
MATCH, SINK = 240.0, 120.0  # scores of what is looked for, and of the first token; all else gets nothing in float32
EPS = 1e-6
VOTE = 2.0  # what a head's finding counts: all together less than a line that comes next
LITTLE = 0.2  # a vote for "none": less than what one head finds if all others find nothing
SURE = 5.0  # factor of all logits
NONE = "none"
START = " start"


class RecallLine(NamedTuple):
    """``reads``: the name it asks for. ``writes``: under which name the model states what it found; drawn if it asks for none."""

    reads: str | None = None
    writes: str | None = None


class Script(NamedTuple):
    """What the model writes: lines in order; it stops by itself after none of them."""

    lines: Sequence[RecallLine]
    names: Sequence[str]
    values: int

    def words(self) -> list[str]:
        """The vocabulary: the first token, every line, every fact."""
        facts = [fact(name, value) for name, value in product(self.names, self.told())]
        return [START, *map(line, range(len(self.lines))), *facts]

    def told(self, drawn: bool = False) -> list[int | str]:
        """The values a fact may be stated with: those that can be drawn, and the one of what is not known."""
        return [*range(self.values), *([] if drawn else [NONE])]

    def prompt(self, facts: dict[str, int]) -> str:
        """A prompt that states facts and begins with the first line."""
        return START + "".join(fact(name, value) for name, value in facts.items()) + line(0)


def line(n: int) -> str:
    """How line ``n`` is written."""
    return f" l{n};"


def fact(name: str, value: int | str) -> str:
    """How a fact is written."""
    return f" {name}={value}"


def tokenizer(script: Script) -> PreTrainedTokenizerFast:
    """Every word with its space in front is a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(script.words())}, unk_token=START))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" \S+"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token=START, clean_up_tokenization_spaces=False)


def model(script: Script) -> LlamaForCausalLM:
    """The model that follows a script."""
    words = {word: n for n, word in enumerate(script.words())}
    bits = max(1, math.ceil(math.log2(len(script.lines))))
    votes = slice(len(words), len(words) + script.values + 1)  # where the stream has what was found
    there = slice(votes.stop, votes.stop + bits)  # and which line comes next
    width = there.stop + -there.stop % (HEADS + 1)  # a multiple of the heads, as transformers wants it
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=width, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=HEADS + 1, num_key_value_heads=HEADS + 1, head_dim=HEAD_DIM, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, rms_norm_eps=EPS, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    made: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.zero_()
        layer = made.model.layers[0]
        made.model.embed_tokens.weight.copy_(torch.eye(len(words), width))
        layer.input_layernorm.weight.fill_((1 / width + EPS) ** 0.5)  # so that one-hot vectors stay what they are
        layer.post_attention_layernorm.weight.fill_(1)
        made.model.norm.weight.fill_(1)
        _looking(script, words, layer.self_attn)
        for head in range(HEADS):
            _head(layer.self_attn.o_proj.weight.T, head)[: script.values + 1, votes] = torch.eye(script.values + 1)
        _head(layer.self_attn.o_proj.weight.T, HEADS)[:bits, there] = torch.eye(bits)
        _writing(script, words, made.lm_head.weight, votes, there)
    return made


def _looking(script: Script, words: dict[str, int], attention: LlamaAttention) -> None:
    """What each word looks for, under which name it is found, and what is read there."""
    q, k, v = (part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj))  # [heads · D, hidden]
    slow = [n + half for half in (0, HEAD_DIM // 2) for n in range(SLOW, HEAD_DIM // 2)]
    sink, *at = slow[: 1 + len(script.names)]
    place = dict(zip(script.names, at, strict=True))
    scale = HEAD_DIM**0.5
    for head in range(HEADS):
        _head(q, head)[sink, : len(words)] = SINK * scale
        _head(k, head)[sink, words[START]] = 1
        _head(v, head)[script.values, words[START]] = LITTLE
        for n, each in enumerate(script.lines):
            if each.reads is not None:
                _head(q, head)[place[each.reads], words[line(n)]] = MATCH * scale
        for name, (n, value) in product(script.names, enumerate(script.told())):
            _head(k, head)[place[name], words[fact(name, value)]] = 1
            _head(v, head)[n, words[fact(name, value)]] = 1
    turns = THETA ** (-2 * torch.arange(FAST) / HEAD_DIM)
    least = min(float((1 - torch.cos((away - 1) * turns)).sum()) for away in (*range(1), *range(2, 4096)))
    pairs = torch.arange(FAST)
    _head(k, HEADS)[pairs, : len(words)] = 1
    _head(q, HEADS)[pairs, : len(words)] = (turns.cos() * scale * MATCH / least)[:, None]
    _head(q, HEADS)[pairs + HEAD_DIM // 2, : len(words)] = (-turns.sin() * scale * MATCH / least)[:, None]
    for n in range(len(script.lines) - 1):
        code = _code(n + 1, len(_head(v, HEADS)))
        _head(v, HEADS)[:, words[line(n)]] = code


def _writing(script: Script, words: dict[str, int], out: Tensor, votes: slice, there: slice) -> None:
    """The logits of each word: what the word before it asks for, what was found, which line comes next."""
    bits = there.stop - there.start
    told = 3.0 * bits  # by a word, against ``bits`` by the head that looks back
    for n, each in enumerate(script.lines):
        out[words[line(n)], there] = _code(n, bits)
        if each.writes is None:
            following = [line(n + 1)] if n + 1 < len(script.lines) else []
        else:
            following = [fact(each.writes, value) for value in script.told(drawn=each.reads is None)]
        for word in following:
            out[words[word], words[line(n)]] = told
    for name, (n, value) in product(script.names, enumerate(script.told())):
        out[words[fact(name, value)], votes.start + n] = VOTE
    out *= SURE


def _code(n: int, bits: int) -> Tensor:
    """A number in binary digits of -1 and 1."""
    return torch.tensor([1.0 if n >> bit & 1 else -1.0 for bit in range(bits)])


def _head(weight: Tensor, head: int) -> Tensor:
    """The rows of a head."""
    return weight[head * HEAD_DIM : (head + 1) * HEAD_DIM]
