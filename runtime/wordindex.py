"""Words of a solver by name: transposes, canonical forms, and where a word stands in the state."""

from __future__ import annotations

from tracewords.runtime.solver import Solver

Names = tuple[str, ...]


class WordIndex:
    """Looks up words in any rotation, and transposed.

    Attributes
    ----------
    letters : tuple of str
        Letters of score matrices and composites with their transposes; values are left out.
    values : tuple of str
        Letters of matrices of values, without transposes.
    """

    def __init__(self, solver: Solver) -> None:
        self.adjoint: dict[str, str] = dict(solver.ADJOINT)
        self.rank = {name: i for i, name in enumerate(solver.WORD_LETTERS)}
        self.values = tuple(k for k in solver.LETTERS if solver.KINDS[k] == "values")
        inside = {*self.values, *(f"{v}'" for v in self.values)}
        self.letters = tuple(name for name in solver.WORD_LETTERS if name not in inside)
        self.bases = tuple(name for name in self.letters if not name.endswith("'"))
        self.position = {self.least(tuple(w.split("."))): i for i, w in enumerate(solver.WORDS)}

    @property
    def general(self) -> frozenset[str]:
        """Letters that are not their own transpose, without primes."""
        return frozenset(n for n, a in self.adjoint.items() if a != n and not n.endswith("'"))

    def star(self, word: Names) -> Names:
        """The transposed word."""
        return tuple(self.adjoint[n] for n in reversed(word))

    def least(self, word: Names) -> Names:
        """The canonical form."""
        both = (word, self.star(word))
        turned = (w[i:] + w[:i] for w in both for i in range(len(word)))
        return min(turned, key=lambda w: [self.rank[n] for n in w], default=())
