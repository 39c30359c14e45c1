"""docs/first-lora.md, word for word: its blocks are run in their order, in a folder outside the checkout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.pipeline.commands.test_project import LIBRARY
from tests.pipeline.test_first_dpo import BLOCK, script
from tests.workspace import ROOT, environment

GUIDE = (ROOT / "docs/first-lora.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_guide_ends_with_the_better_learning_rate(tmp_path: Path) -> None:
    person = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "guide")
    person |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "guide@localhost")
    env = environment() | LIBRARY | person
    done = subprocess.run(["bash", "-c", script(GUIDE)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = (text.strip() for kind, text in BLOCK.findall(GUIDE) if kind == "" and text.startswith("Best"))
    assert said in done.stdout, done.stdout[-3000:]
    page = (tmp_path / "lora" / "lr.html").read_text()
    assert re.findall(r'<th scope="row"[^>]*>([^<]*)<', page) == ["0.01", "0.001", "sft.runs.main.optimizer.lr"]
