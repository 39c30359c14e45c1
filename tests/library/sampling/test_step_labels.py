"""Steps of samples, labelled by their continuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.sampling.sampler import Completion, Request, SamplingParams
from posttrain.sampling.step_labels import LabelledStep, StepLabels, _continued, labelled_steps
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def ids_of(text: ChatText, words: str) -> list[int]:
    found: list[int] = text.tokenizer(words)["input_ids"]
    return found


class Continues:
    """A sampler that goes on with the same words, and remembers its requests."""

    def __init__(self, text: ChatText, words: str) -> None:
        self.words, self.text, self.asked = words, text, list[Request]()

    def generate(self, requests: Sequence[Request], params: Any, seed: int) -> list[Completion]:
        self.asked += requests
        ids = ids_of(self.text, self.words)
        return [Completion([*ids, self.text.stop], [-0.5] * (len(ids) + 1), "stop") for _ in requests]


def sampled(text: ChatText, words: str, sample: int = 0, **changes: Any) -> Rollout:
    ids = ids_of(text, words)
    row = TokenRow([5, 6], [*ids, text.stop])
    turns = ({"role": "assistant", "content": words},)
    prompt = Prompt("p", [{"role": "user", "content": "?"}], [5, 6])
    return replace(Rollout(prompt, sample, row, [-1.0] * (len(ids) + 1), words, "stop", turns), **changes)


def labelled(text: ChatText, sampler: Continues, *rollouts: Rollout, judge: Any = None) -> list[LabelledStep]:
    """Labels where a text that ends with 5 passes."""

    def passes(some: Sequence[Rollout]) -> list[Any]:
        return [judge(one) if judge else float(one.text.endswith("5")) for one in some]

    term = WeightedReward(reward=Reward(lambda options, context: passes))
    reward = RewardSum({"five": term}, Context(Runtime(DeviceParams()), "test"))
    scored = reward.score(list(rollouts))
    labels = StepLabels(separator="\n", samples=1, continuations=2)
    failures = FailureLimit(reward, 0.9, "test")
    return labelled_steps(sampler, text, scored, reward, failures, labels, SamplingParams(), 0, 1.0)  # type: ignore[arg-type]


def test_a_step_is_right_if_a_continuation_passes(text: ChatText) -> None:
    sampler = Continues(text, "=5")
    assert labelled(text, sampler, sampled(text, "1\n2\n3")) == [
        LabelledStep(0, "1", True), LabelledStep(0, "1\n2", True), LabelledStep(0, "1\n2\n3", False),
    ]  # fmt: skip
    assert labelled(text, Continues(text, "=6"), sampled(text, "1\n5")) == [
        LabelledStep(0, "1", False), LabelledStep(0, "1\n5", True),
    ]  # fmt: skip
    first = ids_of(text, "1\n")
    assert sampler.asked[0] == Request([5, 6, *first], f"p:0:{len(first)}:0")
    assert len(sampler.asked) == 4


def test_only_whole_first_samples_are_labelled(text: ChatText) -> None:
    others = [
        sampled(text, "1\n5", sample=1), sampled(text, "1\n5", finish="length"), sampled(text, " "),
        sampled(text, "1\n5", turns=({"role": "assistant", "content": "1"}, {"role": "user", "content": "?"})),
    ]  # fmt: skip
    assert labelled(text, Continues(text, "5"), *others) == []


def test_a_step_whose_continuations_have_no_score_is_left_out(text: ChatText) -> None:
    def judge(one: Rollout) -> Any:
        return Score(0.0, "error", "no") if one.text.endswith("6") else 0.0

    found = labelled(text, Continues(text, "6"), sampled(text, "1\n2"), sampled(text, "3\n4"), judge=lambda one: (
        judge(one) if one.text.startswith("1") else 0.0
    ))  # fmt: skip
    assert [step.text for step in found] == ["1\n2", "3", "3\n4"]


def test_a_sample_goes_on_after_some_of_its_tokens(text: ChatText) -> None:
    one = sampled(text, "1\n2", sample=3, version="step 4")
    ids = list(one.row.rest[:1])
    found = _continued(one, ids, Completion([*ids_of(text, "5"), text.stop], [-0.5, -0.25], "stop"), text)
    assert found.row.rest == [*ids, *ids_of(text, "5"), text.stop] and found.logps == [-1.0, -0.5, -0.25]
    assert (found.sample, found.version, found.text) == (3, "step 4", text.stops.decode([*ids, *ids_of(text, "5")]))
