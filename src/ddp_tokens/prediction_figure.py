"""Predicted time of an update over ranks, weak and strong, with what was measured; and what unequal rows cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ddp_tokens.figures import BLUE, GREEN, ORANGE, VERMILLION, WIDTH, save, use_style
from ddp_tokens.plan import BY_INDEX, BY_LENGTH
from ddp_tokens.scaling_rows import STRONG, WEAK

Record = Mapping[str, Any]
PLACES = ("predictions", "validation")
FULL = "down to full overlap"
TITLES = {WEAK: "weak: one rank's\nrows for each", STRONG: "strong: one window,\nshared by all"}
NETWORKS = {"measured": (BLUE, "-", "measured network"), "given": (VERMILLION, "--", "given network")}
SOURCES = {
    BY_LENGTH: (VERMILLION, "--", "by length, simulated"),
    BY_INDEX: (BLUE, "-", "by index, simulated"),
}


def save_prediction(document: Record, outputs: Sequence[Path]) -> None:
    """PNG, SVG or PDF, by the outputs' suffixes. `document`: what prediction.json holds."""
    with matplotlib.rc_context():
        use_style()
        save(prediction_figure(document), outputs)


def prediction_figure(document: Record) -> Figure:
    networks = {each["network"] for each in document["predictions"]}
    figure = Figure(figsize=(WIDTH, 4.7 + 0.3 * len(networks)), layout="constrained")
    places: Mapping[str, Axes] = figure.subplot_mosaic(
        [["weak", "strong"], ["unequal", "unequal"]], height_ratios=(5, 4)
    )
    weak, strong, unequal = (places[name] for name in ("weak", "strong", "unequal"))
    for axes, scaling in ((weak, WEAK), (strong, STRONG)):
        of_kind = [[each for each in document[name] if each["scaling"] == scaling] for name in PLACES]
        _draw_steps(axes, of_kind[0], of_kind[1], document["machine"]["cores"])
        axes.set_title(TITLES[scaling])
        axes.set_xlabel("ranks")
    low, high = zip(weak.get_ylim(), strong.get_ylim(), strict=True)
    for axes in (weak, strong):
        axes.set_ylim(min(low), max(high))
        _ranks_axis(axes, (1, 8, 64, 1024))
    strong.tick_params(axis="y", labelleft=False)
    weak.set_ylabel("ms of an update")
    _draw_unequal(unequal, document["unequal"])
    handles, labels = weak.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=1, handlelength=2.2)
    return figure


def _draw_steps(axes: Axes, predicted: Sequence[Record], validated: Sequence[Record], cores: int) -> None:
    for network, (colour, linestyle, label) in NETWORKS.items():
        rows = [each for each in predicted if each["network"] == network]
        if not rows:
            continue
        ranks = [each["ranks"] for each in rows]
        none, full = ([each[name] for each in rows] for name in ("step_ms", "overlapped_ms"))
        axes.plot(ranks, none, color=colour, linestyle=linestyle, linewidth=1.2, label=f"predicted, {label}")
        axes.fill_between(ranks, full, none, color=colour, alpha=0.25, linewidth=0, label=FULL)
    processes = [each["processes"] for each in validated]
    medians = [each["measured_ms"] for each in validated]
    below = [each["measured_ms"] - each["measured_min_ms"] for each in validated]
    above = [each["measured_max_ms"] - each["measured_ms"] for each in validated]
    axes.errorbar(
        *(processes, medians, (below, above)),
        color="black",
        marker="o",
        markersize=3,
        label=f"measured on {cores} cores, min to max",
        linestyle="none",
        capsize=2.5,
        elinewidth=1,
    )
    here = [each["step_ms"] for each in validated]
    axes.plot(
        processes, here, color=GREEN, marker="x", markersize=5, linestyle="none", label=f"predicted for {cores} cores"
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_unequal(axes: Axes, rows: Sequence[Record]) -> None:
    for source, (colour, linestyle, label) in SOURCES.items():
        of = [each for each in rows if each["source"] == source]
        axes.plot(*_lost(of), color=colour, linestyle=linestyle, linewidth=1.2, label=label)
    of_plan = [each for each in rows if each["source"] == "plan"]
    axes.plot(*_lost(of_plan), color=ORANGE, marker="s", markersize=3, linestyle="none", label="the plan's own shares")
    axes.set_title("waiting for the slowest rank")
    axes.set(xlabel="ranks", ylabel="% of the ranks'\ncomputing time")
    highest = max(100 * each["lost"] for each in rows)
    axes.set_ylim(0, max(1.0, 1.7 * highest))
    axes.legend(loc="upper left", handlelength=1.8, borderaxespad=0.1)
    _ranks_axis(axes, (1, 4, 16, 64, 256, 1024))


def _lost(rows: Sequence[Record]) -> tuple[list[int], list[float]]:
    return [each["ranks"] for each in rows], [100 * each["lost"] for each in rows]


def _ranks_axis(axes: Axes, ranks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{number:,}" for number in ranks])
    axes.set_xlim(0.8, 1300)
    axes.minorticks_off()
