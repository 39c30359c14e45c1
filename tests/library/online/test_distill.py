"""The settings of a training with a teacher, and steps on given answers."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.algorithms.distillation import DistillObjective, TaughtObjective
from posttrain.errors import ParamsError
from posttrain.online.distill import (
    SERVED,
    DistillTraining,
    MixedSource,
    StudentConfig,
    TaughtTraining,
    _form,
)
from posttrain.rollout import TokenRow
from posttrain.settings.params import ONE, SEVERAL
from posttrain.train.batch_sources import EpochSource, Example

ROLLOUT = {"rounds": 3, "prompts": 4, "group_size": 2, "minibatches": 2, "sampling": {"max_tokens": 8}}
SERVER = {"url": "http://127.0.0.1:1/v1", "model": "large"}


def config(algorithm: str = "reverse_kl", **settings: Any) -> Any:
    return StudentConfig.preset(algorithm, **{"rollout": ROLLOUT, **settings})


def source(token: int, count: int = 1) -> EpochSource:
    return EpochSource([Example([TokenRow([1], [token])])] * count, 1, 1.0, 0)


def test_presets_of_students() -> None:
    found = config("gkd", seed=3)
    assert isinstance(found, DistillTraining) and (found.algorithm, found.seed, found.own) == ("gkd", 3, 0.5)
    taught = config("grpo", reward={"format": 1.0})
    assert isinstance(taught, TaughtTraining) and isinstance(taught.objective(), TaughtObjective)
    objective = found.objective()
    assert isinstance(objective, DistillObjective)


def test_one_endpoint_or_several() -> None:
    assert _form(SERVER) == ONE and _form({"a": SERVER}) == SEVERAL and _form("text") == SEVERAL
    assert config().servers == {}
    one = config(served=SERVER)
    assert [*one.servers] == [SERVED] and one.servers[SERVED].model == "large" and _form(one.served) == ONE
    assert [*config(served={"a": SERVER, "b": SERVER}).servers] == ["a", "b"]


@pytest.mark.parametrize(
    ("algorithm", "settings", "fault"),
    [
        ("context_distill", {}, "context_distill needs context"),
        ("reverse_kl", {"served": SERVER, "temperature": 2.0}, "temperature = 2 needs the logits of all tokens"),
        ("gkd", {"rollout": {**ROLLOUT, "ahead": 1}}, "own = 0.5 skips rounds, but rollout.ahead 1 samples every"),
        ("trpo", {}, "update = trpo: its step is bounded only by the policy's loss"),
    ],
)
def test_settings_that_do_not_fit(algorithm: str, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ParamsError) as refused:
        config(algorithm, **settings)
    assert fault in str(refused.value)


def test_shares_of_the_divergence() -> None:
    assert config().shares(["a"], "here") == [1.0]
    assert config(served={"b": SERVER}).shares(["a"], "here") == [0.5, 0.5]
    assert config(weights={"a": 3.0, "b": 1.0}).shares(["a", "b"], "here") == [0.75, 0.25]
    for given, models, what in (
        ({"served": {"a": SERVER}}, ["a"], "here.served has a teacher with the name of a model, a"),
        ({"weights": {"a": 1.0}}, ["a", "b"], "here.weights has a, but the teachers are a, b"),
        ({"weights": {"a": 1.0}}, ["a"], "here.weights share the divergence among teachers, but a is the only teacher"),
    ):
        with pytest.raises(ParamsError) as refused:
            config(**given).shares(models, "here")
        assert refused.value.what == what


def test_own_samples_and_given_answers() -> None:
    own, given = source(2), [Example([TokenRow([1], [3])])]
    assert config().mixed(own, given) is own and config("gkd").mixed(own, []) is own
    mixed = config("gkd", own=0.0).mixed(source(2, 4), given * 8)
    assert isinstance(mixed, MixedSource)
    assert [row.rest for row in mixed.batch(0).rows] == [[3]] * 4, "as many as a minibatch of own samples"


def test_each_step_is_of_one_kind() -> None:
    mixed = MixedSource(source(2, 40), source(3, 40), 0.5, 0)
    kinds = [mixed.batch(step).rows[0].rest[0] for step in range(40)]
    assert 10 < kinds.count(2) < 30 and kinds == [mixed.batch(step).rows[0].rest[0] for step in range(40)]
    assert {MixedSource(source(2, 9), source(3, 9), 1.0, 0).batch(step).rows[0].rest[0] for step in range(9)} == {2}


def test_no_reward_decides_what_a_student_learns() -> None:
    found = config(reward={"format": 1.0}, max_tokens=40)
    assert found.learned_from == {}
    monitor = found.monitor("distill.runs.a")
    assert monitor._compares is False and monitor._patience is None and monitor._terms == {}
    assert found.longest_row(10) == 40 and found.longest_row(50) == 58
