"""Gradients as DDP leaves them, for every formula and dtype, and the refusal of an empty window.

Started once per rank: torchrun --standalone --nproc-per-node=W -m ddp_tokens.gradients --config EXPERIMENT.yaml
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import barrier, claim_device, process_group, wrap_for_ddp
from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.files import write_json
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN, global_token_loss, mean_of_means_loss
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.plan import microbatches_of, windows_to_compare
from ddp_tokens.reference import DTYPES, gradients_of, named_gradients
from ddp_tokens.tensors import save_tensors
from ddp_tokens.window import accumulate, count_window, sum_window
from ddp_tokens.workloads import Workload, load
from ddp_tokens.world import World, world_from_environment

PROGRAM = "ddp_tokens.gradients"
Microbatches = Sequence[Sequence[Row]]


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse(PROGRAM, arguments, "gradients", description=__doc__)
    world = claim_device(
        world_from_environment(os.environ, experiment.device, experiment.world_size), experiment.resolved_backend
    )
    make_deterministic(experiment.threads_per_rank)
    prepared = read_prepared(experiment, at)
    with process_group(experiment.resolved_backend, experiment.timeout_s):
        write_gradients(experiment, at, prepared, world)
    return 0


def write_gradients(experiment: Experiment, at: Layout, prepared: Prepared, world: World) -> None:
    """Rank 0 writes one dump per formula and dtype; each rank writes what it says to an empty window."""
    workload = load(experiment.workload)
    for dtype_name, dtype in DTYPES.items():
        bare = initial_model(experiment, workload, prepared.shape, at.initial, world.device, dtype)
        model = wrap_for_ddp(bare, world)
        dumps = gradient_dumps(model, workload, prepared, world)
        if world.is_main:
            for formula, dump in dumps.items():
                save_tensors(at.gradients(formula, dtype_name), dump)
    refusal = refuse_empty_window(model, workload, microbatches_of(prepared.plan[0], world.rank, prepared.rows), world)
    if world.is_main:
        shutil.rmtree(at.zero_window, ignore_errors=True)
    barrier()
    write_json(at.zero_window / f"rank-{world.rank}.json", refusal)


def gradient_dumps(
    model: DistributedDataParallel, workload: Workload, prepared: Prepared, world: World
) -> dict[str, dict[str, torch.Tensor]]:
    """Formula -> gradients by CASE/PARAMETER, as every rank holds them after DDP's averaging, dropout off.

    Raises WorkloadError on every rank alike when the workload sums over other units than the corpus counts.
    """
    model.eval()
    dumps: dict[str, dict[str, torch.Tensor]] = {TOKEN_MEAN: {}, MEAN_OF_MEANS: {}}
    for case, index in windows_to_compare(prepared.plan, prepared.rows).items():
        microbatches = microbatches_of(prepared.plan[index], world.rank, prepared.rows)
        counted = supervised_in(row for rows in microbatches for row in rows)
        for formula, dump in dumps.items():
            normalize = normalization(formula, microbatches, index, world)
            batches = [workload.collate(rows, world.device) for rows in microbatches]
            loss_sum, units = accumulate(model, workload, batches, normalize)
            sum_window(workload, f"window {index + 1}", loss_sum, units, counted, world)
            dump |= named_gradients(case, gradients_of(model.module))
    return dumps


def normalization(
    formula: str, microbatches: Microbatches, index: int, world: World
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What turns a microbatch's loss sum into the loss to backpropagate. One all-reduce."""
    local, total = count_window(microbatches, f"window {index + 1}", world.device)
    if formula == TOKEN_MEAN:
        return partial(global_token_loss, global_count=total, world_size=world.size)
    return partial(mean_of_means_loss, local_count=local)


def refuse_empty_window(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, world: World
) -> dict[str, object]:
    """Take a window whose labels are all ignored through the same functions as training does; record what happens."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    emptied = [[row.unsupervised() for row in rows] for rows in microbatches]
    name, message = "window 1, with all of its labels ignored,", None
    try:
        _, total = count_window(emptied, name, world.device)
        normalize = partial(global_token_loss, global_count=total, world_size=world.size)
        accumulate(model, workload, [workload.collate(rows, world.device) for rows in emptied], normalize)
        optimizer.step()
    except EmptyWindowError as error:
        message = str(error)
    moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    about = {"rank": world.rank, "world_size": world.size, "window": name}
    return about | {"error": message, "parameters_moved": moved}


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
