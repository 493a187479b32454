"""A flow of one's own: gradient descent with heavy-ball momentum on a tied matrix.

The letters are the factor W (d x r) and its velocity P, so that S = W W' is a word of two letters:

    dW/dt = P,    dP/dt = -eta P - sum_l G_1l S_l W.

Run it with ``python examples/heavy_ball.py``.
"""

from __future__ import annotations

import tempfile
from fractions import Fraction

import numpy as np

import tracewords as tw

# the model gives the couplings G; `eta`, the friction, and `one` are parameters of the flow
model = tw.Model(
    "heavy-ball", None, {"S1": tw.Tied()}, {"S2": tw.Tied()}, tw.Scalar("h1"), {"eta": 2.0, "one": 1.0}, tokens=2
)

# a word of order one has two letters W (or P); a teacher letter is a whole matrix: weight 2
alphabet = tw.Alphabet(
    [tw.Letter("W", False, "d", "r"), tw.Letter("P", False, "d", "r"), tw.Letter("S2", weight=2)], unit=2
)
w, p = alphabet.index["W"], alphabet.index["P"]


def term(weight: int, coupling: str, word: str) -> tw.DriftTerm:
    """weight * coupling * word."""
    return tw.DriftTerm(Fraction(weight), coupling, alphabet.parse(word, closed=False))


flow = tw.MatrixFlow(
    alphabet,
    {
        w: (term(1, "one", "P"),),
        p: (term(-1, "eta", "P"), term(-1, "G11", "W.W'.W"), term(-1, "G12", "S2.W")),
    },
    time="t",
    time_unit="4 alpha n / d, momentum form",
)


def main() -> None:
    """Equations, a solver, and a check against the matrices themselves."""
    system = tw.System(model, 4, flow, reading={"S1": "W.W'"})
    print(system)
    size, end = 200, 0.3
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, size, size)) / np.sqrt(size)
    matrices = {"W": x, "P": np.zeros((size, size)), "S2": y @ y.T}
    with tempfile.TemporaryDirectory() as folder:
        solver = tw.custom_solver(system, folder)
        start = {}
        for word in solver.WORDS:
            names = [matrices[n.rstrip("'")].T if n.endswith("'") else matrices[n] for n in word.split(".")]
            start[word] = float(np.trace(np.linalg.multi_dot([*names, np.eye(size)]))) / size
        path = tw.solve(solver, [0, end], start=tw.Start(moments=start), options=tw.Options(backend="numpy"))
    step = 1e-3
    now, speed = x, np.zeros((size, size))
    for _ in range(round(end / step)):
        force = -0.5 * (now @ now.T - matrices["S2"]) @ now
        speed = speed + step * (force - 2.0 * speed)
        now = now + step * speed
    for word, value in (
        ("W.W'.W.W'", np.vdot(now @ now.T, now @ now.T)),
        ("S2.W.W'", np.vdot(now @ now.T, matrices["S2"])),
    ):
        name = next(
            v
            for v in map(str, path.word.values)
            if alphabet.canonical(alphabet.parse(v)) == alphabet.canonical(alphabet.parse(word))
        )
        print(
            f"tr({name}) at t = {end}: moments {float(path.moment.sel(word=name)[-1]):.4f}, matrices {value / size:.4f}"
        )


if __name__ == "__main__":
    main()
