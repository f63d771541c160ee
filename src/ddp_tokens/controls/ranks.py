"""Everything that the controls need of W ranks: gradients of wrong and right windows, runs, evaluations.

python -m ddp_tokens.launch --nproc-per-node=W -m ddp_tokens.controls.ranks --config config/controls.yaml

All variants of one number of ranks go through one launch; each wraps a model of its own. CPU and gloo only.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.config import Experiment
from ddp_tokens.controls import evaluation_cases, evaluations, resume_cases, resumes
from ddp_tokens.controls.gradient_cases import WINDOW, Variant, case_layout, of_world_size, ranks_layout
from ddp_tokens.controls.gradient_windows import COMPARED
from ddp_tokens.controls.gradients import ways
from ddp_tokens.controls.resume_cases import trained_layout
from ddp_tokens.controls.workloads import settings_of, workload_of
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import barrier, process_group, wrap_for_ddp
from ddp_tokens.files import write_json
from ddp_tokens.gradients import gradients_left_by, traced, write_by_rank
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.plan import microbatches_of
from ddp_tokens.reference import DTYPES
from ddp_tokens.tensors import save_tensors
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.workloads import load
from ddp_tokens.world import World, world_from_environment

PROGRAM = "ddp_tokens.controls.ranks"


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse(PROGRAM, arguments, "control_ranks", description=__doc__)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    world = world_from_environment(os.environ, "cpu", size)
    end_with(starters_of_rank(os.environ))
    make_deterministic(experiment.threads_per_rank)
    left = ranks_layout(at.root, size)
    with process_group("gloo", experiment.timeout_s):
        if world.is_main:
            shutil.rmtree(left.root, ignore_errors=True)
        barrier()
        for variant in of_world_size(size):
            run_variant(variant, experiment, case_layout(at.root, variant.case), left, world)
        run_evaluations(experiment, trained_layout(at.root, evaluation_cases.TRAINED), left, world)
        if size in resume_cases.WORLD_SIZES:
            of_size = experiment.model_copy(update={"world_size": size})
            resumes.run_all(of_size, trained_layout(at.root, size), partial(resume_cases.layout_of, left), world)
    return 0


def run_evaluations(experiment: Experiment, trained: Layout, left: Layout, world: World) -> None:
    """Scores of the initial weights, which every rank computes and rank 0 writes."""
    prepared, workload = read_prepared(experiment, trained), load(experiment.workload)
    model = initial_model(experiment, workload, prepared.shape, trained.initial, "cpu", torch.float32)
    rows = prepared.rows.values()
    for case in evaluation_cases.of_world_size(world.size):
        of_splits = {split: [row for row in rows if row.split == split] for split in evaluation_cases.SPLITS}
        evaluate = evaluations.WAYS[case.way]
        scores = {
            split: evaluate(model, workload, of_split, experiment.batch, world) for split, of_split in of_splits.items()
        }
        if world.is_main:
            write_json(evaluation_cases.scores_of(case, left), scores)


def run_variant(variant: Variant, experiment: Experiment, at: Layout, left: Layout, world: World) -> None:
    """Rank 0 writes one dump per dtype, or each rank the trace of the window, as the check of the variant reads it."""
    prepared = read_prepared(settings_of(variant.case, experiment), at)
    if variant.check == WINDOW:
        write_trace(variant, experiment, prepared, at.initial, left.root / "window" / variant.name, world)
        return
    for name in variant.dtypes:
        dump = gradient_of(variant, experiment, prepared, at.initial, DTYPES[name], world)
        if world.is_main:
            save_tensors(left.gradients(variant.name, name), dump)


def gradient_of(
    variant: Variant, experiment: Experiment, prepared: Prepared, initial: Path, dtype: torch.dtype, world: World
) -> dict[str, torch.Tensor]:
    """After the windows before it, as in training."""
    model = wrapped(variant, experiment, prepared, initial, dtype, world)
    index = variant.case.compared[COMPARED]
    way, workload = ways(prepared, index)[variant.way], workload_of(variant.case)
    for earlier in range(index):
        gradients_left_by(way, model, workload, prepared, {"earlier": earlier}, world)
    return gradients_left_by(way, model, workload, prepared, variant.case.compared, world)


def write_trace(
    variant: Variant, experiment: Experiment, prepared: Prepared, initial: Path, directory: Path, world: World
) -> None:
    model = wrapped(variant, experiment, prepared, initial, DTYPES["native"], world)
    index = variant.case.compared[COMPARED]
    way, own = ways(prepared, index)[variant.way], microbatches_of(prepared.plan[index], world.rank, prepared.rows)
    write_by_rank(directory, traced(way, model, workload_of(variant.case), own, world), world)


def wrapped(
    variant: Variant, experiment: Experiment, prepared: Prepared, initial: Path, dtype: torch.dtype, world: World
) -> DistributedDataParallel:
    case = variant.case
    model = initial_model(settings_of(case, experiment), workload_of(case), prepared.shape, initial, "cpu", dtype)
    return wrap_for_ddp(model.train(case.of_images is not None and case.of_images.training))


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
