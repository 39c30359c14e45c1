"""What git says of this workspace."""

from __future__ import annotations

import subprocess
from pathlib import Path

from posttrain.errors import PipelineError


def git(*words: str) -> str:
    """Return the output of a git command; raise where it fails."""
    done = _run(words, Path())
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())[:300]
        fix = "Experiments need a git repository with a commit: git add --all && git commit"
        raise PipelineError(what=f"git {words[0]} failed ({reason})", where=str(Path.cwd()), fix=fix)
    return done.stdout.decode()


def git_or_none(*words: str, root: Path = Path()) -> bytes | None:
    """Return the output of a git command; None where it fails, as without a repository."""
    done = _run(words, root)
    return None if done.returncode else done.stdout


def _run(words: tuple[str, ...], root: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)
