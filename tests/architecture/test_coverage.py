"""The page on coverage names recipes, rows and settings that exist, and is the one that its program writes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from docs.make.coverage import ITEMS, PAGE, page
from flows.sweep_config import placed
from posttrain.pipeline.checks.params_schema import check_params
from posttrain.pipeline.commands.params.describe import FAMILIES
from posttrain.settings.plain import merge
from tests.architecture.sources import ROOT

ON = {"start": "sft/main", "data": "two_step/prompts", "corpus": "none", "reward_model": "none"}
BY = {**ON, "reward_model": "reward/main", "reward": {"model": 1.0}}
TAUGHT = {"start": "sft/main", "data": "two_step/prompts", "demonstrations": "none", "reward_model": "none"}
PAIRED = {"start": "sft/main", "data": "compared/pairs"}
SAMPLED = {"policy": "sft/main", "data": "two_step/prompts", "reward_model": "none"}
MUON = {"matrices": "muon", "average": 0.2}
BASE = {
    "data": {"tasks": {"two_step": {"task": "two_step"}}, "samples": {"compared": SAMPLED}},
    "base": {"scratch": {"tiny": {"data": "two_step/corpus"}}},
    "sft": {"runs": {"main": {"start": "base/tiny", "data": "two_step/chat"}}},
    "reward": {"runs": {"main": {**PAIRED, "feedback": "none", "demonstrations": "none"}}},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "a context that only the teacher has, for all rows or of each row": {
        f"distill.runs.{name}": {**TAUGHT, "algorithm": "context_distill", "teacher": "sft/main", "context": text}
        for name, text in {"all": "Show each step.", "each": "The answer is {answer}."}.items()
    },
    "a served teacher of another tokenizer": {
        "online.runs.a": {
            **ON, "algorithm": "rloo", "kl": "none",
            "reward": {"likelihood": {"url": "http://127.0.0.1:8000/v1", "model": "m", "key": "TEACHER_KEY"}},
        }
    },
    "rows chosen by a reward": {
        "data.samples.best": {**SAMPLED, "tables": ["chat"], "min_score": 1.0},
        "data.samples.some": {**SAMPLED, "tables": ["prompts"], "samples": 8, "pass_rate": [0.1, 0.9]},
    },
    "a reference that is renewed or averaged (ProRL, TR-DPO, Nash-EMA)": {
        "online.runs.a": {**ON, "algorithm": "grpo", "renew_reference": {"every": 20, "keep": 0.9}},
        "preference.runs.a": {**PAIRED, "algorithm": "dpo", "parts": 2},
    },
    "a critic from a reward model, with its own lambda, learning alone at first": {
        "online.runs.a": {
            **BY, "algorithm": "ppo", "critic": "reward_model", "advantage": {"value_lam": 1.0},
            "optimizer": {"critic_first": 0.1},
        }
    },
    "a reward model that starts from another": {
        "reward.runs.a": {**BASE["reward"]["runs"]["main"], "start": "reward/main"}
    },
    "schedules of beta and clip edges": {
        "online.runs.a": {
            **ON, "algorithm": "grpo", "kl": {"beta": 0.02, "end": 0.0, "steps": 200},
            "surrogate": {"low_end": 0.1, "high_end": 0.2, "steps": 200},
        }
    },
    "prompts drawn by pass rate": {"online.runs.a": {**ON, "algorithm": "grpo", "rollout": {"pass_rates": {}}}},
    "a table of labelled steps (PRM800K), labels by Monte-Carlo": {
        "data.samples.steps": {**SAMPLED, "tables": ["feedback"], "steps": {"continuations": 4}},
    },
    "top-entropy tokens": {"online.runs.a": {**ON, "algorithm": "top_entropy"}},
    "preferences as distributions (AOT), pairwise PPO (P3O)": {
        "online.runs.a": {**ON, "algorithm": "p3o"},
        "preference.runs.a": {**PAIRED, "algorithm": "aot"},
        "preference.runs.b": {**PAIRED, "algorithm": "aot_unpaired"},
    },
    "Muon, rsLoRA, a mean of the weights": {
        "sft.runs.a": {"start": "base/tiny", "data": "two_step/chat", "optimizer": MUON},
        "sft.runs.b": {
            "start": "base/tiny", "data": "two_step/chat", "adapter": {"type": "lora", "rslora": True},
        },
    },
    "a system turn and examples (URIAL)": {
        "evaluate.runs.shots": {
            "policy": "sft/main", "data": "two_step/prompts", "reference": "none", "reward_model": "none",
            "context": [{"role": "system", "content": "Show your working."}],
        }
    },
}  # fmt: skip
"""What the page says of settings -> runs that have them."""
COMMANDS = {"in-context scoring (ICDPO)", "the shift of tokens between two policies"}
"""Lines that are of a metric or a command."""
WHERE = [where for items in ITEMS.values() for where in items.values()]


def named(kind: str) -> set[str]:
    """The names in backquotes after a word, or in a list after its plural."""
    lists = [found for where in WHERE for found in re.findall(rf"\b{kind}s? ((?:`[\w.]+`(?:, )?)+)", where)]
    return {name for some in lists for name in re.findall(r"`([\w.]+)`", some)}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.make.coverage"


def test_recipes_rows_and_settings_exist() -> None:
    recipes, rows, settings = named("recipe"), named("row"), named("setting")
    assert len(recipes) > 8 and len(rows) > 3 and len(settings) > 6
    assert all((ROOT / f"recipes/{name}.yaml").is_file() for name in recipes)
    assert rows <= {name for family in FAMILIES for name in family.rows}
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "posttrain").rglob("*.py"))
    last = {setting.split(".")[-1] for setting in settings}
    assert all(re.search(rf"^    {name}: .* = ", sources, re.MULTILINE) for name in last)


def lines() -> list[str]:
    """The lines that name something of params.yaml."""
    apart = {"Rows that stay out", "Small models of other kinds"}
    return [what for heading, items in ITEMS.items() if heading not in apart for what in items if what not in COMMANDS]


@pytest.mark.parametrize("what", lines())
def test_what_the_page_says_passes_the_check(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("recipes", "custom"):
        shutil.copytree(ROOT / name, name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    where = next(items[what] for items in ITEMS.values() if what in items)
    recipes = re.findall(r"recipe `(\w+)`", where)
    assert recipes or what in SETTINGS, "give it a run in SETTINGS"
    for recipe in recipes:
        Path("params.yaml").write_text((ROOT / f"recipes/{recipe}.yaml").read_text(encoding="utf-8"), encoding="utf-8")
        assert " runs are right" in check_params()
    settings: dict[str, Any] = {"format": 2, **BASE}
    for key, run in SETTINGS.get(what, {}).items():
        settings = merge(settings, placed({}, key, run))
    Path("params.yaml").write_text(json.dumps(settings), encoding="utf-8")
    assert " runs are right" in check_params()


def test_rows_that_stay_out_are_not_rows() -> None:
    rows = {name for family in FAMILIES for name in family.rows}
    assert not rows & {"discopop", "unlikelihood", "rrhf"}
