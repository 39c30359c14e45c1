"""Unknown, ignored and contradictory settings are errors that name the setting and say what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.testing import assert_close

from posttrain.algorithms.distill_rows import DISTILL_ROWS
from posttrain.algorithms.distill_rows import READERS as DISTILL_READERS
from posttrain.algorithms.policy import POLICY_ROWS, group_refusal, reuse_refusal
from posttrain.algorithms.policy_knobs import READERS, PolicyKnobs
from posttrain.algorithms.preference import PREFERENCE_ROWS
from posttrain.algorithms.preference_rows import READERS as PREFERENCE_READERS
from posttrain.algorithms.preference_rows import PreferenceKnobs
from posttrain.algorithms.row import ignored
from posttrain.algorithms.sampled_rows import SAMPLED_ROWS, readers_of
from posttrain.algorithms.supervised import DistillKnobs
from posttrain.formulas import distill
from posttrain.online.runs import DISTILL, ONLINE

READERS_OF: dict[str, Any] = {
    **dict.fromkeys(POLICY_ROWS, READERS),
    **dict.fromkeys(PREFERENCE_ROWS, PREFERENCE_READERS),
    **{name: readers_of(row) for name, row in SAMPLED_ROWS.items()},
    **dict.fromkeys(DISTILL_ROWS, DISTILL_READERS),
}
ROWS: dict[str, Any] = {**POLICY_ROWS, **PREFERENCE_ROWS, **SAMPLED_ROWS, **DISTILL_ROWS}
each_row = pytest.mark.parametrize("name", list(ROWS))


@each_row
def test_a_row_sets_nothing_that_it_does_not_read_and_nothing_that_is_the_default(name: str) -> None:
    row = ROWS[name]
    knobs = row.settings()
    assert not ignored(knobs, READERS_OF[name])


@each_row
def test_an_unknown_setting_is_an_error(name: str) -> None:
    with pytest.raises(ValidationError, match="learning_rat"):
        ROWS[name].settings(learning_rat=1.0)


@each_row
def test_every_setting_of_a_row_survives_a_round_trip_through_plain_data(name: str) -> None:
    knobs = ROWS[name].settings()
    assert type(knobs).model_validate(knobs.model_dump()) == knobs


@pytest.mark.parametrize("path", list(READERS))
def test_a_knob_that_no_formula_reads_is_an_error_that_names_it(path: str) -> None:
    idle = {
        "ratio": ("rloo", {"ratio": "sequence"}),
        "clip": ("rloo", {"clip": {"low": 0.1}}),
        "kl.estimator": ("dapo", {"kl": {"estimator": "k2"}}),
        "kl.beta": ("dapo", {"kl": {"beta": 0.1}}),
        "kl.target": ("dapo", {"kl": {"target": 0.1}}),
        "kl.reduce": ("grpo", {"kl": {"reduce": "mean"}}),
        "kl.horizon": ("grpo", {"kl": {"horizon": 7}}),
        "penalty.beta": ("grpo", {"penalty": {"beta": 2.0}}),
        "penalty.target": ("grpo", {"penalty": {"target": 2.0}}),
        "baseline_decay": ("reinforce", {"baseline_decay": 0.5}),
        "mixture": ("grpo", {"mixture": 0.5}),
        "win_scale": ("rloo", {"win_scale": 0.5}),
        "gamma": ("grpo", {"gamma": 0.9}),
        "lam": ("reinforce_pp", {"lam": 0.9}),
        "value_coef": ("grpo", {"value_coef": 0.1}),
        "value_clip": ("grpo", {"value_clip": 0.1}),
        "trpo": ("grpo", {"trpo": {"delta": 0.1}}),
    }
    name, over = idle[path]
    with pytest.raises(ValidationError, match=f"'{path}' is read only where .* Remove {path}"):
        POLICY_ROWS[name].settings(**over)
    with pytest.raises(ValidationError, match=path):
        POLICY_ROWS[name].settings(experimental=True, **over)


@pytest.mark.parametrize(
    ("name", "over", "because"),
    [
        ("gspo", {"aggregation": "token_mean"}, "once per token.* Use aggregation sequence_mean"),
        ("gspo", {"aggregation": "sequence_sum"}, "once per token.* Use aggregation sequence_mean"),
        ("cispo", {"ratio": "sequence", "aggregation": "sequence_mean"}, "weighs single tokens.* Use ratio token"),
        ("ppo", {"ratio": "sequence", "aggregation": "sequence_mean"}, "differs from token to token.* Use ratio token"),
        ("grpo", {"kl": {"estimator": "k1"}}, "expectation 0.* Use k3 or k2"),
        ("cispo", {"clip": {"high": -0.2}}, "cap 1 . high at 0.8.* above 0"),
        ("grpo", {"clip": {"high": 0.0}}, "cap 1 . high at 1.* above 0"),
        ("grpo", {"clip": {"low": None}}, "needs both edges.* Set clip.low"),
        ("ppo", {"kl": {"place": "reward_sequence"}}, "rewards per token.* Use kl.place reward_token"),
        ("rloo", {"kl": {"place": "reward_token"}}, "one number per sequence.* Use kl.place reward_sequence"),
        ("ppo", {"kl": {"beta": 0.0, "target": 1.0}}, "from 0 it never moves.* kl.beta above 0"),
        ("trpo", {"surrogate": "pessimistic"}, "not by a clip.* Use surrogate unclipped"),
        ("trpo", {"penalty": {"kind": "sampled"}}, "under a bound.* Use penalty.kind none"),
        ("ppo", {"resample": 2}, "compares no groups.* Use resample 0"),
    ],
)
def test_a_combination_that_means_nothing_is_refused_with_the_reason(
    name: str, over: dict[str, Any], because: str
) -> None:
    with pytest.raises(ValidationError, match=f"{because}.* or experimental: true"):
        POLICY_ROWS[name].settings(**over)
    assert POLICY_ROWS[name].settings(experimental=True, **over).experimental


@pytest.mark.parametrize(
    ("name", "over", "because"),
    [
        ("orpo", {"reduce": "sum"}, "mean probability"),
        ("orpo", {"reference": True}, "mean probability"),
        ("kto", {"reference": False}, "shift from the reference"),
        ("exo", {"label_smoothing": 0.0}, "never 0 or 1"),
        ("cpo", {"parts": 2}, "there is none"),
        ("dpo", {"gamma": 0.5}, "'gamma' is read only where loss is simpo"),
        ("slic", {"beta": 0.5}, "'beta' is read only where loss is"),
        ("dpo", {"desirable": 0.5}, "'desirable' is read only where loss is bco or kto"),
        ("ipo", {"label_smoothing": 0.1}, "'label_smoothing' is read only where"),
    ],
)
def test_a_preference_setting_that_means_nothing_is_refused(name: str, over: dict[str, Any], because: str) -> None:
    with pytest.raises(ValidationError, match=because):
        PREFERENCE_ROWS[name].settings(**over)


@pytest.mark.parametrize(
    ("name", "over", "because"),
    [
        ("raft", {"select": {"rule": "best_against_worst"}}, "select.rule"),
        ("raft", {"select": {"threshold": 0.5}}, "'select.threshold' is read only where select.rule is reaching"),
        ("raft", {"mixture": 0.5}, "mixture"),
        ("rest", {"select": {"quantiles": [0.9, 0.5]}}, "must not fall"),
        (
            "online_dpo",
            {"select": {"certainty": 0.9}},
            "'select.certainty' is read only where select.rule is all_above",
        ),
        ("online_dpo", {"loss": "kto"}, "takes single answers.* Use a loss over pairs"),
        ("online_dpo", {"parts": 2}, "cuts given data"),
        ("ipo_md", {"reference": False}, "mixture samples with the reference"),
        ("rs_dpo", {"gamma": 0.5}, "'gamma' is read only where loss is simpo"),
        ("gkd", {"own": 1.5}, "own"),
        ("reverse_kl", {"beta": 0.3}, "'beta' is read only where divergence is jensen_shannon"),
        ("context_distill", {"context": " "}, "context is blank"),
    ],
)
def test_a_setting_of_a_sampled_row_that_means_nothing_is_refused(
    name: str, over: dict[str, Any], because: str
) -> None:
    with pytest.raises(ValidationError, match=because):
        ROWS[name].settings(**over)


def test_a_run_that_means_nothing_is_refused_with_the_reason() -> None:
    replay = {"rollout": {"replay": {"groups": 2}}}
    for algorithm, over, because in (
        ("rloo", replay, "no ratio to correct"),
        ("trpo", replay, "earlier rounds have others"),
        ("ppo_penalty", replay, "earlier rounds have others"),
        ("grpo", {"rollout": {"group_size": 1}}, "compares siblings"),
        ("nash_md", {"rollout": {"group_size": 1}}, "compares siblings"),
        ("online_dpo", {"rollout": {"group_size": 1}}, "a pair is two samples"),
        ("grpo", {"text": {"rows": 2}}, "read only where ptx is above 0"),
        ("grpo", {"ptx": 1.0}, "ptx learns a corpus"),
        ("grpo", {"corpus": "two_step/corpus"}, "ptx learns a corpus"),
        ("grpo", {"reward_model": "reward/main"}, "where the reward `model` has a weight"),
        (
            "ppo",
            {"ptx": 1.0, "corpus": "two_step/corpus", "rollout": {"sampling": {"temperature": 0.7}}},
            "at temperature 1",
        ),
        ("gkd", {"teacher": "sft/main", "demonstrations": "two_step/chat"}, "nothing to learn"),
        ("gkd", {"teacher": "reward/main", "demonstrations": "none"}, "learns from given answers too"),
        ("context_distill", {"teacher": "sft/main", "demonstrations": "none"}, "needs context"),
    ):
        named = (DISTILL if algorithm in DISTILL else ONLINE)[algorithm]
        inputs = {"start": "sft/main", "data": "two_step/prompts", "reward_model": "none"}
        inputs |= {"corpus": "none"} if algorithm in ONLINE else {}
        with pytest.raises(ValidationError, match=because):
            named.model.model_validate(named.row.laid({"algorithm": algorithm, **inputs, **over}))


def test_what_a_row_set_for_a_formula_that_was_replaced_falls_away() -> None:
    knobs = POLICY_ROWS["dapo"].settings(surrogate="score")
    assert knobs.clip.high == PolicyKnobs().clip.high
    assert POLICY_ROWS["grpo"].settings(kl={"place": "none"}).kl.beta == 0
    assert PREFERENCE_ROWS["simpo"].settings(loss="dpo").gamma == PreferenceKnobs().gamma


def test_settings_from_a_file_are_laid_on_a_row_with_whatever_else_the_file_says() -> None:
    laid = POLICY_ROWS["dapo"].laid({"algorithm": "dapo", "surrogate": "score", "rollout": {"rounds": 3}})
    assert laid["rollout"] == {"rounds": 3}
    assert "clip" not in laid


def test_a_group_of_one_and_a_second_update_of_a_score_function_are_refused() -> None:
    assert "compares siblings" in str(group_refusal(POLICY_ROWS["grpo"].settings(), 1))
    assert group_refusal(POLICY_ROWS["grpo"].settings(), 2) is None
    assert group_refusal(POLICY_ROWS["ppo"].settings(), 1) is None
    assert "has no ratio" in str(reuse_refusal(POLICY_ROWS["rloo"].settings(), 2))
    assert reuse_refusal(POLICY_ROWS["grpo"].settings(), 4) is None


def test_distillation_names_its_divergence_and_refuses_a_mixture_that_nothing_reads() -> None:
    student, teacher = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    for name in ("forward_kl", "reverse_kl"):
        knobs = DistillKnobs(divergence=name, temperature=2.0)
        assert_close(knobs.formula()(student, teacher), getattr(distill, name)(student, teacher, 2.0))
    mixed = DistillKnobs(divergence="jensen_shannon", beta=0.3)
    assert_close(mixed.formula()(student, teacher), distill.jensen_shannon(student, teacher, 0.3))
    with pytest.raises(ValidationError, match="'beta' is read only where divergence is jensen_shannon"):
        DistillKnobs(beta=0.3)
