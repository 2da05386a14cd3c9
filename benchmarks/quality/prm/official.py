"""Scores as the makers of reward models compute them: the whole sequence in their layout, on the stock model."""

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Qwen2Model,
)

from rksc_tot.engine.reward.step_marker import SYSTEM


def plain(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@torch.no_grad()
def official_scores(kind, folder, problem, steps):
    """P(correct) of each step (for outcome models: of each prefix of the answer), by one pass over the whole text."""
    return READERS[kind](folder, AutoTokenizer.from_pretrained(folder), problem, steps)


def label_pair(folder, tokenizer, problem, steps):
    ids = plain(tokenizer, problem + " " + "\n".join(f"{step}ки" for step in steps))
    logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0]
    signs = [plain(tokenizer, "+")[0], plain(tokenizer, "-")[0]]
    marks = [n for n, token in enumerate(ids) if token == plain(tokenizer, "ки")[0]]
    return logits[marks][:, signs].softmax(-1)[:, 0].tolist()


def label_turns(folder, tokenizer, problem, steps):
    model = AutoModelForCausalLM.from_pretrained(folder)
    signs = [plain(tokenizer, "+")[0], plain(tokenizer, "-")[0]]
    turns, found = [], []
    for n, step in enumerate(steps):
        turns += [
            {"role": "user", "content": step if n else f"{problem} {step}"},
            {"role": "assistant", "content": "+"},
        ]
        ids = plain(tokenizer, tokenizer.apply_chat_template(turns, tokenize=False))
        at = max(n for n, token in enumerate(ids) if token == signs[0])  # of the assistant's token
        found.append(float(model(torch.tensor([ids])).logits[0, at - 1, signs].softmax(-1)[0]))
    return found


def separated(tokenizer, problem, steps):
    """Token ids, and the positions of the separators."""
    ids, marks = plain(tokenizer, problem), []
    for step in steps:
        ids += plain(tokenizer, step) + plain(tokenizer, "\n")
        marks.append(len(ids) - 1)
    return torch.tensor([ids]), marks


def token_classes(folder, tokenizer, problem, steps):
    ids, marks = separated(tokenizer, problem, steps)
    logits = AutoModelForTokenClassification.from_pretrained(folder)(ids).logits[0]
    return logits[marks].softmax(-1)[:, 1].tolist()


def value_head(folder, tokenizer, problem, steps):
    ids, marks = separated(tokenizer, problem + "\n", steps)
    weights = load_file(folder / "model.safetensors")
    hidden = Qwen2Model.from_pretrained(folder)(ids).last_hidden_state[0, marks]
    scalar = hidden @ weights["v_head.summary.weight"].T + weights["v_head.summary.bias"]
    return scalar[:, 0].sigmoid().tolist()


def step_marker(folder, tokenizer, problem, steps):
    turns = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": problem},
        {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
    ]
    ids = plain(tokenizer, tokenizer.apply_chat_template(turns, tokenize=False))
    weights = load_file(folder / "model.safetensors")
    hidden = Qwen2Model.from_pretrained(folder)(torch.tensor([ids])).last_hidden_state[0]
    inner = nn.functional.linear(hidden, weights["score.0.weight"], weights["score.0.bias"]).relu()
    logits = nn.functional.linear(inner, weights["score.2.weight"], weights["score.2.bias"])
    marks = [n for n, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("<extra_0>")]
    return logits[marks].softmax(-1)[:, 1].tolist()


def outcome(folder, tokenizer, problem, steps):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    found = []
    for n in range(len(steps)):
        answer = "\n".join(steps[: n + 1])
        turns = [{"role": "user", "content": problem}, {"role": "assistant", "content": answer}]
        ids = plain(tokenizer, tokenizer.apply_chat_template(turns, tokenize=False))
        found.append(float(model(torch.tensor([ids])).logits[0, 0].sigmoid()))
    return found


READERS = {
    "label_pair": label_pair,
    "label_turns": label_turns,
    "token_classes": token_classes,
    "value_head": value_head,
    "step_marker": step_marker,
    "outcome": outcome,
}
