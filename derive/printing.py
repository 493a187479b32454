"""Scalar sympy expressions as Python or C text, and straight-line programs of them.

Nothing here knows numerics or files: a printer turns an expression into text, `straight_line` orders
common subexpressions.  Every number is written as a float (C arithmetic never sees an integer), every name
is mangled by what it is, so that a parameter may be called ``lambda``, ``double`` or ``I``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy as sp
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from tracewords.derive.functions import softmax

PARAMETER = "p_"


def parameter_text(name: str) -> str:
    """The mangled name of a parameter: printable ASCII, injective, never a keyword."""
    return PARAMETER + "".join(c if c.isascii() and (c.isalnum() or c == "_") else f"_u{ord(c):x}_" for c in name)


class _FloatPrinter(StrPrinter):
    """Common part of the targets."""

    functions: ClassVar[dict[str, str]] = {}

    def __init__(self, parameters: Iterable[str]) -> None:
        super().__init__({"order": None})
        self._parameters = set(parameters)

    def _print_Symbol(self, e: sp.Symbol) -> str:
        return parameter_text(e.name) if e.name in self._parameters else e.name

    def _print_Integer(self, e: sp.Integer) -> str:
        return repr(float(e))

    def _print_Rational(self, e: sp.Rational) -> str:
        return repr(float(e))

    def _print_Float(self, e: sp.Float) -> str:
        return repr(float(e))

    def _print_NumberSymbol(self, e: sp.Expr) -> str:
        return repr(float(e))

    _print_Pi = _print_Exp1 = _print_NumberSymbol

    def _print_Mul(self, e: sp.Mul) -> str:
        numbers = [a for a in e.args if a.is_number]
        rest = [a for a in e.args if not a.is_number]
        number = sp.Mul(*numbers)
        factors = [self.parenthesize(a, PRECEDENCE["Mul"]) for a in rest]
        if number == -1 and factors:
            return "-" + "*".join(factors)
        if number != 1 or not factors:
            factors.insert(0, repr(float(number)))
        return "*".join(factors)

    def _print_Add(self, e: sp.Add, order: str | None = None) -> str:
        text = " + ".join(
            self.parenthesize(a, PRECEDENCE["Add"]) if i else self._print(a) for i, a in enumerate(e.args)
        )
        return text.replace("+ -", "- ")

    def _print_Pow(self, e: sp.Pow, rational: bool = False) -> str:
        base, exponent = e.args
        if base.is_number and exponent.is_number:
            return repr(float(e))
        inner = self.parenthesize(base, PRECEDENCE["Pow"])
        if exponent == sp.Rational(1, 2):
            return self._call("sqrt", [self._print(base)])
        if exponent.is_Integer and exponent < 0:
            return f"1.0/{self.parenthesize(sp.Pow(base, -exponent), PRECEDENCE['Pow'])}"
        if exponent.is_Integer and exponent <= 4:
            return "(" + "*".join([inner] * int(exponent)) + ")"
        if exponent.is_Integer:
            return self._call("powi", [self._print(base), str(int(exponent))])
        return self._call(
            "exp", [f"{self.parenthesize(exponent, PRECEDENCE['Mul'])}*{self._call('log', [self._print(base)])}"]
        )

    def _print_Function(self, e: sp.Expr) -> str:
        return self._call(type(e).__name__, [self._print(a) for a in e.args])

    def _print_exp(self, e: sp.Expr) -> str:
        return self._call("exp", [self._print(e.args[0])])

    def step(self, e: sp.Expr) -> str:
        """Right side of an assignment; a target may need numbers in another form."""
        return self.doprint(e)

    def _call(self, name: str, arguments: list[str]) -> str:
        return f"{self.functions[name]}({', '.join(arguments)})"


class NumPyText(_FloatPrinter):
    """Expressions over NumPy arrays."""

    functions: ClassVar[dict[str, str]] = {
        **{f: f"np.{f}" for f in ("exp", "log", "sqrt", "tanh", "sin", "cos")},
        "erf": "_erf",
        "sigmoid": "_sigmoid",
        "powi": "_powi",
    }


class CText(_FloatPrinter):
    """Expressions over the lane type of the C kernels."""

    functions: ClassVar[dict[str, str]] = {
        f: f"lane_{f}" for f in ("exp", "log", "sqrt", "tanh", "sin", "cos", "erf", "sigmoid", "powi")
    }

    def step(self, e: sp.Expr) -> str:
        """A number becomes a lane."""
        text = self.doprint(e)
        return f"lane_set1({text})" if e.is_number else text


@dataclass(frozen=True)
class StraightLine:
    """A straight-line program.

    Attributes
    ----------
    softmaxes : list of (names, arguments)
        Each sets the entries of one softmax row from its arguments (the last argument, 0, is implied).
    steps : list of (name, text)
    results : list of text
    """

    softmaxes: list[tuple[list[str], list[str]]]
    steps: list[tuple[str, str]]
    results: list[str]


def straight_line(expressions: Sequence[sp.Expr], printer: _FloatPrinter) -> StraightLine:
    """Common subexpressions first, then the results, in an order that is always the same."""
    softmaxes: list[tuple[list[str], list[str]]] = []
    expressions = list(expressions)
    while True:
        rows = sorted(
            {
                a.args[1:]
                for e in expressions
                for a in e.atoms(softmax)
                if not any(x.atoms(softmax) for x in a.args[1:])
            },
            key=str,
        )
        if not rows:
            break
        for row in rows:
            names = [f"s{len(softmaxes)}_{j}" for j in range(1, len(row) + 2)]
            replace = {softmax(sp.Integer(j + 1), *row): sp.Symbol(n) for j, n in enumerate(names)}
            expressions = [e.xreplace(replace) for e in expressions]
            softmaxes.append((names, [printer.doprint(a) for a in row]))
    steps, results = sp.cse(expressions, symbols=sp.numbered_symbols("x"), order="canonical")
    return StraightLine(softmaxes, [(str(s), printer.step(e)) for s, e in steps], [printer.doprint(r) for r in results])


__all__ = ["CText", "NumPyText", "StraightLine", "parameter_text", "straight_line"]
