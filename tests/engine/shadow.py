"""A shadow of an engine's passes: what each row of the arena holds, upon what it was computed, and what it should have been.

Each row is computed again by the model's own code, a token at a time, with a cache of exactly the rows that the pass showed it.
"""

from dataclasses import dataclass

import torch
from transformers import DynamicCache

from rksc_tot.engine.plan import Piece


@dataclass(frozen=True)
class Row:
    """KV of a token in one layer and head. ``path``: tokens up to it; ``exact``: computed upon all before, and so were they."""

    path: tuple
    exact: bool
    key: torch.Tensor
    value: torch.Tensor


class Shadow:
    """Looks at every pass of an engine. ``model``: a copy of its model, made before that was the engine's.

    ``rows``: by slot, :class:`Row` by layer and head. ``exact``: by path, whether its next-token logits were computed upon all of
    it. ``drawn``: by generation and path, that when it was drawn from. ``worst``: largest difference of a logit.
    """

    def __init__(self, engine, model):
        self.engine = engine
        self.model = model
        self.window = windows(self.model.config.get_text_config())
        self.rows, self.exact, self.drawn = {}, {}, {}
        self.worst = 0.0
        self.looked = 0
        stepper, arena = engine._stepper, engine.forward.arena
        self._run, self._copy, self._compact, self._go_on = (
            engine.forward.run, arena.copy, arena.compact, stepper._go_on,
        )  # fmt: skip
        engine.forward.run, arena.copy, arena.compact, stepper._go_on = self.run, self.copy, self.compact, self.go_on

    # -- what the engine does ----------------------------------------------------------------------------------------

    def run(self, plan, *rest):
        wanted = iter(plan.logits_at.tolist())
        logits = self._run(plan, *rest)
        found, first = [], 0
        blocks = [(block, self._path(block)) for block in plan.blocks]
        for block, path in sorted(blocks, key=lambda pair: pair[0].start):  # whoever is stood on before who stands on him
            for n in range(len(block.tokens)):
                found.append((block, n, self._compute(block, n, path)))
        place = {}
        for block in plan.blocks:
            place[id(block)] = first
            first += len(block.tokens)
        by_row = {place[id(block)] + n: got for block, n, got in found}
        for got, row in zip(logits, wanted, strict=True):
            reference, path, exact = by_row[row]
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

    def go_on(self, ready):
        for job, tips in ready.items():
            for tip in tips:
                path = tuple(token for segment in tip.lineage() for token in segment.tokens)
                self.drawn[id(job), path] = self.exact[path]
        self._go_on(ready)

    # -- what should be so -------------------------------------------------------------------------------------------

    def was_exact(self, job, completion, base):
        """Whether all tokens of a completion were drawn from logits that were computed upon all of the path."""
        count = len(completion.tokens) + (completion.finish == "eos")
        return all(self.drawn[id(job), (*base, *completion.tokens[:n])] for n in range(count))

    def check(self):
        """Every row of the arena is what it should be, is of the path it is read on, and is exact where the tree says so."""
        for segment in self.engine.cache.segments():
            path = tuple(token for above in segment.lineage() for token in above.tokens)
            names = range(segment.reach) if segment.kept is None else segment.kept
            for name, slot in zip(names, segment.slots, strict=True):
                for layer, heads in enumerate(self.rows[slot]):
                    keys, values = self.engine.forward.arena.read(layer)
                    for head, row in enumerate(heads):
                        assert path[: len(row.path)] == row.path
                        assert segment.mixed or len(row.path) == segment.start + name + 1
                        assert segment.mixed or row.exact == (name < segment.sound)
                        assert torch.allclose(keys[head, slot], row.key, atol=1e-4)
                        assert torch.allclose(values[head, slot], row.value, atol=1e-4)

    # -- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _path(block):
        tokens = [token for segment in block.lineage for token in segment.tokens]
        return tuple(tokens[: block.start + len(block.tokens)])

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
        out = self.model(
            input_ids=torch.tensor([[path[-1]]]), position_ids=torch.tensor([[start]]), past_key_values=cache,
            attention_mask=self._mask([*positions, start], start), use_cache=True,
        )  # fmt: skip
        layers = out.past_key_values.layers
        self.rows[block.slots[n]] = [
            [Row(path, exact, layer.keys[0, head, -1], layer.values[0, head, -1]) for head in range(layer.keys.shape[1])]
            for layer in layers
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
