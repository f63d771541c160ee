"""Print the seconds that the experiment's plan, gone through twice, takes the training loop: no launch, no files."""

import os
import time
from collections.abc import Sequence

from benchmarks.loop import our_loop
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import barrier, process_group
from ddp_tokens.inputs import read_prepared
from ddp_tokens.options import parse
from ddp_tokens.world import world_from_environment


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse("benchmarks.updates", arguments, "interrupt")
    world = world_from_environment(os.environ, experiment.device, experiment.world_size)
    make_deterministic(experiment.threads_per_rank)
    prepared = read_prepared(experiment, at)
    with process_group(experiment.resolved_backend, experiment.timeout_s):
        run = our_loop(experiment, at, prepared, world)
        barrier()
        start = time.perf_counter()
        for _ in range(2):
            run(range(1, len(prepared.plan) + 1))
        barrier()
        if world.is_main:
            print(time.perf_counter() - start)
    return 0
