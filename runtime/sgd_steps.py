"""One step of SGD on fresh Gaussian tokens, parametrisation by parametrisation.

Tokens are held as x (T, B, d), the T tokens that the loss reads outermost, so that neighbouring tokens are
one contiguous matrix and all heavy work is a few large products.  Another parametrisation is another small
class like `Tied`, entered in `PARAMETRISATIONS`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import ThreadpoolController

from tracewords.errors import ModelError

Array = NDArray[Any]
Shape = tuple[int, int, int]
Params = Mapping[str, float]
Entries = Sequence[tuple[str, int, int]]

STREAMS = 4  # generators that share a batch: a constant, so that the numbers do not depend on the machine
DRAW = 1 << 18  # numbers drawn in one go when a batch is smaller than this


@dataclass(frozen=True)
class Pair:
    """Tokens i <= j, the rows of h that hold h_ij or h_ji, and the centring C_ij."""

    i: int
    j: int
    rows: tuple[int, ...]
    centre: float


def tokens_read(preactivations: Entries) -> list[int]:
    """The tokens (from 0) that a loss reads, in order; no others need to be drawn."""
    return sorted({token - 1 for _, i, j in preactivations for token in (i, j)})


def symmetric_pairs(preactivations: Entries, letter: str, covariance: Array) -> list[Pair]:
    """The entries of one symmetric matrix, h_ij and h_ji taken together.

    Tokens are numbered by their place among `tokens_read`; rows by the order of `preactivations`.
    """
    place = {token: n for n, token in enumerate(tokens_read(preactivations))}
    rows: dict[tuple[int, int], list[int]] = {}
    for row, (name, i, j) in enumerate(preactivations):
        if name == letter:
            rows.setdefault((min(i, j) - 1, max(i, j) - 1), []).append(row)
    return [Pair(place[i], place[j], tuple(r), float(covariance[i, j])) for (i, j), r in sorted(rows.items())]


def blocks(tokens: Sequence[int]) -> list[slice]:
    """`tokens` (increasing) as runs of neighbours: each is one product."""
    cuts = [n for n in range(1, len(tokens)) if tokens[n] != tokens[n - 1] + 1]
    edges = [0, *cuts, len(tokens)]
    return [slice(tokens[a], tokens[b - 1] + 1) for a, b in itertools.pairwise(edges) if b > a]


def flat(x: Array) -> Array:
    """(T, B, n) as (T B, n), without a copy."""
    return x.reshape(-1, x.shape[-1])


def fill_rows(h: Array, pair: Pair, left: Array, right: Array, trace: float) -> None:
    """h_ij = d^{-1/2} (left . right - C_ij Tr S) in every row of h (H, B) that holds it."""
    row = h[pair.rows[0]]
    np.einsum("br,br->b", left, right, out=row)
    row -= pair.centre * trace
    for other in pair.rows[1:]:
        h[other] = row


class Trained(Protocol):
    """What a parametrisation offers; x (T, B, d), h and g (H, B), g = d^{-1/2} dl/dh / B."""

    def forward(self, x: Array, h: Array) -> None:
        """Write this matrix's rows of h, without the factor d^{-1/2}."""

    def backward(self, x: Array, g: Array) -> None:
        """Work out the gradient, on the x of the last `forward`."""

    def update(self, alpha: float, decay: float) -> None:
        """P -= alpha (gradient + decay P), after `backward`."""

    def matrix(self) -> NDArray[np.float64]:
        """S (d, d)."""


class Tied:
    """``S = W W'`` with W (d, r); centred, so the gradient passes through Tr S too.

    ``dh_ij/dW = d^{-1/2} (x_i x_j' W + x_j x_i' W - 2 C_ij W)``.
    """

    def __init__(self, W: Array, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        tokens, batch, d = shape
        r = W.shape[1]
        self.W = np.ascontiguousarray(W, dtype)
        self.pairs = tuple(pairs)
        self.blocks = blocks(sorted({n for p in pairs for n in (p.i, p.j)}))
        self.Y, self.Z = np.empty((2, tokens, batch, r), dtype)  # W' x and its weighted sums
        self.scratch = np.empty((batch, r), dtype)
        self.raw, self.part = np.empty((2, d, r), dtype)
        self.centre = 0.0

    def forward(self, x: Array, h: Array) -> None:
        for block in self.blocks:
            np.matmul(flat(x[block]), self.W, out=flat(self.Y[block]))
        trace = float(np.vdot(self.W, self.W))
        for pair in self.pairs:
            fill_rows(h, pair, self.Y[pair.i], self.Y[pair.j], trace)

    def backward(self, x: Array, g: Array) -> None:
        self.centre = 0.0
        started: set[int] = set()
        for pair in self.pairs:
            weight = g[list(pair.rows)].sum(axis=0)
            self.centre += 2.0 * pair.centre * float(weight.sum(dtype=np.float64))
            if pair.i == pair.j:
                self._add(pair.i, pair.j, 2.0 * weight, started)
            else:
                self._add(pair.i, pair.j, weight, started)
                self._add(pair.j, pair.i, weight, started)
        for n, block in enumerate(self.blocks):
            out = self.part if n else self.raw
            np.matmul(flat(x[block]).T, flat(self.Z[block]), out=out)
            if n:
                self.raw += self.part
        if not self.blocks:
            self.raw[...] = 0.0

    def _add(self, i: int, j: int, weight: Array, started: set[int]) -> None:
        """Z_i += weight * Y_j."""
        if i in started:
            np.multiply(self.Y[j], weight[:, None], out=self.scratch)
            self.Z[i] += self.scratch
        else:
            np.multiply(self.Y[j], weight[:, None], out=self.Z[i])
            started.add(i)

    def update(self, alpha: float, decay: float) -> None:
        # gradient + decay W = raw + (decay - centre) W: three passes, no copy; `raw` is used up
        self.W *= 1.0 - alpha * (decay - self.centre)
        self.raw *= alpha
        self.W -= self.raw

    def matrix(self) -> NDArray[np.float64]:
        W = self.W.astype(np.float64)
        return W @ W.T


class Fixed:
    """A symmetric centred teacher, given by S (d, d), or by its eigenvalues (d,) in its own basis."""

    def __init__(self, S: Array, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        tokens, batch, d = shape
        self.full = np.diag(S) if S.ndim == 1 else np.asarray(S, np.float64)
        self.trace = float(S.sum() if S.ndim == 1 else np.trace(S))
        self.S = np.ascontiguousarray(S, dtype)
        self.pairs = tuple(pairs)
        self.left = sorted({p.i for p in pairs})  # S acts on the first token of a pair only
        self.V = np.empty((tokens, batch, d), dtype)

    def forward(self, x: Array, h: Array) -> None:
        if self.S.ndim == 1:
            for i in self.left:
                np.multiply(x[i], self.S, out=self.V[i])
        else:
            for block in blocks(self.left):
                np.matmul(flat(x[block]), self.S, out=flat(self.V[block]))
        for pair in self.pairs:
            fill_rows(h, pair, self.V[pair.i], x[pair.j], self.trace)

    def matrix(self) -> NDArray[np.float64]:
        return self.full


PARAMETRISATIONS = {"tied": Tied}


class Learner:
    """All matrices of one run, the loss, and the step.

    The law of the tokens does not change under rotations of R^d, nor do trace moments; so everything is
    turned into the eigenbasis of the first teacher, the columns of `basis` (d, d), whose product then costs a
    row scaling.

    Parameters
    ----------
    solver : solver module
    factors : mapping of letter to array (d, r)
        W of each matrix, ``S = W W'``, in the frame of the caller.
    batch : int
    dtype : float32 or float64
    params : mapping of parameter to float
    """

    def __init__(
        self, solver: Any, factors: Mapping[str, Array], batch: int, dtype: DTypeLike, params: Params
    ) -> None:  # fmt: skip
        self.solver, self.params = solver, dict(params)
        covariance, entries = np.asarray(solver.COVARIANCE, np.float64), solver.PREACTIVATIONS
        d = next(iter(factors.values())).shape[0]
        shape = (len(tokens_read(entries)), batch, d)
        pairs = {letter: symmetric_pairs(entries, letter, covariance) for letter in solver.LETTERS}
        teachers = [letter for letter in solver.LETTERS if letter not in solver.STUDENTS]
        self.basis, known = None, {}
        if teachers:
            known[teachers[0]], self.basis = np.linalg.eigh(factors[teachers[0]] @ factors[teachers[0]].T)
            factors = {letter: self.basis.T @ W for letter, W in factors.items()}
        known = {letter: factors[letter] @ factors[letter].T for letter in teachers[1:]} | known
        self.teachers = {letter: Fixed(S, pairs[letter], shape, dtype) for letter, S in known.items()}
        self.students: dict[str, Trained] = {
            letter: PARAMETRISATIONS[solver.KINDS[letter]](factors[letter], pairs[letter], shape, dtype)
            for letter in solver.STUDENTS
        }
        self.h = np.zeros((len(entries), batch), dtype)
        self.root_d = float(np.sqrt(d))

    def loss(self, x: Array) -> Array:
        """Per-sample loss (B,) on the tokens x (T, B, d); leaves the pre-activations in `h`."""
        for student in self.students.values():
            student.forward(x, self.h)
        for teacher in self.teachers.values():
            teacher.forward(x, self.h)
        self.h *= 1.0 / self.root_d
        return np.broadcast_to(self.solver.loss(self.h, self.params), self.h.shape[1:])

    def step(self, x: Array, alpha: float, decay: float) -> None:
        """The update on a batch whose `loss` was just evaluated."""
        g = np.asarray(self.solver.loss_gradient(self.h, self.params), self.h.dtype)
        g = g * (1.0 / (self.root_d * self.h.shape[1]))
        for student in self.students.values():
            student.backward(x, g)
            student.update(alpha, decay)

    def matrices(self) -> dict[str, NDArray[np.float64]]:
        """S (d, d) of every letter, in the rotated frame."""
        students = {letter: student.matrix() for letter, student in self.students.items()}
        return students | {letter: teacher.matrix() for letter, teacher in self.teachers.items()}


def token_root(covariance: Array) -> Array | None:
    """Symmetric square root of C (T, T), which may be singular; None for the identity."""
    if np.array_equal(covariance, np.eye(len(covariance))):
        return None
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-9 * values[-1]:
        raise ModelError("COVARIANCE", covariance.tolist(), "a matrix without negative eigenvalues")
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_a_core() -> contextlib.AbstractContextManager[Any]:
    """One BLAS thread less than processors: a BLAS whose last one is busy drawing stands waiting for it."""
    blas = ThreadpoolController().select(user_api="blas")
    return blas.limit(limits=min([max(1, cores() - 1), *(lib.num_threads for lib in blas.lib_controllers)]))


class Batches:
    """Fresh tokens x (T, B, d) with law N(0, C (x) I_d), drawn one block ahead in the background.

    The numbers depend on the seed, the shape and the dtype alone, never on timing.
    """

    def __init__(self, seed: SeedSequence, shape: Shape, covariance: Array, dtype: DTypeLike) -> None:
        root = token_root(covariance)
        self.root = None if root is None else root.astype(dtype)
        self.dtype = np.dtype(dtype)
        self.x = None if root is None else np.empty(shape, dtype)
        self.block = steps_per_draw(shape)
        self.ready, self.next = np.empty((2, self.block, *shape), dtype)
        # SFC64: the fastest of numpy's generators here; drawing costs as much as the products
        self.streams = [np.random.Generator(np.random.SFC64(s)) for s in seed.spawn(STREAMS)]
        self.pool = ThreadPoolExecutor(min(STREAMS, cores()), "tracewords-draw")
        self.at = self.block
        self.pending = self._draw(self.next)

    def _draw(self, buffer: Array) -> list[Future[Any]]:
        parts = np.array_split(buffer.reshape(-1), STREAMS)
        return [
            self.pool.submit(partial(stream.standard_normal, dtype=self.dtype.type, out=part))
            for stream, part in zip(self.streams, parts, strict=True)
        ]

    def draw(self) -> Array:
        """The next batch; valid until the next call."""
        if self.at == self.block:
            for future in self.pending:
                future.result()
            self.ready, self.next, self.at = self.next, self.ready, 0
            self.pending = self._draw(self.next)
        z = self.ready[self.at]
        self.at += 1
        if self.root is None or self.x is None:
            return z
        np.matmul(self.root, z.reshape(len(z), -1), out=self.x.reshape(len(z), -1))
        return self.x

    def close(self) -> None:
        """Wait for what is being drawn and let the threads go."""
        self.pool.shutdown(wait=True, cancel_futures=True)


def steps_per_draw(shape: Shape) -> int:
    """Batches drawn in one go: small ones together, so that handing over costs nothing."""
    return max(1, DRAW // max(1, math.prod(shape)))


def require_memory(solver: Any, d: int, batch: int, dtype: str) -> None:
    """Refuse sizes whose token buffers, products, weights and records do not fit in memory."""
    shape = (len(tokens_read(solver.PREACTIVATIONS)), batch, d)
    rows = shape[0] * batch
    numbers = (2 * steps_per_draw(shape) + 1) * rows * d
    for letter, ratio in solver.RANK_RATIOS.items():
        r = max(1, round(ratio * d))
        trained = letter in solver.STUDENTS
        numbers += (2 * rows + batch + 3 * d) * r if trained else (rows + d) * d
    need = numbers * np.dtype(dtype).itemsize + 8 * (2 * len(solver.LETTERS) + 4) * d * d
    room = available_bytes()
    if room is not None and need > room:
        sizes = f"{d}, {batch}, which take {need / 2**30:.3g} GiB"
        raise ModelError("d, batch", sizes, f"what fits in the {room / 2**30:.3g} GiB available")


def available_bytes() -> int | None:
    """Memory to be had, with what the system would give up; None where that cannot be told."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as lines:
        return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable:"))
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
