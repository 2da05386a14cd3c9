"""Engines that record the resident tokens of accounts, and searches on them."""

from rksc_tot.engine import TransformersEngine
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama

SEARCH = {"strategy": BFS(b=2, k=4), "verifier": "lm_value"}
PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]


PROMPT_TOKENS = 6


def shape(tree):
    return [(n.parent, n.branch, n.text, n.tokens, n.count, n.pruned, round(n.score or 0, 3)) for n in tree]


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, **options)


def count(engine):
    """Resident tokens of each account, by id, counted in the tree."""
    found = {}
    for segment in engine.cache.segments():
        if segment.kv.payer is not None:
            found[id(segment.kv.payer)] = found.get(id(segment.kv.payer), 0) + len(segment.kv.slots)
    return found


def record_residents(engine, monkeypatch):
    """The peak of resident tokens on each account in later passes. A wrong count is an error at once."""
    seen = {}
    run = engine.forward.run

    def recorded(*arguments):
        payers = {id(s.kv.payer): s.kv.payer for s in engine.cache.segments() if s.kv.payer is not None}
        for key, held in count(engine).items():
            assert payers[key].kv_rows == held
            assert held * engine.bytes_per_token <= payers[key].kv_bytes
            seen[key] = max(seen.get(key, 0), held)
        return run(*arguments)

    monkeypatch.setattr(engine.forward, "run", recorded)
    return seen


def token_bytes():
    with make() as engine:
        return engine.bytes_per_token
