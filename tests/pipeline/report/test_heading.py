"""What places a page that is printed or sent; the stage's own page has nothing of it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from posttrain.pipeline.report.build import PAGE, build_report
from posttrain.pipeline.report.heading import PAGE_SO_FAR, heading
from posttrain.pipeline.report.results import write_report
from tests.pipeline.report import workspace

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
    workspace.put_timings(finished, "online@grpo", 186.0)
    assert ", clean" in heading(NOW) and "since the commit" not in heading(NOW)
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("beta: 0.02", "beta: 0.04"))
    found = heading(NOW)
    for text in (", changed", "2026-11-26 00:30 UTC", "Linux x86_64 cpu fp32", "<dd>7</dd>", "<dd>2.13.0</dd>"):
        assert text in found
    assert "3.1 min in all (online@grpo 3.1 min" in found
    assert "online.runs.grpo.kl.beta: 0.02 → 0.04" in found


def test_seconds_of_another_run_are_not_shown(finished: Path) -> None:
    """`git checkout` and `dvc checkout` bring back the record, but not the timings."""
    workspace.put_json(finished / "records/online/grpo.json", {"stage": "online@grpo", "seed": 7})
    workspace.put_timings(finished, "online@grpo", 186.0)
    assert "3.1 min" in heading(NOW)
    workspace.put_json(finished / "records/online/grpo.json", {"stage": "online@grpo", "seed": 8})
    assert "3.1 min" not in heading(NOW) and "<dd>8</dd>" in heading(NOW)


def test_only_the_stage_writes_the_page_that_dvc_records(finished: Path) -> None:
    """A page of a failed run in its place would be damage for `posttrain status`, which nothing can repair."""
    build_report()
    stage = {file: file.read_bytes() for file in Path("report").iterdir()}
    assert b'id="made"' not in stage[PAGE]
    for not_current in ({}, {"grpo": "it is running"}):
        assert write_report(not_current).splitlines()[0] == f"wrote {PAGE_SO_FAR}"
        assert b'id="made"' in Path(PAGE_SO_FAR).read_bytes()
    assert write_report({}, "sent.html") == "wrote sent.html"
    assert b'id="made"' in Path("sent.html").read_bytes()
    assert {file: file.read_bytes() for file in Path("report").iterdir()} == stage
