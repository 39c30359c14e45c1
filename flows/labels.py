"""Names and tags of flow runs in Prefect's lists: commit, changed settings, branch and trigger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import flow_run

from posttrain.errors import PosttrainError
from posttrain.measure.masking import masked
from posttrain.measure.terminal import escaped
from posttrain.pipeline.lock.git import git_or_none
from posttrain.pipeline.report.heading import changes

MOST_CHANGES = 3
LONGEST = 150


def label(root: Path, does: str, tags: Sequence[str] = ()) -> None:
    """Name the current flow run, e.g. `report @ 8ddcd27 kl.beta=0.05`, and tag it with branch and trigger."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        given = [*run.tags, *tags, _started_by(run), *_branch(root)]
        client.update_flow_run(
            run.id, name=escaped(masked(_name(root, does)))[:LONGEST], tags=list(dict.fromkeys(map(escaped, given)))
        )


def _name(root: Path, does: str) -> str:
    commit = git_or_none("rev-parse", "--short", "HEAD", root=root)
    try:
        changed = [f"{'.'.join(key.split('.')[-2:])}={new}" for key, _, new in changes(root)]
    except PosttrainError:  # params.yaml cannot be read: the stages say so
        changed = []
    more = [f"and {len(changed) - MOST_CHANGES} more"] if len(changed) > MOST_CHANGES else []
    return " ".join([does, "@", commit.decode().strip() if commit else "no commit", *changed[:MOST_CHANGES], *more])


def _branch(root: Path) -> list[str]:
    output = git_or_none("branch", "--show-current", root=root)
    return [output.decode().strip()] if output and output.strip() else []


def _started_by(run: FlowRun) -> str:
    if run.deployment_id is None:
        return "by hand"
    if run.auto_scheduled:
        return "schedule"
    return "new data" if run.created_by and run.created_by.type == "AUTOMATION" else "by hand"
