"""Words against brute force, group theory and counts computed elsewhere."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewords.derive.words import Alphabet, Letter, count_words
from tracewords.errors import ModelError

DATA = json.loads((Path(__file__).parent / "data" / "attention_indexed.json").read_text())
ALPHABETS = {
    "two symmetric": Alphabet([Letter("S1"), Letter("S2")]),
    "three symmetric": Alphabet([Letter("A"), Letter("B"), Letter("C")]),
    "one general": Alphabet([Letter("S", symmetric=False)]),
    "general and symmetric": Alphabet([Letter("S", symmetric=False), Letter("T")]),
    "rectangular": Alphabet([Letter("U", False, "d", "r"), Letter("V", False, "d", "r"), Letter("T", False)]),
}
alphabets = st.sampled_from(list(ALPHABETS.values()))


@st.composite
def words(draw: st.DrawFn) -> tuple[Alphabet, tuple[int, ...]]:
    """An alphabet of square letters and a word in it."""
    alphabet = draw(st.sampled_from([a for n, a in ALPHABETS.items() if n != "rectangular"]))
    word = draw(st.lists(st.integers(0, len(alphabet) - 1), min_size=1, max_size=12))
    return alphabet, tuple(word)


def brute_force(alphabet: Alphabet, length: int) -> int:
    """Orbits of all closed words under rotation and transposition, one by one."""
    seen: set[tuple[int, ...]] = set()
    orbits = 0
    for word in product(range(len(alphabet)), repeat=length):
        if word in seen or not alphabet.closed(word):
            continue
        orbits += 1
        star = tuple(alphabet.adjoint[k] for k in reversed(word))
        seen |= {w[i:] + w[:i] for w in (word, star) for i in range(length)}
    return orbits


@pytest.mark.parametrize("name", ALPHABETS)
def test_enumeration_finds_every_orbit_once(name: str) -> None:
    alphabet = ALPHABETS[name]
    found = alphabet.enumerate(7)
    for length in range(1, 8):
        words = [alphabet.unpack(int(w), length) for w in found.get(length, [])]
        assert len(set(words)) == len(words) == brute_force(alphabet, length)
        assert all(alphabet.canonical(w) == w for w in words)
        assert words == sorted(words)


def test_counts_agree_with_independent_tables() -> None:
    two = ALPHABETS["two symmetric"].enumerate(14)
    assert [len(two[n]) for n in range(1, 15)] == DATA["bracelets_two_letters"]
    three = ALPHABETS["three symmetric"].enumerate(9)
    assert [len(three[n]) for n in range(1, 10)] == DATA["bracelets_three_letters"]
    assert sum(len(v) for n, v in two.items() if n <= 13) == 938


@given(st.integers(1, 9), st.integers(1, 4), st.data())
def test_burnside_formula(length: int, letters: int, data: st.DataObject) -> None:
    symmetric = data.draw(st.sampled_from(range(letters % 2, letters + 1, 2)))
    alphabet = Alphabet(
        [Letter(f"S{i}") for i in range(symmetric)]
        + [Letter(f"R{i}", symmetric=False) for i in range((letters - symmetric) // 2)]
    )
    assert len(alphabet.enumerate(length)[length]) == count_words(length, letters, symmetric)


@given(words(), st.integers(0, 11))
def test_canonical_form_sees_no_rotation_and_no_transposition(
    pair: tuple[Alphabet, tuple[int, ...]], turn: int
) -> None:
    alphabet, word = pair
    turn %= len(word)
    least = alphabet.canonical(word)
    assert alphabet.canonical(word[turn:] + word[:turn]) == least
    assert alphabet.canonical(alphabet.star(word)) == least
    assert alphabet.canonical(least) == least


@given(words(), st.integers(0, 2**32))
def test_equal_keys_mean_equal_traces(pair: tuple[Alphabet, tuple[int, ...]], seed: int) -> None:
    alphabet, word = pair
    rng = np.random.default_rng(seed)
    matrices: list[np.ndarray] = []
    for letter in alphabet.letters:
        if letter.name.endswith("'"):
            matrices.append(matrices[-1].T)
        else:
            x = rng.standard_normal((4, 4)) / 2
            matrices.append((x + x.T) / 2 if letter.symmetric else x)

    def trace(w: tuple[int, ...]) -> float:
        total = np.eye(4)
        for k in w:
            total = total @ matrices[k]
        return float(np.trace(total))

    assert trace(alphabet.canonical(word)) == pytest.approx(trace(word), rel=1e-9, abs=1e-9)


@given(words())
def test_packed_and_plain_agree(pair: tuple[Alphabet, tuple[int, ...]]) -> None:
    alphabet, word = pair
    packed = alphabet.pack(word)
    assert alphabet.unpack(packed, len(word)) == word
    least = alphabet.canonical_packed(np.array([packed]), len(word))[0]
    assert alphabet.unpack(int(least), len(word)) == alphabet.canonical(word)
    assert alphabet.parse(alphabet.text(word)) == word


def test_reversal_also_transposes() -> None:
    alphabet = Alphabet([Letter("S", symmetric=False), Letter("R", symmetric=False)])
    forward = alphabet.parse("S.R.S'.S")
    assert alphabet.canonical(forward) != alphabet.canonical(tuple(reversed(forward)))
    assert alphabet.canonical(forward) == alphabet.canonical(alphabet.parse("S'.S.R'.S'"))


def test_rectangular_words_are_closed_paths() -> None:
    alphabet = Alphabet([Letter("W", False, "d", "r")], unit=2)
    texts = {n: [alphabet.text(alphabet.unpack(int(w), n)) for w in ws] for n, ws in alphabet.enumerate(2).items()}
    assert texts == {2: ["W.W'"], 4: ["W.W'.W.W'"]}
    with pytest.raises(ModelError, match="closed path"):
        alphabet.parse("W.W")


def test_unknown_letter_is_named() -> None:
    with pytest.raises(ModelError, match=r"S1\.X"):
        ALPHABETS["two symmetric"].parse("S1.X")
