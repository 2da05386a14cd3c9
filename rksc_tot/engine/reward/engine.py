"""The engine of a reward model: its own KV tree, on which steps are appended and the head is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.core.errors import ConfigError, ContextOverflow, EngineError
from rksc_tot.engine.base import STEP_LABELS, Account, LabelRequest, LabelScores, check_layers
from rksc_tot.engine.jobs.job import ComputedRows
from rksc_tot.engine.jobs.label_question import Labelling
from rksc_tot.engine.model.info import vocabulary_size
from rksc_tot.engine.reward.format import RewardFormat
from rksc_tot.engine.reward.head import RewardModel
from rksc_tot.engine.tokenization.label_trie import LogProbabilities, Prefix
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.engine.transformers_engine.kv_engine import KVEngine
from rksc_tot.engine.transformers_engine.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class HeadClasses:
    """The classes of a head as labels (see :class:`~rksc_tot.engine.jobs.label_question.Labels`).

    Attributes
    ----------
    question
        Tokens after the path at whose end the head is read; mostly none.
    """

    question: list[int]
    labels: tuple[str, ...] = STEP_LABELS
    nodes: tuple[Prefix, ...] = ((),)
    first: tuple[tuple[int, ...], ...] = ((0,), (1,))
    flat: bool = True

    def read(self, logprobs: LogProbabilities) -> tuple[list[float], float]:
        """Probabilities of the classes; there is nothing else."""
        return logprobs((), range(len(STEP_LABELS))).exp().tolist(), 0.0

    def likeliest(self, logprobs: LogProbabilities, most: int) -> list[tuple[Prefix, float]]:
        """Nothing is outside the classes."""
        return []


class HeadReading(Labelling):
    """The classes of the head at the end of a path.

    The tokens of the path stay. Under an exit rule the last step's tokens may leave the pass early; then they have no KV, and
    are computed in full when a later step needs them.
    """

    def __init__(
        self,
        tree: PrefixTree,
        handle: KVHandle,
        account: Account,
        request: LabelRequest,
        classes: HeadClasses,
        layers: int,
    ) -> None:
        super().__init__(tree, handle.segment, account, handle.prompt_end, request, classes, layers, _nothing)
        if self.leaves_from is not None:
            self.leaves_from = handle.start

    def book(self, computed: Sequence[ComputedRows], exact: bool) -> None:
        """Book all rows as a verifier's."""
        self.account.ledger.book_question(sum(part.rows for part in computed))


def _nothing(tokens: Sequence[int]) -> str:
    """The text of tokens outside the labels, which a head does not have."""
    return ""


class RewardEngine(KVEngine):
    """Reads the head of a reward model after each step of many paths; only new steps are computed.

    Parameters
    ----------
    model
        The backbone with its head.
    layout
        Lays out the tokens of problems and steps; it belongs to the model.
    name
        Name of the model in reports.
    settings
        The settings. KV is not compressed.
    """

    def __init__(self, model: RewardModel, layout: RewardFormat, name: str, settings: EngineSettings) -> None:
        if settings.compress is not None:
            raise ConfigError("the KV of a reward model is not compressed", hint="leave out compress")
        super().__init__(cast("PreTrainedModel", model), layout.tokenizer.raw, name, settings)
        self.layout = layout
        self._vocabulary = vocabulary_size(model.get_input_embeddings())
        self._classes = HeadClasses(list(layout.reading))
        self._checked(layout.reading)

    def open(self, problem: str, account: Account) -> KVHandle:
        """A handle for the path before the first step; nothing is computed yet. ContextOverflow if it is too long."""
        self.engine_thread.check_usable()
        self.forward.check_weights(thoroughly=True)
        ids = self._checked(self.layout.opening(problem))
        if not ids:
            raise EngineError("the problem is empty", hint="give the reward model at least one character")
        self._fits(len(ids))
        return self._open(ids, None, account)

    def extend(self, handle: KVHandle, step: str) -> KVHandle:
        """A handle for the path continued by a step; nothing is computed yet. ContextOverflow if it becomes too long."""
        self._check(handle)
        ids = self._checked(self.layout.step(step, handle.length == handle.prompt_end))
        self._fits(handle.length + len(ids))
        return self._extend(handle, ids)

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> list[LabelScores | None]:
        """The probabilities of the step labels at the end of each path, None where the deadline came first.

        The requests name :data:`~rksc_tot.engine.base.STEP_LABELS`; their question is not used.
        """
        self._check(*(request.handle for request in requests))
        check_layers(requests, self.name, self.layers, self.forward.no_lens)

        def make() -> list[HeadReading]:
            return [HeadReading(self.cache, r.handle, account, r, self._classes, self.forward.depth) for r in requests]

        return [job.result for job in await self.engine_thread.run(make)]

    def _fits(self, length: int) -> None:
        whole, most = length + len(self._classes.question), self.capabilities.context
        if whole > most:
            raise ContextOverflow(
                f"the path has {whole} tokens for {self.name}, whose context holds {most}",
                hint="use fewer or shorter thoughts, or a reward model with a longer context",
            )

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if ids and max(ids) >= self._vocabulary:
            raise EngineError(
                f"the tokenizer gave id {max(ids)}, the reward model knows {self._vocabulary}",
                hint="load the tokenizer that belongs to the model",
            )
        return list(ids)
