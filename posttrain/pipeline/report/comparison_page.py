"""A comparison as a page: a row for each setting, best first, with its varied parameters as columns."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.pipeline.compare.budgets import BUDGETS
from posttrain.pipeline.compare.comparison import Comparison, Pair, verdict
from posttrain.pipeline.compare.importance import HOW, Importance
from posttrain.pipeline.compare.paired import Score
from posttrain.pipeline.compare.planned import Planned
from posttrain.pipeline.compare.planned_text import TITLES, answered, p_text, tables
from posttrain.pipeline.compare.text import conclusion, score_title
from posttrain.pipeline.compare.words import CANNOT_TELL, judged
from posttrain.pipeline.report.band_chart import band_chart
from posttrain.pipeline.report.markup import Column, Markup, element, listed, table
from posttrain.pipeline.report.page import plain_page


def comparison_page(
    comparison: Comparison,
    command: str,
    score: Score,
    against: str | None,
    named: str | None = None,
    answers: Planned | None = None,
    mattered: Sequence[Importance] = (),
) -> str:
    """Return the page of a comparison. Differences are relative to `against`, or to the best setting.

    `answers`: planned questions, which come first. `mattered`: how much of the variance each setting explains.
    """
    labels, metric = [mean.label for mean in comparison.means], score_title(score, named)
    base = next((pair.right for pair in comparison.held_out), 0) if against else 0
    varied = list(dict.fromkeys(key for mean in comparison.means for key in mean.varied)) or ["setting"]
    titles = [*varied, "seeds", f"{metric} [95 %]", f"minus {labels[base]} [95 %, Holm]", "verdict", *BUDGETS]
    rows = [
        [
            *(mean.varied.get(key, mean.label) for key in varied),
            str(mean.seeds),
            f"{mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}]",
            *_difference(comparison, place, base),
            *("-" if mean.spent[budget] is None else f"{mean.spent[budget]:,.0f}" for budget in BUDGETS),
        ]
        for place, mean in enumerate(comparison.means)
    ]
    kinds = dict.fromkeys((*varied, "verdict"), "left wrap") | {title: "whole" for title in titles if "[" in title}
    columns = [Column(title, kinds.get(title, "")) for title in titles]
    what = named or f"{metric.capitalize()}s"
    typed = element("code", f"posttrain {command}")
    about = element(
        "p", f"{what} on the same {comparison.prompts} held-out prompts, as ", typed, f". {conclusion(comparison)}"
    )
    drawn = band_chart(*comparison.curves)
    settings = (about, table(command, columns, rows), listed(comparison.notes), drawn, _importance(mattered))
    parts = (element("h1", command), *_answers(answers, metric), *settings)
    return plain_page(command, element("main", *parts), "sweep.js")


def _answers(answers: Planned | None, metric: str) -> list[Markup]:
    """Return the planned questions with their answers and notes."""
    if answers is None:
        return []
    columns = [Column(title, "left wrap" if title == "verdict" else "") for title in TITLES]
    parts = [(element("p", head), table(head, columns, rows)) for head, rows in tables(answers, metric)]
    return [
        element("h2", "Planned questions"),
        element("p", answered(answers)),
        *(part for both in parts for part in both),
        listed(answers.notes),
        element("h2", "All settings"),
    ]


def _importance(mattered: Sequence[Importance]) -> Markup:
    """Return how much of the variance between trainings each setting explains."""
    if not mattered:
        return Markup("")
    titles = ("setting", "levels", "share of the variance", "p", "verdict")
    columns = [Column(title, "left wrap" if title == "verdict" else "") for title in titles]
    rows = [
        [
            one.factor,
            str(one.levels),
            "-" if one.share is None else f"{one.share:.0%}",
            "-" if one.p_value is None else p_text(one.p_value),
            one.verdict,
        ]
        for one in mattered
    ]
    title = "Which setting mattered"
    return Markup("".join((element("h2", title), element("p", HOW), table(title, columns, rows))))


def _verdict(pair: Pair, sign: int) -> str:
    """Return the verdict on a row: better or worse than the row that is subtracted."""
    if pair.same:
        return verdict(pair, ["", ""])
    better = "better" if sign * pair.finding.mean > 0 else "worse"
    said = judged(better, over_seeds=pair.finding.over_seeds) if pair.finding.significant else CANNOT_TELL
    return "; ".join([said, *map(str, pair.falls)])


def _difference(comparison: Comparison, place: int, base: int) -> tuple[str, str]:
    """Return a setting's difference to another one and the verdict; empty if it is the same or not compared."""
    for pair in comparison.held_out:
        if {pair.left, pair.right} == {place, base} and place != base:
            sign = 1 if pair.left == place else -1
            low, high = sorted((sign * pair.finding.low, sign * pair.finding.high))
            return f"{sign * pair.finding.mean:+z.3f} [{low:+z.3f}, {high:+z.3f}]", _verdict(pair, sign)
    return "-", ""
