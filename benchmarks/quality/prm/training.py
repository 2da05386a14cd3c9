"""Trains a process reward model for the game of 24: the embedded model with a scalar head at the end of each step.

Labels come from the exact solver: whether 24 can still be reached after the step. The loss is that of the head after the final
norm of every layer, so that layers agree early. Layout and weight names are those of a value head.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from rksc_tot.tasks.game24.world import good_steps, legal_steps, reaches

PATHS, RATE, WARM_UP = 32, 1e-3, 20  # paths of a batch, learning rate, batches until it is reached
GOOD = 0.4  # share of steps that are drawn from those that keep 24 in reach, where there are any


class Example:
    """A path of random steps: token ids, positions of the ends of steps, and whether 24 is still in reach there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, puzzle: str, rng: random.Random) -> None:
        state = tuple(sorted(map(int, puzzle.split())))
        self.ids: list[int] = tokenizer.encode(f"steps {' '.join(map(str, state))}\n", add_special_tokens=False)
        self.ends: list[int] = []
        self.reached: list[float] = []
        while len(state) > 1:
            good = good_steps(state)
            step = rng.choice(good if good and rng.random() < GOOD else legal_steps(state))
            self.ids += tokenizer.encode(f"{step}\n", add_special_tokens=False)
            self.ends.append(len(self.ids) - 1)
            state = step.after
            self.reached.append(float(reaches(state)))


def train(puzzles: Sequence[str], batches: int, folder: Path) -> Path:
    """Train on paths from these puzzles; save the model as a folder that ``prm`` reads."""
    weights = str(files("rksc_tot.tasks.game24") / "weights")
    tokenizer = AutoTokenizer.from_pretrained(weights)
    whole = LlamaForCausalLM.from_pretrained(weights, dtype=torch.float32)
    torch.manual_seed(0)
    head = nn.Linear(whole.config.hidden_size, 1)
    parameters = [*whole.model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)
    rng = random.Random(0)
    for n in range(batches):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (n + 1) / WARM_UP) * (1 - n / batches)
        logits, labels = _read(whole.model, head, [Example(tokenizer, rng.choice(puzzles), rng) for _ in range(PATHS)])
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, labels.expand_as(logits)).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    tokenizer.save_pretrained(folder)
    whole.config.architectures = ["LlamaForPrmModel"]
    state = {f"model.{name}": weight.detach() for name, weight in whole.model.state_dict().items()}
    state |= {f"v_head.summary.{name}": weight.detach() for name, weight in head.state_dict().items()}
    whole.config.save_pretrained(folder)
    _save(state, folder)
    return folder


def _save(state: dict[str, Tensor], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors", {"format": "pt"})


def _read(backbone: nn.Module, head: nn.Module, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Logits ``[L, n]`` of the head after every layer at the ends of all steps, and their labels ``[n]``."""
    longest = max(len(example.ids) for example in examples)
    ids = torch.tensor([example.ids + [0] * (longest - len(example.ids)) for example in examples])
    rows = torch.tensor([row for row, example in enumerate(examples) for _ in example.ends])
    ends = torch.tensor([end for example in examples for end in example.ends])
    states = backbone(ids, output_hidden_states=True, use_cache=False).hidden_states
    normed = [backbone.norm(state[rows, ends]) for state in states[1:-1]] + [states[-1][rows, ends]]  # type: ignore[operator]
    labels = torch.tensor([label for example in examples for label in example.reached])
    return torch.stack([head(hidden)[:, 0] for hidden in normed]), labels
