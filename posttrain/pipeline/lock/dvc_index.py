"""DVC's SQLite index: damage becomes an error with a fix, and `posttrain repair` removes damaged databases.

It stores digests of files that DVC has read, links that it has made, and the contents of commits and remotes. DVC
recreates all of it.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from posttrain.errors import PipelineError, shortened

DATABASES = "repo/*/**/*.db"
"""In DVC's site cache: `index/data/db.db`, and a diskcache `cache.db` in each of `hashes`, `links` and `index`."""
FIX = "Run `posttrain repair`: it removes an index that is damaged, and DVC makes it again"


@contextmanager
def readable_index() -> Iterator[None]:
    """Turn errors of SQLite and diskcache about a damaged index into an error with a fix."""
    from dvc.exceptions import DvcException
    from dvc_data.hashfile.cache import DiskError

    try:
        yield
    except (sqlite3.DatabaseError, DiskError, DvcException) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, sqlite3.DatabaseError | DiskError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        said = shortened(str(cause), 300)
        if isinstance(cause, sqlite3.OperationalError) and "locked" in said:
            what, fix = "another DVC process uses DVC's index", "Repeat it when that has ended"
        else:
            what, fix = f"DVC's index cannot be read ({said})", FIX
        raise PipelineError(what=what, where="core.site_cache_dir of .dvc/config.local", fix=fix) from error


def remove_damaged(root: Path) -> list[str]:
    """Remove unreadable databases and their side files. Return a line for each. The caller holds DVC's lock."""
    from dvc.config import Config
    from dvc.dirs import site_cache_dir

    site = Path(site_cache_dir(Config(str(root / ".dvc"))["core"].get("site_cache_dir")))
    damaged = [file for file in sorted(site.glob(DATABASES)) if _is_damaged(file)]
    for file in damaged:
        shutil.rmtree(file.parent)  # diskcache has values in files next to it, SQLite a journal
    return [f"{os.path.relpath(file, root)} was damaged: removed, DVC makes it again" for file in damaged]


def _is_damaged(file: Path) -> bool:
    """Tell whether a database, or a text in it, cannot be read."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as database:
            if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                return True
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                for row in database.execute(f'SELECT * FROM "{name}"'):
                    for value in row:
                        if isinstance(value, str) and value.startswith("{"):
                            json.loads(value)
    except sqlite3.OperationalError as error:  # one that is locked, or of another user, is not damaged
        return "decode" in str(error)
    except (sqlite3.DatabaseError, ValueError):
        return True
    return False
