"""From a matrix flow to the hierarchy of its trace moments: Leibniz, cyclicity, the involution, Ito.

``d tr(A X B) = tr(A dX B) + ..``: every drift term of every letter of a word makes one term of the right
side.  At finite learning rate each pair of noise insertions in a word is contracted by
``E[xi A xi'] = c tr(A) I``, which splits the trace in two, and each letter adds its second-order term.
All words of one length are treated at once as packed integers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from tracewords.derive.flow import MatrixFlow
from tracewords.derive.words import Packed, Word, count_words
from tracewords.errors import ModelError

Piece = tuple[Packed | int, int]  # packed words (or one word for all) and their length
Spread = tuple[Packed, int]  # a packed word for each row, and their length


@dataclass(frozen=True)
class Terms:
    """A sparse table of terms ``weight * coupling * mu[first] * mu[second]`` in d mu[row]/dt.

    Attributes
    ----------
    row, coupling, first, second : (n,) int64
        Row; index into `names`; factors as indices into the words.  A second factor equal to the number of
        words stands for tr(1) = 1, as does a first one.
    numerator : (n,) int64
        Weights times `denominator`, exact.
    names : tuple of str
        The couplings and parameters.
    """

    row: NDArray[np.int64]
    coupling: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    numerator: NDArray[np.int64]
    denominator: int
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.row)

    def weight(self, n: int) -> Fraction:
        """Exact weight of term n."""
        return Fraction(int(self.numerator[n]), self.denominator)

    @property
    def weights(self) -> NDArray[np.float64]:
        """All weights as floats."""
        return self.numerator / self.denominator


@dataclass(frozen=True)
class Hierarchy:
    """The equations of all words up to an order.

    Attributes
    ----------
    packed : dict of length to packed words
        The words that evolve.
    outer : dict of length to packed words
        The words beyond the order that the equations need.
    drift, loops : Terms
        The terms at vanishing learning rate, and those proportional to the noise level.
    """

    flow: MatrixFlow
    order: int
    packed: dict[int, Packed]
    outer: dict[int, Packed]
    drift: Terms
    loops: Terms

    @property
    def size(self) -> int:
        """Number of moments that evolve."""
        return sum(map(len, self.packed.values()))

    def words(self, outer: bool = False) -> list[Word]:
        """The words in state order (length, then canonical word)."""
        table = self.outer if outer else self.packed
        return [self.flow.alphabet.unpack(int(w), n) for n, words in sorted(table.items()) for w in words]


class _Collector:
    """Raw terms with their words in any rotation; merged once all words are known."""

    def __init__(self, flow: MatrixFlow, denominator: int) -> None:
        self.flow, self.denominator = flow, denominator
        self.rows: list[NDArray[np.int64]] = []
        self.couplings: list[int] = []
        self.numerators: list[int] = []
        self.pieces: tuple[list[Spread], list[Spread]] = ([], [])
        self.names: dict[str, int] = {}

    def add(self, rows: NDArray[np.int64], name: str, first: Piece, second: Piece, weight: Fraction) -> None:
        """One term for each of `rows`, with a packed word (or one for all) for either factor."""
        self.rows.append(rows)
        self.couplings.append(self.names.setdefault(name, len(self.names)))
        self.numerators.append(int(weight * self.denominator))
        for words, piece in zip((first, second), self.pieces, strict=True):
            spread = np.broadcast_to(np.asarray(words[0], dtype=np.int64), rows.shape)
            piece.append((spread, words[1]))

    def words(self) -> dict[int, Packed]:
        """Canonical words that occur, by length; canonicalises the pieces in place."""
        found: dict[int, list[Packed]] = {}
        for piece in self.pieces:
            for length in {n for _, n in piece if n}:
                members = [i for i, (_, n) in enumerate(piece) if n == length]
                stacked = np.concatenate([piece[i][0] for i in members])
                least = self.flow.alphabet.canonical_packed(stacked, length)
                found.setdefault(length, []).append(np.unique(least))
                ends = np.cumsum([len(piece[i][0]) for i in members])[:-1]
                for i, part in zip(members, np.split(least, ends), strict=True):
                    piece[i] = (part, length)
        return {n: np.unique(np.concatenate(parts)) for n, parts in found.items()}

    def merge(self, lookup: _Lookup, names: dict[str, int]) -> Terms:
        """The terms with equal ones added up, sorted by row, coupling, factors."""
        if not self.rows:
            none = np.zeros(0, dtype=np.int64)
            return Terms(none, none, none, none, none, self.denominator, tuple(names))
        own = list(self.names)
        row = np.concatenate(self.rows)
        sizes = [len(r) for r in self.rows]
        coupling = np.repeat([names[own[c]] for c in self.couplings], sizes)
        numerator = np.repeat(self.numerators, sizes)
        factors = [np.concatenate([lookup(*piece) for piece in pieces]) for pieces in self.pieces]
        first, second = np.minimum(*factors), np.maximum(*factors)
        keys = np.lexsort((second, first, coupling, row))
        columns = np.stack([row, coupling, first, second])[:, keys]
        new = np.ones(len(keys), dtype=bool)
        new[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
        total = np.add.reduceat(numerator[keys], np.flatnonzero(new))
        kept = columns[:, new][:, total != 0]
        r, c, f, s = (np.ascontiguousarray(x) for x in kept)
        return Terms(r, c, f, s, total[total != 0], self.denominator, tuple(names))


class _Lookup:
    """Index of a canonical word in the state, then the outer words, then tr(1)."""

    def __init__(self, packed: dict[int, Packed], outer: dict[int, Packed]) -> None:
        self.tables: dict[int, list[tuple[Packed, int]]] = {}
        total = 0
        for table in (packed, outer):
            for n, words in sorted(table.items()):
                self.tables.setdefault(n, []).append((words, total))
                total += len(words)
        self.one = total

    def __call__(self, words: Packed, length: int) -> NDArray[np.int64]:
        if length == 0:
            return np.full(len(words), self.one)
        index = np.full(len(words), -1)
        for known, start in self.tables[length]:
            at = np.minimum(np.searchsorted(known, words), len(known) - 1)
            index = np.where(known[at] == words, start + at, index)
        return index


def _join(bits: int, pieces: Iterable[Piece]) -> Piece:
    value: Packed | int = 0
    total = 0
    for words, length in pieces:
        value = value << bits * length | words
        total += length
    return value, total


def _slice(words: Packed, bits: int, length: int, start: int, stop: int) -> Piece:
    size = max(stop - start, 0)
    return words >> bits * (length - stop) & ((1 << bits * size) - 1), size


def derive(flow: MatrixFlow, order: int) -> Hierarchy:
    """The hierarchy of all words of order at most `order`.

    Parameters
    ----------
    flow : MatrixFlow
    order : int
        At least 2: the couplings are functions of moments of order two.

    Returns
    -------
    Hierarchy
        Weights exact; terms sorted, independent of hash seeds.
    """
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 2:
        raise ModelError("order", order, "an integer of at least 2")
    order = int(order)
    _check_memory(flow, order)
    packed = flow.alphabet.enumerate(order)
    drift = _drift(flow, packed)
    loops = _loops(flow, packed)
    outer: dict[int, Packed] = {}
    for collector in (drift, loops):
        for n, words in collector.words().items():
            new = np.setdiff1d(words, packed.get(n, words[:0]))
            if len(new):
                outer[n] = np.union1d(outer.get(n, new), new)
    lookup = _Lookup(packed, outer)
    tables = [c.merge(lookup, {name: i for i, name in enumerate(c.names)}) for c in (drift, loops)]
    return Hierarchy(flow, order, packed, outer, *tables)


def _starts(packed: dict[int, Packed]) -> Iterable[tuple[int, Packed, int]]:
    total = 0
    for n, words in sorted(packed.items()):
        yield n, words, total
        total += len(words)


def _denominator(weights: Iterable[Fraction]) -> int:
    return lcm(1, *(Fraction(w).denominator for w in weights))


def _drift(flow: MatrixFlow, packed: dict[int, Packed]) -> _Collector:
    alphabet, bits = flow.alphabet, flow.alphabet.bits
    rules = flow.full_drift()
    collector = _Collector(flow, _denominator(t.weight for terms in rules.values() for t in terms))
    for n, words, start in _starts(packed):
        for i in range(n):
            at = alphabet.letter_at(words, n, i)
            for k, terms in sorted(rules.items()):
                chosen = np.flatnonzero(at == k)
                sub = words[chosen]
                before, after = _slice(sub, bits, n, 0, i), _slice(sub, bits, n, i + 1, n)
                for term in terms:
                    new = _join(bits, (before, (alphabet.pack(term.word), len(term.word)), after))
                    collector.add(start + chosen, term.coupling, new, (0, 0), term.weight)
    return collector


def _loops(flow: MatrixFlow, packed: dict[int, Packed]) -> _Collector:
    rates = [c.weight for rules in flow.contractions.values() for c in rules]
    weights = [t.weight for table in (flow.noise, flow.second_order) for terms in table.values() for t in terms]
    scale = _denominator(rates) * _denominator(weights) ** 2
    collector = _Collector(flow, scale)
    if flow.contractions:
        for n, words, start in _starts(packed):
            _within_letters(flow, n, words, start, collector)
            _between_letters(flow, n, words, start, collector)
    return collector


def _within_letters(flow: MatrixFlow, n: int, words: Packed, start: int, collector: _Collector) -> None:
    """Terms from the second-order increment of one letter."""
    alphabet, bits = flow.alphabet, flow.alphabet.bits
    for i in range(n):
        at = alphabet.letter_at(words, n, i)
        for k, terms in sorted(flow.full_noise()[1].items()):
            chosen = np.flatnonzero(at == k)
            sub = words[chosen]
            before, after = _slice(sub, bits, n, 0, i), _slice(sub, bits, n, i + 1, n)
            for term in terms:
                if not len(chosen):
                    continue
                left, middle, right = ((alphabet.pack(w), len(w)) for w in (term.left, term.middle, term.right))
                split = _join(bits, (before, left, right, after))
                for rule in flow.contractions.get((term.first, term.second), ()):
                    collector.add(start + chosen, rule.coupling, middle, split, term.weight * rule.weight)


def _between_letters(flow: MatrixFlow, n: int, words: Packed, start: int, collector: _Collector) -> None:
    """Terms from one noise letter in each of two letters of the word."""
    alphabet, bits = flow.alphabet, flow.alphabet.bits
    noise = flow.full_noise()[0]
    letters = sorted(noise)
    for p in range(n):
        for r in range(p + 1, n):
            at_p, at_r = alphabet.letter_at(words, n, p), alphabet.letter_at(words, n, r)
            for k in letters:
                for l in letters:
                    chosen = np.flatnonzero((at_p == k) & (at_r == l))
                    if not len(chosen):
                        continue
                    sub = words[chosen]
                    before, after = _slice(sub, bits, n, 0, p), _slice(sub, bits, n, r + 1, n)
                    between = _slice(sub, bits, n, p + 1, r)
                    for a in noise[k]:
                        for b in noise[l]:
                            rules = flow.contractions.get((a.noise, b.noise), ())
                            pack = [(alphabet.pack(w), len(w)) for w in (a.left, a.right, b.left, b.right)]
                            inner = _join(bits, (pack[1], between, pack[2]))
                            outer = _join(bits, (before, pack[0], pack[3], after))
                            for rule in rules:
                                weight = a.weight * b.weight * rule.weight
                                collector.add(start + chosen, rule.coupling, inner, outer, weight)


BYTES_PER_RAW_TERM = 200


def estimate_bytes(flow: MatrixFlow, order: int) -> int:
    """Memory the derivation will need, from the word counts alone (letters of weight one)."""
    letters = flow.alphabet.letters
    symmetric = sum(x.symmetric for x in letters)
    most = max((len(t) for t in flow.full_drift().values()), default=0)
    pairs = 2 if flow.contractions else 0
    top = order * flow.alphabet.unit // min(x.weight for x in letters)
    words = (count_words(n, len(letters), symmetric) * n * (most + pairs * n) for n in range(1, top + 1))
    return BYTES_PER_RAW_TERM * sum(words)


def _check_memory(flow: MatrixFlow, order: int) -> None:
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") if hasattr(os, "sysconf") else 1 << 33
    if order > 62 or estimate_bytes(flow, order) > available:
        fits = max(n for n in range(1, 63) if n < 3 or estimate_bytes(flow, n) <= available)
        need = f"about {estimate_bytes(flow, order) / 2**30:.3g} GiB" if order < 1000 else "more than any machine has"
        raise ModelError(
            "order",
            order,
            f"up to {fits} in the {available / 2**30:.3g} GiB free here: this one needs {need} of memory",
        )
