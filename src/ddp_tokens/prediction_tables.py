"""prediction.json as tables in Markdown: what docs/scaling.md shows and `ddp_tokens.cli predict` prints. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ddp_tokens.lesson import number
from ddp_tokens.scaling_rows import STRONG, WEAK

Record = Mapping[str, Any]
NONE = "-"
NETWORKS = {"measured": "the measured network", "given": "the given network"}


def tables(document: Record) -> str:
    """`document`: what prediction.json holds."""
    machine, costs = document["machine"], document["costs"]
    parts = [
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['threads_per_rank']} thread per process, "
        f"Python {machine['python']}, torch {machine['torch']}, {machine['backend']}, {machine['model_params']:,} "
        "parameters.",
        _costs(costs, document["networks"]),
        "**Predicted against measured**, ms per update, on this machine with its cores (one process, strong, gave the "
        "costs and is met by construction):",
        _validation(document["validation"]),
    ]
    for network in document["networks"]:
        parts += [
            f"**Predicted** for {NETWORKS[network]}, ms per update, a core for each thread of each rank; from no "
            "overlap to full overlap:",
            _predictions([each for each in document["predictions"] if each["network"] == network]),
        ]
    parts += [
        "**What unequal rows cost**, weak scaling: share of all ranks' computing time that is spent waiting for the "
        "slowest rank, and the slowest rank's padded positions per update:",
        _unequal(document["unequal"]),
        "**The all-reduce**: medians and what the fitted latency and bandwidth say.",
        _residuals(document["fit"]["residuals"]),
        "**What computing follows**: r² of the time of one process's backward of a microbatch against what it holds.",
        _grid(["", "r²"], [[name, _or_none(value, ".2f")] for name, value in document["load"].items()]),
    ]
    return "\n\n".join(parts) + "\n"


def _costs(costs: Record, networks: Mapping[str, Record]) -> str:
    rows = [
        ["one padded position: data, forward, backward", f"{number(1000 * costs['position_ms'])} µs"],
        ["… of which backward", f"{number(1000 * costs['backward_ms'])} µs"],
        ["fixed per update: optimizer, copies into buckets, the rest", f"{number(costs['fixed_ms'])} ms"],
        ["gradients", f"{costs['bytes']:,} bytes in {costs['buckets']} buckets"],
    ]
    for name, network in networks.items():
        bandwidth = number(network["bandwidth_mb_s"])
        rows.append([NETWORKS[name], f"{number(network['latency_us'])} µs per message, {bandwidth} MB/s"])
    return _grid(["cost", "value"], rows)


def _validation(rows: Sequence[Record]) -> str:
    headers = ["scaling", "processes", "measured (min to max)", "no overlap", "error", "full overlap", "error"]
    return _grid(
        headers,
        [
            [
                each["scaling"],
                each["processes"],
                f"{number(each['measured_ms'])} ({number(each['measured_min_ms'])} to "
                f"{number(each['measured_max_ms'])})",
                number(each["step_ms"]),
                f"{100 * each['relative_error']:+.0f} %",
                number(each["overlapped_ms"]),
                f"{100 * each['relative_error_overlapped']:+.0f} %",
            ]
            for each in rows
        ],
    )


def _predictions(rows: Sequence[Record]) -> str:
    of = {(each["scaling"], each["ranks"]): each for each in rows}
    headers = ["ranks", "weak: ms", "efficiency", "of it waiting", "all-reduce", "strong: ms", "efficiency"]
    table = []
    for ranks in sorted({each["ranks"] for each in rows}):
        weak, strong = of[WEAK, ranks], of.get((STRONG, ranks))
        own = [number(weak["waiting_ms"]), number(weak["all_reduce_ms"])]
        table.append([f"{ranks:,}", *_both(weak), *own, *(_both(strong) if strong else [NONE, NONE])])
    return _grid(headers, table)


def _both(each: Record) -> list[str]:
    """The step and its efficiency, each from no overlap to full overlap."""
    shares = [f"{100 * each[name]:.0f}" for name in ("efficiency", "efficiency_overlapped")]
    steps = [number(each[name]) for name in ("step_ms", "overlapped_ms")]
    return [_range(steps), f"{_range(shares)} %"]


def _range(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _unequal(rows: Sequence[Record]) -> str:
    of = {(each["source"], each["ranks"]): each for each in rows}
    sources = list(dict.fromkeys(each["source"] for each in rows))
    headers = ["ranks"] + [f"{source}: {what}" for source in sources for what in ("waiting", "slowest")]
    return _grid(
        headers,
        [
            [f"{ranks:,}"] + [text for source in sources for text in _lost(of.get((source, ranks)))]
            for ranks in sorted({each["ranks"] for each in rows})
        ],
    )


def _lost(each: Record | None) -> list[str]:
    return [f"{100 * each['lost']:.1f} %", number(each["slowest"])] if each else [NONE, NONE]


def _residuals(rows: Sequence[Record]) -> str:
    headers = ["processes", "bytes", "measured ms", "fitted ms", "error", "fitted to"]
    return _grid(
        headers,
        [
            [
                each["processes"],
                f"{each['bytes']:,}",
                number(each["measured_ms"]),
                number(each["fitted_ms"]),
                f"{100 * each['relative_error']:+.0f} %",
                "yes" if each["used"] else "no, predicted",
            ]
            for each in rows
        ],
    )


def _or_none(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _grid(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return str(tabulate(list(rows), headers=headers, tablefmt="pipe", disable_numparse=True))
