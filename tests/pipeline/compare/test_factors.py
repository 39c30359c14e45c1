"""Factors: what varies between trainings, by which names it is found, and how its levels are called."""

from __future__ import annotations

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.factors import (
    Factor,
    differing,
    factor_named,
    factors,
    is_seed,
    level_named,
)

RUN = "online.runs.grpo"
NONE = {f"{RUN}.algorithm": "grpo", f"{RUN}.kl": "none", f"{RUN}.optimizer.lr": "0.1", f"{RUN}.seed": "1"}
LOSS = {
    f"{RUN}.algorithm": "cispo", f"{RUN}.kl.beta": "0.04", f"{RUN}.kl.type": "loss", f"{RUN}.optimizer.lr": "0.1",
    f"{RUN}.seed": "2",
}  # fmt: skip
FLATS = [NONE, LOSS, {**LOSS, f"{RUN}.kl.beta": "0.1"}]


def test_keys_that_differ() -> None:
    assert is_seed("a.seed") is True and is_seed("seed") is True and is_seed("seeds") is False
    assert differing([{"a": "1", "b": "1", "seed": "1"}, {"a": "1", "b": "2", "seed": "2", "c": "3"}]) == ["b", "c"]
    assert differing([{"a": "1"}]) == []


def test_a_value_and_the_keys_below_it_are_one_factor() -> None:
    algorithm, kl = factors(FLATS)
    assert (algorithm.path, algorithm.keys, algorithm.short) == (f"{RUN}.algorithm", (f"{RUN}.algorithm",), "algorithm")
    assert kl == Factor(f"{RUN}.kl", (f"{RUN}.kl", f"{RUN}.kl.beta", f"{RUN}.kl.type"), "kl")
    levels = kl.levels(FLATS)
    assert [kl.text(level) for level in levels] == ["none", "loss beta 0.04", "loss beta 0.1"]
    assert [kl.label(level) for level in levels][:2] == ["kl none", "kl loss beta 0.04"]
    assert algorithm.label(algorithm.level(LOSS)) == "cispo", "an algorithm names itself"
    assert kl.text(kl.level({})) == "default"


@pytest.mark.parametrize("name", ["kl", "grpo.kl", "online.runs.grpo.kl", "beta", "kl.beta"])
def test_a_factor_is_found_by_any_ending_of_its_keys(name: str) -> None:
    assert factor_named(name, FLATS).path == f"{RUN}.kl"


def test_a_key_above_several_factors_is_their_family() -> None:
    flats = [{"a.kl.beta": str(beta), "a.kl.target": str(target)} for beta in (1, 2) for target in (3, 4)]
    family = factor_named("kl", flats)
    assert family == Factor("a.kl", ("a.kl.beta", "a.kl.target"), "kl") and len(family.levels(flats)) == 4
    assert family.label(family.level(flats[0])) == "kl beta 1 target 3"
    assert factor_named("target", flats).keys == ("a.kl.target",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "algoritm",
            r"no setting 'algoritm' varies between the 3 trainings\. Did you mean 'algorithm'\?.*algorithm, kl",
        ),
        (
            "lr",
            r"'lr' does not vary between the 3 trainings: online\.runs\.grpo\.optimizer\.lr is 0\.1\.",
        ),
        ("seed", "a seed is not a factor: trainings that differ only in their seeds are repeats"),
        (f"{RUN}.seed", "a seed is not a factor"),
        ("eta", "no setting 'eta' varies"),
    ],
)
def test_what_is_not_a_factor_is_refused_with_those_that_are(name: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        factor_named(name, FLATS)


def test_an_ending_that_two_factors_have_is_refused() -> None:
    flats = [{"a.lr": "1", "b.lr": "1"}, {"a.lr": "2", "b.lr": "3"}]
    assert [one.short for one in factors(flats)] == ["a.lr", "b.lr"]
    with pytest.raises(PipelineError, match=r"'lr' can be a\.lr or b\.lr\. Write more of the key"):
        factor_named("lr", flats)
    with pytest.raises(PipelineError, match="Nothing but seeds varies here"):
        factor_named("lr", [{"seed": "1"}, {"seed": "2"}])


def test_levels_are_found_by_their_text_or_a_value_of_their_own() -> None:
    kl = factors(FLATS)[1]
    none, low, high = kl.levels(FLATS)
    for name, level in [("none", none), ("kl none", none), ("0.040", low), ("loss beta 0.1", high), ("0.1", high)]:
        assert level_named(name, kl, [none, low, high]) == level
    assert level_named("loss", kl, [none, low, high]) is None, "two levels have it"
    assert level_named("0.2", kl, [none, low, high]) is None


def test_levels_that_are_lists_or_texts_with_spaces() -> None:
    flats = [{"a.over": "[1, 2]"}, {"a.over": "[1, 3]"}, {"a.over": "{}"}, {}]
    (over,) = factors(flats)
    levels = over.levels(flats)
    assert [over.text(level) for level in levels] == ["[1, 2]", "[1, 3]", "{}", "default"]
    assert level_named("[1,2]", over, levels) == levels[0] and level_named("default", over, levels) == levels[3]


def test_a_setting_that_does_not_vary_is_listed_for_each_run_and_the_compared_one_comes_first() -> None:
    flats = [{"base.scratch.tiny.optimizer.lr": "0.005", **flat} for flat in FLATS]
    said = (
        r"3 trainings: online\.runs\.grpo\.optimizer\.lr is 0\.1, base\.scratch\.tiny\.optimizer\.lr is 0\.005\. What"
    )
    with pytest.raises(PipelineError, match=said):
        factor_named("lr", flats, RUN)
    many = [{**flat, **{f"sft.runs.s{nth}.lr": "1" for nth in range(6)}} for flat in FLATS]
    with pytest.raises(PipelineError, match=r"sft\.runs\.s2\.lr is 1, and 3 more\."):
        factor_named("lr", many, RUN)


@pytest.mark.parametrize("name", ["grpo", "runs.grpo", "online", RUN])
def test_the_whole_run_is_not_a_factor(name: str) -> None:
    with pytest.raises(PipelineError, match=rf"'{name}' is the whole run, not one.*What varies: algorithm, kl"):
        factor_named(name, FLATS, RUN)
