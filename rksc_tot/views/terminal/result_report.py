"""Terminal report of a result: path, answer, ledger and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.api.result import Result
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.core.tree import Node

SHORT = 40  # characters of a setting


def report(result: Result) -> RenderableType:
    """The path, the answer with its verdict, the ledger and the settings of a result."""
    nodes = [node for node in result.tree.lineage(result.tree[result.best])[1:] if not node.ends_parent]
    lines = [Text(one_line(f"{at}. {node.thought.full_text}")) for at, node in enumerate(nodes, 1)]
    return Group(
        Text("path", style="bold"),
        *(lines or [Text("(no thoughts)")]),
        _answer(result),
        *_stopped(result),
        *_rejections(result),
        *([] if result.advice is None else [Text(f"what to do: {result.advice}", style="yellow")]),
        Text(),
        ledger_table(result.ledger, sum(not node.exact for node in result.tree), result.numerics.get("compression")),
        Text(_settings(result), style="dim"),
    )


def ledger_table(ledger: Ledger, inexact: int = 0, compression: Mapping[str, Any] | None = None) -> Table:
    """The ledger as a table, one figure a line.

    ``inexact``: number of nodes that were generated from approximate KV. ``compression``: settings of the compression policy.
    """
    seconds = ", ".join(f"{phase} {spent:.2f}" for phase, spent in sorted(ledger.seconds.items()))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in (
        ("nodes", f"{ledger.nodes}, {ledger.merged} merged, {ledger.rejected} rejected{_inexact(inexact)}"),
        ("tokens sampled", f"{ledger.tokens_sampled}"),
        ("tokens prefilled", f"{ledger.prefill_tokens}, {ledger.distinct_tokens} distinct"),
        ("shared, exact", f"{ledger.exact_tokens} tokens, {ledger.prefill_saved:.1%} of re-prefilling"),
        *_shared(ledger),
        *_thinking(ledger),
        *([("closings", f"{ledger.closings}")] if ledger.closings else []),
        *([("observations", f"{ledger.observations}")] if ledger.observations else []),
        ("verifier", f"{ledger.verifier_tokens} tokens in {ledger.verifier_calls} calls"),
        *_early(ledger),
        *_compressed(ledger, compression),
        ("forward passes", f"{ledger.forward_passes}"),
        ("peak KV", f"{ledger.peak_kv_bytes / 2**20:.2f} MiB{_evicted(ledger)}"),
        ("seconds", seconds or "-"),
    ):
        table.add_row(name, value)
    return table


def _thinking(ledger: Ledger) -> list[tuple[str, str]]:
    """The line on thinking blocks, if there were any."""
    if not (ledger.thinking_tokens or ledger.forced_closes):
        return []
    return [
        ("thinking", f"{ledger.thinking_tokens} of the sampled tokens, {ledger.forced_closes} blocks closed by force")
    ]


def _early(ledger: Ledger) -> list[tuple[str, str]]:
    """One line for each mechanism that took early decisions."""
    lines = []
    for name, row, what in (
        ("layer exit", ledger.layer_exit, f"questions, {ledger.layers_saved:.0%} of all layers not run"),
        ("verify skip", ledger.verify_skip, "groups of siblings"),
        ("rival stop", ledger.rival_stop, "nodes"),
    ):
        if row.acted:
            audit = f"; {row.flips} of {row.audited} audited differ" if row.audited else ""
            lines.append((name, f"{row.acted} {what}{audit}"))
    return lines


def _shared(ledger: Ledger) -> list[tuple[str, str]]:
    """One line for each kind of approximate sharing that was used."""
    lines = []
    for name, row, what in (
        ("prompt reuse", ledger.prompt_reuse, "prompts"),
        ("merged siblings", ledger.sibling, "thoughts"),
    ):
        if row.acted:
            found = (
                f"; audited {row.audited}: KL {row.kl / row.audited:.3f}, top-1 {row.top1 / row.audited:.0%}, "
                if row.audited
                else ""
            )
            flips = f"{row.flips} decisions differ" if row.audited else "; none audited"
            lines.append((name, f"{row.acted} {what}, {row.tokens} tokens{found}{flips}"))
    return lines


def _compressed(ledger: Ledger, compression: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Lines on compressed KV, scores read from it, and drafts."""
    lines, kept, scores, drafts = [], ledger.compression, ledger.scores, ledger.verified
    if compression and not kept.acted:
        room = (
            "no path outgrew its budget"
            if "budget" in compression
            else "the KV budget was never full of thoughts that may be compressed"
        )
        lines.append(("KV compressed", f"never: {room}"))
    if kept.acted:
        told = [f"{kept.acted} times, {kept.tokens} tokens dropped, {kept.rows} rows computed on compressed KV"]
        if kept.audited:
            told.append(
                f"audited {kept.audited}: mean KL {max(0.0, kept.kl / kept.audited):.3f} nats, {kept.flips} next tokens differ"
            )
        lines.append(("KV compressed", "; ".join(told)))
    if scores.acted:
        told = [f"{scores.acted} label questions answered on approximate KV"]
        if scores.audited:
            mean = scores.kl / scores.audited
            told.append(f"audited {scores.audited}: mean KL {mean:.3f} nats, {scores.flips} likeliest labels differ")
        lines.append(("scores", "; ".join(told)))
    if drafts.drafted:
        lines.append(
            (
                "drafted",
                f"{drafts.drafted} tokens in {drafts.rounds} rounds, {drafts.accepted} accepted ({drafts.acceptance:.0%})",
            )
        )
    return lines


def _inexact(nodes: int) -> str:
    return f", {nodes} not exact" if nodes else ""


def _evicted(ledger: Ledger) -> str:
    counts = (
        (ledger.evicted_tokens, "tokens evicted"),
        (ledger.recomputed_tokens, "recomputed"),
        (ledger.restored_tokens, "copied back"),
    )
    gone = ledger.evicted_tokens or ledger.restored_tokens
    return "; " + ", ".join(f"{count} {what}" for count, what in counts if count) if gone else ""


def _answer(result: Result) -> Text:
    if result.answer is None:
        return Text(f"no answer: {one_line(result.why_no_answer or '')}", style="bold yellow")
    verdict = {True: ("right", "bold green"), False: ("wrong", "bold red"), None: ("", "bold")}[result.correct]
    text = Text(f"answer: {one_line(result.answer)}", style="bold")
    if verdict[0]:
        text.append(f"  ({verdict[0]})", style=verdict[1])
    best = result.tree[result.best]
    if not (best.exact and best.score_exact):
        text.append(f"  {' and '.join(_approximate(best))} on approximate KV", style="yellow")
    return text


def _approximate(node: Node) -> list[str]:
    """Which of ``written`` and ``scored`` used approximate KV."""
    return [what for what, exact in (("written", node.exact), ("scored", node.score_exact)) if not exact]


def _stopped(result: Result) -> list[Text]:
    """Why the search with an answer stopped early, if it did."""
    if result.answer is None or result.stopped == "finished":
        return []
    return [Text(f"stopped: {one_line(result.stopped)}", style="yellow")]


def _rejections(result: Result) -> list[Text]:
    """The commonest reason for rejected thoughts; the two commonest if there is no answer."""
    common = list(result.rejections.items())[: 2 if result.answer is None else 1]
    return [Text(f"rejected {count}\N{MULTIPLICATION SIGN}: {one_line(reason)}") for reason, count in common]


def _settings(result: Result) -> str:
    parts = []
    for name in ("strategy", "verifier", "seed"):
        value = result.settings.get(name)
        if isinstance(value, Mapping):
            options = ", ".join(
                f"{key}={_short(option)}"
                for key, option in value.items()
                if key != "name" and option not in (None, "", [], {})
            )
            value = f"{value.get('name', '')} ({options})" if options else value.get("name", "")
        parts.append(f"{name} {value}")
    return one_line(", ".join([*parts, *_memory(result), f"model {result.numerics.get('model', '?')}"]), 400)


def _short(option: object) -> str:
    """A setting, cut to a few words; of a plug-in or a list of plug-ins only the names."""
    if isinstance(option, Mapping):
        return one_line(str(option.get("name", "{…}")), SHORT)
    if isinstance(option, list) and option and all(isinstance(each, Mapping) for each in option):
        return " + ".join(map(_short, option))
    return one_line(str(option), SHORT)


def _memory(result: Result) -> list[str]:
    """Compression, lossless drafting and offload of the engine, if they are on."""
    compression, lossless, offload = (result.numerics.get(name) for name in ("compression", "lossless", "offload"))
    found = [f"compression {_policy(compression)}"] if isinstance(compression, Mapping) else []
    return [*found, *(["lossless"] if lossless else []), *([f"offload to {offload}"] if offload else [])]


def _policy(compression: Mapping[str, Any]) -> str:
    """A compression policy with its settings except its fit."""
    settings = ", ".join(f"{name}={value}" for name, value in compression.items() if name not in ("name", "fit"))
    return f"{compression.get('name', '')}({settings})"
