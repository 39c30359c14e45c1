"""Git commands in this workspace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from posttrain.errors import PipelineError, shortened


def git(*words: str, env: Mapping[str, str] | None = None) -> str:
    """Return the output of a git command with extra variables. Raise if it fails."""
    done = _run(words, Path(), env)
    if done.returncode:
        reason = shortened(done.stderr.decode(errors="replace"), 300)
        raise PipelineError(what=f"git {words[0]} failed ({reason})", where=str(Path.cwd()), fix=_fix(words[0]))
    return done.stdout.decode()


def _fix(command: str) -> str:
    if git_or_none("rev-parse", "--verify", "HEAD") is None:
        return "Experiments need a git repository with a commit: git add --all && git commit"
    if command == "tag" and git_or_none("var", "GIT_COMMITTER_IDENT") is None:
        return "Name yourself: git config user.name NAME && git config user.email ADDRESS"
    return "Do what git says, then run this again"


def git_or_none(*words: str, root: Path = Path()) -> bytes | None:
    """Return the output of a git command; None if it fails, e.g. without a repository."""
    done = _run(words, root)
    return None if done.returncode else done.stdout


def _run(
    words: tuple[str, ...], root: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", *words], cwd=root, env={**os.environ, **(env or {})}, capture_output=True, check=False
    )
