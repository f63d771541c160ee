"""The gradient of an objective of several terms in one process, and of each term's sum in each microbatch."""

import json
import math
from collections.abc import Sequence, Set
from typing import Any

import torch

from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import WorkloadError
from ddp_tokens.inputs import Prepared
from ddp_tokens.layout import FLOAT64, NATIVE, PARTS, TERMS
from ddp_tokens.plan import microbatches_of
from ddp_tokens.term_losses import require_same_units_of_terms, sums_of_terms, weighted
from ddp_tokens.terms import CountsRow, Term, counted, record
from ddp_tokens.workloads import Workload, counter_of_rows, terms_of

Gradients = dict[str, torch.Tensor]
Rows = Sequence[Sequence[Sequence[Row]]]  # [rank][microbatch][row]
Place = tuple[str, int, int]  # term, rank, microbatch
SAME_VALUE = 1e-9


def references_of_terms(
    native: torch.nn.Module,
    exact: torch.nn.Module,
    workload: Workload,
    prepared: Prepared,
    cases: dict[str, int],
    device: str,
) -> dict[str, Gradients]:
    """As reference.references. Its parts are CASE/TERM/RANK/MICROBATCH/PARAMETER, without coefficient or denominator;
    `terms`, JSON in bytes, says what the terms are and what the workload counted itself.
    """
    terms, dumps = terms_of(workload), {name: Gradients() for name in (NATIVE, FLOAT64, PARTS)}
    for case, index in cases.items():
        window, name = window_of(prepared, index), f"window {index + 1}"
        of_places = parts_of_terms(exact, workload, window, device, name)
        totals = dict(zip((term.name for term in terms), totals_of(workload, window), strict=True))
        weights = {term.name: term.coefficient / totals[term.name] for term in terms}
        batched = batched_gradient_of_terms(native, workload, window, device, name)
        dumps[NATIVE] |= {f"{case}/{parameter}": gradient for parameter, gradient in batched.items()}
        dumps[FLOAT64] |= {f"{case}/{name}": gradient for name, gradient in _added(of_places, weights).items()}
        for (term, rank, microbatch), gradients in of_places.items():
            dumps[PARTS] |= {f"{case}/{term}/{rank}/{microbatch}/{name}": of for name, of in gradients.items()}
    dumps[PARTS][TERMS] = torch.frombuffer(
        bytearray(json.dumps(told(workload, prepared, cases)).encode()), dtype=torch.uint8
    )
    return dumps


def window_of(prepared: Prepared, index: int) -> Rows:
    planned = prepared.plan[index]
    return [microbatches_of(planned, rank, prepared.rows) for rank in range(len(planned))]


def totals_of(workload: Workload, window: Rows) -> list[float]:
    """Each term's denominator over the window."""
    terms, by_workload = terms_of(workload), counter_of_rows(workload)
    of_batches = [counted(terms, rows, by_workload) for of_rank in window for rows in of_rank]
    return [sum(numbers) for numbers in zip(*of_batches, strict=True)]


def parts_of_terms(
    model: torch.nn.Module, workload: Workload, window: Rows, device: str = "cpu", name: str = "window"
) -> dict[Place, Gradients]:
    """(term, rank, microbatch) -> gradient of the term's sum, dropout off; of a term that counts once, that of its
    value. Row by row, so that nothing is padded and no batching can matter. Where a term does not reach a parameter
    that another does, its gradient is 0.

    Raises WorkloadError where a row is summed by other units than it counts, or a term that counts once has another
    value for another row.
    """
    model.eval()
    one_by_one = _RowByRow(model, workload, device)
    for rank, of_rank in enumerate(window):
        for index, rows in enumerate(of_rank):
            one_by_one.add(rank, index, rows, name)
    return one_by_one.parts()


class _RowByRow:
    def __init__(self, model: torch.nn.Module, workload: Workload, device: str) -> None:
        self.model, self.workload, self.device = model, workload, device
        self.terms, self.by_workload = terms_of(workload), counter_of_rows(workload)
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.found: dict[Place, Gradients] = {}
        self.once: dict[str, tuple[str, float, Gradients]] = {}

    def add(self, rank: int, index: int, rows: Sequence[Row], window: str) -> None:
        for term in self.terms:
            self.found[term.name, rank, index] = {}
        for row in rows:
            batch = self.workload.collate([row], self.device)
            sums, units = sums_of_terms(self.workload, self.terms, self.workload.forward(self.model, batch), batch)
            of_row = counted(self.terms, [row], self.by_workload)
            require_same_units_of_terms(self.terms, f"{window}, row '{row.id}'", [units], [of_row])
            for term, total in zip(self.terms, sums, strict=True):
                if term.is_once:
                    self._require_same_value(term, total, row, window)
                else:
                    _add(self.found[term.name, rank, index], self._gradient(total))

    def _gradient(self, total: torch.Tensor) -> Gradients:
        if not total.requires_grad:
            return {}
        of = torch.autograd.grad(total, list(self.parameters.values()), retain_graph=True, allow_unused=True)
        return {name: gradient for name, gradient in zip(self.parameters, of, strict=True) if gradient is not None}

    def _require_same_value(self, term: Term, total: torch.Tensor, row: Row, window: str) -> None:
        value = float(total.detach())
        if term.name not in self.once:
            self.once[term.name] = row.id, value, self._gradient(total)
        first, before, _ = self.once[term.name]
        if not math.isclose(value, before, rel_tol=SAME_VALUE):
            raise WorkloadError(
                f"{window}: term '{term.name}' counts once, but it is {before:.9g} for row '{first}' and {value:.9g} "
                f"for row '{row.id}': give it the unit that it is a sum over, or leave out what depends on the rows"
            )

    def parts(self) -> dict[Place, Gradients]:
        of_once = {name: gradient for name, (_, _, gradient) in self.once.items()}
        found = {place: of_once.get(place[0], of) for place, of in self.found.items()}
        used = {name for gradients in found.values() for name in gradients}
        return {place: self._whole(gradients, used) for place, gradients in found.items()}

    def _whole(self, gradients: Gradients, used: Set[str]) -> Gradients:
        """A copy for each place: a file of tensors takes none that share memory."""
        return {
            name: gradients[name].clone() if name in gradients else torch.zeros_like(parameter)
            for name, parameter in self.parameters.items()
            if name in used
        }


def _add(total: Gradients, more: Gradients) -> None:
    for name, gradient in more.items():
        total[name] = total[name] + gradient if name in total else gradient


def _added(parts: dict[Place, Gradients], weights: dict[str, float]) -> Gradients:
    """sum over places of the term's weight times its part."""
    total: Gradients = {}
    for (term, _, _), gradients in parts.items():
        _add(total, {name: weights[term] * gradient for name, gradient in gradients.items()})
    return total


def batched_gradient_of_terms(
    model: torch.nn.Module, workload: Workload, window: Rows, device: str = "cpu", name: str = "window"
) -> Gradients:
    """The gradient of the objective from the microbatches as they are trained on, padding included, all in this
    process.
    """
    model.eval()
    model.zero_grad(set_to_none=True)
    terms, totals, by_workload = terms_of(workload), totals_of(workload, window), counter_of_rows(workload)
    for rows in (rows for of_rank in window for rows in of_rank):
        batch = workload.collate(rows, device)
        sums, units = sums_of_terms(workload, terms, workload.forward(model, batch), batch)
        require_same_units_of_terms(terms, name, [units], [counted(terms, rows, by_workload)])
        weighted(terms, sums, totals, 1).backward()
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def told(workload: Workload, prepared: Prepared, cases: dict[str, int]) -> dict[str, Any]:
    """What the check cannot know from the rows: the terms, and the numbers of those that the workload counts itself."""
    terms, by_workload = terms_of(workload), counter_of_rows(workload)
    of_workload: dict[str, Any] = {}
    for case, index in cases.items() if by_workload else ():
        window = window_of(prepared, index)
        previous = window_of(prepared, index - 1) if index else None
        for place, term in enumerate(terms):
            if _is_counted_by(by_workload, term, window):
                units = [[counted(terms, rows, by_workload)[place] for rows in of_rank] for of_rank in window]
                before = None if previous is None else totals_of(workload, previous)[place]
                of_workload.setdefault(term.name, {})[case] = {"units": units, "previous_units": before}
    return {"terms": [record(term) for term in terms], "counted_by_workload": of_workload}


def _is_counted_by(by_workload: CountsRow | None, term: Term, window: Rows) -> bool:
    rows = (row for of_rank in window for microbatch in of_rank for row in microbatch)
    return by_workload is not None and any(term.name in by_workload(row) for row in rows)
