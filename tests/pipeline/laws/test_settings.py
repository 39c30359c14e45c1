"""Unknown, unread and contradictory settings are errors that name the setting and say what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.advantages import ADVANTAGES
from posttrain.algorithms.distill.gkd import jensen_shannon
from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.algorithms.distillation import DISTILL_ROWS, DistillConfig
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig, group_refusal, replay_refusal, reuse_refusal
from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig
from posttrain.algorithms.surrogate import SURROGATES
from posttrain.errors import ParamsError
from posttrain.formulas.distill import forward_kl
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.pipeline.runs.distill import DISTILL
from posttrain.pipeline.runs.online import ONLINE
from posttrain.settings.choices import choices_of
from posttrain.settings.params import check

ROWS: dict[str, AlgorithmRow] = {**POLICY_ROWS, **PREFERENCE_ROWS, **SAMPLED_ROWS, **DISTILL_ROWS}
each_row = pytest.mark.parametrize("name", list(ROWS))
WHERE = "online.runs.a"


def said(name: str, over: dict[str, Any]) -> str:
    """What is said of a row with these settings."""
    with pytest.raises(ParamsError) as caught:
        check(ROWS[name].model, ROWS[name].merged(over), where=WHERE)
    return str(caught.value)


@each_row
def test_an_unknown_setting_is_an_error(name: str) -> None:
    assert f"{WHERE}.learning_rat: unknown key" in said(name, {"learning_rat": 1.0})


@each_row
def test_every_setting_of_a_row_survives_a_round_trip_through_plain_data(name: str) -> None:
    settings = ROWS[name].settings()
    assert type(settings).model_validate(settings.model_dump()) == settings
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings


@each_row
def test_every_choice_refuses_the_options_that_its_type_does_not_read(name: str) -> None:
    for setting, choice in choices_of(ROWS[name].model):
        read = {key: [one for one, entry in choice.table.items() if key in entry.options.model_fields]
                for entry in choice.table.values() for key in entry.options.model_fields if key != "type"}  # fmt: skip
        for other in choice.table:
            for key, types in read.items():
                if other not in types:
                    text = said(name, {setting: {"type": other, key: 1}})
                    assert f"{WHERE}.{setting}.{key}: not an option of type {other}. It belongs to type " in text
                    assert all(one in text for one in types)


@pytest.mark.parametrize(
    ("name", "over", "expected"),
    [
        ("grpo", {"surrogate": {"high": 0.28}}, {"type": "ppo_clip", "low": 0.2, "high": 0.28}),
        ("dapo", {"surrogate": {"low": 0.1}}, {"type": "ppo_clip", "low": 0.1, "high": 0.28}),
        ("dapo", {"surrogate": "ppo_clip"}, {"type": "ppo_clip", "low": 0.2, "high": 0.28}),
        ("dapo", {"surrogate": {"type": "ppo_clip", "low": 0.1}}, {"type": "ppo_clip", "low": 0.1, "high": 0.28}),
        ("dapo", {"surrogate": "cispo"}, {"type": "cispo", "low": None, "high": 4.0}),
        ("grpo", {"surrogate": {"type": "gspo", "low": 0.1}}, {"type": "gspo", "low": 0.1, "high": 4e-4}),
        ("rloo", {"surrogate": "importance"}, {"type": "importance"}),
    ],
)
def test_the_same_type_merges_key_by_key_and_another_type_starts_from_its_defaults(
    name: str, over: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert POLICY_ROWS[name].settings(**over).surrogate.model_dump(exclude={"low_end", "high_end", "steps"}) == expected


def test_a_run_with_the_short_form_and_options_of_the_rows_choice() -> None:
    inputs = {"start": "sft/main", "data": "two_step/prompts", "corpus": "none", "reward_model": "none"}
    over = {"algorithm": "grpo", **inputs, "surrogate": {"high": 0.28}, "kl": {"beta": 0.01}, "rollout": {"rounds": 3}}
    params = check(ONLINE["grpo"].model, ONLINE["grpo"].row.merged(over), where=WHERE)
    unset = {"target": None, "horizon": 10000, "end": None, "steps": None}
    assert params.kl.model_dump() == {"type": "loss", "beta": 0.01, "estimator": "k3", **unset}
    assert params.rollout.rounds == 3
    assert params.objective().config is params


@pytest.mark.parametrize(
    ("name", "over", "words"),
    [
        ("grpo", {"surrogate": "ppo_clp"}, ".surrogate: unknown type 'ppo_clp'. Did you mean 'ppo_clip'?"),
        ("grpo", {"surrogate": {"lo": 0.1}}, ".surrogate.lo: unknown key. Did you mean 'low'?"),
        ("grpo", {"surrogate": {"low": -1.0}}, ".surrogate.low = -1.0: input should be greater than 0"),
        ("grpo", {"surrogate": 3}, ".surrogate: expected one of cispo, "),
        ("grpo", {"surrogate": {"type": 3}}, ".surrogate: unknown type 3"),
        ("grpo", {"surrogate": ["ppo_clip"]}, ".surrogate: expected one of cispo, "),
        ("dapo", {"kl": "loss"}, ".kl.beta: missing. Write the coefficient of the KL"),
        ("dapo", {"kl": {"beta": 0.1}}, ".kl.beta: not an option of type none. It belongs to type loss, reward_token"),
        ("grpo", {"update": {"delta": 0.1}}, ".update.delta: not an option of type adamw. It belongs to type trpo"),
        ("cispo", {"surrogate": {"high": -0.2}}, "edge 1 + high at 0.8, so even samples of the current policy"),
        ("grpo", {"kl": {"horizon": 7}}, "horizon only works with a target. Remove horizon, or set target"),
        ("grpo", {"kl": {"end": 0.0}}, "end and steps only work together. Set both, or neither"),
        ("grpo", {"kl": {"end": 0.0, "steps": 3, "target": 1.0}}, "`target` and `end` both change beta. Remove one"),
        ("grpo", {"surrogate": {"high_end": 0.1}}, "low_end or high_end and steps only work together. Set both, or"),
        ("grpo", {"surrogate": {"steps": 3}}, "low_end or high_end and steps only work together. Set both, or neither"),
        ("gspo", {"surrogate": {"high_end": 0.0, "steps": 3}}, "so even samples of the current policy"),
        (
            "cispo",
            {"surrogate": {"low_end": 0.1, "steps": 3}},
            "low_end is set but low is null, so there is no start value",
        ),
        ("sapo", {"surrogate": {"high_end": 0.1, "steps": 3}}, "high_end"),
        ("ppo", {"kl": {"beta": 0.0, "target": 1.0}}, "a beta of 0 would stay 0. Use a beta above 0"),
        ("rest", {"select": {"quantiles": [0.9, 0.5]}}, ".select: quantiles must lie in [0, 1) and must not decrease"),
        (
            "raft",
            {"select": "best_against_worst"},
            ".select: unknown type 'best_against_worst'. Known here: best, reaching, rising",
        ),
        ("raft", {"mixture": 0.5}, ".mixture: unknown key"),
        ("gkd", {"own": 1.5}, ".own = 1.5: input should be less than or equal to 1"),
        ("context_distill", {"context": " "}, "context is blank"),
        ("grpo", {"correction": 2.0}, ".correction: a plain number is no longer accepted; it was the upper bound"),
        ("grpo", {"correction": {"type": "mask", "high": 0.9}}, ".correction.high = 0.9: input should be greater"),
        ("grpo", {"correction": {"high": 2.0}}, "belongs to type truncate, mask, reject"),
        ("exo", {"loss": {"label_smoothing": 0.0}}, ".loss.label_smoothing = 0.0: input should be greater than 0"),
    ],
)
def test_a_wrong_choice_or_option_is_named(name: str, over: dict[str, Any], words: str) -> None:
    assert words in said(name, over)


@pytest.mark.parametrize(
    ("name", "over", "because"),
    [
        ("gspo", {"aggregation": "token_mean"}, "Use aggregation sequence_mean"),
        ("gspo", {"aggregation": "sequence_sum"}, "Use aggregation sequence_mean"),
        ("ppo", {"surrogate": "gspo", "aggregation": "sequence_mean"}, "differs from token to token"),
        ("grpo", {"kl": {"estimator": "k1"}}, "Use k3 or k2 in the loss"),
        ("ppo", {"kl": {"type": "reward_sequence", "beta": 0.1}}, "Use kl.type reward_token"),
        ("rloo", {"kl": {"type": "reward_token", "beta": 0.1}}, "Use kl.type reward_sequence"),
        ("trpo", {"surrogate": "ppo_clip"}, "Use surrogate importance"),
        ("trpo", {"penalty": "sampled"}, "Use penalty none"),
        ("ppo", {"resample": 2}, "Use resample 0"),
        ("orpo", {"reduce": "sum"}, "Use reference false and reduce mean"),
        ("orpo", {"reference": True}, "Use reference false and reduce mean"),
        ("kto", {"reference": False}, "Use reference true"),
        ("cpo", {"parts": 2}, "Use parts 1, or reference true"),
    ],
)
def test_a_combination_that_means_nothing_is_refused_with_the_reason(
    name: str, over: dict[str, Any], because: str
) -> None:
    text = said(name, over)
    assert because in text and "or allow_unsupported: true" in text
    assert ROWS[name].settings(allow_unsupported=True, **over).allow_unsupported


@pytest.mark.parametrize(
    ("name", "over", "because"),
    [
        ("online_dpo", {"loss": "kto"}, "needs single answers"),
        ("online_dpo", {"parts": 2}, "only works with a table of pairs"),
        ("ipo_md", {"reference": False}, "mixture samples with the reference"),
    ],
)
def test_what_pairs_of_own_samples_cannot_be_is_refused(name: str, over: dict[str, Any], because: str) -> None:
    assert because in said(name, over)


def test_a_run_that_means_nothing_is_refused_with_the_reason() -> None:
    replay = {"rollout": {"replay": {"groups": 2}}}
    for algorithm, over, because in (
        ("rloo", replay, "no ratio to correct"),
        ("trpo", replay, "earlier rounds used other policies"),
        ("ppo_penalty", replay, "earlier rounds used other policies"),
        ("grpo", {"rollout": {"group_size": 1}}, "compares the samples of a group"),
        ("nash_md", {"rollout": {"group_size": 1}}, "compares the samples of a group"),
        (
            "pass_at_k",
            {"rollout": {"group_size": 4}},
            "in a group of 4 every advantage would be 0. Use a group size of 5",
        ),
        ("online_dpo", {"rollout": {"group_size": 1}}, "a pair is two samples"),
        ("trpo", {"activations": "recompute"}, "differentiates twice"),
        ("trpo", {"compile": True}, "differentiates twice"),
        ("trpo", {"advantage": "gae", "optimizer": {"critic_first": 0.1}}, "moves the policy in each step"),
        ("grpo", {"text": {"rows": 2}}, "text is only used if ptx is above 0"),
        ("grpo", {"ptx": 1.0}, "ptx trains on a corpus"),
        ("grpo", {"corpus": "two_step/corpus"}, "ptx trains on a corpus"),
        ("grpo", {"reward_model": "reward/main"}, "the reward `model` need each other"),
        (
            "ppo",
            {"ptx": 1.0, "corpus": "two_step/corpus", "rollout": {"sampling": {"temperature": 0.7}}},
            "at temperature 1",
        ),
        ("gkd", {"teacher": "sft/main", "demonstrations": "two_step/chat"}, "nothing to learn"),
        ("gkd", {"teacher": "reward/main", "demonstrations": "none"}, "trains on given answers too"),
        ("context_distill", {"teacher": "sft/main", "demonstrations": "none"}, "needs context"),
    ):
        named = (DISTILL if algorithm in DISTILL_ROWS else ONLINE)[algorithm]
        inputs = {"start": "sft/main", "data": "two_step/prompts", "reward_model": "none"}
        inputs |= {"corpus": "none"} if algorithm in ONLINE else {}
        with pytest.raises(ParamsError, match=because):
            check(named.model, named.row.merged({"algorithm": algorithm, **inputs, **over}), where=WHERE)


@pytest.mark.parametrize("name", list(SURROGATES))
def test_what_has_no_ratio_serves_one_update_and_is_never_replayed(name: str) -> None:
    settings = PolicyConfig.model_validate({"surrogate": name, "aggregation": SURROGATES[name].aggregation})
    refused = [reuse_refusal(settings, 2), replay_refusal(settings, 4)]
    assert all(reason is None for reason in refused) == SURROGATES[name].has_ratio
    assert reuse_refusal(settings, 1) is None and replay_refusal(settings, 0) is None


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_what_compares_siblings_needs_some(name: str) -> None:
    settings = PolicyConfig.model_validate({"advantage": name})
    assert (group_refusal(settings, 1) is not None) == ADVANTAGES[name].grouped
    assert group_refusal(settings, 1 + getattr(settings.advantage, "k", 1)) is None


def test_the_critics_loss_counts_as_in_the_papers() -> None:
    assert POLICY_ROWS["ppo"].settings().advantage.value_coef == 1.0


def test_distillation_names_its_divergence() -> None:
    student, teacher = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    for name, formula in (("forward_kl", forward_kl), ("reverse_kl", reverse_kl)):
        settings = DistillConfig.model_validate({"divergence": name, "temperature": 2.0})
        assert_close(settings.formula()(student, teacher), formula(student, teacher, 2.0))
    mixed = DistillConfig.model_validate({"divergence": {"type": "jensen_shannon", "beta": 0.3}})
    assert_close(mixed.formula()(student, teacher), jensen_shannon(student, teacher, 0.3))


def test_simpos_defaults_are_its_own() -> None:
    assert PreferenceConfig.model_validate({"loss": "simpo"}).loss.model_dump() == {
        "type": "simpo",
        "beta": 2.0,
        "gamma": 1.0,
    }
