"""head_softmax_m5: trace-moment equations to order 5, with their couplings.

Written by tracewords 0.1.0 for model digest 8328b58dd3aa63ff; do not edit.
`rhs` is d mu / dt, t = 4 alpha n / d (n steps of SGD, step size alpha); mu[i] = tr(WORDS[i]), tr = Tr / d.
"""

import math

import numpy as np

NAME = "head-softmax"
MODEL_DIGEST = "8328b58dd3aa63ff"
VERSION = "0.1.0"
ORDER = 5
TIME = "t"
TIME_UNIT = "4 alpha n / d"
LETTERS = ("S1", "V1", "S2", "V2")
WORD_LETTERS = ("S1", "V1", "V1'", "S2", "V2", "V2'")
ADJOINT = {"S1": "S1", "V1": "V1'", "V1'": "V1", "S2": "S2", "V2": "V2'", "V2'": "V2"}
STUDENTS = ("S1", "V1")
KINDS = {"S1": "tied", "V1": "values", "S2": "tied", "V2": "values"}
RANK_RATIOS = {"S1": 1.0, "V1": 1.0, "S2": 1.0, "V2": 1.0}
LAWS = {
    "S1": ("marchenko-pastur", {"ratio": 1.0}), "V1": ("ginibre", {"ratio": 1.0}),
    "S2": ("marchenko-pastur", {"ratio": 1.0}), "V2": ("ginibre", {"ratio": 1.0}),
}
COVARIANCE = ((1.0, 0.0), (0.0, 1.0))
PARAMETERS = {"beta": 1.0, "gamma": 0.0, "kappa": 0.0}
WORDS = (
    "S1", "S2", "S1.S1", "S1.S2", "V1.V1'", "V1.V2'", "S2.S2", "V2.V2'", "S1.S1.S1", "S1.S1.S2", "S1.S2.S2",
    "S2.S2.S2", "S1.S1.S1.S1", "S1.S1.S1.S2", "S1.S1.S2.S2", "S1.S2.S1.S2", "S1.S2.S2.S2", "S2.S2.S2.S2",
    "S1.S1.S1.S1.S1", "S1.S1.S1.S1.S2", "S1.S1.S1.S2.S2", "S1.S1.S2.S1.S2", "S1.S1.S2.S2.S2",
    "S1.S2.S1.S2.S2", "S1.S2.S2.S2.S2", "S2.S2.S2.S2.S2",
)
BOUNDARY = (
    "S1.S1.S1.S1.S1.S1", "S1.S1.S1.S1.S1.S2", "S1.S1.S1.S1.S2.S2", "S1.S1.S1.S2.S1.S2", "S1.S1.S1.S2.S2.S2",
    "S1.S1.S2.S1.S1.S2", "S1.S1.S2.S1.S2.S2", "S1.S1.S2.S2.S2.S2", "S1.S2.S1.S2.S1.S2", "S1.S2.S1.S2.S2.S2",
    "S1.S2.S2.S1.S2.S2", "S1.S2.S2.S2.S2.S2",
)
ORDER_PARAMETERS = ("S1.S1", "S1.S2", "S2.S2", "V1.V1'", "V1.V2'", "V2.V2'")
ARGUMENTS = ("S1.S1", "S1.S2", "S2.S2", "V1.V1'", "V1.V2'", "V2.V2'")
GRAM = ((2, 3), (3, 6))
MEANS = ()
TRACES = (("V1", "V1"), ("V1", "V2"), ("V2", "V2"))
COUPLINGS = ("G11", "G13", "T22", "T24")
NOISE = ("N11",)
FLOW = {
   
    "S1": ((-1.0, "G11", "S1.S1"), (-1.0, "G11", "S1.S1"), (-1.0, "G13", "S2.S1"), (-1.0, "G13", "S1.S2"), (-0.5, "gamma", "S1")),
    "V1": ((-0.5, "T22", "V1"), (-0.5, "T24", "V2"), (-0.25, "gamma", "V1")),
}
PREACTIVATIONS = (
    ("S1", 1, 1), ("S1", 1, 2), ("S1", 2, 1), ("S1", 2, 2), ("S2", 1, 1), ("S2", 1, 2), ("S2", 2, 1),
    ("S2", 2, 2),
)
DIMENSIONS = (1, 2, 3, 4)
NOISE_DIMENSIONS = (3, 4)

_Q = np.array([2, 3, 6, 4, 5, 7], dtype=np.intp)
# d mu[row] / dt = sum weight * coefficient * mu[first]; indices past the words are the boundary, then tr(1) = 1
_DRIFT_NAMES = ("G11", "G13", "gamma", "T22", "T24")
_DRIFT_ROW = np.array([
    0, 0, 0, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 12, 12, 12, 13, 13, 13, 13,
    14, 14, 14, 14, 15, 15, 15, 16, 16, 16, 18, 18, 18, 19, 19, 19, 19, 19, 20, 20, 20, 20, 21, 21, 21, 21,
    21, 22, 22, 22, 22, 23, 23, 23, 23, 24, 24, 24,
], dtype=np.intp)
_DRIFT_COEFFICIENT = np.array([
    0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 3, 4, 2, 3, 4, 0, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 1,
    2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2,
], dtype=np.intp)
_DRIFT_FIRST = np.array([
    2, 3, 0, 8, 9, 2, 9, 10, 3, 4, 4, 5, 5, 5, 7, 12, 13, 8, 13, 14, 15, 9, 14, 16, 10, 18, 19, 12, 19, 20,
    21, 13, 20, 22, 23, 14, 21, 23, 15, 22, 24, 16, 26, 27, 18, 27, 28, 29, 31, 19, 28, 30, 32, 20, 29, 31,
    32, 34, 21, 30, 33, 35, 22, 32, 35, 36, 23, 33, 37, 24,
], dtype=np.intp)
_DRIFT_SECOND = np.array([
    38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38,
    38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38,
    38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38, 38,
], dtype=np.intp)
_DRIFT_WEIGHT = np.array([
    -2.0, -2.0, -0.5, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5, -0.5, -1.0, -1.0, -0.25, -0.5, -0.5, -6.0, -6.0,
    -1.5, -4.0, -2.0, -2.0, -1.0, -2.0, -2.0, -0.5, -8.0, -8.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0,
    -2.0, -1.0, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5, -10.0, -10.0, -2.5, -8.0, -2.0, -4.0, -2.0, -2.0, -6.0,
    -2.0, -4.0, -1.5, -4.0, -2.0, -4.0, -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -2.0, -2.0, -1.0, -2.0,
    -2.0, -0.5,
])
_LOOP_NAMES = ("N11",)
_LOOP_ROW = np.array([
    0, 2, 2, 3, 8, 8, 9, 9, 9, 10, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 15, 15, 15, 16, 18, 18, 18, 19, 19,
    19, 19, 19, 20, 20, 20, 20, 21, 21, 21, 21, 21, 21, 22, 22, 22, 23, 23, 23, 23, 24,
], dtype=np.intp)
_LOOP_COEFFICIENT = np.array([
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
], dtype=np.intp)
_LOOP_FIRST = np.array([
    0, 0, 2, 0, 0, 8, 0, 1, 9, 0, 0, 2, 12, 0, 1, 2, 13, 0, 2, 14, 0, 1, 3, 0, 0, 2, 18, 0, 1, 2, 3, 19, 0, 2,
    6, 20, 0, 0, 1, 2, 3, 21, 0, 2, 22, 0, 1, 3, 6, 0,
], dtype=np.intp)
_LOOP_SECOND = np.array([
    38, 0, 38, 1, 2, 38, 3, 2, 38, 6, 8, 2, 38, 9, 8, 3, 38, 10, 6, 38, 10, 9, 3, 11, 12, 8, 38, 13, 12, 9, 8,
    38, 14, 10, 8, 38, 14, 15, 13, 10, 9, 38, 16, 11, 38, 16, 14, 10, 9, 17,
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


def _average_couplings_0(cov, params, rule):
    """Averages over 1 Gaussian variable, 2 outputs."""
    z, w = rule[1]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((2, cov[0].size))
    for n in range(cov[0].size):
        u1, = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = (x0*x0)
        x2 = -1.0 + x0
        x3 = (x2*x2)
        x4 = x0*x2
        out[0, n] = w @ (0.5*x1 + 0.5*x3)
        out[1, n] = w @ (x4*(p_beta*p_beta)*(x1 + x3 + 4.0*x4))
    return out.reshape((2, *batch))


def _average_couplings_1(cov, params, rule):
    """Averages over 2 Gaussian variables, 3 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((3, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = _sigmoid(p_beta*u2)
        x2 = 2.0*x0*x1
        x3 = 1.0 + x2
        x4 = -1.0 + x0
        x5 = x4*(p_beta*p_beta)
        out[0, n] = w @ (x0 + x1 + (-x3))
        out[1, n] = w @ (-x2*x5*(-1.0 + x1))
        out[2, n] = w @ (x0*x5*(-x3 + 2.0*x0 + (-2.0*x1*x4)))
    return out.reshape((3, *batch))


def _couplings(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1 = _average_couplings_0(
        (3.0*q_1_1,),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, E1_1, E1_2 = _average_couplings_1(
        (3.0*q_1_1, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    x0 = 3.0*q_2_6
    return _stack(
        (
            x0*E1_2 + 3.0*E0_1*q_2_3,
            x0*E1_1,
            2.0*E0_0,
            E1_0,
        ),
        q.shape[1:],
    )


def _average_noise_0(cov, params, rule):
    """Averages over 1 Gaussian variable, 1 output."""
    z, w = rule[1]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = -1.0 + x0
        x2 = (x1*x1)*(p_beta*p_beta)
        x3 = 6.0*x2
        out[0, n] = w @ (x3*(x0*x0*x0*x0) + x3*(x0*x0)*(x1*x1) + 12.0*x1*x2*(x0*x0*x0))
    return out.reshape((1, *batch))


def _average_noise_1(cov, params, rule):
    """Averages over 2 Gaussian variables, 2 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((2, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = _sigmoid(p_beta*u1)
        x2 = -1.0 + x1
        x3 = (x2*x2)*(p_beta*p_beta)
        x4 = x3*(x1*x1)
        x5 = 6.0*x4
        x6 = 1.0 + (-x0)
        x7 = 12.0*x0
        x8 = x4*x7
        x9 = x3*(x1*x1*x1)
        x10 = 12.0*x6
        out[0, n] = w @ (x5*(x0*x0) + x5*(x6*x6) + (-x6*x8))
        out[1, n] = w @ (x10*x9 + (-x2*x8) + (-x7*x9) + x10*x2*x4)
    return out.reshape((2, *batch))


def _average_noise_2(cov, params, rule):
    """Averages over 2 Gaussian variables, 1 output."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = (x0*x0)
        x2 = _sigmoid(p_beta*u1)
        x3 = -1.0 + x2
        x4 = -1.0 + x0
        x5 = 4.0*x3*x4*(p_beta*p_beta)
        x6 = x5*(x2*x2)
        x7 = x2*x3*x5
        x8 = x0*x4
        out[0, n] = w @ (x1*x6 + x1*x7 + x6*x8 + x7*x8)
    return out.reshape((1, *batch))


def _average_noise_3(cov, params, rule):
    """Averages over 3 Gaussian variables, 1 output."""
    z, w = rule[3]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u3)
        x1 = _sigmoid(p_beta*u2)
        x2 = _sigmoid(p_beta*u1)
        x3 = -1.0 + x1
        x4 = -4.0*x2*x3*(p_beta*p_beta)*(1.0 + (-x2))
        x5 = x4*(x1*x1)
        x6 = 1.0 + (-x0)
        x7 = x1*x3*x4
        out[0, n] = w @ (x5*x6 + x6*x7 + (-x0*x5) + (-x0*x7))
    return out.reshape((1, *batch))


def _average_noise_4(cov, params, rule):
    """Averages over 3 Gaussian variables, 1 output."""
    z, w = rule[3]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u3)
        x1 = _sigmoid(p_beta*u1)
        x2 = -1.0 + x1
        x3 = _sigmoid(p_beta*u2)
        x4 = -4.0*x2*x3*(p_beta*p_beta)*(1.0 + (-x3))
        x5 = x4*(x1*x1)
        x6 = 1.0 + (-x0)
        x7 = x1*x2*x4
        out[0, n] = w @ (x5*x6 + x6*x7 + (-x0*x5) + (-x0*x7))
    return out.reshape((1, *batch))


def _average_noise_5(cov, params, rule):
    """Averages over 4 Gaussian variables, 1 output."""
    z, w = rule[4]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3, u4 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u4)
        x1 = _sigmoid(p_beta*u3)
        x2 = _sigmoid(p_beta*u1)
        x3 = _sigmoid(p_beta*u2)
        x4 = 4.0*x2*x3*(p_beta*p_beta)*(1.0 + (-x2))*(1.0 + (-x3))
        x5 = x1*x4
        x6 = x4*(1.0 + (-x1))
        x7 = 1.0 + (-x0)
        out[0, n] = w @ (x0*x5 + x6*x7 + (-x0*x6) + (-x5*x7))
    return out.reshape((1, *batch))


def _noise(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    p_beta = _parameter(params, "beta")
    E0_0, = _average_noise_0(
        (3.0*q_1_1,),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, E1_1 = _average_noise_1(
        (3.0*q_1_1, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E2_0, = _average_noise_2(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E3_0, = _average_noise_3(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_4, q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E4_0, = _average_noise_4(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, q_1_4, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E5_0, = _average_noise_5(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_4, q_1_4, 3.0*q_4_4, q_1_4, 3.0*q_1_4, q_4_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    x0 = q_2_3*q_2_6
    x1 = (q_2_3*q_2_3)
    x2 = (q_2_6*q_2_6)
    return _stack(
        (
            x0*E3_0 + x0*E4_0 + x1*E2_0 + x2*E5_0 + 2.0*x0*E1_1 + 2.0*x1*E0_0 + 2.0*x2*E1_0,
        ),
        q.shape[1:],
    )


def _average_potential_0(cov, params, rule):
    """Averages over 1 Gaussian variable, 1 output."""
    z, w = rule[1]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        out[0, n] = w @ (0.5*(x0*x0) + 0.5*((-1.0 + x0)*(-1.0 + x0)))
    return out.reshape((1, *batch))


def _average_potential_1(cov, params, rule):
    """Averages over 1 Gaussian variable, 1 output."""
    z, w = rule[1]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        out[0, n] = w @ (0.5*(x0*x0) + 0.5*((-1.0 + x0)*(-1.0 + x0)))
    return out.reshape((1, *batch))


def _average_potential_2(cov, params, rule):
    """Averages over 2 Gaussian variables, 1 output."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = _sigmoid(p_beta*u2)
        out[0, n] = w @ (-1.0 + x0 + x1 + (-2.0*x0*x1))
    return out.reshape((1, *batch))


def _potential(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    p_beta = _parameter(params, "beta")
    E0_0, = _average_potential_0(
        (3.0*q_1_1,),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, = _average_potential_1(
        (3.0*q_4_4,),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E2_0, = _average_potential_2(
        (3.0*q_1_1, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            2.0*E0_0*q_2_3 + 2.0*E1_0*q_5_6 + 2.0*E2_0*q_2_6,
        ),
        q.shape[1:],
    )


def _mean_gradient(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _mean_hessian(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _average_coupling_slopes_0(cov, params, rule):
    """Averages over 1 Gaussian variable, 2 outputs."""
    z, w = rule[1]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((2, cov[0].size))
    for n in range(cov[0].size):
        u1, = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = (x0*x0)
        x2 = -1.0 + x0
        x3 = (x2*x2)
        x4 = x0*x2
        x5 = x1 + x3 + 4.0*x4
        x6 = x4*x5
        x7 = -1.0 + 2.0*x0
        x8 = 12.0*x7
        x9 = x5*x7
        out[0, n] = w @ (x6*(p_beta*p_beta))
        out[1, n] = w @ (x4*(p_beta*p_beta*p_beta*p_beta)*(8.0*x6 + x0*x9 + x2*x9 + x0*x3*x8 + x1*x2*x8))
    return out.reshape((2, *batch))


def _average_coupling_slopes_1(cov, params, rule):
    """Averages over 2 Gaussian variables, 7 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((7, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = (p_beta*p_beta)
        x1 = _sigmoid(p_beta*u1)
        x2 = -1.0 + x1
        x3 = _sigmoid(p_beta*u2)
        x4 = -1.0 + x3
        x5 = x2*x4
        x6 = 2.0*x1
        x7 = x3*x6
        x8 = x5*x7
        x9 = 2.0*x3
        x10 = 1.0 + x7
        x11 = x10 + (-2.0*x1) + x2*x9
        x12 = x1*x2
        x13 = -1.0 + x6
        x14 = x1*x13
        x15 = x13*x2
        x16 = (p_beta*p_beta*p_beta*p_beta)
        x17 = x16*x8
        x18 = -1.0 + x9
        x19 = 4.0*x18
        out[0, n] = w @ (-x0*x8)
        out[1, n] = w @ (-x0*x11*x12)
        out[2, n] = w @ (x0*x3*x4*(-x10 + 2.0*x3 + (-x4*x6)))
        out[3, n] = w @ (-x17*(x14 + x15 + x2*x6))
        out[4, n] = w @ (-x17*(x18*x3 + x18*x4 + x4*x9))
        out[5, n] = w @ (-x17*(x5 + x1*x3 + x1*x4 + x2*x3))
        out[6, n] = w @ (-x12*x16*(x11*x14 + x11*x15 + 4.0*x11*x12 + x1*x19*(x2*x2) + x19*x2*(x1*x1)))
    return out.reshape((7, *batch))


def _coupling_slopes(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1 = _average_coupling_slopes_0(
        (3.0*q_1_1,),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, E1_1, E1_2, E1_3, E1_4, E1_5, E1_6 = _average_coupling_slopes_1(
        (3.0*q_1_1, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    x0 = 4.5*q_2_6
    x1 = 9.0*q_2_6
    x2 = 3.0*E0_0
    x3 = 3.0*E1_0
    return _stack(
        (
            x0*E1_6 + 4.5*E0_1*q_2_3,
            x1*E1_3,
            x0*E1_5,
            x2,
            3.0*E1_1,
            0.0,
            x0*E1_3,
            x1*E1_5,
            x0*E1_4,
            0.0,
            x3,
            0.0,
            x2,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            1.5*E1_1,
            x3,
            1.5*E1_2,
            0.0,
            0.0,
            0.0,
        ),
        q.shape[1:],
    )


def _average_noise_slopes_0(cov, params, rule):
    """Averages over 1 Gaussian variable, 2 outputs."""
    z, w = rule[1]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((2, cov[0].size))
    for n in range(cov[0].size):
        u1, = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = (x0*x0*x0*x0)
        x2 = -1.0 + x0
        x3 = (x2*x2)*(p_beta*p_beta)
        x4 = 6.0*x3
        x5 = x2*(x0*x0*x0)
        x6 = (x0*x0)*(x2*x2)
        out[0, n] = w @ (x1*x4 + x4*x6 + 12.0*x3*x5)
        out[1, n] = w @ (24.0*x6*(p_beta*p_beta*p_beta*p_beta)*(x1 + (x2*x2*x2*x2) + 10.0*x5 + 20.0*x6 + 10.0*x0*(x2*x2*x2)))
    return out.reshape((2, *batch))


def _average_noise_slopes_1(cov, params, rule):
    """Averages over 2 Gaussian variables, 8 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((8, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = (x0*x0)
        x2 = -1.0 + x0
        x3 = (x2*x2)
        x4 = x0*x2
        x5 = _sigmoid(p_beta*u1)
        x6 = -1.0 + x5
        x7 = (x6*x6)
        x8 = (x5*x5)
        x9 = x7*x8*(p_beta*p_beta*p_beta*p_beta)
        x10 = 24.0*x9
        x11 = x10*x4
        x12 = 3.0*x5*x6
        x13 = 48.0*x4*x9
        x14 = x0*x5
        x15 = x0*x6
        x16 = x2*x5
        x17 = x2*x6
        x18 = x14 + x15 + x16 + x17
        x19 = x1*x8
        x20 = (x6*x6)*(p_beta*p_beta)
        x21 = 6.0*x20
        x22 = -x2
        x23 = 12.0*x20
        x24 = x23*x8
        x25 = x22*x24
        x26 = (x5*x5*x5)
        x27 = x23*x26
        x28 = 2.0*x26
        x29 = 2.0*(x6*x6*x6)
        x30 = 13.0*x8
        x31 = 13.0*x7
        x32 = 2.0*x4
        out[0, n] = w @ (x11*(x1 + x3 + 4.0*x4))
        out[1, n] = w @ (-x13*(x12 + x7 + x8))
        out[2, n] = w @ (x13*x18)
        out[3, n] = w @ (-x11*x18)
        out[4, n] = w @ (x19*x21 + (-x0*x25) + x21*x8*(x22*x22))
        out[5, n] = w @ (x22*x27 + x25*x6 + (-x0*x27) + (-x15*x24))
        out[6, n] = w @ (-x10*(x0*x28 + x0*x29 + x14*x31 + x15*x30 + x16*x31 + x17*x30 + x2*x28 + x2*x29))
        out[7, n] = w @ (x10*(x19 + x1*x12 + x1*x7 + x12*x3 + x3*x7 + x3*x8 + x32*x7 + x32*x8 + 6.0*x14*x17))
    return out.reshape((8, *batch))


def _average_noise_slopes_2(cov, params, rule):
    """Averages over 2 Gaussian variables, 4 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((4, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = (x0*x0)
        x2 = _sigmoid(p_beta*u2)
        x3 = (x2*x2)
        x4 = x1*x3
        x5 = -1.0 + x0
        x6 = -1.0 + x2
        x7 = x5*x6*(p_beta*p_beta)
        x8 = x0*x5
        x9 = 4.0*x8
        x10 = x3*x9
        x11 = x2*x6
        x12 = 4.0*x11
        x13 = x1*x12
        x14 = x12*x8
        x15 = (x2*x2*x2)
        x16 = (x6*x6*x6)
        x17 = 11.0*x0
        x18 = x3*x6
        x19 = (x6*x6)
        x20 = x19*x2
        x21 = 11.0*x5
        x22 = x14*(p_beta*p_beta*p_beta*p_beta)
        x23 = (x0*x0*x0)
        x24 = (x5*x5*x5)
        x25 = x1*x21
        x26 = (x5*x5)
        x27 = x17*x26
        out[0, n] = w @ (x10*x7 + x13*x7 + x14*x7 + 4.0*x4*x7)
        out[1, n] = w @ (x22*(x0*x15 + x0*x16 + x15*x5 + x16*x5 + x17*x18 + x17*x20 + x18*x21 + x20*x21))
        out[2, n] = w @ (x22*(x2*x23 + x2*x24 + x2*x25 + x2*x27 + x23*x6 + x24*x6 + x25*x6 + x27*x6))
        out[3, n] = w @ (x22*(x10 + x13 + x4 + x1*x19 + x12*x26 + x19*x26 + x19*x9 + x26*x3 + 16.0*x11*x8))
    return out.reshape((4, *batch))


def _average_noise_slopes_3(cov, params, rule):
    """Averages over 3 Gaussian variables, 7 outputs."""
    z, w = rule[3]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((7, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = (x0*x0)
        x2 = -1.0 + x0
        x3 = (x2*x2)
        x4 = 4.0*x0
        x5 = _sigmoid(p_beta*u3)
        x6 = -1.0 + x5
        x7 = _sigmoid(p_beta*u1)
        x8 = -1.0 + x7
        x9 = x2*x8
        x10 = x0*x7
        x11 = x10*(p_beta*p_beta*p_beta*p_beta)
        x12 = 8.0*x11*x5*x6*x9
        x13 = x0*x8
        x14 = x2*x7
        x15 = x0*x5
        x16 = x2*x5
        x17 = x0*x6
        x18 = x2*x6
        x19 = x1*x7
        x20 = x19*x5
        x21 = x2*x8*(p_beta*p_beta)
        x22 = 4.0*x21
        x23 = -x6
        x24 = 4.0*x14
        x25 = x15*x24
        x26 = (x0*x0*x0)
        x27 = (x2*x2*x2)
        x28 = 11.0*x1
        x29 = 11.0*x3
        x30 = 4.0*x9
        x31 = x11*x30
        x32 = x1*x8
        x33 = x3*x7
        x34 = x3*x8
        x35 = (x7*x7)
        x36 = (x8*x8)
        x37 = 4.0*x13*x7
        x38 = x30*x7
        out[0, n] = w @ (-x12*(x1 + x3 + x2*x4))
        out[1, n] = w @ (-x12*(x10 + x13 + x14 + x9))
        out[2, n] = w @ (-x12*(x15 + x16 + x17 + x18))
        out[3, n] = w @ (-x20*x22 + (-x21*x25) + x19*x22*x23 + x14*x21*x23*x4)
        out[4, n] = w @ (-x31*(x15*x29 + x16*x28 + x17*x29 + x18*x28 + x26*x5 + x26*x6 + x27*x5 + x27*x6))
        out[5, n] = w @ (-x31*(x20 + x25 + x15*x30 + x17*x24 + x17*x30 + x19*x6 + x32*x5 + x32*x6 + x33*x5 + x33*x6 + x34*x5 + x34*x6))
        out[6, n] = w @ (-x31*(x15*x35 + x15*x36 + x16*x35 + x16*x36 + x17*x35 + x17*x36 + x18*x35 + x18*x36 + x37*x5 + x37*x6 + x38*x5 + x38*x6))
    return out.reshape((7, *batch))


def _average_noise_slopes_4(cov, params, rule):
    """Averages over 3 Gaussian variables, 7 outputs."""
    z, w = rule[3]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((7, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = (x0*x0)
        x2 = -1.0 + x0
        x3 = (x2*x2)
        x4 = 4.0*x0
        x5 = _sigmoid(p_beta*u3)
        x6 = -1.0 + x5
        x7 = _sigmoid(p_beta*u2)
        x8 = -1.0 + x7
        x9 = x2*x8
        x10 = x6*x9
        x11 = x0*x7
        x12 = x11*(p_beta*p_beta*p_beta*p_beta)
        x13 = 8.0*x10*x12*x5
        x14 = x2*x7
        x15 = x0*x8
        x16 = x0*x5
        x17 = x2*x5
        x18 = x0*x6
        x19 = x2*x6
        x20 = x1*x7
        x21 = x20*x5
        x22 = x2*x8*(p_beta*p_beta)
        x23 = 4.0*x22
        x24 = -x6
        x25 = 4.0*x14
        x26 = x16*x25
        x27 = (x0*x0*x0)
        x28 = (x2*x2*x2)
        x29 = 11.0*x1
        x30 = 11.0*x3
        x31 = 4.0*x9
        x32 = x12*x31
        x33 = (x7*x7)
        x34 = (x8*x8)
        x35 = 4.0*x7
        x36 = x35*x5
        x37 = x3*x7
        x38 = x1*x8
        x39 = x3*x8
        out[0, n] = w @ (-x13*(x1 + x3 + x2*x4))
        out[1, n] = w @ (-x13*(x11 + x14 + x15 + x9))
        out[2, n] = w @ (-x13*(x16 + x17 + x18 + x19))
        out[3, n] = w @ (-x21*x23 + (-x22*x26) + x20*x23*x24 + x14*x22*x24*x4)
        out[4, n] = w @ (-x32*(x16*x30 + x17*x29 + x18*x30 + x19*x29 + x27*x5 + x27*x6 + x28*x5 + x28*x6))
        out[5, n] = w @ (-x32*(x10*x35 + x15*x36 + x16*x33 + x16*x34 + x17*x33 + x17*x34 + x18*x33 + x18*x34 + x19*x33 + x19*x34 + x36*x9 + x15*x35*x6))
        out[6, n] = w @ (-x32*(x21 + x26 + x16*x31 + x18*x25 + x18*x31 + x20*x6 + x37*x5 + x37*x6 + x38*x5 + x38*x6 + x39*x5 + x39*x6))
    return out.reshape((7, *batch))


def _average_noise_slopes_5(cov, params, rule):
    """Averages over 4 Gaussian variables, 11 outputs."""
    z, w = rule[4]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((11, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3, u4 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = (p_beta*p_beta*p_beta*p_beta)
        x1 = _sigmoid(p_beta*u1)
        x2 = -1.0 + x1
        x3 = _sigmoid(p_beta*u4)
        x4 = -1.0 + x3
        x5 = x2*x4
        x6 = _sigmoid(p_beta*u2)
        x7 = -1.0 + x6
        x8 = _sigmoid(p_beta*u3)
        x9 = -1.0 + x8
        x10 = x7*x9
        x11 = x10*x5
        x12 = x1*x3
        x13 = x6*x8
        x14 = x12*x13
        x15 = x2*x3
        x16 = x1*x4
        x17 = x2*x9
        x18 = x1*x8
        x19 = x0*x7
        x20 = 8.0*x19*x6
        x21 = x17*x18*x20
        x22 = x3*x7
        x23 = x4*x7
        x24 = x3*x8
        x25 = x3*x9
        x26 = x4*x8
        x27 = x4*x9
        x28 = x24 + x25 + x26 + x27
        x29 = x1*x9
        x30 = x12*x20*x5
        x31 = x7*x8
        x32 = x6*x9
        x33 = x2*x7*(p_beta*p_beta)
        x34 = 4.0*x6
        x35 = -x33*x9
        x36 = -x4
        x37 = 4.0*x18
        x38 = x1*x34
        x39 = (x1*x1)
        x40 = (x2*x2)
        x41 = 4.0*x29
        x42 = x19*x2*x38
        x43 = (x6*x6)
        x44 = (x7*x7)
        x45 = 4.0*x13
        x46 = 4.0*x32
        out[0, n] = w @ (16.0*x0*x11*x14)
        out[1, n] = w @ (x21*(x12 + x15 + x16 + x5))
        out[2, n] = w @ (x21*(x22 + x23 + x3*x6 + x4*x6))
        out[3, n] = w @ (x21*x28)
        out[4, n] = w @ (x30*(x17 + x18 + x29 + x2*x8))
        out[5, n] = w @ (x30*(x10 + x13 + x31 + x32))
        out[6, n] = w @ (x28*x30)
        out[7, n] = w @ (4.0*x14*x33 + x35*x36*x38 + (-x12*x34*x35) + (-x33*x36*x37*x6))
        out[8, n] = w @ (x42*(x15*x37 + x15*x41 + x24*x39 + x24*x40 + x25*x39 + x25*x40 + x26*x39 + x26*x40 + x27*x39 + x27*x40 + x37*x5 + x41*x5))
        out[9, n] = w @ (x42*(x22*x45 + x22*x46 + x23*x45 + x23*x46 + x24*x43 + x24*x44 + x25*x43 + x25*x44 + x26*x43 + x26*x44 + x27*x43 + x27*x44))
        out[10, n] = w @ (x42*(x11 + x14 + x10*x12 + x10*x15 + x10*x16 + x12*x31 + x12*x32 + x13*x15 + x13*x16 + x13*x5 + x15*x31 + x15*x32 + x16*x31 + x16*x32 + x31*x5 + x32*x5))
    return out.reshape((11, *batch))


def _noise_slopes(q, params, rule):
    q_1_1, q_1_4, q_4_4, q_2_3, q_2_6, q_5_6 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1 = _average_noise_slopes_0(
        (3.0*q_1_1,),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, E1_1, E1_2, E1_3, E1_4, E1_5, E1_6, E1_7 = _average_noise_slopes_1(
        (3.0*q_1_1, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E2_0, E2_1, E2_2, E2_3 = _average_noise_slopes_2(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E3_0, E3_1, E3_2, E3_3, E3_4, E3_5, E3_6 = _average_noise_slopes_3(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_4, q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E4_0, E4_1, E4_2, E4_3, E4_4, E4_5, E4_6 = _average_noise_slopes_4(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, q_1_4, 3.0*q_1_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E5_0, E5_1, E5_2, E5_3, E5_4, E5_5, E5_6, E5_7, E5_8, E5_9, E5_10 = _average_noise_slopes_5(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_4, q_1_4, 3.0*q_4_4, q_1_4, 3.0*q_1_4, q_4_4, 3.0*q_4_4),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    x0 = q_2_3*q_2_6
    x1 = 3.0*x0
    x2 = (q_2_3*q_2_3)
    x3 = (q_2_6*q_2_6)
    x4 = 3.0*x3
    x5 = 1.5*x0
    x6 = 2.0*E1_5
    return _stack(
        (
            x0*(E3_5 + 1.5*E3_4 + 1.5*E3_6) + x0*(E4_6 + 1.5*E4_4 + 1.5*E4_5) + x1*E1_6 + x2*(E2_3 + 1.5*E2_1 + 1.5*E2_2) + x3*(E5_10 + 1.5*E5_8 + 1.5*E5_9) + x4*E1_7 + 3.0*x2*E0_1,
            x0*(E3_0 + 3.0*E3_1) + x0*(E4_0 + 3.0*E4_1) + x3*(E5_2 + E5_4 + 3.0*E5_1 + 3.0*E5_5) + 6.0*x0*E1_1 + 6.0*x3*E1_2,
            x1*E1_3 + x3*(E5_0 + 1.5*E5_3 + 1.5*E5_6) + x4*E1_0 + x5*E3_2 + x5*E4_2,
            x6*q_2_6 + E3_3*q_2_6 + E4_3*q_2_6 + 2.0*E2_0*q_2_3 + 4.0*E0_0*q_2_3,
            x6*q_2_3 + E3_3*q_2_3 + E4_3*q_2_3 + 2.0*E5_7*q_2_6 + 4.0*E1_4*q_2_6,
            0.0,
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
    if mu.shape[0] != 26:
        raise ValueError(f"mu has {mu.shape[0]} rows; accepted: 26, one for each of WORDS")
    if out is None:
        out = np.empty_like(mu)
    c = _coefficients(_DRIFT_NAMES, COUPLINGS, couplings(mu[_Q], params, rule), params, mu.shape[1:])
    c0, c1, c2, c3, c4 = c
    out[0] = c0*(-2.0*mu[2]) + c1*(-2.0*mu[3]) + c2*(-0.5*mu[0])
    out[1] = 0.0
    out[2] = c0*(-4.0*mu[8]) + c1*(-4.0*mu[9]) + c2*(-1.0*mu[2])
    out[3] = c0*(-2.0*mu[9]) + c1*(-2.0*mu[10]) + c2*(-0.5*mu[3])
    out[4] = c2*(-0.5*mu[4]) + c3*(-1.0*mu[4]) + c4*(-1.0*mu[5])
    out[5] = c2*(-0.25*mu[5]) + c3*(-0.5*mu[5]) + c4*(-0.5*mu[7])
    out[6] = 0.0
    out[7] = 0.0
    out[8] = c0*(-6.0*mu[12]) + c1*(-6.0*mu[13]) + c2*(-1.5*mu[8])
    out[9] = c0*(-4.0*mu[13]) + c1*(-2.0*mu[14] - 2.0*mu[15]) + c2*(-1.0*mu[9])
    out[10] = c0*(-2.0*mu[14]) + c1*(-2.0*mu[16]) + c2*(-0.5*mu[10])
    out[11] = 0.0
    out[12] = c0*(-8.0*mu[18]) + c1*(-8.0*mu[19]) + c2*(-2.0*mu[12])
    out[13] = c0*(-6.0*mu[19]) + c1*(-2.0*mu[20] - 4.0*mu[21]) + c2*(-1.5*mu[13])
    out[14] = c0*(-4.0*mu[20]) + c1*(-2.0*mu[22] - 2.0*mu[23]) + c2*(-1.0*mu[14])
    out[15] = c0*(-4.0*mu[21]) + c1*(-4.0*mu[23]) + c2*(-1.0*mu[15])
    out[16] = c0*(-2.0*mu[22]) + c1*(-2.0*mu[24]) + c2*(-0.5*mu[16])
    out[17] = 0.0
    out[18] = c2*(-2.5*mu[18])
    out[19] = c2*(-2.0*mu[19])
    out[20] = c2*(-1.5*mu[20])
    out[21] = c2*(-1.5*mu[21])
    out[22] = c2*(-1.0*mu[22])
    out[23] = c2*(-1.0*mu[23])
    out[24] = c2*(-0.5*mu[24])
    out[25] = 0.0
    if boundary is not None:
        far = (_DRIFT_FIRST >= 26) & (_DRIFT_FIRST < 38)
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
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    w0 = traces[0]
    w1 = traces[1]
    w2 = traces[2]
    p_beta = _parameter(params, "beta")
    x0 = p_beta*h0 + (-p_beta*h1)
    x1 = _sigmoid(-x0)
    x2 = 0.5*w0
    x3 = _sigmoid(x0)
    x4 = p_beta*h2 + (-p_beta*h3)
    x5 = _sigmoid(-x4)
    x6 = _sigmoid(x4)
    x7 = p_beta*h4 + (-p_beta*h5)
    x8 = _sigmoid(-x7)
    x9 = 0.5*w2
    x10 = _sigmoid(x7)
    x11 = p_beta*h6 + (-p_beta*h7)
    x12 = _sigmoid(-x11)
    x13 = _sigmoid(x11)

    return x2*(x1*x1) + x2*(x3*x3) + x2*(x5*x5) + x2*(x6*x6) + x9*(x10*x10) + x9*(x12*x12) + x9*(x13*x13) + x9*(x8*x8) + (-x1*x8*w1) + (-x10*x3*w1) + (-x12*x5*w1) + (-x13*x6*w1)


def loss_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each pre-activation: (H, ...), in the precision of h."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    w0 = traces[0]
    w1 = traces[1]
    w2 = traces[2]
    p_beta = _parameter(params, "beta")
    x0 = p_beta*h0 + (-p_beta*h1)
    x1 = _sigmoid(-x0)
    x2 = 1.0 + (-x1)
    x3 = p_beta*w0
    x4 = _sigmoid(x0)
    x5 = 1.0 + (-x4)
    x6 = p_beta*h4 + (-p_beta*h5)
    x7 = _sigmoid(x6)
    x8 = p_beta*w1
    x9 = x4*x7*x8
    x10 = _sigmoid(-x6)
    x11 = x5*x9 + x2*x3*(x1*x1) + (-x5*p_beta*w0*(x4*x4)) + (-x1*x10*x2*p_beta*w1)
    x12 = p_beta*h2 + (-p_beta*h3)
    x13 = _sigmoid(-x12)
    x14 = 1.0 + (-x13)
    x15 = _sigmoid(x12)
    x16 = 1.0 + (-x15)
    x17 = p_beta*h6 + (-p_beta*h7)
    x18 = _sigmoid(x17)
    x19 = x15*x18*x8
    x20 = _sigmoid(-x17)
    x21 = x16*x19 + x14*x3*(x13*x13) + (-x16*p_beta*w0*(x15*x15)) + (-x13*x14*x20*p_beta*w1)
    x22 = 1.0 + (-x7)
    x23 = p_beta*w2
    x24 = 1.0 + (-x10)
    x25 = -x22*x9 + x22*x23*(x7*x7) + (-x23*x24*(x10*x10)) + x1*x10*x24*x8
    x26 = 1.0 + (-x18)
    x27 = 1.0 + (-x20)
    x28 = -x19*x26 + x23*x26*(x18*x18) + (-x23*x27*(x20*x20)) + x13*x20*x27*x8

    out = np.empty_like(h)
    out[0] = -x11
    out[1] = x11
    out[2] = -x21
    out[3] = x21
    out[4] = x25
    out[5] = -x25
    out[6] = x28
    out[7] = -x28
    return out


def trace_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each of TRACES: (T, ...)."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    w0 = traces[0]
    w1 = traces[1]
    w2 = traces[2]
    p_beta = _parameter(params, "beta")
    x0 = p_beta*h0 + (-p_beta*h1)
    x1 = _sigmoid(-x0)
    x2 = _sigmoid(x0)
    x3 = p_beta*h2 + (-p_beta*h3)
    x4 = _sigmoid(-x3)
    x5 = _sigmoid(x3)
    x6 = p_beta*h4 + (-p_beta*h5)
    x7 = _sigmoid(-x6)
    x8 = _sigmoid(x6)
    x9 = p_beta*h6 + (-p_beta*h7)
    x10 = _sigmoid(-x9)
    x11 = _sigmoid(x9)

    out = np.empty((3, *h.shape[1:]), dtype=h.dtype)
    out[0] = 0.5*(x1*x1) + 0.5*(x2*x2) + 0.5*(x4*x4) + 0.5*(x5*x5)
    out[1] = -x1*x7 + (-x10*x4) + (-x11*x5) + (-x2*x8)
    out[2] = 0.5*(x10*x10) + 0.5*(x11*x11) + 0.5*(x7*x7) + 0.5*(x8*x8)
    return out
