"""What the DVC extension of VS Code asks of DVC, and what a person sees, with an experiment beside the pipeline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.settings.plain import flattened
from tests.workspace import ROOT, dvc, git, make_workspace, run

POLICIES = {"sft", "dpo", "grpo"}


def answer(workspace: Path, *words: str) -> Any:
    """DVC's answer in JSON, which stands on one line; warnings would stand beside it."""
    done = dvc(workspace, *words)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout, done.stdout
    return json.loads(next(line for line in done.stdout.splitlines() if line[:1] in "[{"))


def complaints(data: Any) -> Iterator[Any]:
    """What DVC says of trouble, wherever it stands in an answer."""
    for key, value in data.items() if isinstance(data, dict) else ():
        if key in ("error", "errors") and value:
            yield value
    for inner in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from complaints(inner)


@pytest.fixture
def experimented(own_workspace: Path) -> Path:
    """The finished pipeline, committed, and one experiment called 'short' beside it."""
    git(own_workspace, "add", "--all")
    git(own_workspace, "commit", "--quiet", "--message", "results")
    done = dvc(own_workspace, "exp", "run", "--temp", "-n", "short", "-S", "online.runs.grpo.rollout.rounds=2")
    assert done.returncode == 0, done.stdout
    return own_workspace


@pytest.mark.slow
def test_dvcs_editor_extension_can_read_the_project(experimented: Path) -> None:
    shown = answer(experimented, "exp", "show", "--json")
    assert list(complaints(shown)) == []
    (experiment,) = [group["revs"][0] for group in shown[1]["experiments"]]
    assert experiment["name"] == "short"
    for one in (shown[0], shown[1], experiment):
        metrics = one["data"]["metrics"]
        assert {label: set(metrics[f"results/{label}/headline.json"]["data"]) for label in POLICIES} == {
            label: {label} for label in POLICIES
        }
    assert experiment["data"]["params"]["params.yaml"]["data"]["online"]["runs"]["grpo"]["rollout"]["rounds"] == 2

    drawn = answer(experimented, "plots", "diff", "short", "HEAD", "workspace", "--split", "--json", "-o", ".dvc/tmp/p")
    assert list(complaints(drawn)) == []
    assert {"report/curves.csv", "report/scores.csv"} <= set(drawn["data"])
    bars = drawn["data"]["report/scores.csv"][0]["anchor_definitions"]["<DVC_METRIC_DATA>"]
    headline = json.loads((experimented / "report/headline.json").read_text(encoding="utf-8"))
    expected = {label: score for label, score in headline.items() if "/" not in label}
    assert expected.keys() == {"base", *POLICIES}
    assert {row["policy"]: float(row["score"]) for row in bars if row["rev"] == "workspace"} == expected
    for name, (plot,) in drawn["data"].items():
        anchors = plot["anchor_definitions"]
        assert set(plot["revisions"]) == {"short", "HEAD", "workspace"}, name
        assert {row["rev"] for row in anchors["<DVC_METRIC_DATA>"]} == set(plot["revisions"]), name
        words = [anchors[f"<DVC_METRIC_{part}>"] for part in ("TITLE", "X_LABEL", "Y_LABEL")]
        assert "y" not in words and "" not in words, f"{name} has an axis without a name"
        assert not words[0].endswith((".csv", ".json")), f"{name} has no title but its file's name"

    data = answer(experimented, "data", "status", "--granular", "--unchanged", "--json")
    assert set(data) == {"unchanged"}
    assert {"models/sft/main/model.safetensors", "metrics/sft/main.json"} <= set(data["unchanged"])
    listed = dvc(experimented, "stage", "list").stdout.splitlines()
    assert listed and all(re.match(r"\S+ {2,}\S+", line) for line in listed), "a stage says what it is"
    assert list(answer(experimented, "params", "diff", "short", "--json")["params.yaml"]) == [
        "online.runs.grpo.rollout.rounds"
    ]
    assert answer(experimented, "metrics", "diff", "short", "--json").keys() == {"results/grpo/headline.json"}

    (rule,) = re.findall(r"dvc (exp show --only-changed) --drop '(.*)'$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    table = dvc(experimented, *rule[0].split(), "--drop", rule[1].replace("$$", "$")).stdout
    assert table.splitlines()[1].split() == ["Experiment", "Created", "grpo", "online.runs.grpo.rollout.rounds"]


@pytest.mark.slow
def test_the_table_of_experiments_begins_with_figures_and_settings(tmp_path: Path) -> None:
    """DVC leaves out, without a word, the columns for which 1024 characters are not enough: the last ones."""
    workspace = make_workspace(tmp_path / "fresh", ROOT / "recipes/smoke.yaml")
    header = next(line.split() for line in dvc(workspace, "exp", "show").stdout.splitlines() if "Experiment" in line)
    settings = [key for key, text in flattened(read_yaml(workspace / "params.yaml")).items() if text != "{}"]
    shown = [key for key in header[2:] if key in settings]
    assert len(shown) > 20 and shown == settings[: len(shown)]
    assert header[2 : 2 + len(shown)] == shown, "nothing stands before them where nothing was measured"


@pytest.mark.slow
def test_compare_takes_experiments_models_and_commits(experimented: Path) -> None:
    def compared(*words: str) -> str:
        done = run(experimented, "python", "-m", "posttrain", "compare", *words)
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert re.search(r"(?m)^rounds 2 +1 ", compared("workspace", "short"))
    assert compared("workspace", "short", "--policy", "online/grpo") == compared("workspace", "short")
    assert "HEAD" in compared("HEAD", "workspace", "--policy", "grpo")
