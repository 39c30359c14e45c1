"""The code that a run can load: a digest of each file and the versions of packages, in code/STAGE/RUN.json.

The stage `code` writes these files, and the other stages depend on them. So a stage is out of date if code changes that
it can run. Comments, unused rows of listed folders, and code that only measures do not count.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.files import is_outside, write_json
from posttrain.isolation.library import LIBRARY
from posttrain.measure.record import PYTHON
from posttrain.pipeline.by_name import BASES, LOADED, place_of
from posttrain.pipeline.by_name import STAGES as STAGES_PACKAGE
from posttrain.pipeline.lock.code_digest import Outline, Outlines, import_line, is_blank, normalised
from posttrain.pipeline.lock.package_pin import check_installed
from posttrain.pipeline.lock.plugin_code import plugin_files, plugin_version
from posttrain.pipeline.lock.run_settings import names_of, settings_of
from posttrain.pipeline.params.stage_table import stage_names
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.listing import listed_modules
from posttrain.settings.plain import CUSTOM, texts_in
from posttrain.settings.plugins import Plugin, registered

CODE: Final = "code"
"""The stage that writes code/."""
FOLDER: Final = Path("code")
UNCOUNTED: Final = (
    "posttrain.__main__",
    "posttrain.pipeline.by_name",
    "posttrain.pipeline.commands",
    "posttrain.isolation.library",
    "posttrain.measure",
    "posttrain.settings.listing",
    "posttrain.settings.other_names",
    "posttrain.settings.plugins",
    "posttrain.settings.trl_names",
    "posttrain.settings.user_code",
    "posttrain.pipeline.lock",
    "posttrain.pipeline.params.parsed",
    "posttrain.pipeline.processes.agreement",
    "posttrain.pipeline.processes.children",
    "posttrain.pipeline.processes.elsewhere",
    "posttrain.pipeline.processes.launch",
    "posttrain.pipeline.processes.notes",
    "posttrain.pipeline.processes.schedulers",
)
"""Modules that no result depends on. They measure, start processes, find rows, keep what was parsed, or explain what is
out of date."""
PACKAGES: Final = {
    "datasets": ("datasets", "pyarrow"),
    "jinja2": ("jinja2",),
    "jsonschema": ("jsonschema", "referencing"),
    "numpy": ("numpy",),
    "pandera": ("pandera", "polars"),
    "peft": ("peft",),
    "polars": ("polars",),
    "pyarrow": ("pyarrow",),
    "regex": ("regex",),
    "safetensors": ("safetensors",),
    "tokenizers": ("tokenizers",),
    "torch": ("torch", "numpy"),
    "transformers": ("transformers", "tokenizers", "safetensors", "torch", "numpy"),
}
"""Import -> the packages that decide its results."""

PAGE_FILES: Final = (".css", ".html", ".js")
PRELOADED: Final[set[str]] = set()
"""Modules that a process imported before it became a stage, e.g. in tests that fork."""
Code = dict[str, dict[str, str]]
"""`files`: path -> digest. `packages`: name -> version. `settings`: the shared seed, or the settings of completions."""


def code_path(stage: str) -> Path:
    """Return the file that lists a run's code: `online@grpo` -> code/online/grpo.json."""
    return FOLDER / f"{stage.replace('@', '/')}.json"


class Library:
    """The modules of the library and the user, and the modules that each run can load."""

    def __init__(self, outlines: Outlines | None = None) -> None:
        self.modules = _modules(CUSTOM, CUSTOM)
        for folder in LOADED:
            self.modules |= _modules(folder, LIBRARY)
        self.outlines = outlines or Outlines()
        self._like: dict[str, list[tuple[set[str], set[str], Code]]] = {}
        self._listings: dict[tuple[str, str, str], dict[str, tuple[str, list[str]]]] = {}
        self.plugin_files: set[str] = set()
        """The files of the plugins that were asked for."""

    def code(self, stage: str, settings: Mapping[str, Any]) -> Code:
        """Return the files that one run can load and the packages behind them."""
        names, kind = set(names_of(stage, settings)), stage.partition("@")[0]
        named = {*self._user_modules(names), *_own_files(names)}
        known = self._like.setdefault(kind, [])
        like = (code for rows, used, code in known if names & rows | named == used)
        if (code := next(like, None)) is None:
            rows, code = self._code_of(kind, names)
            known.append((rows, names & rows | named, code))
        run_settings = settings_of(stage, settings)
        return {**code, "settings": run_settings} if run_settings else code

    def _code_of(self, kind: str, given_names: Collection[str]) -> tuple[set[str], Code]:
        """Return the code of a kind of run that uses these names, and the rows of all listings that it looked at."""
        names, start = set(given_names), [f"{STAGES_PACKAGE}.{kind}", *self._user_modules(given_names)]
        given = {file: self.outlines.of(file, "").digest for file in _own_files(names)}
        while True:  # a row that is used may name others
            closure = self._closure(start, names)
            listed = [self.rows(*listing) for outline in closure.values() for listing in outline.listings]
            more = {name for outline in closure.values() if outline.names for name in self._used_rows(outline)}
            more |= {text for rows in listed for name in names & rows.keys() for text in rows[name][1]}
            if more <= names:
                break
            names |= more
        files = given | self._digests(closure) | (self._page_files() if kind == "report" else {})
        imported = {name.partition(".")[0] for outline in closure.values() for name in outline.imports}
        plugins = self._plugins([listing for one in closure.values() for listing in one.listings], names)
        code = {"files": dict(sorted(files.items())), "packages": {**_versions(imported), **plugins}}
        return {name for rows in listed for name in rows}, code

    def rows(self, place: str, table: str, group: str = "") -> dict[str, tuple[str, list[str]]]:
        """Return row -> its module and texts, for a listing. A plugin of another distribution has no module here."""
        if (place, table, group) not in self._listings:
            self._listings[place, table, group] = {
                **{name: self._registered(entry) for name, entry in registered(group).items()},
                **{
                    name: (module, texts)
                    for module in listed_modules(place)
                    for name, texts in self._outline(module).rows.get(table, {}).items()
                },
            }
        return self._listings[place, table, group]

    def _registered(self, plugins: Sequence[Plugin]) -> tuple[str, list[str]]:
        """Return a plugin's module and the texts of its row; both are empty unless the plugin is our own."""
        ours = next((plugin for plugin in plugins if plugin.is_ours and plugin.module in self.modules), None)
        if ours is None:
            return "", []
        return ours.module, self._outline(ours.module).rows.get(ours.variable, {}).get(ours.name, [])

    def _plugins(self, listings: Iterable[Sequence[str]], names: Collection[str]) -> dict[str, str]:
        """Return distribution -> version and digest, for plugins of other distributions that a run names."""
        rows = {listing[2]: self.rows(*listing) for listing in listings if listing[2:]}
        used = [
            plugin
            for group in rows
            for name in sorted(registered(group).keys() & set(names))
            for plugin in registered(group)[name]
            if rows[group][name][0] == "" and not plugin.is_ours and not plugin.is_gone
        ]
        self.plugin_files |= {str(file) for plugin in used for file in plugin_files(plugin)}
        return {plugin.distribution: plugin_version(plugin) for plugin in used}

    def _used_rows(self, outline: Outline) -> set[str]:
        """Return the rows that a module itself uses, from listings that it defines or imports."""
        imported = {module for name in outline.imports for module in _prefixes(name) if module in self.modules}
        listings = [*outline.listings, *(listing for module in imported for listing in self._outline(module).listings)]
        return {name for listing in listings for name in self.rows(*listing).keys() & set(outline.names)}

    def _outline(self, module: str) -> Outline:
        file = self.modules[module]
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        return self.outlines.of(str(file), package)

    def closure(self, module: str) -> dict[str, str]:
        """Return path -> digest, for a module of the library and everything it imports."""
        return self._digests(dict(sorted(self._closure([module], set()).items())))

    def _digests(self, outlines: Mapping[str, Outline]) -> dict[str, str]:
        """Return path -> digest of modules. Files without code are left out."""
        return {_shown(self.modules[name]): has.digest for name, has in outlines.items() if not is_blank(has.digest)}

    def _page_files(self) -> dict[str, str]:
        """Return path -> digest of the styles and scripts of the report's page."""
        folder = self.modules["posttrain.pipeline.report.page"].parent
        files = sorted(file for file in folder.iterdir() if file.suffix in PAGE_FILES)
        return {_shown(file): self.outlines.of(str(file), "").digest for file in files}

    def check_own(self, stage: str, settings: Mapping[str, Any]) -> None:
        """Reject imports that `code` cannot record, in the user's modules of a run and in their imports."""
        names = set(names_of(stage, settings))
        self._closure(self._user_modules(names), names)

    def _user_modules(self, names: Collection[str]) -> list[str]:
        """Return the user's modules that are named."""
        modules = [name.partition(":")[0] for name in names if ":" in name]
        return [module for module in modules if _is_custom(self.modules.get(module))]

    def _closure(self, queue: list[str], names: set[str]) -> dict[str, Outline]:
        """Return these modules and everything imported from them, with outlines.

        For listings, only the named rows count.
        """
        queue, outlines = list(queue), dict[str, Outline]()
        while queue:
            module = queue.pop()
            if module in outlines or module not in self.modules or _uncounted(module):
                continue
            outlines[module] = self._outline(module)
            queue += _prefixes(module)
            for listing in outlines[module].listings:
                rows = self.rows(*listing)
                queue += [rows[name][0] for name in names & rows.keys()]
            for name in outlines[module].imports:
                queue += _prefixes(name)
                if _is_custom(self.modules[module]):
                    self._refuse_outside(name, module)
        return outlines

    def _refuse_outside(self, name: str, importer: str) -> None:
        """Raise if an import of the user's module leads to a workspace file outside `custom`."""
        file = self.modules[importer]
        package = importer if file.name == "__init__.py" else importer.rpartition(".")[0]
        for module in _prefixes(name):
            outside = next(
                (candidate for candidate in (_file(module), _file(f"{module}.__init__")) if candidate.is_file()), None
            )
            if outside and module not in self.modules:
                where = f"{file} line {import_line(file, package, name)}"
                what = f"it imports {outside}, which is outside {CUSTOM}/, so its changes would not be noticed"
                raise PipelineError(what=what, where=where, fix=f"Move {outside} to {CUSTOM}/")


def write_code() -> list[Path]:
    """Write the code of every run in params.yaml and remove the files of other runs. Return the changed files."""
    check_installed()
    library, settings = Library(), read_yaml(PARAMS_FILE)
    codes = {code_path(stage): library.code(stage, settings) for stage in run_names(settings)}
    library.outlines.keep()
    changed = []
    for path, code in codes.items():
        if read_code(path) != code:
            write_json(path, code)
            changed.append(path)
    for path in set(FOLDER.rglob("*.json")) - codes.keys():
        path.unlink()
        changed.append(path)
    return changed


def is_current() -> bool:
    """Tell whether code/ matches the present code and packages."""
    check_installed()
    library, settings = Library(), read_yaml(PARAMS_FILE)
    stages = list(run_names(settings))
    wanted = {code_path(stage) for stage in stages}
    current = set(FOLDER.rglob("*.json")) == wanted and all(
        read_code(code_path(stage)) == library.code(stage, settings) for stage in stages
    )
    library.outlines.keep()
    return current


def run_names(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield DVC's name of every run in params.yaml and of the report."""
    yield from stage_names(settings)
    yield "report"


def read_code(path: Path) -> Code | None:
    """Return the code that the stage `code` wrote; None if the file is missing or damaged."""
    try:
        code: Code = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return code


def check_loaded(listed: Collection[str]) -> None:
    """Raise if this process has loaded a library or user file that is not listed."""
    here = Path.cwd()
    for name, place in _loaded((here, *BASES)):
        relative = place.relative_to(here) if place.is_relative_to(here) else place
        if ours := place_of(place):
            shown = _shown(ours)
            if _uncounted(shown.removesuffix(".py").replace("/", ".")):  # multiprocessing has __main__ by another name
                continue
        elif relative in (CUSTOM / _file(name), CUSTOM / _file(f"{name}.__init__")):
            shown = relative.as_posix()
        elif relative == _file(name):
            fix = f"Move it to {CUSTOM}/, so that its changes are noticed"
            raise PipelineError(
                what="a run imported this file, whose changes are not noticed here", where=str(relative), fix=fix
            )
        else:
            continue
        if shown not in listed and not is_blank(normalised(place)):
            what = "the run imported it, but no import statement and no setting contains its name"
            raise PipelineError(what=what, where=shown, fix="Add an import statement, or put its name into params.yaml")


def _loaded(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file, without links, of each counted module that lies in one of these folders.

    A process has thousands of modules, almost all of packages.
    """
    within, real = tuple(f"{folder}{os.sep}" for folder in folders), cache(os.path.realpath)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name not in PRELOADED and not _uncounted(name):
            folder, _, last = str(file).rpartition(os.sep)
            place = f"{real(folder)}{os.sep}{last}"
            if os.path.islink(place):  # noqa: PTH114 - a Path for each of thousands takes a third of a second
                place = real(place)
            if place.startswith(within):
                yield name, Path(place)


def _modules(folder: Path, root: Path) -> dict[str, Path]:
    """Return dotted name -> file, for each Python file in a folder."""
    modules = {}
    for file in folder.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def named_files(settings: Any) -> list[str]:
    """Return the files in `custom` that settings refer to, directly or by folder."""
    return _own_files(set(texts_in(settings)))


def _own_files(names: Collection[str]) -> list[str]:
    """Return the files in `custom` that a run's settings name, such as a chat template; for a folder, all its files."""
    paths = [Path(name) for name in names if name.startswith(f"{CUSTOM}/")]
    files = {file for path in paths for file in (path.rglob("*") if path.is_dir() else [path] * (path.suffix != ".py"))}
    return [str(file) for file in files if file.suffix != ".pyc" and file.is_file() and not is_outside(file, CUSTOM)]


@cache
def _prefixes(name: str) -> tuple[str, ...]:
    """A dotted name and the names of all its parents."""
    parts = name.split(".")
    return tuple(".".join(parts[: end + 1]) for end in range(len(parts)))


def _uncounted(module: str) -> bool:
    return module.startswith(UNCOUNTED)


def _is_custom(file: Path | None) -> bool:
    return file is not None and not file.is_absolute()


def _file(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def _shown(file: Path) -> str:
    """Return a path as written in code/: relative to the library's folder or the user's."""
    return (file.relative_to(LIBRARY) if file.is_absolute() else file).as_posix()


def _versions(imported: Collection[str]) -> dict[str, str]:
    """Return the versions of Python and of the packages behind these imports."""
    names = {name for module in imported for name in PACKAGES.get(module, ())}
    return {"python": PYTHON, **{name: _version(name) for name in sorted(names)}}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        fix = f"Install it: python -m pip install -c constraints.txt {package} (README lists the extras)"
        raise PipelineError(what=f"a run needs the package {package}", where=PARAMS_FILE, fix=fix) from error
