"""What the controls start from: one experiment to train, and the windows whose gradients are compared. One process."""

from functools import partial

from ddp_tokens.config import Experiment, GeneratedCorpus
from ddp_tokens.control_settings import require_suitable
from ddp_tokens.controls import resume_cases
from ddp_tokens.controls.gradient_cases import case_layout
from ddp_tokens.controls.gradient_windows import CASES, Case, prepare_case
from ddp_tokens.controls.resume_cases import trained_layout
from ddp_tokens.controls.workloads import workload_of
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import initial_weights, references, write_initial_weights
from ddp_tokens.tensors import save_tensors


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
    for case in CASES.values():
        _write_case(case, experiment, corpus, case_layout(at.root, case))


def _write_case(case: Case, experiment: Experiment, corpus: GeneratedCorpus, at: Layout) -> None:
    prepare_case(case, corpus, at)
    prepared, workload = read_prepared(experiment, at), workload_of(case)
    save_tensors(at.initial, initial_weights(experiment, workload, prepared.shape))
    model = partial(initial_model, experiment, workload, prepared.shape, at.initial, "cpu")
    for name, dump in references(model, workload, prepared, case.compared).items():
        save_tensors(at.reference(name), dump)
