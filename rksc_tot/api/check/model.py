"""Checks a task with a model: one sampled thought, and the greedy path to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rksc_tot.api.check.findings import Findings, thoughts
from rksc_tot.api.check.thinking import as_completions, report_blocks, report_unasked, thoughts_with_blocks
from rksc_tot.api.check.thoughts import SampledText, advise
from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import RkscTotError
from rksc_tot.core.plugins.user_code import UserCodeError, awaiting_user_code, calling_user_code, shown
from rksc_tot.core.seeds import stream_keys
from rksc_tot.core.task import Constraint, Path
from rksc_tot.core.task.end_of_thought import accepts_truncated, boundary_of, most_tokens
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, Completion, Engine, GenerateRequest, LabelRequest, Sampling
from rksc_tot.search import Search
from rksc_tot.search.task_calls import constraint_of
from rksc_tot.search.thoughts.thought_generator import sampling_of
from rksc_tot.search.validation import Fault, question_fault

THOUGHTS = 3  # sampled to show where they end
REPLY = 12  # tokens of the reply to a question that is shown


@dataclass(frozen=True)
class ModelCheck:
    """Runs a model on a task and adds its findings to ``found``."""

    found: Findings
    engine: Engine

    def sampled(self, problem: Any, prompt: Any) -> str | None:
        """Sample one thought after the prompt. Returns its text, None if there is nothing to parse."""
        if prompt is None or self.found.erred:
            self.found.report("missing", "sample", "no thought was sampled because of the errors above")
            return None
        task = self.found.task
        constraint = constraint_of(task, problem, Path())
        if isinstance(constraint, Fault):
            self.found.report("error", "constraint", constraint)
            return None
        try:
            with calling_user_code("the engine", RkscTotError):
                completions = self._completions(problem, prompt, constraint)
                if task.thinking is None:
                    report_unasked(self.found, self.engine, prompt, [each.text for each in completions])
        except (RkscTotError, UserCodeError) as error:
            self.found.report("error", "sample", str(error))
            return None
        completion = completions[0]
        if completion.finish == "eos" and not completion.text.strip():
            ended = (
                "the model ended its text right after the prompt: end the prompt in the middle of a line or sentence"
            )
            self.found.report("missing", "sample", ended)
            return None
        if constraint is not None and completion.finish not in ("stop", "eos"):
            cut = f"{shown(completion.text)} was cut off before it satisfied the {constraint.name}"
            self.found.report("missing", "sample", f"{cut}: raise max_thought_tokens, now {task.max_thought_tokens}")
        elif completion.finish == "length" and not accepts_truncated(task):
            limit, setting = f"max_thought_tokens {task.max_thought_tokens}", "thoughts" if task.thoughts else "stop"
            self.found.report(
                "missing", "sample", f"{shown(completion.text)} was cut off at {limit}: raise it, or correct {setting}"
            )
        else:
            self.found.report("ok", "sample", f"the model wrote {shown(completion.text)} ({completion.finish})")
        if task.mode == "sample" and constraint is None:
            self._tell_apart([SampledText(each.text, each.finish) for each in completions for _ in each.branches])
        return completion.text

    def _tell_apart(self, samples: list[SampledText]) -> None:
        """Show the sampled thoughts, and report whether the task's boundary tells them apart."""
        task = self.found.task
        advice = advise(boundary_of(task), samples, most_tokens(task))
        texts = tuple(f"{sample.text} ({sample.finish})" for sample in samples)
        self.found.report("ok" if advice.works else "missing", "sampled thoughts", advice.message, texts)

    def followed(self, problem: Any) -> Path | None:
        """The model's greedy path; None if it is not a solution or the task has errors."""
        if self.found.erred:
            return None
        try:
            with calling_user_code("the engine", RkscTotError):
                return run_async(self._follow(problem))
        except (RkscTotError, UserCodeError) as error:
            self.found.report("error", "greedy path", str(error))
            return None

    async def _follow(self, problem: Any) -> Path | None:
        from rksc_tot.verifiers import Likelihood

        search = Search(self.found.task, problem, self.engine, Likelihood())
        try:
            node = search.root
            while not node.finished:
                children = await search.expand([node], 1, temperature=0, merge=False)
                if not children:
                    break
                [node] = children
                if node.depth == 1:
                    await self._ask(search, node)
            if not node.finished:
                await search.ask_for_answer()
                node = search.best if search.best.finished else node
            self._end(search, node)
            return search.path(node) if node.finished else None
        finally:
            search.close()

    def _end(self, search: Search, node: Node) -> None:
        """Report how the greedy path ended."""
        length = thoughts(node.depth)
        if node.finished:
            reply = "" if node.closing is None else f", the last of them the reply to closing: {shown(node.text)}"
            self.found.report("ok", "greedy path", f"the model's greedy path is a solution after {length}{reply}")
        elif search.fault is not None:
            self.found.report("error", "greedy path", f"{search.fault} in the model's greedy path, after {length}")
        elif search.rejections:
            self.found.report(
                "missing",
                "greedy path",
                f"the model's greedy path ends after {length}: {next(iter(search.rejections))}",
            )
        else:
            never = f"is_solution was False on all {length} of the model's greedy path, up to max_thoughts"
            self.found.report("missing", "is_solution", never)

    async def _ask(self, search: Search, node: Node) -> None:
        """Ask the model the task's question, unless the question has an error."""
        question = (
            None if self.found.failed("question") else self.found.call("question", search.problem, search.path(node))
        )
        if question is None or question_fault(question):
            return
        request = LabelRequest(node._handle, question.text, tuple(question.labels))
        try:
            with awaiting_user_code("the engine", RkscTotError):
                [scores] = await search.engine.label([request], search.account)
        except (RkscTotError, UserCodeError) as error:
            self.found.report("error", "question", str(error))
            return
        if scores is not None and (scores.outside or 0.0) > 0.5:
            outside = scores.outside_of(question.labels)
            advice = "word the question so that a label comes next; on a chat model give it as messages"
            greedy = Sampling(temperature=0)
            reply = GenerateRequest(node._handle, stream_keys([0], "reply"), greedy, REPLY, suffix=question.text)
            [[wanted]] = await search.engine.generate([reply], search.account)
            self.found.report("missing", "question", f"{outside}: {advice}", (f"it wrote {wanted.text!r}",))

    def _completions(self, problem: Any, prompt: Any, constraint: Constraint | None) -> list[Completion]:
        """Sampled thoughts after the prompt; the first one is that of the first branch."""
        task, account, boundary = self.found.task, Account(), boundary_of(self.found.task)
        if task.thinking is not None:
            candidates = run_async(thoughts_with_blocks(task, problem, self.engine, THOUGHTS))
            report_blocks(self.found, task.thinking, candidates)
            return as_completions(candidates)
        handle = self.engine.open(prompt, account)
        try:
            request = GenerateRequest(
                handle,
                stream_keys(range(THOUGHTS), "check_task", str(problem)),
                sampling_of(task, {}),
                most_tokens(task),
                boundary.stop,
                boundary.keep_stop,
                boundary.skip_blank,
                boundary.rule,
                constraint=constraint,
            )
            [completions] = run_async(self.engine.generate([request], account))
            for completion in completions:
                self.engine.release(completion.handle)
        finally:
            self.engine.release(handle)
        return completions
