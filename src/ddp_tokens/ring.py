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

from ddp_tokens.errors import EvidenceError
from ddp_tokens.scaling_rows import MEASURE_AGAIN, AllReduce

Crowding = Callable[[int], float]


@dataclass(frozen=True)
class Link:
    """Between two ranks: seconds per message, and seconds per byte, which may be 0."""

    latency_s: float
    byte_s: float

    @property
    def bandwidth_mb_s(self) -> float | None:
        return 1e-6 / self.byte_s if self.byte_s else None


@dataclass(frozen=True)
class Fitted:
    """One number of processes and size: the measured median and what the fitted link says, in seconds."""

    processes: int
    bytes: int
    measured_s: float
    fitted_s: float

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
    """Least squares of the relative errors, so that small messages count as much as large ones.

    Where the best latency or time per byte would be negative it is 0, and the other alone is fitted.
    Raises EvidenceError where there are fewer than two sizes to tell the two apart.
    """
    measured = medians(rows)
    if len({size for _, size in measured}) < 2:
        raise EvidenceError(
            f"all_reduce.jsonl: two sizes or more are needed to tell latency from bandwidth; {MEASURE_AGAIN}"
        )
    known = [
        (crowding(ranks) * messages(ranks) / seconds, crowding(ranks) * sent_share(ranks) * size / seconds)
        for (ranks, size), seconds in measured.items()
    ]
    link = Link(*_solved(known))
    fitted = [
        Fitted(ranks, size, seconds, crowding(ranks) * ring_s(ranks, size, link))
        for (ranks, size), seconds in measured.items()
    ]
    return link, fitted


def _solved(known: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(a, b), neither negative, for which a * x + b * y is nearest to 1 over all (x, y)."""
    xx, xy, yy = (sum(one * other for one, other in pairs) for pairs in _products(known))
    x, y = (sum(values) for values in zip(*known, strict=True))
    determinant = xx * yy - xy * xy
    latency, byte = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if latency < 0:
        return 0.0, y / yy
    return (x / xx, 0.0) if byte < 0 else (latency, byte)


def _products(known: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    return [[(x, x) for x, _ in known], list(known), [(y, y) for _, y in known]]
