"""What a comparison says in one line, of findings that are written out."""

from __future__ import annotations

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.comparison import Comparison, Mean, Pair, compare
from posttrain.pipeline.compare.statistics import Finding
from posttrain.pipeline.compare.text import conclusion
from posttrain.settings.params import joined
from tests.pipeline.compare.trained import study

KLS = ("none", "beta 0.04")


def said(seeds: dict[str, int], *clear: tuple[str, str], equal: tuple[tuple[str, str], ...] = ()) -> str:
    """The conclusion where the first of each clear pair is better, and the others do not differ."""
    names = [*seeds]
    means = [
        Mean(name, count, 0.5, 0.4, 0.6, {"steps": 1.0, "tokens": 1.0, "seconds": 1.0}) for name, count in seeds.items()
    ]
    pairs = [
        Pair(
            names.index(one), names.index(other),
            Finding(gain, gain - 0.1, gain + 0.1, 0.01, over_seeds=min(seeds[one], seeds[other]) > 1),
        )
        for gain, some in ((0.3, clear), (0.0, equal)) for one, other in some
    ]  # fmt: skip
    return conclusion(Comparison(10, means, pairs, [], []))


def test_one_that_beats_all_others_over_seeds_is_the_best() -> None:
    found = said({"a": 3, "b": 3, "c": 3}, ("a", "b"), ("a", "c"), equal=(("b", "c"),))
    assert found == "Best on the held-out prompts: a."


def test_a_setting_of_one_training_is_not_named_best() -> None:
    found = said({"c": 1, "a": 3, "b": 3}, ("c", "a"), ("a", "b"), ("c", "b"))
    assert found.startswith("Among the best, with no clear difference: c; a. Worse than another one: b.")
    assert found.endswith("Worse in a single training, which does not judge the setting: a.")


def test_settings_that_did_not_meet_are_not_called_alike() -> None:
    found = said({"a": 3, "b": 3, "base": 3}, ("a", "base"), ("b", "base"))
    head = "Not worse than any compared setting, but not all were compared with each other: a; b."
    assert found == f"{head} Worse than another one: base."


def test_one_seed_names_the_best_training_and_judges_no_setting() -> None:
    found = said({"a": 1, "b": 1, "c": 1}, ("a", "b"), ("a", "c"), equal=(("b", "c"),))
    why = "One training does not judge a setting, so run three to five seeds (docs/results.md)."
    assert found == f"Best training: a. {why}"
    assert said({"a": 1, "b": 1, "c": 1}, ("a", "c")) == f"Best trainings: a; b. {why}"


def test_nothing_clear_says_so() -> None:
    assert said({"a": 3, "b": 3}, equal=(("a", "b"),)).startswith(
        "Cannot tell which setting is better: there are 3 seeds"
    )


def test_an_unknown_setting_gets_the_labels_of_all_settings_without_the_names_of_trainings() -> None:
    with pytest.raises(PipelineError) as raised:
        compare(study(), "nope")
    listed = raised.value.fix.removeprefix("The settings are ").rpartition(". ")[0].split(" | ")
    assert sorted(listed) == sorted(f"{name}, kl {kl}" for name in ("grpo", "dr_grpo", "cispo") for kl in KLS)
    with pytest.raises(PipelineError, match="Did you mean 'cispo, kl none'"):
        compare(study(), "cispo, kl nome")
    assert joined(["a", "b"]) == "a, b" and joined(["a, 1", "b"]) == "a, 1 | b"
