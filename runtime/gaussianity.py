"""Whether given matrices are in the regime where pre-activations are Gaussian.

For symmetric S the pre-activation ``h_ij = d^{-1/2} (x_i' S x_j - c Tr S)``, c the correlation of the two tokens, is
close to Gaussian if no eigenvalue dominates: its excess kurtosis is ``12 Tr S^4 / (Tr S^2)^2`` for i = j and
``6 (1 + 6 c^2 + c^4) / (1 + c^2)^2 Tr S^4 / (Tr S^2)^2`` for two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tracewords.errors import ModelError


@dataclass(frozen=True)
class Gaussianity:
    """How far pre-activations of a matrix are from Gaussian; small numbers are good.

    Attributes
    ----------
    kurtosis_diagonal, kurtosis_pair : float
        Excess kurtosis of h_ii, and of h_ij at the given correlation.
    norm_ratio : float
        ||S||_op / ||S||_F: the limit theorem asks for zero.
    """

    kurtosis_diagonal: float
    kurtosis_pair: float
    norm_ratio: float


def gaussianity(matrix: ArrayLike, correlation: float = 0.0) -> Gaussianity:
    """The diagnostic of a symmetric matrix.

    Parameters
    ----------
    matrix : (d, d) array
        S, symmetric.
    correlation : float
        Of the two tokens, ``C_ij / sqrt(C_ii C_jj)``.
    """
    s = np.asarray(matrix)
    if s.ndim != 2 or s.shape[0] != s.shape[1] or s.size == 0 or s.dtype.kind not in "iuf":
        raise ModelError("matrix", f"shape {s.shape}, type {s.dtype}", "a square real array")
    if not np.all(np.isfinite(s)) or np.abs(s - s.T).max() > 1e-8 * max(np.abs(s).max(), 1e-300):
        raise ModelError("matrix", "entries not finite or not symmetric", "a finite symmetric array")
    if not -1.0 <= correlation <= 1.0:
        raise ModelError("correlation", correlation, "a number from -1 to 1")
    eigenvalues = np.linalg.eigvalsh(s.astype(float))
    square = float((eigenvalues**2).sum())
    if square == 0:
        raise ModelError("matrix", "zero", "a matrix that is not zero")
    share = float((eigenvalues**4).sum()) / square**2
    c = correlation**2
    pair = 6 * (1 + 6 * c + c**2) / (1 + c) ** 2
    return Gaussianity(12 * share, pair * share, float(np.abs(eigenvalues).max() / np.sqrt(square)))
