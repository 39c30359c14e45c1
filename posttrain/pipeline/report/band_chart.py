"""Draw curves as an SVG without scripts: a line for the mean and an area for the range over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from posttrain.pipeline.compare.bands import Band
from posttrain.pipeline.report.markup import Markup, element

MOST: Final = 8
"""The most settings that are drawn: those that come first."""
WIDE, HIGH, LEFT, BELOW = 860, 320, 56, 30
TICKS: Final = 5


def band_chart(metric: str, bands: Sequence[Band]) -> Markup:
    """Return the chart with its legend; empty without curves."""
    shown = [band for band in bands if len(band.steps)][:MOST]
    if not shown:
        return Markup("")
    low, high = min(float(band.low.min()) for band in shown), max(float(band.high.max()) for band in shown)
    high = high if high > low else low + 1.0
    last = max(float(band.steps[-1]) for band in shown)

    def points(steps: Sequence[float], values: Sequence[float]) -> str:
        pairs = zip(steps, values, strict=True)
        return " ".join(
            f"{LEFT + (WIDE - LEFT - 8) * step / last:.1f},{8 + (HIGH - BELOW - 8) * (high - value) / (high - low):.1f}"
            for step, value in pairs
        )

    parts, names = [*_axes(low, high, last)], dict[tuple[str, str], list[str]]()
    for band in shown:
        steps, around = band.steps.tolist(), ""
        if (band.high > band.low).any():
            around = points([*steps, *steps[::-1]], [*band.high.tolist(), *band.low.tolist()[::-1]])
        names.setdefault((points(steps, band.mean.tolist()), around), []).append(band.label)
    for place, (line, around) in enumerate(names):
        if around:
            parts.append(element("polygon", class_=f"band c{place}", points=around))
        parts.append(element("polyline", class_=f"mean c{place}", points=line))
    about = f"{metric} per optimizer step: {', '.join(band.label for band in shown)}"
    drawn = element("svg", *parts, viewBox=f"0 0 {WIDE} {HIGH}", role="img", aria_label=about)
    lines = enumerate(map(_said, names.values()))
    keys = [element("li", element("span", class_=f"key c{place}"), name) for place, name in lines]
    more = f" The first {MOST} of {len(bands)} settings are drawn." if len(bands) > MOST else ""
    note = f"{metric} per optimizer step. Line: mean over seeds. Area: lowest to highest seed.{more}"
    title = element("h2", "Training curves")
    return Markup("".join((title, element("p", note), drawn, element("ul", *keys, class_="keys"))))


def _said(labels: Sequence[str]) -> str:
    """Return the name of a line. Settings with the same line share it, because the last would hide the others."""
    return labels[0] if len(labels) == 1 else f"{'; '.join(labels)} (equal curves)"


def _axes(low: float, high: float, last: float) -> list[Markup]:
    parts = []
    for value in round_values(low, high):
        y = 8 + (HIGH - BELOW - 8) * (high - value) / (high - low)
        parts.append(element("line", class_="grid", x1=str(LEFT), x2=str(WIDE - 8), y1=f"{y:.1f}", y2=f"{y:.1f}"))
        parts.append(element("text", f"{value:.10g}", x=str(LEFT - 6), y=f"{y + 4:.1f}", class_="at"))
    for step in round_values(0.0, last, least=1.0):
        x = LEFT + (WIDE - LEFT - 8) * step / last
        parts.append(element("text", f"{step:.0f}", x=f"{x:.1f}", y=str(HIGH - 8), class_="step"))
    return parts


def round_values(low: float, high: float, least: float = 0.0) -> list[float]:
    """Return up to six round numbers from low to high, evenly apart by `least` or more."""
    apart = max((high - low) / TICKS, least)
    power = math.floor(math.log10(apart))
    # A factor of whole numbers: 3 * 0.1 would print as 0.30000000000000004.
    factor = next(one for one in (1, 2, 5, 10) if one * 10.0**power >= apart * (1 - 1e-9))
    unit = 10.0**-power
    return [nth * factor / unit for nth in range(math.ceil(low * unit / factor), math.floor(high * unit / factor) + 1)]
