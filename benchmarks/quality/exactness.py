"""Largest |Δlogit| between tree decoding and fresh full forward passes, fp32, by model family.

The models are tiny and have random weights, which is enough to prove the wiring. Each tree has a prompt longer than any sliding
window, three levels, and ragged branches that grow in several passes beside branches of other lengths. Then verifier rows and
half a branch are dropped (rollback), and branches grow into the freed slots. Every node is compared, on the route that the engine
chooses and on the other route if it works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.common.report import Quick, Report

if TYPE_CHECKING:
    from rksc_tot.engine.model.forward import Forward, Route

VOCABULARY = 120
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
WINDOW = 8


def families() -> dict[str, Any]:
    """A config for each family. Sliding windows, where a family has them, are shorter than the prompt."""
    import transformers as t

    alternating = ["sliding_attention", "full_attention"] * 2
    gpt2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256, "vocab_size": VOCABULARY, "initializer_range": 0.2,
            "bos_token_id": None, "eos_token_id": None}  # fmt: skip
    neox = {k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}
    gemma = {**SHAPE, "head_dim": 16, "sliding_window": WINDOW, "layer_types": alternating}
    return {
        "llama": t.LlamaConfig(**SHAPE),
        "qwen2": t.Qwen2Config(**SHAPE),
        "qwen3": t.Qwen3Config(**SHAPE, head_dim=16),
        "mistral": t.MistralConfig(**SHAPE, sliding_window=WINDOW),
        "gemma2": t.Gemma2Config(**gemma, query_pre_attn_scalar=16),
        "gemma3": t.Gemma3TextConfig(**gemma, query_pre_attn_scalar=16),
        "phi3": t.Phi3Config(**SHAPE),
        "gpt_neox": t.GPTNeoXConfig(**neox),
        "gpt2": t.GPT2Config(**gpt2),
        "olmo2": t.Olmo2Config(**SHAPE),
    }


def refused() -> dict[str, Any]:
    """Configs of families that cannot decode a tree, to show the message with which they are refused."""
    import transformers as t

    return {
        "bloom (ALiBi)": t.BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4),
        "mamba (state space)": t.MambaConfig(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2),
        "qwen3_next (linear attention)": t.Qwen3NextConfig(
            **{**SHAPE, "num_hidden_layers": 4}, head_dim=16, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32, shared_expert_intermediate_size=32, linear_num_value_heads=4,
            linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        ),
    }  # fmt: skip


def tree_difference(forward: Forward, route: Route, seed: int, size: int) -> float:
    """Grow a ragged tree by ``route``, roll part of it back, regrow; largest |Δlogit| over all nodes."""
    import random

    from rksc_tot.cache.kv_budget.slot_pool import SlotPool
    from rksc_tot.cache.prefix_tree import PrefixTree, Segment
    from rksc_tot.engine.attention.plan import Block
    from rksc_tot.policies.eviction.base import NoEviction

    rng = random.Random(seed)
    forward.take(route)
    tree = PrefixTree(SlotPool(4096), NoEviction())
    vocabulary = forward.model.config.get_text_config().vocab_size
    worst = 0.0

    def text(length: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(length)]

    def grow(tips: list[Segment]) -> None:
        """Compute all paths to the tips, a random chunk of each path a pass, and compare the logits at every tip."""
        nonlocal worst
        waiting = list(tips)
        while waiting:
            blocks, ends, taken = [], [], set()
            for tip in waiting:
                missing = tree.residency.missing(tip)
                if not missing or any(segment in taken for segment, _ in missing):
                    continue
                segment, done = missing[0]
                count = rng.randint(1, len(segment.tokens) - done)
                slots = tree.residency.pool.allocate(count)
                tree.residency.store(segment, slots)
                taken.update(s for s, _ in missing)
                tokens = segment.tokens[done : done + count]
                blocks.append(Block(segment.lineage(), segment.start + done, tokens, slots, [count - 1]))
                ends.append((segment, done + count))
            for logits, (segment, length) in zip(
                forward.run(forward.plan(blocks), tree.residency.pool.extent), ends, strict=True
            ):
                path = [token for s in segment.lineage() for token in s.tokens]
                fresh = forward.plain(path[: segment.start + length])[-1]
                worst = max(worst, float((logits - fresh).abs().max()))
            waiting = [tip for tip in waiting if not tip.resident]

    def hang(parent: Segment, length: int) -> Segment:
        segment = tree.walk(parent, text(length))
        tree.hold(segment)
        return segment

    trunk = hang(tree.origin, 40)
    grow([trunk])
    level1 = [hang(trunk, rng.randint(1, 9)) for _ in range(size)]
    grow(level1)
    level2 = [hang(node, rng.randint(1, 7)) for node in level1 for _ in range(2)]
    grow(level2)
    scratch = [hang(node, 5) for node in level2[::2]]  # verifier rows
    grow(scratch)
    for node in scratch:  # rollback: their slots are reused below
        tree.drop(node)
        tree.discard(node, node.start)
    half = level2[1]
    kept = tree.walk(half.parent or half, half.tokens[: max(1, len(half.tokens) // 2)])
    tree.hold(kept)
    tree.drop(half)
    if half is not kept:
        tree.discard(half, half.start)
    tree.check_integrity()
    level3 = [hang(node, rng.randint(1, 6)) for node in [*level2[::3], kept] for _ in range(3)]
    grow(level3)
    tree.check_integrity()
    forward.arena.clear()
    return worst


def measure(quick: bool) -> dict[str, Any]:
    """The figures of this benchmark."""
    import torch
    from transformers import AutoModelForCausalLM

    from rksc_tot import load_engine
    from rksc_tot.cache.arena import Arena
    from rksc_tot.core.errors import UnsupportedModel
    from rksc_tot.engine.model.capability_check import probe

    size, seeds = (3, 1) if quick else (6, 3)
    differences: dict[str, float] = {}
    fast: dict[str, bool] = {}
    other: dict[str, float | str] = {}
    models: dict[str, Any] = {}
    for family, config in families().items():
        torch.manual_seed(0)
        models[family] = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    models["embedded"] = load_engine().model
    for family, model in models.items():
        forward, capabilities = probe(model, Arena(1 << 30))
        fast[family] = capabilities.route == "fast"
        differences[family] = max(tree_difference(forward, capabilities.route, seed, size) for seed in range(seeds))
        second: Route = "mask" if capabilities.route == "fast" else "fast"
        try:
            other[family] = tree_difference(forward, second, 0, size)
        except Exception as error:
            other[family] = f"{type(error).__name__}: {error}"
    reasons: dict[str, str] = {}
    for family, config in refused().items():
        torch.manual_seed(0)
        try:
            _, capabilities = probe(
                AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), Arena(1 << 30)
            )
            reasons[family] = (
                f"{capabilities.route} route, {capabilities.difference:.1e}; {'; '.join(capabilities.notes)}"
            )
        except UnsupportedModel as error:
            reasons[family] = str(error)
    return {"max_abs_diff": differences, "fast_path": fast, "other_route": other, "refused": reasons}


def main(quick: Quick = False) -> Report:
    """Compare every family."""
    return Report(measure(quick))
