"""System to source text, through the templates.  Pure: the same model gives the same bytes everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import sympy as sp

from tracewords import __version__
from tracewords.derive.dop853 import integrator_context
from tracewords.derive.formula import preactivation_symbol, trace_symbol
from tracewords.derive.gaussian import UNIT, Program
from tracewords.derive.hierarchy import Hierarchy, Terms
from tracewords.derive.printing import CText, NumPyText, StraightLine, _FloatPrinter, parameter_text, straight_line
from tracewords.derive.system import System

UNROLL_LIMIT = 400  # terms; above it the kernels are driven by tables, which compile in no time
WIDTH = 110


@cache
def environment() -> jinja2.Environment:
    """The one jinja2 environment: undefined names are errors."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(resources.files("tracewords.templates"))),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters.update(brace_text=lambda values: _wrap([_literal(v) for v in values], "{", "}"))
    env.filters.update(tuple_text=_tuple_text, list_text=_list_text, dict_text=_dict_text)
    return env


def emit_python(system: System) -> str:
    """The NumPy solver module."""
    return environment().get_template("module.py.j2").render(_context(system, NumPyText(system.model.parameters)))


def emit_c(system: System) -> str:
    """The C twin: the same functions over blocks of trajectories, and a batch integrator."""
    context = _context(system, CText(system.model.parameters)) | integrator_context()
    return environment().get_template("kernel.c.j2").render(context)


def solver_name(model_name: str, order: int) -> str:
    """``tied-softmax`` at order 5 is ``tied_softmax_m5``."""
    stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in model_name.lower())
    return f"{stem}_m{order}"


def _wrap(items: Sequence[str], opening: str, closing: str) -> str:
    """A literal on one line, or filled lines if it is long."""
    flat = opening + ", ".join(items) + ("," if len(items) == 1 and opening == "(" else "") + closing
    if len(flat) < WIDTH - 20:
        return flat
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([opening, *lines, line, closing])


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(_literal(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _tuple_text(values: Sequence[Any]) -> str:
    return _wrap([_literal(v) for v in values], "(", ")")


def _list_text(values: Sequence[Any]) -> str:
    return _wrap([_literal(v) for v in values], "[", "]")


def _dict_text(values: Mapping[str, Any]) -> str:
    return _wrap([f"{_literal(k)}: {_literal(v)}" for k, v in values.items()], "{", "}")


def _table(terms: Terms) -> dict[str, Any]:
    return {
        "names": terms.names,
        "symbols": [f"c{i}" for i in range(len(terms.names))],
        "row": terms.row.tolist(),
        "coupling": terms.coupling.tolist(),
        "first": terms.first.tolist(),
        "second": terms.second.tolist(),
        "weights": terms.weights.tolist(),
    }


def _unrolled(hierarchy: Hierarchy, size: int) -> list[str] | None:
    """One line a row, grouped by coefficient; None for a system that is too large to read."""
    terms, one = hierarchy.drift, size + sum(map(len, hierarchy.outer.values()))
    if len(terms) > UNROLL_LIMIT:
        return None
    rows: list[dict[int, list[str]]] = [{} for _ in range(size)]
    for r, c, f, w in zip(terms.row, terms.coupling, terms.first, terms.weights, strict=True):
        if f < size or f == one:
            rows[r].setdefault(int(c), []).append(repr(float(w)) if f == one else f"{float(w)!r}*mu[{f}]")
    texts = []
    for row in rows:
        groups = []
        for c, parts in row.items():
            inner = " + ".join(parts).replace("+ -", "- ")
            groups.append(f"c{c}*({inner})" if len(parts) > 1 or inner[0] == "-" else f"c{c}*{inner}")
        texts.append(" + ".join(groups) or "0.0")
    return texts


def _program(
    name: str, program: Program, symbols: Sequence[sp.Symbol], printer: _FloatPrinter, parameters: Sequence[str]
) -> dict[str, Any]:
    line = straight_line([e for _, e in program.outputs], printer)
    free = set().union(*(e.free_symbols for _, e in program.outputs)) if program.outputs else set()
    blocks = []
    for block in program.blocks:
        inside = set().union(*(e.free_symbols for _, e in block.outputs))
        law = block.law
        free |= inside.union(*(m.free_symbols for m in law.mean))
        n = block.dimension
        blocks.append(
            {
                "dimension": n,
                "count": len(block.outputs),
                "variables": [u.name for u in UNIT[:n]],
                "symbols": [s.name for s, _ in block.outputs],
                "covariance": [printer.doprint(law.covariance[i][j]) for i in range(n) for j in range(i + 1)],
                "mean": [] if law.centred else [printer.doprint(m) for m in law.mean],
                "parameters": [parameter_text(p) for p in parameters if sp.Symbol(p, real=True) in inside],
                "line": straight_line([e for _, e in block.outputs], printer),
            }
        )
    used = [(p, parameter_text(p)) for p in parameters if sp.Symbol(p, real=True) in free]
    return {
        "name": name,
        "order_parameters": [s.name for s in symbols],
        "parameters": used,
        "blocks": blocks,
        "line": line,
        "count": len(program.outputs),
        "outputs": program.names,
    }


def _programs(system: System, printer: _FloatPrinter) -> dict[str, dict[str, Any]]:
    statics, names = system.statics, list(system.model.parameters)
    return {name: _program(name, p, statics.symbols, printer, names) for name, p in statics.programs.items()}


def _loss(system: System, printer: _FloatPrinter) -> dict[str, Any]:
    model = system.model
    symbols = [preactivation_symbol(*entry) for entry in model.preactivations]
    traces = [trace_symbol(*pair) for pair in model.traces]
    rename = {s: sp.Symbol(f"h{i}", real=True) for i, s in enumerate(symbols)}
    rename |= {s: sp.Symbol(f"w{i}", real=True) for i, s in enumerate(traces)}
    expression = model.loss_expression
    used = [p for p in model.parameters if sp.Symbol(p, real=True) in expression.free_symbols]

    def derivatives(by: Sequence[sp.Symbol]) -> StraightLine:
        return straight_line([sp.diff(expression, s).xreplace(rename) for s in by], printer)

    return {
        "entries": [rename[s].name for s in symbols],
        "trace_entries": [rename[s].name for s in traces],
        "loss_parameters": [(p, parameter_text(p)) for p in used],
        "loss": straight_line([expression.xreplace(rename)], printer),
        "loss_gradient": derivatives(symbols),
        "trace_gradient": derivatives(traces),
    }


def _gram(system: System) -> list[list[int]]:
    """Positions of tr(x* y) for all pairs of score letters and their transposes: must be positive semidefinite."""
    alphabet = system.statics.alphabet
    letters = []
    for name in system.model.scores:
        k = alphabet.index[name]
        letters += [k] if alphabet.adjoint[k] == k else [k, alphabet.adjoint[k]]
    position = {w: i for i, w in enumerate(system.words)}
    return [[position[system.read((alphabet.adjoint[x], y))] for y in letters] for x in letters]


def _context(system: System, printer: _FloatPrinter) -> dict[str, Any]:
    model, flow, hierarchy, statics = system.model, system.flow, system.hierarchy, system.statics
    programs = _programs(system, printer)
    dimensions = sorted({b["dimension"] for p in programs.values() for b in p["blocks"]})
    noisy = {b["dimension"] for name, p in programs.items() if name.startswith("noise") for b in p["blocks"]}
    quiet = {b["dimension"] for name, p in programs.items() if not name.startswith("noise") for b in p["blocks"]}
    alphabet, gram = flow.alphabet, _gram(system)
    arguments = system.arguments
    return {
        "title": solver_name(model.name, system.order),
        "name": model.name,
        "version": __version__,
        "digest": model.digest,
        "order": system.order,
        "time": flow.time,
        "time_unit": flow.time_unit,
        "letters": model.letters,
        "word_letters": alphabet.names,
        "adjoint": {name: alphabet.names[alphabet.adjoint[i]] for i, name in enumerate(alphabet.names)},
        "students": tuple(model.students),
        "kinds": {name: m.kind for name, m in model.matrices.items()},
        "rank_ratios": {name: float(m.rank_ratio) for name, m in model.matrices.items()},
        "laws": {name: m.initial_data() for name, m in model.matrices.items()},
        "covariance": tuple(tuple(float(x) for x in row) for row in model.covariance),
        "parameter_defaults": {k: float(v) for k, v in model.parameters.items()},
        "words": system.words,
        "boundary": system.boundary,
        "order_parameters": system.order_parameters,
        "arguments": arguments,
        "argument_index": [system.words.index(w) for w in arguments],
        "gram": gram,
        "gram_lower": [row[j] for i, row in enumerate(gram) for j in range(i + 1)],
        "parameter_index": {name: i for i, name in enumerate(model.parameters)},
        "coupling_names": tuple(statics.couplings),
        "noise_names": tuple(statics.noise),
        "means": statics.means,
        "traces": model.traces,
        "flow": flow.text(),
        "preactivations": model.preactivations,
        "dimensions": dimensions,
        "noise_only": sorted(noisy - quiet),
        "noise_has_slopes": bool(programs["noise_slopes"]["count"]) or not statics.noise,
        "programs": list(programs.values()),
        "drift": _table(hierarchy.drift),
        "loops": _table(hierarchy.loops),
        "unrolled": _unrolled(hierarchy, len(system)),
        **_loss(system, printer),
    }


__all__ = ["emit_c", "emit_python", "environment", "solver_name"]
