"""Is the interrupted and resumed run the uninterrupted one, bit for bit?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_tokens import checkpoint_files as names
from ddp_tokens.checks.tensor_files import first_bit_difference, max_abs_difference, read_arrays
from ddp_tokens.checks.verdict import Verdict, outcome
from ddp_tokens.files import digests, read_json, read_json_lines


def check_resume(interrupted: Path, continuous: Path, resumed: Path) -> list[Verdict]:
    """`interrupted`: the checkpoint that was resumed. `continuous`, `resumed`: the last checkpoints of both runs."""
    world_size = names.verify(resumed)["world_size"]
    names.verify(continuous)
    names.verify(interrupted)
    histories = [_jsonl_history(interrupted), _jsonl_history(resumed), _jsonl_history(continuous)]
    return [
        _moved(interrupted, continuous),
        _same_tensors("parameters", names.MODEL, resumed, continuous),
        _same_tensors("optimizer_state", names.OPTIMIZER, resumed, continuous),
        _same_history(interrupted, resumed, continuous, histories),
        *(_same_rank_state(rank, resumed, continuous) for rank in range(world_size)),
    ]


def _moved(before: Path, after: Path) -> Verdict:
    """Equality would prove nothing if the weights had stood still between the interruption and the end."""
    paths = [before / names.MODEL, after / names.MODEL]
    left, right = (read_arrays(path) for path in paths)
    still = [name for name in sorted(left) if left[name].tobytes() == right[name].tobytes()]
    return Verdict(
        case="weights_moved",
        expected="pass",
        outcome=outcome(not still),
        criterion="between the interruption and the end, every parameter changes",
        observed={
            "max_abs_difference": max_abs_difference(left, right),
            "parameters": len(left),
            "unmoved": len(still),
        },
        evidence=digests(paths),
        first_difference={"parameter": still[0]} if still else None,
    )


def _same_tensors(case: str, file: str, resumed: Path, continuous: Path) -> Verdict:
    paths = [resumed / file, continuous / file]
    left, right = (read_arrays(path) for path in paths)
    difference = first_bit_difference(left, right)
    if not left:
        difference = {"parameter": None, "problem": "there is no tensor to compare"}
    return Verdict(
        case=case,
        expected="pass",
        outcome=outcome(difference is None),
        criterion="every value of the resumed run equals that of the continuous run, bit for bit",
        observed={
            "tensors": len(right),
            "values": sum(array.size for array in right.values()),
            "max_abs_difference": max_abs_difference(left, right),
        },
        evidence=digests(paths),
        first_difference=difference,
    )


def _same_history(interrupted: Path, resumed: Path, continuous: Path, histories: list[list[dict[str, Any]]]) -> Verdict:
    """Both full histories agree, the interrupted one is their beginning, and the checkpoint holds the same."""
    beginning, ours, theirs = histories
    same = _first_record_difference(ours, theirs)
    same = same or _first_record_difference(beginning, theirs[: len(beginning)])
    same = same or _first_record_difference(read_json(resumed / names.COMMON)["history"], theirs)
    paths = [path.parent / "history.jsonl" for path in (interrupted, resumed, continuous)]
    return Verdict(
        case="history",
        expected="pass",
        outcome=outcome(same is None and 0 < len(beginning) < len(theirs)),
        criterion="units and loss sum of every update, before and after the interruption, equal the continuous run's",
        observed={"updates": len(ours), "updates_before_interruption": len(beginning)},
        evidence=digests(paths),
        first_difference=same,
    )


def _same_rank_state(rank: int, resumed: Path, continuous: Path) -> Verdict:
    """Generators and sampler history of one rank."""
    files = (names.rank_tensors(rank), names.rank_state(rank))
    paths = [directory / file for directory in (resumed, continuous) for file in files]
    difference = first_bit_difference(read_arrays(resumed / files[0]), read_arrays(continuous / files[0]))
    left, right = read_json(resumed / files[1]), read_json(continuous / files[1])
    for field in sorted(set(left) | set(right)):
        if difference is None and left.get(field) != right.get(field):
            difference = {"state": field}
    return Verdict(
        case=f"rank_{rank}",
        expected="pass",
        outcome=outcome(difference is None),
        criterion="generator states and the rows that this rank has consumed equal those of the continuous run",
        observed={"windows": len(right["history"])},
        evidence=digests(paths),
        first_difference=None if difference is None else {"rank": rank, **difference},
    )


def _jsonl_history(checkpoint: Path) -> list[dict[str, Any]]:
    return read_json_lines(checkpoint.parent / "history.jsonl")


def _first_record_difference(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Mapping[str, Any] | None:
    for a, b in zip(left, right, strict=False):
        if a != b:
            return {"step": b["step"], "resumed": a, "continuous": b}
    return (
        None
        if len(left) == len(right)
        else {"step": min(len(left), len(right)) + 1, "problem": "one history ends here"}
    )
