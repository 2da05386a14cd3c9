"""The bits of a row's logits depend only on its path, not on other rows of the batch, chunks or evictions."""

import copy
import random
from contextlib import contextmanager

import pytest
import torch
import transformers as t
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine.attention.matmul import proved
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.model.capability_check import probe
from rksc_tot.engine.scheduler.forward_pass import schedule
from rksc_tot.policies.eviction.rsbcm import RSBCM

VOCABULARY = 64
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.2, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
GEMMA = {
    **SHAPE,
    "intermediate_size": 96,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}
FAMILIES = {
    "llama": t.LlamaConfig(**SHAPE),  # a key head for two query heads
    "a key head each": t.LlamaConfig(**{**SHAPE, "num_key_value_heads": 4, "hidden_size": 64}),
    "one key head": t.LlamaConfig(**{**SHAPE, "num_key_value_heads": 1, "hidden_size": 128}),
    "mistral": t.MistralConfig(**SHAPE, sliding_window=50),
    "gemma3": t.Gemma3TextConfig(**GEMMA, sliding_window=50),
    "qwen2": t.Qwen2Config(**SHAPE),  # attention with biases
    "gpt2": t.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, n_positions=2048, vocab_size=VOCABULARY, initializer_range=0.2, bos_token_id=None,
        eos_token_id=None,
    ),  # its layers cannot be packed
}  # fmt: skip
PROMPTS = (5, 31, 32, 33, 100, 127, 128, 129, 255, 256, 257, 300, 700)
OFTEN = (5, 33, 128, 257, 700)  # prompts that are tried in every run
THOUGHTS = st.one_of(st.sampled_from((1, 2, 3, 127, 128, 129, 131)), st.integers(1, 300))
TREES = st.tuples(st.sampled_from(PROMPTS), st.lists(st.tuples(st.integers(0, 6), THOUGHTS), min_size=1, max_size=5))
"""Length of the prompt; of each thought, what it comes after (0: the prompt, n: the nth thought) and its length."""
FOREST = st.lists(TREES, min_size=2, max_size=3)
PAST_A_TILE = [
    (33, [(0, 131), (0, 145), (1, 2)]),
    (100, [(0, 3)]),
]  # few keys after a boundary, alone and beside more
SEVERAL_PROMPTS = [(129, [(0, 4), (0, 9)]), (200, [(0, 5), (0, 9), (0, 2)]), (40, [(0, 3)])]  # read as one, padded
TWO_LEVELS = [(300, [(0, 160), (0, 150), (1, 4), (1, 7), (2, 3), (2, 5)]), (1100, [(0, 9), (0, 3)])]
FORESTS = (PAST_A_TILE, SEVERAL_PROMPTS, TWO_LEVELS)
TWO_LEVELS_OFTEN = ("llama", "mistral")  # in every run; the others are slow
PHASES = (Phase.generate,)  # a tree is quickly read, and slowly shrunk


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    torch.manual_seed(0)
    model = t.AutoModelForCausalLM.from_config(FAMILIES[request.param], dtype=torch.float32).eval()
    exact = copy.deepcopy(model).double()
    forward, capabilities = probe(model, Arena(1 << 30), packed=True)
    head = getattr(model.config, "head_dim", None) or model.config.hidden_size // model.config.num_attention_heads
    assert capabilities.batch_invariant == (request.param != "gpt2" and proved(head, head))
    return forward, capabilities, exact


def grown(trees):
    """``(prompt, path)`` of every node; prompts begin differently."""
    rng = random.Random(0)

    def text(length):
        return [rng.randrange(3, VOCABULARY) for _ in range(length)]

    wanted = []
    for n, (prompt, thoughts) in enumerate(trees):
        paths = [[3 + n, *text(prompt - 1)]]
        for after, length in thoughts:
            paths.append(paths[after % len(paths)] + text(length))
        wanted += [(prompt, path) for path in paths]
    return wanted


def row_keys(prompt, path):
    """A name of each row: of its prompt's length and the path up to it."""
    keys, key = [], prompt
    for token in path:
        key = hash((key, token))
        keys.append(key)
    return keys


class Garden:
    """Paths on one model, with at most ``room`` resident tokens.

    ``seen``: the logits of every row, by prompt and path. ``otherwise``: number of rows that were computed
    again with other logits.
    """

    def __init__(self, forward, wanted, room=1 << 14):
        forward.arena.clear()
        self.forward, self.tree, self.seen, self.otherwise = forward, PrefixTree(SlotPool(room), RSBCM()), {}, 0
        self.jobs = []
        for prompt, path in wanted:
            job = Job(self.tree, self.tree.walk(self.tree.origin, path), Account(), 0)
            job.prompt_end = prompt
            self.jobs.append(job)
        self.keys = {job: row_keys(prompt, path) for job, (prompt, path) in zip(self.jobs, wanted, strict=True)}

    def step(self, jobs, most):
        """One pass over missing tokens of these paths, each at most ``most()`` rows; no token is computed twice."""
        taken, blocks = set(), []
        for job in jobs:
            lacking = {segment for segment, _ in self.tree.residency.missing(job.base)} | {job.base}
            if taken.isdisjoint(lacking):
                taken |= lacking
                self.tree.residency.pin(job.base)
                made = schedule(self.tree, job, job.base, most(), self.tree.residency.missing(job.base), ())
                made.block.logits_at = list(range(made.rows))
                blocks.append(made)
        logits = iter(
            self.forward.run(self.forward.plan([made.block for made in blocks]), self.tree.residency.pool.extent)
        )
        for made in blocks:
            for key in self.keys[made.job][made.block.start : made.block.start + made.rows]:
                row = next(logits).clone()
                self.otherwise += not self.seen.setdefault(key, row).equal(row)
            self.tree.residency.unpin(made.job.base)

    def grow(self, order=None, most=lambda: 1 << 14, together=1 << 14):
        """Compute all paths: in the fewest passes, or at most ``together`` random paths a pass."""
        waiting = list(self.jobs)
        while waiting:
            self.step(order.sample(waiting, min(together, len(waiting))) if order else waiting, most)
            waiting = [job for job in waiting if not job.base.resident]
        return self

    def unlike(self, other):
        """Rows of another garden whose logits differ from those of this one."""
        return self.otherwise + other.otherwise + sum(not self.seen[key].equal(row) for key, row in other.seen.items())


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ways(forward, wanted):
    """The same paths, computed in other chunks, beside other rows, in another order, on more threads and with little room."""
    rng = random.Random(1)

    def chunk():
        return rng.choice((1, 3, 7, 40, 130, 500))

    for chosen in wanted[1:3]:
        yield Garden(forward, [chosen]).grow()
    yield Garden(forward, wanted).grow(rng, chunk, 2)
    yield Garden(forward, wanted * 2).grow(rng, chunk)
    with threads(2):
        yield Garden(forward, wanted).grow(rng, lambda: rng.choice((3, 40, 130, 500)))
    tight = Garden(forward, wanted, room=max(len(path) for _, path in wanted) + 1)
    for _ in range(2):
        for job in rng.sample(tight.jobs, len(tight.jobs)):
            while not job.base.resident:
                tight.step([job], chunk)
    assert (tight.tree.eviction_log.tokens > 0) == (len(tight.seen) > tight.tree.residency.pool.limit)
    tight.tree.check_integrity()
    yield tight


def check_no_bit_depends_on_the_way(family, trees):
    forward, capabilities, _ = family
    wanted = grown(trees)
    together = Garden(forward, wanted).grow()
    for way in ways(forward, wanted):
        assert way.seen
        assert not capabilities.batch_invariant or together.unlike(way) == 0


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=pytest.mark.slow if name == "gpt2" else ()) for name in FAMILIES  # gpt2 claims no equal bits
], indirect=True)  # fmt: skip
@pytest.mark.parametrize("trees", [PAST_A_TILE, SEVERAL_PROMPTS])
def test_bits_of_a_row_depend_only_on_its_path(family, trees):
    check_no_bit_depends_on_the_way(family, trees)


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name in TWO_LEVELS_OFTEN else pytest.mark.slow) for name in FAMILIES
], indirect=True)  # fmt: skip
def test_bits_of_a_row_depend_only_on_its_path_with_prefixes_shared_on_two_levels(family):
    check_no_bit_depends_on_the_way(family, TWO_LEVELS)


@pytest.mark.slow
@settings(max_examples=10, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(FOREST)
def test_bits_of_a_row_of_a_random_tree_depend_only_on_its_path(family, trees):
    check_no_bit_depends_on_the_way(family, trees)


@pytest.mark.parametrize("prompt", [
    pytest.param(prompt, marks=() if prompt in OFTEN else pytest.mark.slow) for prompt in PROMPTS
])  # fmt: skip
def test_a_path_grown_token_by_token_equals_the_path_computed_whole(family, prompt):
    forward, capabilities, _ = family
    wanted = grown([(prompt, [(0, 132), (0, 7), (1, 5)])])
    together = Garden(forward, wanted).grow()
    alone = Garden(forward, wanted[1:2])
    alone.step(alone.jobs, lambda: prompt)
    alone.step(alone.jobs, lambda: 125)
    alone.grow(most=lambda: 1)
    assert not capabilities.batch_invariant or together.unlike(alone) == 0


@pytest.mark.parametrize("rows", [91, 171, 173, 225, 345])
def test_threads_get_pointwise_work_in_whole_vectors(family, rows):
    forward, capabilities, _ = family
    wanted = grown([(rows, [])])
    alone = Garden(forward, wanted).grow()
    with threads(2):
        shared_out = Garden(forward, wanted).grow()
    assert not capabilities.batch_invariant or alone.unlike(shared_out) == 0


@pytest.mark.parametrize(("family", "trees"), [
    pytest.param(name, trees, marks=pytest.mark.slow if trees is TWO_LEVELS and name not in TWO_LEVELS_OFTEN else ())
    for name in FAMILIES for trees in FORESTS
], indirect=["family"])  # fmt: skip
def test_logits_of_shared_prefixes_equal_those_of_a_plain_pass_in_double_precision(family, trees):
    forward, _, exact = family
    wanted, plain = grown(trees), {}
    for prompt, path in sorted(wanted, key=lambda each: -len(each[1])):
        keys = row_keys(prompt, path)
        if keys[-1] not in plain:  # not the beginning of a longer one
            with torch.inference_mode():
                logits = exact(input_ids=torch.tensor([path]), use_cache=False).logits[0]
            plain |= zip(keys, logits, strict=True)
    for garden in (Garden(forward, wanted).grow(), Garden(forward, wanted).grow(random.Random(2), lambda: 50, 3)):
        assert garden.seen.keys() == plain.keys()
        found, expected = (torch.stack([logits[key] for key in plain]) for logits in (garden.seen, plain))
        assert (found - expected).abs().max() <= 1e-4
