"""Which folder may import what, and how long files may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "derive": {"sympy", "networkx", "numpy", "jinja2", "scipy"},  # scipy: the coefficients of DOP853
    "runtime": {
        "numpy",
        "scipy",
        "xarray",
        "jinja2",
        "matplotlib",
        "filelock",
        "platformdirs",
        "threadpoolctl",
        "rich",
        "joblib",
    },
    "generated": {"numpy", "math"},
}
OWN = {
    "derive": {"tracewords", "tracewords.derive", "tracewords.errors", "tracewords.templates"},
    "runtime": {"tracewords", "tracewords.runtime", "tracewords.errors", "tracewords.files", "tracewords.templates"},
    "generated": set(),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_import_rules(folder: str) -> None:
    import sys

    for path in sorted((ROOT / folder).glob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            if top == "tracewords":
                assert ".".join(name.split(".")[:2]) in OWN[folder], f"{path.name} imports {name}"
            else:
                fine = top in ALLOWED[folder] or (folder != "generated" and top in sys.stdlib_module_names)
                assert fine, f"{path.name} imports {name}"


def test_files_stay_short() -> None:
    for folder in ("derive", "runtime", "tracewords", "templates"):
        for path in (ROOT / folder).glob("*"):
            if path.suffix in (".py", ".j2"):
                assert len(path.read_text().splitlines()) <= 450, path


def test_nothing_names_a_machine() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/*.py")]:
        if path.name != Path(__file__).name and ".venv" not in path.parts:
            text = path.read_text()
            assert "/wo" + "rk/" not in text, path
            assert "../sha" + "red" not in text, path
