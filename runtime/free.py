"""Laws of a matrix at the start: free cumulants, edges of the spectrum, samples.

The free cumulants are all that the joint moments of free letters need.  They are exact: numbers are read
as the rationals that were meant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from numbers import Rational
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tracewords.errors import ModelError

Floats = NDArray[Any]
Number = int | float | Fraction | str
LawData = Sequence[Any]


def exact(value: Any, where: str) -> Fraction:
    """A number as the rational that was meant: ``0.1`` is 1/10 and the double next to 1/3 is 1/3.

    A double becomes the fraction with a denominator up to 10^6 that rounds to it, where there is one,
    else the decimal that prints it.  Text such as ``"1/3"`` or ``"0.25"`` is read as written.
    """
    wanted = "a finite real number"
    try:
        if isinstance(value, float | np.floating):
            simple = Fraction(float(value)).limit_denominator(10**6)
            return simple if float(simple) == value else Fraction(str(value))
        # an exponent in text could ask for any number of digits
        text = isinstance(value, str) and "e" not in value.lower()
        if text or (isinstance(value, Rational) and not isinstance(value, bool)):
            result = Fraction(value) if text else Fraction(int(value.numerator), int(value.denominator))
            if math.isfinite(float(result)):
                return result
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    raise ModelError(where, value, wanted)


def moments_to_free_cumulants(moments: Sequence[Fraction]) -> list[Fraction]:
    """Free cumulants of a law with the given moments.

    From ``m_n = sum_s kappa_s [z^(n-s)] M(z)^s``, ``M(z) = 1 + sum_n m_n z^n``.

    Parameters
    ----------
    moments : sequence of n rationals
        ``m_1 .. m_n``.

    Returns
    -------
    list of n rationals
        ``kappa_1 .. kappa_n``.
    """
    series = [Fraction(1), *moments]
    powers = [series]
    for _ in moments[1:]:
        last = powers[-1]
        powers.append([sum((last[i] * series[n - i] for i in range(n + 1)), Fraction(0)) for n in range(len(series))])
    cumulants: list[Fraction] = []
    for n in range(1, len(series)):
        below = sum(k * powers[s][n - s - 1] for s, k in enumerate(cumulants))
        cumulants.append(series[n] - below)
    return cumulants


def integer_cumulants(values: Sequence[Fraction]) -> tuple[int, list[int]]:
    """A unit D that makes ``D^n kappa_n`` integers, and these: the cumulants of D times the matrix."""
    unit = 1
    for n, value in enumerate(values, 1):
        unit *= (value * unit**n).denominator
    return unit, [int(value * unit**n) for n, value in enumerate(values, 1)]


def _haar(d: int, rng: np.random.Generator) -> Floats:
    """A Haar-distributed orthogonal matrix: QR of a Gaussian one, signs fixed by the diagonal of R."""
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def symmetric_factor(matrix: Floats, where: str, tolerance: float = 1e-10) -> Floats:
    """A factor W, ``matrix = W W'``, with as many columns as the matrix has rank (at least one).

    Eigenvalues within `tolerance` of zero, relative to the largest, count as zero.
    """
    values, vectors = np.linalg.eigh(matrix)
    small = tolerance * max(float(np.abs(values).max()), np.finfo(float).tiny)
    if values[0] < -small:
        raise ModelError(where, f"smallest eigenvalue {values[0]:.6g}", "a positive semidefinite matrix")
    keep = values > small
    keep[-1] = True
    return vectors[:, keep] * np.sqrt(np.maximum(values[keep], 0.0))


@dataclass(frozen=True, kw_only=True)
class Law:
    """Law of ``scale * X + shift * I``; a subclass says what X is.

    Parameters
    ----------
    scale, shift : number
        Kept as exact rationals, like every parameter of a law.
    where : str
        Field named in errors.
    """

    scale: Number = 1
    shift: Number = 0
    where: str = field(default="initial", repr=False, compare=False)
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name in self.parameters():
            if name != "values":
                object.__setattr__(self, name, exact(getattr(self, name), f"{self.where}.{name}"))

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(f.name for f in fields(cls) if f.name != "where")

    def _require(self, name: str, holds: bool, accepted: str) -> None:
        if not holds:
            raise ModelError(f"{self.where}.{name}", getattr(self, name), accepted)

    def _cumulants(self, n: int) -> list[Fraction]:
        raise NotImplementedError

    def _edges(self) -> tuple[float, float]:
        raise NotImplementedError

    def _spectrum(self, d: int) -> Floats:
        raise NotImplementedError

    def free_cumulants(self, n: int) -> list[Fraction]:
        """Free cumulants ``kappa_1 .. kappa_n``, exact."""
        scale, shift = Fraction(self.scale), Fraction(self.shift)
        values = [scale ** (i + 1) * k for i, k in enumerate(self._cumulants(n))]
        return [values[0] + shift, *values[1:]] if values else values

    def support(self) -> tuple[float, float]:
        """Smallest and largest point of the spectrum for d to infinity."""
        ends = [float(self.scale) * x + float(self.shift) for x in self._edges()]
        return min(ends), max(ends)

    def operator_norm(self) -> float:
        """Limit of the operator norm: the largest modulus in the spectrum."""
        return max(abs(x) for x in self.support())

    def require_positive(self, where: str) -> None:
        """Refuse a law with eigenvalues below zero, which ``W W'`` cannot have."""
        lowest = self.support()[0]
        if lowest < -1e-12 * self.operator_norm():
            raise ModelError(where, f"smallest eigenvalue {lowest:.6g}", "no eigenvalue below 0 for a tied matrix")

    def sample(
        self, d: int, rng: np.random.Generator, dtype: DTypeLike = np.float64, kind: str = "tied"
    ) -> dict[str, Floats]:
        """A matrix of this law, its eigenvectors Haar distributed.

        Parameters
        ----------
        d : int
            Size.
        rng : numpy.random.Generator
        dtype : dtype
            Of the result; the work is done in double precision.
        kind : {"tied", "symmetric"}
            Which form is wanted.

        Returns
        -------
        dict
            ``{"W": (d, r)}`` with ``S = W W'`` for tied, ``{"S": (d, d)}`` for symmetric.  The spectrum
            is deterministic, quantiles of the law; only Marchenko-Pastur has Gaussian W.
        """
        self._check_sample(d, kind)
        if kind == "tied":
            return {"W": self._factor(d, rng).astype(dtype)}
        return {"S": self._matrix(d, rng).astype(dtype)}

    def _check_sample(self, d: int, kind: str) -> None:
        if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
            raise ModelError("d", d, "an integer of at least 1")
        if kind not in ("tied", "symmetric"):
            raise ModelError(f"{self.where}: kind", kind, "tied or symmetric")
        if kind == "tied":
            self.require_positive(self.where)

    def _eigenvalues(self, d: int) -> Floats:
        return float(self.scale) * self._spectrum(d) + float(self.shift)

    def _factor(self, d: int, rng: np.random.Generator) -> Floats:
        values = np.maximum(self._eigenvalues(d), 0.0)
        keep = values > 0
        keep[0] |= not keep.any()
        return (_haar(d, rng) * np.sqrt(values))[:, keep]

    def _matrix(self, d: int, rng: np.random.Generator) -> Floats:
        values = self._eigenvalues(d)
        if np.ptp(values) == 0:
            return values[0] * np.eye(d)
        q = _haar(d, rng)
        matrix = (q * values) @ q.T
        return (matrix + matrix.T) / 2


@dataclass(frozen=True, kw_only=True)
class MarchenkoPastur(Law):
    """``X = W W'``, W Gaussian, ``d x ratio d``, of variance 1/d an entry: all free cumulants are `ratio`."""

    ratio: Number = 1
    name: ClassVar[str] = "marchenko-pastur"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("ratio", Fraction(self.ratio) > 0, "a number above 0")

    def _cumulants(self, n: int) -> list[Fraction]:
        return [Fraction(self.ratio)] * n

    def _edges(self) -> tuple[float, float]:
        root = math.sqrt(float(self.ratio))
        return (1 - root) ** 2 if root > 1 else 0.0, (1 + root) ** 2

    def _gaussian(self, d: int, rng: np.random.Generator) -> Floats:
        columns = round(float(self.ratio) * d)
        self._require("ratio", columns > 0, f"at least 1/d = {1 / d:.4g}, one column for W")
        return rng.standard_normal((d, columns)) / math.sqrt(d)

    def _factor(self, d: int, rng: np.random.Generator) -> Floats:
        if Fraction(self.shift) == 0:
            return math.sqrt(float(self.scale)) * self._gaussian(d, rng)
        return symmetric_factor(self._matrix(d, rng), self.where)

    def _matrix(self, d: int, rng: np.random.Generator) -> Floats:
        w = self._gaussian(d, rng)
        return float(self.scale) * (w @ w.T) + float(self.shift) * np.eye(d)


@dataclass(frozen=True, kw_only=True)
class Semicircle(Law):
    """Semicircle law of given mean and variance: only the first two free cumulants differ from zero."""

    variance: Number = 1
    mean: Number = 0
    name: ClassVar[str] = "semicircle"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("variance", Fraction(self.variance) >= 0, "a number of at least 0")

    def _cumulants(self, n: int) -> list[Fraction]:
        return [Fraction(self.mean), Fraction(self.variance), *[Fraction(0)] * n][:n]

    def _edges(self) -> tuple[float, float]:
        radius = 2 * math.sqrt(float(self.variance))
        return float(self.mean) - radius, float(self.mean) + radius

    def _spectrum(self, d: int) -> Floats:
        # x = mean + radius sin(a) has distribution function 1/2 + (a + sin a cos a) / pi
        low, high = self._edges()
        angle = np.linspace(-np.pi / 2, np.pi / 2, 64 * d + 4096)
        below = 0.5 + (angle + np.sin(angle) * np.cos(angle)) / np.pi
        return (low + high) / 2 + (high - low) / 2 * np.sin(np.interp((np.arange(d) + 0.5) / d, below, angle))


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Law):
    """A given list of eigenvalues, each of the same weight; at another size d its quantiles are taken."""

    values: Sequence[Number] = ()
    name: ClassVar[str] = "eigenvalues"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.values.tolist() if isinstance(self.values, np.ndarray) else self.values
        if isinstance(given, str) or not isinstance(given, Sequence) or not len(given):
            raise ModelError(f"{self.where}.values", given, "a list of at least one number")
        numbers = sorted(exact(x, f"{self.where}.values[{i}]") for i, x in enumerate(given))
        object.__setattr__(self, "values", tuple(numbers))

    def moments(self, n: int) -> list[Fraction]:
        """Power means of the list, without scale and shift."""
        numbers = [Fraction(x) for x in self.values]
        unit = math.lcm(*(x.denominator for x in numbers))
        integers = [int(x * unit) for x in numbers]
        return [Fraction(sum(x**i for x in integers), unit**i * len(integers)) for i in range(1, n + 1)]

    def _cumulants(self, n: int) -> list[Fraction]:
        return moments_to_free_cumulants(self.moments(n))

    def _edges(self) -> tuple[float, float]:
        return float(self.values[0]), float(self.values[-1])

    def _spectrum(self, d: int) -> Floats:
        place = (2 * np.arange(d) + 1) * len(self.values) // (2 * d)
        return np.array([float(x) for x in self.values])[place]


@dataclass(frozen=True, kw_only=True)
class Identity(Law):
    """The identity."""

    name: ClassVar[str] = "identity"
    point: ClassVar[int] = 1

    def _cumulants(self, n: int) -> list[Fraction]:
        return [Fraction(self.point), *[Fraction(0)] * n][:n]

    def _edges(self) -> tuple[float, float]:
        return float(self.point), float(self.point)

    def _spectrum(self, d: int) -> Floats:
        return np.full(d, float(self.point))


@dataclass(frozen=True, kw_only=True)
class Zero(Identity):
    """The zero matrix."""

    name: ClassVar[str] = "zero"
    point: ClassVar[int] = 0


_LAWS = (MarchenkoPastur, Semicircle, Eigenvalues, Identity, Zero)
LAW_TYPES: dict[str, type[Law]] = {law.name: law for law in _LAWS}


def law_from_data(letter: str, data: Law | LawData, kind: str | None = None) -> Law:
    """The law written as ``(name, {parameter: value})``.

    Parameters
    ----------
    letter : str
        Whose law it is; errors name ``initial.<letter>``.
    data : (str, mapping)
        Name out of `LAW_TYPES` and parameters; every law also takes `scale` and `shift`.
    kind : str, optional
        "tied" refuses laws with eigenvalues below zero.
    """
    where = f"initial.{letter}"
    law = data if isinstance(data, Law) else _build(where, data)
    if kind == "tied":
        law.require_positive(where)
    return law


def _build(where: str, data: LawData) -> Law:
    known = ", ".join(LAW_TYPES)
    pair = isinstance(data, Sequence) and not isinstance(data, str) and len(data) == 2
    if not pair or not isinstance(data[1], Mapping):
        raise ModelError(where, data, f"(name, {{parameter: value}}), name one of {known}")
    name, parameters = data
    if not isinstance(name, str) or name not in LAW_TYPES:
        raise ModelError(where, name, f"one of {known}")
    accepted = LAW_TYPES[name].parameters()
    for key, value in parameters.items():
        if key not in accepted:
            raise ModelError(f"{where}.{key}", value, f"for {name}: {', '.join(accepted)}")
    return LAW_TYPES[name](where=where, **parameters)


def build_laws(laws: Mapping[str, Law | LawData], kinds: Mapping[str, str] | None = None) -> dict[str, Law]:
    """Laws of all letters from their data form; `kinds` as in `law_from_data`."""
    return {letter: law_from_data(letter, data, (kinds or {}).get(letter)) for letter, data in laws.items()}


def parse_word(text: Any, index: Mapping[str, int]) -> bytes:
    """A word written as names joined by dots, ``1`` if empty, as bytes: one letter each."""
    if text == "1":
        return b""
    try:
        return bytes(index[name] for name in text.split("."))
    except (KeyError, AttributeError):
        raise ModelError("word", text, f"names joined by dots, each one of {', '.join(index)}") from None


def canonical(word: bytes, adjoint: bytes | None = None) -> bytes:
    """The least rotation of the word or its reversal; `adjoint` (256 bytes) transposes letters."""
    n = len(word)
    twice = word + word
    back = twice[::-1].translate(adjoint)
    return min(min(twice[i : i + n], back[i : i + n]) for i in range(n)) if n else word
