"""`System`: the one shape of equations that everything after derivation reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, lru_cache

import networkx as nx
import sympy as sp

from tracewords.derive.flow import MatrixFlow
from tracewords.derive.flow_models import model_flow
from tracewords.derive.gaussian import Law
from tracewords.derive.hierarchy import Hierarchy, derive
from tracewords.derive.model import Model
from tracewords.derive.statics import Statics
from tracewords.derive.words import Word
from tracewords.errors import ModelError


@lru_cache(maxsize=16)
def _statics(model: Model) -> Statics:
    """The statics of a model, which do not depend on the order."""
    return Statics(model)


class System:
    """Moment equations ``d mu_a / dt = sum weight * coupling * product of moments`` of a model.

    Parameters
    ----------
    model : Model
    order : int
        Words up to this order evolve; those of the next order are the boundary.
    flow : MatrixFlow, optional
        A flow of one's own; its drift may name the model's couplings, its parameters ``gamma`` and those of the loss.
    reading : mapping of matrix to word, optional
        What each of the model's matrices is in the letters of such a flow, e.g. ``{"S1": "W.W'"}``.

    Attributes
    ----------
    hierarchy : Hierarchy
        The sparse tables of exact weights.
    statics : Statics
        Couplings, noise contractions and potential as expressions.
    """

    def __init__(
        self,
        model: Model,
        order: int,
        flow: MatrixFlow | None = None,
        reading: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.order = model, order
        self.statics = _statics(model)
        self.reading = dict(reading or {})
        self.flow: MatrixFlow = flow or model_flow(model, self.statics.alphabet, self.statics.multipliers)
        self.hierarchy: Hierarchy = derive(self.flow, order)
        self._check_couplings()

    def _check_couplings(self) -> None:
        known = {*self.statics.couplings, *self.model.parameters}
        for name in self.hierarchy.drift.names:
            if name not in known:
                raise ModelError("flow: coupling", name, f"one of {', '.join(sorted(known))}")
        missing = [w for w in self.arguments if w not in self.words]
        if missing:
            raise ModelError("order", self.order, f"an order that holds {missing[0]}, on which the couplings depend")

    def read(self, word: Word) -> str:
        """A word of the model's matrices in the letters of the flow, canonical."""
        own, alphabet = self.statics.alphabet, self.flow.alphabet
        result: Word = ()
        for k in word:
            name = own.names[k]
            base = name.removesuffix("'")
            part = alphabet.parse(self.reading.get(base, base), closed=False)
            result += alphabet.star(part) if name != base else part
        if not alphabet.closed(result):
            raise ModelError("reading", alphabet.text(result), "words that make closed paths")
        return alphabet.text(alphabet.canonical(result))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The moments that couplings depend on."""
        return tuple(map(self.read, self.statics.arguments))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The moments that evolve, in state order."""
        return tuple(map(self.flow.alphabet.text, self.hierarchy.words()))

    @cached_property
    def boundary(self) -> tuple[str, ...]:
        """The moments beyond the order that the equations need."""
        return tuple(map(self.flow.alphabet.text, self.hierarchy.words(outer=True)))

    @property
    def order_parameters(self) -> tuple[str, ...]:
        """The overlaps on which the couplings depend."""
        return tuple(map(self.read, self.statics.order_parameters))

    @property
    def couplings(self) -> dict[str, sp.Expr]:
        """Couplings by name; symbols ``E..`` in them are Gaussian averages, see `averages`."""
        return dict(self.statics.couplings)

    def coupling_text(self, name: str) -> str:
        """A coupling as text, its averages as ``E[d1 d2 (f)]`` with f a function of Gaussian u1, u2, .."""
        return self._text(self.statics.couplings[name])

    def potential_text(self) -> str:
        """The population loss Phi as text, in the same form."""
        return self._text(self.statics.potential)

    def _text(self, expression: sp.Expr) -> str:
        averages = self.statics.averages
        known = sorted(expression.free_symbols & set(averages.meaning), key=str)
        text, where = str(expression), []
        for symbol in reversed(known):
            function, by = averages.origin[symbol]
            derivative = "".join(f"d{i + 1} " for i in by)
            text = text.replace(symbol.name, f"E[{derivative}({function})]")
            law = averages.meaning[symbol][0]
            where.append("cov(u) = " + str([list(row) for row in law.covariance]))
            where += [] if law.centred else ["mean(u) = " + str(list(law.mean))]
        return ", ".join([text, *dict.fromkeys(where)])

    @property
    def averages(self) -> dict[sp.Symbol, tuple[Law, sp.Expr]]:
        """What each average stands for: law of u1, u2, .. and integrand."""
        return dict(self.statics.averages.meaning)

    @property
    def terms(self) -> int:
        """Number of terms at vanishing learning rate."""
        return len(self.hierarchy.drift)

    def __len__(self) -> int:
        return self.hierarchy.size

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """What the factor columns of the term tables index: words, boundary, then ``1``."""
        return (*self.words, *self.boundary, "1")

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The word graph: an edge from each moment to every moment whose equation it feeds.

        Node attributes: ``order``, ``evolves``.  Edge attribute ``terms``: list of
        ``(kind, coupling, weight, other factor)``, kind ``drift`` or ``loop``.  The graph is the sparse table
        of terms seen as a graph; it is made on first use, since at high order it is much larger.
        """
        graph = nx.DiGraph(model=self.model.name, order=self.order)
        alphabet = self.flow.alphabet
        for name in self.factors:
            word = alphabet.parse(name)
            graph.add_node(name, order=Fraction(alphabet.weight(word), alphabet.unit), evolves=False)
        for name in self.words:
            graph.nodes[name]["evolves"] = True
        for kind, table in (("drift", self.hierarchy.drift), ("loop", self.hierarchy.loops)):
            for n in range(len(table)):
                first, second = self.factors[table.first[n]], self.factors[table.second[n]]
                entry = (kind, table.names[table.coupling[n]], table.weight(n))
                target = self.words[table.row[n]]
                for source, other in {(first, second), (second, first)}:
                    if source != "1" or other == "1":
                        if not graph.has_edge(source, target):
                            graph.add_edge(source, target, terms=[])
                        graph.edges[source, target]["terms"].append((*entry, other))
        return graph

    def subs(self, **parameters: float) -> System:
        """The same system with other parameter values."""
        return System(self.model.with_parameters(**parameters), self.order)

    def equations(self, loops: bool = False) -> dict[str, list[tuple[Fraction, str, tuple[str, ...]]]]:
        """Right sides in plain data: ``{word: [(weight, coupling, factors), ..]}``."""
        result: dict[str, list[tuple[Fraction, str, tuple[str, ...]]]] = {w: [] for w in self.words}
        for table in (self.hierarchy.drift, self.hierarchy.loops) if loops else (self.hierarchy.drift,):
            for n in range(len(table)):
                names = (self.factors[table.first[n]], self.factors[table.second[n]])
                factors = tuple(x for x in names if x != "1")
                result[self.words[table.row[n]]].append((table.weight(n), table.names[table.coupling[n]], factors))
        return result

    def latex(self, loops: bool = False) -> str:
        """Couplings and equations as a LaTeX fragment."""
        from tracewords.derive.latex import system_latex

        return system_latex(self, loops)

    def __str__(self) -> str:
        lines = [
            f"{self.model.name}, order {self.order}: {len(self)} moments, {self.terms} terms, "
            f"time {self.flow.time} = {self.flow.time_unit}",
            f"order parameters  {', '.join(self.order_parameters)}",
            f"couplings         {', '.join(self.couplings)}",
        ]
        for word, terms in list(self.equations().items())[:6]:
            grouped: dict[str, list[str]] = defaultdict(list)
            for weight, coupling, factors in terms:
                size = "" if abs(weight) == 1 else f"{abs(weight)} "
                moment = " ".join(f"tr({f})" for f in factors) or "1"
                grouped[coupling].append(f"{'-' if weight < 0 else '+'} {size}{coupling} {moment}")
            right = " ".join(t for group in grouped.values() for t in group) or "0"
            lines.append(f"d tr({word})/d{self.flow.time} = {right}")
        if len(self) > 6:
            lines.append(f"... and {len(self) - 6} more")
        return "\n".join(lines)

    __repr__ = __str__
