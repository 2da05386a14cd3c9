"""Sections on what people bring: rows, reward models, structured thoughts, tools; and on verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results.tables import Figures, interval, mark, number, parts, section, table

Found = Mapping[str, Mapping[str, Any]]

STRATEGIES = {
    "cot": "greedy",
    "self_consistency": "self-consistency",
    "best_of_n": "best of n",
    "beam": "beam",
    "bfs": "BFS",
    "dfs": "DFS",
}


def own_rows(found: Found) -> list[str]:
    """Strategy × figure: answered and solved rows of word problems."""
    lines: list[str] = []
    for name in found:
        if name.startswith("own_task-"):
            lines += _own_rows(name.removeprefix("own_task-"), found[name]["figures"])
    return lines


def _own_rows(model: str, figures: Figures) -> list[str]:
    measured = {title: name for name, title in STRATEGIES.items() if f"answered.{name}" in figures}
    columns = {"answered": "answered", "without closing": "answered_without_closing", "solved": "solved"}

    def cell(row: str, column: str) -> str:
        figure = f"{columns[column]}.{measured[row]}"
        return interval(figures, figure) if column == "solved" else number(figures.get(figure))

    least = min(figures[f"answered.{name}"] for name in measured.values())
    below = [STRATEGIES[name] for name in filter(None, figures["below_greedy"].split(", "))]
    return section(
        f"{model}, {figures['n']} word problems as rows. *Answered*: share of searches that end with an answer; without closing,"
        " paths are not asked for it. All strategies but greedy score by likelihood.",
        table("strategy", list(measured), list(columns), cell),
        mark("The smallest share answered is", least, least=0.98),
        f"{' and '.join(below)} solve fewer than greedy."
        if below
        else "Every strategy solves at least as many as greedy.",
    )


def families(found: Found) -> list[str]:
    """Family × strategy: solved held-out problems of the embedded models beside game24."""
    if "families" not in found:
        return []
    figures = found["families"]["figures"]
    names = [name.removesuffix(".solved").split(".", 1) for name in figures if name.endswith(".solved")]
    columns = list(dict.fromkeys(family for family, _ in names))
    strategies = list(dict.fromkeys(strategy for _, strategy in names))

    def cell(strategy: str, family: str) -> str:
        name = f"{family}.{strategy}"
        share = {name: figures[f"{name}.solved"] / figures[f"{name}.n"]}
        return interval(share | {f"{name}.{end}": figures[f"{name}.{end}"] for end in ("low", "high")}, name)

    return section(
        "Share of held-out problems solved at the first answer, by strategy, on the embedded model of each family.",
        table("strategy", strategies, columns, cell),
    )


def reward_models(found: Found) -> list[str]:
    """Kind × difference; token ratio and early exit."""
    if "prm" not in found:
        return []
    figures = found["prm"]["figures"]
    kinds = parts(figures, "max_abs_diff_by_kind")
    return section(
        "Tiny random checkpoints laid out as the real ones: incremental score compared with a pass over the whole text.",
        table("kind", kinds, ["difference"], lambda row, _: number(figures[f"max_abs_diff_by_kind.{row}"])),
        mark("Largest difference:", figures["max_abs_diff"], most=1e-5),
        mark("Tokens at eight steps, compared with scoring each step whole:", figures["token_ratio_depth8"], most=0.16),
        mark(
            "Early exit on a head trained for the game of 24: decoder layers saved:", figures["layers_saved"], least=0.4
        ),
        mark("Error, upper 95 % bound:", figures["exit_error_upper95"], most=0.01),
    )


def probe(found: Found) -> list[str]:
    """Verifier × depth: AUC on held-out puzzles."""
    if "probe" not in found:
        return []
    figures = found["probe"]["figures"]
    verifiers = ("probe", "lm_value", "likelihood")
    columns = {f"{n} of 3 steps": f"depth{n}" for n in (1, 2, 3)}
    return section(
        "Area under the ROC curve of scores on thoughts of the paper's 100 puzzles: can this thought still end in 24?",
        table(
            "verifier",
            verifiers,
            list(columns),
            lambda row, column: number(figures.get(f"auc.{row}.{columns[column]}")),
        ),
        mark("Puzzles solved with the probe as verifier:", figures["solved.probe"], least=90),
        f"Verifier tokens a puzzle: {number(figures['verifier_tokens.probe'])}. The probe was improved three times after looks at"
        " these puzzles, so this is no blind test.",
    )


def verifiers(found: Found) -> list[str]:
    """Verifier × figure: AUC and tokens on arithmetic statements."""
    lines: list[str] = []
    for name in found:
        if name.startswith("verifiers-"):
            lines += _verifiers(name.removeprefix("verifiers-"), found[name]["figures"])
    return lines


def _verifiers(model: str, figures: Figures) -> list[str]:
    columns = {"AUC": "auc", "verifier tokens": "tokens"}
    return section(
        f"{model}, {figures['n']} statements such as 38 * 4 = 151, half of them wrong.",
        table(
            "verifier", parts(figures, "auc"), list(columns), lambda row, c: number(figures.get(f"{columns[c]}.{row}"))
        ),
        "The prompt of `recompute` was chosen on these statements, so its AUC is a little optimistic.",
    )


def structured(found: Found) -> list[str]:
    """Model × figure: malformed thoughts, and the cost of a constraint."""
    models = {
        name.removeprefix("structured-"): run["figures"] for name, run in found.items() if name.startswith("structured")
    }
    columns = {
        "thoughts": "n",
        "malformed": "malformed",
        "malformed without a constraint": "malformed_unconstrained",
        "overhead a token, ms": "overhead_ms_per_token",
    }
    if not models:
        return []
    return section(
        "Thoughts under three JSON schemas.",
        table("model", list(models), list(columns), lambda row, column: number(models[row].get(columns[column]))),
        mark("Malformed:", max(figures["malformed"] for figures in models.values()), most=0),
    )


def thinking(found: Found) -> list[str]:
    """Replies with markers in odd places."""
    if "thinking" not in found:
        return []
    figures = found["thinking"]["figures"]
    names = ("replies", "exceptions", "budget_overruns", "forced_closes")
    return section(
        "Replies with nested, missing, doubled and split markers of thinking blocks.",
        table(
            "", ["count"], [name.replace("_", " ") for name in names], lambda _, c: number(figures[c.replace(" ", "_")])
        ),
        mark("Exceptions and budget overruns:", figures["exceptions"] + figures["budget_overruns"], most=0),
    )


def sandbox(found: Found) -> list[str]:
    """Attacks of model-written code."""
    if "sandbox" not in found:
        return []
    figures = found["sandbox"]["figures"]
    attacks = [name.removeprefix("seconds.") for name in figures if name.startswith("seconds.")]
    return [
        f"Attacks: {', '.join(name.replace('_', ' ') for name in attacks)}. "
        + mark("Held:", figures["held"], least=figures["attacks"])
        + f" The search goes on after each: {number(figures['search_goes_on'])}."
    ]


SECTIONS = (
    ("Do searches on rows of one's own end with an answer?", own_rows),
    ("Do searches on the other embedded models beat their greedy chains?", families),
    ("Are reward models read exactly, and at which cost?", reward_models),
    ("What does a linear probe know?", probe),
    ("Which verifier tells wrong calculations on a small model?", verifiers),
    ("Are structured thoughts well formed?", structured),
    ("Do thinking blocks stay within their budget?", thinking),
    ("Does the sandbox hold?", sandbox),
)
