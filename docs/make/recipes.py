"""docs/reports/recipes.md and its picture, from the results of benchmarks.recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Metrics = dict[str, float]
Shown = Mapping[str, Mapping[str, Sequence[Metrics]]]
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "calculator": {"calling": "calls", "right_given_call": "right given a call"},
    "constitutional": {"reward_first": "first rule", "reward_second": "second rule", "reward_correct": "right"},
    "guess": {"guesses": "guesses", "wasted": "wasted"},
    "r1": {
        "length": "length",
        "reward_language": "in English",
        "reward_reflects": "reflects",
        "reward_corrects": "corrects itself",
        "greedy": "greedy",
    },
    "rlhf": {"length": "length", "reward_bare": "result alone", "greedy": "greedy"},
    "r1_zero": {"length": "length", "reward_again": "`####` again", "greedy": "greedy"},
    "process": {
        "greedy": "greedy",
        "best_of_8_by_model": "best of 8, outcome",
        "best_of_8_by_least": "best of 8, process",
    },
}
"""Recipe -> the metrics that show how, with their heads; the others have the usual ones."""
USUAL = {"length": "length", "greedy": "greedy"}
PAGE = """# Recipes, over seeds

The score of each policy of the recipes in `recipes/`, run as they are: right answers to the test prompts, 8 samples of
each. Of most recipes three figures are three runs of the whole pipeline with `seed` 0, 1 and 2 (`calculator` and
`guess`: 1, 2 and 3), each with data and a base of its own. `rlhf`, `curriculum` and `scalerl` train each setting with
three seeds from one SFT model. Evaluations on a table of text have minus the bits per byte as their score, those of a
reward model its accuracy.

![Score of each policy](recipes.svg)

A dot is a seed, a line the mean.

The score of `constitutional` is the share of answers that keep both of its rules; the model that it asks obeys them and
errs on purpose.

{tables}
`python -m benchmarks.recipes` runs what is missing and writes this page. {machine}.
"""


def page(shown: Shown, machine: str) -> str:
    """Return the page."""
    return PAGE.format(tables="\n".join(map(_table, shown, shown.values())), machine=machine)


def _table(name: str, policies: Mapping[str, Sequence[Metrics]]) -> str:
    columns = COLUMNS.get(name, USUAL)
    lines = [f"## {name}\n", f"| policy | each seed | mean | {' | '.join(columns.values())} |"]
    lines.append(f"|---|---|---:|{'---:|' * len(columns)}")
    for policy, found in policies.items():
        each = ", ".join(f"{metrics['score']:.3f}" for metrics in found)
        how = " | ".join(_mean(found, key) for key in columns)
        lines.append(f"| `{policy}` | {each} | {_mean(found, 'score')} | {how} |")
    return "\n".join(lines) + "\n"


def _mean(found: Sequence[Metrics], key: str) -> str:
    values = [metrics[key] for metrics in found if key in metrics]
    return f"{fmean(values):.{1 if key == 'length' else 3}f}" if values else ""


def draw(shown: Shown) -> str:
    """Return the score of each policy and seed, as SVG."""
    import vl_convert

    figure = {
        "concat": [_panel(name, policies) for name, policies in shown.items()],
        "columns": 3,
        "background": "white",
        "padding": 14,
        "config": {"view": {"stroke": "#ddd"}, "axis": {"labelFontSize": 11, "titleFontWeight": "normal"}},
    }
    return str(vl_convert.vegalite_to_svg(figure, vl_version="5.20"))


def _panel(name: str, policies: Mapping[str, Sequence[Metrics]]) -> dict[str, Any]:
    rows = [
        {"policy": policy, "score": metrics["score"]}
        for policy, found in policies.items()
        for metrics in found
        if metrics["score"] >= 0
    ]
    x = {"field": "score", "type": "quantitative", "title": None, "scale": {"domain": [0, 1]}}
    y = {"field": "policy", "type": "nominal", "title": None, "sort": list(policies), "axis": {"labelLimit": 110}}
    return {
        "title": {"text": name, "anchor": "start", "fontSize": 12},
        "width": 190,
        "height": {"step": 17},
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "tick", "thickness": 2, "color": "#222"},
                "encoding": {"x": {**x, "aggregate": "mean"}, "y": y},
            },
            {"mark": {"type": "circle", "size": 40, "opacity": 0.6, "color": "#0b6bb5"}, "encoding": {"x": x, "y": y}},
        ],
    }
