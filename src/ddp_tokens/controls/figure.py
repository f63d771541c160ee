"""The errors of all controls in units of their tolerances, and those of the right variants below. No torch."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS
from ddp_tokens.controls.gradient_cases import RIGHT, TERMS, UNDECIDED, UNIT
from ddp_tokens.controls.table import Judged
from ddp_tokens.figures import BLUE, PURPLE, VERMILLION, WIDTH, save, use_style
from ddp_tokens.report import number_text

LINE, MARGIN = 0.116, 0.75  # inches
LETTERS, ALL_LETTERS, BESIDE_A_MARK = 25, 33, 13  # in a row of a label, over the panel, beside a mark in its middle
SMALL = 7.0
MARKS = {FAIL: ("X", VERMILLION, "refused"), PASS: ("o", BLUE, "passes"), INCONCLUSIVE: ("s", PURPLE, "inconclusive")}
BY_DIAGNOSIS = (UNIT, TERMS)
GROUPS = {RIGHT: "right variants, by check", UNDECIDED: "cannot be decided"}


@dataclass(frozen=True)
class Line:
    """One line of the figure. `marks`: (outcome, error / tolerance); infinite where none is allowed or the error is no
    number. `note`: what stands beside the marks. A line without marks is the heading of those below it.
    """

    label: str
    marks: tuple[tuple[str, float], ...] = ()
    note: str = ""
    as_expected: bool = True


def save_controls(judged: Sequence[Judged], outputs: Sequence[Path]) -> None:
    """PNG, SVG or PDF, by the outputs' suffixes."""
    with matplotlib.rc_context():
        use_style()
        save(controls_figure(lines(judged)), outputs)


def lines(judged: Sequence[Judged]) -> list[Line]:
    """Each control and each case that cannot be decided. Together, as long as they are as expected: right variants by
    check, and the many controls of BY_DIAGNOSIS by that.
    """
    found = []
    for kind in dict.fromkeys(one.kind for one in judged):
        of_kind = [one for one in judged if one.kind == kind]
        found.append(Line(GROUPS.get(kind, kind)))
        together = kind == RIGHT or kind in BY_DIAGNOSIS
        as_they_should = [one for one in of_kind if together and one.verdict.as_expected]
        for name in dict.fromkeys(map(_group, as_they_should)):
            found.append(_together(name, [one for one in as_they_should if _group(one) == name]))
        found += [_alone(one) for one in of_kind if one not in as_they_should]
    return found


def ratio(judged: Judged) -> float:
    """error / tolerance."""
    error, tolerance = (judged.verdict.observed.get(name) for name in ("error", "tolerance"))
    if not isinstance(error, int | float):
        return math.inf
    return error / tolerance if tolerance else math.inf if error else 0.0


def _alone(one: Judged) -> Line:
    verdict, of_tolerance = one.verdict, ratio(one)
    notes = []
    if of_tolerance == math.inf:
        notes.append(number_text(verdict.observed.get("error")))
    elif of_tolerance == 0 and verdict.outcome == FAIL:
        notes.append("exactly 0: refused for something else than weights")
    if verdict.outcome == INCONCLUSIVE and "power" in verdict.observed:
        notes.append(f"nearest wrong formula {number_text(verdict.observed['power'])} tolerances away")
    if not verdict.as_expected:
        notes.append("NOT as expected: see the table")
    return Line(verdict.case, ((verdict.outcome, of_tolerance),), "; ".join(notes), verdict.as_expected)


def _group(one: Judged) -> str:
    return " or ".join(one.verdict.diagnosis) if one.kind in BY_DIAGNOSIS else one.check


def _together(name: str, of_group: Sequence[Judged]) -> Line:
    """The mark that comes nearest to the tolerance is told."""
    marks = tuple((one.verdict.outcome, ratio(one)) for one in of_group)
    ratios = [of_tolerance for _, of_tolerance in marks]
    number = f"{len(marks)} variant{'' if len(marks) == 1 else 's'}"
    if of_group[0].kind in BY_DIAGNOSIS:
        return Line(name, marks, f"{number}, smallest {number_text(min(ratios))}")
    return Line(name, marks, f"{number}, " + (f"largest {max(ratios):.2g}" if max(ratios) else "exactly 0"))


def controls_figure(of_lines: Sequence[Line]) -> Figure:
    left, right = _edges([of_tolerance for line in of_lines for _, of_tolerance in line.marks])
    low, high = left / 3, right * 10
    room = int(ALL_LETTERS * math.log10(high) / math.log10(high / low)) - 1
    texts = [(wrapped_name(line.label, line.marks), wrapped_note(line, room)) for line in of_lines]
    places, height = stacked([max(label.count("\n"), note.count("\n")) + 1 for label, note in texts])
    figure = Figure(figsize=(WIDTH, LINE * height + MARGIN), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="black", linewidth=1.2)
    for edge in (left, right):
        axes.axvline(edge, color="#888888", linewidth=0.8, linestyle=":")
    for place, line, (_, note) in zip(places, of_lines, texts, strict=True):
        _draw(axes, place, line, note, left, right)
    axes.set(xscale="log", xlim=(low, high), ylim=(height - 0.2, -0.9), xlabel="error / tolerance")
    axes.set_yticks(places, [label for label, _ in texts], fontsize=SMALL, linespacing=1.0)
    for label, line in zip(axes.get_yticklabels(), of_lines, strict=True):
        label.set(weight="normal" if line.marks else "bold", color="black" if line.as_expected else VERMILLION)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    _name_the_scale(axes, left, right)
    handles = [mark_at(outcome, [], [], name) for outcome, (_, _, name) in MARKS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(MARKS))
    return figure


def wrapped_name(label: str, marks: Sequence[object]) -> str:
    """A name is broken behind an underscore, a heading is not."""
    if not marks or len(label) <= LETTERS:
        return label
    rows = textwrap.wrap(label.replace("_", "_ "), LETTERS)
    return "\n".join(row.replace("_ ", "_") for row in rows)


def wrapped_note(line: Line, room: int) -> str:
    """`room`: letters between the line at 1 and the right edge."""
    inside = any(1 < of_tolerance < math.inf for _, of_tolerance in line.marks)
    return "\n".join(textwrap.wrap(line.note, BESIDE_A_MARK if inside else room))


def stacked(rows: Sequence[float]) -> tuple[list[float], float]:
    """Where each line stands, its middle, counted in rows from the top; and how many rows there are."""
    ends = [0, *accumulate(rows)]
    return [end + (number - 1) / 2 for end, number in zip(ends, rows, strict=False)], ends[-1]


def _edges(ratios: Sequence[float]) -> tuple[float, float]:
    """Where an error of exactly 0, and one where none is allowed, are drawn: a log scale has no place for them."""
    drawn = [of_tolerance for of_tolerance in ratios if 0 < of_tolerance < math.inf] or [1.0]
    return 10.0 ** (math.floor(math.log10(min(*drawn, 1.0))) - 1), 10.0 ** (
        math.ceil(math.log10(max(*drawn, 10.0))) + 2
    )


def _draw(axes: Axes, place: float, line: Line, note: str, left: float, right: float) -> None:
    """The note stands where it hides neither the marks nor the line at 1."""
    for outcome, of_tolerance in line.marks:
        axes.add_line(mark_at(outcome, [min(max(of_tolerance, left), right)], [place]))
    if note:
        largest = min(max(of_tolerance for _, of_tolerance in line.marks), right)
        before = largest > math.sqrt(right)
        axes.annotate(
            note,
            (max(largest, 1.0), place),
            (-6 if before else 6, 0),
            textcoords="offset points",
            horizontalalignment="right" if before else "left",
            verticalalignment="center",
            fontsize=SMALL,
            linespacing=1.0,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.0},
        )


def mark_at(outcome: str, xs: Sequence[float], ys: Sequence[float], label: str = "") -> Line2D:
    """The mark of an outcome, at these places."""
    marker, colour, _ = MARKS[outcome]
    face = "white" if outcome == INCONCLUSIVE else colour
    return Line2D(
        *(xs, ys), marker=marker, color=colour, markerfacecolor=face, markersize=4.5, linestyle="none", label=label
    )


def _name_the_scale(axes: Axes, left: float, right: float) -> None:
    powers = [power for power in range(-30, 31, 6) if left < 10.0**power < right]
    axes.set_xticks([10.0**power for power in powers], [f"$10^{{{power}}}$" for power in powers])
    axes.xaxis.set_minor_locator(NullLocator())
    for where, text, alignment in (
        (left, "exactly\n0", "center"),
        (1, "tolerance", "left"),
        (right, "none\nallowed", "center"),
    ):
        axes.annotate(
            text,
            (where, 1),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            horizontalalignment=alignment,
            fontsize=SMALL,
        )
