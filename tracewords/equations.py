"""The equations of a model as MathML, for a page.

Each equation is a row of a table and each of its terms a formula of its own: left sides line up, and a narrow
window breaks right sides between terms, which it cannot do inside a formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape, unescape
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from tracewords.derive.system import System

SHOWN_ORDER = 3
SHOWN_EQUATIONS = 40
OPENING, CLOSING = "({[", ")}]"
DOT = "\u02d9"


def equations_html(system: System) -> list[tuple[str, str]]:
    """Couplings and hierarchy as blocks of HTML with MathML in it.

    Parameters
    ----------
    system : System

    Returns
    -------
    list of (heading, block)
        Headings are plain text; blocks are safe to put in a page as they are.  Of a large system the
        equations up to order 3 are there, and a line that says how many more it has.
    """
    from tracewords.derive.latex import coupling_lines, equation_lines, word_latex

    letters = [rf"S_{{{i + 1}}}" for i in range(len(system.model.letters))]
    names = ", ".join(
        f"{mathml(s)} = <code>{escape(n)}</code>" for s, n in zip(letters, system.model.letters, strict=True)
    )
    time = escape(f"{system.flow.time} = {system.flow.time_unit}".replace("alpha", "α").replace(" ", "\u00a0"))
    example = word_latex(system, ".".join(system.model.letters[:2]))
    meaning = rf"{example} = \mathrm{{tr}}({''.join(letters[:2])})"
    legend = f'<p class="note">{mathml(meaning)} and so on, tr = Tr/d; {names}; time {time}.</p>'
    definitions = [(left, _terms(right)) for left, right in coupling_lines(system)]
    shown: list[tuple[str, list[str]]] = []
    still, more = [], 0
    for word, (left, pieces) in zip(system.words, equation_lines(system), strict=True):
        if word.count(".") >= SHOWN_ORDER or len(shown) >= SHOWN_EQUATIONS:
            more += 1
        elif pieces:
            shown.append((left, pieces))
        else:
            still.append(word_latex(system, word))
    notes = ""
    if still:
        notes += f'<p class="note">Constant: {", ".join(map(mathml, still))}.</p>'
    if more:
        notes += f'<p class="note">{more} more equations up to order {system.order}.</p>'
    reach = min(SHOWN_ORDER, system.order)
    return [
        ("Couplings", _table(definitions)),
        (f"Equations of the moments up to order {reach}", legend + _table(shown) + notes),
    ]


def mathml(latex: str) -> str:
    """One formula as a ``<math>`` element; as LaTeX text where it cannot be converted."""
    from latex2mathml.converter import convert_to_element

    try:
        element = convert_to_element(latex)
    except Exception:  # the converter raises almost anything at LaTeX that it does not know
        return f"<code>{escape(latex)}</code>"
    element.attrib.pop("xmlns", None)  # implied in HTML
    element.attrib.pop("display", None)
    _mend(element)
    return ElementTree.tostring(element, encoding="unicode")


def _mend(element: ElementTree.Element) -> None:
    """What browsers that follow MathML Core want said differently."""
    for node in element.iter():
        node.text = unescape(node.text or "") or None  # the converter writes symbols as references
        if node.text == "~":
            node.tag, node.text = "mo", "\u223c"
        if node.tag == "mover" and node[-1].text in (DOT, "&#x002D9;"):
            node.set("accent", "true")
        if node.tag == "mspace" and not node.get("width", "").endswith("em"):
            node.set("width", "-0.167em" if "negative" in node.get("width", "") else "0.167em")
        parts = list(node)
        for before, table, after in zip(parts, parts[1:], parts[2:], strict=False):
            if table.tag == "mtable" and (before.text, after.text) == ("&#x00028;", "&#x00029;"):
                # drawn by the style sheet: brackets grow only where a font for mathematics is installed
                table.set("class", "matrix")
                node.remove(before)
                node.remove(after)


def _table(rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    return f'<div class="box"><table class="equations">{"".join(_row(*row) for row in rows)}</table></div>'


def _row(left: str, pieces: Sequence[str]) -> str:
    first, *others = pieces or ["0"]
    cells = [mathml(first.removeprefix("+ ")), *map(_continued, others)]
    return f"<tr><td>{mathml(left)}</td><td>{mathml('=')}</td><td>{' '.join(cells)}</td></tr>"


def _continued(piece: str) -> str:
    """A term whose sign joins it to the one before."""
    text = mathml(piece)
    for sign in ("+", "\u2212", "-"):
        text = text.replace(f"<mrow><mo>{sign}</mo>", f'<mrow><mo form="infix">{sign}</mo>', 1)
    return text


def _terms(latex: str) -> list[str]:
    r"""The terms of a sum, each with its sign, and what is said after ``\quad``."""
    formula, *rest = latex.split(r", \quad ")
    pieces, depth, begin = [], 0, 0
    for i, c in enumerate(formula):
        depth += (c in OPENING) - (c in CLOSING)
        if depth == 0 and i > begin and c in "+-" and formula[i - 1] == " " and formula[i + 1 : i + 2] == " ":
            pieces.append(formula[begin:i].strip())
            begin = i
    pieces.append(formula[begin:].strip())
    if rest:
        pieces[-1] += ","
    return [p for p in pieces if p] + [rf"\quad {r}" for r in rest]
