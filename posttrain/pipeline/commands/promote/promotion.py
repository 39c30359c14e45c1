"""Promotions: an annotated git tag with a policy's model, its score, and the policy that it beat."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from posttrain.errors import DataError, ParamsError, PipelineError
from posttrain.evaluate.intervals import SEED, interval
from posttrain.pipeline.commands.promote.registry import (
    artifact_of,
    assign,
    end_others,
    holder,
    next_tag,
    require_stage,
)
from posttrain.pipeline.commands.push.adapter import push_note
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, check_same_prompts
from posttrain.pipeline.compare.factors import differing
from posttrain.pipeline.compare.guards import falls, guarded, untested, without_value
from posttrain.pipeline.compare.paired import tested, with_scores
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.settings import Setting, meaning
from posttrain.pipeline.lineage.kept_inputs import require_kept
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lock.artifacts import require_artifact
from posttrain.pipeline.lock.code_manifest import CODE
from posttrain.pipeline.lock.digests import LOCK
from posttrain.pipeline.lock.git import git
from posttrain.pipeline.lock.graph import DVC_YAML
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import evaluated, group_of
from posttrain.pipeline.report.policies import output_digests
from posttrain.pipeline.report.stale_results import staleness
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import did_you_mean

_LINE = re.compile(r"^(policy|model|digest): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Promoted:
    """The contents of a promotion's tag."""

    tag: str
    policy: str
    digest: str


def promote(name: str, title: str, force: str | None = None, does: Literal["tag", "show"] = "tag") -> str:
    """Tag the commit of a policy's model as the current `title`, or show the tag. Fail if it is not better.

    A tag names a commit, so the results must be committed.
    """
    require_stage(title)
    if force is not None and not force.strip():
        raise ParamsError(what="it is empty", where="--force", fix="Give a reason, which is stored in the tag")
    policy, model = named_policy(name)
    artifact = artifact_of(policy)
    require_current(policy)
    digest = output_digests().get(f"models/{model}")
    if digest is None:
        raise DataError(what=f"{LOCK} has no models/{model}", where="promote", fix="Run it first: dvc repro")
    _require_committed()
    require_kept("promote", more=[CODE])
    last = present(title)
    if last is not None and last.digest == digest:
        end_others(title)  # which a killed promotion may have left out
        raise PipelineError(what=f"models/{model} is already {last.tag}", where="promote", fix="Promote another")
    (candidate,) = select([policy], None, "sampled")
    lines = [f"policy: {policy}", f"model: {model}", f"digest: {digest}", f"score: {_score(candidate)}"]
    lines += _guards(candidate, last, force)
    if last is not None:
        lines.append(f"against: {last.tag}, {_better(candidate, last, force)}")
    if force is not None:
        lines.append(f"forced: {' '.join(force.split())}")
    if does == "show":
        return "\n".join([f"would be {next_tag(artifact, title)}", *lines])
    require_artifact(policy, f"models/{model}")
    tag, version = assign(artifact, title, lines)
    back = f"Bring it back: git checkout {shlex.quote(tag)} && dvc checkout models/{model}"
    share = f"Share it: dvc push models/{model} && git push --follow-tags"
    get = f"Get it in any folder: dvc artifacts get URL {artifact} --stage {title}"
    note = push_note(Path("models", model), Lineage())
    return "\n".join(filter(None, [tag, f"version: {version}", *lines, back, share, get, note]))


def present(title: str) -> Promoted | None:
    """Return the current promotion with this name."""
    last = holder(title)
    if last is None:
        return None
    said = dict(_LINE.findall(git("for-each-ref", "--format=%(contents)", f"refs/tags/{last.tag}")))
    if not {"policy", "digest"} <= said.keys():
        fix = f"`posttrain promote` did not create this tag. Remove it: git tag -d {shlex.quote(last.tag)}"
        raise PipelineError(what="its message does not contain a policy and a digest", where=last.tag, fix=fix)
    return Promoted(last.tag, said["policy"], said["digest"])


def named_policy(name: str) -> tuple[str, str]:
    """Return the label and the model of an evaluated policy."""
    labels = {label: run.model for label, run in evaluated(read()).items()}
    label = name if name in labels else next((label for label, model in labels.items() if model == name), None)
    if label is None:
        fix = did_you_mean(name, [*labels, *labels.values()]) or "Add it to evaluate.policies"
        raise ParamsError(what=f"no evaluated policy '{name}'", where=PARAMS_FILE, fix=fix)
    return label, labels[label]


def require_current(policy: str) -> None:
    """Reject a policy whose results are out of date for its model, settings or code."""
    if reason := staleness([policy]).reasons.get(policy):
        raise DataError(what=f"its results are not current ({reason})", where=policy, fix="Run `dvc repro`")


def _require_committed() -> None:
    """Raise if the tagged commit would not contain the model."""
    files = [PARAMS_FILE, LOCK, DVC_YAML]
    if changed := git("status", "--porcelain", "--", *files).split("\n")[:-1]:
        named = " and ".join(line[3:] for line in changed)
        fix = f"Commit them, because the tag points to a commit: git add {' '.join(files)} && git commit"
        raise PipelineError(what=f"{named} not committed", where="promote", fix=fix)


def _score(policy: EvaluatedPolicy) -> str:
    scores = policy.known_scores
    low, high = interval(scores, int(policy.settings.get("evaluate.settings.seed", SEED)))
    return f"{scores.mean():.3f} [{low:.3f}, {high:.3f}] on {len(scores)} held-out prompts"


def _guards(candidate: EvaluatedPolicy, last: Promoted | None, force: str | None) -> list[str]:
    """Return the findings of `must_not_fall` against the champion and against the policy's origin; raise on a fall.

    The origin is the evaluated policy of evaluate.settings.reference, or else of the run's own `start`.
    """
    if not (names := guarded([candidate])):
        return []
    settings = read()
    runs = evaluated(settings)
    same = {label: run for label, run in runs.items() if run.table == runs[candidate.policy].table}
    labels = {run.model: label for label, run in reversed(same.items())}
    before = [group_of(settings, "evaluate.settings").get("reference"), candidate.run_settings.get("start")]
    start = next((labels[str(model)] for model in before if str(model) in labels), None)
    others, lost = [], list[str]()
    try:
        if start is not None and start != candidate.policy:
            require_current(start)
            others += select([start], None, "sampled")
        if last is not None:
            others += select([candidate.policy, last.tag], last.policy, "sampled")[1:]
        check_same_prompts([candidate, *others])
    except (DataError, PipelineError) as error:
        if force is None:
            raise
        others, lost = [], [f"not tested ({error.what})"]
    gaps = [note for name in names for note in without_value([candidate, *others], name)]
    if not others and start is None:
        findings = [f"{', '.join(names)} cannot be tested: evaluate.policies has no model to compare with"]
        origin = candidate.run_settings.get("start", "none")
        fix = f"Add its start model ({origin}) to evaluate.policies, or use --force REASON"
    else:
        findings = [note for note in untested([candidate, *others], names) if note.startswith("must_not_fall")]
        ours = Setting(candidate.name, [candidate])
        fell = [fall for other in others for fall in falls(ours, Setting(other.name, [other]), names)]
        findings += [str(fall) for fall in fell if fall.label == candidate.name]
        fix = (
            f"`posttrain compare {candidate.policy} OTHER --metric NAME` shows it. To promote anyway, use --force "
            "REASON"
        )
    if findings and force is None:
        raise PipelineError(what="; ".join(findings), where=candidate.policy, fix=fix)
    findings, against = [*lost, *findings], " and ".join(other.name for other in others)
    held = f"did not fall against {against}" if others else f"not tested, as {candidate.policy} is the reference itself"
    told = [f"guard: {line}" for line in findings] or [f"guards: {', '.join(names)} {held}"]
    return [*told, *(f"guard: {note}" for note in gaps)]


def _better(candidate: EvaluatedPolicy, last: Promoted, force: str | None) -> str:
    """Return by how much it is better than the current one. Raise if this is not shown, unless forced."""
    try:
        _, champion = select([candidate.policy, last.tag], last.policy, "sampled")
        was, now = meaning(champion), meaning(candidate)
        if keys := differing([was, now]):
            changed = (f"{key} {now.get(key, 'default')} (was {was.get(key, 'default')})" for key in keys)
            what = (
                f"its score cannot be compared with the score of {last.tag}: it was evaluated with {', '.join(changed)}"
            )
            fix = "Evaluate it with the earlier settings, or use --force REASON"
            raise PipelineError(what=what, where=candidate.policy, fix=fix)
        if not (candidate.parsed and champion.parsed):
            raise DataError(
                what="no answer can be read",
                where=last.tag,
                fix="Evaluate both with a reward that can read their answers",
            )
    except (DataError, PipelineError) as error:
        if force is None:
            raise
        return f"not compared ({error.what})"
    sides = [candidate.scores_P[None, :], champion.scores_P[None, :]]
    (finding,) = tested(sides, [(0, 1)])
    shown = f"{finding.mean:+z.3f} [{finding.low:+z.3f}, {finding.high:+z.3f}]"
    if lost := len(champion.prompts) - with_scores(*sides)[0].shape[1]:
        shown += f" without {lost} prompts that have no score of both"
    if finding.low > 0:
        return f"better by {shown}"
    if force is None:
        verdict = "worse" if finding.high < 0 else "cannot tell"
        fix = (
            f"For details run `posttrain compare {candidate.policy} {shlex.quote(last.tag)} --policy {last.policy}`. "
            "To promote anyway, use --force REASON"
        )
        raise PipelineError(what=f"not better than {last.tag}: {verdict}, {shown}", where=candidate.policy, fix=fix)
    return f"not better: {shown}"
