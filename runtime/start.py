"""Where a trajectory starts: free laws, given matrices, or given moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.runtime.free import Law, build_laws, canonical, parse_word
from tracewords.runtime.initial import check_moments, empirical_moments, initial_moments
from tracewords.runtime.solver import Solver

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Start:
    """Initial condition of a solver.

    Parameters
    ----------
    laws : mapping of letter to Law
        The letters are free of each other.
    factors : mapping of letter to (d, r) array, optional
        W of each tied letter, ``S = W W'``; overrides the laws.
    moments : mapping of word to value, optional
        Overrides both; enough only for the closures that need moments alone.
    """

    laws: Mapping[str, Law] = field(default_factory=dict)
    factors: Mapping[str, Floats] | None = None
    moments: Mapping[str, float] | None = None

    def values(self, words: Sequence[str]) -> Floats:
        """Moments (K,) of words in state order."""
        if self.moments is not None:
            missing = [w for w in words if w not in self.moments]
            if missing:
                raise ModelError("initial moments", f"no value of {missing[0]}", f"all of the {len(words)} words")
            return np.array([float(self.moments[w]) for w in words])
        if self.factors is not None:
            return empirical_moments({k: w @ w.T for k, w in self.factors.items()}, list(words))
        return initial_moments(list(words), self.laws)

    def sample(self, d: int, rng: np.random.Generator) -> dict[str, Floats]:
        """W of every letter: drawn at size d, or the given ones."""
        if self.factors is not None:
            return dict(self.factors)
        if self.moments is not None:
            raise ModelError("initial", "moments", "laws or matrices, for closure matrix and for SGD")
        return {k: law.sample(d, rng, kind="tied")["W"] for k, law in self.laws.items()}

    def norms(self) -> dict[str, float] | None:
        """Operator norms of the letters at the start; None where only moments are known."""
        if self.moments is not None:
            return None
        if self.factors is not None:
            return {k: float(np.linalg.norm(w, 2)) ** 2 for k, w in self.factors.items()}
        return {k: law.operator_norm() for k, law in self.laws.items()}


def start_from(
    solver: Solver,
    *,
    laws: Mapping[str, Any] | None = None,
    factors: Mapping[str, Floats] | None = None,
    moments: Mapping[str, float] | None = None,
) -> Start:
    """The start a user asks for; the model's own laws where nothing is given."""
    if moments is not None:
        tied = [k for k, kind in solver.KINDS.items() if kind == "tied"]
        for letters in (*((k,) for k in solver.LETTERS), solver.LETTERS):  # one letter's moments may be complete alone
            inside = {w: x for w, x in moments.items() if len(letters) > 1 or set(w.split(".")) <= set(letters)}
            check_moments(inside, letters, [k for k in tied if k in letters])
        index = {name: i for i, name in enumerate(solver.LETTERS)}
        least = {canonical(parse_word(w, index)): float(x) for w, x in moments.items()}
        return Start(moments={".".join(solver.LETTERS[k] for k in w): x for w, x in least.items() if w})
    if factors is not None:
        missing = [k for k in solver.LETTERS if k not in factors]
        if missing:
            raise ModelError("matrix", ", ".join(factors), f"one for each of {', '.join(solver.LETTERS)}")
        return Start(factors=factors)
    for letter, law in (laws or {}).items():
        if letter not in solver.LETTERS:
            raise ModelError(f"initial.{letter}", law, f"laws of {', '.join(solver.LETTERS)}")
    return Start(build_laws({**solver.LAWS, **(laws or {})}, solver.KINDS))
