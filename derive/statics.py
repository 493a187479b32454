"""Statics: the population loss of a model, its couplings, multipliers and noise, in the order parameters.

In high dimension the pre-activations are jointly Gaussian with covariance
``C_ii' C_jj' Omega_kl + C_ij' C_ji' Psi_kl``, ``Omega_kl = tr(S_k S_l')``, ``Psi_kl = tr(S_k S_l)``, and mean
``C_ij m_k``, ``m_k = d^{-1/2} Tr S_k``, for matrices that are not centred.  The loss is split into terms that see few
linear combinations of them; everything else is derivatives of its average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import sympy as sp

from tracewords.derive.flow import coupling_name
from tracewords.derive.flow_models import composites, gradient_terms, model_alphabet, pair_couplings, position
from tracewords.derive.formula import parameter_symbol, preactivation_symbol, trace_symbol
from tracewords.derive.functions import sigmoid, softmax
from tracewords.derive.gaussian import UNIT, Averages, Law, Program
from tracewords.derive.linear import Entry, LinearTerm, common_forms, split_terms
from tracewords.derive.model import Model
from tracewords.derive.words import Word

# slopes of noise averages over more variables take minutes to derive, and only the Jacobian uses them
MOST_SLOPE_VARIABLES = 4
Form = Mapping[Entry, sp.Expr]


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


class Statics:
    """Population loss, couplings, multipliers and noise contractions of a model.

    Attributes
    ----------
    order_parameters : tuple of Word
        The overlaps of the matrices, and of the values, that the loss depends on: words of length two.
    arguments : tuple of Word
        All moments that couplings depend on: the order parameters, and what the multipliers need besides.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.alphabet = model_alphabet(model)
        self.covariance = sp.Matrix(model.tokens, model.tokens, lambda i, j: sp.Rational(model.covariance[i][j]))
        self.averages = Averages()
        words = {w for k in model.scores for l in model.scores for _, w in pair_couplings(model, self.alphabet, k, l)}
        values = {self._value_word(*pair) for pair in model.traces}
        self.order_parameters: tuple[Word, ...] = (*sorted(words), *sorted(values))
        self.students = tuple(name for name, m in model.students.items() if m.scores)

    # -- order parameters -----------------------------------------------------------------------------

    def symbol(self, word: Word) -> sp.Symbol:
        """The symbol of a moment: ``q_1_2`` for the first and second letters."""
        return sp.Symbol("q_" + "_".join(str(k + 1) for k in self.alphabet.canonical(word)), real=True)

    def _value_word(self, first: str, second: str) -> Word:
        a, b = self.alphabet.index[first], self.alphabet.index[second]
        return self.alphabet.canonical((a, self.alphabet.adjoint[b]))

    @cached_property
    def arguments(self) -> tuple[Word, ...]:
        """All moments that couplings depend on."""
        more: dict[Word, None] = {}
        for name in self.multipliers:
            diagonal, linear = self._constraint(name)
            for word in (*diagonal, *(w for _, w in linear)):
                if word:
                    more.setdefault(self.alphabet.canonical(word))
        return (*self.order_parameters, *sorted(w for w in more if w not in self.order_parameters))

    @cached_property
    def symbols(self) -> tuple[sp.Symbol, ...]:
        """Symbols of the arguments."""
        return tuple(map(self.symbol, self.arguments))

    def entry_covariance(self, a: Entry, b: Entry) -> sp.Expr:
        """Covariance of two pre-activations, ``C_ii' C_jj' Omega_kl + C_ij' C_ji' Psi_kl``."""
        (k, i, j), (l, p, q) = a, b
        c = self.covariance
        omega, psi = self.symbol((k, self.alphabet.adjoint[l])), self.symbol((k, l))
        return c[i, p] * c[j, q] * omega + c[i, q] * c[j, p] * psi

    def entry_mean(self, a: Entry) -> sp.Expr:
        """Mean of a pre-activation, ``C_ij m_k`` where it is not centred."""
        k, i, j = a
        name = self.alphabet.names[k]
        if self.model.matrices[name].centred:
            return sp.Integer(0)
        return self.covariance[i, j] * parameter_symbol(f"m_{name}")

    def law(self, forms: Sequence[Form]) -> Law:
        """Joint law of linear combinations of pre-activations."""

        def covariance(a: Form, b: Form) -> sp.Expr:
            return sp.expand(sum(x * y * self.entry_covariance(e, f) for e, x in a.items() for f, y in b.items()))

        means = (sp.expand(sum(x * self.entry_mean(e) for e, x in a.items())) for a in forms)
        return Law(tuple(tuple(covariance(a, b) for b in forms) for a in forms), tuple(means))

    # -- the loss and its derivatives -----------------------------------------------------------------

    @cached_property
    def terms(self) -> tuple[LinearTerm, ...]:
        """The loss as a sum of functions of few linear combinations of pre-activations."""
        entries = {
            preactivation_symbol(name, i, j): (self.alphabet.index[name], i - 1, j - 1)
            for name, i, j in self.model.preactivations
        }
        traces = {trace_symbol(*pair): self.symbol(self._value_word(*pair)) for pair in self.model.traces}
        terms = split_terms(self.model.loss_expression.xreplace(traces), entries, UNIT)
        return tuple(LinearTerm(_same_sign(t.function), t.forms) for t in terms)

    @cached_property
    def potential(self) -> sp.Expr:
        """The population loss Phi, in order parameters, parameters and averages."""
        return sum((self.averages.average(t.function, self.law(t.forms)) for t in self.terms), sp.Integer(0))

    @cached_property
    def gradient(self) -> dict[str, sp.Expr]:
        """Components of grad Phi by ordered pairs: G, or O and P, of score matrices; T of values."""
        result: dict[str, sp.Expr] = {}
        model = self.model
        for k in self.students:
            for l in model.scores:
                for name, word in pair_couplings(model, self.alphabet, k, l):
                    if name not in result:
                        share = 1 if k == l else sp.Rational(1, 2)
                        result[name] = share * self.averages.derivative(self.potential, self.symbol(word))
        for first, second in model.traces:
            if first in model.students or second in model.students:
                share = 1 if first == second else sp.Rational(1, 2)
                slope = self.averages.derivative(self.potential, self.symbol(self._value_word(first, second)))
                result[coupling_name("T", position(model, first), position(model, second))] = share * slope
        return result

    @cached_property
    def means(self) -> tuple[str, ...]:
        """Matrices whose mean m the loss sees."""
        symbols = {s for t in self.terms for mean in self.law(t.forms).mean for s in mean.free_symbols}
        return tuple(name for name in self.model.scores if parameter_symbol(f"m_{name}") in symbols)

    @cached_property
    def mean_gradient(self) -> dict[str, sp.Expr]:
        """``dPhi/dm_k`` of the students whose mean the loss sees."""
        moving = [name for name in self.means if name in self.students]
        return {
            f"H{position(self.model, name) + 1}": self.averages.derivative(
                self.potential, parameter_symbol(f"m_{name}")
            )
            for name in moving
        }

    @cached_property
    def mean_hessian(self) -> dict[str, sp.Expr]:
        """``d2Phi/dm_k dm_l``, row by row."""
        moving = [name for name in self.means if name in self.students]
        return {
            f"H{position(self.model, a) + 1}_{position(self.model, b) + 1}": self.averages.derivative(
                self.mean_gradient[f"H{position(self.model, a) + 1}"], parameter_symbol(f"m_{b}")
            )
            for a in moving
            for b in moving
        }

    # -- multipliers that keep the means on the critical manifold ---------------------------------------

    @cached_property
    def multipliers(self) -> dict[str, str]:
        """Students whose mean the loss sees, with the name of their multiplier."""
        return {name: f"L{position(self.model, name) + 1}" for name in self.means if name in self.students}

    @cached_property
    def mean_directions(self) -> sp.Matrix:
        """Columns: a basis of the combinations of the students' means that the loss sees."""
        moving = list(self.multipliers)
        rows = []
        for term in self.terms:
            for mean in self.law(term.forms).mean:
                rows.append([sp.diff(mean, parameter_symbol(f"m_{name}")) for name in moving])
        return sp.Matrix.hstack(*sp.Matrix(rows).T.columnspace()) if rows else sp.zeros(len(moving), 0)

    def _constraint(self, name: str) -> tuple[list[Word], list[tuple[sp.Expr, Word]]]:
        """Words of D_k = tr U U' + tr V V' (or 1), and terms (coupling, word) of s_k."""
        index = self.alphabet.index
        terms = gradient_terms(self.model, self.alphabet, name)
        value = {c: sp.Symbol(c) for _, c, _ in terms}
        if self.model.students[name].kind != "untied":
            return [()], [(w * value[c], (x,)) for w, c, x in map(_rational, terms)]
        a, b = (index[n] for n in composites(name))
        linear: list[tuple[sp.Expr, Word]] = []
        for w, c, x in map(_rational, terms):
            linear += [(w * value[c], (x, b)), (w * value[c], (a, x))]
        return [(a,), (b,)], linear

    @cached_property
    def multiplier_values(self) -> dict[str, sp.Expr]:
        """The multipliers: ``lambda = R x``, ``R' (D R x + s) = 0`` with R the visible combinations of means."""
        if not self.multipliers:
            return {}
        gradient = {sp.Symbol(name): e for name, e in self.gradient.items()}

        def moment(word: Word) -> sp.Expr:
            return self.symbol(word) if word else sp.Integer(1)

        constraints = [self._constraint(name) for name in self.multipliers]
        diagonal = sp.diag(*(sum(map(moment, words)) for words, _ in constraints))
        source = sp.Matrix([sum(c * moment(w) for c, w in linear) for _, linear in constraints])
        directions = self.mean_directions
        inner = (directions.T * diagonal * directions).inv()
        solution = -directions * inner * (directions.T * source)
        return {c: e.xreplace(gradient) for c, e in zip(self.multipliers.values(), solution, strict=True)}

    @cached_property
    def couplings(self) -> dict[str, sp.Expr]:
        """Everything that multiplies moments in the equations, but for parameters."""
        return {**self.gradient, **self.multiplier_values}

    # -- noise ----------------------------------------------------------------------------------------

    @cached_property
    def noise(self) -> dict[str, sp.Expr]:
        """``N_kl = sum C_ii' C_jj' E[l^k_ij l^l_i'j']``, ``M_kl`` with ``C_ij' C_ji'``; tied pairs: N is 2 (N + M)."""
        kinds = {name: m.kind for name, m in self.model.students.items()}
        result = {}
        for i, k in enumerate(self.students):
            for l in self.students[i:]:
                numbers = position(self.model, k), position(self.model, l)
                if kinds[k] == kinds[l] == "tied":
                    result[coupling_name("N", *numbers)] = self._contraction(k, l, 2, 2)
                else:
                    result[coupling_name("N", *numbers)] = self._contraction(k, l, 1, 0)
                    result[coupling_name("M", *numbers)] = self._contraction(k, l, 0, 1)
        return result

    def _contraction(self, k: str, l: str, straight: int, crossed: int) -> sp.Expr:
        """A contraction as an average over the joint variables of each pair of terms."""
        integrands: dict[tuple[tuple[tuple[Entry, sp.Expr], ...], ...], sp.Expr] = {}
        for a in self.terms:
            for b in self.terms:
                weights = [[self._noise_weight(k, l, f, g, straight, crossed) for g in b.forms] for f in a.forms]
                if all(w == 0 for row in weights for w in row):
                    continue
                forms, into_a, into_b = common_forms(a.forms, b.forms, UNIT)
                left = [sp.diff(a.function, u).xreplace(into_a) for u in UNIT[: len(a.forms)]]
                right = [sp.diff(b.function, u).xreplace(into_b) for u in UNIT[: len(b.forms)]]
                integrand = sum(weights[i][j] * x * y for i, x in enumerate(left) for j, y in enumerate(right))
                key = tuple(tuple(f.items()) for f in forms)
                integrands[key] = integrands.get(key, sp.Integer(0)) + integrand
        averages = (self.averages.average(e, self.law([dict(f) for f in key])) for key, e in integrands.items())
        return sum(averages, sp.Integer(0))

    def _noise_weight(self, k: str, l: str, f: Form, g: Form, straight: int, crossed: int) -> sp.Expr:
        c, (a, b) = self.covariance, (self.alphabet.index[k], self.alphabet.index[l])
        return sum(
            x * y * (straight * c[i, p] * c[j, q] + crossed * c[i, q] * c[j, p])
            for (m, i, j), x in f.items()
            for (n, p, q), y in g.items()
            if m == a and n == b
        )

    # -- programs to be emitted -----------------------------------------------------------------------

    def program(self, expressions: Mapping[str, sp.Expr]) -> Program:
        """A program of expressions."""
        return self.averages.program(expressions.items())

    @cached_property
    def programs(self) -> dict[str, Program]:
        """Everything that a solver evaluates, by name."""
        noise = self.program(self.noise)
        wide = any(block.dimension > MOST_SLOPE_VARIABLES for block in noise.blocks)
        return {
            "couplings": self.program(self.couplings),
            "noise": noise,
            "potential": self.program({"Phi": self.potential}),
            "mean_gradient": self.program(self.mean_gradient),
            "mean_hessian": self.program(self.mean_hessian),
            "coupling_slopes": self._slopes(self.couplings),
            "noise_slopes": Program((), ()) if wide else self._slopes(self.noise),
        }

    def _slopes(self, expressions: Mapping[str, sp.Expr]) -> Program:
        """Derivatives of expressions with respect to every argument, row by row."""
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


def _rational(term: tuple[object, str, int]) -> tuple[sp.Rational, str, int]:
    weight, coupling, letter = term
    return sp.Rational(weight), coupling, letter
