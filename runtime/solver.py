"""A solver: a generated module, its C twin where a compiler exists, and the quadrature both use."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracewords.errors import KernelError, ModelError
from tracewords.runtime.compiler import warn_once
from tracewords.runtime.kernel import CKernel

Rules = dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]
Params = Mapping[str, Any]
BACKENDS = ("auto", "c", "numpy")
LADDER = {
    1: (49, 65, 97, 145, 217, 325),
    2: (41, 57, 73, 97, 129, 181, 257),
    3: (25, 33, 41, 57, 73),
    4: (13, 17, 21, 25, 31),
}
REACH = {1: 8.0, 2: 8.0, 3: 7.0, 4: 5.5}  # standard deviations
QMC_TOLERANCE, QMC_POWERS, QMC_SCRAMBLINGS = 1e-3, range(9, 15), 8
QUADRATURE_TOLERANCE = {1: 1e-10, 2: 1e-10, 3: 1e-8, 4: 1e-4}


def load_module(path: Path) -> ModuleType:
    """Import a generated module by path; its name carries the content, so that a new text is never the old module."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    name = f"_tracewords_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


class Solver:
    """A generated module with everything needed to integrate it.

    The attributes of the module (WORDS, couplings, rhs, ..) are attributes of the solver.

    Parameters
    ----------
    module : module
        As written by ``tracewords generate``.
    c_source : Path, optional
        Its C twin.
    """

    def __init__(self, module: ModuleType, c_source: Path | None = None) -> None:
        self.module, self.c_source = module, c_source
        self._kernels: dict[tuple[int, ...], CKernel] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "module":
            raise AttributeError(name)
        return getattr(self.module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return from_path, (Path(str(self.module.__file__)), self.c_source)

    def parameters(self, params: Params | None = None) -> dict[str, Any]:
        """All parameters: defaults overridden by `params`; unknown names and non-finite values refused."""
        known = dict(self.module.PARAMETERS)
        for name, value in (params or {}).items():
            if name not in known:
                raise ModelError(f"parameter {name}", value, f"one of {', '.join(known)}")
            if not np.all(np.isfinite(value)):
                raise ModelError(f"parameter {name}", value, "finite numbers")
            if name in ("gamma", "kappa") and np.any(np.asarray(value) < 0):
                raise ModelError(f"parameter {name}", value, "numbers of at least 0")
            known[name] = value
        return known

    def kernel(self, rules: Rules, backend: str = "auto") -> CKernel | None:
        """The compiled kernel with these rules, or None where NumPy has to do (with one warning)."""
        if backend not in BACKENDS:
            raise ModelError("backend", backend, f"one of {', '.join(BACKENDS)}")
        if backend == "numpy":
            return None
        try:
            if self.c_source is None:
                raise KernelError("this solver has no C source")
            chosen = [rules[d] for d in self.module.DIMENSIONS]
            key = tuple(len(w) for _, w in chosen)
            if key not in self._kernels:
                size = len(self.module.WORDS), len(self.module.PARAMETERS)
                self._kernels[key] = CKernel.from_source(self.c_source, *size, chosen)
            return self._kernels[key]
        except KernelError as error:
            if backend == "c":
                raise
            warn_once(f"using NumPy: {error}")
            return None

    def rules(self, q: NDArray[np.float64], params: Params | None = None, tolerance: float | None = None) -> Rules:
        """Quadrature rules fine enough at order parameters q (Q, n): couplings to `tolerance`, relative.

        Up to four variables: trapezoidal rules, made finer until two successive ones agree; a geometrically
        convergent rule is then closer than their distance.  More variables: randomised quasi-Monte Carlo, doubled until
        the standard error over scramblings is below the tolerance.
        """
        chosen: Rules = {}
        noisy = bool(np.any(self.parameters(params)["kappa"]))
        for dimension in self.module.DIMENSIONS:
            if dimension in self.module.NOISE_DIMENSIONS and not noisy:
                chosen[dimension] = np.zeros((dimension, 1)), np.ones(1)  # not evaluated
                continue
            limit = tolerance if tolerance is not None else QUADRATURE_TOLERANCE.get(dimension, QMC_TOLERANCE)
            refine = self._trapezoid if dimension in LADDER else self._quasi_random
            chosen[dimension], reached = refine(dimension, q, params, limit)
            if not reached:
                warn_once(f"quadrature in {dimension} dimensions did not reach {limit:g}; the finest rule is used")
        return chosen

    def _trapezoid(
        self, dimension: int, q: NDArray[np.float64], params: Params | None, limit: float
    ) -> tuple[Any, bool]:
        previous = None
        for nodes in LADDER[dimension]:
            rule = self.module.trapezoid(dimension, nodes, REACH[dimension], 1e-2 * limit)
            value = self._probe(q, params, dimension, rule)
            if previous is not None and np.all(np.abs(value - previous) <= limit * np.abs(value).max()):
                return rule, True
            previous = value
        return rule, False

    def _quasi_random(
        self, dimension: int, q: NDArray[np.float64], params: Params | None, limit: float
    ) -> tuple[Any, bool]:
        for power in QMC_POWERS:
            parts = [_sobol(dimension, power, seed) for seed in range(QMC_SCRAMBLINGS)]
            values = np.array([self._probe(q, params, dimension, part) for part in parts])
            error = values.std(axis=0, ddof=1) / np.sqrt(QMC_SCRAMBLINGS)
            rule = (
                np.concatenate([z for z, _ in parts], axis=1),
                np.concatenate([w for _, w in parts]) / QMC_SCRAMBLINGS,
            )
            if np.all(error <= limit * np.abs(values.mean(axis=0)).max()):
                return rule, True
        return rule, False

    def _probe(self, q: NDArray[np.float64], params: Params | None, dimension: int, rule: Any) -> NDArray[np.float64]:
        """Couplings (and contractions, where they are used) with one rule, single points for the other dimensions."""
        spread: Rules = {d: (np.zeros((d, 1)), np.ones(1)) for d in self.module.DIMENSIONS} | {dimension: rule}
        values = []
        if dimension not in self.module.NOISE_DIMENSIONS:
            values.append(self.module.couplings(q, params, spread))
        if np.any(self.parameters(params)["kappa"]):
            values.append(self.module.noise_contractions(q, params, spread))
        return np.concatenate(values)


def _sobol(dimension: int, power: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """2^power scrambled Sobol points of the normal law."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    points = qmc.Sobol(dimension, seed=seed).random_base2(power).T
    return ndtri(np.clip(points, 1e-15, 1 - 1e-15)), np.full(2**power, 2.0**-power)


def from_path(path: Path, c_source: Path | None = None) -> Solver:
    """A solver from files; the C twin is looked for beside the module."""
    twin = path.with_suffix(".c") if c_source is None else c_source
    return Solver(load_module(path), twin if twin.exists() else None)
