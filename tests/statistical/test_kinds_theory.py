"""Direct, untied and a whole head: SGD against theory, loop terms included.  Seeds fixed; tolerances stated.

Each run's theory starts from the run's own moments: what is left is noise of the runs and corrections of order d^{-1/2}
(general matrices) or 1/d.
"""

from __future__ import annotations

import pytest

from tracewords.runtime.sgd import simulate
from tracewords.runtime.start import start_from
from tracewords.runtime.validate import compare_with_runs
from tracewords.solvers import solver

pytestmark = pytest.mark.statistical
CASES = {
    "direct-h1": (2, 0.4, 0.5, (12, 8), ("S1.S1'", "S1.S2'")),
    "direct-h2": (2, 0.4, 0.1, (8, 6), ("S1.S1'", "S1.S2'")),
    "untied-h1": (4, 0.05, 0.3, (12, 8), ("S1.S1'", "S1.S2'", "S1uu")),
    "head-softmax": (5, 0.3, 0.2, (5, 4), ("S1.S1", "S1.S2", "V1.V1'", "V1.V2'")),
}


@pytest.mark.parametrize("name", CASES)
def test_sgd_of_every_kind_follows_theory(name: str) -> None:
    """Paired differences at d = 60 and d = 180, 4 to 12 runs each.

    At d = 180 they must be within 3.5 standard errors plus 0.8 of what d = 60 shows with its 2 standard errors:
    d^{-1/2} says 0.58, 1/d a third.
    """
    order, end, kappa, counts, words = CASES[name]
    s = solver(name, order)
    start = start_from(s)
    found = {}
    for d, count in zip((60, 180), counts, strict=True):
        initial = dict(start.laws)
        runs = simulate(
            s, d=d, batch=16, times=[0, end], seeds=count, seed=3, kappa=kappa, words=s.WORDS, initial=initial
        )
        found[d] = compare_with_runs(s, runs, start, None)[0]["paired"]
    for word in words:
        small, large = found[60], found[180]
        allowed = 3.5 * large["sem"][word] + 0.8 * (abs(small["difference"][word]) + 2 * small["sem"][word])
        assert abs(large["difference"][word]) < allowed
        assert abs(large["difference"][word]) < 0.05
