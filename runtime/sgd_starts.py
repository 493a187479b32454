"""The matrices that a run of SGD starts from: given, from a function of the caller, or drawn from a law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.runtime.free import Law, law_from_data
from tracewords.runtime.sgd_matrices import Factors

Floats = NDArray[np.float64]

NAMES = {"tied": ("W",), "direct": ("S",), "symmetric": ("S",), "untied": ("U", "V"), "values": ("V",)}


def draw_factors(
    solver: Any, letter: str, given: Any, d: int, rng: np.random.Generator, params: Mapping[str, float]
) -> Factors:
    """Factors of a letter, checked.

    Parameters
    ----------
    solver : solver module
    letter : str
    given : array, pair of arrays, function ``f(rng, d, r)`` that returns them, law, or None for the solver's law
    d : int
    rng : numpy.random.Generator
    params : mapping of parameter to float
        A drawn matrix that the loss sees the mean of gets ``m_<letter>`` on top of it.

    Returns
    -------
    array or pair of arrays
        W (d, r), S (d, d), the pair U, V (d, r), or V (d, d_v), by the kind of the letter.
    """
    kind = solver.KINDS[letter]
    if given is None:
        given = solver.LAWS.get(letter)
    if given is None:
        raise ModelError(f"initial.{letter}", "nothing", f"{_wanted(kind, d)}, or a law")
    if callable(given):
        ratio = solver.RANK_RATIOS.get(letter, 1.0)
        return checked(letter, given(rng, d, max(1, round(ratio * d))), kind, d)
    if isinstance(given, Law) or _is_data(given):
        drawn = _law(solver, letter, given).sample(d, rng, kind=kind)
        factors = tuple(drawn[name] for name in NAMES[kind])
        mean = params.get(f"m_{letter}", 0.0) if letter in getattr(solver, "MEANS", ()) else 0.0
        return with_mean(factors if kind == "untied" else factors[0], kind, mean)
    return checked(letter, given, kind, d)


def _is_data(given: Any) -> bool:
    """Whether this is to be read as a law, ``(name, parameters)``, well written or not."""
    if isinstance(given, np.ndarray):
        return False
    pair = isinstance(given, Sequence) and len(given) == 2 and not isinstance(given, str)
    return not (pair and all(isinstance(f, np.ndarray) for f in given))


def _law(solver: Any, letter: str, data: Any) -> Law:
    """A law, of the rank ratio of the letter where it has a ratio and none is given."""
    kind = solver.KINDS[letter]
    law = law_from_data(letter, data, kind=kind)
    if not isinstance(data, Law) and "ratio" in law.parameters() and "ratio" not in data[1]:
        ratio = solver.RANK_RATIOS.get(letter, 1.0)
        law = law_from_data(letter, (data[0], {**data[1], "ratio": ratio}), kind=kind)
    return law


def _wanted(kind: str, d: int) -> str:
    square = kind in ("direct", "symmetric")
    names = ", ".join(NAMES[kind])
    columns = str(d) if square else "d_v" if kind == "values" else "r"
    return f"{'pair' if kind == 'untied' else 'real'} {names} of shape ({d}, {columns})"


def checked(letter: str, given: Any, kind: str, d: int) -> Factors:
    """Given arrays in double precision, or an error that names the letter."""
    where = f"initial.{letter}"
    given = tuple(given) if kind == "untied" and isinstance(given, tuple | list) else (given,)
    try:
        arrays = tuple(np.asarray(a) for a in given)
    except ValueError:
        raise ModelError(where, "rows of different lengths", _wanted(kind, d)) from None
    square = kind in ("direct", "symmetric")
    good = len(arrays) == len(NAMES[kind]) and all(
        a.ndim == 2 and len(a) == d and a.size and a.dtype.kind in "iuf" and (not square or a.shape == (d, d))
        for a in arrays
    )
    if not good or len({a.shape for a in arrays}) > 1:
        shape = " and ".join(f"{a.dtype} array of shape {a.shape}" for a in arrays)
        raise ModelError(where, shape, _wanted(kind, d))
    if not all(np.isfinite(a).all() for a in arrays):
        raise ModelError(where, "entries NaN or infinite", "finite numbers")
    real = tuple(a.astype(np.float64) for a in arrays)
    if kind == "symmetric":
        S, precision = real[0], np.finfo(arrays[0].dtype).eps if arrays[0].dtype.kind == "f" else 0.0
        skew = float(np.abs(S - S.T).max())
        if skew > max(1e-10, 100 * float(precision)) * float(np.abs(S).max()):
            raise ModelError(where, f"S - S' up to {skew:.3g}", "a symmetric matrix")
        return (S + S.T) / 2
    return real if kind == "untied" else real[0]


def with_mean(factors: Factors, kind: str, mean: float) -> Factors:
    """The same with `mean` added to ``d^{-1/2} Tr S``: a change of S that vanishes for d to infinity in all else."""
    if mean == 0.0:
        return factors
    if kind == "untied":
        U, V = factors
        return U, V + mean * np.sqrt(len(U)) / float(np.vdot(U, U)) * U
    return factors + mean / np.sqrt(len(factors)) * np.eye(len(factors))


def check_traces(solver: Any, factors: Mapping[str, Factors]) -> None:
    """Matrices whose trace ``tr(V_k V_l')`` the loss reads must have as many columns."""
    for first, second in getattr(solver, "TRACES", ()):
        a, b = factors[first].shape, factors[second].shape
        if a != b:
            raise ModelError(f"initial.{second}", f"array of shape {b}", f"shape {a}, as {first} has")
