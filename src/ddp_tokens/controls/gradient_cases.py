"""The wrong and the right gradients as a table: what must be said of each. No torch."""

from dataclasses import dataclass
from pathlib import Path

from ddp_tokens.checks.gradient_formulas import OWN_STATISTICS
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS
from ddp_tokens.controls.counted_cases import COUNTED, DIAGNOSES, MEANT, OBJECTIVES, WHATS
from ddp_tokens.controls.gradient_windows import (
    BATCH_IN_TRAINING,
    CONTROLLED,
    CONTROLLED_THREE,
    OF_LAYERS,
    REGULAR,
    SPECIAL,
    UNDECIDABLE,
    Case,
)
from ddp_tokens.controls.term_cases import MEANT as MEANT_BY_TERMS
from ddp_tokens.controls.term_cases import TERM_CASES, UNEVEN, WRONG
from ddp_tokens.layout import DTYPES, NATIVE, Layout
from ddp_tokens.normalization import TOKEN_MEAN

NORMALIZATION, ACCUMULATION, COMMUNICATION, LAYERS = "normalization", "accumulation", "communication", "layers"
UNIT, TERMS = "unit and weights", "terms"
RIGHT, UNDECIDED = "right", "undecidable"
PARITY, WINDOW = "gradient_parity", "window"


@dataclass(frozen=True)
class Variant:
    """`way`: how the window is computed, a name in controls/gradients.py. `dtypes`: in which it must be seen. `what`:
    what is done, in one phrase; needed where the diagnosis' meaning does not say it.
    """

    name: str
    kind: str
    check: str
    case: Case
    way: str
    expected: str
    diagnosis: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    what: str = ""


def _wrong(name: str, kind: str, check: str, diagnosis: str, case: Case = CONTROLLED, what: str = "") -> Variant:
    return Variant(name, kind, check, case, name, FAIL, (diagnosis,), what=what)


def _right(case: Case, check: str = PARITY, name: str | None = None) -> Variant:
    return Variant(name or case.name, RIGHT, check, case, TOKEN_MEAN, PASS, what=case.what)


SHORT = next(case for case in SPECIAL if case.name == "short_last_window")
NORMALIZATIONS = (
    _wrong("mean_of_means", NORMALIZATION, PARITY, "mean_of_means"),
    _wrong("mean_of_microbatch_means", NORMALIZATION, PARITY, "mean_of_microbatch_means"),
    _wrong("microbatches_weigh_alike", NORMALIZATION, PARITY, "microbatches_weigh_alike"),
    _wrong("world_size_forgotten", NORMALIZATION, PARITY, "world_size_forgotten"),
    _wrong("world_size_twice", NORMALIZATION, PARITY, "world_size_twice"),
    _wrong("extra_division_by_accumulation", NORMALIZATION, PARITY, "extra_division_by_accumulation"),
    _wrong("padding_counted", NORMALIZATION, PARITY, "padding_counted"),
    _wrong("ignored_labels_counted", NORMALIZATION, PARITY, "ignored_labels_counted"),
    _wrong("one_microbatch_counted", NORMALIZATION, PARITY, "one_microbatch_counted"),
    _wrong("short_window_as_full", NORMALIZATION, PARITY, "short_window_as_full", SHORT),
    _wrong("stale_count", NORMALIZATION, PARITY, "stale_count"),
    _wrong("loss_scale_kept", NORMALIZATION, PARITY, "loss_scale_kept", what="a loss scale of 1024 is not undone"),
)
ACCUMULATIONS = (
    _wrong(
        *("gradients_cleared_per_microbatch", ACCUMULATION, PARITY, "last_microbatch_only"),
        what="gradients are cleared before each microbatch, so that those of earlier ones are lost",
    ),
    _wrong(
        *("weights_updated_between_microbatches", ACCUMULATION, WINDOW, "weights_updated_inside"),
        what="the optimizer takes a step after each microbatch, not once per window",
    ),
    _wrong(
        *("last_microbatch_only", ACCUMULATION, PARITY, "last_microbatch_only"),
        what="backward() stands after the loop over microbatches, so that it sees the last loss only",
    ),
    _wrong(
        *("first_microbatch_only", ACCUMULATION, PARITY, "first_microbatch_only"),
        what="the optimizer takes its step after the first microbatch, with the window's denominator",
    ),
)
COMMUNICATIONS = (
    _wrong(
        *("all_reduce_skipped", COMMUNICATION, PARITY, "one_rank_only"),
        what="the whole window stands inside no_sync, so that each rank keeps its own gradient",
    ),
    _wrong(
        *("synchronized_forward_left", COMMUNICATION, WINDOW, "reducer_armed_early", CONTROLLED_THREE),
        what="a forward pass for a metric, outside of no_sync and without backward, makes the first microbatch reduce",
    ),
    _wrong(
        *("forward_outside_no_sync", COMMUNICATION, WINDOW, "reduced_in_every_microbatch", CONTROLLED_THREE),
        what="only backward() stands inside no_sync; forward does not, so that every microbatch is reduced",
    ),
    _wrong(
        *("another_ranks_rows", COMMUNICATION, PARITY, "another_ranks_rows"),
        what="rank 1 computes the rows of rank 0 in place of its own",
    ),
)
IN_LAYERS = (
    Variant(
        *(BATCH_IN_TRAINING.name, LAYERS, PARITY, BATCH_IN_TRAINING, TOKEN_MEAN, FAIL, (OWN_STATISTICS,)),
        what="BatchNorm in training mode: each microbatch is normalized with its own statistics, where one process "
        "that computes the window as one batch takes those of all its rows",
    ),
)
COUNTINGS = tuple(
    Variant(
        *(f"{way}_in_{name}_w{size}", UNIT, PARITY, COUNTED[f"{name}_w{size}"], way, FAIL, (DIAGNOSES[way],)),
        what=f"{WHATS[way]}, where {MEANT[name]}",
    )
    for name, _, ways in OBJECTIVES
    for size in (2, 3)
    for way in ways
)
TERMWISE = tuple(
    Variant(
        *(f"{way}_in_terms_w{size}", TERMS, PARITY, case, way, FAIL, (diagnosis,)),
        what=f"{what}, where there are {MEANT_BY_TERMS}",
    )
    for size, case in UNEVEN.items()
    for way, (diagnosis, what) in WRONG.items()
)
RIGHTS = (
    *map(_right, (*REGULAR, *SPECIAL, *OF_LAYERS, *COUNTED.values(), *TERM_CASES.values())),
    *(_right(case, WINDOW, f"one_reduction_{case.name}") for case in REGULAR if case.accumulation > 2),
)
EQUAL, NEARLY_EQUAL = UNDECIDABLE
UNDECIDABLES = (
    Variant("equal_counts", UNDECIDED, PARITY, EQUAL, TOKEN_MEAN, INCONCLUSIVE, what=EQUAL.what),
    Variant(
        *("equal_counts_mean_of_means", UNDECIDED, PARITY, EQUAL, "mean_of_means", INCONCLUSIVE),
        what="the same window, computed as a mean of means: it leaves the same gradient",
    ),
    # In float64 one unit is seen; in the training dtype it is far below the rounding.
    Variant(
        *("one_unit_less_in_bfloat16", UNDECIDED, PARITY, NEARLY_EQUAL, TOKEN_MEAN, INCONCLUSIVE),
        dtypes=(NATIVE,),
        what=f"{NEARLY_EQUAL.what}; not judged in float64, where it is seen",
    ),
)
VARIANTS = (*NORMALIZATIONS, *ACCUMULATIONS, *COMMUNICATIONS, *IN_LAYERS, *COUNTINGS, *TERMWISE, *RIGHTS, *UNDECIDABLES)


def of_world_size(world_size: int) -> list[Variant]:
    return [variant for variant in VARIANTS if variant.case.world_size == world_size]


def case_layout(root: Path, case: Case) -> Layout:
    return Layout(root / "cases" / case.name)


def ranks_layout(root: Path, world_size: int) -> Layout:
    return Layout(root / "ranks" / str(world_size))
