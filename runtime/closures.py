"""Closure `flat`: the moments of order M + 1 from those of order up to M = 2 n + 1.

A moment sequence that is a flat extension has ``tr(u* v) = b_u' G^{-1} b_v`` for |u| = |v| = n + 1, with
``b_u`` the overlaps of u with the words of length at most n and G their Gram matrix.  Imposing it at every
evaluation closes the hierarchy with a quantity that is exact where the matrices act on few dimensions.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.runtime.solver import Solver

Floats = NDArray[np.float64]


class FlatExtension:
    """Boundary moments of a solver from its state.

    Parameters
    ----------
    solver : Solver
        Of odd order 2 n + 1; symmetric letters.
    drop : float
        Directions of the Gram matrix below this part of its trace are left out.
    """

    def __init__(self, solver: Solver, drop: float = 1e-12) -> None:
        if solver.ORDER % 2 == 0:
            raise ModelError("order", solver.ORDER, "an odd order for closure flat")
        n = (solver.ORDER - 1) // 2
        self.drop = drop
        names: tuple[str, ...] = solver.LETTERS
        self.letters = {name: i for i, name in enumerate(names)}
        self.index = {self._least(self._parse(w)): i for i, w in enumerate(solver.WORDS)}
        self.index[()] = len(solver.WORDS)
        ids = range(len(names))
        basis = [w for m in range(n + 1) for w in product(ids, repeat=m)]
        self.top = {w: i for i, w in enumerate(product(ids, repeat=n + 1))}
        self.gram = self._positions([(*reversed(u), *v) for u in basis for v in basis], len(basis))
        self.overlap = self._positions([(*reversed(u), *v) for u in self.top for v in basis], len(basis))
        self.sources = [self._sources(self._parse(w), n + 1) for w in solver.BOUNDARY]

    def _parse(self, text: str) -> tuple[int, ...]:
        return tuple(self.letters[name] for name in text.split("."))

    @staticmethod
    def _least(word: tuple[int, ...]) -> tuple[int, ...]:
        both = (word, word[::-1])
        return min((w[i:] + w[:i] for w in both for i in range(len(w))), default=())

    def _positions(self, words: list[tuple[int, ...]], width: int) -> NDArray[np.intp]:
        return np.array([self.index[self._least(w)] for w in words], dtype=np.intp).reshape(-1, width)

    def _sources(self, word: tuple[int, ...], half: int) -> NDArray[np.intp]:
        """Pairs (u, v) with u* v a rotation of the word or of its reversal."""
        turned = {w[i:] + w[:i] for w in (word, word[::-1]) for i in range(len(word))}
        return np.array([(self.top[w[:half][::-1]], self.top[w[half:]]) for w in sorted(turned)])

    def __call__(self, mu: Floats) -> Floats:
        """Boundary moments (B,) at a state (K,)."""
        values = np.append(mu, 1.0)
        gram = values[self.gram]
        overlap = values[self.overlap]
        # scaling the words to unit length keeps the small directions visible
        scale = 1 / np.sqrt(np.maximum(np.diag(gram), np.finfo(float).tiny))
        eigenvalues, vectors = np.linalg.eigh(gram * np.outer(scale, scale))
        kept = eigenvalues > self.drop * len(gram)
        half = (overlap * scale) @ (vectors[:, kept] / np.sqrt(eigenvalues[kept]))
        extension = half @ half.T
        return np.array([extension[s[:, 0], s[:, 1]].mean() for s in self.sources])
