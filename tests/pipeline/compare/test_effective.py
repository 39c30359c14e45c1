"""Settings that mean the same have the same text: a default that is written out is not another level."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from posttrain.pipeline.compare.effective import same_texts, sections_behind
from posttrain.pipeline.compare.factors import differing, factors
from posttrain.pipeline.params.seeds import with_seed
from posttrain.pipeline.params.stage_table import STAGES, group_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.runs.typed import settings_of
from tests.workspace import ROOT

GRPO = {
    "algorithm": "grpo", "start": "sft/main", "data": "sums/prompts", "corpus": "none", "reward_model": "none",
    "reward": {"correct": 1.0},
}  # fmt: skip


def document(**own: Any) -> dict[str, Any]:
    return {"online": {"runs": {"grpo": {**GRPO, **own}}}}


SAME = (
    ({"kl": {"beta": 0.02}}, {"kl": {"type": "loss", "beta": 0.02}}),
    ({"kl": {"beta": 0.02}}, {"kl": {"beta": 0.02, "estimator": "k3"}}),
    ({}, {"rollout": {"epochs": 1}}),
    ({"entropy": 0}, {"entropy": 0.0}),
    ({"rollout": {"sampling": {"temperature": 1}}}, {"rollout": {"sampling": {"temperature": 1.0, "top_p": 1.0}}}),
    ({"reward": {"correct": 1.0}}, {"reward": {"correct": {"weight": 1}}}),
    ({"optimizer": {"betas": [0.9, 0.95]}}, {}),
    ({"reward": {"correct": 1.0}}, {"reward": {"correct": {"weight": 1.0, "answer": "numeric"}}}),
    ({"adapter": "none"}, {}),
    ({"max_failed": 0.1}, {}),
)
OTHER = (
    ({"kl": {"beta": 0.02}}, {"kl": {"type": "reward", "beta": 0.02}}),
    ({"kl": {"beta": 0.02}}, {"kl": "none"}),
    ({}, {"rollout": {"epochs": 2}}),
    ({"reward": {"correct": 1.0}}, {"reward": {"correct": {"weight": 1, "gate": True}}}),
    ({"kl": {"beta": 0.02}}, {"kl": {"beta": 0.03}}),
    ({"reward": {"correct": 1.0}}, {"reward": {"correct": {"answer": "math"}}}),
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_a_default_that_is_written_out_is_no_other_level(one: dict[str, Any], other: dict[str, Any]) -> None:
    documents = [document(**one), document(**other)]
    assert same_texts(documents)[0] == same_texts(documents)[1]
    assert not differing(same_texts(documents[::-1]))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_values_stay_other_levels(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert len(factors(same_texts([document(**one), document(**other)]))) == 1


def test_a_level_keeps_the_text_that_the_user_wrote() -> None:
    flats = same_texts([document(kl="none"), document(kl={"beta": 0.04}), document(kl={"type": "loss", "beta": 0.04})])
    (factor,) = factors(flats)
    assert [factor.text(level) for level in factor.levels(flats)] == ["none", "beta 0.04"]
    flats = same_texts([document(), document(rollout={"epochs": 2})])
    (factor,) = factors(flats)
    assert [factor.text(level) for level in factor.levels(flats)] == ["1", "2"], "a default has its value, not its name"


def test_what_means_the_same_in_another_algorithm_does_not_hide_a_level() -> None:
    """`kl: {beta: 0.02}` is in the loss of grpo and in the reward of rloo: both are written alike, so one level.

    rloo with grpo's KL written out is another level than rloo with its own.
    """
    spelled = {"type": "loss", "beta": 0.02, "estimator": "k3"}
    given = (("grpo", "none"), ("grpo", {"beta": 0.02}), ("grpo", spelled), ("rloo", {"beta": 0.02}), ("rloo", spelled))
    flats = same_texts([document(algorithm=name, kl=kl) for name, kl in given])
    kl = next(one for one in factors(flats) if one.path.endswith("kl") or ".kl." in one.path)
    levels = [kl.level(flat) for flat in flats]
    assert levels[1] == levels[2] == levels[3] != levels[4] != levels[0]
    assert kl.text(levels[4]) == "loss beta 0.02 estimator k3"
    alone = same_texts([document(algorithm=name, kl=kl) for name, kl in (*given[:3], given[4])])
    assert kl.level(alone[3]) == kl.level(alone[1]), "where no rloo has its own, the same meaning is one level"


def test_a_default_that_one_run_writes_out_does_not_vary_with_the_algorithm() -> None:
    """Else the question about the algorithm would have no answer: both would vary together."""
    given = (
        {},
        {"advantage": "group_zscore"},
        {"algorithm": "rloo"},
        {"algorithm": "rloo", "advantage": "group_zscore"},
    )
    flats = same_texts([document(**own) for own in given])
    found = {one.short: [one.text(one.level(flat)) for flat in flats] for one in factors(flats)}
    assert found == {
        "algorithm": ["grpo", "grpo", "rloo", "rloo"],
        "advantage": ["default", "default", "default", "group_zscore"],
    }


def test_the_top_level_seed_is_the_seed_of_a_run_that_has_none() -> None:
    flats = same_texts([{"seed": 7, **document()}, {"seed": 3, **document(seed=7)}])
    assert [flat["online.runs.grpo.seed"] for flat in flats] == ["7", "7"]
    assert [flat["seed"] for flat in flats] == ["7", "3"]


def test_runs_of_one_file_are_compared_if_they_are_named() -> None:
    whole = document()
    whole["online"]["runs"] = {
        "a": {**GRPO, "kl": {"beta": 0.1}}, "b": {**GRPO, "kl": {"type": "loss", "beta": 0.1}}, "c": GRPO,
    }  # fmt: skip
    (apart,) = same_texts([whole])
    assert "online.runs.a.kl.type" not in apart
    (flat,) = same_texts([whole], ["online.runs.a", "online.runs.b"])
    runs = [{key[len("online.runs.a.") :]: of for key, of in flat.items() if key.startswith(f"online.runs.{name}.")}
            for name in "ab"]  # fmt: skip
    assert runs[0] == runs[1]


def test_each_section_of_the_miniature_is_its_own_twin_with_its_defaults_written_out() -> None:
    """Each run of each group, once as in the file and once with every default: no setting differs."""
    short, count = read_yaml(ROOT / "params.yaml"), 0
    full, seeded = deepcopy(short), with_seed(short)
    for group in (stage.group for stage in STAGES if not stage.shares_settings):
        section, _, inner = group.partition(".")
        for name in group_of(short, group):
            typed = settings_of(group, seeded[section][inner][name], f"{group}.{name}").model_dump(mode="json")
            typed.pop("reward", None)  # a typed reward has the options of all kinds, which nobody may write
            kept = {key: of for key, of in short[section][inner][name].items() if key in ("task", "reward")}
            full[section][inner][name] = {**typed, **kept}
            count += 1
    assert count > 5 and short != full
    assert differing(same_texts([short, full])) == []


def test_a_setting_that_this_version_cannot_read_is_compared_as_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flats = same_texts([document(kl={"beta": 0.02}), document(kl={"beta": 0.02}, brand_new=1)])
    assert differing(flats) == ["online.runs.grpo.brand_new"]
    assert "brand_new" in capsys.readouterr().err


def test_the_sections_behind_a_run() -> None:
    whole = {**document(), "sft": {"runs": {"main": {"data": "sums/corpus", "start": "base/tiny"}}}}
    whole["data"] = {"tasks": {"sums": {"task": "sums"}}}
    assert sections_behind(whole, ["online.runs.grpo"]) == {"online.runs.grpo", "sft.runs.main", "data.tasks.sums"}
