"""What counts as training that has gone wrong, on rows made by hand."""

from __future__ import annotations

import pytest

from posttrain.errors import TrainingError
from posttrain.pipeline.runs.preference import PreferenceRun
from posttrain.pipeline.runs.sft import SftRun
from posttrain.settings.params import check
from posttrain.train.limits import LimitParams, check_limits

LIMITS = LimitParams()
USUAL = [{"step": step, "loss": 1.0, "grad_norm": 0.5 + 0.01 * (step % 7)} for step in range(60)]


def rows(bad: dict[str, float], count: int) -> list[dict[str, float]]:
    return [*USUAL, *({"step": 60 + n, "loss": 1.0, "grad_norm": 0.5, **bad} for n in range(count))]


WRONG = [
    ({"grad_norm": 80.0}, "gradient", "the gradient exploded: its norm is 80, usually it was 0.5"),
    ({"entropy": 1e-4}, "entropy", "the entropy collapsed: 0.0001 nats"),
    ({"kl_k3": 6.0}, "kl", "too far from its reference: KL 6 nats"),
    ({"kl_k3": float("nan")}, "kl", "too far from its reference"),
    ({"sampler_gap": 0.3}, "sampler_gap", "their log-probs of the same tokens differ by 0.3 nats"),
]


@pytest.mark.parametrize(("bad", "limit", "words"), WRONG)
def test_some_steps_in_a_row_beyond_a_limit_end_the_run(bad: dict[str, float], limit: str, words: str) -> None:
    assert check_limits(LIMITS, USUAL, "run")
    for count in range(1, LIMITS.steps):
        assert not check_limits(LIMITS, rows(bad, count), "run"), "beyond a limit, so no checkpoint"
    with pytest.raises(TrainingError, match="at step 64") as caught:
        check_limits(LIMITS, rows(bad, LIMITS.steps), "run")
    assert words in str(caught.value) and f"limits.{limit}: null" in str(caught.value)


@pytest.mark.parametrize(("bad", "limit", "words"), WRONG)
def test_a_limit_that_is_off_ends_nothing(bad: dict[str, float], limit: str, words: str) -> None:
    assert check_limits(LimitParams.model_validate({limit: None}), rows(bad, 20), "run")


@pytest.mark.parametrize(("bad", "limit", "words"), WRONG)
def test_a_good_step_in_between_begins_the_count_anew(bad: dict[str, float], limit: str, words: str) -> None:
    good = {"step": 64, "loss": 1.0, "grad_norm": 0.5}
    assert not check_limits(LIMITS, [*rows(bad, LIMITS.steps - 1), good, rows(bad, 1)[-1]], "run")


def test_one_bad_step_or_a_quiet_run_is_no_explosion() -> None:
    quiet = [{"step": step, "grad_norm": 0.0} for step in range(100)]
    loud = [{"step": step, "grad_norm": 1.0} for step in range(100, 110)]
    assert check_limits(LIMITS, [*quiet, *loud], "run"), "steps that taught nothing say nothing about a usual gradient"
    young = [{"step": 0, "grad_norm": 0.001}, *({"step": step, "grad_norm": 5.0} for step in range(1, 9))]
    assert check_limits(LIMITS, young, "run"), "the first steps of a run are not judged"


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_ends_the_run_at_once(name: str, value: float) -> None:
    with pytest.raises(TrainingError, match=f"{name} not finite at step 60"):
        check_limits(LIMITS, rows({name: value}, 1), "run")


def test_text_may_be_known_by_heart() -> None:
    run = {"start": "base/a", "data": "a/chat", "limits": {"kl": 3.0}}
    assert check(SftRun, run, where="sft.runs.a").limits.entropy is None
    preferred = {"algorithm": "dpo", "start": "base/a", "data": "a/pairs", "limits": {"kl": 3.0}}
    assert check(PreferenceRun, preferred, where="preference.runs.a").limits.entropy == 0.001
