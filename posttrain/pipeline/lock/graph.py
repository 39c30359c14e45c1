"""The stages of dvc.yaml with values from params.yaml, read without DVC and its locks."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plain import merge

DVC_YAML: Final = "dvc.yaml"
NOT_SET: Final = "not set"
_VALUE: Final = re.compile(r"(?<!\\)\$\{([^}]+)\}")


@dataclass(frozen=True)
class Declared:
    """A stage of dvc.yaml; for a `foreach`, one of its items."""

    name: str
    cmd: str
    params: Mapping[str, tuple[str, ...]]
    """File -> dotted keys."""
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    frozen: bool = False
    always: bool = False
    unknown: tuple[str, ...] = field(default=())
    """The values that dvc.yaml uses and params.yaml lacks."""
    uncached: tuple[str, ...] = field(default=())
    """The outputs that DVC does not cache, because git tracks them."""
    metrics: tuple[str, ...] = field(default=())
    """Its outputs that are metrics."""
    plots: tuple[str, ...] = field(default=())
    """Its outputs that are plots."""
    meta: Mapping[str, Any] = field(default_factory=dict)


class Pipeline:
    """The stages and their dependencies."""

    def __init__(self, root: Path = Path()) -> None:
        self.root, text = root, read_yaml(root / DVC_YAML)
        settings = read_yaml(root / PARAMS_FILE) if (root / PARAMS_FILE).is_file() else {}
        try:
            values = merge(self._with_vars({}, text), settings)
            declared = (
                _stage(f"{name}{suffix}", stanza, self._with_vars(item_values, stanza))
                for name, spec in (text.get("stages") or {}).items()
                for suffix, stanza, item_values in _expanded(spec, values)
            )
            self.stages = {stage.name: stage for stage in declared}
        except (AttributeError, KeyError, TypeError) as error:
            what, fix = f"it is not a graph of DVC's ({error})", "`dvc status` names the line"
            raise PipelineError(what=what, where=DVC_YAML, fix=fix) from error

    def _with_vars(self, values: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values plus those that dvc.yaml or a stage declares: mappings, FILE or FILE:KEY,KEY."""
        merged = dict(values)
        for source in spec.get("vars") or ():
            if not isinstance(source, Mapping):
                file, _, keys = str(source).partition(":")
                read = read_yaml(self.root / file)
                source = {key: read[key] for key in keys.split(",")} if keys else read
            merged = merge(merged, source)
        return merged

    def declared(self, name: str) -> Declared:
        """Return a stage. Raise if it does not exist or lacks a value."""
        if (stage := self.stages.get(name)) is None:
            raise PipelineError(
                what=f"no stage {name}", where=str(self.root / DVC_YAML), fix="`dvc stage list` shows all stages"
            )
        if stage.unknown:
            what = f"the stage {name} uses {', '.join(stage.unknown)}, which params.yaml lacks"
            raise PipelineError(what=what, where=str(self.root / DVC_YAML), fix="Add it to params.yaml")
        return stage

    @cached_property
    def makers(self) -> dict[str, str]:
        """Output -> the stage that makes it."""
        return {out: stage.name for stage in self.stages.values() for out in stage.outs}

    @cached_property
    def _held(self) -> dict[str, set[str]]:
        """Output, or folder with outputs -> the stages that make them."""
        makers: dict[str, set[str]] = {}
        for out, name in self.makers.items():
            for folder in (out, *_parents(out)):
                makers.setdefault(folder, set()).add(name)
        return makers

    @cached_property
    def upstream(self) -> dict[str, tuple[str, ...]]:
        """Stage -> the stages whose outputs it depends on."""
        upstream = {}
        for stage in self.stages.values():
            names = set() if stage.frozen else {name for dep in stage.deps for name in self.behind(dep)}
            upstream[stage.name] = tuple(sorted(names - {stage.name}))
        return upstream

    @cached_property
    def downstream(self) -> dict[str, set[str]]:
        """Stage -> the stages that depend on its outputs."""
        downstream: dict[str, set[str]] = {}
        for name, needed in self.upstream.items():
            for one in needed:
                downstream.setdefault(one, set()).add(name)
        return downstream

    def behind(self, dep: str) -> Iterator[str]:
        """Yield the stages whose outputs are a dependency, contain it, or lie in it."""
        yield from self._held.get(dep, ())
        yield from (self.makers[folder] for folder in _parents(dep) if folder in self.makers)

    def above(self, name: str) -> list[str]:
        """Return the stages that a stage needs, upstream first, with the stage itself last."""
        seen: dict[str, None] = {}

        def walk(stage: str) -> None:
            if stage not in seen:
                for upstream in self.upstream.get(stage, ()):
                    walk(upstream)
                seen[stage] = None

        walk(name)
        return list(seen)

    def order(self) -> list[str]:
        """Return all stages in dependency order; ready stages are ordered by name."""
        return list(self._order)

    @cached_property
    def _order(self) -> tuple[str, ...]:
        sorter = TopologicalSorter(self.upstream)
        try:
            sorter.prepare()
        except CycleError as error:
            ring = " needs ".join(reversed(error.args[1]))
            raise PipelineError(what=f"cycle: {ring}", where=DVC_YAML, fix="Give one of them another input") from error
        ready: list[str] = []
        order: list[str] = []
        while sorter.is_active():
            for name in sorter.get_ready():
                heapq.heappush(ready, name)
            order.append(name := heapq.heappop(ready))
            sorter.done(name)
        return tuple(order)


def value_at(settings: Any, key: str) -> Any:
    """Return the value at a dotted key; None if there is none."""
    for part in key.split("."):
        if isinstance(settings, list) and part.isdigit():
            settings = dict(enumerate(settings)).get(int(part))
        else:
            settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def changed(
    old: Any, new: Any, missing: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the key path and both values of each difference between nested settings."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from changed(old.get(key, missing), new.get(key, missing), missing, (*path, str(key)))
    elif old != new:
        yield path, old, new


def _parents(path: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(path).parents][:-1]


def _expanded(
    spec: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the name suffix, stanza and values of the stage, or of each item of `foreach` or `matrix`."""
    if "foreach" in spec:
        items, stanza = _filled(spec["foreach"], values, []), spec["do"]
        if not isinstance(items, Mapping):
            nested = any(isinstance(item, Mapping | list) for item in items or ())
            items = {str(place) if nested else _text(item): item for place, item in enumerate(items or ())}
    elif "matrix" in spec:
        axes, stanza = _filled(spec["matrix"], values, []), spec
        items = {
            "-".join(
                f"{axis}{place}" if isinstance(value, Mapping | list) else _text(value)
                for axis, (place, value) in zip(axes, choice, strict=True)
            ): dict(zip(axes, (value for _, value in choice), strict=True))
            for choice in product(*map(enumerate, axes.values()))
        }
    else:
        yield "", spec, values
        return
    for key, item in items.items():
        yield f"@{_text(key)}", stanza, {**values, "key": key, "item": item}


def _stage(name: str, spec: Mapping[str, Any], values: Mapping[str, Any]) -> Declared:
    unknown: list[str] = []
    entries = [entry for kind in ("outs", "metrics", "plots") for entry in spec.get(kind) or ()]
    outs, kept_by_git = list(_paths(entries, values, unknown)), filter(_is_uncached, entries)
    params: dict[str, tuple[str, ...]] = {}
    for entry in spec.get("params") or ():
        for file, keys in entry.items() if isinstance(entry, Mapping) else [(PARAMS_FILE, [entry])]:
            known = params.get(file, ())
            params[file] = (*known, *(str(_filled(key, values, unknown)) for key in keys or ()))
    return Declared(
        name=name,
        cmd=str(_filled(spec["cmd"], values, unknown)),
        params=params,
        deps=tuple(dict.fromkeys(_paths(spec.get("deps"), values, unknown))),
        outs=tuple(outs),
        frozen=bool(spec.get("frozen")),
        always=bool(spec.get("always_changed")),
        uncached=tuple(_paths(list(kept_by_git), values, [])),
        metrics=tuple(_paths(spec.get("metrics"), values, [])),
        plots=tuple(_paths(spec.get("plots"), values, [])),
        meta=_filled(spec.get("meta") or {}, values, []),
        unknown=tuple(unknown),
    )


def _is_uncached(entry: Any) -> bool:
    """Tell whether an output of dvc.yaml has the option `cache: false`."""
    return isinstance(entry, Mapping) and any(
        isinstance(o, Mapping) and o.get("cache") is False for o in entry.values()
    )


def _paths(entries: Sequence[Any] | None, values: Mapping[str, Any], unknown: list[str]) -> Iterator[str]:
    """Yield the paths in a list of dvc.yaml, where an entry may have options."""
    for entry in entries or ():
        text = str(_filled(next(iter(entry)) if isinstance(entry, Mapping) else entry, values, unknown))
        yield str(PurePosixPath(text))


def _filled(text: Any, values: Mapping[str, Any], unknown: list[str]) -> Any:
    """Return a dvc.yaml text with `${...}` replaced. A text that is only one such part gives the value itself."""
    if isinstance(text, Mapping):
        return {key: _filled(value, values, unknown) for key, value in text.items()}
    if isinstance(text, list):
        return [_filled(value, values, unknown) for value in text]
    if not isinstance(text, str):
        return text

    def value(name: str) -> Any:
        if (match := value_at(values, re.sub(r"\[(\d+)\]", r".\1", name.strip()))) is None:
            unknown.append(name)
        return match

    if whole := _VALUE.fullmatch(text):
        return value(whole[1])
    return _VALUE.sub(lambda match: _text(value(match[1])), text).replace(r"\${", "${")


def _text(value: Any) -> str:
    """Return a value as DVC writes it into a text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
