"""Losses, written as formulas of the pre-activations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tracewords.derive.formula import FUNCTIONS, FUNCTIONS_TEXT, parse, refuse
from tracewords.errors import ModelError


@dataclass(frozen=True)
class Softmax:
    """``1/2 sum_ij (A1_ij - A2_ij)**2`` with ``A_ij`` the softmax over j of ``beta h_i.``.

    Parameters
    ----------
    beta : str
        Name of the parameter that is the inverse temperature.
    """

    beta: str = "beta"

    kind: ClassVar[str] = "softmax"
    keys: ClassVar[dict[str, str]] = {"beta": "beta"}  # in a file: attribute
    at_fault: ClassVar[str] = "loss"  # the field that an error in the formula names
    max_tokens: ClassVar[int] = 16

    def formula(self, tokens: int, student: str, teacher: str) -> str:
        """One additive term a row and column; two columns have equal squares, and one stands for both.

        The logits of row i are written with the diagonal last, which is the one that the others are taken
        relative to: rows of the same law then read the same.
        """
        if tokens > self.max_tokens:
            raise ModelError("tokens", tokens, f"at most {self.max_tokens} for a softmax loss")
        columns = range(1, tokens + 1)

        def attention(name: str, i: int, position: int) -> str:
            order = (*range(i + 1, tokens + 1), *range(1, i + 1))
            return f"softmax({position}, {', '.join(f'{self.beta}*{name}[{i},{k}]' for k in order)})"

        def square(i: int, j: int) -> str:
            return f"({attention(student, i, j)} - {attention(teacher, i, j)})**2"

        if tokens == 2:
            return " + ".join(square(i, 1) for i in columns)
        return " + ".join(f"{square(i, j)}/2" for i in columns for j in columns)


@dataclass(frozen=True)
class Scalar:
    """``1/2 (sigma(S1[i,j]) - sigma(S2[i,j]))**2`` of one entry.

    Parameters
    ----------
    activation : str
        Name of a function of one argument, or a formula in ``x``.
    entry : (int, int)
        The tokens i and j, from 1.
    """

    activation: str
    entry: tuple[int, int] = (1, 2)

    kind: ClassVar[str] = "scalar"
    keys: ClassVar[dict[str, str]] = {"activation": "activation", "entry": "entry"}
    at_fault: ClassVar[str] = "loss.activation"

    def __post_init__(self) -> None:
        parse(self.activation, self.at_fault)  # complete, so that it can stand inside another
        name = self.activation.strip()
        if "[" in name or (name.isidentifier() and name not in {"x", *FUNCTIONS}):
            accepted = f"a formula in x, or one of {FUNCTIONS_TEXT.partition(', softmax')[0]}"
            raise ModelError(self.at_fault, name, accepted)
        pair = self.entry if isinstance(self.entry, list | tuple) else ()
        if len(pair) != 2 or any(type(i) is not int or i < 1 for i in pair):
            raise refuse("loss.entry", self.entry, "two token numbers such as [1, 2]")
        object.__setattr__(self, "entry", tuple(pair))

    def formula(self, tokens: int, student: str, teacher: str) -> str:
        """The activation with ``x`` replaced by the entry of either matrix."""
        i, j = self.entry
        if max(i, j) > tokens:
            raise ModelError("loss.entry", [i, j], f"token numbers in 1 .. {tokens}")
        name = self.activation.strip()
        text = f"{name}(x)" if name in FUNCTIONS else f"({name})"
        left, right = (re.sub(r"\bx\b", f"{name}[{i},{j}]", text) for name in (student, teacher))
        return f"({left} - {right})**2/2"


@dataclass(frozen=True)
class Formula:
    """Any loss: the text is the formula."""

    text: str

    kind: ClassVar[str] = "formula"
    keys: ClassVar[dict[str, str]] = {"formula": "text"}
    at_fault: ClassVar[str] = "loss.formula"

    def formula(self, tokens: int, student: str, teacher: str) -> str:
        """The text itself."""
        return self.text


Loss = Softmax | Scalar | Formula
LOSSES: dict[str, type[Loss]] = {loss.kind: loss for loss in (Softmax, Scalar, Formula)}
