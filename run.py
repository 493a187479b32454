#!/usr/bin/env python3
"""Set up and run on a fresh machine that has Python 3.11 or newer and nothing else.

    python3 run.py demo    the main job: validate tied-softmax, with a report in results/
    python3 run.py test    the test suite
    python3 run.py check   linter, type checker, generated sources (what CI runs beside the tests)

An environment is made in .venv and reused; only the standard library is used here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FOLDER = ROOT / ".venv"


def environment(extra: str) -> Path:
    """The environment's Python, with the project and the packages of one extra installed."""
    python = FOLDER / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print("making an environment in .venv", file=sys.stderr, flush=True)
        try:
            venv.create(FOLDER, with_pip=True, clear=FOLDER.exists())
        except (subprocess.CalledProcessError, OSError) as error:
            sys.exit(f"cannot make an environment ({error}); on Debian and Ubuntu: apt install python3-venv")
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + extra.encode()).hexdigest()
    stamp = FOLDER / f"installed{extra}"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing tracewords and what it needs", file=sys.stderr, flush=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--editable",
            f"{ROOT}{extra}",
        ]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        stamp.write_text(wanted)
    return python


def run(python: Path, *arguments: str, **more: str) -> int:
    """One command of the environment, from the checkout."""
    return subprocess.run([str(python), *arguments], cwd=ROOT, env={**os.environ, **more}).returncode


def demo() -> int:
    """The main job."""
    python = environment("")
    results = ROOT / "results"
    results.mkdir(exist_ok=True)
    files = ["--report", "results/validation.html", "--figure", "results/validation.png", "--out", "results/sgd.nc"]
    return run(python, "-m", "tracewords", "validate", "tied-softmax", *files)


def test(*arguments: str) -> int:
    """The test suite; arguments go to pytest."""
    return run(environment("[test]"), "-m", "pytest", *arguments)


def check() -> int:
    """Linter, type checker on the package as installed, generated sources."""
    python = environment("[dev]")
    codes = [run(python, "-m", "ruff", "check", ".")]
    with tempfile.TemporaryDirectory() as folder:
        # the folders are mapped to one package on installation: the type checker reads it as installed
        target = [f"--target={folder}", "--no-deps", "--quiet", "--disable-pip-version-check", "."]
        codes.append(run(python, "-m", "pip", "install", *target))
        site = sysconfig.get_path("purelib", vars={"base": str(FOLDER), "platbase": str(FOLDER)})
        mypy = [
            "-m",
            "mypy",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--python-executable",
            str(python),
            "-p",
            "tracewords",
        ]
        more = {"MYPYPATH": folder, "PYTHONPATH": site}
        codes.append(subprocess.run([str(python), *mypy], cwd=folder, env={**os.environ, **more}).returncode)
    codes.append(run(python, "-m", "tracewords", "generate", "--check"))
    return max(codes)


def main() -> int:
    """Dispatch."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything is installed
        sys.exit(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
    jobs = {"demo": demo, "test": test, "check": check}
    if len(sys.argv) < 2 or sys.argv[1] not in jobs:
        sys.exit(__doc__)
    return jobs[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
