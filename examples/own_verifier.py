"""Score thoughts with a function of your own, and compare it with the model's judgement: ``python examples/own_verifier.py``."""

from rksc_tot import Budget, load_engine, solve, verifier

PUZZLES = ["4 5 6 10", "1 3 4 6", "2 5 8 11"]


@verifier
def near_24(problem, path):
    """Higher is better: states with a number near 24 come first."""
    return 1 / (1 + min(abs(24 - number) for number in path.state))


def main() -> None:
    engine = load_engine()
    print("puzzle       verifier   solved  verifier calls  verifier tokens")
    for puzzle in PUZZLES:
        for name, judge in (("near_24", near_24), ("lm_value", "lm_value")):
            result = solve("game24", puzzle, engine=engine, verifier=judge, budget=Budget(tokens=4000))
            ledger = result.ledger
            print(f"{puzzle:12} {name:10} {result.correct!s:7} {ledger.verifier_calls:14}  {ledger.verifier_tokens:15}")


if __name__ == "__main__":
    main()
