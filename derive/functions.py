"""Functions that a loss may use and sympy does not have, and a plain evaluator of the result.

All arguments are commuting scalars, and nothing here simplifies: automatic rewriting at high order costs
more than it gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import sympy as sp
from sympy.core.function import ArgumentIndexError

MAX_DEGREE = 20  # of a Hermite polynomial


class sigmoid(sp.Function):
    """``1 / (1 + exp(-x))``."""

    nargs = 1

    @classmethod
    def eval(cls, x: sp.Expr) -> sp.Expr | None:
        """One half at zero; everything else stays as it is."""
        return sp.Rational(1, 2) if x == 0 else None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """``s (1 - s)``."""
        if argindex != 1:
            raise ArgumentIndexError(self, argindex)
        return self * (1 - self)

    def _eval_rewrite_as_exp(self, x: sp.Expr, **kwargs: object) -> sp.Expr:
        return 1 / (1 + sp.exp(-x))

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return self._eval_rewrite_as_exp(*self.args)._eval_evalf(prec)

    def _eval_is_extended_positive(self) -> bool | None:
        return True if self.args[0].is_extended_real else None

    def _eval_is_finite(self) -> bool | None:
        return True if self.args[0].is_real else None


class softmax(sp.Function):
    """``softmax(j, y1, .., y_{n-1}) = exp(y_j) / (1 + sum_k exp(y_k))``, with ``y_n = 0`` implied.

    Fixing the last logit at zero removes the common shift, so that an average over a row of n logits is an
    integral in n - 1 dimensions.  Its text form has the zero written out and reads back as a full row.
    """

    @classmethod
    def eval(cls, j: sp.Expr, *y: sp.Expr) -> sp.Expr | None:
        """A row of one is 1 and a row of two a sigmoid."""
        if not (j.is_Integer and 1 <= int(j) <= len(y) + 1):
            raise ValueError(f"softmax: entry {j} of a row of {len(y) + 1}")
        if not y:
            return sp.Integer(1)
        if len(y) == 1:
            return sigmoid(y[0]) if j == 1 else sigmoid(-y[0])
        return None

    def fdiff(self, argindex: int = 2) -> sp.Expr:
        """``A_j (delta_jm - A_m)`` for the m-th logit, which is argument m + 1."""
        if not 2 <= argindex <= len(self.args):
            raise ArgumentIndexError(self, argindex)
        j, *y = self.args
        m = argindex - 1
        return self * (int(j == m) - softmax(m, *y))

    def _eval_rewrite_as_exp(self, j: sp.Expr, *y: sp.Expr, **kwargs: object) -> sp.Expr:
        top = (*y, sp.Integer(0))[int(j) - 1]
        # Relative to the entry asked for, so that no exponential of a large number divides another.
        return 1 / sp.Add(*(sp.exp(x - top) for x in (*y, sp.Integer(0))))

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return self._eval_rewrite_as_exp(*self.args)._eval_evalf(prec)

    def _eval_is_extended_positive(self) -> bool | None:
        return True if all(x.is_extended_real for x in self.args) else None

    def _eval_is_finite(self) -> bool | None:
        return True if all(x.is_real for x in self.args) else None

    def _sympystr(self, printer: sp.printing.str.StrPrinter) -> str:
        return f"softmax({', '.join(printer._print(x) for x in self.args)}, 0)"


def softmax_row(j: int, *x: sp.Expr) -> sp.Expr:
    """Entry j (from 1) of the softmax of a full row of logits ``x1 .. xn``.

    A function of the differences ``x_k - x_n``; a sigmoid of ``x1 - x2`` or ``x2 - x1`` where n = 2.
    """
    return softmax(sp.Integer(j), *(y - x[-1] for y in x[:-1]))


@cache
def _hermite_coefficients(n: int) -> tuple[int, ...]:
    """Coefficients of ``He_n``, ascending: ``He_{n+1} = x He_n - n He_{n-1}``."""
    previous, current = [0], [1]
    for m in range(n):
        following = [0, *current]
        for k, c in enumerate(previous[: len(current)]):
            following[k] -= m * c
        previous, current = current, following
    return tuple(current)


def hermite_normalised(n: int, x: sp.Expr) -> sp.Expr:
    """``He_n(x) / sqrt(n!)`` as an explicit polynomial: orthonormal under the standard Gaussian.

    Parameters
    ----------
    n : int
        Degree, 0 .. 20: ``h1 = x``, ``h2 = (x**2 - 1)/sqrt(2)``, ``h3 = (x**3 - 3*x)/sqrt(6)``.
    """
    if not 0 <= n <= MAX_DEGREE:
        raise ValueError(f"Hermite degree {n} is not in 0 .. {MAX_DEGREE}")
    terms = [c * x**k for k, c in enumerate(_hermite_coefficients(n)) if c]
    return sp.Add(*terms) / sp.sqrt(sp.factorial(n))


def _evaluate_softmax(j: float, *y: float) -> float:
    logits = (*y, 0.0)
    top = max(logits)
    return math.exp(logits[round(j) - 1] - top) / math.fsum(math.exp(x - top) for x in logits)


def _evaluate_sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


NUMERIC: dict[type[sp.Basic], Callable[..., float]] = {
    sp.Add: lambda *x: math.fsum(x),
    sp.Mul: lambda *x: math.prod(x),
    sp.Pow: math.pow,
    sp.exp: math.exp,
    sp.log: math.log,
    sp.tanh: math.tanh,
    sp.sin: math.sin,
    sp.cos: math.cos,
    sp.erf: math.erf,
    sigmoid: _evaluate_sigmoid,
    softmax: _evaluate_softmax,
}


def evaluate(expression: sp.Expr, values: Mapping[sp.Symbol, float]) -> float:
    """Value of an expression built from `NUMERIC`, in double precision; NaN where it has none.

    Infinite, undefined and complex values are NaN.  Slow and plain: a check, not a kernel.
    """
    memo: dict[sp.Basic, float] = {}

    def value(e: sp.Basic) -> float:
        if e not in memo:
            if e.is_Symbol:
                memo[e] = values[e]
            elif e.is_Atom:
                memo[e] = float(e)
            else:
                memo[e] = NUMERIC[e.func](*(value(x) for x in e.args))
        return memo[e]

    try:
        result = value(expression)
    except (ValueError, OverflowError, ZeroDivisionError, TypeError):
        return math.nan
    return result if math.isfinite(result) else math.nan
