"""The matrix flow itself, on numbers: at size N (closure `matrix`) or on the few-dimensional matrices of
the `operator` closure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.runtime.solver import Params, Rules, Solver

Floats = NDArray[np.float64]
State = Callable[[Mapping[str, Floats], Sequence[tuple[str, ...]], frozenset[str]], Floats]  # moments of words


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
    matrices : mapping of letter to (n, n) array
        All letters; those without a drift stay.
    state : callable
        The moments of words: `plain_moments` for matrices, `vacuum_moments` for operators.
    """

    def __init__(
        self, solver: Solver, matrices: Mapping[str, Floats], state: State, params: Params | None, rules: Rules
    ) -> None:
        self.solver, self.state, self.rules = solver, state, rules
        self.params = solver.parameters(params)
        if np.any(self.params["kappa"]):
            raise ModelError("kappa", self.params["kappa"], "0 for closures operator and matrix; flat or zero for more")
        self.fixed = {k: m for k, m in matrices.items() if k not in solver.FLOW}
        self.moving = tuple(solver.FLOW)
        self.general = frozenset(k for k, kind in solver.KINDS.items() if kind not in ("tied", "symmetric"))
        self.size = len(next(iter(matrices.values())))
        self.start = np.concatenate([matrices[k].ravel() for k in self.moving])
        self.terms = {
            k: [(w, c, tuple(word.split(".")) if word != "1" else ()) for w, c, word in terms]
            for k, terms in solver.FLOW.items()
        }

    def matrices(self, state: Floats) -> dict[str, Floats]:
        """All letters at a state."""
        parts = state.reshape(len(self.moving), self.size, self.size)
        return {**dict(zip(self.moving, parts, strict=True)), **self.fixed}

    def order_parameters(self, state: Floats) -> Floats:
        """The arguments q (Q,) of the couplings at a state."""
        return self.moments(state, self.solver.ARGUMENTS)

    def moments(self, state: Floats, words: Sequence[str]) -> Floats:
        """Values of words at a state, (K,)."""
        return self.state(self.matrices(state), [tuple(w.split(".")) for w in words], self.general)

    def derivative(self, t: float, state: Floats) -> Floats:
        """d state / dt."""
        q = self.order_parameters(state)
        value = dict(zip(self.solver.COUPLINGS, self.solver.couplings(q, self.params, self.rules), strict=True))
        values = Products(self.matrices(state), self.general)
        parts = []
        for k in self.moving:
            weights: dict[tuple[str, ...], float] = {}
            for w, c, word in self.terms[k]:
                weights[word] = weights.get(word, 0.0) + w * (value[c] if c in value else self.params[c])
            total = np.zeros((self.size, self.size))
            for word, weight in weights.items():
                if weight:
                    total += weight * (values(word) if word else np.eye(self.size))
            parts.append(total.ravel())
        return np.concatenate(parts)


def plain_moments(matrices: Mapping[str, Floats], words: Sequence[tuple[str, ...]], general: frozenset[str]) -> Floats:
    """(1/N) Tr of products."""
    values = Products(matrices, general)
    size = len(next(iter(matrices.values())))
    result = []
    for word in words:
        half = (len(word) + 1) // 2
        left, right = word[:half], word[half:]
        result.append(np.vdot(values(left), values(right).T) / size if right else np.trace(values(left)) / size)
    return np.array(result)


def vacuum_moments(matrices: Mapping[str, Floats], words: Sequence[tuple[str, ...]], general: frozenset[str]) -> Floats:
    """<e, w(A) e> with e the first basis vector: products of matrices and vectors only."""
    values = Products(matrices, general)
    columns: dict[tuple[str, ...], Floats] = {(): np.eye(len(next(iter(matrices.values()))))[0]}

    def column(word: tuple[str, ...]) -> Floats:
        if word not in columns:
            columns[word] = values(word[:1]) @ column(word[1:])
        return columns[word]

    halves = ((values.star(w[: (len(w) + 1) // 2]), w[(len(w) + 1) // 2 :]) for w in words)
    return np.array([column(left) @ column(right) for left, right in halves])


def noncyclic_words(letters: Sequence[str], longest: int) -> list[tuple[str, ...]]:
    """All products of at most `longest` letters, the empty one first."""
    return [w for n in range(longest + 1) for w in product(letters, repeat=n)]


def compress(
    moment: Callable[[tuple[str, ...]], float], letters: Sequence[str], n: int, drop: float
) -> dict[str, Floats]:
    """Matrices A_k with <e, w(A) e> = tr(w) for all words of length at most 2 n + 1.

    A non-commutative Gauss quadrature: with e_u the words of length at most n, ``G_uv = tr(u* v)`` and
    ``B^k_uv = tr(u* k v)``, ``A_k = L^{-1} B^k L^{-T}`` for ``G = L L'``.  Gram-Schmidt runs word by word in
    extended precision; a word whose part orthogonal to the earlier ones is below `drop` (relative, squared)
    is a combination of them and is left out.
    """
    words = noncyclic_words(letters, n)
    star = [tuple(reversed(w)) for w in words]  # symmetric letters
    gram = np.array([[moment((*u, *v)) for v in words] for u in star], dtype=np.longdouble)
    inverse = _gram_schmidt(gram, drop)
    result = {}
    for k in letters:
        middle = np.array([[moment((*u, k, *v)) for v in words] for u in star], dtype=np.longdouble)
        a = (inverse @ middle @ inverse.T).astype(float)
        result[k] = (a + a.T) / 2
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
