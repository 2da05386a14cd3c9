"""A peer without a model, in its own process: the next tokens of a path count up from its length."""

from benchmarks.peers.driver import serve


class Counting:
    def __init__(self):
        self.read = 0

    def grow(self, paths, branches, new):
        return [[[len(path)] * new for _ in range(branches)] for path in paths]

    def value(self, families, problem):
        self.read += sum(len(path) + len(problem.question) for family in families for path in family)
        return [[float(len(path)) for path in family] for family in families]

    def prefilled(self):
        return self.read


def load(asked):
    print("a library says hello on stdout")
    if asked.get("broken"):
        raise SystemExit("no such model")
    return Counting(), {"version": "1"}


if __name__ == "__main__":
    serve(load)
