"""The wrong and the right gradients as a table: what must be said of each, and how it is judged. No torch."""

from dataclasses import dataclass
from pathlib import Path

from ddp_tokens.checks import gradient_parity as parity
from ddp_tokens.checks import window as window_check
from ddp_tokens.checks.gradient_parity import DTYPES, FLOAT64, NATIVE, Evidence, Expectation, of_window, parts_of
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.config import Tolerances
from ddp_tokens.controls.gradient_windows import (
    COMPARED,
    CONTROLLED,
    CONTROLLED_THREE,
    REGULAR,
    SPECIAL,
    UNDECIDABLE,
    Case,
)
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.files import digests, read_json
from ddp_tokens.formulas import excluded_by, window_facts
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import TOKEN_MEAN

NORMALIZATION, ACCUMULATION, COMMUNICATION = "normalization", "accumulation", "communication"
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
        *("weights_updated_between_microbatches", ACCUMULATION, WINDOW, window_check.WEIGHTS_UPDATED_INSIDE),
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
        *("synchronized_forward_left", COMMUNICATION, WINDOW, window_check.ARMED_EARLY, CONTROLLED_THREE),
        what="a forward pass for a metric, outside of no_sync and without backward, makes the first microbatch reduce",
    ),
    _wrong(
        *("forward_outside_no_sync", COMMUNICATION, WINDOW, window_check.REDUCED_EVERY_TIME, CONTROLLED_THREE),
        what="only backward() stands inside no_sync; forward does not, so that every microbatch is reduced",
    ),
    _wrong(
        *("another_ranks_rows", COMMUNICATION, PARITY, "another_ranks_rows"),
        what="rank 1 computes the rows of rank 0 in place of its own",
    ),
)
RIGHTS = (
    *map(_right, (*REGULAR, *SPECIAL)),
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
VARIANTS = (*NORMALIZATIONS, *ACCUMULATIONS, *COMMUNICATIONS, *RIGHTS, *UNDECIDABLES)


def of_world_size(world_size: int) -> list[Variant]:
    return [variant for variant in VARIANTS if variant.case.world_size == world_size]


def judge(variant: Variant, tolerances: Tolerances, case_at: Layout, left_at: Layout) -> list[Verdict]:
    """One verdict of the window check, or one of gradient parity per dtype in which the variant must be seen.

    `case_at`: rows, plan and references of its case. `left_at`: gradients and traces of its ranks.
    """
    if variant.check == WINDOW:
        return window_check.check_window(left_at.root / "window" / variant.name)
    return [_parity(variant, tolerances, dtype, case_at, left_at) for dtype in variant.dtypes]


def _parity(variant: Variant, tolerances: Tolerances, dtype: str, case_at: Layout, left_at: Layout) -> Verdict:
    rows, _ = read_corpus(case_at.rows, case_at.lock)
    facts = window_facts(read_json(case_at.plan)["plan"], variant.case.compared[COMPARED], rows)
    paths = [case_at.reference(name) for name in (FLOAT64, dtype, parity.PARTS)]
    reference, single, parts = map(read_arrays, paths)
    path = left_at.gradients(variant.name, dtype)
    evidence = Evidence(
        of_window(read_arrays(path), COMPARED),
        of_window(reference, COMPARED),
        of_window(single, COMPARED),
        parts_of(parts, COMPARED),
        facts,
    )
    expectation = Expectation(variant.expected, variant.diagnosis or None, excluded_by(facts))
    return parity.judge(
        f"{variant.name}.{dtype}", tolerances, dtype, evidence, expectation, digests([*set(paths), path])
    )


def case_layout(root: Path, case: Case) -> Layout:
    return Layout(root / "cases" / case.name)


def ranks_layout(root: Path, world_size: int) -> Layout:
    return Layout(root / "ranks" / str(world_size))
