"""Gaussian averages: exact where the integrand is a polynomial (Wick), named integrals elsewhere.

Derivatives of an average are averages again (Price, Stein): ``d E[g] / d Sigma_ab = E[d_a d_b g] / (1 + delta_ab)``,
``d E[g] / d mean_a = E[d_a g]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import sympy as sp

from tracewords.errors import ModelError

UNIT = sp.symbols("u1:33", real=True)  # the variables of every average, in its own numbering


@dataclass(frozen=True)
class Law:
    """Joint law of Gaussian variables u1 .. un, in order parameters and parameters.

    Attributes
    ----------
    covariance : n x n nested tuple of sympy expressions
    mean : n-tuple of sympy expressions
    """

    covariance: tuple[tuple[sp.Expr, ...], ...]
    mean: tuple[sp.Expr, ...]

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def centred(self) -> bool:
        """Whether all means vanish."""
        return not any(self.mean)


@dataclass(frozen=True)
class Block:
    """Gaussian variables and the functions of them to be averaged.

    Attributes
    ----------
    law : Law
    outputs : tuple of (symbol, integrand)
        The integrand is an expression in ``u1 .. un`` and the parameters.
    """

    law: Law
    outputs: tuple[tuple[sp.Symbol, sp.Expr], ...]

    @property
    def dimension(self) -> int:
        """Number of Gaussian variables."""
        return len(self.law)


@dataclass(frozen=True)
class Program:
    """Named expressions in order parameters, parameters and the averages of `blocks`."""

    outputs: tuple[tuple[str, sp.Expr], ...]
    blocks: tuple[Block, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(name for name, _ in self.outputs)


@dataclass
class Averages:
    """Hands out a symbol for each Gaussian average and remembers what it stands for.

    The tag starts the symbols' names: expressions that mix two tables need two tags.
    """

    tag: str = "E"
    table: dict[Law, dict[sp.Expr, sp.Symbol]] = field(default_factory=dict)
    meaning: dict[sp.Symbol, tuple[Law, sp.Expr]] = field(default_factory=dict)
    origin: dict[sp.Symbol, tuple[sp.Expr, tuple[int, ...]]] = field(default_factory=dict)

    def average(self, integrand: sp.Expr, law: Law, origin: tuple[sp.Expr, tuple[int, ...]] | None = None) -> sp.Expr:
        """E of an integrand in u1 .. un: a polynomial by Wick's theorem where it is one, else a symbol.

        `origin` says of which function, by which variables, the integrand is a derivative.
        """
        variables = UNIT[: len(law)]
        if not integrand.free_symbols & set(variables):
            return integrand
        if any(map(is_order_parameter, integrand.free_symbols)):
            return sum((c * self.average(g, law) for c, g in _pulled_out(integrand, variables)), sp.Integer(0))
        if integrand.is_polynomial(*variables):
            return wick(integrand, law.covariance, law.mean)
        block = self.table.setdefault(law, {})
        if integrand not in block:
            position = list(self.table).index(law)
            symbol = sp.Symbol(f"{self.tag}{position}_{len(block)}", real=True)
            block[integrand] = symbol
            self.meaning[symbol] = (law, integrand)
            self.origin[symbol] = origin or (integrand, ())
        return block[integrand]

    def derivative(self, expression: sp.Expr, symbol: sp.Symbol, target: Averages | None = None) -> sp.Expr:
        """Total derivative by an order parameter or a parameter; new averages go to `target` (default: here)."""
        target = target or self
        result = sp.diff(expression, symbol)
        for average in sorted(expression.free_symbols & set(self.meaning), key=str):
            law, integrand = self.meaning[average]
            base, by = self.origin[average]
            slope = sp.Integer(0)
            for a, b in combinations_with_replacement(range(len(law)), 2):
                rate = sp.diff(law.covariance[a][b], symbol)
                if rate != 0:
                    half = sp.Rational(1, 2) if a == b else 1
                    inner = sp.diff(integrand, UNIT[a], UNIT[b])
                    slope += half * rate * target.average(inner, law, (base, (*by, a, b)))
            for a, mean in enumerate(law.mean):
                rate = sp.diff(mean, symbol)
                if rate != 0:
                    slope += rate * target.average(sp.diff(integrand, UNIT[a]), law, (base, (*by, a)))
            inside = sp.diff(integrand, symbol)
            if inside != 0:
                slope += target.average(inside, law)
            result += sp.diff(expression, average) * slope
        return result

    def program(self, outputs: Iterable[tuple[str, sp.Expr]]) -> Program:
        """The outputs with the blocks they need, numbered by what they are: not by what was asked for first."""
        outputs = tuple(outputs)
        used = set().union(*(e.free_symbols for _, e in outputs)) if outputs else set()
        blocks: list[Block] = []
        rename: dict[sp.Symbol, sp.Symbol] = {}
        for law in sorted(self.table, key=lambda law: (len(law), str(law))):
            entries = sorted(self.table[law].items(), key=lambda entry: (sp.count_ops(entry[0]), str(entry[0])))
            kept = [(s, e) for e, s in entries if s in used]
            if kept:
                new = [(sp.Symbol(f"E{len(blocks)}_{i}", real=True), e) for i, (_, e) in enumerate(kept)]
                rename |= {old: fresh for (old, _), (fresh, _) in zip(kept, new, strict=True)}
                blocks.append(Block(law, tuple(new)))
        return Program(tuple((n, e.xreplace(rename)) for n, e in outputs), tuple(blocks))


def is_order_parameter(symbol: sp.Symbol) -> bool:
    """Whether a symbol stands for a moment."""
    return bool(symbol.name.startswith("q_"))


def _pulled_out(integrand: sp.Expr, variables: Sequence[sp.Symbol]) -> list[tuple[sp.Expr, sp.Expr]]:
    """The integrand as a sum of (factor of order parameters, integrand without them)."""
    parts: dict[sp.Expr, sp.Expr] = {}
    for term in sp.Add.make_args(integrand):
        if any(map(is_order_parameter, term.free_symbols)):
            term = sp.expand(term, deep=False) if term.is_Mul else sp.expand(term)
        for piece in sp.Add.make_args(term):
            inside = [f for f in sp.Mul.make_args(piece) if any(map(is_order_parameter, f.free_symbols))]
            outside = sp.Mul(*inside)
            if outside.free_symbols & set(variables):
                raise ModelError("loss", piece, "traces of values as factors, not inside functions")
            parts[outside] = parts.get(outside, sp.Integer(0)) + piece / outside
    return list(parts.items())


def wick(integrand: sp.Expr, covariance: Sequence[Sequence[sp.Expr]], mean: Sequence[sp.Expr] | None = None) -> sp.Expr:
    """Exact mean of a polynomial of Gaussian variables u1 .. un (Isserlis' theorem)."""
    size = len(covariance)
    shift = mean or [sp.Integer(0)] * size
    memo: dict[tuple[int, ...], sp.Expr] = {(0,) * size: sp.Integer(1)}

    def lower(powers: tuple[int, ...], i: int) -> tuple[int, ...]:
        return tuple(p - (n == i) for n, p in enumerate(powers))

    def moment(powers: tuple[int, ...]) -> sp.Expr:
        if powers not in memo:
            a = next(i for i, p in enumerate(powers) if p)
            rest = lower(powers, a)
            paired = (rest[b] * covariance[a][b] * moment(lower(rest, b)) for b in range(size) if rest[b])
            alone = shift[a] * moment(rest) if shift[a] != 0 else sp.Integer(0)
            memo[powers] = sp.expand(sum(paired, alone))
        return memo[powers]

    polynomial = sp.Poly(sp.expand(integrand), *UNIT[:size], domain="EX")
    return sp.expand(sum(c * moment(powers) for powers, c in polynomial.terms()))
