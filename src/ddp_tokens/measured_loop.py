"""Training as it is measured: by the first ranks of one world, on the experiment's windows dealt to them."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Experiment
from ddp_tokens.distributed import barrier, sum_over_ranks, within, wrap_for_ddp
from ddp_tokens.inputs import Prepared, initial_model
from ddp_tokens.layout import Layout
from ddp_tokens.loads import plan_for
from ddp_tokens.plan import Plan, counts_per_rank
from ddp_tokens.progress import UNWATCHED, Progress
from ddp_tokens.trainer import How, build_optimizer, how_of, state_of, train
from ddp_tokens.workloads import Workload, unit_of
from ddp_tokens.world import World

Record = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What is measured; `world`: of all ranks that were started; `everyone`: their group, for waits of any length."""

    experiment: Experiment
    at: Layout
    prepared: Prepared
    workload: Workload
    world: World
    everyone: dist.ProcessGroup

    @property
    def unit(self) -> str:
        return unit_of(self.workload)

    def wait_for_all(self) -> None:
        with within(self.everyone):
            barrier()


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
        how = how_of(experiment, optimizer, measured.prepared.windows_per_epoch, "cpu")
        rank = measured.world.rank
        return cls(measured, World(rank, rank, processes), group, model, state_of(bare, optimizer, how), how)

    def updates(self, plan: Plan, progress: Progress = UNWATCHED) -> Generator[Record, None, None]:
        """Train on, through these windows; to be used inside `within`."""
        self.state.history.clear()
        self.state.rank_history.clear()
        workload, rows = self.measured.workload, self.measured.prepared.rows
        return train(self.model, self.state, workload, plan, rows, self.world, len(plan), self.how, progress)

    def run(self, scaling: str) -> Record:
        """Train through the measured windows; seconds from one barrier of these ranks to another."""
        windows = self.measured.experiment.scaling.windows
        plan = plan_for(scaling, self.measured.prepared.plan, self.world.size)[:windows]
        units = sum(sum(counts_per_rank(window, self.measured.prepared.rows)) for window in plan)
        with within(self.group):
            updates = self.updates(plan)
            barrier()
            began = perf_counter()
            number = sum(1 for _ in updates)
            barrier()
            seconds = perf_counter() - began
        record = {"scaling": scaling, "processes": self.world.size, "updates": number}
        return record | {"units": units, "seconds": seconds}


def gathered(own: Sequence[float], world: World) -> list[list[float]]:
    """By rank, what each gives; all give as much. One all-reduce: a rank's numbers have places that are 0 elsewhere."""
    number = len(own)
    places = [0.0] * (number * world.size)
    places[number * world.rank : number * (world.rank + 1)] = own
    summed = sum_over_ranks(places, what="measured times")
    return [summed[number * rank : number * (rank + 1)] for rank in range(world.size)]
