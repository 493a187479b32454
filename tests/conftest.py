"""Shared fixtures: a private kernel cache, golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Rewrite tests/data/golden from what the code writes now."
    )


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Kernels and solvers of the tests go to a folder of their own."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("TRACEWORDS_CACHE")
    os.environ["TRACEWORDS_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["TRACEWORDS_CACHE"]
    else:
        os.environ["TRACEWORDS_CACHE"] = before
