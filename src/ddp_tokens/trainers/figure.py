"""How far each trainer's gradient is from the right one, in tolerances, and how fast the trainer is. No torch."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import blended_transform_factory

from ddp_tokens.checks.verdict import INCONCLUSIVE
from ddp_tokens.controls.figure import LINE, MARKS, SMALL, mark_at, stacked
from ddp_tokens.figures import VERMILLION, WIDTH, save, use_style
from ddp_tokens.report import number_text
from ddp_tokens.trainers.rows import NOT_RUN, Row

MARGIN = 0.85  # inches, for the axis and the legend
LETTERS, PANEL_LETTERS = 28, 24  # in a row of a label, in one over the whole panel
NOTHING = "\u2013"
GAPS = {False: 0.4, True: 0.25}  # around a trainer's name, and a setting; in rows
GREY = "#57606a"


@dataclass(frozen=True)
class Line:
    """One line of the figure: a trainer's name, in bold, or below it one of its settings, with an `outcome`.

    `of_tolerance`: error / tolerance; None where no error is known, and no mark is drawn.
    """

    label: str
    outcome: str = ""
    of_tolerance: float | None = None
    note: str = ""
    speed: str = ""
    as_expected: bool = True


def save_trainers(rows: Sequence[Row], outputs: Sequence[Path]) -> None:
    """PNG, SVG or PDF, by the outputs' suffixes."""
    with matplotlib.rc_context():
        use_style()
        save(trainers_figure(lines(rows)), outputs)


def lines(rows: Sequence[Row]) -> list[Line]:
    """In the order of the rows; a trainer's name stands once above settings that follow each other."""
    found: list[Line] = []
    trainer = None
    for row in rows:
        if row.case.trainer != trainer:
            trainer = row.case.trainer
            found.append(Line(trainer))
        found.append(_line(row))
    return found


def _line(row: Row) -> Line:
    outcome = row.verdict.outcome
    if outcome == NOT_RUN:
        return Line(row.case.setting, outcome, note="not run here", speed=NOTHING)
    error = row.verdict.observed.get("error")
    notes = [number_text(error)] if error is not None and row.of_tolerance == math.inf else []
    if row.of_tolerance == 0:
        notes.append("exactly 0")
    if outcome == INCONCLUSIVE:
        notes.append("cannot be decided")
    if row.verdict.diagnosis:
        notes.append(" or ".join(row.verdict.diagnosis).replace("_", " "))
    if row.problem:
        notes.append("NOT as expected")
    return Line(
        label=row.case.setting,
        outcome=outcome,
        of_tolerance=None if error is None else row.of_tolerance,
        note="; ".join(notes),
        speed=NOTHING if row.speed is None else f"{row.speed:.2f}",
        as_expected=row.problem is None,
    )


def trainers_figure(of_lines: Sequence[Line]) -> Figure:
    low, high = _ends([line.of_tolerance for line in of_lines if line.of_tolerance is not None])
    texts = [(wrapped_setting(line), _wrapped_note(line, low, high)) for line in of_lines]
    rows = [max(label.count("\n"), note.count("\n")) + 1 for label, note in texts]
    places, height = stacked([number + GAPS[bool(line.outcome)] for number, line in zip(rows, of_lines, strict=True)])
    figure = Figure(figsize=(WIDTH, LINE * height + MARGIN), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="black", linewidth=1.2)
    for place, line, (_, note) in zip(places, of_lines, texts, strict=True):
        if line.outcome:
            _draw(axes, place, line, note, low, high)
            _beside(axes, place, line.speed)
    axes.set(xscale="log", xlim=(low, high), ylim=(height - 0.2, -0.9), xlabel="error / tolerance")
    axes.set_yticks(places, [label for label, _ in texts], fontsize=SMALL, linespacing=1.0)
    for label, line in zip(axes.get_yticklabels(), of_lines, strict=True):
        label.set(weight="normal" if line.outcome else "bold", color="black" if line.as_expected else VERMILLION)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    _name_the_scale(axes, low, high)
    handles = [mark_at(outcome, [], [], name) for outcome, (_, _, name) in MARKS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(MARKS))
    return figure


def wrapped_setting(line: Line) -> str:
    """A setting is broken between words and, where a word is long, behind an underscore or an equals sign; a trainer's
    name is not broken.
    """
    if not line.outcome:
        return line.label
    rows: list[str] = []
    for word in line.label.split():
        if rows and len(f"{rows[-1]} {word}") <= LETTERS:
            rows[-1] += f" {word}"
        else:
            rows += _parts(word)
    return "\n".join(rows)


def _parts(word: str) -> list[str]:
    if len(word) <= LETTERS:
        return [word]
    rows = textwrap.wrap(word.replace("_", "_ ").replace("=", "= "), LETTERS)
    return [row.replace("_ ", "_").replace("= ", "=") for row in rows]


def _wrapped_note(line: Line, low: float, high: float) -> str:
    """Into the wider of both sides of the mark, without reaching over the line at 1."""
    room = max(8, _room(line.of_tolerance or 0.0, low, high)[1])
    return "\n".join(textwrap.wrap(line.note, room))


def _room(of_tolerance: float, low: float, high: float) -> tuple[bool, int]:
    """Whether the note stands left of the mark, and for how many letters there is room."""
    at = _inside(of_tolerance, low, high)
    before = math.log(at) if at > 1 else 0.0
    after = math.log(high / max(at, 1.0))
    letters = PANEL_LETTERS * max(before, after) / math.log(high / low)
    return before > after, int(letters) - 2


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    """Of the axis, which all marks and the line at 1 stand well inside of."""
    drawn = [ratio for ratio in ratios if 0 < ratio < math.inf] or [1.0]
    return 10 ** (math.floor(math.log10(min(*drawn, 0.5))) - 0.5), 10 ** (math.ceil(math.log10(max(*drawn, 1e3))) + 0.7)


def _inside(ratio: float, low: float, high: float) -> float:
    """Where a ratio is drawn: 0 and infinity have no place on a log scale, and stand at its ends."""
    return min(max(ratio, low * 1.5), high / 1.5)


def _draw(axes: Axes, place: float, line: Line, note: str, low: float, high: float) -> None:
    if line.of_tolerance is None:
        _write(axes, note, 1, place, is_before=False, colour=GREY)
        return
    at = _inside(line.of_tolerance, low, high)
    axes.add_line(mark_at(line.outcome, [at], [place]))
    if note:
        is_before, _ = _room(line.of_tolerance, low, high)
        _write(axes, note, at if is_before else max(at, 1.0), place, is_before)


def _write(axes: Axes, note: str, at: float, place: float, is_before: bool, colour: str = "black") -> None:
    axes.annotate(
        note,
        (at, place),
        (-6 if is_before else 6, 0),
        textcoords="offset points",
        horizontalalignment="right" if is_before else "left",
        verticalalignment="center",
        fontsize=SMALL,
        linespacing=1.0,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.0},
    )


def _beside(axes: Axes, place: float, text: str) -> None:
    """In the column right of the panel."""
    of_panel_and_line = blended_transform_factory(axes.transAxes, axes.transData)
    axes.annotate(
        text,
        (1, place),
        (26, 0),
        xycoords=of_panel_and_line,
        textcoords="offset points",
        horizontalalignment="right",
        verticalalignment="center",
        fontsize=SMALL,
    )


def _name_the_scale(axes: Axes, low: float, high: float) -> None:
    powers = [power for power in range(-30, 31, 2) if low < 10.0**power < high]
    axes.set_xticks([10.0**power for power in powers], [f"$10^{{{power}}}$" for power in powers])
    axes.xaxis.set_minor_locator(NullLocator())
    for where, over, text, shift in ((1, "data", "tolerance", 0), (1, "axes fraction", "speed /\nbare loop", 26)):
        axes.annotate(
            text,
            (where, 1),
            (shift, 3),
            xycoords=(over, "axes fraction"),
            textcoords="offset points",
            horizontalalignment="right" if shift else "left",
            fontsize=SMALL,
            linespacing=1.0,
        )
