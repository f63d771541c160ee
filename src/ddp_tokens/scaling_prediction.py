"""How long an update takes on other numbers of ranks, from what was measured on a few. No torch.

    t(W) = f (fixed + computing of the mean rank + small collectives + all-reduce of the gradients) + waiting

- Computing is a cost per padded position (data, forward, backward) times the positions of the mean rank; waiting is
  what the slowest rank has more. Where ranks share cores, one that waits leaves its core to the others: both together
  take as long as all the work on all the cores, or as the slowest rank alone, whichever is longer.
- fixed is what each rank does in full whatever its rows: optimizer, copies into buckets, the rest of the loop.
- Collectives cost what a ring does, see ring.py: the gradients in as many buckets as DDP made, and two small ones, of
  counts and of loss sums.
- f: how much longer a process takes where it shares its core (scaling.oversubscription), 1 where it has one.

Without overlap these add up. With full overlap the all-reduce hides behind the backward of the slowest rank's last
microbatch as far as it fits. The truth lies between: the last bucket can't start before that backward ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_tokens.errors import EvidenceError
from ddp_tokens.loads import Load
from ddp_tokens.ring import Link, ring_s
from ddp_tokens.scaling import Allreduce, Point, oversubscription
from ddp_tokens.scaling_rows import MEASURE_AGAIN, STRONG, Machine, StepParts
from ddp_tokens.step_figure import means_ms

RANKS = tuple(2**power for power in range(11))  # 1 to 1,024
SMALL_COLLECTIVES = 2  # per update: window.count_window and window.sums_of_window
OF_POSITIONS = ("data", "forward", "backward")


@dataclass(frozen=True)
class Costs:
    """In ms. backward_ms: the part of position_ms that is backward. bytes, buckets: of the gradients."""

    position_ms: float
    backward_ms: float
    fixed_ms: float
    bytes: int
    buckets: int


@dataclass(frozen=True)
class Step:
    """One update, in ms. step_ms: all parts. overlapped_ms: that without what hides behind the backward."""

    compute_ms: float
    waiting_ms: float
    fixed_ms: float
    small_ms: float
    all_reduce_ms: float
    step_ms: float
    overlapped_ms: float


@dataclass(frozen=True)
class Validated:
    """Predicted beside measured, in ms per update: the median of the repeats, with the fastest and the slowest.

    relative_error: of the prediction without overlap, against the median.
    """

    scaling: str
    processes: int
    predicted: Step
    measured_ms: float
    measured_min_ms: float
    measured_max_ms: float
    relative_error: float
    relative_error_overlapped: float


@dataclass(frozen=True)
class Predicted:
    """`efficiency`: the step of one rank, of strong scaling divided by `ranks`, over this step."""

    scaling: str
    network: str
    ranks: int
    step: Step
    efficiency: float
    efficiency_overlapped: float


def costs_of(
    points: Sequence[Point], parts: Sequence[StepParts], alone: Load, reduced: Mapping[int, Allreduce]
) -> Costs:
    """From one process on the plan's windows. `alone`: its load in them.

    The time is that of the runs; which share of it positions take, and which is fixed, is told by the updates that
    were taken apart. Raises EvidenceError where these or two processes are missing.
    """
    [one] = [point for point in points if (point.scaling, point.processes) == (STRONG, 1)]
    means = means_ms(parts)
    if 1 not in means or 2 not in reduced:
        missing = "timings.jsonl holds no step of 2" if 1 in means else "step_parts.jsonl holds no update of one"
        raise EvidenceError(f"{missing} process{'es' if 1 in means else ''}; {MEASURE_AGAIN}")
    whole = sum(means[1].values())
    per_position = one.measured_ms / whole / alone.mean
    of_positions = sum(means[1][part] for part in OF_POSITIONS)
    return Costs(
        position_ms=per_position * of_positions,
        backward_ms=per_position * means[1]["backward"],
        fixed_ms=one.measured_ms * (1 - of_positions / whole),
        bytes=reduced[2].bytes,
        buckets=reduced[2].buckets,
    )


def step_of(costs: Costs, load: Load, ranks: int, link: Link, crowding: float = 1.0) -> Step:
    """`crowding`: see crowding_on; 1 where each rank has cores of its own."""
    compute = costs.position_ms * load.mean * crowding
    waiting = max(0.0, costs.position_ms * load.slowest - compute)
    fixed = costs.fixed_ms * crowding
    small = 1000 * crowding * ring_s(ranks, 0, link, SMALL_COLLECTIVES)
    reducing = 1000 * crowding * ring_s(ranks, costs.bytes, link, costs.buckets)
    last_backward = costs.backward_ms / costs.position_ms * (compute + waiting) / load.microbatches
    whole = compute + waiting + fixed + small + reducing
    return Step(compute, waiting, fixed, small, reducing, whole, whole - min(reducing, last_backward))


def crowding_on(machine: Machine, ranks: int) -> float:
    """How much longer each of so many processes takes there than one does."""
    return oversubscription(ranks, machine) / oversubscription(1, machine)


def validate(
    costs: Costs, points: Sequence[Point], loads: Mapping[tuple[str, int], Load], link: Link, machine: Machine
) -> list[Validated]:
    """`loads`: by (scaling, processes), of the windows that were measured. On the measured machine with its cores."""
    found = []
    for point in points:
        load, crowding = loads[point.scaling, point.processes], crowding_on(machine, point.processes)
        step = step_of(costs, load, point.processes, link, crowding)
        of_update = 1000 * point.units_per_update
        found.append(
            Validated(
                scaling=point.scaling,
                processes=point.processes,
                predicted=step,
                measured_ms=point.measured_ms,
                measured_min_ms=of_update / point.units_per_s_max,
                measured_max_ms=of_update / point.units_per_s_min,
                relative_error=step.step_ms / point.measured_ms - 1,
                relative_error_overlapped=step.overlapped_ms / point.measured_ms - 1,
            )
        )
    return found


def predict(costs: Costs, scaling: str, loads: Mapping[int, Load], links: Mapping[str, Link]) -> list[Predicted]:
    """A core for each thread of each rank. `loads`: by number of ranks, 1 among them; `links`: by network."""
    found = []
    for name, link in links.items():
        alone = step_of(costs, loads[1], 1, link).step_ms
        for ranks, load in loads.items():
            step = step_of(costs, load, ranks, link)
            ideal = alone / ranks if scaling == STRONG else alone
            found.append(Predicted(scaling, name, ranks, step, ideal / step.step_ms, ideal / step.overlapped_ms))
    return found
