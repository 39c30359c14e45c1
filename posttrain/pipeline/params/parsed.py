"""Cache parsed YAML between processes as JSON, by the digest of its text, because JSON parses 50 times faster."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from posttrain.files import write_text
from posttrain.late_imports import import_late

FOLDER: Final = Path(".dvc/tmp/parsed")


def parsed_once(text: str | bytes, name: str, parse: Callable[[], Any]) -> Any:
    """Return the data of a text from file `name`. `parse` is called if no process of this workspace has parsed it.

    Errors are not kept, nor data that JSON cannot hold.
    """
    file, digest = FOLDER / f"{name}.json", _digest(text, parse)
    try:
        stored = json.loads(file.read_bytes())
        if stored["digest"] == digest:
            return stored["data"]
    except (OSError, ValueError, KeyError, TypeError):  # only a memory: whatever is wrong, the text is parsed again
        pass
    data = parse()
    if FOLDER.parent.is_dir():
        _keep(file, digest, data)
    return data


def import_late_parts() -> None:
    """Delay imports of unused parts of torch and transformers. Call this before importing them."""
    import_late(parsed_once)


def _digest(text: str | bytes, parse: Callable[[], Any]) -> str:
    """Return a digest of the text, and of what parses it."""
    digest = hashlib.sha256(text.encode() if isinstance(text, str) else text)
    digest.update(Path(parse.__code__.co_filename).read_bytes())
    digest.update(f"{sys.version} {version('ruamel.yaml')}".encode())
    return digest.hexdigest()


def _keep(file: Path, digest: str, data: Any) -> None:
    """Store the data if it is the same after a way through JSON."""
    with contextlib.suppress(TypeError, ValueError, RecursionError, OSError):
        text = json.dumps({"digest": digest, "data": data})
        if json.loads(text)["data"] == data:
            file.parent.mkdir(exist_ok=True)
            write_text(file, text, shared=True)
