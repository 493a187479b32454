"""Equations as LaTeX that a person can read."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import sympy as sp
from sympy.printing.latex import LatexPrinter

if TYPE_CHECKING:
    from tracewords.derive.gaussian import Law
    from tracewords.derive.system import System

TERMS_A_LINE = 4
COUPLINGS = {"gamma": r"\gamma", "kappa": r"\kappa"}


class _Printer(LatexPrinter):
    """Custom functions, order parameters and Gaussian variables in the field's symbols."""

    def _print_sigmoid(self, e: sp.Expr, exp: str | None = None) -> str:
        inner = rf"\sigma\left({self._print(e.args[0])}\right)"
        return inner if exp is None else rf"{inner}^{{{exp}}}"

    def _print_softmax(self, e: sp.Expr, exp: str | None = None) -> str:
        rest = ", ".join(self._print(a) for a in e.args[1:])
        inner = rf"A_{{{e.args[0]}}}\left({rest}, 0\right)"
        return inner if exp is None else rf"{inner}^{{{exp}}}"

    def _print_Symbol(self, e: sp.Symbol, style: str = "plain") -> str:
        name = e.name
        if name.startswith("q_"):
            return f"q_{{{name[2:].replace('_', '')}}}" if len(name) == 5 else f"q_{{{name[2:].replace('_', ',')}}}"
        if name.startswith("u") and name[1:].isdigit():
            return f"u_{{{name[1:]}}}"
        plain = super()._print_Symbol(e)
        # a name of several letters would read as a product
        return rf"\mathrm{{{plain}}}" if len(plain) > 1 and plain.isalpha() else plain


def expression_latex(e: sp.Expr) -> str:
    """A sympy expression in the notation of the documentation."""
    return _Printer().doprint(e)


def coupling_latex(name: str) -> str:
    """``G12`` as ``G_{12}``; parameters by their Greek letter."""
    if name in COUPLINGS:
        return COUPLINGS[name]
    if name[:1] in "GOPTLNMH" and name[1:2].isdigit():
        symbol = {"O": r"G^{\Omega}", "P": r"G^{\Psi}", "L": r"\lambda", "M": r"\hat N"}.get(name[0], name[0])
        return f"{symbol}_{{{name[1:].replace('_', ',')}}}"
    return rf"\mathrm{{{name}}}"


def word_latex(system: System, text: str) -> str:
    """A moment as mu with its letters as index: numbers of matrices, composites by what they are."""
    model = system.model
    number = {name: str(i + 1) for i, name in enumerate(model.letters)}
    for name, matrix in model.students.items():
        if matrix.kind == "untied":
            number |= {f"{name}uu": f"A_{{{number[name]}}}", f"{name}vv": f"B_{{{number[name]}}}"}
    letters = [
        number.get(n.rstrip("'"), n.rstrip("'")) + (r"^{\top}" if n.endswith("'") else "") for n in text.split(".")
    ]
    return rf"\mu_{{{(',' if len(model.letters) > 9 else '').join(letters)}}}"


def _number(weight: Fraction) -> str:
    if weight == 1:
        return ""
    if weight.denominator == 1:
        return f"{weight.numerator}\\,"
    return rf"\tfrac{{{weight.numerator}}}{{{weight.denominator}}}\,"


def _sum(terms: Iterable[tuple[Fraction, str]]) -> list[str]:
    pieces = []
    for weight, symbol in terms:
        sign = "-" if weight < 0 else "+"
        pieces.append(f"{sign} {_number(abs(weight))}{symbol}")
    return pieces


def coupling_lines(system: System) -> list[tuple[str, str]]:
    """Definitions, left and right side: laws of the Gaussian variables, the functions averaged, the couplings."""
    averages = system.statics.averages
    couplings = system.statics.couplings
    used = set().union(*(e.free_symbols for e in couplings.values())) & set(averages.meaning)
    stand_in: dict[sp.Symbol, sp.Symbol] = {}
    functions: dict[tuple[Law, sp.Expr], str] = {}
    several = len({(averages.meaning[s][0], averages.origin[s][0]) for s in used}) > 1
    lines = []
    for symbol in sorted(used, key=str):
        law = averages.meaning[symbol][0]
        base, by = averages.origin[symbol]
        arguments = ", ".join(f"u_{{{i + 1}}}" for i in range(len(law)))
        if (law, base) not in functions:
            name = f"f_{{{len(functions) + 1}}}" if several else "f"
            functions[law, base] = name
            rows = r" \\ ".join(" & ".join(expression_latex(x) for x in row) for row in law.covariance)
            centre = "0" if law.centred else rf"({', '.join(map(expression_latex, law.mean))})"
            normal = rf"\mathcal{{N}}\!\left({centre}, \begin{{pmatrix}} {rows} \end{{pmatrix}}\right)"
            lines.append((rf"{name}({arguments})", rf"{expression_latex(base)}, \quad ({arguments}) \sim {normal}"))
        partial = "".join(rf"\partial_{{{i + 1}}}" for i in by)
        stand_in[symbol] = sp.Symbol(rf"\mathbb{{E}}\left[{partial} {functions[law, base]}\right]")
    lines += [(coupling_latex(name), expression_latex(e.xreplace(stand_in))) for name, e in couplings.items()]
    return lines


def equation_lines(system: System, loops: bool = False) -> list[tuple[str, list[str]]]:
    """For each word the left side and the pieces of the right side, each with its sign."""
    lines = []
    for word, terms in system.equations(loops).items():
        pieces = []
        for weight, coupling, factors in terms:
            symbol = coupling_latex(coupling)
            if coupling[0] in "NM" and coupling[1:2].isdigit():
                symbol = r"\kappa\," + symbol
            moments = r"\,".join(word_latex(system, f) for f in factors)
            pieces.append((weight, rf"{symbol}\,{moments}" if moments else symbol))
        lines.append((r"\dot" + word_latex(system, word), _sum(pieces)))
    return lines


def system_latex(system: System, loops: bool = False) -> str:
    """Definitions, couplings and equations as ``align`` environments (needs amsmath, amssymb)."""
    out = [
        f"% {system.model.name}, order {system.order}; time {system.flow.time} = {system.flow.time_unit}",
        "% mu_{12..} = tr(S_1 S_2 ..), tr = Tr/d; "
        + ", ".join(f"S_{i + 1} = {n}" for i, n in enumerate(system.model.letters)),
        r"\begin{align}",
    ]
    rows = [f"  {left} &= {right}" for left, right in coupling_lines(system)]
    out += [" \\\\\n".join(rows), r"\end{align}", r"\begin{align}"]
    rows = []
    for left, pieces in equation_lines(system, loops):
        if not pieces:
            rows.append(f"  {left} &= 0")
            continue
        chunks = [pieces[i : i + TERMS_A_LINE] for i in range(0, len(pieces), TERMS_A_LINE)]
        rows.append(f"  {left} &= " + " ".join(chunks[0]))
        rows += [r"  &\quad " + " ".join(chunk) for chunk in chunks[1:]]
    out += [" \\\\\n".join(rows), r"\end{align}"]
    return "\n".join(out) + "\n"
