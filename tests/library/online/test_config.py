"""The settings of a training on own samples: what they make, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer
from posttrain.online.config import (
    OVERLONG,
    OnlineConfig,
    OnlinePolicyConfig,
    WatchParams,
    reward_refusal,
)
from posttrain.online.ptx import PtxSource
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import RolloutLog
from posttrain.online.trpo import Trpo
from posttrain.rollout import TokenRow
from posttrain.sampling.sampler import KeptSampling, RoutedSampling, SamplingParams
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import EpochSource, Example
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW
from tests.library.models.tiny import TEXTS, tiny_model

ROLLOUT = {"rounds": 3, "prompts": 5, "group_size": 4, "minibatches": 2, "sampling": {"max_tokens": 8}}
CPU = Runtime(DeviceParams(device="cpu"))


def config(algorithm: str = "grpo", **settings: Any) -> Any:
    return OnlineConfig.preset(algorithm, **{"reward": {"format": 1.0}, "rollout": ROLLOUT, **settings})


def test_a_preset_replaces_settings_of_its_algorithm() -> None:
    found = config("dapo", seed=3)
    assert isinstance(found, OnlinePolicyConfig) and (found.algorithm, found.seed, found.resample) == ("dapo", 3, 3)
    assert found.tries == 4 and config().tries == 1
    assert found.most_rollouts == 3 * 5 * 4 * 4 and config().most_rollouts == 60


def test_what_a_watch_measures() -> None:
    watch = WatchParams(reward={"format": 1.0}, metrics=["repetition"])  # type: ignore[arg-type]
    assert [*watch.terms] == ["format", "repetition"] and watch.terms["repetition"].counted == 0


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"adapter": {"type": "lora", "dropout": 0.1}}, "adapter.dropout changes log-probs"),
        ({"algorithm": "nash_md", "rollout": {**ROLLOUT, "engine": "vllm"}}, "samples of a mixture of two models"),
        ({"renew_reference": {"every": 2}, "kl": "none"}, "the run has no reference. Set kl, or remove it"),
        ({"watch": {"reward": {"format": {"normalise": True}}}}, "watch.reward.format has normalise"),
        ({"rollout": {**ROLLOUT, "group_size": 1}}, "rollout.group_size = 1: "),
        (
            {"rollout": {**ROLLOUT, "sampling": {"top_k": 1}}},
            "rollout.sampling.top_k = 1: a token drawn from a single token",
        ),
        ({"overlong": 0.2, "reward": {OVERLONG: 1.0}}, "overlong samples are penalised twice"),
        ({"text": {"rows": 3}}, "text is only used if ptx is above 0"),
        ({"ptx": 1.0, "rollout": {**ROLLOUT, "sampling": {"temperature": 0.5}}}, "Set rollout.sampling.temperature 1"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ParamsError) as refused:
        config(**settings)
    assert fault in str(refused.value)


def test_the_models_and_columns_that_a_run_needs() -> None:
    assert "ref_logp" in config().needs and "ref_logp" not in config(kl="none").needs
    assert config("nash_md", kl="none").needs >= {"ref_logp", "opponent"}
    assert config().logp_temperature == 1.0
    warm = {**ROLLOUT, "sampling": {"temperature": 0.5}}
    assert config(rollout=warm).logp_temperature == 0.5
    assert config().reference_moves is False and config(renew_reference={"every": 2}).reference_moves is True
    assert (config("ppo").has_critic, config().has_critic) == (True, False)
    assert (config().compares_groups, config("reinforce").compares_groups) == (True, False)


def test_a_mixture_gives_opponents() -> None:
    nash = config("nash_md")
    assert nash.mixture_share == nash.advantage.mixture > 0 and nash.has_opponents is True
    assert config().mixture_share == 0.0 and config().has_opponents is False


def test_rewards_of_a_sample() -> None:
    plain, cut = config(), config(overlong=0.25)
    assert plain.terms is plain.reward and plain.learned_from is plain.reward
    assert [*cut.terms] == ["format", OVERLONG] and cut.terms[OVERLONG].options.fraction == 0.25


def test_how_samples_are_drawn() -> None:
    assert type(config().sampling) is SamplingParams
    cut = {**ROLLOUT, "sampling": {"top_k": 5, "max_tokens": 8}}
    kept = config(rollout=cut).sampling
    assert type(kept) is KeptSampling and kept.top_k == 5
    routed = config(router={"replay": "sampler"}, rollout={**ROLLOUT, "engine": "vllm"}, correction="truncate")
    assert type(routed.sampling) is RoutedSampling


def test_the_objective_and_the_monitor() -> None:
    found = config("dr_grpo")
    objective = found.objective()
    assert isinstance(objective, PolicyObjective) and (objective.config, objective.max_length) == (found, 8)
    monitor = found.monitor("online.runs.a")
    assert isinstance(monitor, RewardMonitor) and monitor._compares is True and monitor._patience == found.patience


def test_own_samples_and_text() -> None:
    own = EpochSource([Example([TokenRow([1], [2])])], 1, 1.0, 0)
    given = [Example([TokenRow([], [1, 2, 3])])]
    assert config().source(own, None) is own and config().mixed(own, given) is own
    ptx = config(ptx=1.0)
    assert isinstance(ptx.mixed(own, given), PtxSource) and ptx.mixed(own, []) is own


def test_the_most_tokens_of_a_step() -> None:
    assert config().longest_row(10) == 18
    assert config().step_tokens(10) == 3 * 4 * 18, "two minibatches of 5 prompts"
    replayed = {**ROLLOUT, "replay": {"groups": 2}}
    assert config(rollout=replayed, correction="truncate").step_tokens(10) == (3 + 2) * 4 * 18
    ptx = config(ptx=1.0, text={"rows": 3, "window": 7})
    assert ptx.step_tokens(10) == 3 * 4 * 18 + 3 * 8


def test_the_update_rule() -> None:
    models = ModelSet(tiny_model(), CPU, critic=None)
    given = {"optimizer": {"lr": 1e-3}, "device": {"device": "cpu"}}
    assert isinstance(config(**given).update_rule(models, 4), AdamW) and config().divides_models is True
    trpo = config("trpo", **given)
    assert isinstance(trpo.update_rule(models, 4), Trpo) and trpo.divides_models is False
    half = {"device": "cpu", "precision": "bf16"}
    assert config("trpo", **given).runtime().precision == "fp32" and config(device=half).runtime().bf16 is True
    assert config(device=half).runtime().device == torch.device("cpu")


def test_the_log_of_rollouts(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tmp_path)
    text = ChatText(load_tokenizer(tmp_path))
    log = config("nash_md").rollout_log("online@a", text, 10)
    assert isinstance(log, RolloutLog)
    sampling = log.sampling
    assert (sampling.run, sampling.group_size, sampling.longest, sampling.most) == ("online/a", 4, 18, 60)
    assert '"mixture"' in sampling.settings and '"rows"' not in sampling.settings


def test_rewards_that_do_not_fit_how_they_are_compared() -> None:
    assert reward_refusal(config()) is None
    gated = config(reward={"correct": 1.0, "format": {"gate": True}}, algorithm="gdpo", allow_unsupported=True)
    assert reward_refusal(gated) == (
        "'format' is a gate, but advantage 'gdpo' compares each part separately, without gates. Give it a weight"
    )
    drawn = config("dapo", reward={"format": {"normalise": True}}, allow_unsupported=True)
    assert (reward_refusal(drawn) or "").startswith("'format' is normalised over a round, but resample draws")
    assert (reward_refusal(drawn) or "").endswith("Set resample: 0, or normalise: false")
