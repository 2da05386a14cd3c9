"""Search one game-of-24 puzzle and show what the shared KV cache saved: ``python examples/game24.py ["4 5 6 10"]``."""

import sys

from rksc_tot import load_engine, solve


def main(puzzle: str = "4 5 6 10") -> None:
    engine = load_engine()  # the built-in model; load_engine("FOLDER") loads your own
    result = solve("game24", puzzle, engine=engine, strategy="bfs", seed=0)

    print(f"{puzzle}: {result.answer or 'no answer'} (correct: {result.correct})")
    for number, thought in enumerate(result.path, start=1):
        print(f"  step {number}: {thought}")

    ledger = result.ledger
    print(f"{ledger.nodes} thoughts became nodes, {ledger.rejected} were rejected, {ledger.merged} merged")
    print(f"{ledger.tokens_sampled} tokens sampled, {ledger.prefill_tokens} computed and stored")
    print(f"{ledger.prefill_saved:.0%} of the prefill of a framework without a shared cache was not needed")


if __name__ == "__main__":
    main(*sys.argv[1:])
