"""Arithmetic on numbers, and on nothing else: the expression is parsed, never evaluated as Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

MAX_LENGTH = 200
MAX_DIGITS = 300

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class CannotCalculate(ValueError):
    """The expression is no arithmetic, or its value is out of bounds; the message says which."""


def calculate(expression: str) -> Number:
    """The value of `expression`: numbers, + - * / // % **, parentheses. Raises CannotCalculate."""
    if len(expression) > MAX_LENGTH:
        raise CannotCalculate(f"the expression has {len(expression)} characters, at most {MAX_LENGTH} are read")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, CannotCalculate):
            raise
        raise CannotCalculate(f"{expression!r} is no arithmetic expression") from None
    except ZeroDivisionError:
        raise CannotCalculate(f"{expression!r} divides by zero") from None
    except OverflowError:
        raise CannotCalculate(f"{expression!r} is too large") from None


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _bounded(_power(left, right))
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise CannotCalculate(f"{ast.unparse(node)!r} is neither a number nor + - * / // % ** on numbers")


def _power(base: Number, exponent: Number) -> Number:
    # Worked out before it is found too large, 9 ** 9 ** 9 would fill the memory.
    if isinstance(base, int) and abs(exponent) * max(1, base.bit_length()) > MAX_DIGITS * 4:
        raise CannotCalculate(f"{base} ** {exponent} has more than {MAX_DIGITS} digits")
    value = base**exponent
    if isinstance(value, complex):
        raise CannotCalculate(f"{base} ** {exponent} is no real number")
    return value


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise CannotCalculate(f"the value has more than {MAX_DIGITS} digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value
