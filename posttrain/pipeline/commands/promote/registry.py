"""Git tags of promotions, in the layout of DVC's model registry (GTO), which `dvc artifacts get` and Studio read.

`grpo@v0.0.1` is a version of the artifact grpo. `grpo#champion#1` gives it the stage champion. `dpo#champion!#1` ends
the stage of dpo.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gto.constants import SEPARATOR_IN_NAME, SEPARATOR_IN_TAG, Action, fullname_re, name_re
from gto.tag import parse_name
from gto.versions import SemVer

from posttrain.errors import ParamsError
from posttrain.pipeline.lock.git import git

FORMER = "promoted"
"""Tags of earlier versions are promoted/NAME/N. They are still read."""
_TITLE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_LAYOUT = "%(refname:strip=2) %(creatordate:unix) %(*objectname)"


@dataclass(frozen=True, order=True)
class Event:
    """A tag that starts or ends a stage of an artifact. Events are ordered by time, as in DVC."""

    time: int
    number: int
    ends: bool
    tag: str
    artifact: str
    """Empty for a tag of the former layout."""
    commit: str


def artifact_of(policy: str) -> str:
    """Return a policy's name in the registry: POLICY, or FOLDER:POLICY in a subfolder of the git repository."""
    name = _in_project(policy)
    if not (name_re.fullmatch(policy) and fullname_re.fullmatch(name)):
        fix = "Rename it in evaluate.policies with letters, digits, and _ or - inside the name. Then run `dvc repro`"
        raise ParamsError(what=f"DVC's model registry does not allow the name '{name}'", where="promote", fix=fix)
    return name


def require_stage(title: str) -> None:
    """Reject a name that is not a valid stage in GTO."""
    if not _TITLE.fullmatch(title):
        fix = "Use letters, digits, and _ or - inside the name"
        raise ParamsError(what=f"'{title}' is not a valid name", where="--as", fix=fix)


def holder(stage: str) -> Event | None:
    """Return the tag of the artifact that has a stage now."""
    last = None
    for event in _events(stage):
        if not event.ends:
            last = event
        elif last is not None and event.artifact == last.artifact:
            last = None
    return last


def next_tag(artifact: str, stage: str) -> str:
    """Return the next tag that gives the stage to the artifact. Tags of a stage are numbered across artifacts."""
    return f"{_in_tag(artifact)}#{stage}#{1 + max((event.number for event in _events(stage)), default=0)}"


def assign(artifact: str, stage: str, lines: Sequence[str]) -> tuple[str, str]:
    """Tag HEAD as a version of an artifact, and give the version a stage; return both tags.

    The tag of the stage comes after the version's. So if this is killed, there is no promotion, or a complete one once
    `end_others` has run.
    """
    version, known = _version_here(artifact)
    version_tag, tag = f"{_in_tag(artifact)}@{version}", next_tag(artifact, stage)
    if not known:
        _make(version_tag, "HEAD", [f"{artifact} {version}", "", *lines])
    _make(tag, "HEAD", [f"{artifact} is {stage}", "", *lines])
    end_others(stage)
    return tag, version_tag


def end_others(stage: str) -> None:
    """End the stage of all artifacts except the newest. GTO would let several artifacts have the same stage."""
    last = {event.artifact: event for event in _events(stage)}
    now = holder(stage)
    for artifact, event in last.items():
        if now is not None and artifact and not event.ends and artifact != now.artifact:
            reason = [f"{artifact} is no longer {stage}", "", f"since: {now.tag}"]
            _make(f"{_in_tag(artifact)}#{stage}!#{now.number}", event.commit, reason)


def _version_here(artifact: str) -> tuple[str, bool]:
    """Return the artifact's version at HEAD and True, or its next version and False."""
    here = _versions(artifact, "--points-at", "HEAD")
    if here:
        return max(here).version, True
    versions = _versions(artifact)
    first = SemVer("v0.0.1") if not versions else max(versions).bump(bump_patch=True)
    return str(first.version), False


def _versions(artifact: str, *which: str) -> list[Any]:
    known = [_parsed(tag) for tag in git("tag", "--list", *which).split()]
    return [SemVer(one["version"]) for one in known if one.get("name") == artifact and "version" in one]


def _events(stage: str) -> list[Event]:
    """Return the tags of a stage in this project, from the first to the last."""
    events = []
    former = re.compile(rf"{FORMER}/{re.escape(stage)}/(\d+)")
    project = _in_project("")
    for line in git("for-each-ref", f"--format={_LAYOUT}", "refs/tags").splitlines():
        tag, time, commit = line.split(" ")
        if old := former.fullmatch(tag):
            events.append(Event(int(time or 0), int(old[1]), False, tag, "", commit))
            continue
        known = _parsed(tag)
        # GTO and DVC do not read tags without a message; those of other folders belong to other projects
        if commit and known.get("stage") == stage and known["name"].rpartition(":")[0] == project.rpartition(":")[0]:
            ends = known["action"] is Action.UNASSIGN
            events.append(Event(int(time), known.get("counter", 0), ends, tag, known["name"], commit))
    return sorted(events)


def _parsed(tag: str) -> dict[str, Any]:
    return dict(parse_name(tag, raise_on_fail=False))


def _in_project(policy: str) -> str:
    folder = git("rev-parse", "--show-prefix").strip().rstrip("/")
    return f"{folder}:{policy}" if folder else policy


def _in_tag(artifact: str) -> str:
    return artifact.replace(SEPARATOR_IN_NAME, SEPARATOR_IN_TAG)


def _make(tag: str, commit: str, lines: Sequence[str]) -> None:
    git("tag", "--annotate", "--cleanup=verbatim", "--message", "\n".join(lines), tag, commit)
