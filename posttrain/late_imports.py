"""Import large packages without parts that a stage does not use. `stages` installs this before it imports them.

Many modules import torch for its name alone; torch itself runs where it is used.
torch imports its exporter and the Python kernels of tensors without values. These and a backward pass import sympy.
transformers imports torch's distributed tensors and torch's compiler, and lists its 500 families of models twice.
pandera imports pandas. Together these parts take longer than the rest of torch.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

TORCH: Final = "torch"
"""Settings and annotations need only its name, so a process that computes nothing with it never runs its code."""
COMPILER: Final = "torch._dynamo"
FREE: Final = f"{COMPILER}._trace_wrapped_higher_order_op"
"""The only module of torch's compiler that can be imported without the compiler. transformers imports it for a class
that only its masks by functions use; it imports `EXPORT`."""
META: Final = "torch._meta_registrations"
"""Python kernels for tensors without values (device "meta"). torch has C++ kernels for most operations too."""
EXPORT: Final = "torch.export"
SHAPES: Final = "torch.fx.experimental.symbolic_shapes"
"""It imports sympy. A backward pass from given gradients asks it whether two shapes are equal."""
META_USERS: Final = (COMPILER, EXPORT, "torch._decomp", "torch._refs", "torch.distributed.tensor")
"""Modules that need `META`: importing one of them loads it."""
CHOOSES: Final = "transformers.utils.import_utils"
"""The module by which transformers chooses what to import."""


Names = dict[frozenset[str], dict[str, set[str]]]
"""Packages that a file needs -> file -> the names that it defines."""
Remember = Callable[[str, str, Callable[[], Any]], Any]
"""Returns the plain data of a text by its digest: (text, name, a function that makes the data)."""


def import_late(remember: Remember | None = None) -> None:
    """Install late imports in a process, once. `remember`: keep transformers' list of families between processes."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(remember))


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Import as if these packages were not installed. Packages that are already imported stay."""
    finder = _Without(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def check_not_alone() -> None:
    """Raise if transformers was imported without its parts for several processes and this process needs them."""
    chooses = getattr(sys.modules.get(CHOOSES), "is_torch_distributed_available", None)
    if isinstance(chooses, _Connected) and chooses.answer is False:
        raise RuntimeError("transformers was imported before this process connected to the others")


class _Without(MetaPathFinder):
    """Says that packages are not installed, in the words of Python."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        if name in self._packages:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


class _Finder(MetaPathFinder):
    """Finds late modules, and changes how transformers chooses its imports."""

    def __init__(self, remember: Remember | None) -> None:
        self._remember = remember

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        is_new = name not in sys.modules
        if name != FREE and isinstance(parent := sys.modules.get(name.rpartition(".")[0]), Late):
            run(parent)
        if name in META_USERS and name not in LATE:
            load_meta_kernels()
        if is_new and name in sys.modules:  # the lines above imported it
            return _same(sys.modules[name])
        if (name not in LATE and name != CHOOSES) or (name == META and sys.modules.keys() & {*META_USERS} - {*LATE}):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangedLoader(spec.loader, self._remember) if name == CHOOSES else _LateLoader(spec.loader)
        return spec


def is_late(name: str) -> bool:
    """Tell whether a module is imported but has not run its code yet."""
    return isinstance(sys.modules.get(name), Late)


def load_meta_kernels() -> None:
    """Import torch's Python kernels for tensors without values, unless they are imported already."""
    if isinstance(kernels := sys.modules.get(META), Late):
        run(kernels)


def _same(module: ModuleType) -> ModuleSpec | None:
    """Return the spec of a module that is imported already, so that Python does not run its code again."""
    if (spec := module.__spec__) is not None and spec.loader is not None:
        spec.loader = _SameLoader(spec.loader, module)
    return spec


class _SameLoader(Loader):
    """Returns an existing module."""

    def __init__(self, inner: Loader, module: ModuleType) -> None:
        self._inner, self._module = inner, module

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self._inner


class _LateLoader(Loader):
    """Creates a module that runs its code on first use."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Late(spec.name, self._inner)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing yet.

        torch only needs the primitives that `META` imports, because they complete `torch.Generator`.
        """
        if module.__name__ == META:
            import_module("torch._prims")


@dataclass
class _Code:
    """The code of a late module."""

    loader: Loader
    lock: threading.RLock = field(default_factory=threading.RLock)
    runs: bool = False
    """True if it runs now: the same thread may ask for more while it does, and other threads wait."""
    later: list[Callable[[], Any]] = field(default_factory=list)
    """Calls that follow it."""


class Late(ModuleType):
    """A module that runs its code on first use, except for its functions in `LATE`.

    Its code may define any name, so it has no methods, and its one attribute has a name of its own.
    """

    def __init__(self, name: str, loader: Loader) -> None:
        super().__init__(name)
        self.__code = _Code(loader)
        for light in LATE[name]:
            setattr(self, light.__name__, functools.partial(light, self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not run(self):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(self, name)


def run(module: Late) -> bool:
    """Run a late module's code. It is then an ordinary module, and the same object. Return False while it runs."""
    code: _Code = module.__dict__["_Late__code"]
    with code.lock:
        if type(module) is not Late or code.runs:
            return not code.runs
        code.runs = True
        for light in LATE[module.__name__]:
            module.__dict__.pop(light.__name__, None)
        if module.__name__ in META_USERS:
            load_meta_kernels()
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = code.loader
        try:
            code.loader.exec_module(module)
        finally:
            code.runs = False
        module.__class__ = ModuleType  # type: ignore[assignment]
        for call in code.later:
            call()
        return True


def disable(compiler: Late, fn: Any = None, recursive: bool = True, **options: Any) -> Any:  # noqa: FBT001, FBT002
    """Return a function that torch never compiles. It runs uncompiled until the compiler is loaded."""
    if fn is None:
        return functools.partial(disable, compiler, recursive=recursive, **options)
    if not isinstance(fn, FunctionType):
        run(compiler)
        return compiler.disable(fn, recursive, **options)

    @functools.cache
    def disabled() -> Callable[..., Any]:
        excluded: Callable[..., Any] = compiler.disable(fn, recursive, **options)
        return excluded

    @functools.wraps(fn)
    def called(*arguments: Any, **named: Any) -> Any:
        return (fn if type(compiler) is Late else disabled())(*arguments, **named)

    return called


def allow_in_graph(compiler: Late, fn: Any) -> Any:
    """Tell the compiler, once it is loaded, that it need not look into a function."""
    if not isinstance(fn, FunctionType):
        run(compiler)
        return compiler.allow_in_graph(fn)
    compiler.__dict__["_Late__code"].later.append(lambda: compiler.allow_in_graph(fn))
    return fn


def assume_constant_result(_: Late, fn: Any) -> Any:
    """Mark a function whose result the compiler may keep."""
    fn._dynamo_marked_constant = True
    return fn


def graph_break(_: Late, msg: str = "") -> None:
    """Do nothing: there is no compiled graph to end."""


def TransformGetItemToIndex(module: Late) -> Any:  # noqa: N802
    """Return an instance of the class of this name."""
    run(module)
    return module.TransformGetItemToIndex()


def sym_eq(module: Late, x: Any, y: Any) -> Any:
    """Tell whether two shapes are equal."""
    if isinstance(x, tuple) and isinstance(y, tuple) and all(type(size) is int for size in (*x, *y)):
        return x == y
    run(module)
    return module.sym_eq(x, y)


def expect_true(module: Late, a: Any, skip: int = 0) -> bool:
    """Return a truth value."""
    if isinstance(a, bool):
        return a
    run(module)
    truth: bool = module.expect_true(a, skip + 1)
    return truth


LATE: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    TORCH: (),
    COMPILER: (disable, allow_in_graph, assume_constant_result, graph_break),
    FREE: (TransformGetItemToIndex,),
    META: (),
    EXPORT: (),
    SHAPES: (sym_eq, expect_true),
}
"""Late module -> its functions that work before it is loaded. They do what torch's functions of the same names do."""


class _ChangedLoader(Loader):
    """Runs the module by which transformers chooses its imports, then changes three of its functions."""

    def __init__(self, inner: Loader, remember: Remember | None) -> None:
        self._inner, self._remember = inner, remember

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        module.is_torch_distributed_available = _Connected(module.is_torch_distributed_available)
        module.create_import_structure_from_path = functools.cache(module.create_import_structure_from_path)
        if self._remember is not None:
            module.define_import_structure = _Families(module.define_import_structure, self._remember)


@dataclass(frozen=True)
class _Families:
    """transformers' list of what each file of its families defines. It reads 2,500 files to make it."""

    define: Callable[[str, str | None], Names]
    remember: Remember

    def __call__(self, module_path: str, prefix: str | None = None) -> Names:
        folder = Path(module_path) if Path(module_path).is_dir() else Path(module_path).parent
        if folder.name != "models":  # one family
            return self.define(module_path, prefix)

        def defined() -> list[Any]:
            names = self.define(module_path, prefix)
            return [
                [sorted(needs), {file: sorted(families) for file, families in of.items()}]
                for needs, of in names.items()
            ]

        stored = self.remember(f"{prefix} {files_of(folder)}", f"families{prefix or ''}", defined)
        return {frozenset(needs): {file: set(families) for file, families in of.items()} for needs, of in stored}


def files_of(folder: Path) -> str:
    """Return path, size and times of each file in a folder and in its folders."""
    lines, folders = [], [str(folder)]
    for place in folders:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    at = entry.stat()
                    lines.append(f"{entry.path} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}")
    return "\n".join(sorted(lines))


class _Connected:
    """True if transformers imports its parts for several processes: only if this process is connected to others."""

    def __init__(self, is_possible: Callable[[], bool]) -> None:
        self._is_possible = is_possible
        self.answer: bool | None = None
        """The first answer, which holds."""

    def __call__(self) -> bool:
        if self.answer is None:
            self.answer = self._is_possible() and sys.modules["torch"].distributed.is_initialized()
        return self.answer
