"""Integration of one trajectory with a check of every state: what scipy's driver does not do.

`solve_ivp` hangs or reports success when a derivative is NaN, and knows no domain.  This drives scipy's own
DOP853 step by step, checks the first derivative and every accepted state, and says where it had to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import DOP853

Floats = NDArray[np.float64]
Progress = Callable[[float], None]  # fraction done
Check = Callable[[Floats, float], str | None]  # state, slack -> what is wrong with it
NEAR = 1e-5  # slack with which a state at which the step size vanished is judged


@dataclass(frozen=True)
class Path:
    """States at the output times that were reached.

    Attributes
    ----------
    states : (n, size) array
        n may be smaller than the number of times asked for.
    status : str
        ``ok``, ``horizon`` (the state left its domain), ``diverged``, ``budget`` or ``interrupted``.
    reached : float
        The last good time.
    """

    states: Floats
    status: str
    reached: float
    reason: str = ""


def integrate(
    derivative: Callable[[float, Floats], Floats],
    start: Floats,
    times: Floats,
    rtol: float = 1e-8,
    atol: float = 1e-10,
    check: Check | None = None,
    budget: int = 100_000,
    progress: Progress | None = None,
) -> Path:
    """States at `times` (nondecreasing, the first is the start).

    Parameters
    ----------
    check : callable, optional
        Says what is wrong with a state, or None; a positive slack also refuses states that close to the edge.
    budget : int
        Steps allowed.
    """
    rows = [start]
    reason = _fault(derivative(float(times[0]), start), check, start)
    if reason:
        return Path(np.empty((0, len(start))), "horizon", float(times[0]), reason)
    following = 1
    while following < len(times) and times[following] <= times[0]:
        rows.append(start)
        following += 1
    reached = float(times[0])
    if following == len(times):
        return Path(np.array(rows), "ok", reached)
    method = DOP853(derivative, reached, start, float(times[-1]), rtol=rtol, atol=atol)
    try:
        for _ in range(budget):
            with np.errstate(all="ignore"):
                message = method.step()
            if method.status == "failed" or not np.all(np.isfinite(method.y)):
                # the derivative may not exist beyond the edge of the domain: steps shrink towards it
                edge = check(method.y, NEAR) if check else None
                reason = edge or message or "the state is not finite"
                return Path(np.array(rows), "horizon" if edge else "diverged", reached, reason)
            dense = method.dense_output()
            reason = check(method.y, 0.0) if check else None
            good = _last_good(dense, method.t_old, method.t, check) if check and reason else method.t
            while following < len(times) and times[following] <= good:
                rows.append(dense(times[following]))
                following += 1
            reached = float(good)
            if reason:
                return Path(np.array(rows), "horizon", reached, reason)
            if progress:
                progress((reached - times[0]) / (times[-1] - times[0]))
            if method.status == "finished":
                return Path(np.array(rows), "ok", reached)
    except KeyboardInterrupt:
        return Path(np.array(rows), "interrupted", reached, "stopped by the user")
    return Path(np.array(rows), "budget", reached, f"more than {budget} steps")


def _fault(slope: Floats, check: Check | None, state: Floats) -> str | None:
    if not np.all(np.isfinite(state)):
        return "the initial state is not finite"
    fault = check(state, 0.0) if check else None
    return fault or (None if np.all(np.isfinite(slope)) else "the derivative at the start is not finite")


def _last_good(dense: Callable[[float], Floats], low: float, high: float, check: Check) -> float:
    """Last time in a step at which the check passes, by bisection on the interpolant."""
    floor = 1e-9 * (high - low)
    while high - low > floor:
        middle = 0.5 * (low + high)
        if check(dense(middle), 0.0) is None:
            low = middle
        else:
            high = middle
    return low
