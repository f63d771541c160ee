"""Supervised units per second over processes: measured, expected and ideal; strong and weak in a panel each."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_tokens.figures import BLUE, GREEN, WIDTH, save, use_style
from ddp_tokens.scaling import Point
from ddp_tokens.scaling_rows import STRONG, WEAK, Machine

TITLES = {STRONG: "strong: one window,\nshared by all", WEAK: "weak: one rank's\nrows for each"}
HEADROOM = 1.3


def save_scaling(points: Sequence[Point], machine: Machine, outputs: Sequence[Path]) -> None:
    """PNG, SVG or PDF, by the outputs' suffixes. `points`: see scaling.points."""
    with matplotlib.rc_context():
        use_style()
        save(scaling_figure(points, machine.cores, machine.unit), outputs)


def scaling_figure(points: Sequence[Point], cores: int, unit: str) -> Figure:
    """The ideal line leaves a panel at the top where it is far above all else: the rest would lie flat beneath it."""
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, scaling in zip(panels, (STRONG, WEAK), strict=True):
        _draw(axes, [point for point in points if point.scaling == scaling])
        axes.set_title(TITLES[scaling])
    highest = max(max(point.units_per_s_max, point.expected_units_per_s) for point in points)
    panels[0].set(ylabel=f"{unit}s per second", ylim=(0, HEADROOM * highest))
    panels[0].yaxis.set_major_formatter("{x:,.0f}")
    figure.supxlabel(f"processes, on {cores} core{'' if cores == 1 else 's'}", fontsize="medium")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, columnspacing=1.0, handlelength=1.8)
    return figure


def _draw(axes: Axes, points: Sequence[Point]) -> None:
    processes = [point.processes for point in points]
    medians = [point.units_per_s_median for point in points]
    below = [point.units_per_s_median - point.units_per_s_min for point in points]
    above = [point.units_per_s_max - point.units_per_s_median for point in points]
    ideal, expected = ([getattr(point, f"{kind}_units_per_s") for point in points] for kind in ("ideal", "expected"))
    axes.plot(processes, ideal, color="black", linestyle=":", linewidth=1, label="ideal")
    axes.plot(processes, expected, color=GREEN, linestyle="--", linewidth=1, marker="x", markersize=4, label="expected")
    axes.errorbar(
        *(processes, medians, (below, above)),
        color=BLUE,
        marker="o",
        markersize=3,
        linewidth=1.2,
        elinewidth=1,
        capsize=3.5,
        label="measured, min to max",
    )
    axes.set_xticks(processes, [str(number) for number in processes])
    axes.margins(x=0.12)
