"""direct_h2_m2: trace-moment equations to order 2, with their couplings.

Written by tracewords 0.1.0 for model digest 02af593693d87070; do not edit.
`rhs` is d mu / dtau, tau = alpha n / d (n steps of SGD, step size alpha); mu[i] = tr(WORDS[i]), tr = Tr / d.
"""

import math

import numpy as np

NAME = "direct-h2"
MODEL_DIGEST = "02af593693d87070"
VERSION = "0.1.0"
ORDER = 2
TIME = "tau"
TIME_UNIT = "alpha n / d"
LETTERS = ("S1", "S2")
WORD_LETTERS = ("S1", "S1'", "S2", "S2'")
ADJOINT = {"S1": "S1'", "S1'": "S1", "S2": "S2'", "S2'": "S2"}
STUDENTS = ("S1",)
KINDS = {"S1": "direct", "S2": "direct"}
RANK_RATIOS = {"S1": 1.0, "S2": 1.0}
LAWS = {"S1": ("ginibre", {}), "S2": ("ginibre", {})}
COVARIANCE = ((1.0, 0.0), (0.0, 1.0))
PARAMETERS = {"gamma": 0.0, "kappa": 0.0, "m_S1": 0.0, "m_S2": 0.0}
WORDS = ("S1", "S2", "S1.S1", "S1.S1'", "S1.S2", "S1.S2'", "S2.S2", "S2.S2'")
BOUNDARY = ()
ORDER_PARAMETERS = ("S1.S1", "S1.S1'", "S1.S2", "S1.S2'", "S2.S2", "S2.S2'")
ARGUMENTS = ("S1.S1", "S1.S1'", "S1.S2", "S1.S2'", "S2.S2", "S2.S2'")
GRAM = ((3, 2, 5, 4), (2, 3, 4, 5), (5, 4, 7, 6), (4, 5, 6, 7))
MEANS = ()
TRACES = ()
COUPLINGS = ("O11", "P11", "O12", "P12")
NOISE = ("N11", "M11")
FLOW = {
   
    "S1": ((-2.0, "O11", "S1"), (-2.0, "P11", "S1'"), (-2.0, "O12", "S2"), (-2.0, "P12", "S2'"), (-1.0, "gamma", "S1")),
}
PREACTIVATIONS = (("S1", 1, 2), ("S2", 1, 2))
DIMENSIONS = ()
NOISE_DIMENSIONS = ()

_Q = np.array([2, 3, 4, 5, 6, 7], dtype=np.intp)
# d mu[row] / dt = sum weight * coefficient * mu[first]; indices past the words are the boundary, then tr(1) = 1
_DRIFT_NAMES = ("O11", "P11", "O12", "P12", "gamma")
_DRIFT_ROW = np.array([0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5], dtype=np.intp)
_DRIFT_COEFFICIENT = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4], dtype=np.intp)
_DRIFT_FIRST = np.array([0, 0, 1, 1, 0, 2, 3, 4, 5, 2, 3, 2, 5, 4, 3, 4, 5, 6, 7, 4, 5, 4, 7, 6, 5], dtype=np.intp)
_DRIFT_SECOND = np.array([8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8], dtype=np.intp)
_DRIFT_WEIGHT = np.array([
    -2.0, -2.0, -2.0, -2.0, -1.0, -4.0, -4.0, -4.0, -4.0, -2.0, -4.0, -4.0, -4.0, -4.0, -2.0, -2.0, -2.0,
    -2.0, -2.0, -1.0, -2.0, -2.0, -2.0, -2.0, -1.0,
])
_LOOP_NAMES = ("M11", "N11")
_LOOP_ROW = np.array([2, 3], dtype=np.intp)
_LOOP_COEFFICIENT = np.array([0, 1], dtype=np.intp)
_LOOP_FIRST = np.array([8, 8], dtype=np.intp)
_LOOP_SECOND = np.array([8, 8], dtype=np.intp)
_LOOP_WEIGHT = np.array([1.0, 1.0])


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
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    return _stack(
        (
            -0.5*q_3_4 + 1.5*q_1_2,
            0.0,
            -q_1_4,
            0.0,
        ),
        q.shape[1:],
    )


def _noise(q, params, rule):
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    x0 = (q_1_4*q_1_4)
    return _stack(
        (
            15.0*(q_1_2*q_1_2*q_1_2) + (-24.0*x0*q_1_2) + (-6.0*q_3_4*(q_1_2*q_1_2)) + 3.0*q_1_2*(q_3_4*q_3_4) + 12.0*x0*q_3_4,
            0.0,
        ),
        q.shape[1:],
    )


def _potential(q, params, rule):
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    return _stack(
        (
            -(q_1_4*q_1_4) + 0.75*(q_1_2*q_1_2) + 0.75*(q_3_4*q_3_4) + (-0.5*q_1_2*q_3_4),
        ),
        q.shape[1:],
    )


def _mean_gradient(q, params, rule):
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _mean_hessian(q, params, rule):
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _coupling_slopes(q, params, rule):
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    return _stack(
        (
            0.0,
            1.5,
            0.0,
            0.0,
            0.0,
            -0.5,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            -1.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
        ),
        q.shape[1:],
    )


def _noise_slopes(q, params, rule):
    q_1_1, q_1_2, q_1_3, q_1_4, q_3_3, q_3_4 = q
    x0 = q_1_2*q_3_4
    x1 = (q_1_2*q_1_2)
    x2 = (q_1_4*q_1_4)
    return _stack(
        (
            0.0,
            -24.0*x2 + (-12.0*x0) + 3.0*(q_3_4*q_3_4) + 45.0*x1,
            0.0,
            -48.0*q_1_2*q_1_4 + 24.0*q_1_4*q_3_4,
            0.0,
            -6.0*x1 + 6.0*x0 + 12.0*x2,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
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
    if mu.shape[0] != 8:
        raise ValueError(f"mu has {mu.shape[0]} rows; accepted: 8, one for each of WORDS")
    if out is None:
        out = np.empty_like(mu)
    c = _coefficients(_DRIFT_NAMES, COUPLINGS, couplings(mu[_Q], params, rule), params, mu.shape[1:])
    c0, c1, c2, c3, c4 = c
    out[0] = c0*(-2.0*mu[0]) + c1*(-2.0*mu[0]) + c2*(-2.0*mu[1]) + c3*(-2.0*mu[1]) + c4*(-1.0*mu[0])
    out[1] = 0.0
    out[2] = c0*(-4.0*mu[2]) + c1*(-4.0*mu[3]) + c2*(-4.0*mu[4]) + c3*(-4.0*mu[5]) + c4*(-2.0*mu[2])
    out[3] = c0*(-4.0*mu[3]) + c1*(-4.0*mu[2]) + c2*(-4.0*mu[5]) + c3*(-4.0*mu[4]) + c4*(-2.0*mu[3])
    out[4] = c0*(-2.0*mu[4]) + c1*(-2.0*mu[5]) + c2*(-2.0*mu[6]) + c3*(-2.0*mu[7]) + c4*(-1.0*mu[4])
    out[5] = c0*(-2.0*mu[5]) + c1*(-2.0*mu[4]) + c2*(-2.0*mu[7]) + c3*(-2.0*mu[6]) + c4*(-1.0*mu[5])
    out[6] = 0.0
    out[7] = 0.0
    if boundary is not None:
        far = (_DRIFT_FIRST >= 8) & (_DRIFT_FIRST < 8)
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
    x0 = 0.7071067811865476

    return 0.5*((x0*(-1.0 + (h0*h0)) + (-x0*(-1.0 + (h1*h1))))*(x0*(-1.0 + (h0*h0)) + (-x0*(-1.0 + (h1*h1)))))


def loss_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each pre-activation: (H, ...), in the precision of h."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    x0 = 1.4142135623730951
    x1 = 0.5*x0
    x2 = x0*(x1*(-1.0 + (h0*h0)) + (-x1*(-1.0 + (h1*h1))))

    out = np.empty_like(h)
    out[0] = x2*h0
    out[1] = -x2*h1
    return out


def trace_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each of TRACES: (T, ...)."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]

    out = np.empty((0, *h.shape[1:]), dtype=h.dtype)
    return out
