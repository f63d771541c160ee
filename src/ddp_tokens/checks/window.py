"""Does a window reduce once, after its last microbatch, and is nothing cleared or moved inside it?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_tokens.checks.verdict import PASS, Verdict, outcome
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json

WEIGHTS_UPDATED_INSIDE = "weights_updated_inside"
NEVER_REDUCED = "never_reduced"
REDUCED_EVERY_TIME = "reduced_in_every_microbatch"
ARMED_EARLY = "reducer_armed_early"
CLEARED_INSIDE = "gradients_cleared_inside"
CRITERION = (
    "on every rank each bucket is reduced once, after the last microbatch; gradients are cleared before the first "
    "microbatch only; no weight moves before the window is complete"
)


def check_window(directory: Path, world_size: int) -> list[Verdict]:
    """`directory`: one rank-R.json per rank, a window as `window_trace.trace` records it.

    Raises EvidenceError when there is none, or one is no such record.
    """
    paths = sorted(directory.glob("rank-*.json"))
    if not paths:
        raise EvidenceError(f"{directory} holds no rank-R.json: run gradients again")
    traces = [_whole(read_json(path), path) for path in paths]
    return [judge("one_window", traces, world_size, digests(paths))]


def _whole(trace: Any, path: Path) -> dict[str, Any]:
    try:
        complete = {"rank", "world_size", "microbatches", "moved"} <= set(trace) and all(
            {"gradients", "moved", "reductions"} <= set(forward) for forward in trace["forwards"]
        )
    except (TypeError, KeyError):
        complete = False
    if not complete:
        raise EvidenceError(f"{path} is no record of a window: run gradients again")
    whole: dict[str, Any] = trace
    return whole


def judge(case: str, traces: Sequence[Mapping[str, Any]], world_size: int, evidence: Mapping[str, str]) -> Verdict:
    """`traces`: of all ranks, each with `rank`, `microbatches`, `forwards` and `moved`."""
    problems = {of_rank["rank"]: problem for of_rank in traces if (problem := _problem(of_rank))}
    missing = sorted(set(range(world_size)) - {of_rank["rank"] for of_rank in traces})
    difference: dict[str, Any] | None = {"rank": missing[0], "problem": "no trace"} if missing else None
    if problems and difference is None:
        rank = min(problems)
        difference = {"rank": rank, "problem": problems[rank]}
    return Verdict(
        case=case,
        expected=PASS,
        outcome=outcome(difference is None),
        criterion=CRITERION,
        observed={
            "microbatches": [of_rank["microbatches"] for of_rank in traces],
            "reductions": [[len(forward["reductions"]) for forward in of_rank["forwards"]] for of_rank in traces],
            "error": sum(_superfluous(of_rank) for of_rank in traces),
            "tolerance": 0,
        },
        evidence=evidence,
        first_difference=difference,
        diagnosis=_diagnosis(traces) if difference is not None else (),
    )


def _superfluous(trace: Mapping[str, Any]) -> int:
    """Reductions too many or too few, against once for each bucket."""
    reduced = [bucket for forward in trace["forwards"] for bucket in forward["reductions"]]
    return abs(len(reduced) - max(1, len(set(reduced))))


def _problem(trace: Mapping[str, Any]) -> str | None:
    forwards, microbatches = trace["forwards"], trace["microbatches"]
    if len(forwards) != microbatches:
        return f"{len(forwards)} forward passes for {microbatches} microbatches"
    *earlier, last = forwards
    for index, forward in enumerate(earlier):
        if forward["reductions"]:
            return f"microbatch {index} of {microbatches} is reduced"
    if not last["reductions"] or sorted(last["reductions"]) != list(range(len(last["reductions"]))):
        return f"the last microbatch reduces buckets {last['reductions']}"
    if [forward["gradients"] for forward in forwards] != [index > 0 for index in range(microbatches)]:
        return "gradients are not cleared once, before the first microbatch"
    if trace["moved"] or any(forward["moved"] for forward in forwards):
        return "a weight moves inside the window"
    return None


def _diagnosis(traces: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The cause, not its consequences: weights that move inside a window explain whatever else is wrong with it."""
    forwards = [forward for of_rank in traces for forward in of_rank["forwards"]]
    if any(of_rank["moved"] for of_rank in traces) or any(forward["moved"] for forward in forwards):
        return (WEIGHTS_UPDATED_INSIDE,)
    if not any(forward["reductions"] for forward in forwards):
        return (NEVER_REDUCED,)
    if any(len(of_rank["forwards"]) > of_rank["microbatches"] for of_rank in traces):
        return (ARMED_EARLY,) if _reduced_early(traces) else ()
    if all(forward["reductions"] for forward in forwards) and len(forwards) > len(traces):
        return (REDUCED_EVERY_TIME,)
    if any(not forward["gradients"] for of_rank in traces for forward in of_rank["forwards"][1:]):
        return (CLEARED_INSIDE,)
    return ()


def _reduced_early(traces: Sequence[Mapping[str, Any]]) -> bool:
    return any(forward["reductions"] for of_rank in traces for forward in of_rank["forwards"][:-1])
