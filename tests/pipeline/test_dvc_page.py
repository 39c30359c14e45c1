"""docs/dvc.md, word for word: a clone shares results, another one reads them, and a second project imports a model."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.pipeline.lock.artifacts import with_artifact
from tests.pipeline.commands.test_project import LIBRARY
from tests.workspace import ROOT, environment, git, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
PAGE = (ROOT / "docs/dvc.md").read_text(encoding="utf-8")
PARTS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
IDENTITY = {f"GIT_{role}_{what}": "a@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def blocks(part: str, kind: str = "sh") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PARTS[part], re.DOTALL | re.MULTILINE)


def follow(folder: Path, commands: str, hub: Path) -> str:
    """Run what the page says. Only the addresses are others."""
    text = commands.replace("/mnt/team/dvc", str(hub.parent / "remote")).replace("URL", shlex.quote(str(hub)))
    command = ["bash", "-c", f"set -e\n{text}"]
    done = subprocess.run(command, cwd=folder, env=environment() | LIBRARY | IDENTITY, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def hub(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository and a remote, to which the clone `mine` has pushed results, an experiment and a champion."""
    folder = tmp_path_factory.mktemp("dvc")
    mine, hub = folder / "mine", folder / "hub.git"
    subprocess.run(["cp", "-a", str(smoke_workspace), str(mine)], check=True)
    git(folder, "clone", "--quiet", "--bare", str(mine), str(hub))
    git(mine, "remote", "add", "origin", str(hub))
    graph = mine / "dvc.yaml"
    text = with_artifact(graph.read_text(encoding="utf-8"), "grpo", "models/online/grpo")
    assert text is not None
    graph.write_text(text, encoding="utf-8")
    (share,), (experiment,) = blocks("A remote for two clones"), blocks("Experiments")
    follow(mine, share, hub)
    follow(mine, experiment, hub)
    assert git(mine, "status", "--porcelain") == ""
    follow(mine, "posttrain promote grpo --as champion\ngit push --follow-tags origin HEAD\n", hub)
    return hub


def test_a_colleague_sees_the_same_comparison_and_applies_the_experiment(hub: Path) -> None:
    mine, (block,) = hub.parent / "mine", blocks("A colleague's clone")
    printed = follow(hub.parent, block, hub)
    assert "nothing is stale" in printed and "rounds 5" in printed
    theirs = hub.parent / "project"
    assert "rounds: 5" in (theirs / "params.yaml").read_text()
    for file in ("metrics.json", "rollouts.parquet"):
        assert (theirs / "results/grpo" / file).is_file()
    asked = "posttrain compare HEAD~1 fewer --policy grpo 2> /dev/null\n"
    here = follow(theirs, asked, hub)
    there = follow(mine, asked.replace("HEAD~1", "HEAD"), hub)
    kept = [line.split()[2:6] for line in there.splitlines() if line.startswith("rounds ")]
    assert kept and kept == [line.split()[2:6] for line in here.splitlines() if line.startswith("rounds ")]
    for command in re.findall(r"^\| `(dvc [^`]+)`", PARTS["A colleague's clone"], re.MULTILINE):
        assert follow(theirs, command.replace("HEAD", "HEAD~1"), hub), command


def test_a_queued_experiment_runs(hub: Path) -> None:
    mine, (block,) = hub.parent / "mine", blocks("The queue")
    follow(mine, block, hub)
    end = time.monotonic() + 900
    while "Success" not in (status := run(mine, sys.executable, "-m", "dvc", "queue", "status").stdout):
        assert "Failed" not in status and time.monotonic() < end, status
        time.sleep(3)
    assert "rounds" in follow(mine, "dvc params diff HEAD queued", hub)
    assert "evaluate@grpo" in follow(mine, "dvc queue logs queued", hub)


def test_a_second_project_evaluates_the_imported_model_on_the_imported_prompts(hub: Path) -> None:
    follow(hub.parent, "posttrain init other --recipe eval-only", hub)
    other = hub.parent / "other"
    follow(other, "git add --all && git commit --quiet --message project", hub)
    part = "A model or table in another project"
    bring, use = blocks(part)
    follow(other, bring, hub)
    (settings,) = blocks(part, "yaml")
    (other / "params.yaml").write_text("format: 2\n" + settings, encoding="utf-8")
    printed = follow(other, use, hub)
    assert "theirs: pass@1" in printed
    weights = Path("models/online/grpo/model.safetensors")
    assert (other / "my/models/grpo/model.safetensors").read_bytes() == (hub.parent / "mine" / weights).read_bytes()
    assert "completions" not in git(other, "status", "--porcelain")


def test_the_champion_comes_by_its_name(hub: Path, tmp_path: Path) -> None:
    (block,) = blocks("The best model by name")
    follow(tmp_path, block, hub)
    weights = hub.parent / "mine/models/online/grpo/model.safetensors"
    assert (tmp_path / "champion/model.safetensors").read_bytes() == weights.read_bytes()
