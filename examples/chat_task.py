"""A task of your own: ``python examples/chat_task.py [FOLDER]``.

With the folder of a chat model the task is a word problem in chat messages. Without a folder the same search runs on the
built-in model, which is trained on the game of 24 only and needs another prompt.
"""

import re
import sys

from rksc_tot import function_task, load_engine, solve

QUESTION = "Anna has 3 bags of 4 apples. She eats 2 apples. How many apples are left?"
INSTRUCTION = "Solve the problem step by step, one step a line. The last line is 'Answer: ' and the number."


def word_problem():
    """Chat messages as the prompt, a rule for complete paths, and a parser of the answer."""
    return function_task(
        prompt=lambda question: [{"role": "user", "content": f"{INSTRUCTION}\n\n{question}"}],
        is_solution=lambda question, path: "answer:" in path[-1].text.lower() if path else False,
        answer=lambda question, path: (re.findall(r"answer: *(-?\d+)", path.text.lower()) or [None])[-1],
        check=lambda question, answer: answer == "10",
        max_thoughts=12,
        max_thought_tokens=80,
        temperature=0.7,
    )


def puzzle():
    """Three lines of arithmetic; the last one holds the result."""
    return function_task(
        prompt=lambda numbers: f"solve {numbers}\n",
        is_solution=lambda numbers, path: len(path) == 3,
        answer=lambda numbers, path: re.findall(r"\(left: (\d+)\)", path[-1].text)[-1],
        check=lambda numbers, answer: answer == "24",
    )


def main(folder: str | None = None) -> None:
    engine = load_engine(folder)
    task, problem = (word_problem(), QUESTION) if folder else (puzzle(), "2 5 8 11")
    result = solve(task, problem, engine=engine, strategy="self_consistency")
    print(problem)
    for thought in result.path:
        print(f"  {thought}")
    print(f"voted answer: {result.answer} (correct: {result.correct})")


if __name__ == "__main__":
    main(*sys.argv[1:])
