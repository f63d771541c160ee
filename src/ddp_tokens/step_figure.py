"""Where an update's time goes: a stacked bar per number of processes. No torch."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure

from ddp_tokens.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, WIDTH, save, use_style
from ddp_tokens.scaling import counted
from ddp_tokens.scaling_rows import PARTS, StepParts

COLOURS = dict(zip(PARTS, (VERMILLION, SKY, BLUE, ORANGE, GREEN, PURPLE), strict=True))
HATCHES = dict(zip(PARTS, ("xx", "", "", "//", "\\\\", ".."), strict=True))  # readable without colour
LEAST = 9.0  # percent of the longest bar; narrower parts have no room for their number


def means_ms(rows: Sequence[StepParts]) -> dict[int, dict[str, float]]:
    """Processes -> part -> ms per update, the mean over updates and ranks, so that the parts add up to the update."""
    by_processes = {processes: [row for row in rows if row.processes == processes] for processes in processes_of(rows)}
    return {
        processes: {part: 1000 * fmean(getattr(row, f"{part}_s") for row in of) for part in PARTS}
        for processes, of in by_processes.items()
    }


def processes_of(rows: Sequence[StepParts]) -> list[int]:
    return sorted({row.processes for row in rows})


def save_step_parts(rows: Sequence[StepParts], outputs: Sequence[Path]) -> None:
    """PNG and SVG, by the outputs' suffixes."""
    with matplotlib.rc_context():
        use_style()
        save(step_figure(rows), outputs)


def step_figure(rows: Sequence[StepParts]) -> Figure:
    of_processes = means_ms(rows)
    figure = Figure(figsize=(WIDTH, 2.0), layout="constrained")
    axes = figure.subplots()
    longest = max(sum(parts.values()) for parts in of_processes.values())
    for place, parts in enumerate(of_processes.values()):
        left, whole = 0.0, sum(parts.values())
        for part, milliseconds in parts.items():
            width = max(0.0, milliseconds)
            axes.barh(
                *(place, width, 0.6, left),
                color=COLOURS[part],
                hatch=HATCHES[part],
                edgecolor="white",
                linewidth=0.6,
                label=part if place == 0 else None,
            )
            if 100 * width / longest >= LEAST:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
                axes.text(
                    left + width / 2,
                    place,
                    f"{100 * width / whole:.0f} %",
                    ha="center",
                    va="center",
                    bbox=box,
                    fontsize=7,
                )
            left += width
    axes.set_yticks(range(len(of_processes)), [counted(processes) for processes in of_processes])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.set_xlabel("ms of an update, mean over updates and ranks")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside upper center", ncols=len(PARTS) // 2, columnspacing=1.0, handlelength=1.6)
    return figure
