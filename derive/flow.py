"""Matrix flows: what drives each letter, from which every hierarchy is derived.

A flow says, for each evolving letter X, ``dX/dt = sum weight * coupling * word`` and, for finite learning
rates, how the gradient noise enters: words with one or two noise letters, and the rule that contracts a
pair of noise letters, ``E[xi A xi'] = c tr(A) I``.  Tied, direct and untied models, momentum and flows of
a user's own are instances.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tracewords.derive.words import Alphabet, Letter, Word
from tracewords.errors import ModelError


@dataclass(frozen=True)
class DriftTerm:
    """``weight * coupling * word`` in dX/dt; `coupling` names a coupling or a parameter."""

    weight: Fraction
    coupling: str
    word: Word


@dataclass(frozen=True)
class NoiseTerm:
    """``weight * left xi right`` in the first-order increment of a letter; `noise` names xi."""

    weight: Fraction
    left: Word
    noise: str
    right: Word


@dataclass(frozen=True)
class SecondOrderTerm:
    """``weight * left xi middle xi' right`` in the second-order increment of a letter."""

    weight: Fraction
    left: Word
    first: str
    middle: Word
    second: str
    right: Word


@dataclass(frozen=True)
class Contraction:
    """``E[xi A xi'] = weight * coupling * tr(A) I`` for a pair of noise letters."""

    weight: Fraction
    coupling: str


@dataclass(frozen=True)
class MatrixFlow:
    """Drift and noise of each evolving letter.

    Parameters
    ----------
    alphabet : Alphabet
    drift : mapping of letter to tuple of DriftTerm
        Keys are indices into the alphabet; a transposed letter follows its partner and is not a key.
    noise, second_order : mappings of letter to terms
        Insertions of noise letters; empty at vanishing learning rate.
    contractions : mapping of (noise letter, noise letter) to Contraction
        Pairs that are absent contract to zero.
    noise_level : str
        The parameter that multiplies all noise terms.
    time, time_unit : str
        Name of the time and its value in steps n.
    """

    alphabet: Alphabet
    drift: Mapping[int, tuple[DriftTerm, ...]]
    noise: Mapping[int, tuple[NoiseTerm, ...]] = field(default_factory=dict)
    second_order: Mapping[int, tuple[SecondOrderTerm, ...]] = field(default_factory=dict)
    contractions: Mapping[tuple[str, str], Contraction] = field(default_factory=dict)
    noise_level: str = "kappa"
    time: str = "t"
    time_unit: str = "4 alpha n / d"

    def __post_init__(self) -> None:
        letters = self.alphabet.letters
        for k, terms in self.drift.items():
            for term in terms:
                ends = [letters[a] for a in term.word]
                joined = all(a.right == b.left for a, b in itertools.pairwise(ends))
                same = (ends[0].left, ends[-1].right) if ends else (letters[k].left, letters[k].left)
                if not joined or same != (letters[k].left, letters[k].right):
                    raise ModelError(
                        f"drift of {letters[k].name}",
                        self.alphabet.text(term.word),
                        f"a product with the rows ({letters[k].left}) and columns ({letters[k].right}) of the letter",
                    )

    def full_drift(self) -> dict[int, tuple[DriftTerm, ...]]:
        """The drift with that of the transposed letters added."""
        result = dict(self.drift)
        star = self.alphabet.star
        for k, terms in self.drift.items():
            partner = self.alphabet.adjoint[k]
            if partner != k:
                result[partner] = tuple(DriftTerm(t.weight, t.coupling, star(t.word)) for t in terms)
        return result

    def text(self) -> dict[str, tuple[tuple[float, str, str], ...]]:
        """The drift in plain data, ``{letter: ((weight, coupling, word), ..)}``."""
        spell = self.alphabet.text
        return {
            self.alphabet.names[k]: tuple((float(t.weight), t.coupling, spell(t.word)) for t in terms)
            for k, terms in self.drift.items()
        }


def coupling_name(prefix: str, k: int, l: int) -> str:
    """Name of a coupling between matrices k and l (from 0): ``G11``, or ``G1_12`` past nine matrices."""
    return f"{prefix}{k + 1}{l + 1}" if max(k, l) < 9 else f"{prefix}{k + 1}_{l + 1}"


def tied_flow(students: tuple[str, ...], teachers: tuple[str, ...]) -> MatrixFlow:
    """Flow of tied matrices ``S = W W'`` in t = 4 alpha n / d, with its noise.

    ``dS_k/dt = - sum_l G_kl (S_l S_k + S_k S_l) - (gamma/2) S_k``, G the symmetric gradient of the
    population loss in the overlaps.  One step of SGD multiplies S_k on both sides by ``1 - xi_k``, xi_k the
    symmetrised noise, with ``E[xi_k A xi_l] = (kappa/4) N_kl tr(A) I`` a unit of t.
    """
    names = students + teachers
    alphabet = Alphabet([Letter(name) for name in names])
    drift: dict[int, tuple[DriftTerm, ...]] = {}
    noise: dict[int, tuple[NoiseTerm, ...]] = {}
    second: dict[int, tuple[SecondOrderTerm, ...]] = {}
    contractions: dict[tuple[str, str], Contraction] = {}
    one = Fraction(1)
    for k in range(len(students)):
        xi = f"xi{k}"
        terms = [
            DriftTerm(-one, coupling_name("G", *sorted((k, l))), word)
            for l in range(len(names))
            for word in ((l, k), (k, l))
        ]
        drift[k] = (*terms, DriftTerm(Fraction(-1, 2), "gamma", (k,)))
        noise[k] = (NoiseTerm(-one, (), xi, (k,)), NoiseTerm(-one, (k,), xi, ()))
        second[k] = (SecondOrderTerm(one, (), xi, (k,), xi, ()),)
        for l in range(len(students)):
            contractions[xi, f"xi{l}"] = Contraction(Fraction(1, 4), coupling_name("N", *sorted((k, l))))
    return MatrixFlow(alphabet, drift, noise, second, contractions)
