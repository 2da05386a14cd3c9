"""A shadow of an engine's passes: what each row of the arena holds, on what it was computed, and what it should have been.

Each block is computed again by the model's own code, alone, with a cache of exactly the rows that the pass showed it.
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
    """A slot of the arena. Arrays are of ``[layers, heads]``; ``key`` and ``value`` of ``[layers, heads, dim]``.

    ``path``: number of the path up to the token; ``length``: of that path; ``exact``: whether the token was computed on all
    before, and those were too.
    """

    path: np.ndarray
    length: np.ndarray
    exact: np.ndarray
    key: torch.Tensor
    value: torch.Tensor


def stacked(rows):
    """The fields of several rows, each with a first axis for the rows."""
    arrays = (np.stack([getattr(row, part) for row in rows]) for part in ("path", "length", "exact"))
    tensors = (torch.stack([getattr(row, part) for row in rows]) for part in ("key", "value"))
    return Row(*arrays, *tensors)


class Shadow:
    """Looks at every pass of an engine. ``model``: a copy of its model, made before that was the engine's.

    ``rows``: :class:`Row` by slot. ``numbers``: of each path, by that of the path before its last token, and the token.
    ``exact``: by path, whether its next-token logits were computed on all
    of it. ``drawn``: by generation and path, that when it was drawn from. ``said``: of each completion, whether it says that it
    is exact, and whether all of it was drawn from such logits. ``inexact``: rows that were not computed on all of their path.
    ``restored``: tokens that came back from a store.
    ``worst``: largest difference of a logit, of ``looked`` rows of logits.
    """

    def __init__(self, engine, model):
        self.engine = engine
        self.model = model
        self.keyword = cache_keyword(model)
        self.window = windows(self.model.config.get_text_config())
        self.rows, self.numbers, self.exact, self.drawn = {}, {}, {}, {}
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
            found |= {first + n: row for n, row in enumerate(self._compute(block))}
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
        before = stacked([self.rows[slot] for slot in slots])
        at = np.asarray(kept).transpose(2, 0, 1)  # [kept, layers, heads]
        arrays = [np.take_along_axis(part, at, 0) for part in (before.path, before.length, before.exact)]
        index = torch.from_numpy(at.copy())[..., None]
        tensors = [part.gather(0, index.expand(-1, -1, -1, part.shape[-1])) for part in (before.key, before.value)]
        self.rows |= {slots[n]: Row(*each) for n, each in enumerate(zip(*arrays, *tensors, strict=True))}

    def restore(self, segment, slots, payer):
        """What comes back from a store is what a plain pass gives."""
        self._restore(segment, slots, payer)
        path, plain = self.tokens(segment), DynamicCache()
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([path]), use_cache=True, **{self.keyword: plain})
        self._store(slots, segment.start, self._prefixes(path), True, plain)
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

            def look(group, text, tokens, logprobs, why, ending=""):
                add(group, text, tokens, logprobs, why, ending)
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
            if segment.kv.slots:
                slots += segment.kv.slots
                names = np.arange(segment.kv.computed) if segment.kv.present is None else np.asarray(segment.kv.present)
                rows, names = stacked([self.rows[slot] for slot in segment.kv.slots]), names[:, None, None]
                self._check_paths(rows, self.tokens(segment))
                assert segment.kv.per_head or (rows.length == segment.start + names + 1).all()
                assert segment.kv.per_head or (rows.exact == (names < segment.kv.exact_tokens)).all()
                assert len(names) == len(segment.kv.slots)
        rows = stacked([self.rows[slot] for slot in slots]) if slots else None
        for layer in self.engine.forward.arena.keys if slots else ():
            for wanted, stored in zip((rows.key, rows.value), self.engine.forward.arena.read(layer), strict=True):
                found = stored[:, slots].transpose(0, 1)  # [slots, heads, dim]
                assert torch.allclose(found, wanted[:, layer], atol=1e-4)

    # -- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def tokens(segment):
        """Of the path to its end."""
        return tuple(token for above in segment.lineage() for token in above.tokens)

    def _prefixes(self, path):
        """Numbers of the path up to each of its tokens, the empty one first."""
        found = [0]
        for token in path:
            found.append(self.numbers.setdefault((found[-1], token), len(self.numbers) + 1))
        return np.array(found)

    def _check_paths(self, rows, path):
        assert (rows.length <= len(path)).all()
        assert (self._prefixes(path)[rows.length] == rows.path).all(), "a row is of another path"

    def _store(self, slots, start, prefixes, exact, cache):
        """The last rows of a cache are those of a path from ``start`` on."""
        keys, values = (
            torch.stack([getattr(layer, part)[0] for layer in cache.layers])[:, :, -len(slots) :].unbind(2)
            for part in ("keys", "values")
        )
        shape = keys[0].shape[:2]
        for length, slot, key, value in zip(range(start + 1, start + 1 + len(slots)), slots, keys, values, strict=True):
            path = np.full(shape, prefixes[length])
            self.rows[slot] = Row(path, np.full(shape, length), np.full(shape, exact), key, value)

    def _compute(self, block):
        """Of each row of a block its logits, its path, and whether that is exact; the KV is stored."""
        start, count = block.start, len(block.tokens)
        path = self.tokens(block.lineage[-1])[: start + count]
        slots, _ = Piece(block, 0, start, block.slots, 0).context(0, start)
        cache, exact, positions = DynamicCache(), start == 0, []
        if len(slots):
            seen = stacked([self.rows[slot] for slot in slots])
            self._check_paths(seen, path)
            lengths = np.sort(seen.length, axis=0)
            assert (np.diff(lengths, axis=0) > 0).all(), "a token is seen twice"
            exact = len(slots) == start and bool((np.arange(1, start + 1) == lengths.T).all() and seen.exact.all())
            for layer, (key, value) in enumerate(zip(seen.key.unbind(1), seen.value.unbind(1), strict=True)):
                cache.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], layer)
            positions = (seen.length[:, -1, 0] - 1).tolist()
        self.inexact += count * (not exact)
        ends = list(range(start, start + count))
        with torch.inference_mode():
            out = self.model(
                input_ids=torch.tensor([path[start:]]), position_ids=torch.tensor([ends]), use_cache=True,
                attention_mask=self._mask([*positions, *ends], ends), **{self.keyword: cache},
            )  # fmt: skip
        self._store(block.slots[:count], start, self._prefixes(path), exact, cache)
        return [(logits, path[: start + n + 1], exact) for n, logits in enumerate(out.logits[0])]

    def _mask(self, positions, ends):
        """Rows at ``ends`` see those before them, and what the pass showed the block."""
        shown, at = torch.tensor(positions), torch.tensor(ends)[:, None]

        def form(window):
            hidden = torch.zeros(len(ends), len(positions), dtype=torch.bool)
            hidden[:, -len(ends) :] = shown[-len(ends) :] > at
            if window is not None:
                hidden |= shown <= at - window
            return torch.zeros(1, 1, *hidden.shape).masked_fill_(hidden, float("-inf"))

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
