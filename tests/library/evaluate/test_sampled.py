"""One policy on prompts: its samples, and its distance to a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.evaluate.completions_config import CompletionsConfig
from posttrain.evaluate.sampled import PolicySampling, SampledCompletions, refuse_truncation
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.rollout import Prompt
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import engine_of
from posttrain.sampling.sampler import SamplingParams, encode_prompts
from posttrain.text.bpe import BpeParams, train_tokenizer
from tests.library.models.tiny import tiny_folder

KL = {"kl_k1", "kl_k3"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("policies")
    return tiny_folder(place / "a"), tiny_folder(place / "b", seed=1)


def sampling(folder: Path, reference: Any = None, **settings: Any) -> PolicySampling:
    given = {"samples": 2, "sampling": SamplingParams(max_tokens=3), **settings}
    policy = SampledModel(load_policy(folder), folder, load_text(folder), Runtime(DeviceParams(device="cpu")))
    asked = [Prompt(f"p{nth}", [{"role": "user", "content": f"{nth}+1"}], ()) for nth in range(3)]
    return PolicySampling(CompletionsConfig(**given), policy, encode_prompts(policy.text, asked), reference)


def test_samples_and_greedy_completions(folders: tuple[Path, Path]) -> None:
    one = sampling(folders[0])
    found = one.run()
    assert [(rollout.prompt.id, rollout.sample) for rollout in found.rollouts] == [
        (f"p{nth}", sample) for nth in range(3) for sample in range(2)
    ]
    assert [rollout.prompt.id for rollout in found.greedy] == ["p0", "p1", "p2"] and not found.metrics
    drawn, gap = one._drawn(engine_of(one.config, "here"))
    assert [len(part) for part in drawn] == [6, 3] and gap == {}
    assert [rollout.text for rollout in drawn[1]] == [rollout.text for rollout in found.greedy]


def test_the_completions_of_some_prompts(folders: tuple[Path, Path]) -> None:
    found = sampling(folders[0], folders[0]).run()
    some = found.of([found.prompts[2], found.prompts[0]])
    assert [one.prompt.id for one in some.greedy] == ["p0", "p2"] and len(some.rollouts) == 4
    assert some.metrics == found.metrics == {"kl_k1": 0.0, "kl_k3": 0.0}
    assert SampledCompletions([], []).prompts == []


def test_the_distance_to_a_reference(folders: tuple[Path, Path]) -> None:
    itself = sampling(folders[0], folders[0]).run().metrics
    assert (itself["kl_k1"], itself["kl_k3"]) == (0.0, 0.0)
    by_folder = sampling(folders[0], folders[1]).run().metrics
    by_model = sampling(folders[0], load_policy(folders[1])).run().metrics
    assert by_folder["kl_k3"] == pytest.approx(by_model["kl_k3"]) and by_folder["kl_k3"] > 0.01


def test_distances_that_cannot_be_measured(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = sampling(folders[0], folders[1], sampling=SamplingParams(max_tokens=3, top_k=2))
    assert cut._kl([], []) == {}
    assert "no KL to the reference: top_p or top_k exclude tokens" in capsys.readouterr().err
    train_tokenizer(["other words here"] * 9, BpeParams(vocabulary=270), tmp_path)
    assert sampling(folders[0], tmp_path)._kl([], []) == {}
    assert "has a different tokenizer, so the KL to it is not measured" in capsys.readouterr().err
    assert sampling(folders[0])._kl([], []) == {}


def test_a_reference_that_the_caller_needs() -> None:
    config = CompletionsConfig(sampling=SamplingParams(top_p=0.5))
    refuse_truncation(config, None)
    refuse_truncation(CompletionsConfig(), "reference")
    with pytest.raises(ParamsError, match="top_p and top_k exclude tokens"):
        refuse_truncation(config, "reference")
