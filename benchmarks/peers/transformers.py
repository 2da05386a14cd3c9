"""The transformers peers: ``generate``, which prefills again at every node, and continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.peers.search import Path, PeerProblem, first_label

PAGE = 16  # tokens of a page in the cache of continuous batching; only whole pages are shared
PAGES_HELD = 4096
MOST_ROWS = 2048  # of a pass, like the engine's


class Rows:
    """Counts the rows that a model computes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.computed = self.decoded = 0
        model.get_input_embeddings().register_forward_hook(self._count)

    @property
    def prefilled(self) -> int:
        return self.computed - self.decoded

    def _count(self, _: object, given: tuple[Tensor, ...], __: object) -> None:
        self.computed += given[0].numel()


class Generate:
    """``generate`` without reuse between nodes, like the HF backend of llm-reasoners.

    A node's branches are a batch of copies of its path, as with ``num_return_sequences``. To value the children, their whole
    paths and questions are computed again in a batch. llm-reasoners computes all logits of this batch; here only the last
    logits are computed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model
        self.rows = Rows(model)

    @torch.inference_mode()
    def grow(self, paths: Sequence[Path], branches: int, new: int) -> list[list[Path]]:
        return [self._grow(path, branches, new) for path in paths]

    def _grow(self, path: Path, branches: int, new: int) -> list[Path]:
        how = sampling(new, num_return_sequences=branches, pad_token_id=0)
        written = self.model.generate(inputs=self._batch([path]), generation_config=how)
        self.rows.decoded += branches * (new - 1)
        found: list[Path] = written[:, len(path) :].tolist()
        return found

    @torch.inference_mode()
    def value(self, families: Sequence[Sequence[Path]], problem: PeerProblem) -> list[list[float]]:
        return [self._value(family, problem) for family in families]

    def _value(self, family: Sequence[Path], problem: PeerProblem) -> list[float]:
        ids = self._batch([path + problem.question for path in family])
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].double()
        labels = [token for label in problem.labels for token in label]
        read = logits.log_softmax(-1)[:, labels].tolist()
        return [first_label(row, problem.labels, labels) for row in read]

    def prefilled(self) -> int:
        return self.rows.prefilled

    def _batch(self, paths: Sequence[Path]) -> Tensor:
        return torch.tensor(list(paths), device=self.model.device)


class ContinuousBatching:
    """transformers' continuous batching with its prefix cache. All nodes of a level are submitted at once.

    Branches of a node share one prefill, and whole pages of known prefixes are shared. It returns only the log-probability of
    the sampled token, so a question costs one sampled token, whose log-probability is the value.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.rows = Rows(model)
        self.model: Any = model
        self.manager: Any = None

    def __enter__(self) -> ContinuousBatching:
        config = ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=PAGES_HELD, max_batch_tokens=MOST_ROWS, return_logprobs=True,
            auto_switch_to_flash=False, seed=0,
        )  # fmt: skip
        generation = sampling(1, eos_token_id=-1)
        self.manager = self.model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=config
        )
        self.manager.start()
        return self

    def grow(self, paths: Sequence[Path], branches: int, new: int) -> list[list[Path]]:
        replies = self._ask(paths, branches, new)
        self.rows.decoded += len(paths) * branches * (new - 1)
        return [[list(reply.generated_tokens) for reply in family] for family in replies]

    def value(self, families: Sequence[Sequence[Path]], problem: PeerProblem) -> list[list[float]]:
        paths = [path + problem.question for family in families for path in family]
        values = iter([reply.logprobs[0] for [reply] in self._ask(paths, 1, 1)])
        return [[next(values) for _ in family] for family in families]

    def _ask(self, paths: Sequence[Path], branches: int, new: int) -> list[list[Any]]:
        """Replies to each path."""
        self.manager.num_return_sequences = branches
        names = self.manager.add_requests(inputs=[list(path) for path in paths], max_new_tokens=new)
        found: dict[str, Any] = {}
        while len(found) < len(paths) * branches:
            reply = self.manager.get_result(timeout=1)
            if reply is None:
                if not self.manager.is_running():
                    raise RuntimeError("continuous batching stopped")
                continue
            if reply.error is not None:
                raise RuntimeError(f"continuous batching: {reply.error}")
            found[reply.request_id] = reply
        return [[found[name], *(found[f"{name}__child#{n}"] for n in range(branches - 1))] for name in names]

    def prefilled(self) -> int:
        return self.rows.prefilled

    def __exit__(self, *_: object) -> None:
        """Stop its thread, whose OpenMP workers would slow down later computations."""
        self.manager.stop(block=True)
        self.manager.destroy()


def sampling(new: int, **options: Any) -> GenerationConfig:
    """Settings for exactly ``new`` tokens at temperature 1, without an end-of-text token."""
    return GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new, **options)
