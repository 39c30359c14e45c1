"""What places a page that is printed or sent; the stage's own page has nothing of it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from posttrain.report.build import PAGE, build_report
from posttrain.report.heading import heading
from posttrain.report.results import write_report
from tests.report import workspace

NOW = datetime(2026, 11, 26, 0, 30, tzinfo=UTC)


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True, capture_output=True)


def test_commit_machine_seeds_times_and_changes(finished: Path) -> None:
    assert "<dd>none</dd>" in heading(NOW), "no repository"
    git("init")
    git("add", "params.yaml")
    git("commit", "-m", "first")
    record = {"stage": "online@grpo", "seed": 7, "device": "cpu", "precision": "fp32", "platform": "Linux x86_64"}
    workspace.put_json(finished / "records/online/grpo.json", {**record, "versions": {"torch": "2.13.0"}})
    workspace.put_json(finished / "timings/online/grpo.json", {"stage": "online@grpo", "total": 186.0})
    assert ", clean" in heading(NOW) and "since the commit" not in heading(NOW)
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("beta: 0.02", "beta: 0.04"))
    found = heading(NOW)
    for text in (", changed", "2026-11-26 00:30 UTC", "Linux x86_64 cpu fp32", "<dd>7</dd>", "<dd>2.13.0</dd>"):
        assert text in found
    assert "3.1 min in all (online@grpo 3.1 min" in found
    assert "online.runs.grpo.kl.beta: 0.02 → 0.04" in found


def test_only_a_page_that_is_not_the_stages_has_it(finished: Path) -> None:
    build_report({})
    stage = PAGE.read_bytes()
    assert write_report({}) == f"wrote {PAGE}"
    assert PAGE.read_bytes() == stage and b'id="made"' not in stage
    assert write_report({}, "sent.html") == "wrote sent.html"
    assert b'id="made"' in Path("sent.html").read_bytes() and PAGE.read_bytes() == stage
    write_report({"grpo": "it is running"})
    assert b'id="made"' in PAGE.read_bytes(), "it is not what the stage writes"
