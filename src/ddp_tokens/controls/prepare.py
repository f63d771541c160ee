"""What the controls start from: one experiment to train, and the windows whose gradients are compared. One process."""

from collections.abc import Callable
from functools import partial

import torch

from ddp_tokens.config import Experiment, GeneratedCorpus
from ddp_tokens.control_settings import require_suitable
from ddp_tokens.controls import resume_cases
from ddp_tokens.controls.counted_cases import COUNTED
from ddp_tokens.controls.gradient_cases import case_layout
from ddp_tokens.controls.gradient_windows import CASES, Case, prepare_case
from ddp_tokens.controls.resume_cases import trained_layout
from ddp_tokens.controls.term_cases import TERM_CASES
from ddp_tokens.controls.workloads import settings_of, workload_of
from ddp_tokens.corpora.rows import supervised_in
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import PARTS, Layout
from ddp_tokens.plan import microbatches_of
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import (
    DTYPES,
    Gradients,
    gradient_of_batches,
    initial_weights,
    named_gradients,
    references,
    write_initial_weights,
)
from ddp_tokens.tensors import save_tensors
from ddp_tokens.workloads import Workload


def prepare_controls(experiment: Experiment, at: Layout) -> None:
    """Below trained/W corpus, plan and initial weights of the runs of W ranks; below cases/CASE the same, and
    references, of each window whose gradients are compared.
    """
    make_deterministic(experiment.threads_per_rank)
    corpus = require_suitable(experiment)
    for size in resume_cases.WORLD_SIZES:
        of_size, trained = experiment.model_copy(update={"world_size": size}), trained_layout(at.root, size)
        prepare(of_size, trained.rows, trained.lock, trained.plan)
        write_initial_weights(of_size, trained)
    for case in (*CASES.values(), *COUNTED.values(), *TERM_CASES.values()):
        _write_case(case, experiment, corpus, case_layout(at.root, case))


def _write_case(case: Case, experiment: Experiment, corpus: GeneratedCorpus, at: Layout) -> None:
    prepare_case(case, corpus, at)
    settings, workload = settings_of(case, experiment), workload_of(case)
    prepared = read_prepared(settings, at)
    save_tensors(at.initial, initial_weights(settings, workload, prepared.shape))
    model = partial(initial_model, settings, workload, prepared.shape, at.initial, "cpu")
    uses_statistics = case.of_images is not None and case.of_images.uses_statistics
    compute = references_in_training if uses_statistics else references
    for name, dump in compute(model, workload, prepared, case.compared).items():
        save_tensors(at.reference(name), dump)


def references_in_training(
    model: Callable[[torch.dtype], torch.nn.Module], workload: Workload, prepared: Prepared, cases: dict[str, int]
) -> dict[str, Gradients]:
    """As `reference.references`, but in training mode: the window as one batch in one process, and each microbatch as
    one. Where a layer uses statistics of a batch these parts do not add up to the whole.
    """
    dumps: dict[str, Gradients] = {name: {} for name in (*DTYPES, PARTS)}
    models = {name: model(dtype) for name, dtype in DTYPES.items()}
    for case, index in cases.items():
        planned = prepared.plan[index]
        window = [microbatches_of(planned, rank, prepared.rows) for rank in range(len(planned))]
        together = [row for of_rank in window for rows in of_rank for row in rows]
        for name, of_dtype in models.items():
            gradients = gradient_of_batches(of_dtype, workload, [together], supervised_in(together), training=True)
            dumps[name] |= named_gradients(case, gradients)
        for rank, of_rank in enumerate(window):
            for microbatch, rows in enumerate(of_rank):
                part = gradient_of_batches(models["float64"], workload, [rows], 1, training=True)
                dumps[PARTS] |= named_gradients(f"{case}/{rank}/{microbatch}", part)
    return dumps
