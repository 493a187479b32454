"""The hierarchy against derivatives of traces of the matrix flow, exact algebra and noisy matrices."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewords.derive.flow import DriftTerm, MatrixFlow
from tracewords.derive.flow_models import model_alphabet, model_flow
from tracewords.derive.hierarchy import Hierarchy, derive, estimate_bytes
from tracewords.derive.losses import Formula
from tracewords.derive.model import Model
from tracewords.derive.parametrisation import Tied
from tracewords.derive.words import Alphabet, Letter
from tracewords.errors import ModelError

SIZE = 200


def tied_flow(students: tuple[str, ...], teachers: tuple[str, ...]) -> MatrixFlow:
    """The flow of tied matrices, whatever their loss."""
    loss = Formula(" + ".join(f"{name}[1,2]**2" for name in (*students, *teachers)))
    model = Model("any", None, {k: Tied() for k in students}, {k: Tied() for k in teachers}, loss, tokens=2)
    return model_flow(model, model_alphabet(model), {})


def trace(matrices: list[np.ndarray], word: tuple[int, ...]) -> float:
    total = np.eye(len(matrices[0]))
    for k in word:
        total = total @ matrices[k]
    return float(np.trace(total)) / len(total)


def right_side(
    h: Hierarchy, word: tuple[int, ...], moment: dict[tuple[int, ...], float], coupling: dict[str, float]
) -> float:
    """The derived right side of one word, with values put in."""
    names = [*h.words(), *h.words(outer=True), ()]
    row = names.index(h.flow.alphabet.canonical(word))
    total = 0.0
    for n in np.flatnonzero(h.drift.row == row):
        value = moment[names[h.drift.first[n]]] * moment[names[h.drift.second[n]]]
        total += float(h.drift.weight(n)) * coupling[h.drift.names[h.drift.coupling[n]]] * value
    return total


def symmetric(rng: np.random.Generator) -> np.ndarray:
    w = rng.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE)
    return w @ w.T / 2


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(0, 1), st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 2**32))
def test_tied_hierarchy_is_the_derivative_of_traces(students: int, teachers: int, raw: list[int], seed: int) -> None:
    letters = students + teachers
    word = tuple(k % letters for k in raw)
    flow = tied_flow(tuple(f"S{i}" for i in range(students)), tuple(f"T{i}" for i in range(teachers)))
    h = derive(flow, max(len(word), 2))
    rng = np.random.default_rng(seed)
    matrices = [symmetric(rng) for _ in range(letters)]
    g = rng.standard_normal((letters, letters))
    g, gamma = (g + g.T) / 2, 0.3
    # the flow written out once more: W' = - sum_l G_kl S_l W_k - (gamma/4) W_k, S = W W'
    slopes = []
    for k, s in enumerate(matrices):
        pull = sum(g[k, l] * x for l, x in enumerate(matrices)) + gamma / 4 * np.eye(SIZE)
        slopes.append(-(pull @ s + s @ pull) if k < students else np.zeros_like(s))
    step = 1e-5
    ahead = trace([s + step * d for s, d in zip(matrices, slopes, strict=True)], word)
    behind = trace([s - step * d for s, d in zip(matrices, slopes, strict=True)], word)
    coupling = {f"G{k + 1}{l + 1}": g[k, l] for k in range(letters) for l in range(letters)} | {"gamma": gamma}
    known = {w: trace(matrices, w) for w in [*h.words(), *h.words(outer=True)] if abs(len(w) - len(word)) <= 1} | {
        (): 1.0
    }
    expected = (ahead - behind) / (2 * step)
    scale = max(1.0, max(map(abs, known.values())))
    assert right_side(h, word, known, coupling) == pytest.approx(expected, abs=1e-6 * scale, rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 2**32))
def test_general_letters_follow_their_transposes(raw: list[int], seed: int) -> None:
    """A flow that is no published model: a general matrix driven by products with its own transpose."""
    alphabet = Alphabet([Letter("S", symmetric=False), Letter("T")])
    s, star, t = 0, 1, 2
    terms = (
        DriftTerm(Fraction(-1), "a", (t, s)),
        DriftTerm(Fraction(2, 3), "b", (s, star, s)),
        DriftTerm(Fraction(1, 2), "c", ()),
    )
    h = derive(MatrixFlow(alphabet, {s: terms}), max(2, len(raw)))
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE), symmetric(rng)
    a, b, c = rng.standard_normal(3)
    slope = -a * y @ x + 2 / 3 * b * x @ x.T @ x + c / 2 * np.eye(SIZE)
    word, step = tuple(raw), 1e-5

    def value(w: tuple[int, ...], h: float = 0.0) -> float:
        moved = x + h * slope
        return trace([moved, moved.T, y], w)

    expected = (value(word, step) - value(word, -step)) / (2 * step)
    known = {w: value(w) for w in [*h.words(), *h.words(outer=True)] if len(w) <= len(word) + 2} | {(): 1.0}
    got = right_side(h, word, known, {"a": a, "b": b, "c": c})
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_loop_terms_of_tied_models_match_the_written_formula() -> None:
    """All words to order 6 against the formula with its splittings spelled out, in exact rationals."""
    flow = tied_flow(("S1", "S2"), ("T",))
    h = derive(flow, 6)
    alphabet = flow.alphabet
    names = [*h.words(), *h.words(outer=True), ()]
    derived: dict[tuple[int, ...], dict[tuple[str, frozenset[tuple[tuple[int, ...], int]]], Fraction]] = {}

    def key(first: tuple[int, ...], second: tuple[int, ...]) -> frozenset[tuple[tuple[int, ...], int]]:
        pair = [alphabet.canonical(first), alphabet.canonical(second)]
        return frozenset((w, pair.count(w)) for w in pair)

    for n in range(len(h.loops)):
        table = derived.setdefault(names[h.loops.row[n]], {})
        index = (h.loops.names[h.loops.coupling[n]], key(names[h.loops.first[n]], names[h.loops.second[n]]))
        table[index] = table.get(index, Fraction(0)) + h.loops.weight(n)
    for word in h.words():
        expected: dict[tuple[str, frozenset[tuple[tuple[int, ...], int]]], Fraction] = {}

        def add(k: int, l: int, first: tuple[int, ...], second: tuple[int, ...]) -> None:
            index = (f"N{min(k, l) + 1}{max(k, l) + 1}", key(first, second))
            expected[index] = expected.get(index, Fraction(0)) + Fraction(1, 4)  # noqa: B023

        for p, k in enumerate(word):
            if k < 2:
                add(k, k, (k,), word[:p] + word[p + 1 :])
                for r in range(p + 1, len(word)):
                    l, a, b = word[r], word[p + 1 : r], word[r + 1 :] + word[:p]
                    if l < 2:
                        add(k, l, (k, *a), (l, *b))
                        add(k, l, (k, *a, l), b)
                        add(k, l, a, (l, *b, k))
                        add(k, l, (*a, l), (*b, k))
        assert derived.get(word, {}) == expected


@pytest.mark.statistical
def test_loop_terms_are_the_mean_second_order_change() -> None:
    """S -> (1 - a R) S (1 - a R) with GOE R: second order in a, mean over R; the rest is O(1/d).

    Seeds fixed.  Tolerance 4 standard errors of the mean plus 12 / d, the size of the GOE's own correction.
    """
    flow = tied_flow(("S1",), ("S2",))
    h = derive(flow, 4)
    names = [*h.words(), *h.words(outer=True), ()]
    for d, runs in ((40, 600), (80, 300)):
        rng = np.random.default_rng(7)
        w = rng.standard_normal((2, d, d)) / np.sqrt(d)
        matrices = [w[0] @ w[0].T, w[1] @ w[1].T]
        value = {x: trace(matrices, x) for x in h.words()} | {(): 1.0}
        for word in [(0,), (0, 1), (0, 0, 1), (0, 1, 0, 1)]:
            row = names.index(flow.alphabet.canonical(word))
            # contractions carry (1/4) N; the GOE here has N = 1 per a^2
            expected = sum(
                4 * float(h.loops.weight(n)) * value[names[h.loops.first[n]]] * value[names[h.loops.second[n]]]
                for n in np.flatnonzero(h.loops.row == row)
            )
            a, samples = 1e-3, []
            for _ in range(runs):
                x = rng.standard_normal((d, d))
                r = (x + x.T) / np.sqrt(2 * d)
                moved = [
                    trace([(np.eye(d) - s * a * r) @ matrices[0] @ (np.eye(d) - s * a * r), matrices[1]], word)
                    for s in (1, -1)
                ]
                samples.append((sum(moved) - 2 * value[names[row]]) / (2 * a * a))
            error = np.std(samples) / np.sqrt(runs)
            assert abs(np.mean(samples) - expected) < 4 * error + 12 / d * expected


def test_term_tables_do_not_depend_on_chance() -> None:
    h = derive(tied_flow(("S1",), ("S2",)), 6)
    keys = list(zip(h.drift.row, h.drift.coupling, h.drift.first, h.drift.second, strict=True))
    assert keys == sorted(set(keys))
    assert (h.drift.numerator != 0).all()


@pytest.mark.parametrize("order", [1, 0, -3, 2.5, "4", True, None])
def test_order_must_be_at_least_two(order: object) -> None:
    with pytest.raises(ModelError, match="order"):
        derive(tied_flow(("S1",), ("S2",)), order)  # type: ignore[arg-type]


def test_order_beyond_memory_says_what_it_needs() -> None:
    with pytest.raises(ModelError, match=r"needs about .* GiB"):
        derive(tied_flow(("S1",), ("S2",)), 40)
    flow = tied_flow(("S1",), ("S2",))
    assert estimate_bytes(flow, 12) < estimate_bytes(flow, 13)


def test_flow_of_types_that_do_not_join_is_refused() -> None:
    alphabet = Alphabet([Letter("W", False, "d", "r")])
    with pytest.raises(ModelError, match="drift of W"):
        MatrixFlow(alphabet, {0: (DriftTerm(Fraction(1), "a", (0, 0)),)})
