"""Direct, symmetric, untied, values and mixtures: hierarchies against flows written out in what is trained.

Each flow is written once more here, on matrices of finite size, in W, S, U and V; derivatives of traces are finite
differences.  Couplings are random numbers: their values are another test's business.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewords.derive.losses import Formula
from tracewords.derive.model import Model
from tracewords.derive.parametrisation import PARAMETRISATIONS, Values
from tracewords.derive.system import System

SIZE, RANK = 60, 40
C2 = [["1", "0.4"], ["0.4", "1"]]
Matrices = dict[str, np.ndarray]


def model_of(students: dict[str, str], teachers: dict[str, str], mean: bool) -> Model:
    """A model of score matrices of given kinds, their sum in one tanh, seen off the diagonal (with or without mean)."""
    names = [*students, *teachers]
    loss = Formula("(" + " + ".join(f"{n}[1,2]" for n in names) + ")**2 * tanh(" + f"{names[0]}[1,2]" + ")")
    kinds = [{k: PARAMETRISATIONS[v]() for k, v in group.items()} for group in (students, teachers)]
    return Model("kinds", C2 if mean else None, *kinds, loss, tokens=2)


def sample(kinds: dict[str, str], seed: int) -> Matrices:
    """What is trained (or fixed): W, S, U and V, by name."""
    rng = np.random.default_rng(seed)
    out: Matrices = {}
    for name, kind in kinds.items():
        x, y = rng.standard_normal((2, SIZE, RANK)) / np.sqrt(SIZE)
        s = rng.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE)
        if kind == "tied":
            out[name + ":W"] = x
        elif kind == "untied":
            out[name + ":U"], out[name + ":V"] = x, y
        else:
            out[name + ":S"] = (s + s.T) / 2 if kind == "symmetric" else s
    return out


def word_matrices(parts: Matrices, kinds: dict[str, str]) -> Matrices:
    out: Matrices = {}
    for name, kind in kinds.items():
        if kind == "tied":
            out[name] = parts[name + ":W"] @ parts[name + ":W"].T
        elif kind == "untied":
            u, v = parts[name + ":U"], parts[name + ":V"]
            out[name], out[name + "uu"], out[name + "vv"] = u @ v.T, u @ u.T, v @ v.T
        else:
            out[name] = parts[name + ":S"]
    return out | {k + "'": m.T for k, m in out.items()}


def trace(matrices: Matrices, word: str) -> float:
    total = np.eye(SIZE)
    for name in word.split("."):
        total = total @ matrices[name]
    return float(np.trace(total)) / SIZE


def flow(
    parts: Matrices, kinds: dict[str, str], students: list[str], c: dict[str, float], multipliers: dict[str, str]
) -> Matrices:
    """d parts / d tau: minus the gradient with given components, decay gamma."""
    names = list(kinds)
    s = word_matrices(parts, kinds)
    out = {k: np.zeros_like(m) for k, m in parts.items()}
    symmetric = {n for n, kind in kinds.items() if kind in ("tied", "symmetric")}
    for k in students:
        g = np.zeros((SIZE, SIZE))
        for l in names:
            i, j = sorted((names.index(k) + 1, names.index(l) + 1))
            if k in symmetric or l in symmetric:
                # one overlap: its gradient with respect to a symmetric matrix is symmetrised
                x = 2 * c[f"G{i}{j}"] * s[l]
                g += (x + x.T) / 2 if k in symmetric else x
            else:
                g += 2 * (c[f"O{i}{j}"] * s[l] + c[f"P{i}{j}"] * s[l].T)
        lam = c[multipliers[k]] if k in multipliers else 0.0
        if kinds[k] == "tied":
            w = parts[k + ":W"]
            out[k + ":W"] = -(g + g.T) @ w - c["gamma"] * w
        elif kinds[k] == "untied":
            u, v = parts[k + ":U"], parts[k + ":V"]
            out[k + ":U"] = -lam * v - g @ v - c["gamma"] * u
            out[k + ":V"] = -lam * u - g.T @ u - c["gamma"] * v
        else:
            out[k + ":S"] = -g - lam * np.eye(SIZE) - c["gamma"] * parts[k + ":S"]
    return out


CASES = [
    ({"A": "direct"}, {"T": "direct"}),
    ({"A": "symmetric"}, {"T": "symmetric"}),
    ({"A": "untied"}, {"T": "direct"}),
    ({"A": "untied", "B": "tied"}, {"T": "symmetric"}),
    ({"A": "tied"}, {"T": "direct"}),
    ({"A": "direct", "B": "symmetric"}, {"T": "tied"}),
    ({"A": "untied", "B": "untied"}, {"T": "direct"}),
]
SYSTEMS = {(i, mean): System(model_of(*case, mean), 3) for i, case in enumerate(CASES) for mean in (False, True)}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(CASES) - 1), st.booleans(), st.data(), st.integers(0, 2**32))
def test_hierarchy_is_the_derivative_of_traces(case: int, mean: bool, data: st.DataObject, seed: int) -> None:
    students, teachers = CASES[case]
    kinds = students | teachers
    system = SYSTEMS[case, mean]
    word = data.draw(st.sampled_from(system.words))
    rng = np.random.default_rng(seed)
    multipliers = system.statics.multipliers
    assert set(multipliers) == ({k for k, kind in students.items() if kind != "tied"} if mean else set())
    c = {name: float(rng.standard_normal()) for name in (*system.couplings, "gamma")}
    parts = sample(kinds, seed)
    slope = flow(parts, kinds, list(students), c, multipliers)
    scale = 4.0 if system.flow.time == "t" else 1.0
    step = 1e-6
    ahead, behind = ({k: m + s * step * slope[k] for k, m in parts.items()} for s in (1, -1))
    expected = (trace(word_matrices(ahead, kinds), word) - trace(word_matrices(behind, kinds), word)) / (
        2 * step * scale
    )
    here = word_matrices(parts, kinds)
    got = 0.0
    for weight, coupling, factors in system.equations()[word]:
        got += float(weight) * c[coupling] * float(np.prod([trace(here, f) for f in factors]))
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-6 * (1 + abs(expected)))


def test_values_close_at_order_two() -> None:
    pair = Formula("(h1(A[1,2])**2 * trace(V, V) - 2 * A[1,2] * T[1,2] * trace(V, R) + T[1,2]**2 * trace(R, R)) / 2")
    tied = PARAMETRISATIONS["tied"]
    model = Model("v", None, {"A": tied(), "V": Values("0.5")}, {"T": tied(), "R": Values("0.5")}, pair, tokens=2)
    system = System(model, 4)
    terms = system.equations()["R.V'"] if "R.V'" in system.words else system.equations()["V.R'"]
    assert all(max((f.count(".") for f in factors), default=0) <= 1 for _, _, factors in terms)
    assert not [w for w in system.words if "V" in w and w.count(".") > 1]
    # the gradient in v_VR is the mean of -A T: by hand
    q = {s.name: s for s in system.statics.symbols}
    a, t = (system.flow.alphabet.index[n] + 1 for n in ("A", "T"))
    assert system.couplings["T24"] == -q[f"q_{min(a, t)}_{max(a, t)}"] / 2


@pytest.mark.statistical
@pytest.mark.parametrize("case", [0, 2, 3, 6])
def test_loop_terms_are_the_mean_second_order_change(case: int) -> None:
    """One noisy step of what is trained, R with Gaussian entries correlated as N and M say; second order in the step.

    120 draws at size 60, fixed seed: within 4.5 standard errors plus 6 / d of the largest term (corrections 1/d).
    """
    students, teachers = CASES[case]
    kinds = students | teachers
    system = SYSTEMS[case, False]
    parts = sample(kinds, 1)
    rng = np.random.default_rng(2)
    names = list(students)
    root = rng.standard_normal((2, len(names), len(names)))
    n, m = root[0] @ root[0].T + root[1] @ root[1].T, root[0] @ root[0].T - root[1] @ root[1].T
    # R_k = sum_a x_ka X_a + y_ka Y_a with X symmetric and Y antisymmetric Gaussian: N = x x' + y y', M = x x' - y y'
    here = word_matrices(parts, kinds)
    c: dict[str, float] = {}
    for i, k in enumerate(names):
        for j in range(i, len(names)):
            both_tied = kinds[k] == kinds[names[j]] == "tied"
            c[f"N{i + 1}{j + 1}"] = 2 * (n[i, j] + m[i, j]) if both_tied else n[i, j]
            c[f"M{i + 1}{j + 1}"] = m[i, j]
    words = [w for w in system.words if w.count(".") <= 1 and any(k in w for k in names)]
    step, draws = 1e-3, 120
    samples = {w: [] for w in words}
    for _ in range(draws):
        x, y = rng.standard_normal((2, len(names), SIZE, SIZE)) / np.sqrt(SIZE)
        x, y = (x + x.transpose(0, 2, 1)) / np.sqrt(2), (y - y.transpose(0, 2, 1)) / np.sqrt(2)
        noise = {k: np.tensordot(root[0][i], x, 1) + np.tensordot(root[1][i], y, 1) for i, k in enumerate(names)}
        moved = []
        for sign in (1, -1):
            new = dict(parts)
            for k in names:
                r = sign * step * noise[k]
                if kinds[k] == "tied":
                    new[k + ":W"] = parts[k + ":W"] - (r + r.T) @ parts[k + ":W"]
                elif kinds[k] == "untied":
                    new[k + ":U"] = parts[k + ":U"] - r @ parts[k + ":V"]
                    new[k + ":V"] = parts[k + ":V"] - r.T @ parts[k + ":U"]
                else:
                    new[k + ":S"] = parts[k + ":S"] - ((r + r.T) / 2 if kinds[k] == "symmetric" else r)
            moved.append(word_matrices(new, kinds))
        for w in words:
            samples[w].append((trace(moved[0], w) + trace(moved[1], w) - 2 * trace(here, w)) / (2 * step**2))
    scale = 4.0 if system.flow.time == "t" else 1.0
    loops = {w: [t for t in terms if t[1] in c] for w, terms in system.equations(loops=True).items()}
    for w in words:
        terms = [float(x) * scale * c[name] * float(np.prod([trace(here, f) for f in fs])) for x, name, fs in loops[w]]
        error = np.std(samples[w]) / np.sqrt(draws)
        largest = max((abs(t) for t in terms), default=0.0)
        assert abs(np.mean(samples[w]) - sum(terms)) < 4.5 * error + 6 / SIZE * (0.1 + largest)
