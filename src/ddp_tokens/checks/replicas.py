"""After training, every rank must hold the same parameters and buffers, bit for bit.

DDP keeps equal replicas equal. Where they differ, what the ranks started from says whether they were ever equal.
"""

from collections.abc import Mapping
from pathlib import Path

from ddp_tokens.checkpoint_files import MODEL
from ddp_tokens.checks.tensor_files import first_bit_difference, max_abs_difference, read_arrays
from ddp_tokens.checks.verdict import INCONCLUSIVE, PASS, Verdict, outcome
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json
from ddp_tokens.start_files import start_state

WEIGHTS_DIFFER_AT_START = "weights_differ_at_start"
RANKS_DRIFT_APART = "ranks_drift_apart"


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
    models_at_start = {read_json(path)["held"][MODEL] for path in starts}
    difference, largest = None, 0.0
    for rank, other in enumerate(others, start=1):
        largest = max(largest, max_abs_difference(first, other))
        found = first_bit_difference(first, other)
        if found and difference is None:
            difference = {"rank": rank, **found}
    return Verdict(
        case=run,
        expected=PASS if others else INCONCLUSIVE,
        outcome=outcome(difference is None and bool(first)) if others else INCONCLUSIVE,
        criterion="every rank's parameters and buffers equal those of rank 0, bit for bit"
        + ("" if others else " (one rank: there is nothing to compare)"),
        observed={
            "ranks": len(paths),
            "tensors": len(first),
            "max_abs_difference": largest,
            "different_models_at_start": len(models_at_start),
        },
        evidence=digests([*paths, *starts]),
        first_difference=difference,
        diagnosis=_diagnosis(len(models_at_start)) if difference else (),
    )


def _diagnosis(models_at_start: int) -> tuple[str, ...]:
    return (WEIGHTS_DIFFER_AT_START if models_at_start > 1 else RANKS_DRIFT_APART,)
