"""After training, every rank must hold the same parameters and buffers, bit for bit."""

from collections.abc import Mapping
from pathlib import Path

from ddp_tokens.checks.tensor_files import first_bit_difference, max_abs_difference, read_arrays
from ddp_tokens.checks.verdict import INCONCLUSIVE, PASS, Verdict, outcome
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests


def check_replicas(runs: Mapping[str, Path]) -> list[Verdict]:
    """`runs`: name -> folder, with ranks/state-rank-R.safetensors for each rank."""
    return [_check_run(run, folder) for run, folder in runs.items()]


def _check_run(run: str, folder: Path) -> Verdict:
    world_size = len(list((folder / "ranks").glob("rank-*.jsonl")))
    paths = [folder / "ranks" / f"state-rank-{rank}.safetensors" for rank in range(world_size)]
    if not paths:
        raise EvidenceError(f"{folder / 'ranks'} holds no rank's history: train again")
    first, *others = [read_arrays(path) for path in paths]
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
        observed={"ranks": len(paths), "tensors": len(first), "max_abs_difference": largest},
        evidence=digests(paths),
        first_difference=difference,
    )
