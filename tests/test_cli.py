"""The command line: the JSON contract, tables, files, and one line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tracewords.cli import main

MODELS = Path(__file__).parent / "models"


class Done:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        captured = capsys.readouterr()
        return Done(int(stop.value.code or 0), captured.out, captured.err)

    return call


def one_line(done: Done, *words: str) -> None:
    """Exit 2 and one line that says what is wrong."""
    assert done.code == 2, done.err
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("tracewords: ")
    for word in words:
        assert word in lines[0]


def test_derive_contract(run) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(run("derive", "tied-softmax", "--order", "4", "--json").out)
    assert data["model"] == "tied-softmax"
    assert (data["order"], data["words"]) == (4, 15)
    assert data["order_parameters"] == ["S1.S1", "S1.S2", "S2.S2"]
    assert set(data["couplings"]) == {"G11", "G12"}
    assert isinstance(data["terms"], int)
    assert len(data["digest"]) == 16


def test_derive_latex_and_table(run) -> None:  # type: ignore[no-untyped-def]
    assert r"\begin{align}" in run("derive", "tied-softmax", "--order", "4", "--latex").out
    assert "d tr(S1)/dt" in run("derive", "tied-h2").out


@pytest.mark.parametrize("closure", ["zero", "flat", "operator", "matrix"])
def test_solve_contract(run, closure: str) -> None:  # type: ignore[no-untyped-def]
    done = run(
        "solve", "tied-softmax", "--order", "5", "--closure", closure, "--times", "0,0.1,0.2", "--size", "50", "--json"
    )
    data = json.loads(done.out)
    assert data["status"] == "ok"
    assert data["time"] == "t"
    assert data["times"] == [0, 0.1, 0.2]
    assert len(data["moments"]["S1.S1"]) == len(data["loss"]) == 3
    assert data["horizon"] == pytest.approx(0.6346, abs=1e-3)


def test_solve_past_the_horizon_is_cut_and_exits_1(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "r.nc"
    done = run("solve", "tied-softmax", "--order", "3", "--times", "0:2:21", "--json", "--out", str(out))
    data = json.loads(done.out)
    assert done.code == 1
    assert data["status"] == "horizon"
    assert data["times"][-1] == pytest.approx(0.9)
    assert len(data["moments"]["S1.S2"]) == len(data["times"]) == 10
    assert "operator" in data["error"]
    with xr.open_dataset(out) as kept:
        assert kept.sizes["time"] == 10


def test_solve_with_parameters_laws_and_files(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((30, 20)) / np.sqrt(30))
    out, figure = tmp_path / "x.nc", tmp_path / "x.png"
    files = ["--matrix", f"S1={tmp_path}/a.npy", "--matrix", f"S2={tmp_path}/b.npy"]
    done = run(
        "solve",
        "tied-softmax",
        "--order",
        "5",
        "--times",
        "0:0.1:3",
        *files,
        "--param",
        "beta=2",
        "--kappa",
        "0.01",
        "--out",
        str(out),
        "--figure",
        str(figure),
    )
    assert done.code == 0, done.err
    assert figure.stat().st_size > 1000
    with xr.open_dataset(out) as data:
        assert data["moment"].dims == ("time", "word")
        assert data.attrs["parameter_beta"] == 2
        assert data["time"].attrs["units"] == "4 alpha n / d"
    assert run("solve", "tied-h1", "--law", "S1=marchenko-pastur:ratio=0.5", "--times", "0,0.05").code == 0


def test_simulate_contract(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "s.nc"
    done = run(
        "simulate",
        "tied-h1",
        "-d",
        "40",
        "-B",
        "32",
        "--seeds",
        "3",
        "--times",
        "0,0.01",
        "--kappa",
        "0.2",
        "--dtype",
        "float32",
        "--json",
        "--out",
        str(out),
    )
    data = json.loads(done.out)
    assert data["status"] == "ok"
    assert set(data["moments"]["S1.S1"]) == {"mean", "sem"}
    assert len(data["moments"]["S1.S1"]["mean"]) == len(data["times"]) == 2
    assert set(data["loss"]) == {"mean", "sem"}
    with xr.open_dataset(out) as kept:
        assert kept.sizes["run"] == 3


def test_diverging_sgd_exits_1_with_the_step(run) -> None:  # type: ignore[no-untyped-def]
    done = run("simulate", "tied-h2", "-d", "30", "-B", "4", "--seeds", "1", "--times", "0,50", "--alpha", "5")
    assert done.code == 1
    assert "diverged at step" in done.err
    assert "Traceback" not in done.err


def test_validate_contract(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    report, figure = tmp_path / "v.html", tmp_path / "v.svg"
    done = run(
        "validate",
        "tied-h1",
        "--orders",
        "2:4",
        "-d",
        "60",
        "-B",
        "64",
        "--seeds",
        "2",
        "--json",
        "--report",
        str(report),
        "--figure",
        str(figure),
    )
    data = json.loads(done.out)
    assert done.code == 0
    assert data["holds"] is True
    assert data["horizon"] == pytest.approx(0.125)
    assert {"order", "error", "certificate", "proven"} <= set(data["table"][0])
    assert data["rate_measured"] < data["rate_bound"]
    assert set(data["sgd"]["z"]) == {"S1.S1", "S1.S2", "S1"}
    page = report.read_text()
    assert "<math" in page
    assert "<svg" in page
    assert (tmp_path / "v-trajectories.svg").exists()


def test_models_and_generate(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    names = [m["name"] for m in json.loads(run("models", "--json").out)["models"]]
    assert {"tied-softmax", "tied-h1", "tied-h2", "tied-h3"} <= set(names)
    assert run("generate", "tied-h1", "--order", "3", "--out", str(tmp_path)).code == 0
    assert run("generate", "tied-h1", "--order", "3", "--out", str(tmp_path), "--check").code == 0
    (tmp_path / "tied_h1_m3.py").write_text("# stale\n")
    stale = run("generate", "tied-h1", "--order", "3", "--out", str(tmp_path), "--check")
    assert stale.code == 1
    assert "tied_h1_m3.py" in stale.err
    assert run("generate", "--check").code == 0


BAD = [
    (["derive", "tied-softmax", "--order", "1"], "order"),
    (["derive", "tied-softmax", "--order", "-3"], "order"),
    (["derive", "tied-softmax", "--order", "45"], "GiB"),
    (["derive", "tied-softmax", "--order", "x"], "order"),
    (["derive", "nosuch"], "nosuch"),
    (["derive", "no/such.toml"], "no/such.toml"),
    (["solve", "tied-h1", "--times", "0,abc"], "times"),
    (["solve", "tied-h1", "--times", "0:1:0"], "times"),
    (["solve", "tied-h1", "--times", "1,0"], "times"),
    (["solve", "tied-h1", "--closure", "nosuch"], "closure"),
    (["solve", "tied-h1", "--param", "beta=1"], "beta"),
    (["solve", "tied-softmax", "--param", "beta"], "param"),
    (["solve", "tied-softmax", "--param", "beta=nan"], "beta"),
    (["solve", "tied-h1", "--kappa", "-1"], "kappa"),
    (["solve", "tied-h1", "--kappa", "1", "--closure", "operator"], "kappa"),
    (["solve", "tied-h1", "--law", "S1=nosuch"], "nosuch"),
    (["solve", "tied-h1", "--law", "S1=marchenko-pastur:ratio=-1"], "ratio"),
    (["solve", "tied-h1", "--law", "S1=semicircle"], "S1"),
    (["solve", "tied-h1", "--backend", "fortran"], "backend"),
    (["solve", "tied-h1", "--order", "8", "--closure", "flat"], "order"),
    (["solve", "tied-h1", "--size", "0", "--closure", "matrix"], "size"),
    (["solve", "tied-h1", "--rtol", "0"], "rtol"),
    (["simulate", "tied-h1", "-d", "1"], "d"),
    (["simulate", "tied-h1", "--dtype", "float16"], "dtype"),
    (["simulate", "tied-h1", "--seeds", "0"], "seeds"),
    (["simulate", "tied-h1", "--kappa", "0"], "kappa"),
    (["simulate", "tied-h1", "-d", "2000000"], "d"),
    (["validate", "tied-h1", "--orders", "5:2"], "orders"),
    (["validate", "tied-h1", "--orders", "2:99"], "orders"),
    (["validate", "tied-h1", "--seeds", "-1"], "seeds"),
    (["reproduce", "nosuch"], "truncation"),
    (["generate", "tied-h1"], "out"),
    (["nosuch"], "nosuch"),
    (["solve"], "model"),
    (["solve", "tied-h1", "--nosuch"], "nosuch"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_mistakes_are_one_line_and_exit_2(run, arguments: list[str], word: str) -> None:  # type: ignore[no-untyped-def]
    one_line(run(*arguments), word)


def test_bad_files_are_one_line(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    good = np.eye(6)
    cases = {"nan": good * np.nan, "line": np.ones(6), "complex": good * 1j, "short": np.ones((5, 2))}
    for name, array in cases.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "good.npy", good)
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("not an array")
    for name in ("nan", "line", "complex", "short", "object", "text", "missing"):
        one_line(
            run("solve", "tied-h1", "--matrix", f"S1={tmp_path}/good.npy", "--matrix", f"S2={tmp_path}/{name}.npy"),
            "S2",
        )
    one_line(run("solve", "tied-h1", "--matrix", f"S1={tmp_path}/good.npy"), "matrix")
    (tmp_path / "moments.json").write_text('{"S1": 1.0, "S1.S1": 0.5, "S2": 1, "S1.S2": 1, "S2.S2": 2}')
    one_line(run("solve", "tied-h1", "--moments", str(tmp_path / "moments.json")), "moments")
    (tmp_path / "hostile.toml").write_text(
        'name="x"\ntokens=2\n[loss]\nkind="formula"\nformula=\'__import__("os").system("touch hacked")\'\n'
        '[students.S1]\nparametrisation="tied"\n[teachers.S2]\nparametrisation="tied"\n'
    )
    one_line(run("derive", str(tmp_path / "hostile.toml")), "formula")
    assert not Path("hacked").exists()


@pytest.mark.parametrize("path", sorted((MODELS / "invalid").glob("*.toml")), ids=lambda p: p.stem)
def test_invalid_model_files_exit_2(run, path: Path) -> None:  # type: ignore[no-untyped-def]
    one_line(run("derive", str(path)))


def test_output_folder_that_cannot_be_written(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    one_line(run("solve", "tied-h1", "--times", "0,0.01", "--out", str(blocked / "x.nc")), "out")
    one_line(run("generate", "tied-h1", "--order", "3", "--out", str(blocked / "sub")), "out")
    one_line(run("solve", "tied-h1", "--times", "0,0.01", "--figure", str(blocked / "x.png")), "figure")


def test_help_is_quick_to_import_and_has_examples() -> None:
    program = (
        "import sys\nfrom tracewords.cli import main\n"
        "try:\n    main(['solve', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = [m for m in ('sympy', 'scipy', 'numpy', 'matplotlib', 'xarray') if m in sys.modules]\n"
        "print('loaded', heavy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert "loaded []" in done.stdout
    assert "Example: tracewords solve" in done.stdout


def test_tables_are_readable(run) -> None:  # type: ignore[no-untyped-def]
    done = run("solve", "tied-h1", "--order", "5", "--times", "0,0.05,0.1")
    assert "S1.S1" in done.out
    assert "loss" in done.out
