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
