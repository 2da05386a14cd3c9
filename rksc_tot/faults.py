"""What is wrong with a value a task gave, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rksc_tot.search.judgement import shown
from rksc_tot.task import Question


def prompt_fault(prompt: object) -> str | None:
    """What is wrong with a prompt, as the end of a sentence, or None."""
    if isinstance(prompt, str):
        return None if prompt else "is empty"
    if not isinstance(prompt, Sequence):
        return f"is {shown(prompt)}, neither a string nor a list of chat messages"
    if not prompt:
        return "holds no message"
    for message in prompt:
        if not isinstance(message, Mapping) or {"role", "content"} - message.keys():
            return f"holds {shown(message)}, not a message with role and content"
        if not all(isinstance(message[key], str) for key in ("role", "content")):
            return f"holds {shown(message)}, whose role or content is not a string"
    return None


def label_fault(labels: object) -> str | None:
    """What is wrong with the labels of a question, as a sentence, or None."""
    if not isinstance(labels, Mapping) or not all(isinstance(label, str) for label in labels):
        return f"the labels are {shown(labels)}, not a mapping from label to worth"
    if len(labels) < 2:
        return f"the labels are {shown(dict(labels))}: a question needs at least two"
    if len({label.strip() for label in labels}) < len(labels) or not all(label.strip() for label in labels):
        return f"the labels {', '.join(map(repr, labels))} are empty or not distinct"
    for label, worth in labels.items():
        if isinstance(worth, bool) or not isinstance(worth, int | float) or not math.isfinite(worth):
            return f"the label {label!r} is worth {shown(worth)}, not a finite number"
    return None


def question_fault(question: object) -> str | None:
    """What is wrong with a question, as a sentence, or None."""
    if not isinstance(question, Question):
        return f"question returned {shown(question)}, not a Question"
    if fault := prompt_fault(question.text):
        return f"the text of the question {fault}"
    return label_fault(question.labels)
