"""Figures of trajectories and of validations, for files and for the report.

One narrow column, panels above each other: readable at the width of a phone.  Colours keep apart for
colour-blind readers, with the same contrast on white and on dark: in a page, axes take the text's colour.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tracewords.errors import ModelError
from tracewords.files import write_bytes
from tracewords.runtime.store import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracewords.runtime.validate import Validation

Floats = NDArray[np.float64]
FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
WIDTH, PANEL = 4.4, 2.2  # inches
DPI = 200
INK = "#24292f"  # axes, text and the truth; the colour of the text around it where a figure is put in a page
SGD = "#d55e00"
RAMP = ("#b8478f", "#7a68cf", "#2b80c0", "#0f8f7a")  # orders and times, from low to high
TURNS = ("-", (0, (4, 1.2)))  # of neighbours
DASHES = ((0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (5, 2)), (0, (9, 2)))
KINDS: dict[str, dict[str, Any]] = {
    "error": {"marker": "o", "ms": 4},
    "certificate": {"ls": (0, (4, 2)), "marker": "o", "ms": 8, "mfc": "none", "lw": 1},
    "from that order alone": {"ls": (0, (1, 1.5)), "marker": "^", "ms": 3.5, "lw": 1},
}
MOST_WORDS, MOST_PANELS, MOST_RUNS = 6, 3, 50
COMPARED = (2, 3, 5, 8)
FLOOR = 1e-12  # relative errors are not shown below
STYLE = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib: the same figure on any machine
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "grid.alpha": 0.15,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "tracewords",
    "svg.fonttype": "path",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
}


@contextmanager
def _style() -> Iterator[None]:
    """Settings of these figures alone, whatever the user's are."""
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


# -- figures ----------------------------------------------------------------------------------------------


def trajectory_figure(dataset: xr.Dataset) -> Figure:
    """Moments and loss against time.

    Parameters
    ----------
    dataset : Dataset
        From `solve`, or runs from `simulate`: then the mean over runs, with a band of two standard errors.
    """
    runs = "run" in dataset.dims
    with _style():
        figure, (moments, loss) = _panels(2, f"Moments and loss of {dataset.attrs.get('model', 'a model')}")
        words = _moving(dataset, MOST_WORDS)
        draw = _draw_runs if runs else _draw_path
        for i, (word, colour) in enumerate(zip(words, _colours(len(words)), strict=True)):
            draw(moments, dataset["moment"].sel(word=word), color=colour, label=_trace(word), ls=TURNS[i % 2])
        draw(loss, dataset["loss"], color=INK)
        moments.set_ylabel("moments, tr = Tr / d")
        loss.set_ylabel("loss" if not runs else "batch loss")
        _mark_horizon([moments, loss], dataset.attrs.get("horizon", np.nan), dataset["time"].values)
        loss.set_xlabel(_time_label(dataset), parse_math=False)
        moments.set_title(_title(dataset, runs), loc="left", parse_math=False)
        _legend_above(figure, [moments])
    return figure


def comparison_figure(validation: Validation) -> Figure:
    """Order parameters and first traces against time: SGD, truth, truncations.

    Parameters
    ----------
    validation : Validation
    """
    errors, runs, theory = validation.errors, validation.runs, validation.theory
    words = _moving(errors.truth, MOST_PANELS)
    letters = _letters(errors.truth)
    orders = sorted(errors.trajectories)
    colours = dict(zip(orders, _colours(len(orders)), strict=True))
    shown = [m for m in COMPARED if m in colours] if len(colours) > len(COMPARED) else orders
    with _style():
        label = f"Order parameters of {errors.truth.attrs.get('model', 'a model')}: SGD, truth, truncations"
        figure, axes = _panels(len(words), label)
        for axis, word in zip(axes, words, strict=True):
            truth = errors.truth["moment"].sel(word=word)
            axis.plot(truth["time"], truth, color=INK, lw=2.4, alpha=0.55, label="truth")
            for order, dashes in zip(shown, DASHES[-len(shown) :], strict=False):
                path = errors.trajectories[order]["moment"].sel(word=word)
                axis.plot(path["time"], path, color=colours[order], ls=dashes, label=f"M = {order}")
            seen = [truth.values]
            if runs is not None and word in runs["word"].values:
                seen += _draw_sgd(axis, runs["moment"].sel(word=word), theory, word)
            _limit(axis, np.concatenate([np.ravel(x) for x in seen]))
            axis.set_title(_overlap(word, letters), loc="left")
        _mark_horizon(axes, validation.horizons.get("start", np.nan), errors.times)
        axes[-1].set_xlabel(_time_label(errors.truth), parse_math=False)
        _legend_above(figure, axes)
    return figure


def error_figure(validation: Validation) -> Figure:
    """Error and certificate against the order, and the error over time for each order.

    Parameters
    ----------
    validation : Validation
    """
    with _style():
        label = "Truncation error: against the order with its certificate, and over time"
        figure, (by_order, by_time) = _panels(2, label, [3.0, 2.8])
        _error_by_order(by_order, validation)
        _error_by_time(by_time, validation)
    return figure


def _error_by_order(axis: Axes, validation: Validation) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    limit = validation.horizons.get("start", np.nan)
    times = sorted({row.time for row in validation.rows})
    handles = []
    for time, colour in zip(times, _colours(len(times)), strict=True):
        rows = sorted((r for r in validation.rows if r.time == time), key=lambda r: r.order)
        lines = ([r.error for r in rows], [r.certificate for r in rows], [r.own for r in rows])
        for values, look in zip(lines, KINDS.values(), strict=True):
            axis.plot([r.order for r in rows], _positive(values), color=colour, **look)
        handles.append(Line2D([], [], color=colour, label=f"t = {time:.3g}{part_of_horizon(time, limit)}"))
    rate, errors = validation.rate, validation.errors
    i = int(np.argmin(np.abs(errors.times - rate.time)))
    known = 10 * float(np.broadcast_to(errors.uncertainty, errors.times.shape)[i])
    at = {m: e[i] for m, e in sorted(errors.absolute.items()) if np.isfinite(e[i]) and e[i] > known}
    if np.isfinite(rate.measured) and rate.measured > 0 and at:
        # through the middle of the points: the fit's slope, its height left to the eye
        orders = np.array(list(at), dtype=float)
        height = np.mean(np.log(list(at.values())) - orders * np.log(rate.measured))
        label = rf"fit $\propto {rate.measured:.3f}^M$"
        line = np.exp(height) * rate.measured**orders
        handles += axis.plot(orders, line, color=INK, lw=5, alpha=0.18, label=label, zorder=1)
    handles += [Line2D([], [], color=INK, label=name, **look) for name, look in KINDS.items()]
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("order M")
    axis.set_ylabel("error of the order parameters")
    axis.set_title("worst over [0, t]", loc="left")
    axis.legend(handles=handles, ncols=2, loc="upper center", bbox_to_anchor=(0.45, -0.2))


def _error_by_time(axis: Axes, validation: Validation) -> None:
    errors = validation.errors
    orders = sorted(errors.relative)
    top = 0.0
    for order, colour in zip(orders, _colours(len(orders)), strict=True):
        values = _positive(errors.relative[order], FLOOR)
        good = np.flatnonzero(np.isfinite(values))
        axis.plot(errors.times, values, color=colour, ls=TURNS[order % 2], label=f"M = {order}")
        if len(good) and order in errors.failures:
            axis.plot(errors.times[good[-1]], values[good[-1]], color=colour, marker="x", ms=7, mew=2)
        top = max(top, float(np.nanmax(values))) if len(good) else top
    truth = _moving(errors.truth, 1)
    size = np.abs(errors.truth["moment"].sel(word=truth[0]).values)
    floor = np.maximum(np.broadcast_to(errors.uncertainty, size.shape) / np.maximum(size, 1e-300), FLOOR)
    axis.fill_between(errors.times, FLOOR, floor, color=INK, alpha=0.18, lw=0, label="not known")
    axis.set_yscale("log")
    axis.set_ylim(FLOOR, max(10.0 * min(top, 10.0), 10 * FLOOR))
    axis.set_xlim(float(errors.times[0]), float(errors.times[-1]) or None)
    _mark_horizon([axis], validation.horizons.get("start", np.nan), errors.times)
    axis.set_xlabel(_time_label(errors.truth), parse_math=False)
    axis.set_ylabel("relative error, worst over [0, t]")
    axis.set_title(_overlap(truth[0], _letters(errors.truth)), loc="left")
    axis.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.2), columnspacing=1.2)


# -- files and pages --------------------------------------------------------------------------------------


def figure_format(path: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for; ModelError names those that can be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ModelError("figure", str(path), f"a file name that ends in {', '.join(FORMATS)}")
    return FORMATS[suffix]


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as .png (200 dpi), .svg or .pdf, complete or not at all; same figure, same bytes."""
    write_bytes(Path(path), _render(figure, figure_format(path)), "figure")


def _render(figure: Figure, kind: str, **options: Any) -> bytes:
    dateless = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=dateless, **options)
    return buffer.getvalue()


def svg_text(figure: Figure) -> str:
    """A figure as an ``<svg>`` element to put in an HTML page.

    It has no background, takes the colour of the text around it, and names nothing outside itself.  Its ids
    are its own, so that several figures can be in one page.  Glyphs are paths: it needs no font.
    """
    raw = _render(figure, "svg", transparent=True).decode("utf-8")
    root = ElementTree.fromstring(raw)  # leaves out the prolog and all comments
    prefix = "f" + hashlib.sha256(raw.encode()).hexdigest()[:8] + "-"
    for parent in list(root.iter()):
        for child in [c for c in parent if _local(str(c.tag)) in ("metadata", "style")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = _local(str(element.tag))
        element.attrib = {_local(k): _rewritten(_local(k), v, prefix) for k, v in element.attrib.items()}
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": str(figure.get_label())}
    root.attrib["style"] = "stroke-linejoin: round"  # said by the style element, for the whole page
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _rewritten(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "href" and value.startswith("#"):
        return "#" + prefix + value[1:]
    return value.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor")


# -- pieces -----------------------------------------------------------------------------------------------


def _panels(count: int, label: str, heights: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    sizes = list(heights or [PANEL] * count)
    figure = Figure(figsize=(WIDTH, sum(sizes) + 0.6), layout="constrained", label=label)
    axes = list(figure.subplots(count, 1, squeeze=False, gridspec_kw={"height_ratios": sizes})[:, 0])
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(6))
    return figure, axes


def _colours(count: int) -> list[str]:
    """Colours in the order of the ramp, evenly spread."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    if count == 1:
        return [RAMP[2]]
    ramp = LinearSegmentedColormap.from_list("ramp", list(RAMP))
    return [to_hex(ramp(x)) for x in np.linspace(0.0, 1.0, count)]


def _draw_path(axis: Axes, values: xr.DataArray, **look: Any) -> None:
    axis.plot(values["time"], values, marker="o" if values.sizes["time"] < 2 else None, **look)


def _draw_runs(axis: Axes, values: xr.DataArray, **look: Any) -> None:
    time, colour = values["time"].values, look["color"]
    table = values.transpose("run", "time").values
    for row in table[:MOST_RUNS]:
        axis.plot(time, row, color=colour, lw=0.6, alpha=0.35)
    mean, sem = _mean(table)
    axis.fill_between(time, mean - 2 * sem, mean + 2 * sem, color=colour, alpha=0.25, lw=0)
    axis.plot(time, mean, marker="o", ms=3, **look)


def _draw_sgd(axis: Axes, runs: xr.DataArray, theory: xr.Dataset | None, word: str) -> list[Floats]:
    """Runs and the theory at their learning rate; what the axis has to show."""
    time = runs["time"].values
    mean, sem = _mean(runs.transpose("run", "time").values)
    axis.fill_between(time, mean - 2 * sem, mean + 2 * sem, color=SGD, alpha=0.3, lw=0)
    axis.plot(time, mean, color=SGD, ls="none", marker="o", ms=4, label="SGD, ± 2 s.e.")
    if theory is not None and word in theory["word"].values:
        noisy = theory["moment"].sel(word=word)
        axis.plot(noisy["time"], noisy, color=SGD, lw=1, label="with loop terms")
    return [mean, (mean - 2 * sem)[np.isfinite(sem)], (mean + 2 * sem)[np.isfinite(sem)]]


def _mean(table: Floats) -> tuple[Floats, Floats]:
    """Mean and standard error (time,) over the runs (run, time) that got there."""
    loss = xr.DataArray(table, dims=("run", "time"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        short = summary(xr.Dataset({"loss": loss, "moment": loss, "overlap": loss}))
    return short["loss_mean"].values, short["loss_sem"].values


def _limit(axis: Axes, values: Floats) -> None:
    """Room for these values; truncations that run away leave the frame."""
    values = values[np.isfinite(values)]
    if len(values):
        low, high = float(values.min()), float(values.max())
        room = 0.25 * (high - low) or 0.1 * abs(high) or 1.0
        axis.set_ylim(low - room, high + room)


def _mark_horizon(axes: Sequence[Axes], limit: float, times: Floats) -> None:
    """A line at T*, where it is on the axis."""
    if not len(times) or not (np.isfinite(limit) and 0 < limit <= 1.02 * times[-1]):
        return
    for axis in axes:
        axis.axvline(limit, color=INK, lw=1, ls=(0, (3, 2)), zorder=0.5)
    axes[-1].text(limit, 0.02, " T*", transform=axes[-1].get_xaxis_transform())


def _legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, of everything that occurs in any."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries, loc="outside upper center", ncols=3, columnspacing=1.2)


def _positive(values: Sequence[float] | Floats, least: float = 0.0) -> Floats:
    """For a logarithmic axis: NaN where there is nothing to show."""
    array = np.asarray(values, dtype=float)
    return np.where((array > least) & (array < 1e30), array, np.nan)


# -- names ------------------------------------------------------------------------------------------------


def _letters(dataset: xr.Dataset) -> list[str]:
    return [str(w) for w in dataset["word"].values if "." not in str(w)]


def _moving(dataset: xr.Dataset, most: int) -> list[str]:
    """The first words that change: overlaps, then single traces, then longer ones."""
    turn = {1: 0, 0: 1}  # by the number of dots
    words = sorted(map(str, dataset["word"].values), key=lambda w: turn.get(w.count("."), w.count(".")))
    values = dataset["moment"].sel(word=words).transpose(..., "time", "word").values
    table = np.nan_to_num(values - values[..., :1, :]).reshape(-1, len(words))
    size = np.nan_to_num(np.abs(values)).reshape(-1, len(words)).max(axis=0, initial=0.0)
    moving = np.abs(table).max(axis=0, initial=0.0) > 1e-9 * size
    return ([w for w, yes in zip(words, moving, strict=True) if yes] or words)[:most]


def _trace(word: str) -> str:
    """``S1.S2`` as mathtext for tr(S_1 S_2)."""
    return r"$\mathrm{tr}(" + r"\,".join(_letter(x) for x in word.split(".")) + ")$"


def _letter(name: str) -> str:
    stem = name.rstrip("'")
    match = re.fullmatch(r"([A-Za-z])(\d*)", stem)
    if match:
        text = match[1] + (f"_{{{match[2]}}}" if match[2] else "")
    else:
        # names are identifiers: of what mathtext reads as commands they can have the underscore alone
        text = r"\mathrm{" + re.sub(r"[^\w]", "", stem).replace("_", r"\_") + "}"
    return text + (r"^{\top}" if name.endswith("'") else "")


def _overlap(word: str, letters: Sequence[str]) -> str:
    """The name q_kl or t_k of a word of two or one letters, with what it is."""
    parts = [p.rstrip("'") for p in word.split(".")]
    if len(parts) > 2 or any(p not in letters for p in parts) or any("'" in w for w in letters):
        return _trace(word)
    index = ("," if len(letters) > 9 else "").join(str(letters.index(p) + 1) for p in parts)
    return rf"${'q' if len(parts) == 2 else 't'}_{{{index}}}=$ {_trace(word)}"


def _time_label(dataset: xr.Dataset) -> str:
    attrs: Mapping[str, Any] = dataset["time"].attrs
    name, units = str(attrs.get("long_name", "t")), str(attrs.get("units", ""))
    return f"{name} = {units}".replace("alpha", "α") if units else name


def _title(dataset: xr.Dataset, runs: bool) -> str:
    attrs = dataset.attrs
    name = str(attrs.get("model", "model"))[:40]
    if runs:
        return f"{name}: SGD, d = {attrs.get('d')}, B = {attrs.get('batch')}, {dataset.sizes['run']} runs"
    good = attrs.get("status", "ok") == "ok"
    status = "" if good else f" ({attrs['status']} at {attrs.get('reached', np.nan):.3g})"
    return f"{name}, order {attrs.get('order')}, closure {attrs.get('closure')}{status}"


def part_of_horizon(time: float, limit: float) -> str:
    """`` = T*/4`` where a time is a whole fraction of the horizon."""
    if not (np.isfinite(limit) and limit > 0 and time > 0):
        return ""
    ratio = limit / time
    whole = round(ratio)
    return f" = T*/{whole}" if whole > 1 and abs(ratio - whole) < 1e-6 * whole else ""
