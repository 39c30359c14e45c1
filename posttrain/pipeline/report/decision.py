"""The main table: settings with pooled seeds, best first, each tested against a baseline setting.

The differences are the same as in `posttrain compare`: paired on the same prompts, with Holm's correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from posttrain.errors import PipelineError
from posttrain.evaluate.intervals import FAILED_COUNT
from posttrain.pipeline.compare.evaluated import evaluated_policy, scores
from posttrain.pipeline.compare.guards import Fall, broken, by_metric, guarded
from posttrain.pipeline.compare.paired import tested
from posttrain.pipeline.compare.settings import Setting, grouped, mean_score
from posttrain.pipeline.compare.statistics import Finding
from posttrain.pipeline.params.stage_table import Settings
from posttrain.pipeline.report.policies import Policy, reference
from posttrain.pipeline.report.summary import BOUNDS, FELL, GAIN, Figures, figures_of, is_read
from posttrain.settings.params import did_you_mean


@dataclass(frozen=True)
class Row:
    """A setting: policies that differ only in their seeds, with the means of their metrics."""

    setting: str
    policies: tuple[str, ...]
    model: str
    """The model of the first policy."""
    trained: tuple[str, ...]
    """The policies whose scores or curves differ from those before. The means are over these."""
    figures: Figures


@dataclass(frozen=True)
class Decision:
    """The rows, best first, and the differences between all rows."""

    rows: tuple[Row, ...]
    differences: Mapping[str, Mapping[str, Finding]]
    """Setting -> the settings tested against it, with Holm's correction over them."""
    base: str
    """The setting of the reference policy for the KL; the first setting if there is none."""
    fallen: Mapping[str, Sequence[Fall]] = field(default_factory=dict)
    """Setting -> the guarded metrics that are clearly lower in other settings than in it."""

    def figures(self, other: str | None = None) -> dict[str, dict[str, float]]:
        """Return setting -> metrics, with the difference to `other`: a setting, or one of its policies."""
        names = {name: row.setting for row in self.rows for name in (*row.policies, row.setting)}
        base = other or self.base
        if names and base not in names:
            fix = did_you_mean(base, list(names)) or f"There are {', '.join(names)}"
            raise PipelineError(what=f"no setting '{base}' is evaluated", where="show results --against", fix=fix)
        chosen = names.get(base, "")
        findings, fallen = self.differences.get(chosen, {}), self.fallen.get(chosen, ())
        return {
            row.setting: dict(row.figures)
            | _gain(findings.get(row.setting))
            | {f"{FELL}{fall.metric}": fall.finding.mean for fall in fallen if fall.label == row.setting}
            for row in self.rows
        }

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """Setting -> its policies."""
        return {row.setting: row.policies for row in self.rows}

    def tasks(self, tasks: Mapping[str, str]) -> dict[str, str]:
        """Return setting -> its task, from the tasks of policies."""
        return {row.setting: tasks[row.policies[0]] for row in self.rows if row.policies[0] in tasks}


def decide(policies: Sequence[Policy], settings: Settings) -> Decision:
    """Return the table for policies that were evaluated on the same prompts."""
    if not policies:
        return Decision((), {}, "")
    by_label = {policy.label: policy for policy in policies}
    read = [evaluated_policy(Path(), p.label, p.label, p.model, p.rollouts, settings, "sampled") for p in policies]
    base = next((policy for policy in read if policy.name == reference(policies)), read[0])
    same = [policy for policy in read if policy.prompts == base.prompts]
    pooled, _ = grouped(same)
    others = [Setting(policy.name, [policy], (policy.name,)) for policy in read if policy not in same]
    rows = [_row(setting, by_label) for setting in (*pooled, *others)]
    readable_settings = [setting for setting in pooled if any(policy.parsed for policy in setting.trained)]
    name = next(setting.label for setting in pooled if base.name in setting.names)
    rows.sort(key=lambda row: -row.figures["score"] if is_read(row.figures) else float("inf"))
    watched = guarded(read)
    fallen = {base.label: _fallen(base, readable_settings, watched) for base in readable_settings}
    return Decision(
        tuple(rows),
        {setting.label: _against(setting, readable_settings) for setting in readable_settings},
        name,
        fallen,
    )


def _fallen(base: Setting, settings: Sequence[Setting], metrics: Sequence[str]) -> list[Fall]:
    """Return the guarded metrics that are clearly lower in other settings than in this one."""
    every = (fall for setting in settings if setting is not base for fall in broken(setting, base, metrics))
    return [fall for fall in every if fall.than == base.label]


def _against(base: Setting, settings: Sequence[Setting]) -> dict[str, Finding]:
    others = [setting for setting in settings if setting is not base]
    scored = [scores(setting.trained) for setting in (base, *others)]
    findings = tested(scored, [(place, 0) for place in range(1, len(scored))])
    return {setting.label: finding for setting, finding in zip(others, findings, strict=True)}


def _gain(finding: Finding | None) -> dict[str, float]:
    if finding is None:
        return {}
    over = {"over_seeds": float(finding.over_seeds)}
    return dict(zip(GAIN, (finding.mean, finding.low, finding.high), strict=True)) | over


def _row(setting: Setting, policies: Mapping[str, Policy]) -> Row:
    """Return a setting with its mean metrics. With several seeds, the interval covers seeds too."""
    members = [policies[policy.name] for policy in setting.trained]
    figures = [figures_of(policy.metrics) for policy in members]
    shared = [key for key in figures[0] if all(key in other for other in figures)]
    means = {key: sum(each[key] for each in figures) / len(figures) for key in shared}
    means["seeds"] = len(setting.trained)
    if len(setting.trained) > 1:
        means |= dict(zip(("score", "low", "high"), mean_score(setting), strict=True))
        for part in setting.trained[0].parts:
            means |= _pooled(setting, part) if f"reward_{part}" in means else {}
    return Row(setting.label, setting.names, members[0].model, tuple(policy.label for policy in members), means)


def _pooled(setting: Setting, part: str) -> dict[str, float]:
    """Return a part of the reward, or a metric, over a setting's seeds. Failures are added up."""
    if not all(part in policy.parts for policy in setting.trained):
        return {}
    by_part = replace(setting, trained=[by_metric(policy, part) for policy in setting.trained])
    key, lost = f"reward_{part}", sum(policy.failed.get(part, 0) for policy in setting.trained)
    values = dict(zip((key, *(f"{key}{end}" for end in BOUNDS)), mean_score(by_part), strict=True))
    return values | ({f"{key}{FAILED_COUNT}": float(lost)} if lost else {})
