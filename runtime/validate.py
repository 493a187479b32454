"""Theory against truth: truncation error against order, its certificate, and SGD.

The truth of the infinite hierarchy is the `operator` closure at a high odd order; its distance to the next lower
odd order is its uncertainty.  SGD runs are compared with the truncation started from each run's own matrices, loop
terms included, so that what is left is the noise of the runs and corrections of order 1/d.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tracewords.errors import HorizonError, ModelError
from tracewords.runtime.bounds import Certificate, Curvature, certify, combine, horizon, horizons
from tracewords.runtime.estimate import error_estimate
from tracewords.runtime.integrate import Options, solve
from tracewords.runtime.solver import Params, Solver
from tracewords.runtime.start import Start

Floats = NDArray[np.float64]
SolverOf = Callable[[int], Solver]
TRUTH_ORDER = 13
GRID = 321  # 1.6 T* in steps of T*/200
NUMERICAL = 1e-10  # error of the integrators at the tolerances used here
CERTIFYING_ORDER = 12  # its bound improves those of lower orders
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
    estimates : dict of order to (n,) array
        A-posteriori estimates of `absolute`.
    failures : dict of order to str
    truth : Dataset
    uncertainty : (n,) array
        Distance of the truth to the next lower order, worst over [0, t].
    """

    times: Floats
    relative: dict[int, Floats]
    absolute: dict[int, Floats]
    estimates: dict[int, Floats]
    failures: dict[int, str]
    truth: xr.Dataset
    trajectories: dict[int, xr.Dataset]
    uncertainty: Floats


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
    apart = np.abs(truth - lower["moment"].sel(word=words).values).max(axis=1)
    uncertainty = np.maximum.accumulate(apart)
    relative, absolute, estimates, failures, trajectories = {}, {}, {}, {}, {}
    for order in orders:
        solver = solver_of(order)
        try:
            path = solve(
                solver, times, start=start, params=params, options=exact, horizon=horizon(solver, start, params)
            )
        except HorizonError as error:
            path, failures[order] = error.partial, str(error)
        found = path["moment"].sel(word=words).values
        gap = np.full((len(times), len(words)), np.nan)
        gap[: len(found)] = np.abs(found - truth[: len(found)])
        relative[order] = np.maximum.accumulate(gap[:, 0] / np.abs(truth[:, 0]))
        absolute[order] = np.maximum.accumulate(gap.max(axis=1))
        trajectories[order] = path
        guess = np.full((len(times), len(words)), np.nan)
        guess[: len(found)] = np.abs(error_estimate(solver, path, best, params))
        estimates[order] = np.maximum.accumulate(guess.max(axis=1))
    return Errors(times, relative, absolute, estimates, failures, best, trajectories, uncertainty)


@dataclass(frozen=True)
class Rate:
    """Convergence in the order at one time: error ~ ratio^M."""

    time: float
    measured: float
    bound: float


def convergence_rate(errors: Errors, time: float, limit: float) -> Rate:
    """Fitted ratio of successive errors at a time, and that of the bound, t / T*."""
    i = int(np.argmin(np.abs(errors.times - time)))
    floor = max(10 * errors.uncertainty[i], NUMERICAL)
    points = [(m, e[i]) for m, e in errors.absolute.items() if np.isfinite(e[i]) and e[i] > floor]
    if len(points) < 2:
        return Rate(float(errors.times[i]), float("nan"), time / limit)
    slope = np.polyfit([m for m, _ in points], np.log([e for _, e in points]), 1)[0]
    return Rate(float(errors.times[i]), float(np.exp(slope)), time / limit)


@dataclass(frozen=True)
class Row:
    """One order in the table: errors and certificates, absolute, of the order parameters over [0, time].

    `own` is the certificate from this order alone, `estimate` the a-posteriori estimate (not a bound), `doubt` what is
    not known of the error.
    """

    order: int
    time: float
    error: float
    certificate: float
    own: float
    estimate: float
    proven: bool
    doubt: float

    @property
    def holds(self) -> bool:
        """Whether the certificate bounds the error as far as that is known."""
        return not self.error - self.doubt > self.certificate


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
    curvature: Curvature,
    params: Params | None = None,
    end: float | None = None,
) -> Validation:
    """Errors, certificates, rate and ablation of a model (everything but SGD).

    Parameters
    ----------
    solver_of : callable
        Solver of an order.
    curvature : mapping of coupling to bound, or None
        From the derivation of the model; see `bounds`.
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
    certificates, own = _certificates(solver_of, orders, start, curvature, params, min(limit / 2, last))
    rows = []
    for order in (m for m in orders if m in certificates):
        certificate = certificates[order]
        for part in (8, 4, 2):
            time = min(limit / part, last)
            at = _index(certificate.times, time)
            i = _index(errors.times, time)
            if abs(certificate.times[at] - time) > 1e-9 * limit or np.isnan(errors.absolute[order][i]):
                continue
            error, doubt = float(errors.absolute[order][i]), float(errors.uncertainty[i]) + NUMERICAL
            rows.append(
                Row(
                    order,
                    time,
                    error,
                    float(certificate.bound[at]),
                    float(own[order].bound[at]),
                    float(errors.estimates[order][i]),
                    certificate.proven,
                    doubt,
                )
            )
    highest = max((m for m in orders if m not in errors.failures), default=orders[-1])
    return Validation(
        horizons(solver_of(highest), errors.trajectories[highest], start),
        errors,
        rows,
        certificates,
        convergence_rate(errors, limit / 2, limit),
        ablation(errors, limit),
    )


def _index(times: Floats, time: float) -> int:
    return int(np.argmin(np.abs(times - time)))


def _certificates(
    solver_of: SolverOf, orders: Sequence[int], start: Start, curvature: Curvature, params: Params | None, end: float
) -> tuple[dict[int, Certificate], dict[int, Certificate]]:
    """Certificates of the orders on [0, end], improved by those of higher ones; and each by itself."""
    times = np.linspace(0.0, end, 101)
    own, paths = {}, {}
    for order in sorted({*orders, CERTIFYING_ORDER}):
        solver = solver_of(order)
        try:
            path = solve(
                solver, times, start=start, params=params, options=Options(rtol=1e-11, atol=1e-13, backend="numpy")
            )
        except HorizonError as error:
            path = error.partial
            if path.sizes["time"] < 2:
                continue
        own[order] = certify(solver, path, start, params, curvature)
        paths[order] = path["moment"].sel(word=list(solver.ORDER_PARAMETERS)).values
    both = combine(own, paths)
    return {m: both[m] for m in orders if m in both}, own


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


def compare_with_runs(
    solver: Solver, runs: xr.Dataset, start: Start, params: Params | None
) -> tuple[dict[str, Any], xr.Dataset]:
    """SGD runs minus the truncated theory, loop terms included.

    Parameters
    ----------
    solver : Solver
        Of the order to compare with; its WORDS must have been recorded.
    runs : Dataset
        From `simulate`, with attr ``kappa``.
    start : Start
        From which the runs were drawn.

    Returns
    -------
    dict
        At the last time, by moment: ``difference`` of the mean over runs from the theory of `start`, its ``sem`` and
        ``z``; ``paired``, the same with each run's theory started from the run's own moments.
    Dataset
        The theory of `start`, ``moment`` (time, word), ``loss``.
    """
    values = {**(params or {}), "kappa": float(runs.attrs["kappa"])}
    moving = set(solver.FLOW) | {solver.ADJOINT[n] for n in solver.FLOW}
    singles = [w for w in solver.WORDS if "." not in w]
    words = [w for w in (*solver.ORDER_PARAMETERS, *singles) if moving & set(w.split("."))]

    def theory(begin: Start) -> xr.Dataset:
        return solve(solver, runs.time.values, start=begin, params=values, options=Options(rtol=1e-7, atol=1e-9))

    limit = theory(start)
    measured = runs["moment"].sel(word=words).transpose("run", "time", "word").values
    good = np.isfinite(measured).all(axis=(1, 2))
    own = []
    for r in np.flatnonzero(good):
        first = runs["moment"].isel(run=r, time=0).sel(word=list(solver.WORDS)).values
        begin = Start(moments=dict(zip(solver.WORDS, map(float, first), strict=True)))
        own.append(theory(begin)["moment"].sel(word=words).values[-1])
    plain = _difference(measured[good, -1] - limit["moment"].sel(word=words).values[-1], words)
    paired = _difference(measured[good, -1] - np.array(own).reshape(-1, len(words)), words)
    facts = {"runs": int(good.sum()), "time": float(runs.time.values[-1]), "kappa": values["kappa"], "words": words}
    return {**facts, **plain, "paired": paired}, limit


def _difference(gaps: Floats, words: Sequence[str]) -> dict[str, dict[str, float]]:
    """Mean over runs (rows), its standard error and their ratio, by word."""
    count = len(gaps)
    mean = gaps.mean(axis=0) if count else np.full(len(words), np.nan)
    sem = gaps.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(words), np.nan)
    with np.errstate(all="ignore"):
        columns = {"difference": mean, "sem": sem, "z": mean / sem}
    return {name: dict(zip(words, map(float, column), strict=True)) for name, column in columns.items()}
