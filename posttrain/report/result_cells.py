"""The cells of the table that decides, for the terminal, the README and the page without its script."""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.report.markup import NOT_MEASURED
from posttrain.report.summary import (
    Figures,
    extra_columns,
    is_measured,
    policy_figures,
    reference_of,
    score_name,
    subtracted,
    verdict,
)


def result_titles(summary: Mapping[str, Figures], against: str | None = None) -> list[str]:
    """Return the titles of the columns."""
    extra = [key.removeprefix("reward_").replace("_", " ") for key in extra_columns(summary)]
    base = against or subtracted(summary)
    seeds = ["seeds"] if _has_seeds(summary) else []
    score = [f"{score_name(summary)} [95 % interval]", f"minus {base} [95 %, Holm]", "verdict"]
    return ["setting", *seeds, *score, "greedy", *extra, "truncated", "length", f"KL to {reference_of(summary)}"]


def _has_seeds(summary: Mapping[str, Figures]) -> bool:
    return any(figures.get("seeds", 1) > 1 for figures in summary.values())


def result_rows(summary: Mapping[str, Figures]) -> list[list[str]]:
    """Return a row for each setting."""
    extra = extra_columns(summary)
    return [
        [
            name,
            *([f"{figures.get('seeds', 1):.0f}"] if _has_seeds(summary) else []),
            f"{figures['score']:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]"
            if is_measured(figures)
            else NOT_MEASURED,
            f"{figures['gain']:+.3f} [{figures['gain_low']:+.3f}, {figures['gain_high']:+.3f}]"
            if "gain" in figures
            else "-",
            verdict(figures),
            _number(figures, "greedy", 3) if is_measured(figures) else NOT_MEASURED,
            *(_number(figures, key, 3) for key in (*extra, "truncated")),
            _number(figures, "length", 1),
            _number(figures, "kl", 2),
        ]
        for name, figures in policy_figures(summary).items()
    ]


def _number(figures: Figures, key: str, digits: int) -> str:
    return f"{figures[key]:z.{digits}f}" if key in figures else "-"
