"""No sentence of `results`, of the page or of the README contradicts `compare`, whatever the completions were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.make.readme import BEGIN, END, write_readme
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.report.build import build_report
from posttrain.pipeline.report.results import results_table
from tests.marks import slow_except
from tests.pipeline.report import workspace
from tests.pipeline.report.test_build import page_data

SAID = re.compile(r"\b(\w+) (gained)")


def random_policy(rng: np.random.Generator, folder: Path, policy: str, skill_P: list[float], *, readable: bool) -> None:
    """Completions that are right as often as the prompt allows this policy, and the figures that they give."""
    rows = workspace.rollouts(policy)
    for row in rows:
        row["reward"] = float(readable and rng.random() < skill_P[int(row["answer"]) - 1])
        row["status"] = "ok" if readable else "unparseable"
    workspace.put_policy(folder, policy, rows)
    by_prompt = [row["reward"] for row in rows if not row["greedy"]]
    score, half = float(np.mean(by_prompt)), 2 * float(np.std(by_prompt)) / len(by_prompt) ** 0.5
    bounds = {"score": score, "pass_at_1": score, "score_low": score - half, "score_high": score + half}
    figures = {**workspace.metrics(policy), **bounds, "parsed": float(readable)}
    workspace.put_json(folder / "results" / policy / "metrics.json", figures)


@pytest.mark.parametrize("seed", slow_except((0,), range(12)))
def test_no_sentence_contradicts_compare(finished: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    difficulty = rng.uniform(0, 1, workspace.PROMPTS)  # shared by all policies: intervals overlap where pairs do not
    for policy in workspace.POLICIES:
        skill = np.clip(difficulty + rng.choice([-0.3, -0.1, 0.0, 0.1, 0.3]) * (policy != "sft"), 0, 1)
        random_policy(rng, finished, policy, list(skill), readable=policy == "sft" or rng.random() < 0.8)
    found = compare(select([], None, "sampled"), against="sft")
    labels = [mean.label for mean in found.means]
    expected = {}
    for pair in found.held_out:
        low, high = pair.finding.low, pair.finding.high
        said = "better (1 seed)" if low > 0 else "worse (1 seed)" if high < 0 else "cannot tell"
        expected[labels[pair.left]] = (said, f"{pair.finding.mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    build_report()
    (finished / "README.md").write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    write_readme({})
    shown: Any = page_data((finished / "report/report.html").read_text(encoding="utf-8"))
    table = results_table({})
    gained = {label: "gained" for label, (said, _) in expected.items() if said.startswith("better")}
    readme = (finished / "README.md").read_text(encoding="utf-8")
    for text in (" ".join(table.split()), "; ".join(shown["gain"]), readme):
        assert dict(SAID.findall(text)) == gained, text
    for label, (said, difference) in expected.items():
        (line,) = [line for line in table.splitlines() if line.startswith(f"{label} ")]
        assert difference in line and f" {said} " in line
        (row,) = [line for line in readme.splitlines() if line.startswith(f"| {label} |")]
        assert f"| {difference} | {said} |" in row
    against = shown["decision"]["against"]["sft"]
    assert {label: row[3] for label, row in against.items()} == {label: said for label, (said, _) in expected.items()}
    order = [line.split()[0] for line in table.splitlines()[2 : 2 + len(workspace.POLICIES)]]
    assert order[: len(found.means)] == labels, "the best first, as compare has them"
