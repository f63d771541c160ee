"""Units, weights and class weights, each right and each way of getting it wrong: what must be said. No torch."""

from functools import partial

from ddp_tokens.checks.gradient_formulas import ANOTHER_UNIT, WEIGHTS_IGNORED
from ddp_tokens.controls.counting import Counting
from ddp_tokens.controls.gradient_windows import Case, with_one_microbatch_less_on_rank_0
from ddp_tokens.objective_settings import DOCUMENT, SAMPLE, SEQUENCE, TOKEN

OVER = {unit: f"mean_over_{unit}s" for unit in (TOKEN, SEQUENCE, DOCUMENT, SAMPLE)}
WITHOUT_WEIGHTS, WEIGHTS_LEFT_OUT = "without_weights", "weights_left_out"
_uneven = partial(Case, accumulation=3, batch=2, change=with_one_microbatch_less_on_rank_0)
# Of each objective: its name, what it counts, the ways that are wrong for it and their diagnosis.
OBJECTIVES = (
    ("tokens", Counting(TOKEN, documents=3, packed=True), (OVER[SEQUENCE], OVER[DOCUMENT], OVER[SAMPLE])),
    ("sequences", Counting(SEQUENCE, documents=3, packed=True), (OVER[TOKEN], OVER[DOCUMENT], OVER[SAMPLE])),
    ("documents", Counting(DOCUMENT, documents=3, packed=True), (OVER[TOKEN], OVER[SEQUENCE], OVER[SAMPLE])),
    ("samples", Counting(SAMPLE, documents=3, packed=True), (OVER[TOKEN], OVER[SEQUENCE], OVER[DOCUMENT])),
    ("weighted_tokens", Counting(TOKEN, weighted=True), (WITHOUT_WEIGHTS, WEIGHTS_LEFT_OUT, OVER[SEQUENCE])),
    ("weighted_sequences", Counting(SEQUENCE, weighted=True), (WITHOUT_WEIGHTS, OVER[TOKEN])),
    (
        "class_weights",
        Counting(TOKEN, class_weights=(0.2, 1.0, 3.0, 0.0), label_smoothing=0.1),
        (WITHOUT_WEIGHTS, WEIGHTS_LEFT_OUT, "mean_of_means"),
    ),
    ("label_smoothing", Counting(TOKEN, label_smoothing=0.2), ("mean_of_means",)),
)
DIAGNOSES = {
    **dict.fromkeys(OVER.values(), ANOTHER_UNIT),
    WITHOUT_WEIGHTS: WEIGHTS_IGNORED,
    WEIGHTS_LEFT_OUT: WEIGHTS_LEFT_OUT,
    "mean_of_means": "mean_of_means",
}
WHATS = {
    **{name: f"the mean over {unit}s" for unit, name in OVER.items()},
    WITHOUT_WEIGHTS: "the mean without the weights of tokens and classes",
    WEIGHTS_LEFT_OUT: "the weighted sum over the number of supervised tokens, not over the sum of their weights",
    "mean_of_means": "each rank's weighted mean, averaged over ranks",
}
MEANT = {
    "tokens": "each token counts the same, in packed rows of several documents",
    "sequences": "each sequence of packed rows counts the same",
    "documents": "each document counts the same, its rows on several ranks",
    "samples": "each packed row counts the same",
    "weighted_tokens": "tokens have weights",
    "weighted_sequences": "each sequence counts the same, its tokens have weights",
    "class_weights": "classes have weights, one of them 0, and labels are smoothed",
    "label_smoothing": "labels are smoothed",
}


def case_of(name: str, counting: Counting, world_size: int) -> Case:
    special = f"one microbatch less on rank 0; {MEANT[name]}"
    return _uneven(f"{name}_w{world_size}", world_size, counting=counting, special=special)


COUNTED = {
    case.name: case
    for name, counting, _ in OBJECTIVES
    for world_size in (2, 3)
    for case in [case_of(name, counting, world_size)]
}
