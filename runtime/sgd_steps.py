"""One step of SGD on fresh Gaussian tokens: all matrices together, and the tokens themselves."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import ThreadpoolController

from tracewords.errors import ModelError
from tracewords.runtime.sgd_matrices import (
    PARAMETRISATIONS,
    SYMMETRIC,
    Array,
    Factors,
    Fixed,
    Shape,
    Trained,
    Values,
    pairs_of,
    score,
    tokens_read,
    turned,
    word_letters,
)

Params = Mapping[str, float]

STREAMS = 4  # generators that share a batch: a constant, so that the numbers do not depend on the machine
DRAW = 1 << 18  # numbers drawn in one go when a batch is smaller than this


class Learner:
    """All matrices of one run, the loss, and the step.

    The law of the tokens does not change under rotations of R^d, nor do trace moments; so everything is turned into
    the eigenbasis of the first symmetric teacher, whose product then costs a row scaling.

    Parameters
    ----------
    solver : solver module
    factors : mapping of letter to array, or pair of arrays
        W (d, r) of a tied matrix, ``S = W W'``; S (d, d) of a direct or symmetric one; the pair U, V (d, r) of an
        untied one, ``S = U V'``; V (d, d_v) of values; in the frame of the caller.
    batch : int
    dtype : float32 or float64
    params : mapping of parameter to float

    Attributes
    ----------
    basis : array (d, d) or None
        Its columns are the axes of the frame of the tokens; None where that is the frame of the caller.
    """

    def __init__(
        self, solver: Any, factors: Mapping[str, Factors], batch: int, dtype: DTypeLike, params: Params
    ) -> None:  # fmt: skip
        self.solver, self.params, self.kinds = solver, dict(params), solver.KINDS
        covariance, entries = np.asarray(solver.COVARIANCE, np.float64), solver.PREACTIVATIONS
        first = factors[solver.LETTERS[0]]
        d = len(first[0] if self.kinds[solver.LETTERS[0]] == "untied" else first)
        shape = (len(tokens_read(entries)), batch, d)
        scores = [k for k in solver.LETTERS if self.kinds[k] != "values"]
        pairs = {k: pairs_of(entries, k, self.kinds[k], covariance) for k in scores}
        teachers = [k for k in scores if k not in solver.STUDENTS]
        self.basis, self.eigenvalues = None, {}
        if turner := next((k for k in teachers if self.kinds[k] in SYMMETRIC), None):
            self.eigenvalues[turner], self.basis = np.linalg.eigh(score(factors[turner], self.kinds[turner]))
            factors = {k: turned(f, self.kinds[k], self.basis) for k, f in factors.items()}
        self.given = {k: factors[k] for k in teachers if k not in self.eigenvalues}
        known = {k: score(f, self.kinds[k]) for k, f in self.given.items()} | self.eigenvalues
        self.teachers = {k: Fixed(S, pairs[k], shape, dtype) for k, S in known.items()}
        self.students: dict[str, Trained] = {
            k: PARAMETRISATIONS[self.kinds[k]](factors[k], pairs[k], shape, dtype)
            for k in solver.STUDENTS
            if k in scores
        }
        values = {k: factors[k] for k in solver.LETTERS if k not in scores}
        self.values = Values(values, solver.STUDENTS, getattr(solver, "TRACES", ()))
        self.h = np.zeros((len(entries), batch), dtype)
        self.inputs: tuple[Any, ...] = ()
        self.root_d = float(np.sqrt(d))

    def loss(self, x: Array) -> Array:
        """Per-sample loss (B,) on the tokens x (T, B, d); leaves the pre-activations in `h`."""
        for student in self.students.values():
            student.forward(x, self.h)
        for teacher in self.teachers.values():
            teacher.forward(x, self.h)
        self.h *= 1.0 / self.root_d
        traces = (self.values.traces().astype(self.h.dtype),) if self.values.pairs else ()
        self.inputs = (self.h, self.params, *traces)
        return np.broadcast_to(self.solver.loss(*self.inputs), self.h.shape[1:])

    def step(self, x: Array, alpha: float, decay: float) -> None:
        """The update on a batch whose `loss` was just evaluated: every gradient before any move."""
        if self.values.students and self.values.pairs:
            slopes = np.asarray(self.solver.trace_gradient(*self.inputs), np.float64)
            slopes = slopes.reshape(len(self.values.pairs), -1).mean(axis=1)
        else:
            slopes = np.zeros(len(self.values.pairs))
        g = np.asarray(self.solver.loss_gradient(*self.inputs), self.h.dtype)
        g = g * (1.0 / (self.root_d * self.h.shape[1]))
        for student in self.students.values():
            student.backward(x, g)
            student.update(alpha, decay)
        self.values.step(slopes, alpha, decay)

    def matrices(self) -> dict[str, NDArray[np.float64]]:
        """The matrices that words are made of, in the rotated frame: S of each letter, ``U U'`` and ``V V'``, V."""
        kinds, out = self.kinds, {}
        for k in self.solver.LETTERS:
            if k in self.eigenvalues:
                out[k] = np.diag(self.eigenvalues[k])
            else:
                values = self.values.matrices
                f = values[k] if k in values else self.given[k] if k in self.given else self.students[k].factors()
                out |= word_letters(k, f, kinds[k])
        return out

    def trained(self) -> dict[str, Factors]:
        """The factors of every student, in the frame of the caller."""
        own = {k: student.factors() for k, student in self.students.items()}
        own |= {k: self.values.matrices[k] for k in self.values.students}
        back = self.basis
        return own if back is None else {k: turned(f, self.kinds[k], back.T) for k, f in own.items()}


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
    item = np.dtype(dtype).itemsize
    for letter, ratio in solver.RANK_RATIOS.items():
        kind, trained = solver.KINDS[letter], letter in solver.STUDENTS
        r = d if kind in ("direct", "symmetric") else max(1, round(ratio * d))
        if kind == "values":
            numbers += 2 * d * r * 8 // item
        elif trained:
            numbers += (2 if kind == "untied" else 1) * (2 * rows + batch + 3 * d) * r
        else:
            numbers += (rows + d) * d
    letters = getattr(solver, "WORD_LETTERS", solver.LETTERS)
    need = numbers * item + 8 * (2 * len(letters) + 4) * d * d
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
