"""Ratings of policies against each other, as written by the stage `evaluate_ratings`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from posttrain.measure.text_table import text_table
from posttrain.pipeline.params.stage_table import Settings, group_of
from posttrain.pipeline.report.policies import check_recorded, output_digests, read_json
from posttrain.pipeline.workspace import metrics_path


def read_ratings(settings: Settings, left_out: Container[str]) -> dict[str, dict[str, Any]]:
    """Return name -> contents of metrics/ratings/NAME.json, for finished ratings. `left_out`: ratings/NAME."""
    names = [name for name in group_of(settings, "evaluate.ratings") if f"ratings/{name}" not in left_out]
    files = {name: metrics_path(f"ratings/{name}") for name in names}
    digests = output_digests() if files else {}
    for file in files.values():
        check_recorded(file, digests)
    return {name: read_json(file) for name, file in files.items() if file.is_file()}


def rating_lines(name: str, rating: Mapping[str, Any]) -> list[str]:
    """Return the ratings as lines of text."""
    rows = [["policy", "rating [95 % interval]", "rank"]]
    for row in rating["policies"]:
        interval = f"{row['rating']:+.0f} [{row['rating_low']:+.0f}, {row['rating_high']:+.0f}]"
        rank = f"{row['rank_low']}" + (f" to {row['rank_high']}" if row["rank_high"] > row["rank_low"] else "")
        rows.append([row["policy"], interval, rank])
    head = f"ratings {name}, by {rating['decided_by']}"
    return [head, *text_table(rows, left=(0, 1, 2)), *warnings_of(rating)]


def warnings_of(rating: Mapping[str, Any]) -> list[str]:
    """Return notes on what ratings hide: ties, circles, and a judge that favours the first reply."""
    if "circles" not in rating:  # an older version wrote it
        return []
    lines = [_ties(rating["pairs"])]
    for circle in rating["circles"]:
        chain = ", ".join(f"{one} beats {other}" for one, other in _steps(circle["policies"]))
        clear = "" if circle["clear"] else "; not all of these wins are clear"
        lines.append(f"circle: {chain}, so their order by rating says little{clear}")
    if "first_slot" in rating:
        interval = f"[{rating['first_slot_low']:.3f}, {rating['first_slot_high']:.3f}]"
        favoured = {True: "the first", False: "the second"}.get(rating["first_slot"] > 0.5)
        biased = rating["first_slot_low"] > 0.5 or rating["first_slot_high"] < 0.5
        verdict = f"it favours {favoured}" if biased else "no clear bias"
        order = f"the order decided {rating['order_decided']:.1%} of the matches, which are ties"
        lines.append(
            f"the judge took the reply it saw first in {rating['first_slot']:.3f} {interval}: {verdict}; {order}"
        )
    return lines


def _ties(pairs: Sequence[Mapping[str, Any]]) -> str:
    most = max(pairs, key=lambda pair: float(pair["ties"]))
    mean = sum(float(pair["ties"]) for pair in pairs) / len(pairs)
    return f"ties: {mean:.1%} of the matches, most between {most['first']} and {most['second']} ({most['ties']:.1%})"


def _steps(circle: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(circle, [*circle[1:], circle[0]], strict=True))
