"""Where a trajectory starts: free laws, given matrices, or given moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.runtime.free import Law, canonical, exact, law_from_data, parse_word
from tracewords.runtime.initial import Factor, check_moments, check_traces, empirical_moments, initial_moments
from tracewords.runtime.joint import split_name
from tracewords.runtime.solver import Solver

Floats = NDArray[np.float64]
PARTS = {  # of a matrix, that are letters of words
    "tied": ("",),
    "symmetric": ("",),
    "direct": ("", "'"),
    "untied": ("", "'", "uu", "vv"),
    "values": ("", "'"),
}


@dataclass(frozen=True)
class Start:
    """Initial condition of a solver.

    Parameters
    ----------
    laws : mapping of matrix to Law
        The matrices are free of each other.
    factors : mapping of matrix to array or pair of arrays, optional
        What SGD trains: W, ``(d, r)``, of a tied matrix ``S = W W'``; S, ``(d, d)``, direct or symmetric; (U, V),
        both ``(d, r)``, of an untied one, ``S = U V'``; V, ``(d, d_v)``, of values.  Overrides the laws.
    moments : mapping of word to value, optional
        Overrides both; enough only for the closures that need moments alone.
    kinds : mapping of matrix to kind
        "tied" where nothing is said.
    letters : sequence of str
        The letters of words; by default those of each matrix's kind.
    """

    laws: Mapping[str, Law] = field(default_factory=dict)
    factors: Mapping[str, Factor] | None = None
    moments: Mapping[str, float] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    letters: Sequence[str] = ()

    def values(self, words: Sequence[str]) -> Floats:
        """Moments (K,) of words in state order."""
        if self.moments is not None:
            missing = [w for w in words if w not in self.moments]
            if missing:
                raise ModelError("initial moments", f"no value of {missing[0]}", f"all of the {len(words)} words")
            return np.array([float(self.moments[w]) for w in words])
        if self.factors is not None:
            return empirical_moments(self._parts(self.factors), list(words))
        return initial_moments(list(words), self.laws, letters=self._letters(self.laws))

    def sample(self, d: int, rng: np.random.Generator) -> dict[str, Any]:
        """What SGD trains of every matrix (see `factors`): drawn at size d, or the given ones."""
        if self.factors is not None:
            return dict(self.factors)
        if self.moments is not None:
            raise ModelError("initial", "moments", "laws or matrices, for closure matrix and for SGD")
        drawn = {k: law.sample(d, rng, kind=self._kind(k)) for k, law in self.laws.items()}
        return {
            k: tuple(parts.values()) if len(parts) > 1 else next(iter(parts.values())) for k, parts in drawn.items()
        }

    def matrices(self, d: int, rng: np.random.Generator) -> dict[str, Floats]:
        """The matrix of every letter, drawn at size d or of the given factors; transposes (``S1'``) are left out."""
        return self._parts(self.sample(d, rng))

    def norms(self) -> dict[str, float] | None:
        """Operator norms of the letters at the start, transposes too; None where only moments are known."""
        if self.moments is not None:
            return None
        if self.factors is not None:
            tied = {k: w for k, w in self.factors.items() if self._kind(k) == "tied"}  # cheaper from W
            others = self._parts({k: w for k, w in self.factors.items() if k not in tied})
            known = {k: float(np.linalg.norm(w, 2)) ** 2 for k, w in tied.items()}
            known |= {k: float(np.linalg.norm(m, 2)) for k, m in others.items()}
            return {k: known[k.removesuffix("'")] for k in self._letters(self.factors)}
        letters = {k: split_name(k, self.laws) for k in self._letters(self.laws)}
        return {k: self.laws[found[0]].operator_norm(found[1]) for k, found in letters.items() if found}

    def _kind(self, matrix: str) -> str:
        return self.kinds.get(matrix, "tied")

    def _letters(self, matrices: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(self.letters) or tuple(k + part for k in matrices for part in PARTS[self._kind(k)])

    def _parts(self, factors: Mapping[str, Any]) -> dict[str, Floats]:
        """Letters but transposes as matrices."""
        letters = self._letters(factors)
        result: dict[str, Floats] = {}
        for k, factor in factors.items():
            kind = self._kind(k)
            if kind == "untied":
                u, v = factor
                pairs = {k: (u, v), k + "uu": (u, u), k + "vv": (v, v)}
                result |= {name: a @ b.T for name, (a, b) in pairs.items() if name in letters}
            elif k in letters:
                result[k] = factor @ factor.T if kind == "tied" else factor
        return result


def start_from(
    solver: Solver,
    *,
    laws: Mapping[str, Any] | None = None,
    factors: Mapping[str, Factor] | None = None,
    moments: Mapping[str, float] | None = None,
) -> Start:
    """The start a user asks for; the model's own laws where nothing is given."""
    kinds = dict(solver.KINDS)
    letters = tuple(getattr(solver, "WORD_LETTERS", ())) or Start(kinds=kinds)._letters(dict.fromkeys(solver.LETTERS))
    if moments is not None:
        return Start(moments=_moments(solver, moments, kinds, letters), kinds=kinds, letters=letters)
    if factors is not None:
        return Start(factors=_factors(solver, factors), kinds=kinds, letters=letters)
    for letter, law in (laws or {}).items():
        if letter not in solver.LETTERS:
            raise ModelError(f"initial.{letter}", law, f"laws of {', '.join(solver.LETTERS)}")
    built = {k: _law(solver, k, data) for k, data in {**solver.LAWS, **(laws or {})}.items()}
    return Start(built, kinds=kinds, letters=letters)


def _law(solver: Solver, matrix: str, data: Any) -> Law:
    """A law, of the rank ratio of the model where it has a ratio and none is given; values must have that shape."""
    kind, ratio = solver.KINDS[matrix], getattr(solver, "RANK_RATIOS", {}).get(matrix, 1.0)
    law = law_from_data(matrix, data)
    if not isinstance(data, Law) and "ratio" in law.parameters() and "ratio" not in data[1]:
        law = law_from_data(matrix, (data[0], {**data[1], "ratio": ratio}))
    law.require_kind(kind, f"initial.{matrix}")
    if kind == "values" and law.columns != exact(ratio, "rank ratio"):
        accepted = f"ginibre with ratio {ratio:g}, for values of this model"
        raise ModelError(f"initial.{matrix}", f"{law.name} with {float(law.columns):g} d columns", accepted)
    return law


# -- given matrices ---------------------------------------------------------------------------------------


def _factors(solver: Solver, factors: Mapping[str, Factor]) -> dict[str, Factor]:
    """The factors of all matrices, their shapes consistent."""
    if set(factors) != set(solver.LETTERS):
        raise ModelError("matrix", ", ".join(factors), f"one for each of {', '.join(solver.LETTERS)}")
    checked = {k: _factor(k, solver.KINDS[k], factors[k]) for k in solver.LETTERS}
    shapes = {k: (f[0] if isinstance(f, tuple) else f).shape for k, f in checked.items()}
    first = solver.LETTERS[0]
    values = [k for k in solver.LETTERS if solver.KINDS[k] == "values"]
    for k, (rows, columns) in shapes.items():
        if rows != shapes[first][0]:
            raise ModelError(f"matrix {k}", f"{rows} rows", f"{shapes[first][0]} rows, as {first} has")
        if k in values and columns != shapes[values[0]][1]:
            accepted = f"{shapes[values[0]][1]} columns, as {values[0]} has"
            raise ModelError(f"matrix {k}", f"{columns} columns", accepted)
    return checked


def _factor(matrix: str, kind: str, given: Any) -> Factor:
    """One matrix's factor or factors."""
    where = f"matrix {matrix}"
    if kind == "untied":
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ModelError(where, f"a {type(given).__name__}", "a pair (U, V) with S = U V'")
        u, v = _array(f"{where}: U", given[0]), _array(f"{where}: V", given[1])
        if u.shape != v.shape:
            raise ModelError(where, f"U of shape {u.shape}, V of shape {v.shape}", "U and V of the same shape")
        return u, v
    array = _array(where, given)
    if kind in ("direct", "symmetric") and array.shape[0] != array.shape[1]:
        raise ModelError(where, f"shape {array.shape}", "a square matrix")
    if kind == "symmetric" and (skew := float(np.abs(array - array.T).max())) > 1e-6 * float(np.abs(array).max()):
        raise ModelError(where, f"S - S' up to {skew:.3g}", "a symmetric matrix")
    return array


def _array(where: str, given: Any) -> Floats:
    array = np.asarray(given)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "fiu":
        raise ModelError(where, f"{array.dtype} array of shape {array.shape}", "real numbers in two dimensions, none 0")
    if not np.isfinite(array).all():
        raise ModelError(where, "entries NaN or infinite", "finite numbers")
    return array.astype(np.float64, copy=False)


# -- given moments ----------------------------------------------------------------------------------------


def _moments(
    solver: Solver, moments: Mapping[str, float], kinds: Mapping[str, str], letters: Sequence[str]
) -> dict[str, float]:
    """Given moments by the solver's own words, if matrices can have them."""
    owner = {k: found[0] if (found := split_name(k, kinds)) else k for k in letters}
    square = [k for k in letters if kinds[owner[k]] != "values"]
    values = [k for k in kinds if kinds[k] == "values"]
    positive = [k for k in square if kinds[owner[k]] == "tied" or k in (owner[k] + "uu", owner[k] + "vv")]
    index = {name: i for i, name in enumerate(letters)}
    words = {w: parse_word(w, index) for w in moments}
    for some in (*((k,) for k in solver.LETTERS), solver.LETTERS):  # one matrix's moments may be complete alone
        own = [k for k in square if owner[k] in some]
        inside = {w: x for w, x in moments.items() if all(letters[k] in own for k in words[w])}
        check_moments(inside, own, [k for k in positive if k in own])
        own = [k for k in values if k in some]
        if own:
            pairs = {k + prime for k in own for prime in ("", "'")}
            check_traces({w: x for w, x in moments.items() if words[w] and set(w.split(".")) <= pairs}, own)
    primed = {k: k[:-1] if k.endswith("'") else k + "'" for k in letters}
    adjoint = bytes([*(index.get(primed[k], i) for i, k in enumerate(letters)), *range(len(letters), 256)])
    least = {canonical(word, adjoint): float(moments[w]) for w, word in words.items()}
    known = (*getattr(solver, "WORDS", ()), *getattr(solver, "BOUNDARY", ()), *solver.ORDER_PARAMETERS)
    name = {canonical(parse_word(w, index), adjoint): w for w in known}
    return {name.get(w, ".".join(letters[k] for k in w)): x for w, x in least.items() if w}
