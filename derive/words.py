"""Trace-moment words: letters with an involution, canonical cyclic words, enumeration.

A word ``(k_1, .., k_w)`` stands for ``tr(S_k1 .. S_kw)``, ``tr = Tr / d``.  The trace does not see a
rotation of the word, nor its reversal with every letter transposed; the canonical form is the least of
these.  Words are packed into 64-bit integers, a fixed number of bits a letter with the first letter
highest, so that a whole order is canonicalised in a few array operations and the packed integers of one
length sort like the words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import ModelError

Word = tuple[int, ...]
Packed = NDArray[np.int64]


@dataclass(frozen=True)
class Letter:
    """A matrix that may stand in a word.

    Parameters
    ----------
    name : str
        How it is written.
    symmetric : bool
        Whether it is its own transpose; otherwise the alphabet also holds ``name'``, its transpose.
    left, right : str
        The spaces of its rows and columns: a word is a closed path through them.
    weight : int
        What it adds to the order of a word, in units of ``1 / Alphabet.unit``.
    longest : int
        Words with this letter have at most so many letters.
    """

    name: str
    symmetric: bool = True
    left: str = "d"
    right: str = "d"
    weight: int = 1
    longest: int = 62


class Alphabet:
    """The letters, their involution, and everything about words in them.

    Parameters
    ----------
    letters : sequence of Letter
        In the order that fixes the canonical form (students first).
    unit : int
        Weight of a word of order one; 2 where the letters are halves of a composite such as ``W W'``.
    """

    def __init__(self, letters: Sequence[Letter], unit: int = 1) -> None:
        expanded: list[Letter] = []
        adjoint: list[int] = []
        for letter in letters:
            n = len(expanded)
            if letter.symmetric:
                if letter.left != letter.right:
                    raise ModelError(
                        f"letter {letter.name}", f"{letter.left} x {letter.right}", "a square symmetric letter"
                    )
                expanded.append(letter)
                adjoint.append(n)
            else:
                expanded += [letter, replace(letter, name=letter.name + "'", left=letter.right, right=letter.left)]
                adjoint += [n + 1, n]
        self.letters = tuple(expanded)
        self.names = tuple(x.name for x in expanded)
        if len(set(self.names)) < len(self.names):
            raise ModelError("letters", ", ".join(self.names), "names that differ")
        self.adjoint = tuple(adjoint)
        self.unit = unit
        self.index = {name: i for i, name in enumerate(self.names)}
        self.bits = max(1, (len(expanded) - 1).bit_length())

    def __len__(self) -> int:
        return len(self.letters)

    def __repr__(self) -> str:
        return f"Alphabet({', '.join(self.names)})"

    # -- one word at a time ---------------------------------------------------------------------------

    def text(self, word: Word) -> str:
        """The word as matrix names joined by dots; the empty word is ``1``."""
        return ".".join(self.names[k] for k in word) or "1"

    def parse(self, text: str, closed: bool = True) -> Word:
        """The word written as in `text`, not canonicalised; `closed` asks for one that has a trace."""
        if text == "1":
            return ()
        try:
            word = tuple(self.index[name] for name in text.split("."))
        except KeyError as error:
            raise ModelError("word", text, f"names joined by dots, each one of {', '.join(self.names)}") from error
        if closed and not self.closed(word):
            raise ModelError("word", text, "a closed path: each letter's columns are the next one's rows")
        return word

    def star(self, word: Word) -> Word:
        """Transpose of the product: reversed, every letter transposed."""
        return tuple(self.adjoint[k] for k in reversed(word))

    def closed(self, word: Word) -> bool:
        """Whether the product exists and is square."""
        following = word[1:] + word[:1]
        return all(self.letters[a].right == self.letters[b].left for a, b in zip(word, following, strict=True))

    def canonical(self, word: Word) -> Word:
        """The least among the rotations of `word` and of its transpose."""
        if not word:
            return word
        star = self.star(word)
        return min(w[i:] + w[:i] for w in (word, star) for i in range(len(word)))

    def weight(self, word: Word) -> int:
        """Weight of a word: its order times `unit`."""
        return sum(self.letters[k].weight for k in word)

    # -- arrays of packed words -----------------------------------------------------------------------

    @cached_property
    def _tables(self) -> tuple[Packed, Packed]:
        return np.array(self.adjoint, dtype=np.int64), np.array([x.weight for x in self.letters], dtype=np.int64)

    def pack(self, word: Word) -> int:
        """The word as an integer."""
        value = 0
        for k in word:
            value = value << self.bits | k
        return value

    def unpack(self, value: int, length: int) -> Word:
        """Inverse of `pack`."""
        mask = (1 << self.bits) - 1
        return tuple(int(value) >> self.bits * (length - 1 - i) & mask for i in range(length))

    def letter_at(self, words: Packed, length: int, position: int) -> Packed:
        """Letters at a position (from 0) of packed words of one length."""
        return words >> self.bits * (length - 1 - position) & ((1 << self.bits) - 1)

    def weights(self, words: Packed, length: int) -> Packed:
        """Weights of packed words of one length."""
        table = self._tables[1]
        return sum((table[self.letter_at(words, length, i)] for i in range(length)), np.zeros_like(words))

    def canonical_packed(self, words: Packed, length: int) -> Packed:
        """Canonical forms of packed words of one length."""
        if length < 1:
            return words
        top, full = self.bits * (length - 1), (1 << self.bits * length) - 1
        star = np.zeros_like(words)
        for i in reversed(range(length)):
            star = star << self.bits | self._tables[0][self.letter_at(words, length, i)]
        best = np.minimum(words, star)
        for turned in (words, star):
            for _ in range(length - 1):
                turned = turned << self.bits & full | turned >> top
                np.minimum(best, turned, out=best)
        return best

    def enumerate(self, order: int) -> dict[int, Packed]:
        """All canonical words of order at most `order`, as sorted packed arrays by length.

        Necklaces grow letter by letter as prenecklaces (Fredricksen, Kessler and Maiorana): none is made
        twice; of the necklaces those remain that are also least under transposition.
        """
        limit = order * self.unit
        found: dict[int, Packed] = {}
        words = np.zeros(1, dtype=np.int64)
        period = np.ones(1, dtype=np.int64)
        weight = np.zeros(1, dtype=np.int64)
        length = 0
        while len(words):
            if self.bits * (length + 1) > 62:
                raise ModelError("order", order, f"words of at most {62 // self.bits} letters with {len(self)} letters")
            grown = list(self._grow(words, period, weight, length, limit))
            words, period, weight = (np.concatenate(part) for part in zip(*grown, strict=True))
            length += 1
            necklaces = words[(length % period == 0) & self._closes(words, length)]
            least = necklaces[self.canonical_packed(necklaces, length) == necklaces]
            if len(least):
                found[length] = np.sort(least)
        return found

    def _grow(
        self, words: Packed, period: Packed, weight: Packed, length: int, limit: int
    ) -> Iterator[tuple[Packed, Packed, Packed]]:
        mask = (1 << self.bits) - 1
        reference = words >> self.bits * (period - 1) & mask if length else np.zeros_like(words)
        for k, letter in enumerate(self.letters):
            fits = (reference <= k) & (weight + letter.weight <= limit) & (length < letter.longest)
            if length:
                joins = np.array([x.right == letter.left for x in self.letters])
                fits &= joins[words & mask]
            same = reference[fits] == k if length else np.ones(int(fits.sum()), dtype=bool)
            yield (
                words[fits] << self.bits | k,
                np.where(same, period[fits], length + 1),
                weight[fits] + letter.weight,
            )

    def _closes(self, words: Packed, length: int) -> NDArray[np.bool_]:
        joins = np.array([[a.right == b.left for b in self.letters] for a in self.letters])
        return joins[self.letter_at(words, length, length - 1), self.letter_at(words, length, 0)]


def count_words(length: int, letters: int, symmetric: int) -> int:
    """Number of classes of cyclic words under rotation and transpose-reversal (Burnside's lemma).

    Parameters
    ----------
    length, letters : int
        Letters of the word and of the alphabet.
    symmetric : int
        How many letters are their own transpose.
    """
    n, k, f = length, letters, symmetric
    rotations = sum(k ** gcd(i, n) for i in range(1, n + 1))
    if n % 2:
        reversals = n * f * k ** ((n - 1) // 2)
    else:
        # twice n/2 * (..): the two kinds of axes of an even polygon
        reversals = n // 2 * (f * f * k ** (n // 2 - 1) + k ** (n // 2))
    return (rotations + reversals) // (2 * n)
