"""Theory against truth: truncation error against order, its certificate, and SGD.

The truth of the infinite hierarchy is the `operator` closure at a high odd order; its distance to the next lower
odd order is its uncertainty.  SGD runs are compared with the truncation started from each run's own matrices, loop terms
included, so that what is left is the noise of the runs and corrections of order 1/d.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tracewords.errors import HorizonError, ModelError
from tracewords.runtime.bounds import Certificate, certify, horizon, horizons
from tracewords.runtime.integrate import Options, solve
from tracewords.runtime.solver import Params, Solver
from tracewords.runtime.start import Start

Floats = NDArray[np.float64]
SolverOf = Callable[[int], Solver]
TRUTH_ORDER = 13
GRID = 201
PUBLISHED = {2: 0.28, 3: 0.075, 4: 0.019, 5: 0.0032}  # relative error of q_11, tied softmax, d = 400, B = 512


@dataclass(frozen=True)
class Errors:
    """Truncation errors over a grid of times.

    Attributes
    ----------
    times : (n,) array
    relative : dict of order to (n,) array
        Worst relative error of the first order parameter over [0, t]; NaN once the truncation has failed.
    absolute : dict of order to (n,) array
        Worst error over [0, t] and over all order parameters.
    failures : dict of order to str
    truth : Dataset
    uncertainty : float
        Distance of the truth to the next lower order, largest over times.
    """

    times: Floats
    relative: dict[int, Floats]
    absolute: dict[int, Floats]
    failures: dict[int, str]
    truth: xr.Dataset
    trajectories: dict[int, xr.Dataset]
    uncertainty: float


def truncation_errors(
    solver_of: SolverOf, orders: Sequence[int], end: float, start: Start, params: Params | None = None
) -> Errors:
    """Errors of closure zero at several orders against the operator closure, on [0, end]."""
    times = np.linspace(0.0, end, GRID)
    exact = Options(rtol=1e-11, atol=1e-13, backend="numpy")
    best, lower = (
        solve(solver_of(m), times, closure="operator", start=start, params=params, options=exact)
        for m in (TRUTH_ORDER, TRUTH_ORDER - 2)
    )
    words = list(solver_of(orders[0]).ORDER_PARAMETERS)
    truth = best["moment"].sel(word=words).values
    uncertainty = float(np.abs(truth - lower["moment"].sel(word=words).values).max())
    relative, absolute, failures, trajectories = {}, {}, {}, {}
    for order in orders:
        solver = solver_of(order)
        try:
            path = solve(solver, times, start=start, params=params, options=exact, horizon=horizon(solver, start, params))
        except HorizonError as error:
            path, failures[order] = error.partial, str(error)
        found = path["moment"].sel(word=words).values
        gap = np.full((len(times), len(words)), np.nan)
        gap[: len(found)] = np.abs(found - truth[: len(found)])
        relative[order] = np.maximum.accumulate(gap[:, 0] / np.abs(truth[:, 0]))
        absolute[order] = np.maximum.accumulate(gap.max(axis=1))
        trajectories[order] = path
    return Errors(times, relative, absolute, failures, best, trajectories, uncertainty)


@dataclass(frozen=True)
class Rate:
    """Convergence in the order at one time: error ~ ratio^M."""

    time: float
    measured: float
    bound: float


def convergence_rate(errors: Errors, time: float, limit: float) -> Rate:
    """Fitted ratio of successive errors at a time, and that of the bound, t / T*."""
    i = int(np.argmin(np.abs(errors.times - time)))
    floor = max(10 * errors.uncertainty, 1e-13)
    points = [(m, e[i]) for m, e in errors.absolute.items() if np.isfinite(e[i]) and e[i] > floor]
    if len(points) < 2:
        return Rate(float(errors.times[i]), float("nan"), time / limit)
    slope = np.polyfit([m for m, _ in points], np.log([e for _, e in points]), 1)[0]
    return Rate(float(errors.times[i]), float(np.exp(slope)), time / limit)


@dataclass(frozen=True)
class Row:
    """One order in the table: errors and certificates, absolute, of the order parameters over [0, time]."""

    order: int
    time: float
    error: float
    certificate: float
    proven: bool

    @property
    def holds(self) -> bool:
        """Whether the certificate bounds the error (rounding allowed for)."""
        return not self.error > self.certificate + 1e-12


@dataclass(frozen=True)
class Validation:
    """Everything `tracewords validate` reports."""

    horizons: Mapping[str, float]
    errors: Errors
    rows: list[Row]
    certificates: dict[int, Certificate]
    rate: Rate
    ablation: dict[float, dict[int, float]]
    sgd: dict[str, Any] = field(default_factory=dict)
    runs: xr.Dataset | None = None
    theory: xr.Dataset | None = None

    @property
    def holds(self) -> bool:
        """Whether no certificate is violated."""
        return all(row.holds for row in self.rows)


def validate(
    solver_of: SolverOf,
    orders: Sequence[int],
    start: Start,
    curvature: float | None,
    params: Params | None = None,
    end: float | None = None,
) -> Validation:
    """Errors, certificates, rate and ablation of a model (everything but SGD).

    Parameters
    ----------
    solver_of : callable
        Solver of an order.
    end : float, optional
        Times up to here; 1.6 T* if not given.
    """
    if start.norms() is None:
        raise ModelError("initial", "moments", "laws or matrices: the horizon needs operator norms")
    limit = horizon(solver_of(orders[-1]), start, params)
    if not np.isfinite(limit) or limit <= 0:
        raise ModelError("model", "couplings that vanish at the start", "a model that moves, T* finite")
    last = end if end is not None else 1.6 * limit
    errors = truncation_errors(solver_of, orders, last, start, params)
    rows, certificates = [], {}
    for order in orders:
        path = errors.trajectories[order]
        inside = path.isel(time=path.time.values <= min(limit / 2, last) * (1 + 1e-12))
        bound, certificates[order] = certify(solver_of(order), inside, start, params, curvature)
        for part in (8, 4, 2):
            i = int(np.searchsorted(inside.time.values, limit / part * (1 + 1e-12)) - 1)
            if i < 1:
                continue
            error = float(errors.absolute[order][i])
            proven = certificates[order].proven
            rows.append(Row(order, float(inside.time.values[i]), error, float(bound[i]), proven))
    highest = errors.trajectories[max(orders)]
    return Validation(
        horizons(solver_of(max(orders)), highest, start, params),
        errors,
        rows,
        certificates,
        convergence_rate(errors, limit / 2, limit),
        ablation(errors, limit),
    )


def ablation(errors: Errors, limit: float) -> dict[float, dict[int, float]]:
    """Relative errors of the first order parameter at T*/2 and where order 2 has the published 0.28."""
    result = {}
    chosen = [limit / 2]
    first = errors.relative.get(2)
    if first is not None and np.nanmax(first) >= PUBLISHED[2]:
        chosen.append(float(errors.times[int(np.argmax(first >= PUBLISHED[2]))]))
    for time in chosen:
        i = int(np.argmin(np.abs(errors.times - time)))
        result[float(errors.times[i])] = {m: float(e[i]) for m, e in errors.relative.items()}
    return result


def compare_with_runs(solver: Solver, runs: xr.Dataset, params: Params | None, limit: float) -> tuple[dict[str, Any], xr.Dataset]:
    """SGD runs minus the truncated theory started from each run's own moments.

    Parameters
    ----------
    solver : Solver
        Of the order to compare with; its WORDS must have been recorded.
    runs : Dataset
        From `simulate`, with attr ``kappa``.

    Returns
    -------
    dict
        ``difference``, ``sem``, ``z`` by order parameter and single letter of a student, at the last time.
    Dataset
        The theory, ``moment`` (run, time, word).
    """
    values = {**(params or {}), "kappa": float(runs.attrs["kappa"])}
    words = [w for w in (*solver.ORDER_PARAMETERS, *solver.STUDENTS) if any(x in solver.STUDENTS for x in w.split("."))]
    paths = []
    for r in range(runs.sizes["run"]):
        first = runs["moment"].isel(run=r, time=0).sel(word=list(solver.WORDS)).values
        start = Start(moments=dict(zip(solver.WORDS, map(float, first), strict=True)))
        options = Options(backend="numpy")
        paths.append(solve(solver, runs.time.values, start=start, params=values, options=options, horizon=limit)["moment"].sel(word=words))
    theory = xr.concat(paths, dim="run")
    gap = runs["moment"].sel(word=words).transpose("run", "time", "word").values - theory.transpose("run", "time", "word").values
    good = np.isfinite(gap).all(axis=(1, 2))
    count = int(good.sum())
    mean = gap[good].mean(axis=0)
    sem = gap[good].std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full_like(mean, np.nan)
    result: dict[str, Any] = {"runs": count, "time": float(runs.time.values[-1]), "kappa": values["kappa"], "words": words}
    result["difference"] = {w: float(mean[-1, i]) for i, w in enumerate(words)}
    result["sem"] = {w: float(sem[-1, i]) for i, w in enumerate(words)}
    with np.errstate(all="ignore"):
        result["z"] = {w: float(mean[-1, i] / sem[-1, i]) for i, w in enumerate(words)}
    return result, theory.to_dataset(name="moment")
