"""Statics: the population loss of a model and its couplings as functions of the order parameters.

In high dimension the pre-activations are jointly Gaussian with covariance
``C_ii' C_jj' Omega_kl + C_ij' C_ji' Psi_kl``, ``Omega_kl = tr(S_k S_l')``, ``Psi_kl = tr(S_k S_l)``.  The
loss is split into terms that see a few linear combinations u of them; each average over u is exact where
the integrand is a polynomial (Wick) and a named integral elsewhere.  Derivatives of an average are averages
again (Price): ``d E[g] / d Sigma_ab = E[d_a d_b g] / (1 + delta_ab)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations_with_replacement

import sympy as sp

from tracewords.derive.flow import MatrixFlow, coupling_name
from tracewords.derive.formula import preactivation_symbol
from tracewords.derive.functions import sigmoid, softmax
from tracewords.derive.linear import Entry, LinearTerm, common_forms, split_terms
from tracewords.derive.model import Model
from tracewords.derive.words import Alphabet, Word

MOST_SLOPE_VARIABLES = (
    4  # slopes of noise averages over more variables take minutes to derive, and only the Jacobian uses them
)
UNIT = sp.symbols("u1:33", real=True)  # the variables of every average, in its own numbering


@dataclass(frozen=True)
class Block:
    """Gaussian variables and the functions of them to be averaged.

    Attributes
    ----------
    covariance : n x n nested tuple of sympy expressions in the order parameters
    outputs : tuple of (symbol, integrand)
        The integrand is an expression in ``u1 .. un`` and the parameters.
    """

    covariance: tuple[tuple[sp.Expr, ...], ...]
    outputs: tuple[tuple[sp.Symbol, sp.Expr], ...]

    @property
    def dimension(self) -> int:
        """Number of Gaussian variables."""
        return len(self.covariance)


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
    table: dict[tuple[tuple[sp.Expr, ...], ...], dict[sp.Expr, sp.Symbol]] = field(default_factory=dict)
    meaning: dict[sp.Symbol, tuple[tuple[tuple[sp.Expr, ...], ...], sp.Expr]] = field(default_factory=dict)
    origin: dict[sp.Symbol, tuple[sp.Expr, tuple[int, ...]]] = field(default_factory=dict)

    def average(
        self,
        integrand: sp.Expr,
        covariance: tuple[tuple[sp.Expr, ...], ...],
        origin: tuple[sp.Expr, tuple[int, ...]] | None = None,
    ) -> sp.Expr:
        """E of an integrand in u1 .. un: a polynomial by Wick's theorem where it is one, else a symbol.

        `origin` says of which function, by which variables, the integrand is a derivative.
        """
        variables = UNIT[: len(covariance)]
        if not integrand.free_symbols & set(variables):
            return integrand
        if integrand.is_polynomial(*variables):
            return wick(integrand, covariance)
        block = self.table.setdefault(covariance, {})
        if integrand not in block:
            position = list(self.table).index(covariance)
            symbol = sp.Symbol(f"{self.tag}{position}_{len(block)}", real=True)
            block[integrand] = symbol
            self.meaning[symbol] = (covariance, integrand)
            self.origin[symbol] = origin or (integrand, ())
        return block[integrand]

    def derivative(self, expression: sp.Expr, symbol: sp.Symbol, target: Averages | None = None) -> sp.Expr:
        """Total derivative with respect to an order parameter; new averages go to `target` (default: here)."""
        target = target or self
        result = sp.diff(expression, symbol)
        for average in sorted(expression.free_symbols & set(self.meaning), key=str):
            factor = sp.diff(expression, average)
            covariance, integrand = self.meaning[average]
            base, by = self.origin[average]
            for a, b in combinations_with_replacement(range(len(covariance)), 2):
                rate = sp.diff(covariance[a][b], symbol)
                if rate != 0:
                    half = sp.Rational(1, 2) if a == b else 1
                    inner = sp.diff(integrand, UNIT[a], UNIT[b])
                    result += factor * half * rate * target.average(inner, covariance, (base, (*by, a, b)))
        return result

    def program(self, outputs: Iterable[tuple[str, sp.Expr]]) -> Program:
        """The outputs with the blocks they need, renumbered so that nothing unused is evaluated."""
        outputs = tuple(outputs)
        used = set().union(*(e.free_symbols for _, e in outputs)) if outputs else set()
        blocks: list[Block] = []
        rename: dict[sp.Symbol, sp.Symbol] = {}
        for covariance, entries in self.table.items():
            kept = [(s, e) for e, s in entries.items() if s in used]
            if kept:
                new = [(sp.Symbol(f"E{len(blocks)}_{i}", real=True), e) for i, (_, e) in enumerate(kept)]
                rename |= {old: fresh for (old, _), (fresh, _) in zip(kept, new, strict=True)}
                blocks.append(Block(covariance, tuple(new)))
        return Program(tuple((n, e.xreplace(rename)) for n, e in outputs), tuple(blocks))


def _same_sign(function: sp.Expr) -> sp.Expr:
    """One way of writing: sigmoid(-x) as 1 - sigmoid(x), softmax logits sorted, (y - x)^2 as (x - y)^2.

    Equal averages then look equal, and are made once.
    """
    rows = {}
    for entry in function.atoms(softmax):
        j, *logits = entry.args
        order = sorted(range(len(logits)), key=lambda i: sp.default_sort_key(logits[i]))
        position = int(j) if int(j) > len(logits) else order.index(int(j) - 1) + 1
        rows[entry] = softmax(sp.Integer(position), *(logits[i] for i in order))
    function = function.xreplace(rows)
    backwards = [a for a in function.atoms(sigmoid) if a.args[0].could_extract_minus_sign()]
    function = function.xreplace({a: 1 - sigmoid(-a.args[0]) for a in backwards})
    even = [p for p in function.atoms(sp.Pow) if p.exp.is_even and p.base.could_extract_minus_sign()]
    return function.xreplace({p: sp.Pow(-p.base, p.exp) for p in even})


def wick(integrand: sp.Expr, covariance: Sequence[Sequence[sp.Expr]]) -> sp.Expr:
    """Exact mean of a polynomial of centred Gaussian variables u1 .. un (Isserlis' theorem)."""
    size = len(covariance)
    memo: dict[tuple[int, ...], sp.Expr] = {(0,) * size: sp.Integer(1)}

    def moment(powers: tuple[int, ...]) -> sp.Expr:
        if sum(powers) % 2:
            return sp.Integer(0)
        if powers not in memo:
            a = next(i for i, p in enumerate(powers) if p)
            rest = tuple(p - (i == a) for i, p in enumerate(powers))
            memo[powers] = sp.expand(
                sum(
                    rest[b] * covariance[a][b] * moment(tuple(p - (i == b) for i, p in enumerate(rest)))
                    for b in range(size)
                    if rest[b]
                )
            )
        return memo[powers]

    polynomial = sp.Poly(sp.expand(integrand), *UNIT[:size], domain="EX")
    return sp.expand(sum(c * moment(powers) for powers, c in polynomial.terms()))


class Statics:
    """Population loss, couplings and noise contractions of a model.

    Attributes
    ----------
    order_parameters : tuple of Word
        The canonical words of length two that are overlaps of the matrices.
    """

    def __init__(self, model: Model, flow: MatrixFlow) -> None:
        self.model, self.flow = model, flow
        self.alphabet: Alphabet = flow.alphabet
        self.covariance = sp.Matrix(model.tokens, model.tokens, lambda i, j: sp.Rational(model.covariance[i][j]))
        self.letters = [self.alphabet.index[name] for name in model.letters]
        pairs = [(k, m) for k in self.letters for l in self.letters for m in (self.alphabet.adjoint[l], l)]
        canonical = {self.alphabet.canonical(p) for p in pairs}
        self.order_parameters: tuple[Word, ...] = tuple(sorted(canonical))
        self.averages = Averages()

    # -- order parameters -----------------------------------------------------------------------------

    def symbol(self, word: Word) -> sp.Symbol:
        """The symbol of an order parameter: ``q_1_2`` for the first and second letters."""
        return sp.Symbol("q_" + "_".join(str(k + 1) for k in self.alphabet.canonical(word)), real=True)

    @cached_property
    def symbols(self) -> tuple[sp.Symbol, ...]:
        """Symbols of all order parameters."""
        return tuple(self.symbol(w) for w in self.order_parameters)

    def entry_covariance(self, a: Entry, b: Entry) -> sp.Expr:
        """Covariance of two pre-activations, ``C_ii' C_jj' Omega_kl + C_ij' C_ji' Psi_kl``."""
        (k, i, j), (l, p, q) = a, b
        c = self.covariance
        omega, psi = self.symbol((k, self.alphabet.adjoint[l])), self.symbol((k, l))
        return c[i, p] * c[j, q] * omega + c[i, q] * c[j, p] * psi

    def form_covariance(self, a: Mapping[Entry, sp.Expr], b: Mapping[Entry, sp.Expr]) -> sp.Expr:
        """Covariance of two linear combinations of pre-activations."""
        return sp.expand(sum(x * y * self.entry_covariance(e, f) for e, x in a.items() for f, y in b.items()))

    # -- the loss and what follows from it ------------------------------------------------------------

    @cached_property
    def entries(self) -> dict[sp.Symbol, Entry]:
        """The pre-activation symbols that the loss reads."""
        return {
            preactivation_symbol(name, i, j): (self.alphabet.index[name], i - 1, j - 1)
            for name, i, j in self.model.preactivations
        }

    @cached_property
    def terms(self) -> tuple[LinearTerm, ...]:
        """The loss as a sum of functions of few linear combinations of pre-activations."""
        terms = split_terms(self.model.loss_expression, self.entries, UNIT)
        return tuple(LinearTerm(_same_sign(t.function), t.forms) for t in terms)

    def _covariance_of(self, forms: Sequence[Mapping[Entry, sp.Expr]]) -> tuple[tuple[sp.Expr, ...], ...]:
        return tuple(tuple(self.form_covariance(a, b) for b in forms) for a in forms)

    @cached_property
    def potential(self) -> sp.Expr:
        """The population loss Phi, in order parameters, parameters and averages."""
        return sum((self.averages.average(t.function, self._covariance_of(t.forms)) for t in self.terms), sp.Integer(0))

    @cached_property
    def couplings(self) -> dict[str, sp.Expr]:
        """``G_kl = [grad Phi]_kl``, ``dPhi = sum_kl G_kl dq_kl`` over ordered pairs, for tied matrices."""
        students = {self.alphabet.index[name] for name in self.model.students}
        result = {}
        for k in self.letters:
            for l in self.letters:
                if k <= l and k in students:
                    share = 1 if k == l else sp.Rational(1, 2)
                    slope = self.averages.derivative(self.potential, self.symbol((k, l)))
                    result[coupling_name("G", k, l)] = share * slope
        return result

    @cached_property
    def noise(self) -> dict[str, sp.Expr]:
        """``N_kl = sum C_ii' C_jj' E[Lambda^k_ij Lambda^l_i'j']``, ``Lambda_ij = l_ij + l_ji``, tied matrices."""
        students = [self.alphabet.index[name] for name in self.model.students]
        return {coupling_name("N", k, l): self._contraction(k, l) for k in students for l in students if k <= l}

    def _contraction(self, k: int, l: int) -> sp.Expr:
        """``2 (N + Nhat)_kl`` as an average over the joint variables of each pair of terms."""
        integrands: dict[tuple[tuple[tuple[Entry, sp.Expr], ...], ...], sp.Expr] = {}
        for a in self.terms:
            for b in self.terms:
                weights = [[self._noise_weight(k, l, f, g) for g in b.forms] for f in a.forms]
                if all(w == 0 for row in weights for w in row):
                    continue
                forms, into_a, into_b = common_forms(a.forms, b.forms, UNIT)
                left = [sp.diff(a.function, u).xreplace(into_a) for u in UNIT[: len(a.forms)]]
                right = [sp.diff(b.function, u).xreplace(into_b) for u in UNIT[: len(b.forms)]]
                integrand = sum(weights[i][j] * x * y for i, x in enumerate(left) for j, y in enumerate(right))
                key = tuple(tuple(f.items()) for f in forms)
                integrands[key] = integrands.get(key, sp.Integer(0)) + integrand
        return sum(
            (self.averages.average(e, self._covariance_of([dict(f) for f in key])) for key, e in integrands.items()),
            sp.Integer(0),
        )

    def _noise_weight(self, k: int, l: int, f: Mapping[Entry, sp.Expr], g: Mapping[Entry, sp.Expr]) -> sp.Expr:
        c = self.covariance
        return 2 * sum(
            x * y * (c[i, p] * c[j, q] + c[i, q] * c[j, p])
            for (m, i, j), x in f.items()
            for (n, p, q), y in g.items()
            if m == k and n == l
        )

    # -- programs to be emitted -----------------------------------------------------------------------

    @cached_property
    def coupling_program(self) -> Program:
        """The couplings G."""
        return self.averages.program(self.couplings.items())

    @cached_property
    def noise_program(self) -> Program:
        """The noise contractions N."""
        return self.averages.program(self.noise.items())

    @cached_property
    def potential_program(self) -> Program:
        """The population loss."""
        return self.averages.program([("Phi", self.potential)])

    @cached_property
    def coupling_slope_program(self) -> Program:
        """Derivatives of the couplings."""
        return self._slope_program(self.couplings)

    @cached_property
    def noise_slope_program(self) -> Program:
        """Derivatives of the noise contractions; empty where they would be averages over too many variables."""
        if any(block.dimension > MOST_SLOPE_VARIABLES for block in self.noise_program.blocks):
            return Program((), ())
        return self._slope_program(self.noise)

    def _slope_program(self, expressions: Mapping[str, sp.Expr]) -> Program:
        """Derivatives of expressions with respect to every order parameter, row by row."""
        target = Averages("D")
        outputs = []
        for name, expression in expressions.items():
            for symbol in self.symbols:
                outputs.append((f"d{name}_{symbol}", self.averages.derivative(expression, symbol, target)))
        joint = Averages()
        meaning = self.averages.meaning | target.meaning
        final = []
        for name, expression in outputs:
            used = [s for s in meaning if s in expression.free_symbols]
            known = {s: joint.average(meaning[s][1], meaning[s][0]) for s in used}
            final.append((name, expression.xreplace(known)))
        return joint.program(final)
