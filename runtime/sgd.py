"""One-pass SGD of a model: fresh tokens every step, order parameters recorded along the way.

Every run has its own random numbers: run r of a seed is the same whatever runs are made beside it, so runs
may be spread over processes by ``seeds=[r]``.  float32 and float64 runs start from the same matrices and
see different tokens.
"""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from tracewords.errors import DivergedError, ModelError
from tracewords.runtime import sgd_matrices, sgd_steps
from tracewords.runtime.initial import empirical_moments
from tracewords.runtime.sgd_records import Alphabet, Records
from tracewords.runtime.sgd_starts import check_traces, draw_factors
from tracewords.runtime.sgd_steps import Batches, Learner, tokens_read
from tracewords.runtime.store import summary, zscores

__all__ = ["simulate", "summary", "zscores"]

Array = NDArray[np.float64]
Info = SimpleNamespace
Stop = Callable[[Info], Any] | None
Options = Mapping[str, Any]

TIME_FACTORS = {"4 alpha n / d": 4.0, "alpha n / d": 1.0}
CHECK = 8  # steps between looks at the size of h; the batch loss is looked at every step
GROWTH = 1e5  # h this many times larger than at the start: the run has diverged
TICK = 0.2  # seconds between reports of progress


@dataclass(frozen=True)
class Plan:
    """What every run needs, checked; `steps` are the steps to record at, `unit` the time of one step."""

    solver: Any
    d: int
    batch: int
    alpha: float
    dtype: str
    params: dict[str, float]
    steps: list[int]
    unit: float
    words: list[str]
    runs: list[int]
    seed: int
    initial: dict[str, Any] = field(repr=False)

    def factors(self, seed: np.random.SeedSequence) -> dict[str, sgd_matrices.Factors]:
        """What each letter starts from: given, from the caller's function, or drawn from a law."""
        letters = self.solver.LETTERS
        streams = zip(letters, map(np.random.default_rng, seed.spawn(len(letters))), strict=True)
        factors = {k: draw_factors(self.solver, k, self.initial.get(k), self.d, rng, self.params) for k, rng in streams}
        check_traces(self.solver, factors)
        return factors


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= 2**53:
        raise ModelError(name, value, f"a whole number from {least} to 2**53")
    return int(value)


def _number(name: str, value: Any, accepted: str, good: Callable[[float], bool]) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and good(number)):
        raise ModelError(name, value, accepted)
    return number


def _params(solver: Any, given: Mapping[str, float]) -> dict[str, float]:
    known = {name: float(value) for name, value in solver.PARAMETERS.items()}
    for name, value in given.items():
        if name not in known:
            raise ModelError(f"parameter {name}", value, f"one of {', '.join(known)}")
        least = 0.0 if name in ("gamma", "kappa") else -math.inf
        accepted = "one finite number" if least else "one finite number of at least 0"
        known[name] = _number(f"parameter {name}", value, accepted, partial(operator.le, least))
    return known


def _step_size(options: Options, params: Mapping[str, float], d: int, batch: int) -> float:
    """alpha, given as such or by kappa = alpha d / B."""
    alpha, kappa = options["alpha"], options["kappa"]
    if alpha is not None and kappa is not None:
        raise ModelError("alpha", alpha, "either alpha or kappa = alpha d / batch, not both")
    if alpha is not None:
        return _number("alpha", alpha, "a finite number above 0", lambda x: x > 0)
    kappa = params.get("kappa", 0.0) if kappa is None else kappa
    return _number("kappa", kappa, "kappa = alpha d / batch above 0, or alpha", lambda x: x > 0) * batch / d


def _steps(times: ArrayLike, unit: float) -> list[int]:
    try:
        t = np.atleast_1d(np.asarray(times, np.float64))
    except (TypeError, ValueError):
        raise ModelError("times", times, "finite numbers") from None
    if t.ndim != 1 or t.size == 0 or not np.isfinite(t).all() or t[0] < 0 or (np.diff(t) < 0).any():
        raise ModelError("times", t.tolist(), "one or more finite times of at least 0, none before the last")
    if t[-1] / unit > 2**53:
        raise ModelError("times", t[-1], f"at most {2**53 * unit:.3g} with steps this small")
    return [int(n) for n in np.rint(t / unit)]


def _words(solver: Any, words: Sequence[str] | None, order: int | None) -> list[str]:
    alphabet = Alphabet(solver)
    if words is not None:
        return alphabet.checked(words)
    return alphabet.default() if order is None else alphabet.up_to(_integer("order", order, 1))


def _runs(seeds: int | Sequence[int]) -> list[int]:
    if not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str):
        return list(range(_integer("seeds", seeds, 1)))
    runs = [_integer("seeds", r, 0) for r in seeds]
    if not runs or len(set(runs)) < len(runs):
        raise ModelError("seeds", runs, "one or more runs, each once")
    return runs


def _plan(solver: Any, options: Options) -> Plan:
    """The options of `simulate`, checked."""
    d, batch = _integer("d", options["d"], 2), _integer("batch", options["batch"], 1)
    if solver.TIME_UNIT not in TIME_FACTORS:
        raise ModelError("TIME_UNIT", solver.TIME_UNIT, " or ".join(TIME_FACTORS))
    for letter, kind in solver.KINDS.items():
        if kind not in sgd_matrices.KINDS:
            raise ModelError(f"parametrisation of {letter}", kind, f"in SGD: {', '.join(sgd_matrices.KINDS)}")
    dtype = getattr(options["dtype"], "__name__", str(options["dtype"]))
    if dtype not in ("float32", "float64"):
        raise ModelError("dtype", dtype, "float32 or float64")
    initial = dict(options["initial"] or {})
    for letter in initial:
        if letter not in solver.LETTERS:
            raise ModelError("initial", letter, f"one of {', '.join(solver.LETTERS)}")
    params = _params(solver, options["params"] or {})
    alpha = _step_size(options, params, d, batch)
    unit = TIME_FACTORS[solver.TIME_UNIT] * alpha / d
    steps, words = _steps(options["times"], unit), _words(solver, options["words"], options["order"])
    runs, seed = _runs(options["seeds"]), _integer("seed", options["seed"], 0)
    sgd_steps.require_memory(solver, d, batch, dtype)
    return Plan(solver, d, batch, alpha, dtype, params, steps, unit, words, runs, seed, initial)


class Run:
    """One run: its matrices, its tokens, and the sums of the loss since the last record."""

    def __init__(self, results: Records, index: int, report: Callable[..., None], stop: Stop) -> None:
        self.results, self.index, self.report, self.stop = results, index, report, stop
        self.plan = plan = results.plan
        start, data = np.random.SeedSequence(plan.seed, spawn_key=(plan.runs[index],)).spawn(2)
        self.learner = Learner(plan.solver, plan.factors(start), plan.batch, plan.dtype, plan.params)
        read = tokens_read(plan.solver.PREACTIVATIONS)
        covariance = np.asarray(plan.solver.COVARIANCE, np.float64)[np.ix_(read, read)]
        self.batches = Batches(data, (len(read), plan.batch, plan.d), covariance, plan.dtype)
        self.count, self.sum, self.squares = 0, 0.0, 0.0
        self.largest = math.inf
        self.k = 0  # the next record

    def go(self) -> str:
        """Run to the last record; the status."""
        try:
            with np.errstate(all="ignore"):  # a diverging run overflows before it is caught
                return self._iterate()
        finally:
            self.batches.close()

    def _iterate(self) -> str:
        plan, learner = self.plan, self.learner
        decay = plan.params.get("gamma", 0.0) / plan.d
        for n in range(plan.steps[-1] + 1):
            due = n == plan.steps[self.k]
            if due and n and (status := self._record(n)):
                return status
            x = self.batches.draw()
            if status := self._look(n, learner.loss(x)):
                return status
            if due and n == 0 and (status := self._record(n)):
                return status
            learner.step(x, plan.alpha, decay)
        raise AssertionError("the last record ends the run")

    def _look(self, n: int, losses: NDArray[Any]) -> str:
        """Add up the loss; a status if the run ends here."""
        total = float(losses.sum())
        if not math.isfinite(total):
            return self._diverged(n, "the batch loss is not finite")
        self.count += len(losses)
        self.sum += total
        self.squares += float(losses @ losses)
        if n % CHECK == 0:
            size = float(np.abs(self.learner.h).max())
            if n == 0:
                self.largest = GROWTH * (1.0 + size)
            if not size <= self.largest:
                return self._diverged(n, f"pre-activations grew {GROWTH:g} fold")
            self.report(self.index, n, total / len(losses), False)
        return ""

    def _record(self, n: int) -> str:
        """Fill the records due at step n; a status if the run ends here."""
        results, plan, run = self.results, self.plan, self.index
        matrices = self.learner.matrices()
        row = empirical_moments(matrices, results.words)
        values = dict(zip(results.words, row.tolist(), strict=True))
        size = max(float(np.vdot(matrices[s], matrices[s])) / plan.d for s in plan.solver.STUDENTS)
        if not (np.isfinite(row).all() and size <= self.largest**2):
            return self._diverged(n, "a moment is not finite or far too large")
        mean = self.sum / self.count
        variance = max(self.squares / self.count - mean * mean, 0.0)
        sem = math.sqrt(variance / (self.count - 1)) if self.count > 1 else math.nan
        overlap = results.overlap_of(values)
        while self.k < len(plan.steps) and plan.steps[self.k] == n:
            results.moment[run, self.k] = row
            results.mean[run, self.k] = [np.trace(matrices[s]) / math.sqrt(plan.d) for s in results.scores]
            results.loss[run, self.k], results.loss_sem[run, self.k] = mean, sem
            results.overlap[run, self.k] = overlap
            self.k += 1
        if n:  # the batch at step 0 counts for the first two records
            self.count, self.sum, self.squares = 0, 0.0, 0.0
        self.report(run, n, mean, True)
        if self.k == len(plan.steps):
            return "ok"
        info = Info(run=plan.runs[run], step=n, time=n * plan.unit, loss=mean)
        info.overlap, info.moments = overlap, values
        return "stopped" if self.stop is not None and self.stop(info) else ""

    def _diverged(self, n: int, reason: str) -> str:
        self.results.diverged_step[self.index] = n
        self.results.reason = self.results.reason or reason
        return "diverged"


def simulate(
    solver: Any,
    *,
    d: int,
    batch: int,
    times: ArrayLike,
    seeds: int | Sequence[int] = 1,
    seed: int = 0,
    kappa: float | None = None,
    alpha: float | None = None,
    dtype: str = "float64",
    order: int | None = None,
    words: Sequence[str] | None = None,
    params: Mapping[str, float] | None = None,
    initial: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, Info], Any] | None = None,
    stop: Stop = None,
) -> xr.Dataset:
    """Run one-pass SGD and record trace moments.

    ``P <- P - alpha (gradient of the mean batch loss + (gamma / d) P)`` for every trained factor P, with B fresh
    sequences of law N(0, C (x) I_d) every step.

    Parameters
    ----------
    solver : solver module
    d, batch : int
        Dimension of a token; sequences a step, B.
    times : array (T,)
        When to record, in the solver's unit of time; rounded to whole steps.
    seeds : int or sequence of int
        How many runs, or which ones.
    seed : int
        Run r draws from ``SeedSequence(seed, spawn_key=(r,))``.
    kappa, alpha : float
        One of the two: noise level ``kappa = alpha d / B``, or step size; ``params["kappa"]`` if neither.
    dtype : {"float64", "float32"}
    order, words : int, sequence of str
        Moments to record: all up to this order (of matrices of values the pairs), or these; if neither is given, the
        traces of the letters and the order parameters.
    params : mapping of str to float
        ``m_<letter>`` is added to ``d^{-1/2} Tr S`` of a matrix drawn from a law; given ones stay as they are.
    initial : mapping of letter to array, pair of arrays, function or law
        Tied: W (d, r) with ``S = W W'``; direct or symmetric: S (d, d); untied: the pair U, V (d, r) with
        ``S = U V'``; values: V (d, d_v).  Or ``f(rng, d, r)`` that returns them, or a law; the solver's law otherwise.
    progress : callable ``(done, total, info)``
        A few times a second and at records; counts are steps of all runs; info has run, step, time, loss.
    stop : callable ``(info) -> bool``
        Called after a record; info has overlap and moments too; true ends that run as "stopped".

    Returns
    -------
    xarray.Dataset
        ``moment (run, time, word)``, ``score_mean (run, time, letter)``, which is ``d^{-1/2} Tr S`` of the students,
        ``loss``, ``loss_sem``, ``overlap (run, time)``, ``status``, ``diverged_step (run)``; NaN wherever a run did
        not get to.  The loss at a record is the mean over the steps since the record before, at step 0 that of the
        first batch.  Ctrl-C returns what there is.

    Raises
    ------
    DivergedError
        If every run diverged; `partial` has the Dataset.
    """
    options: Options = {
        "d": d, "batch": batch, "times": times, "seeds": seeds, "seed": seed, "kappa": kappa, "alpha": alpha,
        "dtype": dtype, "order": order, "words": words, "params": params, "initial": initial,
    }  # fmt: skip
    plan = _plan(solver, options)
    results = Records(plan)
    began = shown = time.perf_counter()

    def report(index: int, n: int, loss: float, always: bool) -> None:
        nonlocal shown
        if progress is not None and (always or time.perf_counter() - shown > TICK):
            shown = time.perf_counter()
            info = Info(run=plan.runs[index], step=n, time=n * plan.unit, loss=loss)
            progress(index * plan.steps[-1] + n, len(plan.runs) * plan.steps[-1], info)

    # Ctrl-C: what was recorded until then is the result
    with contextlib.suppress(KeyboardInterrupt), sgd_steps.leave_a_core():
        for index in range(len(plan.runs)):
            results.status[index] = Run(results, index, report, stop).go()
    data = results.dataset(time.perf_counter() - began)
    if set(results.status) == {"diverged"}:
        step = min(results.diverged_step)
        raise DivergedError(step, step * plan.unit, results.reason, data)
    return data
