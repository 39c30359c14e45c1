"""One table of metrics: docs/reference/watching.md, the page's lights and `posttrain params metrics` have it."""

from __future__ import annotations

from posttrain.pipeline.commands.line import parse, run
from posttrain.pipeline.report.watched_metrics import METRICS, about, health, table_rows, worries
from tests.workspace import ROOT


def test_the_page_about_watching_has_the_table() -> None:
    page = (ROOT / "docs/reference/watching.md").read_text(encoding="utf-8")
    assert "\n".join(["|---|---|---|", *table_rows(), ""]).replace("](", "](../") in page


def test_the_end_of_a_run_is_held_against_the_limits() -> None:
    rising = [0.0] * 90 + [0.3] * 10
    assert worries({"clip_fraction": rising, "ratio_ess": [0.9] * 100}) == ["clip_fraction 0.3: above 0.2"]
    assert worries({"clip_fraction": rising[::-1], "sampler_gap_max": [9.0]}) == []
    assert worries({"groups_with_signal": [None, 0.05]})[0].startswith("groups_with_signal 0.05: below 0.1")
    assert health([{"label": "a", "columns": {"loss": [1.0]}}, {"label": "b", "columns": {"ratio": [1.0]}}]) == {
        "b": []
    }


def test_parts_of_a_reward_are_explained_by_their_row() -> None:
    assert about("reward_correct") == "the same of each part. When to worry: one part rises and the others fall."
    assert about("reward_my:own_ok").startswith("share of completions with status ok (rewards).")
    assert about("reward_std") == about("reward") != "" and about("unheard_of") == ""


def test_the_command_lists_every_metric() -> None:
    listed = run(parse(["params", "metrics"]))
    assert all(name in listed for row in METRICS for name in row.names)
