"""How long does a working checkpoint block training, against the ten updates that it guards? And loading one?

python -m ddp_tokens.launch --nproc-per-node=2 -m benchmarks.checkpoints --config config/minimum.yaml

Needs `prepare` and `reference`. Each round trains ten updates, saves, and loads what was saved; rank 0 prints medians.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence

from ddp_tokens.checkpoint import load
from ddp_tokens.config import Experiment
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import barrier, process_group
from ddp_tokens.inputs import read_prepared
from ddp_tokens.layout import Layout, checkpoint_name
from ddp_tokens.options import parse
from ddp_tokens.train import begin, run_identity
from ddp_tokens.trainer import train
from ddp_tokens.working import Working
from ddp_tokens.world import World, world_from_environment

GUARDED = 10


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse("benchmarks.checkpoints", arguments, "continuous")
    world = world_from_environment(os.environ, experiment.device, experiment.world_size)
    make_deterministic(experiment.threads_per_rank)
    with process_group(experiment.resolved_backend, experiment.timeout_s):
        seconds = time_rounds(experiment, at, world)
    if world.is_main:
        updates, saving, loading = map(statistics.median, zip(*seconds, strict=True))
        print(f"ten updates {updates:.3f} s, saving {saving:.3f} s ({saving / updates:.1%}), loading {loading:.3f} s")
    return 0


def time_rounds(experiment: Experiment, at: Layout, world: World) -> list[tuple[float, float, float]]:
    prepared, identity = read_prepared(experiment, at), run_identity(experiment, at)
    begun = begin(experiment, prepared, at.initial, world)
    working = Working(at.root / ".benchmark-checkpoints", GUARDED, experiment.keep, identity, world)
    rounds = []

    def updates(until: int) -> None:
        for _ in train(begun.model, begun.state, begun.workload, prepared.plan, prepared.rows, world, until):
            pass

    try:
        for until in range(GUARDED, len(prepared.plan) + 1, GUARDED):
            training = timed(lambda until=until: updates(until))
            saving = timed(lambda: working.save(begun.state))
            newest = working.folder / checkpoint_name(until)
            loading = timed(lambda newest=newest: load(newest, begun.state, identity, world))
            rounds.append((training, saving, loading))
    finally:
        barrier()
        if world.is_main:
            shutil.rmtree(working.folder)
    return rounds


def timed(run: Callable[[], object]) -> float:
    barrier()
    start = time.perf_counter()
    run()
    barrier()
    return time.perf_counter() - start
