"""Generated source: the same bytes everywhere, the same numbers from NumPy, C and a plain exact evaluator."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewords.derive.emit import emit_c, emit_python
from tracewords.derive.losses import Formula
from tracewords.derive.model import Model, load_model, preset_names, tied_scalar, tied_softmax
from tracewords.derive.parametrisation import Tied
from tracewords.derive.printing import parameter_text
from tracewords.derive.statics import Statics
from tracewords.derive.system import System
from tracewords.runtime.initial import empirical_moments
from tracewords.runtime.solver import Solver, from_path
from tracewords.solvers import generated_folder, shipped_orders, solver, sources

GOLDEN = Path(__file__).parent / "data" / "golden"
needs_compiler = pytest.mark.skipif(not (os.environ.get("CC") or shutil.which("cc")), reason="no C compiler")

SMALL = {
    "tied_h1_m2": (tied_scalar("h1"), 2),
    "tied_softmax_m2": (tied_softmax(), 2),
    "two_students_m2": (
        Model(
            "two-students",
            [["1", "0.5"], ["0.5", "1"]],
            {"A": Tied(), "B": Tied()},
            {"T": Tied()},
            Formula("(A[1,2] + B[1,2] - T[1,2])**2 / 2"),
        ),
        2,
    ),
}
AWKWARD = Model(
    "awkward-names",
    [["1", "0.2"], ["0.2", "1"]],
    {"double": Tied()},
    {"I": Tied()},
    Formula("(tanh(static * double[1,2] / 3) - tanh(I[1,2] * 2**0.5))**2 / 7"),
    {"static": 1.5},
)


def built(model: Model, order: int, folder: Path) -> Solver:
    system = System(model, order)
    path = folder / f"m{model.digest}_{order}.py"
    path.write_text(emit_python(system))
    path.with_suffix(".c").write_text(emit_c(system))
    return from_path(path)


def random_moments(s: Solver, seed: int, size: int = 30) -> np.ndarray:
    rng = np.random.default_rng(seed)
    w = {k: rng.standard_normal((size, size)) / np.sqrt(size) for k in s.LETTERS}
    return empirical_moments({k: x @ x.T for k, x in w.items()}, s.WORDS)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("target", ["py", "c"])
def test_golden_source(name: str, target: str, request: pytest.FixtureRequest) -> None:
    model, order = SMALL[name]
    text = sources(model, order)[f"{name}.{target}"]
    path = GOLDEN / f"{name}.{target}.txt"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_shipped_folder_is_what_the_code_writes_now() -> None:
    for name in preset_names():
        for order in shipped_orders(load_model(name)):
            for file, text in sources(load_model(name), order).items():
                assert (generated_folder() / file).read_text() == text, file


def test_same_bytes_under_any_hash_seed() -> None:
    program = (
        "import hashlib\n"
        "from tracewords.derive.model import load_model\n"
        "from tracewords.solvers import sources\n"
        "for name in ('tied-softmax', 'tied-h3'):\n"
        "    for file, text in sources(load_model(name), 5).items():\n"
        "        print(file, hashlib.sha256(text.encode()).hexdigest())\n"
    )
    outputs = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    shipped = hashlib.sha256((generated_folder() / "tied_h3_m5.py").read_bytes()).hexdigest()
    assert shipped in outputs.pop()


def test_same_bytes_whatever_was_asked_for_first() -> None:
    for name, order in (("head-softmax", 3), ("untied-mean-h2", 3), ("tied-softmax", 3)):
        plain = emit_python(System(load_model(name), order))
        system = System(load_model(name), order)
        system.statics = Statics(load_model(name))
        for asked in ("noise", "potential", "couplings", "mean_hessian"):
            assert getattr(system.statics, asked) is not None
        assert emit_python(system) == plain


def test_importing_a_shipped_solver_needs_numpy_alone() -> None:
    program = (
        "import sys, importlib.abc\n"
        "class Refuse(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('sympy', 'scipy', 'networkx', 'xarray', 'jinja2', 'typer', 'matplotlib'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from tracewords.generated import tied_softmax_m5 as s\n"
        "q = [2.0, 1.0, 2.0]\n"
        "print(s.couplings(q)[0], [m for m in sys.modules if m.startswith('tracewords.derive')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    value, modules = done.stdout.split(maxsplit=1)
    assert float(value) == pytest.approx(0.08410520521781037, rel=1e-9)
    assert modules.strip() == "[]"


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([("tied-h2", 5), ("tied-h3", 8)]), st.integers(0, 2**32), st.fractions(-2, 2), st.fractions(0, 2)
)
def test_kernel_against_a_plain_exact_evaluator(
    which: tuple[str, int], seed: int, gamma: Fraction, kappa: Fraction
) -> None:
    """Right sides in exact rationals, term by term in plain Python from the written-out tied equations."""
    name, order = which
    s = solver(name, order)
    rng = np.random.default_rng(seed)
    words = [tuple(w.split(".")) for w in s.WORDS]
    value = {w: Fraction(int(rng.integers(1, 50)), int(rng.integers(1, 20))) for w in words}
    value[()] = Fraction(1)

    def moment(word: tuple[str, ...]) -> Fraction:
        turned = [w[i:] + w[:i] for w in (word, word[::-1]) for i in range(max(len(word), 1))]
        return next((value[w] for w in turned if w in value), Fraction(0))

    q = np.array([float(moment(tuple(w.split(".")))) for w in s.ORDER_PARAMETERS])
    g = dict(zip(s.COUPLINGS, map(Fraction, map(float, s.couplings(q))), strict=True))
    n = Fraction(float(s.noise_contractions(q)[0]))
    expected = []
    for w in words:
        total = Fraction(0)
        for i, k in enumerate(w):
            if k == "S1":
                for l, c in (("S1", g["G11"]), ("S2", g["G12"])):
                    total -= c * (moment((*w[:i], l, *w[i:])) + moment((*w[: i + 1], l, *w[i + 1 :])))
                total -= gamma / 2 * moment(w)
                total += kappa / 4 * n * moment(("S1",)) * moment(w[:i] + w[i + 1 :])
                for r in range(i + 1, len(w)):
                    if w[r] == "S1":
                        a, b = w[i + 1 : r], w[r + 1 :] + w[:i]
                        pairs = (
                            (("S1", *a), ("S1", *b)),
                            (("S1", *a, "S1"), b),
                            (a, ("S1", *b, "S1")),
                            ((*a, "S1"), (*b, "S1")),
                        )
                        total += kappa / 4 * n * sum(moment(x) * moment(y) for x, y in pairs)
        expected.append(float(total))
    mu = np.array([float(value[w]) for w in words])
    got = s.rhs(0.0, mu, {"gamma": float(gamma), "kappa": float(kappa)})
    assert np.allclose(got, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@needs_compiler
@pytest.mark.parametrize("which", ["tied-softmax", "tied-h2", "tied-h3", "awkward", "two", "table-driven"])
@pytest.mark.parametrize("kappa", [0.0, 0.8])
def test_c_and_numpy_agree(which: str, kappa: float, tmp_path: Path) -> None:
    if which == "awkward":
        s = built(AWKWARD, 3, tmp_path)
    elif which == "two":
        s = built(SMALL["two_students_m2"][0], 4, tmp_path)
    elif which == "table-driven":
        s = built(tied_scalar("h2"), 9, tmp_path)
    else:
        s = solver(which, 5)
    mu = np.stack([random_moments(s, seed) for seed in range(11)], axis=1)
    rng = np.random.default_rng(0)
    values = {p: rng.uniform(0.5, 1.5, 11) for p in s.PARAMETERS} | {"kappa": np.full(11, kappa)}
    rules = {d: s.trapezoid(d, {1: 41, 2: 31, 4: 9}[d], 6.0) for d in s.DIMENSIONS}
    kernel = s.kernel(rules, "c")
    assert kernel is not None
    params = np.array([values[p] for p in s.PARAMETERS])
    size = np.abs(s.rhs(0.0, mu, values, rule=rules)).max()
    assert np.abs(kernel.rhs(0.0, mu, params) - s.rhs(0.0, mu, values, rule=rules)).max() < 1e-13 * size
    jac = s.jacobian(0.0, mu, values, rule=rules)
    compiled = kernel.evaluate("tracewords_jacobian", jac.shape[:2], mu, params)
    assert np.abs(compiled - jac).max() < 1e-13 * np.abs(jac).max()
    g = s.couplings(s.order_parameters(mu), values, rules)
    assert np.abs(kernel.evaluate("tracewords_couplings", (len(g),), mu, params) - g).max() < 1e-13 * np.abs(g).max()


@pytest.mark.parametrize("which", ["tied-softmax", "tied-h3"])
@pytest.mark.parametrize("kappa", [0.0, 0.6])
def test_jacobian_against_finite_differences(which: str, kappa: float) -> None:
    s = solver(which, 5)
    # small matrices: averages over four variables are then exact to 1e-8 with few nodes
    mu = random_moments(s, 3) * 0.2 ** np.array([w.count(".") + 1 for w in s.WORDS])
    values = {"gamma": 0.2, "kappa": kappa}
    rules = {d: s.trapezoid(d, {2: 61, 4: 19}[d], 6.5) for d in s.DIMENSIONS}

    def f(x: np.ndarray) -> np.ndarray:
        return s.rhs(0.0, x, values, rule=rules)

    step = 1e-3
    columns = []
    for e in np.eye(len(mu)):
        # fourth order, so that the test is sharp
        near, far = f(mu + step * e) - f(mu - step * e), f(mu + 2 * step * e) - f(mu - 2 * step * e)
        columns.append((8 * near - far) / (12 * step))
    numeric = np.array(columns).T
    assert np.abs(s.jacobian(0.0, mu, values, rule=rules) - numeric).max() < 2e-8 * np.abs(numeric).max()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3,), (2, 3)])
def test_batch_axes_are_kept(shape: tuple[int, ...]) -> None:
    for name in ("tied-softmax", "tied-h1"):
        s = solver(name, 5)
        one = random_moments(s, 1)
        mu = np.broadcast_to(one.reshape(-1, *[1] * len(shape)), (len(one), *shape))
        assert s.rhs(0.0, mu).shape == (len(one), *shape)
        assert s.jacobian(0.0, mu).shape == (len(one), len(one), *shape)
        assert s.couplings(s.order_parameters(mu)).shape == (2, *shape)
        assert s.potential(s.order_parameters(mu)).shape == shape
        boundary = np.zeros((len(s.BOUNDARY), *shape))
        assert np.array_equal(s.rhs(0.0, mu, boundary=boundary), s.rhs(0.0, mu))


def test_renaming_changes_no_value(tmp_path: Path) -> None:
    renamed = json.loads(
        json.dumps(AWKWARD.to_dict())
        .replace("static", "alpha")
        .replace('"I"', '"T"')
        .replace("I[", "T[")
        .replace("double", "W")
    )
    one, two = built(AWKWARD, 3, tmp_path), built(Model.from_dict(renamed), 3, tmp_path)
    mu = random_moments(one, 5)
    assert np.array_equal(one.rhs(0.0, mu), two.rhs(0.0, mu))


def test_mangled_names_never_collide() -> None:
    names = ["lambda", "double", "I", "y0", "μ", "m_u3bc_", "u1", "x0", "q_1_1", "beta"]
    mangled = [parameter_text(n) for n in names]
    assert len(set(mangled)) == len(names)
    assert all(m.isascii() and m.isidentifier() for m in mangled)


@needs_compiler
def test_generated_c_is_clean_iso_c(tmp_path: Path) -> None:
    for file in ("tied_softmax_m5.c", "tied_h2_m8.c"):
        flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-psabi", "-fsyntax-only"]
        done = subprocess.run(
            [os.environ.get("CC", "cc"), *flags, str(generated_folder() / file)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_graph_and_equations_say_the_same() -> None:
    system = System(load_model("tied-softmax"), 4)
    graph = system.graph
    assert {n for n, d in graph.nodes(data=True) if d["evolves"]} == set(system.words)
    for word, terms in system.equations(loops=True).items():
        for weight, coupling, factors in terms:
            for factor in factors or ("1",):
                found = graph.edges[factor, word]["terms"]
                assert any(entry[1] == coupling and entry[2] == weight for entry in found)
    assert graph.nodes["S1.S1.S2"]["order"] == 3
    assert "d tr(S1.S1)/dt = - 4 G11 tr(S1.S1.S1)" in str(system)
    assert system.subs(beta=2).model.parameters["beta"] == 2


def test_latex_is_balanced_and_reads_well() -> None:
    text = System(load_model("tied-softmax"), 4).latex(loops=True)
    assert text.count("{") == text.count("}")
    assert r"\dot\mu_{11} &= - 4\,G_{11}\,\mu_{111} - 4\,G_{12}\,\mu_{112} - \gamma\,\mu_{11}" in text
    assert r"\mathbb{E}\left[\partial_{1}\partial_{2} f\right]" in text
    assert r"\kappa\,N_{11}\,\mu_{1}\,\mu_{1}" in text
