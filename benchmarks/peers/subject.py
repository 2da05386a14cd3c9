"""The model, the prompts and the question that all peers use."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common.baselines import LABELS, label_tokens
from benchmarks.common.random_models import SHAPES, random_model, word_tokenizer
from benchmarks.peers.search import PeerProblem
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.tokenization.chat_template import prompt_tokens
from rksc_tot.engine.tokenization.text import TextTokenizer


@dataclass(frozen=True)
class Subject:
    """The common work: ``model`` and ``tokenizer``, stored in ``folder``, and the ``question`` after every thought."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    question: str

    def problem(self, prompt: str) -> PeerProblem:
        """A prompt as the engine's token ids."""
        first, second = label_tokens(self.tokenizer, self.question)
        tokenizer = TextTokenizer(self.tokenizer)
        return PeerProblem(prompt_tokens(tokenizer, prompt), tokenizer.continuation(self.question), (first, second))


def real(folder: Path, question: int) -> Subject:
    """A model stored in a folder. Its texts end only at the token limit."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = model.config.eos_token_id = model.generation_config.eos_token_id = None
    return Subject(model, tokenizer, folder, random_text(tokenizer, question, "question"))


def made_up(shape: str, folder: Path, question: int) -> Subject:
    """A model with random weights and a word tokenizer, stored in a folder so that every peer can load it."""
    model, tokenizer = random_model(shape), word_tokenizer(SHAPES[shape]["vocab_size"])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Subject(model, tokenizer, folder, random_text(tokenizer, question, "question"))


def random_text(tokenizer: PreTrainedTokenizerBase, count: int, name: str) -> str:
    """A text of ``count`` words, each one token. At temperature 1, branches after it differ from the first token on.

    Raises
    ------
    UnsupportedModel
        If the tokenizer does not split the text into these words.
    """
    rng, words = random.Random(name), TextTokenizer(tokenizer)
    chosen: list[int] = []
    while len(chosen) < count:
        token = rng.randrange(tokenizer.vocab_size)
        word = words.decode([token])
        if re.fullmatch(r" [a-z]+\d*", word) and word.strip() not in LABELS and words.encode(word) == [token]:
            chosen.append(token)
    text = words.decode(chosen)
    if words.encode(text) != chosen:
        raise UnsupportedModel("this tokenizer does not split a text of words at its spaces")
    return text
