"""Check whether an evaluation's model, settings and code belong together, and find the code that ran."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.errors import DataError
from posttrain.pipeline.compare.experiments import Experiment, without_folder
from posttrain.pipeline.lock.at_commit import AtCommit
from posttrain.pipeline.lock.code_manifest import CODE, code_path
from posttrain.pipeline.lock.reasons import Reasons, accepted_code
from posttrain.pipeline.params.stage_table import evaluated
from posttrain.pipeline.workspace import PARAMS_FILE

MOST = 3
"""The most reasons in an error."""


@dataclass(frozen=True)
class Belonging:
    """Facts about the runs behind an evaluation."""

    code: Mapping[str, str] = field(default_factory=dict)
    """`online: custom/reward.py` -> digest, for each kind of run; also packages."""
    unverified: tuple[str, ...] = ()
    """The runs without a record."""
    params: tuple[str, ...] = ()
    """The dotted keys of params.yaml that the runs read."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """File or folder that no stage makes -> digest, of all that the runs read."""


def of_experiment(experiment: Experiment, policy: str) -> Belonging:
    """Return the facts about a commit's evaluation of a policy. Raise if it does not match the commit."""
    with tempfile.TemporaryDirectory() as folder, without_folder(folder):
        reasons = AtCommit(experiment.commit, Path(folder))
        run = evaluated(reasons.settings).get(policy)
        if run is None:  # whoever reads its files names the policies that there are
            return Belonging()
        if run.stage not in reasons.pipeline.stages:  # a pipeline of one's own, which dvc.yaml evaluates otherwise
            return Belonging(unverified=(run.stage,))
        if wrong := reasons.of_run(run.stage):
            more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
            what = f"its evaluation of {policy} does not match the commit's settings: {'; '.join(wrong[:MOST])}{more}"
            fix = (
                f"Run {experiment.checkout}, `posttrain repair` and `dvc repro`, and commit. Or leave this experiment "
                "out"
            )
            raise DataError(what=what, where=experiment.name, fix=fix)
        return _known(reasons, run.stage)


def of_workspace(stages: Sequence[str]) -> list[Belonging]:
    """Return the facts about evaluations in the workspace, by stage."""
    reasons = Reasons()
    return [_known(reasons, stage) for stage in stages]


def _known(reasons: Reasons, stage: str) -> Belonging:
    """Return the code of a stage and of everything it is made from, and the runs without a record."""
    code: dict[str, set[str]] = {}
    unverified, params, sources = list[str](), dict[str, None](), dict[str, str]()
    for name in reasons.pipeline.above(stage):
        entry = reasons.lock.get(name)
        if name == CODE or entry is None:
            continue
        params |= dict.fromkeys(entry.get("params", {}).get(PARAMS_FILE, ()))
        made = (dep for dep in entry.get("deps", ()) if dep["path"] != code_path(name).as_posix())
        sources |= {dep["path"]: str(dep.get("md5")) for dep in made if not any(reasons.pipeline.behind(dep["path"]))}
        record = reasons.records.of(entry)
        if record is None and not reasons.records.is_verified(entry):
            unverified.append(name)
        ran = accepted_code(record or {}) or {}
        for file, digest in {**ran.get("files", {}), **ran.get("packages", {})}.items():
            code.setdefault(f"{name.partition('@')[0]}: {file}", set()).add(digest)
    ran_with = {file: " ".join(sorted(digests)) for file, digests in code.items()}
    return Belonging(ran_with, tuple(unverified), tuple(params), sources)


def unlike(versions: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the files and packages that differ between two evaluations or the runs behind them."""
    keys = dict.fromkeys(key for code in versions for key in code)
    return [key for key in keys if len({code[key] for code in versions if key in code}) > 1]
