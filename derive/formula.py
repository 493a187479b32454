"""Formula text to a sympy expression, through a whitelist; and the usual losses as such texts.

Nothing of the text is ever executed: Python's parser gives a syntax tree, and the reader below builds
commuting sympy expressions from the few kinds of node it knows.  Length, nesting, the size of numbers and
the size of the result are bounded, so that every text is read or refused in bounded time.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial

import sympy as sp

from tracewords.derive.functions import (
    MAX_DEGREE,
    NUMERIC,
    evaluate,
    hermite_normalised,
    sigmoid,
    softmax_row,
)
from tracewords.errors import ModelError

MAX_CHARACTERS = 200_000  # a softmax row loss of 16 tokens needs about half of it
MAX_NODES = 200_000  # of the expression tree
MAX_ARGUMENT = 2_000  # nodes of a function's argument: sympy searches it for special values,
MAX_UNSIGNED = 100  # and much longer where log or sqrt of an unknown sign may be complex
MAX_CONSTANT = 40  # nodes of an irrational constant: sympy evaluates it to many digits for its sign
MAX_DEPTH = 30  # brackets within brackets
MAX_FUNCTIONS = 12  # functions within functions: sympy's questions about signs grow fast with it
DEPTH_LIMIT = 2 * MAX_DEPTH  # of the syntax tree, where a function counts more than an operation
MAX_POWER = 20
MAX_BITS = 1000  # of a numerator or denominator: what a double can hold

FUNCTIONS: dict[str, Callable[[sp.Expr], sp.Expr]] = {
    "exp": sp.exp,
    "log": sp.log,
    "sqrt": sp.sqrt,
    "tanh": sp.tanh,
    "sin": sp.sin,
    "cos": sp.cos,
    "erf": sp.erf,
    "sigmoid": sigmoid,
    **{f"h{n}": partial(hermite_normalised, n) for n in range(1, MAX_DEGREE + 1)},
}
FUNCTIONS_TEXT = f"exp, log, sqrt, tanh, sin, cos, erf, sigmoid, h1 .. h{MAX_DEGREE}, softmax(j, x1, .., xn)"
RESERVED = frozenset(FUNCTIONS) | {"softmax", "pi", "x"}

_CHARACTERS = re.compile(r"[^\w\s+\-*/().,\[\]]")
_NAME = re.compile(r"[^\W\d]\w*")
_MARK = "ǃ"  # a letter put before Python's keywords, so that a parameter may be called lambda
_CONSTANTS = (sp.Rational, type(sp.pi), type(sp.E), sp.Symbol)


def refuse(where: str, value: object, accepted: str) -> ModelError:
    """The error for a value whose text may fail."""
    try:
        str(value)
    except Exception:  # an integer of 10**4 digits, or whatever a user's type does
        value = f"<{type(value).__name__}>"
    return ModelError(where, value, accepted)


def preactivation_symbol(name: str, i: int, j: int) -> sp.Symbol:
    """The commuting real symbol of ``h_ij`` of a matrix, tokens from 1; its name is its text, ``S1[1,2]``."""
    return sp.Symbol(f"{name}[{i},{j}]", real=True)


def trace_symbol(first: str, second: str) -> sp.Symbol:
    """The real symbol of ``tr(V_k V_l')`` of two matrices of values; its name is its text."""
    return sp.Symbol(f"trace({first},{second})", real=True)


def parameter_symbol(name: str) -> sp.Symbol:
    """The real symbol of a parameter."""
    return sp.Symbol(name, real=True)


def canonical_text(text: str) -> str:
    """The text without white space: equal for formulas that differ in spacing only."""
    return "".join(text.split())


def read_formula(
    text: str,
    *,
    tokens: int,
    matrices: Iterable[str],
    parameters: Iterable[str] = (),
    values: Iterable[str] = (),
    field: str = "loss.formula",
) -> sp.Expr:
    """The sympy expression of a formula.

    Parameters
    ----------
    text : str
        Numbers, ``+ - * / **``, parameters, ``pi``, pre-activations such as ``S1[1,2]``, functions.
    tokens : int
        L; indices of pre-activations are 1 .. L.
    matrices, parameters : names that may occur
    values : names of matrices of values, which occur as ``trace(V1, V2)``
    field : str
        What an error names.

    Raises
    ------
    ModelError
        For anything else, with the fragment at fault.
    """
    source, body = parse(text, field)
    reader = _Reader(source.encode(), field, tokens, tuple(matrices), tuple(parameters), tuple(values))
    try:
        expression, _ = reader.read(body, 0)
        unknown = next((e for e in sp.preorder_traversal(expression) if not _known(e)), None)
    except RecursionError:
        raise ModelError(field, text, f"at most {MAX_FUNCTIONS} nested functions") from None
    if unknown is not None:
        raise ModelError(field, text, f"a real, differentiable formula (this one contains {unknown})")
    return expression


def parse(text: str, field: str) -> tuple[str, ast.expr]:
    """The text as it was parsed and its syntax tree."""
    source = _prepare(text, field)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return source, ast.parse(source, mode="eval").body
    except (RecursionError, MemoryError):
        raise ModelError(field, text, "fewer operations in a row (group terms with brackets)") from None
    except (SyntaxError, ValueError) as error:
        place = (getattr(error, "offset", None) or 1) - 1
        fragment = source[max(0, place - 30) : place + 30].replace(_MARK, "")
        raise ModelError(field, fragment, "a formula such as (tanh(S1[1,2]) - tanh(S2[1,2]))**2/2") from None


def _prepare(text: str, field: str) -> str:
    """The text on one line with keywords marked, after the checks that must precede the parser."""
    if not isinstance(text, str) or not text.strip():
        raise ModelError(field, text, "the text of a formula")
    if len(text) > MAX_CHARACTERS:
        raise ModelError(field, text, f"at most {MAX_CHARACTERS} characters")
    foreign = _CHARACTERS.search(text)
    if foreign or _MARK in text or not unicodedata.is_normalized("NFKC", text):
        place = foreign.start() if foreign else 0
        fragment = text[max(0, place - 20) : place + 20]
        raise ModelError(field, fragment, "letters, digits, spaces and + - * / ** ( ) [ ] , .")
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth > MAX_DEPTH:
            raise ModelError(field, text[place : place + 40], f"at most {MAX_DEPTH} nested brackets")
    text = " ".join(text.split())
    return _NAME.sub(lambda m: _MARK + m[0] if keyword.iskeyword(m[0]) else m[0], text)


def _known(e: sp.Basic) -> bool:
    """Whether an expression node is of a kind that everything downstream understands."""
    return e.func in NUMERIC or isinstance(e, _CONSTANTS)


def _bits(e: sp.Basic) -> int:
    """Length of a rational; 0 for anything else."""
    return max(int(e.p).bit_length(), int(e.q).bit_length()) if isinstance(e, sp.Rational) else 0


Read = tuple[sp.Expr, int]  # an expression and a bound on the number of its nodes


@dataclass(frozen=True)
class _Reader:
    """Builds an expression from a syntax tree, node by node."""

    source: bytes
    field: str
    tokens: int
    matrices: tuple[str, ...]
    parameters: tuple[str, ...]
    values: tuple[str, ...] = ()

    def fragment(self, node: ast.expr) -> str:
        """The text of a node (the source is one line, and offsets count bytes)."""
        return self.source[node.col_offset : node.end_col_offset].decode().replace(_MARK, "")

    def refuse(self, node: ast.expr, accepted: str) -> ModelError:
        """The error for a node."""
        return ModelError(self.field, self.fragment(node), accepted)

    def read(self, node: ast.expr, depth: int) -> Read:
        """Expression and size of a node."""
        if depth > DEPTH_LIMIT:
            raise self.refuse(node, f"at most {MAX_FUNCTIONS} functions in each other, {MAX_DEPTH} brackets")
        match node:
            case ast.Constant():
                expression, size = self.number(node), 1
            case ast.Name():
                expression, size = self.name(node), 1
            case ast.Subscript(value=ast.Name()):
                expression, size = self.entry(node), 1
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                inner, size = self.read(node.operand, depth + 1)
                expression, size = (-inner if isinstance(node.op, ast.USub) else inner), size + 2
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                expression, size = self.chain(node, depth)
            case ast.BinOp(op=ast.Pow()):
                expression, size = self.power(node, depth)
            case ast.Call(func=ast.Name(), keywords=[]):
                expression, size = self.call(node, depth)
            case _:
                raise self.refuse(node, f"numbers, + - * / **, names, S[i,j] and {FUNCTIONS_TEXT}")
        self.check(node, expression, size)
        return expression, size

    def check(self, node: ast.expr, expression: sp.Expr, size: int) -> None:
        """Bounds on numbers and size, and nothing infinite, complex or without a derivative."""
        if size > MAX_NODES:
            raise self.refuse(node, f"an expression of at most {MAX_NODES} nodes")
        for e in (expression, *expression.args):
            if not _known(e):
                raise self.refuse(node, f"real, finite and differentiable values (this is {expression})")
            if _bits(e) > MAX_BITS:
                raise self.refuse(node, f"numbers of at most {MAX_BITS} bits")
        if expression.is_number and not expression.is_Rational:
            if size > MAX_CONSTANT:
                raise self.refuse(node, f"a constant of at most {MAX_CONSTANT} operations")
            if math.isnan(evaluate(expression, {})):
                raise self.refuse(node, "real and finite constants")

    def number(self, node: ast.Constant) -> sp.Rational:
        """An integer, or the exact rational of a decimal as it is written."""
        value = node.value
        if type(value) is int:
            return sp.Integer(value)
        if type(value) is float:
            decimal = Decimal(self.fragment(node))
            if decimal.is_zero():
                return sp.Integer(0)
            # An exponent of a billion must not become a number of a billion digits.
            if abs(decimal.adjusted()) < 300 and len(decimal.as_tuple().digits) < 300:
                return sp.Rational(Fraction(decimal))
        raise self.refuse(node, "real numbers of magnitude 1e-300 .. 1e300")

    def name(self, node: ast.Name) -> sp.Expr:
        """A parameter or pi."""
        name = node.id.removeprefix(_MARK)
        if name in self.parameters:
            return parameter_symbol(name)
        if name == "pi":
            return sp.pi
        known = ", ".join((*self.parameters, "pi", *(f"{m}[i,j]" for m in self.matrices)))
        raise self.refuse(node, f"one of {known}")

    def entry(self, node: ast.Subscript) -> sp.Symbol:
        """A pre-activation."""
        name = node.value.id.removeprefix(_MARK)  # type: ignore[attr-defined]
        accepted = f"M[i,j] with M one of {', '.join(self.matrices)} and i, j in 1 .. {self.tokens}"
        match node.slice:
            case ast.Tuple(elts=[ast.Constant(value=int(i)), ast.Constant(value=int(j))]):
                if name in self.matrices and 1 <= i <= self.tokens and 1 <= j <= self.tokens:
                    return preactivation_symbol(name, i, j)
        raise self.refuse(node, accepted)

    def chain(self, node: ast.BinOp, depth: int) -> Read:
        """A whole run of ``+ -`` or of ``* /`` at once: long sums are not deep."""
        sums = isinstance(node.op, ast.Add | ast.Sub)
        kinds = (ast.Add, ast.Sub) if sums else (ast.Mult, ast.Div)
        operands: list[sp.Expr] = []
        size = 1
        left: ast.expr = node
        while isinstance(left, ast.BinOp) and isinstance(left.op, kinds):
            right, n = self.read(left.right, depth + 1)
            if isinstance(left.op, ast.Sub):
                right = -right
            elif isinstance(left.op, ast.Div):
                if right.is_zero:
                    raise self.refuse(left, "a divisor other than zero")
                right = 1 / right
            operands.append(right)
            size += n + 2
            if size > MAX_NODES:
                raise self.refuse(left, f"an expression of at most {MAX_NODES} nodes")
            left = left.left
        first, n = self.read(left, depth + 1)
        operands.append(first)
        self.bound_product(node, operands)
        return (sp.Add if sums else sp.Mul)(*reversed(operands)), size + n

    def bound_product(self, node: ast.expr, operands: list[sp.Expr]) -> None:
        """Refuses a run of numbers whose product or common denominator would be long."""
        if sum(map(_bits, operands)) > 10 * MAX_BITS:
            raise self.refuse(node, f"numbers of at most {MAX_BITS} bits")

    def power(self, node: ast.BinOp, depth: int) -> Read:
        """Integer powers of anything, rational powers of positive constants."""
        base, size = self.read(node.left, depth + 1)
        exponent, _ = self.read(node.right, depth + 1)
        accepted = f"an integer exponent 0 .. {MAX_POWER} (a rational one for a positive number)"
        if not isinstance(exponent, sp.Rational) or abs(exponent) > MAX_POWER:
            raise self.refuse(node, accepted)
        if _bits(base) * abs(exponent) > MAX_BITS:
            raise self.refuse(node, f"numbers of at most {MAX_BITS} bits")
        if not (exponent.is_Integer and exponent >= 0):
            simple = exponent.q <= 1000 and _bits(base) <= 64
            if not (simple and base.is_number and base.is_positive):
                raise self.refuse(node, accepted)
        result = base**exponent
        degree = result.as_base_exp()[1]
        if degree.is_Integer and degree > MAX_POWER:
            raise self.refuse(node, accepted)
        return result, size + 2

    def call(self, node: ast.Call, depth: int) -> Read:
        """A function of the list."""
        name = node.func.id  # type: ignore[attr-defined]
        inside = depth + DEPTH_LIMIT // MAX_FUNCTIONS
        if name == "softmax":
            return self.softmax(node, inside)
        if name == "trace":
            return self.trace(node), 1
        if name not in FUNCTIONS:
            raise self.refuse(node, f"differentiable functions: {FUNCTIONS_TEXT}")
        if len(node.args) != 1:
            raise self.refuse(node, f"{name} of one argument")
        argument, size = self.read(node.args[0], inside)
        if size > MAX_ARGUMENT:
            raise self.refuse(node, f"an argument of at most {MAX_ARGUMENT} nodes")
        if size > MAX_UNSIGNED and not argument.is_real:
            raise self.refuse(node, f"an argument that is certainly real, or of at most {MAX_UNSIGNED} nodes")
        if name in ("log", "sqrt") and argument.is_number and not evaluate(argument, {}) > 0:
            raise self.refuse(node, f"{name} of positive constants")
        if name == "exp" and argument.has(sp.log):
            # sympy would turn exp(10**9*log(3)) into an integer of 10**9 bits
            raise self.refuse(node, "exponentials without a logarithm inside")
        powers = [e for e in sp.Mul.make_args(argument) if e.is_Pow]
        if name == "sqrt" and not all(e.base.is_positive for e in powers):
            # sqrt(x**2) is |x|, and for other powers sympy looks long for the branch
            raise self.refuse(node, "square roots of powers of what is certainly positive")
        repeats = int(name[1:]) // 2 + 1 if name[1:].isdecimal() else 1
        return FUNCTIONS[name](argument), (size + 4) * repeats

    def trace(self, node: ast.Call) -> sp.Symbol:
        """``trace(V1, V2)``, the same in either order."""
        match node.args:
            case [ast.Name(id=first), ast.Name(id=second)]:
                pair = [name.removeprefix(_MARK) for name in (first, second)]
                if all(name in self.values for name in pair):
                    return trace_symbol(*sorted(pair, key=self.values.index))
        known = ", ".join(self.values) or "none in this model"
        raise self.refuse(node, f"trace(V, W) of two matrices of values: {known}")

    def softmax(self, node: ast.Call, depth: int) -> Read:
        """``softmax(j, x1, .., xn)``: entry j, an integer as written, of a row."""
        match node.args:
            case [ast.Constant(value=int(j)), _, *_] if 1 <= j < len(node.args):
                row, sizes = zip(*(self.read(x, depth) for x in node.args[1:]), strict=True)
                size = 2 + sum(sizes) + len(row) * (sizes[-1] + 3)  # the last logit is taken from each
                if size > MAX_ARGUMENT:
                    raise self.refuse(node, f"logits of at most {MAX_ARGUMENT} nodes in all")
                return softmax_row(j, *row), size
        raise self.refuse(node, "softmax(j, x1, .., xn) with j the number of one of its entries, 1 .. n")
