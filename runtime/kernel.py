"""Compiled kernels: build once into the user's cache, load, run sweeps of trajectories.

The cache holds, for each key, ``<key>.so`` and ``<key>.sha256``, the digest of the key and the library's
bytes.  An entry whose digest does not match (half-written, foreign, renamed) is a miss and is built again.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike, NDArray
from platformdirs import user_cache_path

from tracewords import __version__
from tracewords.errors import KernelError, ModelError

LANES = 8
ABI = 1  # of the exported functions; TRACEWORDS_ABI in batch.c.j2
ALIGNMENT = 64
BUILD_TIMEOUT = 600.0  # seconds, for one compiler run and for waiting on another process's build

# Of fast-math only what is safe: fused multiply-add, no errno from sqrt.  NaN keeps its meaning.
_TARGET = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
DEFAULT_FLAGS = ("-std=c11", "-O3", _TARGET, "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi")
_LINK_FLAGS = ("-fPIC", "-shared")

Rule = tuple[ArrayLike, ArrayLike]

_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warn with this text, once per process."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, UserWarning, stacklevel=2)


class Status(IntEnum):
    """How a trajectory of a batch ended."""

    OK = 0
    LEFT_DOMAIN = 1
    UNDERFLOW = 2  # step size underflow, or a state or derivative that is not finite
    TOO_MANY_STEPS = 3
    INTERRUPTED = 4


# --- compiler and key ---------------------------------------------------------


def _run(command: Sequence[str], cwd: Path | None = None) -> tuple[int, str]:
    """Exit status of a command (an argument list, never a shell line) and all that it said."""
    shown = f"$ {shlex.join(command)}\n"
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, f"{shown}{error}\n"
    text = done.stdout.decode(errors="replace")
    return done.returncode, f"{shown}{text}exit status {done.returncode}\n"


def find_compiler(cc: str | None = None) -> tuple[str, ...]:
    """The C compiler as an argument list: `cc`, else $CC, else the first of cc, gcc, clang on the path.

    A compiler that was asked for and is missing is an error; another one is not taken in its place.
    """
    wanted = cc or os.environ.get("CC", "").strip()
    if not wanted:
        for name in ("cc", "gcc", "clang"):
            if found := shutil.which(name):
                return (os.path.abspath(found),)
        raise KernelError("no C compiler found (looked for cc, gcc, clang; set CC to name one)")
    # a path may contain spaces; a command such as "ccache gcc" is several words
    words = [wanted] if shutil.which(wanted) else shlex.split(wanted)
    found = shutil.which(words[0]) if words else None
    if not found:
        raise KernelError(f"C compiler {wanted!r} not found")
    return (os.path.abspath(found), *words[1:])


@functools.lru_cache(maxsize=16)
def _compiler_version(compiler: tuple[str, ...], mtime_ns: int) -> str:
    code, said = _run([*compiler, "--version"])
    if code != 0:
        raise KernelError(f"C compiler {shlex.join(compiler)!r} does not work", said)
    return said


@functools.cache
def _cpu_identity() -> str:
    """Machine type, and model and feature flags of the first processor where /proc tells them."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    wanted = ("model name", "flags", "features", "cpu part", "cpu implementer")
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    parts += [line for line in first.splitlines() if line.split(":")[0].strip().lower() in wanted]
    return "\n".join(parts)


def _digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of length-prefixed parts: no two lists of parts are read as the same bytes."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def _kernel_key(source: str, compiler: tuple[str, ...], flags: tuple[str, ...]) -> str:
    version = _compiler_version(compiler, os.stat(compiler[0]).st_mtime_ns)
    parts = [source, *compiler, version, *flags, _cpu_identity(), __version__, str(ABI)]
    return _digest(part.encode() for part in parts)


# --- cache --------------------------------------------------------------------


def cache_root() -> Path:
    """$TRACEWORDS_CACHE, else the user's cache directory."""
    given = os.environ.get("TRACEWORDS_CACHE", "")
    return Path(given).absolute() if given else user_cache_path("tracewords")


def _private_directory() -> Path:
    """The kernel cache, readable by its owner only; OSError when it cannot be made so.

    Code is loaded from here, so a directory that another user owns is refused.
    """
    root = cache_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = root / "kernels"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.stat()
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        directory.chmod(0o700)
    return directory


@functools.cache
def _temporary_directory() -> Path:
    """A private directory for the life of this process, where the cache cannot be used."""
    directory, owner = Path(tempfile.mkdtemp(prefix="tracewords-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def _lookup(directory: Path, key: str) -> Path | None:
    """The library of this key if it is there and whole."""
    library = directory / f"{key}.so"
    try:
        content = library.read_bytes()
        recorded = (directory / f"{key}.sha256").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return library if recorded == _digest([key.encode(), content]) else None


def _build(directory: Path, key: str, source: str, compiler: tuple[str, ...], flags: tuple[str, ...]) -> Path:
    """Compile in a scratch folder of the same file system, try to load, then rename into place."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=directory) as scratch:
        place = Path(scratch)
        (place / "kernel.c").write_text(source, encoding="utf-8")
        # relative names: the compiler never sees the cache's path, whatever letters it has
        command = [*compiler, *flags, *_LINK_FLAGS, "-o", "kernel.so", "kernel.c", "-lm"]
        code, said = _run(command, cwd=place)
        library = place / "kernel.so"
        if code != 0 or not library.is_file():
            raise KernelError(f"C compiler {shlex.join(compiler)!r} could not build the kernel", said)
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            raise KernelError(f"the compiled kernel does not load: {error}", said) from error
        (place / "digest").write_text(_digest([key.encode(), library.read_bytes()]), encoding="utf-8")
        # between the two renames the digest does not match, which readers take for a miss
        os.replace(place / "digest", directory / f"{key}.sha256")
        os.replace(library, directory / f"{key}.so")
    return directory / f"{key}.so"


def _build_once(directory: Path, key: str, *arguments: Any) -> Path:
    """Build unless another process did so while this one waited for the lock."""
    try:
        with FileLock(str(directory / f"{key}.lock"), timeout=BUILD_TIMEOUT):
            return _lookup(directory, key) or _build(directory, key, *arguments)
    except Timeout as error:
        lock = directory / f"{key}.lock"
        raise KernelError(f"another process holds {lock} for over {BUILD_TIMEOUT:.0f} s") from error


def compile_source(source: Path | str, *, cc: str | None = None, flags: Sequence[str] | None = None) -> Path:
    """Compile C source to a shared library, or find it in the cache.

    Parameters
    ----------
    source : Path or str
        A file, or the source text itself (recognised by its line ends).
    cc : str, optional
        Compiler; default $CC, else cc, gcc or clang.
    flags : sequence of str, optional
        Replaces `DEFAULT_FLAGS`; what makes a shared library is always added.

    Returns
    -------
    Path
        The library, whole and loadable, named by its key.

    Raises
    ------
    KernelError
        No compiler, or one that fails; `output` holds what it said.
    """
    if isinstance(source, Path) or "\n" not in source:
        try:
            source = Path(source).read_text(encoding="utf-8")
        except OSError as error:
            raise KernelError(f"cannot read the kernel source: {error}") from error
    compiler = find_compiler(cc)
    options = DEFAULT_FLAGS if flags is None else tuple(flags)
    key = _kernel_key(source, compiler, options)
    reason: OSError | None = None
    try:
        directory = _private_directory()
        if found := _lookup(directory, key):
            return found
        return _build_once(directory, key, source, compiler, options)
    except OSError as error:
        reason = error
    try:
        directory = _temporary_directory()
        library = _lookup(directory, key) or _build_once(directory, key, source, compiler, options)
    except OSError as error:
        raise KernelError(f"no place to build the kernel: {reason}; {error}") from error
    warn_once(
        f"kernel cache not usable ({reason}): each process builds its kernels anew; set TRACEWORDS_CACHE"
    )
    return library


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
    with ThreadPoolExecutor(
        1, "tracewords-kernel"
    ) as pool:  # leaving it waits: the call writes into our arrays
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
