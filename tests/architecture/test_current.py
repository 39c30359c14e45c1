"""What is written down from a run is that of the code as it is: dvc.lock, and the README's results."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from docs.make.readme import PROCESSOR, SUMMARY, is_of_this_processor, picture_is_current, readme_is_current
from tests.architecture.sources import ROOT


def test_the_lock_file_is_that_of_this_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "status", "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = listed.splitlines()
    made = ("data", "models/", "results", "metrics", "plots")
    changed = [
        f"{stage}: {what}"
        for stage, reasons in json.loads(done.stdout[done.stdout.index("{") :]).items()
        for reason in reasons
        if isinstance(reason, dict)
        for kind in ("changed deps", "changed outs")
        for what, state in reason.get(kind, {}).items()
        if isinstance(state, dict) or state in ("modified", "new")  # a dict: of settings
        if what in tracked or (kind == "changed deps" and not what.startswith(made))
    ]
    assert not changed, "run `dvc repro` and `python -m docs.make.readme`, then commit: " + "; ".join(changed)


def test_the_readme_shows_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ran = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", SUMMARY], check=False).returncode
    if ran and not is_of_this_processor():
        pytest.skip(f"the pipeline ran here, and another processor made the committed results ({PROCESSOR})")
    assert readme_is_current(), "run `python -m docs.make.readme`"
    assert picture_is_current(), "the picture is of other results: run `python -m docs.make.readme`"
