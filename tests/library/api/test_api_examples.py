"""Every name on docs/reference/api.md has an example, and all of them run in the order of the page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.algorithms.preference_loss import BetaOptions
from posttrain.rewards import Context, NoOptions, Rollout
from posttrain.rewards.reward import ScoreFn
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT

PAGE = ROOT / "docs/reference/api.md"
ENTRY = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
IN_DOCSTRING = re.compile(r"^Example: `([^`]+)`$", re.MULTILINE)
BLOCK = re.compile(r"^Example:\n\n```python\n(.*?)```$", re.MULTILINE | re.DOTALL)
LAST = {"fix_numerics"}
"""Names whose example needs a process in which torch is not imported; tests/library/api/test_numerics.py has it."""


def examples() -> list[tuple[str, list[str]]]:
    """Return each name of the page with its examples."""
    text = PAGE.read_text(encoding="utf-8")
    return [(name, [*IN_DOCSTRING.findall(said), *BLOCK.findall(said)]) for name, said in ENTRY.findall(text)]


def reward(rollouts: Sequence[Rollout]) -> list[float]:
    return [float(len(rollout.text)) for rollout in rollouts]


def known(folder: Path) -> dict[str, Any]:
    """Return what the page takes for granted."""
    model, tokenizer = posttrain.load_model(folder)
    student, _ = posttrain.load_model(folder)
    asked = [{"prompt": f"{number}+1", "answer": str(number + 1)} for number in range(4)]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": "no"} for row in asked]
    rows = [{"prompt": row["prompt"], "completion": row["answer"]} for row in asked]
    values: dict[str, Any] = {name: getattr(posttrain, name) for name in posttrain.__all__}
    values |= {name: getattr(posttrain.losses, name) for name in posttrain.losses.__all__}
    values |= {name: getattr(posttrain.rewards, name) for name in posttrain.rewards.__all__}
    values |= {name: getattr(posttrain.tasks, name) for name in posttrain.tasks.__all__}
    values |= {"posttrain": posttrain, "torch": torch, "Path": Path, "Sequence": Sequence, "BetaOptions": BetaOptions}
    values |= {"logsigmoid": torch.nn.functional.logsigmoid, "ScoreFn": ScoreFn, "Any": Any}
    values |= {"Context": Context, "NoOptions": NoOptions, "reward": reward}
    values |= {"model": model, "tokenizer": tokenizer, "student": student, "prompts": asked}
    return {**values, "rows": rows, "pairs": pairs}


def test_every_name_has_an_example() -> None:
    found = examples()
    assert len(found) >= 60
    assert [name for name, some in found if not some] == []


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model of two layers in place of each folder that they name."""
    monkeypatch.chdir(tmp_path)
    start = tiny_folder(tmp_path / "tiny", seed=1)
    for place in ("models/sft/main", "models/large", "models/reward/main"):
        shutil.copytree(start, place)
    values = known(Path("models/sft/main"))
    settings = {"rollout": {"rounds": 2, "prompts": 2, "group_size": 4, "sampling": {"max_tokens": 8}}}
    posttrain.train_online(
        values["model"], values["tokenizer"], values["prompts"], reward, settings=settings, output="out"
    )
    for name, some in examples():
        for source in some if name not in LAST else []:
            try:
                exec(compile(source, f"<example of {name}>", "exec"), values)
            except Exception as error:
                raise AssertionError(f"the example of {name} fails: {error!r}\n{source}") from error
