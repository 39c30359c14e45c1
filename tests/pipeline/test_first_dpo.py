"""docs/first-dpo.md, word for word: its blocks are run in their order, in a folder outside the checkout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.commands.test_project import LIBRARY, dvc, posttrain
from tests.workspace import ROOT, environment

pytestmark = [pytest.mark.timeout(1800)]
GUIDE = (ROOT / "docs/first-dpo.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def script(guide: str = GUIDE) -> str:
    """A guide as one script: commands as they are, files written where the text says so."""
    parts = []
    for kind, text in BLOCK.findall(guide):
        file = {"python": "examples.py", "yaml": "params.yaml"}.get(kind)
        if file:
            parts.append(f"cat > {file} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
        elif kind == "sh":
            parts.append(text)
    return "set -e\n" + "".join(parts)


@pytest.mark.slow
def test_the_guide_ends_with_results_of_both_models(tmp_path: Path) -> None:
    person = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "guide")
    person |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "guide@localhost")
    env = environment() | LIBRARY | person
    done = subprocess.run(["bash", "-c", script()], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = (text for kind, text in BLOCK.findall(GUIDE) if kind == "" and text.startswith("setting"))
    shown = done.stdout[done.stdout.index("setting  ") :].splitlines()
    for line, printed in zip(table.splitlines(), shown, strict=False):
        assert line.split()[0] == printed.split()[0]  # the figures are those of one kind of machine
    assert table.splitlines()[0] == shown[0]
    dpo, sft = json.loads(posttrain(tmp_path / "first", "show", "results", "--json").stdout)  # the best first
    assert sft["policy"] == "sft" and dpo["policy"] == "dpo" and dpo["score"] > sft["score"]
    assert "up to date" in dvc(tmp_path / "first", "status").stdout


def test_the_rows_that_the_guide_shows_have_the_columns_of_its_examples(tmp_path: Path) -> None:
    (examples,) = (text for kind, text in BLOCK.findall(GUIDE) if kind == "python")
    subprocess.run([sys.executable, "-c", examples], cwd=tmp_path, check=True)
    shown = [json.loads(text) for kind, text in BLOCK.findall(GUIDE) if kind == "" and text.startswith("{")]
    for row, file in zip(shown, ("demonstrations.jsonl", "pairs.jsonl"), strict=True):
        assert row.keys() == json.loads((tmp_path / file).read_text().splitlines()[0]).keys()
