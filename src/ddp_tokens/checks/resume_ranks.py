"""One rank of a resume: what it started from, the rows it consumed after, and what it held at the end."""

from pathlib import Path
from typing import Any

from ddp_tokens import checkpoint_files as names
from ddp_tokens.checks import resume_diagnosis as diagnosis
from ddp_tokens.checks.resume_diagnosis import Held
from ddp_tokens.checks.tensor_files import first_bit_difference, read_arrays, read_whole
from ddp_tokens.checks.verdict import PASS, Verdict, outcome
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json
from ddp_tokens.start_files import generator_digests, held_digests, start_state, start_tensors, torch_digests


def same_start(rank: int, world_size: int, interrupted: Path, resumed: Path, continuous: Path) -> Verdict:
    """What this rank of the resumed run held before its first update, against the checkpoint that it came from."""
    start, new_run = _started(resumed, rank), _start_document(continuous, rank)
    of_ranks = [_in_checkpoint(interrupted, other) for other in range(world_size)]
    parts = diagnosis.differing(start, of_ranks[rank])
    known, drawn = diagnosis.of_start(
        start,
        of_ranks[rank],
        _histories(interrupted, rank),
        [held for other, held in enumerate(of_ranks) if other != rank],
        new_run["held"],
        new_run["generators_when_seeded"],
    )
    of_rank = (names.COMMON, names.MANIFEST, names.rank_state(rank), names.rank_tensors(rank))
    paths = [*(interrupted / name for name in of_rank), *_start_paths(resumed, rank)]
    return Verdict(
        case=f"start_rank_{rank}",
        expected=PASS,
        outcome=outcome(not parts),
        criterion="before its first update after the resume, this rank holds what the interrupted checkpoint holds: "
        "parameters, optimizer state, histories and generators, bit for bit",
        observed={"parts": len(of_ranks[rank].digests), "differing": parts} | drawn,
        evidence=digests(paths),
        first_difference={"rank": rank, "state": parts[0]} if parts else None,
        diagnosis=known,
    )


def same_rows(rank: int, interrupted: Path, resumed: Path, continuous: Path) -> Verdict:
    """The rows of every update after the resume, against the continuous run's."""
    interrupted_at = read_json(interrupted / names.MANIFEST)["step"]
    paths = [directory / names.rank_state(rank) for directory in (resumed, continuous)]
    ours, theirs = ({record["step"]: record["rows"] for record in read_json(path)["history"]} for path in paths)
    ours = {step: rows for step, rows in ours.items() if step > interrupted_at}
    wanted = {step: rows for step, rows in theirs.items() if step > interrupted_at}
    differing = [step for step in sorted({*ours, *wanted}) if ours.get(step) != wanted.get(step)]
    first = differing[0] if differing else None
    return Verdict(
        case=f"rows_rank_{rank}",
        expected=PASS,
        outcome=outcome(not differing and bool(wanted)),
        criterion="in every update after the resume, this rank consumes the rows that it has in the continuous run",
        observed={"updates": len(wanted), "differing": len(differing)},
        evidence=digests(paths),
        first_difference=None
        if first is None
        else {"rank": rank, "step": first, "resumed": ours.get(first), "continuous": wanted.get(first)},
        diagnosis=diagnosis.of_rows(ours, theirs, interrupted_at) if differing else (),
    )


def same_end(rank: int, resumed: Path, continuous: Path) -> Verdict:
    """Generators and sampler history of one rank."""
    files = (names.rank_tensors(rank), names.rank_state(rank))
    paths = [directory / file for directory in (resumed, continuous) for file in files]
    difference = first_bit_difference(read_arrays(resumed / files[0]), read_arrays(continuous / files[0]))
    left, right = read_json(resumed / files[1]), read_json(continuous / files[1])
    for field in sorted((set(left) | set(right)) - {"identity_sha256"}):  # the case `identity` judges that one
        if difference is None and left.get(field) != right.get(field):
            difference = {"state": field}
    return Verdict(
        case=f"rank_{rank}",
        expected=PASS,
        outcome=outcome(difference is None),
        criterion="at the end, generator states and the rows that this rank has consumed equal the continuous run's",
        observed={"windows": len(right["history"])},
        evidence=digests(paths),
        first_difference=None if difference is None else {"rank": rank, **difference},
    )


def _start_paths(checkpoint: Path, rank: int) -> tuple[Path, Path]:
    """The start record of the run that a checkpoint belongs to."""
    ranks = checkpoint.parent / "ranks"
    return ranks / start_state(rank), ranks / start_tensors(rank)


def _start_document(checkpoint: Path, rank: int) -> dict[str, Any]:
    document: dict[str, Any] = read_json(_start_paths(checkpoint, rank)[0])
    return document


def _started(checkpoint: Path, rank: int) -> Held:
    """Raises EvidenceError when a file of the start record is missing, or when both are not of one run."""
    document, path = _start_document(checkpoint, rank), _start_paths(checkpoint, rank)[1]
    held, arrays = document["held"], read_arrays(path)
    of_arrays = {name: digest for name, digest in held.items() if name in names.TORCH_GENERATORS}
    if torch_digests(arrays) != of_arrays:
        raise EvidenceError(f"{path} does not belong to {start_state(rank)} beside it: train that run again")
    return Held(held, arrays, document["tensors"][names.OPTIMIZER], document["records"])


def _in_checkpoint(directory: Path, rank: int) -> Held:
    recorded = read_json(directory / names.MANIFEST)["sha256"]
    common, rank_part = read_json(directory / names.COMMON), read_json(directory / names.rank_state(rank))
    arrays = read_arrays(directory / names.rank_tensors(rank))
    generators = generator_digests(rank_part, arrays)
    weights, optimizer = (
        recorded.get(name) or recorded[names.rank_part(name, rank)] for name in (names.MODEL, names.OPTIMIZER)
    )
    held = held_digests(weights, optimizer, common, rank_part, generators)
    records = {part: len(of_part) for part, of_part in _histories(directory, rank).items()}
    return Held(held, arrays, len(read_whole(directory / names.OPTIMIZER)), records)


def _histories(directory: Path, rank: int) -> dict[str, Any]:
    of_all, of_rank = read_json(directory / names.COMMON), read_json(directory / names.rank_state(rank))
    return {"history": of_all["history"], "rank_history": of_rank["history"]}
