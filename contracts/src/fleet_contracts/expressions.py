"""Checks the expressions of workflow files against a small language in which none is costly to evaluate."""

import ast

LONGEST_EXPRESSION = 2000
MOST_OPERATORS = 50
LARGEST_NUMBER = 2**63

# In Pyoco's graph language: the arguments of switch, repeat, foreach and until that are expressions.
ARGUMENTS = ("on", "count", "over", "cond")

_SIGNS: dict[type[ast.AST], str] = {ast.Pow: "**", ast.Mult: "*", ast.Mod: "%", ast.Sub: "-", ast.Div: "/"}
_OF_NUMBERS = (ast.Mult, ast.Mod, ast.Sub, ast.Div)
_LANGUAGE = "comparisons, and, or, not, in, + - * / % and references such as $ctx.params.x"
_ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Call, ast.Name, ast.Load),
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Add, *_OF_NUMBERS),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)
_REFERENCES = ("_ctx", "_env")


class ExpressionRefused(ValueError):
    """An expression is outside the allowed language, or might be costly."""


def parse_expression(python: str) -> ast.Expression:
    """Parse a Python expression, references as `_ctx('params.x')`, without evaluating it. ExpressionRefused."""
    if len(python) > LONGEST_EXPRESSION:
        raise ExpressionRefused(f"an expression has more than {LONGEST_EXPRESSION} characters")
    try:
        tree = ast.parse(python, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply"
        raise ExpressionRefused(f"an expression cannot be read: {reason}") from error
    operators = 0
    for node in ast.walk(tree):
        _check(node)
        operators += _operators_of(node)
        if operators > MOST_OPERATORS:
            raise ExpressionRefused(f"an expression has more than {MOST_OPERATORS} operators")
    return tree


def _check(node: ast.AST) -> None:
    match node:
        case ast.Pow():
            raise ExpressionRefused("an expression uses **, whose result has no bound; compute it in a task")
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str())], keywords=[]) if name in _REFERENCES:
            pass
        case ast.Call():
            raise ExpressionRefused(f"an expression calls something; allowed are {_LANGUAGE}")
        case ast.Name(id=name) if name not in _REFERENCES:
            raise ExpressionRefused(f"an expression uses the name {name[:64]}; write $ctx.params.{name[:64]}")
        case ast.Constant(value=bool() | None | str() | float()):
            pass
        case ast.Constant(value=int() as number) if abs(number) <= LARGEST_NUMBER:
            pass
        case ast.Constant():
            raise ExpressionRefused("an expression has a constant that is no text, truth value or number up to 2**63")
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OF_NUMBERS):
            if _is_text(left) or _is_text(right):
                raise ExpressionRefused(f"an expression uses {_SIGNS[type(op)]} with a text; it takes numbers")
        case _ if not isinstance(node, _ALLOWED):
            kind = type(node).__name__
            raise ExpressionRefused(f"an expression uses {kind}, which is not allowed; allowed are {_LANGUAGE}")


def _is_text(node: ast.AST) -> bool:
    """Whether an operand is a string: a literal, or a sum or boolean expression with one in it."""
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_text(left) or _is_text(right)
        case ast.BoolOp(values=values):
            return any(_is_text(value) for value in values)
        case _:
            return False


def _operators_of(node: ast.AST) -> int:
    match node:
        case ast.BinOp() | ast.UnaryOp():
            return 1
        case ast.BoolOp(values=values):
            return len(values) - 1
        case ast.Compare(ops=ops):
            return len(ops)
        case _:
            return 0
