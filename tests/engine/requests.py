"""Requests to an engine, and what came back, in short."""

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import GenerateRequest, Sampling

PROMPT = "steps 4 5 6 10\n"
LABELS = ("sure", "likely", "impossible")
HOT = Sampling(temperature=0.8)


def ask(handle, name="s", k=6, max_tokens=10, sampling=HOT, stop=("\n",), **options):
    return GenerateRequest(handle, stream_keys(range(k), name), sampling, max_tokens, stop, **options)


def texts(completions):
    return [(c.text, c.tokens, c.branches, c.finish) for c in completions]


async def grow(engine, account, k=6):
    """A three-level tree; returns all handles by level."""
    root = engine.open(PROMPT, account)
    (first,) = await engine.generate([ask(root, "a", k)], account)
    second = await engine.generate([ask(c.handle, f"b{i}", 3) for i, c in enumerate(first)], account)
    return root, first, [c for found in second for c in found]
