"""`make release` in a clone: it tags a tested wheel, or changes nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from docs.make.release import release, unreleased
from tests.workspace import ROOT


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The tracked files as they are now, committed in a repository of their own."""
    root = tmp_path / "clone"
    root.mkdir()
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    git(root, "init", "--quiet")
    git(root, "config", "user.email", "a@example.com")
    git(root, "config", "user.name", "A")
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", "begin")
    return root


@pytest.mark.slow
def test_a_release_is_a_commit_and_a_tag_with_its_changes(clone: Path) -> None:
    assert release("0.9.0", clone) == "v0.9.0"
    assert git(clone, "log", "-1", "--format=%s").strip() == "Release 0.9.0" and not git(clone, "status", "--porcelain")
    assert re.search(r"^version = \"0\.9\.0\"$", (clone / "pyproject.toml").read_text(), re.MULTILINE)
    assert "This is version 0.9.0;" in (clone / "docs/versions.md").read_text()
    assert re.search(r"## Unreleased\n\n## 0\.9\.0 - \d{4}-\d\d-\d\d\n\n\S", (clone / "CHANGELOG.md").read_text())
    message = git(clone, "tag", "--list", "--format=%(contents)", "v0.9.0")
    assert message.startswith("posttrain 0.9.0\n\n") and len(message) > 200
    with pytest.raises(SystemExit, match=r"the tag v0\.9\.0 exists"):
        release("0.9.0", clone)
    with pytest.raises(SystemExit, match=r"0\.8\.0 is not above 0\.9\.0"):
        release("0.8.0", clone)
    with pytest.raises(SystemExit, match="no text under '## Unreleased'"):
        release("0.10.0", clone)


@pytest.mark.slow
def test_a_wheel_that_takes_names_of_users_is_not_released(clone: Path) -> None:
    file = clone / "pyproject.toml"
    changed = file.read_text().replace('"posttrain.pipeline.flows" = "flows"', '"flows" = "flows"')
    changed = changed.replace('"posttrain.pipeline.flows"', '"flows"')
    assert changed != file.read_text()
    file.write_text(changed)
    git(clone, "commit", "--quiet", "--all", "--message", "a mistake")
    with pytest.raises(SystemExit, match="installs top-level modules: flows"):
        release("0.9.0", clone)
    assert not git(clone, "status", "--porcelain") and not git(clone, "tag", "--list")


@pytest.mark.parametrize(
    ("version", "why"),
    [("one", "is not a version"), ("0.3", "usual form"), ("v0.3.0", "usual form"), ("0.1.0", "is not above")],
)
def test_other_versions_are_refused(clone: Path, version: str, why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        release(version, clone)
    assert not git(clone, "status", "--porcelain") and not git(clone, "tag", "--list")


def test_changes_that_are_not_committed_are_refused(clone: Path) -> None:
    (clone / "README.md").write_text("mine")
    with pytest.raises(SystemExit, match=r"not committed:\n M README\.md"):
        release("0.9.0", clone)


def test_the_changes_are_the_first_part_of_the_changelog() -> None:
    assert unreleased("# C\n\n## Unreleased\n\nOne.\n\nTwo.\n\n## 0.1.0\n\nOld.\n") == "One.\n\nTwo."
    with pytest.raises(SystemExit, match="no text"):
        unreleased("# C\n\n## Unreleased\n\n## 0.1.0\n")
