"""The terms of a loss are tried out on a row: is each a sum over its units, or does it count once, and is no sum?"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import WorkloadError
from ddp_tokens.objective_settings import TOKEN
from ddp_tokens.term_losses import Sums, sums_of_terms
from ddp_tokens.terms import Term, counted
from ddp_tokens.workloads import Workload, counter_of_rows, terms_of

TOLERANCE = 0.02  # as in workload_trial: of what a sum must be
AS_A_SUM = "let loss_terms return the SUM over the term's units, never a mean"
SumsOver = Callable[..., Sums]


def try_terms(name: str, workload: Workload, model: torch.nn.Module, row: Row, device: str) -> None:
    """Raises WorkloadError, naming the workload `name`, the term and what to return."""
    terms = terms_of(workload)

    def sums_and_numbers(*rows: Row) -> tuple[Sums, tuple[float, ...]]:
        batch = workload.collate(rows, device)
        return sums_of_terms(workload, terms, workload.forward(model, batch), batch)

    def sums_over(*rows: Row) -> Sums:
        return sums_and_numbers(*rows)[0]

    once, twice = sums_over(row), sums_over(row, row)
    units = counted(terms, [row], counter_of_rows(workload))
    for term, total, doubled, number in zip(terms, once, twice, units, strict=True):
        _require_usable(name, term, total, number)
        value = float(total.detach())
        _require(name, term, row, value, "twice", float(doubled.detach()), value if term.is_once else 2 * value)
    _try_weights(name, terms, sums_over, row, once)
    empty = row.unsupervised()
    sums, numbers = sums_and_numbers(empty)
    counts = counted(terms, [empty], counter_of_rows(workload))
    for term, total, *of_term in zip(terms, sums, numbers, counts, strict=True):
        if not term.is_once:
            where = f"workload {name}: term '{term.name}'"
            require_nothing(where, "loss_terms and denominators", row, model, total, of_term)


def require_nothing(
    where: str, functions: str, row: Row, model: torch.nn.Module, total: torch.Tensor, numbers: Iterable[float]
) -> None:
    """`total`, `numbers`: what `functions` give of the row without its labels, with which a rank computes that has no
    rows. Raises WorkloadError, beginning with `where`, unless all are 0 and the gradient of the sum too.
    """
    problems = [f"a sum of {float(total.detach()):.6g}"] if float(total.detach()) != 0 else []
    problems += ["a gradient other than 0"] if _has_gradient(total, model) else []
    problems += [f"{number:.6g} units" for number in dict.fromkeys(numbers) if number != 0]
    if problems:
        raise WorkloadError(
            f"{where} counts row '{row.id}' even where none of its labels is supervised ({', '.join(problems)}), and a "
            f"rank without rows computes such a row: let {functions} count nothing where no label is supervised"
        )


def _has_gradient(total: torch.Tensor, model: torch.nn.Module) -> bool:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not total.requires_grad or not parameters:
        return False
    found = torch.autograd.grad(
        total, parameters, grad_outputs=torch.ones_like(total), retain_graph=True, allow_unused=True
    )
    return any(bool((gradient != 0).any()) for gradient in found if gradient is not None)  # NaN is not 0 either


def heavier(row: Row, function: str) -> list[tuple[str, str, Row]]:
    """What should have twice the loss of the row: what it is called, what `function` must do where it has not."""
    found = []
    if row.weights is not None:
        of_units = "" if row.units is None else " (which make the unit count)"
        found.append(
            (
                f"with its weights doubled{of_units}",
                f"let {function} multiply the loss of each position by row.weights, before it sums",
                replace(row, weights=tuple(2 * weight for weight in row.weights)),
            )
        )
    weights = row.criterion.class_weights
    if weights is not None:
        criterion = replace(row.criterion, class_weights=tuple(2 * weight for weight in weights))
        found.append(
            (
                "with the class weights doubled",
                f"let {function} use row.criterion.class_weights, or leave class_weights out",
                replace(row, criterion=criterion),
            )
        )
    return found


def without_smoothing(row: Row) -> Row:
    return replace(row, criterion=replace(row.criterion, label_smoothing=0.0))


def _try_weights(name: str, terms: Iterable[Term], sums_over: SumsOver, row: Row, once: Sums) -> None:
    """Weights, class weights and label smoothing are those of positions: every term that counts tokens has them."""
    changes = [(how, remedy, sums_over(other)) for how, remedy, other in heavier(row, "loss_terms")]
    smoothing = row.criterion.label_smoothing
    plain = sums_over(without_smoothing(row)) if smoothing else None
    for place, (term, total) in enumerate(zip(terms, once, strict=True)):
        if term.unit != TOKEN:
            continue
        value = float(total.detach())
        for how, remedy, sums in changes:
            _require(name, term, row, value, how, float(sums[place].detach()), 2 * value, remedy)
        if plain is not None and value and float(plain[place].detach()) == value:
            raise WorkloadError(
                f"workload {name}: term '{term.name}' of row '{row.id}' is the same with label_smoothing {smoothing} "
                "and with 0: let loss_terms use row.criterion.label_smoothing, or set label_smoothing to 0"
            )


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


def _require(
    name: str, term: Term, row: Row, once: float, how: str, found: float, expected: float, remedy: str = AS_A_SUM
) -> None:
    if math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=1e-9):
        return
    values = f"row '{row.id}' has {once:.6g} in term '{term.name}', and {how} {found:.6g}"
    if term.is_once:
        raise WorkloadError(f"workload {name}: {values}, although the term counts once: let it depend on no row")
    raise WorkloadError(f"workload {name}: {values}, not twice as much: {remedy}")
