"""`must_not_fall`: metrics that must not be clearly lower than in the policy's baseline.

Each metric is tested separately, at 95 % and without Holm's correction, because a guard must not get weaker with more
comparisons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from posttrain.errors import DataError
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.factors import Flat
from posttrain.pipeline.compare.paired import tested, with_scores
from posttrain.pipeline.compare.settings import Setting
from posttrain.pipeline.compare.statistics import Finding
from posttrain.settings.params import did_you_mean


@dataclass(frozen=True)
class Fall:
    """A guarded metric that is clearly lower than in another setting."""

    metric: str
    label: str
    than: str
    before: float
    """The mean of `than`, on the prompts with a value in both."""
    after: float
    """The mean of `label`, on the same prompts."""
    finding: Finding
    """The metric of `label` minus the metric of `than`."""

    def __str__(self) -> str:
        change = f"{self.finding.mean:+z.3f}, 95 % interval [{self.finding.low:+z.3f}, {self.finding.high:+z.3f}]"
        means = f"from {self.before:.3f} in {self.than} to {self.after:.3f} in {self.label}"
        return f"{self.metric} fell {means} ({change}; it is in must_not_fall)"


def guarded(policies: Sequence[EvaluatedPolicy]) -> list[str]:
    """Return the metrics that the evaluation of any of the policies guards."""
    return list(dict.fromkeys(name for policy in policies for name in _named(policy.policy, policy.settings)))


def _named(label: str, settings: Flat) -> list[str]:
    group, _, run = label.rpartition("/")
    shared = f"evaluate.policies.{label}" in settings
    text = settings.get(
        "evaluate.settings.must_not_fall" if shared else f"evaluate.{group or 'runs'}.{run}.must_not_fall"
    )
    return [str(name) for name in json.loads(text or "[]")]


def falls(left: Setting, right: Setting, metrics: Sequence[str]) -> list[Fall]:
    """Return the guarded metrics that are clearly lower in one of two settings."""
    fallen = []
    for name in metrics:
        if not all(name in policy.parts for setting in (left, right) for policy in setting.trained):
            continue
        sides = [scores([by_metric(policy, name) for policy in setting.trained]) for setting in (left, right)]
        (finding,) = tested(sides, [(0, 1)])
        first, second = (float(side_SP.mean()) for side_SP in with_scores(*sides))
        if finding.high < 0:
            fallen.append(Fall(name, left.label, right.label, second, first, finding))
        elif finding.low > 0:
            turned = replace(finding, mean=-finding.mean, low=-finding.high, high=-finding.low)
            fallen.append(Fall(name, right.label, left.label, first, second, turned))
    return fallen


def broken(left: Setting, right: Setting, metrics: Sequence[str], reference: str | None = None) -> list[Fall]:
    """Return the falls, except falls of a reference, because only a candidate can break a guard.

    reference: the label of the baseline; None: the setting that the other one's KL is measured against
    (evaluate.settings.reference) or that it was trained from.
    """
    older = {one.label for one, other in ((left, right), (right, left)) if _is_before(one, other)}
    spared = older if reference is None else {reference}
    return [fall for fall in falls(left, right, metrics) if fall.label not in spared]


def _is_before(one: Setting, other: Setting) -> bool:
    """Tell whether a setting's model is the other one's reference or start."""
    before = {policy.settings.get("evaluate.settings.reference") for policy in other.trained}
    before |= {policy.run_settings.get("start") for policy in other.trained}
    ours, theirs = ({policy.model for policy in setting.trained} for setting in (one, other))
    return bool(ours & before) and not theirs & before


def untested(policies: Sequence[EvaluatedPolicy], metrics: Sequence[str]) -> list[str]:
    """Return a note for each policy whose results lack a guarded metric or have completions without it."""
    notes = []
    for name in metrics:
        lacking = [policy.name for policy in policies if name not in policy.parts]
        if lacking:
            notes.append(f"must_not_fall: {name} is not tested for {', '.join(lacking)}, because their results lack it")
        notes += without_value(policies, name)
    return notes


def without_value(policies: Sequence[EvaluatedPolicy], metric: str) -> list[str]:
    """Return a note for each policy with completions that have no value of a metric."""
    counts = [(policy.name, policy.failed.get(metric, 0)) for policy in policies]
    return [
        f"{name}: {count:,} completions have no value of {metric} and are not part of its mean"
        for name, count in counts
        if count
    ]


def by_metric(policy: EvaluatedPolicy, metric: str) -> EvaluatedPolicy:
    """Return a policy with a metric, or a part of the reward, instead of its score."""
    if metric not in policy.parts:
        known = list(policy.parts)
        fix = did_you_mean(metric, known) or f"It has {', '.join(known) or 'none'}; evaluate it with that metric"
        raise DataError(what=f"{policy.name} has no metric '{metric:.80}'", where=f"results/{policy.policy}", fix=fix)
    return replace(policy, scores_P=policy.parts[metric], parsed=True, metric=metric)
