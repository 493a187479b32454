"""What the commands share: reading options, writing results for people and for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracewords.errors import ModelError

if TYPE_CHECKING:
    import xarray as xr

    from tracewords.runtime.solver import Solver
    from tracewords.runtime.start import Start

ModelArgument = Annotated[
    str, typer.Argument(help="A preset's name (see `tracewords models`) or a TOML file.", show_default=False)
]
OrderOption = Annotated[int, typer.Option("--order", "-M", help="Words up to this order evolve.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
ParamOption = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="Parameter value; repeatable.")
]
LawOption = Annotated[
    list[str] | None,
    typer.Option(
        "--law", metavar="S1=NAME[:KEY=VALUE,..]", help="Initial law of a matrix, e.g. S1=marchenko-pastur:ratio=0.5."
    ),
]
MatrixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--matrix",
        metavar="S1=FILE.npy",
        help="W (d, r) of a tied matrix, S of a direct one, V of values; NAME=FILE.npz with U and V of an untied one.",
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="Write the result here as NetCDF.")]
FigureOption = Annotated[Path | None, typer.Option("--figure", help="Write a figure here (.png, .svg or .pdf).")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
TimesOption = Annotated[
    str | None,
    typer.Option(
        "--times",
        help="Times: 0,0.5,1 or START:END:COUNT, in the unit t = 4 alpha n / d; solve: to 0.8 T* if not given.",
    ),
]


def split_pair(text: str, field: str, accepted: str) -> tuple[str, str]:
    """``name=value`` in two."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ModelError(field, text, accepted)
    return name, value


def number(text: str, field: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError as error:
        raise ModelError(field, text, "a number") from error
    if not math.isfinite(value):
        raise ModelError(field, text, "a finite number")
    return value


def read_params(texts: Iterable[str] | None) -> dict[str, float]:
    """Parameters given as ``name=value``."""
    pairs = (split_pair(t, "param", "NAME=VALUE") for t in texts or ())
    return {name: number(value, f"param {name}") for name, value in pairs}


def read_times(text: str) -> list[float]:
    """Times given as a list or as START:END:COUNT."""
    if text.count(":") == 2:
        first, last, count = (number(part, "times") for part in text.split(":"))
        if count != int(count) or not 2 <= count <= 1_000_000:
            raise ModelError("times", text, "START:END:COUNT with a whole COUNT from 2 to 1000000")
        return [first + (last - first) * i / (int(count) - 1) for i in range(int(count))]
    return [number(part, "times") for part in text.split(",")]


def read_law(text: str) -> tuple[str, dict[str, Any]]:
    """A law given as ``name:key=value,..``; lists as ``values=1;2;3``."""
    name, _, rest = text.partition(":")
    pairs = (split_pair(part, "law", "NAME:KEY=VALUE,..") for part in rest.split(",") if part)
    values: dict[str, Any] = {}
    for key, value in pairs:
        parts = [number(v, f"law {name}.{key}") for v in value.split(";")]
        values[key] = parts if key == "values" else parts[0]
    return name, values


def read_start(
    solver: Solver,
    laws: Iterable[str] | None = None,
    matrices: Iterable[str] | None = None,
    moments: Path | None = None,
) -> Start:
    """The initial condition out of --law, --matrix and --moments."""
    from tracewords.runtime.initial import load_matrices
    from tracewords.runtime.start import start_from

    if moments is not None:
        return start_from(solver, moments=_read_moments(moments))
    if matrices:
        paths = dict(split_pair(t, "matrix", "NAME=FILE.npy") for t in matrices)
        factors = load_matrices(paths, solver.KINDS, factors=True)
        return start_from(solver, factors=factors)
    given = dict(split_pair(t, "law", "MATRIX=NAME:KEY=VALUE,..") for t in laws or ())
    return start_from(solver, laws={k: read_law(v) for k, v in given.items()})


def _read_moments(path: Path) -> dict[str, float]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError("moments", str(path), f"a JSON file {{word: value}} ({error})") from error
    if not isinstance(data, dict) or not all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in data.values()
    ):
        raise ModelError("moments", str(path), "a JSON object {word: number}")
    return {str(k): float(v) for k, v in data.items()}


def check_figure(path: Path | None) -> None:
    """Refuse a figure's file name before anything is computed."""
    if path is not None:
        from tracewords.runtime.plot import figure_format

        figure_format(path)


def plain(value: Any) -> Any:
    """Plain JSON data: numbers that JSON cannot say (nan, inf) become null."""
    import numpy as np

    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(plain(data), indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str | None = None) -> None:
    """A table for people."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=SIMPLE, caption=caption, title_justify="left", caption_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(cell(x) for x in row))
    Console().print(table)


def cell(value: Any) -> str:
    """How a number looks in a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e-2 or abs(value) >= 1e4 else f"{value:.4f}"
    return str(value)


def trajectory_json(dataset: xr.Dataset, words: Sequence[str] | None = None) -> dict[str, Any]:
    """The contract's form of a trajectory."""
    chosen = [str(w) for w in dataset.word.values if words is None or str(w) in words]
    return {
        "status": dataset.attrs["status"],
        "time": dataset.time.attrs["long_name"],
        "times": dataset.time.values,
        "moments": {w: dataset["moment"].sel(word=w).values for w in chosen},
        "loss": dataset["loss"].values,
        "horizon": dataset.attrs["horizon"],
    }


def say(text: str) -> None:
    """A line for people, on standard error so that standard output stays data."""
    typer.echo(text, err=True)
