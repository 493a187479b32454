"""Compiled kernels: lane functions in ulps, the integrator against exact answers and scipy, the cache."""

from __future__ import annotations

import ctypes
import os
import pickle
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jinja2
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from tracewords.derive.dop853 import integrator_context
from tracewords.errors import KernelError, ModelError
from tracewords.runtime import compiler as compiling
from tracewords.runtime.compiler import compile_source
from tracewords.runtime.kernel import CKernel, Status

COMPILER = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")

STRICT = (*compiling.DEFAULT_FLAGS, "-Wall", "-Wextra", "-Werror", "-pedantic")
PLAIN = ("-std=c11", "-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-psabi")

TOY = """\
#define N_STATE {{ n_state }}
#define N_PARAM {{ n_param }}
{% include "lanes.c.j2" %}
static void rhs_block(double t, const lane *y, const lane *p, const void *ctx, lane *out)
{
    (void)t, (void)y, (void)p, (void)ctx;
    {{ rhs }}
}
LANE_FN lane feasible_block(const lane *y)
{
    (void)y;
    return {{ feasible }};
}
{% include "batch.c.j2" %}
int squares(long n, const double *mu, const double *parameters, const void *ctx, double *out)
{
    (void)parameters, (void)ctx;
    for (long i = 0; i < N_STATE * n; i++)
        out[i] = mu[i] * mu[i];
    return 0;
}
"""

QUADRATURE = """
    const rule *r = (const rule *)ctx + 1;
    out[0] = lane_set1(0.0);
    for (long i = 0; i < r->n; i++)
        out[0] += r->w[i] * lane_sigmoid(r->z[i] * y[0] + r->z[r->n + i] * p[0]);
"""

TOYS = {
    "riccati": (1, 1, "out[0] = p[0] - y[0] * y[0];", "y[0] * 0.0"),
    "oscillator": (2, 1, "out[0] = p[0] * y[1]; out[1] = -p[0] * y[0];", "lane_set1(0.0)"),
    "sink": (1, 1, "out[0] = -p[0];", "y[0]"),
    "blowup": (1, 0, "out[0] = y[0] * y[0];", "lane_set1(1.0)"),
    "edge": (1, 1, "out[0] = lane_sqrt(p[0] - t);", "lane_set1(1.0)"),
    "predator": (
        2,
        1,
        "out[0] = y[0] - y[0] * y[1]; out[1] = p[0] * (y[0] * y[1] - y[1]);",
        "lane_min(y[0], y[1])",
    ),
    "quadrature": (1, 1, QUADRATURE, "lane_set1(1.0)"),
}

LANE_MAP = """\
{% include "lanes.c.j2" %}
{% for name in ("exp", "sigmoid", "tanh", "log", "sqrt", "erf", "sin", "cos") %}
void map_{{ name }}(long n, const double *x, double *y)
{
    for (long i = 0; i < n; i += LANES)
        lane_store(y + i, lane_{{ name }}(lane_load(x + i)));
}
{% endfor %}
void pairs(const double *x, const double *y, double *lo, double *hi, int *any, double *sum)
{
    const lane a = lane_load(x), b = lane_load(y);
    lane_store(lo, lane_min(a, b));
    lane_store(hi, lane_max(a, b));
    any[0] = lane_any((lane_mask)(a < b));
    any[1] = lane_any((lane_mask)(a < a));
    *sum = lane_sum(a);
}
"""


def render(text: str, **context: object) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracewords.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(text).render(**context, **integrator_context())


def toy_source(name: str) -> str:
    n_state, n_param, rhs, feasible = TOYS[name]
    return render(TOY, n_state=n_state, n_param=n_param, rhs=rhs, feasible=feasible)


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(autouse=True)
def _cache(warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEWORDS_CACHE", str(warm_cache))
    monkeypatch.delenv("CC", raising=False)


@pytest.fixture
def toy() -> Callable[..., CKernel]:
    def build(name: str, **options: object) -> CKernel:
        return CKernel.from_source(toy_source(name), *TOYS[name][:2], flags=STRICT, **options)

    return build


# --- lane functions ---------------------------------------------------------------


def ulps(y: np.ndarray, exact: np.ndarray) -> float:
    """Largest error in units in the last place of the rounded exact value; special values must be equal."""
    rounded = exact.astype(float)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(y[~finite], rounded[~finite])
    spacing = np.spacing(np.abs(rounded[finite])).astype(np.longdouble)
    return float(np.max(np.abs(y[finite] - exact[finite]) / spacing))


@pytest.fixture(scope="module", params=[STRICT, PLAIN], ids=["default flags", "no fused multiply-add"])
def lanes(request: pytest.FixtureRequest, warm_cache: Path) -> Callable[[str, np.ndarray], np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEWORDS_CACHE", str(warm_cache))
        library = ctypes.CDLL(str(compile_source(render(LANE_MAP), flags=request.param)))

    def apply(name: str, x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        function = library[f"map_{name}"]
        function.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        function(x.size, x.ctypes.data, y.ctypes.data)
        return y

    apply.library = library  # type: ignore[attr-defined]
    return apply


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider type to compare with")
@pytest.mark.parametrize(("name", "limit"), [("exp", 1.0), ("sigmoid", 3.0), ("tanh", 3.0)])
def test_lane_functions_in_ulps(lanes: Callable[..., np.ndarray], name: str, limit: float) -> None:
    functions: dict[str, Callable[[np.ndarray], np.ndarray]]
    functions = {"exp": np.exp, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh}
    rng = np.random.default_rng(7)
    n = 1 << 15
    inputs = [
        rng.uniform(-760, 760, n),
        rng.uniform(-748, -700, n),  # subnormal results
        rng.uniform(-40, 40, n),
        rng.uniform(-1, 1, n),
        np.exp(rng.uniform(-740, 6, n)) * rng.choice([-1.0, 1.0], n),
        np.arange(-16000, 16768, dtype=float) * np.log(2) / 32,  # ends of the reduced range
    ]
    with np.errstate(over="ignore", under="ignore"):
        for x in inputs:
            assert ulps(lanes(name, x), functions[name](x.astype(np.longdouble))) < limit


def test_lane_special_values(lanes: Callable[..., np.ndarray]) -> None:
    x = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 709.78, 709.79])
    big = np.exp(709.78)
    np.testing.assert_allclose(lanes("exp", x), [np.inf, 0, np.nan, np.nan, 1, 1, big, np.inf], rtol=3e-16)
    np.testing.assert_array_equal(lanes("sigmoid", x), [1, 0, np.nan, np.nan, 0.5, 0.5, 1, 1])
    tanh = lanes("tanh", x)
    np.testing.assert_array_equal(tanh, [1, -1, np.nan, np.nan, 0, 0, 1, 1])
    assert not np.signbit(tanh[4])
    assert np.signbit(tanh[5])


def test_lane_libm_and_pairs(lanes: Callable[..., np.ndarray]) -> None:
    x = np.linspace(0.1, 3.0, 8)
    for name in ("log", "sqrt", "sin", "cos"):
        np.testing.assert_allclose(lanes(name, x), getattr(np, name)(x), rtol=1e-15)
    assert lanes("erf", x)[0] == pytest.approx(0.1124629160182849)
    y = np.array([1.0, 1.0, np.nan, 1.0, -1.0, 9.0, np.inf, 2.0])
    x[3] = np.nan
    lo, hi, flags, total = np.empty(8), np.empty(8), np.empty(2, dtype=np.intc), np.empty(1)
    arrays = (x, y, lo, hi, flags, total)
    lanes.library.pairs(*(ctypes.c_void_p(a.ctypes.data) for a in arrays))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(lo, np.minimum(x, y))
    np.testing.assert_array_equal(hi, np.maximum(x, y))
    assert list(flags) == [1, 0]
    assert np.isnan(total[0])


# --- the integrator ---------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000])
def test_riccati_sweep(toy: Callable[..., CKernel], n: int) -> None:
    a = np.linspace(0.1, 4.0, n)[None, :]
    times = np.array([0.0, 0.3, 0.3, 1.0, 5.0])
    result = toy("riccati").solve(times, np.zeros((1, n)), a, rtol=1e-10, atol=1e-12)
    exact = np.sqrt(a) * np.tanh(np.sqrt(a) * times[:, None, None])
    assert np.all(result.status == Status.OK)
    assert np.all(result.reached == 5.0)
    np.testing.assert_allclose(result.moments, exact, rtol=1e-9, atol=1e-11)


def test_oscillator_and_start_time(toy: Callable[..., CKernel]) -> None:
    omega = np.array([[0.5, 1.0, 3.0]])
    times = np.linspace(-2.0, 6.0, 17)
    mu0 = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
    result = toy("oscillator").solve(times, mu0, omega, rtol=1e-10, atol=1e-12)
    phase = omega * (times[:, None] + 2.0)
    exact = mu0[0] * np.cos(phase) + mu0[1] * np.sin(phase)
    np.testing.assert_allclose(result.moments[:, 0], exact, atol=1e-8)


@pytest.mark.parametrize("rtol", [1e-5, 1e-8, 1e-11])
def test_agrees_with_scipy(toy: Callable[..., CKernel], rtol: float) -> None:
    mu0, atol = np.array([1.5, 0.4]), 1e-2 * rtol

    def f(_: float, y: np.ndarray) -> list[float]:
        return [y[0] - y[0] * y[1], 0.7 * (y[0] * y[1] - y[1])]

    scipy = solve_ivp(f, (0.0, 8.0), mu0, method="DOP853", rtol=rtol, atol=atol)
    truth = solve_ivp(f, (0.0, 8.0), mu0, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    ours = toy("predator").solve([0.0, 8.0], mu0[:, None], [0.7], rtol=rtol, atol=atol)
    np.testing.assert_allclose(ours.moments[-1, :, 0], scipy.y[:, -1], rtol=10 * rtol)
    error, theirs = np.abs([ours.moments[-1, :, 0] - truth, scipy.y[:, -1] - truth]).max(axis=1)
    assert error < 3 * theirs + 1e-13
    assert abs(ours.steps - (scipy.nfev - 2) // 12) <= 2


def test_lost_lane_leaves_neighbours_alone(toy: Callable[..., CKernel]) -> None:
    speed = np.array([[0.1, 3.0, 0.0, 0.2, 0.7, 0.1, 0.0, 0.1, 1.9, 0.05]])
    times = np.linspace(0.0, 2.0, 9)
    result = toy("sink").solve(times, np.ones((1, 10)), speed, feas_tol=0.0)
    lost = speed[0] > 0.5
    np.testing.assert_array_equal(result.status, np.where(lost, Status.LEFT_DOMAIN, Status.OK))
    np.testing.assert_allclose(result.reached[lost], 1.0 / speed[0, lost], rtol=2e-6)
    assert np.all(result.reached[lost] <= 1.0 / speed[0, lost] * (1 + 1e-12))
    line = 1.0 - speed[0] * times[:, None]
    np.testing.assert_allclose(result.moments[:, 0], np.where(line >= 0.0, line, np.nan), atol=1e-12)


def test_blow_up_and_nan_are_located(toy: Callable[..., CKernel]) -> None:
    y0 = np.array([[0.1, 1.0, -1.0, 4.0]])
    result = toy("blowup").solve([0.0, 0.2, 3.0], y0)
    np.testing.assert_array_equal(result.status, [0, Status.UNDERFLOW, 0, Status.UNDERFLOW])
    np.testing.assert_allclose(result.reached, [3.0, 1.0, 3.0, 0.25], rtol=1e-7)
    exact = y0 / (1 - y0 * np.array([[0.0], [0.2], [3.0]]))
    np.testing.assert_allclose(result.moments[:, 0], np.where(exact * y0 > 0, exact, np.nan), rtol=1e-7)

    edge = np.array([[0.5, 9.0, -1.0, np.nan, 2.5]])
    result = toy("edge").solve([0.0, 1.0, 2.0], np.zeros((1, 5)), edge)
    np.testing.assert_array_equal(result.status, [Status.UNDERFLOW, 0, Status.UNDERFLOW, Status.UNDERFLOW, 0])
    np.testing.assert_allclose(result.reached, [0.5, 2.0, 0.0, 0.0, 2.0], rtol=1e-9)
    np.testing.assert_array_equal(result.moments[0], np.zeros((1, 5)))
    np.testing.assert_allclose(result.moments[2, 0, 1], 2 / 3 * (27.0 - 7.0**1.5), rtol=1e-8)


def test_refused_initial_states(toy: Callable[..., CKernel]) -> None:
    mu0 = np.array([[1.0, np.nan, -1.0, np.inf, 2.0]])
    result = toy("sink").solve([1.0, 1.5], mu0, [0.1], feas_tol=0.0)
    refused = [0, Status.UNDERFLOW, Status.LEFT_DOMAIN, Status.UNDERFLOW, 0]
    np.testing.assert_array_equal(result.status, refused)
    np.testing.assert_array_equal(result.reached, [1.5, 1.0, 1.0, 1.0, 1.5])
    assert np.all(np.isnan(result.moments[:, 0, 1:4]))


def test_step_budget_stops_the_slow_lane_only(toy: Callable[..., CKernel]) -> None:
    a = np.full((1, 8), 1.0)
    a[0, 5] = 1e10  # stiff once it has reached sqrt(a)
    result = toy("riccati").solve([0.0, 10.0], np.zeros((1, 8)), a, max_steps=300)
    np.testing.assert_array_equal(result.status, np.where(a[0] > 1.0, Status.TOO_MANY_STEPS, Status.OK))
    assert 0.0 < result.reached[5] < 10.0
    assert result.steps < 700


@pytest.mark.parametrize(("n", "times"), [(0, [0.0, 1.0]), (0, []), (3, []), (3, [2.0]), (3, [2.0, 2.0]), (9, [0.0])])
def test_empty_and_trivial_batches(toy: Callable[..., CKernel], n: int, times: list[float]) -> None:
    mu0 = np.arange(n, dtype=float)[None, :]
    result = toy("riccati").solve(times, mu0, [1.0])
    assert result.moments.shape == (len(times), 1, n)
    assert np.all(result.status == Status.OK)
    if n and times:
        np.testing.assert_array_equal(result.moments, np.broadcast_to(mu0, result.moments.shape))
        assert np.all(result.reached == times[-1])


def test_rhs_shapes_rules_and_padding(toy: Callable[..., CKernel]) -> None:
    rng = np.random.default_rng(3)
    rules = [(rng.normal(size=(1, 8)), rng.random(8)), (rng.normal(size=(2, 13)), rng.random(13))]
    built = toy("quadrature", rules=rules)
    (z1, z2), w = rules[1]
    for n in (0, 1, 8, 11):
        mu, par = rng.normal(size=(1, n)), rng.normal(size=(1, n))
        exact = np.sum(w[:, None] / (1 + np.exp(-(z1[:, None] * mu + z2[:, None] * par))), axis=0)
        np.testing.assert_allclose(built.rhs(0.0, mu, par)[0], exact, rtol=1e-14)
    assert built.rhs(0.0, [0.5], [1.0]).shape == (1,)
    np.testing.assert_array_equal(built.evaluate("squares", (1,), [[2.0, 3.0]], [1.0]), [[4.0, 9.0]])
    with pytest.raises(KernelError, match="no function cubes"):
        built.evaluate("cubes", (1,), [[2.0]], [1.0])
    assert all(a.ctypes.data % 64 == 0 and a.shape[-1] % 8 == 0 for a in built._context.arrays)


def test_wrong_input_is_refused_by_name(toy: Callable[..., CKernel]) -> None:
    built = toy("oscillator")
    good = {"times": [0.0, 1.0], "mu0": np.ones((2, 3)), "params": np.ones((1, 3))}
    bad: dict[str, list[object]] = {
        "times": [[0.0, -1.0], [0.0, np.nan], [[0.0]], ["a"]],
        "mu0": [np.ones((3, 3)), np.ones(2), 1j * np.ones((2, 3))],
        "params": [np.ones((1, 4)), np.ones(2), None],
        "rtol": [0.0, np.nan],
        "atol": [-1.0],
    }
    for field, values in bad.items():
        for value in values:
            with pytest.raises(ModelError) as caught:
                built.solve(**{**good, field: value})
            assert caught.value.field == field
    strided = np.ones((3, 4)).T[::2]  # neither contiguous nor float64: copied, not misread
    result = built.solve([0, 1], strided.astype(np.float32), np.ones(1))
    np.testing.assert_allclose(result.moments[1, 0], np.cos(1.0) + np.sin(1.0), rtol=1e-7)
    with pytest.raises(KernelError, match="not"):
        CKernel(built.library, 3, 1)


def test_interrupt_keeps_what_was_done(toy: Callable[..., CKernel]) -> None:
    built = toy("oscillator")
    times = np.concatenate([[0.0, 1.0], [1e9]])
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    result = built.solve(times, np.ones((2, 20)), np.ones((1, 20)), max_steps=10**12)
    assert time.monotonic() - sent[0] < 0.5
    assert result.interrupted
    assert np.all(result.status == Status.INTERRUPTED)
    assert 1.0 < result.reached[0] < 1e9
    assert result.reached[-1] == 0.0
    np.testing.assert_allclose(result.moments[1, 0, :8], np.cos(1.0) + np.sin(1.0), rtol=1e-7)
    assert np.all(np.isnan(result.moments[2]))


# --- the cache --------------------------------------------------------------------


def logging_compiler(place: Path) -> tuple[Path, Path]:
    """A compiler in a folder with a space that writes a line for each build; and that log."""
    place.mkdir()
    script, log = place / "my cc", place / "log"
    text = f'#!/bin/sh\n[ "$1" = --version ] || echo build >> {shlex.quote(str(log))}\nexec {COMPILER} "$@"\n'
    script.write_text(text)
    script.chmod(0o700)
    return script, log


def fresh_cache(monkeypatch: pytest.MonkeyPatch, root: Path) -> Path:
    monkeypatch.setenv("TRACEWORDS_CACHE", str(root))
    return root / "kernels"


def test_eight_processes_build_once(tmp_path: Path) -> None:
    compiler, log = logging_compiler(tmp_path / "a compiler")
    source = tmp_path / "toy.c"
    source.write_text(toy_source("riccati"), encoding="utf-8")
    cache = tmp_path / "cache with spaces, é and 語"
    program = (
        "import sys; from pathlib import Path; from tracewords.runtime.kernel import CKernel\n"
        "k = CKernel.from_source(Path(sys.argv[1]), 1, 1)\n"
        "print(k.key, k.rhs(0.0, [2.0], [1.0])[0])"
    )
    environment = {**os.environ, "CC": str(compiler), "TRACEWORDS_CACHE": str(cache)}
    command = [sys.executable, "-c", program, str(source)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = {process.communicate()[0] for process in running}
    assert len(said) == 1
    assert said.pop().split()[1] == "-3.0"
    assert log.read_text().splitlines() == ["build"]
    names = sorted(p.suffix for p in (cache / "kernels").iterdir() if p.suffix != ".lock")
    assert names == [".sha256", ".so"]
    for folder in (cache, cache / "kernels"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_damaged_and_foreign_entries_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, log = logging_compiler(tmp_path / "bin")
    monkeypatch.setenv("CC", str(compiler))
    fresh_cache(monkeypatch, tmp_path / "cache")
    source = "int answer(void)\n{\n    return 42;\n}\n"
    library = compile_source(source, flags=("-O1",))
    digest = library.with_suffix(".sha256")
    whole, recorded = library.read_bytes(), digest.read_text()
    other = compile_source(source.replace("42", "43"), flags=("-O1",))
    assert other != library
    assert len(log.read_text().splitlines()) == 2

    def put(content: bytes, sha: str) -> None:
        library.unlink()  # a new file: the old one may be mapped into this process
        library.write_bytes(content)
        digest.write_text(sha)

    damage = [
        (whole[: len(whole) // 2], recorded),
        (b"not a library", recorded),
        (b"", ""),
        (other.read_bytes(), other.with_suffix(".sha256").read_text()),  # whole, but of another key
    ]
    for count, (content, sha) in enumerate(damage, start=3):
        put(content, sha)
        assert compile_source(source, flags=("-O1",)) == library
        assert len(log.read_text().splitlines()) == count
        assert ctypes.CDLL(str(library)).answer() == 42
    assert compile_source(source, flags=("-O1",)) == library
    assert len(log.read_text().splitlines()) == 2 + len(damage)


def test_key_depends_on_flags_and_is_length_prefixed() -> None:
    source = "int one(void)\n{\n    return 1;\n}\n"
    keys = {compile_source(source, flags=flags).stem for flags in (("-O0",), ("-O1",), ("-O1", "-g"), ("-O1-g"[:3],))}
    assert len(keys) == 3
    assert compiling._digest([b"ab", b"c"]) != compiling._digest([b"a", b"bc"])


def test_broken_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "int one(void)\n{\n    return 1;\n}\n"
    monkeypatch.setenv("CC", "false")
    with pytest.raises(KernelError, match="does not work") as caught:
        compile_source(source)
    assert "exit status 1" in caught.value.output
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(KernelError, match="'no-such-compiler' not found"):
        compile_source(source)
    monkeypatch.delenv("CC")
    with pytest.raises(KernelError, match="could not build") as caught:
        compile_source("int one(void)\n{\n    return undeclared;\n}\n")
    assert "undeclared" in caught.value.output
    assert "\n" not in str(caught.value)
    with pytest.raises(KernelError, match="does not load"):
        compile_source("extern int nowhere(void);\nint one(void) { return nowhere(); }\n", flags=("-Wl,-z,now",))
    with pytest.raises(KernelError, match="cannot read"):
        compile_source(tmp_path / "missing.c")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match="no C compiler found"):
        compile_source(source)


def test_unusable_cache_falls_back_to_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle = tmp_path / "file"
    obstacle.write_text("in the way")
    fresh_cache(monkeypatch, obstacle / "cache")
    monkeypatch.setattr(compiling, "_warned", set())
    source = "int seven(void)\n{\n    return 7;\n}\n"
    with pytest.warns(UserWarning, match="kernel cache not usable") as caught:
        first, second = (compile_source(source) for _ in range(2))
    assert first == second
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert ctypes.CDLL(str(first)).seven() == 7
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(hasattr(os, "getuid") and os.getuid() == 0, reason="root writes everywhere")
def test_read_only_cache_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = fresh_cache(monkeypatch, tmp_path / "cache")
    source = "int eight(void)\n{\n    return 8;\n}\n"
    library = compile_source(source)
    kernels.chmod(0o500)
    assert compile_source(source) == library
    monkeypatch.setattr(compiling, "_warned", set())
    with pytest.warns(UserWarning, match="kernel cache not usable"):
        compile_source(source.replace("8", "9"))
    kernels.chmod(0o700)


def test_shared_cache_folder_is_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = fresh_cache(monkeypatch, tmp_path)
    kernels.mkdir(mode=0o755)
    compile_source("int two(void)\n{\n    return 2;\n}\n")
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o700


def test_pickle_rebuilds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Callable[..., CKernel]) -> None:
    rules = [(np.zeros((1, 1)), np.zeros(1)), (np.ones((2, 3)), np.ones(3))]
    built = toy("quadrature", rules=rules)
    data = pickle.dumps(built)
    fresh_cache(monkeypatch, tmp_path / "elsewhere")
    again = pickle.loads(data)
    assert again.key == built.key
    assert again.library != built.library
    assert again.rhs(0.0, [0.5], [1.0]) == built.rhs(0.0, [0.5], [1.0])
    with pytest.raises(KernelError, match="from_source"):
        pickle.dumps(CKernel(built.library, 1, 1))
