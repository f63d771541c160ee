"""The terms of a batch's loss, as a workload gives them: held to what was declared, in the order of TERMS."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from ddp_tokens.errors import WorkloadError
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.terms import Term, require_denominator
from ddp_tokens.workloads import Several, Workload, agree, terms_of

Sums = tuple[torch.Tensor, ...]


def sums_of_terms(
    workload: Workload, terms: Sequence[Term], outputs: Any, batch: Any
) -> tuple[Sums, tuple[float, ...]]:
    """Sum and number of units of each term. Raises WorkloadError where loss_terms gives others than TERMS names."""
    found = cast(Several, workload).loss_terms(outputs, batch)
    if not isinstance(found, Mapping):
        raise WorkloadError(
            f"loss_terms returns a {type(found).__name__}: let it return sum and number by name of a term"
        )
    missing = [term.name for term in terms if term.name not in found]
    more = [name for name in found if name not in {term.name for term in terms}]
    for names, does in ((missing, "lacks"), (more, "adds")):
        if names:
            raise WorkloadError(f"loss_terms {does} {', '.join(names)}: let it give exactly the terms that TERMS names")
    numbers = []
    for term in terms:
        given = found[term.name]
        if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], torch.Tensor):
            raise WorkloadError(
                f"loss_terms gives term '{term.name}' as a {type(given).__name__}: let it be two values, a SUM as a "
                "tensor and a number of units"
            )
        total, number = given
        where = f"loss_terms, term '{term.name}': the denominator"
        numbers.append(float(require_denominator(number, where, "return the number of the term's units in the batch")))
        if total.numel() != 1:
            raise WorkloadError(
                f"loss_terms gives term '{term.name}' the shape {tuple(total.shape)}: let it be a SUM, a scalar"
            )
    return tuple(found[term.name][0] for term in terms), tuple(numbers)


def weighted(terms: Sequence[Term], sums: Sums, totals: Sequence[float], world_size: int) -> torch.Tensor:
    """sum_t c_t * W * S_t / N_t, prepared for DDP's averaging. `totals`: N_t, over the window and all ranks."""
    return added(terms, [global_token_loss(own, total, world_size) for own, total in zip(sums, totals, strict=True)])


def added(terms: Sequence[Term], means: Sequence[torch.Tensor]) -> torch.Tensor:
    """sum_t c_t * means_t."""
    return torch.stack([term.coefficient * mean.reshape(()) for term, mean in zip(terms, means, strict=True)]).sum()


def plain_loss(workload: Workload, outputs: Any, batch: Any) -> torch.Tensor:
    """Something to call backward() on where only its time matters."""
    terms = terms_of(workload)
    if not terms:
        return workload.loss_sum(outputs, batch)[0]
    return added(terms, sums_of_terms(workload, terms, outputs, batch)[0])


def require_same_units_of_terms(
    terms: Sequence[Term], window: str, summed: Sequence[Sequence[float]], counted: Sequence[Sequence[float]]
) -> None:
    """`summed`, `counted`: by rank, of each term, the units whose losses the workload says it summed and those that its
    rows count. Raises WorkloadError naming the first term and rank where they differ.
    """
    for rank, (own, rows) in enumerate(zip(summed, counted, strict=True)):
        for term, of_batches, of_rows in zip(terms, own, rows, strict=True):
            if not agree(of_batches, of_rows):
                raise WorkloadError(
                    f"{window}: loss_terms sums {of_batches:.15g} units of term '{term.name}' on rank {rank}, where "
                    f"its rows count {of_rows:.15g} by unit {term.unit}: let both cover the same, or define "
                    "denominators(row)"
                )
