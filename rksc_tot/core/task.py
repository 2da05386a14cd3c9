"""What a user writes: a Task. Thoughts and paths are what it is asked about.

A task in two functions::

    words = function_task(
        prompt=lambda problem: f"Write a rhyme on {problem}.\\n",
        is_solution=lambda problem, path: len(path) == 4,
    )

or a class, when thoughts are to be parsed, merged and judged: see ``rksc_tot.tasks.game24.task``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

Message = dict[str, str]  # {"role": "user", "content": "…"}
Prompt = str | Sequence[Message]


class Reject(Exception):
    """Raised by :meth:`Task.parse` to turn a thought away; the text is kept as the reason."""


@dataclass(frozen=True, slots=True)
class Thought:
    """One step of a path: the text the model wrote (stop string stripped) and what the task made of it."""

    text: str
    state: Any = None


class Path(tuple[Thought, ...]):
    """The thoughts from the root (which holds none) to a node, in order."""

    __slots__ = ()

    @property
    def state(self) -> Any:
        """State of the last thought, None at the root."""
        return self[-1].state if self else None

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
    """Everything the search needs to know of a problem family.

    Only :meth:`prompt` and :meth:`is_solution` must be written. Class attributes are the settings:

    ``name``: shown in reports. ``stop``: text that ends a thought. ``keep_stop``: whether the stop string stays in the
    context of the next thought (True) or is cut away (False). ``max_thought_tokens``: a thought that has not ended by
    then is *truncated* and rejected, unless ``accept_truncated``. ``max_thoughts``: depth of the tree.
    ``mode``: ``sample`` draws k continuations, ``propose`` asks for several thoughts in one reply (see
    :meth:`propose_prompt`), which ends at ``propose_stop``. ``temperature``, ``top_k``, ``top_p``, ``min_p``: how thoughts
    are sampled. ``usual``: by the name of a strategy, those of its settings that suit the task better than its own defaults;
    they hold where the strategy is given by its name.
    """

    name: ClassVar[str] = ""
    stop: Sequence[str] = ("\n",)
    keep_stop: bool = True
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
        """The root prompt: a string, or chat messages that the model's template turns into one."""
        raise NotImplementedError

    def prompt_variants(self, problem: Any) -> Sequence[Prompt]:
        """The prompt in other words. The branches after the root are dealt over the prompt and these, in turn."""
        return ()

    def is_solution(self, problem: Any, path: Path) -> bool:
        """Whether the path is complete, so that :meth:`answer` can be read off it and nothing is to be added."""
        raise NotImplementedError

    def parse(self, problem: Any, path: Path, text: str) -> Thought:
        """Turn the model's text into a thought after ``path``, or raise :class:`Reject` with the reason."""
        if not text.strip():
            raise Reject("the thought is empty")
        return Thought(text)

    def answer(self, problem: Any, path: Path) -> str:
        """The answer a complete path gives; self-consistency votes on it."""
        return path[-1].text if path else ""

    def check(self, problem: Any, answer: str) -> bool | None:
        """Whether an answer is right; None where the task cannot tell. Strategies never call it; reports do."""
        return None

    def state_key(self, problem: Any, path: Path) -> Hashable | None:
        """Equal keys are one state: only the first path to it is kept, the others are counted. None: never merged."""
        return None

    def question(self, problem: Any, path: Path) -> Question | None:
        """What the value verifier asks about the path; None if the task has no such question."""
        return None

    def propose_prompt(self, problem: Any, path: Path) -> Prompt:
        """In ``propose`` mode, what is appended to the path to ask for several next thoughts."""
        return "\nPossible next steps, one a line:\n"

    def split(self, problem: Any, path: Path, reply: str) -> list[str]:
        """In ``propose`` mode, the thoughts in one reply."""
        return [line.strip() for line in reply.splitlines() if line.strip()]


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
