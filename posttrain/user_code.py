"""A user's own ideas by import path, e.g. `my_losses:soft`: the name `soft` of custom/my_losses.py."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError
from posttrain.params import did_you_mean
from posttrain.workspace import CUSTOM

PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_LOADED: set[str] = set()


def is_import_path(name: object) -> bool:
    """Whether it is written `module:name`."""
    return isinstance(name, str) and PATH.fullmatch(name) is not None


def load_object(path: str, where: str) -> Any:
    """What `module:name` names; `where` is the parameter that asks for it."""
    module_name, _, name = path.partition(":")
    where = f"{where} = '{path}' (params.yaml)"
    if not is_import_path(path):
        fix = f"Write MODULE:NAME for the name NAME in {CUSTOM}/MODULE.py"
        raise ParamsError(what="this is not an import path", where=where, fix=fix)
    file = _found(module_name, where)
    module = _imported(module_name, file, where)
    if not hasattr(module, name):
        own = [one for one in vars(module) if not one.startswith("_")]
        raise ParamsError(what=f"{file} has no '{name}'", where=where, fix=did_you_mean(name, own))
    _LOADED.add(module_name)
    return getattr(module, name)


def load_module(name: str, where: str) -> Any:
    """A module of the user's; `where` is what asks for it."""
    if not is_import_path(f"{name}:x"):
        raise ParamsError(what=f"'{name}' is not a module", where=where, fix=f"Name a MODULE for {CUSTOM}/MODULE.py")
    module = _imported(name, _found(name, where), where)
    _LOADED.add(name)
    return module


def own_file(module: str) -> Path:
    """The file of a module of the user's."""
    return CUSTOM.joinpath(*module.split(".")).with_suffix(".py")


def _found(module: str, where: str) -> Path:
    file = own_file(module)
    if not file.is_file():
        found = file.relative_to(CUSTOM)
        fix = f"Move {found} to {CUSTOM}/" if found.is_file() else f"Write MODULE:NAME for NAME in {CUSTOM}/MODULE.py"
        raise ParamsError(what=f"{file} not found", where=where, fix=fix)
    return file


def _imported(name: str, file: Path, where: str) -> Any:
    folder = str(CUSTOM.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except SyntaxError as error:  # str(error) would add a file without its folder, and the line again
        place = Path(error.filename or file)
        shown = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
        what = f"{shown} line {error.lineno}: this is not valid Python ({error.msg})"
        raise ParamsError(what=what, where=where, fix="Fix the file") from error
    except Exception as error:  # whatever the user's file raises
        what = f"{file} cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:300]})"
        raise ParamsError(what=what, where=where, fix="Fix the file; POSTTRAIN_TRACEBACK=1 shows where") from error
    if Path(str(module.__file__)).resolve() != file.resolve():
        what = f"the name {name} belongs to {module.__file__}, not to your file"
        raise ParamsError(what=what, where=where, fix="Rename your file")
    return module


def place_in_workspace(error: BaseException) -> str:
    """Where in the user's own files an error was raised, for the end of a message; empty where it was elsewhere."""
    own = {own_file(name).resolve() for name in _LOADED}
    frames = traceback.extract_tb(error.__traceback__)
    found = next((one for one in reversed(frames) if Path(one.filename).resolve() in own), None)
    return f" ({Path(found.filename).name} line {found.lineno})" if found else ""
