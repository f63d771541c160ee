"""What can be counted in a window without computing anything, by its unit and by each other one. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ddp_tokens.corpora.rows import PLAIN, Row, position_weights, supervised_in, supervised_positions
from ddp_tokens.objective_settings import TOKEN
from ddp_tokens.other_units import Rows, other_windows
from ddp_tokens.plan import Plan, rows_of_window

Counts = tuple[tuple[Fraction | int, ...], ...]
LARGEST_DENOMINATOR = 10**9
ROUNDING = Fraction(1, 10**15)  # of float64, a few times 2^-53


@dataclass(frozen=True)
class WindowFacts:
    """What can be counted in a window without computing anything; entries are [rank][microbatch].

    `units`: supervised units; of weighted ones, the sum of their weights. `labels`: all of them, those that are not
    supervised too. `positions`: rows times the longest row, which is what a padded batch holds. `accumulation`:
    microbatches of a full window; the last window of an epoch may hold fewer. `previous_units`: units of the window
    before over all ranks, None in the first. `others`: the same window by other units, where these give other means.
    `counted`: supervised positions, whatever their weights; where it is empty they are the units. `reached`: those that
    the loss sees, of classes with weight 0 too where labels are smoothed; where it is empty they are the units.
    `position_weights`: of all positions of a microbatch, one after the other.
    """

    units: Counts
    labels: Counts
    positions: Counts
    accumulation: int
    previous_units: Fraction | int | None = None
    unit: str = TOKEN
    counted: Counts = ()
    reached: Counts = ()
    others: "Mapping[str, WindowFacts]" = field(default_factory=dict, compare=False, repr=False)
    position_weights: tuple[tuple[tuple[float, ...], ...], ...] = field(default=(), compare=False, repr=False)

    @property
    def world_size(self) -> int:
        return len(self.units)

    @property
    def microbatches(self) -> int:
        return max(map(len, self.units))

    @property
    def total(self) -> Fraction | int:
        return sum(map(sum, self.units))

    @property
    def units_per_rank(self) -> list[Fraction | int]:
        return [sum(of_rank) for of_rank in self.units]

    @property
    def told_units_per_rank(self) -> list[float]:
        """As plain numbers, whole ones where nothing is weighted."""
        return [int(units) if units == int(units) else float(units) for units in self.units_per_rank]

    def units_in_microbatch(self, index: int) -> Fraction | int:
        """Over all ranks that have a microbatch of this index."""
        return sum(of_rank[index] for of_rank in self.units if index < len(of_rank))


def exact(units: float) -> Fraction | int:
    """A share such as a third, which a float only comes near to, as the fraction that it is; any other as it is."""
    if isinstance(units, int):
        return units
    given = Fraction(units)
    short = given.limit_denominator(LARGEST_DENOMINATOR)
    return short if abs(short - given) <= ROUNDING * abs(given) else given


def window_facts(plan: Plan, index: int, rows: Mapping[str, Row], unit: str = TOKEN) -> WindowFacts:
    """Of the plan's window `index`, counted from 0. `unit`: by which the rows are counted."""
    window = rows_of_window(plan[index], rows)
    previous = rows_of_window(plan[index - 1], rows) if index else None
    accumulation = max(len(of_rank) for each in plan for of_rank in each)

    def facts(unit: str, window: Rows, previous: Rows | None, others: Mapping[str, WindowFacts]) -> WindowFacts:
        return WindowFacts(
            units=_counted(supervised_in, window),
            labels=_counted(lambda batch: sum(len(row.labels) for row in batch), window),
            positions=_counted(lambda batch: len(batch) * max(len(row.labels) for row in batch), window),
            accumulation=accumulation,
            previous_units=sum(map(sum, _counted(supervised_in, previous))) if previous else None,
            unit=unit,
            counted=_counted(lambda batch: sum(map(supervised_positions, batch)), window),
            reached=_counted(lambda batch: sum(map(_reached_in, batch)), window),
            others=others,
            position_weights=tuple(tuple(_weights_in(rows) for rows in of_rank) for of_rank in window),
        )

    others = {name: facts(name, counted, None, {}) for name, counted in other_windows(window, unit).items()}
    return facts(unit, window, previous, others)


def _reached_in(row: Row) -> int:
    """torch's label smoothing spreads a part of the loss over all classes, whatever the label's own weight."""
    if not row.criterion.label_smoothing:
        return supervised_positions(row)
    return supervised_positions(replace(row, criterion=PLAIN))


def _weights_in(rows: Sequence[Row]) -> tuple[float, ...]:
    return tuple(weight for row in rows for weight in position_weights(row))


def _counted(count: Callable[[Sequence[Row]], float], window: Rows) -> Counts:
    return tuple(tuple(exact(count(batch)) for batch in of_rank) for of_rank in window)
