"""Figures and the page: what they show, that they stand alone, and that they are the same every time."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import xarray as xr

from tracewords.derive.model import load_model
from tracewords.derive.system import System
from tracewords.equations import equations_html, mathml
from tracewords.errors import ModelError
from tracewords.runtime.bounds import Certificate, Hypothesis
from tracewords.runtime.plot import (
    INK,
    comparison_figure,
    error_figure,
    figure_format,
    save_figure,
    svg_text,
    trajectory_figure,
)
from tracewords.runtime.report import number, validation_report, write_report
from tracewords.runtime.validate import Errors, Rate, Row, Validation

WORDS = ["S1", "S2", "S1.S1", "S1.S2", "S2.S2", "S1.S1.S1", "S1.S1.S2", "S1.S2.S2", "S2.S2.S2"]
LIMIT = 0.5
TIMES = np.linspace(0.0, 0.8, 33)
NAME = 'tied <script>alert("x")</script> & co'
VOID = {"meta", "br", "hr", "img", "link", "input"}


def trajectory(shift: float = 0.0, times: np.ndarray = TIMES, name: str = NAME) -> xr.Dataset:
    """What `solve` returns, with moments of students that move and moments of teachers that do not."""
    slope = np.array([-(1.0 + 0.3 * i) * (0.2 + shift) if "S1" in w else 0.0 for i, w in enumerate(WORDS)])
    moments = 2.0 + slope * times[:, None]
    attrs = {"model": name, "model_digest": "0123abcd", "order": 5, "closure": "zero", "status": "ok"}
    attrs |= {"horizon": LIMIT, "parameter_beta": 1.0, "parameter_kappa": 0.0}
    attrs |= {"tracewords": "0.1.0", "numpy": "2.0.0", "scipy": "1.12.0", "xarray": "2024.1"}
    time = ("time", times, {"units": "4 alpha n / d", "long_name": "t"})
    return xr.Dataset(
        {"moment": (("time", "word"), moments), "loss": ("time", np.exp(-times))},
        {"time": time, "word": WORDS},
        attrs,
    )


def sgd_runs(name: str = NAME) -> xr.Dataset:
    """What `simulate` returns: three runs, the last of which diverged half way."""
    times = TIMES[:17:4]
    rng = np.random.default_rng(0)
    moment = trajectory(times=times)["moment"].values + 0.02 * rng.standard_normal((3, len(times), len(WORDS)))
    moment[2, 3:] = np.nan
    attrs = {
        "model": name,
        "d": 100,
        "batch": 32,
        "kappa": 0.05,
        "alpha": 0.016,
        "dtype": "float32",
        "seed": 7,
    }
    one = (("run", "time"), moment[..., 2])
    return xr.Dataset(
        {"moment": (("run", "time", "word"), moment), "loss": one, "overlap": one},
        {
            "time": ("time", times, {"units": "4 alpha n / d", "long_name": "t"}),
            "word": WORDS,
            "run": [0, 1, 2],
        },
        attrs,
    )


def validation(name: str = NAME) -> Validation:
    """Orders 2 to 4; order 2 has no certificate of its own, order 3 fails before the end."""
    relative = {m: 0.3 * (TIMES + 1e-12) ** m for m in (2, 3, 4)}
    relative[3] = np.where(TIMES > 0.6, np.nan, relative[3])
    paths = {m: trajectory(0.1 / m) for m in (2, 3, 4)}
    paths[3] = paths[3].isel(time=TIMES <= 0.6)
    errors = Errors(
        times=TIMES,
        relative=relative,
        absolute={m: 2 * e for m, e in relative.items()},
        estimates=relative,
        failures={3: "the truncation left its domain at t = 0.62"},
        truth=trajectory(name=name).assign_attrs(closure="operator", order=13, horizon=np.inf),
        trajectories=paths,
        uncertainty=1e-9 * TIMES,
    )
    rows = [
        Row(m, t, 0.6 * t**m, t**m if m > 2 else np.inf, 2 * t**m if m > 2 else np.inf, 0.5 * t**m, m < 4, 1e-10)
        for m in (2, 3, 4)
        for t in (LIMIT / 4, LIMIT / 2)
    ]
    proven = (Hypothesis("operator norms at the start", 4.0, True, "edges of the limiting spectra"),)
    guessed = (Hypothesis("slope of a coupling, largest", np.inf, False, "largest sampled near the path"),)
    certificates = {m: Certificate(m, TIMES, TIMES**m, guessed if m == 4 else proven) for m in (2, 3, 4)}
    words = ["S1.S1", "S1.S2", "S1"]
    table = {
        "difference": dict.fromkeys(words, -1.5e-4),
        "sem": {"S1.S1": 2e-4, "S1.S2": np.nan, "S1": 1e-4},
        "z": {"S1.S1": -0.75, "S1.S2": np.nan, "S1": np.inf},
    }
    facts = {"runs": 2, "time": 0.4, "kappa": 0.05, "words": words, "d": 100, "batch": 32, "order": 9}
    return Validation(
        horizons={"start": LIMIT, "run": 0.45, "integrated": 0.47, "sharp": np.inf},
        errors=errors,
        rows=rows,
        certificates=certificates,
        rate=Rate(0.25, 0.26, 0.5),
        ablation={0.25: {2: 0.12, 3: 0.03, 4: 0.006}, 0.7: {2: 0.281, 3: np.nan, 4: 0.09}},
        sgd={**facts, **table, "paired": table},
        runs=sgd_runs(name),
        theory=trajectory(times=TIMES[:17:4]),
    )


def report(result: Validation, figures: Sequence[tuple[str, str]] | None = None) -> str:
    equations = [("Couplings <b>", f"<p>{mathml('G_{11}')}</p>")]
    title, command = f"Validation of {NAME}", f"tracewords '{NAME}'"
    return validation_report(result, title=title, equations=equations, command=command, figures=figures)


@pytest.fixture(scope="module")
def page() -> str:
    return report(validation())


class Reader(HTMLParser):
    """Tags, attributes and text of a page; complains about tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "td" in self.open:
            self.cells[-1] += data


# -- the page ---------------------------------------------------------------------------------------------


def test_page_nests_and_stands_alone(page: str) -> None:
    reader = Reader(page)
    assert page.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(reader.tags)
    assert not re.search(r"https?:|//|@import|url\((?!#)", page)
    assert all(value.startswith("#") for name, value in reader.attributes if name in ("src", "href"))
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert {"svg", "math", "title", "h1"} <= set(reader.tags)
    assert reader.tags.count("svg") == 2


def test_ids_are_unique_and_every_reference_has_its_target(page: str) -> None:
    ids = [value for name, value in Reader(page).attributes if name == "id"]
    used = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert len(ids) == len(set(ids))
    assert used
    assert used <= set(ids)


def test_names_are_text_never_markup(page: str) -> None:
    assert "<script" not in page
    assert "<b>" not in page
    text = Reader(page).text
    assert text.count(NAME) >= 4  # twice as a title, as the model, in the command
    assert "Couplings <b>" in text


def test_what_is_not_a_number_is_a_dash(page: str) -> None:
    reader = Reader(page)
    assert not re.search(r"\b(nan|inf|None)\b", reader.text, re.IGNORECASE)
    # certificates of order 2 at two times, together and alone; the sharp horizon; the value of a hypothesis;
    # the error of a truncation that failed; in both tables of SGD a standard error and two z
    assert sum(cell == "–" for cell in reader.cells) == 4 + 1 + 1 + 1 + 2 * 3


def test_page_says_what_was_found(page: str) -> None:
    text = Reader(page).text.replace("\u00a0", " ")
    for part in (
        "The bound holds",
        "In all 4 comparisons",
        "2 of these certificates are proven; the others rest on estimates.",
        "In 2 more places there is no finite certificate.",
        "t = 0.125 = T*/4",
        "Order 3: the truncation left its domain",
        "the error is 0.26 times that of the order before",
        "1 run did not get there",
        "0123abcd",
        "0.019",
    ):
        assert part in text


def test_violated_bound_comes_first() -> None:
    result = validation()
    rows = [replace(r, error=10 * r.certificate) if r.order == 4 else r for r in result.rows]
    html = report(replace(result, rows=rows), figures=[])
    assert "The bound is violated" in html
    assert html.count('<tr class="bad">') == 2
    assert html.index("The bound is violated") < html.index("What was computed")


@pytest.mark.parametrize("rows", [[], validation().rows[:2]], ids=["none", "infinite"])
def test_nothing_compared_is_not_called_a_success(rows: list[Row]) -> None:
    html = report(replace(validation(), rows=rows), figures=[])
    assert "Nothing was checked" in html
    assert "The bound holds" not in html


def test_page_without_runs_rate_and_figures() -> None:
    result = replace(validation(), sgd={}, runs=None, theory=None, rate=Rate(0.25, np.nan, 0.5), certificates={})
    html = validation_report(result, title="T", equations=[], command="c", figures=[])
    reader = Reader(html)
    assert "SGD against theory" not in reader.text
    assert "too few errors" in reader.text
    assert "svg" not in reader.tags


def test_same_input_gives_the_same_page_in_another_process(page: str) -> None:
    code = "import hashlib, test_report as t; html = t.report(t.validation())"
    code += "; print(hashlib.sha256(html.encode()).hexdigest())"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(page.encode()).hexdigest()


def test_report_is_written_whole_or_refused_in_one_line(tmp_path: Path, page: str) -> None:
    write_report(tmp_path / "page.html", page)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "page.html" / "inside.html", tmp_path / "folder"):
        with pytest.raises(ModelError) as caught:
            write_report(target, page)
        assert caught.value.field == "report"
        assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "page.html"]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"),
        (0.28, 3, "0.28"),
        (-0.5, 3, "−0.5"),
        (1234.5, 3, "1230"),
        (20, 3, "20"),
        (9.996e-4, 3, "1.00 × 10⁻³"),
        (1.234e-10, 2, "1.2 × 10⁻¹⁰"),
        (2.5e7, 2, "2.5 × 10⁷"),
        (np.nan, 3, "–"),
        (-np.inf, 3, "–"),
        (1e35, 3, "–"),
        (None, 3, "–"),
    ],
)
def test_numbers(value: float, digits: int, text: str) -> None:
    assert number(value, digits).replace("\u00a0", " ") == text


def test_padded_numbers_keep_their_digits() -> None:
    assert [number(x, 3, pad=True) for x in (0.03, 2.0, 0.00320)] == ["0.0300", "2.00", "0.00320"]


# -- equations --------------------------------------------------------------------------------------------


def test_equations_have_every_term_and_count_the_rest() -> None:
    system = System(load_model("tied-softmax"), 4)
    blocks = dict(equations_html(system))
    (heading,) = [h for h in blocks if h.startswith("Equations")]
    root = ElementTree.fromstring(f"<x>{blocks[heading]}</x>")
    rows = [tr for tr in root.iter("tr") if tr.find("td") is not None]
    terms = [len(right) for word, right in system.equations().items() if word.count(".") < 3 and right]
    assert [len(row.findall("td")[2].findall("math")) for row in rows] == terms
    more = sum(word.count(".") >= 3 for word in system.words)
    assert f"{more} more equations up to order 4." in "".join(root.itertext())


def test_mathml_is_plain_and_cannot_break_the_page() -> None:
    assert ElementTree.fromstring(mathml(r"\dot\mu_{12}")).find(".//mover").get("accent") == "true"  # type: ignore[union-attr]
    for bad in ("<script>", r"\left(", r"}{<b>"):
        assert "<script" not in mathml(bad)
        assert "<b>" not in mathml(bad)
    assert "http" not in mathml("x")


# -- figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_files_begin_as_they_should_and_do_not_change(tmp_path: Path, suffix: str, start: bytes) -> None:
    texts = []
    for name in ("a", "b"):
        save_figure(error_figure(validation()), tmp_path / f"{name}{suffix}")
        texts.append((tmp_path / f"{name}{suffix}").read_bytes())
    assert texts[0].startswith(start)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["figure", "figure.jpg", "figure.svgz", ".png"])
def test_other_formats_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"figure: .* accepted: .*\.png, \.svg, \.pdf"):
        save_figure(trajectory_figure(trajectory()), tmp_path / name)
    with pytest.raises(ModelError):
        figure_format(name)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for target in (tmp_path / "file" / "a.png", tmp_path / "folder.png"):
        with pytest.raises(ModelError) as caught:
            save_figure(trajectory_figure(trajectory()), target)
        assert caught.value.field == "figure"
        assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.png"]


def test_trajectory_shows_what_moves() -> None:
    figure = trajectory_figure(trajectory())
    moments, loss = figure.axes
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    assert len(labels) == 6
    assert labels[0] == r"$\mathrm{tr}(S_{1}\,S_{1})$"
    lines = {line.get_label(): line for line in moments.lines}
    np.testing.assert_array_equal(lines[labels[0]].get_ydata(), trajectory()["moment"].sel(word="S1.S1"))
    assert any(np.all(np.asarray(line.get_xdata()) == LIMIT) for line in loss.lines)


def test_runs_show_mean_and_band() -> None:
    runs = sgd_runs()
    moments, _ = trajectory_figure(runs).axes
    label = r"$\mathrm{tr}(S_{1}\,S_{1})$"
    (mean,) = [line for line in moments.lines if line.get_label() == label]
    values = runs["moment"].sel(word="S1.S1").values
    np.testing.assert_allclose(np.asarray(mean.get_ydata(), float), np.nanmean(values, axis=0), rtol=1e-12)
    top = moments.collections[0].get_paths()[0].vertices[:, 1].max()
    sem = np.nanstd(values[:, 0], ddof=1) / np.sqrt(3)
    assert top >= values[:, 0].mean() + 2 * sem - 1e-12


def test_one_time_one_run_and_odd_names_can_be_drawn() -> None:
    single = sgd_runs().isel(run=[0], time=[0])
    odd = trajectory(times=TIMES[:1], name="$x$ 模型").assign_coords(word=[w.replace("S1", "weird_名") for w in WORDS])
    for data in (single, odd, trajectory(times=np.zeros(1))):
        assert svg_text(trajectory_figure(data)).startswith("<svg")


def test_comparison_has_truth_truncations_and_runs() -> None:
    axes = comparison_figure(validation()).axes
    assert [a.get_title(loc="left").split("=")[0] for a in axes] == ["$q_{11}", "$q_{12}", "$t_{1}"]
    for axis in axes:
        names = axis.get_legend_handles_labels()[1]
        assert {"truth", "M = 2", "M = 3", "M = 4", "SGD, ± 2 s.e."} <= set(names)
    bare = comparison_figure(replace(validation(), runs=None, theory=None)).axes
    assert "SGD, ± 2 s.e." not in bare[0].get_legend_handles_labels()[1]


def test_infinite_certificates_are_absent_from_the_figure() -> None:
    by_order, by_time = error_figure(validation()).axes
    certificates = [line for line in by_order.lines if line.get_marker() == "o" and line.get_markersize() == 8]
    assert len(certificates) == 2
    for line in certificates:
        assert np.isnan(line.get_ydata()[0])
        assert np.isfinite(line.get_ydata()[1:]).all()
    labels = [t.get_text() for t in by_order.get_legend().get_texts()]
    assert r"fit $\propto 0.260^M$" in labels
    crosses = [line for line in by_time.lines if line.get_marker() == "x"]
    last = TIMES[np.isfinite(validation().errors.relative[3])][-1]
    assert [float(line.get_xdata()[0]) for line in crosses] == [last]


def test_svg_takes_the_colour_of_the_page_and_the_users_style_does_not_matter() -> None:
    import matplotlib

    expected = svg_text(error_figure(validation()))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none"}):
        assert svg_text(error_figure(validation())) == expected
    assert "currentColor" in expected
    assert INK not in expected
    assert "<style" not in expected
    root = ElementTree.fromstring(expected)
    assert root.get("role") == "img"
    assert root.get("aria-label")
