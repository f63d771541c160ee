"""The gradient of the objective itself: one process, no DDP, no padding, no microbatch."""

from collections.abc import Iterable

import torch

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.lock import read_corpus, shape_in
from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.plan import windows_to_compare
from ddp_tokens.tensors import save_tensors
from ddp_tokens.workloads import Workload, load, require_same_units

DTYPES = {"native": torch.float32, "float64": torch.float64}


def write_initial_weights(experiment: Experiment, at: Layout) -> None:
    """The weights that every compared path loads, drawn once from the seed."""
    _, lock = read_corpus(at.rows, at.lock)
    torch.manual_seed(experiment.seed)
    save_tensors(at.initial, load(experiment.workload).build_model(experiment.model, shape_in(lock)).state_dict())


def write_references(experiment: Experiment, at: Layout) -> None:
    """One gradient dump per dtype; names are CASE/PARAMETER, with a case for each window that is compared."""
    make_deterministic(experiment.threads_per_rank)
    write_initial_weights(experiment, at)
    prepared = read_prepared(experiment, at)
    workload = load(experiment.workload)
    cases = windows_to_compare(prepared.plan, prepared.rows)
    for name, dtype in DTYPES.items():
        model = initial_model(experiment, workload, prepared.shape, at.initial, experiment.device, dtype)
        dump: dict[str, torch.Tensor] = {}
        for case, index in cases.items():
            window = [
                prepared.rows[i] for of_rank in prepared.plan[index] for microbatch in of_rank for i in microbatch
            ]
            gradient = reference_gradient(model, workload, window, experiment.device, f"window {index + 1}")
            dump |= named_gradients(case, gradient)
        save_tensors(at.reference(name), dump)


def reference_gradient(
    model: torch.nn.Module, workload: Workload, rows: Iterable[Row], device: str = "cpu", window: str = "window"
) -> dict[str, torch.Tensor]:
    """Gradient of (sum of losses) / (number of supervised units) over all rows, dropout off, by parameter name.

    Row by row, so that nothing is padded and no batching can matter: what a batched, sharded computation must equal.
    Raises WorkloadError when the workload sums over other units than the corpus counts.
    """
    rows = list(rows)
    model.eval()
    model.zero_grad(set_to_none=True)
    denominator, units = supervised_in(rows), 0.0
    for row in rows:
        batch = workload.collate([row], device)
        loss, units_of_row = workload.loss_sum(workload.forward(model, batch), batch)
        (loss / denominator).backward()
        units += units_of_row
    require_same_units(workload, window, [(float(units), denominator)])
    return gradients_of(model)


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies, by parameter name; a parameter without a gradient is left out, which a comparison then reports."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def named_gradients(case: str, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{case}/{name}": gradient for name, gradient in gradients.items()}
