"""What a user writes: tokens, matrices, their parametrisation, and a loss, checked on construction.

Numbers are kept exact (decimals as they are written), everything is hashable, and two models with the same
mathematical content have the same digest however they were written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import sympy as sp

from tracewords.derive.formula import (
    RESERVED,
    canonical_text,
    parameter_symbol,
    preactivation_symbol,
    read_formula,
    refuse,
    trace_symbol,
)
from tracewords.derive.functions import evaluate
from tracewords.derive.losses import Formula, Loss, Scalar, Softmax
from tracewords.derive.parametrisation import PARAMETRISATIONS, Number, Parametrisation, Table, Tied, exact, plain
from tracewords.derive.plaindata import keys, path, read_loss, read_matrices, toml

MAX_BYTES = 1_000_000  # of a file
MAX_TOKENS = 64
# What the equations call their own symbols: a parameter of that name would be taken for one of them.
SYMBOLS = re.compile(r"[uhxsqCDEGHLMNOPT]\d+(_\d+)*|q(_\d+)+")
ALWAYS = {"gamma": 0, "kappa": 0}  # weight decay and noise level


# -- the model ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """An attention model in the high-dimensional limit.

    Parameters
    ----------
    name : str
        What it is called; part of file names.
    covariance : L x L nested sequence of numbers, or None
        Token covariance C; the identity if None.
    students, teachers : mappings of name to Parametrisation
        The trained matrices and the fixed ones, in the order that numbers them.
    loss : Loss or str
        A str is a formula.
    parameters : mapping of name to number
        Values of the loss's parameters, of the weight decay ``gamma`` and of the noise level ``kappa``.
    tokens : int, optional
        L, if not given by the covariance.
    description : str
    """

    name: str
    covariance: Any
    students: Mapping[str, Parametrisation]
    teachers: Mapping[str, Parametrisation]
    loss: Loss
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tokens: Any = None
    description: str = ""

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", self.name):
            raise refuse("name", self.name, "1 to 64 letters, digits and - _ .")
        if not isinstance(self.description, str):
            raise refuse("description", self.description, "a text")
        put(self, "covariance", _covariance(self.covariance, self.tokens))
        put(self, "tokens", len(self.covariance))
        for role in ("students", "teachers"):
            put(self, role, _matrices(getattr(self, role), role))
        if not self.students:
            raise refuse("students", {}, "at least one matrix")
        for name in sorted(set(self.students) & set(self.teachers)):
            raise refuse(f"teachers.{name}", name, "a name that no student has")
        put(self, "loss", Formula(self.loss) if isinstance(self.loss, str) else self.loss)
        if not isinstance(self.loss, Loss):
            raise refuse("loss", self.loss, "Softmax, Scalar, Formula, or the text of a formula")
        put(self, "parameters", _parameters(self.parameters, self.loss, self.matrices))
        self._check_loss()

    def _check_loss(self) -> None:
        """The loss reads a student, and is real and finite at a few generic points."""
        where = self.loss.at_fault
        read = {name for name, _, _ in self.preactivations} | {name for pair in self.traces for name in pair}
        if not any(name in self.students for name, _, _ in self.preactivations):
            raise refuse(where, self.formula, "a loss that depends on a student's pre-activations")
        for name in self.students:
            if name not in read:
                raise refuse(where, self.formula, f"a loss that depends on every student; {name} is not in it")
        values = {parameter_symbol(k): v for k, v in self.parameters.items()}
        for point in range(1, 5):
            for k, entry in enumerate(self.preactivations):
                values[preactivation_symbol(*entry)] = 2 * math.sin(2.3 * k + 1.7 * point)
            for pair in self.traces:
                values[trace_symbol(*pair)] = 1.0
            if math.isnan(evaluate(self.loss_expression, values)):
                accepted = "a loss that is real and finite for all pre-activations, at the given parameters"
                raise refuse(where, self.formula, accepted)

    @property
    def letters(self) -> tuple[str, ...]:
        """Names of all matrices, students first."""
        return (*self.students, *self.teachers)

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the matrices that make pre-activations."""
        return tuple(name for name, m in self.matrices.items() if m.scores)

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the matrices of values."""
        return tuple(name for name, m in self.matrices.items() if not m.scores)

    @property
    def matrices(self) -> dict[str, Parametrisation]:
        """All matrices, students first."""
        return {**self.students, **self.teachers}

    @cached_property
    def formula(self) -> str:
        """The loss as text."""
        pair = (len(self.students), len(self.teachers)) == (1, 1)
        if not pair and not isinstance(self.loss, Formula):
            raise refuse("loss.kind", self.loss.kind, "formula, unless there is one student and one teacher")
        return self.loss.formula(self.tokens, self.letters[0], self.letters[-1])

    @cached_property
    def loss_expression(self) -> sp.Expr:
        """The loss of one sample, in the symbols of pre-activations and parameters."""
        return read_formula(
            self.formula,
            tokens=self.tokens,
            matrices=self.scores,
            parameters=self.parameters,
            values=self.values,
            field=self.loss.at_fault,
        )

    @cached_property
    def preactivations(self) -> tuple[tuple[str, int, int], ...]:
        """The entries ``(matrix, i, j)`` that the loss reads, tokens from 1, in order of letter, i, j."""
        symbols = self.loss_expression.free_symbols
        tokens = range(1, self.tokens + 1)
        entries = ((name, i, j) for name in self.scores for i in tokens for j in tokens)
        return tuple(entry for entry in entries if preactivation_symbol(*entry) in symbols)

    @cached_property
    def traces(self) -> tuple[tuple[str, str], ...]:
        """The pairs of matrices of values whose trace the loss reads."""
        symbols, names = self.loss_expression.free_symbols, self.values
        pairs = ((a, b) for i, a in enumerate(names) for b in names[i:])
        return tuple(pair for pair in pairs if trace_symbol(*pair) in symbols)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the mathematical content; name and description are not part of it."""

        def text(value: Any) -> Any:
            return [str(x) for x in value] if isinstance(value, tuple) else str(value)

        def matrices(table: Mapping[str, Parametrisation]) -> list[Any]:
            laws = [(name, m, *m.law) for name, m in table.items()]
            return [
                [name, m.kind, str(m.rank_ratio), law, {k: text(v) for k, v in values.items()}]
                for name, m, law, values in laws
            ]

        content = {
            "format": 1,
            "covariance": [text(row) for row in self.covariance],
            "students": matrices(self.students),
            "teachers": matrices(self.teachers),
            "loss": canonical_text(self.formula),
            "parameters": {k: str(exact(v, k)) for k, v in self.parameters.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    # -- variants -------------------------------------------------------------------------------------

    def with_parameters(self, **values: Number) -> Model:
        """The model with other values of some parameters."""
        for name in sorted(values.keys() - self.parameters.keys()):
            raise refuse(f"parameters.{name}", values[name], f"the parameters {', '.join(self.parameters)}")
        return replace(self, parameters={**self.parameters, **values})

    def with_covariance(self, covariance: Any) -> Model:
        """The model with another token covariance, which may also change the number of tokens."""
        return replace(self, covariance=covariance, tokens=None)

    def with_rank_ratio(self, ratio: Number | Mapping[str, Number]) -> Model:
        """The model with another rank ratio of all students, or of the named; default laws follow."""
        ratios = dict(ratio) if isinstance(ratio, Mapping) else dict.fromkeys(self.students, ratio)
        for name in sorted(ratios.keys() - set(self.letters), key=str):
            raise refuse("rank_ratio", name, f"the matrices {', '.join(self.letters)}")

        def changed(table: Mapping[str, Parametrisation]) -> dict[str, Parametrisation]:
            return {k: replace(m, rank_ratio=ratios[k]) if k in ratios else m for k, m in table.items()}

        return replace(self, students=changed(self.students), teachers=changed(self.teachers))

    # -- reading and writing --------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the layout of a TOML file."""
        loss: dict[str, Any] = {"kind": self.loss.kind}
        for key, attribute in self.loss.keys.items():
            value = getattr(self.loss, attribute)
            loss[key] = list(value) if isinstance(value, tuple) else value
        return {
            "name": self.name,
            "description": self.description,
            "tokens": self.tokens,
            "covariance": [[plain(x) for x in row] for row in self.covariance],
            "loss": loss,
            "students": {name: m.to_dict() for name, m in self.students.items()},
            "teachers": {name: m.to_dict() for name, m in self.teachers.items()},
            "parameters": dict(self.parameters),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """The model of plain data, for example of a TOML file; keys that are not known are refused."""
        optional = ("description", "tokens", "covariance", "teachers", "parameters")
        top = keys(data, "", ("name", "loss", "students"), optional)
        students, teachers = (read_matrices(top.pop(role, {}), role) for role in ("students", "teachers"))
        loss = read_loss(top.pop("loss"))
        return cls(top.pop("name"), top.pop("covariance", None), students, teachers, loss, **top)

    def to_toml(self) -> str:
        """The text of a file that `load_model` reads."""
        return "\n".join(toml(self.to_dict(), "")).strip() + "\n"

    def __str__(self) -> str:
        rows = "; ".join(" ".join(map(str, row)) for row in self.covariance)
        loss = " ".join(self.formula.split())
        loss = loss if len(loss) <= 200 else f"{loss[:160]} .. ({self.loss.kind})"
        lines = [f"{self.name} ({self.digest}): {self.tokens} tokens of covariance [{rows}]"]
        lines += [f"  student {name}: {m}" for name, m in self.students.items()]
        lines += [f"  teacher {name}: {m}" for name, m in self.teachers.items()]
        lines += [f"  loss: {loss}", "  " + ", ".join(f"{k} = {v:g}" for k, v in self.parameters.items())]
        return "\n".join(lines)


# -- checks -------------------------------------------------------------------------------------------


def _covariance(value: Any, tokens: Any) -> tuple[tuple[Fraction, ...], ...]:
    """A square, symmetric, positive semidefinite matrix with a positive diagonal, exact."""
    number = isinstance(tokens, Integral) and not isinstance(tokens, bool)
    if tokens is not None and not (number and 1 <= tokens <= MAX_TOKENS):
        raise refuse("tokens", tokens, f"an integer 1 .. {MAX_TOKENS}")
    if value is None and tokens is not None:
        value = [[int(i == j) for j in range(tokens)] for i in range(tokens)]
    rows = value.tolist() if isinstance(value, np.ndarray) else value
    listed = isinstance(rows, list | tuple) and all(isinstance(row, list | tuple) for row in rows)
    if not listed or not 1 <= len(rows) <= MAX_TOKENS or any(len(row) != len(rows) for row in rows):
        raise refuse("covariance", value, f"a square matrix of 1 .. {MAX_TOKENS} rows; without one, tokens")
    if tokens not in (None, len(rows)):
        raise refuse("tokens", tokens, f"the size of the covariance, {len(rows)}")
    matrix = tuple(
        tuple(exact(x, f"covariance[{i},{j}]") for j, x in enumerate(row, 1)) for i, row in enumerate(rows, 1)
    )
    for i, row in enumerate(matrix):
        if row[i] <= 0:
            raise refuse(f"covariance[{i + 1},{i + 1}]", row[i], "a variance above 0")
        for j in range(i):
            if row[j] != matrix[j][i]:
                accepted = f"a symmetric matrix, with {matrix[j][i]} as in [{j + 1},{i + 1}]"
                raise refuse(f"covariance[{i + 1},{j + 1}]", row[j], accepted)
    scale = float(max(row[i] for i, row in enumerate(matrix)))
    lowest = np.linalg.eigvalsh(np.array([[float(x) / scale for x in row] for row in matrix]))[0]
    if lowest < -1e-12:
        raise refuse("covariance", value, f"no negative eigenvalue (the least is {lowest * scale:.3g})")
    return matrix


def _name(name: Any, where: str) -> str:
    """A name for a matrix or a parameter."""
    proper = isinstance(name, str) and len(name) <= 32 and name.isidentifier() and not name.startswith("_")
    if not proper or not unicodedata.is_normalized("NFKC", name) or name in RESERVED:
        accepted = "at most 32 letters, digits and _, a letter first; not pi, x or the name of a function"
        raise refuse(where, name, accepted)
    return name


def _matrices(value: Any, role: str) -> Table:
    """Matrices by name."""
    if not isinstance(value, Mapping):
        raise refuse(role, value, "a mapping of names to parametrisations")
    for name, matrix in value.items():
        _name(name, path(role, name))
        if not isinstance(matrix, Parametrisation):
            raise refuse(path(role, name), matrix, f"one of {', '.join(PARAMETRISATIONS)}")
    return Table(value)


def _parameters(value: Any, loss: Loss, matrices: Mapping[str, Parametrisation]) -> Table:
    """Parameter values by name, sorted; added are those that every model has and the means of matrices not centred."""
    if not isinstance(value, Mapping):
        raise refuse("parameters", value, "a mapping of names to numbers")
    beta = {_name(loss.beta, "loss.beta"): 1} if isinstance(loss, Softmax) else {}
    result = {}
    means = {f"m_{name}": 0 for name, m in matrices.items() if m.scores and not m.centred}
    for name, number in {**ALWAYS, **beta, **means, **value}.items():
        where = path("parameters", name)
        if SYMBOLS.fullmatch(_name(name, where)) or name in matrices:
            raise refuse(where, name, "no name of a matrix or of a symbol in the equations (u1, q_1_2, ..)")
        accepted = "a number of at least 0" if name in {"beta", *ALWAYS, *beta} else "a finite number"
        result[name] = float(exact(number, where, accepted))
        if result[name] < 0 and accepted != "a finite number":
            raise refuse(where, number, accepted)
    return Table(dict(sorted(result.items())))


# -- files --------------------------------------------------------------------------------------------


def preset_names() -> tuple[str, ...]:
    """Names of the shipped models."""
    files = resources.files("tracewords.models").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load_model(name_or_path: str | Path) -> Model:
    """A shipped model by its name, or the model of a TOML file.

    Raises
    ------
    ModelError
        If there is no such model, or its file is no model.
    """
    presets = preset_names()
    accepted = f"the path of a .toml file, or one of {', '.join(presets)}"
    if isinstance(name_or_path, str) and name_or_path in presets:
        raw = resources.files("tracewords.models").joinpath(f"{name_or_path}.toml").read_bytes()
    elif isinstance(name_or_path, str | Path) and str(name_or_path).endswith(".toml"):
        try:
            with Path(name_or_path).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, ValueError):
            raise refuse("model", str(name_or_path), accepted) from None
    else:
        raise refuse("model", name_or_path, accepted)
    if len(raw) > MAX_BYTES:
        raise refuse("model", str(name_or_path), f"a file of at most {MAX_BYTES} bytes")
    try:
        data = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise refuse("model", str(name_or_path), f"a TOML file ({reason})") from None
    return Model.from_dict(data)


# -- models in one line -------------------------------------------------------------------------------


def _pair(student: Number, teacher: Number | None) -> tuple[dict[str, Tied], dict[str, Tied]]:
    """A tied student S1 and teacher S2."""
    return {"S1": Tied(student)}, {"S2": Tied(student if teacher is None else teacher)}


def tied_softmax(
    tokens: int | None = None,
    beta: Number = 1,
    covariance: Any = None,
    rank_ratio: Number = 1,
    teacher_rank_ratio: Number | None = None,
    name: str = "tied-softmax",
) -> Model:
    """Softmax attention with a tied student S1 and teacher S2.

    Parameters
    ----------
    tokens : int, optional
        L; 2 or the size of the covariance by default.
    beta : number
        Inverse temperature.
    covariance : L x L, optional
        The identity by default.
    rank_ratio, teacher_rank_ratio : numbers
        That of the teacher is the student's by default; both start Marchenko-Pastur.
    """
    size = 2 if tokens is None and covariance is None else tokens
    matrices = _pair(rank_ratio, teacher_rank_ratio)
    return Model(name, covariance, *matrices, Softmax(), {"beta": beta}, size)


def tied_scalar(
    activation: str,
    tokens: int | None = None,
    entry: tuple[int, int] | None = None,
    covariance: Any = None,
    rank_ratio: Number = 1,
    teacher_rank_ratio: Number | None = None,
    parameters: Mapping[str, Number] | None = None,
    name: str | None = None,
) -> Model:
    """One entry through an activation, with a tied student S1 and teacher S2.

    Parameters
    ----------
    activation : str
        ``h1`` .. ``h20``, ``erf``, ``tanh``, ``sigmoid`` and the like, or a formula in ``x``.
    entry : (int, int), optional
        ``(1, 2)`` by default, ``(1, 1)`` with one token.
    parameters : mapping, optional
        Parameters of the formula.

    The others are those of `tied_softmax`.
    """
    size = 2 if tokens is None and covariance is None else tokens
    single = size == 1 or (size is None and len(covariance) == 1)
    loss = Scalar(activation, entry or ((1, 1) if single else (1, 2)))
    name = name or (f"tied-{activation}" if activation.isalnum() else "tied-scalar")
    matrices = _pair(rank_ratio, teacher_rank_ratio)
    return Model(name, covariance, *matrices, loss, parameters or {}, size)
