"""The picture of curves with bands."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from posttrain.pipeline.compare.bands import Band
from posttrain.pipeline.report.band_chart import HIGH, MOST, WIDE, band_chart, round_values


def band(label: str, *, spread: float = 0.0) -> Band:
    steps, mean = np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.5, 0.9])
    return Band(label, steps, mean, mean - spread, mean + spread)


def test_a_line_for_the_mean_and_an_area_for_several_seeds() -> None:
    chart = ET.fromstring(f"<div>{band_chart('reward', [band('a', spread=0.1), band('<b>')])}</div>")
    lines, areas = chart.findall(".//polyline"), chart.findall(".//polygon")
    assert (len(lines), len(areas)) == (2, 1), "a single seed has no range"
    places = [tuple(map(float, point.split(","))) for point in lines[0].attrib["points"].split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places) and places[0][1] > places[-1][1], "up is more"
    assert all(0 <= x <= WIDE and 0 <= y <= HIGH for x, y in places)
    assert [one.text or "" for one in chart.findall(".//li/span")] == ["", ""] and "<b>" in "".join(chart.itertext())


def test_settings_with_equal_curves_share_a_line_and_its_name() -> None:
    chart = ET.fromstring(
        f"<div>{band_chart('reward', [band('a'), band('b', spread=0.1), band('c'), band('d')])}</div>"
    )
    assert [line.attrib["class"] for line in chart.findall(".//polyline")] == ["mean c0", "mean c1"]
    assert ["".join(key.itertext()) for key in chart.findall(".//li")] == ["a; c; d (equal curves)", "b"]


def test_too_many_settings_are_said() -> None:
    chart = band_chart("reward", [band(str(nth), spread=nth / 100) for nth in range(MOST + 3)])
    assert chart.count("<polyline") == MOST and f"The first {MOST} of {MOST + 3} settings are drawn" in chart


def test_nothing_to_draw_and_a_flat_curve() -> None:
    assert band_chart("", []) == ""
    flat = Band("flat", np.array([1.0]), np.array([0.5]), np.array([0.5]), np.array([0.5]))
    assert "nan" not in band_chart("reward", [flat])


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0.703, 0.938, [0.75, 0.8, 0.85, 0.9]),
        (0.1, 0.9, [0.2, 0.4, 0.6, 0.8]),
        (-3.0, 2.0, [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]),
        (2.0e-7, 4.2e-7, [2e-7, 2.5e-7, 3e-7, 3.5e-7, 4e-7]),
        (0.0, 4200.0, [0.0, 1000.0, 2000.0, 3000.0, 4000.0]),
    ],
)
def test_the_numbers_at_an_axis_are_round(low: float, high: float, values: list[float]) -> None:
    assert round_values(low, high) == pytest.approx(values)
    assert all(len(f"{value:.10g}") < 8 for value in round_values(low, high))


def test_steps_are_whole_numbers() -> None:
    assert round_values(0.0, 3.0, least=1.0) == [0.0, 1.0, 2.0, 3.0]
    assert round_values(0.0, 1.0, least=1.0) == [0.0, 1.0]
