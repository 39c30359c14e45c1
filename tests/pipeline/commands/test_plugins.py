"""Commands of plugins, and broken plugins next to commands that do not need them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from posttrain.algorithms.policy_config import PolicyConfig
from posttrain.algorithms.preference_config import PreferenceConfig
from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.commands.line import overview, parse, run
from posttrain.pipeline.commands.plugins import say_gone
from posttrain.pipeline.commands.push.exporters import EXPORTERS
from posttrain.pipeline.lock.plugin_check import check_plugins, lacks_plugins, missing_in_records, plugin_lines
from posttrain.pipeline.lock.reasons import code_changes
from posttrain.pipeline.outside.evaluators import EVALUATORS
from posttrain.pipeline.runs.readers import Format
from posttrain.pipeline.runs.task_tables import generator_of
from posttrain.pipeline.track.tracker import TRACKERS
from posttrain.rewards.catalog import term
from posttrain.sampling.engines import EngineName
from posttrain.settings import plugins
from posttrain.settings.listing import looked_up
from posttrain.tasks.task import load_task
from tests.distributions import install
from tests.workspace import ROOT, environment

HELLO = """
from types import SimpleNamespace

def add_arguments(parser):
    parser.add_argument("--to", default="you", help="whom to greet")

def run(arguments):
    return f"hello {arguments.to}"

HELLO = SimpleNamespace(DOES="greet somebody", EXAMPLE="--to me", add_arguments=add_arguments, run=run)
"""
GONE = '{"files": {}, "packages": {"python": "3.11.7", "gone-reward": "1.2 sha256:0123456789abcdef"}}'


def test_a_command_and_an_action_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"commands hello": "HELLO", "commands show.hello": "HELLO", "commands check": "HELLO"}
    install(monkeypatch, tmp_path, "hello-plugin", points, HELLO)
    assert "of plugins:\n  hello" in overview() and "hello-plugin 1.0" in overview()
    assert run(parse(["hello", "--to", "all"])) == "hello all"
    assert run(parse(["show", "hello"])) == "hello you"
    assert parse(["check"]).command == "check" and not hasattr(parse(["check"]), "to"), "ours wins"


def test_a_broken_plugin_stops_only_its_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"commands hello": "HELLO", "rewards correct": "A", "rewards loud": "A", "trackers loud": "A"}
    site = install(monkeypatch, tmp_path, "broken-plugin", points, "raise RuntimeError('no licence')")

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(), "PYTHONPATH": f"{site}:{ROOT}"}
        words = (sys.executable, "-m", "posttrain", *words)
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    broken = command("hello")
    said = "plugin 'hello' of posttrain.commands: the package broken-plugin 1.0 is broken"
    assert broken.returncode == 1 and said in broken.stderr and "Traceback" not in broken.stderr
    assert command("show", "--help").returncode == 0
    assert "no licence" in command("track", "--to", "loud").stderr
    shown = command("params")
    assert shown.returncode == 0 and "options of the reward regex" in shown.stdout, shown.stderr
    assert "plugins of broken-plugin 1.0: rewards correct, rewards loud" in shown.stdout
    assert "'correct' of posttrain.rewards of broken-plugin is not used: posttrain has this name" in shown.stdout


def test_two_packages_with_one_name_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first-hello", "second-hello"):
        install(monkeypatch, tmp_path, name, {"trackers hello": "HELLO"}, HELLO)
    [first, note, second, again] = plugin_lines()
    assert first == "plugins of first-hello 1.0: trackers hello" and second.startswith("plugins of second-hello 1.0")
    assert note == again and "first-hello 1.0 and second-hello 1.0 register the same name" in note


def test_a_package_that_code_or_a_record_names_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_plugins()
    assert missing_in_records() == ""
    for folder, text in (("code", GONE), ("records", f'{{"stage": "online@grpo", "code": {GONE}}}')):
        Path(folder, "online").mkdir(parents=True)
        Path(folder, "online/grpo.json").write_text(text, encoding="utf-8")
    line = "uses a plugin of the package gone-reward 1.2, which is not installed. "
    line += "Install it: python -m pip install gone-reward==1.2"
    assert missing_in_records() == f"records/online/grpo.json {line}"
    with pytest.raises(PipelineError, match=r"code/online/grpo\.json: it uses a plugin of the package gone-reward"):
        check_plugins()
    with pytest.raises(PipelineError, match=r"pip install gone-reward==1\.2, or remove the plugin from params\.yaml"):
        check_plugins("online@grpo")
    check_plugins("sft@main")


def test_a_registered_plugin_that_is_gone_is_one_line_and_stops_only_its_users(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = {"posttrain.trackers": {"lost": "posttrain.plugins.lost.tracker:LOST"}}
    monkeypatch.setattr(plugins, "_of_checkout", lambda: ours)
    monkeypatch.setattr(plugins, "_all", cache(plugins._all.__wrapped__))
    say_gone()
    said = capsys.readouterr().err
    assert said == "note: registered plugins are gone, and all else works: trackers lost\n"
    assert "lost" not in TRACKERS and list(TRACKERS) == []
    with pytest.raises(ParamsError, match=r"plugin 'lost' of .* is gone\. Restore posttrain/plugins/lost"):
        looked_up(TRACKERS, "lost", "posttrain track --to")


RUNS = """
format: 2
data: {{tasks: {{two_step: {{task: two_step}}}}}}
base: {{scratch: {{tiny: {{data: two_step/corpus}}}}}}
online:
  runs:
    grpo: {{algorithm: grpo, start: base/tiny, data: two_step/prompts, corpus: none, reward_model: none,
           reward: {{{reward}: 1.0}}}}
evaluate:
  settings: {{data: two_step/prompts, reference: none, reward_model: none, reward: {{{score}: 1.0}}, metrics: []}}
  policies: {{start: base/tiny}}
"""


@pytest.mark.parametrize(
    ("reward", "score", "where"),
    [
        ("gone", "correct", "online.runs.grpo"),
        ("correct", "gone", "evaluate.policies.start"),
        ("correct", "correct", ""),
    ],
)
def test_the_stage_code_keeps_a_missing_package_as_long_as_a_run_names_it(
    tmp_path: Path, reward: str, score: str, where: str
) -> None:
    (tmp_path / "params.yaml").write_text(RUNS.format(reward=reward, score=score), encoding="utf-8")
    for file in ("online/grpo.json", "evaluate/start.json"):
        (tmp_path / "code" / file).parent.mkdir(parents=True)
        (tmp_path / "code" / file).write_text(GONE, encoding="utf-8")
    command = [sys.executable, "-m", "stages.code"]
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    if where:
        assert done.returncode == 1 and "Traceback" not in done.stderr
        line = f"{where} cannot be read, because the package gone-reward 1.2, whose plugin it used, is not installed: "
        assert line in done.stderr
        assert (
            "unknown reward 'gone'" in done.stderr
            and "pip install gone-reward==1.2, or remove the plugin" in done.stderr
        )
        assert (tmp_path / "code/online/grpo.json").read_text(encoding="utf-8") == GONE
    else:
        assert done.returncode == 0, done.stderr
        line = "note: code/online/grpo.json no longer names the package gone-reward 1.2: no setting needs it"
        assert done.stderr.splitlines() == [line]
        assert "gone-reward" not in (tmp_path / "code/online/grpo.json").read_text(encoding="utf-8")


def test_a_stale_run_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `posttrain status` prints it."""
    monkeypatch.chdir(tmp_path)
    Path("records/online").mkdir(parents=True)
    record = {"stage": "online@grpo", "code": json.loads(GONE)}
    Path("records/online/grpo.json").write_text(json.dumps(record), encoding="utf-8")
    now = {"files": {}, "packages": {"python": "3.12.1"}}
    said = (
        "gone-reward 1.2, a package with a plugin, is not installed. Install it: python -m pip install gone-reward==1.2"
    )
    assert code_changes("online@grpo", now) == [said, "python 3.11.7 -> 3.12.1"]


def test_a_package_whose_module_is_gone_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its description is left, so nothing registers the name any more."""
    site = install(monkeypatch, tmp_path, "gone-reward", {"rewards gone": "GONE"}, "GONE = 1")
    (site / "gone_reward.py").unlink()
    monkeypatch.chdir(tmp_path)
    Path("code/online").mkdir(parents=True)
    Path("code/online/grpo.json").write_text(GONE, encoding="utf-8")
    with pytest.raises(PipelineError, match=r"python -m pip install --force-reinstall gone-reward==1\.2"):
        check_plugins("online@grpo")
    assert lacks_plugins()


HINT = r"If a package registers the name, install it \(docs/plugins\.md\)"


def test_an_unknown_name_may_be_that_of_a_package() -> None:
    for call in (
        lambda: term("no_such", 1.0),
        lambda: load_task("no_such"),
        lambda: generator_of("no_such", {}, "data.tasks.a"),
        lambda: looked_up(TRACKERS, "no_such", "posttrain track --to"),
        lambda: looked_up(EVALUATORS, "no_such", "evaluator"),
        lambda: looked_up(EXPORTERS, "no_such", "posttrain push"),
        lambda: TypeAdapter(EngineName).validate_python("no_such"),
        lambda: PolicyConfig.model_validate({"advantage": "no_such"}),
        lambda: PolicyConfig.model_validate({"surrogate": "no_such"}),
        lambda: PreferenceConfig.model_validate({"loss": "no_such"}),
        lambda: TypeAdapter(Format).validate_python("no_such"),
        lambda: parse(["no_such"]),
    ):
        with pytest.raises(ValueError, match=HINT):
            call()
