"""From a model to a solver that runs: the shipped file if it is the one, else one derived on demand.

Derived solvers are kept in the user's cache, under a fingerprint of the code that wrote them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from tracewords.errors import ModelError, StaleGeneratedError
from tracewords.files import write_text

if TYPE_CHECKING:
    from tracewords.derive.model import Model
    from tracewords.derive.system import System
    from tracewords.runtime.solver import Solver

SHIPPED_ORDERS = {"tied": (5, 8), "values": (5,), "untied": (3,), "direct": (2,), "symmetric": (2,)}


def model_from(model: str | Path | Model) -> Model:
    """A model as it is, or by a preset's name or a TOML file."""
    from tracewords.derive.model import Model, load_model

    return model if isinstance(model, Model) else load_model(model)


def sources(model: Model, order: int) -> dict[str, str]:
    """File names and texts of the NumPy module and its C twin."""
    from tracewords.derive.emit import emit_c, emit_python, solver_name
    from tracewords.derive.system import System

    system = System(model, order)
    name = solver_name(model.name, order)
    return {f"{name}.py": emit_python(system), f"{name}.c": emit_c(system)}


def shipped_orders(model: Model) -> tuple[int, ...]:
    """Orders that are shipped: few words where the equations close early or the words are many."""
    kinds = {m.kind for m in model.students.values()}
    return next(
        orders for kind, orders in SHIPPED_ORDERS.items() if kinds <= {"tied"} or (kind != "tied" and kind in kinds)
    )


def generate(
    folder: Path, models: Iterable[Model], orders: Iterable[int] | None = None, check: bool = False
) -> list[Path]:
    """Write (or compare) the solvers of models at orders (those that are shipped if None); returns the files.

    Raises
    ------
    StaleGeneratedError
        With `check`: files that differ or are missing.
    """
    texts: dict[str, str] = {}
    for model in models:
        for order in orders or shipped_orders(model):
            for name, text in sources(model, order).items():
                if name in texts:
                    raise ModelError("model names", name, "names whose solvers have different file names")
                texts[name] = text
    paths = [folder / name for name in texts]
    if check:
        stale = [p.name for p in paths if not p.is_file() or p.read_bytes() != texts[p.name].encode()]
        if stale:
            raise StaleGeneratedError(tuple(stale))
        return paths
    for path in paths:
        write_text(path, texts[path.name])
    return paths


def generated_folder() -> Path:
    """Where the shipped solvers are."""
    return Path(str(resources.files("tracewords.generated")))


@cache
def fingerprint() -> str:
    """Digest of the code that writes solvers: a cached solver of other code is not used."""
    digest = hashlib.sha256()
    for package, ending in (("tracewords.derive", ".py"), ("tracewords.templates", ".j2")):
        for entry in sorted(resources.files(package).iterdir(), key=lambda e: e.name):
            if entry.name.endswith(ending) and not entry.name.startswith("report"):
                data = entry.read_bytes()
                digest.update(f"{entry.name}:{len(data)}:".encode())
                digest.update(data)
    return digest.hexdigest()[:16]


def solver(model: str | Path | Model, order: int) -> Solver:
    """The solver of a model at an order.

    Parameters
    ----------
    model : Model, name of a preset, or path of a TOML file
    order : int
        Words up to this order evolve.
    """
    from tracewords.derive.emit import solver_name
    from tracewords.runtime.compiler import cache_root
    from tracewords.runtime.solver import from_path

    chosen = model_from(model)
    name = solver_name(chosen.name, order)
    shipped = generated_folder() / f"{name}.py"
    if shipped.is_file() and f'MODEL_DIGEST = "{chosen.digest}"' in shipped.read_text(encoding="utf-8"):
        return from_path(shipped)
    folder = cache_root() / "solvers" / f"{fingerprint()}_{chosen.digest}"
    path = folder / f"{name}.py"
    if not _intact(path):
        texts = sources(chosen, order)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file, text in texts.items():
            write_text(folder / file, text, "cache")
        seal = "".join(hashlib.sha256(t.encode()).hexdigest() + "\n" for t in texts.values())
        write_text(path.with_suffix(".sha256"), seal, "cache")
    return from_path(path)


def _intact(path: Path) -> bool:
    """Whether a cached solver is whole and what was written."""
    files = (path, path.with_suffix(".c"))
    try:
        seal = path.with_suffix(".sha256").read_text(encoding="utf-8").split()
        return seal == [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]
    except OSError:
        return False


def custom_solver(system: System, folder: str | Path) -> Solver:
    """The solver of a system with a flow of one's own, written to a folder (NumPy module and C twin)."""
    from tracewords.derive.emit import emit_c, emit_python, solver_name
    from tracewords.runtime.solver import from_path

    path = Path(folder) / f"{solver_name(system.model.name, system.order)}.py"
    write_text(path, emit_python(system))
    write_text(path.with_suffix(".c"), emit_c(system))
    return from_path(path)


def curvature(model: Model, params: dict[str, float]) -> dict[str, float] | None:
    """Proven bounds of how fast the slopes of the couplings vary (see `runtime.bounds`), or None."""
    import sympy as sp

    from tracewords.derive.suprema import curvature_bounds
    from tracewords.derive.system import System

    bounds = curvature_bounds(System(model, 2).statics)
    if bounds is None:
        return None
    values = {sp.Symbol(name, real=True): sp.Float(float(value)) for name, value in params.items()}
    return {name: float(bound.subs(values)) for name, bound in bounds.items()}
