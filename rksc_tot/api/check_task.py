"""A dry run of a task: what is missing, what has the wrong type, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import RkscTotError, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, said, shown
from rksc_tot.core.seeds import stream_keys
from rksc_tot.core.task import Path, Prompt, Reject, Task, Thought
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, Completion, Engine, GenerateRequest, LabelRequest, Sampling
from rksc_tot.search import Search
from rksc_tot.search.approximate.prompt_variants import other_variants
from rksc_tot.search.expansion import sampling_of
from rksc_tot.search.task_calls import read_answer, read_verdict, thought_fault
from rksc_tot.search.validation import Fault, problem_fault, prompt_fault, question_fault, setting_faults

T = TypeVar("T")
Level = Literal["ok", "missing", "error"]
SETTINGS = ("stop", "propose_stop", "max_thought_tokens", "max_thoughts", "mode", *Sampling.model_fields, "usual")
SAMPLES = ("", "a sample thought", "12 + 3 = 15", "<|im_end|>**bold** \ufffd\x00", "x" * 5000)


@dataclass(frozen=True)
class Finding:
    """One thing :func:`check_task` looked at.

    ``level``: ``ok``; ``missing``, where something optional is absent or cannot be judged; ``error``, where a search would
    fail or warn. ``what``: the method or setting. ``message``: one sentence.
    """

    level: Level
    what: str
    message: str


def check_task(task: Task, problem: Any, engine: Engine | None = None) -> list[Finding]:
    """Call every method of a task on a problem and say what came of it.

    Parameters
    ----------
    task : Task
    problem : object
        Whatever ``task.validate`` takes.
    engine : Engine, optional
        With one, a thought is sampled from the root and parsed as well, and the model's likeliest path is followed to its
        end, with the question asked on the way.

    Returns
    -------
    list of Finding
        Nothing is raised for what the task does wrong.
    """
    given: object = task
    if not isinstance(given, Task):
        return [Finding("error", "task", f"{shown(task)} is not a Task")]
    check = _Check(task)
    check.settings()
    valid = check.problem(problem)
    if not check.failed("validate"):
        prompt = check.prompt("prompt", valid)
        if prompt is not None:
            check.prompt_variants(valid, prompt)
        check.is_solution(valid)
        check.state_key(valid, Path())
        sample = check.sampled(valid, prompt, engine) if engine is not None else None
        path = check.parse(valid, sample)
        check.question(valid, path)
        if engine is not None and (solved := check.followed(valid, engine)):
            path = solved
        check.answer(valid, path)
        if task.mode == "propose":
            check.proposing(valid, path)
    return check.findings


class _Check:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.findings: list[Finding] = []

    def report(self, level: Level, what: str, message: str) -> None:
        self.findings.append(Finding(level, what, message))

    @property
    def erred(self) -> bool:
        """Whether there is an error so far."""
        return any(found.level == "error" for found in self.findings)

    def failed(self, what: str) -> bool:
        return any(found.what == what and found.level != "ok" for found in self.findings)

    def call(self, what: str, *args: Any) -> Any:
        """The method's value, or None with a finding where it raises."""
        method: Callable[..., Any] = getattr(self.task, what)
        try:
            with calling_user_code(what, RkscTotError):
                return method(*args)
        except RkscTotError as error:
            self.report("error", what, str(error))
        except UserCodeError as raised:
            if isinstance(raised.error, NotImplementedError):
                self.report("missing", what, f"a task must have {what}: write it")
            else:
                self.report("error", what, f"{raised} on {shown(args[0])}")
        return None

    # -- settings ----------------------------------------------------------------------------------------------------

    def settings(self) -> None:
        faults = dict(setting_faults(self.task))
        for name, fault in faults.items():
            self.report("error", name, fault)
        for name in SETTINGS:
            value: object = getattr(self.task, name)
            if name.endswith("stop") and not value:
                self.report("missing", name, f"{name} is empty: a thought ends only where the model ends its text")
            elif name not in faults:
                self.report("ok", name, f"{name} is {shown(value)}")

    # -- methods -----------------------------------------------------------------------------------------------------

    def problem(self, problem: Any) -> Any:
        valid = self.call("validate", problem)
        if self.failed("validate"):
            self.report("missing", "methods", "no method was looked at, since it needs a valid problem")
        elif fault := problem_fault(valid):
            self.report("error", "validate", f"the problem {shown(valid)} {fault}")
        else:
            self.report("ok", "validate", f"the problem is {shown(valid)}")
        return valid

    def prompt(self, what: str, *args: Any) -> Any:
        prompt = self.call(what, *args)
        if self.failed(what):
            return None
        fault = prompt_fault(prompt)
        self.report("error" if fault else "ok", what, f"{what} {fault}" if fault else f"{what} is {shown(prompt)}")
        return None if fault else prompt

    def prompt_variants(self, problem: Any, prompt: Prompt) -> None:
        try:
            prompts = other_variants(self.task, problem, prompt)
        except TaskError as error:
            self.report("error", "prompt_variants", error.message)
            return
        if prompts:
            self.report("ok", "prompt_variants", f"prompt_variants are {shown(prompts)}")

    def is_solution(self, problem: Any) -> None:
        value = self.call("is_solution", problem, Path())
        if self.failed("is_solution"):
            return
        if value:
            self.report(
                "error", "is_solution", "is_solution is True at the root: the search would end before it starts"
            )
        else:
            self.report("ok", "is_solution", "the empty path is no solution")

    def state_key(self, problem: Any, path: Path) -> None:
        key = self.call("state_key", problem, path)
        where = f"after {_thoughts(len(path))}" if path else "at the root"
        if self.failed("state_key"):
            return
        try:
            with calling_user_code("hash"):
                hash(key)
        except UserCodeError:
            message = f"state_key returned {shown(key)} {where}, which cannot be hashed: return a tuple or a string"
            self.report("error", "state_key", message)
            return
        self.report("ok", "state_key", f"state_key is {shown(key)} {where}")

    def parse(self, problem: Any, sample: str | None) -> Path:
        """Parse some texts; the path of the first that is accepted (a made-up thought if none is)."""
        accepted: list[Thought] = []
        for text in SAMPLES if sample is None else (sample, *SAMPLES):
            try:
                with calling_user_code("parse", Reject):
                    thought = self.task.parse(problem, Path(), text)
            except Reject as reason:
                if text == sample:
                    why = f"parse rejects {shown(text)}, which the model wrote: {said(reason)}"
                    self.report("missing", "sample", why)
                continue
            except UserCodeError as raised:
                self.report("error", "parse", f"{raised} on {shown(text)}: raise Reject with the reason")
                break
            if fault := thought_fault(thought):
                self.report("error", "parse", f"parse returned {shown(thought)} for {shown(text)}, {fault}")
                break
            if not text:
                self.report(
                    "missing", "parse", "parse accepts an empty text: a model that writes nothing would fill the tree"
                )
            else:
                accepted.append(thought)
        if not self.failed("parse"):
            self.report("ok", "parse", "every text is parsed or rejected with a reason")
        if not accepted:
            self.report(
                "missing", "path", "no thought could be parsed, so the methods that need a path saw a made-up one"
            )
            return Path()
        path = Path(accepted[:1])
        self.state_key(problem, path)
        return path

    def question(self, problem: Any, path: Path) -> None:
        question = self.call("question", problem, path)
        if self.failed("question"):
            return
        if question is None:
            self.report("missing", "question", "the task has no question: the verifier lm_value cannot be used")
        elif fault := question_fault(question):
            self.report("error", "question", fault)
        else:
            self.report("ok", "question", f"the labels are {', '.join(map(repr, question.labels))}")

    def answer(self, problem: Any, path: Path) -> None:
        if not path:
            self.report("missing", "answer", "there was no path to read an answer from")
            return
        answer, why = read_answer(self.task, problem, path)
        if answer is None:
            self.report("error" if isinstance(why, Fault) else "missing", "answer", f"{why} for {shown(path.text)}")
            return
        self.report("ok", "answer", f"the answer of {shown(path.text)} is {shown(answer)}")
        correct, fault = read_verdict(self.task, problem, answer)
        if fault:
            self.report("error", "check", f"{fault} on {shown(answer)}")
        elif correct is None:
            self.report(
                "missing", "check", "check cannot tell right from wrong: results will not say whether they are correct"
            )
        else:
            self.report("ok", "check", f"check returned {correct}")

    def proposing(self, problem: Any, path: Path) -> None:
        self.prompt("propose_prompt", problem, path)
        pieces = self.call("split", problem, path, "first thought\nsecond thought\n")
        if self.failed("split"):
            return
        if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
            self.report("error", "split", f"split returned {shown(pieces)}, not a list of thoughts")
        elif not pieces:
            self.report("missing", "split", "split finds no thought in two lines of text")
        else:
            self.report("ok", "split", f"split finds {len(pieces)} thoughts in two lines")

    # -- with an engine ----------------------------------------------------------------------------------------------

    def sampled(self, problem: Any, prompt: Any, engine: Engine) -> str | None:
        """One thought the model writes after the prompt."""
        if prompt is None or self.erred:
            self.report("missing", "sample", "no thought was sampled, because of the errors above")
            return None
        task = self.task
        try:
            with calling_user_code("the engine", RkscTotError):
                completion = self._completion(problem, prompt, engine)
        except (RkscTotError, UserCodeError) as error:
            self.report("error", "sample", str(error))
            return None
        if completion.finish == "eos" and not completion.text.strip():
            ended = "the model ended its text right after the prompt: end the prompt so that something must follow"
            self.report("missing", "sample", ended)
            return None
        if completion.finish == "length" and not task.accept_truncated:
            limit = f"max_thought_tokens {task.max_thought_tokens}"
            self.report(
                "missing", "sample", f"{shown(completion.text)} was cut off at {limit}: raise it, or correct stop"
            )
        else:
            self.report("ok", "sample", f"the model wrote {shown(completion.text)} ({completion.finish})")
        return completion.text

    def followed(self, problem: Any, engine: Engine) -> Path | None:
        """The model's greedy path, if it is a solution."""
        if self.erred:
            return None
        try:
            with calling_user_code("the engine", RkscTotError):
                return run_async(self._follow(problem, engine))
        except (RkscTotError, UserCodeError) as error:
            self.report("error", "greedy path", str(error))
            return None

    async def _follow(self, problem: Any, engine: Engine) -> Path | None:
        from rksc_tot.verifiers import Likelihood

        search = Search(self.task, problem, engine, Likelihood())
        try:
            node = search.root
            while not node.finished and node.depth < search.max_depth:
                children = await search.expand([node], 1, temperature=0, merge=False)
                if not children:
                    break
                [node] = children
                if node.depth == 1:
                    await self._ask(search, node)
            self._end(search, node)
            return search.path(node) if node.finished else None
        finally:
            search.close()

    def _end(self, search: Search, node: Node) -> None:
        """Say how the greedy path ended."""
        length = _thoughts(node.depth)
        if node.finished:
            self.report("ok", "greedy path", f"the model's greedy path is a solution after {length}")
        elif search.fault is not None:
            self.report("error", "greedy path", f"{search.fault} in the model's greedy path, after {length}")
        elif search.rejections:
            self.report(
                "missing",
                "greedy path",
                f"the model's greedy path ends after {length}: {next(iter(search.rejections))}",
            )
        else:
            never = f"is_solution was never true in {length} of the model's greedy path, which max_thoughts ended"
            self.report("missing", "is_solution", never)

    async def _ask(self, search: Search, node: Node) -> None:
        """Put the task's question to the model, unless something is wrong with it anyway."""
        question = None if self.failed("question") else self.call("question", search.problem, search.path(node))
        if question is None or question_fault(question):
            return
        request = LabelRequest(node._handle, question.text, tuple(question.labels))
        try:
            with calling_user_code("the engine", RkscTotError):
                [scores] = await search.engine.label([request], search.account)
        except (RkscTotError, UserCodeError) as error:
            self.report("error", "question", str(error))
            return
        if scores is not None and (scores.outside or 0.0) > 0.5:
            labels = ", ".join(map(repr, question.labels))
            outside = f"the model gave {scores.outside:.0%} to something else than the labels {labels}"
            self.report("missing", "question", f"{outside}: ask so that a label comes next")

    def _completion(self, problem: Any, prompt: Any, engine: Engine) -> Completion:
        task, account = self.task, Account()
        handle = engine.open(prompt, account)
        try:
            request = GenerateRequest(
                handle,
                stream_keys([0], "check_task", str(problem)),
                sampling_of(task, {}),
                task.max_thought_tokens,
                tuple(task.stop),
                task.keep_stop,
                task.skip_blank,
            )
            [[completion]] = run_async(engine.generate([request], account))
            engine.release(completion.handle)
        finally:
            engine.release(handle)
        return completion


def _thoughts(number: int) -> str:
    return f"{number} thought{'' if number == 1 else 's'}"
