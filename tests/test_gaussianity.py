"""The diagnostic against sampled pre-activations."""

from __future__ import annotations

import numpy as np
import pytest

from tracewords.errors import ModelError
from tracewords.runtime.gaussianity import gaussianity

BAD = [np.ones(3), np.ones((2, 3)), np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((3, 3)), np.full((2, 2), np.nan)]


@pytest.mark.statistical
@pytest.mark.parametrize("c", [0.0, 0.6])
def test_kurtosis_against_samples_and_falling_as_one_over_d(c: float) -> None:
    """Excess kurtosis of 4e5 samples (in the eigenbasis), within 5 standard errors of the formula; seed fixed."""
    found = []
    for d in (20, 80):
        rng = np.random.default_rng(d)
        w = rng.standard_normal((d, d)) / np.sqrt(d)
        s = w @ w.T
        eigenvalues = np.linalg.eigvalsh(s)
        diagonal, pair = [], []
        for _ in range(40):
            x, y = rng.standard_normal((2, 10_000, d))
            y = c * x + np.sqrt(1 - c * c) * y
            diagonal.append((x * x) @ eigenvalues - eigenvalues.sum())
            pair.append((x * y) @ eigenvalues - c * eigenvalues.sum())
        expected = gaussianity(s, c)
        for samples, formula in ((diagonal, expected.kurtosis_diagonal), (pair, expected.kurtosis_pair)):
            parts = [np.mean(h**4) / np.mean(h**2) ** 2 - 3 for h in samples]
            assert abs(np.mean(parts) - formula) < 5 * np.std(parts) / np.sqrt(len(parts))
        found.append(expected)
    assert found[1].kurtosis_pair == pytest.approx(found[0].kurtosis_pair / 4, rel=0.25)
    assert found[1].norm_ratio < found[0].norm_ratio


def test_a_spike_is_seen() -> None:
    assert gaussianity(np.diag([1.0, 0.0, 0.0])).norm_ratio == pytest.approx(1.0)
    assert gaussianity(np.diag([1.0, 0.0, 0.0])).kurtosis_diagonal == pytest.approx(12.0)


@pytest.mark.parametrize("bad", BAD)
def test_bad_matrices(bad: np.ndarray) -> None:
    with pytest.raises(ModelError, match="matrix"):
        gaussianity(bad)
