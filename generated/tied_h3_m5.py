"""tied_h3_m5: trace-moment equations to order 5, with their couplings.

Written by tracewords 0.1.0 for model digest a4f148df71ae56ca; do not edit.
`rhs` is d mu / dt, t = 4 alpha n / d (n steps of SGD, step size alpha); mu[i] = tr(WORDS[i]), tr = Tr / d.
"""

import math

import numpy as np

NAME = "tied-h3"
MODEL_DIGEST = "a4f148df71ae56ca"
VERSION = "0.1.0"
ORDER = 5
TIME = "t"
TIME_UNIT = "4 alpha n / d"
LETTERS = ("S1", "S2")
WORD_LETTERS = ("S1", "S2")
ADJOINT = {"S1": "S1", "S2": "S2"}
STUDENTS = ("S1",)
KINDS = {"S1": "tied", "S2": "tied"}
RANK_RATIOS = {"S1": 1.0, "S2": 1.0}
LAWS = {"S1": ("marchenko-pastur", {"ratio": 1.0}), "S2": ("marchenko-pastur", {"ratio": 1.0})}
COVARIANCE = ((1.0, 0.0), (0.0, 1.0))
PARAMETERS = {"gamma": 0.0, "kappa": 0.0}
WORDS = (
    "S1", "S2", "S1.S1", "S1.S2", "S2.S2", "S1.S1.S1", "S1.S1.S2", "S1.S2.S2", "S2.S2.S2", "S1.S1.S1.S1",
    "S1.S1.S1.S2", "S1.S1.S2.S2", "S1.S2.S1.S2", "S1.S2.S2.S2", "S2.S2.S2.S2", "S1.S1.S1.S1.S1",
    "S1.S1.S1.S1.S2", "S1.S1.S1.S2.S2", "S1.S1.S2.S1.S2", "S1.S1.S2.S2.S2", "S1.S2.S1.S2.S2",
    "S1.S2.S2.S2.S2", "S2.S2.S2.S2.S2",
)
BOUNDARY = (
    "S1.S1.S1.S1.S1.S1", "S1.S1.S1.S1.S1.S2", "S1.S1.S1.S1.S2.S2", "S1.S1.S1.S2.S1.S2", "S1.S1.S1.S2.S2.S2",
    "S1.S1.S2.S1.S1.S2", "S1.S1.S2.S1.S2.S2", "S1.S1.S2.S2.S2.S2", "S1.S2.S1.S2.S1.S2", "S1.S2.S1.S2.S2.S2",
    "S1.S2.S2.S1.S2.S2", "S1.S2.S2.S2.S2.S2",
)
ORDER_PARAMETERS = ("S1.S1", "S1.S2", "S2.S2")
ARGUMENTS = ("S1.S1", "S1.S2", "S2.S2")
GRAM = ((2, 3), (3, 4))
MEANS = ()
TRACES = ()
COUPLINGS = ("G11", "G12")
NOISE = ("N11",)
FLOW = {
   
    "S1": ((-1.0, "G11", "S1.S1"), (-1.0, "G11", "S1.S1"), (-1.0, "G12", "S2.S1"), (-1.0, "G12", "S1.S2"), (-0.5, "gamma", "S1")),
}
PREACTIVATIONS = (("S1", 1, 2), ("S2", 1, 2))
DIMENSIONS = ()
NOISE_DIMENSIONS = ()

_Q = np.array([2, 3, 4], dtype=np.intp)
# d mu[row] / dt = sum weight * coefficient * mu[first]; indices past the words are the boundary, then tr(1) = 1
_DRIFT_NAMES = ("G11", "G12", "gamma")
_DRIFT_ROW = np.array([
    0, 0, 0, 2, 2, 2, 3, 3, 3, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11, 12, 12,
    12, 13, 13, 13, 15, 15, 15, 16, 16, 16, 16, 16, 17, 17, 17, 17, 18, 18, 18, 18, 18, 19, 19, 19, 19, 20,
    20, 20, 20, 21, 21, 21,
], dtype=np.intp)
_DRIFT_COEFFICIENT = np.array([
    0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1,
    2, 0, 1, 2, 0, 1, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2,
], dtype=np.intp)
_DRIFT_FIRST = np.array([
    2, 3, 0, 5, 6, 2, 6, 7, 3, 9, 10, 5, 10, 11, 12, 6, 11, 13, 7, 15, 16, 9, 16, 17, 18, 10, 17, 19, 20, 11,
    18, 20, 12, 19, 21, 13, 23, 24, 15, 24, 25, 26, 28, 16, 25, 27, 29, 17, 26, 28, 29, 31, 18, 27, 30, 32,
    19, 29, 32, 33, 20, 30, 34, 21,
], dtype=np.intp)
_DRIFT_SECOND = np.array([
    35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35,
    35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35,
    35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35,
], dtype=np.intp)
_DRIFT_WEIGHT = np.array([
    -2.0, -2.0, -0.5, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5, -6.0, -6.0, -1.5, -4.0, -2.0, -2.0, -1.0, -2.0,
    -2.0, -0.5, -8.0, -8.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -4.0, -1.0, -2.0,
    -2.0, -0.5, -10.0, -10.0, -2.5, -8.0, -2.0, -4.0, -2.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0, -4.0,
    -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -2.0, -2.0, -1.0, -2.0, -2.0, -0.5,
])
_LOOP_NAMES = ("N11",)
_LOOP_ROW = np.array([
    0, 2, 2, 3, 5, 5, 6, 6, 6, 7, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 15, 15, 15, 16, 16, 16,
    16, 16, 17, 17, 17, 17, 18, 18, 18, 18, 18, 18, 19, 19, 19, 20, 20, 20, 20, 21,
], dtype=np.intp)
_LOOP_COEFFICIENT = np.array([
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
], dtype=np.intp)
_LOOP_FIRST = np.array([
    0, 0, 2, 0, 0, 5, 0, 1, 6, 0, 0, 2, 9, 0, 1, 2, 10, 0, 2, 11, 0, 1, 3, 0, 0, 2, 15, 0, 1, 2, 3, 16, 0, 2,
    4, 17, 0, 0, 1, 2, 3, 18, 0, 2, 19, 0, 1, 3, 4, 0,
], dtype=np.intp)
_LOOP_SECOND = np.array([
    35, 0, 35, 1, 2, 35, 3, 2, 35, 4, 5, 2, 35, 6, 5, 3, 35, 7, 4, 35, 7, 6, 3, 8, 9, 5, 35, 10, 9, 6, 5, 35,
    11, 7, 5, 35, 11, 12, 10, 7, 6, 35, 13, 8, 35, 13, 11, 7, 6, 14,
], dtype=np.intp)
_LOOP_WEIGHT = np.array([
    0.25, 1.0, 0.5, 0.25, 3.0, 0.75, 1.0, 0.25, 0.25, 0.25, 4.0, 2.0, 1.0, 2.0, 0.25, 1.0, 0.5, 1.0, 0.25,
    0.25, 0.5, 0.5, 0.5, 0.25, 5.0, 5.0, 1.25, 3.0, 0.25, 2.0, 1.0, 0.75, 2.0, 1.0, 0.25, 0.5, 0.25, 1.0, 0.5,
    0.25, 1.5, 0.25, 1.0, 0.25, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25,
])


def trapezoid(dimension, nodes=97, reach=8.0, drop=1e-16):
    """Trapezoidal rule for the mean over standard normal variables: z (dimension, P), w (P,).

    Nodes a direction up to `reach` standard deviations; points of less than `drop` of the largest weight are left out.
    """
    line = np.linspace(-reach, reach, nodes)
    density = np.exp(-0.5 * line * line)
    density /= density.sum()
    grids = np.meshgrid(*[line] * dimension, indexing="ij")
    weight = np.ones(())
    for _ in range(dimension):
        weight = np.multiply.outer(weight, density)
    keep = weight > drop * weight.max()
    return np.stack([g[keep] for g in grids]), weight[keep] / weight[keep].sum()


class _Rules(dict):
    """Quadrature rules by dimension, made when first asked for."""

    def __missing__(self, dimension):
        if dimension > 4:
            raise ValueError(f"averages over {dimension} variables need a rule for that dimension")
        self[dimension] = trapezoid(dimension, nodes={1: 97, 2: 97, 3: 49}.get(dimension, 25))
        return self[dimension]


_RULES = _Rules()


def _colour(cov, z):
    """u = L z with L L' the covariance given by its lower triangle; NaN where it is not positive."""
    n = z.shape[0]
    lower = [[0.0] * n for _ in range(n)]
    for j in range(n):
        diagonal = cov[j * (j + 1) // 2 + j]
        pivot = diagonal - math.fsum(x * x for x in lower[j][:j])
        if not pivot > -1e-9 * abs(diagonal):
            return np.full_like(z, np.nan)
        # a vanishing pivot: the variable is a combination of the earlier ones
        root = math.sqrt(pivot) if pivot > 1e-15 * diagonal else 0.0
        lower[j][j] = root
        for i in range(j + 1, n):
            rest = cov[i * (i + 1) // 2 + j] - math.fsum(x * y for x, y in zip(lower[i][:j], lower[j][:j]))
            lower[i][j] = rest / root if root else 0.0
    return [sum(lower[i][j] * z[j] for j in range(i + 1)) for i in range(n)]


def _sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _softmax(*x):
    top = np.maximum(0.0, x[0])
    for y in x[1:]:
        top = np.maximum(top, y)
    e = [np.exp(y - top) for y in x] + [np.exp(-top)]
    total = sum(e)
    return [y / total for y in e]


def _powi(x, n):
    return x**n


_erf = np.vectorize(math.erf, otypes=[float])


def _parameter(params, name):
    if params is None or name not in params:
        return PARAMETERS[name]
    value = params[name]
    return value if isinstance(value, float) else np.asarray(value, dtype=float)


def _stack(rows, batch):
    """Rows with the batch axes of the whole, constants spread over them."""
    batch = np.broadcast_shapes(batch, *(np.shape(r) for r in rows))
    out = np.empty((len(rows), *batch))
    for i, row in enumerate(rows):
        out[i] = row
    return out


def _couplings(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    x0 = 1.5*q_1_2
    return _stack(
        (
            0.75 + x0 + (-3.0*q_1_1) + 3.75*(q_1_1*q_1_1) + (-x0*q_2_2),
            -0.75 + (-1.5*(q_1_2*q_1_2)) + 0.75*q_1_1 + 0.75*q_2_2 + (-0.75*q_1_1*q_2_2),
        ),
        q.shape[1:],
    )


def _noise(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    x0 = 9.0*q_1_2
    x1 = 63.0*q_1_2
    x2 = q_1_1*q_2_2
    x3 = (q_1_1*q_1_1)
    x4 = (q_1_1*q_1_1*q_1_1)
    x5 = (q_1_2*q_1_2)
    x6 = (q_1_2*q_1_2*q_1_2)
    x7 = (q_1_2*q_1_2*q_1_2*q_1_2)
    x8 = (q_2_2*q_2_2)
    x9 = (q_2_2*q_2_2*q_2_2)
    x10 = 225.0*x3*q_1_2
    x11 = 315.0*x4*q_1_2
    x12 = x5*x8
    return _stack(
        (
            x11 + (-x0) + (-x10) + (-420.0*(q_1_1*q_1_1*q_1_1*q_1_1)) + (-90.0*x12) + (-72.0*x7) + (-42.0*x6) + (-36.0*x3) + (-18.0*x5) + (-9.0*x2) + (-9.0*x8) + 165.0*x4 + 4.5*q_1_1 + 4.5*q_2_2 + 7.5*x9 + 472.5*_powi(q_1_1, 5) + x0*q_2_2 + x1*q_1_1 + x10*q_2_2 + (-x1*x2) + (-x11*q_2_2) + (-630.0*x3*x6) + (-216.0*x2*x5) + (-27.0*x3*x8) + (-15.0*x9*q_1_1) + 18.0*x8*q_1_1 + 54.0*x5*q_1_1 + 72.0*x5*q_2_2 + 180.0*x7*q_2_2 + 270.0*x12*q_1_1 + 300.0*x6*q_1_1 + 13.5*x3*q_2_2 + 22.5*x3*x9,
        ),
        q.shape[1:],
    )


def _potential(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    x0 = 1.5*q_1_2
    x1 = x0*q_1_1
    return _stack(
        (
            x1 + (-x0) + (-(q_1_2*q_1_2*q_1_2)) + (-1.5*(q_1_1*q_1_1)) + (-1.5*(q_2_2*q_2_2)) + 0.75*q_1_1 + 0.75*q_2_2 + 1.25*(q_1_1*q_1_1*q_1_1) + 1.25*(q_2_2*q_2_2*q_2_2) + x0*q_2_2 + (-x1*q_2_2),
        ),
        q.shape[1:],
    )


def _mean_gradient(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _mean_hessian(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _coupling_slopes(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    return _stack(
        (
            -3.0 + 7.5*q_1_1,
            1.5 + (-1.5*q_2_2),
            -1.5*q_1_2,
            0.75 + (-0.75*q_2_2),
            -3.0*q_1_2,
            0.75 + (-0.75*q_1_1),
        ),
        q.shape[1:],
    )


def _noise_slopes(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    x0 = 63.0*q_1_2
    x1 = -9.0*q_2_2
    x2 = q_1_1*q_1_2
    x3 = 450.0*x2
    x4 = q_1_1*q_2_2
    x5 = (q_1_1*q_1_1)
    x6 = (q_1_1*q_1_1*q_1_1)
    x7 = (q_1_2*q_1_2)
    x8 = (q_1_2*q_1_2*q_1_2)
    x9 = (q_2_2*q_2_2)
    x10 = (q_2_2*q_2_2*q_2_2)
    x11 = x9*q_1_1
    x12 = 945.0*x5*q_1_2
    x13 = 216.0*x7
    x14 = 225.0*x5
    x15 = 315.0*x6
    return _stack(
        (
            4.5 + x0 + x1 + x12 + (-x3) + (-1680.0*x6) + (-72.0*q_1_1) + (-54.0*x11) + (-15.0*x10) + 18.0*x9 + 27.0*x4 + 54.0*x7 + 300.0*x8 + 495.0*x5 + 2362.5*(q_1_1*q_1_1*q_1_1*q_1_1) + x3*q_2_2 + (-x0*q_2_2) + (-x12*q_2_2) + (-x13*q_2_2) + (-1260.0*x8*q_1_1) + 45.0*x10*q_1_1 + 270.0*x7*x9,
            -9.0 + (-x1) + (-x14) + (-288.0*x8) + (-126.0*x7) + (-36.0*q_1_2) + 63.0*q_1_1 + 315.0*x6 + (-x15*q_2_2) + (-1890.0*x5*x7) + (-432.0*x2*q_2_2) + (-180.0*x9*q_1_2) + (-63.0*q_1_1*q_2_2) + 108.0*q_1_1*q_1_2 + 144.0*q_1_2*q_2_2 + 225.0*x5*q_2_2 + 720.0*x8*q_2_2 + 900.0*x7*q_1_1 + 540.0*x9*q_1_1*q_1_2,
            4.5 + (-45.0*x11) + (-18.0*q_2_2) + (-9.0*q_1_1) + 9.0*q_1_2 + 36.0*x4 + 72.0*x7 + 180.0*(q_1_2*q_1_2*q_1_2*q_1_2) + 13.5*x5 + 22.5*x9 + x14*q_1_2 + (-x0*q_1_1) + (-x13*q_1_1) + (-x15*q_1_2) + (-180.0*x7*q_2_2) + (-54.0*x5*q_2_2) + 540.0*x4*x7 + 67.5*x5*x9,
        ),
        q.shape[1:],
    )


def order_parameters(mu):
    """Rows of `mu` (K, ...) that are the ARGUMENTS of couplings, order parameters first: (Q, ...)."""
    return np.asarray(mu)[_Q]


def couplings(q, params=None, rule=None):
    """Couplings (C, ...) named in COUPLINGS at order parameters q (Q, ...)."""
    return _couplings(np.asarray(q, dtype=float), params, rule)


def noise_contractions(q, params=None, rule=None):
    """Noise contractions named in NOISE at order parameters q (Q, ...)."""
    return _noise(np.asarray(q, dtype=float), params, rule)


def coupling_slopes(q, params=None, rule=None):
    """Derivatives (C * Q, ...) of the couplings with respect to the order parameters, row by row."""
    return _coupling_slopes(np.asarray(q, dtype=float), params, rule)


def potential(q, params=None, rule=None):
    """Population loss Phi at order parameters q (Q, ...)."""
    return _potential(np.asarray(q, dtype=float), params, rule)[0]


def mean_gradient(q, params=None, rule=None):
    """dPhi/dm of the students among MEANS, at means given as parameters ``m_<letter>``."""
    return _mean_gradient(np.asarray(q, dtype=float), params, rule)


def mean_hessian(q, params=None, rule=None):
    """Second derivatives of Phi in those means, row by row."""
    return _mean_hessian(np.asarray(q, dtype=float), params, rule)


def _coefficients(names, known, values, params, batch):
    table = dict(zip(known, values))
    return _stack([table[n] if n in table else _parameter(params, n) for n in names], batch)


def _accumulate(out, row, values):
    """out[row] += values, the rows sorted."""
    if len(row):
        start = np.flatnonzero(np.diff(row, prepend=-1))
        out[row[start]] += np.add.reduceat(values, start, axis=0)


def _extended(mu, boundary):
    outer = np.zeros((len(BOUNDARY), *mu.shape[1:])) if boundary is None else np.asarray(boundary, dtype=float)
    return np.concatenate([mu, outer, np.ones((1, *mu.shape[1:]))])


def _column(weight, mu):
    return weight.reshape(-1, *[1] * (mu.ndim - 1))


def _add_loops(out, mu, kappa, params, rule):
    """Loop terms, proportional to kappa."""
    n = _coefficients(_LOOP_NAMES, NOISE, noise_contractions(mu[_Q], params, rule), params, mu.shape[1:])
    full = _extended(mu, None)
    values = _column(_LOOP_WEIGHT, mu) * n[_LOOP_COEFFICIENT] * full[_LOOP_FIRST] * full[_LOOP_SECOND] * kappa
    _accumulate(out, _LOOP_ROW, values)


def rhs(t, mu, params=None, out=None, boundary=None, rule=None):
    """Time derivative of the moments.

    Parameters
    ----------
    t : float
        Not used: the equations are autonomous.
    mu : (K, ...) array
        Moments in the order of WORDS; any trailing batch axes.
    params : mapping, optional
        Values of PARAMETERS, scalars or arrays over the batch axes.
    out : (K, ...) array, optional
    boundary : (len(BOUNDARY), ...) array, optional
        Moments of the next order; zero if not given.
    rule : mapping of dimension to (z, w), optional
        Quadrature rules, see `trapezoid`.

    Returns
    -------
    (K, ...) array
    """
    mu = np.asarray(mu, dtype=float)
    if mu.shape[0] != 23:
        raise ValueError(f"mu has {mu.shape[0]} rows; accepted: 23, one for each of WORDS")
    if out is None:
        out = np.empty_like(mu)
    c = _coefficients(_DRIFT_NAMES, COUPLINGS, couplings(mu[_Q], params, rule), params, mu.shape[1:])
    c0, c1, c2 = c
    out[0] = c0*(-2.0*mu[2]) + c1*(-2.0*mu[3]) + c2*(-0.5*mu[0])
    out[1] = 0.0
    out[2] = c0*(-4.0*mu[5]) + c1*(-4.0*mu[6]) + c2*(-1.0*mu[2])
    out[3] = c0*(-2.0*mu[6]) + c1*(-2.0*mu[7]) + c2*(-0.5*mu[3])
    out[4] = 0.0
    out[5] = c0*(-6.0*mu[9]) + c1*(-6.0*mu[10]) + c2*(-1.5*mu[5])
    out[6] = c0*(-4.0*mu[10]) + c1*(-2.0*mu[11] - 2.0*mu[12]) + c2*(-1.0*mu[6])
    out[7] = c0*(-2.0*mu[11]) + c1*(-2.0*mu[13]) + c2*(-0.5*mu[7])
    out[8] = 0.0
    out[9] = c0*(-8.0*mu[15]) + c1*(-8.0*mu[16]) + c2*(-2.0*mu[9])
    out[10] = c0*(-6.0*mu[16]) + c1*(-2.0*mu[17] - 4.0*mu[18]) + c2*(-1.5*mu[10])
    out[11] = c0*(-4.0*mu[17]) + c1*(-2.0*mu[19] - 2.0*mu[20]) + c2*(-1.0*mu[11])
    out[12] = c0*(-4.0*mu[18]) + c1*(-4.0*mu[20]) + c2*(-1.0*mu[12])
    out[13] = c0*(-2.0*mu[19]) + c1*(-2.0*mu[21]) + c2*(-0.5*mu[13])
    out[14] = 0.0
    out[15] = c2*(-2.5*mu[15])
    out[16] = c2*(-2.0*mu[16])
    out[17] = c2*(-1.5*mu[17])
    out[18] = c2*(-1.5*mu[18])
    out[19] = c2*(-1.0*mu[19])
    out[20] = c2*(-1.0*mu[20])
    out[21] = c2*(-0.5*mu[21])
    out[22] = 0.0
    if boundary is not None:
        far = (_DRIFT_FIRST >= 23) & (_DRIFT_FIRST < 35)
        full = _extended(mu, boundary)
        values = _column(_DRIFT_WEIGHT[far], mu) * c[_DRIFT_COEFFICIENT[far]] * full[_DRIFT_FIRST[far]]
        _accumulate(out, _DRIFT_ROW[far], values)
    kappa = _parameter(params, "kappa")
    if np.any(kappa):
        _add_loops(out, mu, kappa, params, rule)
    return out


def _table_jacobian(label, coefficients, slopes, names, mu, scale, full, jac):
    """Adds the derivative of one table of terms: through its factors, and through its coefficients."""
    row, which, first, second, weight = label
    size = mu.shape[0]
    bare = _column(weight, mu) * scale
    for here, other in ((first, second), (second, first)):
        inside = here < size
        np.add.at(jac, (row[inside], here[inside]), (bare * coefficients[which] * full[other])[inside])
    through = bare * full[first] * full[second]
    for i, name in enumerate(names):
        n = slopes.get(name)
        if n is None:
            continue
        chosen = which == i
        part = np.zeros_like(mu)
        np.add.at(part, row[chosen], through[chosen])
        for k, column in enumerate(_Q):
            jac[:, column] += part * n[k]


def jacobian(t, mu, params=None, rule=None):
    """Derivative of `rhs` (boundary zero) with respect to mu: (K, K, ...), row by column."""
    mu = np.asarray(mu, dtype=float)
    q, size = mu[_Q], len(_Q)
    jac = np.zeros((len(mu), *mu.shape))
    full = _extended(mu, None)
    tables = [(1.0, COUPLINGS, couplings, _coupling_slopes, _DRIFT_NAMES,
               (_DRIFT_ROW, _DRIFT_COEFFICIENT, _DRIFT_FIRST, _DRIFT_SECOND, _DRIFT_WEIGHT))]
    kappa = _parameter(params, "kappa")
    if np.any(kappa):
        tables.append((kappa, NOISE, noise_contractions, _noise_slopes, _LOOP_NAMES,
                       (_LOOP_ROW, _LOOP_COEFFICIENT, _LOOP_FIRST, _LOOP_SECOND, _LOOP_WEIGHT)))
    for scale, known, values, slopes, names, table in tables:
        c = _coefficients(names, known, values(q, params, rule), params, mu.shape[1:])
        slope = slopes(q, params, rule)
        by_name = {n: slope[i * size : (i + 1) * size] for i, n in enumerate(known)}
        _table_jacobian(table, c, by_name, names, mu, scale, full, jac)
    return jac


def loss(h, params=None, traces=None):
    """Per-sample loss at pre-activations h (H, ...), in the order of PREACTIVATIONS, and traces in that of TRACES."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    x0 = 0.408248290463863

    return 0.5*((x0*((h0*h0*h0) + (-3.0*h0)) + (-x0*((h1*h1*h1) + (-3.0*h1))))*(x0*((h0*h0*h0) + (-3.0*h0)) + (-x0*((h1*h1*h1) + (-3.0*h1)))))


def loss_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each pre-activation: (H, ...), in the precision of h."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    x0 = 0.408248290463863
    x1 = x0*(x0*((h0*h0*h0) + (-3.0*h0)) + (-x0*((h1*h1*h1) + (-3.0*h1))))

    out = np.empty_like(h)
    out[0] = x1*(-3.0 + 3.0*(h0*h0))
    out[1] = -x1*(-3.0 + 3.0*(h1*h1))
    return out


def trace_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each of TRACES: (T, ...)."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]

    out = np.empty((0, *h.shape[1:]), dtype=h.dtype)
    return out
