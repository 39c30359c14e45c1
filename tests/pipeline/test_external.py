"""A trainer of the user's own through a real `dvc repro`: a plain script that changes the weights of its start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import psutil
import pytest
import torch

from tests.library.models.imported_models import policy_folder
from tests.marks import slow_except
from tests.pipeline.engines.test_process import running
from tests.pipeline.test_adapters import edit
from tests.pipeline.test_own_data import write_rows
from tests.workspace import dvc, environment, make_workspace, run, stage

SECRET = "-".join(["a-key", "that-nobody", "may-read"])  # not in one piece in this file, which the workspace has too
TRAINER = """
import json, os, shutil, subprocess, sys, time
from safetensors.torch import load_file, save_file

how = sys.argv[1]
start, out = os.environ["POSTTRAIN_START"], os.environ["POSTTRAIN_OUT"]
print("reads", os.environ["POSTTRAIN_DATA"], "with the seed", os.environ["POSTTRAIN_SEED"])
print("has", os.environ.get("OWN_SERVICE"), os.environ.get("UNNAMED"))
if how == "fails":
    sys.exit("no more disk, says a library")
shutil.copytree(start, out, dirs_exist_ok=True)
os.remove(f"{out}/manifest.json")
if how == "waits":
    others = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
    print("pids", os.getpid(), *(other.pid for other in others))
    time.sleep(600)
weights = {name: part * 1.5 for name, part in load_file(f"{out}/model.safetensors").items()}
if how == "pickles":
    import torch
    os.remove(f"{out}/model.safetensors")
    torch.save(weights, f"{out}/pytorch_model.bin")
else:
    save_file(weights, f"{out}/model.safetensors", {"format": "pt"})
if how == "forgets":
    for name in os.listdir(out):
        if name.startswith("tokenizer"):
            os.remove(f"{out}/{name}")
with open(os.environ["POSTTRAIN_METRICS"], "w") as file:
    file.write('"step","loss"\\n0,2.0\\n1,1.5')
"""
PARAMS = """
seed: 7
data:
  files:
    mine: {path: my/data, chat: demonstrations.jsonl, prompts: prompts.jsonl}
base:
  folders:
    start: {path: my/model}
external:
  runs:
    own: {command: "python my/train.py works && echo {start} {data} {seed} {other} | cat", env: [OWN_SERVICE],
          script: my/train.py, start: base/start, data: mine/chat}
    fails: {command: [python, my/train.py, fails], script: my/train.py, start: base/start, data: mine/chat}
    pickles: {command: [python, my/train.py, pickles], script: my/train.py, start: base/start, data: none}
    forgets: {command: [python, my/train.py, forgets], script: my/train.py, start: base/start, data: none}
    waits: {command: [python, my/train.py, waits], script: my/train.py, start: base/start, data: none}
    absent: {command: [no-such-program], script: my/train.py, start: base/start, data: none}
evaluate:
  settings: {data: mine/prompts, reference: base/start, reward_model: none, prompts: 6, samples: 2,
             sampling: {max_tokens: 8}}
  policies: {start: base/start, own: external/own}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the inputs of all runs."""
    folder = tmp_path_factory.mktemp("external")
    (folder / "params.yaml").write_text(PARAMS, encoding="utf-8")
    made = make_workspace(folder / "clone", folder / "params.yaml")
    write_rows(made / "my/data")
    policy_folder(made / "my/model")
    (made / "my/train.py").write_text(TRAINER, encoding="utf-8")
    checked = run(made, sys.executable, "-m", "posttrain", "check")
    assert checked.returncode == 0, checked.stdout
    ran(made, "base_folders@start", "data_files@mine")
    return made


@pytest.fixture(scope="module")
def trained(workspace: Path) -> Path:
    """The same after the run `own` was trained and evaluated."""
    ran(workspace, "evaluate@own", "evaluate@start")
    return workspace


def ran(workspace: Path, *stages: str) -> list[str]:
    """The stages that a repro ran, with two variables that hold secrets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN_SERVICE", SECRET)
        patch.setenv("UNNAMED", "elsewhere")
        done = dvc(workspace, "repro", *stages)
    assert done.returncode == 0, done.stdout
    return [line.split("'")[1] for line in done.stdout.splitlines() if line.startswith("Running stage")]


@pytest.mark.slow
def test_the_model_is_checked_measured_and_explained(trained: Path) -> None:
    from posttrain.models.files.store import load_model

    before, after = (load_model(trained / "models" / name) for name in ("base/start", "external/own"))
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(new, old * 1.5)
    assert pl.read_csv(trained / "plots/external/own.csv")["loss"].to_list() == [2.0, 1.5]
    assert json.loads((trained / "metrics/external/own.json").read_text())["loss"] == 1.5
    log = (trained / "logs/external@own.log").read_text(encoding="utf-8")
    assert "reads data/mine/chat.parquet with the seed 7" in log
    assert "models/base/start data/mine/chat.parquet 7 {other}" in log
    assert "has *** None" in log, "a variable that the run names, hidden; not one that it does not name"
    assert not list((trained / "models/external").glob(".*"))
    written = [path for path in trained.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]

    for words in (("why", "own.score"), ("why", "external/own.loss"), ("compare", "own", "start"), ("status",)):
        done = run(trained, sys.executable, "-m", "posttrain", *words)
        assert done.returncode == 0, done.stdout
        assert words[0] != "why" or "my/train.py" in done.stdout
    planned = run(trained, sys.executable, "-m", "posttrain", "plan", "external@own", "completions@own")
    assert "external@own: the memory of your own trainer is not known here" in planned.stdout


@pytest.mark.slow
def test_a_change_of_the_script_or_the_command_makes_it_stale(trained: Path) -> None:
    assert ran(trained, "evaluate@own") == []
    script = trained / "my/train.py"
    script.write_text(script.read_text(encoding="utf-8").replace("* 1.5", "* 1.25"), encoding="utf-8")
    assert ran(trained, "evaluate@own") == ["external@own", "completions@own", "evaluate@own"]
    edit(trained, lambda params: params["external"]["runs"]["own"].update(command="python my/train.py again"))
    assert ran(trained, "external@own")[-1] == "external@own"
    edit(trained, lambda params: params["external"]["runs"]["own"].update(script="my/other.py"))
    refused = run(trained, sys.executable, "-m", "posttrain", "check")
    assert "external.runs.own.script = 'my/other.py': not found" in refused.stdout
    edit(trained, lambda params: params["external"]["runs"]["own"].update(script="my/train.py"))


REFUSED = {
    "fails": "exit status 1. It printed last:\n  reads data/mine/chat.parquet with the seed 7\n  has None None\n  no ",
    "pickles": "weights must be safetensors",
    "forgets": "tokenizer",
    "absent": "exit status 127. It printed last:\n  no-such-program: No such file or directory",
}


@pytest.mark.parametrize("name", slow_except(["fails"], REFUSED))
def test_what_fails_or_is_no_model_leaves_nothing(workspace: Path, name: str) -> None:
    done = stage(workspace, "external", name)
    assert done.returncode == 1 and REFUSED[name] in done.stdout, done.stdout
    assert "Traceback" not in done.stdout.partition("error: ")[2]
    assert not (workspace / "models/external" / name).exists()
    assert not list((workspace / "models/external").glob(".*"))
    assert not (workspace / f"metrics/external/{name}.json").exists()
    assert not (workspace / f"plots/external/{name}.csv").exists()


@pytest.mark.parametrize("number", slow_except([signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
def test_a_killed_stage_leaves_no_process_and_no_file(workspace: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "stages.external", "waits"]
    with subprocess.Popen(words, cwd=workspace, env=environment(), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        line = next(line for line in started.stdout if line.startswith("pids "))
        children = [int(pid) for pid in line.split()[1:]]
        scratch = workspace / "models/external/.waits.scratch.tmp"
        assert len(children) == 3 and all(map(psutil.pid_exists, children)) and scratch.is_dir()
        started.send_signal(number)
        started.wait(30)
    until = time.monotonic() + 30
    while (any(map(running, children)) or scratch.exists()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(running, children)), "also what the command has started in a session of its own"
    assert not scratch.exists() and not (workspace / "models/external/waits").exists()


@pytest.mark.slow
def test_a_variable_that_a_run_names_must_be_set(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OWN_SERVICE", raising=False)
    done = stage(workspace, "external", "own")
    expected = "external.runs.own.env (params.yaml): the environment variable OWN_SERVICE is not set"
    assert done.returncode == 1 and expected in done.stdout


MAKER = """
import json, os, sys
how, out = sys.argv[1], os.environ["POSTTRAIN_OUT"]
import polars as pl
asked = pl.read_parquet(os.environ["POSTTRAIN_DATA"])["prompt"].to_list() if os.environ["POSTTRAIN_DATA"] else []
assert os.path.isdir(os.environ["POSTTRAIN_START"]) == (how == "works")
rows = [{"prompt": turns[-1]["content"], "chosen": "It is 5", "rejected": "No"} for turns in asked]
if how == "writes":
    rows = [{"prompt": "a", "chosen": "b"}]
if how != "nothing":
    open(f"{out}/pairs.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
    pl.DataFrame({"text": [row["prompt"] for row in rows]}).write_parquet(f"{out}/texts.parquet")
"""
MADE = """
data:
  files:
    mine: {path: my/data, prompts: prompts.jsonl}
  commands:
    made: {command: [python, my/make.py, works], script: my/make.py, start: base/start, data: mine/prompts,
           pairs: pairs.jsonl, corpus: texts.parquet}
    writes: {command: [python, my/make.py, writes], script: my/make.py, start: none, data: none, pairs: pairs.jsonl}
    nothing: {command: [python, my/make.py, nothing], script: my/make.py, start: none, data: none, pairs: pairs.jsonl}
    fails: {command: "echo no; exit 3", script: my/make.py, start: none, data: none, pairs: pairs.jsonl}
  filters:
    kept: {data: made/pairs, against: none, reward_model: none, near_duplicates: 0.99}
base:
  folders:
    start: {path: my/model}
"""


@pytest.fixture(scope="module")
def making(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with commands that write tables."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "params.yaml").write_text(MADE, encoding="utf-8")
    made = make_workspace(folder / "clone", folder / "params.yaml")
    write_rows(made / "my/data")
    policy_folder(made / "my/model")
    (made / "my/make.py").write_text(MAKER, encoding="utf-8")
    return made


@pytest.mark.slow
def test_tables_of_a_command_are_checked_and_used_by_later_runs(making: Path) -> None:
    checked = run(making, sys.executable, "-m", "posttrain", "check")
    assert checked.returncode == 0, checked.stdout
    assert ran(making, "data_filters@kept")[-2:] == ["data_commands@made", "data_filters@kept"]
    tables = {kind: pl.read_parquet(making / f"data/made/{kind}.parquet") for kind in ("pairs", "feedback", "corpus")}
    given = pl.read_parquet(making / "data/mine/prompts.parquet")
    assert set(tables["corpus"]["text"]) == {turns[-1]["content"] for turns in given["prompt"].to_list()}
    assert tables["feedback"].height == 2 * tables["pairs"].height
    assert set(tables["pairs"]["split"]) == {"train", "heldout"}
    assert ran(making, "data_filters@kept") == []
    script = making / "my/make.py"
    script.write_text(script.read_text(encoding="utf-8").replace("It is 5", "It is 6"), encoding="utf-8")
    assert ran(making, "data_filters@kept") == ["data_commands@made", "data_filters@kept"]
    edit(making, lambda params: params["data"]["filters"]["kept"].update(data="made/chat"))
    refused = run(making, sys.executable, "-m", "posttrain", "check")
    assert refused.returncode == 1 and "'made/chat': no run makes this table" in refused.stdout
    edit(making, lambda params: params["data"]["filters"]["kept"].update(data="made/pairs"))


NO_TABLE = {
    "writes": "data.commands.writes.pairs: a 'pairs' table cannot be made from the columns prompt, chosen",
    "nothing": "pairs.jsonl not found",
    "fails": "data.commands.fails.command (params.yaml): exit status 3. It printed last:\n  no",
}


@pytest.mark.parametrize("name", slow_except(["writes"], NO_TABLE))
def test_what_is_no_table_leaves_nothing(making: Path, name: str) -> None:
    done = stage(making, "data_commands", name)
    assert done.returncode == 1 and NO_TABLE[name] in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    assert not (making / "data" / name).exists() and not list((making / "data").glob(".*.tmp"))
