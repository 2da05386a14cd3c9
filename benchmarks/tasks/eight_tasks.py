"""Eight tasks as a user writes them: five of rows, two of functions, one class. ``own_task`` counts and runs them.

Each function is the user's whole code besides the imports. It gets an engine, and rows or problems, and returns the outcomes.
"""

from __future__ import annotations

import re
from typing import Any

from rksc_tot import Question, Reject, Task, Thought, function_task, rows_task, solve_many
from rksc_tot.tasks.game24.prompts import QUESTION

ROWS: dict[str, list[Any]] = {
    "word_problems": [{"question": "Tom has 3 bags of 4 nuts. How many nuts?", "answer": "3 * 4 = 12\n#### 12"}],
    "multiple_choice": [{"question": "Which is a bird?", "a": "trout", "b": "robin", "answer": "B"}],
    "boxed": [{"problem": "Simplify 2/4.", "solution": r"It is \boxed{\frac{1}{2}}."}],
    "json_fields": [{"text": "Ann is 7 years old.", "answer": {"name": "Ann", "age": 7}}],
    "few_shot_chat": [{"question": "5 + 8", "answer": 13}],
    "longest_word": ["red, yellow, blue"],
    "own_reward": [{"word": "listen"}],
    "make_24": ["4 5 6 10"],
}
"""A problem for each task."""


def word_problems(engine: Any, rows: Any) -> Any:
    task = rows_task(rows, prompt="{question}\nThink step by step.", target_answer="after:####", max_thoughts=6)
    return solve_many(task, task.problems, engine=engine, strategy="beam")


def multiple_choice(engine: Any, rows: Any) -> Any:
    prompt = "{question}\nA) {a}\nB) {b}\nThink, then reply with the letter."
    task = rows_task(rows, prompt=prompt, answer="choice", thoughts="sentences:2", max_thoughts=3)
    return solve_many(task, task.problems, engine=engine, strategy="self_consistency")


def boxed(engine: Any, rows: Any) -> Any:
    prompt = "{problem}\nPut the answer in \\boxed{}."
    task = rows_task(rows, prompt=prompt, answer="boxed", target="solution", target_answer="boxed", reward="math")
    return solve_many(task, task.problems, engine=engine, strategy="bfs")


def json_fields(engine: Any, rows: Any) -> Any:
    prompt = "Give name and age in this text as JSON.\n{text}"
    task = rows_task(rows, prompt=prompt, answer="json", thoughts="fences", system="Reply with JSON only.")
    return solve_many(task, task.problems, engine=engine, strategy="best_of_n")


def few_shot_chat(engine: Any, rows: Any) -> Any:
    prompt = [{"role": "user", "content": "What is {question}?"}, {"role": "assistant", "content": "It is"}]
    shots = [{"question": "2 + 3", "answer": 5}, {"question": "4 + 4", "answer": 8}]
    task = rows_task(rows, prompt=prompt, examples=shots, example_reply=" {answer}", thoughts="whole")
    return solve_many(task, task.problems, engine=engine, strategy="cot")


def longest_word(engine: Any, lists: Any) -> Any:
    task = function_task(
        prompt=lambda words: f"The longest of the words {words} is",
        is_solution=lambda words, path: len(path) == 1,
        check=lambda words, answer: max(words.split(", "), key=len) in answer,
        thoughts="sentences",
    )
    return solve_many(task, lists, engine=engine, strategy="dfs")


def own_reward(engine: Any, rows: Any) -> Any:
    def reward(row: Any, answer: str) -> bool:
        return answer != row["word"] and sorted(answer) == sorted(row["word"])

    def last_word(text: str) -> str | None:
        return (re.findall("[a-z]+", text.lower()) or [None])[-1]

    task = rows_task(rows, prompt="An anagram of {word}:", answer=last_word, reward=reward, chat=False)
    return solve_many(task, task.problems, engine=engine, strategy="beam")


def make_24(engine: Any, puzzles: Any) -> Any:
    class Make24(Task):
        max_thoughts = 3

        def prompt(self, problem: str) -> str:
            return f"steps {problem}\n"

        def parse(self, problem: str, path: Any, text: str) -> Thought:
            found = re.search(r"\(left: ([\d ]+)\)$", text)
            if not found:
                raise Reject("it does not list the numbers left")
            return Thought(text, state=tuple(sorted(map(int, found[1].split()))))

        def is_solution(self, problem: str, path: Any) -> bool:
            return len(path) == 3

        def state_key(self, problem: str, path: Any) -> Any:
            return path.state

        def question(self, problem: str, path: Any) -> Question:
            return Question(QUESTION, {"sure": 20, "likely": 1, "impossible": 0.001})

    return solve_many(Make24(), puzzles, engine=engine, strategy="bfs")


TASKS = {
    "rows": (word_problems, multiple_choice, boxed, json_fields, few_shot_chat),
    "function": (longest_word, own_reward),
    "class": (make_24,),
}
"""The tasks by kind."""
