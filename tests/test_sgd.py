"""One-pass SGD: its gradient, its drift and noise, its random numbers, and how it fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import toy_solver
import xarray as xr

from tracewords.errors import DivergedError, ModelError
from tracewords.runtime import sgd_steps
from tracewords.runtime.sgd import simulate, summary, zscores

CORRELATED = [[1.0, 0.4], [0.4, 1.0]]


def plain_h(solver: Any, factors: dict[str, Any], x: Any) -> Any:
    """h (H, B) entry by entry from tokens x (T, B, d), as defined."""
    d = x.shape[2]
    rows = []
    for letter, i, j in solver.PREACTIVATIONS:
        S = factors[letter] @ factors[letter].T
        quadratic = np.array([a @ S @ b for a, b in zip(x[i - 1], x[j - 1], strict=True)])
        rows.append((quadratic - solver.COVARIANCE[i - 1][j - 1] * np.trace(S)) / np.sqrt(d))
    return np.array(rows)


def draw_factors(solver: Any, d: int, ranks: list[int], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal((d, r)) / np.sqrt(d) for k, r in zip(solver.LETTERS, ranks, strict=True)}


def in_frame(learner: sgd_steps.Learner, x: Any) -> Any:
    return np.ascontiguousarray(x @ learner.basis)


# -- the gradient ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "students", "ranks"),
    [
        (lambda: toy_solver.softmax(1, CORRELATED), 1, [7, 3]),
        (lambda: toy_solver.softmax(2, CORRELATED), 2, [3, 8, 6]),
        (lambda: toy_solver.hermite(1, CORRELATED), 1, [6, 6]),
        (lambda: toy_solver.hermite(2, [[1.0, 1.0], [1.0, 1.0]]), 1, [2, 9]),
    ],
)
def test_step_follows_finite_differences(make: Callable[[], Any], students: int, ranks: list[int]) -> None:
    solver, d, batch, decay, alpha = make(), 6, 5, 0.3, 0.01
    factors = draw_factors(solver, d, ranks)
    x = np.random.default_rng(1).standard_normal((2, batch, d))
    params = {"beta": 0.8}

    def objective(letter: str, W: Any) -> float:
        losses = solver.loss(plain_h(solver, {**factors, letter: W}, x), params)
        return float(losses.mean() + decay / 2 * (W**2).sum())

    learner = sgd_steps.Learner(solver, factors, batch, "float64", params)
    losses = learner.loss(in_frame(learner, x))
    np.testing.assert_allclose(losses, solver.loss(plain_h(solver, factors, x), params), rtol=1e-11)
    learner.step(in_frame(learner, x), alpha, decay)
    assert len(learner.students) == students
    for letter, student in learner.students.items():
        W = factors[letter]
        slope = np.empty_like(W)
        for index in itertools.product(*map(range, W.shape)):
            step = np.zeros_like(W)
            step[index] = 1e-5
            slope[index] = (objective(letter, W + step) - objective(letter, W - step)) / 2e-5
        moved = learner.basis @ student.W  # type: ignore[attr-defined]
        np.testing.assert_allclose((W - moved) / alpha, slope, rtol=1e-7, atol=1e-8)


def test_only_tokens_that_the_loss_reads_are_used() -> None:
    # heads on 2 and 5, on 2 and 7, which are not neighbours, on 7 and 5; two teachers, one not diagonal
    entries = [("S1", 2, 5), ("S2", 7, 2), ("S3", 7, 5), ("S1", 5, 2), ("S2", 2, 2), ("S4", 7, 7)]
    entries += [("S4", 5, 2)]
    solver = toy_solver.softmax(3)
    solver.COVARIANCE = tuple(map(tuple, (0.5 * np.eye(7) + 0.5).tolist()))
    solver.PREACTIVATIONS, solver.STUDENTS = tuple(entries), ("S1", "S2")
    solver.loss = lambda h, params: (h**2).sum(axis=0) / 2
    solver.loss_gradient = lambda h, params: h
    assert sgd_steps.tokens_read(entries) == [1, 4, 6]
    factors = draw_factors(solver, 5, [5, 4, 6, 5])
    x = np.random.default_rng(2).standard_normal((7, 4, 5))
    learner = sgd_steps.Learner(solver, factors, 4, "float64", {})
    seen = in_frame(learner, x[[1, 4, 6]])
    learner.loss(seen)
    h = plain_h(solver, factors, x)
    np.testing.assert_allclose(learner.h, h, rtol=1e-10)
    learner.step(seen, 0.1, 0.0)
    for letter in solver.STUDENTS:
        W, gradient = factors[letter], np.zeros_like(factors[letter])
        for (name, i, j), row in zip(entries, h, strict=True):
            for b in range(4) if name == letter else ():
                u, v = x[i - 1, b], x[j - 1, b]
                centre = 2 * solver.COVARIANCE[i - 1][j - 1] * W
                gradient += row[b] * (np.outer(u, v @ W) + np.outer(v, u @ W) - centre) / np.sqrt(5) / 4
        moved = learner.basis @ learner.students[letter].W  # type: ignore[attr-defined]
        np.testing.assert_allclose(moved, W - 0.1 * gradient, rtol=1e-10, atol=1e-12)


def test_float32_stays_near_float64() -> None:
    solver, d, batch = toy_solver.softmax(1, CORRELATED), 40, 16
    factors = draw_factors(solver, d, [40, 40])
    precise, short = (sgd_steps.Learner(solver, factors, batch, t, {}) for t in ("float64", "float32"))
    rng = np.random.default_rng(3)
    for _ in range(30):
        x = rng.standard_normal((2, batch, d))
        for learner in (precise, short):
            learner.loss(x.astype(learner.h.dtype))
            learner.step(x.astype(learner.h.dtype), 0.1, 0.01)
    assert short.students["S1"].W.dtype == np.float32  # type: ignore[attr-defined]
    S, T = precise.matrices()["S1"], short.matrices()["S1"]
    assert 1e-9 < np.abs(S - T).max() < 1e-5


# -- drift and noise ---------------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_one_small_step_moves_moments_by_the_drift(gamma: float) -> None:
    # l = (h^1_12 - h^2_12)^2 / 2 has gradient G11 = (1 + c^2) / 2 = -G12, exactly at every d, so that
    # dS/dt = -g ((S - T) S + S (S - T)) - (gamma / 2) S, from which the three derivatives below
    c, d, batch, alpha = 0.4, 60, 1000, 1e-4
    solver = toy_solver.hermite(1, [[1.0, c], [c, 1.0]])
    factors = draw_factors(solver, d, [60, 30])
    S, T = (W @ W.T for W in factors.values())
    root = np.linalg.cholesky(np.array(solver.COVARIANCE))
    learner = sgd_steps.Learner(solver, factors, batch, "float64", {})
    student = learner.students["S1"]
    start, changes = student.W.copy(), []  # type: ignore[attr-defined]
    rng = np.random.default_rng(4)
    for _ in range(200):
        student.W[...] = start  # type: ignore[attr-defined]
        x = in_frame(learner, np.tensordot(root, rng.standard_normal((2, batch, d)), 1))
        learner.loss(x)
        learner.step(x, alpha, gamma / d)
        now, teacher = learner.matrices().values()
        values = [np.trace(now), (now * now).sum(), (now * teacher).sum()]
        changes.append(np.array(values) / (4 * alpha))
    before = np.array([np.trace(S), (S * S).sum(), (S * T).sum()]) / (4 * alpha)
    mean = np.mean(changes, axis=0) - before
    sem = np.std(changes, axis=0, ddof=1) / np.sqrt(len(changes))
    velocity = -(1 + c**2) / 2 * ((S - T) @ S + S @ (S - T)) - gamma / 2 * S
    expected = np.array([np.trace(velocity), 2 * np.trace(velocity @ S), np.trace(velocity @ T)]) / d
    assert np.all(np.abs(mean - expected) < 4 * sem), (mean - expected) / sem
    assert np.all(sem < 0.02 * np.abs(expected))


@pytest.mark.statistical
def test_long_run_has_the_noise_of_a_finite_learning_rate() -> None:
    # q_11 from moment equations of order 8 with noise terms is 1.814 at t = 0.12, without them 1.530
    ds = simulate(toy_solver.hermite(1), d=200, batch=16, times=[0, 0.12], seeds=8, kappa=0.5, seed=5)
    mean = summary(ds).sel(word="S1.S1").isel(time=1)
    assert ds.step.values.tolist() == [0, 150]
    assert abs(float(mean["mean"]) - 1.814) < 4 * float(mean["sem"]) + 0.01
    assert float(mean["sem"]) < 0.02


# -- random numbers and records ----------------------------------------------------------------------------

SHORT: dict[str, Any] = {"d": 20, "batch": 4, "times": [0, 0.05, 0.1], "kappa": 1.0}


def test_runs_are_reproducible_whatever_runs_are_beside_them() -> None:
    solver = toy_solver.softmax(1, CORRELATED)
    three, one, again = (simulate(solver, seeds=s, seed=7, **SHORT) for s in (3, [2], 3))
    assert three.moment.dims == ("run", "time", "word")
    assert one.run.values.tolist() == [2]
    for name in ("moment", "loss", "loss_sem", "overlap", "step"):
        xr.testing.assert_equal(three[name], again[name])
        third = three[name].sel(run=[2]) if "run" in three[name].dims else three[name]
        xr.testing.assert_equal(third, one[name])
    other = simulate(solver, seeds=[2], seed=8, **SHORT)
    assert not np.isclose(other.moment, one.moment).any(where=other.word.values == "S1")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("covariance", [np.eye(3), np.ones((3, 3)), [[2, -1, 0], [-1, 2, 0.5], [0, 0.5, 1]]])
def test_tokens_have_their_covariance_and_a_fixed_stream(dtype: str, covariance: Any) -> None:
    shape, C = (3, 40, 50), np.asarray(covariance, float)
    both: list[Any] = []
    for _ in range(2):
        batches = sgd_steps.Batches(np.random.SeedSequence(11), shape, C, dtype)
        both.append(np.array([batches.draw().copy() for _ in range(sgd_steps.steps_per_draw(shape) * 2 + 1)]))
        batches.close()
    np.testing.assert_array_equal(both[0], both[1])
    x = both[0]
    assert x.dtype == dtype
    z = np.moveaxis(x, 1, 0).reshape(3, -1)
    assert len(np.unique(x[:, 0, 0, :4], axis=0)) == len(x)  # no batch is handed out twice
    n = z.shape[1]
    error = np.sqrt((np.outer(np.diag(C), np.diag(C)) + C**2) / n)
    assert np.all(np.abs(z @ z.T / n - C) < 5 * error)


def test_dataset_says_what_it_holds() -> None:
    solver = toy_solver.softmax()
    times, words = [0, 0.011, 0.1, 0.1], ["S1.S1.S2", "S1"]
    ds = simulate(solver, d=20, batch=4, times=times, alpha=0.1, seeds=2, words=words)
    unit = 4 * 0.1 / 20
    assert ds.word.values.tolist() == words
    assert ds.step.values.tolist() == [0, 1, 5, 5]
    np.testing.assert_allclose(ds.time, unit * ds.step)
    assert ds.time.attrs == {"units": "4 alpha n / d", "long_name": "t"}
    assert ds.status.values.tolist() == ["ok", "ok"]
    assert ds.attrs["status"] == "ok"
    assert ds.diverged_step.values.tolist() == [-1, -1]
    assert ds.moment.notnull().all()
    assert ds.attrs["kappa"] == pytest.approx(0.1 * 20 / 4)
    said = {"alpha", "batch", "d", "dtype", "gamma", "model", "model_digest", "numpy", "tracewords"}
    assert said | {"wall_seconds"} <= set(ds.attrs)
    xr.testing.assert_equal(ds.loss[:, 2].drop_vars("time"), ds.loss[:, 3].drop_vars("time"))
    all_words = simulate(solver, d=20, batch=4, times=0.0, alpha=0.1, order=4).word.values
    assert [sum(w.count(".") == n for w in all_words) for n in range(4)] == [2, 3, 4, 6]


def test_records_agree_with_the_matrices_given() -> None:
    solver = toy_solver.hermite(1)
    W = draw_factors(solver, 30, [15, 40])
    kept = {k: w.copy() for k, w in W.items()}
    initial = {"S1": W["S1"], "S2": lambda *_: W["S2"]}
    ds = simulate(solver, d=30, batch=2, times=[0, 0.01], kappa=0.1, initial=initial)
    S, T = (w @ w.T for w in W.values())
    first = ds.isel(run=0, time=0)
    for word, value in {"S1": S, "S2": T, "S1.S1": S @ S, "S1.S2": S @ T, "S2.S2": T @ T}.items():
        assert float(first.moment.sel(word=word)) == pytest.approx(np.trace(value) / 30, rel=1e-12)
    a, b = (m - np.trace(m) / 30 * np.eye(30) for m in (S, T))
    assert float(first.overlap) == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
    for k in W:
        np.testing.assert_array_equal(W[k], kept[k])
    law = simulate(solver, d=30, batch=2, times=0, kappa=0.1, initial={"S1": ("identity", {"scale": 2})})
    assert float(law.moment.sel(word="S1.S1").squeeze()) == pytest.approx(4)


def test_loss_is_the_mean_since_the_last_record() -> None:
    solver = toy_solver.softmax()
    fine = simulate(solver, d=20, batch=8, times=np.arange(11) * 0.02, alpha=0.1)
    coarse = simulate(solver, d=20, batch=8, times=[0.2], alpha=0.1)
    assert fine.step.values.tolist() == list(range(11))
    assert float(coarse.loss[0, 0]) == pytest.approx(float(fine.loss[0, 1:].mean()))
    assert float(fine.loss[0, 0]) == float(fine.loss[0, 1])  # both are the first batch
    assert 0 < float(coarse.loss_sem[0, 0]) < float(fine.loss_sem[0, 1:].max())


def test_progress_and_stop() -> None:
    seen: list[tuple[int, int, Any]] = []
    ds = simulate(toy_solver.softmax(), seeds=2, progress=lambda *a: seen.append(a), **SHORT)
    assert [a[0] for a in seen] == sorted(a[0] for a in seen)
    assert seen[-1][:2] == (2 * ds.step.values[-1], 2 * ds.step.values[-1])
    plain = simulate(toy_solver.softmax(), seeds=2, **SHORT)
    xr.testing.assert_equal(ds, plain)

    def stop(at: Any) -> bool:
        return at.run == 1 and at.step > 0 and at.moments["S1"] > 0 and abs(at.overlap) < 1

    stopped = simulate(toy_solver.softmax(), seeds=2, stop=stop, **SHORT)
    assert stopped.status.values.tolist() == ["ok", "stopped"]
    xr.testing.assert_equal(stopped.moment[0], plain.moment[0])
    assert stopped.loss[1].notnull().values.tolist() == [True, True, False]


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_divergence_is_found(dtype: str) -> None:
    solver = toy_solver.hermite(2)
    with pytest.raises(DivergedError) as caught:
        simulate(solver, d=20, batch=2, times=[0, 40, 400], alpha=5.0, seeds=2, dtype=dtype)
    ds = caught.value.partial
    assert ds.status.values.tolist() == ["diverged", "diverged"]
    assert ds.moment.isel(time=0).notnull().all()
    assert not ds.moment.isel(time=2).notnull().any()
    assert 0 < caught.value.step == ds.diverged_step.values.min() < 400
    assert caught.value.time == pytest.approx(caught.value.step * 4 * 5.0 / 20)
    assert np.isfinite(ds.moment.values[ds.moment.notnull().values]).all()


def test_bounded_loss_cannot_hide_divergence() -> None:
    solver = toy_solver.softmax()
    solver.loss_gradient = lambda h, params=None: -h  # W grows, the loss stays below 2
    with pytest.raises(DivergedError, match="diverged at step"):
        simulate(solver, d=20, batch=2, times=[0, 400], alpha=1.0)


def test_one_diverged_run_leaves_the_others() -> None:
    solver = toy_solver.hermite(1)
    W = draw_factors(solver, 20, [20, 20])
    scales = iter([1.0, 1e4, 1.0])
    initial = {"S1": lambda *_: next(scales) * W["S1"]}
    ds = simulate(solver, d=20, batch=8, times=[0, 0.5], kappa=0.5, seeds=3, initial=initial)
    assert ds.status.values.tolist() == ["ok", "diverged", "ok"]
    assert ds.diverged_step.values[1] >= 0
    means = summary(ds)
    assert means["count"].values.tolist() == [3, 2]
    others = ds.moment.sel(word="S1")[::2, 1].mean()
    assert float(means["mean"].sel(word="S1")[1]) == pytest.approx(float(others))


def test_interruption_keeps_what_there_is() -> None:
    solver = toy_solver.softmax()

    def press(done: int, total: int, info: Any) -> None:
        if info.run == 1 and info.step > 0:
            raise KeyboardInterrupt

    ds = simulate(solver, seeds=3, progress=press, **SHORT)
    plain = simulate(solver, seeds=3, **SHORT)
    assert ds.status.values.tolist() == ["ok", "interrupted", "interrupted"]
    assert ds.attrs["status"] == "interrupted"
    xr.testing.assert_equal(ds.moment[0], plain.moment[0])
    xr.testing.assert_equal(ds.moment[1, :2], plain.moment[1, :2])
    assert ds.moment[1, 2].isnull().all()
    assert ds.moment[2].isnull().all()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("d", {"d": 1}),
        ("d", {"d": 2.5}),
        ("batch", {"batch": 0}),
        ("times", {"times": [0, np.inf]}),
        ("times", {"times": [-0.1, 1]}),
        ("times", {"times": [1, 0.5]}),
        ("times", {"times": []}),
        ("times", {"times": "soon"}),
        ("times", {"times": [1e300]}),
        ("kappa", {"kappa": 0}),
        ("kappa", {"kappa": None}),
        ("kappa", {"kappa": np.nan}),
        ("alpha", {"kappa": None, "alpha": -1}),
        ("alpha", {"alpha": 0.1}),
        ("dtype", {"dtype": "float16"}),
        ("seeds", {"seeds": 0}),
        ("seeds", {"seeds": [1, 1]}),
        ("seeds", {"seeds": []}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**100}),
        ("order", {"order": 0}),
        ("order", {"order": 60}),
        ("word", {"words": ["S1.S9"]}),
        ("parameter delta", {"params": {"delta": 1}}),
        ("parameter gamma", {"params": {"gamma": -1}}),
        ("parameter beta", {"params": {"beta": [1, 2]}}),
        ("initial", {"initial": {"S7": np.eye(20)}}),
        ("initial.S1", {"initial": {"S1": np.eye(21)}}),
        ("initial.S1", {"initial": {"S1": np.full((20, 3), np.nan)}}),
        ("initial.S1", {"initial": {"S1": ("semicircle", {})}}),
        ("d, batch", {"d": 10**7}),
        ("d, batch", {"batch": 10**12}),
    ],
)
def test_bad_input_is_refused_in_one_line(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        simulate(toy_solver.softmax(), **{**SHORT, **change})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_memory_message_says_how_much() -> None:
    with pytest.raises(ModelError, match=r"take .* GiB.* in the .* GiB available"):
        simulate(toy_solver.softmax(), **{**SHORT, "d": 10**6})


def test_parametrisation_must_be_known() -> None:
    solver = toy_solver.softmax()
    solver.KINDS["S1"] = "sparse"
    with pytest.raises(ModelError, match="sparse"):
        simulate(solver, **SHORT)


# -- many runs ---------------------------------------------------------------------------------------------


def test_summary_and_scores() -> None:
    ds = simulate(toy_solver.softmax(), seeds=5, **SHORT)
    means = summary(ds)
    values = ds.moment.values
    np.testing.assert_allclose(means["mean"], values.mean(axis=0))
    np.testing.assert_allclose(means["sem"], values.std(axis=0, ddof=1) / np.sqrt(5))
    theory = means["mean"] + 2 * means["sem"]
    np.testing.assert_allclose(zscores(ds, theory), -2)
    np.testing.assert_allclose(zscores(means, theory.rename("moment").to_dataset()), -2)
    with pytest.raises(ModelError, match="times"):
        zscores(ds, theory.assign_coords(time=theory.time + 0.1))
    with pytest.raises(ModelError, match=r"S1\.S2"):
        zscores(ds, theory.sel(word=["S1"]))
    alone = summary(ds.isel(run=[0]))
    assert alone["sem"].isnull().all()
