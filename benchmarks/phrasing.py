"""What taking over KV from another wording saves and costs: word problems of our own, eight wordings each.

``python -m benchmarks.phrasing --model FOLDER [--json] [--quick] [--variants N]``. Without a model a tiny one of random weights
runs through the same, and its figures mean nothing.

Every problem is asked in all wordings. The first lends the KV of the problem to the others, which compute their own words only
(and the first tokens of the problem, ``by_recompute``); the exact computation is the reference. Problems are dealt into three parts:
audits of the first give the harm of each wording, thresholds are calibrated on the second, figures come from the third.

``reuse``: prompt tokens that were not computed, over all prompt tokens of all branches, the lender's own not counted; a branch
that was sent back counts as nothing re-used. ``top1_agreement`` and ``kl``: of the branches that were kept. ``gate_rank_correlation``:
of a gate's value, sign turned, with the KL (Spearman). The headline threshold is the loosest with 99 % agreement on the second part;
``certified`` says what Learn-then-Test would promise: it counts branches as independent, which those of one problem are not.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from benchmarks.phrasing_problems import LONG, SHORT, WORDINGS, Wording, variant
from benchmarks.report import environment, flat
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account
from rksc_tot.engine.phrasing import Phrasings, open_phrasing
from rksc_tot.policies.asks import GATES, Gate, Phrasing, Signals
from rksc_tot.policies.ltt import examples_needed, fixed_sequence
from rksc_tot.task import Prompt

RECOMPUTED = (0, 4, 8)
HEADLINE: tuple[int, Gate] = (Phrasing.model_fields["recompute"].default, Phrasing.model_fields["gate"].default)
AGREEMENT = 0.99
PARTS = (0.2, 0.4)  # for audits, for calibration; the rest is held out
DELTAS, ALPHA = (0.01, 0.02, 0.05), 0.05
KEEP_ALL = -1e9  # a lead no branch is below


@dataclass(frozen=True)
class Branch:
    """One prompt that took KV over. ``reused``: head included."""

    problem: int
    long: bool
    wording: str
    tokens: int
    exact: int
    reused: int
    signals: Signals
    kl: float
    same: bool


def measure(engine: TransformersEngine, quick: bool, variants: int) -> dict[str, Any]:
    """All figures of one model."""
    branches = asyncio.run(_branches(engine, quick, variants))
    problems = sorted({b.problem for b in branches[RECOMPUTED[0]]})
    random.Random(0).shuffle(problems)
    first, second = (round(len(problems) * share) for share in (PARTS[0], sum(PARTS)))
    parts = (set(problems[:first]), set(problems[first:second]), set(problems[second:]))
    found = {}
    for recompute, measured in branches.items():
        audited, calibration, held_out = ([b for b in measured if b.problem in part] for part in parts)
        harm = _harm(audited)
        found[recompute] = _figures(_informed(calibration, harm), _informed(held_out, harm), HEADLINE[1])
    headline = found[HEADLINE[0]]
    held_out = [b for b in branches[HEADLINE[0]] if b.problem in parts[2]]
    return {
        "branches": {name: len([b for b in branches[0] if b.problem in part])
                     for name, part in zip(("audited", "calibration", "held_out"), parts, strict=True)},
        "reuse_exact": _share(held_out, lambda b: b.exact),
        **headline,
        "by_recompute": {str(k): {n: v for n, v in f.items() if n not in ("certified", "curve")} for k, f in found.items()},
    }  # fmt: skip


async def _branches(engine: TransformersEngine, quick: bool, variants: int) -> dict[int, list[Branch]]:
    """Every problem in every wording but the first, with each number of tokens computed all the same."""
    sharing, account = Phrasings(engine._stepper), Account()
    short, long, wordings = (SHORT[:6], LONG[:2], WORDINGS[1:4]) if quick else (SHORT, LONG, WORDINGS[1:])
    found: dict[int, list[Branch]] = {recompute: [] for recompute in RECOMPUTED}
    for number, problem in enumerate((*short, *long)):
        for n in range(variants):
            text = variant(problem, n)
            reference = engine.open(_prompt(engine, WORDINGS[0], text), account)
            for wording in wordings:
                prompt = _prompt(engine, wording, text)
                handle = engine.open(prompt, account)  # keeps what the audit computes
                tried = []
                for recompute in RECOMPUTED:
                    last = recompute == RECOMPUTED[-1]
                    rule = Phrasing(gate="lead", threshold=KEEP_ALL, recompute=recompute, audit=float(last), least=1)
                    branch, verdict = await open_phrasing(engine, sharing, prompt, reference, rule, account)
                    if not verdict.kept or verdict.signals is None:
                        raise RuntimeError(f"a branch was sent back: {verdict.why}")
                    tried.append((recompute, verdict, verdict.signals, branch.segment.logits.double().log_softmax(-1)))
                    engine.release(branch)
                exact = handle.segment.logits.double().log_softmax(-1)
                for recompute, verdict, signals, logits in tried:
                    kl = max(1e-12, float((exact.exp() * (exact - logits)).sum()))
                    same = int(exact.argmax()) == int(logits.argmax())
                    found[recompute].append(
                        Branch(number, number >= len(short), verdict.wording, handle.length, verdict.exact,
                               verdict.exact + verdict.reused, signals, kl, same)
                    )  # fmt: skip
                engine.release(handle)
            engine.release(reference)
            engine.clear()
    return found


def _prompt(engine: TransformersEngine, wording: Wording, problem: str) -> Prompt:
    if engine.tokenizer.chat_template:
        return wording.messages(problem)
    return f"{wording.system}\n\n{wording.before}{problem}{wording.after}\n"


def _harm(audited: Sequence[Branch]) -> dict[str, float]:
    """Geometric mean of the KL, by wording."""
    logs: dict[str, list[float]] = {}
    for branch in audited:
        logs.setdefault(branch.wording, []).append(math.log(branch.kl))
    return {name: math.exp(fmean(found)) for name, found in logs.items()}


def _informed(branches: Sequence[Branch], harm: dict[str, float]) -> list[Branch]:
    """The same branches, their signals completed by what audits have found."""
    every = math.exp(fmean(map(math.log, harm.values())))
    return [Branch(**{**vars(b), "signals": b.signals._replace(harm=harm.get(b.wording, every))}) for b in branches]


def _figures(calibration: Sequence[Branch], held_out: Sequence[Branch], gate: Gate) -> dict[str, Any]:
    """What one gate keeps on the held-out part, and how all of them rank it."""
    tried = {name: _outcome(held_out, name, _loosest(calibration, name)) for name in GATES if _known(held_out, name)}
    correlations = {
        name: round(spearman([-_value(b, name) for b in held_out], [b.kl for b in held_out]), 3) for name in tried
    }
    return {
        **tried[gate],
        "without_gate": {**_outcome(held_out, gate, -math.inf), "short": _outcome([b for b in held_out if not b.long], gate, -math.inf),
                         "long": _outcome([b for b in held_out if b.long], gate, -math.inf)},
        "gate_rank_correlation": correlations,
        "by_gate": {name: {k: v for k, v in outcome.items() if k in ("reuse_asks", "top1_agreement", "kept")} for name, outcome in tried.items()},
        "short": _outcome([b for b in held_out if not b.long], gate, _loosest(calibration, gate)),
        "long": _outcome([b for b in held_out if b.long], gate, _loosest(calibration, gate)),
        "certified": {f"{delta:g}": _certified(calibration, held_out, gate, delta) for delta in DELTAS},
        "curve": {f"{share:.0%}": _outcome(held_out, gate, _quantile(calibration, gate, share))
                  for share in (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)},
    }  # fmt: skip


def _known(branches: Sequence[Branch], gate: Gate) -> bool:
    return all(GATES[gate](b.signals) is not None for b in branches)


def _value(branch: Branch, gate: Gate) -> float:
    value = GATES[gate](branch.signals)
    return -math.inf if value is None else value


def _outcome(branches: Sequence[Branch], gate: Gate, threshold: float) -> dict[str, Any]:
    """What a threshold keeps, and how well."""
    kept = [b for b in branches if _value(b, gate) >= threshold]
    reused = sum(b.reused for b in kept) / max(1, sum(b.tokens for b in branches))
    agreement, kl = (round(fmean(v), 4) if kept else None for v in ([b.same for b in kept], [b.kl for b in kept]))
    return {"reuse_asks": round(reused, 4), "top1_agreement": agreement, "kl": kl, "kept": len(kept),
            "flips": sum(not b.same for b in kept), "of": len(branches)}  # fmt: skip


def _share(branches: Sequence[Branch], part: Callable[[Branch], int]) -> float:
    return round(sum(map(part, branches)) / sum(b.tokens for b in branches), 4)


def _quantile(branches: Sequence[Branch], gate: Gate, share: float) -> float:
    """The threshold that keeps a share of the branches; all of them, whatever comes, for 1."""
    values = sorted((_value(b, gate) for b in branches), reverse=True)
    return -math.inf if share >= 1 else values[max(0, math.ceil(share * len(values)) - 1)]


def _loosest(branches: Sequence[Branch], gate: Gate) -> float:
    """The loosest threshold under which the branches kept agree as wanted; infinite if there is none."""
    best, flips = math.inf, 0
    for n, branch in enumerate(sorted(branches, key=lambda b: -_value(b, gate)), 1):
        flips += not branch.same
        if flips <= (1 - AGREEMENT) * n:
            best = _value(branch, gate)
    return best


def _certified(calibration: Sequence[Branch], held_out: Sequence[Branch], gate: Gate, delta: float) -> Any:
    """The loosest threshold that fixed-sequence testing accepts, and what it keeps; or why there is none."""
    ranked = sorted(calibration, key=lambda b: -_value(b, gate))
    needed = examples_needed(delta, ALPHA)
    if needed > len(ranked):
        return f"refused: {len(ranked)} branches, {needed} are needed even without a flip"
    sizes = list(range(needed, len(ranked) + 1, max(1, (len(ranked) - needed) // 40)))
    walk = fixed_sequence(((n, sum(not b.same for b in ranked[:n])) for n in sizes), delta, ALPHA)
    passed = [tried.n for tried in walk if tried.passed]
    if not passed:
        return f"refused: {walk[0].k} flips among the {walk[0].n} safest"
    return _outcome(held_out, gate, _value(ranked[passed[-1] - 1], gate))


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
    """A model of random weights whose vocabulary is the words of the problems."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    texts = (*SHORT, *LONG, *(text for wording in WORDINGS for text in wording))
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    vocabulary = {word: n for n, word in enumerate(["<unk>", "<pad>", "</s>", *sorted(words)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = split, decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return TransformersEngine(LlamaForCausalLM(config).eval(), tokenizer, name="random weights")


def main(
    json_only: Annotated[bool, typer.Option("--json", help="print only the JSON object")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="finish within a minute")] = False,
    model: Annotated[Path | None, typer.Option(exists=True, help="folder of a model; none: random weights")] = None,
    variants: Annotated[int, typer.Option(min=1, help="how often each problem is asked, with other numbers")] = 1,
) -> None:
    """Measure, print the figures."""
    from rksc_tot import load_engine

    with load_engine(str(model)) if model else tiny_engine() as engine:
        figures = flat({"model": engine.name, "meaningful": bool(model), **measure(engine, quick, variants)})
    if not json_only:
        for key, value in figures.items():
            print(f"{key:60} {value}")
    print(json.dumps({"name": "phrasing", "figures": figures, "environment": environment()}))


if __name__ == "__main__":
    typer.run(main)
