"""Three figures from the files of a run: units per rank, gradient errors, and the loss across the seam.

Readable without colour (markers and line styles differ), drawn at the width of a paper's column with letters of at
least 7 points, and with the same bytes each time.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ddp_tokens.checks.gradient_norms import Arrays
from ddp_tokens.checks.gradient_references import of_window
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.config import Tolerance
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json_lines, replacing
from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN

Record = Mapping[str, Any]

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
COLOURS, MARKERS = (BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE), ("o", "^", "s", "D", "v", "P", "X")
WIDTH = 3.4  # inches: the width of a paper's column
SUFFIXES = (".png", ".svg", ".pdf")
CURVE_POINTS = 400
CURVES = {TOKEN_MEAN: (BLUE, "-"), MEAN_OF_MEANS: (VERMILLION, "--")}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "svg.hashsalt": "ddp_tokens",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType, embedded: what publishers ask for
}
METADATA: Mapping[str, Any] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def save_tokens(run: Path, outputs: Sequence[Path]) -> None:
    """`run`: the continuous run's folder, with ranks/rank-R.jsonl for each rank."""
    paths = sorted((run / "ranks").glob("rank-*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank-")))
    if not paths:
        raise EvidenceError(f"{run / 'ranks'} holds no rank's history: train again")
    with matplotlib.rc_context():
        use_style()
        save(tokens_figure([read_json_lines(path) for path in paths]), outputs)


def save_gradients(
    tolerance: Tolerance, reference: Path, gradients: Mapping[str, Path], outputs: Sequence[Path]
) -> None:
    """`reference`, `gradients` (formula -> dump): in the training dtype, each with its windows as WINDOW/PARAMETER."""
    expected = read_arrays(reference)
    observed = {formula: read_arrays(path) for formula, path in gradients.items()}
    ratios = {
        window: {
            formula: error_ratios(of_window(arrays, window), of_window(expected, window), tolerance)
            for formula, arrays in observed.items()
        }
        for window in dict.fromkeys(name.split("/")[0] for name in expected)
    }
    with matplotlib.rc_context():
        use_style()
        save(gradients_figure(ratios, tolerance), outputs)


def save_resume(interrupt_at: int, runs: Mapping[str, Path], outputs: Sequence[Path]) -> None:
    """`runs`: interrupt, continuous, resume -> folder with history.jsonl."""
    histories = {name: read_json_lines(folder / "history.jsonl") for name, folder in runs.items()}
    with matplotlib.rc_context():
        use_style()
        save(resume_figure(interrupt_at, **histories), outputs)


def tokens_figure(ranks: Sequence[Sequence[Record]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    axes = figure.subplots()
    units = numpy.array([[record["units"] for record in of_rank] for of_rank in ranks])
    windows = [record["step"] for record in ranks[0]]
    for rank, (of_rank, colour, marker) in enumerate(zip(units, cycle(COLOURS), cycle(MARKERS), strict=False)):
        label = f"rank {rank}: {of_rank.sum():,} in all"
        face = colour if rank % 2 == 0 else "white"
        axes.plot(
            *(windows, of_rank),
            color=colour,
            marker=marker,
            markersize=2.5,
            markerfacecolor=face,
            markeredgewidth=0.6,
            linewidth=0.6,
            label=label,
        )
    if len(ranks) > 1:
        axes.plot(windows, units.mean(axis=0), color="black", linestyle=":", linewidth=1.2, label="equal share")
    axes.set(xlabel="window (one update)", ylabel="supervised units of the rank", ylim=(0, None))
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside upper left", ncols=2, columnspacing=1.0)
    return figure


def error_ratios(observed: Arrays, reference: Arrays, tolerance: Tolerance) -> NDArray[numpy.float64]:
    """|ddp - ref| / (atol + rtol * |ref|) of every value that both sides hold, sorted, largest first.

    Above 1 is outside the tolerance; a value that is not a number counts as infinite.
    """
    parts = []
    for name in sorted(set(observed) & set(reference)):
        ddp, ref = observed[name].astype(numpy.float64).ravel(), reference[name].astype(numpy.float64).ravel()
        if ddp.shape == ref.shape:
            allowed = numpy.maximum(tolerance.atol + tolerance.rtol * abs(ref), numpy.finfo(numpy.float64).tiny)
            parts.append(numpy.nan_to_num(abs(ddp - ref) / allowed, nan=numpy.inf, posinf=numpy.inf))
    return numpy.sort(numpy.concatenate(parts or [numpy.empty(0)]))[::-1]


def gradients_figure(ratios: Mapping[str, Mapping[str, NDArray[numpy.float64]]], tolerance: Tolerance) -> Figure:
    """`ratios`: window -> formula -> error ratios, largest first. An error of exactly 0 has no place on a log scale."""
    figure = Figure(figsize=(WIDTH, 0.6 + 1.8 * len(ratios)), layout="constrained")
    panels = figure.subplots(len(ratios), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (window, of_formulas) in zip(panels, ratios.items(), strict=True):
        axes.axhline(
            1, color="black", linewidth=1.2, label=f"tolerance: {tolerance.atol:g} + {tolerance.rtol:g} x |ref|"
        )
        for formula, (colour, linestyle) in CURVES.items():
            label = formula.replace("_", " ")
            axes.plot(*curve(of_formulas[formula]), color=colour, linestyle=linestyle, linewidth=1.8, label=label)
        axes.set(yscale="log", xlim=(-1, 101), ylabel="error / tolerance")
        axes.set_title("\n".join([f"window: {window.replace('_', ' ')}", *_outside(of_formulas)]), loc="left")
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(min(low, 0.1), max(high, 10))
    panels[-1].set_xlabel("values, largest error first (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, columnspacing=1.2)
    return figure


def curve(ratios: NDArray[numpy.float64]) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64]]:
    """Share of values in percent, and their ratio: some hundred points of the sorted values, finite and above 0."""
    if not ratios.size:
        return numpy.empty(0), numpy.empty(0)
    ends = numpy.geomspace(1 / ratios.size, 0.5, CURVE_POINTS)
    steps = numpy.concatenate([numpy.linspace(0, 1, CURVE_POINTS), ends, 1 - ends])
    indices = numpy.unique((steps * (ratios.size - 1)).astype(int))
    chosen = indices[numpy.isfinite(ratios[indices]) & (ratios[indices] > 0)]
    return 100 * (chosen + 1) / ratios.size, ratios[chosen]


def _outside(of_formulas: Mapping[str, NDArray[numpy.float64]]) -> list[str]:
    return [f"{formula.replace('_', ' ')}: {_told(ratios)}" for formula, ratios in of_formulas.items()]


def _told(ratios: NDArray[numpy.float64]) -> str:
    """Errors of 0 leave no curve."""
    if ratios.size and not ratios.any():
        return f"all {ratios.size:,} errors are 0"
    return f"{int((ratios > 1).sum()):,} of {ratios.size:,} outside"


def resume_figure(
    interrupt_at: int, interrupt: Sequence[Record], continuous: Sequence[Record], resume: Sequence[Record]
) -> Figure:
    """Interrupted run up to the seam, resumed run after it, both over the continuous run; below, the difference."""
    before = {record["step"]: record["loss"] for record in interrupt if record["step"] <= interrupt_at}
    after = {record["step"]: record["loss"] for record in resume if record["step"] > interrupt_at}
    whole = {record["step"]: record["loss"] for record in continuous}
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(list(whole), list(whole.values()), color="black", linewidth=0.8, label="continuous")
    points = {"linestyle": "none", "markersize": 3, "markerfacecolor": "none", "markeredgewidth": 0.7}
    top.plot(list(before), list(before.values()), color=BLUE, marker="o", label="interrupted", **points)
    top.plot(list(after), list(after.values()), color=VERMILLION, marker="^", label="resumed", **points)
    top.set_ylabel("loss per supervised unit")
    differences = {step: loss - whole[step] for step, loss in (before | after).items() if step in whole}
    _differences(bottom, differences, interrupt_at)
    for axes, label in ((top, f"stop after update {interrupt_at}"), (bottom, None)):
        axes.axvline(interrupt_at + 0.5, color="black", linestyle="--", linewidth=1.0, label=label)
    bottom.set_xlabel("update")
    bottom.xaxis.set_major_locator(_whole_numbers())
    figure.legend(loc="outside upper left", ncols=2, columnspacing=1.2)
    return figure


def _differences(axes: Axes, differences: Mapping[int, float], interrupt_at: int) -> None:
    """Where all differences are 0 the scale has no other mark, and the panel says so."""
    for colour, marker, steps in (
        (BLUE, "o", [step for step in differences if step <= interrupt_at]),
        (VERMILLION, "^", [step for step in differences if step > interrupt_at]),
    ):
        axes.plot(
            steps, [differences[step] for step in steps], color=colour, marker=marker, markersize=2, linestyle="none"
        )
    axes.set_ylabel("difference")
    largest = max((abs(value) for value in differences.values()), default=0.0)
    if largest == 0:
        axes.set(ylim=(-1, 1), yticks=[0])
        text = f"exactly 0 at all {len(differences)} updates"
    else:
        text = f"largest: {largest:.3g}"
    axes.set_title(text, loc="right")


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(8, integer=True, steps=[1, 2, 5, 10])


def use_style() -> None:
    """Nothing of a reader's own matplotlibrc may change the bytes."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)


def outputs_of(path: Path) -> list[Path]:
    """A figure's files: PNG, SVG and PDF beside each other."""
    return [path.with_suffix(suffix) for suffix in SUFFIXES]


def save(figure: Figure, outputs: Sequence[Path]) -> None:
    for path in outputs:
        kind = path.suffix.removeprefix(".")
        with replacing(path) as stream:
            figure.savefig(stream, format=kind, metadata=METADATA[kind])
