"""What an all-reduce costs on this machine, and how training scales with the number of processes. CPU and gloo.

Started once: python -m ddp_tokens.launch --nproc-per-node=4 -m ddp_tokens.measure --config EXPERIMENT.yaml
with as many ranks as the largest number in `scaling.processes`, or `world_size` if that is larger. Every number of
processes is measured in this one world, in turn; ranks that have no part wait in a barrier meanwhile. One process goes
through DDP too, in a group of its own. At the end rank 0 writes what the measurements come to.
"""

import logging
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.accuracy_times import time_to_accuracy
from ddp_tokens.agreement import Attempt, File, describe, read_inputs, require_agreement
from ddp_tokens.all_reduce_sweep import sweep
from ddp_tokens.all_reduce_times import MEASURES, VARIANTS, BackwardTime, by_difference, by_hook, time_buckets
from ddp_tokens.config import Experiment, ResNet
from ddp_tokens.determinism import make_deterministic, seed_rank
from ddp_tokens.distributed import process_group, within
from ddp_tokens.errors import ConfigError
from ddp_tokens.files import write_json, write_json_lines
from ddp_tokens.hardware import cores, cpu_name
from ddp_tokens.inputs import Prepared
from ddp_tokens.layout import Layout
from ddp_tokens.loads import plan_for
from ddp_tokens.measured_loop import Loop, Measured, Record, gathered
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.plan import microbatches_of
from ddp_tokens.scaling import counted
from ddp_tokens.scaling_results import write_results
from ddp_tokens.scaling_rows import STRONG, WEAK
from ddp_tokens.step_parts import time_parts
from ddp_tokens.strategy_settings import DDP
from ddp_tokens.tensors import save_tensors, weights_of
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.working import running_alone
from ddp_tokens.workloads import load
from ddp_tokens.world import World, require_size, world_from_environment

PROGRAM = "ddp_tokens.measure"
BACKEND = "gloo"
TOLD = (1, 2)  # numbers of processes whose updates are taken apart, and which are timed on the way to an accuracy
# Ranks that have no part wait for those that have: a rank that hangs is found by the others of its own group.
LONGEST_WAIT = timedelta(days=1)
log = logging.getLogger(PROGRAM)


def main(arguments: Sequence[str]) -> int:
    asked, at, _ = parse(PROGRAM, arguments, "scaling", description=__doc__)
    experiment = on_cpu(asked)
    world = world_from_environment(os.environ, "cpu", max(experiment.measured_processes))
    end_with(starters_of_rank(os.environ))
    level = logging.INFO if world.is_main else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    make_deterministic(experiment.threads_per_rank)
    inputs = Attempt(partial(read, experiment, at, world))
    with process_group(BACKEND, experiment.timeout_s):
        require_agreement(world, at, describe(PROGRAM, "scaling", experiment, inputs, {}))
        prepared, workload = inputs.result(), load(experiment.workload)
        with running_alone(at.run_lock("scaling"), at.scaling, world, experiment.timeout_s):
            measure(Measured(experiment, at, prepared, workload, world, dist.new_group(timeout=LONGEST_WAIT)))
    if world.is_main:
        write_results(experiment, at)
    return 0


def on_cpu(experiment: Experiment) -> Experiment:
    """Whatever device it trains on. Raises ConfigError where the CPU cannot, and for another strategy than ddp."""
    if experiment.strategy != DDP:
        raise ConfigError(
            f"scaling measures DistributedDataParallel, not strategy {experiment.strategy}: set it to ddp"
        )
    if isinstance(experiment.model, ResNet) and experiment.model.norm == "sync_batch":
        raise ConfigError(
            "scaling is measured on the CPU, which torch's SyncBatchNorm refuses: take model.norm batch or group for it"
        )
    return experiment.model_copy(update={"device": "cpu"})


def read(experiment: Experiment, at: Layout, world: World) -> tuple[Prepared, dict[str, File]]:
    most = max(experiment.measured_processes)
    require_size(world, most, f"{most} are measured, the most of scaling.processes and world_size: start {most} ranks")
    return read_inputs(experiment, at)


def measure(of: Measured) -> None:
    """Every rank calls this. Rank 0 writes, but for the weights of the experiment's own ranks."""
    groups = {number: dist.new_group(range(number)) for number in of.experiment.measured_processes}
    if of.world.is_main:
        shutil.rmtree(of.at.measured_states, ignore_errors=True)
    seed_rank(of.experiment.seed, of.world.rank)
    loops = {number: Loop.of(of, number, group) for number, group in groups.items() if of.world.rank < number}
    runs = run_in_turn(of, loops)
    timings = [row for number, group in groups.items() for row in time_updates(of, number, group)]
    told = {number: groups[number] for number in TOLD}
    parts = [row for number, group in told.items() for row in time_parts(of, number, group)]
    reached = time_to_accuracy(of, told)
    swept = sweep(of, groups, gradient_bytes(loops[max(loops)].model))
    if of.world.is_main:
        write_json_lines(of.at.runs_in_turn, runs)
        write_json_lines(of.at.timings, timings)
        write_json_lines(of.at.step_parts, parts)
        write_json_lines(of.at.time_to_accuracy, reached)
        write_json_lines(of.at.all_reduces, swept)
        write_json(of.at.machine, machine(of, loops[1].model))


def run_in_turn(of: Measured, loops: Mapping[int, "Loop"]) -> list[Record]:
    """One record per run: `scaling.repeats` rounds, each with every number of processes on both kinds of plan.

    `loops`: those in which this rank has a part, by number of processes.
    """
    runs = []
    for repeat in range(of.experiment.scaling.repeats + 1):
        for number in of.experiment.measured_processes[:: 1 if repeat % 2 else -1]:
            of.wait_for_all()
            if number in loops:
                found = [loops[number].run(kind) for kind in (STRONG, WEAK)]
                if repeat:  # round 0 is warm-up
                    runs += [{"repeat": repeat} | run for run in found]
                    log.info("round %d: %s", repeat, "; ".join(sentence(run, of.unit) for run in found))
    return sorted(runs, key=lambda run: (run["scaling"], run["processes"], run["repeat"]))


def sentence(run: Mapping[str, Any], unit: str) -> str:
    return f"{counted(run['processes'])}, {run['scaling']}: {run['units'] / run['seconds']:,.1f} {unit}s/s"


def time_updates(of: Measured, processes: int, group: dist.ProcessGroup) -> list[Record]:
    """One record per update, rank and variant, on the first `processes` ranks; on the others, which wait, none.

    These are the experiment's windows, dealt to this many processes. Each is trained on twice: by a model as DDP
    reduces it, for the difference, and by another whose hook is timed.
    """
    of.wait_for_all()
    if of.world.rank >= processes:
        return []
    plan = plan_for(STRONG, of.prepared.plan, processes)
    as_it_comes, hooked = (Loop.of(of, processes, group) for _ in range(2))
    time = BackwardTime()
    own: list[float] = []
    with within(group):
        buckets = time_buckets(hooked.model, group)
        updates, hooked_updates = as_it_comes.updates(plan, time), hooked.updates(plan, time)
        for window in plan:
            last = microbatches_of(window, of.world.rank, of.prepared.rows)[-1]
            own += by_difference(as_it_comes.model, of.workload, of.workload.collate(last), updates, time)
            own += by_hook(buckets, hooked_updates, time)
        found = gathered(own, as_it_comes.world)
    if processes == of.experiment.world_size:
        save_tensors(of.at.measured_state(of.world.rank), weights_of(as_it_comes.state.model))
    log.info("%s: all-reduce timed in %d updates", counted(processes), len(plan))
    return list(records(processes, found))


def records(processes: int, of_ranks: Sequence[Sequence[float]]) -> Iterator[Record]:
    """`of_ranks`: by rank, MEASURES of each update's variants in order."""
    updates = len(of_ranks[0]) // (len(VARIANTS) * len(MEASURES))
    numbers = [iter(of_rank) for of_rank in of_ranks]
    for step in range(1, updates + 1):
        for rank, of_rank in enumerate(numbers):
            for variant in VARIANTS:
                compute, communication, size, buckets = (next(of_rank) for _ in MEASURES)
                place = {"world_size": processes, "step": step, "rank": rank, "variant": variant}
                times = {"compute_s": compute, "communication_s": communication}
                yield place | times | {"bytes": int(size), "buckets": int(buckets)}


def gradient_bytes(model: DistributedDataParallel) -> int:
    return sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)


def machine(of: Measured, model: DistributedDataParallel) -> Record:
    """What the figures were measured on and with; DDP's options as `model` has them."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "threads_per_rank": of.experiment.threads_per_rank,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "backend": BACKEND,
        "launcher": of.experiment.resolved_launcher,
        "model_params": sum(parameter.numel() for parameter in model.parameters()),
        "unit": of.unit,
        "steps": of.experiment.steps,
        "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
        "find_unused_parameters": model.find_unused_parameters,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
    }


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
