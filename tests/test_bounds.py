"""The certificate against its closed form, against errors, and against the operator norms of real matrices."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from tracewords.derive.model import tied_scalar
from tracewords.errors import ModelError
from tracewords.runtime.bounds import Certificate, Majorant, certify, combine, horizon, horizons
from tracewords.runtime.integrate import Options, solve
from tracewords.runtime.start import Start, start_from
from tracewords.runtime.validate import validate
from tracewords.solvers import curvature, model_from, solver

EXACT = Options(rtol=1e-11, atol=1e-13, backend="numpy")


def test_horizons_have_their_closed_forms() -> None:
    s = solver("tied-h1", 5)
    start = start_from(s)
    # g = 1/2 + 1/2, C^2 = 4; the sharper one is ln(1 + |G12| b2 / (|G11| b1)) / (2 |G12| b2)
    assert horizon(s, start) == pytest.approx(0.125, rel=1e-12)
    path = solve(s, np.linspace(0, 0.2, 101), start=start, options=EXACT)
    found = horizons(s, path, start)
    assert found["start"] == pytest.approx(0.125, rel=1e-12)
    assert found["run"] == pytest.approx(0.125, rel=1e-6)
    assert found["integrated"] == pytest.approx(0.125, rel=1e-6)
    assert found["sharp"] == pytest.approx(np.log(2) / 4, rel=1e-6)
    assert horizon(solver("tied-softmax", 5), start_from(solver("tied-softmax", 5))) == pytest.approx(0.6346, abs=1e-4)


def test_majorant_is_the_remainder_of_a_taylor_series() -> None:
    """Constant couplings, one class of letters: E_w = binom(M, w-1) (2 g b t)^(M+1-w) b^w in closed form.

    The teacher is zero, G = (1/2, -1/2): x' = x^2 has the series of 1/(1 - x t); norms fall, so the bound is below the
    form with norms held at the start, and above it with norms held at the end.
    """
    s = solver("tied-h1", 6)
    start = start_from(s, laws={"S1": ("identity", {"scale": 0.5}), "S2": ("zero", {})})
    t = 0.3
    path = solve(s, np.linspace(0, t, 51), start=start, options=EXACT)
    majorant = Majorant(s, path, start, None, {"G11": 0.0, "G12": 0.0})
    bound, norms = majorant.solve()
    m, w = 6, 2
    forms = [comb(m, w - 1) * (2 * 0.5 * b * t) ** (m + 1 - w) * b**w for b in (norms[-1, 0], 0.5)]
    assert forms[0] < bound[-1] < forms[1]
    # the norm itself: a' = -a^2
    assert norms[-1, 0] == pytest.approx(0.5 / (1 + 0.5 * t), rel=1e-6)


@pytest.mark.parametrize("name", ["tied-softmax", "tied-h1", "tied-h2", "tied-h3"])
def test_certificate_is_above_the_error_and_shrinks_with_the_order(name: str) -> None:
    model = model_from(name)
    best = solver(name, 13)
    start = start_from(best)
    curve = curvature(model, dict(best.PARAMETERS))
    end = horizon(best, start) / 4
    grid = np.linspace(0, end, 51)
    words = list(best.ORDER_PARAMETERS)
    truth = solve(best, grid, closure="operator", start=start, options=EXACT)["moment"].sel(word=words).values
    own: dict[int, Certificate] = {}
    paths: dict[int, np.ndarray] = {}
    for order in (4, 6, 8, 10):
        s = solver(name, order)
        path = solve(s, grid, start=start, options=EXACT)
        paths[order] = path["moment"].sel(word=words).values
        own[order] = certify(s, path, start, None, curve)
    errors = {m: np.maximum.accumulate(np.abs(p - truth).max(axis=1)) for m, p in paths.items()}
    for bounds in (own, combine(own, paths)):
        for order, c in bounds.items():
            assert c.proven
            assert np.all(errors[order] <= c.bound + 1e-10)
    assert own[10].bound[-1] < 0.05 * own[6].bound[-1]
    assert np.isfinite(own[10].bound).all()
    # a higher order makes a low order's bound nearly exact
    assert combine(own, paths)[4].bound[-1] < 1.01 * errors[4][-1] + 1e-4


def test_norm_comparison_holds_for_sampled_matrices() -> None:
    s = solver("tied-softmax", 8)
    rng = np.random.default_rng(2)
    w = {k: rng.standard_normal((60, 60)) / np.sqrt(60) for k in s.LETTERS}
    start = start_from(s, factors=w)
    grid = np.linspace(0, 0.2, 41)
    path = solve(s, grid, start=start, options=EXACT)
    majorant = Majorant(s, path, start, None, curvature(model_from("tied-softmax"), dict(s.PARAMETERS)))
    _, norms = majorant.solve()
    # the matrix flow itself, by small Euler steps
    x, y = (w[k] @ w[k].T for k in s.LETTERS)
    h = 1e-3
    for n in range(200):
        q = np.array([np.vdot(x, x), np.vdot(x, y), np.vdot(y, y)]) / 60
        g = s.couplings(q)
        pull = g[0] * x + g[1] * y
        x = x - h * (pull @ x + x @ pull)
        if (n + 1) % 50 == 0:
            at = (n + 1) // 5
            assert np.linalg.norm(x, 2) <= norms[at, 0] * (1 + 1e-3)


def test_certificate_without_curvature_is_called_an_estimate() -> None:
    model = tied_scalar("erf")
    s = solver(model, 4)
    start = start_from(s)
    assert curvature(model, dict(s.PARAMETERS)) is None
    path = solve(s, np.linspace(0, 0.01, 11), start=start, options=EXACT)
    c = certify(s, path, start, None, None)
    assert not c.proven
    assert any("sampled" in h.how for h in c.hypotheses)


def test_validation_reports_failures_and_holds() -> None:
    result = validate(
        lambda m: solver("tied-h1", m), range(2, 6), start_from(solver("tied-h1", 5)), {"G11": 0.0, "G12": 0.0}
    )
    assert result.holds
    assert {r.order for r in result.rows} == {2, 3, 4, 5}
    assert result.rate.measured < result.rate.bound == pytest.approx(0.5)
    with pytest.raises(ModelError, match="initial"):
        validate(lambda m: solver("tied-h1", m), range(2, 6), Start(moments={"S1": 1.0}), None)


def test_violated_bound_is_seen() -> None:
    """A certificate that is too small by hand must make the verdict false: the check can fail."""
    from dataclasses import replace

    result = validate(
        lambda m: solver("tied-h1", m), [3, 4], start_from(solver("tied-h1", 5)), {"G11": 0.0, "G12": 0.0}
    )
    worse = replace(result, rows=[replace(r, certificate=0.5 * r.error) for r in result.rows])
    assert not worse.holds
