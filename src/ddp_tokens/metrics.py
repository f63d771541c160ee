"""Running metrics of training: sums and counts over updates, and means by one division. No torch.

They are fed with the global records of the history, whose sums and counts are over all ranks already. No mean of means
is ever taken: of sums 2 over 1 unit and 90 over 9 it would be 6.0, where the mean is 9.2.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ddp_tokens.epochs import place_in_epoch

Record = dict[str, Any]


def counted_in(record: Mapping[str, Any]) -> int:
    """Of how many positions `correct` is a number: the units, unless these are weighted."""
    return int(record.get("counted", record["units"]))


class MetricTracker:
    """`correct`: None where nobody counts it; `skipped`: None where losses have no scale, so that no update can be."""

    def __init__(self) -> None:
        self.updates = 0
        self.units = 0
        self.loss_sum = 0.0
        self.correct: int | None = None
        self.counted = 0
        self.terms: dict[str, Record] = {}
        self.skipped: int | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """`record`: of one update, over all ranks."""
        self.updates += 1
        self.units += record["units"]
        self.loss_sum += record["loss_sum"]
        if "correct" in record:
            self.correct = (self.correct or 0) + record["correct"]
            self.counted += counted_in(record)
        for name, term in record.get("terms", {}).items():
            before = self.terms.get(name, {"sum": 0.0, "units": 0})
            both = {field: before[field] + term[field] for field in ("sum", "units")}
            self.terms[name] = both | {"mean": both["sum"] / both["units"], "coefficient": term["coefficient"]}
        if "skipped" in record:
            self.skipped = (self.skipped or 0) + record["skipped"]

    @property
    def loss(self) -> float:
        """Per supervised unit; of several terms, the sum of their means, each times its coefficient."""
        if self.terms:
            return float(sum(term["coefficient"] * term["mean"] for term in self.terms.values()))
        return self.loss_sum / self.units

    @property
    def accuracy(self) -> float | None:
        return None if self.correct is None else self.correct / self.counted


def epoch_summary(epoch: int, windows: int, records: Sequence[Mapping[str, Any]], lr: float) -> Record:
    """Of the epoch's `records`, all that there are; `epoch` counts from 1. `lr`: where the records hold none."""
    tracker = MetricTracker()
    for record in records:
        tracker.add(record)
    summary = {
        "epoch": epoch,
        "windows": windows,
        "updates": tracker.updates,
        "units": tracker.units,
        "loss_sum": tracker.loss_sum,
        "loss": tracker.loss,
        "terms": tracker.terms or None,
        "correct": tracker.correct,
        "accuracy": tracker.accuracy,
        "lr": records[-1].get("lr", lr),
        "skipped": tracker.skipped,
    }
    return {name: value for name, value in summary.items() if value is not None}


def epoch_summaries(history: Sequence[Mapping[str, Any]], windows: int, lr: float) -> Iterator[Record]:
    """Of each epoch that has begun. Where the run ends in the midst of one, its `updates` are fewer than `windows`."""
    for epoch, records in groupby(history, key=lambda record: place_in_epoch(record["step"], windows)[0]):
        yield epoch_summary(epoch + 1, windows, list(records), lr)
