"""The user's own code by import path, e.g. `my_losses:soft`: the name `soft` in custom/my_losses.py."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from posttrain.errors import ParamsError, shortened
from posttrain.isolation.library import LIBRARY
from posttrain.settings.host import HOST
from posttrain.settings.plain import CUSTOM

PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_UNFINISHED: dict[str, str] = {}
"""Files whose import did not end, and why. They are not tried again."""
PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages."""
IMPORT_SECONDS = 60.0
"""Seconds that importing a module, with its own imports, may take."""


def is_import_path(name: object) -> bool:
    """Tell whether a name has the form `module:name`."""
    return isinstance(name, str) and PATH.fullmatch(name) is not None


def load_object(path: str, where: str) -> Any:
    """Return the object at the import path `module:name`. `where`: the parameter with the path."""
    from posttrain.settings.params import did_you_mean  # pydantic is slow to import

    module_name, _, name = path.partition(":")
    where = f"{where} = '{path}' ({HOST.settings_file})"
    if not is_import_path(path):
        fix = f"Write MODULE:NAME for the name NAME in {CUSTOM}/MODULE.py"
        raise ParamsError(what="this is not an import path", where=where, fix=fix)
    file = _file_of(module_name, where)
    module = _imported(module_name, file, where)
    if not hasattr(module, name):
        names = [var for var in vars(module) if not var.startswith("_")]
        raise ParamsError(what=f"{file} has no '{name}'", where=where, fix=did_you_mean(name, names))
    return getattr(module, name)


def load_module(name: str, where: str) -> Any:
    """Return the user's module. `where`: the parameter with its name."""
    if not is_import_path(f"{name}:x"):
        raise ParamsError(what=f"'{name}' is not a module", where=where, fix=f"Name a MODULE for {CUSTOM}/MODULE.py")
    return _imported(name, _file_of(name, where), where)


def own_file(module: str) -> Path:
    """Return the file of the user's module."""
    return CUSTOM.joinpath(*module.split(".")).with_suffix(".py")


def _file_of(module: str, where: str) -> Path:
    file = own_file(module)
    if not file.is_file():
        relative = file.relative_to(CUSTOM)
        if module.startswith("posttrain."):
            fix = "It is part of the library; in a clone, `pytest tests/library/laws -k NAME` tests its rows"
            raise ParamsError(what=f"{module} is not a module of {CUSTOM}/", where=where, fix=fix)
        fix = (
            f"Move {relative} to {CUSTOM}/"
            if relative.is_file()
            else f"Write MODULE:NAME for NAME in {CUSTOM}/MODULE.py"
        )
        raise ParamsError(what=f"{file} not found", where=where, fix=fix)
    return file


class UnfinishedImport(BaseException):
    """An import that does not end, or that would end this process."""


@contextlib.contextmanager
def ending_import() -> Iterator[None]:
    """Limit an import: it may not hang, end this process or capture its output. Each becomes an error.

    A KeyboardInterrupt counts as Ctrl-C only if the signal arrived, because a file may raise one itself.
    """

    def leave(status: int = 0) -> None:
        raise UnfinishedImport(f"it calls os._exit({status}) at import")

    def late(*_: object) -> None:
        raise UnfinishedImport(f"its import takes longer than {IMPORT_SECONDS:g} s")

    asked = list[int]()

    def interrupted(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if callable(handles):
            handles(number, frame)

    exits, os._exit = os._exit, leave  # type: ignore[assignment]
    in_main = threading.current_thread() is threading.main_thread()  # no other thread can have a time limit
    before = signal.signal(signal.SIGALRM, late) if in_main else None
    handles = signal.getsignal(signal.SIGINT)
    if in_main:
        signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS, 1.0)
        if callable(handles):
            signal.signal(signal.SIGINT, interrupted)
    try:
        with _kept_output():
            yield
    except KeyboardInterrupt as error:
        if asked:
            raise
        raise UnfinishedImport("it raises KeyboardInterrupt at import") from error
    finally:
        os._exit = exits
        if in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if callable(handles):
                signal.signal(signal.SIGINT, handles)


@contextlib.contextmanager
def _kept_output() -> Iterator[None]:
    """Keep stdout and stderr unchanged. An import that closes them would hide errors."""
    streams, files = (sys.stdout, sys.stderr), dict[int, int]()
    for number in (1, 2):
        with contextlib.suppress(OSError):  # it was closed before
            files[number] = os.dup(number)
    try:
        yield
    finally:
        closed = {number for number, stream in enumerate(streams, 1) if stream is not None and stream.closed}
        lost = [number for number, file in files.items() if number in closed or not _same(number, file)]
        for number, file in files.items():
            if number in lost:
                os.dup2(file, number)
            os.close(file)
        sys.stdout, sys.stderr = (_usable(stream, number) for number, stream in zip((1, 2), streams, strict=True))
    if lost:
        raise UnfinishedImport(f"it closes {' and '.join(_OUTPUTS[number] for number in lost)} at import")


_OUTPUTS: Final = {1: "stdout", 2: "stderr"}


def _usable(stream: Any, number: int) -> Any:
    """Return a stream, or a replacement with the same target if it was closed."""
    if stream is None or not stream.closed:
        return stream
    opened = open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    if not hasattr(stream, "renew"):
        return opened
    stream.renew(opened)  # it goes on to hide secrets and codes
    return stream


def _same(number: int, file: int) -> bool:
    """Tell whether two descriptors refer to the same open file."""
    try:
        return os.path.sameopenfile(number, file)
    except OSError:
        return False


def _imported(name: str, file: Path, where: str) -> Any:
    folder = str(CUSTOM.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    fix = "Put code for scripts under `if __name__ == '__main__':`"
    path = str(file.absolute())
    if path in _UNFINISHED:
        raise ParamsError(what=f"{file}: {_UNFINISHED[path]}", where=where, fix=fix)
    try:
        with ending_import():
            module = importlib.import_module(name)
    except (UnfinishedImport, SystemExit) as error:
        what = str(error) if isinstance(error, UnfinishedImport) else f"it calls sys.exit({error}) at import"
        _UNFINISHED[path] = what
        raise ParamsError(what=f"{file}: {what}", where=where, fix=fix) from error
    except SyntaxError as error:  # str(error) would add a file without its folder, and the line again
        place = Path(error.filename or file)
        shown = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
        what = f"{shown} line {error.lineno}: this is not valid Python ({error.msg})"
        raise ParamsError(what=what, where=where, fix="Fix the file") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's file raises
        what = f"{file} cannot be imported ({type(error).__name__}: {shortened(str(error), 300)})"
        raise ParamsError(what=what, where=where, fix="Fix the file; POSTTRAIN_TRACEBACK=1 shows where") from error
    if Path(str(module.__file__)).resolve() != file.resolve():
        what = f"the name {name} belongs to {module.__file__}, not to your file"
        raise ParamsError(what=what, where=where, fix="Rename your file")
    return module


def place_in_own_code(error: BaseException) -> str:
    """Return the file and line in the user's code that raised, as a suffix for a message; empty for other code."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_own(frame)]
    return f" ({Path(frames[-1][0].f_code.co_filename).name} line {frames[-1][1]})" if frames else ""


def _is_own(frame: FrameType) -> bool:
    """Tell whether code is the user's: a script, a notebook or a module outside posttrain, packages and Python."""
    name = frame.f_code.co_filename
    if name.startswith("<"):  # typed or generated: what is typed runs as the main module
        return frame.f_globals.get("__name__") == "__main__"
    file = Path(name).resolve()
    elsewhere = (LIBRARY / "posttrain", Path(sysconfig.get_path("stdlib")).resolve())
    return not PACKAGES & {*file.parts} and not any(file.is_relative_to(folder) for folder in elsewhere)
