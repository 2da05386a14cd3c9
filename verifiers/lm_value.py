"""The model values a state: the *value* prompt of Tree of Thoughts, Yao et al. 2023, https://arxiv.org/abs/2305.10601.

The paper samples a verdict ("sure", "likely", "impossible") a few times and adds up its worth; here the expectation is read
off the label probabilities, without sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

from rksc_tot.core.errors import ContextOverflow
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import Question
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import LabelRequest, LabelScores
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.search.validation import question_fault
from rksc_tot.verifiers.base import Verifier, ask_labels, label_shares


class LMValue(Verifier):
    """LM value: the task's question is put to the model at the node; the score is the expected worth of its label.

    ``node.labels`` gets the probability of each label, and under ``outside`` the mass the model gave to anything else; after a
    layer exit (``node.layer``) the probabilities are those read at that layer, and ``outside`` is not known.
    """

    name: str = "lm_value"

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
        """The worth of the worst and of the best label; None where there is no question, or another than was calibrated."""
        question = self.question(search, node)
        held = None if search.rksc is None else search.rksc.held
        if held is not None and isinstance(question, Question) and tuple(question.labels) != held.labels:
            return None
        worth = question.labels.values() if isinstance(question, Question) else ()
        return (min(worth), max(worth)) if worth else None

    def request(self, node: Node, question: Question) -> LabelRequest:
        """The question about a node for the engine."""
        return LabelRequest(node._handle, question.text, tuple(question.labels))

    def question(self, search: Search, node: Node) -> Question | Score:
        try:
            with calling_user_code("question"):
                question = search.task.question(search.problem, search.path(node))
                fault = None if question is None else question_fault(question)
        except UserCodeError as raised:
            return self.failure(node, raised)
        if question is None:
            return self.failure(node, "the task has no question for it", "write Task.question or use another verifier")
        if fault:
            return self.failure(node, fault, "check_task says more")
        return question

    def value(
        self, search: Search, node: Node, question: Question, reply: LabelScores | ContextOverflow | None
    ) -> Score:
        """The score that follows from a reply."""
        if reply is None:
            return None
        if isinstance(reply, ContextOverflow):
            return self.failure(node, str(reply))
        if reply.outside is not None and reply.outside > 0.5:
            search.warn(
                "mass outside the labels",
                f"verifier {self.name!r}: the model gave {reply.outside:.0%} to something else than the labels "
                f"{', '.join(map(repr, question.labels))} (node {node.id}); ask so that a label comes next",
            )
        score = sum(probability * question.labels[label] for label, probability in reply.probabilities.items())
        return Assessment(score, label_shares(reply), reply.layer, reply.exact)
