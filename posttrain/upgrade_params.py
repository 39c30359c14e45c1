"""The layout of params.yaml that version 0.1 read, rewritten as named runs; comments stay with their keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap

from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.algorithms.sampled_rows import SAMPLED_ROWS
from posttrain.algorithms.supervised import DISTILL_ROWS
from posttrain.formats import PARAMS
from posttrain.params import FORMAT, GROUPS
from posttrain.renames import DEVICE, DISTILL, POLICY, PREFERENCE, SAMPLED, SCRATCH, SECTIONS, Rename

FAMILIES: Final = ("preference", "online", "distill")
MODELS: Final = {"base": "base/main", "sft": "sft/main", "reward": "reward/main"}
USUAL: Final = {"correct": 1.0, "format": 0.2}
MARK: Final = "####"
"""What came before the answer in every text that version 0.1 could read."""


def is_old(data: Mapping[str, Any]) -> bool:
    """Whether it has the sections of version 0.1."""
    flat = (name for name in ("base", "sft", "reward") if isinstance(data.get(name), Mapping))
    return any(name in data for name in SECTIONS) or any(set(data[name]) - set(GROUPS[name]) for name in flat)


def upgraded(old: CommentedMap) -> tuple[CommentedMap, list[str]]:
    """The file in the present layout, and what a person has to look at."""
    notes: list[str] = []
    was_old = is_old(old)
    new = _SectionBuilder(old, notes).sections() if was_old else old
    for family in FAMILIES:
        for name, run in ((new.get(family) or {}).get("runs") or {}).items():
            if isinstance(run, CommentedMap):
                rename_keys(run, _renames(family, run.get("algorithm")))
                if isinstance(run.get("correction"), int | float):
                    run["correction"] = _flow({"type": "truncate", "high": run["correction"]})
                notes += (f"{family}.runs.{name}: {note}" for note in (_changed_defaults(run) if was_old else ()))
    for key, renames in (("device", DEVICE), ("shape", SCRATCH)):
        for settings in _mappings_of(new, key):
            rename_keys(settings, renames)
    new.pop(FORMAT, None)
    new.insert(0, FORMAT, PARAMS)
    return new, notes


def _mappings_of(data: Any, key: str) -> Iterator[CommentedMap]:
    """Every mapping that stands under this key, at any depth."""
    if isinstance(data, CommentedMap):
        if isinstance(data.get(key), CommentedMap):
            yield data[key]
        for value in data.values():
            yield from _mappings_of(value, key)


def rename_keys(run: CommentedMap, renames: tuple[Rename, ...]) -> None:
    """Move the keys of version 0.1 in a run to their present places."""
    for one in renames:
        head, _, rest = one.old.partition(".")
        owner = run.get(head) if rest else run
        key = rest or head
        if not isinstance(owner, CommentedMap) or key not in owner:
            continue
        value = owner[key]
        if one.values:
            if isinstance(value, list | Mapping) or value not in one.values:
                continue
            value = one.values[value]
        position, comment = list(owner).index(key), owner.ca.items.pop(key, None)
        del owner[key]
        _put(run, one.new, value, position, comment)


def _put(run: CommentedMap, place: str, value: Any, position: int, comment: Any) -> None:
    """Set a place of a run; where it is a choice already, the value becomes its type or its options."""
    head, _, rest = place.partition(".")
    if head not in run:
        run.insert(position, head, _flow({rest: value}) if rest else value)
        if comment is not None:
            run.ca.items[head] = comment
        return
    own = run[head] if isinstance(run[head], CommentedMap) else _flow({"type": run[head]})
    own.update({rest: value} if rest else value if isinstance(value, Mapping) else {"type": value})
    if "type" in own:
        own.move_to_end("type", last=False)
    run[head] = own


def _flow(values: Mapping[str, Any]) -> CommentedMap:
    found = CommentedMap(values)
    found.fa.set_flow_style()
    return found


def _renames(family: str, algorithm: Any) -> tuple[Rename, ...]:
    if family == "online":
        return SAMPLED if algorithm in SAMPLED_ROWS else POLICY
    return PREFERENCE if family == "preference" else DISTILL


def _changed_defaults(run: CommentedMap) -> Iterator[str]:
    """Write down defaults of version 0.1 that are others now, so that the run learns as before."""
    algorithm, kl = run.get("algorithm"), run.get("kl")
    if algorithm in ("ppo", "ppo_penalty") and "value_coef" not in (run.get("advantage") or {}):
        _put(run, "advantage", {"value_coef": 0.5}, len(run), None)
        yield "advantage.value_coef: 0.5 is version 0.1's default; it is 1.0 now"
    place = str(kl.get("type", "")) if isinstance(kl, CommentedMap) and "estimator" not in kl else ""
    if place.startswith("reward") and POLICY_ROWS[str(algorithm)].values.get("kl", {}).get("type") != place:
        kl["estimator"] = "k3"
        yield "kl.estimator: k3 is version 0.1's default; it is k1 in the reward now"
    if "ratio" in run:
        yield f"ratio: {run['ratio']} has no place any more; the surrogates `gspo` and `ppo_clip` say it"


class _SectionBuilder:
    """Builds the sections of named runs out of those of version 0.1."""

    def __init__(self, old: CommentedMap, notes: list[str]) -> None:
        self._old, self._notes = old, notes
        self._tables: dict[str, str] = {}
        self._marked = False

    def sections(self) -> CommentedMap:
        """Every section, in the order of the present file."""
        new = CommentedMap()
        new.ca.comment = self._old.ca.comment
        new["data"] = self._data()
        for name, build in {"base": self._base, "sft": self._sft, "reward": self._reward}.items():
            if name in self._old:
                new[name] = build(self._section(name))
        for family in FAMILIES:
            runs = self._section(family).get("runs") or {}
            for run in runs.values():
                self._named(family, run)
            if runs:
                new[family] = self._section(family)
        new["evaluate"] = self._evaluate(self._section("evaluate"))
        if self._section("report"):
            self._notes.append(
                f"report: left out, because it has no settings now: {', '.join(self._section('report'))}"
            )
        known = {*SECTIONS, *GROUPS, FORMAT}
        for name in (one for one in self._old if one not in known):
            new[name] = self._old[name]
            self._notes.append(f"{name}: unknown in version 0.1 too; it is left where it is")
        before = self._old.ca.items  # the comments and blank lines before each section
        new.ca.items.update({name: comment for name, comment in before.items() if name in new})
        for old, name, owner in (("prepare", "data", new), ("pairs", "samples", new["data"])):
            if old in before and name in owner:
                owner.ca.items[name] = before[old]
        return new

    def _section(self, name: str) -> CommentedMap:
        found = self._old.get(name)
        return found if isinstance(found, CommentedMap) else CommentedMap()

    def _table(self, kind: str) -> str:
        """The table of this kind; a run that needs one that is missing is reported by the check of the new file."""
        return self._tables.get(kind, f"missing/{kind}")

    def _data(self) -> CommentedMap:
        data, given = CommentedMap(), dict[str, CommentedMap]()
        prepare, pairs = self._section("prepare"), self._section("pairs")
        if prepare.get("source", "two_step") == "two_step":
            task = prepare.get("two_step") or CommentedMap()
            task.insert(0, "task", "two_step")
            data["tasks"] = CommentedMap(two_step=task)
            self._tables |= {kind: f"two_step/{kind}" for kind in ("corpus", "chat", "prompts")}
        else:
            given |= prepare.get("given") or {}
            self._marked = True
        if pairs.get("source") == "given":
            given |= pairs.get("given") or {}
        self._given(data, given)
        if pairs and pairs.get("source", "sampled") == "sampled":
            self._tables |= {kind: f"compared/{kind}" for kind in ("pairs", "feedback")}
            for key in ("source", "given"):
                pairs.pop(key, None)
            inputs = {"policy": MODELS["sft"], "data": self._table("prompts"), **self._rewards(pairs)}
            data["samples"] = CommentedMap(compared=_with_first(pairs, **inputs))
        return data

    def _given(self, data: CommentedMap, given: Mapping[str, CommentedMap]) -> None:
        """Tables of the user's own: those in files as one run, those of the Hub as another."""
        places = {kind: one.get("path") or one.get("hub") for kind, one in given.items()}
        local = {
            kind: Path(str(place))
            for kind, place in places.items()
            if "path" in given[kind] or Path(str(place)).is_dir()
        }
        if local:
            root = Path(os.path.commonpath([str(place.parent) for place in local.values()]) or ".")
            run = CommentedMap(path=root.as_posix())
            if any(given[kind].pop("outside_workspace", False) for kind in local):
                run["outside_workspace"] = True
            for kind, place in local.items():
                options = given[kind]
                for key in ("path", "hub"):
                    options.pop(key, None)
                name = place.relative_to(root).as_posix()
                run[kind] = _with_first(options, path=name) if options else name
            data["files"] = CommentedMap(given=run)
            if root == Path():
                self._notes.append("data.files.given.path: move your files to a folder of their own and name it")
        if hub := [kind for kind in given if kind not in local]:
            data["hub"] = CommentedMap(
                hub=CommentedMap((kind, _rename_key(given[kind], "hub", "name")) for kind in hub)
            )
        for kind in given:
            self._tables[kind] = f"{'given' if kind in local else 'hub'}/{kind}"
        if "pairs" in given:
            self._tables.setdefault("feedback", self._tables["pairs"].replace("/pairs", "/feedback"))

    def _base(self, old: CommentedMap) -> CommentedMap:
        model, revision = str(old.pop("model", "scratch")), old.pop("revision", None)
        outside = old.pop("outside_workspace", None)
        if model == "scratch":
            return CommentedMap(scratch=CommentedMap(main=_with_first(old, data=self._table("corpus"))))
        if old:
            self._notes.append(f"base: left out, because a model of your own does not use it: {', '.join(old)}")
        if not Path(model).is_dir():
            return CommentedMap(hub=CommentedMap(main=CommentedMap(name=model, revision=revision)))
        run = CommentedMap(path=model)
        if outside is not None:
            run["outside_workspace"] = outside
        return CommentedMap(folders=CommentedMap(main=run))

    def _sft(self, old: CommentedMap) -> CommentedMap:
        return CommentedMap(runs=CommentedMap(main=_with_first(old, start=MODELS["base"], data=self._table("chat"))))

    def _reward(self, old: CommentedMap) -> CommentedMap:
        _rename_key(old, "demonstrations", "shown")
        ranks = (old.get("objective") or {}).get("compare") == "ranks"
        run = _with_first(
            old,
            start=MODELS["sft"],
            data=self._table("pairs"),
            feedback=self._table("feedback") if ranks else "none",
            demonstrations=self._table("chat"),
        )
        return CommentedMap(runs=CommentedMap(main=run))

    def _named(self, family: str, run: CommentedMap) -> None:
        algorithm = run.get("algorithm")
        start = str(run.pop("start", "sft"))
        inputs = {"algorithm": run.pop("algorithm", None), "start": MODELS.get(start, start)}
        if family == "preference":
            row = PREFERENCE_ROWS.get(str(algorithm))
            loss = run.get("loss", row.values["loss"] if row else "")
            _with_first(run, **inputs, data=self._table("feedback" if loss in ("kto", "bco") else "pairs"))
            return
        inputs["data"] = self._table("prompts")
        if family == "online":
            inputs["corpus"] = self._table("corpus") if run.get("ptx") else "none"
        else:
            teacher, row = str(run.pop("teacher", "")), DISTILL_ROWS.get(str(algorithm))
            own = run.get("own", row.values.get("own", 1.0) if row else 1.0)
            inputs["teacher"] = MODELS.get(teacher, teacher)
            inputs["demonstrations"] = self._table("chat") if own < 1 else "none"
        _with_first(run, **inputs, **self._rewards(run))

    def _evaluate(self, old: CommentedMap) -> CommentedMap:
        reference = str(old.pop("reference", "sft"))
        inputs = {"data": self._table("prompts"), "reference": MODELS.get(reference, reference)}
        settings = _with_first(old, **inputs, **self._rewards(old, {"correct": 1.0, "format": 0.0}))
        runs = [(family, str(run)) for family in FAMILIES for run in self._section(family).get("runs") or {}]
        labels = [run for _, run in runs] + ["base", "sft"]
        found = CommentedMap({name: MODELS[name] for name in ("base", "sft") if name in self._old})
        for family, run in runs:
            found[run if labels.count(run) == 1 else f"{family}_{run}"] = f"{family}/{run}"
        return CommentedMap(settings=settings, policies=found)

    def _rewards(self, run: CommentedMap, default: Mapping[str, float] = USUAL) -> dict[str, Any]:
        """The reward model, and the mark that answers of version 0.1 have; the miniature's task knows it."""
        rewards = run.get("reward", default)
        inputs: dict[str, Any] = {"reward_model": MODELS["reward"] if "model" in rewards else "none"}
        if self._marked:
            marked = {
                name: _flow({"weight": weight, "after": MARK}) if name in default else weight
                for name, weight in rewards.items()
            }
            if "reward" in run:
                run["reward"].update(marked)
            else:
                inputs["reward"] = CommentedMap(marked)
        return inputs


def _with_first(settings: CommentedMap, **inputs: Any) -> CommentedMap:
    """The settings with these keys before the others."""
    if len(inputs) > 1:
        settings.fa.set_block_style()  # with its inputs a run is too long for one line
    for position, (name, value) in enumerate(inputs.items()):
        settings.insert(position, name, value)
    return settings


def _rename_key(settings: CommentedMap, old: str, new: str) -> CommentedMap:
    """The settings with one key renamed in its place."""
    if old in settings:
        position, comment = list(settings).index(old), settings.ca.items.pop(old, None)
        settings.insert(position, new, settings.pop(old))
        if comment is not None:
            settings.ca.items[new] = comment
    return settings
