"""Coefficients of the Dormand-Prince 8(5,3) method, as text for the batch integrator's template.

Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, section II.5; the numbers are those of
`scipy.integrate.DOP853`, so that the C integrator and scipy take the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scipy.integrate import DOP853

Term = tuple[int, str]


def _literal(value: float) -> str:
    """A C double literal with 17 significant digits, never an integer literal."""
    text = format(float(value), ".17g")
    return text if any(c in text for c in ".e") else text + ".0"


def _terms(row: Iterable[float]) -> tuple[Term, ...]:
    """The non-zero entries of a row of the tableau: (stage, literal)."""
    return tuple((i, _literal(value)) for i, value in enumerate(row) if value != 0.0)


def integrator_context() -> dict[str, Any]:
    """What `batch.c.j2` needs: ``{"dop853": {"stages", "b", "e3", "e5"}}``.

    ``stages`` lists stages 1 to 11 (stage 0 is the derivative at the step's start) as ``{"index": int,
    "c": literal, "at_end": bool, "a": terms}``; the other three are terms ``(stage, literal)``.
    """
    stages = tuple(
        {
            "index": s,
            "c": _literal(DOP853.C[s]),
            "at_end": bool(DOP853.C[s] == 1.0),
            "a": _terms(DOP853.A[s, :s]),
        }
        for s in range(1, DOP853.n_stages)
    )
    return {
        "dop853": {
            "stages": stages,
            "b": _terms(DOP853.B),
            "e3": _terms(DOP853.E3),
            "e5": _terms(DOP853.E5),
        }
    }
