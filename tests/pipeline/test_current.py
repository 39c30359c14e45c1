"""What `results` and `status` read of dvc.lock without DVC is what DVC says, and they answer while DVC runs a stage."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dvc.fs import localfs
from dvc.parsing import DataResolver
from dvc.utils.serialize import load_path

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.code_manifest import CODE
from posttrain.pipeline.lock.graph import NOT_SET, Pipeline, changed
from posttrain.pipeline.lock.running import RWLOCK, running_stages
from posttrain.pipeline.report.stale_results import staleness
from tests.marks import slow_except
from tests.workspace import dvc, environment, run

LABELS = ("base", "sft", "dpo", "grpo")
STAGES = {**{label: f"evaluate@{label}" for label in LABELS}, "reward/main": "reward@main"}


@pytest.fixture(scope="module")
def workspace(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished pipeline for all tests here, each of which restores what it edits."""
    target = tmp_path_factory.mktemp("current") / "workspace"
    run(smoke_workspace, "cp", "-a", str(smoke_workspace), str(target))
    return target


def replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(workspace: Path) -> None:
        text = (workspace / file).read_text(encoding="utf-8")
        assert old in text
        (workspace / file).write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def deleted(path: str) -> Callable[[Path], None]:
    def edit(workspace: Path) -> None:
        place = workspace / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return edit


def forgotten(stage: str) -> Callable[[Path], None]:
    """The stage has no entry in dvc.lock."""

    def edit(workspace: Path) -> None:
        text = (workspace / "dvc.lock").read_text(encoding="utf-8")
        (workspace / "dvc.lock").write_text(re.sub(rf"  {stage}:\n(   .*\n)+", "", text), encoding="utf-8")

    return edit


EDITS = {
    "nothing": (lambda _: None, set()),
    "a parameter": (replace("params.yaml", "kl: {beta: 0.02}", "kl: {beta: 0.05}"), {"grpo"}),
    "a parameter of all": (replace("params.yaml", "samples: 8}", "samples: 4}"), set(LABELS)),
    "another start": (replace("params.yaml", "dpo: preference/dpo", "dpo: sft/main"), {"dpo"}),
    "code of one run": (replace("posttrain/algorithms/policy/grpo.py", "Shao 2024, ", "New Shao 2024, "), {"grpo"}),
    "an output deleted": (deleted("models/preference/dpo"), {"dpo"}),
    "an output changed": (replace("metrics/online/grpo.json", "{", "{ "), {"grpo"}),
    "an input deleted": (deleted("data/two_step/chat.parquet"), set(STAGES)),
    "a run removed": (replace("params.yaml", "    dpo: preference/dpo\n", ""), set()),
    "a stage that never ran": (forgotten("online@grpo"), {"grpo"}),
    "an evaluation that never ran": (forgotten("evaluate@sft"), {"sft"}),
}


@pytest.mark.parametrize("name", slow_except(("a parameter",), EDITS))
def test_an_edit_makes_the_same_results_out_of_date_as_for_dvc(
    own_workspace: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit, expected = EDITS[name]
    edit(own_workspace)
    monkeypatch.chdir(own_workspace)
    monkeypatch.setenv("COLUMNS", "1000")  # a line for each stage
    pipeline = Pipeline()
    rows = json.loads(run(own_workspace, "python", "-m", "posttrain", "show", "results", "--json").stdout)
    found = {row["policy"] for row in rows if "error" in row}
    shown = run(own_workspace, "python", "-m", "posttrain", "status").stdout
    assert dvc(own_workspace, "repro", "--quiet", "--single-item", "code").returncode == 0
    said = dvc(own_workspace, "status", "--json").stdout
    changed = set(json.loads(said[said.index("{") :]))
    by_dvc = {label for label, stage in STAGES.items() if changed.intersection(pipeline.above(stage))}
    assert found == by_dvc == expected
    lines = [line for line in shown.splitlines() if " stages are done" not in line]
    assert {line.partition(":")[0] for line in lines} - {"nothing is stale"} <= changed


def test_the_graph_is_that_of_dvc(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.repo import Repo

    monkeypatch.chdir(workspace)
    graph = Repo().index.graph
    expected = {node.addressing: {above.addressing for above in graph.successors(node)} for node in graph}
    pipeline = Pipeline()
    assert {name: set(above) for name, above in pipeline.upstream.items()} == expected
    assert {stage.name: (stage.cmd, set(stage.outs)) for stage in pipeline.stages.values()} == {
        node.addressing: (node.cmd, {str(out) for out in node.outs}) for node in graph
    }
    by_dvc = resolved_by_dvc()
    assert as_declared(pipeline, by_dvc) == by_dvc
    order = pipeline.order()
    assert all(order.index(above) < order.index(name) for name in order for above in pipeline.upstream[name])
    assert order[0] == CODE


def resolved_by_dvc() -> dict[str, Any]:
    """The stages of dvc.yaml in this folder as DVC resolves them, each dependency once."""
    resolver = DataResolver(SimpleNamespace(fs=localfs, config={}), "", load_path("dvc.yaml", localfs))
    stages: dict[str, Any] = resolver.resolve()["stages"]
    return {
        name: {key: list(dict.fromkeys(value)) if key == "deps" else value for key, value in stage.items()}
        for name, stage in stages.items()
    }


def as_declared(pipeline: Pipeline, like: dict[str, Any]) -> dict[str, Any]:
    """The stages as DVC resolves them: each with the keys that it has there."""
    found = {}
    for name, stage in pipeline.stages.items():
        params = [{file: list(keys)} if file != "params.yaml" else list(keys) for file, keys in stage.params.items()]
        flat = [one for part in params for one in (part if isinstance(part, list) else [part])]
        known = {"cmd": stage.cmd, "deps": [*stage.deps], "meta": stage.meta, "params": flat}
        found[name] = {key: known.get(key, value) for key, value in like[name].items()}
    return found


GRAPH = """
vars:
  - more.yaml:a,b
  - {flag: true, names: [y, {x: z}]}
stages:
  list: {foreach: [1, true], do: {cmd: "run ${item} ${flag}", vars: [{own: 3}], deps: ["${item}-${own}.txt"]}}
  tables: {foreach: [{x: 1}, {x: "${a.deep}"}], do: {cmd: "run ${item.x}", meta: {gpus: "${item.x}", all: ["${b}"]}}}
  both:
    matrix: {size: [1, 2], kind: ["${b}", {name: c}]}
    cmd: run ${item.size} ${names[1].x} \\${HOME}
    params: [seed, more.yaml: [a.deep]]
"""


def test_each_way_to_write_stages_is_read_as_dvc_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text(GRAPH, encoding="utf-8")
    Path("more.yaml").write_text("{a: {deep: 7}, b: text, c: 1}", encoding="utf-8")
    by_dvc = resolved_by_dvc()
    pipeline = Pipeline()
    assert set(pipeline.stages) == set(by_dvc) and len(by_dvc) == 8
    assert as_declared(pipeline, by_dvc) == by_dvc
    with pytest.raises(PipelineError, match="no stage both@3"):
        pipeline.declared("both@3")


def test_what_differs_between_nested_settings_is_named_by_its_keys() -> None:
    old: dict[str, Any] = {"a": {"b": 1, "c": None}, "d": [1]}
    new: dict[str, Any] = {"a": {"b": 2}, "d": [1], "e": {"f": 0}}
    assert list(changed(old, new)) == [(("a", "b"), 1, 2), (("e",), None, {"f": 0})]
    missing = [(("a", "b"), 1, 2), (("a", "c"), None, NOT_SET), (("e",), NOT_SET, {"f": 0})]
    assert list(changed(old, new, NOT_SET)) == missing
    assert list(changed(old, old)) == [] and list(changed(1, 2)) == [((), 1, 2)]


def test_a_cycle_is_named(tmp_path: Path) -> None:
    needs = {"first": "second", "second": "third", "third": "first", "last": "third"}
    stages = {
        name: {"cmd": "true", "deps": [f"{needed}.txt"], "outs": [f"{name}.txt"]} for name, needed in needs.items()
    }
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": stages}), encoding="utf-8")
    with pytest.raises(PipelineError) as caught:
        Pipeline(tmp_path).order()
    kind, *ring = re.split(": | needs ", caught.value.what)
    assert kind == "cycle" and len(ring) == 4 and set(ring) == {"first", "second", "third"}
    assert all(needs[name] == needed for name, needed in itertools.pairwise(ring))
    assert caught.value.where == "dvc.yaml"


def test_a_failed_stage_is_named_with_its_error(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_workspace)
    replace("params.yaml", "kl: {beta: 0.02}", "kl: {beta: 0.05}")(own_workspace)
    failure = own_workspace / ".dvc/tmp/failures/online@grpo.txt"
    failure.parent.mkdir(exist_ok=True)
    failure.write_text("error: the memory ran out\nmore")
    assert staleness(LABELS).reasons == {"grpo": "failed: online@grpo: error: the memory ran out"}
    compared = run(own_workspace, "python", "-m", "posttrain", "compare", "dpo", "grpo", "--json").stdout
    stale = [note for note in json.loads(compared)["notes"] if "not current" in note]
    assert stale == ["grpo: its results are not current (failed: online@grpo: error: the memory ran out)"]


def test_a_process_that_has_ended_runs_nothing(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_workspace)
    ended = subprocess.Popen(["true"])
    ended.wait()
    model = str(own_workspace.resolve() / "models/online/grpo")
    for pid, expected in ((ended.pid, {}), (os.getpid(), {"online@grpo": os.getpid()})):
        RWLOCK.write_text(json.dumps({"read": {}, "write": {model: {"pid": pid, "cmd": "dvc repro"}}}))
        assert running_stages(Pipeline()) == expected


@pytest.mark.slow
def test_status_predicts_no_run_below_a_stage_that_only_lacks_an_output(own_workspace: Path) -> None:
    """DVC restores the model from its cache, and nothing runs."""
    deleted("models/sft/main")(own_workspace)
    done = run(own_workspace, "python", "-m", "posttrain", "status")
    lines = done.stdout.splitlines()
    assert lines[0] == "sft@main: its output models/sft/main is missing" and len(lines) == 2, done.stdout
    assert " stages are done" in lines[1]
    assert "Running stage" not in dvc(own_workspace, "repro").stdout


@pytest.mark.slow
def test_a_tracked_file_of_the_users_is_no_stage_that_never_ran(own_workspace: Path) -> None:
    (own_workspace / "my").mkdir()
    (own_workspace / "my/support").write_text("a file")
    assert dvc(own_workspace, "add", "my/support").returncode == 0
    assert run(own_workspace, "python", "-m", "posttrain", "status").stdout == "nothing is stale\n"


def test_no_dvc_and_no_torch_are_loaded_to_say_what_is_current(workspace: Path) -> None:
    code = (
        "import sys; from posttrain.pipeline.report.stale_results import staleness; staleness(['grpo']);"
        "print([name for name in ('dvc.repo', 'torch', 'polars', 'transformers') if name in sys.modules])"
    )
    assert run(workspace, "python", "-c", code).stdout == "[]\n"


@pytest.mark.slow
def test_the_advice_on_a_name_between_braces_works_with_an_experiment(own_workspace: Path) -> None:
    (own_workspace / "custom/mine.py").write_text(
        "from posttrain.rewards.reward import rule\n\n\n@rule()\ndef short(rollout, options):\n    return 0.0\n"
    )
    line = "      reward: {correct: 1.0, format: 0.2}"
    replace("params.yaml", line, "      reward: {correct: 1.0, mine:short: 0.2}")(own_workspace)
    said = run(own_workspace, "python", "-m", "posttrain", "check").stdout
    advice = said.partition("cannot change:\n")[2].rstrip()
    replace("params.yaml", "      reward: {correct: 1.0, mine:short: 0.2}", advice)(own_workspace)
    assert run(own_workspace, "python", "-m", "posttrain", "check").returncode == 0
    done = dvc(own_workspace, "exp", "run", "-S", "online.runs.grpo.kl.beta=0.05", "code")
    assert done.returncode == 0, done.stdout
    assert "kl: {beta: 0.05}" in (own_workspace / "params.yaml").read_text()
    assert run(own_workspace, "python", "-m", "posttrain", "check").returncode == 0


@pytest.mark.slow
def test_an_experiment_of_one_evaluation_has_its_score(own_workspace: Path) -> None:
    done = dvc(own_workspace, "exp", "run", "-n", "one", "-S", "evaluate.settings.samples=2", "evaluate@sft")
    assert done.returncode == 0, done.stdout
    shown = dvc(own_workspace, "metrics", "diff", "HEAD", "one", "--json").stdout
    assert set(json.loads(shown[shown.index("{") :])["results/sft/headline.json"]) == {"sft"}


@pytest.mark.parametrize(
    "words",
    [
        ("python", "-m", "posttrain", "status"),
        pytest.param(("dvc", "repro", "--force", "-s", "report"), marks=pytest.mark.slow),
    ],
)
def test_a_copied_project_leaves_the_site_cache_of_the_old_one(own_workspace: Path, words: tuple[str, ...]) -> None:
    settings, inside = own_workspace / ".dvc/config.local", f"{own_workspace.resolve()}/.dvc/tmp/site"
    settings.write_text("[core]\n    site_cache_dir = /elsewhere/project/.dvc/tmp/site\n")
    assert run(own_workspace, *words).returncode == 0
    assert f"site_cache_dir = {inside}" in settings.read_text()
    settings.write_text("[core]\n    site_cache_dir = /a/place/of/ones/own\n")
    assert run(own_workspace, *words).returncode == 0
    assert "/a/place/of/ones/own" in settings.read_text()


@contextmanager
def training(workspace: Path) -> Iterator[subprocess.Popen[str]]:
    """A `dvc repro` that trains grpo for long, once the stage has begun."""
    replace("params.yaml", "rounds: 25", "rounds: 2500")(workspace)
    log = workspace / "repro.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["dvc", "repro"], cwd=workspace, env=environment(), stdout=stream, stderr=stream, text=True
        )
    try:
        while "> python -m stages.online grpo" not in log.read_text() and process.poll() is None:
            time.sleep(0.1)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.slow
def test_results_report_and_status_answer_while_a_stage_trains(own_workspace: Path) -> None:
    with training(own_workspace) as process:
        table = run(own_workspace, "python", "-m", "posttrain", "show", "results")
        rows = run(own_workspace, "python", "-m", "posttrain", "show", "results", "--json")
        report = run(own_workspace, "python", "-m", "posttrain", "show", "report")
        status = run(own_workspace, "python", "-m", "posttrain", "status")
        assert process.poll() is None, "the stage ended too early for this test"
    assert table.stdout.startswith("online@grpo is running; of finished stages:\n\n"), table.stdout
    assert re.search(r"\ndpo +0\.\d+ \[", table.stdout) and re.search(r"\ngrpo +online@grpo is running\n", table.stdout)
    assert {row["policy"]: row.get("error") for row in json.loads(rows.stdout)}["grpo"] == "online@grpo is running"
    assert "grpo is left out: online@grpo is running" in report.stdout
    assert re.match(r"online@grpo: running(, \d+/5000 steps .*)? \(PID \d+\)\n", status.stdout), status.stdout
    assert "rwlock" not in status.stdout
