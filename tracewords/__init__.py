"""tracewords: trace-moment hierarchies of attention, from model to checked bound.

Public names are loaded when first used: importing the package costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Model": "tracewords.derive.model",
    "Tied": "tracewords.derive.parametrisation",
    "Direct": "tracewords.derive.parametrisation",
    "Symmetric": "tracewords.derive.parametrisation",
    "Untied": "tracewords.derive.parametrisation",
    "Values": "tracewords.derive.parametrisation",
    "Softmax": "tracewords.derive.losses",
    "Scalar": "tracewords.derive.losses",
    "Formula": "tracewords.derive.losses",
    "tied_softmax": "tracewords.derive.model",
    "tied_scalar": "tracewords.derive.model",
    "load_model": "tracewords.derive.model",
    "preset_names": "tracewords.derive.model",
    "System": "tracewords.derive.system",
    "MatrixFlow": "tracewords.derive.flow",
    "Alphabet": "tracewords.derive.words",
    "Letter": "tracewords.derive.words",
    "solver": "tracewords.solvers",
    "custom_solver": "tracewords.solvers",
    "DriftTerm": "tracewords.derive.flow",
    "generate": "tracewords.solvers",
    "Start": "tracewords.runtime.start",
    "start_from": "tracewords.runtime.start",
    "solve": "tracewords.runtime.integrate",
    "Options": "tracewords.runtime.integrate",
    "simulate": "tracewords.runtime.sgd",
    "validate": "tracewords.runtime.validate",
    "gaussianity": "tracewords.runtime.gaussianity",
    "save": "tracewords.runtime.store",
    "open_result": "tracewords.runtime.store",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tracewords' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
