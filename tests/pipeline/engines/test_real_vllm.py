"""vLLM itself, in its own environment: what the client was proved for with a server of ours holds there.

The environment is .venv-vllm, or the one whose Python $POSTTRAIN_VLLM names. On a machine without a GPU it needs a CPU
build of vLLM (docs/sampling.md).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import psutil
import pytest
import torch
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from posttrain.api.evaluate import evaluate_model
from posttrain.data.columns import from_rows, with_ids
from posttrain.errors import EngineError
from posttrain.measure.counts import COUNTS
from posttrain.models.files.store import load_policy, load_tokenizer, new_model, save_model
from posttrain.models.forward.forward import packed_states, score_tokens
from posttrain.models.forward.logp import head_of
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.served_teacher import ServedTeacher, TeacherServer
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.evaluation_stage import EvaluationStage
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.pipeline.tables.store import write_table
from posttrain.rewards.likelihood import Likelihood, LikelihoodOptions
from posttrain.rollout import Prompt, TokenRow
from posttrain.sampling.agreement import sampler_gap
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import Completion, Request, SamplingParams, generate_rollouts, rest
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.process import PYTHON, USUAL
from posttrain.settings.params import check
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from posttrain.train.loop import training_loop
from posttrain.train.metrics import CsvRecorder
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import TEXTS
from tests.library.sampling.test_episodes import TASKS
from tests.pipeline.engines.support import Recorded, grpo, models_of
from tests.pipeline.engines.test_adapters import ALONE, MERGED, adapted, adapter_bytes, update
from tests.pipeline.engines.test_process import GONE_S, running
from tests.pipeline.rewards.test_likelihood import drawn
from tests.workspace import ROOT

VLLM = os.environ.get(PYTHON) or str(ROOT / USUAL)
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which(VLLM) is None, reason="vLLM's environment is not there: make env-vllm"),
]
TOLERANCE = 1e-4
"""Nats between vLLM's log-probs and the trainer's, both in fp32 on a CPU."""


def qwen_folder(path: Path) -> Path:
    """A small model with a tied head whose shape vLLM's attention can run."""
    tokens = path / "tokenizer"
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tokens)
    config = Qwen3Config(
        vocab_size=len(ChatText(load_tokenizer(tokens)).tokenizer), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=96, max_position_embeddings=256,
        tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    save_model(new_model(config, 0), path / "model", tokens)
    return path / "model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_folder(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def sampler(folder: Path) -> Iterator[EngineSampler]:
    """One vLLM for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, VLLM)
        text, models = ChatText(load_tokenizer(folder)), models_of(folder)
        params = check(RolloutParams, {"engine": "vllm", "sampling": {"max_tokens": 48, "rows": 64}}, where="rollout")
        model = SampledModel(models.policy, folder, text, models.runtime)
        with ENGINES["vllm"].open(model, params.sampling, 200, "rollout", {"enable_prefix_caching": False}) as made:
            assert isinstance(made, EngineSampler)
            yield made


def requests(count: int) -> list[Request]:
    return [Request([3, 4, 5 + i % 3], f"p{i % 3}:{i}") for i in range(count)]


@torch.no_grad()
def gap(models: ModelSet, asked: list[Request], found: list[Completion], temperature: float = 1.0) -> float:
    """The largest difference of vLLM's log-probs and the trainer's."""
    rows = [TokenRow(one.ids, done.ids) for one, done in zip(asked, found, strict=True)]
    models.policy.eval()
    logps = score_tokens(models.policy, pack(rows), temperature)[0]
    return float((logps - torch.tensor([x for one in found for x in one.logps])).abs().max())


def test_samples_and_log_probs_of_each_version_are_the_policys(sampler: EngineSampler, folder: Path) -> None:
    models, asked = models_of(folder), requests(48)
    for number, temperature in enumerate((1.0, 0.7, 1.0)):
        sampler.sync(models.policy, f"v{number}")
        params = SamplingParams(max_tokens=20, temperature=temperature)
        found, again = (sampler.generate(asked, params, 3) for _ in range(2))
        assert [one.ids for one in found] == [one.ids for one in again], "the seeds decide"
        assert len({tuple(one.ids) for one in found}) > 40
        assert gap(models, asked, found, temperature) < TOLERANCE
        with torch.no_grad():
            for part in models.policy.parameters():  # the tied head among them
                part.add_(0.02 * torch.randn(part.shape, generator=torch.Generator().manual_seed(number)))
        assert gap(models, asked, found, temperature) > 0.01, "the next weights differ enough to be told apart"


def test_a_server_that_slept_has_the_same_samples_and_takes_new_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU vLLM says that it ignores sleep, so this shows the order of calls and no memory."""
    monkeypatch.setenv(PYTHON, VLLM)
    models, asked, params = models_of(folder), requests(8), SamplingParams(max_tokens=20, rows=8)
    model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
    with ENGINES["vllm"].open(model, params, 200, "rollout", {"sleep": True}) as sampler:
        assert isinstance(sampler, EngineSampler)
        sampler.sync(models.policy, "a")
        found = sampler.generate(asked, params, 1)
        rest(sampler)
        [server] = sampler._servers
        assert server.ask("GET")["weights"] is None
        assert "sleep" in server._log.read_text()
        assert [one.ids for one in sampler.generate(asked, params, 1)] == [one.ids for one in found]
        rest(sampler)
        with torch.no_grad():
            models.policy.lm_head.weight.mul_(1.2)
        sampler.sync(models.policy, "b")
        again = sampler.generate(asked, params, 1)
        assert gap(models, asked, again) < TOLERANCE < gap(models, asked, found) and server.starts == 1


def test_a_server_whose_engine_has_ended_is_started_again(sampler: EngineSampler, folder: Path) -> None:
    models, asked = models_of(folder), requests(8)
    sampler.sync(models.policy, "ended")
    expected = sampler.generate(asked, SamplingParams(max_tokens=20), 1)
    [server] = sampler._servers
    starts, pid = server.starts, server.ask("GET")["pid"]
    for child in psutil.Process(pid).children():
        if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline()):
            child.kill()
    found = sampler.generate(asked, SamplingParams(max_tokens=20), 1)
    assert [one.ids for one in found] == [one.ids for one in expected] and server.starts == starts + 1


def test_stop_strings_and_lengths(sampler: EngineSampler, folder: Path) -> None:
    models = models_of(folder)
    sampler.sync(models.policy, "stops")
    text = ChatText(load_tokenizer(folder))
    found = sampler.generate(requests(32), SamplingParams(max_tokens=40, stop=["1"]), 0)
    stopped = [one for one in found if one.finish == "stop" and one.ids[-1] not in text.stops.tokens]
    assert stopped and all("1" in text.decode(one.ids) and "1" not in text.decode(one.ids[:-1]) for one in stopped)
    assert all(len(one.ids) == 40 for one in found if one.finish == "length")


def test_episodes_of_several_turns_are_those_of_the_built_in_decoder(
    sampler: EngineSampler, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_talk.py").write_text(TASKS)
    models, text = models_of(folder), ChatText(load_tokenizer(folder), str(folder))
    sampler.sync(models.policy, "episodes")
    asked = [[{"role": "user", "content": f"{n}+{n}"}] for n in range(8)]
    prompts = [Prompt(f"p{n}", turns, text.prompt(turns), task="own_talk:twice") for n, turns in enumerate(asked)]
    params = SamplingParams(max_tokens=24, stop=["1", "2", "a", "e", " "])
    mine, found = (
        generate_rollouts(one, text, prompts, params, 0, greedy=True)
        for one in (LocalSampler(models.policy, text.stops, models.runtime), sampler)
    )
    assert [(one.row, one.turns, one.finish) for one in found] == [(one.row, one.turns, one.finish) for one in mine]
    assert max(len(one.turns) for one in found) == 3, "the policy, the task, the policy"
    drawn = generate_rollouts(sampler, text, prompts, params, 0)
    assert sampler_gap(models.policy, drawn, 1.0, models.runtime, "test")["sampler_gap_max"] < TOLERANCE


def test_an_evaluation_by_vllm_has_our_greedy_rows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PYTHON, VLLM)
    shutil.copytree(folder, "models/base/tiny")
    shared = {"split": "test", "info": "{}", "task": ""}
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}+1"}], "problem": f"{n}+1", "answer": str(n + 1), **shared}
        for n in range(20)
    ]
    write_table(with_ids(from_rows(rows, "prompts"), "prompts"), Path("data/mine/prompts.parquet"), "prompts")
    given = {"data": "mine/prompts", "reference": "none", "reward_model": "none", "prompts": 20, "samples": 2}
    tables = {}
    for engine in ("builtin", "vllm"):
        params = check(EvaluateParams, {**given, "engine": engine, "sampling": {"max_tokens": 16}}, where="evaluate")
        stage = EvaluationStage(f"evaluate@{engine}", "evaluate.settings", "base/tiny", params)
        policy = stage.policy()
        asked = stage.prompts(policy.text)
        stage.save(evaluate_model(policy, None, asked, config=params, sampler=stage.sampler, name=stage.name))
        tables[engine] = pl.read_parquet(f"results/{engine}/rollouts.parquet").filter(pl.col("greedy"))
    columns = ["prompt_id", "completion_ids", "completion", "reward", "truncated"]
    one, other = (tables[name].select(columns).sort("prompt_id") for name in ("builtin", "vllm"))
    assert one.height == 20 and one.equals(other)
    metrics = json.loads(Path("results/vllm/metrics.json").read_text())
    assert 0 <= metrics["sampler_gap"] <= metrics["sampler_gap_max"] < TOLERANCE
    assert "sampler_gap" not in json.loads(Path("results/builtin/metrics.json").read_text())


def test_a_setting_that_vllm_does_not_know_ends_the_run_with_its_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, VLLM)
    models = models_of(folder)
    model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
    with (
        ENGINES["vllm"].open(model, SamplingParams(rows=8), 64, "rollout", {"max_model": 64}) as sampler,
        pytest.raises(EngineError, match=r"(?s)ended with status 2 while it started.*unrecognized.*max-model=64"),
    ):
        sampler.sync(models.policy, "a")


@pytest.mark.parametrize("options", [*ALONE[:2], MERGED[1]], ids=str)
def test_adapters_by_vllm(
    options: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PYTHON, VLLM)
    models, asked, greedy = adapted(folder, options), requests(24), set()
    text = ChatText(load_tokenizer(folder))
    ours = LocalSampler(models.policy, text.stops, models.runtime)
    model = SampledModel(models.policy, folder, text, models.runtime)
    with ENGINES["vllm"].open(model, SamplingParams(max_tokens=20, rows=32), 64, "rollout", {}) as theirs:
        for number in range(4):
            before = COUNTS["weight_bytes"]
            theirs.sync(models.policy, f"v{number}")
            sent = COUNTS["weight_bytes"] - before
            found = theirs.generate(asked, SamplingParams(max_tokens=20), number)
            assert gap(models, asked, found) < TOLERANCE
            found, mine = (
                one.generate(asked[:3], SamplingParams(max_tokens=20), 0, greedy=True) for one in (theirs, ours)
            )
            assert [one.ids for one in found] == [one.ids for one in mine]
            assert gap(models, asked[:3], found) < TOLERANCE
            greedy.add(tuple(tuple(one.ids) for one in found))
            if options in ALONE:
                assert adapter_bytes(models) < sent < adapter_bytes(models) + 20_000
            update(models, number)
    assert len(greedy) == 4, "each update changes what is likeliest"
    assert "the adapter is merged" not in capfd.readouterr().out


@pytest.mark.parametrize("ahead", [0, 1])
def test_grpo_by_vllm(
    ahead: int, sampler: EngineSampler, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    models, recorded = models_of(folder), Recorded(sampler)
    run = grpo(folder, models, recorded, ahead=ahead, engine="vllm")  # type: ignore[arg-type]
    rows = training_loop(run, Checkpoints(run.name, {}, []), CsvRecorder(tmp_path / "log.csv")).rows
    assert len(recorded.samples) == 48
    assert recorded.versions[::12] == [f"online@grpo step {2 * max(number - ahead, 0)}" for number in range(4)]
    assert all(row["sampler_kl"] < (1 if ahead else 1e-8) for row in rows)


def test_a_killed_server_is_started_again_with_the_present_weights(sampler: EngineSampler, folder: Path) -> None:
    models, asked = models_of(folder), requests(8)
    with torch.no_grad():
        models.policy.lm_head.weight.mul_(1.2)
    sampler.sync(models.policy, "killed")
    expected = sampler.generate(asked, SamplingParams(max_tokens=20), 1)
    [server] = sampler._servers
    starts = server.starts
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGKILL)
    found = sampler.generate(asked, SamplingParams(max_tokens=20), 1)
    assert server.starts == starts + 1
    assert [one.ids for one in found] == [one.ids for one in expected]


def test_two_servers_share_the_samples_and_a_killed_one_alone_is_started_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, VLLM)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    models, asked, params = models_of(folder), requests(24), SamplingParams(max_tokens=20, rows=8)
    model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
    with ENGINES["vllm"].open(model, params, 200, "rollout", {}, 2) as sampler:
        assert isinstance(sampler, EngineSampler)
        one, other = sampler._servers
        recorded = Recorded(sampler)
        run = grpo(folder, models, recorded, engine="vllm")  # type: ignore[arg-type]
        rows = training_loop(run, Checkpoints(run.name, {}, []), CsvRecorder(tmp_path / "log.csv")).rows
        assert len(recorded.samples) == 48 and all(row["sampler_kl"] < 1e-8 for row in rows)
        sampler.sync(models.policy, "after")
        expected = sampler.generate(asked, params, 1)
        assert gap(models, asked, expected) < TOLERANCE and one.starts == other.starts == 1
        finished: list[int] = []

        def advance(more: int) -> None:
            finished.append(more)
            if len(finished) == 4 and other._process is not None:
                os.kill(other._process.pid, signal.SIGKILL)

        found = sampler.generate(asked, params, 1, advance=advance)
        assert (one.starts, other.starts, finished) == (1, 2, [1] * 24)
        assert [done.ids for done in found] == [done.ids for done in expected]
        family = [one._process, other._process]
    assert all(process is not None and not running(process.pid) for process in family)


HOLDER = """
import sys, time
from pathlib import Path
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import SamplingParams
from posttrain.models.files.store import load_tokenizer
from posttrain.text.chat import ChatText
from tests.pipeline.engines.support import models_of
folder = Path(sys.argv[1])
models = models_of(folder)
model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
with ENGINES["vllm"].open(model, SamplingParams(rows=8), 64, "rollout", {}) as sampler:
    sampler.sync(models.policy, "a")
    print(sampler._servers[0]._process.pid, sampler._servers[0].folder, flush=True)
    time.sleep(900)
"""


def test_all_processes_of_vllm_are_gone_soon_after_the_stage_was_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, VLLM)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as stage:
        assert stage.stdout is not None
        server, place = stage.stdout.readline().split()[-2:]
        family = [int(server), *(one.pid for one in psutil.Process(int(server)).children(recursive=True))]
        assert len(family) > 1, "vLLM has a process for its engine"
        os.kill(stage.pid, signal.SIGKILL)
        killed = time.monotonic()
        while time.monotonic() < killed + GONE_S and (Path(place).exists() or any(map(running, family))):
            time.sleep(0.05)
    print(f"gone after {time.monotonic() - killed:.1f} s")
    assert not Path(place).exists() and not any(map(running, family))


def answers(url: str) -> bool:
    """Whether a server answers already."""
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def test_a_teacher_that_vllm_serves_gives_the_log_probs_of_a_forward_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TEACHER_KEY", "a-secret-of-the-test")
    command = [
        VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--api-key", "a-secret-of-the-test", "--max-model-len", "256",
        "--enforce-eager",
    ]  # fmt: skip
    memory = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **memory}, stdout=log, stderr=log, start_new_session=True)
    drawn_rows = [drawn(folder, "It is 56.", finish) for finish in ("stop", "length")]
    params = TeacherServer(url=f"http://127.0.0.1:{port}/v1", model=str(folder), key="TEACHER_KEY", top=7)
    rows = [TokenRow([5, 6, 7], [8, 9, 10, 11]), TokenRow([5, 6, 7], [20, 21, 22], [True, False, True])]
    try:
        while not answers(f"http://127.0.0.1:{port}/health"):  # the test's own limit ends it
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(1)
        ids, logps = ServedTeacher(params, "distill.runs.x", load_tokenizer(folder), "sft/main")(rows)
        by_text = Likelihood(LikelihoodOptions(url=params.url, model=params.model, key=params.key), "online.runs.x")(
            drawn_rows
        )
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    model, packed = load_policy(folder), pack(rows)
    with torch.no_grad():
        logits = head_of(model).logits(packed_states(model, packed)[packed.source_M])
    expected, best = logits.log_softmax(-1).topk(7)
    assert ids.tolist() == best.tolist()
    assert float((logps - expected).abs().max()) < TOLERANCE
    assert all(score.status == "ok" and abs(score.value) < 10 * TOLERANCE for score in by_text), by_text
