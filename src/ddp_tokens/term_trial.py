"""The terms of a loss are tried out on a row: is each a sum over its units, or does it count once, and is no sum?"""

import math
from dataclasses import replace

import torch

from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import WorkloadError
from ddp_tokens.objective_settings import TOKEN
from ddp_tokens.term_losses import Sums, sums_of_terms
from ddp_tokens.terms import Term, counted
from ddp_tokens.workloads import Workload, counter_of_rows, terms_of

TOLERANCE = 0.02  # as in workload_trial: of what a sum must be


def try_terms(name: str, workload: Workload, model: torch.nn.Module, row: Row, device: str) -> None:
    """Raises WorkloadError, naming the workload `name`, the term and what to return."""
    terms = terms_of(workload)

    def sums_over(*rows: Row) -> Sums:
        batch = workload.collate(rows, device)
        return sums_of_terms(workload, terms, workload.forward(model, batch), batch)[0]

    once, twice = sums_over(row), sums_over(row, row)
    heavier = None
    if row.weights is not None:
        heavier = sums_over(replace(row, weights=tuple(2 * weight for weight in row.weights)))
    units = counted(terms, [row], counter_of_rows(workload))
    for place, (term, number) in enumerate(zip(terms, units, strict=True)):
        _require_usable(name, term, once[place], number)
        value, doubled = (float(total.detach()) for total in (once[place], twice[place]))
        expected = value if term.is_once else 2 * value
        _require(name, term, row, value, "twice", doubled, expected)
        if heavier is not None and term.unit == TOKEN:
            _require(name, term, row, value, "with its weights doubled", float(heavier[place].detach()), expected)


def _require_usable(name: str, term: Term, total: torch.Tensor, units: float) -> None:
    if not math.isfinite(float(total.detach())):
        raise WorkloadError(
            f"workload {name}: term '{term.name}' is {float(total.detach())} with the initial weights: mend the "
            "loss, or start from smaller weights in build_model"
        )
    if units > 0 and not total.requires_grad:
        raise WorkloadError(
            f"workload {name}: term '{term.name}' has no gradient: compute it from what forward returns by operations "
            "of torch, without detach, item or no_grad"
        )


def _require(name: str, term: Term, row: Row, once: float, how: str, found: float, expected: float) -> None:
    if math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=1e-9):
        return
    values = f"row '{row.id}' has {once:.6g} in term '{term.name}', and {how} {found:.6g}"
    if term.is_once:
        raise WorkloadError(f"workload {name}: {values}, although the term counts once: let it depend on no row")
    remedy = "let loss_terms return the SUM over the term's units, never a mean"
    if how != "twice":
        remedy = "let loss_terms multiply the loss of each position by row.weights, before it sums"
    raise WorkloadError(f"workload {name}: {values}, not twice as much: {remedy}")
