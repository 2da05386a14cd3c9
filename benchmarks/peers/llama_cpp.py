"""llama.cpp as a peer: 8-bit weights, branches as sequences of one cache. Runs in an interpreter that has llama-cpp-python.

A path is decoded once. Its branches are copies of its sequence that share its cells, and each step is one batch for all branches
of a level. Questions are computed on the branches' sequences in one batch, and removed afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import llama_cpp  # type: ignore[import-not-found]
import numpy as np

from benchmarks.peers.driver import serve
from benchmarks.peers.search import Backend, Path, PeerProblem, first_label

MOST_ROWS = 2048  # of a batch
SEQUENCES = 256  # the maximum of llama.cpp


class LlamaCpp:
    """Every path that may be needed again has a sequence. The sequence of the root is decoded at the first call of ``grow``."""

    def __init__(self, model: str, context: int, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context, MOST_ROWS, 512
        settings.n_seq_max, settings.kv_unified = SEQUENCES, True
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp could not load {model}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(MOST_ROWS, 0, 1)
        self._free = list(range(SEQUENCES))
        self._held: dict[tuple[int, ...], list[int]] = {}  # sequences of paths, decoded except for the last token
        self._random = np.random.default_rng(0)
        self._prefilled = 0

    def grow(self, paths: Sequence[Path], branches: int, new: int) -> list[list[Path]]:
        self._keep(paths)
        grown: list[list[Path]] = [[[] for _ in range(branches)] for _ in paths]
        held = self._sequences(paths)
        rows = [(path[-1], len(path) - 1, sequence) for path, sequence in zip(paths, held, strict=True)]
        logits = self._decode(rows, range(len(rows)))
        self._prefilled += len(rows)
        sequences = [[self._fork(sequence) for _ in range(branches)] for sequence in held]
        self._drop(list(self._held))  # cells that branches share stay
        writers = [(n, b) for n in range(len(paths)) for b in range(branches)]
        tokens = self._draw(np.repeat(logits, branches, axis=0))
        for step in range(new):
            if step:
                rows = [
                    (t, len(paths[n]) + step - 1, sequences[n][b]) for t, (n, b) in zip(tokens, writers, strict=True)
                ]
                tokens = self._draw(self._decode(rows, range(len(rows))))
            for token, (n, b) in zip(tokens, writers, strict=True):
                grown[n][b].append(token)
        for n, b in writers:
            self._held.setdefault((*paths[n], *grown[n][b]), []).append(sequences[n][b])
        return grown

    def value(self, families: Sequence[Sequence[Path]], problem: PeerProblem) -> list[list[float]]:
        paths = [path for family in families for path in family]
        rows: list[tuple[int, int, int]] = []  # token, position, sequence
        ends: list[int] = []
        held = self._sequences(paths)
        for path, sequence in zip(paths, held, strict=True):
            asked = [path[-1], *problem.question]
            rows += [(token, len(path) - 1 + n, sequence) for n, token in enumerate(asked)]
            ends.append(len(rows) - 1)
        logits = self._decode(rows, ends)
        self._prefilled += len(rows)
        for path, sequence in zip(paths, held, strict=True):  # its last token is decoded again by the next grow
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, len(path) - 1, -1)
        ids = [token for label in problem.labels for token in label]
        read = logits[:, ids].astype(np.float64)
        values = iter([first_label(row, problem.labels, ids) for row in read - read.max(-1, keepdims=True)])
        return [[next(values) for _ in family] for family in families]

    def prefilled(self) -> int:
        return self._prefilled

    def _keep(self, paths: Sequence[Path]) -> None:
        """Drop all sequences except for those of these paths. Paths without a sequence are decoded up to their last token."""
        wanted = {tuple(path) for path in paths}
        self._drop([path for path in self._held if path not in wanted])
        for path in sorted(wanted - self._held.keys()):
            sequence = self._free.pop()
            self._held[path] = [sequence]
            self._decode([(token, n, sequence) for n, token in enumerate(path[:-1])], [])
            self._prefilled += len(path) - 1

    def _drop(self, paths: Sequence[tuple[int, ...]]) -> None:
        for path in paths:
            for sequence in self._held.pop(path):
                llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
                self._free.append(sequence)

    def _sequences(self, paths: Sequence[Path]) -> list[int]:
        """A sequence for each path, also for equal paths."""
        left = {tuple(path): iter(self._held[tuple(path)]) for path in paths}
        return [next(left[tuple(path)]) for path in paths]

    def _fork(self, sequence: int) -> int:
        copy = self._free.pop()
        llama_cpp.llama_memory_seq_cp(self._memory, sequence, copy, -1, -1)
        return copy

    def _decode(self, rows: Sequence[tuple[int, int, int]], read: Sequence[int]) -> np.ndarray:
        """Decode rows; returns logits ``[len(read), V]`` of the rows with indices ``read``."""
        wanted, found = set(read), []
        for start in range(0, len(rows), MOST_ROWS):
            part = rows[start : start + MOST_ROWS]
            for n, (token, position, sequence) in enumerate(part):
                self._batch.token[n], self._batch.pos[n], self._batch.logits[n] = token, position, start + n in wanted
                self._batch.n_seq_id[n], self._batch.seq_id[n][0] = 1, sequence
            self._batch.n_tokens = len(part)
            if code := llama_cpp.llama_decode(self._context, self._batch):
                raise RuntimeError(f"llama_decode returned {code}")
            found += [self._logits(n) for n in range(len(part)) if start + n in wanted]
        return np.stack(found) if found else np.empty((0, self._vocabulary), np.float32)

    def _logits(self, row: int) -> Any:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, row), (self._vocabulary,)).copy()

    def _draw(self, logits: np.ndarray) -> list[int]:
        """A token for every row, at temperature 1."""
        summed = np.exp(logits - logits.max(-1, keepdims=True)).cumsum(-1)
        at = self._random.random(len(logits)) * summed[:, -1]
        return [int(np.searchsorted(row, x)) for row, x in zip(summed, at, strict=True)]


def load(asked: dict[str, Any]) -> tuple[Backend, dict[str, Any]]:
    """``model``: a GGUF file. ``cells``: tokens in the cache. ``threads``: number of threads."""
    backend = LlamaCpp(asked["model"], asked["cells"], asked["threads"])
    return backend, {"version": version("llama-cpp-python")}


if __name__ == "__main__":
    serve(load)
