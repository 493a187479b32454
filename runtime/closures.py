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
from tracewords.runtime.matrixflow import noncyclic_words
from tracewords.runtime.solver import Solver
from tracewords.runtime.wordindex import WordIndex

Floats = NDArray[np.float64]
Word = tuple[str, ...]


class FlatExtension:
    """Boundary moments of a solver from its state.

    Parameters
    ----------
    solver : Solver
        Of odd order 2 n + 1.
    drop : float
        Directions of the Gram matrix below this part of its trace are left out.
    """

    def __init__(self, solver: Solver, drop: float = 1e-12) -> None:
        if solver.ORDER % 2 == 0:
            raise ModelError("order", solver.ORDER, "an odd order for closure flat")
        n = (solver.ORDER - 1) // 2
        self.drop = drop
        index = WordIndex(solver)
        self.index, self.one = index, len(solver.WORDS)
        basis = noncyclic_words(index.letters, n)
        self.top = {w: i for i, w in enumerate(product(index.letters, repeat=n + 1))}
        self.gram = self._positions([(*index.star(u), *v) for u in basis for v in basis], len(basis))
        self.overlap = self._positions([(*index.star(u), *v) for u in self.top for v in basis], len(basis))
        self.sources = [self._sources(tuple(w.split(".")), n + 1) for w in solver.BOUNDARY]

    def _positions(self, words: list[Word], width: int) -> NDArray[np.intp]:
        where = (self.index.position[self.index.least(w)] if w else self.one for w in words)
        return np.array(list(where), dtype=np.intp).reshape(-1, width)

    def _sources(self, word: Word, half: int) -> NDArray[np.intp]:
        """Pairs (u, v) with u* v a rotation of the word or of its transpose."""
        star = self.index.star
        turned = {w[i:] + w[:i] for w in (word, star(word)) for i in range(len(word))}
        return np.array([(self.top[star(w[:half])], self.top[w[half:]]) for w in sorted(turned)])

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
