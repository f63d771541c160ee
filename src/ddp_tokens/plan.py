"""Who computes which rows when. plan[step][rank][microbatch] -> row ids, for every update of the run."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.errors import PREPARE_AGAIN, PlanError
from ddp_tokens.files import read_json

Microbatch = list[str]
Window = list[list[Microbatch]]
Plan = list[Window]

PLAN_SEED_OFFSET = 10
BY_LENGTH, BY_INDEX, BY_EPOCH = "by_length", "by_index", "by_epoch"
# epoch -> by rank, indices of the rows that it has in that epoch
Deal = Callable[[int], list[list[int]]]


def make_shard(rank: int, world_size: int, rows: Sequence[Row]) -> list[str]:
    """Ids of the rows whose index modulo `world_size` is `rank`."""
    return [row.id for index, row in enumerate(rows) if index % world_size == rank]


def pools(rows: Sequence[Row], world_size: int, sharding: str = BY_LENGTH) -> list[list[str]]:
    """Split row ids into one pool per rank: in order of length and id, shortest first, or by index.

    Every row is in exactly one pool; sizes differ by at most one.
    """
    if sharding == BY_INDEX:
        return [make_shard(rank, world_size, rows) for rank in range(world_size)]
    ordered = [row.id for row in sorted(rows, key=lambda row: (len(row.labels), row.id))]
    return _split(ordered, world_size)


def require_large_pools(rows: int, world_size: int, accumulation: int, batch: int) -> None:
    """Raises PlanError when the smallest pool of `rows` training rows has too few for one window."""
    needed, smallest = accumulation * batch, rows // world_size
    if needed > smallest:
        raise PlanError(
            f"accumulation x batch = {accumulation} x {batch} = {needed} rows per rank and window, but the smallest "
            f"pool holds {smallest} ({rows} training rows over world_size {world_size}): "
            "lower batch or accumulation, or give more training rows"
        )


def make_plan(
    rows: Sequence[Row],
    *,
    seed: int,
    steps: int,
    world_size: int,
    accumulation: int,
    batch: int,
    sharding: str = BY_LENGTH,
) -> Plan:
    """Each rank draws accumulation * batch rows of its pool per window, without replacement inside it, anew in each.

    By length, one generator draws for all ranks; by index, rank r has a data seed of its own, seed + r.
    Raises PlanError when a pool is too small for one window.
    """
    require_large_pools(len(rows), world_size, accumulation, batch)
    of_rank = pools(rows, world_size, sharding)
    needed = accumulation * batch
    if sharding == BY_INDEX:
        generators = [random.Random(seed + rank) for rank in range(world_size)]
    else:
        generators = [random.Random(seed + PLAN_SEED_OFFSET)] * world_size
    plan = []
    for _ in range(steps):
        draws = [rng.sample(pool, needed) for rng, pool in zip(generators, of_rank, strict=True)]
        plan.append([[drawn[i : i + batch] for i in range(0, needed, batch)] for drawn in draws])
    return plan


def make_epochs(rows: Sequence[Row], deal: Deal, *, steps: int, accumulation: int, batch: int, drop_last: bool) -> Plan:
    """As many windows as there are updates, epoch after epoch; the last epoch may end early.

    Without `drop_last` the last window of an epoch holds what is left. A rank that has nothing left takes part in it
    with a microbatch without rows; one that has less, with fewer microbatches or a smaller one.
    """
    plan: Plan = []
    epoch = 0
    while len(plan) < steps:
        of_ranks = [[rows[index].id for index in indices] for indices in deal(epoch)]
        plan += _windows(of_ranks, accumulation, batch, drop_last)
        epoch += 1
    return plan[:steps]


def _windows(of_ranks: Sequence[list[str]], accumulation: int, batch: int, drop_last: bool) -> Plan:
    needed = accumulation * batch
    ends = min(map(len, of_ranks)) // needed * needed if drop_last else max(map(len, of_ranks))
    return [[_microbatches(own[start : start + needed], batch) for own in of_ranks] for start in range(0, ends, needed)]


def _microbatches(own: list[str], batch: int) -> list[Microbatch]:
    return [own[start : start + batch] for start in range(0, len(own), batch)] or [[]]


def microbatches_of(window: Window, rank: int, rows: Mapping[str, Row]) -> list[list[Row]]:
    """The rows of one rank in one window, by microbatch.

    A microbatch without rows gets a row that does not count, the window's first without its labels: every rank needs a
    forward and a backward pass, or the others wait for it.
    """
    first = next(row_id for of_rank in window for microbatch in of_rank for row_id in microbatch)
    return [[rows[row_id] for row_id in microbatch] or [rows[first].unsupervised()] for microbatch in window[rank]]


def repartition(window: Window, world_size: int) -> Window:
    """The rows of a window, each once and in the same order, dealt to another number of ranks.

    Ranks differ by at most one row. A rank's rows are split into as few microbatches as keep each as small as the
    window's largest, and these too differ by at most one row. Where there are fewer rows than ranks, the last ranks
    have a microbatch without rows.
    """
    rows = [row for of_rank in window for microbatch in of_rank for row in microbatch]
    batch = max(len(microbatch) for of_rank in window for microbatch in of_rank)
    with_rows = min(world_size, len(rows))
    shares = [_split(own, -(-len(own) // batch)) for own in _split(rows, with_rows)]
    without: Window = [[[]] for _ in range(world_size - with_rows)]
    return shares + without


def dealt(plan: Plan, world_size: int) -> Plan:
    """The plan for `world_size` ranks: each window as it is, or repartitioned."""
    return [window if len(window) == world_size else repartition(window, world_size) for window in plan]


def one_share_each(plan: Plan, world_size: int) -> Plan:
    """As many windows, in which each of `world_size` ranks has as much to do as one rank of the plan.

    The plan's shares are given out in order, window by window and rank by rank; after the last comes the first again.
    Shares without rows are left out: a window of nothing else has no mean.
    """
    shares = cycle(share for window in plan for share in window if any(share))
    return [[next(shares) for _ in range(world_size)] for _ in plan]


def _split(items: list[str], parts: int) -> list[list[str]]:
    edges = [part * len(items) // parts for part in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(edges)]


def counts_per_rank(window: Window, rows: Mapping[str, Row]) -> list[int]:
    """Supervised units of each rank in one window."""
    return [supervised_in(rows[row_id] for microbatch in of_rank for row_id in microbatch) for of_rank in window]


def windows_to_compare(plan: Plan, rows: Mapping[str, Row]) -> dict[str, int]:
    """The windows in which gradients are compared: case -> index into the plan.

    `most_unequal` is the window whose counts differ most between ranks; the earliest such, if several.
    """
    spread = [max(counts) - min(counts) for counts in (counts_per_rank(window, rows) for window in plan)]
    return {"first": 0, "most_unequal": spread.index(max(spread))}


def plan_document(plan: Plan, settings: Mapping[str, Any], corpus_sha256: str) -> dict[str, Any]:
    """The content of plan.json: the plan, and what it was made for."""
    return {"made_for": dict(settings) | {"corpus_sha256": corpus_sha256}, "plan": plan}


def planned_steps(path: Path | str) -> int:
    """How many updates the plan was made for: on another number of ranks, epochs would be others. Raises PlanError when
    it is missing.
    """
    _require_there(path)
    return int(read_json(path)["made_for"]["steps"])


def _require_there(path: Path | str) -> None:
    if not Path(path).is_file():
        raise PlanError(f"{path} does not exist: run prepare first")


def read_plan(path: Path | str, corpus_sha256: str, settings: Mapping[str, Any]) -> Plan:
    """`settings`: what the reader knows of the experiment, by name; where the plan was made for another value, or for
    another corpus, PlanError names it, as when the plan is missing.
    """
    _require_there(path)
    document = read_json(path)
    known = dict(settings) | {"corpus_sha256": corpus_sha256}
    for name, value in document["made_for"].items():
        if name in known and known[name] != value:
            raise PlanError(f"{path} was made for {name} {value}, not {known[name]}: {PREPARE_AGAIN}")
    plan: Plan = document["plan"]
    return plan
