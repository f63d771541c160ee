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
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.all_reduce_times import MEASURES, VARIANTS, BackwardTime, by_difference, by_hook, time_buckets
from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Experiment
from ddp_tokens.determinism import make_deterministic, seed_rank
from ddp_tokens.devices import cores, cpu_name
from ddp_tokens.distributed import barrier, process_group, sum_over_ranks, within, wrap_for_ddp
from ddp_tokens.errors import PlanError
from ddp_tokens.files import write_json, write_json_lines
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.plan import Plan, counts_per_rank, dealt, microbatches_of, one_share_each
from ddp_tokens.progress import UNWATCHED, Progress
from ddp_tokens.scaling import counted
from ddp_tokens.scaling_results import write_results
from ddp_tokens.scaling_rows import STRONG, WEAK
from ddp_tokens.tensors import save_tensors, weights_of
from ddp_tokens.trainer import How, build_optimizer, how_of, state_of, train
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.working import running_alone
from ddp_tokens.workloads import Workload, load
from ddp_tokens.world import World, world_from_environment

PROGRAM = "ddp_tokens.measure"
BACKEND = "gloo"
# Ranks that have no part wait for those that have: a rank that hangs is found by the others of its own group.
LONGEST_WAIT = timedelta(days=1)
Record = dict[str, Any]
log = logging.getLogger(PROGRAM)


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse(PROGRAM, arguments, "scaling", description=__doc__)
    most = max(experiment.measured_processes)
    reason = f"{most} are measured, the most of scaling.processes and world_size: start {most} ranks"
    world = world_from_environment(os.environ, "cpu", most, reason)
    end_with(starters_of_rank(os.environ))
    level = logging.INFO if world.is_main else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    make_deterministic(experiment.threads_per_rank)
    prepared, workload = read_prepared(experiment, at), load(experiment.workload)
    with (
        process_group(BACKEND, experiment.timeout_s),
        running_alone(at.run_lock("scaling"), at.scaling, world, experiment.timeout_s),
    ):
        measure(Measured(experiment, at, prepared, workload, world, dist.new_group(timeout=LONGEST_WAIT)))
    if world.is_main:
        write_results(experiment, at)
    return 0


@dataclass(frozen=True)
class Measured:
    """What is measured; `world`: of all ranks that were started; `everyone`: their group, for waits of any length."""

    experiment: Experiment
    at: Layout
    prepared: Prepared
    workload: Workload
    world: World
    everyone: dist.ProcessGroup

    def wait_for_all(self) -> None:
        with within(self.everyone):
            barrier()


def measure(of: Measured) -> None:
    """Every rank calls this. Rank 0 writes, but for the weights of the experiment's own ranks."""
    groups = {number: dist.new_group(range(number)) for number in of.experiment.measured_processes}
    if of.world.is_main:
        shutil.rmtree(of.at.measured_states, ignore_errors=True)
    seed_rank(of.experiment.seed, of.world.rank)
    loops = {number: Loop.of(of, number, group) for number, group in groups.items() if of.world.rank < number}
    runs = run_in_turn(of, loops)
    timings = [row for number, group in groups.items() for row in time_updates(of, number, group)]
    if of.world.is_main:
        write_json_lines(of.at.runs_in_turn, runs)
        write_json_lines(of.at.timings, timings)
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
                    log.info("round %d: %s", repeat, "; ".join(map(sentence, found)))
    return sorted(runs, key=lambda run: (run["scaling"], run["processes"], run["repeat"]))


def sentence(run: Mapping[str, Any]) -> str:
    return f"{counted(run['processes'])}, {run['scaling']}: {run['tokens'] / run['seconds']:,.0f} tokens/s"


@dataclass(frozen=True)
class Loop:
    """Training by the first `world.size` ranks; DDP as it comes."""

    measured: Measured
    world: World
    group: dist.ProcessGroup
    model: DistributedDataParallel
    state: TrainingState
    how: How

    @classmethod
    def of(cls, measured: Measured, processes: int, group: dist.ProcessGroup) -> "Loop":
        """Each of these ranks calls this, with its group."""
        experiment, shape = measured.experiment, measured.prepared.shape
        bare = initial_model(experiment, measured.workload, shape, measured.at.initial, "cpu", torch.float32)
        with within(group):
            model = wrap_for_ddp(bare, keep_first_layout=False)
        optimizer = build_optimizer(model, experiment.optimizer)
        how = how_of(experiment, optimizer, measured.prepared.training_rows, "cpu")
        rank = measured.world.rank
        return cls(measured, World(rank, rank, processes), group, model, state_of(bare, optimizer, how), how)

    def updates(self, plan: Plan, progress: Progress = UNWATCHED) -> Iterator[Record]:
        """Train on, through these windows; to be used inside `within`."""
        self.state.history.clear()
        self.state.rank_history.clear()
        workload, rows = self.measured.workload, self.measured.prepared.rows
        return train(self.model, self.state, workload, plan, rows, self.world, len(plan), self.how, progress)

    def run(self, scaling: str) -> Record:
        """Train through the measured windows; seconds from one barrier of these ranks to another."""
        windows = self.measured.experiment.scaling.windows
        plan = plan_for(scaling, self.measured.prepared.plan, self.world.size)[:windows]
        tokens = sum(sum(counts_per_rank(window, self.measured.prepared.rows)) for window in plan)
        with within(self.group):
            updates = self.updates(plan)
            barrier()
            began = perf_counter()
            number = sum(1 for _ in updates)
            barrier()
            seconds = perf_counter() - began
        record = {"scaling": scaling, "processes": self.world.size, "updates": number}
        return record | {"tokens": tokens, "seconds": seconds}


def plan_for(scaling: str, plan: Plan, processes: int) -> Plan:
    """Strong: the rows of each window, dealt to this many processes. Weak: each process has the rows of one rank.

    Raises PlanError when a window holds fewer rows than there are processes.
    """
    if scaling == WEAK:
        return one_share_each(plan, processes)
    try:
        return dealt(plan, processes)
    except PlanError as error:
        raise PlanError(f"{error} (field scaling.processes)") from None


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


def gathered(own: Sequence[float], world: World) -> list[list[float]]:
    """By rank, what each gives; all give as much. One all-reduce: a rank's numbers have places that are 0 elsewhere."""
    number = len(own)
    places = [0.0] * (number * world.size)
    places[number * world.rank : number * (world.rank + 1)] = own
    summed = sum_over_ranks(places, what="measured times")
    return [summed[number * rank : number * (rank + 1)] for rank in range(world.size)]


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
        "steps": of.experiment.steps,
        "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
        "find_unused_parameters": model.find_unused_parameters,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
    }


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
