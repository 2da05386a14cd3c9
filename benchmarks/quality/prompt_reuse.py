"""Savings and errors of prompt reuse (ASKS): word problems of our own, each in eight prompt variants.

``python -m benchmarks prompt_reuse --model FOLDER [--json] [--quick] [--variants N]``. Without a model, a tiny model of random
weights runs the same work; its figures mean nothing.

Every problem is asked in all prompt variants. The first variant is the reference: the others reuse its KV of the problem, and
compute only their own words and the first few tokens of the problem (``by_recompute``). Each variant is also computed exactly.
Problems are split into three parts: audits on the first part estimate the harm of each variant, thresholds are set on the second
part, and figures come from the third. Figures are means over twenty random splits.

* ``reuse``: prompt tokens that were not computed, over all prompt tokens of all branches, without those of the reference; a
  rejected branch reuses no token
* ``top1_agreement``, ``kl``: of the accepted branches
* ``gate_rank_correlation``: Spearman's correlation of a gate's negated value and the KL, over all branches
* ``certified``: threshold by Learn-then-Test with confidence 95 %, which assumes independent branches; branches of one problem
  are not independent
* ``curve``: by the share of branches accepted on the second part

The headline's threshold is the loosest with 99 % agreement on the second part.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.common.report import Quick, Report
from benchmarks.quality.prompt_variants import LONG, SHORT, VARIANTS, PromptVariant, with_other_numbers
from rksc_tot.core.task import Prompt
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account
from rksc_tot.policies.asks import GATES, PromptReuse, ReuseGate, Signals, mean_harm
from rksc_tot.policies.early_exit.fixed_sequence_testing import examples_needed, fixed_sequence

RECOMPUTED = (0, 4, 8)
AGREEMENT = 0.99
SPLITS = 20
PARTS = (0.2, 0.4)  # for audits, for thresholds; the rest is held out
DELTAS, ALPHA = (0.01, 0.02, 0.05), 0.05
CURVE = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHORTLY = ("reuse_asks", "top1_agreement", "kl", "kept", "flips")


class Branch(NamedTuple):
    """One prompt that reused KV. ``reused``: tokens that were not computed, with the ``exact`` shared prefix."""

    problem: int
    long: bool
    variant: str
    tokens: int
    exact: int
    reused: int
    signals: Signals
    kl: float
    same: bool


def measure(branches: dict[int, list[Branch]]) -> dict[str, Any]:
    """All figures. ``branches``: by the number of first tokens of the problem that are computed."""
    usual = PromptReuse(threshold=0)
    found = {
        recompute: _mean([_split(measured, seed, usual.gate) for seed in range(SPLITS)])
        for recompute, measured in branches.items()
    }
    every = branches[usual.recompute]
    return {
        "reuse_exact": round(sum(b.exact for b in every) / sum(b.tokens for b in every), 4),
        **found[usual.recompute],
        "by_recompute": {
            str(n): {name: figures[name] for name in (*SHORTLY, "gate_rank_correlation", "without_gate")}
            for n, figures in found.items()
        },
    }


def _split(branches: Sequence[Branch], seed: int, gate: ReuseGate) -> dict[str, Any]:
    """The figures of one split of the problems into three parts."""
    problems = sorted({b.problem for b in branches})
    random.Random(seed).shuffle(problems)
    first, second = (round(len(problems) * share) for share in (PARTS[0], sum(PARTS)))
    parts = (problems[:first], problems[first:second], problems[second:])
    audited, calibration, held_out = ([b for b in branches if b.problem in part] for part in parts)
    harm = _harm(audited)
    return _figures(_informed(calibration, harm), _informed(held_out, harm), gate)


def _mean(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure over the splits that have it. Agreement is computed over all kept branches."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for found in figures for name in found):
        values = [found[name] for found in figures if found.get(name) is not None]
        if not values or isinstance(values[0], str):
            merged[name] = values[0] if values else None
        else:
            merged[name] = _mean(values) if isinstance(values[0], dict) else round(fmean(values), 4)
    if merged.get("kept"):
        merged["top1_agreement"] = round(1 - merged["flips"] / merged["kept"], 4)
    return merged


async def collect(engine: TransformersEngine, quick: bool, variants: int) -> dict[int, list[Branch]]:
    """Every problem in every prompt variant except the first, for each number of first tokens that are computed."""
    account = Account()
    short, long, prompt_variants = (SHORT[:5], LONG[:2], VARIANTS[1:4]) if quick else (SHORT, LONG, VARIANTS[1:])
    found: dict[int, list[Branch]] = {recompute: [] for recompute in RECOMPUTED}
    for number, problem in enumerate((*short, *long)):
        for text in (with_other_numbers(problem, n) for n in range(variants)):
            reference = engine.open(_prompt(engine, VARIANTS[0], text), account)
            for variant in prompt_variants:
                prompt = _prompt(engine, variant, text)
                exact = engine.open(prompt, account)  # keeps the logits that the audit computes in the last round
                tried = []
                for recompute in RECOMPUTED:
                    audit = float(recompute == RECOMPUTED[-1])
                    rule = PromptReuse(threshold=None, recompute=recompute, audit=audit, least=1)
                    branch, verdict = await engine.open_variant(prompt, reference, rule, account)
                    if not verdict.kept or verdict.signals is None:
                        raise RuntimeError(f"a branch was rejected: {verdict.why}")
                    tried.append((recompute, verdict, verdict.signals, branch.segment.logits.double().log_softmax(-1)))
                    engine.release(branch)
                wanted = exact.segment.logits.double().log_softmax(-1)
                for recompute, verdict, signals, logits in tried:
                    found[recompute].append(
                        Branch(
                            problem=number,
                            long=number >= len(short),
                            variant=verdict.variant,
                            tokens=exact.length,
                            exact=verdict.exact,
                            reused=verdict.exact + verdict.reused,
                            signals=signals,
                            kl=max(0.0, float((wanted.exp() * (wanted - logits)).sum())),
                            same=int(wanted.argmax()) == int(logits.argmax()),
                        )
                    )
                engine.release(exact)
            engine.release(reference)
            engine.clear()
    return found


def _prompt(engine: TransformersEngine, variant: PromptVariant, problem: str) -> Prompt:
    if engine.tokenizer.chat_template:
        return variant.messages(problem)
    return f"{variant.system}\n\n{variant.before}{problem}{variant.after}\n"


def _harm(audited: Sequence[Branch]) -> dict[str, float]:
    """The mean harm of each variant, from audits."""
    audits: dict[str, list[tuple[float, float]]] = {}
    for branch in audited:
        audits.setdefault(branch.variant, []).append((branch.kl, branch.signals.entropy))
    return {name: mean_harm(found) for name, found in audits.items()}


def _informed(branches: Sequence[Branch], harm: dict[str, float]) -> list[Branch]:
    """The branches with the harm of their variants set, as the engine has it after audits."""
    return [b._replace(signals=b.signals._replace(harm=harm.get(b.variant))) for b in branches]


def _figures(calibration: Sequence[Branch], held_out: Sequence[Branch], gate: ReuseGate) -> dict[str, Any]:
    """The branches that one gate keeps of the held-out part, and the ranking by all gates."""
    gates = [name for name in GATES if all(GATES[name](b.signals) is not None for b in (*calibration, *held_out))]

    def outcome(name: ReuseGate, threshold: float, branches: Sequence[Branch] = held_out) -> dict[str, Any]:
        return _outcome([(b, _value(b, name) >= threshold) for b in branches])

    def by_length(threshold: float) -> dict[str, Any]:
        lengths = {name: [b for b in held_out if b.long == long] for name, long in (("short", False), ("long", True))}
        return outcome(gate, threshold) | {name: outcome(gate, threshold, part) for name, part in lengths.items()}

    ranked = sorted((_value(b, gate) for b in calibration), reverse=True)
    tried = {name: outcome(name, _loosest(calibration, name)) for name in gates}
    harm = [b.kl for b in held_out]
    return {
        **by_length(_loosest(calibration, gate)),
        "without_gate": by_length(-math.inf),
        "gate_rank_correlation": {
            name: round(spearman([-_value(b, name) for b in held_out], harm), 3) for name in gates
        },
        "by_gate": {name: {key: found[key] for key in SHORTLY} for name, found in tried.items()},
        "certified": {f"{delta:.0%}": _certified(calibration, gate, delta, partial(outcome, gate)) for delta in DELTAS},
        "curve": {
            f"{share:.0%}": outcome(gate, ranked[math.ceil(share * len(ranked)) - 1] if share < 1 else -math.inf)
            for share in CURVE
        },
    }


def _value(branch: Branch, gate: ReuseGate) -> float:
    value = GATES[gate](branch.signals)
    return -math.inf if value is None else value


def _outcome(branches: Sequence[tuple[Branch, bool]]) -> dict[str, Any]:
    """Reuse if the marked branches are kept, and the agreement of these branches."""
    kept = [b for b, keep in branches if keep]
    return {
        "reuse_asks": round(sum(b.reused for b in kept) / max(1, sum(b.tokens for b, _ in branches)), 4),
        "top1_agreement": round(fmean(b.same for b in kept), 4) if kept else None,
        "kl": round(fmean(b.kl for b in kept), 4) if kept else None,
        "kept": len(kept),
        "flips": sum(not b.same for b in kept),
        "of": len(branches),
    }


def _loosest(branches: Sequence[Branch], gate: ReuseGate) -> float:
    """The loosest threshold whose kept branches reach the wanted agreement; infinite if there is none."""
    best, flips = math.inf, 0
    for n, branch in enumerate(sorted(branches, key=lambda b: -_value(b, gate)), 1):
        flips += not branch.same
        if flips <= (1 - AGREEMENT) * n:
            best = _value(branch, gate)
    return best


def _certified(
    calibration: Sequence[Branch], gate: ReuseGate, delta: float, outcome: Callable[[float], dict[str, Any]]
) -> dict[str, Any]:
    """Figures of the loosest threshold that fixed-sequence testing accepts, or the reason why there is none.

    Testing starts with the smallest number of safest branches that can pass. ``accepted``: 1 or 0.
    """
    ranked = sorted(calibration, key=lambda b: -_value(b, gate))
    needed = examples_needed(delta, ALPHA)
    if needed > len(ranked):
        return {"accepted": 0, "refused": f"{len(ranked)} branches, {needed} are needed even without a flip"}
    walk = fixed_sequence(
        ((n, sum(not b.same for b in ranked[:n])) for n in range(needed, len(ranked) + 1)), delta, ALPHA
    )
    if not walk[0].passed:
        return {"accepted": 0, "refused": f"{walk[0].k} flips among the safest {walk[0].n}"}
    accepted = [tried.n for tried in walk if tried.passed][-1]
    return {"accepted": 1, **outcome(_value(ranked[accepted - 1], gate))}


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties averaged; 0 if one side is constant."""

    def ranks(values: Sequence[float]) -> list[float]:
        places: dict[float, list[int]] = {}
        for place, value in enumerate(sorted(values)):
            places.setdefault(value, []).append(place)
        middle = (len(values) - 1) / 2
        return [fmean(places[value]) - middle for value in values]

    x, y = ranks(a), ranks(b)
    norm = math.sqrt(sum(v * v for v in x) * sum(v * v for v in y))
    return sum(v * w for v, w in zip(x, y, strict=True)) / norm if norm else 0.0


def tiny_engine() -> TransformersEngine:
    """An engine on random weights whose vocabulary is the words of the problems."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    texts = (*SHORT, *LONG, *(text for variant in VARIANTS for text in variant))
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    vocabulary = {word: n for n, word in enumerate(["<unk>", "<pad>", "</s>", *sorted(words)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = split, decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, pad_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return TransformersEngine(LlamaForCausalLM(config).eval(), tokenizer, name="random weights")


def main(
    quick: Quick = False,
    model: Annotated[Path | None, typer.Option(exists=True, help="folder of a model; none: random weights")] = None,
    variants: Annotated[int, typer.Option(min=1, help="copies of each problem, each with other numbers")] = 1,
) -> Report:
    """Measure, print the figures."""
    from rksc_tot import load_engine

    with load_engine(str(model)) if model else tiny_engine() as engine:
        branches = asyncio.run(collect(engine, quick, variants))
        name = model.name if model else engine.name
    return Report({"model": name, "means_something": bool(model), **measure(branches)})
