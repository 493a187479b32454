"""Alphabets and flows of the shipped parametrisations: data for `MatrixFlow`, one entry a kind.

``dS_k/dtau`` is minus the gradient of the population loss, ``G_k = 2 sum_l (O_kl S_l + P_kl S_l')``, in the
variables that are trained; noise enters as ``P <- P - xi P`` with the contractions of the per-sample gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tracewords.derive.flow import (
    Contraction,
    DriftTerm,
    MatrixFlow,
    NoiseTerm,
    SecondOrderTerm,
    coupling_name,
)
from tracewords.derive.model import Model
from tracewords.derive.parametrisation import Parametrisation
from tracewords.derive.words import Alphabet, Letter, Word

GENERAL = ("direct", "untied")  # kinds whose score matrix is not symmetric


def composites(name: str) -> tuple[str, str]:
    """Names of U U' and V V' of an untied matrix."""
    return f"{name}uu", f"{name}vv"


def model_alphabet(model: Model) -> Alphabet:
    """The letters of a model's words: score matrices, composites of untied students, values."""
    letters: list[Letter] = []
    for name, matrix in model.matrices.items():
        if not matrix.scores:
            # words of values alone, and of two of them: their overlaps close by themselves
            letters.append(Letter(name, False, "values", f"{matrix.rank_ratio}", longest=2))
            continue
        letters.append(Letter(name, matrix.kind not in GENERAL))
        if matrix.kind == "untied" and name in model.students:
            letters += [Letter(n) for n in composites(name)]
    return Alphabet(letters)


def time_of(model: Model) -> tuple[str, str, Fraction]:
    """Name of the time, its unit, and how many of it make one unit of tau = alpha n / d."""
    kinds = {m.kind for m in model.students.values() if m.scores}
    if kinds == {"tied"}:
        return "t", "4 alpha n / d", Fraction(4)
    return "tau", "alpha n / d", Fraction(1)


@dataclass
class _Builder:
    """Collects the terms of a flow; rates are per tau and divided by what makes a unit of the model's time."""

    alphabet: Alphabet
    scale: Fraction
    drift: dict[int, list[DriftTerm]] = field(default_factory=dict)
    noise: dict[int, list[NoiseTerm]] = field(default_factory=dict)
    second: dict[int, list[SecondOrderTerm]] = field(default_factory=dict)

    def add(self, letter: int, weight: Fraction | int, coupling: str, word: Word) -> None:
        """One drift term."""
        self.drift.setdefault(letter, []).append(DriftTerm(Fraction(weight) / self.scale, coupling, word))

    def insert(self, letter: int, left: Word, noise: str, right: Word) -> None:
        """Minus one noise letter in a first-order increment."""
        self.noise.setdefault(letter, []).append(NoiseTerm(Fraction(-1), left, noise, right))

    def insert_two(self, letter: int, left: Word, first: str, middle: Word, second: str, right: Word) -> None:
        """Two noise letters in a second-order increment."""
        self.second.setdefault(letter, []).append(SecondOrderTerm(Fraction(1), left, first, middle, second, right))


def model_flow(model: Model, alphabet: Alphabet, multipliers: Mapping[str, str]) -> MatrixFlow:
    """The flow of a model.

    Parameters
    ----------
    multipliers : mapping of student to coupling name
        Students whose mean the loss sees: the multiplier that keeps it on the critical manifold.
    """
    time, unit, scale = time_of(model)
    build = _Builder(alphabet, scale)
    contractions: dict[tuple[str, str], tuple[Contraction, ...]] = {}
    for k, matrix in model.students.items():
        if not matrix.scores:
            _values(build, model, k)
            continue
        gradient = gradient_terms(model, alphabet, k)
        SHAPES[matrix.kind](build, k, gradient, multipliers.get(k))
        for l, other in model.students.items():
            if other.scores:
                contractions |= _contractions(model, k, l, scale)
    return MatrixFlow(
        alphabet,
        {k: tuple(v) for k, v in build.drift.items()},
        {k: tuple(v) for k, v in build.noise.items()},
        {k: tuple(v) for k, v in build.second.items()},
        contractions,
        time=time,
        time_unit=unit,
    )


def position(model: Model, name: str) -> int:
    """Number of a matrix in coupling names, from 0."""
    return model.letters.index(name)


def pair_couplings(model: Model, alphabet: Alphabet, k: str, l: str) -> list[tuple[str, Word]]:
    """Couplings of a pair of score matrices with the words they are derivatives by.

    ``O`` for Omega = tr(S_k S_l'), ``P`` for Psi = tr(S_k S_l); one ``G`` where these are the same word.
    """
    a, b = alphabet.index[k], alphabet.index[l]
    omega, psi = (alphabet.canonical(w) for w in ((a, alphabet.adjoint[b]), (a, b)))
    numbers = sorted((position(model, k), position(model, l)))
    if omega == psi:
        return [(coupling_name("G", *numbers), omega)]
    return [(coupling_name("O", *numbers), omega), (coupling_name("P", *numbers), psi)]


def gradient_terms(model: Model, alphabet: Alphabet, k: str) -> list[tuple[Fraction, str, int]]:
    """``G_k`` as a sum of weight * coupling * letter."""
    result = []
    for l in model.scores:
        a, b = alphabet.index[k], alphabet.index[l]
        names = [name for name, _ in pair_couplings(model, alphabet, k, l)]
        if len(names) == 2:
            result += [(Fraction(2), names[0], b), (Fraction(2), names[1], alphabet.adjoint[b])]
        elif alphabet.adjoint[b] != b and alphabet.adjoint[a] == a:
            # a symmetric matrix feels only the symmetric part of a general one
            result += [(Fraction(1), names[0], b), (Fraction(1), names[0], alphabet.adjoint[b])]
        else:
            result.append((Fraction(2), names[0], b))
    return result


Gradient = list[tuple[Fraction, str, int]]


def _tied(build: _Builder, name: str, gradient: Gradient, multiplier: str | None) -> None:
    s, xi = build.alphabet.index[name], f"xi_{name}"
    for weight, coupling, x in gradient:
        build.add(s, -2 * weight, coupling, (x, s))
        build.add(s, -2 * weight, coupling, (s, x))
    build.add(s, -2, "gamma", (s,))
    build.insert(s, (), xi, (s,))
    build.insert(s, (s,), xi, ())
    build.insert_two(s, (), xi, (s,), xi, ())


def _direct(build: _Builder, name: str, gradient: Gradient, multiplier: str | None) -> None:
    s = build.alphabet.index[name]
    for weight, coupling, x in gradient:
        build.add(s, -weight, coupling, (x,))
    if multiplier:
        build.add(s, -1, multiplier, ())
    build.add(s, -1, "gamma", (s,))
    build.insert(s, (), f"xi_{name}", ())


def _untied(build: _Builder, name: str, gradient: Gradient, multiplier: str | None) -> None:
    alphabet = build.alphabet
    s, (a, b) = alphabet.index[name], (alphabet.index[n] for n in composites(name))
    star, xi, bar = alphabet.adjoint[s], f"xi_{name}", f"xi_{name}'"
    for weight, coupling, x in gradient:
        y = alphabet.adjoint[x]
        build.add(a, -weight, coupling, (x, star))
        build.add(a, -weight, coupling, (s, y))
        build.add(b, -weight, coupling, (y, s))
        build.add(b, -weight, coupling, (star, x))
        build.add(s, -weight, coupling, (x, b))
        build.add(s, -weight, coupling, (a, x))
    if multiplier:
        for letter, words in ((a, ((s,), (star,))), (b, ((s,), (star,))), (s, ((a,), (b,)))):
            for word in words:
                build.add(letter, -1, multiplier, word)
    for letter in (a, b, s):
        build.add(letter, -2, "gamma", (letter,))
    # U <- U - xi V, V <- V - xi' U
    build.insert(a, (), xi, (star,))
    build.insert(a, (s,), bar, ())
    build.insert(b, (), bar, (s,))
    build.insert(b, (star,), xi, ())
    build.insert(s, (), xi, (b,))
    build.insert(s, (a,), xi, ())
    build.insert_two(a, (), xi, (b,), bar, ())
    build.insert_two(b, (), bar, (a,), xi, ())
    build.insert_two(s, (), xi, (star,), xi, ())


def _values(build: _Builder, model: Model, name: str) -> None:
    """Values feel the gradient of the loss in their traces; their noise is of order kappa / d."""
    v = build.alphabet.index[name]
    for other in model.values:
        numbers = sorted((position(model, name), position(model, other)))
        if any(set(pair) == {name, other} for pair in model.traces):
            build.add(v, -2, coupling_name("T", *numbers), (build.alphabet.index[other],))
    build.add(v, -1, "gamma", (v,))


SHAPES = {"tied": _tied, "direct": _direct, "symmetric": _direct, "untied": _untied}


def _contractions(model: Model, k: str, l: str, scale: Fraction) -> dict[tuple[str, str], tuple[Contraction, ...]]:
    """Pairs of noise letters of two students: ``E[R_k A R_l'] = N tr(A)``, ``E[R_k A R_l] = M tr(A)``."""
    kinds = [model.students[name].kind for name in (k, l)]
    numbers = sorted((position(model, k), position(model, l)))
    straight, crossed = coupling_name("N", *numbers), coupling_name("M", *numbers)
    first, second = f"xi_{k}", f"xi_{l}"
    if kinds == ["tied", "tied"]:
        return {(first, second): (Contraction(1 / scale, straight),)}
    shares = {"tied": Fraction(1), "symmetric": Fraction(1, 2)}
    symmetric = [kind in shares for kind in kinds]
    if any(symmetric):
        # a symmetrised noise meets N and M alike; two of them meet each twice
        weight = Fraction(1)
        for kind in kinds:
            weight *= shares.get(kind, Fraction(1))
        weight *= 2 if all(symmetric) else 1
        both = tuple(Contraction(weight / scale, name) for name in (straight, crossed))
        names = [[n] if sym else [n, n + "'"] for n, sym in zip((first, second), symmetric, strict=True)]
        return {(x, y): both for x in names[0] for y in names[1]}
    one, two = (Contraction(1 / scale, straight),), (Contraction(1 / scale, crossed),)
    return {
        (first, second + "'"): one,
        (first + "'", second): one,
        (first, second): two,
        (first + "'", second + "'"): two,
    }


def matrix_kinds(model: Model) -> dict[str, str]:
    """Kind of every matrix."""
    return {name: m.kind for name, m in model.matrices.items()}


__all__ = [
    "Parametrisation",
    "composites",
    "gradient_terms",
    "matrix_kinds",
    "model_alphabet",
    "model_flow",
    "pair_couplings",
    "position",
    "time_of",
]
