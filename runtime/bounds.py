"""Horizon and certificate of the truncation (closure zero), with what each hypothesis rests on.

Let e be the error of the moments of the truncated equations, ``E_w = sup |e_a|`` over words of w letters, G the
couplings along the *truncated* path, ``g = max_k sum_l |G_kl|``, and L a Lipschitz constant of the couplings:
``max_k sum_l |dG_kl| <= L max |dq|``.  Subtracting the equations of the truncated from the true moments,

    E_w' <= 2 w (g E_{w+1} + L E_2 m_{w+1}),   E_{M+1} = m_{M+1},   E(0) = 0,

where ``m_w`` bounds every true moment of w letters.  By Hoelder's inequality for traces ``m_w = max_k tr |S_k|^w``
will do, and for a student, with S_k positive,

    d tr S_k^w / dt <= 2 w (sum_l (L E_2 + (-G_kl)_+) |S_l|) tr S_k^w,

and likewise for its operator norm.  These comparison equations are integrated together: their solution
bounds the error as long as their hypotheses hold.  The coarser certificate with ``m_w = C^{2w}``, C^2 the
largest operator norm, is the one whose convergence gives the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from tracewords.runtime.solver import Params, Solver
from tracewords.runtime.start import Start

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Hypothesis:
    """Something the certificate rests on."""

    name: str
    value: float
    proven: bool
    how: str


@dataclass(frozen=True)
class Certificate:
    """A bound of the truncation error over [0, time].

    Attributes
    ----------
    order, time : int, float
        M and the end of the interval.
    bound : float
        Of the error of the moments of order two, absolute.
    coarse : float
        The same with operator norms in place of traces of powers.
    hypotheses : tuple of Hypothesis
    """

    order: int
    time: float
    bound: float
    coarse: float
    hypotheses: tuple[Hypothesis, ...]

    @property
    def proven(self) -> bool:
        """Whether every hypothesis is."""
        return all(h.proven for h in self.hypotheses)


def coupling_matrix(solver: Solver, values: Floats) -> Floats:
    """G (K, K', ...) from the couplings (C, ...): row per student, column per letter."""
    letters, students = solver.LETTERS, solver.STUDENTS
    table = dict(zip(solver.COUPLINGS, values, strict=True))
    rows = []
    for k in range(len(students)):
        names = [_name(*sorted((k, l))) for l in range(len(letters))]
        rows.append([table[n] for n in names])
    return np.array(rows)


def _name(k: int, l: int) -> str:
    return f"G{k + 1}{l + 1}" if max(k, l) < 9 else f"G{k + 1}_{l + 1}"


def horizon(solver: Solver, start: Start, params: Params | None = None) -> float:
    """T* = 1 / (2 g C^2) with the couplings and operator norms of the start; NaN where norms are not known."""
    norms = start.norms()
    if norms is None:
        return float("nan")
    q = start.values(solver.ORDER_PARAMETERS)
    g = np.abs(coupling_matrix(solver, solver.couplings(q, params))).sum(axis=1).max()
    rate = 2.0 * g * max(norms.values())
    return float(1.0 / rate) if rate > 0 else float("inf")


def _moving(solver: Solver) -> NDArray[np.bool_]:
    """Which order parameters can differ between two solutions: those with a student in them."""
    return np.array([any(x in solver.STUDENTS for x in w.split(".")) for w in solver.ORDER_PARAMETERS])


def _slope_sum(solver: Solver, q: Floats, params: Params | None, moving: NDArray[np.bool_]) -> Floats:
    slopes = solver.coupling_slopes(q, params).reshape(len(solver.COUPLINGS), len(solver.ORDER_PARAMETERS), -1)
    return _combine(solver, np.abs(slopes[:, moving]))


def _combine(solver: Solver, slopes: Floats) -> Floats:
    """max_k sum_l sum_q of slopes (C, Q, n)."""
    return coupling_matrix(solver, slopes.sum(axis=1)).sum(axis=1).max(axis=0)


class Majorant:
    """The comparison equations along one truncated path.

    Parameters
    ----------
    solver : Solver
        Of order M.
    trajectory : Dataset
        Closure zero at that order, on a fine grid of times.
    start : Start
    curvature : float or None
        Bound of how fast the Lipschitz constant changes with q; None: slopes are sampled instead.
    """

    def __init__(
        self, solver: Solver, trajectory: xr.Dataset, start: Start, params: Params | None, curvature: float | None
    ) -> None:
        self.solver = solver
        self.grid = trajectory["time"].values
        couplings = trajectory["coupling"].transpose("name", "time").values
        q = trajectory["moment"].sel(word=list(solver.ORDER_PARAMETERS)).transpose("word", "time").values
        variation = np.abs(np.diff(q, axis=1)).max(axis=0, initial=0.0)
        moving = _moving(solver)
        self.curvature = curvature
        if curvature is None:
            self.curve = 0.0
            self.slope = np.full(len(variation), _sampled_slope(solver, q, params, moving))
        else:
            self.curve = curvature
            along = _slope_sum(solver, q, params, moving)
            self.slope = np.maximum(along[1:], along[:-1]) + curvature * variation
        # between grid points the couplings stay within the larger neighbour plus what the slope allows
        margin = self.slope * variation
        matrix = coupling_matrix(solver, couplings)
        size, falling = np.abs(matrix), np.maximum(-matrix, 0.0)
        self.size = np.maximum(size[..., 1:], size[..., :-1]).sum(axis=1).max(axis=0) + margin
        self.falling = np.maximum(falling[..., 1:], falling[..., :-1])
        self.margin = margin
        norms = start.norms()
        assert norms is not None
        self.norms = np.array([norms[k] for k in solver.LETTERS])
        words = [".".join([k] * w) for k in solver.LETTERS for w in range(1, solver.ORDER + 2)]
        self.moments = start.values(words).reshape(len(solver.LETTERS), -1)

    def solve(self, coarse: bool) -> tuple[Floats, Floats]:
        """Bounds E_1 .. E_M (n, M) and operator norms (n, letters) at the grid times; infinite once they overflow."""
        order, letters, students = self.solver.ORDER, len(self.solver.LETTERS), len(self.solver.STUDENTS)
        powers = np.arange(1, order + 2)

        def slope(t: float, y: Floats, i: int) -> Floats:
            error, norm, moment = y[:order], y[order : order + letters], y[order + letters :].reshape(letters, -1)
            shift = (self.slope[i] + self.curve * error[1]) * error[1]  # sum_l |G_kl - truncated G_kl|
            rate = np.zeros(letters)
            rate[:students] = 2.0 * (self.falling[:, :, i] @ norm + (shift + self.margin[i]) * norm.max())
            bound = norm.max() ** powers if coarse else moment.max(axis=0)
            following = np.append(error[1:], bound[-1])
            growth = 2.0 * powers[:-1] * (self.size[i] * following + shift * bound[1:])
            return np.concatenate([growth, rate * norm, (rate[:, None] * powers * moment).ravel()])

        state = np.concatenate([np.zeros(order), self.norms, self.moments.ravel()])
        bounds = np.full((len(self.grid), order), np.inf)
        norms = np.full((len(self.grid), letters), np.inf)
        bounds[0], norms[0] = 0.0, self.norms
        for i, (a, b) in enumerate(zip(self.grid, self.grid[1:], strict=False)):
            # piece by piece: the coefficients jump at grid points
            with np.errstate(all="ignore"):
                piece = solve_ivp(slope, (a, b), state, method="DOP853", rtol=1e-8, atol=1e-30, args=(i,))
            state = piece.y[:, -1]
            if not (piece.success and np.all(np.isfinite(state)) and state[:order].max() < 1e60):
                break
            bounds[i + 1], norms[i + 1] = state[:order], state[order : order + letters]
        return bounds, norms


def _sampled_slope(solver: Solver, q: Floats, params: Params | None, moving: NDArray[np.bool_]) -> float:
    """Largest slope at points around a path; an estimate, not a bound."""
    rng = np.random.default_rng(0)
    steps = rng.uniform(-0.1, 0.1, (32, *q.shape)) * np.abs(q).max() * moving[:, None]
    around = np.concatenate([q[None], q[None] + steps]).transpose(1, 0, 2).reshape(len(q), -1)
    with np.errstate(all="ignore"):
        return float(np.nanmax(_slope_sum(solver, around, params, moving)))


def certify(
    solver: Solver, trajectory: xr.Dataset, start: Start, params: Params | None, curvature: float | None
) -> tuple[Floats, Certificate]:
    """Bound of the errors of order two over the trajectory's times.

    Parameters
    ----------
    curvature : float or None
        See `Majorant`; from the derivation of the model.

    Returns
    -------
    (n,) array
        The bound at each time of the trajectory; infinite where there is none.
    Certificate
        At its last time.
    """
    majorant = Majorant(solver, trajectory, start, params, curvature)
    (fine, norms), (coarse, _) = majorant.solve(coarse=False), majorant.solve(coarse=True)
    bound = np.minimum(fine[:, 1], coarse[:, 1])
    source = "of the given matrices" if start.factors is not None else "edges of the limiting spectra"
    if curvature is None:
        slope = Hypothesis("Lipschitz constant of the couplings", float(majorant.slope.max()), False, "largest slope sampled near the path")
    else:
        reach = float((majorant.slope + majorant.curve * np.minimum(bound[1:], 1e30)).max())
        how = "slopes on the path, plus a bound of their variation over all overlaps"
        slope = Hypothesis("Lipschitz constant of the couplings", reach, True, how)
    hypotheses = (
        Hypothesis("operator norms at the start", float(majorant.norms.max()), True, source),
        Hypothesis("operator norms at the end", float(norms[-1].max()), curvature is not None, "comparison equation"),
        Hypothesis("sum of couplings, largest", float(majorant.size.max()), curvature is not None, "truncated path, with the Lipschitz constant between grid times"),
        slope,
    )
    last = float(trajectory["time"].values[-1])
    return bound, Certificate(solver.ORDER, last, float(bound[-1]), float(coarse[-1, 1]), hypotheses)


def horizons(solver: Solver, trajectory: xr.Dataset, start: Start, params: Params | None) -> Mapping[str, float]:
    """T* in three forms along a truncated path.

    ``start``: couplings and norms of t = 0; ``run``: the largest T with T = 1 / (2 C^2 sup_[0,T] g), norms of
    t = 0; ``integrated``: where ``2 C^2 int g dt`` reaches one.  Infinite if not reached on the path.
    """
    norms = start.norms()
    if norms is None:
        return {"start": float("nan"), "run": float("nan"), "integrated": float("nan")}
    size = max(norms.values())
    time = trajectory["time"].values
    matrix = coupling_matrix(solver, trajectory["coupling"].transpose("name", "time").values)
    g = np.abs(matrix).sum(axis=1).max(axis=0)
    sup = 2.0 * size * time * np.maximum.accumulate(g)
    steps = np.diff(time) * np.maximum(g[1:], g[:-1])
    area = 2.0 * size * np.concatenate([[0.0], np.cumsum(steps)])
    return {
        "start": float(1.0 / (2.0 * size * g[0])) if g[0] > 0 else float("inf"),
        "run": _crossing(time, sup),
        "integrated": _crossing(time, area),
    }


def _crossing(time: Floats, value: Floats) -> float:
    if value[-1] < 1:
        return float("inf")
    return float(np.interp(1.0, value, time))
