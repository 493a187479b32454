"""Joint moments of general matrices: Ginibre, products of two, values, beside symmetric ones; and starts of them.

Held against sums over all pairings, crossing or not, of Gaussian entries, in which the powers of d are counted by
identifying indices; against numbers known in closed form; and against sampled matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from tracewords.errors import ModelError
from tracewords.runtime.free import Ginibre, GinibreProduct, Law, MarchenkoPastur, Semicircle, law_from_data
from tracewords.runtime.initial import check_moments, empirical_moments, free_moments, initial_moments, load_matrices
from tracewords.runtime.start import Start, start_from

S1 = ("S1", "S1'", "S1uu", "S1vv")
LAWS: dict[str, Any] = {
    "S1": ("ginibre-product", {"ratio": "1/2"}),
    "S2": ("ginibre", {"variance": "2/3"}),
    "S3": ("marchenko-pastur", {"ratio": "3/2"}),
    "S4": ("semicircle", {"variance": "5/4"}),
    "V1": ("ginibre", {"ratio": "2/5", "variance": 3}),
    "V2": ("ginibre", {"ratio": "2/5"}),
}
LETTERS = (*S1, "S2", "S2'", "S3", "S4", "V1", "V1'", "V2", "V2'")
SQUARE = LETTERS[:8]


def moment(word: str, laws: Any = LAWS, letters: Sequence[str] = LETTERS) -> Fraction:
    """One word, computed apart from others."""
    return free_moments([word], letters, laws)[word]


# -- all pairings -----------------------------------------------------------------------------------------

HALF, PRODUCT = Fraction(1, 2), {"S": ("U", "V'"), "S'": ("V", "U'"), "Suu": ("U", "U'"), "Svv": ("V", "V'")}
# variance, columns in units of d; X is a symmetric Gaussian matrix
GAUSSIAN = {
    **{"U": (1, HALF), "V": (1, HALF), "G": (Fraction(2, 3), 1), "W": (1, Fraction(3, 2))},
    **{"X": (Fraction(5, 4), 1), "P": (3, Fraction(2, 5)), "Q": (1, Fraction(2, 5))},
}
IN_ENTRIES = {
    **{name.replace("S", "S1"): factors for name, factors in PRODUCT.items()},
    **{"S2": ("G",), "S2'": ("G'",), "S3": ("W", "W'"), "S4": ("X",)},
    **{"V1": ("P",), "V1'": ("P'",), "V2": ("Q",), "V2'": ("Q'",)},
}


def pairings(items: list[int]) -> Iterator[list[tuple[int, int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for i, second in enumerate(rest):
        for others in pairings(rest[:i] + rest[i + 1 :]):
            yield [(first, second), *others]


def loops(joins: list[tuple[int, int]], ends: int) -> list[int]:
    """One representative of each class of ends that are joined."""
    root = list(range(ends))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for a, b in joins:
        root[find(a)] = find(b)
    return [i for i in range(ends) if find(i) == i]


def by_pairings(word: str) -> Fraction:
    """``lim E Tr / d`` by Wick's theorem on entries: every pairing, sums over indices, leading power of d.

    Factor n has the ends 2 n (row of the unprimed matrix) and 2 n + 1 (its column); factor n's last index is factor
    n + 1's first.  A pair sets row = row and column = column; of a symmetric matrix also row = column.
    """
    names = [f for letter in word.split(".") for f in IN_ENTRIES[letter]]
    base = [f.rstrip("'") for f in names]
    n = len(names)
    left = [2 * i + f.endswith("'") for i, f in enumerate(names)]
    right = [2 * i + (not f.endswith("'")) for i, f in enumerate(names)]
    cyclic = [(right[i], left[(i + 1) % n]) for i in range(n)]
    total = Fraction(0)
    for pairing in pairings(list(range(n))):
        if n % 2 or any(base[a] != base[b] for a, b in pairing):
            continue
        weight = math.prod(Fraction(GAUSSIAN[base[a]][0]) for a, _ in pairing)
        straight = [((2 * a, 2 * b), (2 * a + 1, 2 * b + 1)) for a, b in pairing]
        crossed = [((2 * a, 2 * b + 1), (2 * a + 1, 2 * b)) if base[a] == "X" else None for a, b in pairing]
        choices = [[s] + ([c] if c else []) for s, c in zip(straight, crossed, strict=True)]
        for choice in itertools.product(*choices):
            free = loops(cyclic + [join for pair in choice for join in pair], 2 * n)
            assert len(free) <= n // 2 + 1  # no more powers of d than the planar pairings have
            if len(free) == n // 2 + 1:
                sizes = (GAUSSIAN[base[end // 2]][1] if end % 2 else 1 for end in free)
                total += weight * math.prod(Fraction(size) for size in sizes)
    return total


def is_path(word: Sequence[str]) -> bool:
    """Whether values and transposed values alternate as a closed path does."""
    ends = [("r" if k in ("V1'", "V2'") else "d", "r" if k in ("V1", "V2") else "d") for k in word]
    return all(a[1] == b[0] for a, b in zip(ends, ends[1:] + ends[:1], strict=True))


def test_all_pairings_of_short_words() -> None:
    words = [w for n in (1, 2, 3) for w in itertools.product(LETTERS, repeat=n) if is_path(w)]
    found = {word: by_pairings(word) for word in map(".".join, words)}
    assert len(found) > 500
    assert sum(value != 0 for value in found.values()) > 100
    assert free_moments(found, LETTERS, LAWS) == found


@pytest.mark.parametrize(
    "word",
    [
        *("S1.S1'.S1.S1'", "S1uu.S1.S1vv.S1'", "S1uu.S1uu.S1uu.S1", "S1uu.S1.S3.S1'", "S1.S4.S1'.S4"),
        *("S1uu.S3.S1uu.S3", "S1uu.S4.S4.S1.S1'", "S2.S1.S2'.S1'", "S2.S1uu.S2'.S1vv", "S2.S2'.S2.S2'.S2.S2'"),
        *("S2.S2.S2'.S2'", "S3.S4.S3.S4", "V1.V1'.V1.V1'", "V1.V2'.V2.V1'", "V1'.V1.V2'.V2", "V1.V2'.S3.V2.V1'"),
        *("V1'.S1uu.V1.V2'.V2", "V1'.S2.V1.V1'.S2'.V1"),
    ],
)
def test_all_pairings_of_longer_words(word: str) -> None:
    assert moment(word) == by_pairings(word)


words_of_entries = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=5).filter(
    lambda w: is_path(w) and sum(len(IN_ENTRIES[k]) for k in w) <= 8
)


@settings(max_examples=40, deadline=None)
@given(words_of_entries)
def test_all_pairings_of_any_words(word: list[str]) -> None:
    assert moment(".".join(word)) == by_pairings(".".join(word))


# -- known numbers ----------------------------------------------------------------------------------------


def test_square_product_gives_fuss_catalan_numbers() -> None:
    laws = {"S": ("ginibre-product", {})}
    for n in range(1, 10):
        assert moment(".".join(["S.S'"] * n), laws, ("S", "S'")) == math.comb(3 * n, n) // (2 * n + 1)


@pytest.mark.parametrize("ratio", ["1/3", 1, 2.5])
def test_rectangular_product_gives_its_polynomials(ratio: Any) -> None:
    """By Lagrange inversion of ``x = z / ((1+z) (1+rho z)^2)``, which gives ``Tr / r``; ``Tr / d`` is rho times it."""
    rho = Fraction(ratio)
    laws = {"S": ("ginibre-product", {"ratio": ratio})}
    for n in range(1, 8):
        terms = (math.comb(n, n - 1 - k) * math.comb(2 * n, k) * rho**k for k in range(n))
        assert moment(".".join(["S.S'"] * n), laws, ("S", "S'")) == rho * sum(terms) / n


@pytest.mark.parametrize("ratio", ["1/3", 1, 2.5])
def test_composites_and_values_give_narayana_polynomials(ratio: Any) -> None:
    rho = Fraction(ratio)
    laws = {"S": ("ginibre-product", {"ratio": ratio, "scale": -2}), "V": ("ginibre", {"ratio": ratio, "variance": 2})}
    for n in range(1, 9):
        narayana = sum(Fraction(math.comb(n, k) * math.comb(n, k - 1), n) * rho**k for k in range(1, n + 1))
        for word in ("Suu", "Svv", "V.V'"):
            assert moment(".".join([word] * n), laws, (*S1, "Suu", "Svv", "V", "V'")[4:]) == 2**n * narayana


def test_order_parameters_at_the_start() -> None:
    """Omega = tr(S S') = rho, Psi = 0, no mean, no overlap with others; tr(V V') = variance rho."""
    zero = ("S1", "S1.S1", "S1.S2", "S1.S2'", "S1.S3", "S1uu.S1", "V1.V2'", "S2.S2")
    assert {w: moment(w) for w in zero} == dict.fromkeys(zero, 0)
    assert moment("S1.S1'") == HALF
    assert (moment("S2.S2'"), moment("V1.V1'"), moment("1")) == (Fraction(2, 3), Fraction(6, 5), 1)
    assert (moment("S1uu.S1vv"), moment("S1uu.S1uu")) == (HALF**2, HALF + HALF**2)


def test_circular_moments_count_noncrossing_pairings() -> None:
    def count(word: str) -> int:
        if not word:
            return 1
        return sum(count(word[1:j]) * count(word[j + 1 :]) for j, k in enumerate(word) if j and k != word[0])

    for word in map("".join, itertools.product("x*", repeat=8)):
        text = ".".join("S2" if k == "x" else "S2'" for k in word)
        assert moment(text) == Fraction(2, 3) ** 4 * count(word), word


def test_a_product_with_equal_factors_is_symmetric() -> None:
    laws = {"S1": ("marchenko-pastur", {}), "S2": ("ginibre", {})}
    assert {moment(w, laws, LETTERS[:6]) for w in ("S1.S1'", "S1uu.S1vv", "S1'.S1uu", "S1.S1")} == {Fraction(2)}
    assert moment("S1uu.S2.S1'.S2'", laws, LETTERS[:6]) == 1


# -- structure --------------------------------------------------------------------------------------------

BLOCKS = [S1, ("S2", "S2'"), ("S3",), ("S4",)]
elements = st.integers(0, 3).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.sampled_from(BLOCKS[k]), min_size=1, max_size=2))
)


@settings(max_examples=40, deadline=None)
@given(st.lists(elements, min_size=2, max_size=4))
def test_different_matrices_are_free(parts: list[tuple[int, list[str]]]) -> None:
    """Products of centred elements, neighbours (cyclically) of different matrices, have no trace."""
    parts = [p for i, p in enumerate(parts) if p[0] != parts[i - 1][0]]
    if len(parts) < 2 or parts[0][0] == parts[-1][0]:
        return
    means = [moment(".".join(word)) for _, word in parts]
    total = Fraction(0)
    for kept in itertools.product((True, False), repeat=len(parts)):
        text = ".".join(k for (_, word), keep in zip(parts, kept, strict=True) if keep for k in word) or "1"
        total += math.prod(-m for m, keep in zip(means, kept, strict=True) if not keep) * moment(text)
    assert total == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=9).filter(is_path), st.integers(0, 8))
def test_rotation_and_transposition_do_not_change_a_moment(word: list[str], turn: int) -> None:
    turn %= len(word)
    transposed = {k: k for k in LETTERS} | {k: k[:-1] for k in LETTERS if k[-1] == "'"}
    transposed |= {k[:-1]: k for k in LETTERS if k[-1] == "'"}
    forms = [word, word[turn:] + word[:turn], [transposed[k] for k in reversed(word)]]
    # apart, so that none is found because another was computed
    assert len({moment(".".join(form)) for form in forms}) == 1


def test_moments_are_moments_of_matrices() -> None:
    words = [".".join(w) for n in range(1, 6) for w in itertools.product((*S1, "S3"), repeat=n)]
    values = free_moments(words, (*S1, "S3"), LAWS)
    check_moments(values, (*S1, "S3"), ("S1uu", "S1vv", "S3"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "letters", "laws", "named"),
    [
        ("V1.V1", LETTERS, LAWS, "word: 'V1.V1'"),
        ("V1.S3.V1'", LETTERS, LAWS, 'word: "V1.S3.V1\'"'),
        ("V1", LETTERS, LAWS, "word: 'V1'"),
        ("S2uu", ("S2uu",), LAWS, "initial.S2: 'ginibre'"),
        ("S5uu", ("S5uu",), LAWS, "initial.S5uu: 'nothing'"),
        ("S1uu'", LETTERS, LAWS, "word: "),
        ("S2", LETTERS, LAWS | {"S2": ("ginibre", {"shift": 1})}, "initial.S2.shift: 1"),
        ("S2", LETTERS, LAWS | {"S2": ("ginibre", {"variance": -1})}, "initial.S2.variance: -1"),
        ("S1", LETTERS, LAWS | {"S1": ("ginibre-product", {"ratio": 0})}, "initial.S1.ratio: 0"),
    ],
)
def test_bad_requests_are_refused(word: str, letters: Sequence[str], laws: Any, named: str) -> None:
    with pytest.raises(ModelError) as error:
        free_moments([word], letters, laws)
    assert str(error.value).replace("Fraction(1, 1)", "1").startswith(named)


# -- samples and norms ------------------------------------------------------------------------------------


def test_forms_of_samples() -> None:
    rng = np.random.default_rng(0)
    law = GinibreProduct(ratio=0.5)
    shapes = {k: a.shape for k, a in law.sample(6, rng, kind="untied").items()}
    assert shapes == {"U": (6, 3), "V": (6, 3)}
    assert law.sample(6, rng, np.float32, "direct")["S"].dtype == np.float32
    assert Ginibre().sample(6, rng, kind="direct")["S"].shape == (6, 6)
    assert Ginibre(ratio=0.5).sample(6, rng, kind="values")["V"].shape == (6, 3)
    both = MarchenkoPastur().sample(6, rng, kind="untied")
    np.testing.assert_array_equal(both["U"], both["V"])
    assert set(Semicircle().sample(6, rng, kind="direct")) == {"S"}
    for refused, kind in ((law, "tied"), (Ginibre(), "untied"), (Ginibre(ratio=2), "direct"), (Semicircle(), "untied")):
        with pytest.raises(ModelError, match=r"^initial"):
            refused.sample(6, rng, kind=kind)
    with pytest.raises(ModelError, match=r"ratio.*one column"):
        GinibreProduct(ratio=0.01).sample(6, rng, kind="untied")
    with pytest.raises(ModelError, match="real spectrum"):
        law.support()
    with pytest.raises(ModelError, match=r"initial\.S1: 'ginibre'.*tied"):
        law_from_data("S1", ("ginibre", {}), "tied")


def test_norms_known_in_closed_form() -> None:
    assert GinibreProduct().operator_norm() == pytest.approx(math.sqrt(27 / 4), rel=1e-14)
    assert GinibreProduct(ratio="1/4", scale=-2).operator_norm("uu") == pytest.approx(2 * 1.5**2)
    assert Ginibre(variance=4).operator_norm("'") == 4.0
    assert Ginibre(variance=0).operator_norm() == 0.0


@pytest.mark.parametrize("ratio", ["1/5", 1, 3])
def test_product_norm_is_the_growth_of_moments(ratio: Any) -> None:
    """m_n grows like edge^n n^(-3/2): the ratio of two, so corrected and extrapolated, is the edge."""
    n = 60
    laws = {"S": ("ginibre-product", {"ratio": ratio})}
    texts = [".".join(["S.S'"] * k) for k in (n // 2, n // 2 + 1, n, n + 1)]
    m = list(free_moments(texts, ("S", "S'"), laws).values())
    rates = [float(m[i + 1] / m[i]) * ((k + 1) / k) ** 1.5 for i, k in ((0, n // 2), (2, n))]
    edge = rates[1] + (rates[1] - rates[0]) / 3  # the correction is of order 1 / n^2
    assert math.sqrt(edge) == pytest.approx(GinibreProduct(ratio=ratio).operator_norm(), rel=1e-4)


@pytest.mark.statistical
@threadpool_limits.wrap(limits=1)  # threads that wait for each other on a busy machine cost more than they save
def test_sampled_matrices_have_these_moments_and_norms() -> None:
    """Mean of 6 seeds at d = 300 within 4 standard errors plus the finite-size bias, n^2 / d of the absolute moment.

    The edge fluctuates by d^(-2/3), 2 %: norms within 4 %.
    """
    d, seeds = 300, 6
    kinds = {"S1": "untied", "S2": "direct", "S3": "tied", "S4": "symmetric", "V1": "values", "V2": "values"}
    start = Start({k: law_from_data(k, law) for k, law in LAWS.items()}, kinds=kinds)
    words = [
        *("S1", "S1.S1'", "S1.S1", "S1uu.S1uu", "S1uu.S1vv", "S1uu.S1.S1vv.S1'", "S1.S1.S1'.S1'", "S1.S1'.S1.S1'"),
        *("S1uu.S2.S1vv.S2'", "S1.S3.S1'.S3", "S2.S2'.S3", "S2.S2'.S2.S2'", "S1uu.S4.S1uu.S4", "S1uu.S4.S4", "S1.S2"),
        *("V1.V1'", "V1.V2'", "V1'.V1.V2'.V2", "V1.V1'.V1.V1'", "V1.V1'.S3.V2.V2'.S3"),
    ]
    samples, norms = [], []
    for seed in range(seeds):
        matrices = start.matrices(d, np.random.default_rng(seed))
        samples.append(empirical_moments(matrices, words))
        norms.append({k: float(np.linalg.norm(m, 2)) for k, m in matrices.items()})
    expected = start.values(words)
    error = np.abs(np.mean(samples, axis=0) - expected)
    standard = np.std(samples, axis=0, ddof=1) / math.sqrt(seeds)
    bias = np.array([(word.count(".") + 1) ** 2 for word in words]) / d * np.abs(expected)
    assert (error <= 4 * standard + bias).all(), dict(zip(words, (error / (4 * standard + bias)), strict=True))
    assert (standard < 0.02 * np.maximum(np.abs(expected), 1)).all()
    predicted = start.norms()
    assert predicted is not None
    for letter in norms[0]:
        assert np.mean([n[letter] for n in norms]) == pytest.approx(predicted[letter], rel=0.04), letter


# -- starts -----------------------------------------------------------------------------------------------

KINDS = {"S1": "untied", "V1": "values", "S2": "direct", "V2": "values"}


def solver(**changes: Any) -> Any:
    """What a start reads of a solver with an untied student, a direct teacher, and values."""
    letters = (*S1, "V1", "V1'", "S2", "S2'", "V2", "V2'")
    attributes: dict[str, Any] = {
        "LETTERS": tuple(KINDS),
        "WORD_LETTERS": letters,
        "KINDS": KINDS,
        "RANK_RATIOS": {"S1": 0.5, "V1": 0.5, "S2": 1.0, "V2": 0.5},
        "LAWS": {
            "S1": ("ginibre-product", {"ratio": 0.5}),
            "V1": ("ginibre", {"ratio": 0.5}),
            "S2": ("ginibre", {}),
            "V2": ("ginibre", {"ratio": 0.5, "variance": 2.0}),
        },
        "ORDER_PARAMETERS": ("S1.S1'", "S1.S1", "S1.S2'", "V1.V1'", "V1.V2'", "V2.V2'"),
        "WORDS": ("S1uu", "S1.S1'", "S1.S1", "S1.S2'", "S1'.S1'.S2", "V1.V1'", "V1.V2'", "V2.V2'"),
    }
    return SimpleNamespace(**attributes | changes)


def matrices(d: int = 8, seed: int = 0) -> dict[str, Any]:
    """Factors of that solver's matrices."""
    rng = np.random.default_rng(seed)
    u, v, first, second = rng.standard_normal((4, d, 3))
    return {"S1": (u, v), "V1": first, "S2": rng.standard_normal((d, d)), "V2": second}


def test_start_from_laws_of_the_model_and_of_the_user() -> None:
    s = solver()
    start = start_from(s)
    assert start.values(s.WORDS).tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 1.0]
    # a law without ratio has the model's
    start = start_from(s, laws={"V1": ("ginibre", {"variance": 3}), "S1": ("ginibre-product", {"scale": 2})})
    assert start.values(["V1.V1'", "S1.S1'"]).tolist() == [1.5, 2.0]
    drawn = start.sample(8, np.random.default_rng(1))
    assert [np.shape(drawn[k]) for k in KINDS] == [(2, 8, 4), (8, 4), (8, 8), (8, 4)]
    both = start.matrices(8, np.random.default_rng(1))
    assert set(both) == {"S1", "S1uu", "S1vv", "V1", "S2", "V2"}
    np.testing.assert_array_equal(both["S1"], drawn["S1"][0] @ drawn["S1"][1].T)
    norms = start.norms()
    assert norms is not None
    assert set(norms) == set(s.WORD_LETTERS)
    assert norms["S1uu"] == pytest.approx(2 * (1 + math.sqrt(0.5)) ** 2)


def test_start_from_matrices() -> None:
    s, factors = solver(), matrices()
    start = start_from(s, factors=factors)
    u, v = factors["S1"]
    product = u @ v.T
    expected = {
        "S1uu": np.trace(u @ u.T),
        "S1'.S1'.S2": np.trace(product.T @ product.T @ factors["S2"]),
        "V1.V2'": np.trace(factors["V1"] @ factors["V2"].T),
    }
    np.testing.assert_allclose(start.values(list(expected)), [x / 8 for x in expected.values()])
    norms = start.norms()
    assert norms is not None
    assert norms["S1'"] == pytest.approx(np.linalg.norm(product, 2))
    assert norms["S1vv"] == pytest.approx(np.linalg.norm(v, 2) ** 2)
    assert start.sample(3, np.random.default_rng())["S1"][1] is v


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"S1": np.eye(8)}, "matrix S1: 'a ndarray' cannot be used; accepted: a pair"),
        ({"S1": (np.ones((8, 3)), np.ones((8, 2)))}, "matrix S1: 'U of shape (8, 3), V of shape (8, 2)'"),
        ({"S1": (np.ones((7, 3)), np.ones((7, 3)))}, "matrix V1: '8 rows'"),
        ({"S2": np.ones((8, 3))}, "matrix S2: 'shape (8, 3)'"),
        ({"S2": np.full((8, 8), np.nan)}, "matrix S2: 'entries NaN"),
        ({"V1": np.ones(8)}, "matrix V1: 'float64 array of shape (8,)'"),
        ({"V2": np.ones((8, 4))}, "matrix V2: '4 columns' cannot be used; accepted: 3 columns, as V1"),
        ({"S3": np.eye(8)}, "matrix: 'S1, V1, S2, V2, S3'"),
    ],
)
def test_bad_matrices_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as error:
        start_from(solver(), factors=matrices() | changes)
    assert str(error.value).startswith(named)
    with pytest.raises(ModelError, match="symmetric"):
        start_from(solver(LETTERS=("S2",), KINDS={"S2": "symmetric"}), factors={"S2": np.arange(4.0).reshape(2, 2)})


@pytest.mark.parametrize(
    ("laws", "named"),
    [
        ({"S1": ("ginibre", {})}, "initial.S1: 'ginibre'"),
        ({"S1": ("semicircle", {})}, "initial.S1: 'smallest eigenvalue -2'"),
        ({"S2": ("ginibre", {"ratio": 2})}, "initial.S2.ratio: "),
        ({"V1": ("identity", {})}, "initial.V1: 'identity with 1 d columns'"),
        ({"V1": ("ginibre", {"ratio": 1})}, "initial.V1: 'ginibre with 1 d columns'"),
        ({"V3": ("identity", {})}, "initial.V3: "),
    ],
)
def test_laws_of_the_wrong_kind_are_refused(laws: Any, named: str) -> None:
    with pytest.raises(ModelError) as error:
        start_from(solver(), laws=laws)
    assert str(error.value).startswith(named)


def test_start_from_moments() -> None:
    s = solver()
    start = start_from(s, factors=matrices())
    given_words = ["S1uu", "S1'.S1", "S1'.S1'", "S2.S1'", "S2'.S1.S1", "V1'.V1", "V2.V1'", "V2.V2'"]
    moments = dict(zip(given_words, start.values(given_words), strict=True))
    np.testing.assert_allclose(start_from(s, moments=moments).values(s.WORDS), start.values(s.WORDS))
    for changes, expected in (
        ({"V2.V1'": 50.0}, "tr(V2.V2') tr(V1.V1') >= tr(V1.V2')^2"),
        ({"V1'.V1": -1.0}, "tr(V1.V1') >= 0"),
        ({"S1uu": -1.0}, "tr(S1uu) >= 0"),
        ({"S1.S1'": 99.0}, "as for the same cyclic word"),
        ({"S3": 1.0}, "word: 'S3'"),
    ):
        with pytest.raises(ModelError) as error:
            start_from(s, moments=moments | changes)
        assert expected in str(error.value)


def test_solvers_without_letters_of_words_still_start() -> None:
    s = solver(LETTERS=("S1", "S2"), KINDS={"S1": "tied", "S2": "tied"}, ORDER_PARAMETERS=(), WORDS=())
    s.LAWS = {"S1": ("marchenko-pastur", {}), "S2": ("marchenko-pastur", {})}
    del s.WORD_LETTERS, s.RANK_RATIOS
    start = start_from(s)
    assert start.values(["S1.S1", "S1.S2"]).tolist() == [2.0, 1.0]
    assert start.norms() == {"S1": 4.0, "S2": 4.0}
    assert start.sample(5, np.random.default_rng(0))["S1"].shape == (5, 5)
    assert Start(laws={"A": Ginibre()}, kinds={"A": "direct"}).values(["A.A'"]) == [1.0]
    assert initial_moments(["A.A'", "Auu.A.Avv"], {"A": GinibreProduct()}).tolist() == [1.0, 0.0]


# -- files ------------------------------------------------------------------------------------------------


def test_matrices_out_of_files(tmp_path: Path) -> None:
    factors = matrices()
    np.savez(tmp_path / "s1.npz", U=factors["S1"][0], V=factors["S1"][1])
    for k in ("V1", "S2", "V2"):
        np.save(tmp_path / f"{k.lower()}.npy", factors[k])
    paths = {k: tmp_path / f"{k.lower()}.np{'z' if k == 'S1' else 'y'}" for k in KINDS}
    got = load_matrices(paths, KINDS, factors=True)
    np.testing.assert_array_equal(got["S1"], factors["S1"])
    np.testing.assert_array_equal(got["V2"], factors["V2"])
    words = solver().WORDS
    np.testing.assert_array_equal(
        start_from(solver(), factors=got).values(words), start_from(solver(), factors=factors).values(words)
    )
    u, v = factors["S1"]
    np.testing.assert_array_equal(load_matrices(paths, KINDS)["S1"], u @ v.T)
    np.save(tmp_path / "s2.npy", np.eye(3))
    with pytest.raises(ModelError, match="matrix S2: '3 rows' cannot be used; accepted: 8 rows, as S1"):
        load_matrices(paths, KINDS)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"U": np.eye(2)}, "arrays U"),
        ({"U": np.eye(2), "W": np.eye(2)}, "arrays U, W"),
        ({"U": np.eye(2), "V": np.ones((2, 3))}, "the same shape"),
        ({"U": np.eye(2), "V": np.array([[np.nan]])}, "S1: V: '1 entries NaN"),
        ({"U": np.eye(2), "V": np.array([[{}]], dtype=object)}, "not arrays of numbers"),
        (b"PK\x03\x04 not an archive", "an .npz archive"),
        (None, "an .npz archive"),
    ],
)
def test_bad_archives_are_refused(tmp_path: Path, content: Any, expected: str) -> None:
    path = tmp_path / "s1.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(ModelError) as error:
        load_matrices({"S1": path}, {"S1": "untied"})
    assert str(error.value).startswith("matrix S1: ")
    assert expected in str(error.value)


def test_laws_are_compared_by_their_parameters() -> None:
    laws: list[Law] = [Ginibre(variance=2), law_from_data("S1", ("ginibre", {"variance": 2.0})), Ginibre()]
    assert laws[0] == laws[1] != laws[2]
