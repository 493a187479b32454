"""Matrices of a model in SGD: what each adds to the pre-activations, its gradient, its update.

Tokens are x (T, B, d), the T tokens that the loss reads outermost, so that neighbouring tokens are one contiguous
matrix and all heavy work is a few large products.  Another parametrisation is another small class like `Direct`,
entered in `PARAMETRISATIONS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Factors = Any  # of one letter: W (d, r), S (d, d), V (d, d_v), or the pair U, V (d, r)
Shape = tuple[int, int, int]
Entries = Sequence[tuple[str, int, int]]

SYMMETRIC = ("tied", "symmetric")  # kinds with S = S'
CENTRED = ("tied",)  # kinds whose pre-activations have C_ij Tr S taken off


@dataclass(frozen=True)
class Pair:
    """Tokens i, j, the rows of h that hold ``x_i' S x_j``, and the centring C_ij, 0 if there is none."""

    i: int
    j: int
    rows: tuple[int, ...]
    centre: float


def tokens_read(preactivations: Entries) -> list[int]:
    """The tokens (from 0) that a loss reads, in order; no others need to be drawn."""
    return sorted({token - 1 for _, i, j in preactivations for token in (i, j)})


def pairs_of(preactivations: Entries, letter: str, kind: str, covariance: Array) -> list[Pair]:
    """The entries of one matrix; of a symmetric one h_ij and h_ji together, i <= j.

    Tokens are numbered by their place among `tokens_read`; rows by the order of `preactivations`.
    """
    place = {token: n for n, token in enumerate(tokens_read(preactivations))}
    rows: dict[tuple[int, int], list[int]] = {}
    for row, (name, i, j) in enumerate(preactivations):
        if name == letter:
            key = (min(i, j) - 1, max(i, j) - 1) if kind in SYMMETRIC else (i - 1, j - 1)
            rows.setdefault(key, []).append(row)
    centre = float(kind in CENTRED)
    return [Pair(place[i], place[j], tuple(r), centre * float(covariance[i, j])) for (i, j), r in sorted(rows.items())]


def blocks(tokens: Iterable[int]) -> list[slice]:
    """`tokens` as runs of neighbours: each is one product."""
    ordered = sorted(set(tokens))
    cuts = [n for n in range(1, len(ordered)) if ordered[n] != ordered[n - 1] + 1]
    edges = [0, *cuts, len(ordered)]
    return [slice(ordered[a], ordered[b - 1] + 1) for a, b in itertools.pairwise(edges) if b > a]


def flat(x: Array) -> Array:
    """(T, B, n) as (T B, n), without a copy."""
    return x.reshape(-1, x.shape[-1])


def multiply(x: Array, matrix: Array, where: Sequence[slice], out: Array) -> None:
    """``out[t] = x[t] @ matrix`` for the tokens of the blocks `where`."""
    for block in where:
        np.matmul(flat(x[block]), matrix, out=flat(out[block]))


def fill_rows(h: Array, pair: Pair, left: Array, right: Array, trace: float = 0.0) -> None:
    """h_ij = left . right - C_ij Tr S in every row of h (H, B) that holds it."""
    row = h[pair.rows[0]]
    np.einsum("br,br->b", left, right, out=row)
    row -= pair.centre * trace
    for other in pair.rows[1:]:
        h[other] = row


class Sums:
    """``Z_i = sum_j w_ij y_j`` of vectors y (B, n), and ``sum_i x_i' Z_i`` (d, n)."""

    def __init__(self, tokens: Iterable[int], shape: Shape, n: int, dtype: DTypeLike) -> None:
        count, batch, d = shape
        self.blocks = blocks(tokens)
        self.Z = np.empty((count, batch, n), dtype)
        self.scratch = np.empty((batch, n), dtype)
        self.raw, self.part = np.empty((2, d, n), dtype)
        self.started: set[int] = set()

    def add(self, i: int, y: Array, weight: Array) -> None:
        """Z_i += weight y, weight (B,); the first time since `product`, Z_i = weight y."""
        if i in self.started:
            np.multiply(y, weight[:, None], out=self.scratch)
            self.Z[i] += self.scratch
        else:
            np.multiply(y, weight[:, None], out=self.Z[i])
            self.started.add(i)

    def product(self, x: Array) -> None:
        """Write ``sum_i x_i' Z_i`` into `raw`."""
        self.started.clear()
        for n, block in enumerate(self.blocks):
            out = self.part if n else self.raw
            np.matmul(flat(x[block]).T, flat(self.Z[block]), out=out)
            if n:
                self.raw += self.part
        if not self.blocks:
            self.raw[...] = 0.0

    def descend(self, matrix: Array, alpha: float, decay: float) -> None:
        """matrix -= alpha (raw + decay matrix), in three passes and no copy; `raw` is used up."""
        matrix *= 1.0 - alpha * decay
        self.raw *= alpha
        matrix -= self.raw


class Trained(Protocol):
    """What a parametrisation offers; x (T, B, d), h and g (H, B), g = d^{-1/2} dl/dh / B."""

    def forward(self, x: Array, h: Array) -> None:
        """Write this matrix's rows of h, without the factor d^{-1/2}."""

    def backward(self, x: Array, g: Array) -> None:
        """Work out the gradient, on the x of the last `forward`."""

    def update(self, alpha: float, decay: float) -> None:
        """P -= alpha (gradient + decay P) for each factor P, after `backward`."""

    def factors(self) -> Factors:
        """What is trained, in double precision."""


class Tied:
    """``S = W W'`` with W (d, r); centred, so the gradient passes through Tr S too.

    ``dh_ij/dW = d^{-1/2} (x_i x_j' W + x_j x_i' W - 2 C_ij W)``.
    """

    def __init__(self, W: Array, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        r = W.shape[1]
        self.W = np.array(W, dtype, order="C")
        self.pairs = tuple(pairs)
        self.sums = Sums((n for p in pairs for n in (p.i, p.j)), shape, r, dtype)
        self.Y = np.empty((*shape[:2], r), dtype)  # W' x
        self.centre = 0.0

    def forward(self, x: Array, h: Array) -> None:
        multiply(x, self.W, self.sums.blocks, self.Y)
        trace = float(np.vdot(self.W, self.W))
        for pair in self.pairs:
            fill_rows(h, pair, self.Y[pair.i], self.Y[pair.j], trace)

    def backward(self, x: Array, g: Array) -> None:
        self.centre = 0.0
        for pair in self.pairs:
            weight = g[list(pair.rows)].sum(axis=0)
            self.centre += 2.0 * pair.centre * float(weight.sum(dtype=np.float64))
            if pair.i == pair.j:
                self.sums.add(pair.i, self.Y[pair.j], 2.0 * weight)
            else:
                self.sums.add(pair.i, self.Y[pair.j], weight)
                self.sums.add(pair.j, self.Y[pair.i], weight)
        self.sums.product(x)

    def update(self, alpha: float, decay: float) -> None:
        self.sums.descend(self.W, alpha, decay - self.centre)

    def factors(self) -> Factors:
        return self.W.astype(np.float64)


class Product:
    """``x_i' S x_j`` of a matrix S (d, d), or of its eigenvalues (d,) in its own basis.

    S acts on the first token of a pair, or on the second, whichever takes fewer products: `S` is then held
    transposed, as `flipped` says, and so are `pairs`.
    """

    def __init__(self, S: Array, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        self.flipped = len({p.j for p in pairs}) < len({p.i for p in pairs})
        self.pairs = tuple(Pair(p.j, p.i, p.rows, p.centre) if self.flipped else p for p in pairs)
        self.S = np.array(S.T if self.flipped else S, dtype, order="C")
        self.left = blocks(p.i for p in self.pairs)
        self.trace = 0.0
        self.Y = np.empty(shape, dtype)

    def forward(self, x: Array, h: Array) -> None:
        if self.S.ndim == 1:
            for block in self.left:
                np.multiply(x[block], self.S, out=self.Y[block])
        else:
            multiply(x, self.S, self.left, self.Y)
        for pair in self.pairs:
            fill_rows(h, pair, self.Y[pair.i], x[pair.j], self.trace)


class Direct(Product):
    """A general S (d, d), trained itself: ``dh_ij/dS = d^{-1/2} x_i x_j'``."""

    def __init__(self, S: Array, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        super().__init__(S, pairs, shape, dtype)
        self.sums = Sums((p.i for p in self.pairs), shape, shape[2], dtype)

    def backward(self, x: Array, g: Array) -> None:
        for pair in self.pairs:
            self.sums.add(pair.i, x[pair.j], g[list(pair.rows)].sum(axis=0))
        self.sums.product(x)

    def update(self, alpha: float, decay: float) -> None:
        self.sums.descend(self.S, alpha, decay)

    def factors(self) -> Factors:
        return np.array(self.S.T if self.flipped else self.S, np.float64)


class Symmetric(Direct):
    """A symmetric S (d, d), trained itself: the gradient is projected on symmetric matrices."""

    def update(self, alpha: float, decay: float) -> None:
        raw = self.sums.raw
        np.add(raw, raw.T, out=self.sums.part)
        np.multiply(self.sums.part, 0.5, out=raw)
        super().update(alpha, decay)


class Untied:
    """``S = U V'`` with U, V (d, r): ``dh_ij/dU = d^{-1/2} x_i x_j' V``, ``dh_ij/dV = d^{-1/2} x_j x_i' U``."""

    def __init__(self, factors: Factors, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        self.U, self.V = (np.array(f, dtype, order="C") for f in factors)
        r = self.U.shape[1]
        self.pairs = tuple(pairs)
        self.of_u = Sums((p.i for p in pairs), shape, r, dtype)
        self.of_v = Sums((p.j for p in pairs), shape, r, dtype)
        self.Y, self.Z = np.empty((2, *shape[:2], r), dtype)  # U' x, V' x

    def forward(self, x: Array, h: Array) -> None:
        multiply(x, self.U, self.of_u.blocks, self.Y)
        multiply(x, self.V, self.of_v.blocks, self.Z)
        for pair in self.pairs:
            fill_rows(h, pair, self.Y[pair.i], self.Z[pair.j])

    def backward(self, x: Array, g: Array) -> None:
        for pair in self.pairs:
            weight = g[list(pair.rows)].sum(axis=0)
            self.of_u.add(pair.i, self.Z[pair.j], weight)
            self.of_v.add(pair.j, self.Y[pair.i], weight)
        self.of_u.product(x)
        self.of_v.product(x)

    def update(self, alpha: float, decay: float) -> None:
        self.of_u.descend(self.U, alpha, decay)
        self.of_v.descend(self.V, alpha, decay)

    def factors(self) -> Factors:
        return self.U.astype(np.float64), self.V.astype(np.float64)


PARAMETRISATIONS: dict[str, Any] = {"tied": Tied, "direct": Direct, "symmetric": Symmetric, "untied": Untied}
KINDS = (*PARAMETRISATIONS, "values")


class Fixed(Product):
    """A teacher of any kind, given by S (d, d), or by its eigenvalues (d,) in its own basis."""

    def __init__(self, S: Array, pairs: Sequence[Pair], shape: Shape, dtype: DTypeLike) -> None:
        super().__init__(S, pairs, shape, dtype)
        self.trace = float(S.sum() if S.ndim == 1 else np.trace(S))  # in double precision


class Values:
    """Matrices V (d, d_v), in the loss through ``v_kl = tr(V_k V_l') = sum(V_k * V_l) / d`` only.

    They are small work, and each step moves them little: always in double precision.

    Parameters
    ----------
    matrices : mapping of letter to array (d, d_v)
    students : the letters that are trained
    pairs : the T pairs of letters whose traces the loss reads
    """

    def __init__(
        self, matrices: Mapping[str, Array], students: Iterable[str], pairs: Sequence[tuple[str, str]]
    ) -> None:
        self.matrices = {k: np.array(v, np.float64, order="C") for k, v in matrices.items()}
        self.students = [k for k in students if k in self.matrices]
        self.pairs = list(pairs)
        self.fixed = {p: self._trace(*p) for p in self.pairs if not set(p) & set(self.students)}

    def _trace(self, first: str, second: str) -> float:
        V, W = self.matrices[first], self.matrices[second]
        return float(np.vdot(V, W)) / len(V)

    def traces(self) -> Floats:
        """The v_kl (T,)."""
        return np.array([self.fixed[p] if p in self.fixed else self._trace(*p) for p in self.pairs])

    def step(self, slopes: Floats, alpha: float, decay: float) -> None:
        """V -= alpha (gradient + decay V), with slopes (T,) the batch means of dl/dv_kl."""
        weights: dict[str, dict[str, float]] = {k: {k: 1.0 - alpha * decay} for k in self.students}
        for (first, second), slope in zip(self.pairs, slopes.tolist(), strict=True):
            # for k = l both orders add up to 2 V_k / d
            for k, l in ((first, second), (second, first)):
                if k in weights:
                    weights[k][l] = weights[k].get(l, 0.0) - alpha * slope / len(self.matrices[k])
        old = self.matrices
        moved = {k: sum((w * old[l] for l, w in row.items()), np.zeros(())) for k, row in weights.items()}
        self.matrices.update(moved)


def score(factors: Factors, kind: str) -> Floats:
    """S (d, d) of one letter."""
    if kind == "tied":
        return factors @ factors.T
    return factors[0] @ factors[1].T if kind == "untied" else factors


def word_letters(letter: str, factors: Factors, kind: str) -> dict[str, Floats]:
    """The matrices that stand for a letter in words: S, of an untied one ``U U'`` and ``V V'`` too."""
    if kind == "values":
        return {letter: factors}
    composites = {letter + 2 * name: f @ f.T for name, f in zip("uv", factors, strict=True)} if kind == "untied" else {}
    return {letter: score(factors, kind), **composites}


def turned(factors: Factors, kind: str, basis: Array) -> Factors:
    """Factors in the frame whose axes are the columns of `basis` (d, d)."""
    if kind == "untied":
        return tuple(basis.T @ f for f in factors)
    return basis.T @ factors @ basis if kind in ("direct", "symmetric") else basis.T @ factors
