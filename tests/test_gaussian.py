"""Statics against Monte Carlo, finite differences, Gauss-Hermite quadrature and values computed elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewords.derive.emit import emit_python
from tracewords.derive.gaussian import UNIT, wick
from tracewords.derive.linear import split_terms
from tracewords.derive.losses import Formula
from tracewords.derive.model import Model, tied_scalar, tied_softmax
from tracewords.derive.parametrisation import Tied
from tracewords.derive.suprema import curvature_bounds, largest_bernstein, supremum
from tracewords.derive.system import System
from tracewords.runtime.solver import Solver

DATA = json.loads((Path(__file__).parent / "data" / "attention_indexed.json").read_text())


def solver_of(model: Model, folder: Path, order: int = 2) -> Solver:
    from tracewords.runtime.solver import from_path

    path = folder / f"m{model.digest}_{order}.py"
    path.write_text(emit_python(System(model, order)))
    return from_path(path)


def sample_preactivations(solver: Solver, q: np.ndarray, c: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Pre-activations of symmetric matrices from the covariance (C_ii' C_jj' + C_ij' C_ji') q_kl, written out here."""
    letters = list(solver.LETTERS)
    entries = [(letters.index(k), i - 1, j - 1) for k, i, j in solver.PREACTIVATIONS]
    cov = np.array([[(c[i, p] * c[j, r] + c[i, r] * c[j, p]) * q[k, l] for l, p, r in entries] for k, i, j in entries])
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return root @ np.random.default_rng(seed).standard_normal((len(entries), count))


def overlaps(solver: Solver, q: np.ndarray) -> np.ndarray:
    index = {name: i for i, name in enumerate(solver.LETTERS)}
    return np.array([q[index[a], index[b]] for a, b in (w.split(".") for w in solver.ORDER_PARAMETERS)])


C2 = [["1", "0.4"], ["0.4", "1.3"]]
C3 = [["1", "0.3", "0"], ["0.3", "1", "-0.2"], ["0", "-0.2", "0.8"]]
MODELS = {
    "softmax": tied_softmax(beta=1.3),
    "softmax, correlated": tied_softmax(beta=0.8, covariance=C2),
    "softmax, three tokens": tied_softmax(tokens=3, covariance=C3),
    "h2": tied_scalar("h2"),
    "h3, correlated": tied_scalar("h3", covariance=C2),
    "tanh": tied_scalar("tanh", covariance=C2),
    "diagonal h2": tied_scalar("h2", entry=(1, 1), covariance=[[1]]),
    "two students": Model(
        "two",
        C2,
        {"A": Tied(), "B": Tied(2)},
        {"T": Tied()},
        Formula("(h1(A[1,2]) * sigmoid(B[1,2]) - h1(T[1,2]))**2 / 2"),
    ),
}


def test_softmax_couplings_agree_with_an_independent_quadrature(tmp_path: Path) -> None:
    solver = solver_of(tied_softmax(), tmp_path)
    reference = DATA["softmax_L2_beta1_C_identity_MP1"]["grad_at_start"]
    q = overlaps(solver, np.array(reference["q"]))
    g = dict(zip(solver.COUPLINGS, solver.couplings(q), strict=True))
    assert g["G11"] == pytest.approx(reference["grad_11"], rel=1e-9)
    assert g["G12"] == pytest.approx(reference["grad_12"], rel=1e-9)
    assert float(solver.potential(q)) == pytest.approx(reference["Phi"], rel=1e-9)


@pytest.mark.statistical
@pytest.mark.parametrize("name", MODELS)
def test_potential_and_noise_against_monte_carlo(name: str, tmp_path: Path) -> None:
    """Means over 2e5 samples within 4.5 standard errors (8 models, about 20 numbers); seed fixed."""
    model = MODELS[name]
    solver = solver_of(model, tmp_path)
    k = len(model.letters)
    rng = np.random.default_rng(3)
    root = np.eye(k) + 0.4 * rng.standard_normal((k, k))
    q, c = root @ root.T * 0.6, np.array(model.covariance, dtype=float)
    h = sample_preactivations(solver, q, c, 200_000, 5)
    loss = solver.loss(h)
    error = loss.std() / np.sqrt(loss.size)
    rule = solver.rules(overlaps(solver, q)[:, None], {"kappa": 1.0})
    assert abs(loss.mean() - solver.potential(overlaps(solver, q), None, rule)) < 4.5 * error
    gradient = solver.loss_gradient(h)
    noise = dict(zip(solver.NOISE, solver.noise_contractions(overlaps(solver, q), None, rule), strict=True))
    letters = list(model.letters)
    entries = [(letters.index(m), i - 1, j - 1) for m, i, j in solver.PREACTIVATIONS]
    for a in range(len(model.students)):
        for b in range(a, len(model.students)):
            samples = 0.0
            for x, (m, i, j) in enumerate(entries):
                for y, (n, p, r) in enumerate(entries):
                    if m == a and n == b:
                        samples = samples + 2 * (c[i, p] * c[j, r] + c[i, r] * c[j, p]) * gradient[x] * gradient[y]
            error = np.std(samples) / np.sqrt(np.size(samples))
            # 1e-3: the tolerance of averages over eight variables
            assert abs(np.mean(samples) - noise[f"N{a + 1}{b + 1}"]) < 4.5 * error + 1e-3 * abs(np.mean(samples))


@pytest.mark.parametrize("name", [n for n in MODELS if "three" not in n])
def test_couplings_are_the_gradient_of_the_potential(name: str, tmp_path: Path) -> None:
    solver = solver_of(MODELS[name], tmp_path)
    k = len(solver.LETTERS)
    rng = np.random.default_rng(1)
    root = np.eye(k) + 0.3 * rng.standard_normal((k, k))
    q = overlaps(solver, root @ root.T)
    for name_g, g in zip(solver.COUPLINGS, solver.couplings(q), strict=True):
        a, b = (solver.LETTERS[int(x) - 1] for x in name_g[1:])
        i = next(n for n, w in enumerate(solver.ORDER_PARAMETERS) if sorted(w.split(".")) == sorted((a, b)))
        step = np.zeros(len(q))
        step[i] = 1e-4
        slope = (solver.potential(q + step) - solver.potential(q - step)) / 2e-4
        # q_kl and q_lk are one number: ordered pairs share its slope
        assert g == pytest.approx(slope * (1.0 if a == b else 0.5), rel=2e-6, abs=1e-8)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_wick_against_gauss_hermite(powers: list[int], seed: int) -> None:
    n = len(powers)
    root = np.random.default_rng(seed).standard_normal((n, n))
    cov = root @ root.T
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    grid = np.stack([g.ravel() for g in np.meshgrid(*[nodes] * n, indexing="ij")])
    weight = np.prod(
        np.stack([g.ravel() for g in np.meshgrid(*[weights / np.sqrt(2 * np.pi)] * n, indexing="ij")]), axis=0
    )
    u = root @ grid
    expected = weight @ np.prod([x**p for x, p in zip(u, powers, strict=True)], axis=0)
    integrand = sp.Mul(*(UNIT[i] ** p for i, p in enumerate(powers)))
    got = wick(integrand, [[sp.Float(x) for x in row] for row in cov]) if integrand != 1 else 1.0
    assert float(got) == pytest.approx(expected, rel=1e-9, abs=1e-9 * (1 + np.abs(cov).max()) ** sum(powers))


def test_dimension_is_reduced_to_what_the_loss_sees() -> None:
    softmax = System(tied_softmax(), 2)
    assert {len(law) for s, (law, _) in softmax.averages.items() if s in softmax.statics.potential.free_symbols} == {2}
    three = System(tied_softmax(tokens=3, covariance=C3), 2)
    assert {len(law) for s, (law, _) in three.averages.items() if s in three.statics.potential.free_symbols} == {4}
    assert not System(tied_scalar("h3"), 2).averages


def test_linear_forms_share_what_they_can() -> None:
    a, b, c = sp.symbols("a b c", real=True)
    entries = {a: (0, 0, 0), b: (0, 0, 1), c: (0, 1, 1)}
    beta = sp.Symbol("beta", real=True)
    terms = split_terms(sp.exp(beta * (a - b)) + sp.sin(2 * b - 2 * a) + sp.exp(a - b) * sp.cos(b - c), entries, UNIT)
    assert sorted(len(t.forms) for t in terms) == [1, 2]
    values = {a: 0.3, b: -1.1, c: 0.7, beta: 0.9}
    symbol = {e: s for s, e in entries.items()}
    total = 0.0
    for t in terms:
        u = {UNIT[n]: sum(x * values[symbol[e]] for e, x in f.items()) for n, f in enumerate(t.forms)}
        total += float(t.function.subs(u).subs(values))
    direct = np.exp(0.9 * 1.4) + np.sin(-2.8) + np.exp(1.4) * np.cos(-1.8)
    assert total == pytest.approx(direct, rel=1e-12)


@settings(max_examples=50)
@given(st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(-9, 9), min_size=1, max_size=6))
def test_bernstein_coefficients_bound_a_polynomial(terms: dict[tuple[int, int], int]) -> None:
    bound = float(largest_bernstein({p: sp.Integer(c) for p, c in terms.items()}, 2))
    x = np.linspace(0, 1, 21)
    value = sum(c * np.multiply.outer(x ** p[0], x ** p[1]) for p, c in terms.items())
    assert np.abs(value).max() <= bound + 1e-9


def test_supremum_bounds_a_derivative_of_the_softmax_loss() -> None:
    system = System(tied_softmax(), 2)
    known = {s for s in system.averages if s in system.statics.potential.free_symbols}
    _, integrand = system.averages[known.pop()]
    deep = sp.diff(integrand, UNIT[0], 4)
    bound = float(supremum(deep).subs(sp.Symbol("beta", real=True), 1))  # type: ignore[union-attr]
    f = sp.lambdify(UNIT[:2], deep.rewrite(sp.exp).subs(sp.Symbol("beta", real=True), 1))
    x = np.linspace(-6, 6, 121)
    largest = np.abs(f(*np.meshgrid(x, x))).max()
    assert largest <= bound <= 3 * largest


def test_curvature_bounds_hold_where_they_are_exact() -> None:
    bounds = curvature_bounds(System(tied_scalar("h3"), 2).statics)
    # G11 = 15/4 q11^2 + .., G12 = -3/2 q12^2 + ..: second derivatives 15/2 and 3 in the moving overlaps
    assert bounds == {"G11": sp.Rational(15, 2), "G12": 3}
    assert curvature_bounds(System(tied_scalar("erf"), 2).statics) is None
