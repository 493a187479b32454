"""The moments that a run starts from, and whether they can be moments at all.

Three sources: laws of matrices that are free of each other, matrices at hand, files.

Words are names joined by dots, ``1`` if empty; a trailing prime transposes a letter.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tracewords.errors import ModelError
from tracewords.runtime.free import (
    Floats,
    Law,
    LawData,
    build_laws,
    canonical,
    law_from_data,
    parse_word,
    symmetric_factor,
)
from tracewords.runtime.joint import free_moments, word_letters

__all__ = [
    "Factor",
    "check_moments",
    "check_traces",
    "empirical_moments",
    "free_moments",
    "initial_moments",
    "law_from_data",
    "load_matrices",
]

Factor = Floats | tuple[Floats, Floats]  # what is trained: W, S, V, or U and V


def initial_moments(
    words: Sequence[str],
    laws: Mapping[str, Law | LawData],
    dtype: DTypeLike = np.float64,
    letters: Sequence[str] | None = None,
) -> NDArray[Any]:
    """`free_moments` as an array.

    Parameters
    ----------
    words : sequence of K str
    laws : mapping
        Matrix to its law or its data form.
    dtype : dtype
        ``object`` keeps the exact fractions.
    letters : sequence of str, optional
        Names that may be in a word; by default those that the laws tell apart.

    Returns
    -------
    (K,) array
    """
    known = build_laws(laws)
    moments = free_moments(words, word_letters(known) if letters is None else letters, known)
    if np.dtype(dtype) == object:
        return np.array([moments[word] for word in words], dtype=object)
    try:
        return np.array([float(moments[word]) for word in words], dtype=dtype)
    except OverflowError:
        names = ", ".join(f"{k} = {law.operator_norm():.3g}" for k, law in known.items())
        raise ModelError("initial: norms", names, "laws whose moments stay below 1e308") from None


# -- moments of matrices ----------------------------------------------------------------------------------


def empirical_moments(
    matrices: Mapping[str, Floats], words: Sequence[str], memory: float = 2.0**30
) -> NDArray[np.float64]:
    """``Tr / d`` of the products that the words stand for.

    A word is cut in two: ``Tr(u v)`` is the inner product of u with the transpose of v.  All second parts
    are kept; the first parts are visited in lexicographic order, keeping the prefixes of the current one.

    Parameters
    ----------
    matrices : mapping
        Letter to its matrix, ``(d, d)`` or, where the words are closed paths, ``(d, r)``.  ``S'`` in a
        word is the transpose of S.
    words : sequence of K str
    memory : float
        Bytes for the second parts, which are cut shorter to fit.

    Returns
    -------
    (K,) array
    """
    names = [name + prime for name in matrices for prime in ("", "'")]
    given = [np.asarray(matrix) for matrix in matrices.values()]
    if {(a.ndim, np.iscomplexobj(a)) for a in given} != {(2, False)} or len({len(a) for a in given}) > 1:
        shapes = ", ".join(f"{k} {a.dtype} {a.shape}" for k, a in zip(matrices, given, strict=True)) or "none"
        raise ModelError("matrices", shapes, "two-dimensional real arrays, all with d rows")
    arrays = [a.astype(np.float64, copy=False) for a in given]
    factors = [f for a in arrays for f in (a, a.T)]
    parsed = [parse_word(text, {name: i for i, name in enumerate(names)}) for text in words]
    for text, word in zip(words, parsed, strict=True):
        joins = zip(word, word[1:] + word[:1], strict=True)
        if any(factors[a].shape[1] != factors[b].shape[0] for a, b in joins):
            raise ModelError("word", text, "a closed path: each letter's columns are the next one's rows")
    return _traces(parsed, factors, memory) / len(arrays[0])


def _traces(words: Sequence[bytes], factors: Sequence[Floats], memory: float) -> NDArray[np.float64]:
    """Traces of the products; the empty word gives d."""
    room = memory / (8 * max(f.size for f in factors))
    kept = max((len(word) for word in words), default=0) // 2
    while kept > 1 and len({word[-i:] for word in words for i in range(1, kept + 1)}) > room:
        kept -= 1
    transposed: dict[bytes, Floats] = {}

    def second(word: bytes) -> Floats:
        if word not in transposed:
            one = factors[word[0]].T
            transposed[word] = second(word[1:]) @ one if len(word) > 1 else one
        return transposed[word]

    traces = np.full(len(words), float(len(factors[0])))
    cut = [len(word) - min(kept, len(word) // 2) for word in words]
    order = sorted((i for i, word in enumerate(words) if word), key=lambda i: words[i][: cut[i]])
    firsts = _prefix_products((words[i][: cut[i]] for i in order), factors)
    for i, first in zip(order, firsts, strict=True):
        rest = words[i][cut[i] :]
        traces[i] = np.vdot(first, second(rest)) if rest else np.trace(first)
    return traces


def _prefix_products(words: Iterable[bytes], factors: Sequence[Floats]) -> Iterator[Floats]:
    """Product of each word, from the prefix that it shares with the word before."""
    stack: list[Floats] = []
    before = b""
    for word in words:
        shared = next((i for i, (a, b) in enumerate(zip(word, before, strict=False)) if a != b), None)
        del stack[min(len(word), len(before)) if shared is None else shared :]
        for k in word[len(stack) :]:
            stack.append(stack[-1] @ factors[k] if stack else factors[k])
        before = word
        yield stack[-1]


def load_matrices(
    paths: Mapping[str, str | Path],
    kinds: Mapping[str, str],
    composites: Collection[str] = (),
    factors: bool = False,
) -> dict[str, Any]:
    """Matrices out of files, in double precision.

    Parameters
    ----------
    paths : mapping
        Letter to its file: .npy with one array, or for untied letters .npz with the arrays U and V.
    kinds : mapping
        Letter to "tied" (the file holds W, ``(d, r)``, and ``S = W W'``), "untied" (U and V, ``(d, r)``, and
        ``S = U V'``), "symmetric", "direct" or "general" (S, ``(d, d)``), or "values" (V, ``(d, d_v)``).
    composites : collection of str
        Tied letters whose file holds S itself instead.
    factors : bool
        Give W instead of S for tied letters, (U, V) for untied ones.

    Returns
    -------
    dict
        Letter to S, ``(d, d)``, V for values, or the factors; all with the same d.
    """
    loaded: dict[str, Any] = {}
    rows: dict[str, int] = {}
    for letter, path in paths.items():
        where = f"matrix {letter}"
        if letter not in kinds:
            raise ModelError(where, str(path), f"a file for one of {', '.join(kinds)}")
        kind = "composite" if letter in composites and kinds[letter] == "tied" else kinds[letter]
        if kind == "untied":
            u, v = _load_pair(where, path)
            rows[letter], loaded[letter] = len(u), (u, v) if factors else u @ v.T
        else:
            array, tolerance = _load(where, path)
            matrix = _checked(where, array, kind, tolerance)
            rows[letter] = len(matrix)
            if kind == "tied" and not factors:
                matrix = matrix @ matrix.T
            elif kind == "composite" and factors:
                matrix = symmetric_factor(matrix, where, tolerance)
            loaded[letter] = matrix
        other, first = next(iter(rows.items()))
        if rows[letter] != first:
            raise ModelError(where, f"{rows[letter]} rows", f"{first} rows, as {other} has")
    return loaded


def _load_pair(where: str, path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """U and V out of an archive."""
    accepted = "an .npz archive of two arrays, U and V"
    try:
        if not zipfile.is_zipfile(path):  # also where there is no file
            raise ModelError(f"{where}: kind untied", str(path), accepted)
        with np.load(path, allow_pickle=False) as archive:
            names = sorted(archive.files)
            arrays = [archive[name] for name in names]
    except ModelError:
        raise
    except Exception as error:  # a broken file can make NumPy raise almost anything
        reason = (isinstance(error, OSError) and error.strerror) or "not arrays of numbers"
        raise ModelError(where, str(path), f"{accepted} ({reason})") from None
    if names != ["U", "V"]:
        raise ModelError(where, f"arrays {', '.join(names) or 'none'}", accepted)
    (u, _), (v, _) = (_real(f"{where}: {name}", a) for name, a in zip(names, arrays, strict=True))
    if u.shape != v.shape:
        raise ModelError(where, f"U of shape {u.shape}, V of shape {v.shape}", "U and V of the same shape")
    return u, v


def _load(where: str, path: str | Path) -> tuple[NDArray[np.float64], float]:
    """The array and the relative rounding to expect of what was computed in its precision."""
    try:
        # mapped: never unpickles, and a header that promises more than the file holds allocates nothing
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a broken file can make NumPy raise almost anything
        reason = (isinstance(error, OSError) and error.strerror) or "not one array of numbers"
        raise ModelError(where, str(path), f"a readable .npy file ({reason})") from None
    return _real(where, array)


def _real(where: str, array: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    if array.dtype.kind not in "fiu":
        raise ModelError(where, f"entries of type {array.dtype}", "real numbers")
    if array.ndim != 2 or array.size == 0:
        raise ModelError(where, f"shape {array.shape}", "two dimensions, none of them 0")
    real = np.array(array, dtype=np.float64)
    if bad := np.count_nonzero(~np.isfinite(real)):
        raise ModelError(where, f"{bad} entries NaN or infinite", "finite numbers")
    precision = np.finfo(array.dtype).eps if array.dtype.kind == "f" else 0.0
    return real, max(1e-10, 100 * float(precision))


def _checked(where: str, matrix: NDArray[np.float64], kind: str, tolerance: float) -> NDArray[np.float64]:
    if kind not in ("tied", "composite", "symmetric", "direct", "general", "values"):
        raise ModelError(f"{where}: kind", kind, "tied, symmetric, direct, untied or values")
    if kind in ("tied", "values"):
        return matrix
    if matrix.shape[0] != matrix.shape[1]:
        raise ModelError(where, f"shape {matrix.shape}", "a square matrix")
    if kind in ("direct", "general"):
        return matrix
    skew = float(np.abs(matrix - matrix.T).max())
    if skew > tolerance * float(np.abs(matrix).max()):
        raise ModelError(where, f"S - S' up to {skew:.3g}", f"symmetric, to {tolerance:.0e} of its entries")
    matrix = (matrix + matrix.T) / 2
    if kind == "composite":
        symmetric_factor(matrix, where, tolerance)
    return matrix


# -- can these be moments? --------------------------------------------------------------------------------


class _Given:
    """Given moments, found by any word of their class."""

    def __init__(self, moments: Mapping[str, float], letters: Sequence[str]) -> None:
        self.letters = letters
        index = {name: i for i, name in enumerate(letters)}
        # S is its own transpose unless the letters list S' too
        primed = [name[:-1] if name.endswith("'") else name + "'" for name in letters]
        partner = [index.get(name, i) for i, name in enumerate(primed)]
        self.adjoint = bytes(partner) + bytes(range(len(letters), 256))
        self.values: dict[bytes, float] = {b"": 1.0}
        for text, value in moments.items():
            word = parse_word(text, index)
            real = isinstance(value, int | float | Fraction | np.integer | np.floating)
            if not real or isinstance(value, bool) or not math.isfinite(value):
                raise ModelError(f"initial moments: {text}", value, "a finite number")
            known = self.values.setdefault(canonical(word, self.adjoint), float(value))
            if abs(known - float(value)) > 1e-12 * abs(known):
                raise ModelError(f"initial moments: {text}", value, f"{known!r}, as for the same cyclic word")

    def star(self, word: bytes) -> bytes:
        """Transpose of the product."""
        return word[::-1].translate(self.adjoint)

    def get(self, word: bytes) -> float | None:
        """The moment, or None where it was not given."""
        return self.values.get(canonical(word, self.adjoint))

    def text(self, word: bytes) -> str:
        """The word as it is written."""
        return ".".join(self.letters[k] for k in canonical(word, self.adjoint))

    def matrix(self, basis: Sequence[bytes], middle: bytes) -> Floats | None:
        """``tr(u* middle v)`` over the basis, or None where a moment is missing."""
        block = np.empty((len(basis), len(basis)))
        for j, v in reversed(list(enumerate(basis))):
            for i, u in enumerate(basis[: j + 1]):
                value = self.get(self.star(u) + middle + v)
                if value is None:
                    return None
                block[i, j] = block[j, i] = value
        return block


def check_moments(
    moments: Mapping[str, float],
    letters: Sequence[str],
    psd: Collection[str],
    tolerance: float = 1e-9,
    largest: int = 150,
) -> None:
    """Refuse moments that no matrices have.

    With u and v all words of length at most n, ``tr(u* v)`` is a positive semidefinite matrix, and so is
    ``tr(u* k v)`` for a positive semidefinite letter k.  Both are tested for n = 0, 1, .. as far as all the
    moments they need are given; the first failure is reported.  Passing is necessary, not sufficient.

    Parameters
    ----------
    moments : mapping
        Word to moment.
    letters : sequence of str
        A letter is symmetric unless its primed form is listed too.
    psd : collection of str
        The positive semidefinite letters: the tied ones.
    tolerance : float
        An eigenvalue may be below zero by this times the largest diagonal entry.
    largest : int
        Matrices of more rows than this are not tested.

    Raises
    ------
    ModelError
        Naming the moments of a violated 2 x 2 minor where there is one, else the matrix.
    """
    for letter in psd:
        if letter not in letters or letter + "'" in letters:
            raise ModelError("positive letters", letter, f"symmetric letters out of {', '.join(letters)}")
    given = _Given(moments, letters)
    middles = [b"", *(bytes([letters.index(letter)]) for letter in psd)]
    basis: list[bytes] = []
    for n in itertools.count():
        basis += [bytes(word) for word in itertools.product(range(len(letters)), repeat=n)]
        if len(basis) > largest or not letters:
            return
        for middle in middles:
            block = given.matrix(basis, middle)
            if block is not None:
                slack = tolerance * float(np.abs(np.diag(block)).max())
                _require_positive(given, basis, middle, block, slack)
            elif not middle:
                return


def check_traces(moments: Mapping[str, float], values: Sequence[str], tolerance: float = 1e-9) -> None:
    """Refuse traces ``tr(V_k V_l')`` of matrices of values that are not positive semidefinite; as `check_moments`.

    Parameters
    ----------
    moments : mapping
        Words of two letters, ``V1.V2'``, to their moments.
    values : sequence of str
        The matrices V.
    """
    given = _Given(moments, [name + prime for name in values for prime in ("", "'")])
    basis = [bytes([2 * i + 1]) for i in range(len(values))]
    block = given.matrix(basis, b"")
    if block is not None and len(block):
        _require_positive(given, basis, b"", block, tolerance * float(np.abs(np.diag(block)).max()))


def _require_positive(given: _Given, basis: Sequence[bytes], middle: bytes, block: Floats, slack: float) -> None:
    lowest = float(np.linalg.eigvalsh(block)[0])
    if lowest >= -slack:
        return
    name = f"matrix tr(u* {given.letters[middle[0]]} v)" if middle else "Gram matrix"
    summary = f"{name} of words of length <= {len(basis[-1])} has eigenvalue {lowest:.3g}"
    for j, v in enumerate(basis):
        for i in (j, *range(j)):
            a, b, c = block[i, i], block[i, j], block[j, j]
            # smaller eigenvalue of [[a, b], [b, c]]; for i = j the entry itself
            if (a if i == j else (a + c) / 2 - math.hypot((a - c) / 2, b)) < -slack:
                u = basis[i]
                words = [given.star(x) + middle + y for x, y in ((v, v), (u, u), (u, v))]
                _refuse(given, words, summary)
    raise ModelError("initial moments", "not positive", f"moments of matrices: {summary}")


def _refuse(given: _Given, words: Sequence[bytes], summary: str) -> None:
    """Report that ``tr(w_1) tr(w_2) >= tr(w_3)^2`` fails, or ``tr(w_1) >= 0`` if all three agree."""
    texts = {given.text(word): given.get(word) for word in words if word}
    first, second, mixed = (given.text(word) for word in words)
    factors = " ".join(f"tr({text})" for text in (first, second) if text)
    bound = f"tr({first}) >= 0" if first == second == mixed else f"{factors} >= tr({mixed})^2"
    value = ", ".join(f"{text} = {number:.6g}" for text, number in texts.items())
    raise ModelError("initial moments", value, f"moments of matrices: {bound}; {summary}")
