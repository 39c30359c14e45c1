"""Logs of Inspect AI: read back, scanned, scored again and shown by Inspect itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.plugins.inspect.inspect_logs import write_logs
from tests.pipeline.report import browser, workspace
from tests.workspace import ROOT, environment

PYTHON = os.environ.get("POSTTRAIN_INSPECT") or str(ROOT / ".venv-inspect/bin/python")
pytestmark = [
    pytest.mark.inspect,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(PYTHON) is None, reason="Inspect's environment is not there: make env-inspect"),
]
READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
logs = {log.eval.task: log for log in map(read_eval_log, list_eval_logs(sys.argv[1]))}
print(json.dumps({name: log.model_dump(mode="json") for name, log in logs.items()}))
"""
SCAN = """
import json, sys
from inspect_scout import grep_scanner, scan, scan_results_df, transcripts_from
done = scan([grep_scanner("likeliest", name="word")], transcripts=transcripts_from(sys.argv[1]), scans=sys.argv[2],
            display="none", max_processes=1)
assert done.complete and not done.errors, done
found = scan_results_df(done.location).scanners["word"]
print(json.dumps({"rows": len(found), "hits": int((found["value"] > 0).sum())}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace.make(tmp_path_factory.mktemp("inspect"))


@pytest.fixture
def logs(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("POSTTRAIN_INSPECT", PYTHON)
    if not (place / "inspect").is_dir():
        write_logs(["grpo", "sft"], Path("inspect"))
    return place / "inspect"


def asked(script: str, *arguments: Path) -> Any:
    done = subprocess.run(
        [PYTHON, "-c", script, *map(str, arguments)], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_log_has_every_completion_score_and_figure(logs: Path) -> None:
    found = asked(READ, logs)
    assert found.keys() == {"grpo", "grpo-greedy", "sft", "sft-greedy"}
    log = found["grpo"]
    assert log["status"] == "success" and log["eval"]["model"] == "posttrain/online/grpo"
    assert log["eval"]["dataset"]["samples"] == workspace.PROMPTS and log["eval"]["config"]["epochs"] == 2
    rows = [row for row in workspace.rollouts("grpo") if not row["greedy"]]
    assert len(log["samples"]) == len(rows)
    samples = {(one["id"], one["epoch"]): one for one in log["samples"]}
    for row in rows:
        one = samples[row["prompt_id"], row["sample"] + 1]
        assert [turn["content"] for turn in one["messages"]] == [row["prompt"][0]["content"], row["completion"]]
        assert one["target"] == row["answer"] and one["output"]["choices"][0]["stop_reason"] == "stop"
        assert {name: score["value"] for name, score in one["scores"].items()} == dict.fromkeys(
            ("reward", "correct"), row["reward"]
        )
    means = {score["name"]: score["metrics"] for score in log["results"]["scores"]}
    assert means["reward"]["mean"]["value"] == pytest.approx(sum(row["reward"] for row in rows) / len(rows))
    assert means["figures"]["kl_k1"]["value"] == workspace.FIGURES["grpo"]["kl_k1"]


def test_scanners_run_on_it(logs: Path, tmp_path: Path) -> None:
    found = asked(SCAN, logs, tmp_path / "scans")
    texts = [row for policy in ("grpo", "sft") for row in workspace.rollouts(policy)]
    assert found == {"rows": len(texts), "hits": sum("likeliest" in row["completion"] for row in texts)}


def test_it_is_scored_again(logs: Path, tmp_path: Path) -> None:
    (file,) = logs.glob("*_sft_*.eval")
    command = [str(Path(PYTHON).with_name("inspect")), "score", str(file), "--scorer", "inspect_ai/includes"]
    more = ["--model", "mockllm/model", "--action", "append", "--output-file", str(tmp_path / "new/a.eval")]
    (tmp_path / "new").mkdir()
    done = subprocess.run(
        [*command, *more], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (log,) = asked(READ, tmp_path / "new").values()
    assert {"reward", "correct", "includes"} <= {score["name"] for score in log["results"]["scores"]}


@contextmanager
def viewed(logs: Path) -> Iterator[str]:
    """`inspect view` on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(PYTHON).with_name("inspect")), "view", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (logs.parent / "view.log").open("w") as log:
        process = subprocess.Popen([*command, "--log-dir", str(logs)], env=environment(), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (logs.parent / "view.log").read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.skipif(browser.program() is None, reason="needs a browser: apt-get install chromium")
def test_its_viewer_shows_it(logs: Path, tmp_path: Path) -> None:
    (file,) = logs.glob("*_grpo_*.eval")
    with viewed(logs) as address, browser.started(tmp_path / "profile") as port, browser.Page(port) as page:
        page.call("Page.navigate", url=address)
        page.wait("document.body && document.body.innerText.includes('posttrain/online/grpo')")
        page.call("Page.navigate", url=f"{address}#/logs/{file.name}/samples")
        page.wait("document.body && document.body.innerText.includes('What is 2+1?')")
        text = page.run("document.body.innerText")
        assert "two_step/prompts — 30 x 2 samples" in text and page.run("window.hacked") is None
        assert not [one for one in page.requests if not one.startswith((address, "data:", "about:", "blob:"))]


def test_rollouts_of_a_run(smoke_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(smoke_workspace)
    monkeypatch.setenv("POSTTRAIN_INSPECT", PYTHON)
    write_logs(["online/grpo"], tmp_path / "logs")
    (log,) = asked(READ, tmp_path / "logs").values()
    one = log["samples"][0]
    assert log["eval"]["task"] == "online/grpo" and {"round", "advantage", "version"} <= one["metadata"].keys()
    assert one["messages"][0]["role"] == "user" and one["target"] and "correct" in one["scores"]


def test_what_cannot_be_written(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"'grop' is not a policy or a run with rollouts\. Did you mean 'grpo'\?"):
        write_logs(["grop"], tmp_path)
    shutil.copytree(logs.parent, tmp_path / "none", ignore=shutil.ignore_patterns("inspect"))
    workspace.rewritten(tmp_path / "none", "none")
    os.chdir(tmp_path / "none")
    with pytest.raises(DataError, match=r"results/grpo/rollouts\.parquet: its completions were not stored"):
        write_logs(["grpo"], tmp_path / "out")
