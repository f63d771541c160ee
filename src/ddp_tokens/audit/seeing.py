"""What the ranks of a window did, from what each told: facts to count with, causes, doubts and notes. No torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_tokens.audit.judging import Seen
from ddp_tokens.audit.meanings import CLIPPED_INSIDE, GRADIENTS_DIFFER, WEIGHTS_DIFFER
from ddp_tokens.checks.verdict import FAIL, PASS
from ddp_tokens.checks.window import CLEARED_INSIDE, REDUCED_EVERY_TIME, WEIGHTS_UPDATED_INSIDE
from ddp_tokens.errors import AuditError
from ddp_tokens.window_facts import Counts, WindowFacts, exact

Told = Sequence[Mapping[str, Any]]


def facts_of(told: Told, accumulation: int, previous_units: float | None, window: int, module: str) -> WindowFacts:
    """Raises AuditError where a rank met a problem, where no rank ran the module, and where no unit was supervised."""
    for rank, of_rank in enumerate(told):
        if of_rank["problem"]:
            raise AuditError(f"rank {rank}, window {window}: {of_rank['problem']}")
    units = tuple(tuple(exact(float(one)) for one in of_rank) for of_rank in _counts(told, "units"))
    if not any(units):
        if any(of_rank["without_backward"] for of_rank in told):
            raise AuditError(
                f"window {window}: {module} ran and no backward reached what it returned, on any rank: pass the module "
                "whose outputs the loss is made of"
            )
        raise AuditError(
            f"window {window}: the optimizer updates and {module} was not called with gradients enabled on any rank: "
            "pass the module whose outputs the loss is made of"
        )
    total = sum(map(sum, units))
    if total == 0:
        raise AuditError(
            f"window {window}: loss_sum counts no supervised unit on any rank, so there is no mean: check how it "
            "counts, or leave such windows out"
        )
    most = max(accumulation, *map(len, units))
    labels, positions = (_at_least(_counts(told, name), units) for name in ("labels", "positions"))
    return WindowFacts(units, labels, positions, most, None if previous_units is None else exact(previous_units))


def seen_in(told: Told) -> Seen:
    sure = any(of_rank["is_surely_sum"] for of_rank in told)
    return Seen(_causes(told), _doubts(told), sure)


def described(told: Told) -> dict[str, Any]:
    """`collectives`: that began in each microbatch's backward."""
    return {
        "world_size": len(told),
        "microbatches": [len(of_rank["microbatches"]) for of_rank in told],
        "units": [list(of_rank) for of_rank in _counts(told, "units")],
        "rows": [[len(one["rows"]) for one in of_rank["microbatches"]] for of_rank in told],
        "positions": [list(of_rank) for of_rank in _counts(told, "positions")],
        "collectives": [_reductions(of_rank) for of_rank in told],
    }


def notes_of_causes(seen: Seen, outcome: str) -> list[str]:
    """Where they have not made the window fail, and so are not in its verdict."""
    if outcome == FAIL:
        return []
    but = ", and the gradient is right all the same" if outcome == PASS else ""
    return [f"{name}: {sentence}{but}" for name, sentence in seen.causes.items()]


def notes_of(told: Told) -> list[str]:
    notes = []
    for clipping in told[0]["clippings"]:
        if clipping["factor"] < 1:
            notes.append(
                f"clipped from norm {clipping['norm']:.4g} to {clipping['max_norm']:.4g}, which is undone here"
            )
    notes += [f"rank {rank}: {note}" for rank, of_rank in enumerate(told) for note in of_rank["notes"]]
    notes += told[0]["not_compared"]
    notes += _repeated(told)
    reductions = [_reductions(of_rank) for of_rank in told]
    is_sharded = any(of_rank["is_sharded"] for of_rank in told)  # whose parameters are gathered there, too
    if not is_sharded and all(len(of_rank) > 1 and all(of_rank) for of_rank in reductions):
        notes.append(f"{REDUCED_EVERY_TIME}: ranks exchange gradients in every microbatch, where once would do")
    return notes


def _causes(told: Told) -> dict[str, str]:
    causes = {}
    for rank, of_rank in enumerate(told):
        ones = of_rank["microbatches"]
        moved = len({one["versions"] for one in ones} | {of_rank["versions"]}) > 1
        if moved and not of_rank["is_sharded"]:  # gathering a sharded one changes its version
            causes[WEIGHTS_UPDATED_INSIDE] = f"on rank {rank} a parameter changes inside the window"
        for index, one in enumerate(ones):
            if one["gradients_due"] and not one["gradients_there"] and not of_rank["is_sharded"]:
                causes[CLEARED_INSIDE] = f"on rank {rank} gradients are cleared before microbatch {index + 1}"
        for clipping in of_rank["clippings"]:
            if clipping["after"] < len(ones) and clipping["factor"] < 1:
                causes[CLIPPED_INSIDE] = f"on rank {rank} gradients are clipped after microbatch {clipping['after']}"
    for name, what, cause in (
        ("weights", "parameters", WEIGHTS_DIFFER),
        ("gradients", "gradients", GRADIENTS_DIFFER),
    ):
        different = [rank for rank, of_rank in enumerate(told) if of_rank[name] != told[0][name]]
        if different:
            causes[cause] = (
                f"rank {different[0]} holds {what} that differ in some bits from those of rank 0 at the update"
            )
    return causes


def _doubts(told: Told) -> list[str]:
    return [
        f"rank {rank}: {doubt}"
        for rank, of_rank in enumerate(told)
        for doubt in of_rank["doubts"]
        if not any(doubt in before["doubts"] for before in told[:rank])
    ]


def _counts(told: Told, name: str) -> Counts:
    return tuple(tuple(one[name] for one in of_rank["microbatches"]) for of_rank in told)


def _at_least(counts: Counts, units: Counts) -> Counts:
    """Where a batch has no labels that could be counted, its units stand in."""
    return tuple(tuple(map(max, a, b)) for a, b in zip(counts, units, strict=True))


def _reductions(of_rank: Mapping[str, Any]) -> list[int | None]:
    times = [one["collectives"] for one in of_rank["microbatches"]]
    return [of_one[3] - of_one[2] if len(of_one) > 3 else None for of_one in times]


def _repeated(told: Told) -> list[str]:
    """Rows are told by their content, so that short rows may be alike by chance."""
    of_ranks = [Counter(row for one in of_rank["microbatches"] for row in one["rows"]) for of_rank in told]
    notes = []
    for rank, rows in enumerate(of_ranks):
        for other in range(rank):
            if rows and rows == of_ranks[other]:
                notes.append(f"rank {rank} saw the rows of rank {other}")
    total = sum(of_ranks, Counter[str]())
    repeated = total.total() - len(total)
    if repeated:
        notes.append(f"{repeated} of {total.total()} rows have the content of another row of the window")
    return notes
