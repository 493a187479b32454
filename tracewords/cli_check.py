"""Commands that compare theory with truth: validate and reproduce."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewords.cli_run import progress_bar
from tracewords.errors import ModelError
from tracewords.options import (
    FigureOption,
    JsonOption,
    LawOption,
    MatrixOption,
    ModelArgument,
    ParamOption,
    SeedOption,
    check_figure,
    print_json,
    print_table,
    read_params,
    read_start,
    say,
)

if TYPE_CHECKING:
    from tracewords.runtime.validate import Validation

SGD_ORDER = 9  # of the theory that runs are compared with: its truncation error is far below the runs' noise
FewSeeds = Annotated[int, typer.Option("--seeds", help="SGD runs; 0 leaves SGD out.")]


def validate(
    model: ModelArgument,
    orders: Annotated[str, typer.Option("--orders", help="Orders, LOWEST:HIGHEST.")] = "2:8",
    d: Annotated[int, typer.Option("--d", "-d", help="Dimension of the SGD runs.")] = 400,
    batch: Annotated[int, typer.Option("--batch", "-B", help="Sequences a step.")] = 512,
    seeds: FewSeeds = 8,
    kappa: Annotated[
        float | None, typer.Option("--kappa", help="Noise level of the SGD runs; about 600 steps if not given.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float32",
    param: ParamOption = None,
    law: LawOption = None,
    matrix: MatrixOption = None,
    seed: SeedOption = 0,
    report: Annotated[Path | None, typer.Option("--report", help="Write a self-contained HTML page here.")] = None,
    figure: FigureOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the SGD runs here as NetCDF.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the truncation against truth, its certificate, and SGD.

    Example: tracewords validate tied-softmax --report validation.html
    """
    check_figure(figure)
    settings = Settings(read_orders(orders), d, batch, seeds, kappa, dtype, seed)
    result, system_model = run_validation(model, settings, param, law, matrix)
    finish(result, system_model, settings, report, figure, out, as_json)


def reproduce(
    name: Annotated[str, typer.Argument(help="Which published result: truncation.")],
    seeds: FewSeeds = 8,
    seed: SeedOption = 0,
    report: Annotated[Path | None, typer.Option("--report", help="Write a self-contained HTML page here.")] = None,
    figure: FigureOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the SGD runs here as NetCDF.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Reproduce a published table or figure, with the published numbers beside ours.

    Example: tracewords reproduce truncation
    """
    if name != "truncation":
        raise ModelError("name", name, "truncation")
    check_figure(figure)
    settings = Settings(tuple(range(2, 9)), 400, 512, seeds, None, "float32", seed)
    result, model = run_validation("tied-softmax", settings, None, None, None)
    finish(result, model, settings, report, figure, out, as_json)


class Settings:
    """Orders and SGD settings of a validation."""

    def __init__(
        self, orders: tuple[int, ...], d: int, batch: int, seeds: int, kappa: float | None, dtype: str, seed: int
    ) -> None:
        self.orders, self.d, self.batch, self.seeds = orders, d, batch, seeds
        self.kappa, self.dtype, self.seed = kappa, dtype, seed


def read_orders(text: str) -> tuple[int, ...]:
    """Orders given as LOWEST:HIGHEST or as one number."""
    parts = text.split(":")
    if not all(p.strip().isdecimal() for p in parts) or len(parts) > 2:
        raise ModelError("orders", text, "LOWEST:HIGHEST with 2 <= LOWEST <= HIGHEST <= 12")
    low, high = int(parts[0]), int(parts[-1])
    if not 2 <= low <= high <= 12:
        raise ModelError("orders", text, "LOWEST:HIGHEST with 2 <= LOWEST <= HIGHEST <= 12")
    return tuple(range(low, high + 1))


def run_validation(
    name: str, settings: Settings, param: list[str] | None, law: list[str] | None, matrix: list[str] | None
) -> tuple[Validation, Any]:
    """The numbers: truncation, certificates, SGD."""
    from functools import cache

    from tracewords.runtime.validate import CERTIFYING_ORDER, TRUTH_ORDER
    from tracewords.runtime.validate import validate as check
    from tracewords.solvers import curvature, model_from, solver

    if settings.seeds < 0:
        raise ModelError("seeds", settings.seeds, "a whole number of at least 0")
    chosen = model_from(name)
    solver_of = cache(lambda order: solver(chosen, order))
    params = read_params(param)
    with progress_bar("deriving") as advance:
        wanted = sorted({*settings.orders, 8, CERTIFYING_ORDER, TRUTH_ORDER - 2, TRUTH_ORDER})
        for i, order in enumerate(wanted):
            advance(i / len(wanted), f"order {order}")
            solver_of(order)
    values = solver_of(8).parameters(params)
    if values["kappa"]:
        raise ModelError("param kappa", values["kappa"], "0: the noise level of the runs is --kappa")
    start = read_start(solver_of(8), law, matrix)
    result = check(solver_of, settings.orders, start, curvature(chosen, values), params)
    return (with_runs(result, solver_of(SGD_ORDER), settings, start, params) if settings.seeds else result), chosen


def with_runs(result: Validation, solver: Any, settings: Settings, start: Any, params: dict[str, float]) -> Validation:
    """The same with SGD runs inside the horizon."""
    from dataclasses import replace

    from tracewords.runtime.sgd import simulate
    from tracewords.runtime.validate import compare_with_runs

    end = 0.7 * result.horizons["start"]
    per_kappa = settings.d**2 * end / (4 * settings.batch)  # steps at kappa = 1
    kappa = settings.kappa if settings.kappa is not None else min(0.05, per_kappa / 600)
    initial = dict(start.factors) if start.factors is not None else dict(start.laws)
    with progress_bar("SGD") as advance:
        runs = simulate(
            solver,
            d=settings.d,
            batch=settings.batch,
            times=[end * i / 8 for i in range(9)],
            seeds=settings.seeds,
            seed=settings.seed,
            kappa=kappa,
            dtype=settings.dtype,
            words=solver.WORDS,
            params=params,
            initial=initial,
            progress=lambda done, total, info: advance(done / max(total, 1), f"loss {info.loss:.4g}"),
        )
    sgd, theory = compare_with_runs(solver, runs, start, params)
    sgd |= {"d": settings.d, "batch": settings.batch, "dtype": settings.dtype, "order": solver.ORDER}
    return replace(result, sgd=sgd, runs=runs, theory=theory)


def finish(
    result: Validation,
    model: Any,
    settings: Settings,
    report: Path | None,
    figure: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Files, then tables, then the verdict."""
    command = "tracewords " + " ".join(shlex.quote(a) for a in sys.argv[1:])
    if out is not None and result.runs is not None:
        from tracewords.runtime.store import save

        save(result.runs, out)
        say(f"wrote {out}")
    if figure is not None:
        from tracewords.runtime.plot import comparison_figure, error_figure, save_figure

        save_figure(error_figure(result), figure)
        other = figure.with_name(f"{figure.stem}-trajectories{figure.suffix}")
        save_figure(comparison_figure(result), other)
        say(f"wrote {figure} and {other}")
    if report is not None:
        from tracewords.derive.system import System
        from tracewords.equations import equations_html
        from tracewords.runtime.report import validation_report, write_report

        equations = equations_html(System(model, max(settings.orders)))
        title = f"Validation of {model.name}"
        write_report(report, validation_report(result, title=title, equations=equations, command=command))
        say(f"wrote {report}")
    if as_json:
        print_json(validation_json(result))
    else:
        show(result, model.name)
    if not result.holds:
        raise typer.Exit(1)


def validation_json(result: Validation) -> dict[str, Any]:
    """The contract's form of a validation."""
    return {
        "horizon": result.horizons["start"],
        "horizons": dict(result.horizons),
        "table": [
            {
                "order": r.order,
                "time": r.time,
                "error": r.error,
                "certificate": r.certificate,
                "certificate_of_this_order_alone": r.own,
                "estimate": r.estimate,
                "proven": r.proven,
                "error_uncertainty": r.doubt,
            }
            for r in result.rows
        ],
        "rate_measured": result.rate.measured,
        "rate_bound": result.rate.bound,
        "rate_time": result.rate.time,
        "ablation": [{"time": t, "relative_error": errors} for t, errors in result.ablation.items()],
        "hypotheses": {
            str(order): [{"name": h.name, "value": h.value, "proven": h.proven, "how": h.how} for h in c.hypotheses]
            for order, c in result.certificates.items()
        },
        "failures": result.errors.failures,
        "truth_uncertainty": result.errors.uncertainty[-1],
        "sgd": result.sgd,
        "holds": result.holds,
    }


def finite(value: float) -> float | None:
    """None for a bound that diverges."""
    return value if value < 1e30 else None


def show(result: Validation, name: str) -> None:
    """Tables for people."""
    from tracewords.runtime.validate import NUMERICAL, PUBLISHED

    h = result.horizons
    rows = [
        (r.order, r.time, r.error, finite(r.certificate), finite(r.own), r.estimate, r.proven, r.holds)
        for r in result.rows
    ]
    note = (
        "absolute, worst over [0, t] and over the order parameters; -: no bound (it diverges); own: certificate from "
        "this order alone, without the help of higher ones; estimate: linearised, "
        f"not a bound; proven: but for integration and quadrature, {NUMERICAL:.0e}"
    )
    print_table(
        f"{name}: truncation error and certificate",
        ("order", "t", "error", "certificate", "own", "estimate", "proven", "holds"),
        rows,
        note,
    )
    orders = sorted({m for errors in result.ablation.values() for m in errors})
    columns = ["order", "published", *(f"ours, t = {t:.3g}" for t in result.ablation)]
    table = [(m, PUBLISHED.get(m), *(errors.get(m) for errors in result.ablation.values())) for m in orders]
    print_table(
        "Relative error of the first order parameter",
        columns,
        table,
        "published: tied softmax, d = 400, B = 512, own time unit",
    )
    if result.sgd:
        s = result.sgd
        pair = s["paired"]
        table = [
            (w, s["difference"][w], s["sem"][w], s["z"][w], pair["difference"][w], pair["sem"][w]) for w in s["words"]
        ]
        sizes = f"d = {s['d']}, B = {s['batch']}, kappa = {s['kappa']:.3g}, {s['runs']} runs"
        title = f"SGD minus theory at t = {s['time']:.3g}: {sizes}"
        heads = ("moment", "difference", "standard error", "z", "paired", "standard error")
        note = f"theory: order {s['order']} with loop terms; paired: from each run's own start, but for order 1/d"
        print_table(title, heads, table, note)
    typer.echo(
        f"T* = {h['start']:.4g} at the start; {h['run']:.4g} with the largest couplings of the run; "
        f"{h['integrated']:.4g} integrated; sharper: {h['sharp']:.4g}"
    )
    rate = result.rate
    typer.echo(
        f"error falls by {rate.measured:.3g} an order at t = {rate.time:.3g} (bound: {rate.bound:.3g}); "
        f"truth known to {result.errors.uncertainty[-1]:.1g}"
    )
    for order, text in result.errors.failures.items():
        typer.echo(f"order {order}: {text}")
    typer.echo("the bound holds" if result.holds else "THE BOUND IS VIOLATED")
