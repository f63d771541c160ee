"""How much each rank has to compute in a window, and what it costs that the slowest sets the pace. No torch.

A rank computes the positions of its padded microbatches: rows times the longest of them, padding included, since a
padded position is computed as any other. An image is one position. `explained` tells how well this and other counts go
with measured times.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from ddp_tokens.corpora.rows import Row, supervised_positions
from ddp_tokens.plan import BY_LENGTH, Plan, dealt, microbatches_of, one_share_each
from ddp_tokens.scaling_rows import DIFFERENCE, WEAK, Timing

WINDOWS = 200  # simulated ones
Lengths = NDArray[numpy.int64]


@dataclass(frozen=True)
class Load:
    """Positions of a rank in a window, over windows: of the mean rank, and of the one that has most.

    `microbatches`: of a rank, the mean.
    """

    mean: float
    slowest: float
    microbatches: float

    @property
    def ratio(self) -> float:
        return self.slowest / self.mean

    @property
    def lost(self) -> float:
        """Of the time of all ranks, the share in which they wait for the slowest."""
        return 1 - self.mean / self.slowest


def plan_for(scaling: str, plan: Plan, processes: int) -> Plan:
    """Strong: the rows of each window, dealt to this many processes. Weak: each process has the rows of one rank."""
    return one_share_each(plan, processes) if scaling == WEAK else dealt(plan, processes)


def length_of(row: Row) -> int:
    """An image has no tokens and is as much work as any other."""
    return len(row.tokens) or 1


def positions(microbatch: Sequence[Row]) -> int:
    return len(microbatch) * max(map(length_of, microbatch))


MEASURES: Mapping[str, Callable[[Sequence[Row]], int]] = {
    "rows": len,
    "supervised": lambda rows: sum(map(supervised_positions, rows)),
    "padded positions": positions,
}


def loads(plan: Plan, rows: Mapping[str, Row]) -> list[list[int]]:
    """By window and rank."""
    return [
        [sum(map(positions, microbatches_of(window, rank, rows))) for rank in range(len(window))] for window in plan
    ]


def load_of(plan: Plan, rows: Mapping[str, Row]) -> Load:
    number = sum(len(of_rank) for window in plan for of_rank in window)
    return load_in(loads(plan, rows), number / sum(map(len, plan)))


def load_in(of_windows: Sequence[Sequence[int]] | Lengths, microbatches: float) -> Load:
    """`of_windows`: by window and rank."""
    of_ranks = numpy.asarray(of_windows)
    return Load(float(of_ranks.mean()), float(of_ranks.max(axis=1).mean()), microbatches)


def simulated(
    lengths: Sequence[int],
    ranks: int,
    *,
    batch: int,
    accumulation: int,
    sharding: str,
    seed: int,
    windows: int = WINDOWS,
) -> Load:
    """Of windows in which each rank draws batch x accumulation rows, with replacement, from its share of the corpus.

    By length the shares are equal pieces of the rows in order of length, however few rows there are; otherwise each is
    the whole corpus, since shares by index or by epoch differ from it by chance only.
    """
    ordered = numpy.sort(numpy.asarray(lengths))
    generator = numpy.random.default_rng([seed, ranks])
    of_windows = []
    for _ in range(windows):
        places = generator.random((ranks, accumulation, batch))
        if sharding == BY_LENGTH:
            places = (places + numpy.arange(ranks)[:, None, None]) / ranks
        of_rows = ordered[(places * len(ordered)).astype(numpy.int64)]
        of_windows.append(batch * of_rows.max(axis=2).sum(axis=1))
    return load_in(numpy.array(of_windows), float(accumulation))


def explained(timings: Sequence[Timing], plan: Plan, rows: Mapping[str, Row], first: int) -> dict[str, float | None]:
    """Measure -> r^2 of the time of one process's backward of a window's last microbatch against it, from step `first`
    on. None where the measure, or the time, is the same in all windows.

    `plan`: dealt to one process.
    """
    times = {row.step: row.compute_s for row in timings if (row.world_size, row.variant) == (1, DIFFERENCE)}
    steps = [step for step in sorted(times) if first <= step <= len(plan)]
    last = [microbatches_of(plan[step - 1], 0, rows)[-1] for step in steps]
    return {
        name: r_squared([float(measure(of)) for of in last], [times[step] for step in steps])
        for name, measure in MEASURES.items()
    }


def r_squared(left: Sequence[float], right: Sequence[float]) -> float | None:
    if len(set(left)) < 2 or len(set(right)) < 2:
        return None
    return float(numpy.corrcoef(left, right)[0, 1] ** 2)
