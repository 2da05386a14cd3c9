"""Score thoughts with functions of your own, and compare them with the model's judgement: ``python examples/own_verifier.py``."""

from rksc_tot import Budget, load_engine, solve, verifier

PUZZLES = ["4 5 6 10", "2 5 8 11"]


@verifier
def near_24(problem, path):
    """Higher is better: states with a number near 24 come first."""
    return 1 / (1 + min(abs(24 - number) for number in path.state))


@verifier(batch=True)
def near_and_likely(problem, paths):
    """One call for all paths: near 24, and among equals the thought that the model found likelier."""
    return [near_24(problem, path) + 0.001 * sum(path.logprobs[-1]) for path in paths]


def main() -> None:
    engine = load_engine()
    print("puzzle       verifier         solved  verifier calls  verifier tokens")
    for puzzle in PUZZLES:
        for name, judge in (("near_24", near_24), ("near_and_likely", near_and_likely), ("lm_value", "lm_value")):
            result = solve("game24", puzzle, engine=engine, verifier=judge, budget=Budget(tokens=4000))
            ledger = result.ledger
            print(f"{puzzle:12} {name:16} {result.correct!s:7} {ledger.verifier_calls:14}  {ledger.verifier_tokens:15}")


if __name__ == "__main__":
    main()
