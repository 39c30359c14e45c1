"""A training on own samples, from its values to the trained policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.evaluate.watch import HeldoutWatch
from posttrain.models.files.text import load_text
from posttrain.online.collect import PolicyGroups
from posttrain.online.config import OnlineConfig
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import NoRollouts
from posttrain.online.run import OnlineRun, _Patience, given, run_online
from posttrain.rollout import Prompt
from posttrain.sampling.distributed import DistributedSampler
from posttrain.sampling.sampler import encode_prompts
from posttrain.train.callback import NoWatch
from posttrain.train.checkpoint import NoCheckpoints
from posttrain.train.loop import TrainingRun
from posttrain.train.metrics import NoRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.trained import Trained
from tests.library.models.tiny import rollout_of, tiny_folder

ROLLOUT = {"rounds": 2, "prompts": 2, "group_size": 2, "sampling": {"max_tokens": 4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("run"))


def length(rollouts: Sequence[Any]) -> list[float]:
    return [float(len(one.text)) for one in rollouts]


def run(folder: Path, **settings: Any) -> OnlineRun:
    base = {"reward": {"length": length}, "rollout": ROLLOUT, "canaries": 0, "optimizer": {"lr": 1e-2}, "kl": "none"}
    config = OnlineConfig.preset("grpo", **{**base, **settings})
    text = load_text(folder)
    asked = [Prompt(f"p{nth}", [{"role": "user", "content": f"{nth}+1"}], ()) for nth in range(6)]
    prompts = encode_prompts(text, asked)
    models = ModelSet.load(config.runtime(), folder, config.needs, config)
    return OnlineRun("online@a", config, text, prompts[:4], models, prompts[4:])


def test_the_parts_of_a_run(folder: Path) -> None:
    one = run(folder)
    assert one.section == "online.runs.a"
    rewards = one.rewards()
    scored = rewards.score([rollout_of("abc")])
    assert rewards.totals(scored) == [3.0]
    decoder = one.decoder()
    assert isinstance(decoder, DistributedSampler) and decoder._local.model is one.models.policy
    groups = one.groups(decoder)
    assert isinstance(groups, PolicyGroups) and len(groups.sample(_draw(one))) == 4
    training = one.training(groups, rewards, RewardMonitor("a", {}, compares=True))
    assert isinstance(training, TrainingRun) and training.source.steps == one.config.rollout.rounds * 2
    assert (training.name, training.models, training.params) == ("online@a", one.models, one.config)
    assert training.step_tokens == one.config.step_tokens(max(len(prompt.ids) for prompt in one.prompts))


def _draw(one: OnlineRun) -> Any:
    from posttrain.online.collect import Draw

    return Draw(one.prompts[:2], 0, 0)


def test_a_watch_measures_the_held_out_prompts(folder: Path) -> None:
    one = run(folder)
    assert one.watch(one.rewards(), one.decoder(), 4) is None
    watched = run(folder, watch={"every": 2, "reward": {"length": length}})
    watch = watched.watch(watched.rewards(), watched.decoder(), 4)
    assert isinstance(watch, HeldoutWatch) and "heldout_true" in watch.look(0)


def test_the_engine_of_the_settings_or_a_given_sampler(folder: Path) -> None:
    one = run(folder)
    with one.sampler() as sampler:
        assert isinstance(sampler, DistributedSampler) and sampler._local.model is one.models.policy
        with given(sampler) as same:
            assert same is sampler


def test_training_changes_the_policy(folder: Path) -> None:
    one = run(folder)
    before = one.models.policy.model.norm.weight.clone()
    seen: list[int] = []
    trained = run_online(one, NoCheckpoints(), NoRecorder(), on_step=lambda step, _: seen.append(step))
    assert isinstance(trained, Trained) and trained.steps == len(trained) == 4 and seen == [0, 1, 2, 3]
    assert not torch.equal(before, one.models.policy.model.norm.weight)
    assert isinstance(trained.rollouts, NoRollouts) and trained.figures == {}
    other = run(folder)
    again = run_online(other, NoCheckpoints(), NoRecorder(), sampler=other.decoder())
    assert [row["reward"] for row in again] == [row["reward"] for row in trained]


class Watched(NoWatch):
    """A watch whose answers are known."""

    over = False

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self.over

    def look(self, step: int) -> dict[str, float]:
        return {"looked": float(step)}

    def finish(self) -> dict[str, float]:
        return {"kept_step": 3.0}

    def state_dict(self) -> dict[str, Any]:
        return {"state": torch.tensor(4)}

    def load_state_dict(self, tensors: dict[str, Any]) -> None:
        self.loaded = tensors


def test_patience_ends_a_run_and_passes_on_the_rest() -> None:
    monitor, watch = RewardMonitor("a", {}, compares=True), Watched()
    patience = _Patience(monitor, watch)
    assert monitor.raises is False and patience.ended is False
    assert patience.look(2) == {"looked": 2.0} and patience.finish() == {"kept_step": 3.0}
    assert patience.state_dict() == {"state": torch.tensor(4)}
    patience.load_state_dict({"a": torch.tensor(1)})
    assert watch.loaded == {"a": torch.tensor(1)}
    watch.over = True
    assert patience.ended is True
    watch.over, monitor.ended = False, True
    assert patience.ended is True
