"""Compiled kernels: load, evaluate, run sweeps of trajectories."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracewords.errors import KernelError, ModelError
from tracewords.runtime.compiler import ABI, compile_source

LANES = 8
ALIGNMENT = 64
Rule = tuple[ArrayLike, ArrayLike]


class Status(IntEnum):
    """How a trajectory of a batch ended."""

    OK = 0
    LEFT_DOMAIN = 1
    UNDERFLOW = 2  # step size underflow, or a state or derivative that is not finite
    TOO_MANY_STEPS = 3
    INTERRUPTED = 4


# --- arrays for C -------------------------------------------------------------


class _CRule(ctypes.Structure):
    _fields_ = (("n", ctypes.c_long), ("z", ctypes.c_void_p), ("w", ctypes.c_void_p))


def _aligned(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Uninitialised doubles that start at a multiple of `ALIGNMENT` bytes."""
    count = int(np.prod(shape))
    raw = np.empty(count * 8 + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count * 8].view(np.float64).reshape(shape)


def _real(name: str, value: ArrayLike, shape: tuple[int | None, ...], accepted: str) -> NDArray[np.float64]:
    """`value` as a C-contiguous float64 array of this shape (None: any length)."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ModelError(name, f"array of dtype {array.dtype}", "real numbers")
    wanted = tuple(have if want is None else want for want, have in zip(shape, array.shape, strict=False))
    if array.ndim != len(shape) or array.shape != wanted:
        raise ModelError(name, f"array of shape {array.shape}", accepted)
    return np.ascontiguousarray(array, dtype=np.float64)


class _Context:
    """Quadrature rules as the C array of struct that the kernel gets; keeps the arrays alive."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.arrays: list[NDArray[np.float64]] = []
        self.table = (_CRule * max(len(rules), 1))()
        for entry, (points, weights) in zip(self.table, rules, strict=False):
            w = _real("rules", weights, (None,), "weights of shape (P,)")
            z = _real("rules", points, (None, w.size), f"points of shape (dim, {w.size})")
            if not w.size:
                raise ModelError("rules", "a rule without points", "at least one point")
            padded = -(-w.size // LANES) * LANES
            new_z, new_w = _aligned((z.shape[0], padded)), _aligned((padded,))
            # padding repeats a point of the rule: the integrand is as harmless there as anywhere
            new_z[:, : w.size], new_z[:, w.size :] = z, z[:, :1]
            new_w[: w.size], new_w[w.size :] = w, 0.0
            self.arrays += [new_z, new_w]
            entry.n, entry.z, entry.w = padded, new_z.ctypes.data, new_w.ctypes.data


# --- the kernel ---------------------------------------------------------------


@dataclass(frozen=True)
class BatchResult:
    """Trajectories of a batch (T times, K moments, N trajectories).

    A trajectory whose initial state was refused has ``reached == times[0]`` and a first row of NaN.
    """

    times: NDArray[np.float64]  # (T,)
    moments: NDArray[np.float64]  # (T, K, N), NaN where a trajectory did not get
    status: NDArray[np.intc]  # (N,), values of Status
    reached: NDArray[np.float64]  # (N,), last time up to which the trajectory is good
    steps: int  # attempted, all blocks together

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return bool(np.any(self.status == Status.INTERRUPTED))


def _call_interruptible(call: Callable[[ctypes.c_int], int]) -> int:
    """Run a C call that polls a stop flag; Ctrl-C sets the flag, and what is done by then is kept.

    Python sees signals only between bytecodes of the main thread, so there the call goes to a helper thread.
    """
    stop = ctypes.c_int(0)
    if threading.current_thread() is not threading.main_thread():
        return call(stop)
    with ThreadPoolExecutor(1, "tracewords-kernel") as pool:  # leaving it waits: the call writes into our arrays
        future = pool.submit(call, stop)
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                stop.value = 1
            except BaseException:
                stop.value = 1
                raise


class CKernel:
    """A compiled solver: right-hand side and adaptive integrator over batches of trajectories.

    Parameters
    ----------
    library : Path
        From `compile_source`.
    n_state, n_param : int
        K and P; checked against the library.
    rules : sequence of (z (dim, P), w (P,))
        Quadrature rules, in the order in which the source numbers them.
    source, cc, flags : optional
        How to build the library again; needed for pickling.  `from_source` fills them in.
    """

    def __init__(
        self,
        library: Path,
        n_state: int,
        n_param: int,
        rules: Sequence[Rule] = (),
        *,
        source: str | None = None,
        cc: str | None = None,
        flags: Sequence[str] | None = None,
    ) -> None:
        self.library, self.n_state, self.n_param = Path(library), n_state, n_param
        self.rules = tuple((np.array(z, dtype=float), np.array(w, dtype=float)) for z, w in rules)
        self._spec = (source, cc, None if flags is None else tuple(flags))
        self._context = _Context(self.rules)
        try:
            loaded = ctypes.CDLL(str(self.library))
            shape = tuple((ctypes.c_long * 4).in_dll(loaded, "tracewords_shape"))
            self._solve, self._rhs = loaded.tracewords_solve, loaded.tracewords_rhs
        except (OSError, ValueError, AttributeError) as error:
            raise KernelError(f"cannot load the kernel {self.library}: {error}") from error
        self._loaded = loaded
        wanted = (ABI, n_state, n_param, LANES)
        if shape != wanted:
            raise KernelError(f"kernel {self.library} is for (ABI, K, P, lanes) = {shape}, not {wanted}")
        long, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
        self._solve.argtypes = (long, long, *[pointer] * 3, *[real] * 3, long, *[pointer] * 6)
        self._rhs.argtypes = (long, real, *[pointer] * 4)
        self._solve.restype = self._rhs.restype = ctypes.c_int

    @classmethod
    def from_source(
        cls,
        source: Path | str,
        n_state: int,
        n_param: int,
        rules: Sequence[Rule] = (),
        *,
        cc: str | None = None,
        flags: Sequence[str] | None = None,
    ) -> CKernel:
        """Compile (or find in the cache) and load."""
        if isinstance(source, Path):
            source = source.read_text(encoding="utf-8")
        library = compile_source(source, cc=cc, flags=flags)
        return cls(library, n_state, n_param, rules, source=source, cc=cc, flags=flags)

    @property
    def key(self) -> str:
        """What the library was built from, as a digest."""
        return self.library.stem

    def __repr__(self) -> str:
        return f"CKernel({self.key[:12]}, n_state={self.n_state}, n_param={self.n_param})"

    def __reduce__(self) -> tuple[Any, ...]:
        source, cc, flags = self._spec
        if source is None:
            raise KernelError("a kernel loaded without its source cannot be pickled; use CKernel.from_source")
        rebuild = functools.partial(CKernel.from_source, cc=cc, flags=flags)
        return rebuild, (source, self.n_state, self.n_param, self.rules)

    def _parameters(self, params: ArrayLike | None, n: int) -> NDArray[np.float64]:
        accepted = f"shape ({self.n_param}, {n}), or ({self.n_param},) for all trajectories"
        if params is None and self.n_param == 0:
            params = np.empty((0, n))
        array = np.asarray(params)
        if array.ndim == 1 and array.shape[0] == self.n_param:
            array = np.repeat(array[:, None], n, axis=1)
        return _real("params", array, (self.n_param, n), accepted)

    def rhs(self, t: float, mu: ArrayLike, params: ArrayLike | None = None) -> NDArray[np.float64]:
        """dmu/dt for a batch: mu (K, N) or (K,), params (P, N) or (P,); the result has the shape of mu."""
        mu = np.asarray(mu)
        single = mu.ndim == 1
        accepted = f"shape ({self.n_state}, N) or ({self.n_state},)"
        state = _real("mu", mu[:, None] if single else mu, (self.n_state, None), accepted)
        n = state.shape[1]
        par = self._parameters(params, n)
        out = np.empty_like(state)
        pointers = [a.ctypes.data for a in (state, par)]
        if self._rhs(n, float(t), *pointers, ctypes.addressof(self._context.table), out.ctypes.data):
            raise MemoryError("no memory for the kernel's workspace")
        return out[:, 0] if single else out

    def evaluate(
        self, function: str, rows: tuple[int, ...], mu: ArrayLike, params: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Another exported ``int function(long n, mu, parameters, ctx, out)``: mu (K, N) -> (*rows, N)."""
        state = _real("mu", mu, (self.n_state, None), f"shape ({self.n_state}, N)")
        n = state.shape[1]
        par = self._parameters(params, n)
        out = np.empty((*rows, n))
        try:
            call = self._loaded[function]
        except AttributeError as error:
            raise KernelError(f"kernel {self.library} has no function {function}") from error
        call.argtypes, call.restype = (ctypes.c_long, *[ctypes.c_void_p] * 4), ctypes.c_int
        pointers = [a.ctypes.data for a in (state, par)]
        if call(n, *pointers, ctypes.addressof(self._context.table), out.ctypes.data):
            raise MemoryError("no memory for the kernel's workspace")
        return out

    def solve(
        self,
        times: ArrayLike,
        mu0: ArrayLike,
        params: ArrayLike | None = None,
        *,
        rtol: float = 1e-8,
        atol: float = 1e-10,
        feas_tol: float = 1e-9,
        max_steps: int = 100_000,
    ) -> BatchResult:
        """Integrate a batch with Dormand-Prince 8(5,3).

        Parameters
        ----------
        times : (T,)
            Output times, nondecreasing; `mu0` is the state at ``times[0]``.
        mu0 : (K, N)
            Initial moments.
        params : (P, N) or (P,)
            Parameters per trajectory, or the same for all.
        rtol, atol : float
            Local error per step, as in `scipy.integrate.solve_ivp`.
        feas_tol : float
            A state is out of its domain when the kernel's feasibility function is below ``-feas_tol``.
        max_steps : int
            Attempted steps allowed to a block of trajectories before its slowest ones are stopped.

        Returns
        -------
        BatchResult
            On Ctrl-C too: what was not reached is NaN and has status `Status.INTERRUPTED`.
        """
        grid = _real("times", times, (None,), "one-dimensional, nondecreasing")
        if not np.all(np.isfinite(grid)) or np.any(np.diff(grid) < 0.0):
            raise ModelError("times", grid, "finite and nondecreasing")
        if not (np.isfinite(rtol) and rtol > 0.0):
            raise ModelError("rtol", rtol, "a positive number")
        if not (np.isfinite(atol) and atol >= 0.0):
            raise ModelError("atol", atol, "a number, zero or more")
        if np.isnan(feas_tol):
            raise ModelError("feas_tol", feas_tol, "a number")
        state = _real("mu0", mu0, (self.n_state, None), f"shape ({self.n_state}, N)")
        n = state.shape[1]
        par = self._parameters(params, n)
        out = np.empty((grid.size, self.n_state, n))
        status, reached, steps = np.empty(n, dtype=np.intc), np.empty(n), ctypes.c_long(0)
        pointers = [a.ctypes.data for a in (grid, state, par)]
        results = [a.ctypes.data for a in (out, status, reached)]
        context = ctypes.addressof(self._context.table)

        def call(stop: ctypes.c_int) -> int:
            return self._solve(
                n, grid.size, *pointers, rtol, atol, feas_tol, max_steps, context,
                *results, ctypes.addressof(steps), ctypes.addressof(stop),
            )  # fmt: skip

        if _call_interruptible(call):
            raise MemoryError("no memory for the kernel's workspace")
        return BatchResult(grid, out, status, reached, steps.value)
