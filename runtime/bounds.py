"""Horizon and certificate of the truncation (closure zero), with what each hypothesis rests on.

A word is classed by how many of each letter it has, n = (n_1, n_2, ..).  Let E_n bound the error of all moments of
class n of the order-M truncation, G the couplings along the *truncated* path, and D_kl a bound of their
distance to the true couplings.  Subtracting the equations of the truncated from the true moments,

    E_n' <= 2 sum_k n_k sum_l ( |G_kl| E_{n+l} + D_kl b^{n+l} ),        k over the students,
    E_n = b^n for |n| = M + 1,    E_n = 0 for words of teachers alone,    E_n(0) = 0,

where ``b^n = prod_k b_k^{n_k}`` and ``b_k >= (tr |S_k|^{M+1})^{1/(M+1)}`` of the true solution: by Hoelder's
inequality for traces no moment of class n is larger.  A second-order Taylor bound gives

    D_kl = sum_pr |dG_kl/dq_pr| E_pr + C_kl (max E_pr)^2 / 2,

slopes along the truncated path, C_kl a bound of the second derivatives of G_kl for all q.  The operator norms a_k
and the b_k of a student obey, with g = -G + D,

    a_k' <= 2 a_k ( sum_{l != k} (g_kl)_+ a_l + g_kk a_k ),
    b_k' <= 2 b_k ( sum_{l != k} (g_kl)_+ a_l + g_kk b_k )     (a_k in place of b_k where g_kk > 0),

for positive S.  All of it is one quasi-monotone system: its solution bounds the error, with no circle.  A higher
order M' certifies a lower one too: ``|mu^M - mu| <= |mu^M - mu^M'| + bound(M')``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from tracewords.errors import ModelError
from tracewords.runtime.solver import Params, Solver
from tracewords.runtime.start import Start

Floats = NDArray[np.float64]
Curvature = Mapping[str, float] | None
OVERFLOW = 1e40


@dataclass(frozen=True)
class Hypothesis:
    """Something the certificate rests on."""

    name: str
    value: float
    proven: bool
    how: str


@dataclass(frozen=True)
class Certificate:
    """A bound of the truncation error of the order parameters.

    Attributes
    ----------
    order : int
    times, bound : (n,) arrays
        The bound over [0, t]; infinite where there is none.
    hypotheses : tuple of Hypothesis
    """

    order: int
    times: Floats
    bound: Floats
    hypotheses: tuple[Hypothesis, ...]

    @property
    def proven(self) -> bool:
        """Whether every hypothesis is."""
        return all(h.proven for h in self.hypotheses)


# -- horizons ---------------------------------------------------------------------------------------------


def coupling_matrix(solver: Solver, values: Floats) -> Floats:
    """G (students, letters, ...) from the couplings (C, ...)."""
    table = dict(zip(solver.COUPLINGS, values, strict=True))
    letters = range(len(solver.LETTERS))
    return np.array([[table[_name(*sorted((k, l)))] for l in letters] for k in range(len(solver.STUDENTS))])


def _name(k: int, l: int) -> str:
    return f"G{k + 1}{l + 1}" if max(k, l) < 9 else f"G{k + 1}_{l + 1}"


def horizon(solver: Solver, start: Start, params: Params | None = None) -> float:
    """T* = 1 / (2 g C^2) for tied matrices, couplings and operator norms of the start.

    Infinite for equations that close by themselves; NaN where norms are not known, and for other models.
    """
    if not solver.BOUNDARY:
        return float("inf")
    norms = start.norms()
    if norms is None or any(kind != "tied" for kind in solver.KINDS.values()):
        return float("nan")
    q = start.values(solver.ARGUMENTS)
    g = np.abs(coupling_matrix(solver, solver.couplings(q, params))).sum(axis=1).max()
    rate = 2.0 * g * max(norms.values())
    return float(1.0 / rate) if rate > 0 else float("inf")


def horizons(solver: Solver, trajectory: xr.Dataset, start: Start) -> dict[str, float]:
    """T* in several forms along a truncated path, with the operator norms of the start.

    ``start``: couplings of t = 0; ``run``: the largest T with ``T = 1 / (2 C^2 sup_[0,T] g)``; ``integrated``: where
    ``2 C^2 int g dt`` reaches one; ``sharp``: where ``x_k' = 2 x_k sum_l |G_kl| x_l`` from the norms blows up,
    couplings of t = 0.  Infinite if not reached on the path.
    """
    norms = start.norms()
    if norms is None:
        return dict.fromkeys(("start", "run", "integrated", "sharp"), float("nan"))
    size = max(norms.values())
    time = trajectory["time"].values
    matrix = np.abs(coupling_matrix(solver, trajectory["coupling"].transpose("name", "time").values))
    g = matrix.sum(axis=1).max(axis=0)
    steps = np.diff(time) * np.maximum(g[1:], g[:-1])
    return {
        "start": float(1.0 / (2.0 * size * g[0])) if g[0] > 0 else float("inf"),
        "run": _crossing(time, 2.0 * size * time * np.maximum.accumulate(g)),
        "integrated": _crossing(time, 2.0 * size * np.concatenate([[0.0], np.cumsum(steps)])),
        "sharp": _blow_up(matrix[..., 0], np.array([norms[k] for k in solver.LETTERS])),
    }


def _crossing(time: Floats, value: Floats) -> float:
    return float(np.interp(1.0, value, time)) if value[-1] >= 1 else float("inf")


def _blow_up(g: Floats, norms: Floats) -> float:
    """When the majorant of all Taylor series blows up, by its logarithm."""
    students = len(g)
    if not np.any(g):
        return float("inf")

    def slope(t: float, y: Floats) -> Floats:
        x = np.concatenate([np.exp(y), norms[students:]])
        return 2.0 * (g @ x)

    def far(t: float, y: Floats) -> float:
        return float(y.max() - np.log(1e12 * norms.max()))

    far.terminal = True  # type: ignore[attr-defined]
    end = 1e3 / (g.sum(axis=1).max() * norms.max())
    path = solve_ivp(slope, (0.0, end), np.log(norms[:students]), rtol=1e-10, atol=1e-12, events=far)
    return float(path.t[-1]) if path.status == 1 else float("inf")


# -- certificate ------------------------------------------------------------------------------------------


class Majorant:
    """The comparison equations along one truncated path.

    Parameters
    ----------
    solver : Solver
        Of order M; all matrices positive (tied).
    trajectory : Dataset
        Closure zero at that order, on a fine grid of times.
    start : Start
    curvature : mapping of coupling to bound, or None
        C_kl; None: nothing is known, slopes are sampled around the path and the result is an estimate.
    """

    def __init__(
        self, solver: Solver, trajectory: xr.Dataset, start: Start, params: Params | None, curvature: Curvature
    ) -> None:
        if any(kind != "tied" for kind in solver.KINDS.values()):
            raise ModelError("model", "matrices that are not tied", "tied matrices, for a certificate")
        self.solver, self.order = solver, int(solver.ORDER)
        self.students, self.letters = len(solver.STUDENTS), len(solver.LETTERS)
        self.grid = trajectory["time"].values
        self._classes()
        self._path(trajectory, params, curvature)
        norms = start.norms()
        assert norms is not None
        self.norms = np.array([norms[k] for k in solver.LETTERS])
        powers = start.values([".".join([k] * (self.order + 1)) for k in solver.LETTERS])
        self.roots = powers ** (1.0 / (self.order + 1))

    def _classes(self) -> None:
        """Classes n of words with a student, and for each step k, l the class n + l."""
        k, m = self.letters, self.order
        counts = [n for n in product(range(m + 1), repeat=k) if 1 <= sum(n) <= m and any(n[: self.students])]
        self.counts = np.array(sorted(counts, key=lambda n: (sum(n), n)))
        index = {tuple(n): i for i, n in enumerate(self.counts)}
        self.next = np.full((len(self.counts), k), -1)
        for i, n in enumerate(self.counts):
            for l in range(k):
                self.next[i, l] = index.get(tuple(n + (np.arange(k) == l)), -1)
        letter = {name: i for i, name in enumerate(self.solver.LETTERS)}
        pairs = [tuple(letter[x] for x in w.split(".")) for w in self.solver.ORDER_PARAMETERS]
        self.moving = np.array([min(p) < self.students for p in pairs])
        unit = np.eye(k, dtype=int)
        self.pair_class = np.array([index[tuple(unit[a] + unit[b])] for a, b in pairs if min(a, b) < self.students])

    def _path(self, trajectory: xr.Dataset, params: Params | None, curvature: Curvature) -> None:
        """Couplings and slopes on each interval of the grid: the larger neighbour, plus what lies between."""
        solver = self.solver
        q = trajectory["moment"].sel(word=list(solver.ORDER_PARAMETERS)).transpose("word", "time").values
        couplings = coupling_matrix(solver, trajectory["coupling"].transpose("name", "time").values)
        step = np.abs(np.diff(q, axis=1)).max(axis=0, initial=0.0)
        wide = np.maximum(step, np.maximum(np.append(step[1:], 0.0), np.append(0.0, step[:-1])))
        slopes = self._slopes(q, params)
        self.proven = curvature is not None
        if curvature is None:
            self.curve = np.zeros(couplings.shape[:2])
            near = self._slopes(self._around(q), params).max(axis=-1, keepdims=True)
            slopes = np.maximum(slopes, near)
        else:
            self.curve = coupling_matrix(solver, np.array([curvature[c] for c in solver.COUPLINGS]))
        pairs = np.maximum(slopes[..., 1:], slopes[..., :-1])
        self.slope = pairs + self.curve[:, :, None, None] * wide
        margin = self.slope.sum(axis=2) * wide
        self.size = np.maximum(np.abs(couplings[..., 1:]), np.abs(couplings[..., :-1])) + margin
        self.falling = np.maximum(-couplings[..., 1:], -couplings[..., :-1]) + margin

    def _slopes(self, q: Floats, params: Params | None) -> Floats:
        """|dG_kl/dq_pr| (students, letters, moving pairs, n)."""
        with np.errstate(all="ignore"):
            raw = self.solver.coupling_slopes(q, params).reshape(len(self.solver.COUPLINGS), len(q), -1)
        return np.nan_to_num(np.abs(coupling_matrix(self.solver, raw[:, self.moving])))

    def _around(self, q: Floats) -> Floats:
        steps = np.random.default_rng(0).uniform(-0.1, 0.1, (32, *q.shape)) * np.abs(q).max() * self.moving[:, None]
        return (q[None] + steps).transpose(1, 0, 2).reshape(len(q), -1)

    def _derivative(self, t: float, y: Floats, i: int) -> Floats:
        """Right side of the comparison equations on interval i; y = errors, operator norms, roots of traces."""
        size, s = len(self.counts), self.students
        error, norm, root = y[:size], y[size : size + self.letters], y[size + self.letters :]
        pairs = error[self.pair_class]
        shift = self.slope[..., i] @ pairs + 0.5 * self.curve * pairs.max() ** 2
        power = np.prod(root**self.counts, axis=1)[:, None] * root  # b^{n+l}
        following = np.where(self.next >= 0, error[self.next], np.where(self.edge, power, 0.0))
        rates = np.einsum("kl,nl->nk", self.size[..., i], following) + np.einsum("kl,nl->nk", shift, power)
        growth = 2.0 * (self.counts[:, :s] * rates).sum(axis=1)
        g = self.falling[..., i] + shift
        own = np.diagonal(g)[:s]
        others = np.maximum(g, 0.0)
        others[np.arange(s), np.arange(s)] = 0.0
        push = others @ norm
        still = np.zeros(self.letters - s)
        norms = 2.0 * norm[:s] * (push + own * norm[:s])
        roots = 2.0 * root[:s] * (push + own * np.where(own > 0, norm[:s], root[:s]))
        return np.concatenate([growth, norms, still, roots, still])

    def solve(self) -> tuple[Floats, Floats]:
        """Bounds of the order parameters' errors (n,) and operator norms (n, letters); infinite once they overflow."""
        self.edge = (self.counts.sum(axis=1) == self.order)[:, None]
        size = len(self.counts)
        state = np.concatenate([np.zeros(size), self.norms, self.roots])
        bound, norms = np.full(len(self.grid), np.inf), np.full((len(self.grid), self.letters), np.inf)
        bound[0], norms[0] = 0.0, self.norms
        for i, (a, b) in enumerate(zip(self.grid, self.grid[1:], strict=False)):
            # piece by piece: the coefficients jump at grid points
            with np.errstate(all="ignore"):
                piece = solve_ivp(
                    self._derivative, (a, b), state, method="DOP853", rtol=1e-7, atol=1e-40, args=(i,), first_step=b - a
                )
            state = piece.y[:, -1]
            if not (piece.success and np.all(np.isfinite(state)) and state.max() < OVERFLOW):
                break
            bound[i + 1], norms[i + 1] = state[self.pair_class].max(), state[size : size + self.letters]
        return np.maximum.accumulate(bound), norms


def certify(
    solver: Solver, trajectory: xr.Dataset, start: Start, params: Params | None, curvature: Curvature
) -> Certificate:
    """Bound of the errors of the order parameters at the trajectory's times, from this order alone."""
    majorant = Majorant(solver, trajectory, start, params, curvature)
    bound, norms = majorant.solve()
    source = "of the given matrices" if start.factors is not None else "edges of the limiting spectra"
    reached = np.isfinite(bound)
    proven = majorant.proven
    slope = "on the path, plus a bound of second derivatives for all q" if proven else "largest sampled near the path"
    hypotheses = (
        Hypothesis("initial moments exact, kappa = 0", 0.0, True, "by construction"),
        Hypothesis("operator norms at the start", float(majorant.norms.max()), True, source),
        Hypothesis("operator norms, largest", float(norms[reached].max()), proven, "comparison equation"),
        Hypothesis(
            "sum of |couplings|, largest",
            float(majorant.size.sum(axis=1).max()),
            proven,
            "truncated path; slopes bound what lies between grid times",
        ),
        Hypothesis("slope of a coupling, largest", float(majorant.slope.max()), proven, slope),
    )
    return Certificate(solver.ORDER, majorant.grid, bound, hypotheses)


def combine(certificates: Mapping[int, Certificate], paths: Mapping[int, Floats]) -> dict[int, Certificate]:
    """Each order's certificate, improved by those of higher orders.

    Parameters
    ----------
    certificates : mapping of order to Certificate
    paths : mapping of order to (n, Q) array
        Truncated order parameters at the certificates' times; shorter where an order failed.
    """
    result = dict(certificates)
    orders: Sequence[int] = sorted(certificates)
    for low in orders:
        for high in orders:
            if high <= low:
                continue
            n = min(len(paths[low]), len(paths[high]), len(result[low].bound))
            gap = np.maximum.accumulate(np.abs(paths[low][:n] - paths[high][:n]).max(axis=1))
            other = gap + certificates[high].bound[:n]
            if np.all(other >= result[low].bound[:n]):
                continue
            bound = np.minimum(result[low].bound[:n], other)
            hypotheses = (
                certificates[high].hypotheses if not certificates[low].proven or certificates[high].proven else ()
            )
            chosen = hypotheses or certificates[low].hypotheses
            result[low] = replace(result[low], times=result[low].times[:n], bound=bound, hypotheses=chosen)
    return result
