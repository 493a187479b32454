"""The matrix flow itself, on numbers: at size N (closure `matrix`) or on the few-dimensional matrices of
the `operator` closure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.runtime.solver import Solver
from tracewords.runtime.twoscale import Manifold
from tracewords.runtime.wordindex import WordIndex

Floats = NDArray[np.float64]
Word = tuple[str, ...]
State = Callable[[Mapping[str, Floats], Sequence[Word], WordIndex], Floats]  # moments of words


class Products:
    """Products of matrices by word, each made once; a transpose is never multiplied out."""

    def __init__(self, matrices: Mapping[str, Floats], general: frozenset[str] = frozenset()) -> None:
        self.general = general
        self.known: dict[tuple[str, ...], Floats] = {}
        for name, matrix in matrices.items():
            self.known[(name,)] = matrix
            self.known[(name + "'",)] = matrix.T

    def star(self, word: tuple[str, ...]) -> tuple[str, ...]:
        """The transposed word."""
        return tuple(self._adjoint(n) for n in reversed(word))

    def _adjoint(self, name: str) -> str:
        if name.endswith("'"):
            return name[:-1]
        return name + "'" if name in self.general else name

    def __call__(self, word: tuple[str, ...]) -> Floats:
        if word not in self.known:
            star = self.star(word)
            self.known[word] = self.known[star].T if star in self.known else self(word[:-1]) @ self((word[-1],))
        return self.known[word]


class MatrixFlow:
    """Right side of a model's flow on given matrices.

    Parameters
    ----------
    solver : Solver
    matrices : mapping of letter to array
        All letters without primes: (n, n) arrays; matrices of values (n, r), or rows with the same inner products.
    state : callable
        The moments of words: `plain_moments` for matrices, `vacuum_moments` for operators.
    manifold : Manifold
        Gives the parameters at a state.
    """

    def __init__(self, solver: Solver, matrices: Mapping[str, Floats], state: State, manifold: Manifold) -> None:
        self.solver, self.state, self.manifold = solver, state, manifold
        kappa = manifold.values["kappa"]
        if np.any(kappa):
            raise ModelError("kappa", kappa, "0 for closures operator and matrix; flat or zero for more")
        self.index = WordIndex(solver)
        self.fixed = {k: m for k, m in matrices.items() if k not in solver.FLOW}
        self.moving = tuple(solver.FLOW)
        self.shapes = [matrices[k].shape for k in self.moving]
        self.ends = np.cumsum([matrices[k].size for k in self.moving])[:-1]
        self.start = np.concatenate([matrices[k].ravel() for k in self.moving])
        self.terms = {
            k: [(w, c, tuple(word.split(".")) if word != "1" else ()) for w, c, word in terms]
            for k, terms in solver.FLOW.items()
        }

    def matrices(self, state: Floats) -> dict[str, Floats]:
        """All letters at a state."""
        parts = (x.reshape(shape) for x, shape in zip(np.split(state, self.ends), self.shapes, strict=True))
        return {**dict(zip(self.moving, parts, strict=True)), **self.fixed}

    def arguments(self, state: Floats) -> Floats:
        """The arguments q (Q,) of the couplings at a state; either order of two letters counts alike."""
        words = [tuple(w.split(".")) for w in self.solver.ARGUMENTS]
        turned = [w[1:] + w[:1] for w in words]
        return self.state(self.matrices(state), [*words, *turned], self.index).reshape(2, -1).mean(axis=0)

    def moments(self, state: Floats, words: Sequence[str]) -> Floats:
        """Values of words at a state, (K,); words that couplings read as they read them."""
        table = self.state(self.matrices(state), [tuple(w.split(".")) for w in words], self.index)
        known = dict(zip(self.solver.ARGUMENTS, self.arguments(state), strict=True))
        return np.array([known.get(w, x) for w, x in zip(words, table, strict=True)])

    def derivative(self, t: float, state: Floats) -> Floats:
        """d state / dt."""
        q = self.arguments(state)
        params, rules = self.manifold.at(q), self.manifold.rules
        value = dict(zip(self.solver.COUPLINGS, self.solver.couplings(q, params, rules), strict=True))
        values = Products(self.matrices(state), self.index.general)
        parts = []
        for k, shape in zip(self.moving, self.shapes, strict=True):
            weights: dict[tuple[str, ...], float] = {}
            for w, c, word in self.terms[k]:
                weights[word] = weights.get(word, 0.0) + w * (value[c] if c in value else params[c])
            total = np.zeros(shape)
            for word, weight in weights.items():
                if weight:
                    total += weight * (values(word) if word else np.eye(shape[0]))
            parts.append(total.ravel())
        return np.concatenate(parts)


def plain_moments(matrices: Mapping[str, Floats], words: Sequence[Word], index: WordIndex) -> Floats:
    """(1/N) Tr of products."""
    values = Products(matrices, index.general)
    result = []
    for word in words:
        half = (len(word) + 1) // 2
        left, right = values(word[:half]), word[half:]
        result.append((np.vdot(left, values(right).T) if right else np.trace(left)) / len(left))
    return np.array(result)


def vacuum_moments(matrices: Mapping[str, Floats], words: Sequence[Word], index: WordIndex) -> Floats:
    """<e, w(A) e> with e the first basis vector: products of matrices and vectors only; inner products of values."""
    values = Products(matrices, index.general)
    columns: dict[Word, Floats] = {(): np.eye(len(matrices[index.bases[0]]))[0]}

    def column(word: Word) -> Floats:
        if word not in columns:
            columns[word] = values(word[:1]) @ column(word[1:])
        return columns[word]

    def moment(word: Word) -> float:
        names = [n.rstrip("'") for n in word]
        if names[0] in index.values:
            return float(np.vdot(matrices[names[0]], matrices[names[1]]))
        half = (len(word) + 1) // 2
        return float(column(index.star(word[:half])) @ column(word[half:]))

    return np.array([moment(w) for w in words])


def noncyclic_words(letters: Sequence[str], longest: int) -> list[tuple[str, ...]]:
    """All products of at most `longest` letters, the empty one first."""
    return [w for n in range(longest + 1) for w in product(letters, repeat=n)]


def compress(moment: Callable[[Word], float], index: WordIndex, n: int, drop: float) -> dict[str, Floats]:
    """Matrices A_k with <e, w(A) e> = tr(w) for all words of length at most 2 n + 1.

    A non-commutative Gauss quadrature: with e_u the words of length at most n, ``G_uv = tr(u* v)`` and
    ``B^k_uv = tr(u* k v)``, ``A_k = L^{-1} B^k L^{-T}`` for ``G = L L'``.  Gram-Schmidt runs word by word in
    extended precision; a word whose part orthogonal to the earlier ones is below `drop` (relative, squared)
    is a combination of them and is left out.  Values become rows with the same inner products.
    """
    words = noncyclic_words(index.letters, n)
    star = [index.star(w) for w in words]
    gram = np.array([[moment((*u, *v)) for v in words] for u in star], dtype=np.longdouble)
    inverse = _gram_schmidt(gram, drop)
    result = {}
    for k in index.bases:
        middle = np.array([[moment((*u, k, *v)) for v in words] for u in star], dtype=np.longdouble)
        a = (inverse @ middle @ inverse.T).astype(float)
        result[k] = a if k in index.general else (a + a.T) / 2
    if index.values:
        overlaps = np.array([[moment((v, w + "'")) for w in index.values] for v in index.values])
        eigenvalues, vectors = np.linalg.eigh(overlaps)
        rows = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
        result |= {v: rows[i : i + 1] for i, v in enumerate(index.values)}
    return result


def _gram_schmidt(gram: NDArray[np.longdouble], drop: float) -> NDArray[np.longdouble]:
    """Rows c with c G c' = 1: coefficients of orthonormal combinations of the basis."""
    rows: list[NDArray[np.longdouble]] = []
    for i in range(len(gram)):
        c = np.zeros(len(gram), dtype=np.longdouble)
        c[i] = 1
        for _ in range(2):  # twice is enough
            if rows:
                stack = np.array(rows)
                c -= (stack @ (gram @ c)) @ stack
        norm = c @ gram @ c
        if norm > drop * gram[i, i] and norm > 0:
            rows.append(c / np.sqrt(norm))
    return np.array(rows)
