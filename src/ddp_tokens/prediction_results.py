"""From what `measure` left in results/EXP/scaling, and the plan, to prediction.json, .md and the figure. No torch."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddp_tokens import scaling, scaling_rows
from ddp_tokens.config import Experiment
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.corpora.rows import Row
from ddp_tokens.figures import outputs_of
from ddp_tokens.files import to_json, write_text
from ddp_tokens.layout import Layout
from ddp_tokens.loads import Load, explained, length_of, load_of, plan_for, simulated
from ddp_tokens.measure_settings import Network
from ddp_tokens.plan import BY_INDEX, BY_LENGTH, Plan, read_plan
from ddp_tokens.prediction_figure import save_prediction
from ddp_tokens.prediction_tables import tables
from ddp_tokens.ring import Fitted, Link, fit
from ddp_tokens.scaling_manifest import rounded
from ddp_tokens.scaling_prediction import (
    RANKS,
    Costs,
    Predicted,
    Validated,
    costs_of,
    crowding_on,
    predict,
    validate,
)
from ddp_tokens.scaling_rows import STRONG, WEAK, Machine
from ddp_tokens.steps import PLAN_FIELDS, dump

MEASURED, GIVEN = "measured", "given"
JUDGED = 200  # windows of the plan that are looked at, at most: a mean over them is known well enough
SHARDINGS = (BY_INDEX, BY_LENGTH)
log = logging.getLogger(__name__)
MEANINGS = {
    "costs": "ms of one process: per padded position (data, forward, backward; backward_ms is the part of it that is "
    "backward), and fixed per update (optimizer, copies into buckets, the rest); bytes and buckets of the gradients",
    "fit": "latency_us and bandwidth_mb_s of a ring all-reduce, f(W) (2 (W - 1) latency + 2 (W - 1) / W bytes / "
    "bandwidth), by least squares of the logarithms over all sizes, on the numbers of processes that do not share "
    "cores; f(W): threads per core. residuals: median measured, fitted, relative error, and whether it was fitted to",
    "load": "r^2 of the time of one process's backward of a window's last microbatch against what the microbatch holds",
    "validation": "on the measured machine, where processes share its cores: ms per update; measured is the median of "
    "the repeats, with the fastest and the slowest; one process, strong, gave the costs and so is met by construction",
    "predictions": "ms per update with a core for each thread of each rank: nothing here was measured. step_ms: no "
    "overlap; overlapped_ms: the all-reduce hidden behind the backward of the last microbatch as far as it fits; "
    "efficiency: one rank's step_ms, of strong scaling its W-th part, divided by this step",
    "unequal": "positions of a rank in a window, weak scaling: mean and slowest rank, ratio slowest / mean, lost: the "
    "share of the ranks' time spent waiting for the slowest; from the plan's own windows or simulated",
}


@dataclass(frozen=True)
class Unequal:
    """One number of ranks, weak scaling. source: the sharding that was simulated, or `plan`."""

    source: str
    ranks: int
    load: Load


@dataclass(frozen=True)
class Prediction:
    machine: Machine
    costs: Costs
    links: Mapping[str, Link]
    residuals: Sequence[Fitted]
    explained: Mapping[str, float | None]
    validation: Sequence[Validated]
    predictions: Sequence[Predicted]
    unequal: Sequence[Unequal]


def write_prediction(experiment: Experiment, at: Layout) -> str:
    """Returns the tables, as they stand in prediction.md.

    Raises EvidenceError when measurements are missing, malformed or incomplete.
    """
    found = rounded(document(predicted(experiment, at)))
    text = tables(found)
    write_text(at.prediction, to_json(found, sort_keys=False))
    write_text(at.prediction.with_suffix(".md"), text)
    save_prediction(found, outputs_of(at.prediction))
    log.info(text)
    return text


def predicted(experiment: Experiment, at: Layout) -> Prediction:
    machine = scaling_rows.read_machine(at.machine)
    timings = scaling_rows.read_timings(at.timings)
    reduced = scaling.allreduces(timings, machine.steps)
    points = scaling.points(scaling_rows.read_runs(at.runs_in_turn), reduced, machine)
    link, residuals = fit(scaling_rows.read_all_reduces(at.all_reduces), lambda ranks: crowding_on(machine, ranks))
    plan, rows = _prepared(experiment, at)
    loads = {
        (point.scaling, point.processes): load_of(plan_for(point.scaling, plan, point.processes)[: point.updates], rows)
        for point in points
    }
    costs = costs_of(points, scaling_rows.read_step_parts(at.step_parts), loads[STRONG, 1], reduced)
    links = links_of(experiment.network, link)
    judged = plan[:JUDGED]
    unequal = list(_unequal(experiment, judged, rows))
    weak = {each.ranks: each.load for each in unequal if each.source == _simulated_as(experiment)}
    return Prediction(
        machine=machine,
        costs=costs,
        links=links,
        residuals=residuals,
        explained=explained(timings, plan_for(STRONG, plan, 1), rows, scaling.warm_up(machine.steps) + 1),
        validation=validate(costs, points, loads, link, machine),
        predictions=[
            *predict(costs, STRONG, _strong_loads(judged, rows), links),
            *predict(costs, WEAK, weak, links),
        ],
        unequal=unequal,
    )


def links_of(given: Network, measured: Link) -> dict[str, Link]:
    """By network; what was not given is as measured."""
    if not given.is_given:
        return {MEASURED: measured}
    latency_s = measured.latency_s if given.latency_us is None else 1e-6 * given.latency_us
    byte_s = measured.byte_s if given.bandwidth_mb_s is None else 1e-6 / given.bandwidth_mb_s
    return {MEASURED: measured, GIVEN: Link(latency_s, byte_s)}


def _prepared(experiment: Experiment, at: Layout) -> tuple[Plan, Mapping[str, Row]]:
    rows, lock = read_corpus(at.rows, at.lock)
    settings = {name: value for name, value in dump(experiment).items() if name in PLAN_FIELDS}
    return read_plan(at.plan, lock["corpus_sha256"], settings), rows


def _strong_loads(plan: Plan, rows: Mapping[str, Row]) -> dict[int, Load]:
    """As far as each rank has a row in a full window."""
    most = max(sum(len(microbatch) for of_rank in window for microbatch in of_rank) for window in plan)
    return {ranks: load_of(plan_for(STRONG, plan, ranks), rows) for ranks in RANKS if ranks <= most}


def _simulated_as(experiment: Experiment) -> str:
    return BY_LENGTH if experiment.sharding == BY_LENGTH else BY_INDEX


def _unequal(experiment: Experiment, plan: Plan, rows: Mapping[str, Row]) -> Sequence[Unequal]:
    """The plan's own shares as far as there are so many different ones, and both ways to shard the corpus."""
    shares = sum(any(share) for window in plan for share in window)
    found = [Unequal("plan", n, load_of(plan_for(WEAK, plan, n), rows)) for n in RANKS if n <= shares]
    lengths = [length_of(row) for row in rows.values() if row.split == "train"]
    shape = {"batch": experiment.batch, "accumulation": experiment.accumulation, "seed": experiment.seed}
    for sharding in SHARDINGS:
        found += [Unequal(sharding, ranks, simulated(lengths, ranks, sharding=sharding, **shape)) for ranks in RANKS]
    return found


def document(of: Prediction) -> dict[str, Any]:
    """prediction.json, not rounded."""
    return {
        "machine": of.machine.model_dump(),
        "costs": asdict(of.costs),
        "networks": {
            name: {"latency_us": 1e6 * link.latency_s, "bandwidth_mb_s": link.bandwidth_mb_s}
            for name, link in of.links.items()
        },
        "fit": {"residuals": [_residual(each) for each in of.residuals]},
        "load": dict(of.explained),
        "validation": [_flat(asdict(each), "predicted") for each in of.validation],
        "predictions": [_flat(asdict(each), "step") for each in of.predictions],
        "unequal": [
            {"source": each.source, "ranks": each.ranks}
            | {"mean": each.load.mean, "slowest": each.load.slowest}
            | {"ratio": each.load.ratio, "lost": each.load.lost}
            for each in of.unequal
        ],
        "meanings": MEANINGS,
    }


def _residual(each: Fitted) -> dict[str, Any]:
    times = {"measured_ms": 1000 * each.measured_s, "fitted_ms": 1000 * each.fitted_s}
    errors = {"relative_error": each.relative_error, "used": each.used}
    return {"processes": each.processes, "bytes": each.bytes} | times | errors


def _flat(record: Mapping[str, Any], inside: str) -> dict[str, Any]:
    return {**{name: value for name, value in record.items() if name != inside}, **record[inside]}
