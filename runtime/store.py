"""Results as Datasets: what they say of themselves, means over runs, and files.

Files are NetCDF 3, which xarray reads with no more than scipy; they appear complete or not at all.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import tracewords
from tracewords.errors import ModelError

LIBRARIES = ("numpy", "scipy", "xarray")
INT32 = 2**31


def provenance(solver: Any, **extra: Any) -> dict[str, Any]:
    """Where numbers came from, as attributes of a Dataset.

    Parameters
    ----------
    solver : solver module
    **extra
        More of it, such as the seed or the time of creation; None is left out.

    Returns
    -------
    dict
        Plain numbers and strings: model, digest, order, versions, and `extra`.
    """
    attrs = {
        "model": solver.NAME,
        "model_digest": solver.MODEL_DIGEST,
        "order": solver.ORDER,
        "tracewords": tracewords.__version__,
        **{name: version(name) for name in LIBRARIES},
        **extra,
    }
    return _attributes(attrs)


# -- runs -------------------------------------------------------------------------------------------------


def summary(ds: xr.Dataset) -> xr.Dataset:
    """Mean and standard error over the runs that got there.

    Parameters
    ----------
    ds : Dataset
        With ``moment (run, time, word)``, ``loss`` and ``overlap (run, time)``.

    Returns
    -------
    Dataset
        ``mean, sem (time, word)``; ``loss_mean, loss_sem, overlap_mean, overlap_sem (time)``; and
        ``count (time)``, the runs that have values.  The standard error of a single run is NaN.
    """
    out = {"count": ds.loss.notnull().sum("run")}
    for name, prefix in (("moment", ""), ("loss", "loss_"), ("overlap", "overlap_")):
        values = ds[name]
        count = values.notnull().sum("run")
        mean = values.mean("run", skipna=True)
        variance = ((values - mean) ** 2).sum("run") / (count - 1).where(count > 1)
        out[f"{prefix}mean"] = mean
        out[f"{prefix}sem"] = np.sqrt(variance / count.where(count > 0))
    return xr.Dataset(out, attrs=ds.attrs)


def zscores(ds: xr.Dataset, theory: xr.Dataset | xr.DataArray) -> xr.DataArray:
    """(SGD mean - theory) / standard error, (time, word).

    Parameters
    ----------
    ds : Dataset
        From `simulate` or `summary`.
    theory : DataArray (time, word), or a Dataset with it as `moment`
        At the times that were recorded, ``ds.time``.
    """
    data = ds if "sem" in ds else summary(ds)
    values = theory["moment"] if isinstance(theory, xr.Dataset) else theory
    missing = [str(w) for w in data.word.values if w not in values.word.values]
    if missing:
        raise ModelError("theory", f"no {', '.join(missing)}", "moments of all recorded words")
    apart = np.abs(values.time.values[None, :] - data.time.values[:, None])
    if apart.size == 0 or (apart.min(axis=1) > 1e-6 * float(data.time[-1])).any():
        raise ModelError("theory", "other times", "values at the recorded times, ds.time")
    matched = values.isel(time=apart.argmin(axis=1)).sel(word=data.word).assign_coords(time=data.time)
    return ((data["mean"] - matched) / data["sem"]).transpose("time", "word")


# -- files -------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """An attribute that NetCDF 3 can hold: a number, a string, or an array of numbers."""
    if isinstance(value, str | float | np.floating):
        return value
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | np.integer):
        return int(value) if -INT32 <= value < INT32 else str(value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return value
    if isinstance(value, np.ndarray | Path):
        value = value.tolist() if isinstance(value, np.ndarray) else str(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _storable(array: xr.DataArray | xr.Variable) -> xr.Variable:
    """A variable in types of NetCDF 3: int32 where it fits, else double; strings stay."""
    values = np.asarray(array.values)
    if values.dtype.kind == "O" and all(isinstance(x, str) for x in values.ravel()):
        values = values.astype(str)
    if values.dtype.kind in "iu" and values.dtype.itemsize > 2:
        small = values.size == 0 or (values.min() >= -INT32 and values.max() < INT32)
        if not small and max(-int(values.min()), int(values.max())) > 2**53:
            raise ModelError("out", "whole numbers above 2**53", "numbers that NetCDF 3 can hold")
        values = values.astype(np.int32 if small else np.float64)
    elif values.dtype.kind == "f" and values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    elif values.dtype.kind not in "iufbU":
        raise ModelError("out", f"values of type {values.dtype}", "numbers, booleans and strings")
    return xr.Variable(array.dims, values, _attributes(array.attrs))


def _attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): _plain(value) for name, value in attrs.items() if value is not None}


def _coerced(ds: xr.Dataset) -> xr.Dataset:
    variables = {name: _storable(array) for name, array in ds.data_vars.items()}
    coords = {name: _storable(array) for name, array in ds.coords.items()}
    return xr.Dataset(variables, coords, _attributes(ds.attrs))


def save(ds: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a Dataset as NetCDF 3, complete or not at all.

    A file that was there is replaced only when the new one is on disk.

    Returns
    -------
    Path
        Where it was written.
    """
    target = Path(os.path.realpath(Path(path).expanduser()))
    if target.is_dir() or (target.exists() and not target.is_file()):
        raise ModelError("out", str(path), "the name of a file")
    if not target.parent.is_dir():
        raise ModelError("out", str(path), f"a file in a folder that exists; {target.parent} does not")
    try:
        content = _coerced(ds).to_netcdf(engine="scipy", format="NETCDF3_64BIT")
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise ModelError("out", str(path), f"data that NetCDF 3 can hold ({error})") from error
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError("out", str(path), f"a place that can be written to ({reason})") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def open_result(path: str | os.PathLike[str]) -> xr.Dataset:
    """A Dataset that `save` wrote, in memory, with the types that it had: int64, str."""
    where = Path(path).expanduser()
    if not where.is_file():
        raise ModelError("result", str(path), "a file that exists")
    try:
        ds = xr.load_dataset(where, engine="scipy")
    except Exception as error:  # a broken file can make the reader raise almost anything
        reason = (isinstance(error, OSError) and error.strerror) or "not NetCDF 3, or cut short"
        raise ModelError("result", str(path), f"a file written by tracewords ({reason})") from error
    return ds
