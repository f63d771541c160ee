"""scaling/manifest.json: what was measured, where, and what each number means. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ddp_tokens.checks.replicas import ATOL
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import Experiment
from ddp_tokens.errors import EvidenceError
from ddp_tokens.lesson import lesson_notes
from ddp_tokens.scaling import Allreduce, Point, warm_up
from ddp_tokens.scaling_rows import DIFFERENCE, HOOK, MEASURE_AGAIN, STRONG, Machine

LAB = "01-ddp-on-cpu"
NOTHING_TO_REDUCE = "one rank: there is nothing to reduce, so allreduce_p50_ms and allreduce_p95_ms are null"
# What the three runs set, and why, is decided in distributed.wrap_for_ddp.
FIND_UNUSED = (
    "the runs that prove the exact resume set find_unused_parameters to true, since DDP then keeps its first layout of "
    "buckets: else a resumed process would add its first window in another order than the continuous one did, and its "
    "last bits could differ; the search for unused parameters costs time, which a measurement of DDP should not hold"
)
MEANINGS = {
    "per_sec": "supervised units of the plan's windows per second of the training loop, over all processes "
    "together (strong scaling: the same windows, their rows dealt to one or two processes); the median of the repeats",
    "byte_equivalent": "does every rank hold rank 0's bytes after the last measured step? null on one rank",
    "difference": "the slowest rank's backward with synchronization, less the slowest rank's backward without; noise "
    "can make it negative",
    "hook_with_waiting": "time in which at least one all-reduce of the window was under way, each from the moment its "
    "bucket was ready on the rank; of the rank that waited longest, waiting for slower ranks included",
    "hook_without_waiting": "the same of the rank that came last and waited for nobody",
    "backward_alone": "the slowest rank's backward without synchronization",
    "p50, p95": "percentiles over the steps after the warm-up, interpolated linearly between two values",
}


def manifest(
    experiment: Experiment,
    machine: Machine,
    points: Sequence[Point],
    reduced: Mapping[int, Allreduce],
    replicas: Verdict,
) -> dict[str, Any]:
    """In the file's order, with six significant digits. `points`, `reduced`: see scaling.points and scaling.allreduces.

    Raises EvidenceError when the all-reduce of the experiment's ranks was not timed; one rank has none.
    """
    strong = {point.processes: point for point in points if point.scaling == STRONG}
    hook = _headline(experiment.world_size, reduced)
    found = {
        "seed": experiment.seed,
        "lab": LAB,
        "launcher": machine.launcher,
        "backend": machine.backend,
        "world_size": experiment.world_size,
        "model_params": machine.model_params,
        "steps": machine.steps,
        "allreduce_p50_ms": hook.with_waiting.p50 if hook else None,
        "allreduce_p95_ms": hook.with_waiting.p95 if hook else None,
        f"{machine.unit}s_per_sec_1proc": strong[1].units_per_s_median,
        f"{machine.unit}s_per_sec_2proc": strong[2].units_per_s_median,
        "byte_equivalent": replicas.observed["bit_equal"],
        "lesson_notes": lesson_notes(points, reduced[2], machine, replicas),
        "machine": {
            "cpu": machine.cpu,
            "cores": machine.cores,
            "torch": machine.torch,
            "threads": machine.threads_per_rank,
        },
        **_details(experiment.world_size, machine, strong, reduced, replicas),
    }
    return {name: rounded(value) for name, value in found.items()}


def rounded(value: Any) -> Any:
    """Every float in it to six significant digits, more than the clocks give."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def _headline(world_size: int, reduced: Mapping[int, Allreduce]) -> Allreduce | None:
    if world_size == 1:
        return None
    if world_size not in reduced:
        raise EvidenceError(f"timings.jsonl holds no step of the experiment's {world_size} ranks; {MEASURE_AGAIN}")
    return reduced[world_size]


def _details(
    world_size: int,
    machine: Machine,
    strong: Mapping[int, Point],
    reduced: Mapping[int, Allreduce],
    replicas: Verdict,
) -> dict[str, Any]:
    headline = "variant hook, with waiting, of the experiment's world_size"
    return {
        "python": machine.python,
        "allreduce": NOTHING_TO_REDUCE if world_size == 1 else f"allreduce_p50_ms, allreduce_p95_ms: {headline}",
        "warm_up_steps": warm_up(machine.steps),
        "timings": [timings_of(of_size) for of_size in reduced.values()],
        "runs": {
            f"{processes}proc": {
                "repeats": point.repeats,
                "updates": point.updates,
                f"{machine.unit}s_per_update": point.units_per_update,
                f"{machine.unit}s_per_sec_min": point.units_per_s_min,
                f"{machine.unit}s_per_sec_max": point.units_per_s_max,
            }
            for processes, point in strong.items()
        },
        "replicas": {
            "outcome": replicas.outcome,
            "max_abs_difference": replicas.observed["max_abs_difference"],
            "parameter": replicas.observed["parameter"],
            "allowed": ATOL,
        },
        "ddp": {
            "find_unused_parameters": machine.find_unused_parameters,
            "bucket_cap_mb": machine.bucket_cap_mb,
            "gradient_as_bucket_view": machine.gradient_as_bucket_view,
            "in_the_proof": FIND_UNUSED,
        },
        "meanings": MEANINGS,
    }


def timings_of(of_size: Allreduce) -> dict[str, Any]:
    """Both variants of one world size, in ms."""
    return {
        "world_size": of_size.world_size,
        "bytes": of_size.bytes,
        "buckets": of_size.buckets,
        f"{DIFFERENCE}_ms": asdict(of_size.difference),
        f"{HOOK}_with_waiting_ms": asdict(of_size.with_waiting),
        f"{HOOK}_without_waiting_ms": asdict(of_size.without_waiting),
        "backward_alone_ms": asdict(of_size.backward_alone),
    }
