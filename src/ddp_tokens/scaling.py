"""From timed steps and timed runs to what they say: the all-reduce, units per second, and what was to be expected.

What was to be expected, per update of P processes:

    t(P) = T1(share) * f(P) + A(P)

- T1(share) is the measured time of one process. strong: per update, divided by P, since each process has 1/P of the
  rows; weak: per update, since each process has as many rows as the one.
- f(P) is how much longer a process computes because it shares its core: max(1, P * threads_per_rank / cores), divided
  by the same for one process (1, unless one process alone has more threads than there are cores).
- A(P) is the all-reduce of the gradients: the median that the hook timed at P processes, without waiting. A(1) is 0:
  what one process measured is taken as it is.

The model knows no waiting for the slower rank, no other collective, no optimizer that runs on every rank in full, and
no overlap of computing and all-reduce. What is measured beside it shows how much these matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy

from ddp_tokens.errors import EvidenceError
from ddp_tokens.scaling_rows import DIFFERENCE, HOOK, MEASURE_AGAIN, STRONG, WEAK, Machine, Run, Timing


@dataclass(frozen=True)
class Spread:
    """Of the steps after the warm-up, in ms.

    p50 and p95 are percentiles with linear interpolation: of n sorted values, the one at place 0.95 * (n - 1), counted
    from 0; between two values, as far from the lower one as the place is. Of 50 values, 0.55 of the way from the 47th
    to the 48th.
    """

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True)
class Allreduce:
    """The reduction of the gradients of `world_size` ranks, put together over the ranks step by step.

    `difference`: the step is over when the slowest rank is, so max(compute + communication) - max(compute).
    `with_waiting`: the hook's largest time. `without_waiting`: its smallest, since the rank that came last waited for
    nobody. `backward_alone`: the slowest rank's backward without synchronization. `bytes`, `buckets`: of one update, as
    the hook saw them, the largest of the steps.
    """

    world_size: int
    bytes: int
    buckets: int
    difference: Spread
    with_waiting: Spread
    without_waiting: Spread
    backward_alone: Spread


@dataclass(frozen=True)
class Point:
    """One row of scaling.csv: `repeats` runs of `processes`.

    units are supervised units, units_per_s those of all processes together; measured_ms is the time per update that
    belongs to the median. speedup: against the median of one process; efficiency: that divided by processes. ideal:
    one process's median times processes. expected: compute_ms and allreduce_ms, the parts of the model above.
    oversubscription: threads per core, at least 1.
    """

    scaling: str
    processes: int
    updates: int
    units_per_update: float
    repeats: int
    units_per_s_median: float
    units_per_s_min: float
    units_per_s_max: float
    speedup: float
    efficiency: float
    ideal_units_per_s: float
    expected_units_per_s: float
    compute_ms: float
    allreduce_ms: float
    measured_ms: float
    oversubscription: float


def warm_up(steps: int) -> int:
    """The first half does not count: of 100 steps, 51 to 100 are judged."""
    return steps // 2


def spread(milliseconds: Sequence[float]) -> Spread:
    p50, p95 = numpy.percentile(milliseconds, [50, 95], method="linear")
    return Spread(mean=float(numpy.mean(milliseconds)), p50=float(p50), p95=float(p95))


def allreduces(timings: Sequence[Timing], steps: int) -> dict[int, Allreduce]:
    """World size -> its all-reduce, for each that was timed. `steps`: how many were timed, the warm-up included.

    Raises EvidenceError unless each step from 1 to `steps` has one row of each rank, in both variants.
    """
    return {size: _allreduce(timings, size, steps) for size in sorted({timing.world_size for timing in timings})}


def _allreduce(timings: Sequence[Timing], world_size: int, steps: int) -> Allreduce:
    subtracted = _judged(timings, world_size, DIFFERENCE, steps)
    hooked = _judged(timings, world_size, HOOK, steps)
    in_ms = [[1000 * row.communication_s for row in rows] for rows in hooked]
    backwards = [1000 * max(row.compute_s for row in rows) for rows in subtracted]
    wholes = [1000 * max(row.compute_s + row.communication_s for row in rows) for rows in subtracted]
    return Allreduce(
        world_size=world_size,
        bytes=max(row.bytes for rows in hooked for row in rows),
        buckets=max(row.buckets for rows in hooked for row in rows),
        difference=spread([whole - alone for whole, alone in zip(wholes, backwards, strict=True)]),
        with_waiting=spread([max(of_ranks) for of_ranks in in_ms]),
        without_waiting=spread([min(of_ranks) for of_ranks in in_ms]),
        backward_alone=spread(backwards),
    )


def _judged(timings: Sequence[Timing], world_size: int, variant: str, steps: int) -> list[list[Timing]]:
    """The rows of each step after the warm-up."""
    by_step: dict[int, list[Timing]] = {step: [] for step in range(1, steps + 1)}
    for row in timings:
        if (row.world_size, row.variant) == (world_size, variant):
            by_step.setdefault(row.step, []).append(row)
    for step, rows in by_step.items():
        if step > steps or sorted(row.rank for row in rows) != list(range(world_size)):
            ranks = ", ".join(str(row.rank) for row in rows) or "none"
            raise EvidenceError(
                f"timings.jsonl, world size {world_size}, variant {variant}, step {step}: rows of the ranks "
                f"0 to {world_size - 1} are needed in the steps 1 to {steps}, found {ranks}; {MEASURE_AGAIN}"
            )
    return [by_step[step] for step in range(warm_up(steps) + 1, steps + 1)]


def require_all_runs(runs: Sequence[Run], processes: Sequence[int], repeats: int) -> None:
    """Raises EvidenceError unless each kind of scaling has each repeat, from 1 on, of each of these processes, once."""
    found = [(str(run.scaling), run.processes, run.repeat) for run in runs]
    needed = [(kind, of, repeat) for kind in (STRONG, WEAK) for of in processes for repeat in range(1, repeats + 1)]
    for run in sorted({*found, *needed}):
        if found.count(run) != needed.count(run):
            kind, of, repeat = run
            raise EvidenceError(
                f"runs.jsonl: the {kind} run of {counted(of)}, repeat {repeat}, stands there {found.count(run)} times "
                f"instead of {needed.count(run)}, as scaling.processes and scaling.repeats ask for; {MEASURE_AGAIN}"
            )


def points(runs: Sequence[Run], reduced: Mapping[int, Allreduce], machine: Machine) -> list[Point]:
    """A point for each (scaling, processes), strong first, in order of processes. `reduced`: see allreduces.

    Raises EvidenceError where runs of one or two processes are missing, or the all-reduce of a number of processes was
    not timed, or runs that are compared counted other units.
    """
    found = []
    for scaling in (STRONG, WEAK):
        grouped = _grouped(runs, scaling)
        one = median(_rates(grouped[1]))
        for processes, of_processes in grouped.items():
            if processes > 1 and processes not in reduced:
                raise EvidenceError(f"timings.jsonl holds no step of {processes} processes; {MEASURE_AGAIN}")
            allreduce_ms = reduced[processes].without_waiting.p50 if processes > 1 else 0.0
            found.append(_point(of_processes, grouped[1][0], one, allreduce_ms, machine))
    return found


def _point(of_processes: Sequence[Run], alone: Run, one: float, allreduce_ms: float, machine: Machine) -> Point:
    """`alone`, `one`: a run of one process, and the median of its units per second."""
    run, rates = of_processes[0], _rates(of_processes)
    units, rate = run.units / run.updates, median(rates)
    alone_ms = 1000 * alone.units / alone.updates / one
    share = alone_ms / run.processes if run.scaling == STRONG else alone_ms
    shared = oversubscription(run.processes, machine)
    compute_ms = share * shared / oversubscription(1, machine)
    return Point(
        scaling=run.scaling,
        processes=run.processes,
        updates=run.updates,
        units_per_update=units,
        repeats=len(rates),
        units_per_s_median=rate,
        units_per_s_min=min(rates),
        units_per_s_max=max(rates),
        speedup=rate / one,
        efficiency=rate / one / run.processes,
        ideal_units_per_s=one * run.processes,
        expected_units_per_s=1000 * units / (compute_ms + allreduce_ms),
        compute_ms=compute_ms,
        allreduce_ms=allreduce_ms,
        measured_ms=1000 * units / rate,
        oversubscription=shared,
    )


def oversubscription(processes: int, machine: Machine) -> float:
    """Threads per core, at least 1."""
    return max(1.0, processes * machine.threads_per_rank / machine.cores)


def counted(processes: int) -> str:
    return f"{processes} process" + ("es" if processes > 1 else "")


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run.units / run.seconds for run in runs]


def _grouped(runs: Sequence[Run], scaling: str) -> dict[int, list[Run]]:
    """Processes -> its runs, of one kind of scaling."""
    of_kind = sorted((run for run in runs if run.scaling == scaling), key=lambda run: (run.processes, run.repeat))
    grouped: dict[int, list[Run]] = {}
    for run in of_kind:
        grouped.setdefault(run.processes, []).append(run)
    for processes in (1, 2):
        if processes not in grouped:
            raise EvidenceError(f"runs.jsonl holds no {scaling} run of {counted(processes)}; {MEASURE_AGAIN}")
    for processes, group in grouped.items():
        which = f"{scaling} runs of {counted(processes)}"
        if len({run.repeat for run in group}) < len(group):
            raise EvidenceError(f"runs.jsonl: {which} hold a repeat twice; {MEASURE_AGAIN}")
        _require_same_work(group, which)
    if scaling == STRONG:
        _require_same_work(of_kind, "strong runs, which share the same windows,")
    return grouped


def _require_same_work(runs: Sequence[Run], which: str) -> None:
    work = sorted({(run.updates, run.units) for run in runs})
    if len(work) > 1:
        (updates, units), (others, other_units) = work[:2]
        raise EvidenceError(
            f"runs.jsonl: {which} counted {units} units in {updates} updates and {other_units} in {others}; "
            f"{MEASURE_AGAIN}"
        )


def table(of_points: Sequence[Point]) -> str:
    """scaling.csv, with six significant digits. pandas is imported here: figure and lesson have no use for it."""
    import pandas

    frame = pandas.DataFrame([asdict(point) for point in of_points])
    return str(frame.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
