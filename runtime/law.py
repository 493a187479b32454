"""What a law of a matrix at the start is: free cumulants or Gaussian factors, norms, samples.

Free cumulants (symmetric laws) and variances of Gaussian factors (the others) are all that joint moments need.
They are exact: numbers are read as the rationals that were meant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
KINDS = ("tied", "symmetric", "direct", "untied", "values")


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


@dataclass(frozen=True)
class Gaussian:
    """A factor of size d x ratio d, its entries independent normal numbers of variance `variance` / d."""

    variance: Fraction
    ratio: Fraction = Fraction(1)


@dataclass(frozen=True, kw_only=True)
class Law:
    """Law of ``scale * X + shift * I``; a subclass says what X is, a symmetric matrix unless it has Gaussian factors.

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

    def operator_norm(self, part: str = "") -> float:
        """Limit of the operator norm of a part of the matrix (see `expand`)."""
        return max(abs(x) for x in self.support())

    def gaussians(self) -> dict[str, Gaussian]:
        """Independent Gaussian factors that the matrix is a product of; none for a symmetric law."""
        return {}

    def expand(self, part: str) -> tuple[str, ...]:
        """A part of the matrix as a product of factors, primes for transposes.

        Parts: ``""`` the matrix, ``"'"`` its transpose, and for a product ``U V'`` also ``"uu"``, ``U U'``,
        and ``"vv"``, ``V V'``.  With a symmetric law all are the matrix itself, a product then has U = V.
        """
        return ("S",)

    @property
    def columns(self) -> Fraction:
        """Number of columns of a sample of kind "values", in units of d."""
        return Fraction(1)

    def require_positive(self, where: str, kind: str = "tied") -> None:
        """Refuse a law with eigenvalues below zero, which ``W W'`` cannot have."""
        lowest = self.support()[0]
        if lowest < -1e-12 * self.operator_norm():
            article = "an" if kind == "untied" else "a"
            accepted = f"no eigenvalue below 0 for {article} {kind} matrix"
            raise ModelError(where, f"smallest eigenvalue {lowest:.6g}", accepted)

    def require_kind(self, kind: str, where: str) -> None:
        """Refuse a law that a matrix of this kind cannot have."""
        if kind in ("tied", "untied"):
            self.require_positive(where, kind)

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
        kind : {"tied", "symmetric", "direct", "untied", "values"}
            Which form is wanted.

        Returns
        -------
        dict
            ``{"W": (d, r)}`` with ``S = W W'`` for tied, ``{"S": (d, d)}`` for symmetric and direct,
            ``{"U": (d, r), "V": (d, r)}`` with ``S = U V'`` for untied, ``{"V": (d, d_v)}`` for values.  The
            spectrum of a symmetric law is deterministic, quantiles of the law, and untied factors of it are
            equal; Marchenko-Pastur (W) and the laws with Gaussian factors have Gaussian entries.
        """
        if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
            raise ModelError("d", d, "an integer of at least 1")
        if kind not in KINDS:
            raise ModelError(f"{self.where}: kind", kind, ", ".join(KINDS))
        self.require_kind(kind, self.where)
        return {name: array.astype(dtype) for name, array in self._sample(int(d), rng, kind).items()}

    def _sample(self, d: int, rng: np.random.Generator, kind: str) -> dict[str, Floats]:
        if kind in ("tied", "untied"):
            w = self._factor(d, rng)
            return {"W": w} if kind == "tied" else {"U": w, "V": w}
        return {"V" if kind == "values" else "S": self._matrix(d, rng)}

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
