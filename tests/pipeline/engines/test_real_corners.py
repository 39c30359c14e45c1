"""vLLM itself where settings meet: kill and resume, one round ahead with its experts, adapters on a mixture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import Completion, Request, SamplingParams
from posttrain.text.chat import ChatText
from posttrain.train.loop import training_loop
from posttrain.train.metrics import CsvRecorder
from tests.pipeline.engines.support import Recorded, grpo, models_of
from tests.pipeline.engines.test_adapters import adapted, update
from tests.pipeline.engines.test_engine import flat, same_training
from tests.pipeline.engines.test_experts import gspo, mixture_folder, opened
from tests.pipeline.engines.test_real_experts import PARAMS, _vllm, compared, rows_of
from tests.pipeline.engines.test_real_vllm import TOLERANCE, gap, pytestmark, qwen_folder, requests
from tests.workspace import ROOT

__all__ = ["_vllm", "pytestmark"]


class Noted(Recorded):
    """A sampler that writes down what it gave, and whose process is killed while a round is in flight."""

    def __init__(self, inner: Any, file: Path, last: int | None) -> None:
        super().__init__(inner)
        self._file, self._last, self._done = file, last, 0

    def generate(self, requests: Any, *given: Any, **options: Any) -> Any:
        advance = options.pop("advance", None)

        def noted(more: int) -> None:
            self._done += more
            if self._done == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            if advance is not None:
                advance(more)

        found = super().generate(requests, *given, advance=noted, **options)
        with self._file.open("a") as file:
            for one, done in zip(requests, found, strict=True):
                file.write(json.dumps([self.version, one.name, done.ids, done.logps]) + "\n")
        return found


class KilledSource:
    """A source whose process is killed when it is asked for one batch too many."""

    def __init__(self, inner: Any, last: int) -> None:
        self._inner, self._last = inner, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def batch(self, step: int) -> Any:
        if step >= self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.batch(step)


def stage(folder: Path, place: Path, completions: str, steps: str) -> None:
    """Train as a stage does; the process is killed after so many completions or steps, if they are named."""
    models = models_of(folder)
    model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
    start = flat(models)
    with ENGINES["vllm"].open(model, SamplingParams(max_tokens=8, rows=32), 200, "rollout", {}) as sampler:
        noted = Noted(sampler, place / "samples.jsonl", int(completions) if completions else None)
        run = grpo(folder, models, noted, engine="vllm")  # type: ignore[arg-type]
        if steps:
            object.__setattr__(run, "source", KilledSource(run.source, int(steps)))
        training_loop(run, Checkpoints(run.name, {}, []), CsvRecorder(place / "log.csv"))
    torch.save(flat(models) - start, place / "moved.pt")


def staged(folder: Path, place: Path, kills: list[tuple[str, str]]) -> tuple[dict[str, Any], list[str], torch.Tensor]:
    """(completions by name, names in the order of the answers, change of the weights) of a run with these kills."""
    place.mkdir()
    code = "import sys; from pathlib import Path; from tests.pipeline.engines.test_real_corners import stage; "
    code += "stage(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])"
    for kill in [*kills, ("", "")]:
        command = [sys.executable, "-c", code, str(folder), str(place), *kill]
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "DVC_ROOT": str(place)}, check=False)
        assert ended.returncode == (-signal.SIGKILL if any(kill) else 0)
    lines = [json.loads(line) for line in (place / "samples.jsonl").read_text().splitlines()]
    moved: torch.Tensor = torch.load(place / "moved.pt")
    return {f"{version} {name}": (ids, logps) for version, name, ids, logps in lines}, [x[1] for x in lines], moved


def test_a_killed_run_resumes_to_the_same_samples_and_nearly_the_same_weights(tmp_path: Path) -> None:
    folder = qwen_folder(tmp_path)
    whole, cut = staged(folder, tmp_path / "whole", []), staged(folder, tmp_path / "cut", [("29", ""), ("", "5")])
    found, names, moved = cut
    pairs = [(a, b) for key in found for a, b in zip(found[key][1], whole[0][key][1], strict=True)]
    furthest, apart = max(abs(a - b) for a, b in pairs), float((moved - whole[2]).abs().max())
    print(f"{len(names)} answers; log-probs differ by at most {furthest:.2g}, weights by at most {apart:.2g}")
    assert len(found) == 48 and {key: ids for key, (ids, _) in found.items()} == {
        key: ids for key, (ids, _) in whole[0].items()
    }
    assert furthest < TOLERANCE and same_training(moved, whole[2])


class Kept(Recorded):
    """A sampler that keeps what it was asked and what it gave."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[Request] = []
        self.found: list[Completion] = []

    def generate(self, requests: Any, *given: Any, **options: Any) -> Any:
        found = super().generate(requests, *given, **options)
        self.asked += requests
        self.found += found
        return found


def test_one_round_ahead_with_the_engines_experts(tmp_path: Path) -> None:
    """The experts of a round ahead are those of the weights that sampled it, which the trainer's have left by then."""
    folder = mixture_folder(tmp_path)
    models, before = models_of(folder), models_of(folder)
    with opened(folder, models, PARAMS) as sampler:
        kept = Kept(sampler)
        run = gspo(folder, models, kept, ahead=1, rounds=3)  # type: ignore[arg-type]
        rows = training_loop(run, Checkpoints(run.name, {}, []), CsvRecorder(tmp_path / "log.csv")).rows
        starts = sampler._servers[0].starts
    assert kept.versions[::12] == [f"online@gspo step {step}" for step in (0, 0, 4)]
    gap, moved = compared(before, rows_of(kept.asked[:24], kept.found[:24], replayed=True), kept.found[:24])
    print(f"{starts} starts; log-probs differ by at most {float(gap.max()):.2g}; {moved:.2%} of the choices")
    assert float(gap.max()) < TOLERANCE and moved < 1e-3
    assert rows[0]["router_moved"] == 0 < rows[4]["router_moved"], "round 1 is trained by weights that have moved"
    assert rows[0]["sampler_kl"] < 1e-8 < rows[4]["sampler_kl"]


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_on_a_mixture(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """vLLM 0.30 starts with LoRA on a mixture on a CPU, and its first sample ends it: the adapter is merged then."""
    folder = mixture_folder(tmp_path)
    models, asked, params = adapted(folder, {"type": kind}), requests(24), SamplingParams(max_tokens=20, rows=32)
    text, greedy, gaps = ChatText(load_tokenizer(folder)), set(), []
    ours = LocalSampler(models.policy, text.stops, models.runtime)
    model = SampledModel(models.policy, folder, text, models.runtime)
    with ENGINES["vllm"].open(model, params, 64, "rollout", {}) as theirs:
        for number in range(3):
            theirs.sync(models.policy, f"v{number}")
            gaps.append(gap(models, asked, theirs.generate(asked, params, number)))
            mine, found = (one.generate(asked[:3], params, 0, greedy=True) for one in (ours, theirs))
            assert [one.ids for one in found] == [one.ids for one in mine]
            greedy.add(tuple(tuple(one.ids) for one in found))
            update(models, number)
    said = [line for line in capfd.readouterr().out.splitlines() if "the adapter is merged" in line]
    print(gaps, said)
    assert max(gaps) < TOLERANCE and len(greedy) == 3, "each update changes what is likeliest"
    assert len(said) <= (kind == "lora")
