/* tied_softmax_m5: trace-moment equations to order 5, closure zero, over blocks of trajectories.
   Written by tracewords 0.1.0 for model digest 20eb806f79982e5c; do not edit.
   Time t = 4 alpha n / d.  Needs gcc or clang; build with -std=c11 -O3 -march=native -fPIC -shared, never -ffast-math. */
/* Lanes: LANES doubles that the compiler keeps in vector registers (GNU C vector_size, gcc and clang).
   exp, sigmoid and tanh are branch-free polynomials, within 2 units in the last place; erf, log, sin and cos ask
   libm lane by lane.  NaN and infinity go through all of them as IEEE 754 says: never compile with -ffast-math.  */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef LANES
#define LANES 8
#endif

/* Functions of lanes are always inlined, so that it never matters how a vector wider than the registers is passed.  */
#pragma GCC diagnostic ignored "-Wpsabi"
#define LANE_FN static inline __attribute__((always_inline, unused))

typedef double lane __attribute__((vector_size(8 * LANES)));
typedef long long lane_mask __attribute__((vector_size(8 * LANES))); /* per lane: 0 no, -1 yes */
typedef unsigned long long lane_bits __attribute__((vector_size(8 * LANES)));

/* One quadrature rule of the context: `n` points (a multiple of LANES, padded with weight zero), coordinate j of
   point i at z[j * n + i], weights w[i].  z and w are aligned to 64 bytes.  */
typedef struct {
    long n;
    const double *z;
    const double *w;
} rule;

LANE_FN lane lane_set1(double x)
{
    return x - (lane){0.0}; /* a difference, so that -0.0 keeps its sign */
}

LANE_FN lane lane_load(const double *from) /* no alignment needed */
{
    lane r;
    memcpy(&r, from, sizeof r);
    return r;
}

LANE_FN void lane_store(double *to, lane x)
{
    memcpy(to, &x, sizeof x);
}

LANE_FN lane lane_select(lane_mask yes, lane a, lane b) /* yes ? a : b */
{
    return (lane)((yes & (lane_mask)a) | (~yes & (lane_mask)b));
}

LANE_FN int lane_any(lane_mask m)
{
    long long any = 0;
    for (int i = 0; i < LANES; i++)
        any |= m[i];
    return any != 0;
}

LANE_FN double lane_sum(lane x)
{
    double s = 0.0;
    for (int i = 0; i < LANES; i++)
        s += x[i];
    return s;
}

/* Both give NaN where either argument is NaN, unlike fmin and fmax: a lost value must not hide.  */
LANE_FN lane lane_min(lane a, lane b)
{
    return lane_select((lane_mask)(a < b) | (lane_mask)(a != a), a, b);
}

LANE_FN lane lane_max(lane a, lane b)
{
    return lane_select((lane_mask)(a > b) | (lane_mask)(a != a), a, b);
}

LANE_FN lane lane_abs(lane x)
{
    return (lane)((lane_bits)x & 0x7fffffffffffffffULL);
}

LANE_FN lane_mask lane_not_finite(lane x)
{
    return ~(lane_mask)(lane_abs(x) <= lane_set1(DBL_MAX));
}

LANE_FN lane lane_round(lane x) /* to the nearest integer, for |x| < 2^51 */
{
    const lane shift = lane_set1(0x1.8p52);
    return (x + shift) - shift;
}

LANE_FN lane lane_pow2(lane n) /* 2^n for integers -1022 <= n <= 1023: builds the exponent field */
{
    return (lane)((lane_bits)(n + (0x1.8p52 + 1023.0)) << 52);
}

/* x = n ln 2 + r with |r| <= (ln 2)/2; returns e^r - 1.  Cody-Waite: the high part of ln 2 has 33 bits, so that its
   product with n is exact.  (e^r - 1 - r) / r^2 interpolated at 11 Chebyshev nodes of [-0.3475, 0.3475]: the relative
   error of e^r is 3e-19.  */
LANE_FN lane lane_exp_reduced(lane x, lane *n)
{
    *n = lane_round(x * 0x1.71547652b82fep+0);
    const lane r = (x - *n * 0x1.62e42feep-1) - *n * 0x1.a39ef35793c76p-33;
    lane q = lane_set1(0x1.1f73b376c0f55p-29);
    q = q * r + 0x1.af4f1ddf981a8p-26;
    q = q * r + 0x1.27e4db0f8a3efp-22;
    q = q * r + 0x1.71de019d031e7p-19;
    q = q * r + 0x1.a01a01a6f35fbp-16;
    q = q * r + 0x1.a01a01ac16f76p-13;
    q = q * r + 0x1.6c16c16c162a3p-10;
    q = q * r + 0x1.1111111110085p-7;
    q = q * r + 0x1.5555555555556p-5;
    q = q * r + 0x1.5555555555557p-3;
    q = q * r + 0x1.0p-1;
    return r + r * r * q;
}

LANE_FN lane lane_exp(lane x)
{
    /* beyond these the result is infinite or zero; a NaN fails both comparisons and stays */
    const lane top = lane_set1(710.0), bottom = lane_set1(-746.0);
    x = lane_select((lane_mask)(x > top), top, x);
    x = lane_select((lane_mask)(x < bottom), bottom, x);
    lane n;
    const lane p = 1.0 + lane_exp_reduced(x, &n);
    const lane half = lane_round(n * 0.5); /* two factors: 2^n alone leaves the range at both ends */
    return p * lane_pow2(half) * lane_pow2(n - half);
}

LANE_FN lane lane_sigmoid(lane x) /* 1 / (1 + e^-x), full relative accuracy in both tails */
{
    const lane e = lane_exp(-lane_abs(x));
    return lane_select((lane_mask)(x < 0.0), e, lane_set1(1.0)) / (1.0 + e);
}

LANE_FN lane lane_tanh(lane x) /* E / (E + 2) with E = e^(2|x|) - 1, formed without cancellation */
{
    const lane top = lane_set1(40.0);
    lane twice = 2.0 * lane_abs(x);
    twice = lane_select((lane_mask)(twice > top), top, twice);
    lane n;
    const lane reduced = lane_exp_reduced(twice, &n);
    const lane scale = lane_pow2(n);
    const lane e = scale * reduced + (scale - 1.0);
    const lane_bits sign = (lane_bits)x & 0x8000000000000000ULL;
    return (lane)((lane_bits)(e / (e + 2.0)) | sign);
}

#define LANE_BY_LANE(name, function)    \
    LANE_FN lane name(lane x)           \
    {                                   \
        lane r = x;                     \
        for (int i = 0; i < LANES; i++) \
            r[i] = function(x[i]);      \
        return r;                       \
    }
LANE_BY_LANE(lane_sqrt, sqrt)
LANE_BY_LANE(lane_log, log)
LANE_BY_LANE(lane_erf, erf)
LANE_BY_LANE(lane_sin, sin)
LANE_BY_LANE(lane_cos, cos)

#define N_STATE 23
#define N_PARAM 3
enum { N_OUTER = 12, N_FULL = N_STATE + N_OUTER + 1, N_Q = 3, N_MATRIX = 2 };
enum { KAPPA = 2 };

static const int q_index[N_Q] = {2, 3, 4};
/* overlap of matrices i >= j at [i (i + 1) / 2 + j] */
static const int overlap_index[N_MATRIX * (N_MATRIX + 1) / 2] = {2, 3, 4};

/* d mu[row] / dt = sum weight * coefficient * mu[first] * mu[second]; indices past the state: boundary, then 1 */
enum { DRIFT_TERMS = 64, DRIFT_NAMES = 3 };
static const int drift_row[DRIFT_TERMS + 1] = {
    0, 0, 0, 2, 2, 2, 3, 3, 3, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11, 12, 12,
    12, 13, 13, 13, 15, 15, 15, 16, 16, 16, 16, 16, 17, 17, 17, 17, 18, 18, 18, 18, 18, 19, 19, 19, 19, 20,
    20, 20, 20, 21, 21, 21, -1,
};
static const int drift_coupling[DRIFT_TERMS + 1] = {
    0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1,
    2, 0, 1, 2, 0, 1, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, -1,
};
static const int drift_first[DRIFT_TERMS + 1] = {
    2, 3, 0, 5, 6, 2, 6, 7, 3, 9, 10, 5, 10, 11, 12, 6, 11, 13, 7, 15, 16, 9, 16, 17, 18, 10, 17, 19, 20, 11,
    18, 20, 12, 19, 21, 13, 23, 24, 15, 24, 25, 26, 28, 16, 25, 27, 29, 17, 26, 28, 29, 31, 18, 27, 30, 32,
    19, 29, 32, 33, 20, 30, 34, 21, -1,
};
static const int drift_second[DRIFT_TERMS + 1] = {
    35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35,
    35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35,
    35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, 35, -1,
};
static const double drift_weight[DRIFT_TERMS + 1] = {
    -2.0, -2.0, -0.5, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5, -6.0, -6.0, -1.5, -4.0, -2.0, -2.0, -1.0, -2.0,
    -2.0, -0.5, -8.0, -8.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -4.0, -1.0, -2.0,
    -2.0, -0.5, -10.0, -10.0, -2.5, -8.0, -2.0, -4.0, -2.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0, -4.0,
    -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -2.0, -2.0, -1.0, -2.0, -2.0, -0.5, 0.0,
};

enum { LOOP_TERMS = 50, LOOP_NAMES = 1 };
static const int loop_row[LOOP_TERMS + 1] = {
    0, 2, 2, 3, 5, 5, 6, 6, 6, 7, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 15, 15, 15, 16, 16, 16,
    16, 16, 17, 17, 17, 17, 18, 18, 18, 18, 18, 18, 19, 19, 19, 20, 20, 20, 20, 21, -1,
};
static const int loop_coupling[LOOP_TERMS + 1] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1,
};
static const int loop_first[LOOP_TERMS + 1] = {
    0, 0, 2, 0, 0, 5, 0, 1, 6, 0, 0, 2, 9, 0, 1, 2, 10, 0, 2, 11, 0, 1, 3, 0, 0, 2, 15, 0, 1, 2, 3, 16, 0, 2,
    4, 17, 0, 0, 1, 2, 3, 18, 0, 2, 19, 0, 1, 3, 4, 0, -1,
};
static const int loop_second[LOOP_TERMS + 1] = {
    35, 0, 35, 1, 2, 35, 3, 2, 35, 4, 5, 2, 35, 6, 5, 3, 35, 7, 4, 35, 7, 6, 3, 8, 9, 5, 35, 10, 9, 6, 5, 35,
    11, 7, 5, 35, 11, 12, 10, 7, 6, 35, 13, 8, 35, 13, 11, 7, 6, 14, -1,
};
static const double loop_weight[LOOP_TERMS + 1] = {
    0.25, 1.0, 0.5, 0.25, 3.0, 0.75, 1.0, 0.25, 0.25, 0.25, 4.0, 2.0, 1.0, 2.0, 0.25, 1.0, 0.5, 1.0, 0.25,
    0.25, 0.5, 0.5, 0.5, 0.25, 5.0, 5.0, 1.25, 3.0, 0.25, 2.0, 1.0, 0.75, 2.0, 1.0, 0.25, 0.5, 0.25, 1.0, 0.5,
    0.25, 1.5, 0.25, 1.0, 0.25, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25, 0.0,
};


/* Lower triangle of L, L L' = cov; NaN where cov is not positive semidefinite. */
static __attribute__((unused)) void colour(int n, const double *cov, double *f)
{
    for (int j = 0; j < n; j++) {
        const double diagonal = cov[j * (j + 1) / 2 + j];
        double pivot = diagonal;
        for (int k = 0; k < j; k++)
            pivot -= f[j * (j + 1) / 2 + k] * f[j * (j + 1) / 2 + k];
        if (!(pivot > -1e-9 * fabs(diagonal))) {
            for (int k = 0; k < n * (n + 1) / 2; k++)
                f[k] = NAN;
            return;
        }
        /* a vanishing pivot: the variable is a combination of the earlier ones */
        const double root = pivot > 1e-15 * diagonal ? sqrt(pivot) : 0.0;
        f[j * (j + 1) / 2 + j] = root;
        for (int i = j + 1; i < n; i++) {
            double rest = cov[i * (i + 1) / 2 + j];
            for (int k = 0; k < j; k++)
                rest -= f[i * (i + 1) / 2 + k] * f[j * (j + 1) / 2 + k];
            f[i * (i + 1) / 2 + j] = root > 0.0 ? rest / root : 0.0;
        }
    }
}

LANE_FN lane lane_powi(lane x, int n)
{
    lane r = lane_set1(1.0);
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            r *= x;
    return r;
}

static void average_couplings_0(const double *cov, const double *p, const rule *r, double *out)
{
    double f[3];
    colour(2, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[2];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;

        const lane x0 = lane_sigmoid(p_beta*u2);
        const lane x1 = lane_sigmoid(p_beta*u1);
        const lane x2 = -1.0 + x1;
        const lane x3 = x1*x2;
        const lane x4 = 2.0*x3*(p_beta*p_beta);
        const lane x5 = x1 + (-x0);
        a[0] += w * (-x0*x4*(-1.0 + x0));
        a[1] += w * (x4*(x3 + x1*x5 + x2*x5));
    }
    for (int i = 0; i < 2; i++)
        out[i] = lane_sum(a[i]);
}

/* G11, G12 */
static void couplings(const lane *q, const lane *par, const rule *rules, lane *out)
{
    (void)q, (void)par, (void)rules, (void)out;
    const lane q_1_1 = q[0];
    (void)q_1_1;
    const lane q_1_2 = q[1];
    (void)q_1_2;
    const lane q_2_2 = q[2];
    (void)q_2_2;
    const lane p_beta = par[0];
    (void)p_beta;
    lane E0_0, E0_1;
    {
        const lane cov[3] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][3], v[LANES][1], e[2];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 3; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_couplings_0(c[l], v[l], &rules[0], e);
            E0_0[l] = e[0];
            E0_1[l] = e[1];
        }
    }
    out[0] = lane_set1(0.0) + 3.0*E0_1;
    out[1] = lane_set1(0.0) + 3.0*E0_0;
}

static void average_noise_0(const double *cov, const double *p, const rule *r, double *out)
{
    double f[3];
    colour(2, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[1];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;

        const lane x0 = lane_sigmoid(p_beta*u1);
        a[0] += w * (24.0*(x0*x0)*(p_beta*p_beta)*((1.0 + (-x0))*(1.0 + (-x0)))*((x0 + (-lane_sigmoid(p_beta*u2)))*(x0 + (-lane_sigmoid(p_beta*u2)))));
    }
    for (int i = 0; i < 1; i++)
        out[i] = lane_sum(a[i]);
}

static void average_noise_1(const double *cov, const double *p, const rule *r, double *out)
{
    double f[10];
    colour(4, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[1];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane z3 = lane_load(r->z + 2 * r->n + i);
        const lane z4 = lane_load(r->z + 3 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;
        const lane u3 = f[3] * z1 + f[4] * z2 + f[5] * z3;
        const lane u4 = f[6] * z1 + f[7] * z2 + f[8] * z3 + f[9] * z4;

        const lane x0 = lane_sigmoid(p_beta*u1);
        const lane x1 = lane_sigmoid(p_beta*u2);
        a[0] += w * (16.0*x0*x1*(p_beta*p_beta)*(1.0 + (-x0))*(1.0 + (-x1))*(x0 + (-lane_sigmoid(p_beta*u3)))*(x1 + (-lane_sigmoid(p_beta*u4))));
    }
    for (int i = 0; i < 1; i++)
        out[i] = lane_sum(a[i]);
}

/* N11 */
static void noise(const lane *q, const lane *par, const rule *rules, lane *out)
{
    (void)q, (void)par, (void)rules, (void)out;
    const lane q_1_1 = q[0];
    (void)q_1_1;
    const lane q_1_2 = q[1];
    (void)q_1_2;
    const lane q_2_2 = q[2];
    (void)q_2_2;
    const lane p_beta = par[0];
    (void)p_beta;
    lane E0_0;
    {
        const lane cov[3] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][3], v[LANES][1], e[1];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 3; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_noise_0(c[l], v[l], &rules[0], e);
            E0_0[l] = e[0];
        }
    }
    lane E1_0;
    {
        const lane cov[10] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + q_1_1, lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + q_1_2, lane_set1(0.0) + 3.0*q_2_2, lane_set1(0.0) + q_1_2, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + q_2_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][10], v[LANES][1], e[1];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 10; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_noise_1(c[l], v[l], &rules[1], e);
            E1_0[l] = e[0];
        }
    }
    out[0] = lane_set1(0.0) + E1_0 + 2.0*E0_0;
}

static void average_potential_0(const double *cov, const double *p, const rule *r, double *out)
{
    double f[3];
    colour(2, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[1];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;

        a[0] += w * (((-lane_sigmoid(p_beta*u2) + lane_sigmoid(p_beta*u1))*(-lane_sigmoid(p_beta*u2) + lane_sigmoid(p_beta*u1))));
    }
    for (int i = 0; i < 1; i++)
        out[i] = lane_sum(a[i]);
}

/* Phi */
static void potential(const lane *q, const lane *par, const rule *rules, lane *out)
{
    (void)q, (void)par, (void)rules, (void)out;
    const lane q_1_1 = q[0];
    (void)q_1_1;
    const lane q_1_2 = q[1];
    (void)q_1_2;
    const lane q_2_2 = q[2];
    (void)q_2_2;
    const lane p_beta = par[0];
    (void)p_beta;
    lane E0_0;
    {
        const lane cov[3] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][3], v[LANES][1], e[1];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 3; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_potential_0(c[l], v[l], &rules[0], e);
            E0_0[l] = e[0];
        }
    }
    out[0] = lane_set1(0.0) + 2.0*E0_0;
}

static void average_coupling_slopes_0(const double *cov, const double *p, const rule *r, double *out)
{
    double f[3];
    colour(2, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[4];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;

        const lane x0 = lane_sigmoid(p_beta*u1);
        const lane x1 = -1.0 + x0;
        const lane x2 = 2.0*x0;
        const lane x3 = x1*x2;
        const lane x4 = -1.0 + x2;
        const lane x5 = x0*x4;
        const lane x6 = x1*x4;
        const lane x7 = lane_sigmoid(p_beta*u2);
        const lane x8 = (p_beta*p_beta*p_beta*p_beta);
        const lane x9 = -1.0 + x7;
        const lane x10 = x1*x9;
        const lane x11 = x10*x2*x7*x8;
        const lane x12 = 2.0*x7;
        const lane x13 = -1.0 + x12;
        const lane x14 = (x0*x0);
        const lane x15 = -4.0 + (-4.0*x7) + 12.0*x0;
        const lane x16 = (x1*x1);
        const lane x17 = x0*x1;
        const lane x18 = x0 + (-x7);
        const lane x19 = x0*x18 + x1*x18;
        const lane x20 = x17 + x19;
        a[0] += w * (-x11*(x3 + x5 + x6));
        a[1] += w * (-x11*(x12*x9 + x13*x7 + x13*x9));
        a[2] += w * (-x11*(x10 + x0*x7 + x0*x9 + x1*x7));
        a[3] += w * (x3*x8*(x20*x3 + x20*x5 + x20*x6 + x3*(x14 + x16 + x19 + 5.0*x17) + x0*x15*x16 + x1*x14*x15));
    }
    for (int i = 0; i < 4; i++)
        out[i] = lane_sum(a[i]);
}

/* dG11_q_1_1, dG11_q_1_2, dG11_q_2_2, dG12_q_1_1, dG12_q_1_2, dG12_q_2_2 */
static void coupling_slopes(const lane *q, const lane *par, const rule *rules, lane *out)
{
    (void)q, (void)par, (void)rules, (void)out;
    const lane q_1_1 = q[0];
    (void)q_1_1;
    const lane q_1_2 = q[1];
    (void)q_1_2;
    const lane q_2_2 = q[2];
    (void)q_2_2;
    const lane p_beta = par[0];
    (void)p_beta;
    lane E0_0, E0_1, E0_2, E0_3;
    {
        const lane cov[3] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][3], v[LANES][1], e[4];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 3; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_coupling_slopes_0(c[l], v[l], &rules[0], e);
            E0_0[l] = e[0];
            E0_1[l] = e[1];
            E0_2[l] = e[2];
            E0_3[l] = e[3];
        }
    }
    out[0] = lane_set1(0.0) + 4.5*E0_3;
    out[1] = lane_set1(0.0) + 9.0*E0_0;
    out[2] = lane_set1(0.0) + 4.5*E0_2;
    out[3] = lane_set1(0.0) + 4.5*E0_0;
    out[4] = lane_set1(0.0) + 9.0*E0_2;
    out[5] = lane_set1(0.0) + 4.5*E0_1;
}

static void average_noise_slopes_0(const double *cov, const double *p, const rule *r, double *out)
{
    double f[3];
    colour(2, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[3];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;

        const lane x0 = lane_sigmoid(p_beta*u2);
        const lane x1 = -1.0 + x0;
        const lane x2 = x0*x1;
        const lane x3 = lane_sigmoid(p_beta*u1);
        const lane x4 = x3 + (-x0);
        const lane x5 = -1.0 + x3;
        const lane x6 = (x5*x5);
        const lane x7 = (x3*x3);
        const lane x8 = 48.0*x6*x7*(p_beta*p_beta*p_beta*p_beta);
        const lane x9 = x2*x8;
        const lane x10 = x3*x5;
        const lane x11 = x3*x4;
        const lane x12 = x4*x5;
        const lane x13 = (x4*x4);
        const lane x14 = 3.0*x3;
        a[0] += w * (-x9*(-x2 + x0*x4 + x1*x4));
        a[1] += w * (-x9*(x10 + 2.0*x11 + 2.0*x12));
        a[2] += w * (x8*(x10*(x10 + x11 + x12) + 4.0*x10*x13 + 4.0*x11*x6 + 4.0*x12*x7 + x13*x3*(-1.0 + x14) + x13*x5*(-2.0 + x14)));
    }
    for (int i = 0; i < 3; i++)
        out[i] = lane_sum(a[i]);
}

static void average_noise_slopes_1(const double *cov, const double *p, const rule *r, double *out)
{
    double f[10];
    colour(4, cov, f);
    const lane p_beta = lane_set1(p[0]);
    lane a[10];
    memset(a, 0, sizeof a);
    for (long i = 0; i < r->n; i += LANES) {
        const lane w = lane_load(r->w + i);
        const lane z1 = lane_load(r->z + 0 * r->n + i);
        const lane z2 = lane_load(r->z + 1 * r->n + i);
        const lane z3 = lane_load(r->z + 2 * r->n + i);
        const lane z4 = lane_load(r->z + 3 * r->n + i);
        const lane u1 = f[0] * z1;
        const lane u2 = f[1] * z1 + f[2] * z2;
        const lane u3 = f[3] * z1 + f[4] * z2 + f[5] * z3;
        const lane u4 = f[6] * z1 + f[7] * z2 + f[8] * z3 + f[9] * z4;

        const lane x0 = lane_sigmoid(p_beta*u2);
        const lane x1 = -1.0 + x0;
        const lane x2 = x0*x1;
        const lane x3 = lane_sigmoid(p_beta*u1);
        const lane x4 = -1.0 + x3;
        const lane x5 = x3*x4;
        const lane x6 = x2*x5;
        const lane x7 = 16.0*(p_beta*p_beta*p_beta*p_beta);
        const lane x8 = x6*x7;
        const lane x9 = lane_sigmoid(p_beta*u3);
        const lane x10 = x9*(-1.0 + x9);
        const lane x11 = x10*x8;
        const lane x12 = lane_sigmoid(p_beta*u4);
        const lane x13 = x12*(-1.0 + x12);
        const lane x14 = x0 + (-x12);
        const lane x15 = x1*x14;
        const lane x16 = 2.0*x3;
        const lane x17 = -1.0 + x16;
        const lane x18 = x17*x5;
        const lane x19 = x0*x7;
        const lane x20 = x3 + (-x9);
        const lane x21 = x20*x4;
        const lane x22 = 2.0*x0;
        const lane x23 = -1.0 + x22;
        const lane x24 = x2*x23;
        const lane x25 = x3*x7;
        const lane x26 = x2*x21;
        const lane x27 = x25*x26;
        const lane x28 = x15*x5;
        const lane x29 = x19*x28;
        const lane x30 = x0*x14;
        const lane x31 = x20*x3;
        a[0] += w * (x11*x13);
        a[1] += w * (-x10*x15*x18*x19);
        a[2] += w * (-x13*x21*x24*x25);
        a[3] += w * (-x13*x27*(-1.0 + 2.0*x12));
        a[4] += w * (-x10*x29*(-1.0 + 2.0*x9));
        a[5] += w * (-x11*(x15 + x2 + x30));
        a[6] += w * (-x13*x8*(x21 + x31 + x5));
        a[7] += w * (x27*(x24 + x15*x22 + x15*x23 + x22*(x1*x1) + x23*x30 + 2.0*x1*(x0*x0)));
        a[8] += w * (x29*(x18 + x16*x21 + x16*(x4*x4) + x17*x21 + x17*x31 + 2.0*x4*(x3*x3)));
        a[9] += w * (x8*(x26 + x28 + x6 + x15*x21 + x15*x31 + x2*x31 + x21*x30 + x30*x31 + x30*x5));
    }
    for (int i = 0; i < 10; i++)
        out[i] = lane_sum(a[i]);
}

/* dN11_q_1_1, dN11_q_1_2, dN11_q_2_2 */
static void noise_slopes(const lane *q, const lane *par, const rule *rules, lane *out)
{
    (void)q, (void)par, (void)rules, (void)out;
    const lane q_1_1 = q[0];
    (void)q_1_1;
    const lane q_1_2 = q[1];
    (void)q_1_2;
    const lane q_2_2 = q[2];
    (void)q_2_2;
    const lane p_beta = par[0];
    (void)p_beta;
    lane E0_0, E0_1, E0_2;
    {
        const lane cov[3] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][3], v[LANES][1], e[3];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 3; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_noise_slopes_0(c[l], v[l], &rules[0], e);
            E0_0[l] = e[0];
            E0_1[l] = e[1];
            E0_2[l] = e[2];
        }
    }
    lane E1_0, E1_1, E1_2, E1_3, E1_4, E1_5, E1_6, E1_7, E1_8, E1_9;
    {
        const lane cov[10] = {lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + q_1_1, lane_set1(0.0) + 3.0*q_1_1, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + q_1_2, lane_set1(0.0) + 3.0*q_2_2, lane_set1(0.0) + q_1_2, lane_set1(0.0) + 3.0*q_1_2, lane_set1(0.0) + q_2_2, lane_set1(0.0) + 3.0*q_2_2};
        const lane inner[1] = {p_beta};
        double c[LANES][10], v[LANES][1], e[10];
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 10; i++)
                c[l][i] = cov[i][l];
            for (int i = 0; i < 1; i++)
                v[l][i] = inner[i][l];
            /* lanes that pad a block repeat their neighbour: so does the integral */
            if (l == 0 || memcmp(c[l], c[l - 1], sizeof c[l]) != 0 || memcmp(v[l], v[l - 1], sizeof v[l]) != 0)
                average_noise_slopes_1(c[l], v[l], &rules[1], e);
            E1_0[l] = e[0];
            E1_1[l] = e[1];
            E1_2[l] = e[2];
            E1_3[l] = e[3];
            E1_4[l] = e[4];
            E1_5[l] = e[5];
            E1_6[l] = e[6];
            E1_7[l] = e[7];
            E1_8[l] = e[8];
            E1_9[l] = e[9];
        }
    }
    out[0] = lane_set1(0.0) + E1_9 + 3.0*E0_2 + 1.5*E1_7 + 1.5*E1_8;
    out[1] = lane_set1(0.0) + E1_5 + E1_6 + 3.0*E1_1 + 3.0*E1_2 + 6.0*E0_1;
    out[2] = lane_set1(0.0) + E1_0 + 3.0*E0_0 + 1.5*E1_3 + 1.5*E1_4;
}

LANE_FN lane factor(const lane *mu, int i)
{
    return i < N_STATE ? mu[i] : lane_set1(i == N_FULL - 1 ? 1.0 : 0.0);
}

static void drift_coefficients(const lane *mu, const lane *par, const rule *rules, lane *c)
{
    lane q[N_Q], g[2];
    for (int i = 0; i < N_Q; i++)
        q[i] = mu[q_index[i]];
    couplings(q, par, rules, g);
    c[0] = g[0];
    c[1] = g[1];
    c[2] = par[1];
}

static void loop_coefficients(const lane *mu, const lane *par, const rule *rules, lane *c)
{
    lane q[N_Q], g[1];
    for (int i = 0; i < N_Q; i++)
        q[i] = mu[q_index[i]];
    noise(q, par, rules, g);
    c[0] = par[KAPPA] * g[0];
}

static void rhs_block(double t, const lane *mu, const lane *par, const void *ctx, lane *out)
{
    (void)t;
    lane c[DRIFT_NAMES];
    drift_coefficients(mu, par, ctx, c);
    const lane c0 = c[0], c1 = c[1], c2 = c[2];
    out[0] = c0*(-2.0*mu[2]) + c1*(-2.0*mu[3]) + c2*(-0.5*mu[0]);
    out[1] = lane_set1(0.0);
    out[2] = c0*(-4.0*mu[5]) + c1*(-4.0*mu[6]) + c2*(-1.0*mu[2]);
    out[3] = c0*(-2.0*mu[6]) + c1*(-2.0*mu[7]) + c2*(-0.5*mu[3]);
    out[4] = lane_set1(0.0);
    out[5] = c0*(-6.0*mu[9]) + c1*(-6.0*mu[10]) + c2*(-1.5*mu[5]);
    out[6] = c0*(-4.0*mu[10]) + c1*(-2.0*mu[11] - 2.0*mu[12]) + c2*(-1.0*mu[6]);
    out[7] = c0*(-2.0*mu[11]) + c1*(-2.0*mu[13]) + c2*(-0.5*mu[7]);
    out[8] = lane_set1(0.0);
    out[9] = c0*(-8.0*mu[15]) + c1*(-8.0*mu[16]) + c2*(-2.0*mu[9]);
    out[10] = c0*(-6.0*mu[16]) + c1*(-2.0*mu[17] - 4.0*mu[18]) + c2*(-1.5*mu[10]);
    out[11] = c0*(-4.0*mu[17]) + c1*(-2.0*mu[19] - 2.0*mu[20]) + c2*(-1.0*mu[11]);
    out[12] = c0*(-4.0*mu[18]) + c1*(-4.0*mu[20]) + c2*(-1.0*mu[12]);
    out[13] = c0*(-2.0*mu[19]) + c1*(-2.0*mu[21]) + c2*(-0.5*mu[13]);
    out[14] = lane_set1(0.0);
    out[15] = c2*(-2.5*mu[15]);
    out[16] = c2*(-2.0*mu[16]);
    out[17] = c2*(-1.5*mu[17]);
    out[18] = c2*(-1.5*mu[18]);
    out[19] = c2*(-1.0*mu[19]);
    out[20] = c2*(-1.0*mu[20]);
    out[21] = c2*(-0.5*mu[21]);
    out[22] = lane_set1(0.0);
    if (lane_any((lane_mask)(par[KAPPA] != 0.0))) {
        lane noisy[LOOP_NAMES + 1];
        loop_coefficients(mu, par, ctx, noisy);
        for (int n = 0; n < LOOP_TERMS; n++)
            out[loop_row[n]] += loop_weight[n] * noisy[loop_coupling[n]] * factor(mu, loop_first[n]) * factor(mu, loop_second[n]);
    }
}

/* Smallest relative pivot of the matrix of overlaps, regularised by 1e-9: negative where no matrices have them. */
LANE_FN lane feasible_block(const lane *mu)
{
    lane f[N_MATRIX][N_MATRIX], pivots[N_MATRIX], worst = lane_set1(INFINITY);
    for (int j = 0; j < N_MATRIX; j++) {
        const lane diagonal = mu[overlap_index[j * (j + 1) / 2 + j]];
        lane pivot = diagonal * (1.0 + 1e-9) + 1e-300;
        for (int k = 0; k < j; k++)
            pivot -= f[j][k] * f[j][k] * pivots[k];
        pivots[j] = pivot;
        worst = lane_min(worst, pivot / (lane_abs(diagonal) + 1e-300));
        for (int i = j + 1; i < N_MATRIX; i++) {
            lane rest = mu[overlap_index[i * (i + 1) / 2 + j]];
            for (int k = 0; k < j; k++)
                rest -= f[i][k] * f[j][k] * pivots[k];
            f[i][j] = rest / pivot;
        }
    }
    return worst;
}

/* Adaptive batch integrator: Dormand-Prince 8(5,3), LANES trajectories to a block, one step size for a block.

   Before this part: N_STATE (at least 1), N_PARAM (may be 0), lanes.c.j2, and
     static void rhs_block(double t, const lane *mu, const lane *par, const void *ctx, lane *out);
     LANE_FN lane feasible_block(const lane *mu);    the state is admissible where this is >= -feas_tol

   A trajectory that cannot go on is frozen: its status and its last good time are written, the rest of its output is
   NaN, and its lane becomes a copy of a living neighbour, so that the step control needs no masks.  */
#define TRACEWORDS_ABI 1
#define NEAR 1e-5 /* feasible_block below this: at the edge of the domain */

enum { RUN_OK, RUN_LEFT_DOMAIN, RUN_UNDERFLOW, RUN_TOO_MANY_STEPS, RUN_INTERRUPTED };
enum { SOLVE_DONE, SOLVE_NO_MEMORY, SOLVE_BAD_TIMES };

const long tracewords_shape[4] = {TRACEWORDS_ABI, N_STATE, N_PARAM, LANES};

typedef struct {
    /* the job, the same for all blocks */
    long n_traj, n_times, max_steps;
    const double *times, *mu0, *parameters;
    double rtol, atol, feas_tol;
    const void *ctx;
    double *out, *reached;
    int *status;
    /* the block */
    lane *y, *y_new, *dy_new, *trial, *par;
    lane *k[12]; /* stages; k[0] is the derivative at t */
    long owner[LANES];                         /* trajectory in the lane; -1 for a copy */
    long row, budget, steps;                   /* first output row not yet written; attempts left, attempts made */
    double t, h;                               /* time, and the step that the error control asks for */
    double fault, fault_width;                 /* earliest time at which a lane was seen outside its domain */
    int rejected;
    lane error; /* of the last attempt, in units of the tolerance */
} block;

static int block_allocate(block *b)
{
    enum { ARRAYS = 4 + 12 };
    const size_t size = ((size_t)ARRAYS * N_STATE + N_PARAM + 1) * sizeof(lane);
    lane *memory = aligned_alloc(sizeof(lane), size);
    if (memory == NULL)
        return 0;
    memset(memory, 0, size);
    b->y = memory;
    b->y_new = memory + N_STATE;
    b->dy_new = memory + 2 * N_STATE;
    b->trial = memory + 3 * N_STATE;
    for (int s = 0; s < ARRAYS - 4; s++)
        b->k[s] = memory + (4 + s) * (long)N_STATE;
    b->par = memory + ARRAYS * (long)N_STATE;
    return 1;
}

/* Trajectories first .. first + LANES - 1 of a word-major array (rows, n); past the end, copies of the first.  */
static void gather(lane *to, const double *from, long rows, long n, long first)
{
    for (long i = 0; i < rows; i++) {
        if (first + LANES <= n)
            to[i] = lane_load(from + i * n + first);
        else
            for (long l = 0; l < LANES; l++)
                to[i][l] = from[i * n + (first + l < n ? first + l : first)];
    }
}

/* The one place that calls the model, kept out of line so that its code appears once.  */
static __attribute__((noinline)) void derivative(const block *b, double t, const lane *y, lane *dy)
{
    rhs_block(t, y, b->par, b->ctx, dy);
}

LANE_FN lane_mask array_not_finite(const lane *x)
{
    lane probe = lane_set1(0.0); /* 0 * infinity and 0 * NaN are NaN, and stay */
    for (long i = 0; i < N_STATE; i++)
        probe += 0.0 * x[i];
    return (lane_mask)(probe != probe);
}

static void write_row(block *b)
{
    double *row = b->out + b->row * N_STATE * b->n_traj;
    int living = 0;
    for (int l = 0; l < LANES; l++)
        living += b->owner[l] >= 0;
    for (long i = 0; i < N_STATE; i++, row += b->n_traj) {
        if (living == LANES) /* then the owners are neighbours */
            lane_store(row + b->owner[0], b->y[i]);
        else
            for (int l = 0; l < LANES; l++)
                if (b->owner[l] >= 0)
                    row[b->owner[l]] = b->y[i][l];
    }
    b->row++;
}

static int survivor(const block *b) /* a lane that is alive, or -1 */
{
    for (int l = 0; l < LANES; l++)
        if (b->owner[l] >= 0)
            return l;
    return -1;
}

/* Ends the trajectory in lane l: status, time, and NaN for what it did not reach.  */
static void finish_lane(block *b, int l, int status)
{
    b->status[b->owner[l]] = status;
    b->reached[b->owner[l]] = b->t;
    for (long r = b->row; r < b->n_times; r++)
        for (long i = 0; i < N_STATE; i++)
            b->out[(r * N_STATE + i) * b->n_traj + b->owner[l]] = NAN;
    b->owner[l] = -1;
}

static void freeze_lanes(block *b, const lane_mask *lost, int status)
{
    for (int l = 0; l < LANES; l++)
        if ((*lost)[l] && b->owner[l] >= 0)
            finish_lane(b, l, status);
    b->fault = INFINITY;
    b->budget = b->max_steps; /* the neighbours do not pay for the lane that slowed them down */
    const int from = survivor(b);
    for (int l = 0; l < LANES && from >= 0; l++) {
        if (b->owner[l] >= 0)
            continue;
        for (long i = 0; i < N_STATE; i++) {
            b->y[i][l] = b->y[i][from];
            b->k[0][i][l] = b->k[0][i][from];
        }
        for (long i = 0; i < N_PARAM; i++)
            b->par[i][l] = b->par[i][from];
    }
}

/* Freezes the lanes of the mask and fills them with copies of a living one.  */
LANE_FN void freeze(block *b, lane_mask lost, int status)
{
    freeze_lanes(b, &lost, status);
}

LANE_FN lane tolerance(const block *b, lane y, lane y_new)
{
    const lane scale = b->atol + b->rtol * lane_max(lane_abs(y), lane_abs(y_new));
    return lane_max(scale, lane_set1(DBL_MIN)); /* atol = 0 on a component that stays 0 */
}

/* First step size as in Hairer, Norsett, Wanner II.4, the smallest over the lanes.  */
static void choose_first_step(block *b)
{
    const double span = b->times[b->n_times - 1] - b->t;
    lane y2 = lane_set1(0.0), f2 = y2, d2 = y2;
    for (long i = 0; i < N_STATE; i++) {
        const lane s = 1.0 / tolerance(b, b->y[i], b->y[i]);
        y2 += (b->y[i] * s) * (b->y[i] * s);
        f2 += (b->k[0][i] * s) * (b->k[0][i] * s);
    }
    y2 = lane_sqrt(y2 / (double)N_STATE);
    f2 = lane_sqrt(f2 / (double)N_STATE);
    double h0 = span;
    for (int l = 0; l < LANES; l++)
        h0 = fmin(h0, y2[l] < 1e-5 || f2[l] < 1e-5 ? 1e-6 : 0.01 * y2[l] / f2[l]);
    for (long i = 0; i < N_STATE; i++)
        b->trial[i] = b->y[i] + h0 * b->k[0][i];
    derivative(b, b->t + h0, b->trial, b->dy_new);
    for (long i = 0; i < N_STATE; i++) {
        const lane d = (b->dy_new[i] - b->k[0][i]) / tolerance(b, b->y[i], b->y[i]);
        d2 += d * d;
    }
    d2 = lane_sqrt(d2 / (double)N_STATE) / h0;
    b->h = fmin(100.0 * h0, span);
    for (int l = 0; l < LANES; l++) {
        const double d = fmax(f2[l], d2[l]);
        b->h = fmin(b->h, d <= 1e-15 ? fmax(1e-6, 1e-3 * h0) : pow(0.01 / d, 0.125));
    }
}

/* One step of size h from t to t_new into y_new; its error goes to b->error.  */
static void attempt(block *b, double t_new)
{
    const double t = b->t, h = t_new - t;
    lane *const *k = b->k;
    const lane *y = b->y;
    lane *trial = b->trial;
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.05260015195876773 * k[0][i]);
    derivative(b, t + h * 0.05260015195876773, trial, k[1]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.0197250569845379 * k[0][i] + 0.059175170953613701 * k[1][i]);
    derivative(b, t + h * 0.078900227938151601, trial, k[2]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.029587585476806851 * k[0][i] + 0.088762756430420545 * k[2][i]);
    derivative(b, t + h * 0.1183503419072274, trial, k[3]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.24136513415926669 * k[0][i] + -0.88454947932828609 * k[2][i] + 0.92483400326179199 * k[3][i]);
    derivative(b, t + h * 0.28164965809277259, trial, k[4]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.037037037037037035 * k[0][i] + 0.17082860872947386 * k[3][i] + 0.12546768756682242 * k[4][i]);
    derivative(b, t + h * 0.33333333333333331, trial, k[5]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.037109375 * k[0][i] + 0.17025221101954405 * k[3][i] + 0.060216538980455959 * k[4][i] + -0.017578125 * k[5][i]);
    derivative(b, t + h * 0.25, trial, k[6]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.037092000118504789 * k[0][i] + 0.17038392571223998 * k[3][i] + 0.10726203044637328 * k[4][i] + -0.015319437748624402 * k[5][i] + 0.0082737891638140233 * k[6][i]);
    derivative(b, t + h * 0.30769230769230771, trial, k[7]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.62411095871607569 * k[0][i] + -3.3608926294469414 * k[3][i] + -0.86821934684172597 * k[4][i] + 27.59209969944671 * k[5][i] + 20.154067550477894 * k[6][i] + -43.489884181069961 * k[7][i]);
    derivative(b, t + h * 0.6512820512820513, trial, k[8]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (0.47766253643826434 * k[0][i] + -2.4881146199716677 * k[3][i] + -0.59029082683684297 * k[4][i] + 21.230051448181193 * k[5][i] + 15.279233632882423 * k[6][i] + -33.288210968984863 * k[7][i] + -0.020331201708508627 * k[8][i]);
    derivative(b, t + h * 0.59999999999999998, trial, k[9]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (-0.9371424300859873 * k[0][i] + 5.1863724288440638 * k[3][i] + 1.0914373489967295 * k[4][i] + -8.1497870107469268 * k[5][i] + -18.520065659996959 * k[6][i] + 22.739487099350505 * k[7][i] + 2.4936055526796523 * k[8][i] + -3.0467644718982196 * k[9][i]);
    derivative(b, t + h * 0.8571428571428571, trial, k[10]);
    for (long i = 0; i < N_STATE; i++)
        trial[i] = y[i] + h * (2.273310147516538 * k[0][i] + -10.534495466737249 * k[3][i] + -2.0008720582248625 * k[4][i] + -17.958931863118799 * k[5][i] + 27.94888452941996 * k[6][i] + -2.8589982771350235 * k[7][i] + -8.8728569335306293 * k[8][i] + 12.360567175794303 * k[9][i] + 0.64339274601576357 * k[10][i]);
    derivative(b, t_new, trial, k[11]);
    lane e5 = lane_set1(0.0), e3 = e5;
    for (long i = 0; i < N_STATE; i++) {
        const lane next = y[i] + h * (0.054293734116568765 * k[0][i] + 4.4503128927524092 * k[5][i] + 1.8915178993145003 * k[6][i] + -5.8012039600105849 * k[7][i] + 0.3111643669578199 * k[8][i] + -0.15216094966251609 * k[9][i] + 0.20136540080403034 * k[10][i] + 0.044710615727772587 * k[11][i]);
        const lane scale = 1.0 / tolerance(b, y[i], next);
        const lane fifth = (0.01312004499419488 * k[0][i] + -1.2251564463762044 * k[5][i] + -0.4957589496572502 * k[6][i] + 1.6643771824549864 * k[7][i] + -0.35032884874997366 * k[8][i] + 0.33417911871301748 * k[9][i] + 0.08192320648511571 * k[10][i] + -0.022355307863886294 * k[11][i]) * scale;
        const lane third = (-0.18980075407240762 * k[0][i] + 4.4503128927524092 * k[5][i] + 1.8915178993145003 * k[6][i] + -5.8012039600105849 * k[7][i] + -0.42268232132379191 * k[8][i] + -0.15216094966251609 * k[9][i] + 0.20136540080403034 * k[10][i] + 0.022651792198360821 * k[11][i]) * scale;
        e5 += fifth * fifth;
        e3 += third * third;
        b->y_new[i] = next;
    }
    const lane both = (e5 + 0.01 * e3) * (double)N_STATE;
    b->error = lane_select((lane_mask)(both == 0.0), lane_set1(0.0), h * e5 / lane_sqrt(both));
    b->steps++;
    b->budget--;
}

static double worst_error(const block *b) /* infinity where a lane is not finite */
{
    double worst = 0.0;
    for (int l = 0; l < LANES; l++)
        if (!(b->error[l] <= worst))
            worst = b->error[l] < INFINITY ? b->error[l] : INFINITY;
    return worst;
}

/* The largest error of the attempt, after marking (NaN) the lanes whose new state or derivative is not finite.  */
static double judge(block *b, double t_new)
{
    const lane nan = lane_set1(NAN);
    b->error = lane_select(array_not_finite(b->y_new), nan, b->error);
    const double worst = worst_error(b);
    if (!(worst < 1.0))
        return worst;
    derivative(b, t_new, b->y_new, b->dy_new); /* needed only for a step that may be kept */
    b->error = lane_select(array_not_finite(b->dy_new), nan, b->error);
    return worst_error(b);
}

/* Out of attempts: the lanes that hold the step size down are the ones to stop.  */
static void drop_slowest(block *b)
{
    double worst = 0.0;
    for (int l = 0; l < LANES; l++)
        if (b->owner[l] >= 0)
            worst = fmax(worst, isnan(b->error[l]) ? INFINITY : b->error[l]);
    freeze(b, ~(lane_mask)(b->error < 0.1 * worst), RUN_TOO_MANY_STEPS);
}

static double smallest_step(const block *b)
{
    const double span = b->times[b->n_times - 1] - b->times[0];
    return fmax(10.0 * (nextafter(b->t, INFINITY) - b->t), 1e-30 * span);
}

static void reject(block *b, double h, double worst)
{
    b->h = h * fmax(0.2, worst < INFINITY ? 0.9 * pow(worst, -0.125) : 0.0);
    b->rejected = 1;
    if (b->h >= smallest_step(b))
        return;
    /* the derivative may not exist beyond the edge of the domain: then steps shrink towards it */
    const lane_mask stuck = ~(lane_mask)(b->error < 1.0), edge = (lane_mask)(feasible_block(b->y) < NEAR);
    freeze(b, stuck & edge, RUN_LEFT_DOMAIN);
    freeze(b, stuck & ~edge, RUN_UNDERFLOW);
    b->rejected = 0;
    if (survivor(b) >= 0)
        choose_first_step(b);
}

static void accept(block *b, double t_new, double worst, int clipped)
{
    const double h = t_new - b->t;
    double factor = worst > 0.0 ? fmin(10.0, 0.9 * pow(worst, -0.125)) : 10.0;
    if (b->rejected)
        factor = fmin(factor, 1.0);
    /* a step cut short by an output time says little about the next one */
    b->h = clipped ? fmax(h * factor, b->h) : h * factor;
    b->h = fmin(b->h, b->times[b->n_times - 1] - b->times[0]);
    b->rejected = 0;
    b->t = t_new;
    lane *swap = b->y;
    b->y = b->y_new;
    b->y_new = swap;
    swap = b->k[0];
    b->k[0] = b->dy_new;
    b->dy_new = swap;
    if (b->t >= b->fault)
        b->fault = INFINITY;
}

/* One attempt towards the output time `target`.  Once a lane was seen outside its domain at b->fault, half of the way
   there is tried at a time, until the loss is bracketed to 1e-6 of the time or of the step that jumped over it.  */
static void advance(block *b, double target)
{
    const double floor_h = smallest_step(b), h = fmax(b->h, floor_h);
    double limit = target;
    if (b->fault < INFINITY) {
        const double width = b->fault - b->t;
        const double tight = fmax(floor_h, 1e-6 * fmax(b->fault_width, b->fault - b->times[0]));
        limit = width > tight ? b->t + 0.5 * width : b->fault;
    }
    const int clipped = !(b->t + 1.01 * h < limit);
    const double t_new = clipped ? limit : b->t + h;
    attempt(b, t_new);
    const double worst = judge(b, t_new);
    if (!(worst < 1.0)) {
        reject(b, t_new - b->t, worst);
        return;
    }
    const lane_mask lost = ~(lane_mask)(feasible_block(b->y_new) >= -b->feas_tol);
    if (!lane_any(lost)) {
        accept(b, t_new, worst, clipped);
        return;
    }
    if (!(b->fault < INFINITY))
        b->fault_width = t_new - b->t;
    b->fault = t_new;
    if (t_new - b->t <= fmax(floor_h, 1e-6 * fmax(b->fault_width, t_new - b->times[0])))
        freeze(b, lost, RUN_LEFT_DOMAIN);
}

/* Loads trajectories first, first + 1, ... and settles the ones that cannot even start.  */
static void block_start(block *b, long first, volatile const int *stop)
{
    const lane_mask all = ~(lane_mask){0};
    for (long l = 0; l < LANES; l++)
        b->owner[l] = first + l < b->n_traj ? first + l : -1;
    gather(b->y, b->mu0, N_STATE, b->n_traj, first);
    gather(b->par, b->parameters, N_PARAM, b->n_traj, first);
    b->row = 0;
    b->t = b->times[0];
    b->rejected = 0;
    b->error = lane_set1(0.0);
    freeze(b, array_not_finite(b->y), RUN_UNDERFLOW);
    freeze(b, ~(lane_mask)(feasible_block(b->y) >= -b->feas_tol), RUN_LEFT_DOMAIN);
    if (survivor(b) < 0)
        return;
    write_row(b);
    if (stop != NULL && *stop)
        freeze(b, all, RUN_INTERRUPTED);
    if (survivor(b) < 0 || !(b->times[b->n_times - 1] > b->t))
        return;
    derivative(b, b->t, b->y, b->k[0]);
    freeze(b, array_not_finite(b->k[0]), RUN_UNDERFLOW);
    if (survivor(b) >= 0)
        choose_first_step(b);
}

static void block_run(block *b, long first, volatile const int *stop)
{
    const lane_mask all = ~(lane_mask){0};
    block_start(b, first, stop);
    while (b->row < b->n_times && survivor(b) >= 0) {
        if (b->times[b->row] <= b->t)
            write_row(b);
        else if (stop != NULL && *stop)
            freeze(b, all, RUN_INTERRUPTED);
        else if (b->budget <= 0)
            drop_slowest(b);
        else
            advance(b, b->times[b->row]);
    }
    for (int l = 0; l < LANES; l++)
        if (b->owner[l] >= 0)
            finish_lane(b, l, RUN_OK);
}

/* mu0 (N_STATE, n_traj) at times[0]; parameters (N_PARAM, n_traj); out (n_times, N_STATE, n_traj), NaN where not reached.
   Per trajectory: status (RUN_...) and reached, the last good time.  steps: attempts, all blocks together.  A
   trajectory whose initial state is refused has reached = times[0] and a first row of NaN.  Returns SOLVE_...  */
int tracewords_solve(long n_traj, long n_times, const double *times, const double *mu0, const double *parameters,
                     double rtol, double atol, double feas_tol, long max_steps, const void *ctx, double *out,
                     int *status, double *reached, long *steps, volatile const int *stop)
{
    *steps = 0;
    for (long r = 1; r < n_times; r++)
        if (!(times[r] >= times[r - 1]))
            return SOLVE_BAD_TIMES;
    if (n_times > 0 && !(isfinite(times[0]) && isfinite(times[n_times - 1])))
        return SOLVE_BAD_TIMES;
    if (n_traj <= 0 || n_times <= 0) {
        for (long i = 0; i < n_traj; i++) {
            status[i] = RUN_OK;
            reached[i] = NAN;
        }
        return SOLVE_DONE;
    }
    block b = {.n_traj = n_traj, .n_times = n_times, .max_steps = max_steps, .times = times, .mu0 = mu0,
               .parameters = parameters, .rtol = rtol, .atol = atol, .feas_tol = feas_tol, .ctx = ctx, .out = out,
               .reached = reached, .status = status};
    if (!block_allocate(&b))
        return SOLVE_NO_MEMORY;
    void *memory = b.y; /* accept() swaps the pointers */
    for (long first = 0; first < n_traj; first += LANES)
        block_run(&b, first, stop);
    *steps = b.steps;
    free(memory);
    return SOLVE_DONE;
}

/* mu (N_STATE, n), parameters (N_PARAM, n) -> out (N_STATE, n).  Returns SOLVE_...  */
int tracewords_rhs(long n, double t, const double *mu, const double *parameters, const void *ctx, double *out)
{
    block b = {.n_traj = n, .ctx = ctx};
    if (!block_allocate(&b))
        return SOLVE_NO_MEMORY;
    for (long first = 0; first < n; first += LANES) {
        gather(b.y, mu, N_STATE, n, first);
        gather(b.par, parameters, N_PARAM, n, first);
        derivative(&b, t, b.y, b.dy_new);
        for (long i = 0; i < N_STATE; i++)
            for (long l = 0; l < LANES && first + l < n; l++)
                out[i * n + first + l] = b.dy_new[i][l];
    }
    free(b.y);
    return SOLVE_DONE;
}

/* mu (N_STATE, n), parameters (N_PARAM, n) -> out (2, n): G11, G12.  Returns SOLVE_... */
int tracewords_couplings(long n, const double *mu, const double *parameters, const void *ctx, double *out)
{
    block b = {.n_traj = n, .ctx = ctx};
    if (!block_allocate(&b))
        return SOLVE_NO_MEMORY;
    for (long first = 0; first < n; first += LANES) {
        lane q[N_Q], g[2];
        gather(b.y, mu, N_STATE, n, first);
        gather(b.par, parameters, N_PARAM, n, first);
        for (int i = 0; i < N_Q; i++)
            q[i] = b.y[q_index[i]];
        couplings(q, b.par, ctx, g);
        for (long i = 0; i < 2; i++)
            for (long l = 0; l < LANES && first + l < n; l++)
                out[i * n + first + l] = g[i][l];
    }
    free(b.y);
    return SOLVE_DONE;
}

/* One table's part of the Jacobian: through the factors, and through the coefficients (slope: names x N_Q). */
static void table_jacobian(int terms, const int *row, const int *which, const int *first, const int *second,
                           const double *weight, const lane *c, const lane *slope, const lane *mu, lane *jac)
{
    for (int n = 0; n < terms; n++) {
        const lane a = factor(mu, first[n]), b = factor(mu, second[n]), bare = lane_set1(weight[n]);
        lane *line = jac + (long)row[n] * N_STATE;
        if (first[n] < N_STATE)
            line[first[n]] += bare * c[which[n]] * b;
        if (second[n] < N_STATE)
            line[second[n]] += bare * c[which[n]] * a;
        for (int i = 0; i < N_Q; i++)
            line[q_index[i]] += bare * a * b * slope[which[n] * N_Q + i];
    }
}

static void jacobian_block(const lane *mu, const lane *par, const rule *rules, lane *jac)
{
    enum { MOST = 2 };
    lane q[N_Q], c[DRIFT_NAMES + LOOP_NAMES], raw[MOST * N_Q], slope[(DRIFT_NAMES + LOOP_NAMES) * N_Q];
    for (int i = 0; i < N_Q; i++)
        q[i] = mu[q_index[i]];
    memset(jac, 0, sizeof(lane) * N_STATE * N_STATE);
    memset(slope, 0, sizeof slope);
    drift_coefficients(mu, par, rules, c);
    coupling_slopes(q, par, rules, raw);
    memcpy(slope + 0 * N_Q, raw + 0 * N_Q, sizeof(lane) * N_Q);
    memcpy(slope + 1 * N_Q, raw + 1 * N_Q, sizeof(lane) * N_Q);
    table_jacobian(DRIFT_TERMS, drift_row, drift_coupling, drift_first, drift_second, drift_weight, c, slope, mu, jac);
    if (!lane_any((lane_mask)(par[KAPPA] != 0.0)))
        return;
    loop_coefficients(mu, par, rules, c);
    noise_slopes(q, par, rules, raw);
    memset(slope, 0, sizeof slope);
    for (int i = 0; i < N_Q; i++)
        slope[0 * N_Q + i] = par[KAPPA] * raw[0 * N_Q + i];
    table_jacobian(LOOP_TERMS, loop_row, loop_coupling, loop_first, loop_second, loop_weight, c, slope, mu, jac);
}

/* mu (N_STATE, n), parameters (N_PARAM, n) -> out (N_STATE, N_STATE, n), row by column.  Returns SOLVE_... */
int tracewords_jacobian(long n, const double *mu, const double *parameters, const void *ctx, double *out)
{
    block b = {.n_traj = n, .ctx = ctx};
    lane *jac = aligned_alloc(sizeof(lane), sizeof(lane) * N_STATE * N_STATE);
    if (jac == NULL || !block_allocate(&b)) {
        free(jac);
        return SOLVE_NO_MEMORY;
    }
    for (long first = 0; first < n; first += LANES) {
        gather(b.y, mu, N_STATE, n, first);
        gather(b.par, parameters, N_PARAM, n, first);
        jacobian_block(b.y, b.par, ctx, jac);
        for (long i = 0; i < (long)N_STATE * N_STATE; i++)
            for (long l = 0; l < LANES && first + l < n; l++)
                out[i * n + first + l] = jac[i][l];
    }
    free(b.y);
    free(jac);
    return SOLVE_DONE;
}
