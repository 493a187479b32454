"""Laws of general matrices with Gaussian factors: Ginibre and the product of two of them.

Their joint moments need no cumulants, only which factors a part of the matrix is a product of and the
variances of these (E. Wick's theorem; for d to infinity only the pairings that do not cross remain).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from tracewords.errors import ModelError
from tracewords.runtime.law import Floats, Gaussian, Law, Number


def product_norm(ratio: float) -> float:
    """Limit of ``||U V'||`` for independent U, V of size d x ratio d with entries of variance 1/d.

    ``U'U`` and ``V'V`` are free, both of S-transform ``1 / (1 + ratio z)``, so the moment series of the product in
    x has the inverse ``x(z) = z / ((1 + z) (1 + ratio z)^2)``.  Its maximum over z > 0, at
    ``2 ratio z^2 + ratio z = 1``, is the reciprocal of the largest eigenvalue.
    """
    z = 2 / (ratio + math.sqrt(ratio * (ratio + 8)))
    return (1 + ratio * z) * math.sqrt((1 + z) / z)


@dataclass(frozen=True, kw_only=True)
class _GaussianLaw(Law):
    """A law made of Gaussian factors."""

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    kinds: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("shift", self.shift == 0, f"0 for {self.name}")

    def expand(self, part: str) -> tuple[str, ...]:
        if part not in self.parts:
            raise ModelError(self.where, self.name, f"a law of a product U V', to have its part {part}")
        return self.parts[part]

    def require_kind(self, kind: str, where: str) -> None:
        if kind not in self.kinds:
            raise ModelError(where, self.name, f"a law of {kind} matrices; this one is for {' or '.join(self.kinds)}")

    def support(self) -> tuple[float, float]:
        raise ModelError(self.where, self.name, "the law of a symmetric matrix, to have a real spectrum")

    def free_cumulants(self, n: int) -> list[Fraction]:
        raise ModelError(self.where, self.name, "the law of a symmetric matrix, to have free cumulants of its own")

    def _draw(self, factor: str, d: int, rng: np.random.Generator) -> Floats:
        size = self.gaussians()[factor]
        columns = round(float(size.ratio) * d)
        self._require("ratio", columns > 0, f"at least 1/d = {1 / d:.4g}, one column")
        return math.sqrt(float(size.variance) / d) * rng.standard_normal((d, columns))


@dataclass(frozen=True, kw_only=True)
class Ginibre(_GaussianLaw):
    """Independent entries of variance `variance` / d; d x d, or d x ratio d for values.

    For d to infinity a square one is circular: its only cumulants are those of S with S'.
    """

    variance: Number = 1
    ratio: Number = 1
    name: ClassVar[str] = "ginibre"
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"": ("G",), "'": ("G'",)}
    kinds: ClassVar[tuple[str, ...]] = ("direct", "values")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("variance", Fraction(self.variance) >= 0, "a number of at least 0")
        self._require("ratio", Fraction(self.ratio) > 0, "a number above 0")

    def gaussians(self) -> dict[str, Gaussian]:
        return {"G": Gaussian(Fraction(self.variance) * Fraction(self.scale) ** 2, Fraction(self.ratio))}

    def operator_norm(self, part: str = "") -> float:
        self.expand(part)
        return math.sqrt(float(self.gaussians()["G"].variance)) * (1 + math.sqrt(float(self.ratio)))

    @property
    def columns(self) -> Fraction:
        return Fraction(self.ratio)

    def require_kind(self, kind: str, where: str) -> None:
        super().require_kind(kind, where)
        if kind == "direct" and self.ratio != 1:
            raise ModelError(f"{where}.ratio", self.ratio, "1, for a square matrix")

    def _sample(self, d: int, rng: np.random.Generator, kind: str) -> dict[str, Floats]:
        return {"V" if kind == "values" else "S": self._draw("G", d, rng)}


@dataclass(frozen=True, kw_only=True)
class GinibreProduct(_GaussianLaw):
    """``U V'``, U and V independent, d x ratio d, entries of variance `scale` / d (its sign makes no difference)."""

    ratio: Number = 1
    name: ClassVar[str] = "ginibre-product"
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "": ("U", "V'"),
        "'": ("V", "U'"),
        "uu": ("U", "U'"),
        "vv": ("V", "V'"),
    }
    kinds: ClassVar[tuple[str, ...]] = ("untied", "direct")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("ratio", Fraction(self.ratio) > 0, "a number above 0")

    def gaussians(self) -> dict[str, Gaussian]:
        return dict.fromkeys("UV", Gaussian(abs(Fraction(self.scale)), Fraction(self.ratio)))

    def operator_norm(self, part: str = "") -> float:
        composite = len({name.rstrip("'") for name in self.expand(part)}) == 1
        ratio = float(self.ratio)
        return abs(float(self.scale)) * ((1 + math.sqrt(ratio)) ** 2 if composite else product_norm(ratio))

    def _sample(self, d: int, rng: np.random.Generator, kind: str) -> dict[str, Floats]:
        u, v = self._draw("U", d, rng), self._draw("V", d, rng)
        return {"U": u, "V": v} if kind == "untied" else {"S": u @ v.T}
