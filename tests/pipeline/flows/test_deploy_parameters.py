"""What the command line of a deployment runs; wrong settings are refused before any server is asked."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from flows.deploy import parser
from flows.deploy_parameters import deployed
from posttrain.errors import PosttrainError
from tests.pipeline.flows.small import BETA, DVC_YAML, MINE, OWN


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = "[core]\n    no_scm = true\n    analytics = false\n"
    files = {"params.yaml": OWN, "custom/mine.py": MINE, "dvc.yaml": DVC_YAML, ".dvc/config": config}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def options(*words: str) -> Namespace:
    return parser().parse_args(["serve", *words])


def test_a_deployment_runs_stages_an_experiment_or_a_sweep() -> None:
    assert deployed(options("online")) == ("pipeline", {"targets": ["online"]})
    env = {"A_KEY": "secret/a"}
    found = deployed(options("-S", f"{BETA}=0.5", "-S", "online.runs.a.seed=3", "--env", "A_KEY=secret/a"))
    assert found == ("pipeline", {"targets": [], "env": env, "set": {BETA: 0.5, "online.runs.a.seed": 3}})
    words = ("online", "--sweep", "kl", "-S", f"{BETA}=0.5,0.1", "--seeds", "1,2", "--jobs", "2")
    flow, parameters = deployed(options(*words))
    assert flow == "sweep" and parameters == {
        "name": "kl", "targets": ["online"], "set": {BETA: [0.5, 0.1]}, "seeds": [1, 2], "jobs": 2,
    }  # fmt: skip


def test_a_sweep_of_a_file_is_read_again_by_each_run() -> None:
    Path("sweeps").mkdir()
    Path("sweeps/kl.yaml").write_text(f"grid: {{{BETA}: [0.1]}}\n")
    assert deployed(options("--sweep", "kl")) == ("sweep", {"name": "kl", "targets": []})
    Path("sweeps/kl.yaml").write_text(f"grid: {{{BETA}x: [0.1]}}\n")
    with pytest.raises(PosttrainError, match="unknown key"):
        deployed(options("--sweep", "kl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-S", f"{BETA}x=1"], "unknown key. Did you mean 'beta'"),
        (["-S", "online.runs.b.kl.beta=1"], "is not a setting of a run of params.yaml"),
        (["-S", f"{BETA}=[1"], "not valid YAML"),
        (["-S", "kl.beta=1"], "'kl.beta' is not a setting of params.yaml. Did you mean 'online.runs.a.kl.beta'?"),
        (["-S", "nope.x=1"], "'nope.x' is not a setting of params.yaml. Write the whole key"),
        (["-S", f"{BETA}=0.1,0.2"], f"For several values of {BETA} add --sweep NAME"),
        (["-S", "beta"], "'beta' is not NAME=VALUE"),
        (["--sweep", "k-l"], "is not a valid name for a sweep"),
        (["--sweep", "none"], "sweeps/none.yaml: file not found"),
        (["--seeds", "1"], "--seeds needs --sweep"),
        (["-S", f"{BETA}=0.1", "-S", f"{BETA}=0.2"], "'online.runs.a.kl.beta' is given twice"),
        (["onlin"], "onlin"),
        (["--name", "a/b"], "'a/b' is not a valid name for a deployment"),
        (["--name", " "], "is not a valid name for a deployment"),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(PosttrainError, match=said):
        deployed(options(*words))
