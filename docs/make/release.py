"""Make a release: `python -m docs.make.release 0.3.0`, or `make release VERSION=0.3.0`.

It checks the repository, builds the wheel and installs it into a fresh environment, dates the changelog, sets the
version, commits and tags. It pushes nothing. If a step fails, the files are as before and no tag exists.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).resolve().parents[2]
UNRELEASED: Final = "## Unreleased\n"
VERSION: Final = re.compile(r'^version = "(.+)"$', re.MULTILINE)
SHOWN: Final = re.compile(r"This is version [^;]+;")
NOT_OURS: Final = ("stages", "flows", "tasks", "tests", "docs", "benchmarks")
"""Top-level modules that the wheel may not install, because a user may have packages of these names."""


def release(version: str, root: Path = ROOT) -> str:
    """Make the release. Return the tag."""
    new = _checked(version, root)
    changed = [root / name for name in ("pyproject.toml", "CHANGELOG.md", "docs/versions.md")]
    before = {file: file.read_text(encoding="utf-8") for file in changed}
    notes = unreleased(before[root / "CHANGELOG.md"])
    today = datetime.now(UTC).date().isoformat()
    try:
        _replace(root / "pyproject.toml", VERSION, f'version = "{new}"')
        _replace(root / "docs/versions.md", SHOWN, f"This is version {new};")
        _replace(root / "CHANGELOG.md", re.compile(UNRELEASED), f"{UNRELEASED}\n## {new} - {today}\n")
        check_wheel(root, str(new))
        _git(root, "commit", "--quiet", "--message", f"Release {new}", "--", *map(str, changed))
    except BaseException:
        for file, text in before.items():
            file.write_text(text, encoding="utf-8")
        raise
    _git(root, "tag", "--annotate", "--cleanup=verbatim", "--message", f"posttrain {new}\n\n{notes}", f"v{new}")
    return f"v{new}"


def unreleased(changelog: str) -> str:
    """Return the text of the changelog's first part; refuse an empty one."""
    _, found, rest = changelog.partition(UNRELEASED)
    notes = rest.partition("\n## ")[0].strip()
    if not found or not notes:
        raise SystemExit(
            "error: CHANGELOG.md has no text under '## Unreleased'. Write what users see, then repeat this"
        )
    return notes


def check_wheel(root: Path, version: str) -> None:
    """Build the wheel from the committed and changed files, install it alone, and start its command."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = folder / "source"
        source.mkdir()
        for name in _git(root, "ls-files").splitlines():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((root / name).read_bytes())
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        _run(source, *pip, "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
        (wheel,) = folder.glob("posttrain-*.whl")
        if wheel.name.split("-")[1] != version:
            raise SystemExit(f"error: the wheel is called {wheel.name}, not version {version}")
        with zipfile.ZipFile(wheel) as files:
            top = {name.partition("/")[0] for name in files.namelist()}
        if odd := sorted(top & {*NOT_OURS}):
            raise SystemExit(f"error: the wheel installs top-level modules: {', '.join(odd)}. Mend pyproject.toml")
        venv.create(folder / "env", with_pip=False, system_site_packages=True)
        python = str(folder / "env/bin/python")
        _run(folder, *pip, "--python", python, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
        # -P and another folder: the installed package is imported, not the checkout
        said = _run(folder, python, "-P", "-c", "import posttrain, sys; from importlib.metadata import version as v; "
                    "print(v('posttrain'), posttrain.__file__)")  # fmt: skip
        if not said.startswith(f"{version} {folder}"):
            raise SystemExit(f"error: the installed wheel says {said.strip()}, not {version}")


def _checked(version: str, root: Path) -> Version:
    try:
        new = Version(version)
    except InvalidVersion as error:
        raise SystemExit(f"error: '{version}' is not a version. Use three numbers, e.g. 0.3.0") from error
    if str(new) != version or len(new.release) != 3:
        raise SystemExit(f"error: '{version}' is not in its usual form. Use three numbers, e.g. 0.3.0")
    found = VERSION.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    old = Version(found[1]) if found else Version("0")
    tags = _git(root, "tag", "--list", "v*").split()
    if f"v{new}" in tags:
        raise SystemExit(f"error: the tag v{new} exists. Choose a version above it")
    if new < old or (new == old and tags):
        raise SystemExit(f"error: version {new} is not above {old} (pyproject.toml)")
    if changes := _git(root, "status", "--porcelain"):
        raise SystemExit(f"error: the checkout has changes that are not committed:\n{changes}Commit them first")
    return new


def _replace(file: Path, pattern: re.Pattern[str], text: str) -> None:
    changed, count = pattern.subn(lambda _: text, file.read_text(encoding="utf-8"), count=1)
    if not count:
        raise SystemExit(f"error: {file} has no line like {pattern.pattern}")
    file.write_text(changed, encoding="utf-8")


def _git(root: Path, *words: str) -> str:
    return _run(root, "git", *words)


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(words[:4])} ... failed in {folder}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m docs.make.release VERSION, e.g. 0.3.0")
    tag = release(sys.argv[1])
    print(f"committed and tagged {tag}. To publish it: git push origin HEAD {tag}")
