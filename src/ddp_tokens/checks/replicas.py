"""After training, every rank must hold the same parameters and buffers, bit for bit.

DDP keeps equal replicas equal. Where they differ, what the ranks started from says whether they were ever equal, and
whether parameters differ at all: buffers follow no gradient, only DDP's broadcast from rank 0 makes them equal.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy

from ddp_tokens.checkpoint_files import MODEL
from ddp_tokens.checks.gradient_norms import Arrays
from ddp_tokens.checks.tensor_files import first_bit_difference, layout_problem, max_abs_difference, read_arrays
from ddp_tokens.checks.verdict import INCONCLUSIVE, PASS, Verdict, outcome
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json
from ddp_tokens.start_files import start_state

WEIGHTS_DIFFER_AT_START = "weights_differ_at_start"
RANKS_DRIFT_APART = "ranks_drift_apart"
BUFFERS_DRIFT_APART = "buffers_drift_apart"
NOTHING_TO_COMPARE = " (one rank: there is nothing to compare)"
GATHERED = " (each rank holds parts of the parameters: compared is what each has gathered from all)"
# The criterion of the exercise that is measured. Every rank applies the same averaged gradient to the same weights, so
# 0 is what is due: `bit_equal` says whether it is reached, and decides nothing.
ATOL = 1e-5


def check_replicas(runs: Mapping[str, Path]) -> list[Verdict]:
    """`runs`: name -> folder, with ranks/state-rank-R.safetensors and ranks/start-rank-R.json for each rank."""
    return [_check_run(run, folder) for run, folder in runs.items()]


def _check_run(run: str, folder: Path) -> Verdict:
    world_size = len(list((folder / "ranks").glob("rank-*.jsonl")))
    paths = [folder / "ranks" / f"state-rank-{rank}.safetensors" for rank in range(world_size)]
    if not paths:
        raise EvidenceError(f"{folder / 'ranks'} holds no rank's history: train again")
    first, *others = [read_arrays(path) for path in paths]
    starts = [folder / "ranks" / start_state(rank) for rank in range(world_size)]
    documents = [read_json(path) for path in starts]
    models_at_start = {document["held"][MODEL] for document in documents}
    sharded = any(document.get("sharded") for document in documents)  # then each holds another part of one model
    buffers = set(documents[0]["buffers"])
    difference, largest, only_buffers = None, 0.0, True
    for rank, other in enumerate(others, start=1):
        largest = max(largest, max_abs_difference(first, other))
        found = first_bit_difference(first, other)
        if found and difference is None:
            difference = {"rank": rank, **found}
        only_buffers &= first_bit_difference(_without(buffers, first), _without(buffers, other)) is None
    return Verdict(
        case=run,
        expected=PASS if others else INCONCLUSIVE,
        outcome=outcome(difference is None and bool(first)) if others else INCONCLUSIVE,
        criterion="every rank's parameters and buffers equal those of rank 0, bit for bit"
        + GATHERED * sharded
        + ("" if others else NOTHING_TO_COMPARE),
        observed={
            "ranks": len(paths),
            "tensors": len(first),
            "buffers": len(buffers),
            "max_abs_difference": largest,
            **({} if sharded else {"different_models_at_start": len(models_at_start)}),
        },
        evidence=digests([*paths, *starts]),
        first_difference=difference,
        diagnosis=_diagnosis(1 if sharded else len(models_at_start), only_buffers) if difference else (),
    )


def _without(names: Set[str], arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name not in names}


def _diagnosis(models_at_start: int, only_buffers: bool) -> tuple[str, ...]:
    if models_at_start > 1:
        return (WEIGHTS_DIFFER_AT_START,)
    return (BUFFERS_DRIFT_APART if only_buffers else RANKS_DRIFT_APART,)


def check_measured_replicas(states: Sequence[Path]) -> Verdict:
    """`states`: what each rank holds after the last measured step, rank 0 first.

    `observed`: the largest difference from rank 0 of a value that both sides hold (finite ones only), and its tensor.
    """
    if not states:
        raise EvidenceError("no rank's state after the last measured step was given: measure again")
    first, *others = [read_arrays(path) for path in states]
    problem, largest, parameter = None, 0.0, None
    for rank, other in enumerate(others, start=1):
        for name in sorted(set(first) | set(other)):
            found, difference = _beyond(name, first, other)
            if difference > largest:
                largest, parameter = difference, name
            if found and problem is None:
                problem = {"rank": rank, **found}
    return Verdict(
        case="measured",
        expected=PASS if others else INCONCLUSIVE,
        outcome=outcome(problem is None and bool(first)) if others else INCONCLUSIVE,
        criterion=f"every value of every rank's parameters and buffers is within {ATOL:g} of rank 0's"
        + ("" if others else NOTHING_TO_COMPARE),
        observed={
            "ranks": len(states),
            "tensors": len(first),
            "max_abs_difference": largest,
            "parameter": parameter,
            "bit_equal": all(first_bit_difference(first, other) is None for other in others) if others else None,
        },
        evidence=digests(states),
        first_difference=problem,
    )


def _beyond(name: str, first: Arrays, other: Arrays) -> tuple[dict[str, Any] | None, float]:
    """What is beyond the criterion, or None, and the largest difference of finite values; of one tensor."""
    problem = layout_problem(name, first, other)
    if problem:
        return {"parameter": name, "problem": problem}, 0.0
    a, b = first[name].astype(float), other[name].astype(float)
    finite = numpy.isfinite(a) & numpy.isfinite(b)
    largest = float(abs(a[finite] - b[finite]).max(initial=0.0))
    if not finite.all():
        return {"parameter": name, "problem": f"values that are not finite: {int((~finite).sum())}"}, largest
    return ({"parameter": name, "max_abs_difference": largest} if largest > ATOL else None), largest
