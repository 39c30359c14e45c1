"""Judged runs as processes: an online run and an evaluation, with a served model of our own and with a faulty one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import with_ids
from posttrain.isolation.library import library_environment
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.pipeline.workspace import PARAMS_FILE
from tests.library.models.tiny import tiny_folder
from tests.pipeline.rewards.judge.conftest import Endpoint
from tests.pipeline.rewards.judge.models import parrot_folder
from tests.pipeline.serve.served import Served
from tests.workspace import environment

SECRET = "-".join(("sk", "canary", "4a1c"))  # whole in no file

PARAMS = """
online:
  runs:
    judged:
      algorithm: grpo
      start: base/tiny
      data: mine/prompts
      corpus: none
      reward_model: none
      reward:
        judge: {{weight: 1.0, url: "{url}", model: "{model}", key: JUDGE_KEY, retries: 1, price_out: 10.0, {more}}}
      rollout: {{rounds: 2, prompts: 8, group_size: 8, minibatches: 1, sampling: {{max_tokens: 6}}}}
evaluate:
  settings:
    data: mine/prompts
    reference: none
    reward_model: none
    prompts: 20
    samples: 2
    sampling: {{max_tokens: 6}}
    reward: {{judge: {{weight: 1.0, url: "{url}", model: "{model}", key: JUDGE_KEY, price_out: 10.0, {more}}}}}
  policies: {{tiny: base/tiny}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prompts and a model; no pipeline made them."""
    folder = tmp_path / "project"
    (folder / "custom").mkdir(parents=True)
    (folder / "custom/judge.txt").write_text("Is this good? {completion}")
    shutil.copytree(tiny_folder(tmp_path / "tiny"), folder / "models/base/tiny")
    rows = [
        {
            "split": split,
            "problem": f"{split}{nth}",
            "prompt": [{"role": "user", "content": f"{nth}+{nth}="}],
            "answer": str(2 * nth),
            "info": "{}",
            "task": "",
        }
        for split in ("train", "test")
        for nth in range(20 + 20 * (split == "test"), 40 + 20 * (split == "test"))
    ]
    write_table(with_ids(pl.DataFrame(rows), "prompts"), folder / "data/mine/prompts.parquet", "prompts")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    return folder


def write_params(url: str, model: str, more: str = "cache: true, truncated: score") -> None:
    Path("params.yaml").write_text(PARAMS.format(url=url, model=model, more=more))


def ran(*stage: str) -> subprocess.CompletedProcess[str]:
    """A stage as a project runs it."""
    command = [sys.executable, "-P", "-m", "posttrain", "run", *stage]
    paths = {name: value for name, value in library_environment().items() if name == "PYTHONPATH"}
    return subprocess.run(command, env={**environment(), **paths}, capture_output=True, text=True, timeout=500)


def judged(file: Path) -> list[tuple[float, str]]:
    """Value and status of every verdict of an evaluation."""
    rows = read_table(file, "rollouts")["scores"].to_list()
    return [(one["value"], one["status"]) for scores in rows for one in scores if one["name"] == "judge"]


@pytest.mark.slow
def test_a_model_of_ours_judges_an_evaluation(
    project: Path, serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parrot_folder(tmp_path / "parrot", "Verdict: 7")
    served = serve(model)
    monkeypatch.setenv("JUDGE_KEY", served.key)
    write_params(served.url, str(model))
    sampled = ran("completions", "tiny")
    assert sampled.returncode == 0, sampled.stderr
    first = ran("evaluate", "tiny")
    assert first.returncode == 0, first.stderr
    assert set(judged(project / "results/tiny/rollouts.parquet")) == {(6 / 9, "ok")}
    counts = json.loads((project / "timings/evaluate/tiny.json").read_text())["counts"]
    assert counts["judge requests"] > 20 and counts["judge tokens out"] >= 5 * counts["judge requests"]
    figures = json.loads((project / "results/tiny/metrics.json").read_text())
    assert figures["judge_requests"] == counts["judge requests"] and figures["judge_cost"] > 0
    assert figures["judge_tokens_out"] == counts["judge tokens out"]
    assert served.end() == 0
    before = (project / "results/tiny/rollouts.parquet").read_bytes()
    again = ran("evaluate", "tiny")  # nobody answers any more, and every verdict is known
    assert again.returncode == 0 and "judge requests 0; judge cached" in again.stderr
    assert (project / "results/tiny/rollouts.parquet").read_bytes() == before
    assert json.loads((project / "results/tiny/metrics.json").read_text()) == figures
    written = [one for one in tmp_path.rglob("*") if one.is_file() and served.key.encode() in one.read_bytes()]
    assert not written
    assert not [one for one in (sampled, first, again) if served.key in one.stdout + one.stderr]


@pytest.mark.slow
def test_a_judge_of_ours_that_gives_no_verdict_stops_the_run(
    project: Path, serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parrot_folder(tmp_path / "parrot", "It is so")
    served = serve(model, POSTTRAIN_SERVE_KEY=f"{SECRET}-served")
    monkeypatch.setenv("JUDGE_KEY", served.key)
    write_params(served.url, str(model))
    done = ran("online", "judged")
    assert done.returncode == 1
    assert "64 of 64 completions could not be scored; the first failed in reward 'judge'" in done.stderr
    assert "(error: the judge gave no verdict; its reply ends with 'It is so'" in done.stderr
    assert "Nothing is left to train on or to measure, whatever max_failed is" in done.stderr
    assert served.end() == 0 and "Traceback" not in served.output


@pytest.mark.slow
def test_a_faulty_judge_costs_no_score_and_its_key_is_written_nowhere(
    project: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    write_params(endpoint.url, "m", 'prompt: "custom/judge.txt", scale: [1, 5], concurrency: 1, truncated: score')
    endpoint.does("say Verdict: 5", "hang up", "say Verdict: 1", *["500"] * 2, "empty", then="say Verdict: 3")
    trained = ran("online", "judged")
    assert trained.returncode == 0, trained.stderr
    assert "1 of 64 completions could not be scored" in trained.stderr and "(infrastructure: HTTP 500" in trained.stderr
    counts = json.loads((project / "timings/online/judged.json").read_text())["counts"]
    assert counts["judge cost"] == pytest.approx(counts["judge tokens out"] * 10 / 1e6) and counts["judge cost"] > 0
    assert all(one["headers"]["Authorization"] == f"Bearer {SECRET}" for one in endpoint.log)
    endpoint.does(then="leak")
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("concurrency: 1", "cache: false"))
    sampled = ran("completions", "tiny")
    assert sampled.returncode == 0, sampled.stderr
    refused = ran("evaluate", "tiny")
    assert refused.returncode == 1 and "HTTP 401. Put a valid key into $JUDGE_KEY" in refused.stderr
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 20 and any(one.suffix == ".log" for one in files)
    assert not [one for one in files if SECRET.encode() in one.read_bytes()]
    assert not [one for one in (trained, sampled, refused) if SECRET in one.stdout + one.stderr]


@pytest.mark.slow
def test_the_template_and_the_address_are_inputs_of_the_run(project: Path) -> None:
    write_params("http://127.0.0.1:1/v1", "m", 'prompt: "custom/judge.txt"')
    before = Library().code("online@judged", read_yaml(PARAMS_FILE))["files"]
    assert {
        "custom/judge.txt",
        "posttrain/rewards/judge/judge.py",
        "posttrain/rewards/judge/endpoint.py",
    } <= before.keys()
    (project / "custom/judge.txt").write_text("Is this bad? {completion}")
    after = Library().code("online@judged", read_yaml(PARAMS_FILE))["files"]
    assert [name for name in after if after[name] != before[name]] == ["custom/judge.txt"]
    write_params("http://127.0.0.1:1/v1", "m")
    assert "custom/judge.txt" not in Library().code("online@judged", read_yaml(PARAMS_FILE))["files"]
    text = Path("params.yaml").read_text().replace("judge: {", "format: {")
    Path("params.yaml").write_text(text)
    assert not [name for name in Library().code("online@judged", read_yaml(PARAMS_FILE))["files"] if "judge" in name]


@pytest.mark.slow
def test_a_served_reward_model_trains_a_policy_and_its_key_is_written_nowhere(
    project: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    write_params(endpoint.url.replace("/v1", "/classify"), "m", "concurrency: 1")
    text = Path("params.yaml").read_text().replace("judge: {", "endpoint: {").replace("price_out: 10.0, ", "")
    Path("params.yaml").write_text(text)
    endpoint.does("say 2.5", "hang up", "say -3", *["500"] * 2, then="rule")
    trained = ran("online", "judged")
    assert trained.returncode == 0, trained.stderr
    assert "(infrastructure: HTTP 500" in trained.stderr
    counts = json.loads((project / "timings/online/judged.json").read_text())["counts"]
    assert counts["endpoint requests"] == len(endpoint.log) and counts["endpoint tokens in"] > 0
    assert all(one["headers"]["Authorization"] == f"Bearer {SECRET}" for one in endpoint.log)
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 10 and not [one for one in files if SECRET.encode() in one.read_bytes()]
    assert SECRET not in trained.stdout + trained.stderr
    code = Library().code("online@judged", read_yaml(PARAMS_FILE))["files"]
    assert {"posttrain/rewards/endpoint.py", "posttrain/rewards/connection.py"} <= code.keys()
    assert "posttrain/rewards/judge/judge.py" not in code


@pytest.mark.slow
def test_groups_train_a_policy_with_a_request_each(project: Path, endpoint: Endpoint) -> None:
    write_params(endpoint.url, "m", "mode: group")
    endpoint.does(then="rule")
    trained = ran("online", "judged")
    assert trained.returncode == 0, trained.stderr
    counts = json.loads((project / "timings/online/judged.json").read_text())["counts"]
    figures = json.loads((project / "metrics/online/judged.json").read_text())
    rounds = pl.read_csv(project / "plots/online/judged.csv")
    assert figures["judge_requests"] == rounds["judge_requests"].sum() == len(endpoint.log)
    assert figures["judge_cost"] == pytest.approx(counts["judge cost"])
    assert counts["judge requests"] == len(endpoint.log) <= 16, "2 rounds of 8 prompts, with 8 samples each"
