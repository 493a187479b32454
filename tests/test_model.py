"""Models: files, presets, round trips, digests, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tomllib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracewords.derive.formula import preactivation_symbol
from tracewords.derive.losses import Formula, Scalar, Softmax
from tracewords.derive.model import (
    MAX_BYTES,
    Model,
    load_model,
    preset_names,
    tied_scalar,
    tied_softmax,
)
from tracewords.derive.parametrisation import LAWS, Direct, Tied, Untied, exact, plain
from tracewords.errors import ModelError
from tracewords.runtime.initial import law_from_data

FILES = Path(__file__).parent / "models"
VALID = sorted((FILES / "valid").glob("*.toml"))
INVALID = sorted((FILES / "invalid").glob("*.toml"))
PRESETS = (
    *(f"direct-h{n}" for n in (1, 2, 3)),
    "head-softmax",
    *(f"tied-h{n}" for n in (1, 2, 3)),
    "tied-softmax",
    *(f"untied-h{n}" for n in (1, 2, 3)),
    "untied-mean-h1",
    "untied-mean-h2",
)


def refusal(call: object, *args: object, **options: object) -> ModelError:
    """The error of a call, which is one line."""
    with pytest.raises(ModelError) as caught:
        call(*args, **options)  # type: ignore[operator]
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return caught.value


# -- files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [*PRESETS, *VALID], ids=lambda s: getattr(s, "stem", s))
def test_loads_and_round_trips(source: str | Path) -> None:
    model = load_model(source)
    copies = [
        Model.from_dict(model.to_dict()),
        Model.from_dict(json.loads(json.dumps(model.to_dict()))),
        Model.from_dict(tomllib.loads(model.to_toml())),
        pickle.loads(pickle.dumps(model)),
        model.with_parameters(),
        model.with_rank_ratio({}),
    ]
    for copy in copies:
        assert copy == model
        assert copy.digest == model.digest
        assert hash(copy) == hash(model)
        assert copy.loss_expression == model.loss_expression
    assert model.digest in str(model)
    assert {name for name, _, _ in model.preactivations} <= set(model.letters)


@pytest.mark.parametrize("path", INVALID, ids=lambda p: p.stem)
def test_refuses_with_the_field_at_fault(path: Path) -> None:
    expected = path.read_text().splitlines()[0].removeprefix("# field: ")
    assert refusal(load_model, path).field == expected


def test_a_file_can_be_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    model = load_model("tied-softmax")
    path.write_text(model.to_toml())
    assert load_model(path) == load_model(str(path)) == model


def test_missing_models_list_the_presets(tmp_path: Path) -> None:
    directory = tmp_path / "folder.toml"
    directory.mkdir()
    names = ["tied-h4", "", "..", "../models/tied-h1", "no.toml", "a\0.toml", 3]
    for name in (*names, tmp_path / "no.toml", directory):
        error = refusal(load_model, name)
        assert error.field == "model"
        assert all(preset in error.accepted for preset in PRESETS)
    assert preset_names() == PRESETS


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"x=" + b"[" * 10**5, b"#" * (MAX_BYTES + 1), b"a=1\na=2", b"x=" + b"1" * 5000, b"\x00"],
    ids=["bytes", "deep", "long", "twice", "digits", "zero"],
)
def test_files_that_are_no_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert refusal(load_model, path).field == "model"


# -- python and files say the same --------------------------------------------------------------------


def test_presets_are_the_python_models() -> None:
    assert load_model("tied-softmax").digest == tied_softmax().digest == tied_softmax(2, 1.0).digest
    for n in (1, 2, 3):
        assert load_model(f"tied-h{n}").digest == tied_scalar(f"h{n}").digest


def test_presets_in_the_symbols_of_the_loss() -> None:
    h = {(k, i, j): preactivation_symbol(f"S{k}", i, j) for k in (1, 2) for i in (1, 2) for j in (1, 2)}
    x, y = h[1, 1, 2], h[2, 1, 2]
    assert load_model("tied-h1").loss_expression == (x - y) ** 2 / 2
    expected = ((x**2 - 1) / sp.sqrt(2) - (y**2 - 1) / sp.sqrt(2)) ** 2 / 2
    assert sp.expand(load_model("tied-h2").loss_expression - expected) == 0
    softmax = load_model("tied-softmax")
    assert softmax.letters == ("S1", "S2")
    assert softmax.preactivations == tuple((f"S{k}", i, j) for k, i, j in h)
    assert softmax.covariance == ((1, 0), (0, 1))
    assert dict(softmax.parameters) == {"beta": 1.0, "gamma": 0.0, "kappa": 0.0}
    assert softmax.students["S1"].initial_data() == ("marchenko-pastur", {"ratio": 1.0})


def test_the_digest_sees_content_only() -> None:
    model = tied_softmax(3, covariance=np.array([[1, 0.1, 0], [0.1, 1, 0], [0, 0, 2.0]]), rank_ratio=0.5)
    matrices = ({"S1": Tied(Fraction(1, 2))}, {"S2": Tied("0.5", ("marchenko-pastur", {"ratio": 0.5}))})
    rows = [["1", "0.1", 0], [Fraction(1, 10), 1.0, 0], [0, 0, sp.Integer(2)]]
    spaced = model.formula.replace("+", "\n + ")
    same = Model("other", rows, *matrices, Formula(spaced), {"beta": 1}, description="Another text.")
    assert same.digest == model.digest
    variants = [
        model.with_parameters(beta=2),
        model.with_parameters(gamma=0.1),
        model.with_parameters(kappa=0.1),
        model.with_covariance(np.eye(3)),
        model.with_rank_ratio(1),
        model.with_rank_ratio({"S2": 1}),
        tied_softmax(3, covariance=model.covariance, rank_ratio=0.5, teacher_rank_ratio=0.25),
        Model("m", model.covariance, *matrices, Formula(f"2*({model.formula})"), {"beta": 1}),
        Model("m", model.covariance, {"S1": Tied(0.5, "identity")}, matrices[1], Softmax()),
        Model("m", model.covariance, {"S1": Tied(0.5, "zero")}, matrices[1], Softmax()),
    ]
    assert len({model.digest, *(v.digest for v in variants)}) == 1 + len(variants)


def test_the_order_of_matrices_is_content() -> None:
    teachers = {"S3": Tied()}
    one, two = Tied(1), Tied(2)
    text = "(S1[1,2] + S2[1,2] - S3[1,2])**2"
    first = Model("m", None, {"S1": one, "S2": two}, teachers, text, tokens=2)
    second = Model("m", None, {"S2": two, "S1": one}, teachers, text, tokens=2)
    assert first.letters == ("S1", "S2", "S3")
    assert first != second
    assert first.digest != second.digest


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tracewords.derive.model import load_model; m = load_model('tied-softmax');"
        "print(m.digest, m.preactivations)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1")
    }
    model = load_model("tied-softmax")
    assert outputs == {f"{model.digest} {model.preactivations}\n"}


# -- variants -----------------------------------------------------------------------------------------


def test_variants() -> None:
    model = load_model("tied-softmax")
    assert model.with_parameters(beta=2).parameters["beta"] == 2.0
    assert model.with_covariance(np.eye(3)).tokens == 3
    wide = model.with_rank_ratio("1/3")
    assert wide.students["S1"].law == ("marchenko-pastur", {"ratio": Fraction(1, 3)})
    assert wide.teachers["S2"].rank_ratio == 1
    assert refusal(model.with_parameters, bta=2).field == "parameters.bta"
    assert refusal(model.with_parameters, beta=-1).field == "parameters.beta"
    assert refusal(model.with_rank_ratio, {"S3": 1}).field == "rank_ratio"
    assert refusal(model.with_rank_ratio, -1).field == "rank_ratio"
    assert refusal(model.with_covariance, [[1, 2], [2, 1]]).field == "covariance"


def test_an_explicit_law_stays_when_the_rank_ratio_changes() -> None:
    law = ("marchenko-pastur", {"scale": 2})
    model = Model("m", [[1]], {"S1": Tied(1, law)}, {}, "h2(S1[1,1])")
    assert model.with_rank_ratio(3).students["S1"].law[1] == {"ratio": 3, "scale": 2}
    fixed = Model("m", [[1]], {"S1": Tied(1, ("eigenvalues", {"values": [1, 2]}))}, {}, "h2(S1[1,1])")
    assert fixed.with_rank_ratio(3).students["S1"].initial_data() == ("eigenvalues", {"values": [1.0, 2.0]})


def test_a_model_does_not_change() -> None:
    model = load_model("tied-softmax")
    with pytest.raises(AttributeError):
        model.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        model.students["S1"] = Tied(2)  # type: ignore[index]
    given = {"S1": Tied()}
    copy = Model("m", [[1]], given, {}, "h2(S1[1,1])")
    given["S2"] = Tied()
    assert copy.letters == ("S1",)


def test_many_tokens_are_read_in_reasonable_time() -> None:
    model = tied_softmax(8)
    assert len(model.preactivations) == 128
    assert refusal(tied_softmax, 17).field == "tokens"


# -- numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, Fraction(1, 10)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.int32(3), Fraction(3)),
        ("-1/3", Fraction(-1, 3)),
        ("0.25", Fraction(1, 4)),
        (sp.Rational(2, 7), Fraction(2, 7)),
        (1e-20, Fraction(1, 10**20)),
        (1e-100, Fraction(1, 10**100)),
        (2.0**300, Fraction(repr(2.0**300))),
        (Decimal("0.1234567890123456789012345"), Fraction(1234567890123456789012345, 10**25)),
    ],
)
def test_numbers_are_exact_as_written(value: object, expected: Fraction) -> None:
    result = exact(value, "field")
    assert result == expected == exact(plain(result), "field")


TEXTS = ["", "1/0", "1e5", "x", "1" * 100]
NUMBERS = [float("nan"), float("inf"), 1e-200, 10**101, 10**5000, Fraction(1, 3**99), Decimal("sNaN")]
BAD: list[object] = [*NUMBERS, *TEXTS, True, None, [], 1j]


@pytest.mark.parametrize("value", BAD, ids=lambda v: type(v).__name__)
def test_what_is_no_number(value: object) -> None:
    assert refusal(exact, value, "field").field == "field"
    assert refusal(Tied, value).field == "rank_ratio"
    assert refusal(tied_softmax, beta=value).field == "parameters.beta"
    assert refusal(tied_softmax, covariance=[[1, value], [value, 1]]).field == "covariance[1,2]"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"tokens": True}, "tokens"),
        ({"tokens": 2.0}, "tokens"),
        ({"covariance": "text"}, "covariance"),
        ({"covariance": [1, 2]}, "covariance"),
        ({"covariance": np.ones((2, 2, 2))}, "covariance[1,1]"),
        ({"covariance": np.eye(65)}, "covariance"),
        ({"covariance": []}, "covariance"),
        ({"students": {}}, "students"),
        ({"students": ["S1"]}, "students"),
        ({"students": {"S1": "tied"}}, "students.S1"),
        ({"students": {"S 1": Tied()}}, "students.'S 1'"),
        ({"students": {"_S": Tied()}}, "students._S"),
        ({"students": {"x": Tied()}}, "students.x"),
        ({"students": {3: Tied()}}, "students.3"),
        ({"loss": None}, "loss"),
        ({"loss": "relu(S1[1,2])"}, "loss.formula"),
        ({"loss": Softmax}, "loss"),
        ({"loss": Softmax("S1")}, "parameters.S1"),
        ({"loss": Softmax("exp")}, "loss.beta"),
        ({"loss": Scalar("h2", (1, 5))}, "loss.entry"),
        ({"loss": "S1[1,2]/(width - 1)", "parameters": {"width": 1}}, "loss.formula"),
        ({"parameters": {"E0_1": 1}}, "parameters.E0_1"),
        ({"parameters": {"beta": "large"}}, "parameters.beta"),
        ({"parameters": None}, "parameters"),
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"description": None}, "description"),
    ],
)
def test_refuses_arguments(arguments: dict[str, object], where: str) -> None:
    good = {"name": "m", "covariance": np.eye(2), "students": {"S1": Tied()}, "teachers": {"S2": Tied()}}
    assert refusal(Model, **{**good, "loss": Softmax(), **arguments}).field == where


@pytest.mark.parametrize(
    "initial",
    [
        *(3, "cauchy", {"law": 1}, {"law": "eigenvalues"}),
        ("semicircle",),
        *(("semicircle", v) for v in (1, {"radius": 1}, {"mean": [1]}, {"scale": 0, "a\nb": 1})),
        *(("eigenvalues", {"values": v}) for v in (1, [], ["a"], [float("nan")])),
        ("marchenko-pastur", {"ratio": 2}),
    ],
)
def test_refuses_initial_laws(initial: object) -> None:
    assert refusal(Tied, 1, initial).field.startswith("initial")


EXAMPLES: dict[str, dict[str, object]] = {
    "semicircle": {"mean": 2, "variance": 0.5},
    "eigenvalues": {"values": [0, 0.5, 2]},
}


@pytest.mark.parametrize("name", LAWS)
def test_the_numerical_side_knows_every_law(name: str) -> None:
    kind = {"ginibre": Direct, "ginibre-product": Untied}.get(name, Tied)
    shift = {} if kind is not Tied else {"shift": 1}
    data = kind(1, (name, {**EXAMPLES.get(name, {}), "scale": 2, **shift})).initial_data()
    assert law_from_data("S1", data, kind.kind).name == name
    json.dumps(data)


# -- fuzzing ------------------------------------------------------------------------------------------

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
DATA = st.recursive(
    SCALARS,
    lambda x: st.one_of(st.lists(x, max_size=3), st.dictionaries(st.text(max_size=8), x, max_size=3)),
    max_leaves=6,
)
KEYS = ["name", "tokens", "covariance", "description", "loss", "students", "teachers", "parameters", "other"]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(KEYS), st.sampled_from(["", "S1", "kind", "beta", "entry"]), DATA)
def test_any_data_is_a_model_or_refused(key: str, inner: str, value: object) -> None:
    data = load_model("tied-softmax").to_dict()
    data[key] = {**data[key], inner: value} if inner and isinstance(data.get(key), dict) else value
    try:
        model = Model.from_dict(data)
    except ModelError as error:
        message = str(error)
    else:
        message = str(Model.from_dict(tomllib.loads(model.to_toml())) == model)
    assert message == "True" or "cannot be used" in message


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=40))
def test_any_description_round_trips(text: str) -> None:
    model = Model("m", [[1]], {"S1": Tied()}, {}, "h2(S1[1,1])", description=text)
    assert Model.from_dict(tomllib.loads(model.to_toml())) == model
