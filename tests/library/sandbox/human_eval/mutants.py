"""Programs with one change: an operator, a comparison, a constant, a condition or a returned value."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def mutants(code: str, first: int) -> Iterator[tuple[str, str]]:
    """(what was changed, the program) for each place of a program, from a line on, that can be changed."""
    tree = ast.parse(code)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for number, node in enumerate(ast.walk(tree)):
        changed = copy.deepcopy(tree)
        twin = next(itertools.islice(ast.walk(changed), number, None))
        if getattr(node, "lineno", 0) < first or id(node) in texts or (what := _change(twin)) is None:
            continue
        assert isinstance(node, ast.expr | ast.stmt)
        place = f"line {node.lineno}, columns {node.col_offset} to {node.end_col_offset}"
        yield f"{place}: {what}", ast.unparse(ast.fix_missing_locations(changed))


def _change(node: ast.AST) -> str | None:
    """Change a node in place; what was changed, or None where nothing can be."""
    match node:
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            node.op = OPERATORS[type(operator)]()
            return f"{type(operator).__name__} is {type(node.op).__name__}"
        case ast.Compare(ops=[first, *_]):
            node.ops[0] = COMPARISONS[type(first)]()
            return f"{type(first).__name__} is {type(node.ops[0]).__name__}"
        case ast.Constant(value=bool(value)):
            node.value = not value
            return f"{value} is {node.value}"
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
            return f"{value} is {node.value}"
        case ast.Constant(value=str(text)):
            node.value = f"{text}x"
            return f"{text!r} is {node.value!r}"
        case ast.BoolOp(op=operator):
            node.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            return f"{type(operator).__name__} is {type(node.op).__name__}"
        case ast.Return(value=value) if value is not None:
            node.value = ast.Constant(None)
            return "it returns None"
    return None
