"""SGD of direct, symmetric, untied and tied matrices and of values: gradients, flows, records, bad input."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import toy_solver
from scipy.integrate import solve_ivp

from tracewords.errors import ModelError
from tracewords.runtime import sgd_steps
from tracewords.runtime.sgd import simulate, summary

CORRELATED = [[1.0, 0.4], [0.4, 1.0]]
ALL = [(1, 1), (1, 2), (2, 1), (2, 2)]


def plain_score(kind: str, f: Any) -> Any:
    """S of one letter, as defined."""
    return f @ f.T if kind == "tied" else f[0] @ f[1].T if kind == "untied" else f


def plain_loss(solver: Any, factors: dict[str, Any], x: Any, decay: float) -> float:
    """Mean of the loss over the batch x (T, B, d), entry by entry, with the penalty of weight decay."""
    d, rows = x.shape[2], []
    for letter, i, j in solver.PREACTIVATIONS:
        S = plain_score(solver.KINDS[letter], factors[letter])
        centre = solver.COVARIANCE[i - 1][j - 1] * np.trace(S) if solver.KINDS[letter] == "tied" else 0.0
        rows.append([(u @ S @ v - centre) / np.sqrt(d) for u, v in zip(x[i - 1], x[j - 1], strict=True)])
    traces = [np.trace(factors[k] @ factors[l].T) / d for k, l in solver.TRACES]
    arguments = (np.array(rows), {}, np.array(traces)) if traces else (np.array(rows), {})
    trained = [a for k in solver.STUDENTS for a in parts(factors[k])]
    return float(np.mean(solver.loss(*arguments)) + decay / 2 * sum((a**2).sum() for a in trained))


def parts(factors: Any) -> tuple[Any, ...]:
    return factors if isinstance(factors, tuple) else (factors,)


def draw(solver: Any, d: int, seed: int = 0) -> dict[str, Any]:
    """Factors of all letters, tied and untied ones of different ranks; all values have the same."""
    rng = np.random.default_rng(seed)
    factors: dict[str, Any] = {}
    for n, (k, kind) in enumerate(solver.KINDS.items()):
        if kind == "untied":
            factors[k] = tuple(rng.standard_normal((2, d, d - 1 + n % 3)) / np.sqrt(d))
        else:
            columns = {"tied": d - 2 + n % 4, "values": d + 1}.get(kind, d)
            a = rng.standard_normal((d, columns)) / np.sqrt(d)
            factors[k] = (a + a.T) / 2 if kind == "symmetric" else a
    return factors


def entries(**of: list[tuple[int, int]]) -> tuple[tuple[str, int, int], ...]:
    return tuple((k, i, j) for k, pairs in of.items() for i, j in pairs)


def model(kinds: str, students: int, values: int = 0, **pairs: list[tuple[int, int]]) -> Any:
    """`waves` of score matrices S1, S2, .. of these kinds, the first ones trained, and of values V1, V2."""
    names = kinds.split()
    table = {f"S{n + 1}": kind for n, kind in enumerate(names)}
    trained = tuple(table)[:students]
    table |= dict.fromkeys(("V1", "V2")[:values], "values")
    traces = (("V1", "V1"), ("V1", "V2"), ("V2", "V2")) if values else ()
    read = entries(**pairs) if pairs else entries(**{k: ALL for k in table if k[0] == "S"})
    solver = toy_solver.general(
        table, (*trained, "V1") if values else trained, TRACES=traces, PREACTIVATIONS=read, covariance=CORRELATED
    )
    return toy_solver.waves(solver)


# -- the gradient ------------------------------------------------------------------------------------------

MIXTURES = {
    "direct": lambda: model("direct direct", 1),
    "direct, one entry": lambda: model("direct direct", 1, S1=[(2, 1)], S2=[(1, 2)]),
    "direct, few second tokens": lambda: model("direct direct", 1, S1=[(1, 2), (2, 2)], S2=[(1, 1), (2, 1)]),
    "symmetric": lambda: model("symmetric symmetric", 1),
    "symmetric learns general": lambda: model("symmetric direct", 1),
    "untied": lambda: model("untied direct", 1),
    "untied learns untied": lambda: model("untied untied", 1, S1=[(1, 2)], S2=[(1, 2), (2, 2)]),
    "untied learns tied": lambda: model("untied tied", 1),
    "tied learns untied": lambda: model("tied untied", 1),
    "no teacher": lambda: model("direct", 1),
    "two heads": lambda: model("untied direct untied", 2),
    "all kinds": lambda: model(
        "tied direct symmetric untied direct symmetric", 4, S1=ALL, S2=ALL[1:], S3=ALL[:3], S4=ALL, S5=ALL, S6=ALL[1:2]
    ),
    "values": lambda: model("tied tied", 1, values=2),
    "values and all kinds": lambda: model("untied direct symmetric tied untied", 4, values=2),
    "values alone": lambda: model("direct untied", 0, values=2),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_step_follows_finite_differences(name: str) -> None:
    solver, d, batch, decay, alpha = MIXTURES[name](), 5, 4, 0.3, 0.01
    factors = draw(solver, d)
    x = np.random.default_rng(1).standard_normal((2, batch, d))
    learner = sgd_steps.Learner(solver, factors, batch, "float64", {})
    seen = x if learner.basis is None else np.ascontiguousarray(x @ learner.basis)
    teachers = {solver.KINDS[k] for k in solver.LETTERS if k not in solver.STUDENTS}
    assert (learner.basis is None) == teachers.isdisjoint(("tied", "symmetric"))
    assert learner.loss(seen).mean() == pytest.approx(plain_loss(solver, factors, x, 0.0), rel=1e-11)
    learner.step(seen, alpha, decay)
    after = learner.trained()
    assert list(after) == [*(k for k in solver.STUDENTS if k[0] == "S"), *(k for k in solver.STUDENTS if k[0] == "V")]
    for k in solver.STUDENTS:
        before = parts(factors[k])
        for n, (old, new) in enumerate(zip(before, parts(after[k]), strict=True)):
            slope = np.empty_like(old)
            for index in itertools.product(*map(range, old.shape)):
                ends = []
                for sign in (1, -1):
                    moved = old.copy()
                    moved[index] += sign * 1e-5
                    changed = tuple(moved if m == n else f for m, f in enumerate(before))
                    changed = changed if len(changed) > 1 else changed[0]  # type: ignore[assignment]
                    ends.append(plain_loss(solver, {**factors, k: changed}, x, decay))
                slope[index] = (ends[0] - ends[1]) / 2e-5
            slope = (slope + slope.T) / 2 if solver.KINDS[k] == "symmetric" else slope
            np.testing.assert_allclose((old - new) / alpha, slope, rtol=1e-7, atol=2e-8)


def test_float32_stays_near_float64() -> None:
    solver, batch = MIXTURES["values and all kinds"](), 16
    factors = draw(solver, 30)
    precise, short = (sgd_steps.Learner(solver, factors, batch, t, {}) for t in ("float64", "float32"))
    rng = np.random.default_rng(3)
    for _ in range(20):
        x = rng.standard_normal((2, batch, 30))
        for learner in (precise, short):
            learner.loss(x.astype(learner.h.dtype))
            learner.step(x.astype(learner.h.dtype), 0.02, 0.01)
    for k, S in precise.matrices().items():
        assert np.abs(S - short.matrices()[k]).max() < 2e-5, k


# -- drift and noise ---------------------------------------------------------------------------------------


@pytest.mark.statistical
def test_one_small_step_moves_direct_by_the_drift() -> None:
    # l = (h^1_12 - h^2_12)^2 / 2: [grad_Omega Phi]_11 = 1/2 = -[..]_12, [grad_Psi Phi] = c^2 times that, and
    # dPhi/dm_1 = c^2 (m_1 - m_2); with D = S1 - S2 so dS/dtau = -(D + c^2 D') - c^2 Tr D I - gamma S, for every d
    c, d, batch, alpha, gamma = 0.4, 40, 1000, 1e-4, 0.6
    solver = toy_solver.linear("direct", covariance=[[1.0, c], [c, 1.0]])
    factors = draw(solver, d)
    S, T = factors.values()
    D = S - T
    velocity = -(D + c**2 * D.T) - c**2 * np.trace(D) * np.eye(d) - gamma * S
    learner = sgd_steps.Learner(solver, factors, batch, "float64", {})
    start, root, rng = learner.students["S1"].S.copy(), np.linalg.cholesky(CORRELATED), np.random.default_rng(4)  # type: ignore[attr-defined]
    changes = []
    for _ in range(100):
        learner.students["S1"].S[...] = start  # type: ignore[attr-defined]
        x = np.tensordot(root, rng.standard_normal((2, batch, d)), 1)
        learner.loss(x)
        learner.step(x, alpha, gamma / d)
        changes.append((learner.trained()["S1"] - S) * d / alpha)
    # tr(dS A') along directions A that see S, S', the teacher, and the mean
    against = {"S": S, "S'": S.T, "T": T, "T'": T.T, "I": np.eye(d)}
    for name, A in against.items():
        seen = np.array([(change * A).sum() / d for change in changes])
        error = seen.std(ddof=1) / np.sqrt(len(seen))
        expected = (velocity * A).sum() / d
        assert abs(seen.mean() - expected) < 4 * error, name
        assert error < 0.05, name


@pytest.mark.statistical
@pytest.mark.parametrize(("kappa", "batch"), [(0.05, 32), (0.5, 4)])
def test_direct_follows_its_closed_solution(kappa: float, batch: int) -> None:
    # C = I: dOmega_12 = Omega_22 - Omega_12; E = Omega_11 - 2 Omega_12 + Omega_22 is also what the noise sees,
    # so dE = (kappa - 2) E.  For d to infinity; the noise of finite d is kappa (1 + 2/d)^2
    d = 60
    times = np.array([0.0, 0.2, 0.6])
    ds = simulate(toy_solver.linear("direct"), d=d, batch=batch, times=times, seeds=8, seed=3, kappa=kappa)
    tau = ds.time.values
    q11, q12, q22 = (ds.moment.sel(word=w).values for w in ("S1.S1'", "S1.S2'", "S2.S2'"))
    a, b, c = q11[:, :1], q12[:, :1], q22[:, :1]
    x12 = c + (b - c) * np.exp(-tau)
    x11 = (a - 2 * b + c) * np.exp(-(2 - kappa) * tau) + 2 * x12 - c
    for seen, expected in ((q11, x11), (q12, x12)):
        apart = seen - expected
        error = apart.std(axis=0, ddof=1) / np.sqrt(len(apart))
        # 4 standard errors, and 4 kappa / d of finite d on top
        assert np.all(np.abs(apart.mean(axis=0)) <= 4 * error + 4 * kappa / d), (apart.mean(axis=0), error)
        assert np.all(error < 0.01)


def untied_flow(U: Any, V: Any, T: Any, end: float) -> tuple[Any, Any]:
    """``dU = -(U V' - T) V``, ``dV = -(U V' - T)' U``."""
    shape, half = U.shape, U.size

    def slope(_: float, y: Any) -> Any:
        U, V = y[:half].reshape(shape), y[half:].reshape(shape)
        D = U @ V.T - T
        return -np.concatenate([(D @ V).ravel(), (D.T @ U).ravel()])

    y = solve_ivp(slope, (0, end), np.concatenate([U.ravel(), V.ravel()]), rtol=1e-8, atol=1e-10).y[:, -1]
    return y[:half].reshape(shape), y[half:].reshape(shape)


@pytest.mark.statistical
def test_untied_follows_the_matrix_flow_of_the_same_matrices() -> None:
    # d = 120, kappa = 0.01, tau = 0.05.  Of first order in kappa are the loop terms, of size kappa tau N x with
    # N = tr(D D'), x = 2 tr A tr B + (tr A)^2 + (tr B)^2 for Omega_11, tr B for A = U U', tr A for B = V V'
    d, kappa, end = 120, 0.01, 0.05
    solver = toy_solver.linear("untied")
    solver.RANK_RATIOS["S1"] = 0.5
    rng = np.random.default_rng(7)
    U, V = rng.standard_normal((2, d, d // 2)) / np.sqrt(d)
    T = rng.standard_normal((d, d)) / np.sqrt(d)
    initial = {"S1": (U, V), "S2": T}
    words = ["S1.S1'", "S1.S2'", "S1uu", "S1vv", "S1uu.S1uu", "S1.S1"]
    ds = simulate(solver, d=d, batch=64, times=[0, end], seeds=4, seed=1, kappa=kappa, initial=initial, words=words)
    assert ds.attrs["kappa"] == pytest.approx(kappa)
    end = float(ds.time[-1])

    def moments(U: Any, V: Any) -> dict[str, float]:
        S, A, B = U @ V.T, U @ U.T, V @ V.T
        products = (S @ S.T, S @ T.T, A, B, A @ A, S @ S)
        return {w: np.trace(m) / d for w, m in zip(words, products, strict=True)}

    before, after = moments(U, V), moments(*untied_flow(U, V, T, end))
    a, b, noise = before["S1uu"], before["S1vv"], ((U @ V.T - T) ** 2).sum() / d
    loops = {"S1.S1'": 2 * a * b + a**2 + b**2, "S1uu": b, "S1vv": a, "S1.S2'": 0.0}
    means = summary(ds).isel(time=1)
    for w in words:
        start = ds.moment.sel(word=w).isel(time=0).values
        np.testing.assert_allclose(start, before[w], rtol=1e-12)
        apart = float(means["mean"].sel(word=w)) - after[w]
        error = float(means["sem"].sel(word=w))
        assert error < 0.003, w
        assert abs(after[w] - before[w]) > 15 * error or w == "S1.S1", w
        if w in loops:
            loop = kappa * end * noise * loops[w]
            # 0.2 of a loop term: it changes along the run, and finite d adds 4/d
            assert abs(apart - loop) < 4 * error + 0.2 * loop, (w, apart, loop, error)
        else:
            assert abs(apart) < 4 * error + 0.002, w


@pytest.mark.statistical
def test_values_follow_their_linear_equation() -> None:
    # d V1 / d tau = -a V1 + b V2 with a = E h1_12^2 = tr(S1 S1'), b = E h1_12 h2_12 = tr(S1 S2'), exact at every d
    d = 60
    solver = toy_solver.frozen_head()
    factors = draw(solver, d, seed=5)
    factors["S2"] = 0.8 * factors["S1"] + 0.6 * factors["S2"]
    a, b = ((factors["S1"] * factors[k]).sum() / d for k in ("S1", "S2"))
    ds = simulate(solver, d=d, batch=16, times=[0, 0.4, 1.2], seeds=8, kappa=0.2, initial=factors)
    fade = np.exp(-a * ds.time.values)
    V = [f * factors["V1"] + b / a * (1 - f) * factors["V2"] for f in fade]
    expected = {
        "V1.V1'": [(v * v).sum() / d for v in V],
        "V1.V2'": [(v * factors["V2"]).sum() / d for v in V],
        "V2.V2'": [(factors["V2"] ** 2).sum() / d] * 3,
    }
    assert ds.word.values.tolist() == ["S1", "S2", *expected]
    means = summary(ds)
    for word, values in expected.items():
        error = means["sem"].sel(word=word).values
        assert np.all(np.abs(means["mean"].sel(word=word).values - values) <= 4 * error + 2 * 0.2 / d), word
        assert np.all(error < 0.01), word
    assert abs(expected["V1.V2'"][2] - expected["V1.V2'"][0]) > 0.2
    assert "score_mean" not in ds
    assert ds.overlap.isnull().all()


# -- records and starts ------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"d": 12, "batch": 4, "times": [0, 0.02], "kappa": 0.1}


def test_records_of_all_kinds() -> None:
    solver = MIXTURES["values and all kinds"]()
    d, factors = 12, draw(MIXTURES["values and all kinds"](), 12)
    S = {k: plain_score(solver.KINDS[k], f) for k, f in factors.items()}
    U, V = factors["S1"]
    products = {
        "S1": S["S1"],
        "S1uu.S2'": U @ U.T @ S["S2"].T,
        "S1vv.S1vv": V @ V.T @ V @ V.T,
        "S5uu.S1'.S4": factors["S5"][0] @ factors["S5"][0].T @ S["S1"].T @ S["S4"],
        "V1.V2'": factors["V1"] @ factors["V2"].T,
        "S2.V1.V1'": S["S2"] @ factors["V1"] @ factors["V1"].T,
    }
    ds = simulate(solver, **SHORT, initial=factors, words=list(products))
    for word, product in products.items():
        assert float(ds.moment.sel(word=word)[0, 0]) == pytest.approx(np.trace(product) / d, rel=1e-11), word
    assert ds.letter.values.tolist() == ["S1", "S2", "S3", "S4"]
    means = [np.trace(S[k]) / np.sqrt(d) for k in ds.letter.values]
    np.testing.assert_allclose(ds.score_mean[0, 0], means)
    assert ds.score_mean.notnull().all()
    a, b = (m - np.trace(m) / d * np.eye(d) for m in (S["S1"], S["S5"]))
    assert float(ds.overlap[0, 0]) == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def test_default_words_and_units() -> None:
    untied = simulate(toy_solver.linear("untied"), **SHORT)
    assert untied.word.values.tolist() == ["S1", "S1uu", "S1vv", "S2", "S1.S1'", "S1.S2'", "S2.S2'"]
    assert untied.time.attrs == {"units": "alpha n / d", "long_name": "tau"}
    np.testing.assert_allclose(untied.time, untied.step * untied.attrs["alpha"] / 12)
    values = simulate(MIXTURES["values"](), **SHORT, order=2)
    pairs = ["V1.V1'", "V1.V2'", "V2.V2'"]
    assert values.word.values.tolist() == ["S1", "S2", "S1.S1", "S1.S2", "S2.S2", *pairs]
    assert values.time.attrs["units"] == "4 alpha n / d"
    # classes of length 2 in S1, S1', S2, S2': 11 11' 12 12' 22 22'
    assert simulate(toy_solver.linear("direct"), **SHORT, order=2).sizes["word"] == 8


@pytest.mark.parametrize("kind", ["direct", "symmetric", "untied"])
def test_mean_of_a_drawn_matrix(kind: str) -> None:
    solver = toy_solver.linear(kind, kind, MEANS=("S1", "S2"))
    plain = simulate(solver, **SHORT)
    moved = simulate(solver, **SHORT, params={"m_S1": 1.5, "m_S2": -0.5})
    np.testing.assert_allclose(moved.score_mean[:, 0], plain.score_mean[:, 0] + 1.5)
    change = (moved.moment - plain.moment).sel(word="S2")[0, 0]
    assert float(change) == pytest.approx(-0.5 / np.sqrt(12))


def test_starts_by_function_and_by_law() -> None:
    solver = toy_solver.linear("untied", "untied")
    solver.RANK_RATIOS["S1"] = 0.25
    made = []

    def start(rng: Any, d: int, r: int) -> Any:
        made.append((d, r))
        return rng.standard_normal((2, d, r)) * np.ones(1), 2 * rng.standard_normal((d, r))

    with pytest.raises(ModelError, match=r"initial.S1.*pair U, V of shape \(12, r\)"):
        simulate(solver, **SHORT, initial={"S1": start})
    assert made == [(12, 3)]
    ds = simulate(solver, **SHORT, initial={"S1": ("ginibre-product", {}), "S2": ("identity", {"scale": 2})})
    assert float(ds.moment.sel(word="S2.S2'")[0, 0]) == pytest.approx(4)
    assert 0.05 < float(ds.moment.sel(word="S1uu")[0, 0]) < 0.6  # of rank ratio 1/4
    both = [simulate(solver, **SHORT, seeds=s, seed=2) for s in (3, [1])]
    np.testing.assert_array_equal(both[0].moment.sel(run=1), both[1].moment.sel(run=1))


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "letter", "given"),
    [
        ("untied", "S1", np.ones((12, 3))),
        ("untied", "S1", (np.ones((12, 3)),)),
        ("untied", "S1", (np.ones((12, 3)), np.ones((12, 4)))),
        ("untied", "S1", (np.ones((11, 3)), np.ones((11, 3)))),
        ("untied", "S1", (np.ones((12, 3)), np.full((12, 3), np.inf))),
        ("untied", "S1", (np.ones((12, 3)), np.ones((12, 3)), np.ones((12, 3)))),
        ("untied", "S1", lambda rng, d, r: np.ones((d, r))),
        ("untied", "S1", lambda rng, d, r: None),
        ("untied", "S2", (np.ones((12, 3)), np.ones((12, 3)))),
        ("direct", "S1", np.ones((12, 11))),
        ("direct", "S1", np.ones((11, 11))),
        ("direct", "S1", (np.ones((12, 12)), np.ones((12, 12)))),
        ("direct", "S1", (np.ones((12, 12)), np.ones((12, 3)))),
        ("direct", "S1", np.full((12, 12), np.nan)),
        ("direct", "S1", np.full((12, 12), 1j)),
        ("direct", "S1", ("wigner", {})),
        ("direct", "S1", "ginibre"),
        ("symmetric", "S1", np.triu(np.ones((12, 12)))),
        ("symmetric", "S1", ("ginibre", {})),
    ],
)
def test_bad_start_is_refused_in_one_line(kind: str, letter: str, given: Any) -> None:
    with pytest.raises(ModelError) as caught:
        simulate(toy_solver.linear(kind), **SHORT, initial={letter: given})
    assert caught.value.field.startswith(f"initial.{letter}")
    assert "\n" not in str(caught.value)


def test_other_bad_input_is_refused_in_one_line() -> None:
    solver = toy_solver.linear("untied")
    del solver.LAWS["S2"]
    values = toy_solver.frozen_head()
    cases = [
        ("initial.S2", solver, {}),
        ("initial", solver, {"initial": {"S1uu": np.eye(12)}}),
        ("initial.V2", values, {"initial": {"V1": np.ones((12, 3)), "V2": np.ones((12, 4))}}),
        ("word", values, {"words": ["V1.V1"]}),
        ("word", values, {"words": ["V1'"]}),
        ("word", values, {"words": ["V1.S1.V1'"]}),
        ("word", values, {"words": ["S1uu"]}),
        ("parameter m_V1", values, {"params": {"m_V1": 1}}),
        ("d, batch", toy_solver.linear("untied"), {"d": 10**7}),
        ("d, batch", values, {"d": 10**7}),
    ]
    for field, which, change in cases:
        with pytest.raises(ModelError) as caught:
            simulate(which, **{**SHORT, **change})
        assert caught.value.field == field
        assert "\n" not in str(caught.value)
