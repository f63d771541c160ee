"""Which known mistake explains a difference between a resumed run and what it should be. Plain values, no files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ddp_tokens.checkpoint_files import OPTIMIZER
from ddp_tokens.checks.generators import words_between
from ddp_tokens.files import sha256_of_json
from ddp_tokens.start_files import GENERATORS, SCALER, SCHEDULE, part_of_extra

ANOTHER_CORPUS = "another_corpus"
RANK_FILES_SWAPPED = "rank_files_swapped"
POSITION_OFF_BY_ONE = "position_off_by_one"
POSITION_RESET = "position_reset"
GENERATORS_NOT_RESTORED = "generators_not_restored"
ONLY_SEED_RESTORED = "only_seed_restored"
DRAWN_FROM_AFTER_RESTORING = "drawn_from_after_restoring"
OPTIMIZER_STATE_LOST = "optimizer_state_lost"
SCHEDULE_LOST = "schedule_lost"
SCALER_LOST = "scaler_lost"
HISTORY_NOT_CONTINUED = "history_not_continued"
SUMMED_IN_ANOTHER_ORDER = "summed_in_another_order"
# Of the largest parameter: a thousand roundings of float32, and far below what any other mistake leaves.
ROUNDING = 1e-4

HISTORIES = ("history", "rank_history")
Records = Sequence[Mapping[str, Any]]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """What a rank holds at one moment.

    `digests`: by part, see start_files. `generators`: torch's, whole. `records`: how many, by history.
    """

    digests: Mapping[str, str]
    generators: Mapping[str, NDArray[Any]]
    optimizer_tensors: int
    records: Mapping[str, int]


def differing(start: Held, checkpoint: Held) -> list[str]:
    """The parts in which both differ, in the order of what matters first: weights, optimizer, histories, extras,
    generators.
    """
    parts = dict.fromkeys((*checkpoint.digests, *start.digests))
    return [part for part in parts if start.digests.get(part) != checkpoint.digests.get(part)]


def of_start(
    start: Held,
    checkpoint: Held,
    histories: Mapping[str, Records],
    others: Sequence[Held],
    at_start_of_a_new_run: Mapping[str, str],
    when_seeded: Mapping[str, str],
) -> tuple[Names, dict[str, int]]:
    """Why a rank started from something else than its checkpoint: names, and numbers for `observed`.

    `histories`: the checkpoint's records by part. `others`: what the checkpoint holds for the other ranks. The last
    two: digests of what a run holds that starts anew, before its first update, and of its generators right after
    seeding.
    """
    parts = differing(start, checkpoint)
    generators = [part for part in parts if part in GENERATORS]
    explained = {
        OPTIMIZER_STATE_LOST: OPTIMIZER in parts and checkpoint.optimizer_tensors > start.optimizer_tensors == 0,
        SCHEDULE_LOST: _as_new(SCHEDULE, start, checkpoint, at_start_of_a_new_run),
        SCALER_LOST: _as_new(SCALER, start, checkpoint, at_start_of_a_new_run),
        HISTORY_NOT_CONTINUED: any(_lacks_first(start, part, histories[part]) for part in HISTORIES),
        RANK_FILES_SWAPPED: any(_same(start, other.digests, generators) for other in others)
        or ("rank_history" in parts and any(_same(start, other.digests, ["rank_history"]) for other in others)),
        GENERATORS_NOT_RESTORED: _same(start, at_start_of_a_new_run, generators),
        ONLY_SEED_RESTORED: _same(start, when_seeded, generators),
    }
    observed = {}
    stands_elsewhere = (RANK_FILES_SWAPPED, GENERATORS_NOT_RESTORED, ONLY_SEED_RESTORED)
    if generators == ["torch_cpu"] and not any(explained[name] for name in stands_elsewhere):
        words = words_between(checkpoint.generators["torch_cpu"], start.generators["torch_cpu"])
        if words:
            explained[DRAWN_FROM_AFTER_RESTORING] = True
            observed["words_drawn_after_restoring"] = words
    return tuple(name for name, holds in explained.items() if holds), observed


def _same(start: Held, digests: Mapping[str, str], parts: Sequence[str]) -> bool:
    """Whether all these parts, at least one, are what `digests` says."""
    return bool(parts) and all(part in digests and start.digests.get(part) == digests[part] for part in parts)


def _as_new(extra: str, start: Held, checkpoint: Held, at_start_of_a_new_run: Mapping[str, str]) -> bool:
    """Whether the checkpoint's state of an extra is gone, or is that of a new run instead."""
    part = part_of_extra(extra)
    ours, written = start.digests.get(part), checkpoint.digests.get(part)
    return written is not None and ours != written and ours in (None, at_start_of_a_new_run.get(part))


def _lacks_first(start: Held, part: str, records: Records) -> bool:
    """Whether the history is that of the checkpoint, `records`, without its first ones; also without any."""
    missing = len(records) - start.records[part]
    return missing > 0 and start.digests[part] == sha256_of_json(list(records[missing:]))


def of_identity(differing_names: Sequence[str]) -> Names:
    return (ANOTHER_CORPUS,) if "rows.jsonl" in differing_names else ()


def of_history(ours: Records, theirs: Records) -> Names:
    """`theirs` is the continuous run's."""
    missing = len(theirs) - len(ours)
    return (HISTORY_NOT_CONTINUED,) if ours and missing > 0 and list(ours) == list(theirs[missing:]) else ()


def of_rows(ours: Mapping[int, Any], theirs: Mapping[int, Any], interrupted_at: int) -> Names:
    """`ours`: update -> rows that the rank consumed in it after the resume. `theirs`: those of the continuous run."""
    shifts = {POSITION_OFF_BY_ONE: 1, POSITION_RESET: -interrupted_at}
    return tuple(name for name, shift in shifts.items() if _shifted(ours, theirs, shift))


def _shifted(ours: Mapping[int, Any], theirs: Mapping[int, Any], shift: int) -> bool:
    """Whether each update took the rows of the one `shift` updates later, as far as there is one; at least one is."""
    both = [step for step in ours if step + shift in theirs]
    return bool(both) and all(ours[step] == theirs[step + shift] for step in both)


def of_parameters(difference: float, largest: float, causes_excluded: bool) -> Names:
    """Why the weights differ at the end although every rank started and went on from the right state and rows."""
    return (SUMMED_IN_ANOTHER_ORDER,) if causes_excluded and 0 < difference <= ROUNDING * largest else ()
