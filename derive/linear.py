"""Which few linear combinations of pre-activations each term of a loss sees.

``sigmoid(beta (h_11 - h_12))`` is a function of one number, not of two: an average over it is an integral
of one dimension less.  Everything here is exact and commuting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy as sp

Entry = tuple[int, int, int]  # matrix, row token, column token, all from 0
Form = dict[Entry, sp.Expr]  # entry -> rational coefficient


@dataclass(frozen=True)
class LinearTerm:
    """``function(u1, .., un)`` with ``u_a = sum_e forms[a][e] h_e``, the forms independent."""

    function: sp.Expr
    forms: tuple[Form, ...]


def split_terms(
    expression: sp.Expr, entries: Mapping[sp.Symbol, Entry], variables: Sequence[sp.Symbol]
) -> tuple[LinearTerm, ...]:
    """Additive terms of an expression, those over the same linear combinations joined.

    Parameters
    ----------
    expression : sympy expression in the symbols of `entries` and parameters
    entries : mapping of symbol to entry
    variables : symbols u1, u2, .. for the combinations
    """
    joined: dict[tuple[tuple[tuple[Entry, sp.Expr], ...], ...], sp.Expr] = {}
    for term in sp.Add.make_args(_distribute(expression)):
        reader = _Reader(entries)
        reader.walk(term)
        basis = _basis(reader.forms)
        reader.expressed = {_key(f): _express(f, basis, variables) for f in reader.forms}
        key = tuple(_key(f) for f in basis)
        joined[key] = joined.get(key, sp.Integer(0)) + reader.walk(term)
    return tuple(LinearTerm(f, tuple(dict(form) for form in key)) for key, f in joined.items())


def common_forms(
    a: Sequence[Form], b: Sequence[Form], variables: Sequence[sp.Symbol]
) -> tuple[tuple[Form, ...], dict[sp.Symbol, sp.Expr], dict[sp.Symbol, sp.Expr]]:
    """Independent forms that span those of both, and how either's variables read in them."""
    basis = _basis([*a, *b])
    into = [{variables[n]: _express(form, basis, variables) for n, form in enumerate(forms)} for forms in (a, b)]
    return tuple(basis), into[0], into[1]


def _distribute(expression: sp.Expr) -> sp.Expr:
    """A number times a sum becomes a sum; nothing else is expanded."""
    terms = []
    for term in sp.Add.make_args(expression):
        factor, rest = term.as_independent(sp.Add, as_Add=False) if term.is_Mul else (sp.Integer(1), term)
        terms += [factor * x for x in sp.Add.make_args(rest)]
    return sp.Add(*terms)


def _rank(entry: Entry) -> tuple[int, bool, Entry]:
    """Off-diagonal entries first: rows of a softmax then all read h_ij - h_ii, with one sign."""
    return entry[0], entry[1] == entry[2], entry


def _key(form: Form) -> tuple[tuple[Entry, sp.Expr], ...]:
    return tuple(sorted(form.items()))


class _Reader:
    """Finds the maximal linear subexpressions; with `expressed` set, replaces them."""

    def __init__(self, entries: Mapping[sp.Symbol, Entry]) -> None:
        self.entries = entries
        self.forms: list[Form] = []
        self.expressed: dict[tuple[tuple[Entry, sp.Expr], ...], sp.Expr] | None = None

    def walk(self, e: sp.Expr) -> sp.Expr:
        linear = self._linear(e)
        if linear is not None:
            return self._emit(*linear)
        if e.is_Add:
            parts = [(x, self._linear(x)) for x in e.args]
            total: Form = {}
            constant = sp.Integer(0)
            for _, part in parts:
                if part is not None:
                    constant += part[1]
                    for h, c in part[0].items():
                        total[h] = total.get(h, sp.Integer(0)) + c
            return self._emit(total, constant) + sum(self.walk(x) for x, part in parts if part is None)
        return e.func(*(self.walk(x) if isinstance(x, sp.Expr) else x for x in e.args))

    def _linear(self, e: sp.Expr) -> tuple[Form, sp.Expr] | None:
        if not e.free_symbols & set(self.entries):
            return {}, e
        if e in self.entries:
            return {self.entries[e]: sp.Integer(1)}, sp.Integer(0)
        if e.is_Add:
            parts = [self._linear(x) for x in e.args]
            if any(p is None for p in parts):
                return None
            total: Form = {}
            for part in parts:
                for h, c in part[0].items():  # type: ignore[index]
                    total[h] = total.get(h, sp.Integer(0)) + c
            return total, sum(p[1] for p in parts)  # type: ignore[index]
        if e.is_Mul:
            inside = [x for x in e.args if x.free_symbols & set(self.entries)]
            part = self._linear(inside[0]) if len(inside) == 1 else None
            if part is not None:
                factor = sp.Mul(*(x for x in e.args if x is not inside[0]))
                return {h: factor * c for h, c in part[0].items()}, factor * part[1]
        return None

    def _emit(self, form: Form, constant: sp.Expr) -> sp.Expr:
        form = {h: c for h, c in form.items() if c != 0}
        if not form:
            return constant
        first = form[min(form, key=_rank)]
        ratios = {h: sp.cancel(c / first) for h, c in form.items()}
        if all(r.is_Rational for r in ratios.values()):
            parts = [(first, ratios)]
        else:
            parts = [(c, {h: sp.Integer(1)}) for h, c in form.items()]
        if self.expressed is None:
            self.forms += [f for _, f in parts]
            return constant
        return constant + sum(c * self.expressed[_key(f)] for c, f in parts)


def _columns(forms: Sequence[Form]) -> list[Entry]:
    return sorted({h for form in forms for h in form})


def _basis(forms: Sequence[Form]) -> list[Form]:
    """Independent forms among those given, the shortest first, then put in order of their entries."""
    columns = _columns(forms)
    unique = [dict(key) for key in dict.fromkeys(sorted((_key(f) for f in forms), key=lambda k: (len(k), str(k))))]
    chosen: list[Form] = []
    rank = 0
    for form in unique:
        rows = [[f.get(h, 0) for h in columns] for f in [*chosen, form]]
        if sp.Matrix(rows).rank() > rank:
            chosen.append(form)
            rank += 1
    return sorted(chosen, key=_key)


def _express(form: Form, basis: Sequence[Form], variables: Sequence[sp.Symbol]) -> sp.Expr:
    """A form as a combination of the basis, in the variables."""
    columns = _columns([*basis, form])
    matrix = sp.Matrix([[f.get(h, 0) for f in basis] for h in columns])
    right = sp.Matrix([form.get(h, 0) for h in columns])
    solution, free = matrix.gauss_jordan_solve(right)
    assert not free
    return sum((c * u for c, u in zip(solution, variables, strict=False)), sp.Integer(0))
