"""The code that a run depends on, file by file, without what cannot change a result: comments, docstrings, layout."""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path

from posttrain import user_code


def run_code(stage: str) -> dict[str, str]:  # noqa: ARG001
    """Path -> digest of the normalised code, of every file of the pipeline and of the user's that is loaded."""
    found = {}
    for name, module in list(sys.modules.items()):
        spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
        module_name = spec.name if name == "__main__" and spec else name
        if file and (_is_pipeline(module_name) or module_name in user_code.loaded_modules()):
            path = Path(file).resolve()
            root = path.parents[module_name.count(".") + (path.name == "__init__.py")]
            found[path.relative_to(root).as_posix()] = code_digest(path)
    return dict(sorted(found.items()))


def code_digest(file: Path) -> str:
    """A digest of the normalised code of one file."""
    return hashlib.sha256(normalised(file).encode()).hexdigest()[:16]


def normalised(file: Path) -> str:
    """The file's syntax tree as text, without bare strings."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_pipeline(module: str) -> bool:
    return module.partition(".")[0] in ("posttrain", "stages") and not module.startswith("posttrain.measure")
