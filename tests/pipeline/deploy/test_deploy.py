"""The files of deploy/, each read by its own linter; `make test-deploy` installs these."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dvc.schema import COMPILED_MULTI_STAGE_SCHEMA
from ruamel.yaml import YAML

from tests.workspace import ROOT

DEPLOY = ROOT / "deploy"
LINTERS = Path(os.environ.get("POSTTRAIN_LINTERS", ROOT / ".venv-deploy/bin"))


def loaded(name: str) -> Any:
    return YAML(typ="safe").load((ROOT / name).read_text(encoding="utf-8"))


def scripts() -> dict[str, str]:
    """Return every shell text of deploy/."""
    sky = loaded("deploy/skypilot.yaml")
    found = {f"skypilot.yaml {part}": "#!/bin/bash\n" + sky[part] for part in ("setup", "run")}
    return {"slurm.sh": (DEPLOY / "slurm.sh").read_text(encoding="utf-8"), **found}


def lint(name: str, *words: str, given: str | None = None) -> None:
    program = LINTERS / name
    if not program.exists():
        pytest.skip(f"{name} is not installed: make test-deploy")
    done = subprocess.run([program, *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", scripts())
def test_shell_texts(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=scripts()[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lint("shellcheck", "-", given=scripts()[name])


def test_the_dockerfile_copies_no_environment_of_the_host() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".venv*", ".dvc/cache"} <= set(ignored)
    lint("hadolint", str(DEPLOY / "Dockerfile"))


@pytest.mark.parametrize("kind", ["Master", "Worker"])
def test_each_pod_of_the_job_is_a_pod(kind: str, tmp_path: Path) -> None:
    """The operator's own schema is not on PyPI: its keys are those of its documentation."""
    job = loaded("deploy/kubernetes.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert job["spec"].keys() == {"pytorchReplicaSpecs"} and job["spec"]["pytorchReplicaSpecs"].keys() == {
        "Master",
        "Worker",
    }
    replica = job["spec"]["pytorchReplicaSpecs"][kind]
    assert replica.keys() == {"replicas", "restartPolicy", "template"}
    assert replica["template"]["spec"]["containers"][0]["name"] == "pytorch", "the operator finds the container by it"
    command = replica["template"]["spec"]["containers"][0]["command"]
    assert (ROOT / f"{command[2].replace('.', '/')}.py").is_file()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "posttrain"}, **replica["template"]}
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod), encoding="utf-8")
    lint("kubernetes-validate", "--strict", str(file))


def test_what_a_container_runs_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    commands = [container["postCreateCommand"], loaded("deploy/skypilot.yaml")["setup"].strip()]
    assert all(command.split()[0] == "make" and command.split()[1] in targets for command in commands)
    assert loaded("deploy/skypilot.yaml").keys() == {"name", "workdir", "resources", "envs", "setup", "run"}


def test_the_graph_passes_the_schema_of_dvc() -> None:
    COMPILED_MULTI_STAGE_SCHEMA(loaded("dvc.yaml"))
