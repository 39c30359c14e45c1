"""Matrices of LaTeX."""

from __future__ import annotations

import pytest

from posttrain.answers.matrices import matrix_of
from posttrain.answers.nodes import Call, Matrix, Named, Num, Unreadable

ROWS = ((Num.of(1), Num.of(2)), (Num.of(3), Num.of(4)))


def test_matrix_of() -> None:
    cells = r"1 & 2 \\ 3 & 4"
    assert matrix_of(rf"\begin{{pmatrix}}{cells}\end{{pmatrix}}") == Matrix(ROWS)
    assert matrix_of(rf"\left[\begin{{array}}{{cc}}{cells}\end{{array}}\right]") == Matrix(ROWS)
    assert matrix_of(rf"A = \begin{{bmatrix}}{cells}\end{{bmatrix}}") == Named("A", Matrix(ROWS))
    scaled = matrix_of(r"2\begin{pmatrix}1\end{pmatrix}")
    assert scaled == Matrix(((Call("mul", (Num.of(2), Num.of(1))),),))
    assert matrix_of("1") is None


def test_what_is_no_matrix() -> None:
    with pytest.raises(Unreadable, match="rows of different lengths"):
        matrix_of(r"\begin{pmatrix}1 & 2 \\ 3\end{pmatrix}")
    with pytest.raises(Unreadable, match="an equation with a matrix"):
        matrix_of(r"1+1 = \begin{pmatrix}1\end{pmatrix}")
