"""A-posteriori estimate of the truncation error: not a bound.

The error e of the truncated moments obeys, to first order in e, ``e' = J e - f``: J the Jacobian of the truncated
equations along their own solution, f what the dropped moments of order M + 1 would have added.  Taking those moments
from the `operator` closure turns it into an estimate of the error with its sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from tracewords.runtime.solver import Params, Solver

Floats = NDArray[np.float64]


def error_estimate(
    solver: Solver, truncated: xr.Dataset, reference: xr.Dataset, params: Params | None = None
) -> Floats:
    """Estimated error of each order parameter, truncated minus true.

    Parameters
    ----------
    solver : Solver
        Of the truncated order M.
    truncated : Dataset
        Closure zero, on a fine grid.
    reference : Dataset
        Closure `operator` at the same times (or more), with moments of order M + 1.

    Returns
    -------
    (n, Q) array
        At the times of `truncated`; NaN where the reference lacks a moment of order M + 1.
    """
    times = truncated["time"].values
    known = set(map(str, reference["word"].values))
    if len(times) < 4 or not set(solver.BOUNDARY) <= known:
        return np.full((len(times), len(solver.ORDER_PARAMETERS)), np.nan)
    mu = truncated["moment"].transpose("word", "time").values
    far = reference["moment"].sel(word=list(solver.BOUNDARY)).transpose("word", "time").values[:, : len(times)]
    values: Mapping[str, Any] = solver.parameters(params)
    forcing = CubicSpline(times, solver.rhs(0.0, mu, values, boundary=far) - solver.rhs(0.0, mu, values), axis=1)
    jacobian = CubicSpline(times, solver.jacobian(0.0, mu, values), axis=2)

    def slope(t: float, e: Floats) -> Floats:
        return jacobian(t) @ e - forcing(t)

    path = solve_ivp(slope, (times[0], times[-1]), np.zeros(len(mu)), t_eval=times, rtol=1e-6, atol=1e-12)
    out = np.full((len(times), len(solver.ORDER_PARAMETERS)), np.nan)
    out[: path.y.shape[1]] = solver.order_parameters(path.y).T
    return out
