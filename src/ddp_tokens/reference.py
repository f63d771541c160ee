"""The gradient of the objective itself, in one process without DDP, and of what it is made."""

from collections.abc import Callable, Iterable, Sequence

import torch

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.lock import ImageShape, Shape, read_corpus, shape_in
from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import BY_UNIT, Layout
from ddp_tokens.other_units import other_windows
from ddp_tokens.plan import microbatches_of, windows_to_compare
from ddp_tokens.strategies import gathered
from ddp_tokens.tensors import save_tensors, weights_of
from ddp_tokens.term_reference import references_of_terms
from ddp_tokens.workload_trial import try_out
from ddp_tokens.workloads import Workload, load, require_same_units, terms_of

DTYPES = {"native": torch.float32, "float64": torch.float64}
Gradients = dict[str, torch.Tensor]
RowsOfWindow = Sequence[Sequence[Sequence[Row]]]


def write_initial_weights(experiment: Experiment, at: Layout) -> None:
    """The weights that every compared path loads, drawn once from the seed."""
    _, lock = read_corpus(at.rows, at.lock)
    save_tensors(at.initial, initial_weights(experiment, load(experiment.workload), shape_in(lock)))


def initial_weights(experiment: Experiment, workload: Workload, shape: Shape | ImageShape) -> dict[str, torch.Tensor]:
    torch.manual_seed(experiment.seed)
    return weights_of(workload.build_model(experiment.model, shape))


def write_references(experiment: Experiment, at: Layout) -> None:
    """native.safetensors and float64.safetensors hold CASE/PARAMETER, with a case for each window that is compared;
    parts.safetensors holds CASE/RANK/MICROBATCH/PARAMETER in float64, and CASE/unit.UNIT/RANK/MICROBATCH/PARAMETER of
    the same window by each other unit that gives another mean. Of several terms: see references_of_terms.
    """
    make_deterministic(experiment.threads_per_rank)
    prepared = read_prepared(experiment, at)  # before anything is written: it may refuse, as the next two may
    workload = load(experiment.workload)
    try_out(experiment, workload, prepared)
    write_initial_weights(experiment, at)

    def model(dtype: torch.dtype) -> torch.nn.Module:
        return initial_model(experiment, workload, prepared.shape, at.initial, experiment.device, dtype)

    cases = windows_to_compare(prepared.plan, prepared.rows)
    dumps = references(model, workload, prepared, cases, experiment.device)
    for name, dump in dumps.items():
        save_tensors(at.reference(name), dump)


def references(
    model: Callable[[torch.dtype], torch.nn.Module],
    workload: Workload,
    prepared: Prepared,
    cases: dict[str, int],
    device: str = "cpu",
) -> dict[str, Gradients]:
    """The dumps native, float64 and parts. `model(dtype)` makes one; `cases`: name -> index of a window of the plan."""
    dumps: dict[str, Gradients] = {name: {} for name in (*DTYPES, "parts")}
    native, exact = (model(dtype) for dtype in DTYPES.values())
    if terms_of(workload):
        return references_of_terms(native, exact, workload, prepared, cases, device)
    for case, index in cases.items():
        planned = prepared.plan[index]
        window = [microbatches_of(planned, rank, prepared.rows) for rank in range(len(planned))]
        of_microbatches = parts(exact, workload, window, device, f"window {index + 1}")
        denominator = supervised_in(row for of_rank in window for rows in of_rank for row in rows)
        dumps["native"] |= named_gradients(
            case, batched_gradient(native, workload, window, device, f"window {index + 1}")
        )
        dumps["float64"] |= named_gradients(case, mean_of(of_microbatches, denominator))
        for (rank, microbatch), gradients in of_microbatches.items():
            dumps["parts"] |= named_gradients(f"{case}/{rank}/{microbatch}", gradients)
        for unit, counted in other_windows(window, prepared.unit).items():
            for (rank, microbatch), gradients in parts(exact, workload, counted, device).items():
                dumps["parts"] |= named_gradients(f"{case}/{BY_UNIT}{unit}/{rank}/{microbatch}", gradients)
    return dumps


def parts(
    model: torch.nn.Module, workload: Workload, window: RowsOfWindow, device: str = "cpu", name: str = "window"
) -> dict[tuple[int, int], Gradients]:
    """(rank, microbatch) -> gradient of the SUM of the losses of its supervised units, dropout off.

    Row by row, so that nothing is padded and no batching can matter. Every formula's gradient is a weighted sum of
    these.
    """
    return {
        (rank, index): gradient_of_batches(model, workload, [[row] for row in rows], 1, device, name)
        for rank, of_rank in enumerate(window)
        for index, rows in enumerate(of_rank)
    }


def mean_of(of_microbatches: dict[tuple[int, int], Gradients], denominator: float) -> Gradients:
    """The gradient of (sum of losses) / (number of supervised units) over the whole window."""
    total: Gradients = {}
    for gradients in of_microbatches.values():
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient
    return {name: gradient / denominator for name, gradient in total.items()}


def batched_gradient(
    model: torch.nn.Module, workload: Workload, window: RowsOfWindow, device: str = "cpu", name: str = "window"
) -> Gradients:
    """The same gradient from the microbatches as they are trained on, padding included, all in this process.

    What rounding alone does to it is the measure for what rounding may do to the distributed one.
    """
    microbatches = [rows for of_rank in window for rows in of_rank]
    denominator = supervised_in(row for rows in microbatches for row in rows)
    return gradient_of_batches(model, workload, microbatches, denominator, device, name)


def reference_gradient(
    model: torch.nn.Module, workload: Workload, rows: Iterable[Row], device: str = "cpu", window: str = "window"
) -> Gradients:
    """Gradient of (sum of losses) / (number of supervised units) over all rows, one by one, dropout off.

    Raises WorkloadError when the workload sums over other units than the corpus counts.
    """
    rows = list(rows)
    return gradient_of_batches(model, workload, [[row] for row in rows], supervised_in(rows), device, window)


def gradient_of_batches(
    model: torch.nn.Module,
    workload: Workload,
    batches: Sequence[Sequence[Row]],
    denominator: float,
    device: str = "cpu",
    window: str = "window",
    training: bool = False,
) -> Gradients:
    """Gradient of (sum of losses) / denominator. `training`: layers do what they do in training, dropout included.

    Raises WorkloadError when the workload sums over other units than the corpus counts.
    """
    model.train(training)
    model.zero_grad(set_to_none=True)
    units = 0.0
    for rows in batches:
        batch = workload.collate(rows, device)
        loss, units_of_batch = workload.loss_sum(workload.forward(model, batch), batch)
        (loss / denominator).backward()
        units += units_of_batch
    counted = supervised_in(row for rows in batches for row in rows)
    require_same_units(workload, window, [(float(units), counted)])
    return gradients_of(model)


def gradients_of(model: torch.nn.Module) -> Gradients:
    """Copies, by parameter name; a parameter without a gradient is left out, which a comparison then reports. Where
    ranks hold parts, these are put together, for which every rank calls this.
    """
    return {
        name: gradient.detach().clone()
        for name, gradient in gathered({n: p.grad for n, p in model.named_parameters() if p.grad is not None}).items()
    }


def named_gradients(case: str, gradients: Gradients) -> Gradients:
    return {f"{case}/{name}": gradient for name, gradient in gradients.items()}
