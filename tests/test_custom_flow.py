"""Flows of a user's own: the shipped example against its matrices, and what is refused."""

from __future__ import annotations

import runpy
from fractions import Fraction
from pathlib import Path

import pytest

from tracewords.derive.flow import DriftTerm, MatrixFlow
from tracewords.derive.model import tied_scalar
from tracewords.derive.system import System
from tracewords.derive.words import Alphabet, Letter
from tracewords.errors import ModelError

EXAMPLE = Path(__file__).parent.parent / "examples" / "heavy_ball.py"


def test_heavy_ball_moments_follow_the_matrices(capsys: pytest.CaptureFixture[str]) -> None:
    """The example integrates moments and matrices (Euler steps of 1e-3, order 4) side by side: within 0.5 percent."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if "matrices" in line]
    assert len(lines) == 2
    for line in lines:
        moments, matrices = (float(part.split()[-1]) for part in line.split(": ")[1].split(","))
        assert moments == pytest.approx(matrices, rel=5e-3)


def test_unknown_couplings_and_open_paths_are_refused() -> None:
    model = tied_scalar("h1")
    plain = Alphabet([Letter("S1"), Letter("S2")])
    with pytest.raises(ModelError, match="flow: coupling"):
        System(model, 3, MatrixFlow(plain, {0: (DriftTerm(Fraction(1), "nosuch", (0,)),)}))
    factors = Alphabet([Letter("W", False, "d", "r"), Letter("S2", weight=2)], unit=2)
    flow = MatrixFlow(factors, {0: (DriftTerm(Fraction(1), "gamma", (0,)),)})
    with pytest.raises(ModelError, match="closed paths"):
        System(model, 3, flow, reading={"S1": "W"})
    with pytest.raises(ModelError, match="word"):
        System(model, 3, flow)
