"""A validation as one HTML page that needs nothing else: no network, no scripts, no fonts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

import tracewords
from tracewords.files import write_text
from tracewords.runtime.plot import comparison_figure, error_figure, part_of_horizon, svg_text
from tracewords.runtime.validate import PUBLISHED, Row, Validation

if TYPE_CHECKING:
    import xarray as xr

Table = dict[str, Any]
DASH = "–"
DIVERGED = 1e30
STATUS = {True: "proven", False: "estimated"}
HORIZONS = {
    "start": "1 / (2 g C²), couplings g and operator norms C² of the start",
    "run": "the same with the largest couplings up to it",
    "integrated": "where 2 C² ∫ g dt reaches one",
    "sharp": "where the majorant with every matrix's own norm blows up, couplings of the start",
}
CAPTIONS = (
    "SGD, truth and truncations of several orders; T* is the horizon.",
    "Error and certificate against the order, and error over time; × where a truncation left its domain, "
    "grey where the truth is not known well enough.",
)


@cache
def environment() -> jinja2.Environment:
    """The environment of pages: undefined names are errors, all text is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(resources.files("tracewords.templates"))),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def validation_report(
    validation: Validation,
    *,
    title: str,
    equations: Sequence[tuple[str, str]],
    command: str,
    figures: Sequence[tuple[str, str]] | None = None,
) -> str:
    """One self-contained page; the same input gives the same bytes.

    Parameters
    ----------
    validation : Validation
    title : str
    equations : sequence of (heading, block)
        From `equations_html`: blocks go into the page as they are.
    command : str
        What reproduces the page.
    figures : sequence of (caption, svg), optional
        As from `svg_text`: they go into the page as they are.  Drawn here if not given.

    Returns
    -------
    str
        HTML.
    """
    if figures is None:
        drawn = (comparison_figure(validation), error_figure(validation))
        figures = [(caption, svg_text(figure)) for caption, figure in zip(CAPTIONS, drawn, strict=True)]
    known = [row.doubt for row in validation.rows]
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            version=tracewords.__version__,
            verdict=_verdict(validation.rows),
            settings=_settings(validation),
            horizons=_horizons(validation.horizons),
            failures=sorted(validation.errors.failures.items()),
            figures=figures,
            errors=_errors(validation),
            doubt=number(max(known, default=np.nan), 2),
            hypotheses=_hypotheses(validation),
            rate=_rate(validation),
            ablation=_ablation(validation),
            sgd=_sgd(validation),
            equations=equations,
            command=command,
            provenance=_provenance(validation),
        )
    )


def write_report(path: str | os.PathLike[str], html: str) -> None:
    """Write a page, complete or not at all; ModelError names `report` where that cannot be."""
    write_text(Path(path), html, "report")


def number(value: Any, digits: int = 3, pad: bool = False) -> str:
    """A number for people, with zeros at the end if `pad`; a dash for None, NaN, infinite and diverged."""
    if value is None or isinstance(value, str):
        return value or DASH
    if isinstance(value, int | np.integer):
        return str(value).replace("-", "−")
    x = float(value)
    if not np.isfinite(x) or abs(x) >= DIVERGED:
        return DASH
    if x == 0:
        return "0"
    rounded = f"{x:.{digits - 1}e}"
    if 1e-3 <= abs(x) < 1e5:
        text = f"{Decimal(rounded):f}"
        return (text if pad or "." not in text else text.rstrip("0").rstrip(".")).replace("-", "−")
    mantissa, exponent = rounded.split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}\u00a0×\u00a010{raised}".replace("-", "−")


# -- sections ---------------------------------------------------------------------------------------------


def _verdict(rows: Sequence[Row]) -> Table:
    """What the page says first: no more than was checked."""
    finite = [r for r in rows if r.certificate < DIVERGED and np.isfinite(r.error)]
    broken = [r for r in rows if not r.holds]
    if broken:
        where = [
            f"order {r.order}, t = {number(r.time)}: error {number(r.error)} above {number(r.certificate)}"
            for r in broken
        ]
        kind = {"kind": "bad", "sign": "✗", "heading": "The bound is violated"}
        return {**kind, "lines": [f"In {_count(len(broken), 'comparison')} of {len(rows)}:", *where]}
    if not finite:
        lines = ["No certificate is finite where it could be compared with an error."]
        return {"kind": "open", "sign": "?", "heading": "Nothing was checked", "lines": lines}
    proven = sum(r.proven for r in finite)
    lines = [
        f"In all {_count(len(finite), 'comparison')} of an error with a finite certificate the error is "
        f"below it: orders {_span(r.order for r in finite)}, t up to {number(max(r.time for r in finite))}."
    ]
    lines.append(
        "All of these certificates are proven."
        if proven == len(finite)
        else f"{proven} of these certificates are proven; the others rest on estimates."
    )
    if len(finite) < len(rows):
        lines.append(f"In {_count(len(rows) - len(finite), 'more place')} there is no finite certificate.")
    return {"kind": "good", "sign": "✓", "heading": "The bound holds", "lines": lines}


def _settings(validation: Validation) -> list[tuple[str, str]]:
    errors = validation.errors
    attrs, time = errors.truth.attrs, errors.truth["time"].attrs
    parameters = [
        _joined(f"{name.removeprefix('parameter_')} = {number(value, 6)}")
        for name, value in attrs.items()
        if name.startswith("parameter_")
    ]
    unit = f"{time.get('long_name', 't')} = {time.get('units', DASH)}".replace("alpha", "α").replace(" ", "\u00a0")
    truth = f"closure {attrs.get('closure', DASH)} of order {attrs.get('order', DASH)}"
    return [
        ("Model", f"{attrs.get('model', DASH)}"),
        ("Parameters", ", ".join(parameters) or DASH),
        ("Truncations", f"orders {_span(errors.trajectories)}, moments of higher order set to zero"),
        ("Times", f"{len(errors.times)} from 0 to {number(errors.times[-1])}, {unit}"),
        ("Truth", f"{truth}, known to {number(np.max(errors.uncertainty), 2)} at the last time"),
    ]


def _horizons(horizons: Mapping[str, float]) -> Table:
    rows = [([name, number(value, 4), HORIZONS.get(name, "")], False) for name, value in horizons.items()]
    return _table(["form", "T*", "meaning"], [(None, rows)], text=[2])


def _errors(validation: Validation) -> Table:
    limit = validation.horizons.get("start", np.nan)
    parts = []
    for time in sorted({row.time for row in validation.rows}):
        rows = []
        for r in sorted((r for r in validation.rows if r.time == time), key=lambda r: r.order):
            numbers = [number(x, pad=True) for x in (r.error, r.certificate, r.own, r.estimate)]
            rows.append(([r.order, *numbers[:2], _yes(r.holds), _yes(r.proven), *numbers[2:]], not r.holds))
        parts.append((_when(time, limit), rows))
    return _table(["order", "error", "certificate", "holds", "proven", "from this order alone", "estimate"], parts)


def _hypotheses(validation: Validation) -> Table:
    """By orders that share them: the certificate of one order may rest on that of a higher one."""
    shared: dict[Any, list[int]] = {}
    for order, certificate in sorted(validation.certificates.items()):
        shared.setdefault(certificate.hypotheses, []).append(order)
    parts = []
    for hypotheses, orders in shared.items():
        rows = [([h.name, number(h.value), STATUS[h.proven], h.how], False) for h in hypotheses]
        parts.append((f"order{'s' if len(orders) > 1 else ''} {_span(orders)}", rows))
    return _table(["hypothesis", "value", "status", "how"], parts, text=[0, 3])


def _rate(validation: Validation) -> str:
    rate = validation.rate
    measured = (
        f"the error is {number(rate.measured)} times that of the order before, as fitted"
        if np.isfinite(rate.measured)
        else "too few errors stand out of what is not known of the truth to fit a rate"
    )
    bound = f"for the published bound it is t / T* = {number(rate.bound)}"
    return _joined(f"At t = {number(rate.time)} {measured}; {bound}.")


def _ablation(validation: Validation) -> Table:
    table = validation.ablation
    limit = validation.horizons.get("start", np.nan)
    orders = sorted({m for errors in table.values() for m in errors})
    columns = ["order", "published", *(_when(t, limit) for t in table)]
    ours = {m: [number(errors.get(m), pad=True) for errors in table.values()] for m in orders}
    return _table(columns, [(None, [([m, number(PUBLISHED.get(m)), *ours[m]], False) for m in orders])])


def _sgd(validation: Validation) -> Table | None:
    sgd = validation.sgd
    if not sgd:
        return None
    attrs: Mapping[Any, Any] = validation.runs.attrs if validation.runs is not None else {}
    facts = {**attrs, **sgd}
    started = validation.runs.sizes["run"] if validation.runs is not None else sgd["runs"]
    lost = f"; {_count(started - sgd['runs'], 'run')} did not get there" if started > sgd["runs"] else ""
    setting = (
        f"{_count(sgd['runs'], 'run')} in dimension d = {number(facts.get('d'))}, "
        f"batch {number(facts.get('batch'))}, "
        f"κ = αd/B = {number(facts.get('kappa'))}, α = {number(facts.get('alpha'))}, "
        f"{facts.get('dtype', DASH)}, at t = {number(sgd['time'])}{lost}. "
        f"Theory: order {number(facts.get('order'))} with loop terms."
    )
    columns = ["moment", "SGD", "theory", "difference", "standard error", "z"]
    rows = []
    for word in sgd["words"]:
        theory = _last(validation.theory, word)
        found = [theory + sgd["difference"][word], theory]
        rows.append(([_moment(word), *(number(x, 5, pad=True) for x in found), *_deviation(sgd, word)], False))
    tables = [_table(columns, [(None, rows)], caption="Theory from the law of the initial matrices")]
    if "paired" in sgd:
        paired = [([_moment(w), *_deviation(sgd["paired"], w)], False) for w in sgd["words"]]
        caption = "The same with each run's theory started from the run's own matrices"
        tables.append(_table(["moment", *columns[3:]], [(None, paired)], caption=caption))
    d = facts.get("d")
    size = f" = {number(1 / d, 2)}" if d else ""
    note = (
        "z is the difference over its standard error. What the noise of the runs does not explain holds "
        f"corrections of order 1/d{size} and the truncation of the theory; "
        "pairing each run with the theory from its own start takes most of the noise away and shows them."
    )
    return {"setting": _joined(setting), "tables": tables, "note": note}


def _deviation(source: Mapping[str, Mapping[str, float]], word: str) -> list[str]:
    digits = {"difference": 3, "sem": 2, "z": 2}
    return [number(source[name][word], n, pad=True) for name, n in digits.items()]


def _provenance(validation: Validation) -> list[tuple[str, str]]:
    attrs = validation.errors.truth.attrs
    names = {"model": "Model", "model_digest": "Digest of the model", "tracewords": "tracewords"}
    rows = [(label, str(attrs.get(name, DASH))) for name, label in names.items()]
    rows += [(name, str(attrs[name])) for name in ("numpy", "scipy", "xarray") if name in attrs]
    if validation.runs is not None:
        known = validation.runs.attrs
        rows += [(f"SGD {name}", str(known[name])) for name in ("seed", "dtype") if name in known]
    return rows


# -- pieces -----------------------------------------------------------------------------------------------


def _table(
    columns: Sequence[str],
    parts: Iterable[tuple[str | None, Iterable[tuple[Sequence[Any], bool]]]],
    text: Sequence[int] = (),
    caption: str | None = None,
) -> Table:
    """For the template: rows (cells, whether bad) in parts with headings; `text` are the wide columns."""
    shaped = [
        {"heading": heading, "rows": [{"cells": [str(c) for c in cells], "bad": bad} for cells, bad in rows]}
        for heading, rows in parts
    ]
    return {"columns": list(columns), "parts": shaped, "text": tuple(text), "caption": caption}


def _last(dataset: xr.Dataset | None, word: str) -> float:
    """A moment at the last time, NaN where it is not known."""
    if dataset is None or word not in dataset["word"].values:
        return float("nan")
    return float(dataset["moment"].sel(word=word).isel(time=-1))


def _moment(word: str) -> str:
    return f"tr({' '.join(word.split('.'))})"


def _when(time: float, limit: float) -> str:
    return _joined(f"t = {number(time)}{part_of_horizon(time, limit)}")


def _joined(text: str) -> str:
    """Equations that a narrow window does not break."""
    return text.replace(" = ", "\u00a0=\u00a0")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _span(values: Iterable[int]) -> str:
    """Orders as a range where they are one."""
    orders = sorted(set(values))
    if len(orders) > 2 and orders == list(range(orders[0], orders[-1] + 1)):
        return f"{orders[0]}–{orders[-1]}"
    return ", ".join(map(str, orders)) or DASH
