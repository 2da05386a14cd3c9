"""``check_task``: call every method of a task once, and report each missing or wrong thing in one sentence."""

from __future__ import annotations

from typing import Any

from rksc_tot.api.check.findings import Finding, Findings, thoughts
from rksc_tot.api.check.model import ModelCheck
from rksc_tot.api.check.report import TaskReport
from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown, text_of
from rksc_tot.core.task import Path, Prompt, Reject, Task, Thought
from rksc_tot.core.task.problem import without_id
from rksc_tot.core.task.task_settings import prompt_fault, setting_faults
from rksc_tot.engine.base import Engine, Sampling
from rksc_tot.search.approximate.prompt_variants import other_variants
from rksc_tot.search.task_calls import read_answer, read_verdict, thought_fault
from rksc_tot.search.thoughts.observation import observe_call, observed, observes
from rksc_tot.search.validation import Fault, closing_fault, problem_fault, question_fault

SETTINGS = (
    "stop",
    "thoughts",
    "propose_stop",
    "max_thought_tokens",
    "max_thoughts",
    "mode",
    "constraint",
    "thinking",
    *Sampling.model_fields,
    "strategy_settings",
)
SAMPLES = ("", "a sample thought", "12 + 3 = 15", "<|im_end|>**bold** \ufffd\x00", "x" * 5000)


def check_task(task: Task, problem: Any, engine: Engine | None = None) -> TaskReport:
    """Call every method of a task on a problem and report the findings.

    Parameters
    ----------
    task : Task
    problem : object
        A problem that ``task.validate`` accepts.
    engine : Engine, optional
        If given, three thoughts are sampled at the root, shown, and compared with ``task.thoughts``. The first one is parsed.
        The model's greedy path is followed to its end, and the question is asked after its first thought.

    Returns
    -------
    TaskReport
        A list of :class:`Finding`; ``print`` shows it as a table. An error of the task is a finding, not an exception.
    """
    given: object = task
    if not isinstance(given, Task):
        return TaskReport([Finding("error", "task", f"{shown(task)} is not a Task")])
    check = MethodCheck(task)
    model = None if engine is None else ModelCheck(check, engine)
    check.settings()
    valid = check.problem(without_id(problem))
    if not check.failed("validate"):
        prompt = check.prompt("prompt", valid)
        if prompt is not None:
            check.prompt_variants(valid, prompt)
            check.closing(prompt)
        check.is_solution(valid)
        check.state_key(valid, Path())
        sample = model.sampled(valid, prompt) if model is not None else None
        path = check.parse(valid, sample)
        check.observe(valid, path)
        check.question(valid, path)
        if model is not None and (solved := model.followed(valid)):
            path = solved
        check.answer(valid, path)
        if task.mode == "propose":
            check.proposing(valid, path)
    return TaskReport(check.findings)


class MethodCheck(Findings):
    """Checks the settings and methods of a task without a model."""

    def settings(self) -> None:
        faults = dict(setting_faults(self.task))
        for name, fault in faults.items():
            self.report("error", name, fault)
        for name in SETTINGS:
            value: object = getattr(self.task, name)
            if name == ("thoughts" if self.task.thoughts is None else "stop") or (
                name == "constraint" and value is None
            ):
                continue
            if name.endswith("stop") and not value:
                self.report("missing", name, f"{name} is empty: a thought ends only at the end of the model's text")
            elif name not in faults:
                self.report("ok", name, f"{name} is {shown(value)}")

    # -- methods -----------------------------------------------------------------------------------------------------

    def problem(self, problem: Any) -> Any:
        valid = self.call("validate", problem)
        if self.failed("validate"):
            self.report("missing", "methods", "no other method was checked, as each needs a valid problem")
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

    def closing(self, prompt: Prompt) -> None:
        closing = self.task.closing
        if closing is None or self.failed("closing"):
            return
        if fault := closing_fault(closing, prompt):
            self.report("error", "closing", f"the prompt {fault}")
        else:
            self.report("ok", "closing", f"a path without an answer is asked for it by {shown(closing)}")

    def observe(self, problem: Any, path: Path) -> None:
        """Observe the path of one thought, as a search does. Settings with errors are not used."""
        if not observes(self.task) or not path or self.erred:
            return
        thought = run_async(observed(observe_call(self.task, lambda: None), self.task, problem, path))
        if isinstance(thought, str):
            self.report("error", "observe", f"{thought} on {shown(path.text)}")
        else:
            said = "nothing" if thought.observation is None else shown(thought.observation)
            self.report("ok", "observe", f"observe said {said} after {shown(path.text)}")

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
        where = f"after {thoughts(len(path))}" if path else "at the root"
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
        """Parse the sample texts. Returns the path of the first accepted thought, an empty path if none is accepted."""
        accepted: list[Thought] = []
        for text in SAMPLES if sample is None else (sample, *SAMPLES):
            try:
                with calling_user_code("parse", Reject):
                    thought = self.task.parse(problem, Path(), text)
            except Reject as reason:
                if text == sample:
                    why = f"parse rejects the model's text {shown(text)}: {text_of(reason)}"
                    self.report("missing", "sample", why)
                continue
            except UserCodeError as raised:
                self.report("error", "parse", f"{raised} on {shown(text)}: raise Reject with the reason")
                break
            if fault := thought_fault(thought):
                self.report("error", "parse", f"parse returned {shown(thought)} for {shown(text)}, {fault}")
                break
            if not text:
                self.report("missing", "parse", "parse accepts an empty text: empty thoughts would fill the tree")
            else:
                accepted.append(thought)
        if not self.failed("parse"):
            self.report("ok", "parse", "every text is parsed or rejected with a reason")
        if not accepted:
            self.report("missing", "path", "no thought was parsed, so the other methods were called with an empty path")
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
            self.report("missing", "answer", "answer was not called, as there is no path")
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
            self.report("missing", "check", "check returned None: results will have correct=None")
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
            self.report("missing", "split", "split returned no thought for two lines of text")
        else:
            self.report("ok", "split", f"split returned {len(pieces)} thoughts for two lines of text")
