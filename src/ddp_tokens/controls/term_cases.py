"""A loss of three terms, right and each way of getting it wrong: what must be said. No torch."""

from functools import partial

from ddp_tokens.controls.counting import Counting
from ddp_tokens.controls.gradient_windows import (
    Case,
    Units,
    with_one_microbatch_less_on_rank_0,
    without_units_on_the_last_rank,
)
from ddp_tokens.objective_settings import SEQUENCE, TOKEN
from ddp_tokens.terms import ONCE, Term

TERMS = (Term("labels", TOKEN), Term("pooled", SEQUENCE, 0.3), Term("weights", ONCE, 0.1))
IN_TERMS = Counting(packed=True, several=True)
MEANT = "labels per token, a term per sequence, and a regularizer"


def with_uneven_rows(units: Units) -> Units:
    """One microbatch less on rank 0, and a single row in the last of the last rank: all hold other numbers of rows."""
    *others, last = with_one_microbatch_less_on_rank_0(units)
    return [*others, [*last[:-1], last[-1][:1]]]


def with_an_empty_rank(units: Units) -> Units:
    return without_units_on_the_last_rank(with_uneven_rows(units))


_case = partial(Case, accumulation=3, batch=2, counting=IN_TERMS)
UNEVEN = {
    size: _case(
        *(f"terms_w{size}", size),
        change=with_uneven_rows,
        special=f"one microbatch less on rank 0; {MEANT}",
    )
    for size in (2, 3)
}
EMPTY = {
    size: _case(
        *(f"terms_empty_rank_w{size}", size),
        change=with_an_empty_rank,
        decidable=False,  # drawn once: of the labels alone, which a single rank then holds
        special=f"one microbatch less on rank 0, no unit on the last rank; {MEANT}",
    )
    for size in (2, 3)
}
TERM_CASES = {case.name: case for case in (*UNEVEN.values(), *EMPTY.values())}
# Name of what is done -> its diagnosis, and what is done in words.
WRONG = {
    "one_denominator_for_all_terms": (
        "shared_denominator",
        "the sum per sequence is added to that per token, and both are divided by the number of tokens",
    ),
    "regularizer_times_world_size": (
        "regularizer_times_world_size",
        "the regularizer is added to the last loss of the window, and multiplied by W as that is",
    ),
    "regularizer_in_every_microbatch": (
        "regularizer_times_microbatches",
        "the regularizer is added to the loss of every microbatch",
    ),
    "regularizer_in_every_loss": (
        "regularizer_times_microbatches",
        "the regularizer is added to the loss of every microbatch, and multiplied by W as that is",
    ),
    "coefficient_forgotten": ("coefficient_forgotten", "the term per sequence is added without its coefficient"),
    "term_forgotten": ("term_forgotten", "the term per sequence is computed and not added"),
    "sequences_averaged_per_rank": (
        "mean_of_means",
        "the term per sequence is each rank's own mean, the rest is right",
    ),
    "mean_of_means": ("mean_of_means", "each rank divides each term by its own number"),
}
