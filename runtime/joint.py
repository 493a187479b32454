"""Exact joint moments of matrices that are free of each other, for d to infinity.

The moment of a word is the sum over non-crossing partitions of its positions, every block in one letter, of the
product of the blocks' weights (R. Speicher, Math. Ann. 298, 611 (1994)).  A block of a symmetric letter weighs its free
cumulant.  A Gaussian factor G, d x ratio d, occurs in pairs of G and G' only, and parts of one matrix that share
factors, such as ``U V'`` and ``U U'``, are written out in them.

Every closed word is valued ``Tr / d``, also one that begins in the other space of a rectangular factor: then a pair
weighs the variance, ``(G a G' b) = variance (a) (b)``, and the empty word is 1 or, in that space, `ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tracewords.errors import ModelError
from tracewords.runtime.free import Law, LawData, canonical, integer_cumulants, law_from_data, parse_word


def split_name(name: str, matrices: Iterable[str]) -> tuple[str, str] | None:
    """Matrix and part of a letter: ``S1'`` is ("S1", "'"), ``S1uu`` is ("S1", "uu"); None if of no matrix."""
    known = frozenset(matrices)
    for part in ("", "'", "uu", "vv"):
        matrix = name.removesuffix(part)
        if matrix in known and name == matrix + part:
            return matrix, part
    return None


@dataclass(frozen=True)
class _Pair:
    """A Gaussian factor: its transpose, and what a pair that begins with it weighs.

    `bare` replaces `weight` where the gap in the other space, which is the one inside the pair if `inside`, is empty.
    """

    transpose: int
    weight: int
    bare: int
    inside: bool


class _JointMoments:
    """Moments of words by recursion on the block of one letter, remembered by canonical word.

    Integer cumulants and weights make it integer arithmetic.
    """

    def __init__(self, cumulants: Mapping[int, Sequence[int]], pairs: Mapping[int, _Pair]) -> None:
        self.cumulants, self.pairs = cumulants, pairs
        self.opposite = [(k, pair.transpose) for k, pair in pairs.items() if k < pair.transpose]
        partner = (pairs[k].transpose if k in pairs else k for k in range(256))
        self.adjoint = bytes(partner) if pairs else None
        self.known: dict[bytes, int] = {b"": 1}

    def __call__(self, word: bytes) -> int:
        value = self.known.get(word)
        if value is None:
            if any(word.count(a) != word.count(b) for a, b in self.opposite):
                return 0
            least = canonical(word, self.adjoint)
            value = self.known.get(least)
            if value is None:
                value = self.known[least] = self._expand(least)
            self.known[word] = value
        return value

    def _expand(self, word: bytes) -> int:
        """Sum over the block that holds an occurrence of the rarest letter: fewest blocks to try."""
        letter = min(set(word), key=word.count)
        first = word.index(letter)
        word = word[first:] + word[:first]
        return self._pairs(word) if letter in self.pairs else self._blocks(word)

    def _pairs(self, word: bytes) -> int:
        """Sum over the partner of the first letter."""
        pair = self.pairs[word[0]]
        total = 0
        for j, letter in enumerate(word):
            if letter == pair.transpose:
                inside, outside = word[1:j], word[j + 1 :]
                value = self(inside)
                if value:
                    empty = not (inside if pair.inside else outside)
                    total += (pair.bare if empty else pair.weight) * value * self(outside)
        return total

    def _blocks(self, word: bytes) -> int:
        """Sum over the block of the first letter, a symmetric one.

        ``ways[i]`` sums, over blocks of `size` occurrences ending at occurrence i, the products of the
        moments of the gaps between them: gaps do not see each other, because blocks do not cross.
        """
        letter = word[0]
        at = [i for i, k in enumerate(word) if k == letter]
        count = len(at)
        last = [self(word[i + 1 :]) for i in at]
        gaps = [[self(word[i + 1 : j]) for i in at[:b]] for b, j in enumerate(at)]
        ways = [1] + [0] * (count - 1)
        total = 0
        for size in range(1, count + 1):
            total += self.cumulants[letter][size - 1] * sum(map(int.__mul__, ways, last))
            # gaps[i] is i long: the product stops there
            ways = [sum(map(int.__mul__, ways, gap)) for gap in gaps]
        return total


class _Codes:
    """Factors of all matrices numbered, and the letters written out in them."""

    def __init__(self, laws: Mapping[str, Law]) -> None:
        self.laws = laws
        self.code: dict[tuple[str, str], int] = {}  # matrix and factor
        self.spaces: list[tuple[Fraction, Fraction]] = []  # rows and columns in units of d
        self.symmetric: dict[int, Law] = {}
        self.pairs: dict[int, _Pair] = {}
        self.units: dict[int, int] = {}  # of a pair of factors, by the one without prime
        for matrix, law in laws.items():
            if not law.gaussians():
                self.symmetric[len(self.spaces)] = law
                self.code[matrix, "S"] = len(self.spaces)
                self.spaces.append((Fraction(1), Fraction(1)))
            for factor, size in law.gaussians().items():
                n, variance, ratio = len(self.spaces), size.variance, size.ratio
                self.code |= {(matrix, factor): n, (matrix, factor + "'"): n + 1}
                self.spaces += [(Fraction(1), ratio), (ratio, Fraction(1))]
                # one factor of the ratio's denominator a pair: as many as there are gaps in the other space
                weight, bare = variance.numerator * ratio.denominator, variance.numerator * ratio.numerator
                self.pairs[n] = _Pair(n + 1, weight, bare, inside=True)
                self.pairs[n + 1] = _Pair(n, weight, bare, inside=False)
                self.units[n] = variance.denominator * ratio.denominator

    def expand(self, name: str) -> bytes:
        """A letter as a product of factors."""
        found = split_name(name, self.laws)
        if found is None:
            raise ModelError(f"initial.{name}", "nothing", "a law for each letter")
        matrix, part = found
        return bytes(self.code[matrix, factor] for factor in self.laws[matrix].expand(part))

    def closed(self, word: bytes) -> bool:
        """Whether the product exists and is square."""
        return all(self.spaces[a][1] == self.spaces[b][0] for a, b in zip(word, word[1:] + word[:1], strict=True))

    def moments(self, words: Mapping[str, bytes]) -> dict[str, Fraction]:
        """Moments of words of factors."""
        units, cumulants = dict(self.units), {}
        for k, law in self.symmetric.items():
            most = max((word.count(k) for word in words.values()), default=0)
            units[k], cumulants[k] = integer_cumulants(law.free_cumulants(most))
        moment = _JointMoments(cumulants, self.pairs)
        return {
            text: Fraction(moment(word), math.prod(unit ** word.count(k) for k, unit in units.items()))
            for text, word in words.items()
        }


def free_moments(
    words: Iterable[str], letters: Sequence[str], laws: Mapping[str, Law | LawData]
) -> dict[str, Fraction]:
    """Joint moments of matrices free of each other, exact.

    Parameters
    ----------
    words : iterable of str
        Names joined by dots, closed paths where letters are rectangular.
    letters : sequence of str
        Names that may be in a word: a matrix ``S``, its transpose ``S'``, and of a product ``S = U V'`` also
        ``Suu``, which is ``U U'``, and ``Svv``, ``V V'``.
    laws : mapping
        A law, or its data form, for each matrix.

    Returns
    -------
    dict
        The word as given to its moment, ``Tr / d``.
    """
    used = {found[0] for found in (split_name(letter, laws) for letter in letters) if found}
    codes = _Codes({k: law_from_data(k, law) for k, law in laws.items() if k in used})
    factors = [codes.expand(letter) for letter in letters]
    index = {name: i for i, name in enumerate(letters)}
    expanded = {text: b"".join(factors[k] for k in parse_word(text, index)) for text in words}
    for text, word in expanded.items():
        if not codes.closed(word):
            raise ModelError("word", text, "a closed path: each letter's columns are the next one's rows")
    return codes.moments(expanded)


def word_letters(laws: Mapping[str, Law]) -> tuple[str, ...]:
    """All letters of matrices with these laws: ``S``, and what differs from it out of ``S'``, ``Suu`` and ``Svv``."""
    parts = {0: ("",), 1: ("", "'"), 2: ("", "'", "uu", "vv")}
    return tuple(matrix + part for matrix, law in laws.items() for part in parts[len(law.gaussians())])
