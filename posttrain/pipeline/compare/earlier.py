"""Find a sweep's experiments from earlier commits that have the code, data and settings of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from posttrain.pipeline.compare.belonging import Belonging, unlike
from posttrain.pipeline.compare.effective import same_texts
from posttrain.pipeline.compare.experiments import Experiment, read_settings, settings_of
from posttrain.pipeline.compare.factors import Flat, is_seed
from posttrain.pipeline.lock.code_digest import outlined
from posttrain.pipeline.lock.digests import LOCK
from posttrain.pipeline.lock.git import git, git_or_none
from posttrain.pipeline.lock.lock_shape import lock_stages
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE

_UNREAD: Final = ("report/", "code/", "sweeps/", "docs/", ".dvc/", ".vscode/", ".github/")
_UNREAD_FILES: Final = frozenset({LOCK, PARAMS_FILE, "prefect.yaml", ".gitignore"})
"""What no training reads. The settings of params.yaml are compared by themselves."""
_MADE: Final = ("models/", "data/")
"""Outputs with the same bytes whenever they are made from the same inputs on the same machine."""
_MOST: Final = 3
"""The most reasons in a note."""


def reference(experiments: Sequence[Experiment]) -> str:
    """Return the commit whose experiments always count: HEAD, else the commit of the latest experiment."""
    head = git("rev-parse", "HEAD").strip()
    return head if any(one.baseline == head for one in experiments) else experiments[-1].baseline


def changed_files(old: str, new: str = "") -> list[str]:
    """Return the files that differ between two commits, except files that no training reads.

    Without `new`: the files that differ between a commit and the workspace.
    """
    changed = git("diff", "--name-only", "--no-renames", "--relative", old, *[new] * bool(new)).splitlines()
    return [file for file in changed if not (file.startswith(_UNREAD) or file in _UNREAD_FILES or file.endswith(".md"))]


def remade(old: str, new: str) -> list[str]:
    """Return the models and tables that a stage made again between two commits: equal inputs, different bytes."""
    locks = [lock_stages(git_or_none("show", f"{at}:./{LOCK}") or b"", f"{at}:{LOCK}") for at in (old, new)]
    paths = []
    for name in locks[0].keys() & locks[1].keys():
        before, after = locks[0][name], locks[1][name]
        if any(before.get(part) != after.get(part) for part in ("cmd", "deps", "params")):
            continue
        digests = [{out["path"]: out.get("md5") for out in entry.get("outs") or ()} for entry in (before, after)]
        paths += [path for path, digest in digests[0].items() if digests[1].get(path, digest) != digest]
    return sorted(path for path in paths if path.startswith(_MADE))


def why_again(experiment: Experiment, wanted: Flat, head: str) -> str:
    """Return the reason to run an experiment again at a commit with these settings; empty if it would be equal."""
    words = _changed_settings(settings_of(experiment), wanted, {*settings_of(experiment), *wanted})
    if experiment.baseline == head:
        return _few(words)
    files = [*changed_files(experiment.baseline, "HEAD"), *remade(experiment.baseline, "HEAD")]
    return _few([*words, *(f"{file} changed" for file in files)])


def sorted_out(
    sweep: str, experiments: Sequence[Experiment], known: Mapping[str, Belonging | str]
) -> tuple[list[str], list[str]]:
    """Return the names of equivalent experiments, and notes about experiments of earlier commits.

    `known`: name -> what is known about the runs behind its evaluation, or why it has no evaluation.
    """
    if len({one.baseline for one in experiments}) < 2:
        return [one.name for one in experiments], []
    newest = reference(experiments)
    swept = _swept(experiments)
    newest_names = [one.name for one in experiments if one.baseline == newest]
    like = next((known[name] for name in newest_names if isinstance(known[name], Belonging)), None)
    earlier, notes = list[Experiment](), list[str]()
    for baseline in dict.fromkeys(one.baseline for one in experiments if one.baseline != newest):
        of_commit = [one for one in experiments if one.baseline == baseline]
        reasons = {one: _why_not(one, known[one.name], newest, like, swept) for one in of_commit}
        earlier += [one for one in of_commit if not reasons[one]]
        for why in dict.fromkeys(filter(None, reasons.values())):
            notes.append(_left_out(sweep, [one for one in of_commit if reasons[one] == why], why))
    if earlier:
        at = ", ".join(dict.fromkeys(one.baseline[:7] for one in earlier))
        same = "Their code, data and settings are the same"
        notes.insert(
            0, f"{sweep}: {len(earlier)} of {len(experiments)} experiments ran at another commit ({at}). {same}"
        )
    names = {*newest_names, *(one.name for one in earlier)}
    return [one.name for one in experiments if one.name in names], notes


def since(sweep: str, experiments: Sequence[Experiment], known: Mapping[str, Belonging | str]) -> list[str]:
    """Return a note if the workspace has other settings, code or data than the latest trainings of a sweep."""
    newest = reference(experiments)
    facts = next((known[one.name] for one in experiments if one.baseline == newest), None)
    if not isinstance(facts, Belonging):
        return []
    old, here = same_texts([read_settings(Experiment(newest, newest, newest, 0)), read_yaml(PARAMS_FILE)])
    words = _changed_settings(old, here, _compared_keys(facts, _swept(experiments), {*old, *here}))
    words += [f"{file} changed" for file in changed_files(newest) if _is_other(file, facts)]
    if not words:
        return []
    again = f"To run it with what is here now, commit, then run `posttrain sweep {sweep}`"
    return [f"{sweep} ran before these changes: {_few(words)}. The answers are about what it ran with. {again}"]


def _is_other(file: str, facts: Belonging) -> bool:
    """Tell whether a changed file is one that the runs read, and code is other code than the runs had."""
    digests = {digest for key, of in facts.code.items() if key.rpartition(": ")[2] == file for digest in of.split()}
    if digests:
        return not Path(file).is_file() or outlined(Path(file), "").digest not in digests
    of_source = any(file == source or file.startswith(f"{source.rstrip('/')}/") for source in facts.sources)
    return of_source or bool(facts.unverified)  # of a run without a record nobody knows what it read


def _compared_keys(facts: Belonging, swept: Iterable[str], keys: Iterable[str]) -> set[str]:
    """Return the keys of settings that the runs read, except the keys that the sweep varies."""
    read = tuple(f"{key}." for key in facts.params) or ("",)
    apart = tuple(f"{key}." for key in swept)
    return {key for key in keys if f"{key}.".startswith(read) and not f"{key}.".startswith(apart)}


def _why_not(
    experiment: Experiment, known: Belonging | str, newest: str, like: Belonging | str | None, swept: Iterable[str]
) -> str:
    """Return why an experiment of an earlier commit does not mean the same as those of the newest one."""
    if isinstance(known, str):
        return known
    old, new = same_texts([read_settings(Experiment(at, at, at, 0)) for at in (experiment.baseline, newest)])
    words = _changed_settings(old, new, _compared_keys(known, swept, {*old, *new}))
    if isinstance(like, Belonging) and not known.unverified and not like.unverified:
        others = [*unlike([known.code, like.code]), *unlike([known.sources, like.sources])]
        files = list(dict.fromkeys(key.rpartition(": ")[2] for key in others))
    else:  # nobody knows which code ran
        files = changed_files(experiment.baseline, newest)
    return _few([*words, *(f"{file} changed" for file in [*files, *remade(experiment.baseline, newest)])])


def _changed_settings(old: Flat, new: Flat, keys: Iterable[str]) -> list[str]:
    changed = sorted(key for key in keys if old.get(key) != new.get(key))
    return [f"{key} changed from {old.get(key, 'not set')} to {new.get(key, 'not set')}" for key in changed]


def _swept(experiments: Iterable[Experiment]) -> set[str]:
    """Return the keys that an experiment changed in the params.yaml of its commit."""
    base = {at: settings_of(Experiment(at, at, at, 0)) for at in {one.baseline for one in experiments}}
    keys = set[str]()
    for one in experiments:
        settings = settings_of(one)
        keys |= {key for key in {*settings, *base[one.baseline]} if settings.get(key) != base[one.baseline].get(key)}
    return keys


def _left_out(sweep: str, experiments: Sequence[Experiment], why: str) -> str:
    """Return a note about experiments that are left out, with how to run them again."""
    swept = _swept(experiments)
    seeds = dict.fromkeys(
        value for one in experiments for key, value in settings_of(one).items() if is_seed(key) and key in swept
    )
    words = f"posttrain sweep {sweep}{' --seeds ' * bool(seeds)}{','.join(seeds)}"
    values = "" if Path(f"sweeps/{sweep}.yaml").is_file() else " with the same -S"
    many = f"{len(experiments)} experiment{'s' * (len(experiments) > 1)} of commit {experiments[0].baseline[:7]}"
    again = f"To run {'them' if len(experiments) > 1 else 'it'} again: `{words}`{values}"
    return f"{sweep}: left out {many}, because {why}. {again}"


def _few(words: Sequence[str]) -> str:
    return "; ".join(words[:_MOST]) + f"; and {len(words) - _MOST} more" * (len(words) > _MOST)
