"""What a window of the chosen objective is: counted, computed and summed, of one loss or of several terms.

One loss goes through window.count_window, accumulate and sums_of_window as they are. Several terms need as many
collectives: one all-reduce carries all denominators, another all sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from ddp_tokens.corpora.rows import Row
from ddp_tokens.distributed import sum_over_ranks
from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss
from ddp_tokens.precision import Precision
from ddp_tokens.progress import UNWATCHED, Progress
from ddp_tokens.term_losses import Sums, added, require_same_units_of_terms, sums_of_terms, weighted
from ddp_tokens.terms import Term, counted
from ddp_tokens.window import (
    FULL,
    Observe,
    accumulate,
    accumulate_sums,
    count_window,
    seeing_nothing,
    sums_of_window,
)
from ddp_tokens.workloads import Workload, counter_of_rows, terms_of
from ddp_tokens.world import World

Numbers = tuple[float, ...]
Record = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    """Of a window: the units of this rank and of all, by term; of one loss a single one each."""

    own: Numbers
    total: Numbers


@dataclass(frozen=True)
class Left:
    """What a rank's window added up to, by term: its losses, and the units that the workload says it summed over."""

    sums: Numbers
    units: Numbers


class Objective(Protocol):
    def count(self, microbatches: Sequence[Sequence[Row]], window: str, device: str = "cpu") -> Counts:
        """One all-reduce. Raises EmptyWindowError on every rank alike where the mean, or a term's, has no unit."""

    def accumulate(
        self,
        model: torch.nn.Module,
        batches: Sequence[Any],
        counts: Counts,
        world: World,
        progress: Progress = UNWATCHED,
        precision: Precision = FULL,
        observe: Observe = seeing_nothing,
    ) -> Left:
        """Leave the gradient of the objective in each parameter's .grad, averaged over ranks."""

    def accumulate_means_of_ranks(
        self, model: torch.nn.Module, batches: Sequence[Any], counts: Counts, progress: Progress = UNWATCHED
    ) -> Left:
        """The known mistake: each rank divides by its own units."""

    def sums(self, window: str, left: Left, more: Sequence[float], counts: Counts, world: World) -> list[float]:
        """The sums of all ranks, by term, then each of `more`. One all-reduce; raises WorkloadError on every rank alike
        where a rank summed over other units than its rows count.
        """

    def record(self, sums: Sequence[float], counts: Counts) -> Record:
        """Of the window, over all ranks."""

    def record_of_rank(self, left: Left, counts: Counts) -> Record: ...


@dataclass(frozen=True)
class OneLoss:
    workload: Workload

    def count(self, microbatches: Sequence[Sequence[Row]], window: str, device: str = "cpu") -> Counts:
        own, total = count_window(microbatches, window, device)
        return Counts((own,), (total,))

    def accumulate(
        self,
        model: torch.nn.Module,
        batches: Sequence[Any],
        counts: Counts,
        world: World,
        progress: Progress = UNWATCHED,
        precision: Precision = FULL,
        observe: Observe = seeing_nothing,
    ) -> Left:
        normalize = partial(global_token_loss, global_count=counts.total[0], world_size=world.size)
        total, units = accumulate(model, self.workload, batches, normalize, progress, precision, observe)
        return Left((total,), (units,))

    def accumulate_means_of_ranks(
        self, model: torch.nn.Module, batches: Sequence[Any], counts: Counts, progress: Progress = UNWATCHED
    ) -> Left:
        normalize = partial(mean_of_means_loss, local_count=counts.own[0])
        total, units = accumulate(model, self.workload, batches, normalize, progress)
        return Left((total,), (units,))

    def sums(self, window: str, left: Left, more: Sequence[float], counts: Counts, world: World) -> list[float]:
        return sums_of_window(self.workload, window, [*left.sums, *more], left.units[0], counts.own[0], world)

    def record(self, sums: Sequence[float], counts: Counts) -> Record:
        return {"units": counts.total[0], "loss_sum": sums[0], "loss": sums[0] / counts.total[0]}

    def record_of_rank(self, left: Left, counts: Counts) -> Record:
        return {"units": counts.own[0], "loss_sum": left.sums[0]}


@dataclass(frozen=True)
class SeveralTerms:
    """`units` and `loss_sum` of its records are those of the first term; `loss` is the objective."""

    workload: Workload
    terms: tuple[Term, ...]

    def count(self, microbatches: Sequence[Sequence[Row]], window: str, device: str = "cpu") -> Counts:
        return count_terms(self.workload, self.terms, microbatches, window, device)

    def accumulate(
        self,
        model: torch.nn.Module,
        batches: Sequence[Any],
        counts: Counts,
        world: World,
        progress: Progress = UNWATCHED,
        precision: Precision = FULL,
        observe: Observe = seeing_nothing,
    ) -> Left:
        def normalize(sums: Sums) -> torch.Tensor:
            return weighted(self.terms, sums, counts.total, world.size)

        return self._through(model, batches, normalize, progress, precision, observe)

    def accumulate_means_of_ranks(
        self, model: torch.nn.Module, batches: Sequence[Any], counts: Counts, progress: Progress = UNWATCHED
    ) -> Left:
        def normalize(sums: Sums) -> torch.Tensor:
            means = [mean_of_means_loss(own, number) for own, number in zip(sums, counts.own, strict=True)]
            return added(self.terms, means)

        return self._through(model, batches, normalize, progress)

    def _through(
        self,
        model: torch.nn.Module,
        batches: Sequence[Any],
        normalize: Callable[[Sums], torch.Tensor],
        progress: Progress,
        precision: Precision = FULL,
        observe: Observe = seeing_nothing,
    ) -> Left:
        summed = partial(sums_of_terms, self.workload, self.terms)
        return Left(*accumulate_sums(model, self.workload, summed, batches, normalize, progress, precision, observe))

    def sums(self, window: str, left: Left, more: Sequence[float], counts: Counts, world: World) -> list[float]:
        number = len(self.terms)
        own, units = [*left.sums, *more], [0.0] * (2 * number * world.size)
        units[2 * number * world.rank : 2 * number * (world.rank + 1)] = [*left.units, *counts.own]
        totals = sum_over_ranks([*own, *units], world.device, "loss sum")
        of_ranks = totals[len(own) :]
        blocks = [of_ranks[start : start + 2 * number] for start in range(0, len(of_ranks), 2 * number)]
        summed, rows = [block[:number] for block in blocks], [block[number:] for block in blocks]
        require_same_units_of_terms(self.terms, window, summed, rows)
        return totals[: len(own)]

    def record(self, sums: Sequence[float], counts: Counts) -> Record:
        of_terms = {
            term.name: {"sum": total, "units": units, "mean": total / units, "coefficient": term.coefficient}
            for term, total, units in zip(self.terms, sums, counts.total, strict=False)
        }
        loss = sum(term["coefficient"] * term["mean"] for term in of_terms.values())
        return {"units": counts.total[0], "loss_sum": sums[0], "loss": loss, "terms": of_terms}

    def record_of_rank(self, left: Left, counts: Counts) -> Record:
        of_terms = {
            term.name: {"sum": total, "units": units}
            for term, total, units in zip(self.terms, left.sums, counts.own, strict=True)
        }
        return {"units": counts.own[0], "loss_sum": left.sums[0], "terms": of_terms}


def count_terms(
    workload: Workload, terms: Sequence[Term], microbatches: Sequence[Sequence[Row]], window: str, device: str = "cpu"
) -> Counts:
    """Each term's denominator, of this rank and over all. One all-reduce, in float64.

    Raises EmptyWindowError on every rank alike, naming the term, when no rank has a unit of it.
    """
    by_workload = counter_of_rows(workload)
    of_batches = [counted(terms, rows, by_workload) for rows in microbatches]
    own = [sum(numbers) for numbers in zip(*of_batches, strict=True)]
    totals = [_plain(total) for total in sum_over_ranks(own, device, "count")]
    for term, total in zip(terms, totals, strict=True):
        if total == 0:
            raise EmptyWindowError(
                f"{window} holds no unit ({term.unit}) of term '{term.name}' on any rank, so it has no mean: remove "
                "its rows, label some of them, or deal rows with such units into every window"
            )
    return Counts(tuple(own), tuple(totals))


def _plain(total: float) -> float:
    return int(total) if total.is_integer() else total


def objective_of(workload: Workload) -> Objective:
    """Raises WorkloadError where it declares terms that are none."""
    terms = terms_of(workload)
    return SeveralTerms(workload, terms) if terms else OneLoss(workload)
