"""Result files: what goes in comes out, and a failure leaves what was there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_solver
import xarray as xr

from tracewords.errors import ModelError
from tracewords.runtime import store
from tracewords.runtime.sgd import simulate


@pytest.fixture
def result() -> xr.Dataset:
    return simulate(toy_solver.softmax(), d=8, batch=4, times=[0, 0.1], kappa=1.0, seeds=2)


def everything() -> xr.Dataset:
    variables = {
        "flag": ("run", np.array([True, False])),
        "large": ("run", np.array([2**40, -1])),
        "text": ("run", np.array(["κ = 1", ""])),
        "single": ((), np.float32(0.5)),
        "half": ("run", np.array([0.5, np.nan], np.float16)),
        "none": ("nothing", np.zeros(0)),
    }
    attrs = {"yes": True, "large": 2**60, "data": {"a": [1]}, "absent": None, "name": "é", "empty": ""}
    return xr.Dataset(variables, {"run": [3, 4], "word": ["S1", "S1.S2"]}, attrs)


def test_round_trip(result: xr.Dataset, tmp_path: Path) -> None:
    path = store.save(result, tmp_path / "result.nc")
    assert path == tmp_path / "result.nc"
    xr.testing.assert_identical(store.open_result(path).drop_attrs(), result.drop_attrs())
    assert store.open_result(path).attrs == result.attrs
    assert os.listdir(tmp_path) == ["result.nc"]


def test_all_kinds_of_values(tmp_path: Path) -> None:
    back = store.open_result(store.save(everything(), tmp_path / "x.nc"))
    xr.testing.assert_equal(back, everything())
    assert back.attrs["yes"] == 1
    assert back.attrs["large"] == str(2**60)
    assert back.attrs["data"] == '{"a": [1]}'
    assert back.attrs["name"] == "é"
    assert "absent" not in back.attrs
    again = store.open_result(store.save(back, tmp_path / "y.nc"))
    xr.testing.assert_identical(again, back)


def test_xarray_reads_it_with_scipy_alone(result: xr.Dataset, tmp_path: Path) -> None:
    path = store.save(result, tmp_path / "result.nc")
    code = (
        "import sys; sys.modules['netCDF4'] = sys.modules['h5netcdf'] = None; import xarray;"
        "ds = xarray.open_dataset(sys.argv[1]);"
        "print(list(ds.status.values), ds.moment.dims, 'tracewords' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0].endswith("('run', 'time', 'word') False")
    assert run.stdout.count("ok") == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failure_keeps_the_old_file(
    result: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = store.save(result, tmp_path / "result.nc")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ModelError) as caught:
        store.save(result.isel(run=[0]), path)
    assert caught.value.field == "out"
    assert os.strerror(number) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["result.nc"]


def test_interruption_leaves_no_part(result: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", press)
    with pytest.raises(KeyboardInterrupt):
        store.save(result, tmp_path / "result.nc")
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(result: xr.Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "absent" / "x.nc", tmp_path / "file" / "x.nc", Path(os.devnull)):
        with pytest.raises(ModelError) as caught:
            store.save(result, path)
        assert caught.value.field == "out"
    assert Path(os.devnull).is_char_device() or os.name == "nt"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind here")
def test_unwritable_folder(result: xr.Dataset, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ModelError, match="written to"):
        store.save(result, tmp_path / "x.nc")
    tmp_path.chmod(0o700)


def test_a_link_stays_a_link(result: xr.Dataset, tmp_path: Path) -> None:
    (tmp_path / "link.nc").symlink_to(tmp_path / "real.nc")
    store.save(result, tmp_path / "link.nc")
    assert (tmp_path / "link.nc").is_symlink()
    assert (tmp_path / "real.nc").is_file()


def test_data_that_cannot_be_stored(tmp_path: Path) -> None:
    for values in (np.array([1j]), np.array([{}], object), np.array([2**60])):
        with pytest.raises(ModelError) as caught:
            store.save(xr.Dataset({"x": ("n", values)}), tmp_path / "x.nc")
        assert caught.value.field == "out"
    assert os.listdir(tmp_path) == []


def test_results_that_cannot_be_read(result: xr.Dataset, tmp_path: Path) -> None:
    whole = store.save(result, tmp_path / "whole.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(whole[: len(whole) // 3])
    (tmp_path / "text.nc").write_text("not a result")
    for name in ("cut.nc", "text.nc", "absent.nc", "."):
        with pytest.raises(ModelError) as caught:
            store.open_result(tmp_path / name)
        assert caught.value.field == "result"
        assert "\n" not in str(caught.value)


def test_provenance() -> None:
    solver = toy_solver.softmax()
    attrs = store.provenance(solver, seed=3, created=None, note="x")
    assert attrs["model"] == "toy-softmax"
    assert attrs["model_digest"] == solver.MODEL_DIGEST
    assert attrs["order"] == 2
    assert attrs["numpy"] == np.__version__
    assert attrs["xarray"] == xr.__version__
    assert attrs["seed"] == 3
    assert "created" not in attrs
    assert {"tracewords", "scipy", "note"} <= set(attrs)
    assert store.provenance(solver, created="2024-01-01T00:00:00Z")["created"].endswith("Z")
