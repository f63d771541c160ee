"""The objective's formula and the known wrong ones, as weights of each microbatch's loss sum. Plain fractions.

Whatever a rank divides by, the gradient that DDP leaves in a window is a sum over ranks r and microbatches m

    sum_rm c[r][m] * G[r][m],   G[r][m] = gradient of the sum of the losses of the supervised units of (r, m),

since backward() adds and all-reduce averages. A formula is its c: 1/N everywhere for the token mean. So one process
that knows every G knows what each mistake would leave, and two formulas are the same on a window when their c are equal
wherever there is a unit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN
from ddp_tokens.other_units import are_close
from ddp_tokens.window_facts import WindowFacts

Weights = tuple[tuple[Fraction, ...], ...]
Variants = dict[str, Weights | None]
NOT_A_NUMBER = "0/0"


@dataclass(frozen=True)
class Formula:
    """`variants(facts)`: the weights that the mistake may have on a window, by a phrase that tells them apart where it
    has a choice (which rank is alone?); none where it cannot be made. None in place of weights: 0/0, where a microbatch
    without a unit is divided by its own count. What comes of it depends on the loss: not a number, or still nothing.
    """

    name: str
    meaning: str
    variants: Callable[[WindowFacts], Variants]


def _each(weight: Callable[[WindowFacts, int, int], Fraction]) -> Callable[[WindowFacts], Variants]:
    """One variant, from the weight of rank r's microbatch m; two where that divides a part without a unit by zero."""

    def variants(facts: WindowFacts) -> Variants:
        try:
            return {"": _weights(facts, weight)}
        except ZeroDivisionError:
            return {"": _weights(facts, _nothing_of_nothing(weight)), NOT_A_NUMBER: None}

    return variants


def _nothing_of_nothing(weight: Callable[[WindowFacts, int, int], Fraction]) -> Callable[..., Fraction]:
    """The gradient of a part without a unit is 0, and any weight of it is as good as 0."""
    return lambda facts, r, m: weight(facts, r, m) if facts.units[r][m] else Fraction(0)


def _weights(facts: WindowFacts, weight: Callable[[WindowFacts, int, int], Fraction]) -> Weights:
    return tuple(
        tuple(weight(facts, rank, index) for index in range(len(of_rank))) for rank, of_rank in enumerate(facts.units)
    )


def _scaled_by(factor: Callable[[WindowFacts], Fraction]) -> Callable[[WindowFacts], Variants]:
    """The right direction, in a wrong length."""
    return _each(lambda facts, r, m: factor(facts) / facts.total)


def _one_rank_only(facts: WindowFacts) -> Variants:
    """Rank k's own W * S_k / N, not averaged with anything."""

    def of(alone: int) -> Weights:
        return _weights(facts, lambda f, r, m: Fraction(f.world_size if r == alone else 0, f.total))

    return {f"rank {k}": of(k) for k in range(facts.world_size)} if facts.world_size > 1 else {}


def _another_ranks_rows(facts: WindowFacts) -> Variants:
    """Rank a computes rank b's rows in place of its own: they count twice, its own not at all."""

    def of(a: int, b: int) -> Weights:
        return _weights(facts, lambda f, r, m: Fraction((r != a) + (r == b), _total_with(f, a, b)))

    pairs = permutations(range(facts.world_size), 2)
    return {f"rank {a} computes the rows of rank {b}": of(a, b) for a, b in pairs if _total_with(facts, a, b)}


def _total_with(facts: WindowFacts, replaced: int, by: int) -> Fraction | int:
    of_rank = facts.units_per_rank
    return facts.total - of_rank[replaced] + of_rank[by]


def _short_window_as_full(facts: WindowFacts) -> Variants:
    if facts.microbatches >= facts.accumulation:
        return {}
    return _scaled_by(lambda facts: Fraction(facts.microbatches, facts.accumulation))(facts)


def _stale_count(facts: WindowFacts) -> Variants:
    previous = facts.previous_units
    return {} if previous is None else _each(lambda facts, r, m: Fraction(1, previous))(facts)


def _last(facts: WindowFacts, rank: int) -> int:
    return len(facts.units[rank]) - 1


def _accumulation_forgotten(facts: WindowFacts) -> Variants:
    """A single microbatch has nothing to be divided by. 0/0 is that of the means, which have a name of their own."""
    if facts.microbatches == 1:
        return {}
    means = {
        "of microbatches": lambda f, r, m: Fraction(1, f.world_size * f.units[r][m]),
        "of ranks": lambda f, r, m: Fraction(len(f.units[r]), f.world_size * f.units_per_rank[r]),
    }
    return {f"means {name}": _weights(facts, _nothing_of_nothing(mean)) for name, mean in means.items()}


RIGHT = Formula(TOKEN_MEAN, "every supervised unit weighs 1/N", _each(lambda f, r, m: Fraction(1, f.total)))
OF_RANKS = (
    Formula(
        MEAN_OF_MEANS,
        "each rank divides by its own units",
        _each(lambda f, r, m: Fraction(1, f.world_size * f.units_per_rank[r])),
    ),
    Formula("world_size_forgotten", "S/N without W, then averaged", _scaled_by(lambda f: Fraction(1, f.world_size))),
    Formula("world_size_twice", "W squared times S/N, then averaged", _scaled_by(lambda f: Fraction(f.world_size))),
    Formula("one_rank_only", "one rank's own gradient, never averaged", _one_rank_only),
)
OF_MICROBATCHES = (
    Formula(
        "mean_of_microbatch_means",
        "each rank averages the means of its microbatches",
        _each(lambda f, r, m: Fraction(1, f.world_size * len(f.units[r]) * f.units[r][m])),
    ),
    Formula(
        "extra_division_by_accumulation",
        "the window's mean, divided once more by its microbatches",
        _scaled_by(lambda f: Fraction(1, f.microbatches)),
    ),
    Formula(
        "one_microbatch_counted",
        "each microbatch is divided by its own units over all ranks, not the window's",
        _each(lambda f, r, m: Fraction(1, f.units_in_microbatch(m))),
    ),
    Formula(
        "microbatches_weigh_alike",
        "the mean of the means of all ranks' microbatches of the same index",
        _each(lambda f, r, m: Fraction(1, f.microbatches * f.units_in_microbatch(m))),
    ),
    Formula(
        "last_microbatch_only",
        "earlier microbatches are lost",
        _each(lambda f, r, m: Fraction(m == _last(f, r), f.total)),
    ),
    Formula("first_microbatch_only", "later microbatches are lost", _each(lambda f, r, m: Fraction(m == 0, f.total))),
)
OF_DATA = (
    Formula("another_ranks_rows", "one rank computes another's rows", _another_ranks_rows),
    Formula(
        "padding_counted",
        "padded positions are in the denominator",
        _scaled_by(lambda f: Fraction(f.total, sum(map(sum, f.positions)))),
    ),
    Formula(
        "ignored_labels_counted",
        "labels that are not supervised are in the denominator",
        _scaled_by(lambda f: Fraction(f.total, sum(map(sum, f.labels)))),
    ),
    Formula(
        "weights_left_out",
        "the weighted sum is divided by the number of supervised tokens, not by their weights or by the chosen units",
        _scaled_by(lambda f: Fraction(f.total) / sum(map(sum, f.counted or f.units))),
    ),
    Formula("short_window_as_full", "a short last window is divided as if it were full", _short_window_as_full),
    Formula("stale_count", "the window before gave the denominator", _stale_count),
)
# Not made by a control, and right up to the means that it is made of; only an audit of other people's loops names it.
ACCUMULATION_FORGOTTEN = Formula(
    "accumulation_forgotten",
    "means are added up over the microbatches and never divided by their number",
    _accumulation_forgotten,
)
KNOWN_WRONG = OF_RANKS + OF_MICROBATCHES + OF_DATA
MEANINGS = {formula.name: formula.meaning for formula in KNOWN_WRONG}


def excluded_by(facts: WindowFacts) -> tuple[Formula, ...]:
    """The mistakes that a comparison on this window is meant to exclude: those that need several ranks or microbatches.

    None with one rank and one microbatch: there is nothing that could be weighted wrongly.
    """
    of_ranks = OF_RANKS if facts.world_size > 1 else ()
    return of_ranks + (OF_MICROBATCHES if facts.microbatches > 1 else ())


def possible_on(facts: WindowFacts) -> tuple[Formula, ...]:
    """Every mistake that can be made on this window."""
    return excluded_by(facts) + OF_DATA


def alike_on(facts: WindowFacts, one: Formula, other: Formula) -> bool:
    """Do both, in some variant, weigh each unit of this window the same? Exact: nothing is computed but fractions."""
    return any(
        _with_units(facts, a) == _with_units(facts, b)
        for a in one.variants(facts).values()
        for b in other.variants(facts).values()
        if a is not None and b is not None
    )


def alike_across(facts: WindowFacts, one: Formula, other_facts: WindowFacts, other: Formula) -> bool:
    """Do both, in some variant, give each position of this window the same share, counted by two units? To rounding:
    shares such as thirds are floats.
    """
    return any(
        are_close(_shares(facts, a), _shares(other_facts, b))
        for a in one.variants(facts).values()
        for b in other.variants(other_facts).values()
        if a is not None and b is not None
    )


def _shares(facts: WindowFacts, weights: Weights) -> list[float]:
    return [
        float(weight) * position
        for of_rank, of_positions in zip(weights, facts.position_weights, strict=True)
        for weight, positions in zip(of_rank, of_positions, strict=True)
        for position in positions
    ]


def is_right_on(facts: WindowFacts, weights: Weights) -> bool:
    return set(_with_units(facts, weights)) == {Fraction(1, facts.total)}


def _with_units(facts: WindowFacts, weights: Weights) -> list[Fraction]:
    """A microbatch that the loss does not see has the gradient 0, whatever its weight."""
    return [
        weight
        for of_rank, units in zip(weights, facts.reached or facts.units, strict=True)
        for weight, count in zip(of_rank, units, strict=True)
        if count
    ]
