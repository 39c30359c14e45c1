"""What names the checkpoints of an output: the code of rewards, what it has captured, and the weights."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.api.arguments import plain_arguments
from posttrain.rewards import Rollout, rule
from posttrain.rewards.reward import NoOptions
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT, environment

PROMPTS = ["1+1", "2+2"]
ROLLOUT = {"rounds": 2, "prompts": 2, "group_size": 4, "minibatches": 1, "sampling": {"max_tokens": 4}}
SETTINGS: dict[str, Any] = {"rollout": ROLLOUT, "optimizer": {"lr": 5e-3}}


@dataclass(slots=True)
class Slotted:
    scale: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("arguments"))


def low(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(rollout.row.rest) % 7 / 6 for rollout in rollouts]


def high(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(rollout.row.rest) % 5 / 4 for rollout in rollouts]


def made(source: str) -> Any:
    """Return `reward` of a file of the user's."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "rewards.py", "exec"), names)
    return names["reward"]


def scaled(scale: float) -> Callable[[float], float]:
    return lambda value: value * scale


def ruled(scale: float) -> Any:
    @rule()
    def reward(rollout: Rollout, options: NoOptions) -> float:
        return len(rollout.text) * scale

    return reward


class Scorer:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [self.scale for _ in rollouts]

    def score(self, rollouts: Sequence[Rollout]) -> list[float]:
        return self(rollouts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made("def reward(x): return x + 1"), made("def reward(x): return x + 2")),
        (made("def reward(x): return x.one"), made("def reward(x): return x.two")),
        (made("def reward(x): return [y + 1 for y in x]"), made("def reward(x): return [y + 2 for y in x]")),
        (made("def reward(x, y=1): return y"), made("def reward(x, y=2): return y")),
        (made("A = 1\ndef reward(x): return A"), made("A = 2\ndef reward(x): return A")),
        (
            made("def f(x): return x\ndef reward(x): return f(x)"),
            made("def f(x): return -x\ndef reward(x): return f(x)"),
        ),
        (
            made("class A:\n  def f(x): return x\ndef reward(x): return A.f(x)"),
            made("class A:\n  def f(x): return -x\ndef reward(x): return A.f(x)"),
        ),
        (scaled(1.0), scaled(2.0)),
        (ruled(1.0), ruled(2.0)),
        (Scorer(1.0), Scorer(2.0)),
        (Scorer(1.0).score, Scorer(2.0).score),
        (functools.partial(low, a=1), functools.partial(low, a=2)),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (torch.zeros(2000), torch.ones(2000)),
    ],
)
def test_other_arguments_have_another_text(one: Any, other: Any) -> None:
    assert plain_arguments(one) != plain_arguments(other)
    assert plain_arguments(one) == plain_arguments(one)


@pytest.mark.parametrize(
    "make", [lambda: scaled(1.0), lambda: ruled(1.0), lambda: Scorer(1.0), lambda: Scorer(1.0).score]
)
def test_the_same_code_made_twice_has_the_same_text(make: Callable[[], Any]) -> None:
    assert plain_arguments(make()) == plain_arguments(make())


def test_a_function_that_calls_itself_ends() -> None:
    assert "reward" in plain_arguments(made("def reward(x): return reward(x - 1) if x in {1, 2, 3} else reward"))


def test_another_process_has_the_same_text() -> None:
    code = "from tests.library.api.test_arguments import *; "
    code += "print(plain_arguments([low, ruled(1.0), Scorer, {'a', 'b', 'c'}]))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(texts) == 1


def test_another_reward_or_reference_trains_again(folder: Path, tmp_path: Path) -> None:
    def trained(**options: Any) -> int:
        steps: list[int] = []
        model, tokenizer = posttrain.load_model(folder)
        named = {"reward": {"mine": options.pop("reward", low)}, "settings": SETTINGS, "output": tmp_path, **options}
        posttrain.train_online(model, tokenizer, PROMPTS, on_step=lambda step, _: steps.append(step), **named)
        return len(steps)

    reference, _ = posttrain.load_model(folder)
    assert trained() == 2
    assert trained() == 0, "the same arguments: it is finished"
    assert trained(reward=high) == 2
    assert trained(reference=reference) == 2
    assert trained(reference=reference) == 0
    with torch.no_grad():
        next(reference.parameters()).add_(0.1)
    assert trained(reference=reference) == 2


def test_another_reference_of_pairs_trains_again(folder: Path, tmp_path: Path) -> None:
    reference, _ = posttrain.load_model(folder)
    steps: list[int] = []
    for change in (0.0, 0.1):
        with torch.no_grad():
            next(reference.parameters()).add_(change)
        posttrain.train_model(
            *posttrain.load_model(folder), [{"prompt": "1", "chosen": "2", "rejected": "3"}], "dpo",
            reference=reference, output=tmp_path, on_step=lambda step, _: steps.append(step),
        )  # fmt: skip
    assert steps == [0, 0]


class Lazy(Sequence[dict[str, str]]):
    """Rows as a dataset has them: its `repr` says how many there are."""

    def __init__(self, answer: str) -> None:
        self._rows = [{"prompt": "1", "completion": answer}]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]

    def __repr__(self) -> str:
        return "Lazy(1 row)"


def test_other_rows_or_another_template_train_again(folder: Path, tmp_path: Path) -> None:
    def trained(rows: Sequence[dict[str, str]], template: str = "") -> int:
        steps: list[int] = []
        model, tokenizer = posttrain.load_model(folder)
        tokenizer.chat_template = template + tokenizer.chat_template
        posttrain.train_model(model, tokenizer, rows, output=tmp_path, on_step=lambda step, _: steps.append(step))
        return len(steps)

    assert trained(Lazy("2")) == 1
    assert trained([{"prompt": "1", "completion": "2"}]) == 0, "the same rows"
    assert trained(Lazy("3")) == 1
    assert trained(Lazy("3"), "{{ 'Hi. ' }}") == 1


def test_an_object_without_a_dictionary_counts_by_its_fields() -> None:
    assert plain_arguments(Slotted(1)) != plain_arguments(Slotted(2))
    assert plain_arguments(Slotted(1)) == plain_arguments(Slotted(1))
