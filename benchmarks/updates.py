"""Print the seconds that the experiment's plan, gone through twice, takes the training loop: no launch, no files."""

import os
import time
from collections.abc import Sequence

from benchmarks.loop import our_loop
from ddp_tokens.config import Experiment
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import barrier, process_group
from ddp_tokens.inputs import Prepared, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.options import parse
from ddp_tokens.world import World, world_from_environment


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse("benchmarks.updates", arguments, "interrupt")
    world = world_from_environment(os.environ, experiment.device, experiment.world_size)
    make_deterministic(experiment.threads_per_rank)
    prepared = read_prepared(experiment, at)
    with process_group(experiment.resolved_backend, experiment.timeout_s):
        seconds = time_updates(experiment, at, prepared, world)
    if world.is_main:
        print(seconds)
    return 0


def time_updates(experiment: Experiment, at: Layout, prepared: Prepared, world: World) -> float:
    run = our_loop(experiment, at, prepared, world)
    barrier()
    start = time.perf_counter()
    for _ in range(2):
        run(range(1, len(prepared.plan) + 1))
    barrier()
    return time.perf_counter() - start
