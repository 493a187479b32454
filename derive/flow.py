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

from tracewords.derive.words import Alphabet, Word
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
    contractions : mapping of (noise letter, noise letter) to a tuple of Contraction
        Pairs that are absent contract to zero.  A noise letter ``xi'`` is the transpose of ``xi``; one that has no
        primed partner is symmetric.
    noise_level : str
        The parameter that multiplies all noise terms.
    time, time_unit : str
        Name of the time and its value in steps n.
    """

    alphabet: Alphabet
    drift: Mapping[int, tuple[DriftTerm, ...]]
    noise: Mapping[int, tuple[NoiseTerm, ...]] = field(default_factory=dict)
    second_order: Mapping[int, tuple[SecondOrderTerm, ...]] = field(default_factory=dict)
    contractions: Mapping[tuple[str, str], tuple[Contraction, ...]] = field(default_factory=dict)
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

    def _noise_star(self, name: str) -> str:
        """The transposed noise letter."""
        if name.endswith("'"):
            return name[:-1]
        primed = name + "'"
        return primed if any(primed in pair for pair in self.contractions) else name

    def full_noise(self) -> tuple[dict[int, tuple[NoiseTerm, ...]], dict[int, tuple[SecondOrderTerm, ...]]]:
        """First- and second-order insertions with those of the transposed letters added."""
        first, second = dict(self.noise), dict(self.second_order)
        star, bar = self.alphabet.star, self._noise_star
        for k, terms in self.noise.items():
            partner = self.alphabet.adjoint[k]
            if partner != k:
                first[partner] = tuple(NoiseTerm(t.weight, star(t.right), bar(t.noise), star(t.left)) for t in terms)
        for k, pairs in self.second_order.items():
            partner = self.alphabet.adjoint[k]
            if partner != k:
                second[partner] = tuple(
                    SecondOrderTerm(t.weight, star(t.right), bar(t.second), star(t.middle), bar(t.first), star(t.left))
                    for t in pairs
                )
        return first, second

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
