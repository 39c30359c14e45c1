"""The inputs of a stage: recorded at its start, and compared with dvc.lock then and until all outputs are written.

DVC reads the dependencies again after the command has ended and records that state. So a stage whose inputs changed
meanwhile must fail. Otherwise dvc.lock would list inputs that the outputs were not made from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError, PosttrainError
from posttrain.files import sync
from posttrain.measure.phases import CLOCK
from posttrain.measure.provenance import code_differences
from posttrain.pipeline.by_name import LOADED
from posttrain.pipeline.lock.code_manifest import CODE, Code, Library, check_loaded, code_path, read_code
from posttrain.pipeline.lock.digests import Digests, Mark, mark, recorded
from posttrain.pipeline.lock.graph import DVC_YAML, Declared, Pipeline, changed
from posttrain.pipeline.lock.package_pin import check_installed
from posttrain.pipeline.lock.plugin_check import check_plugins
from posttrain.pipeline.lock.run_records import is_record
from posttrain.pipeline.lock.run_settings import settings_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE, VERIFY
from posttrain.settings.plain import CUSTOM

SAVING_S: Final = 0.5
"""Seconds that an editor may take between emptying a file and writing it."""
MOST: Final = 4
"""The most changes in a line."""
RESUME: Final = "Restore it to resume from the last checkpoint, or run again to use the new version"

_CODE: dict[str, Mark] = {}
_FIXED: list[Inputs] = []


class Inputs:
    """The declared inputs of a stage at its start."""

    def __init__(self, stage: str, declared: Declared) -> None:
        self.stage, self.declared, self._digests = stage, declared, Digests()
        # File marks are read before the files, so that the first comparison finds a change in between.
        self._marks = {path: self._digests.marks(path) for path in declared.deps}
        self._params_marks = {file: self._digests.marks(file) for file in declared.params}
        _check_code(self._marks)
        self.digests = {path: self._digests.of(path) for path in declared.deps}
        self.params = {file: _values(file, keys) for file, keys in declared.params.items()}
        for path, marks in self._marks.items():
            if (present := self._digests.marks(path)) != marks:
                raise _changed(_first_difference(path, marks, present), f"{stage} was starting")
        self._digests.keep()
        self.code = _Running(declared) if str(code_path(declared.name)) in declared.deps else None

    def confirm(self) -> None:
        """Raise if an input has changed. Only files written after the start are read again."""
        for path, marks in self._marks.items():
            present = self._digests.marks(path)
            if present != marks and self._digests.of(path) != self.digests[path]:
                raise _changed(_first_difference(path, marks, present), f"{self.stage} was running")
        for file, marks in self._params_marks.items():
            if (present := self._digests.marks(file)) != marks:
                self._confirm_params(file)
                self._params_marks[file] = present
        if self.code:
            self.code.confirm()

    def check_recorded(self, pipeline: Pipeline) -> None:
        """Raise if a table, model or metrics file differs from dvc.lock's record of the stage that writes it."""
        for name, entry in recorded(pipeline.root).items():
            # The entry of a run that was removed or renamed; and code/ is compared by what it says.
            if name not in pipeline.stages or name == CODE:
                continue
            for out in entry.get("outs", []):
                path, digest = out["path"], out.get("md5")
                if not digest or not any(_related(path, dep) for dep in self.declared.deps):
                    continue
                if (present := self._digests.of(path)) not in (None, digest):
                    what = f"it differs from dvc.lock's entry for the stage {name} (md5 {present} instead of {digest})"
                    raise PipelineError(what=what, where=path, fix=VERIFY)

    def _confirm_params(self, file: str) -> None:
        keys = self.declared.params[file]
        try:
            present = _values(file, keys)
        except PipelineError:
            time.sleep(SAVING_S)
            present = _values(file, keys)
        for key, value in self.params[file].items():
            if key not in present or present[key] != value:
                inner = next((keys for keys, _, _ in changed(value, present.get(key))), ())
                raise _changed(f"{file}: {'.'.join([key, *inner])}", f"{self.stage} was running")


def _plugin_marks(library: Library) -> dict[str, Mark]:
    """Return the marks of the plugin files that a run uses."""
    return {file: mark(Path(file)) for file in library.plugin_files}


class _Running:
    """The code of a stage at its start."""

    def __init__(self, declared: Declared) -> None:
        self._stage, self._settings = declared.name, read_yaml(PARAMS_FILE)
        library = Library()
        self.listed: Code = library.code(self._stage, self._settings)
        self._marks = library.outlines.marks | _plugin_marks(library)
        library.outlines.keep()
        _check_code({"": library.outlines.marks})

    def check_written(self) -> None:
        """Raise if code/ describes other code."""
        path = code_path(self._stage)
        written = read_code(path)
        if written != self.listed:
            wrong = code_differences(written, self.listed) if written else ["the file is damaged"]
            what = f"params.yaml or code changed after the stage `code` ran: {', '.join(wrong[:MOST])}"
            seen = not written or written["files"] != self.listed["files"]  # of packages DVC sees only constraints.txt
            fix = "Run `dvc repro`, which runs `code` first" if seen else "Run `dvc repro -s -f code`, then `dvc repro`"
            raise PipelineError(what=what, where=str(path), fix=fix)

    def check_loaded(self) -> None:
        """Raise if a file was imported that the code of this run does not list."""
        check_loaded(self.listed["files"])

    def confirm(self) -> None:
        """Raise if code that this run can load has changed; comments and layout may change."""
        marks = {file: mark(Path(file)) if Path(file).is_file() else None for file in self._marks}
        if marks == self._marks and not self._settings_changed():
            return
        try:
            wrong = self._compare()
        except PosttrainError:  # half saved
            wrong = ["it"]
        if wrong:
            time.sleep(SAVING_S)
            wrong = self._compare()
        if wrong:
            raise PipelineError(
                what=f"{', '.join(wrong[:MOST])} while {self._stage} was running", where="code", fix=RESUME
            )

    def _settings_changed(self) -> bool:
        """Tell whether settings changed that count as code: no key of dvc.yaml has them."""
        try:
            return settings_of(self._stage, read_yaml(PARAMS_FILE)) != self.listed.get("settings", {})
        except PosttrainError:  # half saved
            return True

    def _compare(self) -> list[str]:
        library, present = Library(), read_yaml(PARAMS_FILE)
        code = dict(library.code(self._stage, self._settings))
        code.pop("settings", None)
        if counted := settings_of(self._stage, present):
            code["settings"] = counted
        self._marks = library.outlines.marks | _plugin_marks(library)
        return code_differences(self.listed, code)


class _AfterReading:
    """Compares the inputs after each loading phase, to notice an input that is edited and then restored."""

    def entered(self, name: str) -> None: ...

    def left(self, name: str) -> None:
        if name == "load":
            confirm()


def watch_code() -> None:
    """Record the library's files before they are imported."""
    for folder in (*LOADED, CUSTOM.resolve()):
        _CODE.update((str(file), mark(file)) for file in folder.rglob("*.py") if file.is_file())


def fix(stage: str) -> None:
    """Record the inputs of a stage at its start, under DVC's stage name if DVC started it."""
    check_installed()
    address = os.environ.get("DVC_STAGE", "")
    file, _, name = (address or stage).rpartition(":")  # recipes/a/dvc.yaml:sft, or sft of the dvc.yaml of this folder
    folder = Path(file).parent if file and Path(file).is_file() else Path()
    if not (folder / DVC_YAML).is_file():
        check_plugins(stage)
        return
    try:
        pipeline = Pipeline(folder)
        declared = pipeline.declared(name)
    except PosttrainError:
        if address:
            raise
        return  # started by hand: nothing is recorded, and the stage itself reports wrong parameters
    check_plugins(declared.name)
    inputs = Inputs(address or stage, declared)
    if address:
        inputs.check_recorded(pipeline)
        if inputs.code:
            inputs.code.check_written()
    _FIXED.append(inputs)
    CLOCK.watchers.append(_AfterReading())


def check_imports() -> None:
    """Raise if the stage has imported a file that its code/ file does not list."""
    for inputs in _FIXED:
        if inputs.code:
            inputs.code.check_loaded()


def confirm() -> None:
    """Raise if an input of the running stage has changed since its start."""
    for inputs in _FIXED:
        inputs.confirm()


def used() -> dict[str, Any]:
    """Return the stage's inputs, parameters, outputs and code in dvc.lock's form."""
    if not _FIXED:
        return {}
    inputs, digests = _FIXED[0], Digests()
    code = {"code": inputs.code.listed} if inputs.code else {}
    written = {out: digests.of(out) for out in inputs.declared.outs if not is_record(out)}
    digests.keep()
    return {**code, "inputs": inputs.digests, "params": inputs.params, "outputs": written}


def sync_outputs() -> None:
    """Write the stage's outputs to the disk (fsync)."""
    for inputs in _FIXED:
        for out in inputs.declared.outs:
            sync(Path(out))


def _values(file: str, keys: Collection[str]) -> dict[str, Any]:
    """Return the declared parameters of a file as DVC reads them."""
    import dpath
    from dvc.exceptions import DvcException
    from dvc.fs import localfs
    from dvc.utils.serialize import load_path

    try:
        data = load_path(file, localfs) if Path(file).is_file() else {}
    except DvcException as error:
        raise PipelineError(what="it cannot be read", where=file, fix="Fix the file") from error
    values = {key: dpath.get(data, key, separator=".", default=None) for key in keys} if keys else data or {}
    return dict(values)


def _check_code(marks: Mapping[str, Mapping[str, Mark]]) -> None:
    """Raise if a library file has changed since it was imported."""
    for path, files in marks.items():
        for name, seen in files.items():
            place = Path(path, name)
            if _CODE.get(str(place.resolve()), seen) != seen:
                raise _changed(str(place), "the stage was starting")


def _related(path: str, other: str) -> bool:
    """Tell whether two paths are equal or one contains the other."""
    first, second = Path(path), Path(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def _changed(where: str, while_what: str) -> PipelineError:
    return PipelineError(what=f"it was changed while {while_what}", where=where, fix=RESUME)


def _first_difference(path: str, old: Mapping[str, Mark], new: Mapping[str, Mark]) -> str:
    name = min(name for name in old.keys() | new if old.get(name) != new.get(name))
    return str(Path(path, name))
