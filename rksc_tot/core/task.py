"""What a user writes: a Task, and the thoughts and paths that its methods get.

A task in two functions::

    words = function_task(
        prompt=lambda problem: f"Write a rhyme on {problem}.\\n",
        is_solution=lambda problem, path: len(path) == 4,
    )

Write a class where thoughts are to be parsed, merged or checked: see ``rksc_tot.tasks.game24.task``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

Message = dict[str, str]  # {"role": "user", "content": "…"}
Prompt = str | Sequence[Message]
ThoughtFinish = Literal["stop", "eos", "length"]


class Reject(Exception):
    """Raised by :meth:`Task.parse` to turn a thought away; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Thought:
    """One step of a path.

    ``text``: what stands on the path, without the stop string.
    ``state``: anything the task keeps with it.
    ``finish``: what ended it, set by the search: ``stop``, a stop string; ``eos``, the end of the model's text; ``length``, a
    limit, where the task accepts truncated thoughts.
    """

    text: str
    state: Any = None
    finish: ThoughtFinish = "stop"


class Path(tuple[Thought, ...]):
    """The thoughts from the root, which has none, to a node, in order."""

    __slots__ = ()

    @property
    def state(self) -> Any:
        """State of the last thought, None at the root."""
        return self[-1].state if self else None

    @property
    def finish(self) -> ThoughtFinish | None:
        """What ended the last thought, None at the root."""
        return self[-1].finish if self else None

    @property
    def text(self) -> str:
        """All thoughts, a line each."""
        return "\n".join(thought.text for thought in self)


@dataclass(frozen=True, slots=True)
class Question:
    """What a model verifier asks at a node.

    ``text`` is appended to the node's own tokens (a string as it is; chat messages as the turns that follow).
    ``labels`` maps each possible answer to its worth; the score is the expectation over the model's label probabilities.
    """

    text: Prompt
    labels: Mapping[str, float]


class Task:
    """Everything a search needs to know of a family of problems.

    Only :meth:`prompt` and :meth:`is_solution` must be written. The class attributes are settings:

    * ``name``: for reports.
    * ``stop``: texts that end a thought. ``keep_stop``: whether the stop string stays on the path (True) or is cut off.
    * ``skip_blank``: whether stop strings that a thought begins with are skipped, such as the blank line a chat model writes
      before its first word. They stay on the path and count as sampled tokens. False: they end an empty thought.
    * ``end_completes``: whether a path is complete where the model ends its text. A model that writes only the end of its
      text completes the path so far, if that has a thought. False: :meth:`is_solution` alone decides; it sees
      ``path.finish``.
    * ``max_thought_tokens``: a thought that is longer is *truncated* and rejected, unless ``accept_truncated``.
    * ``max_thoughts``: depth of the tree.
    * ``mode``: ``sample`` draws k continuations; ``propose`` asks for several thoughts in one reply (see
      :meth:`propose_prompt`), which ends at ``propose_stop``.
    * ``temperature``, ``top_k``, ``top_p``, ``min_p``: how thoughts are sampled.
    * ``usual``: by the name of a strategy, settings that suit the task better than the defaults; they hold where the strategy
      is given by its name.
    """

    name: ClassVar[str] = ""
    stop: Sequence[str] = ("\n",)
    keep_stop: bool = True
    skip_blank: bool = True
    end_completes: bool = True
    max_thought_tokens: int = 128
    max_thoughts: int = 8
    accept_truncated: bool = False
    mode: Literal["sample", "propose"] = "sample"
    propose_stop: Sequence[str] = ("\n\n",)
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    usual: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    def validate(self, problem: Any) -> Any:
        """The problem in the task's own form; raise :class:`~rksc_tot.core.errors.TaskError` if it does not fit the task."""
        return problem

    def prompt(self, problem: Any) -> Prompt:
        """The root prompt: a string, or chat messages that the model's template turns into one.

        Where the last message is the assistant's, the model continues it. Only the template makes control tokens: their names
        in a string or in a message are text.
        """
        raise NotImplementedError

    def prompt_variants(self, problem: Any) -> Sequence[Prompt]:
        """The prompt in other words. The branches after the root are dealt over the prompt and these, in turn."""
        return ()

    def is_solution(self, problem: Any, path: Path) -> bool:
        """Whether the path is complete: :meth:`answer` can read it and nothing is to be added. See ``end_completes``, too."""
        raise NotImplementedError

    def parse(self, problem: Any, path: Path, text: str) -> Thought:
        """Turn the model's text into a thought after ``path``, or raise :class:`Reject` with the reason.

        The model continues from the text of the thought: where that differs from what it wrote, but for white space at the
        ends, the path gets the tokens of the new text. Such a thought has no log-probabilities, since it was not drawn.
        """
        if not text.strip():
            raise Reject("the thought is empty")
        return Thought(text)

    def answer(self, problem: Any, path: Path) -> str:
        """The answer of a complete path."""
        return path[-1].text.strip() if path else ""

    def normalise(self, answer: str) -> Hashable:
        """What an answer counts as in a vote: answers with equal values are one. ``str`` counts exact strings."""
        return answer.strip().removesuffix(".").rstrip()

    def check(self, problem: Any, answer: str) -> bool | None:
        """Whether an answer is right; None where the task cannot tell. Reports call it, strategies never do."""
        return None

    def state_key(self, problem: Any, path: Path) -> Hashable | None:
        """Equal keys are one state: only the first path to it is kept, the others are counted. None: never merged."""
        return None

    def question(self, problem: Any, path: Path) -> Question | None:
        """The question of the value verifier about the path; None if the task has none."""
        return None

    def propose_prompt(self, problem: Any, path: Path) -> Prompt:
        """In ``propose`` mode, the text after the path that asks for several next thoughts."""
        return "\nPossible next steps, one a line:\n"

    def split(self, problem: Any, path: Path, reply: str) -> list[str]:
        """In ``propose`` mode, the thoughts in one reply."""
        return [line.strip() for line in reply.split("\n") if line.strip()]


def function_task(
    *,
    prompt: Callable[[Any], Prompt],
    is_solution: Callable[[Any, Path], bool],
    **options: Any,
) -> Task:
    """A task from functions: any method or setting of :class:`Task` may be given by its name.

    Raises
    ------
    ConfigError
        If an option is not a method or setting of :class:`Task`.
    """
    from rksc_tot.core.errors import ConfigError

    task = Task()
    for name, value in {"prompt": prompt, "is_solution": is_solution, **options}.items():
        if name.startswith("_") or not hasattr(Task, name):
            known = ", ".join(n for n in vars(Task) if not n.startswith("_"))
            raise ConfigError(f"a task has no {name!r}", hint=f"it has {known}")
        setattr(task, name, value)
    return task
