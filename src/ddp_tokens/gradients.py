"""Gradients as the ranks leave them, for every formula and dtype, and the refusal of an empty window.

Started once per rank: torchrun --standalone --nproc-per-node=W -m ddp_tokens.gradients --config EXPERIMENT.yaml
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from ddp_tokens.agreement import Attempt, File, describe, read_inputs, require_agreement
from ddp_tokens.config import Experiment
from ddp_tokens.corpora.rows import Row
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import (
    agreed_launch,
    barrier,
    claim_device,
    process_group,
    progress_told,
)
from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.files import write_json
from ddp_tokens.inputs import Prepared, initial_model
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN
from ddp_tokens.objective_settings import TOKEN
from ddp_tokens.objectives import objective_of
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.other_units import counted_by
from ddp_tokens.plan import microbatches_of, windows_to_compare
from ddp_tokens.rank_failure import Watch, explaining, watched
from ddp_tokens.reference import DTYPES, gradients_of, named_gradients
from ddp_tokens.strategies import bare_of, reached_by_ranks, reaching, wrap
from ddp_tokens.tensors import own_part, save_tensors
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.window_trace import trace
from ddp_tokens.workloads import Workload, load, terms_of
from ddp_tokens.world import World, require_size, world_from_environment

PROGRAM = "ddp_tokens.gradients"
Microbatches = Sequence[Sequence[Row]]
# Takes the model through a window of this rank's microbatches, with the window's name, and leaves a gradient.
Way = Callable[[torch.nn.Module, Workload, Microbatches, str, World], object]


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse(PROGRAM, arguments, "gradients", description=__doc__)
    world = claim_device(
        world_from_environment(os.environ, experiment.device, experiment.world_size), experiment.resolved_backend
    )
    end_with(starters_of_rank(os.environ))
    make_deterministic(experiment.threads_per_rank)
    inputs = Attempt(partial(read, experiment, at, world))
    launch = agreed_launch(os.environ, experiment.timeout_s)
    watch = Watch(at.rank_logs("gradients"), world, launch, os.environ["MASTER_ADDR"], PROGRAM)
    with (
        watched(watch) as progress,
        process_group(experiment.resolved_backend, experiment.timeout_s, progress),
        explaining(watch, progress),
    ):
        require_agreement(world, at, describe(PROGRAM, "gradients", experiment, inputs, {}))
        write_gradients(experiment, at, inputs.result(), world)
    return 0


def read(experiment: Experiment, at: Layout, world: World) -> tuple[Prepared, dict[str, File]]:
    require_size(world, experiment.world_size)
    prepared, files = read_inputs(experiment, at)
    return prepared.for_ranks_of(experiment.strategy), files


def write_gradients(experiment: Experiment, at: Layout, prepared: Prepared, world: World) -> None:
    """Rank 0 writes one dump per formula and dtype; each rank writes how its first window went, and what it says to an
    empty one.
    """
    workload = load(experiment.workload)

    def wrapped(dtype: torch.dtype) -> torch.nn.Module:
        bare = initial_model(experiment, workload, prepared.shape, at.initial, world.device, dtype)
        return wrap(bare.eval(), experiment.strategy)

    cases = windows_to_compare(prepared.plan, prepared.rows)
    for dtype_name, dtype in DTYPES.items():
        model = wrapped(dtype)
        for formula, way in WAYS.items():
            dump = gradients_left_by(way, model, workload, prepared, cases, world)
            if world.is_main:
                save_tensors(at.gradients(formula, dtype_name), dump)
    first = microbatches_of(prepared.plan[0], world.rank, prepared.rows)
    write_by_rank(at.window, traced(token_mean, wrapped(DTYPES["native"]), workload, first, world), world)
    write_by_rank(at.zero_window, refuse_empty_window(wrapped(DTYPES["native"]), workload, first, world), world)


def write_by_rank(directory: Path, record: dict[str, object], world: World) -> None:
    """Nothing of an earlier run with more ranks stays."""
    if world.is_main:
        shutil.rmtree(directory, ignore_errors=True)
    barrier()
    about = {"rank": world.rank, "world_size": world.size}
    write_json(directory / f"rank-{world.rank}.json", about | record)


def gradients_left_by(
    way: Way,
    model: torch.nn.Module,
    workload: Workload,
    prepared: Prepared,
    cases: Mapping[str, int],
    world: World,
) -> dict[str, torch.Tensor]:
    """Gradients by CASE/PARAMETER, as this rank holds them after DDP's averaging, of all parameters that a loss of any
    rank depends on. `cases`: name -> index of window.
    """
    dump: dict[str, torch.Tensor] = {}
    for case, index in cases.items():
        progress_told().begins_update(index + 1)
        own = microbatches_of(prepared.plan[index], world.rank, prepared.rows)
        with reaching(model) as reached:
            way(model, workload, own, name_of(index), world)
        of_losses = reached_by_ranks(model, reached, world.device)
        left = gradients_of(bare_of(model))
        dump |= named_gradients(case, {name: left[name] for name in left if name in of_losses})
    return dump


def token_mean(model: torch.nn.Module, workload: Workload, microbatches: Microbatches, name: str, world: World) -> None:
    """As training does it: one all-reduce of the counts, then W * S_r / N."""
    objective = objective_of(workload)
    counts = objective.count(microbatches, name, world.device)
    batches = [workload.collate(rows, world.device) for rows in microbatches]
    left = objective.accumulate(model, batches, counts, world, progress_told())
    objective.sums(name, left, (), counts, world)


def mean_of_means(
    model: torch.nn.Module, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    """The known mistake: S_r / N_r of tokens, as the usual loop makes it whatever the unit; of several terms, each."""
    if not terms_of(workload):
        [microbatches] = counted_by([microbatches], TOKEN)
    objective = objective_of(workload)
    counts = objective.count(microbatches, name, world.device)
    batches = [workload.collate(rows, world.device) for rows in microbatches]
    left = objective.accumulate_means_of_ranks(model, batches, counts, progress_told())
    objective.sums(name, left, (), counts, world)


WAYS: Mapping[str, Way] = {TOKEN_MEAN: token_mean, MEAN_OF_MEANS: mean_of_means}


def name_of(index: int) -> str:
    return f"window {index + 1}"


def traced(
    way: Way, model: torch.nn.Module, workload: Workload, microbatches: Microbatches, world: World
) -> dict[str, object]:
    return {
        "microbatches": len(microbatches),
        **trace(model, lambda: way(model, workload, microbatches, name_of(0), world)),
    }


def refuse_empty_window(
    model: torch.nn.Module, workload: Workload, microbatches: Microbatches, world: World
) -> dict[str, object]:
    """Take a window whose labels are all ignored through the same functions as training does; record what happens."""
    before = [own_part(parameter.detach()).clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    emptied = [[row.unsupervised() for row in rows] for rows in microbatches]
    name, message = "window 1, with all of its labels ignored,", None
    try:
        token_mean(model, workload, emptied, name, world)
        optimizer.step()
    except EmptyWindowError as error:
        message = str(error)
    moved = any(not torch.equal(a, own_part(b.detach())) for a, b in zip(before, model.parameters(), strict=True))
    return {"window": name, "error": message, "parameters_moved": moved}


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
