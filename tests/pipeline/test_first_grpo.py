"""docs/first-grpo.md, word for word: its blocks are followed in their order, in a folder outside the checkout."""

from __future__ import annotations

import csv
import re
import subprocess
from pathlib import Path

import pytest

from tests.pipeline.commands.test_project import LIBRARY
from tests.workspace import ROOT, environment

pytestmark = [pytest.mark.timeout(1800)]
GUIDE = (ROOT / "docs/first-grpo.md").read_text(encoding="utf-8").split("## 6.")[0]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TIME = re.compile(r"(; slowest row \d+ \(| +)[\d.]+ m?s\b")


class Reader:
    """Somebody who does what the guide says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.printed, self.status = folder, "", 0

    def follow(self, text: str) -> None:
        """Do what a part of the guide says."""
        for kind, block in BLOCK.findall(text):
            if kind == "sh":
                self.run(block)
            elif kind == "python":
                self.write_code(self.folder / "custom/working.py", block)
            elif kind == "yaml":
                self.replace("params.yaml", "        rewards:brief: 0.05\n", block)
            elif block.startswith("{"):
                (self.folder / "my/data/tried.jsonl").write_text(block)
            elif block.startswith("setting"):
                assert block.splitlines()[0] in self.printed  # the figures are those of one kind of machine
            else:
                assert TIME.sub("", block) == TIME.sub("", self.printed)

    def run(self, commands: str) -> None:
        env = environment() | LIBRARY
        whole = f"set -e\n{commands}pwd > {self.folder.parent / 'cwd'}\n"
        done = subprocess.run(["bash", "-c", whole], cwd=self.folder, env=env, capture_output=True, text=True)
        self.printed, self.status = done.stdout + done.stderr, done.returncode
        if done.returncode == 0:
            self.folder = Path((self.folder.parent / "cwd").read_text().strip())

    def write_code(self, file: Path, block: str) -> None:
        if block.startswith("def holds"):
            head, _, _ = file.read_text().partition("def holds")
            block = head + block
        file.write_text(block)

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert text.count(old) == 1
        (self.folder / name).write_text(text.replace(old, new))


@pytest.mark.slow
def test_the_guide_ends_with_a_policy_that_was_trained_with_the_reward(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    broken, rest = GUIDE.split("Row 3 divides by 0")
    reader.follow(broken)
    assert reader.status == 1, "the first version fails"
    fixed, training = rest.split("## 4.")
    reader.follow(fixed)
    assert reader.status == 0, reader.printed
    train, look = training.split("## 5.")
    reader.follow(train)
    assert reader.status == 0 and "grpo" in reader.printed, reader.printed
    reader.follow(look)
    assert reader.status == 0 and "5 rows: " in reader.printed, reader.printed
    with (reader.folder / "plots/online/grpo.csv").open() as file:
        rewards = [float(row["reward_working:true_equations"]) for row in csv.DictReader(file)]
    assert rewards[-1] > rewards[0]
