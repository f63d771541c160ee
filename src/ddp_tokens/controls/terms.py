"""Loops over a loss of several terms with one thing wrong in each, written as people write them."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.controls.term_cases import TERMS
from ddp_tokens.gradients import Microbatches, Way
from ddp_tokens.objectives import count_terms
from ddp_tokens.workloads import Several, Workload
from ddp_tokens.world import World


@dataclass(frozen=True)
class Step:
    """One microbatch: `sums` by term, `own` and `total` numbers of the window by term, of this rank and of all."""

    sums: Mapping[str, torch.Tensor]
    own: Mapping[str, float]
    total: Mapping[str, float]
    world_size: int
    is_last: bool


C = {term.name: term.coefficient for term in TERMS}


def looping(loss_of: Callable[[Step], torch.Tensor]) -> Way:
    """The usual loop, in which only the loss of a microbatch is open."""

    def way(
        model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
    ) -> None:
        counts = count_terms(workload, TERMS, microbatches, name, world.device)
        own, total = ({term.name: n for term, n in zip(TERMS, ns, strict=True)} for ns in (counts.own, counts.total))
        model.zero_grad(set_to_none=True)
        for index, rows in enumerate(microbatches):
            batch, is_last = workload.collate(rows, world.device), index == len(microbatches) - 1
            with nullcontext() if is_last else model.no_sync():
                terms = cast(Several, workload).loss_terms(workload.forward(model, batch), batch)
                sums = {name: loss for name, (loss, _) in terms.items()}
                loss_of(Step(sums, own, total, world.size, is_last)).backward()

    return way


def labels(of: Step) -> torch.Tensor:
    return of.world_size * of.sums["labels"] / of.total["labels"]


def pooled(of: Step) -> torch.Tensor:
    return C["pooled"] * of.world_size * of.sums["pooled"] / of.total["pooled"]


def regularizer(of: Step) -> torch.Tensor:
    """Its right share of a microbatch."""
    return C["weights"] * of.world_size * of.sums["weights"] / of.total["weights"]


def one_denominator_for_all_terms(of: Step) -> torch.Tensor:
    together = of.sums["labels"] + C["pooled"] * of.sums["pooled"]
    return of.world_size * together / of.total["labels"] + regularizer(of)


def regularizer_times_world_size(of: Step) -> torch.Tensor:
    if not of.is_last:
        return labels(of) + pooled(of) + 0 * of.sums["weights"]
    return labels(of) + pooled(of) + of.world_size * C["weights"] * of.sums["weights"]


def regularizer_in_every_microbatch(of: Step) -> torch.Tensor:
    return labels(of) + pooled(of) + C["weights"] * of.sums["weights"]


def regularizer_in_every_loss(of: Step) -> torch.Tensor:
    of_rows = of.sums["labels"] / of.total["labels"] + C["pooled"] * of.sums["pooled"] / of.total["pooled"]
    return of.world_size * (of_rows + C["weights"] * of.sums["weights"])


def coefficient_forgotten(of: Step) -> torch.Tensor:
    return labels(of) + of.world_size * of.sums["pooled"] / of.total["pooled"] + regularizer(of)


def term_forgotten(of: Step) -> torch.Tensor:
    return labels(of) + regularizer(of)


def sequences_averaged_per_rank(of: Step) -> torch.Tensor:
    return labels(of) + C["pooled"] * of.sums["pooled"] / of.own["pooled"] + regularizer(of)


WAYS: Mapping[str, Way] = {
    function.__name__: looping(function)
    for function in (
        one_denominator_for_all_terms,
        regularizer_times_world_size,
        regularizer_in_every_microbatch,
        regularizer_in_every_loss,
        coefficient_forgotten,
        term_forgotten,
        sequences_averaged_per_rank,
    )
}
