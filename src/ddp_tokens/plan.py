"""Who computes which rows when. plan[step][rank][microbatch] -> row ids, for every update of the run."""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.errors import PREPARE_AGAIN, PlanError
from ddp_tokens.files import read_json, write_json_list

Microbatch = list[str]
Window = list[list[Microbatch]]
Plan = list[Window]
Items = TypeVar("Items", list[str], "array[int]")

PLAN_SEED_OFFSET = 10
BY_LENGTH, BY_INDEX, BY_EPOCH, BY_DOCUMENT = "by_length", "by_index", "by_epoch", "by_document"
Shares = Iterator[Sequence[Sequence[int]]]
# Passes windows on as they are, by rank the indices of its rows, or raises PlanError.
Checked = Callable[[Shares], Shares]
# epoch -> by rank, indices of the rows that it has in that epoch
Deal = Callable[[int], Sequence[Sequence[int]]]


def make_shard(rank: int, world_size: int, rows: int) -> range:
    """The indices whose remainder modulo `world_size` is `rank`."""
    return range(rank, rows, world_size)


def pools(rows: TrainingRows, world_size: int, sharding: str = BY_LENGTH) -> Sequence[Sequence[int]]:
    """Split the rows' indices into one pool per rank: in order of length and id, shortest first, or by index.

    Every row is in exactly one pool; sizes differ by at most one.
    """
    if sharding == BY_INDEX:
        return [make_shard(rank, world_size, len(rows)) for rank in range(world_size)]
    return _split(rows.in_order_of_length(), world_size)


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
    rows: TrainingRows,
    *,
    seed: int,
    steps: int,
    world_size: int,
    accumulation: int,
    batch: int,
    sharding: str = BY_LENGTH,
    checked: Checked = iter,
) -> Iterator[Window]:
    """Each rank draws accumulation * batch rows of its pool per window, without replacement inside it, anew in each.

    By length, one generator draws for all ranks; by index, rank r has a data seed of its own, seed + r.
    Raises PlanError when a pool is too small for one window, and at a window without a supervised unit.
    """
    require_large_pools(len(rows), world_size, accumulation, batch)
    of_rank = pools(rows, world_size, sharding)
    needed = accumulation * batch
    if sharding == BY_INDEX:
        generators = [random.Random(seed + rank) for rank in range(world_size)]
    else:
        generators = [random.Random(seed + PLAN_SEED_OFFSET)] * world_size
    draws = ([rng.sample(pool, needed) for rng, pool in zip(generators, of_rank, strict=True)] for _ in range(steps))
    return windows_of(checked(draws), rows, batch)


def make_epochs(
    rows: TrainingRows,
    deal: Deal,
    *,
    steps: int,
    accumulation: int,
    batch: int,
    drop_last: bool,
    checked: Checked = iter,
) -> Iterator[Window]:
    """As many windows as there are updates, epoch after epoch; the last epoch may end early.

    Without `drop_last` the last window of an epoch holds what is left. A rank that has nothing left takes part in it
    with a microbatch without rows; one that has less, with fewer microbatches or a smaller one.
    Raises PlanError at a window without a supervised unit.
    """
    shares = (share for epoch in count() for share in _shares(deal(epoch), accumulation * batch, drop_last))
    return windows_of(checked(islice(shares, steps)), rows, batch)


def _shares(of_ranks: Sequence[Sequence[int]], needed: int, drop_last: bool) -> Iterator[list[Sequence[int]]]:
    """What each rank has in each window of an epoch: `needed` rows, or what is left."""
    ends = min(map(len, of_ranks)) // needed * needed if drop_last else max(map(len, of_ranks))
    return ([own[start : start + needed] for own in of_ranks] for start in range(0, ends, needed))


def windows_of(shares: Iterable[Sequence[Sequence[int]]], rows: TrainingRows, batch: int) -> Iterator[Window]:
    """The rows' ids, by microbatch of each rank. Raises PlanError at a window without a supervised unit."""
    for number, of_ranks in enumerate(shares, start=1):
        if not any(rows.supervised[index] for own in of_ranks for index in own):
            first = next(rows.id(index) for own in of_ranks for index in own)
            raise PlanError(
                f"window {number} of the plan, from row '{first}' on, holds no supervised token on any rank, so it has "
                "no mean: label more rows, or raise batch or accumulation"
            )
        yield [_microbatches([rows.id(index) for index in own], batch) for own in of_ranks]


def _microbatches(own: list[str], batch: int) -> list[Microbatch]:
    return [own[start : start + batch] for start in range(0, len(own), batch)] or [[]]


def microbatches_of(window: Window, rank: int, rows: Mapping[str, Row]) -> list[list[Row]]:
    """The rows of one rank in one window, by microbatch.

    A microbatch without rows gets a row that does not count, the window's first without its labels: every rank needs a
    forward and a backward pass, or the others wait for it.
    """
    first = next(row_id for of_rank in window for microbatch in of_rank for row_id in microbatch)
    return [[rows[row_id] for row_id in microbatch] or [rows[first].unsupervised()] for microbatch in window[rank]]


def equally_many_microbatches(plan: Plan) -> Plan:
    """The plan with microbatches without rows at the end of each rank that has fewer than another in that window.

    Ranks that hold parts of a model wait for each other in every forward.
    """
    longest = [max(map(len, window)) for window in plan]
    return [
        [[*of_rank, *[[] for _ in range(most - len(of_rank))]] for of_rank in window]
        for window, most in zip(plan, longest, strict=True)
    ]


def rows_of_window(window: Window, rows: Mapping[str, Row]) -> list[list[list[Row]]]:
    """[rank][microbatch][row]"""
    return [microbatches_of(window, rank, rows) for rank in range(len(window))]


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


def _split(items: Items, parts: int) -> list[Items]:
    edges = [part * len(items) // parts for part in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(edges)]


def counts_per_rank(window: Window, rows: Mapping[str, Row]) -> list[float]:
    """Supervised units of each rank in one window."""
    return [supervised_in(rows[row_id] for microbatch in of_rank for row_id in microbatch) for of_rank in window]


def windows_to_compare(plan: Plan, rows: Mapping[str, Row]) -> dict[str, int]:
    """The windows in which gradients are compared: case -> index into the plan.

    `most_unequal` is the window whose counts differ most between ranks; the earliest such, if several.
    """
    spread = [max(counts) - min(counts) for counts in (counts_per_rank(window, rows) for window in plan)]
    return {"first": 0, "most_unequal": spread.index(max(spread))}


def write_plan(path: Path | str, plan: Iterable[Window], settings: Mapping[str, Any], corpus_sha256: str) -> None:
    """The plan, and what it was made for."""
    write_json_list(path, {"made_for": dict(settings) | {"corpus_sha256": corpus_sha256}}, "plan", plan)


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
