"""The controls as one page that needs nothing else: problems first, then every row by kind. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_tokens.controls.table import Judged, headline, problems, row_of
from ddp_tokens.report import number_text, render

KINDS = {
    "terms": "Terms of a loss, each with its own denominator, are divided or added up wrongly.",
    "normalization": "Sums of losses are divided by something else than the supervised units of the window.",
    "accumulation": "Microbatches of a window are lost, or the window is cut into several updates.",
    "communication": "Ranks do not exchange their gradients once per window, or not those of their own rows.",
    "layers": "A layer looks at more than one row, so that the gradient depends on which rows are computed at once.",
    "unit and weights": "Something else counts once than was chosen, or weights stand in the sum and not in the "
    "denominator, or in neither.",
    "resume": "A run is resumed with something missing or misplaced; the weights may look right at first.",
    "replicas": "Ranks that should hold the same weights do not.",
    "evaluation": "Scores of a split depend on how its rows are dealt out to ranks and batches.",
    "right": "Nothing is wrong here: a check that refuses one of these refuses too much.",
    "undecidable": "On these rows a wrong formula leaves the right gradient, or one too close to it to be seen: a pass "
    "would claim more than the check can know.",
}
# check -> what its error, tolerance and power are
NUMBERS = {
    "gradient_parity": (
        "norm of the difference from the gradient of one process in float64, for the parameter in which it is the most "
        "tolerances; unless said otherwise a case is judged in the training dtype and in float64, and the numbers are "
        "those of the training dtype unless float64 alone is not as expected",
        "what is allowed for that parameter: in the training dtype a multiple of the error of one process in the same "
        "dtype, in float64 a fraction of the parameter's norm",
        "how many tolerances away the nearest excluded wrong formula would be on these rows; none with one rank and "
        "one microbatch, where there is none to exclude",
    ),
    "window": ("reductions too many or too few, over all ranks", "none allowed", ""),
    "resume": (
        "largest difference of a parameter between the resumed and the uninterrupted run; optimizer state, generators, "
        "rows and records are compared too, so that a run with an error of 0 can still be refused",
        "none allowed",
        "",
    ),
    "replicas": ("largest difference of a parameter between two ranks", "none allowed", ""),
    "evaluation": (
        "difference of the loss per token from the mean over all tokens, or rows too many or too few",
        "rounding of float64 sums in any order; for rows none is allowed",
        "how many tolerances away the nearest wrong mean would be; none for rows",
    ),
}


def controls_page(judged: Sequence[Judged]) -> str:
    kinds = dict.fromkeys(one.kind for one in judged)
    groups = [
        {"name": kind, "meaning": KINDS.get(kind, ""), "rows": [_row(one) for one in judged if one.kind == kind]}
        for kind in kinds
    ]
    checks = dict.fromkeys(one.check for one in judged)
    return render(
        "controls",
        "controls",
        headline=headline(judged),
        problems=problems(judged),
        groups=groups,
        numbers={check: NUMBERS[check] for check in checks if check in NUMBERS},
    )


def _row(judged: Judged) -> dict[str, Any]:
    return row_of(judged) | {"what": judged.what, "verdict": judged.verdict, "fit": fit(judged.verdict.observed)}


def fit(observed: Mapping[str, Any]) -> str:
    """How well the formula fits that a failure of gradient parity is named after, and the next best one."""
    parts = [str(observed["detail"])] if "detail" in observed else []
    parts += [f"{name} {number_text(observed[name])}" for name in ("factor", "residual") if name in observed]
    if "next_best" in observed:
        named = observed["next_best"].replace("_", " ")
        parts.append(f"next best {named}: {number_text(observed['next_best_residual'])}")
    return "; ".join(parts)
