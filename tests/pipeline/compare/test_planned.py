"""Planned questions: their differences, their intervals, and what they say where trainings are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.cells import LeftOut
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.moved import scored_rows
from posttrain.pipeline.compare.planned import Planned, planned
from posttrain.pipeline.compare.planned_text import answered
from tests.pipeline.compare.trained import PROMPTS, study, trained


def answers(found: Planned) -> dict[str, str]:
    return {one.text: one.verdict for one in found.questions}


def test_each_question_is_averaged_over_the_other_settings() -> None:
    found = planned(study(), ["algorithm", "kl"], ["grpo"])
    assert answers(found) == {
        "dr_grpo minus grpo": "cannot tell",
        "cispo minus grpo": "cispo is better",
        "kl beta 0.04 minus kl none": "kl none is better",
    }
    assert [(one.seeds, one.pairs) for one in found.questions] == [(3, 6), (3, 6), (3, 9)]
    gain, cost = (one.finding for one in found.questions[1:])
    assert gain is not None and cost is not None and gain.over_seeds and cost.over_seeds
    assert gain.mean == pytest.approx(0.1, abs=0.01) and cost.mean == pytest.approx(-0.05, abs=0.01)
    assert found.notes[0] == "baseline of kl: none (the level of the first training; --against chooses another)"
    turned = planned(study(), ["kl"], ["0.04"]).questions[0]
    assert turned.text == "kl none minus kl beta 0.04" and turned.finding is not None
    assert turned.finding.mean == pytest.approx(-cost.mean)


@pytest.mark.parametrize("draw", range(4))
def test_swapped_levels_have_exactly_the_mirrored_interval(draw: int) -> None:
    trainings = [
        trained(name, kl, seed, gain + 0.02 * draw, luck=0.03)
        for name, gain in (("grpo", 0.0), ("cispo", 0.03))
        for kl in ("none", "0.04")
        for seed in (1, 2, 3)
    ]
    (one,) = planned(trainings, ["algorithm"], ["grpo"]).questions
    (other,) = planned(trainings[draw:] + trainings[:draw], ["algorithm"], ["cispo"]).questions
    mine, turned = one.finding, other.finding
    assert mine is not None and turned is not None
    assert (mine.mean, mine.low, mine.high, mine.p_value) == (
        -turned.mean, -turned.high, -turned.low, turned.p_value
    )  # fmt: skip


def test_the_family_of_a_call_is_what_is_corrected() -> None:
    """A question alone has a narrower interval than with three others; all pairs of settings never count."""
    alone = planned(study(), ["kl"]).questions[0].finding
    together = planned(study(), ["kl", "algorithm"]).questions[0].finding
    assert alone is not None and together is not None
    assert alone.mean == together.mean and alone.p_value <= together.p_value <= 3 * alone.p_value
    assert together.high - together.low > alone.high - alone.low


def test_one_seed_is_about_these_trainings_alone_and_is_listed_apart() -> None:
    some = [one for one in study() if not one.name.startswith("cispo") or one.name.endswith("1")]
    found = planned(some, ["algorithm"], ["grpo"])
    dr, cispo = found.questions
    assert (dr.text, cispo.text) == ("dr_grpo minus grpo", "cispo minus grpo")
    assert cispo.finding is not None and not cispo.finding.over_seeds and (cispo.seeds, cispo.pairs) == (1, 2)
    assert cispo.verdict == "cispo is better (1 seed)"
    (alone,) = planned([one for one in some if not one.name.startswith("dr")], ["algorithm"], ["grpo"]).questions
    assert alone == cispo, "no correction: the other question changes nothing"
    (two,) = planned([trained("grpo"), trained("cispo", gain=0.2)], ["algorithm"]).questions
    assert two.verdict == "cispo is better (1 seed)"


def test_unequal_seeds_are_paired_where_both_have_them_and_the_others_are_named() -> None:
    found = planned([*study((1, 2)), trained("cispo", seed=7), trained("grpo", seed=8)], ["algorithm"], ["grpo"])
    cispo = next(one for one in found.questions if one.level == "cispo")
    assert (cispo.seeds, cispo.pairs) == (2, 4)
    assert (
        "cispo minus grpo: 1 training of cispo has no partner with the same seed and other settings: (kl none, seed 7)"
        in found.notes
    )
    assert (
        "cispo minus grpo: 1 training of grpo has no partner with the same seed and other settings: (kl none, seed 8)"
        in found.notes
    )
    assert any(
        note.startswith("2 seeds: dr_grpo minus grpo, cispo minus grpo. Two seeds can show only large differences")
        for note in found.notes
    )


def test_a_level_whose_results_are_stale_is_a_question_without_an_answer() -> None:
    stale = trained("gspo")
    left_out = [LeftOut(stale.name, stale.settings, "its evaluation does not match its settings")]
    found = planned(study(), ["algorithm"], ["grpo"], left_out)
    assert answers(found)["gspo minus grpo"] == "cannot tell: no training of gspo can be compared"
    assert "left out: gspo-none-1: its evaluation does not match its settings" in found.notes
    some = [one for one in study() if one.name != "cispo-0.04-2"]
    found = planned(some, ["algorithm"], ["grpo"])
    said = "no partner with the same seed and other settings: (kl beta 0.04, seed 2)"
    assert any(note.endswith(said) for note in found.notes)


def test_factors_that_vary_together_are_not_answered() -> None:
    both = [trained("grpo", seed=seed, own={"lr": "1"}) for seed in (1, 2)]
    both += [trained("cispo", seed=seed, own={"lr": "2"}, gain=0.3) for seed in (1, 2)]
    found = planned(both, ["algorithm", "lr"])
    assert [one.verdict for one in found.questions] == [
        "cannot tell: algorithm and lr vary together, so no difference is of algorithm alone",
        "cannot tell: lr and algorithm vary together, so no difference is of lr alone",
    ]


def test_of_many_factors_that_vary_together_three_are_named() -> None:
    sides = [("grpo", "1"), ("cispo", "2")]
    found = [trained(name, own={f"a{nth}": value for nth in range(6)}) for name, value in sides]
    (question,) = planned(found, ["algorithm"]).questions
    assert question.verdict.startswith("cannot tell: algorithm and 6 other settings (a0, a1, a2, ...) vary together")


def test_the_baseline_is_that_of_params_yaml_or_the_first() -> None:
    home = {"online.runs.grpo.algorithm": "cispo"}
    found = planned(study(), ["algorithm"], home=home)
    assert [one.against for one in found.questions] == ["cispo", "cispo"]
    assert found.notes[0] == "baseline of algorithm: cispo (the level of params.yaml; --against chooses another)"
    found = planned(study(), ["algorithm"], home={"online.runs.grpo.algorithm": "gspo"})
    assert found.notes[0] == "baseline of algorithm: grpo (the level of the first training; --against chooses another)"
    bare = replace(trained("grpo"), settings={"online.runs.grpo.seed": "1"})
    found = planned([trained("cispo"), bare], ["algorithm"])
    assert found.notes[0] == "baseline of algorithm: default (the default of the run; --against chooses another)"


@pytest.mark.parametrize(
    ("against", "said"),
    [
        (
            ["gspo"],
            r"'gspo' is not one level of a factor.*Levels of algorithm: grpo, dr_grpo, cispo; kl: none, beta 0.04",
        ),
        (["grpo", "cispo"], "'cispo' is a second baseline of algorithm"),
    ],
)
def test_a_baseline_that_is_no_level_is_refused(against: list[str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        planned(study(), ["algorithm", "kl"], against)
    flats = [trained("grpo", own={"a": a, "b": b}) for a in "12" for b in "12"]
    with pytest.raises(PipelineError, match="'1' is a level of several factors"):
        planned(flats, ["a", "b"], ["1"])


def test_a_factor_named_twice_is_one_question() -> None:
    assert len(planned(study(), ["kl", "beta", "online.runs.grpo.kl"]).questions) == 1


def test_prompts_without_a_score_are_left_out_and_counted() -> None:
    trainings = study()
    scores_P = trainings[0].scores_P.copy()
    scores_P[:3] = np.nan
    found = planned([replace(trainings[0], scores_P=scores_P), *trainings[1:]], ["kl"])
    assert (
        "kl beta 0.04 minus kl none: 3 prompts have no score in one of the trainings, and are left out" in found.notes
    )
    assert found.questions[0].finding is not None and np.isfinite(found.questions[0].finding.mean)


def test_equal_weights_in_both_levels_are_said() -> None:
    same = {"trained": "w", "scores_P": np.full(PROMPTS, 0.5)}
    pairs = [trained(name, seed=seed, **same) for name in ("grpo", "cispo") for seed in (1, 2)]
    (question,) = planned(pairs, ["algorithm"]).questions
    assert question.verdict == "the same weights"
    pairs = [trained(name, trained="w", gain=gain) for name, gain in (("grpo", 0.0), ("cispo", 0.1))]
    (question,) = planned(pairs, ["algorithm"]).questions
    assert question.verdict == "the same weights, measured differently"


def test_equal_completions_in_both_levels_are_said() -> None:
    def rows(text: str) -> pl.DataFrame:
        one = {"id": [f"{text}:0"], "prompt_id": ["p"], "sample": [0], "greedy": [False], "completion_ids": [[1]]}
        said = {"prompt": [[{"content": "q"}]], "problem": ["q"], "completion": [text], "reward": [1.0]}
        return scored_rows(pl.DataFrame({**one, **said}))

    pairs = [
        trained("grpo", beta, seed, rows=rows(str(seed)), scores_P=np.full(PROMPTS, seed / 4))
        for beta in ("none", "0.04")
        for seed in (1, 2)
    ]
    found = planned(pairs, ["kl"])
    assert found.questions[0].verdict == "the same completions"
    assert not any("Two seeds" in note for note in found.notes), "more seeds would not tell more"
    assert "Cannot tell" not in answered(found) and "More seeds" not in answered(found)
    pooled = compare(pairs)
    assert [pair.same for pair in pooled.held_out] == ["completions"]
    assert not any("Two seeds" in note for note in pooled.notes)


def guarded(policy: EvaluatedPolicy, value: float) -> EvaluatedPolicy:
    extra: dict[str, Any] = {
        "evaluate.policies.grpo": "online/grpo", "evaluate.settings.must_not_fall": '["valid"]',
    }  # fmt: skip
    rng = np.random.default_rng(sum(policy.name.encode()))
    parts = {"valid": np.clip(value + rng.normal(0, 0.02, PROMPTS), 0, 1)}
    return replace(policy, settings={**policy.settings, **extra}, parts=parts)


def test_a_guarded_metric_that_fell_is_said_of_the_level_but_not_of_the_baseline() -> None:
    trainings = [guarded(one, 0.4 if one.name.startswith("cispo") else 0.9) for one in study()]
    found = answers(planned(trainings, ["algorithm"], ["grpo"]))
    assert found["cispo minus grpo"].startswith("cispo is better; valid fell from 0.898 in grpo to 0.400 in cispo")
    assert "fell" not in found["dr_grpo minus grpo"]
    assert "fell" not in answers(planned(trainings, ["algorithm"], ["cispo"]))["grpo minus cispo"]


def test_runs_of_one_workspace_are_paired_by_their_own_seeds() -> None:
    def run(name: str, kl: str, seed: int) -> EvaluatedPolicy:
        own = {f"online.runs.{name}.kl.beta": kl, f"online.runs.{name}.seed": str(seed)}
        one = trained("grpo", kl, seed, 0.3 if kl == "0.1" else 0.0)
        return replace(one, name=name, policy=name, model=f"online/{name}", section=f"online.runs.{name}", settings=own)

    runs = [run(f"{side}_{seed}", kl, seed) for side, kl in (("low", "0.1"), ("high", "0.5")) for seed in (1, 2, 3)]
    (question,) = planned(runs, ["beta"], ["0.5"]).questions
    assert (question.text, question.verdict) == ("beta 0.1 minus beta 0.5", "beta 0.1 is better")
    assert (question.seeds, question.pairs) == (3, 3)


def test_seeds_that_act_alike_in_all_other_settings_are_the_replicates_and_it_says_so() -> None:
    luck = {("cispo", seed): gain for seed, gain in ((1, 0.0), (2, 0.1), (3, 0.2))}
    alike = [
        trained(algorithm, kl, seed, luck.get((algorithm, seed), 0.0))
        for algorithm in ("grpo", "cispo")
        for kl in ("none", "0.04")
        for seed in (1, 2, 3)
    ]
    found = planned(alike, ["algorithm", "kl"], ["grpo"])
    assert [(one.replicates, one.verdict) for one in found.questions[:1]] == [("seeds", "cannot tell")]
    assert any(
        note.startswith("algorithm: in all other settings, the difference depends on the seed in the same way. So the")
        for note in found.notes
    )
