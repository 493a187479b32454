"""How a matrix is parametrised and how it starts; exact numbers and hashable tables.

A number is the rational that it is as written: 0.1 is 1/10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, ClassVar

import numpy as np

from tracewords.derive.formula import refuse

Number = int | float | Fraction | Decimal | str  # a str is a decimal or p/q
# Laws of the start and their parameters, besides scale and shift.
LAWS = {
    "marchenko-pastur": ("ratio",),
    "ginibre": ("variance", "ratio"),
    "ginibre-product": ("ratio",),
    "semicircle": ("variance", "mean"),
    "eigenvalues": ("values",),
    "identity": (),
    "zero": (),
}


class Table(Mapping[str, Any]):
    """A mapping that does not change, remembers its order, and hashes."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = tuple(items.items())

    def __getitem__(self, key: str) -> Any:
        return dict(self._items)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._items == tuple(other.items())

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return repr(dict(self._items))


def exact(value: Any, where: str, accepted: str = "a finite number") -> Fraction:
    """The rational that a number is as it is written: 0.1 is 1/10, and ``"1/3"`` a third."""
    result = None
    if isinstance(value, bool):
        pass
    elif isinstance(value, str):
        if re.fullmatch(r"[+-]?\d{1,40}(/0*[1-9]\d{0,40}|\.\d{1,40})?", value, re.ASCII):
            result = Fraction(value)
    elif isinstance(value, Integral):
        result = Fraction(int(value))
    elif isinstance(value, Rational):
        result = Fraction(int(value.numerator), int(value.denominator))
    elif isinstance(value, Decimal):
        result = Fraction(value) if value.is_finite() and abs(value.adjusted()) <= 100 else None
    elif isinstance(value, Real) and math.isfinite(float(value)):
        result = Fraction(repr(float(value)))
    if result is None or (result and not Fraction(1, 10**100) <= abs(result) <= 10**100):
        raise refuse(where, value, accepted)
    if isinstance(plain(result), str) and max(abs(result.numerator), result.denominator) >= 10**40:
        raise refuse(where, value, f"{accepted}, of at most 40 digits")
    return result


def plain(value: Fraction) -> int | float | str:
    """An int, a float or ``"p/q"``, the first that is exact."""
    if value.denominator == 1:
        return int(value)
    return float(value) if Fraction(repr(float(value))) == value else f"{value.numerator}/{value.denominator}"


# -- parametrisations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parametrisation:
    """How a matrix is written in what SGD trains, and how it starts.

    Parameters
    ----------
    rank_ratio : number
        rho = r / d.
    initial : str, (str, mapping) or mapping with the key ``law``
        Name out of `LAWS` and parameters.
    """

    rank_ratio: Number = 1
    initial: Any = None

    kind: ClassVar[str]
    default_law: ClassVar[str] = "marchenko-pastur"
    centred: ClassVar[bool] = False  # whether Tr S is taken from the pre-activations
    scores: ClassVar[bool] = True  # whether it makes pre-activations; else only its traces are in the loss

    def __post_init__(self) -> None:
        ratio = exact(self.rank_ratio, "rank_ratio", "a number above 0")
        if ratio <= 0:
            raise refuse("rank_ratio", self.rank_ratio, "a number above 0")
        object.__setattr__(self, "rank_ratio", ratio)
        name, values = _law(self.initial, self.default_law)
        if name in self._shaped and values.pop("ratio", ratio) != ratio:
            raise refuse("initial.ratio", self.initial, f"the rank ratio, {ratio}")
        stored = None if name == self.default_law and not values else (name, Table(values))
        object.__setattr__(self, "initial", stored)

    @property
    def _shaped(self) -> tuple[str, ...]:
        """Laws whose shape is the rank ratio."""
        return ("marchenko-pastur", "ginibre-product") if self.scores else ("ginibre",)

    @property
    def law(self) -> tuple[str, Table]:
        """Name and exact parameters of the initial law."""
        name, values = self.initial or (self.default_law, Table({}))
        own = {"ratio": self.rank_ratio} if name in self._shaped else {}
        return name, Table({**own, **values})

    def initial_data(self) -> tuple[str, dict[str, float | list[float]]]:
        """The law as plain data, ``(name, {parameter: float or list of floats})``."""
        name, values = self.law
        return name, _each(values, float)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads."""
        data = {"parametrisation": self.kind, "rank_ratio": plain(exact(self.rank_ratio, "rank_ratio"))}
        if self.initial is None:
            return data
        name, values = self.initial
        return {**data, "initial": {"law": name, **_each(values, plain)}}

    def __str__(self) -> str:
        name, values = self.law
        inside = ", ".join(f"{k}={_listed(v) if isinstance(v, tuple) else v}" for k, v in values.items())
        return f"{self.kind}, rank ratio {self.rank_ratio}, starts {name}({inside})"


@dataclass(frozen=True)
class Tied(Parametrisation):
    """``S = W W'`` with W of size d x r: symmetric, positive, pre-activations centred."""

    kind: ClassVar[str] = "tied"
    centred: ClassVar[bool] = True


@dataclass(frozen=True)
class Direct(Parametrisation):
    """S itself, a general d x d matrix."""

    kind: ClassVar[str] = "direct"
    default_law: ClassVar[str] = "ginibre"


@dataclass(frozen=True)
class Symmetric(Parametrisation):
    """S itself, symmetric; its gradient is projected on symmetric matrices."""

    kind: ClassVar[str] = "symmetric"
    default_law: ClassVar[str] = "semicircle"


@dataclass(frozen=True)
class Untied(Parametrisation):
    """``S = U V'`` with U and V of size d x r: general, two time scales."""

    kind: ClassVar[str] = "untied"
    default_law: ClassVar[str] = "ginibre-product"


@dataclass(frozen=True)
class Values(Parametrisation):
    """V of size d x r, in the loss only through its traces ``tr(V V')``."""

    kind: ClassVar[str] = "values"
    default_law: ClassVar[str] = "ginibre"
    scores: ClassVar[bool] = False


PARAMETRISATIONS: dict[str, type[Parametrisation]] = {p.kind: p for p in (Tied, Direct, Symmetric, Untied, Values)}


def _each(values: Mapping[str, Any], convert: Callable[[Fraction], Any]) -> dict[str, Any]:
    """Parameters of a law, numbers or tuples of numbers, with every number converted."""
    return {k: [convert(x) for x in v] if isinstance(v, tuple) else convert(v) for k, v in values.items()}


def _listed(values: Sequence[Fraction]) -> str:
    text = ", ".join(map(str, values[:4]))
    return f"[{text}, .. {len(values)} in all]" if len(values) > 4 else f"[{text}]"


def _law(initial: Any, default: str) -> tuple[str, dict[str, Any]]:
    """Name and exact parameters of an initial law in any of its written forms."""
    if initial is None:
        initial = (default, {})
    elif isinstance(initial, str):
        initial = (initial, {})
    elif isinstance(initial, Mapping):
        initial = (initial.get("law"), {k: v for k, v in initial.items() if k != "law"})
    if not isinstance(initial, tuple | list) or len(initial) != 2 or not isinstance(initial[1], Mapping):
        raise refuse("initial", initial, "the name of a law, or (name, {parameter: value})")
    name, values = initial
    if not isinstance(name, str) or name not in LAWS:
        raise refuse("initial.law", name, f"one of {', '.join(LAWS)}")
    known = (*LAWS[name], "scale", "shift")
    result: dict[str, Any] = {}
    for key in sorted(values, key=str):
        if key not in known:
            raise refuse("initial", key, f"for {name}: {', '.join(known)}")
        value = values[key].tolist() if isinstance(values[key], np.ndarray) else values[key]
        many = isinstance(value, list | tuple)
        if many != (key == "values") or (many and not value):
            raise refuse(f"initial.{key}", value, "a list of numbers" if key == "values" else "a number")
        where = f"initial.{key}"
        result[key] = tuple(exact(x, where) for x in value) if many else exact(value, where)
    if "values" in known and "values" not in result:
        raise refuse("initial.values", None, "a list of numbers")
    return name, result
