"""A kind of work is tried out on a few rows before anything is computed with it: is its loss a sum over units?

What no later check can see is refused here. Each compared gradient, the reference included, is made of the workload's
own `loss_sum`: a mean in place of a sum, weights that are ignored, or a denominator that depends on the model, would be
wrong on both sides alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.rows import Row, supervised
from ddp_tokens.errors import WorkloadError
from ddp_tokens.inputs import Prepared, require_documents_of_terms
from ddp_tokens.term_trial import heavier, require_nothing, try_terms, without_smoothing
from ddp_tokens.terms import require_denominator, what
from ddp_tokens.workloads import Workload, require_weight, terms_of

ROWS = 3  # of which one may happen to have a loss of 0, to which anything is in proportion
# Of what a sum must be. A workload may compute in bfloat16, whose rounding is 2^-8 = 0.4 %; a mean is off by a half.
TOLERANCE = 0.02
AS_A_SUM = "let loss_sum return the SUM of the losses of the supervised units, and their number"
SCORES = ("loss_sum", "correct", "units")


def try_out(experiment: Experiment, workload: Workload, prepared: Prepared) -> None:
    """Raises WorkloadError, naming the workload and what to return, and PlanError where a window holds a part of a
    document that a term counts. In float64, dropout off; the model is thrown away.

    Not seen: what depends on other rows of the batch than the row's own copy.
    """
    name = experiment.workload
    torch.manual_seed(experiment.seed)
    model = workload.build_model(experiment.model, prepared.shape)
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(f"workload {name}: build_model returns {what(model)}: let it return a torch.nn.Module")
    require_documents_of_terms(workload, prepared)
    model = model.to(device=experiment.device, dtype=torch.float64).eval()
    ids = (row_id for of_rank in prepared.plan[0] for microbatch in of_rank for row_id in microbatch)
    rows = [row for row_id in ids if supervised(row := prepared.rows[row_id]) > 0]
    of_window = rows[:: max(1, len(rows) // ROWS)][:ROWS]
    for row in (*of_window, *_first_with_weights(prepared.rows)):
        _try_row(name, workload, model, row, experiment.device)
    if not terms_of(workload):
        by_length = sorted(rows, key=lambda row: len(row.labels))
        _try_together(name, workload, model, by_length[:1] + by_length[-1:], experiment.device)


def _first_with_weights(rows: Mapping[str, Row]) -> list[Row]:
    """The first row with weights that is trained on, and the first that is scored: few rows may have them, and none of
    these be in the window. Reads the rows once, in order, up to the second.
    """
    found: dict[bool, Row] = {}
    for row in rows.values():
        is_trained_on = row.split == "train"
        if is_trained_on not in found and row.weights is not None and supervised(row) > 0:
            found[is_trained_on] = row
            if len(found) == 2:
                break
    return list(found.values())


def _try_row(name: str, workload: Workload, model: torch.nn.Module, row: Row, device: str) -> None:
    def loss_of(*rows: Row) -> float:
        batch = workload.collate(rows, device)
        return _loss_in(name, workload.loss_sum(workload.forward(model, batch), batch))

    if terms_of(workload):
        try_terms(name, workload, model, row, device)
    else:
        _try_loss(name, loss_of, row)
        _try_without_labels(name, workload, model, row, device)
    with torch.no_grad():
        batch = workload.collate([row], device)
        scores = workload.metrics(workload.forward(model, batch), batch)
    _require_scores(name, scores)
    require_weight(workload, scores, [row])
    if not terms_of(workload) and not math.isclose(
        scores["loss_sum"], expected := loss_of(row), rel_tol=TOLERANCE, abs_tol=1e-9
    ):
        raise WorkloadError(
            f"workload {name}: metrics gives row '{row.id}' a loss_sum of {scores['loss_sum']:.6g}, and loss_sum gives "
            f"it {expected:.6g}: let metrics return the same sum, never a mean"
        )


def _try_together(name: str, workload: Workload, model: torch.nn.Module, rows: Sequence[Row], device: str) -> None:
    """A short row and a long one: padding must count nothing."""

    def loss_of(*of_batch: Row) -> float:
        batch = workload.collate(of_batch, device)
        return _loss_in(name, workload.loss_sum(workload.forward(model, batch), batch))

    together, apart = loss_of(*rows), sum(map(loss_of, rows))
    if not math.isclose(together, apart, rel_tol=TOLERANCE, abs_tol=1e-9):
        ids = " and ".join(f"'{row.id}'" for row in rows)
        raise WorkloadError(
            f"workload {name}: rows {ids} have a loss_sum of {together:.6g} in one batch and of {apart:.6g} in two: "
            "let collate, forward and loss_sum give padding no weight, and no row an influence on another"
        )


def _try_loss(name: str, loss_of: Callable[..., float], row: Row) -> None:
    once = loss_of(row)
    doubled = [(how, remedy, [other]) for how, remedy, other in heavier(row, "loss_sum")]
    for how, remedy, rows in [("that row twice", AS_A_SUM, [row, row]), *doubled]:
        twice = loss_of(*rows)
        if not math.isclose(twice, 2 * once, rel_tol=TOLERANCE, abs_tol=1e-9):
            raise WorkloadError(
                f"workload {name}: row '{row.id}' has a loss_sum of {once:.6g}, and {how} {twice:.6g}, not twice as "
                f"much: {remedy}"
            )
    smoothed = row.criterion.label_smoothing
    if smoothed and loss_of(without_smoothing(row)) == once:
        raise WorkloadError(
            f"workload {name}: the loss_sum of row '{row.id}' is the same with label_smoothing {smoothed} and with 0: "
            "let loss_sum use row.criterion.label_smoothing, or set label_smoothing to 0"
        )


def _try_without_labels(name: str, workload: Workload, model: torch.nn.Module, row: Row, device: str) -> None:
    """As a rank computes it that has no rows, where others wait for it."""
    batch = workload.collate([row.unsupervised()], device)
    returned = workload.loss_sum(workload.forward(model, batch), batch)
    _loss_in(name, returned)
    total, number = returned
    require_nothing(f"workload {name}: loss_sum", "loss_sum", row, model, total, [float(number)])


def _loss_in(name: str, returned: Any) -> float:
    """What a loss_sum has returned, as a number. Raises WorkloadError unless it is a loss and a denominator."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise WorkloadError(f"workload {name}: loss_sum returns {what(returned)}: {AS_A_SUM}, as two values")
    loss, units = returned
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(f"workload {name}: the loss of loss_sum is {what(loss)}, no tensor: {AS_A_SUM}")
    if loss.dim():
        raise WorkloadError(
            f"workload {name}: the loss of loss_sum has the shape {list(loss.shape)}, and is no scalar: {AS_A_SUM}"
        )
    if not loss.requires_grad:
        raise WorkloadError(
            f"workload {name}: the loss of loss_sum has no gradient: compute it from the model's outputs by operations "
            "of torch, without detach, item or no_grad"
        )
    value = float(loss.detach())
    if not math.isfinite(value):
        raise WorkloadError(
            f"workload {name}: the loss of loss_sum is {value} with the initial weights: mend the loss, or start "
            "from smaller weights in build_model"
        )
    counted = f"workload {name}: the denominator that loss_sum returns"
    require_denominator(units, counted, "return what the rows count, supervised_in(rows)")
    return value


def _require_scores(name: str, scores: Any) -> None:
    found: Mapping[str, Any] = scores if isinstance(scores, Mapping) else {}
    if missing := [score for score in SCORES if not _is_number(found.get(score))]:
        raise WorkloadError(
            f"workload {name}: metrics returns {what(scores)} without {', '.join(missing)} as plain numbers: return "
            "{'loss_sum': the sum of the losses, 'correct': how many units are right (0 where none can be), 'units': "
            "their number}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
