"""LM value: the *value* prompt of Tree of Thoughts, Yao et al. 2023, https://arxiv.org/abs/2305.10601.

The paper samples a label ("sure", "likely", "impossible") a few times and adds up the values. Here the score is the expected
value under the label probabilities, without sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

from rksc_tot.core.errors import ConfigError, ContextOverflow
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import Question, Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Engine, LabelRequest, LabelScores
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.search.validation import question_fault
from rksc_tot.verifiers.base import Verifier, ask_labels, label_shares


class LMValue(Verifier):
    """LM value: asks the model the task's question at the node; the score is the expected value of the label.

    ``node.labels`` gets the probability of each label, and ``outside``, the probability of anything else. After a layer exit
    (``node.layer``) the probabilities are those at that layer, and ``outside`` is unknown.
    """

    name: str = "lm_value"

    def check(self, engine: Engine, task: Task) -> None:
        """Check that the task has a question."""
        if getattr(task.question, "__func__", None) is Task.question:
            raise ConfigError(
                f"verifier {self.name!r} asks the task's question, and the task has no question",
                hint="write Task.question or use another verifier, such as likelihood",
            )

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Ask about all nodes at once."""
        questions = [self.question(search, node) for node in nodes]
        asked = [(n, question) for n, question in zip(nodes, questions, strict=True) if isinstance(question, Question)]
        requests = [self.request(node, question) for node, question in asked]
        replies = iter(await ask_labels(search, requests, [node for node, _ in asked]))
        return [
            self.value(search, node, question, next(replies)) if isinstance(question, Question) else question
            for node, question in zip(nodes, questions, strict=True)
        ]

    def bounds(self, search: Search, node: Node) -> tuple[float, float] | None:
        """The lowest and highest value of a label. None without a question, or if the calibration has other labels."""
        question = self.question(search, node)
        held = None if search.rksc is None else search.rksc.held
        if held is not None and isinstance(question, Question) and tuple(question.labels) != held.labels:
            return None
        values = question.labels.values() if isinstance(question, Question) else ()
        return (min(values), max(values)) if values else None

    def labels_for(self, question: Question | None) -> tuple[str, ...]:
        """The labels of the question."""
        return () if question is None else tuple(question.labels)

    def request(self, node: Node, question: Question) -> LabelRequest:
        """The engine request for the question at a node."""
        return LabelRequest(node._handle, question.text, tuple(question.labels))

    def question(self, search: Search, node: Node) -> Question | Score:
        try:
            with calling_user_code("question"):
                question = search.task.question(search.problem, search.path(node))
                fault = None if question is None else question_fault(question)
        except UserCodeError as raised:
            return self.failure(node, raised)
        if question is None:
            return self.failure(node, "the task has no question", "write Task.question or use another verifier")
        if fault:
            return self.failure(node, fault, "run check_task for details")
        return question

    def value(
        self, search: Search, node: Node, question: Question, reply: LabelScores | ContextOverflow | None
    ) -> Score:
        """The score from a reply of the engine."""
        if reply is None:
            return None
        if isinstance(reply, ContextOverflow):
            return self.failure(node, str(reply))
        if reply.outside is not None and reply.outside > 0.5:
            search.warn(
                "mass outside the labels",
                f"verifier {self.name!r}, node {node.id}: {reply.outside_of(question.labels)} - word the question so that a "
                "label comes next, or name what the model writes as a label",
            )
        score = sum(probability * question.labels[label] for label, probability in reply.probabilities.items())
        return Assessment(score, label_shares(reply), reply.layer, reply.exact)
