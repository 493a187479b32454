"""Closures against trajectories computed elsewhere, exact solutions and the matrix flow; failures keep results."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tracewords.derive.model import load_model, tied_scalar
from tracewords.errors import HorizonError, ModelError
from tracewords.runtime.bounds import horizon
from tracewords.runtime.integrate import Options, solve
from tracewords.runtime.matrixflow import compress
from tracewords.runtime.start import Start, start_from
from tracewords.runtime.stepping import integrate
from tracewords.runtime.wordindex import WordIndex
from tracewords.solvers import solver

DATA = json.loads((Path(__file__).parent / "data" / "attention_indexed.json").read_text())
BACKENDS = ["numpy", pytest.param("c", marks=pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler"))]
MAIN = ["S1.S1", "S1.S2", "S1"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tied-softmax", "softmax_L2_beta1_C_identity_MP1"),
        ("tied-h1", "offdiagonal_h1_MP1"),
        ("tied-h2", "offdiagonal_h2_MP1"),
    ],
)
def test_operator_closure_follows_independent_trajectories(name: str, key: str) -> None:
    rows = np.array(DATA[key]["rows"])
    s = solver(name, 13)
    found = solve(s, rows[:, 0], closure="operator", start=start_from(s))["moment"].sel(word=MAIN).values
    # the reference is the same closure from an independent program: far closer than the stated uncertainty
    assert np.abs(found - rows[:, 1:]).max() < min(DATA[key]["abs_uncertainty"], 1e-6)


def test_loop_terms_follow_an_independent_trajectory() -> None:
    reference = DATA["offdiagonal_h1_MP1_kappa0.5_zero_closure_M8"]
    rows = np.array(reference["rows"])
    s = solver("tied-h1", 8)
    found = solve(s, [0.0, *rows[:, 0]], start=start_from(s), params={"kappa": 0.5})
    assert np.abs(found["moment"].sel(word=MAIN).values[1:] - rows[:, 1:]).max() < reference["abs_uncertainty"]


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    """q_11 of tied-softmax on a fine grid to t = 1, operator closure of order 13."""
    s = solver("tied-softmax", 13)
    return solve(s, np.linspace(0, 1, 101), closure="operator", start=start_from(s))["moment"].sel(word="S1.S1").values


@pytest.mark.parametrize("order", range(2, 9))
@pytest.mark.parametrize("backend", BACKENDS)
def test_truncation_error_table(order: int, backend: str, truth: np.ndarray) -> None:
    """Worst relative error of q_11 over [0, t] to the digits of an independent table; order 3 fails before t = 1."""
    table = DATA["zero_closure_relative_error_q11_softmax"]
    s = solver("tied-softmax", order)
    grid = np.linspace(0, 1, 101)
    options = Options(backend=backend)
    if table[str(order)][-1] is None:
        with pytest.raises(HorizonError) as caught:
            solve(s, grid, start=start_from(s), options=options)
        assert caught.value.time == pytest.approx(0.9613, abs=1e-3)
        path = caught.value.partial
    else:
        path = solve(s, grid, start=start_from(s), options=options)
    found = path["moment"].sel(word="S1.S1").values
    error = np.maximum.accumulate(np.abs(found / truth[: len(found)] - 1))
    for time, printed in zip(table["times"], table[str(order)], strict=True):
        if printed is not None:
            at = error[round(100 * time)]
            digits = 2 if f"{printed:.1e}"[2] != "0" else 1
            assert at == pytest.approx(printed, rel=0.51 * 10.0 ** (1 - digits) / float(f"{printed:.1e}"[:3]) + 1e-9)


def test_truncation_is_the_taylor_polynomial_for_constant_couplings() -> None:
    """tied-h1 has constant couplings: q_11 of order M is the Taylor polynomial of degree M - 2 of the flow's."""
    coefficients = []
    t = 0.05
    values = []
    for order in range(2, 8):
        s = solver("tied-h1", order)
        found = solve(s, [0, t], start=start_from(s), options=Options(rtol=1e-12, atol=1e-13, backend="numpy"))
        values.append(float(found["moment"].sel(word="S1.S1")[-1]))
    for power, (low, high) in enumerate(itertools.pairwise(values), start=1):
        coefficients.append((high - low) / t**power)
    # derivatives of tr(S1 S1) at 0 from S' = -(H S + S H), H = (S1 - S2)/2, on large matrices with exact spectra
    start = start_from(solver("tied-h1", 2))
    rng = np.random.default_rng(0)
    w = start.sample(900, rng)
    x, y = w["S1"] @ w["S1"].T, w["S2"] @ w["S2"].T
    series = [x]
    for n in range(3):
        drift = sum(series[i] @ (series[n - i] - (y if n == i else 0)) for i in range(n + 1))
        series.append(-(drift + drift.T) / 2 / (n + 1))
    for power in (1, 2, 3):
        direct = sum(np.vdot(series[i], series[power - i]) for i in range(power + 1)) / 900
        assert coefficients[power - 1] == pytest.approx(direct, rel=0.05)


@pytest.mark.parametrize(
    ("order", "limits"), [(3, (0.013, 0.041, 0.059)), (5, (2.4e-4, 0.0029, 0.018)), (7, (4e-6, 1.7e-4, 0.0036))]
)
def test_operator_closure_has_no_horizon(order: int, limits: tuple[float, ...]) -> None:
    """Worst relative error of q_11, q_12, t_1 at t = 0.5, 1, 2 stays as small as measured elsewhere."""
    best, s = solver("tied-softmax", 13), solver("tied-softmax", order)
    times = [0, 0.5, 1, 2]
    exact = solve(best, times, closure="operator", start=start_from(best))["moment"].sel(word=MAIN).values
    found = solve(s, times, closure="operator", start=start_from(s))["moment"].sel(word=MAIN).values
    for i, limit in enumerate(limits, start=1):
        assert np.abs(found[i] / exact[i] - 1).max() < 1.1 * limit


def test_flat_closure_goes_on_where_zero_fails() -> None:
    s, best = solver("tied-softmax", 5), solver("tied-softmax", 13)
    times = [0, 0.5, 1, 2, 5]
    exact = solve(best, times, closure="operator", start=start_from(best))["moment"].sel(word=MAIN).values
    flat = solve(s, times, closure="flat", start=start_from(s))["moment"].sel(word=MAIN).values
    for i, limit in ((1, 2.2e-4), (2, 0.0026), (3, 0.015), (4, 0.03)):
        assert np.abs(flat[i] / exact[i] - 1).max() < limit
    with pytest.raises(ModelError, match="odd order"):
        solve(solver("tied-softmax", 8), times, closure="flat", start=start_from(solver("tied-softmax", 8)))


def test_gauss_quadrature_reproduces_the_moments_it_was_made_from() -> None:
    s = solver("tied-h1", 7)
    start = start_from(s)
    values = dict(zip(s.WORDS, start.values(s.WORDS), strict=True))

    def moment(word: tuple[str, ...]) -> float:
        turned = [w[i:] + w[:i] for w in (word, word[::-1]) for i in range(max(len(word), 1))]
        return next(values[".".join(w)] for w in turned if ".".join(w) in values) if word else 1.0

    a = compress(moment, WordIndex(s), 3, 1e-13)
    for text, value in values.items():
        v = np.eye(len(a["S1"]))[0]
        for k in reversed(text.split(".")):
            v = a[k] @ v
        assert v[0] == pytest.approx(value, rel=1e-9)


@pytest.mark.statistical
def test_matrix_closure_approaches_the_limit() -> None:
    """Matrix flow at N = 100 and 400, 4 seeds each: the distance to the limit falls like 1/N (by half at least)."""
    s = solver("tied-h2", 5)
    best = solver("tied-h2", 13)
    exact = solve(best, [0, 0.2], closure="operator", start=start_from(best))["moment"].sel(word=MAIN).values[-1]
    gaps = []
    for size in (100, 400):
        found = [
            solve(s, [0, 0.2], closure="matrix", start=start_from(s), options=Options(size=size, seed=r, rtol=1e-6))[
                "moment"
            ]
            .sel(word=MAIN)
            .values[-1]
            for r in range(4)
        ]
        gaps.append(np.sqrt(np.mean((np.array(found) - exact) ** 2)))
    assert gaps[1] < 0.5 * gaps[0]
    assert gaps[1] < 0.02


@pytest.mark.parametrize("backend", BACKENDS)
def test_scalar_riccati_is_exact(backend: str) -> None:
    """d = 1: all moments are powers of s; tied-h1 with S2 = 0 is s' = -s^2: order M gives Taylor sums."""
    s = solver("tied-h1", 8)
    moments = {w: (0.0 if "S2" in w else 0.5 ** (w.count(".") + 1)) for w in s.WORDS}
    t = 0.2
    found = solve(s, [0, t], start=Start(moments=moments), options=Options(rtol=1e-12, atol=1e-14, backend=backend))
    taylor = sum(0.5 * (-0.5 * t) ** n for n in range(8))
    assert float(found["moment"].sel(word="S1")[-1]) == pytest.approx(taylor, abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaving_the_domain_keeps_what_was_computed(backend: str) -> None:
    s = solver("tied-softmax", 3)
    start = start_from(s)
    limit = horizon(s, start)
    with pytest.raises(HorizonError) as caught:
        solve(s, np.linspace(0, 3, 31), start=start, options=Options(backend=backend), horizon=limit)
    error = caught.value
    assert error.horizon == pytest.approx(0.634624, abs=1e-6)
    assert "operator" in str(error)
    assert "\n" not in str(error)
    assert error.partial.sizes["time"] == 10  # t = 0 .. 0.9
    assert np.isfinite(error.partial["moment"].values).all()
    assert error.partial.attrs["status"] == "horizon"


def test_initial_velocity_of_the_demeaned_overlap() -> None:
    """dp_12/dt(0) = -2 G_12 t_1 p_22 at a free start, from the kernel: not zero, so tied models escape at once."""
    for name in ("tied-h1", "tied-h2", "tied-h3", "tied-softmax"):
        s = solver(name, 5)
        mu = start_from(s).values(s.WORDS)
        m, d = (dict(zip(s.WORDS, x, strict=True)) for x in (mu, s.rhs(0.0, mu)))
        g = dict(zip(s.COUPLINGS, s.couplings(s.order_parameters(mu)), strict=True))["G12"]
        velocity = d["S1.S2"] - d["S1"] * m["S2"] - m["S1"] * d["S2"]
        assert velocity == pytest.approx(-2 * g * m["S1"] * (m["S2.S2"] - m["S2"] ** 2), rel=1e-12)
        assert abs(velocity) > 0.05


def test_weight_decay_alone_is_exponential() -> None:
    s = solver(tied_scalar("h1"), 5)
    moments = dict.fromkeys(s.WORDS, 0.0) | {"S1": 1e-6}
    found = solve(s, [0, 1.0], start=Start(moments=moments), params={"gamma": 0.8}, options=Options(backend="numpy"))
    assert float(found["moment"].sel(word="S1")[-1]) == pytest.approx(1e-6 * np.exp(-0.4), rel=1e-6)


def test_student_equal_to_teacher_stays() -> None:
    """Overlaps on the edge of the positive cone are fine: the loss is zero and nothing moves."""
    s = solver("tied-softmax", 5)
    w = np.random.default_rng(0).standard_normal((40, 40)) / np.sqrt(40)
    start = start_from(s, factors={"S1": w, "S2": w})
    for backend in ("auto", "numpy"):
        found = solve(s, [0, 1.0], start=start, options=Options(backend=backend))
        assert np.abs(found["loss"].values).max() < 1e-12
        assert np.allclose(found["moment"].values[0], found["moment"].values[-1], rtol=1e-6)


def test_results_do_not_depend_on_the_grid_of_times() -> None:
    s = solver("tied-h2", 8)
    few = solve(s, [0, 0.02], start=start_from(s))["moment"].values[-1]
    many = solve(s, np.linspace(0, 0.02, 57), start=start_from(s))["moment"].values[-1]
    assert np.allclose(few, many, rtol=1e-7)


def test_kappa_needs_a_closure_that_can() -> None:
    s = solver("tied-h1", 5)
    with pytest.raises(ModelError, match="kappa"):
        solve(s, [0, 0.1], closure="operator", start=start_from(s), params={"kappa": 0.1})
    flat = solve(s, [0, 0.1], closure="flat", start=start_from(s), params={"kappa": 0.1})
    assert flat.attrs["status"] == "ok"


@pytest.mark.parametrize("times", [[], [0, np.nan], [0, -1], [1, 0.5], ["x"], [np.inf]])
def test_bad_times(times: list[float]) -> None:
    s = solver("tied-h1", 5)
    with pytest.raises(ModelError, match="times"):
        solve(s, times, start=start_from(s))


def test_bad_starts_and_parameters() -> None:
    s = solver("tied-h1", 5)
    with pytest.raises(ModelError, match=r"initial\.S3"):
        start_from(s, laws={"S3": ("identity", {})})
    with pytest.raises(ModelError, match="parameter nosuch"):
        solve(s, [0, 1], start=start_from(s), params={"nosuch": 1.0})
    with pytest.raises(ModelError, match="parameter gamma"):
        solve(s, [0, 1], start=start_from(s), params={"gamma": -1.0})
    with pytest.raises(ModelError, match="closure"):
        solve(s, [0, 1], start=start_from(s), closure="nosuch")
    with pytest.raises(ModelError, match="moments"):
        start_from(s, moments={"S1": 1.0, "S1.S1": 0.5})
    with pytest.raises(ModelError, match="no value of"):
        solve(s, [0, 1], start=start_from(s, moments={"S1": 1.0, "S1.S1": 2.0}))


def test_stepping_refuses_a_derivative_that_is_not_finite_and_finds_the_edge() -> None:
    nan = integrate(lambda t, y: y * np.nan, np.ones(2), np.array([0.0, 1.0]))
    assert (nan.status, len(nan.states)) == ("horizon", 0)
    edge = integrate(
        lambda t, y: -np.ones(1),
        np.ones(1),
        np.linspace(0, 2, 21),
        check=lambda y, slack: "negative" if y[0] < slack else None,
    )
    assert edge.status == "horizon"
    assert edge.reached == pytest.approx(1.0, abs=1e-6)
    assert len(edge.states) == 10 or len(edge.states) == 11
    blow = integrate(lambda t, y: y * y, np.ones(1), np.linspace(0, 2, 21))
    assert blow.status == "diverged"
    assert blow.reached == pytest.approx(1.0, abs=1e-3)


def test_interruption_keeps_what_was_computed() -> None:
    calls: Iterator[int] = iter(range(10**6))

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        if next(calls) > 60:
            raise KeyboardInterrupt
        return -y

    path = integrate(slope, np.ones(1), np.linspace(0, 100, 1001))
    assert path.status == "interrupted"
    assert 1 < len(path.states) < 1001
    assert np.allclose(path.states[:, 0], np.exp(-np.linspace(0, 100, 1001)[: len(path.states)]), atol=1e-6)


def test_model_with_another_covariance_and_ranks_runs() -> None:
    model = (
        load_model("tied-softmax").with_covariance([["1", "0.5"], ["0.5", "2"]]).with_rank_ratio({"S1": "0.5", "S2": 3})
    )
    s = solver(model, 5)
    found = solve(s, [0, 0.05], start=start_from(s))
    assert float(found["moment"].sel(word="S1")[0]) == 0.5
    assert float(found["moment"].sel(word="S2.S2")[0]) == 12.0
    assert found["loss"].values[-1] < found["loss"].values[0]
