"""Laws of a symmetric matrix at the start, and laws of all kinds by name.

The free cumulants are all that the joint moments of free letters need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from tracewords.errors import ModelError
from tracewords.runtime.law import (
    Floats,
    Law,
    LawData,
    Number,
    exact,
    integer_cumulants,
    moments_to_free_cumulants,
    symmetric_factor,
)
from tracewords.runtime.wick import Ginibre, GinibreProduct

__all__ = [
    "LAW_TYPES",
    "Eigenvalues",
    "Floats",
    "Ginibre",
    "GinibreProduct",
    "Identity",
    "Law",
    "LawData",
    "MarchenkoPastur",
    "Semicircle",
    "Zero",
    "build_laws",
    "canonical",
    "exact",
    "integer_cumulants",
    "law_from_data",
    "moments_to_free_cumulants",
    "parse_word",
    "symmetric_factor",
]


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


_LAWS = (MarchenkoPastur, Ginibre, GinibreProduct, Semicircle, Eigenvalues, Identity, Zero)
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
        How the matrix is parametrised; laws that such a matrix cannot have are refused.
    """
    where = f"initial.{letter}"
    law = data if isinstance(data, Law) else _build(where, data)
    if kind is not None:
        law.require_kind(kind, where)
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
