"""A user's own ideas by import path, e.g. `my_losses:soft`: the name `soft` of my_losses.py in the workspace."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError
from posttrain.params import did_you_mean

PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_LOADED: set[str] = set()


def is_import_path(name: object) -> bool:
    """Whether it is written `module:name`."""
    return isinstance(name, str) and PATH.fullmatch(name) is not None


def load_object(path: str, where: str) -> Any:
    """What `module:name` names; `where` is the parameter that asks for it."""
    module_name, _, name = path.partition(":")
    file = Path(*module_name.split(".")).with_suffix(".py")
    where = f"{where} = '{path}' (params.yaml)"
    if not is_import_path(path) or not file.is_file():
        what = f"{file} is not in the workspace" if is_import_path(path) else "this is not an import path"
        raise ParamsError(what=what, where=where, fix="Write MODULE:NAME for the name NAME in MODULE.py")
    module = _imported(module_name, file, where)
    if not hasattr(module, name):
        own = [one for one in vars(module) if not one.startswith("_")]
        raise ParamsError(what=f"{file} has no '{name}'", where=where, fix=did_you_mean(name, own))
    _LOADED.add(module_name)
    return getattr(module, name)


def load_module(name: str, where: str) -> Any:
    """A module of the workspace; `where` is what asks for it."""
    file = Path(*name.split(".")).with_suffix(".py")
    if not is_import_path(f"{name}:x") or not file.is_file():
        raise ParamsError(what=f"{file} is not in the workspace", where=where, fix="Name a MODULE for MODULE.py")
    module = _imported(name, file, where)
    _LOADED.add(name)
    return module


def loaded_modules() -> frozenset[str]:
    """The user's modules that this process has loaded, which its results depend on."""
    return frozenset(_LOADED)


def _imported(name: str, file: Path, where: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever the user's file raises
        what = f"{file} cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:300]})"
        raise ParamsError(what=what, where=where, fix="Fix the file; POSTTRAIN_TRACEBACK=1 shows where") from error
    if Path(str(module.__file__)).resolve() != file.resolve():
        what = f"the name {name} belongs to {module.__file__}, not to your file"
        raise ParamsError(what=what, where=where, fix="Rename your file")
    return module


def place_in_workspace(error: BaseException) -> str:
    """Where in the user's own files an error was raised, for the end of a message; empty where it was elsewhere."""
    own = {Path(f"{name.replace('.', '/')}.py").resolve() for name in _LOADED}
    frames = traceback.extract_tb(error.__traceback__)
    found = next((one for one in reversed(frames) if Path(one.filename).resolve() in own), None)
    return f" ({Path(found.filename).name} line {found.lineno})" if found else ""
