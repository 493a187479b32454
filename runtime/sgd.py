"""One-pass SGD of a tied model: fresh tokens every step, order parameters recorded along the way.

Each run has its own random numbers: run r of a seed is the same whatever other runs are made beside it, so
runs may be spread over processes by ``seeds=[r]``.  float32 and float64 runs start from the same matrices
and then see different tokens.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from tracewords.errors import DivergedError, ModelError
from tracewords.runtime.free import law_from_data
from tracewords.runtime.initial import empirical_moments
from tracewords.runtime.sgd_steps import PARAMETRISATIONS, Batches, Learner, memory_bytes, tokens_read
from tracewords.runtime.store import provenance

Sampler = Callable[[np.random.Generator, int, int], NDArray[np.float64]]
Progress = Callable[[int, int, dict[str, Any]], Any]
Stop = Callable[[dict[str, Any]], Any]

TIME_FACTORS = {"4 alpha n / d": 4.0, "alpha n / d": 1.0}
CHECK = 8  # steps between looks at the size of h; the batch loss is looked at every step
GROWTH = 1e5  # h this many times larger than at the start: the run has diverged
TICK = 0.2  # seconds between reports of progress
MAX_ORDER = 12


def bracelets(letters: Sequence[str], order: int) -> list[str]:
    """Words in symmetric letters up to rotation and reversal, lengths 1 to `order`, shortest first."""
    found: list[str] = []
    for length in range(1, order + 1):
        for word in product(range(len(letters)), repeat=length):
            turns = [w[i:] + w[:i] for w in (word, word[::-1]) for i in range(length)]
            if word == min(turns):
                found.append(".".join(letters[k] for k in word))
    return found


@dataclass(frozen=True)
class Plan:
    """Everything a run needs, checked; `steps` are the steps to record at, `unit` the time of one step."""

    solver: Any
    d: int
    batch: int
    alpha: float
    kappa: float
    dtype: str
    params: dict[str, float]
    steps: list[int]
    unit: float
    words: list[str]
    runs: list[int]
    seed: int
    initial: dict[str, Any] = field(repr=False)

    def letter_data(self, letter: str, rng: np.random.Generator) -> NDArray[np.float64]:
        """W (d, r) of a letter: given, sampled by the caller's function, or drawn from its law."""
        given = self.initial.get(letter, self.solver.LAWS[letter])
        where = f"initial.{letter}"
        if callable(given):
            given = given(rng, self.d, max(1, round(self.solver.RANK_RATIOS[letter] * self.d)))
        if isinstance(given, np.ndarray):
            W = np.asarray(given, np.float64)
            if W.ndim != 2 or W.shape[0] != self.d or W.shape[1] < 1:
                raise ModelError(where, f"an array of shape {W.shape}", f"W of shape ({self.d}, r)")
            if not np.isfinite(W).all():
                raise ModelError(where, "entries that are not finite", "finite numbers")
            return W
        return law_from_data(letter, given, kind="tied").sample(self.d, rng)["W"]


# -- input -------------------------------------------------------------------------------------------------


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ModelError(name, value, f"an integer of at least {least}")
    return int(value)


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ModelError(name, value, "a finite number above 0")
    return number


def _step_size(kappa: Any, alpha: Any, params: Mapping[str, float], d: int, batch: int) -> float:
    """alpha, given as such or by kappa = alpha d / B."""
    if alpha is not None:
        if kappa is not None:
            raise ModelError("alpha", alpha, "either alpha or kappa = alpha d / batch, not both")
        return _positive("alpha", alpha)
    if kappa is None and params.get("kappa"):
        kappa = params["kappa"]
    if kappa is None:
        raise ModelError("kappa", "nothing", "kappa = alpha d / batch above 0, or alpha")
    return _positive("kappa", kappa) * batch / d


def _steps(times: ArrayLike, unit: float) -> list[int]:
    try:
        t = np.atleast_1d(np.asarray(times, np.float64))
    except (TypeError, ValueError):
        raise ModelError("times", times, "numbers") from None
    if t.ndim != 1 or t.size == 0 or not np.isfinite(t).all() or t[0] < 0 or (np.diff(t) < 0).any():
        raise ModelError("times", t.tolist(), "finite times from 0 on, in increasing order, at least one")
    if t[-1] / unit > 2**53:
        raise ModelError("times", t[-1], f"at most {2**53 * unit:.3g} at this step size")
    return [int(n) for n in np.rint(t / unit)]


def _parameters(solver: Any, params: Mapping[str, float] | None) -> dict[str, float]:
    known = {name: float(value) for name, value in solver.PARAMETERS.items()}
    for name, value in (params or {}).items():
        if name not in known:
            raise ModelError(f"parameter {name}", value, f"one of {', '.join(known)}")
        if np.ndim(value) or not np.isfinite(value) or (name == "gamma" and value < 0):
            raise ModelError(f"parameter {name}", value, "one finite number, gamma at least 0")
        known[name] = float(value)
    return known


def _words(solver: Any, words: Sequence[str] | None, order: int) -> list[str]:
    letters = tuple(solver.LETTERS)
    if words is None:
        most = _integer("order", order, 1)
        if most > MAX_ORDER:
            raise ModelError("order", order, f"at most {MAX_ORDER}; name single words by `words`")
        return bracelets(letters, most)
    for word in words:
        if not isinstance(word, str) or any(name not in letters for name in word.split(".")):
            raise ModelError("words", word, f"names joined by dots, each one of {', '.join(letters)}")
    return list(dict.fromkeys(words))


def _runs(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int | np.integer):
        return list(range(_integer("seeds", seeds, 1)))
    runs = [_integer("seeds", r, 0) for r in seeds]
    if not runs or len(set(runs)) < len(runs):
        raise ModelError("seeds", runs, "at least one run, each once")
    return runs


def available_bytes() -> int | None:
    """Memory that may be had, counting what the system would give up; None where it cannot be told."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _require_memory(plan: Plan) -> None:
    ranks = {letter: max(1, round(ratio * plan.d)) for letter, ratio in plan.solver.RANK_RATIOS.items()}
    need = memory_bytes(plan.solver, plan.d, plan.batch, np.dtype(plan.dtype).itemsize, ranks)
    room = available_bytes()
    if room is not None and need > room:
        raise ModelError(
            "d, batch",
            f"{plan.d}, {plan.batch}: {need / 2**30:.3g} GiB needed",
            f"sizes that fit in the {room / 2**30:.3g} GiB available",
        )


def _plan(solver: Any, options: Mapping[str, Any]) -> Plan:
    """The options of `simulate`, checked."""
    d, batch = _integer("d", options["d"], 2), _integer("batch", options["batch"], 1)
    if solver.TIME_UNIT not in TIME_FACTORS:
        raise ModelError("TIME_UNIT", solver.TIME_UNIT, " or ".join(TIME_FACTORS))
    for letter, kind in solver.KINDS.items():
        if kind not in PARAMETRISATIONS:
            raise ModelError(f"parametrisation of {letter}", kind, f"for SGD: {', '.join(PARAMETRISATIONS)}")
    dtype = options["dtype"]
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    if name not in ("float32", "float64"):
        raise ModelError("dtype", name, "float32 or float64")
    initial = dict(options["initial"] or {})
    for letter in initial:
        if letter not in solver.LETTERS:
            raise ModelError("initial", letter, f"one of {', '.join(solver.LETTERS)}")
    params = _parameters(solver, options["params"])
    alpha = _step_size(options["kappa"], options["alpha"], params, d, batch)
    unit = TIME_FACTORS[solver.TIME_UNIT] * alpha / d
    plan = Plan(
        solver, d, batch, alpha, alpha * d / batch, name, params, _steps(options["times"], unit), unit,
        _words(solver, options["words"], options["order"]), _runs(options["seeds"]),
        _integer("seed", options["seed"], 0), initial,
    )  # fmt: skip
    _require_memory(plan)
    return plan


# -- runs --------------------------------------------------------------------------------------------------


class _Results:
    """What the runs recorded: NaN wherever a run did not get to."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        solver = plan.solver
        runs, times = len(plan.runs), len(plan.steps)
        self.words = list(dict.fromkeys([*plan.words, *solver.LETTERS, *solver.ORDER_PARAMETERS]))
        self.squares = [self.words.index(f"{k}.{k}") for k in solver.STUDENTS]
        self.moment = np.full((runs, times, len(self.words)), np.nan)
        self.loss, self.loss_sem = np.full((2, runs, times), np.nan)
        self.status = ["interrupted"] * runs
        self.diverged_step = [-1] * runs
        self.reason = ""
        teachers = [k for k in solver.LETTERS if k not in solver.STUDENTS]
        self.pair = (solver.STUDENTS[0], teachers[0]) if teachers else None

    def overlap(self, run: Any, k: Any) -> NDArray[np.float64]:
        """p_12 / sqrt(p_11 p_22), p_kl = q_kl - t_k t_l, of the first student and the first teacher."""
        if self.pair is None:
            return np.full(self.loss.shape, np.nan)[run, k]
        a, b = self.pair
        t1, t2, q11, q12, q22 = (
            self.moment[run, k, self.words.index(w)] for w in (a, b, f"{a}.{a}", f"{a}.{b}", f"{b}.{b}")
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            return (q12 - t1 * t2) / np.sqrt((q11 - t1 * t1) * (q22 - t2 * t2))

    def dataset(self, wall: float) -> xr.Dataset:
        """All runs as a Dataset with dimensions run, time, word."""
        plan, solver = self.plan, self.plan.solver
        columns = [self.words.index(w) for w in plan.words]
        steps = np.array(plan.steps, np.int64)
        along = ("run", "time")
        variables = {
            "moment": (("run", "time", "word"), self.moment[:, :, columns], {"long_name": "tr of the word, tr = Tr / d"}),
            "loss": (along, self.loss, {"long_name": "batch loss, mean since the record before"}),
            "loss_sem": (along, self.loss_sem, {"long_name": "standard error of the loss over samples"}),
            "overlap": (along, self.overlap(slice(None), slice(None)), {"long_name": self._overlap_name()}),
            "status": ("run", np.array(self.status), {"values": "ok, stopped, diverged, interrupted"}),
            "diverged_step": ("run", np.array(self.diverged_step, np.int64), {"long_name": "-1 if it did not"}),
        }
        coords = {
            "time": ("time", steps * plan.unit, {"units": solver.TIME_UNIT, "long_name": solver.TIME}),
            "run": ("run", np.array(plan.runs, np.int64)),
            "word": ("word", np.array(plan.words)),
            "step": ("time", steps, {"long_name": "steps of SGD, n"}),
            "seed": ("run", np.full(len(plan.runs), plan.seed), {"long_name": "run r has SeedSequence(seed, spawn_key=(r,))"}),
        }
        attrs = provenance(
            solver, seed=plan.seed, alpha=plan.alpha, kappa=plan.kappa, gamma=plan.params.get("gamma", 0.0),
            batch=plan.batch, d=plan.d, dtype=plan.dtype, parameters=json.dumps(plan.params), wall_seconds=wall,
        )  # fmt: skip
        return xr.Dataset(variables, coords, attrs)

    def _overlap_name(self) -> str:
        if self.pair is None:
            return "no teacher"
        a, b = self.pair
        return f"p({a},{b}) / sqrt(p({a},{a}) p({b},{b})), p(k,l) = tr(k l) - tr(k) tr(l)"


class _Run:
    """One run: learner, tokens, and the sums of the loss since the last record."""

    def __init__(self, plan: Plan, results: _Results, index: int, report: Callable[..., None], stop: Stop | None) -> None:
        self.plan, self.results, self.index, self.report, self.stop = plan, results, index, report, stop
        start, data = np.random.SeedSequence(plan.seed, spawn_key=(plan.runs[index],)).spawn(2)
        letters = plan.solver.LETTERS
        generators = map(np.random.default_rng, start.spawn(len(letters)))
        factors = {letter: plan.letter_data(letter, rng) for letter, rng in zip(letters, generators, strict=True)}
        self.learner = Learner(plan.solver, factors, plan.batch, plan.dtype, plan.params)
        read = tokens_read(plan.solver.PREACTIVATIONS)
        covariance = np.asarray(plan.solver.COVARIANCE, np.float64)[np.ix_(read, read)]
        self.batches = Batches(data, (len(read), plan.batch, plan.d), covariance, plan.dtype)
        self.sums = [0, 0.0, 0.0]
        self.largest = math.inf
        self.k = 0

    def go(self) -> str:
        """Run to the last record; the status."""
        try:
            with np.errstate(all="ignore"):  # a diverging run overflows before it is caught
                return self._iterate()
        finally:
            self.batches.close()

    def _iterate(self) -> str:
        plan, learner = self.plan, self.learner
        steps, alpha, decay = plan.steps, plan.alpha, plan.params.get("gamma", 0.0) / plan.d
        for n in range(steps[-1] + 1):
            due = n == steps[self.k]
            if due and n and (status := self._record(n)):
                return status
            x = self.batches.draw()
            losses = learner.loss(x)
            total = float(losses.sum())
            self.sums = [self.sums[0] + len(losses), self.sums[1] + total, self.sums[2] + float(losses @ losses)]
            if n == 0:
                self.largest = GROWTH * (1.0 + float(np.abs(learner.h).max()))
            if not math.isfinite(total):
                return self._diverged(n, "the batch loss is not finite")
            if n % CHECK == 0:
                if not float(np.abs(learner.h).max()) <= self.largest:
                    return self._diverged(n, f"pre-activations grew {GROWTH:g} fold")
                self.report(self.index, n, total / len(losses), False)
            if due and n == 0 and (status := self._record(0)):
                return status
            learner.step(x, alpha, decay)
        raise AssertionError("the last record ends the run")

    def _record(self, n: int) -> str:
        """Fill the records due at step n; a status if the run ends here."""
        results, run = self.results, self.index
        values = empirical_moments(self.learner.matrices(), results.words)
        if not np.isfinite(values).all():
            return self._diverged(n, "a moment is not finite")
        if values[results.squares].max() > self.largest**2:
            return self._diverged(n, f"pre-activations grew {GROWTH:g} fold")
        count, first, second = self.sums
        mean = first / count
        sem = math.sqrt(max(second / count - mean * mean, 0.0) / (count - 1)) if count > 1 else math.nan
        while self.k < len(self.plan.steps) and self.plan.steps[self.k] == n:
            results.moment[run, self.k] = values
            results.loss[run, self.k], results.loss_sem[run, self.k] = mean, sem
            self.k += 1
        if n:
            self.sums = [0, 0.0, 0.0]
        self.report(run, n, mean, True)
        if self.k == len(self.plan.steps):
            return "ok"
        if self.stop is not None:
            moments = dict(zip(results.words, values.tolist(), strict=True))
            overlap = float(results.overlap(run, self.k - 1))
            at = {"run": self.plan.runs[run], "step": n, "time": n * self.plan.unit}
            if self.stop({**at, "moments": moments, "overlap": overlap, "loss": mean}):
                return "stopped"
        return ""

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
    dtype: Literal["float32", "float64"] = "float64",
    order: int = 2,
    words: Sequence[str] | None = None,
    params: Mapping[str, float] | None = None,
    initial: Mapping[str, NDArray[np.float64] | Sampler | tuple[str, Mapping[str, Any]]] | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> xr.Dataset:
    """Run one-pass SGD and record trace moments.

    ``W <- W - alpha (gradient of the mean batch loss + (gamma / d) W)``, B fresh sequences of law
    N(0, C (x) I_d) every step.

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
        One of the two: noise level ``kappa = alpha d / B`` or step size; ``params["kappa"]`` if neither.
    dtype : {"float64", "float32"}
    order, words : int, sequence of str
        Moments to record: all up to this order, or these.
    params : mapping of str to float
    initial : mapping of letter to array (d, r), function or law
        W of a letter, or ``f(rng, d, r) -> W``, or law data; the solver's law otherwise.
    progress : callable ``(done, total, info)``
        Called a few times a second; counts are steps of all runs.
    stop : callable ``(info) -> bool``
        Called after each record with run, step, time, moments, overlap, loss; true ends that run as "stopped".

    Returns
    -------
    xarray.Dataset
        ``moment (run, time, word)``, ``loss``, ``loss_sem``, ``overlap (run, time)``, ``status``,
        ``diverged_step (run)``.  A record that a run did not reach is NaN.  The loss at a record is the mean
        over the steps since the record before; at step 0, that of the first batch.  Ctrl-C returns what
        there is.

    Raises
    ------
    DivergedError
        If every run diverged; `partial` has the Dataset.
    """
    options = {
        "d": d, "batch": batch, "times": times, "seeds": seeds, "seed": seed, "kappa": kappa, "alpha": alpha,
        "dtype": dtype, "order": order, "words": words, "params": params, "initial": initial,
    }  # fmt: skip
    plan = _plan(solver, options)
    results = _Results(plan)
    began = time.perf_counter()
    total = plan.steps[-1] * len(plan.runs)
    last = [0.0]

    def report(index: int, n: int, loss: float, always: bool) -> None:
        now = time.perf_counter()
        if progress is not None and (always or now - last[0] > TICK):
            last[0] = now
            info = {"run": plan.runs[index], "step": n, "time": n * plan.unit, "loss": loss}
            progress(index * plan.steps[-1] + n, total, info)

    with contextlib.suppress(KeyboardInterrupt):  # what was recorded until then is the result
        for index in range(len(plan.runs)):
            results.status[index] = _Run(plan, results, index, report, stop).go()
    data = results.dataset(time.perf_counter() - began)
    if set(results.status) == {"diverged"}:
        step = min(results.diverged_step)
        raise DivergedError(step, step * plan.unit, results.reason, data)
    return data


# -- many runs as one --------------------------------------------------------------------------------------


def summary(ds: xr.Dataset) -> xr.Dataset:
    """Mean and standard error over the runs that got there.

    Returns
    -------
    xarray.Dataset
        ``mean, sem (time, word)``; ``loss_mean, loss_sem, overlap_mean, overlap_sem (time)``; ``count (time)``,
        the runs that have a value.  The standard error of one run is NaN.
    """
    count = ds.loss.notnull().sum("run")
    out: dict[str, xr.DataArray] = {"count": count}
    for name, prefix in (("moment", ""), ("loss", "loss_"), ("overlap", "overlap_")):
        values = ds[name]
        got = values.notnull().sum("run")
        mean = values.sum("run").where(got > 0) / got.where(got > 0)
        spread = ((values - mean) ** 2).sum("run") / (got - 1).where(got > 1)
        out[f"{prefix}mean"], out[f"{prefix}sem"] = mean, np.sqrt(spread / got.where(got > 0))
    return xr.Dataset(out, attrs=ds.attrs)


def zscores(ds: xr.Dataset, theory: xr.Dataset | xr.DataArray) -> xr.DataArray:
    """(SGD mean - theory) / standard error, (time, word).

    Parameters
    ----------
    ds : Dataset
        From `simulate` or `summary`.
    theory : DataArray (time, word) or a Dataset with it as `moment`
        At the times that were recorded (``ds.time``), to 1e-6 of the last one.
    """
    data = ds if "mean" in ds else summary(ds)
    values = theory["moment"] if isinstance(theory, xr.Dataset) else theory
    missing = [w for w in data.word.values if w not in values.word.values]
    if missing:
        raise ModelError("theory", f"no {', '.join(missing)}", "moments of all recorded words")
    tolerance = 1e-6 * max(float(data.time[-1]), 1e-300)
    near = np.abs(values.time.values[None, :] - data.time.values[:, None])
    if near.size == 0 or (near.min(axis=1) > tolerance).any():
        raise ModelError("theory", "other times", "values at the recorded times, ds.time")
    matched = values.isel(time=near.argmin(axis=1)).sel(word=data.word).assign_coords(time=data.time)
    return ((data["mean"] - matched) / data["sem"]).transpose("time", "word")
