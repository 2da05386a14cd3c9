"""Tasks: the ``Task`` class that users derive from, and the thoughts and paths that its methods get.

A task in two functions::

    words = function_task(
        prompt=lambda problem: f"Write a rhyme on {problem}.\\n",
        is_solution=lambda problem, path: len(path) == 4,
    )

To parse, merge or check thoughts, write a class, such as ``rksc_tot.tasks.game24.task``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from rksc_tot.core.task.boundary import Boundary
from rksc_tot.core.task.constraint import Constraint
from rksc_tot.core.task.sampling import DEFAULT
from rksc_tot.core.task.thinking import Thinking

Message = dict[str, str]  # {"role": "user", "content": "…"}
Prompt = str | Sequence[Message]
ThoughtFinish = Literal["stop", "eos", "length"]


class Reject(Exception):
    """Raised by :meth:`Task.parse` to reject a thought. Its text is the reason."""


@dataclass(frozen=True, slots=True)
class Thought:
    """One step of a path.

    * ``text``: the text on the path, without the stop string.
    * ``state``: any value that the task stores with the thought.
    * ``finish``: why the text ended, set by the search: ``stop``, at a stop string; ``eos``, at the end of the model's text;
      ``length``, at a limit, if the task accepts truncated thoughts or has a ``closing``.
    * ``ending``: what stands between the text and what follows it on the path, such as the stop string; empty if nothing does.
      Set by the search.
    * ``lead``: what the model wrote before the text, such as skipped stop strings, where no ending divides thoughts; else
      empty. Set by the search.
    * ``closing``: the text that asked for the answer, if this is the reply to ``Task.closing``; else None. Set by the search.
    * ``observation``: the text that :meth:`Task.observe` put on the path after the thought; else None. Set by the search.
    """

    text: str
    state: Any = None
    finish: ThoughtFinish = "stop"
    closing: str | None = None
    observation: str | None = None
    ending: str = "\n"
    lead: str = ""

    @property
    def full_text(self) -> str:
        """The text, after the closing that asked for it, and before the observation that follows it."""
        asked = "" if self.closing is None else self.closing.lstrip()
        return asked + self.text + self._observed

    @property
    def _observed(self) -> str:
        if self.observation is None:
            return ""
        said, line = self.observation, self.ending == "\n"
        return self.ending + (said.strip("\n") if line else said.removesuffix(self.ending))

    def after(self, text: str) -> str:
        """``text``, which ends with the ending of the thought before, and this thought."""
        asked = self.closing or ""
        if not text or text.endswith("\n"):
            asked = asked.lstrip()
        elif asked.endswith("\n") and not asked[0].isspace():  # chat messages begin on a line of their own
            asked = "\n" + asked
        return text + asked + self.lead + self.text + self._observed


class Path(tuple[Thought, ...]):
    """The thoughts from the root to a node, in order. The path of the root is empty."""

    __slots__ = ()

    @property
    def state(self) -> Any:
        """State of the last thought, None at the root."""
        return self[-1].state if self else None

    @property
    def finish(self) -> ThoughtFinish | None:
        """Why the last thought ended, None at the root."""
        return self[-1].finish if self else None

    @property
    def text(self) -> str:
        """All thoughts with closing and observations, and between them what stands there on the path.

        Blank lines before a thought are left out, as are control tokens of the chat template.
        """
        text = ending = ""
        for thought in self:
            text, ending = thought.after(text + ending), thought.ending
        return text


@dataclass(frozen=True, slots=True)
class Question:
    """The question that a model verifier asks at a node.

    * ``text``: appended to the tokens of the path: a string as it is, chat messages as the next turns.
    * ``labels``: maps each possible answer, read letter by letter, to its value. The score is the expected value
      under the label probabilities.
    """

    text: Prompt
    labels: Mapping[str, float]


class Task:
    """A family of problems, as a search sees it.

    Only :meth:`prompt` and :meth:`is_solution` are required. The class attributes are settings:

    * ``name``: name in reports.
    * ``stop``: strings that end a thought. ``keep_stop``: whether the stop string stays on the path.
    * ``thoughts``: where a thought ends, in place of ``stop``, ``keep_stop`` and ``skip_blank``: a
      :class:`~rksc_tot.core.task.boundary.Boundary` or its name, such as ``paragraphs``, ``numbered`` or ``sentences:2``.
    * ``skip_blank``: whether stop strings at the beginning of a thought are skipped, such as a chat model's blank line before
      its first word. Skipped tokens stay on the path and count as sampled. False: a stop string at the beginning ends the
      thought, which is then empty.
    * ``end_completes``: whether an end-of-text token (EOS) completes a path. EOS without text completes the path of the parent,
      unless the parent is the root. False: only :meth:`is_solution` decides; it sees ``path.finish``.
    * ``max_thought_tokens``: longer thoughts are *truncated* and rejected, unless ``accept_truncated``.
    * ``max_thoughts``: depth of the tree.
    * ``closing``: asks a path for its answer: a text that follows the path, such as ``"\\nThe answer is"``, or chat messages as
      the next turns. None: off. A path is asked if it ends without an answer: at ``max_thoughts``, at EOS, or cut off. The
      model's greedy reply becomes the last thought of the path and completes it. It is not parsed; :meth:`answer` reads it. It
      is at most ``closing_tokens`` long, and ends at the first of ``closing_stop`` where :meth:`answer` finds an answer.
    * ``observe_timeout``, ``observe_attempts``, ``observe_chars``: limits of :meth:`observe`: seconds of one attempt (None: no
      limit), attempts, and length of the returned text.
    * ``mode``: ``sample`` samples k continuations; ``propose`` asks for several thoughts in one reply (see
      :meth:`propose_prompt`), which ends at ``propose_stop``.
    * ``thinking``: how the blocks of a thinking model are bounded and read; None: the task knows no thinking blocks.
    * ``constraint``: the form of every thought (:func:`json_schema`, :func:`regex` or :func:`grammar`), or a function or method
      of problem and path that returns one, or None. In ``propose`` mode it is the form of the reply. A constraint takes the place
      of ``stop``: a thought ends where no more text is allowed, or at EOS where the form allows the end. With ``keep_stop`` the
      first stop string is then appended. See docs/structured.md.
    * ``temperature``, ``top_k``, ``top_p``, ``min_p``: how thoughts are sampled.
    * ``strategy_settings``: settings of strategies for this task, by name of the strategy, such as ``{"bfs": {"k": 9}}``. They
      apply where the strategy is given by name.
    * ``default_model``: the model that the command loads if none is named, such as ``embedded:sudoku4``. None: ``embedded``.
    """

    name: ClassVar[str] = ""
    stop: Sequence[str] = ("\n",)
    keep_stop: bool = True
    skip_blank: bool = True
    thoughts: Boundary | str | None = None
    end_completes: bool = True
    max_thought_tokens: int = 128
    max_thoughts: int = 8
    accept_truncated: bool = False
    closing: Prompt | None = None
    closing_tokens: int = 32
    closing_stop: Sequence[str] = ("\n",)
    observe_timeout: float | None = 30.0
    observe_attempts: int = 1
    observe_chars: int = 4000
    mode: Literal["sample", "propose"] = "sample"
    propose_stop: Sequence[str] = ("\n\n",)
    thinking: Thinking | None = None
    constraint: Constraint | Callable[[Any, Path], Constraint | None] | None = None
    temperature: float = DEFAULT.temperature
    top_k: int | None = DEFAULT.top_k
    top_p: float = DEFAULT.top_p
    min_p: float = DEFAULT.min_p
    strategy_settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    default_model: str | None = None

    def validate(self, problem: Any) -> Any:
        """Check a problem and convert it to the task's form. Raise :class:`~rksc_tot.core.errors.TaskError` to refuse it."""
        return problem

    def generate_problems(self, seed: int = 0) -> Iterator[Any]:
        """Problems that :meth:`validate` accepts, for tests and comparisons: the same for the same seed. By default none."""
        return iter(())

    def solution(self, problem: Any) -> Sequence[str] | None:
        """The texts of the thoughts of one correct path, None if the task has no solver. Strategies never call it."""
        return None

    def prompt(self, problem: Any) -> Prompt:
        """The prompt of the root: a string, or chat messages for the model's chat template.

        If the last message is the assistant's, the model continues it. Special tokens come from the chat template only: names
        such as ``<|im_end|>`` in a string or a message are not parsed as special tokens.
        """
        raise NotImplementedError

    def prompt_variants(self, problem: Any) -> Sequence[Prompt]:
        """Other prompts for the same problem. The branches after the root start from the prompt and its variants in turn."""
        return ()

    def is_solution(self, problem: Any, path: Path) -> bool:
        """Whether the path is complete, so that :meth:`answer` can read it. See also ``end_completes``."""
        raise NotImplementedError

    def parse(self, problem: Any, path: Path, text: str) -> Thought:
        """Turn the model's text into a thought after ``path``, or raise :class:`Reject` with the reason.

        The model continues from the text of the thought. If that differs from the model's text in more than outer white space,
        the path gets the tokens of the new text, and the thought has no log-probabilities.
        """
        if not text.strip():
            raise Reject("the thought is empty")
        return Thought(text)

    def observe(self, problem: Any, path: Path) -> str | Awaitable[str | None] | None:
        """What a tool or an environment says after the last thought of a path; None or an empty text: nothing.

        The text goes on the path after the thought, as plain text that the model did not write. May be async. The states on the
        path are copies of its own: the method may change ``path.state``, and the new thought keeps the changed state.
        """
        return None

    def answer(self, problem: Any, path: Path) -> str | None:
        """The answer of a complete path; None if the path gives none, so that it has no vote."""
        return path[-1].text.strip() if path else ""

    def normalise(self, answer: str) -> Hashable:
        """The form of an answer that counts in votes: answers with equal forms are the same."""
        return answer.strip().removesuffix(".").rstrip()

    def check(self, problem: Any, answer: str) -> bool | None:
        """Whether an answer is right, None if the task cannot tell. Only reports call it, never strategies."""
        return None

    def promising(self, problem: Any, path: Path) -> bool | None:
        """Whether a path can still end in a right answer, None if the task cannot tell. Only fits call it, never strategies."""
        return None

    def state_key(self, problem: Any, path: Path) -> Hashable | None:
        """A key of the state. Paths with equal keys become one node, whose ``count`` grows. None: not merged."""
        return None

    def question(self, problem: Any, path: Path) -> Question | None:
        """The question of the verifier ``lm_value`` about the path, None without one."""
        return None

    def propose_prompt(self, problem: Any, path: Path) -> Prompt:
        """In ``propose`` mode, the text after the path that asks for several next thoughts."""
        return "\nPossible next steps, one a line:\n"

    def split(self, problem: Any, path: Path, reply: str) -> list[str]:
        """In ``propose`` mode, the thoughts in one reply."""
        return [line.strip() for line in reply.split("\n") if line.strip()]
