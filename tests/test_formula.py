"""Formulas: what is read, what is refused, and the functions they may use."""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
import sympy as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracewords.derive.formula import (
    FUNCTIONS,
    MAX_CHARACTERS,
    parameter_symbol,
    preactivation_symbol,
    read_formula,
)
from tracewords.derive.functions import evaluate, hermite_normalised, sigmoid, softmax, softmax_row
from tracewords.derive.losses import Scalar, Softmax
from tracewords.errors import ModelError

H12, H21 = preactivation_symbol("S1", 1, 2), preactivation_symbol("S1", 2, 1)
BETA = parameter_symbol("beta")
X = sp.symbols("x1:4", real=True)
SECONDS = 2.0  # generous: a shared machine, and everything here takes milliseconds


def read(text: str, **options: object) -> sp.Expr:
    settings_ = {"tokens": 2, "matrices": ("S1", "S2"), "parameters": ("beta", "lambda", "μ")}
    return read_formula(text, **{**settings_, **options})


# -- what is read -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1", sp.Rational(1, 10)),
        ("1e-3*S1[1,2]", H12 / 1000),
        ("0.12345678901234567890123", sp.Rational(12345678901234567890123, 10**23)),
        ("-S1[1,2]**2", -(H12**2)),
        ("2 - 3 - 4", sp.Integer(-5)),
        ("8/4/2*3", sp.Integer(3)),
        ("2**3**2", sp.Integer(512)),
        ("2**0.5", sp.sqrt(2)),
        ("pi*beta", sp.pi * BETA),
        ("lambda*μ", parameter_symbol("lambda") * parameter_symbol("μ")),
        ("S1[ 1 , 2 ]\n + S1[2,1]", H12 + H21),
        ("exp(-S1[1,2])", sp.exp(-H12)),
        ("h3(S1[1,2])", hermite_normalised(3, H12)),
        ("softmax(1, S1[1,2], S1[2,1])", sigmoid(H12 - H21)),
        ("softmax(2, S1[1,2], S1[2,1])", sigmoid(H21 - H12)),
        ("softmax(3, S1[1,2], S1[2,1], 1)", softmax(3, H12 - 1, H21 - 1)),
        ("sqrt(2*pi)", sp.sqrt(2 * sp.pi)),
        ("sqrt(1 + S1[1,2]**2)", sp.sqrt(1 + H12**2)),
        ("sqrt((1 + S1[1,2]**2)**3)", (1 + H12**2) ** sp.Rational(3, 2)),
        ("1/(1 + S1[1,2]**2)", 1 / (1 + H12**2)),
    ],
)
def test_reads(text: str, expected: sp.Expr) -> None:
    assert read(text) == expected


def test_text_of_an_expression_reads_back() -> None:
    text = "(softmax(2, beta*S1[1,1], 2, S1[1,2]/3) - tanh(S2[1,2]))**2/2 + lambda*sigmoid(h2(S1[2,1]))"
    expression = read(text)
    assert read(str(expression)) == expression


def test_long_sums_are_not_deep() -> None:
    terms = [f"tanh({k}*S1[1,2])" for k in range(1, 501)]
    assert read(" + ".join(terms)) == sp.Add(*(sp.tanh(k * H12) for k in range(1, 501)))


# -- what is refused ----------------------------------------------------------------------------------

REFUSED = [
    '__import__("os").system("x")',
    "__import__",
    "().__class__.__bases__",
    "S1.shape",
    "S1[1,2].diff()",
    "lambda x: x",
    "(y := 3)",
    "[y for y in S1]",
    "[1, 2]",
    "(1, 2)",
    "{1}",
    "'text'",
    "f'{S1}'",
    "b''",
    "S1[1,2] if beta else 0",
    "beta and beta",
    "beta or 1",
    "not beta",
    "beta < 1",
    "beta == beta",
    "beta // 2",
    "beta % 2",
    "beta @ beta",
    "beta ^ 2",
    "~beta",
    "1 if 1 else 2",
    "await beta",
    "yield beta",
    "...",
    "None",
    "True",
    "1j",
    "nan",
    "oo",
    "zoo",
    "I",
    "E",
    "S1",
    "S1[1]",
    "S1[1,2,3]",
    "S1[0,1]",
    "S1[1,3]",
    "S1[-1,1]",
    "S1[1.0,2]",
    "S1[1:2,1]",
    "S1[True,1]",
    "S1[beta,1]",
    "S3[1,2]",
    "beta[1,2]",
    "S1[1,2](3)",
    "beta(2)",
    "exp",
    "exp()",
    "exp(1, 2)",
    "exp(x=1)",
    "exp(*S1)",
    "exp(**beta)",
    "(exp)(exp)",
    "abs(S1[1,2])",
    "relu(S1[1,2])",
    "sign(S1[1,2])",
    "max(S1[1,2], 0)",
    "Abs(S1[1,2])",
    "eval(1)",
    "h0(1)",
    "h21(1)",
    "h999999999(1)",
    "softmax()",
    "softmax(1)",
    "softmax(0, 1, 2)",
    "softmax(3, 1, 2)",
    "softmax(beta, 1, 2)",
    "sqrt(S1[1,2]**2)",
    "sqrt(4*S1[1,2]**2)",
    "exp(1e9*log(3))",
    "exp(h19(log(softmax(2, 1e-5, 1e3, S1[2,1])/1e-5)))",
    "sqrt((sin((h20(S1[2,1])**20)**1/2*softmax(2, -1, 0.25, pi)) + exp(0.25))**3)",
    "sqrt(-1)",
    "log(0)",
    "log(1 - 2)",
    "(-2)**0.5",
    "S1[1,2]**0.5",
    "S1[1,2]**-1",
    "S1[1,2]**21",
    "S1[1,2]**beta",
    "beta**S1[1,2]",
    "(S1[1,2]**20)**20",
    "1/0",
    "0/0",
    "0**-1",
    "beta/(2 - 2)",
    "9**9**9",
    "9**9**9**9**9",
    "((99**20)**20)**20",
    "2**-9**9",
    "exp(exp(exp(exp(exp(9)))))",
    "log(log(log(2)))",
    "1e999999999",
    "1e-999999999",
    "1" * 5000,
    "0x" + "f" * 5000,
    "h20(h20(h20(h20(S1[1,2]))))",
    "exp(" * 20 + "S1[1,2]" + ")" * 20,
    "h20(sqrt(" * 14 + "S1[1,2]" + "))" * 14,
    "(" * 10**5 + ")" * 10**5,
    "(" * 10**5,
    "[" * 10**5,
    "-" * 10**5 + "1",
    "2**" * 10**4 + "2",
    "S1[1,2]+" * 20000 + "1",
    "*".join(f"1/{k}" for k in range(1, 800)),
    "a" * 10**6,
    " " * 10**6,
    "S1[1,2]" + " " * MAX_CHARACTERS,
    "",
    " ",
    "1 # comment",
    "1\\\n+1",
    "1;2",
    "x = 1",
    "beta beta",
    "1 +",
    "\x00",
    "\ud800",
    "S1[1,2]²",
    "½",
    "ǃlambda",
    "\u0435xp(1)",  # a Cyrillic letter
    "ｅｘｐ(1)",
    "ﬁ",
    "βeta",
    "\u202e",
]


@pytest.mark.parametrize("text", REFUSED, ids=[repr(t[:30]) for t in REFUSED])
def test_refuses(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ModelError) as caught:
        read(text)
    assert time.perf_counter() - start < SECONDS
    assert caught.value.field == "loss.formula"
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("value", [None, 3, b"1", ["1"], sp.Symbol("x")])
def test_refuses_what_is_no_text(value: object) -> None:
    with pytest.raises(ModelError):
        read(value)  # type: ignore[arg-type]


def test_a_refusal_names_the_fragment_and_what_is_accepted() -> None:
    with pytest.raises(ModelError, match=r"'relu\(S1\[1,2\]\)' cannot be used; .*tanh") as caught:
        read("tanh(S1[1,2]) + relu(S1[1,2])*2", field="loss.activation")
    assert caught.value.field == "loss.activation"


# -- fuzzing ------------------------------------------------------------------------------------------

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def outcome(text: str) -> sp.Expr | None:
    """The expression or None; anything but a ModelError is a failure, and so is a long time."""
    start = time.perf_counter()
    result, message = None, ""
    try:
        result = read(text)
    except ModelError as error:
        message = str(error)
    assert "\n" not in message
    assert time.perf_counter() - start < SECONDS
    return result


@QUICK
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    outcome(text)


@QUICK
@given(st.text(alphabet="S12[], beta()+-*/.e9lambdxh\n_", max_size=60))
def test_text_of_the_right_characters(text: str) -> None:
    outcome(text)


NUMBERS = ["0", "1", "2", "20", "0.5", "1/3", "1e9", "9" * 40]
NAMES = ["pi", "beta", "lambda", "S1", "S1[1,2]", "S2[2,1]", "x", "__", "if", "for", "not"]
OPENINGS = ["exp(", "log(", "sqrt(", "h20(", "softmax(2,", "abs("]
TOKENS = st.sampled_from([*NUMBERS, *NAMES, *OPENINGS, *"+-*/(),[].:", "**"])


@QUICK
@given(st.lists(TOKENS, max_size=25).map("".join))
def test_runs_of_tokens(text: str) -> None:
    outcome(text)


def formulas(numbers: list[str], functions: list[str], powers: int) -> st.SearchStrategy[str]:
    """Texts that are formulas, though their values may be refused."""
    leaves = st.sampled_from(["S1[1,2]", "S1[2,1]", "S2[1,1]", "beta", "pi", *numbers])

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("({}){}({})".format, inner, st.sampled_from("+-*/"), inner),
            st.builds("({})**{}".format, inner, st.integers(0, powers)),
            st.builds("{}({})".format, st.sampled_from(functions), inner),
            st.builds("-{}".format, inner),
            st.builds("softmax(2, {}, {}, 0)".format, inner, inner),
        )

    return st.recursive(leaves, grow, max_leaves=20)


@QUICK
@given(formulas(["0", "1", "-1", "2", "0.25", "1e3", "17/3", "1e-5"], list(FUNCTIONS), 21))
def test_well_formed_formulas(text: str) -> None:
    expression = outcome(text)
    if expression is not None:
        assert isinstance(evaluate(expression, dict.fromkeys(expression.free_symbols, 0.3)), float)


def softmax_oracle(j: int, *x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.exp(x[j - 1]) / mpmath.fsum(map(mpmath.exp, x))


ORACLE = {
    **{name: getattr(mpmath, name) for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "erf", "pi")},
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "h2": lambda x: (x * x - 1) / mpmath.sqrt(2),
    "h3": lambda x: (x**3 - 3 * x) / mpmath.sqrt(6),
    "softmax": softmax_oracle,
    "beta": mpmath.mpf("1.3"),
    "S1": {(1, 2): mpmath.mpf("0.7"), (2, 1): mpmath.mpf("-0.4")},
    "S2": {(1, 1): mpmath.mpf("0.9")},
}
POINT = {H12: 0.7, H21: -0.4, preactivation_symbol("S2", 1, 1): 0.9, BETA: 1.3}


@QUICK
@given(formulas(["1", "2", "0.25", "17/3"], [f for f in ORACLE if f in FUNCTIONS], 3))
def test_values_agree_with_python_on_mpmath(text: str) -> None:
    expression = outcome(text)
    if expression is None:
        return
    try:
        expected = eval(text, {"__builtins__": {}}, ORACLE)  # a text from this file, read by Python itself
    except (ZeroDivisionError, OverflowError):
        return
    if isinstance(expected, mpmath.mpc) or abs(expected) > 1e12:
        return
    assert evaluate(expression, POINT) == pytest.approx(float(expected), rel=1e-8, abs=1e-8)


# -- functions ----------------------------------------------------------------------------------------


def central_difference(expression: sp.Expr, symbol: sp.Symbol, point: dict[sp.Symbol, sp.Expr]) -> sp.Expr:
    """Derivative to some twenty digits, by values at forty."""
    step = sp.Rational(1, 10**11)
    right, left = ({**point, symbol: point[symbol] + s * step} for s in (1, -1))
    return (expression.subs(right).evalf(60) - expression.subs(left).evalf(60)) / (2 * step)


@pytest.mark.parametrize("at", [-30, -2, 0, 1, 30])
def test_sigmoid(at: int) -> None:
    expression = sigmoid(X[0])
    assert float(expression.subs(X[0], at).evalf()) == pytest.approx(1 / (1 + math.exp(-at)), rel=1e-14)
    expected = central_difference(expression, X[0], {X[0]: sp.Integer(at)})
    assert abs(expression.diff(X[0]).subs(X[0], at).evalf(40) - expected) < 1e-20


@pytest.mark.parametrize("j", [1, 2, 3, 4])
def test_softmax_row(j: int) -> None:
    row = (X[0], 2 * X[1], X[2] - X[0], sp.Rational(1, 3))
    point = {x: sp.Rational(k, 7) for x, k in zip(X, (3, -5, 9), strict=True)}
    expression = softmax_row(j, *row)
    weights = [math.exp(float(x.subs(point))) for x in row]
    assert float(expression.subs(point).evalf()) == pytest.approx(weights[j - 1] / sum(weights), rel=1e-14)
    for x in X:
        expected = central_difference(expression, x, point)
        assert abs(expression.diff(x).subs(point).evalf(40) - expected) < 1e-18
    second = expression.diff(X[0], X[1])
    assert abs(second.subs(point).evalf(40) - central_difference(expression.diff(X[0]), X[1], point)) < 1e-18


def test_softmax_of_one_and_two() -> None:
    assert softmax_row(1, X[0]) == 1
    assert softmax_row(1, X[0], X[1]) == sigmoid(X[0] - X[1])
    assert softmax_row(2, X[0], X[1]) == sigmoid(X[1] - X[0])
    with pytest.raises(ValueError, match="row of 2"):
        softmax(3, X[0])


def test_softmax_does_not_overflow() -> None:
    expression = softmax_row(1, 1000 * X[0], X[1], X[2])
    assert evaluate(expression, {X[0]: 3.0, X[1]: 1.0, X[2]: -1.0}) == 1.0
    assert evaluate(expression, {X[0]: -3.0, X[1]: 1.0, X[2]: -1.0}) == 0.0


def test_hermite_polynomials_are_orthonormal() -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    x = X[0]
    values = np.array([[evaluate(hermite_normalised(n, x), {x: t}) for t in nodes] for n in range(21)])
    gram = (values * weights) @ values.T / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(gram, np.eye(21), atol=1e-10)


def test_hermite_polynomials_are_written_out() -> None:
    x = X[0]
    assert hermite_normalised(1, x) == x
    assert sp.expand(hermite_normalised(2, x) - (x**2 - 1) / sp.sqrt(2)) == 0
    assert sp.expand(hermite_normalised(3, x) - (x**3 - 3 * x) / sp.sqrt(6)) == 0
    assert all(hermite_normalised(n, x).is_polynomial(x) for n in range(21))
    # The derivative lowers the degree: h_n' = sqrt(n) h_{n-1}.
    for n in range(1, 21):
        lower = sp.sqrt(n) * hermite_normalised(n - 1, x)
        assert sp.expand(sp.diff(hermite_normalised(n, x), x) - lower) == 0


def test_evaluate_agrees_with_sympy() -> None:
    text = "exp(-S1[1,2]**2/2)*tanh(beta*S1[2,1]) + softmax(2, S1[1,2], 1, beta) - erf(S1[1,2])/3 + pi**0.5"
    expression = read(text)
    values = {H12: 0.7, H21: -1.3, BETA: 2.0}
    assert evaluate(expression, values) == pytest.approx(float(expression.subs(values).evalf()), rel=1e-14)
    assert math.isnan(evaluate(sp.log(H12), {H12: -1.0}))
    assert math.isnan(evaluate(sp.exp(sp.exp(H12)), {H12: 100.0}))


# -- losses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [2, 3])
def test_softmax_loss_is_the_sum_over_rows_and_columns(tokens: int) -> None:
    generator = np.random.default_rng(tokens)
    h = {name: generator.standard_normal((tokens, tokens)) for name in ("S1", "S2")}
    beta = 1.7
    weights = {name: np.exp(beta * x) for name, x in h.items()}
    attention = {name: w / w.sum(axis=1, keepdims=True) for name, w in weights.items()}
    expression = read(Softmax().formula(tokens, "S1", "S2"), tokens=tokens)
    entries = {
        preactivation_symbol(name, i + 1, j + 1): x[i, j]
        for name, x in h.items()
        for i in range(tokens)
        for j in range(tokens)
    }
    expected = 0.5 * ((attention["S1"] - attention["S2"]) ** 2).sum()
    assert evaluate(expression, {**entries, BETA: beta}) == pytest.approx(expected, rel=1e-13)
    assert len(sp.Add.make_args(expression)) >= tokens  # rows stay apart


def test_scalar_loss() -> None:
    h1, h2 = preactivation_symbol("S1", 2, 1), preactivation_symbol("S2", 2, 1)
    named = read(Scalar("tanh", (2, 1)).formula(2, "S1", "S2"))
    written = read(Scalar("tanh(x)", (2, 1)).formula(2, "S1", "S2"))
    assert named == written == (sp.tanh(h1) - sp.tanh(h2)) ** 2 / 2
    sums = read(Scalar("1 - x", (2, 1)).formula(2, "S1", "S2"))
    assert sp.expand(sums - (h1 - h2) ** 2 / 2) == 0


@pytest.mark.parametrize("activation", ["x) + (x", "S1[1,2]", "relu", "softmax", "x, x", "", None])
def test_scalar_activation_is_complete_in_itself(activation: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(Scalar(activation).formula(2, "S1", "S2"), field="loss.activation")
    assert caught.value.field == "loss.activation"
