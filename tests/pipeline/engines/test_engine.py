"""GRPO through a real server process: the same ids as in process, whatever happens to the answers on their way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from posttrain.errors import EngineError
from posttrain.models.device import CUBLAS_WORKSPACE
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.sampling.vllm.process import PYTHON, EngineProcess
from posttrain.text.chat import ChatText
from posttrain.train.loop import training_loop
from posttrain.train.metrics import CsvRecorder
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import tiny_folder
from tests.pipeline.engines.support import Recorded, engine, grpo, models_of, use_server

SAMPLING = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A server without faults, for several tests."""
    with pytest.MonkeyPatch.context() as patch:
        use_server(patch, tmp_path_factory.mktemp("faults"))
        process = EngineProcess([], {})
        yield process
        process.close()


def requests(count: int) -> list[Request]:
    return [Request([3, 4, 5 + i % 3], f"p{i % 3}:{i}") for i in range(count)]


def local(models: ModelSet, folder: Path) -> LocalSampler:
    return LocalSampler(models.policy, ChatText(load_tokenizer(folder)).stops, models.runtime)


def run(
    folder: Path, place: Path, patch: pytest.MonkeyPatch, *processes: EngineProcess, ahead: int = 0
) -> tuple[list[tuple[str, list[int]]], list[str], torch.Tensor, list[dict[str, float]]]:
    """(samples, version of each, change of the weights, metrics) of a GRPO run, in process or with a server."""
    place.mkdir()
    patch.setenv("DVC_ROOT", str(place))
    models = models_of(folder)
    start = flat(models)
    sampler = Recorded(engine(models, folder, *processes) if processes else local(models, folder))
    one = grpo(folder, models, sampler, ahead=ahead, engine="vllm" if processes else "builtin")  # type: ignore[arg-type]
    log = training_loop(one, Checkpoints(one.name, {}, []), CsvRecorder(place / "log.csv"))
    return sampler.samples, sampler.versions, flat(models) - start, log.rows


def flat(models: ModelSet) -> torch.Tensor:
    return torch.cat([part.detach().flatten().clone() for part in models.policy.parameters()])


def same_training(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the weights moved alike: log-probs are rounded differently where other rows are decoded with them."""
    return bool((found - expected).abs().max() < 1e-3 * expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_grpo_through_a_server_has_the_ids_of_grpo_in_process(
    ahead: int, folder: Path, tmp_path: Path, server: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, versions, weights, _ = run(folder, tmp_path / "in", monkeypatch, ahead=ahead)
    found, of, trained, rows = run(folder, tmp_path / "out", monkeypatch, server, ahead=ahead)
    assert found == expected and len(found) == 4 * 3 * 4
    assert of == versions
    assert same_training(trained, weights)
    first = [f"online@grpo step {2 * max(number - ahead, 0)}" for number in range(4) for _ in range(12)]
    assert of == first, "a round is sampled with the weights of its start, or with those of one round before"
    assert [name for name, _ in found if name.endswith(":0")] and len({name for name, _ in found}) == len(found)
    assert all(0 <= row["sampler_kl"] < (1e-9 if not ahead else 1) for row in rows)
    assert (rows[-1]["sampler_kl"] > 1e-9) == bool(ahead), "one round of training lies between them"


@pytest.mark.slow
def test_all_that_the_sampler_protocol_promises(folder: Path, server: EngineProcess) -> None:
    models = models_of(folder)
    ours, theirs = local(models, folder), engine(models, folder, server)
    theirs.sync(models.policy, "a")
    finished: list[int] = []
    for sampling in (
        SamplingParams(max_tokens=12, temperature=0.7),
        SamplingParams(max_tokens=12, stop=["1", " is"]),
        SamplingParams(max_tokens=12, stop=["#", "x", "y", "z", "1", " is"]),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=12, rows=2),
    ):
        mine = ours.generate(requests(9), sampling, 4)
        found = theirs.generate(requests(9), sampling, 4, advance=finished.append)
        assert [(one.ids, one.finish) for one in found] == [(one.ids, one.finish) for one in mine]
        for one, other in zip(found, mine, strict=True):
            assert one.logps == pytest.approx(other.logps, abs=1e-5)
    assert sum(finished) == 5 * 9 and theirs.context == ours.context
    assert theirs.generate([], SAMPLING, 0) == []
    with torch.no_grad():
        models.policy.lm_head.weight.mul_(1.3)
    theirs.sync(models.policy, "b")
    assert [one.ids for one in theirs.generate(requests(9), SAMPLING, 4)] == [
        one.ids for one in ours.generate(requests(9), SAMPLING, 4)
    ], "the tied head was not replaced"


@pytest.mark.slow
def test_weights_that_were_replaced_behind_its_back_are_loaded_again(
    folder: Path, server: EngineProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    models = models_of(folder)
    mine, other = engine(models, folder, server), engine(models_of(folder), folder, server)
    mine.sync(models.policy, "mine")
    other.sync(other._model, "other")
    assert len(mine.generate(requests(5), SAMPLING, 0)) == 5
    assert "HTTP 409: " in capfd.readouterr().out
    assert server.ask("GET")["weights"] == "mine"


@pytest.mark.slow
def test_lost_answers_are_asked_for_again_and_others_that_are_no_samples_end_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected, _, weights, _ = run(folder, tmp_path / "in", monkeypatch)
    use_server(monkeypatch, tmp_path, "500@3,hangup@16,version@30,409@44,nonsense@54,text@55,short@56,400@57")
    process = EngineProcess([], {})
    try:
        found, _, trained, _ = run(folder, tmp_path / "out", monkeypatch, process)
        models = models_of(folder)
        sampler = engine(models, folder, process)
        sampler.sync(models.policy, "a")
        for wrong in (
            "do not form a whole completion",
            "cannot be used",
            "whole completion",
            "HTTP 400: .*as was",
        ):
            with pytest.raises(EngineError, match=wrong):
                sampler.generate(requests(1), SAMPLING, 1)
        assert len(sampler.generate(requests(1), SAMPLING, 1)) == 1
    finally:
        process.close()
    assert sorted(found) == sorted(expected) and process.starts == 1
    assert same_training(trained, weights)
    said = capfd.readouterr().out
    for part in ("HTTP 500", "RemoteProtocolError", "the weights 'another', not 'online@grpo step 4'", "HTTP 409"):
        assert part in said
    assert len(list(tmp_path.glob("fault-*"))) == 8
    assert not process.folder.exists(), "socket, weights and log go with the server"


@pytest.mark.slow
def test_a_server_with_other_logits_shows_in_the_kl_or_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path, ENGINE_PERTURB="0.08")
    process = EngineProcess([], {})
    try:
        *_, rows = run(folder, tmp_path / "off", monkeypatch, process)
        assert all(row["sampler_kl"] > 1e-3 for row in rows)
    finally:
        process.close()


@pytest.mark.parametrize(("value", "inherited"), [(CUBLAS_WORKSPACE[1], "None"), (":16:8", ":16:8")])
def test_a_server_inherits_what_a_user_sets_for_cublas_alone(
    value: str, inherited: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = CUBLAS_WORKSPACE[0]
    monkeypatch.setenv(name, value)
    monkeypatch.setenv(PYTHON, f"python -c 'import os; print(os.environ.get(\"{name}\")); raise SystemExit(3)'")
    process = EngineProcess([], {})
    with pytest.raises(EngineError, match=rf"(?m)^{inherited}$"):
        process.start(tmp_path)
    process.close()


@pytest.mark.slow
def test_a_missing_environment_and_a_server_that_does_not_start_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = models_of(folder)
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with pytest.raises(
        EngineError, match=r"no Python at .*\.venv-vllm/bin/python\. .*`make env-vllm`.*POSTTRAIN_VLLM="
    ):
        engine(models, folder)
    monkeypatch.setenv(PYTHON, "python -c 'print(\"no such model\"); raise SystemExit(3)'")
    sampler = engine(models, folder)
    with pytest.raises(EngineError, match=r"(?s)ended with status 3 while it started; its log has:\nno such model"):
        sampler.sync(models.policy, "a")
    sampler.close()
    with pytest.raises(EngineError, match="the run has ended"):
        sampler._servers[0].start(tmp_path)
