"""The table of starts: medians of each stage, and sums of both sides."""

from __future__ import annotations

from benchmarks.starts import PHASES, Phases, medians, page


def turn(seconds: float) -> Phases:
    """A start of which each phase takes so long, and ten seconds of work."""
    return {**dict.fromkeys(PHASES, seconds), "whole": len(PHASES) * seconds + 10}


def test_a_stage_has_its_median_and_the_sums_their_ratio() -> None:
    here = {"sft@main": [turn(0.5), turn(9.0), turn(0.25)], "completions@sft": [turn(0.25)]}
    there = {"sft@main": [turn(1.0)]}
    assert medians(here)["sft@main"]["start"] == 2.0
    lines = page(here, there)
    assert any(line.startswith("| sft@main | 0.50 / 1.00 |") and "2.00 / 4.00" in line for line in lines)
    assert any(line.startswith("| completions@sft | 0.25 / - |") for line in lines)
    assert "| 3.0 / 4.0 | 23.0 / 14.0 |" in next(line for line in lines if line.startswith("| all |"))
    assert lines[-1] == "The starts cost 0.75 of those there."
