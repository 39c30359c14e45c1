"""Commands of plugins, and broken plugins next to commands that do not need them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.commands.line import overview, parse, run
from posttrain.pipeline.commands.plugins import say_gone
from posttrain.pipeline.lock.plugin_check import check_plugins, missing_in_records, plugin_lines
from posttrain.pipeline.track.tracker import TRACKERS
from posttrain.settings import plugins
from posttrain.settings.listing import looked_up
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
    line = "names the package gone-reward 1.2 with a plugin, which is not installed. "
    line += "Install it: python -m pip install gone-reward==1.2"
    assert missing_in_records() == f"records/online/grpo.json {line}"
    with pytest.raises(PipelineError, match=r"code/online/grpo\.json: it names the package gone-reward"):
        check_plugins()
    with pytest.raises(PipelineError, match=r"pip install gone-reward==1\.2, or remove its names from params\.yaml"):
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
