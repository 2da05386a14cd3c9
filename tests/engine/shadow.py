"""A shadow of an engine's passes: what each row of the arena holds, on what it was computed, and what it should have been.

Each row is computed again by the model's own code, a token at a time, with a cache of exactly the rows that the pass showed it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache

from rksc_tot.engine.attention.plan import Piece
from rksc_tot.engine.jobs.generation.generation import Generation
from rksc_tot.engine.model.hf_compat import cache_keyword


@dataclass(frozen=True)
class Row:
    """KV of a token in one layer and head. ``path``: tokens up to it; ``exact``: computed on all before, and so were they."""

    path: tuple
    exact: bool
    key: torch.Tensor
    value: torch.Tensor


class Shadow:
    """Looks at every pass of an engine. ``model``: a copy of its model, made before that was the engine's.

    ``rows``: by slot, :class:`Row` by layer and head. ``exact``: by path, whether its next-token logits were computed on all
    of it. ``drawn``: by generation and path, that when it was drawn from. ``said``: of each completion, whether it says that it
    is exact, and whether all of it was drawn from such logits. ``inexact``: rows that were not computed on all of their path.
    ``restored``: tokens that came back from a store.
    ``worst``: largest difference of a logit, of ``looked`` rows of logits.
    """

    def __init__(self, engine, model):
        self.engine = engine
        self.model = model
        self.window = windows(self.model.config.get_text_config())
        self.rows, self.exact, self.drawn = {}, {}, {}
        self.inexact = self.restored = 0
        self.worst = 0.0
        self.looked = 0
        scheduler, arena = engine.scheduler, engine.forward.arena
        self.said = []
        self._run, self._copy, self._compact = engine.forward.run, arena.copy, arena.compact
        self._go_on, self._add = scheduler._go_on, scheduler.add
        engine.forward.run, arena.copy, arena.compact = self.run, self.copy, self.compact
        scheduler._go_on, scheduler.add = self.go_on, self.add
        self._restore, engine.cache.residency.restore = engine.cache.residency.restore, self.restore

    # -- what the engine does ----------------------------------------------------------------------------------------

    def run(self, plan, *rest):
        wanted = iter(plan.logits_at.tolist())
        logits = self._run(plan, *rest)
        starts = np.cumsum([0, *(len(block.tokens) for block in plan.blocks)])
        top_down = sorted(zip(starts, plan.blocks, strict=False), key=lambda pair: pair[1].start)
        found = {}
        for first, block in top_down:
            path = self.tokens(block.lineage[-1])
            found |= {first + n: self._compute(block, n, path) for n in range(len(block.tokens))}
        for got, row in zip(logits, wanted, strict=True):
            reference, path, exact = found[row]
            self.worst = max(self.worst, float((got - reference).abs().max()))
            self.exact[path] = exact
            self.looked += 1
        return logits

    def copy(self, source, target):
        self._copy(source, target)
        self.rows |= {to: self.rows[at] for at, to in zip(source, target, strict=True)}

    def compact(self, slots, kept):
        self._compact(slots, kept)
        before = [self.rows[slot] for slot in slots]
        for n in range(kept.shape[-1]):
            self.rows[slots[n]] = [
                [before[kept[layer, head, n]][layer][head] for head in range(kept.shape[1])]
                for layer in range(kept.shape[0])
            ]

    def restore(self, segment, slots, payer):
        """What comes back from a store is what a plain pass gives."""
        self._restore(segment, slots, payer)
        path, plain = self.tokens(segment), DynamicCache()
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([path]), use_cache=True, **{cache_keyword(self.model): plain})
        for at, slot in enumerate(slots, segment.start):
            self.rows[slot] = [
                [
                    Row(path[: at + 1], True, key[at], value[at])
                    for key, value in zip(layer.keys[0], layer.values[0], strict=True)
                ]
                for layer in plain.layers
            ]
        self.restored += len(slots)

    def go_on(self, ready):
        for job, tips in ready.items():
            for tip in tips:
                path = self.tokens(tip)
                self.drawn[id(job), path] = self.exact[path]
        self._go_on(ready)

    def add(self, job):
        self._add(job)
        if isinstance(job, Generation):
            add = job.completions.add

            def look(group, text, tokens, logprobs, why):
                add(group, text, tokens, logprobs, why)
                drawn = [*self.tokens(job.base), *group.sampled]
                count = range(job.base.end, len(drawn) + (why == "eos"))
                exact = all(self.drawn[id(job), tuple(drawn[:n])] for n in count)
                made = next(c for c in job.completions.in_order() if group.branches[0] in c.branches)
                alone = made.branches == tuple(group.branches)  # else it shares a completion with others
                self.said.append((made.exact if alone else group.exact, exact))

            job.completions.add = look

    # -- what should be so -------------------------------------------------------------------------------------------

    def check(self):
        """Every row of the arena is what it should be, is of the path it is read on, and is exact where the tree says so."""
        slots = []
        for segment in self.engine.cache.segments():
            path = self.tokens(segment)
            names = range(segment.kv.computed) if segment.kv.present is None else segment.kv.present
            slots += segment.kv.slots
            for name, slot in zip(names, segment.kv.slots, strict=True):
                for row in (row for heads in self.rows[slot] for row in heads):
                    assert path[: len(row.path)] == row.path
                    assert segment.kv.per_head or len(row.path) == segment.start + name + 1
                    assert segment.kv.per_head or row.exact == (name < segment.kv.exact_tokens)
        for layer in self.engine.forward.arena.keys if slots else ():
            rows = [row for slot in slots for row in self.rows[slot][layer]]
            for part, stored in zip(("key", "value"), self.engine.forward.arena.read(layer), strict=True):
                wanted = torch.stack([getattr(row, part) for row in rows])
                found = stored[:, slots].transpose(0, 1).flatten(0, 1)  # [slots * heads, dim]
                assert torch.allclose(found, wanted, atol=1e-4)

    # -- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def tokens(segment):
        """Of the path to its end."""
        return tuple(token for above in segment.lineage() for token in above.tokens)

    def _compute(self, block, n, whole):
        """Logits of a row of a block, its path, and whether that is exact; its KV is stored."""
        start, path = block.start + n, whole[: block.start + n + 1]
        slots, _ = Piece(block, 0, block.start, block.slots, 0).context(0, block.start)
        slots = [*slots, *block.slots[:n]]
        seen = [self.rows[slot] for slot in slots]
        cache = DynamicCache()
        exact, positions = True, []
        for layer, _ in enumerate(seen[0] if seen else ()):
            by_head = list(zip(*(rows[layer] for rows in seen), strict=True))  # rows of each head
            for rows in by_head:
                lengths = sorted(len(row.path) for row in rows)
                assert all(path[: len(row.path)] == row.path for row in rows), "a row is of another path"
                assert len(set(lengths)) == len(lengths), "a token is seen twice"
                exact = exact and lengths == list(range(1, start + 1)) and all(row.exact for row in rows)
            keys, values = (
                torch.stack([torch.stack([getattr(row, part) for row in rows]) for rows in by_head])[None]
                for part in ("key", "value")
            )
            cache.update(keys, values, layer)
            positions = [len(row.path) - 1 for row in by_head[0]]
        exact = exact and (bool(seen) or start == 0)
        self.inexact += not exact
        with torch.inference_mode():
            out = self.model(
                input_ids=torch.tensor([[path[-1]]]), position_ids=torch.tensor([[start]]), use_cache=True,
                attention_mask=self._mask([*positions, start], start), **{cache_keyword(self.model): cache},
            )  # fmt: skip
        self.rows[block.slots[n]] = [
            [Row(path, exact, key[-1], value[-1]) for key, value in zip(layer.keys[0], layer.values[0], strict=True)]
            for layer in cache.layers
        ]
        return out.logits[0, -1], path, exact

    def _mask(self, positions, at):
        def form(window):
            hidden = torch.tensor([window is not None and position <= at - window for position in positions])
            return torch.zeros(1, 1, 1, len(positions)).masked_fill_(hidden, float("-inf"))

        if isinstance(self.window, dict):
            return {kind: form(window) for kind, window in self.window.items()}
        return form(self.window)


def windows(config):
    """The window of the model, in tokens, or of each kind of its layers."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if not hasattr(config, "layer_types"):
        return window
    return {kind: window if kind == "sliding_attention" else None for kind in set(config.layer_types)}
