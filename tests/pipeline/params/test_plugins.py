"""Plugins of other distributions: found by name, imported when they are looked up, with errors that name them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from posttrain.algorithms.advantages import ADVANTAGES
from posttrain.algorithms.policy_config import PolicyConfig
from posttrain.algorithms.preference_loss import LOSSES
from posttrain.errors import ParamsError, PluginError
from posttrain.pipeline.checks.editor_schema import editor_schema
from posttrain.pipeline.commands.params.stored import section_text
from posttrain.pipeline.runs.typed import settings_of
from posttrain.rewards.catalog import REWARDS, term
from posttrain.sampling.engines import EngineName
from posttrain.settings.listing import usable
from posttrain.tasks.task import TASKS, load_task
from tests.distributions import install

TASK = "from posttrain.tasks import Task\nSHOUT = Task(turns=3)\nTABLE = {'whisper': Task(turns=2)}\n"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    load_task.cache_clear()


def test_a_task_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"tasks shout": "SHOUT", "tasks whisper": "TABLE"}
    install(monkeypatch, tmp_path, "shout-tasks", points, TASK)
    assert "shout" in TASKS and "shout" in list(TASKS) and "two_step" in TASKS
    assert "shout_tasks" not in sys.modules  # it is imported when a name is looked up, and not before
    assert load_task("shout").turns == 3 and load_task("whisper").turns == 2
    assert TASKS.is_foreign("shout") and not TASKS.is_foreign("two_step") and TASKS.is_foreign("my:own")


def test_a_name_of_the_library_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = TASKS["two_step"]
    install(monkeypatch, tmp_path, "shout-tasks", {"tasks two_step": "SHOUT"}, TASK)
    assert TASKS["two_step"] is before and list(TASKS).count("two_step") == 1 and not TASKS.is_foreign("two_step")


@pytest.mark.parametrize(
    ("text", "variable", "why"),
    [
        ("raise RuntimeError('no disk')", "SHOUT", r"cannot be imported \(RuntimeError: no disk\)"),
        ("import no_such_package", "SHOUT", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("import sys; sys.exit(3)", "SHOUT", r"it calls sys.exit\(3\) at import"),
        ("import os; os._exit(3)", "SHOUT", r"it calls os._exit\(3\) at import"),
        ("SHOUT = 1", "LOUD", "the module broken_tasks has no 'LOUD'"),
        ("SHOUT = 1", "SHOUT", "it is a int, and has to be a Task"),
        ("SHOUT = {}", "SHOUT", "is a mapping without the key 'shout'"),
    ],
)
def test_a_broken_plugin_names_its_distribution(
    text: str, variable: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "broken-tasks", {"tasks shout": variable}, text, version="2.5")
    with pytest.raises(PluginError, match=why) as caught:
        load_task("shout")
    said = "plugin 'shout' of posttrain.tasks: the package broken-tasks 2.5 is broken: "
    assert str(caught.value).startswith(said) and caught.value.code == "plugin"
    assert load_task("two_step") and "shout" not in dict(usable(TASKS)) and "two_step" in dict(usable(TASKS))
    assert "data.tasks.NAME with task two_step" in section_text("data")


def test_two_plugins_with_one_name_are_an_error_of_this_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first-tasks", "second-tasks"):
        install(monkeypatch, tmp_path, name, {"tasks shout": "SHOUT", f"tasks {name}": "SHOUT"}, TASK)
    with pytest.raises(PluginError, match=r"first-tasks 1.0 and second-tasks 1.0 register the same name|second.*first"):
        load_task("shout")
    assert load_task("first-tasks").turns == load_task("second-tasks").turns == 3


def test_a_reward_of_a_plugin_runs_in_worker_processes_as_the_users_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from posttrain.rewards import rule\n"
        "LOUD = rule()(lambda rollout, options: 1.0)\n"
        "def together(rollouts): return [1.0 for _ in rollouts]\n"
        "def wrong(a, b, c): return []\n"
    )
    points = {"rewards loud": "LOUD", "rewards together": "together", "rewards wrong": "wrong"}
    install(monkeypatch, tmp_path, "loud-rewards", points, text)
    assert term("loud", 1.0).reward.isolated is True and term("together", {"weight": 0.5}).reward.isolated is True
    with pytest.raises(ValueError, match=r"loud-rewards 1.0 is broken.*it cannot be called with \(rollouts\)"):
        term("wrong", 1.0)
    assert "correct" in REWARDS and term("correct", 1.0).reward is REWARDS["correct"]


def test_advantages_and_losses_of_plugins_are_choices_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from posttrain.algorithms.advantages import Advantage, per_row\n"
        "from posttrain.algorithms.preference_loss import PairLoss\n"
        "from posttrain.settings.choices import Options\n"
        "ADVANTAGE = Advantage(Options, per_row(lambda rewards, options: rewards.penalised), 'R')\n"
        "LOSS = PairLoss(Options, lambda h, l, options: (l - h).exp(), 'exp(l - h)')\n"
    )
    points = {"algorithms.advantages plain": "ADVANTAGE", "algorithms.losses expo": "LOSS"}
    install(monkeypatch, tmp_path, "expo", points, text)
    assert ADVANTAGES["plain"].formula == "R" and LOSSES["expo"].formula == "exp(l - h)"
    config: Any = PolicyConfig.model_validate({"advantage": "plain"})
    assert config.advantage.type == "plain"
    install(monkeypatch, tmp_path, "broken", {"algorithms.advantages none": "NONE"}, "NONE = 0")
    with pytest.raises(ValueError, match=r"'none' of posttrain.algorithms.advantages: the package broken 1.0"):
        PolicyConfig.model_validate({"advantage": "none"})


def test_an_unknown_name_is_still_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "shout-tasks", {"tasks shout": "SHOUT"}, TASK)
    with pytest.raises(ParamsError, match="Did you mean 'shout'"):
        load_task("shoutt")
    with pytest.raises(KeyError):
        TASKS["nothing"]


def test_an_engine_and_an_evaluator_of_plugins_are_named_in_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from contextlib import contextmanager\n"
        "from posttrain.sampling.engines import Engine\n"
        "from posttrain.pipeline.outside.evaluators import Evaluator, EvaluatorRun\n"
        "class Run(EvaluatorRun):\n"
        "    hard: int = 3\n"
        "ENGINE = Engine(frozenset(), contextmanager(lambda *given: iter([None])))\n"
        "EVALUATOR = Evaluator(Run, lambda run, model, where: ({}, None))\n"
    )
    install(monkeypatch, tmp_path, "two-kinds", {"engines mine": "ENGINE", "evaluators mine": "EVALUATOR"}, text)
    engine: TypeAdapter[str] = TypeAdapter(EngineName)
    assert [engine.validate_python(name) for name in ("mine", "vllm")] == ["mine", "vllm"]
    with pytest.raises(ValueError, match=r"'mime' is unknown\. Did you mean 'mine'"):
        engine.validate_python("mime")
    run = settings_of("evaluate.lm_eval", {"policy": "sft/main", "evaluator": "mine", "hard": 4}, "evaluate.lm_eval.a")
    assert run.hard == 4 and "evaluate.lm_eval.NAME with evaluator mine" in section_text("evaluate")
    with pytest.raises(ParamsError, match=r"evaluate\.lm_eval\.a\.harder: unknown key"):
        settings_of("evaluate.lm_eval", {"policy": "sft/main", "evaluator": "mine", "harder": 4}, "evaluate.lm_eval.a")
    assert '"hard"' in editor_schema()
