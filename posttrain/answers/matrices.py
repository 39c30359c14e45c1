"""Read matrices and column vectors in LaTeX."""

from __future__ import annotations

import re

from posttrain.answers.nodes import Answer, Call, Matrix, Named, Unreadable
from posttrain.answers.token_runs import name_of, whole
from posttrain.answers.tokens import tokens

_MATRIX = re.compile(r"(?P<factor>[^&]{0,80}?)\\begin\{([pb])matrix\}(?P<cells>.*?)\\end\{\2matrix\}\s*\Z", re.DOTALL)
_ARRAY = re.compile(
    r"(?:\\left\s*)?[(\[]\s*\\begin\{(?P<kind>array|matrix|smallmatrix)\}(?:\{[clr|]+\})?(?P<cells>.*?)\\end\{(?P=kind)\}\s*"
    r"(?:\\right\s*)?[)\]]",
    re.DOTALL,
)

_NESTED = re.compile(r"\[\s*((?:\[[^\[\]]{1,300}\]\s*,?\s*){2,20})\]")
"""Rows as lists: [[5, 4], [1, 2]]."""


def matrix_of(text: str) -> Answer | None:
    """Return a text as a matrix; None if it is something else."""
    if nested := _NESTED.fullmatch(text.strip()):
        rows = re.findall(r"\[([^\[\]]*)\]", nested[1])
        return _matrix("\\\\".join(row.replace(",", "&") for row in rows), "")
    match = _MATRIX.match(_ARRAY.sub(r"\\begin{pmatrix}\g<cells>\\end{pmatrix}", text))
    return _matrix(match["cells"], match["factor"]) if match else None


def _matrix(cells: str, factor: str) -> Answer:
    """Return a matrix, optionally with a number or a name before it."""
    name = None
    if "=" in factor:
        name, _, factor = factor.partition("=")
        name = name_of(tokens(name))
        if name is None:
            raise Unreadable("an equation with a matrix")
    scale = whole(tokens(factor)) if factor.strip() else None
    rows = []
    for row in re.split(r"\\\\(?:\[[^\]]*\])?", cells):
        if row.strip():
            nodes = [whole(tokens(cell)) for cell in row.split("&")]
            rows.append(tuple(node if scale is None else Call("mul", (scale, node)) for node in nodes))
    if not rows or len({len(row) for row in rows}) != 1:
        raise Unreadable("rows of different lengths")
    matrix = Matrix(tuple(rows))
    return matrix if name is None else Named(name, matrix)
