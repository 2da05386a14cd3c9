"""A best-first search of your own beside breadth-first search: ``python examples/own_strategy.py``."""

from typing import ClassVar

from rksc_tot import Strategy, load_engine, solve


class BestFirst(Strategy):
    """Expand the best open node of the whole tree next.

    Parameters
    ----------
    k : int
        Thoughts generated after each node.
    """

    name: ClassVar[str] = "best_first"
    k: int = 24

    async def run(self, search):
        frontier = [search.root]
        while frontier:
            best, *frontier = search.rank(frontier)
            if best.finished:
                search.finish(best)
                return
            children = await search.expand([best], self.k)
            await search.score(children)
            frontier += children


def main() -> None:
    engine = load_engine()
    for strategy in (BestFirst(), "bfs"):
        engine.clear()  # so that no strategy reuses KV of the other
        result = solve("game24", "4 5 6 10", engine=engine, strategy=strategy)
        name = strategy if isinstance(strategy, str) else strategy.name
        ledger = result.ledger
        print(f"{name}: {result.answer}, {ledger.nodes} nodes, {ledger.prefill_tokens} tokens computed")


if __name__ == "__main__":
    main()
