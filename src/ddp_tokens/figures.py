"""Three figures from the files of a run: units per rank, gradient errors, and the loss across the seam.

Readable without colour (markers and line styles differ), at a column's width, and with the same bytes each time.
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

from ddp_tokens.checks.gradient_parity import Arrays, of_window
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.config import Tolerance
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json_lines, replacing
from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN

Record = Mapping[str, Any]

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
OF_RANKS = tuple(
    zip((BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE), ("o", "^", "s", "D", "v", "P"), strict=True)
)
WIDTH = 6.5
CURVE_POINTS = 600
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "legend.fontsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.hashsalt": "ddp_tokens",
    "svg.fonttype": "path",
}
FORMATS = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def save_tokens(run: Path, outputs: Sequence[Path]) -> None:
    """`run`: the continuous run's folder, with ranks/rank-R.jsonl for each rank."""
    paths = sorted((run / "ranks").glob("rank-*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank-")))
    if not paths:
        raise EvidenceError(f"{run / 'ranks'} holds no rank's history: train again")
    with matplotlib.rc_context():
        _use_style()
        _save(tokens_figure([read_json_lines(path) for path in paths]), outputs)


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
        _use_style()
        _save(gradients_figure(ratios, tolerance), outputs)


def save_resume(interrupt_at: int, runs: Mapping[str, Path], outputs: Sequence[Path]) -> None:
    """`runs`: interrupt, continuous, resume -> folder with history.jsonl."""
    histories = {name: read_json_lines(folder / "history.jsonl") for name, folder in runs.items()}
    with matplotlib.rc_context():
        _use_style()
        _save(resume_figure(interrupt_at, **histories), outputs)


def tokens_figure(ranks: Sequence[Sequence[Record]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    units = numpy.array([[record["units"] for record in of_rank] for of_rank in ranks])
    windows = [record["step"] for record in ranks[0]]
    for rank, (of_rank, (colour, marker)) in enumerate(zip(units, cycle(OF_RANKS), strict=False)):
        label = f"rank {rank}: {of_rank.sum():,} in all"
        axes.plot(windows, of_rank, color=colour, marker=marker, markersize=3, linewidth=0.8, label=label)
    if len(ranks) > 1:
        axes.plot(windows, units.mean(axis=0), color="black", linestyle=":", linewidth=1.2, label="equal share")
    axes.set(xlabel="window (one update)", ylabel="supervised units of the rank", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper left", ncols=min(3, len(ranks) + 1))
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
    """`ratios`: window -> formula -> error ratios, largest first. Errors of exactly 0 have no place on a log scale."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False)[0]
    for axes, (window, of_formulas) in zip(panels, ratios.items(), strict=True):
        _curve(axes, of_formulas[MEAN_OF_MEANS], "mean of means", VERMILLION, "--")
        _curve(axes, of_formulas[TOKEN_MEAN], "token mean", BLUE, "-")
        axes.axhline(1, color="black", linewidth=1.2)
        axes.set_yscale("log")
        axes.set(xlim=(0, 100), title=f"window: {window.replace('_', ' ')}", xlabel="share of values, largest error first (%)")
        axes.legend(loc="outside")
    return figure


def _curve(axes: Axes, ratios: NDArray[numpy.float64], label: str, colour: str, linestyle: str) -> None:
    outside = int((ratios > 1).sum())
    finite = ratios[numpy.isfinite(ratios)]
    chosen = numpy.unique(numpy.linspace(0, max(ratios.size - 1, 0), CURVE_POINTS).astype(int))
