"""What can go wrong, each as fields and one written sentence.

Every error that a user can cause derives from `TracewordsError`; the command line prints its
sentence and exits with `exit_code`, never with a traceback.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class TracewordsError(Exception):
    """Base of all errors of this package."""

    exit_code = 2


@dataclass
class ModelError(TracewordsError):
    """Input that cannot be used: names the field, the value, and what would be accepted."""

    field: str
    value: Any
    accepted: str

    def __str__(self) -> str:
        text = repr(self.value) if isinstance(self.value, str) else str(self.value)
        text = " ".join(text.split())
        if len(text) > 80:
            text = text[:60] + f"... ({len(text)} characters)"
        return f"{self.field}: {text} cannot be used; accepted: {self.accepted}"


@dataclass
class HorizonError(TracewordsError):
    """A truncation left its domain: what was computed before is in `partial`.

    Parameters
    ----------
    time, horizon : float
        When it happened and the proven horizon T*, both in the unit of `time_unit`.
    reason : str
        Which condition was lost.
    partial : xarray.Dataset or None
        The trajectory up to the last good time.
    """

    time: float
    horizon: float
    reason: str
    partial: Any = field(default=None, repr=False)
    closures: tuple[str, ...] = ("operator", "flat", "matrix")

    exit_code = 1

    def __str__(self) -> str:
        return (
            f"the truncation left its domain at t = {self.time:.4g} ({self.reason}); it is proven to converge for "
            f"t < T* = {self.horizon:.4g}; closures that go on: {', '.join(self.closures)}"
        )


@dataclass
class DivergedError(TracewordsError):
    """SGD blew up: the step, and in `partial` the last finite values."""

    step: int
    time: float
    reason: str
    partial: Any = field(default=None, repr=False)

    exit_code = 1

    def __str__(self) -> str:
        return f"SGD diverged at step {self.step} (t = {self.time:.4g}): {self.reason}"


@dataclass
class KernelError(TracewordsError):
    """A compiled kernel could not be built or loaded; `output` is what the compiler said."""

    reason: str
    output: str = field(default="", repr=False)

    exit_code = 1

    def __str__(self) -> str:
        return self.reason


@dataclass
class StaleGeneratedError(TracewordsError):
    """Files in the generated folder differ from what the code would write now."""

    files: tuple[str, ...]

    exit_code = 1

    def __str__(self) -> str:
        return f"out of date: {', '.join(self.files)}; run `tracewords generate`"
