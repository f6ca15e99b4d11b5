"""Pyoco's expressions, bounded: `*` and `%` take numbers only, because a text or a list may grow without end."""

import ast
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

from pyoco.dsl.expressions import Expression, translate

from fleet_contracts.expressions import parse_expression

# The limit for numbers of params and results, which may be larger than those written in an expression.
_LARGEST_BITS = 4096
_NUMBER = "_number"


class BoundedExpression(Expression):  # type: ignore[misc]
    """An expression with checked operands. Raises ExpressionRefused if workflow files may not use its syntax."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tree = _Numbers().visit(parse_expression(translate(self.source)))
        # Pyoco's dataclass is frozen; `evaluate` evaluates this attribute.
        object.__setattr__(self, "_code", compile(ast.fix_missing_locations(tree), "<expression>", "eval"))

    def evaluate(
        self,
        ctx: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Any:
        return super().evaluate(ctx, env, {**(extras or {}), _NUMBER: _number})


class _Numbers(ast.NodeTransformer):
    """Puts a check around both operands of `*` and `%`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult | ast.Mod):
            node.left, node.right = _checked(node.left), _checked(node.right)
        return node


def _checked(operand: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id=_NUMBER, ctx=ast.Load()), args=[operand], keywords=[])


def _number(value: Any) -> Any:
    if not isinstance(value, Number):
        raise TypeError(f"* and % take numbers, not a {type(value).__name__}")
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        raise ValueError("a number is too large")
    return value


def expressions_of(node: Any) -> Iterator[tuple[Any, str, Expression]]:
    """Every expression of a program of Pyoco's, whose nodes have only some of these parts, with its place."""
    for name in ("expression", "source", "condition", "count"):
        if isinstance(found := getattr(node, name, None), Expression):
            yield node, name, found
    steps = [*getattr(node, "steps", []), *(case.target for case in getattr(node, "cases", []))]
    if hasattr(node, "body"):
        steps.append(node.body)
    for step in steps:
        yield from expressions_of(step)


def references_of(expression: Expression) -> Iterator[str]:
    """What an expression looks up: `$ctx.params.x`."""
    # Parsed as Python parses it: one name can be written in many ways.
    for node in ast.walk(ast.parse(translate(expression.source), mode="eval")):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            assert isinstance(node.args[0], ast.Constant)
            yield f"${node.func.id.removeprefix('_')}.{node.args[0].value!s}"
