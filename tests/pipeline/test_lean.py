"""What a stage brings into its process, and what watching one changes: as little as can be, and nothing."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from tests.marks import slow_except
from tests.workspace import git, run

AVOIDED = (
    {"datasets", "prefect", "trl", "peft"}  # big, and for other work than a stage's
    | {"sklearn", "scipy", "matplotlib", "torchvision", "torchaudio", "tensorflow", "jax"}  # transformers does so
    | {"fastapi", "sqlalchemy", "aiohttp", "IPython", "pytest"}
)
LISTING = """
import os, runpy, sys
end, file, name = os._exit, sys.argv[1], sys.argv[2]

def leave(status):
    with open(file, "w") as stream:
        stream.write(" ".join(sys.modules))
    end(status)

os._exit = leave
sys.argv = sys.argv[2:]
runpy.run_module(f"stages.{name}", run_name="__main__", alter_sys=True)
"""
"""Run a stage as `python -m stages.NAME` does, and write down what it has imported when it ends."""

FOUND = {"accelerate"}
"""What transformers imports with every model where it is installed, as peft needs it; hiding it would patch both."""

QUICK = ("data_tasks two_step",)
STAGES = (*QUICK, "online grpo", "sft main", "completions sft", "evaluate sft")
OUTPUTS = ("models", "plots", "metrics", "results", "data", "records")


@pytest.mark.parametrize("stage", slow_except(QUICK, STAGES))
def test_a_stage_imports_what_it_needs(own_workspace: Path, tmp_path: Path, stage: str) -> None:
    file = tmp_path / "modules"
    done = run(own_workspace, sys.executable, "-c", LISTING, str(file), *stage.split())
    assert done.returncode == 0, done.stdout
    modules = set(file.read_text(encoding="utf-8").split())
    avoided = AVOIDED if "transformers.modeling_utils" in modules else AVOIDED | FOUND
    assert not sorted(avoided.intersection(name.partition(".")[0] for name in modules))
    assert "dvc.repo" not in modules, "of DVC only what reads dvc.yaml and .dvcignore: a tenth of a second"
    if stage.startswith(("data_tasks", "evaluate")):
        assert "torch.nn" not in modules and not any(name.startswith("transformers.models") for name in modules)
        return
    models = {name.split(".")[2] for name in modules if name.startswith("transformers.models.")}
    needed = {"auto", "llama", "qwen3"}
    assert models == needed, "one model's classes, the tables that say which, and the norm that others are copies of"


@pytest.mark.slow
def test_a_profile_changes_no_byte(own_workspace: Path) -> None:
    before = _digests(own_workspace)
    done = run(own_workspace, sys.executable, "-m", "stages.online", "grpo", "--profile")
    assert done.returncode == 0, done.stdout
    assert _digests(own_workspace) == before
    assert git(own_workspace, "status", "--porcelain", "--untracked-files=all", "--", "profiles", "timings") == ""

    folder = own_workspace / "profiles/online/grpo"
    events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    spans = [one["name"] for one in events if str(one.get("name")).startswith("phase: ") and one.get("ph") == "X"]
    assert spans.count("phase: train") == 3, "the trace ends with the third step"
    assert any(one.get("name") == "aten::mm" for one in events)
    assert "aten::mm" in done.stdout and f"{folder.relative_to(own_workspace)}/trace.json" in done.stdout
    timings = json.loads((own_workspace / "timings/online/grpo.json").read_text(encoding="utf-8"))
    assert all(seconds > 0 for seconds in timings["seconds"].values())
    assert timings["total"] == pytest.approx(sum(timings["seconds"].values()), abs=0.01)
    assert "online@grpo" in run(own_workspace, sys.executable, "-m", "posttrain", "show", "timings").stdout


def _digests(workspace: Path) -> dict[str, str]:
    """Every file that a stage has written for others, by its place."""
    files = [file for folder in OUTPUTS for file in sorted((workspace / folder).rglob("*")) if file.is_file()]
    return {str(file.relative_to(workspace)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
