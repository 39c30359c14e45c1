"""The stored description of all settings: current, read without torch, and made again for other plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.make.settings import text
from posttrain.errors import ParamsError
from posttrain.pipeline.commands.params.stored import FILE, algorithm_text, names, plugins, section_text, stored
from tests.distributions import install
from tests.workspace import environment

TASK = """
from posttrain.tasks import Task, Params, Generator

class Loud(Params):
    loudness: int = 3

SHOUT = Task(Generator(Loud, ("prompts",), lambda params: {}))
"""
WITHOUT_TORCH = """
import sys
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.commands.params import run
for words in (["online"], ["grpo"], ["algorithms"], []):
    assert run(parse(["params", *words]))
print("imported:", [name for name in ("torch", "transformers", "pandera") if name in sys.modules])
"""


def test_the_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run: python -m docs.make.settings"


def test_settings_are_described_without_torch(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_sections_and_algorithms() -> None:
    whole, sft = section_text(None), section_text("sft")
    assert whole.startswith("the top level\n  seed  int (default 0)") and sft in whole
    assert sft.startswith("sft.runs.NAME\n  ") and "the top level" not in sft
    assert "options of the reward" in section_text("online") and "options of the reward" not in sft
    with pytest.raises(ParamsError, match="no section 'stf'"):
        section_text("stf")
    assert algorithm_text("grpo").startswith("grpo: ") and "grpo" in algorithm_text(None)
    with pytest.raises(ParamsError, match="no algorithm 'gpro'"):
        algorithm_text("gpro")
    assert {"sft", "online", "grpo", "dpo", "reward"} <= set(names())


def test_another_plugin_is_described_at_its_first_use_and_after_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".dvc/tmp").mkdir(parents=True)
    assert stored()["plugins"] == plugins()
    site = install(monkeypatch, tmp_path, "loud-tasks", {"tasks shout": "SHOUT"}, TASK)
    assert "loudness: int = 3" in section_text("data")
    file = Path(".dvc/tmp/parsed/settings.json")
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert any("loud-tasks 1.0 sha256:" in plugin for plugin in kept["data"]["plugins"])
    kept["data"]["overview"] = "read from the file"
    file.write_text(json.dumps(kept), encoding="utf-8")
    assert algorithm_text(None) == "read from the file"
    (site / "loud_tasks.py").write_text(f"{TASK}# changed\n", encoding="utf-8")
    assert algorithm_text(None) != "read from the file"
