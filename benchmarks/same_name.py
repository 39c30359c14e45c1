"""Does the test of the same name notice a changed return value? Files drawn by a seed, one change each.

    python -m benchmarks.same_name [--seed 0] [--files 20]

For each drawn file one `return` gives another value: a bool is negated, a number is one larger, a text, a list and a
tuple are longer by one, a tensor is one larger, anything else is None. Then `tests/**/test_NAME.py` runs in a scratch
copy, without the slow tests.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.workspace import ROOT, environment, make_workspace

PACKAGES: Final = ("posttrain", "stages", "flows", "tasks")
CHANGE: Final = '''

def _changed_by_the_trial(value):
    """Return another value."""
    import dataclasses
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, value[-1] if value else None]
    if isinstance(value, tuple) and type(value) is tuple:
        return (*value, value[-1] if value else None)
    if type(value).__name__ == "Tensor":
        return ~value if value.dtype.is_floating_point is False and str(value.dtype) == "torch.bool" else value + 1
    return None
'''


class Change(NamedTuple):
    """One changed return."""

    file: str
    function: str
    line: int


def sources() -> list[str]:
    """Return the files that have a `return` with a value, by their paths."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.splitlines() if name.endswith(".py") and "/template/" not in name]
    return [name for name in names if not (ROOT / name).is_symlink() and returns((ROOT / name).read_text())]


def returns(text: str) -> list[tuple[str, ast.Return]]:
    """Return the statements of a file that return a value, with the names of their functions."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    found = {id(one): (node.name, one) for node in functions for one in ast.walk(node) if isinstance(one, ast.Return)}
    constant_none = [
        key for key, (_, one) in found.items() if isinstance(one.value, ast.Constant) and one.value.value is None
    ]
    return [pair for key, pair in found.items() if pair[1].value is not None and key not in constant_none]


def changed(text: str, statement: ast.Return) -> str:
    """Return the text of a file in which one statement returns another value."""
    assert statement.value is not None
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    value = statement.value
    begin = starts[value.lineno - 1] + value.col_offset
    end = starts[(value.end_lineno or 0) - 1] + (value.end_col_offset or 0)
    inside = raw[begin:end].decode()
    inside = f"({inside})" if isinstance(value, ast.Tuple) else inside
    text = f"{raw[:begin].decode()}_changed_by_the_trial({inside}){raw[end:].decode()}"
    head, future, rest = text.partition("from __future__ import annotations\n")  # a function may run during the import
    return f"{head}{future}{CHANGE}{rest}" if future else f"{text}{CHANGE}"


def tests_of(file: str) -> list[str]:
    """The test files of the same name; where several rooms have one, those of the file's own room.

    `ROOM/__init__.py` and `ROOM/__main__.py` bear the name of their folder.
    """
    path = Path(file)
    name = path.parent.name if path.stem.startswith("__") else path.stem
    names = sorted(str(test.relative_to(ROOT)) for test in (ROOT / "tests").rglob(f"test_{name}.py"))
    own = [name for name in names if path.parent.name in Path(name).parent.parts]
    return own or names


def notices(clone: Path, change: Change, text: str, tests: list[str]) -> bool:
    """Return whether the tests fail with the change, and pass no test of it by accident: the file is put back."""
    place = clone / change.file
    place.write_text(text, encoding="utf-8")
    try:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *tests]
        env = {**environment(), "OMP_NUM_THREADS": "1"}
        return subprocess.run(words, cwd=clone, env=env, capture_output=True, check=False).returncode == 1
    finally:
        place.write_bytes((ROOT / change.file).read_bytes())


def main() -> None:
    """Draw the files, change each once, and print what noticed it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=20)
    given = parser.parse_args()
    rng, known = random.Random(given.seed), sources()
    named = sum(bool(tests_of(file)) for file in known)
    print(f"{named} of {len(known)} files that return a value have a test of the same name")
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = make_workspace(Path(folder) / "clone")
        for file in rng.sample(known, given.files):
            text = (ROOT / file).read_text(encoding="utf-8")
            function, statement = rng.choice(returns(text))
            change, tests = Change(file, function, statement.lineno), tests_of(file)
            seen = bool(tests) and notices(clone, change, changed(text, statement), tests)
            found += seen
            said = "fails" if seen else "passes" if tests else "there is no test of this name"
            print(f"{file}:{change.line} {function}: {' '.join(tests) or '-'}: {said}", flush=True)
    print(f"{found} of {given.files} changes were noticed by the test of the same name (seed {given.seed})")


if __name__ == "__main__":
    main()
