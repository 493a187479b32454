"""tied_softmax_m5: trace-moment equations to order 5, with their couplings.

Written by tracewords 0.1.0 for model digest 20eb806f79982e5c; do not edit.
`rhs` is d mu / dt, t = 4 alpha n / d (n steps of SGD, step size alpha); mu[i] = tr(WORDS[i]), tr = Tr / d.
"""

import math

import numpy as np

NAME = "tied-softmax"
MODEL_DIGEST = "20eb806f79982e5c"
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
PARAMETERS = {"beta": 1.0, "gamma": 0.0, "kappa": 0.0}
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
PREACTIVATIONS = (
    ("S1", 1, 1), ("S1", 1, 2), ("S1", 2, 1), ("S1", 2, 2), ("S2", 1, 1), ("S2", 1, 2), ("S2", 2, 1),
    ("S2", 2, 2),
)
DIMENSIONS = (2, 4)
NOISE_DIMENSIONS = (4,)

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


def _average_couplings_0(cov, params, rule):
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
        x3 = x1*x2
        x4 = 2.0*x3*(p_beta*p_beta)
        x5 = x1 + (-x0)
        out[0, n] = w @ (-x0*x4*(-1.0 + x0))
        out[1, n] = w @ (x4*(x3 + x1*x5 + x2*x5))
    return out.reshape((2, *batch))


def _couplings(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1 = _average_couplings_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            3.0*E0_1,
            3.0*E0_0,
        ),
        q.shape[1:],
    )


def _average_noise_0(cov, params, rule):
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
        out[0, n] = w @ (24.0*(x0*x0)*(p_beta*p_beta)*((1.0 + (-x0))*(1.0 + (-x0)))*((x0 + (-_sigmoid(p_beta*u2)))*(x0 + (-_sigmoid(p_beta*u2)))))
    return out.reshape((1, *batch))


def _average_noise_1(cov, params, rule):
    """Averages over 4 Gaussian variables, 1 output."""
    z, w = rule[4]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3, u4 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = _sigmoid(p_beta*u2)
        out[0, n] = w @ (16.0*x0*x1*(p_beta*p_beta)*(1.0 + (-x0))*(1.0 + (-x1))*(x0 + (-_sigmoid(p_beta*u3)))*(x1 + (-_sigmoid(p_beta*u4))))
    return out.reshape((1, *batch))


def _noise(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, = _average_noise_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, = _average_noise_1(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_2, q_1_2, 3.0*q_2_2, q_1_2, 3.0*q_1_2, q_2_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            E1_0 + 2.0*E0_0,
        ),
        q.shape[1:],
    )


def _average_potential_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 1 output."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        out[0, n] = w @ (((-_sigmoid(p_beta*u2) + _sigmoid(p_beta*u1))*(-_sigmoid(p_beta*u2) + _sigmoid(p_beta*u1))))
    return out.reshape((1, *batch))


def _potential(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, = _average_potential_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            2.0*E0_0,
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


def _average_coupling_slopes_0(cov, params, rule):
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
        x1 = -1.0 + x0
        x2 = 2.0*x0
        x3 = x1*x2
        x4 = -1.0 + x2
        x5 = x0*x4
        x6 = x1*x4
        x7 = _sigmoid(p_beta*u2)
        x8 = (p_beta*p_beta*p_beta*p_beta)
        x9 = -1.0 + x7
        x10 = x1*x9
        x11 = x10*x2*x7*x8
        x12 = 2.0*x7
        x13 = -1.0 + x12
        x14 = (x0*x0)
        x15 = -4.0 + (-4.0*x7) + 12.0*x0
        x16 = (x1*x1)
        x17 = x0*x1
        x18 = x0 + (-x7)
        x19 = x0*x18 + x1*x18
        x20 = x17 + x19
        out[0, n] = w @ (-x11*(x3 + x5 + x6))
        out[1, n] = w @ (-x11*(x12*x9 + x13*x7 + x13*x9))
        out[2, n] = w @ (-x11*(x10 + x0*x7 + x0*x9 + x1*x7))
        out[3, n] = w @ (x3*x8*(x20*x3 + x20*x5 + x20*x6 + x3*(x14 + x16 + x19 + 5.0*x17) + x0*x15*x16 + x1*x14*x15))
    return out.reshape((4, *batch))


def _coupling_slopes(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1, E0_2, E0_3 = _average_coupling_slopes_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            4.5*E0_3,
            9.0*E0_0,
            4.5*E0_2,
            4.5*E0_0,
            9.0*E0_2,
            4.5*E0_1,
        ),
        q.shape[1:],
    )


def _average_noise_slopes_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 3 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((3, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = -1.0 + x0
        x2 = x0*x1
        x3 = _sigmoid(p_beta*u1)
        x4 = x3 + (-x0)
        x5 = -1.0 + x3
        x6 = (x5*x5)
        x7 = (x3*x3)
        x8 = 48.0*x6*x7*(p_beta*p_beta*p_beta*p_beta)
        x9 = x2*x8
        x10 = x3*x5
        x11 = x3*x4
        x12 = x4*x5
        x13 = (x4*x4)
        x14 = 3.0*x3
        out[0, n] = w @ (-x9*(-x2 + x0*x4 + x1*x4))
        out[1, n] = w @ (-x9*(x10 + 2.0*x11 + 2.0*x12))
        out[2, n] = w @ (x8*(x10*(x10 + x11 + x12) + 4.0*x10*x13 + 4.0*x11*x6 + 4.0*x12*x7 + x13*x3*(-1.0 + x14) + x13*x5*(-2.0 + x14)))
    return out.reshape((3, *batch))


def _average_noise_slopes_1(cov, params, rule):
    """Averages over 4 Gaussian variables, 10 outputs."""
    z, w = rule[4]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((10, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3, u4 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = -1.0 + x0
        x2 = x0*x1
        x3 = _sigmoid(p_beta*u1)
        x4 = -1.0 + x3
        x5 = x3*x4
        x6 = x2*x5
        x7 = 16.0*(p_beta*p_beta*p_beta*p_beta)
        x8 = x6*x7
        x9 = _sigmoid(p_beta*u3)
        x10 = x9*(-1.0 + x9)
        x11 = x10*x8
        x12 = _sigmoid(p_beta*u4)
        x13 = x12*(-1.0 + x12)
        x14 = x0 + (-x12)
        x15 = x1*x14
        x16 = 2.0*x3
        x17 = -1.0 + x16
        x18 = x17*x5
        x19 = x0*x7
        x20 = x3 + (-x9)
        x21 = x20*x4
        x22 = 2.0*x0
        x23 = -1.0 + x22
        x24 = x2*x23
        x25 = x3*x7
        x26 = x2*x21
        x27 = x25*x26
        x28 = x15*x5
        x29 = x19*x28
        x30 = x0*x14
        x31 = x20*x3
        out[0, n] = w @ (x11*x13)
        out[1, n] = w @ (-x10*x15*x18*x19)
        out[2, n] = w @ (-x13*x21*x24*x25)
        out[3, n] = w @ (-x13*x27*(-1.0 + 2.0*x12))
        out[4, n] = w @ (-x10*x29*(-1.0 + 2.0*x9))
        out[5, n] = w @ (-x11*(x15 + x2 + x30))
        out[6, n] = w @ (-x13*x8*(x21 + x31 + x5))
        out[7, n] = w @ (x27*(x24 + x15*x22 + x15*x23 + x22*(x1*x1) + x23*x30 + 2.0*x1*(x0*x0)))
        out[8, n] = w @ (x29*(x18 + x16*x21 + x16*(x4*x4) + x17*x21 + x17*x31 + 2.0*x4*(x3*x3)))
        out[9, n] = w @ (x8*(x26 + x28 + x6 + x15*x21 + x15*x31 + x2*x31 + x21*x30 + x30*x31 + x30*x5))
    return out.reshape((10, *batch))


def _noise_slopes(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1, E0_2 = _average_noise_slopes_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, E1_1, E1_2, E1_3, E1_4, E1_5, E1_6, E1_7, E1_8, E1_9 = _average_noise_slopes_1(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_2, q_1_2, 3.0*q_2_2, q_1_2, 3.0*q_1_2, q_2_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            E1_9 + 3.0*E0_2 + 1.5*E1_7 + 1.5*E1_8,
            E1_5 + E1_6 + 3.0*E1_1 + 3.0*E1_2 + 6.0*E0_1,
            E1_0 + 3.0*E0_0 + 1.5*E1_3 + 1.5*E1_4,
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
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    p_beta = _parameter(params, "beta")

    return ((-_sigmoid(p_beta*h5 + (-p_beta*h4)) + _sigmoid(p_beta*h1 + (-p_beta*h0)))*(-_sigmoid(p_beta*h5 + (-p_beta*h4)) + _sigmoid(p_beta*h1 + (-p_beta*h0)))) + ((-_sigmoid(p_beta*h6 + (-p_beta*h7)) + _sigmoid(p_beta*h2 + (-p_beta*h3)))*(-_sigmoid(p_beta*h6 + (-p_beta*h7)) + _sigmoid(p_beta*h2 + (-p_beta*h3))))


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
    p_beta = _parameter(params, "beta")
    x0 = _sigmoid(p_beta*h1 + (-p_beta*h0))
    x1 = _sigmoid(p_beta*h5 + (-p_beta*h4))
    x2 = 2.0*p_beta
    x3 = x2*(x0 + (-x1))
    x4 = x0*x3*(1.0 + (-x0))
    x5 = _sigmoid(p_beta*h2 + (-p_beta*h3))
    x6 = _sigmoid(p_beta*h6 + (-p_beta*h7))
    x7 = x2*(x5 + (-x6))
    x8 = x5*x7*(1.0 + (-x5))
    x9 = x1*x3*(1.0 + (-x1))
    x10 = x6*x7*(1.0 + (-x6))

    out = np.empty_like(h)
    out[0] = -x4
    out[1] = x4
    out[2] = x8
    out[3] = -x8
    out[4] = x9
    out[5] = -x9
    out[6] = -x10
    out[7] = x10
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
    p_beta = _parameter(params, "beta")

    out = np.empty((0, *h.shape[1:]), dtype=h.dtype)
    return out
