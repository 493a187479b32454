"""Proven bounds of how fast couplings vary, for the certificate.

The second derivatives of a coupling in the order parameters are averages of sixth derivatives of the loss.
For losses made of sigmoids, softmax entries and tanh these are polynomials in quantities confined to [0, 1]: a
polynomial there lies between the smallest and the largest of its Bernstein coefficients, which are exact rationals.
"""

from __future__ import annotations

from itertools import product
from math import comb

import sympy as sp

from tracewords.derive.functions import sigmoid, softmax
from tracewords.derive.gaussian import UNIT, Averages
from tracewords.derive.statics import Statics

MOST_ATOMS = 3
RAISE = 12  # degree to which Bernstein forms are raised, which tightens them


def curvature_bounds(statics: Statics) -> dict[str, sp.Expr] | None:
    """Bounds of ``sum_ab |d2 G / dq_a dq_b|``, valid for all q, by coupling; None where none is known.

    The sum runs over the order parameters with a student in them.  Expressions in |parameters|; they bound
    what a linearisation of the couplings leaves out.
    """
    students = {statics.alphabet.index[name] for name in statics.model.students}
    moving = [statics.symbol(w) for w in statics.order_parameters if students & set(w)]
    result = {}
    for name, expression in statics.gradient.items():
        total = sp.Integer(0)
        for i, a in enumerate(moving):
            first = Averages("D")
            slope = statics.averages.derivative(expression, a, first)
            if slope.free_symbols & set(statics.averages.meaning):
                return None  # an average times a function of q
            for b in moving[i:]:
                second = Averages("C")
                bound = _bound(first.derivative(slope, b, second), second)
                if bound is None:
                    return None
                total += bound if a == b else 2 * bound
        result[name] = total
    return result


def _bound(expression: sp.Expr, averages: Averages) -> sp.Expr | None:
    """Bound of a linear combination of averages with constant coefficients."""
    total = sp.Integer(0)
    for term in sp.Add.make_args(sp.expand(expression)):
        inside = [s for s in term.free_symbols if s in averages.meaning]
        if len(inside) > 1 or any(s.name.startswith("q_") for s in term.free_symbols):
            return None
        if inside:
            factor = term / inside[0]
            if inside[0] in factor.free_symbols:
                return None
            sup = supremum(averages.meaning[inside[0]][1])
            if sup is None:
                return None
            total += _absolute(factor) * sup
        else:
            total += _absolute(term)
    return total


def _absolute(e: sp.Expr) -> sp.Expr:
    return (
        sp.Abs(e)
        if e.is_number
        else e.replace(lambda x: x.is_Symbol, sp.Abs).replace(lambda x: x.is_number and x.is_negative, lambda x: -x)
    )


def supremum(integrand: sp.Expr) -> sp.Expr | None:
    """Bound of |integrand| over all real u1, u2, .., an expression in |parameters|; None where none is known."""
    atoms = sorted(integrand.atoms(sigmoid, softmax, sp.tanh), key=str)
    if not 0 < len(atoms) <= MOST_ATOMS:
        return None
    unit = sp.symbols(f"s1:{len(atoms) + 1}")
    # tanh = 2 s - 1 with s in [0, 1]
    confined = {a: 2 * s - 1 if isinstance(a, sp.tanh) else s for a, s in zip(atoms, unit, strict=True)}
    reduced = integrand.xreplace(confined)
    if reduced.free_symbols & set(UNIT) or not reduced.is_polynomial(*unit):
        return None
    by_parameter: dict[sp.Expr, dict[tuple[int, ...], sp.Rational]] = {}
    for powers, coefficient in sp.Poly(sp.expand(reduced), *unit).terms():
        for part in sp.Add.make_args(sp.expand(coefficient)):
            number, symbols = part.as_coeff_Mul()
            if not number.is_Rational:
                return None
            table = by_parameter.setdefault(symbols, {})
            table[powers] = table.get(powers, sp.Integer(0)) + number
    return sum((_absolute(m) * largest_bernstein(table, len(unit)) for m, table in by_parameter.items()), sp.Integer(0))


def largest_bernstein(terms: dict[tuple[int, ...], sp.Rational], size: int) -> sp.Rational:
    """Largest modulus among the Bernstein coefficients of a polynomial on the unit cube, raised to a common degree."""
    degree = [max(RAISE, *(p[i] for p in terms)) for i in range(size)]
    best = sp.Integer(0)
    for index in product(*(range(n + 1) for n in degree)):
        value = sp.Integer(0)
        for powers, c in terms.items():
            if all(p <= i for p, i in zip(powers, index, strict=True)):
                share = sp.Integer(1)
                for p, i, n in zip(powers, index, degree, strict=True):
                    share *= sp.Rational(comb(i, p), comb(n, p))
                value += c * share
        best = max(best, abs(value))
    return best
