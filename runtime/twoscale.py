"""The fast stage and the critical manifold of models whose loss sees means that are not centred.

On the scale t_fast = alpha n the factors stand still and ``dm_k/dt_fast = -D_k dPhi/dm_k`` with
``D_k = tr U U' + tr V V'`` (1 for a matrix that is trained itself), from m(0) to a stable zero of the gradient.
On the slow scale the means follow that zero, ``grad_m Phi = 0``, on the branch reached; where the branch ends (a
fold), they relax anew from where they were, which is an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from tracewords.runtime.solver import Rules, Solver

Floats = NDArray[np.float64]
NEWTON_STEPS = 30
RESIDUAL = 1e-11
LONGEST = 1e6  # of the fast time


@dataclass(frozen=True)
class FastStage:
    """Means during the fast stage.

    Attributes
    ----------
    times : (n,) array
        t_fast = alpha n (n steps, step size alpha).
    means : (n, K) array
    settled : bool
        Whether a zero of the gradient was reached.
    """

    times: Floats
    means: Floats
    settled: bool


@dataclass
class Manifold:
    """The means of a model as functions of the slow moments.

    Parameters
    ----------
    solver : Solver
    values : mapping
        All parameters; ``m_<letter>`` is the start of a student's mean and the value of a teacher's.
    rules : Rules

    Attributes
    ----------
    letters : tuple of str
        Students whose mean the loss sees; empty where there is no manifold.
    events : list of (q, mean before, mean after)
        Folds met.
    """

    solver: Solver
    values: dict[str, Any]
    rules: Rules
    letters: tuple[str, ...] = ()
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    events: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.letters = tuple(k for k in self.solver.MEANS if k in self.solver.STUDENTS)
        self.mean = np.array([float(self.values[f"m_{k}"]) for k in self.letters])
        position = {w: i for i, w in enumerate(self.solver.ARGUMENTS)}
        self._mobility = [
            [position[n] for n in (f"{k}uu", f"{k}vv")] if self.solver.KINDS[k] == "untied" else []
            for k in self.letters
        ]

    def parameters(self, mean: Floats) -> dict[str, Any]:
        """All parameters with these means, (K,) or (K, n)."""
        return {**self.values, **{f"m_{k}": mean[i] for i, k in enumerate(self.letters)}}

    def gradient(self, q: Floats, mean: Floats) -> Floats:
        """dPhi/dm (K,)."""
        return np.asarray(self.solver.mean_gradient(q, self.parameters(mean), self.rules))

    def hessian(self, q: Floats, mean: Floats) -> Floats:
        """d2Phi/dm2 (K, K)."""
        flat = self.solver.mean_hessian(q, self.parameters(mean), self.rules)
        return np.asarray(flat).reshape(len(self.letters), len(self.letters))

    def mobility(self, q: Floats) -> Floats:
        """D_k (K,)."""
        return np.array([q[rows].sum() if rows else 1.0 for rows in self._mobility])

    def relax(self, q: Floats) -> FastStage:
        """The fast stage from the present mean, which becomes where it ends."""
        pace = self.mobility(q)
        size = max(1.0, float(np.abs(self.gradient(q, self.mean)).max()))

        def slope(t: float, m: Floats) -> Floats:
            return -pace * self.gradient(q, m)

        def still(t: float, m: Floats) -> float:
            return float(np.abs(self.gradient(q, m)).max() - 1e-9 * size)

        still.terminal = True  # type: ignore[attr-defined]
        if still(0.0, self.mean) <= 0:
            return FastStage(np.zeros(1), self.mean[None], True)
        path = solve_ivp(slope, (0.0, LONGEST), self.mean, method="LSODA", rtol=1e-9, atol=1e-12, events=still)
        settled = path.status == 1
        means = path.y.T
        self.mean = means[-1].copy()
        if settled:
            self._newton(q)
            means[-1] = self.mean
        return FastStage(path.t, means, settled)

    def _newton(self, q: Floats) -> bool:
        """Moves the mean to the nearby zero of the gradient; directions the loss does not see stay."""
        mean = self.mean.copy()
        gradient = self.gradient(q, mean)
        if not np.all(np.isfinite(gradient)):
            return True  # outside the domain there is no manifold: what follows is not a number either
        scale = max(1.0, float(np.abs(self.hessian(q, mean)).max()))
        for _ in range(NEWTON_STEPS):
            if np.abs(gradient).max() <= RESIDUAL * scale:
                self.mean = mean
                return True
            hessian = self.hessian(q, mean)
            values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
            seen = np.abs(values) > 1e-9 * max(np.abs(values).max(), 1e-300)
            if np.any(values[seen] <= 0):
                return False  # not a stable branch any more
            step = vectors[:, seen] @ ((vectors[:, seen].T @ gradient) / values[seen])
            if np.abs(step).max() > 0.5 * (1.0 + np.abs(mean).max()):
                return False
            mean = mean - step
            gradient = self.gradient(q, mean)
        return False

    def at(self, q: Floats) -> dict[str, Any]:
        """All parameters with the means on the manifold at q (Q,); follows the branch, or jumps at a fold."""
        if self.letters and not self._newton(q):
            before = self.mean.copy()
            self.relax(q)
            self.events.append((q.copy(), before, self.mean.copy()))
        return self.parameters(self.mean)
