"""Trainings are grouped into settings, and each setting has a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from posttrain.pipeline.compare import settings as module
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.factors import factors
from posttrain.pipeline.compare.notes import few_prompts
from posttrain.pipeline.compare.settings import (
    Setting,
    by_code,
    distinct,
    flat_settings,
    grouped,
    mean_score,
    meaning,
    meaning_of,
    seed_of,
)

FLAT = {
    "evaluate.policies.a": "online/a", "evaluate.settings.data": "t/prompts", "evaluate.settings.samples": "2",
    "evaluate.settings.reference": "sft/a", "evaluate.settings.reward.correct": "1.0",
    "evaluate.settings.reward.seen": "0", "evaluate.settings.split": "test",
    "evaluate.runs.b.data": "t/pairs", "evaluate.runs.b.reference": "sft/a", "evaluate.runs.b.policy": "online/a",
}  # fmt: skip


def trained(name: str, value: float = 0.5, **more: Any) -> EvaluatedPolicy:
    given: dict[str, Any] = {
        "policy": name, "model": f"online/{name}", "prompts": ("p", "q", "r"), "curve": {}, "seconds": None,
        "settings": {f"online.runs.{name}.lr": "0.1"}, "section": f"online.runs.{name}", "parsed": True,
        "scores_P": np.array([value, value, 1.0]),
    }  # fmt: skip
    return EvaluatedPolicy(name, **{**given, **more})


def test_what_changes_the_meaning_of_a_score() -> None:
    assert meaning_of("a", FLAT) == {"reward.correct": "1.0"}
    assert meaning_of("b", FLAT) == {"reference": "sft/a"}
    policy = trained("a", settings=FLAT)
    assert meaning(policy) == {"reward.correct": "1.0"}
    assert meaning(trained("a", settings=FLAT, metric="correct")) == {}


def test_policies_that_differ_in_their_seeds_are_one_setting() -> None:
    def seed(number: int) -> EvaluatedPolicy:
        name = f"grpo_s{number}"
        flat = {f"online.runs.{name}.lr": "0.1", f"online.runs.{name}.seed": str(number)}
        return trained(name, number / 10, settings=flat)

    other = trained("dpo", settings={"online.runs.dpo.lr": "0.2"})
    found, notes = grouped([seed(1), seed(2), other])
    assert [(one.label, one.names) for one in found] == [("grpo", ("grpo_s1", "grpo_s2")), ("dpo", ("dpo",))]
    assert notes == [] and len(found[0].trained) == 2
    (_, twice), notes = grouped([other, seed(1), seed(1)])
    assert len(twice.trained) == 1 and notes == [
        f"{twice.names[0]} + {twice.names[1]}: 2 trainings, of which 1 is distinct. Equal ones count once"
    ]


def test_experiments_are_named_by_what_they_vary() -> None:
    def trial(lr: str) -> EvaluatedPolicy:
        return trained(
            f"trial-{lr}", float(lr), policy="grpo", section="online.runs.grpo", settings={"online.runs.grpo.lr": lr}
        )

    found, _ = grouped([trial("0.1"), trial("0.2")])
    assert [(one.label, dict(one.varied)) for one in found] == [("lr 0.1", {"lr": "0.1"}), ("lr 0.2", {"lr": "0.2"})]


def test_means_and_intervals() -> None:
    one = mean_score(Setting("a", [trained("a", 0.5)]))
    assert one[0] == pytest.approx(2 / 3) and one[1] <= one[0] <= one[2]
    several = mean_score(Setting("a", [trained("a", 0.2), trained("b", 0.4)]))
    assert (
        several[0] == pytest.approx((0.2 * 2 + 1 + 0.4 * 2 + 1) / 6)
        and 0 <= several[1] <= several[0] <= several[2] <= 1
    )


def test_equal_scores_of_all_prompts_and_seeds_say_little_of_other_prompts() -> None:
    nothing = [trained(name, scores_P=np.zeros(8), prompts=tuple("abcdefgh")) for name in ("a", "b")]
    mean, low, high = mean_score(Setting("a", nothing))
    assert (mean, low) == (0.0, 0.0) and high == pytest.approx(1 - 0.025 ** (1 / 8)), "as with one seed"


def test_few_prompts_are_said() -> None:
    assert few_prompts(20) == []
    (note,) = few_prompts(8)
    assert note.startswith("8 test prompts are few") and "more seeds do not help" in note


def test_names_are_shortened_unless_taken() -> None:
    assert module._shared(["grpo_s1", "grpo_s2"]) == "grpo_s" and module._shared(["a", "b"]) == ""
    pair = Setting("a_s1 + a_s2", [], ("a_s1", "a_s2"))
    assert [one.label for one in module._shortened([pair])] == ["a"]
    assert [one.label for one in module._shortened([pair, Setting("a", [], ("a",))])] == ["a_s1 + a_s2", "a"]
    (lr,) = factors([{"online.runs.a.lr": "0.1"}, {}])
    assert module._label([lr], [trained("a")]) == "lr 0.1" and module._varied([lr], trained("a")) == {"lr": "0.1"}
    assert module._varied([lr], trained("a", settings={})) == {"lr": "default"}
    assert module._label([], [trained("a"), trained("b")]) == "a + b" and module._varied([], trained("a")) == {}
    long = replace(lr, short="k" * 80)
    assert module._label([long], [trained("a")]) == "a"
    assert module._label([long], [trained("a"), trained("n" * 90)]).startswith("kkk"), "shorter than the names"


def test_settings_of_runs() -> None:
    flat = {
        "online.runs.a.lr": "0.1",
        "online.runs.a.seed": "1",
        "online.runs.a.start": "sft/main",
        "sft.runs.main.lr": "1",
        "sft.runs.main.seed": "2",
    }
    policy, other = trained("a", settings=flat), trained("b")
    assert module._compared(policy, [policy]) == flat == flat_settings([policy])[0]
    assert module._compared(policy, [policy, other]) == {
        "policy": "online.runs", "lr": "0.1", "seed": "1", "start": "sft of {'lr': '1'}",
    }  # fmt: skip
    assert module._without_seeds("0.1", flat) == "0.1" and module._without_seeds("sft/none", flat) == "sft/none"
    assert module._measuring(trained("b", settings=FLAT)) == {"evaluate.data": "t/pairs", "evaluate.reference": "sft/a"}


def test_equal_trainings() -> None:
    a, b = trained("a", 0.1), trained("b", 0.2)
    assert module._is_same(a, trained("c", 0.1)) is True and module._is_same(a, b) is False
    same = [trained(name, value, trained="digest") for name, value in (("a", 0.1), ("b", 0.2))]
    assert module._is_same(*same) is True and distinct(same) == same[:1]
    assert [one.name for one in distinct([a, b, trained("c", 0.1)])] == ["a", "b"]
    coded = [trained("a", 0.1, code={"x": "1"}), trained("b", 0.2, code={"x": "2"})]
    suffixes = [suffix for _, suffix in module._by_code([coded])]
    assert suffixes == [" (code of a)", " (code of b)"] and by_code(coded) == [coded[:1], coded[1:]]


def test_the_seeds_behind_a_training() -> None:
    def run(name: str, seed: str, start: str) -> EvaluatedPolicy:
        flat = {f"online.runs.{name}.seed": seed, f"online.runs.{name}.start": f"sft/{start}", "seed": "0",
                "sft.runs.one.seed": "5", "sft.runs.one.start": "base/tiny", "sft.runs.two.lr": "1"}  # fmt: skip
        return trained(name, settings=flat)

    runs = [run("a", "1", "one"), run("b", "2", "two")]
    assert [seed_of(one, runs) for one in runs] == ["1/5", "2"]
    bare = trained("c", settings={"seed": "3"})
    assert seed_of(bare, [bare, *runs]) == "3"
    keys = ("online.runs.a.seed", "data.tasks.t.seed", "evaluate.settings.seed")
    trials = [
        trained(f"t{n}", policy="a", settings=dict(zip(keys, (str(n), "0", str(n)), strict=True))) for n in (1, 2)
    ]
    assert [seed_of(one, trials) for one in trials] == ["1", "2"], "an evaluation's seed trains nothing"
