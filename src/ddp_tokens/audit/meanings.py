"""Names that only an audit gives, and what they mean; others are those of the checks. No torch."""

from collections.abc import Sequence

from ddp_tokens.checks import meanings
from ddp_tokens.formulas import ACCUMULATION_FORGOTTEN

CLIPPED = "clipped"
CLIPPED_INSIDE = "clipped_inside_window"
CLIPPED_WHILE_SCALED = "clipped_while_scaled"
NOT_CLEARED = "gradients_not_cleared"
MISSING = "gradient_missing"
NOT_DIVIDED = "not_divided"
WEIGHTS_DIFFER = "weights_differ_between_ranks"
GRADIENTS_DIFFER = "gradients_differ_between_ranks"

MEANINGS = {
    **meanings.MEANINGS,
    ACCUMULATION_FORGOTTEN.name: ACCUMULATION_FORGOTTEN.meaning,
    CLIPPED: "the right direction in a shorter length, as clipping leaves it",
    CLIPPED_INSIDE: "gradients are clipped before the window is complete",
    CLIPPED_WHILE_SCALED: "gradients are clipped while a loss scale or another factor is still in them",
    NOT_CLEARED: "the gradient of the window before is still in it",
    MISSING: "a parameter that the objective depends on has no gradient",
    NOT_DIVIDED: "loss sums are backpropagated and never divided by a number of units",
    WEIGHTS_DIFFER: "ranks hold other weights, so each applies the gradient to another model",
    GRADIENTS_DIFFER: "ranks hold other gradients at the update, so their weights drift apart",
}


def meaning_of(diagnosis: Sequence[str]) -> str:
    """One phrase for each name that is known here; empty where none is."""
    return "; or ".join(MEANINGS[name] for name in diagnosis if name in MEANINGS)
