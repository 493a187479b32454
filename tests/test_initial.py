"""Initial laws, free and empirical moments, and the conditions that moments of matrices obey.

The free moments are held against numbers computed elsewhere, against a sum over all set partitions, against
freeness itself (alternating products of centred elements vanish), and against sampled matrices.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewords.errors import ModelError
from tracewords.runtime.free import (
    Eigenvalues,
    Law,
    MarchenkoPastur,
    Semicircle,
    build_laws,
    exact,
    law_from_data,
    moments_to_free_cumulants,
)
from tracewords.runtime.initial import (
    check_moments,
    empirical_moments,
    free_moments,
    initial_moments,
    load_matrices,
)

LETTERS = ("S1", "S2")
MP1 = {"S1": ("marchenko-pastur", {"ratio": 1.0}), "S2": ("marchenko-pastur", {"ratio": 1.0})}
KNOWN = json.loads((Path(__file__).parent / "data" / "free_moments_mp1.json").read_text())["moments"]


def dotted(digits: str) -> str:
    """``"112"`` to ``"S1.S1.S2"``."""
    return ".".join(f"S{k}" for k in digits)


def all_words(longest: int, letters: str = "12") -> list[str]:
    """All linear words of lengths 1 .. longest."""
    return [dotted("".join(w)) for n in range(1, longest + 1) for w in itertools.product(letters, repeat=n)]


def one_line(error: pytest.ExceptionInfo[ModelError]) -> str:
    """The sentence of an error, checked to be a single line."""
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


# -- free moments -----------------------------------------------------------------------------------------


def test_known_numbers_are_met_exactly() -> None:
    got = free_moments([dotted(w) for w in KNOWN], LETTERS, MP1)
    assert got == {dotted(w): value for w, value in KNOWN.items()}
    assert all(isinstance(value, Fraction) for value in got.values())


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    head, *rest = items
    for smaller in set_partitions(rest):
        yield [[head], *smaller]
        for i, block in enumerate(smaller):
            yield [*smaller[:i], [head, *block], *smaller[i + 1 :]]


def crosses(a: list[int], b: list[int]) -> bool:
    return any(
        i < j < k < l
        for x, y in ((a, b), (b, a))
        for i, k in itertools.combinations(sorted(x), 2)
        for j, l in itertools.product(y, repeat=2)
    )


class Generic(Law):
    """Any free cumulants, without a matrix behind them."""

    def __init__(self, cumulants: list[Fraction]) -> None:
        object.__setattr__(self, "given", cumulants)

    def free_cumulants(self, n: int) -> list[Fraction]:
        return self.given[:n]


def test_sum_over_all_set_partitions_with_generic_cumulants() -> None:
    rng = np.random.default_rng(5)
    kappa = {
        k: [Fraction(int(a), int(b)) for a, b in zip(rng.integers(-9, 10, 7), rng.integers(1, 8, 7), strict=True)]
        for k in "123"
    }
    laws = {f"S{k}": Generic(values) for k, values in kappa.items()}
    words = ["1", "13", "1212", "12312", "112233", "121323", "1122121", "1213213", "1111111"]
    for word in words:
        expected = Fraction(0)
        for partition in set_partitions(list(range(len(word)))):
            one_letter = all(len({word[i] for i in block}) == 1 for block in partition)
            if one_letter and not any(crosses(a, b) for a, b in itertools.combinations(partition, 2)):
                expected += math.prod(kappa[word[block[0]]][len(block) - 1] for block in partition)
        assert free_moments([dotted(word)], tuple(laws), laws)[dotted(word)] == expected


@pytest.mark.parametrize("ratio", [1, 0.5, "7/3"])
def test_one_marchenko_pastur_letter_gives_narayana_polynomials(ratio: int | float | str) -> None:
    rho = Fraction(ratio)
    for n in range(1, 15):
        narayana = sum(Fraction(math.comb(n, k) * math.comb(n, k - 1), n) * rho**k for k in range(1, n + 1))
        word = ".".join(["A"] * n)
        assert free_moments([word], ["A"], {"A": MarchenkoPastur(ratio=ratio)})[word] == narayana


def test_one_semicircle_letter_gives_catalan_numbers() -> None:
    for n in range(1, 15):
        word = ".".join(["A"] * n)
        catalan = 0 if n % 2 else math.comb(n, n // 2) // (n // 2 + 1) * Fraction(1, 4) ** (n // 2)
        assert free_moments([word], ["A"], {"A": Semicircle(variance=0.25)})[word] == catalan


def test_eigenvalue_list_gives_power_means() -> None:
    values: list[Any] = [Fraction(1, 3), 2, -1, 0.5, 0.5]
    law = Eigenvalues(values=values, scale=2, shift=Fraction(-1, 7))
    for n in range(1, 12):
        word = ".".join(["A"] * n)
        mean = sum((2 * Fraction(x) - Fraction(1, 7)) ** n for x in values) / 5
        assert free_moments([word], ["A"], {"A": law})[word] == mean


def test_floats_mean_the_rationals_that_print_or_round_to_them() -> None:
    cases = {
        0.1: "1/10",
        1 / 3: "1/3",
        0.7071067811865476: "0.7071067811865476",
        1e-9: "1/1000000000",
        -2.0: "-2",
    }
    assert {value: str(Fraction(text)) for value, text in cases.items()} == {v: str(exact(v, "x")) for v in cases}
    assert exact(np.float32(0.1), "x") == Fraction(1, 10)
    assert exact(np.int64(3), "x") == 3


rationals = st.fractions(min_value=-2, max_value=2, max_denominator=5)
spectra = st.lists(rationals, min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(spectra, spectra, st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=2))
def test_freeness_alternating_centred_products_vanish(a: list[Fraction], b: list[Fraction], runs: Any) -> None:
    laws = {"S1": Eigenvalues(values=a), "S2": Eigenvalues(values=b)}
    powers = [(letter, n) for pair in runs for letter, n in zip("12", pair, strict=True)]
    centre = {(k, n): sum(x**n for x in v) / Fraction(len(v)) for k, v in (("1", a), ("2", b)) for n in (1, 2, 3)}
    total = Fraction(0)
    for kept in itertools.product((True, False), repeat=len(powers)):
        word = "".join(k * n for (k, n), keep in zip(powers, kept, strict=True) if keep)
        text = dotted(word) or "1"
        sign = math.prod(-centre[p] for p, keep in zip(powers, kept, strict=True) if not keep)
        total += sign * free_moments([text], LETTERS, laws)[text]
    assert total == 0


@settings(max_examples=40, deadline=None)
@given(st.text("123", min_size=1, max_size=11), st.integers(0, 10), spectra, rationals)
def test_rotation_and_reversal_do_not_change_a_moment(
    word: str, turn: int, values: list[Fraction], shift: Fraction
) -> None:
    laws: dict[str, Law] = {
        "S1": Eigenvalues(values=values),
        "S2": MarchenkoPastur(ratio="3/2", shift=shift),
        "S3": Semicircle(variance=2, mean=shift),
    }
    turn %= len(word)
    forms = [dotted(word), dotted(word[turn:] + word[:turn]), dotted(word[::-1])]
    # apart, so that none is found because another was computed
    assert len({free_moments([form], tuple(laws), laws)[form] for form in forms}) == 1


def test_all_words_up_to_length_13_as_an_array() -> None:
    words = all_words(13)
    start = initial_moments(words, MP1)
    assert start.shape == (len(words),)
    assert start[words.index("S1.S1.S2.S2")] == 4.0
    assert start[words.index(".".join(["S1"] * 13))] == math.comb(26, 13) / 14
    fractions = initial_moments(["1", "S1.S2.S1.S2"], MP1, dtype=object)
    assert fractions.tolist() == [1, 3]


def test_cumulants_of_moments() -> None:
    # two equal points -1, 1: kappa_2n is (-1)^(n-1) times a Catalan number
    got = moments_to_free_cumulants([Fraction(1 - n % 2) for n in range(1, 9)])
    assert got == [0, 1, 0, -1, 0, 2, 0, -5]
    assert moments_to_free_cumulants([]) == []


# -- laws and samples -------------------------------------------------------------------------------------


def test_support_and_norm() -> None:
    assert MarchenkoPastur(ratio=4).support() == (1.0, 9.0)
    assert MarchenkoPastur(ratio=0.25, scale=2).support() == (0.0, 4.5)
    assert Semicircle(variance=4, mean=-1).operator_norm() == 5.0
    assert Eigenvalues(values=[1, -3], scale=-1, shift=1).support() == (0.0, 4.0)
    assert law_from_data("S1", ["identity", {"scale": 3}]).operator_norm() == 3.0
    assert law_from_data("S1", ("zero", {})).free_cumulants(3) == [0, 0, 0]


@pytest.mark.statistical
def test_sampled_matrices_have_free_moments() -> None:
    """Mean of 4 seeds at d = 400 within 4 standard errors plus the finite-size bias, n^2 / d relative."""
    laws = build_laws(
        {
            "S1": ("marchenko-pastur", {"ratio": 1.0}),
            "S2": ("marchenko-pastur", {"ratio": 0.5, "scale": 2}),
            "S3": ("semicircle", {"variance": 0.25, "mean": 1}),
        },
        {"S1": "tied", "S2": "tied", "S3": "tied"},
    )
    words = [
        "S1",
        "S1.S1",
        "S1.S2",
        "S1.S1.S2",
        "S1.S2.S1.S2",
        "S1.S1.S2.S2",
        "S1.S2.S3",
        "S1.S3.S2.S3",
        "S3.S3.S3",
    ]
    samples = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        factors = {k: law.sample(400, rng)["W"] for k, law in laws.items()}
        samples.append(empirical_moments({k: w @ w.T for k, w in factors.items()}, words))
    expected = initial_moments(words, laws)
    error = np.abs(np.mean(samples, axis=0) - expected)
    standard = np.std(samples, axis=0, ddof=1) / 2
    bias = np.array([(word.count(".") + 1) ** 2 for word in words]) / 400 * expected
    assert (error <= 4 * standard + bias).all()
    assert (error <= 0.03 * expected).all()


@pytest.mark.parametrize(
    "law",
    [
        Semicircle(variance=1, mean=2),
        Eigenvalues(values=[0, 1, 3, 4]),
        MarchenkoPastur(ratio=0.5, shift=0.1),
        law_from_data("S1", ("identity", {})),
        law_from_data("S1", ("zero", {})),
    ],
)
def test_both_forms_of_a_sample_agree(law: Law) -> None:
    w = law.sample(60, np.random.default_rng(1))["W"]
    s = law.sample(60, np.random.default_rng(1), np.float32, "symmetric")["S"]
    assert s.dtype == np.float32
    np.testing.assert_allclose(w @ w.T, s, atol=2e-6)
    low, high = law.support()
    values = np.linalg.eigvalsh(w @ w.T)
    assert values[0] >= low - 1e-9
    assert values[-1] <= high * 1.2 + 1e-9


def test_eigenvalue_sample_keeps_its_spectrum() -> None:
    given_values = [3, -1, 0.5, 2]
    matrix = Eigenvalues(values=given_values).sample(8, np.random.default_rng(2), kind="symmetric")["S"]
    np.testing.assert_allclose(np.linalg.eigvalsh(matrix), np.sort(np.repeat(given_values, 2)), atol=1e-12)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (("marchenko-pastur", {"ratio": 0.0}), "initial.S1.ratio"),
        (("marchenko-pastur", {"ratio": float("nan")}), "initial.S1.ratio"),
        (("marchenko-pastur", {"ratio": True}), "initial.S1.ratio"),
        (("marchenko-pastur", {"ratio": "1e999999999"}), "initial.S1.ratio"),
        (("marchenko-pastur", {"ratio": "1/0"}), "initial.S1.ratio"),
        (("marchenko-pastur", {"scale": None}), "initial.S1.scale"),
        (("marchenko-pastur", {"rho": 1}), "initial.S1.rho"),
        (("marchenko-pastur", {"scale": -1}), "initial.S1"),
        (("semicircle", {"variance": -1}), "initial.S1.variance"),
        (("semicircle", {"variance": 1, "mean": 1}), "initial.S1"),
        (("eigenvalues", {}), "initial.S1.values"),
        (("eigenvalues", {"values": "12"}), "initial.S1.values"),
        (("eigenvalues", {"values": [1, 2 + 1j]}), "initial.S1.values[1]"),
        (("eigenvalues", {"values": [1, -2]}), "initial.S1"),
        (("wigner", {}), "initial.S1"),
        (("identity",), "initial.S1"),
        ("identity", "initial.S1"),
        ((["identity"], {}), "initial.S1"),
    ],
)
def test_bad_laws_are_refused(data: Any, named: str) -> None:
    with pytest.raises(ModelError) as error:
        build_laws({"S1": data}, {"S1": "tied"})
    assert one_line(error).startswith(f"{named}: ")


def test_bad_requests_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ModelError, match=r"initial\.S2: "):
        free_moments(["S1"], LETTERS, {"S1": MP1["S1"]})
    for word in ("S3", "S1'", "", "S1..S2", 3):
        with pytest.raises(ModelError, match=r"^word: "):
            free_moments([word], LETTERS, MP1)  # type: ignore[list-item]
    with pytest.raises(ModelError, match=r"^initial.*below 1e308"):
        initial_moments(["A.A.A"], {"A": Eigenvalues(values=[1e200])})
    with pytest.raises(ModelError, match="one column"):
        MarchenkoPastur(ratio=0.01).sample(10, rng)
    with pytest.raises(ModelError, match=r"^d: 0"):
        MarchenkoPastur().sample(0, rng)
    with pytest.raises(ModelError, match="kind: 'general'"):
        MarchenkoPastur().sample(5, rng, kind="general")
    with pytest.raises(ModelError, match="smallest eigenvalue -2"):
        Semicircle().sample(5, rng)


# -- moments of matrices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [2.0**30, 1.0, 8 * 36 * 20.0])
def test_empirical_moments_are_traces_of_products(memory: float) -> None:
    rng = np.random.default_rng(3)
    matrices = {"A": rng.standard_normal((6, 6)), "B": rng.standard_normal((6, 6))}
    factors = {"A": matrices["A"], "B": matrices["B"], "A'": matrices["A"].T}
    letters = list(factors)
    words = [tuple(rng.choice(letters, n)) for n in range(1, 9) for _ in range(6)]
    got = empirical_moments(matrices, ["1", *(".".join(w) for w in words)], memory)
    products = [np.eye(6), *(np.linalg.multi_dot([factors[k] for k in w] + [np.eye(6)]) for w in words)]
    scale = [1, *(math.prod(np.linalg.norm(factors[k], 2) for k in w) for w in words)]
    np.testing.assert_allclose((got - [np.trace(p) / 6 for p in products]) / scale, 0, atol=1e-15)


def test_rectangular_letters_in_closed_paths() -> None:
    w = np.random.default_rng(4).standard_normal((5, 3))
    s = w @ w.T
    got = empirical_moments({"W": w}, ["W.W'", "W'.W", "W.W'.W.W'"])
    np.testing.assert_allclose(got, [np.trace(s) / 5, np.trace(s) / 5, np.trace(s @ s) / 5])
    with pytest.raises(ModelError, match="closed path"):
        empirical_moments({"W": w}, ["W.W"])


@pytest.mark.parametrize("matrices", [{}, {"A": np.ones(3)}, {"A": np.eye(2), "B": np.eye(3)}, {"A": np.eye(2) * 1j}])
def test_bad_matrices_are_refused(matrices: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as error:
        empirical_moments(matrices, ["1"])
    assert one_line(error).startswith("matrices: ")


def test_matrices_out_of_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    w, g = rng.standard_normal((6, 3)), rng.standard_normal((6, 6))
    files = {"S1": w, "S2": w @ w.T, "S3": g + g.T, "S4": g}
    paths = {k: tmp_path / f"{k}.npy" for k in files}
    for k, array in files.items():
        np.save(paths[k], array.astype(np.float32) if k == "S2" else array)
    kinds = {"S1": "tied", "S2": "tied", "S3": "symmetric", "S4": "general"}
    got = load_matrices(paths, kinds, composites=("S2",))
    for k, expected in {"S1": w @ w.T, "S2": w @ w.T, "S3": g + g.T, "S4": g}.items():
        assert got[k].dtype == np.float64
        np.testing.assert_allclose(got[k], expected, atol=1e-5 if k == "S2" else 1e-12)
    kept = load_matrices(paths, kinds, composites=("S2",), factors=True)
    np.testing.assert_array_equal(kept["S1"], w)
    assert kept["S2"].shape == (6, 3)
    np.testing.assert_allclose(kept["S2"] @ kept["S2"].T, w @ w.T, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (np.array([[np.nan, 1.0], [0.0, np.inf]]), "tied", "2 entries NaN or infinite"),
        (np.ones(3), "tied", "two dimensions"),
        (np.ones((0, 2)), "tied", "matrix S1: "),
        (np.ones((2, 3)), "symmetric", "square"),
        (np.ones((2, 3)), "general", "square"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "symmetric", "symmetric"),
        (np.eye(2) * 1j, "tied", "complex128"),
        (np.array([["a", "b"]]), "tied", "real numbers"),
        (np.eye(2, dtype=bool), "tied", "real numbers"),
        (np.array([[{}]], dtype=object), "tied", "readable .npy"),
        (np.diag([1.0, -1.0]), "composite", "positive semidefinite"),
        (np.eye(3), "tied", "2 rows, as S0 has"),
        (b"", "tied", "readable .npy"),
        (b"1, 2, 3", "tied", "readable .npy"),
        (b"PK\x03\x04 not an archive", "tied", "readable .npy"),
        (pickle.dumps([1.0]), "tied", "readable .npy"),
        (np.lib.format.magic(1, 0) + b"\x10\x00{'descr': '<f8'}", "tied", "readable .npy"),
        (None, "tied", "No such file"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: Any, kind: str, expected: str) -> None:
    path = tmp_path / "s1.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    np.save(tmp_path / "s0.npy", np.eye(2))
    kinds = {"S0": "tied", "S1": "tied" if kind == "composite" else kind}
    composites = ("S1",) if kind == "composite" else ()
    with pytest.raises(ModelError) as error:
        load_matrices({"S0": tmp_path / "s0.npy", "S1": path}, kinds, composites)
    text = one_line(error)
    assert text.startswith("matrix S1: ")
    assert expected in text


def test_file_shorter_than_its_header_archive_and_unknown_letters_are_refused(tmp_path: Path) -> None:
    whole, archive = tmp_path / "a.npy", tmp_path / "b.npz"
    np.save(whole, np.eye(20))
    np.savez(archive, np.eye(2))
    short = tmp_path / "short.npy"
    short.write_bytes(whole.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"readable \.npy"):
        load_matrices({"S1": short}, {"S1": "tied"})
    with pytest.raises(ModelError, match="not one array"):
        load_matrices({"S1": archive}, {"S1": "tied"})
    with pytest.raises(ModelError, match=r"matrix S9: .*one of S1"):
        load_matrices({"S9": whole}, {"S1": "tied"})
    with pytest.raises(ModelError, match="matrix S1: kind"):
        load_matrices({"S1": whole}, {"S1": "untied"})


# -- can these be moments? --------------------------------------------------------------------------------


def test_moments_of_laws_and_of_matrices_pass() -> None:
    words = all_words(9)
    check_moments(free_moments(words, LETTERS, MP1), LETTERS, LETTERS)  # type: ignore[arg-type]
    rng = np.random.default_rng(7)
    low_rank = {k: w @ w.T for k, w in zip(LETTERS, rng.standard_normal((2, 4, 2)), strict=True)}
    check_moments(dict(zip(words, empirical_moments(low_rank, words), strict=True)), LETTERS, LETTERS)
    general = {"A": rng.standard_normal((4, 4)), "B": np.diag([1.0, -1, 2, 3])}
    letters = ("A", "A'", "B")
    words = [".".join(w) for n in range(1, 6) for w in itertools.product(letters, repeat=n)]
    check_moments(dict(zip(words, empirical_moments(general, words), strict=True)), letters, ())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"S1.S1": 0.5},
            "initial moments: 'S1.S1 = 0.5, S1 = 1' cannot be used; accepted: moments of matrices: "
            "tr(S1.S1) >= tr(S1)^2; Gram matrix of words of length <= 1 has eigenvalue -0.303",
        ),
        (
            {"S1": -1.0},
            "'S1 = -1' cannot be used; accepted: moments of matrices: tr(S1) >= 0; matrix tr(u* S1 v)",
        ),
        ({"S2.S2": -0.1}, "tr(S2.S2) >= 0; Gram matrix"),
        ({"S1.S2": 2.5}, "tr(S2.S2) tr(S1.S1) >= tr(S1.S2)^2; Gram matrix of words of length <= 1"),
        ({"S1.S1.S1": 3.5}, "tr(S1.S1.S1) tr(S1) >= tr(S1.S1)^2; matrix tr(u* S1 v) of words of length <= 1"),
        ({"S1.S2.S1.S2": 4.5}, "S1.S1.S2.S2 = 4"),
        (
            {"S1": 1.2, "S2": 1.2, "S1.S2": 0.8},
            "'not positive' cannot be used; accepted: moments of matrices: Gram matrix",
        ),
    ],
)
def test_impossible_moments_are_refused_by_the_smallest_condition(changes: dict[str, float], expected: str) -> None:
    moments: dict[str, float] = {dotted(w): value for w, value in KNOWN.items()} | changes
    with pytest.raises(ModelError) as error:
        check_moments(moments, LETTERS, LETTERS)
    assert expected in one_line(error)


def test_only_what_the_given_moments_allow_is_tested() -> None:
    check_moments({}, LETTERS, LETTERS)
    check_moments({"S1.S1": 0.5, "S1": 1.0}, LETTERS, ())  # S1.S2 and S2.S2 are missing
    with pytest.raises(ModelError, match=r"tr\(S1\.S1\) >= tr\(S1\)\^2"):
        check_moments({"S1.S1": 0.5, "S1": 1.0}, ("S1",), ())
    check_moments({"S1": -1.0, "S1.S1": 1.5}, ("S1",), ())
    with pytest.raises(ModelError, match=r"tr\(S1\) >= 0"):
        check_moments({"S1": -1.0, "S1.S1": 1.5}, ("S1",), ("S1",))


@pytest.mark.parametrize(
    ("moments", "psd", "named"),
    [
        ({"S1": float("nan")}, (), "initial moments: S1: nan"),
        ({"S1": float("inf")}, (), "initial moments: S1: inf"),
        ({"S1": 1j}, (), "initial moments: S1: 1j"),
        ({"S1": "1"}, (), "initial moments: S1: '1'"),
        ({"S1": True}, (), "initial moments: S1: True"),
        ({"1": 2.0}, (), "initial moments: 1: 2.0"),
        ({"S1.S2": 1.0, "S2.S1": 1.1}, (), "initial moments: S2.S1: 1.1"),
        ({"S3": 1.0}, (), "word: 'S3'"),
        ({"S1'": 1.0}, (), 'word: "S1\'"'),
        ({"S1": 1.0}, ("S4",), "positive letters: 'S4'"),
    ],
)
def test_bad_moments_are_refused(moments: dict[str, Any], psd: tuple[str, ...], named: str) -> None:
    with pytest.raises(ModelError) as error:
        check_moments(moments, LETTERS, psd)
    assert one_line(error).startswith(named)
