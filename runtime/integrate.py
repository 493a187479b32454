"""Trajectories of the moments under a closure, as an xarray Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tracewords.errors import HorizonError, ModelError
from tracewords.runtime.closures import FlatExtension
from tracewords.runtime.matrixflow import MatrixFlow, compress, plain_moments, vacuum_moments
from tracewords.runtime.solver import Params, Solver
from tracewords.runtime.start import Start
from tracewords.runtime.stepping import Path, Progress, integrate
from tracewords.runtime.store import provenance
from tracewords.runtime.twoscale import FastStage, Manifold
from tracewords.runtime.wordindex import WordIndex

Floats = NDArray[np.float64]
CLOSURES = ("zero", "flat", "operator", "matrix")
REFINE_TIMES = 3


@dataclass(frozen=True)
class Options:
    """How to integrate.

    Attributes
    ----------
    rtol, atol : float
        Of the integrator.
    quadrature : float, optional
        Relative tolerance of the couplings; default by dimension.
    size, seed : int
        Of the sampled matrices of closure `matrix`.
    drop : float
        Relative squared norm below which a word is a combination of shorter ones (closure `operator`).
    """

    rtol: float = 1e-9
    atol: float = 1e-11
    backend: str = "auto"
    quadrature: float | None = None
    size: int = 300
    seed: int = 0
    drop: float = 1e-13
    max_steps: int = 100_000


def check_times(times: Sequence[float] | Floats) -> Floats:
    """Times as an increasing array that starts at 0."""
    try:
        array = np.asarray(times, dtype=float).ravel()
    except (TypeError, ValueError) as error:
        raise ModelError("times", times, "numbers from 0 on, increasing") from error
    if len(array) == 0 or not np.all(np.isfinite(array)) or array.min() < 0 or np.any(np.diff(array) < 0):
        raise ModelError("times", list(array)[:8], "finite numbers from 0 on, increasing")
    return array if array[0] == 0 else np.concatenate([[0.0], array])


def overlap_fault(solver: Solver, tolerance: float = 1e-9) -> Callable[[Floats, float], str | None]:
    """A check of states: the matrix of overlaps tr(S_k' S_l) of all score matrices must be positive semidefinite.

    Its smallest eigenvalue may be ``slack - tolerance`` times its largest diagonal entry.
    """
    index = np.array(solver.GRAM)

    def check(mu: Floats, slack: float) -> str | None:
        gram = mu[index]
        if not np.all(np.isfinite(gram)):
            return "the overlaps are not finite"
        lowest = np.linalg.eigvalsh(gram)[0]
        if lowest < (slack - tolerance) * max(np.abs(np.diag(gram)).max(), 1e-300):
            return f"the overlaps are not positive semidefinite: eigenvalue {lowest:.2g}"
        return None

    return check


def solve(
    solver: Solver,
    times: Sequence[float] | Floats,
    *,
    closure: str = "zero",
    start: Start,
    params: Params | None = None,
    options: Options = Options(),
    horizon: float = np.inf,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Moments, loss and couplings at the given times.

    Parameters
    ----------
    solver : Solver
    times : sequence of float
        In the unit ``solver.TIME_UNIT``; increasing.
    closure : {"zero", "flat", "operator", "matrix"}
    start : Start
    params : mapping, optional
        Parameter values; ``kappa`` > 0 adds the loop terms (closures zero and flat).
    horizon : float
        Proven horizon T* of closure zero, for the record and for errors.

    Returns
    -------
    xarray.Dataset
        ``moment`` (time, word), ``loss`` (time), ``coupling`` (time, name); attrs say status and provenance.

    Raises
    ------
    HorizonError
        The truncation left its domain; `partial` holds the times before.
    """
    if closure not in CLOSURES:
        raise ModelError("closure", closure, f"one of {', '.join(CLOSURES)}")
    grid = check_times(times)
    values = solver.parameters(params)
    q0 = start.values(solver.ARGUMENTS)
    rules = solver.rules(q0[:, None], values, options.quadrature)
    for _ in range(REFINE_TIMES):
        manifold = Manifold(solver, dict(values), rules)
        fast = manifold.relax(q0) if manifold.letters else None
        path, words, used = _run(solver, grid, closure, start, manifold, options, progress)
        along = path.states[:, [words.index(w) for w in solver.ARGUMENTS]].T
        if not len(path.states):
            break
        finer = solver.rules(along[:, :: max(1, along.shape[1] // 8)], values, options.quadrature)
        if all(len(finer[d][1]) <= len(rules[d][1]) for d in solver.DIMENSIONS):
            break
        rules = finer
    dataset = _dataset(solver, grid, words, path, along, manifold, fast)
    dataset.attrs |= {"closure": closure, "backend": used, "horizon": horizon}
    if path.status in ("horizon", "diverged"):
        others = tuple(c for c in ("operator", "flat", "matrix") if c != closure)
        raise HorizonError(path.reached, horizon, path.reason, dataset, others)
    return dataset


def _run(
    solver: Solver,
    grid: Floats,
    closure: str,
    start: Start,
    manifold: Manifold,
    options: Options,
    progress: Progress | None,
) -> tuple[Path, tuple[str, ...], str]:
    """The path in moments, the words it holds, and what computed it."""
    if closure == "zero" and not manifold.letters:
        kernel = solver.kernel(manifold.rules, options.backend)
        if kernel is not None:
            return _compiled(solver, kernel, grid, start, manifold.values, options), solver.WORDS, "c"
    if closure in ("zero", "flat"):
        return _hierarchy(solver, grid, closure, start, manifold, options, progress), solver.WORDS, "numpy"
    return _matrices(solver, grid, closure, start, manifold, options, progress)


def _compiled(
    solver: Solver, kernel: Any, grid: Floats, start: Start, values: dict[str, Any], options: Options
) -> Path:
    mu = start.values(solver.WORDS)[:, None]
    params = np.array([float(values[p]) for p in solver.PARAMETERS])[:, None]
    result = kernel.solve(grid, mu, params, rtol=options.rtol, atol=options.atol, max_steps=options.max_steps)
    status = {0: "ok", 1: "horizon", 2: "diverged", 3: "budget", 4: "interrupted"}[int(result.status[0])]
    reasons = {
        "horizon": "the overlaps are not positive semidefinite",
        "diverged": "the moments grow without bound",
        "budget": f"more than {options.max_steps} steps",
        "interrupted": "stopped by the user",
    }
    rows = result.moments[:, :, 0]
    good = np.isfinite(rows).all(axis=1)
    return Path(rows[good], status, float(result.reached[0]), reasons.get(status, ""))


def _hierarchy(
    solver: Solver,
    grid: Floats,
    closure: str,
    start: Start,
    manifold: Manifold,
    options: Options,
    progress: Progress | None,
) -> Path:
    boundary = FlatExtension(solver) if closure == "flat" else None
    check = overlap_fault(solver)

    def derivative(t: float, mu: Floats) -> Floats:
        far = boundary(mu) if boundary is not None else None
        return solver.rhs(t, mu, manifold.at(solver.order_parameters(mu)), boundary=far, rule=manifold.rules)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return integrate(
            derivative, start.values(solver.WORDS), grid, options.rtol, options.atol, check, options.max_steps, progress
        )


def _matrices(
    solver: Solver,
    grid: Floats,
    closure: str,
    start: Start,
    manifold: Manifold,
    options: Options,
    progress: Progress | None,
) -> tuple[Path, tuple[str, ...], str]:
    if closure == "matrix":
        matrices = start.matrices(options.size, np.random.default_rng(options.seed))
        letters = {k: m for k, m in matrices.items() if not k.endswith("'")}
        flow = MatrixFlow(solver, letters, plain_moments, manifold)
        words: tuple[str, ...] = solver.WORDS
    else:
        n = (solver.ORDER - 1) // 2
        index = WordIndex(solver)
        flow = MatrixFlow(
            solver, compress(_moments(solver, start, index), index, n, options.drop), vacuum_moments, manifold
        )
        words = tuple(w for w in solver.WORDS if w.count(".") < 2 * n + 1)
    path = integrate(flow.derivative, flow.start, grid, options.rtol, options.atol, None, options.max_steps, progress)
    moments = np.array([flow.moments(state, words) for state in path.states]).reshape(-1, len(words))
    return Path(moments, path.status, path.reached, path.reason), words, "numpy"


def _moments(solver: Solver, start: Start, index: WordIndex) -> Callable[[tuple[str, ...]], float]:
    """Initial moments of words in any rotation."""
    values = start.values(solver.WORDS)
    memo: dict[tuple[str, ...], float] = {(): 1.0}

    def moment(word: tuple[str, ...]) -> float:
        if word not in memo:
            memo[word] = float(values[index.position[index.least(word)]])
        return memo[word]

    return moment


def _dataset(
    solver: Solver,
    grid: Floats,
    words: Sequence[str],
    path: Path,
    along: Floats,
    manifold: Manifold,
    fast: FastStage | None,
) -> xr.Dataset:
    times = grid[: len(path.states)]
    means = _means_along(manifold, along, fast)
    values, rules = manifold.parameters(means), manifold.rules
    empty = np.zeros((len(solver.COUPLINGS), 0))
    coupling = solver.couplings(along, values, rules) if len(times) else empty
    loss = solver.potential(along, values, rules) if len(times) else np.zeros(0)
    dataset = xr.Dataset(
        {
            "moment": (("time", "word"), path.states, {"long_name": "trace moments tr(S_1 .. S_w), tr = Tr/d"}),
            "loss": (("time",), loss, {"long_name": "population loss"}),
            "coupling": (("time", "name"), coupling.T, {"long_name": "coefficients of the equations"}),
        },
        coords={
            "time": ("time", times, {"units": solver.TIME_UNIT, "long_name": solver.TIME}),
            "word": ("word", np.array(words, dtype=str)),
            "name": ("name", np.array(solver.COUPLINGS, dtype=str)),
        },
        attrs=provenance(solver),
    )
    if fast is not None:
        dataset = dataset.assign(
            mean=(("time", "letter"), means.T, {"long_name": "means d^(-1/2) Tr S on the critical manifold"}),
            fast_mean=(("fast_time", "letter"), fast.means, {"long_name": "means during the fast stage"}),
        ).assign_coords(
            letter=("letter", np.array(manifold.letters, dtype=str)),
            fast_time=("fast_time", fast.times, {"units": "alpha n", "long_name": "t_fast"}),
        )
        dataset.attrs |= {"fast_stage_settled": int(fast.settled), "folds": len(manifold.events)}
    dataset.attrs |= {f"parameter_{k}": float(v) for k, v in manifold.values.items()}
    dataset.attrs |= {"order_parameters": " ".join(solver.ORDER_PARAMETERS), "students": " ".join(solver.STUDENTS)}
    dataset.attrs |= {"status": path.status, "reached": path.reached, "reason": path.reason}
    return dataset


def _means_along(manifold: Manifold, along: Floats, fast: FastStage | None) -> Floats:
    """Means (K, n) on the manifold along the arguments (Q, n), from where the fast stage ended."""
    if fast is None:
        return np.zeros((0, along.shape[1]))
    follower = Manifold(manifold.solver, dict(manifold.values), manifold.rules)
    follower.mean = fast.means[-1].copy()
    rows = []
    for q in along.T:
        follower.at(q)
        rows.append(follower.mean.copy())
    return np.array(rows).reshape(-1, len(manifold.letters)).T
