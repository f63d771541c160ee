"""What a ring all-reduce costs, and the latency and bandwidth that fit what was measured. No torch.

W ranks in a ring reduce-scatter the bytes in W - 1 steps and gather them in W - 1 more; in each step every rank sends a
W-th of the bytes to the next. With alpha seconds per message and B bytes per second that is

    t(W, bytes) = 2 (W - 1) alpha + 2 (W - 1) / W * bytes / B

as in Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005 (the additions,
which they count apart, are in B here), and Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations, 2009. gloo's all-reduce is such a ring unless it is told otherwise.

On one machine it is processes that move the bytes, and where they share cores each takes longer by f(W), the threads
per core: see scaling.oversubscription. So f(W) stands before both parts when the two numbers are fitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.errors import EvidenceError
from ddp_tokens.scaling_rows import MEASURE_AGAIN, AllReduce

Crowding = Callable[[int], float]
Array = NDArray[Any]
ITERATIONS, LARGEST_CHANGE = 100, 1.0


@dataclass(frozen=True)
class Link:
    """Between two ranks: seconds per message, and seconds per byte."""

    latency_s: float
    byte_s: float

    @property
    def bandwidth_mb_s(self) -> float:
        return 1e-6 / self.byte_s


@dataclass(frozen=True)
class Fitted:
    """One number of processes and size: the measured median and what the fitted link says, in seconds.

    `used`: the fit is to this, too.
    """

    processes: int
    bytes: int
    measured_s: float
    fitted_s: float
    used: bool

    @property
    def relative_error(self) -> float:
        return self.fitted_s / self.measured_s - 1


def messages(ranks: int) -> int:
    return 2 * (ranks - 1)


def sent_share(ranks: int) -> float:
    """Of the bytes, how much each rank sends: 0 alone, 1 of two, towards 2 of many."""
    return 2 * (ranks - 1) / ranks


def ring_s(ranks: int, size: float, link: Link, buckets: int = 1) -> float:
    """Seconds to reduce `size` bytes in `buckets` all-reduces, one after the other."""
    return buckets * messages(ranks) * link.latency_s + sent_share(ranks) * size * link.byte_s


def medians(rows: Sequence[AllReduce]) -> dict[tuple[int, int], float]:
    """(processes, bytes) -> seconds, the median over repeats; of a repeat that of the rank that came last to it, and so
    waited for nobody: the smallest.
    """
    grouped: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        grouped.setdefault((row.processes, row.bytes), []).append(min(row.seconds))
    return {place: median(grouped[place]) for place in sorted(grouped)}


def fit(rows: Sequence[AllReduce], crowding: Crowding) -> tuple[Link, list[Fitted]]:
    """The link, and what it says of each number of processes and size.

    Least squares of the logarithms of fitted / measured: twice and half are equally wrong, and small messages count as
    much as large ones. Fitted to the processes that have cores of their own, if there are any: sharing costs more than
    its factor, as each message waits for its receiver's turn. What it says of the others is then a prediction.
    Raises EvidenceError where there are fewer than two sizes to tell latency from bandwidth.
    """
    measured = medians(rows)
    own = {place: seconds for place, seconds in measured.items() if crowding(place[0]) == 1} or measured
    if len({size for _, size in own}) < 2:
        raise EvidenceError(
            f"all_reduce.jsonl: two sizes or more are needed to tell latency from bandwidth; {MEASURE_AGAIN}"
        )
    parts = [(crowding(ranks) * messages(ranks), crowding(ranks) * sent_share(ranks) * size) for ranks, size in own]
    link = Link(*_nearest(numpy.array(parts), numpy.array(list(own.values()))))
    fitted = [
        Fitted(ranks, size, seconds, crowding(ranks) * ring_s(ranks, size, link), (ranks, size) in own)
        for (ranks, size), seconds in measured.items()
    ]
    return link, fitted


def _nearest(parts: Array, seconds: Array) -> tuple[float, float]:
    """The two positive factors for which parts @ factors is nearest to `seconds`, by Gauss and Newton in logarithms."""
    factors = (seconds[:, None] / parts).min(axis=0)
    for _ in range(ITERATIONS):
        told = parts @ factors
        change, *_ = numpy.linalg.lstsq(parts * factors / told[:, None], numpy.log(seconds / told))
        factors = factors * numpy.exp(numpy.clip(change, -LARGEST_CHANGE, LARGEST_CHANGE))
    return float(factors[0]), float(factors[1])
