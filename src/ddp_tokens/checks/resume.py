"""Is the interrupted and resumed run the uninterrupted one, bit for bit?"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_tokens import checkpoint_files as names
from ddp_tokens.checks import resume_diagnosis as diagnosis
from ddp_tokens.checks.resume_ranks import same_end, same_rows, same_start
from ddp_tokens.checks.tensor_files import first_bit_difference, max_abs_difference, read_whole
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict, outcome
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import digests, read_json, read_json_lines
from ddp_tokens.identity import INEXACT, ONLY_BITS, PAST


def check_resume(interrupted: Path, continuous: Path, resumed: Path) -> list[Verdict]:
    """`interrupted`: the checkpoint that was resumed. `continuous`, `resumed`: the last checkpoints of both runs.

    The first verdict says whether all three are whole; where one is not, it stands alone. A known mistake is named by
    the verdict that sees its cause; one that only sees what follows from it, such as other weights, names nothing.
    """
    checkpoints = {"interrupted": interrupted, "continuous": continuous, "resumed": resumed}
    whole, world_size = _whole(checkpoints)
    if whole.outcome != PASS:
        return [whole]
    ranks = range(world_size)
    causes = [
        _same_identity(checkpoints),
        *(same_start(rank, world_size, interrupted, resumed, continuous) for rank in ranks),
        *(same_rows(rank, interrupted, resumed, continuous) for rank in ranks),
    ]
    parameters = _same_tensors("parameters", names.MODEL, resumed, continuous)
    found = diagnosis.of_parameters(
        parameters.observed["max_abs_difference"],
        parameters.observed["largest_value"],
        all(verdict.outcome == PASS for verdict in causes),
    )
    return [
        whole,
        *causes,
        _moved(interrupted, continuous),
        replace(parameters, diagnosis=found if parameters.outcome == FAIL else ()),
        _same_tensors("optimizer_state", names.OPTIMIZER, resumed, continuous),
        _same_history(interrupted, resumed, continuous),
        *(same_end(rank, resumed, continuous) for rank in ranks),
    ]


def _whole(checkpoints: Mapping[str, Path]) -> tuple[Verdict, int]:
    """The verdict, and the number of ranks."""
    sizes: dict[str, int] = {}
    difference: dict[str, Any] | None = None
    try:
        for name, directory in checkpoints.items():
            sizes[name] = names.verify(directory)["world_size"]
    except CheckpointError as error:
        difference = {"problem": str(error)}
    if difference is None and len(set(sizes.values())) > 1:
        difference = {"world_size": sizes}
    verdict = Verdict(
        case="checkpoints_whole",
        expected=PASS,
        outcome=outcome(difference is None),
        criterion="the three checkpoints are whole and of the same number of ranks",
        observed={"ranks": sizes},
        evidence=digests(path for path in (d / names.MANIFEST for d in checkpoints.values()) if path.is_file()),
        first_difference=difference,
    )
    return verdict, max(sizes.values(), default=0)


def _same_identity(checkpoints: Mapping[str, Path]) -> Verdict:
    """A resume compares these too, and refuses; this is what the three runs themselves say."""
    paths = {run: directory / names.COMMON for run, directory in checkpoints.items()}
    recorded = {run: read_json(path)["identity"] for run, path in paths.items()}
    ours = recorded["continuous"]
    differing = sorted(
        {name for of_run in recorded.values() for name in {*of_run, *ours} if of_run.get(name) != ours.get(name)}
    )
    values = {run: {name: of_run.get(name) for name in differing} for run, of_run in recorded.items()}
    let_differ = recorded["resumed"].get(INEXACT, [])
    inexact = bool(let_differ) and set(differing) <= {INEXACT, *ONLY_BITS}
    return Verdict(
        case="identity",
        expected=INCONCLUSIVE if inexact else PASS,
        outcome=INCONCLUSIVE if inexact else outcome(not differing),
        criterion="the three runs had the same settings, data, order of data, initial weights, code and versions"
        + (f" (inexact: {PAST[INEXACT]} let {_fields(let_differ)} differ, so equal bits are not claimed)" * inexact),
        observed={"fields": len(ours), "differing": differing} | ({"inexact": let_differ} if let_differ else {}),
        evidence=digests(paths.values()),
        first_difference={"fields": differing, **values} if differing else None,
        diagnosis=diagnosis.of_identity(differing),
    )


def _fields(entries: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({field for entry in entries for field in entry} - {"step"}))


def _moved(before: Path, after: Path) -> Verdict:
    """Equality would prove nothing if the weights had stood still between the interruption and the end."""
    paths = [before / names.MODEL, after / names.MODEL]
    left, right = (read_whole(path) for path in paths)
    both = sorted(set(left) & set(right))
    still = [name for name in both if left[name].tobytes() == right[name].tobytes()]
    return Verdict(
        case="weights_moved",
        expected=PASS,
        outcome=outcome(bool(both) and not still),
        criterion="between the interruption and the end, every parameter changes",
        observed={
            "max_abs_difference": max_abs_difference(left, right),
            "parameters": len(both),
            "unmoved": len(still),
        },
        evidence=digests(part for path in paths for part in names.parts_of(path)),
        first_difference={"parameter": still[0]} if still else None,
    )


def _same_tensors(case: str, file: str, resumed: Path, continuous: Path) -> Verdict:
    """An optimizer without momentum keeps no tensor: then there is nothing that a resume could lose, or prove."""
    paths = [resumed / file, continuous / file]
    left, right = (read_whole(path) for path in paths)
    difference = first_bit_difference(left, right)
    empty = not left and not right
    return Verdict(
        case=case,
        expected=INCONCLUSIVE if empty else PASS,
        outcome=INCONCLUSIVE if empty else outcome(difference is None),
        criterion="every value of the resumed run equals that of the continuous run, bit for bit"
        + (" (there is no value to compare)" if empty else ""),
        observed={
            "tensors": len(right),
            "values": sum(array.size for array in right.values()),
            "max_abs_difference": max_abs_difference(left, right),
            "largest_value": max((float(abs(array).max()) for array in right.values() if array.size), default=0.0),
        },
        evidence=digests(part for path in paths for part in names.parts_of(path)),
        first_difference=difference,
    )


def _same_history(interrupted: Path, resumed: Path, continuous: Path) -> Verdict:
    """Both full histories agree, the interrupted one is their beginning, and the checkpoints hold the same."""
    paths = [path.parent / "history.jsonl" for path in (interrupted, resumed, continuous)]
    beginning, ours, theirs = (read_json_lines(path) for path in paths)
    pairs = [(ours, theirs), (beginning, theirs[: len(beginning)])]
    for checkpoint in (resumed, continuous):
        pairs.append((read_json(checkpoint / names.COMMON)["history"], theirs))
    differences = [difference for pair in pairs if (difference := _first_record_difference(*pair))]
    if not 0 < len(beginning) < len(theirs):
        differences.append({"problem": f"{len(beginning)} updates before the interruption, {len(theirs)} in all"})
    first = differences[0] if differences else None
    return Verdict(
        case="history",
        expected=PASS,
        outcome=outcome(first is None),
        criterion="units and loss sum of every update, before and after the interruption, equal the continuous run's",
        observed={"updates": len(ours), "updates_before_interruption": len(beginning)},
        evidence=digests(paths),
        first_difference=first,
        diagnosis=diagnosis.of_history(ours, theirs),
    )


def _first_record_difference(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Mapping[str, Any] | None:
    for a, b in zip(left, right, strict=False):
        if a != b:
            return {"step": b["step"], "resumed": a, "continuous": b}
    return (
        None
        if len(left) == len(right)
        else {"step": min(len(left), len(right)) + 1, "problem": "one history ends here"}
    )
