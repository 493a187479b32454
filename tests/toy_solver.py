"""Stand-ins for generated solver modules, with the losses and their gradients written by hand.

They offer the attributes that simulation reads and nothing else, so that its tests share no code with the
derivation.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def _solver(name: str, students: int, entries: list[tuple[int, int]], covariance: Any) -> SimpleNamespace:
    """The attributes that do not depend on the loss; two tokens, one teacher, which is the last letter."""
    letters = tuple(f"S{k + 1}" for k in range(students + 1))
    cov = np.eye(2) if covariance is None else np.asarray(covariance, float)
    return SimpleNamespace(
        NAME=name,
        MODEL_DIGEST="0" * 16,
        ORDER=2,
        TIME="t",
        TIME_UNIT="4 alpha n / d",
        LETTERS=letters,
        STUDENTS=letters[:-1],
        KINDS=dict.fromkeys(letters, "tied"),
        RANK_RATIOS=dict.fromkeys(letters, 1.0),
        LAWS={letter: ("marchenko-pastur", {"ratio": 1.0}) for letter in letters},
        COVARIANCE=tuple(map(tuple, cov.tolist())),
        PARAMETERS={"beta": 1.0, "gamma": 0.0, "kappa": 0.0},
        ORDER_PARAMETERS=tuple(f"{a}.{b}" for n, a in enumerate(letters) for b in letters[n:]),
        PREACTIVATIONS=tuple((letter, i, j) for letter in letters for i, j in entries),
    )


def hermite(degree: int = 1, covariance: Any = None) -> SimpleNamespace:
    """``l = (f(h^1_12) - f(h^2_12))^2 / 2`` with f the Hermite polynomial of degree 1 or 2."""
    solver = _solver(f"toy-h{degree}", 1, [(1, 2)], covariance)

    def f(h: Any) -> Any:
        return h if degree == 1 else (h * h - 1) * h.dtype.type(0.5**0.5)

    def slope(h: Any) -> Any:
        return np.ones_like(h) if degree == 1 else h * h.dtype.type(2**0.5)

    def loss(h: Any, params: Any = None) -> Any:
        return (f(h[0]) - f(h[1])) ** 2 / 2

    def loss_gradient(h: Any, params: Any = None) -> Any:
        gap = f(h[0]) - f(h[1])
        return np.stack([gap * slope(h[0]), -gap * slope(h[1])])

    solver.loss, solver.loss_gradient = loss, loss_gradient
    return solver


def softmax(students: int = 1, covariance: Any = None) -> SimpleNamespace:
    """``l = sum_ij (A_ij - A*_ij)^2 / 2``, rows A = softmax(beta h) with the heads' h summed.

    With two tokens ``A_i1 = sigmoid(beta (h_i1 - h_i2)) = 1 - A_i2``, so ``l = sum_i (A_i1 - A*_i1)^2``.
    """
    solver = _solver("toy-softmax", students, [(1, 1), (1, 2), (2, 1), (2, 2)], covariance)

    def attention(h: Any, beta: float) -> tuple[Any, Any]:
        head, teacher = h[:-4].reshape(students, 4, *h.shape[1:]).sum(axis=0), h[-4:]
        ours, theirs = (beta * np.stack([u[0] - u[1], u[2] - u[3]]) for u in (head, teacher))
        return (1 + np.tanh(ours / 2)) / 2, (1 + np.tanh(theirs / 2)) / 2

    def loss(h: Any, params: Any = None) -> Any:
        ours, theirs = attention(h, (params or {}).get("beta", 1.0))
        return ((ours - theirs) ** 2).sum(axis=0)

    def loss_gradient(h: Any, params: Any = None) -> Any:
        beta = (params or {}).get("beta", 1.0)
        ours, theirs = attention(h, beta)
        head, teacher = (2 * beta * (ours - theirs) * s for s in (ours * (1 - ours), -theirs * (1 - theirs)))
        rows = [np.stack([u[0], -u[0], u[1], -u[1]]) for u in (head, teacher)]
        return np.concatenate([rows[0]] * students + [rows[1]])

    solver.loss, solver.loss_gradient = loss, loss_gradient
    return solver


# -- matrices of any kind ----------------------------------------------------------------------------------


def general(kinds: dict[str, str], students: tuple[str, ...], **changed: Any) -> SimpleNamespace:
    """The attributes of a model with matrices of any kind, but its loss; `changed` overrides them."""
    primed = [k for k, kind in kinds.items() if kind in ("direct", "untied", "values")]
    composites = [k + part for k, kind in kinds.items() if kind == "untied" for part in ("uu", "vv")]
    letters = tuple(sorted([*kinds, *(k + "'" for k in primed), *composites]))
    adjoint = {k: k for k in letters} | {k: k + "'" for k in primed} | {k + "'": k for k in primed}
    laws = {
        "tied": ("marchenko-pastur", {"ratio": 1.0}),
        "direct": ("ginibre", {}),
        "symmetric": ("semicircle", {}),
        "untied": ("ginibre-product", {"ratio": 1.0}),
        "values": ("ginibre", {"ratio": 1.0}),
    }
    scores = [k for k, kind in kinds.items() if kind != "values"]
    tied = all(kinds[k] == "tied" for k in students if kinds[k] != "values")
    solver = _solver("toy-general", 1, [(1, 2)], changed.pop("covariance", None))
    solver.LETTERS, solver.STUDENTS, solver.KINDS = tuple(kinds), students, dict(kinds)
    solver.WORD_LETTERS, solver.ADJOINT = letters, adjoint
    solver.TIME, solver.TIME_UNIT = ("t", "4 alpha n / d") if tied else ("tau", "alpha n / d")
    solver.RANK_RATIOS = dict.fromkeys(kinds, 1.0)
    solver.LAWS = {k: laws[kind] for k, kind in kinds.items()}
    solver.MEANS, solver.TRACES = (), ()
    solver.PARAMETERS |= {f"m_{k}": 0.0 for k in scores if kinds[k] != "tied"}
    solver.PREACTIVATIONS = tuple((k, 1, 2) for k in scores)
    pairs = [(a, b) for n, a in enumerate(scores) for b in scores[n:]]
    solver.ORDER_PARAMETERS = tuple(f"{a}.{adjoint[b]}" for a, b in pairs)
    for name, value in changed.items():
        setattr(solver, name, value)
    return solver


def linear(kind: str, teacher: str = "direct", **changed: Any) -> SimpleNamespace:
    """``l = (h^1_12 - h^2_12)^2 / 2`` with a student and a teacher of any kind."""
    solver = general({"S1": kind, "S2": teacher}, ("S1",), **changed)
    plain = hermite(1)
    solver.loss, solver.loss_gradient = plain.loss, plain.loss_gradient
    return solver


def waves(solver: SimpleNamespace, seed: int = 0) -> SimpleNamespace:
    """A loss that mixes everything that `solver` lists.

    ``l = s^2 / 2 + sum_p v_p cos(b_p . h + p)``, ``s = c . sin(h)``, with random weights b and c.
    """
    rng = np.random.default_rng(seed)
    c = rng.standard_normal(len(solver.PREACTIVATIONS))
    b = rng.standard_normal((len(solver.TRACES), len(c)))
    shift = np.arange(len(solver.TRACES), dtype=float)[:, None]

    def phase(h: Any) -> Any:
        return b @ h + shift

    def loss(h: Any, params: Any = None, traces: Any = ()) -> Any:
        return (c @ np.sin(h)) ** 2 / 2 + np.asarray(traces, float) @ np.cos(phase(h))

    def loss_gradient(h: Any, params: Any = None, traces: Any = ()) -> Any:
        first = (c @ np.sin(h)) * c[:, None] * np.cos(h)
        return first - (np.asarray(traces, float)[:, None] * b).T @ np.sin(phase(h))

    def trace_gradient(h: Any, params: Any = None, traces: Any = ()) -> Any:
        return np.cos(phase(h))

    solver.loss, solver.loss_gradient, solver.trace_gradient = loss, loss_gradient, trace_gradient
    return solver


def frozen_head() -> SimpleNamespace:
    """Values V1 learn V2 while both score matrices are fixed: an attention row of one entry, A = h_12.

    ``l = |h^1_12 V1' x_2 - h^2_12 V2' x_2|^2 / (2 d)`` averaged over what the values see.
    """
    kinds = {"V1": "values", "S1": "direct", "S2": "direct", "V2": "values"}
    solver = general(kinds, ("V1",), TRACES=(("V1", "V1"), ("V1", "V2"), ("V2", "V2")))
    solver.TIME, solver.TIME_UNIT = "tau", "alpha n / d"
    solver.ORDER_PARAMETERS = ("V1.V1'", "V1.V2'", "V2.V2'")

    def trace_gradient(h: Any, params: Any = None, traces: Any = ()) -> Any:
        return np.stack([h[0] * h[0] / 2, -h[0] * h[1], h[1] * h[1] / 2])

    def loss(h: Any, params: Any = None, traces: Any = ()) -> Any:
        return np.asarray(traces) @ trace_gradient(h)

    def loss_gradient(h: Any, params: Any = None, traces: Any = ()) -> Any:
        v11, v12, v22 = traces
        return np.stack([h[0] * v11 - h[1] * v12, h[1] * v22 - h[0] * v12])

    solver.loss, solver.loss_gradient, solver.trace_gradient = loss, loss_gradient, trace_gradient
    return solver
