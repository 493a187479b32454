"""Commands that make trajectories: solve and simulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewords.errors import DivergedError, HorizonError, TracewordsError
from tracewords.options import (
    FigureOption,
    JsonOption,
    LawOption,
    MatrixOption,
    ModelArgument,
    OrderOption,
    OutOption,
    ParamOption,
    SeedOption,
    TimesOption,
    check_figure,
    print_json,
    print_table,
    read_params,
    read_start,
    read_times,
    say,
    trajectory_json,
)

if TYPE_CHECKING:
    import xarray as xr

SHOWN_ROWS = 21


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error that appears after two seconds; call it with a fraction and a note."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=1.0, note="")

    def advance(fraction: float, note: str = "") -> None:
        if not bar.live.is_started and time.monotonic() - started > 2.0:
            bar.start()
        bar.update(task, completed=fraction, note=note)

    try:
        yield advance
    finally:
        bar.stop()


def solve(
    model: ModelArgument,
    order: OrderOption = 8,
    closure: Annotated[str, typer.Option("--closure", help="zero, flat, operator or matrix.")] = "zero",
    times: TimesOption = None,
    kappa: Annotated[
        float | None, typer.Option("--kappa", help="Noise level alpha d / B (closures zero and flat).")
    ] = None,
    param: ParamOption = None,
    law: LawOption = None,
    matrix: MatrixOption = None,
    moments: Annotated[Path | None, typer.Option("--moments", help="Initial moments as JSON {word: value}.")] = None,
    size: Annotated[int, typer.Option("--size", "-N", help="Size of the sampled matrices of closure matrix.")] = 300,
    seed: SeedOption = 0,
    backend: Annotated[str, typer.Option("--backend", help="auto, c or numpy.")] = "auto",
    tolerance: Annotated[float, typer.Option("--rtol", help="Relative tolerance of the integrator.")] = 1e-9,
    out: OutOption = None,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Integrate the moments of a model under a closure.

    Example: tracewords solve tied-softmax --order 9 --closure operator --times 0:5:11
    """
    from tracewords.errors import ModelError
    from tracewords.runtime.bounds import horizon
    from tracewords.runtime.integrate import Options
    from tracewords.runtime.integrate import solve as integrate
    from tracewords.solvers import model_from, solver

    check_figure(figure)
    if not 1e-14 <= tolerance <= 1e-1:
        raise ModelError("rtol", tolerance, "a number from 1e-14 to 0.1")
    if not 2 <= size <= 20_000:
        raise ModelError("size", size, "a whole number from 2 to 20000")
    grid = read_times(times) if times is not None else []
    params = read_params(param) | ({"kappa": kappa} if kappa is not None else {})
    chosen = solver(model_from(model), order)
    start = read_start(chosen, law, matrix, moments)
    limit = horizon(chosen, start, chosen.parameters(params))
    grid = grid or [0.08 * i * (limit if 0 < limit < float("inf") else 1.0) for i in range(11)]
    options = Options(rtol=tolerance, atol=1e-2 * tolerance, backend=backend, size=size, seed=seed)
    failure: HorizonError | None = None
    try:
        with progress_bar("solving") as advance:
            dataset = integrate(
                chosen,
                grid,
                closure=closure,
                start=start,
                params=params,
                options=options,
                horizon=limit,
                progress=lambda f: advance(f, ""),
            )
    except HorizonError as error:
        failure, dataset = error, error.partial
    if closure == "zero" and grid[-1] > limit and failure is None and not as_json:
        say(f"past t = T* = {limit:.4g} the truncation is not proven to converge; closures operator and flat go on")
    _deliver(dataset, out, figure, as_json, trajectory_json(dataset), failure, _trajectory_table)


def simulate(
    model: ModelArgument,
    d: Annotated[int, typer.Option("--d", "-d", help="Dimension of a token.")] = 400,
    batch: Annotated[int, typer.Option("--batch", "-B", help="Sequences a step.")] = 512,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of runs.")] = 4,
    times: TimesOption = "0:0.1:5",
    kappa: Annotated[
        float | None, typer.Option("--kappa", help="Noise level alpha d / B; 0.05 if --alpha is not given.")
    ] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Step size, instead of --kappa.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float64",
    order: Annotated[int, typer.Option("--order", "-M", help="Record all moments up to this order.")] = 2,
    param: ParamOption = None,
    law: LawOption = None,
    matrix: MatrixOption = None,
    seed: SeedOption = 0,
    out: OutOption = None,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one-pass SGD of a model in d dimensions.

    Example: tracewords simulate tied-softmax --d 400 --batch 512 --seeds 4 --kappa 0.05
    """
    from tracewords.runtime.sgd import simulate as run
    from tracewords.solvers import model_from, solver

    check_figure(figure)
    chosen = solver(model_from(model), 5)
    start = read_start(chosen, law, matrix)
    initial: dict[str, Any] = dict(start.factors) if start.factors is not None else dict(start.laws)
    failure: DivergedError | None = None
    if kappa is None and alpha is None:
        kappa = 0.05
    try:
        with progress_bar("SGD") as advance:
            dataset = run(
                chosen,
                d=d,
                batch=batch,
                times=read_times(times or "0:0.1:5"),
                seeds=seeds,
                seed=seed,
                kappa=kappa,
                alpha=alpha,
                dtype=dtype,
                order=order,
                params=read_params(param),
                initial=initial,
                progress=lambda done, total, info: advance(done / max(total, 1), f"loss {info.loss:.4g}"),
            )
    except DivergedError as error:
        failure, dataset = error, error.partial
    _deliver(dataset, out, figure, as_json, runs_json(dataset), failure, _runs_table)


def _deliver(
    dataset: xr.Dataset,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
    data: dict[str, Any],
    failure: TracewordsError | None,
    show: Callable[[xr.Dataset], None],
) -> None:
    """Files first, then what is printed, then the failure: nothing that was computed is lost."""
    if out is not None:
        from tracewords.runtime.store import save

        save(dataset, out)
        say(f"wrote {out}")
    if figure is not None and dataset.sizes["time"]:
        from tracewords.runtime.plot import save_figure, trajectory_figure

        save_figure(trajectory_figure(dataset), figure)
        say(f"wrote {figure}")
    if as_json:
        print_json(data | ({"error": str(failure)} if failure is not None else {}))
    else:
        show(dataset)
    if failure is not None:
        raise failure
    if dataset.attrs.get("status") == "interrupted":
        raise KeyboardInterrupt


def _thin(count: int) -> list[int]:
    """Rows to show: all of few, else evenly spread with both ends."""
    if count <= SHOWN_ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (SHOWN_ROWS - 1)) for i in range(SHOWN_ROWS)})


def _trajectory_table(dataset: xr.Dataset) -> None:
    attrs = dataset.attrs
    known = set(map(str, dataset.word.values))
    asked = [*attrs["students"].split(), *attrs["order_parameters"].split()]
    students = set(attrs["students"].split())
    words = [w for w in asked if w in known and students & {n.rstrip("'") for n in w.split(".")}][:5]
    name = dataset.time.attrs["long_name"]
    rows = [
        [float(dataset.time[i]), *(float(dataset["moment"].sel(word=w)[i]) for w in words), float(dataset["loss"][i])]
        for i in _thin(dataset.sizes["time"])
    ]
    attrs = dataset.attrs
    title = (
        f"{attrs['model']}, order {attrs['order']}, closure {attrs['closure']} ({attrs['backend']}): {attrs['status']}"
    )
    note = f"{name} = {dataset.time.attrs['units']};  columns are tr(word), tr = Tr/d;  T* = {attrs['horizon']:.4g}"
    print_table(title, (name, *words, "loss"), rows, note)


def runs_json(dataset: xr.Dataset) -> dict[str, Any]:
    """The contract's form of SGD runs: mean and standard error over runs."""
    from tracewords.runtime.store import summary

    short = summary(dataset)
    return {
        "status": _status(dataset),
        "time": dataset.time.attrs["long_name"],
        "times": dataset.time.values,
        "moments": {
            str(w): {"mean": short["mean"].sel(word=w).values, "sem": short["sem"].sel(word=w).values}
            for w in short.word.values
        },
        "loss": {"mean": short["loss_mean"].values, "sem": short["loss_sem"].values},
        "runs": dataset.sizes["run"],
        "alpha": dataset.attrs["alpha"],
        "kappa": dataset.attrs["kappa"],
    }


def _status(dataset: xr.Dataset) -> str:
    found = {str(s) for s in dataset["status"].values}
    return next((s for s in ("interrupted", "diverged") if s in found), "ok")


def _runs_table(dataset: xr.Dataset) -> None:
    from tracewords.runtime.store import summary

    short = summary(dataset)
    words = [str(w) for w in short.word.values][:5]
    rows = []
    for i in _thin(dataset.sizes["time"]):
        cells: list[Any] = [float(dataset.time[i])]
        for w in words:
            mean, sem = (float(short[v].sel(word=w)[i]) for v in ("mean", "sem"))
            cells.append(f"{mean:.4f} ± {sem:.4f}")
        rows.append([*cells, float(short["loss_mean"][i])])
    attrs = dataset.attrs
    sizes = f"d = {attrs['d']}, B = {attrs['batch']}, {dataset.sizes['run']} runs"
    title = f"SGD of {attrs['model']}: {sizes}: {_status(dataset)}"
    name = dataset.time.attrs["long_name"]
    units = dataset.time.attrs["units"]
    note = f"{name} = {units};  alpha = {attrs['alpha']:.4g}, kappa = alpha d / B = {attrs['kappa']:.4g}"
    print_table(title, (name, *words, "loss"), rows, note)
